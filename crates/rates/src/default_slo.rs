//! Default latency targets: what a person reads with ease, as far as the machine can do it.
//!
//! ```text
//! from one token to the next   50 ms ......... 2 x full batch ......... 150 ms, and at least 1.25 x full batch
//! first token                  1 s, or three times what reading a prompt of 1,024 tokens alone takes
//! ```
//! People read 4 to 7 tokens a second, and a stream of 7 to 20 reads smoothly. A step of a full batch is what decode
//! takes with every seat taken; a target below it would be missed by definition, and one close to it would leave
//! prompts nothing. A first token after a second feels like an answer; a slower machine gets the time that it needs for
//! a common prompt, its own and that of two others before it.

use std::time::Duration;

use protocol::{Nanos, Targets};
use scheduler::{CostModel, Work};

/// Milliseconds between tokens: the rate is above reading speed.
const FAST_MS: f64 = 50.0;
/// Below this rate a stream feels slow.
const SLOW_MS: f64 = 150.0;
/// The TPOT target over the decode step of a full batch, within the two rates above ...
const PROMPTS_SHARE: f64 = 2.0;
/// ... and this much in any case.
const LEAST_SHARE: f64 = 1.25;
/// Milliseconds to the first token that a reader does not notice.
const PROMPT_MS: f64 = 1000.0;
/// A common prompt, and how many of them may be in line.
const COMMON_PROMPT: usize = 1024;
const IN_LINE: f64 = 3.0;

/// A target of requests that bring none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DefaultTarget {
    /// As soon as others allow.
    #[default]
    None,
    /// Default targets for this machine (`default_slo.rs`).
    Auto,
    /// This.
    Fixed(Duration),
}

impl DefaultTarget {
    pub(crate) fn resolve(self, auto: Option<Nanos>) -> Option<Nanos> {
        match self {
            DefaultTarget::None => None,
            DefaultTarget::Auto => auto,
            DefaultTarget::Fixed(time) => Some(Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))),
        }
    }
}

/// How many there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Sequences that run together.
    pub seqs: usize,
    /// Tokens that each of them has when all seats are taken.
    pub tokens_each: usize,
    /// Rows of a step.
    pub rows: usize,
}

/// Default targets on a machine with this cost model. Both are set, with two digits.
pub(crate) fn default_targets(cost: &CostModel, capacity: &Capacity) -> Targets {
    let mut full = Work::default();
    (0..capacity.seqs).for_each(|_| full.add_decode(capacity.tokens_each.max(1)));
    let full_ms = cost.seconds(&full) * 1e3;
    let tpot_ms = (full_ms * PROMPTS_SHARE).clamp(FAST_MS, SLOW_MS).max(full_ms * LEAST_SHARE);
    let ttft_ms = (IN_LINE * reading_ms(cost, capacity.rows)).max(PROMPT_MS);
    Targets { ttft: Some(two_digits(ttft_ms)), tpot: Some(two_digits(tpot_ms)) }
}

/// Milliseconds that a common prompt takes alone.
fn reading_ms(cost: &CostModel, rows: usize) -> f64 {
    let mut seconds = 0.0;
    let mut start = 0;
    while start < COMMON_PROMPT {
        let len = rows.clamp(1, COMMON_PROMPT - start);
        let mut work = Work::default();
        work.add_chunk(start, len, start + len == COMMON_PROMPT);
        seconds += cost.seconds(&work);
        start += len;
    }
    seconds * 1e3
}

/// The next number of whole milliseconds that has at most two digits before its zeros.
fn two_digits(ms: f64) -> Nanos {
    // What is a whole number but for the rounding of its computation counts as one.
    let whole = (ms - 1e-6).clamp(0.0, 1e12) as u64 + 1;
    let mut unit = 1;
    while whole.div_ceil(unit) >= 100 {
        unit *= 10;
    }
    Nanos(whole.div_ceil(unit) * unit * 1_000_000)
}

#[cfg(test)]
mod tests {
    use scheduler::cost::{Knot, Terms};

    use super::*;

    /// A machine with these milliseconds for a pass of one row, and for each further one.
    fn machine(pass_ms: f64, row_ms: f64) -> CostModel {
        let at = |rows: usize| Knot { rows, seconds: (pass_ms + (rows - 1) as f64 * row_ms) / 1e3 };
        CostModel::new(vec![at(1), at(1001)], Terms::default())
    }

    #[test]
    fn targets_are_comfortable_where_the_machine_can_do_it() {
        // (milliseconds of a pass, of each further row, seats), and the targets in milliseconds: to first token, then
        // each.
        let table = [
            ((0.1, 0.01, 64), (1000, 50)),      // faster than reading speed
            ((20.0, 0.1, 64), (1000, 53)), // a full house takes 26.3 ms: twice that leaves prompts half of the time
            ((30.0, 0.5, 64), (1800, 130)), // 61.5 ms; a prompt of 1,024 takes 2 passes of 285.5 ms
            ((30.0, 1.0, 64), (3300, 150)), // 93 ms: twice that is slower than is comfortable
            ((100.0, 1.0, 64), (3700, 210)), // 163 ms: a quarter more, or prompts crawl
            ((100.0, 1.0, 1), (3700, 150)), // one seat
            ((5000.0, 0.0, 8), (30_000, 6300)), // a machine that can do no better
        ];
        for ((pass_ms, row_ms, seqs), (ttft_ms, tpot_ms)) in table {
            let capacity = Capacity { seqs, tokens_each: 1024, rows: 512 };
            let Targets { ttft, tpot } = default_targets(&machine(pass_ms, row_ms), &capacity);
            let ms = |target: Option<Nanos>| target.expect("it is given").0 as f64 / 1e6;
            assert_eq!((ms(ttft), ms(tpot)), (f64::from(ttft_ms), f64::from(tpot_ms)), "{pass_ms} {row_ms} {seqs}");
        }
    }

    #[test]
    fn long_contexts_count() {
        let terms = Terms { key: 1e-6, ..Terms::default() };
        let cost = CostModel::new(vec![Knot { rows: 1, seconds: 0.030 }], terms);
        let tpot = |tokens_each| {
            let capacity = Capacity { seqs: 64, tokens_each, rows: 512 };
            default_targets(&cost, &capacity).tpot.expect("it is given").0 / 1_000_000
        };
        assert_eq!([tpot(10), tpot(500), tpot(1000), tpot(4000)], [62, 130, 150, 360]);
    }
}
