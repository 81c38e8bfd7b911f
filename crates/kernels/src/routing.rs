//! Mixtures of experts (Shazeer et al., 2017): routing of rows to experts, gather and scatter.
//!
//! ```text
//! router logits of a row   [ 0.3 | 2.1 | -1.0 | 2.1 | 0.9 ]     top_k = 2
//! chosen                   [ 1, 3 ]     by falling logit, ties by the lower index
//! weights                  softmax over all logits, or over the chosen ones
//! expert 3                 gather its rows -> products -> scatter_add(weight * result) to their places
//! ```
//! A row's routing depends on that row alone, and the caller's order of the experts is the order in which a row adds
//! their results: nothing here depends on the other rows.

use crate::isa::Isa;
use crate::mem::{Buffer, OutOfMemory};
use crate::pointwise::{AddScaled, Shared, share_rows};
use crate::simd::{Kernel, Simd, dispatch, exp};
use crate::threads::Pool;

/// Number of experts per row, and the normalization of their weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoutingRule {
    /// Experts per row; from 1 to all.
    pub top_k: usize,
    /// Softmax over the chosen experts, so that their weights sum to 1; otherwise over all experts.
    pub over_chosen: bool,
}

/// Chooses `rule.top_k` experts for each row of `logits` `[rows, num_experts]`.
///
/// `chosen`, `weights`: `[rows, top_k]`, by falling logit in the order of [`f32::total_cmp`], ties by the lower index. A
/// weight is `exp(logit - largest) / sum`, the sum in the order of `chosen`, or over all experts by index.
pub fn route(
    pool: Option<&Pool>,
    isa: Isa,
    logits: &[f32],
    num_experts: usize,
    rule: RoutingRule,
    chosen: &mut [u32],
    weights: &mut [f32],
) {
    struct Rows<'a>(&'a [f32], usize, RoutingRule, &'a mut [u32], &'a mut [f32]);

    impl Rows<'_> {
        #[inline(always)]
        fn each(self) {
            let Rows(logits, num_experts, rule, chosen, weights) = self;
            let rows = logits.chunks_exact(num_experts);
            let results = chosen.chunks_exact_mut(rule.top_k).zip(weights.chunks_exact_mut(rule.top_k));
            for (logits, (chosen, weights)) in rows.zip(results) {
                route_row(logits, rule, chosen, weights);
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

    let RoutingRule { top_k, .. } = rule;
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
        dispatch(isa, Rows(logits, num_experts, rule, chosen, weights));
    });
}

/// See [`route`].
#[inline(always)]
fn route_row(logits: &[f32], rule: RoutingRule, chosen: &mut [u32], weights: &mut [f32]) {
    let mut above = u64::MAX;
    for chosen in chosen.iter_mut() {
        let ranks = logits.iter().zip(0u32..).map(|(&logit, expert)| rank(logit, expert));
        above = ranks.filter(|&rank| rank < above).max().unwrap_or(0);
        *chosen = !(above as u32);
    }
    let largest = logits[chosen[0] as usize];
    let mut sum = 0.0;
    for (weight, &expert) in weights.iter_mut().zip(&*chosen) {
        *weight = exp(logits[expert as usize] - largest);
        sum += *weight;
    }
    if !rule.over_chosen {
        sum = logits.iter().map(|&logit| exp(logit - largest)).fold(0.0, |sum, x| sum + x);
    }
    for weight in weights {
        *weight /= sum;
    }
}

/// Sort key: higher for larger logits, ties for lower indices; no two experts share one.
#[inline(always)]
fn rank(logit: f32, expert: u32) -> u64 {
    let bits = logit.to_bits() as i32;
    let ordered = (bits ^ ((bits >> 31) as u32 >> 1) as i32) as u32 ^ 0x8000_0000; // as total_cmp orders them
    u64::from(ordered) << 32 | u64::from(!expert)
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
            *at += 1;
        }
    }

    /// The rows of an expert and their weights.
    pub fn of(&self, expert: usize) -> (&[u32], &[f32]) {
        let start = if expert == 0 { 0 } else { self.ends[expert - 1] as usize };
        let range = start..self.ends[expert] as usize;
        (&self.rows[range.clone()], &self.row_weights[range])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_grouped_by_expert_and_rise() {
        let rule = RoutingRule { top_k: 2, over_chosen: true };
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
