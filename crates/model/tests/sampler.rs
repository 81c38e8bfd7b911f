//! From logits to a token: what each parameter means, and that a draw depends on its key and on nothing else.

use kernels::sampling::{find_best, philox};
use model::sampler::{Allowed, History, SampleError, SampleKey, Sampled, Sampler};
use proptest::prelude::*;
use protocol::sampling::Sampling;

fn greedy() -> Sampling {
    Sampling { temperature: 0.0, ..Sampling::default() }
}

fn key(seed: u64, position: u64) -> SampleKey {
    SampleKey { seed, stream: 0, position }
}

/// One draw from a copy of the row; by the best of the row, if these decide it, the same one.
fn sample(row: &[f32], params: &Sampling, history: &History, allowed: Allowed<'_>, key: SampleKey) -> Sampled {
    let (mut logits, mut sampler) = (row.to_vec(), Sampler::new(row.len()));
    let drawn = sampler.sample(&mut logits, params, history, allowed, key);
    if params.decided_by() > 0 && allowed.mask.is_none() && allowed.banned.is_empty() {
        find_best(row, params.decided_by() as usize, sampler.best_mut());
        assert_eq!(sampler.sample_best(params, key), drawn, "{params:?} {key:?}");
    }
    drawn.expect("a good row")
}

fn best(row: &[f32], params: &Sampling, history: &History, allowed: Allowed<'_>) -> u32 {
    sample(row, params, history, allowed, key(0, 0)).token
}

/// Logits that are spread like a model's: a few large, many small.
fn row(seed: u32, vocab: usize, spread: f32) -> Vec<f32> {
    let uniform = |i: u32| philox([i, seed, 0, 0], [7, 7])[0] as f32 / u32::MAX as f32;
    (0..vocab as u32).map(|i| -spread * (1.0 - uniform(i).powi(3))).collect()
}

/// The definition: probabilities in f64 by sorting everything, in vLLM's order.
fn definition(row: &[f32], params: &Sampling) -> Vec<f64> {
    let temperature = f64::from(params.temperature);
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |x: f32| ((f64::from(x) - f64::from(max)) / temperature).exp();
    let mut sorted: Vec<usize> = (0..row.len()).collect();
    sorted.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
    sorted.retain(|&i| weight(row[i]) >= f64::from(params.min_p));
    if params.top_k > 0 {
        sorted.truncate(params.top_k as usize);
    }
    let total: f64 = sorted.iter().map(|&i| weight(row[i])).sum();
    let mut before = 0.0;
    sorted.retain(|&i| {
        let keep = before < f64::from(params.top_p) * total;
        before += weight(row[i]);
        keep
    });
    let total: f64 = sorted.iter().map(|&i| weight(row[i])).sum();
    let mut probabilities = vec![0.0; row.len()];
    for i in sorted {
        probabilities[i] = weight(row[i]) / total;
    }
    probabilities
}

/// Draws often with fixed seeds; the counts must fit the definition (Pearson's chi-square, far beyond chance).
fn check_distribution(name: &str, row: &[f32], params: &Sampling, draws: u32) {
    let probabilities = definition(row, params);
    let mut sampler = Sampler::new(row.len());
    let mut counts = vec![0u32; row.len()];
    for i in 0..u64::from(draws) {
        // Half of the draws differ in their seed, half in their position.
        let key = if i % 2 == 0 { key(i, 5) } else { key(5, i) };
        let drawn = sampler
            .sample(&mut row.to_vec(), params, &History::default(), Allowed::default(), key)
            .expect("a good row");
        counts[drawn.token as usize] += 1;
    }
    let (mut chi_square, mut cells, mut rare, mut rare_expected) = (0.0, 0, 0.0, 0.0);
    let mut cell = |count: f64, expected: f64| {
        chi_square += (count - expected).powi(2) / expected;
        cells += 1;
    };
    for (token, (&count, &p)) in counts.iter().zip(&probabilities).enumerate() {
        let expected = p * f64::from(draws);
        assert!(count == 0 || p > 0.0, "{name}: token {token} has no probability and was drawn {count} times");
        if expected >= 5.0 {
            cell(f64::from(count), expected);
        } else {
            rare += f64::from(count);
            rare_expected += expected;
        }
    }
    if rare_expected >= 5.0 {
        cell(rare, rare_expected);
    }
    let freedom = f64::from((cells - 1).max(1));
    let bound = freedom + 5.0 * (2.0 * freedom).sqrt() + 10.0;
    assert!(chi_square < bound, "{name}: chi-square {chi_square} with {freedom} degrees of freedom");
}

// ---------------------------------------------------------------------------------------------- the generator

/// The known answers published with Random123 (`kat_vectors`: philox4x32, 10 rounds).
#[test]
fn philox_gives_the_published_answers() {
    let table = [
        ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
        ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
        (
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        ),
    ];
    for (counter, key, expected) in table {
        assert_eq!(philox(counter, key), expected);
    }
}

#[test]
fn a_draw_depends_on_its_key_and_on_nothing_else() {
    let (row, params) = (row(1, 500, 8.0), Sampling::default());
    let alone: Vec<u32> =
        (0..50).map(|p| sample(&row, &params, &History::default(), Allowed::default(), key(9, p)).token).collect();
    // The same draws from a sampler that serves other rows and other parameters in between, in another order.
    let mut sampler = Sampler::new(500);
    let other = Sampling { top_p: 0.5, logprobs: Some(3), ..Sampling::default() };
    for position in (0..50).rev() {
        sampler
            .sample(&mut self::row(2, 500, 1.0), &other, &History::default(), Allowed::but(&[4]), key(3, position))
            .expect("a good row");
        let drawn =
            sampler.sample(&mut row.clone(), &params, &History::default(), Allowed::default(), key(9, position));
        assert_eq!(drawn.expect("a good row").token, alone[position as usize]);
    }
}

#[test]
fn seed_answer_and_position_each_change_the_draw() {
    let (row, params) = (vec![0.0; 1000], Sampling::default());
    let draws = |key: fn(u64) -> SampleKey| -> Vec<u32> {
        (0..40).map(|i| sample(&row, &params, &History::default(), Allowed::default(), key(i)).token).collect()
    };
    let base = SampleKey { seed: 1, stream: 0, position: 0 };
    assert_eq!(
        draws(|_| SampleKey { seed: 1, stream: 0, position: 0 }),
        [sample(&row, &params, &History::default(), Allowed::default(), base).token; 40]
    );
    for key in [
        (|i| SampleKey { seed: i, stream: 0, position: 0 }) as fn(u64) -> SampleKey,
        |i| SampleKey { seed: i << 32, stream: 0, position: 0 },
        |i| SampleKey { seed: 1, stream: i as u32, position: 0 },
        |i| SampleKey { seed: 1, stream: 0, position: i },
        |i| SampleKey { seed: 1, stream: 0, position: i << 32 },
    ] {
        let mut distinct = draws(key);
        distinct.sort_unstable();
        distinct.dedup();
        assert!(distinct.len() > 30, "{distinct:?}"); // 40 of 1000: a few may coincide
    }
}

// ---------------------------------------------------------------------------------------------- greedy

#[test]
fn greedy_takes_the_largest_logit_and_the_lowest_id_among_equals() {
    let none = History::default();
    assert_eq!(best(&[1.0, 3.0, 2.0, 3.0], &greedy(), &none, Allowed::default()), 1);
    assert_eq!(best(&[-0.0, 0.0, -5.0], &greedy(), &none, Allowed::default()), 0);
    assert_eq!(best(&[f32::NEG_INFINITY, -1e30], &greedy(), &none, Allowed::default()), 1);
    let mut long = vec![0.5; 1003];
    long[1002] = 0.75; // in the tail of the vector loop
    assert_eq!(best(&long, &greedy(), &none, Allowed::default()), 1002);
}

/// Row 11: a temperature too small to divide by is greedy, and a small one does not overflow.
#[test]
fn a_tiny_temperature_is_greedy() {
    for temperature in [0.0, 1e-30, 9e-6, 1e-5, 1e-3] {
        let params = Sampling { temperature, ..Sampling::default() };
        for position in 0..20 {
            let drawn = sample(
                &[1e30, 2e30, -3e38, 1.9e30],
                &params,
                &History::default(),
                Allowed::default(),
                key(1, position),
            );
            assert_eq!(drawn.token, 1, "temperature {temperature}");
        }
    }
}

// ---------------------------------------------------------------------------------------------- bias, bans, penalties

#[test]
fn bias_bans_and_penalties_act_on_single_logits() {
    let row = [2.0, 1.9, -0.5, 0.0];
    // Prompt: 3. Answer: 0, 0, 2.
    let mut history = History::new(&[3, 3]);
    for token in [0, 0, 2] {
        history.push(token);
    }
    let with = |change: fn(&mut Sampling)| {
        let mut params = greedy();
        change(&mut params);
        params
    };
    let table: [(&str, Sampling, &[u32], u32); 10] = [
        ("nothing", greedy(), &[], 0),
        ("bias", with(|p| p.logit_bias = vec![(2, 2.6)]), &[], 2),
        ("negative bias", with(|p| p.logit_bias = vec![(0, -0.2)]), &[], 1),
        ("bans", greedy(), &[0, 1], 3),
        ("a ban beats a bias", with(|p| p.logit_bias = vec![(0, 100.0)]), &[0], 1),
        ("presence counts once", with(|p| p.presence_penalty = 0.11), &[], 1),
        ("presence, not enough", with(|p| p.presence_penalty = 0.09), &[], 0),
        ("frequency counts twice", with(|p| p.frequency_penalty = 0.06), &[], 1),
        ("repetition divides what is positive", with(|p| p.repetition_penalty = 1.1), &[], 1),
        ("below 1 it rewards", with(|p| p.repetition_penalty = 0.5), &[], 0),
    ];
    for (name, params, banned, expected) in table {
        assert_eq!(best(&row, &params, &history, Allowed::but(banned)), expected, "{name}");
    }
    // Repetition multiplies what is negative, and it counts the prompt; presence and frequency do not.
    let repeat = with(|p| p.repetition_penalty = 2.0);
    assert_eq!(best(&[-1.0, -1.5], &repeat, &History::new(&[0]), Allowed::default()), 1);
    let present = Sampling { presence_penalty: 2.0, frequency_penalty: 2.0, ..greedy() };
    assert_eq!(best(&[1.0, 0.5], &present, &History::new(&[0]), Allowed::default()), 0);
}

/// vLLM's order: bias first, then repetition, then frequency and presence.
#[test]
fn the_order_of_adjustments_is_vllms() {
    let mut history = History::default();
    history.push(0);
    // (1 + 3) / 2 - 1 = 1; dividing before the bias, or after the subtraction, would give more than 1.2.
    let params = Sampling { logit_bias: vec![(0, 3.0)], repetition_penalty: 2.0, presence_penalty: 1.0, ..greedy() };
    assert_eq!(best(&[1.0, 1.2], &params, &history, Allowed::default()), 1);
    assert_eq!(best(&[1.0, 0.9], &params, &history, Allowed::default()), 0);
}

#[test]
fn penalties_need_a_history_and_nothing_else_does() {
    assert!(!Sampling::default().needs_history());
    assert!(!Sampling { logit_bias: vec![(1, 1.0)], top_k: 3, ..greedy() }.needs_history());
    assert!(Sampling { presence_penalty: 0.1, ..greedy() }.needs_history());
    assert!(Sampling { frequency_penalty: -0.1, ..greedy() }.needs_history());
    assert!(Sampling { repetition_penalty: 1.1, ..greedy() }.needs_history());
}

// ---------------------------------------------------------------------------------------------- distributions

#[test]
fn draws_follow_the_distribution() {
    let base = Sampling::default;
    let table: [(&str, usize, f32, Sampling); 12] = [
        ("the model's own", 60, 5.0, base()),
        ("several blocks of sums", 1000, 6.0, base()),
        ("hot", 60, 5.0, Sampling { temperature: 3.0, ..base() }),
        ("cold", 60, 5.0, Sampling { temperature: 0.4, ..base() }),
        ("top_k", 60, 5.0, Sampling { top_k: 7, ..base() }),
        ("top_k beyond the vocabulary", 60, 5.0, Sampling { top_k: 1000, ..base() }),
        ("top_p", 60, 5.0, Sampling { top_p: 0.7, ..base() }),
        ("min_p", 60, 5.0, Sampling { min_p: 0.1, ..base() }),
        ("min_p and top_p", 60, 5.0, Sampling { min_p: 0.05, top_p: 0.9, ..base() }),
        ("all", 60, 5.0, Sampling { temperature: 1.3, top_k: 20, top_p: 0.8, min_p: 0.02, ..base() }),
        ("top_p beyond the first tokens", 400, 2.0, Sampling { top_p: 0.95, ..base() }),
        ("top_p of a flat row", 3000, 0.5, Sampling { top_p: 0.6, ..base() }),
    ];
    for (name, vocab, spread, params) in table {
        check_distribution(name, &row(3, vocab, spread), &params, 20_000);
    }
}

#[test]
fn a_cut_through_equals_keeps_the_lower_ids() {
    let flat = vec![1.0; 2560];
    for (params, kept) in [
        (Sampling { top_k: 10, ..Sampling::default() }, 10),
        (Sampling { top_p: 0.0078125, ..Sampling::default() }, 20), // among the first 64
        (Sampling { top_p: 0.125, ..Sampling::default() }, 320),    // among the first 1024
        (Sampling { top_p: 0.5, ..Sampling::default() }, 1280),     // by selection
    ] {
        let mut drawn: Vec<u32> = {
            let mut sampler = Sampler::new(flat.len());
            let mut draw =
                |p| sampler.sample(&mut flat.clone(), &params, &History::default(), Allowed::default(), key(1, p));
            (0..kept * 15).map(|p| draw(p).expect("a good row").token).collect()
        };
        drawn.sort_unstable();
        drawn.dedup();
        let expected: Vec<u32> = (0..kept as u32).collect();
        assert!(drawn == expected, "{params:?}: {} tokens, the last {:?}", drawn.len(), drawn.last());
    }
}

#[test]
fn the_best_token_always_stays() {
    let row = row(4, 300, 9.0);
    let top = best(&row, &greedy(), &History::default(), Allowed::default());
    for params in [
        Sampling { top_k: 1, ..Sampling::default() },
        Sampling { top_p: 1e-6, ..Sampling::default() },
        Sampling { min_p: 1.0, ..Sampling::default() },
        Sampling { min_p: 1.0, top_p: 1e-6, top_k: 1, temperature: 2.0, ..Sampling::default() },
    ] {
        for position in 0..30 {
            assert_eq!(
                sample(&row, &params, &History::default(), Allowed::default(), key(2, position)).token,
                top,
                "{params:?}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the parameters, the token is one that the definition allows, and not a banned one.
    #[test]
    fn only_allowed_tokens_are_drawn(
        seed: u32,
        vocab in 1..2000usize,
        spread in 0.0f32..20.0,
        temperature in 0.05f32..4.0,
        top_k in 0..100u32,
        top_p in 0.01f32..=1.0,
        min_p in 0.0f32..=1.0,
        banned in prop::collection::vec(0..2000u32, 0..5),
    ) {
        let params = Sampling { temperature, top_k, top_p, min_p, ..Sampling::default() };
        let mut row = row(seed, vocab, spread);
        let banned: Vec<u32> = banned.into_iter().filter(|&id| (id as usize) < vocab && vocab > 10).collect();
        let drawn = sample(&row, &params, &History::default(), Allowed::but(&banned), key(u64::from(seed), 1));
        prop_assert!(!banned.contains(&drawn.token));
        banned.iter().for_each(|&id| row[id as usize] = f32::NEG_INFINITY);
        // A hair wider than asked for: at a cut, f64 and the sampler's integers may round to different sides.
        let wider = Sampling { top_p: (top_p + 1e-5).min(1.0), min_p: min_p * (1.0 - 1e-5), ..params };
        prop_assert!(definition(&row, &wider)[drawn.token as usize] > 0.0, "drew {}", drawn.token);
    }
}

// ---------------------------------------------------------------------------------------------- log probabilities

fn log_softmax(row: &[f32]) -> Vec<f64> {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|&x| f64::from(x - max).exp()).sum();
    row.iter().map(|&x| f64::from(x) - f64::from(max) - sum.ln()).collect()
}

#[test]
fn logprobs_are_of_the_raw_distribution() {
    let row = row(5, 700, 12.0);
    let expected = log_softmax(&row);
    let mut history = History::default();
    history.push(3);
    let params = Sampling {
        temperature: 2.5,
        top_k: 40,
        presence_penalty: 1.0,
        logit_bias: vec![(7, 5.0)],
        logprobs: Some(5),
        ..Sampling::default()
    };
    for position in 0..30 {
        let drawn = sample(&row, &params, &history, Allowed::but(&[1, 2]), key(1, position));
        assert!((f64::from(drawn.logprob) - expected[drawn.token as usize]).abs() < 2e-6, "{drawn:?}");
        assert_eq!(drawn.top.len(), 5);
        assert!(drawn.top.is_sorted_by(|a, b| a.1 >= b.1));
        for &(id, logprob) in &drawn.top {
            assert!((f64::from(logprob) - expected[id as usize]).abs() < 2e-6);
            let better = expected.iter().filter(|&&p| p > expected[id as usize]).count();
            assert!(better < 5, "{id} is not among the best");
        }
    }
}

#[test]
fn logprobs_cost_nothing_unless_requested() {
    let drawn = sample(&row(5, 50, 3.0), &greedy(), &History::default(), Allowed::default(), key(0, 0));
    assert_eq!((drawn.logprob, drawn.top), (0.0, vec![]));
    let asked = Sampling { logprobs: Some(0), ..greedy() };
    let drawn = sample(&[0.0, 0.0], &asked, &History::default(), Allowed::default(), key(0, 0));
    assert!((drawn.logprob + std::f32::consts::LN_2).abs() < 1e-6 && drawn.top.is_empty());
}

#[test]
fn prompt_logprobs_have_a_rank() {
    let row = [0.0, 2.0, 1.0, 2.0];
    let mut sampler = Sampler::new(4);
    let expected = log_softmax(&row);
    for (token, rank) in [(1, 1), (3, 1), (2, 3), (0, 4)] {
        let found = sampler.log_probs_of(&row, token, 2).expect("a good row");
        assert_eq!(found.rank, rank, "token {token}");
        assert!((f64::from(found.logprob) - expected[token as usize]).abs() < 1e-6);
        assert_eq!(found.top.iter().map(|&(id, _)| id).collect::<Vec<_>>(), [1, 3]);
    }
    // More than there are: all of them.
    assert_eq!(sampler.log_probs_of(&row, 0, 100).expect("a good row").top.len(), 4);
    // A token without probability has none, and no NaN.
    let cut = [f32::NEG_INFINITY, 0.0, 0.0, 0.0];
    assert_eq!(sampler.log_probs_of(&cut, 0, 0).expect("a good row").logprob, f32::NEG_INFINITY);
}

// ---------------------------------------------------------------------------------------------- bad rows

#[test]
fn a_row_that_is_not_finite_is_an_error() {
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
        for place in [0, 17, 99] {
            let mut row = row(6, 100, 3.0);
            row[place] = bad;
            let mut sampler = Sampler::new(100);
            for params in [greedy(), Sampling::default()] {
                let result =
                    sampler.sample(&mut row.clone(), &params, &History::default(), Allowed::default(), key(0, 0));
                assert_eq!(result, Err(SampleError::NotFinite), "{bad} at {place}");
            }
            assert_eq!(sampler.log_probs_of(&row, 1, 1), Err(SampleError::NotFinite));
        }
    }
}

/// Row 12: everything banned is an error of this request, never a draw from nothing.
#[test]
fn nothing_left_is_an_error() {
    let all: Vec<u32> = (0..20).collect();
    for params in [greedy(), Sampling::default(), Sampling { top_k: 3, top_p: 0.5, ..Sampling::default() }] {
        let mut sampler = Sampler::new(20);
        let banned = sampler.sample(&mut row(7, 20, 3.0), &params, &History::default(), Allowed::but(&all), key(0, 0));
        assert_eq!(banned, Err(SampleError::NothingLeft));
        let empty =
            sampler.sample(&mut [f32::NEG_INFINITY; 20], &params, &History::default(), Allowed::default(), key(0, 0));
        assert_eq!(empty, Err(SampleError::NothingLeft));
        // The last one that is allowed is taken.
        let one =
            sampler.sample(&mut row(7, 20, 3.0), &params, &History::default(), Allowed::but(&all[1..]), key(0, 0));
        assert_eq!(one.map(|drawn| drawn.token), Ok(0));
    }
}

/// A mask takes out what a list of the same ids takes out, wherever its words end, and a row that is longer than the mask
/// has nothing behind it.
#[test]
fn a_mask_is_the_list_of_what_it_leaves_out() {
    for vocab in [1, 31, 32, 33, 64, 100, 1000] {
        let row = row(5, vocab, 6.0);
        for (seed, sparse) in [(1, false), (2, true)] {
            let bit =
                |id: usize| philox([id as u32, seed, 3, 0], [1, 2])[0].is_multiple_of(if sparse { 16 } else { 2 });
            let covered = vocab - vocab / 7;
            let mut mask = vec![0u32; covered.div_ceil(32)];
            (0..covered).filter(|&id| bit(id) || id == 0).for_each(|id| mask[id / 32] |= 1 << (id % 32));
            let banned: Vec<u32> =
                (0..vocab).filter(|&id| id >= covered || !(bit(id) || id == 0)).map(|id| id as u32).collect();
            for params in [
                greedy(),
                Sampling { logprobs: Some(2), ..Sampling::default() },
                Sampling { top_k: 5, top_p: 0.9, ..Sampling::default() },
                Sampling { top_p: 0.7, min_p: 0.01, ..Sampling::default() },
            ] {
                for position in 0..20 {
                    let [by_mask, by_list] = [Allowed { mask: Some(&mask), banned: &[] }, Allowed::but(&banned)]
                        .map(|allowed| sample(&row, &params, &History::default(), allowed, key(4, position)));
                    assert_eq!(by_mask, by_list, "{vocab} tokens, {params:?}, position {position}");
                    assert!(!banned.contains(&by_mask.token));
                }
            }
        }
    }
}
