//! The device is lost: everything goes on with another.
//!
//! ```text
//! lost      weights, cache, rows, states, adapters of that device; what a step in flight was to compute
//! kept      of each open request: its prompt, its tokens, its seed, the state of its rule, what its client has
//! moved     a new scheduler ── prompt and tokens are one prefill ──> the next token, with the bits that it would have had
//! ```
//! Clients see a gap. Drafters that compute end with their device; those that look texts up go on.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};

use checkpoint::LoadError;
use kernels::DeviceError;
use model::{Forward, PackedAdapter};
use protocol::{Nanos, RequestId, TokenId};
use rates::StealMeter;
use scheduler::{Request, Scheduler};

use super::EngineCore;
use crate::journal::Fact;
use crate::options::Standby;
use crate::output::RequestError;

/// Loads what goes on, on a thread of its own: the engine's is pinned to a core, and so would be what it begins.
struct StandbyLoader {
    ask: Sender<()>,
    loaded: Receiver<Result<Box<dyn Forward>, LoadError>>,
}

impl StandbyLoader {
    fn of(mut standby: Standby) -> io::Result<StandbyLoader> {
        let ((ask, asked), (load, loaded)) = (channel(), channel());
        let run = move || asked.into_iter().take_while(|()| load.send(standby()).is_ok()).for_each(drop);
        std::thread::Builder::new().name("standby".into()).spawn(run)?;
        Ok(StandbyLoader { ask, loaded })
    }

    /// Blocks until it is there. `None`: it cannot be loaded, which is logged.
    fn load(&self) -> Option<Box<dyn Forward>> {
        // A thread that is gone has panicked.
        let loaded = self.ask.send(()).ok().and_then(|()| self.loaded.recv().ok())?;
        loaded.inspect_err(|error| tracing::error!(%error, "the standby cannot be loaded")).ok()
    }
}

/// What belongs to the device that computes, beside the model.
pub(super) struct ComputeDevice {
    pub(super) steal_meter: StealMeter,
    standby: Option<StandbyLoader>,
    /// It is a standby.
    has_moved: bool,
}

impl ComputeDevice {
    pub(super) fn of(forward: &dyn Forward) -> ComputeDevice {
        ComputeDevice { steal_meter: StealMeter::new(forward.device().threads), standby: None, has_moved: false }
    }

    /// Adapters are packed for the device that the engine began with.
    pub(super) fn check_adapter(&self, adapter: Option<&PackedAdapter>) -> Result<(), LoadError> {
        match self.has_moved && adapter.is_some() {
            false => Ok(()),
            true => Err(LoadError::Option {
                option: "adapters",
                problem: "the device is lost that they are packed for; restart the server to load more".to_owned(),
            }),
        }
    }
}

impl EngineCore {
    /// What goes on where the device is lost. Called before the engine's thread is pinned.
    pub(crate) fn set_standby(&mut self, standby: Option<Standby>) -> io::Result<()> {
        self.device.standby = standby.map(StandbyLoader::of).transpose()?;
        Ok(())
    }

    /// The device is lost. False: no other goes on, and nothing has changed.
    pub(crate) fn move_to_standby(&mut self, error: &DeviceError, clock: &mut dyn FnMut() -> Nanos) -> bool {
        let Some(standby) = &self.device.standby else { return false };
        let since = clock();
        tracing::error!(%error, open = self.active.len(), "the device is lost; the standby is loaded");
        let Some(forward) = standby.load() else { return false };
        let now = clock();
        tracing::warn!(model = forward.describe(), took = ?now.since(since), "the standby goes on");
        if self.is_in_flight() {
            self.abandon();
        }
        let steal_meter = StealMeter::new(forward.device().threads);
        self.device = ComputeDevice { steal_meter, standby: self.device.standby.take(), has_moved: true };
        self.forward = forward;
        self.forward.set_compute_thread();
        self.drafts.drafters.drop_network();
        // What a step costs there is not known.
        let before = self.renew_scheduler(None);
        self.journal.take(Fact::Moved { since, now });
        for id in self.active.keys().copied().collect::<Vec<_>>() {
            self.take_over(id, &before, now);
        }
        self.keep_serving();
        self.write();
        true
    }

    /// Queues an open request of the scheduler before, with the tokens that it has.
    fn take_over(&mut self, id: RequestId, before: &Scheduler, now: Nanos) {
        let active = &self.active[&id];
        let mut generated: Vec<Option<Vec<TokenId>>> =
            active.answers.iter().map(|answer| (!answer.has_ended).then(Vec::new)).collect();
        let mut request: Option<Request> = None;
        for sequence in before.sequences().filter(|sequence| sequence.request_id() == id) {
            request.get_or_insert_with(|| Request::clone(sequence.request()));
            if let Some(tokens) = &mut generated[sequence.answer()] {
                tokens.extend_from_slice(&sequence.tokens()[active.request.prompt.len()..]);
            }
        }
        let Some(request) = request else { return };
        let is_new = generated.iter().all(|tokens| tokens.as_ref().is_some_and(Vec::is_empty));
        // Blocks of its prompt come from elsewhere, as before.
        let is_awaited = self.handoffs.is_awaited(id);
        let must_leave =
            is_new && self.handoffs.is_remote_only() && self.handoffs.can_prefill_remotely(&active.request);
        let queued = match is_awaited || must_leave {
            true => self.scheduler.admit_remote(request.clone()),
            false => {
                let tokens: Vec<Option<&[TokenId]>> = generated.iter().map(Option::as_deref).collect();
                self.scheduler.resume(request.clone(), &tokens, now)
            }
        };
        if let Err(error) = queued {
            tracing::error!(request = id.0, ?error, "the scheduler refused an open request");
            return self.fail_request(id, RequestError::Internal, now);
        }
        if self.journal.records() {
            let mut validated = active.request.clone();
            validated.generated = if is_new { Vec::new() } else { generated };
            self.journal.take(Fact::Resumed { request, validated: Box::new(validated), now });
        }
        if must_leave && !is_awaited {
            self.request_remote_prefill(id, now);
        }
    }
}
