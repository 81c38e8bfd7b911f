//! What was asked, and what came of it: as much as a simulation needs, and nothing that could be read.
//!
//! ```text
//! prompt   [ 32 tokens | 32 tokens | 7 ]   -->   three names: equal prefixes have equal names, the tokens are gone
//! answer   its number of tokens, the times of the first and last, the longest gap; with drafts, the accepted ones
//! ```
//!
//! A running engine keeps the newest of it (`RunHistory::bounded`), a recording is read into all of it. What is asked
//! about it is not asked here.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use ledger::{Account, AnswerTimes};
use protocol::{Nanos, Priority, RequestId, Targets, TokenId};
use scheduler::{CostModel, DraftProposal, DraftSource, Limits, RecordRow, Request, SeqId, Sequence, StepRecord, Work};
use serde::{Deserialize, Serialize};

/// Between two steps of a busy engine there is less than this.
const BUSY: Nanos = Nanos(5_000_000);

/// A block of a prompt, and which one: two blocks have one name if they and all tokens before them are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptBlock {
    /// A hash of all tokens up to its end, and of what keeps tenants apart. It leads to no token.
    pub name: u64,
    /// Tokens of it.
    pub len: usize,
}

/// Names of blocks. Cost: a hash over the prompt.
fn blocks(tokens: &[TokenId], salt: u64, block_size: usize) -> Arc<[PromptBlock]> {
    let mut hasher = DefaultHasher::new();
    salt.hash(&mut hasher);
    let name = |block: &[TokenId]| {
        block.hash(&mut hasher);
        PromptBlock { name: hasher.finish(), len: block.len() }
    };
    tokens.chunks(block_size).map(name).collect()
}

/// The tenant and the request's parameters; the same for all answers of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct PastRequest {
    /// Its number.
    pub id: RequestId,
    /// What it asked, in blocks of the KV cache's size.
    pub prompt: Arc<[PromptBlock]>,
    /// Its class.
    pub priority: Priority,
    /// Whose it was: one number per API key.
    pub tenant: u64,
    /// What it wanted to be met.
    pub targets: Targets,
    /// When it came.
    pub arrived: Nanos,
}

impl PastRequest {
    fn of(request: &Request, block_size: usize) -> PastRequest {
        let &Request { id, salt, priority, tenant, targets, arrived, .. } = request;
        PastRequest { id, prompt: blocks(&request.prompt, salt, block_size), priority, tenant, targets, arrived }
    }
}

/// An answer that had a token and is over.
#[derive(Clone, Debug, PartialEq)]
pub struct PastAnswer {
    /// Its request.
    pub request: PastRequest,
    /// Which of the request's answers.
    pub index: usize,
    /// Its tokens, at least 1.
    pub tokens: usize,
    /// Tokens of the prompt that the prefix cache had.
    pub cached_tokens: usize,
    /// When the first came.
    pub first_token: Nanos,
    /// When the last came.
    pub last_token: Nanos,
    /// The longest time between two.
    pub longest_gap: Nanos,
    /// Its steps with drafts on offer, in their order.
    pub drafts: Vec<PastDrafts>,
}

/// Drafts of an answer's tokens in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastDrafts {
    /// Which token of the answer was next.
    pub position: u32,
    /// The drafter, as the scheduler numbers it.
    pub source: u8,
    /// How sure it was.
    pub strength: u8,
    /// Drafts on offer.
    pub offered: u16,
    /// Drafts that were verified.
    pub drafted: u16,
    /// Accepted drafts: the first `held` of them.
    pub held: u16,
}

/// Drafts on offer for an answer: request, answer, source, how many, how strong.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OfferEntry(pub u64, pub usize, pub u8, pub u16, pub u8);

impl OfferEntry {
    /// What a drafter offers for this sequence.
    pub fn of(sequence: &Sequence, offer: &DraftProposal) -> OfferEntry {
        OfferEntry(sequence.request_id().0, sequence.answer(), offer.source.0, offer.len, offer.strength)
    }

    /// Whether it is for this sequence.
    pub fn is_for(&self, sequence: &Sequence) -> bool {
        (self.0, self.1) == (sequence.request_id().0, sequence.answer())
    }

    /// For a sequence of that answer.
    pub fn offer(&self, seq: SeqId) -> DraftProposal {
        DraftProposal { seq, source: DraftSource(self.2), len: self.3, strength: self.4 }
    }
}

/// A request that is not over.
#[derive(Debug)]
struct OpenRequest {
    asked: PastRequest,
    prompt_tokens: usize,
    /// By answer, in the order of steps.
    drafts: Vec<(usize, PastDrafts)>,
}

/// The request's answers that had a token.
fn answers(request: &OpenRequest, account: &Account) -> impl Iterator<Item = PastAnswer> {
    account.answers().enumerate().filter(|(_, answer)| answer.tokens > 0).map(|(index, answer)| {
        let AnswerTimes { tokens, first_token, last_token, longest_gap, .. } = answer;
        let drafts = request.drafts.iter().filter(|(of, _)| *of == index).map(|&(_, drafts)| drafts).collect();
        let (request, cached_tokens) = (request.asked.clone(), account.cached_tokens);
        PastAnswer { request, index, tokens, cached_tokens, first_token, last_token, longest_gap, drafts }
    })
}

/// A step, with what the engine did between it and the next, unless it had nothing to do: that is part of what it
/// costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PastStep {
    /// When it began.
    pub began: Nanos,
    /// What it had to do.
    pub work: Work,
    /// How long until the next could begin.
    pub took: Nanos,
}

impl PastStep {
    fn of((work, from, to): (Work, Nanos, Nanos), next: Nanos) -> PastStep {
        let between = next.since(to);
        let busy = if between < BUSY { between } else { Nanos(0) };
        PastStep { began: from, work, took: Nanos(to.since(from).0 + busy.0) }
    }
}

/// A past period: its requests, their answers, and what each step cost.
#[derive(Clone, Debug)]
pub struct RunHistoryWindow {
    /// As the scheduler had them.
    pub limits: Limits,
    /// What predicted its steps.
    pub cost: Option<CostModel>,
    /// Answers, in any order.
    pub answers: Vec<Arc<PastAnswer>>,
    /// Steps, in their order, but for the last.
    pub steps: Vec<PastStep>,
    /// Sequences that lost their blocks.
    pub preemptions: usize,
}

/// Answers that a running engine remembers.
const KEPT_ANSWERS: usize = 8192;
/// Blocks of their prompts.
const KEPT_BLOCKS: usize = 1 << 18;
/// Steps of theirs with drafts on offer.
const KEPT_DRAFTS: usize = 1 << 18;
/// Steps are remembered in chunks that are shared with readers.
const CHUNK: usize = 1024;
/// Chunks.
const KEPT_CHUNKS: usize = 64;

/// How much is kept, the newest of each.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    answers: usize,
    blocks: usize,
    drafts: usize,
    chunks: usize,
    preemptions: usize,
}

/// What the past is made of, recorded as it happens: requests, steps, and accounts that are closed.
#[derive(Debug)]
pub struct RunHistory {
    block_size: usize,
    bounds: Bounds,
    /// What the open requests asked for.
    open: BTreeMap<RequestId, OpenRequest>,
    /// Drafts on offer in the next step.
    offers: Vec<OfferEntry>,
    answers: VecDeque<Arc<PastAnswer>>,
    blocks: usize,
    drafts: usize,
    chunks: VecDeque<Arc<Vec<PastStep>>>,
    newest: Vec<PastStep>,
    preemptions: VecDeque<Nanos>,
    last: Option<(Work, Nanos, Nanos)>,
    /// Steps before this moment are forgotten.
    forgotten: Nanos,
}

impl RunHistory {
    /// Of a running engine, with KV blocks of `block_size` tokens: the newest answers and steps, some ten megabytes at
    /// most.
    pub fn bounded(block_size: usize) -> RunHistory {
        RunHistory::new(
            block_size,
            Bounds {
                answers: KEPT_ANSWERS,
                blocks: KEPT_BLOCKS,
                drafts: KEPT_DRAFTS,
                chunks: KEPT_CHUNKS,
                preemptions: CHUNK,
            },
        )
    }

    /// Of a run that is read from its beginning to its end: everything.
    pub fn unbounded(block_size: usize) -> RunHistory {
        let all = usize::MAX;
        RunHistory::new(block_size, Bounds { answers: all, blocks: all, drafts: all, chunks: all, preemptions: all })
    }

    fn new(block_size: usize, bounds: Bounds) -> RunHistory {
        RunHistory {
            block_size,
            bounds,
            open: BTreeMap::new(),
            offers: Vec::new(),
            answers: VecDeque::new(),
            blocks: 0,
            drafts: 0,
            chunks: VecDeque::new(),
            newest: Vec::new(),
            preemptions: VecDeque::new(),
            last: None,
            forgotten: Nanos(0),
        }
    }

    /// A request came. Cost: a hash over its prompt.
    pub fn admitted(&mut self, request: &Request) {
        let (asked, prompt_tokens) = (PastRequest::of(request, self.block_size), request.prompt.len());
        self.open.insert(request.id, OpenRequest { asked, prompt_tokens, drafts: Vec::new() });
    }

    /// A request is over.
    pub fn closed(&mut self, account: &Account) {
        let Some(request) = self.open.remove(&account.request) else { return };
        for answer in answers(&request, account) {
            self.blocks += answer.request.prompt.len();
            self.drafts += answer.drafts.len();
            self.answers.push_back(Arc::new(answer));
        }
        let Bounds { answers, blocks, drafts, .. } = self.bounds;
        while self.answers.len() > answers || self.blocks > blocks || self.drafts > drafts {
            let Some(oldest) = self.answers.pop_front() else { break };
            self.blocks -= oldest.request.prompt.len();
            self.drafts -= oldest.drafts.len();
        }
    }

    /// Drafts were on offer in the step of the next record.
    pub fn offered(&mut self, offers: &[OfferEntry]) {
        self.offers.extend_from_slice(offers);
    }

    /// A step is complete. Steps come in their order.
    pub fn step(&mut self, record: &StepRecord) {
        self.note_drafts(record);
        let next = (record.work, record.began_at, record.completed_at);
        self.newest.extend(self.last.replace(next).map(|last| PastStep::of(last, next.1)));
        for _ in &record.preempted {
            if self.preemptions.len() == self.bounds.preemptions {
                self.preemptions.pop_front();
            }
            self.preemptions.push_back(next.1);
        }
        if self.newest.len() == CHUNK {
            if self.chunks.len() == self.bounds.chunks {
                self.chunks.pop_front();
                self.forgotten = self.chunks[0][0].began;
            }
            self.chunks.push_back(Arc::new(std::mem::replace(&mut self.newest, Vec::with_capacity(CHUNK))));
        }
    }

    /// Offers are in the order of the rows, so each is found at once.
    fn note_drafts(&mut self, record: &StepRecord) {
        let mut rows = &record.decode[..];
        for OfferEntry(request, answer, source, offered, strength) in self.offers.drain(..) {
            let is_of = |row: &RecordRow| (row.request.0, row.answer) == (request, answer);
            let Some(index) = rows.iter().position(is_of) else { continue };
            let row = &rows[index];
            rows = &rows[index + 1..];
            let Some(open) = self.open.get_mut(&row.request) else { continue };
            // Of a row that failed nothing was judged.
            let drafted = if row.samples > 0 { row.drafts as u16 } else { 0 };
            let held = row.samples.saturating_sub(1) as u16;
            let position = (row.start + 1).saturating_sub(open.prompt_tokens) as u32;
            open.drafts.push((answer, PastDrafts { position, source, strength, offered, drafted, held }));
        }
    }

    /// The newest answers.
    pub fn newest(&self, most: usize) -> Vec<Arc<PastAnswer>> {
        self.answers.iter().rev().take(most).cloned().collect()
    }

    /// What there is, as pointers: a moment's work.
    pub fn share(&self) -> SharedPast {
        SharedPast {
            answers: self.answers.iter().cloned().collect(),
            chunks: self.chunks.iter().cloned().collect(),
            newest: self.newest.clone(),
            preemptions: self.preemptions.iter().copied().collect(),
            forgotten: self.forgotten,
        }
    }
}

/// A copy of a [`RunHistory`] as of one moment, made of pointers.
#[derive(Debug)]
pub struct SharedPast {
    answers: Vec<Arc<PastAnswer>>,
    chunks: Vec<Arc<Vec<PastStep>>>,
    newest: Vec<PastStep>,
    preemptions: Vec<Nanos>,
    forgotten: Nanos,
}

impl SharedPast {
    /// The past since `begin`, or as far as steps are remembered: answers to what came from then on.
    pub fn since(self, begin: Nanos, limits: Limits, cost: Option<CostModel>) -> RunHistoryWindow {
        let begin = begin.max(self.forgotten);
        let steps = self.chunks.iter().flat_map(|chunk| chunk.iter()).chain(&self.newest);
        RunHistoryWindow {
            limits,
            cost,
            steps: steps.filter(|step| step.began >= begin).copied().collect(),
            answers: self.answers.into_iter().filter(|answer| answer.request.arrived >= begin).collect(),
            preemptions: self.preemptions.iter().filter(|&&at| at >= begin).count(),
        }
    }
}
