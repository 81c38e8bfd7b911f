//! A JSON object's fields by name, type and range: a value that is wrong is refused under its own name.

use checkpoint::LoadError;
use serde_json::{Map, Value};
use std::fmt;
use std::ops::RangeInclusive;

pub(crate) fn parse_object(file: &str, text: &str) -> Result<Map<String, Value>, LoadError> {
    match serde_json::from_str(text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => Err(LoadError::field(file, "top level", format!("expected an object, found {}", kind(&other)))),
        Err(error) => Err(LoadError::json(file, "JSON", &error)),
    }
}

pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// A name from a file, short enough for one line and without control characters.
pub(crate) fn quoted(text: &str) -> String {
    let short: String = text.chars().take(60).collect();
    format!("{short:?}")
}

/// The fields of one JSON object, read by name, range and type. `null` counts as absent, as in transformers.
pub(crate) struct Fields<'a> {
    pub(crate) file: &'static str,
    /// Name of the object and a dot; empty at the top.
    pub(crate) path: String,
    pub(crate) map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    pub(crate) fn error(&self, name: &str, problem: impl fmt::Display) -> LoadError {
        LoadError::field(self.file, format!("{}{name}", self.path), problem)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    pub(crate) fn object(&self, name: &str) -> Result<Option<Fields<'a>>, LoadError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Object(map)) => {
                Ok(Some(Fields { file: self.file, path: format!("{}{name}.", self.path), map }))
            }
            Some(other) => Err(self.error(name, format!("expected an object, found {}", kind(other)))),
        }
    }

    pub(crate) fn text(&self, name: &str) -> Result<Option<&'a str>, LoadError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.error(name, format!("expected a string, found {}", kind(other)))),
        }
    }

    /// A text where the field may be a flag too, which is read as one.
    pub(crate) fn text_or_flag(&self, name: &str) -> Result<Option<&'a str>, LoadError> {
        if matches!(self.get(name), Some(Value::Bool(_))) { Ok(None) } else { self.text(name) }
    }

    pub(crate) fn flag(&self, name: &str, default: bool) -> Result<bool, LoadError> {
        match self.get(name) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(self.error(name, format!("expected true or false, found {}", kind(other)))),
        }
    }

    pub(crate) fn optional_integer(&self, name: &str, range: RangeInclusive<u64>) -> Result<Option<u64>, LoadError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let Value::Number(number) = value else {
            return Err(self.error(name, format!("expected a whole number, found {}", kind(value))));
        };
        match number.as_u64() {
            Some(value) if range.contains(&value) => Ok(Some(value)),
            _ => {
                let (low, high) = (range.start(), range.end());
                Err(self.error(name, format!("{number} is not a whole number from {low} to {high}")))
            }
        }
    }

    pub(crate) fn optional_size(&self, name: &str, max: usize) -> Result<Option<usize>, LoadError> {
        Ok(self.optional_integer(name, 1..=max as u64)?.map(|value| value as usize))
    }

    pub(crate) fn size(&self, name: &str, max: usize) -> Result<usize, LoadError> {
        self.optional_size(name, max)?.ok_or_else(|| self.error(name, "missing"))
    }

    pub(crate) fn optional_float(&self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, LoadError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let Value::Number(number) = value else {
            return Err(self.error(name, format!("expected a number, found {}", kind(value))));
        };
        match number.as_f64() {
            Some(value) if range.contains(&value) => Ok(Some(value)),
            _ => Err(self.error(name, format!("{number} is not between {} and {}", range.start(), range.end()))),
        }
    }

    pub(crate) fn float(&self, name: &str, range: RangeInclusive<f64>) -> Result<f64, LoadError> {
        self.optional_float(name, range)?.ok_or_else(|| self.error(name, "missing"))
    }

    pub(crate) fn list(&self, name: &str) -> Result<Option<&'a [Value]>, LoadError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Array(values)) => Ok(Some(values)),
            Some(other) => Err(self.error(name, format!("expected a list, found {}", kind(other)))),
        }
    }

    /// `len` numbers.
    pub(crate) fn floats(&self, name: &str, len: usize, range: RangeInclusive<f64>) -> Result<Vec<f64>, LoadError> {
        let values = self.list(name)?.ok_or_else(|| self.error(name, "missing"))?;
        if values.len() != len {
            return Err(self.error(name, format!("{} numbers; expected are {len}", values.len())));
        }
        let wrong = |value: &Value| {
            let (low, high) = (range.start(), range.end());
            self.error(name, format!("{} is not a number between {low} and {high}", quoted(&value.to_string())))
        };
        let number = |value: &Value| value.as_f64().filter(|number| range.contains(number)).ok_or_else(|| wrong(value));
        values.iter().map(number).collect()
    }

    /// One id, or a list of them; none when absent.
    pub(crate) fn token_ids(&self, name: &str) -> Result<Vec<u32>, LoadError> {
        let wrong = |value: &Value| {
            self.error(name, format!("expected a token id or a list of them, found {}", quoted(&value.to_string())))
        };
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| wrong(value));
        match self.get(name) {
            None => Ok(Vec::new()),
            Some(Value::Array(ids)) if ids.len() <= 1024 => ids.iter().map(id).collect(),
            Some(Value::Array(ids)) => Err(self.error(name, format!("{} ids; at most 1024 are read", ids.len()))),
            Some(value) => Ok(vec![id(value)?]),
        }
    }
}
