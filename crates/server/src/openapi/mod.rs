//! `GET /openapi.json` and `GET /docs`: what this server takes and answers, for programs and for people.
//!
//! ```text
//! routes::TABLE ----- every one has an operation, and no other --+
//! transport::shape::Shape (what readers read by), hints -------------+--> the document --> /openapi.json
//! answers (schemas, which Schemathesis holds answers to) --------+              \---> /docs
//! ```
//! The document is OpenAPI 3.1. It speaks of names, types and fixed words; which values go together the reference in
//! `docs/guide` says. It holds nothing of the model or of requests, so no key is asked for it where the page
//! is there.

mod answers;
mod cached;
mod operations;
mod page;

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderValue, Method, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use transport::hints::Hint;
use transport::json::json_body;
use transport::query::QueryParameter;
use transport::shape::{Kind, Shape};

pub(crate) use self::cached::CachedDocument;

use self::operations::{Answer, Body, OPERATIONS, Operation};
use crate::app::App;

/// Paths of the document and its page.
pub(crate) const PATHS: [&str; 2] = ["/openapi.json", "/docs"];

/// What the URL of a route may ask. The files of the page and what is refused whatever it asks have no operation, and
/// know no names.
pub(crate) fn query(method: &Method, path: &str) -> &'static [QueryParameter] {
    let operation = OPERATIONS.iter().find(|operation| operation.path == path && operation.method == method.as_str());
    operation.map_or(&[], |operation| operation.query)
}

/// Both, as they are sent.
fn in_bytes(app: &App) -> CachedDocument {
    let document = written(app);
    let (page, policy) = page::of(&document);
    CachedDocument {
        document: document.to_string().into(),
        page: page.into(),
        policy: policy.try_into().expect("words and a digest are a header value"),
    }
}

pub(crate) async fn document(State(app): State<Arc<App>>) -> Response {
    json_body(app.openapi.get_or_init(|| in_bytes(&app)).document.clone())
}

pub(crate) async fn docs(State(app): State<Arc<App>>) -> Response {
    let CachedDocument { page, policy, .. } = app.openapi.get_or_init(|| in_bytes(&app));
    let mut response = ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], page.clone()).into_response();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, policy.clone()),
        (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    ] {
        response.headers_mut().insert(name, value);
    }
    response
}

/// The document of a server with these flags.
fn written(app: &App) -> Value {
    let mut paths = Map::new();
    for operation in OPERATIONS.iter().filter(|operation| app.settings.ui || !operation.path.starts_with("/live/")) {
        let path = paths.entry(operation.path.replace("{*", "{")).or_insert_with(|| json!({}));
        path[operation.method.to_ascii_lowercase()] = described(operation);
    }
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "twostroke",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "An LLM inference server: OpenAI's, Anthropic's and Ollama's APIs, llama-server's and \
                vLLM's routes, and this server's own.",
        },
        "servers": [{"url": if app.settings.root_path.is_empty() { "/" } else { &app.settings.root_path }}],
        "paths": paths,
        "components": {"schemas": schemas()},
    });
    if app.keys.are_wanted() {
        document["components"]["securitySchemes"] = json!({
            "bearer": {"type": "http", "scheme": "bearer"},
            "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        });
        document["security"] = json!([{"bearer": []}, {"key": []}]);
    }
    document
}

/// What answers and bodies look like, by name.
fn schemas() -> Value {
    let mut schemas = answers::schemas();
    for operation in OPERATIONS {
        if let Body::Json(shapes, hints) = operation.body {
            shapes.iter().for_each(|shape| schemas[shape.name] = with_hints(shape, hints));
        }
    }
    schemas
}

fn with_hints(shape: &Shape, hints: &[Hint]) -> Value {
    let mut schema = shape.schema();
    hints.iter().for_each(|hint| put(&mut schema, &hint.field.split('.').collect::<Vec<_>>(), hint));
    schema
}

fn described(operation: &Operation) -> Value {
    let mut told = json!({
        "operationId": operation.id(),
        "tags": [operation.tag],
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
    let error = one("application/json", reference(operation.error()));
    let error = |about: &str| json!({"description": about, "content": error});
    let mut told = json!({
        "200": {"description": "what was asked for", "content": content},
        "4XX": error("the request is wrong, and says why"),
        "5XX": error("the server cannot answer now"),
    });
    if operation.path == "/health" {
        told["503"] =
            json!({"description": "it does not move", "content": one("application/json", reference("Health"))});
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::routes::routes;

    #[test]
    fn every_route_has_an_operation_and_no_other_has() {
        // The page's files, and what Ollama's clients are told is not here.
        let is_fixed =
            |path: &str| ["pull", "push", "create", "copy", "delete"].iter().any(|word| path == format!("/api/{word}"));
        let is_told = |path: &str| !path.contains('.') && path != "/" && !is_fixed(path);
        let there: BTreeSet<(&str, &str)> = routes().filter(|(_, path)| is_told(path)).collect();
        let told: BTreeSet<(&str, &str)> =
            OPERATIONS.iter().map(|operation| (operation.method, operation.path)).collect();
        assert_eq!(told, there);
        let bodies = OPERATIONS.iter().filter_map(|operation| match operation.body {
            Body::Json(shapes, _) => Some(shapes),
            _ => None,
        });
        let answers = answers::schemas();
        for shape in bodies.flatten() {
            assert_eq!(answers.get(shape.name), None, "a body and an answer have one name");
        }
        let ids: BTreeSet<String> = OPERATIONS.iter().map(Operation::id).collect();
        assert_eq!(ids.len(), OPERATIONS.len(), "each has a name of its own");
    }

    #[test]
    fn every_schema_that_is_named_is_there_and_every_other_is_named() {
        let all = answers::schemas();
        let text = all.to_string();
        let named: BTreeSet<&str> = OPERATIONS
            .iter()
            .flat_map(|operation| {
                let answer = match operation.answer {
                    Answer::Json(name) | Answer::Streamed(name, _) => Some(name),
                    Answer::Other(_) | Answer::Either(_) => None,
                };
                answer.into_iter().chain([operation.error()])
            })
            .collect();
        let schemas = all.as_object().unwrap();
        for name in &named {
            assert!(schemas.contains_key(*name), "{name}");
        }
        for name in schemas.keys() {
            assert!(named.contains(name.as_str()) || text.contains(&format!("schemas/{name}\"")), "{name}");
        }
    }

    #[test]
    fn hints_stand_in_the_objects_that_have_them() {
        let Body::Json([shape], hints) = OPERATIONS.iter().find(|one| one.path == "/v1/chat/completions").unwrap().body
        else {
            panic!("a chat has a body")
        };
        let text = with_hints(shape, hints).to_string();
        for field in ["metadata", "include_obfuscation", "verbosity"] {
            assert!(text.contains(&format!("\"{field}\":{{\"anyOf\"")), "{field}");
        }
    }
}
