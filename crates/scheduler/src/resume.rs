//! Requests with tokens from another worker: its prompt was prefilled there, or its generation is resumed after a
//! failure.
//!
//! ```text
//!  admit_remote(request) ->  expected: counted, holds nothing, in no queue    remote_prefill_ended(id, generated)
//!  resume(request, generated)  ------------------------------------------------->  queue, as a victim comes back
//!
//!  prompt   [ p p p p p p p p ]
//!  answer 0 [ p p p p p p p p | g g g ]   known, not computed; the row of the last one samples the next
//!  answer 1 [ p p p p p p p p | g g ]     each its own sequence, with its own tokens
//! ```
//!
//! Resuming is the same as returning from preemption: the sequence knows its tokens and has none computed. It reuses
//! what the cache and the tiers have, loads what is faster loaded, computes the rest, and continues. Sampling depends
//! only on seed, answer and position, so the continuation has the same bits as on the first worker.

use crate::request::has_ended;
use crate::sequence::Status;
use crate::{AdmitError, Request, Scheduler};
use protocol::{Nanos, RequestId, TokenId};

impl Scheduler {
    /// Queues a request with tokens that were generated before, or says why not; then no state was changed.
    /// `generated`: the tokens of each answer, `None` for one that has ended. They count in [`protocol::StopRules`] and in
    /// the context length, and produce no events. Queued by arrival here but ahead of prompts without output, like a
    /// preempted sequence; the prompt is not charged again. A stream with a target counts as on time at `now`.
    ///
    /// Without tokens this is [`Scheduler::admit`]. Panics as that does, and if `generated` has not one entry per
    /// answer, or all have ended.
    pub fn resume(&mut self, request: Request, generated: &[Option<&[TokenId]>], now: Nanos) -> Result<(), AdmitError> {
        self.check_admission(&request)?;
        self.check_generated(&request, generated)?;
        let id = request.id;
        self.state.add(request, Status::RemotePrefill);
        self.state.queue_expected(id, generated, now);
        Ok(())
    }

    /// Admits a request whose prompt is being computed elsewhere, or says why not; then no state was changed. It counts
    /// in the queue limits and keeps its place in line, but holds nothing and is not scheduled until
    /// [`Scheduler::remote_prefill_ended`].
    pub fn admit_remote(&mut self, request: Request) -> Result<(), AdmitError> {
        self.check_admission(&request)?;
        self.state.add(request, Status::RemotePrefill);
        Ok(())
    }

    /// Ends the remote prefill, successful or not: the request is queued at its original place, as by
    /// [`Scheduler::resume`]. Without `generated` tokens the whole prompt is computed here, except for cached blocks.
    /// On an error, which names an answer that `generated` ends, it is still expected. Panics if it is not expected, or
    /// as [`Scheduler::resume`] does.
    pub fn remote_prefill_ended(
        &mut self,
        id: RequestId,
        generated: &[Option<&[TokenId]>],
        now: Nanos,
    ) -> Result<(), AdmitError> {
        let request = self.in_remote_prefill(id).unwrap_or_else(|| panic!("{id:?} is not in remote prefill"));
        self.check_generated(request, generated)?;
        self.state.queue_expected(id, generated, now);
        Ok(())
    }

    /// A request in remote prefill.
    pub fn in_remote_prefill(&self, id: RequestId) -> Option<&Request> {
        let first = self.state.requests.get(&id)?.answers[0]?;
        let seq = &self.state.seqs[first];
        seq.is_in_remote_prefill().then_some(&*seq.request)
    }

    fn check_generated(&self, request: &Request, generated: &[Option<&[TokenId]>]) -> Result<(), AdmitError> {
        assert_eq!(generated.len(), request.num_answers, "an entry per answer of {:?}", request.id);
        assert!(generated.iter().any(Option::is_some), "no answer of {:?} is unfinished", request.id);
        let room = self.state.limits.max_model_len - request.prompt.len();
        let over = |tokens: &Option<&[TokenId]>| has_ended(&request.stop, tokens.unwrap_or_default(), room);
        match generated.iter().position(over) {
            Some(answer) => Err(AdmitError::HasEnded { answer }),
            None => Ok(()),
        }
    }
}
