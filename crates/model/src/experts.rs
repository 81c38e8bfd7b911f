//! A mixture of experts in place of the MLP (Shazeer et al., 2017): each row goes through a few of many small MLPs.
//!
//! ```text
//! rows              0      1      2                    router: bf16 in every weight class, then softmax and top k
//! chosen          [3,1]  [0,3]  [3,2]
//! grouped    expert 0: row 1 | 1: row 0 | 2: row 2 | 3: rows 0 1 2
//! per expert      gather its rows -> gate|up, down over them together -> times their weights -> added to their rows
//! ```
//! Experts are walked through by rising index, so a row sums its experts' results in that order, whoever else is in the
//! batch: its bits depend on itself alone. Experts without a row are not read.

use crate::config::ExpertConfig;
use crate::transformer::{Mlp, Pass, zeros};
use checkpoint::LoadError;
use kernels::{Backend, Out, RoutingRule};

/// The experts of a layer.
pub(crate) struct Experts<B: Backend> {
    /// `[num_experts, hidden_size]`.
    pub(crate) router: B::Matrix,
    pub(crate) experts: Vec<Mlp<B>>,
}

/// Memory for routing the rows of a pass.
pub(crate) struct ExpertScratch {
    /// `[max_rows, num_experts]`.
    logits: Vec<f32>,
    /// `[max_rows, top_k]`.
    chosen: Vec<u32>,
    /// `[max_rows, top_k]`.
    weights: Vec<f32>,
    groups: Groups,
    /// An expert's rows of the input, and what it makes of them: `[max_rows, hidden_size]` each.
    gathered: Vec<f32>,
    results: Vec<f32>,
}

impl ExpertScratch {
    pub(crate) fn new(experts: &ExpertConfig, hidden: usize, max_rows: usize) -> Result<ExpertScratch, LoadError> {
        let &ExpertConfig { num_experts, rule: RoutingRule { top_k, .. }, .. } = experts;
        Ok(ExpertScratch {
            logits: zeros(max_rows, num_experts)?,
            chosen: zeros(max_rows, top_k)?,
            weights: zeros(max_rows, top_k)?,
            groups: Groups {
                ends: zeros(1, num_experts)?,
                rows: zeros(max_rows, top_k)?,
                weights: zeros(max_rows, top_k)?,
            },
            gathered: zeros(max_rows, hidden)?,
            results: zeros(max_rows, hidden)?,
        })
    }
}

/// Rows and their weights, sorted by expert, the rows of each rising.
struct Groups {
    /// `[num_experts]`: where each expert's rows end; they start where those of the expert before end.
    ends: Vec<u32>,
    /// `[max_rows * top_k]`.
    rows: Vec<u32>,
    /// `[max_rows * top_k]`.
    weights: Vec<f32>,
}

impl Groups {
    /// Sorts by counting. `chosen`, `weights`: `[rows, top_k]`.
    fn sort(&mut self, chosen: &[u32], weights: &[f32], top_k: usize) {
        self.ends.fill(0);
        for &expert in chosen {
            self.ends[expert as usize] += 1;
        }
        let mut start = 0;
        for end in &mut self.ends {
            start += std::mem::replace(end, start); // where the expert's next row goes
        }
        for (index, (&expert, &weight)) in chosen.iter().zip(weights).enumerate() {
            let at = &mut self.ends[expert as usize];
            self.rows[*at as usize] = (index / top_k) as u32;
            self.weights[*at as usize] = weight;
            *at += 1;
        }
    }

    /// The rows of an expert and their weights.
    fn of(&self, expert: usize) -> (&[u32], &[f32]) {
        let start = if expert == 0 { 0 } else { self.ends[expert - 1] as usize };
        let range = start..self.ends[expert] as usize;
        (&self.rows[range.clone()], &self.weights[range])
    }
}

impl<B: Backend> Experts<B> {
    /// `rows` rows of `input`. `activated` is scratch, wide enough for an expert.
    pub(crate) fn apply(
        &self,
        pass: &Pass<'_, B>,
        (input, rows): (&[f32], usize),
        scratch: &mut ExpertScratch,
        activated: &mut [f32],
        out: Out<'_>,
    ) {
        let &Pass { backend, config } = pass;
        let ExpertConfig { num_experts, rule, .. } = config.experts.expect("the configuration of these experts");
        let ExpertScratch { logits, chosen, weights, groups, gathered, results } = scratch;
        let logits = &mut logits[..rows * num_experts];
        let (chosen, weights) = (&mut chosen[..rows * rule.top_k], &mut weights[..rows * rule.top_k]);
        backend.linear(input, &self.router, None, Out::Store(logits));
        backend.route(logits, num_experts, rule, chosen, weights);
        groups.sort(chosen, weights, rule.top_k);

        let x = match out {
            Out::Add(x) => x,
            Out::Store(out) => {
                out.fill(0.0);
                out
            }
            Out::Gated(..) => unreachable!("experts end in the residual stream"),
        };
        let hidden = config.hidden_size;
        for (index, expert) in self.experts.iter().enumerate() {
            let (rows, weights) = groups.of(index);
            if rows.is_empty() {
                continue;
            }
            let (gathered, results) = (&mut gathered[..rows.len() * hidden], &mut results[..rows.len() * hidden]);
            backend.gather(input, hidden, rows, gathered);
            expert.apply(pass, (gathered, rows.len()), activated, Out::Store(results));
            backend.scatter_add(results, weights, rows, hidden, x);
        }
    }

    /// Bytes of all experts.
    pub(crate) fn expert_bytes(&self, backend: &B) -> usize {
        self.experts.iter().map(|expert| expert.bytes(backend)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_grouped_by_expert_and_rise() {
        let mut groups = Groups { ends: vec![7; 5], rows: vec![9; 8], weights: vec![f32::NAN; 8] };
        groups.sort(&[3, 1, 0, 3, 3, 2], &[0.6, 0.4, 0.9, 0.1, 0.8, 0.2], 2);
        let expected: [(&[u32], &[f32]); 5] =
            [(&[1], &[0.9]), (&[0], &[0.4]), (&[2], &[0.2]), (&[0, 1, 2], &[0.6, 0.1, 0.8]), (&[], &[])];
        for (expert, expected) in expected.into_iter().enumerate() {
            assert_eq!(groups.of(expert), expected, "expert {expert}");
        }
    }
}
