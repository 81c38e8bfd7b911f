//! The result as people and scripts know it from `vllm bench serve`: the same block of text, the same JSON fields.

use serde_json::{Map, Value, json};

use crate::client::Outcome;
use crate::summary::{Goal, Metric, Summary};

/// What is shown, and what of the run's settings goes beside the figures.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Metrics in the text and JSON.
    pub metrics: Vec<Metric>,
    /// Their percentiles, in percent.
    pub percentiles: Vec<f64>,
    /// Goals of a good request.
    pub goals: Vec<Goal>,
    /// Requests per second that were asked for.
    pub request_rate: f64,
    /// See [`crate::Arrivals::burstiness`].
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
pub fn text(summary: &Summary, settings: &Settings) -> String {
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
    lines.push("=".repeat(50));
    lines.join("\n")
}

/// The JSON object.
pub fn json(summary: &Summary, outcomes: &[Outcome], settings: &Settings) -> Value {
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
    if settings.detailed {
        let each = |pick: &dyn Fn(&Outcome) -> Value| Value::Array(outcomes.iter().map(pick).collect());
        object.insert("input_lens".into(), each(&|outcome| json!(outcome.prompt_tokens)));
        object.insert("output_lens".into(), each(&|outcome| json!(outcome.output_tokens)));
        object.insert("ttfts".into(), each(&|outcome| json!(outcome.ttft)));
        object.insert("itls".into(), each(&|outcome| json!(outcome.itls)));
        object.insert("latencies".into(), each(&|outcome| json!(outcome.latency)));
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
    use crate::summary::summarize;

    fn settings() -> Settings {
        Settings {
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

    fn outcome() -> Outcome {
        Outcome { ttft: 0.25, itls: vec![0.05], latency: 0.3, prompt_tokens: 9, output_tokens: 2, ..Outcome::default() }
    }

    #[test]
    fn the_block_has_the_lines_that_scripts_look_for() {
        let text = text(&summarize(&[outcome()], &[]), &settings());
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
        let outcomes = [outcome()];
        let json = json(&summarize(&outcomes, &[]), &outcomes, &settings());
        assert_eq!(json["p99_ttft_ms"], 250.0);
        assert_eq!(json["p99.9_itl_ms"], 50.0);
        assert_eq!(json["itls"], json!([[0.05]]));
        assert_eq!((&json["completed"], &json["request_goodput"]), (&json!(1), &Value::Null));
        assert_eq!(json["request_rate"], 2.0);
        let infinite = Settings { request_rate: f64::INFINITY, ..settings() };
        assert_eq!(super::json(&summarize(&outcomes, &[]), &outcomes, &infinite)["request_rate"], "inf");
    }
}
