//! The shapes of answers, exactly as OpenAI's clients read them, with vLLM's additions (`stop_reason`, `token_ids`,
//! `prompt_logprobs`) and two of our own (`timings`, `receipt`).

use std::borrow::Cow;

use engine::receipt::Receipt;
use engine::{AccumulationOrder, ModelInfo, PromptProgress, Timings};
use serde::Serialize;
use serde_json::Value;
use telemetry::answer_timings::WireTimings;

use crate::answers::{Adjustments, Totals};
use crate::openai::logprobs::{ChatLogprobs, TextLogprobs};
use crate::openai::transfer::WireTransfer;

/// What every answer says about itself. `C`: a choice, whole or a piece of one.
#[derive(Serialize)]
pub(crate) struct Envelope<'a, C> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    pub(crate) system_fingerprint: Cow<'static, str>,
    /// The tier that served it, where one was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) service_tier: Option<&'static str>,
    pub(crate) choices: Vec<C>,
    /// Outer `None`: the field is absent. Inner `None`: it is `null`, as in the chunks before the one that has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Option<WireUsage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timings: Option<WireTimings>,
    #[serde(flatten)]
    pub(crate) adjustments: Option<&'a Adjustments>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_progress: Option<WireProgress>,
    /// As `usage`: whole answers have what was not asked for as `null`, as vLLM's do. Clients read it unasked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_logprobs: Option<Option<Vec<Value>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<Option<Vec<u32>>>,
    /// Where the prompt was read, for the decode worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kv_transfer_params: Option<WireTransfer<'a>>,
}

/// How far a prompt is read: llama.cpp's `prompt_progress`, name for name. `cache` is part of `processed`.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct WireProgress {
    total: usize,
    cache: usize,
    processed: usize,
    time_ms: u64,
}

impl WireProgress {
    pub(crate) fn of(progress: &PromptProgress) -> WireProgress {
        let &PromptProgress { total, cached, processed, ms } = progress;
        WireProgress { total, cache: cached, processed, time_ms: ms as u64 }
    }
}

/// What decides the tokens beside the weights: this version and the order of sums of 16-bit products.
pub(crate) fn fingerprint(model: &ModelInfo) -> Cow<'static, str> {
    let name = match model.arithmetic {
        AccumulationOrder::Vdpbf16 => concat!("twostroke-", env!("CARGO_PKG_VERSION"), "-pairs"),
        AccumulationOrder::Amx => concat!("twostroke-", env!("CARGO_PKG_VERSION"), "-tiles"),
    };
    // A pair of precisions is a definition that no other server has by itself.
    model.precisions.map_or(Cow::Borrowed(name), |pair| format!("{name}-{pair}").into())
}

#[derive(Serialize)]
pub(crate) struct ChatChoice {
    pub(crate) index: usize,
    pub(crate) message: ChatMessageOut,
    pub(crate) logprobs: Option<ChatLogprobs>,
    pub(crate) finish_reason: &'static str,
    pub(crate) stop_reason: Value,
    pub(crate) token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) receipt: Option<Receipt>,
}

#[derive(Serialize)]
pub(crate) struct ChatMessageOut {
    pub(crate) role: &'static str,
    /// `null` beside calls alone.
    pub(crate) content: Option<String>,
    pub(crate) refusal: Option<()>,
    /// What was thought, under both names that clients look for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<WireCall>,
}

impl Default for ChatMessageOut {
    fn default() -> ChatMessageOut {
        ChatMessageOut {
            role: "assistant",
            content: None,
            refusal: None,
            reasoning: None,
            reasoning_content: None,
            tool_calls: Vec::new(),
        }
    }
}

/// A call of a tool, whole or a piece.
#[derive(Serialize)]
pub(crate) struct WireCall {
    /// Which call of its answer; pieces have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) r#type: Option<&'static str>,
    pub(crate) function: CallFunction,
}

#[derive(Serialize)]
pub(crate) struct CallFunction {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// A piece of JSON, or all of it.
    pub(crate) arguments: String,
}

#[derive(Default, Serialize)]
pub(crate) struct ChatChunk {
    pub(crate) index: usize,
    pub(crate) delta: Delta,
    pub(crate) logprobs: Option<ChatLogprobs>,
    pub(crate) finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stop_reason: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) receipt: Option<Receipt>,
}

#[derive(Default, Serialize)]
pub(crate) struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<WireCall>,
}

/// A choice of `/v1/completions`, whole or a piece: they have one shape.
#[derive(Default, Serialize)]
pub(crate) struct TextChoice {
    pub(crate) index: usize,
    pub(crate) text: String,
    pub(crate) logprobs: Option<TextLogprobs>,
    pub(crate) finish_reason: Option<&'static str>,
    pub(crate) stop_reason: Value,
    /// These three as in [`Envelope`]: `null` in a whole answer and absent in a stream, where not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_logprobs: Option<Option<Vec<Value>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Option<Vec<u32>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<Option<Vec<u32>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) receipt: Option<Receipt>,
}

#[derive(Clone, Copy, Serialize)]
pub(crate) struct WireUsage {
    pub(crate) prompt_tokens: usize,
    pub(crate) completion_tokens: usize,
    pub(crate) total_tokens: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_tokens_details: Option<PromptDetails>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) completion_tokens_details: Option<CompletionDetails>,
}

#[derive(Clone, Copy, Serialize)]
pub(crate) struct PromptDetails {
    pub(crate) cached_tokens: usize,
}

#[derive(Clone, Copy, Serialize)]
pub(crate) struct CompletionDetails {
    /// Tokens of thoughts, where the model can think.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_tokens: Option<usize>,
    #[serde(flatten)]
    prediction: Option<PredictionDetails>,
}

/// Drafts that were checked: the accepted ones, and the rejected ones, which are in no count. Only for a request with a
/// prediction: the server's own drafts do not belong into usage, where equal requests have equal counts; `timings` has
/// them.
#[derive(Clone, Copy, Serialize)]
struct PredictionDetails {
    accepted_prediction_tokens: usize,
    rejected_prediction_tokens: usize,
}

impl PredictionDetails {
    fn of(timings: &Timings) -> PredictionDetails {
        let &Timings { drafted_tokens, accepted_tokens, .. } = timings;
        PredictionDetails {
            accepted_prediction_tokens: accepted_tokens,
            rejected_prediction_tokens: drafted_tokens - accepted_tokens,
        }
    }
}

impl WireUsage {
    /// In the middle of a stream.
    pub(crate) fn so_far(prompt_tokens: usize, completion_tokens: usize) -> WireUsage {
        WireUsage {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: None,
            completion_tokens_details: None,
        }
    }

    /// `predicted`: there was a prediction, so its client wants to know what became of it.
    pub(crate) fn of(totals: &Totals, predicted: bool) -> WireUsage {
        let Totals { usage, timings, thought_tokens, .. } = totals;
        let prediction = predicted.then(|| PredictionDetails::of(timings));
        let reasoning_tokens = *thought_tokens;
        let has_details = prediction.is_some() || reasoning_tokens.is_some();
        WireUsage {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            total_tokens: usage.prompt_tokens + usage.completion_tokens,
            prompt_tokens_details: Some(PromptDetails { cached_tokens: usage.cached_tokens }),
            completion_tokens_details: has_details.then_some(CompletionDetails { reasoning_tokens, prediction }),
        }
    }
}
