//! Text to token ids and back, by the rules in a model's `tokenizer.json`.
//!
//! ```text
//! encode        "<|user|>hi"  ──special tokens parsed──►  [2042, 3921]      trusted text: the prompt's own format
//! encode_plain  "<|user|>hi"  ──all of it plain text──►   [27, 91, ...]     untrusted text
//! decode        ids ──bytes of each token, concatenated──► UTF-8, U+FFFD for invalid bytes
//! ```
//!
//! Encoding is the `tokenizers` crate's, so it agrees with Hugging Face by construction. Decoding is a table built at
//! load: the bytes of every token, and a rule for leading spaces. So decoding is a plain concatenation, which
//! [`Detokenizer`](crate::detokenizer::Detokenizer) can cut anywhere. It agrees with the crate's decoder on all valid
//! text; where a run of byte tokens is not UTF-8, the crate replaces every byte of the run, this table only the invalid
//! bytes.
//!
//! A `tokenizer.json` is untrusted. Its size is capped before it is parsed; an id without an embedding row, an empty
//! added token, or a pattern that needs backtracking is an error that names the field; a panic inside the crate is
//! caught and becomes an error.

use std::collections::HashMap;

use checkpoint::{Checkpoint, LoadError, brief};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::tokenizer::{AddedVocabulary, Model as _, Normalizer as _, PreTokenizer as _};
use tokenizers::{
    DecoderWrapper, Encoding, ModelWrapper, OffsetType, PostProcessorWrapper, PreTokenizedString, PreTokenizerWrapper,
    Token,
};

use crate::alphabet::byte_of;
use crate::catch_panic::catch;
use crate::check::{self, TOKENIZER, id_too_large, short};
pub use crate::check::{MAX_ADDED_BYTES, MAX_ADDED_TOKENS};
use crate::encode::{MAX_LOOKED_BACK_BYTES, MAX_WHOLE_BYTES, Specials, StreamEncoder};
pub use crate::error::TextError;
use crate::specials::{CONFIG, Config, DecoderToken, MAX_CONFIG_BYTES, SPECIAL_TOKENS, SpecialNames, SpecialTexts};

/// Largest `tokenizer.json` that is parsed; the largest in use are half of it.
pub const MAX_TOKENIZER_BYTES: u64 = 64 << 20;
/// A model's tokenizer. Immutable after load; share it behind an `Arc`.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// The streaming encoder; `None`: `inner` encodes.
    plan: Option<StreamEncoder>,
    /// The added tokens of `inner`, set to leave special ones unparsed.
    plain: AddedVocabulary,
    table: TokenTable,
    rules: DecodeRules,
    names: SpecialNames,
    add_bos: bool,
    /// `None` when there are no special tokens.
    special_texts: Option<SpecialTexts>,
}

/// An error if the checkpoint has a tokenizer in an unsupported format instead of a `tokenizer.json`.
fn other_format(checkpoint: &Checkpoint) -> Result<(), LoadError> {
    const OTHERS: [&str; 6] =
        ["tokenizer.model", "tekken.json", "spiece.model", "sentencepiece.bpe.model", "qwen.tiktoken", "vocab.json"];
    let Some(file) = OTHERS.into_iter().find(|file| checkpoint.has(file)) else { return Ok(()) };
    // A broken file is reported before an unknown format.
    checkpoint.open_file(file)?;
    let problem = format!(
        "unsupported format, and {TOKENIZER} is missing; convert it with transformers: \
         AutoTokenizer.from_pretrained({0:?}).save_pretrained({0:?})",
        checkpoint.location()
    );
    Err(LoadError::field(file, "tokenizer", problem))
}

/// The bytes and the kind of every token id.
#[derive(Debug, Default)]
struct TokenTable {
    bytes: Vec<u8>,
    /// `[ids]`, where each token's bytes end.
    ends: Vec<u32>,
    kinds: Vec<TokenKind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenKind {
    /// No token has this id.
    Hole,
    Text,
    Special,
}

/// How token bytes are joined to a text: the parts of `tokenizer.json`'s `decoder` that span tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct DecodeRules {
    /// Spaces dropped from the very beginning of the text (Llama 2's `Strip`).
    strip_start: usize,
    /// The first token loses its spaces (`Metaspace`).
    first_loses_spaces: bool,
    /// Tokens are words: a space between any two (no decoder at all).
    spaced: bool,
}

/// State of a text being decoded; `Default` is its beginning.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DecodeState {
    started: bool,
    stripped: usize,
    past_spaces: bool,
}

impl Tokenizer {
    /// Reads `tokenizer.json`, `tokenizer_config.json` and, for names missing there, `special_tokens_map.json`.
    ///
    /// `vocab_size`: rows of the model's embedding; a larger token id is an error.
    pub fn load(checkpoint: &Checkpoint, vocab_size: usize) -> Result<Tokenizer, LoadError> {
        let Some(json) = checkpoint.read_text_capped(TOKENIZER, MAX_TOKENIZER_BYTES)? else {
            other_format(checkpoint)?;
            let checkpoint = checkpoint.location();
            let file = format!("{TOKENIZER} (the tokenizer in the format of Hugging Face `tokenizers`)");
            return Err(LoadError::NoFile { file, checkpoint });
        };
        let config = checkpoint.read_text_capped(CONFIG, MAX_CONFIG_BYTES)?;
        let specials = checkpoint.read_text_capped(SPECIAL_TOKENS, MAX_CONFIG_BYTES)?;
        let tokenizer = Tokenizer::from_json(&json, config.as_deref(), specials.as_deref(), vocab_size);
        tokenizer.map_err(|error| checkpoint.translate_error(error))
    }

    /// [`load`](Self::load), or `None` if the model has no tokenizer at all. One in another format is an error that
    /// names it.
    pub fn find(checkpoint: &Checkpoint, vocab_size: usize) -> Result<Option<Tokenizer>, LoadError> {
        match checkpoint.has(TOKENIZER) {
            true => Tokenizer::load(checkpoint, vocab_size).map(Some),
            false => other_format(checkpoint).map(|()| None),
        }
    }

    /// [`load`](Self::load) from the text of the files.
    pub fn from_json(
        json: &str,
        config: Option<&str>,
        special_tokens_map: Option<&str>,
        vocab_size: usize,
    ) -> Result<Tokenizer, LoadError> {
        if json.len() as u64 > MAX_TOKENIZER_BYTES {
            let (file, bytes) = (TOKENIZER.to_string(), json.len() as u64);
            return Err(LoadError::TooLarge { file, bytes, limit: MAX_TOKENIZER_BYTES });
        }
        let outline = check::check(json, vocab_size)?;
        let mut config = Config::parse(CONFIG, config)?;
        let fallback = Config::parse(SPECIAL_TOKENS, special_tokens_map)?;
        let added = std::mem::take(&mut config.added_tokens_decoder);
        let inner = catch(|| build(json, added))
            .unwrap_or_else(|| Err(LoadError::field(TOKENIZER, "model", "the tokenizer cannot be built")))?;
        check_surroundings(&inner, vocab_size)?;
        let plan = catch(|| StreamEncoder::compile(&inner, &outline.merges)).flatten();
        drop(outline);
        let (rules, pieces) = decode_rules(&inner)?;
        let table = TokenTable::new(&inner, &pieces, vocab_size)?;
        let mut plain = inner.get_added_vocabulary().clone();
        plain.set_encode_special_tokens(true);
        let special_texts = special_texts(&inner);
        let add_bos = config.add_bos_token.unwrap_or(false);
        let names = config.names(fallback);
        Ok(Tokenizer { inner, plan, plain, table, rules, names, add_bos, special_texts })
    }

    /// Text to ids, special tokens in the text parsed. `add_special`: with the special tokens that the post-processor
    /// adds around a text, usually the beginning-of-sequence token.
    ///
    /// O(n log n) in the text's bytes; see `tests/tokenizer.rs` for the inputs that are hard on tokenizers.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TextError> {
        let ids = guarded(|| {
            if let Some(plan) = &self.plan {
                return plan.encode(text, Specials::Parsed, add_special);
            }
            self.check_whole(text)?;
            let encoding = self.inner.encode_fast(text, add_special).map_err(|_| TextError::Encode)?;
            Ok(encoding.get_ids().to_vec())
        })?;
        Ok(if add_special { self.with_bos(ids) } else { ids })
    }

    /// [`encode`](Self::encode) with special tokens, of the text's first tokens alone where all of them would be more than
    /// `most` ids: what an encoder reads of a long text.
    pub fn encode_first(&self, text: &str, most: usize) -> Result<Vec<u32>, TextError> {
        let mut ids = self.encode(text, false)?;
        let around = self.with_special_tokens(&[])?.len();
        ids.truncate(most.saturating_sub(around));
        self.with_special_tokens(&ids)
    }

    /// A pair of texts with the special tokens around and between them, and where the second begins, if the tokenizer
    /// tells the two apart (BERT's segments). `most`: the second text is cut where all would be more than this number
    /// of ids; the first never is.
    pub fn encode_pair(
        &self,
        first: &str,
        second: &str,
        most: Option<usize>,
    ) -> Result<(Vec<u32>, Option<usize>), TextError> {
        let (first, mut second) = (self.encode(first, false)?, self.encode(second, false)?);
        guarded(|| {
            let encoding = |ids: &[u32], part| {
                let tokens = ids.iter().map(|&id| Token::new(id, String::new(), (0, 0))).collect();
                Encoding::from_tokens(tokens, part)
            };
            let pair = |first: &[u32], second: &[u32]| {
                self.inner
                    .post_process(encoding(first, 0), Some(encoding(second, 1)), true)
                    .map_err(|_| TextError::Encode)
            };
            if let Some(most) = most {
                let around = pair(&[], &[])?.get_ids().len();
                second.truncate(most.saturating_sub(around + first.len()));
            }
            let pair = pair(&first, &second)?;
            Ok((pair.get_ids().to_vec(), pair.get_type_ids().iter().position(|&part| part == 1)))
        })
    }

    /// `ids` with the special tokens that [`encode`](Self::encode) adds around a text.
    pub fn with_special_tokens(&self, ids: &[u32]) -> Result<Vec<u32>, TextError> {
        let ids = guarded(|| {
            if let Some(plan) = &self.plan {
                return Ok(plan.with_special_tokens(ids));
            }
            let tokens = ids.iter().map(|&id| Token::new(id, String::new(), (0, 0))).collect();
            let encoding = self.inner.post_process(Encoding::from_tokens(tokens, 0), None, true);
            Ok(encoding.map_err(|_| TextError::Encode)?.get_ids().to_vec())
        })?;
        Ok(self.with_bos(ids))
    }

    /// Text to ids with nothing added and the text of special tokens encoded as plain text.
    ///
    /// Added tokens that are not special (a `<tool_call>` marked so) are still parsed, as the tokenizer requires.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>, TextError> {
        guarded(|| {
            if let Some(plan) = &self.plan {
                return plan.encode(text, Specials::Plain, false);
            }
            self.check_whole(text)?;
            self.encode_pieces(self.plain.extract_and_normalize(self.inner.get_normalizer(), text))
        })
    }

    /// Parses the special tokens of `text`; then replaces, in the rest, every character that is a key of `restore` by
    /// its value, and encodes the result as plain text. See [`crate::chat_template`] for the use.
    pub(crate) fn encode_restoring(&self, text: &str, restore: &[(char, char)]) -> Result<Vec<u32>, TextError> {
        guarded(|| {
            if let Some(plan) = &self.plan {
                return plan.encode_restoring(text, restore);
            }
            self.check_whole(text)?;
            // Without a normalizer, which could change the marks.
            let mut pieces = self.inner.get_added_vocabulary().extract_and_normalize::<NormalizerWrapper>(None, text);
            let normalizer = self.inner.get_normalizer();
            let restored = pieces.split(|_, mut piece| {
                for (mark, original) in restore {
                    piece.replace(*mark, original.encode_utf8(&mut [0; 4]))?;
                }
                if let Some(normalizer) = normalizer {
                    normalizer.normalize(&mut piece)?;
                }
                Ok(Some(piece))
            });
            restored.map_err(|_| TextError::Encode)?;
            self.encode_pieces(pieces)
        })
    }

    /// Limits texts that only the crate can encode, by the memory and time it needs.
    fn check_whole(&self, text: &str) -> Result<(), TextError> {
        let added = self.inner.get_added_vocabulary().get_added_tokens_decoder();
        let looks_back = added.values().any(|token| token.lstrip || token.single_word);
        let (bytes, limit) = (text.len(), if looks_back { MAX_LOOKED_BACK_BYTES } else { MAX_WHOLE_BYTES });
        if bytes > limit { Err(TextError::TooLong { bytes, limit }) } else { Ok(()) }
    }

    /// The last two stages, for a text whose special tokens are already found.
    fn encode_pieces(&self, mut pieces: PreTokenizedString) -> Result<Vec<u32>, TextError> {
        let failed = |_| TextError::Encode;
        if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces).map_err(failed)?;
        }
        pieces.tokenize(|piece| self.inner.get_model().tokenize(piece.get())).map_err(failed)?;
        let encoding = pieces.into_encoding(None, 0, OffsetType::None).map_err(failed)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// `add_bos_token` in the settings: a bos token that older `tokenizer.json` files leave out.
    fn with_bos(&self, mut ids: Vec<u32>) -> Vec<u32> {
        if self.add_bos
            && let Some(bos) = self.bos_id()
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        ids
    }

    /// Ids to text. Ids without a token produce nothing; invalid UTF-8 becomes U+FFFD.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let (mut bytes, mut state) = (Vec::new(), DecodeState::default());
        for &id in ids {
            self.append(id, skip_special, &mut state, &mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Appends the bytes that `id` adds to a text in `state`. Token by token, these are the bytes of
    /// [`decode`](Self::decode).
    pub(crate) fn append(&self, id: u32, skip_special: bool, state: &mut DecodeState, text: &mut Vec<u8>) {
        let kind = self.table.kind(id);
        if kind == TokenKind::Hole || (skip_special && kind == TokenKind::Special) {
            return;
        }
        let (rules, mut bytes) = (self.rules, self.table.bytes(id));
        let first = !std::mem::replace(&mut state.started, true);
        if rules.spaced && !first {
            text.push(b' ');
        }
        if rules.first_loses_spaces && first {
            text.extend(bytes.iter().filter(|&&byte| byte != b' '));
            return;
        }
        while !state.past_spaces && state.stripped < rules.strip_start && bytes.first() == Some(&b' ') {
            state.stripped += 1;
            bytes = &bytes[1..];
        }
        state.past_spaces |= !bytes.is_empty();
        text.extend_from_slice(bytes);
    }

    /// Maximum bytes of text in one token: a lower bound for the tokens of a text. `None` if there is no maximum: a
    /// token may cover any number of spaces or unknown characters.
    pub fn max_bytes_per_token(&self) -> Option<usize> {
        self.plan.as_ref()?.max_bytes_per_token()
    }

    /// The largest token id plus one. Unassigned ids below it decode to nothing.
    pub fn vocab_size(&self) -> usize {
        self.table.kinds.len()
    }

    /// The token's text for display: U+FFFD for a part of a character. Empty for an id without a token.
    pub fn token_text(&self, id: u32) -> String {
        String::from_utf8_lossy(self.table.bytes(id)).into_owned()
    }

    /// The token's unique name in the vocabulary (`Ġis`); `None` for an id without a token.
    pub fn token_name(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The token's bytes; `None` for an id without a token.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        (self.table.kind(id) != TokenKind::Hole).then(|| self.table.bytes(id).to_vec())
    }

    /// Length of the token's text in bytes; 0 for an id without a token.
    pub fn token_len(&self, id: u32) -> usize {
        self.table.bytes(id).len()
    }

    /// True for control tokens: skipped in answers, and never parsed from plain text.
    pub fn is_special(&self, id: u32) -> bool {
        self.table.kind(id) == TokenKind::Special
    }

    /// The id of the token whose name in the vocabulary is exactly `token`.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The texts of all added tokens: the special ones, and those that are text.
    pub fn added_tokens(&self) -> Vec<String> {
        let added = self.inner.get_added_vocabulary().get_added_tokens_decoder();
        let mut ids: Vec<_> = added.keys().copied().collect();
        ids.sort_unstable();
        ids.iter().map(|id| added[id].content.clone()).collect()
    }

    /// Text of the beginning-of-sequence token.
    pub fn bos_token(&self) -> Option<&str> {
        self.names.bos.as_deref()
    }

    /// Text of the end-of-sequence token.
    pub fn eos_token(&self) -> Option<&str> {
        self.names.eos.as_deref()
    }

    /// Id of the beginning-of-sequence token.
    pub fn bos_id(&self) -> Option<u32> {
        self.token_id(self.bos_token()?)
    }

    /// Id of the end-of-sequence token.
    pub fn eos_id(&self) -> Option<u32> {
        self.token_id(self.eos_token()?)
    }

    pub(crate) fn special_texts(&self) -> Option<&SpecialTexts> {
        self.special_texts.as_ref()
    }
}

impl TokenTable {
    fn new(inner: &tokenizers::Tokenizer, pieces: &PieceRules, vocab_size: usize) -> Result<TokenTable, LoadError> {
        let vocab = inner.get_vocab(true);
        let added = inner.get_added_vocabulary();
        let mut names = vec![None; vocab.values().max().map_or(0, |&max| max as usize + 1).min(vocab_size)];
        for (token, &id) in &vocab {
            let Some(slot) = names.get_mut(id as usize) else { return Err(id_too_large(token, id.into(), vocab_size)) };
            if let Some(other) = slot.replace(token.as_str()) {
                let problem = format!("tokens {} and {} share id {id}", short(token), short(other));
                return Err(LoadError::field(TOKENIZER, "model.vocab", problem));
            }
        }
        let mut table = TokenTable::default();
        for (id, name) in names.iter().enumerate() {
            let token = added.get_added_tokens_decoder().get(&(id as u32));
            table.kinds.push(match (name, token) {
                (None, _) => TokenKind::Hole,
                (Some(_), Some(token)) if token.special => TokenKind::Special,
                (Some(_), _) => TokenKind::Text,
            });
            if let Some(name) = name {
                pieces.append(name, token.is_some(), &mut table.bytes);
            }
            let end = u32::try_from(table.bytes.len());
            table.ends.push(end.map_err(|_| LoadError::field(TOKENIZER, "model.vocab", "more than 4 GiB of text"))?);
        }
        Ok(table)
    }

    fn kind(&self, id: u32) -> TokenKind {
        self.kinds.get(id as usize).copied().unwrap_or(TokenKind::Hole)
    }

    fn bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start as usize..end as usize]
    }
}

/// How a token's name in the vocabulary becomes its bytes: the parts of the `decoder` that act on one token.
#[derive(Debug, Default)]
struct PieceRules {
    /// Applied in order.
    replace: Vec<(String, String)>,
    /// `<0x41>` stands for the byte 0x41.
    byte_fallback: bool,
    /// Each character stands for a byte (GPT-2's alphabet).
    byte_level: bool,
    /// What a token begins with that continues a word; before any other there is a space (WordPiece).
    continuing: Option<String>,
}

impl PieceRules {
    fn append(&self, name: &str, added: bool, bytes: &mut Vec<u8>) {
        if let Some(continuing) = &self.continuing {
            match name.strip_prefix(continuing.as_str()).filter(|_| !added) {
                Some(rest) => bytes.extend_from_slice(rest.as_bytes()),
                None => bytes.extend([b" ", name.as_bytes()].concat()),
            }
            return;
        }
        // An added token is written as plain text, not in the byte alphabet.
        if self.byte_level && !added {
            let start = bytes.len();
            for c in name.chars() {
                match byte_of(c) {
                    Some(byte) => bytes.push(byte),
                    None => {
                        bytes.truncate(start);
                        bytes.extend_from_slice(name.as_bytes());
                        return;
                    }
                }
            }
            return;
        }
        if self.byte_fallback
            && let Some(hex) = name.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'))
            && hex.len() == 2
            && let Ok(byte) = u8::from_str_radix(hex, 16)
        {
            return bytes.push(byte);
        }
        let mut text = name.to_string();
        for (pattern, content) in &self.replace {
            text = text.replace(pattern, content);
        }
        bytes.extend_from_slice(text.as_bytes());
    }
}

/// Runs a call into the crate; a panic inside fails only this text.
fn guarded<T>(encode: impl FnOnce() -> Result<T, TextError>) -> Result<T, TextError> {
    catch(encode).unwrap_or(Err(TextError::Encode))
}

/// The part of a `tokenizer.json` that cannot be parsed: the crate's error does not name it.
fn unreadable_part(json: &str) -> &'static str {
    let document: Value = serde_json::from_str(json).unwrap_or_default();
    fn is_bad<T: DeserializeOwned>(part: &Value) -> bool {
        !part.is_null() && T::deserialize(part).is_err()
    }
    match &document {
        parts if is_bad::<NormalizerWrapper>(&parts["normalizer"]) => "normalizer",
        parts if is_bad::<PreTokenizerWrapper>(&parts["pre_tokenizer"]) => "pre_tokenizer",
        parts if is_bad::<PostProcessorWrapper>(&parts["post_processor"]) => "post_processor",
        parts if is_bad::<DecoderWrapper>(&parts["decoder"]) => "decoder",
        parts if is_bad::<Vec<tokenizers::AddedToken>>(&parts["added_tokens"]) => "added_tokens",
        parts if is_bad::<tokenizers::TruncationParams>(&parts["truncation"]) => "truncation",
        parts if is_bad::<tokenizers::PaddingParams>(&parts["padding"]) => "padding",
        _ => "model",
    }
}

/// The crate's tokenizer, with the added tokens that only `tokenizer_config.json` lists, and without truncation,
/// padding or dropout.
fn build(json: &str, extra: HashMap<String, DecoderToken>) -> Result<tokenizers::Tokenizer, LoadError> {
    let inner: Result<tokenizers::Tokenizer, _> = json.parse();
    let mut inner = inner.map_err(|error| LoadError::field(TOKENIZER, unreadable_part(json), brief(error)))?;
    let failed = |error| LoadError::field(TOKENIZER, "added_tokens", brief(error));
    let field = |id: &str| format!("added_tokens_decoder.{}", short(id));
    if extra.len() > MAX_ADDED_TOKENS {
        return Err(LoadError::field(CONFIG, "added_tokens_decoder", "too many entries"));
    }
    let mut missing = Vec::new();
    for (key, token) in extra {
        let token = token.added();
        let id: u32 = key.parse().map_err(|_| LoadError::field(CONFIG, field(&key), "not a token id"))?;
        if token.content.is_empty() {
            return Err(LoadError::field(CONFIG, field(&key), "empty content"));
        }
        if token.content.len() > MAX_ADDED_BYTES {
            let problem = format!("{} bytes; an added token may have {MAX_ADDED_BYTES}", token.content.len());
            return Err(LoadError::field(CONFIG, field(&key), problem));
        }
        if !inner.get_added_vocabulary().get_added_tokens_decoder().contains_key(&id) {
            missing.push((id, token));
        }
    }
    missing.sort_by_key(|(id, _)| *id);
    let ids: Vec<(u32, String)> = missing.iter().map(|(id, token)| (*id, token.content.clone())).collect();
    inner.add_tokens(missing.into_iter().map(|(_, token)| token)).map_err(failed)?;
    for (id, content) in ids {
        if inner.token_to_id(&content) != Some(id) {
            let problem = format!("{} does not get this id in {TOKENIZER}", short(&content));
            return Err(LoadError::field(CONFIG, field(&id.to_string()), problem));
        }
    }
    inner.with_truncation(None).map_err(failed)?;
    inner.with_padding(None);
    // A setting of training: it leaves out merges at random, so equal texts would have different ids.
    if let ModelWrapper::BPE(bpe) = inner.get_model()
        && bpe.dropout.is_some()
    {
        let mut bpe = bpe.clone();
        bpe.dropout = None;
        inner.with_model(bpe);
    }
    Ok(inner)
}

/// The post-processor may add only tokens of the model around a text, and only a few.
fn check_surroundings(inner: &tokenizers::Tokenizer, vocab_size: usize) -> Result<(), LoadError> {
    const MAX_ADDED: usize = 64;
    let refuse = |problem: String| Err(LoadError::field(TOKENIZER, "post_processor", problem));
    let Some(around) = catch(|| inner.encode_fast("", true).map(|encoding| encoding.get_ids().to_vec())) else {
        return refuse("cannot be applied".into());
    };
    let Ok(around) = around else { return refuse("cannot be applied".into()) };
    if around.len() > MAX_ADDED {
        return refuse(format!("adds {} tokens around a text; at most {MAX_ADDED}", around.len()));
    }
    match around.iter().find(|&&id| id as usize >= vocab_size) {
        Some(id) => refuse(format!("adds token {id}, but the model has rows for {vocab_size} tokens")),
        None => Ok(()),
    }
}

/// Splits the `decoder` into its rules for one token and its rules across tokens.
fn decode_rules(inner: &tokenizers::Tokenizer) -> Result<(DecodeRules, PieceRules), LoadError> {
    let unknown = |problem: String| LoadError::field(TOKENIZER, "decoder", problem);
    let decoder = serde_json::to_value(inner.get_decoder()).map_err(|error| unknown(error.to_string()))?;
    let (mut rules, mut pieces) = (DecodeRules::default(), PieceRules::default());
    let steps = match decoder["type"].as_str() {
        None => {
            rules.spaced = true;
            return Ok((rules, pieces));
        }
        Some("Sequence") => decoder["decoders"].as_array().cloned().unwrap_or_default(),
        Some(_) => vec![decoder],
    };
    let mut fused = false;
    for step in &steps {
        match step["type"].as_str().unwrap_or_default() {
            "ByteLevel" => pieces.byte_level = true,
            "ByteFallback" => pieces.byte_fallback = true,
            "Fuse" => fused = true,
            "Replace" if !fused => {
                let (pattern, content) = (step["pattern"]["String"].as_str(), step["content"].as_str());
                let (Some(pattern), Some(content)) = (pattern.filter(|p| !p.is_empty()), content) else {
                    return Err(unknown("Replace: only a non-empty string pattern is supported".to_string()));
                };
                pieces.replace.push((pattern.to_string(), content.to_string()));
            }
            // Without its clean-up of spaces before punctuation, which looks at more than a token.
            "WordPiece" if steps.len() == 1 => {
                pieces.continuing = Some(step["prefix"].as_str().unwrap_or("##").to_string());
                rules.strip_start = 1;
            }
            "Metaspace" if steps.len() == 1 => {
                let replacement = step["replacement"].as_str().unwrap_or("\u{2581}");
                pieces.replace.push((replacement.to_string(), " ".to_string()));
                rules.first_loses_spaces = step["prepend_scheme"] != "never";
            }
            "Strip" if fused && step["content"] == " " && step["stop"] == 0 => {
                rules.strip_start = step["start"].as_u64().unwrap_or(0) as usize;
            }
            other => return Err(unknown(format!("{}: unsupported", short(other)))),
        }
    }
    Ok((rules, pieces))
}

fn special_texts(inner: &tokenizers::Tokenizer) -> Option<SpecialTexts> {
    let tokens = inner.get_added_vocabulary().get_added_tokens_decoder();
    SpecialTexts::new(tokens.values().map(|token| (token.content.as_str(), token.special)))
}
