//! What the phases of an answer cost, and how much of the machine's limits they had: `timings.prefill` and
//! `timings.decode`.
//!
//! ```text
//! timings --Demands--> operations, bytes --+
//! machine --Limits--> peaks ---------------+--> share of the limit, what bound it
//! bill ---------------> seconds of its own +
//! ```
//! Names are those of `run --json` and of `plan --json`. Time that others' rows took of the same steps is not held
//! against a phase: the share says what its own rows had of the machine.

use engine::ledger::Owner;
use engine::{DeviceLimits, Timings};
use plan::units::rounded;
use roofline::{Demands, LimitShares, PassWork};
use serde::Serialize;

/// One phase of one answer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WirePhase {
    flops: f64,
    bytes: f64,
    intensity: f64,
    #[serde(flatten)]
    shares: Option<WireShares>,
}

/// Where the machine's limits are known and the time is not cut at them, and the answers are to one prompt.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct WireShares {
    limit_percent: f64,
    compute_percent: f64,
    memory_percent: f64,
    bound_by: &'static str,
}

/// Both phases of all prompts of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct PhaseCosts {
    prompts: usize,
    work: [PassWork; 2],
    seconds: [f64; 2],
    tokens: [usize; 2],
}

impl PhaseCosts {
    /// Adds those of one prompt, which was read in chunks of at most `chunk` rows, with its number of answers.
    pub fn add(&mut self, timings: &Timings, demands: &Demands, chunk: usize, answers: usize) {
        let context = timings.decode_context_tokens as f64;
        // Its answers decode side by side, in the same steps.
        let steps = timings.decode_steps.div_ceil(answers.max(1));
        let work = [
            demands.prefill(timings.cached_tokens, timings.prefill_tokens, chunk),
            demands.decode(steps, timings.decode_tokens + timings.drafted_tokens - timings.accepted_tokens, context),
        ];
        self.prompts += 1;
        self.work.iter_mut().zip(&work).for_each(|(sum, more)| sum.add(more));
        self.seconds = own_seconds(timings);
        self.tokens[0] += timings.prefill_tokens;
        self.tokens[1] += timings.decode_tokens;
    }

    /// Prefill and decode; `None` for one without tokens.
    pub fn phases(&self, limits: Option<&DeviceLimits>, demands: &Demands) -> [Option<WirePhase>; 2] {
        std::array::from_fn(|phase| {
            let (work, seconds) = (&self.work[phase], self.seconds[phase]);
            // Several prompts ran side by side: their times are no sum.
            let limits = limits.filter(|_| self.prompts == 1 && seconds > 0.0);
            (self.tokens[phase] > 0).then(|| WirePhase {
                flops: work.flops().round(),
                bytes: work.bytes.round(),
                intensity: rounded(work.intensity()),
                shares: limits.and_then(|limits| LimitShares::of(work, seconds, limits, demands).known()).map(shares),
            })
        })
    }
}

fn shares(shares: LimitShares) -> WireShares {
    WireShares {
        limit_percent: rounded(shares.of_limit() * 100.0),
        compute_percent: rounded(shares.compute * 100.0),
        memory_percent: rounded(shares.memory * 100.0),
        bound_by: shares.bound().name(),
    }
}

/// Seconds of both phases without what the rows of others took. What other programs took stays, as in the line of `run`:
/// the share is what was had of the machine.
fn own_seconds(timings: &Timings) -> [f64; 2] {
    let bill = &timings.bill;
    let seconds = |of: &engine::ledger::Shares, owner| of.of(owner).as_secs_f64();
    let others = [Owner::OtherPrefill, Owner::Decode, Owner::OtherDrafts];
    let others = |of| others.into_iter().map(|owner| seconds(of, owner)).sum::<f64>();
    let prefill = (timings.prefill_ms / 1e3 - others(&bill.ttft)).max(seconds(&bill.ttft, Owner::OwnPrefill));
    // Gaps of several answers are a sum, the phase is not.
    let own = [Owner::OwnDecode, Owner::OwnDrafts, Owner::Overhead, Owner::Machine];
    let own: f64 = own.map(|owner| seconds(&bill.gaps, owner)).iter().sum();
    let gaps = bill.gaps.total().as_secs_f64();
    let decode = if gaps > 0.0 { timings.decode_ms / 1e3 * own / gaps } else { 0.0 };
    [prefill, decode]
}
