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
use transport::error::{ApiError, ApiResult};
use transport::fields::{Fields, wrong_type};

use crate::answers::Adjustments;

/// A rule, and the field that it was in.
pub(crate) struct Asked {
    pub(crate) rule: Rule,
    pub(crate) field: String,
}

/// Reads the fields; `None`: the answer may look as it likes.
pub(crate) fn read(fields: &mut Fields, adjustments: &mut Adjustments) -> ApiResult<Option<Asked>> {
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
    take(response_format(fields, adjustments)?)?;
    if let Some(mut outputs) = fields.object("structured_outputs")? {
        for kind in KINDS {
            take(one(&mut outputs, kind.name, kind, adjustments)?)?;
        }
        outputs.finish()?;
    }
    for kind in KINDS {
        take(one(fields, &format!("guided_{}", kind.name), kind, adjustments)?)?;
    }
    // Clients of llama-server send an empty one where they want none.
    let grammar = fields.string("grammar")?.filter(|text| !text.is_empty());
    take(grammar.map(|text| Asked { rule: Rule::Gbnf(text), field: "grammar".to_owned() }))?;
    if let Some(value) = fields.take("json_schema") {
        let field = "json_schema".to_owned();
        take(Some(Asked { rule: schema(value, &field, false, adjustments)?, field }))?;
    }
    Ok(found)
}

/// A field of `structured_outputs`.
struct Kind {
    name: &'static str,
    read: fn(Value, &str, &mut Adjustments) -> ApiResult<Option<Rule>>,
}

const KINDS: &[Kind] = &[
    Kind { name: "json", read: |value, name, adjustments| schema(value, name, false, adjustments).map(Some) },
    Kind {
        name: "json_object",
        read: |value, name, _| match value {
            Value::Bool(wanted) => Ok(wanted.then_some(Rule::JsonObject)),
            _ => Err(wrong_type(name, "true or false")),
        },
    },
    Kind { name: "regex", read: |value, name, _| text(value, name).map(|text| Some(Rule::Regex(text))) },
    Kind {
        name: "choice",
        read: |value, name, _| {
            let Value::Array(items) = value else { return Err(wrong_type(name, "a list of strings")) };
            let choice = |(at, item)| text(item, &format!("{name}[{at}]"));
            items.into_iter().enumerate().map(choice).collect::<Result<_, _>>().map(|texts| Some(Rule::Choice(texts)))
        },
    },
    Kind {
        name: "grammar",
        read: |value, name, _| {
            // vLLM's back ends disagree: one reads EBNF as llama.cpp writes it, the other Lark.
            Ok(Some(Rule::of_grammar(text(value, name)?)))
        },
    },
];

fn one(fields: &mut Fields, field: &str, kind: &Kind, adjustments: &mut Adjustments) -> ApiResult<Option<Asked>> {
    let Some(value) = fields.take(field) else { return Ok(None) };
    let field = fields.name(field);
    Ok((kind.read)(value, &field, adjustments)?.map(|rule| Asked { rule, field }))
}

fn response_format(fields: &mut Fields, adjustments: &mut Adjustments) -> ApiResult<Option<Asked>> {
    let Some(mut format) = fields.object("response_format")? else { return Ok(None) };
    let asked = match format.text("type")?.as_str() {
        // llama-server has the schema beside either type.
        kind @ ("json_object" | "json_schema") => Some(match format.take("schema") {
            Some(asked) => {
                let field = format.name("schema");
                Asked { rule: schema(asked, &field, false, adjustments)?, field }
            }
            None if kind == "json_object" => Asked { rule: Rule::JsonObject, field: "response_format".to_owned() },
            None => {
                let mut object = format.inner("json_schema")?;
                let field = object.name("schema");
                let asked = object.take("schema").unwrap_or_default();
                // For people.
                object.string("name")?;
                object.string("description")?;
                let strict = object.boolean("strict")?.unwrap_or(false);
                object.finish()?;
                Asked { rule: schema(asked, &field, strict, adjustments)?, field }
            }
        }),
        _ => None,
    };
    format.finish()?;
    Ok(asked)
}

/// A schema, or the text of one, as vLLM takes it.
pub(crate) fn schema(value: Value, name: &str, strict: bool, adjustments: &mut Adjustments) -> ApiResult<Rule> {
    let schema = match value {
        Value::String(text) => serde_json::from_str(&text).unwrap_or_default(),
        schema => schema,
    };
    match schema {
        Value::Object(_) | Value::Bool(_) => adjustments.fit(&schema, name, strict).map(Rule::JsonSchema),
        _ => Err(wrong_type(name, "a JSON schema")),
    }
}

fn text(value: Value, name: &str) -> ApiResult<String> {
    match value {
        Value::String(text) => Ok(text),
        _ => Err(wrong_type(name, "a string")),
    }
}
