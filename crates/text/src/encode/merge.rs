//! Byte pair encoding: a piece to ids.
//!
//! ```text
//! piece    l o w e r         one symbol for each character (or byte)
//! merges   lo w er ──► low er     the pair of lowest rank first, the leftmost of equals
//! ```
//!
//! The crate's order of merges (Sennrich et al., 2016) with 12 bytes per symbol. The pairs of a short piece are on a
//! heap; in a long piece that would be a cache miss at every level, so its pairs are in one queue per rank, 4 bytes
//! each, read from front to back.
//!
//! A long piece, which without a split pattern is the whole text, is cut further, between two characters that no merge
//! joins: the two sides merge independently. A merge across `a|b` needs a left part whose text ends in `a` and a right
//! part whose text begins with `b`; these pairs of characters are collected at load.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};

use tokenizers::models::bpe::BPE;

use super::id_of;
use crate::alphabet::{byte_alphabet, byte_of};
use crate::check::MergeList;
use crate::error::TextError;
use crate::yield_point;

/// Pieces of fewer bytes are not cut: searching for cuts would take longer.
const CUT_FROM: usize = 64;
/// Merges between two yield points.
const MERGES_PER_YIELD: usize = 1 << 15;
/// Pieces of more symbols are long: queues by rank, and the memory is freed afterwards.
const LONG_SYMBOLS: usize = 1 << 12;
/// No symbol: the end of a list, or a symbol that was merged into its left neighbour.
const NONE: u32 = u32::MAX;

/// Two ids -> the rank of their merge and the merged id.
type Merges = HashMap<u64, (u32, u32), PairHash>;

#[derive(Debug)]
pub(super) struct Bpe {
    merges: Merges,
    /// Pairs of characters, as ids of their symbols, that some merge joins; `None`: unknown, no piece is cut.
    joined: Option<HashSet<u64, PairHash>>,
    symbols: Symbols,
    unknown: Unknown,
    /// With `ignore_merges`: pieces that are tokens are not merged.
    words: Option<Words>,
    longest_token: Option<usize>,
}

/// Tokens by their text.
#[derive(Debug)]
struct Words {
    ids: HashMap<Box<[u8]>, u32>,
    /// Bytes of the longest.
    longest: usize,
}

/// The initial symbols of a piece.
#[derive(Debug)]
enum Symbols {
    /// By byte.
    Bytes(Box<[Option<u32>; 256]>),
    /// By character; byte fallback if all bytes of a character have symbols.
    Chars { ids: HashMap<char, u32>, bytes: Option<Box<[Option<u32>; 256]>> },
}

/// Handling of a character without a symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unknown {
    /// It is omitted.
    Dropped,
    /// It becomes this token; a run of them one token if `fused`.
    Token { id: u32, fused: bool },
    /// The unknown token is not in the vocabulary.
    Missing,
}

/// Reused memory for one piece at a time.
#[derive(Default)]
pub(super) struct Scratch {
    ids: Vec<u32>,
    previous: Vec<u32>,
    next: Vec<u32>,
    /// Rank, position, merged id.
    heap: BinaryHeap<Reverse<(u32, u32, u32)>>,
}

fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

impl Bpe {
    /// `None` for a model with a subword prefix or suffix.
    pub(super) fn compile(model: &BPE, merges: &MergeList, byte_level: bool) -> Option<Bpe> {
        if model.continuing_subword_prefix.is_some() || model.end_of_word_suffix.is_some() {
            return None;
        }
        let vocab = tokenizers::Model::get_vocab(model);
        let symbols = match byte_level {
            true if model.byte_fallback => return None,
            true => {
                let mut bytes = Box::new([None; 256]);
                for (byte, c) in byte_alphabet().enumerate() {
                    bytes[byte] = id_of(model, c.encode_utf8(&mut [0; 4]));
                }
                Symbols::Bytes(bytes)
            }
            false => {
                let single = |name: &str| {
                    let mut chars = name.chars();
                    chars.next().filter(|_| chars.next().is_none())
                };
                let ids = vocab.iter().filter_map(|(name, &id)| Some((single(name)?, id))).collect();
                let bytes = model.byte_fallback.then(|| {
                    let mut bytes = Box::new([None; 256]);
                    for (byte, id) in bytes.iter_mut().enumerate() {
                        *id = id_of(model, &format!("<{byte:#04X}>"));
                    }
                    bytes
                });
                Symbols::Chars { ids, bytes }
            }
        };
        let unknown = match model.get_unk_token() {
            None => Unknown::Dropped,
            Some(token) => {
                id_of(model, token).map_or(Unknown::Missing, |id| Unknown::Token { id, fused: model.fuse_unk })
            }
        };
        let hash = PairHash::new();
        let mut ranks = HashMap::with_capacity_and_hasher(merges.len(), hash);
        let mut whole = String::new();
        for (rank, (left, right)) in merges.iter().enumerate() {
            whole.clear();
            whole.extend([left, right]);
            let ids = (id_of(model, left)?, id_of(model, right)?, id_of(model, &whole)?);
            ranks.insert(pair(ids.0, ids.1), (u32::try_from(rank).ok()?, ids.2));
        }
        let joined = joined(model, &symbols, unknown, merges, hash);
        let words = model.ignore_merges.then(|| {
            let own = |name: &str| match byte_level {
                true => name.chars().map(byte_of).collect::<Option<Vec<u8>>>(),
                false => Some(name.as_bytes().to_vec()),
            };
            let ids: HashMap<Box<[u8]>, u32> =
                vocab.iter().filter_map(|(name, &id)| Some((own(name)?.into_boxed_slice(), id))).collect();
            let longest = ids.keys().map(|word| word.len()).max().unwrap_or(0);
            Words { ids, longest }
        });
        // A token of the byte alphabet has no more bytes than its name.
        let longest = vocab.keys().map(String::len).max().unwrap_or(0);
        let longest_token = symbols.complete().then_some(longest);
        Some(Bpe { merges: ranks, joined, symbols, unknown, words, longest_token })
    }

    /// Maximum bytes of text in one token; `None` if a token may cover a run of unknown characters.
    pub(super) fn longest_token(&self) -> Option<usize> {
        self.longest_token
    }

    /// Appends the ids of a piece.
    pub(super) fn append(&self, piece: &str, scratch: &mut Scratch, ids: &mut Vec<u32>) -> Result<(), TextError> {
        if let Some(words) = &self.words
            && piece.len() <= words.longest
            && let Some(&id) = words.ids.get(piece.as_bytes())
        {
            ids.push(id);
            return Ok(());
        }
        let cuts = self.joined.as_ref().filter(|_| piece.len() >= CUT_FROM);
        let mut feed = Feed { bpe: self, cuts, scratch, ids, unknown: None, since_yield: 0 };
        match &self.symbols {
            Symbols::Bytes(bytes) => {
                for &byte in piece.as_bytes() {
                    match bytes[usize::from(byte)] {
                        Some(id) => feed.known(id, 1)?,
                        None => feed.unknown()?,
                    }
                }
            }
            Symbols::Chars { ids, bytes } => {
                for c in piece.chars() {
                    if let Some(&id) = ids.get(&c) {
                        feed.known(id, c.len_utf8())?;
                        continue;
                    }
                    let mut text = [0; 4];
                    let text = c.encode_utf8(&mut text).bytes();
                    match bytes {
                        Some(bytes) if text.clone().all(|byte| bytes[usize::from(byte)].is_some()) => {
                            text.filter_map(|byte| bytes[usize::from(byte)]).for_each(|id| feed.scratch.push(id));
                        }
                        _ => feed.unknown()?,
                    }
                }
            }
        }
        if let Some(id) = feed.unknown.take() {
            feed.scratch.push(id);
        }
        scratch.merge(&self.merges, ids)
    }
}

impl Symbols {
    /// Whether every text has symbols.
    fn complete(&self) -> bool {
        let all = |bytes: &[Option<u32>; 256]| bytes.iter().all(Option::is_some);
        match self {
            Symbols::Bytes(bytes) => all(bytes),
            Symbols::Chars { bytes, .. } => bytes.as_deref().is_some_and(all),
        }
    }
}

/// Converts a piece to symbols and merges them at every cut.
struct Feed<'f> {
    bpe: &'f Bpe,
    cuts: Option<&'f HashSet<u64, PairHash>>,
    scratch: &'f mut Scratch,
    ids: &'f mut Vec<u32>,
    /// A pending unknown token: further unknown characters may be fused with it.
    unknown: Option<u32>,
    since_yield: usize,
}

impl Feed<'_> {
    fn known(&mut self, id: u32, bytes: usize) -> Result<(), TextError> {
        if let Some(unknown) = self.unknown.take() {
            self.scratch.push(unknown);
        }
        if let (Some(joined), Some(&last)) = (self.cuts, self.scratch.ids.last())
            && !joined.contains(&pair(last, id))
        {
            self.scratch.merge(&self.bpe.merges, self.ids)?;
        }
        self.scratch.push(id);
        self.since_yield += bytes;
        if self.since_yield >= yield_point::WINDOW_BYTES {
            // The caller has counted the bytes of this piece.
            self.since_yield = 0;
            yield_point::yield_point(0)?;
        }
        Ok(())
    }

    fn unknown(&mut self) -> Result<(), TextError> {
        let Unknown::Token { id, fused } = self.bpe.unknown else {
            return if self.bpe.unknown == Unknown::Missing { Err(TextError::Encode) } else { Ok(()) };
        };
        if let Some(unknown) = self.unknown.replace(id)
            && !fused
        {
            self.scratch.push(unknown);
        }
        Ok(())
    }
}

impl Scratch {
    fn push(&mut self, id: u32) {
        self.ids.push(id);
    }

    /// Merges the symbols, appends the result to `out`, and clears itself.
    fn merge(&mut self, merges: &Merges, out: &mut Vec<u32>) -> Result<(), TextError> {
        let len = self.ids.len();
        if len < 2 {
            out.append(&mut self.ids);
            return Ok(());
        }
        // Positions and `NONE` fit 32 bits: a text has less than 4 GiB.
        let places = 0..len as u32;
        self.previous.extend(places.clone().map(|at| at.wrapping_sub(1)));
        self.next.extend(places.map(|at| if at as usize + 1 == len { NONE } else { at + 1 }));
        if len <= LONG_SYMBOLS {
            self.merge_short(merges);
        } else {
            self.merge_long(merges)?;
        }
        out.extend(self.ids.iter().filter(|&&id| id != NONE));
        if len > LONG_SYMBOLS {
            *self = Scratch::default();
        } else {
            self.ids.clear();
            self.previous.clear();
            self.next.clear();
        }
        Ok(())
    }

    fn merge_short(&mut self, merges: &Merges) {
        let mut heap = std::mem::take(&mut self.heap).into_vec();
        heap.clear();
        heap.extend(pairs(&self.ids, merges).map(|(rank, at, made)| Reverse((rank, at, made))));
        let mut heap = BinaryHeap::from(heap);
        while let Some(Reverse((_, at, made))) = heap.pop() {
            if self.join(merges, at, made) {
                for (rank, at, made) in self.new_pairs(merges, at).into_iter().flatten() {
                    heap.push(Reverse((rank, at, made)));
                }
            }
        }
        self.heap = heap;
    }

    fn merge_long(&mut self, merges: &Merges) -> Result<(), TextError> {
        let mut queues: BTreeMap<u32, Queue> = BTreeMap::new();
        for (rank, at, made) in pairs(&self.ids, merges) {
            queues.entry(rank).or_insert_with(|| Queue::new(made)).push(at);
        }
        let mut count = 0;
        while let Some(mut first) = queues.first_entry() {
            let rank = *first.key();
            let made = first.get().made;
            // Until the queue is empty, or a merge creates a pair of lower rank.
            let mut overtaken = false;
            while !overtaken {
                let Some(at) = first.get_mut().pop() else {
                    first.remove();
                    break;
                };
                count += 1;
                if count % MERGES_PER_YIELD == 0 {
                    yield_point::yield_point(0)?;
                }
                if !self.join(merges, at, made) {
                    continue;
                }
                for (new_rank, at, made) in self.new_pairs(merges, at).into_iter().flatten() {
                    overtaken |= new_rank < rank;
                    queues.entry(new_rank).or_insert_with(|| Queue::new(made)).push(at);
                }
                // The map may have been rearranged.
                match queues.first_entry() {
                    Some(entry) => first = entry,
                    None => return Ok(()),
                }
            }
        }
        Ok(())
    }

    /// Merges the symbols at `at` and after it, unless they have changed since the pair was queued.
    fn join(&mut self, merges: &Merges, at: u32, made: u32) -> bool {
        let (ids, left) = (&mut self.ids, at as usize);
        let right = self.next[left];
        if ids[left] == NONE || right == NONE {
            return false;
        }
        let right = right as usize;
        if merges.get(&pair(ids[left], ids[right])).is_none_or(|&(_, now)| now != made) {
            return false;
        }
        ids[left] = made;
        ids[right] = NONE;
        let after = self.next[right];
        self.next[left] = after;
        if after != NONE {
            self.previous[after as usize] = at;
        }
        true
    }

    /// Possible merges of the symbol at `at`: rank, position, merged id.
    fn new_pairs(&self, merges: &Merges, at: u32) -> [Option<(u32, u32, u32)>; 2] {
        let made = self.ids[at as usize];
        let (before, after) = (self.previous[at as usize], self.next[at as usize]);
        let found = |left, right, at| merges.get(&pair(left, right)).map(|&(rank, made)| (rank, at, made));
        let with_before = (before != NONE).then(|| found(self.ids[before as usize], made, before)).flatten();
        let with_after = (after != NONE).then(|| found(made, self.ids[after as usize], at)).flatten();
        [with_before, with_after]
    }
}

/// Neighbours that can be merged: rank, position, merged id.
fn pairs<'s>(ids: &'s [u32], merges: &'s Merges) -> impl Iterator<Item = (u32, u32, u32)> + 's {
    ids.windows(2).zip(0..).filter_map(|(two, at)| {
        let &(rank, made) = merges.get(&pair(two[0], two[1]))?;
        Some((rank, at, made))
    })
}

/// Positions of pairs of one rank, popped from left to right.
struct Queue {
    made: u32,
    /// Sorted by the first [`pop`](Queue::pop).
    places: Vec<u32>,
    popped: usize,
    opened: bool,
    /// Positions pushed after the first pop.
    late: BinaryHeap<Reverse<u32>>,
}

impl Queue {
    fn new(made: u32) -> Queue {
        Queue { made, places: Vec::new(), popped: 0, opened: false, late: BinaryHeap::new() }
    }

    fn push(&mut self, at: u32) {
        if self.opened {
            self.late.push(Reverse(at));
        } else {
            self.places.push(at);
        }
    }

    fn pop(&mut self) -> Option<u32> {
        if !self.opened {
            self.opened = true;
            // Mostly sorted already, which the stable sort detects.
            self.places.sort();
        }
        let next = self.places.get(self.popped).copied();
        match self.late.peek() {
            Some(&Reverse(late)) if next.is_none_or(|next| late < next) => {
                self.late.pop();
                Some(late)
            }
            _ => {
                self.popped += 1;
                next
            }
        }
    }
}

/// Pairs of symbols that some merge joins. `None` if a merge has a part whose text does not determine its symbols: a
/// fallback byte or the unknown token.
fn joined(
    model: &BPE,
    symbols: &Symbols,
    unknown: Unknown,
    merges: &MergeList,
    hash: PairHash,
) -> Option<HashSet<u64, PairHash>> {
    let fallback: HashSet<u32> = match symbols {
        Symbols::Chars { bytes: Some(bytes), .. } => bytes.iter().flatten().copied().collect(),
        _ => HashSet::new(),
    };
    let mut joined = HashSet::with_hasher(hash);
    let symbol = |c: Option<char>| id_of(model, c?.encode_utf8(&mut [0; 4]));
    for (left, right) in merges.iter() {
        for part in [left, right] {
            let id = id_of(model, part)?;
            if fallback.contains(&id) || matches!(unknown, Unknown::Token { id: unknown, .. } if unknown == id) {
                return None;
            }
        }
        // A character without a symbol never occurs.
        if let (Some(left), Some(right)) = (symbol(left.chars().next_back()), symbol(right.chars().next())) {
            joined.insert(pair(left, right));
        }
    }
    Some(joined)
}

/// Hashes pairs of ids by one multiplication, from a random seed that no file can predict.
#[derive(Clone, Copy, Debug)]
struct PairHash(u64);

impl PairHash {
    fn new() -> PairHash {
        PairHash(RandomState::new().build_hasher().finish())
    }
}

impl BuildHasher for PairHash {
    type Hasher = PairHasher;

    fn build_hasher(&self) -> PairHasher {
        PairHasher(self.0)
    }
}

struct PairHasher(u64);

impl Hasher for PairHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    fn write_u64(&mut self, value: u64) {
        // The golden ratio in 64 bits; the halves of the product are folded.
        let product = u128::from(self.0 ^ value) * 0x9E37_79B9_7F4A_7C15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}
