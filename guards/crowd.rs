//! Many streams that decode, each behind a long text that repeats itself: what drafts cost where all have some.
//!
//! ```text
//! text      a passage, again and again, one token in some is another; the answer goes on so
//! machine   imagined: rows are nearly free as far as twice the streams, so the rule takes some drafts of many
//! step      offers ── schedule ── propose ── complete        as the engine's core does it, without a model
//! ```

use engine::LookupBench;
use protocol::{Nanos, Priority, RequestId, StopRules, Targets, TokenId};
use scheduler::cost::{Knot, Terms};
use scheduler::{
    CostModel, DraftProposal, DraftSource, Limits, Request, RowOutput, Scheduler, Step, StepOutput, StepRecord,
};

/// Streams, and the tokens behind which they answer.
pub const STREAMS: usize = 256;
pub const CONTEXT: usize = 8192;
/// The passage that repeats, and one in how many of its tokens differs each time.
const PASSAGE: usize = 700;
const TYPOS: u64 = 20;
/// Longest answer.
const ANSWER: usize = 4000;

/// The source of the drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drafter {
    /// None are.
    Off,
    /// A made-up source with eight for each stream.
    Made,
    /// What is looked up.
    LookedUp,
}

/// The streams, between two steps.
pub struct Crowd {
    pub scheduler: Scheduler,
    pub lookup: LookupBench,
    drafter: Drafter,
    offers: Vec<DraftProposal>,
    step: Step,
    output: StepOutput,
    events: Vec<scheduler::TokenEvent>,
    pub record: StepRecord,
    now: Nanos,
}

impl Crowd {
    /// They have answered for some steps.
    pub fn new(drafter: Drafter) -> Crowd {
        let limits = Limits {
            block_size: 32,
            num_blocks: STREAMS * (CONTEXT + ANSWER) / 32,
            max_model_len: CONTEXT + ANSWER,
            max_num_seqs: STREAMS,
            max_num_batched_tokens: STREAMS * 64,
            max_prefill_chunk: CONTEXT,
            max_prefill_seqs: STREAMS,
            max_queued_requests: STREAMS,
            max_queued_tokens: STREAMS * CONTEXT,
            enable_prefix_caching: true,
            states: None,
            whole_prompts: false,
            hash_key: [5; 32],
        };
        let mut scheduler = Scheduler::new(limits).expect("good limits");
        for stream in 0..STREAMS {
            scheduler.admit(request(stream)).expect("there is room");
        }
        let (offers, step, events) = (Vec::new(), Step::default(), Vec::new());
        let (output, record, lookup) = (StepOutput::default(), StepRecord::default(), LookupBench::default());
        let mut crowd = Crowd { scheduler, lookup, drafter, offers, step, output, events, record, now: Nanos(0) };
        while crowd.scheduler.decoding().count() < STREAMS {
            crowd.plan();
            crowd.complete();
        }
        crowd.scheduler.set_cost_model(Some(machine()));
        for _ in 0..32 {
            crowd.step();
        }
        crowd
    }

    /// A whole step.
    pub fn step(&mut self) {
        self.look();
        self.offer();
        self.plan();
        self.propose();
        self.complete();
    }

    /// Looks for drafts, if the scheduler wants any.
    pub fn look(&mut self) {
        self.offers.clear();
        if self.drafter != Drafter::Off && self.scheduler.wants_proposals() {
            match self.drafter {
                Drafter::LookedUp => self.offers.extend(self.lookup.offers(&self.scheduler)),
                _ => {
                    let of = |seq| DraftProposal { seq, source: DraftSource(0), len: 8, strength: 3 };
                    self.offers.extend(self.scheduler.decoding().map(|sequence| of(sequence.id())));
                }
            }
        }
    }

    /// Tells the scheduler what there is.
    pub fn offer(&mut self) {
        self.offers.iter().for_each(|&offer| self.scheduler.propose(offer));
    }

    /// Plans.
    pub fn plan(&mut self) {
        self.scheduler.schedule_into(self.now, &mut self.step);
    }

    /// What comes of each row, and with it how many drafts are accepted: of the made-up ones the first half.
    pub fn propose(&mut self) {
        let looked_up = match self.drafter {
            Drafter::LookedUp => self.lookup.propose(&self.step, &self.scheduler),
            _ => &[],
        };
        let mut looked_up = looked_up.iter();
        self.output.rows.clear();
        for rows in self.step.rows().filter(|rows| rows.samples > 0) {
            let sequence = self.scheduler.sequence(rows.seq).expect("it is planned");
            let stream = sequence.request_id().0 as usize;
            let (mut place, mut holds) = (sequence.num_tokens(), true);
            for draft in 0..=rows.drafts {
                if holds {
                    self.output.rows.push(RowOutput { seq: rows.seq, token: token(stream, place) });
                }
                if draft < rows.drafts {
                    let holds_too = match self.drafter {
                        Drafter::LookedUp => looked_up.next() == Some(&token(stream, place)),
                        _ => draft < rows.drafts.div_ceil(2),
                    };
                    holds &= holds_too;
                    place += 1;
                }
            }
        }
    }

    /// Completes, just as the machine was expected to.
    pub fn complete(&mut self) {
        if self.output.rows.is_empty() {
            self.propose();
        }
        self.output.step = self.step.id;
        self.events.clear();
        self.now.0 += self.scheduler.planned().predicted.0.max(1);
        self.scheduler.complete_into(&self.output, self.now, &mut self.events, &mut self.record);
        self.output.rows.clear();
    }
}

/// Ten milliseconds for a pass of up to twice the streams, then more and more.
fn machine() -> CostModel {
    let knots =
        [(1, 0.010), (2 * STREAMS, 0.0102), (16 * STREAMS, 0.080)].map(|(rows, seconds)| Knot { rows, seconds });
    CostModel::new(knots.to_vec(), Terms { key: 1e-12, row: 1e-7, logits: 1e-6, ..Terms::default() })
}

fn request(stream: usize) -> Request {
    Request {
        id: RequestId(stream as u64),
        prompt: (0..CONTEXT).map(|place| token(stream, place)).collect(),
        num_answers: 1,
        stop: StopRules { max_tokens: ANSWER, min_tokens: 0, stop_token_ids: vec![60_001] },
        priority: Priority(0),
        salt: 0,
        use_prefix_cache: true,
        tenant: 0,
        targets: Targets::default(),
        arrived: Nanos(0),
    }
}

/// The text of a stream.
fn token(stream: usize, place: usize) -> TokenId {
    let typo = chance(stream, place + PASSAGE);
    let at = if typo.is_multiple_of(TYPOS) { place + PASSAGE } else { place % PASSAGE };
    (chance(stream, at) % 50_000) as TokenId
}

/// SplitMix64.
fn chance(stream: usize, place: usize) -> u64 {
    let state = ((stream << 32 | place) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}
