//! A plan as two charts in one SVG: the time of an answer by prompt length, and the effects of a larger batch.

use figures::Colour;
use figures::plot::{Chart, Line, stacked};

use crate::{Ask, Plan};

/// Points of a line.
const POINTS: usize = 48;

impl Plan {
    /// The whole document.
    pub fn svg(&self) -> String {
        stacked(&[(&self.lengths(), &[]), (&self.batches(), &[]), (&self.gain(), &[])])
    }

    fn title(&self) -> String {
        let demands = &self.deployment.demands;
        format!("{} on {}, {}", self.deployment.name, self.deployment.machine.name, demands.weights.name())
    }

    /// Time against the length of the prompt, by phase.
    fn lengths(&self) -> Chart {
        let longest = (2 * self.ask.prompt).max(4096).min(self.deployment.demands.shape.context_limit.max(2));
        let at = |index: usize| (longest * index / POINTS).max(1);
        let times = |index: usize| self.deployment.times(&Ask { prompt: at(index), ..self.ask });
        let line = |name: &str, colour, of: fn(&crate::Times) -> f64| Line {
            name: name.to_string(),
            colour,
            points: (0..=POINTS).map(|index| (at(index) as f64, of(&times(index)))).collect(),
        };
        Chart {
            title: format!("{}: time of an answer of {} tokens", self.title(), self.ask.written()),
            x: "prompt, tokens".to_string(),
            y: "time, s".to_string(),
            lines: vec![
                line("prefill", Colour::Prefill, |t| t.ttft),
                line("decode", Colour::Decode, |t| t.total - t.ttft),
                line("both", Colour::Ink, |t| t.total),
            ],
        }
    }

    /// Time per token and its two limits against the batch.
    fn batches(&self) -> Chart {
        let deployment = &self.deployment;
        let reached = deployment.machine.reached(&deployment.demands);
        let context = self.ask.mean_context();
        let most = (2 * self.knee.unwrap_or(256)).clamp(64, 1024).max(self.ask.batch);
        let at = |index: usize| (most * index / POINTS).max(1);
        let line = |name: &str, colour, of: &dyn Fn(usize) -> f64| Line {
            name: name.to_string(),
            colour,
            points: (0..=POINTS).map(|index| (at(index) as f64, of(at(index)) * 1e3)).collect(),
        };
        Chart {
            title: format!("Decode as the batch grows, {context:.0} tokens of context"),
            x: "batch size (concurrent requests)".to_string(),
            y: "time per token, ms".to_string(),
            lines: vec![
                line("predicted", Colour::Decode, &|batch| deployment.step(batch, context)),
                line("memory alone", Colour::Limit, &|batch| {
                    reached.memory_seconds(&deployment.step_work(batch, context))
                }),
                line("compute alone", Colour::Ink, &|batch| {
                    reached.compute_seconds(&deployment.step_work(batch, context))
                }),
            ],
        }
    }

    /// Throughput of the whole batch.
    fn gain(&self) -> Chart {
        let context = self.ask.mean_context();
        let most = (2 * self.knee.unwrap_or(256)).clamp(64, 1024).max(self.ask.batch);
        let at = |index: usize| (most * index / POINTS).max(1);
        let points = (0..=POINTS).map(|index| {
            let batch = at(index);
            (batch as f64, batch as f64 / self.deployment.step(batch, context))
        });
        Chart {
            title: "What a larger batch gains".to_string(),
            x: "batch size (concurrent requests)".to_string(),
            y: "tokens per second".to_string(),
            lines: vec![Line { name: "all requests".to_string(), colour: Colour::Decode, points: points.collect() }],
        }
    }
}
