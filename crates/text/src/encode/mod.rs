//! Streaming encoder: text to ids in one pass, with memory for one piece instead of the whole text.
//!
//! ```text
//! text ──added──► [text][<|user|>][text]            found by one automaton, left to right
//!                   │
//!                   └─normalize──► segment          borrowed unless a rule changes it
//!                        └─split──► piece           one at a time, stage within stage
//!                             └─merge──► ids        BPE, on the piece or on runs of it that no merge can join
//! ```
//!
//! The `tokenizers` crate runs each stage over the whole text before the next, and tracks offsets of every byte of
//! every stage: some 300 bytes for each byte of text. Offsets are not needed here, so the stages of common tokenizers
//! are reimplemented as a stream: a piece is split, merged and dropped before the next begins. This is exact because no
//! stage looks back. An added token is found by the text from its first character on; a split pattern without
//! look-around matches from the end of the last match on; a piece's ids depend on the piece alone.
//!
//! The crate stays the definition. It encodes for a tokenizer with a stage that [`StreamEncoder::compile`] does not
//! know, in texts of at most [`MAX_WHOLE_BYTES`]; tests compare the two on every family of tokenizers.
//!
//! Long work calls [`yield_point::yield_point`] between pieces and within a long one.

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
use crate::yield_point;

/// Maximum bytes of text for a tokenizer with a stage that only the crate has: about 300 bytes of memory for each byte,
/// and quadratic time in some stages.
pub(crate) const MAX_WHOLE_BYTES: usize = 256 << 10;
/// The same if an added token looks at the text before it: the crate then rereads the text from its beginning for
/// every match.
pub(crate) const MAX_LOOKED_BACK_BYTES: usize = 32 << 10;

/// The stages of one tokenizer.
#[derive(Debug)]
pub(crate) struct StreamEncoder {
    added: AddedTokens,
    normalizer: Normalizer,
    stages: Stages,
    model: Bpe,
    /// Special tokens added around a text.
    prefix: Vec<u32>,
    suffix: Vec<u32>,
}

/// Whether special tokens are parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Specials {
    /// The text of special tokens becomes those tokens.
    Parsed,
    /// It is encoded as plain text.
    Plain,
}

impl StreamEncoder {
    /// `None` if a stage is unknown here. `merges`: those of the file's `model`, in order.
    pub(crate) fn compile(inner: &tokenizers::Tokenizer, merges: &MergeList) -> Option<StreamEncoder> {
        let ModelWrapper::BPE(bpe) = inner.get_model() else { return None };
        let stages = Stages::compile(inner.get_pre_tokenizer())?;
        let model = Bpe::compile(bpe, merges, stages.byte_level())?;
        let normalizer = Normalizer::compile(inner.get_normalizer())?;
        let added = AddedTokens::compile(inner.get_added_vocabulary())?;
        let (prefix, suffix) = surroundings(inner)?;
        Some(StreamEncoder { added, normalizer, stages, model, prefix, suffix })
    }

    /// The ids of `text`; `whole`: with the special tokens added around a text.
    pub(crate) fn encode(&self, text: &str, specials: Specials, whole: bool) -> Result<Vec<u32>, TextError> {
        let mut run = Run { plan: self, ids: Vec::new(), scratch: Scratch::default(), since_yield: 0 };
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

    /// Parses the special tokens of `text`, applies `restore` to the rest, and encodes that as plain text.
    pub(crate) fn encode_restoring(&self, text: &str, restore: &[(char, char)]) -> Result<Vec<u32>, TextError> {
        let mut run = Run { plan: self, ids: Vec::new(), scratch: Scratch::default(), since_yield: 0 };
        let mut restored = String::new();
        // Both kinds of added tokens are found before the normalizer, which must not see the marks.
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

    /// Maximum bytes of text in one token; `None` if there is no maximum.
    pub(crate) fn max_bytes_per_token(&self) -> Option<usize> {
        if self.added.eat_spaces() || !self.stages.keeps_all() {
            return None;
        }
        Some(self.model.longest_token()?.max(self.added.longest()) * self.normalizer.shrinks_by()?)
    }
}

/// The state of encoding one text.
struct Run<'p> {
    plan: &'p StreamEncoder,
    ids: Vec<u32>,
    scratch: Scratch,
    /// Bytes since the last yield point.
    since_yield: usize,
}

impl Run<'_> {
    /// Encodes a normalized segment without added tokens. `first`: it begins where the whole text does.
    fn pieces(&mut self, segment: &str, first: bool) -> Result<(), TextError> {
        let Run { plan, ids, scratch, since_yield } = self;
        plan.stages.pieces(segment, first, &mut |piece| {
            *since_yield += piece.len();
            if *since_yield >= yield_point::WINDOW_BYTES {
                yield_point::yield_point(std::mem::take(since_yield))?;
            }
            plan.model.append(piece, scratch, ids)
        })
    }
}

impl StreamEncoder {
    /// `ids` with the special tokens added around a text.
    pub(crate) fn with_special_tokens(&self, ids: &[u32]) -> Vec<u32> {
        [&self.prefix, ids, &self.suffix].concat()
    }
}

/// Special tokens before and after a text: the post-processor's result for one placeholder token.
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
    // Without special tokens, the post-processor must add nothing.
    (around(false)? == (Vec::new(), Vec::new())).then(|| around(true)).flatten()
}

/// Added tokens by id, with the text to search for in a normalized text.
fn added_tokens(vocabulary: &AddedVocabulary) -> impl Iterator<Item = (u32, &tokenizers::AddedToken, String)> {
    let tokens = vocabulary.get_added_tokens_decoder().iter();
    tokens.map(|(&id, token)| (id, token, vocabulary.simple_id_to_token(id).unwrap_or_default()))
}

/// The id of a token's name in the model's vocabulary.
fn id_of(model: &tokenizers::models::bpe::BPE, name: &str) -> Option<u32> {
    model.token_to_id(name)
}
