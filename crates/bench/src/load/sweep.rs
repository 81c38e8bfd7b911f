//! Several loads in turn: what more throughput costs in waiting, as a table, as JSON and as a picture.
//!
//! A point is on the front (Pareto's) if no other one gives at least its throughput with at most its median TTFT.

use figures::Colour;
use figures::plot::{Chart, Label, Line};
use serde_json::{Value, json};

use crate::load::stalls::Stalls;
use crate::load::summary::{Goal, Metric, Summary};

/// One load and what came of it.
#[derive(Clone, Debug)]
pub struct Point {
    /// The rate or the concurrency that was asked for; infinite: all at once.
    pub asked: f64,
    /// The figures.
    pub summary: Summary,
    /// The gaps between tokens.
    pub stalls: Stalls,
    /// The whole result, as [`crate::load::json()`] gives it.
    pub result: Value,
    /// False: stopped before all had been answered.
    pub complete: bool,
}

/// The points of a sweep, in the order in which they were measured.
#[derive(Clone, Debug)]
pub struct Swept {
    /// What varies, as its option is called: `request_rate` or `max_concurrency`.
    pub by: &'static str,
    /// See [`Point`].
    pub points: Vec<Point>,
}

impl Point {
    fn asked(&self) -> String {
        if self.asked.is_finite() { self.asked.to_string() } else { "inf".to_owned() }
    }

    fn ttft(&self) -> f64 {
        self.summary.distribution(Metric::Ttft).percentile(50.0)
    }
}

impl Swept {
    /// Indices of the Pareto-optimal points of throughput and median TTFT.
    pub fn front(&self) -> Vec<usize> {
        let beats = |one: &Point, other: &Point| {
            let (faster, sooner) = (one.summary.output_throughput(), one.ttft());
            let (fast, soon) = (other.summary.output_throughput(), other.ttft());
            faster >= fast && sooner <= soon && (faster > fast || sooner < soon)
        };
        let answered = |point: &Point| point.complete && point.summary.completed > 0;
        let all = self.points.iter().enumerate().filter(|(_, point)| answered(point));
        let unbeaten = all.filter(|(_, point)| !self.points.iter().any(|other| answered(other) && beats(other, point)));
        unbeaten.map(|(index, _)| index).collect()
    }

    /// A row for each point; those of the front have a star, those that were stopped say so.
    pub fn table(&self) -> String {
        let asked = match self.by {
            "max_concurrency" => "concurrency",
            _ => "req/s asked",
        };
        let head = "req/s | goodput | output tok/s | TTFT p50 ms | TTFT p99 ms | TPOT p50 ms | TPOT p99 ms | stalls %";
        let mut lines = vec![format!("| {asked} | {head} | front |"), "| ---: ".repeat(9) + "| :-: |"];
        let front = self.front();
        for (index, point) in self.points.iter().enumerate() {
            let summary = &point.summary;
            let [ttft, tpot] = [Metric::Ttft, Metric::Tpot].map(|metric| summary.distribution(metric));
            let note = match (point.complete, front.contains(&index)) {
                (false, _) => "stopped",
                (true, true) => "*",
                (true, false) => "",
            };
            lines.push(format!(
                "| {} | {:.2} | {} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {note} |",
                point.asked(),
                summary.request_throughput(),
                summary.request_goodput.map_or("".into(), |goodput| format!("{goodput:.2}")),
                summary.output_throughput(),
                ttft.percentile(50.0),
                ttft.percentile(99.0),
                tpot.percentile(50.0),
                tpot.percentile(99.0),
                point.stalls.share() * 100.0,
            ));
        }
        lines.join("\n")
    }

    /// All results, and the indices of those on the front.
    pub fn json(&self) -> Value {
        let result = |point: &Point| {
            let mut result = point.result.clone();
            result["complete"] = json!(point.complete);
            result
        };
        let points: Vec<Value> = self.points.iter().map(result).collect();
        json!({ "object": "sweep", "sweep_by": self.by, "front": self.front(), "points": points })
    }

    /// TTFT against throughput, with the load beside each point, and a line for a goal of TTFT.
    pub fn svg(&self, model: &str, goals: &[Goal]) -> String {
        let at = |percent: f64| {
            let ttft = move |point: &Point| point.summary.distribution(Metric::Ttft).percentile(percent);
            let answered = self.points.iter().filter(|point| point.summary.completed > 0);
            answered.map(move |point| (point.summary.output_throughput(), ttft(point))).collect::<Vec<_>>()
        };
        let line = |name: &str, colour, points| Line { name: name.to_owned(), colour, points };
        let mut lines = vec![line("median", Colour::Prefill, at(50.0)), line("P99", Colour::Late, at(99.0))];
        let most = at(50.0).iter().map(|point| point.0).fold(0.0, f64::max);
        let goal = goals.iter().find(|goal| goal.metric == Metric::Ttft);
        lines.extend(goal.map(|goal| line("goal", Colour::Limit, vec![(0.0, goal.ms), (most, goal.ms)])));
        let answered = self.points.iter().filter(|point| point.summary.completed > 0);
        let word = |point: &Point| Label { x: point.summary.output_throughput(), y: point.ttft(), text: point.asked() };
        let words: Vec<Label> = answered.map(word).collect();
        let load = if self.by == "max_concurrency" { "requests at once" } else { "requests/s" };
        let chart = Chart {
            title: format!("{model}: what throughput costs in waiting (numbers: {load})"),
            x: "output tokens/s".to_owned(),
            y: "TTFT, ms".to_owned(),
            lines,
        };
        chart.svg_with(&[at(50.0), at(99.0)], &words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::client::RequestOutcome;
    use crate::load::summary::summarize;

    /// `count` answers within a second that waited `ttft` seconds for their first token.
    fn point(asked: f64, count: usize, ttft: f64, complete: bool) -> Point {
        let outcome =
            RequestOutcome { ttft, latency: 1.0, prompt_tokens: 5, output_tokens: 10, ..RequestOutcome::default() };
        let outcomes = vec![outcome; count];
        let goals = [Goal { metric: Metric::Ttft, ms: 300.0 }];
        let summary = summarize(&outcomes, &goals);
        Point { asked, summary, stalls: Stalls::default(), result: json!({"completed": count}), complete }
    }

    fn sweep() -> Swept {
        let points = vec![
            point(1.0, 1, 0.1, true),
            point(4.0, 4, 0.2, true),
            point(8.0, 3, 0.9, true), // overloaded: less throughput, longer waits
            point(f64::INFINITY, 9, 0.1, false),
        ];
        Swept { by: "request_rate", points }
    }

    #[test]
    fn the_front_is_what_no_point_beats_and_no_stopped_point() {
        assert_eq!(sweep().front(), [0, 1]);
        assert_eq!(Swept { by: "request_rate", points: vec![point(1.0, 0, 0.0, true)] }.front(), Vec::<usize>::new());
    }

    #[test]
    fn a_table_and_json_have_every_point() {
        let table = sweep().table();
        let rows: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(rows.len(), 4);
        assert!(rows[1].starts_with("| 4 | 4.00 | 4.00 | 40.0 | 200.0 |") && rows[1].ends_with("| * |"), "{table}");
        assert!(rows[2].contains("| 3.00 | 0.00 |") && rows[2].ends_with("|  |"), "{table}");
        assert!(rows[3].starts_with("| inf |") && rows[3].ends_with("| stopped |"), "{table}");
        let columns: Vec<usize> = table.lines().map(|line| line.matches('|').count()).collect();
        assert!(columns.iter().all(|count| *count == columns[0]), "{table}");
        let json = sweep().json();
        assert_eq!((&json["front"], json["points"].as_array().map(Vec::len)), (&json!([0, 1]), Some(4)));
        assert_eq!((&json["points"][3]["complete"], &json["points"][1]["completed"]), (&json!(false), &json!(4)));
    }

    #[test]
    fn the_picture_names_the_model_the_loads_and_the_goal() {
        let svg = sweep().svg("a<b", &[Goal { metric: Metric::Ttft, ms: 300.0 }]);
        for wanted in ["a&lt;b", ">goal<", ">inf<", ">8<", "TTFT, ms", "output tokens/s"] {
            assert!(svg.contains(wanted), "{wanted} is missing in {svg}");
        }
        // Two dots a point: the document's ground is a rectangle too.
        assert_eq!((svg.matches("<circle").count(), svg.matches("<rect").count()), (4, 5));
    }
}
