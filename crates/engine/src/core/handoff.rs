//! Prompts that travel, on the engine's thread: what is sent of those that are read for others, what comes of those
//! that others read.
//!
//! Between two steps nothing moves, so a block that is full is saved and one that has come is put away here, at once;
//! what takes time (hashing, sockets, waiting, for a device too) is done by threads of their own ([`crate::handoff`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kernels::DeviceError;
use observe::HandoffOutcome;
use protocol::{Nanos, RequestId, TokenId};

use super::EngineCore;
use crate::command::{BlockMessage, BlockSender};
use crate::handoff::{
    Budget, Budgeted, Counts, HandoffEvent, HandoffResult, MOST_BYTES_UNDER_WAY, PrefillRequest, ReceiveEvent,
    RemotePrefill, RemoteRole,
};
use crate::journal::Fact;
use crate::output::RequestError;
use crate::validate::{OfPrompt, ValidatedRequest};

/// As long as the peer is connected: its thread reports when it is not.
const NO_EXPIRY: Nanos = Nanos(u64::MAX);
/// What is never computed here is asked for so often: it may be lost on its way, or pushed out before it is used.
const MAX_PREFILL_ATTEMPTS: u32 = 4;

/// What the engine's thread has of them.
pub(super) struct Handoffs {
    remote: Option<Box<dyn RemotePrefill>>,
    /// Requests with prompts that are read elsewhere.
    awaited: BTreeSet<RequestId>,
    /// First tokens that were drawn elsewhere and are not compared yet.
    firsts: BTreeMap<RequestId, TokenId>,
    served: BTreeMap<RequestId, ServedPrefill>,
    /// Tokens of a block, where full blocks of prompts are computed elsewhere and never here.
    remote_only: Option<usize>,
    /// There: how often each open request's were asked for.
    asked: BTreeMap<RequestId, u32>,
    budget: Budget,
    counts: Arc<Counts>,
    /// Changes when blocks from elsewhere are no longer trusted: then the cache does not find them.
    epoch: u64,
}

/// A prompt that is prefilled for another worker.
struct ServedPrefill {
    peer: BlockSender,
    /// Its blocks before the one with its last token: these may travel.
    blocks: usize,
    /// The next to be sent.
    next: usize,
    first: Option<TokenId>,
}

impl Default for Handoffs {
    fn default() -> Handoffs {
        Handoffs {
            remote: None,
            awaited: BTreeSet::new(),
            firsts: BTreeMap::new(),
            served: BTreeMap::new(),
            remote_only: None,
            asked: BTreeMap::new(),
            budget: Budget::of(MOST_BYTES_UNDER_WAY),
            counts: Arc::default(),
            epoch: 0,
        }
    }
}

impl Handoffs {
    /// What the cache knows a request by.
    pub(super) fn salt(&self, request: &ValidatedRequest) -> u64 {
        request.salt ^ self.epoch
    }

    /// Whether a request's prompt may be read elsewhere, if that pays. What is wanted of the prompt itself has to be
    /// computed here, and an adapter or an answer that continues may not be there. Where it is never computed here, it
    /// has to be, and validation has refused what cannot.
    pub(super) fn can_prefill_remotely(&self, request: &ValidatedRequest) -> bool {
        if let Some(block_size) = self.remote_only {
            return request.generated.is_empty() && request.prompt.len() > block_size;
        }
        let is_plain = request.of_prompt == OfPrompt::Nothing && request.adapter.is_none();
        let is_new = request.generated.is_empty() && request.stop.max_tokens > 0;
        let is_there = |remote: &dyn RemotePrefill| match request.remote_role {
            RemoteRole::Any => remote.is_there(),
            RemoteRole::Prefill(_) => true,
            RemoteRole::Decode | RemoteRole::Local => false,
        };
        let would = |remote: &dyn RemotePrefill| is_there(remote) && request.prompt.len() > remote.least_tokens();
        is_plain && is_new && self.remote.as_deref().is_some_and(would)
    }

    /// Whether a request's prompt is being read elsewhere.
    pub(super) fn is_awaited(&self, id: RequestId) -> bool {
        self.awaited.contains(&id)
    }

    /// Whether full blocks of prompts are computed elsewhere and never here.
    pub(super) fn is_remote_only(&self) -> bool {
        self.remote_only.is_some()
    }

    /// A token of an answer was delivered.
    pub(super) fn token_delivered(&mut self, id: RequestId, answer: usize, token: TokenId) {
        if let Some(served) = self.served.get_mut(&id).filter(|_| answer == 0) {
            served.first.get_or_insert(token);
        }
    }

    /// Whether the first token of a request is the one that was drawn elsewhere, if one was.
    pub(super) fn compare(&mut self, id: RequestId, token: TokenId) -> Result<(), RequestError> {
        let Some(&theirs) = self.firsts.get(&id) else { return Ok(()) };
        let remote = self.remote.as_mut().expect("it was asked");
        if theirs == token {
            self.firsts.remove(&id);
            remote.forget(id);
            return Ok(());
        }
        tracing::error!(request = id.0, token, theirs, "another worker drew another first token; the request ends");
        // It stays until the request has ended: where the pass is made again, it is no better.
        remote.quarantine_worker(id);
        self.counts.mismatches.fetch_add(1, Ordering::Relaxed);
        self.epoch = self.epoch.wrapping_add(0x9e37_79b9_7f4a_7c15);
        Err(RequestError::Handoff)
    }

    /// A request has ended, whatever was on its way for it.
    pub(super) fn ended(&mut self, id: RequestId) {
        self.asked.remove(&id);
        let is_awaited = self.awaited.remove(&id) | self.firsts.remove(&id).is_some();
        if let Some(remote) = self.remote.as_mut().filter(|_| is_awaited) {
            remote.forget(id);
        }
    }

    pub(super) fn all_ended(&mut self) {
        // A peer that waits for more learns that none comes.
        self.served.clear();
        let awaited: Vec<RequestId> = self.awaited.iter().chain(self.firsts.keys()).copied().collect();
        awaited.into_iter().for_each(|id| self.ended(id));
        self.asked.clear();
    }
}

impl EngineCore {
    /// Prompts may be read by others from now on. Before the first request.
    pub(crate) fn set_remote_prefill(&mut self, remote: Option<Box<dyn RemotePrefill>>, counts: Arc<Counts>) {
        (self.handoffs.remote, self.handoffs.counts) = (remote, counts);
    }

    /// Full blocks of prompts are computed elsewhere and never here from now on. Before the first request.
    pub(crate) fn set_remote_only_prefill(&mut self) {
        self.scheduler.set_remote_only_prefill();
        self.handoffs.remote_only = Some(self.scheduler.limits().block_size);
    }

    /// An expected request is asked for elsewhere, or waits here after all because most of its prompt is here.
    pub(super) fn request_remote_prefill(&mut self, id: RequestId, now: Nanos) {
        let blocks = self.scheduler.missing_blocks(id);
        let is_given = self.handoffs.remote_only.is_some();
        let least = match &self.handoffs.remote {
            _ if is_given => 1,
            remote => remote.as_ref().expect("there is a worker to ask").least_tokens(),
        };
        if self.scheduler.tokens_to_compute(id) < least {
            return self.queue_locally(id, now);
        }
        if is_given {
            let asked = self.handoffs.asked.entry(id).or_default();
            *asked += 1;
            if *asked > MAX_PREFILL_ATTEMPTS {
                return self.end_with(id, RequestError::NoPrefill, now);
            }
        }
        let likely = || self.journal.views().promises.of(id).map(|promise| promise.first_token.p50);
        let local = if is_given { None } else { likely() };
        let active = &self.active[&id];
        let at = match &active.request.remote_role {
            RemoteRole::Prefill(address) => Some(address.clone()),
            _ => None,
        };
        let entry = active.request.for_remote_prefill(active.seed, self.handoffs.salt(&active.request), id, now);
        // A router has chosen already.
        let chain = if at.is_none() { self.scheduler.prompt_chain(id) } else { Vec::new() };
        self.journal.take(Fact::Left(id, now));
        self.handoffs.awaited.insert(id);
        let remote = self.handoffs.remote.as_mut().expect("there is a worker to ask");
        remote.ask(PrefillRequest { id, entry, chain, blocks, local, at });
    }

    /// A prefill for another worker was admitted.
    pub(crate) fn serve_prefill(&mut self, id: RequestId, peer: BlockSender) {
        let Some(active) = self.active.get(&id) else { return };
        self.scheduler.pin(id, NO_EXPIRY);
        let blocks = (active.request.prompt.len() - 1) / self.scheduler.limits().block_size;
        let next = peer.first_block;
        self.handoffs.served.insert(id, ServedPrefill { peer, blocks, next, first: None });
    }

    /// Something has come, or gone.
    pub(crate) fn handoff_event(&mut self, event: HandoffEvent, now: Nanos) -> Result<(), DeviceError> {
        match event {
            HandoffEvent::Received(id, ReceiveEvent::Begun { worker }) => self.set_prefill_worker(id, worker),
            HandoffEvent::Received(id, ReceiveEvent::Block { index, bytes }) => {
                self.receive_block(id, index, bytes, now)
            }
            HandoffEvent::Received(id, ReceiveEvent::State { blocks, bytes }) => self.receive_state(id, blocks, bytes),
            HandoffEvent::Received(id, ReceiveEvent::Done(result)) => self.finish_remote_prefill(id, *result, now),
            HandoffEvent::Room => self.send_blocks()?,
            HandoffEvent::PeerGone(id) => {
                self.handoffs.served.remove(&id);
                self.cancel(id, now);
                self.scheduler.unpin(id);
                self.note_kept();
            }
        }
        Ok(())
    }

    /// In a new scheduler: blocks of prompts that are read for others are kept again. Of those that were read nothing
    /// is left, and a peer that waits for more learns that none comes.
    pub(super) fn keep_serving(&mut self) {
        let EngineCore { handoffs, scheduler, active, .. } = self;
        handoffs.served.retain(|id, _| active.contains_key(id));
        handoffs.served.keys().for_each(|&id| _ = scheduler.pin(id, NO_EXPIRY));
    }

    /// A worker has begun to prefill it; watchers see which.
    fn set_prefill_worker(&mut self, id: RequestId, worker: String) {
        if self.handoffs.awaited.contains(&id) {
            self.journal.take(Fact::ReadBy(id, worker));
            self.write();
        }
    }

    /// A block has come: it is found from now on like one that was computed here. What has no place is computed again.
    fn receive_block(&mut self, id: RequestId, index: usize, bytes: Budgeted, now: Nanos) {
        let is_awaited = self.handoffs.awaited.contains(&id);
        let Some(tiers) = self.tiers.as_mut().filter(|_| is_awaited) else { return };
        if let Ok(slot) = self.scheduler.begin_receive(id, index) {
            tiers.land(slot, bytes.bytes, &*self.forward);
            let is_found = self.scheduler.end_receive(slot, true);
            self.handoffs.counts.blocks_taken.fetch_add(u64::from(is_found), Ordering::Relaxed);
            if is_found {
                self.journal.take(Fact::Landed(id, now));
            }
        }
    }

    /// The states behind its blocks have come: a checkpoint like one that was computed here.
    fn receive_state(&mut self, id: RequestId, blocks: usize, bytes: Budgeted) {
        if self.handoffs.awaited.contains(&id)
            && let Ok(slot) = self.scheduler.receive_checkpoint(id, blocks)
        {
            self.forward.load_state(&*self.forward.host_buffer(bytes.bytes), slot.0);
        }
    }

    /// No more comes: the rest is computed here.
    fn finish_remote_prefill(&mut self, id: RequestId, result: HandoffResult, now: Nanos) {
        self.handoffs.counts.took(result.read.outcome);
        if !self.handoffs.awaited.remove(&id) {
            return;
        }
        let outcome = result.read.outcome;
        // What is drawn with other weights is no test of these.
        match result.first.filter(|_| self.handoffs.remote_only.is_none()) {
            Some(first) => _ = self.handoffs.firsts.insert(id, first),
            None => self.handoffs.remote.iter_mut().for_each(|remote| remote.forget(id)),
        }
        self.journal.take(Fact::Came(id, Box::new(result.read), now));
        match self.scheduler.needs_remote_prefill(id) {
            false => self.queue_locally(id, now),
            // The prefill worker is away, or has refused.
            true if outcome == HandoffOutcome::Refused => self.end_with(id, RequestError::NoPrefill, now),
            true => self.request_remote_prefill(id, now),
        }
        self.write();
    }

    fn queue_locally(&mut self, id: RequestId, now: Nanos) {
        let nothing = vec![Some(&[][..]); self.active[&id].answers.len()];
        self.scheduler.remote_prefill_ended(id, &nothing, now).expect("what has no token has not ended");
    }

    /// Gives away what has become full, as far as there is room under way.
    pub(super) fn send_blocks(&mut self) -> Result<(), DeviceError> {
        if self.handoffs.served.is_empty() {
            return Ok(());
        }
        let EngineCore { handoffs, scheduler, forward, active, .. } = self;
        let (block_bytes, state_bytes) = (forward.block_bytes(), forward.state_bytes());
        let hold = |bytes| forward.host_buffer(bytes);
        let mut over = Vec::new();
        for (&id, served) in &mut handoffs.served {
            let full = scheduler.full_blocks(id, 0);
            let full = &full[..full.len().min(served.blocks)];
            while let Some(block) = full.get(served.next) {
                let Some(mut bytes) = handoffs.budget.try_take(block_bytes, hold) else { break };
                forward.save_block(block.0, Arc::get_mut(&mut bytes.bytes).expect("it is new"));
                forward.submit()?;
                // A peer that is gone reports that itself.
                let _ = served.peer.messages.send(BlockMessage::Block { index: served.next, bytes });
                served.next += 1;
            }
            if active.contains_key(&id) || served.next < full.len() {
                continue;
            }
            if let Some(slot) = scheduler.pinned_checkpoint(id).filter(|_| served.next == served.blocks) {
                let Some(mut bytes) = handoffs.budget.try_take(state_bytes, hold) else { continue };
                forward.save_state(slot.0, Arc::get_mut(&mut bytes.bytes).expect("it is new"));
                forward.submit()?;
                let _ = served.peer.messages.send(BlockMessage::State { blocks: served.next, bytes });
            }
            over.push(id);
        }
        for id in over {
            let ServedPrefill { peer, next, first, .. } = self.handoffs.served.remove(&id).expect("it was just there");
            let _ = peer.messages.send(BlockMessage::End { blocks: next, first });
            self.scheduler.unpin(id);
        }
        self.note_kept();
        Ok(())
    }

    fn note_kept(&self) {
        self.handoffs.counts.kept_blocks.store(self.scheduler.pinned_blocks() as u64, Ordering::Relaxed);
    }
}
