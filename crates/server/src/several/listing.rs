//! What is told of all models: lists of those in memory and of those that could be, as each API has them.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{MatchedPath, Request};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use engine::UnixNanos;
use residency::{Place, Standing};
use serde_json::{Value, json};
use telemetry::metrics::limit_percent;
use telemetry::time_format;
use transport::error::{ApiError, ErrorFormat};
use transport::json::json_body;
use transport::query;

use super::{KnownModel, Several, all_metrics, text_of};
use crate::app::App;
use crate::ollama;

/// One of the lists.
pub(super) async fn answer(app: &Arc<App>, several: &Arc<Several>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or_else(String::new, |path| path.as_str().to_owned());
    match &*route {
        "/metrics" => all_metrics(app, several, request, next).await,
        "/v1/models/{*model}" => one(app, several, request, next).await,
        "/v1/models" if ErrorFormat::are_anthropics(request.headers()) => anthropics(several, request, next).await,
        "/api/tags" | "/api/ps" => ollamas(app, several, &route, request, next).await,
        _ => openais(several, request, next).await,
    }
}

/// The list of the first model, with what `more` makes of it.
async fn with_more(request: Request, next: Next, more: impl FnOnce(&mut Value)) -> Response {
    let response = next.run(request).await;
    if response.status() != StatusCode::OK {
        return response;
    }
    let Ok(mut list) = serde_json::from_str(&text_of(response.into_body()).await) else {
        return ApiError::internal().into_response();
    };
    more(&mut list);
    json_body(list.to_string())
}

async fn openais(several: &Arc<Several>, request: Request, next: Next) -> Response {
    let all = several.all().await;
    with_more(request, next, |list| {
        let Some(cards) = list["data"].as_array_mut() else { return };
        for card in cards.iter_mut() {
            card["status"] = json!({"value": "loaded"});
        }
        for (model, id) in &all {
            cards.extend(model.names.iter().map(|name| card(name, model, &several.manager.standing(*id))));
        }
    })
    .await
}

/// Their list has pages: the others stand behind the last of the first model's names.
async fn anthropics(several: &Arc<Several>, request: Request, next: Next) -> Response {
    let all = several.all().await;
    with_more(request, next, |list| {
        if list["has_more"] != false {
            return;
        }
        let Some(cards) = list["data"].as_array_mut() else { return };
        cards.extend(all.iter().flat_map(|(model, _)| model.names.iter().map(|name| anthropics_card(name, model))));
        let last = cards.last().map_or(Value::Null, |card| card["id"].clone());
        list["last_id"] = last;
    })
    .await
}

fn anthropics_card(name: &str, model: &KnownModel) -> Value {
    json!({
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": rfc3339(model.changed),
        "max_input_tokens": model.context,
        "max_tokens": model.context,
        "lifecycle": "active",
        "deprecated_at": null,
        "retires_at": null,
        "capabilities": null,
        "line": null,
    })
}

async fn one(app: &App, several: &Arc<Several>, request: Request, next: Next) -> Response {
    let path = request.uri().path().trim_start_matches("/v1/models/").to_owned();
    // Read as a path: in a query these mean something else.
    let in_a_query = format!("name={}", path.replace('+', "%2B").replace('&', "%26"));
    let name = query::pairs(&in_a_query).next().map_or_else(String::new, |(_, name)| name.into_owned());
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return next.run(request).await;
    }
    match several.find(&name).await {
        Some((model, _)) if ErrorFormat::are_anthropics(request.headers()) => {
            json_body(anthropics_card(&name, &model).to_string())
        }
        Some((model, id)) => json_body(card(&name, &model, &several.manager.standing(id)).to_string()),
        None => {
            let response = next.run(request).await;
            several.with_near_names(app, &name, response).await.unwrap_or_else(ApiError::into_response)
        }
    }
}

fn card(name: &str, model: &KnownModel, standing: &Standing) -> Value {
    json!({
        "id": name,
        "object": "model",
        "created": model.changed,
        "owned_by": "twostroke",
        "root": model.names[0],
        "parent": null,
        "max_model_len": model.context,
        "status": status(standing),
    })
}

/// llama.cpp's words, with why it failed and how far it is.
fn status(standing: &Standing) -> Value {
    let mut status = json!({"value": word(&standing.place)});
    if let Some(percent) = standing.percent {
        status["percent"] = percent.into();
    }
    if let Place::Failed { why, .. } = &standing.place {
        status["why"] = why.as_str().into();
    }
    status
}

fn word(place: &Place) -> &'static str {
    match place {
        Place::Cold => "unloaded",
        Place::Loading { .. } => "loading",
        Place::Serving { closing: false, .. } => "loaded",
        Place::Serving { closing: true, .. } | Place::Leaving => "unloading",
        Place::Failed { .. } => "failed",
    }
}

async fn ollamas(app: &Arc<App>, several: &Arc<Several>, route: &str, request: Request, next: Next) -> Response {
    let (all, is_ps) = (several.all().await, route == "/api/ps");
    let (now, requests) = (app.now(), app.engine.health().open_requests);
    with_more(request, next, |list| {
        let Some(entries) = list["models"].as_array_mut() else { return };
        if is_ps {
            for entry in entries.iter_mut() {
                entry["state"] = json!({"value": "loaded"});
                (entry["requests"], entry["waiting"], entry["pinned"]) = (requests.into(), 0.into(), true.into());
            }
        }
        for (model, id) in &all {
            let standing = several.manager.standing(*id);
            let is_here = !matches!(standing.place, Place::Cold | Place::Failed { .. });
            if !is_ps {
                let mut entry = entry(model);
                entry["modified_at"] = rfc3339(model.changed).into();
                entry["size"] = model.file_bytes.into();
                entries.push(entry);
            } else if is_here {
                let mut entry = running(model, &standing, now);
                let guest = several.manager.peek(*id).map(|guest| guest.app);
                entry["limit_percent"] = guest.map(|app| limit_percent(&*app.engine, &app.model.demands)).into();
                entries.push(entry);
            }
        }
    })
    .await
}

/// An entry of `/api/ps`: Ollama's fields, and where the model is.
fn running(model: &KnownModel, standing: &Standing, now: u64) -> Value {
    let mut entry = entry(model);
    let leaves = standing.leaves_in.unwrap_or(Duration::MAX).as_secs();
    entry["size"] = standing.bytes.into();
    entry["size_vram"] = 0.into();
    // The last moment that there is a number for is never.
    entry["expires_at"] = match now.checked_add(leaves).filter(|at| *at < u64::MAX / 1_000_000_000) {
        Some(at) => rfc3339(at),
        None => time_format::rfc3339(UnixNanos(u64::MAX)),
    }
    .into();
    entry["context_length"] = model.context.into();
    entry["state"] = status(standing);
    let (open, waiting) = standing.requests;
    (entry["requests"], entry["waiting"], entry["pinned"]) = (open.into(), waiting.into(), standing.pinned.into());
    if let Some(leaves_in) = standing.leaves_in {
        entry["idle_seconds_left"] = leaves_in.as_secs().into();
    }
    entry
}

fn entry(model: &KnownModel) -> Value {
    let name = ollama::tagged(&model.names[0]);
    json!({"name": name, "model": name, "digest": ollama::name_digest(&name), "details": details(model)})
}

fn details(model: &KnownModel) -> Value {
    json!({
        "parent_model": "",
        "format": "",
        "family": model.family,
        "families": [model.family],
        "parameter_size": ollama::short(model.parameters),
        "quantization_level": model.weights.to_uppercase(),
    })
}

/// `POST /api/show` of a model that is not in memory: what its files say. Nothing is loaded for it.
pub(super) fn shown(model: &KnownModel) -> Response {
    let arch = &model.family;
    let shown = json!({
        "modelfile": format!("# served by twostroke\nFROM {}\n", model.names[0]),
        "parameters": "",
        "template": "",
        "details": details(model),
        "model_info": {
            "general.architecture": arch,
            "general.basename": model.names[0],
            "general.parameter_count": model.parameters,
            format!("{arch}.context_length"): model.context,
        },
        "capabilities": [if model.is_encoder { "embedding" } else { "completion" }],
        "modified_at": rfc3339(model.changed),
    });
    json_body(shown.to_string())
}

/// What a request is told that asked for nothing but that a model leave.
pub(super) fn unloaded(app: &App, name: &str, route: &str) -> Response {
    let created = time_format::rfc3339(app.engine.unix(app.engine.now()));
    let mut line = json!({"model": name, "created_at": created, "done": true, "done_reason": "unload"});
    match route {
        "/api/chat" => line["message"] = json!({"role": "assistant", "content": ""}),
        _ => line["response"] = "".into(),
    }
    json_body(line.to_string())
}

fn rfc3339(seconds: u64) -> String {
    time_format::rfc3339(UnixNanos(seconds * 1_000_000_000))
}
