//! Request validation. Every entry point (HTTP, command line, library) fills a [`RawRequest`] with what it received and
//! gets a [`ValidatedRequest`] or a [`Rejection`] that names the field. A line of a recording, which holds what once
//! passed, passes again ([`ValidatedRequest::recorded`]). Nothing outside this file makes or changes a
//! `ValidatedRequest`, so a value that could hurt the engine has no way in, whichever API or file it came through.
//!
//! All relations are checked on the *resolved* values (after defaults), and before a block or a seat is taken.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::time::Duration;

use grammar::{Grammar, Rule, TokenRule};
use kernels::DefaultFloats;
use model::{GenerationDefaults, Head, ModelConfig};
use protocol::sampling::Sampling;
use protocol::{Nanos, Priority, RequestId, ServiceClass, StopRules, Targets, TokenId};
use speculate::Prediction;
use text::detokenizer::{Detokenizer, StopStrings};
use text::tokenizer::Tokenizer;

use crate::ModelInfo;
use crate::adapters::Lease;
use crate::encoders;
use crate::handoff::RemoteRole;
pub use crate::prompt::{Chat, MAX_LOGPROBS, Prompt, RawRequest, Rejection};
use crate::prompt::{messages_in, token_id};
use crate::queue_permit::QueuePlace;
use crate::recording::AdmitEntry;

/// Most answers of one request, where `max_num_seqs` allows them: as vLLM has it.
pub const MAX_ANSWERS: i64 = 16_384;
/// Most entries of a logit bias.
pub const MAX_LOGIT_BIAS: usize = 1024;
/// Most words that no answer may have, and bytes of each.
pub const MAX_BAD_WORDS: usize = 1024;
/// Longest such word in bytes.
pub const MAX_BAD_WORD_BYTES: usize = 256;
/// Most stop strings, and bytes of each.
pub const MAX_STOP_STRINGS: usize = 16;
/// Longest stop string in bytes.
pub const MAX_STOP_BYTES: usize = 256;
/// Most stop token ids.
pub const MAX_STOP_TOKENS: usize = 128;
/// Longest cache salt in bytes.
pub const MAX_SALT_BYTES: usize = 128;
/// What a target may be: a tenth of a millisecond to an hour.
pub(crate) const SANE_TARGET: RangeInclusive<Duration> = Duration::from_micros(100)..=Duration::from_secs(3600);
/// Why a model without a head is asked in vain.
const NO_HEAD: &str = "this model has no head (lm_head.weight is absent, its weights were saved from a class without \
     one): it gives embeddings, scores and ranks, and no text";

/// What is wanted of a prompt itself, beside its answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OfPrompt {
    #[default]
    Nothing,
    /// The log probability of each token, and of this number of top tokens.
    LogProbs(u32),
    /// Of the last token what the head reads.
    Embedding,
}

impl OfPrompt {
    fn asked(raw: &RawRequest, config: &ModelConfig) -> Result<OfPrompt, Rejection> {
        let logprobs = logprob_count("prompt_logprobs", raw.prompt_logprobs, raw, config)?;
        match (logprobs, raw.embed) {
            (None, false) => Ok(OfPrompt::Nothing),
            (Some(top), false) => Ok(OfPrompt::LogProbs(top)),
            (None, true) if raw.max_tokens == Some(0) => Ok(OfPrompt::Embedding),
            (None, true) => {
                Err(Rejection::of("max_tokens", "a prompt that is embedded has no answer: max_tokens is 0"))
            }
            (Some(_), true) => {
                Err(Rejection::of("prompt_logprobs", "a prompt that is embedded has no log probabilities"))
            }
        }
    }

    /// Whether every row of the prompt has to be computed.
    pub(crate) fn needs_all(self) -> bool {
        matches!(self, OfPrompt::LogProbs(_))
    }
}

/// A request that passed validation.
#[derive(Clone, Debug)]
pub struct ValidatedRequest {
    pub(crate) prompt: Arc<[TokenId]>,
    /// Of a pair of texts that the model tells apart, where the second begins.
    pub(crate) second_from: Option<usize>,
    pub(crate) messages: Vec<Range<usize>>,
    pub(crate) num_answers: usize,
    pub(crate) stop: StopRules,
    pub(crate) stop_strings: Vec<String>,
    pub(crate) include_stop_string: bool,
    pub(crate) skip_special_tokens: bool,
    pub(crate) shown_tokens: Arc<[TokenId]>,
    pub(crate) sampling: Sampling,
    /// Drawn by the engine when the caller named none.
    pub(crate) seed: Option<u64>,
    /// What is wanted of the prompt itself.
    pub(crate) of_prompt: OfPrompt,
    pub(crate) priority: Priority,
    pub(crate) salt: u64,
    /// Its adapter, which stays where it is as long as this lives.
    pub(crate) adapter: Option<Arc<Lease>>,
    /// One number per API key.
    pub(crate) tenant: u64,
    pub(crate) targets: Targets,
    pub(crate) class: ServiceClass,
    pub(crate) speculate: bool,
    /// A recording has the drafts, not their source.
    pub(crate) prediction: Option<Arc<Prediction>>,
    /// What was generated of its answers before it came; empty: nothing.
    pub(crate) generated: Vec<Option<Vec<TokenId>>>,
    /// What its answers must look like, as it was asked and as it was understood.
    pub(crate) rule: Option<(Arc<Rule>, Grammar)>,
    /// What another worker has to do with it.
    pub(crate) remote_role: RemoteRole,
    pub(crate) receipt: bool,
    /// Its client wants the progress of its prompt. Nothing that is computed depends on it, so no recording
    /// has it.
    pub(crate) progress: bool,
    /// Whether the promise is delivered. Otherwise none is made, and promises to others learn nothing from it.
    pub(crate) is_promised: bool,
}

impl ValidatedRequest {
    /// The same client's request for the most likely token behind the prompt and `tail`, with its `top` log
    /// probabilities. For a caller that makes one answer of several requests: what concerns the whole answer (targets,
    /// promises, where its prompt is read) concerns none of them. `tail` is of the answer and shorter than it may
    /// become.
    pub fn next_token(&self, tail: &[TokenId], top: u32) -> ValidatedRequest {
        let sampling = Sampling { temperature: 0.0, logprobs: Some(top), ..Sampling::default() };
        ValidatedRequest {
            prompt: self.prompt.iter().chain(tail).copied().collect(),
            messages: Vec::new(),
            num_answers: 1,
            stop: StopRules { max_tokens: 1, min_tokens: 0, stop_token_ids: Vec::new() },
            stop_strings: Vec::new(),
            include_stop_string: false,
            sampling,
            seed: Some(0),
            of_prompt: OfPrompt::Nothing,
            // A target is of the whole answer.
            targets: Targets::default(),
            speculate: false,
            prediction: None,
            generated: Vec::new(),
            rule: None,
            remote_role: RemoteRole::Local,
            receipt: false,
            progress: false,
            is_promised: false,
            ..self.clone()
        }
    }

    /// The same to be kept: without its grammar, which may be large and can be compiled again.
    pub(crate) fn to_keep(&self) -> (ValidatedRequest, Option<Arc<Rule>>) {
        let rule = self.rule.as_ref().map(|(rule, _)| rule.clone());
        (ValidatedRequest { rule: None, ..self.clone() }, rule)
    }

    /// The same in another world of the cache and of shares, computed here: nothing of it is promised or told.
    pub(crate) fn again(&self, world: u64, rule: Option<(Arc<Rule>, Grammar)>) -> ValidatedRequest {
        let mut again = ValidatedRequest { rule, remote_role: RemoteRole::Local, ..self.clone() };
        (again.salt, again.tenant) = (self.salt ^ world, self.tenant ^ world);
        (again.receipt, again.progress, again.is_promised) = (false, false, false);
        again
    }

    /// A request for nothing but the first tokens of the prompt in the cache.
    pub(crate) fn beginning(&self, tokens: usize) -> ValidatedRequest {
        ValidatedRequest { prompt: self.prompt[..tokens].into(), ..self.next_token(&[], 0) }
    }

    /// The request as it was let in, from a recording. What validation resolved then is checked again as if a caller had
    /// named it; what it took from elsewhere (the key's number, the server's targets, the tokens that end an answer) is
    /// the entry's own.
    pub(crate) fn recorded(entry: &AdmitEntry, model: &ModelInfo) -> Result<ValidatedRequest, Rejection> {
        let sampling = &entry.sampling;
        let raw = RawRequest {
            max_tokens: Some(entry.max_tokens as i64),
            min_tokens: Some(entry.min_tokens as i64),
            n: Some(entry.n as i64),
            sampling: sampling.asked(),
            logit_bias: sampling.logit_bias.iter().map(|&(id, bias)| (i64::from(id), f64::from(bias))).collect(),
            logprobs: sampling.logprobs.map(i64::from),
            logprob_token_ids: sampling.logprob_ids.iter().map(|&id| i64::from(id)).collect(),
            max_logprobs: -1,
            prompt_logprobs: entry.prompt_logprobs.map(i64::from),
            embed: entry.embed,
            stop: entry.stop.clone(),
            ignore_eos: true,
            include_stop_str_in_output: entry.include_stop,
            skip_special_tokens: entry.skip_special,
            rule: entry.rule.clone(),
            generated: entry
                .generated
                .iter()
                .map(|tokens| Some(tokens.as_ref()?.iter().map(|&id| id.into()).collect()))
                .collect(),
            seed: entry.seed.filter(|_| !entry.generated.is_empty()).map(|seed| seed as i64),
            shown_tokens: entry.shown.as_slice().into(),
            priority: Some(i64::from(entry.priority)),
            ..RawRequest::new(Prompt::Tokens(entry.prompt.iter().map(|&id| i64::from(id)).collect()))
        };
        let mut request = validate(raw, model, model.targets, &[0; 32])?;
        if let Some(id) = entry.stop_token_ids.iter().find(|&&id| id as usize >= model.config.vocab_size) {
            return Err(Rejection::of("stop_token_ids", format!("it has no token {id}")));
        }
        request.stop.stop_token_ids.clone_from(&entry.stop_token_ids);
        request.targets = Targets { ttft: entry.ttft.map(Nanos), tpot: entry.tpot.map(Nanos) };
        (request.seed, request.salt, request.tenant) = (entry.seed, entry.salt, entry.tenant);
        Ok(request)
    }

    /// What another worker is to read of it: its prompt, and what the token behind that depends on.
    pub(crate) fn for_remote_prefill(&self, seed: u64, salt: u64, id: RequestId, now: Nanos) -> AdmitEntry {
        let stop = StopRules { max_tokens: 1, min_tokens: self.stop.min_tokens.min(1), ..self.stop.clone() };
        let request = ValidatedRequest {
            num_answers: 1,
            stop,
            seed: Some(seed),
            salt,
            targets: Targets { tpot: None, ..self.targets },
            sampling: self.sampling.without_logprobs(),
            ..self.clone()
        };
        AdmitEntry::of(id, request, now, now)
    }

    /// A prefill for another worker.
    pub(crate) fn from_remote_prefill(entry: &AdmitEntry, model: &ModelInfo) -> Result<ValidatedRequest, Rejection> {
        let entry = AdmitEntry {
            n: 1,
            max_tokens: 1,
            min_tokens: entry.min_tokens.min(1),
            prompt_logprobs: None,
            embed: false,
            generated: Vec::new(),
            ..entry.clone()
        };
        let request = ValidatedRequest::recorded(&entry, model)?;
        Ok(ValidatedRequest { speculate: false, ..request })
    }

    /// The seed, which from now on is the caller's own or, where there is none, the one that `draw` gives.
    pub(crate) fn resolve_seed(&mut self, draw: impl FnOnce() -> u64) -> u64 {
        *self.seed.get_or_insert_with(draw)
    }

    /// Where its adapter is.
    pub(crate) fn adapter_slot(&self) -> Option<u32> {
        self.adapter.as_ref().map(|lease| lease.slot)
    }

    /// Its adapter went with a device, after this was validated.
    pub(crate) fn has_lost_adapter(&self) -> bool {
        self.adapter.as_ref().is_some_and(|lease| lease.is_lost())
    }

    pub(crate) fn place(&self) -> QueuePlace {
        // Both are read, and kept until the end.
        let prediction = self.prediction.as_ref().map_or(0, |prediction| prediction.num_tokens());
        QueuePlace { tenant: self.tenant, prompt_tokens: self.prompt.len() + prediction }
    }

    /// The prompt as tokens.
    pub fn prompt(&self) -> &[TokenId] {
        &self.prompt
    }

    /// The prompt's tokens that are text of each message: empty where that is not found as it was given.
    pub fn messages(&self) -> &[Range<usize>] {
        &self.messages
    }

    /// Answers asked for.
    pub fn num_answers(&self) -> usize {
        self.num_answers
    }

    /// Whose it is: one number per API key.
    pub fn tenant(&self) -> u64 {
        self.tenant
    }

    /// The number of top log probabilities of each token, if asked for.
    pub fn logprobs(&self) -> Option<u32> {
        let named = self.sampling.logprob_ids.len() as u32;
        self.sampling.logprobs.map(|best| if named > 0 { named } else { best })
    }

    /// The same for the tokens of the prompt.
    pub fn prompt_logprobs(&self) -> Option<u32> {
        if let OfPrompt::LogProbs(top) = self.of_prompt { Some(top) } else { None }
    }

    /// Whether each answer is to have a receipt ([`Event::Noted`](crate::Event::Noted)).
    pub fn wants_receipt(&self) -> bool {
        self.receipt
    }

    /// Tokens that each answer may have.
    pub fn max_tokens(&self) -> usize {
        self.stop.max_tokens
    }

    /// Which tokens end an answer, and when.
    pub fn stop_rules(&self) -> &StopRules {
        &self.stop
    }

    /// Whether what ends an answer is part of its text.
    pub fn includes_stop(&self) -> bool {
        self.include_stop_string
    }

    /// What makes text of the tokens of one answer.
    pub fn detokenizer(&self, tokenizer: &Arc<Tokenizer>) -> Detokenizer {
        let stop = StopStrings { strings: self.stop_strings.clone(), include: self.include_stop_string };
        Detokenizer::new(tokenizer.clone(), &stop, self.skip_special_tokens).showing(self.shown_tokens.clone())
    }
}

/// Checks every field of `raw` against `model`, resolves defaults and tokenizes the prompt.
///
/// Cost: the tokenizer's, which is linear in the prompt; call it off the threads that serve connections.
pub(crate) fn validate(
    raw: RawRequest,
    model: &ModelInfo,
    default_targets: Targets,
    salt_key: &[u8; 32],
) -> Result<ValidatedRequest, Rejection> {
    // A host's thread narrows numbers as its process pleases.
    let _floats = DefaultFloats::enter();
    let num_answers = answers(raw.n, model)?;
    let sampling = sampling(&raw, &model.config, &model.generation_defaults)?;
    let stop_strings = stop_strings(&raw.stop)?;
    let adapter = adapter(&raw, model)?;
    let digest = adapter.as_ref().map(|lease| &lease.digest);
    let salt = salt(raw.tenant.as_ref(), raw.cache_salt.as_deref(), digest, salt_key)?;
    let tenant = raw.tenant.map_or(0, |digest| first_8_bytes(&digest));
    let targets = targets(&raw, model, default_targets)?;
    let of_prompt = OfPrompt::asked(&raw, &model.config)?;
    if let Some(encoder) = model.config.encoder.as_ref().filter(|_| of_prompt != OfPrompt::Embedding) {
        return Err(encoders::no_text(encoder));
    }
    if model.config.head == Head::Absent && of_prompt != OfPrompt::Embedding {
        return Err(Rejection { code: Some("no_head"), ..Rejection::of("model", NO_HEAD) });
    }
    let class = raw.class.unwrap_or_default();
    let priority = priority(raw.priority, class, raw.may_be_urgent)?;
    let stop_token_ids = stop_tokens(&raw, model)?;
    let (prompt, second_from) = encoders::tokenize(&raw, model)?;
    let messages = if raw.messages.is_empty() { messages_in(&raw, &prompt, model) } else { raw.messages.clone() };
    let prediction = prediction(&raw, model)?;
    let generated = generated(&raw, num_answers, &model.config)?;
    let rule = rule(&raw, model)?;
    let stop = stop_rules(&raw, stop_token_ids, prompt.len(), of_prompt != OfPrompt::Nothing, model)?;
    if raw.remote_role == RemoteRole::Decode && (stop.max_tokens != 1 || num_answers != 1) {
        let message = "another worker answers: of a prompt that is read for it, one answer of one token is given here";
        return Err(Rejection::of(if num_answers != 1 { "n" } else { "max_tokens" }, message));
    }
    let request = ValidatedRequest {
        prompt: prompt.into(),
        second_from,
        messages,
        num_answers,
        stop,
        stop_strings,
        include_stop_string: raw.include_stop_str_in_output,
        skip_special_tokens: raw.skip_special_tokens,
        shown_tokens: raw.shown_tokens,
        sampling,
        seed: raw.seed.map(|seed| seed as u64),
        of_prompt,
        priority,
        salt,
        adapter,
        tenant,
        targets,
        class,
        speculate: raw.speculate,
        prediction,
        generated,
        rule,
        remote_role: raw.remote_role,
        receipt: raw.receipt,
        progress: raw.progress,
        is_promised: true,
    };
    can_continue(&request, model)?;
    check_remote_only(&request, model)?;
    Ok(request)
}

/// Where full blocks of prompts are never computed here, nothing can be had that needs them to be.
fn check_remote_only(request: &ValidatedRequest, model: &ModelInfo) -> Result<(), Rejection> {
    let Some(pair) = model.precisions.filter(|_| model.remote_only_prefill) else { return Ok(()) };
    let refuse = |param: &'static str, what: &str| {
        let message = format!("{what} cannot be had where prompts are read by weights of another precision ({pair})");
        Err(Rejection::of(param, message))
    };
    match request.of_prompt {
        _ if request.num_answers != 1 => refuse("n", "more than one answer"),
        _ if request.adapter.is_some() => refuse("model", "an adapter"),
        OfPrompt::Nothing => Ok(()),
        OfPrompt::LogProbs(_) => refuse("prompt_logprobs", "log probabilities of the prompt"),
        _ => refuse("input", "embeddings and scores"),
    }
}

/// What was generated elsewhere. What is wanted of a prompt, or of all of an answer, cannot be had of the rest of it.
fn generated(
    raw: &RawRequest,
    num_answers: usize,
    config: &ModelConfig,
) -> Result<Vec<Option<Vec<TokenId>>>, Rejection> {
    let param = "generated";
    if raw.generated.is_empty() {
        return Ok(Vec::new());
    }
    if raw.generated.len() != num_answers {
        let message =
            format!("{} answers were generated in part, and {num_answers} are asked for", raw.generated.len());
        return Err(Rejection::of(param, message));
    }
    if raw.generated.iter().all(Option::is_none) {
        return Err(Rejection::of(param, "all answers are already complete"));
    }
    if raw.seed.is_none() {
        return Err(Rejection::of("seed", "continuing an answer requires its seed"));
    }
    if raw.receipt || raw.embed || raw.prompt_logprobs.is_some() {
        let message = "a receipt, an embedding and log probabilities of the prompt are of answers that begin here";
        return Err(Rejection::of(param, message));
    }
    let ids = |tokens: &Vec<i64>| tokens.iter().map(|&id| token_id(param, id, config)).collect::<Result<_, _>>();
    raw.generated.iter().map(|tokens| tokens.as_ref().map(ids).transpose()).collect()
}

/// Whether something can follow what was generated elsewhere.
fn can_continue(request: &ValidatedRequest, model: &ModelInfo) -> Result<(), Rejection> {
    let room = model.max_model_len - request.prompt.len();
    for (index, tokens) in request.generated.iter().enumerate() {
        let tokens = tokens.as_deref().unwrap_or_default();
        let strings = StopStrings { strings: request.stop_strings.clone(), include: request.include_stop_string };
        let detokenizer = |tokenizer: &Arc<Tokenizer>| Detokenizer::new(tokenizer.clone(), &strings, true);
        let mut detokenizer = model.tokenizer.as_ref().map(detokenizer);
        let mut constraint = request.rule.as_ref().map(|(_, grammar)| grammar.constraint());
        let mut stops = |(before, &token): (usize, &TokenId)| {
            let follows = constraint.as_mut().is_none_or(|constraint| constraint.accept(token).is_ok());
            let is_complete = constraint.as_ref().is_some_and(|constraint| constraint.is_complete(before + 1));
            let stops = match &mut detokenizer {
                Some(detokenizer) if before < request.stop.min_tokens => {
                    detokenizer.push_unstoppable(token);
                    false
                }
                Some(detokenizer) => detokenizer.push(token).stopped.is_some(),
                None => false,
            };
            stops || is_complete || !follows
        };
        if scheduler::request::has_ended(&request.stop, tokens, room) || tokens.iter().enumerate().any(&mut stops) {
            let message = format!("answer {index} has ended with what was generated of it: nothing follows");
            return Err(Rejection::of("generated", message));
        }
    }
    Ok(())
}

fn answers(n: Option<i64>, model: &ModelInfo) -> Result<usize, Rejection> {
    // Where tenants share, the answers to one request leave a seat to the others.
    let seats = if model.is_shared { model.max_num_seqs.saturating_sub(1).max(1) } else { model.max_num_seqs };
    let most = MAX_ANSWERS.min(seats as i64);
    match n.unwrap_or(1) {
        n if (1..=most).contains(&n) => Ok(n as usize),
        n => {
            let message = format!("n must be between 1 and {most}, as many as may run together, got {n}");
            Err(Rejection::of("n", message))
        }
    }
}

fn sampling(raw: &RawRequest, config: &ModelConfig, defaults: &GenerationDefaults) -> Result<Sampling, Rejection> {
    let sampling = raw.sampling.resolve(&defaults.sampling);
    let sampling = sampling.map_err(|(option, problem)| Rejection::of(option, problem))?;
    Ok(Sampling {
        logit_bias: logit_bias(&raw.logit_bias, config)?,
        logprobs: logprob_count("logprobs", raw.logprobs, raw, config)?,
        logprob_ids: logprob_ids(raw, config)?,
        ..sampling
    })
}

fn logit_bias(entries: &[(i64, f64)], config: &ModelConfig) -> Result<Vec<(TokenId, f32)>, Rejection> {
    if entries.len() > MAX_LOGIT_BIAS {
        let message = format!("logit_bias may have at most {MAX_LOGIT_BIAS} entries, got {}", entries.len());
        return Err(Rejection::of("logit_bias", message));
    }
    let check = |&(id, bias): &(i64, f64)| {
        let id = token_id("logit_bias", id, config)?;
        match (-100.0..=100.0).contains(&bias) {
            true => Ok((id, bias as f32)),
            false => Err(Rejection::of("logit_bias", "logit_bias must be a number between -100 and 100")),
        }
    };
    entries.iter().map(check).collect()
}

fn logprob_count(
    param: &'static str,
    count: Option<i64>,
    raw: &RawRequest,
    config: &ModelConfig,
) -> Result<Option<u32>, Rejection> {
    let Some(count) = count else { return Ok(None) };
    let most = most_logprobs(raw, config);
    let problem = match count {
        count if (0..=most).contains(&count) => return Ok(Some(count as u32)),
        -1 if most == config.vocab_size as i64 => return Ok(Some(most as u32)),
        -1 => "-1 asks for those of the whole vocabulary, which serve --max-logprobs -1 allows".to_owned(),
        count => format!("between 0 and {most} log probabilities per token (serve --max-logprobs), got {count}"),
    };
    Err(Rejection::of(param, format!("{param}: {problem}")))
}

fn most_logprobs(raw: &RawRequest, config: &ModelConfig) -> i64 {
    let all = config.vocab_size as i64;
    if raw.max_logprobs == -1 { all } else { raw.max_logprobs.min(all) }
}

fn logprob_ids(raw: &RawRequest, config: &ModelConfig) -> Result<Vec<TokenId>, Rejection> {
    let param = "logprob_token_ids";
    let (count, most) = (raw.logprob_token_ids.len(), most_logprobs(raw, config));
    if count > 0 && raw.logprobs.is_none() {
        return Err(Rejection::of(param, "logprob_token_ids requires logprobs"));
    }
    if count as u64 > most as u64 {
        let message = format!("at most {most} log probabilities per token (serve --max-logprobs), got {count}");
        return Err(Rejection::of(param, message));
    }
    raw.logprob_token_ids.iter().map(|&id| token_id(param, id, config)).collect()
}

fn stop_strings(stop: &[String]) -> Result<Vec<String>, Rejection> {
    if stop.len() > MAX_STOP_STRINGS {
        return Err(Rejection::of("stop", format!("at most {MAX_STOP_STRINGS} stop strings, got {}", stop.len())));
    }
    if stop.iter().any(|text| text.is_empty() || text.len() > MAX_STOP_BYTES) {
        return Err(Rejection::of("stop", format!("a stop string must have 1 to {MAX_STOP_BYTES} bytes")));
    }
    Ok(stop.to_vec())
}

fn stop_tokens(raw: &RawRequest, model: &ModelInfo) -> Result<Vec<TokenId>, Rejection> {
    if raw.stop_token_ids.len() > MAX_STOP_TOKENS {
        return Err(Rejection::of("stop_token_ids", format!("at most {MAX_STOP_TOKENS} stop token ids")));
    }
    let mut ids = if raw.ignore_eos { Vec::new() } else { model.eos_token_ids.clone() };
    for &id in &raw.stop_token_ids {
        ids.push(token_id("stop_token_ids", id, &model.config)?);
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

fn priority(priority: Option<i64>, class: ServiceClass, may_be_urgent: bool) -> Result<Priority, Rejection> {
    let of_class = match class {
        ServiceClass::Priority => -1,
        ServiceClass::Default => 0,
        ServiceClass::Flex => 1,
    };
    if priority.is_some() && of_class != 0 {
        return Err(Rejection::of("priority", "service_tier and priority are mutually exclusive"));
    }
    let param = if priority.is_some() { "priority" } else { "service_tier" };
    let priority = priority.unwrap_or(of_class);
    if priority < 0 && !may_be_urgent {
        let message = "this API key may not ask for more than the usual class: 'service_tier' may be 'auto', 'default' or \
                       'flex', and 'priority' 0 or more";
        return Err(Rejection { param: Some(param), code: Some("class_not_allowed"), message: message.to_string() });
    }
    i32::try_from(priority).map(Priority).map_err(|_| Rejection::of("priority", "priority must fit 32 bits"))
}

/// The adapter that is asked for, kept from now on.
fn adapter(raw: &RawRequest, model: &ModelInfo) -> Result<Option<Arc<Lease>>, Rejection> {
    let Some(name) = &raw.adapter else { return Ok(None) };
    let unknown = || Rejection {
        param: Some("model"),
        code: Some("model_not_found"),
        message: "there is no adapter of that name".to_owned(),
    };
    let lease = model.adapters.lease(name).ok_or_else(unknown)?;
    match raw.receipt {
        true => Err(Rejection::of("receipt", "answers through an adapter have no receipts: ask the model itself")),
        false => Ok(Some(lease)),
    }
}

/// The key under which prefix-cache blocks are shared, and earlier answers: one per (tenant, salt, adapter), 0 never
/// occurs by chance. No salt has a byte of 0, so what is behind one is an adapter's digest.
fn salt(
    tenant: Option<&[u8; 32]>,
    salt: Option<&str>,
    adapter: Option<&[u8; 32]>,
    key: &[u8; 32],
) -> Result<u64, Rejection> {
    if let Some(salt) = salt {
        let printable = salt.bytes().all(|byte| (0x20..0x7f).contains(&byte));
        if salt.is_empty() || salt.len() > MAX_SALT_BYTES || !printable {
            let message = format!("cache_salt must have 1 to {MAX_SALT_BYTES} printable ASCII characters");
            return Err(Rejection::of("cache_salt", message));
        }
    }
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(tenant.map_or(&[0u8; 32], |digest| digest));
    hasher.update(salt.unwrap_or("").as_bytes());
    if let Some(digest) = adapter {
        hasher.update(&[0]).update(digest);
    }
    Ok(first_8_bytes(hasher.finalize().as_bytes()))
}

fn first_8_bytes(digest: &[u8; 32]) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *digest;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// The request's own targets, and the server's where it brings none.
fn targets(raw: &RawRequest, model: &ModelInfo, default: Targets) -> Result<Targets, Rejection> {
    let target = |param, value: Option<f64>, default| {
        let Some(ms) = value else { return Ok(default) };
        if model.calibrated.is_none() {
            return Err(Rejection::of(
                param,
                format!("{param}: this server has not measured its steps and heeds no targets"),
            ));
        }
        // A NaN is in no range, and what is in this one is a duration.
        if !(0.1..=3.6e6).contains(&ms) {
            return Err(Rejection::of(
                param,
                format!("{param} must be a number of milliseconds between 0.1 and 3600000"),
            ));
        }
        Ok(Some(Nanos((ms * 1e6) as u64)))
    };
    let default = if raw.class == Some(ServiceClass::Flex) { Targets::default() } else { default };
    Ok(Targets {
        ttft: target("ttft_slo_ms", raw.ttft_slo_ms, default.ttft)?,
        tpot: target("tpot_slo_ms", raw.tpot_slo_ms, default.tpot)?,
    })
}

/// What is expected of the answer: as plain text, which an answer is.
fn prediction(raw: &RawRequest, model: &ModelInfo) -> Result<Option<Arc<Prediction>>, Rejection> {
    let Some(text) = &raw.prediction else { return Ok(None) };
    let too_long = |length: String| {
        let message = format!("this model's context is {} tokens; the prediction has {length}", model.max_model_len);
        Rejection { param: Some("prediction"), code: Some("context_length_exceeded"), message }
    };
    let tokenizer = model.tokenizer.as_ref().ok_or_else(|| {
        Rejection::of("prediction", "this model has no tokenizer: a prediction, which is text, cannot be read")
    })?;
    let most_bytes = tokenizer.max_bytes_per_token().map(|bytes| model.max_model_len.saturating_mul(bytes));
    if most_bytes.is_some_and(|most| text.len() > most) {
        return Err(too_long(format!("{} bytes, and more than that", text.len())));
    }
    let tokens = tokenizer.encode_plain(text).map_err(|error| Rejection::of("prediction", error.to_string()))?;
    if tokens.len() > model.max_model_len {
        return Err(too_long(tokens.len().to_string()));
    }
    Ok(Some(tokens).filter(|_| raw.speculate).and_then(Prediction::of).map(Arc::new))
}

/// What answers must look like, and of which tokens: the field of the former is the caller's to name.
fn rule(raw: &RawRequest, model: &ModelInfo) -> Result<Option<(Arc<Rule>, Grammar)>, Rejection> {
    let (tokens, param) = (token_rule(raw, model)?, if raw.rule.is_some() { "rule" } else { "allowed_token_ids" });
    let rule = match (tokens, raw.rule.clone()) {
        (Some(tokens), rule) => Rule::Tokens { tokens, rule: rule.map(Box::new) },
        (None, Some(rule)) => rule,
        (None, None) => return Ok(None),
    };
    let grammar = model.grammar(&rule, &raw.shown_tokens).map_err(|error| Rejection::of(param, error.to_string()))?;
    Ok(Some((Arc::new(rule), grammar)))
}

/// `allowed_token_ids` and `bad_words`.
fn token_rule(raw: &RawRequest, model: &ModelInfo) -> Result<Option<TokenRule>, Rejection> {
    let only = raw.allowed_token_ids.as_ref().map(|ids| {
        if ids.is_empty() {
            return Err(Rejection::of("allowed_token_ids", "allowed_token_ids must not be empty"));
        }
        ids.iter().map(|&id| token_id("allowed_token_ids", id, &model.config)).collect()
    });
    let (only, never) = (only.transpose()?, bad_words(&raw.bad_words, model)?);
    Ok((only.is_some() || !never.is_empty()).then_some(TokenRule { only, never }))
}

/// The tokens of each word, and of the word with a space before it: how it is written at the beginning of a text, and
/// in it. Tokens are what is looked for, as in vLLM: a longer word of other tokens may have this one in it.
fn bad_words(words: &[String], model: &ModelInfo) -> Result<Vec<Vec<TokenId>>, Rejection> {
    let param = "bad_words";
    if words.len() > MAX_BAD_WORDS {
        return Err(Rejection::of(param, format!("at most {MAX_BAD_WORDS} words, got {}", words.len())));
    }
    let mut runs = Vec::with_capacity(2 * words.len());
    for word in words {
        let bare = word.trim_start();
        if bare.is_empty() || word.len() > MAX_BAD_WORD_BYTES {
            let message = format!("a word must have 1 to {MAX_BAD_WORD_BYTES} bytes and be more than white space");
            return Err(Rejection::of(param, message));
        }
        let tokenizer = model
            .tokenizer
            .as_ref()
            .ok_or_else(|| Rejection::of(param, "this model has no tokenizer: say allowed_token_ids or logit_bias"))?;
        for text in [bare.to_owned(), format!(" {bare}")] {
            let run = tokenizer.encode_plain(&text).map_err(|error| Rejection::of(param, error.to_string()))?;
            runs.extend(Some(run).filter(|run| !run.is_empty()));
        }
    }
    runs.sort_unstable();
    runs.dedup();
    Ok(runs)
}

fn stop_rules(
    raw: &RawRequest,
    stop_token_ids: Vec<TokenId>,
    prompt_tokens: usize,
    reads_prompt: bool,
    model: &ModelInfo,
) -> Result<StopRules, Rejection> {
    let room = model.max_model_len - prompt_tokens;
    let max_tokens = match raw.max_tokens {
        None | Some(-1) => room,
        // A request may ask for nothing but what can be said of its prompt.
        Some(0) if reads_prompt => 0,
        Some(asked) if asked < 1 => {
            let message = format!("max_tokens must be at least 1, or -1 for all that the context leaves, got {asked}");
            return Err(Rejection::of("max_tokens", message));
        }
        Some(asked) if asked as u64 > room as u64 && !raw.cut_max_tokens => {
            let message = format!(
                "this model's context is {} tokens; the prompt has {prompt_tokens} and max_tokens asks for {asked} more",
                model.max_model_len
            );
            return Err(Rejection { param: Some("max_tokens"), code: Some("context_length_exceeded"), message });
        }
        Some(asked) => (asked as u64).min(room as u64) as usize,
    };
    let min_tokens = raw.min_tokens.unwrap_or(0);
    if min_tokens < 0 || min_tokens as u64 > max_tokens as u64 {
        let message = format!("min_tokens must be between 0 and max_tokens ({max_tokens}), got {min_tokens}");
        return Err(Rejection::of("min_tokens", message));
    }
    Ok(StopRules { max_tokens, min_tokens: min_tokens as usize, stop_token_ids })
}
