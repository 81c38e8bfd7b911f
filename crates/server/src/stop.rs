//! How a server is told to end: first drain, then now.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// How far the end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ending {
    Running,
    Draining,
    Now,
}

/// Tells a [`crate::Server`] when to end. Dropping every [`StopHandle`] without using it leaves the server running.
#[derive(Clone, Debug)]
pub struct Stop(watch::Receiver<Ending>);

/// The other end of a [`Stop`].
#[derive(Debug)]
pub struct StopHandle(watch::Sender<Ending>);

impl Stop {
    /// A stop that is pulled by hand.
    pub fn by_hand() -> (StopHandle, Stop) {
        let (sender, receiver) = watch::channel(Ending::Running);
        (StopHandle(sender), Stop(receiver))
    }

    /// SIGTERM or SIGINT drains; a second one, of either kind, ends at once.
    ///
    /// Errors when the system refuses the handlers. Call it inside a tokio runtime.
    pub fn on_signals() -> io::Result<Stop> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let (handle, stop) = Stop::by_hand();
        tokio::spawn(async move {
            for ending in [Ending::Draining, Ending::Now] {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                tracing::info!(?ending, "signal received");
                handle.0.send_replace(ending);
            }
        });
        Ok(stop)
    }

    /// Waits until the end has come at least as far as `ending`.
    pub(crate) async fn reached(&mut self, ending: Ending) {
        if self.0.wait_for(|now| *now >= ending).await.is_err() {
            // Nobody is left who could say so.
            std::future::pending::<()>().await;
        }
    }
}

impl StopHandle {
    /// Take nothing new, finish what runs.
    pub fn drain(&self) {
        self.0.send_if_modified(|ending| {
            let first = *ending == Ending::Running;
            if first {
                *ending = Ending::Draining;
            }
            first
        });
    }

    /// End what runs, too.
    pub fn now(&self) {
        self.0.send_replace(Ending::Now);
    }
}
