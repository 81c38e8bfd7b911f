//! Standard error of a server: lines go through a bounded queue to a thread that writes them.
//!
//! ```text
//! a thread --try_send--> 4,096 lines --one thread--> standard error
//!               | full: counted, and reported by the next line that gets through
//! ```
//!
//! A supervisor that pipes standard error and does not read it fills the pipe sooner or later; the next line then waits
//! without limit. A server that waits for its log answers no request, so lines are dropped instead.

use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

/// Lines that may wait.
const MOST_LINES: usize = 4096;

static LINES: OnceLock<SyncSender<Entry>> = OnceLock::new();
static LOST: AtomicU64 = AtomicU64::new(0);

enum Entry {
    Line(Vec<u8>),
    /// Everything before it is written.
    Mark(SyncSender<()>),
}

/// What is written to it is one line, and does not wait.
pub(crate) struct Lines;

impl Lines {
    /// Starts the thread; once in the life of the process.
    pub(crate) fn start() {
        let (sender, entries) = sync_channel(MOST_LINES);
        if LINES.set(sender).is_ok() {
            std::thread::spawn(move || write(&entries, &mut io::stderr()));
        }
    }

    /// Waits until everything so far is written, and no longer than `limit`.
    pub(crate) fn finish(limit: Duration) {
        let (sender, written) = sync_channel(1);
        if LINES.get().is_some_and(|lines| lines.try_send(Entry::Mark(sender)).is_ok()) {
            // A reader that is gone, or that does not read, has had its time.
            let _ = written.recv_timeout(limit);
        }
    }
}

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match LINES.get().map(|lines| lines.try_send(Entry::Line(line.to_vec()))) {
            Some(Err(TrySendError::Full(_))) => _ = LOST.fetch_add(1, Ordering::Relaxed),
            Some(_) => {}
            None => io::stderr().write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write(entries: &Receiver<Entry>, to: &mut dyn Write) {
    while let Ok(entry) = entries.recv() {
        // A closed standard error is no failure.
        match entry {
            Entry::Line(line) => {
                let _ = to.write_all(&line);
                let lost = LOST.swap(0, Ordering::Relaxed);
                if lost > 0 {
                    let _ = writeln!(to, "{lost} lines of the log were lost here: they were not read in time");
                }
            }
            Entry::Mark(written) => _ = written.try_send(()),
        }
    }
}
