//! One answer under a grammar.

use std::fmt;
use std::sync::Arc;

use llguidance::Matcher;
use llguidance::api::StopReason;
use llguidance::toktrie::{SimpleVob, TokEnv, TokenId};

use crate::budget::{Meter, ThoughtBudget};
use crate::tokens::Filter;

/// What may follow the tokens of an answer.
///
/// It accepts tokens when they are drawn, which is before it is certain that they are the answer's: a step may be
/// computed again, and what was drawn behind a stop string is of no answer. So each query has a position, to which it
/// rewinds.
pub struct Constraint {
    /// `None`: any text will do.
    matcher: Option<Matcher>,
    metered: Option<Metered>,
    filtered: Option<Filtered>,
    /// Tokens that end the answer and are text as well.
    spelled_ends: Arc<[TokenId]>,
    /// The place of the last token that the matcher does not take back, and the matcher there: an end that has text, or
    /// what closed a thought within a character.
    before: Option<(usize, Matcher)>,
    /// Tokens it has accepted.
    len: usize,
    mask: SimpleVob,
    /// The number of tokens that `mask` follows.
    ready: Option<usize>,
}

/// The budget of the answer's thought.
struct Metered {
    budget: Arc<ThoughtBudget>,
    env: TokEnv,
    meter: Meter,
}

/// Which tokens the answer may have, and those that it has.
struct Filtered {
    filter: Arc<Filter>,
    said: Vec<TokenId>,
}

impl Filtered {
    /// Whether these drafts may follow the accepted tokens.
    fn allows(&self, drafts: &[TokenId]) -> bool {
        let mut said = self.said.clone();
        drafts.iter().all(|&token| {
            let is_allowed = self.filter.allows(token, &said);
            said.push(token);
            is_allowed
        })
    }
}

impl Metered {
    fn accept(&mut self, token: u32) {
        self.meter.accept(token, &self.budget, self.env.tok_trie());
    }

    fn only(&self) -> Option<u32> {
        self.meter.only(&self.budget)
    }

    /// The only token that may follow the first `at` tokens and `drafts`; `Err` holds a draft that may not be there.
    fn only_behind(&mut self, at: usize, drafts: &[u32]) -> Result<Option<u32>, u32> {
        let mut refused = None;
        for &token in drafts {
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
    /// What follows grammars failed by itself.
    #[error("the parser of grammars failed at this place")]
    Failed,
}

impl Constraint {
    pub(crate) fn new(
        matcher: Option<Matcher>,
        budget: Option<(Arc<ThoughtBudget>, TokEnv)>,
        filter: Option<Arc<Filter>>,
        spelled_ends: Arc<[TokenId]>,
    ) -> Constraint {
        let metered = budget.map(|(budget, env)| Metered { meter: Meter::new(&budget), budget, env });
        let filtered = filter.map(|filter| Filtered { filter, said: Vec::new() });
        Constraint {
            matcher,
            metered,
            filtered,
            spelled_ends,
            before: None,
            len: 0,
            mask: SimpleVob::new(),
            ready: None,
        }
    }

    /// One bit per token, 32 to a word, the lowest first: those that may follow the first `at` tokens; `None` where
    /// each may. What was accepted beyond them is forgotten.
    ///
    /// Cost: most often tens of microseconds; bounded in steps; nothing where it was asked for this before.
    pub fn mask(&mut self, at: usize) -> Result<Option<&[u32]>, ConstraintError> {
        if self.ready == Some(at) && self.len == at {
            return Ok(Some(self.mask.as_slice()));
        }
        self.rewind(at)?;
        let open = match (self.metered.as_ref().and_then(Metered::only), &mut self.matcher) {
            (Some(only), _) => Some(self.one(only)),
            (None, Some(matcher)) => Some(computed(matcher, &self.spelled_ends).ok_or_else(|| why(matcher))?),
            (None, None) => None,
        };
        let mask = self.narrowed(open, &[]);
        if mask.as_ref().is_some_and(SimpleVob::is_zero) {
            return Err(ConstraintError::NothingFollows);
        }
        let ready = mask.is_some().then_some(at);
        self.kept(mask);
        self.ready = ready;
        Ok(ready.map(|_| self.mask.as_slice()))
    }

    /// The mask behind the first `at` tokens and `drafts`; `Some(None)` where each token may follow. `None`: the drafts
    /// cannot follow, or nothing can follow them.
    ///
    /// Cost: that of a mask, and a copy of the parser's state, since a draft that takes too many steps must not end the
    /// answer.
    pub fn mask_behind(&mut self, at: usize, drafts: &[u32]) -> Option<Option<&[u32]>> {
        self.rewind(at).ok()?;
        if self.filtered.as_ref().is_some_and(|filtered| !filtered.allows(drafts)) {
            return None;
        }
        let only = match &mut self.metered {
            Some(metered) => metered.only_behind(at, drafts).ok()?,
            None => None,
        };
        let mut other = self.matcher.as_ref().map(Matcher::deep_clone);
        if let Some(other) = &mut other {
            if other.validate_tokens(drafts).ok()? < drafts.len() {
                return None;
            }
            other.consume_tokens(drafts).ok()?;
            if other.is_stopped() {
                return None;
            }
        }
        let open = match (only, other) {
            (Some(only), _) => Some(self.one(only)),
            (None, Some(mut other)) => Some(computed(&mut other, &self.spelled_ends)?),
            (None, None) => None,
        };
        let mask = self.narrowed(open, drafts);
        Some(self.kept(mask))
    }

    /// The next token, which its last mask allowed.
    pub fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        self.ready = None;
        let is_forced = self.metered.as_ref().and_then(Metered::only) == Some(token);
        if let Some(matcher) = &mut self.matcher {
            let is_within = is_forced && !fits(matcher, token);
            if is_within || self.spelled_ends.contains(&token) {
                self.before = Some((self.len, matcher.deep_clone()));
            }
            if is_within {
                // A rule knows no half of a character: it hears of the thought without it.
                (0..self.len.min(3)).any(|_| matcher.rollback(1).is_ok() && fits(matcher, token));
            }
            matcher.consume_token(token).map_err(|_| why(matcher))?;
        }
        if let Some(metered) = &mut self.metered {
            metered.accept(token);
        }
        if let Some(filtered) = &mut self.filtered {
            filtered.said.push(token);
        }
        self.len += 1;
        Ok(())
    }

    /// Whether the first `at` tokens are complete, and nothing but an end can follow them. Only what was accepted last
    /// is known to be.
    pub fn is_complete(&self, at: usize) -> bool {
        // A matcher stops at a dead end too, which is no end of a text that fits.
        let is_end =
            |matcher: &Matcher| matches!(matcher.stop_reason(), StopReason::NoExtension | StopReason::EndOfSentence);
        self.len == at && self.matcher.as_ref().is_some_and(is_end)
    }

    fn rewind(&mut self, at: usize) -> Result<(), ConstraintError> {
        assert!(at <= self.len, "it has accepted {} tokens and is asked behind {at}", self.len);
        if at < self.len {
            if let Some(matcher) = &mut self.matcher {
                let mut beyond = self.len - at;
                if let Some((len, before)) = self.before.take_if(|(len, _)| *len >= at) {
                    (*matcher, beyond) = (before, len - at);
                }
                matcher.rollback(beyond).map_err(|_| why(matcher))?;
            }
            if let Some(metered) = &mut self.metered {
                metered.meter.rewind(at);
            }
            if let Some(filtered) = &mut self.filtered {
                filtered.said.truncate(at);
            }
            self.len = at;
        }
        Ok(())
    }

    /// A mask with one token.
    fn one(&self, token: u32) -> SimpleVob {
        let metered = self.metered.as_ref();
        let mut mask = metered.map_or_else(SimpleVob::new, |metered| metered.env.tok_trie().alloc_token_set());
        mask.allow_token(token);
        mask
    }

    /// What the filter leaves of a mask, behind drafts.
    fn narrowed(&self, open: Option<SimpleVob>, drafts: &[u32]) -> Option<SimpleVob> {
        match &self.filtered {
            Some(Filtered { filter, said }) if drafts.is_empty() => filter.narrow(open, said),
            Some(Filtered { filter, said }) => filter.narrow(open, &[said, drafts].concat()),
            None => open,
        }
    }

    /// The same mask, to be read until the next is asked for.
    fn kept(&mut self, mask: Option<SimpleVob>) -> Option<&[u32]> {
        self.ready = None;
        self.mask = mask?;
        Some(self.mask.as_slice())
    }
}

/// The mask of a matcher. A token that ends the answer is allowed where its text is, and so in the middle of the answer:
/// it is left out unless the answer is complete before it or with it.
fn computed(matcher: &mut Matcher, spelled_ends: &[TokenId]) -> Option<SimpleVob> {
    let mut mask = matcher.compute_mask().ok()?;
    let open: Vec<TokenId> = spelled_ends.iter().copied().filter(|&end| mask.is_allowed(end)).collect();
    if !open.is_empty() && !matcher.is_accepting().ok()? {
        for end in open {
            let mut behind = matcher.deep_clone();
            if behind.consume_token(end).is_err() || !behind.is_accepting().unwrap_or(false) {
                mask.disallow_token(end);
            }
        }
    }
    Some(mask)
}

fn fits(matcher: &mut Matcher, token: TokenId) -> bool {
    matcher.validate_tokens(&[token]).is_ok_and(|count| count == 1)
}

/// Why a matcher failed. It forgets its reason to stop, and keeps the message.
fn why(matcher: &Matcher) -> ConstraintError {
    let message = matcher.get_error().unwrap_or_default();
    let says = |words: &[&str]| words.iter().any(|words| message.contains(words));
    if says(&["NoExtensionBias"]) {
        ConstraintError::NothingFollows
    } else if says(&["lexer error: ", "parser error", "Current row has "]) {
        ConstraintError::TooComplex
    } else {
        ConstraintError::Failed
    }
}

impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Constraint").field("len", &self.len).finish()
    }
}
