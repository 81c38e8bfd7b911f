//! The forward pass alone, without scheduler and sampler, in the shapes of both phases.
//!
//! ```text
//! pp512            one sequence reads 512 tokens in chunks of -b rows, logits of the last          (prefill)
//! tg128            one sequence takes 128 steps of one row, logits each                            (decode)
//! tg128 x8         eight sequences take 128 steps of eight rows; tokens of all are counted
//! ... @ d1024      with 1,024 tokens of each sequence already in the cache
//! ```

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use kernels::limits::Limits;
use kernels::{AccumulationOrder, Cpu, CpuOptions, DeviceInfo, Isa, KvDtype, Reference};
use model::{AdapterRoom, Batch, Forward, KvBudget, LoadOptions, Runner, Span};
use roofline::{Demands, PassWork};

use crate::limits::LIMITS_SECONDS;
use crate::setup::{BenchError, BenchProgress, BenchSetup};
use crate::timing::{Timing, apart};

/// Tokens per cache block: the server's default.
pub(crate) const BLOCK_SIZE: usize = 32;

/// What one repetition does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardTest {
    /// Tokens of a prompt; 0: it decodes.
    pub(crate) n_prompt: usize,
    pub(crate) n_gen: usize,
    /// Tokens of each sequence that are in the cache before.
    pub(crate) n_depth: usize,
    /// Rows of a pass over a prompt.
    pub(crate) n_batch: usize,
    /// Sequences that decode together.
    pub(crate) parallel: usize,
}

impl ForwardTest {
    /// Tokens of the longest sequence.
    pub(crate) fn length(&self) -> usize {
        self.n_depth + self.n_prompt.max(self.n_gen)
    }

    /// As llama-bench has it.
    pub(crate) fn name(&self) -> String {
        let mut name = if self.n_prompt > 0 { format!("pp{}", self.n_prompt) } else { format!("tg{}", self.n_gen) };
        if self.parallel > 1 {
            name.push_str(&format!(" x{}", self.parallel));
        }
        if self.n_depth > 0 {
            name.push_str(&format!(" @ d{}", self.n_depth));
        }
        name
    }

    /// Tokens that one repetition counts.
    pub(crate) fn tokens(&self) -> usize {
        self.n_prompt + self.n_gen * self.parallel
    }
}

/// What a model needs room for.
#[derive(Clone, Copy)]
pub(crate) struct PassRoom {
    /// Rows of a pass, and those with logits.
    pub(crate) rows: usize,
    pub(crate) logit_rows: usize,
    /// Tokens of the longest sequence.
    pub(crate) length: usize,
    /// Blocks of all sequences.
    pub(crate) blocks: usize,
}

impl PassRoom {
    /// For each of these.
    pub(crate) fn of(tests: &[ForwardTest]) -> PassRoom {
        let most = |f: fn(&ForwardTest) -> usize| tests.iter().map(f).max().unwrap_or(1);
        let logit_rows = most(|test| test.parallel);
        PassRoom {
            rows: most(|test| test.n_batch).max(logit_rows),
            logit_rows,
            length: most(ForwardTest::length),
            blocks: most(|test| test.parallel * blocks(test.length())),
        }
    }
}

/// Blocks of a sequence.
pub(crate) fn blocks(length: usize) -> usize {
    length.div_ceil(BLOCK_SIZE)
}

/// A loaded model, and what is known about it.
pub struct LoadedModel {
    pub(crate) forward: Box<dyn Forward>,
    pub(crate) device: DeviceInfo,
    /// Order of sums of 16-bit products.
    pub(crate) arithmetic: AccumulationOrder,
    /// What its passes ask of the machine.
    pub(crate) demands: Demands,
}

impl LoadedModel {
    /// Loads the model with room for all `tests`.
    pub fn load(setup: &BenchSetup<'_>, tests: &[ForwardTest]) -> Result<LoadedModel, BenchError> {
        LoadedModel::with_room(setup, PassRoom::of(tests), AdapterRoom::default())
    }

    /// The same with room for what is said.
    pub(crate) fn with_room(
        setup: &BenchSetup<'_>,
        room: PassRoom,
        adapters: AdapterRoom,
    ) -> Result<LoadedModel, BenchError> {
        let options = LoadOptions {
            weights: setup.chosen.class,
            as_stored: setup.chosen.as_stored,
            max_rows: room.rows,
            max_logit_rows: room.logit_rows,
            max_model_len: Some(room.length),
            kv_blocks: KvBudget::Blocks(room.blocks),
            block_size: BLOCK_SIZE,
            image_directory: setup.model.cache.clone(),
            kv_dtype: setup.model.kv_dtype,
            adapters,
            expert_memory: setup.model.expert_memory.map(engine::expert_memory),
            state_slots: 2 * (room.logit_rows + 1),
        };
        let mut progress = |p: model::Progress| (setup.progress)(BenchProgress::Loading(p.bytes_done, p.bytes_total));
        let arithmetic = setup.model.arithmetic.unwrap_or_else(AccumulationOrder::best);
        let cpu = CpuOptions {
            threads: setup.model.threads,
            isa: setup.isa,
            arithmetic: setup.model.arithmetic,
            nodes: setup.model.nodes,
        };
        let gpu = setup.model.device.open(cpu).map_err(|error| BenchError::Usage(error.to_string()))?;
        let forward: Box<dyn Forward> = if let Some(gpu) = gpu {
            Box::new(noted(setup, model::load(gpu, setup.checkpoint, &options, &mut progress)?))
        } else if setup.isa == Some(Isa::Scalar) {
            let loaded = model::load(Reference::of(arithmetic), setup.checkpoint, &options, &mut progress)?;
            Box::new(noted(setup, loaded))
        } else {
            let loaded: Runner<Cpu> = model::load(setup.cpu()?, setup.checkpoint, &options, &mut progress)?;
            Box::new(noted(setup, loaded))
        };
        let demands = Demands {
            shape: forward.config().shape(),
            weights: options.weights,
            weight_bytes: forward.weight_bytes(),
            expert_bytes: forward.expert_bytes(),
            kv_bytes_per_token: forward.kv_bytes_per_token(),
            kv_dtype: options.kv_dtype,
        };
        Ok(LoadedModel { device: forward.device(), forward, arithmetic, demands })
    }

    /// What the machine can do at most, measured now.
    pub(crate) fn limits(&self) -> Result<Limits, BenchError> {
        Ok(self.forward.limits(LIMITS_SECONDS)?)
    }

    /// Seconds of each repetition, fewer if it was stopped.
    pub(crate) fn run(&mut self, test: &ForwardTest, timing: &Timing<'_>) -> Vec<f64> {
        let [samples] = self.run_through(test, [0], timing);
        samples
    }

    /// The same through `adapters` adapters, by sequence in turns; 0: none.
    pub(crate) fn run_through<const WAYS: usize>(
        &mut self,
        test: &ForwardTest,
        adapters: [usize; WAYS],
        timing: &Timing<'_>,
    ) -> [Vec<f64>; WAYS] {
        apart(|| {
            let mut passes = Passes::new(self, test, timing.stop);
            timing.in_turns(|way| {
                passes.adapters = adapters[way];
                passes.once();
            })
        })
    }

    /// The logits stay where they are computed: the sampler is not measured, and neither is its reading them.
    pub(crate) fn pass(&mut self, batch: &Batch) {
        let done = self.forward.launch(batch).and_then(|ticket| self.forward.wait(ticket));
        done.expect("a device that is there");
    }

    /// What one repetition asks of the machine.
    pub(crate) fn work(&self, test: &ForwardTest) -> PassWork {
        if test.n_prompt > 0 {
            return self.demands.prefill(test.n_depth, test.n_prompt, test.n_batch);
        }
        let (steps, rows) = (test.n_gen, test.n_gen * test.parallel);
        // Step i of a sequence reads the depth, the i tokens before it, and itself.
        let context = rows as f64 * (test.n_depth as f64 + (steps as f64 + 1.0) / 2.0);
        self.demands.decode(steps, rows, context)
    }

    /// `qwen2 494 M bf16`, and `kv int8` if keys and values are not bf16.
    pub(crate) fn model_type(&self) -> String {
        let kv_dtype = self.demands.kv_dtype;
        let kv = if kv_dtype == KvDtype::Bf16 { String::new() } else { format!(" kv {}", kv_dtype.name()) };
        format!("{} {} {}{kv}", self.forward.config().family, self.params(), self.demands.weights.name())
    }

    pub(crate) fn params(&self) -> String {
        match self.demands.shape.parameters() as f64 {
            n if n >= 1e9 => format!("{:.2} B", n / 1e9),
            n => format!("{:.2} M", n / 1e6),
        }
    }
}

/// Reports the notices of the runner's load.
fn noted<B: kernels::Backend>(setup: &BenchSetup<'_>, runner: Runner<B>) -> Runner<B> {
    (setup.progress)(BenchProgress::Over);
    runner.notices().iter().for_each(|notice| (setup.note)(&format!("note: {notice}")));
    runner
}

/// Forward passes of one test, on the thread that made them.
pub(crate) struct Passes<'a> {
    stop: &'a AtomicBool,
    model: &'a mut LoadedModel,
    test: &'a ForwardTest,
    adapters: usize,
    batch: Batch,
}

impl<'a> Passes<'a> {
    /// With the first `n_depth` tokens of every sequence in the cache.
    pub(crate) fn new(model: &'a mut LoadedModel, test: &'a ForwardTest, stop: &'a AtomicBool) -> Passes<'a> {
        model.forward.set_compute_thread();
        let mut passes = Passes { stop, model, test, adapters: 0, batch: Batch::default() };
        (0..test.parallel).for_each(|sequence| passes.prefill(sequence, 0, test.n_depth, false));
        passes
    }

    /// One repetition. It overwrites what the last one wrote behind the depth.
    pub(crate) fn once(&mut self) {
        self.prefill(0, self.test.n_depth, self.test.n_prompt, true);
        for step in 0..self.test.n_gen {
            self.batch.clear();
            for sequence in 0..self.test.parallel {
                let at = self.test.n_depth + step;
                self.rows(sequence, at..at + 1);
                self.batch.logit_rows.push(sequence as u32);
            }
            self.pass();
        }
    }

    /// `len` tokens from `start` in chunks; logits of the last one if they are wanted.
    fn prefill(&mut self, sequence: usize, start: usize, len: usize, logits: bool) {
        let end = start + len;
        let mut at = start;
        while at < end {
            let chunk = self.test.n_batch.min(end - at);
            self.batch.clear();
            self.rows(sequence, at..at + chunk);
            at += chunk;
            if logits && at == end {
                self.batch.logit_rows.push(chunk as u32 - 1);
            }
            self.pass();
        }
    }

    fn pass(&mut self) {
        if !self.stop.load(Ordering::Relaxed) {
            self.model.pass(&self.batch);
        }
    }

    fn rows(&mut self, sequence: usize, positions: Range<usize>) {
        let adapter = (self.adapters > 0).then(|| (sequence % self.adapters) as u32);
        let vocab_size = self.model.demands.shape.vocab;
        let place = (sequence, blocks(self.test.length()));
        add_rows(&mut self.batch, vocab_size, place, positions, adapter);
    }
}

/// Adds rows of a sequence to the batch: `place` is its number, and the blocks that each sequence has, one after the
/// other. Speed does not depend on the tokens, so they are a fixed scramble of the position.
pub(crate) fn add_rows(
    batch: &mut Batch,
    vocab_size: usize,
    (sequence, blocks): (usize, usize),
    positions: Range<usize>,
    adapter: Option<u32>,
) {
    let first_block = sequence * blocks;
    let (table, first_row) = (batch.block_tables.len() as u32, batch.num_rows() as u32);
    for position in positions.clone() {
        let scrambled = (position as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        batch.token_ids.push((scrambled % vocab_size as u64) as u32);
        batch.positions.push(position as u32);
        batch.slots.push((first_block * BLOCK_SIZE + position) as u32);
    }
    batch.block_tables.extend((first_block..first_block + blocks).map(|block| block as u32));
    let (start, num_rows) = (positions.start as u32, positions.len() as u32);
    batch.spans.push(Span {
        first_row,
        num_rows,
        start,
        table: table..table + blocks as u32,
        adapter,
        state: None,
        saves: 0..0,
    });
    // Nor on what is in the states.
    batch.carry_states(2 * sequence as u32, 2 * sequence as u32 + 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_llama_benchs() {
        let test = ForwardTest { n_prompt: 512, n_gen: 0, n_depth: 0, n_batch: 512, parallel: 1 };
        assert_eq!(test.name(), "pp512");
        assert_eq!(
            ForwardTest { n_prompt: 0, n_gen: 128, n_depth: 1024, parallel: 8, ..test }.name(),
            "tg128 x8 @ d1024"
        );
    }
}
