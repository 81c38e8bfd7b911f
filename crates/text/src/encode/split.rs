//! Pre-tokenizers: a normalized text to pieces, one at a time.
//!
//! Stages are nested: the second stage cuts a piece of the first before the first continues. No stage looks outside its
//! input, so the result equals one stage after the other.

use std::borrow::Cow;
use std::ops::Range;

use regex_automata::meta::{Config, Regex};
use regex_automata::{Anchored, Input};
use serde_json::Value;
use tokenizers::PreTokenizerWrapper;

use crate::error::TextError;

/// GPT-2's pattern (Radford et al., 2019), as `ByteLevel` uses it.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// The end of every common pattern with a look-ahead.
const SPACES: &str = r"|\s+(?!\S)|\s+";
/// Maximum bytes of one pattern's NFA.
const MAX_PATTERN_BYTES: usize = 16 << 20;

/// The stages of a pre-tokenizer, outermost first.
#[derive(Debug)]
pub(super) struct Stages {
    stages: Vec<Stage>,
    /// Pieces are written in the byte alphabet before the lookup.
    byte_level: bool,
}

#[derive(Debug)]
enum Stage {
    Pattern {
        pattern: Pattern,
        behavior: Behavior,
        invert: bool,
    },
    Digits {
        behavior: Behavior,
    },
    /// Adds a space before a piece that does not begin with one.
    PrefixSpace,
    Metaspace {
        mark: char,
        prepend: Prepend,
        split: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prepend {
    Always,
    /// At the beginning of the whole text.
    First,
    Never,
}

/// How matches of a pattern and the text between them become pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behavior {
    Isolated,
    Removed,
    MergedWithPrevious,
    MergedWithNext,
    Contiguous,
}

type Sink<'s> = &'s mut dyn FnMut(&str) -> Result<(), TextError>;

impl Stages {
    /// `None` for an unsupported pre-tokenizer or pattern.
    pub(super) fn compile(pre_tokenizer: Option<&PreTokenizerWrapper>) -> Option<Stages> {
        let mut stages = Stages { stages: Vec::new(), byte_level: false };
        match pre_tokenizer {
            None => {}
            Some(PreTokenizerWrapper::Sequence(sequence)) => {
                sequence.as_ref().iter().try_for_each(|part| stages.add(part))?;
            }
            Some(one) => stages.add(one)?,
        }
        Some(stages)
    }

    fn add(&mut self, part: &PreTokenizerWrapper) -> Option<()> {
        if self.byte_level {
            // A further stage would see the byte alphabet.
            return None;
        }
        match part {
            PreTokenizerWrapper::Split(_) => {
                let fields = serde_json::to_value(part).ok()?;
                let pattern = match (&fields["pattern"]["Regex"], &fields["pattern"]["String"]) {
                    (Value::String(regex), _) => Pattern::compile(regex)?,
                    (_, Value::String(text)) => Pattern::compile(&regex_syntax::escape(text))?,
                    _ => return None,
                };
                let behavior = Behavior::of(fields["behavior"].as_str()?)?;
                self.stages.push(Stage::Pattern { pattern, behavior, invert: fields["invert"].as_bool()? });
            }
            PreTokenizerWrapper::Digits(digits) => {
                let behavior = if digits.individual_digits { Behavior::Isolated } else { Behavior::Contiguous };
                self.stages.push(Stage::Digits { behavior });
            }
            PreTokenizerWrapper::ByteLevel(bytes) => {
                if bytes.add_prefix_space {
                    self.stages.push(Stage::PrefixSpace);
                }
                if bytes.use_regex {
                    let (pattern, behavior) = (Pattern::compile(GPT2)?, Behavior::Isolated);
                    self.stages.push(Stage::Pattern { pattern, behavior, invert: false });
                }
                self.byte_level = true;
            }
            PreTokenizerWrapper::Metaspace(spaces) => {
                let prepend = match serde_json::to_value(spaces.get_prepend_scheme()).ok()?.as_str()? {
                    "always" => Prepend::Always,
                    "first" => Prepend::First,
                    "never" => Prepend::Never,
                    _ => return None,
                };
                self.stages.push(Stage::Metaspace {
                    mark: spaces.get_replacement(),
                    prepend,
                    split: spaces.get_split(),
                });
            }
            _ => return None,
        }
        Some(())
    }

    pub(super) fn byte_level(&self) -> bool {
        self.byte_level
    }

    /// Whether no stage drops text.
    pub(super) fn keeps_all(&self) -> bool {
        !self.stages.iter().any(|stage| matches!(stage, Stage::Pattern { behavior: Behavior::Removed, .. }))
    }

    /// Passes every piece of `text` to `sink`, in order. `first`: the whole text begins here.
    pub(super) fn pieces(&self, text: &str, first: bool, sink: Sink<'_>) -> Result<(), TextError> {
        run(&self.stages, text, first, sink)
    }
}

fn run(stages: &[Stage], text: &str, first: bool, sink: Sink<'_>) -> Result<(), TextError> {
    if text.is_empty() {
        return Ok(());
    }
    let Some((stage, rest)) = stages.split_first() else { return sink(text) };
    let mut next = |range: Range<usize>| run(rest, &text[range.clone()], first && range.start == 0, sink);
    match stage {
        Stage::Pattern { pattern, behavior, invert } => {
            let found = Events { text, at: 0, held: None, find: |at| pattern.find(text, at) };
            behavior.apply(found.map(|(range, found)| (range, found != *invert)), &mut next)
        }
        Stage::Digits { behavior } => behavior.apply(each_char(text, char::is_numeric), &mut next),
        Stage::PrefixSpace if text.starts_with(' ') => run(rest, text, first, sink),
        Stage::PrefixSpace => run(rest, &[" ", text].concat(), first, sink),
        Stage::Metaspace { mark, prepend, split } => {
            let mut marked = Cow::Borrowed(text);
            let mark_text = mark.to_string();
            if *mark != ' ' && text.contains(' ') {
                marked = Cow::Owned(text.replace(' ', &mark_text));
            }
            let wanted = *prepend == Prepend::Always || *prepend == Prepend::First && first;
            if wanted && !marked.starts_with(*mark) {
                marked = Cow::Owned(mark_text + &marked);
            }
            if !split {
                return run(rest, &marked, first, sink);
            }
            let mut next = |range: Range<usize>| run(rest, &marked[range.clone()], first && range.start == 0, sink);
            Behavior::MergedWithNext.apply(each_char(&marked, |c| c == *mark), &mut next)
        }
    }
}

impl Behavior {
    fn of(name: &str) -> Option<Behavior> {
        Some(match name {
            "Isolated" => Behavior::Isolated,
            "Removed" => Behavior::Removed,
            "MergedWithPrevious" => Behavior::MergedWithPrevious,
            "MergedWithNext" => Behavior::MergedWithNext,
            "Contiguous" => Behavior::Contiguous,
            _ => return None,
        })
    }

    /// Joins matches and the text between them to pieces. `events` cover a text in order, each with whether it matched.
    fn apply(
        self,
        events: impl Iterator<Item = (Range<usize>, bool)>,
        next: &mut dyn FnMut(Range<usize>) -> Result<(), TextError>,
    ) -> Result<(), TextError> {
        let mut held: Option<(Range<usize>, bool)> = None;
        for (range, found) in events {
            match self {
                Behavior::Isolated => next(range)?,
                Behavior::Removed if found => {}
                Behavior::Removed => next(range)?,
                _ => match &mut held {
                    Some((piece, last)) if self.joins(*last, found) => (piece.end, *last) = (range.end, found),
                    _ => {
                        if let Some((piece, _)) = held.replace((range, found)) {
                            next(piece)?;
                        }
                    }
                },
            }
        }
        held.map_or(Ok(()), |(piece, _)| next(piece))
    }

    /// Whether an event joins the previous piece; `last`, `found`: whether either matched.
    fn joins(self, last: bool, found: bool) -> bool {
        match self {
            Behavior::Isolated | Behavior::Removed => false,
            Behavior::MergedWithPrevious => found && !last,
            Behavior::MergedWithNext => last && !found,
            Behavior::Contiguous => last == found,
        }
    }
}

/// Matches of `find` and the text between them, in order, covering the text.
struct Events<'t, F> {
    text: &'t str,
    at: usize,
    /// A match found after the current gap.
    held: Option<Range<usize>>,
    find: F,
}

impl<F: FnMut(usize) -> Option<Range<usize>>> Iterator for Events<'_, F> {
    type Item = (Range<usize>, bool);

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(found) = self.held.take() {
            self.at = found.end;
            return Some((found, true));
        }
        if self.at == self.text.len() {
            return None;
        }
        let gap = match (self.find)(self.at) {
            Some(found) if found.start == self.at => {
                self.at = found.end;
                return Some((found, true));
            }
            Some(found) => {
                let gap = self.at..found.start;
                self.held = Some(found);
                gap
            }
            None => self.at..self.text.len(),
        };
        self.at = gap.end;
        Some((gap, false))
    }
}

/// Single characters that match, and the text between them.
fn each_char(text: &str, matches: impl Fn(char) -> bool) -> impl Iterator<Item = (Range<usize>, bool)> {
    let find = move |at: usize| {
        let (start, c) = text[at..].char_indices().find(|(_, c)| matches(*c))?;
        Some(at + start..at + start + c.len_utf8())
    };
    Events { text, at: 0, held: None, find }
}

/// A split pattern as an automaton: linear time for any pattern.
///
/// The only look-ahead in common patterns is `\s+(?!\S)|\s+` at their end: all but the last of the spaces before a
/// word. The automaton matches all of them, and the last is given back.
#[derive(Debug)]
struct Pattern {
    regex: Regex,
    /// The second of two patterns in `regex` is `\s+`, which gives its last character back.
    looks_ahead: bool,
}

impl Pattern {
    /// `None` for a pattern with another look-around, one that can match the empty text, or one with another meaning in
    /// the crate's regex syntax.
    fn compile(pattern: &str) -> Option<Pattern> {
        if is_possessive(pattern) {
            return None;
        }
        let (regular, looks_ahead) = match pattern.strip_suffix(SPACES) {
            Some(rest) => (rest, true),
            None => (pattern, false),
        };
        let parse = |pattern: &str| {
            let parsed = regex_syntax::parse(pattern).ok()?;
            let properties = parsed.properties();
            let plain = properties.look_set().is_empty() && properties.minimum_len().is_some_and(|least| least > 0);
            plain.then_some(parsed)
        };
        let mut patterns = vec![parse(regular)?];
        if looks_ahead {
            patterns.push(parse(r"\s+")?);
        }
        let config = Config::new().nfa_size_limit(Some(MAX_PATTERN_BYTES));
        let regex = Regex::builder().configure(config).build_many_from_hir(&patterns).ok()?;
        Some(Pattern { regex, looks_ahead })
    }

    /// The first match that begins at `at` or later.
    fn find(&self, text: &str, at: usize) -> Option<Range<usize>> {
        let input = Input::new(text).range(at..);
        // Nearly always a match begins at `at`, which takes one pass instead of two.
        let here = self.regex.find(input.clone().anchored(Anchored::Yes));
        let found = here.or_else(|| self.regex.find(input))?;
        let mut range = found.range();
        if self.looks_ahead && found.pattern().as_usize() == 1 && range.end < text.len() {
            let last = text[range.clone()].chars().next_back().map_or(0, char::len_utf8);
            if last < range.len() {
                range.end -= last;
            }
        }
        Some(range)
    }
}

/// Whether a `+` follows a quantifier: possessive in the crate's regex syntax, a nested repetition here.
fn is_possessive(pattern: &str) -> bool {
    let mut chars = pattern.chars().peekable();
    let (mut depth, mut quantified) = (0, false);
    while let Some(c) = chars.next() {
        let after = std::mem::take(&mut quantified);
        match c {
            '\\' => {
                let escape = chars.next();
                // The braces around the name of a class are no quantifier.
                if matches!(escape, Some('p' | 'P' | 'x' | 'u' | 'U')) && chars.peek() == Some(&'{') {
                    chars.by_ref().find(|&c| c == '}');
                }
            }
            '[' => depth += 1,
            ']' if depth > 0 => depth -= 1,
            '+' if depth == 0 && after => return true,
            '+' | '*' | '?' | '}' if depth == 0 => quantified = true,
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn possessive_quantifiers_are_told_from_what_looks_like_them() {
        for possessive in ["a++", "a*+", "(a|b)?+", "a{1,3}+", r"\p{L}++", r"\d{2}+x"] {
            assert!(is_possessive(possessive), "{possessive}");
            assert!(Pattern::compile(possessive).is_none(), "{possessive}");
        }
        for plain in [r"\p{L}+", "[*+]+", r"\++", "a+?", GPT2, r"[^\s\p{L}\p{N}]+", r"\x{41}+"] {
            assert!(!is_possessive(plain), "{plain}");
            assert!(Pattern::compile(plain).is_some(), "{plain}");
        }
    }

    #[test]
    fn patterns_that_look_around_or_match_nothing_are_left_to_the_crate() {
        for pattern in [r"\bword", "^a", "a$", r"a(?!\S)|b", "a*", "(?=a)", ""] {
            assert!(Pattern::compile(pattern).is_none(), "{pattern}");
        }
    }
}
