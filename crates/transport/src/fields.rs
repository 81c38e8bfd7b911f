//! A JSON object read field by field, so that every field ends in one of three ways: used, refused by name, or refused
//! as unknown. Nothing is dropped in silence; [`crate::hints`] are taken out before, and named in the answer.
//!
//! ```text
//! let mut fields = Fields::of(body, &SHAPE)?;   // names and types are those of its table (`crate::shape`)
//! let n = fields.integer("n")?;                 // null counts as absent
//! fields.finish()?;                             // whatever is left has no meaning here
//! ```

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::hints;
use crate::json::shortened;
use crate::shape::{Constant, Kind, Shape};

/// What is left of an object, and where the object stands in the body.
pub struct Fields {
    map: Map<String, Value>,
    path: String,
    shape: &'static Shape,
}

impl Fields {
    /// The body of a request: it must be an object of this shape.
    pub fn of(body: Value, shape: &'static Shape) -> Result<Fields, ApiError> {
        match body {
            Value::Object(map) => Fields { map, path: String::new(), shape }.checked(),
            _ => Err(ApiError::bad_request("The request body must be a JSON object.")),
        }
    }

    /// An object inside the body, `path` being its place, such as `messages[2]`.
    pub fn nested(value: Value, path: String, shape: &'static Shape) -> Result<Fields, ApiError> {
        match value {
            Value::Object(map) => Fields { map, path, shape }.checked(),
            _ => Err(wrong_type(path, "an object")),
        }
    }

    /// Every value is of the kind that the table says, and what must be there is. Names that it does not have are left
    /// to [`finish`](Self::finish): what is wrong with an object that is of another kind altogether is its type.
    fn checked(self) -> Result<Fields, ApiError> {
        for field in self.shape.fields() {
            let (kind, name) = (field.kind, || self.name(field.name));
            return Err(match (self.map.get(field.name).filter(|value| !value.is_null()), kind) {
                (None, _) if field.is_required && self.path.is_empty() => {
                    ApiError::bad_request(format!("'{}' is missing.", field.name)).with_param(field.name)
                }
                (None, _) if field.is_required => wrong_type(name(), &kind.in_words()),
                (Some(value), Kind::Missing | Kind::Only(_)) if !kind.has(value) => {
                    ApiError::unsupported(name(), field.about)
                }
                (Some(value), _) if !kind.has(value) => wrong_type(name(), &kind.in_words()),
                _ => continue,
            });
        }
        Ok(self)
    }

    /// A reader asks for what its table has. If it does not, the table is wrong, and whatever it said of the field is.
    fn expect(&self, field: &str, fits: impl Fn(Kind) -> bool) -> Result<(), ApiError> {
        if self.shape.field(field).is_some_and(|field| fits(field.kind)) {
            return Ok(());
        }
        tracing::error!(shape = self.shape.name, field, "a reader and its table disagree");
        Err(ApiError::internal())
    }

    /// The full name of a field of this object.
    pub fn name(&self, field: &str) -> String {
        if self.path.is_empty() { field.to_owned() } else { format!("{}.{field}", self.path) }
    }

    /// Whether the table has such a field.
    pub fn has(&self, field: &str) -> bool {
        self.shape.field(field).is_some()
    }

    /// Takes a field out; `null` is the same as not there, and so is what the table does not have.
    pub fn take(&mut self, field: &str) -> Option<Value> {
        self.shape.field(field)?;
        // The order of what is left does not matter, its speed with a million unknown keys does.
        self.map.swap_remove(field).filter(|value| !value.is_null())
    }

    /// A whole number that `i64` holds. `5.0` is one, as in JSON Schema; `1.5` and `"5"` are not.
    pub fn integer(&mut self, field: &str) -> Result<Option<i64>, ApiError> {
        self.expect(field, |kind| matches!(kind, Kind::Integer))?;
        self.take(field).map(|value| integer(&value, || self.name(field))).transpose()
    }

    pub fn number(&mut self, field: &str) -> Result<Option<f64>, ApiError> {
        self.expect(field, |kind| matches!(kind, Kind::Number))?;
        self.take(field).map(|value| number(&value, || self.name(field))).transpose()
    }

    /// `true` or `false`.
    pub fn boolean(&mut self, field: &str) -> Result<Option<bool>, ApiError> {
        self.expect(field, |kind| matches!(kind, Kind::Boolean | Kind::Only(Constant::Boolean(_))))?;
        match self.take(field) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(_) => Err(wrong_type(self.name(field), "true or false")),
        }
    }

    pub fn string(&mut self, field: &str) -> Result<Option<String>, ApiError> {
        self.expect(field, |kind| matches!(kind, Kind::Text | Kind::Word(_)))?;
        match self.take(field) {
            None => Ok(None),
            Some(Value::String(value)) => Ok(Some(value)),
            Some(_) => Err(wrong_type(self.name(field), "a string")),
        }
    }

    /// A string that templates take for a name.
    pub fn short(&mut self, field: &str) -> Result<Option<String>, ApiError> {
        let text = self.string(field)?;
        text.as_ref().map_or(Ok(()), |text| check_short(text, || self.name(field)))?;
        Ok(text)
    }

    /// A string that must be there.
    pub fn text(&mut self, field: &str) -> Result<String, ApiError> {
        self.string(field)?.ok_or_else(|| wrong_type(self.name(field), "a string"))
    }

    pub fn list(&mut self, field: &str) -> Result<Option<Vec<Value>>, ApiError> {
        self.expect(field, |kind| matches!(kind, Kind::List(_)))?;
        match self.take(field) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(_) => Err(wrong_type(self.name(field), "a list")),
        }
    }

    /// A list of whole numbers.
    pub fn integers(&mut self, field: &str) -> Result<Vec<i64>, ApiError> {
        let items = self.list(field)?.unwrap_or_default();
        items.iter().enumerate().map(|(at, item)| integer(item, || format!("{}[{at}]", self.name(field)))).collect()
    }

    /// An object, as fields of its own.
    pub fn object(&mut self, field: &str) -> Result<Option<Fields>, ApiError> {
        let Some(Kind::Object(shape) | Kind::Settings(shape)) = self.shape.field(field).map(|field| field.kind) else {
            return self.expect(field, |_| false).map(|()| None);
        };
        let path = self.name(field);
        self.take(field).map(|value| Fields::nested(value, path, shape)).transpose()
    }

    /// An object that must be there.
    pub fn inner(&mut self, field: &str) -> Result<Fields, ApiError> {
        self.object(field)?.ok_or_else(|| wrong_type(self.name(field), "an object"))
    }

    /// Objects in a list, each as fields of its own.
    pub fn objects(&mut self, field: &str) -> Result<Vec<Fields>, ApiError> {
        let Some(Kind::List(Kind::Object(shape))) = self.shape.field(field).map(|field| field.kind) else {
            return self.expect(field, |_| false).map(|()| Vec::new());
        };
        let path = self.name(field);
        let items = self.list(field)?.unwrap_or_default().into_iter().enumerate();
        items.map(|(at, item)| Fields::nested(item, format!("{path}[{at}]"), shape)).collect()
    }

    /// An object whose names are the caller's own.
    pub fn map(&mut self, field: &str) -> Result<Option<Map<String, Value>>, ApiError> {
        self.expect(field, |kind| matches!(kind, Kind::Map))?;
        match self.take(field) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(_) => Err(wrong_type(self.name(field), "an object")),
        }
    }

    /// A field that may only have the one value that changes nothing, in this place.
    pub fn only(&mut self, field: &str, allowed: &Value, why: &str) -> Result<(), ApiError> {
        match self.take(field) {
            Some(value) if value != *allowed => Err(ApiError::unsupported(self.name(field), why)),
            _ => Ok(()),
        }
    }

    /// A field that has no meaning in this place: it may be there without anything in it.
    pub fn nothing(&mut self, field: &str, why: &str) -> Result<(), ApiError> {
        match self.take(field) {
            Some(Value::String(text)) if text.is_empty() => Ok(()),
            Some(Value::Array(items)) if items.is_empty() => Ok(()),
            Some(_) => Err(ApiError::unsupported(self.name(field), why)),
            None => Ok(()),
        }
    }

    /// Every field has been looked at: one that is left has no meaning here, unless it is `null`, which says nothing.
    pub fn finish(self) -> Result<(), ApiError> {
        self.left().next().map_or(Ok(()), |key| Err(self.unknown(key)))
    }

    /// The names of what is left of an object inside the body: what its table has for objects of other types changes
    /// nothing in this one. `place`: where such objects stand.
    pub fn rest(self, place: &str) -> Vec<String> {
        self.left().map(|key| hints::inside(place, key)).collect()
    }

    /// What may only have one value has it.
    fn left(&self) -> impl Iterator<Item = &String> {
        let is_settled = |key: &str| {
            let kind = self.shape.field(key).map(|field| field.kind);
            matches!(kind, Some(Kind::Only(_) | Kind::Missing))
        };
        self.map.iter().filter(move |(key, value)| !value.is_null() && !is_settled(key)).map(|(key, _)| key)
    }

    fn unknown(&self, key: &str) -> ApiError {
        let name = self.name(&shortened(key));
        let message = format!("'{name}' is not a field of this request.");
        ApiError::unknown_parameter(name, message)
    }
}

/// A whole number that `i64` holds; `name` is called on an error only.
pub fn integer(value: &Value, name: impl FnOnce() -> String) -> Result<i64, ApiError> {
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
pub fn number(value: &Value, name: impl FnOnce() -> String) -> Result<f64, ApiError> {
    value.as_f64().ok_or_else(|| wrong_type(name(), "a number"))
}

/// A number as it was written, not as `f64` has it: 0.7 and not 0.699999988079071.
pub fn as_written(value: f32) -> Value {
    value.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

/// The engine's limit of names in messages, in the words of an API that writes messages otherwise.
pub fn check_short(text: &str, name: impl Fn() -> String) -> Result<(), ApiError> {
    if text.len() <= engine::MAX_NAME_BYTES {
        return Ok(());
    }
    let message = format!("'{}' has {} bytes; at most {}.", name(), text.len(), engine::MAX_NAME_BYTES);
    Err(ApiError::bad_request(message).with_param(name()))
}

/// 400 for a value of another type than the field's.
pub fn wrong_type(param: impl Into<String>, expected: &str) -> ApiError {
    let param = param.into();
    ApiError::bad_request(format!("'{param}' must be {expected}.")).with_param(param)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::shape::{field, missing, only, required};

    static SHAPE: Shape = Shape {
        name: "Test",
        groups: &[
            &[field("n", Kind::Integer, "a number"), field("t", Kind::Number, "another")],
            &[
                field("stream_options", Kind::Object(&OPTIONS), "more"),
                field("word", Kind::Word(&["a", "b", "c"]), "one of them"),
                only("off", Constant::Number(1.0), "there is no other"),
                missing("absent", "it is not here"),
            ],
        ],
    };
    static OPTIONS: Shape = Shape { name: "Options", groups: &[&[required("include_usage", Kind::Boolean, "it")]] };

    fn read(value: Value) -> Result<Fields, ApiError> {
        Fields::of(value, &SHAPE)
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
            let got = read(json!({ "n": value })).and_then(|mut fields| fields.integer("n"));
            match expected {
                Some(expected) => assert_eq!(got.unwrap(), Some(expected), "{value}"),
                None => assert_eq!(got.expect_err(&value.to_string()).param(), Some("n")),
            }
        }
        assert_eq!(read(json!({"n": null})).unwrap().integer("n").unwrap(), None);
        assert_eq!(read(json!({"t": 1})).unwrap().number("t").unwrap(), Some(1.0));
    }

    #[test]
    fn a_value_is_of_the_kind_that_the_table_says() {
        for (body, message) in [
            (json!({"t": "0.5"}), "'t' must be a number."),
            (json!({"word": "d"}), "'word' must be one of 'a', 'b' and 'c'."),
            (json!({"word": 5}), "'word' must be one of 'a', 'b' and 'c'."),
            (json!({"stream_options": 1}), "'stream_options' must be an object."),
            (json!({"off": 0}), "there is no other"),
            (json!({"absent": {}}), "it is not here"),
        ] {
            assert_eq!(read(body.clone()).err().unwrap().message(), message, "{body}");
        }
        let nothing = json!({"n": null, "t": null, "stream_options": null, "word": null, "off": null, "absent": null});
        read(nothing).unwrap();
        for one in [json!(1), json!(1.0)] {
            read(json!({ "off": one })).unwrap().finish().unwrap();
        }
        let mut outer = read(json!({"stream_options": {}})).unwrap();
        assert_eq!(outer.object("stream_options").err().unwrap().param(), Some("stream_options.include_usage"));
    }

    #[test]
    fn what_a_table_does_not_have_cannot_be_read() {
        let mut fields = read(json!({"n": 1, "other": 1})).unwrap();
        assert_eq!(fields.take("other"), None);
        assert!(fields.integer("other").is_err() && fields.boolean("n").is_err() && fields.object("n").is_err());
    }

    #[test]
    fn what_is_left_over_is_refused_by_name() {
        let mut nothing = read(json!({"n": 1, "temprature": null})).unwrap();
        nothing.integer("n").unwrap();
        nothing.finish().unwrap();

        let mut read_one = read(json!({"n": 1, "temprature": 0.5})).unwrap();
        read_one.integer("n").unwrap();
        assert_eq!(read_one.finish().unwrap_err().param(), Some("temprature"));

        let mut outer = read(json!({"stream_options": {"include_usage": true, "x": 1}})).unwrap();
        let mut options = outer.object("stream_options").unwrap().unwrap();
        options.boolean("include_usage").unwrap();
        assert_eq!(options.finish().unwrap_err().param(), Some("stream_options.x"));
        assert!(outer.finish().is_ok());
    }
}
