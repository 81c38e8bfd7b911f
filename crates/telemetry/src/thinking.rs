//! The third span of an answer: thought tokens between the first token and the first visible one.
//!
//! ```text
//! arrival ... first token | <think> so it is ... </think> | 42 ...
//!            prefill      |           thinking            | the answer
//!                         ^ from                          ^ visible: what a person waits for
//! ```
//! To the engine a token is a token. The parser of an answer says which of them are thought ([`Thought`]), and the
//! ledger knows when each came; both together are a [`ThoughtSpan`].

use crate::time_format::ms;
use std::iter::repeat_n;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use engine::ledger::Account;
use protocol::Nanos;
use serde_json::{Value, json};

/// Which tokens of an answer are thought, counted from its first, their marks included.
#[derive(Default)]
pub struct Thought {
    /// The first, plus one; 0: none is.
    first: AtomicU32,
    /// Behind the last.
    end: AtomicU32,
    /// Something else has come since.
    is_over: AtomicBool,
}

impl Thought {
    /// This token is one of them.
    pub fn grow(&self, token: usize) {
        let number = u32::try_from(token + 1).unwrap_or(u32::MAX);
        let _ = self.first.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed);
        self.is_over.store(false, Ordering::Relaxed);
        self.end.store(number, Ordering::Release);
    }

    /// What comes now is not.
    pub fn close(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    /// Whether it is known where it ends.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// From the first to the last, if any is.
    pub fn tokens(&self) -> Option<Range<usize>> {
        let end = self.end.load(Ordering::Acquire) as usize;
        (end > 0).then(|| self.first.load(Ordering::Relaxed) as usize - 1..end)
    }
}

/// A thought in time. Moments are unknown where the ledger has left steps out.
pub struct ThoughtSpan {
    answer: usize,
    tokens: Range<usize>,
    from: Option<Nanos>,
    /// When the first token behind it came.
    visible: Option<Nanos>,
    /// When its last token came.
    to: Option<Nanos>,
}

impl ThoughtSpan {
    /// How long it took, until there was something to see or it broke off.
    pub fn time(&self) -> Option<Nanos> {
        Some(self.visible.or(self.to)?.since(self.from?))
    }

    /// When there was something to see.
    pub fn visible(&self) -> Option<Nanos> {
        self.visible
    }

    pub fn json(&self, arrived: Nanos) -> Value {
        let since = |moment: Option<Nanos>| moment.map(|moment| ms(moment.since(arrived)));
        json!({
            "answer": self.answer,
            "from_token": self.tokens.start,
            "to_token": self.tokens.end,
            "from_ms": since(self.from),
            "to_ms": since(self.to),
            "visible_ms": since(self.visible),
        })
    }
}

/// The thoughts of a prompt's answers, in their order.
pub fn spans(thoughts: &[Thought], account: &Account) -> Vec<ThoughtSpan> {
    let span = |(answer, thought): (usize, &Thought)| {
        let tokens = thought.tokens()?;
        let visits = account.visits.iter().filter(|visit| usize::from(visit.answer) == answer);
        let times: Vec<Nanos> = visits.flat_map(|visit| repeat_n(visit.to, visit.tokens.into())).collect();
        let at = |token: usize| times.get(token).copied();
        Some(ThoughtSpan { answer, from: at(tokens.start), to: at(tokens.end - 1), visible: at(tokens.end), tokens })
    };
    thoughts.iter().enumerate().filter_map(span).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thought_grows_from_its_first_token_to_its_last() {
        let thought = Thought::default();
        assert_eq!(thought.tokens(), None);
        thought.grow(3);
        assert_eq!(thought.tokens(), Some(3..4));
        thought.grow(4);
        thought.grow(9);
        assert_eq!(thought.tokens(), Some(3..10));
        assert!(!thought.is_over());
        thought.close();
        assert!(thought.is_over());
    }
}
