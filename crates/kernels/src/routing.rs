//! Mixtures of experts (Shazeer et al., 2017): routing of rows to experts, gather and scatter.
//!
//! ```text
//! router logits of a row   [ 0.3 | 2.1 | -1.0 | 2.1 | 0.9 ]     top_k = 2
//! chosen                   [ 1, 3 ]     by falling logit, ties by the lower index
//! weights                  softmax over all logits, or over the chosen ones
//!
//! scores by sigmoid (DeepSeek-AI, 2024)                        s = 1 / (1 + e^-logit)
//! chosen                   by s + bias, in the groups of experts whose two best sum to most
//! weights                  s, over the sum of the chosen + eps, times a factor: the bias has no part in them
//! expert 3                 gather its rows -> products -> scatter_add(weight * result) to their places
//! ```
//! A row's routing depends on that row alone, and the caller's order of the experts is the order in which a row adds
//! their results: nothing here depends on the other rows.

use crate::isa::Isa;
use crate::mem::{Buffer, OutOfMemory};
use crate::pointwise::{AddScaled, Shared, share_rows};
use crate::simd::{Kernel, Simd, dispatch, exp};
use crate::threads::Pool;

/// Most experts of a layer whose scores are a sigmoid.
pub const MAX_EXPERTS: usize = 1024;

/// Number of experts per row, what makes their weights of logits, and the normalization.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoutingRule {
    /// Experts per row; from 1 to all.
    pub top_k: usize,
    /// Weights are shares of the sum over the chosen experts; otherwise they are the scores themselves.
    pub over_chosen: bool,
    /// Of logits.
    pub scores: Scores,
}

/// What becomes of an expert's logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scores {
    /// Its share in the softmax over all experts. The choice is by logits, or by shares and the bias of [`Routing`].
    Softmax,
    /// The same, times a factor, and a row goes to some groups of experts only: those with the best single ones
    /// (DeepSeek-V2: DeepSeek-AI, 2024).
    GroupedSoftmax {
        /// Groups of experts, all of a size; divides their number.
        groups: usize,
        /// How many groups a row may go to. They hold `top_k` experts or more.
        kept_groups: usize,
        /// Multiplies weights.
        factor: f32,
    },
    /// `1 / (1 + exp(-logit))`, by which what an expert reads is multiplied, and not what it gives (Llama 4).
    OfInputs,
    /// Of each chosen expert its share in the softmax over those that are near it and not chosen before: whose logits
    /// are less than a part of it away (SparseMixer: Liu et al., 2024; Phi-3.5-MoE).
    Sparse {
        /// `(largest - logit) / max(|logit|, largest)` of those is at most this.
        tolerance: f32,
    },
    /// `1 / (1 + exp(-logit))`. The choice is by these, and by the bias of [`Routing`].
    Sigmoid {
        /// Groups of experts, all of a size; divides their number. In each there are two experts or more, if there are
        /// several groups.
        groups: usize,
        /// How many groups a row may go to: those whose two best experts sum to most. They hold `top_k` experts or more.
        kept_groups: usize,
        /// Added to the sum that weights are divided by.
        sum_eps: f32,
        /// Multiplies weights.
        factor: f32,
    },
}

/// How rows are routed.
#[derive(Clone, Copy, Debug)]
pub struct Routing<'a> {
    /// Experts to choose from.
    pub num_experts: usize,
    /// The choice and the weights.
    pub rule: RoutingRule,
    /// `[num_experts]`, added to scores for the choice alone.
    pub bias: Option<&'a [f32]>,
}

/// Chooses `rule.top_k` experts for each row of `logits` `[rows, num_experts]`.
///
/// `chosen`, `weights`: `[rows, top_k]`, by falling logit in the order of [`f32::total_cmp`], any NaN first, ties by
/// the lower index. A weight is `exp(logit - largest) / sum`, the sum in the order of `chosen`, or over all experts by
/// index.
///
/// Of [`Scores::Sigmoid`] they are by falling score with bias; a weight is `score / (sum + sum_eps) * factor`, the sum in
/// the order of `chosen`, or `score * factor`. Of [`Scores::Sparse`] it is `1 / sum` of
/// `exp(logit - its own)`, by index.
///
/// Panics when shapes disagree.
pub fn route(pool: Option<&Pool>, isa: Isa, logits: &[f32], how: Routing<'_>, chosen: &mut [u32], weights: &mut [f32]) {
    struct Rows<'a>(&'a [f32], Routing<'a>, &'a mut [u32], &'a mut [f32]);

    impl Rows<'_> {
        #[inline(always)]
        fn each(self) {
            let Rows(logits, Routing { num_experts, rule, bias }, chosen, weights) = self;
            let rows = logits.chunks_exact(num_experts);
            let results = chosen.chunks_exact_mut(rule.top_k).zip(weights.chunks_exact_mut(rule.top_k));
            match rule.scores {
                Scores::Softmax => {
                    for (logits, (chosen, weights)) in rows.zip(results) {
                        let largest = match bias {
                            None => {
                                choose_of(|| ranks_of(logits), chosen);
                                logits[chosen[0] as usize]
                            }
                            Some(bias) => choose_shares(logits, bias, chosen),
                        };
                        weigh_shares(logits, largest, (rule.over_chosen, 1.0), chosen, weights);
                    }
                }
                Scores::GroupedSoftmax { groups, kept_groups, factor } => {
                    let mut ranks = [0; MAX_EXPERTS];
                    let ranks = &mut ranks[..num_experts];
                    for (logits, (chosen, weights)) in rows.zip(results) {
                        ranks.iter_mut().zip(ranks_of(logits)).for_each(|(rank, of)| *rank = of);
                        keep_groups(ranks, (groups, kept_groups), |best, _| ranked(best));
                        choose(ranks, chosen);
                        weigh_shares(logits, logits[chosen[0] as usize], (rule.over_chosen, factor), chosen, weights);
                    }
                }
                Scores::OfInputs => {
                    for (logits, (chosen, weights)) in rows.zip(results) {
                        choose_of(|| ranks_of(logits), chosen);
                        weigh_sigmoids(logits, (None, 1.0), chosen, weights);
                    }
                }
                Scores::Sparse { tolerance } => {
                    for (logits, (chosen, weights)) in rows.zip(results) {
                        choose_of(|| ranks_of(logits), chosen);
                        weigh_near(logits, tolerance, chosen, weights);
                    }
                }
                Scores::Sigmoid { groups, kept_groups, sum_eps, factor } => {
                    let mut ranks = [0; MAX_EXPERTS];
                    let ranks = &mut ranks[..num_experts];
                    for (logits, (chosen, weights)) in rows.zip(results) {
                        rank_sigmoids(logits, bias, ranks);
                        keep_groups(ranks, (groups, kept_groups), |best, second| ranked(best) + ranked(second));
                        choose(ranks, chosen);
                        let sum_eps = if rule.over_chosen { Some(sum_eps) } else { None };
                        weigh_sigmoids(logits, (sum_eps, factor), chosen, weights);
                    }
                }
            }
        }
    }

    impl Kernel for Rows<'_> {
        type Output = ();

        fn define(self) {
            self.each();
        }

        /// The same loops: compiled for an instruction set with FMA they are fast enough.
        #[inline(always)]
        fn run<S: Simd>(self, _: S) {
            self.each();
        }
    }

    let Routing { num_experts, rule: RoutingRule { top_k, scores, .. }, bias } = how;
    if let Scores::Sigmoid { groups, kept_groups, .. } | Scores::GroupedSoftmax { groups, kept_groups, .. } = scores {
        let size = num_experts.checked_div(groups).unwrap_or(0);
        assert!(num_experts <= MAX_EXPERTS && size * groups == num_experts, "{num_experts} experts in {groups} groups");
        assert!(groups == 1 || size > 1 || !matches!(scores, Scores::Sigmoid { .. }), "a group of {size}");
        assert!((1..=groups).contains(&kept_groups) && kept_groups * size >= top_k, "{kept_groups} of {groups} groups");
    }
    assert!(
        bias.is_none_or(|bias| {
            let takes_one = matches!(scores, Scores::Softmax | Scores::Sigmoid { .. });
            bias.len() == num_experts && takes_one
        }),
        "the bias is [num_experts]"
    );
    assert!((1..=num_experts).contains(&top_k), "{top_k} of {num_experts} experts");
    assert!(u32::try_from(num_experts).is_ok(), "{num_experts} experts");
    assert!(logits.len().is_multiple_of(num_experts), "{} logits are no rows of {num_experts}", logits.len());
    let rows = logits.len() / num_experts;
    assert_eq!((chosen.len(), weights.len()), (rows * top_k, rows * top_k), "chosen and weights are [rows, top_k]");
    let (chosen, weights) = (Shared::new(chosen), Shared::new(weights));
    share_rows(pool, rows, top_k * num_experts, &|rows| {
        let part = rows.start * top_k..rows.end * top_k;
        // SAFETY: each row is in one range.
        let (chosen, weights) = unsafe { (chosen.part(part.clone()), weights.part(part)) };
        let logits = &logits[rows.start * num_experts..rows.end * num_experts];
        dispatch(isa, Rows(logits, how, chosen, weights));
    });
}

/// Ranks of the experts by logit.
#[inline(always)]
fn ranks_of(logits: &[f32]) -> impl Iterator<Item = u64> {
    logits.iter().zip(0u32..).map(|(&logit, expert)| rank(logit, expert))
}

/// Chooses by share in the softmax over all and bias; returns the largest logit.
#[inline(always)]
fn choose_shares(logits: &[f32], bias: &[f32], chosen: &mut [u32]) -> f32 {
    let largest = ranks_of(logits).max().map_or(0.0, ranked);
    let sum = logits.iter().fold(0.0, |sum, &logit| sum + exp(logit - largest));
    let share = |expert: usize| exp(logits[expert] - largest) / sum + bias[expert];
    choose_of(|| (0..logits.len()).map(|expert| rank(share(expert), expert as u32)), chosen);
    largest
}

/// Shares in the softmax, over the chosen or all, times a factor.
#[inline(always)]
fn weigh_shares(logits: &[f32], largest: f32, (over_chosen, factor): (bool, f32), chosen: &[u32], weights: &mut [f32]) {
    let mut sum = 0.0;
    for (weight, &expert) in weights.iter_mut().zip(chosen) {
        *weight = exp(logits[expert as usize] - largest);
        sum += *weight;
    }
    if !over_chosen {
        sum = logits.iter().map(|&logit| exp(logit - largest)).fold(0.0, |sum, x| sum + x);
    }
    for weight in weights {
        *weight = *weight / sum * factor;
    }
}

/// See [`Scores::Sparse`].
#[inline(always)]
fn weigh_near(logits: &[f32], tolerance: f32, chosen: &[u32], weights: &mut [f32]) {
    for (place, weight) in weights.iter_mut().enumerate() {
        let (before, largest) = (&chosen[..place], logits[chosen[place] as usize]);
        let mut sum = 0.0;
        for (&logit, expert) in logits.iter().zip(0u32..) {
            let is_far = (largest - logit) / logit.abs().max(largest) > tolerance;
            if !is_far && !before.contains(&expert) {
                sum += exp(logit - largest);
            }
        }
        *weight = 1.0 / sum;
    }
}

/// The experts of the highest ranks, falling.
#[inline(always)]
fn choose_of<I: Iterator<Item = u64>>(ranks: impl Fn() -> I, chosen: &mut [u32]) {
    let mut above = u64::MAX;
    for chosen in chosen {
        above = ranks().filter(|&rank| rank < above).max().unwrap_or(0);
        *chosen = !(above as u32);
    }
}

#[inline(always)]
fn choose(ranks: &[u64], chosen: &mut [u32]) {
    choose_of(|| ranks.iter().copied(), chosen);
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(0.0 - x))
}

/// Ranks of the experts by score and bias.
#[inline(always)]
fn rank_sigmoids(logits: &[f32], bias: Option<&[f32]>, ranks: &mut [u64]) {
    for (expert, (rank_of, &logit)) in ranks.iter_mut().zip(logits).enumerate() {
        let score = sigmoid(logit);
        *rank_of = rank(bias.map_or(score, |bias| score + bias[expert]), expert as u32);
    }
}

/// Takes the experts of all groups but some out of the choice: their rank is 0. A group counts as `score` says of the
/// ranks of its best two experts.
#[inline(always)]
fn keep_groups(ranks: &mut [u64], (groups, kept): (usize, usize), score: impl Fn(u64, u64) -> f32) {
    if kept == groups {
        return;
    }
    let size = ranks.len() / groups;
    let mut scores = [0; MAX_EXPERTS];
    let scores = &mut scores[..groups];
    for (group, (of_group, ranks)) in scores.iter_mut().zip(ranks.chunks_exact(size)).enumerate() {
        let (mut best, mut second) = (0, 0);
        for &rank in ranks {
            second = second.max(rank.min(best));
            best = best.max(rank);
        }
        *of_group = rank(score(best, second), group as u32);
    }
    let mut above = u64::MAX;
    for _ in 0..kept {
        above = scores.iter().copied().filter(|&rank| rank < above).max().unwrap_or(0);
    }
    for (ranks, &of_group) in ranks.chunks_exact_mut(size).zip(&*scores) {
        if of_group < above {
            ranks.fill(0);
        }
    }
}

/// `sum_eps`: weights are divided by the sum of the chosen and this.
#[inline(always)]
fn weigh_sigmoids(logits: &[f32], (sum_eps, factor): (Option<f32>, f32), chosen: &[u32], weights: &mut [f32]) {
    let mut sum = 0.0;
    for (weight, &expert) in weights.iter_mut().zip(chosen) {
        *weight = sigmoid(logits[expert as usize]);
        sum += *weight;
    }
    let sum = sum_eps.map(|eps| sum + eps);
    for weight in weights {
        *weight = sum.map_or(*weight, |sum| *weight / sum) * factor;
    }
}

/// Sort key: higher for larger logits, ties for lower indices; no two experts share one. A NaN is above all numbers
/// whatever its sign, which differs between machines: infinity - infinity has one on x86, and none on AArch64.
#[inline(always)]
fn rank(logit: f32, expert: u32) -> u64 {
    let bits = if logit.is_nan() { f32::NAN.to_bits() } else { logit.to_bits() } as i32;
    let ordered = (bits ^ ((bits >> 31) as u32 >> 1) as i32) as u32 ^ 0x8000_0000; // as total_cmp orders them
    u64::from(ordered) << 32 | u64::from(!expert)
}

/// The number that was ranked.
#[inline(always)]
fn ranked(rank: u64) -> f32 {
    let ordered = ((rank >> 32) as u32 ^ 0x8000_0000) as i32;
    f32::from_bits((ordered ^ ((ordered >> 31) as u32 >> 1) as i32) as u32)
}

/// `out[i] = from[rows[i]]`, rows of `width` elements.
///
/// Panics if a row is out of range or `out` is not `[rows.len(), width]`.
pub fn gather(pool: Option<&Pool>, from: &[f32], width: usize, rows: &[u32], out: &mut [f32]) {
    assert_eq!(out.len(), rows.len() * width, "out is not [rows, width]");
    let out = Shared::new(out);
    share_rows(pool, rows.len(), width, &|part| {
        for i in part {
            // SAFETY: each row of `out` is in one range.
            let out = unsafe { out.part(i * width..(i + 1) * width) };
            out.copy_from_slice(&from[rows[i] as usize * width..][..width]);
        }
    });
}

/// `x[rows[i]] = weights[i] * y[i] + x[rows[i]]`, rounded once; rows of `width` elements.
///
/// Panics if `rows` does not rise, a row is out of range, or `y` is not `[rows.len(), width]`.
pub fn scatter_add(
    pool: Option<&Pool>,
    isa: Isa,
    y: &[f32],
    weights: &[f32],
    rows: &[u32],
    width: usize,
    x: &mut [f32],
) {
    assert_eq!(
        (y.len(), weights.len()),
        (rows.len() * width, rows.len()),
        "y is not [rows, width], or weights not [rows]"
    );
    assert!(rows.is_sorted_by(|a, b| a < b), "the rows do not rise");
    let x = Shared::new(x);
    share_rows(pool, rows.len(), 2 * width, &|part| {
        for i in part {
            let row = rows[i] as usize;
            // SAFETY: the rows rise, so they are distinct, and each `i` is in one range.
            let x = unsafe { x.part(row * width..(row + 1) * width) };
            dispatch(isa, AddScaled { y: &y[i * width..(i + 1) * width], scale: weights[i], x });
        }
    });
}

/// The rows of a step grouped by expert, in host memory.
///
/// ```text
/// chosen        row 0 [3,1]   row 1 [0,3]   row 2 [3,2]
/// grouped       expert 0: row 1 | 1: row 0 | 2: row 2 | 3: rows 0 1 2
/// ```
pub struct Routes {
    rule: RoutingRule,
    /// `[max_rows, top_k]`.
    chosen: Buffer<u32>,
    /// `[max_rows, top_k]`.
    weights: Buffer<f32>,
    /// `[num_experts]`: the end of each expert's rows; they start at the end of the previous expert's.
    ends: Buffer<u32>,
    /// `[max_rows * top_k]`, sorted by expert, the rows of each rising.
    rows: Buffer<u32>,
    /// Weights of `rows`.
    row_weights: Buffer<f32>,
    /// Factors of what `rows` are for an expert; empty: all 1.
    input_factors: Buffer<f32>,
}

impl Routes {
    /// Memory for at most `max_rows` rows, initially without any.
    pub fn new(max_rows: usize, num_experts: usize, rule: RoutingRule) -> Result<Routes, OutOfMemory> {
        let len = max_rows.checked_mul(rule.top_k).ok_or(OutOfMemory { bytes: usize::MAX })?;
        Ok(Routes {
            rule,
            chosen: Buffer::zeroed(len)?,
            weights: Buffer::zeroed(len)?,
            ends: Buffer::zeroed(num_experts)?,
            rows: Buffer::zeroed(len)?,
            row_weights: Buffer::zeroed(len)?,
            input_factors: Buffer::zeroed(if rule.scores == Scores::OfInputs { len } else { 0 })?,
        })
    }

    /// Routes `rows` rows: `choose` gets the number of experts and the rule, and fills the chosen experts and their weights,
    /// `[rows, top_k]` each.
    pub fn fill(&mut self, rows: usize, choose: impl FnOnce(usize, RoutingRule, &mut [u32], &mut [f32])) {
        let len = rows * self.rule.top_k;
        choose(self.ends.len(), self.rule, &mut self.chosen[..len], &mut self.weights[..len]);
        // Counting sort.
        self.ends.fill(0);
        for &expert in &self.chosen[..len] {
            self.ends[expert as usize] += 1;
        }
        let mut start = 0;
        for end in self.ends.iter_mut() {
            start += std::mem::replace(end, start); // position of the expert's next row
        }
        for (index, (&expert, &weight)) in self.chosen[..len].iter().zip(&self.weights[..len]).enumerate() {
            let at = &mut self.ends[expert as usize];
            self.rows[*at as usize] = (index / self.rule.top_k) as u32;
            self.row_weights[*at as usize] = weight;
            if let Some(factor) = self.input_factors.get_mut(*at as usize) {
                (*factor, self.row_weights[*at as usize]) = (weight, 1.0);
            }
            *at += 1;
        }
    }

    /// The rows of an expert and their weights.
    pub fn of(&self, expert: usize) -> (&[u32], &[f32]) {
        let range = self.range(expert);
        (&self.rows[range.clone()], &self.row_weights[range])
    }

    /// What multiplies each of these before the expert reads it; empty: nothing does.
    pub fn input_factors(&self, expert: usize) -> &[f32] {
        if self.input_factors.is_empty() { &[] } else { &self.input_factors[self.range(expert)] }
    }

    fn range(&self, expert: usize) -> std::ops::Range<usize> {
        let start = if expert == 0 { 0 } else { self.ends[expert - 1] as usize };
        start..self.ends[expert] as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_grouped_by_expert_and_rise() {
        let rule = RoutingRule { top_k: 2, over_chosen: true, scores: Scores::Softmax };
        let mut routes = Routes::new(4, 5, rule).unwrap();
        routes.rows.fill(9);
        routes.fill(3, |num_experts, given, chosen, weights| {
            assert_eq!((num_experts, given), (5, rule));
            chosen.copy_from_slice(&[3, 1, 0, 3, 3, 2]);
            weights.copy_from_slice(&[0.6, 0.4, 0.9, 0.1, 0.8, 0.2]);
        });
        let expected: [(&[u32], &[f32]); 5] =
            [(&[1], &[0.9]), (&[0], &[0.4]), (&[2], &[0.2]), (&[0, 1, 2], &[0.6, 0.1, 0.8]), (&[], &[])];
        for (expert, expected) in expected.into_iter().enumerate() {
            assert_eq!(routes.of(expert), expected, "expert {expert}");
        }
    }
}
