//! Curves of a plan, to be drawn: TTFT by prompt length, TPOT and tokens per second by batch, each with its bound.

use serde_json::{Value, json};

use crate::json::ms;
use crate::units::rounded;
use crate::{Ask, Plan};

/// Points in a factor of two.
const DENSITY: f64 = 4.0;
/// The least end of each curve, if the context allows it.
const PROMPTS: usize = 32_768;
const BATCHES: usize = 512;

/// Whole numbers from 1 to `most` by equal factors, and `own`.
fn spread(from: usize, most: usize, own: usize) -> Vec<usize> {
    let points = (0..).map(|step| (from as f64 * (f64::from(step) / DENSITY).exp2()).round() as usize);
    let mut points: Vec<usize> = points.take_while(|&point| point < most).chain([most, own]).collect();
    points.sort_unstable();
    points.dedup();
    points
}

impl Plan {
    /// One list for each axis and line.
    pub(crate) fn curves(&self) -> Value {
        let Plan { deployment, ask, .. } = self;
        let room = deployment.demands.shape.context_limit.saturating_sub(ask.written()).max(ask.prompt);
        let prompts = spread(16.min(room), room.min(PROMPTS.max(2 * ask.prompt)), ask.prompt);
        let of_prompt = |prompt: &usize| {
            let ask = Ask { prompt: *prompt, ..*ask };
            (ms(deployment.times(&ask).ttft), ms(deployment.prefill_floor(&ask)))
        };
        let batches = spread(1, BATCHES.max(2 * ask.batch), ask.batch);
        let context = ask.mean_context();
        let of_batch = |&batch: &usize| {
            let (step, floor) = (deployment.step(batch, context), deployment.decode_floor(batch, context));
            ([ms(step), ms(floor)], [step, floor].map(|seconds| rounded(batch as f64 / seconds)))
        };
        let (ttft, ttft_floor): (Vec<f64>, Vec<f64>) = prompts.iter().map(of_prompt).unzip();
        let (steps, rates): (Vec<[f64; 2]>, Vec<[f64; 2]>) = batches.iter().map(of_batch).unzip();
        let column = |pairs: &[[f64; 2]], index: usize| pairs.iter().map(|pair| pair[index]).collect::<Vec<_>>();
        json!({
            "prompt": prompts,
            "ttft_ms": ttft,
            "ttft_floor_ms": ttft_floor,
            "batch": batches,
            "tpot_ms": column(&steps, 0),
            "tpot_floor_ms": column(&steps, 1),
            "tokens_per_second": column(&rates, 0),
            "tokens_per_second_at_most": column(&rates, 1),
        })
    }
}
