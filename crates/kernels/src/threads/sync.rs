//! What the pool is made of: the standard library's, or in its model those of `loom`, which tries every order in which
//! threads can meet.

#[cfg(all(test, loom))]
pub(super) use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, fence},
    sync::{Condvar, Mutex},
    thread::{Builder, JoinHandle, yield_now},
};
#[cfg(not(all(test, loom)))]
pub(super) use std::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, fence},
    sync::{Condvar, Mutex},
    thread::{Builder, JoinHandle, yield_now},
};

/// As in `loom`, which has to see where an access begins and ends.
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
