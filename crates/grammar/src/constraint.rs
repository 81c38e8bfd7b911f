//! One answer under a grammar.

use std::fmt;
use std::sync::Arc;

use llguidance::Matcher;
use llguidance::api::StopReason;
use llguidance::toktrie::{SimpleVob, TokEnv};

use crate::budget::{Meter, ThoughtBudget};

/// What may follow the tokens of an answer.
///
/// It is told of tokens when they are drawn, which is before it is certain that they are the answer's: a step may be
/// computed again, and what was drawn behind a stop string is of no answer. So it is asked with a position, and goes
/// back to it.
pub struct Constraint {
    /// `None`: any text will do.
    matcher: Option<Matcher>,
    metered: Option<Metered>,
    /// Tokens it has accepted.
    len: usize,
    mask: SimpleVob,
}

/// The budget of the answer's thought.
struct Metered {
    budget: Arc<ThoughtBudget>,
    env: TokEnv,
    meter: Meter,
}

impl Metered {
    fn accept(&mut self, token: u32) {
        self.meter.accept(token, &self.budget, self.env.tok_trie());
    }

    fn only(&self) -> Option<u32> {
        self.meter.only(&self.budget)
    }

    /// What may follow so many tokens and others that are only guessed: `Err` where one of those may not.
    fn only_behind(&mut self, at: usize, guessed: &[u32]) -> Result<Option<u32>, u32> {
        let mut refused = None;
        for &token in guessed {
            if self.only().is_some_and(|only| only != token) {
                refused = Some(token);
                break;
            }
            self.accept(token);
        }
        let only = self.only();
        self.meter.rewind(at);
        refused.map_or(Ok(only), Err)
    }
}

/// Why an answer cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    /// No token of the vocabulary can follow, and the answer is not complete.
    #[error("no token of this model can follow what its grammar has so far")]
    NothingFollows,
    /// Finding out what may follow takes more steps than there are.
    #[error("the grammar takes too many steps at this place")]
    TooComplex,
}

impl Constraint {
    pub(crate) fn new(matcher: Option<Matcher>, budget: Option<(Arc<ThoughtBudget>, TokEnv)>) -> Constraint {
        let metered = budget.map(|(budget, env)| Metered { meter: Meter::new(&budget), budget, env });
        Constraint { matcher, metered, len: 0, mask: SimpleVob::new() }
    }

    /// One bit per token, 32 to a word, the lowest first: those that may follow the first `at` tokens; `None` where
    /// each may. What was accepted beyond them is forgotten.
    ///
    /// Cost: most often tens of microseconds; bounded in steps.
    pub fn mask(&mut self, at: usize) -> Result<Option<&[u32]>, ConstraintError> {
        self.rewind(at)?;
        if let Some(only) = self.metered.as_ref().and_then(Metered::only) {
            return Ok(Some(self.one(only)));
        }
        let Some(matcher) = &mut self.matcher else { return Ok(None) };
        self.mask = matcher.compute_mask().map_err(|_| why(matcher))?;
        Ok(Some(self.mask.as_slice()))
    }

    /// The mask behind the first `at` tokens and others that are only guessed; `Some(None)` where each token may
    /// follow. `None`: the guesses cannot follow, or nothing can follow them.
    ///
    /// Cost: that of a mask, and a copy of all that is known. A guess that takes too many steps must not end the
    /// answer.
    pub fn mask_behind(&mut self, at: usize, guessed: &[u32]) -> Option<Option<&[u32]>> {
        self.rewind(at).ok()?;
        let only = match &mut self.metered {
            Some(metered) => metered.only_behind(at, guessed).ok()?,
            None => None,
        };
        let mut other = match &self.matcher {
            Some(matcher) => matcher.deep_clone(),
            None => return Some(only.map(|only| self.one(only))),
        };
        if other.validate_tokens(guessed).ok()? < guessed.len() {
            return None;
        }
        other.consume_tokens(guessed).ok()?;
        if other.is_stopped() {
            return None;
        }
        if let Some(only) = only {
            return Some(Some(self.one(only)));
        }
        self.mask = other.compute_mask().ok()?;
        Some(Some(self.mask.as_slice()))
    }

    /// The next token, which its last mask allowed.
    pub fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        if let Some(matcher) = &mut self.matcher {
            matcher.consume_token(token).map_err(|_| ConstraintError::TooComplex)?;
        }
        if let Some(metered) = &mut self.metered {
            metered.accept(token);
        }
        self.len += 1;
        Ok(())
    }

    /// Whether the first `at` tokens are complete, and nothing but an end can follow them. Only what was accepted last
    /// is known to be.
    pub fn is_complete(&self, at: usize) -> bool {
        self.len == at && self.matcher.as_ref().is_some_and(Matcher::is_stopped)
    }

    fn rewind(&mut self, at: usize) -> Result<(), ConstraintError> {
        assert!(at <= self.len, "it has accepted {} tokens and is asked behind {at}", self.len);
        let beyond = self.len - at;
        if beyond > 0 {
            if let Some(matcher) = &mut self.matcher {
                matcher.rollback(beyond).map_err(|_| why(matcher))?;
            }
            if let Some(metered) = &mut self.metered {
                metered.meter.rewind(at);
            }
            self.len = at;
        }
        Ok(())
    }

    /// A mask with one token.
    fn one(&mut self, token: u32) -> &[u32] {
        self.mask = SimpleVob::alloc(self.metered.as_ref().map_or(0, |metered| metered.env.tok_trie().vocab_size()));
        self.mask.allow_token(token);
        self.mask.as_slice()
    }
}

fn why(matcher: &Matcher) -> ConstraintError {
    match matcher.stop_reason() {
        StopReason::NoExtensionBias => ConstraintError::NothingFollows,
        _ => ConstraintError::TooComplex,
    }
}

impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Constraint").field("len", &self.len).finish()
    }
}
