//! Lines of earlier chats, for the line editor: a file of the user's own, one entry to a line.
//!
//! ```text
//! What is 7 + 5?
//! """Which of\nthese?"""        an entry of several lines: \n for its newlines, \\ for its backslashes
//! ```
//! Each entry is appended when it is typed, so that chats side by side lose none of each other's. A start leaves the newest
//! in a file that has grown. Only ever a convenience: whatever is wrong with the file, the chat goes on.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::console::note;

/// Entries that are kept.
pub(super) const MAX_ENTRIES: usize = 1_000;
/// So much of the file's end is read, whatever its size.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// A longer entry is a pasted text.
const MAX_ENTRY_BYTES: usize = 64 << 10;

/// Where entries are kept; `None`: nowhere, from the first failure on.
pub(super) struct History {
    path: Option<PathBuf>,
}

impl History {
    /// The history at `path` and what it has, the newest last.
    pub(super) fn open(path: Option<PathBuf>) -> (History, Vec<String>) {
        let mut history = History { path };
        let read = history.path.as_deref().map(newest);
        let entries = history.or_note(read.unwrap_or(Ok(Vec::new()))).unwrap_or_default();
        (history, entries)
    }

    /// Keeps a line that was typed.
    pub(super) fn keep(&mut self, entry: &str) {
        let Some(path) = self.path.as_deref().filter(|_| is_kept(entry)) else { return };
        let kept = append(path, entry);
        self.or_note(kept);
    }

    /// The first failure is told, and is the last.
    fn or_note<T>(&mut self, done: io::Result<T>) -> Option<T> {
        let error = match done {
            Ok(done) => return Some(done),
            Err(error) => error,
        };
        if let Some(path) = self.path.take() {
            note(&format!("history: {}: {error}: the lines of this chat are not kept", path.display()));
        }
        None
    }
}

/// Not what a terminal would do something else with than show it.
fn is_kept(entry: &str) -> bool {
    let is_shown = |c: char| !c.is_control() || "\n\t".contains(c);
    !entry.is_empty() && entry.len() <= MAX_ENTRY_BYTES && entry.chars().all(is_shown)
}

fn append(path: &Path, entry: &str) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        files::private_directory(directory)?;
    }
    // One write: another chat's entry is before or behind it.
    files::append_private(path)?.write_all(line_of(entry).as_bytes())
}

/// The newest entries of a file, which is written anew where it has more than those, or others may read it.
fn newest(path: &Path) -> io::Result<Vec<String>> {
    let mut file = match files::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let length = file.metadata()?.len();
    let skipped = length.saturating_sub(MAX_FILE_BYTES);
    file.seek(SeekFrom::Start(skipped))?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
    let (entries, is_all) = entries(&bytes, skipped > 0);
    if !is_all || files::is_shared(path)? {
        let lines: String = entries.iter().map(|entry| line_of(entry)).collect();
        files::replace_private(path, lines.as_bytes())?;
    }
    Ok(entries)
}

/// The newest entries in these bytes, and whether there is nothing else in them. `is_cut`: they begin within a line.
fn entries(bytes: &[u8], is_cut: bool) -> (Vec<String>, bool) {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.split_terminator('\n').skip(usize::from(is_cut)).collect();
    let entry = |line: &&str| Some(entry_of(line)).filter(|entry| is_kept(entry));
    let mut entries: Vec<String> = lines.iter().filter_map(entry).collect();
    let is_all = !is_cut && entries.len() == lines.len() && lines.len() <= MAX_ENTRIES;
    entries.drain(..entries.len().saturating_sub(MAX_ENTRIES));
    (entries, is_all)
}

fn line_of(entry: &str) -> String {
    format!("{}\n", entry.replace('\\', "\\\\").replace('\n', "\\n"))
}

fn entry_of(line: &str) -> String {
    let mut entry = String::with_capacity(line.len());
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => entry.extend(chars.next().map(|c| if c == 'n' { '\n' } else { c })),
            c => entry.push(c),
        }
    }
    entry
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use testing::Scratch;

    use super::*;

    #[test]
    fn an_entry_is_a_line_whatever_is_in_it() {
        for entry in ["What is 7 + 5?", "\"\"\"two\nlines\"\"\"", "a\\nb", "\\", "\\\\n\n\n", "日本 👩‍👩‍👧", "\ttab"]
        {
            let line = line_of(entry);
            assert_eq!(line.matches('\n').count(), 1, "{entry:?}");
            assert_eq!(entries(line.as_bytes(), false), (vec![entry.to_owned()], true), "{entry:?}");
        }
    }

    #[test]
    fn whatever_is_in_the_file_some_of_it_may_be_entries() {
        let many: String = (0..1_500).map(|n| format!("{n}\n")).collect();
        let long = "x".repeat(MAX_ENTRY_BYTES + 1);
        // The bytes, whether they begin within a line, and the first, last and number of entries.
        let table: [(&[u8], bool, &[&str], bool); 8] = [
            (b"", false, &[], true),
            (b"a\nb\n", false, &["a", "b"], true),
            (b"a\nb", false, &["a", "b"], true),
            (b"ner\nb\n", true, &["b"], false),
            (b"a\0b\nc\n\0\0\0", false, &["c"], false),
            (b"\x1b[2Jboo\nc\n\n", false, &["c"], false),
            (b"\xff\xfe\nc\n", false, &["\u{fffd}\u{fffd}", "c"], true),
            (long.as_bytes(), false, &[], false),
        ];
        for (bytes, is_cut, wanted, is_all) in table {
            let wanted: Vec<String> = wanted.iter().map(|entry| entry.to_string()).collect();
            assert_eq!(entries(bytes, is_cut), (wanted, is_all), "{:?}", String::from_utf8_lossy(bytes));
        }
        let (newest, is_all) = entries(many.as_bytes(), false);
        assert_eq!((newest.len(), newest[0].as_str(), is_all), (MAX_ENTRIES, "500", false));
    }

    #[test]
    fn a_file_of_any_size_is_bounded_and_private() {
        let scratch = Scratch::new("history");
        let path = scratch.join("state/twostroke/history");
        let (mut history, entries) = History::open(Some(path.clone()));
        assert!(entries.is_empty() && !path.exists());
        history.keep("first");
        history.keep("a\0b");
        history.keep("two\nlines");
        let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        assert_eq!(History::open(Some(path.clone())).1, ["first", "two\nlines"]);
        // A gigabyte of nothing, and an entry behind it.
        let file = fs::OpenOptions::new().write(true).open(&path).expect("it is there");
        file.set_len(1 << 30).expect("a hole takes no space");
        fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).expect("it is ours");
        append(&path, "\nlast").expect("it can be written");
        assert_eq!(History::open(Some(path.clone())).1, ["\nlast"; 0], "one line with the hole");
        append(&path, "next").expect("it can be written");
        assert_eq!(History::open(Some(path.clone())).1, ["next"]);
        assert!(mode(&path) == 0o600 && fs::metadata(&path).expect("it is there").len() < 100);
    }

    #[test]
    fn a_place_that_cannot_be_written_ends_the_history_and_nothing_else() {
        let scratch = Scratch::new("no-history");
        fs::write(scratch.join("file"), "").expect("it can be written");
        for path in [scratch.join("file/history"), scratch.to_path_buf()] {
            let (mut history, entries) = History::open(Some(path));
            history.keep("one");
            history.keep("two");
            assert!(entries.is_empty() && history.path.is_none());
        }
    }
}
