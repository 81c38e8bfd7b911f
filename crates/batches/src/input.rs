//! The file of requests: checked as a whole before the first of them is asked.

use std::collections::HashSet;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufRead, BufReader};
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::IgnoredAny;
use transport::json::{shortened, whole_characters};

use crate::BATCH_ROUTES;

/// Longest line in bytes: a request's body is not longer, elsewhere.
pub(crate) const MAX_LINE_BYTES: usize = 8 << 20;
/// Longest `custom_id` in bytes.
const MAX_ID_BYTES: usize = 512;

/// Characters of a parser's words that are told.
const MOST_SAID: usize = 200;

/// A request of a file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Line {
    /// What its asker calls it, unlike every other's of the file.
    pub(crate) custom_id: String,
    /// Which route it is for.
    pub(crate) url: String,
    /// What would be sent there: an object, as it stands in the file.
    pub(crate) body: String,
    /// Whether it says itself how urgent it is.
    pub(crate) has_class: bool,
}

/// Why a file is no batch. Lines count from 1.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// It cannot be read.
    #[error("{path}: {source}")]
    Unreadable {
        /// Its name.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// A line that is no request.
    #[error("line {line}: {problem}")]
    Line {
        /// Which.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// No line at all.
    #[error("there is no request in it")]
    Empty,
}

/// As it stands in the file. What is not known is passed over here: serde would keep it, at up to fifty times its bytes.
#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Written {
    custom_id: String,
    #[serde(default)]
    method: Option<String>,
    url: String,
    /// Its route reads it, within its limits.
    #[serde(rename = "body")]
    _body: IgnoredAny,
}

/// Names of requests, eight bytes each whatever their length: a keyed hash, whose key the sender of names does not know.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    known: HashSet<u64>,
    hasher: RandomState,
}

impl Names {
    /// `false`: it is there already.
    pub(crate) fn insert(&mut self, name: &str) -> bool {
        self.known.insert(self.hasher.hash_one(name))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.known.contains(&self.hasher.hash_one(name))
    }

    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }
}

/// A file whose every line is a request.
#[derive(Clone, Debug)]
pub struct BatchInput {
    path: PathBuf,
    /// Names of all requests.
    ids: Names,
}

impl BatchInput {
    /// Reads the whole file, line by line. `only`: the one route that its lines may ask; any by default.
    pub fn check(path: &Path, only: Option<&str>) -> Result<BatchInput, InputError> {
        let mut input = BatchInput { path: path.to_owned(), ids: Names::default() };
        let mut lines = input.lines()?;
        while let Some(line) = lines.next()? {
            let problem = |problem: String| InputError::Line { line: lines.number, problem };
            if only.is_some_and(|only| only != line.url) {
                let only = only.unwrap_or_default();
                return Err(problem(format!("'url' is not '{only}', the endpoint of this batch")));
            }
            if !input.ids.insert(&line.custom_id) {
                return Err(problem("another line has the same 'custom_id'".to_owned()));
            }
        }
        if input.is_empty() { Err(InputError::Empty) } else { Ok(input) }
    }

    /// How many requests there are.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Never: such a file is refused.
    pub fn is_empty(&self) -> bool {
        self.ids.len() == 0
    }

    /// Whether a request is called so.
    pub(crate) fn has(&self, custom_id: &str) -> bool {
        self.ids.has(custom_id)
    }

    /// From the first on.
    pub(crate) fn lines(&self) -> Result<Lines, InputError> {
        let path = self.path.display().to_string();
        match files::open(&self.path) {
            Ok(file) => Ok(Lines { file: BufReader::new(file), path, number: 0, bytes: Vec::new() }),
            Err(source) => Err(InputError::Unreadable { path, source }),
        }
    }
}

/// Requests, one after the other. Empty lines are none.
pub(crate) struct Lines {
    file: BufReader<File>,
    path: String,
    number: usize,
    bytes: Vec<u8>,
}

impl Lines {
    pub(crate) fn next(&mut self) -> Result<Option<Line>, InputError> {
        loop {
            self.bytes.clear();
            self.number += 1;
            let unreadable = |source| InputError::Unreadable { path: self.path.clone(), source };
            // One byte more than a line may have shows that it has too many.
            let mut rest = io::Read::take(&mut self.file, MAX_LINE_BYTES as u64 + 1);
            if rest.read_until(b'\n', &mut self.bytes).map_err(unreadable)? == 0 {
                return Ok(None);
            }
            if self.bytes.len() > MAX_LINE_BYTES {
                let problem = format!("it is longer than {MAX_LINE_BYTES} bytes");
                return Err(InputError::Line { line: self.number, problem });
            }
            // What some editors begin a file of UTF-8 text with.
            let mark = if self.number == 1 { &b"\xef\xbb\xbf"[..] } else { b"" };
            let bytes = self.bytes.strip_prefix(mark).unwrap_or(&self.bytes).trim_ascii();
            if !bytes.is_empty() {
                let line = read(bytes);
                return line.map(Some).map_err(|problem| InputError::Line { line: self.number, problem });
            }
        }
    }
}

fn read(bytes: &[u8]) -> Result<Line, String> {
    let shape = "a line is {\"custom_id\": \"..\", \"method\": \"POST\", \"url\": \"/v1/..\", \"body\": {..}}";
    let bytes = whole_characters(bytes);
    let text = std::str::from_utf8(&bytes).map_err(|_| format!("it is not UTF-8 text; {shape}"))?;
    if text.trim_start().starts_with('[') {
        // Of a list serde would take the members by their places.
        return Err(format!("expected an object, not a list; {shape}"));
    }
    let line: Written = serde_json::from_str(text).map_err(|error| format!("{}; {shape}", short_reason(&error)))?;
    let Written { custom_id, method, url, .. } = line;
    let is_unknown =
        |name: &str, value: &str| !["custom_id", "method", "url", "body"].contains(&name) && value != "null";
    if let Some((unknown, _)) = find_member(text, is_unknown) {
        return Err(format!("'{}' is no member of a line; {shape}", shortened(&unknown)));
    }
    let place = member(text, "body").filter(|place| text[place.clone()].starts_with('{'));
    let body = &text[place.ok_or_else(|| format!("'body' is no object; {shape}"))?];
    let is_on =
        |name: &str, value: &str| ["stream", "background"].contains(&name) && !["false", "null"].contains(&value);
    let is_class = |name: &str, value: &str| ["service_tier", "priority"].contains(&name) && value != "null";
    match find_member(body, is_on) {
        _ if custom_id.is_empty() => Err("'custom_id' is empty".to_owned()),
        _ if custom_id.len() > MAX_ID_BYTES => Err(format!("'custom_id' is longer than {MAX_ID_BYTES} bytes")),
        _ if method.is_some_and(|method| method != "POST") => Err("'method' is not 'POST'".to_owned()),
        _ if !BATCH_ROUTES.contains(&url.as_str()) => Err(format!("'url' is none of {}", BATCH_ROUTES.join(", "))),
        Some((name, _)) if name == "stream" => {
            Err("'stream' cannot be true: an answer is one line of the output".to_owned())
        }
        Some(_) => Err("'background' cannot be true: a line's answer would only be that it is queued".to_owned()),
        None => {
            let has_class = find_member(body, is_class).is_some();
            Ok(Line { custom_id, url, body: body.to_owned(), has_class })
        }
    }
}

/// Where the value of a member stands in the text of a JSON object, which is known to be one.
pub(crate) fn member(text: &str, name: &str) -> Option<Range<usize>> {
    find_member(text, |key, _| key == name).map(|(_, place)| place)
}

/// The first member whose name and value, as it is written, are wanted, and where its value stands.
fn find_member(text: &str, is_wanted: impl Fn(&str, &str) -> bool) -> Option<(String, Range<usize>)> {
    let bytes = text.as_bytes();
    let (mut at, mut depth) = (0, 0);
    // The member that the walk is in, and where its value begins.
    let (mut key, mut begins) = (String::new(), None);
    while at < bytes.len() {
        match bytes[at] {
            b'"' => {
                let from = at;
                at += 1;
                while *bytes.get(at)? != b'"' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                if depth == 1 && begins.is_none() {
                    key = serde_json::from_str(&text[from..=at]).unwrap_or_default();
                }
            }
            b':' if depth == 1 => begins = Some(at + 1),
            b',' | b'}' if depth == 1 => {
                if let Some(from) = begins.take() {
                    let value = &text[from..at];
                    let from = from + value.len() - value.trim_start().len();
                    let value = value.trim();
                    if is_wanted(&key, value) {
                        return Some((key, from..from + value.len()));
                    }
                }
                depth -= usize::from(bytes[at] == b'}');
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        at += 1;
    }
    None
}

/// What a parser says, without what it says of where: the line is known, and a column of it helps.
fn short_reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    // It may repeat a name of the sender's.
    let text: String = text.split(" at line").next().unwrap_or_default().chars().take(MOST_SAID).collect();
    if error.column() > 0 { format!("{text} (column {})", error.column()) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_taken_as_it_stands() {
        let cases = [
            (
                r#"{"custom_id":"a","url":"/v1/completions","body":{"prompt": [1, 2], "x": "}\"{"}}"#,
                r#"{"prompt": [1, 2], "x": "}\"{"}"#,
            ),
            (r#"{ "body" :  {} , "custom_id": "body", "url": "/v1/completions"}"#, "{}"),
            (
                r#"{"custom_id":"\"body\":{\\","b\u006fdy":{"a":{"body":1}},"url":"/v1/completions"}"#,
                r#"{"a":{"body":1}}"#,
            ),
            (
                r#"{"url":"/v1/completions","custom_id":"ü","body":{"prompt":"ü, [","stream":null}}"#,
                r#"{"prompt":"ü, [","stream":null}"#,
            ),
        ];
        for (line, body) in cases {
            let read = read(line.as_bytes()).unwrap();
            assert_eq!((read.body.as_str(), read.has_class), (body, false), "{line}");
        }
        let beside = |value: &str| {
            let line = r#"{"custom_id":"a","url":"/v1/completions","body":{},"extra":"#;
            read(format!("{line}{value}}}").as_bytes()).map(|line| line.body)
        };
        assert_eq!(beside("null").as_deref(), Ok("{}"));
        // What is refused is not read first: no value of it is kept, however many and deep they are.
        let deep = "[".repeat(1000) + &"]".repeat(1000);
        for value in ["0", "[null]", r#"{"a":1}"#, &deep] {
            assert!(beside(value).unwrap_err().starts_with("'extra' is no member of a line; "), "{value}");
        }
        for (body, has_class) in [
            (r#"{"service_tier":"flex"}"#, true),
            (r#"{"priority":5}"#, true),
            (r#"{"service_tier":null,"priority":null}"#, false),
        ] {
            let line = format!(r#"{{"custom_id":"a","url":"/v1/completions","body":{body}}}"#);
            assert_eq!(read(line.as_bytes()).unwrap().has_class, has_class, "{body}");
        }
        for (body, told) in [
            ("[]", "no object"),
            ("[false]", "no object"),
            ("7", "no object"),
            ("null", "no object"),
            (r#"{"stream":true}"#, "'stream'"),
            (r#"{"stream":7}"#, "'stream'"),
            (&format!(r#"{{"a":{{"stream":null}},"stream":{deep}}}"#), "'stream'"),
            (r#"{"background":true}"#, "'background'"),
            (r#"{"background":"yes"}"#, "'background'"),
        ] {
            let line = format!(r#"{{"custom_id":"a","url":"/v1/completions","body":{body}}}"#);
            let error = read(line.as_bytes()).unwrap_err();
            assert!(error.contains(told), "{body}: {error}");
        }
        assert!(read(br#"["a", "POST", "/v1/completions", {}]"#).unwrap_err().contains("expected an object"));
        let long = format!(r#"{{"{}": 1}}"#, "n".repeat(1 << 20));
        assert!(read(long.as_bytes()).unwrap_err().len() < 1000, "a note has room for it");
    }
}
