//! JSON, a character at a time: what has been taken is a prefix of a valid text at every moment.

use crate::tape::{Read, Sink, Stop, Tape};

/// Deepest nesting that is read: `serde_json` refuses 128, and so would who reads the arguments.
const MAX_DEPTH: usize = 100;

/// What a character was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A part of the value.
    More,
    /// Its last character.
    Last,
    /// Not of the value any more, which is complete: a number says no end.
    Behind,
    /// Not JSON.
    Malformed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Value,
    /// A value, or the end of the list that has just begun.
    FirstValue,
    Key,
    /// A key, or the end of the object that has just begun.
    FirstKey,
    Colon,
    /// A comma, or the end of what is open.
    Comma,
    Text,
    Escape,
    /// Digits of `\u` that are missing, and those that came.
    Hex(u8, u16),
    /// The second half of a surrogate pair: a backslash, then its `u`.
    LowSlash,
    LowU,
    /// The rest of a word.
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

/// A value as it is read.
#[derive(Clone, Debug)]
pub(crate) struct Json {
    state: State,
    /// Whether each thing that is open is an object.
    open: Vec<bool>,
    /// Whether the text that is read is a key.
    is_key: bool,
    /// Whether the digits are those of a second half.
    is_low: bool,
}

impl Json {
    pub(crate) fn value() -> Json {
        Json { state: State::Value, open: Vec::new(), is_key: false, is_low: false }
    }

    /// Whether what came is not the first part of an escape.
    pub(crate) fn is_between_characters(&self) -> bool {
        self.state == State::Text
    }

    /// The next character. After anything but [`Step::More`] it is not asked again.
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
                // A half of a pair alone is no character, and `serde_json` refuses it.
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

    /// A value is complete; `step` if it is the whole.
    fn complete(&mut self, step: Step) -> Step {
        self.state = State::Comma;
        if self.open.is_empty() { step } else { Step::More }
    }
}

/// Reads a value of any kind.
pub(crate) async fn value(tape: &Tape) -> Read<String> {
    let (mut json, mut text) = (Json::value(), String::new());
    loop {
        let c = tape.peek().await?;
        let step = json.step(c);
        match step {
            Step::More | Step::Last => {
                text.push(c);
                tape.take();
            }
            Step::Behind => return Ok(text),
            Step::Malformed => return Err(Stop::Malformed),
        }
        if step == Step::Last {
            return Ok(text);
        }
    }
}

/// Reads a text in quotes, of at most so many bytes.
pub(crate) async fn text(tape: &Tape, most: usize) -> Read<String> {
    if tape.peek().await? != '"' {
        return Err(Stop::Malformed);
    }
    let (mut json, mut text) = (Json::value(), String::new());
    loop {
        let c = tape.peek().await?;
        // Each character takes at most six as an escape.
        if text.len() > 6 * most + 2 {
            return Err(Stop::Malformed);
        }
        let step = json.step(c);
        if step == Step::Malformed {
            return Err(Stop::Malformed);
        }
        text.push(c);
        tape.take();
        if step == Step::Last {
            return serde_json::from_str(&text).map_err(|_| Stop::Malformed);
        }
    }
}

/// Reads an object piece by piece: the arguments of a call.
pub(crate) async fn object(tape: &Tape, sink: &mut Sink<'_>) -> Read<()> {
    if tape.peek().await? != '{' {
        return Err(Stop::Malformed);
    }
    let mut json = Json::value();
    loop {
        let c = tape.peek().await?;
        match json.step(c) {
            Step::Malformed | Step::Behind => return Err(Stop::Malformed),
            step => {
                tape.argue(sink, c);
                if step == Step::Last {
                    return Ok(());
                }
            }
        }
    }
}

/// Reads a text in quotes that holds an object, and gives out the object. The call begins with its brace.
pub(crate) async fn object_in_text(tape: &Tape, begin: impl FnOnce() -> usize) -> Read<usize> {
    let (mut outer, mut inner, mut begin, mut index) = (Json::value(), Json::value(), Some(begin), None);
    let (mut piece, mut is_whole) = (String::new(), false);
    outer.step('"');
    tape.expect('"').await?;
    loop {
        let c = tape.peek().await?;
        match outer.step(c) {
            Step::More => {}
            Step::Last if is_whole => {
                tape.take();
                return index.ok_or(Stop::Malformed);
            }
            _ => return Err(Stop::Malformed),
        }
        piece.push(c);
        if !outer.is_between_characters() {
            tape.take();
            continue;
        }
        let said: String = serde_json::from_str(&format!("\"{piece}\"")).map_err(|_| Stop::Malformed)?;
        piece.clear();
        for c in said.chars() {
            let is_space = c.is_ascii_whitespace();
            let fits = if is_whole { is_space } else { index.is_some() || is_space || c == '{' };
            if !fits {
                return Err(Stop::Malformed);
            }
            if !is_whole {
                match inner.step(c) {
                    Step::Malformed | Step::Behind => return Err(Stop::Malformed),
                    step => is_whole = step == Step::Last,
                }
            }
        }
        tape.take();
        if said == "{"
            && let Some(begin) = begin.take()
        {
            index = Some(begin());
        }
        if let Some(index) = index {
            tape.put(index, &said);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// Whether the machine takes the whole of a text that is no number alone.
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
            // Each character left out, doubled, or another one.
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
