//! A hub on this machine for tests of downloads: fixed answers by request line, with ranges and cut connections.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// The commit of `org/tiny`.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// One request to the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// `GET /path`.
    pub line: String,
    /// Its `authorization`.
    pub token: Option<String>,
    /// The range that it asked for.
    pub range: Option<String>,
}

/// The hub's response to one request line; `cut_after` ends the connection within the body,
/// `no_ranges` ignores a range.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its headers.
    pub headers: Vec<(String, String)>,
    /// Its body.
    pub body: Vec<u8>,
    /// The connection ends behind this many bytes of it.
    pub cut_after: Option<usize>,
    /// Ranges are not heeded.
    pub no_ranges: bool,
    /// A connection takes so long for each thousandth of the body.
    pub slow: std::time::Duration,
}

impl Answer {
    /// Without headers.
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Answer {
        Answer { status, body: body.into(), ..Answer::default() }
    }

    /// The same with a header.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Answer {
        self.headers.push((name.to_string(), value.to_string()));
        self
    }
}

/// A server of fixed answers, by request line. Answers in a list are used up one by one; the last one stays.
pub struct FakeHub {
    /// Its URL.
    pub endpoint: String,
    answers: Arc<Mutex<HashMap<String, Vec<Answer>>>>,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl FakeHub {
    /// Listens, with no answer but 404.
    pub fn start() -> FakeHub {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
        let hub = FakeHub { endpoint, answers: Arc::default(), seen: Arc::default() };
        let (answers, seen) = (hub.answers.clone(), hub.seen.clone());
        // Ends with the process: the listener has no other owner.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (answers, seen) = (answers.clone(), seen.clone());
                std::thread::spawn(move || serve(stream.expect("a connection"), &answers, &seen));
            }
        });
        hub
    }

    /// What it says to this line from now on.
    pub fn answer(&self, line: &str, answers: impl Into<Vec<Answer>>) {
        self.answers.lock().expect("not poisoned").insert(line.to_string(), answers.into());
    }

    /// The list of files of `org/tiny` at `main`.
    pub fn list(&self, files: &[&str]) {
        let siblings: Vec<String> = files.iter().map(|file| format!("{{\"rfilename\": \"{file}\"}}")).collect();
        let body = format!("{{\"sha\": \"{COMMIT}\", \"siblings\": [{}], \"private\": false}}", siblings.join(", "));
        self.answer("GET /api/models/org/tiny/revision/main", [Answer::new(200, body)]);
    }

    /// A file served by the hub itself, named by a git hash.
    pub fn small(&self, file: &str, content: &str) {
        let answer = Answer::new(200, content)
            .with("etag", format!("\"{:040x}\"", content.len() + file.len() * 1000))
            .with("x-repo-commit", COMMIT);
        self.answer(&format!("GET {}", path(file)), [answer.clone()]);
        self.answer(&format!("HEAD {}", path(file)), [answer]);
    }

    /// A file on another host, named by its SHA-256.
    pub fn large(&self, file: &str, etag: &str, size: usize, location: &str) {
        let answer = Answer::new(302, "")
            .with("x-linked-etag", format!("\"{etag}\""))
            .with("x-linked-size", size)
            .with("x-repo-commit", COMMIT)
            .with("etag", "\"of-the-redirect\"")
            .with("location", location);
        self.answer(&format!("GET {}", path(file)), [answer.clone()]);
        self.answer(&format!("HEAD {}", path(file)), [answer]);
    }

    /// What it says to this line.
    pub fn answers(&self, line: &str) -> Vec<Answer> {
        self.answers.lock().expect("not poisoned")[line].clone()
    }

    /// What was asked.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("not poisoned").clone()
    }

    /// The lines of what was asked.
    pub fn lines(&self) -> Vec<String> {
        self.seen().into_iter().map(|seen| seen.line).collect()
    }
}

/// Where a file of `org/tiny` is.
pub fn path(file: &str) -> String {
    format!("/org/tiny/resolve/{COMMIT}/{file}")
}

fn serve(stream: TcpStream, answers: &Mutex<HashMap<String, Vec<Answer>>>, seen: &Mutex<Vec<Seen>>) {
    let mut reader = BufReader::new(stream.try_clone().expect("a second handle"));
    let mut output = stream;
    loop {
        let mut first = String::new();
        if reader.read_line(&mut first).unwrap_or(0) == 0 {
            return;
        }
        let mut headers = HashMap::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 || line.trim().is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').expect("a header");
            headers.insert(name.trim().to_lowercase(), value.trim().to_string());
        }
        // Sizes are asked for along with the list.
        let line = first.trim().trim_end_matches(" HTTP/1.1").trim_end_matches("?blobs=true").to_string();
        let range = headers.get("range").cloned();
        seen.lock().expect("not poisoned").push(Seen {
            line: line.clone(),
            token: headers.get("authorization").cloned(),
            range: range.clone(),
        });
        let mut answer = match answers.lock().expect("not poisoned").get_mut(&line) {
            Some(list) if list.len() > 1 => list.remove(0),
            Some(list) => list[0].clone(),
            None => Answer::new(404, "nothing here"),
        };
        let start: usize =
            range.map_or(0, |r| r.trim_start_matches("bytes=").trim_end_matches('-').parse().expect("a range"));
        if start > 0 && answer.status == 200 && !answer.no_ranges {
            let total = answer.body.len();
            answer = Answer { status: 206, body: answer.body.split_off(start), ..answer }
                .with("content-range", format!("bytes {start}-{}/{total}", total - 1));
        }
        let mut head = format!("HTTP/1.1 {} x\r\ncontent-length: {}\r\n", answer.status, answer.body.len());
        for (name, value) in &answer.headers {
            head += &format!("{name}: {value}\r\n");
        }
        let body: &[u8] = if line.starts_with("HEAD") { &[] } else { &answer.body };
        let sent = answer.cut_after.map_or(body, |bytes| &body[..bytes.min(body.len())]);
        let written = output.write_all((head + "\r\n").as_bytes()).and_then(|()| {
            sent.chunks(sent.len().div_ceil(1000).max(1)).try_for_each(|part| {
                std::thread::sleep(answer.slow);
                output.write_all(part)
            })
        });
        if written.is_err() || sent.len() < body.len() {
            return; // the connection is cut
        }
    }
}
