//! Speculation: how many guesses at next tokens pay, and what they bring.
//!
//! ```text
//! a step of B requests with d drafts     B + d rows: weights, keys and values are read once all the same
//! a chain of drafts                      the first holds with A, the first two with A^2, ...: tokens = B + sum of these
//! how many                               as long as tokens per second do not fall: the scheduler's own rule
//! ```
//! The scheduler learns its chances and takes what streams allow; this is the mean of a steady state in which every
//! request decodes, always has something to guess, and guesses as well as the others.

use roofline::PassWork;
use scheduler::{BestDrafts, Work};

use crate::decode::MOST;
use crate::{Ask, Deployment};

/// Drafts of one request in a step at most, as many as are offered here.
const MOST_DRAFTS: usize = 16;
/// Numbers of drafts for one of each request that are looked at: of a large batch not every one.
const STRIDES: usize = 64;

/// Who guesses, and how well.
#[derive(Clone, Debug, PartialEq)]
pub struct Guessing {
    /// The chance that a draft holds, if all before it do; above 0 and below 1.
    pub acceptance: f64,
    /// The model that makes drafts, one in a pass; `None`: they cost nothing, as those that are looked up.
    pub drafter: Option<Box<Deployment>>,
}

/// What guesses come to in a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct SpeculationPlan {
    /// As asked.
    pub acceptance: f64,
    /// Drafts that pay, of one request in a step: in a batch a mean.
    pub drafts: f64,
    /// Tokens of one request and step.
    pub tokens: f64,
    /// Seconds of a step, drafting included.
    pub step: f64,
    /// Of these, seconds of the drafter's passes.
    pub drafting: f64,
    /// Seconds from a token to the next, in the mean.
    pub tpot: f64,
    /// How many times as fast as without.
    pub gain: f64,
    /// From this batch on no draft pays; `None` where some always do.
    pub stops_at: Option<usize>,
}

impl Guessing {
    /// Drafts that hold, of so many in a step of `batch` requests: each has its first before anybody has a second.
    fn held(&self, batch: usize, drafts: usize) -> f64 {
        let (all, more) = (drafts / batch, drafts % batch);
        let a = self.acceptance;
        let each = a * (1.0 - a.powi(all as i32)) / (1.0 - a);
        batch as f64 * each + more as f64 * a.powi(all as i32 + 1)
    }

    /// Seconds of the drafter's passes for so many drafts, one after the other for each request.
    fn seconds(&self, batch: usize, drafts: usize, context: f64) -> f64 {
        let Some(drafter) = &self.drafter else { return 0.0 };
        let (all, more) = (drafts / batch, drafts % batch);
        let last = if more > 0 { drafter.step(more, context) } else { 0.0 };
        let whole = if all > 0 { all as f64 * drafter.step(batch, context) } else { 0.0 };
        whole + last
    }
}

impl Deployment {
    /// Seconds of a step that carries `batch` requests, each of which sees `context` keys, and `drafts` rows of drafts
    /// of theirs.
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

    /// What such a step asks of the machine: keys and values are fetched once for a request, and seen by each row.
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

    /// So many drafts, in all, make tokens come fastest.
    fn best_drafts(&self, guessing: &Guessing, batch: usize, context: f64) -> usize {
        let stride = batch.div_ceil(STRIDES);
        let seconds = |drafts| self.checking(batch, drafts, context) + guessing.seconds(batch, drafts, context);
        let mut best = BestDrafts::new(batch as f64, seconds(0));
        for drafts in (1..=MOST_DRAFTS * batch / stride).map(|strides| strides * stride) {
            let chance = guessing.held(batch, drafts) - guessing.held(batch, drafts - stride);
            let goes_on = best.add(chance, seconds(drafts));
            // A drafter's pass costs as much for one as for all: the others that share it may pay for it.
            let shared = if guessing.drafter.is_some() { batch } else { 0 };
            if !goes_on && drafts > best.count() * stride + shared {
                break;
            }
        }
        best.count() * stride
    }

    /// What guesses bring for `ask`; `None` where nobody guesses. Cost: a millisecond or so.
    pub(crate) fn speculation(&self, ask: &Ask) -> Option<SpeculationPlan> {
        let guessing = self.guessing.as_ref()?;
        let (batch, context) = (ask.batch, ask.mean_context());
        let drafts = self.best_drafts(guessing, batch, context);
        let drafting = guessing.seconds(batch, drafts, context);
        let step = self.checking(batch, drafts, context) + drafting;
        let tokens = 1.0 + guessing.held(batch, drafts) / batch as f64;
        let tpot = step / tokens;
        Some(SpeculationPlan {
            acceptance: guessing.acceptance,
            drafts: drafts as f64 / batch as f64,
            tokens,
            step,
            drafting,
            tpot,
            gain: self.step(batch, context) / tpot,
            stops_at: self.stops_at(guessing, ask),
        })
    }

    /// From this batch on no draft pays. Looked for from above: one request of a mixture reads few experts, and a draft
    /// more of them, so some may pay in a batch and none for one alone.
    fn stops_at(&self, guessing: &Guessing, ask: &Ask) -> Option<usize> {
        let pays = |batch: usize| self.best_drafts(guessing, batch, ask.mean_context()) > 0;
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
