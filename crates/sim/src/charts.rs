//! The charts of a report: latency distributions, and the course of the run.

use figures::Colour;
use figures::plot::{Chart, Line};

use crate::disaggregation::PoolMoment;
use crate::report::{Moment, Report};

/// File names of [`charts`].
pub const NAMES: [&str; 5] = ["ttft.svg", "tpot.svg", "kv.svg", "load.svg", "pools.svg"];

/// The charts of a report with their file names: latency distributions, and the course of the run.
pub fn charts(report: &Report) -> Vec<(&'static str, Chart)> {
    let served = || report.outcomes.iter().filter(|outcome| outcome.tokens > 0);
    let chart = |title: &str, x: &str, y: &str, lines: Vec<Line>| Chart {
        title: format!("{title}: {}", report.workload),
        x: x.to_string(),
        y: y.to_string(),
        lines,
    };
    let line = |name: &str, colour, points| Line { name: name.to_string(), colour, points };
    let course = |name: &str, colour, of: fn(&Moment) -> f64| {
        line(name, colour, report.course.iter().map(|moment| (moment.seconds, of(moment))).collect())
    };
    let time = "time, s";
    let mut charts = vec![
        (
            "ttft.svg",
            chart(
                "Time to first token",
                "TTFT, s",
                "requests, %",
                vec![line("TTFT", Colour::Prefill, shares(served().map(|o| o.ttft())))],
            ),
        ),
        (
            "tpot.svg",
            chart(
                "Time per output token",
                "TPOT, ms",
                "requests, %",
                vec![
                    line(
                        "mean of a request",
                        Colour::Decode,
                        shares(served().filter_map(|o| o.tpot()).map(|s| s * 1e3)),
                    ),
                    line("longest gap", Colour::Late, shares(served().map(|o| o.longest_gap.as_secs_f64() * 1e3))),
                ],
            ),
        ),
        (
            "kv.svg",
            chart(
                "KV blocks",
                time,
                "blocks in use, %",
                vec![course("in use", Colour::Cached, |m| m.kv_share * 100.0)],
            ),
        ),
        (
            "load.svg",
            chart(
                "Rows and requests",
                time,
                "number",
                vec![
                    course("decode rows", Colour::Decode, |m| m.decode_rows),
                    course("prefill rows", Colour::Prefill, |m| m.prefill_rows),
                    course("waiting requests", Colour::Late, |m| m.waiting),
                ],
            ),
        ),
    ];
    if let Some(disaggregation) = &report.disaggregation {
        let pool = |of: fn(&PoolMoment) -> f64| {
            disaggregation.course.iter().map(|moment| (moment.seconds, of(moment))).collect()
        };
        let lines = vec![
            line("prefill workers busy", Colour::Prefill, pool(|moment| moment.reading * 100.0)),
            line("sequences per decode worker", Colour::Decode, pool(|moment| moment.answers)),
        ];
        charts.push(("pools.svg", chart("Prefill and decode workers", time, "%, number", lines)));
    }
    charts
}

/// The cumulative distribution in percent, in at most a few hundred points.
fn shares(values: impl Iterator<Item = f64>) -> Vec<(f64, f64)> {
    const POINTS: usize = 400;
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let len = values.len();
    let every = len.div_ceil(POINTS).max(1);
    let kept = (0..len).filter(|index| index % every == 0 || index + 1 == len);
    kept.map(|index| (values[index], (index + 1) as f64 / len as f64 * 100.0)).collect()
}
