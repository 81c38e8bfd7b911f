//! How a thread computes with floats, as every bit presumes it: to nearest, denormals kept, exceptions masked.
//!
//! It is a register of the thread that new threads inherit. A host process may have another: a library built with
//! `-ffast-math` makes the thread that loads it flush denormals, and some programs round up or down. So this crate's
//! own threads set it when they start, and what a host calls enters it and restores the host's on return.

use crate::arch::native;
use std::marker::PhantomData;

/// The calling thread computes as presumed until this is dropped; then as before. Costs a few cycles where it did so
/// anyway.
#[must_use = "the state lasts as long as this"]
pub struct DefaultFloats {
    before: u64,
    /// It is of one thread.
    _here: PhantomData<*const ()>,
}

impl DefaultFloats {
    /// Enters the state.
    pub fn enter() -> DefaultFloats {
        // Miri knows no such register.
        let before = if cfg!(miri) { native::DEFAULT_FLOATS } else { native::float_control() };
        set(before, native::DEFAULT_FLOATS);
        DefaultFloats { before, _here: PhantomData }
    }

    /// Sets it for good: for threads of our own.
    pub(crate) fn keep() {
        std::mem::forget(DefaultFloats::enter());
    }
}

impl Drop for DefaultFloats {
    fn drop(&mut self) {
        set(native::DEFAULT_FLOATS, self.before);
    }
}

fn set(from: u64, to: u64) {
    if from != to {
        native::set_float_control(to);
    }
}

/// Runs `f` as in a host that flushes denormals and rounds up: for tests.
#[doc(hidden)]
pub fn in_an_odd_host<R>(f: impl FnOnce() -> R) -> R {
    let before = native::float_control();
    native::set_float_control(native::ODD_FLOATS);
    let result = f();
    native::set_float_control(before);
    result
}

/// Whether the calling thread computes as [`in_an_odd_host`]: for tests.
#[doc(hidden)]
pub fn is_odd() -> bool {
    let [one, three, smallest] = [1.0f32, 3.0, f32::MIN_POSITIVE].map(std::hint::black_box);
    one / three > 1.0 / 3.0 || smallest / three == 0.0
}
