//! What targets do to plans: chunks end where a running stream would be late, and prompts go in the order that keeps
//! most of them in time. The machine here is imagined: 10 ms for a pass of up to 100 rows, 0.1 ms for each row more.

use protocol::{Nanos, Priority, RequestId, StopRules, Targets, TokenId};
use scheduler::cost::{Knot, Terms};
use scheduler::{CostModel, Limits, Request, Rows, Scheduler, StealTime, Step, StepOutput, Work};
use testing::{Dice, plans};

const MS: u64 = 1_000_000;

struct Engine {
    scheduler: Scheduler,
    machine: CostModel,
    now: Nanos,
    /// Steal time of every step.
    stolen: Nanos,
}

fn limits() -> Limits {
    Limits { enable_prefix_caching: false, ..plans::limits() }
}

fn request(id: u64, prompt: usize) -> Request {
    Request { use_prefix_cache: false, ..plans::request(id, vec![id as TokenId; prompt]) }
}

impl Engine {
    fn new(machine: CostModel) -> Engine {
        Engine::with_limits(machine, limits())
    }

    fn with_limits(machine: CostModel, limits: Limits) -> Engine {
        let mut scheduler = Scheduler::new(limits).unwrap();
        scheduler.set_cost_model(Some(machine.clone()));
        Engine { scheduler, machine, now: Nanos(0), stolen: Nanos(0) }
    }

    fn admit(&mut self, id: u64, prompt: usize, ttft_ms: Option<u64>, tpot_ms: Option<u64>) {
        self.admit_for(id, prompt, 1000, Priority(0), ttft_ms, tpot_ms);
    }

    fn admit_for(
        &mut self,
        id: u64,
        prompt: usize,
        max_tokens: usize,
        priority: Priority,
        ttft_ms: Option<u64>,
        tpot_ms: Option<u64>,
    ) {
        let nanos = |ms: u64| Nanos(ms * MS);
        let targets = Targets { ttft: ttft_ms.map(nanos), tpot: tpot_ms.map(nanos) };
        let stop = StopRules { max_tokens, min_tokens: 0, stop_token_ids: vec![] };
        self.admit_request(Request { stop, priority, targets, ..request(id, prompt) });
    }

    fn admit_request(&mut self, request: Request) {
        self.scheduler.admit(Request { arrived: self.now, ..request }).unwrap();
    }

    /// Plans and computes one step in exactly the time that the model says; returns the plan and how long it took.
    fn step(&mut self) -> (Step, u64) {
        let step = self.scheduler.schedule(self.now);
        let mut work = Work::default();
        for chunk in &step.prefill {
            work.add_chunk(chunk.start, chunk.len, chunk.samples > 0);
        }
        for row in &step.decode {
            work.add_decode(self.scheduler.sequence(row.seq).unwrap().num_tokens());
        }
        let took = self.machine.step_time(&work).0;
        self.now.0 += took + self.stolen.0;
        let stolen = StealTime { during: self.stolen, ..StealTime::default() };
        let output = StepOutput { stolen, ..plans::answer(&step, 7) };
        let record = self.scheduler.complete(output, self.now).record;
        assert_eq!((record.work, record.undisturbed()), (work, Nanos(took)));
        assert!(record.predicted.0.abs_diff(took) <= took / 1000, "{:?} predicted", record.predicted);
        self.scheduler.check_invariants();
        (step, took)
    }
}

#[test]
fn a_long_prompt_takes_what_the_streams_target_leaves() {
    let mut engine = Engine::new(plans::machine());
    engine.admit(1, 50, None, Some(40));
    engine.step();
    engine.admit(2, 8000, None, None);
    let mut longest = 0;
    let mut steps = 0;
    while engine.scheduler.sequences().any(|seq| seq.request_id() == RequestId(2) && seq.num_generated() == 0) {
        longest = longest.max(engine.step().1);
        steps += 1;
    }
    assert!(longest <= 48 * MS, "no gap above 1.2 targets, but one of {longest} ns");
    assert!(steps <= 8000 / 350, "the prompt gets what the target leaves, 37 ms a step: took {steps} steps");
}

#[test]
fn a_prompt_with_time_takes_half_of_what_the_stream_allows() {
    for (ttft_ms, most) in [(5000, 240), (100, 400)] {
        let mut engine = Engine::new(plans::machine());
        engine.admit(1, 50, None, Some(40));
        engine.step();
        engine.admit(2, 1000, Some(ttft_ms), None);
        let rows = engine.step().0.prefill[0].len;
        assert!(rows <= most && rows > most * 3 / 4, "due in {ttft_ms} ms: {rows} rows");
    }
}

/// The starvation guard's prompt goes first, before the slack for slower prefill is checked.
#[test]
fn who_was_passed_over_takes_no_more_than_the_step_may_grow() {
    let mut engine = Engine::new(plans::machine());
    engine.admit(1, 50, None, Some(1));
    engine.step();
    engine.admit_for(2, 5000, 1, Priority(2), Some(1_000_000_000), None);
    engine.admit(3, 10_000, Some(1_000_000_000), None);
    let mut advanced = [0; 2];
    for _ in 0..40 {
        let (step, took) = engine.step();
        let id = |rows: &Rows| engine.scheduler.sequence(rows.seq).unwrap().request_id().0;
        step.prefill.iter().for_each(|rows| advanced[id(rows) as usize - 2] += 1);
        // A tenth more than the stream's row alone.
        assert!(took <= 11 * MS, "a step of {took} ns: {:?}", step.prefill);
    }
    assert!(advanced[0] >= 2 && advanced[1] >= 30, "{advanced:?} steps with rows of each");
}

/// Of a small model a decode step is a hundredth of the target: a prompt beside it must not go row by row.
#[test]
fn a_prompt_does_not_trickle_beside_a_fast_stream() {
    let knots = [(1, 0.0002), (2, 0.0004), (2048, 0.4)].map(|(rows, seconds)| Knot { rows, seconds });
    let mut engine = Engine::new(CostModel::new(knots.to_vec(), Terms::default()));
    engine.admit(1, 1, None, Some(60));
    engine.step();
    engine.admit(2, 3000, Some(10_000), None);
    let first_token = |engine: &Engine| {
        engine.scheduler.sequences().any(|seq| seq.request_id() == RequestId(2) && seq.num_generated() > 0)
    };
    let steps = (1..).find(|_| {
        engine.step();
        first_token(&engine)
    });
    assert!(steps.is_some_and(|steps| steps <= 30), "0.6 s of prompt in steps of 30 ms: {steps:?} steps");
}

#[test]
fn no_stream_means_no_bound() {
    let mut engine = Engine::new(plans::machine());
    engine.admit(1, 2000, None, Some(40));
    assert_eq!(engine.step().0.prefill[0].len, 2000);
}

#[test]
fn prompts_go_in_the_order_that_keeps_most_in_time() {
    // (prompt tokens, TTFT target in ms), and in which order they are to end.
    type Case = (&'static [(usize, u64)], &'static [u64]);
    let cases: &[Case] = &[
        // Nothing is late: by deadline.
        (&[(1000, 900), (1000, 400), (1000, 600)], &[2, 3, 1]),
        // The long one would make the two others late; alone it is put off.
        (&[(6000, 700), (1500, 750), (1500, 800)], &[2, 3, 1]),
        // What is late already gives way to what is not.
        (&[(3000, 100), (1500, 400)], &[2, 1]),
    ];
    for &(prompts, expected) in cases {
        let mut engine = Engine::new(plans::machine());
        for (index, &(len, ttft)) in prompts.iter().enumerate() {
            engine.admit(index as u64 + 1, len, Some(ttft), None);
        }
        let mut order = Vec::new();
        while order.len() < prompts.len() {
            engine.step();
            let mut ended: Vec<u64> = engine
                .scheduler
                .sequences()
                .filter(|seq| seq.num_generated() > 0)
                .map(|seq| seq.request_id().0)
                .collect();
            ended.retain(|id| !order.contains(id));
            order.extend(ended);
        }
        assert_eq!(order, expected, "{prompts:?}");
    }
}

#[test]
fn rows_without_a_target_sit_out_what_they_would_make_late() {
    // Every decode row takes a millisecond more.
    let terms = Terms { row: 0.001, ..Terms::default() };
    let mut engine = Engine::new(CostModel::new(vec![Knot { rows: 1, seconds: 0.010 }], terms));
    for id in 1..=30 {
        engine.admit(id, 10, None, None);
    }
    engine.admit(31, 10, None, Some(20));
    while engine.scheduler.sequences().any(|seq| seq.num_generated() == 0) {
        engine.step();
    }
    let rows: Vec<usize> = (0..20).map(|_| engine.step().0.decode.len()).collect();
    let mean = rows.iter().sum::<usize>() / rows.len();
    assert!((5..=20).contains(&mean), "a 20 ms target has room for about ten rows: {rows:?}");
    let least = engine.scheduler.sequences().map(|seq| seq.num_generated()).min().unwrap();
    assert!(least >= 3, "and none is forgotten");
}

/// A stream with a target may have to wait until protected ones behind it have ended. They are not left out for its
/// sake: that would be a step without rows.
#[test]
fn no_row_is_left_out_for_a_stream_that_cannot_move() {
    let small = Limits { block_size: 1, num_blocks: 20, max_model_len: 20, ..limits() };
    let mut engine = Engine::with_limits(plans::machine(), small);
    let (low, high) = (Priority(9), Priority(0));
    engine.admit_for(1, 2, 17, low, None, None);
    engine.step();
    // Four times a higher class takes its blocks.
    for id in 2..=5 {
        let free = engine.scheduler.limits().num_blocks - engine.scheduler.used_blocks();
        engine.admit_for(id, free - 3, 4, high, None, None);
        while engine.scheduler.sequences().any(|seq| seq.request_id() == RequestId(id)) {
            engine.step();
        }
        engine.step(); // it resumes
    }
    let preemptions = |engine: &Engine| engine.scheduler.sequences().map(|seq| seq.num_preemptions()).max();
    assert_eq!(preemptions(&engine), Some(4), "now it runs to its end, with all its blocks set aside");
    engine.admit_for(6, 1, 5, high, None, Some(0));
    let mut stalled = 0;
    while engine.scheduler.has_work() {
        let (step, _) = engine.step();
        assert!(!step.is_empty(), "an idle step while two requests wait for each other");
        let names = engine.scheduler.sequences().map(|seq| (seq.request_id(), seq.id()));
        let first = names.filter(|(request, _)| *request == RequestId(6)).map(|(_, id)| id).next();
        stalled +=
            usize::from(first.is_some_and(|id| step.decode.iter().all(|row| row.seq != id) && step.prefill.is_empty()));
    }
    assert!(stalled > 2, "the first in line had to wait for blocks");
}

/// A sequence that leaves the last seat to another tenant keeps its place before those behind it in its own line.
#[test]
fn a_request_that_leaves_the_last_seat_is_not_passed_by_its_own_line() {
    let mut engine = Engine::with_limits(plans::machine(), Limits { max_num_seqs: 4, ..limits() });
    let brief = StopRules { max_tokens: 1, min_tokens: 0, stop_token_ids: vec![] };
    engine.admit_request(Request { tenant: 2, stop: brief, ..request(1, 10) });
    engine.step(); // the other tenant was there, and may come back
    engine.admit_request(Request { tenant: 1, num_answers: 2, ..request(2, 10) });
    engine.step();
    engine.admit_request(Request { tenant: 1, num_answers: 2, ..request(3, 10) });
    engine.admit_request(Request { tenant: 1, ..request(4, 10) });
    let (step, _) = engine.step();
    assert!(step.prefill.is_empty(), "request 4 has not overtaken request 3: {step:?}");
}

#[test]
fn a_fitted_model_predicts_what_it_was_not_shown() {
    // Steps of a machine with known costs, 3 % noise from a fixed sequence.
    let truth = |work: &Work| {
        let rows = work.rows() as f64;
        0.004
            + (0.020_f64).max(rows * 0.000_4)
            + work.prefill_pairs as f64 * 2e-8
            + work.decode_context as f64 * 1e-7
            + work.decode_rows as f64 * 5e-5
            + work.logit_rows as f64 * 1e-4
    };
    let mut dice = Dice::new(1);
    let mut draw = || {
        let mut work = Work::default();
        for _ in 0..dice.below(20) {
            work.add_decode(dice.roll(4000) + 1);
        }
        if work.decode_rows == 0 || dice.below(2) == 0 {
            work.add_chunk(dice.roll(4000), dice.roll(500) + 1, dice.below(2) == 0);
        }
        let noise = 0.97 + dice.below(600) as f64 / 10_000.0;
        (work, Nanos((truth(&work) * noise * 1e9) as u64))
    };
    let shown: Vec<_> = (0..300).map(|_| draw()).collect();
    let model = CostModel::fit(&[1, 8, 32, 64, 128, 256, 512], &shown).unwrap();
    let mut errors: Vec<f64> =
        (0..300).map(|_| draw()).map(|(work, time)| (model.seconds(&work) / time.as_secs_f64() - 1.0).abs()).collect();
    errors.sort_by(f64::total_cmp);
    assert!(errors[150] < 0.03 && errors[285] < 0.08, "median {} p95 {}", errors[150], errors[285]);
}

#[test]
fn a_model_follows_a_machine_that_becomes_slower() {
    let mut model = plans::machine();
    let mut work = Work::default();
    work.add_decode(100);
    for _ in 0..40 {
        model.observe(&work, Nanos(20 * MS));
    }
    let predicted = model.seconds(&work);
    assert!((predicted / 0.020 - 1.0).abs() < 0.02, "{predicted}");
}

#[test]
fn a_model_of_a_busy_start_is_right_within_a_hundred_steps() {
    let times = |factor: f64| {
        let knots = [(1, 0.010), (64, 0.020), (512, 0.110)];
        let terms = Terms { key: factor * 1e-7, pair: factor * 1e-8, ..Terms::default() };
        let knots = knots.map(|(rows, seconds)| Knot { rows, seconds: factor * seconds });
        CostModel::new(knots.to_vec(), terms)
    };
    let (truth, mut model) = (times(1.0), times(8.0));
    // One step in eight reads a prompt, as a server's do.
    let work = |index: usize| {
        let mut work = Work::default();
        (0..1 + index % 4).for_each(|row| work.add_decode(100 + row));
        if index.is_multiple_of(8) {
            work.add_chunk(0, 256, true);
        }
        work
    };
    for index in 0..100 {
        model.observe(&work(index), truth.step_time(&work(index)));
    }
    for index in [1, 8] {
        let off = model.seconds(&work(index)) / truth.seconds(&work(index));
        assert!((0.95..1.25).contains(&off), "{index}: {off}");
    }
}

#[test]
fn a_model_does_not_learn_what_the_machine_took() {
    let mut engine = Engine::new(plans::machine());
    engine.admit(1, 50, None, None);
    engine.stolen = Nanos(30 * MS);
    // Each step is checked to be predicted as if nothing were taken.
    (0..200).for_each(|_| _ = engine.step());
    assert_eq!(engine.scheduler.cost_model().unwrap().drift(), [1.0; 2]);
}

/// Whatever a broken clock said, the model is right again after some steps with a good one.
#[test]
fn a_model_recovers_from_a_clock_that_stood_still_or_leapt() {
    let mut work = Work::default();
    work.add_decode(100);
    for measured in [Nanos(0), Nanos(u64::MAX)] {
        let mut model = plans::machine();
        for _ in 0..100_000 {
            model.observe(&work, measured);
        }
        for _ in 0..80 {
            model.observe(&work, Nanos(10 * MS));
        }
        let predicted = model.seconds(&work);
        assert!((predicted / 0.010 - 1.0).abs() < 0.02, "{predicted} after {measured:?}");
    }
}

#[test]
fn small_chunks_teach_nothing_about_large_ones() {
    // Beside eight streams a chunk of four rows adds a tenth to the step, and here costs nothing at all.
    let terms = Terms { prompt: 0.001, ..Terms::default() };
    let mut model =
        CostModel::new([(8, 0.010), (512, 0.510)].map(|(rows, seconds)| Knot { rows, seconds }).to_vec(), terms);
    let work = |rows| {
        let mut work = Work::default();
        (0..8).for_each(|_| work.add_decode(100));
        work.add_chunk(0, rows, false);
        work
    };
    let before = model.seconds(&work(200));
    for _ in 0..3 {
        model.observe(&work(4), Nanos(10 * MS));
    }
    let after = model.seconds(&work(200));
    assert!(after > before * 0.9, "{before} {after}");
    for _ in 0..60 {
        model.observe(&work(200), Nanos(300 * MS));
    }
    assert!((model.seconds(&work(200)) / 0.300 - 1.0).abs() < 0.02, "but a large one does");
}

#[test]
fn an_answer_that_began_elsewhere_goes_before_prompts_whose_reader_has_seen_nothing() {
    let mut engine = Engine::with_limits(plans::machine(), Limits { max_num_batched_tokens: 500, ..limits() });
    engine.admit(1, 2000, Some(100), None);
    let generated: Vec<TokenId> = vec![7; 100];
    engine.scheduler.resume(request(2, 400), &[Some(&generated)], engine.now).unwrap();
    let (step, _) = engine.step();
    let of = |rows: &Rows| (engine.scheduler.sequence(rows.seq).unwrap().request_id().0, rows.len, rows.samples);
    assert_eq!(step.prefill.iter().map(of).collect::<Vec<_>>(), [(2, 500, 1)]);
    assert_eq!(engine.scheduler.completes_next(), None);
    let (step, _) = engine.step();
    assert_eq!((step.decode.len(), step.prefill[0].len), (1, 499), "then they share a step");
}

/// Its first token's time is unknown: it counts as on target when it comes.
#[test]
fn a_stream_that_began_elsewhere_is_neither_late_nor_ahead() {
    let rows_beside = |resumed: bool| {
        let mut engine = Engine::new(plans::machine());
        engine.now = Nanos(3600 * 1000 * MS);
        let targets = Targets { ttft: None, tpot: Some(Nanos(40 * MS)) };
        let stream = Request { targets, arrived: engine.now, ..request(1, 50) };
        if resumed {
            // 400 rows take 40 ms.
            engine.scheduler.resume(stream, &[Some(&[7; 350])], engine.now).unwrap();
        } else {
            engine.admit_request(stream);
        }
        engine.step();
        engine.admit(2, 8000, None, None);
        engine.step().0.prefill[0].len
    };
    let (fresh, resumed) = (rows_beside(false), rows_beside(true));
    assert_eq!(resumed, fresh, "rows beside it, and beside a new one");
}
