//! Which tokens an answer may have, whatever their text.
//!
//! ```text
//! only:   [5, 9, 11]         a mask that is the same at each place, as are runs of one token
//! never:  [[7], [3, 4]]      behind a 3 no 4 may follow
//! ```

use llguidance::toktrie::{SimpleVob, TokTrie, TokenId};
use serde::{Deserialize, Serialize};

/// Tokens that may be chosen and runs of them that may not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TokenRule {
    /// These alone. What ends an answer is no exception: without it an answer is as long as it may be. `None`: all.
    pub only: Option<Vec<TokenId>>,
    /// Runs that are in no answer: the last token of one does not follow the others. None is empty.
    pub never: Vec<Vec<TokenId>>,
}

impl TokenRule {
    /// Bytes of its tokens.
    pub(crate) fn bytes(&self) -> usize {
        let tokens = self.only.iter().chain(&self.never).map(Vec::len).sum::<usize>();
        tokens * size_of::<TokenId>()
    }
}

/// A rule over a vocabulary. Answers share it.
#[derive(Debug)]
pub(crate) struct Filter {
    /// Tokens that may be chosen at any place; `None`: all.
    anywhere: Option<SimpleVob>,
    /// Runs of two tokens and more.
    runs: Vec<Vec<TokenId>>,
    /// All tokens, as large as a grammar's masks.
    all: SimpleVob,
}

impl Filter {
    pub(crate) fn new(rule: &TokenRule, trie: &TokTrie) -> Filter {
        let vocab_size = trie.vocab_size();
        let mut all = trie.alloc_token_set();
        (0..vocab_size as TokenId).for_each(|token| all.allow_token(token));
        let is_known = |token: TokenId| (token as usize) < vocab_size;
        let mut anywhere = rule.only.as_ref().map(|only| {
            let mut mask = trie.alloc_token_set();
            only.iter().filter(|&&token| is_known(token)).for_each(|&token| mask.allow_token(token));
            mask
        });
        let mut runs = Vec::new();
        for run in &rule.never {
            match run[..] {
                [] => {}
                [one] if is_known(one) => {
                    anywhere.get_or_insert_with(|| all.clone()).disallow_token(one);
                }
                [_] => {}
                _ => runs.push(run.clone()),
            }
        }
        Filter { anywhere, runs, all }
    }

    /// Takes out of a mask, `None` being all, what may not follow the tokens `said`.
    pub(crate) fn narrow(&self, mask: Option<SimpleVob>, said: &[TokenId]) -> Option<SimpleVob> {
        let mut narrowed = match (mask, &self.anywhere) {
            (Some(mut mask), Some(anywhere)) => {
                mask.and(anywhere);
                Some(mask)
            }
            (mask, anywhere) => mask.or_else(|| anywhere.clone()),
        };
        for last in self.forbidden(said) {
            let mask = narrowed.get_or_insert_with(|| self.all.clone());
            if (last as usize) < mask.len() {
                mask.disallow_token(last);
            }
        }
        narrowed
    }

    /// Whether a token may follow the tokens `said`.
    pub(crate) fn allows(&self, token: TokenId, said: &[TokenId]) -> bool {
        let anywhere =
            self.anywhere.as_ref().is_none_or(|mask| (token as usize) < mask.len() && mask.is_allowed(token));
        anywhere && self.forbidden(said).all(|last| last != token)
    }

    /// Tokens that would end a run.
    fn forbidden<'a>(&'a self, said: &'a [TokenId]) -> impl Iterator<Item = TokenId> + 'a {
        self.runs.iter().filter_map(move |run| {
            let (&last, before) = run.split_last()?;
            said.ends_with(before).then_some(last)
        })
    }
}
