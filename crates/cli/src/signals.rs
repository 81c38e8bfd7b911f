//! Signals that end a command which has something to keep: Ctrl-C, and SIGHUP when its terminal goes.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use server::Stop;
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

/// Whether a command hears SIGINT itself.
static HEARS_INTERRUPTS: AtomicBool = AtomicBool::new(false);
/// Whether it hears SIGTERM.
static HEARS_TERMINATIONS: AtomicBool = AtomicBool::new(false);

/// As the first process of a container, SIGINT and SIGTERM end this one until a command hears them itself: the kernel gives
/// a first process no signal that it has no handler for, so one that loads a model could not be stopped. Elsewhere both end
/// a process anyway, and this does nothing.
pub(crate) fn end_the_first_process() {
    if std::process::id() != 1 {
        return;
    }
    // Without a thread or descriptors for it the signals are lost, as they would be without this.
    let Ok(runtime) = runtime(0) else { return };
    let hear = move || {
        runtime.block_on(async {
            let (Ok(mut interrupt), Ok(mut terminate)) =
                (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
            else {
                return;
            };
            loop {
                let (kind, heard) = tokio::select! {
                    _ = interrupt.recv() => (SignalKind::interrupt(), &HEARS_INTERRUPTS),
                    _ = terminate.recv() => (SignalKind::terminate(), &HEARS_TERMINATIONS),
                };
                if !heard.load(Ordering::Relaxed) {
                    // What a shell says of a process that a signal has ended.
                    std::process::exit(128 + kind.as_raw_value());
                }
            }
        });
    };
    let _ = thread::Builder::new().name("signals".into()).spawn(hear);
}

/// Hears SIGTERM from now on. Call it inside a tokio runtime.
pub(crate) fn terminations() -> io::Result<Signal> {
    let hears = signal(SignalKind::terminate())?;
    HEARS_TERMINATIONS.store(true, Ordering::Relaxed);
    Ok(hears)
}

/// What ends a server, by either signal and by SIGHUP. Call it inside a tokio runtime.
pub(crate) fn stop() -> io::Result<Stop> {
    let stop = Stop::on_signals()?;
    HEARS_INTERRUPTS.store(true, Ordering::Relaxed);
    HEARS_TERMINATIONS.store(true, Ordering::Relaxed);
    Ok(stop)
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
        let ends = Ends { interrupt: signal(SignalKind::interrupt())?, hangup: server::hangups()?, hung_up: false };
        HEARS_INTERRUPTS.store(true, Ordering::Relaxed);
        Ok(ends)
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
