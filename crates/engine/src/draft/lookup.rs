//! Guesses from the text itself: what came behind the last tokens when they stood there before.
//!
//! ```text
//! tokens     .. the old fox sat by the door .. .. and the old fox | ?
//!                   ^^^^^^^ sat by the door              the old fox   the longest matches vote, the next tokens follow
//! index      three tokens --hash--> newest place --chain--> the place before it --> ..        (as in LZ77)
//! ```
//! Answers repeat their prompts: quotes, code that is edited, tables, names. Such guesses cost microseconds and no
//! model (prompt lookup: Saxena, 2023; "Inference with reference": Yang et al., 2023). Twelve bytes a token; a lookup
//! looks at [`CANDIDATES`] places.

use std::collections::BTreeMap;
use std::ops::Range;

use scheduler::{Offer, SeqId, Sequence, SourceId, TokenId};

use super::Drafter;

/// Its name among the scheduler's sources.
const SOURCE: SourceId = SourceId(0);
/// Tokens that must be the same, and the most that are compared.
const LEAST: usize = 3;
const MOST: usize = 32;
/// Places that are looked at, the newest first.
const CANDIDATES: usize = 8;
/// Guesses in one offer.
const GUESSES: usize = 16;
/// Texts of sequences that are over are dropped once in so many plans.
const SWEEP: u32 = 256;

/// See the module's head.
#[derive(Default)]
pub(crate) struct Lookup {
    texts: BTreeMap<SeqId, Index>,
    /// What was offered since the last plan; each index knows where its own are.
    guesses: Vec<TokenId>,
    plans: u32,
}

impl Drafter for Lookup {
    fn begin(&mut self, lives: &dyn Fn(SeqId) -> bool) {
        self.guesses.clear();
        self.plans = self.plans.wrapping_add(1);
        if self.plans.is_multiple_of(SWEEP) {
            self.texts.retain(|&seq, _| lives(seq));
        }
    }

    fn offer(&mut self, sequence: &Sequence) -> Option<Offer> {
        let (seq, tokens) = (sequence.id(), sequence.tokens());
        let index = self.texts.entry(seq).or_default();
        index.read(tokens);
        let start = self.guesses.len();
        let matched = index.guess(tokens, &mut self.guesses)?;
        let len = self.guesses.len() - start;
        index.offered = (self.plans, start..start + len);
        Some(Offer { seq, source: SOURCE, len: len as u16, strength: strength(matched) })
    }

    fn propose(&mut self, sequence: &Sequence, count: usize, guesses: &mut Vec<TokenId>) {
        let index = self.texts.get(&sequence.id()).filter(|index| index.offered.0 == self.plans);
        if let Some(index) = index {
            guesses.extend(self.guesses[index.offered.1.clone()].iter().take(count));
        }
    }
}

/// How sure a match of so many tokens is: the longer, the surer.
fn strength(matched: usize) -> u8 {
    match matched {
        0..=3 => 0,
        4 => 1,
        5..=6 => 2,
        7..=9 => 3,
        10..=15 => 4,
        16..=31 => 5,
        _ => 6,
    }
}

/// Where each three tokens of a text are followed by another.
#[derive(Default)]
struct Index {
    /// By hash: the newest place, plus one. A power of two, at least twice the places.
    heads: Vec<u32>,
    /// By place: the one before it with the same hash, plus one.
    chain: Vec<u32>,
    /// What was offered last: before which plan, and where it stands.
    offered: (u32, Range<usize>),
}

impl Index {
    /// Takes in what is new. The last three tokens are followed by nothing yet.
    fn read(&mut self, tokens: &[TokenId]) {
        let places = tokens.len().saturating_sub(LEAST);
        if places * 2 > self.heads.len() {
            self.heads.clear();
            self.heads.resize((places * 4).next_power_of_two().max(64), 0);
            self.chain.clear();
        }
        for place in self.chain.len()..places {
            let slot = self.slot(&tokens[place..]);
            self.chain.push(std::mem::replace(&mut self.heads[slot], place as u32 + 1));
        }
    }

    fn slot(&self, tokens: &[TokenId]) -> usize {
        let hash = tokens[..LEAST]
            .iter()
            .fold(0u64, |hash, &token| (hash ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29));
        hash as usize & (self.heads.len() - 1)
    }

    /// What may come behind `tokens`, behind `guesses`; the length of the longest match that says so. `None`: nothing.
    fn guess(&self, tokens: &[TokenId], guesses: &mut Vec<TokenId>) -> Option<usize> {
        let end = tokens.len();
        if end < LEAST || self.chain.is_empty() {
            return None;
        }
        // Of each candidate: where its next token is, and how much of what is before that is the same.
        let mut candidates = [(0, 0); CANDIDATES];
        let mut count = 0;
        let mut next = self.heads[self.slot(&tokens[end - LEAST..])];
        while next > 0 && count < CANDIDATES {
            let place = next as usize - 1;
            next = self.chain[place];
            let behind = place + LEAST;
            let same = tokens[..behind].iter().rev().zip(tokens.iter().rev()).take(MOST).take_while(|(a, b)| a == b);
            let same = same.count();
            if same >= LEAST {
                candidates[count] = (behind, same);
                count += 1;
            }
        }
        let longest = candidates[..count].iter().map(|&(_, same)| same).max()?;
        let start = guesses.len();
        while guesses.len() - start < GUESSES && count > 0 {
            let ahead = guesses.len() - start;
            // Where a candidate runs into the end, the guesses are its text: a pattern that repeats goes on.
            let said = |behind: usize| {
                let at = behind + ahead;
                if at < end { tokens[at] } else { guesses[start + at - end] }
            };
            let votes = |token| {
                let same = candidates[..count].iter().filter(|&&(behind, _)| said(behind) == token);
                same.map(|&(_, same)| same).sum::<usize>()
            };
            // The newest of equals.
            let best = candidates[..count].iter().rev().max_by_key(|&&(behind, _)| votes(said(behind)));
            let token = said(best.expect("there are some").0);
            let mut kept = 0;
            for index in 0..count {
                if said(candidates[index].0) == token {
                    candidates.swap(kept, index);
                    kept += 1;
                }
            }
            count = kept;
            guesses.push(token);
        }
        Some(longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guess(tokens: &[TokenId]) -> Option<(usize, Vec<TokenId>)> {
        // As it is read while the text grows.
        let mut index = Index::default();
        (1..=tokens.len()).for_each(|len| index.read(&tokens[..len]));
        let mut guesses = vec![99];
        let matched = index.guess(tokens, &mut guesses)?;
        assert_eq!(guesses[0], 99, "behind what was there");
        Some((matched, guesses[1..].to_vec()))
    }

    #[test]
    fn what_came_before_comes_again() {
        // The longest match, and the first five guesses.
        let table: [(&str, &[TokenId], usize, &[TokenId]); 8] = [
            ("nothing", &[], 0, &[]),
            ("too short", &[1, 2, 3], 0, &[]),
            ("never seen", &[1, 2, 3, 4, 5], 0, &[]),
            ("two are not enough", &[9, 1, 2, 7, 8, 1, 2], 0, &[]),
            ("once", &[1, 2, 3, 4, 5, 6, 0, 1, 2, 3], 3, &[4, 5, 6, 0, 1]),
            ("a pattern goes on", &[1, 2, 1, 2, 1, 2], 4, &[1, 2, 1, 2, 1]),
            ("the longer match wins", &[8, 1, 2, 3, 4, 0, 1, 2, 3, 5, 7, 8, 1, 2, 3], 4, &[4, 0, 1, 2, 3]),
            (
                "two that agree win against one",
                &[1, 2, 3, 4, 0, 1, 2, 3, 4, 6, 1, 2, 3, 5, 7, 1, 2, 3],
                3,
                &[4, 6, 1, 2, 3],
            ),
        ];
        for (what, tokens, matched, first) in table {
            let (found, guesses) = guess(tokens).unwrap_or_default();
            assert_eq!((found, &guesses[..guesses.len().min(5)]), (matched, first), "{what}");
        }
    }

    #[test]
    fn a_text_that_is_read_at_once_is_read_as_one_that_grew() {
        let tokens: Vec<TokenId> = (0..3000u32).map(|i| i * i % 97 / 7).collect();
        for len in [4, 100, 999, 3000] {
            let (mut at_once, mut grown) = (Index::default(), Index::default());
            at_once.read(&tokens[..len]);
            (0..=len).for_each(|len| grown.read(&tokens[..len]));
            let (mut a, mut b) = (Vec::new(), Vec::new());
            assert_eq!(at_once.guess(&tokens[..len], &mut a), grown.guess(&tokens[..len], &mut b));
            assert_eq!(a, b, "{len} tokens");
        }
    }
}
