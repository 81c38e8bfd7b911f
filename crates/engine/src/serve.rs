//! What a server needs of whatever answers: two traits, so that HTTP does not know whether that is an [`Engine`] in
//! this process, a front of several, or a script of a test.
//!
//! ```text
//! server --> dyn Serve    a request in, a stream out; health; an orderly end
//!        --> dyn Observe  the same, and what watchers see, and how they hold it
//! ```
//!
//! They are made for `dyn`: a server asks a few times per request, and what it asks per token is a [`Stream`], which is
//! a struct for all of them.

use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kernels::DeviceLimits;
use observe::run_history::RunHistoryWindow;
use observe::{Ended, KvMap, LogCursor, LoggedStep, Percentiles, RemotePrefillTrace, RequestSnapshot, SecondStats};
use protocol::{Nanos, RequestId, Targets};
use scheduler::CostModel;

use crate::adapters;
use crate::handoff::{Role, RoleError};
use crate::{
    AdapterError, Engine, Health, IsWanted, ModelInfo, RawRequest, Rejection, RemoteRole, RequestSummary, Rerun,
    RerunError, SignedAddress, Stats, Stream, SubmitError, Timeline, UnixNanos, ValidatedRequest,
};

/// Answers requests. Any thread may call any method; none of them waits for a step.
pub trait Serve: Send + Sync {
    /// What is being served. The same for as long as it lives.
    fn model(&self) -> &ModelInfo;

    /// Validation: what must be known of a request before it is queued. See [`ModelInfo::validate`].
    ///
    /// Cost: linear in the prompt's bytes.
    fn validate(&self, raw: RawRequest) -> Result<ValidatedRequest, Rejection>;

    /// Queues a request. Returns at once; the answer comes through the stream.
    fn submit(&self, request: ValidatedRequest) -> Result<Stream, SubmitError>;

    /// Queues all of them or none; where it can be, the same step begins with all.
    fn submit_together(&self, requests: Vec<ValidatedRequest>) -> Result<Vec<Stream>, SubmitError> {
        // When a later one is refused, dropping the earlier ones cancels them.
        requests.into_iter().map(|request| self.submit(request)).collect()
    }

    /// Where it reads prompts for other workers, as a router may tell it to them.
    fn signed_address(&self) -> Option<SignedAddress> {
        None
    }

    /// Whether others may read prompts for it.
    fn has_remote_prefill(&self) -> bool {
        false
    }

    /// The worker that has read the prompt, according to a sealed address; `None` if the seal is not of the cluster
    /// key.
    fn prefill_worker(&self, _at: &SignedAddress) -> Option<RemoteRole> {
        None
    }

    /// Whether it moves.
    fn health(&self) -> Health;

    /// Takes no new requests from now on; running ones go on.
    fn drain(&self);

    /// Ends every request with an error, and then itself.
    fn stop(&self);
}

/// Whether it is held, when that is settled.
pub type PauseFuture<'a> = Pin<Box<dyn Future<Output = bool> + Send + 'a>>;

/// Shows what it does, and lets itself be held. Moments are nanoseconds of its clock, which stops while it
/// is.
pub trait Observe: Serve {
    /// Gauges, counters and histograms.
    fn stats(&self) -> Stats;

    /// What the machine can do at most, as far as it is known by now.
    fn device_limits(&self) -> Option<DeviceLimits> {
        None
    }

    /// What steps cost, as measured or kept, and as steps have corrected it since; `None` where it was not measured.
    /// Slower to change than what the scheduler uses: this is the machine, that is the moment.
    fn cost(&self) -> Option<CostModel> {
        self.model().calibrated.as_ref().map(|calibrated| calibrated.cost.clone())
    }

    /// Targets of requests that bring none, as they are now. Those that were not set follow what steps cost.
    fn targets(&self) -> Targets {
        self.model().targets
    }

    /// Where the time of a request went: one that waits or runs, or one of the last that ended.
    fn timeline(&self, id: RequestId) -> Option<Timeline>;

    /// Every request that waits or runs, and the last ones that ended, in the order in which they came.
    fn requests(&self) -> Vec<RequestSummary>;

    /// One of them.
    fn request(&self, id: RequestId) -> Option<RequestSummary>;

    /// The answers to what came in the last `span` and is over, and the steps, as far as they are remembered.
    fn past(&self, span: Duration) -> RunHistoryWindow;

    /// Runs requests that are over once more, without some that were there ([`Engine::run_again`]). Blocks.
    fn run_again(&self, asked: &[RequestId], without: &[RequestId], wanted: IsWanted<'_>) -> Result<Rerun, RerunError>;

    /// Watches from now on, the cache too if `wants_map`.
    fn watch(&self, wants_map: bool) -> Box<dyn Subscription>;

    /// Now.
    fn now(&self) -> Nanos;

    /// Nanoseconds between its start and one of its moments, on the machine's clock: with what it was held.
    fn since_start(&self, at: Nanos) -> Nanos;

    /// What a clock on the wall showed at one of its moments.
    fn unix(&self, at: Nanos) -> UnixNanos;

    /// For how long it was held until now.
    fn held(&self) -> Nanos;

    /// Loads an adapter from a directory: requests may ask for it when this returns. Blocks while files are read and
    /// packed, here; the engine's thread takes it in between two steps.
    fn load_adapter(&self, _name: &str, _path: &Path) -> Result<(), AdapterError> {
        Err(AdapterError::Unsupported)
    }

    /// Takes it out again. Refused while a request has it. Blocks.
    fn unload_adapter(&self, _name: &str) -> Result<(), AdapterError> {
        Err(AdapterError::Unsupported)
    }

    /// Takes other requests than before; those already taken are not affected.
    fn set_role(&self, _role: Role) -> Result<(), RoleError> {
        Err(RoleError::Fixed)
    }

    /// Makes no further step until it is let go of. Resolves when the step in flight is done, to whether it is held
    /// now.
    fn pause(&self) -> PauseFuture<'_>;

    /// Makes one step and stays held; nothing if it is not held, or if there is nothing to compute.
    fn single_step(&self) -> PauseFuture<'_>;

    /// Moves again.
    fn resume(&self) -> PauseFuture<'_>;

    /// Whether the engine is held.
    fn is_paused(&self) -> bool;
}

/// What a watcher sees: the log of steps and ends, waiting and running requests, and what the cache is used for.
pub trait Subscription: Send + Sync {
    /// The cursor of a reader that has seen everything.
    fn newest(&self) -> LogCursor;

    /// Appends what the log has at and after `cursor`, oldest first, at most `most` steps, and moves `cursor` behind it.
    /// Returns how many steps are still to come. What is no longer kept is left out.
    fn read(&self, cursor: &mut LogCursor, most: usize, steps: &mut Vec<LoggedStep>, ended: &mut Vec<Ended>) -> u64;

    /// Prompts that other workers read of which something changed behind `cursor`, which is moved: each as it is now.
    fn remote_prefills(&self, cursor: &mut LogCursor) -> Vec<(RequestId, RemotePrefillTrace)>;

    /// Copies the newest snapshot into `snapshot`.
    fn snapshot_into(&self, scene: &mut RequestSnapshot);

    /// Copies the newest map of the cache into `map`, if it is another one than `map`. False if not.
    fn map_into(&self, map: &mut KvMap) -> bool;

    /// The last 15 minutes, second by second, oldest first; seconds without a step are left out.
    fn seconds(&self) -> Vec<SecondStats>;

    /// Of the last times to first token (256) and the last times from token to token (2,048); `None` before the first.
    fn percentiles(&self) -> [Option<Percentiles>; 2];
}

impl Serve for Engine {
    fn model(&self) -> &ModelInfo {
        Engine::model(self)
    }

    fn validate(&self, raw: RawRequest) -> Result<ValidatedRequest, Rejection> {
        Engine::validate(self, raw)
    }

    fn submit(&self, request: ValidatedRequest) -> Result<Stream, SubmitError> {
        Engine::submit(self, request)
    }

    fn submit_together(&self, requests: Vec<ValidatedRequest>) -> Result<Vec<Stream>, SubmitError> {
        Engine::submit_together(self, requests)
    }

    fn signed_address(&self) -> Option<SignedAddress> {
        Engine::signed_address(self)
    }

    fn has_remote_prefill(&self) -> bool {
        self.0.has_remote_prefill
    }

    fn prefill_worker(&self, at: &SignedAddress) -> Option<RemoteRole> {
        Engine::prefill_worker(self, at)
    }

    fn health(&self) -> Health {
        Engine::health(self)
    }

    fn drain(&self) {
        Engine::drain(self);
    }

    fn stop(&self) {
        Engine::stop(self);
    }
}

impl Observe for Engine {
    fn stats(&self) -> Stats {
        Engine::stats(self)
    }

    fn device_limits(&self) -> Option<DeviceLimits> {
        self.views().peaks.as_ref().map(|peaks| peaks.limits())
    }

    fn cost(&self) -> Option<CostModel> {
        self.views().calibration.as_ref().map(|calibration| calibration.cost())
    }

    fn targets(&self) -> Targets {
        self.0.targets.get()
    }

    fn timeline(&self, id: RequestId) -> Option<Timeline> {
        let (now, held) = self.0.clock.now_and_held();
        self.views().accounts.timeline(id, now, held)
    }

    fn requests(&self) -> Vec<RequestSummary> {
        let now = self.0.clock.now();
        self.views().accounts.summaries(now)
    }

    fn request(&self, id: RequestId) -> Option<RequestSummary> {
        let now = self.0.clock.now();
        self.views().accounts.summary(id, now)
    }

    fn past(&self, span: Duration) -> RunHistoryWindow {
        let begin = self.0.clock.now().since(Nanos(span.as_nanos() as u64));
        let shared = self.views().history.share();
        shared.since(begin, self.0.limits.clone(), self.cost())
    }

    fn run_again(&self, asked: &[RequestId], without: &[RequestId], wanted: IsWanted<'_>) -> Result<Rerun, RerunError> {
        Engine::run_again(self, asked, without, wanted)
    }

    fn watch(&self, wants_map: bool) -> Box<dyn Subscription> {
        Box::new(self.begin_watch(wants_map))
    }

    fn now(&self) -> Nanos {
        self.0.clock.now()
    }

    fn since_start(&self, at: Nanos) -> Nanos {
        self.0.clock.since_start(at)
    }

    fn unix(&self, at: Nanos) -> UnixNanos {
        self.0.clock.unix(at)
    }

    fn held(&self) -> Nanos {
        self.0.clock.held()
    }

    fn load_adapter(&self, name: &str, path: &Path) -> Result<(), AdapterError> {
        let model = &self.0.model;
        let reserved = model.adapters.reserve(name)?;
        let failed = |error| adapters::failed(name, path, error);
        let put = || {
            let adapter = model.adapters.read(name, path, &model.config)?;
            let packer = model.adapters.packer()?;
            let packed = packer.pack(&adapter).map_err(failed)?;
            self.put_adapter(reserved.slot, Some(packed))?.map_err(failed)?;
            Ok((adapter.rank(), adapters::digest(&adapter)))
        };
        match put() {
            Ok((rank, digest)) => model.adapters.fill(reserved, path, rank, digest).map_err(failed)?,
            Err(error) => {
                model.adapters.give_back(reserved);
                return Err(error);
            }
        }
        tracing::info!(name, path = %path.display(), "an adapter is loaded");
        Ok(())
    }

    fn set_role(&self, role: Role) -> Result<(), RoleError> {
        let before = self.0.handoffs.set_role(role)?;
        if before != role {
            tracing::info!(role = role.name(), before = before.name(), "worker role changed");
        }
        Ok(())
    }

    fn unload_adapter(&self, name: &str) -> Result<(), AdapterError> {
        let adapters = &self.0.model.adapters;
        let reserved = adapters.withdraw(name)?;
        let emptied = self.put_adapter(reserved.slot, None);
        adapters.give_back(reserved);
        tracing::info!(name, "an adapter is unloaded");
        emptied.map(drop)
    }

    fn pause(&self) -> PauseFuture<'_> {
        Box::pin(Engine::pause(self))
    }

    fn single_step(&self) -> PauseFuture<'_> {
        Box::pin(Engine::single_step(self))
    }

    fn resume(&self) -> PauseFuture<'_> {
        Box::pin(Engine::resume(self))
    }

    fn is_paused(&self) -> bool {
        self.0.status.held.load(Ordering::Relaxed)
    }
}
