//! Yield points of long work on text.
//!
//! Encoding a text of some megabytes takes a second. The encoder calls [`yield_point`] after each window of the text.
//! The caller may install a callback for its thread with [`with`]: it can let a shorter text go first, or cancel work
//! whose client is gone. Without [`with`] it is a no-op.
//!
//! The callback is thread-local and not an argument, because request validation, a chat template and a serializer lie
//! between the two and have no use for it.

use std::cell::RefCell;

use crate::error::TextError;

/// Text between two yield points: about 1 ms of work, some tens of ms on inputs that are hard on tokenizers.
pub const WINDOW_BYTES: usize = 16 << 10;

type Turn = Box<dyn FnMut(usize) -> bool>;

thread_local! {
    static TURN: RefCell<Option<Turn>> = const { RefCell::new(None) };
}

/// Runs `work`; each [`yield_point`] in it, on this thread, calls `turn` with the bytes of text processed since the
/// last one. `turn` returns when work may continue; `false` cancels it.
pub fn with<T>(turn: impl FnMut(usize) -> bool + 'static, work: impl FnOnce() -> T) -> T {
    struct Restore(Option<Turn>);
    impl Drop for Restore {
        fn drop(&mut self) {
            let before = self.0.take();
            TURN.with_borrow_mut(|current| *current = before);
        }
    }
    let _restore = Restore(TURN.replace(Some(Box::new(turn))));
    work()
}

/// A yield point. `bytes`: text processed since the last one. An error cancels the work.
pub fn yield_point(bytes: usize) -> Result<(), TextError> {
    // Taken out for the call, which may block for long and may reach a yield point itself.
    let Some(mut turn) = TURN.take() else { return Ok(()) };
    let go_on = turn(bytes);
    TURN.set(Some(turn));
    if go_on { Ok(()) } else { Err(TextError::Dropped) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_yield_point_asks_the_callback_of_its_thread() {
        assert_eq!(yield_point(7), Ok(()));
        let done = with(|bytes| bytes < 10, || [yield_point(3), yield_point(12), yield_point(1)]);
        assert_eq!(done, [Ok(()), Err(TextError::Dropped), Ok(())]);
        assert_eq!(yield_point(12), Ok(()));
    }
}
