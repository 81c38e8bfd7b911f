//! Responses on disk: `--store DIR`.
//!
//! ```text
//! DIR/lock        one server at a time
//! DIR/ID.json     {"owner": "9f86d0...", "created_at": 1795316720, "items": ["msg-1"]}
//!                 {"response": {...}, "input": ..., "conversation": [...], "deltas": [[5, 0]]}
//! ```
//! A file is written whole or not at all, under another name first. Its first line says whose it is and what may be named
//! of it, which is all that a start reads.

use std::fs::{self, File, TryLockError};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use engine::ChatMessage;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use telemetry::time_format::unix_seconds;
use transport::auth::{Tenant, hex, of_hex};

use super::growing::Delta;

/// Longest first line: one with the names of some thousand items.
const MOST_HEAD: u64 = 1 << 18;
/// Longest file that is read.
const MOST_FILE: u64 = 256 << 20;

/// Whose, since when in seconds since 1970, and the names of the items of its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) tenant: Option<Tenant>,
    pub(super) created_at: u64,
    pub(super) items: Vec<String>,
}

/// What is kept of a response.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Content {
    pub(super) response: Value,
    pub(super) input: Value,
    /// All of the conversation until its end.
    pub(super) conversation: Vec<ChatMessage>,
    /// How the items of the response grew.
    pub(super) deltas: Vec<Delta>,
}

#[derive(Serialize, Deserialize)]
struct HeadLine {
    owner: Option<String>,
    created_at: u64,
    items: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct ContentLine {
    response: Value,
    input: Value,
    conversation: Vec<MessageLine>,
    /// Files of earlier versions have none.
    #[serde(default)]
    deltas: Vec<Delta>,
}

#[derive(Serialize, Deserialize)]
struct MessageLine {
    role: String,
    content: Option<String>,
    extra: Map<String, Value>,
}

pub(super) struct Disk {
    place: PathBuf,
    /// Held as long as this lives.
    _lock: File,
}

/// A response that is there: its name, its head, its bytes.
pub(super) type Found = (String, Head, usize);

impl Disk {
    /// Opens or makes the directory. What is no response is left alone.
    pub(super) fn open(place: &Path) -> io::Result<(Disk, Vec<Found>)> {
        files::private_directory(place)?;
        let lock = files::append_private(&place.join("lock"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::other(
                    "another server keeps its responses here, or --batch-dir is the same directory",
                ));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let mut found = Vec::new();
        for entry in fs::read_dir(place)? {
            let entry = entry?;
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                continue;
            }
            if is_half_written(&path) {
                // The lock is ours: nothing writes it any more.
                fs::remove_file(&path)?;
                continue;
            }
            let Some(id) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".json")) else { continue };
            if let Ok((head, bytes)) = head(&path) {
                found.push((id.to_owned(), head, bytes));
            }
        }
        found.sort_by_key(|(_, head, _)| head.created_at);
        Ok((Disk { place: place.to_owned(), _lock: lock }, found))
    }

    pub(super) fn write(&self, id: &str, head: &Head, content: &Content) -> io::Result<()> {
        let message = |message: &ChatMessage| MessageLine {
            role: message.role.clone(),
            content: message.content.clone(),
            extra: message.extra.clone(),
        };
        let Head { tenant, created_at, items } = head.clone();
        let head = HeadLine { owner: tenant.as_ref().map(hex), created_at, items };
        let content = ContentLine {
            response: content.response.clone(),
            input: content.input.clone(),
            conversation: content.conversation.iter().map(message).collect(),
            deltas: content.deltas.clone(),
        };
        let text = format!("{}\n{}\n", serde_json::to_string(&head)?, serde_json::to_string(&content)?);
        files::replace_private(&self.path(id), text.as_bytes())
    }

    pub(super) fn read(&self, id: &str) -> io::Result<Content> {
        let text = files::read_text(&self.path(id), MOST_FILE)?;
        let (_, content) = text.split_once('\n').ok_or(io::ErrorKind::InvalidData)?;
        let ContentLine { response, input, conversation, deltas } = serde_json::from_str(content)?;
        if response["id"].as_str().is_some_and(|own| own != id) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the file of another response, under this one's name",
            ));
        }
        let message = |MessageLine { role, content, extra }| ChatMessage { role, content, extra };
        let conversation = conversation.into_iter().map(message).collect();
        Ok(Content { response, input, conversation, deltas })
    }

    /// Takes it away; one that is not there is no error.
    pub(super) fn remove(&self, id: &str) -> io::Result<()> {
        match fs::remove_file(self.path(id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Takes one away for which nothing asks any more.
    pub(super) fn clear(&self, id: &str) {
        if let Err(error) = self.remove(id) {
            tracing::warn!(%error, "a response that is forgotten stays on disk");
        }
    }

    fn path(&self, id: &str) -> PathBuf {
        self.place.join(format!("{id}.json"))
    }
}

/// `ID.json.PID.tmp`, which a server leaves that is killed while it writes.
fn is_half_written(path: &Path) -> bool {
    let is_ours = || path.with_extension("").with_extension("").extension().is_some_and(|kind| kind == "json");
    files::writer_of(path).is_some() && is_ours()
}

fn head(path: &Path) -> io::Result<(Head, usize)> {
    let file = files::open(path)?;
    let bytes = file.metadata()?.len() as usize;
    let mut line = String::new();
    BufReader::new(file.take(MOST_HEAD)).read_line(&mut line)?;
    let HeadLine { owner, created_at, items } = serde_json::from_str(&line)?;
    let tenant = match owner {
        Some(owner) => Some(of_hex(&owner).ok_or(io::ErrorKind::InvalidData)?),
        None => None,
    };
    // A time that is yet to come would keep all behind it forever.
    Ok((Head { tenant, created_at: created_at.min(unix_seconds()), items }, bytes))
}
