//! What prompts and answers were, block by block, and where those blocks went: so that a miss has a reason.
//!
//! ```text
//! ring     | salt | block | block | tail | block, evicted at t by R | ...    the oldest entry is overwritten
//! index    a block's hash or a salt -> its entry; and as a parent -> its newest child -> the next older one -> ...
//! ```
//!
//! A salt belongs to one tenant, and every path begins with a salt or with the salts of one tenant: what one tenant is
//! told never depends on what another one sent. Memory is fixed; an entry is written when a block
//! becomes full, and read when a prompt enters.

use alloc::vec;
use alloc::vec::Vec;
use core::iter::successors;

use super::BlockHash;
use super::prefix::PrefixIndex;
use super::returns::{Pace, Returns};
use crate::Request;
use protocol::{Nanos, RequestId, TokenId};

/// Entries at least and at most; between them two per place of a content.
const ENTRIES: [usize; 2] = [256, 32_768];
/// Children of a block that are compared, and other salts of a tenant: the newest.
const MOST_CHILDREN: usize = 64;
const MOST_SALTS: usize = 8;
/// Blocks behind a prompt in which the end of its conversation is looked for: templates may leave the last answer's
/// thoughts out.
const MOST_BEHIND: usize = 256;

/// Who takes a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taker {
    pub(crate) request: RequestId,
    pub(crate) tenant: u64,
}

impl Taker {
    pub(crate) fn of(request: &Request) -> Option<Taker> {
        Some(Taker { request: request.id, tenant: request.tenant })
    }
}

/// What became of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Nothing: it is in the pool or in a tier.
    Held,
    /// Its place was needed.
    Evicted(Nanos, Option<Taker>),
    /// Its tier could not be read, or was given up.
    Lost(Nanos),
}

#[derive(Clone, Copy)]
struct Entry {
    /// `None` of a tail: tokens of an ended sequence that did not fill a block.
    name: Option<BlockHash>,
    /// `None` if only its fate is known.
    parent: Option<BlockHash>,
    /// The next older child of its parent.
    older: Option<u64>,
    salt: u64,
    len: usize,
    fate: Fate,
    /// A sequence ended here, or behind it in a tail, and none came back for it yet.
    end: Option<Pace>,
}

pub(crate) struct Seen {
    block_size: usize,
    most: u64,
    /// Entries ever written; number `n` is at place `n % most`.
    count: u64,
    entries: Vec<Entry>,
    /// `[most, block_size]`.
    tokens: Vec<TokenId>,
    index: PrefixIndex<u64>,
    /// Time of the newest plan.
    pub(crate) now: Nanos,
    /// How long conversations take to come back.
    pub(super) returns: Returns,
}

/// The name of a salt (1) or a tenant (2): no hash of a block.
fn named(number: u64, kind: u8) -> BlockHash {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes[8] = kind;
    BlockHash(bytes)
}

/// Where the newest child is indexed.
fn as_parent(BlockHash(mut bytes): BlockHash) -> BlockHash {
    bytes[31] ^= 0xff;
    BlockHash(bytes)
}

impl Seen {
    /// For contents in `num_places` blocks and slots.
    pub(super) fn new(num_places: usize, block_size: usize) -> Seen {
        let most = (2 * num_places).clamp(ENTRIES[0], ENTRIES[1]);
        let (entries, tokens) = (Vec::with_capacity(most), vec![0; most * block_size]);
        let index = PrefixIndex::new(2 * most);
        Seen { block_size, most: most as u64, count: 0, entries, tokens, index, now: Nanos(0), returns: Returns::new() }
    }

    /// A request of `tenant` comes with this salt.
    pub(crate) fn note_salt(&mut self, tenant: u64, salt: u64) {
        if self.index.get(&named(salt, 1)).is_none() {
            self.write(Some(named(salt, 1)), Some(named(tenant, 2)), salt, &[], Fate::Held);
        }
    }

    /// A block can be found from now on.
    pub(super) fn note_block(&mut self, hash: BlockHash, parent: Option<BlockHash>, salt: u64, tokens: &[TokenId]) {
        if !self.note_fate(&hash, Fate::Held) {
            self.write(Some(hash), Some(parent.unwrap_or(named(salt, 1))), salt, tokens, Fate::Held);
        }
    }

    /// A block can no longer be found.
    pub(super) fn note_gone(&mut self, hash: &BlockHash, fate: Fate) {
        if !self.note_fate(hash, fate) {
            self.write(Some(*hash), None, 0, &[], fate);
        }
    }

    fn note_fate(&mut self, hash: &BlockHash, fate: Fate) -> bool {
        let place = self.index.get(hash).map(|number| (number % self.most) as usize);
        place.inspect(|&place| self.entries[place].fate = fate).is_some()
    }

    /// A sequence ends with tokens that do not fill a block.
    pub(crate) fn note_tail(&mut self, parent: Option<BlockHash>, salt: u64, tokens: &[TokenId]) {
        let parent = parent.unwrap_or(named(salt, 1));
        if !tokens.is_empty() && !self.children(parent).take(1).any(|number| self.tokens_of(number).starts_with(tokens))
        {
            self.write(None, Some(parent), salt, tokens, Fate::Held);
        }
    }

    /// A sequence ends with this as its last full block.
    pub(crate) fn note_end(&mut self, name: &BlockHash, gap: Nanos) {
        if let Some(number) = self.index.get(name) {
            let end = Some(Pace { used: self.now, gap });
            self.entries[(number % self.most) as usize].end = end;
        }
    }

    /// A prompt goes on from this block: if it is the only one behind which a conversation ended, that came back, and its
    /// mean gap is returned.
    pub(crate) fn note_return(&mut self, mut name: BlockHash) -> Option<Nanos> {
        for _ in 0..MOST_BEHIND {
            let place = (self.index.get(&name)? % self.most) as usize;
            if let Some(end) = self.entries[place].end.take() {
                self.returns.observe(end, self.now, true);
                return Some(end.again(self.now).gap);
            }
            let mut children = self.children(name);
            let only = children.next().filter(|_| children.next().is_none())?;
            name = self.entry(only).name?;
        }
        None
    }

    pub(super) fn mark(&self) -> (u64, Nanos) {
        (self.count, self.now)
    }

    /// No conversation that ended since then is waited for, and no request since then is named as one that evicted.
    pub(super) fn forget_since(&mut self, (count, now): (u64, Nanos)) {
        let newer = (self.count - count).min(self.most) as usize;
        for place in (count..).take(newer).map(|number| (number % self.most) as usize) {
            self.entries[place].end = None;
        }
        for entry in &mut self.entries {
            if let Fate::Evicted(at, by) = &mut entry.fate
                && *at > now
            {
                *by = None;
            }
        }
    }

    /// What became of a block; `None` if it was not seen, or long ago.
    pub(crate) fn fate(&self, hash: &BlockHash) -> Option<Fate> {
        self.index.get(hash).map(|number| self.entry(number).fate)
    }

    /// Other salts of the tenant, the newest first.
    pub(crate) fn other_salts(&self, tenant: u64, than: u64) -> impl Iterator<Item = u64> {
        let salts = self.children(named(tenant, 2)).map(|number| self.entry(number).salt);
        salts.filter(move |&salt| salt != than).take(MOST_SALTS)
    }

    /// How far `rest`, the tokens behind a block, was seen there, and an entry that goes on with another token.
    pub(crate) fn common(&self, parent: Option<BlockHash>, salt: u64, rest: &[TokenId]) -> (usize, Option<u64>) {
        let common = self.children(parent.unwrap_or(named(salt, 1))).take(MOST_CHILDREN).map(|number| {
            let tokens = self.tokens_of(number);
            let len = common_len(tokens, rest);
            (len, Some(number).filter(|_| len < tokens.len().min(rest.len())))
        });
        common.max().unwrap_or_default()
    }

    /// Tokens of `rest` in whole blocks that were seen at the same places behind an entry, whatever is between them.
    pub(crate) fn same_behind(&self, entry: u64, rest: &[TokenId]) -> usize {
        let (mut same, mut name) = (0, self.entry(entry).name);
        for tokens in rest.chunks_exact(self.block_size) {
            let Some(parent) = name else { break };
            let mut children = self.children(parent).take(MOST_CHILDREN);
            let equal = children.find(|&number| self.tokens_of(number) == tokens);
            same += equal.map_or(0, |_| tokens.len());
            name = equal.or(self.children(parent).next()).and_then(|number| self.entry(number).name);
        }
        same
    }

    fn children(&self, parent: BlockHash) -> impl Iterator<Item = u64> {
        let is_kept = |&number: &u64| number + self.most >= self.count;
        // An older child is overwritten before a newer one.
        successors(self.index.get(&as_parent(parent)), move |&number| self.entry(number).older.filter(is_kept))
    }

    fn write(&mut self, name: Option<BlockHash>, parent: Option<BlockHash>, salt: u64, tokens: &[TokenId], fate: Fate) {
        let (number, place) = (self.count, (self.count % self.most) as usize);
        let keys =
            |name: Option<BlockHash>, parent: Option<BlockHash>| [name, parent.map(as_parent)].into_iter().flatten();
        if let Some(old) = self.entries.get(place) {
            if let Some(end) = old.end {
                self.returns.observe(end, self.now, false);
            }
            for key in keys(old.name, old.parent) {
                if self.index.get(&key) == Some(number - self.most) {
                    self.index.remove(&key);
                }
            }
        }
        let older = parent.and_then(|parent| self.index.get(&as_parent(parent)));
        keys(name, parent).for_each(|key| self.index.set(key, number));
        let entry = Entry { name, parent, older, salt, len: tokens.len(), fate, end: None };
        match self.entries.get_mut(place) {
            Some(old) => *old = entry,
            None => self.entries.push(entry),
        }
        self.tokens[place * self.block_size..][..tokens.len()].copy_from_slice(tokens);
        self.count += 1;
    }

    fn entry(&self, number: u64) -> &Entry {
        &self.entries[(number % self.most) as usize]
    }

    fn tokens_of(&self, number: u64) -> &[TokenId] {
        &self.tokens[(number % self.most) as usize * self.block_size..][..self.entry(number).len]
    }
}

/// Length of the longest common prefix.
pub(crate) fn common_len(a: &[TokenId], b: &[TokenId]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_entries_are_overwritten_and_nothing_leads_to_them() {
        let hash = |number: u64| named(number, 9);
        let mut seen = Seen::new(1, 2);
        let most = ENTRIES[0] as u64;
        seen.note_salt(7, 70);
        for number in 0..3 * most {
            // Chains of four, all behind one salt.
            let parent = (!number.is_multiple_of(4)).then(|| hash(number - 1));
            seen.note_block(hash(number), parent, 70, &[number as u32, 1]);
            let kept = number.min(most - 1);
            assert_eq!(seen.fate(&hash(number - kept)), Some(Fate::Held), "{number}");
            assert_eq!(number >= most, kept < number && seen.fate(&hash(number - kept - 1)).is_none(), "{number}");
        }
        assert_eq!(seen.other_salts(7, 0).count(), 0, "its entry is overwritten");
        let (first, entry) = ((3 * most - 4) as u32, 3 * most - 3);
        for (salt, rest, common) in [
            (70, [first, 2, 5], (1, Some(entry))),
            (70, [first, 1, 5], (2, None)),
            (71, [first, 1, 5], (0, None)),
            (70, [0, 1, 2], (0, Some(entry))),
        ] {
            assert_eq!(seen.common(None, salt, &rest), common, "{salt} {rest:?}");
        }
        // A block differs, and what follows is the same at the same places.
        assert_eq!(seen.same_behind(entry, &[first + 1, 1, 9, 9, first + 3, 1, 4]), 4);
        seen.note_gone(&hash(1), Fate::Evicted(Nanos(6), None));
        assert_eq!(seen.fate(&hash(1)), Some(Fate::Evicted(Nanos(6), None)), "long ago, and noted again");
    }
}
