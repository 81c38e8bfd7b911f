//! Encoders behind the engine: how a text or a pair of texts becomes tokens, and which options hold for a model that
//! generates nothing.
//!
//! ```text
//! text --tokenize--> a request without an answer --schedule--> all its rows in one step --encoder--> Event::Embedding
//! ```
//! A request of an encoder is a prompt of which the vector is wanted. The scheduler gives it all of its rows in one
//! step ([`Limits::whole_prompts`](scheduler::Limits)), because its tokens see each other; nothing of it stays behind.

use checkpoint::Checkpoint;
use model::{Batch, EncoderConfig, ModelConfig};
use protocol::TokenId;
use rates::DefaultTarget;
use scheduler::{Rows, Scheduler, SeqId, Step};

use crate::options::{EngineOptions, StartError};
use crate::validate::{Prompt, Rejection, check_bytes, check_length, no_tokenizer, token_id, truncation};
use crate::{ModelInfo, RawRequest, validate};

/// Rows of a step at least: enough for the matrix products of short texts to read weights once for many.
const ROWS: usize = 1024;

/// The options that hold for an encoder: steps hold the longest text, prefixes are not cached, and no step is
/// predicted. Refuses what concerns answers.
pub(crate) fn options_for(
    checkpoint: &Checkpoint,
    options: &EngineOptions,
    config: &ModelConfig,
) -> Result<EngineOptions, StartError> {
    let refuse = |option| {
        let problem = format!("{} is an encoder, which gives vectors of texts: leave it out", checkpoint.name());
        Err(StartError::Option { option, problem })
    };
    let is_fixed = |target| !matches!(target, DefaultTarget::None | DefaultTarget::Auto);
    let asked = [
        ("--speculative-config", options.speculation.drafters().is_some_and(|drafters| drafters.learned.is_some())),
        ("--lora-modules", !options.adapters.is_empty()),
        ("--max-loras", options.adapter_room.slots > 0),
        ("--role", options.handoff.is_some()),
        ("--kv-swap-memory", options.kv_swap_bytes > 0),
        ("--kv-swap-disk", options.kv_swap_disk.is_some()),
        ("--spot-check", options.spot_check > 0.0),
        ("--record", options.record.is_some()),
        ("--refuse-late", options.refuse_late),
        ("--ttft-slo", is_fixed(options.ttft)),
        ("--tpot-slo", is_fixed(options.tpot)),
    ];
    if let Some((option, _)) = asked.into_iter().find(|(_, is_asked)| *is_asked) {
        return refuse(option);
    }
    let longest = options.max_model_len.unwrap_or(config.context_limit).min(config.context_limit);
    Ok(EngineOptions {
        max_num_batched_tokens: options.max_num_batched_tokens.max(longest).max(ROWS).max(options.max_num_seqs),
        max_prefill_chunk: None,
        max_prefill_seqs: options.max_num_seqs,
        enable_prefix_caching: false,
        calibration: None,
        ttft: DefaultTarget::None,
        tpot: DefaultTarget::None,
        speculation: speculate::Speculation::Off,
        ..options.clone()
    })
}

/// Why nothing is generated.
pub(crate) fn no_text(encoder: &EncoderConfig) -> Rejection {
    let instead = match encoder.classifier {
        None => "this model gives vectors, it writes no text: use /v1/embeddings, /v1/rerank or /v1/score",
        Some(_) => "this model judges texts, it writes none: use /v1/rerank, /v1/score or /classify",
    };
    Rejection { param: Some("model"), code: Some("no_head"), message: instead.to_owned() }
}

/// Why a text is not read.
pub(crate) fn too_long(param: &'static str, tokens: usize, model: &ModelInfo) -> Rejection {
    let message = format!(
        "this model reads texts of at most {} tokens; this one has {tokens}: shorten it, or send \
         'truncate_prompt_tokens': -1 for its first tokens",
        model.max_model_len
    );
    Rejection { param: Some(param), code: Some("context_length_exceeded"), message }
}

/// The tokens of a prompt, and where the second text of a pair begins if the model tells the two apart.
pub(crate) fn tokenize(raw: &RawRequest, model: &ModelInfo) -> Result<(Vec<TokenId>, Option<usize>), Rejection> {
    let Some(encoder) = &model.config.encoder else { return Ok((validate::tokenize(raw, model)?, None)) };
    let texts = match &raw.prompt {
        Prompt::Text(text) => [Some(text), None],
        Prompt::Pair(first, second) => [Some(first), Some(second)],
        Prompt::Tokens(_) | Prompt::Chat(_) => return Ok((validate::tokenize(raw, model)?, None)),
    };
    let most = truncation(raw, model)?.map(|most| most.min(model.max_model_len));
    let tokenizer = model.tokenizer.as_ref().ok_or_else(|| no_tokenizer("prompt"))?;
    if let (Some(per_token), None) = (tokenizer.max_bytes_per_token(), most) {
        let bytes = texts.iter().flatten().map(|text| text.len()).sum();
        check_bytes("prompt", bytes, per_token, model)?;
    }
    let (tokens, second_from) = match (texts, most) {
        ([Some(first), Some(second)], most) => tokenizer.encode_pair(first, second, most),
        ([Some(text), _], None) => tokenizer.encode(text, true).map(|tokens| (tokens, None)),
        ([Some(text), _], Some(most)) => tokenizer.encode_first(text, most).map(|tokens| (tokens, None)),
        ([None, _], _) => unreachable!("there is a text"),
    }
    .map_err(|error| Rejection::of("prompt", error.to_string()))?;
    if tokens.is_empty() {
        return Err(Rejection::of("prompt", "the prompt is empty"));
    }
    check_length("prompt", tokens.len(), model)?;
    let tokens = tokens.into_iter().map(|id| token_id("prompt", i64::from(id), &model.config));
    Ok((tokens.collect::<Result<_, _>>()?, second_from.filter(|_| encoder.token_types > 1)))
}

/// Marks the rows of second texts in a batch of `step`.
pub(crate) fn mark_pairs(
    step: &Step,
    scheduler: &Scheduler,
    second_from: impl Fn(&Scheduler, SeqId) -> Option<usize>,
    batch: &mut Batch,
) {
    let mut is_marked = false;
    for Rows { seq, start, len, .. } in step.rows() {
        let second = second_from(scheduler, seq).unwrap_or(usize::MAX);
        is_marked |= second != usize::MAX;
        batch.token_types.extend((start..start + len).map(|position| u32::from(position >= second)));
    }
    if !is_marked {
        batch.token_types.clear();
    }
}
