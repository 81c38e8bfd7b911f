//! Synchronization primitives of the pool: the standard library's, or in its model those of `loom`, which tries every
//! interleaving.

#[cfg(all(test, loom))]
pub(super) use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence},
    sync::{Condvar, Mutex},
    thread::{Builder, JoinHandle},
};
#[cfg(not(all(test, loom)))]
pub(super) use std::{
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence},
    sync::{Condvar, Mutex},
    thread::{Builder, JoinHandle},
};

/// The API of `loom`'s cell, which tracks where an access begins and ends.
#[cfg(not(all(test, loom)))]
pub(super) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(all(test, loom)))]
impl<T> UnsafeCell<T> {
    pub(super) fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    pub(super) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    pub(super) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// One spin-loop pause.
#[cfg(not(all(test, loom)))]
pub(super) fn spin() {
    std::hint::spin_loop();
}

#[cfg(all(test, loom))]
pub(super) fn spin() {
    loom::thread::yield_now();
}

/// Yields the core. True if another thread ran: a yield without one takes less than a microsecond.
#[cfg(not(all(test, loom)))]
pub(super) fn yield_now() -> bool {
    const SWITCH: std::time::Duration = std::time::Duration::from_micros(20);
    let before = std::time::Instant::now();
    std::thread::yield_now();
    before.elapsed() > SWITCH
}

#[cfg(all(test, loom))]
pub(super) fn yield_now() -> bool {
    loom::thread::yield_now();
    false
}

/// Sleeps for the shortest time that the system supports.
#[cfg(not(all(test, loom)))]
pub(super) fn nap() {
    std::thread::sleep(std::time::Duration::from_micros(20));
}

#[cfg(all(test, loom))]
pub(super) fn nap() {
    loom::thread::yield_now();
}

/// Nanoseconds of a monotonic clock.
#[cfg(not(all(test, loom)))]
pub(super) fn now() -> u64 {
    use std::sync::LazyLock;
    use std::time::Instant;
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    BEGAN.elapsed().as_nanos() as u64
}

#[cfg(all(test, loom))]
pub(super) fn now() -> u64 {
    0
}

/// Nanoseconds that the calling thread has run.
#[cfg(not(any(all(test, loom), miri)))]
pub(super) fn cpu_now() -> u64 {
    crate::cpu_time::thread_cpu().as_nanos() as u64
}

#[cfg(any(all(test, loom), miri))]
pub(super) fn cpu_now() -> u64 {
    0
}
