//! Tenants share: a flood does not delay another tenant. Simulated time: 10 ms for a pass of up to 100 rows, 0.1 ms for
//! each row more, and nothing else happens, so every figure here is exact.

use std::collections::BTreeMap;

use protocol::{Nanos, Priority, RequestId, Targets, TokenId};
use scheduler::{Blocked, CostModel, Limits, Request, Scheduler, StepRecord, TokenEvent};
use testing::{Dice, plans};

const MS: u64 = 1_000_000;
const FLOOD: u64 = 1;
const GUEST: u64 = 2;

fn limits() -> Limits {
    Limits {
        num_blocks: 20_000,
        max_num_seqs: 32,
        max_num_batched_tokens: 512,
        max_prefill_chunk: 512,
        ..plans::limits()
    }
}

/// What is asked, and when.
#[derive(Clone)]
struct Ask {
    at_ms: u64,
    tenant: u64,
    priority: i32,
    prompt: Vec<TokenId>,
    max_tokens: usize,
    targets: Targets,
}

struct Machine {
    scheduler: Scheduler,
    cost: CostModel,
    now: Nanos,
    arrived: BTreeMap<RequestId, (u64, Nanos)>,
    first_tokens: Vec<(u64, Nanos)>,
    records: Vec<StepRecord>,
    next: u64,
}

impl Machine {
    /// `predicts`: the scheduler knows the cost model and heeds targets.
    fn new(limits: Limits, predicts: bool) -> Machine {
        let mut scheduler = Scheduler::new(limits).unwrap();
        scheduler.set_cost_model(predicts.then(plans::machine));
        Machine {
            scheduler,
            cost: plans::machine(),
            now: Nanos(0),
            arrived: BTreeMap::new(),
            first_tokens: Vec::new(),
            records: Vec::new(),
            next: 0,
        }
    }

    fn admit(&mut self, ask: &Ask) -> RequestId {
        let (id, arrived) = (RequestId(self.next), Nanos(ask.at_ms * MS));
        self.next += 1;
        let request = Request {
            stop: plans::at_most(ask.max_tokens),
            priority: Priority(ask.priority),
            salt: ask.tenant,
            tenant: ask.tenant,
            targets: ask.targets,
            arrived,
            ..plans::request(id.0, ask.prompt.clone())
        };
        self.scheduler.admit(request).unwrap();
        self.arrived.insert(id, (ask.tenant, arrived));
        id
    }

    /// Sequences in the queue hold no blocks.
    fn num_waiting(&self) -> usize {
        self.scheduler.sequences().filter(|seq| seq.block_table().is_empty()).count()
    }

    fn num_running(&self) -> usize {
        self.scheduler.sequences().filter(|seq| !seq.block_table().is_empty()).count()
    }

    /// One step, in exactly the time that the model says. False if there is nothing to do.
    fn step(&mut self) -> bool {
        let step = self.scheduler.schedule(self.now);
        if step.is_empty() {
            return false;
        }
        self.now.0 += self.cost.step_time(&self.scheduler.planned().work).0;
        let completed = self.scheduler.complete(plans::answer(&step, 7), self.now);
        for event in &completed.events {
            if let TokenEvent::Token { request, .. } = event
                && let Some((tenant, arrived)) = self.arrived.remove(request)
            {
                self.first_tokens.push((tenant, self.now.since(arrived)));
            }
        }
        self.records.push(completed.record);
        true
    }

    /// Serves all of `asks`, sorted by time.
    fn serve(mut self, asks: &[Ask]) -> Machine {
        self.serve_until(asks, u64::MAX / MS);
        self
    }

    /// As [`serve`](Self::serve), and goes home at `until_ms`.
    fn serve_until(&mut self, asks: &[Ask], until_ms: u64) {
        let mut next = 0;
        while self.now.0 < until_ms * MS {
            while let Some(ask) = asks.get(next).filter(|ask| ask.at_ms * MS <= self.now.0) {
                self.admit(ask);
                next += 1;
            }
            if !self.step() {
                let Some(ask) = asks.get(next) else { break };
                self.now = self.now.max(Nanos(ask.at_ms * MS));
            }
        }
        self.scheduler.check_invariants();
    }

    fn ttft_ms(&self, tenant: u64, percent: usize) -> f64 {
        let mut ttfts: Vec<Nanos> = self.first_tokens.iter().filter(|(t, _)| *t == tenant).map(|&(_, t)| t).collect();
        ttfts.sort_unstable();
        ttfts[ttfts.len() * percent / 100].0 as f64 / MS as f64
    }
}

/// A prompt that shares its first `shared` tokens with all others of the same `tag`.
fn prompt(len: usize, shared: usize, tag: u64, own: u64) -> Vec<TokenId> {
    let mut dice = Dice::new(own << 32 | tag);
    (0..len)
        .map(
            |index| {
                if index < shared { (tag as TokenId) * 1000 + index as TokenId % 997 } else { dice.bits() as TokenId }
            },
        )
        .collect()
}

/// A guest's prompt of 4,000 tokens every 1.3 s or so.
fn guest(targets: Targets) -> Vec<Ask> {
    let ask = |index: u64| Ask {
        at_ms: 700 + index * 1300 + index * index * 37 % 400,
        tenant: GUEST,
        priority: 0,
        prompt: prompt(4000, 0, GUEST, index),
        max_tokens: 40,
        targets,
    };
    (0..120).map(ask).collect()
}

/// Hundreds of requests at once, and more all the time than the machine can serve.
fn flood(targets: Targets) -> Vec<Ask> {
    let ask = |index: u64| Ask {
        at_ms: if index < 300 { 0 } else { (index - 300) * 140 },
        tenant: FLOOD,
        priority: 0,
        prompt: prompt(200 + (index * 7919 % 1800) as usize, 0, FLOOD, index),
        max_tokens: 20 + (index * 104_729 % 180) as usize,
        targets,
    };
    (0..1200).map(ask).collect()
}

#[test]
fn a_flood_leaves_the_other_tenants_first_tokens_where_they_were() {
    let with = |ttft: u64, tpot: u64| Targets { ttft: Some(Nanos(ttft * MS)), tpot: Some(Nanos(tpot * MS)) };
    let cases = [
        ("no cost model", false, Targets::default(), Targets::default()),
        ("no targets", true, Targets::default(), Targets::default()),
        ("the same targets", true, with(1000, 60), with(1000, 60)),
        // By deadlines alone the flood would always go first.
        ("the flood asks for more", true, with(50, 60), with(2000, 60)),
    ];
    for (name, predicts, floods, guests) in testing::part_of(cases, 3) {
        let alone = Machine::new(limits(), predicts).serve(&guest(guests)).ttft_ms(GUEST, 95);
        let mut asks = [guest(guests), flood(floods)].concat();
        asks.sort_by_key(|ask| ask.at_ms);
        let together = Machine::new(limits(), predicts).serve(&asks);
        let beside = together.ttft_ms(GUEST, 95);
        println!("{name}: p95 TTFT alone {alone:.1} ms, beside the flood {beside:.1} ms: {:.2}x", beside / alone);
        assert!(beside <= 1.3 * alone, "{name}: {beside} ms beside the flood, {alone} ms alone");
        // Its first prompts: it begins level with the flood, so they take turns until it is ahead.
        let first = together.ttft_ms(GUEST, 99);
        assert!(first <= 2.1 * alone, "{name}: {first} ms beside the flood, {alone} ms alone");
        let waited = together.ttft_ms(FLOOD, 99);
        assert!(waited > 10.0 * beside, "{name}: it is a flood: its own p99 is {waited} ms");
    }
}

/// An ask of `tenant` now, with `len` own prompt tokens.
fn ask(tenant: u64, len: usize, max_tokens: usize, own: u64) -> Ask {
    Ask { at_ms: 0, tenant, priority: 0, prompt: prompt(len, 0, tenant, own), max_tokens, targets: Targets::default() }
}

/// Prompt rows of each tenant in the steps since `from`.
fn prompt_rows(machine: &Machine, owner: &BTreeMap<RequestId, u64>, from: usize) -> BTreeMap<u64, usize> {
    let mut rows = BTreeMap::new();
    for row in machine.records[from..].iter().flat_map(|record| &record.prefill) {
        *rows.entry(owner[&row.request]).or_default() += row.len;
    }
    rows
}

#[test]
fn tenants_that_both_want_more_than_there_is_get_the_same() {
    for predicts in [false, true] {
        let mut machine = Machine::new(limits(), predicts);
        let mut owner = BTreeMap::new();
        // Short prompts against long ones: what counts is tokens, not requests.
        for index in 0..800 {
            owner.insert(machine.admit(&ask(1, 100, 1, index)), 1);
        }
        for index in 0..20 {
            owner.insert(machine.admit(&ask(2, 4000, 1, 1000 + index)), 2);
        }
        (0..100).for_each(|_| _ = machine.step());
        let rows = prompt_rows(&machine, &owner, 0);
        let apart = rows[&1].abs_diff(rows[&2]);
        assert!(rows[&1] + rows[&2] > 40_000 && apart <= 4000, "within one prompt of each other: {rows:?}");
    }
}

#[test]
fn between_tenants_a_class_is_a_weight() {
    // The class of tenant 1, of tenant 2, and how many times as many tokens tenant 1 gets.
    let cases = [(-1, 0, 4.0), (i32::MIN, 0, 4.0), (0, 1, 4.0), (-1, 1, 16.0), (0, 0, 1.0), (1, i32::MAX, 1.0)];
    for (one, two, ratio) in cases {
        for predicts in [false, true] {
            let mut machine = Machine::new(limits(), predicts);
            let mut owner = BTreeMap::new();
            for (tenant, priority) in [(1, one), (2, two)] {
                for index in 0..400 {
                    let ask = Ask { priority, ..ask(tenant, 500, 1, index) };
                    owner.insert(machine.admit(&ask), tenant);
                }
            }
            (0..200).for_each(|_| _ = machine.step());
            let rows = prompt_rows(&machine, &owner, 0);
            let got = rows[&1] as f64 / rows[&2] as f64;
            let apart = (got / ratio - 1.0).abs();
            assert!(apart < 0.2, "{one} against {two}, predicts {predicts}: {got:.2} times as much, {ratio} wanted");
        }
    }
}

#[test]
fn urgent_requests_of_one_do_not_silence_another() {
    for priority in [-1, i32::MIN] {
        for predicts in [false, true] {
            // Room for two of the flood's long answers, so that blocks and seats are as short as rows.
            let limits = Limits { num_blocks: 300, max_num_seqs: 4, ..limits() };
            let alone = Machine::new(limits.clone(), predicts).serve(&short_guest()).ttft_ms(GUEST, 99);
            let flood = (0..2000).map(|index| Ask {
                at_ms: index * 20,
                priority,
                ..ask(FLOOD, 100 + (index * 7919 % 900) as usize, 200, index)
            });
            let mut asks: Vec<Ask> = flood.chain(short_guest()).collect();
            asks.sort_by_key(|ask| ask.at_ms);
            let mut machine = Machine::new(limits, predicts);
            let until = asks.iter().filter(|ask| ask.tenant == GUEST).map(|ask| ask.at_ms).max().unwrap() + 60_000;
            machine.serve_until(&asks, until);
            let beside = machine.ttft_ms(GUEST, 99);
            println!("{priority}, {predicts}: p99 TTFT alone {alone:.1} ms, beside the flood {beside:.1} ms");
            assert_eq!(machine.first_tokens.iter().filter(|(tenant, _)| *tenant == GUEST).count(), 30);
            assert!(beside <= alone + 3000.0, "{priority}, {predicts}: {beside} ms beside the flood, {alone} ms alone");
        }
    }
}

/// Thirty short prompts, one a second.
fn short_guest() -> Vec<Ask> {
    (0..30).map(|index| Ask { at_ms: 500 + index * 1000, ..ask(GUEST, 20, 20, index) }).collect()
}

#[test]
fn time_spent_idle_is_not_saved_up() {
    let mut machine = Machine::new(limits(), false);
    let mut owner = BTreeMap::new();
    owner.insert(machine.admit(&ask(2, 100, 1, 0)), 2);
    for index in 0..200 {
        owner.insert(machine.admit(&ask(1, 1000, 1, index)), 1);
    }
    (0..100).for_each(|_| _ = machine.step());
    // Tenant 1 alone has been served some 50,000 tokens. Now 2 comes back, and does not get as many before 1's next.
    for index in 0..50 {
        owner.insert(machine.admit(&ask(2, 1000, 1, 5000 + index)), 2);
    }
    let from = machine.records.len();
    (0..40).for_each(|_| _ = machine.step());
    let rows = prompt_rows(&machine, &owner, from);
    assert!(rows[&1].abs_diff(rows[&2]) <= 2000, "{rows:?}");
}

#[test]
fn what_the_prefix_cache_had_is_not_charged() {
    let mut machine = Machine::new(Limits { max_prefill_seqs: 1, ..limits() }, false);
    let mut owner = BTreeMap::new();
    let document = |tenant: u64, own: u64| {
        let prompt = prompt(1008, if tenant == 1 { 992 } else { 0 }, tenant, own);
        Ask { prompt, ..ask(tenant, 0, 1, 0) }
    };
    for index in 0..30 {
        for tenant in [1, 2] {
            owner.insert(machine.admit(&document(tenant, 10 + index)), tenant);
        }
    }
    while machine.num_waiting() > 20 {
        machine.step();
    }
    let waiting = |tenant| machine.scheduler.sequences().filter(|seq| seq.request().tenant == tenant).count();
    // Tenant 1 computes 16 tokens where tenant 2 computes 1,008, so all of its requests pass in the time of one or two.
    assert_eq!(waiting(1), 0);
    assert!(waiting(2) >= 19, "{} of 2 wait", waiting(2));
}

#[test]
fn a_seat_is_left_for_the_tenant_that_comes_back() {
    for predicts in [false, true] {
        let mut machine = Machine::new(limits(), predicts);
        machine.admit(&ask(GUEST, 16, 1, 0));
        (0..40).for_each(|index| _ = machine.admit(&ask(FLOOD, 16, 10_000, 100 + index)));
        (0..100).for_each(|_| _ = machine.step());
        assert_eq!(machine.num_running(), 31, "the flood has all seats but one");
        assert_eq!(machine.records.last().unwrap().blocked, Some(Blocked::Seats));
        let id = machine.admit(&ask(GUEST, 16, 1, 1));
        machine.step();
        assert!(machine.records.last().unwrap().prefill.iter().any(|row| row.request == id), "and it is taken at once");
    }
}

#[test]
fn alone_a_tenant_has_every_seat() {
    let mut machine = Machine::new(limits(), false);
    (0..40).for_each(|index| _ = machine.admit(&ask(FLOOD, 16, 1000, index)));
    (0..100).for_each(|_| _ = machine.step());
    assert_eq!(machine.num_running(), 32);
}

#[test]
fn the_victim_is_of_the_tenant_that_was_served_most() {
    // The oldest is the flood's and grows; behind it one more of the flood's with a long context, and the guest's,
    // which would be cheaper to compute again.
    let mut machine = Machine::new(Limits { num_blocks: 68, enable_prefix_caching: false, ..limits() }, false);
    let flood = [machine.admit(&ask(FLOOD, 160, 500, 0)), machine.admit(&ask(FLOOD, 500, 300, 1))];
    machine.step();
    machine.step();
    machine.admit(&ask(GUEST, 20, 300, 2));
    while machine.records.iter().all(|record| record.preempted.is_empty()) {
        assert!(machine.step(), "the pool is too small for all three");
    }
    assert_eq!(machine.records.last().unwrap().preempted[0].request, flood[1]);
}

#[test]
fn a_flood_that_fills_the_cache_leaves_others_their_first_tokens() {
    for predicts in [false, true] {
        for num_blocks in [400, 1000, 2000] {
            let limits = Limits { num_blocks, max_model_len: 4000, ..limits() };
            let flood = (0..200).map(|index| ask(FLOOD, 100, 3000, index));
            let guests = (0..20).map(|index| Ask { at_ms: 5000 + index * 3000, ..ask(GUEST, 40, 20, index) });
            let mut machine = Machine::new(limits, predicts);
            machine.serve_until(&flood.chain(guests).collect::<Vec<Ask>>(), 120_000);
            let of_guest = machine.first_tokens.iter().filter(|(tenant, _)| *tenant == GUEST);
            let mut waited: Vec<u64> = of_guest.map(|&(_, ttft)| ttft.0 / MS).collect();
            waited.sort_unstable();
            assert_eq!(waited.len(), 20, "{num_blocks} blocks: all were served");
            // Only when the cache fills up for the first time it takes seconds: a newcomer preempts no one, so it waits
            // for the first preemption among the flood.
            let (median, most) = (waited[10], waited[19]);
            assert!(median <= 100 && most <= 5000, "{num_blocks} blocks: {median} ms in the median, {most} ms at most");
        }
    }
}
