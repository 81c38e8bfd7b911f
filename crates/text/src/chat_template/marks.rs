//! Untrusted text stays text: no character of a conversation becomes part of a special token.
//!
//! ```text
//! "<b>hi</b> <|end|>" ──signs swapped──► "䷀b䷁hi䷀/b䷁ ䷀|end|䷁" ──template──► "<|user|>\n䷀b䷁hi䷀/b䷁ ䷀|end|䷁<|end|>"
//!                                                                          special: ^^^^^^^^                     ^^^^^^^
//!                                                          between them, marks are swapped back: plain text
//! ```
//!
//! A special token usually begins and ends with a sign, a punctuation character (`<|end|>`, `[INST]`). Before the
//! template runs, those signs are swapped for marks throughout the conversation, so **the first and the last character
//! of a special token in the prompt come from the template**, whatever the template cuts, joins, trims or removes: a
//! removed `<think>` cannot close the gap in `<|e<think>nd|>`, two fields cannot join, a `<` of the template cannot be
//! completed. A text that as a whole is the inside of a special token (the name `|end|`, for a template that writes `<`
//! name `>`) gets a mark too.
//!
//! Templates search their input for signs: `content.split('</think>')`. So the signs in texts that the template
//! searches for stay, and those in added tokens that are not special, unless a special token may begin or end there and
//! extend beyond that text. In a whole special token, the first character is always swapped.
//!
//! Marks are characters that occur neither in the conversation nor in the template. There are 131,219; a conversation
//! that leaves too few is refused. Numbers and booleans have no marks, and neither has a role that is the inside of a
//! special token (templates write `<|` role `|>`): the client that sets roles decides which one is used.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use aho_corasick::AhoCorasick;
use serde_json::{Map, Value as Json};

use super::conversation::{ChatMessage, TemplateError, TemplateOptions};
use crate::specials::{SpecialTexts, finder, is_sign};

/// Characters for marks. First rare Unicode symbols, which like `<` are printable and no letters, as templates may
/// test; then private-use characters.
const POOLS: [RangeInclusive<char>; 4] =
    ['\u{4DC0}'..='\u{4DFF}', '\u{1D300}'..='\u{1D356}', '\u{F0000}'..='\u{FFFFD}', '\u{100000}'..='\u{10FFFD}'];

/// Filters and methods whose result depends on the exact sign. Templates that use one see marks only in whole special
/// tokens, and where a special token may begin or end at the edge of a text.
const SIGN_SENSITIVE: [&str; 5] = ["escape", "e", "urlencode", "sort", "dictsort"];

/// Maximum bytes of a string literal whose signs stay unmarked in messages.
const MAX_LITERAL_BYTES: usize = 1024;

/// String literals, names and characters in a template's source.
#[derive(Debug, Default)]
pub(super) struct TemplateLiterals {
    /// String literals that contain a sign and that the template searches for.
    searched: Option<AhoCorasick>,
    /// All string literals and names.
    words: BTreeSet<String>,
    /// Whether the template uses one of [`SIGN_SENSITIVE`].
    sign_sensitive: bool,
    /// Characters of the source that could be marks.
    characters: BTreeSet<char>,
}

impl TemplateLiterals {
    pub(super) fn of<'a>(sources: impl Iterator<Item = &'a str>) -> TemplateLiterals {
        let (mut words, mut searched, mut characters) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let mut sign_sensitive = false;
        for source in sources {
            characters.extend(source.chars().filter(|&c| is_mark(c)));
            let tokens = tokens(source);
            for (at, token) in tokens.iter().enumerate() {
                let before = at.checked_sub(1).map(|before| &tokens[before]);
                match token {
                    Token::Name(name) => {
                        sign_sensitive |=
                            matches!(before, Some(Token::Sign('|' | '.'))) && SIGN_SENSITIVE.contains(name);
                        words.insert(name.to_string());
                    }
                    Token::Sign(_) => {}
                    Token::Text(text) => {
                        // `c == '<'` searches for the sign; `'<' + name` writes it.
                        let is_searched = before.is_some_and(Token::searches_next)
                            || tokens.get(at + 1).is_some_and(Token::searches_previous);
                        if is_searched && text.len() <= MAX_LITERAL_BYTES && text.contains(is_sign) {
                            searched.insert(text.clone());
                        }
                        words.insert(text.clone());
                    }
                }
            }
        }
        let searched = finder(searched.iter().map(String::as_str).collect());
        TemplateLiterals { searched, words, sign_sensitive, characters }
    }

    /// Whether it is a name or a string literal of the template.
    pub(super) fn has_word(&self, word: &str) -> bool {
        self.words.contains(word)
    }
}

/// A token between a template's delimiters.
#[derive(Debug, PartialEq)]
enum Token<'a> {
    Name(&'a str),
    Text(String),
    Sign(char),
}

impl Token<'_> {
    /// Whether the template may search for the text after this token.
    fn searches_next(&self) -> bool {
        matches!(self, Token::Sign('(' | ',' | '=' | '[') | Token::Name("in"))
    }

    /// Whether the template may search for the text before this token.
    fn searches_previous(&self) -> bool {
        matches!(self, Token::Sign('=' | '!') | Token::Name("in" | "not"))
    }
}

/// Tokens in `{{ }}` and `{% %}`, roughly: one pass, wrong only for an invalid template.
fn tokens(source: &str) -> Vec<Token<'_>> {
    let (mut tokens, mut rest) = (Vec::new(), source);
    while let Some(at) = rest.find('{') {
        rest = &rest[at + 1..];
        if let Some(comment) = rest.strip_prefix('#') {
            rest = comment.find("#}").map_or("", |end| &comment[end + 2..]);
        } else if let Some(inside) = rest.strip_prefix(['{', '%']) {
            rest = inside;
            while let Some(c) = rest.chars().next() {
                let after = &rest[c.len_utf8()..];
                if rest.starts_with("%}") || rest.starts_with("}}") {
                    break;
                }
                rest = match c {
                    '\'' | '"' => {
                        let (text, after) = quoted(after, c);
                        tokens.push(Token::Text(text));
                        after
                    }
                    c if c.is_alphanumeric() || c == '_' => {
                        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                        tokens.push(Token::Name(&rest[..end]));
                        &rest[end..]
                    }
                    c => {
                        if !c.is_whitespace() {
                            tokens.push(Token::Sign(c));
                        }
                        after
                    }
                };
            }
        }
    }
    tokens
}

/// A text up to its closing quote, unescaped, and the source after it.
fn quoted(source: &str, quote: char) -> (String, &str) {
    let (mut text, mut chars) = (String::new(), source.chars());
    while let Some(c) = chars.next() {
        match c {
            c if c == quote => break,
            '\\' => match chars.next() {
                Some('n') => text.push('\n'),
                Some('t') => text.push('\t'),
                Some('r') => text.push('\r'),
                Some(c) => text.push(c),
                None => break,
            },
            c => text.push(c),
        }
    }
    (text, chars.as_str())
}

fn is_mark(c: char) -> bool {
    POOLS.iter().any(|pool| pool.contains(&c))
}

/// The marks of one conversation.
pub(super) struct Marks<'a> {
    specials: &'a SpecialTexts,
    literals: &'a TemplateLiterals,
    /// Whether signs outside of whole special tokens are swapped too.
    signs: bool,
    /// `(mark, original)`.
    pub(super) swapped: Vec<(char, char)>,
}

impl<'a> Marks<'a> {
    /// `None` if no text of the conversation needs a mark.
    pub(super) fn for_conversation(
        specials: &'a SpecialTexts,
        literals: &'a TemplateLiterals,
        messages: &[ChatMessage],
        options: &TemplateOptions,
    ) -> Result<Option<Marks<'a>>, TemplateError> {
        let mut marks = Marks { specials, literals, signs: !literals.sign_sensitive, swapped: Vec::new() };
        let (mut originals, mut taken) = (BTreeSet::new(), literals.characters.clone());
        each_text(messages, options, &mut |text, is_role| {
            marks.each_place(text, is_role, &mut |_, original| _ = originals.insert(original));
        });
        if originals.is_empty() {
            return Ok(None);
        }
        each_text(messages, options, &mut |text, _| taken.extend(text.chars().filter(|&c| is_mark(c))));
        let unused = POOLS.into_iter().flatten().filter(|c| !taken.contains(c));
        marks.swapped = unused.zip(originals.iter().copied()).collect();
        // Fail closed: an unmarked character could become part of a special token.
        if marks.swapped.len() == originals.len() { Ok(Some(marks)) } else { Err(TemplateError::NoMarks) }
    }

    /// Calls `see` with each swapped character of `text`, in order. Stores only the positions of whole special tokens.
    fn each_place(&self, text: &str, is_role: bool, see: &mut dyn FnMut(usize, char)) {
        let SpecialTexts { starts, signs, others, .. } = self.specials;
        let mut whole: Vec<usize> = starts.find_overlapping_iter(text).map(|found| found.start()).collect();
        whole.sort_unstable();
        let inside = !is_role && self.is_inside(text.trim());
        // These letters become ASCII ones in another case; they are so rare that all signs of the text are swapped.
        let swaps_signs = self.signs || text.contains(['\u{17F}', '\u{130}', '\u{131}', '\u{212A}']);
        if whole.is_empty() && !inside && !text.contains(|c| signs.contains(&c)) {
            return;
        }
        let edges = text.len() - text.trim_start().len()..text.trim_end().len();
        let beginning = inside.then_some(edges.start);
        let mut whole = whole.into_iter().peekable();
        // Texts that the template searches for, and added tokens that are not special.
        let mut found =
            [others, &self.literals.searched].map(|finder| finder.as_ref().map(|f| f.find_iter(text).peekable()));
        for (at, c) in text.char_indices() {
            let mut begins = beginning == Some(at);
            while whole.next_if(|start| *start <= at).is_some() {
                begins = true;
            }
            let sign = || {
                signs.contains(&c)
                    && (swaps_signs
                        || at == edges.start
                        || at + c.len_utf8() == edges.end
                        || self.specials.is_near(text, at))
                    && !found.iter_mut().flatten().any(|found| {
                        while found.next_if(|found| found.end() <= at).is_some() {}
                        found.peek().is_some_and(|found| {
                            found.start() <= at && !self.specials.goes_beyond(text, found.range(), at)
                        })
                    })
            };
            if begins || { sign }() {
                see(at, c);
            }
        }
    }

    /// Whether a text as a whole is a part of a special token, and no literal or name of the template.
    fn is_inside(&self, text: &str) -> bool {
        let known = || self.literals.has_word(text);
        // A number must stay a number for a template that computes with it.
        let number = || text.bytes().all(|byte| byte.is_ascii_digit());
        !text.is_empty()
            && text.len() < self.specials.longest
            && !number()
            && self.specials.all.contains(text)
            && !known()
    }

    /// `text` with marks.
    fn text(&self, text: &str, is_role: bool) -> String {
        let mut result = String::with_capacity(text.len());
        let mut done = 0;
        self.each_place(text, is_role, &mut |at, original| {
            let mark = self.swapped.iter().find(|(_, other)| *other == original);
            result.push_str(&text[done..at]);
            result.push(mark.expect("every place has been seen").0);
            done = at + original.len_utf8();
        });
        result + &text[done..]
    }

    fn json(&self, value: &Json) -> Json {
        match value {
            Json::String(text) => Json::String(self.text(text, false)),
            Json::Array(items) => items.iter().map(|item| self.json(item)).collect(),
            Json::Object(map) => Json::Object(self.map(map)),
            other => other.clone(),
        }
    }

    /// A map with marks in its texts and names.
    pub(super) fn map(&self, map: &Map<String, Json>) -> Map<String, Json> {
        map.iter().map(|(key, value)| (self.text(key, false), self.json(value))).collect()
    }

    /// A message with marks.
    pub(super) fn message(&self, message: &ChatMessage) -> ChatMessage {
        ChatMessage {
            role: self.text(&message.role, true),
            content: message.content.as_deref().map(|content| self.text(content, false)),
            extra: self.map(&message.extra),
        }
    }

    /// The original of a text with marks.
    pub(super) fn restore(&self, text: &str) -> String {
        let original = |c| self.swapped.iter().find(|(mark, _)| *mark == c).map_or(c, |(_, original)| *original);
        text.chars().map(original).collect()
    }
}

/// Calls `see` with every text that a template can read from the request, and whether it is a role.
fn each_text(messages: &[ChatMessage], options: &TemplateOptions, see: &mut dyn FnMut(&str, bool)) {
    fn in_map(map: &Map<String, Json>, see: &mut dyn FnMut(&str, bool)) {
        for (key, value) in map {
            see(key, false);
            in_json(value, see);
        }
    }
    fn in_json(value: &Json, see: &mut dyn FnMut(&str, bool)) {
        match value {
            Json::String(text) => see(text, false),
            Json::Array(items) => items.iter().for_each(|item| in_json(item, see)),
            Json::Object(map) => in_map(map, see),
            _ => {}
        }
    }
    for message in messages {
        see(&message.role, true);
        see(message.content.as_deref().unwrap_or_default(), false);
        in_map(&message.extra, see);
    }
    in_map(&options.kwargs, see);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_templates_words_are_found() {
        let words = |source| TemplateLiterals::of([source].into_iter()).words.into_iter().collect::<Vec<_>>();
        assert_eq!(
            words("don't {{ a.b['c d'] }} {# 'no' #} {% if x == \"y\\n'\" %}it's"),
            ["a", "b", "c d", "if", "x", "y\n'"]
        );
        let looks_for = |source, text: &str| {
            TemplateLiterals::of([source].into_iter()).searched.is_some_and(|found| found.find(text).is_some())
        };
        assert!(looks_for("{{ m.content.split('</think>') }}", "</think>"));
        assert!(looks_for("{% if c[0] == '<' %}{% endif %}", "<"));
        assert!(looks_for("{% if '<' in c %}{% endif %}", "<"));
        assert!(!looks_for("{{ '<' ~ name ~ '>' }}", "<>"));
        for unfinished in ["{{", "{{ 'a", "{{ \"\\", "{#", "{% if", "{"] {
            TemplateLiterals::of([unfinished].into_iter());
        }
    }

    #[test]
    fn marks_are_signs_to_a_template() {
        for c in POOLS.into_iter().take(2).flatten() {
            assert!(is_sign(c) && c.to_lowercase().eq([c]) && c.to_uppercase().eq([c]), "{c:?}");
            assert_eq!(format!("{c:?}").chars().count(), 3, "{c:?} is printed as it is");
        }
    }
}
