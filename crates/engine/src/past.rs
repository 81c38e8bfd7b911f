//! What was asked, and what came of it: as much as a simulation needs, and nothing that could be read.
//!
//! ```text
//! prompt   [ 32 tokens | 32 tokens | 7 ]   -->   three names: equal prefixes have equal names, the tokens are gone
//! answer   so many tokens, the first then, the last then, the longest gap
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use ledger::{Account, AnswerTimes};
use scheduler::{CostModel, Limits, Nanos, Priority, Request, RequestId, StepRecord, Targets, TokenId, Work};
use sim::Arrival;
use sim::report::Outcome;
use sim::workload::Piece;

use crate::accounts::Closed;

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
    /// Cost: a hash over the prompt.
    pub(crate) fn of(request: &Request, block_size: usize) -> Asked {
        let &Request { id, salt, priority, tenant, targets, arrived, .. } = request;
        Asked { prompt: pieces(&request.prompt, salt, block_size), priority, tenant, targets, arrived, name: id.0 }
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

fn story(asked: &Asked, index: usize, answer: AnswerTimes) -> Option<(Arrival, Outcome)> {
    let arrival = Arrival {
        at: asked.arrived,
        follows: None,
        prompt: asked.prompt.clone(),
        output_tokens: answer.tokens,
        // Whatever it is called, nobody quotes it: what a later prompt repeats of it is not found in the cache.
        answer: asked.name.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index as u64,
        priority: asked.priority,
        tenant: asked.tenant,
        targets: asked.targets,
    };
    let AnswerTimes { tokens, first_token, last_token, longest_gap, .. } = answer;
    let arrived = asked.arrived;
    let outcome = Outcome { arrived, first_token, last_token, longest_gap, tokens, ..Outcome::default() };
    (tokens > 0).then_some((arrival, outcome))
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

    /// Answers in it.
    pub fn num_answers(&self) -> usize {
        self.stories.len()
    }

    pub(crate) fn closed(&mut self, asked: &Asked, account: &Account) {
        self.stories.extend(account.answers().enumerate().filter_map(|(index, answer)| story(asked, index, answer)));
    }

    /// Steps are noted in their order.
    pub(crate) fn step(&mut self, record: &StepRecord) {
        let next = (record.work, record.scheduled_at, record.completed_at);
        self.steps.extend(self.last.replace(next).map(|last| paced(last, next.1)));
        self.preemptions += record.preempted.len();
    }
}

/// A step with what the engine did between it and the next, unless it had nothing to do: that is part of what it costs.
fn paced((work, from, to): (Work, Nanos, Nanos), next: Nanos) -> (Nanos, Work, Nanos) {
    let between = next.since(to);
    let busy = if between < BUSY { between } else { Nanos(0) };
    (from, work, Nanos(to.since(from).0 + busy.0))
}

/// Answers that a running engine remembers.
const KEPT_STORIES: usize = 8192;
/// Blocks of their prompts.
const KEPT_PIECES: usize = 1 << 18;
/// Steps are remembered in chunks that are shared with whoever asks for them.
const CHUNK: usize = 1024;
/// Chunks.
const KEPT_CHUNKS: usize = 64;

/// The past of an engine that runs: the newest answers and steps, bounded, some ten megabytes at most.
#[derive(Debug, Default)]
pub(crate) struct History {
    block_size: usize,
    /// What the open requests asked for.
    open: BTreeMap<RequestId, Asked>,
    stories: VecDeque<Arc<(Arrival, Outcome)>>,
    pieces: usize,
    chunks: VecDeque<Arc<Vec<(Nanos, Work, Nanos)>>>,
    newest: Vec<(Nanos, Work, Nanos)>,
    preemptions: VecDeque<Nanos>,
    last: Option<(Work, Nanos, Nanos)>,
    /// Steps before this moment are forgotten.
    forgotten: Nanos,
}

impl History {
    /// Remembers what prompts ask for by blocks of so many tokens.
    pub(crate) fn new(block_size: usize) -> History {
        History { block_size, ..History::default() }
    }

    /// A request came.
    pub(crate) fn admitted(&mut self, request: &Request) {
        self.open.insert(request.id, Asked::of(request, self.block_size));
    }

    /// It is over.
    pub(crate) fn closed(&mut self, closed: &Closed) {
        let Some(asked) = self.open.remove(&closed.account.request) else { return };
        for story in closed.account.answers().enumerate().filter_map(|(index, answer)| story(&asked, index, answer)) {
            self.pieces += story.0.prompt.len();
            self.stories.push_back(Arc::new(story));
        }
        while self.stories.len() > KEPT_STORIES || self.pieces > KEPT_PIECES {
            let Some(oldest) = self.stories.pop_front() else { break };
            self.pieces -= oldest.0.prompt.len();
        }
    }

    /// A step is complete.
    pub(crate) fn step(&mut self, record: &StepRecord) {
        let next = (record.work, record.scheduled_at, record.completed_at);
        self.newest.extend(self.last.replace(next).map(|last| paced(last, next.1)));
        for _ in &record.preempted {
            if self.preemptions.len() == CHUNK {
                self.preemptions.pop_front();
            }
            self.preemptions.push_back(next.1);
        }
        if self.newest.len() == CHUNK {
            if self.chunks.len() == KEPT_CHUNKS {
                self.chunks.pop_front();
                self.forgotten = self.chunks[0][0].0;
            }
            self.chunks.push_back(Arc::new(std::mem::replace(&mut self.newest, Vec::with_capacity(CHUNK))));
        }
    }

    /// What there is, as pointers: a moment's work.
    pub(crate) fn share(&self) -> Shared {
        Shared {
            stories: self.stories.iter().cloned().collect(),
            chunks: self.chunks.iter().cloned().collect(),
            newest: self.newest.clone(),
            preemptions: self.preemptions.iter().copied().collect(),
            forgotten: self.forgotten,
        }
    }
}

/// The same, in somebody else's hands.
pub(crate) struct Shared {
    stories: Vec<Arc<(Arrival, Outcome)>>,
    chunks: Vec<Arc<Vec<(Nanos, Work, Nanos)>>>,
    newest: Vec<(Nanos, Work, Nanos)>,
    preemptions: Vec<Nanos>,
    forgotten: Nanos,
}

impl Shared {
    /// The past since `begin`, or as far as steps are remembered: answers to what came from then on.
    pub(crate) fn since(self, begin: Nanos, limits: Limits, cost: Option<CostModel>) -> Past {
        let steps = || self.chunks.iter().flat_map(|chunk| chunk.iter()).chain(&self.newest);
        let begin = begin.max(self.forgotten);
        Past {
            limits,
            cost,
            stories: self.stories.iter().filter(|story| story.0.at >= begin).map(|story| (**story).clone()).collect(),
            steps: steps().filter(|step| step.0 >= begin).copied().collect(),
            preemptions: self.preemptions.iter().filter(|&&at| at >= begin).count(),
            last: None,
        }
    }
}
