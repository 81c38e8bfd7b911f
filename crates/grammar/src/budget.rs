//! The thinking budget: a thought ends after a number of tokens.
//!
//! ```text
//! Before --opening mark--> Thinking, tokens left --none left--> Closing, token by token --last--> Before, none left
//!   |  ^                       |
//!   |  +--closing mark of the model's own, with what is left of the tokens
//!   +--any other text--> Behind
//! ```
//! Nothing is masked but where the thought is closed: there one token may follow, the next of the closing text. So the
//! tokens of a thought are those that it has without a budget, up to where it is cut. A thought that is opened again
//! where it was cut is closed once more, and no third time: a model that always opens another would say nothing.

use std::ops::Range;

use llguidance::toktrie::{TokTrie, TokenId};
use serde::{Deserialize, Serialize};

/// How much may be thought, and how a thought is written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ThoughtBudget {
    /// Tokens that have text of a thought in them; 0: a thought is closed as soon as it is open.
    pub tokens: u32,
    /// Whether the answer begins inside a thought.
    pub is_open: bool,
    /// Marks that open one, at the answer's beginning or behind white space.
    pub opens: Vec<String>,
    /// Whether they open one behind text too.
    #[serde(default)]
    pub opens_anywhere: bool,
    /// Marks that close it.
    pub closes: Vec<String>,
    /// What is written when the budget is used up: tokens whose text ends with a mark of `closes`, and what follows it.
    pub closing: Vec<TokenId>,
    /// The same where a thought is opened behind one that was closed so.
    #[serde(default)]
    pub closing_again: Vec<TokenId>,
}

impl ThoughtBudget {
    /// Bytes of its marks.
    pub(crate) fn bytes(&self) -> usize {
        let marks = self.opens.iter().chain(&self.closes).map(String::len);
        marks.sum::<usize>() + (self.closing.len() + self.closing_again.len()) * size_of::<TokenId>()
    }

    /// Tokens that close a thought, after `cuts` were closed by the budget.
    fn closing(&self, cuts: u8) -> &[TokenId] {
        match cuts {
            0 => &self.closing,
            1 => &self.closing_again,
            _ => &[],
        }
    }

    /// All tokens that it may write.
    pub(crate) fn written(&self) -> impl Iterator<Item = &TokenId> {
        self.closing.iter().chain(&self.closing_again)
    }
}

/// Where an answer is. `from`: bytes of it that are behind it. `left`: tokens that a thought may have still. `cuts`:
/// thoughts that were closed from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Before { from: usize, left: u32, cuts: u8 },
    Thinking { from: usize, left: u32, cuts: u8 },
    Closing { next: usize, cuts: u8 },
    Behind,
}

/// Follows one answer, and goes back with it.
#[derive(Clone, Debug)]
pub(crate) struct Meter {
    /// Behind each token, and before the first.
    places: Vec<Place>,
    /// The answer's bytes as long as a thought may begin in it or end; marks are looked for in them.
    text: Vec<u8>,
    /// Of `text` behind each token.
    ends: Vec<usize>,
}

impl Meter {
    pub(crate) fn new(budget: &ThoughtBudget) -> Meter {
        let first = match budget.is_open {
            true => thinking(0, budget.tokens, 0, budget),
            false => Place::Before { from: 0, left: budget.tokens, cuts: 0 },
        };
        Meter { places: vec![first], text: Vec::new(), ends: vec![0] }
    }

    /// The only token that may follow, where there is one.
    pub(crate) fn only(&self, budget: &ThoughtBudget) -> Option<TokenId> {
        match self.place() {
            Place::Closing { next, cuts } => budget.closing(cuts).get(next).copied(),
            _ => None,
        }
    }

    /// The next token of the answer.
    pub(crate) fn accept(&mut self, token: TokenId, budget: &ThoughtBudget, trie: &TokTrie) {
        let place = self.place();
        let bytes = trie.token(token);
        // A special token that is no part of the text has no bytes in it.
        let is_text = bytes.first() != Some(&TokTrie::SPECIAL_TOKEN_MARKER);
        if is_text && !matches!(place, Place::Behind | Place::Closing { .. }) {
            self.text.extend_from_slice(bytes);
        }
        let next = match place {
            Place::Before { from, left, cuts } => self.begun(from, left, cuts, budget),
            Place::Thinking { from, left, cuts } => self.thought(from, left, cuts, budget),
            Place::Closing { next, cuts } if next + 1 < budget.closing(cuts).len() => {
                Place::Closing { next: next + 1, cuts }
            }
            Place::Closing { cuts, .. } => Place::Before { from: self.text.len(), left: 0, cuts: cuts + 1 },
            Place::Behind => Place::Behind,
        };
        self.places.push(next);
        self.ends.push(self.text.len());
    }

    /// Forgets all but the first `at` tokens.
    pub(crate) fn rewind(&mut self, at: usize) {
        self.places.truncate(at + 1);
        self.ends.truncate(at + 1);
        self.text.truncate(self.ends[at]);
    }

    fn place(&self) -> Place {
        *self.places.last().expect("there is one before the first token")
    }

    /// Bytes before the last token.
    fn before(&self) -> usize {
        *self.ends.last().expect("there is one before the first token")
    }

    /// Behind a token that may have opened a thought.
    fn begun(&self, from: usize, left: u32, cuts: u8, budget: &ThoughtBudget) -> Place {
        let opened = if budget.opens_anywhere {
            self.found(from, &budget.opens).map(|mark| mark.end)
        } else {
            let own = self.text[from..].trim_ascii_start();
            let begins = self.text.len() - own.len();
            let mut opens = budget.opens.iter().map(String::as_bytes);
            match opens.clone().find(|open| own.starts_with(open)) {
                Some(open) => Some(begins + open.len()),
                None if opens.any(|open| open.starts_with(own)) => None,
                None => return Place::Behind,
            }
        };
        match opened {
            None => Place::Before { from, left, cuts },
            // A token may end a mark and begin what is thought.
            Some(end) if end < self.text.len() => match self.found(end, &budget.closes) {
                Some(close) => self.begun(close.end, left, cuts, budget),
                None => thinking(end, left.saturating_sub(1), cuts, budget),
            },
            Some(end) => thinking(end, left, cuts, budget),
        }
    }

    /// Behind a token of a thought.
    fn thought(&self, from: usize, left: u32, cuts: u8, budget: &ThoughtBudget) -> Place {
        // Where it has begun, the model may still open it: what was read of it was no thought.
        let own = self.text[from..].trim_ascii_start();
        let opens = budget.opens.iter().filter(|open| own.starts_with(open.as_bytes()));
        let begins = self.text.len() - own.len();
        if let Some(end) = opens.map(|open| begins + open.len()).find(|&end| self.before() < end) {
            let read = self.ends[..self.ends.len() - 1].iter().rev().take_while(|&&start| start >= from).count();
            let left = (left + read as u32).saturating_sub(u32::from(end < self.text.len()));
            return thinking(end, left, cuts, budget);
        }
        let Some(close) = self.found(from, &budget.closes) else {
            return thinking(from, left.saturating_sub(1), cuts, budget);
        };
        // The mark's own tokens are none of the thought's, but for one that has text before it.
        let own = self.ends[..self.ends.len() - 1].iter().rev().take_while(|&&start| start >= close.start.max(from));
        let left = left + own.count() as u32 - u32::from(self.before() < close.start);
        self.begun(close.end, left, cuts, budget)
    }

    /// Where one of the marks is that ends in the last token. None begins before `from`.
    fn found(&self, from: usize, marks: &[String]) -> Option<Range<usize>> {
        let before = self.before();
        let all = marks.iter().map(String::as_bytes).filter(|mark| !mark.is_empty()).filter_map(|mark| {
            let first = from.max(before.saturating_sub(mark.len() - 1)).min(self.text.len());
            let at = self.text[first..].windows(mark.len()).position(|window| window == mark)?;
            Some(first + at..first + at + mark.len())
        });
        all.min_by_key(|mark| mark.end)
    }
}

/// The place in a thought with `left` tokens left.
fn thinking(from: usize, left: u32, cuts: u8, budget: &ThoughtBudget) -> Place {
    match left {
        0 if budget.closing(cuts).is_empty() => Place::Behind,
        0 => Place::Closing { next: 0, cuts },
        left => Place::Thinking { from, left, cuts },
    }
}
