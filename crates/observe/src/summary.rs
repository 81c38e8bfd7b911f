//! A request in a few numbers: what a list of them shows, to find the one with a timeline worth reading.

use ledger::{Account, Owner, Shares};
use protocol::{FinishReason, Nanos, RequestId};

use crate::accounts::Ending;

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestState {
    /// No row of it was computed yet.
    Waiting,
    /// It had a row, and has not all its answers.
    Running,
    /// It is over.
    Ended(Ending),
}

/// One request. Moments are the engine's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RequestSummary {
    /// Which.
    pub request: RequestId,
    /// Where it is.
    pub state: RequestState,
    /// When it came.
    pub arrived: Nanos,
    /// When the first step with a row of it was planned.
    pub first_scheduled: Option<Nanos>,
    /// When its first token came.
    pub first_token: Option<Nanos>,
    /// When it ended; now for one that has not.
    pub until: Nanos,
    /// The longest time between two of its tokens. For one that runs, what has passed since its last token counts.
    pub longest_gap: Nanos,
    /// Mean seconds between the tokens of its slowest answer; `None` where no answer has two.
    pub tpot: Option<f64>,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Those of them that the prefix cache had.
    pub cached_tokens: usize,
    /// Tokens of its answers.
    pub generated: usize,
    /// Why its last answer ended.
    pub reason: Option<FinishReason>,
    /// The largest owner of its time to first token, once that is over.
    pub ttft_owner: Option<Owner>,
    /// The largest owner of its longest time between two tokens.
    pub gaps_owner: Option<Owner>,
}

impl RequestSummary {
    /// `now`: the end of one that has ended.
    pub fn of(account: &Account, ending: Option<Ending>, now: Nanos) -> RequestSummary {
        let state = match ending {
            Some(ending) => RequestState::Ended(ending),
            None if account.first_scheduled.is_none() => RequestState::Waiting,
            None => RequestState::Running,
        };
        let gap = |answer: ledger::AnswerTimes| {
            let grows = ending.is_none() && answer.tokens > 0 && answer.reason.is_none();
            answer.longest_gap.max(if grows { now.since(answer.last_token) } else { Nanos(0) })
        };
        RequestSummary {
            request: account.request,
            state,
            arrived: account.arrived,
            first_scheduled: account.first_scheduled,
            first_token: account.first_token,
            until: now,
            longest_gap: account.answers().map(gap).max().unwrap_or_default(),
            tpot: account.tpot().filter(|&seconds| seconds > 0.0),
            prompt_tokens: account.prompt_tokens,
            cached_tokens: account.cached_tokens,
            generated: account.num_tokens(),
            reason: account.answers().filter_map(|answer| answer.reason).last(),
            ttft_owner: most(&account.bill.ttft),
            gaps_owner: account
                .longest_gaps
                .iter()
                .max_by_key(|gap| gap.shares.total())
                .and_then(|gap| most(&gap.shares)),
        }
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        matches!(self.state, RequestState::Ended(_))
    }

    /// Arrival to first token; so far, for one that waits for it. An ended one that had none: to its end.
    pub fn ttft(&self) -> Nanos {
        self.first_token.unwrap_or(self.until).since(self.arrived)
    }
}

/// The owner of the largest part.
fn most(shares: &Shares) -> Option<Owner> {
    let parts = Owner::ALL.into_iter().map(|owner| (shares.of(owner), owner));
    parts.filter(|(nanos, _)| *nanos > Nanos(0)).max_by_key(|(nanos, _)| *nanos).map(|(_, owner)| owner)
}
