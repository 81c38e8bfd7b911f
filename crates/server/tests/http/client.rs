//! A tiny HTTP/1.1 client that can also misbehave: it sends exactly the bytes it is given, and stops where it is told.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// Longer than anything takes that is not stuck.
const PATIENCE: Duration = Duration::from_secs(300);

/// A body with these fields more, or otherwise.
pub(crate) fn with(body: &Value, more: &Value) -> Value {
    let mut body = body.clone();
    more.as_object().unwrap().iter().for_each(|(key, value)| body[key] = value.clone());
    body
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("answers are UTF-8")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {:?}", self.text()))
    }

    /// The events of a stream, without the final `[DONE]`; the flag says whether it was there.
    pub(crate) fn events(&self) -> (Vec<Value>, bool) {
        let mut events = Vec::new();
        let mut done = false;
        // What begins with a colon is a comment.
        for event in self.text().split("\n\n").filter(|event| !event.is_empty() && !event.starts_with(':')) {
            let data = event.strip_prefix("data: ").unwrap_or_else(|| panic!("not an event: {event:?}"));
            assert!(!done, "something follows [DONE]: {data}");
            match data {
                "[DONE]" => done = true,
                data => events.push(serde_json::from_str(data).unwrap_or_else(|_| panic!("not JSON: {data:?}"))),
            }
        }
        (events, done)
    }
}

/// A connection that can be used several times.
pub(crate) struct Connection(BufReader<TcpStream>);

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> Connection {
        let socket = TcpStream::connect(address).expect("the server listens");
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
        Connection(BufReader::new(socket))
    }

    /// Sends bytes as they are. A server that has already hung up is no error: its answer may still be there to read.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let _ = self.0.get_mut().write_all(bytes);
    }

    /// Sends a whole request.
    pub(crate) fn request(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n", body.len());
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        self.send(head.as_bytes());
        self.send(body);
    }

    /// Reads one answer, whole.
    pub(crate) fn answer(&mut self) -> Answer {
        let (status, headers) = self.head().expect("an answer");
        let mut answer = Answer { status, headers, body: Vec::new() };
        let length = answer.header("content-length").map(|length| length.parse::<usize>().unwrap());
        match length {
            Some(length) => {
                answer.body.resize(length, 0);
                self.0.read_exact(&mut answer.body).expect("the body that was announced");
            }
            None if answer.header("transfer-encoding").is_some() => while self.chunk(&mut answer.body) {},
            None => {
                self.0.read_to_end(&mut answer.body).expect("a body until the end");
            }
        }
        answer
    }

    /// Reads the head of an answer.
    pub(crate) fn head(&mut self) -> io::Result<(u16, Vec<(String, String)>)> {
        let status_line = self.line()?;
        let status = status_line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(format!("not a status line: {status_line:?}")))?;
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else { return Ok((status, headers)) };
            headers.push((name.to_owned(), value.trim().to_owned()));
        }
    }

    /// Reads one chunk of a chunked body; false after the last.
    pub(crate) fn chunk(&mut self, body: &mut Vec<u8>) -> bool {
        self.try_chunk(body).expect("a chunk")
    }

    /// The same, where a connection may have been cut.
    pub(crate) fn try_chunk(&mut self, body: &mut Vec<u8>) -> io::Result<bool> {
        let line = self.line()?;
        let length = usize::from_str_radix(&line, 16).unwrap_or_else(|_| panic!("not a chunk's length: {line:?}"));
        let start = body.len();
        body.resize(start + length, 0);
        self.0.read_exact(&mut body[start..])?;
        assert_eq!(self.line()?, "");
        Ok(length > 0)
    }

    /// True when the server has closed the connection, and nothing more is to be read.
    pub(crate) fn is_closed(&mut self) -> bool {
        matches!(self.0.fill_buf(), Ok([]) | Err(_))
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end_matches(['\r', '\n']).to_owned())
    }
}
