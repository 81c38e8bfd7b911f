//! A naive twin of the scheduler's virtual token counters (Sheng et al., OSDI 2024). A prompt row counts 1 the first
//! time it is computed, a sampled token 2, an urgent request's a quarter of that and batch work's four times as much; a
//! tenant that returns from idle is level with the least served active one.

use std::collections::BTreeMap;

use protocol::RequestId;
use scheduler::{Request, Sequence};

#[derive(Default)]
pub(crate) struct Turns {
    /// Of each tenant.
    served: BTreeMap<u64, u64>,
    /// Prompt rows of a request that were counted.
    counted: BTreeMap<RequestId, usize>,
}

impl Turns {
    /// A request was admitted; `open`: tenants that had open requests before it.
    pub(crate) fn join(&mut self, tenant: u64, open: &BTreeMap<u64, usize>) {
        let active = self.served.iter().filter(|(other, _)| open.contains_key(other));
        let level = active.map(|(_, &served)| served).min().or(self.served.values().copied().max()).unwrap_or(0);
        let served = self.served.entry(tenant).or_default();
        if !open.contains_key(&tenant) {
            *served = level.max(*served);
        }
    }

    /// A request came with tokens of its answers: its prompt was paid for.
    pub(crate) fn has_paid(&mut self, request: &Request) {
        self.counted.insert(request.id, request.prompt.len());
    }

    /// `len` rows of a sequence are planned, and `samples` tokens are drawn from them.
    pub(crate) fn serve(&mut self, seq: &Sequence, len: usize, samples: usize) {
        let counted = self.counted.entry(seq.request_id()).or_default();
        let end = (seq.num_computed() + len).min(seq.num_prompt_tokens());
        let rows = end.saturating_sub(seq.num_computed().max(*counted));
        *counted = end.max(*counted);
        if self.served.len() > 1 {
            let tenant = seq.request().tenant;
            *self.served.get_mut(&tenant).expect("it joined") += weight(seq.request()) * (rows + 2 * samples) as u64;
        }
    }

    /// Drafts of a sequence were accepted: that many more tokens.
    pub(crate) fn serve_drafted(&mut self, request: &Request, tokens: usize) {
        if self.served.len() > 1 {
            *self.served.get_mut(&request.tenant).expect("it joined") += weight(request) * 2 * tokens as u64;
        }
    }

    /// Smallest first.
    pub(crate) fn served(&self, tenant: u64) -> u64 {
        self.served[&tenant]
    }
}

/// What a token of this request counts, in quarters.
fn weight(request: &Request) -> u64 {
    match request.priority.0 {
        0 => 4,
        urgent if urgent < 0 => 1,
        _ => 16,
    }
}
