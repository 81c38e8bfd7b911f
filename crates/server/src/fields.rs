//! A JSON object read field by field, so that every field ends in one of three ways: used, refused by name, or refused
//! as unknown. Nothing is dropped in silence; [`crate::openai::hints`] are taken out before, and named in the answer.
//!
//! ```text
//! let mut fields = Fields::of(body)?;
//! let n = fields.integer("n")?;              // typed: "5" and 1.5 are refused, null counts as absent
//! fields.unsupported("tools", "...")?;       // known to the API, not to this server
//! fields.finish()?;                          // whatever is left has no meaning here
//! ```

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::json::shortened;

/// What is left of an object, and where the object stands in the body.
pub(crate) struct Fields {
    map: Map<String, Value>,
    path: String,
}

impl Fields {
    /// The body of a request: it must be an object.
    pub(crate) fn of(body: Value) -> Result<Fields, ApiError> {
        match body {
            Value::Object(map) => Ok(Fields { map, path: String::new() }),
            _ => Err(ApiError::bad_request("The request body must be a JSON object.")),
        }
    }

    /// An object inside the body, `path` being its place, such as `messages[2]`.
    pub(crate) fn nested(value: Value, path: String) -> Result<Fields, ApiError> {
        match value {
            Value::Object(map) => Ok(Fields { map, path }),
            _ => Err(wrong_type(path, "an object")),
        }
    }

    /// The full name of a field of this object.
    pub(crate) fn name(&self, field: &str) -> String {
        if self.path.is_empty() { field.to_owned() } else { format!("{}.{field}", self.path) }
    }

    /// Takes a field out; `null` is the same as not there.
    pub(crate) fn take(&mut self, field: &str) -> Option<Value> {
        // The order of what is left does not matter, its speed with a million unknown keys does.
        self.map.swap_remove(field).filter(|value| !value.is_null())
    }

    /// A whole number that `i64` holds. `5.0` is one, as in JSON Schema; `1.5` and `"5"` are not.
    pub(crate) fn integer(&mut self, field: &str) -> Result<Option<i64>, ApiError> {
        self.take(field).map(|value| integer(&value, || self.name(field))).transpose()
    }

    /// A number.
    pub(crate) fn number(&mut self, field: &str) -> Result<Option<f64>, ApiError> {
        self.take(field).map(|value| number(&value, || self.name(field))).transpose()
    }

    /// `true` or `false`.
    pub(crate) fn boolean(&mut self, field: &str) -> Result<Option<bool>, ApiError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(_) => Err(wrong_type(self.name(field), "true or false")),
        }
    }

    /// A string.
    pub(crate) fn string(&mut self, field: &str) -> Result<Option<String>, ApiError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::String(value)) => Ok(Some(value)),
            Some(_) => Err(wrong_type(self.name(field), "a string")),
        }
    }

    /// A list.
    pub(crate) fn list(&mut self, field: &str) -> Result<Option<Vec<Value>>, ApiError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(_) => Err(wrong_type(self.name(field), "a list")),
        }
    }

    /// A list of whole numbers.
    pub(crate) fn integers(&mut self, field: &str) -> Result<Vec<i64>, ApiError> {
        let items = self.list(field)?.unwrap_or_default();
        items.iter().enumerate().map(|(at, item)| integer(item, || format!("{}[{at}]", self.name(field)))).collect()
    }

    /// An object, as fields of its own.
    pub(crate) fn object(&mut self, field: &str) -> Result<Option<Fields>, ApiError> {
        let path = self.name(field);
        self.take(field).map(|value| Fields::nested(value, path)).transpose()
    }

    /// The rest of this object, as it is.
    pub(crate) fn into_map(self) -> Map<String, Value> {
        self.map
    }

    /// A field that may only have the one value that changes nothing.
    pub(crate) fn only(&mut self, field: &str, allowed: &Value, why: &str) -> Result<(), ApiError> {
        match self.take(field) {
            Some(value) if value != *allowed => Err(ApiError::unsupported(self.name(field), why)),
            _ => Ok(()),
        }
    }

    /// A field of the API that this server does not have.
    pub(crate) fn unsupported(&mut self, field: &str, why: &str) -> Result<(), ApiError> {
        self.take(field).map_or(Ok(()), |_| Err(ApiError::unsupported(self.name(field), why)))
    }

    /// Every field has been looked at: one that is left, even as `null`, has no meaning here.
    pub(crate) fn finish(self) -> Result<(), ApiError> {
        match self.map.keys().next() {
            None => Ok(()),
            Some(key) => {
                let name = self.name(&shortened(key));
                let message = format!("'{name}' is not a field of this request.");
                Err(ApiError::unknown_parameter(name, message))
            }
        }
    }
}

/// A whole number that `i64` holds; `name` is called on an error only.
pub(crate) fn integer(value: &Value, name: impl FnOnce() -> String) -> Result<i64, ApiError> {
    const EXACT: f64 = (1u64 << 53) as f64;
    if let Some(whole) = value.as_i64() {
        return Ok(whole);
    }
    match value.as_f64() {
        Some(float) if float.fract() == 0.0 && float.abs() <= EXACT => Ok(float as i64),
        Some(float) if float.fract() == 0.0 => {
            let name = name();
            let message = format!("'{name}' must be an integer of at most 64 bits with a sign.");
            Err(ApiError::bad_request(message).with_param(name))
        }
        _ => Err(wrong_type(name(), "an integer")),
    }
}

/// A number; `name` is called on an error only.
pub(crate) fn number(value: &Value, name: impl FnOnce() -> String) -> Result<f64, ApiError> {
    value.as_f64().ok_or_else(|| wrong_type(name(), "a number"))
}

/// A number as it was written, not as `f64` has it: 0.7 and not 0.699999988079071.
pub(crate) fn as_written(value: f32) -> Value {
    value.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

/// 400 for a value of another type than the field's.
pub(crate) fn wrong_type(param: impl Into<String>, expected: &str) -> ApiError {
    let param = param.into();
    ApiError::bad_request(format!("'{param}' must be {expected}.")).with_param(param)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(value: Value) -> Fields {
        Fields::of(value).unwrap()
    }

    #[test]
    fn numbers_are_numbers_of_their_kind() {
        for (value, expected) in [
            (json!(5), Some(5)),
            (json!(-5), Some(-5)),
            (json!(5.0), Some(5)),
            (json!(i64::MAX), Some(i64::MAX)),
            (json!(i64::MIN), Some(i64::MIN)),
            (json!(9_223_372_036_854_775_808u64), None),
            (json!(1e30), None),
            (json!(1.5), None),
            (json!("5"), None),
            (json!(true), None),
            (json!([5]), None),
        ] {
            let got = fields(json!({ "n": value })).integer("n");
            match expected {
                Some(expected) => assert_eq!(got.unwrap(), Some(expected), "{value}"),
                None => assert_eq!(got.expect_err(&value.to_string()).param(), Some("n")),
            }
        }
        assert_eq!(fields(json!({"n": null})).integer("n").unwrap(), None);
        assert!(fields(json!({"t": "0.5"})).number("t").is_err());
    }

    #[test]
    fn what_is_left_over_is_refused_by_name() {
        let mut read = fields(json!({"n": 1, "temprature": 0.5}));
        read.integer("n").unwrap();
        assert_eq!(read.finish().unwrap_err().param(), Some("temprature"));

        let mut read = fields(json!({"stream_options": {"include_usage": true, "x": 1}}));
        let mut options = read.object("stream_options").unwrap().unwrap();
        options.boolean("include_usage").unwrap();
        assert_eq!(options.finish().unwrap_err().param(), Some("stream_options.x"));
        assert!(read.finish().is_ok());
    }
}
