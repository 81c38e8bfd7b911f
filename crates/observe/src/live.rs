//! What a watcher sees of the running engine.
//!
//! ```text
//! engine's thread --- step records, ends, gaps ---> log (always there: a ring of each)  <--- pointers --- Watch
//!                 --- waiting and running --------> snapshot (while there is a watcher) <--- a copy ----- Watch
//! ```
//!
//! The engine's thread does the same work with and without watchers, but for the snapshot: that it fills four times a
//! second, and not at all without a watcher or while a reader holds it. A reader takes pointers to records under the
//! log's lock and does everything else, text above all, with the lock released. A slow one finds that the oldest
//! records are gone; nothing waits for it.

use std::sync::Arc;

use protocol::{Nanos, RequestId};
use scheduler::{BlockUse, StepRecord};

/// Between two snapshots of requests.
pub const SNAPSHOT_EVERY: Nanos = Nanos(250_000_000);
/// Between two maps of the cache.
pub const MAP_EVERY: Nanos = Nanos(50_000_000);
/// Requests of a snapshot, of those that wait and of those that run.
const MAX_SNAPSHOT_ROWS: usize = 256;

/// Waiting and running requests at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestSnapshot {
    /// The moment.
    pub at: Nanos,
    /// At most 256 that wait for their first row, or again, and 256 that run; in no order.
    pub sequences: Vec<SnapshotRow>,
}

/// One answer of a request that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotRow {
    /// Whose.
    pub request: RequestId,
    /// Which answer; before the prompt is read there is only the first.
    pub answer: usize,
    /// In the queue, or back in it.
    pub waits: bool,
    /// When the request came, or got its first rows.
    pub since: Nanos,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens in the cache.
    pub computed: usize,
    /// Tokens of the answer.
    pub generated: usize,
}

impl RequestSnapshot {
    /// Shows these, as far as there is room.
    pub fn fill(&mut self, at: Nanos, all: impl Iterator<Item = SnapshotRow>) {
        self.at = at;
        self.sequences.clear();
        let mut room = [MAX_SNAPSHOT_ROWS; 2];
        for one in all {
            let room = &mut room[usize::from(one.waits)];
            if *room > 0 {
                *room -= 1;
                self.sequences.push(one);
            }
        }
    }
}

/// What every block of the cache is used for, after a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvMap {
    /// The number of the step that the engine made last; 0 before the first.
    pub step: u64,
    /// By block.
    pub uses: Vec<BlockUse>,
    /// When it was made.
    pub at: Nanos,
    /// How often it was made: the engine's clock stops while it is held, and its blocks may change.
    pub version: u64,
}

/// A step of the log.
#[derive(Clone, Debug)]
pub struct LoggedStep {
    /// Its number since the engine started. The scheduler's own number starts again after a step that failed; this does
    /// not.
    pub number: u64,
    /// What it was.
    pub record: Arc<StepRecord>,
}

/// Median and 99th percentile, milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Percentiles {
    /// The median.
    pub p50: f64,
    /// Of a hundred, the second largest.
    pub p99: f64,
}

/// Where a reader is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogCursor {
    /// The step that it wants next.
    pub step: u64,
    /// The end of a request that it wants next.
    pub end: u64,
    /// The change of a prompt that is read elsewhere that it has seen last.
    pub remote_prefill: u64,
}

/// Times to first token of requests that are over, with those that are open: one that has its token counts with what it
/// waited, and one that waits with its age, as soon as that is above the median. (Before that it says nothing: a new
/// request is not fast.) So a queue shows while it grows, and not when it is served.
pub fn with_waiting_requests(over: Vec<f32>, open: &[(Nanos, Option<Nanos>)], now: Nanos) -> Vec<f32> {
    let mut seconds = over;
    let waited = |until: Nanos, arrived: Nanos| until.since(arrived).as_secs_f64() as f32;
    seconds.extend(open.iter().filter_map(|&(arrived, first)| Some(waited(first?, arrived))));
    let mut known: Vec<f64> = seconds.iter().map(|&seconds| f64::from(seconds)).collect();
    let median = figures::median(&mut known).unwrap_or_default() as f32;
    let ages = open.iter().filter(|(_, first)| first.is_none()).map(|&(arrived, _)| waited(now, arrived));
    seconds.extend(ages.filter(|&age| age > median));
    seconds
}

/// Of seconds.
pub fn percentiles(mut seconds: Vec<f32>) -> Option<Percentiles> {
    seconds.sort_unstable_by(f32::total_cmp);
    let at =
        |percent| figures::percentile_of(seconds.len() as u64, percent, |rank| f64::from(seconds[rank as usize]) * 1e3);
    Some(Percentiles { p50: at(50.0)?, p99: at(99.0)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recent::Newest;

    #[test]
    fn percentiles_are_of_the_newest() {
        let mut recent = Newest::<4>::default();
        assert_eq!(percentiles(recent.values()), None);
        for value in [9.0, 9.0, 0.001, 0.002, 0.003, 0.004] {
            recent.push(value);
        }
        let Percentiles { p50, p99 } = percentiles(recent.values()).expect("there are some");
        assert!((p50 - 2.5).abs() < 1e-3 && (p99 - 3.97).abs() < 1e-3, "{p50} {p99}");
    }

    #[test]
    fn a_waiting_request_counts_with_its_age() {
        let second = 1_000_000_000;
        let over = vec![0.1; 10];
        let at = |arrived: u64, first: Option<u64>| (Nanos(arrived * second), first.map(|first| Nanos(first * second)));
        let now = Nanos(100 * second);
        assert_eq!(with_waiting_requests(over.clone(), &[], now), over);
        // One came now, one has its token after 3 s, 33 have waited for 9 s.
        let mut open = vec![at(100, None), at(90, Some(93))];
        open.extend((0..33).map(|_| at(91, None)));
        let all = with_waiting_requests(over, &open, now);
        assert_eq!(all.len(), 10 + 1 + 33);
        let Percentiles { p50, p99 } = percentiles(all).expect("there are some");
        assert_eq!((p50, p99), (9000.0, 9000.0));
        // Before any request has a token, the ages are all there is.
        let ages = with_waiting_requests(Vec::new(), &[at(98, None), at(99, None)], now);
        assert_eq!(percentiles(ages).map(|p| p.p50), Some(1500.0));
        assert_eq!(percentiles(with_waiting_requests(Vec::new(), &[], now)), None);
    }

    #[test]
    fn a_snapshot_is_bounded_on_both_sides() {
        let mut snapshot = RequestSnapshot::default();
        let one = |number: u64| SnapshotRow {
            request: RequestId(number),
            answer: 0,
            waits: number.is_multiple_of(2),
            since: Nanos(0),
            prompt_tokens: 1,
            computed: 0,
            generated: 0,
        };
        snapshot.fill(Nanos(1), (0..1000).map(one));
        let waiting = snapshot.sequences.iter().filter(|one| one.waits).count();
        assert_eq!((waiting, snapshot.sequences.len()), (MAX_SNAPSHOT_ROWS, 2 * MAX_SNAPSHOT_ROWS));
    }
}
