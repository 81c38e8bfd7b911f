//! How many drafts are worth their rows: the machine here is imagined, 10 ms for a pass of up to eight rows and 2 ms for
//! each row more.

use protocol::{Nanos, Targets};
use scheduler::cost::{Knot, Terms};
use scheduler::{
    CostModel, DraftProposal, DraftSource, Limits, NoDraftReason, Request, RowOutput, Scheduler, SeqId, StepOutput,
};
use testing::plans;

fn machine() -> CostModel {
    plans::machine_of(&[(1, 0.010), (8, 0.010), (108, 0.210)], Terms::default())
}

fn limits() -> Limits {
    Limits { max_prefill_seqs: 64, enable_prefix_caching: false, ..plans::limits() }
}

struct Engine {
    scheduler: Scheduler,
    now: Nanos,
    /// Why the last step had no drafts.
    no_drafts: Option<NoDraftReason>,
}

impl Engine {
    /// Decoding streams, each with a target in milliseconds per token.
    fn of(streams: u64, tpot_ms: Option<u64>) -> Engine {
        Engine::within(limits(), streams, tpot_ms)
    }

    fn within(limits: Limits, streams: u64, tpot_ms: Option<u64>) -> Engine {
        let mut scheduler = Scheduler::new(limits).expect("good limits");
        scheduler.set_cost_model(Some(machine()));
        for id in 0..streams {
            let request = Request {
                stop: plans::at_most(10_000),
                use_prefix_cache: false,
                targets: Targets { ttft: None, tpot: tpot_ms.map(|ms| Nanos(ms * 1_000_000)) },
                ..plans::request(id, [1, 2, 3])
            };
            scheduler.admit(request).expect("there is room");
        }
        let mut engine = Engine { scheduler, now: Nanos(0), no_drafts: None };
        while engine.scheduler.decoding().count() < streams as usize {
            engine.step(0, 0, |_| 0);
        }
        engine
    }

    /// A step in which every stream has a proposal; of each `held` drafts would be accepted. Returns the drafts
    /// planned.
    fn step(&mut self, len: u16, strength: u8, held: impl Fn(SeqId) -> usize) -> usize {
        let seqs: Vec<SeqId> = self.scheduler.decoding().map(|sequence| sequence.id()).collect();
        for seq in seqs {
            self.scheduler.propose(DraftProposal { seq, source: DraftSource(0), len, strength });
        }
        let step = self.scheduler.schedule(self.now);
        let run = |rows: scheduler::Rows| {
            let tokens = if rows.drafts > 0 { 1 + held(rows.seq).min(rows.drafts) } else { rows.samples };
            std::iter::repeat_n(RowOutput { seq: rows.seq, token: 7 }, tokens)
        };
        let output = StepOutput { step: step.id, rows: step.rows().flat_map(run).collect(), ..StepOutput::default() };
        let took = machine().step_time(&self.scheduler.planned().work);
        self.now = Nanos(self.now.0 + took.0);
        let record = self.scheduler.complete(output, self.now).record;
        self.no_drafts = record.no_drafts;
        self.scheduler.check_invariants();
        step.decode.iter().map(|rows| rows.drafts).sum()
    }

    /// The drafts of this many steps.
    fn steps(&mut self, steps: usize, len: u16, held: usize) -> Vec<usize> {
        (0..steps).map(|_| self.step(len, 0, |_| held)).collect()
    }
}

#[test]
fn drafts_that_hold_are_taken_up_to_where_rows_cost_time() {
    let mut engine = Engine::of(1, None);
    let drafts = engine.steps(60, 30, 30);
    // Seven are free. Each further row costs a fifth of a step of ten milliseconds and brings one token of eight.
    assert!(drafts[59] == 7, "one stream: {drafts:?}");
    let mut engine = Engine::of(4, None);
    let drafts = engine.steps(60, 30, 30);
    assert_eq!(drafts[59], 4, "four streams have four rows left: {drafts:?}");
    let mut engine = Engine::of(8, None);
    let drafts = engine.steps(60, 30, 30);
    assert!(drafts[30..].iter().all(|&drafts| drafts == 0), "eight streams have none left: {drafts:?}");
}

#[test]
fn drafts_that_never_hold_are_tried_now_and_then() {
    let mut engine = Engine::of(8, None);
    let drafts = engine.steps(640, 8, 0);
    let tried: usize = drafts[64..].iter().sum();
    assert!((5..=12).contains(&tried), "in one of 64 steps one: {tried} in 576 steps");
    // Where rows are free, a chance of any size is worth one: they stay at the flat part of the curve.
    let mut engine = Engine::of(1, None);
    assert!(engine.steps(200, 8, 0)[100..].iter().all(|&drafts| drafts <= 7));
}

#[test]
fn the_stream_whose_drafts_hold_has_them() {
    let mut engine = Engine::of(4, None);
    let good = engine.scheduler.decoding().next().expect("four decode").id();
    (0..200).for_each(|_| _ = engine.step(8, 0, |seq| if seq == good { 8 } else { 0 }));
    let before = engine.scheduler.sequence(good).expect("it goes on").num_generated();
    (0..20).for_each(|_| _ = engine.step(8, 0, |seq| if seq == good { 8 } else { 0 }));
    let tokens = engine.scheduler.sequence(good).expect("it goes on").num_generated() - before;
    assert!(tokens >= 20 * 4, "four rows are left, and three or four of them are its own: {tokens} tokens in 20 steps");
}

#[test]
fn no_draft_makes_a_stream_late() {
    // A step of nine rows takes 12 ms: more than a target of ten allows, whatever holds.
    let mut engine = Engine::of(1, Some(10));
    let drafts = engine.steps(60, 30, 30);
    assert!(drafts.iter().all(|&drafts| drafts <= 7), "{drafts:?}");
}

#[test]
fn a_strength_is_judged_by_itself() {
    let mut engine = Engine::of(6, None);
    for _ in 0..300 {
        engine.step(8, 7, |_| 8);
        engine.step(8, 1, |_| 0);
    }
    let (strong, weak) = (engine.step(8, 7, |_| 8), engine.step(8, 1, |_| 0));
    assert!(strong >= 2, "both rows that are left, and what two of them bring: {strong}");
    assert!(weak <= 2, "{weak}");
}

#[test]
fn where_rows_cost_what_they_bring_no_proposals_are_wanted() {
    // One in 64 steps retries; a lone stream has free rows whatever its acceptance.
    let asked = |streams: u64, held: usize| {
        let mut engine = Engine::of(streams, None);
        let mut asked = 0;
        for step in 0..1_000 {
            let wants = engine.scheduler.wants_proposals();
            asked += usize::from(wants && step >= 500);
            engine.step(if wants { 8 } else { 0 }, 0, |_| held);
        }
        asked
    };
    assert_eq!(asked(1, 8), 500);
    assert_eq!(asked(1, 0), 500, "rows are free");
    assert!((7..=9).contains(&asked(40, 0)), "{} of 500", asked(40, 0));
    assert!((7..=9).contains(&asked(8, 0)), "the ninth row costs a fifth of a step, and nothing holds");
}

/// A drafter with a constant pass time.
fn drafter(milliseconds: f64) -> Option<(DraftSource, CostModel)> {
    Some((DraftSource(0), CostModel::new(vec![Knot { rows: 1, seconds: milliseconds / 1e3 }], Terms::default())))
}

#[test]
fn drafts_that_take_passes_are_fewer() {
    // For one stream seven rows are free. The cost per draft, and the best number at 90 % acceptance.
    for (milliseconds, most) in [(0.0, 7), (2.0, 7), (5.0, 5), (9.0, 1), (20.0, 0)] {
        let mut engine = Engine::of(1, None);
        engine.scheduler.set_drafting_cost(drafter(milliseconds));
        let mut planned = Vec::new();
        for step in 0..600 {
            planned.push(engine.step(30, 0, |_| if step % 3 == 0 { 30 } else { 4 }));
        }
        let common = planned[300..].iter().filter(|&&drafts| drafts > 0).max().copied().unwrap_or(0);
        assert!(common.abs_diff(most) <= 2, "{milliseconds} ms: {common} drafts, about {most} expected");
    }
}

#[test]
fn the_prediction_of_a_step_has_its_drafts() {
    let mut engine = Engine::of(2, None);
    engine.scheduler.set_drafting_cost(drafter(1.0));
    for _ in 0..50 {
        engine.step(2, 0, |_| 2);
    }
    let seqs: Vec<SeqId> = engine.scheduler.decoding().map(|sequence| sequence.id()).collect();
    for (seq, len) in seqs.into_iter().zip([3, 1]) {
        engine.scheduler.propose(DraftProposal { seq, source: DraftSource(0), len, strength: 0 });
    }
    engine.scheduler.schedule(engine.now);
    let record = engine.scheduler.planned();
    assert_eq!(record.decode.iter().map(|row| row.drafts).collect::<Vec<_>>(), [3, 1]);
    // Three passes: the first for both sequences.
    assert_eq!((record.drafting, record.predicted), (Nanos(3_000_000), Nanos(13_000_000)));
}

#[test]
fn of_two_offers_the_one_that_is_worth_more_counts() {
    let mut engine = Engine::of(1, None);
    let seq = engine.scheduler.decoding().next().expect("it decodes").id();
    // Source 1 has been right, source 0 never.
    for step in 0..100 {
        let source = DraftSource(step % 2);
        engine.scheduler.propose(DraftProposal { seq, source, len: 4, strength: 0 });
        engine.step(0, 0, |_| 4 * usize::from(source.0));
    }
    for order in [[0, 1], [1, 0]] {
        for source in order {
            engine.scheduler.propose(DraftProposal { seq, source: DraftSource(source), len: 4, strength: 0 });
        }
        let offer = engine.scheduler.sequence(seq).expect("it lives").proposal().expect("it has one");
        assert_eq!(offer.source, DraftSource(1), "offered in the order {order:?}");
        engine.step(0, 0, |_| 4);
    }
    // Where its passes take longer than they bring, the free one counts.
    engine.scheduler.set_drafting_cost(Some((DraftSource(1), drafter(30.0).expect("one").1)));
    for source in [0, 1] {
        engine.scheduler.propose(DraftProposal { seq, source: DraftSource(source), len: 4, strength: 0 });
    }
    assert_eq!(
        engine.scheduler.sequence(seq).expect("it lives").proposal().expect("it has one").source,
        DraftSource(0)
    );
}

#[test]
fn a_step_without_drafts_says_why() {
    // Every token is a block: two prompts of three, a token of each, and nothing is left.
    let tight = Limits { block_size: 1, num_blocks: 8, max_model_len: 8, ..limits() };
    // (limits, streams, their target, drafts that are offered to each, of which hold; why none is checked in the end)
    let cases = [
        (limits(), 1, None, 8, 8, None),
        (limits(), 8, None, 0, 0, None),
        (limits(), 8, None, 8, 0, Some(NoDraftReason::Chance)),
        (limits(), 8, Some(10), 8, 8, Some(NoDraftReason::Time)),
        (Limits { max_num_batched_tokens: 4, max_num_seqs: 4, ..limits() }, 4, None, 8, 8, Some(NoDraftReason::Rows)),
        (tight, 2, None, 8, 8, Some(NoDraftReason::Blocks)),
    ];
    for (limits, streams, tpot_ms, offered, held, want) in cases {
        let mut engine = Engine::within(limits, streams, tpot_ms);
        let steps = if want == Some(NoDraftReason::Blocks) { 1 } else { 40 };
        let drafts = engine.steps(steps, offered, held);
        assert_eq!(engine.no_drafts, want, "{streams} streams, {offered} offered, {held} hold: {drafts:?}");
    }
}
