//! Patience of a test, and how little of a core it may get meanwhile.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Far beyond what anything takes on a busy machine: a test that waits in vain is one failure with a name.
const MOST: Duration = Duration::from_secs(300);

/// Waits for what must come.
///
/// What is waited for must stay: a test's thread may get no core for seconds, and a state that passes is then missed.
/// `TWOSTROKE_TEST_DELAY_MS` makes every wait look that much later and return that much later, which finds such tests.
///
/// # Panics
///
/// If it has not come within five minutes.
pub fn wait(what: &str, mut condition: impl FnMut() -> bool) {
    let delay = std::env::var("TWOSTROKE_TEST_DELAY_MS").ok().and_then(|ms| ms.parse().ok()).map(Duration::from_millis);
    delay.into_iter().for_each(sleep);
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < MOST, "waited in vain for {what}");
        sleep(Duration::from_millis(2));
    }
    delay.into_iter().for_each(sleep);
}
