//! The thread that writes: takes lines from a bounded channel, and flushes whenever it has caught up.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::thread::JoinHandle;

use super::format::{Entry, Header};
use super::{RecordError, RecordLine, RecordSink};

/// Lines that may wait for the disk: minutes of steps. What waits is mostly numbers; prompts are shared, not copied.
const MOST_WAITING: usize = 8192;

/// Begins a recording. The file must not exist yet. The thread ends when the sink is dropped and all is written.
pub(crate) fn record(path: &Path, header: &Header) -> Result<(RecordSink, JoinHandle<()>), RecordError> {
    let failed = |error| RecordError { path: path.to_owned(), error };
    // Private to the user: prompts are in it.
    let mut file = BufWriter::new(files::create_private(path).map_err(failed)?);
    put(&mut file, header).and_then(|()| file.flush()).map_err(failed)?;
    let (sender, lines) = sync_channel(MOST_WAITING);
    let is_cut = Arc::new(AtomicBool::new(false));
    let (place, was_cut) = (path.to_owned(), is_cut.clone());
    let writer = std::thread::Builder::new().name("recorder".into());
    let writer = writer.spawn(move || write(file, &place, &lines, &was_cut)).map_err(failed)?;
    Ok((sink(sender, path.to_owned(), is_cut), writer))
}

fn sink(sender: SyncSender<RecordLine>, path: PathBuf, is_cut: Arc<AtomicBool>) -> RecordSink {
    let mut sender = Some(sender);
    Box::new(move |line| {
        let Some(channel) = &sender else { return };
        match channel.try_send(line) {
            Ok(()) => return,
            Err(TrySendError::Full(_)) => {
                is_cut.store(true, Ordering::Release);
                tracing::warn!(path = %path.display(), "the recording ends here: the disk does not keep up");
            }
            // The writer has said why it left.
            Err(TrySendError::Disconnected(_)) => {}
        }
        sender = None;
    })
}

fn write(mut file: BufWriter<File>, path: &Path, lines: &Receiver<RecordLine>, was_cut: &AtomicBool) {
    if let Err(error) = write_all(&mut file, lines, was_cut) {
        tracing::warn!(path = %path.display(), %error, "the recording ends here");
    }
}

fn write_all(file: &mut BufWriter<File>, lines: &Receiver<RecordLine>, was_cut: &AtomicBool) -> io::Result<()> {
    loop {
        let line = match lines.try_recv() {
            Ok(line) => line,
            Err(TryRecvError::Empty) => {
                file.flush()?;
                let Ok(line) = lines.recv() else { break };
                line
            }
            Err(TryRecvError::Disconnected) => break,
        };
        put(file, &Entry::from(line))?;
    }
    if !was_cut.load(Ordering::Acquire) {
        put(file, &Entry::End)?;
    }
    file.flush()
}

fn put(file: &mut BufWriter<File>, value: &impl serde::Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *file, value)?;
    file.write_all(b"\n")
}
