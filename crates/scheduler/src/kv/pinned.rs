//! Blocks that something outside reads or will come for: the records of [`crate::keep`].

use alloc::vec::Vec;

use super::BlockId;
use crate::{Nanos, RequestId};

/// A finished answer whose blocks are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptAnswer {
    /// Whose answer.
    pub request: RequestId,
    /// Which.
    pub answer: usize,
    /// The end of its lease.
    pub until: Nanos,
    /// Block `i` has its tokens from `i * block_size` on: all that were full and computed at its end, as far as they
    /// are not lost.
    pub blocks: Vec<BlockId>,
}

/// A block that is being read from outside; [`crate::Scheduler::read_ended`] takes it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRead {
    /// Whose.
    pub request: RequestId,
    /// Which answer's.
    pub answer: usize,
    /// Its tokens begin at `index * block_size`.
    pub index: usize,
    /// Where they are.
    pub block: BlockId,
}
