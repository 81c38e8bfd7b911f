//! Counts and times of all prompts of a request.

use engine::{Timings, Usage};
use telemetry::phase_cost::PhaseCosts;

use super::{ResponsePlan, StreamParser};
use crate::app::App;

/// Sums over the prompts of a request.
#[derive(Default)]
pub(crate) struct Totals {
    pub(crate) usage: Usage,
    pub(crate) timings: Timings,
    pub(crate) cost: PhaseCosts,
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
        self.timings.join(timings);
    }
}
