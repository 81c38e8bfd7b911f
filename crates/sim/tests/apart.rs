//! Prefill and decode on workers of their own, in a world small enough to be watched: every scheduler is asked for its
//! invariants after each of its steps.

use std::collections::BTreeMap;

use scheduler::cost::{Knot, Terms};
use scheduler::router::Role;
use scheduler::{CostModel, Limits, Nanos, Request, RequestId, Scheduler, Targets};
use sim::random::Random;
use sim::{Apart, Arrival, Fleet, Instance, Lengths, Link, Observer, Rejection, Report, Shape, Workload, simulate};

const MS: u64 = 1_000_000;
const TOKEN_BYTES: f64 = 131_072.0;

/// An 8B model on a GPU, about: 8 ms for a pass, 35 us for each further row of a prompt.
fn instance(num_blocks: usize, seats: usize) -> Instance {
    let knot = |(rows, ms): (usize, f64)| Knot { rows, seconds: ms / 1e3 };
    let terms = Terms { pair: 1e-12, key: 5.6e-8, logits: 2e-6, ..Terms::default() };
    let cost = CostModel::new([(1, 8.0), (200, 8.0), (400, 15.0)].map(knot).to_vec(), terms);
    Instance {
        limits: Limits {
            block_size: 32,
            num_blocks,
            max_model_len: 32_768.min(num_blocks * 32),
            max_num_seqs: seats,
            max_num_batched_tokens: 2048,
            max_prefill_chunk: 2048,
            max_prefill_seqs: 16,
            max_queued_requests: usize::MAX,
            max_queued_tokens: usize::MAX / 2,
            enable_prefix_caching: true,
            hash_key: [0; 32],
        },
        belief: Some(cost.clone()),
        machine: cost.into(),
    }
}

fn link(gigabytes_per_second: f64) -> Link {
    Link { bytes_per_second: gigabytes_per_second * 1e9, delay: Nanos(MS), token_bytes: TOKEN_BYTES }
}

fn targets(ttft_ms: u64, tpot_ms: u64) -> Targets {
    Targets { ttft: Some(Nanos(ttft_ms * MS)), tpot: Some(Nanos(tpot_ms * MS)) }
}

/// Long prompts with short answers, then short ones with long ones, then the first again.
fn turning(seed: u64, rates: [f64; 2], seconds: f64) -> Workload {
    let long = Lengths { input_tokens: 8000, output_tokens: 20, cv: 0.3 };
    let short = Lengths { input_tokens: 300, output_tokens: 800, cv: 0.3 };
    let mut all = Workload { name: "a mix that turns twice".to_string(), ..Workload::default() };
    for (part, (lengths, rate)) in [(long, rates[0]), (short, rates[1]), (long, rates[0])].into_iter().enumerate() {
        let requests = (rate * seconds) as usize;
        let load = Workload::synthetic(Shape::Poisson, lengths, rate, requests, seed * 10 + part as u64);
        let begins = Nanos((part as f64 * seconds * 1e9) as u64);
        all.arrivals
            .extend(load.arrivals.into_iter().map(|arrival| Arrival { at: Nanos(arrival.at.0 + begins.0), ..arrival }));
    }
    all.arrivals.sort_by_key(|arrival| arrival.at);
    all
}

#[test]
fn explore() {
    let seconds: f64 = std::env::var("SECONDS_EACH").map_or(30.0, |s| s.parse().unwrap());
    let load = turning(1, [12.0, 30.0], seconds).with_targets(targets(2000, 25));
    let one = instance(8000, 64);
    let show = |name: &str, report: &Report| {
        let apart = report.apart.clone().unwrap_or_default();
        println!(
            "{name:<10} goodput {:.2} met {:?} {:?} ttft p50 {:.2} p99 {:.2} tpot p50 {:.4} p99 {:.4} done {} refused {} switches {} corr {:.2} lost {}",
            report.goodput.unwrap(),
            report.met_ttft,
            report.met_tpot,
            report.ttft.p50,
            report.ttft.p99,
            report.tpot.p50,
            report.tpot.p99,
            report.completed,
            report.refused,
            apart.switches,
            apart.correlation,
            apart.lost_blocks
        );
    };
    let n = 6;
    show("joint", &simulate(&load, &Fleet::of(n, &one), &mut ()).unwrap());
    for prefill in 1..n {
        show(
            &format!("{prefill}P"),
            &simulate(&load, &Fleet::of(n, &one).apart(Apart::split(prefill, n, link(25.0))), &mut ()).unwrap(),
        );
    }
    for prefill in 1..n {
        let switching = Apart { switches: true, ..Apart::split(prefill, n, link(25.0)) };
        show(&format!("{prefill}P switch"), &simulate(&load, &Fleet::of(n, &one).apart(switching), &mut ()).unwrap());
    }
}
