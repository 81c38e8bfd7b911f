//! Predicts step time from its work: a roofline with fitted overheads.
//!
//! ```text
//! seconds                                        seconds = weights(rows)              one read of the weights, then rows x FLOPs
//!    |                          ___/                     + pair   x prefill pairs     prompt rows against the keys they see
//!    |                     ___/                          + key    x decode context    keys and values that decode rows read
//!    |  _______________---     <- compute: prefill       + row    x decode rows       lists, tables, sampling
//!    |  ^ memory: decode                                 + prompt x prompts
//!    +------------------------------ rows                + head, once, and logits x rows with logits
//! ```
//!
//! Both phases share one curve because they share the pass over the weights: decode is on its flat left end, prefill on
//! its slope, and a mixed step pays for the rows of both. That is their interference. The other terms belong to one
//! phase. (Rooflines: Williams et al., 2009. Sums of terms linear in tokens and in attention: DistServe, Zhong et al.,
//! OSDI 2024; Vidur, Agrawal et al., MLSys 2024.)
//!
//! A model comes from a hardware preset ([`CostModel::roofline`]) or from measured steps ([`CostModel::fit`]), and is
//! corrected online ([`CostModel::observe`]). It is deterministic: the same steps give the same model.

use alloc::vec;
use alloc::vec::Vec;

use protocol::Nanos;

/// The work of a step, in the quantities that cost time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Rows of prompt chunks.
    pub prefill_rows: usize,
    /// Keys that prompt rows attend to, summed over the rows.
    pub prefill_pairs: u64,
    /// Prompt chunks.
    pub prefill_seqs: usize,
    /// Decode rows.
    pub decode_rows: usize,
    /// Keys that decode rows attend to, summed over the rows.
    pub decode_context: u64,
    /// Rows whose logits are computed and sampled.
    pub logit_rows: usize,
    /// Keys that draft rows attend to, summed over the rows. Their bytes are already read for the preceding row.
    pub draft_pairs: u64,
}

impl Work {
    /// Adds `len` rows of a prompt with `start` computed tokens; `ends` if the last row's logits are needed.
    pub fn add_chunk(&mut self, start: usize, len: usize, ends: bool) {
        let (start, rows) = (start as u64, len as u64);
        self.prefill_rows += len;
        self.prefill_pairs += rows * start + rows * (rows + 1) / 2;
        self.prefill_seqs += 1;
        self.logit_rows += usize::from(ends);
    }

    /// Adds a decode row that attends to `context` keys, its own included.
    pub fn add_decode(&mut self, context: usize) {
        self.decode_rows += 1;
        self.decode_context += context as u64;
        self.logit_rows += 1;
    }

    /// Adds a draft row that attends to `context` keys, its own included, to its sequence's decode row.
    pub fn add_draft(&mut self, context: usize) {
        self.decode_rows += 1;
        self.draft_pairs += context as u64;
        self.logit_rows += 1;
    }

    /// Rows of both phases.
    pub fn rows(&self) -> usize {
        self.prefill_rows + self.decode_rows
    }
}

/// A point of the weights curve: the time of a pass with this many rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Knot {
    /// Rows of the pass.
    pub rows: usize,
    /// Seconds, without attention and logits.
    pub seconds: f64,
}

/// Cost of a model, in the units of a roofline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelCost {
    /// Bytes of weights that one pass reads.
    pub weight_bytes: f64,
    /// FLOPs of one row, without attention and logits: about twice the parameters of the layers.
    pub row_flops: f64,
    /// FLOPs of one row's logits.
    pub logit_flops: f64,
    /// FLOPs of one row against one key, all layers and heads: four times heads times head size times layers.
    pub pair_flops: f64,
    /// Bytes of keys and values of one token, all layers.
    pub kv_bytes: f64,
}

/// Capabilities of a machine, in the units of a roofline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hardware {
    /// Display name.
    pub name: &'static str,
    /// FLOPs per second at the precision of the weights, dense.
    pub flops: f64,
    /// Bytes per second from the memory that holds weights and cache.
    pub bandwidth: f64,
    /// Fraction of `flops` that a long prompt reaches.
    pub flops_share: f64,
    /// Fraction of `bandwidth` that decode reaches.
    pub bandwidth_share: f64,
    /// Seconds added to every step: launch, sampling, bookkeeping.
    pub step_overhead: f64,
}

/// Predicts the time of a step. A prediction costs a binary search in about a dozen points.
#[derive(Clone, Debug, PartialEq)]
pub struct CostModel {
    /// By increasing rows; at least one.
    knots: Vec<Knot>,
    terms: Terms,
    /// Current time over time at calibration: for decode rows, and for what prompts add.
    drift: [f64; 2],
}

/// Seconds per unit of [`Work`], beyond the pass over the weights.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Terms {
    /// Per prompt row and key.
    pub pair: f64,
    /// Per key that a decode row reads.
    pub key: f64,
    /// Per decode row.
    pub row: f64,
    /// Per prompt chunk.
    pub prompt: f64,
    /// Per step with logits: one read of the language-model head, a quarter of the weights of a small model.
    pub head: f64,
    /// Per row of logits.
    pub logits: f64,
}

impl Terms {
    /// Upper bounds, far beyond the slowest machine: a disturbed measurement has none, and sums of predictions must fit
    /// a clock.
    pub const MOST: Terms = Terms { pair: 1e-3, key: 1e-3, row: 1e3, prompt: 1e3, head: 1e3, logits: 1e3 };
    /// The same bound for a whole pass: seconds of a [`Knot`].
    pub const MOST_SECONDS: f64 = 1e6;

    fn bounded(self) -> Terms {
        let most = Terms::MOST;
        Terms {
            pair: self.pair.min(most.pair),
            key: self.key.min(most.key),
            row: self.row.min(most.row),
            prompt: self.prompt.min(most.prompt),
            head: self.head.min(most.head),
            logits: self.logits.min(most.logits),
        }
    }
}

const NUM_TERMS: usize = 6;
/// Reweighting rounds, and the relative error above which a step loses weight.
const REWEIGHTINGS: usize = 4;
const EXPECTED_ERROR: f64 = 0.02;
/// Iteration limit of the solver, and the change of relative error at which it has converged.
const SWEEPS: usize = 20_000;
const CONVERGED: f64 = 1e-7;
/// Weight of a step in the drift average: half of a lasting change of speed is learned in about five steps.
const DRIFT_WEIGHT: f64 = 0.125;
/// A step below this fraction of its prediction is not noise, since noise only adds time: the model was calibrated on a
/// busy machine. Each such step corrects half of the error.
const FAR_BELOW: f64 = 0.5;
const FAR_WEIGHT: f64 = 0.5;
/// A chunk that is a smaller fraction of its step than this is too uncertain for [`FAR_WEIGHT`].
const FAR_SHARE: f64 = 0.5;
/// A step that took longer than this multiple of its prediction was interrupted; it counts as this multiple.
const DRIFT_MOST: f64 = 4.0;
/// Limit of the drift in both directions, so that a stopped clock cannot teach that steps are free.
const DRIFT_RANGE: f64 = 64.0;

impl CostModel {
    /// A step with a prompt that takes less says nothing of other prompts: what it costs beside its rows is large in it.
    pub const TELLING: Nanos = Nanos(2_000_000);

    /// A model from its points and terms, bounded by [`Terms::MOST`]. Panics if `knots` is empty or not increasing in
    /// rows.
    pub fn new(mut knots: Vec<Knot>, terms: Terms) -> CostModel {
        assert!(!knots.is_empty() && knots.is_sorted_by(|a, b| a.rows < b.rows), "knots rise");
        knots.iter_mut().for_each(|knot| knot.seconds = knot.seconds.min(Terms::MOST_SECONDS));
        CostModel { knots, terms: terms.bounded(), drift: [1.0; 2] }
    }

    /// The same model with this drift: see [`CostModel::drift`].
    pub fn drifted(self, drift: [f64; 2]) -> CostModel {
        CostModel { drift, ..self }
    }

    /// The roofline of `model` on `hardware`: the larger of read time and compute time, plus the overhead.
    pub fn roofline(model: &ModelCost, hardware: &Hardware) -> CostModel {
        let bandwidth = hardware.bandwidth * hardware.bandwidth_share;
        let flops = hardware.flops * hardware.flops_share;
        let (read, row) = (model.weight_bytes / bandwidth, model.row_flops / flops);
        let at = |rows: usize| Knot { rows, seconds: hardware.step_overhead + read.max(rows as f64 * row) };
        // The curve has one bend; the points around it make the interpolation exact.
        let bend = (read / row) as usize;
        let mut rows: Vec<usize> = vec![1, bend.max(2), bend.max(2) + 1, bend.max(2) * 2];
        rows.dedup();
        let terms = Terms {
            pair: model.pair_flops / flops,
            key: model.kv_bytes / bandwidth,
            row: 0.0,
            prompt: 0.0,
            head: 0.0,
            logits: model.logit_flops / flops,
        };
        CostModel::new(rows.into_iter().map(at).collect(), terms)
    }

    /// The best fit to measured steps: least squares of the *relative* error, with non-negative terms and a
    /// non-decreasing curve. Outliers are iteratively downweighted (Huber, Annals of Mathematical Statistics 35, 1964),
    /// because what disturbed one step does not affect the others.
    ///
    /// `rows` are the points of the curve, increasing; each should have a step near it. Returns `None` if there are
    /// fewer steps than points. Cost: linear in steps, plus some million operations.
    pub fn fit(rows: &[usize], steps: &[(Work, Nanos)]) -> Option<CostModel> {
        if rows.is_empty() || steps.len() < rows.len() {
            return None;
        }
        let mut weights = vec![1.0; steps.len()];
        let mut model = weighted_fit(rows, steps, &weights);
        for _ in 0..REWEIGHTINGS {
            for (weight, (work, time)) in weights.iter_mut().zip(steps) {
                let error = (model.seconds(work) / time.as_secs_f64().max(1e-9) - 1.0).abs();
                *weight = (EXPECTED_ERROR / error.max(1e-9)).min(1.0);
            }
            model = weighted_fit(rows, steps, &weights);
        }
        Some(model)
    }

    /// Predicted time of a step with this work, drift included.
    pub fn step_time(&self, work: &Work) -> Nanos {
        Nanos((self.seconds(work) * 1e9) as u64)
    }

    /// [`CostModel::step_time`] in seconds.
    pub fn seconds(&self, work: &Work) -> f64 {
        self.parts(work).total()
    }

    /// [`CostModel::seconds`] term by term, for the ledger.
    pub fn parts(&self, work: &Work) -> Parts {
        let [alone, added] = self.drift;
        let Terms { pair, key, row, prompt, head, logits } = self.terms;
        let amounts = amounts(work);
        let (weights, heads) = (self.weights(work.rows()), head * amounts[4] + logits * amounts[5]);
        // The cost of the decode rows alone; prompts add the rest.
        let (own_weights, own_heads) = match work.decode_rows {
            0 => (0.0, 0.0),
            // Decode only: reuse the values, because the draft search evaluates this once per draft.
            rows if rows == work.rows() && rows == work.logit_rows => (weights, heads),
            rows => (self.weights(rows), head + logits * rows as f64),
        };
        Parts {
            weights: own_weights * alone + (weights - own_weights) * added,
            prefill_attention: pair * work.prefill_pairs as f64 * added,
            decode_attention: (key * amounts[1] + pair * work.draft_pairs as f64) * alone,
            decode_rows: row * amounts[2] * alone,
            prompts: prompt * amounts[3] * added,
            logits: own_heads * alone + (heads - own_heads) * added,
        }
    }

    /// The most rows of `prompt` that fit a step with `work` within `bound`; 0 if none.
    pub(crate) fn rows_within(&self, work: &Work, prompt: PromptRows, bound: Nanos) -> usize {
        let PromptRows { start, most: len, uncomputed } = prompt;
        let fits = |rows: usize| {
            let mut work = *work;
            work.add_chunk(start, rows, rows == uncomputed);
            self.step_time(&work) <= bound
        };
        if len > 0 && fits(len) {
            return len;
        }
        let (mut most, mut over) = (0, len);
        while over - most > 1 {
            let middle = most + (over - most) / 2;
            if fits(middle) { most = middle } else { over = middle }
        }
        most
    }

    /// Updates the drift with a step that took `measured`, by an exponential moving average.
    pub fn observe(&mut self, work: &Work, measured: Nanos) {
        let predicted = self.seconds(work);
        if predicted > 0.0 && work.rows() > 0 {
            let alone =
                Work { prefill_rows: 0, prefill_pairs: 0, prefill_seqs: 0, logit_rows: work.decode_rows, ..*work };
            // A small chunk beside many streams says next to nothing about prompts, so its weight is its fraction of
            // the step.
            let own = if work.decode_rows == 0 { 0.0 } else { self.seconds(&alone) };
            let (which, expected, took) = match work.prefill_seqs {
                0 => (0, predicted, measured.as_secs_f64()),
                _ => (1, predicted - own, measured.as_secs_f64() - own),
            };
            if expected > 0.0 && (which == 0 || measured >= CostModel::TELLING) {
                let ratio = (took / expected).clamp(1.0 / DRIFT_MOST, DRIFT_MOST);
                let is_far = ratio < FAR_BELOW && expected > predicted * FAR_SHARE;
                let weight = if is_far { FAR_WEIGHT } else { DRIFT_WEIGHT } * expected / predicted;
                let drift = &mut self.drift[which];
                *drift = (*drift * (1.0 + weight * (ratio - 1.0))).clamp(1.0 / DRIFT_RANGE, DRIFT_RANGE);
            }
        }
    }

    /// The points of the curve.
    pub fn knots(&self) -> &[Knot] {
        &self.knots
    }

    /// Seconds per unit of work.
    pub fn terms(&self) -> Terms {
        self.terms
    }

    /// Current time over time at calibration: for decode rows, and for what prompts add.
    pub fn drift(&self) -> [f64; 2] {
        self.drift
    }

    /// Seconds of a pass over the weights.
    fn weights(&self, rows: usize) -> f64 {
        let parts = around(self.knots.len(), |index| self.knots[index].rows, rows);
        parts.into_iter().map(|(index, weight)| self.knots[index].seconds * weight).sum()
    }
}

/// Candidate rows of one prompt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PromptRows {
    /// Its computed tokens.
    pub(crate) start: usize,
    pub(crate) most: usize,
    /// Its uncomputed tokens; the row that ends the prompt has logits.
    pub(crate) uncomputed: usize,
}

impl PromptRows {
    /// The first `most` rows of a prompt that does not end within them.
    pub(crate) fn first(most: usize) -> PromptRows {
        PromptRows { start: 0, most, uncomputed: usize::MAX }
    }
}

/// Predicted seconds of a step, by term.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Parts {
    /// The pass over the weights, for the rows of both phases.
    pub weights: f64,
    /// Prompt rows against keys.
    pub prefill_attention: f64,
    /// Decode rows against keys.
    pub decode_attention: f64,
    /// Overhead per decode row.
    pub decode_rows: f64,
    /// Overhead per prompt.
    pub prompts: f64,
    /// Logits and sampling.
    pub logits: f64,
}

impl Parts {
    /// The sum.
    pub fn total(&self) -> f64 {
        self.weights + self.prefill_attention + self.decode_attention + self.decode_rows + self.prompts + self.logits
    }
}

/// Units of [`Work`] in the order of [`Terms`].
fn amounts(work: &Work) -> [f64; NUM_TERMS] {
    [
        (work.prefill_pairs + work.draft_pairs) as f64,
        work.decode_context as f64,
        work.decode_rows as f64,
        work.prefill_seqs as f64,
        work.logit_rows.min(1) as f64,
        work.logit_rows as f64,
    ]
}

/// The two of `len` points around `rows`, and their interpolation weights. The curve is flat before the first point and
/// extrapolates the last slope beyond the last.
fn around(len: usize, rows_at: impl Fn(usize) -> usize, rows: usize) -> [(usize, f64); 2] {
    let (mut low, mut high) = (0, len);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if rows_at(middle) <= rows { low = middle } else { high = middle }
    }
    if len == 1 || rows <= rows_at(0) {
        return [(low, 1.0), (low, 0.0)];
    }
    let low = low.min(len - 2);
    let (from, to) = (rows_at(low) as f64, rows_at(low + 1) as f64);
    let share = (rows as f64 - from) / (to - from);
    [(low, 1.0 - share), (low + 1, share)]
}

/// One weighted least-squares fit. The unknowns are the first point, the increment of each further point, and the
/// terms.
fn weighted_fit(rows: &[usize], steps: &[(Work, Nanos)], weights: &[f64]) -> CostModel {
    let size = rows.len() + NUM_TERMS;
    let mut normal = vec![0.0; size * size];
    let mut right = vec![0.0; size];
    let mut features = vec![0.0; size];
    for ((work, time), &weight) in steps.iter().zip(weights) {
        let scale = 1.0 / time.as_secs_f64().max(1e-9);
        features.fill(0.0);
        for (index, share) in around(rows.len(), |index| rows[index], work.rows()) {
            features[..=index].iter_mut().for_each(|feature| *feature += share * scale);
        }
        for (feature, amount) in features[rows.len()..].iter_mut().zip(amounts(work)) {
            *feature = amount * scale;
        }
        for (i, &a) in features.iter().enumerate() {
            right[i] += a * weight;
            for (sum, &b) in normal[i * size..][..size].iter_mut().zip(&features) {
                *sum += a * b * weight;
            }
        }
    }
    let solution = non_negative(&normal, &right);
    let mut seconds = 0.0;
    let knots = rows.iter().zip(&solution).map(|(&rows, &more)| {
        seconds += more;
        Knot { rows, seconds }
    });
    let knots = knots.collect();
    let [pair, key, row, prompt, head, logits] = solution[rows.len()..].try_into().expect("the terms");
    CostModel::new(knots, Terms { pair, key, row, prompt, head, logits })
}

/// Solves `normal x = right` in the least-squares sense with `x >= 0`, by coordinate descent. Unknowns without data
/// stay 0.
fn non_negative(normal: &[f64], right: &[f64]) -> Vec<f64> {
    let size = right.len();
    let mut x = vec![0.0; size];
    for _ in 0..SWEEPS {
        let mut moved = 0.0_f64;
        for i in 0..size {
            let row = &normal[i * size..][..size];
            if row[i] <= 0.0 {
                continue;
            }
            let others: f64 = row.iter().zip(&x).map(|(a, b)| a * b).sum::<f64>() - row[i] * x[i];
            let better = ((right[i] - others) / row[i]).max(0.0);
            // In units of the squared relative error.
            moved = moved.max((better - x[i]) * (better - x[i]) * row[i]);
            x[i] = better;
        }
        if moved < CONVERGED * CONVERGED {
            break;
        }
    }
    x
}
