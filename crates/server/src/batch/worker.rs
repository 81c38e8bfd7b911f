//! The thread that answers batches, one after the other, beside live traffic and behind it: their lines are of the class
//! `flex` unless they say otherwise.

use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use super::shelf::{BatchNote, Shelf, Status};
use super::{BatchInput, BatchOutput, BatchRun, InputError, Local, Stopped};
use crate::app::App;
use crate::auth::Tenant;

/// Between two looks at whether the server goes down.
const LOOK: Duration = Duration::from_millis(500);
/// After a fault of the disk.
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
pub(crate) fn start(app: Arc<App>, shelf: Arc<Shelf>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("batches".to_owned()).spawn(move || runtime.block_on(work(app, shelf)))?;
    Ok(())
}

async fn work(app: Arc<App>, shelf: Arc<Shelf>) {
    while !app.is_draining() {
        let Some((batch, tenant)) = shelf.next() else {
            let _ = tokio::time::timeout(LOOK, shelf.changed.notified()).await;
            continue;
        };
        match answer(&app, &shelf, &batch, tenant).await {
            Ok(()) => {}
            Err(Pause::Stopping) => return,
            Err(Pause::Fault(error)) => {
                tracing::error!(batch = batch.id, %error, "a batch waits: its files cannot be read or written");
                tokio::time::sleep(LATER).await;
            }
        }
    }
}

async fn answer(app: &Arc<App>, shelf: &Shelf, batch: &BatchNote, tenant: Option<Tenant>) -> Result<(), Pause> {
    let id = batch.id.as_str();
    if shelf.is_cancelled(id) && batch.since(Status::InProgress).is_none() {
        return Ok(shelf.advance(id, Status::Cancelled, app.now())?);
    }
    let input = match BatchInput::check(&shelf.path(&batch.input_file_id), Some(&batch.endpoint)) {
        Ok(input) => input,
        Err(InputError::Unreadable { source, .. }) => return Err(source.into()),
        Err(InputError::Line { line, problem }) => return Ok(shelf.fail(id, problem, Some(line), app.now())?),
        Err(error @ InputError::Empty) => return Ok(shelf.fail(id, error.to_string(), None, app.now())?),
    };
    shelf.advance(id, Status::InProgress, app.now())?;
    let output = BatchOutput::open(&shelf.answers(id), &input).map_err(io::Error::other)?;
    let local = Local::of(app.clone(), tenant);
    let mut run = BatchRun::new(local, &input, output, Some("flex")).map_err(io::Error::other)?;
    let cancelled = async {
        while !shelf.is_cancelled(id) {
            let _ = tokio::time::timeout(LOOK, shelf.changed.notified()).await;
        }
    };
    let ended = tokio::select! {
        ended = run.finish(|counts| shelf.count(id, counts)) => Some(ended),
        () = cancelled => None,
    };
    drop(run);
    match ended {
        Some(Ok(_)) => shelf.advance(id, Status::Finalizing, app.now())?,
        Some(Err(Stopped::ShuttingDown)) => return Err(Pause::Stopping),
        Some(Err(error)) => return Err(io::Error::other(error).into()),
        None => {}
    }
    part(app, shelf, id)?;
    let last = if shelf.is_cancelled(id) { Status::Cancelled } else { Status::Completed };
    shelf.advance(id, last, app.now())?;
    let _ = std::fs::remove_file(shelf.answers(id)); // both parts of it are kept
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

/// Answers into one file and refusals into another, as OpenAI does; a file without a line is none.
fn part(app: &App, shelf: &Shelf, id: &str) -> io::Result<()> {
    for is_errors in [false, true] {
        let file_id = format!("file-{}", app.unique());
        let mut lines = 0;
        let path = shelf.path(&file_id);
        let mut file = BufWriter::new(files::create_private(&path)?);
        for line in answers(&shelf.answers(id))? {
            let line = line?;
            let told: Told = serde_json::from_str(&line).map_err(io::Error::other)?;
            if (told.response.status_code >= 400) == is_errors {
                writeln!(file, "{line}")?;
                lines += 1;
            }
        }
        file.into_inner()?.sync_all()?;
        if lines == 0 {
            shelf.drop_file(&file_id);
        } else {
            shelf.keep_answers(id, file_id, is_errors, app.now())?;
        }
    }
    Ok(())
}

fn answers(path: &Path) -> io::Result<impl Iterator<Item = io::Result<String>>> {
    Ok(BufReader::new(files::open(path)?).lines())
}
