//! What a body may hold, as tables: readers read by them and the document of the API is made from them, so that neither
//! says what the other does not do.
//!
//! ```text
//! body --Fields::of(body, &SHAPE)--> names and types are those of the table --> its reader
//!                      |
//!                      +--> /openapi.json, /docs
//! ```
//! A table knows names, JSON types and fixed words. What a value means, and which go together, its reader knows.

use serde_json::{Value, json};

/// An object of a request.
#[derive(Debug)]
pub struct Shape {
    /// What the document calls it.
    pub name: &'static str,
    /// Its fields; several shapes share some of the lists.
    pub groups: &'static [&'static [Field]],
}

impl Shape {
    pub fn fields(&self) -> impl Iterator<Item = &'static Field> {
        self.groups.iter().flat_map(|group| group.iter())
    }

    pub fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields().find(|field| field.name == name)
    }
}

/// A field of an object.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    pub name: &'static str,
    pub kind: Kind,
    /// What it does, in a line.
    pub about: &'static str,
    pub is_required: bool,
}

pub const fn field(name: &'static str, kind: Kind, about: &'static str) -> Field {
    Field { name, kind, about, is_required: false }
}

/// A field that must be there.
pub const fn required(name: &'static str, kind: Kind, about: &'static str) -> Field {
    Field { name, kind, about, is_required: true }
}

/// A field of the API that may only have the one value that changes nothing, and why.
pub const fn only(name: &'static str, value: Constant, why: &'static str) -> Field {
    field(name, Kind::Only(value), why)
}

/// A field of the API that this server does not have, and why.
pub const fn missing(name: &'static str, why: &'static str) -> Field {
    field(name, Kind::Missing, why)
}

/// The same fields in a body that has none of them.
pub const fn all_missing<const N: usize>(fields: &[Field], why: &'static str) -> [Field; N] {
    assert!(fields.len() == N);
    let mut missed = [missing("", why); N];
    let mut at = 0;
    while at < N {
        missed[at].name = fields[at].name;
        at += 1;
    }
    missed
}

/// What a value must be. `null` is the same as not there.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Boolean,
    /// A whole number that `i64` holds; `5.0` is one.
    Integer,
    Number,
    Text,
    /// One of these.
    Word(&'static [&'static str]),
    /// A list of these.
    List(&'static Kind),
    /// In the object what the shape does not have changes nothing: it is a hint ([`crate::hints`]).
    Object(&'static Shape),
    /// The same, where a name that the shape does not have is refused: each might change the answer.
    Settings(&'static Shape),
    /// An object whose names are the caller's own.
    Map,
    /// Anything.
    Json,
    Either(&'static [Kind]),
    Only(Constant),
    Missing,
}

/// A value that a table can hold.
#[derive(Clone, Copy, Debug)]
pub enum Constant {
    Boolean(bool),
    Number(f64),
    Text(&'static str),
    /// An empty list, or one of texts.
    Texts(&'static [&'static str]),
    NoFields,
}

impl Constant {
    pub fn json(self) -> Value {
        match self {
            Constant::Boolean(value) => value.into(),
            Constant::Number(value) if value.fract() == 0.0 => json!(value as i64),
            Constant::Number(value) => value.into(),
            Constant::Text(text) => text.into(),
            Constant::Texts(texts) => texts.into(),
            Constant::NoFields => json!({}),
        }
    }

    /// Whether the value is this; `1` and `1.0` are one number.
    pub fn is(self, value: &Value) -> bool {
        match self {
            Constant::Number(number) => value.as_f64() == Some(number),
            other => *value == other.json(),
        }
    }
}

impl Kind {
    /// Whether a value is of this kind, seen from outside: what is in a list or an object is read for itself.
    pub fn has(self, value: &Value) -> bool {
        match self {
            Kind::Boolean => value.is_boolean(),
            Kind::Integer => value.as_f64().is_some_and(|number| number.fract() == 0.0),
            Kind::Number => value.is_number(),
            Kind::Text => value.is_string(),
            Kind::Word(words) => value.as_str().is_some_and(|word| words.contains(&word)),
            Kind::List(_) => value.is_array(),
            Kind::Object(_) | Kind::Settings(_) | Kind::Map => value.is_object(),
            Kind::Json => true,
            Kind::Either(kinds) => kinds.iter().any(|kind| kind.has(value)),
            Kind::Only(constant) => constant.is(value),
            Kind::Missing => false,
        }
    }

    /// `a string or a list of integers`: what a value must be.
    pub fn in_words(self) -> String {
        match self {
            Kind::Boolean => "true or false".to_owned(),
            Kind::Integer => "an integer".to_owned(),
            Kind::Number => "a number".to_owned(),
            Kind::Text => "a string".to_owned(),
            Kind::Word(words) => one_of(words),
            Kind::List(of) => of.in_words_of_a_list(),
            Kind::Object(_) | Kind::Settings(_) | Kind::Map => "an object".to_owned(),
            Kind::Json => "JSON".to_owned(),
            Kind::Either(kinds) => {
                let mut words: Vec<String> = kinds.iter().map(|kind| kind.in_words()).collect();
                let last = words.pop().unwrap_or_default();
                if words.is_empty() { last } else { format!("{} or {last}", words.join(", ")) }
            }
            Kind::Only(constant) => constant.json().to_string(),
            Kind::Missing => "left out".to_owned(),
        }
    }

    fn in_words_of_a_list(self) -> String {
        match self {
            Kind::Integer => "a list of integers".to_owned(),
            Kind::Text => "a list of strings".to_owned(),
            _ => "a list".to_owned(),
        }
    }

    /// As JSON Schema has it.
    pub fn schema(self) -> Value {
        match self {
            Kind::Boolean => json!({"type": "boolean"}),
            Kind::Integer => json!({"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX}),
            Kind::Number => json!({"type": "number"}),
            Kind::Text => json!({"type": "string"}),
            Kind::Word(words) => json!({"type": "string", "enum": words}),
            Kind::List(of) => json!({"type": "array", "items": of.schema()}),
            Kind::Object(shape) => {
                let mut schema = shape.schema();
                schema["additionalProperties"] = true.into();
                schema
            }
            Kind::Settings(shape) => shape.schema(),
            Kind::Map => json!({"type": "object"}),
            Kind::Json => json!({}),
            Kind::Either(kinds) => json!({"anyOf": kinds.iter().map(|kind| kind.schema()).collect::<Vec<_>>()}),
            Kind::Only(constant) => json!({"const": constant.json()}),
            Kind::Missing => json!({"type": "null"}),
        }
    }
}

impl Shape {
    /// As JSON Schema has it, with the objects within in their places.
    pub fn schema(&self) -> Value {
        let property = |field: &Field| {
            let mut schema = field.kind.schema();
            if !field.is_required && !matches!(field.kind, Kind::Json | Kind::Missing) {
                schema = json!({"anyOf": [schema, {"type": "null"}]});
            }
            schema["description"] = match field.kind {
                Kind::Missing => format!("Not here: {}.", field.about).into(),
                Kind::Only(constant) => format!("Only {}: {}.", constant.json(), field.about).into(),
                _ => field.about.into(),
            };
            (field.name.to_owned(), schema)
        };
        let properties: serde_json::Map<String, Value> = self.fields().map(property).collect();
        let required: Vec<&str> = self.fields().filter(|field| field.is_required).map(|field| field.name).collect();
        json!({
            "title": self.name,
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": {"type": "null"},
        })
    }
}

/// `one of 'a', 'b' and 'c'`.
pub fn one_of(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, [one])) => format!("{one} or {last}"),
        Some((last, before)) => format!("one of {} and {last}", before.join(", ")),
        None => "left out".to_owned(),
    }
}
