//! A thought that ends after so many tokens.
//!
//! ```text
//! Before --opening mark--> Thinking, tokens left --none left--> Closing, token by token --last--> Behind
//!    |                         |                                                                  ^ ^
//!    |                         +--closing mark of the model's own---------------------------------+ |
//!    +--any other text------------------------------------------------------------------------------+
//! ```
//! Nothing is masked but where the thought is closed: there one token may follow, the next of the closing text. So the
//! tokens of a thought are those that it has without a budget, up to where it is cut.

use llguidance::toktrie::{TokTrie, TokenId};
use serde::{Deserialize, Serialize};

/// How much may be thought, and how a thought is written.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ThoughtBudget {
    /// Tokens behind the opening mark; 0: the thought is closed as soon as it is open.
    pub tokens: u32,
    /// Whether the answer begins inside a thought.
    pub is_open: bool,
    /// Marks that open one, at the answer's beginning or behind white space.
    pub opens: Vec<String>,
    /// Marks that close it.
    pub closes: Vec<String>,
    /// What is written when the budget is used up: tokens whose text ends with a mark of `closes`, and what follows it.
    pub closing: Vec<TokenId>,
}

impl ThoughtBudget {
    /// Bytes of its marks.
    pub(crate) fn bytes(&self) -> usize {
        let marks = self.opens.iter().chain(&self.closes).map(String::len);
        marks.sum::<usize>() + self.closing.len() * size_of::<TokenId>()
    }
}

/// Where an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Before,
    Thinking { left: u32 },
    Closing { next: usize },
    Behind,
}

/// Follows one answer, and goes back with it.
#[derive(Clone, Debug)]
pub(crate) struct Meter {
    /// Behind each token, and before the first.
    places: Vec<Place>,
    /// The answer's bytes up to the end of the thought; marks are looked for in them.
    text: Vec<u8>,
    /// Of `text` behind each token.
    ends: Vec<usize>,
}

impl Meter {
    pub(crate) fn new(budget: &ThoughtBudget) -> Meter {
        let first = if budget.is_open { thinking(budget.tokens, budget) } else { Place::Before };
        Meter { places: vec![first], text: Vec::new(), ends: vec![0] }
    }

    /// The only token that may follow, where there is one.
    pub(crate) fn only(&self, budget: &ThoughtBudget) -> Option<TokenId> {
        match self.place() {
            Place::Closing { next } => Some(budget.closing[next]),
            _ => None,
        }
    }

    /// The next token of the answer.
    pub(crate) fn accept(&mut self, token: TokenId, budget: &ThoughtBudget, trie: &TokTrie) {
        let place = self.place();
        if place != Place::Behind {
            let bytes = trie.token(token);
            // A special token that is no part of the text has no bytes in it.
            let is_text = bytes.first() != Some(&TokTrie::SPECIAL_TOKEN_MARKER);
            self.text.extend_from_slice(if is_text { bytes } else { &[] });
        }
        let next = match place {
            Place::Before => self.begun(budget),
            Place::Thinking { left } if !self.is_closed(budget) => thinking(left - 1, budget),
            Place::Closing { next } if next + 1 < budget.closing.len() => Place::Closing { next: next + 1 },
            Place::Thinking { .. } | Place::Closing { .. } | Place::Behind => Place::Behind,
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

    /// Behind a token that may have opened the thought.
    fn begun(&self, budget: &ThoughtBudget) -> Place {
        let own = self.text.trim_ascii_start();
        let mut opens = budget.opens.iter().map(String::as_bytes);
        match () {
            () if opens.clone().any(|open| own.starts_with(open)) => match self.is_closed(budget) {
                true => Place::Behind,
                false => thinking(budget.tokens, budget),
            },
            () if opens.any(|open| open.starts_with(own)) => Place::Before,
            () => Place::Behind,
        }
    }

    /// Whether the last token has brought a closing mark to its end.
    fn is_closed(&self, budget: &ThoughtBudget) -> bool {
        let before = *self.ends.last().expect("there is one before the first token");
        budget.closes.iter().map(String::as_bytes).any(|close| {
            let from = before.saturating_sub(close.len().saturating_sub(1));
            !close.is_empty() && self.text[from..].windows(close.len()).any(|window| window == close)
        })
    }
}

/// In a thought with so many tokens left.
fn thinking(left: u32, budget: &ThoughtBudget) -> Place {
    match left {
        0 if budget.closing.is_empty() => Place::Behind,
        0 => Place::Closing { next: 0 },
        left => Place::Thinking { left },
    }
}
