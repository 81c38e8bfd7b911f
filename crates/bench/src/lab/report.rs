//! What the lab found, for the terminal, for programs and for a browser: table, JSON, CSV, pictures, one page of HTML.
//!
//! The page holds its pictures and its style and needs no script and no network.

use std::fmt::{self, Write};

use figures::Colour;
use figures::plot::{Chart, Line};
use kernels::WeightClass;
use launch::machine;
use plan::units::{bandwidth, duration, operations, percent, rounded};
use serde_json::{Value, json};

use super::{Kind as Sweeps, Lab, Point, Sweep};
use crate::limits::{limits_json, not_sure};

/// Points of a drawn law.
const POINTS: usize = 60;

/// The first line of the CSV.
pub const LAB_COLUMNS: &str =
    "sweep,x,median_ms,spread_percent,flops,bytes,intensity,compute_percent,memory_percent,bound_by\n";

impl Lab {
    fn measured(&self) -> impl Iterator<Item = &Sweep> {
        self.sweeps.iter().filter(|sweep| !sweep.points.is_empty())
    }

    fn findings(&self) -> Vec<String> {
        self.measured().filter_map(|sweep| sweep.finding()).collect()
    }

    fn limits_line(&self) -> String {
        let name = if self.weights == WeightClass::Bf16 { ("FLOP", "bf16") } else { ("OP", "int8") };
        format!(
            "read bandwidth {}{}, matrix peak {} {}{}",
            bandwidth(self.peaks.bandwidth),
            if self.in_cache { " from cache" } else { "" },
            operations(self.peaks.matrix, name.0),
            name.1,
            not_sure(self.limits.doubt()),
        )
    }

    fn machine_line(&self) -> String {
        let cpu = machine::cpu_name().unwrap_or_else(|| "unknown CPU".to_string());
        format!("{cpu}, {} threads, {} kernels, {} arithmetic", self.threads, self.isa, self.arithmetic)
    }

    /// All of it, for programs.
    pub fn json(&self) -> Value {
        let point = |point: &Point| {
            json!({
                "x": point.x,
                "samples_ms": point.samples.iter().map(|seconds| seconds * 1e3).collect::<Vec<_>>(),
                "median_ms": point.median * 1e3,
                "spread_percent": rounded(point.spread * 100.0),
                "flops": point.work.flops(),
                "bytes": point.work.bytes,
                "intensity": rounded(point.work.intensity()),
                "compute_percent": rounded(point.shares.compute * 100.0),
                "memory_percent": rounded(point.shares.memory * 100.0),
                "bound_by": point.shares.bound().name(),
            })
        };
        let sweep = |sweep: &Sweep| {
            json!({
                "name": sweep.kind.name(),
                "x": sweep.kind.x(),
                "y": sweep.kind.y(),
                "points": sweep.points.iter().map(point).collect::<Vec<_>>(),
                "law": sweep.sound_fit().map(|fit| json!({
                    "words": sweep.law(),
                    "seconds_by_power": fit.coefficients,
                    "r2": fit.r2,
                    "median_residual_percent": fit.residual * 100.0,
                })),
                "knee": sweep.knee(),
                "finding": sweep.finding(),
            })
        };
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "model": self.model,
            "model_type": self.described,
            "cpu": machine::cpu_name(),
            "threads": self.threads,
            "isa": self.isa,
            "arithmetic": self.arithmetic,
            "repetitions": self.repetitions,
            "limits": limits_json(&self.limits),
            "sweeps": self.sweeps.iter().map(sweep).collect::<Vec<_>>(),
            "interrupted": self.interrupted,
        })
    }

    /// A line for each point.
    pub fn csv(&self) -> String {
        let mut csv = LAB_COLUMNS.to_string();
        for sweep in &self.sweeps {
            for point in &sweep.points {
                // Writing to a string does not fail.
                let _ = writeln!(
                    csv,
                    "{},{},{},{},{},{},{},{},{},{}",
                    sweep.kind.name(),
                    point.x,
                    point.median * 1e3,
                    rounded(point.spread * 100.0),
                    point.work.flops(),
                    point.work.bytes,
                    rounded(point.work.intensity()),
                    rounded(point.shares.compute * 100.0),
                    rounded(point.shares.memory * 100.0),
                    point.shares.bound(),
                );
            }
        }
        csv
    }

    /// Names of the pictures that there may be.
    pub const PICTURES: [&str; 4] = ["prefill", "position", "batch", "roofline"];

    /// Names and SVG documents: a curve each, and the roofline.
    pub fn pictures(&self) -> Vec<(&'static str, String)> {
        let mut pictures: Vec<_> = self.measured().map(|sweep| (sweep.kind.name(), sweep.picture())).collect();
        pictures.push((Lab::PICTURES[3], self.roofline()));
        pictures
    }

    /// What was reached of what the machine can do at this intensity.
    fn roofline(&self) -> String {
        let dots = |kinds: &[Sweeps]| {
            let of = |sweep: &Sweep| {
                let at = |point: &Point| (point.work.intensity(), point.work.flops() / point.median / 1e9);
                sweep.points.iter().map(at).collect::<Vec<_>>()
            };
            self.sweeps.iter().filter(|sweep| kinds.contains(&sweep.kind)).flat_map(of).collect::<Vec<_>>()
        };
        let all = [dots(&[Sweeps::Prefill]), dots(&[Sweeps::Position, Sweeps::Batch])];
        let most = all.iter().flatten().map(|dot| dot.0).fold(1.0, f64::max) * 2.0;
        let least = all.iter().flatten().map(|dot| dot.0).fold(most, f64::min) / 2.0;
        let roof = |intensity: f64| (intensity * self.peaks.bandwidth).min(self.peaks.matrix) / 1e9;
        let ridge = self.peaks.matrix / self.peaks.bandwidth;
        let mut corners = vec![least, ridge.clamp(least, most), most];
        corners.dedup();
        let line = |name: &str, colour, points| Line { name: name.to_string(), colour, points };
        let chart = Chart {
            title: format!("Roofline: what was reached; the roof bends at {ridge:.0} FLOP per byte"),
            x: "FLOP per byte read".to_string(),
            y: "GFLOP/s".to_string(),
            lines: vec![
                line("prefill", Colour::Prefill, Vec::new()),
                line("decode", Colour::Decode, Vec::new()),
                line("limit of the machine", Colour::Limit, corners.into_iter().map(|x| (x, roof(x))).collect()),
            ],
        };
        chart.svg_logarithmic(&all)
    }

    /// One page. `generator`: the element that names its maker.
    pub fn html(&self, generator: &str) -> String {
        let mut html = String::new();
        // Writing to a string does not fail.
        let _ = self.write_html(&mut html, generator);
        html
    }

    fn write_html(&self, html: &mut String, generator: &str) -> fmt::Result {
        let model = escaped(&self.model);
        write!(
            html,
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n{generator}\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{model}: the two phases measured</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n\
             <h1>{model}: the two phases measured</h1>\n<p>{}; {}.<br>{}.</p>\n",
            escaped(&self.described),
            escaped(&self.machine_line()),
            escaped(&self.limits_line()),
        )?;
        if self.interrupted {
            html.push_str(
                "<p class=\"note\">The measuring was interrupted: what was measured until then is here.</p>\n",
            );
        }
        html.push_str("<h2>What bound each phase, and how sure that is</h2>\n<ul>\n");
        for finding in self.findings() {
            writeln!(html, "<li>{}</li>", escaped(&finding))?;
        }
        html.push_str("</ul>\n");
        for sweep in self.measured() {
            writeln!(html, "<section>\n<h2>{}</h2>", sweep.kind.title())?;
            writeln!(html, "<p>The law: {}.</p>", escaped(&sweep.law()))?;
            writeln!(html, "<figure>{}</figure>", sweep.picture())?;
            sweep.html_table(html)?;
            html.push_str("</section>\n");
        }
        writeln!(html, "<section>\n<h2>Both phases under one roof</h2>\n<p>{ROOF_WORDS}</p>")?;
        writeln!(html, "<figure>{}</figure>\n</section>", self.roofline())?;
        writeln!(html, "<h2>How it was measured</h2>\n<p>{HOW}</p>\n<p>twostroke {}</p>", env!("CARGO_PKG_VERSION"))?;
        html.push_str("</main>\n</body>\n</html>\n");
        Ok(())
    }
}

const ROOF_WORDS: &str = "Each dot is one of the measurements above: how many FLOP it makes of a byte, and how many a second it \
    reached. Left of the bend a machine is bound by its memory bandwidth, right of it by its compute. Prefill uses a weight for every token of a \
    pass and lies to the right; decode uses it for every request of a batch and moves to the right as the batch grows.";
const HOW: &str = "The forward pass alone, without scheduler and sampler. Each figure is the median of the repetitions, after one that \
    warms up; the spread is the largest less the smallest, as a share of it. Operations and bytes are counted from the model's shape, not \
    estimated. The limits were measured in the same run, before the first curve and after each; the highest of each counts. Laws are least \
    squares of the relative error, no part below zero.";

/// Readable by day and by night; pictures keep their white ground.
const STYLE: &str = ":root{color-scheme:light dark}body{margin:0;font:16px/1.5 system-ui,sans-serif}\
    main{max-width:52rem;margin:0 auto;padding:1rem}h1{font-size:1.6rem;line-height:1.2}h2{font-size:1.2rem;margin-top:2.2rem}\
    figure{margin:1rem 0}figure svg{display:block;width:100%;height:auto;border-radius:4px}\
    .table{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums;width:100%}\
    th,td{padding:.25rem .5rem;text-align:right;border-bottom:1px solid #8884;white-space:nowrap}th{font-weight:600;white-space:normal}\
    .note{border-left:4px solid #d9730d;padding-left:.7rem}li{margin:.5rem 0}";

impl Sweep {
    fn picture(&self) -> String {
        let dots: Vec<(f64, f64)> = self.points.iter().map(|point| (point.x as f64, point.median * 1e3)).collect();
        let most = dots.iter().map(|dot| dot.0).fold(1.0, f64::max);
        let law = self.sound_fit().into_iter().flat_map(|fit| {
            let from = dots.first().map_or(0.0, |dot| dot.0);
            (0..=POINTS).map(move |index| {
                let x = from + (most - from) * index as f64 / POINTS as f64;
                (x, fit.at(x) * 1e3)
            })
        });
        let colour = if self.kind == Sweeps::Prefill { Colour::Prefill } else { Colour::Decode };
        let name = if self.sound_fit().is_some() { "dots: measured, line: the law" } else { "measured" };
        let chart = Chart {
            title: self.kind.title().to_string(),
            x: self.kind.x().to_string(),
            y: self.kind.y().to_string(),
            lines: vec![Line { name: name.to_string(), colour, points: law.collect() }],
        };
        chart.svg_with(&[dots], &[])
    }

    const COLUMNS: [&'static str; 8] =
        ["", "median", "spread", "tokens/s", "FLOP/byte", "of peak FLOP/s", "of bandwidth", "bound by"];

    fn rows(&self) -> Vec<[String; 8]> {
        let row = |point: &Point| {
            let tokens = if self.kind == Sweeps::Position { 1 } else { point.x };
            [
                point.x.to_string(),
                fine(point.median),
                percent(point.spread),
                format!("{:.1}", tokens as f64 / point.median),
                format!("{:.1}", point.work.intensity()),
                percent(point.shares.compute),
                percent(point.shares.memory),
                point.shares.bound().to_string(),
            ]
        };
        self.points.iter().map(row).collect()
    }

    fn html_table(&self, html: &mut String) -> fmt::Result {
        html.push_str("<div class=\"table\"><table>\n<tr>");
        for (index, column) in Sweep::COLUMNS.iter().enumerate() {
            write!(html, "<th scope=\"col\">{}</th>", if index == 0 { self.kind.x() } else { column })?;
        }
        html.push_str("</tr>\n");
        for row in self.rows() {
            html.push_str("<tr>");
            row.iter().try_for_each(|cell| write!(html, "<td>{}</td>", escaped(cell)))?;
            html.push_str("</tr>\n");
        }
        html.push_str("</table></div>\n");
        Ok(())
    }
}

impl fmt::Display for Lab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} ({}), {}", self.model, self.described, self.machine_line())?;
        writeln!(f, "{}; {} repetitions", self.limits_line(), self.repetitions)?;
        for sweep in self.measured() {
            writeln!(f, "\n{}", sweep.kind.title())?;
            let mut header = Sweep::COLUMNS.map(str::to_string);
            header[0] = sweep.kind.x().to_string();
            let rows = sweep.rows();
            let width = |column: usize| {
                let cells = rows.iter().chain([&header]).map(|row| row[column].chars().count());
                cells.max().unwrap_or(0)
            };
            let widths: Vec<usize> = (0..header.len()).map(width).collect();
            for row in [&header].into_iter().chain(&rows) {
                let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:>width$}"));
                writeln!(f, "  {}", cells.collect::<Vec<_>>().join("  "))?;
            }
            writeln!(f, "  {}", sweep.law())?;
        }
        writeln!(f)?;
        self.findings().iter().try_for_each(|finding| writeln!(f, "{finding}"))
    }
}

/// As [`duration`], with more digits where a step takes less than a few milliseconds.
fn fine(seconds: f64) -> String {
    if seconds < 9.95e-3 { format!("{:.3} ms", seconds * 1e3) } else { duration(seconds) }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
