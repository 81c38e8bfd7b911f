//! The routes.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use engine::sampling::{SamplingParams, options};
use engine::{Chat, Observe, RequestId, RequestSummary};
use serde_json::{Map, Value, json};
use telemetry::requests::RequestLine;
use telemetry::timeline::RequestTrace;
use text::chat_template::TemplateOptions;
use transport::error::{ApiError, ApiResult};
use transport::fields::{Fields, as_written, wrong_type};
use transport::json::{fresh_json_body, json_body};

use super::shapes::SCALE;
use super::{completion, infill as gaps};
use crate::app::App;
use crate::ask::{JsonRequest, UrlRequest};
use crate::endpoint::Endpoint;
use crate::openai::{chat, hints, params, shapes, tools};

/// `POST /completion`.
pub(crate) async fn complete(request: JsonRequest) -> ApiResult<Response> {
    request.ask(Endpoint::LlamaCompletion, completion::read).await
}

/// `POST /infill`.
pub(crate) async fn infill(request: JsonRequest) -> ApiResult<Response> {
    request.ask(Endpoint::Infill, gaps::read).await
}

/// `GET /props`: what is served, and how.
pub(crate) async fn props(State(app): State<Arc<App>>) -> Response {
    let model = app.engine.model();
    let tokenizer = model.tokenizer.as_ref();
    let drawn = SamplingParams::default().resolve(&model.generation_defaults.sampling).unwrap_or_default();
    let of_model = options().filter(|option| option.of_model.is_some()).map(|option| {
        let value = (option.value)(&drawn);
        (option.llama_name, if option.is_integer() { json!(value as u32) } else { as_written(value as f32) })
    });
    let others = ["repeat_last_n", "n_predict"].map(|name| (name, json!(-1)));
    let template = model.chat_template.as_ref().map(|template| template.source());
    let body = json!({
        "default_generation_settings": {
            "n_ctx": model.max_model_len,
            "params": Value::from_iter(of_model.chain(others)),
        },
        "total_slots": model.max_num_seqs,
        // The path of its files is not disclosed.
        "model_path": model.name,
        "model_alias": app.model.names[0],
        "chat_template": template.unwrap_or_default(),
        "bos_token": tokenizer.and_then(|tokenizer| tokenizer.bos_token()).unwrap_or_default(),
        "eos_token": tokenizer.and_then(|tokenizer| tokenizer.eos_token()).unwrap_or_default(),
        "modalities": {"vision": false, "audio": false},
        "build_info": concat!("twostroke-", env!("CARGO_PKG_VERSION")),
    });
    json_body(body.to_string())
}

/// `GET /slots`: the caller's requests that wait and run. Those of others are not shown, not even as slots in use.
pub(crate) async fn slots(request: UrlRequest) -> ApiResult<Response> {
    let tenant = request.caller.tenant;
    let listed =
        move |app: &App| Ok(Value::from(open_slots(&*app.engine, &app.telemetry.registry.of(tenant))).to_string());
    Ok(fresh_json_body(request.in_turn(listed).await?))
}

fn open_slots(engine: &dyn Observe, traces: &[Arc<RequestTrace>]) -> Vec<Value> {
    let known: HashMap<RequestId, RequestSummary> =
        engine.requests().into_iter().map(|summary| (summary.request, summary)).collect();
    let lines = traces.iter().filter_map(|trace| Some((trace, RequestLine::of(trace, &|id| known.get(&id))?)));
    let open = lines.filter(|(_, line)| ["waiting", "running"].contains(&line.state));
    let slot = |(id, (trace, line)): (usize, (&Arc<RequestTrace>, RequestLine<'_>))| {
        json!({
            "id": id,
            "request": trace.response_id,
            "n_ctx": engine.model().max_model_len,
            "is_processing": line.state == "running",
            "n_prompt_tokens": line.prompt_tokens,
            "n_prompt_tokens_cache": line.cached_tokens,
            "next_token": [{"has_next_token": true, "n_decoded": line.generated}],
        })
    };
    open.enumerate().map(slot).collect()
}

/// `GET /lora-adapters`: those that there are. None is in any answer that does not ask for it by its name.
pub(crate) async fn loras(State(app): State<Arc<App>>) -> Response {
    let adapters = app.engine.model().adapters.list().into_iter().enumerate();
    let told =
        adapters.map(|(id, adapter)| json!({"id": id, "path": adapter.path, "name": adapter.name, "scale": 0.0}));
    json_body(Value::from_iter(told).to_string())
}

/// `POST /lora-adapters`: one scale for all requests. Here each request says by its model which adapter it wants.
pub(crate) async fn scale_loras(mut request: JsonRequest) -> ApiResult<Response> {
    Ok(json_body(request.read(scale).await?))
}

fn scale(body: Value, app: &App) -> ApiResult<String> {
    let Value::Array(items) = body else {
        return Err(ApiError::bad_request("The request body must be a list of adapters and their scales."));
    };
    let adapters = app.engine.model().adapters.list();
    for (at, item) in items.into_iter().enumerate() {
        let mut item = Fields::nested(item, format!("[{at}]"), &SCALE)?;
        let id = item.integer("id")?.and_then(|id| adapters.get(usize::try_from(id).ok()?));
        let adapter = id.ok_or_else(|| wrong_type(item.name("id"), "one of those that GET /lora-adapters tells"))?;
        if item.number("scale")? != Some(0.0) {
            let why = format!("an adapter is asked for as a model, by its name: \"model\": \"{}\"", adapter.name);
            return Err(ApiError::unsupported(item.name("scale"), why));
        }
    }
    Ok(json!({"success": true}).to_string())
}

/// `POST /apply-template`: a conversation as the text that the model reads.
pub(crate) async fn apply_template(mut request: JsonRequest) -> ApiResult<Response> {
    Ok(json_body(request.read(render).await?))
}

fn render(mut body: Value, app: &App) -> ApiResult<String> {
    hints::take(&mut body, &shapes::TEMPLATE)?;
    let mut fields = Fields::of(body, &shapes::TEMPLATE)?;
    params::model(&mut fields, app)?;
    let (_, definitions, ..) = tools::read(&mut fields)?.told();
    let chat = chat::prompt(&mut fields, definitions, Map::new(), app)?;
    fields.finish()?;
    let model = app.engine.model();
    let own = model.chat_template.as_ref().ok_or_else(|| chat::no_template(model, ""))?;
    let now = Some(app.now() as i64);
    let Chat { add_generation_prompt, template_kwargs: kwargs, .. } = chat;
    let options = TemplateOptions { add_generation_prompt, continue_final_message: false, kwargs, now };
    let other = chat::other_template(own, chat.template.as_deref())?;
    let text =
        other.as_ref().unwrap_or(own).render(&chat.messages, &options).map_err(|error| ApiError::from(&error))?;
    Ok(json!({"prompt": text}).to_string())
}

/// `GET /tokenizer_info`, vLLM's: what `tokenizer_config.json` says, as far as this server reads it.
pub(crate) async fn tokenizer_info(request: UrlRequest) -> ApiResult<Response> {
    let told = |app: &App| {
        let model = app.engine.model();
        let no_tokenizer = || ApiError::bad_request("This model has no tokenizer.");
        let tokenizer = model.tokenizer.as_ref().ok_or_else(no_tokenizer)?;
        let body = json!({
            // Whatever the checkpoint calls it, `tokenizer.json` is what is read.
            "tokenizer_class": "PreTrainedTokenizerFast",
            "chat_template": model.chat_template.as_ref().map(|template| template.source()),
            "bos_token": tokenizer.bos_token(),
            "eos_token": tokenizer.eos_token(),
            "added_tokens": tokenizer.added_tokens(),
            "vocab_size": tokenizer.vocab_size(),
            "model_max_length": model.max_model_len,
        });
        Ok(body.to_string())
    };
    Ok(json_body(request.in_turn(told).await?))
}

/// `GET /load`, vLLM's: waiting and running requests, of all keys.
pub(crate) async fn load(State(app): State<Arc<App>>) -> Response {
    json_body(json!({"server_load": app.engine.health().open_requests}).to_string())
}
