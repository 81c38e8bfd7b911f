//! Fields that change no token, by their own definition: they speak of records, names and caches. Clients send them to
//! whoever speaks OpenAI's API, and most cannot be told not to.
//!
//! ```text
//! body --take--> body without them --> fields, where whatever is left is honoured or refused
//!          \---> their names --------> x-twostroke-hints, "hints" beside "timings"
//! ```
//! The list is closed. What might change an answer, however little, has no place in it.

use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::wrong_type;

/// A field of a request that changes no token.
#[derive(Debug)]
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

pub(crate) static HINTS: [Hint; 14] = [
    hint("metadata", Kind::Object, "labels of an answer that is stored"),
    hint("client_metadata", Kind::Object, "what a program says of itself, for its vendor's records"),
    hint("session_id", Kind::Text, "which requests belong together, for records"),
    hint("request_id", Kind::Text, "names the request; here the header `X-Request-Id` does"),
    hint("prompt_cache_key", Kind::Text, "which of many caches to look in; here is one, and it finds by content"),
    hint("prompt_cache_retention", Kind::Text, "how long a prompt stays cached; here until the room is needed"),
    hint("prompt_cache_options", Kind::Object, "the same, in more words"),
    hint("cache_prompt", Kind::Boolean, "whether the prefix cache is used; here the server's flags say so"),
    hint("stream_options.include_obfuscation", Kind::Boolean, "padding that hides how long events are"),
    hint("messages[].id", Kind::Text, "names a message"),
    hint("messages[].annotations", Kind::List, "sources of an earlier answer, for who shows it"),
    hint("messages[].provider_specific_fields", Kind::Object, "LiteLLM's copy of what an answer had beside OpenAI's"),
    hint(
        "messages[].cache_control",
        Kind::Object,
        "where a cached part of the prompt ends; here every block may be one",
    ),
    hint("messages[].content[].cache_control", Kind::Object, "the same of a part"),
];

/// All of them.
pub fn hints() -> impl Iterator<Item = &'static Hint> {
    HINTS.iter()
}

/// Takes them out of a body, and tells which there were. `null` is the same as not there.
pub(crate) fn take(body: &mut Value) -> Result<Vec<&'static str>, ApiError> {
    take_of(body, &HINTS)
}

/// The same with those of another API.
pub(crate) fn take_of(body: &mut Value, hints: &'static [Hint]) -> Result<Vec<&'static str>, ApiError> {
    let mut taken = Vec::new();
    for hint in hints {
        let is_there = remove(body, hint.field, hint.kind).map_err(|place| wrong_type(place, hint.must_be()))?;
        taken.extend(is_there.then_some(hint.field));
    }
    Ok(taken)
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
    let Some(step) = step.strip_suffix("[]") else {
        let inner = map.get_mut(step).map_or(Ok(false), |inner| remove(inner, rest, kind));
        return inner.map_err(|place| format!("{step}.{place}"));
    };
    let Some(Value::Array(items)) = map.get_mut(step) else { return Ok(false) };
    let mut is_there = false;
    for (at, item) in items.iter_mut().enumerate() {
        is_there |= remove(item, rest, kind).map_err(|place| format!("{step}[{at}].{place}"))?;
    }
    Ok(is_there)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn hints_are_taken_wherever_they_stand_and_nothing_else_is() {
        let rest = json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, 5]}, "b"], "n": 1});
        let mut body = rest.clone();
        assert_eq!(take(&mut body).unwrap(), [""; 0]);
        assert_eq!(body, rest);
        body["metadata"] = json!({"metadata": 1});
        body["session_id"] = json!(null);
        body["messages"][0]["id"] = json!("m");
        body["messages"][0]["content"][0]["cache_control"] = json!({"type": "ephemeral"});
        assert_eq!(take(&mut body).unwrap(), ["metadata", "messages[].id", "messages[].content[].cache_control"]);
        assert_eq!(body, rest);
        // Only at its own place.
        let mut body = json!({"id": "x", "cache_control": {}, "include_obfuscation": true});
        assert_eq!(take(&mut body).unwrap(), [""; 0]);
        assert_eq!(body.as_object().unwrap().len(), 3);
    }

    #[test]
    fn a_hint_of_another_type_is_refused_with_its_place() {
        for (body, place) in [
            (json!({"metadata": []}), "metadata"),
            (json!({"prompt_cache_key": 5}), "prompt_cache_key"),
            (json!({"stream_options": {"include_obfuscation": "yes"}}), "stream_options.include_obfuscation"),
            (json!({"messages": [{}, {"annotations": {}}]}), "messages[1].annotations"),
            (
                json!({"messages": [{"content": [{}, {}, {"cache_control": true}]}]}),
                "messages[0].content[2].cache_control",
            ),
        ] {
            assert_eq!(take(&mut body.clone()).unwrap_err().param(), Some(place), "{body}");
        }
    }

    #[test]
    fn the_guide_has_every_hint_and_no_other() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide");
        for (file, hints) in [
            ("serve.md", HINTS.as_slice()),
            ("anthropic.md", crate::anthropic::HINTS),
            ("ollama.md", crate::ollama::HINTS),
        ] {
            let guide = std::fs::read_to_string(format!("{directory}/{file}")).expect(file);
            let rows: Vec<&str> = guide.lines().skip_while(|line| !line.starts_with("| hint ")).skip(2).collect();
            let rows: Vec<&str> = rows.into_iter().take_while(|line| line.starts_with('|')).collect();
            let row = |hint: &Hint| format!("| `{}` | {} | {} |", hint.field, hint.must_be(), hint.meaning);
            assert_eq!(rows, hints.iter().map(row).collect::<Vec<_>>(), "{file}");
        }
    }
}
