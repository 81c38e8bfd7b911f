//! Validates `tokenizer.json` before the `tokenizers` crate parses it: one pass that stores only small parts.
//!
//! ```text
//! added_tokens   number, length, ids                 model   vocab, merges: numbers and lengths; the other fields
//! normalizer     kinds, patterns, growth of texts    rest    number of values, depth
//! ```
//!
//! The crate trusts a file: it allocates the size that a character map declares, builds a table for 24 seconds for an
//! added token of 100 kB, and recurses into nested normalizers. Every limit here is far above real files; beyond it is
//! one error that names the field.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;

use checkpoint::{LoadError, brief};
use regex_automata::nfa::thompson;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// The file of a tokenizer.
pub(crate) const TOKENIZER: &str = "tokenizer.json";
/// Maximum number of added tokens.
pub const MAX_ADDED_TOKENS: usize = 1 << 16;
/// Maximum bytes of one added token, and of all of them. Building the automata that find them takes time that grows
/// with both; the longest in use have 60 bytes.
pub const MAX_ADDED_BYTES: usize = 1 << 10;
const MAX_ALL_ADDED_BYTES: usize = 4 << 20;
/// Maximum bytes of one vocabulary entry; the longest in use have 512.
const MAX_TOKEN_BYTES: usize = 4 << 10;
/// Maximum merges for each embedding row, plus a constant; real files have two per row.
const MERGES_PER_ROW: usize = 8;
const MORE_MERGES: usize = 1 << 10;
/// Limits outside of vocabulary, merges and added tokens: number of values, depth, bytes of text. Real files have a
/// thousand values, eight levels and, for a character map, half a megabyte.
const MAX_VALUES: usize = 1 << 14;
const MAX_DEPTH: usize = 24;
const MAX_TEXT_BYTES: usize = 4 << 20;
/// Maximum steps of a normalizer, a pre-tokenizer or a decoder; real files have six.
const MAX_STEPS: usize = 32;
/// Maximum bytes of a pattern, and of its replacement.
const MAX_PATTERN_BYTES: usize = 4 << 10;
const MAX_CONTENT_BYTES: usize = 64;
/// Maximum growth of a text by all replacements together, as a factor.
const MAX_GROWTH: usize = 64;
/// Maximum memory of one pattern's automaton: the default of the `regex` crate.
const MAX_AUTOMATON_BYTES: usize = 10 << 20;
/// Maximum word length of a WordPiece model; the search takes cubic time, and real models have 100.
const MAX_WORD_CHARS: u64 = 200;

/// Parts of the file that the encoder needs.
#[derive(Debug, Default)]
pub(crate) struct Outline {
    pub(crate) merges: MergeList,
}

/// `model.merges`, in order.
#[derive(Debug, Default)]
pub(crate) struct MergeList {
    text: String,
    /// End of each left and each right part in `text`.
    ends: Vec<(u32, u32)>,
}

impl MergeList {
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut start = 0;
        self.ends.iter().map(move |&(middle, end)| {
            let (left, right) = (start..middle as usize, middle as usize..end as usize);
            start = right.end;
            (&self.text[left], &self.text[right])
        })
    }

    fn push(&mut self, left: &str, right: &str) {
        self.text.push_str(left);
        let middle = self.text.len() as u32;
        self.text.push_str(right);
        self.ends.push((middle, self.text.len() as u32));
    }
}

/// Checks the whole file. `vocab_size`: rows of the model's embedding.
pub(crate) fn check(json: &str, vocab_size: usize) -> Result<Outline, LoadError> {
    let limits =
        Limits { vocab_size, values: Cell::new(MAX_VALUES), text: Cell::new(MAX_TEXT_BYTES), error: Cell::new(None) };
    let mut deserializer = serde_json::Deserializer::from_str(json);
    let read = File(&limits).deserialize(&mut deserializer).and_then(|file| deserializer.end().map(|()| file));
    let file = read.map_err(|error| match limits.error.take() {
        Some(own) => own,
        None if error.is_data() => field("JSON", brief(error)),
        None => LoadError::broken(TOKENIZER, format!("not JSON: {}", brief(error))),
    })?;
    let Some(model) = file.model else { return Err(field("model", "missing")) };
    check_model(&model, &file.merges)?;
    let mut steps = Steps::default();
    if let Some(normalizer) = file.parts.get("normalizer") {
        steps.normalizer(normalizer, "normalizer")?;
    }
    if let Some(pre_tokenizer) = file.parts.get("pre_tokenizer") {
        steps.pre_tokenizer(pre_tokenizer, "pre_tokenizer")?;
    }
    if let Some(decoder) = file.parts.get("decoder") {
        // It runs on one token at a time, not on the normalizer's output.
        steps.growth = 1;
        steps.normalizer(decoder, "decoder")?;
    }
    Ok(Outline { merges: file.merges })
}

fn field(name: impl Into<String>, problem: impl fmt::Display) -> LoadError {
    LoadError::field(TOKENIZER, name, problem)
}

struct Limits {
    vocab_size: usize,
    /// Remaining values, and bytes of text.
    values: Cell<usize>,
    text: Cell<usize>,
    /// Our error, which a serde error cannot carry.
    error: Cell<Option<LoadError>>,
}

impl Limits {
    fn refuse<E: serde::de::Error>(&self, error: LoadError) -> E {
        self.error.set(Some(error));
        E::custom("refused")
    }
}

#[derive(Default)]
struct Parsed {
    model: Option<Map<String, Value>>,
    merges: MergeList,
    parts: Map<String, Value>,
}

struct File<'l>(&'l Limits);

impl<'de> DeserializeSeed<'de> for File<'_> {
    type Value = Parsed;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Parsed, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for File<'_> {
    type Value = Parsed;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Parsed, A::Error> {
        let mut parsed = Parsed::default();
        let mut added = false;
        while let Some(key) = entries.next_key::<Cow<'de, str>>()? {
            let is_duplicate = match key.as_ref() {
                "added_tokens" => {
                    entries.next_value_seed(AddedTokens(self.0))?;
                    std::mem::replace(&mut added, true)
                }
                "model" => {
                    let (model, merges) = entries.next_value_seed(Model(self.0))?;
                    parsed.merges = merges;
                    parsed.model.replace(model).is_some()
                }
                _ => {
                    let value = entries.next_value_seed(Small { limits: self.0, depth: 0, field: &key })?;
                    parsed.parts.insert(key.to_string(), value).is_some()
                }
            };
            if is_duplicate {
                return Err(self.0.refuse(field(short(&key), "duplicate field")));
            }
        }
        Ok(parsed)
    }
}

/// A value outside of vocabulary, merges and added tokens, within the limits on number, depth and text.
#[derive(Clone, Copy)]
struct Small<'l> {
    limits: &'l Limits,
    depth: usize,
    field: &'l str,
}

impl<'l> Small<'l> {
    fn deeper<E: serde::de::Error>(self) -> Result<Small<'l>, E> {
        if self.depth == MAX_DEPTH {
            let problem = format!("nested more than {MAX_DEPTH} levels deep");
            return Err(self.limits.refuse(field(short_name(self.field), problem)));
        }
        Ok(Small { depth: self.depth + 1, ..self })
    }

    fn text<E: serde::de::Error>(self, text: &str) -> Result<String, E> {
        match self.limits.text.get().checked_sub(text.len()) {
            Some(left) => self.limits.text.set(left),
            None => {
                let problem = format!("more than {MAX_TEXT_BYTES} bytes of text outside the vocabulary");
                return Err(self.limits.refuse(field(short_name(self.field), problem)));
            }
        }
        Ok(text.to_owned())
    }
}

/// A key of the file, for a message.
fn short_name(key: &str) -> String {
    key.chars().filter(|c| !c.is_control()).take(40).collect()
}

impl<'de> DeserializeSeed<'de> for Small<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self.limits.values.get().checked_sub(1) {
            Some(left) => self.limits.values.set(left),
            None => {
                let problem = format!("more than {MAX_VALUES} values outside vocabulary, merges and added tokens");
                return Err(self.limits.refuse(field(short_name(self.field), problem)));
            }
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Small<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Value, E> {
        self.text(value).map(Value::String)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let inner = self.deeper()?;
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(inner)? {
            list.push(item);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let inner = self.deeper()?;
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<Cow<'de, str>>()? {
            let key = self.text(&key)?;
            map.insert(key, entries.next_value_seed(inner)?);
        }
        Ok(map.into())
    }
}

#[derive(serde::Deserialize)]
struct AddedToken<'t> {
    id: u64,
    #[serde(borrow)]
    content: Cow<'t, str>,
}

struct AddedTokens<'l>(&'l Limits);

impl<'de> DeserializeSeed<'de> for AddedTokens<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for AddedTokens<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of added tokens")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let mut contents: HashMap<u64, Cow<'de, str>> = HashMap::new();
        let (mut count, mut bytes) = (0, 0);
        while let Some(AddedToken { id, content }) = items.next_element()? {
            let name = |part: &str| format!("added_tokens[{count}].{part}");
            bytes += content.len();
            let refusal = if content.is_empty() {
                Some(field(name("content"), "empty"))
            } else if content.len() > MAX_ADDED_BYTES {
                let problem = format!("{} bytes; an added token may have {MAX_ADDED_BYTES}", content.len());
                Some(field(name("content"), problem))
            } else if bytes > MAX_ALL_ADDED_BYTES {
                Some(field("added_tokens", format!("more than {MAX_ALL_ADDED_BYTES} bytes of text")))
            } else if id >= self.0.vocab_size as u64 {
                Some(id_too_large(&content, id, self.0.vocab_size))
            } else {
                None
            };
            if let Some(refusal) = refusal {
                return Err(self.0.refuse(refusal));
            }
            if let Some(other) = contents.get(&id)
                && *other != content
            {
                // Too many entries is the better error, if it applies.
                refuse_many(self.0, count + 1, &mut items)?;
                let problem = format!("{id}: also the id of {}", short(other));
                return Err(self.0.refuse(field(name("id"), problem)));
            }
            contents.insert(id, content);
            count += 1;
            if count > MAX_ADDED_TOKENS {
                refuse_many(self.0, count, &mut items)?;
            }
        }
        Ok(())
    }
}

/// An error if there are too many entries; `count` have been read.
fn refuse_many<'de, A: SeqAccess<'de>>(limits: &Limits, mut count: usize, items: &mut A) -> Result<(), A::Error> {
    while items.next_element::<IgnoredAny>()?.is_some() {
        count += 1;
    }
    if count <= MAX_ADDED_TOKENS {
        return Ok(());
    }
    Err(limits.refuse(field("added_tokens", format!("{count} entries; at most {MAX_ADDED_TOKENS}"))))
}

struct Model<'l>(&'l Limits);

impl<'de> DeserializeSeed<'de> for Model<'_> {
    type Value = (Map<String, Value>, MergeList);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Model<'_> {
    type Value = (Map<String, Value>, MergeList);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a model")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut fields = Map::new();
        let mut merges = None;
        while let Some(key) = entries.next_key::<Cow<'de, str>>()? {
            let is_duplicate = match key.as_ref() {
                // Only its number of entries is kept.
                "vocab" => {
                    let entries = entries.next_value_seed(Vocab(self.0))?;
                    fields.insert("vocab".into(), entries.into()).is_some()
                }
                "merges" => merges.replace(entries.next_value_seed(Merges(self.0))?).is_some(),
                _ => {
                    let value = entries.next_value_seed(Small { limits: self.0, depth: 0, field: "model" })?;
                    fields.insert(key.to_string(), value).is_some()
                }
            };
            if is_duplicate {
                return Err(self.0.refuse(field(format!("model.{}", short_name(&key)), "duplicate field")));
            }
        }
        Ok((fields, merges.unwrap_or_default()))
    }
}

/// Names to ids, or names with scores. Returns the number of entries.
struct Vocab<'l>(&'l Limits);

impl Vocab<'_> {
    fn entry<E: serde::de::Error>(&self, token: &str, id: u64, count: &mut usize) -> Result<(), E> {
        *count += 1;
        let refusal = if token.len() > MAX_TOKEN_BYTES {
            let problem = format!("token {} has {} bytes; at most {MAX_TOKEN_BYTES}", short(token), token.len());
            Some(field("model.vocab", problem))
        } else if id >= self.0.vocab_size as u64 {
            Some(id_too_large(token, id, self.0.vocab_size))
        } else if *count > self.0.vocab_size {
            let problem = format!("more entries than the model has rows, {}", self.0.vocab_size);
            Some(field("model.vocab", problem))
        } else {
            None
        };
        refusal.map_or(Ok(()), |refusal| Err(self.0.refuse(refusal)))
    }
}

impl<'de> DeserializeSeed<'de> for Vocab<'_> {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<usize, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Vocab<'_> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a vocabulary")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<usize, A::Error> {
        let mut count = 0;
        while let Some((token, id)) = entries.next_entry::<Cow<'de, str>, u64>()? {
            // A duplicate name takes no row; the file's size limits their number.
            self.entry(&token, id, &mut count)?;
        }
        Ok(count)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<usize, A::Error> {
        let mut count = 0;
        while let Some((token, score)) = items.next_element::<(Cow<'de, str>, f64)>()? {
            if !score.is_finite() {
                let problem = format!("the score of {} is not a finite number", short(&token));
                return Err(self.0.refuse(field("model.vocab", problem)));
            }
            self.entry(&token, count as u64, &mut count)?;
        }
        Ok(count)
    }
}

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Merge<'t> {
    Pair(#[serde(borrow)] Cow<'t, str>, #[serde(borrow)] Cow<'t, str>),
    Line(#[serde(borrow)] Cow<'t, str>),
}

struct Merges<'l>(&'l Limits);

impl<'de> DeserializeSeed<'de> for Merges<'_> {
    type Value = MergeList;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<MergeList, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Merges<'_> {
    type Value = MergeList;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of merges")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<MergeList, A::Error> {
        let most = self.0.vocab_size.saturating_mul(MERGES_PER_ROW).saturating_add(MORE_MERGES);
        let mut merges = MergeList::default();
        while let Some(merge) = items.next_element::<Merge<'de>>()? {
            match &merge {
                Merge::Pair(left, right) => merges.push(left, right),
                Merge::Line(line) if line.starts_with("#version") => {}
                Merge::Line(line) => match line.split_once(' ').filter(|(_, right)| !right.contains(' ')) {
                    Some((left, right)) => merges.push(left, right),
                    None => {
                        let problem = format!("entry {} is not two tokens", merges.len());
                        return Err(self.0.refuse(field("model.merges", problem)));
                    }
                },
            }
            if merges.len() > most {
                let problem = format!("more than {most} entries, for a model of {} rows", self.0.vocab_size);
                return Err(self.0.refuse(field("model.merges", problem)));
            }
        }
        Ok(merges)
    }
}

/// Checks the fields of a model other than vocabulary and merges.
fn check_model(model: &Map<String, Value>, merges: &MergeList) -> Result<(), LoadError> {
    let entries = model.get("vocab").and_then(Value::as_u64).unwrap_or(0);
    if entries == 0 && model.get("type").and_then(Value::as_str) == Some("Unigram") {
        return Err(field("model.vocab", "a Unigram model without an entry encodes no text"));
    }
    for name in ["continuing_subword_prefix", "end_of_word_suffix", "unk_token"] {
        let most = if name == "unk_token" { MAX_TOKEN_BYTES } else { MAX_CONTENT_BYTES };
        if let Some(text) = model.get(name).and_then(Value::as_str)
            && text.len() > most
        {
            return Err(field(format!("model.{name}"), format!("{} bytes; at most {most}", text.len())));
        }
    }
    // The crate cuts it off the right part unchecked, even in the middle of a character.
    if let Some(prefix) = model.get("continuing_subword_prefix").and_then(Value::as_str)
        && let Some((_, right)) = merges.iter().find(|(_, right)| !right.starts_with(prefix))
    {
        let problem = format!("right part {} does not begin with the prefix {}", short(right), short(prefix));
        return Err(field("model.merges", problem));
    }
    if let Some(unknown) = model.get("unk_id").and_then(Value::as_u64)
        && unknown >= entries
    {
        return Err(field("model.unk_id", format!("{unknown}, but there are {entries} entries")));
    }
    if let Some(most) = model.get("max_input_chars_per_word")
        && most.as_u64().is_none_or(|most| most > MAX_WORD_CHARS)
    {
        return Err(field("model.max_input_chars_per_word", format!("must be at most {MAX_WORD_CHARS}")));
    }
    Ok(())
}

/// The steps of normalizers, pre-tokenizers and decoders.
#[derive(Default)]
struct Steps {
    count: usize,
    growth: usize,
}

impl Steps {
    fn step(&mut self, name: &str) -> Result<(), LoadError> {
        self.count += 1;
        if self.count > MAX_STEPS {
            return Err(field(name, format!("more than {MAX_STEPS} steps")));
        }
        Ok(())
    }

    fn normalizer(&mut self, step: &Value, name: &str) -> Result<(), LoadError> {
        self.step(name)?;
        for list in ["normalizers", "decoders"] {
            for (at, part) in step[list].as_array().into_iter().flatten().enumerate() {
                self.normalizer(part, &format!("{name}.{list}[{at}]"))?;
            }
        }
        match step["type"].as_str() {
            Some("Replace") => {
                let content = text(step, "content", name)?;
                let least = pattern(&step["pattern"], name)?;
                self.growth = self.growth.max(1) * content.len().div_ceil(least).max(1);
                if self.growth > MAX_GROWTH {
                    let problem = format!("replacements make a text more than {MAX_GROWTH} times as long");
                    return Err(field(name, problem));
                }
                Ok(())
            }
            Some("Prepend") => text(step, "prepend", name).map(drop),
            Some("Precompiled") => character_map(step["precompiled_charsmap"].as_str().unwrap_or_default(), name),
            _ => Ok(()),
        }
    }

    fn pre_tokenizer(&mut self, step: &Value, name: &str) -> Result<(), LoadError> {
        self.step(name)?;
        for (at, part) in step["pretokenizers"].as_array().into_iter().flatten().enumerate() {
            self.pre_tokenizer(part, &format!("{name}.pretokenizers[{at}]"))?;
        }
        match step["type"].as_str() {
            Some("Split") => pattern(&step["pattern"], name).map(drop),
            Some("FixedLength") if step["length"] == 0 => Err(field(format!("{name}.length"), "0")),
            _ => Ok(()),
        }
    }
}

/// A text that a step inserts into others.
fn text<'s>(step: &'s Value, part: &str, name: &str) -> Result<&'s str, LoadError> {
    let text = step[part].as_str().unwrap_or_default();
    if text.len() > MAX_CONTENT_BYTES {
        let problem = format!("{} bytes; at most {MAX_CONTENT_BYTES}", text.len());
        return Err(field(format!("{name}.{part}"), problem));
    }
    Ok(text)
}

/// Checks a pattern; returns the minimum bytes of a match.
///
/// Split patterns with look-around run on a backtracking engine. Only the common look-ahead `(?!\S)`, which looks at
/// one character, is allowed, so matching stays linear.
fn pattern(pattern: &Value, name: &str) -> Result<usize, LoadError> {
    const BACKTRACKING: [&str; 9] = ["(?=", "(?!", "(?<=", "(?<!", "(?>", "(?(", "(?P=", "\\k", "\\g"];
    let refuse = |problem: String| Err(field(format!("{name}.pattern"), problem));
    let (text, is_regex) = match (pattern["Regex"].as_str(), pattern["String"].as_str()) {
        (Some(regex), _) => (regex, true),
        (None, Some(text)) => (text, false),
        // The crate reports the error.
        (None, None) => return Ok(1),
    };
    if text.is_empty() {
        return refuse("empty pattern: would match everywhere".into());
    }
    if text.len() > MAX_PATTERN_BYTES {
        return refuse(format!("{} bytes; at most {MAX_PATTERN_BYTES}", text.len()));
    }
    if !is_regex {
        return Ok(text.len());
    }
    let rest = text.replace(r"(?!\S)", "");
    let back_reference = rest.split('\\').skip(1).any(|after| after.starts_with(|c: char| c.is_ascii_digit()));
    if back_reference || BACKTRACKING.iter().any(|construct| rest.contains(construct)) {
        return refuse("look-around and back-references are unsupported: they can take exponential time".into());
    }
    // The crate's parser may accept what this one rejects.
    let Ok(parsed) = regex_syntax::parse(&rest) else { return Ok(1) };
    if parsed.properties().minimum_len() == Some(0) {
        return refuse("matches the empty text, so it would match everywhere".into());
    }
    let config = thompson::Config::new().nfa_size_limit(Some(MAX_AUTOMATON_BYTES));
    if thompson::Compiler::new().configure(config).build_from_hir(&parsed).is_err() {
        return refuse(format!("its automaton takes more than {MAX_AUTOMATON_BYTES} bytes"));
    }
    Ok(parsed.properties().minimum_len().unwrap_or(1).max(1))
}

/// Checks a SentencePiece character map in base64: the size of a table in bytes, the table, and the texts it points to.
///
/// The table is a trie as an array of units. The crate follows a unit and a byte of the text to the next unit without a
/// bounds check; here every possible next unit must be inside, and every text must be short.
fn character_map(base64: &str, name: &str) -> Result<(), LoadError> {
    let refuse = |problem: String| Err(field(format!("{name}.precompiled_charsmap"), problem));
    let Some(map) = decode_base64(base64) else { return refuse("not base64".into()) };
    let Some((size, rest)) = map.split_first_chunk::<4>() else {
        return refuse(format!("{} bytes; must begin with 4 bytes, the size of the table", map.len()));
    };
    let size = u32::from_le_bytes(*size) as usize;
    if size > rest.len() || !size.is_multiple_of(4) || size == 0 {
        return refuse(format!("a table of {size} bytes in a map of {}", map.len()));
    }
    let (table, texts) = rest.split_at(size);
    let Ok(texts) = std::str::from_utf8(texts) else { return refuse("texts are not UTF-8".into()) };
    if let Some(long) = texts.split('\0').map(str::len).find(|&len| len > MAX_CONTENT_BYTES) {
        return refuse(format!("a text of {long} bytes; at most {MAX_CONTENT_BYTES}"));
    }
    let units: Vec<u32> =
        table.chunks_exact(4).map(|unit| u32::from_le_bytes([unit[0], unit[1], unit[2], unit[3]])).collect();
    // The next unit's index, before the next byte is applied. The crate continues from the root, and from units whose
    // label is a byte.
    let leads_to = |at: usize| {
        let unit = u64::from(units[at]);
        at as u64 ^ (unit >> 10) << ((unit & 1 << 9) >> 6)
    };
    let (is_value, label) = (|unit: u32| unit >> 31 == 1, |unit: u32| unit & 0xFF);
    for (at, &unit) in units.iter().enumerate().filter(|&(at, &unit)| at == 0 || !is_value(unit) && label(unit) != 0) {
        // For any next byte.
        if leads_to(at) | 0xFF >= units.len() as u64 {
            return refuse("table points outside itself".into());
        }
        let text = (units[leads_to(at) as usize] & !(1 << 31)) as usize;
        if unit >> 8 & 1 == 1 && !texts.is_char_boundary(text) {
            return refuse("table points to a missing text".into());
        }
    }
    Ok(())
}

fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let text = text.as_bytes();
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let body = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(text);
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for group in body.chunks(4) {
        let mut bits = 0u32;
        for &c in group {
            let digit = match c {
                b'A'..=b'Z' => c - b'A',
                b'a'..=b'z' => c - b'a' + 26,
                b'0'..=b'9' => c - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return None,
            };
            bits = bits << 6 | u32::from(digit);
        }
        bits <<= 6 * (4 - group.len());
        bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    Some(bytes)
}

pub(crate) fn id_too_large(token: &str, id: u64, vocab_size: usize) -> LoadError {
    let problem = format!("token {} has id {id}, but the model has rows for {vocab_size} tokens", short(token));
    LoadError::field(TOKENIZER, "id", problem)
}

/// A token's name for a message: quoted, escaped, at most 40 characters.
pub(crate) fn short(token: &str) -> String {
    let cut: String = token.chars().take(40).collect();
    format!("{cut:?}")
}
