//! Prefill: the whole prompt in as few passes as the row limit allows. It ends with the first token.

use roofline::PassWork;
use scheduler::Work;

use crate::Deployment;

impl Deployment {
    /// Seconds from the start of a prompt of `prompt` tokens to its first token, on a machine where `others` requests
    /// decode meanwhile, each attending to `context` keys. No other prompt is in prefill.
    ///
    /// Constant cost: all passes but the last have the same number of rows, and their cost is linear in the keys that they
    /// attend to.
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

    /// Work of the passes over a prompt, including the logits of the last row.
    pub fn prefill_work(&self, prompt: usize) -> PassWork {
        self.demands.prefill(0, prompt, self.chunk(0))
    }

    /// Rows of a pass available to a prompt while `others` requests decode, which come first.
    pub fn chunk(&self, others: usize) -> usize {
        self.machine.rows.saturating_sub(others).max(1)
    }

    /// Lower bound: the operations of these passes including attention at the machine's peaks, or their bytes including
    /// keys and values at its bandwidth, whichever takes longer.
    pub fn prefill_floor(&self, prompt: usize) -> f64 {
        self.peaks().floor_seconds(&self.prefill_work(prompt))
    }

    /// The back-of-the-envelope figure: every token through every weight once at the machine's peak, without attention.
    pub fn prefill_weights(&self, prompt: usize) -> f64 {
        let flops = prompt as f64 * self.demands.shape.flops_per_token() + self.demands.shape.flops_per_logit_row();
        flops / self.peaks().matrix
    }
}
