//! Pinned answers and reads: the records of [`crate::pin`].

use alloc::vec::Vec;

use super::{BlockId, ContentName};
use protocol::{Nanos, RequestId};

/// A finished answer with pinned blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinnedAnswer {
    /// The request.
    pub request: RequestId,
    /// The answer.
    pub answer: usize,
    /// The end of its lease.
    pub until: Nanos,
    /// Block `i` starts at token `i * block_size`: all full, computed blocks at its end that are not lost.
    pub blocks: Vec<BlockId>,
    /// Of a model with states: the content that ends before the prompt's last token. Its checkpoint is not pinned.
    pub(crate) prompt_end: Option<ContentName>,
}

/// A read of a block from outside; [`crate::Scheduler::read_ended`] ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRead {
    /// The request.
    pub request: RequestId,
    /// The answer.
    pub answer: usize,
    /// Its first token is `index * block_size`.
    pub index: usize,
    /// The block.
    pub block: BlockId,
}
