//! `twostroke bench-serve`: loads any OpenAI-compatible server and says what its users feel.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use load::{
    Api, Arrivals, Ask, Dataset, Metric, Outcome, Prompt, Ramp, Settings, Summary, Target, TargetError, summarize,
};
use serde_json::{Map, Value, json};

use crate::console::{Progress, note, put_line};
use crate::environment;
use crate::failure::Failure;
use crate::flags::{BenchServeFlags, LoadApi, LoadDataset, RampUp};

/// Runs the command.
pub(crate) fn bench_serve(flags: &BenchServeFlags) -> Result<(), Failure> {
    let mut target = target(flags)?;
    // Before anything is sent: a number out of range is told at once.
    let rates = if flags.sweep_rates.is_empty() { vec![flags.request_rate] } else { flags.sweep_rates.clone() };
    let loads = rates.iter().map(|&rate| schedule(flags, rate)).collect::<Result<Vec<_>, _>>()?;
    // Thousands of streams are mostly waiting: one thread leaves the cores to the server.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match &flags.model {
            Some(name) => target.model = name.clone(),
            None => target.model = load::first_model(&target).await.map_err(Failure::usage)?,
        }
        let target = Arc::new(target);
        warm_up(&target, flags, &loads[0][0]).await?;
        let mut rows = Vec::new();
        for (&rate, load) in rates.iter().zip(loads) {
            let planned = load.len();
            let outcomes = measure(&target, load, flags).await;
            let interrupted = outcomes.len() < planned;
            let settings = settings(flags, rate, &target);
            let summary = summarize(&outcomes, &flags.goodput);
            tell(flags, &settings, &summary, &outcomes)?;
            rows.push((rate, summary));
            if interrupted {
                note(&format!("stopped: {} of {planned} requests were answered", outcomes.len()));
                break;
            }
        }
        if !flags.sweep_rates.is_empty() && !flags.json {
            put_line(&sweep(&rows))?;
        }
        let answered = rows.iter().any(|(_, summary)| summary.completed > 0);
        if answered { Ok(()) } else { Err(Failure::Said(1)) }
    })
}

fn target(flags: &BenchServeFlags) -> Result<Target, Failure> {
    let api = match flags.backend {
        LoadApi::Openai => Api::Completions,
        LoadApi::OpenaiChat => Api::Chat,
    };
    let url = flags.base_url.clone().unwrap_or_else(|| format!("http://{}:{}", flags.host, flags.port));
    let mut target = Target::new(&url, flags.endpoint.as_deref(), api).map_err(Failure::usage)?;
    let set = |target: &mut Target| -> Result<(), TargetError> {
        flags.header.iter().try_for_each(|header| target.add_header(header))?;
        flags.api_key.iter().try_for_each(|key| target.set_key(key))
    };
    set(&mut target).map_err(Failure::usage)?;
    target.fields = fields(flags)?;
    Ok(target)
}

fn fields(flags: &BenchServeFlags) -> Result<Map<String, Value>, Failure> {
    let given = flags.extra_body.as_deref().unwrap_or("{}");
    let parsed = serde_json::from_str::<Map<String, Value>>(given);
    let mut fields = parsed.map_err(|error| Failure::usage(format!("--extra-body is not a JSON object: {error}")))?;
    if flags.ignore_eos {
        fields.insert("ignore_eos".into(), json!(true));
    }
    if let Some(temperature) = flags.temperature {
        fields.insert("temperature".into(), json!(temperature));
    }
    Ok(fields)
}

fn schedule(flags: &BenchServeFlags, rate: f64) -> Result<Vec<Ask>, Failure> {
    let dataset = match flags.dataset_name {
        LoadDataset::Random => Dataset::Random {
            input: flags.random_input_len,
            output: flags.random_output_len,
            ratio: flags.random_range_ratio,
            prefix: flags.random_prefix_len,
        },
        LoadDataset::PrefixRepetition => Dataset::PrefixRepetition {
            prefix: flags.prefix_repetition_prefix_len,
            suffix: flags.prefix_repetition_suffix_len,
            prefixes: flags.prefix_repetition_num_prefixes,
            output: flags.prefix_repetition_output_len,
        },
        LoadDataset::Trace => {
            let path = flags.dataset_path.as_deref().unwrap_or(Path::new(""));
            Dataset::Trace(sim::trace::read(path, 0).map_err(Failure::usage)?)
        }
    };
    let ramp = match (flags.ramp_up_strategy, flags.ramp_up_start_rps, flags.ramp_up_end_rps) {
        (Some(RampUp::Linear), Some(from), Some(to)) => Some(Ramp::Linear(from, to)),
        (Some(RampUp::Exponential), Some(from), Some(to)) => Some(Ramp::Exponential(from, to)),
        _ => None,
    };
    let arrivals = Arrivals { rate, burstiness: flags.burstiness, ramp };
    let words = flags.backend == LoadApi::OpenaiChat;
    load::schedule(&dataset, flags.num_prompts, &arrivals, words, flags.seed).map_err(Failure::usage)
}

/// One short request that shows whether there is a server at all, then what was asked for.
async fn warm_up(target: &Arc<Target>, flags: &BenchServeFlags, like: &Ask) -> Result<(), Failure> {
    let prompt = match &like.prompt {
        Prompt::Tokens(_) => Prompt::Tokens(vec![300; 8]),
        Prompt::Words(_) => Prompt::Words("the sun and the sea".into()),
    };
    let first = Ask { at: Duration::ZERO, prompt, prompt_tokens: 8, max_tokens: 2 };
    load::probe(target, &first).await.map_err(Failure::usage)?;
    let warm_ups = vec![first; flags.num_warmups];
    load::run(target.clone(), warm_ups, flags.max_concurrency, std::future::pending(), |_| ()).await;
    Ok(())
}

async fn measure(target: &Arc<Target>, load: Vec<Ask>, flags: &BenchServeFlags) -> Vec<Outcome> {
    let total = load.len() as u64;
    let progress = Progress::counting("asking", "answers");
    progress.at(0, total);
    let stop = async {
        // Without a handler Ctrl-C ends the process as usual, and nothing is kept.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    load::run(target.clone(), load, flags.max_concurrency, stop, |ended| progress.at(ended as u64, total)).await
}

fn settings(flags: &BenchServeFlags, rate: f64, target: &Target) -> Settings {
    let backend = match flags.backend {
        LoadApi::Openai => "openai",
        LoadApi::OpenaiChat => "openai-chat",
    };
    let labels = [
        ("date", json!(environment::utc(environment::now()))),
        ("backend", json!(backend)),
        ("model_id", json!(target.model)),
        ("num_prompts", json!(flags.num_prompts)),
        ("tpot_definition", json!("(e2el - ttft) / (output tokens - 1)")),
    ];
    Settings {
        metrics: flags.percentile_metrics.clone(),
        percentiles: flags.metric_percentiles.clone(),
        goals: flags.goodput.clone(),
        request_rate: rate,
        burstiness: flags.burstiness,
        max_concurrency: flags.max_concurrency,
        labels: labels.map(|(name, value)| (name.to_string(), value)).to_vec(),
        detailed: flags.save_detailed,
    }
}

fn tell(flags: &BenchServeFlags, settings: &Settings, summary: &Summary, outcomes: &[Outcome]) -> Result<(), Failure> {
    for error in outcomes.iter().filter_map(|outcome| outcome.error.as_ref()).take(3) {
        note(&format!("failed: {error}"));
    }
    let object = load::json(summary, outcomes, settings);
    put_line(&if flags.json { object.to_string() } else { load::text(summary, settings) })?;
    if flags.save_result || flags.save_detailed {
        let path = result_path(flags, settings);
        let write = std::fs::write(&path, object.to_string() + "\n");
        write.map_err(|error| Failure::failed(format!("{}: {error}", path.display())))?;
        note(&format!("written: {}", path.display()));
    }
    Ok(())
}

fn result_path(flags: &BenchServeFlags, settings: &Settings) -> PathBuf {
    let rate = if settings.request_rate.is_finite() { settings.request_rate.to_string() } else { "inf".into() };
    let label = |name: &str| {
        let found = settings.labels.iter().find(|(label, _)| label == name);
        found.and_then(|(_, value)| value.as_str()).unwrap_or_default().replace(['/', ':'], "-")
    };
    let name = format!("{}-{rate}qps-{}-{}.json", label("backend"), label("model_id"), label("date"));
    let name = flags.result_filename.clone().unwrap_or(name);
    flags.result_dir.clone().unwrap_or_default().join(name)
}

/// Throughput against latency, a row for each rate.
fn sweep(rows: &[(f64, Summary)]) -> String {
    let head =
        "| req/s asked | req/s | goodput | output tok/s | TTFT p50 ms | TTFT p99 ms | TPOT p50 ms | TPOT p99 ms |";
    let mut lines = vec![head.to_string(), "| ---: ".repeat(8) + "|"];
    for (rate, summary) in rows {
        let [ttft, tpot] = [Metric::Ttft, Metric::Tpot].map(|metric| summary.distribution(metric));
        lines.push(format!(
            "| {rate} | {:.2} | {} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} |",
            summary.request_throughput(),
            summary.request_goodput.map_or("".into(), |goodput| format!("{goodput:.2}")),
            summary.output_throughput(),
            ttft.percentile(50.0),
            ttft.percentile(99.0),
            tpot.percentile(50.0),
            tpot.percentile(99.0),
        ));
    }
    lines.join("\n")
}
