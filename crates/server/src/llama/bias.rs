//! llama-server's `logit_bias`: pairs of a token and what is added to its logit, or an object of these.
//!
//! ```text
//! [[42, 1.5], [42, false], ["fox", -1]]      {"42": 1.5, "fox": -1}
//!   an id      never        each of its tokens
//! ```

use std::collections::BTreeMap;

use engine::ModelInfo;
use serde_json::Value;
use transport::error::ApiError;
use transport::fields::{number, wrong_type};
use transport::json::shortened;

const FIELD: &str = "logit_bias";
/// What `false` is: the least that validation takes, which no token of a model outweighs.
const NEVER: f64 = -100.0;

/// Token ids and what is added.
pub(super) fn read(value: Option<Value>, model: &ModelInfo) -> Result<Vec<(i64, f64)>, ApiError> {
    let pairs: Vec<(Value, Value)> = match value {
        None => Vec::new(),
        Some(Value::Array(items)) => items.into_iter().enumerate().map(pair).collect::<Result<_, _>>()?,
        Some(Value::Object(map)) => map.into_iter().map(|(token, bias)| (of_key(token), bias)).collect(),
        Some(_) => return Err(wrong_type(FIELD, "a list of pairs, or an object")),
    };
    let mut biases = BTreeMap::new();
    for (token, bias) in pairs {
        let bias = match bias {
            Value::Bool(false) => NEVER,
            bias => number(&bias, || FIELD.to_owned())?,
        };
        // A token that two texts have gets what is said last.
        biases.extend(ids(token, model)?.into_iter().map(|id| (id, bias)));
    }
    Ok(biases.into_iter().collect())
}

fn pair((at, item): (usize, Value)) -> Result<(Value, Value), ApiError> {
    let wrong = || wrong_type(format!("{FIELD}[{at}]"), "a pair of a token (an id, or a text) and a number or false");
    match item {
        Value::Array(items) => <[Value; 2]>::try_from(items).map(|[token, bias]| (token, bias)).map_err(|_| wrong()),
        _ => Err(wrong()),
    }
}

/// An id that is written as a name is one.
fn of_key(token: String) -> Value {
    token.parse::<i64>().map_or(Value::String(token), Value::from)
}

fn ids(token: Value, model: &ModelInfo) -> Result<Vec<i64>, ApiError> {
    match token {
        Value::String(text) => {
            let tokenizer =
                model.tokenizer.as_ref().ok_or_else(|| wrong_type(FIELD, "by token ids: there is no tokenizer"))?;
            let tokens = tokenizer.encode(&text, false).map_err(|_| {
                let message = format!("The text '{}' in '{FIELD}' cannot be read.", shortened(&text));
                ApiError::bad_request(message).with_param(FIELD)
            })?;
            Ok(tokens.into_iter().map(i64::from).collect())
        }
        id => Ok(vec![transport::fields::integer(&id, || FIELD.to_owned())?]),
    }
}
