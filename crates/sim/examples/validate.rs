//! Sets the simulator beside measured runs of vLLM 0.19 on two GPUs, published with LLMServingSim.
//!
//! ```text
//! perf/<GPU>/.../tp1_*.csv.gz      microseconds of each layer --> steps with their times --> CostModel::fit
//! bench/<GPU>/.../requests.jsonl.gz   arrivals, lengths, measured times --> the same requests through `simulate`
//! ```
//!
//! `cargo run --release -p sim --example validate -- DIR`, DIR being the copy of casys-kaist/LLMServingSim's
//! `bench/examples` as `bench` and `profiler/perf` as `perf`. Calibration sees the layers only, the comparison the
//! requests only. A step is more than its layers (launches, sampling on the host, bookkeeping), and no profile says how
//! much: the last column adds [`OVERHEAD`] to each.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use protocol::Nanos;
use scheduler::{CostModel, Limits, Work};
use serde_json::Value;
use sim::report::Spread;
use sim::{Arrival, Fleet, Instance, Pace, StepTimes, Workload, simulate};

/// A measured run: the GPU, vLLM's `max_num_seqs`, and its KV blocks of 16 tokens (where the run does not say, what 90
/// % of 96 GB leave beside 16 GB of weights: they never ran short).
const RUNS: [(&str, usize, usize); 2] = [("RTX4090", 256, 2588), ("RTXPRO6000", 128, 33_000)];
const LAYERS: f64 = 32.0;
/// Of a step, beyond its layers: chosen so that TPOT fits, so only the other figures of its column test anything.
const OVERHEAD: Nanos = Nanos(1_000_000);
/// Points of the curve: where a GPU's tiles end, and between.
const KNOTS: [usize; 14] = [1, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 1024, 1536, 2048];

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args().nth(1).ok_or("usage: validate DIR")?;
    println!("| GPU | figure | measured, ms | layers alone | with 1 ms a step |\n| --- | --- | ---: | ---: | ---: |");
    for (gpu, max_num_seqs, num_blocks) in RUNS {
        let steps = profiled_steps(&Path::new(&directory).join("perf").join(gpu).join("meta-llama/Llama-3.1-8B"))?;
        let (workload, measured) = requests(&Path::new(&directory).join("bench").join(gpu).join("Llama-3.1-8B"))?;
        let limits = Limits {
            block_size: 16,
            num_blocks,
            max_model_len: 32_768,
            max_num_seqs,
            max_num_batched_tokens: 2048,
            max_prefill_chunk: 2048,
            max_prefill_seqs: max_num_seqs,
            max_queued_requests: 1000,
            max_queued_tokens: usize::MAX / 2,
            enable_prefix_caching: true,
            states: None,
            whole_prompts: false,
            hash_key: [0; 32],
        };
        let mut reports = Vec::new();
        for overhead in [Nanos(0), OVERHEAD] {
            let machine = machine(&steps, overhead)?;
            let fleet = Fleet::of(1, &Instance { limits: limits.clone(), machine, belief: None });
            reports.push(simulate(&workload, &fleet, &mut ())?);
        }
        for (index, name) in ["TTFT", "TPOT", "latency"].into_iter().enumerate() {
            let spreads = reports.iter().map(|report| [report.ttft, report.tpot, report.e2e][index]);
            let spreads: Vec<Spread> = spreads.collect();
            type Figure = (&'static str, fn(&Spread) -> f64);
            let figures: [Figure; 3] = [("mean", |s| s.mean), ("p50", |s| s.p50), ("p90", |s| s.p90)];
            for (what, figure) in figures {
                let measured = figure(&measured[index]);
                let off = spreads.iter().map(|spread| format!("{:+.1} %", (figure(spread) / measured - 1.0) * 100.0));
                let off: Vec<String> = off.collect();
                println!("| {gpu} | {name} {what} | {:.1} | {} |", measured * 1e3, off.join(" | "));
            }
        }
        let machine = machine(&steps, Nanos(0))?;
        let errors = steps.iter().map(|(work, time)| (machine.step_time(work).0 as f64 / time.0 as f64 - 1.0).abs());
        let errors = Spread::of(&mut errors.collect::<Vec<_>>());
        eprintln!(
            "{gpu}: {} profiled steps fitted to {:.1} % (p50), {:.1} % (p90); {} preemptions",
            steps.len(),
            errors.p50 * 100.0,
            errors.p90 * 100.0,
            reports[0].preemptions
        );
    }
    Ok(())
}

/// What fits the steps, each of which takes `overhead` more than its layers.
fn machine(steps: &[(Work, Nanos)], overhead: Nanos) -> Result<StepTimes, Box<dyn Error>> {
    let steps = steps.iter().map(|&(work, time)| (work, Nanos(time.0 + overhead.0)));
    let (mixed, decode): (Vec<_>, Vec<_>) = steps.partition(|(work, _)| work.prefill_seqs > 0);
    let fit = |steps: &[(Work, Nanos)]| CostModel::fit(&KNOTS, steps).ok_or("too few steps");
    Ok(StepTimes { decode: fit(&decode)?, mixed: fit(&mixed)?, pace: Pace::default() })
}

fn lines(path: &Path) -> Result<impl Iterator<Item = String>, Box<dyn Error>> {
    let file = File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(BufReader::new(MultiGzDecoder::new(file)).lines().map_while(Result::ok))
}

/// Microseconds of each layer by its number of tokens or sequences.
fn layer_times(path: &Path) -> Result<BTreeMap<String, BTreeMap<usize, f64>>, Box<dyn Error>> {
    let mut times: BTreeMap<String, BTreeMap<usize, f64>> = BTreeMap::new();
    for line in lines(path)?.skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        let [layer, count, time] = fields[..] else { return Err(format!("{}: {line}", path.display()).into()) };
        times.entry(layer.to_string()).or_default().insert(count.parse()?, time.parse()?);
    }
    Ok(times)
}

/// Between measured points, on the straight line.
fn at(points: &BTreeMap<usize, f64>, count: usize) -> f64 {
    let low = points.range(..=count).next_back().or(points.iter().next()).expect("points");
    let high = points.range(count..).next().unwrap_or(low);
    if high.0 == low.0 {
        return *low.1;
    }
    low.1 + (high.1 - low.1) * (count - low.0) as f64 / (high.0 - low.0) as f64
}

/// Whole steps, put together from the layers that a step runs.
fn profiled_steps(directory: &Path) -> Result<Vec<(Work, Nanos)>, Box<dyn Error>> {
    const PER_LAYER: [(&str, f64); 8] = [
        ("layernorm", 2.0),
        ("qkv_proj", 1.0),
        ("rotary_emb", 1.0),
        ("o_proj", 1.0),
        ("gate_up_proj", 1.0),
        ("act_fn", 1.0),
        ("down_proj", 1.0),
        ("embedding", 1.0 / LAYERS),
    ];
    let dense = layer_times(&directory.join("tp1_dense.csv.gz"))?;
    let per_sequence = layer_times(&directory.join("tp1_per_sequence.csv.gz"))?;
    let mut steps = Vec::new();
    for line in lines(&directory.join("tp1_attention.csv.gz"))?.skip(1) {
        let fields: Vec<f64> = line.split(',').map(str::parse).collect::<Result<_, _>>()?;
        let &[chunk, start, rows, context, attention] = &fields[..] else { return Err(line.into()) };
        let (chunk, start, rows, context) = (chunk as usize, start as usize, rows as usize, context as usize);
        let mut work = Work::default();
        if chunk > 0 {
            work.add_chunk(start, chunk, true);
        }
        (0..rows).for_each(|_| work.add_decode(context));
        // What the runs see: requests of a few hundred to a few thousand tokens in steps of at most 2,048 rows.
        if work.rows() == 0 || work.rows() > 2048 || start > 4096 || context > 4096 {
            continue;
        }
        let layers = PER_LAYER.iter().map(|(name, times)| times * at(&dense[*name], work.rows())).sum::<f64>();
        let head = at(&dense["final_layernorm"], work.rows())
            + at(&per_sequence["lm_head"], work.logit_rows)
            + at(&per_sequence["sampler"], work.logit_rows);
        steps.push((work, Nanos(((LAYERS * (layers + attention) + head) * 1e3) as u64)));
    }
    Ok(steps)
}

/// The requests as they arrived, and the measured spreads of TTFT, TPOT and latency in seconds.
fn requests(directory: &Path) -> Result<(Workload, [Spread; 3]), Box<dyn Error>> {
    let requests: Vec<Value> = lines(&directory.join("requests.jsonl.gz"))?
        .map(|line| serde_json::from_str(&line))
        .collect::<Result<_, _>>()?;
    let number = |request: &Value, name: &str| request[name].as_f64().unwrap_or(f64::NAN);
    let start = requests.iter().map(|request| number(request, "queued_ts")).fold(f64::INFINITY, f64::min);
    let mut workload = Workload { name: directory.display().to_string(), ..Workload::default() };
    let mut measured = [const { Vec::new() }; 3];
    for (index, request) in requests.iter().enumerate() {
        let [queued, first, last] =
            ["queued_ts", "first_token_ts", "last_token_ts"].map(|name| number(request, name) - start);
        let [input, output] = ["input_toks", "output_toks"].map(|name| number(request, name) as usize);
        workload.arrivals.push(Arrival::new(Nanos((queued * 1e9) as u64), index as u64, input, output));
        measured[0].push(first - queued);
        if output > 1 {
            measured[1].push((last - first) / (output - 1) as f64);
        }
        measured[2].push(last - queued);
    }
    Ok((workload, measured.map(|mut values| Spread::of(&mut values))))
}
