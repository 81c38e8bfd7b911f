//! Chained block hashes, and the index from a hash to the place of that content.
//!
//! ```text
//! h0 = H(key; root, salt, tokens[0..B])      h1 = H(key; h0, salt, tokens[B..2B])      ...
//! ```
//!
//! A hash covers a block's tokens *and everything before them*, because keys and values depend on the whole prefix
//! (automatic prefix caching in vLLM). The hash is keyed BLAKE3 with a key drawn at start, so a client cannot construct
//! collisions; and a hit must match parent, salt and token ids, so a collision only costs a miss.

use alloc::vec;
use alloc::vec::Vec;

use protocol::TokenId;

/// Hash of a block's content: its tokens, its salt and all that precede it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockHash(pub [u8; 32]);

impl BlockHash {
    /// The parent of a first block.
    pub const ROOT: BlockHash = BlockHash([0; 32]);

    /// The first 64 bits, as a numeric name.
    pub fn short(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    fn home(&self) -> usize {
        self.short() as usize
    }
}

/// Computes [`BlockHash`]es.
#[derive(Clone)]
pub struct ChainHasher {
    key: [u8; 32],
    bits: usize,
}

impl ChainHasher {
    /// Full 256-bit hashes under `key`.
    pub fn new(key: [u8; 32]) -> ChainHasher {
        ChainHasher { key, bits: 256 }
    }

    /// For tests of collisions: keeps only the first `bits` bits of every hash.
    #[doc(hidden)]
    pub fn truncated(key: [u8; 32], bits: usize) -> ChainHasher {
        assert!(bits <= 256);
        ChainHasher { key, bits }
    }

    /// The hash of a full block. Cost: one blake3 compression per 16 tokens, about 60 ns each; allocates nothing.
    pub fn hash(&self, parent: BlockHash, salt: u64, tokens: &[TokenId]) -> BlockHash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        // In large pieces, because a call costs as much as hashing some tokens.
        let mut bytes = [0; PIECE];
        bytes[..32].copy_from_slice(&parent.0);
        bytes[32..40].copy_from_slice(&salt.to_le_bytes());
        let mut len = 40;
        let mut rest = tokens;
        loop {
            let (now, later) = rest.split_at(rest.len().min((PIECE - len) / 4));
            for (place, token) in bytes[len..].chunks_exact_mut(4).zip(now) {
                place.copy_from_slice(&token.to_le_bytes());
            }
            hasher.update(&bytes[..len + now.len() * 4]);
            (rest, len) = (later, 0);
            if rest.is_empty() {
                break;
            }
        }
        let mut hash = *hasher.finalize().as_bytes();
        if self.bits < 256 {
            for (index, byte) in hash.iter_mut().enumerate() {
                let kept = self.bits.saturating_sub(index * 8).min(8);
                *byte &= ((1u16 << kept) - 1) as u8;
            }
        }
        BlockHash(hash)
    }
}

/// Bytes hashed per call.
const PIECE: usize = 1024;

/// Hash -> place of that content, or another value. Open addressing with linear probing and no tombstones (Knuth, TAOCP
/// 6.4, algorithm R), sized once for all places: it never allocates or rehashes later, and its keys need no further
/// hashing.
pub(super) struct PrefixIndex<P> {
    entries: Vec<Option<(BlockHash, P)>>,
    len: usize,
}

impl<P: Copy> PrefixIndex<P> {
    /// An index for at most `num_places` contents.
    pub(super) fn new(num_places: usize) -> PrefixIndex<P> {
        PrefixIndex { entries: vec![None; (num_places * 2).next_power_of_two()], len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, hash: &BlockHash) -> Option<P> {
        self.entries[self.slot_of(hash)].map(|(_, place)| place)
    }

    pub(super) fn insert(&mut self, hash: BlockHash, place: P) {
        let slot = self.slot_of(&hash);
        assert!(self.entries[slot].is_none(), "a hash names one content");
        self.entries[slot] = Some((hash, place));
        self.len += 1;
    }

    /// Inserts or relocates.
    pub(super) fn set(&mut self, hash: BlockHash, place: P) {
        let slot = self.slot_of(&hash);
        self.len += usize::from(self.entries[slot].is_none());
        self.entries[slot] = Some((hash, place));
    }

    /// Moves the content of `hash` to `place`.
    pub(super) fn relocate(&mut self, hash: &BlockHash, place: P) {
        let slot = self.slot_of(hash);
        self.entries[slot].as_mut().expect("relocating a hash that is not there").1 = place;
    }

    pub(super) fn remove(&mut self, hash: &BlockHash) {
        let mut hole = self.slot_of(hash);
        assert!(self.entries[hole].take().is_some(), "removing a hash that is not there");
        self.len -= 1;
        // Moves later entries into the hole, but none before its home.
        let mask = self.entries.len() - 1;
        let mut slot = hole;
        loop {
            slot = (slot + 1) & mask;
            let Some((hash, _)) = &self.entries[slot] else { break };
            let from_home = slot.wrapping_sub(hash.home()) & mask;
            let from_hole = slot.wrapping_sub(hole) & mask;
            if from_home >= from_hole {
                self.entries[hole] = self.entries[slot].take();
                hole = slot;
            }
        }
    }

    /// The entry of `hash`, or the empty entry where it belongs. At most half of the entries are used, so there is one.
    fn slot_of(&self, hash: &BlockHash) -> usize {
        let mask = self.entries.len() - 1;
        let mut slot = hash.home() & mask;
        loop {
            match &self.entries[slot] {
                Some((there, _)) if there != hash => slot = (slot + 1) & mask,
                _ => return slot,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use super::*;
    use crate::BlockId;
    use crate::kv::Location;

    #[test]
    fn the_index_is_a_map() {
        // With 4 bits and 32 entries, probe sequences overlap and wrap around.
        let hasher = ChainHasher::truncated([7; 32], 4);
        let mut index = PrefixIndex::new(16);
        let mut model = BTreeMap::new();
        let mut dice = testing::Dice::new(1);
        for step in 0..10_000u32 {
            let hash = hasher.hash(BlockHash::ROOT, 0, &[dice.roll(64) as u32]);
            let place = Location::Block(BlockId(step % 1000));
            match model.remove(&hash) {
                Some(_) if step % 3 == 0 => {
                    index.relocate(&hash, place);
                    model.insert(hash, place);
                }
                Some(_) => index.remove(&hash),
                None => {
                    index.insert(hash, place);
                    model.insert(hash, place);
                }
            }
            assert_eq!(index.len(), model.len());
            for key in model.keys() {
                assert_eq!(index.get(key), model.get(key).copied(), "step {step}");
            }
            assert_eq!(index.get(&hash), model.get(&hash).copied(), "step {step}");
        }
    }

    #[test]
    fn a_hash_depends_on_key_parent_salt_and_every_token() {
        let hasher = ChainHasher::new([1; 32]);
        let hash = hasher.hash(BlockHash::ROOT, 5, &[1, 2, 3]);
        assert_eq!(hash, hasher.hash(BlockHash::ROOT, 5, &[1, 2, 3]));
        assert_ne!(hash, ChainHasher::new([2; 32]).hash(BlockHash::ROOT, 5, &[1, 2, 3]));
        assert_ne!(hash, hasher.hash(hash, 5, &[1, 2, 3]));
        assert_ne!(hash, hasher.hash(BlockHash::ROOT, 6, &[1, 2, 3]));
        for tokens in [[0, 2, 3], [1, 0, 3], [1, 2, 0]] {
            assert_ne!(hash, hasher.hash(BlockHash::ROOT, 5, &tokens));
        }
    }
}
