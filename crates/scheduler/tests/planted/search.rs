//! Tests of the tests, second half: with one bug of the catalogue in the scheduler, the chaos test must find it.
//!
//! `cargo xtask planted` puts this file beside the chaos test of a copy of the crate, whose source it has woven the
//! catalogue into.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use scheduler::planted::{NAMES, OF_PAIR, plant};

use crate::remote_only_prefill;
use crate::world::Chaos;
use crate::{number_from_env, quietly, watch_parent};

/// Searches per bug, each from another seed.
const TRIALS: u64 = 5;
/// Seeds within which each search must find it.
const BUDGET: u64 = 1000;

/// A seed that found a bug, and its message.
struct Found {
    seeds: u64,
    said: String,
}

#[test]
fn planted_bugs_are_found() {
    let trials = number_from_env("TWOSTROKE_CHAOS_TRIALS").unwrap_or(TRIALS);
    let budget = number_from_env("TWOSTROKE_CHAOS_BUDGET").unwrap_or(BUDGET);
    let only = std::env::var("TWOSTROKE_PLANTED").ok();
    let bugs = NAMES.iter().enumerate().filter(|(_, name)| only.as_deref().is_none_or(|only| only == **name));
    let (mut missed, mut num_bugs) = (Vec::<&str>::new(), 0);
    let stop = watch_parent();
    quietly(|| {
        for (bug, name) in bugs.take_while(|_| !stop.load(Ordering::Relaxed)) {
            let mut found: Vec<Found> = (0..trials).filter_map(|trial| search(bug, trial * budget, budget)).collect();
            let is_missed = (found.len() as u64) < trials;
            found.sort_unstable_by_key(|found| found.seeds);
            let show = |at: usize| found.get(at).map_or(format!("> {budget}"), |found| found.seeds.to_string());
            let (median, most) = (show(trials as usize / 2), show(trials as usize - 1));
            let said = found.first().map_or("nothing", |found| &found.said);
            println!("{name:<25} {median:>6} {most:>6}  {said}");
            num_bugs += 1;
            missed.extend(is_missed.then_some(*name));
        }
    });
    println!("bug, seeds in the median, seeds at most, what found it; {num_bugs} bugs, {trials} searches for each");
    assert!(num_bugs > 0, "no bug is called {only:?}");
    assert!(missed.is_empty(), "not found within {budget} seeds: {missed:?}");
}

fn search(bug: usize, from: u64, budget: u64) -> Option<Found> {
    plant(Some(bug));
    let found = (0..budget).find_map(|seed| {
        let run = || match OF_PAIR[bug] {
            true => drop(remote_only_prefill::World::new(from + seed).run()),
            false => drop(Chaos::new(from + seed, None).run()),
        };
        let panic = catch_unwind(AssertUnwindSafe(run)).err()?;
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        let line = text.and_then(|text| text.lines().next()).unwrap_or("a panic");
        let said = line.trim_start_matches("assertion `left == right` failed: ").chars().take(80).collect();
        Some(Found { seeds: seed + 1, said })
    });
    plant(None);
    found
}
