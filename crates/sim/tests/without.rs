//! What a request cost others is what they would not have waited without it.

use std::collections::BTreeMap;

use ledger::{Account, Ledger, Owner};
use scheduler::{CostModel, Hardware, Limits, ModelCost, Nanos, Request, RequestId, StepRecord};
use sim::random::Random;
use sim::{Arrival, Fleet, Instance, Observer, Workload, simulate};

struct Books {
    ledger: Ledger,
    cost: CostModel,
    closed: BTreeMap<u64, (Account, Nanos)>,
    steps: usize,
    blocked: [usize; 4],
}

impl Observer for Books {
    fn admitted(&mut self, _: usize, request: &Request) {
        self.ledger.admit(request);
    }
    fn step(&mut self, _: usize, record: &StepRecord) {
        self.steps += 1;
        self.blocked[record.blocked.map_or(3, |b| b as usize)] += 1;
        self.ledger.step(record, Some(&self.cost), &mut |_| {});
    }
    fn finished(&mut self, _: usize, request: RequestId, now: Nanos) {
        self.closed.insert(request.0, (self.ledger.end(request).unwrap(), now));
    }
}

fn run(workload: &Workload, instance: &Instance) -> Books {
    let mut books = Books {
        ledger: Ledger::new(0),
        cost: instance.machine.mixed.clone(),
        closed: BTreeMap::new(),
        steps: 0,
        blocked: [0; 4],
    };
    simulate(workload, &Fleet::of(1, instance), &mut books).unwrap();
    books.ledger.check();
    books
}

fn model() -> ModelCost {
    ModelCost { weight_bytes: 2e9, row_flops: 2e9, logit_flops: 2e8, pair_flops: 1.3e5, kv_bytes: 3.2e4 }
}

fn instance(seats: usize, blocks: usize, flops: f64, with_belief: bool) -> Instance {
    let hardware = Hardware {
        name: "x",
        flops,
        bandwidth: 1e11,
        flops_share: 1.0,
        bandwidth_share: 1.0,
        step_overhead: 1e-4,
    };
    let cost = CostModel::roofline(&model(), &hardware);
    Instance {
        limits: Limits {
            block_size: 16,
            num_blocks: blocks,
            max_model_len: 8192,
            max_num_seqs: seats,
            max_num_batched_tokens: 2048,
            max_prefill_chunk: 512,
            max_prefill_seqs: 4,
            max_queued_requests: 1000,
            max_queued_tokens: 10_000_000,
            enable_prefix_caching: true,
            hash_key: [0; 32],
        },
        belief: with_belief.then(|| cost.clone()),
        machine: cost.into(),
    }
}

fn burst(n: usize, input: usize, output: usize, spread: f64, seed: u64) -> Workload {
    let mut random = Random::new(seed);
    let mut seconds = 0.0;
    let arrivals = (0..n)
        .map(|index| {
            let mut draw = |mean: usize| ((mean as f64 * random.gamma(0.6)) as usize).clamp(8, 4000);
            let (input, output) = (draw(input), draw(output));
            seconds -= random.uniform().max(1e-9).ln() * spread;
            let at = Nanos((seconds * 1e9) as u64);
            Arrival::new(at, seed * 1000 + index as u64, input, output)
        })
        .collect();
    Workload { name: "burst".into(), arrivals }
}

#[test]
fn experiment() {
    for (name, n, input, output, seats, blocks, flops, belief, spread) in [
        ("12 budget", 12, 1200, 20, 64, 100_000, 2e13, true, 0.0),
        ("12 budget nobelief", 12, 1200, 20, 64, 100_000, 2e13, false, 0.0),
        ("200 budget", 200, 600, 20, 256, 100_000, 2e13, true, 0.0),
        ("200 mixed 64 seats", 200, 600, 100, 64, 100_000, 2e13, true, 0.0),
        ("200 seats membound", 200, 60, 200, 16, 100_000, 1e14, true, 0.0),
        ("200 seats membound 64", 200, 60, 200, 64, 100_000, 1e14, true, 0.0),
        ("200 seats compute", 200, 600, 50, 16, 100_000, 1e13, true, 0.0),
        ("200 kv", 200, 400, 100, 256, 1000, 1e14, true, 0.0),
        ("200 kv compute", 200, 600, 50, 256, 1000, 2e13, true, 0.0),
        ("poisson .6 budget", 200, 600, 50, 64, 100_000, 2e13, true, 0.1),
    ] {
        let (mut errors, mut sum_cost, mut sum_delta, mut errors_ttft) = (vec![], 0.0, 0.0, vec![]);
        let mut named = (0.0, 0.0, 0.0);
        let mut shares = ledger::Shares::default();
        for seed in 0..4 {
            let instance = instance(seats, blocks, flops, belief);
            let load = burst(n, input, output, spread, seed);
            let all = run(&load, &instance);
            for (account, _) in all.closed.values() {
                shares.merge(&account.bill.ttft);
                named.0 += account.bill.ttft_others.total().as_secs_f64();
                named.1 += account.bill.ttft_others.rest().as_secs_f64();
                let own = account.bill.ttft.of(Owner::OwnPrefill).0 + account.bill.ttft.of(Owner::Overhead).0;
                named.2 += (account.bill.ttft.total().0 - own) as f64 / 1e9;
            }
            let mut random = Random::new(seed ^ 77);
            for _ in 0..8 {
                let x = (random.bits() % n as u64) as usize;
                let mut less = load.clone();
                less.arrivals.remove(x);
                let without = run(&less, &instance);
                let (mut delta, mut delta_ttft) = (0.0, 0.0);
                for (&id, (account, end)) in &all.closed {
                    if id as usize == x {
                        continue;
                    }
                    let (other, other_end) = &without.closed[&(id - u64::from(id as usize > x))];
                    delta += end.0 as f64 - other_end.0 as f64;
                    delta_ttft += account.ttft().unwrap().0 as f64 - other.ttft().unwrap().0 as f64;
                }
                let cost = all.closed[&(x as u64)].0.bill.cost;
                let total = cost.total().0 as f64;
                let ttft = (cost.queue_kv.0 + cost.queue_seats.0 + cost.queue_budget.0) as f64
                    + (cost.prefill_in_ttfts.0 + cost.decode_in_ttfts.0) as f64;
                sum_cost += total;
                sum_delta += delta;
                errors.push(total / delta.max(1.0));
                errors_ttft.push(ttft / delta_ttft.max(1.0));
            }
        }
        errors.sort_by(f64::total_cmp);
        errors_ttft.sort_by(f64::total_cmp);
        let q = |v: &Vec<f64>, p: f64| v[((v.len() - 1) as f64 * p) as usize];
        println!(
            "{name:24} cost/delta {:.2} | ratio p10 {:.2} p25 {:.2} p50 {:.2} p75 {:.2} p90 {:.2} | ttft p10 {:.2} p50 {:.2} p90 {:.2} | named {:.4} by name {:.2} | kv {:.2} seats {:.2} budget {:.2}",
            sum_cost / sum_delta, q(&errors, 0.1), q(&errors, 0.25), q(&errors, 0.5), q(&errors, 0.75), q(&errors, 0.9),
            q(&errors_ttft, 0.1), q(&errors_ttft, 0.5), q(&errors_ttft, 0.9),
            named.0 / named.2, (named.0 - named.1) / named.2,
            shares.of(Owner::QueueKv).as_secs_f64() / named.2, shares.of(Owner::QueueSeats).as_secs_f64() / named.2, shares.of(Owner::QueueBudget).as_secs_f64() / named.2,
        );
    }
}
