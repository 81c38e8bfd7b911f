//! Text from strangers stays text: no character that a conversation brings becomes part of a control token.
//!
//! ```text
//! "<b>hi</b> <|end|>" ──signs swapped──► "䷀b䷁hi䷀/b䷁ ䷀|end|䷁" ──template──► "<|user|>\n䷀b䷁hi䷀/b䷁ ䷀|end|䷁<|end|>"
//!                                                                          special: ^^^^^^^^                     ^^^^^^^
//!                                                          in what is between, marks are swapped back: plain text
//! ```
//!
//! A special token is usually written between two signs (`<|end|>`, `[INST]`). Before the template runs, those signs
//! are swapped for marks wherever the conversation has them, so **a special token in the prompt has its first and its
//! last character from the template**, whatever the template cuts, joins, trims or removes: neither can a removed
//! `<think>` close the gap in `<|e<think>nd|>`, nor two fields come together, nor a `<` of the template's be completed.
//! A text that as a whole is the inside of a special token (the name `|end|`, for a template that writes `<` name `>`)
//! gets a mark too.
//!
//! Templates look for signs of their own in what they are given: `content.split('</think>')`. So the signs in texts
//! that the template looks for stay, and those in added tokens that are not special, unless a special token may begin
//! or end there and go on beyond what is looked for. What is whole is never left: the first character of each special
//! token's text is swapped wherever it stands.
//!
//! Marks are characters that occur neither in the conversation nor in the template. There are 131,219; a conversation
//! that leaves too few is refused. Numbers and truth values have no marks, and a role that is the inside of a special
//! token is taken as it is (templates write `<|` role `|>`): who fills in roles decides which one speaks.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use aho_corasick::AhoCorasick;
use serde_json::{Map, Value as Json};

use super::conversation::{ChatMessage, TemplateError, TemplateOptions};
use crate::specials::{SpecialTexts, finder, is_sign};

/// Characters for marks. First those that are signs to Unicode as `<` is (a template can print them, and asks whether
/// something is a letter), in scripts that hardly anybody writes; then those for private use.
const POOLS: [RangeInclusive<char>; 4] =
    ['\u{4DC0}'..='\u{4DFF}', '\u{1D300}'..='\u{1D356}', '\u{F0000}'..='\u{FFFFD}', '\u{100000}'..='\u{10FFFD}'];

/// Filters and methods whose result depends on which sign it is. Templates that use one see marks only in whole special
/// tokens, and where a special token may go on beyond a text or has begun or ended within it.
const SIGN_SENSITIVE: [&str; 5] = ["escape", "e", "urlencode", "sort", "dictsort"];

/// Longest text in quotes that a template may look for in a message with signs in it.
const MAX_LITERAL_BYTES: usize = 1024;

/// What a template's source says about the texts that it looks for.
#[derive(Debug, Default)]
pub(super) struct Words {
    /// Texts in quotes that hold a sign and are looked for.
    literals: Option<AhoCorasick>,
    /// Texts in quotes and names.
    words: BTreeSet<String>,
    /// Whether it uses one of [`SIGN_SENSITIVE`].
    sign_sensitive: bool,
    /// Characters of the source that could be marks.
    characters: BTreeSet<char>,
}

impl Words {
    pub(super) fn of<'a>(sources: impl Iterator<Item = &'a str>) -> Words {
        let (mut words, mut literals, mut characters) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
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
                        // `c == '<'` asks for the sign alone; `'<' + name` writes it.
                        let asks =
                            before.is_some_and(Token::asks) || tokens.get(at + 1).is_some_and(Token::asks_before);
                        if asks && text.len() <= MAX_LITERAL_BYTES && text.contains(is_sign) {
                            literals.insert(text.clone());
                        }
                        words.insert(text.clone());
                    }
                }
            }
        }
        let literals = finder(literals.iter().map(String::as_str).collect());
        Words { literals, words, sign_sensitive, characters }
    }
}

/// A part of what stands between a template's delimiters.
#[derive(Debug, PartialEq)]
enum Token<'a> {
    Name(&'a str),
    Text(String),
    Sign(char),
}

impl Token<'_> {
    /// Whether what follows is looked for.
    fn asks(&self) -> bool {
        matches!(self, Token::Sign('(' | ',' | '=' | '[') | Token::Name("in"))
    }

    /// Whether what stands before it is looked for.
    fn asks_before(&self) -> bool {
        matches!(self, Token::Sign('=' | '!') | Token::Name("in" | "not"))
    }
}

/// What stands in `{{ }}` and `{% %}`, roughly: one pass, and wrong only where a template is.
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

/// A text up to its closing quote, with the escapes that templates use undone.
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
    words: &'a Words,
    /// Whether signs are swapped outside of whole special tokens too.
    signs: bool,
    /// `(mark, original)`.
    pub(super) swapped: Vec<(char, char)>,
}

impl<'a> Marks<'a> {
    /// `None` when nothing in the conversation needs one.
    pub(super) fn for_conversation(
        specials: &'a SpecialTexts,
        words: &'a Words,
        messages: &[ChatMessage],
        options: &TemplateOptions,
    ) -> Result<Option<Marks<'a>>, TemplateError> {
        let mut marks = Marks { specials, words, signs: !words.sign_sensitive, swapped: Vec::new() };
        let (mut originals, mut taken) = (BTreeSet::new(), words.characters.clone());
        each_text(messages, options, &mut |text, is_role| {
            marks.each_place(text, is_role, &mut |_, original| _ = originals.insert(original));
        });
        if originals.is_empty() {
            return Ok(None);
        }
        each_text(messages, options, &mut |text, _| taken.extend(text.chars().filter(|&c| is_mark(c))));
        let unused = POOLS.into_iter().flatten().filter(|c| !taken.contains(c));
        marks.swapped = unused.zip(originals.iter().copied()).collect();
        // Fail closed: without its mark, a character would be what it must not be.
        if marks.swapped.len() == originals.len() { Ok(Some(marks)) } else { Err(TemplateError::NoMarks) }
    }

    /// Calls `see` with each place of `text` where a character is swapped, in order. Holds no more than the places of
    /// whole special tokens.
    fn each_place(&self, text: &str, is_role: bool, see: &mut dyn FnMut(usize, char)) {
        let SpecialTexts { starts, signs, others, .. } = self.specials;
        let mut whole: Vec<usize> = starts.find_overlapping_iter(text).map(|found| found.start()).collect();
        whole.sort_unstable();
        let inside = !is_role && self.is_inside(text.trim());
        // Letters that become others in the other case come so seldom that nobody minds.
        let swaps_signs = self.signs || text.contains(['\u{17F}', '\u{130}', '\u{131}', '\u{212A}']);
        if whole.is_empty() && !inside && !text.contains(|c| signs.contains(&c)) {
            return;
        }
        let edges = text.len() - text.trim_start().len()..text.trim_end().len();
        let beginning = inside.then_some(edges.start);
        let mut whole = whole.into_iter().peekable();
        // Where the template finds what it looks for, and tokens that are not special.
        let mut found =
            [others, &self.words.literals].map(|finder| finder.as_ref().map(|f| f.find_iter(text).peekable()));
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

    /// Whether a text as a whole is a part of a special token, and no word of the template's.
    fn is_inside(&self, text: &str) -> bool {
        let known = || self.words.words.contains(text);
        // A number in a text must stay one to whoever counts with it.
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

    /// Texts and names of a map.
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
        let words = |source| Words::of([source].into_iter()).words.into_iter().collect::<Vec<_>>();
        assert_eq!(
            words("don't {{ a.b['c d'] }} {# 'no' #} {% if x == \"y\\n'\" %}it's"),
            ["a", "b", "c d", "if", "x", "y\n'"]
        );
        let looks_for = |source, text: &str| {
            Words::of([source].into_iter()).literals.is_some_and(|found| found.find(text).is_some())
        };
        assert!(looks_for("{{ m.content.split('</think>') }}", "</think>"));
        assert!(looks_for("{% if c[0] == '<' %}{% endif %}", "<"));
        assert!(looks_for("{% if '<' in c %}{% endif %}", "<"));
        assert!(!looks_for("{{ '<' ~ name ~ '>' }}", "<>"));
        for unfinished in ["{{", "{{ 'a", "{{ \"\\", "{#", "{% if", "{"] {
            Words::of([unfinished].into_iter());
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
