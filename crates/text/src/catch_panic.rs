//! Turns panics of the `tokenizers` crate into errors: the file or the text is bad.
//!
//! The panic hook prints a panic before it is caught. A binary's hook asks [`is_caught`] to stay silent for these.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Whether a panic on this thread would be caught and become an error.
pub fn is_caught() -> bool {
    DEPTH.get() > 0
}

/// The result of `work`; `None` if it panicked.
pub(crate) fn catch<T>(work: impl FnOnce() -> T) -> Option<T> {
    DEPTH.set(DEPTH.get() + 1);
    let done = catch_unwind(AssertUnwindSafe(work));
    DEPTH.set(DEPTH.get() - 1);
    done.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_knows_whether_it_is_caught() {
        assert_eq!(catch(|| catch(is_caught)), Some(Some(true)));
        assert_eq!(catch(|| [1, 2][usize::from(is_caught()) * 2]), None);
        assert!(!is_caught());
    }
}
