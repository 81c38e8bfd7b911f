//! Facts are counted once: what the core says happened, and the views that are made of it.
//!
//! ```text
//! core --take(Fact)--> pending --write--> sink     a recording, if there is one (recording/)
//!                                    \--> Views    accounts, counters, history and the rest (the crate `observe`)
//! ```
//!
//! The core makes one call per fact and knows none of the views; a view sees facts and closed accounts, and never the
//! core. Facts of a step are gathered and written together: the lock that readers share is taken once per step.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use observe::{Ending, FinishedSummary, Gauges, OfferEntry, RemotePrefillResult, Views};
use protocol::{FinishReason, Nanos, RequestId};
use scheduler::{CostModel, PrefixStats, Request, StepRecord};

use crate::recording::{RecordLine, RecordSink, StepTokens};
use crate::validate::ValidatedRequest;

/// Something that happened to the engine. Times are the engine's.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all facts are steps, and their buffers come back")]
pub(crate) enum Fact {
    /// A request came in: as the scheduler has it, and as it passed validation, its seed resolved.
    Admitted {
        request: Request,
        validated: Box<ValidatedRequest>,
        /// When it was taken in.
        now: Nanos,
        /// For how long the engine had been held when the request came.
        held: Nanos,
    },
    /// A plan without rows.
    Idle(Nanos),
    /// A request's prompt is read by another worker from now on.
    Left(RequestId, Nanos),
    /// This worker reads it.
    ReadBy(RequestId, String),
    /// A block of it came from there.
    Landed(RequestId, Nanos),
    /// It waits here from now on, for whatever has not come. How it went there.
    Came(RequestId, Box<RemotePrefillResult>, Nanos),
    /// A plan that was not computed: its sequences went back to the queue.
    Abandoned(Nanos, Vec<OfferEntry>),
    /// Drafts on offer in the step of the next record.
    Offered(Vec<OfferEntry>),
    /// A step is complete. `tokens`: for a recording, if there is one.
    Step { record: StepRecord, failed: Vec<RequestId>, tokens: Option<Box<StepTokens>> },
    /// The text of an answer holds a stop string. Its end follows.
    Stopped(RequestId, usize),
    /// An answer is complete.
    AnswerEnded(RequestId, usize, FinishReason),
    /// A request has all its answers.
    Finished(RequestId, Nanos),
    /// Its client went away, or does not read.
    Cancelled(RequestId, Nanos),
    /// Its rows failed, in the last step.
    Failed(RequestId, Nanos),
    /// Everything open ended with an error, and a new scheduler began with this model of costs.
    Restarted(Option<CostModel>, Nanos),
    /// The same, and nothing begins.
    Over(Nanos),
    /// The device was lost, and another goes on with a new scheduler, of whose costs nothing is known. `since`: when it
    /// began to be loaded.
    Moved { since: Nanos, now: Nanos },
    /// An open request goes on there, with the tokens that it has. For a recording, if there is one.
    Resumed { request: Request, validated: Box<ValidatedRequest>, now: Nanos },
}

/// Takes facts, in their order. Belongs to the engine's thread; the views are behind a lock.
pub(crate) struct Journal {
    views: Arc<Mutex<Views>>,
    /// Those of a rerun, and what the prefix cache had been asked when it began.
    pub(crate) turned: Option<(Arc<Mutex<Views>>, PrefixStats)>,
    /// What reruns have asked it.
    uncounted: PrefixStats,
    sink: Option<RecordSink>,
    pending: Vec<Fact>,
    /// Memory for the next step's record.
    spare: StepRecord,
    /// For how long the engine was held until now.
    paused: Nanos,
}

impl Journal {
    pub(crate) fn new(views: Arc<Mutex<Views>>) -> Journal {
        let (pending, spare, uncounted) = (Vec::new(), StepRecord::default(), PrefixStats::default());
        Journal { views, turned: None, uncounted, sink: None, pending, spare, paused: Nanos(0) }
    }

    /// From now on every input of the scheduler is written to `sink`.
    pub(crate) fn record_to(&mut self, sink: Option<RecordSink>) {
        self.sink = sink;
    }

    /// Whether the tokens of steps are recorded.
    pub(crate) fn records(&self) -> bool {
        self.sink.is_some()
    }

    /// Facts go to these views in place of the engine's, or to the engine's again. `prefix`: what the prefix cache was
    /// asked until now.
    pub(crate) fn turn(&mut self, views: Option<Arc<Mutex<Views>>>, prefix: PrefixStats) {
        let before = self.turned.take().map_or(prefix, |(_, before)| before);
        self.uncounted.queried_tokens += prefix.queried_tokens.saturating_sub(before.queried_tokens);
        self.uncounted.hit_tokens += prefix.hit_tokens.saturating_sub(before.hit_tokens);
        self.turned = views.map(|views| (views, prefix));
    }

    /// A record to write the next step into.
    pub(crate) fn spare(&mut self) -> StepRecord {
        std::mem::take(&mut self.spare)
    }

    /// Notes a fact. It is seen after the next [`Journal::write`].
    pub(crate) fn take(&mut self, fact: Fact) {
        self.pending.push(fact);
    }

    /// The engine was held for so long, all in all.
    pub(crate) fn set_paused(&mut self, paused: Nanos) {
        self.paused = paused;
    }

    /// Brings every view up to date. Reports of finished requests are appended to `finished`.
    pub(crate) fn write(&mut self, mut gauges: Gauges, cost: Option<&CostModel>, finished: &mut Vec<FinishedSummary>) {
        if let Some(sink) = &mut self.sink {
            self.pending.iter().filter_map(line).for_each(sink);
        }
        let PrefixStats { queried_tokens, hit_tokens } = &mut gauges.prefix;
        *queried_tokens = queried_tokens.saturating_sub(self.uncounted.queried_tokens);
        *hit_tokens = hit_tokens.saturating_sub(self.uncounted.hit_tokens);
        let views = self.turned.as_ref().map_or(&self.views, |(views, _)| views);
        let mut views = views.lock().unwrap_or_else(PoisonError::into_inner);
        for fact in self.pending.drain(..) {
            if let Some(spare) = show(fact, &mut views, &gauges, cost, self.paused, finished) {
                self.spare = spare;
            }
        }
        views.counters.gauge(&gauges);
    }

    /// Forgets what was not written.
    pub(crate) fn clear(&mut self) {
        self.pending.clear();
    }

    pub(crate) fn views(&self) -> MutexGuard<'_, Views> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a recording says of a fact.
fn line(fact: &Fact) -> Option<RecordLine> {
    Some(match fact {
        Fact::Admitted { request, validated, now, .. } | Fact::Resumed { request, validated, now } => {
            let (id, arrived) = (request.id, request.arrived);
            RecordLine::Admit { id, request: validated.clone(), arrived, now: *now }
        }
        Fact::Idle(now) => RecordLine::Idle(*now),
        Fact::Abandoned(now, offers) => RecordLine::Abandoned(*now, offers.clone()),
        Fact::Step { record, failed, tokens: spelled } => {
            RecordLine::Step(Box::new(record.clone()), failed.clone(), spelled.clone().unwrap_or_default())
        }
        Fact::Stopped(id, answer) => RecordLine::Stop(*id, *answer),
        Fact::Cancelled(id, now) => RecordLine::Cancel(*id, *now),
        Fact::Restarted(cost, _) => RecordLine::Restart(cost.clone()),
        Fact::Moved { .. } => RecordLine::Restart(None),
        // A recording core asks no other worker.
        Fact::Left(..) | Fact::ReadBy(..) | Fact::Landed(..) | Fact::Came(..) => return None,
        Fact::Offered(_) | Fact::AnswerEnded(..) | Fact::Finished(..) | Fact::Failed(..) | Fact::Over(_) => {
            return None;
        }
    })
}

/// Takes one fact into every view that it concerns. Returns memory of a record that is no longer kept.
fn show(
    fact: Fact,
    views: &mut Views,
    gauges: &Gauges,
    cost: Option<&CostModel>,
    held: Nanos,
    finished: &mut Vec<FinishedSummary>,
) -> Option<StepRecord> {
    match fact {
        Fact::Admitted { request, validated, held, .. } => {
            views.admit(&request, validated.class, validated.stop.max_tokens, held);
        }
        Fact::Offered(offers) => views.history.offered(&offers),
        Fact::Left(id, now) => views.accounts.begin_remote_prefill(id, now),
        Fact::ReadBy(id, worker) => views.accounts.remote_prefills.set_worker(id, &worker),
        Fact::Landed(id, now) => views.accounts.remote_prefills.receive(id, now),
        Fact::Came(id, read, now) => views.accounts.finish_remote_prefill(id, &read, now),
        Fact::Step { record, .. } => return Some(views.step(record, gauges, cost)),
        Fact::AnswerEnded(id, answer, reason) => views.accounts.end_answer(id, answer, reason),
        Fact::Finished(id, now) => finished.extend(views.close(id, Ending::Finished, now, held)),
        Fact::Cancelled(id, now) => _ = views.close(id, Ending::Cancelled, now, held),
        Fact::Failed(id, now) => _ = views.close(id, Ending::Failed, now, held),
        Fact::Restarted(_, now) | Fact::Over(now) => views.fail_all(now, held),
        Fact::Moved { since, now } => views.moved(since, now),
        Fact::Idle(_) | Fact::Abandoned(..) | Fact::Stopped(..) | Fact::Resumed { .. } => {}
    }
    None
}
