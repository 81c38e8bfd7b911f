//! Fields that change no token, by their own definition: they speak of records, names and caches. Clients send them to
//! any server of an API, and most cannot be told not to.
//!
//! ```text
//! body --take--> body without them --> fields, where what is left is honoured or refused
//!          \---> their names --------> x-twostroke-hints, "hints" beside "timings"
//! ```
//! At the top of a body the list is closed: what might change an answer, however little, has no place in it, and a name
//! that is not known is refused, since it may be a misspelt one. Inside its messages, tools and parts whatever the
//! shape does not have is a hint: clients keep notes of their own there. `null` says nothing, wherever it stands.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::wrong_type;
use crate::shape;
use crate::shape::Shape;

/// Most hints that an answer names.
const MOST_NAMED: usize = 64;
/// Most bytes of them in a header.
const MOST_LINE_BYTES: usize = 2048;

/// Names of what was taken and changes nothing, each once, in their order.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Hints(Vec<Cow<'static, str>>);

impl Hints {
    pub fn push(&mut self, name: impl Into<Cow<'static, str>>) {
        let name = name.into();
        if self.0.contains(&name) || self.0.len() > MOST_NAMED {
            return;
        }
        self.0.push(if self.0.len() == MOST_NAMED { "...".into() } else { name });
    }

    pub fn extend<T: Into<Cow<'static, str>>>(&mut self, names: impl IntoIterator<Item = T>) {
        names.into_iter().for_each(|name| self.push(name));
    }

    pub fn append(&mut self, others: &mut Hints) {
        self.extend(others.0.drain(..));
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As a header has them: places in a schema may be long, and clients take headers of some kilobytes.
    pub fn in_a_line(&self) -> String {
        let fits = |c: char| if c.is_ascii_graphic() && c != ',' { c } else { '?' };
        let mut line = String::new();
        for name in &self.0 {
            if line.len() + name.len() > MOST_LINE_BYTES {
                line.push_str(", ...");
                break;
            }
            line.push_str(if line.is_empty() { "" } else { ", " });
            line.extend(name.chars().map(fits));
        }
        line
    }
}

/// A field of a request that changes no token.
#[derive(Clone, Copy, Debug)]
pub struct Hint {
    /// Where it stands: `a.b` is `b` in the object `a`, `a[].b` in each object of the list `a`.
    pub field: &'static str,
    kind: Kind,
    /// What it does elsewhere.
    pub meaning: &'static str,
}

impl Hint {
    /// As JSON Schema has its value.
    pub fn schema(&self) -> Value {
        match self.kind {
            Kind::Object => json!({"type": "object"}),
            Kind::List => json!({"type": "array"}),
            Kind::Text => json!({"type": "string"}),
            Kind::Boolean => json!({"type": "boolean"}),
            Kind::Number => json!({"type": "number"}),
            Kind::Time => json!({"type": ["number", "string"]}),
        }
    }

    /// What its value must be: `an object`.
    pub fn must_be(&self) -> &'static str {
        self.kind.name()
    }
}

/// What JSON type its value has.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Object,
    List,
    Text,
    Boolean,
    Number,
    /// A number, or a text of one with its unit.
    Time,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Object => "an object",
            Kind::List => "a list",
            Kind::Text => "a string",
            Kind::Boolean => "true or false",
            Kind::Number => "a number",
            Kind::Time => "a number or a string",
        }
    }

    fn has(self, value: &Value) -> bool {
        match self {
            Kind::Object => value.is_object(),
            Kind::List => value.is_array(),
            Kind::Text => value.is_string(),
            Kind::Boolean => value.is_boolean(),
            Kind::Number => value.is_number(),
            Kind::Time => value.is_number() || value.is_string(),
        }
    }
}

pub const fn hint(field: &'static str, kind: Kind, meaning: &'static str) -> Hint {
    Hint { field, kind, meaning }
}

/// Takes these out of a body of this shape, with the members inside of it that its shapes lack, and tells which there were.
pub fn take_of(body: &mut Value, hints: &'static [Hint], shape: &'static Shape) -> Result<Hints, ApiError> {
    let mut taken = Hints::default();
    for hint in hints {
        let is_there = remove(body, hint.field, hint.kind).map_err(|place| wrong_type(place, hint.must_be()))?;
        taken.extend(is_there.then_some(hint.field));
    }
    if let Value::Object(fields) = body {
        for field in shape.fields() {
            if let Some(value) = fields.get_mut(field.name) {
                leave_known(value, field.kind, &mut field.name.to_owned(), &mut taken);
            }
        }
    }
    Ok(taken)
}

/// Takes out of the objects within a value what their shapes do not have.
fn leave_known(value: &mut Value, kind: shape::Kind, place: &mut String, taken: &mut Hints) {
    match (kind, value) {
        (shape::Kind::Object(shape), Value::Object(members)) => {
            members.retain(|name, value| {
                let Some(field) = shape.field(name) else {
                    if !value.is_null() {
                        taken.push(inside(place, name));
                    }
                    return false;
                };
                let length = place.len();
                place.push('.');
                place.push_str(field.name);
                leave_known(value, field.kind, place, taken);
                place.truncate(length);
                true
            });
        }
        (shape::Kind::Settings(shape), Value::Object(members)) => known_members(members, shape, place, taken),
        (shape::Kind::List(kind), Value::Array(items)) => {
            let length = place.len();
            place.push_str("[]");
            items.iter_mut().for_each(|item| leave_known(item, *kind, place, taken));
            place.truncate(length);
        }
        (shape::Kind::Either(kinds), value) => {
            if let Some(kind) = kinds.iter().find(|kind| kind.has(value)) {
                leave_known(value, *kind, place, taken);
            }
        }
        _ => {}
    }
}

/// Settings are closed as the top of a body is: an unknown member stays, and is refused by its name.
fn known_members(members: &mut Map<String, Value>, shape: &Shape, place: &mut String, taken: &mut Hints) {
    let length = place.len();
    for field in shape.fields() {
        if let Some(value) = members.get_mut(field.name) {
            place.push('.');
            place.push_str(field.name);
            leave_known(value, field.kind, place, taken);
            place.truncate(length);
        }
    }
}

/// The name of an unknown member; one that does not fit into a header is not repeated.
pub fn inside(place: &str, name: &str) -> String {
    let is_a_name =
        name.len() <= 64 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.$:".contains(&byte));
    format!("{place}.{}", if is_a_name && !name.is_empty() { name } else { "*" })
}

/// Whether the field was there; the place of one whose value is of another type.
fn remove(value: &mut Value, field: &str, kind: Kind) -> Result<bool, String> {
    let Value::Object(map) = value else { return Ok(false) };
    let Some((step, rest)) = field.split_once('.') else {
        return match map.swap_remove(field) {
            None | Some(Value::Null) => Ok(false),
            Some(value) if kind.has(&value) => Ok(true),
            Some(_) => Err(field.to_owned()),
        };
    };
    let inner = map.get_mut(step).map_or(Ok(false), |inner| remove(inner, rest, kind));
    inner.map_err(|place| format!("{step}.{place}"))
}
