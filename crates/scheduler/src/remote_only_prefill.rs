//! Remote-only prefill: the prompt's full blocks are never computed here, because another worker uses another
//! precision.
//!
//! ```text
//! tokens   [ p p p p | p p p p | p p g g | g g      ]     blocks of four
//!          <- remote ->        <- computed here ->
//! ```
//!
//! One worker of a pair prefills with weights of one precision, the other decodes with those of a second. Which of them
//! computes a position depends on the prompt length alone: the first computes all full blocks except the one with the
//! prompt's last token, the second computes the rest of the prompt and every generated token. So the answer does not
//! depend on cache contents, preemption or which workers are up.
//!
//! Hence a sequence enters only when all remote blocks are found, else it expects them again ([`Step::needs_prefill`]) and
//! the engine must fetch them; and blocks computed here are not registered in the prefix cache, where they would be
//! mistaken for a prompt's.

use crate::sequence::Status;
use crate::{Scheduler, SeqId, Step};
use protocol::RequestId;

impl Scheduler {
    /// Enables remote-only prefill; requests then have one answer each. Call before the first request.
    pub fn set_remote_only_prefill(&mut self) {
        assert!(self.state.requests.is_empty(), "before the first request");
        assert!(self.state.limits.enable_prefix_caching, "remote blocks are found through the prefix cache");
        self.state.remote_only_prefill = true;
    }

    /// Whether blocks that this request needs, or the states behind them, are missing and never computed here.
    pub fn needs_remote_prefill(&mut self, request: RequestId) -> bool {
        self.state.remote_only_prefill && self.tokens_to_compute(request) > 0
    }

    /// Moves a waiting sequence that lacks prompt blocks out of the queue until they are fetched. False if it lacks
    /// none.
    pub(crate) fn expect_remote_blocks(&mut self, id: SeqId, step: &mut Step) -> bool {
        let remote = self.state.seqs[id].num_remote_blocks();
        if remote == 0 {
            return false;
        }
        self.find_prefix(id);
        if self.plan.hits.len() >= remote {
            return false;
        }
        let seq = &mut self.state.seqs[id];
        self.state.queue.remove(seq);
        seq.status = Status::RemotePrefill;
        step.needs_prefill.push(seq.request_id());
        true
    }
}
