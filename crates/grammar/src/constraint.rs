//! One answer under a grammar.

use std::fmt;

use llguidance::Matcher;
use llguidance::api::StopReason;
use llguidance::toktrie::SimpleVob;

/// What may follow the tokens of an answer.
///
/// It is told of tokens when they are drawn, which is before it is certain that they are the answer's: a step may be
/// computed again, and what was drawn behind a stop string is of no answer. So it is asked with a position, and goes
/// back to it.
pub struct Constraint {
    matcher: Matcher,
    /// Tokens it has accepted.
    len: usize,
    mask: SimpleVob,
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
    pub(crate) fn new(matcher: Matcher) -> Constraint {
        Constraint { matcher, len: 0, mask: SimpleVob::new() }
    }

    /// One bit per token, 32 to a word, the lowest first: those that may follow the first `at` tokens. What was
    /// accepted beyond them is forgotten.
    ///
    /// Cost: most often tens of microseconds; bounded in steps.
    pub fn mask(&mut self, at: usize) -> Result<&[u32], ConstraintError> {
        self.rewind(at)?;
        self.mask = self.matcher.compute_mask().map_err(|_| self.why())?;
        Ok(self.mask.as_slice())
    }

    /// The mask behind the first `at` tokens and others that are only guessed. `None`: they cannot follow, or nothing
    /// can follow them.
    ///
    /// Cost: that of a mask, and a copy of all that is known. A guess that takes too many steps must not end the
    /// answer.
    pub fn mask_behind(&mut self, at: usize, guessed: &[u32]) -> Option<&[u32]> {
        self.rewind(at).ok()?;
        let mut other = self.matcher.deep_clone();
        if other.validate_tokens(guessed).ok()? < guessed.len() {
            return None;
        }
        other.consume_tokens(guessed).ok()?;
        self.mask = if other.is_stopped() { return None } else { other.compute_mask().ok()? };
        Some(self.mask.as_slice())
    }

    /// The next token, which its last mask allowed.
    pub fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        self.matcher.consume_token(token).map_err(|_| ConstraintError::TooComplex)?;
        self.len += 1;
        Ok(())
    }

    /// Whether the first `at` tokens are complete, and nothing but an end can follow them. Only what was accepted last
    /// is known to be.
    pub fn is_complete(&self, at: usize) -> bool {
        self.len == at && self.matcher.is_stopped()
    }

    fn rewind(&mut self, at: usize) -> Result<(), ConstraintError> {
        assert!(at <= self.len, "it has accepted {} tokens and is asked behind {at}", self.len);
        let beyond = self.len - at;
        if beyond > 0 {
            self.matcher.rollback(beyond).map_err(|_| self.why())?;
            self.len = at;
        }
        Ok(())
    }

    fn why(&self) -> ConstraintError {
        match self.matcher.stop_reason() {
            StopReason::NoExtensionBias => ConstraintError::NothingFollows,
            _ => ConstraintError::TooComplex,
        }
    }
}

impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Constraint").field("len", &self.len).finish()
    }
}
