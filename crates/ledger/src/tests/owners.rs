//! Every millisecond has an owner: random runs of the real scheduler, in which the parts must be the whole to the
//! nanosecond, and small scenes in which the owner is known.

use std::collections::BTreeMap;
use std::prelude::v1::*;

use crate::{Account, Cost, Ledger, Owner, Shares, late_above, row_shares};
use protocol::{Nanos, Priority, RequestId, TokenId};
use scheduler::cost::{Knot, Terms};
use scheduler::{
    CostModel, DraftProposal, DraftSource, ExpertReads, Limits, Request, RowOutput, Scheduler, StealTime, Step,
    StepOutput, StepRecord, TokenEvent,
};
use testing::{Dice, plans};

const MS: u64 = 1_000_000;

/// 10 ms for a pass of up to 100 rows, 0.1 ms for each row more.
fn machine() -> CostModel {
    let terms = Terms { pair: 1e-7, key: 2e-7, row: 1e-5, prompt: 3e-5, logits: 5e-5, ..Terms::default() };
    plans::machine_of(&plans::KNOTS, terms)
}

fn limits() -> Limits {
    Limits { max_prefill_chunk: 512, ..plans::limits() }
}

fn request(id: u64, prompt: usize, max_tokens: usize, arrived: Nanos) -> Request {
    Request { stop: plans::at_most(max_tokens), arrived, ..plans::request(id, vec![id as TokenId; prompt]) }
}

/// When things happened to one request, as a client sees it.
#[derive(Default)]
struct Seen {
    arrived: Nanos,
    first_token: Option<Nanos>,
    last_tokens: BTreeMap<usize, Nanos>,
    gaps: Vec<(usize, u32, Nanos)>,
    num_tokens: BTreeMap<usize, u32>,
    ended: usize,
    num_answers: usize,
}

/// The scheduler, the ledger beside it, and a client with a clock.
struct World {
    scheduler: Scheduler,
    ledger: Ledger,
    /// What the ledger shares out by, if not by what the scheduler plans by.
    cost: Option<CostModel>,
    now: Nanos,
    seen: BTreeMap<RequestId, Seen>,
    closed: Vec<Account>,
    record: StepRecord,
    late: Vec<Cost>,
    /// Requests with remote prefill, and their number of answers.
    away: Vec<(RequestId, usize)>,
    /// What the machine says that it took of the next step.
    stolen: StealTime,
    /// Experts that the next step reads.
    experts: ExpertReads,
    /// How long it waits for another model's step.
    other_model: Nanos,
    /// Drafts available for an answer in the next step, and how many of the verified ones are accepted.
    drafts: BTreeMap<(RequestId, usize), (u16, usize)>,
}

impl World {
    fn new(limits: Limits, cost: Option<CostModel>) -> World {
        let mut scheduler = Scheduler::new(limits).expect("good limits");
        scheduler.set_cost_model(cost);
        World {
            scheduler,
            ledger: Ledger::new(64),
            cost: None,
            now: Nanos(1000),
            seen: BTreeMap::new(),
            closed: Vec::new(),
            record: StepRecord::default(),
            late: Vec::new(),
            away: Vec::new(),
            stolen: StealTime::default(),
            experts: ExpertReads::default(),
            other_model: Nanos(0),
            drafts: BTreeMap::new(),
        }
    }

    fn admit(&mut self, request: Request) {
        let seen = Seen { arrived: request.arrived, num_answers: request.num_answers, ..Seen::default() };
        let id = request.id;
        if self.scheduler.admit(request.clone()).is_ok() {
            self.ledger.admit(&request);
            self.late.extend(self.ledger.late_costs().map(|(_, cost)| cost));
            self.seen.insert(id, seen);
        }
    }

    /// The same, and another worker reads its prompt.
    fn send_away(&mut self, request: Request) {
        let seen = Seen { arrived: request.arrived, num_answers: request.num_answers, ..Seen::default() };
        let id = request.id;
        if self.scheduler.admit_remote(request.clone()).is_ok() {
            self.ledger.admit(&request);
            self.late.extend(self.ledger.late_costs().map(|(_, cost)| cost));
            self.ledger.begin_remote_prefill(id, self.now);
            self.seen.insert(id, seen);
            self.away.push((id, request.num_answers));
        }
    }

    /// Some of those are back, with what the other worker says of their time.
    fn come_back(&mut self, rng: &mut Dice, one_in: u64) {
        for (id, num_answers) in std::mem::take(&mut self.away) {
            if rng.below(one_in) > 0 {
                self.away.push((id, num_answers));
            } else if self.scheduler.in_remote_prefill(id).is_some() {
                let mut bill = Shares::default();
                for owner in Owner::REMOTE {
                    bill.add(owner, rng.below(40 * MS));
                }
                self.ledger.end_remote_prefill(id, &bill, self.now);
                let nothing = vec![Some(&[][..]); num_answers];
                self.scheduler.remote_prefill_ended(id, &nothing, self.now).expect("nothing has ended");
            }
        }
    }

    /// Everything goes to another device, which takes `took`. What is computed there again is of no matter here.
    fn move_on(&mut self, took: u64) {
        let since = self.now;
        self.now.0 += took;
        self.ledger.moved(since, self.now);
    }

    /// One step that takes `took`, and `after` until the next may begin.
    fn step(&mut self, took: u64, after: u64) -> Step {
        let mut holds = BTreeMap::new();
        let proposed = self.scheduler.decoding().filter_map(|seq| {
            let &(len, held) = self.drafts.get(&(seq.request_id(), seq.answer()))?;
            holds.insert(seq.id(), held);
            Some(DraftProposal { seq: seq.id(), source: DraftSource(0), len, strength: 0 })
        });
        proposed.collect::<Vec<DraftProposal>>().into_iter().for_each(|offer| self.scheduler.propose(offer));
        let step = self.scheduler.schedule(self.now);
        self.now.0 += took;
        if !step.is_empty() {
            let sampled = step.rows().flat_map(|rows| {
                let held = holds.get(&rows.seq).copied().unwrap_or(0).min(rows.drafts);
                std::iter::repeat_n(RowOutput { seq: rows.seq, token: 7 }, rows.samples + held)
            });
            let (stolen, experts) = (std::mem::take(&mut self.stolen), std::mem::take(&mut self.experts));
            let other_model = std::mem::take(&mut self.other_model);
            let rows = sampled.collect();
            let output = StepOutput { step: step.id, rows, stolen, experts, other_model, ..StepOutput::default() };
            let completed = self.scheduler.complete(output, self.now);
            self.record = completed.record;
            let cost = self.cost.as_ref().or(self.scheduler.cost_model());
            self.ledger.step(&self.record, cost, &mut |_| {});
            self.late.extend(self.ledger.late_costs().map(|(_, cost)| cost));
            for event in completed.events {
                self.see(event);
            }
            self.ledger.check();
        }
        self.now.0 += after;
        step
    }

    fn see(&mut self, event: TokenEvent) {
        let (TokenEvent::Token { request, answer, .. } | TokenEvent::Finished { request, answer, .. }) = event;
        let seen = self.seen.get_mut(&request).expect("admitted");
        match event {
            TokenEvent::Token { .. } => {
                seen.first_token.get_or_insert(self.now);
                let token = seen.num_tokens.entry(answer).or_default();
                if let Some(last) = seen.last_tokens.insert(answer, self.now) {
                    seen.gaps.push((answer, *token, self.now.since(last)));
                }
                *token += 1;
            }
            TokenEvent::Finished { reason, .. } => {
                self.ledger.end_answer(request, answer, reason);
                seen.ended += 1;
                if seen.ended == seen.num_answers {
                    self.close(request);
                }
            }
        }
    }

    /// The request is over: its sums must be what the client measured.
    fn close(&mut self, id: RequestId) {
        let account = self.ledger.end(id).expect("it was open");
        let seen = &self.seen[&id];
        let bill = &account.bill;
        let total: u64 = seen.gaps.iter().map(|&(_, _, gap)| gap.0).sum();
        assert_eq!(bill.gaps.total(), Nanos(total), "{id:?}: the sum of its gaps");
        assert_eq!(account.first_token, seen.first_token);
        if let Some(first) = seen.first_token {
            assert_eq!(bill.ttft.total(), first.since(seen.arrived), "{id:?}: its time to first token");
        }
        assert_eq!(bill.ttft_others.total(), others(&bill.ttft), "{id:?}: the names are the sum");
        assert_eq!(bill.gaps_others.total(), named_in_gap(&bill.gaps), "{id:?}: the names are the sum");
        assert!(bill.rejected <= bill.gaps.of(Owner::OwnDrafts), "{id:?}: {bill:?}");
        if account.held_drafts == account.draft_rows {
            assert_eq!(bill.rejected, Nanos(0), "{id:?}: {bill:?}");
        }
        let only = |shares: &Shares, owners: &[Owner]| owners.iter().map(|&owner| shares.of(owner).0).sum::<u64>();
        assert_eq!(only(&bill.ttft, &Owner::OF_TTFT), bill.ttft.total().0, "{id:?}: owners of a TTFT");
        assert_eq!(only(&bill.gaps, &Owner::OF_GAP), bill.gaps.total().0, "{id:?}: owners of a gap");
        for gap in &account.longest_gaps {
            let key = (usize::from(gap.answer), gap.token, gap.shares.total());
            assert!(seen.gaps.contains(&key), "{id:?}: {key:?} is none of its gaps");
            assert_eq!(gap.others.total(), named_in_gap(&gap.shares));
        }
        let longest = seen.gaps.iter().map(|&(_, _, gap)| gap).max();
        assert_eq!(account.longest_gaps.iter().map(|gap| gap.shares.total()).max(), longest, "{id:?}");
        for wait in &account.waits {
            assert!(wait.shares.total() <= wait.to.since(wait.from), "{id:?}: {wait:?}");
        }
        self.closed.push(account);
    }

    fn cancel(&mut self, id: RequestId) {
        if self.scheduler.abort(id) {
            self.ledger.end(id).expect("it was open");
        }
    }

    fn account(&self, id: u64) -> &Account {
        self.closed.iter().find(|account| account.request == RequestId(id)).expect("it has ended")
    }
}

fn others(shares: &Shares) -> Nanos {
    Nanos(Owner::ALL.into_iter().filter(|owner| owner.is_others()).map(|owner| shares.of(owner).0).sum())
}

/// Of it, what has names in a gap: all but the rows of other streams.
fn named_in_gap(shares: &Shares) -> Nanos {
    Nanos(others(shares).0 - shares.of(Owner::Decode).0)
}

/// A run with everything drawn from the seed. Returns what its requests' time was spent on.
fn random_run(seed: u64) -> (Shares, Shares) {
    let mut rng = Dice::new(seed);
    let seats = 1 + rng.roll(8);
    let limits = Limits {
        block_size: 4,
        num_blocks: 20 + rng.roll(60),
        max_model_len: 120,
        max_num_seqs: seats,
        max_num_batched_tokens: seats + rng.roll(60),
        max_prefill_chunk: 1 + rng.roll(40),
        max_prefill_seqs: 1 + rng.roll(4),
        ..limits()
    };
    let mut world = World::new(limits, (rng.below(3) > 0).then(machine));
    let cancels = rng.below(2) == 0;
    let is_busy = rng.below(2) == 0;
    let drafts = rng.below(2) == 0;
    // Dice of their own.
    let mut far = Dice::new(!seed);
    let leaves = far.below(2) == 0;
    let mut fate = Dice::new(seed ^ 0x1057);
    let is_lost = fate.below(4) == 0;
    let mut next_id = 0;
    let mut before = world.now;
    for round in 0..400 {
        for _ in 0..if round < 200 { rng.below(3).saturating_sub(1) } else { 0 } {
            // It came at some time since the step before began, or even earlier.
            let arrived = Nanos(world.now.0.saturating_sub(rng.below(world.now.since(before).0 * 5 / 4 + 1)));
            let mut request = request(next_id, 1 + rng.roll(60), rng.roll(24), arrived);
            request.prompt = (0..request.prompt.len() as u32).map(|at| at + next_id as u32 % 3).collect();
            request.num_answers = if rng.below(4) == 0 { 1 + rng.roll(seats.min(3)) } else { 1 };
            request.priority = Priority(rng.below(2) as i32);
            if rng.below(2) == 0 {
                request.targets.tpot = Some(Nanos(5 * MS + rng.below(20 * MS)));
                request.targets.ttft = Some(Nanos(rng.below(500 * MS)));
            }
            if leaves && far.below(3) == 0 {
                world.send_away(request);
            } else {
                world.admit(request);
            }
            next_id += 1;
        }
        world.come_back(&mut far, 6);
        if is_lost && fate.below(40) == 0 {
            world.move_on(fate.below(50 * MS));
        }
        if cancels && rng.below(12) == 0 {
            world.cancel(RequestId(rng.below(next_id + 1)));
        }
        if drafts {
            let open = (0..next_id).flat_map(|id| (0..3).map(move |answer| (RequestId(id), answer)));
            let draft = |key| (rng.below(3) > 0).then(|| (key, (rng.below(9) as u16, rng.roll(9))));
            world.drafts = open.filter_map(draft).collect();
        }
        before = world.now;
        let after = if rng.below(20) == 0 { rng.below(40 * MS) } else { rng.below(MS) };
        if is_busy && rng.below(3) == 0 {
            // Sometimes more than there was.
            let [before, during] = [2, 40].map(|most| Nanos(rng.below(most * MS)));
            world.stolen = StealTime { before, during, uncertain: Nanos(during.0 / 4) };
        }
        if is_busy && rng.below(3) == 0 {
            world.experts.took = Nanos(rng.below(40 * MS));
        }
        if is_busy && rng.below(3) == 0 {
            world.other_model = Nanos(rng.below(4 * MS));
        }
        world.step(rng.below(30 * MS), after);
    }
    for _ in 0..3000 {
        world.come_back(&mut far, 6);
        if is_lost && fate.below(40) == 0 {
            world.move_on(fate.below(50 * MS));
        }
        world.step(rng.below(30 * MS), rng.below(MS));
    }
    assert!(!world.scheduler.has_work(), "the run ends");
    let (mut ttft, mut gaps) = (Shares::default(), Shares::default());
    for account in &world.closed {
        if account.first_token.is_some() {
            ttft.merge(&account.bill.ttft);
        }
        gaps.merge(&account.bill.gaps);
    }
    if !cancels {
        assert_eq!((world.ledger.totals().ttft, world.ledger.totals().gaps), (ttft, gaps), "the totals");
        let rejected = world.closed.iter().map(|account| account.bill.rejected.0).sum();
        assert_eq!(world.ledger.totals().rejected, Nanos(rejected), "the totals");
        // What was taken of some is what it cost others.
        let mut all_ttft = Shares::default();
        let mut of = Cost::default();
        world.late.iter().for_each(|late| of.merge(*late));
        for account in &world.closed {
            all_ttft.merge(&account.bill.ttft);
            of.merge(account.bill.cost);
        }
        let prefill = [of.prefill_in_ttfts, of.prefill_in_gaps];
        let rows = [of.decode_in_ttfts, of.decode_in_gaps, of.drafts_in_ttfts, of.drafts_in_gaps];
        let waits = [of.queue_kv, of.queue_seats, of.queue_budget, of.waiting, of.left_out];
        let cost: Vec<u64> = prefill.into_iter().chain(rows).chain(waits).map(|nanos| nanos.0).collect();
        let taken = [(&all_ttft, Owner::OtherPrefill), (&gaps, Owner::OtherPrefill)]
            .into_iter()
            .chain([(&all_ttft, Owner::Decode), (&gaps, Owner::Decode)])
            .chain([(&all_ttft, Owner::OtherDrafts), (&gaps, Owner::OtherDrafts)])
            .chain([Owner::QueueKv, Owner::QueueSeats, Owner::QueueBudget].map(|owner| (&all_ttft, owner)))
            .chain([Owner::Waiting, Owner::LeftOut].map(|owner| (&gaps, owner)));
        let taken: Vec<u64> = taken.map(|(shares, owner)| shares.of(owner).0).collect();
        assert_eq!(taken, cost, "what others took is what it cost others");
    }
    (ttft, gaps)
}

#[test]
fn in_any_run_the_parts_are_the_whole() {
    let (mut ttft, mut gaps) = (Shares::default(), Shares::default());
    for seed in testing::part_of(0..600, 5) {
        let run = std::panic::catch_unwind(|| random_run(seed)).unwrap_or_else(|panic| {
            eprintln!("seed {seed} failed");
            std::panic::resume_unwind(panic)
        });
        ttft.merge(&run.0);
        gaps.merge(&run.1);
    }
    println!("ttft {ttft:?}\ngaps {gaps:?}");
    for (what, shares, owners) in [("TTFT", &ttft, &Owner::OF_TTFT[..]), ("gaps", &gaps, &Owner::OF_GAP)] {
        for &owner in owners {
            let share = shares.of(owner).0 as f64 / shares.total().0 as f64;
            assert!(share > 1e-5, "{what}: {} has only {share}: this run tests too little", owner.name());
        }
    }
}

#[test]
fn the_same_run_has_the_same_ledger() {
    assert_eq!(random_run(7), random_run(7));
}

/// What the parts of a sum are, in microseconds, rounded.
fn micros(shares: &Shares, owners: &[Owner]) -> Vec<(&'static str, u64)> {
    let parts = owners.iter().map(|&owner| (owner.name(), (shares.of(owner).0 + 500) / 1000));
    parts.filter(|&(_, micros)| micros > 0).collect()
}

#[test]
fn a_late_token_names_the_prompt_that_delayed_it() {
    let knots = [(1, 0.010), (100, 0.010), (1100, 0.110)].map(|(rows, seconds)| Knot { rows, seconds });
    let mut world = World::new(limits(), Some(CostModel::new(knots.to_vec(), Terms::default())));
    world.admit(request(1, 50, 4, world.now));
    world.step(10 * MS, 0);
    world.step(10 * MS, 0);
    let mut long = request(2, 400, 2, world.now);
    long.tenant = 9;
    world.admit(long);
    // 401 rows: 10 ms of the pass would have been there anyway, 30.1 ms are the prompt's.
    world.step(40_100_000, MS);
    world.step(10 * MS, 0);
    world.step(10 * MS, 0);
    let account = world.account(1);
    let late = account.late_gaps();
    assert_eq!(late.len(), 1, "{late:?}");
    assert_eq!((late[0].token, late[0].shares.total()), (2, Nanos(40_100_000)));
    assert_eq!(micros(&late[0].shares, &Owner::OF_GAP), [("own_decode", 10_000), ("other_prefill", 30_100)]);
    assert_eq!(late[0].others.entries().next().map(|(id, nanos)| (id, nanos.0 / 1000)), Some((RequestId(2), 30_100)));
    // The prompt waited for no one, carried one decode row, and knows what it cost.
    let account = world.account(2);
    let ttft = micros(&account.bill.ttft, &Owner::OF_TTFT);
    assert_eq!(ttft, [("own_prefill", 40_000), ("decode", 100)]);
    assert_eq!(account.bill.cost.prefill_in_gaps.0 / 1000, 30_100);
    assert_eq!(account.tenant, 9);
}

/// The scene of the tests of drafts: 10 ms for a row alone, 1 ms for each row more.
fn steep() -> CostModel {
    let knots = [(1, 0.010), (101, 0.110)].map(|(rows, seconds)| Knot { rows, seconds });
    CostModel::new(knots.to_vec(), Terms::default())
}

#[test]
fn draft_time_is_separate_from_decode_time() {
    // Both decode, and the first may draft. (drafts, of which hold; of the first's gap, of the second's; rejected)
    type Parts = &'static [(&'static str, u64)];
    let cases: [(u16, usize, Parts, Parts, u64); 4] = [
        (0, 0, &[("own_decode", 10_000), ("decode", 1_000)], &[("own_decode", 10_000), ("decode", 1_000)], 0),
        (
            4,
            4,
            &[("own_decode", 10_000), ("own_drafts", 4_000), ("decode", 1_000)],
            &[("own_decode", 10_000), ("decode", 1_000), ("other_drafts", 4_000)],
            0,
        ),
        (
            4,
            1,
            &[("own_decode", 10_000), ("own_drafts", 4_000), ("decode", 1_000)],
            &[("own_decode", 10_000), ("decode", 1_000), ("other_drafts", 4_000)],
            3_000,
        ),
        (
            4,
            0,
            &[("own_decode", 10_000), ("own_drafts", 4_000), ("decode", 1_000)],
            &[("own_decode", 10_000), ("decode", 1_000), ("other_drafts", 4_000)],
            4_000,
        ),
    ];
    for (drafts, hold, of_first, of_second, rejected) in cases {
        // The scheduler knows no costs here, so every draft is checked; the ledger does.
        let mut world = World::new(limits(), None);
        world.cost = Some(steep());
        [(1, 40), (2, 2)].into_iter().for_each(|(id, tokens)| world.admit(request(id, 10, tokens, world.now)));
        world.step(10 * MS, 0);
        world.drafts.insert((RequestId(1), 0), (drafts, hold));
        let took = (11 + u64::from(drafts)) * MS;
        world.step(took, 0);
        let first = &world.ledger.of(RequestId(1)).expect("it is open").bill;
        let second = &world.account(2).bill;
        assert_eq!(micros(&first.gaps, &Owner::OF_GAP), of_first, "{drafts} {hold}");
        assert_eq!(micros(&second.gaps, &Owner::OF_GAP), of_second, "{drafts} {hold}");
        assert_eq!((first.rejected.0 + 500) / 1000, rejected, "{drafts} {hold}");
        // Who was delayed by the drafts of another names it, and both sides have the same nanoseconds.
        let delayed = second.gaps.of(Owner::OtherDrafts);
        let named: Vec<_> = second.gaps_others.entries().collect();
        assert_eq!(named, if drafts > 0 { vec![(RequestId(1), delayed)] } else { vec![] });
        assert_eq!((first.cost.drafts_in_gaps, second.cost.drafts_in_gaps), (delayed, Nanos(0)));
    }
}

#[test]
fn who_waits_for_a_first_token_names_those_whose_drafts_it_waited_for() {
    let mut world = World::new(limits(), None);
    world.cost = Some(steep());
    (1..3).for_each(|id| world.admit(request(id, 10, 20, world.now)));
    world.step(20 * MS, 0);
    world.drafts.extend([(1, 6), (2, 2)].map(|(id, drafts)| ((RequestId(id), 0), (drafts, 0))));
    world.admit(request(3, 10, 1, world.now));
    world.step(29 * MS, 0);
    let bill = &world.account(3).bill;
    let want = [("own_prefill", 19_000), ("decode", 2_000), ("other_drafts", 8_000)];
    assert_eq!(micros(&bill.ttft, &Owner::OF_TTFT), want);
    let named: Vec<(u64, u64)> = bill.ttft_others.entries().map(|(id, nanos)| (id.0, nanos.0 / 1000)).collect();
    assert_eq!(named, [(1, 7_000), (2, 3_000)], "six and two drafts, and a row each");
    let cost = |id| world.ledger.of(RequestId(id)).expect("it is open").bill.cost.drafts_in_ttfts.0 / 1000;
    assert_eq!([cost(1), cost(2)], [6_000, 2_000]);
}

#[test]
fn of_many_that_draft_the_most_are_named_and_the_rest_summed() {
    let mut world = World::new(Limits { max_prefill_seqs: 20, ..limits() }, None);
    world.cost = Some(steep());
    (0..12).for_each(|id| world.admit(request(id, 10, 20, world.now)));
    world.step(30 * MS, 0);
    world.drafts.extend((0..12).map(|id| ((RequestId(id), 0), (1 + id as u16, 0))));
    world.step(99 * MS, 0);
    for (id, want) in [(0, [11, 10, 9, 8, 7, 6]), (11, [10, 9, 8, 7, 6, 5])] {
        let bill = world.ledger.of(RequestId(id)).expect("it is open").bill;
        assert_eq!(bill.gaps_others.entries().map(|(id, _)| id.0).collect::<Vec<_>>(), want);
        assert_eq!(bill.gaps_others.total(), bill.gaps.of(Owner::OtherDrafts));
        let each: Vec<u64> = bill.gaps_others.entries().map(|(_, nanos)| nanos.0 / MS).collect();
        assert!(each.iter().zip(want).all(|(&ms, id)| ms.abs_diff(id + 1) <= 1), "a millisecond each: {each:?}");
    }
}

#[test]
fn tokens_that_come_together_have_one_gap_and_no_part_in_the_median() {
    let mut world = World::new(limits(), None);
    world.admit(request(1, 10, 21, world.now));
    world.step(10 * MS, 0);
    world.drafts.insert((RequestId(1), 0), (3, 3));
    (0..5).for_each(|_| _ = world.step(30 * MS, 0));
    let account = world.account(1);
    assert_eq!((account.num_tokens(), account.held_drafts, account.draft_rows), (21, 15, 15));
    assert_eq!(account.longest_gaps.iter().map(|gap| gap.token).collect::<Vec<_>>(), [1, 5, 9, 13, 17]);
    // Were the fifteen gaps of nothing in the median, it would be nothing, and each of the five late.
    assert_eq!((account.median_gap(), account.late_gaps().len()), (Nanos(30 * MS), 0));
}

#[test]
fn a_gap_is_late_above_the_target_or_twice_the_median_and_twenty_milliseconds() {
    let micros = |micros: u64| Nanos(micros * 1000);
    // (target, median, what is late above)
    let cases = [
        (None, micros(450), micros(20_000)),
        (None, micros(10_000), micros(20_000)),
        (None, micros(35_000), micros(70_000)),
        (Some(micros(5_000)), micros(450), micros(5_000)),
        (Some(micros(90_000)), micros(10_000), micros(90_000)),
    ];
    for (target, median, limit) in cases {
        assert_eq!(late_above(target, median), limit, "{target:?} {median:?}");
    }
}

#[test]
fn the_queue_has_causes() {
    // (limits, the cause that must show)
    let cases = [
        (Limits { max_num_seqs: 1, ..limits() }, "queue_seats"),
        (Limits { num_blocks: 10, max_model_len: 150, ..limits() }, "queue_kv"),
        (Limits { max_prefill_seqs: 1, max_num_batched_tokens: 64, ..limits() }, "queue_budget"),
    ];
    for (limits, cause) in cases {
        let mut world = World::new(limits, None);
        world.admit(request(1, 100, 20, world.now));
        world.admit(request(2, 100, 2, world.now));
        for _ in 0..60 {
            world.step(10 * MS, MS);
        }
        let bill = &world.account(2).bill;
        let ttft = micros(&bill.ttft, &Owner::OF_TTFT);
        let queue: Vec<&str> = ttft.iter().map(|part| part.0).filter(|name| name.starts_with("queue")).collect();
        assert_eq!(queue, [cause], "{ttft:?}");
        assert_eq!(bill.ttft.of(Owner::Overhead).0 % MS, 0, "1 ms after each step");
    }
}

#[test]
fn who_comes_in_the_middle_of_a_step_waits_for_it() {
    let mut world = World::new(limits(), None);
    world.admit(request(1, 100, 3, world.now));
    let began = world.now;
    world.step(10 * MS, 2 * MS);
    world.admit(request(2, 10, 1, Nanos(began.0 + 4 * MS)));
    world.step(5 * MS, 0);
    let ttft = world.account(2).bill.ttft;
    assert_eq!((ttft.of(Owner::QueueBudget), ttft.of(Owner::Overhead)), (Nanos(6 * MS), Nanos(2 * MS)));
    assert_eq!(ttft.total(), Nanos(13 * MS));
}

#[test]
fn what_the_machine_took_is_no_ones_rows() {
    let knots = [(1, 0.010), (100, 0.010), (1100, 0.110)].map(|(rows, seconds)| Knot { rows, seconds });
    // (what the machine took of the late step; who its gap belongs to)
    let cases: [(u64, &[(&str, u64)]); 3] = [
        (0, &[("own_decode", 51_870), ("other_prefill", 156_130), ("overhead", 1_000)]),
        (167_900_000, &[("own_decode", 10_000), ("other_prefill", 30_100), ("machine", 167_900), ("overhead", 1_000)]),
        (208_000_000, &[("machine", 208_000), ("overhead", 1_000)]),
    ];
    for (stolen, want) in cases {
        let mut world = World::new(limits(), Some(CostModel::new(knots.to_vec(), Terms::default())));
        world.admit(request(1, 50, 4, world.now));
        world.step(10 * MS, 0);
        world.step(10 * MS, MS);
        world.admit(request(2, 400, 2, world.now));
        // 40.1 ms of work, as in the test of the long prompt.
        world.stolen.during = Nanos(stolen);
        world.step(208 * MS, MS);
        let costs = world.ledger.of(RequestId(2)).expect("it is open").bill.cost.total();
        world.step(10 * MS, 0);
        let account = world.account(1);
        let late = account.longest_gaps.iter().max_by_key(|gap| gap.shares.total()).expect("it has gaps");
        assert_eq!(micros(&late.shares, &Owner::OF_GAP), want, "{stolen}");
        // The prompt did not cost what the machine took.
        assert_eq!(costs, late.shares.of(Owner::OtherPrefill), "{stolen}");
    }
}

#[test]
fn a_move_to_another_device_is_a_transfer() {
    let mut world = World::new(limits(), Some(machine()));
    world.admit(request(1, 50, 4, world.now));
    world.step(10 * MS, 0);
    world.step(10 * MS, MS);
    world.move_on(700 * MS);
    world.admit(request(2, 10, 1, Nanos(world.now.0 - MS)));
    world.step(10 * MS, 0);
    world.step(10 * MS, 0);
    let account = world.account(1);
    let late = account.longest_gaps.iter().max_by_key(|gap| gap.shares.total()).expect("it has gaps");
    assert_eq!(late.shares.of(Owner::Transfer), Nanos(700 * MS));
    assert_eq!(late.shares.of(Owner::Overhead), Nanos(MS));
    assert_eq!(late.shares.total(), Nanos(711 * MS));
}

#[test]
fn who_waits_for_a_disturbed_step_waits_for_the_machine_too() {
    let mut world = World::new(Limits { max_num_seqs: 1, ..limits() }, None);
    world.admit(request(1, 100, 2, world.now));
    let began = world.now;
    world.stolen = StealTime { during: Nanos(5 * MS), ..StealTime::default() };
    world.step(10 * MS, 2 * MS);
    // It came 4 ms before the end of that step: half of that counts as steal time, taken as uniform.
    world.admit(request(2, 10, 1, Nanos(began.0 + 6 * MS)));
    world.stolen = StealTime { before: Nanos(MS), during: Nanos(7 * MS), uncertain: Nanos(2 * MS) };
    world.step(10 * MS, 3 * MS);
    // Between two steps no more can be taken than there is.
    world.stolen = StealTime { before: Nanos(9 * MS), ..StealTime::default() };
    world.step(5 * MS, 0);
    let ttft = world.account(2).bill.ttft;
    let of = |owner| ttft.of(owner).0 / MS;
    assert_eq!([of(Owner::Machine), of(Owner::QueueSeats) + of(Owner::QueueBudget)], [2 + 1 + 7 + 3, 2 + 3]);
    assert_eq!([of(Owner::OwnPrefill), of(Owner::Overhead)], [5, 1]);
    assert_eq!(ttft.total(), Nanos(24 * MS));
}

#[test]
fn experts_that_are_read_have_a_part_of_each_step() {
    let mut world = World::new(Limits { max_num_seqs: 1, ..limits() }, None);
    let reads = |ms| ExpertReads { took: Nanos(ms * MS), ..ExpertReads::default() };
    world.admit(request(1, 100, 2, world.now));
    let began = world.now;
    world.experts = reads(4);
    world.step(10 * MS, 0);
    // It came in the middle of that step, and waits for the next. What the machine takes goes first.
    world.admit(request(2, 10, 1, Nanos(began.0 + 5 * MS)));
    (world.experts, world.stolen.during) = (reads(9), Nanos(3 * MS));
    world.step(10 * MS, 0);
    world.experts = reads(1);
    world.step(5 * MS, 0);
    let [first, second] = [1, 2].map(|id| world.account(id).bill);
    let of = |shares: &Shares| {
        [Owner::ExpertReads, Owner::Machine, Owner::OwnPrefill, Owner::QueueBudget].map(|owner| shares.of(owner).0 / MS)
    };
    assert_eq!([of(&first.ttft), of(&first.gaps)], [[4, 0, 6, 0], [7, 3, 0, 0]]);
    assert_eq!(of(&second.ttft), [2 + 7 + 1, 3, 4, 3]);
    assert_eq!(second.ttft.total(), Nanos(20 * MS));
}

#[test]
fn steps_of_another_model_are_its_time_before_a_step_and_for_who_came_meanwhile() {
    let mut world = World::new(Limits { max_num_seqs: 2, ..limits() }, None);
    world.admit(request(1, 100, 3, world.now));
    world.step(10 * MS, 6 * MS);
    // 6 ms went by, 5 of them with another model; the second came 2 ms before the step, and is told of it behind it.
    world.other_model = Nanos(5 * MS);
    let began = world.now;
    world.step(10 * MS, 0);
    world.admit(request(2, 10, 1, Nanos(began.0 - 2 * MS)));
    world.step(10 * MS, 0);
    let [first, second] = [1, 2].map(|id| world.account(id).bill);
    let of = |shares: &Shares| [Owner::OtherModel, Owner::Overhead].map(|owner| shares.of(owner).0 / MS);
    assert_eq!([of(&first.ttft), of(&first.gaps)], [[0, 0], [5, 1]]);
    assert_eq!(of(&second.ttft), [2, 0]);
    assert_eq!(second.ttft.total(), Nanos(22 * MS));
}

#[test]
fn a_prefill_worker_alone_on_a_busy_machine_has_no_others() {
    let mut world = World::new(Limits { max_num_batched_tokens: 64, ..limits() }, None);
    world.admit(request(1, 100, 1, world.now));
    world.stolen = StealTime { during: Nanos(953 * MS), ..StealTime::default() };
    // Its prompt takes two steps.
    world.step(960 * MS, 2 * MS);
    world.stolen = StealTime { before: Nanos(MS), ..StealTime::default() };
    world.step(5 * MS, 0);
    let here = world.account(1).bill.ttft;
    let seen = here.seen_from_afar();
    assert_eq!(Owner::REMOTE.map(|owner| seen.of(owner).0 / MS), [0, 7 + 1 + 5, 0, 953 + 1], "{here:?}");
    assert_eq!((seen.total(), seen.seen_from_afar()), (here.total(), seen));
}

#[test]
fn the_cache_saves_what_the_model_says_and_it_is_no_part_of_the_sum() {
    let mut world = World::new(limits(), Some(machine()));
    for (id, saves) in [(1, false), (1, true)] {
        let mut again = request(id, 400, 1, world.now);
        again.id = RequestId(u64::from(saves));
        world.admit(again);
        world.step(10 * MS, 0);
        let account = world.account(u64::from(saves));
        assert_eq!(account.bill.saved_by_cache.is_some_and(|saved| saved > Nanos(30 * MS)), saves);
        assert_eq!(account.bill.ttft.total(), Nanos(10 * MS));
    }
    // And not less than the machine could have done.
    let mut open = request(1, 400, 2, world.now);
    open.id = RequestId(2);
    world.admit(open);
    world.step(10 * MS, 0);
    for least in [9000, 1, 9000] {
        world.ledger.saved_at_least(RequestId(2), Nanos(least * MS));
        let saved = world.ledger.of(RequestId(2)).and_then(|account| account.bill.saved_by_cache);
        assert_eq!(saved, Some(Nanos(9000 * MS)), "{least}");
    }
}

#[test]
fn of_many_the_largest_are_named_and_the_rest_summed() {
    let limits = Limits { max_prefill_seqs: 20, max_num_seqs: 40, ..limits() };
    let mut world = World::new(limits, Some(machine()));
    world.admit(request(100, 10, 3, world.now));
    world.step(10 * MS, 0);
    for id in 0..12 {
        world.admit(request(id, 20 + 10 * id as usize, 2, world.now));
    }
    world.step(200 * MS, 0);
    world.step(10 * MS, 0);
    let others = &world.account(100).bill.gaps_others;
    let named: Vec<u64> = others.entries().map(|(id, _)| id.0).collect();
    assert_eq!(named, [11, 10, 9, 8, 7, 6]);
    assert!(others.rest() > Nanos(0) && others.entries().is_sorted_by(|a, b| a.1 >= b.1));
}

#[test]
fn a_picture_of_a_step_shows_the_shares_of_the_accounts() {
    for cost in [Some(machine()), None] {
        let mut world = World::new(limits(), cost.clone());
        for (id, prompt) in [(1, 40), (2, 300)] {
            world.admit(request(id, prompt, 100, world.now));
        }
        for _ in 0..3 {
            world.step(20 * MS, 0);
        }
        assert!(row_shares(&world.record, cost.as_ref()).is_empty(), "answers alone pay alike");
        let gaps = |world: &World, id| world.ledger.account(RequestId(id)).expect("it is open").bill.gaps;
        let before = [1, 2].map(|id| gaps(&world, id));
        for id in [3, 4] {
            world.admit(request(id, 700, 10, world.now));
        }
        let took = 100 * MS;
        world.step(took, 0);
        let record = &world.record;
        assert_eq!((record.decode.len(), record.prefill.len()), (2, 2));
        let shares = row_shares(record, cost.as_ref());
        assert_eq!(shares.len(), 4);
        for (id, before) in [1, 2].into_iter().zip(before) {
            let row = record.decode.iter().position(|row| row.request == RequestId(id)).expect("it has a row");
            let after = gaps(&world, id);
            for (owner, share) in
                [(Owner::OwnDecode, shares[row].own), (Owner::OtherPrefill, shares[row].other_prefill)]
            {
                let booked = (after.of(owner).0 - before.of(owner).0) as f64 / took as f64;
                assert!((booked - share).abs() < 1e-6, "{owner:?} of {id}: {booked} and {share}");
            }
        }
        assert!(shares.iter().all(|parts| parts.own > 0.0 && parts.other_prefill > 0.0), "{shares:?}");
        assert!(shares[0].other_prefill > 0.8, "most of it was read, not written: {shares:?}");
        assert!(shares[2].own > shares[0].own, "a prompt pays for its own rows");
    }
}
