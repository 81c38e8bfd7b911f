//! Prefill: the whole prompt in as few passes as the row limit allows. It ends with the first token.

use roofline::PassWork;
use scheduler::Work;

use crate::{Ask, Deployment};

impl Deployment {
    /// Seconds from the start of a prompt of `prompt` tokens to its first token, on a machine where `others` requests
    /// decode meanwhile, each attending to `context` keys. No other prompt is in prefill.
    ///
    /// Constant cost: all passes but the last have the same number of rows, and their cost is linear in the keys that they
    /// attend to.
    pub fn ttft(&self, prompt: usize, others: usize, context: f64) -> f64 {
        self.ttft_behind(0, prompt, others, context)
    }

    /// [`ttft`](Self::ttft) of `rows` tokens behind `cached` ones whose keys and values are there.
    pub(crate) fn ttft_behind(&self, cached: usize, rows: usize, others: usize, context: f64) -> f64 {
        let chunk = self.chunk(others);
        let full = rows.saturating_sub(1) / chunk;
        let (before, last) = (full * chunk, rows - full * chunk);
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
        let each = self.cost.seconds(&step(chunk, shape.seen(cached, before) / full.max(1) as f64, 0));
        let predicted = full as f64 * each + self.cost.seconds(&step(last, shape.seen(cached + before, last), 1));
        self.at_least(predicted, &self.prefill_work(cached, rows))
    }

    /// Work of the passes over `rows` tokens behind `cached` ones, including the logits of the last row.
    pub(crate) fn prefill_work(&self, cached: usize, rows: usize) -> PassWork {
        self.demands.prefill(cached, rows, self.chunk(0))
    }

    /// Rows of a pass available to a prompt while `others` requests decode, which come first.
    pub fn chunk(&self, others: usize) -> usize {
        self.machine.rows.saturating_sub(others).max(1)
    }

    /// Lower bound: the operations of these passes including attention at the machine's peaks, or their bytes including
    /// keys and values at its bandwidth, whichever takes longer.
    pub(crate) fn prefill_floor(&self, ask: &Ask) -> f64 {
        self.peaks().floor_seconds(&self.prefill_work(ask.cached_tokens(), ask.computed()))
    }

    /// The back-of-the-envelope figure: every token through every weight once at the machine's peak, without attention.
    pub fn prefill_weights(&self, prompt: usize) -> f64 {
        let flops = prompt as f64 * self.demands.shape.flops_per_token() + self.demands.shape.flops_per_logit_row();
        flops / self.peaks().matrix
    }
}
