//! Whole runs of the scheduler, in which every nanosecond must have an owner.

mod allocations;
mod owners;
