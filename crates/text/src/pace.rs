//! How long work on text lets others have a turn.
//!
//! Encoding a text of some megabytes takes a second. The code that does it calls [`pause`] after each window of the
//! text; whoever runs that code on a thread may have asked, with [`with`], to be called there: to let somebody else's
//! short text go first, or to say that nobody waits for the result any more. Without [`with`] a pause is nothing.
//!
//! The call goes through the thread and not through arguments, because between the two stand the engine's door, a chat
//! template and a serializer, none of which has anything to say about it.

use std::cell::RefCell;

use crate::error::TextError;

/// Text between two pauses: about a millisecond of work, at most some tens on inputs that are hard on tokenizers.
pub const WINDOW_BYTES: usize = 16 << 10;

type Turn = Box<dyn FnMut(usize) -> bool>;

thread_local! {
    static TURN: RefCell<Option<Turn>> = const { RefCell::new(None) };
}

/// Runs `work`; each [`pause`] in it, on this thread, calls `turn` with the bytes of text done since the last one.
/// `turn` returns when work may go on; `false`: the work is to be dropped.
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

/// A place where work may rest. `bytes`: of text done since the last pause. An error ends the work.
pub fn pause(bytes: usize) -> Result<(), TextError> {
    // Taken out for the call: it may wait for long, and may itself come by here.
    let Some(mut turn) = TURN.take() else { return Ok(()) };
    let go_on = turn(bytes);
    TURN.set(Some(turn));
    if go_on { Ok(()) } else { Err(TextError::Dropped) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_asks_whoever_runs_the_work() {
        assert_eq!(pause(7), Ok(()));
        let done = with(|bytes| bytes < 10, || [pause(3), pause(12), pause(1)]);
        assert_eq!(done, [Ok(()), Err(TextError::Dropped), Ok(())]);
        assert_eq!(pause(12), Ok(()));
    }
}
