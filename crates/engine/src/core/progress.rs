//! How far a prompt is read, for clients who asked to hear it: chunk by chunk, from the step log.
//!
//! ```text
//! planned     its first rows are on their way      cached tokens, as many processed
//! completed   a chunk is in the cache              ... and more with every chunk, until all are
//! ```
//! Field for field what llama.cpp says of it (`return_progress`, pull request 15827).

use scheduler::{Nanos, StepRecord};

use super::EngineCore;
use crate::output::{Output, PromptProgress};

/// What a client has heard of its prompt.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Heard {
    /// When the first rows were planned; `None` before.
    since: Option<Nanos>,
    /// Prompt tokens found in the prefix cache then.
    cached: usize,
    processed: usize,
}

impl EngineCore {
    /// Tells those whose first rows have just been planned.
    pub(super) fn tell_beginnings(&mut self, planned: Nanos) {
        for row in &self.scheduler.planned().prefill {
            let Some(active) = self.active.get_mut(&row.request) else { continue };
            let total = active.request.prompt.len();
            if let Some(heard) = active.heard.as_mut().filter(|heard| heard.since.is_none()) {
                // What lies before its first row was there already.
                let cached = row.start.min(total);
                *heard = Heard { since: Some(planned), cached, processed: cached };
                let progress = PromptProgress { total, cached, processed: cached, ms: 0.0 };
                active.outputs.send(Output::Progress(progress));
            }
        }
    }

    /// Sends progress to the requests whose prompt this step has read some of.
    pub(super) fn tell_progress(&mut self, record: &StepRecord, now: Nanos) {
        for row in &record.prefill {
            let Some(active) = self.active.get_mut(&row.request) else { continue };
            let total = active.request.prompt.len();
            let Some(Heard { since: Some(since), cached, processed }) = &mut active.heard else { continue };
            // Who was preempted is read again, and answers of their own are no part of a prompt.
            let read = (row.start + row.len).min(total);
            if read > *processed {
                *processed = read;
                let ms = now.since(*since).as_secs_f64() * 1e3;
                active.outputs.send(Output::Progress(PromptProgress { total, cached: *cached, processed: read, ms }));
            }
        }
    }
}
