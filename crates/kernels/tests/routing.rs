//! Routing rows to experts: the choice, the weights, the way there and back. The same bits on every path.

use crate::paths;

use kernels::Isa;
use kernels::routing::{RoutingRule, gather, route, scatter_add};
use kernels::threads::Pool;
use paths::{bits, every_path, numbers};

fn routed(
    pool: Option<&Pool>,
    isa: Isa,
    logits: &[f32],
    num_experts: usize,
    rule: RoutingRule,
) -> (Vec<u32>, Vec<f32>) {
    let len = logits.len() / num_experts * rule.top_k;
    let (mut chosen, mut weights) = (vec![u32::MAX; len], vec![f32::NAN; len]);
    route(pool, isa, logits, num_experts, rule, &mut chosen, &mut weights);
    (chosen, weights)
}

#[test]
fn routing_has_one_set_of_bits() {
    for (num_experts, top_k) in [(1, 1), (4, 2), (8, 2), (60, 4), (128, 8), (5, 5)] {
        for over_chosen in [false, true] {
            for rows in [0, 1, 33, 700] {
                let logits = numbers(num_experts as u64, rows * num_experts);
                let rule = RoutingRule { top_k, over_chosen };
                every_path(&format!("{rows} rows, {rule:?} of {num_experts}"), |pool, isa| {
                    let (chosen, weights) = routed(pool, isa, &logits, num_experts, rule);
                    (chosen, bits(&weights))
                });
            }
        }
    }
}

#[test]
fn the_largest_logits_are_chosen_and_of_equal_ones_the_lowest_index() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    for (logits, expected) in [
        ([0.3, 2.1, -1.0, 2.1, 0.9], [1, 3, 4]),
        ([0.0; 5], [0, 1, 2]),
        ([-3.0, -1.0, -2.0, -1.0, -4.0], [1, 3, 2]),
        ([-inf, 1e-40, -1e-40, 0.0, -inf], [1, 3, 2]),
        ([1.0, nan, 2.0, 3.0, nan], [1, 4, 3]), // as total_cmp orders: a broken row goes somewhere, always the same
    ] {
        let (chosen, _) = routed(None, Isa::Scalar, &logits, 5, RoutingRule { top_k: 3, over_chosen: true });
        assert_eq!(chosen, expected, "{logits:?}");
    }
}

#[test]
fn weights_are_a_softmax_over_all_or_over_the_chosen() {
    let (rows, num_experts, top_k) = (50, 16, 3);
    let logits = numbers(7, rows * num_experts);
    for over_chosen in [false, true] {
        let (chosen, weights) = routed(None, Isa::Scalar, &logits, num_experts, RoutingRule { top_k, over_chosen });
        for row in 0..rows {
            let logits = &logits[row * num_experts..][..num_experts];
            let (chosen, weights) = (&chosen[row * top_k..][..top_k], &weights[row * top_k..][..top_k]);
            let largest = logits.iter().copied().fold(f32::MIN, f32::max) as f64;
            let e = |expert: usize| libm::exp(logits[expert] as f64 - largest);
            let sum: f64 = match over_chosen {
                true => chosen.iter().map(|&expert| e(expert as usize)).sum(),
                false => (0..num_experts).map(e).sum(),
            };
            for (&expert, &weight) in chosen.iter().zip(weights) {
                let want = e(expert as usize) / sum;
                assert!((weight as f64 - want).abs() < 1e-6, "{weight} for {want}");
            }
        }
    }
}

#[test]
fn rows_go_there_and_back() {
    for (rows, width) in [(1, 1), (9, 17), (300, 200)] {
        let (x, y) = (numbers(1, rows * width), numbers(2, rows * width));
        let (picked, weights): (Vec<u32>, Vec<f32>) =
            (0..rows as u32).step_by(3).map(|row| (row, row as f32 / 7.0)).unzip();
        every_path(&format!("{rows} rows of {width}"), |pool, isa| {
            let mut gathered = vec![f32::NAN; picked.len() * width];
            gather(pool, &y, width, &picked, &mut gathered);
            let mut sum = x.clone();
            scatter_add(pool, isa, &gathered, &weights, &picked, width, &mut sum);
            for (i, sum) in sum.iter().enumerate() {
                let weight = if (i / width).is_multiple_of(3) { (i / width) as f32 / 7.0 } else { 0.0 };
                assert_eq!(*sum, y[i].mul_add(weight, x[i]), "number {i}");
            }
            bits(&sum)
        });
    }
}

#[test]
#[should_panic(expected = "the rows do not rise")]
fn a_row_that_occurs_twice_is_a_bug() {
    scatter_add(None, Isa::Scalar, &[1.0; 6], &[1.0; 3], &[1, 2, 2], 2, &mut [0.0; 8]);
}
