//! Special tokens: the names of those with a role (bos, eos), and a search for the texts of all of them.
//!
//! ```text
//! tokenizer_config.json, special_tokens_map.json ──> SpecialNames: bos, eos, unk, pad
//! the added tokens of a tokenizer ─────────────────> SpecialTexts: never parsed from untrusted text (marks.rs)
//! ```

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use checkpoint::LoadError;
use serde::Deserialize;
use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use tokenizers::AddedToken;

/// The file with the tokenizer's settings.
pub(crate) const CONFIG: &str = "tokenizer_config.json";
/// Older file with the names of special tokens.
pub(crate) const SPECIAL_TOKENS: &str = "special_tokens_map.json";

/// Largest `tokenizer_config.json` that is parsed.
pub(crate) const MAX_CONFIG_BYTES: u64 = 8 << 20;

/// Names of the special tokens that have a role.
#[derive(Clone, Debug, Default)]
pub(crate) struct SpecialNames {
    pub(crate) bos: Option<String>,
    pub(crate) eos: Option<String>,
    pub(crate) unk: Option<String>,
    pub(crate) pad: Option<String>,
}

/// The parts of `tokenizer_config.json` that matter for encoding, and the names in `special_tokens_map.json`.
#[derive(Default)]
pub(crate) struct Config {
    bos_token: Option<NamedToken>,
    eos_token: Option<NamedToken>,
    unk_token: Option<NamedToken>,
    pad_token: Option<NamedToken>,
    pub(crate) add_bos_token: Option<bool>,
    pub(crate) added_tokens_decoder: HashMap<String, DecoderToken>,
}

/// An entry of `added_tokens_decoder`. Missing fields have the defaults of transformers.
#[derive(Deserialize)]
pub(crate) struct DecoderToken {
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    normalized: Option<bool>,
    #[serde(default)]
    special: bool,
}

impl DecoderToken {
    pub(crate) fn added(self) -> AddedToken {
        AddedToken::from(self.content, self.special)
            .single_word(self.single_word)
            .lstrip(self.lstrip)
            .rstrip(self.rstrip)
            .normalized(self.normalized.unwrap_or(!self.special))
    }
}

/// A token's name: a string, or an object with its `content`.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected the text of a special token, or an object with its `content`")]
enum NamedToken {
    Name(String),
    Object { content: String },
}

impl NamedToken {
    fn name(self) -> String {
        match self {
            NamedToken::Name(name) | NamedToken::Object { content: name } => name,
        }
    }
}

impl Config {
    pub(crate) fn parse(file: &str, json: Option<&str>) -> Result<Config, LoadError> {
        let Some(json) = json else { return Ok(Config::default()) };
        let mut key = String::new();
        let mut reader = serde_json::Deserializer::from_str(json);
        let config = reader.deserialize_map(ConfigReader { key: &mut key }).and_then(|config| {
            reader.end()?;
            Ok(config)
        });
        config.map_err(|error| LoadError::json(file, if key.is_empty() { "JSON" } else { &key }, &error))
    }

    /// Names of the special tokens, with those of `fallback` where this file has none.
    pub(crate) fn names(self, fallback: Config) -> SpecialNames {
        let name = |own: Option<NamedToken>, other: Option<NamedToken>| own.or(other).map(NamedToken::name);
        SpecialNames {
            bos: name(self.bos_token, fallback.bos_token),
            eos: name(self.eos_token, fallback.eos_token),
            unk: name(self.unk_token, fallback.unk_token),
            pad: name(self.pad_token, fallback.pad_token),
        }
    }
}

/// Reads a [`Config`]; `key` is the last field that it came to, at fault where the file is refused.
struct ConfigReader<'k> {
    key: &'k mut String,
}

impl<'de> Visitor<'de> for ConfigReader<'_> {
    type Value = Config;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Config, A::Error> {
        let mut config = Config::default();
        while let Some(key) = entries.next_key()? {
            *self.key = key;
            match self.key.as_str() {
                "bos_token" => config.bos_token = entries.next_value()?,
                "eos_token" => config.eos_token = entries.next_value()?,
                "unk_token" => config.unk_token = entries.next_value()?,
                "pad_token" => config.pad_token = entries.next_value()?,
                "add_bos_token" => config.add_bos_token = entries.next_value()?,
                "added_tokens_decoder" => config.added_tokens_decoder = entries.next_value()?,
                _ => _ = entries.next_value::<IgnoredAny>()?,
            }
        }
        Ok(config)
    }
}

/// The texts of a tokenizer's added tokens, as far as they matter here.
#[derive(Debug)]
pub(crate) struct SpecialTexts {
    /// Finds where special tokens begin, ignoring ASCII case, which a template may change. Holds only tokens without a
    /// special token as a proper prefix.
    pub(crate) starts: AhoCorasick,
    /// Punctuation that special tokens begin or end with.
    pub(crate) signs: BTreeSet<char>,
    /// All special tokens, one per line.
    pub(crate) all: String,
    /// The first two characters of each, and the last two.
    firsts: BTreeSet<(char, char)>,
    lasts: BTreeSet<(char, char)>,
    /// Bytes of the longest.
    pub(crate) longest: usize,
    /// Added tokens that are not special and hold one of the signs.
    pub(crate) others: Option<AhoCorasick>,
}

impl SpecialTexts {
    /// `tokens`: each added token's text, and whether it is special. `None` when no token is.
    pub(crate) fn new<'a>(tokens: impl Iterator<Item = (&'a str, bool)>) -> Option<SpecialTexts> {
        let (mut special, mut others) = (BTreeSet::new(), Vec::new());
        for (text, is_special) in tokens.filter(|(text, _)| !text.is_empty()) {
            match is_special {
                true => _ = special.insert(text),
                false => others.push(text),
            }
        }
        // In sorted order, a text follows all of its prefixes.
        let mut shortest: Vec<&str> = Vec::new();
        for &text in &special {
            if !shortest.last().is_some_and(|last| text.starts_with(last)) {
                shortest.push(text);
            }
        }
        if shortest.is_empty() {
            return None;
        }
        let ends = |text: &&str| [text.chars().next(), text.chars().next_back()];
        let signs: BTreeSet<char> = special.iter().flat_map(ends).flatten().filter(|&c| is_sign(c)).collect();
        others.retain(|text| text.contains(|c| signs.contains(&c)));
        Some(SpecialTexts {
            starts: AhoCorasick::builder().ascii_case_insensitive(true).build(shortest).ok()?,
            firsts: special.iter().filter_map(|text| first_two(text.chars())).collect(),
            lasts: special.iter().filter_map(|text| first_two(text.chars().rev())).map(|(b, a)| (a, b)).collect(),
            longest: special.iter().map(|text| text.len()).max().unwrap_or(0),
            all: special.iter().flat_map(|text| [*text, "\n"]).collect(),
            others: finder(others),
            signs,
        })
    }
}

fn first_two(mut chars: impl Iterator<Item = char>) -> Option<(char, char)> {
    chars.next().zip(chars.next())
}

impl SpecialTexts {
    /// Whether the sign at `at` and the character behind or before it are those of a special token.
    pub(crate) fn is_near(&self, text: &str, at: usize) -> bool {
        let end = at + text[at..].chars().next().map_or(0, char::len_utf8);
        let (first, last) = (first_two(text[at..].chars()), first_two(text[..end].chars().rev()));
        first.is_some_and(|pair| self.firsts.contains(&pair)) || last.is_some_and(|(b, a)| self.lasts.contains(&(a, b)))
    }

    /// Whether a special token may begin or end with the sign at `at` and extend beyond `found`, which contains the
    /// sign.
    pub(crate) fn goes_beyond(&self, text: &str, found: std::ops::Range<usize>, at: usize) -> bool {
        let end = at + text[at..].chars().next().map_or(0, char::len_utf8);
        let first = first_two(text[at..].chars());
        let begins = first.is_some_and(|pair| self.firsts.contains(&pair)) && {
            let beyond = text[found.end..].chars().next().map_or(0, char::len_utf8);
            let prefix = &text[at..found.end + beyond];
            beyond > 0 && (found.end == end || self.all.lines().any(|special| special.starts_with(prefix)))
        };
        let last = first_two(text[..end].chars().rev());
        let ends = last.is_some_and(|(b, a)| self.lasts.contains(&(a, b))) && {
            let before = text[..found.start].chars().next_back().map_or(0, char::len_utf8);
            let suffix = &text[found.start - before..end];
            before > 0 && (found.start == at || self.all.lines().any(|special| special.ends_with(suffix)))
        };
        begins || ends
    }
}

/// Excludes letters, digits and space: too common in texts to be marked one by one, and templates test for them.
pub(crate) fn is_sign(c: char) -> bool {
    !c.is_alphanumeric() && !c.is_whitespace() && !c.is_control()
}

/// A leftmost-longest search for `texts`; `None` if there are none.
pub(crate) fn finder(texts: Vec<&str>) -> Option<AhoCorasick> {
    if texts.is_empty() {
        return None;
    }
    // Not a DFA: building its table takes quadratic time for a long text that repeats itself.
    let mut builder = AhoCorasick::builder();
    builder.kind(Some(AhoCorasickKind::ContiguousNFA)).match_kind(MatchKind::LeftmostLongest);
    builder.build(texts).ok()
}
