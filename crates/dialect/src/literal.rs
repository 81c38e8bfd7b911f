//! Values as Python writes them: `{'a': (1, None), 'b': 0x1F}`.

use std::str::Chars;

use crate::json::{is_json, quoted};

/// Maximum nesting of lists and dictionaries.
const MAX_DEPTH: usize = 100;

/// String delimiters, triple quotes first, because they begin with single ones.
pub(crate) const QUOTES: [&str; 4] = ["\"\"\"", "'''", "\"", "'"];

/// A Python literal as JSON. JSON's keywords are accepted too.
pub(crate) fn to_json(written: &str) -> Option<String> {
    let mut literal = Literal { rest: written, json: String::new() };
    literal.value(0)?;
    literal.space();
    literal.rest.is_empty().then_some(literal.json)
}

struct Literal<'a> {
    rest: &'a str,
    json: String,
}

impl Literal<'_> {
    fn space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn eat(&mut self, wanted: &str) -> bool {
        let rest = self.rest.strip_prefix(wanted);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn value(&mut self, depth: usize) -> Option<()> {
        const WORDS: [(&str, &str); 8] = [
            ("True", "true"),
            ("False", "false"),
            ("None", "null"),
            ("true", "true"),
            ("false", "false"),
            ("null", "null"),
            // Numbers of JavaScript and of Python's JSON that JSON has not: texts, which validators read as numbers.
            ("NaN", "\"NaN\""),
            ("Infinity", "\"Infinity\""),
        ];
        if depth > MAX_DEPTH {
            return None;
        }
        self.space();
        for infinity in ["-Infinity", "+Infinity"] {
            if self.eat(infinity) {
                self.json.push_str(&quoted(infinity.trim_start_matches('+')));
                return Some(());
            }
        }
        match self.rest.chars().next()? {
            '"' | '\'' => self.texts()?,
            'r' | 'R' | 'u' | 'U' if self.rest[1..].starts_with(['"', '\'']) => self.texts()?,
            '[' => self.items(']', depth)?,
            '(' => self.items(')', depth)?,
            '{' => self.entries(depth)?,
            '+' | '-' | '.' | '0'..='9' => self.number()?,
            _ => {
                let word = self.rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
                let (_, json) = WORDS.iter().find(|(known, _)| *known == word)?;
                self.rest = &self.rest[word.len()..];
                self.json.push_str(json);
            }
        }
        Some(())
    }

    /// A list or a tuple, as a JSON list; or a value in parentheses.
    fn items(&mut self, end: char, depth: usize) -> Option<()> {
        self.rest = &self.rest[1..];
        let start = self.json.len();
        self.json.push('[');
        let is_lone = self.separated(end, |literal| literal.value(depth + 1))?;
        if end == ')' && is_lone {
            self.json.remove(start);
        } else {
            self.json.push(']');
        }
        Some(())
    }

    fn entries(&mut self, depth: usize) -> Option<()> {
        self.rest = &self.rest[1..];
        self.json.push('{');
        self.separated('}', |literal| {
            // A key that is not a string becomes one.
            let start = literal.json.len();
            literal.value(depth + 1)?;
            let key = literal.json.split_off(start);
            match key.chars().next()? {
                '"' => literal.json.push_str(&key),
                '[' | '{' => return None,
                _ => literal.json.push_str(&quoted(&key)),
            }
            literal.space();
            literal.eat(":").then(|| literal.json.push_str(": "))?;
            literal.value(depth + 1)
        })?;
        self.json.push('}');
        Some(())
    }

    /// Returns whether it was one, without a comma.
    fn separated(&mut self, end: char, mut one: impl FnMut(&mut Self) -> Option<()>) -> Option<bool> {
        let (mut is_first, mut is_lone) = (true, false);
        loop {
            self.space();
            if self.rest.starts_with(end) {
                self.rest = &self.rest[1..];
                return Some(is_lone);
            }
            if !is_first {
                self.json.push_str(", ");
            }
            one(self)?;
            self.space();
            let is_more = self.eat(",");
            if !is_more && !self.rest.starts_with(end) {
                return None;
            }
            is_lone = is_first && !is_more;
            is_first = false;
        }
    }

    /// A string, or adjacent strings, which are concatenated.
    fn texts(&mut self) -> Option<()> {
        let mut all = String::new();
        loop {
            let bare = self.rest.trim_start_matches(['r', 'R', 'u', 'U']);
            if self.rest.len() - bare.len() > 1 || !bare.starts_with(['"', '\'']) {
                break;
            }
            let is_raw = self.rest.starts_with(['r', 'R']);
            self.rest = bare;
            all.push_str(&self.text(is_raw)?);
            self.space();
        }
        self.json.push_str(&quoted(&all));
        Some(())
    }

    fn text(&mut self, is_raw: bool) -> Option<String> {
        let quote = *QUOTES.iter().find(|quote| self.rest.starts_with(**quote))?;
        let mut text = String::new();
        let mut chars = self.rest[quote.len()..].chars();
        loop {
            if let Some(rest) = chars.as_str().strip_prefix(quote) {
                chars = rest.chars();
                break;
            }
            match chars.next()? {
                // It ends nothing, and the backslash is kept.
                '\\' if is_raw => text.extend(['\\', chars.next()?]),
                '\\' if chars.as_str().starts_with('\n') => drop(chars.next()),
                '\\' => {
                    // As in Python, a backslash that begins no escape is kept.
                    let mut behind = chars.clone();
                    match escape(&mut behind) {
                        Some(c) => {
                            text.push(c);
                            chars = behind;
                        }
                        None => text.push('\\'),
                    }
                }
                c => text.push(c),
            }
        }
        self.rest = chars.as_str();
        Some(text)
    }

    /// Converts to JSON's syntax: a digit on both sides of the point, no plus, no leading zeros, base ten.
    fn number(&mut self) -> Option<()> {
        let sign = if self.rest.starts_with('-') { "-" } else { "" };
        // A space may follow the sign.
        let unsigned = self.rest.strip_prefix(['+', '-']).map_or(self.rest, str::trim_start);
        let end = unsigned.find(|c: char| !c.is_ascii_alphanumeric() && !"+-._".contains(c));
        let (written, rest) = unsigned.split_at(end.unwrap_or(unsigned.len()));
        let digits = written.replace('_', "");
        let digits = digits.as_str();
        if let Some(value) = of_base(digits) {
            self.json.push_str(&format!("{sign}{value}"));
            self.rest = rest;
            return Some(());
        }
        let (digits, exponent) = match digits.find(['e', 'E']) {
            Some(at) => digits.split_at(at),
            None => (digits, ""),
        };
        let (before, after) = digits.split_once('.').unwrap_or((digits, ""));
        if before.is_empty() && after.is_empty() {
            return None;
        }
        let before = match before.trim_start_matches('0') {
            "" => "0",
            before => before,
        };
        let point = if digits.contains('.') { "." } else { "" };
        let after = if point.is_empty() || !after.is_empty() { after } else { "0" };
        let json = format!("{sign}{before}{point}{after}{exponent}");
        is_json(&json).then_some(())?;
        self.json.push_str(&json);
        self.rest = rest;
        Some(())
    }
}

/// An integer in base 16, 8 or 2.
fn of_base(digits: &str) -> Option<u128> {
    let (prefix, digits) = digits.split_at_checked(2)?;
    let base = match prefix {
        "0x" | "0X" => 16,
        "0o" | "0O" => 8,
        "0b" | "0B" => 2,
        _ => return None,
    };
    u128::from_str_radix(digits, base).ok()
}

/// The character of an escape after its backslash.
fn escape(chars: &mut Chars<'_>) -> Option<char> {
    Some(match chars.next()? {
        'a' => '\u{7}',
        'b' => '\u{8}',
        't' => '\t',
        'n' => '\n',
        'v' => '\u{b}',
        'f' => '\u{c}',
        'r' => '\r',
        c @ ('\\' | '\'' | '"') => c,
        'x' => character(hex(chars, 2)?)?,
        'u' => {
            let code = hex(chars, 4)?;
            let mut behind = chars.clone();
            match pair(code, &mut behind) {
                Some(c) => {
                    *chars = behind;
                    c
                }
                None => character(code)?,
            }
        }
        'U' => character(hex(chars, 8)?)?,
        c => {
            let mut code = c.to_digit(8)?;
            for _ in 0..2 {
                let Some(digit) = chars.clone().next().and_then(|c| c.to_digit(8)) else { break };
                code = code << 3 | digit;
                chars.next();
            }
            character(code)?
        }
    })
}

/// A lone surrogate, valid in Python, becomes U+FFFD.
fn character(code: u32) -> Option<char> {
    if (0xD800..=0xDFFF).contains(&code) { Some(char::REPLACEMENT_CHARACTER) } else { char::from_u32(code) }
}

fn hex(chars: &mut Chars<'_>, digits: usize) -> Option<u32> {
    (0..digits).try_fold(0u32, |code, _| Some(code << 4 | chars.next()?.to_digit(16)?))
}

/// The character of a high surrogate and the escape of a low one.
fn pair(high: u32, chars: &mut Chars<'_>) -> Option<char> {
    *chars = chars.as_str().strip_prefix("\\u")?.chars();
    let low = hex(chars, 4)?;
    // Only a pair is one character.
    char::decode_utf16([high as u16, low as u16]).next()?.ok().filter(|c| c.len_utf16() == 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_become_json() {
        let table: &[(&str, Option<&str>)] = &[
            ("'a'", Some("\"a\"")),
            ("\"it's\"", Some("\"it's\"")),
            (r"'\'\\\n\x41\u00e9\U0001f98a\ud83e\udd8a\q'", Some("\"'\\\\\\nAé🦊🦊\\\\q\"")),
            ("True", Some("true")),
            ("[None, false]", Some("[null, false]")),
            ("(1, 2,)", Some("[1, 2]")),
            ("((1,), (2), ('a'\n'b'), (), [3])", Some("[[1], 2, \"ab\", [], [3]]")),
            ("{'a': {1: -2.5}, }", Some("{\"a\": {\"1\": -2.5}}")),
            ("007", Some("7")),
            ("+1_000", Some("1000")),
            ("- 5", Some("-5")),
            ("- -5", None),
            ("-39E5115", Some("-39E5115")),
            (".5", Some("0.5")),
            ("-1.", Some("-1.0")),
            ("1e5", Some("1e5")),
            ("", None),
            ("a", None),
            ("'a", None),
            ("'a' 'b'", Some("\"ab\"")),
            ("'a' \n r\"\\d\" u'c'", Some("\"a\\\\dc\"")),
            ("'a' 1", None),
            ("f'a'", None),
            ("b'a'", None),
            ("rr'a'", None),
            ("\"\"\"a\n\"b\" c\"\"\"", Some("\"a\\n\\\"b\\\" c\"")),
            ("'''it's'''", Some("\"it's\"")),
            ("''", Some("\"\"")),
            (r"r'\n\'x'", Some("\"\\\\n\\\\'x\"")),
            ("{'a': r'\\d' 'b', }", Some("{\"a\": \"\\\\db\"}")),
            ("[1 2]", None),
            ("{1}", None),
            ("{[]: 1}", None),
            ("--1", None),
            ("1.2.3", None),
            ("0x10", Some("16")),
            ("-0X_fF", Some("-255")),
            ("[0b101, 0o17, 1_0.5_0e1_0]", Some("[5, 15, 10.50e10]")),
            ("0xg", None),
            ("0x", None),
            ("1e", None),
            (".", None),
            (r"'\101\7\0\08\1234\377\777'", Some(r#""A\u0007\u0000\u00008S4ÿǿ""#)),
            (r"'\a\v\b\f'", Some(r#""\u0007\u000b\b\f""#)),
            (r"'a\/b \. \N{BULLET}'", Some(r#""a\\/b \\. \\N{BULLET}""#)),
            (r"'\ud83e'", Some("\"\u{fffd}\"")),
            (r"'\udd8a\ud83e\u0041\U0000d83e'", Some("\"\u{fffd}\u{fffd}A\u{fffd}\"")),
            (r"'C:\users\x4'", Some(r#""C:\\users\\x4""#)),
            (r"'\U00110000'", Some(r#""\\U00110000""#)),
            ("'a\\\nb'", Some("\"ab\"")),
            ("Truest", None),
        ];
        for (written, json) in table {
            assert_eq!(to_json(written).as_deref(), *json, "{written:?}");
        }
        assert_eq!(to_json(&"[".repeat(1 << 16)), None);
    }
}
