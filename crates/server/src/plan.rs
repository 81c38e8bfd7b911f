//! `GET /plan` and `GET /plan/presets`: what `twostroke plan` tells, over HTTP, with this server's own model and
//! machine as `here`. The page's calculator asks it at every move of a slider: the work is some hundred microseconds,
//! ten milliseconds where targets ask for machines, and touches nothing of the engine but what was known at its start.
//!
//! Parameters are those of [`plan::Question`]; `format` is `json` or `svg`. A server never reads a file for a question,
//! so a model is `here`, one that planning knows, or a number of parameters; `POST /plan` takes another one's
//! `config.json` as the body.

use std::borrow::Cow;

use axum::extract::RawQuery;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use model::ModelConfig;
use plan::{Here, Loaded, Question};
use roofline::ModelShape;
use transport::error::{ApiError, ApiResult};
use transport::json::json_body;
use transport::query;

use crate::app::App;
use crate::ask::{JsonRequest, UrlRequest};

/// What is known by now of this machine and of what runs on it.
fn here(app: &App) -> Here {
    let (engine, name) = (&app.engine, &app.model.names[0]);
    let model = engine.model();
    let demands = model.demands();
    let weights = demands.weight_bytes as f64;
    Here {
        limits: engine.device_limits(),
        // As if this model were not there.
        memory: engine::available_memory().map(|free| free as f64 + weights),
        model: Some(Loaded {
            name: name.clone(),
            unread_bytes: demands.shape.unread_bytes(demands.weights),
            demands,
            cost: engine.cost(),
            doubt: model.calibrated.as_ref().and_then(|calibrated| calibrated.doubt),
            kv_tokens: Some((model.num_blocks * model.block_size) as u64),
            rows: model.max_num_batched_tokens,
        }),
    }
}

/// The names that there are.
pub(crate) async fn presets(request: UrlRequest) -> ApiResult<Response> {
    request.in_turn(|app| Ok(json_body(plan::presets(&here(app)).to_string()))).await
}

pub(crate) async fn answer(request: UrlRequest) -> ApiResult<Response> {
    let query = request.query.clone();
    request.in_turn(move |app| answered(&query, None, app)).await
}

/// The answer for the model whose `config.json` is the body.
pub(crate) async fn answer_of_config(RawQuery(query): RawQuery, mut request: JsonRequest) -> ApiResult<Response> {
    let query = query.unwrap_or_default();
    let planned = move |config: serde_json::Value, app: &App| {
        let config = ModelConfig::parse(&config.to_string()).map_err(|problem| {
            ApiError::bad_request(format!("The body is not a config.json to plan with: {problem}."))
        })?;
        answered(&query, Some(config.shape()), app)
    };
    request.read(planned).await
}

/// What a configuration is called where a model has a name.
const CONFIG: &str = "config.json";

fn answered(query: &str, shape: Option<ModelShape>, app: &App) -> ApiResult<Response> {
    let pairs: Vec<(Cow<'_, str>, Cow<'_, str>)> = query::pairs(query).collect();
    let refused = |problem: plan::Problem| {
        let message = format!("'{}': {}.", problem.field, problem.problem);
        ApiError::bad_request(message).with_param(problem.field)
    };
    let question = Question::from_parameters(pairs.iter().map(|(name, value)| (&**name, &**value))).map_err(refused)?;
    let here = here(app);
    let plan = match shape {
        None => question.plan(&here),
        Some(_) if pairs.iter().any(|(name, _)| name == "model") => {
            let message = "'model': the body is the model; leave it out.";
            return Err(ApiError::bad_request(message).with_param("model"));
        }
        Some(shape) => question.plan(&here.with_model(CONFIG, shape, &question)),
    };
    let plan = plan.map_err(refused)?;
    let format = pairs.iter().find(|(name, _)| name == "format").map_or("json", |(_, value)| value);
    match format {
        "json" => Ok(json_body(plan.json().to_string())),
        "svg" => {
            let headers =
                [(header::CONTENT_TYPE, "image/svg+xml"), (header::CONTENT_SECURITY_POLICY, "default-src 'none'")];
            Ok((headers, plan.svg()).into_response())
        }
        _ => Err(ApiError::bad_request("'format': not one of json, svg.").with_param("format")),
    }
}
