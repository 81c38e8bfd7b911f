//! `twostroke bench-serve`: loads any OpenAI-compatible server and says what its users feel.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bench::load::{
    self, Api, Arrivals, Dataset, LoadClient, LoadProgress, Measured, PlannedRequest, Point, Ramp, ReportSettings,
    Swept, Target, TargetError,
};
use files::ResultFile;
use serde_json::{Map, Value, json};

use crate::console::{Progress, note, put_line};
use crate::failure::Failure;
use crate::flags::{BenchServeFlags, LoadApi, LoadDataset, RampUp};
use crate::signals::{self, Ends};
use crate::{environment, outputs};

/// One load of the run; a sweep has several.
struct Load {
    /// The rate, or the concurrency in a sweep of that.
    asked: f64,
    rate: f64,
    max_concurrency: Option<usize>,
    asks: Vec<PlannedRequest>,
}

pub(crate) fn bench_serve(flags: &BenchServeFlags) -> Result<(), Failure> {
    let mut target = target(flags)?;
    // Before anything is sent: a number out of range or a file that cannot be written is reported at once.
    let loads = loads(flags)?;
    let is_sweep = !flags.sweep_request_rate.is_empty() || !flags.sweep_max_concurrency.is_empty();
    places(flags)?;
    // Thousands of streams are mostly waiting: one thread leaves the cores to the server.
    let runtime = signals::runtime(0)?;
    runtime.block_on(async {
        match &flags.model {
            Some(name) => target.model = name.clone(),
            None => target.model = load::first_model(&target).await.map_err(Failure::usage)?,
        }
        let target = Arc::new(target);
        let client =
            LoadClient::connect(target.clone(), &loads[0].asks[0], flags.probe_request_rate, flags.goodput.clone());
        let client = client.await.map_err(Failure::usage)?;
        client.warm_up(flags.num_warmups, loads[0].max_concurrency).await;
        let by = if flags.sweep_max_concurrency.is_empty() { "request_rate" } else { "max_concurrency" };
        let mut swept = Swept { by, points: Vec::new() };
        // From here on Ctrl-C and SIGHUP end the measurement, not the process.
        let mut interrupts = Ends::listen()?;
        let count = loads.len();
        for (index, load) in loads.into_iter().enumerate() {
            let what =
                if is_sweep { format!("{by} {} ({} of {count})", load.asked, index + 1) } else { "asking".into() };
            let settings = settings(flags, &load, &target);
            let Load { asked, max_concurrency, asks, .. } = load;
            let planned = asks.len();
            let bar = Progress::counting(&what, "answers");
            bar.at(0, planned as u64);
            let progress = |at: LoadProgress| match at {
                LoadProgress::Answers(count) => bar.at(count as u64, planned as u64),
                LoadProgress::Timelines => bar.naming("reading the server's timelines".into()),
            };
            let measured = client.measure(asks, max_concurrency, async || interrupts.recv().await, &progress).await;
            drop(bar);
            let result = tell(flags, &settings, &measured, is_sweep)?;
            let Measured { outcomes, summary, stalls, interrupted, .. } = measured;
            let complete = outcomes.len() == planned;
            swept.points.push(Point { asked, summary, stalls, result, complete });
            if interrupted || !complete {
                note(&format!("stopped: {} of {planned} requests were answered", outcomes.len()));
                break;
            }
        }
        if is_sweep {
            tell_sweep(flags, &swept, &target.model)?;
        }
        let answered = swept.points.iter().any(|point| point.summary.completed > 0);
        if answered { Ok(()) } else { Err(Failure::Said(1)) }
    })
}

/// Every load, with distinct prompts: those of an earlier load would be found in the server's prefix cache.
fn loads(flags: &BenchServeFlags) -> Result<Vec<Load>, Failure> {
    let load = |index: usize, asked: f64, rate: f64, max_concurrency: Option<usize>| {
        let count = match (flags.sweep_num_prompts_factor, max_concurrency) {
            (Some(factor), Some(most)) => factor.saturating_mul(most),
            _ => flags.num_prompts,
        };
        let seed = flags.seed.wrapping_add(index as u64);
        Ok(Load { asked, rate, max_concurrency, asks: schedule(flags, rate, count, seed)? })
    };
    let rates = flags.sweep_request_rate.iter().enumerate();
    let concurrencies = flags.sweep_max_concurrency.iter().enumerate();
    match (flags.sweep_request_rate.is_empty(), flags.sweep_max_concurrency.is_empty()) {
        (false, _) => rates.map(|(index, &rate)| load(index, rate, rate, flags.max_concurrency)).collect(),
        (_, false) => {
            concurrencies.map(|(index, &most)| load(index, most as f64, flags.request_rate, Some(most))).collect()
        }
        _ => Ok(vec![load(0, flags.request_rate, flags.request_rate, flags.max_concurrency)?]),
    }
}

/// Whether results can be written where they are wanted.
fn places(flags: &BenchServeFlags) -> Result<(), Failure> {
    if flags.save_result || flags.save_detailed {
        if let Some(directory) = flags.result_dir.as_ref().filter(|directory| !directory.is_dir()) {
            return Err(Failure::usage(format!(
                "--result-dir: {}: is not a directory; make it first",
                directory.display()
            )));
        }
        flags.result_filename.as_ref().map(|name| result(flags, name)).transpose()?;
    }
    let svg = flags.sweep_svg.as_ref();
    svg.map_or(Ok(()), |path| outputs::place("--sweep-svg", path, outputs::Kind::Picture).map(drop))
}

fn target(flags: &BenchServeFlags) -> Result<Target, Failure> {
    let api = match flags.backend {
        LoadApi::Openai => Api::Completions,
        LoadApi::OpenaiChat => Api::Chat,
    };
    let url = flags.base_url.clone().unwrap_or_else(|| format!("http://{}:{}", flags.host, flags.port));
    let mut target = Target::new(&url, flags.endpoint.as_deref(), api, flags.insecure).map_err(Failure::usage)?;
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

fn schedule(flags: &BenchServeFlags, rate: f64, count: usize, seed: u64) -> Result<Vec<PlannedRequest>, Failure> {
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
        LoadDataset::Sessions => Dataset::Sessions {
            turns: flags.sessions_num_turns,
            pause: Duration::from_secs_f64(flags.sessions_pause),
            prefix: flags.sessions_prefix_len,
            input: flags.sessions_input_len,
            output: flags.sessions_output_len,
            cv: flags.sessions_length_cv,
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
    load::schedule(&dataset, count, &arrivals, words, seed).map_err(Failure::usage)
}

fn settings(flags: &BenchServeFlags, load: &Load, target: &Target) -> ReportSettings {
    let backend = match flags.backend {
        LoadApi::Openai => "openai",
        LoadApi::OpenaiChat => "openai-chat",
    };
    let labels = [
        ("date", json!(environment::utc(environment::now()))),
        ("backend", json!(backend)),
        ("model_id", json!(target.model)),
        ("num_prompts", json!(load.asks.len())),
        ("tpot_definition", json!("(e2el - ttft) / (output tokens - 1)")),
    ];
    ReportSettings {
        metrics: flags.percentile_metrics.clone(),
        percentiles: flags.metric_percentiles.clone(),
        goals: flags.goodput.clone(),
        request_rate: load.rate,
        burstiness: flags.burstiness,
        max_concurrency: load.max_concurrency,
        labels: labels.map(|(name, value)| (name.to_string(), value)).to_vec(),
        detailed: flags.save_detailed,
    }
}

/// Shows a load's result and returns its JSON. The points of a sweep are written together, at its end.
fn tell(
    flags: &BenchServeFlags,
    settings: &ReportSettings,
    measured: &Measured,
    is_sweep: bool,
) -> Result<Value, Failure> {
    for error in measured.outcomes.iter().filter_map(|outcome| outcome.error.as_ref()).take(3) {
        note(&format!("failed: {error}"));
    }
    let object = load::json(measured, settings);
    match flags.json {
        true if is_sweep => {}
        true => put_line(&object.to_string())?,
        false => put_line(&load::text(measured, settings))?,
    }
    if !is_sweep {
        save(flags, &object, settings.request_rate)?;
    }
    Ok(object)
}

fn tell_sweep(flags: &BenchServeFlags, swept: &Swept, model: &str) -> Result<(), Failure> {
    let object = swept.json();
    put_line(&if flags.json { object.to_string() } else { swept.table() })?;
    if let Some(path) = &flags.sweep_svg {
        written(&outputs::place("--sweep-svg", path, outputs::Kind::Picture)?, &swept.svg(model, &flags.goodput))?;
    }
    let Some(first) = object["points"].get(0) else { return Ok(()) };
    let mut named = object.clone();
    for label in ["date", "backend", "model_id"] {
        named[label] = first[label].clone();
    }
    save(flags, &named, f64::NAN)
}

/// Writes the result to a file if that was asked for. `rate` is for its name.
fn save(flags: &BenchServeFlags, object: &Value, rate: f64) -> Result<(), Failure> {
    if !(flags.save_result || flags.save_detailed) {
        return Ok(());
    }
    let rate = match rate {
        _ if rate.is_nan() => "sweep".to_owned(),
        _ if rate.is_finite() => format!("{rate}qps"),
        _ => "infqps".to_owned(),
    };
    let label = |name: &str| object[name].as_str().unwrap_or_default().replace(['/', ':'], "-");
    let name = format!("{}-{rate}-{}-{}.json", label("backend"), label("model_id"), label("date"));
    let name = flags.result_filename.clone().unwrap_or(name);
    let place = result(flags, &name)?;
    written(&place, &(outputs::json(object).to_string() + "\n"))
}

/// A place for the result.
fn result(flags: &BenchServeFlags, name: &str) -> Result<ResultFile, Failure> {
    let path = flags.result_dir.clone().unwrap_or_default().join(name);
    outputs::place("--result-filename", &path, outputs::Kind::Json)
}

fn written(place: &ResultFile, text: &str) -> Result<(), Failure> {
    outputs::put(place, text)?;
    note(&format!("written: {}", place.path().display()));
    Ok(())
}
