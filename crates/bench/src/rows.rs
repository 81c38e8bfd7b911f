//! Results as they come: a Markdown table, JSON or CSV, a row for each thing that was measured.

use std::io::{self, Write};

use plan::units::{bandwidth, operations, rounded};
use roofline::{LimitShares, PassWork, Peaks};
use serde_json::{Map, Value, json};

use crate::timing::{middle, spread};

/// Form of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowForm {
    /// A Markdown table.
    Md,
    /// One JSON array.
    Json,
    /// One JSON object per line, as each test ends.
    Jsonl,
    /// Comma-separated values with a header.
    Csv,
}

/// Columns of what [`Rows::timed`] writes.
pub(crate) const TIMED: &str = "\
| test | time | least to most | reads | computes | % of limit | ratio |
| --- | ---: | ---: | ---: | ---: | ---: | --- |";

/// Writes rows as they come.
pub(crate) struct Rows<'a> {
    form: RowForm,
    header: &'static str,
    /// Fields that all rows begin with.
    common: Map<String, Value>,
    count: usize,
    out: &'a mut (dyn Write + Send),
}

/// What a time is held against.
#[derive(Clone, Copy)]
pub(crate) enum Against<'a> {
    /// No limit is known for it.
    Nothing,
    /// What a call asks of the machine, and what that can do.
    Limits(PassWork, Peaks),
    /// What it was taken in turns with, and the samples of that.
    Other(&'a str, &'a [f64]),
}

impl<'a> Rows<'a> {
    /// Writes nothing before the first row: what cannot be measured is an error alone. `header`: columns in Markdown.
    /// `common`: fields that all rows begin with.
    pub(crate) fn new(form: RowForm, header: &'static str, common: Value, out: &'a mut (dyn Write + Send)) -> Rows<'a> {
        Rows { form, header, common: common.as_object().cloned().unwrap_or_default(), count: 0, out }
    }

    fn begin(&mut self) -> io::Result<()> {
        match self.form {
            RowForm::Md => writeln!(self.out, "{}", self.header),
            RowForm::Json => write!(self.out, "["),
            RowForm::Jsonl | RowForm::Csv => Ok(()),
        }
    }

    /// One row: as the Markdown table has it, and as fields.
    pub(crate) fn add(&mut self, markdown: &str, fields: &Value) -> io::Result<()> {
        let mut all = self.common.clone();
        all.extend(fields.as_object().cloned().unwrap_or_default());
        let first = self.count == 0;
        if first {
            self.begin()?;
        }
        self.count += 1;
        match self.form {
            RowForm::Md => writeln!(self.out, "{markdown}"),
            RowForm::Jsonl => writeln!(self.out, "{}", Value::Object(all)),
            RowForm::Json => write!(self.out, "{}\n  {}", if first { "" } else { "," }, Value::Object(all)),
            RowForm::Csv => {
                // Lists and objects have no place in a table.
                all.retain(|_, value| !value.is_array() && !value.is_object());
                if first {
                    writeln!(self.out, "{}", all.keys().map(String::as_str).collect::<Vec<_>>().join(","))?;
                }
                writeln!(self.out, "{}", all.values().map(csv_field).collect::<Vec<_>>().join(","))
            }
        }?;
        self.out.flush()
    }

    pub(crate) fn end(mut self) -> io::Result<()> {
        if self.count == 0 {
            self.begin()?;
        }
        if self.form == RowForm::Json { writeln!(self.out, "\n]") } else { Ok(()) }
    }

    /// One row of a table of [`TIMED`] columns: seconds of a call.
    pub(crate) fn timed(&mut self, test: String, samples: &[f64], against: Against<'_>) -> io::Result<()> {
        let [least, median, most] = spread(samples);
        let ns = |seconds: f64| rounded(seconds * 1e9);
        let mut fields = json!({
            "test": test,
            "median_ns": ns(median),
            "least_ns": ns(least),
            "most_ns": ns(most),
            "samples_ns": samples.iter().copied().map(ns).collect::<Vec<_>>(),
            // Every row has every field: a table has columns.
            "bytes_s": null, "op_s": null, "limit_percent": null, "bound_by": null, "ratio": null, "ratio_to": null,
        });
        let (mut reads, mut computes, mut of_limit, mut ratio) = Default::default();
        match against {
            Against::Nothing => {}
            Against::Limits(work, peaks) => {
                // What was reached is possible, whatever was measured.
                let shares = LimitShares::within(&work, median, &peaks.raised_by(&work, least));
                (reads, computes) = (bandwidth(work.bytes / median), operations(work.flops() / median, "OP"));
                of_limit = format!("{:.1} %, {}", shares.of_limit() * 100.0, shares.roofline());
                fields["bytes_s"] = json!((work.bytes / median).round());
                fields["op_s"] = json!((work.flops() / median).round());
                fields["limit_percent"] = json!(rounded(shares.of_limit() * 100.0));
                fields["bound_by"] = json!(shares.roofline().name());
            }
            Against::Other(name, other) => {
                let ratios: Vec<f64> = samples.iter().zip(other).map(|(own, other)| own / other).collect();
                ratio = format!("{:.3} of {name}", middle(&ratios));
                fields["ratio"] = json!(rounded(middle(&ratios)));
                fields["ratio_to"] = json!(name);
            }
        }
        let (time, range) = (time(median), format!("{} to {}", time(least), time(most)));
        self.add(&format!("| {test} | {time} | {range} | {reads} | {computes} | {of_limit} | {ratio} |"), &fields)
    }
}

/// `512 ns`, `14.2 us`, `3.61 ms`, `1.24 s`.
fn time(seconds: f64) -> String {
    match seconds {
        s if s < 1e-6 => format!("{:.0} ns", s * 1e9),
        s if s < 1e-3 => format!("{:.1} us", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

/// Quoted as RFC 4180 says, texts only.
fn csv_field(value: &Value) -> String {
    match value {
        Value::String(text) => format!("\"{}\"", text.replace('"', "\"\"")),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(form: RowForm) -> String {
        let mut out = Vec::new();
        let mut rows = Rows::new(form, TIMED, json!({"subject": "a \"b\", c"}), &mut out);
        let work = PassWork { matrix_flops: 2e9, bytes: 1e9, ..PassWork::default() };
        let peaks = Peaks { matrix: 4e12, attention: 1e12, bandwidth: 2e10 };
        let samples = [0.1, 0.125, 0.2];
        rows.timed("x".into(), &samples, Against::Limits(work, peaks)).unwrap();
        rows.timed("z".into(), &[3e-6], Against::Other("y", &[4e-6])).unwrap();
        rows.end().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_row_says_what_it_had_of_the_limit() {
        let text = written(RowForm::Md);
        let lines: Vec<&str> = text.lines().skip(2).collect();
        let first = "| x | 125.00 ms | 100.00 ms to 200.00 ms | 8.0 GB/s | 16 GOP/s | 40.0 %, memory |  |";
        assert_eq!(lines, [first, "| z | 3.0 us | 3.0 us to 3.0 us |  |  |  | 0.750 of y |"]);
        let list: Value = serde_json::from_str(&written(RowForm::Json)).unwrap();
        assert_eq!((&list[0]["limit_percent"], &list[1]["ratio"]), (&40.0.into(), &0.75.into()), "{list}");
        assert_eq!(written(RowForm::Jsonl).lines().count(), 2);
    }

    #[test]
    fn texts_of_csv_are_quoted() {
        let text = written(RowForm::Csv);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("subject,test,median_ns,least_ns,most_ns,bytes_s,"), "{text}");
        assert!(lines[1].starts_with("\"a \"\"b\"\", c\",\"x\",125000000.0,"), "{text}");
    }
}
