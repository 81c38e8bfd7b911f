//! Prompts whose full blocks are never computed here: where two precisions make one answer.
//!
//! ```text
//! tokens   [ p p p p | p p p p | p p g g | g g      ]     blocks of four
//!            <- given ->         <- computed here ->
//! ```
//!
//! A worker of a pair reads prompts with weights of one precision, and another continues them with weights of a second.
//! Which of them computes a position depends on the length of the prompt alone: the first all of its full blocks but
//! the one with its last token, the second the rest of the prompt and every token of the answer. So the answer does not
//! depend on what a cache happens to have, on a preemption or on which worker is there.
//!
//! What this takes of the scheduler: a sequence enters only when all of the first are found, else it is expected again
//! ([`Step::lacking`]) and somebody has to bring them; and what is computed here is found by nobody, for it would be
//! taken for a prompt's.

use crate::sequence::Status;
use crate::{RequestId, Scheduler, SeqId, Step};

impl Scheduler {
    /// From now on the full blocks of prompts are computed elsewhere and never here; all requests have one answer.
    /// Before the first request.
    pub fn set_prompts_given(&mut self) {
        assert!(self.state.requests.is_empty(), "before the first request");
        assert!(self.state.limits.enable_prefix_caching, "what is given is found by the prefix cache");
        self.state.prompts_are_given = true;
    }

    /// Whether blocks that this request needs are neither here nor ever computed here.
    pub fn is_lacking(&mut self, request: RequestId) -> bool {
        self.state.prompts_are_given && !self.missing_blocks(request).is_empty()
    }

    /// A waiting sequence that lacks blocks of its prompt leaves the queue for as long as somebody brings them. False
    /// if it lacks none.
    pub(crate) fn expect_again(&mut self, id: SeqId, step: &mut Step) -> bool {
        let given = self.state.seqs[id].num_given_blocks();
        if given == 0 {
            return false;
        }
        self.find_prefix(id);
        if self.plan.hits.len() >= given {
            return false;
        }
        let seq = &mut self.state.seqs[id];
        self.state.queue.remove(seq);
        seq.status = Status::Expecting;
        step.lacking.push(seq.request_id());
        true
    }
}
