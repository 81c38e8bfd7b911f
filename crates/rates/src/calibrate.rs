//! What steps cost on this machine: a few dozen are measured at the start, and the result is kept for the next one.
//!
//! ```text
//! shapes      decode 1 @ 64, prompt of 64, decode 16 @ 64, prompt of 256, decode 8 @ 2048, both in one step, ...
//!   |  run    on free blocks of the cache, with logits and sampling, as the engine steps
//!   v
//! samples     [(shape, wall, ran)] --> NAME.cost, read by the next start; the model is fitted to them (samples.rs)
//! ```
//! The most telling shapes come first, and one that would end after [`HARD_LIMIT`] is left out, so that a large model
//! is measured coarsely and in time; what was left out is extrapolated, and corrected while the engine runs.
//!
//! A step whose threads lost their cores is thrown away and repeated. Where that does not help, a quick one is used that
//! does not count, and the next start measures the shape again.
//!
//! Nothing of it can be seen later: the prefix cache does not know these blocks, and a sequence writes each of its
//! slots before it reads it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use kernels::cpu_time::{Interval, Mark};
use kernels::{DeviceError, Doubt};
use model::sampler::{Allowed, History, SampleKey, Sampler};
use model::{Batch, Forward, Span};
use protocol::sampling::Sampling;
use scheduler::CostModel;

use crate::samples::{SHORT, Sample, Shape, StepSamples};

const SOFT_LIMIT: Duration = Duration::from_secs(2);
/// No step begins that would end after this, by what the ones before it took. The very first is always run.
const HARD_LIMIT: Duration = Duration::from_secs(5);
/// A shape that takes less than this is repeated for as long, within these numbers of times.
const REPEAT_FOR: Duration = Duration::from_millis(60);
const LEAST_REPEATS: usize = 3;
const MOST_REPEATS: usize = 15;
/// Memory of the cache that is written to have something to read. More than caches of processors hold.
const MOST_KV_BYTES: usize = 128 << 20;
/// Context of one with attention that counts.
const LONG: usize = 2048;

/// Whether and how the engine measures itself at the start.
#[derive(Clone, Debug, Default)]
pub struct Calibration {
    /// Where results are kept for the next start; `None`: nowhere.
    pub directory: Option<PathBuf>,
    /// What tells this machine from others: the processor's name. Results of another one are not taken.
    pub machine: String,
    /// Measure again, whatever is kept; the result takes its place.
    pub afresh: bool,
}

/// What steps cost, and how that is known.
#[derive(Clone, Debug)]
pub struct Calibrated {
    /// Fitted to the samples; the scheduler corrects a copy of it.
    pub cost: CostModel,
    /// What it follows from.
    pub samples: StepSamples,
    /// Time that it took at this start.
    pub took: Duration,
    /// It was kept from an earlier start.
    pub from_disk: bool,
    /// Why it is not sure; `None`: it is. The next start measures again.
    pub doubt: Option<Doubt>,
    /// Where it is kept.
    pub file: Option<CalibrationFile>,
}

/// The file that a model of costs came from, or will be written to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CalibrationFile {
    /// What the result follows from, by [`kept::key`](crate::kept::key).
    pub key: String,
    /// Where it is.
    pub path: PathBuf,
}

/// What the steps of an engine may be.
#[derive(Clone, Copy, Debug)]
pub struct StepLimits {
    /// Rows of a step.
    pub rows: usize,
    /// Sequences that decode together.
    pub seqs: usize,
    /// Tokens of a sequence.
    pub len: usize,
    /// Blocks of the cache.
    pub blocks: usize,
    /// Tokens of each.
    pub block_size: usize,
}

impl StepLimits {
    /// What a result depends on. The size of the cache is not part of it: that follows from the memory that happens to
    /// be free at the start.
    pub fn name(&self) -> String {
        format!("{} {} {} {}", self.rows, self.seqs, self.len.min(4 * LONG), self.block_size)
    }

    /// Tokens that measured steps may have in the cache together.
    fn tokens(&self, kv_bytes_per_token: usize) -> usize {
        (self.blocks * self.block_size).min(MOST_KV_BYTES / kv_bytes_per_token.max(1))
    }
}

/// The steps to measure, the most telling first: first the ends of the curve, then the middle, then contexts and
/// mixtures. Only what fits: contexts are cut to what `tokens` of cache hold.
fn shapes(room: &StepLimits, tokens: usize) -> Vec<Shape> {
    let decode = |decode, context| Shape { decode, context, ..Shape::default() };
    let prompt = |chunk, start, ends| Shape { chunk, start, ends, ..Shape::default() };
    let both = |decode, context, chunk, start| Shape { decode, context, chunk, start, ends: chunk % 2 == 0 };
    let mut wanted = vec![decode(1, SHORT), prompt(64, 0, false), prompt(16, 0, false), decode(16, SHORT)];
    wanted.extend([prompt(64, 0, true), decode(1, LONG), prompt(64, LONG, false), decode(8, LONG)]);
    wanted.extend([prompt(128, 0, false), decode(4, SHORT), both(4, 512, 64, 256), prompt(32, 0, false)]);
    wanted.extend([prompt(256, 0, false), decode(64, SHORT), decode(32, SHORT), decode(8, SHORT)]);
    wanted.extend([decode(16, LONG), both(16, 512, 33, 0), prompt(128, LONG, true), both(8, 1024, 128, 512)]);
    wanted.extend([prompt(512, 0, false), prompt(64, 2 * LONG, false), decode(2, LONG), prompt(256, LONG, false)]);
    let larger = (1..).map(|doublings| 512 << doublings).take_while(|&rows| rows <= room.rows);
    wanted.extend(larger.map(|rows| prompt(rows, 0, false)));
    let mut shapes: Vec<Shape> = Vec::new();
    for mut shape in wanted {
        shape.decode = shape.decode.min(room.seqs);
        shape.chunk = shape.chunk.min(room.rows - shape.decode.min(room.rows)).min(room.len);
        shape.ends &= shape.chunk > 0;
        shape.start = shape.start.min(room.len - shape.chunk);
        let in_blocks =
            (tokens / room.block_size).saturating_sub((shape.start + shape.chunk).div_ceil(room.block_size));
        let each = in_blocks.checked_div(shape.decode).unwrap_or(0) * room.block_size;
        shape.context = shape.context.min(room.len).min(each);
        let sees_itself = shape.decode == 0 || shape.context > 0;
        let fits = shape.rows() > 0 && shape.blocks(room.block_size) * room.block_size <= tokens;
        if sees_itself && fits && !shapes.contains(&shape) {
            shapes.push(shape);
        }
    }
    shapes
}

/// Measures steps of `forward`: those of which `known` has no sample that counts. `progress` is called with the number done
/// and the total.
///
/// Cost: at most about [`HARD_LIMIT`], and much less for a small model. Call it on the thread that computes. `None` if
/// there is too little cache to measure anything, or the device is lost, which the first request finds.
pub fn measure(
    forward: &mut dyn Forward,
    room: &StepLimits,
    sampling: &Sampling,
    known: &StepSamples,
    progress: &mut dyn FnMut(usize, usize),
) -> Option<StepSamples> {
    let shapes = shapes(room, room.tokens(forward.kv_bytes_per_token()));
    let vocab = forward.config().vocab_size;
    let mut stand = Stand {
        forward,
        room,
        sampling,
        sampler: Sampler::new(vocab),
        vocab,
        batch: Batch::default(),
        logit_row: vec![0.0; vocab],
    };
    stand.fill(shapes.iter().map(|shape| shape.blocks(room.block_size)).max()?).ok()?;
    // Behind it: on a busy machine memory may take longer to come than all the steps.
    let started = Instant::now();
    let mut samples: Vec<Sample> = Vec::new();
    for (done, shape) in shapes.iter().enumerate() {
        progress(done, shapes.len());
        let is_in_time = || is_in_time(shape, &samples, started.elapsed());
        match known.counted(shape) {
            Some(sample) => samples.push(sample),
            None if is_in_time() => samples.push(stand.sample(shape, started).ok()?),
            None => {}
        }
    }
    Some(StepSamples::new(samples))
}

/// Whether a shape is measured that long after the start. The first one always: without it nothing is predicted.
fn is_in_time(shape: &Shape, measured: &[Sample], spent: Duration) -> bool {
    measured.is_empty() || spent + estimate(shape, measured) <= HARD_LIMIT
}

/// Whether a shape is to be timed once more, of which these steps are known, the first of them a warm-up. `spent`: on
/// this shape. `in_all`: on all of them.
fn wants_more(steps: &[Interval], spent: Duration, in_all: Duration) -> bool {
    let [first, rest @ ..] = steps else { return true };
    let undisturbed = |steps: &[Interval]| steps.iter().filter(|step| !step.is_disturbed()).count();
    if first.wall >= REPEAT_FOR {
        // One is enough, if it is a good one.
        return undisturbed(steps) == 0 && steps.len() < LEAST_REPEATS && in_all + first.wall < SOFT_LIMIT;
    }
    let (most, patience) = if undisturbed(rest) < LEAST_REPEATS { (2 * MOST_REPEATS, 2) } else { (MOST_REPEATS, 1) };
    rest.len() < most && (rest.len() < LEAST_REPEATS || spent < REPEAT_FOR * patience) && in_all < SOFT_LIMIT
}

/// What a step takes, by these: the median of those that nothing disturbed, or the quickest quarter of disturbed ones.
fn settled(steps: &[Interval]) -> Interval {
    let mut steps = steps.to_vec();
    if steps.len() > 1 && steps[0].wall < REPEAT_FOR {
        steps.remove(0); // the warm-up
    }
    steps.sort_unstable_by_key(|step| step.wall);
    let good: Vec<Interval> = steps.iter().filter(|step| !step.is_disturbed()).copied().collect();
    good.get(good.len() / 2).copied().unwrap_or(steps[steps.len() / 4])
}

/// A time that the step does not exceed, by those measured: that of the next one with at least its rows, or the largest
/// one's in proportion.
fn estimate(shape: &Shape, measured: &[Sample]) -> Duration {
    let larger = measured.iter().filter(|other| other.shape.rows() >= shape.rows()).map(Sample::wall).min();
    let largest = measured.iter().max_by_key(|other| other.shape.rows());
    let in_proportion = |other: &Sample| other.wall().mul_f64(shape.rows() as f64 / other.shape.rows() as f64);
    larger.or(largest.map(in_proportion)).unwrap_or_default()
}

/// Where steps are measured.
struct Stand<'a> {
    forward: &'a mut dyn Forward,
    room: &'a StepLimits,
    sampling: &'a Sampling,
    sampler: Sampler,
    vocab: usize,
    batch: Batch,
    logit_row: Vec<f32>,
}

impl Stand<'_> {
    /// Writes the first `blocks` blocks, so that they are memory and not a promise of it.
    fn fill(&mut self, blocks: usize) -> Result<(), DeviceError> {
        let len = self.room.block_size.min(self.room.rows).min(self.room.len);
        self.batch.clear();
        self.rows(0, 0, len);
        let ticket = self.forward.launch(&self.batch)?;
        self.forward.wait(ticket)?;
        let copies: Vec<_> = (1..blocks as u32).map(|block| (0, block)).collect();
        self.forward.copy_blocks(&copies);
        Ok(())
    }

    /// A step of this shape, of some if there is time for more than one.
    fn sample(&mut self, shape: &Shape, started: Instant) -> Result<Sample, DeviceError> {
        let begun = Instant::now();
        let mut steps = Vec::with_capacity(2 * MOST_REPEATS + 1);
        while wants_more(&steps, begun.elapsed(), started.elapsed()) {
            steps.push(self.step(shape)?);
        }
        Ok(Sample::new(*shape, settled(&steps)))
    }

    /// One step, as the engine does it between plan and completion.
    fn step(&mut self, shape: &Shape) -> Result<Interval, DeviceError> {
        let mark = Mark::now();
        self.forward.lost(); // time lost before belongs to no step
        let started = Instant::now();
        self.lower(shape);
        let ticket = self.forward.launch(&self.batch)?;
        let logits = self.forward.wait(ticket)?;
        for row in 0..logits.rows() {
            let key = SampleKey { seed: 0, stream: row as u32, position: shape.context as u64 };
            // A model with NaN logits fails its first request.
            if self.forward.read_best(&logits, row, self.sampler.best_mut())? {
                let _ = self.sampler.sample_best(self.sampling, key);
                continue;
            }
            self.forward.read_logits(&logits, row, &mut self.logit_row)?;
            let _ =
                self.sampler.sample(&mut self.logit_row, self.sampling, &History::default(), Allowed::default(), key);
        }
        let wall = started.elapsed();
        // The thread that waits for the others does not lose what they lose.
        let lost = self.forward.lost().map_or(Duration::ZERO, |lost| lost.most).max(mark.interval().lost());
        Ok(Interval { wall, cpu: wall.saturating_sub(lost), switches: 0 })
    }

    fn lower(&mut self, shape: &Shape) {
        self.batch.clear();
        let each = shape.context.div_ceil(self.room.block_size);
        for seq in 0..shape.decode {
            self.rows(seq * each, shape.context - 1, 1);
            self.batch.logit_rows.push(seq as u32);
        }
        if shape.chunk > 0 {
            self.rows(shape.decode * each, shape.start, shape.chunk);
        }
        if shape.ends {
            self.batch.logit_rows.push(shape.rows() as u32 - 1);
        }
        self.batch.best.resize(self.batch.logit_rows.len(), self.sampling.decided_by());
    }

    /// Adds rows of a sequence with consecutive blocks from `first_block`. Speed does not depend on the
    /// tokens, so they are a fixed scramble of the position.
    fn rows(&mut self, first_block: usize, start: usize, len: usize) {
        let (batch, block_size) = (&mut self.batch, self.room.block_size);
        let (first_row, table) = (batch.token_ids.len() as u32, batch.block_tables.len() as u32);
        for position in start..start + len {
            let scrambled = (position as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
            batch.token_ids.push((scrambled % self.vocab as u64) as u32);
            batch.positions.push(position as u32);
            batch.slots.push((first_block * block_size + position) as u32);
        }
        let blocks = (start + len).div_ceil(block_size);
        batch.block_tables.extend((first_block..first_block + blocks).map(|block| block as u32));
        let table = table..table + blocks as u32;
        batch.spans.push(Span {
            first_row,
            num_rows: len as u32,
            start: start as u32,
            table,
            adapter: None,
            state: None,
            saves: 0..0,
        });
        // What is in the states costs nothing, so each sequence has a slot to read and one to write.
        let sequence = batch.spans.len() as u32 - 1;
        batch.carry_states(2 * sequence, 2 * sequence + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step may have room for answers alone.
    #[test]
    fn no_prompt_ends_where_there_is_none() {
        for rows in 1..=16 {
            let room = StepLimits { rows, seqs: rows, len: 2048, blocks: 2048, block_size: 32 };
            let shapes = shapes(&room, 1 << 16);
            assert!(shapes.iter().all(|shape| shape.chunk > 0 || !shape.ends), "{rows}: {shapes:?}");
        }
    }

    /// The limit may be over when the first one begins: the system gave the thread no core.
    #[test]
    fn the_first_shape_is_always_measured() {
        let (first, next) = (Shape { decode: 1, context: SHORT, ..Shape::default() }, Duration::from_secs(1));
        let sample = Sample::new(first, Interval { wall: next, cpu: next, switches: 0 });
        let table =
            [(&[][..], HARD_LIMIT * 2, true), (&[sample], HARD_LIMIT - next, true), (&[sample], HARD_LIMIT, false)];
        for (measured, spent, wanted) in table {
            assert_eq!(is_in_time(&first, measured, spent), wanted, "{measured:?} {spent:?}");
        }
    }
}
