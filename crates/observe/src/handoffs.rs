//! Prompts that went from one worker to another, counted.

use scheduler::router::Role;

/// How a prompt that others might have read was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandoffOutcome {
    /// All blocks came.
    Whole,
    /// Some came, and the rest was computed here.
    InPart,
    /// No prefill worker was there, or all refused.
    Refused,
    /// Every offer was later than this worker's own estimate.
    Slower,
    /// It began, and no block came.
    Lost,
    /// Its client left meanwhile.
    Cancelled,
}

impl HandoffOutcome {
    /// All of them.
    pub const ALL: [HandoffOutcome; 6] = [
        HandoffOutcome::Whole,
        HandoffOutcome::InPart,
        HandoffOutcome::Refused,
        HandoffOutcome::Slower,
        HandoffOutcome::Lost,
        HandoffOutcome::Cancelled,
    ];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            HandoffOutcome::Whole => "whole",
            HandoffOutcome::InPart => "in_part",
            HandoffOutcome::Refused => "refused",
            HandoffOutcome::Slower => "slower",
            HandoffOutcome::Lost => "lost",
            HandoffOutcome::Cancelled => "cancelled",
        }
    }
}

/// What was handed over since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handoffs {
    /// Whose requests are taken.
    pub role: Role,
    /// Whether prompts may be read elsewhere, or are read for others.
    pub takes_part: bool,
    /// Prompts for which others were asked, by how that went, in the order of [`HandoffOutcome::ALL`].
    pub taken: [u64; 6],
    /// Bytes of blocks that came.
    pub bytes_taken: u64,
    /// Blocks that came and have a place here.
    pub blocks_taken: u64,
    /// Prompts that were read for others to their end, and those with a peer that left before.
    pub given: [u64; 2],
    /// Bytes of blocks that were sent.
    pub bytes_given: u64,
    /// Blocks that are kept for others now.
    pub kept_blocks: u64,
    /// First tokens that two workers drew differently. More than 0: one of them computes wrong.
    pub mismatches: u64,
}
