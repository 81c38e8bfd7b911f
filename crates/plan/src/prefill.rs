//! Prefill: the whole prompt in as few passes as rows allow. It is over when the first token is there.

use roofline::PassWork;
use scheduler::Work;

use crate::Deployment;

impl Deployment {
    /// Seconds from the start of a prompt of `prompt` tokens to its first token, on a machine where `others` requests
    /// decode meanwhile, each of which sees `context` keys. Nobody else is in prefill.
    ///
    /// Constant cost: all passes but the last have as many rows, and what they cost is linear in the keys that they
    /// see.
    pub fn ttft(&self, prompt: usize, others: usize, context: f64) -> f64 {
        let chunk = self.chunk(others);
        let full = prompt.saturating_sub(1) / chunk;
        let (before, last) = (full * chunk, prompt - full * chunk);
        let shape = &self.demands.shape;
        let beside = others as f64 * shape.mean_over_layers(|window| context.min(window as f64));
        let step = |rows: usize, pairs: f64, ends: usize| Work {
            prefill_rows: rows,
            prefill_pairs: pairs as u64,
            prefill_seqs: 1,
            decode_rows: others,
            decode_context: beside as u64,
            logit_rows: others + ends,
            draft_pairs: 0,
        };
        let each = self.cost.seconds(&step(chunk, shape.seen(0, before) / full.max(1) as f64, 0));
        let predicted = full as f64 * each + self.cost.seconds(&step(last, shape.seen(before, last), 1));
        self.at_least(predicted, &self.prefill_work(prompt))
    }

    /// What the passes over a prompt ask of the machine, logits of the last row included.
    pub fn prefill_work(&self, prompt: usize) -> PassWork {
        self.demands.prefill(0, prompt, self.chunk(0))
    }

    /// Rows that a pass has for a prompt when `others` requests decode: they come first.
    pub fn chunk(&self, others: usize) -> usize {
        self.machine.rows.saturating_sub(others).max(1)
    }

    /// The floor that nothing can beat: the operations of these passes, attention among them, at the machine's peaks,
    /// or their bytes, keys and values among them, at its bandwidth, whichever takes longer.
    pub fn prefill_floor(&self, prompt: usize) -> f64 {
        self.floor(&self.prefill_work(prompt), || self.ttft(prompt, 0, 0.0))
    }

    /// What is worked out on paper: every token through every weight once, at the machine's peak, and no attention.
    pub fn prefill_weights(&self, prompt: usize) -> f64 {
        let flops = prompt as f64 * self.demands.shape.flops_per_token() + self.demands.shape.flops_per_logit_row();
        flops / self.peaks().matrix
    }
}
