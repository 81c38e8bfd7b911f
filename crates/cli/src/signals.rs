//! Signals that end a command which has something to keep: Ctrl-C, and SIGHUP when its terminal goes.

use std::io;
use std::os::unix::net::UnixStream;

use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A runtime of this many threads beside the caller's, with all that tokio drives. Where descriptors are short that is an
/// error: tokio itself panics when those that it hears signals by are missing.
pub(crate) fn runtime(threads: usize) -> io::Result<Runtime> {
    // As many as it opens, at once: an event queue, what wakes it, a pair of streams and a copy of one.
    drop([UnixStream::pair()?, UnixStream::pair()?, UnixStream::pair()?]);
    let mut builder = match threads {
        0 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    if threads > 0 {
        builder.worker_threads(threads);
    }
    builder.enable_all().build()
}

/// Hears of both from now on; without it either would end the process. A SIGHUP that was ignored when the
/// command was started, as under `nohup`, stays ignored.
pub(crate) struct Ends {
    interrupt: Signal,
    hangup: Option<Signal>,
    hung_up: bool,
}

impl Ends {
    /// Call it inside a tokio runtime.
    pub(crate) fn listen() -> io::Result<Ends> {
        Ok(Ends { interrupt: signal(SignalKind::interrupt())?, hangup: server::hangups()?, hung_up: false })
    }

    /// Waits for the next one.
    pub(crate) async fn recv(&mut self) {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => _ = hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => {}
            () = hangup => self.hung_up = true,
        }
    }

    /// Whether one of them was a SIGHUP: then the terminal is gone.
    pub(crate) fn hung_up(&self) -> bool {
        self.hung_up
    }
}
