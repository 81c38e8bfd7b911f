//! A load from its first request to its figures: the warm-up, the load with what is sent beside it, and the server's own
//! timelines of the answers that stalled most.

use std::future::{Future, pending};
use std::sync::Arc;

use crate::load::requests::RequestTimeline;
use tokio::sync::oneshot;

use crate::load::client::{RequestOutcome, beside, probe, run, timeline};
use crate::load::plan::{PlannedPrompt, PlannedRequest};
use crate::load::stalls::{Attribution, Stalls, stalls, worth_asking};
use crate::load::summary::{Goal, Summary, summarize};
use crate::load::target::{Target, TargetError};

/// Answers whose timelines are read: those that lost most time in stalls.
const TIMELINES: usize = 128;

/// What came of a load.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Every request.
    pub outcomes: Vec<RequestOutcome>,
    /// Their figures.
    pub summary: Summary,
    /// The gaps between their tokens.
    pub stalls: Stalls,
    /// Requests of one token that were sent beside them.
    pub probes: Vec<RequestOutcome>,
    /// While the server's timelines were read: every answer is there, and nothing more is wanted.
    pub interrupted: bool,
}

impl Measured {
    /// Without what was sent beside them.
    pub(crate) fn of(outcomes: Vec<RequestOutcome>, goals: &[Goal]) -> Measured {
        let (summary, stalls) = (summarize(&outcomes, goals), stalls(&outcomes));
        Measured { outcomes, summary, stalls, probes: Vec::new(), interrupted: false }
    }
}

/// How far a measurement is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadProgress {
    /// The number of answers that ended.
    Answers(usize),
    /// All that are to come are there.
    Timelines,
}

/// A server that answers, and what is sent to it beside the loads.
pub struct LoadClient {
    target: Arc<Target>,
    probe: PlannedRequest,
    /// Probes per second.
    probe_rate: Option<f64>,
    goals: Vec<Goal>,
    /// Whether the server keeps timelines.
    tells_time: bool,
}

impl LoadClient {
    /// One short request that shows whether there is a server at all, and what it tells.
    pub async fn connect(
        target: Arc<Target>,
        like: &PlannedRequest,
        probe_rate: Option<f64>,
        goals: Vec<Goal>,
    ) -> Result<LoadClient, TargetError> {
        let prompt = match &like.prompt {
            PlannedPrompt::Tokens(_) => PlannedPrompt::Tokens(vec![300; 8]),
            _ => PlannedPrompt::Words("the sun and the sea".into()),
        };
        let probe = PlannedRequest::single(prompt, 8, 2);
        let answered = self::probe(&target, &probe).await?;
        let tells_time = timeline(&target, &answered.id).await.is_some();
        Ok(LoadClient { target, probe, probe_rate, goals, tells_time })
    }

    /// Requests that do not count.
    pub async fn warm_up(&self, requests: usize, max_concurrency: Option<usize>) {
        run(self.target.clone(), vec![self.probe.clone(); requests], max_concurrency, pending(), |_| ()).await;
    }

    /// Sends a load, until `interrupted` is ready.
    pub async fn measure(
        &self,
        asks: Vec<PlannedRequest>,
        max_concurrency: Option<usize>,
        mut interrupted: impl AsyncFnMut(),
        progress: &dyn Fn(LoadProgress),
    ) -> Measured {
        let (ended, end) = oneshot::channel::<()>();
        let main = async {
            let ended_so_far = |count| progress(LoadProgress::Answers(count));
            let outcomes = run(self.target.clone(), asks, max_concurrency, interrupted(), ended_so_far).await;
            drop(ended);
            outcomes
        };
        let (outcomes, probes) = tokio::join!(main, self.beside(async { drop(end.await) }));
        let mut measured = Measured { probes, ..Measured::of(outcomes, &self.goals) };
        if self.tells_time {
            progress(LoadProgress::Timelines);
            let timelines = tokio::select! {
                timelines = self.timelines(&measured.outcomes) => timelines,
                () = interrupted() => {
                    measured.interrupted = true;
                    Vec::new()
                }
            };
            measured.stalls.server = Some(Attribution::of(&measured.outcomes, &timelines));
        }
        measured
    }

    async fn beside(&self, until: impl Future<Output = ()>) -> Vec<RequestOutcome> {
        let Some(rate) = self.probe_rate else { return Vec::new() };
        beside(self.target.clone(), PlannedRequest { max_tokens: 1, ..self.probe.clone() }, rate, until).await
    }

    async fn timelines(&self, outcomes: &[RequestOutcome]) -> Vec<(usize, RequestTimeline)> {
        let mut timelines = Vec::new();
        for index in worth_asking(outcomes, TIMELINES) {
            let timeline = timeline(&self.target, &outcomes[index].id).await;
            timelines.extend(timeline.map(|timeline| (index, timeline)));
        }
        timelines
    }
}
