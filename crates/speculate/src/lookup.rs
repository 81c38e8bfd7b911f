//! Prompt lookup: drafts are what followed the last tokens where they occurred before.
//!
//! ```text
//! tokens     .. the old fox sat by the door .. .. and the old fox | ?
//!                   ^^^^^^^ sat by the door              the old fox   the longest matches vote, the next tokens follow
//! index      three tokens --hash--> newest place --chain--> the place before it --> ..        (as in LZ77)
//!
//! looked up in   prompt and answer | the request's prediction | earlier answers of its salt    the longest match is offered
//! ```
//! Answers repeat their prompts: quotes, code that is edited, tables, names; and each other. Such drafts cost
//! microseconds and no model (prompt lookup: Saxena, 2023; "Inference with reference": Yang et al., 2023). 12 to 48
//! bytes a token; a lookup looks at [`VISITS`] places of each text.

use std::collections::BTreeMap;
use std::ops::Range;

use protocol::TokenId;
use scheduler::{DraftProposal, DraftSource, SeqId, Sequence};

use crate::answers::{Answers, RING};
use crate::drafter::Drafter;
use crate::matches::{Bounds, CANDIDATES, Candidate, VISITS, same, slot, vote};
use crate::options::LookupOptions;
use crate::prediction::{Cursor, Prediction};

/// Names among the scheduler's sources: what holds is learned of each.
const OWN: DraftSource = DraftSource(0);
const PREDICTION: DraftSource = DraftSource(1);
const EARLIER: DraftSource = DraftSource(2);
/// Plans between two sweeps of texts whose sequences are over.
const SWEEP: u32 = 256;

/// See the module's head.
pub struct Lookup {
    bounds: Bounds,
    texts: BTreeMap<SeqId, Text>,
    /// `None` where earlier answers are not looked up.
    answers: Option<Answers>,
    /// What was offered since the last plan; each text knows where its own are.
    drafts: Vec<TokenId>,
    plans: u32,
}

/// What is known of a sequence.
#[derive(Default)]
struct Text {
    index: Index,
    cursor: Cursor,
    /// What was offered last: before which plan, and where it is.
    offered: (u32, Range<usize>),
}

impl Lookup {
    /// `max_drafts`: for one sequence in one step.
    pub fn new(max_drafts: usize, options: &LookupOptions) -> Lookup {
        Lookup {
            bounds: Bounds::new(max_drafts, options),
            texts: BTreeMap::new(),
            answers: (options.most_answers > 0).then(|| Answers::new(RING, options.most_answers)),
            drafts: Vec::new(),
            plans: 0,
        }
    }
}

impl Drafter for Lookup {
    fn begin(&mut self, lives: &dyn Fn(SeqId) -> bool) {
        self.drafts.clear();
        self.plans = self.plans.wrapping_add(1);
        if self.plans.is_multiple_of(SWEEP) {
            self.texts.retain(|&seq, _| lives(seq));
        }
    }

    /// Of the texts the one with the longest match; of equals a prediction before what the sequence says itself, and
    /// that before earlier answers.
    fn propose(&mut self, sequence: &Sequence, prediction: Option<&Prediction>) -> Option<DraftProposal> {
        let Lookup { bounds, texts, answers, drafts, plans } = self;
        let (seq, tokens) = (sequence.id(), sequence.tokens());
        let Text { index, cursor, offered } = texts.entry(seq).or_default();
        let mut best: Option<(usize, DraftSource, Range<usize>)> = None;
        let mut look = |source, look: &mut dyn FnMut(&mut Vec<TokenId>) -> Option<usize>| {
            let start = drafts.len();
            // Nothing is longer than the most that is compared.
            let longest = best.as_ref().map_or(0, |best| best.0);
            if longest < bounds.most_match
                && let Some(matched) = look(drafts).filter(|&matched| matched > longest)
            {
                best = Some((matched, source, start..drafts.len()));
            }
        };
        let said = &tokens[sequence.num_prompt_tokens()..];
        if let Some(prediction) = prediction {
            look(PREDICTION, &mut |drafts| prediction.draft(said, cursor, bounds, drafts));
        }
        index.read(tokens, bounds.least_match);
        look(OWN, &mut |drafts| index.draft(tokens, bounds, drafts));
        if let Some(answers) = answers {
            look(EARLIER, &mut |drafts| answers.draft(sequence.request().salt, tokens, bounds, drafts));
        }
        let (matched, source, range) = best?;
        let len = range.len() as u16;
        *offered = (*plans, range);
        Some(DraftProposal { seq, source, len, strength: strength(matched) })
    }

    fn is(&self, source: DraftSource) -> bool {
        [OWN, PREDICTION, EARLIER].contains(&source)
    }

    fn draft(&mut self, sequence: &Sequence, count: usize, drafts: &mut Vec<TokenId>) {
        if let Some(text) = self.texts.get(&sequence.id()).filter(|text| text.offered.0 == self.plans) {
            drafts.extend(self.drafts[text.offered.1.clone()].iter().take(count));
        }
    }

    fn start_over(&mut self) {
        self.texts.clear();
    }

    fn remembers(&self) -> bool {
        self.answers.is_some()
    }

    fn remember(&mut self, salt: u64, prompt: &[TokenId], answer: &[TokenId]) {
        if let Some(answers) = &mut self.answers {
            answers.remember(salt, prompt, answer, self.bounds.least_match);
        }
    }
}

/// How sure a match of `matched` tokens is: the longer, the surer.
fn strength(matched: usize) -> u8 {
    match matched {
        0..=2 => 0,
        3 => 1,
        4 => 2,
        5..=6 => 3,
        7..=9 => 4,
        10..=15 => 5,
        16..=31 => 6,
        _ => 7,
    }
}

/// Where each few tokens of a text are followed by another.
#[derive(Default)]
struct Index {
    /// By hash: the newest place, plus one. A power of two, at least twice the places.
    heads: Vec<u32>,
    /// By place: the one before it with the same hash, plus one.
    chain: Vec<u32>,
}

impl Index {
    /// Takes in what is new. The last `least` tokens are followed by nothing yet.
    fn read(&mut self, tokens: &[TokenId], least: usize) {
        let places = tokens.len().saturating_sub(least);
        if places * 2 > self.heads.len() {
            self.heads.clear();
            self.heads.resize((places * 4).next_power_of_two().max(64), 0);
            self.chain.clear();
            // As many as will be read before this is done again: between, no token allocates.
            self.chain.reserve_exact(self.heads.len() / 2);
        }
        for place in self.chain.len()..places {
            let slot = slot(&tokens[place..][..least], 0, self.heads.len());
            self.chain.push(std::mem::replace(&mut self.heads[slot], place as u32 + 1));
        }
    }

    /// What may come behind `tokens`, behind `drafts`; the length of the longest match. `None`: nothing.
    fn draft(&self, tokens: &[TokenId], bounds: &Bounds, drafts: &mut Vec<TokenId>) -> Option<usize> {
        let (end, least) = (tokens.len(), bounds.least_match);
        if end < least || self.chain.is_empty() {
            return None;
        }
        let mut candidates = [Candidate::default(); CANDIDATES];
        let mut count = 0;
        let mut next = self.heads[slot(&tokens[end - least..], 0, self.heads.len())];
        for _ in 0..VISITS {
            if next == 0 || count == CANDIDATES {
                break;
            }
            let place = next as usize - 1;
            next = self.chain[place];
            let same = same(&tokens[..place + least], tokens, bounds.most_match);
            if same >= least {
                candidates[count] = Candidate { behind: (place + least) as u64, same, ends_at: u64::MAX };
                count += 1;
            }
        }
        // Where a candidate runs into the end, the drafts are its text: a repeating pattern continues.
        let said = |at: u64, so_far: &[TokenId]| {
            let at = at as usize;
            if at < end { tokens[at] } else { so_far[at - end] }
        };
        vote(&mut candidates[..count], bounds, said, drafts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds() -> Bounds {
        Bounds::new(16, &LookupOptions::default())
    }

    fn propose(tokens: &[TokenId], bounds: &Bounds) -> Option<(usize, Vec<TokenId>)> {
        // As it is read while the text grows.
        let mut index = Index::default();
        (1..=tokens.len()).for_each(|len| index.read(&tokens[..len], bounds.least_match));
        let mut drafts = vec![99];
        let matched = index.draft(tokens, bounds, &mut drafts)?;
        assert_eq!(drafts[0], 99, "behind what was there");
        Some((matched, drafts[1..].to_vec()))
    }

    #[test]
    fn what_came_before_comes_again() {
        // The longest match, and the first five drafts.
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
            let (found, drafts) = propose(tokens, &bounds()).unwrap_or_default();
            assert_eq!((found, &drafts[..drafts.len().min(5)]), (matched, first), "{what}");
        }
    }

    #[test]
    fn bounds_are_kept() {
        let options = LookupOptions::default;
        // What is asked for, the text, the longest match and the number of drafts.
        let line: Vec<TokenId> = (0..40).chain(0..40).collect();
        let two: &[TokenId] = &[9, 1, 2, 7, 8, 1, 2];
        let three: &[TokenId] = &[1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 5, 0, 1, 2, 3];
        type Case<'a> = (&'a str, usize, LookupOptions, &'a [TokenId], usize, usize);
        let table: [Case<'_>; 11] = [
            ("most drafts", 5, options(), &line, 32, 5),
            ("two are enough", 16, LookupOptions { least_match: 2, ..options() }, two, 2, 16),
            ("one is enough", 16, LookupOptions { least_match: 1, most_match: 1, ..options() }, two, 1, 16),
            ("the text is too short", 16, LookupOptions { least_match: 6, ..options() }, three, 0, 0),
            ("no more is compared", 16, LookupOptions { most_match: 4, ..options() }, &line, 4, 16),
            ("depth", 16, LookupOptions { most_depth: 24, ..options() }, &line, 8, 16),
            ("little depth", 16, LookupOptions { most_depth: 4, ..options() }, &line, 3, 1),
            ("a draft for each two", 16, LookupOptions { drafts_per_match: 0.5, ..options() }, three, 4, 2),
            ("no draft", 16, LookupOptions { drafts_per_match: 0.0, ..options() }, three, 0, 0),
            ("two of three say so", 16, LookupOptions { least_share: 0.66, ..options() }, three, 4, 5),
            ("not all of them say so", 16, LookupOptions { least_share: 1.0, ..options() }, three, 0, 0),
        ];
        for (what, most, options, tokens, matched, len) in table {
            let (found, drafts) = propose(tokens, &Bounds::new(most, &options)).unwrap_or_default();
            assert_eq!((found, drafts.len()), (matched, len), "{what}: {drafts:?}");
        }
    }

    #[test]
    fn a_text_that_is_read_at_once_is_read_as_one_that_grew() {
        let tokens: Vec<TokenId> = (0..3000u32).map(|i| i * i % 97 / 7).collect();
        for len in [4, 100, 999, 3000] {
            let (mut at_once, mut grown) = (Index::default(), Index::default());
            at_once.read(&tokens[..len], 3);
            (0..=len).for_each(|len| grown.read(&tokens[..len], 3));
            let (mut a, mut b) = (Vec::new(), Vec::new());
            let bounds = bounds();
            assert_eq!(at_once.draft(&tokens[..len], &bounds, &mut a), grown.draft(&tokens[..len], &bounds, &mut b));
            assert_eq!(a, b, "{len} tokens");
        }
    }
}
