//! A client that keeps no rule but those it is asked to keep.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

/// Longest answer that is read.
const MOST_BYTES: usize = 64 << 20;

/// An answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

/// A connection whose reads and writes end after `patience`.
pub(crate) fn connect(port: u16, patience: Duration) -> io::Result<TcpStream> {
    // A queue of connections that is full makes a connection wait for minutes.
    let stream = TcpStream::connect_timeout(&(Ipv4Addr::LOCALHOST, port).into(), patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    Ok(stream)
}

/// Sends bytes and reads until the other side closes, at most for `patience`.
pub(crate) fn exchange(port: u16, bytes: &[u8], patience: Duration) -> io::Result<Answer> {
    let mut stream = connect(port, patience)?;
    // A server may answer and close before it has read everything: what it said then still counts.
    let written = stream.write_all(bytes);
    let read = answer(&mut stream, patience);
    if read.is_err() {
        written?;
    }
    read
}

/// Reads one answer to its end, or to the end of the connection.
pub(crate) fn answer(stream: &mut TcpStream, patience: Duration) -> io::Result<Answer> {
    let deadline = Instant::now() + patience;
    let (mut bytes, mut piece) = (Vec::new(), [0; 1 << 14]);
    loop {
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => bytes.extend(&piece[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // What came before a reset is an answer all the same.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset && !bytes.is_empty() => break,
            Err(error) => return Err(error),
        }
        if Instant::now() > deadline || bytes.len() > MOST_BYTES {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    let text = String::from_utf8(bytes).map_err(|_| io::Error::other("an answer that is not UTF-8"))?;
    if text.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(|| io::Error::other("an answer without a head"))?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| io::Error::other("an answer without a status"))?;
    let head = head.to_ascii_lowercase();
    let body = match head.contains("transfer-encoding: chunked") {
        true => unchunked(body).ok_or_else(|| io::Error::other("an answer whose chunks are none"))?,
        false => body.to_string(),
    };
    Ok(Answer { status, head, body })
}

/// A body in chunks, as far as it came.
fn unchunked(mut rest: &str) -> Option<String> {
    let mut body = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).ok()?;
        body.push_str(&after[..after.floor_char_boundary(size)]);
        rest = after.get(size..).unwrap_or_default().trim_start_matches("\r\n");
    }
    Some(body)
}

/// The bytes of a request that is right.
pub(crate) fn request(method: &str, path: &str, key: Option<&str>, headers: &str, body: &[u8]) -> Vec<u8> {
    let key = key.map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
    let host = if headers.to_ascii_lowercase().contains("host:") { "" } else { "Host: localhost\r\n" };
    let kind =
        if headers.to_ascii_lowercase().contains("content-type:") { "" } else { "Content-Type: application/json\r\n" };
    let head = format!(
        "{method} {path} HTTP/1.1\r\n{host}Connection: close\r\n{kind}{key}{headers}Content-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// One POST on a connection of its own.
pub(crate) fn post(port: u16, key: Option<&str>, path: &str, body: &str, patience: Duration) -> io::Result<Answer> {
    exchange(port, &request("POST", path, key, "", body.as_bytes()), patience)
}

/// One GET on a connection of its own.
pub(crate) fn get(port: u16, key: Option<&str>, path: &str, patience: Duration) -> io::Result<Answer> {
    exchange(port, &request("GET", path, key, "", b""), patience)
}
