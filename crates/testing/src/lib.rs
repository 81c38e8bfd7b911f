//! What the tests of several crates share. A dev-dependency: nothing here is built for users.
//!
//! ```text
//! dice.rs      chance from a seed                          plans.rs    limits, requests and a machine for a scheduler
//! scratch.rs   a directory that goes with its test         mutate.rs   one change to a file, by its format
//! long.rs      how much of a long table is tried           corpus.rs   fuzz/corpus and changes to it, through a door
//! golden.rs    digests that are committed           wait.rs     patience, and its opposite on purpose
//! questions.rs questions for a plan             hub.rs      a hub on this machine, of fixed answers
//! ```
//!
//! It depends on `scheduler` and below, so that no test waits for more of the tree to be built. A crate's unit tests are
//! compiled with types of their own: those of `scheduler` take from here only what names none of its types.

#[cfg(feature = "mutate")]
pub mod corpus;
mod dice;
mod golden;
pub mod hub;
mod long;
#[cfg(feature = "mutate")]
pub mod mutate;
pub mod plans;
mod questions;
mod scratch;
mod wait;

pub use dice::Dice;
pub use golden::Golden;
pub use long::{is_long, one_of, part_of};
pub use questions::plan_question;
pub use scratch::{Scratch, lantern, root};
pub use wait::wait;

/// Peak resident memory of this process in KiB.
pub fn peak_memory_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("the system tells");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("the system tells");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
}
