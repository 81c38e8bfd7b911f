//! Tiny loads on a machine whose every step takes 10 ms, worked out by hand.

use protocol::{Nanos, Targets};
use scheduler::cost::{Knot, Terms};
use scheduler::{CostModel, Limits};
use sim::workload::Piece;
use sim::{Acceptance, Arrival, Fleet, Instance, Lengths, LoadPattern, Workload, records, simulate};
use testing::plans;

const MS: u64 = 1_000_000;

fn instance() -> Instance {
    Instance {
        limits: Limits { max_queued_requests: 2, max_queued_tokens: 1000, ..plans::small() },
        machine: plans::machine_of(&[(1, 0.010)], Terms::default()).into(),
        belief: None,
    }
}

/// `at` in ms, prompt, answer.
fn load(requests: &[(u64, usize, usize)]) -> Workload {
    let arrival = |(name, &(at, input, output))| Arrival::new(Nanos(at * MS), name as u64, input, output);
    let arrivals = requests.iter().enumerate().map(arrival).collect();
    Workload { name: "by hand".to_string(), arrivals, acceptance: None }
}

#[test]
fn latencies_are_what_a_pencil_says() {
    // Requests, and for each: TTFT, TPOT, E2E in ms.
    type Case = (&'static str, &'static [(u64, usize, usize)], &'static [(u64, u64, u64)]);
    let cases: &[Case] = &[
        ("one step reads the prompt, each token after the first takes one more", &[(0, 8, 3)], &[(10, 10, 30)]),
        ("a prompt of 20 tokens takes three steps of 8 rows", &[(0, 20, 1)], &[(30, 0, 30)]),
        (
            "a request that arrives during a step waits for its end",
            &[(0, 8, 5), (3, 4, 1)],
            &[(10, 10, 50), (17, 0, 17)],
        ),
        ("a decode row leaves 7 rows for the prompt", &[(0, 8, 5), (10, 9, 1)], &[(10, 10, 50), (20, 0, 20)]),
        ("the clock jumps over idle time", &[(0, 8, 1), (1005, 8, 1)], &[(10, 0, 10), (10, 0, 10)]),
    ];
    for (what, requests, expected) in cases {
        let report = simulate(&load(requests), &Fleet::of(1, &instance()), &mut ()).unwrap();
        let ms = |seconds: f64| (seconds * 1e3).round() as u64;
        let got: Vec<_> =
            report.outcomes.iter().map(|o| (ms(o.ttft()), ms(o.tpot().unwrap_or(0.0)), ms(o.e2e()))).collect();
        assert_eq!(got, *expected, "{what}");
    }
}

#[test]
fn a_report_counts_what_happened() {
    let targets = Targets { ttft: Some(Nanos(15 * MS)), tpot: Some(Nanos(10 * MS)) };
    let workload = load(&[(0, 8, 5), (3, 4, 1), (20, 4, 1)]).with_targets(targets);
    let report = simulate(&workload, &Fleet::of(1, &instance()), &mut ()).unwrap();
    assert_eq!((report.completed, report.refused, report.steps), (3, 0, 5));
    assert_eq!((report.prefill_rows, report.decode_rows), (16, 4));
    assert_eq!((report.input_tokens, report.output_tokens), (16, 7));
    // TTFTs are 10, 17 and 10 ms; the first's TPOT is exactly its target.
    assert_eq!((report.met_ttft, report.met_tpot, report.met_both), (Some(2.0 / 3.0), Some(1.0), Some(2.0 / 3.0)));
    assert!((report.goodput.unwrap() - 2.0 / 0.050).abs() < 1e-9, "{:?}", report.goodput);
    assert!((report.busy - 1.0).abs() < 1e-9 && (report.itl.p99 - 0.010).abs() < 1e-4);
    // Two blocks, then the answer's, and one of each short request beside them.
    assert_eq!(report.kv_max, 0.04);
}

#[test]
fn equal_beginnings_are_found_in_the_cache() {
    let mut workload = load(&[(0, 20, 1), (100, 20, 1), (200, 20, 1)]);
    let shared = Piece { name: 77, len: 12 };
    for arrival in &mut workload.arrivals[1..] {
        arrival.prompt[0].len = 8;
        arrival.prompt.insert(0, shared);
    }
    let report = simulate(&workload, &Fleet::of(1, &instance()), &mut ()).unwrap();
    let cached: Vec<usize> = report.outcomes.iter().map(|outcome| outcome.cached_tokens).collect();
    assert_eq!(cached, [0, 0, 12]);
    assert_eq!(report.cached_tokens, 12);
}

#[test]
fn a_turn_quotes_what_was_said_before_and_waits_for_it() {
    let shape = LoadPattern::Sessions { turns: 3, pause: Nanos(500 * MS), prefix: 0 };
    let lengths = Lengths { input_tokens: 8, output_tokens: 5, cv: 0.0 };
    let workload = Workload::synthetic(shape, lengths, 1.0, 3, 1);
    let report = simulate(&workload, &Fleet::of(1, &instance()), &mut ()).unwrap();
    for (index, (before, after)) in report.outcomes.iter().zip(&report.outcomes[1..]).enumerate() {
        let pause = workload.arrivals[index + 1].at;
        assert_eq!(after.arrived.since(before.last_token), pause);
    }
    let cached: Vec<usize> = report.outcomes.iter().map(|outcome| outcome.cached_tokens).collect();
    // 13 tokens were generated, the last was never computed: 3 full blocks. Then 26 tokens: 6.
    assert_eq!(cached, [0, 12, 24]);
}

#[test]
fn sessions_share_what_all_of_them_begin_with() {
    let shape = LoadPattern::Sessions { turns: 2, pause: Nanos(500 * MS), prefix: 16 };
    let lengths = Lengths { input_tokens: 8, output_tokens: 5, cv: 0.0 };
    let workload = Workload::synthetic(shape, lengths, 0.1, 4, 1);
    assert_eq!(workload.arrivals.iter().map(Arrival::input_tokens).collect::<Vec<_>>(), [24, 37, 24, 37]);
    let report = simulate(&workload, &Fleet::of(1, &instance()), &mut ()).unwrap();
    let cached: Vec<usize> = report.outcomes.iter().map(|outcome| outcome.cached_tokens).collect();
    assert_eq!(cached, [0, 28, 16, 28]);
}

/// An agent's sessions: each turn appends 700 tokens to the conversation. A thirtieth of the sent tokens is computed.
#[test]
fn an_agents_sessions_are_nearly_all_hits() {
    let shape = LoadPattern::Sessions { turns: 43, pause: Nanos(1000 * MS), prefix: 0 };
    let lengths = Lengths { input_tokens: 700, output_tokens: 444, cv: 0.0 };
    let workload = Workload::synthetic(shape, lengths, 0.01, 43, 1);
    let mut big = instance();
    (big.limits.num_blocks, big.limits.max_model_len) = (40_000, 100_000);
    big.limits.max_queued_tokens = 1_000_000;
    (big.limits.max_num_batched_tokens, big.limits.max_prefill_chunk) = (2048, 2048);
    let report = simulate(&workload, &Fleet::of(1, &big), &mut ()).unwrap();
    let share = report.cached_tokens as f64 / report.input_tokens as f64;
    assert!((0.96..0.98).contains(&share), "{share}");
}

#[test]
fn a_full_queue_refuses_and_the_report_says_so() {
    let requests: Vec<_> = (0..10).map(|_| (0, 300, 90)).collect();
    let targets = Targets { ttft: Some(Nanos(3_600_000 * MS)), tpot: None };
    let report = simulate(&load(&requests).with_targets(targets), &Fleet::of(1, &instance()), &mut ()).unwrap();
    assert_eq!((report.completed, report.refused), (2, 8));
    assert_eq!(report.met_both, Some(0.2), "a refused request meets nothing");
}

#[test]
fn a_target_that_is_not_set_is_not_met() {
    let simulated = |targets| {
        let workload = load(&[(0, 8, 5), (3, 4, 1)]).with_targets(targets);
        simulate(&workload, &Fleet::of(1, &instance()), &mut ()).unwrap()
    };
    let none = simulated(Targets::default());
    let json = none.json();
    for name in ["met_ttft", "met_tpot", "met_both", "goodput_requests_per_second"] {
        assert!(json[name].is_null(), "{name}: {}", json[name]);
    }
    let text = none.to_string();
    assert!(text.contains("none set") && !text.contains("100.0 %:") && !text.contains("goodput"), "{text}");
    // Only one target is set: the other is not reported.
    let one = simulated(Targets { ttft: Some(Nanos(15 * MS)), tpot: None });
    assert_eq!((one.met_ttft, one.met_tpot, one.met_both), (Some(0.5), None, Some(0.5)));
    let text = one.to_string();
    assert!(text.contains("TTFT 50.0 %: goodput") && !text.contains("TPOT 1") && !text.contains("both"), "{text}");
}

#[test]
fn one_seed_gives_one_report_and_one_log() {
    let shapes = [
        LoadPattern::Poisson,
        LoadPattern::Bursty { cv: 3.0 },
        LoadPattern::SharedPrefix { prefixes: 3, tokens: 40 },
        LoadPattern::Sessions { turns: 4, pause: Nanos(50 * MS), prefix: 20 },
    ];
    let lengths = Lengths { input_tokens: 12, output_tokens: 6, cv: 0.5 };
    let run = |shape, seed| {
        let workload = Workload::synthetic(shape, lengths, 20.0, 200, seed);
        let mut fleet = Fleet::of(2, &instance());
        for instance in &mut fleet.instances {
            (instance.limits.max_queued_requests, instance.belief) = (1000, Some(instance.machine.mixed.clone()));
        }
        let log = records(&workload, &fleet).unwrap();
        (simulate(&workload, &fleet, &mut ()).unwrap().json().to_string(), log)
    };
    for shape in shapes {
        assert_eq!(run(shape, 1), run(shape, 1), "{shape:?}");
        assert_ne!(run(shape, 1).0, run(shape, 2).0, "{shape:?}");
    }
}

#[test]
fn a_fleet_sends_equal_prefixes_to_one_instance() {
    // Long prefixes, so that computing one again costs far more than a short wait.
    let shape = LoadPattern::SharedPrefix { prefixes: 2, tokens: 80 };
    let lengths = Lengths { input_tokens: 4, output_tokens: 2, cv: 0.0 };
    let workload = Workload::synthetic(shape, lengths, 60.0, 200, 3);
    let mut fleet = Fleet::of(2, &instance());
    fleet.instances.iter_mut().for_each(|instance| instance.limits.max_queued_requests = 200);
    let report = simulate(&workload, &fleet, &mut ()).unwrap();
    let missed = report.outcomes.iter().filter(|outcome| outcome.cached_tokens < 80).count();
    assert!(missed <= 4, "each instance computes a prefix once at most, but {missed} did not find theirs");
    let served = |instance: usize| report.outcomes.iter().filter(|outcome| outcome.instance == instance).count();
    assert!(served(0) >= 20 && served(1) >= 20, "{} and {}", served(0), served(1));
}

/// A step of up to eight rows takes 10 ms, and each further row 2 ms.
fn with_a_knee() -> Instance {
    let knots = [(1, 0.010), (8, 0.010), (108, 0.210)].map(|(rows, seconds)| Knot { rows, seconds });
    let cost = CostModel::new(knots.to_vec(), Terms::default());
    Instance { machine: cost.clone().into(), belief: Some(cost), ..instance() }
}

#[test]
fn accepted_drafts_save_steps() {
    // One stream has seven free rows, two have six. With certain acceptance all free rows are used: an unknown drafter is
    // assumed to have half of its drafts accepted, so free rows are worth using from the start.
    type Case = (&'static str, Option<f64>, &'static [(u64, usize, usize)], u64, u64, u64);
    let cases: &[Case] = &[
        ("no speculation", None, &[(0, 8, 33)], 33, 0, 0),
        // The prompt; then eight at a time.
        ("all hold", Some(1.0), &[(0, 8, 33)], 1 + 4, 28, 28),
        // The last step has one token to go, and no draft.
        ("one is left over", Some(1.0), &[(0, 8, 34)], 1 + 4 + 1, 28, 28),
        ("a run does not pass the end", Some(1.0), &[(0, 8, 4)], 1 + 1, 2, 2),
        // Both prompts in one step, then four rows for each.
        ("two share what is free", Some(1.0), &[(0, 4, 17), (0, 4, 17)], 1 + 4, 24, 24),
    ];
    for &(what, chance, requests, steps, drafted, held) in cases {
        let workload = load(requests).with_acceptance(chance.map(|chance| Acceptance::new(vec![chance])));
        let report = simulate(&workload, &Fleet::of(1, &with_a_knee()), &mut ()).unwrap();
        let with = report.drafts.map(|drafts| (drafts.drafted, drafts.held)).unwrap_or_default();
        assert_eq!((report.steps, with), (steps, (drafted, held)), "{what}: {report}");
        assert_eq!(report.drafts.is_some(), chance.is_some(), "{what}");
        let tokens: usize = requests.iter().map(|&(_, _, output)| output).sum();
        assert_eq!(report.output_tokens, tokens as u64, "{what}");
        assert!((report.seconds - steps as f64 * 0.010).abs() < 1e-9, "{what}: {}", report.seconds);
        assert_eq!(report.json()["speculation"]["held"].as_u64(), chance.map(|_| held), "{what}");
    }
}

#[test]
fn the_scheduler_learns_which_drafts_are_accepted() {
    let long: Vec<_> = (0..1).map(|_| (0, 8, 300)).collect();
    let wide: Vec<_> = (0..8).map(|_| (0, 1, 300)).collect();
    // Streams, acceptance; minimum and maximum tokens per sequence and step.
    type Case<'a> = (&'a [(u64, usize, usize)], &'a [f64], [f64; 2]);
    let table: [Case<'_>; 5] = [
        // Seven drafts: 1 + .5 + .25 + ... = 1.99
        (&long, &[0.5], [1.8, 2.2]),
        (&long, &[0.9], [4.5, 6.2]),
        // Only the first is ever accepted.
        (&long, &[1.0, 0.0], [1.95, 2.0]),
        (&long, &[0.0], [1.0, 1.0]),
        // Eight streams have no free row; occasionally one is tried.
        (&wide, &[0.5], [1.0, 1.02]),
    ];
    for (requests, chances, [least, most]) in table {
        let mut instance = with_a_knee();
        instance.limits.max_num_seqs = 8;
        (instance.limits.num_blocks, instance.limits.max_queued_requests) = (1000, 8);
        instance.limits.max_num_batched_tokens = 64;
        let run = |acceptance| {
            let workload = load(requests).with_acceptance(acceptance);
            simulate(&workload, &Fleet::of(1, &instance), &mut ()).unwrap()
        };
        let (with, without) = (run(Some(Acceptance::new(chances.to_vec()))), run(None));
        let tokens = with.drafts.expect("speculation is on").tokens_per_step;
        assert!((least..=most).contains(&tokens), "{} streams, {chances:?}: {with}", requests.len());
        assert!(with.seconds <= without.seconds * 1.02, "{chances:?}: {with}\n{without}");
        assert_eq!(with.output_tokens, without.output_tokens);
        assert!(with.to_string().contains("drafts ") && !without.to_string().contains("drafts "));
        assert!(without.json()["speculation"].is_null());
    }
}
