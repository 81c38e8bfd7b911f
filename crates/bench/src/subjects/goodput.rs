//! Goodput with targets beside every static chunk size: the same production scheduler, the same arrivals, three loads.
//!
//! *chat*: questions of about 180 tokens, answers of about 90. *documents*: every tenth prompt has about 4,000 tokens
//! and eight times the TTFT target. *batch*: chat beside a queue of jobs without targets, of a lower class, there from
//! the start. A request is good that meets both of its targets; goodput is good requests per second of arrivals. Each
//! rate is drawn three times. The best static chunk is chosen for each row after the fact, which no operator can do.

use kernels::{KvDtype, WeightClass};
use plan::Simulated;
use protocol::{Nanos, Priority, Targets};
use roofline::{Machine, ModelShape};
use scheduler::Limits;
use serde_json::json;
use sim::workload::{Lengths, LoadPattern};
use sim::{Fleet, Instance, Workload, simulate};

use crate::rows::Rows;
use crate::setup::{BenchError, BenchSetup};

pub(super) const HEADER: &str = "\
| machine, model, targets | load | chat req/s | targets | best static (chunk) | ratio |
| --- | --- | ---: | ---: | ---: | ---: |";

const STATIC: [usize; 8] = [16, 32, 64, 128, 256, 512, 1024, 2048];
const SEEDS: [u64; 3] = [1, 2, 3];

struct Setting {
    machine: &'static str,
    model: &'static str,
    ttft_ms: u64,
    tpot_ms: u64,
    /// Chat requests per second, from light to overload.
    rates: [f64; 4],
    seconds: f64,
}

const SETTINGS: [Setting; 2] = [
    Setting {
        machine: "epyc-2core",
        model: "qwen2.5-0.5b",
        ttft_ms: 2000,
        tpot_ms: 100,
        rates: [0.3, 0.6, 0.8, 1.0],
        seconds: 1200.0,
    },
    Setting {
        machine: "h100",
        model: "llama-3.1-8b",
        ttft_ms: 500,
        tpot_ms: 25,
        rates: [20.0, 40.0, 60.0, 80.0],
        seconds: 60.0,
    },
];

/// No flag changes it: nothing is loaded or computed.
pub(super) fn measure(_: &BenchSetup<'_>, rows: &mut Rows<'_>) -> Result<(), BenchError> {
    for setting in &SETTINGS {
        let Setting { machine, model, ttft_ms, tpot_ms, rates, .. } = setting;
        for load in ["chat", "documents", "batch"] {
            for &rate in rates {
                let goodput =
                    |chunk| SEEDS.map(|seed| goodput(setting, load, rate, seed, chunk)).iter().sum::<f64>() / 3.0;
                let ours = goodput(None);
                let best = STATIC.map(|chunk| (goodput(Some(chunk)), chunk));
                let (best, chunk) = best.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).expect("there are some");
                let ratio = ours / best;
                let markdown = format!(
                    "| {machine}, {model}, {ttft_ms}/{tpot_ms} ms | {load} | {rate} | {ours:.2} | {best:.2} ({chunk}) | {ratio:.2} |"
                );
                let fields = json!({
                    "machine": machine, "model": model, "ttft_ms": ttft_ms, "tpot_ms": tpot_ms, "load": load,
                    "rate": rate, "goodput": ours, "best_static": best, "best_chunk": chunk, "ratio": ratio,
                });
                rows.add(&markdown, &fields)?;
            }
        }
    }
    Ok(())
}

/// Good requests per second.
fn goodput(setting: &Setting, load: &str, rate: f64, seed: u64, chunk: Option<usize>) -> f64 {
    let workload = workload(setting, load, rate, seed);
    let fleet = Fleet::of(1, &instance(setting, chunk));
    let report = simulate(&workload, &fleet, &mut ()).expect("the limits go together");
    let good = workload.arrivals.iter().zip(&report.outcomes).filter(|(arrival, outcome)| {
        let Targets { ttft: Some(ttft), tpot: Some(tpot) } = arrival.targets else { return false };
        let in_time = outcome.ttft() <= ttft.as_secs_f64();
        outcome.tokens > 0 && in_time && outcome.tpot().unwrap_or(0.0) <= tpot.as_secs_f64()
    });
    good.count() as f64 / setting.seconds
}

fn workload(setting: &Setting, load: &str, rate: f64, seed: u64) -> Workload {
    let ms = |ms: u64| Some(Nanos(ms * 1_000_000));
    let targets = Targets { ttft: ms(setting.ttft_ms), tpot: ms(setting.tpot_ms) };
    let requests = |rate: f64| (rate * setting.seconds) as usize;
    let chat = Lengths { input_tokens: 180, output_tokens: 90, cv: 0.9 };
    let mut all = Workload::synthetic(LoadPattern::Poisson, chat, rate, requests(rate), seed).with_targets(targets);
    if load == "documents" {
        let long = Lengths { input_tokens: 4000, output_tokens: 100, cv: 0.5 };
        let patient = Targets { ttft: ms(8 * setting.ttft_ms), ..targets };
        let some = Workload::synthetic(LoadPattern::Poisson, long, rate / 9.0, requests(rate / 9.0), seed + 100);
        all.arrivals.extend(some.with_targets(patient).arrivals);
    }
    if load == "batch" {
        let long = Lengths { input_tokens: 500, output_tokens: 150, cv: 0.7 };
        let count = requests(rate / 4.0);
        let mut jobs = Workload::synthetic(LoadPattern::Poisson, long, 1e6, count, seed + 200);
        jobs.arrivals.iter_mut().for_each(|job| job.priority = Priority(10));
        all.arrivals.extend(jobs.arrivals);
    }
    all.arrivals.sort_by_key(|arrival| arrival.at);
    all
}

fn instance(setting: &Setting, chunk: Option<usize>) -> Instance {
    let machine = Machine::named(setting.machine).expect("a preset");
    let shape = ModelShape::named(setting.model).expect("a preset");
    let size = Simulated::of(&shape, WeightClass::Bf16, KvDtype::Bf16);
    let cost = size.on(&machine, WeightClass::Bf16, KvDtype::Bf16);
    let rows = chunk.unwrap_or(2048).max(64);
    let limits = Limits {
        block_size: 32,
        num_blocks: size.kv_blocks(machine.memory.expect("it is known"), 32).min(20_000),
        max_model_len: 16_384,
        max_num_seqs: 64,
        max_num_batched_tokens: rows,
        max_prefill_chunk: chunk.unwrap_or(rows),
        max_prefill_seqs: 4,
        max_queued_requests: usize::MAX,
        max_queued_tokens: usize::MAX / 2,
        enable_prefix_caching: false,
        states: None,
        whole_prompts: false,
        hash_key: [0; 32],
    };
    Instance { limits, belief: chunk.is_none().then(|| cost.clone()), machine: cost.into() }
}
