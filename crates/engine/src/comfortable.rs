//! Targets for requests that bring none: what a person finds comfortable, as far as the machine can do it.
//!
//! ```text
//! from one token to the next   50 ms ......... 2 x full house ......... 150 ms, and at least 1.25 x full house
//! first token                  1 s, or three times what reading a prompt of 1,024 tokens alone takes
//! ```
//! People read 4 to 7 tokens a second, and a stream of 7 to 20 reads smoothly. A step of a full house is what decode
//! takes with every seat taken; a target below it would be missed by definition, and one close to it would leave prompts
//! nothing. A first token after a second feels like an answer; a slower machine gets the time that it needs for a common
//! prompt, its own and that of two others before it.

use crate::cost::{CostModel, Work};
use crate::{Nanos, Targets};

/// Milliseconds between tokens: more than this rate nobody reads.
const FAST_MS: f64 = 50.0;
/// Below this rate a stream feels slow.
const SLOW_MS: f64 = 150.0;
/// Of a step's time, decode of a full house may take one part in so many, where that is comfortable ...
const PROMPTS_SHARE: f64 = 2.0;
/// ... and this much in any case.
const LEAST_SHARE: f64 = 1.25;
/// Milliseconds to the first token that nobody minds.
const PROMPT_MS: f64 = 1000.0;
/// A common prompt, and how many of them may be in line.
const COMMON_PROMPT: usize = 1024;
const IN_LINE: f64 = 3.0;

/// How many there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct House {
    /// Sequences that run together.
    pub seqs: usize,
    /// Tokens that each of them has when all seats are taken.
    pub tokens_each: usize,
    /// Rows of a step.
    pub rows: usize,
}

impl Targets {
    /// Comfortable targets on a machine whose steps cost `cost`. Both are given, with two digits.
    pub fn comfortable(cost: &CostModel, house: &House) -> Targets {
        let mut full = Work::default();
        (0..house.seqs).for_each(|_| full.add_decode(house.tokens_each.max(1)));
        let full_ms = cost.seconds(&full) * 1e3;
        let tpot_ms = (full_ms * PROMPTS_SHARE).clamp(FAST_MS, SLOW_MS).max(full_ms * LEAST_SHARE);
        let ttft_ms = (IN_LINE * reading_ms(cost, house.rows)).max(PROMPT_MS);
        Targets { ttft: Some(two_digits(ttft_ms)), tpot: Some(two_digits(tpot_ms)) }
    }
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
