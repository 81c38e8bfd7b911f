//! From outcomes to figures, defined as `vllm bench serve` defines them.

use figures::Distribution;

use crate::load::client::RequestOutcome;

/// What is measured of each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Time to first token.
    Ttft,
    /// Time per output token, the first left out.
    Tpot,
    /// Inter-token latency: each distance counts by itself.
    Itl,
    /// End-to-end latency.
    E2el,
}

impl Metric {
    /// All, in the order in which they are shown.
    pub const ALL: [Metric; 4] = [Metric::Ttft, Metric::Tpot, Metric::Itl, Metric::E2el];

    /// As options and JSON fields name it.
    pub fn name(self) -> &'static str {
        match self {
            Metric::Ttft => "ttft",
            Metric::Tpot => "tpot",
            Metric::Itl => "itl",
            Metric::E2el => "e2el",
        }
    }
}

/// A bound that a good request keeps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goal {
    /// TTFT, TPOT or E2EL.
    pub metric: Metric,
    /// Milliseconds at most.
    pub ms: f64,
}

/// The figures of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Seconds from the first request sent to the last answer's end.
    pub duration: f64,
    /// Requests answered to the end.
    pub completed: usize,
    /// Requests that ended with an error.
    pub failed: usize,
    /// Prompt tokens of completed requests.
    pub total_input: usize,
    /// Of these, tokens that the server found in its prefix cache, if it says so.
    pub total_cached: usize,
    /// Tokens of their answers.
    pub total_output: usize,
    /// Completed requests that keep every goal, per second; `None` without goals.
    pub request_goodput: Option<f64>,
    /// Most tokens that arrived within one second of the run.
    pub max_output_tokens_per_s: f64,
    /// Most requests that were open within one second of the run.
    pub max_concurrent_requests: usize,
    distributions: [Distribution; 4],
}

impl Summary {
    /// Samples of a metric, in milliseconds.
    pub fn distribution(&self, metric: Metric) -> &Distribution {
        &self.distributions[metric as usize]
    }

    /// Completed requests per second.
    pub fn request_throughput(&self) -> f64 {
        self.per_second(self.completed)
    }

    /// Answer tokens per second.
    pub fn output_throughput(&self) -> f64 {
        self.per_second(self.total_output)
    }

    /// Tokens per second, prompts and answers.
    pub fn total_token_throughput(&self) -> f64 {
        self.per_second(self.total_input + self.total_output)
    }

    fn per_second(&self, count: usize) -> f64 {
        if self.duration > 0.0 { count as f64 / self.duration } else { 0.0 }
    }
}

/// The figures of `outcomes`. Only completed requests count, but for `failed`.
pub fn summarize(outcomes: &[RequestOutcome], goals: &[Goal]) -> Summary {
    let completed: Vec<&RequestOutcome> = outcomes.iter().filter(|outcome| outcome.error.is_none()).collect();
    let begin = outcomes.iter().map(|outcome| outcome.start).fold(f64::INFINITY, f64::min);
    let end = completed.iter().map(|outcome| outcome.start + outcome.latency).fold(0.0, f64::max);
    let duration = (end - begin).max(0.0);
    let ms = |pick: &dyn Fn(&RequestOutcome) -> Option<f64>| {
        Distribution::of(completed.iter().filter_map(|outcome| pick(outcome)).map(|seconds| seconds * 1e3).collect())
    };
    let gaps = completed.iter().flat_map(|outcome| outcome.itls.iter().map(|gap| gap * 1e3)).collect();
    let good = completed.iter().filter(|outcome| goals.iter().all(|goal| keeps(outcome, goal))).count();
    let (max_output_tokens_per_s, max_concurrent_requests) = peaks(&completed, begin, duration);
    Summary {
        duration,
        completed: completed.len(),
        failed: outcomes.len() - completed.len(),
        total_input: completed.iter().map(|outcome| outcome.prompt_tokens).sum(),
        total_cached: completed.iter().map(|outcome| outcome.cached_tokens).sum(),
        total_output: completed.iter().map(|outcome| outcome.output_tokens).sum(),
        request_goodput: (!goals.is_empty() && duration > 0.0).then(|| good as f64 / duration),
        max_output_tokens_per_s,
        max_concurrent_requests,
        distributions: [
            ms(&|outcome| Some(outcome.ttft)),
            ms(&RequestOutcome::tpot),
            Distribution::of(gaps),
            ms(&|outcome| Some(outcome.latency)),
        ],
    }
}

fn keeps(outcome: &RequestOutcome, goal: &Goal) -> bool {
    let seconds = match goal.metric {
        Metric::Ttft => outcome.ttft,
        // An answer of one token has no TPOT to miss.
        Metric::Tpot => outcome.tpot().unwrap_or(0.0),
        Metric::Itl => outcome.itls.iter().copied().fold(0.0, f64::max),
        Metric::E2el => outcome.latency,
    };
    seconds * 1e3 <= goal.ms
}

/// By seconds of the run: most tokens that came, most requests that were open.
fn peaks(completed: &[&RequestOutcome], begin: f64, duration: f64) -> (f64, usize) {
    let seconds = duration.ceil() as usize + 1;
    let (mut tokens, mut open) = (vec![0.0; seconds], vec![0; seconds]);
    for outcome in completed {
        let start = outcome.start - begin;
        let second = |time: f64| (time as usize).min(seconds - 1);
        open[second(start)..=second(start + outcome.latency)].iter_mut().for_each(|count| *count += 1);
        // An event may carry more than one token.
        let each = outcome.output_tokens as f64 / (outcome.itls.len() + 1) as f64;
        let mut at = start + outcome.ttft;
        tokens[second(at)] += each;
        for gap in &outcome.itls {
            at += gap;
            tokens[second(at)] += each;
        }
    }
    (tokens.into_iter().fold(0.0, f64::max), open.into_iter().max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(start: f64, ttft: f64, itls: &[f64]) -> RequestOutcome {
        RequestOutcome {
            start,
            ttft,
            latency: ttft + itls.iter().sum::<f64>(),
            itls: itls.to_vec(),
            prompt_tokens: 10,
            output_tokens: itls.len() + 1,
            ..RequestOutcome::default()
        }
    }

    #[test]
    fn figures_are_defined_as_vllm_defines_them() {
        let failed = RequestOutcome { start: 0.5, error: Some("no".into()), ..RequestOutcome::default() };
        let outcomes = [answered(1.0, 0.2, &[0.1, 0.3]), answered(2.0, 0.4, &[]), failed];
        let goals = [Goal { metric: Metric::Ttft, ms: 300.0 }, Goal { metric: Metric::Tpot, ms: 250.0 }];
        let summary = summarize(&outcomes, &goals);
        assert_eq!((summary.completed, summary.failed, summary.total_input, summary.total_output), (2, 1, 20, 4));
        let close = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9, "{found} {expected}");
        close(summary.duration, 1.9);
        close(summary.request_goodput.unwrap(), 1.0 / 1.9);
        close(summary.distribution(Metric::Ttft).mean(), 300.0);
        close(summary.distribution(Metric::Ttft).std(), 100.0);
        close(summary.distribution(Metric::Tpot).mean(), 200.0);
        assert_eq!(summary.distribution(Metric::Tpot).len(), 1, "an answer of one token has no TPOT");
        close(summary.distribution(Metric::Itl).percentile(50.0), 200.0);
        close(summary.distribution(Metric::Itl).percentile(25.0), 150.0);
        close(summary.distribution(Metric::E2el).percentile(100.0), 600.0);
        assert_eq!(summary.max_concurrent_requests, 2, "both were open within the second second");
    }

    #[test]
    fn nothing_answered_is_zeros_and_no_panic() {
        let failed = RequestOutcome { error: Some("no".into()), ..RequestOutcome::default() };
        let summary = summarize(&[failed], &[]);
        assert_eq!((summary.completed, summary.failed, summary.request_throughput()), (0, 1, 0.0));
        assert_eq!(summary.distribution(Metric::Itl).percentile(99.0), 0.0);
        assert_eq!(summarize(&[], &[]).duration, 0.0);
    }
}
