//! The result as people and scripts know it from `vllm bench serve`: the same block of text, the same JSON fields.

use figures::Distribution;
use serde_json::{Map, Value, json};

use crate::load::client::RequestOutcome;
use crate::load::measure::Measured;
use crate::load::phases::{PhaseSummary, phases};
use crate::load::stalls::{Attribution, Stalls, definition, late};
use crate::load::steady::{Steady, steady};
use crate::load::summary::{Goal, Metric};
use crate::load::turns::{TurnFigures, grouped, turns};

/// Prompts that are named in the text, and in the JSON.
const NAMED: (usize, usize) = (5, 100);

/// What is shown, and what of the run's settings goes beside the figures.
#[derive(Clone, Debug)]
pub struct ReportSettings {
    /// Metrics in the text and JSON.
    pub metrics: Vec<Metric>,
    /// Their percentiles, in percent.
    pub percentiles: Vec<f64>,
    /// Goals of a good request.
    pub goals: Vec<Goal>,
    /// Requests per second that were asked for.
    pub request_rate: f64,
    /// See [`crate::load::Arrivals::burstiness`].
    pub burstiness: f64,
    /// Most requests open at once.
    pub max_concurrency: Option<usize>,
    /// Further fields for the JSON, before all others.
    pub labels: Vec<(String, Value)>,
    /// Whether the JSON holds every request.
    pub detailed: bool,
}

fn title(metric: Metric) -> (&'static str, &'static str) {
    match metric {
        Metric::Ttft => ("Time to First Token", "TTFT"),
        Metric::Tpot => ("Time per Output Token (excl. 1st token)", "TPOT"),
        Metric::Itl => ("Inter-token Latency", "ITL"),
        Metric::E2el => ("End-to-end Latency", "E2EL"),
    }
}

/// The block of text.
pub fn text(measured: &Measured, settings: &ReportSettings) -> String {
    let summary = &measured.summary;
    let mut lines = vec![format!("{:=^50}", " Serving Benchmark Result ")];
    let mut line = |name: &str, value: String| lines.push(format!("{name:<40} {value:<10}").trim_end().to_owned());
    let fixed = |value: f64| format!("{value:.2}");
    line("Successful requests:", summary.completed.to_string());
    line("Failed requests:", summary.failed.to_string());
    if let Some(most) = settings.max_concurrency {
        line("Maximum request concurrency:", most.to_string());
    }
    if settings.request_rate.is_finite() {
        line("Request rate configured (RPS):", fixed(settings.request_rate));
    }
    line("Benchmark duration (s):", fixed(summary.duration));
    line("Total input tokens:", summary.total_input.to_string());
    if summary.total_cached > 0 {
        let share = summary.total_cached as f64 * 100.0 / summary.total_input.max(1) as f64;
        line("  of these in the server's cache:", format!("{} ({share:.1} %)", summary.total_cached));
    }
    line("Total generated tokens:", summary.total_output.to_string());
    line("Request throughput (req/s):", fixed(summary.request_throughput()));
    if let Some(goodput) = summary.request_goodput {
        line("Request goodput (req/s):", fixed(goodput));
    }
    line("Output token throughput (tok/s):", fixed(summary.output_throughput()));
    line("Peak output token throughput (tok/s):", fixed(summary.max_output_tokens_per_s));
    line("Peak concurrent requests:", fixed(summary.max_concurrent_requests as f64));
    line("Total token throughput (tok/s):", fixed(summary.total_token_throughput()));
    for &metric in &settings.metrics {
        let (long, short) = title(metric);
        let samples = summary.distribution(metric);
        lines.push(format!("{long:-^50}"));
        let mut line = |name: String, value: f64| lines.push(format!("{name:<40} {value:<10.2}").trim_end().to_owned());
        line(format!("Mean {short} (ms):"), samples.mean());
        line(format!("Median {short} (ms):"), samples.percentile(50.0));
        for &p in &settings.percentiles {
            line(format!("P{p} {short} (ms):"), samples.percentile(p));
        }
    }
    if let Some(steady) = steady(&measured.outcomes) {
        lines.extend(steady_text(&steady, settings));
    }
    lines.extend(turns_text(&measured.outcomes));
    lines.extend(phases_text(&measured.outcomes));
    if measured.stalls.steady.len() + measured.stalls.stalled.len() > 0 {
        lines.extend(stalls_text(&measured.stalls, &measured.outcomes));
    }
    if !measured.probes.is_empty() {
        lines.extend(probes_text(&Probes::of(&measured.probes)));
    }
    lines.push("=".repeat(50));
    lines.join("\n")
}

/// The middle of the run.
fn steady_text(steady: &Steady, settings: &ReportSettings) -> Vec<String> {
    let mut lines = vec![format!("{:-^50}", "Steady state (ramp-up and drain left out)")];
    let mut line = |name: &str, value: String| lines.push(format!("{name:<40} {value:<10}").trim_end().to_owned());
    line("Seconds of the run:", format!("{:.2} to {:.2} of {:.2}", steady.from, steady.to, steady.run));
    line("Requests sent in it:", steady.requests.to_string());
    line("Mean concurrent requests:", format!("{:.2}", steady.concurrency));
    line("Request throughput (req/s):", format!("{:.2}", steady.request_throughput));
    line("Output token throughput (tok/s):", format!("{:.2}", steady.output_throughput));
    for &metric in &settings.metrics {
        let (samples, (_, short)) = (steady.distribution(metric), title(metric));
        line(&format!("Median {short} (ms):"), format!("{:.2}", samples.percentile(50.0)));
        for &p in &settings.percentiles {
            line(&format!("P{p} {short} (ms):"), format!("{:.2}", samples.percentile(p)));
        }
    }
    lines
}

fn steady_json(steady: &Steady, settings: &ReportSettings) -> Value {
    let mut object = json!({
        "definition": "from the first to the last moment with the run's median of open requests, and no longer than \
                       requests were sent",
        "from_s": steady.from,
        "to_s": steady.to,
        "requests": steady.requests,
        "concurrency": steady.concurrency,
        "request_throughput": steady.request_throughput,
        "output_throughput": steady.output_throughput,
    });
    for &metric in &settings.metrics {
        let (samples, name) = (steady.distribution(metric), metric.name());
        object[format!("mean_{name}_ms")] = json!(samples.mean());
        object[format!("median_{name}_ms")] = json!(samples.percentile(50.0));
        for &p in &settings.percentiles {
            object[format!("p{p}_{name}_ms")] = json!(samples.percentile(p));
        }
    }
    object
}

/// Conversations turn by turn; nothing where there are none.
fn turns_text(outcomes: &[RequestOutcome]) -> Vec<String> {
    let rows = grouped(outcomes);
    if rows.is_empty() {
        return Vec::new();
    }
    let mut lines =
        vec![format!("{:-^50}", "Turns"), "turn      requests  prompt tok  hits %  TTFT p50 ms  p99 ms".to_owned()];
    for row in rows {
        let turn = if row.turn == row.to { row.turn.to_string() } else { format!("{}-{}", row.turn, row.to) };
        lines.push(format!(
            "{turn:<9} {:>8} {:>11.0} {:>7.1} {:>12.2} {:>7.2}",
            row.requests,
            row.prompt_tokens,
            row.hit_rate * 100.0,
            row.ttft.percentile(50.0),
            row.ttft.percentile(99.0),
        ));
    }
    lines
}

fn turn_json(turn: &TurnFigures) -> Value {
    json!({
        "turn": turn.turn,
        "requests": turn.requests,
        "mean_prompt_tokens": turn.prompt_tokens,
        "hit_rate": turn.hit_rate,
        "median_ttft_ms": turn.ttft.percentile(50.0),
        "p99_ttft_ms": turn.ttft.percentile(99.0),
    })
}

/// What the server says of both phases; nothing where it says nothing.
fn phases_text(outcomes: &[RequestOutcome]) -> Vec<String> {
    let told: Vec<_> =
        ["Prefill", "Decode"].into_iter().zip(phases(outcomes)).filter_map(|(name, of)| Some((name, of?))).collect();
    if told.is_empty() {
        return Vec::new();
    }
    let mut lines = vec![format!("{:-^50}", "Phases (by the server's timings)")];
    let mut line = |name: &str, value: String| lines.push(format!("{name:<40} {value:<10}").trim_end().to_owned());
    for (name, phase) in told {
        line(&format!("{name} operations, TFLOP:"), format!("{:.3}", phase.flops / 1e12));
        line(&format!("{name} intensity (FLOP/byte):"), format!("{:.2}", phase.intensity()));
        let bound = phase
            .bound_by
            .first()
            .map(|(by, count)| format!(", bound by {by} ({:.0} %)", *count as f64 * 100.0 / phase.answers as f64));
        if !phase.limit_percent.is_empty() {
            let share = phase.limit_percent.percentile(50.0);
            line(&format!("{name} share of limit, median (%):"), format!("{share:.1}{}", bound.unwrap_or_default()));
        }
    }
    lines
}

fn phase_json(phase: &PhaseSummary) -> Value {
    let known = !phase.limit_percent.is_empty();
    json!({
        "answers": phase.answers,
        "flops": phase.flops,
        "bytes": phase.bytes,
        "intensity": phase.intensity(),
        "median_limit_percent": known.then(|| phase.limit_percent.percentile(50.0)),
        "bound_by": phase.bound_by.iter().cloned().map(|(by, count)| (by, json!(count))).collect::<Map<_, _>>(),
    })
}

/// Steady gaps and late ones, and who took the late ones' time.
fn stalls_text(stalls: &Stalls, outcomes: &[RequestOutcome]) -> Vec<String> {
    let mut lines = vec![format!("{:-^50}", format!("Stalls ({})", definition()))];
    let mut line = |name: &str, value: String| lines.push(format!("{name:<40} {value:<10}").trim_end().to_owned());
    let ms = |samples: &Distribution, p: f64| match samples.is_empty() {
        true => "-".to_owned(),
        false => format!("{:.2}", samples.percentile(p)),
    };
    line("Steady gaps:", stalls.steady.len().to_string());
    line("Stalls:", format!("{} ({:.1} %)", stalls.stalled.len(), stalls.share() * 100.0));
    line("Median steady gap (ms):", ms(&stalls.steady, 50.0));
    line("Median stall (ms):", ms(&stalls.stalled, 50.0));
    line("Longest stall (ms):", ms(&stalls.stalled, 100.0));
    line("Stalls beyond the median, sum (ms):", format!("{:.2}", stalls.lost_ms));
    let Some(server) = &stalls.server else {
        lines.push("Whose time they were: this server keeps no timelines".to_owned());
        return lines;
    };
    line("Stalls found in the server's timelines:", format!("{} of {}", server.explained, server.stalls));
    let total = server.total_ms().max(f64::MIN_POSITIVE);
    for (owner, ms) in &server.owners {
        line(&format!("  {owner} (ms):"), format!("{ms:.2} ({:.0} %)", ms / total * 100.0));
    }
    for prompt in server.prompts.iter().take(NAMED.0) {
        let who = match prompt.request {
            Some(index) => format!("request {index}, {} prompt tokens", outcomes[index].prompt_tokens),
            None => prompt.name.clone(),
        };
        let held_up = format!("in {} answer{}", prompt.answers, if prompt.answers == 1 { "" } else { "s" });
        line(&format!("  prompt of {who}:"), format!("{:.2} {held_up}", prompt.ms));
    }
    lines
}

fn stalls_json(stalls: &Stalls, outcomes: &[RequestOutcome]) -> Value {
    let server = |server: &Attribution| {
        let prompts = server.prompts.iter().take(NAMED.1).map(|prompt| {
            let tokens = prompt.request.map(|index| outcomes[index].prompt_tokens);
            json!({
                "id": prompt.name,
                "request": prompt.request,
                "prompt_tokens": tokens,
                "ms": prompt.ms,
                "answers": prompt.answers,
            })
        });
        json!({
            "answers": server.answers,
            "stalls": server.stalls,
            "explained": server.explained,
            "owners_ms": server.owners.iter().cloned().map(|(name, ms)| (name, json!(ms))).collect::<Map<_, _>>(),
            "prompts": prompts.collect::<Vec<_>>(),
        })
    };
    json!({
        "definition": definition(),
        "steady_gaps": stalls.steady.len(),
        "stalls": stalls.stalled.len(),
        "answers": stalls.answers,
        "median_steady_ms": stalls.steady.percentile(50.0),
        "p99_steady_ms": stalls.steady.percentile(99.0),
        "median_stall_ms": stalls.stalled.percentile(50.0),
        "p99_stall_ms": stalls.stalled.percentile(99.0),
        "max_stall_ms": stalls.stalled.percentile(100.0),
        "lost_ms": stalls.lost_ms,
        "server": stalls.server.as_ref().map(server),
    })
}

/// What requests of one token felt.
struct Probes {
    completed: usize,
    failed: usize,
    e2el: Distribution,
}

impl Probes {
    fn of(probes: &[RequestOutcome]) -> Probes {
        let completed = probes.iter().filter(|probe| probe.error.is_none());
        let e2el = Distribution::of(completed.map(|probe| probe.latency * 1e3).collect());
        Probes { completed: e2el.len(), failed: probes.len() - e2el.len(), e2el }
    }
}

fn probes_text(probes: &Probes) -> Vec<String> {
    let mut lines = vec![format!("{:-^50}", "Probes (one token each)")];
    let mut line = |name: &str, value: String| lines.push(format!("{name:<40} {value:<10}").trim_end().to_owned());
    line("Successful probes:", probes.completed.to_string());
    line("Failed probes:", probes.failed.to_string());
    for (name, p) in [("Median", 50.0), ("P99", 99.0), ("Max", 100.0)] {
        line(&format!("{name} probe E2EL (ms):"), format!("{:.2}", probes.e2el.percentile(p)));
    }
    lines
}

/// The JSON object.
pub fn json(measured: &Measured, settings: &ReportSettings) -> Value {
    let (summary, outcomes) = (&measured.summary, &measured.outcomes[..]);
    let mut object: Map<String, Value> = settings.labels.iter().cloned().collect();
    let rate = settings.request_rate;
    let rest = json!({
        "request_rate": if rate.is_finite() { json!(rate) } else { json!("inf") },
        "burstiness": settings.burstiness,
        "max_concurrency": settings.max_concurrency,
        "duration": summary.duration,
        "completed": summary.completed,
        "failed": summary.failed,
        "total_input_tokens": summary.total_input,
        "total_cached_tokens": summary.total_cached,
        "total_output_tokens": summary.total_output,
        "request_throughput": summary.request_throughput(),
        "request_goodput": summary.request_goodput,
        "output_throughput": summary.output_throughput(),
        "total_token_throughput": summary.total_token_throughput(),
        "max_output_tokens_per_s": summary.max_output_tokens_per_s,
        "max_concurrent_requests": summary.max_concurrent_requests,
    });
    object.extend(rest.as_object().cloned().unwrap_or_default());
    for &metric in &settings.metrics {
        let (samples, name) = (summary.distribution(metric), metric.name());
        object.insert(format!("mean_{name}_ms"), json!(samples.mean()));
        object.insert(format!("median_{name}_ms"), json!(samples.percentile(50.0)));
        object.insert(format!("std_{name}_ms"), json!(samples.std()));
        for &p in &settings.percentiles {
            object.insert(format!("p{p}_{name}_ms"), json!(samples.percentile(p)));
        }
    }
    let hits = summary.total_cached as f64 / summary.total_input.max(1) as f64;
    object.insert("cache_hit_rate".into(), json!(hits));
    object.insert("steady".into(), json!(steady(outcomes).map(|steady| steady_json(&steady, settings))));
    let turns = turns(outcomes);
    if !turns.is_empty() {
        object.insert("turns".into(), turns.iter().map(turn_json).collect());
    }
    for (name, phase) in ["prefill", "decode"].into_iter().zip(phases(outcomes)) {
        if let Some(phase) = phase {
            object.insert(name.into(), phase_json(&phase));
        }
    }
    object.insert("stalls".into(), stalls_json(&measured.stalls, outcomes));
    if !measured.probes.is_empty() {
        let probes = Probes::of(&measured.probes);
        object.insert("probe_completed".into(), json!(probes.completed));
        object.insert("probe_failed".into(), json!(probes.failed));
        for (name, p) in [("median", 50.0), ("p99", 99.0), ("max", 100.0)] {
            object.insert(format!("probe_{name}_e2el_ms"), json!(probes.e2el.percentile(p)));
        }
    }
    if settings.detailed {
        let each = |pick: &dyn Fn(&RequestOutcome) -> Value| Value::Array(outcomes.iter().map(pick).collect());
        object.insert("input_lens".into(), each(&|outcome| json!(outcome.prompt_tokens)));
        object.insert("output_lens".into(), each(&|outcome| json!(outcome.output_tokens)));
        object.insert("ttfts".into(), each(&|outcome| json!(outcome.ttft)));
        object.insert("itls".into(), each(&|outcome| json!(outcome.itls)));
        object.insert("stalled_itls".into(), each(&|outcome| json!(late(&outcome.itls))));
        object.insert("connect_times".into(), each(&|outcome| json!(outcome.connect)));
        object.insert("latencies".into(), each(&|outcome| json!(outcome.latency)));
        object.insert("turn_numbers".into(), each(&|outcome| json!(outcome.turn + 1)));
        object.insert("cached_lens".into(), each(&|outcome| json!(outcome.cached_tokens)));
        object.insert("start_times".into(), each(&|outcome| json!(outcome.start)));
        object.insert("queue_times".into(), each(&|outcome| json!(outcome.queued)));
        object.insert("request_ids".into(), each(&|outcome| json!(outcome.id)));
        object.insert("errors".into(), each(&|outcome| json!(outcome.error.as_deref().unwrap_or(""))));
    }
    Value::Object(object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::stalls::Prefill;

    fn settings() -> ReportSettings {
        ReportSettings {
            metrics: vec![Metric::Ttft, Metric::Itl],
            percentiles: vec![99.0, 99.9],
            goals: vec![],
            request_rate: 2.0,
            burstiness: 1.0,
            max_concurrency: Some(4),
            labels: vec![("backend".into(), json!("openai"))],
            detailed: true,
        }
    }

    fn outcome() -> RequestOutcome {
        RequestOutcome {
            ttft: 0.25,
            itls: vec![0.05],
            latency: 0.3,
            prompt_tokens: 9,
            output_tokens: 2,
            ..RequestOutcome::default()
        }
    }

    #[test]
    fn the_block_has_the_lines_that_scripts_look_for() {
        let text = text(&Measured::of(vec![outcome()], &[]), &settings());
        for line in [
            "============ Serving Benchmark Result ============",
            "Successful requests:                     1",
            "Maximum request concurrency:             4",
            "Request rate configured (RPS):           2.00",
            "---------------Time to First Token----------------",
            "Median TTFT (ms):                        250.00",
            "P99.9 ITL (ms):                          50.00",
        ] {
            assert!(text.lines().any(|found| found == line), "{line:?} is missing in\n{text}");
        }
    }

    #[test]
    fn the_json_has_the_fields_that_scripts_look_for() {
        let measured = Measured::of(vec![outcome()], &[]);
        let json = json(&measured, &settings());
        assert_eq!(json["p99_ttft_ms"], 250.0);
        assert_eq!(json["p99.9_itl_ms"], 50.0);
        assert_eq!(json["itls"], json!([[0.05]]));
        assert_eq!((&json["completed"], &json["request_goodput"]), (&json!(1), &Value::Null));
        assert_eq!(json["request_rate"], 2.0);
        let infinite = ReportSettings { request_rate: f64::INFINITY, ..settings() };
        assert_eq!(super::json(&measured, &infinite)["request_rate"], "inf");
    }

    #[test]
    fn stalls_are_told_with_their_owners_and_without() {
        let late = RequestOutcome { itls: vec![0.01, 0.01, 0.3], output_tokens: 4, ..outcome() };
        let probe = RequestOutcome { prompt_tokens: 4096, ..outcome() };
        let mut measured = Measured { probes: vec![probe.clone()], ..Measured::of(vec![probe, late], &[]) };
        let block = text(&measured, &settings());
        for line in
            ["Stalls:                                  1 (25.0 %)", "Longest stall (ms):                      300.00"]
        {
            assert!(block.lines().any(|found| found == line), "{line:?} is missing in\n{block}");
        }
        assert!(block.contains("this server keeps no timelines"), "{block}");
        assert!(block.contains("Successful probes:                       1"), "{block}");
        let object = json(&measured, &settings());
        assert_eq!((&object["stalls"]["stalls"], &object["stalls"]["server"]), (&json!(1), &Value::Null));
        assert_eq!((&object["probe_completed"], &object["stalled_itls"]), (&json!(1), &json!([[], [2]])));

        let prompt = |name: &str, request, ms| Prefill { name: name.into(), request, ms, answers: 1 };
        let owners = vec![("other_prefill".to_owned(), 270.0), ("own_decode".to_owned(), 30.0)];
        let prompts = vec![prompt("cmpl-1", Some(0), 260.0), prompt("others", None, 10.0)];
        let server = Attribution { answers: 1, stalls: 1, explained: 1, owners, prompts };
        measured.stalls.server = Some(server);
        let block = text(&measured, &settings());
        for line in [
            "Stalls found in the server's timelines:  1 of 1",
            "  other_prefill (ms):                    270.00 (90 %)",
            "  prompt of request 0, 4096 prompt tokens: 260.00 in 1 answer",
            "  prompt of others:                      10.00 in 1 answer",
        ] {
            assert!(block.lines().any(|found| found == line), "{line:?} is missing in\n{block}");
        }
        let object = json(&measured, &settings());
        assert_eq!(object["stalls"]["server"]["owners_ms"]["other_prefill"], 270.0);
        assert_eq!(object["stalls"]["server"]["prompts"][0]["prompt_tokens"], 4096);
    }
}
