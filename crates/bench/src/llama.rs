//! `twostroke bench` as llama-bench has it: its flags and its rows, with two more columns.
//!
//! The machine's limits are measured right before and right after each test, and the higher value counts: a virtual
//! machine changes its speed as its neighbours come and go, and a share of a limit measured at another time says
//! nothing.

use kernels::WeightClass;
use kernels::limits::Limits;
use model::ModelConfig;
use plan::units::{bandwidth, bytes, operations};
use roofline::{Bound, LimitShares, Peaks};
use serde_json::{Value, json};

use crate::forward::{ForwardTest, LoadedModel};
use crate::limits::{higher, limits_json};
use crate::rows::Rows;
use crate::setup::{BenchError, BenchSetup};
use crate::timing::Timing;

pub(crate) const HEADER: &str = "\
| model | size | params | backend | threads | test | t/s | limit | % of limit |
| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: |";

pub(crate) fn measure(setup: &BenchSetup<'_>, rows: &mut Rows<'_>) -> Result<(), BenchError> {
    let tests = tests(setup)?;
    let mut model = LoadedModel::load(setup, &tests)?;
    for test in tests {
        let before = model.limits()?;
        let samples = model.run(&test, &Timing::of_calls(setup.repetitions));
        let limits = higher(&before, &model.limits()?);
        let row = Row { test, samples, limits, model: &model };
        rows.add(&row.markdown(), &row.json(setup))?;
    }
    Ok(())
}

/// Every combination, prefill first.
pub(crate) fn tests(setup: &BenchSetup<'_>) -> Result<Vec<ForwardTest>, BenchError> {
    let &BenchSetup { n_prompt, n_gen, n_depth, batch_size, parallel, .. } = setup;
    let mut tests = Vec::new();
    let mut add = |test: ForwardTest| {
        // The shape of a decode step does not depend on the rows of a prefill step, nor the other way round.
        if !tests.contains(&test) {
            tests.push(test);
        }
    };
    for &n_depth in n_depth {
        for &n_prompt in n_prompt.iter().filter(|&&n| n > 0) {
            for &n_batch in batch_size {
                add(ForwardTest { n_prompt, n_gen: 0, n_depth, n_batch, parallel: 1 });
            }
        }
        let n_batch = batch_size[0];
        for &n_gen in n_gen.iter().filter(|&&n| n > 0) {
            for &parallel in parallel {
                add(ForwardTest { n_prompt: 0, n_gen, n_depth, n_batch, parallel });
            }
        }
    }
    if tests.is_empty() {
        return Err(BenchError::Usage("nothing to measure: -p and -n are both 0".into()));
    }
    let limit = ModelConfig::load(setup.checkpoint)?.context_limit;
    if let Some(test) = tests.iter().find(|test| test.length() > limit) {
        let (name, length) = (test.name(), test.length());
        return Err(BenchError::Usage(format!("{name} needs {length} tokens; this model reads at most {limit}")));
    }
    Ok(tests)
}

struct Row<'a> {
    test: ForwardTest,
    samples: Vec<f64>,
    limits: Limits,
    model: &'a LoadedModel,
}

impl Row<'_> {
    fn rates(&self) -> Vec<f64> {
        self.samples.iter().map(|seconds| self.test.tokens() as f64 / seconds).collect()
    }

    /// The limits that hold for this model; what was reached is possible, whatever was measured.
    fn peaks(&self) -> Peaks {
        let least = self.samples.iter().copied().fold(f64::INFINITY, f64::min);
        Peaks::of(&self.limits, &self.model.demands).raised_by(&self.model.work(&self.test), least)
    }

    fn shares(&self) -> LimitShares {
        LimitShares::within(&self.model.work(&self.test), mean(&self.samples), &self.peaks())
    }

    /// The limit that binds this shape: `26.1 GB/s`, or `3.75 TOP/s`.
    fn limit(&self) -> (f64, &'static str, String) {
        let weights = self.model.demands.weights;
        match (self.shares().roofline(), weights) {
            (Bound::Compute, WeightClass::Int8 | WeightClass::Int4) => {
                let peak = self.peaks().matrix;
                (peak, "int8 op/s", operations(peak, "OP"))
            }
            (Bound::Compute, WeightClass::Bf16) => {
                let peak = self.peaks().matrix;
                (peak, "bf16 flop/s", operations(peak, "FLOP"))
            }
            _ => {
                let peak = self.peaks().bandwidth;
                (peak, "bytes/s", bandwidth(peak))
            }
        }
    }

    fn json(&self, setup: &BenchSetup<'_>) -> Value {
        let (test, model, shares) = (&self.test, self.model, self.shares());
        let nanoseconds: Vec<f64> = self.samples.iter().map(|seconds| (seconds * 1e9).round()).collect();
        let (limit, limit_unit, _) = self.limit();
        json!({
            "backends": model.device.kind,
            "isa": model.device.kernels,
            "arithmetic": model.arithmetic.name(),
            "model_filename": setup.checkpoint.location(),
            "model_type": model.model_type(),
            "model_size": model.demands.weight_bytes,
            "type_kv": model.demands.kv_dtype.name(),
            "model_n_params": model.demands.shape.parameters(),
            "n_batch": test.n_batch,
            "n_threads": model.device.threads,
            "n_prompt": test.n_prompt,
            "n_gen": test.n_gen,
            "n_depth": test.n_depth,
            "n_parallel": test.parallel,
            "test_time": (setup.now)(),
            "avg_ns": mean(&nanoseconds).round(),
            "stddev_ns": deviation(&nanoseconds).round(),
            "avg_ts": mean(&self.rates()),
            "stddev_ts": deviation(&self.rates()),
            "samples_ns": nanoseconds,
            "samples_ts": self.rates(),
            "limit": limit,
            "limit_unit": limit_unit,
            "limit_percent": shares.of_limit() * 100.0,
            "compute_percent": shares.compute * 100.0,
            "memory_percent": shares.memory * 100.0,
            "bound_by": shares.bound().to_string(),
            "limits": limits_json(&self.limits),
        })
    }

    fn markdown(&self) -> String {
        let (model, test) = (self.model, &self.test);
        let rates = self.rates();
        let (_, _, limit) = self.limit();
        let mut name = test.name();
        if test.n_prompt > test.n_batch {
            name.push_str(&format!(" b{}", test.n_batch));
        }
        format!(
            "| {} | {} | {} | {} {}, {} | {} | {name} | {:.2} ± {:.2} | {limit} | {:.1} %{} |",
            model.model_type(),
            bytes(model.demands.weight_bytes as u64),
            model.params(),
            model.device.kind,
            model.device.kernels,
            model.arithmetic.name(),
            model.device.threads,
            mean(&rates),
            deviation(&rates),
            self.shares().of_limit() * 100.0,
            if self.limits.doubt().is_some() { " (not sure)" } else { "" },
        )
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Of a sample; 0 for a single value, as llama-bench has it.
fn deviation(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let mean = mean(values);
    (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (values.len() - 1) as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_is_that_of_a_sample() {
        assert_eq!((mean(&[1.0, 3.0]), deviation(&[7.0])), (2.0, 0.0));
        assert!((deviation(&[1.0, 2.0, 3.0]) - 1.0).abs() < 1e-12);
    }
}
