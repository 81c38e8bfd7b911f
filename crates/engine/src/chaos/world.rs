//! One seed: an engine, its clients, and what an outsider sees.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use kernels::{AccumulationOrder, DeviceInfo, Isa, KvDtype, WeightClass};
use ledger::Owner;
use model::sampler::{Allowed, History, SampleKey, Sampler};
use model::{GenerationDefaults, Standby};
use observe::Views;
use protocol::sampling::SamplingParams;
use protocol::{FinishReason, Nanos, RequestId, ServiceClass, Targets, TokenId};
use rates::{Calibrated, StepSamples};
use scheduler::cost::{Knot, Terms};
use scheduler::{CostModel, DraftProposal, DraftSource, Limits, Scheduler, SeqId, Sequence, TierSizes};
use speculate::{DraftModel, DraftSizes, Drafter, DrafterSet, Lookup, LookupOptions, Prediction};
use testing::Dice;
use text::tokenizer::Tokenizer;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::fake::{self, DOORS, EOS, Errors, Fake, Faults, NAN, POISON, VOCAB};
use super::other_worker::{Asked, Reading};
use crate::clock::Clock;
use crate::command::{BlockSender, Command, PauseCommand};
use crate::core::EngineCore;
use crate::handoff::{HandoffEvent, RemotePrefill};
use crate::output::{Event, PromptProgress, RequestError};
use crate::queue_permit::{QueueCounts, Waiting};
use crate::recording::{self, Header, RecordLine, RecordSink};
use crate::stream::Stream;
use crate::thread::{Driver, EngineStatus};
use crate::tiers::Tiers;
use crate::validate::{Prompt, RawRequest, ValidatedRequest};
use crate::verify::{Origin, SpotChecks, SpotCounts, SpotRoom, Verify};
use crate::{Engine, EngineOptions, Inner, LazyVocabulary, ModelInfo, Observe, SubmitError};

/// Turns after the last client came; a request that is open then is stuck.
const MOST_TURNS: usize = 20_000;

/// Declares [`Report`] by the names of its counts.
macro_rules! report {
    ($($(#[$doc:meta])* $count:ident,)*) => {
        /// What a run provoked.
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        pub(super) struct Report {
            pub(super) trace: u64,
            $($(#[$doc])* $count: u64,)*
        }

        impl Report {
            pub(super) fn add(&mut self, other: &Report) {
                self.trace ^= other.trace;
                $(self.$count += other.$count;)*
            }
        }
    };
}

report! {
    steps,
    requests,
    finished,
    cancelled,
    refused,
    too_large,
    abandoned,
    resumed,
    /// Prompts that were read elsewhere to their end, in part, and for others to their end and not.
    taken,
    taken_in_part,
    given,
    left,
    landed,
    /// Requests that ended because another worker had drawn another first token.
    lies,
    failed_passes,
    own_faults,
    unread,
    holds,
    preemptions,
    restarts,
    /// Devices that were lost.
    lost,
    replays,
    overlaps,
    thefts,
    checked,
    /// Seeds with a drafter, and drafts that were accepted and rejected.
    drafting,
    held,
    rejected,
    /// Seeds with a draft model, and those in which it panicked and was dropped.
    with_model,
    given_up,
    /// Prefixes that draft models read and that occur in a request.
    compared,
    /// Drafts of draft models that cannot err.
    calm_held,
    calm_rejected,
}

impl Report {
    /// A run in which nothing happened shows nothing.
    pub(super) fn check_floors(&self, least: u64) {
        let floors = [
            ("requests that finish", self.finished),
            ("requests that are cancelled", self.cancelled),
            ("requests that are refused", self.refused),
            ("requests that are too large", self.too_large),
            ("plans that are given up", self.abandoned),
            ("requests that began elsewhere", self.resumed),
            ("prompts that were read elsewhere", self.taken),
            ("prompts of which some was read elsewhere", self.taken_in_part),
            ("prompts that were read for others", self.given),
            ("prompts whose reader left", self.left),
            ("blocks that landed", self.landed),
            ("first tokens that were drawn otherwise elsewhere", self.lies),
            ("passes that fail", self.failed_passes),
            ("requests at fault", self.own_faults),
            ("requests with a client that does not read", self.unread),
            ("holds", self.holds),
            ("preemptions", self.preemptions),
            ("restarts", self.restarts),
            ("devices that are lost", self.lost),
            ("replays", self.replays),
            ("turns with several steps in flight", self.overlaps),
            ("passes of which the machine took a part", self.thefts),
            ("spot checks", self.checked),
            ("seeds with drafts", self.drafting),
            ("accepted drafts", self.held),
            ("rejected drafts", self.rejected),
            ("seeds with a draft model", self.with_model),
            ("draft models that are given up", self.given_up),
            ("prefixes that draft models read", self.compared),
            ("accepted drafts of models that cannot err", self.calm_held),
        ];
        for (what, count) in floors {
            assert!(count >= least, "too few {what}: {count}");
        }
    }
}

/// How wild a seed is, in percent per turn unless said otherwise.
struct MachineLoad {
    turns: usize,
    arrival: u64,
    cancel: u64,
    hold: u64,
    /// A pass that fails and does not fail again.
    hiccup: u64,
    /// Of requests: their own fault, sooner or later.
    poisoned: u64,
    slow_readers: u64,
    several_answers: u64,
    prompt_len: usize,
    max_tokens: usize,
    /// A pass of which the machine takes more than that took.
    theft: u64,
    /// The journal's reader panics, at most this often in a seed.
    journal_panics: u64,
}

/// The answers of each request, as if alone.
type Known = Arc<Mutex<BTreeMap<u64, Vec<Vec<TokenId>>>>>;

/// The scripted drafter's source number, used by no other drafter here.
const SCRIPTED: DraftSource = DraftSource(7);

/// A drafter that knows the answers, and errs.
struct ChaosDrafter {
    known: Known,
    rng: Dice,
    /// Drafts that are right, and sequences that get an offer, in percent.
    right: u64,
    offers: u64,
}

impl Drafter for ChaosDrafter {
    fn begin(&mut self, _: &dyn Fn(SeqId) -> bool) {}

    fn propose(&mut self, sequence: &Sequence, _: Option<&Prediction>) -> Option<DraftProposal> {
        let (len, strength) = (self.rng.within(0..=9) as u16, self.rng.within(0..=7) as u8);
        self.rng.percent(self.offers).then_some(DraftProposal { seq: sequence.id(), source: SCRIPTED, len, strength })
    }

    fn is(&self, source: DraftSource) -> bool {
        source == SCRIPTED
    }

    fn draft(&mut self, sequence: &Sequence, count: usize, drafts: &mut Vec<TokenId>) {
        let known = self.known.lock().expect("no holder panics");
        let answer = known.get(&sequence.request_id().0).map(|answers| &answers[sequence.answer()]);
        // Now and then too few.
        let count = if self.rng.percent(5) { count - 1 } else { count };
        for index in 0..count {
            let right = answer.and_then(|answer| answer.get(sequence.num_generated() + index));
            let right = right.filter(|_| self.rng.percent(self.right)).copied();
            // Any token at all, poison and what is no token too.
            drafts.push(right.unwrap_or_else(|| self.rng.within(0..=VOCAB) as TokenId));
        }
    }
}

/// A draft model: the target's logits with errors, a cache of its own, and faults of its own.
struct Draft {
    faults: Arc<Mutex<Faults>>,
    max_drafts: usize,
    /// There is no other drafter, this one cannot err, and no pass fails: every draft of a token that comes must be
    /// accepted. A rejected one shows that its cache is stale.
    is_calm: bool,
    /// What a pass of it takes, if the scheduler knows.
    cost: Option<CostModel>,
    errors: Errors,
    max_model_len: usize,
}

impl Draft {
    /// In a share of the seeds.
    fn of(rng: &mut Dice, limits: &Limits) -> Option<Draft> {
        if rng.percent(50) {
            return None;
        }
        let is_calm = rng.percent(30);
        let (pass, row) = (rng.within(100..=400_000) as u64, rng.within(1..=20_000) as u64);
        let mut faults = Faults { pass, row, ..Faults::default() };
        let mut errors = Errors { wrong: 0, nan: 0, most_rows: limits.max_num_batched_tokens };
        if !is_calm {
            errors.wrong = [0, 5, 30, 100][rng.within(0..=3)];
            errors.nan = [0, 0, 3, 50][rng.within(0..=3)];
            let when = Some(rng.within(1..=300) as u64);
            match rng.within(0..=5) {
                0 => faults.panic_at = when,
                1 => faults.panic_in_logits_at = when,
                2 => faults.panic_in_copy = true,
                _ => {}
            }
        }
        let max_model_len = limits.max_model_len;
        Some(Draft {
            faults: Arc::new(Mutex::new(faults)),
            max_drafts: rng.within(1..=9),
            is_calm,
            cost: rng.percent(60).then(|| cost(pass, row)),
            errors,
            max_model_len: if rng.percent(80) { max_model_len } else { rng.within(8..=max_model_len) },
        })
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn model(&self, limits: &Limits, nanos: &Arc<AtomicU64>) -> DraftModel {
        let &Limits { num_blocks: blocks, block_size, .. } = limits;
        let fake = Fake::new(blocks, block_size, self.faults.clone(), nanos.clone()).drafting(self.errors);
        let Errors { most_rows: max_rows, .. } = self.errors;
        let Draft { max_drafts, max_model_len, .. } = *self;
        let beside = DraftSizes { max_drafts, max_rows, max_logit_rows: max_rows, max_model_len, blocks, block_size };
        DraftModel::new(Box::new(fake), beside)
    }
}

/// How an answer ends when its request is alone.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Finished(FinishReason),
    Fault(RequestError),
}

struct Client {
    stream: Stream,
    /// As if alone.
    alone: Vec<(Vec<TokenId>, Fate)>,
    /// The tokens it received, and those of them from another engine.
    heard: Vec<Vec<TokenId>>,
    began: Vec<Vec<TokenId>>,
    ends: Vec<Option<FinishReason>>,
    arrived: Nanos,
    first: Vec<Option<Nanos>>,
    last: Vec<Nanos>,
    reads_slowly: bool,
    prompt_logprobs: bool,
    /// Prompt tokens reported as read, if it asked for progress.
    progress: Option<usize>,
}

pub(super) struct World {
    rng: Dice,
    /// Dice of their own, so that the other seeds stay what they are; of requests, how many began elsewhere, in
    /// percent.
    far: Dice,
    elsewhere: u64,
    load: MachineLoad,
    nanos: Arc<AtomicU64>,
    engine: Engine,
    driver: Driver,
    commands: UnboundedReceiver<Command>,
    faults: Arc<Mutex<Faults>>,
    journal_panics: Arc<AtomicU64>,
    tokenizer: Arc<Tokenizer>,
    clients: BTreeMap<u64, Client>,
    documents: Vec<Vec<TokenId>>,
    limits: Limits,
    is_held: bool,
    heard_tokens: u64,
    ends: [u64; 4],
    report: Report,
    /// What the drafter knows of the answers, if there is one.
    known: Option<Known>,
    draft: Option<Draft>,
    /// Answers that ended before their length: drafts beyond their end cannot be accepted.
    ended_early: u64,
    recording: Option<(PathBuf, JoinHandle<()>)>,
    /// Its prefill workers, in some seeds, and the workers that it prefills for.
    asked: Option<Asked>,
    /// Whether that one errs at first tokens, and of which requests it may have.
    lies: bool,
    lied: BTreeSet<u64>,
    readings: Vec<Reading>,
    /// In some seeds devices are lost, in percent per turn.
    fate: Dice,
    losses: u64,
}

/// A letter for each token.
pub(super) fn tokenizer() -> Tokenizer {
    let vocab: Vec<String> = (0..VOCAB).map(|id| format!("\"{}\": {id}", (b'a' + id as u8) as char)).collect();
    let json = format!(
        r#"{{"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
            "decoder": {{"type": "Fuse"}}, "model": {{"type": "BPE", "vocab": {{{}}}, "merges": []}}}}"#,
        vocab.join(", ")
    );
    Tokenizer::from_json(&json, None, None, VOCAB).expect("a tokenizer of letters")
}

fn cost(pass: u64, row: u64) -> CostModel {
    let seconds = |rows: usize| (pass + row * rows as u64) as f64 / 1e9;
    let knots = [1, 4, 16, 64, 256].map(|rows| Knot { rows, seconds: seconds(rows) });
    CostModel::new(knots.to_vec(), Terms::default())
}

impl World {
    pub(super) fn new(seed: u64) -> World {
        let mut rng = Dice::new(fake::mix(seed));
        let block_size = rng.within(1..=6);
        let max_model_len = rng.within(12..=64);
        let crowded = rng.percent(50);
        let blocks = max_model_len.div_ceil(block_size) + if crowded { rng.within(0..=6) } else { 64 };
        let max_num_seqs = rng.within(2..=8);
        let limits = Limits {
            block_size,
            num_blocks: blocks,
            max_model_len,
            max_num_seqs,
            max_num_batched_tokens: rng.within(max_num_seqs..=32),
            max_prefill_chunk: rng.within(1..=16),
            max_prefill_seqs: rng.within(1..=4),
            max_queued_requests: 1000,
            max_queued_tokens: usize::MAX,
            enable_prefix_caching: rng.percent(80),
            states: None,
            whole_prompts: false,
            hash_key: [7; 32],
        };
        // A separate generator: the rest of a seed stays what it was.
        let mut draft_rng = Dice::new(fake::mix(!seed));
        let draft = Draft::of(&mut draft_rng, &limits);
        let is_calm = draft.as_ref().is_some_and(|draft| draft.is_calm);
        let mut load = MachineLoad {
            turns: rng.within(60..=300),
            arrival: rng.within(5..=60) as u64,
            cancel: rng.within(0..=6) as u64,
            hold: if rng.percent(30) { rng.within(1..=15) as u64 } else { 0 },
            hiccup: if rng.percent(60) { rng.within(1..=10) as u64 } else { 0 },
            poisoned: if rng.percent(60) { rng.within(2..=25) as u64 } else { 0 },
            slow_readers: if rng.percent(30) { 20 } else { 0 },
            several_answers: rng.within(0..=40) as u64,
            prompt_len: rng.within(2..=max_model_len - 4),
            max_tokens: rng.within(2..=max_model_len / 2),
            theft: if rng.percent(40) { rng.within(1..=30) as u64 } else { 0 },
            journal_panics: u64::from(rng.percent(15)),
        };
        if is_calm || draft.is_some() && draft_rng.percent(40) {
            (load.hiccup, load.poisoned) = (0, 0);
        }
        let fails = load.hiccup + load.poisoned > 0;
        let (pass, row) = (rng.within(1000..=2_000_000) as u64, rng.within(10..=100_000) as u64);
        // What a draft model reads, its target reads in the same step, unless that fails.
        let prefixes = draft.as_ref().filter(|_| !fails).map(|draft| {
            draft.faults().prefixes = Some(BTreeSet::new());
            BTreeSet::new()
        });
        let faults = Arc::new(Mutex::new(Faults { pass, row, prefixes, ..Faults::default() }));
        let nanos = Arc::new(AtomicU64::new(5));
        let clock = Clock::scripted(nanos.clone());
        let calibrated = rng.percent(60).then(|| Calibrated {
            cost: cost(pass, row),
            samples: StepSamples::default(),
            took: Duration::ZERO,
            from_disk: false,
            doubt: None,
            file: None,
        });
        let tokenizer = Arc::new(tokenizer());
        let swap = if limits.enable_prefix_caching && rng.percent(30) {
            TierSizes { host_slots: rng.within(1..=12), disk_slots: 0 }
        } else {
            TierSizes::default()
        };
        let max_queued = rng.within(1..=12);
        let model = Arc::new(model_info(&limits, &tokenizer, calibrated, swap));
        let options = EngineOptions {
            max_num_seqs,
            max_queued_requests: max_queued,
            refuse_late: rng.percent(50) && model.calibrated.is_some(),
            is_shared: rng.percent(40),
            ..EngineOptions::default()
        };
        let mut scheduler = Scheduler::new(limits.clone()).expect("limits");
        scheduler.set_cost_model(model.calibrated.as_ref().map(|calibrated| calibrated.cost.clone()));
        let drafting_cost = draft.as_ref().and_then(|draft| draft.cost.clone());
        scheduler.set_drafting_cost(drafting_cost.map(|cost| (speculate::SOURCE, cost)));
        // The longest of them all, in blocks of their own.
        let spot_blocks = max_model_len.div_ceil(block_size);
        let passes = if rng.percent(40) { rng.within(2..=3) } else { 1 };
        let forward = Fake::new(blocks + spot_blocks, block_size, faults.clone(), nanos.clone()).with_passes(passes);
        let forward = Box::new(forward);
        let views = Arc::new(Mutex::new(Views::new(block_size)));
        let status =
            Arc::new(EngineStatus::new(QueueCounts::new(Waiting::new(max_queued, 1 << 20, options.is_shared))));
        let recording = (swap.host_slots == 0 && passes == 1 && rng.percent(40)).then(|| {
            let name = format!("twostroke-chaos-{}-{seed}-{:?}", std::process::id(), std::thread::current().id());
            let path = std::env::temp_dir().join(name.replace(['(', ')'], ""));
            let _ = std::fs::remove_file(&path);
            let header = Header::of(&model, false, scheduler.limits(), scheduler.cost_model())
                .with_drafting(scheduler.drafting_cost());
            let (sink, recorder) = recording::record(&path, &header).expect("a recording");
            (sink, path, recorder)
        });
        let mut core = EngineCore::new(scheduler, forward, Some(tokenizer.clone()), options.seed, views.clone());
        let (cells, lost_with, its_clock) = (blocks + spot_blocks, faults.clone(), nanos.clone());
        let standby = Standby::new(move || {
            let takes = lost_with.lock().unwrap_or_else(PoisonError::into_inner).move_takes;
            its_clock.fetch_add(takes, Ordering::Relaxed);
            let fake = Fake::new(cells, block_size, lost_with.clone(), its_clock.clone());
            Ok(Box::new(fake.with_passes(passes)))
        });
        core.set_standby(Some(standby.expect("a thread")), model.clone());
        let (sink, recording) = match recording {
            Some((sink, path, recorder)) => (Some(sink), Some((path, recorder))),
            None => (None, None),
        };
        let journal_panics = Arc::new(AtomicU64::new(load.journal_panics));
        // What records has one step in flight.
        core.record_to((passes == 1).then(|| fragile(sink, journal_panics.clone())));
        if swap.host_slots > 0 {
            core.set_tiers(Tiers::new(swap, 12 * block_size, None, clock.clone()).expect("no thread is needed"));
        }
        let spot_counts = Arc::new(SpotCounts::default());
        let spot = seed.is_multiple_of(3).then(|| {
            let room = SpotRoom { first_block: blocks as u32, blocks: spot_blocks, block_size, first_state: 0 };
            SpotChecks::new(0.5, seed, VOCAB, room, spot_counts.clone())
        });
        core.add_feature(Box::new(Verify::new(spot)));
        let mut drafters = DrafterSet::default();
        let known = (rng.percent(40) && !is_calm).then(Known::default);
        if let Some(known) = &known {
            let (answers, right) = (known.clone(), [0, 50, 90, 100][rng.within(0..=3)]);
            drafters.join(Box::new(ChaosDrafter {
                known: answers,
                rng: Dice::new(rng.bits()),
                right,
                offers: [30, 100][rng.within(0..=1)],
            }));
        }
        if draft_rng.percent(30) && !is_calm {
            drafters.join(Box::new(Lookup::new(16, &LookupOptions::default())));
        }
        if let Some(draft) = &draft {
            drafters.join_network(Box::new(draft.model(&limits, &nanos)));
        }
        let drafts = u64::from(!drafters.is_empty());
        core.set_drafters(drafters);
        let (sender, commands) = unbounded_channel();
        let engine = Engine(Arc::new(Inner {
            model,
            commands: sender,
            status: status.clone(),
            views,
            clock: clock.clone(),
            next_id: AtomicU64::new(1),
            recorder: Mutex::new(None),
            spot_counts,
            kept: None,
            saved_of_optimum: Mutex::default(),
            limits: limits.clone(),
            targets: Arc::default(),
            salt_key: [1; 32],
            refuse_late: options.refuse_late,
            found: None,
            handoffs: Arc::default(),
            handoff_address: OnceLock::new(),
            handoff_key: None,
            has_remote_prefill: false,
        }));
        let documents = (0..4).map(|_| (0..80).map(|_| rng.within(1..=21) as TokenId).collect()).collect();
        let mut far = Dice::new(fake::mix(seed ^ 0xfa2));
        let elsewhere = if far.percent(40) { 40 } else { 0 };
        let mut fate = Dice::new(fake::mix(seed ^ 0x1057));
        let losses = if fate.percent(40) { fate.within(1..=4) as u64 } else { 0 };
        // A recording core asks no other worker.
        let lies = far.percent(30);
        let asked = (recording.is_none() && limits.enable_prefix_caching && far.percent(60)).then(Asked::default);
        let reader = asked.clone().map(|asked| Box::new(asked) as Box<dyn RemotePrefill>);
        core.set_remote_prefill(reader, engine.0.handoffs.clone());
        World {
            rng,
            far,
            elsewhere,
            load,
            nanos,
            engine,
            driver: Driver::new(core, status, clock),
            commands,
            faults,
            journal_panics,
            tokenizer,
            clients: BTreeMap::new(),
            documents,
            limits,
            is_held: false,
            heard_tokens: 0,
            ends: [0; 4],
            report: Report { drafting: drafts, with_model: u64::from(draft.is_some()), ..Report::default() },
            known,
            draft,
            ended_early: 0,
            recording,
            asked,
            lies,
            lied: BTreeSet::new(),
            readings: Vec::new(),
            fate,
            losses,
        }
    }

    pub(super) fn run(mut self) -> Report {
        for _ in 0..self.load.turns {
            while self.rng.percent(self.load.arrival) {
                self.arrive();
            }
            if self.rng.percent(self.load.cancel) {
                self.cancel();
            }
            if self.rng.percent(self.load.hiccup) {
                let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
                // A sequence that fails twice in a row is at fault.
                if faults.panic_at.or(faults.panic_in_logits_at).is_none() {
                    let next = Some(faults.computes + 1);
                    match self.rng.within(0..=9) {
                        0..=5 => faults.panic_at = next,
                        6..=8 => faults.panic_in_logits_at = next,
                        _ => faults.panic_in_copy = true,
                    }
                    self.report.failed_passes += 1;
                }
            }
            if self.fate.percent(self.losses) {
                let door = Some(DOORS[self.fate.within(0..=3)]);
                self.faults.lock().unwrap_or_else(PoisonError::into_inner).lose_at = door;
            }
            if self.rng.percent(self.load.hold) {
                self.hold();
            }
            if self.rng.percent(self.load.theft) {
                let theft = self.rng.within(1_500_000..=9_000_000) as u64;
                self.faults.lock().unwrap_or_else(PoisonError::into_inner).theft = theft;
            }
            self.move_blocks();
            self.turn();
        }
        self.is_held = false;
        self.send(Command::Pause(PauseCommand::Resume, None));
        for turn in 0.. {
            self.move_blocks();
            self.turn();
            if self.readings.is_empty()
                && self.clients.is_empty()
                && self.commands.is_empty()
                && !self.driver.is_ready()
            {
                break;
            }
            assert!(turn < MOST_TURNS, "{} requests never end", self.clients.len());
        }
        self.check_quiet();
        while self.check_spot() {}
        let checked = self.engine.stats().spot_checks;
        assert_eq!(checked.different, 0, "answers that came out otherwise: {checked:?}");
        self.report.checked = checked.equal;
        self.replay()
    }

    fn send(&self, command: Command) {
        assert!(self.engine.0.commands.send(command).is_ok(), "the driver is here");
    }

    /// What the engine's thread does from one wait to the next, and what clients make of it.
    fn turn(&mut self) {
        self.nanos.fetch_add(self.rng.bits() % 50_000, Ordering::Relaxed);
        while let Ok(command) = self.commands.try_recv() {
            assert!(self.driver.take(command), "the driver runs");
            self.nanos.fetch_add(self.rng.bits() % 500, Ordering::Relaxed);
        }
        if self.driver.is_ready() {
            self.driver.step();
        } else if !self.check_spot() {
            self.driver.rest();
        }
        (self.report.restarts, self.report.abandoned) = self.driver.failures();
        self.report.lost = self.faults.lock().unwrap_or_else(PoisonError::into_inner).devices_lost;
        self.driver.check_invariants();
        self.report.overlaps += u64::from(self.driver.in_flight() > 0);
        let ids: Vec<u64> = self.clients.keys().copied().collect();
        for id in ids {
            if !self.clients[&id].reads_slowly || self.rng.percent(10) {
                self.read(id);
            }
        }
        self.check_gauges();
    }

    /// Some rows of a check. The time that the machine takes of them is attributed to no request.
    fn check_spot(&mut self) -> bool {
        let all_lost = |world: &World| world.faults.lock().unwrap_or_else(PoisonError::into_inner).all_lost;
        let before = all_lost(self);
        let checked = self.driver.check();
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).all_lost = before;
        checked
    }

    fn arrive(&mut self) {
        let raw = self.request();
        let asked = self.engine.validate(raw.clone());
        let request = match asked {
            Ok(request) => request,
            Err(rejection) => {
                assert_eq!(rejection.code, Some("kv_cache_too_small"), "{rejection}");
                self.report.too_large += 1;
                return self.check_rejection(&raw);
            }
        };
        let alone = alone(&request, &self.tokenizer);
        if self.asked.is_some() && self.far.percent(20) {
            return self.arrive_from_a_worker(&request);
        }
        let (request, began) = self.maybe_began_elsewhere(raw, request, &alone);
        let backlog = self.backlog();
        let arrived = self.engine.now();
        let num_answers = request.num_answers;
        let prompt_logprobs = request.prompt_logprobs().is_some();
        match self.engine.submit(request) {
            Ok(stream) => {
                self.report.requests += 1;
                if let Some(known) = &self.known {
                    let tokens = alone.iter().map(|(tokens, _)| tokens.clone()).collect();
                    known.lock().expect("no holder panics").insert(stream.id().0, tokens);
                }
                let reads_slowly = self.rng.percent(self.load.slow_readers);
                if reads_slowly {
                    stream.limit_unread(self.rng.within(1..=12));
                }
                let client = Client {
                    alone,
                    heard: began.clone(),
                    began,
                    ends: vec![None; num_answers],
                    arrived,
                    first: vec![None; num_answers],
                    last: vec![Nanos(0); num_answers],
                    reads_slowly,
                    prompt_logprobs,
                    progress: None,
                    stream,
                };
                self.clients.insert(client.stream.id().0, client);
            }
            Err(error) => {
                self.report.refused += 1;
                assert!(!matches!(error, SubmitError::ShuttingDown), "{error}");
                assert_eq!(self.backlog(), backlog, "a refused request stands in line");
            }
        }
    }

    /// In two of five seeds another engine has begun some of the answers, and their clients continue here.
    fn maybe_began_elsewhere(
        &mut self,
        raw: RawRequest,
        request: ValidatedRequest,
        alone: &[(Vec<TokenId>, Fate)],
    ) -> (ValidatedRequest, Vec<Vec<TokenId>>) {
        let is_sound = alone.iter().all(|(_, fate)| matches!(fate, Fate::Finished(_)));
        let is_whole = raw.receipt || raw.prompt_logprobs.is_some();
        if is_whole || !is_sound || !self.far.percent(self.elsewhere) {
            return (request, vec![Vec::new(); alone.len()]);
        }
        let some = |(tokens, _): &(Vec<TokenId>, Fate)| {
            let before = self.far.within(0..=tokens.len().saturating_sub(1));
            tokens[..before].to_vec()
        };
        let began: Vec<Vec<TokenId>> = alone.iter().map(some).collect();
        let generated = |tokens: &Vec<TokenId>| Some(tokens.iter().map(|&token| i64::from(token)).collect());
        let raw = RawRequest { generated: began.iter().map(generated).collect(), ..raw };
        self.report.resumed += 1;
        (self.engine.validate(raw).expect("its answers go on"), began)
    }

    /// Another worker has a prompt read.
    fn arrive_from_a_worker(&mut self, request: &ValidatedRequest) {
        let seed = request.seed.expect("it has one");
        let entry = request.for_remote_prefill(seed, request.salt, RequestId(0), self.engine.now());
        let request =
            ValidatedRequest::from_remote_prefill(&entry, self.engine.model()).expect("what passed once passes again");
        if self.engine.fits(&request).is_err() {
            return;
        }
        let alone = alone(&request, &self.tokenizer);
        let first_block = self.far.within(0..=(entry.prompt.len() - 1) / self.limits.block_size);
        let (sender, given) = channel();
        let arrived = self.engine.now();
        let Ok(stream) = self.engine.submit_for(request, BlockSender { messages: sender, first_block }) else {
            self.report.refused += 1;
            return;
        };
        self.report.requests += 1;
        self.readings.push(Reading {
            id: stream.id(),
            given,
            prompt: entry.prompt,
            next: first_block,
            first: alone[0].0.first().copied(),
            pace: [5, 50, 100][self.far.within(0..=2)],
        });
        let client = Client {
            began: vec![Vec::new()],
            heard: vec![Vec::new()],
            ends: vec![None],
            arrived,
            first: vec![None],
            last: vec![Nanos(0)],
            reads_slowly: false,
            prompt_logprobs: false,
            progress: None,
            stream,
            alone,
        };
        self.clients.insert(client.stream.id().0, client);
    }

    /// Moves the transfers on.
    fn move_blocks(&mut self) {
        let Some(asked) = self.asked.clone() else { return };
        if self.far.percent(3) {
            asked.set_away(self.far.percent(50));
        }
        for id in asked.requests() {
            // A client that left is forgotten when the engine learns of it.
            let first = self.clients.get(&id.0).and_then(|client| client.alone[0].0.first().copied());
            let mut first = first.filter(|_| self.far.percent(80));
            // One that computes wrong, now and then.
            if self.lies && self.far.percent(25) {
                first = first.map(|token| (token + 1) % VOCAB as TokenId);
                self.lied.insert(id.0);
            }
            while self.far.percent(40) && asked.requests().contains(&id) {
                let ends = self.far.percent(8);
                let mut said = Vec::new();
                let event = asked.next(id, ends, self.limits.block_size, first, &mut said);
                let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
                faults.prefixes.iter_mut().for_each(|prefixes| prefixes.extend(said.iter().copied()));
                drop(faults);
                self.send(Command::Handoff(event));
            }
        }
        let block_size = self.limits.block_size;
        for mut reading in std::mem::take(&mut self.readings) {
            let leaves = self.far.percent(1);
            let comes = self.far.percent(reading.pace);
            if leaves || comes && reading.take(block_size) {
                *(if leaves { &mut self.report.left } else { &mut self.report.given }) += 1;
                self.send(Command::Handoff(HandoffEvent::PeerGone(reading.id)));
                if leaves && let Some(client) = self.clients.remove(&reading.id.0) {
                    self.ended_early += client.ends.len() as u64;
                    self.report.cancelled += 1;
                    self.ends[2] += 1;
                }
            } else {
                self.readings.push(reading);
            }
        }
    }

    fn backlog(&self) -> Nanos {
        self.engine.0.status.forecast().backlog()
    }

    fn request(&mut self) -> RawRequest {
        let heeds_targets = self.engine.model().calibrated.is_some();
        let rng = &mut self.rng;
        let len = rng.within(1..=self.load.prompt_len);
        let document = &self.documents[rng.within(0..=3)];
        let shared = rng.within(0..=len);
        let mut prompt: Vec<i64> = document[..shared].iter().map(|&token| i64::from(token)).collect();
        prompt.extend((shared..len).map(|_| rng.within(1..=21) as i64));
        if rng.percent(self.load.poisoned) {
            let at = if rng.percent(50) { prompt.len() - 1 } else { rng.within(0..=prompt.len() - 1) };
            prompt[at] = i64::from(if rng.percent(60) { POISON } else { NAN });
        }
        // Otherwise no answer comes upon them.
        let clean = [POISON, NAN].map(|token| (i64::from(token), -100.0)).to_vec();
        let room = self.limits.max_model_len - len;
        let max_tokens = rng.within(1..=self.load.max_tokens.min(room).max(1));
        RawRequest {
            max_tokens: Some(max_tokens as i64),
            min_tokens: rng.percent(30).then(|| rng.within(0..=max_tokens) as i64),
            n: rng
                .percent(self.load.several_answers)
                .then(|| rng.within(1..=(self.limits.max_num_seqs - 1).min(4)) as i64),
            sampling: SamplingParams {
                temperature: Some([0.0, 0.7, 1.0][rng.within(0..=2)]),
                repetition_penalty: rng.percent(20).then_some(1.2),
                ..SamplingParams::default()
            },
            logit_bias: if self.load.poisoned > 0 && rng.percent(self.load.poisoned) { Vec::new() } else { clean },
            seed: Some(rng.within(0..=1 << 20) as i64),
            stop: if rng.percent(30) { vec![["b", "cd", "q"][rng.within(0..=2)].to_owned()] } else { Vec::new() },
            stop_token_ids: if rng.percent(20) { vec![rng.within(1..=21) as i64] } else { Vec::new() },
            ignore_eos: rng.percent(60),
            logprobs: rng.percent(20).then_some(2),
            prompt_logprobs: rng.percent(10).then_some(1),
            class: rng.percent(30).then(|| ServiceClass::ALL[rng.within(0..=2)]),
            ttft_slo_ms: (heeds_targets && rng.percent(40)).then(|| rng.within(1..=400) as f64),
            tpot_slo_ms: (heeds_targets && rng.percent(40)).then(|| rng.within(1..=40) as f64),
            tenant: rng.percent(50).then(|| [rng.within(0..=2) as u8; 32]),
            receipt: len.is_multiple_of(3),
            // Drawn from what is drawn already: the seeds stay what they are.
            progress: prompt.len().is_multiple_of(3),
            ..RawRequest::new(Prompt::Tokens(prompt))
        }
    }

    /// Only what the cache cannot hold is refused by validation.
    fn check_rejection(&self, raw: &RawRequest) {
        let (Prompt::Tokens(prompt), Some(most)) = (&raw.prompt, raw.max_tokens) else { unreachable!() };
        if raw.n.unwrap_or(1) == 1 {
            // The last token of an answer is never computed.
            let slots = (prompt.len() + most as usize - 1).max(prompt.len());
            let needed = slots.div_ceil(self.limits.block_size);
            assert!(needed > self.limits.num_blocks, "{needed} blocks fit a cache of {}", self.limits.num_blocks);
        }
    }

    fn cancel(&mut self) {
        let ids: Vec<u64> = self.clients.keys().copied().collect();
        if !ids.is_empty() {
            let id = ids[self.rng.within(0..=ids.len() - 1)];
            self.read(id);
            if let Some(client) = self.clients.remove(&id) {
                self.ended_early += client.ends.len() as u64;
                self.report.cancelled += 1;
                self.ends[2] += 1;
                // A peer that has a prompt prefilled has one end of it, not two.
                if let Some(at) = self.readings.iter().position(|reading| reading.id.0 == id) {
                    self.readings.remove(at);
                    self.report.left += 1;
                    self.send(Command::Handoff(HandoffEvent::PeerGone(RequestId(id))));
                }
            }
        }
    }

    fn hold(&mut self) {
        self.report.holds += 1;
        let hold = match (self.is_held, self.rng.within(0..=2)) {
            (false, _) => PauseCommand::Pause,
            (true, 0 | 1) => PauseCommand::SingleStep,
            (true, _) => PauseCommand::Resume,
        };
        self.is_held = !matches!(hold, PauseCommand::Resume);
        self.send(Command::Pause(hold, None));
    }

    /// A client reads what has come.
    fn read(&mut self, id: u64) {
        let now = self.engine.now();
        while let Some(client) = self.clients.get_mut(&id) {
            let Ok(output) = client.stream.events.try_recv() else { break };
            let output = client.stream.note(Some(output)).expect("it is one");
            self.report.trace = fake::mix(self.report.trace ^ fake::mix(id) ^ now.0 ^ trace_of(&output));
            match output {
                Event::PromptLogprobs(_) => assert!(std::mem::take(&mut client.prompt_logprobs), "they come once"),
                Event::Embedding(_) => unreachable!("no client asks for one"),
                Event::Progress(PromptProgress { total, cached, processed, .. }) => {
                    let before = client.progress.replace(processed);
                    assert_eq!(total, client.stream.prompt().len(), "request {id}");
                    assert!(before.is_none_or(|before| before < processed) && processed <= total, "request {id}");
                    assert!(before.is_some() || processed == cached, "it begins with what the cache has: request {id}");
                    assert_eq!(client.heard, client.began, "before any token of request {id}");
                }
                Event::Token { answer, token, .. } => {
                    let read = client.progress.is_none_or(|processed| processed == client.stream.prompt().len());
                    assert!(read, "a token of request {id} before its prompt was read");
                    let place = client.heard[answer].len();
                    let alone = client.alone[answer].0.get(place);
                    assert_eq!(alone, Some(&token), "token {place} of answer {answer} of request {id}");
                    assert_eq!(client.ends[answer], None, "a token after the end of request {id}");
                    client.heard[answer].push(token);
                    client.first[answer].get_or_insert(now);
                    client.last[answer] = now;
                    self.heard_tokens += 1;
                }
                Event::Noted { answer, unsealed } => {
                    let (tokens, _) = &client.alone[answer];
                    assert_eq!(&unsealed.tokens, tokens, "what is noted of request {id}");
                    assert_eq!(unsealed.rows.len(), tokens.len(), "a row for each token of request {id}");
                }
                Event::Finished { answer, reason, .. } => {
                    let (tokens, fate) = &client.alone[answer];
                    assert_eq!((&client.heard[answer], Fate::Finished(reason)), (tokens, *fate), "request {id}");
                    assert_eq!(client.ends[answer].replace(reason), None, "two ends of an answer of request {id}");
                }
                Event::Done { usage, timings } => {
                    let client = self.clients.remove(&id).expect("it is here");
                    assert!(!client.prompt_logprobs, "the prompt's log probabilities of request {id} did not come");
                    let of = |answers: &[Vec<TokenId>]| answers.iter().map(Vec::len).sum::<usize>();
                    let tokens = of(&client.heard) - of(&client.began);
                    assert_eq!(usage.completion_tokens, tokens, "request {id}");
                    for reason in client.ends.iter().map(|end| end.expect("each answer has its end")) {
                        self.ends[usize::from(reason == FinishReason::Length)] += 1;
                    }
                    self.report.finished += 1;
                    // Of several answers that began elsewhere each has a first token of its own.
                    let is_apart = client.began.len() > 1 && client.began.iter().any(|began| !began.is_empty());
                    if !client.reads_slowly && !is_apart {
                        check_times(id, &client, &timings, now);
                    }
                }
                Event::Failed(error) => {
                    let client = self.clients.remove(&id).expect("it is here");
                    let own = client.alone.iter().any(|(_, fate)| *fate == Fate::Fault(error));
                    match error {
                        RequestError::SlowReader => {
                            self.ended_early += client.ends.len() as u64;
                            assert!(client.reads_slowly, "request {id} is read");
                            self.report.unread += 1;
                            self.ends[2] += 1;
                        }
                        RequestError::Handoff => {
                            assert!(self.lied.contains(&id), "request {id} was not lied about");
                            self.ended_early += client.ends.len() as u64;
                            self.report.lies += 1;
                            self.ends[3] += 1;
                        }
                        _ if own => {
                            self.report.own_faults += 1;
                            self.ends[3] += 1;
                        }
                        _ => {
                            let fates: Vec<Fate> = client.alone.iter().map(|alone| alone.1).collect();
                            assert!(
                                self.has_started_over(),
                                "request {id} failed ({error}) by another's fault; alone {fates:?}"
                            );
                            self.ends[3] += 1;
                        }
                    }
                }
            }
        }
    }

    /// The journal's reader has panicked: then everything open ends.
    fn has_started_over(&self) -> bool {
        self.journal_panics.load(Ordering::Relaxed) < self.load.journal_panics
    }

    fn check_gauges(&self) {
        self.engine.views().accounts.check();
        let open = self.engine.health().open_requests;
        let waiting = self.engine.0.status.requests.waiting().requests();
        assert!(waiting <= open, "{waiting} wait of {open}");
        let commands = self.commands.len();
        if commands == 0 && self.clients.values().all(|client| !client.reads_slowly) {
            assert_eq!(open, self.clients.len(), "open requests");
        }
    }

    fn check_quiet(&mut self) {
        self.driver.rest();
        let stats = self.engine.stats();
        assert_eq!(self.engine.health().open_requests, 0, "open requests when all is quiet");
        assert_eq!((stats.waiting_requests, stats.waiting_tokens), (0, 0), "the queue when all is quiet");
        assert_eq!((stats.used_blocks, stats.running_requests), (0, 0), "blocks and requests when all is quiet");
        let panicked = self.load.journal_panics - self.journal_panics.load(Ordering::Relaxed);
        assert!(self.report.restarts <= panicked, "{} restarts, {panicked} for the journal", self.report.restarts);
        // Where the journal itself failed, it has lost the last facts.
        if self.report.restarts == 0 {
            assert_eq!(stats.generated_tokens, self.heard_tokens, "generated tokens");
            self.report.held = stats.accepted_tokens;
            self.report.rejected = stats.drafted_tokens - stats.accepted_tokens;
            let ends = [stats.finished_stop, stats.finished_length, stats.finished_cancelled, stats.finished_error];
            assert_eq!(ends, self.ends, "answers stopped and at their length, requests cancelled and failed");
            self.ended_early += self.ends[0];
        }
        self.check_draft_model();
        self.check_handoffs();
        assert_eq!(self.backlog(), Nanos(0), "the queue is empty");
        assert_eq!(self.engine.views().promises.num_open(), 0, "promises when all is quiet");
        let faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(!faults.lost_logits, "logits are read while they are kept");
        drop(faults);
        self.check_stolen(stats.stolen_seconds);
        self.report.steps = stats.steps;
        self.report.preemptions = stats.preemptions;
    }

    /// Nothing that travelled is left anywhere.
    fn check_handoffs(&mut self) {
        let handoffs = self.engine.handoffs();
        assert_eq!(handoffs.kept_blocks, 0, "{handoffs:?}");
        let Some(asked) = &self.asked else { return };
        assert_eq!(
            (asked.requests(), asked.disbelieved()),
            (Vec::new(), handoffs.mismatches),
            "no worker is waited for"
        );
        // A peer that began anew, or left, has not learned of it; a pass that is made twice finds it twice.
        assert!(handoffs.mismatches >= self.report.lies, "{handoffs:?}");
        assert!(self.lies || handoffs.mismatches == 0, "{handoffs:?}");
        (self.report.taken, self.report.taken_in_part) = (handoffs.taken[0], handoffs.taken[1]);
        self.report.landed = handoffs.blocks_taken;
    }

    /// Its cache is what it takes it for, and it is given up if, and only if, it panicked as it was asked to.
    fn check_draft_model(&mut self) {
        let Some(draft) = &self.draft else { return };
        let faults = draft.faults();
        assert!(!faults.misread, "the draft model reads what it did not write there");
        let target = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        // What it has read for the step in which it panics is dropped.
        let is_over = faults.came || self.report.lost > 0;
        if let (Some(read), Some(said), false) = (&faults.prefixes, &target.prefixes, is_over) {
            let foreign = read.difference(said).count();
            assert_eq!(foreign, 0, "of {} prefixes that the draft model read these are of no request", read.len());
            self.report.compared += read.len() as u64;
        }
        drop(target);
        assert!(!faults.lost_logits, "the draft model's logits are read while they are kept");
        assert_eq!(self.driver.drafting_computes(), !is_over, "it is given up if it panics or its device is lost");
        self.report.given_up = u64::from(faults.came);
        if draft.is_calm && self.report.restarts == 0 {
            let Report { held, rejected, .. } = self.report;
            // Of the last step of each answer that ends early.
            let most = self.ended_early * draft.max_drafts as u64;
            assert!(rejected <= most, "{rejected} drafts of {} are rejected, {most} may be", held + rejected);
            (self.report.calm_held, self.report.calm_rejected) = (held, rejected);
        }
    }

    /// What the machine took of steps is all booked on it, and nothing else is.
    fn check_stolen(&mut self, [during, before]: [f64; 2]) {
        let lost = self.faults.lock().unwrap_or_else(PoisonError::into_inner).all_lost as f64 / 1e9;
        let booked = during + before;
        assert!(booked < lost + 1e-6, "{booked} s are the machine's, which took {lost} s");
        // No record exists of a step that was given up, or that a journal lost; and where passes are made twice,
        // predictions are not what a pass takes.
        let load = &self.load;
        if self.report.restarts + self.report.abandoned + self.report.lost + load.hiccup + load.poisoned == 0 {
            // Predictions are as good as what the cost model has learned by then.
            assert!(booked > 0.9 * lost - 1e-6, "{booked} s are the machine's, which took {lost} s");
            self.report.thefts += u64::from(lost > 0.0);
        }
    }

    /// What was recorded is what was run.
    fn replay(self) -> Report {
        let World { driver, engine, commands, recording, mut report, .. } = self;
        let steps = engine.stats().steps;
        driver.end();
        drop((engine, commands));
        let Some((path, recorder)) = recording else { return report };
        recorder.join().expect("the recorder wrote");
        // Between this crate under test and `replay`, which has its own copy of it, there is nothing but the file.
        let recorded = replay::Recording::open(&path).expect("a recording");
        let replayed = replay::replay(recorded, &mut |_| {}).expect("it can be replayed");
        let _ = std::fs::remove_file(&path);
        assert_eq!(replayed.difference, None, "the replay took another course");
        assert!(!replayed.was_cut_off, "the recording has its end");
        // Where a device was lost, requests are admitted once more.
        if report.restarts == 0 {
            assert_eq!(replayed.steps, steps, "steps replayed");
            assert!(replayed.requests == report.requests || report.lost > 0, "{} requests", replayed.requests);
        }
        report.replays += 1;
        report
    }
}

/// A sink that panics when it records an answer's or a request's early end, as often as `left` says.
fn fragile(mut sink: Option<RecordSink>, left: Arc<AtomicU64>) -> RecordSink {
    Box::new(move |line| {
        let is_end = matches!(line, RecordLine::Stop(..) | RecordLine::Cancel(..));
        if let Some(sink) = &mut sink {
            sink(line);
        }
        let take = |left: u64| left.checked_sub(1);
        if is_end && left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
            std::panic::panic_any(fake::PLANNED);
        }
    })
}

fn trace_of(output: &Event) -> u64 {
    match output {
        Event::PromptLogprobs(all) => 1 + all.len() as u64,
        Event::Token { answer, token, .. } => 2 + ((*answer as u64) << 32) + u64::from(*token),
        Event::Finished { answer, .. } => 3 + ((*answer as u64) << 32),
        Event::Done { timings, .. } => 4 + timings.prefill_tokens as u64,
        Event::Failed(_) => 5,
        Event::Noted { unsealed, .. } => 6 + unsealed.tokens.len() as u64,
        Event::Progress(progress) => 7 + ((progress.processed as u64) << 8),
        Event::Embedding(vector) => 8 + vector.len() as u64,
    }
}

/// The client's clock, the answer's times and the ledger's sums are one.
fn check_times(id: u64, client: &Client, timings: &crate::Timings, now: Nanos) {
    let first = client.first.iter().flatten().min().copied();
    let Some(first) = first else { return };
    let ttft = first.since(client.arrived);
    assert_eq!(timings.bill.ttft.total(), ttft, "the ledger's time to first token of request {id}");
    let ms = |nanos: Nanos| nanos.as_secs_f64() * 1e3;
    assert_eq!(timings.ttft_ms, ms(ttft), "time to first token of request {id}");
    assert!((timings.queue_ms + timings.prefill_ms - timings.ttft_ms).abs() < 1e-6, "request {id}: {timings:?}");
    let others = Owner::ALL.into_iter().filter(|owner| owner.is_others());
    let others: u64 = others.map(|owner| timings.bill.ttft.of(owner).0).sum();
    assert_eq!(timings.bill.ttft_others.total().0, others, "the others that request {id} waited for");
    let gaps = client.first.iter().zip(&client.last).flat_map(|(first, last)| first.map(|first| last.since(first).0));
    assert_eq!(timings.bill.gaps.total().0, gaps.sum::<u64>(), "the ledger's gaps of request {id}");
    let bill = &timings.bill;
    let named = Owner::ALL.into_iter().filter(|&owner| owner.is_others() && owner != Owner::Decode);
    let named: u64 = named.map(|owner| bill.gaps.of(owner).0).sum();
    assert_eq!(bill.gaps_others.total().0, named, "the others that the gaps of request {id} waited for");
    let (wrong, of_drafts) = (timings.drafted_tokens - timings.accepted_tokens, bill.gaps.of(Owner::OwnDrafts));
    assert!(bill.rejected <= of_drafts && (wrong > 0 || bill.rejected == Nanos(0)), "request {id}: {bill:?}");
    assert!(timings.drafted_tokens > 0 || of_drafts == Nanos(0), "request {id} has no drafts: {bill:?}");
    let last = client.last.iter().max().expect("there are answers");
    assert_eq!(timings.decode_ms, ms(last.since(first)), "decode of request {id}");
    assert_eq!(timings.total_ms, ms(now.since(client.arrived)), "total of request {id}");
}

/// Every answer of a request that runs alone on an engine.
fn alone(request: &ValidatedRequest, tokenizer: &Tokenizer) -> Vec<(Vec<TokenId>, Fate)> {
    let prompt = &request.prompt;
    let fault = |error| vec![(Vec::new(), Fate::Fault(error)); request.num_answers];
    let scored = if request.prompt_logprobs().is_some() { prompt.len() } else { 0 };
    let poison = prompt.iter().position(|&token| token == POISON);
    let nan = prompt[..scored].iter().position(|&token| token == NAN);
    match (poison, nan) {
        // In one pass or in another: whichever the chunks bring first.
        (Some(_), Some(_)) => {
            let mut both = fault(RequestError::Internal);
            both.extend(fault(RequestError::NanLogits));
            return both;
        }
        (Some(_), None) => return fault(RequestError::Internal),
        (None, Some(_)) => return fault(RequestError::NanLogits),
        (None, None) => {}
    }
    (0..request.num_answers).map(|answer| answer_alone(request, answer, tokenizer)).collect()
}

fn answer_alone(request: &ValidatedRequest, answer: usize, tokenizer: &Tokenizer) -> (Vec<TokenId>, Fate) {
    let mut sampler = Sampler::new(VOCAB);
    let mut history = History::new(&request.prompt);
    let (mut tokens, mut text) = (Vec::new(), String::new());
    let mut hash = request.prompt.iter().fold(0, |hash, &token| fake::grow(hash, token));
    let mut last = *request.prompt.last().expect("a prompt");
    loop {
        if last == POISON {
            return (tokens, Fate::Fault(RequestError::Internal));
        }
        let mut logits = vec![0.0; VOCAB];
        fake::logits(hash, last, &mut logits);
        let banned: &[TokenId] =
            if tokens.len() < request.stop.min_tokens { &request.stop.stop_token_ids } else { &[] };
        let position = (request.prompt.len() + tokens.len()) as u64;
        let key = SampleKey { seed: request.seed.expect("it has one"), stream: answer as u32, position };
        let Ok(sampled) = sampler.sample(&mut logits, &request.sampling, &history, Allowed::but(banned), key) else {
            return (tokens, Fate::Fault(RequestError::NanLogits));
        };
        last = sampled.token;
        hash = fake::grow(hash, last);
        history.push(last);
        tokens.push(last);
        if request.stop.stop_token_ids.contains(&last) {
            return (tokens, Fate::Finished(FinishReason::Stop(Some(last))));
        }
        if tokens.len() > request.stop.min_tokens {
            text.push_str(&tokenizer.decode(&[last], false));
            if request.stop_strings.iter().any(|stop| text.contains(stop.as_str())) {
                return (tokens, Fate::Finished(FinishReason::Stop(None)));
            }
        }
        if tokens.len() == request.stop.max_tokens {
            return (tokens, Fate::Finished(FinishReason::Length));
        }
    }
}

pub(super) fn model_info(
    limits: &Limits,
    tokenizer: &Arc<Tokenizer>,
    calibrated: Option<Calibrated>,
    swap: TierSizes,
) -> ModelInfo {
    ModelInfo {
        name: "chaos".to_owned(),
        config: fake::config(),
        generation_defaults: GenerationDefaults::default(),
        eos_token_ids: vec![EOS],
        tokenizer: Some(tokenizer.clone()),
        chat_template: None,
        template_fault: None,
        vocabulary: LazyVocabulary::default(),
        max_model_len: limits.max_model_len,
        max_num_seqs: limits.max_num_seqs,
        is_shared: false,
        max_num_batched_tokens: limits.max_num_batched_tokens,
        block_size: limits.block_size,
        num_blocks: limits.num_blocks,
        spot_blocks: 0,
        states: None,
        kv_dtype: KvDtype::Bf16,
        kv_bytes: 0,
        memory_limit: None,
        weight_bytes: 1,
        expert_bytes: 0,
        swap,
        kv_bytes_per_token: 12,
        notices: Vec::new(),
        precisions: None,
        remote_only_prefill: false,
        weights: WeightClass::Bf16,
        device: DeviceInfo::cpu(Isa::Scalar, 1),
        arithmetic: AccumulationOrder::best(),
        backend: "a hash".to_owned(),
        calibrated,
        targets: Targets::default(),
        origin: Origin::default(),
        adapters: crate::Adapters::default(),
    }
}
