//! Seeded chaos over the engine itself: the production handle, driver, core, scheduler and sampler, with an imagined
//! clock and a model with logits that are a hash of its cache.
//!
//! ```text
//! clients (world.rs) --submit, cancel, read--> Engine --commands--> Driver --step--> EngineCore --> Fake (fake.rs)
//!      |                                                                                              |
//!      +-- every answer as if alone, one end each, every sum to the nanosecond              NaN, panics, slow passes, theft
//! ```
//!
//! What is asked after every turn, and when all is quiet:
//!
//! - every token of every answer is the one that the request gets alone, whatever failed beside it;
//! - a request fails if, and only if, the fault is its own;
//! - queue places, open requests, blocks and gauges are what counting gives, and nothing of a refused request stays;
//! - a prompt that is prefilled elsewhere, or for a peer, gives the same blocks and tokens, and leaves nothing kept;
//! - validation refuses what the cache cannot hold, and nothing else;
//! - the times of an answer are those that its client's clock shows, and its ledger's sums are these times;
//! - what the machine took of steps is the machine's, all of it and nothing else;
//! - a recording replays to the same steps.
//!
//! `cargo xtask chaos` runs it long. By hand: `TWOSTROKE_CHAOS_SEEDS`, `_FROM`, `_MINUTES` and `_SEED` as for the
//! scheduler.

mod allocations;
mod fake;
mod other_worker;
mod world;

use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use world::{Report, World};

/// From this number of seeds on, a run must have covered everything.
const ENOUGH_SEEDS: u64 = 400;
/// Of a quick run. So few must have seen a quarter as much.
const QUICK_SEEDS: u64 = 200;

/// Seeds where the environment does not say how many.
fn default_seeds() -> u64 {
    if testing::is_long() { ENOUGH_SEEDS } else { QUICK_SEEDS }
}

#[test]
fn every_answer_is_as_if_alone_whatever_fails_beside_it() {
    silence_planned_panics();
    if let Some(seed) = number_from_env("TWOSTROKE_CHAOS_SEED") {
        let report = World::new(seed).run();
        assert_eq!(World::new(seed).run().trace, report.trace, "another course the second time");
        return println!("seed {seed}: {report:?}");
    }
    let from = number_from_env("TWOSTROKE_CHAOS_FROM").unwrap_or(0);
    let minutes = number_from_env("TWOSTROKE_CHAOS_MINUTES");
    let seeds = number_from_env("TWOSTROKE_CHAOS_SEEDS").or(minutes.map(|_| u64::MAX)).unwrap_or(default_seeds());
    let until = minutes.map(|minutes| Instant::now() + Duration::from_secs(60 * minutes));
    let is_over = watch();
    let (mut sum, mut found, mut done) = (Report::default(), Vec::new(), 0);
    for seed in from..from.saturating_add(seeds) {
        if until.is_some_and(|until| Instant::now() > until) || is_over.load(Ordering::Relaxed) {
            break;
        }
        done += 1;
        match catch_unwind(AssertUnwindSafe(|| World::new(seed).run())) {
            Ok(report) => sum.add(&report),
            Err(panic) => {
                let what = panic.downcast_ref::<String>().cloned();
                let what = what.or(panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default();
                println!("seed {seed}: {what}");
                found.push(seed);
            }
        }
    }
    println!("engine: {done} seeds, {sum:?}");
    assert!(
        found.is_empty(),
        "{} of {done} seeds found something; TWOSTROKE_CHAOS_SEED={} runs one",
        found.len(),
        found[0]
    );
    match done {
        ENOUGH_SEEDS.. => sum.check_floors(20),
        QUICK_SEEDS.. => sum.check_floors(5),
        _ => {}
    }
}

/// `cargo xtask chaos` keeps standard input open as long as it wants more output.
fn watch() -> Arc<AtomicBool> {
    let is_over = Arc::new(AtomicBool::new(false));
    if number_from_env("TWOSTROKE_CHAOS_WATCHED").is_some() {
        let over = is_over.clone();
        std::thread::spawn(move || {
            // Nothing is written: it ends when the other side does.
            let _ = std::io::stdin().read(&mut [0]);
            over.store(true, Ordering::Relaxed);
        });
    }
    is_over
}

/// Injected panics are not printed; those of a check are.
fn silence_planned_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let planned = info.payload().downcast_ref::<&str>().is_some_and(|text| text.starts_with(fake::PLANNED));
        if !planned {
            before(info);
        }
    }));
}

fn number_from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number")))
}
