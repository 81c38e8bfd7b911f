//! Strict JSON: bytes to a value, or the place where they stop being one.
//!
//! Stricter than `serde_json` in one point that matters at an edge: a key that occurs twice is refused, because two
//! parsers that disagree about which one counts are how a check is walked around. `serde_json` itself refuses what
//! follows the value, a byte order mark, numbers that no `f64` holds and invalid UTF-8. Values nest [`MOST_LEVELS`] deep
//! at most, so that no input can overflow the stack.
//!
//! More lenient in another: half of a character (`\ud83d` without the other half, which JavaScript leaves when it cuts a
//! text) is U+FFFD. The clients of conversations send it again with each turn, and cannot go on where it is refused.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::error::ApiError;

/// Levels of lists and objects within each other: as many as `serde_json` reads.
const MOST_LEVELS: usize = 127;
/// Bytes of a place in an error.
const MOST_PLACE_BYTES: usize = 128;

/// Parses a request body.
///
/// Errors name the place in lines and columns, and the field when parsing had got that far. Nothing of the input is
/// repeated but the key at fault, shortened. A body of more than `most_values` values is refused when that many are
/// read.
pub fn parse(bytes: &[u8], most_values: usize) -> Result<Value, ApiError> {
    let state = RefCell::new(State { left: most_values, ..State::default() });
    let bytes = whole_characters(bytes);
    let mut deserializer = serde_json::Deserializer::from_slice(&bytes);
    let parsed = Strict(&state).deserialize(&mut deserializer);
    match parsed.and_then(|value| deserializer.end().map(|()| value)) {
        Ok(value) => Ok(value),
        Err(error) => Err(refusal(&error, &state.into_inner(), most_values)),
    }
}

/// JSON in UTF-8, as it is: no other type, no other character set, no compression. A body without a type is JSON, and so
/// is one of type `application/octet-stream`, which says no more: LiteLLM sends either to Ollama. No form of a page can
/// send these, and a script's request names its origin. What `curl -d` calls a form is JSON too, unless a browser sent it:
/// each names itself Mozilla, which no page can change, and newer ones say where a form is from.
pub fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    if headers.get(header::CONTENT_ENCODING).is_some_and(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity"))
    {
        return Err(ApiError::unsupported_media_type("Compressed request bodies are not supported."));
    }
    let wrong =
        ApiError::unsupported_media_type("The request body must be JSON: send 'Content-Type: application/json'.");
    let mut types = headers.get_all(header::CONTENT_TYPE).iter();
    let Some(value) = types.next() else { return Ok(()) };
    if types.next().is_some() {
        return Err(wrong);
    }
    let Ok(value) = value.to_str() else { return Err(wrong) };
    let mut parts = value.split(';').map(str::trim);
    let agent = headers.get(header::USER_AGENT).map_or(&[][..], |agent| agent.as_bytes());
    let is_browsers = agent.starts_with(b"Mozilla/") || headers.contains_key(header::ORIGIN);
    let types = ["application/json", "application/octet-stream", "application/x-www-form-urlencoded"];
    let types = if is_browsers { &types[..2] } else { &types };
    let is_json = parts.next().is_some_and(|kind| types.iter().any(|json| kind.eq_ignore_ascii_case(json)));
    let is_utf8 = parts.all(|part| match part.split_once('=') {
        Some((name, value)) if name.trim().eq_ignore_ascii_case("charset") => {
            let value = value.trim().trim_matches('"');
            value.eq_ignore_ascii_case("utf-8") || value.eq_ignore_ascii_case("utf8")
        }
        _ => true,
    });
    if is_json && is_utf8 { Ok(()) } else { Err(wrong) }
}

/// A response of JSON.
pub fn json_body(json: impl Into<Body>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], json.into()).into_response()
}

/// The same, true of this moment alone: no cache may keep it.
pub fn fresh_json_body(json: impl Into<Body>) -> Response {
    ([(header::CACHE_CONTROL, "no-store")], json_body(json)).into_response()
}

/// What a text in JSON stands for, such as the arguments of a call; `None`: it is no JSON. A number beyond all that a
/// double holds is the largest one with its sign: where arguments are text they are as the model wrote them.
pub fn of_text(text: &str) -> Option<Value> {
    let json = whole_characters(text.as_bytes());
    serde_json::from_slice(&json).ok().or_else(|| serde_json::from_str(&finite(std::str::from_utf8(&json).ok()?)).ok())
}

/// JSON in which no number outside of texts is beyond a double.
fn finite(json: &str) -> String {
    let (mut out, mut rest) = (String::new(), json);
    while let Some(first) = rest.chars().next() {
        let end = match first {
            '"' => {
                let mut is_escaped = false;
                let closes = |byte: &u8| {
                    let is_end = *byte == b'"' && !is_escaped;
                    is_escaped = *byte == b'\\' && !is_escaped;
                    is_end
                };
                rest.as_bytes()[1..].iter().position(closes).map_or(rest.len(), |at| at + 2)
            }
            '-' | '0'..='9' => rest.find(|c: char| !c.is_ascii_digit() && !"+-.eE".contains(c)).unwrap_or(rest.len()),
            _ => first.len_utf8(),
        };
        let (piece, behind) = rest.split_at(end);
        match piece.parse::<f64>() {
            Ok(number) if number.is_infinite() => out.push_str(&format!("{:e}", number.clamp(f64::MIN, f64::MAX))),
            _ => out.push_str(piece),
        }
        rest = behind;
    }
    out
}

/// JSON in which each escape of half a character is one of U+FFFD, which is as long.
pub fn whole_characters(json: &[u8]) -> Cow<'_, [u8]> {
    let mut json = Cow::Borrowed(json);
    let mut at = 0;
    // Backslashes stand in texts alone, or it is no JSON.
    while let Some(next) = json[at..].iter().position(|&byte| byte == b'\\') {
        at += next;
        let half = unit(&json, at);
        at += match half {
            Some(0xd800..=0xdbff) if matches!(unit(&json, at + 6), Some(0xdc00..=0xdfff)) => 12,
            Some(0xd800..=0xdfff) => {
                json.to_mut()[at + 2..at + 6].copy_from_slice(b"fffd");
                6
            }
            Some(_) => 6,
            // The character behind it is no escape of its own.
            None => 2,
        };
        at = at.min(json.len());
    }
    json
}

/// The UTF-16 unit of an escape `\uXXXX` that begins there.
fn unit(json: &[u8], at: usize) -> Option<u16> {
    let digits = json.get(at..at + 6)?.strip_prefix(b"\\u")?;
    // A sign is no digit.
    let is_hex = digits.iter().all(u8::is_ascii_hexdigit);
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok().filter(|_| is_hex)
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
        // What serde_json calls it; it has no other name for that.
        None if error.to_string().starts_with("recursion limit exceeded") => {
            format!("The request body is nested too deep: at most {MOST_LEVELS} levels ({place}).")
        }
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
            if text.len() > MOST_PLACE_BYTES {
                text.truncate(text.floor_char_boundary(MOST_PLACE_BYTES));
                return text + "...";
            }
        }
        text
    }
}

/// A client's own key, fit to be shown back to it: at most 64 characters, none of them a control character.
pub fn shortened(key: &str) -> String {
    key.chars().take(64).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[derive(Clone, Copy)]
struct Strict<'a>(&'a RefCell<State>);

impl Strict<'_> {
    /// False: it is too deep.
    fn enter(&self, place: Place) -> bool {
        let path = &mut self.0.borrow_mut().path;
        path.push(place);
        path.len() <= MOST_LEVELS
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
        if !self.enter(Place::Index(0)) {
            return Err(A::Error::custom("too deep"));
        }
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
            if !self.enter(Place::Key(key.clone())) {
                return Err(A::Error::custom("too deep"));
            }
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
    fn half_of_a_character_is_a_replacement_character() {
        for (text, wanted) in [
            (r#""a\ud83d b""#, "a\u{fffd} b"),
            (r#""\udc00""#, "\u{fffd}"),
            (r#""\uD83D""#, "\u{fffd}"),
            (r#""\ud83d\ud83d\ude00""#, "\u{fffd}\u{1f600}"),
            (r#""\ude00\ud83d""#, "\u{fffd}\u{fffd}"),
            (r#""\ud83d\ude00\ude00""#, "\u{1f600}\u{fffd}"),
            (r#""\ud83d\u0041""#, "\u{fffd}A"),
            (r#""\ud83d\n""#, "\u{fffd}\n"),
            (r#""\ud83d\\""#, "\u{fffd}\\"),
            // A backslash that is meant, and no escape behind it.
            (r#""\\ud83d""#, "\\ud83d"),
            (r#""\\\ud83d""#, "\\\u{fffd}"),
            (r#""\ud83d\\ude00""#, "\u{fffd}\\ude00"),
        ] {
            assert_eq!(parse(text.as_bytes(), 10).unwrap(), wanted, "{text}");
            assert_eq!(of_text(text).unwrap(), wanted, "{text}");
        }
        let key = parse(br#"{"\udfff": 1}"#, 10).unwrap();
        assert_eq!(key["\u{fffd}"], 1);
        for broken in [r#""\ud83""#, r#""\ud83"#, r#""\"#, r#""\u+d83""#, r#"\ud83d"#, r#""\x""#] {
            assert!(parse(broken.as_bytes(), 10).is_err(), "{broken}");
        }
    }

    #[test]
    fn a_number_that_no_double_holds_is_the_largest_one() {
        for (text, wanted) in [
            (r#"{"a": 1e999, "b": [-1E+400, 2.50], "c": "1e999 \\"}"#, json_of(f64::MAX, f64::MIN)),
            (r#"{"a": 17976931348623157e999999999, "b": [-1e309, 2.5], "c": "1e999 \\"}"#, json_of(f64::MAX, f64::MIN)),
        ] {
            assert_eq!(of_text(text), Some(wanted), "{text}");
        }
        let long = format!("{{\"a\": {}}}", "9".repeat(400));
        assert_eq!(of_text(&long), Some(serde_json::json!({"a": f64::MAX})));
        for broken in ["{\"a\": 1e999", "{\"a\": 1e999e1}", "{\"a: 1e999}", "1e", "\"\\"] {
            assert_eq!(of_text(broken), None, "{broken}");
        }
    }

    fn json_of(most: f64, least: f64) -> Value {
        serde_json::json!({"a": most, "b": [least, 2.5], "c": "1e999 \\"})
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
            // A megabyte of stack is half of what a server thread has.
            let body = nested(depth);
            let thread = std::thread::Builder::new().stack_size(1 << 20);
            let outcome = thread.spawn(move || parse(body.as_bytes(), 1000).is_err()).unwrap().join();
            assert!(outcome.unwrap(), "depth {depth} was accepted");
        }
        assert!(parse(nested(MOST_LEVELS).as_bytes(), 1000).is_ok());
        for body in
            [nested(MOST_LEVELS + 1), "{\"items\":".repeat(200) + "1" + &"}".repeat(200), "[{\"ä\":".repeat(200)]
        {
            let (message, place) = refused(body.as_bytes());
            assert!(message.starts_with("The request body is nested too deep: at most 127 levels"), "{message}");
            assert!(place.unwrap().len() <= MOST_PLACE_BYTES + 3);
        }
    }

    #[test]
    fn only_json_in_utf8_is_read() {
        let check = |types: &[&str]| {
            let headers = types.iter().map(|kind| (header::CONTENT_TYPE, kind.parse().unwrap())).collect();
            check_content_type(&headers).is_ok()
        };
        let octets = "application/octet-stream";
        for good in
            [octets, "application/json", "Application/JSON; charset=UTF-8", "application/json;charset=\"utf-8\"; x=y"]
        {
            assert!(check(&[good]), "{good}");
        }
        for bad in ["", "text/plain", "application/jsonp", "application/json; charset=utf-16", "*/*"] {
            assert!(!check(&[bad]), "{bad}");
        }
        assert!(check(&[]));
        assert!(!check(&["application/json", "application/json"]));
    }
}
