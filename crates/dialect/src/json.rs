//! Incremental JSON, one character at a time: the accepted characters are always a prefix of valid JSON.

use crate::char_stream::{CharStream, Read, Sink, Stop};
use crate::literal::to_json;

/// Maximum nesting: `serde_json`, and so a client, refuses 128.
const MAX_DEPTH: usize = 100;

/// Classification of a character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A part of the value.
    More,
    /// Its last character.
    Last,
    /// After the complete value: a number has no end marker.
    Behind,
    /// Not JSON.
    Malformed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Value,
    /// A value, or the end of an empty list.
    FirstValue,
    Key,
    /// A key, or the end of an empty object.
    FirstKey,
    Colon,
    /// A comma, or the closing bracket.
    Comma,
    Text,
    Escape,
    /// Number of missing digits of `\u`, and the value so far.
    Hex(u8, u16),
    /// The second half of a surrogate pair: a backslash, then its `u`.
    LowSlash,
    LowU,
    /// The rest of a literal word.
    Word(&'static str),
    Minus,
    Zero,
    Digits,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
}

/// State of a value that is being read.
#[derive(Clone, Debug)]
pub(crate) struct Json {
    state: State,
    /// Open brackets: whether each is an object.
    open: Vec<bool>,
    /// Whether the current string is a key.
    is_key: bool,
    /// Whether the digits are a low surrogate's.
    is_low: bool,
}

impl Json {
    pub(crate) fn value() -> Json {
        Json { state: State::Value, open: Vec::new(), is_key: false, is_low: false }
    }

    /// Whether the input is not within an escape.
    pub(crate) fn is_between_characters(&self) -> bool {
        self.state == State::Text
    }

    /// The next character. Must not be called after anything but [`Step::More`].
    pub(crate) fn step(&mut self, c: char) -> Step {
        use State::*;
        let is_space = matches!(c, ' ' | '\t' | '\n' | '\r');
        self.state = match (self.state, c) {
            (Value | FirstValue | Key | FirstKey | Colon | Comma, _) if is_space => return Step::More,
            (FirstValue, ']') => return self.close(),
            (Value | FirstValue, _) => match c {
                '{' | '[' if self.open.len() < MAX_DEPTH => {
                    self.open.push(c == '{');
                    if c == '{' { FirstKey } else { FirstValue }
                }
                '"' => {
                    self.is_key = false;
                    Text
                }
                't' => Word("rue"),
                'f' => Word("alse"),
                'n' => Word("ull"),
                '-' => Minus,
                '0' => Zero,
                '1'..='9' => Digits,
                _ => return Step::Malformed,
            },
            (FirstKey, '}') => return self.close(),
            (Key | FirstKey, '"') => {
                self.is_key = true;
                Text
            }
            (Colon, ':') => Value,
            (Comma, ',') => {
                if self.open.last() == Some(&true) {
                    Key
                } else {
                    Value
                }
            }
            (Comma, '}') if self.open.last() == Some(&true) => return self.close(),
            (Comma, ']') if self.open.last() == Some(&false) => return self.close(),
            (Text, '"') => {
                if self.is_key {
                    Colon
                } else {
                    return self.complete(Step::Last);
                }
            }
            (Text, '\\') => Escape,
            (Text, '\0'..='\u{1f}') => return Step::Malformed,
            (Text, _) => Text,
            (Escape, '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't') => Text,
            (Escape, 'u') => {
                self.is_low = false;
                Hex(4, 0)
            }
            (Hex(left, code), _) => {
                let Some(digit) = c.to_digit(16) else { return Step::Malformed };
                let code = code << 4 | digit as u16;
                // A lone surrogate is not a character, and `serde_json` refuses it.
                match (left, self.is_low, code) {
                    (1, false, 0xD800..=0xDBFF) => LowSlash,
                    (1, false, 0xDC00..=0xDFFF) => return Step::Malformed,
                    (3, true, 0..=0xDB | 0xE0..) | (4, true, 0..=0xC | 0xE..) => return Step::Malformed,
                    (1, ..) => Text,
                    _ => Hex(left - 1, code),
                }
            }
            (LowSlash, '\\') => LowU,
            (LowU, 'u') => {
                self.is_low = true;
                Hex(4, 0)
            }
            (Word(rest), _) if rest.starts_with(c) => {
                let rest = &rest[1..];
                if rest.is_empty() {
                    return self.complete(Step::Last);
                }
                Word(rest)
            }
            (Minus, '0') => Zero,
            (Minus, '1'..='9') | (Digits, '0'..='9') => Digits,
            (Zero | Digits, '.') => Point,
            (Point | Fraction, '0'..='9') => Fraction,
            (Zero | Digits | Fraction, 'e' | 'E') => Exponent,
            (Exponent, '+' | '-') => ExponentSign,
            (Exponent | ExponentSign | ExponentDigits, '0'..='9') => ExponentDigits,
            (Zero | Digits | Fraction | ExponentDigits, _) => {
                return match self.complete(Step::Behind) {
                    Step::More => self.step(c),
                    step => step,
                };
            }
            _ => return Step::Malformed,
        };
        Step::More
    }

    fn close(&mut self) -> Step {
        self.open.pop();
        self.complete(Step::Last)
    }

    /// A value is complete; `step` if it is the outermost.
    fn complete(&mut self, step: Step) -> Step {
        self.state = State::Comma;
        if self.open.is_empty() { step } else { Step::More }
    }
}

/// Pending input of a [`Mender`].
#[derive(Clone, Debug, PartialEq, Eq)]
enum Mending {
    /// None beyond the next character.
    Plain,
    /// A comma and the white space after it: dropped if it is a trailing comma.
    Comma(String),
    /// An unquoted key.
    Name,
    /// The beginning of a number or a keyword that may be none of JSON's.
    Word(String),
    Text,
    /// A backslash.
    Escape,
    /// A backslash, its `u` and these digits; after the high surrogate, if any.
    Hex(String, Option<String>),
    /// A high surrogate's escape; then the backslash that follows.
    High(String),
    HighSlash(String),
    /// A quotation mark and the white space after it: the end of the string, or a part of it.
    Quote(String),
}

/// Repairs JSON as models write it, where only one meaning is possible. Correct JSON passes unchanged, byte for byte.
///
/// - A backslash that begins no escape is escaped; a lone surrogate becomes U+FFFD. Control characters are escaped.
/// - A quotation mark inside a string is escaped if the next character cannot follow a string.
/// - Single-quoted strings, unquoted keys, and keywords and numbers of Python are converted: `0x1F` to 31, `NaN` to
///   `"NaN"`, because no JSON has it.
/// - Trailing commas are dropped.
#[derive(Clone, Debug)]
pub(crate) struct Mender {
    /// State of the output.
    json: Json,
    mending: Mending,
    quote: char,
}

impl Mender {
    pub(crate) fn new() -> Mender {
        Mender { json: Json::value(), mending: Mending::Plain, quote: '"' }
    }

    /// The next character; appends the output for it and for pending input.
    pub(crate) fn step(&mut self, c: char, out: &mut String) -> Step {
        let mending = std::mem::replace(&mut self.mending, Mending::Plain);
        match mending {
            Mending::Plain => self.plain(c, out),
            Mending::Comma(mut held) => match c {
                ' ' | '\t' | '\n' | '\r' => {
                    held.push(c);
                    self.wait(Mending::Comma(held))
                }
                ',' => self.wait(Mending::Comma(held)),
                '}' | ']' => self.feed(c, out),
                _ => match self.feed_all(&held, out) {
                    Step::More => self.plain(c, out),
                    step => step,
                },
            },
            Mending::Name if c.is_alphanumeric() || matches!(c, '_' | '-' | '$') => {
                self.mending = Mending::Name;
                self.feed(c, out)
            }
            Mending::Name => match self.feed('"', out) {
                Step::More => self.plain(c, out),
                step => step,
            },
            // A number of JSON, which goes on as it is.
            Mending::Word(word)
                if word == "-" && matches!(c, '1'..='9')
                    || ["0", "-0"].contains(&word.as_str()) && ".eE".contains(c) =>
            {
                match self.feed_all(&word, out) {
                    Step::More => self.feed(c, out),
                    step => step,
                }
            }
            Mending::Word(mut word) if is_of_word(c) || c == ' ' && ["+", "-"].contains(&word.as_str()) => {
                word.push(c);
                self.wait(Mending::Word(word))
            }
            Mending::Word(word) => match self.word(&word, out) {
                Step::More => self.plain(c, out),
                step => step,
            },
            Mending::Text => self.text(c, out),
            Mending::Escape => match c {
                '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' => self.go_on(&['\\', c], out),
                '\'' if self.quote == '\'' => self.go_on(&['\''], out),
                'u' => self.wait(Mending::Hex(String::new(), None)),
                _ => match self.feed_all(r"\\", out) {
                    Step::More => self.text(c, out),
                    step => step,
                },
            },
            Mending::Hex(mut digits, high) if c.is_ascii_hexdigit() => {
                digits.push(c);
                if digits.len() < 4 {
                    return self.wait(Mending::Hex(digits, high));
                }
                let code = u16::from_str_radix(&digits, 16).unwrap_or_default();
                let written = format!("\\u{digits}");
                match (code, high) {
                    (0xDC00..=0xDFFF, Some(high)) => self.go_on_all(&format!("{high}{written}"), out),
                    (0xDC00..=0xDFFF, None) => self.go_on_all(HALF, out),
                    (0xD800..=0xDBFF, high) => {
                        let step = self.go_on_all(if high.is_some() { HALF } else { "" }, out);
                        self.mending = Mending::High(written);
                        step
                    }
                    (_, high) => self.go_on_all(&format!("{}{written}", if high.is_some() { HALF } else { "" }), out),
                }
            }
            Mending::Hex(digits, high) => {
                let half = if high.is_some() { HALF } else { "" };
                match self.feed_all(&format!("{half}\\\\u{digits}"), out) {
                    Step::More => self.text(c, out),
                    step => step,
                }
            }
            Mending::High(high) if c == '\\' => self.wait(Mending::HighSlash(high)),
            Mending::HighSlash(high) if c == 'u' => self.wait(Mending::Hex(String::new(), Some(high))),
            Mending::High(_) => match self.feed_all(HALF, out) {
                Step::More => self.text(c, out),
                step => step,
            },
            Mending::HighSlash(_) => match self.feed_all(HALF, out) {
                Step::More => {
                    self.mending = Mending::Escape;
                    self.step(c, out)
                }
                step => step,
            },
            Mending::Quote(mut held) => match c {
                ' ' | '\t' | '\n' | '\r' => {
                    held.push(c);
                    self.wait(Mending::Quote(held))
                }
                _ if self.may_follow_text(c) => match self.feed_all(&format!("\"{held}"), out) {
                    Step::More => self.plain(c, out),
                    step => step,
                },
                _ => {
                    let quote = if self.quote == '"' { "\\\"" } else { "'" };
                    let mut step = self.feed_all(quote, out);
                    for c in held.chars().chain([c]) {
                        if step == Step::More {
                            step = self.text(c, out);
                        }
                    }
                    step
                }
            },
        }
    }

    fn wait(&mut self, mending: Mending) -> Step {
        self.mending = mending;
        Step::More
    }

    fn feed(&mut self, c: char, out: &mut String) -> Step {
        let step = self.json.step(c);
        if matches!(step, Step::More | Step::Last) {
            out.push(c);
        }
        step
    }

    fn feed_all(&mut self, text: &str, out: &mut String) -> Step {
        let mut step = Step::More;
        for c in text.chars() {
            if step == Step::More {
                step = self.feed(c, out);
            }
        }
        step
    }

    /// More of a string.
    fn go_on(&mut self, text: &[char], out: &mut String) -> Step {
        self.go_on_all(&text.iter().collect::<String>(), out)
    }

    fn go_on_all(&mut self, text: &str, out: &mut String) -> Step {
        self.mending = Mending::Text;
        self.feed_all(text, out)
    }

    fn plain(&mut self, c: char, out: &mut String) -> Step {
        use State::{FirstKey, FirstValue, Key, Value};
        match (self.json.state, c) {
            (Value | FirstValue | Key | FirstKey, '"' | '\'') => {
                self.quote = c;
                self.mending = Mending::Text;
                self.feed('"', out)
            }
            (Value | FirstValue, _) if "+-.0TFNI".contains(c) => self.wait(Mending::Word(c.to_string())),
            (Key | FirstKey, _) if c.is_alphabetic() || c == '_' => {
                self.mending = Mending::Name;
                self.feed_all(&format!("\"{c}"), out)
            }
            (_, ',') if self.is_value_over() => self.wait(Mending::Comma(",".into())),
            _ => self.feed(c, out),
        }
    }

    /// A number or a keyword, which is over.
    fn word(&mut self, word: &str, out: &mut String) -> Step {
        match (is_json(word), to_json(word)) {
            (true, _) => self.feed_all(word, out),
            (false, Some(json)) => self.feed_all(&json, out),
            (false, None) => {
                self.mending = Mending::Word(word.to_owned());
                Step::Malformed
            }
        }
    }

    /// What was read of a word that is none.
    fn unread(&self) -> &str {
        if let Mending::Word(word) = &self.mending { word } else { "" }
    }

    /// A character inside a string.
    fn text(&mut self, c: char, out: &mut String) -> Step {
        self.mending = Mending::Text;
        match c {
            // The next character of a lone string is unknown, and a key ends at its quote.
            _ if c == self.quote && (self.json.open.is_empty() || self.json.is_key) => {
                self.mending = Mending::Plain;
                self.feed('"', out)
            }
            _ if c == self.quote => self.wait(Mending::Quote(String::new())),
            '"' => self.feed_all("\\\"", out),
            '\\' => self.wait(Mending::Escape),
            '\0'..='\u{1f}' => {
                let escaped = quoted(c.encode_utf8(&mut [0; 4]));
                self.feed_all(&escaped[1..escaped.len() - 1], out)
            }
            _ => self.feed(c, out),
        }
    }

    fn may_follow_text(&self, c: char) -> bool {
        c == ',' || Some(c) == self.json.open.last().map(|&is_object| if is_object { '}' } else { ']' })
    }

    /// Whether a nested value is complete.
    fn is_value_over(&self) -> bool {
        use State::{Comma, Digits, ExponentDigits, Fraction, Zero};
        !self.json.open.is_empty() && matches!(self.json.state, Comma | Zero | Digits | Fraction | ExponentDigits)
    }

    /// Whether all open brackets may be closed here.
    pub(crate) fn may_close(&self) -> bool {
        match self.mending {
            Mending::Plain => self.is_value_over() || self.json.state == State::FirstKey,
            Mending::Comma(_) | Mending::Quote(_) => true,
            Mending::Word(_) => !self.json.open.is_empty(),
            _ => false,
        }
    }

    pub(crate) fn close(&mut self, out: &mut String) -> Step {
        let mut step = match std::mem::replace(&mut self.mending, Mending::Plain) {
            Mending::Quote(_) => self.feed('"', out),
            Mending::Word(word) => self.word(&word, out),
            _ => Step::More,
        };
        while let (Step::More, Some(&is_object)) = (step, self.json.open.last()) {
            step = self.feed(if is_object { '}' } else { ']' }, out);
        }
        step
    }

    /// Whether the input ended inside a nested string.
    pub(crate) fn is_in_text(&self) -> bool {
        !self.json.open.is_empty()
            && !matches!(self.mending, Mending::Plain | Mending::Comma(_) | Mending::Word(_) | Mending::Quote(_))
    }

    /// Whether the input is not within an escape.
    fn is_between_characters(&self) -> bool {
        self.mending == Mending::Text && self.json.is_between_characters()
    }
}

/// Whether a number or a keyword may have a character.
fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || "+-._".contains(c)
}

/// Whether a text is JSON without space around it. A number may be larger than any that is computed with.
pub(crate) fn is_json(text: &str) -> bool {
    let (mut json, mut chars) = (Json::value(), text.chars());
    loop {
        let Some(c) = chars.next() else { return json.step('\n') == Step::Behind };
        match json.step(c) {
            Step::More => {}
            step => return step == Step::Last && chars.as_str().is_empty(),
        }
    }
}

/// A text as a JSON string.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Replaces a lone surrogate, which is not a character and which `serde_json` refuses.
const HALF: &str = "\\ufffd";

/// A complete text as JSON, if it can be repaired.
pub(crate) fn mended(written: &str) -> Option<String> {
    let (mut mender, mut out) = (Mender::new(), String::new());
    let mut chars = written.chars();
    loop {
        match mender.step(chars.next()?, &mut out) {
            Step::More => {}
            Step::Last => return chars.as_str().trim().is_empty().then_some(out),
            Step::Behind | Step::Malformed => return None,
        }
    }
}

/// Reads a value of any type.
pub(crate) async fn value(stream: &CharStream) -> Read<String> {
    let (mut mender, mut text) = (Mender::new(), String::new());
    loop {
        match mender.step(stream.peek().await?, &mut text) {
            Step::More => stream.take(),
            Step::Last => {
                stream.take();
                return Ok(text);
            }
            Step::Behind => return Ok(text),
            Step::Malformed => return Err(Stop::Malformed),
        }
    }
}

/// Reads a quoted string of at most `most` bytes.
pub(crate) async fn text(stream: &CharStream, most: usize) -> Read<String> {
    if !matches!(stream.peek().await?, '"' | '\'') {
        return Err(Stop::Malformed);
    }
    let (mut mender, mut text) = (Mender::new(), String::new());
    loop {
        let c = stream.peek().await?;
        // Each character takes at most six as an escape.
        if text.len() > 6 * most + 2 {
            return Err(Stop::Malformed);
        }
        let step = mender.step(c, &mut text);
        if step == Step::Malformed {
            return Err(Stop::Malformed);
        }
        stream.take();
        if step == Step::Last {
            return serde_json::from_str(&text).map_err(|_| Stop::Malformed);
        }
    }
}

/// Reads an object incrementally: the arguments of a call. A mark of `ends` closes open brackets, and is not taken.
pub(crate) async fn object(stream: &CharStream, sink: &mut Sink<'_>, ends: &[&'static str]) -> Read<()> {
    if stream.peek().await? != '{' {
        return Err(Stop::Malformed);
    }
    let mut mender = Mender::new();
    loop {
        let c = stream.peek().await?;
        let mut out = String::new();
        if mender.may_close() && stream.mark_at(0, ends).await.is_some() {
            let step = mender.close(&mut out);
            stream.close_arguments(sink, &out, mender.unread());
            return if step == Step::Last { Ok(()) } else { Err(Stop::Malformed) };
        }
        let step = mender.step(c, &mut out);
        if matches!(step, Step::Malformed | Step::Behind) {
            stream.close_arguments(sink, &out, mender.unread());
            return Err(Stop::Malformed);
        }
        stream.emit_arguments(sink, &out);
        if step == Step::Last {
            return Ok(());
        }
    }
}

/// Reads a quoted string that contains an object or nothing, and emits the object. The call begins with its brace.
pub(crate) async fn object_in_text(stream: &CharStream, begin: impl FnOnce() -> usize) -> Read<usize> {
    let (mut outer, mut inner, mut begin, mut index) = (Mender::new(), Mender::new(), Some(begin), None);
    let (mut piece, mut is_whole) = (String::new(), false);
    outer.step(stream.peek().await?, &mut String::new());
    stream.take();
    loop {
        let c = stream.peek().await?;
        match outer.step(c, &mut piece) {
            Step::More => {}
            Step::Last if is_whole => {
                stream.take();
                return index.ok_or(Stop::Malformed);
            }
            Step::Last if index.is_none() => {
                stream.take();
                let index = begin.take().ok_or(Stop::Malformed)?();
                stream.emit_json(index, "{}");
                return Ok(index);
            }
            _ => return Err(Stop::Malformed),
        }
        if !outer.is_between_characters() {
            stream.take();
            continue;
        }
        let unescaped: String = serde_json::from_str(&format!("\"{piece}\"")).map_err(|_| Stop::Malformed)?;
        piece.clear();
        let (mut out, has_begun) = (String::new(), index.is_some());
        for c in unescaped.chars() {
            let is_space = matches!(c, ' ' | '\t' | '\n' | '\r');
            let is_inside = !is_whole && (has_begun || !out.is_empty() || c == '{');
            if is_inside {
                match inner.step(c, &mut out) {
                    Step::Malformed | Step::Behind => return Err(Stop::Malformed),
                    step => is_whole = step == Step::Last,
                }
            } else if !is_space {
                return Err(Stop::Malformed);
            } else if has_begun {
                out.push(c);
            }
        }
        stream.take();
        if !out.is_empty()
            && let Some(begin) = begin.take()
        {
            index = Some(begin());
        }
        if let Some(index) = index {
            stream.emit_json(index, &out);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// Whether the state machine accepts all of a text, which is not a number alone.
    fn takes(text: &str) -> bool {
        let mut json = Json::value();
        for (at, c) in text.char_indices() {
            match json.step(c) {
                Step::More => {}
                Step::Last => return text[at + c.len_utf8()..].trim_matches([' ', '\t', '\n', '\r']).is_empty(),
                Step::Behind | Step::Malformed => return false,
            }
        }
        false
    }

    #[test]
    fn it_takes_what_serde_json_does() {
        let good = [
            r#"{"a": [1, -0, 0.5, 1e9, -2.5E-3, 10], "b": {"c": null, "": [[], {}]}, "d": [true, false]}"#,
            r#" {"\"\\\/\b\f\n\r\t": "\u00e9\ud83e\udd8a \uFFFF é 🦊"} "#,
            "[\t1\n,\r2 ]",
        ];
        for text in good {
            assert!(takes(text) && serde_json::from_str::<Value>(text).is_ok(), "{text}");
            // Each character removed, doubled, or replaced.
            let chars: Vec<char> = text.chars().collect();
            for at in 0..chars.len() {
                for put in [
                    "", "{", "}", "[", "]", ",", ":", "\"", "\\", "0", "1", ".", "e", "-", "+", "u", "t", " ", "\n",
                    "d",
                ] {
                    let (before, after): (String, String) =
                        (chars[..at].iter().collect(), chars[at + 1..].iter().collect());
                    for changed in [format!("{before}{put}{after}"), format!("{before}{put}{}{after}", chars[at])] {
                        let valid = match serde_json::from_str::<Value>(&changed) {
                            Ok(_) => true,
                            Err(error) => error.to_string().contains("number out of range"),
                        };
                        assert_eq!(takes(&changed), valid, "{changed:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_broken_is_mended_and_what_is_not_stays() {
        let table = [
            (r#"{"a": [1, -0, 0.5e3, true , null],  "b": {"c": "\"\\\/\b\u00e9\ud83e\udd8a "}, "d" : []}"#, None),
            (r#"{"a": "\d C:\work \u12 \ud83ex \udd8a"}"#, Some(r#"{"a": "\\d C:\\work \\u12 \ufffdx \ufffd"}"#)),
            (
                r#"{"a": "\ud83e\ud83e\udd8a\ud83e\n\ud83e\uzz"}"#,
                Some(r#"{"a": "\ufffd\ud83e\udd8a\ufffd\n\ufffd\\uzz"}"#),
            ),
            ("{\"a\": \"\t\n\u{1}\"}", Some(r#"{"a": "\t\n\u0001"}"#)),
            ("{a: +1, b: [- 2.5]}", Some(r#"{"a": 1, "b": [-2.5]}"#)),
            ("{'a': 'b \"c\" it\\'s', d: True,}", Some(r#"{"a": "b \"c\" it's", "d": true}"#)),
            ("[1,, 2, ]", Some("[1, 2]")),
            (r#"{"a": "say "hi" to", "b": 1}"#, Some(r#"{"a": "say \"hi\" to", "b": 1}"#)),
            (r#"{"a": "l["x"]", "b": ["c"d"]}"#, Some(r#"{"a": "l[\"x\"]", "b": ["c\"d"]}"#)),
            ("[None, False]", Some("[null, false]")),
            (r#"{"a" 1}"#, Some("")),
            ("[NaN, -Infinity, +Infinity,Infinity]", Some(r#"["NaN", "-Infinity", "Infinity","Infinity"]"#)),
            ("{a: 0x1F, b: -0b11, c:0_1, d: .5, e: 007}", Some(r#"{"a": 31, "b": -3, "c":1, "d": 0.5, "e": 7}"#)),
            ("{a: 1E-9, b: 0}", Some(r#"{"a": 1E-9, "b": 0}"#)),
            ("[nan]", Some("")),
            ("[0x]", Some("")),
            ("[1-2]", Some("")),
            ("{1: 2}", Some("")),
        ];
        for (written, wanted) in table {
            let wanted = wanted.unwrap_or(written);
            assert_eq!(mended(written).unwrap_or_default(), wanted, "{written}");
            assert!(wanted.is_empty() || serde_json::from_str::<Value>(wanted).is_ok(), "{wanted}");
        }
    }

    #[test]
    fn what_it_has_taken_can_go_on() {
        let bad = [
            "{1",
            "{\"a\"}",
            "{,",
            "[,",
            "[1,]",
            "{\"a\":1,}",
            "[01",
            "[-]",
            "[1.]",
            "[1e]",
            "tru ",
            "[\"\u{1}",
            "[\"\\x",
            "}",
        ];
        for text in bad {
            let (mut json, mut taken) = (Json::value(), 0);
            let stopped = text.chars().any(|c| {
                let step = json.step(c);
                taken += usize::from(step != Step::Malformed);
                step == Step::Malformed
            });
            assert!(stopped, "{text:?}");
            assert_eq!(
                taken,
                text.chars().count() - 1,
                "the last character of {text:?} is the first that does not fit"
            );
        }
        let deep = "[".repeat(MAX_DEPTH);
        let mut json = Json::value();
        assert!(deep.chars().all(|c| json.step(c) == Step::More));
        assert_eq!(json.step('['), Step::Malformed);
    }
}
