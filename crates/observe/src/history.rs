//! The last minutes, second by second: what a page that is opened after the incident shows.
//!
//! ```text
//! steps, tokens, ends --> the second that they ended in --> 900 of them: rows, requests waiting, and two sketches
//!                                                             |
//! a sketch: 4 counters for each factor of two of a time ------+--> p50 and p99 to within an eighth
//! ```
//!
//! Some 400 kB, once. A second in which nothing happened takes no place.

use std::collections::VecDeque;

use ledger::{Account, LedgerEvent};
use protocol::Nanos;
use scheduler::StepRecord;

use crate::counters::Gauges;

/// Seconds that are kept.
const KEPT: usize = 900;
const SECOND: u64 = 1_000_000_000;
/// A sketch begins at 2^16 ns (66 microseconds) and has 4 buckets for each of the next 22 factors of two (275 s).
const FIRST_OCTAVE: u32 = 16;
const PER_OCTAVE: u32 = 4;
const BUCKETS: usize = (22 * PER_OCTAVE) as usize;

/// What happened in a second of the engine's time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SecondStats {
    /// When it began.
    pub began: Nanos,
    /// Steps that ended in it.
    pub steps: usize,
    /// Prompt tokens that were computed.
    pub prefill_tokens: usize,
    /// Decode rows that were computed.
    pub decode_tokens: usize,
    /// Most sequences in a step.
    pub running: usize,
    /// Most requests that waited after a plan.
    pub waiting: usize,
    /// KV blocks that requests held, and those with cached prefixes that may be taken, after the last step.
    pub used_blocks: usize,
    /// See `used_blocks`.
    pub cached_blocks: usize,
    /// Prompt tokens looked up in the prefix cache by those that entered, and found.
    pub queried_tokens: usize,
    /// See `queried_tokens`.
    pub hit_tokens: usize,
    /// Median and 99th percentile of the times to first token that ended in it, milliseconds, to within an eighth.
    pub ttft_ms: Option<[f64; 2]>,
    /// The same of the times from token to token.
    pub gap_ms: Option<[f64; 2]>,
}

/// Counts of times, by their size.
#[derive(Clone, Debug)]
struct Sketch([u16; BUCKETS]);

impl Default for Sketch {
    fn default() -> Sketch {
        Sketch([0; BUCKETS])
    }
}

impl Sketch {
    fn observe(&mut self, time: Nanos) {
        let count = &mut self.0[bucket(time)];
        *count = count.saturating_add(1);
    }

    /// Median and 99th percentile, milliseconds.
    fn percentiles(&self) -> Option<[f64; 2]> {
        let total: u64 = self.0.iter().map(|&count| u64::from(count)).sum();
        let at = |percent: f64| {
            let rank = ((total - 1) as f64 * percent / 100.0).round() as u64;
            let mut below = 0;
            let place = self.0.iter().position(|&count| {
                below += u64::from(count);
                below > rank
            });
            middle(place.unwrap_or(BUCKETS - 1)) / 1e6
        };
        (total > 0).then(|| [at(50.0), at(99.0)])
    }
}

/// The two bits behind the leading one say which quarter of its factor of two a time is in.
fn bucket(time: Nanos) -> usize {
    let octave = time.0.max(1).ilog2();
    if octave < FIRST_OCTAVE {
        return 0;
    }
    let quarter = (time.0 >> (octave - 2)) as usize & 3;
    ((octave - FIRST_OCTAVE) as usize * PER_OCTAVE as usize + quarter).min(BUCKETS - 1)
}

/// The middle of a bucket, nanoseconds.
fn middle(bucket: usize) -> f64 {
    let octave = FIRST_OCTAVE + bucket as u32 / PER_OCTAVE;
    (1_u64 << octave) as f64 * (1.0 + (f64::from(bucket as u32 % PER_OCTAVE) + 0.5) / f64::from(PER_OCTAVE))
}

/// A second while it may still grow.
#[derive(Clone, Debug, Default)]
struct Entry {
    second: SecondStats,
    ttfts: Sketch,
    gaps: Sketch,
}

/// See the module's picture.
#[derive(Debug)]
pub struct RecentSeconds(VecDeque<Entry>);

impl Default for RecentSeconds {
    /// With room for all there will be: a steady step allocates nothing.
    fn default() -> RecentSeconds {
        RecentSeconds(VecDeque::with_capacity(KEPT))
    }
}

impl RecentSeconds {
    /// A step has ended. Its results follow it.
    pub fn step(&mut self, record: &StepRecord, gauges: &Gauges) {
        let Entry { second, .. } = self.at(record.completed_at);
        second.steps += 1;
        second.prefill_tokens += record.prefill.iter().map(|row| row.len).sum::<usize>();
        second.decode_tokens += record.decode_tokens();
        second.running = second.running.max(record.decode.len() + record.prefill.len());
        second.waiting = second.waiting.max(record.waiting_requests);
        (second.used_blocks, second.cached_blocks) = (gauges.used_blocks, gauges.cached_blocks);
    }

    /// What the last step brought.
    pub fn news(&mut self, news: &LedgerEvent<'_>) {
        let Some(Entry { second, gaps, .. }) = self.0.back_mut() else { return };
        match news {
            LedgerEvent::Entered(account) => {
                second.queried_tokens += account.prompt_tokens;
                second.hit_tokens += account.cached_tokens;
            }
            LedgerEvent::Token { gap: Some(gap) } => gaps.observe(*gap),
            LedgerEvent::Token { gap: None } => {}
        }
    }

    /// A request is over. Its first token counts for the second in which it came, if that is kept.
    pub fn closed(&mut self, account: &Account) {
        let Some((first, ttft)) = account.first_token.zip(account.ttft()) else { return };
        let began = first.0 / SECOND * SECOND;
        if let Ok(place) = self.0.binary_search_by_key(&began, |entry| entry.second.began.0) {
            self.0[place].ttfts.observe(ttft);
        }
    }

    fn at(&mut self, now: Nanos) -> &mut Entry {
        let began = Nanos(now.0 / SECOND * SECOND);
        if self.0.back().is_none_or(|last| last.second.began < began) {
            if self.0.len() == KEPT {
                self.0.pop_front();
            }
            self.0.push_back(Entry { second: SecondStats { began, ..SecondStats::default() }, ..Entry::default() });
        }
        self.0.back_mut().expect("there is one now")
    }

    /// The last minutes, oldest first; none older than 15 minutes before `now`.
    pub fn seconds(&self, now: Nanos) -> Vec<SecondStats> {
        let oldest = Nanos(now.0.saturating_sub(KEPT as u64 * SECOND));
        let entries = self.0.iter().filter(|entry| entry.second.began >= oldest);
        let told = |Entry { second, ttfts, gaps }: &Entry| {
            let mut second = second.clone();
            (second.ttft_ms, second.gap_ms) = (ttfts.percentiles(), gaps.percentiles());
            second
        };
        entries.map(told).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sketch_knows_a_time_to_within_an_eighth() {
        for time in [70_000, 100_000, 999_999, 1_000_000, 7_654_321, 480_000_000, 60_000_000_000_u64] {
            let middle = middle(bucket(Nanos(time)));
            assert!((middle / time as f64 - 1.0).abs() <= 0.125, "{time} is told as {middle}");
        }
        assert_eq!((bucket(Nanos(0)), bucket(Nanos(u64::MAX))), (0, BUCKETS - 1));
        let mut sketch = Sketch::default();
        assert_eq!(sketch.percentiles(), None);
        for _ in 0..98 {
            sketch.observe(Nanos(10_000_000));
        }
        (0..2).for_each(|_| sketch.observe(Nanos(900_000_000)));
        let [p50, p99] = sketch.percentiles().expect("there are some");
        assert!((p50 / 10.0 - 1.0).abs() < 0.125 && (p99 / 900.0 - 1.0).abs() < 0.125, "{p50} {p99}");
    }

    #[test]
    fn only_the_last_minutes_are_kept_and_silence_takes_no_place() {
        let mut history = RecentSeconds::default();
        for second in [5, 5, 7, 2_000] {
            history.at(Nanos(second * SECOND + 1)).second.steps += 1;
        }
        let seen = |now: u64| -> Vec<(u64, usize)> {
            history.seconds(Nanos(now * SECOND)).iter().map(|second| (second.began.0 / SECOND, second.steps)).collect()
        };
        assert_eq!(seen(0), [(5, 2), (7, 1), (2_000, 1)]);
        assert_eq!(seen(2_001), [(2_000, 1)]);
        for second in 3_000..3_000 + 2 * KEPT as u64 {
            history.at(Nanos(second * SECOND));
        }
        assert_eq!(history.0.len(), KEPT);
    }
}
