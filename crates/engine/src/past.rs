//! What was asked, and what came of it: as much as a simulation needs, and nothing that could be read.
//!
//! ```text
//! prompt   [ 32 tokens | 32 tokens | 7 ]   -->   three names: equal prefixes have equal names, the tokens are gone
//! answer   so many tokens, the first then, the last then, the longest gap
//! ```

use std::hash::{DefaultHasher, Hash, Hasher};

use scheduler::{CostModel, Limits, Nanos, Priority, Request, StepRecord, Targets, TokenId, Work};
use sim::Arrival;
use sim::report::Outcome;
use sim::workload::Piece;

/// Between two steps of a busy engine there is less than this.
const BUSY: Nanos = Nanos(5_000_000);

/// Who asked, and for what; the same for all answers of a request.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    prompt: Vec<Piece>,
    priority: Priority,
    tenant: u64,
    targets: Targets,
    arrived: Nanos,
    name: u64,
}

impl Asked {
    /// `arrived` as [`Moving`] has it.
    pub(crate) fn of(request: &Request, arrived: Nanos, block_size: usize) -> Asked {
        Asked {
            prompt: pieces(&request.prompt, request.salt, block_size),
            priority: request.priority,
            tenant: request.tenant,
            targets: request.targets,
            arrived,
            name: request.id.0,
        }
    }
}

/// Names of blocks, each a hash of all tokens up to its end.
fn pieces(tokens: &[TokenId], salt: u64, block_size: usize) -> Vec<Piece> {
    let mut hasher = DefaultHasher::new();
    salt.hash(&mut hasher);
    let name = |block: &[TokenId]| {
        block.hash(&mut hasher);
        Piece { name: hasher.finish(), len: block.len() }
    };
    tokens.chunks(block_size).map(name).collect()
}

/// A token of an answer came.
pub(crate) fn count_token(outcome: &mut Outcome, now: Nanos) {
    if outcome.tokens == 0 {
        outcome.first_token = now;
    } else {
        outcome.longest_gap = outcome.longest_gap.max(now.since(outcome.last_token));
    }
    outcome.tokens += 1;
    outcome.last_token = now;
}

fn story(asked: &Asked, answer: usize, outcome: Outcome) -> Option<(Arrival, Outcome)> {
    let arrival = Arrival {
        at: asked.arrived,
        follows: None,
        prompt: asked.prompt.clone(),
        output_tokens: outcome.tokens,
        // Whatever it is called, nobody quotes it: what a later prompt repeats of it is not found in the cache.
        answer: asked.name.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ answer as u64,
        priority: asked.priority,
        tenant: asked.tenant,
        targets: asked.targets,
    };
    (outcome.tokens > 0).then_some((arrival, Outcome { arrived: asked.arrived, ..outcome }))
}

/// The engine's clock without the time in which somebody held it: what a simulation, which nobody holds, is compared with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moving {
    held: u64,
    since: Option<Nanos>,
}

impl Moving {
    pub(crate) fn pause(&mut self, now: Nanos) {
        self.since = Some(now);
    }

    pub(crate) fn resume(&mut self, now: Nanos) {
        self.held += self.since.take().map_or(0, |since| now.since(since).0);
    }

    /// A moment that is not before the last of these two.
    pub(crate) fn at(&self, now: Nanos) -> Nanos {
        let now = self.since.map_or(now, |since| now.min(since));
        now.since(Nanos(self.held))
    }
}

/// A time that is over: who asked for what, what came of it, and what each step cost.
#[derive(Clone, Debug)]
pub struct Past {
    /// As the scheduler had them.
    pub(crate) limits: Limits,
    /// What predicted its steps.
    pub(crate) cost: Option<CostModel>,
    /// Answers, in any order.
    pub(crate) stories: Vec<(Arrival, Outcome)>,
    /// When each step began, what it had to do, and how long until the next could begin.
    pub(crate) steps: Vec<(Nanos, Work, Nanos)>,
    pub(crate) preemptions: usize,
    last: Option<(Work, Nanos, Nanos)>,
}

impl Past {
    pub(crate) fn new(limits: Limits, cost: Option<CostModel>) -> Past {
        Past { limits, cost, stories: Vec::new(), steps: Vec::new(), preemptions: 0, last: None }
    }

    pub(crate) fn note_answer(&mut self, asked: &Asked, answer: usize, outcome: Outcome) {
        self.stories.extend(story(asked, answer, outcome));
    }

    /// Steps are noted in their order.
    pub(crate) fn note_step(&mut self, record: &StepRecord, moving: &Moving) {
        let next = (record.work, moving.at(record.scheduled_at), moving.at(record.completed_at));
        if let Some((work, from, to)) = self.last.replace(next) {
            // What the engine does between two steps is part of what a step costs, unless it had nothing to do.
            let between = next.1.since(to);
            let busy = if between < BUSY { between } else { Nanos(0) };
            self.steps.push((from, work, Nanos(to.since(from).0 + busy.0)));
        }
        self.preemptions += record.preempted.len();
    }
}
