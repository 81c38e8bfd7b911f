//! `twostroke doctor`: what this machine offers, what the kernels make of it, and whether they compute what they
//! define.

use checkpoint::{Checkpoint, LoadError};
use engine::{DeviceChoice, StartError};
use kernels::cpu_time::QueueWait;
use kernels::limits::{Limits, NodeLimits, measure_nodes};
use kernels::threads::Pool;
use kernels::{AccumulationOrder, Cpu, CpuOptions, Device, Isa, KvDtype, Reference, WeightClass, threads};
use launch::machine;
use model::{Batch, Forward, KvBudget, LoadOptions, Span};
use serde_json::{Value, json};

use crate::console::put_line;
use crate::failure::Failure;
use crate::figures::{self, bandwidth, bytes, operations};
use crate::flags::DoctorFlags;
use crate::kept::On;
use crate::{environment, models};

/// Below this much free memory nothing but the built-in model fits.
const LITTLE_MEMORY: u64 = 1 << 30;

/// For how long memory nodes are measured, where there are several.
const NODE_SECONDS: f64 = 1.0;

/// Runs the command. Ends with exit code 1 if something is missing.
pub(crate) fn doctor(flags: &DoctorFlags) -> Result<(), Failure> {
    let threads = flags.threads.unwrap_or_else(threads::default_threads);
    let on = On { device: flags.device, ..On::cpu(Some(threads), None) };
    // A GPU that cannot be used is a finding, not the end of them.
    let (gpu, on) = match Gpu::of(on) {
        Ok(gpu) => (gpu, on),
        Err(error) => {
            let gpu = Gpu { listed: listed(), problem: Some(error.to_string()), ..Gpu::default() };
            (Some(gpu), On { device: DeviceChoice::Cpu, ..on })
        }
    };
    let limits = figures::limits(figures::Measure::Now, on, environment::variables().packed_cache.as_deref())?;
    let diagnosis = Diagnosis::of(threads, limits, gpu)?;
    let text = if flags.json { diagnosis.json().to_string() } else { diagnosis.text() };
    put_line(&text)?;
    if diagnosis.problems.is_empty() { Ok(()) } else { Err(Failure::Said(1)) }
}

/// What `--device` asks about.
#[derive(Default)]
struct Gpu {
    /// All that there are, by number.
    listed: Vec<String>,
    /// The one that computes, and whether the built-in model gives the bits of the definition on it.
    name: String,
    same: bool,
    /// Why none can be used.
    problem: Option<String>,
}

/// All GPUs that there are, as `--device` names them.
fn listed() -> Vec<String> {
    let all = vulkan::list().unwrap_or_default();
    all.iter().enumerate().map(|(index, listed)| format!("gpu:{index} {listed}")).collect()
}

impl Gpu {
    /// `None`: the CPU was asked about, or `auto` takes it.
    fn of(on: On) -> Result<Option<Gpu>, StartError> {
        let open = |arithmetic| {
            let cpu = CpuOptions { threads: Some(on.threads), arithmetic: Some(arithmetic), ..CpuOptions::default() };
            on.device.open(cpu)
        };
        if on.device == DeviceChoice::Cpu {
            return Ok(None);
        }
        let checkpoint = models::shipped().map_err(as_option)?;
        let (mut name, mut same) = (String::new(), true);
        for of_order in check_cases() {
            let Some(gpu) = open(of_order[0].0)? else { return Ok(None) };
            name = gpu.describe();
            for (arithmetic, options) in of_order {
                let model = model::load(gpu.clone(), &checkpoint, &options, &mut |_| {});
                let found = logits(model, &checkpoint).map_err(as_option)?;
                let reference = model::load(Reference::of(arithmetic), &checkpoint, &options, &mut |_| {});
                same &= found == logits(reference, &checkpoint).map_err(as_option)?;
            }
        }
        Ok(Some(Gpu { listed: listed(), name, same, problem: None }))
    }
}

fn as_option(failure: Failure) -> StartError {
    StartError::Option { option: "--device", problem: models::said(failure) }
}

struct Diagnosis {
    threads: usize,
    limits: Limits,
    gpu: Option<Gpu>,
    /// Of several memory nodes.
    node_limits: Option<NodeLimits>,
    /// Instruction sets and whether the built-in model gives the bits of the definition with them.
    checks: Vec<(Isa, bool)>,
    problems: Vec<String>,
}

impl Diagnosis {
    fn of(threads: usize, limits: Limits, gpu: Option<Gpu>) -> Result<Diagnosis, Failure> {
        let checks = self_check(threads)?;
        let pool = Pool::new(threads).map_err(Failure::usage)?;
        let node_limits = measure_nodes(&pool, NODE_SECONDS).map_err(|error| models::without_memory(&error))?;
        let mut problems = Vec::new();
        if Isa::best() == Isa::Scalar {
            problems.push("this CPU has no AVX2: everything runs on the reference path, many times slower".to_string());
        }
        for (isa, _) in checks.iter().filter(|(_, same)| !same) {
            problems
                .push(format!("the {} kernels do not give the bits of their definition: please report it", isa.name()));
        }
        if let Some(gpu) = &gpu {
            problems.extend(gpu.problem.clone());
            if gpu.problem.is_none() && !gpu.same {
                problems.push(format!("{} does not give the bits of the definition: please report it", gpu.name));
            }
        }
        if machine::memory().is_some_and(|(_, available)| available < LITTLE_MEMORY) {
            problems.push("less than 1 GiB of memory is available".to_string());
        }
        if let Some(cache) = environment::variables().hub_cache().filter(|cache| !machine::can_write(cache)) {
            problems.push(format!("the model cache {} cannot be written to", cache.display()));
        }
        Ok(Diagnosis { threads, limits, gpu, node_limits, checks, problems })
    }

    fn json(&self) -> Value {
        let caches = machine::caches()
            .into_iter()
            .map(|cache| json!({ "name": cache.name, "bytes": cache.bytes, "shared_by": cache.shared_by }));
        let features = machine::cpu_features().into_iter().map(|(name, has)| (name.to_string(), Value::from(has)));
        let checks = self.checks.iter().map(|(isa, same)| (isa.name().to_string(), Value::from(*same)));
        let memory = machine::memory();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "cpu": machine::cpu_name(),
            "features": features.collect::<serde_json::Map<_, _>>(),
            "isa": Isa::best().name(),
            "arithmetic": AccumulationOrder::best().name(),
            "isa_available": Isa::available().into_iter().map(Isa::name).collect::<Vec<_>>(),
            "identical_bits": checks.collect::<serde_json::Map<_, _>>(),
            "cpus_online": machine::online_cpus(),
            "cpus_allowed": threads::max_threads(),
            "cgroup_cores": machine::cgroup_cores(),
            "threads": self.threads,
            "thread_waits": counts_waits(),
            "numa_nodes": machine::numa_nodes(),
            "node_limits": self.node_limits.as_ref().map(|NodeLimits { alone, neighbour }| {
                json!({ "alone_bytes_s": alone, "neighbour_bytes_s": neighbour })
            }),
            "caches": caches.collect::<Vec<_>>(),
            "memory_bytes": memory.map(|(total, _)| total),
            "memory_available_bytes": memory.map(|(_, available)| available),
            "memory_limit": figures::memory_limit_json(machine::memory_limit().as_ref()),
            "huge_pages": machine::huge_pages(),
            "gpus": self.gpu.as_ref().map(|gpu| &gpu.listed),
            "gpu": self.gpu.as_ref().filter(|gpu| gpu.problem.is_none()).map(|gpu| &gpu.name),
            "gpu_identical_bits": self.gpu.as_ref().filter(|gpu| gpu.problem.is_none()).map(|gpu| gpu.same),
            "limits": figures::limits_json(&self.limits),
            "model_cache": environment::variables().hub_cache(),
            "packed_cache": environment::variables().packed_cache,
            "problems": self.problems,
        })
    }

    fn text(&self) -> String {
        let known = |value: Option<String>| value.unwrap_or_else(|| "unknown".to_string());
        let mut lines = Vec::new();
        let mut line = |name: &str, value: String| lines.push(format!("{name:<12} {value}"));
        line("twostroke", env!("CARGO_PKG_VERSION").to_string());
        line("cpu", known(machine::cpu_name()));
        let (has, lacks): (Vec<_>, Vec<_>) = machine::cpu_features().into_iter().partition(|(_, has)| *has);
        let names = |list: Vec<(&str, bool)>| list.into_iter().map(|(name, _)| name).collect::<Vec<_>>().join(" ");
        line("has", names(has));
        line("lacks", names(lacks));
        let checked =
            self.checks.iter().map(|(isa, same)| format!("{} {}", isa.name(), if *same { "ok" } else { "WRONG" }));
        line(
            "kernels",
            format!(
                "{}, {} arithmetic (same bits as their definition: {})",
                Isa::best().name(),
                AccumulationOrder::best().name(),
                checked.collect::<Vec<_>>().join(", ")
            ),
        );
        let online = machine::online_cpus().map(|n| n.to_string());
        let quota = machine::cgroup_cores().map_or_else(String::new, |cores| format!(", cgroup quota {cores:.1}"));
        line(
            "cores",
            format!("{} online, {} allowed{quota}, {} threads", known(online), threads::max_threads(), self.threads),
        );
        let waits = match counts_waits() {
            true => "counted: time that the machine gives to others has an owner of its own, machine",
            false => {
                "not counted (/proc/thread-self/schedstat): time that the machine gives to others is the requests' own"
            }
        };
        line("busy cores", waits.to_string());
        let caches = machine::caches().into_iter().map(|cache| {
            let shared = if cache.shared_by > 1 { format!(" shared by {}", cache.shared_by) } else { String::new() };
            format!("{} {}{shared}", cache.name, bytes(cache.bytes))
        });
        line("caches", caches.collect::<Vec<_>>().join(", "));
        let memory = machine::memory().map(|(total, free)| format!("{} of {} available", bytes(free), bytes(total)));
        let limit = machine::memory_limit();
        let limit = limit.map_or_else(String::new, |limit| format!(", {limit} ({})", limit.source()));
        line(
            "memory",
            format!(
                "{}{limit}, {} node(s), huge pages: {}",
                known(memory),
                machine::numa_nodes(),
                known(machine::huge_pages())
            ),
        );
        for (index, listed) in self.gpu.iter().flat_map(|gpu| &gpu.listed).enumerate() {
            line(if index == 0 { "gpus" } else { "" }, listed.clone());
        }
        if let Some(gpu) = self.gpu.as_ref().filter(|gpu| gpu.problem.is_none()) {
            let same = if gpu.same { "ok" } else { "WRONG" };
            line("gpu", format!("{} (same bits as the definition: {same}); the limits are its", gpu.name));
        }
        let limits = &self.limits;
        line("limits", format!("memory  {} read", bandwidth(limits.read_bandwidth)));
        if let Some(NodeLimits { alone, neighbour }) = &self.node_limits {
            let alone: Vec<_> = alone.iter().map(|&rate| bandwidth(rate)).collect();
            let neighbour = bandwidth(*neighbour);
            line("", format!("nodes   {} read alone, {neighbour} from a neighbour", alone.join(", ")));
        }
        if limits.cache_bytes > 0 {
            let (rate, size) = (bandwidth(limits.cache_bandwidth), bytes(limits.cache_bytes as u64));
            line("", format!("cache   {rate} read, where weights fit into {size}"));
        }
        // The CPU may have an instruction that is faster and rounds differently: then both are reported.
        let unused = |used, fastest, ops, name| match used == fastest {
            true => String::new(),
            false => format!("; unused, for it rounds differently: {fastest} {}", operations(ops, name)),
        };
        let bf16 = unused(limits.bf16_kind, limits.fastest_bf16_kind, limits.fastest_bf16_flops, "FLOP");
        let int8 = unused(limits.int8_kind, limits.fastest_int8_kind, limits.fastest_int8_ops, "OP");
        line("", format!("bf16    {} ({}{bf16})", operations(limits.bf16_flops, "FLOP"), limits.bf16_kind));
        line("", format!("int8    {} ({}{int8})", operations(limits.int8_ops, "OP"), limits.int8_kind));
        line("", format!("f32     {}", operations(limits.f32_flops, "FLOP")));
        if let Some(doubt) = limits.doubt() {
            line("", format!("not sure: {doubt}"));
        }
        line("models", known(environment::variables().hub_cache().map(|cache| cache.display().to_string())));
        line("packed", known(environment::variables().packed_cache.map(|cache| cache.display().to_string())));
        match self.problems.is_empty() {
            true => line("verdict", "nothing is missing".to_string()),
            false => self.problems.iter().for_each(|problem| line("PROBLEM", problem.clone())),
        }
        lines.join("\n")
    }
}

/// Whether the kernel counts how long a thread is ready and does not run.
fn counts_waits() -> bool {
    QueueWait::of_this_thread().is_some()
}

/// Logits of the built-in model for a short prompt, bit for bit, on every instruction set and on the definition, with
/// each type of KV cache in each arithmetic.
fn self_check(threads: usize) -> Result<Vec<(Isa, bool)>, Failure> {
    let checkpoint = models::shipped()?;
    let cases = check_cases();
    let mut defined = Vec::new();
    for (arithmetic, options) in cases.as_flattened() {
        let reference = Reference::of(*arithmetic);
        defined.push(logits(model::load(reference, &checkpoint, options, &mut |_| {}), &checkpoint)?);
    }
    let mut checks = Vec::new();
    for isa in Isa::available().into_iter().filter(|isa| *isa != Isa::Scalar) {
        let mut same = true;
        for ((arithmetic, options), defined) in cases.as_flattened().iter().zip(&defined) {
            let (threads, isa, arithmetic) = (Some(threads), Some(isa), Some(*arithmetic));
            let cpu = CpuOptions { threads, isa, arithmetic, ..CpuOptions::default() };
            let cpu = Cpu::new(cpu).map_err(Failure::usage)?;
            same &= logits(model::load(cpu, &checkpoint, options, &mut |_| {}), &checkpoint)? == *defined;
        }
        checks.push((isa, same));
    }
    Ok(checks)
}

fn check_cases() -> [[(AccumulationOrder, LoadOptions); 2]; 2] {
    AccumulationOrder::ALL.map(|arithmetic| KvDtype::ALL.map(|kv_dtype| (arithmetic, check_options(kv_dtype))))
}

/// Tokens of the checked prompt: any will do.
const CHECK_ROWS: u32 = 6;

fn check_options(kv_dtype: KvDtype) -> LoadOptions {
    LoadOptions {
        weights: WeightClass::Bf16,
        as_stored: false,
        max_rows: CHECK_ROWS as usize,
        max_logit_rows: 1,
        max_model_len: Some(32),
        kv_blocks: KvBudget::Blocks(1),
        block_size: 32,
        image_directory: None,
        kv_dtype,
        expert_memory: None,
        adapters: model::AdapterRoom::default(),
        state_slots: 2,
    }
}

fn logits<F: Forward>(runner: Result<F, LoadError>, checkpoint: &Checkpoint) -> Result<Vec<u32>, Failure> {
    let mut runner = runner.map_err(|error| models::load_failure(checkpoint, &error))?;
    let rows = 0..CHECK_ROWS;
    let batch = Batch {
        token_ids: rows.clone().map(|row| row * 7 + 300).collect(),
        positions: rows.clone().collect(),
        slots: rows.collect(),
        spans: vec![Span {
            first_row: 0,
            num_rows: CHECK_ROWS,
            start: 0,
            table: 0..1,
            adapter: None,
            state: None,
            saves: 0..0,
        }],
        block_tables: vec![0],
        logit_rows: vec![CHECK_ROWS - 1],
        ..Batch::default()
    };
    let mut logits = vec![0.0; runner.config().vocab_size];
    runner.forward(&batch, &mut logits).expect("a device that is there");
    Ok(logits.into_iter().map(f32::to_bits).collect())
}
