//! The limits of the machine, measured while a chat waits for a line.
//!
//! ```text
//! line editor   >>> .................... W h a t            >>> W h a t
//! measurement       [pause][measured]    (all of it: kept)      [pause][..|  a key: nothing of it is kept
//! ```
//! Until all of it was measured, the line under an answer has no shares of limits, unless an earlier start has measured.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::figures;
use crate::flags::ModelFlags;

/// So long nothing is typed before a measurement begins: lines that were typed during the answer need none of it.
const PAUSE: Duration = Duration::from_millis(300);

/// Waits by `wait`, and measures beside it until `is_typed` becomes true or the wait ends: within some milliseconds nothing
/// else uses the cores.
pub(super) fn beside<T>(flags: &ModelFlags, is_typed: &AtomicBool, wait: impl FnOnce() -> T) -> T {
    is_typed.store(false, Ordering::Relaxed);
    let goes_on = || !is_typed.load(Ordering::Relaxed);
    thread::scope(|scope| {
        let measure = || {
            thread::park_timeout(PAUSE);
            if goes_on() {
                // Where there is no memory for it, lines have no shares.
                let _ = figures::limits_in_peace(flags, &goes_on);
            }
        };
        let measuring = thread::Builder::new().name("limits".into()).spawn_scoped(scope, measure);
        let waited = wait();
        is_typed.store(true, Ordering::Relaxed);
        if let Ok(measuring) = measuring {
            measuring.thread().unpark();
        }
        waited
    })
}
