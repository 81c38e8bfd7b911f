//! `GET /openapi.json` and `GET /docs`: what this server takes and answers ([`transport::openapi`]).
//!
//! ```text
//! routes::TABLE ------------------- every one has an operation, and no other --+
//! shapes (what readers read by), hints ----------------------------------------+--> the document --> /openapi.json
//! answers (schemas, which Schemathesis holds answers to) ----------------------+              \---> /docs
//! ```
//! Which values go together the reference in `docs/guide` says. The document holds nothing of the model or of requests,
//! so no key is asked for it where the page is there.

mod answers;
mod operations;

use std::sync::Arc;

use axum::extract::State;
use axum::http::Method;
use axum::response::Response;
use transport::openapi::{self, Rendered, Service};
use transport::query::QueryParameter;

use self::operations::OPERATIONS;
use crate::app::App;

/// Paths of the document and its page.
pub(crate) const PATHS: [&str; 2] = ["/openapi.json", "/docs"];

const ABOUT: &str = "An LLM inference server: OpenAI's, Anthropic's and Ollama's APIs, llama-server's and vLLM's routes, and \
    this server's own.";

/// What the URL of a route may ask. The files of the page and what is refused whatever it asks have no operation, and
/// know no names.
pub(crate) fn query(method: &Method, path: &str) -> &'static [QueryParameter] {
    let operation = OPERATIONS.iter().find(|operation| operation.path == path && operation.method == method.as_str());
    operation.map_or(&[], |operation| operation.query)
}

pub(crate) async fn document(State(app): State<Arc<App>>) -> Response {
    rendered(&app).document()
}

pub(crate) async fn docs(State(app): State<Arc<App>>) -> Response {
    rendered(&app).page()
}

/// The document of a server with these flags.
fn rendered(app: &App) -> &Rendered {
    app.openapi.get_or_init(|| {
        let service = Service {
            title: "twostroke",
            version: env!("CARGO_PKG_VERSION"),
            about: ABOUT,
            root_path: &app.settings.root_path,
            wants_keys: app.keys.are_wanted(),
        };
        let operations = OPERATIONS.iter().filter(|operation| app.settings.ui || !operation.path.starts_with("/live/"));
        Rendered::new(&openapi::document(&service, operations, answers::schemas()))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use transport::openapi::{Answer, Body, Operation, with_hints};

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
                answer.into_iter().chain([operation.api.error])
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
