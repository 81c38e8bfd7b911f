//! What other weights would bring: both phases of one request, before and after.

use crate::{Ask, Deployment};

/// How many times as fast: 2 is half the time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gain {
    /// Time to the first token on an idle machine.
    pub prefill: f64,
    /// Time from a token to the next.
    pub decode: f64,
}

/// Tokens of the request that is compared, where nobody asks for another one: those of `plan`.
const PROMPT: usize = 1024;
const RESPONSE: usize = 256;

impl Ask {
    /// One request of usual lengths, or of what `context_limit` leaves of them.
    pub fn usual(context_limit: usize) -> Ask {
        let response = RESPONSE.min(context_limit / 5).max(1);
        let prompt = PROMPT.min(context_limit.saturating_sub(response)).max(1);
        Ask { prompt, response, thinking: 0, batch: 1, users: None }
    }
}

impl Deployment {
    /// What `other`, the same model with other weights, brings for `ask`.
    pub fn gain(&self, other: &Deployment, ask: &Ask) -> Gain {
        let (here, there) = (self.times(ask), other.times(ask));
        Gain { prefill: here.ttft_alone / there.ttft_alone, decode: here.tpot / there.tpot }
    }
}
