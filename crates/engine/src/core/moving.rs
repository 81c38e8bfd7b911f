//! The device is lost: everything goes on with another.
//!
//! ```text
//! lost      weights, cache, rows, states of that device; what a step in flight was to compute
//! again     adapters, from their files; one that is another by now ends with its requests
//! kept      of each open request: its prompt, its tokens, its seed, the state of its rule, what its client has
//! moved     a new scheduler ── prompt and tokens are one prefill ──> the next token, with the bits that it would have had
//! ```
//! Clients see a gap. Drafters that compute end with their device; those that look texts up go on.

use std::sync::Arc;

use kernels::DeviceError;
use model::Standby;
use protocol::{Nanos, RequestId, TokenId};
use rates::StealMeter;
use scheduler::{Request, Scheduler};

use super::EngineCore;
use crate::ModelInfo;
use crate::journal::Fact;
use crate::output::RequestError;

/// What belongs to the device that computes, beside the model.
pub(super) struct ComputeDevice {
    pub(super) steal_meter: StealMeter,
    /// What goes on where it is lost, and whose adapters then are read again.
    pub(super) standby: Option<(Standby, Arc<ModelInfo>)>,
}

impl EngineCore {
    pub(crate) fn set_standby(&mut self, standby: Option<Standby>, model: Arc<ModelInfo>) {
        self.device.standby = standby.map(|standby| (standby, model));
    }

    /// The device is lost. False: no other goes on, and nothing has changed.
    pub(crate) fn move_to_standby(&mut self, error: &DeviceError, clock: &mut dyn FnMut() -> Nanos) -> bool {
        let Some((standby, model)) = &self.device.standby else { return false };
        let since = clock();
        tracing::error!(%error, open = self.active.len(), "the device is lost; the standby is loaded");
        let loaded = standby.load().inspect_err(|error| tracing::error!(%error, "the standby cannot be loaded"));
        let Ok(mut forward) = loaded else { return false };
        model.adapters.move_to(&mut *forward);
        let now = clock();
        tracing::warn!(model = forward.describe(), took = ?now.since(since), "the standby goes on");
        if self.is_in_flight() {
            self.abandon();
        }
        self.device.steal_meter = StealMeter::new(forward.device().threads);
        self.forward = forward;
        self.forward.set_compute_thread();
        self.drafts.drafters.drop_network();
        // What a step costs there is not known.
        let before = self.renew_scheduler(None);
        self.journal.take(Fact::Moved { since, now });
        for id in self.active.keys().copied().collect::<Vec<_>>() {
            match self.active[&id].request.has_lost_adapter() {
                true => self.fail_request(id, RequestError::AdapterLost, now),
                false => self.take_over(id, &before, now),
            }
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
