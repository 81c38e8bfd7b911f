//! What is served, as Ollama describes models.
//!
//! There is one, under each of its names. What Ollama reads off a file is here what is known of the model in memory:
//! sizes are those of its weights there, and the digest is one of its name, shape and precision.

use std::fmt::Write as _;

use engine::UnixNanos;
use engine::sampling::{SamplingOption, options};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use telemetry::metrics::limit_percent;
use telemetry::time_format;
use text::infill::InfillMarks;
use transport::error::ApiError;
use transport::fields::{Fields, as_written};

use super::options::{served, tagged};
use super::shapes::SHOW;
use crate::app::App;

/// `GET /api/tags`.
pub(super) fn tags(app: &App) -> Value {
    let entry = |name: &String| {
        let mut entry = of(app, name);
        entry["modified_at"] = started(app).into();
        entry["size"] = weight_bytes(app).into();
        entry
    };
    json!({"models": app.names().iter().map(entry).collect::<Vec<_>>()})
}

/// `GET /api/ps`: it is loaded as long as the server runs.
pub(super) fn ps(app: &App) -> Value {
    let model = app.engine.model();
    let bytes = weight_bytes(app) + model.kv_bytes as u64;
    let in_gpu = if model.device.kind == "CPU" { 0 } else { bytes };
    let entry = |name: &String| {
        let mut entry = of(app, name);
        entry["size"] = bytes.into();
        entry["size_vram"] = in_gpu.into();
        // The last moment that there is a number for.
        entry["expires_at"] = time_format::rfc3339(UnixNanos(u64::MAX)).into();
        entry["context_length"] = model.max_model_len.into();
        entry["limit_percent"] = limit_percent(&*app.engine, &app.model.demands);
        entry
    };
    json!({"models": app.names().iter().map(entry).collect::<Vec<_>>()})
}

/// `POST /api/show`.
pub(super) fn show(body: Value, app: &App) -> Result<String, ApiError> {
    let mut fields = Fields::of(body, &SHOW)?;
    let older = fields.string("name")?;
    let name = fields.string("model")?.or(older).unwrap_or_else(|| app.model.names[0].clone());
    let is_verbose = fields.boolean("verbose")?.unwrap_or(false);
    fields.finish()?;
    let name = served(app, &name).ok_or_else(|| app.unknown_model(&name))?;
    let model = app.engine.model();
    let template = model.chat_template.as_ref().map(|template| template.source()).unwrap_or_default();
    let shown = json!({
        "modelfile": format!("# served by twostroke\nFROM {name}\n"),
        "parameters": parameters(app),
        "template": template,
        "details": details(app),
        "model_info": info(app, is_verbose),
        "capabilities": capabilities(app),
        "modified_at": started(app),
    });
    Ok(shown.to_string())
}

/// What tags and ps have in common.
fn of(app: &App, name: &str) -> Value {
    let name = tagged(name);
    json!({"name": name, "model": name, "digest": digest(app, &name), "details": details(app)})
}

fn started(app: &App) -> String {
    time_format::rfc3339(UnixNanos(app.model.created * 1_000_000_000))
}

/// Of all weights in memory.
fn weight_bytes(app: &App) -> u64 {
    let demands = &app.model.demands;
    demands.weight_bytes as u64 + demands.shape.unread_bytes(demands.weights)
}

/// Tells models apart; says nothing of what is in the weights.
fn digest(app: &App, name: &str) -> String {
    let model = app.engine.model();
    name_digest(&format!("{name}\n{:?}\n{}\n{}", model.config, model.weights.name(), model.weight_bytes))
}

/// The digest of what is known of a model that is not in memory: its name.
pub(crate) fn name_digest(told: &str) -> String {
    Sha256::digest(told).iter().fold(String::new(), |mut hex, byte| {
        _ = write!(hex, "{byte:02x}");
        hex
    })
}

fn details(app: &App) -> Value {
    let model = app.engine.model();
    let family = model.config.family.name();
    json!({
        "parent_model": "",
        "format": "",
        "family": family,
        "families": [family],
        "parameter_size": short(app.model.demands.shape.parameters()),
        "quantization_level": model.weights.name().to_uppercase(),
    })
}

/// `8.0B`, `596M`.
pub(crate) fn short(parameters: u64) -> String {
    match parameters as f64 {
        many if many >= 0.9995e9 => format!("{:.1}B", many / 1e9),
        some if some >= 0.9995e6 => format!("{:.0}M", some / 1e6),
        few => format!("{:.0}K", few / 1e3),
    }
}

/// The model's own defaults, a line for each, as Ollama writes them.
fn parameters(app: &App) -> String {
    let defaults = &app.engine.model().generation_defaults.sampling;
    let line = |option: &SamplingOption| Some(format!("{:<30} {}", option.llama_name, (option.asked)(defaults)?));
    options().filter_map(line).collect::<Vec<_>>().join("\n")
}

/// What it can do.
fn capabilities(app: &App) -> Vec<&'static str> {
    let dialect = &app.model.tool_format.dialect;
    let tools = dialect.calls.is_some().then_some("tools");
    let thinking = dialect.thoughts.is_some().then_some("thinking");
    let marks = app.engine.model().tokenizer.as_ref().and_then(|tokenizer| InfillMarks::of(tokenizer));
    let insert = marks.map(|_| "insert");
    std::iter::once("completion").chain(tools).chain(insert).chain(thinking).collect()
}

/// The shape in the names of GGUF files.
fn info(app: &App, is_verbose: bool) -> Value {
    let model = app.engine.model();
    let config = &model.config;
    let arch = config.family.name();
    let mut info = Map::new();
    info.insert("general.architecture".to_owned(), arch.into());
    info.insert("general.basename".to_owned(), model.name.as_str().into());
    info.insert("general.parameter_count".to_owned(), app.model.demands.shape.parameters().into());
    let mut put = |name: &str, value: Value| _ = info.insert(format!("{arch}.{name}"), value);
    put("attention.head_count", config.num_heads.into());
    put("attention.head_count_kv", config.num_kv_heads.into());
    put("attention.key_length", config.head_dim.into());
    put("attention.layer_norm_rms_epsilon", as_written(config.rms_norm_eps));
    put("block_count", config.num_layers.into());
    // What may be asked of this server; the model's own may be longer.
    put("context_length", model.max_model_len.into());
    put("embedding_length", config.hidden_size.into());
    put("feed_forward_length", config.intermediate_size.into());
    put("vocab_size", config.vocab_size.into());
    if let Some(experts) = &config.experts {
        put("expert_count", experts.num_experts.into());
    }
    let tokenizer = model.tokenizer.as_ref();
    info.insert("tokenizer.ggml.bos_token_id".to_owned(), tokenizer.and_then(|it| it.bos_id()).into());
    info.insert("tokenizer.ggml.eos_token_id".to_owned(), tokenizer.and_then(|it| it.eos_id()).into());
    if is_verbose && let Some(tokenizer) = tokenizer {
        let tokens = (0..tokenizer.vocab_size() as u32).map(|id| tokenizer.token_name(id).unwrap_or_default());
        info.insert("tokenizer.ggml.tokens".to_owned(), tokens.collect::<Vec<_>>().into());
    }
    Value::Object(info)
}
