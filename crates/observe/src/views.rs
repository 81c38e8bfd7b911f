//! All views together: each fact goes to every one that it concerns.

use ledger::LedgerEvent;
use protocol::{FinishReason, Nanos, RequestId, ServiceClass};
use rates::{CalibrationUpdater, RooflinePeaks};
use scheduler::{CostModel, LatencyBounds, Request, StepRecord};

use crate::accounts::{Accounts, Closed, Ending};
use crate::cache_fill::CacheFillForecast;
use crate::counters::{Gauges, Stats};
use crate::finish_rate::FinishRate;
use crate::history::RecentSeconds;
use crate::phase_work::PhaseWorkTotals;
use crate::recent::Recent;
use crate::report::{FinishedSummary, Timings, Usage};
use crate::run_history::RunHistory;

/// Every view of what happened.
#[derive(Debug)]
pub struct Views {
    /// The owner of each millisecond; the only clock of a request.
    pub accounts: Accounts,
    /// What /metrics shows.
    pub counters: Stats,
    /// Steps, ends and gaps for watchers.
    pub recent: Recent,
    /// Lengths and moments for what-if.
    pub history: RunHistory,
    /// The last of them, second by second.
    pub minutes: RecentSeconds,
    /// When the cache will be full.
    pub cache_fill: CacheFillForecast,
    /// How often a request ends.
    pub finish_rate: FinishRate,
    /// Which latency bounds were kept.
    pub promises: LatencyBounds,
    /// What steps asked of the machine, by phase.
    pub phase_work: PhaseWorkTotals,
    /// Measured limits of the machine; `None` where they were not measured.
    pub peaks: Option<RooflinePeaks>,
    /// What steps cost; `None` where it was not measured.
    pub calibration: Option<CalibrationUpdater>,
}

impl Views {
    /// Of an engine that has done nothing yet, with KV blocks of `block_size` tokens.
    pub fn new(block_size: usize) -> Views {
        Views {
            accounts: Accounts::default(),
            counters: Stats::default(),
            recent: Recent::default(),
            history: RunHistory::bounded(block_size),
            minutes: RecentSeconds::default(),
            cache_fill: CacheFillForecast::default(),
            finish_rate: FinishRate::default(),
            promises: LatencyBounds::default(),
            phase_work: PhaseWorkTotals::default(),
            peaks: None,
            calibration: None,
        }
    }

    /// A request was admitted. `held`: for how long the engine had been held when it came.
    pub fn admit(&mut self, request: &Request, class: ServiceClass, max_tokens: usize, held: Nanos) {
        if self.accounts.num_open() == 0 {
            self.finish_rate.begins(request.arrived);
        }
        self.history.admitted(request);
        self.accounts.open(request, class, max_tokens, held);
    }

    /// A step is complete. Returns memory of a record that is no longer kept.
    pub fn step(&mut self, mut record: StepRecord, gauges: &Gauges, cost: Option<&CostModel>) -> StepRecord {
        if let Some(peaks) = &mut self.peaks {
            peaks.step(&mut record);
        }
        let Views { accounts, counters, recent, minutes, promises, peaks, .. } = self;
        minutes.step(&record, gauges);
        let (mut tokens, mut saved) = (0, Vec::new());
        accounts.step(&record, cost, &mut |news| {
            if let (LedgerEvent::Entered(account), Some(peaks)) = (&news, &peaks)
                && account.cached_tokens > 0
            {
                saved.push((account.request, peaks.least_for(account.cached_tokens)));
            }
            tokens += usize::from(matches!(news, LedgerEvent::Token { .. }));
            minutes.news(&news);
            counters.news(news);
            recent.news(news);
        });
        saved.into_iter().for_each(|(id, least)| accounts.saved_at_least(id, least));
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
        if let Some(calibration) = &mut self.calibration {
            calibration.step(&record);
        }
        self.cache_fill.observe(now, gauges.used_blocks);
        self.history.step(&record);
        self.recent.step(record)
    }

    /// Everything goes on with another device. What was known of the rates and the steps of the first is not true of
    /// it.
    pub fn moved(&mut self, since: Nanos, now: Nanos) {
        self.accounts.moved(since, now);
        (self.peaks, self.calibration) = (None, None);
    }

    /// Every open request ended with an error.
    pub fn fail_all(&mut self, now: Nanos, held: Nanos) {
        for id in self.accounts.open_requests() {
            self.close(id, Ending::Failed, now, held);
        }
        self.promises.all_gone(now);
    }

    /// A request is over. `held`: for how long the engine was held until now. `None` of one that is not open.
    pub fn close(&mut self, id: RequestId, ending: Ending, now: Nanos, held: Nanos) -> Option<FinishedSummary> {
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
