//! How a server is told to end: first drain, then now.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// How far the end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StopStage {
    Running,
    Draining,
    Now,
}

/// Tells a server when to end. Dropping every [`StopHandle`] without using it leaves the server running.
#[derive(Clone, Debug)]
pub struct Stop(watch::Receiver<StopStage>);

/// The other end of a [`Stop`].
#[derive(Debug)]
pub struct StopHandle(watch::Sender<StopStage>);

impl Stop {
    /// A stop that is pulled by hand.
    pub fn by_hand() -> (StopHandle, Stop) {
        let (sender, receiver) = watch::channel(StopStage::Running);
        (StopHandle(sender), Stop(receiver))
    }

    /// SIGTERM, SIGINT or SIGHUP drains; a second one, of any kind, ends at once. A SIGHUP that the process was started
    /// to ignore stays ignored.
    ///
    /// Errors when the system refuses the handlers. Call it inside a tokio runtime.
    pub fn on_signals() -> io::Result<Stop> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangups = hangups()?;
        let (handle, stop) = Stop::by_hand();
        tokio::spawn(async move {
            for ending in [StopStage::Draining, StopStage::Now] {
                let hangup = async {
                    match &mut hangups {
                        Some(hangups) => _ = hangups.recv().await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                    () = hangup => {}
                }
                tracing::info!(?ending, "signal received");
                handle.0.send_replace(ending);
            }
        });
        Ok(stop)
    }

    /// Waits until the end has come at least as far as `ending`.
    pub async fn reached(&mut self, ending: StopStage) {
        if self.0.wait_for(|now| *now >= ending).await.is_err() {
            // The sender is gone.
            std::future::pending::<()>().await;
        }
    }
}

/// SIGHUP, which a process gets when its terminal goes; `None` where it was started to ignore that, as `nohup` does it:
/// the operator wants it to go on. Call it inside a tokio runtime.
pub fn hangups() -> io::Result<Option<Signal>> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if is_ignored(&status, SignalKind::hangup()) { Ok(None) } else { signal(SignalKind::hangup()).map(Some) }
}

/// Whether a signal is in the mask `SigIgn` of `/proc/self/status`.
fn is_ignored(status: &str, signal: SignalKind) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal.as_raw_value() - 1) & 1 == 1
}

impl StopHandle {
    /// Take nothing new, finish what runs.
    pub fn drain(&self) {
        self.0.send_if_modified(|ending| {
            let first = *ending == StopStage::Running;
            if first {
                *ending = StopStage::Draining;
            }
            first
        });
    }

    /// End what runs, too.
    pub fn now(&self) {
        self.0.send_replace(StopStage::Now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_mask_says_what_is_ignored() {
        let table = [
            ("SigIgn:\t0000000000000001\n", true),
            ("SigBlk:\t0000000000000001\nSigIgn:\t0000000000001001\nSigCgt:\t0\n", true),
            ("SigBlk:\t0000000000000001\nSigIgn:\t0000000000001000\n", false),
            ("SigIgn:\tx\n", false),
            ("", false),
        ];
        for (status, expected) in table {
            assert_eq!(is_ignored(status, SignalKind::hangup()), expected, "{status}");
        }
    }
}
