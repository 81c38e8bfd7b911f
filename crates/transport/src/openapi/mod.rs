//! The document of an API and its page, made of tables: what a server takes and answers, for programs and for people.
//!
//! ```text
//! Operation for each route --+
//! shape::Shape, hints -------+--> the document --> Rendered: /openapi.json
//! schemas of answers --------+           \------------------> /docs (page.rs)
//! ```
//! The document is OpenAPI 3.1. It speaks of names, types and fixed words.

mod page;
mod reference;
mod rendered;

use serde_json::{Map, Value, json};

use crate::hints::Hint;
use crate::query::QueryParameter;
use crate::shape::{Kind, Shape};

pub use self::reference::markdown;
pub use self::rendered::Rendered;

/// What a route is for, reads and answers.
pub struct Operation {
    pub method: &'static str,
    pub path: &'static str,
    /// Whose API it is of.
    pub api: &'static ApiGroup,
    pub about: &'static str,
    /// What its URL may ask: every other name is refused.
    pub query: &'static [QueryParameter],
    pub body: Body,
    pub answer: Answer,
    /// What 503 means there, and the schema of that answer, where it is no error.
    pub at_503: Option<(&'static str, &'static str)>,
}

/// Routes that belong together.
pub struct ApiGroup {
    pub name: &'static str,
    /// The schema of what they answer when they do not.
    pub error: &'static str,
}

/// What a route reads.
#[derive(Clone, Copy)]
pub enum Body {
    None,
    /// An object of one of these shapes.
    Json(&'static [&'static Shape], &'static [Hint]),
    /// A list of these.
    List(&'static Shape),
    /// An object that another table reads: a model's `config.json`.
    AnyJson,
    /// A file, as a form.
    File,
}

/// What 200 brings: a schema's name, or types of content.
#[derive(Clone, Copy)]
pub enum Answer {
    Json(&'static str),
    /// Whole, or as events of this type.
    Streamed(&'static str, &'static str),
    Other(&'static str),
    Either(&'static [&'static str]),
}

pub const fn get(path: &'static str, api: &'static ApiGroup, about: &'static str, answer: Answer) -> Operation {
    Operation { method: "GET", path, api, about, query: &[], body: Body::None, answer, at_503: None }
}

pub const fn post(
    path: &'static str,
    api: &'static ApiGroup,
    about: &'static str,
    body: Body,
    answer: Answer,
) -> Operation {
    Operation { method: "POST", body, ..get(path, api, about, answer) }
}

pub const fn delete(path: &'static str, api: &'static ApiGroup, about: &'static str, answer: Answer) -> Operation {
    Operation { method: "DELETE", ..get(path, api, about, answer) }
}

impl Operation {
    /// With these names in its URL.
    pub const fn asked(mut self, query: &'static [QueryParameter]) -> Operation {
        self.query = query;
        self
    }

    /// With an answer of its own at 503.
    pub const fn at_503(mut self, about: &'static str, name: &'static str) -> Operation {
        self.at_503 = Some((about, name));
        self
    }

    /// `post_v1_chat_completions`.
    pub fn id(&self) -> String {
        let words = self.path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        let words: Vec<&str> = words.collect();
        format!("{}_{}", self.method.to_ascii_lowercase(), words.join("_"))
    }
}

/// What is said of the server as a whole.
pub struct Service<'a> {
    pub title: &'a str,
    pub version: &'a str,
    pub about: &'a str,
    /// What paths begin with; may be empty.
    pub root_path: &'a str,
    /// Requests must bring a key.
    pub wants_keys: bool,
}

/// The document of a server with these operations; `answers`: schemas by name.
pub fn document<'o>(
    service: &Service<'_>,
    operations: impl Iterator<Item = &'o Operation>,
    mut answers: Value,
) -> Value {
    let mut paths = Map::new();
    for operation in operations {
        if let Body::Json(shapes, hints) = operation.body {
            shapes.iter().for_each(|shape| answers[shape.name] = with_hints(shape, hints));
        }
        let path = paths.entry(operation.path.replace("{*", "{")).or_insert_with(|| json!({}));
        path[operation.method.to_ascii_lowercase()] = described(operation);
    }
    let Service { title, version, about, root_path, wants_keys } = service;
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {"title": title, "version": version, "description": about},
        "servers": [{"url": if root_path.is_empty() { "/" } else { root_path }}],
        "paths": paths,
        "components": {"schemas": answers},
    });
    if *wants_keys {
        document["components"]["securitySchemes"] = json!({
            "bearer": {"type": "http", "scheme": "bearer"},
            "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        });
        document["security"] = json!([{"bearer": []}, {"key": []}]);
    }
    document
}

/// The schema of a body, with what changes nothing in the objects that it stands in.
pub fn with_hints(shape: &Shape, hints: &[Hint]) -> Value {
    let mut schema = shape.schema();
    hints.iter().for_each(|hint| put(&mut schema, &hint.field.split('.').collect::<Vec<_>>(), hint));
    schema
}

fn described(operation: &Operation) -> Value {
    let mut told = json!({
        "operationId": operation.id(),
        "tags": [operation.api.name],
        "summary": operation.about,
        "responses": responses(operation),
    });
    let parameters: Vec<Value> = in_path(operation.path)
        .map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}))
        .chain(operation.query.iter().map(in_query))
        .collect();
    if !parameters.is_empty() {
        told["parameters"] = parameters.into();
    }
    let content = match operation.body {
        Body::None => return told,
        Body::Json(&[shape], _) => json!({"application/json": {"schema": reference(shape.name)}}),
        Body::Json(shapes, _) => {
            let any: Vec<Value> = shapes.iter().map(|shape| reference(shape.name)).collect();
            json!({"application/json": {"schema": {"anyOf": any}}})
        }
        Body::List(shape) => {
            json!({"application/json": {"schema": {"type": "array", "items": Kind::Object(shape).schema()}}})
        }
        Body::AnyJson => json!({"application/json": {"schema": {"type": "object"}}}),
        Body::File => json!({"multipart/form-data": {"schema": {
            "type": "object",
            "properties": {
                "file": {"type": "string", "contentMediaType": "application/octet-stream"},
                "purpose": {"type": "string", "enum": ["batch"]},
            },
            "required": ["file", "purpose"],
            "additionalProperties": false,
        }}}),
    };
    told["requestBody"] = json!({"required": true, "content": content});
    told
}

fn in_path(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter_map(|part| Some(part.strip_prefix('{')?.strip_suffix('}')?.trim_start_matches('*')))
}

fn in_query(parameter: &QueryParameter) -> Value {
    let QueryParameter { name, kind, about } = parameter;
    json!({"name": name, "in": "query", "required": false, "description": about, "schema": kind.schema()})
}

fn responses(operation: &Operation) -> Value {
    let one = |kind: &str, schema: Value| json!({ kind: {"schema": schema} });
    let content = match operation.answer {
        Answer::Json(name) => one("application/json", reference(name)),
        Answer::Streamed(name, events) => {
            let mut content = one("application/json", reference(name));
            content[events] = json!({"schema": {"description": "pieces of it, as they come"}});
            content
        }
        Answer::Other(kind) => one(kind, json!({})),
        Answer::Either(kinds) => kinds.iter().map(|kind| ((*kind).to_owned(), json!({}))).collect::<Map<_, _>>().into(),
    };
    let error = one("application/json", reference(operation.api.error));
    let error = |about: &str| json!({"description": about, "content": error});
    let mut told = json!({
        "200": {"description": "what was asked for", "content": content},
        "4XX": error("the request is wrong, and says why"),
        "5XX": error("the server cannot answer now"),
    });
    if let Some((about, name)) = operation.at_503 {
        told["503"] = json!({"description": about, "content": one("application/json", reference(name))});
    }
    told
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// Adds a hint to the schema of the object that it stands in.
fn put(schema: &mut Value, steps: &[&str], hint: &Hint) {
    let Some((&step, rest)) = steps.split_first() else { return };
    if rest.is_empty() {
        if schema["type"] == "object" && schema["properties"].is_object() {
            let mut property = json!({"anyOf": [hint.schema(), {"type": "null"}]});
            property["description"] = format!("Changes no token: {}.", hint.meaning).into();
            schema["properties"][step] = property;
        }
        return;
    }
    let (name, is_list) = step.strip_suffix("[]").map_or((step, false), |name| (name, true));
    let Some(inner) = schema.pointer_mut(&format!("/properties/{name}")) else { return };
    alternatives(inner, &mut |alternative| match (is_list, alternative.get_mut("items")) {
        (false, _) => put(alternative, rest, hint),
        (true, Some(items)) => alternatives(items, &mut |item| put(item, rest, hint)),
        (true, None) => {}
    });
}

/// A schema, or each of those that it may be.
fn alternatives(schema: &mut Value, work: &mut dyn FnMut(&mut Value)) {
    match schema.get_mut("anyOf") {
        Some(Value::Array(any)) => any.iter_mut().for_each(|one| alternatives(one, work)),
        _ => work(schema),
    }
}
