//! Fields that change no token, by their own definition: they speak of records, names and caches. Clients send them to
//! any server with OpenAI's API, and most cannot be told not to.
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
pub(crate) struct Hints(Vec<Cow<'static, str>>);

impl Hints {
    pub(crate) fn push(&mut self, name: impl Into<Cow<'static, str>>) {
        let name = name.into();
        if self.0.contains(&name) || self.0.len() > MOST_NAMED {
            return;
        }
        self.0.push(if self.0.len() == MOST_NAMED { "...".into() } else { name });
    }

    pub(crate) fn extend<T: Into<Cow<'static, str>>>(&mut self, names: impl IntoIterator<Item = T>) {
        names.into_iter().for_each(|name| self.push(name));
    }

    pub(crate) fn append(&mut self, others: &mut Hints) {
        self.extend(others.0.drain(..));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As a header has them: places in a schema may be long, and clients take headers of some kilobytes.
    pub(crate) fn in_a_line(&self) -> String {
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
    pub(crate) fn schema(&self) -> Value {
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
pub(crate) enum Kind {
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

pub(crate) const fn hint(field: &'static str, kind: Kind, meaning: &'static str) -> Hint {
    Hint { field, kind, meaning }
}

/// Those of every route that speaks OpenAI's, vLLM's or llama-server's words.
pub(crate) const HINTS: [Hint; 11] = [
    hint("metadata", Kind::Object, "labels of an answer that is stored"),
    hint("client_metadata", Kind::Object, "what a program says of itself, for its vendor's records"),
    hint("session_id", Kind::Text, "which requests belong together, for records"),
    hint("request_id", Kind::Text, "names the request; here the header `X-Request-Id` does"),
    hint("prompt_cache_key", Kind::Text, "which of many caches to look in; here is one, and it finds by content"),
    hint("prompt_cache_retention", Kind::Text, "how long a prompt stays cached; here until the room is needed"),
    hint("prompt_cache_options", Kind::Object, "the same, in more words"),
    hint("cache_prompt", Kind::Boolean, "whether the prefix cache is used; here the server's flags say so"),
    hint("stream_options.include_obfuscation", Kind::Boolean, "padding that hides how long events are"),
    hint("backend_sampling", Kind::Boolean, "which device draws tokens"),
    hint("t_max_prompt_ms", Kind::Number, "a limit on reading a prompt, which llama-server does not keep either"),
];

/// Those of chats alone; elsewhere some of the names mean something.
const CHAT_HINTS: [Hint; 10] = [
    hint("store", Kind::Boolean, "whether an answer is kept; here it is not"),
    hint("verbosity", Kind::Text, "how long answers are; no model here was taught what it means"),
    hint("usage", Kind::Object, "OpenRouter's wish for counts of tokens, which every whole answer has"),
    hint("provider", Kind::Object, "OpenRouter's choice of who answers"),
    hint("models", Kind::List, "OpenRouter's other models, for when the first one fails"),
    hint("route", Kind::Text, "OpenRouter's choice among them"),
    hint("keep_alive", Kind::Time, "how long a model stays loaded; here until the server ends"),
    hint("chat_id", Kind::Text, "which conversation it is, for records"),
    hint("conversation_id", Kind::Text, "the same"),
    hint("user_id", Kind::Text, "who is behind the request, for its vendor's records"),
];

/// What a chat takes.
pub(crate) static OF_CHATS: [Hint; HINTS.len() + CHAT_HINTS.len()] = {
    let mut all = [HINTS[0]; HINTS.len() + CHAT_HINTS.len()];
    let mut at = 0;
    while at < all.len() {
        all[at] = if at < HINTS.len() { HINTS[at] } else { CHAT_HINTS[at - HINTS.len()] };
        at += 1;
    }
    all
};

/// All of them.
pub fn hints() -> impl Iterator<Item = &'static Hint> {
    OF_CHATS.iter()
}

/// Takes them out of a body of this shape, with the members inside of it that its shapes lack, and tells which there were.
pub(crate) fn take(body: &mut Value, shape: &'static Shape) -> Result<Hints, ApiError> {
    take_of(body, &HINTS, shape)
}

/// The same of other lists.
pub(crate) fn take_of(body: &mut Value, hints: &'static [Hint], shape: &'static Shape) -> Result<Hints, ApiError> {
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
pub(crate) fn inside(place: &str, name: &str) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    use crate::openai::shapes::CHAT;

    fn taken(body: &mut Value) -> Vec<String> {
        take(body, &CHAT).unwrap().0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn hints_are_taken_wherever_they_stand_and_nothing_else_is() {
        let rest = json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, 5]}, "b"], "n": 1});
        let mut body = rest.clone();
        assert_eq!(taken(&mut body), [""; 0]);
        assert_eq!(body, rest);
        body["metadata"] = json!({"metadata": 1});
        body["session_id"] = json!(null);
        body["messages"][0]["id"] = json!(7);
        body["messages"][0]["mood"] = json!(null);
        body["messages"][0]["content"][0]["cache_control"] = json!({"type": "ephemeral"});
        assert_eq!(taken(&mut body), ["metadata", "messages[].content[].cache_control", "messages[].id"]);
        assert_eq!(body, rest);
        // At the top only what is listed.
        let mut body = json!({"id": "x", "cache_control": {}, "include_obfuscation": true});
        assert_eq!(taken(&mut body), [""; 0]);
        assert_eq!(body.as_object().unwrap().len(), 3);
    }

    #[test]
    fn what_is_the_callers_own_stays_and_names_are_bounded() {
        let schema = json!({"type": "object", "properties": {"x": {"anything": 1}}, "x-note": "y"});
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": schema}, "server": 1});
        let mut body = json!({"tools": [tool], "chat_template_kwargs": {"a": {"b": 1}}, "logit_bias": {"5": 1}});
        assert_eq!(taken(&mut body), ["tools[].server"]);
        assert_eq!(body["tools"][0]["function"]["parameters"], schema);
        assert_eq!((&body["chat_template_kwargs"], &body["logit_bias"]), (&json!({"a": {"b": 1}}), &json!({"5": 1})));
        let strange =
            json!({"role": "user", "content": "a", "a, b": 1, "\r\nX: y": 1, "ü": 1, "": 1, "k".repeat(65): 1});
        assert_eq!(taken(&mut json!({"messages": [strange]})), ["messages[].*"]);
        let many: Map<String, Value> = (0..1000).map(|at| (format!("k{at}"), json!(at))).collect();
        let names = taken(&mut json!({"messages": [many]}));
        assert_eq!((names.len(), names.last().map(String::as_str)), (MOST_NAMED + 1, Some("...")));
        let mut long = Hints::default();
        long.extend((0..60).map(|at| format!("a, b{}{at}", "ü".repeat(90))));
        let line = long.in_a_line();
        assert!(line.len() < MOST_LINE_BYTES + 8 && line.ends_with(", ...") && line.is_ascii(), "{line}");
    }

    #[test]
    fn a_hint_of_another_type_is_refused_with_its_place() {
        for (body, place) in [
            (json!({"metadata": []}), "metadata"),
            (json!({"prompt_cache_key": 5}), "prompt_cache_key"),
            (json!({"stream_options": {"include_obfuscation": "yes"}}), "stream_options.include_obfuscation"),
        ] {
            assert_eq!(take(&mut body.clone(), &CHAT).unwrap_err().param(), Some(place), "{body}");
        }
    }

    #[test]
    fn the_guide_has_every_hint_and_no_other() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide");
        for (file, hints) in [
            ("serve.md", hints().collect()),
            ("anthropic.md", crate::anthropic::HINTS.iter().collect::<Vec<_>>()),
            ("ollama.md", crate::ollama::HINTS.iter().collect()),
        ] {
            let guide = std::fs::read_to_string(format!("{directory}/{file}")).expect(file);
            let rows: Vec<&str> = guide.lines().skip_while(|line| !line.starts_with("| hint ")).skip(2).collect();
            let rows: Vec<&str> = rows.into_iter().take_while(|line| line.starts_with('|')).collect();
            let row = |hint: &&Hint| format!("| `{}` | {} | {} |", hint.field, hint.must_be(), hint.meaning);
            assert_eq!(rows, hints.iter().map(row).collect::<Vec<_>>(), "{file}");
        }
    }
}
