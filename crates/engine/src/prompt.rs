//! What is asked for, as it was received, and how its prompt becomes tokens.
//!
//! ```text
//! Text, Pair --tokenizer--> tokens        Chat --template, tokenizer--> tokens        Tokens, as they are
//! ```

use std::ops::Range;
use std::sync::Arc;

use grammar::Rule;
use model::ModelConfig;
use protocol::sampling::SamplingParams;
use protocol::{ServiceClass, TokenId};
use serde_json::{Map, Value};
use text::chat_template::{ChatMessage, TemplateOptions};

use crate::handoff::RemoteRole;
use crate::{ModelInfo, encoders};

/// Most log probabilities per token, unless the entry point says otherwise ([`RawRequest::max_logprobs`]).
pub const MAX_LOGPROBS: i64 = 20;
/// No token of a real vocabulary has more bytes than this: longer messages are refused before they are rendered.
/// A template may leave parts of them out, so the tokenizer's own longest token is no bound here.
const MAX_BYTES_PER_TOKEN: usize = 128;

/// A prompt as it was sent.
#[derive(Clone, Debug)]
pub enum Prompt {
    /// Token ids, taken as they are.
    Tokens(Vec<i64>),
    /// Text; special tokens written in it count as such, and the model's own prefix (a BOS) is added, as vLLM does.
    Text(String),
    /// Two texts that an encoder judges together.
    Pair(String, String),
    /// A conversation, rendered by the model's chat template. Special tokens inside messages stay plain text.
    Chat(Chat),
}

/// A conversation, and how it becomes a prompt.
#[derive(Clone, Debug)]
pub struct Chat {
    /// What was said so far.
    pub messages: Vec<ChatMessage>,
    /// No message was left out.
    pub is_whole: bool,
    /// Extra variables for the template.
    pub template_kwargs: Map<String, Value>,
    /// End with the opening of an assistant's turn.
    pub add_generation_prompt: bool,
    /// End inside the last message: the answer continues it.
    pub continue_final_message: bool,
    /// A template in place of the model's.
    pub template: Option<String>,
}

impl Chat {
    /// An assistant's turn comes next. A system message without a text is none: the template is rendered as
    /// without a system message.
    pub fn new(mut messages: Vec<ChatMessage>) -> Chat {
        let says = |message: &ChatMessage| message.role != "system" || message.content.as_deref() != Some("");
        let sent = messages.len();
        if messages.iter().any(says) {
            messages.retain(says);
        }
        Chat {
            is_whole: messages.len() == sent,
            messages,
            template_kwargs: Map::new(),
            add_generation_prompt: true,
            continue_final_message: false,
            template: None,
        }
    }

    /// The last message is gone on with where `can_continue`, and answered otherwise.
    pub fn continuing(self, goes_on: bool) -> Chat {
        Chat { add_generation_prompt: !goes_on, continue_final_message: goes_on, ..self }
    }
}

/// A request as it was sent: nothing in it has been checked. `None` means "not set".
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names are the field's own, as in the OpenAI and vLLM APIs")]
pub struct RawRequest {
    pub prompt: Prompt,
    /// Where messages are in a prompt of tokens ([`ModelInfo::messages_in`]), to be told.
    pub messages: Vec<Range<usize>>,
    /// -1: all that the context leaves, as without one.
    pub max_tokens: Option<i64>,
    /// A `max_tokens` beyond the context is cut to what it leaves, and not refused.
    pub cut_max_tokens: bool,
    pub min_tokens: Option<i64>,
    pub n: Option<i64>,
    pub sampling: SamplingParams,
    pub logit_bias: Vec<(i64, f64)>,
    pub seed: Option<i64>,
    pub stop: Vec<String>,
    pub stop_token_ids: Vec<i64>,
    pub ignore_eos: bool,
    pub include_stop_str_in_output: bool,
    pub skip_special_tokens: bool,
    /// Special tokens that are rendered as text although the others are skipped: the marks of thoughts and calls.
    pub shown_tokens: Arc<[TokenId]>,
    /// The tokens that answers may have; none but these.
    pub allowed_token_ids: Option<Vec<i64>>,
    /// No answer has the tokens of one of these words, alone or with a space before it.
    pub bad_words: Vec<String>,
    /// -1: of the whole vocabulary.
    pub logprobs: Option<i64>,
    /// With `logprobs`: of these tokens, in place of the most likely ones.
    pub logprob_token_ids: Vec<i64>,
    pub prompt_logprobs: Option<i64>,
    /// Most log probabilities per token that may be asked for; -1: the whole vocabulary.
    pub max_logprobs: i64,
    /// Of a longer prompt only this number of its last tokens is read; -1: those that the context has room for.
    pub truncate_prompt_tokens: Option<i64>,
    /// Nothing but the vector of its prompt is wanted ([`Event::Embedding`](crate::Event::Embedding)): `max_tokens`
    /// must be 0.
    pub embed: bool,
    pub priority: Option<i64>,
    pub class: Option<ServiceClass>,
    pub cache_salt: Option<String>,
    /// The adapter that its rows go through, by name; `None`: the model alone.
    pub adapter: Option<String>,
    /// Targets of this request alone, in milliseconds; the server's own where not set.
    pub ttft_slo_ms: Option<f64>,
    pub tpot_slo_ms: Option<f64>,
    /// Digest of the caller's API key: prefix-cache blocks are never shared between tenants.
    pub tenant: Option<[u8; 32]>,
    /// May ask for a class above the usual one.
    pub may_be_urgent: bool,
    /// Now, in seconds since 1970, for chat templates that write the date.
    pub now: Option<i64>,
    /// Whether it may use speculative decoding, where the engine does; for measuring, it changes no answer.
    pub speculate: bool,
    /// What the answer will mostly be: a source of drafts, where the engine drafts.
    pub prediction: Option<String>,
    /// What another engine generated of each answer, `None` of one that has ended; empty: nothing. The stream has what
    /// follows, to the bit what it would have had there, if that has the same model, precision and `seed`. It counts in
    /// `max_tokens` and in every rule, and not in the usage, which says what was generated here.
    pub generated: Vec<Option<Vec<i64>>>,
    /// What its answers must look like.
    pub rule: Option<Rule>,
    /// What another worker has to do with it, where the sender knows.
    pub remote_role: RemoteRole,
    /// Note what receipts of its answers are made of ([`Event::Noted`](crate::Event::Noted)).
    pub receipt: bool,
    /// Whether the stream tells how far the prompt is read ([`Event::Progress`](crate::Event::Progress)).
    pub progress: bool,
}

impl RawRequest {
    /// A request with every field left to its default.
    pub fn new(prompt: Prompt) -> RawRequest {
        RawRequest {
            prompt,
            messages: Vec::new(),
            max_tokens: None,
            cut_max_tokens: false,
            min_tokens: None,
            n: None,
            sampling: SamplingParams::default(),
            logit_bias: Vec::new(),
            seed: None,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            include_stop_str_in_output: false,
            skip_special_tokens: true,
            shown_tokens: Arc::default(),
            allowed_token_ids: None,
            bad_words: Vec::new(),
            logprobs: None,
            logprob_token_ids: Vec::new(),
            prompt_logprobs: None,
            max_logprobs: MAX_LOGPROBS,
            truncate_prompt_tokens: None,
            embed: false,
            priority: None,
            class: None,
            cache_salt: None,
            adapter: None,
            ttft_slo_ms: None,
            tpot_slo_ms: None,
            tenant: None,
            may_be_urgent: true,
            now: None,
            speculate: true,
            prediction: None,
            generated: Vec::new(),
            rule: None,
            remote_role: RemoteRole::Any,
            receipt: false,
            progress: false,
        }
    }
}

/// Why a request was refused. The message is made of fixed text and checked numbers, so it may be shown to any client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Rejection {
    /// The field at fault.
    pub param: Option<&'static str>,
    /// A machine-readable name, such as `context_length_exceeded`.
    pub code: Option<&'static str>,
    /// What was wrong and what is allowed.
    pub message: String,
}

/// The code of a rejection caused by the machine: the same request may be answered a moment later.
const MACHINE_BUSY: &str = "machine_busy";

impl Rejection {
    /// Whether nothing is wrong with what was asked: the machine had no processor, thread or process for it.
    pub fn is_machines(&self) -> bool {
        self.code == Some(MACHINE_BUSY)
    }

    /// A refusal of one field.
    pub fn of(param: &'static str, message: impl Into<String>) -> Rejection {
        Rejection { param: Some(param), code: None, message: message.into() }
    }
}

pub(crate) fn token_id(param: &'static str, id: i64, config: &ModelConfig) -> Result<TokenId, Rejection> {
    let vocab = config.vocab_size;
    if id < 0 || id as u64 >= vocab as u64 {
        return Err(Rejection::of(param, format!("token id {id} is outside the vocabulary (0 to {})", vocab - 1)));
    }
    Ok(id as TokenId)
}

pub(crate) fn tokenize(raw: &RawRequest, model: &ModelInfo) -> Result<Vec<TokenId>, Rejection> {
    let last = truncation(raw, model)?;
    let (param, mut tokens) = match &raw.prompt {
        Prompt::Tokens(ids) => {
            let ids = &ids[ids.len() - last.map_or(ids.len(), |last| last.min(ids.len()))..];
            check_length("prompt", ids.len(), model)?;
            ("prompt", ids.iter().map(|&id| token_id("prompt", id, &model.config)).collect::<Result<Vec<_>, _>>()?)
        }
        Prompt::Text(_) | Prompt::Pair(..) if model.config.encoder.is_some() => {
            return encoders::tokenize(raw, model).map(|(tokens, _)| tokens);
        }
        Prompt::Pair(..) => return Err(Rejection::of("prompt", "this model reads no pairs of texts")),
        Prompt::Text(text) => {
            let tokenizer = model.tokenizer.as_ref().ok_or_else(|| no_tokenizer("prompt"))?;
            // An upper bound, not an estimate: text beyond it cannot fit.
            if let (Some(per_token), None) = (tokenizer.max_bytes_per_token(), last) {
                check_bytes("prompt", text.len(), per_token, model)?;
            }
            ("prompt", tokenizer.encode(text, true).map_err(|error| Rejection::of("prompt", error.to_string()))?)
        }
        Prompt::Chat(chat) => ("messages", render_chat(chat, raw.now, last, model)?),
    };
    if tokens.is_empty() {
        return Err(Rejection::of(param, "the prompt is empty"));
    }
    if let Some(last) = last {
        tokens.drain(..tokens.len().saturating_sub(last));
    }
    check_length(param, tokens.len(), model)?;
    // A tokenizer may know more tokens than the model has rows for.
    tokens.into_iter().map(|id| token_id(param, i64::from(id), &model.config)).collect()
}

/// The number of the prompt's last tokens that are read, where truncation is asked for.
pub(crate) fn truncation(raw: &RawRequest, model: &ModelInfo) -> Result<Option<usize>, Rejection> {
    match raw.truncate_prompt_tokens {
        None => Ok(None),
        Some(-1) if model.config.encoder.is_some() => Ok(Some(model.max_model_len)),
        Some(-1) => {
            let answer = raw.max_tokens.map_or(1, |most| most.clamp(1, model.max_model_len as i64 - 1) as usize);
            Ok(Some(model.max_model_len - answer))
        }
        Some(last) if last >= 1 => Ok(Some(last as usize)),
        Some(last) => {
            let message = format!("truncate_prompt_tokens must be at least 1, or -1 for what fits, got {last}");
            Err(Rejection::of("truncate_prompt_tokens", message))
        }
    }
}

fn render_chat(
    chat: &Chat,
    now: Option<i64>,
    last: Option<usize>,
    model: &ModelInfo,
) -> Result<Vec<TokenId>, Rejection> {
    if chat.messages.is_empty() {
        return Err(Rejection::of("messages", "messages must not be empty"));
    }
    let bytes = chat.messages.iter().map(|message| message.content.as_deref().map_or(0, str::len)).sum();
    let tokenizer = model.tokenizer.as_ref().ok_or_else(|| no_tokenizer("messages"))?;
    if last.is_none() {
        check_bytes("messages", bytes, tokenizer.max_bytes_per_token().unwrap_or(0).max(MAX_BYTES_PER_TOKEN), model)?;
    }
    let own = model.chat_template.as_ref().ok_or_else(|| no_template(model))?;
    let other = chat.template.as_ref().map(|source| own.with_source(source)).transpose();
    let other = other.map_err(|error| Rejection::of("chat_template", error.to_string()))?;
    let options = TemplateOptions {
        add_generation_prompt: chat.add_generation_prompt,
        continue_final_message: chat.continue_final_message,
        kwargs: chat.template_kwargs.clone(),
        now,
    };
    let encoded = tokenizer.encode_chat(other.as_ref().unwrap_or(own), &chat.messages, &options);
    encoded.map_err(|error| {
        let code = error.is_machine_fault().then_some(MACHINE_BUSY);
        Rejection { code, ..Rejection::of(error.param(), error.to_string()) }
    })
}

/// Where the texts of a conversation's messages are in its prompt; none of one that is not as it was sent.
pub(crate) fn messages_in(raw: &RawRequest, prompt: &[TokenId], model: &ModelInfo) -> Vec<Range<usize>> {
    match (&raw.prompt, raw.truncate_prompt_tokens, &model.tokenizer) {
        (Prompt::Chat(chat), None, Some(tokenizer)) if chat.is_whole => tokenizer.find_messages(prompt, &chat.messages),
        _ => Vec::new(),
    }
}

fn no_template(model: &ModelInfo) -> Rejection {
    let why = match &model.template_fault {
        Some(fault) => format!("this model's chat template cannot be used ({fault})"),
        None => "this model has no chat template".to_owned(),
    };
    Rejection::of("messages", format!("{why}: use /v1/completions with a plain prompt"))
}

pub(crate) fn no_tokenizer(param: &'static str) -> Rejection {
    Rejection::of(param, "this model has no tokenizer (tokenizer.json is absent from its files): send token ids")
}

pub(crate) fn check_bytes(
    param: &'static str,
    bytes: usize,
    per_token: usize,
    model: &ModelInfo,
) -> Result<(), Rejection> {
    let most = model.max_model_len.saturating_mul(per_token);
    if bytes <= most {
        return Ok(());
    }
    let message =
        format!("the prompt has {bytes} bytes; {} tokens of context hold at most {most}", model.max_model_len);
    Err(Rejection { param: Some(param), code: Some("context_length_exceeded"), message })
}

/// The prompt must leave room for one token.
pub(crate) fn check_length(param: &'static str, tokens: usize, model: &ModelInfo) -> Result<(), Rejection> {
    if tokens < model.max_model_len || model.config.encoder.is_some() && tokens == model.max_model_len {
        return Ok(());
    }
    if model.config.encoder.is_some() {
        return Err(encoders::too_long(param, tokens, model));
    }
    let most = model.max_model_len;
    let message =
        format!("this model's context is {most} tokens; the prompt has {tokens}, which leaves no room for an answer");
    Err(Rejection { param: Some(param), code: Some("context_length_exceeded"), message })
}
