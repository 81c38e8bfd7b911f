//! What a run should provoke, counted: a run in which one of these stays below its floor has tested nothing.

use std::collections::BTreeMap;

/// Floors are per this many seeds.
pub(crate) const PER_SEEDS: u64 = 10_000;

/// What must have happened, and how often at least in [`PER_SEEDS`] seeds.
const FLOORS: &[(&str, u64)] = &[
    ("admitted", 60_000),
    ("answer ended by a stop token", 3_000),
    ("answer ended by max_tokens", 50_000),
    ("answer ended by the context", 7_000),
    ("answer kept", 25_000),
    ("answer stopped from outside", 3_000),
    ("block before its parent", 9_000),
    ("block came for nothing", 1_200),
    ("block came spoiled", 1_700),
    ("block copied", 10_000),
    ("block evicted", 200_000),
    ("block is here already", 18_000),
    ("block landed", 6_500),
    ("block loaded from disk", 2_000),
    ("block loaded from memory", 5_000),
    ("block on its way here", 9_000),
    ("block saved", 60_000),
    ("block spilled", 20_000),
    ("block that is not cached", 70_000),
    ("block to read is set aside", 0),
    ("cancelled after a step", 2_000),
    ("cancelled on arrival", 1_000),
    ("cancelled between steps", 2_000),
    ("cancelled in flight", 3_000),
    ("cancelled in prefill", 1_000),
    ("cancelled while expected", 600),
    ("cancelled while loading", 50),
    ("cancelled while preempted", 900),
    ("cancelled while running", 4_000),
    ("cancelled while waiting", 8_000),
    ("cancelled with several answers", 600),
    ("chunk cut short for a target", 4_000),
    ("clock jumped by hours", 5_000),
    ("clock jumped by seconds", 5_000),
    ("clock stood still", 50_000),
    ("clock was set anew", 5_000),
    ("clock went back", 5_000),
    ("disk given up", 20_000),
    ("draft held", 20_000),
    ("draft rejected", 20_000),
    ("draft room cut short", 500),
    ("drafts across a block's end", 2_000),
    ("drafts beside a prompt", 2_000),
    ("entered for its deadline", 4_000),
    ("entered past one put off", 1_000),
    ("expected one came", 10_000),
    ("expected one has ended", 40),
    ("fork while blocks ran out", 6),
    ("given up in the queue", 2_000),
    ("kept answer released", 4_500),
    ("kept block read", 10_000),
    ("kept blocks all taken", 6_000),
    ("kept blocks taken in part", 18_000),
    ("landed block loaded", 1_800),
    ("late one beside younger ones", 200),
    ("late one overtaken", 20),
    ("left out for a target", 20_000),
    ("lower class of one tenant before a higher one of another", 500),
    ("lease ended", 10_000),
    ("load ended in flight", 5_000),
    ("load failed", 100),
    ("never fits", 10_000),
    ("no block to read", 100_000),
    ("no slot for a block", 35_000),
    ("oldest went first out of its class", 4_000),
    ("patience of the oldest ran out", 2_000),
    ("preempted", 10_000),
    ("preempted before its answers were forked", 10),
    ("preempted in prefill", 200),
    ("prefix hit", 10_000),
    ("prefix hit in a tier", 900),
    ("prefix known but for its last token", 4_000),
    ("prompt beside a target", 8_000),
    ("prompt row that a target had no room for", 300),
    ("prompt too long", 5_000),
    ("protected", 100),
    ("queue full", 60_000),
    ("read ended", 30_000),
    ("read outlived its answer", 9_000),
    ("resumed after its end", 150),
    ("resumed after some answers ended", 1_500),
    ("resumed from a tier", 1_000),
    ("resumed from elsewhere", 15_000),
    ("resumed with a decode row", 1_000),
    ("resumed with its own prefix", 6_000),
    ("resumed with several answers", 3_000),
    ("resumed without a token", 8_000),
    ("offer for one that does not decode", 2_000),
    ("run ended before its last token", 200),
    ("run with states", 2_000),
    ("running answer's block read", 30_000),
    ("scored only", 4_000),
    ("seat missing", 60_000),
    ("state kept", 1),
    ("kept state given up", 1),
    ("stalled behind protected ones", 100),
    ("stalled for a reader", 800),
    ("stalled for one that left", 2),
    ("step failed", 2_000),
    ("step took a thousand times longer", 1_000),
    ("step with copies failed", 100),
    ("stopped in flight", 900),
    ("tenant entered in its turn", 8_000),
    ("too many answers", 3_000),
    ("write failed", 1_000),
];

#[derive(Clone, Default)]
pub(crate) struct Counters(BTreeMap<&'static str, u64>);

impl Counters {
    pub(crate) fn saw(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    pub(crate) fn times(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }

    pub(crate) fn add(&mut self, other: &Counters) {
        for (&what, &times) in &other.0 {
            *self.0.entry(what).or_default() += times;
        }
    }

    /// Every counter on a line with its floor.
    pub(crate) fn table(&self, seeds: u64) -> String {
        let floor = |what: &str| FLOORS.iter().find(|(name, _)| *name == what).map_or(0, |(_, floor)| *floor);
        let line = |(what, times): (&&str, &u64)| {
            format!("  {times:>12}  {what} (at least {})\n", floor(what) * seeds / PER_SEEDS)
        };
        self.0.iter().map(line).collect()
    }

    /// Panics if something happened too rarely in `seeds` seeds.
    pub(crate) fn check_floors(&self, seeds: u64) {
        for what in self.0.keys() {
            assert!(FLOORS.iter().any(|(name, _)| name == what), "{what} has no floor");
        }
        for &(what, floor) in FLOORS {
            let (times, floor) = (self.times(what), floor * seeds / PER_SEEDS);
            assert!(times >= floor, "this run tests too little: {what}: {times} times, at least {floor} expected");
        }
    }
}
