//! Memory for answers, charged before they are admitted.
//!
//! ```text
//! request --bytes_of--> what its answers may take until they are read --Quota--> Charge, given back when it is dropped
//! ```

use std::sync::{Arc, Mutex, PoisonError};

use engine::ValidatedRequest;
use engine::quota::{Quota, QuotaExceeded};
use transport::auth::Tenant;
use transport::error::{ApiError, ApiResult};

/// Bytes that a token takes until its answer is whole: its text, its id, and what vectors grow ahead.
const WHOLE_TOKEN: u64 = 32;
/// Bytes that a token of a stream takes until it is read.
const STREAMED_TOKEN: u64 = 160;
/// Bytes of a token's log probability, and of each top token beside it.
const LOGPROB: u64 = 96;
const TOP_LOGPROB: u64 = 8;
/// Bytes of a token that may come next: as it is told, and as a search ranks it.
const CANDIDATE: u64 = 32;
/// Bytes of one entry of `prompt_logprobs` in a stream, where its first event has them all.
const STREAMED_PROMPT_LOGPROB: u64 = 320;
/// Bytes of a token in a receipt: its digest, whole and as it is shown, and its id; and of a token of the prompt.
const RECEIPT_TOKEN: u64 = 96;
const RECEIPT_PROMPT_TOKEN: u64 = 16;

/// Bytes of a log probability, or of a top token beside it, that an answer has among its items.
const TOLD_LOGPROB: u64 = 512;

/// Bytes that the answers to one request take at most until they are read. `unread`: outputs of a stream that may wait
/// to be read.
pub(crate) fn bytes_of(request: &ValidatedRequest, streamed: bool, unread: usize) -> u64 {
    let per_logprob = |top: u32| LOGPROB + TOP_LOGPROB * u64::from(top);
    let logprobs = request.logprobs().map_or(0, per_logprob);
    let kept = if streamed { request.max_tokens().min(unread) } else { request.max_tokens() } as u64;
    let token = if streamed { STREAMED_TOKEN } else { WHOLE_TOKEN };
    let answers = (request.num_answers() as u64).saturating_mul(kept.saturating_mul(token + logprobs));
    let prompt = match request.prompt_logprobs() {
        None => 0,
        Some(top) if streamed => per_logprob(top) + STREAMED_PROMPT_LOGPROB * (u64::from(top) + 1),
        Some(top) => per_logprob(top),
    };
    let receipts = if request.wants_receipt() {
        let answers = (request.num_answers() as u64).saturating_mul(request.max_tokens() as u64);
        let prompts = (request.num_answers() as u64).saturating_mul(request.prompt().len() as u64);
        answers.saturating_mul(RECEIPT_TOKEN).saturating_add(prompts.saturating_mul(RECEIPT_PROMPT_TOKEN))
    } else {
        0
    };
    answers.saturating_add(receipts).saturating_add(prompt.saturating_mul(request.prompt().len() as u64))
}

/// Bytes of log probabilities that stay with the items of an answer until its end, streamed or not.
pub(crate) fn bytes_of_told_logprobs(request: &ValidatedRequest) -> u64 {
    let each = request.logprobs().map_or(0, |top| TOLD_LOGPROB * (u64::from(top) + 1));
    (request.max_tokens() as u64).saturating_mul(each)
}

/// Bytes of a beam search: its beams, those that come of them, and as many complete answers; and the top tokens
/// tokens behind each beam.
pub(crate) fn bytes_of_beams(request: &ValidatedRequest) -> u64 {
    let beams = request.num_answers() as u64;
    let candidates = beams.saturating_mul(beams.saturating_mul(2) + request.logprobs().map_or(0, u64::from));
    bytes_of(request, false, 0).saturating_mul(3).saturating_add(candidates.saturating_mul(CANDIDATE))
}

/// What all answers together may take.
#[derive(Debug)]
pub(crate) struct AnswerMemory {
    quota: Mutex<Quota>,
    /// What the answers to one request may take: what one tenant can always have, if it waits.
    most: u64,
}

impl AnswerMemory {
    /// `is_shared`: several tenants may come.
    pub(crate) fn new(bytes: u64, is_shared: bool) -> Arc<AnswerMemory> {
        Arc::new(AnswerMemory { quota: Mutex::new(Quota::new(bytes, is_shared)), most: bytes / 2 })
    }

    /// Sets `bytes` aside for `tenant`.
    pub(crate) fn charge(self: &Arc<AnswerMemory>, tenant: u64, bytes: u64) -> ApiResult<Charge> {
        if bytes > self.most {
            return Err(ApiError::answer_too_large(bytes, self.most));
        }
        let mut quota = self.quota.lock().unwrap_or_else(PoisonError::into_inner);
        quota.take(tenant, bytes).map_err(|no_room| match no_room {
            QuotaExceeded::Full => ApiError::overloaded(1),
            QuotaExceeded::TenantQueueFull => ApiError::answers_share_taken(1),
        })?;
        Ok(Charge { memory: self.clone(), tenant, bytes })
    }

    /// The same for an answer that is read again.
    pub(crate) fn charge_again(self: &Arc<AnswerMemory>, tenant: Option<&Tenant>, bytes: usize) -> ApiResult<Charge> {
        // As the engine numbers tenants.
        let number = tenant.and_then(|digest| digest.first_chunk()).map_or(0, |first| u64::from_le_bytes(*first));
        self.charge(number, bytes as u64)
    }
}

/// Memory set aside for one request's answers; dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Charge {
    memory: Arc<AnswerMemory>,
    tenant: u64,
    bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.memory.quota.lock().unwrap_or_else(PoisonError::into_inner).give_back(self.tenant, self.bytes);
    }
}
