//! What both phases cost beside what the machine allows: the one place where a rate becomes a share of a limit.
//!
//! ```text
//! compute time = matrix operations / peak of the weight class + attention operations / peak of the KV type
//! memory time  = (weights * passes + keys and values read) / read bandwidth
//! % of limit   = the longer of the two / measured time          bound by = which one that is
//! ```
//! This is the roofline (Williams et al., 2009) of the work itself: a long prompt is judged against the matrix peak, a
//! decode step against the bandwidth. Limits are measured on this machine, moments before or after the work.

use std::fmt;
use std::sync::Mutex;

use kernels::limits::Limits;
use kernels::threads::Pool;
use kernels::{Isa, KvDtype, WeightClass};
use model::ModelConfig;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::machine;

/// How long one measurement of the limits takes, in seconds.
const MEASURE_SECONDS: f64 = 0.4;

/// The limits of this machine with `threads` threads: measured once in the life of the process.
pub(crate) fn limits(threads: Option<usize>) -> Result<Limits, Failure> {
    static MEASURED: Mutex<Option<(usize, Limits)>> = Mutex::new(None);
    let threads = threads.unwrap_or_else(kernels::threads::default_threads);
    let mut measured = MEASURED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some((_, limits)) = measured.as_ref().filter(|(with, _)| *with == threads) {
        return Ok(*limits);
    }
    let limits = measure_now(threads, Isa::best())?;
    *measured = Some((threads, limits));
    Ok(limits)
}

/// A fresh measurement: a virtual machine's limits change while it runs.
pub(crate) fn measure_now(threads: usize, isa: Isa) -> Result<Limits, Failure> {
    let pool = Pool::new(threads).map_err(Failure::usage)?;
    Ok(kernels::limits::measure(&pool, isa, MEASURE_SECONDS))
}

/// Of two measurements on one machine the higher of each limit: whatever disturbs a measurement lowers it.
pub(crate) fn higher(a: &Limits, b: &Limits) -> Limits {
    Limits {
        read_bandwidth: a.read_bandwidth.max(b.read_bandwidth),
        int8_ops: a.int8_ops.max(b.int8_ops),
        bf16_flops: a.bf16_flops.max(b.bf16_flops),
        f32_flops: a.f32_flops.max(b.f32_flops),
        fastest_int8_ops: a.fastest_int8_ops.max(b.fastest_int8_ops),
        fastest_bf16_flops: a.fastest_bf16_flops.max(b.fastest_bf16_flops),
        ..*a
    }
}

/// The limits as JSON.
pub(crate) fn limits_json(limits: &Limits) -> Value {
    json!({
        "read_bandwidth_bytes_s": limits.read_bandwidth,
        "bf16_flop_s": limits.bf16_flops,
        "bf16_kind": limits.bf16_kind,
        "int8_op_s": limits.int8_ops,
        "int8_kind": limits.int8_kind,
        "f32_flop_s": limits.f32_flops,
        "fastest_bf16_flop_s": limits.fastest_bf16_flops,
        "fastest_bf16_kind": limits.fastest_bf16_kind,
        "fastest_int8_op_s": limits.fastest_int8_ops,
        "fastest_int8_kind": limits.fastest_int8_kind,
    })
}

/// What a model's passes ask of the machine.
#[derive(Clone, Debug)]
pub(crate) struct Demands {
    pub(crate) config: ModelConfig,
    pub(crate) weights: WeightClass,
    /// Bytes of weights, every expert counted.
    pub(crate) weight_bytes: usize,
    /// Those of experts.
    pub(crate) expert_bytes: usize,
    /// Bytes of keys and values of one token.
    pub(crate) kv_bytes_per_token: usize,
    /// How they are kept: int8 keys and values are multiplied as int8.
    pub(crate) kv_dtype: KvDtype,
}

/// Operations and bytes of some passes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Work {
    matrix_flops: f64,
    attention_flops: f64,
    kv_dtype: KvDtype,
    bytes: f64,
}

impl Demands {
    /// Prefill of `rows` tokens from position `start` in chunks of `chunk`; logits for the last row.
    pub(crate) fn prefill(&self, start: usize, rows: usize, chunk: usize) -> Work {
        let chunk = chunk.max(1);
        let chunks = rows.div_ceil(chunk);
        // Each row sees itself and everything before it, or as much of that as its layer's window holds.
        let seen = self.mean_over_layers(|window| {
            let growing = rows.min(window.saturating_sub(start)) as f64;
            let grown = rows as f64 - growing;
            growing * start as f64
                + growing * (growing + 1.0) / 2.0
                + if grown > 0.0 { grown * window as f64 } else { 0.0 }
        });
        // Each chunk fetches once what any of its rows sees.
        let fetched = self.mean_over_layers(|window| {
            let ends = (1..=chunks).map(|i| ((i - 1) * chunk, (i * chunk).min(rows)));
            ends.map(|(from, to)| (start + to).min((to - from - 1).saturating_add(window)) as f64).sum()
        });
        let rows_per_chunk = rows as f64 / chunks.max(1) as f64;
        Work {
            matrix_flops: rows as f64 * self.config.flops_per_token() as f64 + self.config.flops_per_logit_row() as f64,
            attention_flops: seen * self.config.attention_flops(1) as f64,
            kv_dtype: self.kv_dtype,
            bytes: chunks as f64 * self.bytes_of_pass(rows_per_chunk) + fetched * self.kv_bytes_per_token as f64,
        }
    }

    /// `steps` decode steps that carry `rows` rows in all, which have `context` cache positions before them in all.
    pub(crate) fn decode(&self, steps: usize, rows: usize, context: f64) -> Work {
        let per_row = self.config.flops_per_token() + self.config.flops_per_logit_row();
        let rows_per_step = rows as f64 / steps.max(1) as f64;
        // As if all rows had the mean context.
        let seen = self.mean_over_layers(|window| context.min(rows as f64 * window as f64));
        Work {
            matrix_flops: rows as f64 * per_row as f64,
            attention_flops: seen * self.config.attention_flops(1) as f64,
            kv_dtype: self.kv_dtype,
            bytes: steps as f64 * self.bytes_of_pass(rows_per_step) + seen * self.kv_bytes_per_token as f64,
        }
    }

    /// The mean of a number of tokens over the layers, by their window.
    fn mean_over_layers(&self, of: impl Fn(usize) -> f64) -> f64 {
        let layers = &self.config.layers;
        layers.iter().map(|layer| of(layer.window.unwrap_or(usize::MAX))).sum::<f64>() / layers.len() as f64
    }

    /// Bytes of weights that a pass over `rows` rows reads: of experts, those that rows go to on average.
    fn bytes_of_pass(&self, rows: f64) -> f64 {
        let share = self.config.experts.map_or(1.0, |experts| experts.share_read(rows));
        (self.weight_bytes - self.expert_bytes) as f64 + share * self.expert_bytes as f64
    }

    /// Weights of the model's matrices.
    pub(crate) fn parameters(&self) -> u64 {
        let embeddings = if self.config.tie_word_embeddings { 1 } else { 2 };
        self.config.layer_parameters() + embeddings * self.config.head_parameters()
    }

    /// Weights of a pass and the caches of `tokens` fit in the last-level cache, so that memory may not be read at all.
    pub(crate) fn fits_in_cache(&self, tokens: usize) -> bool {
        let bytes = self.weight_bytes + tokens * self.kv_bytes_per_token;
        machine::last_level_cache().is_some_and(|cache| bytes as u64 <= cache)
    }
}

/// What held a phase back most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    Memory,
    Compute,
    /// Far from both: time between the passes and within them that is neither arithmetic nor reading.
    Overhead,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Bound::Memory => "memory",
            Bound::Compute => "compute",
            Bound::Overhead => "overhead",
        })
    }
}

/// Work set against limits and a measured time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Shares {
    /// Of the matrix peak of the weight class.
    pub(crate) compute: f64,
    /// Of the read bandwidth.
    pub(crate) memory: f64,
}

impl Shares {
    /// Below this share of both limits a phase is bound by neither.
    const OVERHEAD: f64 = 0.1;

    pub(crate) fn of(work: &Work, seconds: f64, limits: &Limits, weights: WeightClass) -> Shares {
        let attention_peak = match work.kv_dtype {
            KvDtype::Bf16 => limits.bf16_flops,
            KvDtype::Int8 => limits.int8_ops,
        };
        let compute = work.matrix_flops / peak(limits, weights) + work.attention_flops / attention_peak;
        let memory = work.bytes / limits.read_bandwidth;
        Shares { compute: share(compute, seconds), memory: share(memory, seconds) }
    }

    /// Share of the limit that binds this work.
    pub(crate) fn of_limit(&self) -> f64 {
        self.compute.max(self.memory)
    }

    /// The roofline that this work is closer to.
    pub(crate) fn roofline(&self) -> Bound {
        if self.compute > self.memory { Bound::Compute } else { Bound::Memory }
    }

    pub(crate) fn bound(&self) -> Bound {
        if self.of_limit() < Shares::OVERHEAD { Bound::Overhead } else { self.roofline() }
    }
}

/// Matrix operations per second with weights of this class.
pub(crate) fn peak(limits: &Limits, weights: WeightClass) -> f64 {
    match weights {
        WeightClass::Bf16 => limits.bf16_flops,
        WeightClass::Int8 | WeightClass::Int4 => limits.int8_ops,
    }
}

fn share(ideal: f64, seconds: f64) -> f64 {
    if seconds > 0.0 { ideal / seconds } else { 0.0 }
}

/// One phase of one answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Phase {
    pub(crate) tokens: usize,
    pub(crate) seconds: f64,
    pub(crate) shares: Shares,
}

impl Phase {
    pub(crate) fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.tokens as f64 / self.seconds } else { 0.0 }
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "tokens": self.tokens,
            "ms": rounded(self.seconds * 1e3),
            "tok_s": rounded(self.rate()),
            "limit_percent": rounded(self.shares.of_limit() * 100.0),
            "compute_percent": rounded(self.shares.compute * 100.0),
            "memory_percent": rounded(self.shares.memory * 100.0),
            "bound_by": self.shares.bound().to_string(),
        })
    }
}

/// Both phases of an answer: the line under it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    pub(crate) prefill: Phase,
    pub(crate) decode: Phase,
    pub(crate) cached_tokens: usize,
    /// The weights may never have left the cache, so the bandwidth of memory was no limit.
    pub(crate) in_cache: bool,
}

impl Figures {
    /// What the phase that took longer was bound by.
    pub(crate) fn bound(&self) -> Bound {
        let longer = if self.prefill.seconds > self.decode.seconds { &self.prefill } else { &self.decode };
        longer.shares.bound()
    }

    fn share(&self, shares: &Shares) -> String {
        let cache = if self.in_cache && shares.of_limit() > 1.0 { ", read from cache" } else { "" };
        format!("{} of limit{cache}", percent(shares.of_limit()))
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Figures { prefill, decode, cached_tokens, .. } = self;
        write!(f, "prefill {} tok", prefill.tokens)?;
        if *cached_tokens > 0 {
            write!(f, " (+ {cached_tokens} cached)")?;
        }
        let (rate, share) = (rate(prefill.rate()), self.share(&prefill.shares));
        write!(f, " in {} ({rate}, {share})", duration(prefill.seconds))?;
        if decode.tokens > 0 {
            write!(f, " · decode {} ({})", self::rate(decode.rate()), self.share(&decode.shares))?;
        }
        write!(f, " · bound by {}", self.bound())
    }
}

/// To three decimals: what is behind them is noise.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// `61 %`.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// `41.3 tok/s`, `8.4k tok/s`.
pub(crate) fn rate(tokens_per_second: f64) -> String {
    match tokens_per_second {
        rate if rate < 99.95 => format!("{rate:.1} tok/s"),
        rate if rate < 999.5 => format!("{rate:.0} tok/s"),
        rate if rate < 99_950.0 => format!("{:.1}k tok/s", rate / 1e3),
        rate => format!("{:.0}k tok/s", rate / 1e3),
    }
}

/// `0.8 ms`, `96 ms`, `1.24 s`.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds * 1e3 {
        ms if ms < 9.95 => format!("{ms:.1} ms"),
        ms if ms < 999.5 => format!("{ms:.0} ms"),
        ms => format!("{:.2} s", ms / 1e3),
    }
}

/// `8.0 MiB`, `3.31 GiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    let bytes = bytes as f64;
    match bytes {
        b if b < 1024.0 => format!("{b} B"),
        b if b < 1024.0 * 1024.0 => format!("{:.0} KiB", b / 1024.0),
        b if b < 1024.0 * 1024.0 * 1024.0 => format!("{:.1} MiB", b / 1024.0 / 1024.0),
        b => format!("{:.2} GiB", b / 1024.0 / 1024.0 / 1024.0),
    }
}

/// `26.1 GB/s`.
pub(crate) fn bandwidth(bytes_per_second: f64) -> String {
    format!("{:.1} GB/s", bytes_per_second / 1e9)
}

/// `3.75 TOP/s`, `412 GFLOP/s`: operations per second with their name.
pub(crate) fn operations(per_second: f64, name: &str) -> String {
    if per_second >= 1e12 {
        format!("{:.2} T{name}/s", per_second / 1e12)
    } else {
        format!("{:.0} G{name}/s", per_second / 1e9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits {
            read_bandwidth: 20e9,
            int8_ops: 2e12,
            bf16_flops: 1e12,
            f32_flops: 1e11,
            int8_kind: "test",
            bf16_kind: "test",
            fastest_int8_ops: 2e12,
            fastest_int8_kind: "test",
            fastest_bf16_flops: 1e12,
            fastest_bf16_kind: "test",
        }
    }

    fn phase(tokens: usize, seconds: f64, compute: f64, memory: f64) -> Phase {
        Phase { tokens, seconds, shares: Shares { compute, memory } }
    }

    #[test]
    fn the_line_under_an_answer() {
        let figures = Figures {
            prefill: phase(812, 0.0963, 0.613, 0.08),
            decode: phase(413, 10.0, 0.02, 0.876),
            cached_tokens: 0,
            in_cache: false,
        };
        let line = "prefill 812 tok in 96 ms (8.4k tok/s, 61 % of limit) · decode 41.3 tok/s (88 % of limit) · bound by memory";
        assert_eq!(figures.to_string(), line);
        let one_token = Figures { decode: phase(0, 0.0, 0.0, 0.0), cached_tokens: 4096, ..figures };
        let line = "prefill 812 tok (+ 4096 cached) in 96 ms (8.4k tok/s, 61 % of limit) · bound by compute";
        assert_eq!(one_token.to_string(), line);
        let small = Figures { decode: phase(1000, 1.0, 0.2, 1.4), in_cache: true, ..figures };
        assert!(small.to_string().contains("decode 1.0k tok/s (140 % of limit, read from cache)"), "{small}");
    }

    #[test]
    fn a_pass_reads_the_experts_that_its_rows_go_to() {
        let config = r#"{"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2,
            "num_attention_heads": 2, "vocab_size": 100, "max_position_embeddings": 512, "num_local_experts": 8,
            "num_experts_per_tok": 2}"#;
        let config = ModelConfig::parse(config).expect("a good configuration");
        let (weights, weight_bytes, expert_bytes) = (WeightClass::Bf16, 1000, 800);
        let demands =
            Demands { config, weights, weight_bytes, expert_bytes, kv_bytes_per_token: 0, kv_dtype: KvDtype::Bf16 };
        // One row goes to 2 of 8; a second one meets them again with the same odds.
        assert_eq!(demands.decode(1, 1, 0.0).bytes, 200.0 + 0.25 * 800.0);
        assert_eq!(demands.decode(10, 20, 0.0).bytes, 10.0 * (200.0 + (1.0 - 0.75 * 0.75) * 800.0));
        let prefill = demands.prefill(0, 512, 256).bytes;
        assert!((1999.0..=2000.0).contains(&prefill), "two chunks that read everything: {prefill}");
        let dense =
            Demands { config: ModelConfig { experts: None, ..demands.config.clone() }, expert_bytes: 0, ..demands };
        assert_eq!(dense.decode(1, 1, 0.0).bytes, 1000.0);
    }

    #[test]
    fn attention_is_counted_as_far_as_a_layer_sees() {
        let demands = |window: &str| {
            let config = format!(
                r#"{{"model_type": "gemma2", "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 32,
                "num_attention_heads": 2, "vocab_size": 100, "max_position_embeddings": 512, "sliding_window": {window}}}"#
            );
            let config = ModelConfig::parse(&config).expect("a good configuration");
            Demands {
                config,
                weights: WeightClass::Bf16,
                weight_bytes: 0,
                expert_bytes: 0,
                kv_bytes_per_token: 1,
                kv_dtype: KvDtype::Bf16,
            }
        };
        let (all, windowed) = (demands("null"), demands("8"));
        let tokens = |work: Work| (work.attention_flops / all.config.attention_flops(1) as f64, work.bytes);
        // One layer of two sees 8 tokens. Four rows from position 20: 21 + 22 + 23 + 24, and 24 fetched once.
        assert_eq!(tokens(all.prefill(20, 4, 4)), (90.0, 24.0));
        assert_eq!(tokens(windowed.prefill(20, 4, 4)), ((90.0 + 4.0 * 8.0) / 2.0, (24.0 + 11.0) / 2.0));
        // From position 5 the window fills up: 6 + 7 + 8 + 8; in chunks of two, 7 and 9 are fetched, or 7 and 9.
        assert_eq!(tokens(all.prefill(5, 4, 2)), (30.0, 16.0));
        assert_eq!(tokens(windowed.prefill(5, 4, 2)), ((30.0 + 29.0) / 2.0, (16.0 + 16.0) / 2.0));
        assert_eq!(tokens(all.decode(3, 3, 60.0)), (60.0, 60.0));
        assert_eq!(tokens(windowed.decode(3, 3, 60.0)), ((60.0 + 24.0) / 2.0, (60.0 + 24.0) / 2.0));
        assert_eq!(tokens(windowed.decode(3, 3, 12.0)), (12.0, 12.0), "shorter than the window");
    }

    #[test]
    fn work_is_judged_by_the_limit_that_binds_it() {
        let work = Work { matrix_flops: 1e12, attention_flops: 1e12, kv_dtype: KvDtype::Bf16, bytes: 20e9 };
        let bf16 = Shares::of(&work, 4.0, &limits(), WeightClass::Bf16);
        assert_eq!((bf16.compute, bf16.memory, bf16.bound()), (0.5, 0.25, Bound::Compute));
        // int8 matrices run at their own peak, attention stays bf16.
        let int8 = Shares::of(&work, 4.0, &limits(), WeightClass::Int8);
        assert_eq!((int8.compute, int8.memory), (0.375, 0.25));
        let decode = Work { matrix_flops: 1e9, attention_flops: 0.0, kv_dtype: KvDtype::Bf16, bytes: 20e9 };
        assert_eq!(Shares::of(&decode, 2.0, &limits(), WeightClass::Bf16).bound(), Bound::Memory);
        let slow = Shares::of(&decode, 100.0, &limits(), WeightClass::Bf16);
        assert_eq!((slow.bound(), slow.roofline()), (Bound::Overhead, Bound::Memory));
        assert_eq!(Shares::of(&decode, 0.0, &limits(), WeightClass::Bf16).of_limit(), 0.0);
    }

    #[test]
    fn units_are_chosen_for_people() {
        assert_eq!(
            [rate(9.96), rate(412.4), rate(8430.0), rate(123_456.0)],
            ["10.0 tok/s", "412 tok/s", "8.4k tok/s", "123k tok/s"]
        );
        assert_eq!([duration(0.0008), duration(0.096), duration(1.239)], ["0.8 ms", "96 ms", "1.24 s"]);
        assert_eq!([bytes(512), bytes(8 << 20), bytes(7 << 29)], ["512 B", "8.0 MiB", "3.50 GiB"]);
        assert_eq!([operations(3.751e12, "OP"), operations(4.12e11, "FLOP")], ["3.75 TOP/s", "412 GFLOP/s"]);
    }
}
