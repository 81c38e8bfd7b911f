//! Earlier answers, to be looked up by later ones of the same salt only.
//!
//! ```text
//! tokens   .. | answer to A          | answer to B      | next answer to A     | ..   one ring; the oldest answer goes
//! answers     | from, to, A's salt   | from, to, B's    | from, to, A's        |
//! index    (salt, some tokens) --hash--> newest place --chain--> the place before it --> ..
//! ```
//! A salt is a key's (and its requests' `cache_salt`): what is shared is shared as blocks of the prefix cache are. It
//! is part of the hash, and compared at each place. An answer is taken in when it is over, with the last tokens of its
//! prompt, so that its beginning can be found; what was cancelled or failed is not. 12 bytes for each token of the
//! ring, 24 for each answer.

use std::collections::VecDeque;

use protocol::TokenId;

use crate::matches::{Bounds, CANDIDATES, Candidate, VISITS, slot, vote};

/// Tokens of all answers together.
pub(super) const RING: usize = 1 << 20;
/// Tokens of one answer at most, its last ones: it pushes out no more than a sixteenth of the others.
const PART: usize = 16;
/// Tokens of the prompt before it.
const CONTEXT: usize = 32;

/// One that is remembered. Places count all tokens that ever came; the ring has the last of them.
#[derive(Debug)]
struct Remembered {
    start: u64,
    len: u32,
    salt: u64,
}

/// See the module's head.
pub(super) struct Answers {
    most: usize,
    tokens: Box<[TokenId]>,
    /// By hash: the newest place, plus one, in its lower bits.
    heads: Box<[u32]>,
    /// By place: the one before it with the same hash, plus one.
    chain: Box<[u32]>,
    end: u64,
    answers: VecDeque<Remembered>,
}

impl Answers {
    /// `ring`: tokens, a power of two. `most`: answers.
    pub(super) fn new(ring: usize, most: usize) -> Answers {
        assert!(ring.is_power_of_two() && ring >= PART * CONTEXT && most > 0, "{ring} tokens of {most} answers");
        let zeros = || vec![0; ring].into_boxed_slice();
        Answers { most, tokens: zeros(), heads: zeros(), chain: zeros(), end: 0, answers: VecDeque::new() }
    }

    fn at(&self, place: u64) -> TokenId {
        self.tokens[place as usize & (self.tokens.len() - 1)]
    }

    /// Takes in what was answered behind `prompt`. Cost: linear in the answer.
    pub(super) fn remember(&mut self, salt: u64, prompt: &[TokenId], answer: &[TokenId], least_match: usize) {
        let ring = self.tokens.len();
        let answer = &answer[answer.len().saturating_sub(ring / PART)..];
        let context = &prompt[prompt.len().saturating_sub(CONTEXT)..];
        let len = context.len() + answer.len();
        if answer.is_empty() || len <= least_match {
            return;
        }
        let is_full = |oldest: &Remembered, answers: usize, end: u64| {
            end + len as u64 - oldest.start > ring as u64 || answers >= self.most
        };
        while self.answers.front().is_some_and(|oldest| is_full(oldest, self.answers.len(), self.end)) {
            self.answers.pop_front();
        }
        let start = self.end;
        for &token in context.iter().chain(answer) {
            self.tokens[self.end as usize & (ring - 1)] = token;
            self.end += 1;
        }
        // What is behind them is the answer's.
        let mut last = [0; crate::options::LookupOptions::MOST_MATCH];
        let last = &mut last[..least_match];
        for place in context.len().saturating_sub(least_match)..len - least_match {
            let place = start + place as u64;
            last.iter_mut().zip(place..).for_each(|(token, place)| *token = self.at(place));
            let slot = slot(last, salt, ring);
            self.chain[place as usize & (ring - 1)] = std::mem::replace(&mut self.heads[slot], (place + 1) as u32);
        }
        self.answers.push_back(Remembered { start, len: len as u32, salt });
    }

    /// The answer that has a place.
    fn of(&self, place: u64) -> Option<&Remembered> {
        let behind = self.answers.partition_point(|answer| answer.start <= place);
        self.answers.get(behind.checked_sub(1)?).filter(|answer| place < answer.start + u64::from(answer.len))
    }

    /// What may come behind `tokens` of that salt, behind `drafts`; the length of the longest match. `None`: nothing.
    pub(super) fn draft(
        &self,
        salt: u64,
        tokens: &[TokenId],
        bounds: &Bounds,
        drafts: &mut Vec<TokenId>,
    ) -> Option<usize> {
        let (end, least) = (tokens.len(), bounds.least_match);
        if end < least || self.answers.is_empty() {
            return None;
        }
        let mut candidates = [Candidate::default(); CANDIDATES];
        let (mut count, mut distance) = (0, 0);
        let mut next = self.heads[slot(&tokens[end - least..], salt, self.heads.len())];
        for _ in 0..VISITS {
            // Places of a chain are older and older; the lower bits of one that is not are another's, from long ago.
            let back = (self.end as u32).wrapping_add(1).wrapping_sub(next);
            if next == 0 || count == CANDIDATES || back <= distance || u64::from(back) > self.end {
                break;
            }
            distance = back;
            let place = self.end - u64::from(back);
            let Some(answer) = self.of(place) else { break };
            next = self.chain[place as usize & (self.chain.len() - 1)];
            if answer.salt != salt {
                continue;
            }
            let behind = place + least as u64;
            let before = (answer.start..behind).rev().map(|place| self.at(place));
            let same = before.zip(tokens.iter().rev()).take(bounds.most_match).take_while(|(a, b)| a == *b).count();
            let ends_at = answer.start + u64::from(answer.len);
            if same >= least && behind < ends_at {
                candidates[count] = Candidate { behind, same, ends_at };
                count += 1;
            }
        }
        let said = |at: u64, _: &[TokenId]| self.at(at);
        vote(&mut candidates[..count], bounds, said, drafts)
    }

    /// Those that are remembered, and their tokens.
    #[cfg(test)]
    fn held(&self) -> (usize, u64) {
        (self.answers.len(), self.answers.front().map_or(0, |oldest| self.end - oldest.start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::LookupOptions;

    const RING: usize = 1024;

    fn bounds() -> Bounds {
        Bounds::new(8, &LookupOptions::default())
    }

    fn propose(answers: &Answers, salt: u64, tokens: &[TokenId]) -> (usize, Vec<TokenId>) {
        let mut drafts = Vec::new();
        (answers.draft(salt, tokens, &bounds(), &mut drafts).unwrap_or(0), drafts)
    }

    #[test]
    fn what_was_answered_comes_again() {
        let mut answers = Answers::new(RING, 100);
        assert_eq!(propose(&answers, 7, &[1, 2, 3]), (0, Vec::new()), "nothing is remembered");
        answers.remember(7, &[9, 8, 1, 2, 3], &[4, 5, 6, 7], 3);
        let table: [(&str, &[TokenId], usize, &[TokenId]); 7] = [
            ("the whole prompt", &[9, 8, 1, 2, 3], 5, &[4, 5, 6, 7]),
            ("its end", &[0, 1, 2, 3], 3, &[4, 5, 6, 7]),
            ("the answer's beginning", &[9, 8, 1, 2, 3, 4, 5], 7, &[6, 7]),
            ("its middle", &[1, 4, 5, 6], 3, &[7]),
            ("its end", &[4, 5, 6, 7], 0, &[]),
            ("prompts are not looked up", &[9, 8, 1], 0, &[]),
            ("too little", &[2, 3], 0, &[]),
        ];
        for (what, tokens, matched, wanted) in table {
            assert_eq!(propose(&answers, 7, tokens), (matched, wanted.to_vec()), "{what}");
        }
        // Two of three that agree win, and the newest of equals.
        answers.remember(7, &[1, 2, 3], &[5, 5], 3);
        assert_eq!(propose(&answers, 7, &[0, 1, 2, 3]).1, [5, 5]);
        answers.remember(7, &[1, 2, 3], &[4, 9], 3);
        assert_eq!(propose(&answers, 7, &[0, 1, 2, 3]).1, [4, 9]);
        answers.remember(7, &[], &[1], 3);
        answers.remember(7, &[1, 2, 3], &[], 3);
        assert_eq!(answers.held().0, 3, "nothing can be found in these");
    }

    /// Salts with the same prompts and different answers: none is ever offered a token of another's, in a ring that
    /// is too small for all of them, nor anything after its own were forgotten.
    #[test]
    fn what_one_was_told_no_other_is_offered() {
        let mut dice = testing::Dice::new(1);
        let mut answers = Answers::new(RING, 40);
        let (mut tries, mut offers) = (0, 0);
        while tries < 10_000 {
            let salt = dice.below(8);
            let prompt: Vec<TokenId> = (0..6).map(|_| dice.below(3) as TokenId).collect();
            // Between the common words are tokens of one salt.
            let len = dice.below(60);
            let mut word = || match dice.roll(2) {
                0 => 100 * (salt as TokenId + 1) + dice.below(4) as TokenId,
                _ => 1,
            };
            let answer: Vec<TokenId> = (0..len).map(|_| word()).collect();
            answers.remember(salt, &prompt, &answer, 3);
            for asker in 0..10 {
                let (_, drafts) = propose(&answers, asker, &prompt);
                offers += usize::from(!drafts.is_empty());
                let strange = drafts.iter().find(|&&token| token >= 100 && u64::from(token / 100) != asker + 1);
                assert_eq!(strange, None, "try {tries}: {asker} is offered {drafts:?}");
                assert!(asker < 8 || drafts.is_empty(), "{asker} was never told anything");
                tries += 1;
            }
        }
        assert!(offers > 1000, "{offers}");
    }

    #[test]
    fn the_oldest_go_when_the_ring_is_full() {
        let mut answers = Answers::new(RING, 1000);
        for number in 0..100 {
            let text: Vec<TokenId> = (0..40).map(|token| number * 100 + token).collect();
            answers.remember(1, &[], &text, 3);
            let held = answers.held();
            assert!(held.1 <= RING as u64 && held.0 <= RING / 40, "{held:?}");
        }
        assert_eq!(answers.held(), (25, 1000));
        let begins = |number: TokenId| [0, 1, 2].map(|token| number * 100 + token);
        assert_eq!(propose(&answers, 1, &begins(74)), (0, Vec::new()));
        assert_eq!(propose(&answers, 1, &begins(75)).0, 3);
        // One that is longer than its part has its end remembered, and leaves the others.
        let long: Vec<TokenId> = (50_000..53_000).collect();
        answers.remember(1, &[], &long, 3);
        assert_eq!(answers.held(), (25, 24 * 40 + 64), "one went, and of the long one 64 tokens are left");
        assert_eq!(propose(&answers, 1, &long[2990..2995]).1, long[2995..]);
        // And by number.
        let mut few = Answers::new(RING, 2);
        (0..5).for_each(|number| few.remember(1, &[], &[number, 1, 2, 3, 4], 3));
        assert_eq!(few.held(), (2, 10));
    }

    /// A million places that are all alike: were they all looked at, this would take hours.
    #[test]
    fn places_that_are_all_alike_are_not_all_looked_at() {
        let mut answers = Answers::new(super::RING, 1 << 20);
        let same = vec![5; super::RING / PART];
        (0..PART).for_each(|_| answers.remember(1, &[], &same, 3));
        for _ in 0..100_000 {
            assert_eq!(propose(&answers, 1, &[5; 64]).1.len(), 8);
        }
    }
}
