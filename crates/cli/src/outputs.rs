//! Files that a flag names for a result. What is there and is no earlier result of that kind stays: `files::ResultFile`.

use std::fs::File;
use std::path::Path;

use bench::LAB_COLUMNS;
use files::ResultFile;
use serde_json::{Map, Value};

use crate::failure::Failure;

/// The first member of our JSON files, which names the program.
const PROGRAM: &str = "program";
const VERSION: &str = concat!("twostroke ", env!("CARGO_PKG_VERSION"));
/// What a page names as its maker.
pub(crate) const GENERATOR: &str = concat!("<meta name=\"generator\" content=\"twostroke ", env!("CARGO_PKG_VERSION"));

/// What a file holds, which is known by its first bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// SVG, as `figures` draws it.
    Picture,
    /// An object, as [`json`] has it.
    Json,
    /// Events for a viewer, as `replay` writes them.
    Trace,
    /// HTML.
    Page,
    /// CSV with these columns.
    Table(Columns),
}

/// The tables that there are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Columns {
    /// `lab`'s points.
    Lab,
}

impl Kind {
    fn is_ours(self) -> fn(&[u8]) -> bool {
        match self {
            Kind::Picture => figures::plot::is_ours,
            Kind::Json => |head| {
                let head = head.trim_ascii_start();
                let inner = head.strip_prefix(b"{").map(<[u8]>::trim_ascii_start);
                let value = inner.and_then(|inner| inner.strip_prefix(b"\"program\":")).map(<[u8]>::trim_ascii_start);
                value.is_some_and(|value| value.starts_with(b"\"twostroke "))
            },
            Kind::Trace => replay::is_trace,
            Kind::Page => |head| {
                let end = head.windows(7).position(|bytes| bytes == b"<style>").unwrap_or(head.len());
                let mark = b"<meta name=\"generator\" content=\"twostroke ";
                head.starts_with(b"<!doctype html>") && head[..end].windows(mark.len()).any(|bytes| bytes == mark)
            },
            Kind::Table(Columns::Lab) => |head| head.starts_with(LAB_COLUMNS.as_bytes()),
        }
    }
}

/// An object as the text of a separate file.
pub(crate) fn json(object: &Value) -> Value {
    let mut named = Map::new();
    named.insert(PROGRAM.to_owned(), VERSION.into());
    named.extend(object.as_object().cloned().unwrap_or_default());
    Value::Object(named)
}

/// Looks at what is there, before anything is computed for it.
pub(crate) fn place(flag: &str, path: &Path, kind: Kind) -> Result<ResultFile, Failure> {
    ResultFile::new(path, kind.is_ours())
        .map_err(|error| Failure::usage(format!("{flag}: {}: {error}", path.display())))
}

/// Makes a directory for files, if there is none.
pub(crate) fn directory(flag: &str, path: &Path) -> Result<(), Failure> {
    let failed = |problem: &dyn std::fmt::Display| Failure::usage(format!("{flag}: {}: {problem}", path.display()));
    if path.exists() && !path.is_dir() {
        return Err(failed(&"it is not a directory; name another"));
    }
    std::fs::create_dir_all(path).map_err(|error| failed(&error))
}

/// A file's whole text.
pub(crate) fn put(place: &ResultFile, text: &str) -> Result<(), Failure> {
    place.put(text.as_bytes()).map_err(|error| failed(place, &error))
}

/// A file to be written bit by bit.
pub(crate) fn create(place: &ResultFile) -> Result<File, Failure> {
    place.create().map_err(|error| failed(place, &error))
}

fn failed(place: &ResultFile, error: &std::io::Error) -> Failure {
    Failure::failed(format!("{}: {error}", place.path().display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_we_write_is_known_again_and_nothing_else() {
        let own = |kind: Kind, text: &str| (kind.is_ours())(text.as_bytes());
        let object = json(&serde_json::json!({"model": "x", "version": "1"}));
        assert!(own(Kind::Json, &object.to_string()) && own(Kind::Json, &format!("{object:#}\n")));
        assert!(own(Kind::Table(Columns::Lab), &format!("{LAB_COLUMNS}prefill,1,2\n")));
        assert!(own(Kind::Page, &format!("<!doctype html>\n<html><head>{GENERATOR}\">\n<style></style>")));
        let chart = figures::plot::Chart { title: "t".into(), x: "x".into(), y: "y".into(), lines: Vec::new() };
        assert!(own(Kind::Picture, &chart.svg()));
        for kind in [Kind::Picture, Kind::Json, Kind::Trace, Kind::Page, Kind::Table(Columns::Lab)] {
            for foreign in [
                "x",
                "twostroke",
                "{}",
                "{\"program\": \"other\"}",
                "{\"model\": \"x\", \"program\": \"twostroke 1\"}",
                "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[]}",
                "{\"traceEvents\":[{\"program\":\"twostroke 1\"}]}",
                "<svg xmlns=\"http://www.w3.org/2000/svg\"><text>twostroke</text></svg>",
                "<!doctype html>\n<html><style></style><meta name=\"generator\" content=\"twostroke 1\">",
                "sweep,x\n",
                "\0\0\0\0",
            ] {
                assert!(!own(kind, foreign), "{kind:?}: {foreign}");
            }
        }
    }
}
