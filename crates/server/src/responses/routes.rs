//! The routes of `/v1/responses`.

use std::collections::HashSet;

use axum::extract::Path;
use axum::response::Response;
use serde_json::{Value, json};
use transport::error::{ApiError, ApiResult};
use transport::json::json_body;
use transport::query::{self, PAGE, Page};

use super::running::{Replay, Source};
use super::{Store, background, count, included, read};
use crate::app::App;
use crate::ask::{self, JsonRequest, UrlRequest, blocking};
use crate::endpoint::Endpoint;

/// `POST /v1/responses`.
pub(crate) async fn create(mut request: JsonRequest) -> ApiResult<Response> {
    let (mut prepared, echo) = request.read_as(Endpoint::Responses, read).await?;
    let JsonRequest { app, caller, .. } = request;
    if !echo.background {
        return ask::answer(app, &caller, prepared).await;
    }
    // No connection limits how it is read.
    let is_streamed = std::mem::take(&mut prepared.plan.delivery.stream);
    let adjustments = prepared.plan.delivery.adjustments.clone();
    let (plan, outputs) = ask::submit(&app, &caller, prepared.requests, prepared.plan).await?;
    let mut response = background::begin(app, echo, plan, outputs, is_streamed)?;
    ask::note_adjustments(response.headers_mut(), &adjustments);
    Ok(response)
}

/// `POST /v1/responses/input_tokens`.
pub(crate) async fn input_tokens(mut request: JsonRequest) -> ApiResult<Response> {
    let tenant = request.caller.tenant;
    Ok(json_body(request.read(move |body, app| count(body, app, tenant)).await?))
}

/// `GET /v1/responses/{id}`: the response, or its events.
pub(crate) async fn retrieve(request: UrlRequest, Path(id): Path<String>) -> ApiResult<Response> {
    let UrlRequest { app, caller, query } = request;
    let Wanted { events, after } = Wanted::read(&query)?;
    if !events {
        return Ok(json_body(kept(&app, move |store| Ok(store.response(caller.tenant, &id)?.to_string())).await?));
    }
    let source = kept(&app, move |store| store.events(caller.tenant, &id)).await?;
    let charge = match &source {
        Source::Ended(content) => Some(app.answers.charge_again(caller.tenant.as_ref(), content.weight())?),
        // It is charged for while it is written.
        Source::Running(_) => None,
    };
    Ok(Replay::response(source, after, charge))
}

/// What of a kept answer is wanted.
struct Wanted {
    events: bool,
    /// Those behind this number.
    after: Option<u64>,
}

impl Wanted {
    fn read(query: &str) -> ApiResult<Wanted> {
        let mut wanted = Wanted { events: false, after: None };
        for (name, value) in query::pairs(query) {
            match &*name {
                "stream" => wanted.events = query::boolean("stream", &value)?,
                "starting_after" => wanted.after = Some(query::number("starting_after", &value)?),
                // Padding, which is never there.
                "include_obfuscation" => _ = query::boolean("include_obfuscation", &value)?,
                // What was asked for when it was made is there.
                "include" | "include[]" => _ = included(&value, || name.clone().into_owned())?,
                other => return Err(query::unknown(other)),
            }
        }
        if wanted.after.is_some() && !wanted.events {
            let message = "'starting_after' has a meaning only when 'stream' is true.";
            return Err(ApiError::bad_request(message).with_param("starting_after"));
        }
        Ok(wanted)
    }
}

/// `GET /v1/responses/{id}/input_items`: the newest first, if not asked otherwise.
pub(crate) async fn input_items(request: UrlRequest, Path(id): Path<String>) -> ApiResult<Response> {
    let UrlRequest { app, caller, query } = request;
    let mut page = Page::read(&query, PAGE, &["order", "include", "include[]"])?;
    let is_rising = page.is_rising()?;
    for name in ["include", "include[]"] {
        while let Some(value) = page.take(name) {
            included(&value, || name.to_owned())?;
        }
    }
    let listed = move |store: &Store| {
        let mut items = told(&id, store.input(caller.tenant, &id)?);
        if !is_rising {
            items.reverse();
        }
        Ok(page.of(items)?.to_string())
    };
    Ok(json_body(kept(&app, listed).await?))
}

/// An input as OpenAI tells it: each item has a kind and a name that no other has, and a message's text is a part of it.
fn told(id: &str, input: Value) -> Vec<Value> {
    let items = match input {
        Value::Array(items) => items,
        text => vec![json!({"type": "message", "role": "user", "content": text})],
    };
    let mut names = HashSet::new();
    let item = |(at, item): (usize, Value)| {
        let Value::Object(mut item) = item else { return None };
        let kind = item.get("type").and_then(Value::as_str).unwrap_or("message").to_owned();
        let is_own = item.get("id").and_then(Value::as_str).is_some_and(|name| names.insert(name.to_owned()));
        if !is_own {
            item.insert("id".to_owned(), format!("{id}-{at}").into());
        }
        if kind == "message"
            && let Some(text) = item.get("content").and_then(Value::as_str)
        {
            let part = match item.get("role").and_then(Value::as_str) {
                Some("assistant") => json!({"type": "output_text", "text": text, "annotations": []}),
                _ => json!({"type": "input_text", "text": text}),
            };
            item.insert("content".to_owned(), json!([part]));
        }
        item.insert("type".to_owned(), kind.into());
        Some(Value::Object(item))
    };
    items.into_iter().enumerate().filter_map(item).collect()
}

/// `DELETE /v1/responses/{id}`.
pub(crate) async fn delete(UrlRequest { app, caller, .. }: UrlRequest, Path(id): Path<String>) -> ApiResult<Response> {
    let (tenant, asked) = (caller.tenant, id.clone());
    kept(&app, move |store| store.delete(tenant, &asked)).await?;
    Ok(json_body(json!({"id": id, "object": "response", "deleted": true}).to_string()))
}

/// `POST /v1/responses/{id}/cancel`.
pub(crate) async fn cancel(UrlRequest { app, caller, .. }: UrlRequest, Path(id): Path<String>) -> ApiResult<Response> {
    Ok(json_body(kept(&app, move |store| Ok(store.cancel(caller.tenant, &id)?.to_string())).await?))
}

/// Asks the store, which may read a file, away from the threads that serve; so is what is long written.
async fn kept<T: Send + 'static>(
    app: &App,
    ask: impl FnOnce(&Store) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let store = app.responses.clone();
    blocking(move || ask(&store)).await?
}
