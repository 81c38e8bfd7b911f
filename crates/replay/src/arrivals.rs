//! The engine's past as the simulator takes it, and a recording as a past.
//!
//! ```text
//! recording --replay--> requests, steps, ends --PastLog--> Past <-- Engine::past, of one that runs
//!                                                           |
//!                                                           +--story--> an arrival, and what came of it
//! ```

use engine::past::{Past, PastAnswer, PastLog};
use ledger::Ledger;
use scheduler::Nanos;
use sim::Arrival;
use sim::report::Outcome;
use sim::workload::Piece;

use crate::read::{Recording, RecordingError};
use crate::replay::{Told, replay};

/// Reads a recording into a past. The steps are replayed on the way, so a recording that is not what happened is
/// noticed: then this is what happened before the difference.
pub fn past(recording: Recording) -> Result<Past, RecordingError> {
    let header = recording.header.clone();
    let mut log = PastLog::unbounded(header.limits().block_size);
    // Of an account only the sums are asked for.
    let mut ledger = Ledger::new(0);
    replay(recording, &mut |told| match told {
        Told::Admitted(request) => {
            ledger.admit(request);
            log.admitted(request);
        }
        Told::Step(record, _) => {
            ledger.step(record, None, &mut |_| {});
            log.step(record);
        }
        Told::Ended(request) => {
            if let Some(account) = ledger.end(request) {
                log.closed(&account);
            }
        }
    })?;
    Ok(log.share().since(Nanos(0), header.limits(), header.cost()))
}

/// An answer as an arrival of its own, and what came of it.
pub(crate) fn story(answer: &PastAnswer) -> (Arrival, Outcome) {
    let &PastAnswer { ref request, index, tokens, first_token, last_token, longest_gap } = answer;
    let arrival = Arrival {
        at: request.arrived,
        follows: None,
        prompt: request.prompt.iter().map(|block| Piece { name: block.name, len: block.len }).collect(),
        output_tokens: tokens,
        // Whatever it is called, nobody quotes it: what a later prompt repeats of it is not found in the cache.
        answer: request.id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index as u64,
        priority: request.priority,
        tenant: request.tenant,
        targets: request.targets,
    };
    let arrived = request.arrived;
    (arrival, Outcome { arrived, first_token, last_token, longest_gap, tokens, ..Outcome::default() })
}
