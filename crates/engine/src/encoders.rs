//! Encoders behind the engine: how a text or a pair of texts becomes tokens. `encoder_options.rs` has the options that
//! hold.
//!
//! ```text
//! text --tokenize--> a request without an answer --schedule--> all its rows in one step --encoder--> Event::Embedding
//! ```
//! A request of an encoder is a prompt of which the vector is wanted. The scheduler gives it all of its rows in one
//! step ([`Limits::whole_prompts`](scheduler::Limits)), because its tokens see each other; nothing of it stays behind.

use model::{Batch, EncoderConfig};
use protocol::TokenId;
use scheduler::{Rows, Scheduler, SeqId, Step};

use crate::ModelInfo;
use crate::prompt::{
    self, Prompt, RawRequest, Rejection, check_bytes, check_length, no_tokenizer, token_id, truncation,
};

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
    let Some(encoder) = &model.config.encoder else { return Ok((prompt::tokenize(raw, model)?, None)) };
    let texts = match &raw.prompt {
        Prompt::Text(text) => [Some(text), None],
        Prompt::Pair(first, second) => [Some(first), Some(second)],
        Prompt::Tokens(_) | Prompt::Chat(_) => return Ok((prompt::tokenize(raw, model)?, None)),
    };
    let most = truncation(raw, model)?.map(|most| most.min(model.max_model_len));
    let tokenizer = model.tokenizer.as_ref().ok_or_else(|| no_tokenizer("prompt"))?;
    if let (Some(per_token), None) = (tokenizer.max_bytes_per_token(), most) {
        let bytes = texts.iter().flatten().map(|text| text.len()).sum();
        check_bytes("prompt", bytes, per_token, model)?;
    }
    let (tokens, second_from) = match (texts, most) {
        ([Some(first), Some(second)], most) => match &encoder.template {
            None => tokenizer.encode_pair(first, second, most),
            Some(template) => template.fill([first, second], most, |text| tokenizer.encode(text, false)),
        },
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
