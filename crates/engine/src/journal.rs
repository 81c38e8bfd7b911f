//! Facts are counted once: what the core says happened, and the views that are made of it.
//!
//! ```text
//! core --take(Fact)--> pending --write--> sink         a recording, if there is one (recording/)
//!                                    \--> accounts     the owner of each millisecond; the only clock of a request
//!                                           \--> counters    what /metrics shows
//!                                            --> recent      steps, ends and gaps for watchers
//!                                            --> history     lengths and moments for what-if (run_history.rs)
//!                                            --> minutes     the last of them, second by second (history.rs)
//!                                            --> cache_fill  when the cache will be full
//!                                            --> finish_rate how often a request ends
//!                                            --> promises    which of them were kept
//!                                            --> phase_work  what steps asked of the machine, by phase
//! ```
//!
//! The core makes one call per fact and knows none of the views; a view sees facts and closed accounts, and never the
//! core. Facts of a step are gathered and written together: the lock that readers share is taken once per step.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ledger::LedgerEvent;
use protocol::{FinishReason, Nanos, RequestId};
use rates::{CalibrationUpdater, RooflinePeaks};
use scheduler::{CostModel, LatencyBounds, Request, StepRecord};

use crate::accounts::{Accounts, Closed, Ending};
use crate::cache_fill::CacheFillForecast;
use crate::counters::{Gauges, Stats};
use crate::finish_rate::FinishRate;
use crate::handoff::HandoffResult;
use crate::history::History;
use crate::output::{Timings, Usage};
use crate::phase_work::PhaseWorkTotals;
use crate::recent::Recent;
use crate::recording::{OfferEntry, RecordLine, RecordSink, StepTokens};
use crate::run_history::RunHistory;
use crate::validate::ValidatedRequest;

/// Something that happened to the engine. Times are the engine's.
#[derive(Debug)]
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
    Came(RequestId, Box<HandoffResult>, Nanos),
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
}

/// What is reported of a finished request.
#[derive(Debug)]
pub(crate) struct FinishedSummary {
    pub(crate) request: RequestId,
    pub(crate) usage: Usage,
    pub(crate) timings: Timings,
}

/// Takes facts, in their order. Belongs to the engine's thread; the views are behind a lock.
pub(crate) struct Journal {
    views: Arc<Mutex<Views>>,
    sink: Option<RecordSink>,
    pending: Vec<Fact>,
    /// Memory for the next step's record.
    spare: StepRecord,
    /// For how long the engine was held until now.
    paused: Nanos,
}

impl Journal {
    pub(crate) fn new(views: Arc<Mutex<Views>>) -> Journal {
        Journal { views, sink: None, pending: Vec::new(), spare: StepRecord::default(), paused: Nanos(0) }
    }

    /// From now on every input of the scheduler is written to `sink`.
    pub(crate) fn record_to(&mut self, sink: Option<RecordSink>) {
        self.sink = sink;
    }

    /// Whether the tokens of steps are recorded.
    pub(crate) fn records(&self) -> bool {
        self.sink.is_some()
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
    pub(crate) fn write(&mut self, gauges: Gauges, cost: Option<&CostModel>, finished: &mut Vec<FinishedSummary>) {
        if let Some(sink) = &mut self.sink {
            self.pending.iter().filter_map(line).for_each(sink);
        }
        let mut views = self.views.lock().unwrap_or_else(PoisonError::into_inner);
        for fact in self.pending.drain(..) {
            if let Some(spare) = views.take(fact, &gauges, cost, self.paused, finished) {
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
        Fact::Admitted { request, validated, now, .. } => {
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
        // A recording core asks no other worker.
        Fact::Left(..) | Fact::ReadBy(..) | Fact::Landed(..) | Fact::Came(..) => return None,
        Fact::Offered(_) | Fact::AnswerEnded(..) | Fact::Finished(..) | Fact::Failed(..) | Fact::Over(_) => {
            return None;
        }
    })
}

/// Every view of what happened.
#[derive(Debug)]
pub(crate) struct Views {
    pub(crate) accounts: Accounts,
    pub(crate) counters: Stats,
    pub(crate) recent: Recent,
    pub(crate) history: RunHistory,
    pub(crate) minutes: History,
    pub(crate) cache_fill: CacheFillForecast,
    pub(crate) finish_rate: FinishRate,
    pub(crate) promises: LatencyBounds,
    pub(crate) phase_work: PhaseWorkTotals,
    /// Measured limits of the machine; `None` where they were not measured.
    pub(crate) peaks: Option<RooflinePeaks>,
    /// What steps cost; `None` where it was not measured.
    pub(crate) calibration: Option<CalibrationUpdater>,
}

impl Views {
    /// Of an engine that has done nothing yet, with KV blocks of `block_size` tokens.
    pub(crate) fn new(block_size: usize) -> Views {
        Views {
            accounts: Accounts::default(),
            counters: Stats::default(),
            recent: Recent::default(),
            history: RunHistory::bounded(block_size),
            minutes: History::default(),
            cache_fill: CacheFillForecast::default(),
            finish_rate: FinishRate::default(),
            promises: LatencyBounds::default(),
            phase_work: PhaseWorkTotals::default(),
            peaks: None,
            calibration: None,
        }
    }

    /// Takes one fact into every view that it concerns. Returns memory of a record that is no longer kept.
    fn take(
        &mut self,
        fact: Fact,
        gauges: &Gauges,
        cost: Option<&CostModel>,
        held: Nanos,
        finished: &mut Vec<FinishedSummary>,
    ) -> Option<StepRecord> {
        match fact {
            Fact::Admitted { request, validated, held, .. } => {
                if self.accounts.num_open() == 0 {
                    self.finish_rate.begins(request.arrived);
                }
                self.history.admitted(&request);
                self.accounts.open(&request, validated.class, validated.stop.max_tokens, held);
            }
            Fact::Offered(offers) => self.history.offered(&offers),
            Fact::Left(id, now) => self.accounts.begin_remote_prefill(id, now),
            Fact::ReadBy(id, worker) => self.accounts.remote_prefills.set_worker(id, &worker),
            Fact::Landed(id, now) => self.accounts.remote_prefills.receive(id, now),
            Fact::Came(id, over, now) => self.accounts.finish_remote_prefill(id, &over, now),
            Fact::Step { record, .. } => {
                let Views { accounts, counters, recent, minutes, promises, .. } = self;
                minutes.step(&record, gauges);
                let mut tokens = 0;
                accounts.step(&record, cost, &mut |news| {
                    tokens += usize::from(matches!(news, LedgerEvent::Token { .. }));
                    minutes.news(&news);
                    counters.news(news);
                    recent.news(news);
                });
                counters.step(&record);
                let now = record.completed_at;
                promises.pass(now);
                for id in record.prefill.iter().filter(|row| row.samples > 0).map(|row| row.request) {
                    // The first row with a sample may be one after a preemption.
                    if let Some(account) = accounts.of(id).filter(|account| account.first_token == Some(now)) {
                        promises.first_token(id, now);
                        tokens += account.prompt_tokens;
                    }
                }
                counters.delivered(tokens);
                self.phase_work.step(&record);
                if let Some(peaks) = &mut self.peaks {
                    peaks.step(&record);
                }
                if let Some(calibration) = &mut self.calibration {
                    calibration.step(&record);
                }
                self.cache_fill.observe(record.completed_at, gauges.used_blocks);
                self.history.step(&record);
                return Some(self.recent.step(record));
            }
            Fact::AnswerEnded(id, answer, reason) => self.accounts.end_answer(id, answer, reason),
            Fact::Finished(id, now) => {
                if let Some(closed) = self.close(id, Ending::Finished, now, held) {
                    finished.push(closed);
                }
            }
            Fact::Cancelled(id, now) => _ = self.close(id, Ending::Cancelled, now, held),
            Fact::Failed(id, now) => _ = self.close(id, Ending::Failed, now, held),
            Fact::Restarted(_, now) | Fact::Over(now) => {
                for id in self.accounts.open_requests() {
                    self.close(id, Ending::Failed, now, held);
                }
                self.promises.all_gone(now);
            }
            Fact::Idle(_) | Fact::Abandoned(..) | Fact::Stopped(..) => {}
        }
        None
    }

    fn close(&mut self, id: RequestId, ending: Ending, now: Nanos, held: Nanos) -> Option<FinishedSummary> {
        let latency_bound = self.promises.of(id).copied();
        let closed: Closed = self.accounts.close(id, ending, now, held)?;
        match ending {
            Ending::Finished => {
                let ends = |reason: Option<FinishReason>| matches!(reason, Some(FinishReason::Stop(_)));
                let answers = closed.account.answers().filter(|answer| answer.tokens > 0);
                self.promises.finished(id, answers.map(|answer| (answer.tokens, ends(answer.reason))), now);
            }
            Ending::Cancelled | Ending::Failed => self.promises.gone(id, now),
        }
        let timings = Timings { latency_bound, ..Timings::of(&closed) };
        self.counters.closed(&closed, &timings);
        self.recent.closed(&closed);
        self.history.closed(&closed.account);
        self.minutes.closed(&closed.account);
        self.finish_rate.closed(&closed);
        let receipt = FinishedSummary { request: id, usage: Usage::of(&closed.account), timings };
        self.accounts.keep(closed);
        Some(receipt)
    }
}
