//! The KV cache as a pool of fixed-size blocks (PagedAttention: Kwon et al., SOSP 2023).
//!
//! ```text
//! sequence A  [ 7 | 2 | 9 ]      block table: position / block_size -> block
//! sequence B  [ 7 | 4 ]          block 7 is a shared prefix: refs = 2
//! pool        free: 0 1 3 5 6 8  plain ones first, then cached ones, least worth keeping first
//! tiers       slots in host memory and on disk, for contents of evicted blocks
//! index       hash(parent, salt, tokens) -> block or slot, for full, computed blocks
//! ```
//!
//! Invariants: a block is in the free list with refs = 0, or held with refs = the tables naming it. An indexed block is
//! never written. A content is in one place. A hit compares parent, salt and every token id, not only the hash. This
//! module counts blocks and never touches bytes; those are the kernels' `KvCache` and the engine's tiers.

mod block;
mod idle;
mod list;
mod pinned;
mod pool;
mod prefix;
mod returns;
mod seen;
mod states;
mod tiers;

pub(crate) use block::blocks_for;
pub use block::{BlockId, BlockTable, PrefixStats};
pub use pinned::{BlockRead, PinnedAnswer};
pub use pool::CacheEvent;
pub(crate) use pool::{BlockPool, ContentName, FullBlock, Hit, Location, Uses};
pub use prefix::{BlockHash, ChainHasher};
pub(crate) use seen::{Fate, Taker, common_len};
pub use states::{StateSizes, StateSlot, StateUse};
pub use tiers::{BlockSave, SlotSpill, SwapStats, Tier, TierSizes, TierSlot};

#[cfg(test)]
mod tests;
