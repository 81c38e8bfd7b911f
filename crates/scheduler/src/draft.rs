//! Draft proposals and their acceptance counts: the types of [`crate::speculate`].

use crate::SeqId;

/// A drafter, as far as acceptance statistics distinguish them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DraftSource(pub u8);

/// Drafts available for a decoding sequence. The scheduler never sees the tokens: it plans how many to verify, and
/// learns how many were accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftProposal {
    /// The sequence that they continue.
    pub seq: SeqId,
    /// The drafter; below [`DraftProposal::SOURCES`].
    pub source: DraftSource,
    /// Draft tokens available.
    pub len: u16,
    /// Confidence level of the drafter, the highest last; below [`DraftProposal::STRENGTHS`].
    pub strength: u8,
}

impl DraftProposal {
    /// Number of drafters.
    pub const SOURCES: usize = 8;
    /// Number of confidence levels of a drafter.
    pub const STRENGTHS: usize = 8;
}

/// Probability one in fixed point.
pub(crate) const SURE: u64 = 1 << 16;

/// Accepted and verified drafts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AcceptanceCounts {
    held: u32,
    tried: u32,
}

impl AcceptanceCounts {
    pub(crate) fn note(&mut self, held: bool, memory: u32) {
        self.held += u32::from(held);
        self.tried += 1;
        if self.tried >= memory {
            *self = AcceptanceCounts { held: self.held / 2, tried: self.tried / 2 };
        }
    }

    /// Acceptance probability, with a prior of `weight` drafts of which the fraction `before` was accepted.
    pub(crate) fn chance(&self, before: u64, weight: u64) -> u64 {
        (u64::from(self.held) * SURE + weight * before) / (u64::from(self.tried) + weight)
    }
}
