//! `twostroke bench`: the forward pass alone, without scheduler and sampler, in the shapes of both phases.
//!
//! ```text
//! pp512            one sequence reads 512 tokens in chunks of -b rows, logits of the last          (prefill)
//! tg128            one sequence takes 128 steps of one row, logits each                            (decode)
//! tg128 x8         eight sequences take 128 steps of eight rows; tokens of all are counted
//! ... @ d1024      with 1,024 tokens of each sequence already in the cache
//! ```
//! The machine's limits are measured right before and right after each test, and the higher value counts: a virtual
//! machine changes its speed as its neighbours come and go, and a share of a limit measured at another time says
//! nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use checkpoint::{Checkpoint, LoadError};
use kernels::limits::Limits;
use kernels::{Arithmetic, Cpu, CpuOptions, DeviceInfo, Isa, KvDtype, Reference, WeightClass, threads};
use launch::machine;
use model::{Adapter, AdapterRoom, Batch, Forward, KvBudget, LoadOptions, ModelConfig, Runner, Span};
use roofline::PassWork;
use serde_json::{Value, json};

use crate::commands::{cost_model, guesses, loras};
use crate::console::{Progress, note, put, put_line};
use crate::failure::Failure;
use crate::figures::{self, Bound, Demands, LimitShares, Peaks, bandwidth, operations};
use crate::flags::{BenchFlags, ModelFlags, Output};
use crate::{environment, models};

/// Tokens per cache block: the server's default.
const BLOCK_SIZE: usize = 32;

/// Runs the command.
pub(crate) fn bench(flags: &BenchFlags) -> Result<(), Failure> {
    if flags.cost_model {
        return cost_model::cost_model(flags);
    }
    if let Some(acceptance) = flags.synthetic_acceptance {
        return guesses::guesses(flags, acceptance);
    }
    if let Some(adapters) = flags.synthetic_loras {
        return loras::loras(flags, adapters);
    }
    let checkpoint = models::open(flags.model.model.as_deref())?;
    let config = ModelConfig::load(&checkpoint).map_err(|error| models::load_failure(&checkpoint, &error))?;
    let tests = tests(flags, &config)?;
    let output = if flags.json { Output::Json } else { flags.output };
    let mut subject = Subject::load(&checkpoint, &flags.model, flags.isa, &tests)?;
    let mut printer = Printer::new(output)?;
    for test in &tests {
        let before = subject.limits()?;
        let samples = subject.run(test, flags.repetitions, &AtomicBool::new(false));
        let limits = figures::higher(&before, &subject.limits()?);
        printer.row(&Row { test: *test, samples, limits, subject: &subject })?;
    }
    printer.end()
}

/// One line of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Test {
    pub(super) n_prompt: usize,
    pub(super) n_gen: usize,
    pub(super) n_depth: usize,
    pub(super) n_batch: usize,
    pub(super) parallel: usize,
}

impl Test {
    /// Tokens of the longest sequence.
    pub(super) fn length(&self) -> usize {
        self.n_depth + self.n_prompt.max(self.n_gen)
    }

    fn name(&self) -> String {
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
    pub(super) fn tokens(&self) -> usize {
        self.n_prompt + self.n_gen * self.parallel
    }
}

/// Every combination, prefill first.
fn tests(flags: &BenchFlags, config: &ModelConfig) -> Result<Vec<Test>, Failure> {
    let mut tests = Vec::new();
    let mut add = |test: Test| {
        // The shape of a decode step does not depend on the rows of a prefill step, nor the other way round.
        if !tests.contains(&test) {
            tests.push(test);
        }
    };
    for &n_depth in &flags.n_depth {
        for &n_prompt in flags.n_prompt.iter().filter(|&&n| n > 0) {
            for &n_batch in &flags.batch_size {
                add(Test { n_prompt, n_gen: 0, n_depth, n_batch, parallel: 1 });
            }
        }
        let n_batch = flags.batch_size[0];
        for &n_gen in flags.n_gen.iter().filter(|&&n| n > 0) {
            for &parallel in &flags.parallel {
                add(Test { n_prompt: 0, n_gen, n_depth, n_batch, parallel });
            }
        }
    }
    if tests.is_empty() {
        return Err(Failure::usage("nothing to measure: -p and -n are both 0"));
    }
    let limit = config.context_limit;
    if let Some(test) = tests.iter().find(|test| test.length() > limit) {
        let (name, length) = (test.name(), test.length());
        return Err(Failure::usage(format!("{name} needs {length} tokens; this model reads at most {limit}")));
    }
    Ok(tests)
}

/// The runner, once a person was told what there is to know about its load.
fn noted<B: kernels::Backend>(runner: Runner<B>) -> Runner<B> {
    runner.notices().iter().for_each(|notice| note(&format!("note: {notice}")));
    runner
}

/// A loaded model, and what is known about it.
pub(super) struct Subject {
    forward: Box<dyn Forward>,
    pub(super) device: DeviceInfo,
    pub(super) arithmetic: Arithmetic,
    kv_dtype: KvDtype,
    demands: Demands,
    filename: String,
}

impl Subject {
    /// Loads the model with room for all `tests`. `isa`: one below the best.
    pub(super) fn load(
        checkpoint: &Checkpoint,
        flags: &ModelFlags,
        isa: Option<Isa>,
        tests: &[Test],
    ) -> Result<Subject, Failure> {
        Subject::load_with(checkpoint, flags, isa, tests, AdapterRoom::default())
    }

    /// The same with room for adapters.
    pub(super) fn load_with(
        checkpoint: &Checkpoint,
        flags: &ModelFlags,
        isa: Option<Isa>,
        tests: &[Test],
        adapters: AdapterRoom,
    ) -> Result<Subject, Failure> {
        let most = |f: fn(&Test) -> usize| tests.iter().map(f).max().expect("there is a test");
        let parallel = most(|test| test.parallel);
        let chosen = models::weights(flags, checkpoint)?;
        let options = LoadOptions {
            weights: chosen.class,
            as_stored: chosen.as_stored,
            max_rows: most(|test| test.n_batch).max(parallel),
            max_logit_rows: parallel,
            max_model_len: Some(most(Test::length)),
            kv_blocks: KvBudget::Blocks(most(|test| test.parallel * test.length().div_ceil(BLOCK_SIZE))),
            block_size: BLOCK_SIZE,
            image_directory: models::packed_cache(flags),
            kv_dtype: flags.kv_dtype.dtype(),
            adapters,
        };
        let bar = Progress::new("loading");
        let mut progress = |p: model::Progress| bar.at(p.bytes_done, p.bytes_total);
        let isa = isa.unwrap_or_else(Isa::best);
        let arithmetic = flags.arithmetic.arithmetic().unwrap_or_else(Arithmetic::best);
        let threads = flags.threads.unwrap_or_else(threads::default_threads);
        let forward: Box<dyn Forward> = if isa == Isa::Scalar {
            let loaded = model::load(Reference::of(arithmetic), checkpoint, &options, &mut progress);
            Box::new(noted(loaded.map_err(|error| models::load_failure(checkpoint, &error))?))
        } else {
            let (threads, isa, arithmetic) = (Some(threads), Some(isa), Some(arithmetic));
            let cpu = CpuOptions { threads, isa, arithmetic, nodes: flags.nodes() };
            let cpu = Cpu::new(cpu).map_err(Failure::usage)?;
            let loaded = model::load(cpu, checkpoint, &options, &mut progress);
            Box::new(noted(loaded.map_err(|error| models::load_failure(checkpoint, &error))?))
        };
        let demands = Demands {
            shape: forward.config().shape(),
            weights: options.weights,
            weight_bytes: forward.weight_bytes(),
            expert_bytes: forward.expert_bytes(),
            kv_bytes_per_token: forward.kv_bytes_per_token(),
            kv_dtype: options.kv_dtype,
        };
        let filename = checkpoint.location();
        let kv_dtype = options.kv_dtype;
        Ok(Subject { device: forward.device(), forward, arithmetic, kv_dtype, demands, filename })
    }

    /// What the machine can do at most, measured now.
    pub(super) fn limits(&self) -> Result<Limits, Failure> {
        figures::measured(self.forward.limits(figures::MEASURE_SECONDS))
    }

    /// Seconds of each repetition, fewer if `stop` says so. A thread of its own computes, because the one that computes
    /// is pinned to a core.
    pub(super) fn run(&mut self, test: &Test, repetitions: usize, stop: &AtomicBool) -> Vec<f64> {
        self.run_through(test, 0, repetitions, stop)
    }

    /// Puts an adapter into a slot.
    pub(super) fn set_adapter(&mut self, slot: usize, adapter: &Adapter) -> Result<(), LoadError> {
        self.forward.set_adapter(slot, Some(adapter))
    }

    /// The same through so many adapters, by sequence in turns; 0: none.
    pub(super) fn run_through(
        &mut self,
        test: &Test,
        adapters: usize,
        repetitions: usize,
        stop: &AtomicBool,
    ) -> Vec<f64> {
        let vocab_size = self.demands.shape.vocab;
        let forward = &mut self.forward;
        let work = || {
            forward.adopt_thread();
            let batch = Batch::default();
            let mut passes = Passes { stop, forward: &mut **forward, vocab_size, test, adapters, batch };
            passes.fill();
            passes.once(); // warms up caches, pages and threads
            let timed = |_| {
                let start = Instant::now();
                passes.once();
                // One that was cut off says nothing.
                (!stop.load(Ordering::Relaxed)).then(|| start.elapsed().as_secs_f64())
            };
            (0..repetitions).map_while(timed).collect()
        };
        std::thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// What one repetition asks of the machine.
    pub(super) fn work(&self, test: &Test) -> PassWork {
        if test.n_prompt > 0 {
            return self.demands.prefill(test.n_depth, test.n_prompt, test.n_batch);
        }
        let (steps, rows) = (test.n_gen, test.n_gen * test.parallel);
        // Step i of a sequence reads the depth, the i tokens before it, and itself.
        let context = rows as f64 * (test.n_depth as f64 + (steps as f64 + 1.0) / 2.0);
        self.demands.decode(steps, rows, context)
    }

    pub(super) fn demands(&self) -> &Demands {
        &self.demands
    }

    /// `qwen2 494 M bf16`, and `kv int8` if keys and values are not bf16.
    pub(super) fn model_type(&self) -> String {
        let kv = if self.kv_dtype == KvDtype::Bf16 { String::new() } else { format!(" kv {}", self.kv_dtype.name()) };
        format!("{} {} {}{kv}", self.forward.config().family, self.params(), self.demands.weights.name())
    }

    fn params(&self) -> String {
        match self.demands.shape.parameters() as f64 {
            n if n >= 1e9 => format!("{:.2} B", n / 1e9),
            n => format!("{:.2} M", n / 1e6),
        }
    }
}

/// Forward passes of one test.
struct Passes<'a> {
    stop: &'a AtomicBool,
    forward: &'a mut dyn Forward,
    vocab_size: usize,
    test: &'a Test,
    adapters: usize,
    batch: Batch,
}

impl Passes<'_> {
    /// Puts the first `n_depth` tokens of every sequence into the cache.
    fn fill(&mut self) {
        for sequence in 0..self.test.parallel {
            self.prefill(sequence, 0, self.test.n_depth, false);
        }
    }

    /// One repetition. It overwrites what the last one wrote behind the depth.
    fn once(&mut self) {
        self.prefill(0, self.test.n_depth, self.test.n_prompt, true);
        for step in 0..self.test.n_gen {
            self.batch.clear();
            for sequence in 0..self.test.parallel {
                self.rows(sequence, self.test.n_depth + step, 1);
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
            self.rows(sequence, at, chunk);
            at += chunk;
            if logits && at == end {
                self.batch.logit_rows.push(chunk as u32 - 1);
            }
            self.pass();
        }
    }

    /// The logits stay where they are computed: the sampler is not measured, and neither is its reading them.
    fn pass(&mut self) {
        if self.stop.load(Ordering::Relaxed) {
            return;
        }
        let ticket = self.forward.launch(&self.batch);
        self.forward.wait(ticket);
    }

    /// Adds rows of one sequence to the batch. Its blocks lie one after the other; speed does not depend on the tokens,
    /// so they are a fixed scramble of the position.
    fn rows(&mut self, sequence: usize, start: usize, len: usize) {
        let batch = &mut self.batch;
        let blocks = self.test.length().div_ceil(BLOCK_SIZE);
        let first_block = sequence * blocks;
        let table = batch.block_tables.len() as u32;
        let first_row = batch.token_ids.len() as u32;
        for position in start..start + len {
            let scrambled = (position as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
            batch.token_ids.push((scrambled % self.vocab_size as u64) as u32);
            batch.positions.push(position as u32);
            batch.slots.push((first_block * BLOCK_SIZE + position) as u32);
        }
        batch.block_tables.extend((first_block..first_block + blocks).map(|block| block as u32));
        let table = table..table + blocks as u32;
        let adapter = (self.adapters > 0).then(|| (sequence % self.adapters) as u32);
        batch.spans.push(Span { first_row, num_rows: len as u32, start: start as u32, table, adapter });
    }
}

/// A finished test.
struct Row<'a> {
    test: Test,
    samples: Vec<f64>,
    limits: Limits,
    subject: &'a Subject,
}

impl Row<'_> {
    fn rates(&self) -> Vec<f64> {
        self.samples.iter().map(|seconds| self.test.tokens() as f64 / seconds).collect()
    }

    /// The limits that hold for this model; what was reached is possible, whatever was measured.
    fn peaks(&self) -> Peaks {
        let least = self.samples.iter().copied().fold(f64::INFINITY, f64::min);
        Peaks::of(&self.limits, &self.subject.demands).raised_by(&self.subject.work(&self.test), least)
    }

    fn shares(&self) -> LimitShares {
        LimitShares::within(&self.subject.work(&self.test), mean(&self.samples), &self.peaks())
    }

    /// The limit that binds this shape: `26.1 GB/s`, or `3.75 TOP/s`.
    fn limit(&self) -> (f64, &'static str, String) {
        let weights = self.subject.demands.weights;
        match (self.shares().roofline(), weights) {
            (Bound::Compute, WeightClass::Int8 | WeightClass::Int4) => {
                let peak = self.peaks().matrix;
                (peak, "int8 op/s", operations(peak, "OP"))
            }
            (Bound::Compute, WeightClass::Bf16) => {
                let peak = self.peaks().matrix;
                (peak, "bf16 flop/s", operations(peak, "FLOP"))
            }
            _ => {
                let peak = self.peaks().bandwidth;
                (peak, "bytes/s", bandwidth(peak))
            }
        }
    }

    fn json(&self) -> Value {
        let (test, subject, shares) = (&self.test, self.subject, self.shares());
        let nanoseconds: Vec<f64> = self.samples.iter().map(|seconds| (seconds * 1e9).round()).collect();
        let (limit, limit_unit, _) = self.limit();
        json!({
            "build_version": env!("CARGO_PKG_VERSION"),
            "cpu_info": machine::cpu_name(),
            "backends": subject.device.kind,
            "isa": subject.device.kernels,
            "arithmetic": subject.arithmetic.name(),
            "model_filename": subject.filename,
            "model_type": subject.model_type(),
            "model_size": subject.demands.weight_bytes,
            "type_kv": subject.kv_dtype.name(),
            "model_n_params": subject.demands.shape.parameters(),
            "n_batch": test.n_batch,
            "n_threads": subject.device.threads,
            "n_prompt": test.n_prompt,
            "n_gen": test.n_gen,
            "n_depth": test.n_depth,
            "n_parallel": test.parallel,
            "test_time": environment::utc(environment::now()),
            "avg_ns": mean(&nanoseconds).round(),
            "stddev_ns": deviation(&nanoseconds).round(),
            "avg_ts": mean(&self.rates()),
            "stddev_ts": deviation(&self.rates()),
            "samples_ns": nanoseconds,
            "samples_ts": self.rates(),
            "limit": limit,
            "limit_unit": limit_unit,
            "limit_percent": shares.of_limit() * 100.0,
            "compute_percent": shares.compute * 100.0,
            "memory_percent": shares.memory * 100.0,
            "bound_by": shares.bound().to_string(),
            "limits": figures::limits_json(&self.limits),
        })
    }

    fn markdown(&self) -> String {
        let (subject, test) = (self.subject, &self.test);
        let rates = self.rates();
        let (_, _, limit) = self.limit();
        let mut name = test.name();
        if test.n_prompt > test.n_batch {
            name.push_str(&format!(" b{}", test.n_batch));
        }
        format!(
            "| {} | {} | {} | {} {}, {} | {} | {name} | {:.2} ± {:.2} | {limit} | {:.1} %{} |",
            subject.model_type(),
            figures::bytes(subject.demands.weight_bytes as u64),
            subject.params(),
            subject.device.kind,
            subject.device.kernels,
            subject.arithmetic.name(),
            subject.device.threads,
            mean(&rates),
            deviation(&rates),
            self.shares().of_limit() * 100.0,
            if self.limits.doubt().is_some() { " (not sure)" } else { "" },
        )
    }
}

const MARKDOWN_HEADER: &str = "\
| model | size | params | backend | threads | test | t/s | limit | % of limit |
| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: |";

/// Writes rows as they come.
struct Printer {
    output: Output,
    rows: usize,
}

impl Printer {
    fn new(output: Output) -> Result<Printer, Failure> {
        match output {
            Output::Md => put_line(MARKDOWN_HEADER)?,
            Output::Json => put("[")?,
            Output::Jsonl | Output::Csv => {}
        }
        Ok(Printer { output, rows: 0 })
    }

    fn row(&mut self, row: &Row<'_>) -> Result<(), Failure> {
        let first = self.rows == 0;
        self.rows += 1;
        match self.output {
            Output::Md => put_line(&row.markdown()),
            Output::Jsonl => put_line(&row.json().to_string()),
            Output::Json => put(&format!("{}\n  {}", if first { "" } else { "," }, row.json())),
            Output::Csv => {
                let object = row.json();
                let fields = flat(&object);
                if first {
                    put_line(&fields.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(","))?;
                }
                put_line(&fields.into_iter().map(|(_, value)| csv_field(value)).collect::<Vec<_>>().join(","))
            }
        }
    }

    fn end(&self) -> Result<(), Failure> {
        if self.output == Output::Json { put_line("\n]") } else { Ok(()) }
    }
}

/// The fields of a row that are one value: lists and objects have no place in a table.
fn flat(object: &Value) -> Vec<(&str, &Value)> {
    let fields = object.as_object().into_iter().flatten();
    fields
        .filter(|(_, value)| !value.is_array() && !value.is_object())
        .map(|(name, value)| (name.as_str(), value))
        .collect()
}

/// Quoted as RFC 4180 says, texts only.
fn csv_field(value: &Value) -> String {
    match value {
        Value::String(text) => format!("\"{}\"", text.replace('"', "\"\"")),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Of a sample; 0 for a single value, as llama-bench has it.
fn deviation(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let mean = mean(values);
    (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (values.len() - 1) as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_llama_benchs() {
        let test = Test { n_prompt: 512, n_gen: 0, n_depth: 0, n_batch: 512, parallel: 1 };
        assert_eq!(test.name(), "pp512");
        assert_eq!(Test { n_prompt: 0, n_gen: 128, n_depth: 1024, parallel: 8, ..test }.name(), "tg128 x8 @ d1024");
    }

    #[test]
    fn the_spread_is_that_of_a_sample() {
        assert_eq!((mean(&[1.0, 3.0]), deviation(&[7.0])), (2.0, 0.0));
        assert!((deviation(&[1.0, 2.0, 3.0]) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn texts_of_csv_are_quoted() {
        assert_eq!(csv_field(&json!("a \"b\", c")), "\"a \"\"b\"\", c\"");
        assert_eq!(csv_field(&json!(1.5)), "1.5");
    }
}
