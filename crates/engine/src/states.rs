//! How many slots there are for states, and how often states are kept.
//!
//! ```text
//! slots | two for each seat: what a step reads, what it writes | checkpoints: one for each interval of the KV cache |
//! ```
//! A checkpoint takes as much memory as the keys and values of one interval, so that prefixes cost at most twice what
//! they cost a model without states, and a hit recomputes at most an interval.

use kernels::memory_limits::Headroom;
use model::ModelConfig;
use scheduler::StateSizes;

use crate::EngineOptions;

/// What the states of a model take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateRoom {
    /// Bytes of a slot.
    bytes: u64,
    /// Tokens from checkpoint to checkpoint.
    interval: usize,
    seats: usize,
    block_size: usize,
}

impl StateRoom {
    /// `None` for a model without states.
    pub(crate) fn of(config: &ModelConfig, options: &EngineOptions) -> Option<StateRoom> {
        let bytes = 4 * config.state_numbers() as u64;
        let block_size = options.block_size;
        let block_bytes = config.cache_shape(options.kv_dtype, 1, block_size).bytes().max(1) as u64;
        let interval = bytes.div_ceil(block_bytes).max(1) as usize * block_size;
        (bytes > 0).then_some(StateRoom { bytes, interval, seats: options.max_num_seqs, block_size })
    }

    /// Bytes of the slots of all seats.
    pub(crate) fn fixed_bytes(&self) -> u64 {
        (2 * self.seats as u64).saturating_mul(self.bytes)
    }

    /// Bytes of checkpoints for each block of the cache.
    pub(crate) fn bytes_per_block(&self) -> u64 {
        (self.bytes * self.block_size as u64).div_ceil(self.interval as u64)
    }

    /// The slots beside a cache of this number of blocks.
    pub(crate) fn sizes(&self, blocks: usize) -> StateSizes {
        StateSizes { slots: 2 * self.seats + blocks * self.block_size / self.interval, interval: self.interval }
    }
}

/// Share of the free memory that the states of running sequences may take.
const SHARE: u64 = 4;

/// Sequences that may run together: as many as were asked for, or as many as there is memory for the states of.
pub(crate) fn seats(config: &ModelConfig, options: &EngineOptions, room: Option<&Headroom>) -> usize {
    let (Some(room), Some(states)) = (room, StateRoom::of(config, options)) else { return options.max_num_seqs };
    let free = room.bytes.saturating_sub(config.weight_bytes_in_memory(options.weights, options.expert_memory)) / SHARE;
    let most = usize::try_from(free / (2 * states.bytes)).unwrap_or(usize::MAX);
    options.max_num_seqs.min(most.max(1))
}
