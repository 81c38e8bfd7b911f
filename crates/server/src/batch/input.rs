//! The file of requests: checked as a whole before the first of them is asked.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::BATCH_ROUTES;

/// Longest line in bytes: a request's body is not longer, elsewhere.
const MAX_LINE_BYTES: usize = 8 << 20;
/// Longest `custom_id` in bytes.
const MAX_ID_BYTES: usize = 512;

/// A request of a file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Line {
    /// What its asker calls it, unlike every other's of the file.
    pub(super) custom_id: String,
    /// Which route it is for.
    pub(super) url: String,
    /// What would be sent there.
    pub(super) body: Map<String, Value>,
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

/// As it stands in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    custom_id: String,
    #[serde(default)]
    method: Option<String>,
    url: String,
    body: Map<String, Value>,
}

/// A file whose every line is a request.
#[derive(Clone, Debug)]
pub struct BatchInput {
    path: PathBuf,
    /// Names of all requests.
    ids: HashSet<String>,
}

impl BatchInput {
    /// Reads the whole file, line by line. `only`: the one route that its lines may ask; any by default.
    pub fn check(path: &Path, only: Option<&str>) -> Result<BatchInput, InputError> {
        let mut input = BatchInput { path: path.to_owned(), ids: HashSet::new() };
        let mut lines = input.lines()?;
        while let Some(line) = lines.next()? {
            let problem = |problem: String| InputError::Line { line: lines.number, problem };
            if only.is_some_and(|only| only != line.url) {
                let only = only.unwrap_or_default();
                return Err(problem(format!("'url' is not '{only}', the endpoint of this batch")));
            }
            if !input.ids.insert(line.custom_id) {
                return Err(problem("another line has the same 'custom_id'".to_owned()));
            }
        }
        if input.ids.is_empty() { Err(InputError::Empty) } else { Ok(input) }
    }

    /// How many requests there are.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Never: such a file is refused.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Whether a request is called so.
    pub(super) fn has(&self, custom_id: &str) -> bool {
        self.ids.contains(custom_id)
    }

    /// From the first on.
    pub(super) fn lines(&self) -> Result<Lines, InputError> {
        let path = self.path.display().to_string();
        match files::open(&self.path) {
            Ok(file) => Ok(Lines { file: BufReader::new(file), path, number: 0, bytes: Vec::new() }),
            Err(source) => Err(InputError::Unreadable { path, source }),
        }
    }
}

/// Requests, one after the other. Empty lines are none.
pub(super) struct Lines {
    file: BufReader<File>,
    path: String,
    number: usize,
    bytes: Vec<u8>,
}

impl Lines {
    pub(super) fn next(&mut self) -> Result<Option<Line>, InputError> {
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
            if !self.bytes.trim_ascii().is_empty() {
                let line = read(self.bytes.trim_ascii());
                return line.map(Some).map_err(|problem| InputError::Line { line: self.number, problem });
            }
        }
    }
}

fn read(bytes: &[u8]) -> Result<Line, String> {
    let shape = "a line is {\"custom_id\": \"..\", \"method\": \"POST\", \"url\": \"/v1/..\", \"body\": {..}}";
    let line: Written = serde_json::from_slice(bytes).map_err(|error| format!("{}; {shape}", in_short(&error)))?;
    let Written { custom_id, method, url, body } = line;
    match () {
        () if custom_id.is_empty() => Err("'custom_id' is empty".to_owned()),
        () if custom_id.len() > MAX_ID_BYTES => Err(format!("'custom_id' is longer than {MAX_ID_BYTES} bytes")),
        () if method.is_some_and(|method| method != "POST") => Err("'method' is not 'POST'".to_owned()),
        () if !BATCH_ROUTES.contains(&url.as_str()) => Err(format!("'url' is none of {}", BATCH_ROUTES.join(", "))),
        () if body.get("stream").is_some_and(|stream| stream != &Value::Bool(false) && !stream.is_null()) => {
            Err("'stream' cannot be true: an answer is one line of the output".to_owned())
        }
        () => Ok(Line { custom_id, url, body }),
    }
}

/// What a parser says, without what it says of where: the line is known, and a column of it helps.
fn in_short(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = text.split(" at line").next().unwrap_or_default().to_owned();
    if error.column() > 0 { format!("{text} (column {})", error.column()) } else { text }
}
