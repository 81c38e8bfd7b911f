//! `twostroke sim`: a load on imagined hardware.
//!
//! ```text
//! --model ----> Simulated --+
//! --hardware -> Machine ----+--> CostModel, KV blocks --> Fleet --+
//! --prefill, --link, --reject --> Disaggregation ---------^       |
//! --workload, --trace ------------------------------> Workload ---+--> sim::simulate --> table, JSON, SVG
//! ```

use std::path::Path;

use files::ResultFile;
use kernels::WeightClass;
use launch::machine;
use plan::Simulated;
use protocol::{Nanos, Targets};
use roofline::Machine;
use scheduler::Limits;
use serde_json::json;
use sim::workload::{Lengths, LoadPattern};
use sim::{Acceptance, Curve, Disaggregation, Fleet, Instance, Link, Observer, RefuseWhen, Workload};

use crate::console::{Progress, put_line};
use crate::failure::Failure;
use crate::flags::{Reject, SimFlags, Workload as Kind};
use crate::kept::On;
use crate::{environment, figures, outputs, shapes};

/// Requests of sessions times the turns of each, at most: they take two gigabytes.
const MOST_TURNS: usize = 100_000_000;
/// Tokens of a shared prefix.
const PREFIX: usize = 2000;
/// Rows of a step where neither targets nor the user bound it.
const ROWS: usize = 2048;
/// Rows of a step where targets do.
const MOST_ROWS: usize = 8192;
/// Until a block that was sent is there, beside its bytes.
const LINK_DELAY: Nanos = Nanos(1_000_000);
/// The chart of `--splits`.
const SPLITS: &str = "splits.svg";
/// Instances that are divided in every way.
const MOST_SPLIT: usize = 64;

pub(crate) fn sim(flags: &SimFlags) -> Result<(), Failure> {
    check_roles(flags)?;
    let (instance, token_bytes) = instance(flags)?;
    let workload = workload(flags)?;
    if let Some(directory) = &flags.svg {
        outputs::directory("--svg", directory)?;
        let names: &[&str] = if flags.splits { &[SPLITS] } else { &sim::charts::NAMES };
        names.iter().try_for_each(|name| picture(directory, name).map(drop))?;
    }
    let mut bar = Bar(Progress::counting("simulating", "requests"));
    let link = Link { bytes_per_second: flags.link, delay: LINK_DELAY, token_bytes };
    let disaggregation = |prefill| Disaggregation {
        rejection: flags.reject.map(rejection),
        switches: flags.switch_roles,
        ..Disaggregation::split(prefill, flags.instances, link)
    };
    let (mut json, text, charts) = if flags.splits {
        let curve =
            Curve::of(&workload, flags.instances, &instance, disaggregation, &mut bar).map_err(Failure::usage)?;
        (curve.json(), curve.to_string(), vec![(SPLITS, curve.chart())])
    } else {
        let fleet = Fleet::of(flags.instances, &instance);
        let fleet = flags.prefill.map(disaggregation).into_iter().fold(fleet, Fleet::disaggregated);
        let report = sim::simulate(&workload, &fleet, &mut bar).map_err(Failure::usage)?;
        (report.json(), report.to_string(), sim::charts::charts(&report))
    };
    drop(bar);
    if let Some(directory) = &flags.svg {
        for (name, chart) in charts {
            outputs::put(&picture(directory, name)?, &chart.svg())?;
        }
    }
    if flags.json {
        let report = &mut json;
        report["model"] = json!(flags.model);
        report["hardware"] = json!(flags.hardware);
        report["machines_per_instance"] = json!(flags.machines_per_instance);
        report["kv_blocks"] = json!(instance.limits.num_blocks);
        report["max_num_batched_tokens"] = json!(instance.limits.max_num_batched_tokens);
        report["seed"] = json!(flags.seed);
        return put_line(&json.to_string());
    }
    let machines = match flags.machines_per_instance {
        1 => String::new(),
        n => format!("{n} x "),
    };
    let blocks = format!("{} KV blocks of {}", instance.limits.num_blocks, flags.block_size);
    put_line(&format!("{} x {} on {machines}{}, {blocks}", flags.instances, flags.model, flags.hardware))?;
    put_line(text.trim_end())
}

/// Words that mean nothing without roles are a mistake.
fn check_roles(flags: &SimFlags) -> Result<(), Failure> {
    let wrong = |problem: &str| Err(Failure::usage(problem.to_string()));
    let has_roles = flags.prefill.is_some() || flags.splits;
    if flags.prefill.is_some_and(|prefill| prefill >= flags.instances) {
        return wrong("--prefill: of --instances at least one more has to answer");
    }
    if flags.splits && !(2..=MOST_SPLIT).contains(&flags.instances) {
        return Err(Failure::usage(format!("--splits: --instances is from 2 to {MOST_SPLIT}")));
    }
    match (flags.reject, flags.switch_roles) {
        (Some(_), _) if !has_roles => wrong("--reject: without --prefill or --splits no request is refused"),
        (_, true) if !has_roles => wrong("--switch-roles: without --prefill or --splits there are no roles"),
        (Some(_), _) if flags.ttft_slo.or(flags.tpot_slo).is_none() => {
            wrong("--reject: what is refused would miss --ttft-slo or --tpot-slo, and there is neither")
        }
        (_, true) if flags.ttft_slo.is_none() => wrong("--switch-roles: roles change where --ttft-slo is missed"),
        _ => Ok(()),
    }
}

fn rejection(reject: Reject) -> RefuseWhen {
    match reject {
        Reject::Late => RefuseWhen::Late,
        Reject::Early => RefuseWhen::Early,
        Reject::Predicted => RefuseWhen::Predicted,
    }
}

struct Bar(Progress);

impl Observer for Bar {
    fn progress(&mut self, ended: usize, all: usize) {
        self.0.at(ended as u64, all as u64);
    }
}

/// A place for a chart.
fn picture(directory: &Path, name: &str) -> Result<ResultFile, Failure> {
    outputs::place("--svg", &directory.join(name), outputs::Kind::Picture)
}

fn workload(flags: &SimFlags) -> Result<Workload, Failure> {
    let nanos = |seconds: f64| Nanos((seconds * 1e9) as u64);
    let targets = Targets { ttft: flags.ttft_slo.map(nanos), tpot: flags.tpot_slo.map(nanos) };
    let workload = if flags.trace.is_empty() {
        let shape = match flags.workload {
            Kind::Poisson => LoadPattern::Poisson,
            Kind::Bursty => LoadPattern::Bursty { cv: flags.burst_cv },
            Kind::SharedPrefix => {
                LoadPattern::SharedPrefix { prefixes: flags.prefixes, tokens: flags.prefix_tokens.unwrap_or(PREFIX) }
            }
            Kind::Sessions => {
                let prefix = flags.prefix_tokens.unwrap_or(0);
                LoadPattern::Sessions { turns: flags.turns, pause: nanos(flags.pause), prefix }
            }
        };
        let SimFlags { input_tokens, output_tokens, length_cv: cv, .. } = *flags;
        let lengths = Lengths { input_tokens, output_tokens, cv };
        let requests = flags.requests.unwrap_or(1000);
        if flags.workload == Kind::Sessions && requests * flags.turns > MOST_TURNS {
            let problem = format!("{} of {requests} requests are more than {MOST_TURNS} in all", flags.turns);
            return Err(Failure::usage(format!("--turns: {problem}, and each quotes all before it")));
        }
        Workload::synthetic(shape, lengths, flags.rate.unwrap_or(1.0), requests, flags.seed)
    } else {
        let mut workload =
            sim::trace::read_all(&flags.trace).map_err(|error| Failure::usage(format!("--trace: {error}")))?;
        if let Some(requests) = flags.requests {
            workload = workload.first(requests);
        }
        match flags.rate {
            Some(rate) => workload.at_rate(rate),
            None => workload,
        }
    };
    let workload = flags.speed.into_iter().fold(workload, Workload::at_speed);
    let acceptance = flags.acceptance.clone().map(Acceptance::new);
    Ok(workload.with_targets(targets).with_acceptance(acceptance))
}

/// An instance, and the bytes of a token's keys and values.
fn instance(flags: &SimFlags) -> Result<(Instance, f64), Failure> {
    let class = flags.weights.class().unwrap_or(WeightClass::Bf16);
    let model = Simulated::of(&shapes::shape("--model", &flags.model)?, class, flags.kv_dtype.dtype());
    let machine = named_machine(&flags.hardware)?.times(flags.machines_per_instance);
    let cost = model.on(&machine, class, flags.kv_dtype.dtype());
    let memory = machine.memory.expect("a known machine has some");
    let num_blocks = flags.kv_blocks.unwrap_or_else(|| model.kv_blocks(memory, flags.block_size));
    if num_blocks == 0 {
        let gb = |bytes: f64| format!("{:.1} GB", bytes / 1e9);
        return Err(Failure::usage(format!(
            "--model: the weights of {} take {}, {} x {} has {} and nothing is left for the KV cache; \
             --machines-per-instance or --weights int8 may help",
            flags.model,
            gb(model.resident_bytes),
            flags.machines_per_instance,
            flags.hardware,
            gb(memory)
        )));
    }
    let most = Limits::MOST_BLOCKS;
    if num_blocks > most {
        return Err(Failure::usage(format!(
            "--machines-per-instance: {num_blocks} KV blocks; at most {most} are simulated: --kv-blocks or a larger \
             --block-size may help"
        )));
    }
    let has_targets = flags.ttft_slo.is_some() || flags.tpot_slo.is_some();
    let heeds_targets = has_targets && flags.max_num_batched_tokens.is_none();
    let rows = flags.max_num_batched_tokens.unwrap_or(if heeds_targets { MOST_ROWS } else { ROWS });
    let limits = Limits {
        block_size: flags.block_size,
        num_blocks,
        max_model_len: model.max_model_len.min(num_blocks * flags.block_size),
        max_num_seqs: flags.max_num_seqs,
        max_num_batched_tokens: rows,
        max_prefill_chunk: rows,
        max_prefill_seqs: flags.max_num_partial_prefills,
        // A queue may grow without bound here.
        max_queued_requests: usize::MAX,
        max_queued_tokens: usize::MAX / 2,
        enable_prefix_caching: !flags.no_enable_prefix_caching,
        states: None,
        whole_prompts: false,
        hash_key: [0; 32],
    };
    // The number of drafts that pay is a question to the cost model.
    let believes = heeds_targets || flags.acceptance.is_some();
    let instance = Instance { limits, belief: believes.then(|| cost.clone()), machine: cost.into() };
    Ok((instance, model.cost.kv_bytes))
}

fn named_machine(name: &str) -> Result<Machine, Failure> {
    if plan::is_here(name) {
        let limits = figures::limits(
            figures::Measure::IfOld,
            On::cpu(None, None),
            environment::variables().packed_cache.as_deref(),
        )?;
        let (memory, _) = machine::memory().ok_or_else(|| Failure::failed("the size of the memory is unknown"))?;
        let here = Machine::here(&limits, WeightClass::Bf16, Some(memory as f64));
        // What this engine reaches, by docs/performance.md.
        return Ok(Machine { flops_share: 0.9, bandwidth_share: 0.9, ..here });
    }
    Machine::named(name).ok_or_else(|| {
        let names: Vec<String> = Machine::known().map(|machine| machine.name).collect();
        Failure::usage(format!("--hardware: {name} is none of {}, here", names.join(", ")))
    })
}
