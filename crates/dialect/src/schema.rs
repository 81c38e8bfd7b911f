//! Parameter types from a tool's schema, for families that write values without quotes.

use std::cell::Cell;

use serde_json::Value;

use crate::json::{is_json, mended, quoted};
use crate::literal::to_json;

/// Maximum length of a parameter's name, where it is not in quotes.
pub(crate) const MAX_KEY_BYTES: usize = 256;
/// Maximum references followed: a recursive schema has no end.
const MAX_REFERENCES: usize = 8;
/// Maximum schemas read for one parameter: those that refer to each other in lists would take exponential time.
const MAX_SCHEMAS: usize = 1 << 12;

/// JSON types that a parameter may have. All, if unspecified.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Kinds<'a> {
    bits: u8,
    /// The values that it may have, if they are enumerated.
    values: Option<&'a [Value]>,
}

const TEXT: u8 = 1;
const NAMES: [(&str, u8); 7] =
    [("string", TEXT), ("integer", 2), ("number", 2 | 4), ("boolean", 8), ("null", 16), ("array", 32), ("object", 64)];
const ALL: u8 = 127;

impl<'a> Kinds<'a> {
    /// The types of parameter `key` in `parameters`, the schema of a tool. What nothing fits is unspecified.
    pub(crate) fn of(parameters: &'a Value, key: &str) -> Kinds<'a> {
        let reader = Reader { document: parameters, left: Cell::new(MAX_SCHEMAS) };
        let own = follow(parameters, parameters).get("properties").and_then(|all| all.get(key));
        let values = own.and_then(|schema| choices(follow(parameters, schema)));
        match reader.kinds_of_key(parameters, key, MAX_REFERENCES) {
            0 => Kinds { bits: ALL, values: None },
            bits => Kinds { bits, values },
        }
    }

    /// Whether it is always a string.
    pub(crate) fn is_text(self) -> bool {
        self.bits == TEXT
    }

    /// Whether it may be a string, among others.
    pub(crate) fn may_be_text(self) -> bool {
        self.bits & TEXT != 0
    }

    /// Whether the schema does not restrict it.
    pub(crate) fn is_any(self) -> bool {
        self.bits == ALL
    }

    /// Whether a string is a string: not if it is enumerated as another type alone.
    pub(crate) fn has_text(self, text: &str) -> bool {
        self.may_be_text() && self.values.is_none_or(|all| all.iter().any(|value| value == text))
    }

    /// Whether the value with this JSON text has one of the types.
    fn has(self, json: &str) -> bool {
        self.bits & kind(json) != 0
    }

    /// Whether the value with this JSON text is one of the enumerated ones, if any are.
    fn lists(self, json: &str) -> bool {
        let is_listed = |all: &[Value]| serde_json::from_str(json).is_ok_and(|value| all.contains(&value));
        self.values.is_none_or(is_listed)
    }

    /// An unquoted value as JSON. Where a string is allowed it is one, unless it is exactly JSON of another allowed
    /// type, and an enumerated value if they are; elsewhere null, Python's notation and mistakes are read too. `None`:
    /// an empty value, which the types do not allow.
    pub(crate) fn json(self, written: &str) -> Option<String> {
        let trimmed = written.trim();
        // A number keeps its text, whatever its length.
        let read = is_json(trimmed).then(|| trimmed.to_owned());
        if self.may_be_text() {
            let is_free = self.bits == ALL;
            let other = read.filter(|json| self.has(json) && (kind(json) != TEXT || is_free) && self.lists(json));
            return Some(other.unwrap_or_else(|| quoted(written)));
        }
        if trimmed.is_empty() {
            return None;
        }
        let read = read.or_else(|| to_json(trimmed)).or_else(|| mended(trimmed));
        Some(match read {
            Some(json) if self.has(&json) || json == "null" => json,
            Some(json)
                if self.bits & 2 != 0
                    && kind(&json) == 4
                    && let Some(whole) = integer(&json) =>
            {
                whole
            }
            // In quotes.
            Some(json)
                if let Ok(inner) = serde_json::from_str::<String>(&json)
                    && inner != written =>
            {
                return self.json(&inner);
            }
            None if self.bits & 8 != 0 && ["true", "false"].contains(&trimmed.to_lowercase().as_str()) => {
                trimmed.to_lowercase()
            }
            _ => quoted(written),
        })
    }
}

/// The type of the value with this JSON text, which distinguishes integers of any size.
fn kind(json: &str) -> u8 {
    match json.as_bytes().first() {
        Some(b'"') => TEXT,
        Some(b't' | b'f') => 8,
        Some(b'n') => 16,
        Some(b'[') => 32,
        Some(b'{') => 64,
        _ if json.contains(['.', 'e', 'E']) => 4,
        _ => 2,
    }
}

/// The values that a schema enumerates.
pub(crate) fn choices(schema: &Value) -> Option<&[Value]> {
    match (schema.get("enum"), schema.get("const")) {
        (Some(Value::Array(all)), _) if !all.is_empty() => Some(all),
        (_, Some(one)) => Some(std::slice::from_ref(one)),
        _ => None,
    }
}

/// `5.0` as an integer, if nothing is lost.
fn integer(written: &str) -> Option<String> {
    if let Some((whole, fraction)) = written.split_once('.')
        && fraction.chars().all(|c| c == '0')
    {
        return Some(whole.to_owned());
    }
    let value: f64 = written.parse().ok()?;
    if value.is_infinite() {
        return Some(written.to_owned());
    }
    (value.fract() == 0.0 && value.abs() < 9_007_199_254_740_992.0).then(|| format!("{value:.0}"))
}

/// The schema that `schema` refers to, if it is in the same document.
pub(crate) fn follow<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    let mut schema = schema;
    for _ in 0..MAX_REFERENCES {
        let target = schema.get("$ref").and_then(Value::as_str).and_then(|place| place.strip_prefix('#'));
        match target.and_then(|place| document.pointer(place)) {
            Some(target) => schema = target,
            None => break,
        }
    }
    schema
}

/// Names of a tool's parameters.
pub(crate) fn names(parameters: &Value) -> impl Iterator<Item = &String> {
    let properties = follow(parameters, parameters).get("properties").and_then(Value::as_object);
    properties.into_iter().flat_map(|all| all.keys())
}

/// Reads the types in a schema of this document.
struct Reader<'a> {
    document: &'a Value,
    /// Schemas that may still be read.
    left: Cell<usize>,
}

impl Reader<'_> {
    /// The types that fit all that `schema` says of parameter `key`.
    fn kinds_of_key(&self, schema: &Value, key: &str, depth: usize) -> u8 {
        let Some(schema) = self.enter(schema, depth) else { return ALL };
        let property = schema.get("properties").and_then(|all| all.get(key));
        let patterns = schema.get("patternProperties").and_then(Value::as_object);
        // Which pattern fits is not asked.
        let others = patterns.into_iter().flat_map(|all| all.values()).chain(schema.get("additionalProperties"));
        let own = match property {
            Some(property) => self.kinds(property, depth),
            None => others.map(|other| self.kinds(other, depth)).reduce(|all, one| all | one).unwrap_or(ALL),
        };
        own & combined(schema, |part| self.kinds_of_key(part, key, depth - 1))
    }

    /// The types that fit all that `schema` says.
    fn kinds(&self, schema: &Value, depth: usize) -> u8 {
        let Some(schema) = self.enter(schema, depth) else { return ALL };
        if schema == &Value::Bool(false) {
            return 0;
        }
        let named = |name: &Value| {
            let name = name.as_str().unwrap_or_default();
            // Gemini's are in capitals.
            NAMES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map_or(ALL, |(_, kinds)| *kinds)
        };
        let of_value = |value: &Value| kind(&value.to_string());
        let types = match schema.get("type") {
            Some(Value::Array(names)) => names.iter().map(named).fold(0, |all, one| all | one),
            name => name.map_or(ALL, named),
        };
        let values = match (schema.get("enum"), schema.get("const")) {
            (Some(Value::Array(values)), _) => values.iter().map(of_value).fold(0, |all, one| all | one),
            (_, value) => value.map_or(ALL, of_value),
        };
        types & values & combined(schema, |part| self.kinds(part, depth - 1))
    }

    /// The schema that is meant, `None` beyond the limits.
    fn enter<'a>(&'a self, schema: &'a Value, depth: usize) -> Option<&'a Value> {
        let left = self.left.get().checked_sub(1).filter(|_| depth > 0)?;
        self.left.set(left);
        Some(follow(self.document, schema))
    }
}

/// The types that fit all of `allOf` and one of each list of alternatives.
fn combined(schema: &Value, kinds: impl Fn(&Value) -> u8) -> u8 {
    let parts = |key: &str| Some(schema.get(key)?.as_array()?.iter().map(&kinds));
    let all = parts("allOf").into_iter().flatten().fold(ALL, |all, one| all & one);
    let either = ["anyOf", "oneOf"].into_iter().filter_map(parts).map(|parts| parts.fold(0, |all, one| all | one));
    either.fold(all, |all, one| all & one)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_is_what_its_schema_says() {
        let table: &[(Value, &str, &str)] = &[
            (json!({"type": "string"}), "12", "\"12\""),
            (json!({"type": ["STRING", "Null"]}), "12", "\"12\""),
            (json!({"type": "integer"}), " 12\n", "12"),
            (json!({"type": "integer"}), "12345678901234567890123", "12345678901234567890123"),
            (json!({"type": "integer"}), "1.5", "\"1.5\""),
            (json!({"type": "integer"}), "5.0", "5"),
            (json!({"type": "integer"}), "-5.", "-5"),
            (json!({"type": "integer"}), "1e3", "1000"),
            (json!({"type": "integer"}), "\"5\"", "5"),
            (json!({"type": "integer"}), "12345678901234567890.00", "12345678901234567890"),
            (json!({"type": "integer"}), " \n", ""),
            (json!({"type": ["integer", "null"]}), "", ""),
            (json!({"type": ["integer", "string"]}), "", "\"\""),
            (json!({"type": "number"}), "5.0", "5.0"),
            (json!({"type": "boolean"}), "\"true\"", "true"),
            (json!({"type": "boolean"}), "FALSE", "false"),
            (json!({"type": "object"}), "{\"a\": \"\\d\nb\", c: 1,}", "{\"a\": \"\\\\d\\nb\", \"c\": 1}"),
            (json!({"type": "number"}), "12", "12"),
            (json!({"type": "number"}), "1.50", "1.50"),
            (json!({"type": "boolean"}), "True", "true"),
            (json!({"type": "boolean"}), "yes", "\"yes\""),
            (json!({"type": ["string", "null"]}), "null", "null"),
            (json!({"type": ["string", "null"]}), "12", "\"12\""),
            (json!({"type": "array"}), "['a', 1]", "[\"a\", 1]"),
            (json!({"type": "object"}), "{\"a\": 1}", "{\"a\": 1}"),
            (json!({"anyOf": [{"type": "integer"}, {"type": "string"}]}), "12", "12"),
            (json!({"oneOf": [{"$ref": "#/$defs/word"}, {"type": "null"}]}), "12", "\"12\""),
            (json!({"enum": ["1", "2"]}), "1", "\"1\""),
            // One of the enumerated values, if it is one in some type.
            (json!({"enum": ["1", 2, "true", null]}), "1", "\"1\""),
            (json!({"enum": ["1", 2, "true", null]}), " 2 ", "2"),
            (json!({"enum": ["1", 2, "true", null]}), "true", "\"true\""),
            (json!({"enum": ["1", 2, "true", null]}), "null", "null"),
            (json!({"$ref": "#/$defs/mixed"}), "1", "\"1\""),
            // Larger than any number that is computed with, and JSON all the same.
            (json!({"type": "number"}), "39E5115", "39E5115"),
            (json!({"type": "integer"}), "-39E5115", "-39E5115"),
            (json!({"type": "array"}), "[39E5115]", "[39E5115]"),
            (json!({"type": "number"}), "+39E5115", "39E5115"),
            (json!({"type": "integer"}), "- 5", "-5"),
            (json!({"type": "array"}), "[- 5, + 1]", "[-5, 1]"),
            (json!({"type": "integer"}), "null", "null"),
            (json!({"type": "boolean"}), "None", "null"),
            (json!({"const": 1}), "1", "1"),
            (json!({"$ref": "#/$defs/self"}), "[1]", "[1]"),
            (json!({}), "12", "12"),
            (json!({}), "\"12\"", "\"12\""),
            (json!({}), "twelve", "\"twelve\""),
            // A string that may be one stays as written.
            (json!({}), "+491701234567", "\"+491701234567\""),
            (json!({}), "1_000", "\"1_000\""),
            (json!({}), "{'a': 1}", "\"{'a': 1}\""),
            (json!({"type": ["string", "integer"]}), "01234", "\"01234\""),
            (json!({"type": ["string", "integer"]}), "5.0", "\"5.0\""),
            (json!({"type": ["string", "boolean"]}), "TRUE", "\"TRUE\""),
            (json!({"type": ["string", "null"]}), "None", "\"None\""),
            // All that the schema says counts.
            (json!({"allOf": [{"type": "string"}]}), "12", "\"12\""),
            (json!({"allOf": [{"$ref": "#/$defs/word"}], "default": "1"}), "12", "\"12\""),
            (json!({"allOf": [{"type": ["string", "null"]}, {"type": ["null", "integer"]}]}), "None", "null"),
            (json!({"type": ["string", "integer"], "enum": ["1", "2"]}), "1", "\"1\""),
            (json!({"type": "integer", "anyOf": [{"minimum": 1}, {"maximum": -1}]}), "007", "7"),
            (json!({"type": "integer", "enum": ["1"]}), "1", "1"),
            (json!(true), "null", "null"),
        ];
        for (schema, written, json) in table {
            let defs =
                json!({"word": {"type": "string"}, "self": {"$ref": "#/$defs/self"}, "mixed": {"enum": ["1", 2]}});
            let parameters = json!({"properties": {"a": schema}, "$defs": defs});
            let wanted = (!json.is_empty()).then(|| (*json).to_owned());
            assert_eq!(Kinds::of(&parameters, "a").json(written), wanted, "{schema}: {written:?}");
        }
    }

    #[test]
    fn a_parameter_has_the_types_of_the_whole_schema() {
        let (text, number) = (json!({"type": "string"}), json!({"type": "integer"}));
        let defs = json!({"top": {"properties": {"a": text}}, "self": {"allOf": [{"$ref": "#/$defs/self"}]}});
        let table = [
            (json!({"additionalProperties": text}), "\"12\""),
            (json!({"properties": {"b": number}, "additionalProperties": text}), "\"12\""),
            (json!({"properties": {"a": number}, "additionalProperties": text}), "12"),
            (json!({"patternProperties": {"^.": text}, "additionalProperties": false}), "\"12\""),
            (json!({"properties": {}, "additionalProperties": false}), "12"),
            (json!({"$ref": "#/$defs/top"}), "\"12\""),
            (json!({"allOf": [{"$ref": "#/$defs/top"}, {"properties": {"b": number}}]}), "\"12\""),
            (json!({"anyOf": [{"properties": {"a": text}}, {"properties": {"a": {"type": "null"}}}]}), "\"12\""),
            (json!({"anyOf": [{"properties": {"a": text}}, {"additionalProperties": false}]}), "\"12\""),
            (json!({"$ref": "#/$defs/self"}), "12"),
            (json!({}), "12"),
        ];
        for (mut parameters, json) in table {
            parameters["$defs"] = defs.clone();
            assert_eq!(Kinds::of(&parameters, "a").json("12").as_deref(), Some(json), "{parameters}");
        }
        let itself: Vec<Value> = vec![json!({"$ref": "#"}); 100];
        assert_eq!(Kinds::of(&json!({"anyOf": itself, "properties": {"a": text}}), "a").bits, TEXT);
    }
}
