//! The checker's own check: bugs that real engines had are planted into the scheduler, one at a time, and must be
//! found.
//!
//! The feature `planted` compiles them in: `cargo xtask test` and `cargo xtask chaos` run this with it.

use std::sync::atomic::Ordering;

use scheduler::planted::{Bug, plant};

use crate::{finds, number_from_env, quietly, watch_who_started_us};

/// Each bug is looked for so many times, from another seed each time.
const TRIALS: u64 = 5;
/// And must be found within so many seeds each time.
const BUDGET: u64 = 1000;

#[test]
fn planted_bugs_are_found() {
    let trials = number_from_env("TWOSTROKE_CHAOS_TRIALS").unwrap_or(TRIALS);
    let budget = number_from_env("TWOSTROKE_CHAOS_BUDGET").unwrap_or(BUDGET);
    assert!(Bug::ALL.len() >= 30);
    let mut missed = Vec::new();
    let stop = watch_who_started_us();
    quietly(|| {
        for &bug in Bug::ALL.iter().take_while(|_| !stop.load(Ordering::Relaxed)) {
            let mut needed: Vec<Option<u64>> =
                (0..trials).map(|trial| seeds_to_find(bug, trial * budget, budget)).collect();
            needed.sort_unstable_by_key(|seeds| seeds.unwrap_or(u64::MAX));
            let show = |seeds: Option<u64>| seeds.map_or(format!("> {budget}"), |seeds| seeds.to_string());
            let (median, most) = (show(needed[needed.len() / 2]), show(needed[needed.len() - 1]));
            println!("{:<26} found after {median:>6} seeds in the median, {most:>6} at most", format!("{bug:?}"));
            missed.extend(needed.contains(&None).then_some(bug));
        }
    });
    println!("{} bugs, {trials} searches for each, of at most {budget} seeds", Bug::ALL.len());
    assert!(missed.is_empty(), "not found within {budget} seeds: {missed:?}");
}

fn seeds_to_find(bug: Bug, from: u64, budget: u64) -> Option<u64> {
    plant(Some(bug));
    let found = (0..budget).find(|seed| finds(from + seed, None));
    plant(None);
    found.map(|seed| seed + 1)
}
