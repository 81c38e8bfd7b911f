//! Whose turn it is, counted by an outsider: a naive twin of the scheduler's virtual token counters (Sheng et al.,
//! OSDI 2024). A prompt row counts 1 the first time it is computed, a sampled token 2; who comes back from idle is level
//! with the least served that is active.

use std::collections::BTreeMap;

use scheduler::{Priority, RequestId, Sequence};

/// A tenant's line in a class.
pub(crate) type Line = (Priority, u64);

#[derive(Default)]
pub(crate) struct Turns {
    served: BTreeMap<Line, u64>,
    /// Prompt rows of a request that were counted.
    counted: BTreeMap<RequestId, usize>,
}

impl Turns {
    /// A request was admitted; `open`: lines that had open requests before it.
    pub(crate) fn join(&mut self, line: Line, open: &BTreeMap<Line, usize>) {
        let of_class = || self.served.iter().filter(|(other, _)| other.0 == line.0);
        let least_active = of_class().filter(|(other, _)| open.contains_key(other)).map(|(_, &served)| served).min();
        let level = least_active.or(of_class().map(|(_, &served)| served).max()).unwrap_or(0);
        let served = self.served.entry(line).or_default();
        if !open.contains_key(&line) {
            *served = level.max(*served);
        }
    }

    /// `len` rows of a sequence are planned, and `samples` tokens are drawn from them.
    pub(crate) fn serve(&mut self, seq: &Sequence, len: usize, samples: usize) {
        let counted = self.counted.entry(seq.request_id()).or_default();
        let end = (seq.num_computed() + len).min(seq.num_prompt_tokens());
        let rows = end.saturating_sub(seq.num_computed().max(*counted));
        *counted = end.max(*counted);
        if self.served.len() > 1 {
            let line = (seq.request().priority, seq.request().tenant);
            *self.served.get_mut(&line).expect("it joined") += (rows + 2 * samples) as u64;
        }
    }

    /// Smallest first, in a class.
    pub(crate) fn served(&self, line: Line) -> u64 {
        self.served[&line]
    }
}
