//! What an answer must look like, in the words of OpenAI, vLLM and llama.cpp.
//!
//! ```text
//! response_format: {type: json_object | json_schema}                     OpenAI
//! structured_outputs: {json | json_object | regex | choice | grammar}    vLLM; guided_json and the others before it
//! grammar, json_schema                                                   llama.cpp
//! ```
//! All of them are one [`Rule`], and a request has one of them.

use engine::Rule;
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};

/// A rule, and the field that it was in.
pub(crate) struct Asked {
    pub(crate) rule: Rule,
    pub(crate) field: String,
}

/// Reads the fields; `None`: the answer may look as it likes.
pub(crate) fn read(fields: &mut Fields) -> Result<Option<Asked>, ApiError> {
    let mut found: Option<Asked> = None;
    let mut take = |asked: Option<Asked>| match (&found, asked) {
        (_, None) => Ok(()),
        (Some(before), Some(asked)) => {
            let message = format!("An answer can have one form: send '{}' or '{}'.", before.field, asked.field);
            Err(ApiError::bad_request(message).with_param(asked.field))
        }
        (None, asked) => {
            found = asked;
            Ok(())
        }
    };
    take(response_format(fields)?)?;
    if let Some(mut outputs) = fields.object("structured_outputs")? {
        for kind in KINDS {
            take(one(&mut outputs, kind.name, kind)?)?;
        }
        outputs.finish()?;
    }
    for kind in KINDS {
        take(one(fields, &format!("guided_{}", kind.name), kind)?)?;
    }
    take(fields.string("grammar")?.map(|text| Asked { rule: Rule::Gbnf(text), field: "grammar".to_owned() }))?;
    let schema = fields.take("json_schema");
    take(schema.map(|schema| Asked { rule: Rule::JsonSchema(schema), field: "json_schema".to_owned() }))?;
    Ok(found)
}

/// A field of `structured_outputs`.
struct Kind {
    name: &'static str,
    read: fn(Value, &str) -> Result<Option<Rule>, ApiError>,
}

const KINDS: &[Kind] = &[
    Kind { name: "json", read: |value, name| schema(value, name).map(Some) },
    Kind {
        name: "json_object",
        read: |value, name| match value {
            Value::Bool(wanted) => Ok(wanted.then_some(Rule::JsonObject)),
            _ => Err(wrong_type(name, "true or false")),
        },
    },
    Kind { name: "regex", read: |value, name| text(value, name).map(|text| Some(Rule::Regex(text))) },
    Kind {
        name: "choice",
        read: |value, name| {
            let Value::Array(items) = value else { return Err(wrong_type(name, "a list of strings")) };
            let choice = |(at, item)| text(item, &format!("{name}[{at}]"));
            items.into_iter().enumerate().map(choice).collect::<Result<_, _>>().map(|texts| Some(Rule::Choice(texts)))
        },
    },
    Kind {
        name: "grammar",
        read: |value, name| {
            // vLLM's back ends disagree: one reads EBNF as llama.cpp writes it, the other Lark.
            Ok(Some(Rule::of_grammar(text(value, name)?)))
        },
    },
];

fn one(fields: &mut Fields, field: &str, kind: &Kind) -> Result<Option<Asked>, ApiError> {
    let Some(value) = fields.take(field) else { return Ok(None) };
    let field = fields.name(field);
    Ok((kind.read)(value, &field)?.map(|rule| Asked { rule, field }))
}

fn response_format(fields: &mut Fields) -> Result<Option<Asked>, ApiError> {
    let Some(mut format) = fields.object("response_format")? else { return Ok(None) };
    let asked = match format.text("type")?.as_str() {
        "json_object" => Some(Asked { rule: Rule::JsonObject, field: "response_format".to_owned() }),
        "json_schema" => {
            let mut object = format.inner("json_schema")?;
            let field = object.name("schema");
            let asked = object.take("schema").unwrap_or_default();
            // For people; the schema is kept to whether or not it is called strict.
            object.string("name")?;
            object.string("description")?;
            object.boolean("strict")?;
            object.finish()?;
            Some(Asked { rule: schema(asked, &field)?, field })
        }
        _ => None,
    };
    format.finish()?;
    Ok(asked)
}

/// A schema, or the text of one, as vLLM takes it.
pub(crate) fn schema(value: Value, name: &str) -> Result<Rule, ApiError> {
    match value {
        Value::Object(_) | Value::Bool(_) => Ok(Rule::JsonSchema(value)),
        Value::String(text) => match serde_json::from_str(&text) {
            Ok(schema @ (Value::Object(_) | Value::Bool(_))) => Ok(Rule::JsonSchema(schema)),
            _ => Err(wrong_type(name, "a JSON schema")),
        },
        _ => Err(wrong_type(name, "a JSON schema")),
    }
}

fn text(value: Value, name: &str) -> Result<String, ApiError> {
    match value {
        Value::String(text) => Ok(text),
        _ => Err(wrong_type(name, "a string")),
    }
}
