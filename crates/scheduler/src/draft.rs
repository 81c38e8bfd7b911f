//! What drafts are told apart by, and how often they held: the words of [`crate::speculate`].

use crate::SeqId;

/// Where drafts come from, told apart by how often they hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(pub u8);

/// Guesses that could be had for a decoding sequence. The scheduler never sees which: it plans how many, and learns
/// how many held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Whose next tokens.
    pub seq: SeqId,
    /// Who guesses; below [`Offer::SOURCES`].
    pub source: SourceId,
    /// How many guesses at most.
    pub len: u16,
    /// How sure the source is, in steps of its own, the surest last; below [`Offer::STRENGTHS`].
    pub strength: u8,
}

impl Offer {
    /// Sources that can be told apart.
    pub const SOURCES: usize = 8;
    /// Strengths of a source that can be told apart.
    pub const STRENGTHS: usize = 8;
}

/// One, in the unit of chances.
pub(crate) const SURE: u64 = 1 << 16;

/// How often guesses held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tries {
    held: u32,
    tried: u32,
}

impl Tries {
    pub(crate) fn note(&mut self, held: bool, memory: u32) {
        self.held += u32::from(held);
        self.tried += 1;
        if self.tried >= memory {
            *self = Tries { held: self.held / 2, tried: self.tried / 2 };
        }
    }

    /// With `weight` further guesses of which the share `before` held.
    pub(crate) fn chance(&self, before: u64, weight: u64) -> u64 {
        (u64::from(self.held) * SURE + weight * before) / (u64::from(self.tried) + weight)
    }
}
