//! Answers that began elsewhere: the worker that read the prompt handed it over, or the one that generated is gone.
//!
//! ```text
//!  expect(request)  ->  expected: counted, holds nothing, in no queue    expected_ended(id, generated)
//!  resume(request, generated)  ------------------------------------------------->  queue, as a victim comes back
//!
//!  prompt   [ p p p p p p p p ]
//!  answer 0 [ p p p p p p p p | g g g ]   known, not computed; the row of the last one samples the next
//!  answer 1 [ p p p p p p p p | g g ]     each its own sequence, with its own tokens
//! ```
//!
//! There is one way back and not two: a sequence that was preempted knows its tokens and has none computed, and so does
//! one that comes from another worker. It finds in the cache and in the tiers what is there, loads what is faster
//! loaded, computes the rest, and goes on. What is drawn depends on seed, answer and position alone, so the rest has
//! the bits that it would have had there.

use crate::sequence::Status;
use crate::{AdmitError, Nanos, Request, RequestId, Scheduler, TokenId};

impl Scheduler {
    /// Takes a request into the queue of which some tokens were generated before, or says why not; then nothing was
    /// allocated. `generated`: those of each answer, `None` for one that has ended already. Their numbers count in
    /// [`crate::StopRules`] and at the end of the context, and no event tells of them. Its place in line is that of its
    /// arrival here, and it goes before prompts whose reader has seen nothing, as a victim of a preemption does; like
    /// such a one it is not charged for the prompt again. A stream with a target counts as on time at `now`.
    ///
    /// Without a token this is [`Scheduler::admit`]. Panics as that does, and if `generated` has not one entry for each
    /// answer, or all have ended.
    pub fn resume(&mut self, request: Request, generated: &[Option<&[TokenId]>], now: Nanos) -> Result<(), AdmitError> {
        self.check_admission(&request)?;
        self.check_generated(&request, generated)?;
        let id = request.id;
        self.state.add(request, Status::Expecting);
        self.state.go_on(id, generated, now);
        Ok(())
    }

    /// Admits a request whose prompt is being computed elsewhere, or says why not; then nothing was allocated. It
    /// counts in the limits of the queue and keeps its place in line, but waits for nothing, holds nothing and is no
    /// work: only [`Scheduler::expected_ended`] and [`Scheduler::abort`] move it on.
    pub fn expect(&mut self, request: Request) -> Result<(), AdmitError> {
        self.check_admission(&request)?;
        self.state.add(request, Status::Expecting);
        Ok(())
    }

    /// What was expected has come, or will not come: from now on the request waits here for the rest, as after
    /// [`Scheduler::resume`] with the place in line that it has had all the time. Where nothing was `generated`, all of
    /// it is computed here. An error says which answer has ended by what was generated; then the request is still
    /// expected. Panics if it is not expected, or as [`Scheduler::resume`] does.
    pub fn expected_ended(
        &mut self,
        id: RequestId,
        generated: &[Option<&[TokenId]>],
        now: Nanos,
    ) -> Result<(), AdmitError> {
        let request = self.expected(id).unwrap_or_else(|| panic!("{id:?} is not expected"));
        self.check_generated(request, generated)?;
        self.state.go_on(id, generated, now);
        Ok(())
    }

    /// A request that is expected.
    pub fn expected(&self, id: RequestId) -> Option<&Request> {
        let first = self.state.requests.get(&id)?.answers[0]?;
        let seq = &self.state.seqs[first];
        seq.is_expecting().then_some(&*seq.request)
    }

    fn check_generated(&self, request: &Request, generated: &[Option<&[TokenId]>]) -> Result<(), AdmitError> {
        assert_eq!(generated.len(), request.num_answers, "{:?} has so many answers", request.id);
        assert!(generated.iter().any(Option::is_some), "an answer of {:?} goes on", request.id);
        let room = self.state.limits.max_model_len - request.prompt.len();
        let has_ended = |tokens: &Option<&[TokenId]>| request.stop.have_ended(tokens.unwrap_or_default(), room);
        match generated.iter().position(has_ended) {
            Some(answer) => Err(AdmitError::HasEnded { answer }),
            None => Ok(()),
        }
    }
}
