//! Which requests of other models of the same server a request waited for: the owner `other_model` in names.
//!
//! ```text
//! model A, our request   [step]-----------------[step]-------[step]     the time between its steps
//! model B, its requests         [step of 1, 2]        [step 2]          what of that their steps took, by rows
//! ```
//! Engines take the cores in turns, so what other models computed between two steps of a request is what it waited for. Of
//! a step with several requests each has its share of the rows. The sum is the owner's time, exactly: what has no name (steps
//! that are forgotten, and the way from one engine to the next) is one entry without.

use std::collections::BTreeMap;

use engine::ledger::{Account, Owner, Visit};
use engine::{Observe, RequestId, Timeline};
use protocol::Nanos;

/// Requests that are named.
const MOST: usize = 6;
/// Requests of a model that are looked at, the newest ones.
const MOST_READ: usize = 256;

/// What a prompt waited for other models.
pub(crate) struct Waited {
    /// All of it.
    pub(crate) total: Nanos,
    /// The largest first: the model by its place, the request, its time.
    pub(crate) named: Vec<(usize, RequestId, Nanos)>,
}

/// Of one prompt of an engine beside `others`. Cost: the steps of the requests that the others remember of that time.
pub(crate) fn waited<'a>(
    engine: &dyn Observe,
    others: impl Iterator<Item = &'a dyn Observe>,
    timeline: &Timeline,
) -> Waited {
    let bill = &timeline.account.bill;
    let total = Nanos(bill.ttft.of(Owner::OtherModel).0 + bill.gaps.of(Owner::OtherModel).0);
    if total == Nanos(0) {
        return Waited { total, named: Vec::new() };
    }
    let between = between(engine, timeline);
    let named = others.enumerate().flat_map(|(at, other)| {
        steps_of(other, &between).into_iter().map(move |(id, nanos)| (at, id, Nanos(nanos as u64)))
    });
    let mut named: Vec<(usize, RequestId, Nanos)> = named.filter(|(.., nanos)| *nanos > Nanos(0)).collect();
    named.sort_by_key(|&(.., nanos)| std::cmp::Reverse(nanos));
    // Answers side by side wait once for what each of them has in its own sum, and the other way round.
    let sum: u64 = named.iter().map(|(.., nanos)| nanos.0).sum();
    let scale = (total.0 as f64 / sum.max(1) as f64).min(1.0);
    named.iter_mut().for_each(|(.., nanos)| nanos.0 = (nanos.0 as f64 * scale) as u64);
    named.truncate(MOST);
    Waited { total, named }
}

/// Where a request had no step between its arrival and its end, as a clock on the wall shows it.
fn between(engine: &dyn Observe, timeline: &Timeline) -> Vec<(u64, u64)> {
    let Account { arrived, visits, .. } = &timeline.account;
    let unix = |at| engine.unix(at).0;
    let mut free = Vec::new();
    let mut from = *arrived;
    for visit in visits {
        if visit.from > from {
            free.push((unix(from), unix(visit.from)));
        }
        from = from.max(visit.to);
    }
    if timeline.until > from {
        free.push((unix(from), unix(timeline.until)));
    }
    free
}

/// Nanoseconds that steps of each request of an engine had of these spans.
fn steps_of(engine: &dyn Observe, spans: &[(u64, u64)]) -> BTreeMap<RequestId, f64> {
    let (Some(&(begin, _)), Some(&(_, end))) = (spans.first(), spans.last()) else { return BTreeMap::new() };
    let requests = engine.requests();
    let there = requests.iter().rev().filter(|it| engine.unix(it.arrived).0 < end && engine.unix(it.until).0 > begin);
    // By its beginning: when it ended, and whose rows it had.
    let mut steps: BTreeMap<Nanos, (Nanos, Vec<(RequestId, u32)>)> = BTreeMap::new();
    for request in there.take(MOST_READ) {
        let Some(Timeline { account, .. }) = engine.timeline(request.request) else { continue };
        for &Visit { from, to, rows, .. } in &account.visits {
            steps.entry(from).or_insert((to, Vec::new())).1.push((request.request, rows));
        }
    }
    let mut sums = BTreeMap::new();
    for (from, (to, requests)) in steps {
        let (from, to) = (engine.unix(from).0, engine.unix(to).0);
        let overlap = |&(begin, end): &(u64, u64)| to.min(end).saturating_sub(from.max(begin));
        let nanos: u64 = spans.iter().map(overlap).sum();
        let rows: u32 = requests.iter().map(|&(_, rows)| rows).sum();
        for (request, own) in requests {
            *sums.entry(request).or_insert(0.0) += nanos as f64 * f64::from(own) / f64::from(rows.max(1));
        }
    }
    sums
}
