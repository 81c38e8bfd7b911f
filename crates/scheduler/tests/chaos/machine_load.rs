//! How wild a seed is: limits, load, faults, the machine and its clock, all drawn from the seed.

use protocol::{Nanos, Targets, TokenId};
use scheduler::cost::{Knot, Terms};
use scheduler::{CostModel, Limits, TierSizes, Work};

use testing::Dice;

/// What happens around the scheduler, in percent per tick unless said otherwise.
pub(crate) struct MachineLoad {
    pub(crate) ticks: usize,
    pub(crate) arrival: u64,
    pub(crate) burst: usize,
    /// All requests arrive within this many ticks.
    pub(crate) rush: usize,
    pub(crate) cancel: u64,
    pub(crate) failure: u64,
    pub(crate) several_answers: u64,
    pub(crate) stop: u64,
    pub(crate) prompt_len: usize,
    pub(crate) max_tokens: usize,
    pub(crate) eos: bool,
    pub(crate) priorities: usize,
    pub(crate) salts: usize,
    pub(crate) tenants: usize,
    pub(crate) documents: Vec<Vec<TokenId>>,
    /// Share of requests that have a target for their first token, and for the others.
    pub(crate) ttft: u64,
    pub(crate) tpot: u64,
    pub(crate) targets: TargetKind,
    /// Queue time after which the engine drops a request.
    pub(crate) queue_deadline: Option<Nanos>,
    pub(crate) clock: Clock,
    /// Reads and writes of the disk that fail, and loads from memory.
    pub(crate) disk_faults: u64,
    pub(crate) memory_faults: u64,
    /// Transfers in the background that end in a tick.
    pub(crate) transfers_end: u64,
    /// Offers of drafts for sequences, and drafts that hold.
    pub(crate) offers: u64,
    pub(crate) drafts_right: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum TargetKind {
    /// Hardly above what one decode step takes.
    Tight,
    /// Several steps.
    Loose,
    /// From nothing at all to unlimited.
    Absurd,
}

/// What the engine's clock does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Clock {
    /// A step takes exactly what the machine says, and the next begins at once.
    Exact,
    /// Between a quarter and four times of that, and pauses between steps.
    Noisy,
    /// It never moves.
    Still,
    /// It stands still, jumps ahead by seconds or hours, goes back, and steps take a thousand times longer.
    Odd,
}

/// What the scheduler knows about the machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Knowledge {
    /// It plans without a cost model.
    None,
    /// The machine itself.
    Exact,
    /// Another machine.
    Wrong,
    /// Every step takes no time.
    Worthless,
}

/// What a seed is about.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// Anything goes.
    Mixed,
    /// Many short prompts with long answers, in a pool that holds little more than one of them.
    Crowded,
    /// Several answers to most prompts, which take many small chunks.
    Forking,
    /// Crowded by requests of all classes that no client cancels, so that the low ones are preempted again and again.
    Besieged,
    /// Long prompts beside streams with targets, on a machine where a full step takes much longer than a small one.
    Targeted,
}

pub(crate) struct Draw {
    pub(crate) limits: Limits,
    pub(crate) load: MachineLoad,
    pub(crate) machine: CostModel,
    pub(crate) knowledge: Knowledge,
    /// Bits that block hashes keep.
    pub(crate) hash_bits: Option<usize>,
    pub(crate) tiers: Option<TierSizes>,
}

/// The part of limits and load that depends on the kind of seed.
struct Sizes {
    block_size: usize,
    num_blocks: usize,
    max_model_len: usize,
    max_num_seqs: usize,
    max_prefill_chunk: usize,
    several_answers: usize,
    prompt_len: usize,
    max_tokens: usize,
}

impl Sizes {
    fn of(kind: Kind, rng: &mut Dice) -> Sizes {
        let ranges = match kind {
            Kind::Mixed => [1..=6, 4..=32, 8..=64, 1..=8, 1..=16, 0..=60, 1..=40, 1..=40],
            Kind::Crowded => [1..=3, 0..=8, 8..=64, 4..=8, 1..=16, 0..=40, 1..=8, 20..=64],
            Kind::Besieged => [1..=2, 0..=20, 30..=64, 4..=8, 4..=16, 0..=0, 1..=6, 30..=64],
            Kind::Forking => [2..=5, 8..=24, 24..=48, 5..=8, 1..=3, 50..=100, 4..=20, 4..=24],
            Kind::Targeted => [2..=6, 24..=64, 32..=64, 3..=8, 8..=32, 0..=20, 10..=60, 10..=40],
        };
        let [
            block_size,
            blocks,
            max_model_len,
            max_num_seqs,
            max_prefill_chunk,
            several_answers,
            prompt_len,
            max_tokens,
        ] = ranges.map(|range| rng.within(range));
        // Room for one of the longest, and for little more.
        let is_narrow = matches!(kind, Kind::Crowded | Kind::Besieged);
        let num_blocks = blocks + if is_narrow { max_model_len.div_ceil(block_size) } else { 0 };
        Sizes {
            block_size,
            num_blocks,
            max_model_len,
            max_num_seqs,
            max_prefill_chunk,
            several_answers,
            prompt_len,
            max_tokens,
        }
    }
}

impl Draw {
    pub(crate) fn from(rng: &mut Dice) -> Draw {
        let kind = rng.pick(&[Kind::Mixed, Kind::Crowded, Kind::Forking, Kind::Besieged, Kind::Targeted]);
        let (besieged, targeted) = (matches!(kind, Kind::Besieged), matches!(kind, Kind::Targeted));
        let sizes = Sizes::of(kind, rng);
        let limits = Limits {
            block_size: sizes.block_size,
            num_blocks: sizes.num_blocks,
            max_model_len: sizes.max_model_len,
            max_num_seqs: sizes.max_num_seqs,
            max_num_batched_tokens: sizes.max_num_seqs + rng.within(0..=24) + if targeted { 24 } else { 0 },
            max_prefill_chunk: sizes.max_prefill_chunk,
            max_prefill_seqs: rng.within(1..=4),
            max_queued_requests: rng.within(1..=16),
            max_queued_tokens: rng.within(20..=300),
            enable_prefix_caching: rng.percent(85),
            states: None,
            whole_prompts: false,
            hash_key: core::array::from_fn(|_| rng.bits() as u8),
        };
        let documents = (0..3).map(|_| (0..64).map(|_| rng.within(2..=6) as TokenId).collect()).collect();
        let machine = machine(rng, targeted);
        let knowledge = match rng.within(0..=9) {
            0..=4 if !targeted => Knowledge::None,
            8 => Knowledge::Wrong,
            9 => Knowledge::Worthless,
            _ => Knowledge::Exact,
        };
        let clock = match rng.within(0..=5) {
            0..=2 => Clock::Exact,
            3 => Clock::Noisy,
            4 => Clock::Still,
            _ => Clock::Odd,
        };
        let ticks = rng.within(30..=120);
        let one_step = machine.step_time(&one_row()).0;
        let load = MachineLoad {
            ticks,
            arrival: rng.within(5..=80) as u64,
            burst: rng.within(1..=4),
            rush: if rng.percent(20) { ticks / 4 } else { ticks },
            cancel: if besieged { 0 } else { rng.within(0..=3) as u64 },
            failure: rng.within(0..=4).saturating_sub(2) as u64,
            several_answers: sizes.several_answers as u64,
            stop: if besieged { 0 } else { rng.within(0..=30) as u64 },
            prompt_len: sizes.prompt_len,
            max_tokens: sizes.max_tokens,
            eos: !besieged && rng.percent(50),
            priorities: if besieged { 4 } else { rng.within(1..=3) },
            salts: rng.within(1..=2),
            tenants: rng.within(1..=3),
            documents,
            ttft: rng.pick(&[0, 0, 30, 100]),
            tpot: if targeted { rng.within(20..=80) as u64 } else { rng.pick(&[0, 0, 30, 100]) },
            targets: rng.pick(&[TargetKind::Tight, TargetKind::Tight, TargetKind::Loose, TargetKind::Absurd]),
            queue_deadline: rng.percent(10).then(|| Nanos(one_step * rng.within(5..=100) as u64)),
            clock,
            disk_faults: rng.pick(&[0, 2, 10, 50]),
            memory_faults: rng.pick(&[0, 0, 2]),
            transfers_end: rng.pick(&[20, 60, 100]),
            offers: 0,
            drafts_right: 0,
        };
        let tiers = rng.percent(40).then(|| TierSizes {
            host_slots: rng.within(1..=limits.num_blocks),
            disk_slots: rng.pick(&[0, 1, 2]) * rng.within(1..=limits.num_blocks),
        });
        let hash_bits = [Some(8), Some(2), None, None][rng.within(0..=3)];
        let mut load = load;
        load.offers = rng.pick(&[0, 0, 0, 30, 100]);
        load.drafts_right = rng.pick(&[0, 50, 90, 100]);
        Draw { limits, load, machine, knowledge, hash_bits, tiers }
    }
}

/// A machine with random costs: one to four points and some of the terms. A steep one has long full steps.
pub(crate) fn machine(rng: &mut Dice, steep: bool) -> CostModel {
    let mut seconds = 0.004 + 0.040 * rng.share();
    let mut knots = vec![Knot { rows: 1, seconds }];
    for _ in 0..rng.within(0..=3).max(usize::from(steep)) {
        let rows = rng.within(1..=12);
        let slope = if steep { 0.002 } else { rng.pick(&[0.0, 0.000_2, 0.002]) };
        seconds += slope * rng.share() * rows as f64;
        knots.push(Knot { rows: knots[knots.len() - 1].rows + rows, seconds });
    }
    let mut term = |most: f64| if rng.percent(50) { most * rng.share() } else { 0.0 };
    let terms = Terms {
        pair: term(5e-5),
        key: term(2e-5),
        row: term(1e-3),
        prompt: term(2e-3),
        logits: term(5e-4),
        head: term(2e-3),
    };
    CostModel::new(knots, terms)
}

/// A machine that takes no time at all.
pub(crate) fn no_machine() -> CostModel {
    CostModel::new(vec![Knot { rows: 1, seconds: 0.0 }], Terms::default())
}

/// The work of the smallest step.
fn one_row() -> Work {
    let mut work = Work::default();
    work.add_decode(8);
    work
}

impl MachineLoad {
    /// The targets of a new request.
    pub(crate) fn draw_targets(&self, rng: &mut Dice, machine: &CostModel) -> Targets {
        let one_step = machine.step_time(&one_row()).0;
        let mut times = |tight: f64, loose: f64| {
            let factor = match self.targets {
                TargetKind::Tight => tight * (1.0 + rng.share()),
                TargetKind::Loose => loose * (1.0 + 4.0 * rng.share()),
                TargetKind::Absurd => rng.pick(&[0.0, 1e-7, 1e9, 1e30]),
            };
            Nanos((one_step as f64 * factor) as u64)
        };
        let (ttft, tpot) = (times(2.0, 20.0), times(1.0, 3.0));
        Targets { ttft: rng.percent(self.ttft).then_some(ttft), tpot: rng.percent(self.tpot).then_some(tpot) }
    }
}
