//! The same load on every prefill/decode split of a fleet.

use std::fmt;

use figures::Colour;
use figures::plot::{Chart, Line};
use scheduler::LimitsError;
use serde_json::{Value, json};

use crate::disaggregation::Disaggregation;
use crate::report::{Report, time};
use crate::workload::Workload;
use crate::world::{Fleet, Instance, Observer, simulate};

/// A report for each split.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Number of instances.
    pub instances: usize,
    /// Number of prefill workers, and the report; the first has all workers in both roles.
    pub reports: Vec<(usize, Report)>,
}

impl Curve {
    /// Simulates `workload` on `instances` equal instances: with all in both roles, then with each split, configured by
    /// `disaggregation` from the number of prefill workers. Cost: one simulation per split.
    pub fn of(
        workload: &Workload,
        instances: usize,
        instance: &Instance,
        disaggregation: impl Fn(usize) -> Disaggregation,
        observer: &mut dyn Observer,
    ) -> Result<Curve, LimitsError> {
        let mut reports = Vec::new();
        for prefill in 0..instances {
            let fleet = Fleet::of(instances, instance);
            let fleet = if prefill == 0 { fleet } else { fleet.disaggregated(disaggregation(prefill)) };
            reports.push((prefill, simulate(workload, &fleet, observer)?));
        }
        Ok(Curve { instances, reports })
    }

    /// The split with the most goodput, or without targets with the most requests per second; ties go to the first.
    pub fn best(&self) -> usize {
        let better = |best: usize, at: usize| {
            if good(&self.reports[at].1) > good(&self.reports[best].1) { at } else { best }
        };
        self.reports[(0..self.reports.len()).reduce(better).expect("there is one at least")].0
    }

    /// As JSON: the reports in order.
    pub fn json(&self) -> Value {
        let report = |(prefill, report): &(usize, Report)| {
            let mut json = report.json();
            json["prefill"] = json!(prefill);
            json
        };
        json!({ "splits": self.reports.iter().map(report).collect::<Vec<_>>(), "best_prefill": self.best() })
    }

    /// Goodput by number of prefill workers; without targets, requests per second.
    pub fn chart(&self) -> Chart {
        let points = self.reports[1..].iter().map(|(prefill, report)| (*prefill as f64, good(report))).collect();
        let joint = good(&self.reports[0].1);
        let across = vec![(1.0, joint), ((self.instances - 1).max(1) as f64, joint)];
        let line = |name: &str, colour, points| Line { name: name.to_string(), colour, points };
        Chart {
            title: format!("{} instances: {}", self.instances, self.reports[0].1.workload),
            x: "prefill workers".to_string(),
            y: "goodput, requests/s".to_string(),
            lines: vec![
                line("disaggregated", Colour::Prefill, points),
                line("all in both roles", Colour::Decode, across),
            ],
        }
    }

    fn name(&self, prefill: usize) -> String {
        match prefill {
            0 => format!("{} of both", self.instances),
            _ => format!("{prefill}P + {}D", self.instances - prefill),
        }
    }
}

/// Goodput; without targets, all requests per second.
fn good(report: &Report) -> f64 {
    report.goodput.unwrap_or_else(|| report.requests_per_second())
}

impl fmt::Display for Curve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<16}{}", "load", self.reports[0].1.workload)?;
        let header = ["goodput/s", "served", "TTFT p50", "p99", "TPOT p50", "p99"];
        let row = |f: &mut fmt::Formatter<'_>, name: &str, cells: [String; 6]| {
            writeln!(f, "{name:<16}{}", cells.map(|cell| format!("{cell:>11}")).concat())
        };
        row(f, "", header.map(str::to_string))?;
        for (prefill, report) in &self.reports {
            let goodput = report.goodput.map_or("-".to_string(), |goodput| format!("{goodput:.2}"));
            let [ttft, tpot] = [&report.ttft, &report.tpot].map(|spread| [time(spread.p50), time(spread.p99)]);
            let ([a, b], [c, d]) = (ttft, tpot);
            row(f, &self.name(*prefill), [goodput, report.completed.to_string(), a, b, c, d])?;
        }
        writeln!(f, "{:<16}{}", "best", self.name(self.best()))
    }
}
