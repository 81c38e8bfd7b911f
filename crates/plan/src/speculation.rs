//! Speculative decoding: how many drafts pay, and the speedup.
//!
//! ```text
//! a step of B requests with d drafts     B + d rows: weights, keys and values are still read once
//! a chain of drafts                      the first is accepted with A, the first two with A^2, ...: tokens = B + their sum
//! how many                               as long as tokens per second do not fall: the scheduler's rule
//! ```
//! The scheduler learns its acceptance rates and respects latency targets; this is the mean of a steady state in which
//! every request decodes, always has drafts, and has the same acceptance rate.

use roofline::PassWork;
use scheduler::{BestDrafts, Work};

use crate::decode::MOST;
use crate::{Ask, Deployment};

/// Maximum drafts per request and step.
const MOST_DRAFTS: usize = 16;
/// Number of candidate draft counts per request that are evaluated: a subset for a large batch.
const STRIDES: usize = 64;

/// Speculative decoding of a deployment.
#[derive(Clone, Debug, PartialEq)]
pub struct SpeculationModel {
    /// Acceptance probability of a draft if all before it are accepted; above 0 and below 1.
    pub acceptance: f64,
    /// The draft model, which makes one draft per pass; `None`: drafts cost nothing, as n-gram lookup.
    pub drafter: Option<Box<Deployment>>,
}

/// The effect of speculative decoding on a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct SpeculationPlan {
    /// The acceptance probability.
    pub acceptance: f64,
    /// Best number of drafts per request and step, as a mean over the batch.
    pub drafts: f64,
    /// Tokens per request and step.
    pub tokens: f64,
    /// Seconds per step, including drafting.
    pub step: f64,
    /// Seconds of the drafter's passes in it.
    pub drafting: f64,
    /// Mean seconds per output token.
    pub tpot: f64,
    /// Speedup over decoding without speculation.
    pub gain: f64,
    /// The smallest batch from which no draft pays; `None` if some always do.
    pub stops_at: Option<usize>,
}

impl SpeculationModel {
    /// Expected accepted drafts of `drafts` in a step of `batch` requests: each request gets a first before any a second.
    fn held(&self, batch: usize, drafts: usize) -> f64 {
        let (all, more) = (drafts / batch, drafts % batch);
        let a = self.acceptance;
        let each = a * (1.0 - a.powi(all as i32)) / (1.0 - a);
        batch as f64 * each + more as f64 * a.powi(all as i32 + 1)
    }

    /// Seconds of the drafter's passes for `drafts` drafts, sequential per request.
    fn seconds(&self, batch: usize, drafts: usize, context: f64) -> f64 {
        let Some(drafter) = &self.drafter else { return 0.0 };
        let (all, more) = (drafts / batch, drafts % batch);
        let last = if more > 0 { drafter.step(more, context) } else { 0.0 };
        let whole = if all > 0 { all as f64 * drafter.step(batch, context) } else { 0.0 };
        whole + last
    }
}

impl Deployment {
    /// Seconds of a verification step with `batch` requests that each attend to `context` keys, and `drafts` draft rows in
    /// total.
    pub(crate) fn checking(&self, batch: usize, drafts: usize, context: f64) -> f64 {
        let seen = self.demands.shape.mean_over_layers(|window| context.min(window as f64));
        let step = Work {
            decode_rows: batch + drafts,
            decode_context: (batch as f64 * seen) as u64,
            logit_rows: batch + drafts,
            draft_pairs: (drafts as f64 * seen) as u64,
            ..Work::default()
        };
        self.at_least(self.cost.seconds(&step), &self.checking_work(batch, drafts, context))
    }

    /// Work of such a step: keys and values are fetched once per request, and used by each row.
    fn checking_work(&self, batch: usize, drafts: usize, context: f64) -> PassWork {
        let (without, rows) = (self.step_work(batch, context), batch + drafts);
        let more = rows as f64 / batch as f64;
        PassWork {
            matrix_flops: without.matrix_flops * more,
            attention_flops: without.attention_flops * more,
            bytes: without.bytes + self.demands.bytes_of_pass(rows as f64) - self.demands.bytes_of_pass(batch as f64),
            ..without
        }
    }

    /// The total number of drafts with the most tokens per second.
    fn best_drafts(&self, speculation: &SpeculationModel, batch: usize, context: f64) -> usize {
        let stride = batch.div_ceil(STRIDES);
        let seconds = |drafts| self.checking(batch, drafts, context) + speculation.seconds(batch, drafts, context);
        let mut best = BestDrafts::new(batch as f64, seconds(0));
        for drafts in (1..=MOST_DRAFTS * batch / stride).map(|strides| strides * stride) {
            let chance = speculation.held(batch, drafts) - speculation.held(batch, drafts - stride);
            let goes_on = best.add(chance, seconds(drafts));
            // A drafter's pass costs the same for one request as for all: only together may they pay for it.
            let shared = if speculation.drafter.is_some() { batch } else { 0 };
            if !goes_on && drafts > best.count() * stride + shared {
                break;
            }
        }
        best.count() * stride
    }

    /// The effect of speculative decoding for `ask`; `None` if it is off. Cost: about a millisecond.
    pub(crate) fn plan_speculation(&self, ask: &Ask) -> Option<SpeculationPlan> {
        let speculation = self.speculation.as_ref()?;
        let (batch, context) = (ask.batch, ask.mean_context());
        let drafts = self.best_drafts(speculation, batch, context);
        let drafting = speculation.seconds(batch, drafts, context);
        let step = self.checking(batch, drafts, context) + drafting;
        let tokens = 1.0 + speculation.held(batch, drafts) / batch as f64;
        let tpot = step / tokens;
        Some(SpeculationPlan {
            acceptance: speculation.acceptance,
            drafts: drafts as f64 / batch as f64,
            tokens,
            step,
            drafting,
            tpot,
            gain: self.step(batch, context) / tpot,
            stops_at: self.stops_at(speculation, ask),
        })
    }

    /// The smallest batch from which no draft pays. The search goes downwards: one request of a mixture reads few experts
    /// and a draft more of them, so some drafts may pay in a batch and none for a single request.
    fn stops_at(&self, speculation: &SpeculationModel, ask: &Ask) -> Option<usize> {
        let pays = |batch: usize| self.best_drafts(speculation, batch, ask.mean_context()) > 0;
        let mut batches: Vec<usize> =
            std::iter::successors(Some(1), |batch| Some(batch * 2)).take_while(|&batch| batch <= MOST).collect();
        batches.push(ask.batch);
        batches.sort_unstable();
        let last = batches.iter().rposition(|&batch| pays(batch));
        let mut below = last.map_or(0, |last| batches[last]);
        let mut above = *batches[last.map_or(0, |last| last + 1)..].iter().find(|&&batch| batch > below)?;
        while above - below > 1 {
            let middle = below + (above - below) / 2;
            if pays(middle) { below = middle } else { above = middle }
        }
        Some(above)
    }
}
