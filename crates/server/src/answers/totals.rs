//! Counts and times of all prompts of a request.

use engine::{Timings, Usage};

use super::{ResponsePlan, StreamParser};
use crate::app::App;
use crate::openai::cost::Cost;

/// Sums over the prompts of a request.
#[derive(Default)]
pub(crate) struct Totals {
    pub(crate) usage: Usage,
    pub(crate) timings: Timings,
    pub(crate) cost: Cost,
    /// Tokens of thoughts, where they are parsed.
    pub(crate) thought_tokens: Option<usize>,
}

impl Totals {
    pub(crate) fn of(plan: &ResponsePlan) -> Totals {
        let listens = plan.output_parser.as_ref().is_some_and(|output_parser| output_parser.dialect.thoughts.is_some());
        Totals { thought_tokens: listens.then_some(0), ..Totals::default() }
    }

    /// An answer was parsed to its end.
    pub(crate) fn add_thoughts(&mut self, parser: Option<&StreamParser>) {
        if let (Some(tokens), Some(parser)) = (&mut self.thought_tokens, parser) {
            *tokens += parser.thought_tokens();
        }
    }

    pub(crate) fn add(&mut self, app: &App, plan: &ResponsePlan, usage: &Usage, timings: &Timings) {
        // The steps of a beam search do not show in its times.
        if plan.beams.is_none() {
            self.cost.add(timings, &app.model.demands, app.engine.model().max_num_batched_tokens, plan.num_answers);
        }
        self.usage.prompt_tokens += usage.prompt_tokens;
        self.usage.completion_tokens += usage.completion_tokens;
        self.usage.cached_tokens += usage.cached_tokens;
        let sum = &mut self.timings;
        for (longest, this) in [
            (&mut sum.queue_ms, timings.queue_ms),
            (&mut sum.prefill_ms, timings.prefill_ms),
            (&mut sum.decode_ms, timings.decode_ms),
            (&mut sum.ttft_ms, timings.ttft_ms),
            (&mut sum.total_ms, timings.total_ms),
            (&mut sum.held_ms, timings.held_ms),
        ] {
            *longest = longest.max(this);
        }
        sum.prefill_tokens += timings.prefill_tokens;
        sum.cached_tokens += timings.cached_tokens;
        let misses = [sum.bill.miss, timings.bill.miss].into_iter().flatten();
        sum.bill.miss = misses.reduce(|a, b| if b.lost > a.lost { b } else { a });
        sum.decode_tokens += timings.decode_tokens;
        sum.decode_steps += timings.decode_steps;
        sum.verify_steps += timings.verify_steps;
        sum.drafted_tokens += timings.drafted_tokens;
        sum.accepted_tokens += timings.accepted_tokens;
        sum.preemptions += timings.preemptions;
        sum.latency_bound =
            [sum.latency_bound, timings.latency_bound].into_iter().flatten().reduce(|a, b| a.latest(&b));
    }
}
