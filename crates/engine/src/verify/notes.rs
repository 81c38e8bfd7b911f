//! What is noted of an answer while it is computed.

use std::collections::VecDeque;

use protocol::{FinishReason, TokenId};
use receipt::{AnswerEnd, Asked, Digest, SamplingTerms, StopTerms, Unsealed};

use crate::validate::ValidatedRequest;

/// The digests of an answer's rows and its tokens, as far as it is.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    rows: Vec<Digest>,
    tokens: Vec<TokenId>,
    /// Of rows with tokens that are not of the answer yet. A step that is computed again notes them again.
    drawn: VecDeque<Digest>,
}

impl Notes {
    /// A token was drawn from this row; `ahead` others were in this step, and are not of the answer yet.
    pub(crate) fn row(&mut self, ahead: usize, row: Digest) {
        self.drawn.truncate(ahead);
        self.drawn.push_back(row);
    }

    /// It belongs to the answer.
    pub(crate) fn token(&mut self, token: TokenId) {
        if let Some(row) = self.drawn.pop_front() {
            self.rows.push(row);
            self.tokens.push(token);
        }
    }

    /// The answer has ended.
    pub(crate) fn end(self, asked: Asked, reason: FinishReason, stop_string: Option<usize>) -> Unsealed {
        let end = match (reason, stop_string) {
            (_, Some(which)) => AnswerEnd::StopString(which as u32),
            (FinishReason::Length, None) => AnswerEnd::Length,
            (FinishReason::Stop(Some(_)), None) => AnswerEnd::StopToken,
            // No token ended it, and no text: its rule did.
            (FinishReason::Stop(None), None) => AnswerEnd::Complete,
        };
        Unsealed { asked, tokens: self.tokens, rows: self.rows, end }
    }
}

/// What was asked, in the words of a receipt: every default resolved. `answer`: which of the request's.
pub(crate) fn asked(request: &ValidatedRequest, seed: u64, answer: usize) -> Asked {
    let stop = &request.stop;
    Asked {
        prompt: request.prompt.to_vec(),
        sampling: SamplingTerms { params: request.sampling.without_logprobs(), seed, answer: answer as u32 },
        stop: StopTerms {
            max_tokens: stop.max_tokens as u64,
            min_tokens: stop.min_tokens as u64,
            token_ids: stop.stop_token_ids.clone(),
            strings: request.stop_strings.clone(),
            include_string: request.include_stop_string,
            skip_special: request.skip_special_tokens,
            shown: request.shown_tokens.to_vec(),
        },
        rule: request.rule.as_ref().map(|(rule, _)| serde_json::to_value(&**rule).expect("a rule is JSON")),
    }
}
