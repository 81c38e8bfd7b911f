//! The thread that answers batches, of each key one after the other, beside live traffic and behind it: their lines are of
//! the class `flex` unless they say otherwise. Keys do not wait for each other here; whose line is computed next is decided
//! where it is for requests. What stops one batch stops no other.

use std::collections::{BTreeSet, HashMap};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use telemetry::time_format::unix_seconds;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;
use transport::auth::Tenant;

use crate::local::{LocalServer, lines_room};
use crate::store::{BatchNote, BatchStore, Status};
use crate::{BatchInput, BatchOutput, BatchRun, InputError, Local, OutputError, Stopped};

/// Between two looks at whether the server goes down, or a batch is to end.
const LOOK: Duration = Duration::from_millis(500);
/// After a fault of the disk, for the batch that met it.
const LATER: Duration = Duration::from_secs(10);

/// Why a batch is not over.
enum Pause {
    /// The server goes down; the next one goes on.
    Stopping,
    /// The disk.
    Fault(io::Error),
}

impl From<io::Error> for Pause {
    fn from(error: io::Error) -> Pause {
        Pause::Fault(error)
    }
}

/// Starts it. It ends when the server goes down; what is under way goes on at the next start.
pub fn start(server: LocalServer, store: Arc<BatchStore>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("batches".to_owned()).spawn(move || runtime.block_on(work(server, store)))?;
    Ok(())
}

async fn work(server: LocalServer, store: Arc<BatchStore>) {
    let (lines, mut running, mut tasks) = (lines_room(), BTreeSet::new(), JoinSet::new());
    let mut later: HashMap<String, Instant> = HashMap::new();
    let mut names: HashMap<tokio::task::Id, String> = HashMap::new();
    loop {
        later.retain(|_, until| *until > Instant::now());
        if !server.drain.has_begun() {
            for (batch, tenant) in store.next(&running, |id| later.contains_key(id)) {
                running.insert(batch.id.clone());
                let (server, store, lines) = (server.clone(), store.clone(), lines.clone());
                let name = batch.id.clone();
                let task = tasks.spawn(async move {
                    let ended = answer(server, &store, &batch, tenant, lines).await;
                    (batch.id, ended)
                });
                names.insert(task.id(), name);
            }
        } else if tasks.is_empty() {
            return;
        }
        let ended = tokio::select! {
            Some(ended) = tasks.join_next_with_id() => ended,
            _ = tokio::time::timeout(LOOK, store.changed.notified()) => continue,
        };
        match ended {
            Ok((task, (id, ended))) => {
                names.remove(&task);
                running.remove(&id);
                match ended {
                    Ok(()) => {}
                    Err(Pause::Stopping) => drop(store.rests(&id)), // it is as if it had not been asked to end
                    Err(Pause::Fault(error)) => {
                        tracing::error!(batch = id, %error, "a batch waits: its files cannot be read or written");
                        later.insert(id, Instant::now() + LATER);
                    }
                }
            }
            // A panic: a bug of ours, and this batch's only.
            Err(error) => {
                tracing::error!(%error, "a batch was given up");
                if let Some(id) = names.remove(&error.id()) {
                    running.remove(&id);
                    if store.fail(&id, "An internal error ended this batch.", None, unix_seconds()).is_err() {
                        later.insert(id, Instant::now() + LATER);
                    }
                }
            }
        }
    }
}

async fn answer(
    server: LocalServer,
    store: &Arc<BatchStore>,
    batch: &BatchNote,
    tenant: Option<Tenant>,
    lines: Arc<Semaphore>,
) -> Result<(), Pause> {
    let id = batch.id.as_str();
    let is_begun = batch.since(Status::InProgress).is_some();
    if store.is_cancelled(id) && !is_begun {
        return Ok(store.advance(id, Status::Cancelled, unix_seconds())?);
    }
    // What was set aside at the start, or was being written down.
    if batch.status == Status::Finalizing {
        return finish(store, batch, batch.problem.clone()).await;
    }
    let (path, endpoint) = (store.path(&batch.input_file_id), batch.endpoint.clone());
    let checked = aside(move || Ok(BatchInput::check(&path, Some(&endpoint)))).await?;
    let is_of_input = checked.is_err();
    let (problem, line) = match checked {
        Ok(input) => {
            let answers = store.answers(id);
            match aside(move || Ok(BatchOutput::open(&answers, &input).map(|output| (input, output)))).await? {
                Ok((input, output)) => {
                    let local = Local::of(server, tenant, lines);
                    return run(store, batch, local, &input, output).await;
                }
                Err(OutputError::File { source, .. }) if !is_lost(&source) => return Err(source.into()),
                Err(OutputError::File { .. }) => ("The answers so far cannot be read.".to_owned(), None),
                Err(error @ OutputError::Taken { .. }) => return Err(io::Error::other(error).into()),
                Err(OutputError::Foreign { line, .. } | OutputError::Other { line, .. }) => {
                    (format!("The answers so far were changed: line {line} of them is none of this batch."), None)
                }
            }
        }
        Err(InputError::Unreadable { source, .. }) if !is_lost(&source) => return Err(source.into()),
        Err(InputError::Unreadable { .. }) => ("The input file is gone, or cannot be read.".to_owned(), None),
        Err(InputError::Line { line, problem }) => (problem, Some(line)),
        Err(error @ InputError::Empty) => (error.to_string(), None),
    };
    match is_of_input {
        // What was answered before is kept.
        true => finish(store, batch, Some((problem, line))).await,
        false => Ok(store.fail(id, &problem, line, unix_seconds())?),
    }
}

/// Whether trying again brings nothing.
fn is_lost(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied};
    matches!(error.kind(), NotFound | PermissionDenied | InvalidInput | InvalidData | IsADirectory | NotADirectory)
}

/// Files are read and written on a thread of their own: other keys' batches do not wait for it.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

async fn run(
    store: &Arc<BatchStore>,
    batch: &BatchNote,
    local: Local,
    input: &BatchInput,
    output: BatchOutput,
) -> Result<(), Pause> {
    let id = batch.id.as_str();
    store.started(id, output.len(), unix_seconds())?;
    let mut run = BatchRun::new(local, input, output, Some("flex")).map_err(io::Error::other)?;
    let unwanted = async {
        while !store.is_cancelled(id) && !store.is_full(id) {
            let _ = tokio::time::timeout(LOOK, store.changed.notified()).await;
        }
    };
    let ended = tokio::select! {
        ended = run.finish(|counts| store.count(id, counts)) => Some(ended),
        () = unwanted => None,
    };
    drop(run);
    match ended {
        Some(Ok(_)) | None => {}
        Some(Err(Stopped::ShuttingDown)) => return Err(Pause::Stopping),
        Some(Err(Stopped::Input(error))) => {
            // It was whole a moment ago. The next try says what is wrong with it.
            return Err(io::Error::other(error).into());
        }
        Some(Err(Stopped::Output(error))) => return Err(io::Error::other(error).into()),
    }
    finish(store, batch, batch.problem.clone()).await
}

/// Writes down what there is, and how it ended.
async fn finish(
    store: &Arc<BatchStore>,
    batch: &BatchNote,
    problem: Option<(String, Option<usize>)>,
) -> Result<(), Pause> {
    let id = batch.id.as_str();
    let (is_full, is_cancelled) = (store.is_full(id), store.is_cancelled(id));
    store.advance(id, Status::Finalizing, unix_seconds())?;
    let (store, batch) = (store.clone(), batch.clone());
    aside(move || {
        let id = batch.id.as_str();
        part(&store, &batch)?;
        match &problem {
            Some((problem, line)) if !is_cancelled => store.fail(id, problem, *line, unix_seconds())?,
            _ if is_cancelled => store.advance(id, Status::Cancelled, unix_seconds())?,
            _ if is_full => {
                let problem = "The files of this key leave no room for more answers: delete some.";
                store.fail(id, problem, None, unix_seconds())?;
            }
            _ => store.advance(id, Status::Completed, unix_seconds())?,
        }
        let _ = std::fs::remove_file(store.answers(id)); // both parts of it are kept
        Ok(())
    })
    .await?;
    Ok(())
}

/// What tells an answer from a refusal.
#[derive(Deserialize)]
struct Told {
    response: Coded,
}

#[derive(Deserialize)]
struct Coded {
    status_code: u16,
}

/// Answers into one file and refusals into another, as OpenAI does; a file without a line is none. Their names follow
/// from the batch's: what a kill has left of them is written again.
fn part(store: &BatchStore, batch: &BatchNote) -> io::Result<()> {
    for is_errors in [false, true] {
        let path = store.path(&batch.file_of(is_errors));
        let _ = std::fs::remove_file(&path); // it may not exist
        let mut lines = 0;
        let mut file = BufWriter::new(files::create_private(&path)?);
        for line in answers(&store.answers(&batch.id))? {
            let line = line?;
            // What a kill has cut off is no answer.
            let Ok(told) = serde_json::from_slice::<Told>(&line) else { continue };
            if (told.response.status_code >= 400) == is_errors {
                file.write_all(&line)?;
                file.write_all(b"\n")?;
                lines += 1;
            }
        }
        file.into_inner()?.sync_all()?;
        if lines == 0 {
            std::fs::remove_file(&path)?;
        } else {
            store.keep_answers(batch, is_errors, unix_seconds())?;
        }
    }
    Ok(())
}

/// Its lines as bytes: a kill may have cut the last one within a character.
fn answers(path: &Path) -> io::Result<Box<dyn Iterator<Item = io::Result<Vec<u8>>>>> {
    match files::open(path) {
        Ok(file) => Ok(Box::new(BufReader::new(file).split(b'\n'))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Box::new(std::iter::empty())),
        Err(error) => Err(error),
    }
}
