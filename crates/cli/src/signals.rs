//! Signals that end a command which has something to keep: Ctrl-C, and SIGHUP when its terminal goes.

use std::io;
use std::os::unix::net::UnixStream;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Hears of both from now on; without it either would end the process. A SIGHUP that the command was told to ignore
/// when it was started, as `nohup` does, stays ignored.
pub(crate) struct Ends {
    interrupt: Signal,
    hangup: Option<Signal>,
    hung_up: bool,
}

impl Ends {
    /// Call it inside a tokio runtime.
    pub(crate) fn listen() -> io::Result<Ends> {
        // The first signal that tokio is asked for needs two descriptors, and it panics where there are none.
        drop(UnixStream::pair()?);
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

    /// Whether one of them was a SIGHUP: then nobody is left to go on with.
    pub(crate) fn hung_up(&self) -> bool {
        self.hung_up
    }
}
