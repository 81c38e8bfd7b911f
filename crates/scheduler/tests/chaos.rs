//! Seeded chaos: random requests, cancels and stops against random, mostly far too small limits, on a model that
//! notices everything.
//!
//! ```text
//! slot of token p    [ hash of (salt, tokens 0..=p) for each layer ]      the fingerprint model's keys and values
//! row p              writes its slot, then reads slots 0..=p through the block table:
//!                    each must hold the fingerprint of its own prefix; the next token is a function of all of them
//! ```
//!
//! So a block that is shared wrongly, stale, overwritten, evicted too early or not copied changes an output or is seen
//! at once. After every call `check_invariants` audits the scheduler's own books (I1-I5, I7, I10-I12, I15, I16, I19);
//! what can be seen from outside is checked here, under the same names (I4, I8, I9, I13-I21, I27, I34).
//!
//! Every parameter is drawn from the seed. Each thing that a seed should provoke is counted, and a run in which one of
//! the counters stays below its floor fails: it would have tested nothing.
//!
//! `TWOSTROKE_CHAOS_SEEDS=20000` runs that many seeds, `TWOSTROKE_CHAOS_SEED=7` only that one.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use scheduler::{
    AdmitError, Event, FinishReason, Limits, Nanos, Phase, Priority, Request, RequestId, RowOutput, Scheduler, SeqId,
    Sequence, Step, StepOutput, StopRules, Targets, TokenId,
};

const DEFAULT_SEEDS: u64 = 4000;
/// The scheduler's promises in numbers.
const MAX_PREEMPTIONS: u32 = 4;
const PATIENCE: usize = 16;

#[test]
fn every_output_equals_its_solo_run_and_every_invariant_holds() {
    let only: Option<u64> = number_from_env("TWOSTROKE_CHAOS_SEED");
    let seeds = number_from_env("TWOSTROKE_CHAOS_SEEDS").unwrap_or(DEFAULT_SEEDS);
    let mut seen = Counters::default();
    for seed in only.map_or(0..seeds, |seed| seed..seed + 1) {
        let run = || Chaos::new(seed, None).run();
        let report = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
            eprintln!(
                "seed {seed} failed; again: TWOSTROKE_CHAOS_SEED={seed} cargo test --release -p scheduler --test chaos"
            );
            std::panic::resume_unwind(panic)
        });
        if seed % 16 == 0 {
            assert_eq!(run().trace, report.trace, "I34: seed {seed} took another course the second time");
        }
        seen.add(&report.seen);
    }
    println!("{seeds} seeds: {:#?}", seen.0);
    if only.is_none() && seeds >= DEFAULT_SEEDS {
        seen.check_floors();
    }
}

/// The checker's own check: each of these bugs, planted, must be noticed by a fair share of 40 seeds. (Not by all: one
/// seed never forks, another has no cache.)
#[test]
fn planted_bugs_are_noticed() {
    let mut found = Vec::new();
    for bug in [Bug::HashesBelieved, Bug::CopiesLost, Bug::CopiesLate, Bug::SaltIgnored, Bug::SampledByRow] {
        let notices = |seed: &u64| catch_unwind(|| Chaos::new(*seed, Some(bug)).run()).is_err();
        found.push((bug, (0..40).filter(notices).count()));
    }
    println!("noticed in 40 seeds: {found:?}");
    for (bug, times) in found {
        assert!(times >= 5, "{bug:?} was noticed in {times} of 40 seeds only");
    }
}

/// Bugs that real engines had.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bug {
    /// Short hashes, and a prefix hit is believed without comparing tokens (CVE-2025-25183).
    HashesBelieved,
    /// Copy-on-write is planned and not done.
    CopiesLost,
    /// Copy-on-write is done after the step instead of before.
    CopiesLate,
    /// Blocks are shared between tenants.
    SaltIgnored,
    /// The sampler's random stream belongs to the batch's row instead of the answer.
    SampledByRow,
}

fn number_from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is a number, not {value}")))
}

/// What must have happened, and how often at least in the default run.
const FLOORS: &[(&str, u64)] = &[
    ("admitted", 1000),
    ("answer ended by max_tokens", 100),
    ("answer ended by the context", 100),
    ("answer ended by a stop token", 100),
    ("answer stopped from outside", 100),
    ("cancelled while waiting", 100),
    ("cancelled while running", 100),
    ("cancelled in flight", 100),
    ("cancelled while preempted", 20),
    ("stopped in flight", 100),
    ("scored only", 100),
    ("step failed", 2000),
    ("step with copies failed", 20),
    ("queue full", 100),
    ("never fits", 100),
    ("prompt too long", 100),
    ("too many answers", 50),
    ("prefix hit", 1000),
    ("prefix known but for its last token", 100),
    ("block evicted", 1000),
    ("block copied", 1000),
    ("fork while blocks ran out", 5),
    ("preempted", 1000),
    ("preempted in prefill", 100),
    ("preempted before its answers were forked", 20),
    ("resumed with its own prefix", 200),
    ("resumed with a decode row", 20),
    ("protected", 100),
    ("stalled behind protected ones", 40),
    ("oldest went first out of its class", 20),
    ("seat missing", 100),
];

#[derive(Default)]
struct Counters(BTreeMap<&'static str, u64>);

impl Counters {
    fn saw(&mut self, what: &'static str) {
        assert!(FLOORS.iter().any(|&(name, _)| name == what), "{what} has no floor");
        *self.0.entry(what).or_default() += 1;
    }

    fn add(&mut self, other: &Counters) {
        for (&what, &times) in &other.0 {
            *self.0.entry(what).or_default() += times;
        }
    }

    fn check_floors(&self) {
        for &(what, floor) in FLOORS {
            let times = self.0.get(what).copied().unwrap_or(0);
            assert!(times >= floor, "this run tests too little: {what}: {times} times, at least {floor} expected");
        }
    }
}

struct Report {
    trace: u64,
    seen: Counters,
}

/// SplitMix64 (Steele, Lea & Flood, 2014).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        finalize(self.0)
    }

    fn in_range(&mut self, range: std::ops::RangeInclusive<usize>) -> usize {
        range.start() + (self.next() % (range.end() - range.start() + 1) as u64) as usize
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.in_range(0..=last));
        }
    }
}

fn finalize(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

fn mix(a: u64, b: u64) -> u64 {
    finalize(a.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ b.wrapping_add(0x632B_E59B_D9B4_E019))
}

// ------------------------------------------------------------------------------------------------ fingerprint model

const LAYERS: usize = 2;
const EOS: TokenId = 1;
const UNWRITTEN: [u64; LAYERS] = [0; LAYERS];

/// What the slot of the last token of this prefix must hold.
fn fingerprint(prefix: u64) -> [u64; LAYERS] {
    core::array::from_fn(|layer| mix(prefix, layer as u64 + 1))
}

fn extend_prefix(prefix: u64, token: TokenId) -> u64 {
    mix(prefix, u64::from(token) + 100)
}

fn root(salt: u64) -> u64 {
    mix(salt, 42)
}

fn read(readout: u64, slot: [u64; LAYERS]) -> u64 {
    slot.into_iter().fold(readout, mix)
}

/// The sampler: keyed by the request's seed, the answer and the position, never by the batch.
fn sample(readout: u64, seed: u64, answer: usize, position: usize) -> TokenId {
    (mix(mix(readout, seed), mix(answer as u64, position as u64)) % 30) as TokenId
}

/// The bytes that block ids point into.
struct FingerprintCache {
    slots: Vec<[u64; LAYERS]>,
}

/// A row of the batch: everything the model needs, taken from the scheduler when the step was planned.
struct LoweredRows {
    seq: SeqId,
    request: RequestId,
    answer: usize,
    salt: u64,
    seed: u64,
    tokens: Vec<TokenId>,
    slots: Vec<usize>,
    start: usize,
    len: usize,
    samples: usize,
}

impl FingerprintCache {
    /// One forward pass: every row writes its slot, then every row reads what the sequence's table names.
    fn forward(&mut self, rows: &[LoweredRows]) -> Vec<RowOutput> {
        let mut written = BTreeSet::new();
        for row in rows {
            let end = row.start + row.len;
            // Nothing beyond what is computed may be read, by anybody.
            row.slots[row.start..].iter().for_each(|&slot| self.slots[slot] = UNWRITTEN);
            let mut prefix = root(row.salt);
            for (position, &token) in row.tokens[..end].iter().enumerate() {
                prefix = extend_prefix(prefix, token);
                if position >= row.start {
                    assert!(written.insert(row.slots[position]), "I4: two rows write one slot");
                    self.slots[row.slots[position]] = fingerprint(prefix);
                }
            }
        }
        rows.iter().filter(|row| row.samples > 0).map(|row| self.attend(row)).collect()
    }

    fn attend(&self, row: &LoweredRows) -> RowOutput {
        let (mut prefix, mut readout) = (root(row.salt), 0);
        let end = row.start + row.len;
        for (position, &token) in row.tokens[..end].iter().enumerate() {
            prefix = extend_prefix(prefix, token);
            let slot = self.slots[row.slots[position]];
            assert!(slot == fingerprint(prefix), "I8, I27: {:?} reads a foreign or unwritten slot", row.seq);
            readout = read(readout, slot);
        }
        let answers = row.answer..row.answer + row.samples;
        let tokens = answers.map(|answer| sample(readout, row.seed, answer, end)).collect();
        RowOutput { seq: row.seq, tokens }
    }
}

/// What one answer is when it runs alone: its tokens, and why it ends.
fn solo(request: &Request, seed: u64, answer: usize, max_model_len: usize) -> (Vec<TokenId>, FinishReason) {
    let (mut prefix, mut readout) = (root(request.salt), 0);
    let mut tokens = request.prompt.to_vec();
    let mut answer_tokens = Vec::new();
    let mut num_read = 0;
    loop {
        for &token in &tokens[num_read..] {
            prefix = extend_prefix(prefix, token);
            readout = read(readout, fingerprint(prefix));
        }
        num_read = tokens.len();
        if answer_tokens.len() >= request.stop.max_tokens || tokens.len() >= max_model_len {
            return (answer_tokens, FinishReason::Length);
        }
        let token = sample(readout, seed, answer, tokens.len());
        let heeded = answer_tokens.len() >= request.stop.min_tokens;
        tokens.push(token);
        answer_tokens.push(token);
        if heeded && request.stop.stop_token_ids.contains(&token) {
            return (answer_tokens, FinishReason::Stop(Some(token)));
        }
    }
}

// ------------------------------------------------------------------------------------------------------------ clients

/// One answer from the client's side.
struct Answer {
    expected: (Vec<TokenId>, FinishReason),
    delivered: Vec<TokenId>,
    finished: Option<FinishReason>,
    /// The detokenizer will find a stop string after so many tokens, and tell the scheduler when.
    stop_after: Option<(usize, StopWhen)>,
    stopped: bool,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum StopWhen {
    AfterComplete,
    BeforeSchedule,
    InFlight,
}

struct Client {
    request: Request,
    seed: u64,
    answers: Vec<Answer>,
    cancelled: bool,
    entered: bool,
}

impl Client {
    fn is_done(&self) -> bool {
        self.cancelled || self.answers.iter().all(|answer| answer.stopped || answer.finished.is_some())
    }

    /// I20, I21: the next token of the solo run, and nothing after the end.
    fn hear(&mut self, event: &Event) {
        assert!(!self.cancelled, "I16: {event:?} after the cancel");
        match *event {
            Event::Token { answer, token, .. } => {
                let answer = &mut self.answers[answer];
                assert!(!answer.stopped && answer.finished.is_none(), "I20: {event:?} after the end");
                let position = answer.delivered.len();
                assert_eq!(Some(&token), answer.expected.0.get(position), "I21: {event:?} is not as alone");
                answer.delivered.push(token);
            }
            Event::Finished { answer, reason, .. } => {
                let answer = &mut self.answers[answer];
                assert!(!answer.stopped && answer.finished.is_none(), "I20: {event:?} after the end");
                assert_eq!((&answer.delivered, reason), (&answer.expected.0, answer.expected.1), "I21: the end");
                answer.finished = Some(reason);
            }
        }
    }
}

// --------------------------------------------------------------------------------------------------------------- run

/// How wild a seed is, in percent per tick unless said otherwise.
struct Weather {
    ticks: usize,
    arrival: u64,
    burst: usize,
    cancel: u64,
    failure: u64,
    several_answers: u64,
    stop: u64,
    prompt_len: usize,
    max_tokens: usize,
    eos: bool,
    priorities: usize,
    tenants: usize,
    salts: usize,
    documents: Vec<Vec<TokenId>>,
}

/// What a seed is about.
#[derive(Clone, Copy)]
enum Kind {
    /// Anything goes.
    Mixed,
    /// Many short prompts with long answers, in a pool that holds little more than one of them.
    Crowded,
    /// Several answers to most prompts, which take many small chunks.
    Forking,
    /// Crowded by requests of all classes that nobody cancels, so that the low ones are thrown out again and again.
    Besieged,
}

/// The part of limits and weather that depends on the kind of seed.
struct Draw {
    block_size: usize,
    num_blocks: usize,
    max_model_len: usize,
    max_num_seqs: usize,
    max_prefill_chunk: usize,
    several_answers: usize,
    prompt_len: usize,
    max_tokens: usize,
}

impl Draw {
    fn of(kind: Kind, rng: &mut Rng) -> Draw {
        match kind {
            Kind::Mixed => Draw {
                block_size: rng.in_range(1..=6),
                num_blocks: rng.in_range(4..=32),
                max_model_len: rng.in_range(8..=64),
                max_num_seqs: rng.in_range(1..=8),
                max_prefill_chunk: rng.in_range(1..=16),
                several_answers: rng.in_range(0..=60),
                prompt_len: rng.in_range(1..=40),
                max_tokens: rng.in_range(1..=40),
            },
            Kind::Crowded => {
                let (block_size, max_model_len) = (rng.in_range(1..=3), rng.in_range(8..=64));
                Draw {
                    block_size,
                    num_blocks: max_model_len.div_ceil(block_size) + rng.in_range(0..=8),
                    max_model_len,
                    max_num_seqs: rng.in_range(4..=8),
                    max_prefill_chunk: rng.in_range(1..=16),
                    several_answers: rng.in_range(0..=40),
                    prompt_len: rng.in_range(1..=8),
                    max_tokens: rng.in_range(20..=64),
                }
            }
            Kind::Besieged => {
                let (block_size, max_model_len) = (rng.in_range(1..=2), rng.in_range(30..=64));
                Draw {
                    block_size,
                    num_blocks: max_model_len.div_ceil(block_size) + rng.in_range(0..=20),
                    max_model_len,
                    max_num_seqs: rng.in_range(4..=8),
                    max_prefill_chunk: rng.in_range(4..=16),
                    several_answers: 0,
                    prompt_len: rng.in_range(1..=6),
                    max_tokens: rng.in_range(30..=64),
                }
            }
            Kind::Forking => Draw {
                block_size: rng.in_range(2..=5),
                num_blocks: rng.in_range(8..=24),
                max_model_len: rng.in_range(24..=48),
                max_num_seqs: rng.in_range(5..=8),
                max_prefill_chunk: rng.in_range(1..=3),
                several_answers: rng.in_range(50..=100),
                prompt_len: rng.in_range(4..=20),
                max_tokens: rng.in_range(4..=24),
            },
        }
    }
}

/// The oldest prompt, the steps in which others got prompt rows and it did not, and how many entered in those.
#[derive(Default)]
struct PassedOver {
    id: Option<SeqId>,
    steps: usize,
    entered: usize,
}

struct Chaos {
    rng: Rng,
    bug: Option<Bug>,
    weather: Weather,
    scheduler: Scheduler,
    cache: FingerprintCache,
    clients: BTreeMap<RequestId, Client>,
    now: u64,
    next_request: u64,
    /// I13: rows that all admitted requests may take together, however often they are preempted.
    row_allowance: usize,
    rows: usize,
    passed_over: PassedOver,
    trace: u64,
    seen: Counters,
}

impl Chaos {
    fn new(seed: u64, bug: Option<Bug>) -> Chaos {
        let mut rng = Rng(mix(seed, 1));
        let kind = [Kind::Mixed, Kind::Crowded, Kind::Forking, Kind::Besieged][rng.in_range(0..=3)];
        let drawn = Draw::of(kind, &mut rng);
        let limits = Limits {
            block_size: drawn.block_size,
            num_blocks: drawn.num_blocks,
            max_model_len: drawn.max_model_len,
            max_num_seqs: drawn.max_num_seqs,
            max_num_batched_tokens: drawn.max_num_seqs + rng.in_range(0..=24),
            max_prefill_chunk: drawn.max_prefill_chunk,
            max_prefill_seqs: rng.in_range(1..=4),
            max_queued_requests: rng.in_range(1..=16),
            max_queued_tokens: rng.in_range(20..=300),
            enable_prefix_caching: rng.percent(85),
            hash_key: core::array::from_fn(|_| rng.next() as u8),
        };
        let documents = (0..3).map(|_| (0..64).map(|_| rng.in_range(2..=6) as TokenId).collect()).collect();
        let besieged = matches!(kind, Kind::Besieged);
        let weather = Weather {
            ticks: rng.in_range(30..=120),
            arrival: rng.in_range(5..=80) as u64,
            burst: rng.in_range(1..=4),
            cancel: if besieged { 0 } else { rng.in_range(0..=10) as u64 },
            failure: rng.in_range(0..=4).saturating_sub(2) as u64,
            several_answers: drawn.several_answers as u64,
            stop: if besieged { 0 } else { rng.in_range(0..=30) as u64 },
            prompt_len: drawn.prompt_len,
            max_tokens: drawn.max_tokens,
            eos: !besieged && rng.percent(50),
            priorities: if besieged { 4 } else { rng.in_range(1..=3) },
            tenants: rng.in_range(1..=3),
            salts: rng.in_range(1..=2),
            documents,
        };
        let num_slots = limits.num_blocks * limits.block_size;
        let mut scheduler = Scheduler::new(limits).expect("the limits drawn are good");
        match rng.in_range(0..=3) {
            _ if bug == Some(Bug::HashesBelieved) => scheduler.weaken_hashes(3, false),
            0 => scheduler.weaken_hashes(8, true),
            1 => scheduler.weaken_hashes(2, true),
            _ => {}
        }
        Chaos {
            rng,
            bug,
            weather,
            scheduler,
            cache: FingerprintCache { slots: vec![UNWRITTEN; num_slots] },
            clients: BTreeMap::new(),
            now: 0,
            next_request: 0,
            row_allowance: 0,
            rows: 0,
            passed_over: PassedOver::default(),
            trace: seed,
            seen: Counters::default(),
        }
    }

    fn run(mut self) -> Report {
        for _ in 0..self.weather.ticks {
            if self.rng.percent(self.weather.arrival) {
                for _ in 0..self.rng.in_range(1..=self.weather.burst) {
                    self.arrive();
                }
            }
            self.tick();
        }
        while self.scheduler.has_work() {
            self.tick();
        }
        assert_eq!(self.scheduler.used_blocks(), 0, "I10: blocks are held when all is quiet");
        assert_eq!((self.scheduler.num_running(), self.scheduler.num_waiting()), (0, 0));
        for (id, client) in &self.clients {
            assert!(client.is_done(), "I13: {id:?} never ended");
        }
        Report { trace: self.trace, seen: self.seen }
    }

    fn tick(&mut self) {
        self.now += 1;
        self.maybe_cancel("cancelled while running");
        self.stop_where(StopWhen::BeforeSchedule);

        let before = Snapshot::of(&self.scheduler);
        let step = self.scheduler.schedule(Nanos(self.now));
        self.scheduler.check_invariants();
        self.check_plan(&before, &step);
        if step.is_empty() {
            assert!(!self.scheduler.has_work(), "I18: an idle step while something waits");
            return;
        }
        let rows = self.lower(&step);

        self.maybe_cancel("cancelled in flight");
        self.stop_where(StopWhen::InFlight);
        for row in &rows {
            let seq = self.scheduler.sequence(row.seq).expect("I9: what is in flight exists");
            let slots: Vec<usize> = slots_of(seq);
            assert_eq!(slots, row.slots, "I9: what is in flight keeps its blocks");
        }

        if self.rng.percent(self.weather.failure) {
            return self.fail_step(&step, &rows);
        }
        if !matches!(self.bug, Some(Bug::CopiesLost | Bug::CopiesLate)) {
            self.copy_blocks(&step);
        }
        let mut output = StepOutput { step: step.id, rows: self.cache.forward(&rows) };
        if self.bug == Some(Bug::CopiesLate) {
            self.copy_blocks(&step);
        }
        self.rng.shuffle(&mut output.rows);
        // The engine may or may not still know those that left meanwhile.
        let drop_dead = self.rng.percent(50);
        let is_dead = |row: &RowOutput| {
            let seq = self.scheduler.sequence(row.seq).expect("it is in flight");
            let client = &self.clients[&seq.request_id()];
            client.cancelled || client.answers[seq.answer()].stopped
        };
        output.rows.retain(|row| !(drop_dead && is_dead(row)));

        if self.rng.percent(self.weather.failure) {
            return self.fail_step(&step, &rows);
        }
        let completed = self.scheduler.complete(output, Nanos(self.now));
        self.scheduler.check_invariants();
        self.check_record(&step, &rows, &completed.record);
        for event in &completed.events {
            self.note(format!("{event:?}"));
            let (Event::Token { request, .. } | Event::Finished { request, .. }) = *event;
            self.clients.get_mut(&request).expect("it was admitted").hear(event);
            self.count_end(event);
        }
        self.stop_where(StopWhen::AfterComplete);
        for seq in self.scheduler.sequences() {
            let client = &self.clients[&seq.request_id()];
            let ended = client.answers[seq.answer()].stopped || client.answers[seq.answer()].finished.is_some();
            assert!(!client.cancelled && !ended, "I16: {:?} outlives its end", seq.id());
        }
    }

    /// The step failed somewhere: what it was to write is garbage, and it is as if it had never been planned.
    fn fail_step(&mut self, step: &Step, rows: &[LoweredRows]) {
        self.seen.saw("step failed");
        let block_size = self.scheduler.limits().block_size;
        for copy in &step.copies {
            self.seen.saw("step with copies failed");
            self.cache.slots[copy.dst.index() * block_size..][..block_size].fill([self.now; LAYERS]);
        }
        for row in rows {
            row.slots[row.start..].iter().for_each(|&slot| self.cache.slots[slot] = [self.now; LAYERS]);
        }
        self.rows -= rows.iter().map(|row| row.len).sum::<usize>();
        self.row_allowance += rows.iter().map(|row| row.tokens.len()).sum::<usize>();
        self.scheduler.abandon();
        self.scheduler.check_invariants();
        self.note("failed");
    }

    fn note(&mut self, what: impl AsRef<str>) {
        self.trace = what.as_ref().bytes().fold(self.trace, |trace, byte| mix(trace, u64::from(byte)));
    }

    fn arrive(&mut self) {
        let rng = &mut self.rng;
        let document = rng.in_range(0..=self.weather.documents.len() - 1);
        let shared = rng.in_range(0..=self.weather.prompt_len);
        let own = rng.in_range(0..=4);
        let mut prompt: Vec<TokenId> = self.weather.documents[document][..shared].to_vec();
        prompt.extend((0..own).map(|_| rng.in_range(2..=6) as TokenId));
        let max_tokens = if rng.percent(5) { 0 } else { rng.in_range(1..=self.weather.max_tokens) };
        let stop_token_ids = if self.weather.eos { vec![EOS, 17][..rng.in_range(0..=2)].to_vec() } else { vec![] };
        let num_answers = if rng.percent(self.weather.several_answers) { rng.in_range(2..=5) } else { 1 };
        let request = Request {
            id: RequestId(self.next_request),
            prompt: Arc::from(prompt),
            num_answers,
            stop: StopRules { max_tokens, min_tokens: rng.in_range(0..=max_tokens), stop_token_ids },
            priority: Priority(rng.in_range(1..=self.weather.priorities) as i32),
            salt: rng.in_range(1..=self.weather.salts) as u64,
            use_prefix_cache: rng.percent(90),
            tenant: rng.in_range(1..=self.weather.tenants) as u64,
            targets: Targets::default(),
            arrived: Nanos(self.now),
        };
        let seed = rng.next();
        let max_model_len = self.scheduler.limits().max_model_len;
        let answers = (0..num_answers).map(|answer| {
            let expected = solo(&request, seed, answer, max_model_len);
            let when = [StopWhen::AfterComplete, StopWhen::BeforeSchedule, StopWhen::InFlight][rng.in_range(0..=2)];
            let after = rng.in_range(1..=self.weather.max_tokens);
            let stop_after = rng.percent(self.weather.stop).then_some((after, when));
            Answer { expected, delivered: Vec::new(), finished: None, stop_after, stopped: false }
        });
        let answers = answers.collect();
        self.next_request += 1;
        let mut admitted = request.clone();
        if self.bug == Some(Bug::SaltIgnored) {
            admitted.salt = 0;
        }
        let outcome = self.scheduler.admit(admitted, Nanos(self.now));
        self.scheduler.check_invariants();
        self.note(format!("{outcome:?}"));
        match outcome {
            Ok(()) => {
                self.seen.saw("admitted");
                let longest = (request.prompt.len() + max_tokens).min(max_model_len);
                self.row_allowance += longest * num_answers * (MAX_PREEMPTIONS as usize + 1);
                let client = Client { request, seed, answers, cancelled: false, entered: false };
                self.clients.insert(client.request.id, client);
            }
            Err(AdmitError::QueueFull { .. }) => self.seen.saw("queue full"),
            Err(AdmitError::NeverFits { needed_blocks, total_blocks }) => {
                assert!(needed_blocks > total_blocks);
                self.seen.saw("never fits");
            }
            Err(AdmitError::TooLong { .. }) => self.seen.saw("prompt too long"),
            Err(AdmitError::TooManyAnswers { .. }) => self.seen.saw("too many answers"),
            Err(AdmitError::EmptyPrompt) => assert!(request.prompt.is_empty()),
        }
    }

    fn maybe_cancel(&mut self, when: &'static str) {
        if !self.rng.percent(self.weather.cancel) {
            return;
        }
        let alive: Vec<RequestId> =
            self.clients.iter().filter(|(_, client)| !client.is_done()).map(|(&id, _)| id).collect();
        if alive.is_empty() {
            return;
        }
        let id = alive[self.rng.in_range(0..=alive.len() - 1)];
        let seqs: Vec<&Sequence> = self.scheduler.sequences().filter(|seq| seq.request_id() == id).collect();
        let waits = seqs.iter().all(|seq| seq.block_table().is_empty());
        let preempted = seqs.iter().any(|seq| seq.block_table().is_empty() && seq.num_preemptions() > 0);
        self.seen.saw(if waits { "cancelled while waiting" } else { when });
        if preempted {
            self.seen.saw("cancelled while preempted");
        }
        assert!(self.scheduler.abort(id), "{id:?} is there to cancel");
        assert!(!self.scheduler.abort(id), "{id:?} is cancelled once");
        self.scheduler.check_invariants();
        self.clients.get_mut(&id).expect("it is alive").cancelled = true;
        if self.scheduler.in_flight().is_none() {
            assert!(self.scheduler.sequences().all(|seq| seq.request_id() != id), "I16: {id:?} is gone at once");
        }
    }

    /// The detokenizer has found its stop strings.
    fn stop_where(&mut self, when: StopWhen) {
        for (&id, client) in &mut self.clients {
            if client.cancelled {
                continue;
            }
            for (index, answer) in client.answers.iter_mut().enumerate() {
                let due = answer.stop_after.is_some_and(|(after, w)| w == when && answer.delivered.len() == after);
                if !due || answer.stopped || answer.finished.is_some() {
                    continue;
                }
                self.scheduler.stop(id, index);
                self.scheduler.check_invariants();
                answer.stopped = true;
                self.seen.saw("answer stopped from outside");
                if when == StopWhen::InFlight {
                    self.seen.saw("stopped in flight");
                }
            }
        }
    }

    fn lower(&mut self, step: &Step) -> Vec<LoweredRows> {
        let decode = step.decode.iter().map(|&seq| (seq, None));
        let prefill = step.prefill.iter().map(|chunk| (chunk.seq, Some(chunk)));
        let rows = decode.chain(prefill).map(|(id, chunk)| {
            let seq = self.scheduler.sequence(id).expect("it is planned");
            let client = &self.clients[&seq.request_id()];
            let (start, len, samples) =
                chunk.map_or((seq.num_computed(), 1, 1), |chunk| (chunk.start, chunk.len, chunk.samples));
            assert_eq!(start, seq.num_computed());
            LoweredRows {
                seq: id,
                request: seq.request_id(),
                answer: seq.answer(),
                salt: client.request.salt,
                seed: client.seed,
                tokens: seq.tokens().to_vec(),
                slots: slots_of(seq),
                start,
                len,
                samples,
            }
        });
        let mut rows: Vec<LoweredRows> = rows.collect();
        if self.bug == Some(Bug::SampledByRow) {
            rows.iter_mut().enumerate().for_each(|(index, row)| row.seed = index as u64);
        }
        rows
    }

    /// In any order: no block is a source and a destination.
    fn copy_blocks(&mut self, step: &Step) {
        let block_size = self.scheduler.limits().block_size;
        let mut copies = step.copies.clone();
        self.rng.shuffle(&mut copies);
        for copy in copies {
            self.seen.saw("block copied");
            for offset in 0..block_size {
                self.cache.slots[copy.dst.index() * block_size + offset] =
                    self.cache.slots[copy.src.index() * block_size + offset];
            }
        }
    }

    fn count_end(&mut self, event: &Event) {
        let Event::Finished { request, answer, reason } = *event else { return };
        let client = &self.clients[&request];
        let generated = client.answers[answer].delivered.len();
        self.seen.saw(match reason {
            FinishReason::Stop(_) => "answer ended by a stop token",
            FinishReason::Length if client.request.stop.max_tokens == 0 => "scored only",
            FinishReason::Length if generated == client.request.stop.max_tokens => "answer ended by max_tokens",
            FinishReason::Length => "answer ended by the context",
        });
    }

    /// Everything that a plan promises, against what was there before.
    fn check_plan(&mut self, before: &Snapshot, step: &Step) {
        self.note(format!("{step:?}"));
        let limits = self.scheduler.limits().clone();
        assert!(step.num_rows() <= limits.max_num_batched_tokens, "I11: rows");
        assert!(step.prefill.len() <= limits.max_prefill_seqs, "I11: prompts in prefill");
        assert!(step.prefill.iter().all(|chunk| (1..=limits.max_prefill_chunk).contains(&chunk.len)), "I11: a chunk");
        self.rows += step.num_rows();
        assert!(self.rows <= self.row_allowance, "I13: work is repeated without end");

        let sources: BTreeSet<_> = step.copies.iter().map(|copy| copy.src).collect();
        let destinations: BTreeSet<_> = step.copies.iter().map(|copy| copy.dst).collect();
        assert_eq!(destinations.len(), step.copies.len(), "a block is copied to twice");
        assert!(sources.is_disjoint(&destinations), "copies depend on their order");

        let planned: BTreeSet<SeqId> =
            step.decode.iter().copied().chain(step.prefill.iter().map(|chunk| chunk.seq)).collect();
        assert_eq!(planned.len(), step.decode.len() + step.prefill.len(), "a sequence has one entry in a step");
        self.check_decode(before, step);
        self.check_preemption(before, step);
        self.check_entry(before, step, &planned);
        self.check_patience(before, step);
    }

    /// I17: every sequence that was decoding has its row, but for one that stands behind protected ones.
    fn check_decode(&mut self, before: &Snapshot, step: &Step) {
        let decoding = before.seqs.values().filter(|seq| seq.runs && seq.phase == Phase::Decode);
        let left_out: Vec<_> =
            decoding.filter(|seq| !step.decode.contains(&seq.id) && !step.preempted.contains(&seq.id)).collect();
        for seq in &left_out {
            let protected = |other: &&Seen| other.runs && other.rank > seq.rank;
            let mut behind = before.seqs.values().filter(protected).filter(|seq| !step.preempted.contains(&seq.id));
            assert!(behind.all(|other| other.preemptions >= MAX_PREEMPTIONS), "I17: {:?} waits for nobody", seq.id);
            self.seen.saw("stalled behind protected ones");
        }
        assert!(left_out.len() <= 1, "I17: at most one sits out");
        for &id in &step.decode {
            let seq = self.scheduler.sequence(id).expect("it is planned");
            assert_eq!(seq.phase(), Phase::Decode);
            if !before.seqs[&id].runs {
                self.seen.saw("resumed with a decode row");
            }
        }
        for chunk in &step.prefill {
            assert_eq!(self.scheduler.sequence(chunk.seq).expect("it is planned").phase(), Phase::Prefill);
        }
    }

    /// I14: nobody is preempted for one ranked after it, nor too often.
    fn check_preemption(&mut self, before: &Snapshot, step: &Step) {
        for id in &step.preempted {
            let victim = &before.seqs[id];
            self.seen.saw("preempted");
            if victim.phase == Phase::Prefill {
                self.seen.saw("preempted in prefill");
            }
            if victim.phase == Phase::Prefill && victim.num_answers > 1 && victim.num_generated == 0 {
                self.seen.saw("preempted before its answers were forked");
            }
            let seq = self.scheduler.sequence(*id).expect("it waits");
            assert!(seq.num_preemptions() <= MAX_PREEMPTIONS, "I14: preempted too often");
            let survivors = before.seqs.values().filter(|seq| seq.runs && !step.preempted.contains(&seq.id));
            assert!(survivors.clone().any(|seq| seq.rank < victim.rank), "I14: the first in line was preempted");
            let mut lower_class = survivors.filter(|seq| seq.rank.0 > victim.rank.0);
            assert!(lower_class.all(|seq| seq.preemptions >= MAX_PREEMPTIONS), "I14: a lower class was spared");
        }
        if !step.preempted.is_empty() && !step.copies.is_empty() {
            self.seen.saw("fork while blocks ran out");
        }
    }

    /// I15, I19: who entered came before all of its class and tenant that still wait, and nobody enters while others are
    /// thrown out.
    fn check_entry(&mut self, before: &Snapshot, step: &Step, planned: &BTreeSet<SeqId>) {
        let entered: Vec<&Seen> = planned.iter().map(|id| &before.seqs[id]).filter(|seq| !seq.runs).collect();
        assert!(entered.is_empty() || step.preempted.is_empty(), "somebody enters while somebody is thrown out");
        let after = Snapshot::of(&self.scheduler);
        for seq in entered {
            let same_line = |other: &&Seen| !other.runs && (other.rank.0, other.tenant) == (seq.rank.0, seq.tenant);
            for other in after.seqs.values().filter(same_line) {
                assert!(seq.rank < other.rank, "I15: {:?} enters before {:?}", seq.id, other.id);
            }
            let state = self.scheduler.sequence(seq.id).expect("it is planned");
            let (cached, known) = (state.num_computed(), state.num_tokens());
            let client = self.clients.get_mut(&state.request_id()).expect("it was admitted");
            if !client.entered {
                client.entered = true;
                assert_eq!(self.scheduler.cached_tokens(state.request_id()), Some(cached));
            }
            let caching = self.scheduler.limits().enable_prefix_caching && client.request.use_prefix_cache;
            assert!(caching || cached == 0, "a request that stays out of the cache has a hit");
            assert!(cached < known, "the last token is always computed");
            if cached > 0 {
                self.seen.saw(if seq.preemptions > 0 { "resumed with its own prefix" } else { "prefix hit" });
                if cached == known - 1 {
                    self.seen.saw("prefix known but for its last token");
                }
            }
            if seq.preemptions == MAX_PREEMPTIONS {
                self.seen.saw("protected");
            }
        }
        if let Some(first) = after.seqs.values().filter(|seq| !seq.runs).min_by_key(|seq| seq.rank) {
            let seats: usize = after.seqs.values().filter(|seq| seq.runs).map(|seq| seq.seats()).sum();
            if seats + first.seats() > self.scheduler.limits().max_num_seqs {
                self.seen.saw("seat missing");
            }
        }
    }

    /// I14: while the oldest prompt gets no rows, only so many others do.
    fn check_patience(&mut self, before: &Snapshot, step: &Step) {
        let gave_way = |seq: &&Seen| !step.preempted.contains(&seq.id);
        let prompts = before.seqs.values().filter(|seq| !seq.runs || seq.phase == Phase::Prefill).filter(gave_way);
        let oldest = prompts.min_by_key(|seq| (seq.rank.1, seq.rank.2));
        let others_in_line = before.seqs.values().filter(|seq| !seq.runs || seq.phase == Phase::Prefill);
        let advanced = |id: SeqId| step.prefill.iter().any(|chunk| chunk.seq == id) || step.decode.contains(&id);
        match oldest {
            Some(oldest) if self.passed_over.id == Some(oldest.id) && !advanced(oldest.id) => {
                let entered = step.prefill.iter().filter(|chunk| !before.seqs[&chunk.seq].runs).count();
                self.passed_over.steps += usize::from(!step.prefill.is_empty());
                self.passed_over.entered += entered;
                // One that waits may be too large for what is free; then at least nobody else may enter.
                let bound = (PATIENCE + 1) * self.scheduler.limits().max_prefill_seqs;
                assert!(self.passed_over.entered <= bound, "I14: {:?} starves in the queue", oldest.id);
                assert!(!oldest.runs || self.passed_over.steps <= PATIENCE, "I14: {:?} starves", oldest.id);
            }
            oldest => {
                let out_of_class = oldest.is_some_and(|oldest| {
                    let ahead = |seq: &Seen| seq.rank < oldest.rank && !advanced(seq.id);
                    advanced(oldest.id) && others_in_line.into_iter().any(|seq| ahead(seq) && !seq.runs)
                });
                if out_of_class {
                    self.seen.saw("oldest went first out of its class");
                }
                let passed = oldest.is_some_and(|oldest| !advanced(oldest.id)) && !step.prefill.is_empty();
                let entered = step.prefill.iter().filter(|chunk| !before.seqs[&chunk.seq].runs).count();
                self.passed_over = match oldest {
                    Some(oldest) if passed => PassedOver { id: Some(oldest.id), steps: 1, entered },
                    oldest => PassedOver { id: oldest.map(|seq| seq.id), ..PassedOver::default() },
                };
            }
        }
    }

    fn check_record(&mut self, step: &Step, rows: &[LoweredRows], record: &scheduler::StepRecord) {
        assert_eq!(record.step, step.id);
        assert_eq!((record.scheduled_at, record.completed_at), (Nanos(self.now), Nanos(self.now)));
        assert_eq!(record.copied_blocks, step.copies.len());
        assert_eq!(record.preempted.len(), step.preempted.len());
        let logged = record.decode.iter().chain(&record.prefill);
        let logged: Vec<_> = logged.map(|row| (row.request, row.seq, row.start, row.len)).collect();
        let computed: Vec<_> = rows.iter().map(|row| (row.request, row.seq, row.start, row.len)).collect();
        assert_eq!(logged, computed, "the log has every row under its request");
        assert!(record.evicted_blocks <= record.taken_blocks);
        (0..record.evicted_blocks).for_each(|_| self.seen.saw("block evicted"));
    }
}

fn slots_of(seq: &Sequence) -> Vec<usize> {
    (0..seq.num_slots()).map(|position| seq.slot(position)).collect()
}

/// The sequences as an outsider sees them.
struct Snapshot {
    seqs: BTreeMap<SeqId, Seen>,
}

struct Seen {
    id: SeqId,
    /// Class, arrival, answer.
    rank: (Priority, RequestId, usize),
    tenant: u64,
    runs: bool,
    phase: Phase,
    preemptions: u32,
    num_answers: usize,
    num_generated: usize,
}

impl Seen {
    fn seats(&self) -> usize {
        if self.num_generated == 0 { self.num_answers } else { 1 }
    }
}

impl Snapshot {
    fn of(scheduler: &Scheduler) -> Snapshot {
        let seen = |seq: &Sequence| Seen {
            id: seq.id(),
            rank: (seq.request().priority, seq.request_id(), seq.answer()),
            tenant: seq.request().tenant,
            runs: !seq.block_table().is_empty(),
            phase: seq.phase(),
            preemptions: seq.num_preemptions(),
            num_answers: seq.request().num_answers,
            num_generated: seq.num_generated(),
        };
        Snapshot { seqs: scheduler.sequences().map(|seq| (seq.id(), seen(seq))).collect() }
    }
}
