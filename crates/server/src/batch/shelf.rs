//! Files and batches of a server, on disk: `--batch-dir`.
//!
//! ```text
//! DIR/lock                  one server at a time
//! DIR/files/ID, ID.json     what was sent, or answered; whose it is, its name
//! DIR/batches/ID.json       a batch as it stands      DIR/batches/ID.answers   all its answers so far
//! ```
//! Notes are replaced whole; what a kill leaves of a file has no note, and is taken away at the next start. A batch that
//! was under way then goes on. What belongs to a key is as unknown to others as what never was.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Notify;

use super::Counts;
use crate::auth::Tenant;
use crate::error::ApiError;

/// Bytes of one file that is sent, as with OpenAI.
pub(super) const MOST_FILE_BYTES: u64 = 200 << 20;
/// Bytes of all files of one key, sent and answered.
const MOST_BYTES: u64 = 4 << 30;
/// Files of one key.
const MOST_FILES: usize = 10_000;
/// Batches of one key that are not over.
const MOST_OPEN: usize = 100;
/// Longest note that is read.
const NOTE_BYTES: u64 = 1 << 20;

/// What is known of a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct FileNote {
    pub(super) id: String,
    /// Digest of the key that it belongs to, in hexadecimal digits; nobody's without keys.
    owner: Option<String>,
    pub(super) filename: String,
    /// `batch`, or `batch_output`.
    pub(super) purpose: String,
    pub(super) bytes: u64,
    pub(super) created_at: u64,
}

/// Where a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Status {
    Validating,
    InProgress,
    Finalizing,
    Completed,
    Failed,
    Cancelling,
    Cancelled,
}

impl Status {
    pub(super) fn is_open(self) -> bool {
        matches!(self, Status::Validating | Status::InProgress | Status::Finalizing | Status::Cancelling)
    }
}

/// What is known of a batch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct BatchNote {
    pub(super) id: String,
    owner: Option<String>,
    pub(super) endpoint: String,
    pub(super) input_file_id: String,
    pub(super) status: Status,
    /// What is wrong with the input, and its line.
    pub(super) problem: Option<(String, Option<usize>)>,
    pub(super) output_file_id: Option<String>,
    pub(super) error_file_id: Option<String>,
    /// When each status was reached, in seconds since 1970.
    pub(super) times: Vec<(Status, u64)>,
    pub(super) total: usize,
    pub(super) completed: usize,
    pub(super) failed: usize,
    pub(super) metadata: Value,
}

impl BatchNote {
    /// One that has just been asked for.
    pub(super) fn new(id: String, endpoint: String, input_file_id: String, metadata: Value, now: u64) -> BatchNote {
        BatchNote {
            id,
            owner: None,
            endpoint,
            input_file_id,
            status: Status::Validating,
            problem: None,
            output_file_id: None,
            error_file_id: None,
            times: vec![(Status::Validating, now)],
            total: 0,
            completed: 0,
            failed: 0,
            metadata,
        }
    }

    fn created_at(&self) -> Option<u64> {
        self.since(Status::Validating)
    }

    pub(super) fn since(&self, status: Status) -> Option<u64> {
        self.times.iter().find(|(reached, _)| *reached == status).map(|(_, at)| *at)
    }
}

/// See the module's words.
pub(crate) struct Shelf {
    place: PathBuf,
    state: Mutex<State>,
    /// Some batch was made, or is to end.
    pub(super) changed: Notify,
    /// Held as long as this lives.
    _lock: File,
}

#[derive(Default)]
struct State {
    files: BTreeMap<String, FileNote>,
    batches: BTreeMap<String, BatchNote>,
}

impl Shelf {
    /// Opens or makes the directory.
    pub(crate) fn open(place: &Path) -> io::Result<Arc<Shelf>> {
        for part in ["files", "batches"] {
            files::own_directory(&place.join(part))?;
        }
        let lock = files::append_private(&place.join("lock"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(io::Error::other("another server has its files here")),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let state = State { files: notes(&place.join("files"))?, batches: notes(&place.join("batches"))? };
        for entry in fs::read_dir(place.join("files"))? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if !state.files.contains_key(name.trim_end_matches(".json")) {
                fs::remove_file(path)?;
            }
        }
        let state = Mutex::new(state);
        Ok(Arc::new(Shelf { place: place.to_owned(), state, changed: Notify::new(), _lock: lock }))
    }

    /// Where a file's contents are.
    pub(super) fn path(&self, id: &str) -> PathBuf {
        self.place.join("files").join(id)
    }

    /// Where all answers of a batch are, before they are told apart.
    pub(super) fn answers(&self, id: &str) -> PathBuf {
        self.place.join("batches").join(format!("{id}.answers"))
    }

    /// A place for a file that is being sent, if its owner may have one more.
    pub(super) fn begin_file(&self, tenant: Option<Tenant>, id: &str) -> Result<File, ApiError> {
        let owner = owner(tenant);
        let state = self.lock();
        let own = state.files.values().filter(|file| file.owner == owner);
        let (count, bytes) = own.fold((0, 0), |(count, bytes), file| (count + 1, bytes + file.bytes));
        if count >= MOST_FILES || bytes >= MOST_BYTES {
            let message = format!(
                "The files of this key are {count} of {} MiB; {MOST_FILES} and {} MiB are the most: delete some.",
                bytes >> 20,
                MOST_BYTES >> 20
            );
            return Err(ApiError::bad_request(message).with_param("file").with_code("storage_full"));
        }
        drop(state);
        files::create_private(&self.path(id)).map_err(|error| unwritable(&error))
    }

    /// Notes a file whose contents are there.
    pub(super) fn keep_file(
        &self,
        tenant: Option<Tenant>,
        id: String,
        filename: String,
        purpose: &str,
        now: u64,
    ) -> Result<FileNote, ApiError> {
        self.note_file(owner(tenant), id, filename, purpose, now).map_err(|error| unwritable(&error))
    }

    fn note_file(
        &self,
        owner: Option<String>,
        id: String,
        filename: String,
        purpose: &str,
        now: u64,
    ) -> io::Result<FileNote> {
        let bytes = fs::metadata(self.path(&id))?.len();
        let note = FileNote { id: id.clone(), owner, filename, purpose: purpose.to_owned(), bytes, created_at: now };
        self.write("files", &id, &note)?;
        self.lock().files.insert(id, note.clone());
        Ok(note)
    }

    /// Gives up what was begun.
    pub(super) fn drop_file(&self, id: &str) {
        let _ = fs::remove_file(self.path(id)); // the next start takes it away
    }

    pub(super) fn file(&self, tenant: Option<Tenant>, id: &str) -> Result<FileNote, ApiError> {
        let owner = owner(tenant);
        let state = self.lock();
        state.files.get(id).filter(|file| file.owner == owner).cloned().ok_or_else(|| ApiError::unknown_object("file"))
    }

    /// The newest first.
    pub(super) fn files(&self, tenant: Option<Tenant>) -> Vec<FileNote> {
        let owner = owner(tenant);
        let mut own: Vec<_> = self.lock().files.values().filter(|file| file.owner == owner).cloned().collect();
        own.sort_by(|a, b| (b.created_at, &b.id).cmp(&(a.created_at, &a.id)));
        own
    }

    pub(super) fn delete_file(&self, tenant: Option<Tenant>, id: &str) -> Result<(), ApiError> {
        self.file(tenant, id)?;
        let mut state = self.lock();
        if state.batches.values().any(|batch| batch.status.is_open() && batch.input_file_id == id) {
            let message = "A batch that is not over reads this file: cancel it first.";
            return Err(ApiError::bad_request(message).with_param("file_id"));
        }
        state.files.remove(id);
        // The note first: a file without one is nobody's.
        let _ = fs::remove_file(self.path(&format!("{id}.json")));
        self.drop_file(id);
        Ok(())
    }

    pub(super) fn begin_batch(&self, tenant: Option<Tenant>, mut note: BatchNote) -> Result<BatchNote, ApiError> {
        note.owner = owner(tenant);
        let own = |batch: &&BatchNote| batch.owner == note.owner && batch.status.is_open();
        if self.lock().batches.values().filter(own).count() >= MOST_OPEN {
            let message = format!("{MOST_OPEN} batches of this key are not over: wait for one, or cancel one.");
            return Err(ApiError::bad_request(message).with_code("too_many_batches"));
        }
        self.write("batches", &note.id, &note).map_err(|error| unwritable(&error))?;
        self.lock().batches.insert(note.id.clone(), note.clone());
        self.changed.notify_one();
        Ok(note)
    }

    pub(super) fn batch(&self, tenant: Option<Tenant>, id: &str) -> Result<BatchNote, ApiError> {
        let owner = owner(tenant);
        let state = self.lock();
        let own = state.batches.get(id).filter(|batch| batch.owner == owner).cloned();
        own.ok_or_else(|| ApiError::unknown_object("batch"))
    }

    /// The newest first.
    pub(super) fn batches(&self, tenant: Option<Tenant>) -> Vec<BatchNote> {
        let owner = owner(tenant);
        let mut own: Vec<_> = self.lock().batches.values().filter(|batch| batch.owner == owner).cloned().collect();
        own.sort_by(|a, b| (b.created_at(), &b.id).cmp(&(a.created_at(), &a.id)));
        own
    }

    /// Asks for the end of one that is under way; one that is over stays what it is.
    pub(super) fn cancel(&self, tenant: Option<Tenant>, id: &str, now: u64) -> Result<BatchNote, ApiError> {
        let batch = self.batch(tenant, id)?;
        if !batch.status.is_open() {
            let message = "This batch is over: there is nothing to cancel.";
            return Err(ApiError::bad_request(message).with_param("batch_id"));
        }
        self.advance(id, Status::Cancelling, now).map_err(|error| unwritable(&error))?;
        self.changed.notify_one();
        self.batch(tenant, id)
    }

    /// The oldest that is not over, with the tenant whose it is.
    pub(super) fn next(&self) -> Option<(BatchNote, Option<Tenant>)> {
        let state = self.lock();
        let open = state.batches.values().filter(|batch| batch.status.is_open());
        let oldest = open.min_by_key(|batch| (batch.created_at(), &batch.id))?;
        Some((oldest.clone(), oldest.owner.as_deref().and_then(tenant)))
    }

    /// Whether somebody wants its end.
    pub(super) fn is_cancelled(&self, id: &str) -> bool {
        self.lock().batches.get(id).is_none_or(|batch| batch.status == Status::Cancelling)
    }

    /// How far it is; a restart counts again.
    pub(super) fn count(&self, id: &str, counts: Counts) {
        if let Some(batch) = self.lock().batches.get_mut(id) {
            (batch.total, batch.completed, batch.failed) = (counts.total, counts.done - counts.failed, counts.failed);
        }
    }

    /// A status that was reached. What is to be cancelled does not go back.
    pub(super) fn advance(&self, id: &str, status: Status, now: u64) -> io::Result<()> {
        self.change(id, |batch| {
            if batch.status == Status::Cancelling && status.is_open() {
                return;
            }
            batch.status = status;
            if batch.since(status).is_none() {
                batch.times.push((status, now));
            }
        })
    }

    /// The input is none.
    pub(super) fn fail(&self, id: &str, problem: String, line: Option<usize>, now: u64) -> io::Result<()> {
        self.change(id, |batch| batch.problem = Some((problem, line)))?;
        self.advance(id, Status::Failed, now)
    }

    /// A file of answers that is whole.
    pub(super) fn keep_answers(&self, id: &str, file_id: String, is_errors: bool, now: u64) -> io::Result<()> {
        let owner = self.lock().batches.get(id).and_then(|batch| batch.owner.clone());
        let name = format!("{id}_{}.jsonl", if is_errors { "error" } else { "output" });
        self.note_file(owner, file_id.clone(), name, "batch_output", now)?;
        self.change(id, |batch| {
            *(if is_errors { &mut batch.error_file_id } else { &mut batch.output_file_id }) = Some(file_id);
        })
    }

    fn change(&self, id: &str, change: impl FnOnce(&mut BatchNote)) -> io::Result<()> {
        let mut state = self.lock();
        let Some(batch) = state.batches.get_mut(id) else { return Ok(()) };
        change(batch);
        let note = batch.clone();
        // Under the lock: notes are written in the order of what they say.
        self.write("batches", id, &note)
    }

    fn write(&self, part: &str, id: &str, note: &impl Serialize) -> io::Result<()> {
        let json = serde_json::to_vec(note).map_err(io::Error::other)?;
        files::replace_private(&self.place.join(part).join(format!("{id}.json")), &json)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All notes of a directory by their names. One that cannot be read is nobody's.
fn notes<T: for<'de> Deserialize<'de>>(directory: &Path) -> io::Result<BTreeMap<String, T>> {
    let mut notes = BTreeMap::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let Some(id) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".json")) else { continue };
        if let Some(note) = files::read(&path, NOTE_BYTES).ok().and_then(|json| serde_json::from_slice(&json).ok()) {
            notes.insert(id.to_owned(), note);
        }
    }
    Ok(notes)
}

fn owner(tenant: Option<Tenant>) -> Option<String> {
    tenant.map(|digest| digest.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn tenant(owner: &str) -> Option<Tenant> {
    let mut digest = [0; 32];
    for (at, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(owner.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(digest)
}

/// The disk's fault: the log has it, the client does not.
pub(super) fn unwritable(error: &io::Error) -> ApiError {
    tracing::error!(%error, "files of batches cannot be written");
    ApiError::internal()
}
