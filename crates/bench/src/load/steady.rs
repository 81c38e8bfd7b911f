//! The middle of a run: without its ramp-up, in which requests are few, and its drain, in which no new ones come.
//!
//! ```text
//! open      ____/~~~\/~~~~\/~~~\___
//!               |<-- window -->|
//!               |              +-- as many for the last time, or the last request sent, whichever is earlier
//!               +-- as many as in the median of the run's time are open for the first time
//! ```
//! Requests count that were sent within it, and tokens that came within it. A run that sends everything at once has no
//! steady state, and neither has one whose window holds too little of it.

use figures::Distribution;

use crate::load::client::RequestOutcome;
use crate::load::summary::Metric;

/// A window with fewer requests says nothing.
const FEWEST: usize = 10;
/// Nor does one that is a smaller part of the run.
const SHORTEST: f64 = 0.2;

/// The figures of the window.
#[derive(Clone, Debug, PartialEq)]
pub struct Steady {
    /// Seconds from the beginning of the run, and to there.
    pub from: f64,
    /// See `from`.
    pub to: f64,
    /// How long the run was.
    pub run: f64,
    /// Completed requests that were sent within it.
    pub requests: usize,
    /// Requests that ended within it, per second.
    pub request_throughput: f64,
    /// Tokens that came within it, per second.
    pub output_throughput: f64,
    /// Requests open, in the mean.
    pub concurrency: f64,
    distributions: [Distribution; 4],
}

impl Steady {
    /// Samples of a metric, in milliseconds: of requests that were sent within it; of ITL, of tokens that came within
    /// it.
    pub fn distribution(&self, metric: Metric) -> &Distribution {
        &self.distributions[metric as usize]
    }
}

/// The steady state of a run; `None` if it had none.
pub fn steady(outcomes: &[RequestOutcome]) -> Option<Steady> {
    let completed: Vec<&RequestOutcome> = outcomes.iter().filter(|outcome| outcome.error.is_none()).collect();
    let begin = completed.iter().map(|outcome| outcome.start).fold(f64::INFINITY, f64::min);
    let spans: Vec<(f64, f64)> =
        completed.iter().map(|outcome| (outcome.start - begin, outcome.start - begin + outcome.latency)).collect();
    let run = spans.iter().map(|span| span.1).fold(0.0, f64::max);
    let (from, to) = window(&spans, run)?;
    let within = |at: f64| (from..=to).contains(&at);
    let sent: Vec<&RequestOutcome> =
        completed.iter().zip(&spans).filter(|(_, span)| within(span.0)).map(|(outcome, _)| *outcome).collect();
    let seconds = to - from;
    if sent.len() < FEWEST || seconds < SHORTEST * run {
        return None;
    }
    let (mut tokens, mut gaps) = (0.0, Vec::new());
    for (outcome, span) in completed.iter().zip(&spans) {
        // An event may carry more than one token.
        let each = outcome.output_tokens as f64 / (outcome.itls.len() + 1) as f64;
        let mut at = span.0 + outcome.ttft;
        tokens += if within(at) { each } else { 0.0 };
        for gap in &outcome.itls {
            at += gap;
            if within(at) {
                tokens += each;
                gaps.push(gap * 1e3);
            }
        }
    }
    let ms = |pick: fn(&RequestOutcome) -> Option<f64>| {
        Distribution::of(sent.iter().filter_map(|outcome| pick(outcome)).map(|seconds| seconds * 1e3).collect())
    };
    let open: f64 = spans.iter().map(|span| (span.1.min(to) - span.0.max(from)).max(0.0)).sum();
    Some(Steady {
        from,
        to,
        run,
        requests: sent.len(),
        request_throughput: spans.iter().filter(|span| within(span.1)).count() as f64 / seconds,
        output_throughput: tokens / seconds,
        concurrency: open / seconds,
        distributions: [
            ms(|outcome| Some(outcome.ttft)),
            ms(RequestOutcome::tpot),
            Distribution::of(gaps),
            ms(|outcome| Some(outcome.latency)),
        ],
    })
}

/// See the module's picture. `spans`: when each request was open.
fn window(spans: &[(f64, f64)], run: f64) -> Option<(f64, f64)> {
    let mut changes: Vec<(f64, i64)> = spans.iter().flat_map(|&(from, to)| [(from, 1), (to, -1)]).collect();
    // Who comes as another leaves is not one more.
    changes.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    // How many were open, and for how long.
    let mut levels: Vec<(i64, f64, f64)> = Vec::with_capacity(changes.len());
    let mut open = 0;
    for pair in changes.windows(2) {
        open += pair[0].1;
        if pair[1].0 > pair[0].0 {
            levels.push((open, pair[0].0, pair[1].0));
        }
    }
    let median = {
        let mut by_level: Vec<(i64, f64)> = levels.iter().map(|&(open, from, to)| (open, to - from)).collect();
        by_level.sort_by_key(|&(open, _)| open);
        let mut seen = 0.0;
        by_level
            .iter()
            .find(|(_, seconds)| {
                seen += seconds;
                seen >= run / 2.0
            })?
            .0
    };
    let from = levels.iter().find(|level| level.0 >= median)?.1;
    let to = levels.iter().rev().find(|level| level.0 >= median)?.2;
    let last_sent = spans.iter().map(|span| span.0).fold(0.0, f64::max);
    let to = to.min(last_sent);
    (to > from).then_some((from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(start: f64, latency: f64) -> RequestOutcome {
        let itls = vec![latency / 10.0; 9];
        RequestOutcome { start, ttft: latency / 10.0, latency, itls, output_tokens: 10, ..RequestOutcome::default() }
    }

    #[test]
    fn ramp_up_and_drain_are_left_out() {
        // One second each, one more every 0.1 s for a while, at 10 open: then a tail without arrivals.
        let outcomes: Vec<RequestOutcome> = (0..100).map(|index| answered(5.0 + index as f64 * 0.1, 1.0)).collect();
        let steady = steady(&outcomes).expect("there is a middle");
        assert!((steady.from - 0.9).abs() < 1e-6 && (steady.to - 9.9).abs() < 1e-6, "{steady:?}");
        assert!((steady.run - 10.9).abs() < 1e-6 && (steady.concurrency - 10.0).abs() < 0.1, "{steady:?}");
        assert!((steady.output_throughput - 100.0).abs() < 2.0, "{steady:?}");
        assert!((steady.request_throughput - 10.0).abs() < 0.3, "{steady:?}");
        assert!((steady.distribution(Metric::Ttft).percentile(50.0) - 100.0).abs() < 1e-9);
        assert_eq!(steady.requests, steady.distribution(Metric::E2el).len());
        // The whole run would say 92: its ends are thin.
        let whole = 1000.0 / steady.run;
        assert!(whole < 0.93 * steady.output_throughput);
    }

    #[test]
    fn a_burst_has_no_steady_state() {
        let burst: Vec<RequestOutcome> = (0..50).map(|index| answered(0.0, 1.0 + index as f64 * 0.1)).collect();
        assert_eq!(steady(&burst), None);
        assert_eq!(steady(&[]), None);
        assert_eq!(steady(&[answered(0.0, 1.0)]), None);
        let failed = RequestOutcome { error: Some("no".into()), ..RequestOutcome::default() };
        assert_eq!(steady(&vec![failed; 40]), None);
        // A handful of requests in a long run is nothing to go by.
        let few: Vec<RequestOutcome> = (0..8).map(|index| answered(index as f64, 2.0)).collect();
        assert_eq!(steady(&few), None);
    }

    #[test]
    fn sessions_that_end_one_after_the_other_end_the_window() {
        // Ten sessions of one request after the other; half of them end after 30 s, the rest go on for as long again.
        let mut outcomes = Vec::new();
        for session in 0..10 {
            let turns = if session < 5 { 30 } else { 60 };
            outcomes.extend((0..turns).map(|turn| answered(f64::from(turn), 0.9)));
        }
        let steady = steady(&outcomes).expect("there is a middle");
        assert!(steady.from == 0.0 && steady.to < 60.0, "{steady:?}");
    }
}
