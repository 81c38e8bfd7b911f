//! Text to ids in one pass, with memory for one piece and not for the text.
//!
//! ```text
//! text ──added──► [text][<|user|>][text]            found by one automaton, left to right
//!                   │
//!                   └─normalize──► segment          borrowed unless a rule changes it
//!                        └─split──► piece           one at a time, stage within stage
//!                             └─merge──► ids        BPE, on the piece or on runs of it that no merge can join
//! ```
//!
//! The `tokenizers` crate runs each stage over the whole text before the next, and keeps for every byte of every stage
//! where it came from: some 300 bytes for each byte of text. Nobody here asks where a token came from. So the stages of
//! the tokenizers in use are written again as a stream: a piece is split, merged and forgotten before the next is
//! looked at. What makes that exact is that no stage looks back. An added token is found by what follows its first
//! character; a split pattern without look-around matches from where the last match ended, on what follows; a piece's
//! ids depend on the piece alone.
//!
//! The crate stays the definition. A tokenizer with a stage that is not in the list of [`Plan::compile`] is left to the
//! crate, on texts of [`MAX_WHOLE_BYTES`] at most, and tests compare the two on every family of tokenizers.
//!
//! Long work calls [`pace::pause`] between pieces and within a long one.

mod added;
mod merge;
mod normalize;
mod split;

use tokenizers::{AddedVocabulary, Encoding, Model as _, ModelWrapper, PostProcessor, Token};

use self::added::{AddedTokens, Found};
use self::merge::{Bpe, Scratch};
use self::normalize::Normalizer;
use self::split::Stages;
use crate::check::MergeList;
use crate::error::TextError;
use crate::pace;

/// Longest text for a tokenizer with a stage that only the crate has. It takes about 300 bytes of memory for each byte,
/// and for some stages time that grows with the square.
pub(crate) const MAX_WHOLE_BYTES: usize = 256 << 10;
/// The same where an added token looks at what is before it: the crate then reads the text from its beginning for every
/// one that it finds.
pub(crate) const MAX_LOOKED_BACK_BYTES: usize = 32 << 10;

/// The stages of one tokenizer.
#[derive(Debug)]
pub(crate) struct Plan {
    added: AddedTokens,
    normalizer: Normalizer,
    stages: Stages,
    model: Bpe,
    /// What the tokenizer puts around a text.
    prefix: Vec<u32>,
    suffix: Vec<u32>,
}

/// What is taken for more than its characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Specials {
    /// The text of special tokens becomes those tokens.
    Parsed,
    /// It is text like any other.
    Plain,
}

impl Plan {
    /// `None`: a stage is not one of those that are known here. `merges`: of the file's `model`, in order.
    pub(crate) fn compile(inner: &tokenizers::Tokenizer, merges: &MergeList) -> Option<Plan> {
        let ModelWrapper::BPE(bpe) = inner.get_model() else { return None };
        let stages = Stages::compile(inner.get_pre_tokenizer())?;
        let model = Bpe::compile(bpe, merges, stages.byte_level())?;
        let normalizer = Normalizer::compile(inner.get_normalizer())?;
        let added = AddedTokens::compile(inner.get_added_vocabulary())?;
        let (prefix, suffix) = surroundings(inner)?;
        Some(Plan { added, normalizer, stages, model, prefix, suffix })
    }

    /// The ids of `text`; `whole`: with what the tokenizer puts around a text.
    pub(crate) fn encode(&self, text: &str, specials: Specials, whole: bool) -> Result<Vec<u32>, TextError> {
        let mut run = Run { plan: self, ids: Vec::new(), scratch: Scratch::default(), unpaid: 0 };
        if whole {
            run.ids.extend(&self.prefix);
        }
        self.added.find(text, specials, |found| match found {
            Found::Token(id) => {
                run.ids.push(id);
                Ok(())
            }
            Found::Text(range) => {
                let first = range.start == 0;
                let segment = self.normalizer.normalize(&text[range])?;
                self.added.find_normalized(&segment, specials, |found| match found {
                    Found::Token(id) => {
                        run.ids.push(id);
                        Ok(())
                    }
                    Found::Text(range) => run.pieces(&segment[range.clone()], first && range.start == 0),
                })
            }
        })?;
        if whole {
            run.ids.extend(&self.suffix);
        }
        Ok(run.ids)
    }

    /// Special tokens of `text` parsed; in what is left `restore` is applied, and the result is plain text.
    pub(crate) fn encode_restoring(&self, text: &str, restore: &[(char, char)]) -> Result<Vec<u32>, TextError> {
        let mut run = Run { plan: self, ids: Vec::new(), scratch: Scratch::default(), unpaid: 0 };
        let mut restored = String::new();
        // Both kinds of added tokens are found before the normalizer sees anything: it must not see the marks.
        self.added.find(text, Specials::Parsed, |found| match found {
            Found::Token(id) => {
                run.ids.push(id);
                Ok(())
            }
            Found::Text(range) => {
                let (offset, part) = (range.start, &text[range]);
                self.added.find_normalized(part, Specials::Parsed, |found| match found {
                    Found::Token(id) => {
                        run.ids.push(id);
                        Ok(())
                    }
                    Found::Text(range) => {
                        let first = offset + range.start == 0;
                        restored.clear();
                        let original =
                            |c| restore.iter().find(|(mark, _)| *mark == c).map_or(c, |(_, original)| *original);
                        restored.extend(part[range].chars().map(original));
                        let segment = self.normalizer.normalize(&restored)?;
                        run.pieces(&segment, first)
                    }
                })
            }
        })?;
        Ok(run.ids)
    }

    /// Most bytes of text that one token can stand for; `None` where a token may stand for any number of them.
    pub(crate) fn max_bytes_per_token(&self) -> Option<usize> {
        if self.added.eat_spaces() || !self.stages.keeps_all() {
            return None;
        }
        Some(self.model.longest_token()?.max(self.added.longest()) * self.normalizer.shrinks_by()?)
    }
}

/// One text on its way.
struct Run<'p> {
    plan: &'p Plan,
    ids: Vec<u32>,
    scratch: Scratch,
    /// Bytes since the last pause.
    unpaid: usize,
}

impl Run<'_> {
    /// A stretch of text without added tokens, normalized. `first`: it begins where the whole text does.
    fn pieces(&mut self, segment: &str, first: bool) -> Result<(), TextError> {
        let Run { plan, ids, scratch, unpaid } = self;
        plan.stages.pieces(segment, first, &mut |piece| {
            *unpaid += piece.len();
            if *unpaid >= pace::WINDOW_BYTES {
                pace::pause(std::mem::take(unpaid))?;
            }
            plan.model.append(piece, scratch, ids)
        })
    }
}

impl Plan {
    /// `ids` with what the tokenizer puts around a text.
    pub(crate) fn surrounded(&self, ids: &[u32]) -> Vec<u32> {
        [&self.prefix, ids, &self.suffix].concat()
    }
}

/// What the tokenizer puts before and after a text: its post-processor, run on one made-up token.
fn surroundings(inner: &tokenizers::Tokenizer) -> Option<(Vec<u32>, Vec<u32>)> {
    const TEXT: u32 = u32::MAX;
    let Some(processor) = inner.get_post_processor() else { return Some(Default::default()) };
    let around = |add_special| {
        let text = Encoding::from_tokens(vec![Token::new(TEXT, String::new(), (0, 0))], 0);
        let ids = processor.process(text, None, add_special).ok()?.get_ids().to_vec();
        let mut parts = ids.split(|&id| id == TEXT);
        match (parts.next(), parts.next(), parts.next()) {
            (Some(prefix), Some(suffix), None) => Some((prefix.to_vec(), suffix.to_vec())),
            _ => None,
        }
    };
    // Without special tokens a text is its own tokens and nothing else.
    (around(false)? == (Vec::new(), Vec::new())).then(|| around(true)).flatten()
}

/// Added tokens by id, with the text that is looked for in a normalized text.
fn added_tokens(vocabulary: &AddedVocabulary) -> impl Iterator<Item = (u32, &tokenizers::AddedToken, String)> {
    let tokens = vocabulary.get_added_tokens_decoder().iter();
    tokens.map(|(&id, token)| (id, token, vocabulary.simple_id_to_token(id).unwrap_or_default()))
}

/// The id of a token's name in the model's vocabulary.
fn id_of(model: &tokenizers::models::bpe::BPE, name: &str) -> Option<u32> {
    model.token_to_id(name)
}
