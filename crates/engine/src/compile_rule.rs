//! What answers must look like: from the rule of a request to a grammar over this model's vocabulary.

use std::sync::{Arc, Mutex, PoisonError};

use grammar::{Grammar, Rule, RuleError, Vocabulary};
use protocol::TokenId;

use crate::ModelInfo;

/// A model's tokens as bytes. They are arranged when the first request needs them: a tenth of a second and some
/// megabytes for 50,000 tokens.
#[derive(Debug, Default)]
pub struct LazyVocabulary {
    /// Where the marks of thoughts and calls are text to some requests there are two.
    arranged: Mutex<Vec<Arranged>>,
}

/// Which special tokens are text, and all tokens with those.
type Arranged = (Arc<[TokenId]>, Arc<Vocabulary>);

/// One for requests that are heard, one for those that are not, and one to spare for a recording of other days.
const MOST_ARRANGED: usize = 3;

impl ModelInfo {
    /// The grammar of a rule. Milliseconds, bounded in steps; those asked for last are kept.
    pub(crate) fn grammar(&self, rule: &Rule, shown: &Arc<[TokenId]>) -> Result<Grammar, RuleError> {
        let tokenizer = self.tokenizer.as_ref().ok_or(RuleError::NoTokenizer)?;
        let vocabulary = {
            // Another thread waits meanwhile: the work is not to be done twice.
            let mut arranged = self.vocabulary.arranged.lock().unwrap_or_else(PoisonError::into_inner);
            match arranged.iter().find(|(for_those, _)| for_those == shown) {
                Some((_, vocabulary)) => vocabulary.clone(),
                None => {
                    let new = Vocabulary::new(tokenizer, self.config.vocab_size, &self.eos_token_ids, shown);
                    let new = Arc::new(new);
                    arranged.truncate(MOST_ARRANGED - 1);
                    arranged.push((shown.clone(), new.clone()));
                    new
                }
            }
        };
        vocabulary.compile(rule)
    }
}
