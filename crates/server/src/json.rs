//! Strict JSON: bytes to a value, or the place where they stop being one.
//!
//! Stricter than `serde_json` in one point that matters at an edge: a key that occurs twice is refused, because two
//! parsers that disagree about which one counts are how a check is walked around. `serde_json` itself refuses what
//! follows the value, a byte order mark, more than 128 levels of nesting (so that no input can overflow the stack),
//! numbers that no `f64` holds, invalid UTF-8 and lone surrogates.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::error::ApiError;

/// Parses a request body.
///
/// Errors name the place in lines and columns, and the field when parsing had got that far. Nothing of the input is
/// repeated but the key at fault, shortened. A body of more than `most_values` values is refused when that many are
/// read.
pub(crate) fn parse(bytes: &[u8], most_values: usize) -> Result<Value, ApiError> {
    let state = RefCell::new(State { left: most_values, ..State::default() });
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let parsed = Strict(&state).deserialize(&mut deserializer);
    match parsed.and_then(|value| deserializer.end().map(|()| value)) {
        Ok(value) => Ok(value),
        Err(error) => Err(refusal(&error, &state.into_inner(), most_values)),
    }
}

fn refusal(error: &serde_json::Error, state: &State, most_values: usize) -> ApiError {
    let place = format!("line {}, column {}", error.line(), error.column());
    let param = match state.path.first() {
        // The list that is too long, not the item that was one too many.
        Some(Place::Key(key)) if state.too_many => Some(shortened(key)),
        Some(_) => Some(state.path_text()),
        None => None,
    };
    let message = match &state.duplicate {
        Some(key) => format!("The request body names the key '{key}' twice ({place})."),
        None if state.too_many => format!("The request body has more than {most_values} JSON values."),
        None if error.is_eof() => format!("The request body ends before its JSON value does ({place})."),
        None => format!("The request body is not valid JSON ({place})."),
    };
    let refused = ApiError::bad_request(message);
    match param {
        Some(param) => refused.with_param(param),
        None => refused,
    }
}

/// Where the parser is, so that an error can name the field.
#[derive(Default)]
struct State {
    path: Vec<Place>,
    duplicate: Option<String>,
    /// Values that may still come.
    left: usize,
    too_many: bool,
}

enum Place {
    Key(String),
    Index(usize),
}

impl State {
    fn path_text(&self) -> String {
        let mut text = String::new();
        for place in &self.path {
            match place {
                Place::Key(key) if text.is_empty() => text.push_str(&shortened(key)),
                Place::Key(key) => text.push_str(&format!(".{}", shortened(key))),
                Place::Index(index) => text.push_str(&format!("[{index}]")),
            }
        }
        text
    }
}

/// A client's own key, fit to be shown back to it: at most 64 characters, none of them a control character.
pub(crate) fn shortened(key: &str) -> String {
    key.chars().take(64).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[derive(Clone, Copy)]
struct Strict<'a>(&'a RefCell<State>);

impl Strict<'_> {
    fn enter(&self, place: Place) {
        self.0.borrow_mut().path.push(place);
    }

    /// Only called when the value was read: an error leaves the path where it happened.
    fn leave(&self) {
        self.0.borrow_mut().path.pop();
    }
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        {
            let mut state = self.0.borrow_mut();
            match state.left.checked_sub(1) {
                Some(left) => state.left = left,
                None => {
                    state.too_many = true;
                    return Err(D::Error::custom("too many values"));
                }
            }
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("not a finite number"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        self.enter(Place::Index(0));
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
            if let Some(Place::Index(index)) = self.0.borrow_mut().path.last_mut() {
                *index = list.len();
            }
        }
        self.leave();
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if map.contains_key(&key) {
                self.0.borrow_mut().duplicate = Some(shortened(&key));
                self.enter(Place::Key(key));
                return Err(A::Error::custom("duplicate key"));
            }
            self.enter(Place::Key(key.clone()));
            let value = entries.next_value_seed(self)?;
            self.leave();
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(body: &[u8]) -> (String, Option<String>) {
        let error = parse(body, 1000).expect_err(&String::from_utf8_lossy(body));
        (error.message().to_owned(), error.param().map(str::to_owned))
    }

    #[test]
    fn what_is_json_parses_as_serde_json_does() {
        for text in [
            "null",
            " {\"a\": [1, -2, 3.5, 1e3, true, null, \"\\u00e9\\n\"], \"b\": {\"a\": {}}} ",
            "18446744073709551615",
            "\"\\ud83e\\udd8a\"",
        ] {
            assert_eq!(parse(text.as_bytes(), 1000).unwrap(), serde_json::from_str::<Value>(text).unwrap(), "{text}");
        }
    }

    #[test]
    fn an_error_names_the_field_it_happened_in() {
        for (body, param) in [
            (r#"{"a": 1, "temperature": NaN}"#, Some("temperature")),
            (r#"{"temperature": 1e309}"#, Some("temperature")),
            (r#"{"messages": [{"role": "user", "content": "\ud800"}]}"#, Some("messages[0].content")),
            (r#"{"a": 1, "b": {"c": 1, "c": 2}}"#, Some("b.c")),
            (r#"{"stop": ["a", tru]}"#, Some("stop[1]")),
            (r#"{"n": 1} {"n": 2}"#, None),
            ("\u{feff}{}", None),
            (r#"{"n": 1,}"#, None),
            ("", None),
        ] {
            assert_eq!(refused(body.as_bytes()).1.as_deref(), param, "{body}");
        }
        assert_eq!(refused(b"{\"p\": \"\xff\xfe\"}").1.as_deref(), Some("p"));
        assert!(refused(br#"{"n": 1, "n": 2}"#).0.contains("'n' twice"));
    }

    #[test]
    fn values_are_counted() {
        let body = format!("{{\"tokens\": [{}]}}", vec!["0"; 998].join(","));
        assert!(parse(body.as_bytes(), 1000).is_ok());
        let more = body.replace("[0,", "[0,0,");
        let (message, param) = refused(more.as_bytes());
        assert_eq!(message, "The request body has more than 1000 JSON values.");
        assert_eq!(param.as_deref(), Some("tokens"));
    }

    #[test]
    fn nesting_ends_at_the_limit_and_not_at_the_end_of_the_stack() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(parse(nested(100).as_bytes(), 1000).is_ok());
        for depth in [128, 100_000, 4_000_000] {
            // A quarter of a megabyte of stack is far less than a server thread has.
            let body = nested(depth);
            let thread = std::thread::Builder::new().stack_size(256 << 10);
            let outcome = thread.spawn(move || parse(body.as_bytes(), 1000).is_err()).unwrap().join();
            assert!(outcome.unwrap(), "depth {depth} was accepted");
        }
    }
}
