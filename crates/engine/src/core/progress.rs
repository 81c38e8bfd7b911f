//! Progress of a prompt, for clients that asked for it: chunk by chunk, from the step log.
//!
//! ```text
//! planned     its first rows are on their way      cached tokens, the same number processed
//! completed   a chunk is in the cache              ... and more with every chunk, until all are
//! ```
//! Field for field what llama.cpp says of it (`return_progress`, pull request 15827).

use protocol::Nanos;
use scheduler::StepRecord;

use super::EngineCore;
use crate::output::{Event, PromptProgress};

/// What a client has received of its prompt's progress.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ProgressSent {
    /// When the first rows were planned; `None` before.
    since: Option<Nanos>,
    /// Prompt tokens found in the prefix cache then.
    cached: usize,
    processed: usize,
}

impl EngineCore {
    /// Sends progress to those with first rows that have just been planned.
    pub(super) fn tell_beginnings(&mut self, planned: Nanos) {
        for row in &self.scheduler.planned().prefill {
            let Some(active) = self.active.get_mut(&row.request) else { continue };
            let total = active.request.prompt.len();
            if let Some(progress) = active.progress.as_mut().filter(|progress| progress.since.is_none()) {
                // What is before its first row was cached.
                let cached = row.start.min(total);
                *progress = ProgressSent { since: Some(planned), cached, processed: cached };
                let progress = PromptProgress { total, cached, processed: cached, ms: 0.0 };
                active.events.send(Event::Progress(progress));
            }
        }
    }

    /// Sends progress to the requests with prompt rows in this step.
    pub(super) fn tell_progress(&mut self, record: &StepRecord, now: Nanos) {
        for row in &record.prefill {
            let Some(active) = self.active.get_mut(&row.request) else { continue };
            let total = active.request.prompt.len();
            let Some(ProgressSent { since: Some(since), cached, processed }) = &mut active.progress else { continue };
            // A preempted request is read again, and its generated tokens are no part of the prompt.
            let read = (row.start + row.len).min(total);
            if read > *processed {
                *processed = read;
                let ms = now.since(*since).as_secs_f64() * 1e3;
                active.events.send(Event::Progress(PromptProgress { total, cached: *cached, processed: read, ms }));
            }
        }
    }
}
