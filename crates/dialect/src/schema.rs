//! Parameter types from a tool's schema, for families that write values without quotes.

use serde_json::Value;

use crate::json::{mended, quoted};
use crate::python::to_json;

/// Maximum references followed: a recursive schema has no end.
const MAX_REFERENCES: usize = 8;

/// JSON types that a parameter may have. All, if unspecified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kinds(u8);

const TEXT: u8 = 1;
const NAMES: [(&str, u8); 7] =
    [("string", TEXT), ("integer", 2), ("number", 2 | 4), ("boolean", 8), ("null", 16), ("array", 32), ("object", 64)];
const ALL: u8 = 127;

impl Kinds {
    /// The types of parameter `key` in `parameters`, the schema of a tool.
    pub(crate) fn of(parameters: &Value, key: &str) -> Kinds {
        let property = follow(parameters, parameters).get("properties").and_then(|all| all.get(key));
        Kinds(property.map_or(ALL, |property| kinds(parameters, property, MAX_REFERENCES)))
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

    /// An unquoted value as JSON: a type that the schema allows, if it parses as one, or else a string. Without a schema it
    /// is JSON if it parses. `None`: an empty value, which the types do not allow.
    pub(crate) fn json(self, written: &str) -> Option<String> {
        let trimmed = written.trim();
        if trimmed.is_empty() && !self.may_be_text() {
            return None;
        }
        // A number keeps its text, whatever its length.
        let read = match serde_json::from_str::<Value>(trimmed) {
            Ok(value) => Some((value, trimmed.to_owned())),
            Err(_) => {
                let json = to_json(trimmed).or_else(|| mended(trimmed));
                json.and_then(|json| Some((serde_json::from_str(&json).ok()?, json)))
            }
        };
        Some(match read {
            Some((value, json)) if self.has(&value, &json) && (!value.is_string() || self.0 == ALL) => json,
            Some((Value::Number(_), json))
                if self.0 & 2 != 0
                    && let Some(whole) = integer(&json) =>
            {
                whole
            }
            // A value that must not be a string, in quotes.
            Some((Value::String(inner), _)) if !self.may_be_text() && inner != written => return self.json(&inner),
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

fn kinds(document: &Value, schema: &Value, deep: usize) -> u8 {
    let schema = follow(document, schema);
    let named = |name: &Value| {
        let name = name.as_str().unwrap_or_default();
        NAMES.iter().find(|(known, _)| *known == name).map_or(ALL, |(_, kinds)| *kinds)
    };
    let of_value = |value: &Value| {
        let written = value.to_string();
        (0..7).map(|bit| 1 << bit).filter(|&bit| Kinds(bit).has(value, &written)).sum::<u8>()
    };
    if deep == 0 {
        return ALL;
    }
    match (schema.get("type"), schema.get("enum"), schema.get("const")) {
        (Some(Value::Array(names)), ..) => names.iter().map(named).fold(0, |all, one| all | one),
        (Some(name), ..) => named(name),
        (_, Some(Value::Array(values)), _) => values.iter().map(of_value).fold(0, |all, one| all | one),
        (_, _, Some(value)) => of_value(value),
        _ => {
            let either = ["anyOf", "oneOf"].iter().find_map(|key| schema.get(*key)?.as_array());
            match either {
                Some(either) => either.iter().fold(0, |all, one| all | kinds(document, one, deep - 1)),
                None => ALL,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_is_what_its_schema_says() {
        let table: &[(Value, &str, &str)] = &[
            (json!({"type": "string"}), "12", "\"12\""),
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
            (json!(true), "null", "null"),
        ];
        for (schema, written, json) in table {
            let defs = json!({"word": {"type": "string"}, "self": {"$ref": "#/$defs/self"}});
            let parameters = json!({"properties": {"a": schema}, "$defs": defs});
            let wanted = (!json.is_empty()).then(|| (*json).to_owned());
            assert_eq!(Kinds::of(&parameters, "a").json(written), wanted, "{schema}: {written:?}");
        }
        assert!(Kinds::of(&json!({}), "a").is_any());
    }
}
