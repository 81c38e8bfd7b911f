//! What `serve` tells the supervisor that started it: systemd's `Type=notify`, a datagram a message, to the socket that
//! `NOTIFY_SOCKET` names (sd_notify(3)). Without that variable nothing is told.
//!
//! ```text
//! STATUS=loading 43 %        READY=1            WATCHDOG=1 ...           STOPPING=1
//! EXTEND_TIMEOUT_USEC=..     STATUS=serving ..  while the engine moves   EXTEND_TIMEOUT_USEC=..
//! ```

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use engine::{Engine, Health};
use server::{Stop, StopStage};

use crate::environment;

/// A start that shows no progress for so long has failed.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two messages about progress.
const PAUSE: Duration = Duration::from_secs(1);
/// Beyond the time that running requests get, for what is written at the end.
const LAST_WORDS: Duration = Duration::from_secs(30);

struct Supervisor {
    socket: UnixDatagram,
    address: SocketAddr,
    /// When progress was told last.
    told: Mutex<Option<Instant>>,
}

/// Of this process, from [`start`] on.
static SUPERVISOR: OnceLock<Option<Supervisor>> = OnceLock::new();

/// From here on the supervisor is told.
pub(crate) fn start() {
    SUPERVISOR.get_or_init(|| Supervisor::at(&environment::notify_socket()?).ok());
}

/// How far a part of the start is, and that it goes on.
pub(crate) fn progress(what: &str, done: u64, total: u64) {
    let Some(Some(supervisor)) = SUPERVISOR.get() else { return };
    let mut told = supervisor.told.lock().unwrap_or_else(PoisonError::into_inner);
    if told.is_none_or(|told| told.elapsed() >= PAUSE) {
        *told = Some(Instant::now());
        let percent = 100 * u128::from(done) / u128::from(total.max(1));
        supervisor.tell(&format!("STATUS={what} {percent} %\n{}", extended(PATIENCE)));
    }
}

/// That requests are answered at `address` now.
pub(crate) fn ready(model: &str, address: &str) {
    tell(&format!("READY=1\nSTATUS=serving {model} at {address}"));
}

/// Tells that the engine moves, as often as the supervisor wants to hear it, and when the server is told to end.
pub(crate) async fn watch(engine: Engine, mut stop: Stop, drain_limit: Duration) {
    if SUPERVISOR.get().is_none_or(Option::is_none) {
        return;
    }
    let interval = environment::watchdog();
    let beats = async {
        let Some(interval) = interval else { return std::future::pending().await };
        loop {
            if moves(&engine.health(), interval) {
                tell("WATCHDOG=1");
            }
            tokio::time::sleep(interval / 3).await;
        }
    };
    let ending = async {
        stop.reached(StopStage::Draining).await;
        let running = engine.health().open_requests;
        tell(&format!("STOPPING=1\nSTATUS=draining, {running} requests run\n{}", extended(drain_limit + LAST_WORDS)));
        std::future::pending().await
    };
    tokio::select! {
        () = beats => {}
        () = ending => {}
    }
}

/// Whether the engine's own loop has moved within the interval, or has nothing to do.
fn moves(health: &Health, interval: Duration) -> bool {
    !health.dead && health.stuck_for < interval
}

fn extended(time: Duration) -> String {
    format!("EXTEND_TIMEOUT_USEC={}", time.as_micros())
}

fn tell(message: &str) {
    if let Some(Some(supervisor)) = SUPERVISOR.get() {
        supervisor.tell(message);
    }
}

impl Supervisor {
    /// At a path, or at an abstract name behind `@`.
    fn at(name: &OsStr) -> io::Result<Supervisor> {
        let address = match name.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(name)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Supervisor { socket, address, told: Mutex::new(None) })
    }

    /// A supervisor that is gone, or does not read, holds no server up.
    fn tell(&self, message: &str) {
        let _ = self.socket.send_to_addr(message.as_bytes(), &self.address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_that_is_dead_or_stuck_is_not_said_to_move() {
        let interval = Duration::from_secs(120);
        for (dead, stuck_for, expected) in [(false, 0, true), (false, 119, true), (false, 120, false), (true, 0, false)]
        {
            let health = Health { dead, draining: false, stuck_for: Duration::from_secs(stuck_for), open_requests: 1 };
            assert_eq!(moves(&health, interval), expected, "{health:?}");
        }
    }
}
