//! The engine's past as the simulator takes it, and a recording as a past.
//!
//! ```text
//! recording --replay--> requests, steps, ends --PastLog--> Past <-- Engine::past, of one that runs
//!                                                           |
//!                                                           +--story--> an arrival, and what came of it
//! ```

use std::sync::Arc;

use engine::run_history::{PastAnswer, PastDrafts, RunHistory, RunHistoryWindow};
use ledger::Ledger;
use protocol::{Nanos, RequestId};
use scheduler::DraftSource;
use sim::Arrival;
use sim::drafts::{DraftedStep, RememberedDrafts};
use sim::report::Outcome;
use sim::workload::Piece;

use crate::read::{Recording, RecordingError};
use crate::replay::{ReplayEvent, replay};

/// Reads a recording into a past. The steps are replayed on the way, so a recording that is not what happened is
/// noticed: then this is what happened before the difference.
pub fn past(recording: Recording) -> Result<RunHistoryWindow, RecordingError> {
    let header = recording.header.clone();
    let mut log = RunHistory::unbounded(header.limits().block_size);
    // Of an account only the sums are asked for.
    let mut ledger = Ledger::new(0);
    replay(recording, &mut |told| match told {
        ReplayEvent::Admitted(request) => {
            ledger.admit(request);
            log.admitted(request);
        }
        ReplayEvent::Offered(offers) => log.offered(offers),
        ReplayEvent::Step(record, _) => {
            ledger.step(record, None, &mut |_| {});
            log.step(record);
        }
        ReplayEvent::AnswerEnded(request, answer, reason) => ledger.end_answer(request, answer, reason),
        ReplayEvent::Ended(request) => {
            if let Some(account) = ledger.end(request) {
                log.closed(&account);
            }
        }
    })?;
    Ok(log.share().since(Nanos(0), header.limits(), header.cost()))
}

/// An answer as a separate arrival, and its outcome.
pub(crate) struct Story {
    pub(crate) request: RequestId,
    pub(crate) arrival: Arrival,
    pub(crate) outcome: Outcome,
}

/// Those of a past, by arrival.
pub(crate) fn stories(past: &RunHistoryWindow) -> Vec<Story> {
    let rate = held_share(past.answers.iter().map(|answer| &**answer)).unwrap_or(0.0);
    let mut stories: Vec<Story> = past.answers.iter().map(|answer| story(answer, rate)).collect();
    stories.sort_by_key(|story| story.arrival.at);
    stories
}

/// Share of accepted drafts among those accepted or rejected; `None` where there are neither.
fn held_share<'a>(answers: impl IntoIterator<Item = &'a PastAnswer>) -> Option<f64> {
    let steps = answers.into_iter().flat_map(|answer| &answer.drafts).map(drafted_step);
    let (held, judged) = steps.fold((0, 0), |sums, step| (sums.0 + step.held, sums.1 + step.judged()));
    (judged > 0).then(|| held as f64 / judged as f64)
}

fn drafted_step(drafts: &PastDrafts) -> DraftedStep {
    let &PastDrafts { position, source, strength, offered, drafted, held } = drafts;
    DraftedStep {
        position: position as usize,
        source: DraftSource(source),
        strength,
        offered,
        drafted: drafted.into(),
        held: held.into(),
    }
}

/// `rate`: the acceptance rate, if none of the answer's own drafts was checked.
fn story(answer: &PastAnswer, rate: f64) -> Story {
    let &PastAnswer { ref request, index, tokens, first_token, last_token, longest_gap, ref drafts, .. } = answer;
    let remembered = || {
        let rate = held_share([answer]).unwrap_or(rate);
        Arc::new(RememberedDrafts::new(drafts.iter().map(drafted_step), rate))
    };
    let arrival = Arrival {
        at: request.arrived,
        follows: None,
        prompt: request.prompt.iter().map(|block| Piece { name: block.name, len: block.len }).collect(),
        output_tokens: tokens,
        // No prompt quotes this name: what a later prompt repeats of the answer is not found in the cache.
        answer: request.id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index as u64,
        priority: request.priority,
        tenant: request.tenant,
        targets: request.targets,
        drafts: (!drafts.is_empty()).then(remembered),
    };
    let arrived = request.arrived;
    let sum = |of: fn(&PastDrafts) -> u16| drafts.iter().map(|drafts| usize::from(of(drafts))).sum();
    let outcome = Outcome {
        arrived,
        first_token,
        last_token,
        longest_gap,
        tokens,
        drafted: sum(|drafts| drafts.drafted),
        held: sum(|drafts| drafts.held),
        ..Outcome::default()
    };
    Story { request: request.id, arrival, outcome }
}
