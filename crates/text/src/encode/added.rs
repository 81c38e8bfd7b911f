//! Added tokens: the first stage, which finds their texts before any other stage runs.

use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::AddedVocabulary;

use super::{Specials, added_tokens};
use crate::error::TextError;

/// Added tokens of one tokenizer: those found in the text as it is, and those found in the normalized text.
#[derive(Debug)]
pub(super) struct AddedTokens {
    raw: Option<Finder>,
    normalized: Option<Finder>,
}

/// A part of a text, in order.
pub(super) enum Found {
    Token(u32),
    Text(Range<usize>),
}

#[derive(Debug)]
struct Finder {
    patterns: AhoCorasick,
    /// `[patterns]`.
    tokens: Vec<Added>,
    longest: usize,
}

#[derive(Clone, Copy, Debug)]
struct Added {
    id: u32,
    special: bool,
    single_word: bool,
    /// Whether the token includes the spaces before it, or after it.
    lstrip: bool,
    rstrip: bool,
}

impl AddedTokens {
    pub(super) fn compile(vocabulary: &AddedVocabulary) -> Option<AddedTokens> {
        let finder = |normalized: bool| {
            let mut tokens: Vec<_> =
                added_tokens(vocabulary).filter(|(_, token, _)| token.normalized == normalized).collect();
            tokens.sort_by_key(|(id, ..)| *id);
            let text = |(_, token, text): &(u32, &tokenizers::AddedToken, String)| match normalized {
                true => text.clone(),
                false => token.content.clone(),
            };
            let patterns: Vec<String> = tokens.iter().map(text).collect();
            if patterns.is_empty() {
                return Some(None);
            }
            if patterns.iter().any(String::is_empty) {
                return None;
            }
            let added = |(id, token, _): &(u32, &tokenizers::AddedToken, String)| Added {
                id: *id,
                special: token.special,
                single_word: token.single_word,
                lstrip: token.lstrip,
                rstrip: token.rstrip,
            };
            let tokens = tokens.iter().map(added).collect();
            let longest = patterns.iter().map(String::len).max().unwrap_or(0);
            let patterns = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&patterns).ok()?;
            Some(Some(Finder { patterns, tokens, longest }))
        };
        Some(AddedTokens { raw: finder(false)?, normalized: finder(true)? })
    }

    /// Passes the non-empty parts of a text to `each`, in order.
    pub(super) fn find(
        &self,
        text: &str,
        specials: Specials,
        each: impl FnMut(Found) -> Result<(), TextError>,
    ) -> Result<(), TextError> {
        split(self.raw.as_ref(), text, specials, each)
    }

    /// [`find`](Self::find) for tokens that match the normalized text.
    pub(super) fn find_normalized(
        &self,
        text: &str,
        specials: Specials,
        each: impl FnMut(Found) -> Result<(), TextError>,
    ) -> Result<(), TextError> {
        split(self.normalized.as_ref(), text, specials, each)
    }

    /// Whether some token includes any number of spaces around it.
    pub(super) fn eat_spaces(&self) -> bool {
        self.finders().any(|finder| finder.tokens.iter().any(|token| token.lstrip || token.rstrip))
    }

    /// Bytes of the longest added token.
    pub(super) fn longest(&self) -> usize {
        self.finders().map(|finder| finder.longest).max().unwrap_or(0)
    }

    fn finders(&self) -> impl Iterator<Item = &Finder> {
        self.raw.iter().chain(&self.normalized)
    }
}

/// By the crate's rules: a skipped match is text but still consumed, and spaces between two tokens that both include
/// them belong to the first.
fn split(
    finder: Option<&Finder>,
    text: &str,
    specials: Specials,
    mut each: impl FnMut(Found) -> Result<(), TextError>,
) -> Result<(), TextError> {
    let mut rest = 0;
    let matches = finder.into_iter().flat_map(|finder| {
        finder.patterns.find_iter(text).map(|found| (found.range(), finder.tokens[found.pattern().as_usize()]))
    });
    for (Range { mut start, mut end }, token) in matches {
        if token.special && specials == Specials::Plain {
            continue;
        }
        let in_word = || {
            text[..start].chars().next_back().is_some_and(is_word) || text[end..].chars().next().is_some_and(is_word)
        };
        if token.single_word && in_word() {
            continue;
        }
        if token.lstrip {
            start = text[..start].trim_end().len().max(rest);
        }
        if token.rstrip {
            end = text.len() - text[end..].trim_start().len();
        }
        if rest < start {
            each(Found::Text(rest..start))?;
        }
        match start.cmp(&end) {
            std::cmp::Ordering::Less => each(Found::Token(token.id))?,
            std::cmp::Ordering::Equal => {}
            // The crate panics here: the previous token took the spaces that this token consists of.
            std::cmp::Ordering::Greater => return Err(TextError::Encode),
        }
        rest = end;
    }
    if rest < text.len() { each(Found::Text(rest..text.len())) } else { Ok(()) }
}

/// `\w`.
fn is_word(c: char) -> bool {
    regex_syntax::try_is_word_character(c).unwrap_or(false)
}
