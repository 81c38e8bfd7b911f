//! Speedup of both phases of one request by other weights.

use crate::{Ask, Deployment};

/// Speedups: 2 is half the time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gain {
    /// Of the time to first token on an idle machine.
    pub prefill: f64,
    /// Of the time per output token.
    pub decode: f64,
}

impl Ask {
    /// One request of default lengths, limited by `context_limit`.
    pub fn usual(context_limit: usize) -> Ask {
        let Ask { prompt, response, .. } = Ask::default();
        let response = response.min(context_limit / 5).max(1);
        let prompt = prompt.min(context_limit.saturating_sub(response)).max(1);
        Ask { prompt, response, ..Ask::default() }
    }
}

impl Deployment {
    /// The speedup for `ask` by `other`, the same model with other weights.
    pub fn gain(&self, other: &Deployment, ask: &Ask) -> Gain {
        let (here, there) = (self.times(ask), other.times(ask));
        Gain { prefill: here.ttft_alone / there.ttft_alone, decode: here.tpot / there.tpot }
    }
}
