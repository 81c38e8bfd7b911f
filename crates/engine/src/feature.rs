//! Capabilities beside the core. It names none of them: it tells each what happens, in order, and asks few questions.
//!
//! ```text
//! core --CoreEvent--> verify::Verify       notes rows of logits for receipts and spot checks
//!      --CoreEvent--> CacheListener        events of the prefix cache, for routers
//!      --CoreEvent--> handoff::FoundBlocks the same, for workers that ask for prefills
//! ```
//! Everything is called on the engine's thread and must not block. A feature changes no token.

use std::ops::Range;

use model::Forward;
use protocol::{FinishReason, RequestId, TokenId};
use scheduler::CacheEvent;

use crate::options::CacheListener;
use crate::output::Event;
use crate::validate::ValidatedRequest;

/// Something that happened to the core.
pub(crate) enum CoreEvent<'a> {
    /// A request was admitted. `seed`: resolved.
    Admitted { id: RequestId, request: &'a ValidatedRequest, seed: u64 },
    /// A token is about to be drawn from these logits for each of `answers`, and a feature wants them. `ahead`: tokens
    /// of the same answer that were drawn in this step and are not delivered yet. A step computed again tells it again.
    Sampling { id: RequestId, answers: Range<usize>, ahead: usize, logits: &'a [f32] },
    /// A token is part of an answer.
    Delivered { id: RequestId, answer: usize, token: TokenId },
    /// What the prefix cache finds has changed.
    CacheChanged(&'a [CacheEvent]),
    /// A request has ended, for whatever reason.
    Ended(RequestId),
    /// Every request has.
    AllEnded,
}

/// An answer that has ended.
pub(crate) struct EndedAnswer<'a> {
    pub(crate) id: RequestId,
    pub(crate) answer: usize,
    pub(crate) request: &'a ValidatedRequest,
    pub(crate) reason: FinishReason,
    /// The index of the stop string that ended it.
    pub(crate) stop_string: Option<usize>,
}

pub(crate) trait Feature: Send {
    fn on(&mut self, event: &CoreEvent<'_>);

    /// Whether it is told of changes of the prefix cache, which are recorded only then.
    fn wants_cache_events(&self) -> bool {
        false
    }

    /// Whether it is told of the logits that a request's tokens are drawn from. Otherwise they may not be known.
    fn wants_logits(&self, _: RequestId) -> bool {
        false
    }

    /// What the client of an answer gets before its end.
    fn attach(&mut self, _ended: &EndedAnswer<'_>) -> Option<Event> {
        None
    }

    /// Uses an idle moment, for as long as a step takes. True if it computed something.
    fn idle(&mut self, _forward: &mut dyn Forward) -> bool {
        false
    }
}

/// Every feature of an engine.
#[derive(Default)]
pub(crate) struct Features(Vec<Box<dyn Feature>>);

impl Features {
    pub(crate) fn add(&mut self, feature: Box<dyn Feature>) {
        self.0.push(feature);
    }

    pub(crate) fn tell(&mut self, event: &CoreEvent<'_>) {
        self.0.iter_mut().for_each(|feature| feature.on(event));
    }

    pub(crate) fn want_cache_events(&self) -> bool {
        self.0.iter().any(|feature| feature.wants_cache_events())
    }

    /// How many logits of a row decide a request's token; 0: the row is wanted.
    pub(crate) fn decided_by(&self, id: RequestId, request: &ValidatedRequest) -> u32 {
        let is_wanted = request.rule.is_some() || request.stop.min_tokens > 0;
        let is_wanted = is_wanted || self.0.iter().any(|feature| feature.wants_logits(id));
        if is_wanted { 0 } else { request.sampling.decided_by() }
    }

    pub(crate) fn attachments(&mut self, ended: &EndedAnswer<'_>) -> impl Iterator<Item = Event> {
        self.0.iter_mut().filter_map(|feature| feature.attach(ended))
    }

    /// Gives an idle moment to the first that has work. False: none has.
    pub(crate) fn idle(&mut self, forward: &mut dyn Forward) -> bool {
        self.0.iter_mut().any(|feature| feature.idle(forward))
    }
}

impl Feature for CacheListener {
    fn on(&mut self, event: &CoreEvent<'_>) {
        if let CoreEvent::CacheChanged(events) = event {
            // A listener that is gone needs no events.
            let _ = self.send(events.to_vec());
        }
    }

    fn wants_cache_events(&self) -> bool {
        true
    }
}
