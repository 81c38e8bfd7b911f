//! Prompts that cannot be on time go behind those that can, for a bounded time. Simulated machine: 10 ms for a pass of
//! up to 100 rows, 0.1 ms for each row more.

use std::collections::BTreeMap;

use protocol::{Nanos, Priority, Targets};
use scheduler::{Limits, Request, Scheduler, TokenEvent};
use testing::plans;

const MS: u64 = 1_000_000;
/// One in this many prompt rows is for late prompts.
const LATE_SHARE: u64 = 4;

/// When, tokens of the prompt, milliseconds to its first token, tenant, class.
type Arrival = (u64, usize, u64, u64, i32);

/// When each had its only token, in milliseconds since it came.
fn serve(arrivals: &[Arrival]) -> Vec<u64> {
    let machine = plans::machine();
    let limits =
        Limits { max_num_batched_tokens: 512, max_prefill_chunk: 512, enable_prefix_caching: false, ..plans::limits() };
    let mut scheduler = Scheduler::new(limits).expect("good limits");
    scheduler.set_cost_model(Some(machine.clone()));
    let (mut now, mut next) = (Nanos(0), 0);
    let mut came = BTreeMap::new();
    while next < arrivals.len() || scheduler.has_work() {
        if !scheduler.has_work() {
            now = now.max(Nanos(arrivals[next].0 * MS));
        }
        while next < arrivals.len() && arrivals[next].0 * MS <= now.0 {
            let (at, prompt, ttft, tenant, priority) = arrivals[next];
            let request = Request {
                stop: plans::at_most(1),
                priority: Priority(priority),
                use_prefix_cache: false,
                tenant,
                targets: Targets { ttft: Some(Nanos(ttft * MS)), tpot: None },
                arrived: Nanos(at * MS),
                ..plans::request(next as u64, vec![7; prompt])
            };
            scheduler.admit(request).expect("there is room");
            next += 1;
        }
        let step = scheduler.schedule(now);
        now.0 += machine.step_time(&scheduler.planned().work).0;
        for event in scheduler.complete(plans::answer(&step, 1), now).events {
            if let TokenEvent::Token { request, .. } = event {
                let arrived = Nanos(arrivals[request.0 as usize].0 * MS);
                came.insert(request, now.since(arrived).0 / MS);
            }
        }
        scheduler.check_invariants();
    }
    came.into_values().collect()
}

#[test]
fn who_is_late_waits_at_most_four_times_as_long_as_in_order_of_arrival() {
    // 4,000 rows take 400 ms and were wanted after 100; then the machine is full of those that can be in time.
    let mut arrivals = vec![(0, 4000, 100, 0, 0)];
    arrivals.extend((0..400).map(|index| (10 + index * 51, 500, 300, 0, 0)));
    let waited = serve(&arrivals);
    let in_order = 4000 / 10 + 10;
    assert!(waited[0] <= in_order * LATE_SHARE + 2 * 51, "{} ms", waited[0]);
    let in_time = |waited: &[u64]| waited.iter().filter(|&&ms| ms <= 300).count();
    assert!(waited[0] > in_order * 2, "the others still go first: {} ms", waited[0]);
    assert!(in_time(&waited[1..]) >= 300, "{} of 400 in time", in_time(&waited[1..]));
}

#[test]
fn the_late_are_served_in_the_order_in_which_they_came() {
    let mut arrivals = vec![(0, 3000, 100, 0, 0), (1, 2000, 50, 0, 0), (2, 2500, 20, 0, 0)];
    arrivals.extend((0..400).map(|index| (10 + index * 51, 500, 300, 0, 0)));
    let waited = serve(&arrivals);
    assert!(waited[0] < waited[1] && waited[1] < waited[2], "{:?}", &waited[..3]);
    assert!(waited[2] <= 750 * LATE_SHARE + 2 * 51, "{} ms", waited[2]);
}

#[test]
fn being_late_gives_a_tenant_no_more_than_its_turn() {
    // One floods with what is always late; the other asks for an eighth of the machine.
    let mut arrivals: Vec<Arrival> = (0..100).map(|index| (index * 60, 1000, 10, 0, 0)).collect();
    arrivals.extend((0..12).map(|index| (500 + index * 500, 500, 400, 1, 0)));
    arrivals.sort_by_key(|&(at, ..)| at);
    let waited = serve(&arrivals);
    let of = |tenant| arrivals.iter().zip(&waited).filter(move |(arrival, _)| arrival.3 == tenant).map(|(_, &ms)| ms);
    assert!(of(1).all(|ms| ms <= 400), "{:?}", of(1).collect::<Vec<_>>());
}
