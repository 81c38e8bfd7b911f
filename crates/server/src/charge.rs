//! What the answers to a request may take until they are read: they are charged for it before they are admitted
//! ([`transport::answer_memory`]).

use engine::ValidatedRequest;

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
/// behind each beam.
pub(crate) fn bytes_of_beams(request: &ValidatedRequest) -> u64 {
    let beams = request.num_answers() as u64;
    let candidates = beams.saturating_mul(beams.saturating_mul(2) + request.logprobs().map_or(0, u64::from));
    bytes_of(request, false, 0).saturating_mul(3).saturating_add(candidates.saturating_mul(CANDIDATE))
}
