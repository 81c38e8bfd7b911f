//! How much of the memory that this process may take the KV cache gets.
//!
//! ```text
//! room |  weights  |      KV cache: half of the rest, or what all seats can use      |  everything else: at least a reserve  |
//! ```
//! Where half is less than the shortest context that is of use, the cache gets that, as long as the reserve stays.
//! Which limit decides the room, and what is left of it, is found by [`kernels::memory_limits`].

use kernels::memory_limits::{Headroom, Limit, headroom};

/// Share of the free memory that the KV cache takes by default.
const SHARE: f64 = 0.5;
/// What is left for requests, text and stacks: the server of a small model takes some 45 MiB for them under load.
const RESERVE: u64 = 64 << 20;
/// The same in mapped memory: stacks and what the allocator holds, touched or not.
const MAPPED_RESERVE: u64 = 128 << 20;

/// Bytes that can be allocated without swapping or reaching a limit of this process, or `None` where the system does
/// not say.
pub fn available_bytes() -> Option<u64> {
    Some(headroom()?.bytes)
}

/// What the size of a cache follows from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wants {
    pub(crate) weight_bytes: u64,
    pub(crate) block_bytes: u64,
    /// What a pass holds besides.
    pub(crate) activation_bytes: u64,
    /// Blocks without which it is of no use.
    pub(crate) fewest: u64,
    /// Blocks beyond which it is of no more use.
    pub(crate) most: u64,
}

/// A cache is of no use in what there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TooLittle {
    /// Bytes that the smallest one needs with everything else.
    pub(crate) needed: u64,
    pub(crate) room: Headroom,
}

/// Bytes that a cache can have beside everything else.
pub(crate) fn beside(wants: &Wants, room: &Headroom) -> u64 {
    room.bytes.saturating_sub(wants.weight_bytes).saturating_sub(reserve(wants, &room.limit))
}

fn reserve(wants: &Wants, limit: &Limit) -> u64 {
    let rest = match limit {
        Limit::Machine | Limit::Group { .. } | Limit::Device { .. } => RESERVE,
        Limit::AddressSpace { .. } | Limit::Data { .. } => MAPPED_RESERVE,
    };
    wants.activation_bytes.saturating_add(rest)
}

/// Blocks of a cache without a chosen size.
pub(crate) fn blocks(wants: &Wants, room: &Headroom) -> Result<u64, TooLittle> {
    let free = room.bytes.saturating_sub(wants.weight_bytes);
    let within = |bytes: u64| bytes / wants.block_bytes.max(1);
    let (half, all) = (within((free as f64 * SHARE) as u64), within(beside(wants, room)));
    let blocks = half.max(wants.fewest).min(wants.most.max(wants.fewest)).min(all);
    if blocks >= wants.fewest {
        return Ok(blocks);
    }
    let needed = wants.fewest.saturating_mul(wants.block_bytes).saturating_add(wants.weight_bytes);
    Err(TooLittle { needed: needed.saturating_add(reserve(wants, &room.limit)), room: room.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_gets_half_of_the_rest_or_less_and_is_never_useless() {
        const MIB: u64 = 1 << 20;
        let reserve = RESERVE / MIB + 36;
        // Room, weights, fewest and most blocks of 1 MiB; what it gets.
        let table = [
            (10_000, 2_000, 10, 1 << 40, Some(4_000)),
            (10_000, 2_000, 10, 300, Some(300)),
            (1_000, 0, 10, 1 << 40, Some(500)),
            // Half of the rest would leave less than the reserve.
            (reserve + 50, 0, 10, 1 << 40, Some(50)),
            // Half would be too little, and there is more.
            (reserve + 160, 0, 140, 1 << 40, Some(140)),
            (reserve + 160, 0, 160, 1 << 40, Some(160)),
            (reserve + 160, 0, 161, 1 << 40, None),
            (reserve, 0, 1, 1 << 40, None),
            (1_000, 2_000, 1, 1 << 40, None),
            (0, 0, 1, 1, None),
        ];
        for (room, weights, fewest, most, expected) in table {
            let (weight_bytes, activation_bytes) = (weights * MIB, 36 * MIB);
            let wants = Wants { weight_bytes, block_bytes: MIB, activation_bytes, fewest, most };
            let room = Headroom { bytes: room * MIB, limit: Limit::Machine };
            assert_eq!(blocks(&wants, &room).ok(), expected, "{room:?} {wants:?}");
            // What is mapped counts in a limit of the process's own, so more of it must be left.
            let mapped = room.bytes + MAPPED_RESERVE - RESERVE;
            let mapped = Headroom { bytes: mapped, limit: Limit::AddressSpace { bytes: 1 } };
            assert_eq!(beside(&wants, &mapped), beside(&wants, &room));
        }
        let activation_bytes = 36 * MIB;
        let wants = Wants { weight_bytes: 5 * MIB, block_bytes: MIB, activation_bytes, fewest: 7, most: 9 };
        let room = Headroom { bytes: 0, limit: Limit::Machine };
        assert_eq!(blocks(&wants, &room), Err(TooLittle { needed: (12 + reserve) * MIB, room }));
    }
}
