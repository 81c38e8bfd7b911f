//! What a client thinks the answer will be: a text to be edited, mostly. Read at validation, never changed.
//!
//! ```text
//! prediction   fn main() { let a = 1; print(a); }
//! places       sorted by the two tokens that stand there, then by place: one search finds those nearest to where we are
//! answer       fn main() { let total = 1; | print( ..      what differs is passed over as soon as two tokens match again
//! ```
//! Eight bytes a token.

use protocol::TokenId;

use crate::matches::{Bounds, same};

/// Tokens that must be the same.
const LEAST: usize = 2;
/// Places that are compared, on either side of where the answer should be.
const BESIDE: usize = 4;

/// See the module's head.
#[derive(Debug)]
pub struct Prediction {
    tokens: Vec<TokenId>,
    /// Where two tokens are followed by another.
    places: Vec<u32>,
}

/// How far an answer has come in its prediction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor {
    /// Where its next token was, when it last matched.
    behind: usize,
    /// Its tokens then.
    said: usize,
}

impl Prediction {
    /// Of the tokens of a text; `None`: of nothing.
    pub fn of(tokens: Vec<TokenId>) -> Option<Prediction> {
        let mut places: Vec<u32> = (0..tokens.len().saturating_sub(LEAST) as u32).collect();
        places.sort_unstable_by_key(|&place| (pair(&tokens, place), place));
        (!tokens.is_empty()).then_some(Prediction { tokens, places })
    }

    /// Its tokens.
    pub fn num_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// What may come behind the tokens that an answer has `said`, behind `drafts`; how many of them match. `None`:
    /// nothing.
    pub(super) fn draft(
        &self,
        said: &[TokenId],
        cursor: &mut Cursor,
        bounds: &Bounds,
        drafts: &mut Vec<TokenId>,
    ) -> Option<usize> {
        let expected = cursor.behind + (said.len() - cursor.said);
        let (behind, matched) = match said {
            [] => return None,
            // Both begin with it.
            [one] => (self.tokens[0] == *one).then_some((1, 1))?,
            _ => self.find(said, expected, bounds)?,
        };
        let rest = &self.tokens[behind..];
        let count = bounds.num_drafts(matched).min(rest.len());
        drafts.extend(&rest[..count]);
        *cursor = Cursor { behind, said: said.len() };
        (count > 0).then_some(matched)
    }

    /// Of the places near `expected` the one with the longest match, of equals the nearest.
    fn find(&self, said: &[TokenId], expected: usize, bounds: &Bounds) -> Option<(usize, usize)> {
        let last = pair(said, (said.len() - LEAST) as u32);
        let key = |&place: &u32| pair(&self.tokens, place);
        let first = self.places.partition_point(|place| key(place) < last);
        let same_pair = &self.places[first..];
        let same_pair = &same_pair[..same_pair.partition_point(|place| key(place) == last)];
        let near = same_pair.partition_point(|&place| (place as usize) + LEAST < expected);
        let near = near.saturating_sub(BESIDE)..(near + BESIDE).min(same_pair.len());
        let candidates = same_pair[near].iter().map(|&place| {
            let behind = place as usize + LEAST;
            (behind, same(&self.tokens[..behind], said, bounds.most_match.max(LEAST)))
        });
        candidates.max_by_key(|&(behind, same)| (same, usize::MAX - behind.abs_diff(expected)))
    }
}

fn pair(tokens: &[TokenId], place: u32) -> [TokenId; LEAST] {
    [tokens[place as usize], tokens[place as usize + 1]]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::LookupOptions;

    fn bounds() -> Bounds {
        Bounds::new(4, &LookupOptions::default())
    }

    #[test]
    fn an_answer_is_followed_through_its_prediction() {
        type Case<'a> = (&'a str, &'a [TokenId], &'a [TokenId], usize, &'a [TokenId]);
        let table: [Case<'_>; 9] = [
            ("nothing said", &[1, 2, 3], &[], 0, &[]),
            ("the same beginning", &[1, 2, 3, 4, 5, 6], &[1], 1, &[2, 3, 4, 5]),
            ("another beginning", &[1, 2, 3], &[2], 0, &[]),
            ("one token is not enough", &[1, 2, 3, 4], &[7, 2], 0, &[]),
            ("two are", &[1, 2, 3, 4], &[7, 2, 3], 2, &[4]),
            ("the end", &[1, 2, 3, 4], &[1, 2, 3, 4], 0, &[]),
            ("one replaced", &[1, 2, 3, 4, 5, 6, 7], &[1, 2, 9, 4, 5], 2, &[6, 7]),
            ("the longer match wins", &[1, 2, 5, 4, 1, 2, 6], &[4, 1, 2], 3, &[6]),
            ("one token alone", &[1], &[1], 0, &[]),
        ];
        for (what, tokens, said, matched, wanted) in table {
            let prediction = Prediction::of(tokens.to_vec()).expect("some tokens");
            let mut drafts = vec![99];
            let found = prediction.draft(said, &mut Cursor::default(), &bounds(), &mut drafts).unwrap_or_default();
            assert_eq!((found, &drafts[1..]), (matched, wanted), "{what}");
        }
        assert!(Prediction::of(Vec::new()).is_none());
    }

    /// A table of a thousand rows that differ in their number alone: each time the next row is drafted, and not one
    /// like it, whichever word was changed before.
    #[test]
    fn of_equal_places_the_one_that_comes_next_counts() {
        let tokens: Vec<TokenId> = (0..1000).flat_map(|row| [1, 2, 3, 1000 + row]).collect();
        let prediction = Prediction::of(tokens.clone()).expect("some tokens");
        let (mut cursor, mut said, mut right) = (Cursor::default(), vec![tokens[0]], 0);
        while said.len() + 8 < tokens.len() {
            let mut drafts = Vec::new();
            prediction.draft(&said, &mut cursor, &bounds(), &mut drafts);
            let held = drafts.iter().zip(&tokens[said.len()..]).take_while(|(a, b)| a == b).count();
            right += held;
            let next = said.len() + held + 1;
            said.extend(&tokens[said.len()..next]);
            if said.len() % 50 < 5 {
                *said.last_mut().expect("there are some") = 7;
            }
        }
        // Of five tokens of a step one is drawn; each change costs about a step.
        assert!(right > 2800, "{right} of 4000");
    }
}
