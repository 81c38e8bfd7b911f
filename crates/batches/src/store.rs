//! Files and batches of a server, on disk: `--batch-dir`.
//!
//! ```text
//! DIR/lock                  one server at a time
//! DIR/files/ID, ID.json     what was sent, or answered; whose it is, its name
//! DIR/batches/ID.json       a batch as it stands      DIR/batches/ID.answers   all its answers so far
//! ```
//! Notes are replaced whole, and are there before a client hears of what they say; what a kill leaves of a file has no
//! note, and is taken away at the next start. A note that cannot be read is told of and kept, with what it is about. A batch
//! that was under way goes on, but one that was so at several ends in a row, none of which was asked for, is set aside:
//! it may be why. What belongs to a key is as unknown to others as what never was.
#![allow(missing_docs, reason = "the fields are those of OpenAI's files and batches")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Notify;
use transport::auth::{Tenant, hex, of_hex};
use transport::error::{ApiError, ApiResult};
use transport::fields::wrong_type;

/// Bytes of one file that is sent, as with OpenAI.
pub const MOST_FILE_BYTES: u64 = 200 << 20;
/// Bytes of all files of one key, sent and answered.
const MOST_BYTES: u64 = 4 << 30;
/// Files of one key.
const MOST_FILES: usize = 10_000;
/// Batches of one key that are not over.
const MOST_OPEN: usize = 100;
/// Batches of one key that are over; of more the oldest is forgotten. Their files stay until they are deleted.
const MOST_OVER: usize = 1000;
/// Files that a key may be sending at a time.
const MOST_SENDING: usize = 16;
/// Bytes of a batch's labels, as they are written: what OpenAI allows, sixteen times 64 and 512 characters, and room.
pub(crate) const MOST_LABEL_BYTES: usize = 64 << 10;
/// Longest note that is read. What is accepted makes shorter ones: labels, a name of 255 characters, a problem.
const NOTE_BYTES: u64 = 1 << 20;
/// Characters of a problem that are kept.
const MOST_PROBLEM: usize = 2000;
/// Unrequested ends in a row, after which a batch is not restarted.
const MOST_ENDS: u32 = 3;

/// What is known of a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FileNote {
    pub id: String,
    /// Digest of the key that it belongs to, in hexadecimal digits; empty without keys.
    owner: Option<String>,
    pub filename: String,
    /// `batch`, or `batch_output`.
    pub purpose: String,
    pub bytes: u64,
    pub created_at: u64,
}

/// Where a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Validating,
    InProgress,
    Finalizing,
    Completed,
    Failed,
    Cancelling,
    Cancelled,
}

impl Status {
    pub fn is_open(self) -> bool {
        matches!(self, Status::Validating | Status::InProgress | Status::Finalizing | Status::Cancelling)
    }
}

/// What is known of a batch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BatchNote {
    pub id: String,
    owner: Option<String>,
    pub endpoint: String,
    pub input_file_id: String,
    pub status: Status,
    /// What is wrong with the input, and its line.
    pub problem: Option<(String, Option<usize>)>,
    pub output_file_id: Option<String>,
    pub error_file_id: Option<String>,
    /// When each status was reached, in seconds since 1970.
    pub times: Vec<(Status, u64)>,
    pub total: usize,
    pub completed: usize,
    pub failed: usize,
    pub metadata: Value,
    /// Starts since one that ended as it was asked to, or brought an answer.
    #[serde(default)]
    starts: u32,
    /// Answers that there were at the last start.
    #[serde(default)]
    answered: usize,
    /// Its note is not written yet: no client has been told of it.
    #[serde(skip)]
    is_new: bool,
    /// Bytes of its answers so far, which are in no file of their own.
    #[serde(skip)]
    bytes: u64,
}

impl BatchNote {
    /// One that has just been asked for.
    pub fn new(id: String, endpoint: String, input_file_id: String, metadata: Value, now: u64) -> BatchNote {
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
            starts: 0,
            answered: 0,
            is_new: true,
            bytes: 0,
        }
    }

    /// Of which name the file of its answers, or of its refusals, is: the same however often it is written.
    pub fn file_of(&self, is_errors: bool) -> String {
        let name = self.id.strip_prefix("batch_").unwrap_or(&self.id);
        format!("file-{name}-{}", if is_errors { "error" } else { "output" })
    }

    fn reach(&mut self, status: Status, now: u64) {
        if self.status == Status::Cancelling && status.is_open() {
            return;
        }
        self.status = status;
        if self.since(status).is_none() {
            self.times.push((status, now));
        }
    }

    fn created_at(&self) -> Option<u64> {
        self.since(Status::Validating)
    }

    pub fn since(&self, status: Status) -> Option<u64> {
        self.times.iter().find(|(reached, _)| *reached == status).map(|(_, at)| *at)
    }
}

/// How far a batch is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Its lines.
    pub total: usize,
    /// Those that are answered, refusals among them.
    pub done: usize,
    /// Those that were refused.
    pub failed: usize,
    /// Tokens of prompts and of answers in this run.
    pub prompt_tokens: u64,
    /// See `prompt_tokens`.
    pub completion_tokens: u64,
    /// Bytes of all answers.
    pub bytes: u64,
}

/// See the module's words.
pub struct BatchStore {
    place: PathBuf,
    state: Mutex<State>,
    /// Held while notes are written: they are on disk in the order of what they say. Never taken under `state`, which
    /// threads that serve wait for.
    writing: Mutex<()>,
    /// Some batch was made, or is to end.
    pub changed: Notify,
    /// Held as long as this lives.
    _lock: File,
}

#[derive(Default)]
struct State {
    files: BTreeMap<String, FileNote>,
    batches: BTreeMap<String, BatchNote>,
    /// Files that are being sent: whose, and the bytes that are there.
    sending: BTreeMap<String, (Option<String>, u64)>,
    /// What the files of each key are together, those that are being sent among them.
    accounts: BTreeMap<Option<String>, Account>,
}

#[derive(Clone, Copy, Default)]
struct Account {
    files: usize,
    bytes: u64,
    sending: usize,
}

impl State {
    fn account(&mut self, owner: &Option<String>) -> &mut Account {
        self.accounts.entry(owner.clone()).or_default()
    }

    fn put_file(&mut self, note: FileNote) {
        self.take_file(&note.id.clone());
        let account = self.account(&note.owner);
        (account.files, account.bytes) = (account.files + 1, account.bytes + note.bytes);
        self.files.insert(note.id.clone(), note);
    }

    fn take_file(&mut self, id: &str) -> Option<FileNote> {
        let note = self.files.remove(id)?;
        let account = self.account(&note.owner);
        (account.files, account.bytes) = (account.files - 1, account.bytes.saturating_sub(note.bytes));
        Some(note)
    }

    /// Of a key's batches that are over the oldest, where there are more than `most`.
    fn oldest_beyond(&self, most: usize, owner: &Option<String>) -> Option<String> {
        let over = || self.batches.values().filter(|batch| batch.owner == *owner && !batch.status.is_open());
        let oldest = || over().min_by(|a, b| (a.created_at(), &a.id).cmp(&(b.created_at(), &b.id)));
        (over().count() > most).then(oldest)?.map(|batch| batch.id.clone())
    }
}

impl BatchStore {
    /// Opens or makes the directory.
    pub fn open(place: &Path) -> io::Result<Arc<BatchStore>> {
        files::private_directory(place)?;
        for part in ["files", "batches"] {
            files::force_private_directory(&place.join(part))?;
        }
        let lock = files::append_private(&place.join("lock"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::other("another server has its files here, or --store is the same directory"));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let mut state = State::default();
        for note in notes(&place.join("files"), |note: &FileNote| &note.id)? {
            state.put_file(note);
        }
        for note in notes(&place.join("batches"), |note: &BatchNote| &note.id)? {
            state.batches.insert(note.id.clone(), note);
        }
        clean(&place.join("files"))?;
        for batch in state.batches.values_mut().filter(|batch| batch.status.is_open() && batch.starts >= MOST_ENDS) {
            tracing::warn!(batch = batch.id, "set aside: the server ended {MOST_ENDS} times while it was under way");
            let problem = format!("The server ended {MOST_ENDS} times in a row while this batch was under way.");
            batch.problem.get_or_insert((problem, None));
            batch.status = Status::Finalizing;
        }
        let state = Mutex::new(state);
        let (writing, changed) = (Mutex::new(()), Notify::new());
        Ok(Arc::new(BatchStore { place: place.to_owned(), state, writing, changed, _lock: lock }))
    }

    /// Where a file's contents are.
    pub fn path(&self, id: &str) -> PathBuf {
        self.place.join("files").join(id)
    }

    /// Where all answers of a batch are, before they are told apart.
    pub fn answers(&self, id: &str) -> PathBuf {
        self.place.join("batches").join(format!("{id}.answers"))
    }

    /// A place for a file that is being sent, if its owner may have one more.
    pub fn begin_file(self: &Arc<BatchStore>, tenant: Option<Tenant>, id: &str) -> ApiResult<(Sending, File)> {
        let owner = owner(tenant);
        let mut state = self.lock();
        let account = state.account(&owner);
        if account.sending >= MOST_SENDING {
            return Err(ApiError::too_many_sent(MOST_SENDING));
        }
        if account.files + account.sending >= MOST_FILES || account.bytes >= MOST_BYTES {
            return Err(storage_full(*account));
        }
        account.sending += 1;
        state.sending.insert(id.to_owned(), (owner, 0));
        drop(state);
        let sending = Sending { store: self.clone(), id: id.to_owned() };
        let file = files::create_private(&self.path(id)).map_err(|error| unwritable(&error))?;
        Ok((sending, file))
    }

    /// Notes a file whose contents are there, and on the disk.
    fn note_file(
        &self,
        owner: Option<String>,
        id: &str,
        filename: String,
        purpose: &str,
        now: u64,
    ) -> io::Result<FileNote> {
        let bytes = fs::metadata(self.path(id))?.len();
        let note = FileNote { id: id.to_owned(), owner, filename, purpose: purpose.to_owned(), bytes, created_at: now };
        let _writing = self.order();
        self.write("files", id, &note)?;
        self.lock().put_file(note.clone());
        Ok(note)
    }

    pub fn file(&self, tenant: Option<Tenant>, id: &str) -> ApiResult<FileNote> {
        let owner = owner(tenant);
        let state = self.lock();
        state.files.get(id).filter(|file| file.owner == owner).cloned().ok_or_else(|| ApiError::unknown_object("file"))
    }

    /// The newest first.
    pub fn files(&self, tenant: Option<Tenant>) -> Vec<FileNote> {
        let owner = owner(tenant);
        let mut own: Vec<_> = self.lock().files.values().filter(|file| file.owner == owner).cloned().collect();
        own.sort_by(|a, b| (b.created_at, &b.id).cmp(&(a.created_at, &a.id)));
        own
    }

    pub fn delete_file(&self, tenant: Option<Tenant>, id: &str) -> ApiResult<()> {
        self.file(tenant, id)?;
        let _writing = self.order();
        let mut state = self.lock();
        if state.batches.values().any(|batch| batch.status.is_open() && batch.input_file_id == id) {
            let message = "A batch that is not over reads this file: cancel it first.";
            return Err(ApiError::bad_request(message).with_param("file_id"));
        }
        // From here on no batch is made of it.
        let Some(note) = state.take_file(id) else { return Err(ApiError::unknown_object("file")) };
        drop(state);
        // The note first: contents without one are taken away at a start.
        if let Err(error) = gone(&self.note("files", id)) {
            self.lock().put_file(note);
            return Err(unwritable(&error));
        }
        let _ = fs::remove_file(self.path(id)); // the next start takes it away
        Ok(())
    }

    /// Makes a batch of a file that is there, if its owner may have one more.
    pub fn begin_batch(&self, tenant: Option<Tenant>, mut note: BatchNote) -> ApiResult<BatchNote> {
        note.owner = owner(tenant);
        let labels = note.metadata.to_string().len();
        if labels > MOST_LABEL_BYTES {
            let message = format!("'metadata' takes {labels} bytes as JSON; {MOST_LABEL_BYTES} are the most.");
            return Err(ApiError::bad_request(message).with_param("metadata"));
        }
        let _writing = self.order();
        let mut state = self.lock();
        let file = state.files.get(&note.input_file_id).filter(|file| file.owner == note.owner);
        let file = file.ok_or_else(|| ApiError::unknown_object("file").with_param("input_file_id"))?;
        if file.purpose != "batch" {
            return Err(wrong_type("input_file_id", "a file of requests, whose purpose is 'batch'"));
        }
        let own = |batch: &&BatchNote| batch.owner == note.owner && batch.status.is_open();
        if state.batches.values().filter(own).count() >= MOST_OPEN {
            let message = format!("{MOST_OPEN} batches of this key are not over: wait for one, or cancel one.");
            return Err(ApiError::bad_request(message).with_code("too_many_batches"));
        }
        // It holds its file from now on, and is not begun before its note is there.
        state.batches.insert(note.id.clone(), note.clone());
        drop(state);
        let written = self.write("batches", &note.id, &note);
        let mut state = self.lock();
        if let Err(error) = written {
            state.batches.remove(&note.id);
            return Err(unwritable(&error));
        }
        note.is_new = false;
        state.batches.insert(note.id.clone(), note.clone());
        let forgotten = state.oldest_beyond(MOST_OVER, &note.owner).and_then(|id| state.batches.remove(&id));
        drop(state);
        for path in forgotten.iter().flat_map(|old| [self.note("batches", &old.id), self.answers(&old.id)]) {
            if let Err(error) = gone(&path) {
                tracing::warn!(%error, "a batch that is forgotten stays on disk");
            }
        }
        self.changed.notify_waiters();
        Ok(note)
    }

    pub fn batch(&self, tenant: Option<Tenant>, id: &str) -> ApiResult<BatchNote> {
        let owner = owner(tenant);
        let state = self.lock();
        let own = state.batches.get(id).filter(|batch| batch.owner == owner && !batch.is_new).cloned();
        own.ok_or_else(|| ApiError::unknown_object("batch"))
    }

    /// The newest first.
    pub fn batches(&self, tenant: Option<Tenant>) -> Vec<BatchNote> {
        let owner = owner(tenant);
        let mut own: Vec<_> =
            self.lock().batches.values().filter(|batch| batch.owner == owner && !batch.is_new).cloned().collect();
        own.sort_by(|a, b| (b.created_at(), &b.id).cmp(&(a.created_at(), &a.id)));
        own
    }

    /// Asks for the end of one that is under way; one that is over stays what it is.
    pub fn cancel(&self, tenant: Option<Tenant>, id: &str, now: u64) -> ApiResult<BatchNote> {
        let batch = self.batch(tenant, id)?;
        if !batch.status.is_open() {
            let message = "This batch is over: there is nothing to cancel.";
            return Err(ApiError::bad_request(message).with_param("batch_id"));
        }
        self.advance(id, Status::Cancelling, now).map_err(|error| unwritable(&error))?;
        self.changed.notify_waiters();
        self.batch(tenant, id)
    }

    /// Of each key its oldest batch that is not over, with the tenant whose it is; but of no key of which one is under way
    /// (`running`), and none that has to wait (`later`).
    pub fn next(&self, running: &BTreeSet<String>, later: impl Fn(&str) -> bool) -> Vec<(BatchNote, Option<Tenant>)> {
        let state = self.lock();
        let busy: BTreeSet<_> = running.iter().filter_map(|id| Some(&state.batches.get(id)?.owner)).collect();
        let mut oldest: BTreeMap<&Option<String>, &BatchNote> = BTreeMap::new();
        for batch in state.batches.values().filter(|batch| batch.status.is_open() && !batch.is_new) {
            if busy.contains(&batch.owner) || later(&batch.id) {
                continue;
            }
            let first = oldest.entry(&batch.owner).or_insert(batch);
            if (batch.created_at(), &batch.id) < (first.created_at(), &first.id) {
                *first = batch;
            }
        }
        oldest.values().map(|&batch| (batch.clone(), batch.owner.as_deref().and_then(of_hex))).collect()
    }

    /// Whether it is to be cancelled.
    pub fn is_cancelled(&self, id: &str) -> bool {
        self.lock().batches.get(id).is_none_or(|batch| batch.status == Status::Cancelling)
    }

    /// Whether its answers leave its key no room.
    pub fn is_full(&self, id: &str) -> bool {
        let mut state = self.lock();
        let Some((owner, own)) = state.batches.get(id).map(|batch| (batch.owner.clone(), batch.bytes)) else {
            return false;
        };
        state.account(&owner).bytes + own > MOST_BYTES
    }

    /// How far it is; a restart counts again.
    pub fn count(&self, id: &str, counts: Counts) {
        if let Some(batch) = self.lock().batches.get_mut(id) {
            (batch.total, batch.completed, batch.failed) = (counts.total, counts.done - counts.failed, counts.failed);
            batch.bytes = counts.bytes;
        }
    }

    /// It begins, with this number of answers present.
    pub fn started(&self, id: &str, answered: usize, now: u64) -> io::Result<()> {
        self.change(id, |batch| {
            batch.starts = if answered > batch.answered { 1 } else { batch.starts + 1 };
            batch.answered = answered;
            batch.reach(Status::InProgress, now);
        })
    }

    /// The server ends as it was asked to, and it goes on with the next one.
    pub fn rests(&self, id: &str) -> io::Result<()> {
        self.change(id, |batch| batch.starts = 0)
    }

    /// A status that was reached. What is to be cancelled does not go back.
    pub fn advance(&self, id: &str, status: Status, now: u64) -> io::Result<()> {
        self.change(id, |batch| batch.reach(status, now))
    }

    /// It cannot be answered, or no further.
    pub fn fail(&self, id: &str, problem: &str, line: Option<usize>, now: u64) -> io::Result<()> {
        let problem: String = problem.chars().take(MOST_PROBLEM).collect();
        self.change(id, |batch| {
            batch.problem.get_or_insert_with(|| (problem.clone(), line));
            batch.reach(Status::Failed, now);
        })
    }

    /// A file of answers that is whole.
    pub fn keep_answers(&self, batch: &BatchNote, is_errors: bool, now: u64) -> io::Result<()> {
        let (id, file_id) = (&batch.id, batch.file_of(is_errors));
        let name = format!("{id}_{}.jsonl", if is_errors { "error" } else { "output" });
        self.note_file(batch.owner.clone(), &file_id, name, "batch_output", now)?;
        self.change(id, |batch| {
            let place = if is_errors { &mut batch.error_file_id } else { &mut batch.output_file_id };
            *place = Some(file_id.clone());
            batch.bytes = 0; // they are in its files
        })
    }

    /// Writes what `change` makes of a batch; memory has it when the disk has.
    fn change(&self, id: &str, change: impl Fn(&mut BatchNote)) -> io::Result<()> {
        let _writing = self.order();
        let Some(mut note) = self.lock().batches.get(id).cloned() else { return Ok(()) };
        change(&mut note);
        self.write("batches", id, &note)?;
        if let Some(batch) = self.lock().batches.get_mut(id) {
            change(batch);
        }
        Ok(())
    }

    fn write(&self, part: &str, id: &str, note: &impl Serialize) -> io::Result<()> {
        let json = serde_json::to_vec(note).map_err(io::Error::other)?;
        files::replace_private(&self.note(part, id), &json)
    }

    fn note(&self, part: &str, id: &str) -> PathBuf {
        self.place.join(part).join(format!("{id}.json"))
    }

    fn order(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A file that is being sent. What is not kept is gone, and its account is free, when this is dropped: also when its
/// sender has left.
pub struct Sending {
    store: Arc<BatchStore>,
    id: String,
}

impl Sending {
    /// Charges bytes that have arrived.
    pub fn grow(&self, bytes: u64) -> ApiResult<()> {
        let mut state = self.store.lock();
        let State { sending, accounts, .. } = &mut *state;
        let Some((owner, own)) = sending.get_mut(&self.id) else { return Err(ApiError::internal()) };
        let account = accounts.entry(owner.clone()).or_default();
        if account.bytes + bytes > MOST_BYTES {
            return Err(storage_full(*account));
        }
        (account.bytes, *own) = (account.bytes + bytes, *own + bytes);
        Ok(())
    }

    /// Keeps it. All of it is on the disk.
    pub fn keep(self, filename: String, now: u64) -> ApiResult<FileNote> {
        let owner = self.store.lock().sending.get(&self.id).and_then(|(owner, _)| owner.clone());
        let kept = self.store.note_file(owner, &self.id, filename, "batch", now);
        kept.map_err(|error| unwritable(&error))
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        let mut state = self.store.lock();
        if let Some((owner, bytes)) = state.sending.remove(&self.id) {
            let account = state.account(&owner);
            (account.sending, account.bytes) = (account.sending - 1, account.bytes.saturating_sub(bytes));
        }
        let is_kept = state.files.contains_key(&self.id);
        drop(state);
        if !is_kept {
            let _ = fs::remove_file(self.store.path(&self.id)); // the next start takes it away
        }
    }
}

fn storage_full(account: Account) -> ApiError {
    let message = format!(
        "The files of this key are {} of {} MiB; {MOST_FILES} and {} MiB are the most: delete some.",
        account.files + account.sending,
        account.bytes >> 20,
        MOST_BYTES >> 20
    );
    ApiError::bad_request(message).with_param("file").with_code("storage_full")
}

/// All notes of a directory. One that cannot be read is told of, and stays there; so does one that is not about what its
/// file is named after: a copy, or one that leads elsewhere.
fn notes<T: for<'de> Deserialize<'de>>(directory: &Path, id: fn(&T) -> &String) -> io::Result<impl Iterator<Item = T>> {
    let entries: Vec<_> = fs::read_dir(directory)?.collect::<io::Result<_>>()?;
    Ok(entries.into_iter().filter_map(move |entry| {
        let path = entry.path();
        let name = path.file_name()?.to_str()?.strip_suffix(".json")?;
        let read = files::read(&path, NOTE_BYTES).and_then(|json| {
            let note = serde_json::from_slice(&json)?;
            if id(&note) == name { Ok(note) } else { Err(io::Error::other("it is the note of another name")) }
        });
        read.inspect_err(|error| tracing::error!(note = %path.display(), %error, "it cannot be read, and is left")).ok()
    }))
}

/// Takes away what a kill has left: contents that no note is about, and notes in the making. What has another kind of
/// name is not ours, and stays.
fn clean(directory: &Path) -> io::Result<()> {
    for part in [directory, &directory.with_file_name("batches")] {
        for entry in fs::read_dir(part)? {
            let entry = entry?;
            let path = entry.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            if entry.file_type()?.is_dir() {
                continue;
            }
            let is_lost = part == directory
                && name.starts_with("file-")
                && !name.contains('.')
                && !fs::exists(path.with_added_extension("json"))?;
            if is_lost || files::writer_of(&path).is_some() {
                fs::remove_file(path)?;
            }
        }
    }
    Ok(())
}

/// Removes a file; that it is not there is as good.
fn gone(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn owner(tenant: Option<Tenant>) -> Option<String> {
    tenant.as_ref().map(hex)
}

/// The disk's fault: the log has it, the client does not.
pub fn unwritable(error: &io::Error) -> ApiError {
    tracing::error!(%error, "files of batches cannot be written");
    ApiError::unwritable()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use testing::Scratch;

    use super::*;

    fn keep(store: &Arc<BatchStore>, key: Tenant, id: &str, bytes: &[u8]) -> ApiResult<FileNote> {
        let (sending, mut file) = store.begin_file(Some(key), id)?;
        sending.grow(bytes.len() as u64)?;
        file.write_all(bytes).map_err(|error| unwritable(&error))?;
        sending.keep("in.jsonl".to_owned(), 1)
    }

    fn batch(id: String, file: &str) -> BatchNote {
        BatchNote::new(id, "/v1/completions".to_owned(), file.to_owned(), Value::Null, 1)
    }

    /// Random operations of two keys with restarts, and now and then a disk that takes nothing (a directory in a note's
    /// way). What was acknowledged is there, nothing else is, and accounts are what the files are.
    #[test]
    fn chaos() {
        let place = Scratch::new("batch-store-chaos");
        let mut store = Some(BatchStore::open(&place).unwrap());
        let (mut files, mut batches) = (BTreeMap::<String, (Tenant, usize)>::new(), BTreeMap::<String, Tenant>::new());
        let mut dice = testing::Dice::new(7);
        let mut random = |most: u64| dice.below(most);
        for step in 0..1500 {
            let open = store.clone().unwrap();
            let key = [random(2) as u8; 32];
            let is_full = random(8) == 0;
            let pick = |files: &BTreeMap<String, (Tenant, usize)>, at: u64| {
                files.keys().nth(at as usize % files.len().max(1)).cloned().unwrap_or_default()
            };
            match random(7) {
                0 | 1 => {
                    let (id, bytes) = (format!("file-{step}"), vec![7; random(2000) as usize]);
                    let note = place.join("files").join(format!("{id}.json"));
                    if is_full {
                        fs::create_dir_all(note.join("full")).unwrap();
                    }
                    let kept = keep(&open, key, &id, &bytes);
                    assert_eq!(kept.is_ok(), !is_full);
                    if kept.is_ok() {
                        files.insert(id, (key, bytes.len()));
                    } else {
                        fs::remove_dir_all(note).unwrap();
                    }
                }
                2 => {
                    let id = pick(&files, random(50));
                    let deleted = open.delete_file(Some(key), &id).is_ok();
                    if deleted {
                        assert_eq!(files.remove(&id).map(|(owner, _)| owner), Some(key));
                    }
                }
                3 => {
                    let (id, file) = (format!("batch_{step}"), pick(&files, random(50)));
                    let note = place.join("batches").join(format!("{id}.json"));
                    if is_full {
                        fs::create_dir_all(note.join("full")).unwrap();
                    }
                    let is_own = files.get(&file).is_some_and(|(owner, _)| *owner == key);
                    let begun = open.begin_batch(Some(key), batch(id.clone(), &file));
                    assert!(begun.is_err() || is_own && !is_full);
                    if begun.is_ok() {
                        batches.insert(id, key);
                    } else if is_full {
                        fs::remove_dir_all(note).unwrap();
                    }
                }
                4 => {
                    for (batch, tenant) in open.next(&BTreeSet::new(), |_| false) {
                        assert_eq!(batches.get(&batch.id).copied(), tenant);
                        open.started(&batch.id, 0, 2).unwrap();
                        if random(2) == 0 {
                            open.advance(&batch.id, Status::Completed, 3).unwrap();
                        }
                    }
                }
                5 => {
                    // Left by a sender that is gone, or by a kill.
                    let (sending, _file) = open.begin_file(Some(key), &format!("file-{step}")).unwrap();
                    let _ = sending.grow(100);
                    if is_full {
                        std::mem::forget(sending);
                    }
                    fs::write(place.join("files").join(format!("file-1.json.{step}.tmp")), "{").unwrap();
                }
                _ => {
                    drop(open);
                    // Whatever still holds the old one has been killed with it.
                    let old = store.take().unwrap();
                    old._lock.unlock().unwrap();
                    drop(old);
                    store = Some(BatchStore::open(&place).unwrap());
                    let names = fs::read_dir(place.join("files")).unwrap().count();
                    assert_eq!(names, 2 * files.len(), "nothing else is there");
                }
            }
            let open = store.as_ref().unwrap();
            for key in [[0; 32], [1; 32]] {
                let found: BTreeSet<String> = open.files(Some(key)).into_iter().map(|file| file.id).collect();
                let own = files.iter().filter(|(_, (owner, _))| *owner == key);
                assert_eq!(found, own.map(|(id, _)| id.clone()).collect(), "step {step}");
                let found: BTreeSet<String> = open.batches(Some(key)).into_iter().map(|batch| batch.id).collect();
                let own = batches.iter().filter(|(_, owner)| **owner == key);
                assert_eq!(found, own.map(|(id, _)| id.clone()).collect(), "step {step}");
                let bytes: usize = files.values().filter(|(owner, _)| *owner == key).map(|(_, bytes)| bytes).sum();
                let account = *open.lock().account(&owner(Some(key)));
                if account.sending == 0 {
                    assert_eq!(account.bytes, bytes as u64, "step {step}");
                }
            }
            // Each key's oldest is there, whatever the other has.
            let next = open.next(&BTreeSet::new(), |_| false);
            let keys: BTreeSet<_> = next.iter().map(|(batch, _)| batch.owner.clone()).collect();
            assert_eq!(keys.len(), next.len());
        }
    }

    /// One is made while its file goes: either the batch is there or the file is gone, never both.
    #[test]
    fn a_batch_holds_its_file() {
        let place = Scratch::new("batch-store-race");
        let store = BatchStore::open(&place).unwrap();
        let key = [1; 32];
        for round in 0..100 {
            let file = format!("file-{round}");
            keep(&store, key, &file, b"x").unwrap();
            let (begun, deleted) = std::thread::scope(|scope| {
                let begun =
                    scope.spawn(|| store.begin_batch(Some(key), batch(format!("batch_{round}"), &file)).is_ok());
                let deleted = scope.spawn(|| store.delete_file(Some(key), &file).is_ok());
                (begun.join().unwrap(), deleted.join().unwrap())
            });
            assert_ne!(begun, deleted, "round {round}");
            if begun {
                store.advance(&format!("batch_{round}"), Status::Cancelled, 1).unwrap();
            }
        }
        // As many as may be open, however they come.
        keep(&store, key, "file-all", b"x").unwrap();
        let begun: usize = std::thread::scope(|scope| {
            let some = |thread: usize| {
                let store = &store;
                let begin =
                    move |at| store.begin_batch(Some(key), batch(format!("batch_{thread}-{at}"), "file-all")).is_ok();
                (0..40).filter(|&at| begin(at)).count()
            };
            let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || some(thread))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(begun, MOST_OPEN);
    }

    #[test]
    fn the_oldest_that_is_over_makes_room() {
        let place = Scratch::new("batch-store-over");
        let store = BatchStore::open(&place).unwrap();
        let keys = [[1; 32], [2; 32]];
        for (at, key) in keys.into_iter().enumerate() {
            keep(&store, key, &format!("file-{at}"), b"x").unwrap();
            for batch_at in 0..2 {
                let id = format!("batch_{at}-{batch_at}");
                store.begin_batch(Some(key), batch(id.clone(), &format!("file-{at}"))).unwrap();
                if batch_at == 0 {
                    store.advance(&id, Status::Failed, 2).unwrap();
                }
            }
        }
        for at in 0..MOST_OVER {
            let mut over = batch(format!("batch_over-{at:04}"), "file-0");
            (over.owner, over.status) = (owner(Some(keys[0])), Status::Completed);
            over.times = vec![(Status::Validating, 2)];
            over.is_new = false;
            store.lock().batches.insert(over.id.clone(), over);
        }
        store.begin_batch(Some(keys[0]), batch("batch_z".to_owned(), "file-0")).unwrap();
        let is_there = |key, id: &str| {
            let on_disk = store.note("batches", id).exists();
            assert_eq!(on_disk, store.batch(Some(key), id).is_ok(), "{id}");
            on_disk
        };
        for (key, id, stays) in
            [(0, "batch_0-0", false), (0, "batch_0-1", true), (1, "batch_1-0", true), (0, "batch_z", true)]
        {
            assert_eq!(is_there(keys[key], id), stays, "{id}");
        }
        assert_eq!(store.batches(Some(keys[0])).len(), MOST_OVER + 2);
    }

    /// What cannot be read is kept, with what it is about; a batch that was there at three ends in a row is set aside.
    #[test]
    fn a_start_takes_away_nothing_but_its_own_leftovers() {
        let place = Scratch::new("batch-store-start");
        let store = BatchStore::open(&place).unwrap();
        let key = [1; 32];
        keep(&store, key, "file-a", b"x").unwrap();
        keep(&store, key, "file-b", b"x").unwrap();
        store.begin_batch(Some(key), batch("batch_c".to_owned(), "file-b")).unwrap();
        let mut store = Some(store);
        let files = place.join("files");
        // Copies of notes, and one that leads elsewhere; and directories of names that leftovers have.
        let note = fs::read_to_string(files.join("file-b.json")).unwrap();
        fs::write(place.join("mine"), "x").unwrap();
        fs::write(files.join("file-b copy.json"), &note).unwrap();
        fs::write(files.join("file-e.json"), note.replace("\"file-b\"", "\"../mine\"")).unwrap();
        let stands = fs::read_to_string(place.join("batches/batch_c.json")).unwrap();
        fs::write(place.join("batches/batch_c copy.json"), stands.replace("validating", "cancelled")).unwrap();
        ["file-dir", "file-b.json.2.tmp"].iter().for_each(|name| fs::create_dir(files.join(name)).unwrap());
        for (name, text) in [("file-a.json", "{"), ("file-lost", "x"), ("notes.txt", "x"), ("file-b.json.1.tmp", "{")] {
            fs::write(files.join(name), text).unwrap();
        }
        for (starts, rests, expected) in
            [(1, false, true), (2, true, true), (1, false, true), (2, false, true), (3, false, false)]
        {
            let open = store.take().unwrap();
            open.started("batch_c", 0, 1).unwrap();
            if rests {
                open.rests("batch_c").unwrap();
            }
            drop(open);
            let open = BatchStore::open(&place).unwrap();
            let stands = open.batch(Some(key), "batch_c").ok().unwrap();
            let is_on = stands.problem.is_none() && stands.status != Status::Cancelled;
            let names: Vec<String> = open.files(Some(key)).into_iter().map(|file| file.id).collect();
            assert_eq!(names, ["file-b"], "start {starts}");
            assert!(open.delete_file(Some(key), "../mine").is_err());
            assert_eq!(is_on, expected, "start {starts}");
            store = Some(open);
        }
        for (name, stays) in [
            ("file-a", true),
            ("file-a.json", true),
            ("file-lost", false),
            ("notes.txt", true),
            ("file-b.json.1.tmp", false),
            ("file-b.json.2.tmp", true),
            ("file-dir", true),
            ("file-b copy.json", true),
            ("../mine", true),
        ] {
            assert_eq!(files.join(name).exists(), stays, "{name}");
        }
    }
}
