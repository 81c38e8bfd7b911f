//! Sizes and bounds of a scheduler, fixed at start.

use core::fmt;

use crate::StateSizes;
use crate::sequence::SequenceBounds;

/// Sizes and bounds.
#[derive(Clone)]
pub struct Limits {
    /// Tokens per block.
    pub block_size: usize,
    /// Blocks of the pool.
    pub num_blocks: usize,
    /// Maximum tokens of a sequence, prompt and answer.
    pub max_model_len: usize,
    /// Maximum running sequences. Every answer of a request counts from the moment it enters.
    pub max_num_seqs: usize,
    /// Rows of a step; at least `max_num_seqs`, so that every decoding sequence gets one.
    pub max_num_batched_tokens: usize,
    /// Maximum rows of one prompt in a step.
    pub max_prefill_chunk: usize,
    /// Maximum prompts in a step.
    pub max_prefill_seqs: usize,
    /// Maximum requests that wait for their first step.
    pub max_queued_requests: usize,
    /// Maximum prompt tokens of those. An empty queue takes any prompt.
    pub max_queued_tokens: usize,
    /// Whether blocks of equal prefixes are shared.
    pub enable_prefix_caching: bool,
    /// Slots for states, of a model that has layers with states.
    pub states: Option<StateSizes>,
    /// All rows of a prompt are in one step: an encoder's tokens see each other. Then a step holds any prompt, and no
    /// prefix is shared.
    pub whole_prompts: bool,
    /// Key of the block hashes: random per engine start.
    pub hash_key: [u8; 32],
}

impl fmt::Debug for Limits {
    /// All fields but the key, which is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limits")
            .field("block_size", &self.block_size)
            .field("num_blocks", &self.num_blocks)
            .field("max_model_len", &self.max_model_len)
            .field("max_num_seqs", &self.max_num_seqs)
            .field("max_num_batched_tokens", &self.max_num_batched_tokens)
            .field("max_prefill_chunk", &self.max_prefill_chunk)
            .field("max_prefill_seqs", &self.max_prefill_seqs)
            .field("max_queued_requests", &self.max_queued_requests)
            .field("max_queued_tokens", &self.max_queued_tokens)
            .field("enable_prefix_caching", &self.enable_prefix_caching)
            .field("states", &self.states)
            .field("whole_prompts", &self.whole_prompts)
            .finish_non_exhaustive()
    }
}

/// Why limits are invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitsError {
    /// This limit is 0.
    Zero {
        /// The field.
        limit: &'static str,
    },
    /// A step could not hold one row for every running sequence.
    StepTooSmall {
        /// Rows of a step.
        max_num_batched_tokens: usize,
        /// Sequences that run together.
        max_num_seqs: usize,
    },
    /// A running sequence needs a slot that a step reads and one that it writes, and states are kept at the ends of
    /// blocks.
    States {
        /// Slots and interval.
        states: StateSizes,
        /// Slots needed.
        least_slots: usize,
        /// Tokens per block.
        block_size: usize,
    },
    /// Whole prompts fit no step, or a part of one might be found in the cache.
    WholePrompts,
    /// Blocks are counted in 32 bits.
    TooManyBlocks {
        /// Blocks requested.
        num_blocks: usize,
    },
}

impl fmt::Display for LimitsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LimitsError::Zero { limit } => write!(f, "{limit} must be at least 1"),
            LimitsError::StepTooSmall { max_num_batched_tokens, max_num_seqs } => write!(
                f,
                "max_num_batched_tokens ({max_num_batched_tokens}) must be at least max_num_seqs ({max_num_seqs}): \
                 every running sequence needs a row in each step"
            ),
            LimitsError::States { states: StateSizes { slots, interval }, least_slots, block_size } => write!(
                f,
                "{slots} slots for states, kept each {interval} tokens: at least {least_slots} slots are needed (two for \
                 each running sequence), and an interval of whole blocks of {block_size} tokens"
            ),
            LimitsError::WholePrompts => f.write_str(
                "where prompts are read at once, a step has a row for each token of the longest sequence, and prefixes are \
                 not shared",
            ),
            LimitsError::TooManyBlocks { num_blocks } => {
                write!(f, "{num_blocks} KV blocks are too many: slots are counted in 32 bits")
            }
        }
    }
}

impl core::error::Error for LimitsError {}

impl Limits {
    /// KV blocks that a request holds at its maximum length; it is rejected if there are fewer. The last token of an
    /// answer is never computed; answers share the prompt's full blocks.
    pub fn blocks_needed(&self, prompt_tokens: usize, max_tokens: usize, num_answers: usize) -> usize {
        let bounds = SequenceBounds::new(prompt_tokens, max_tokens, self.max_model_len);
        bounds.blocks_of_answers(num_answers, self.block_size)
    }

    /// Upper bound for limits from files or flags. 2M blocks of 32 tokens at a small model's 12 KiB per token are some
    /// 800 GB; their bookkeeping takes a few hundred megabytes.
    pub const MOST_BLOCKS: usize = 1 << 21;
    /// Upper bound of slots for states.
    pub const MOST_STATES: usize = 1 << 20;
    /// Upper bound of rows per step.
    pub const MOST_ROWS: usize = 1 << 18;
    /// Upper bound of running sequences.
    pub const MOST_SEQS: usize = 1 << 16;
    /// Upper bound of tokens per sequence.
    pub const MOST_TOKENS: usize = 1 << 24;

    pub(crate) fn check(&self) -> Result<(), LimitsError> {
        let at_least_one = [
            ("block_size", self.block_size),
            ("num_blocks", self.num_blocks),
            ("max_model_len", self.max_model_len),
            ("max_num_seqs", self.max_num_seqs),
            ("max_num_batched_tokens", self.max_num_batched_tokens),
            ("max_prefill_chunk", self.max_prefill_chunk),
            ("max_prefill_seqs", self.max_prefill_seqs),
            ("max_queued_requests", self.max_queued_requests),
            ("max_queued_tokens", self.max_queued_tokens),
        ];
        if let Some((limit, _)) = at_least_one.into_iter().find(|&(_, value)| value == 0) {
            return Err(LimitsError::Zero { limit });
        }
        let &Limits { num_blocks, block_size, max_num_batched_tokens, max_num_seqs, .. } = self;
        if let Some(states) = self.states {
            let least_slots = max_num_seqs.saturating_mul(2);
            let StateSizes { slots, interval } = states;
            if slots < least_slots || slots >= u32::MAX as usize || interval == 0 || interval % block_size != 0 {
                return Err(LimitsError::States { states, least_slots, block_size });
            }
        }
        let most_rows = max_num_batched_tokens.min(self.max_prefill_chunk);
        if self.whole_prompts && (most_rows < self.max_model_len || self.enable_prefix_caching) {
            return Err(LimitsError::WholePrompts);
        }
        if max_num_batched_tokens < max_num_seqs {
            return Err(LimitsError::StepTooSmall { max_num_batched_tokens, max_num_seqs });
        }
        if num_blocks.checked_mul(self.block_size).is_none_or(|slots| slots >= u32::MAX as usize) {
            return Err(LimitsError::TooManyBlocks { num_blocks });
        }
        Ok(())
    }
}
