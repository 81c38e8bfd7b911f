//! What the engine's steps asked of the machine, by phase: operations, bytes, and how long the newest took.
//!
//! ```text
//! step record --Demands--> prefill: its rows and pairs       counters: they only grow
//!                          decode:  its rows and keys
//!                          the weights are read once for both: shared by rows
//! newest      steps that read prompts | steps of answers alone     sums that forget: a second of them weighs less with
//!                                                                  every ten that come after it
//! ```
//! The newest keep the two kinds of step apart because a limit is one of a step: of a step that carries both, all of it
//! is set against the arithmetic that its prompt brought, as on the Live page.

use protocol::Nanos;
use roofline::{Demands, PassWork};
use scheduler::{RecordRow, StepRecord};

/// Seconds of a phase's own steps after which a step weighs a third.
const MEMORY_SECONDS: f64 = 10.0;

/// One phase of all steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PhaseWork {
    /// Since the start.
    pub total: PassWork,
    /// Of the newest steps of this phase: a sum that forgets.
    pub recent: PassWork,
    /// What those took, in seconds; forgets in the same way.
    pub recent_seconds: f64,
    /// When the last of them ended; 0 before the first.
    pub last: Nanos,
}

/// The view. Without demands it sees nothing.
#[derive(Debug, Default)]
pub struct PhaseWorkTotals {
    demands: Option<Demands>,
    /// Prefill, decode.
    pub phases: [PhaseWork; 2],
}

impl PhaseWorkTotals {
    /// Of passes that ask so much.
    pub fn of(demands: Demands) -> PhaseWorkTotals {
        PhaseWorkTotals { demands: Some(demands), phases: Default::default() }
    }

    /// A step is complete.
    pub fn step(&mut self, record: &StepRecord) {
        let Some(demands) = &self.demands else { return };
        let parts = demands.step_by_phase(
            record.decode.iter().map(RecordRow::span),
            record.prefill.iter().map(RecordRow::span),
            record.logit_rows(),
        );
        for (phase, part) in self.phases.iter_mut().zip(&parts) {
            phase.total.add(part);
        }
        let whole = &mut self.phases[usize::from(record.prefill.is_empty())];
        let seconds = record.took().as_secs_f64();
        let keep = (-seconds / MEMORY_SECONDS).exp();
        whole.recent.scale(keep);
        parts.iter().for_each(|part| whole.recent.add(part));
        whole.recent_seconds = whole.recent_seconds * keep + seconds;
        whole.last = record.completed_at;
    }
}
