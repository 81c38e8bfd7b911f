//! Parameter types from a tool's schema, for families that write values without quotes.

use std::cell::Cell;

use serde_json::Value;

use crate::json::{mended, quoted};
use crate::python::to_json;

/// Maximum length of a parameter's name, where it is not in quotes.
pub(crate) const MAX_KEY_BYTES: usize = 256;
/// Maximum references followed: a recursive schema has no end.
const MAX_REFERENCES: usize = 8;
/// Maximum schemas read for one parameter: those that refer to each other in lists would take exponential time.
const MAX_SCHEMAS: usize = 1 << 12;

/// JSON types that a parameter may have. All, if unspecified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kinds(u8);

const TEXT: u8 = 1;
const NAMES: [(&str, u8); 7] =
    [("string", TEXT), ("integer", 2), ("number", 2 | 4), ("boolean", 8), ("null", 16), ("array", 32), ("object", 64)];
const ALL: u8 = 127;

impl Kinds {
    /// The types of parameter `key` in `parameters`, the schema of a tool. What nothing fits is unspecified.
    pub(crate) fn of(parameters: &Value, key: &str) -> Kinds {
        let reader = Reader { document: parameters, left: Cell::new(MAX_SCHEMAS) };
        match reader.kinds_of_key(parameters, key, MAX_REFERENCES) {
            0 => Kinds(ALL),
            kinds => Kinds(kinds),
        }
    }

    /// Whether it is always a string.
    pub(crate) fn is_text(self) -> bool {
        self.0 == TEXT
    }

    /// Whether it may be a string, among others.
    pub(crate) fn may_be_text(self) -> bool {
        self.0 & TEXT != 0
    }

    /// Whether the schema does not restrict it.
    pub(crate) fn is_any(self) -> bool {
        self.0 == ALL
    }

    /// `written`: the value's JSON text, which distinguishes integers of any size.
    fn has(self, value: &Value, written: &str) -> bool {
        let kind = match value {
            Value::String(_) => TEXT,
            Value::Number(_) if written.contains(['.', 'e', 'E']) => 4,
            Value::Number(_) => 2,
            Value::Bool(_) => 8,
            Value::Null => 16,
            Value::Array(_) => 32,
            Value::Object(_) => 64,
        };
        self.0 & kind != 0
    }

    /// An unquoted value as JSON. Where a string is allowed it is one, unless it is exactly JSON of another allowed
    /// type; elsewhere Python's notation and mistakes are read too. `None`: an empty value, which the types do not allow.
    pub(crate) fn json(self, written: &str) -> Option<String> {
        let trimmed = written.trim();
        // A number keeps its text, whatever its length.
        let read = serde_json::from_str::<Value>(trimmed).ok().map(|value| (value, trimmed.to_owned()));
        if self.may_be_text() {
            let other = read.filter(|(value, json)| self.has(value, json) && (!value.is_string() || self.0 == ALL));
            return Some(other.map_or_else(|| quoted(written), |(_, json)| json));
        }
        if trimmed.is_empty() {
            return None;
        }
        let read = read.or_else(|| {
            let json = to_json(trimmed).or_else(|| mended(trimmed))?;
            Some((serde_json::from_str(&json).ok()?, json))
        });
        Some(match read {
            Some((value, json)) if self.has(&value, &json) => json,
            Some((Value::Number(_), json))
                if self.0 & 2 != 0
                    && let Some(whole) = integer(&json) =>
            {
                whole
            }
            // In quotes.
            Some((Value::String(inner), _)) if inner != written => return self.json(&inner),
            None if self.0 & 8 != 0 && ["true", "false"].contains(&trimmed.to_lowercase().as_str()) => {
                trimmed.to_lowercase()
            }
            _ => quoted(written),
        })
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
        let of_value = |value: &Value| {
            let written = value.to_string();
            (0..7).map(|bit| 1 << bit).filter(|&bit| Kinds(bit).has(value, &written)).sum::<u8>()
        };
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
            let defs = json!({"word": {"type": "string"}, "self": {"$ref": "#/$defs/self"}});
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
        assert_eq!(Kinds::of(&json!({"anyOf": itself, "properties": {"a": text}}), "a"), Kinds(TEXT));
    }
}
