//! A beam search as a request asks for it, in vLLM's words: `use_beam_search`, with `n` beams.
//!
//! What it cannot be combined with is refused by name. Nothing is drawn in it, so how to draw is a hint: vLLM and
//! transformers take these fields and heed none of them.

use engine::sampling::{FILTERS, PENALTIES};
use engine::{ModelInfo, RawRequest, RemoteRole};
use serde_json::Value;
use transport::error::ApiError;
use transport::fields::{Fields, wrong_type};

use super::Beams;
use super::search::BeamParams;
use crate::answers::ResponseOptions;

/// Most beams: a round looks at twice as many candidates for each, which takes 64 of them about a millisecond, on a
/// thread that serves others' connections too.
const MAX_BEAMS: i64 = 64;
/// What an exponent may be: beyond it every score of a long answer is 0 or without bound.
const LENGTH_PENALTIES: std::ops::RangeInclusive<f64> = -10.0..=10.0;

/// Reads `use_beam_search` and what belongs to it. Without it there is nothing that belongs to it.
pub(crate) fn read(fields: &mut Fields) -> Result<Option<Beams>, ApiError> {
    let is_wanted = fields.boolean("use_beam_search")?.unwrap_or(false);
    let length_penalty = fields.number("length_penalty")?;
    let early_stopping = match fields.take("early_stopping") {
        Some(Value::Bool(early)) => Some(early),
        // The others' word for what `false` is here: the search ends when nothing can become better.
        Some(_) => Some(false),
        None => None,
    };
    if !is_wanted {
        let stray = [("length_penalty", length_penalty.is_some_and(|penalty| penalty != 1.0))];
        let stray = stray.into_iter().chain([("early_stopping", early_stopping == Some(true))]);
        return match stray.into_iter().find(|&(_, is_there)| is_there) {
            Some((field, _)) => {
                Err(ApiError::unsupported(field, "it belongs to a beam search: send 'use_beam_search'"))
            }
            None => Ok(None),
        };
    }
    let length_penalty = length_penalty.unwrap_or(1.0);
    if !LENGTH_PENALTIES.contains(&length_penalty) {
        let (least, most) = (LENGTH_PENALTIES.start(), LENGTH_PENALTIES.end());
        return Err(wrong_type("length_penalty", &format!("a number between {least} and {most}")));
    }
    let early_stopping = early_stopping.unwrap_or(false);
    Ok(Some(Beams::new(BeamParams { length_penalty, early_stopping })))
}

/// What the rest of the request says that a beam search has no answer to; and what changes nothing in it becomes a
/// hint.
pub(crate) fn check(raw: &mut RawRequest, delivery: &mut ResponseOptions, model: &ModelInfo) -> Result<(), ApiError> {
    let tokens_only = "of a beam search tokens end the answers: say 'stop_token_ids'";
    let unchanged = "a beam search ranks tokens by the model's own probabilities";
    let whole = "a beam search has its answers when it is over";
    let refused = [
        ("stream", delivery.stream, whole),
        ("timings_detail", delivery.timings_detail, "a beam search is many requests, each with owners of its own"),
        ("receipt", delivery.receipt, "a beam search is many requests, and none of them is the answer"),
        (
            "kv_transfer_params",
            raw.remote_role != RemoteRole::Any,
            "a beam search is many requests, each with a prompt of its own",
        ),
        ("ttft_slo_ms", raw.ttft_slo_ms.is_some(), whole),
        ("tpot_slo_ms", raw.tpot_slo_ms.is_some(), whole),
        ("stop", !raw.stop.is_empty(), tokens_only),
        ("prompt_logprobs", raw.prompt_logprobs.is_some(), "ask for them in a request of their own"),
        ("logprob_token_ids", !raw.logprob_token_ids.is_empty(), "a beam search shows the most likely tokens"),
        ("logit_bias", !raw.logit_bias.is_empty(), unchanged),
        ("allowed_token_ids", raw.allowed_token_ids.is_some(), unchanged),
        ("bad_words", !raw.bad_words.is_empty(), unchanged),
    ];
    let penalties = PENALTIES.iter().map(|option| (option.name, option.is_on(&raw.sampling), unchanged));
    for (field, is_there, why) in refused.into_iter().chain(penalties) {
        if is_there {
            return Err(ApiError::unsupported(field, why));
        }
    }
    // Twice as many top tokens as beams.
    let most = MAX_BEAMS.min(model.config.vocab_size as i64 / 2);
    if raw.n.is_some_and(|n| n > most) {
        let message = format!("'n' may be at most {most} in a beam search: it is the number of beams.");
        return Err(ApiError::bad_request(message).with_param("n"));
    }
    let asked = std::mem::take(&mut raw.sampling);
    let drawn = FILTERS.iter().map(|option| (option.name, (option.asked)(&asked).is_some()));
    let drawn = drawn.chain([("seed", raw.seed.take().is_some()), ("prediction", raw.prediction.take().is_some())]);
    delivery.adjustments.hints.extend(drawn.filter(|&(_, is_there)| is_there).map(|(field, _)| field));
    Ok(())
}

/// An answer that must have a form: `field` asks for it.
pub(crate) fn refuse_form(field: &str) -> ApiError {
    ApiError::unsupported(field, "a beam search cannot hold its answers to a form")
}
