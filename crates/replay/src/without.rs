//! What a request would have waited had another never come: the past once more without it, in the simulator.
//!
//! ```text
//! past --- everybody --> the production scheduler, virtual clock --> simulated     beside what was: how far off
//!      \-- all but one -->                                        --> without       the answer
//! ```
//!
//! The ledger books a wait on those who were there ([`ledger`]); this is what it would have been. Both together say
//! what a request cost: whom it kept waiting, and how much of that others would have kept them waiting anyway.

use engine::past::Past;
use scheduler::RequestId;
use sim::report::Outcome;

use crate::whatif::{Changes, Course, Play, Stage, Watcher, WhatIfError};

/// Times of an answer, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AnswerFigures {
    /// Arrival to first token.
    pub ttft: f64,
    /// Arrival to last token.
    pub total: f64,
    /// The longest time from a token to the next.
    pub longest_gap: f64,
}

impl AnswerFigures {
    fn of(outcome: &Outcome) -> AnswerFigures {
        let total = outcome.last_token.since(outcome.arrived).as_secs_f64();
        AnswerFigures { ttft: outcome.ttft(), total, longest_gap: outcome.longest_gap.as_secs_f64() }
    }
}

/// One answer in three worlds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AnswerWithout {
    /// To which request.
    pub request: RequestId,
    /// As it was.
    pub recorded: AnswerFigures,
    /// The same simulated: how far it can be believed.
    pub simulated: AnswerFigures,
    /// Simulated without the other.
    pub without: AnswerFigures,
}

/// Every answer of the past but those of `other`, in the order of arrival. `watcher` sees each step of both courses,
/// and says whether they are to go on. An error if `other` had no token in this past, or was alone in it.
pub fn without(past: &Past, other: &[RequestId], watcher: &mut Watcher<'_>) -> Result<Vec<AnswerWithout>, WhatIfError> {
    let stage = Stage::of(past)?;
    let is_other = |id: &RequestId| other.contains(id);
    let stayed = stage.stories.iter().filter(|(id, ..)| !is_other(id)).count();
    if stayed == stage.stories.len() || stayed == 0 {
        return Err(WhatIfError::Nothing);
    }
    let mut play = |course, without: &[RequestId]| {
        let limits = Changes::default().limits(&past.limits);
        let believes = past.cost.is_some();
        let play = Play { course, limits, believes, guesses: true, targets: &|arrival| arrival.targets, without };
        stage.play(&play, watcher).map(|report| report.outcomes)
    };
    let simulated = play(Course::Simulated, &[])?;
    let without = play(Course::WhatIf, other)?;
    let with = stage.stories.iter().zip(&simulated).filter(|((id, ..), _)| !is_other(id));
    let answer = |((story, simulated), without): ((&(RequestId, _, Outcome), &Outcome), &Outcome)| AnswerWithout {
        request: story.0,
        recorded: AnswerFigures::of(&story.2),
        simulated: AnswerFigures::of(simulated),
        without: AnswerFigures::of(without),
    };
    Ok(with.zip(&without).map(answer).collect())
}
