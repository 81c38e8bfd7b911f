//! Routing rows to experts: the choice, the weights, the way there and back. The same bits on every path.

use crate::paths;

use kernels::Isa;
use kernels::routing::{Routing, RoutingRule, Scores, gather, route, scatter_add};
use kernels::threads::Pool;
use paths::{bits, every_path, numbers};

fn routed(pool: Option<&Pool>, isa: Isa, logits: &[f32], how: Routing<'_>) -> (Vec<u32>, Vec<f32>) {
    let len = logits.len() / how.num_experts * how.rule.top_k;
    let (mut chosen, mut weights) = (vec![u32::MAX; len], vec![f32::NAN; len]);
    route(pool, isa, logits, how, &mut chosen, &mut weights);
    (chosen, weights)
}

fn softmax(num_experts: usize, top_k: usize, over_chosen: bool) -> Routing<'static> {
    Routing { num_experts, rule: RoutingRule { top_k, over_chosen, scores: Scores::Softmax }, bias: None }
}

fn sigmoid(
    (num_experts, top_k): (usize, usize),
    (groups, kept_groups): (usize, usize),
    over_chosen: bool,
    bias: Option<&[f32]>,
) -> Routing<'_> {
    let scores = Scores::Sigmoid { groups, kept_groups, sum_eps: 1e-6, factor: 2.5 };
    Routing { num_experts, rule: RoutingRule { top_k, over_chosen, scores }, bias }
}

fn grouped(
    (num_experts, top_k): (usize, usize),
    (groups, kept_groups): (usize, usize),
    over_chosen: bool,
) -> Routing<'static> {
    let scores = Scores::GroupedSoftmax { groups, kept_groups, factor: 16.0 };
    Routing { num_experts, rule: RoutingRule { top_k, over_chosen, scores }, bias: None }
}

fn sparse(num_experts: usize, top_k: usize) -> Routing<'static> {
    let rule = RoutingRule { top_k, over_chosen: false, scores: Scores::Sparse { tolerance: 0.25 } };
    Routing { num_experts, rule, bias: None }
}

#[test]
fn shares_are_of_those_that_are_near() {
    for (logits, weights) in [
        ([2.0, 1.6, 1.4, -9.0], [1.0 / (1.0 + (-0.4f32).exp()), 1.0 / (1.0 + (-0.2f32).exp())]),
        ([-2.0, -1.9, -8.0, -2.6], [1.0 / (1.0 + (-0.1f32).exp()), 1.0 / (1.0 + (-0.6f32).exp())]),
        ([4.0, 1.0, 0.5, 0.0], [1.0, 1.0]),
        ([0.0; 4], [0.25, 1.0 / 3.0]),
    ] {
        let (_, found) = routed(None, Isa::Scalar, &logits, sparse(4, 2));
        let is_near = found.iter().zip(weights).all(|(found, weight)| (found - weight).abs() < 1e-6);
        assert!(is_near, "{logits:?}: {found:?}, not {weights:?}");
    }
}

#[test]
fn routing_has_one_set_of_bits() {
    for (num_experts, top_k) in [(1, 1), (4, 2), (8, 2), (60, 4), (128, 8), (5, 5)] {
        for over_chosen in [false, true] {
            for rows in [0, 1, 33, 700] {
                let logits = numbers(num_experts as u64, rows * num_experts);
                let bias = numbers(3, num_experts);
                let groups = if num_experts.is_multiple_of(4) && num_experts > 4 { (4, 2) } else { (1, 1) };
                for how in [
                    softmax(num_experts, top_k, over_chosen),
                    Routing { bias: Some(&bias), ..softmax(num_experts, top_k, over_chosen) },
                    sigmoid((num_experts, top_k), (1, 1), over_chosen, None),
                    sigmoid((num_experts, top_k), groups, over_chosen, Some(&bias)),
                    grouped((num_experts, top_k), groups, over_chosen),
                    sparse(num_experts, top_k),
                    Routing {
                        rule: RoutingRule { scores: Scores::OfInputs, ..sparse(1, top_k).rule },
                        ..sparse(num_experts, 1)
                    },
                ] {
                    every_path(&format!("{rows} rows, {how:?}"), |pool, isa| {
                        let (chosen, weights) = routed(pool, isa, &logits, how);
                        (chosen, bits(&weights))
                    });
                }
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
        ([1.0, -nan, 2.0, 3.0, nan], [1, 4, 3]),
        ([-nan, -inf, nan, -nan, inf], [0, 2, 3]),
    ] {
        let (chosen, _) = routed(None, Isa::Scalar, &logits, softmax(5, 3, true));
        assert_eq!(chosen, expected, "{logits:?}");
    }
}

#[test]
fn a_nan_s_sign_which_machines_give_differently_changes_no_choice() {
    let rules = [softmax(8, 3, true), softmax(8, 3, false), sigmoid((8, 3), (4, 2), true, None)];
    for (rule, seed) in rules.into_iter().flat_map(|rule| (0..8).map(move |seed| (rule, seed))) {
        let with = |nan: f32| {
            let mut logits = numbers(seed, 8);
            logits[seed as usize] = nan;
            logits[(seed as usize + 3) % 8] = f32::NAN;
            every_path("routing with NaN", |pool, isa| routed(pool, isa, &logits, rule).0);
            let (chosen, weights) = routed(None, Isa::Scalar, &logits, rule);
            (chosen, weights.iter().map(|weight| weight.is_nan()).collect::<Vec<_>>())
        };
        assert_eq!(with(f32::NAN), with(-f32::NAN), "{rule:?}");
        assert_eq!(with(f32::NAN), with(f32::from_bits(0xffff_ffff)), "{rule:?}");
    }
}

#[test]
fn weights_are_a_softmax_over_all_or_over_the_chosen() {
    let (rows, num_experts, top_k) = (50, 16, 3);
    let logits = numbers(7, rows * num_experts);
    for over_chosen in [false, true] {
        let (chosen, weights) = routed(None, Isa::Scalar, &logits, softmax(num_experts, top_k, over_chosen));
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

/// The logits of scores.
fn logits<const N: usize>(scores: [f32; N]) -> [f32; N] {
    scores.map(|score| (score / (1.0 - score)).ln())
}

#[test]
fn a_bias_and_groups_have_a_part_in_the_choice_alone() {
    let scores = [0.1, 0.9, 0.2, 0.3, 0.8, 0.6, 0.7, 0.5];
    let none = [0.0; 8];
    let bias = [1.0, 0.0, 0.0, 0.0, -1.0, 0.0, 0.25, 0.0];
    let equal = [0.5; 8];
    for (scores, bias, groups, expected) in [
        (scores, None, (1, 1), [1, 4, 6]),
        (scores, Some(none), (1, 1), [1, 4, 6]),
        (scores, Some(bias), (1, 1), [0, 6, 1]),
        // Two best of each pair: 1.0, 0.5, 1.4, 1.2.
        (scores, None, (4, 2), [4, 6, 5]),
        // Of each four: 1.2 and 1.5; with bias 2.0 and 1.55.
        (scores, None, (2, 1), [4, 6, 5]),
        (scores, Some(bias), (2, 1), [0, 1, 3]),
        (scores, Some(bias), (4, 3), [0, 6, 1]),
        (equal, None, (1, 1), [0, 1, 2]),
        (equal, None, (4, 2), [0, 1, 2]),
    ] {
        for over_chosen in [false, true] {
            let how = sigmoid((8, 3), groups, over_chosen, bias.as_ref().map(|bias| &bias[..]));
            let (chosen, weights) = routed(None, Isa::Scalar, &logits(scores), how);
            assert_eq!(chosen, expected, "{scores:?} {how:?}");
            let sum: f64 = chosen.iter().map(|&expert| f64::from(scores[expert as usize])).sum();
            for (&expert, &weight) in chosen.iter().zip(&weights) {
                let score = f64::from(scores[expert as usize]);
                let want = 2.5 * if over_chosen { score / (sum + 1e-6) } else { score };
                assert!((f64::from(weight) - want).abs() < 2e-6, "{weight} for {want}");
            }
        }
    }
    // The same of a softmax, whose scores are shares (ERNIE 4.5).
    let logits_of_shares = [0.1f32, 0.2, 0.3, 0.4].map(f32::ln);
    for over_chosen in [false, true] {
        let how = Routing { bias: Some(&[0.25, 0.0, 0.0, -0.25]), ..softmax(4, 2, over_chosen) };
        let (chosen, weights) = routed(None, Isa::Scalar, &logits_of_shares, how);
        assert_eq!(chosen, [0, 2]);
        let wanted = if over_chosen { [0.25, 0.75] } else { [0.1, 0.3] };
        assert!(weights.iter().zip(wanted).all(|(got, wanted)| (got - wanted).abs() < 1e-6), "{weights:?}");
    }
    // A group whose scores with bias are below zero is still one that may be kept.
    let (chosen, _) = routed(None, Isa::Scalar, &logits(scores), sigmoid((8, 3), (2, 2), true, Some(&[-2.0; 8])));
    assert_eq!(chosen, [1, 4, 6]);
    // A broken row goes somewhere, always the same.
    let (chosen, _) = routed(None, Isa::Scalar, &[f32::NAN; 8], sigmoid((8, 3), (4, 2), true, None));
    assert_eq!(chosen, [0, 1, 2]);
}

#[test]
fn shares_in_groups_are_of_the_groups_with_the_best_single_experts() {
    let logits = [1.0, 9.0, 2.0, 3.0, 8.0, 6.0, 7.0, 5.0];
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - 9.0f32).exp()).sum();
    for (groups, expected) in [
        ((1, 1), [1, 4, 6]),
        // Of pairs 9, 3, 8 and 7: not that of 7.
        ((4, 2), [1, 4, 5]),
        ((4, 3), [1, 4, 6]),
        // Of fours 9 and 8; singles are groups too.
        ((2, 1), [1, 3, 2]),
        ((8, 3), [1, 4, 6]),
    ] {
        let (chosen, weights) = routed(None, Isa::Scalar, &logits, grouped((8, 3), groups, false));
        assert_eq!(chosen, expected, "{groups:?}");
        for (&expert, &weight) in chosen.iter().zip(&weights) {
            let want = 16.0 * f64::from(logits[expert as usize] - 9.0).exp() / sum;
            assert!((f64::from(weight) - want).abs() < 1e-5 * want, "{weight} for {want}");
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
