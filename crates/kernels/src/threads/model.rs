//! A model of the pool: the real code under `loom`, which runs it in every order that the memory model allows (with a
//! bound on preemptions), and reports data races, deadlocks and lost wake-ups.
//!
//! ```text
//! publication    workers see what the caller wrote before a region; the caller sees what they wrote after it
//! doors          a late worker is shut out and accesses nothing; an entered one is waited for
//! bars           a barred worker enters no region until it is admitted again
//! parking        a worker that goes to sleep while a region is published wakes up
//! panic          of any thread: it reaches the caller, and the next region runs
//! claim          a second caller is refused, from inside or outside a region, and repeats no work
//! ```
//! `cargo xtask loom` runs it; `RUSTFLAGS` has to say `--cfg loom`.

use super::sync::{AtomicUsize, UnsafeCell};
use super::*;
use loom::model::Builder;
use loom::thread;

/// Runs `f` in every order with at most `interruptions` preemptions.
fn explore(interruptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(interruptions);
    builder.max_branches = 20_000;
    builder.check(f);
}

/// Threads without CPUs: the model does not pin.
fn pool(threads: usize) -> Pool {
    Pool::start(threads, Nodes::one(threads), Vec::new()).expect("loom has threads")
}

/// Plain memory, one number per thread. Loom detects simultaneous access.
struct Slots(Vec<UnsafeCell<usize>>);

// SAFETY: none is needed, because the model tests it: loom reports any access that breaks the rules.
unsafe impl Sync for Slots {}

impl Slots {
    fn new(len: usize) -> Slots {
        Slots((0..len).map(|_| UnsafeCell::new(0)).collect())
    }

    fn add(&self, slot: usize, n: usize) {
        // SAFETY: loom reports a second access at the same time before it happens.
        self.0[slot].with_mut(|to| unsafe { *to += n });
    }

    fn values(&self) -> Vec<usize> {
        // SAFETY: as above.
        self.0.iter().map(|slot| slot.with(|from| unsafe { *from })).collect()
    }
}

/// Whether the pool refuses a second caller. Loom prints uncaught panics; the ones caught here are not printed.
fn refused(f: impl FnOnce()) -> bool {
    const REFUSAL: &str = "a Pool runs one region at a time";
    static QUIET: std::sync::Once = std::sync::Once::new();
    QUIET.call_once(|| {
        let show = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if panic.payload().downcast_ref() != Some(&REFUSAL) {
                show(panic);
            }
        }));
    });
    let Err(panic) = catch_unwind(AssertUnwindSafe(f)) else { return false };
    if panic.downcast_ref() != Some(&REFUSAL) {
        resume_unwind(panic);
    }
    true
}

/// Two regions one after the other, and the end of the pool: publication, parking, wake-up, stop.
fn regions_in_turn(threads: usize) {
    let (pool, slots) = (pool(threads), Slots::new(threads));
    for region in 1..=2 {
        pool.run(&|thread| slots.add(thread, region));
        assert_eq!(slots.values(), vec![region * (region + 1) / 2; threads]);
    }
}

#[test]
fn regions_are_published_and_waited_for() {
    explore(3, || regions_in_turn(2));
}

#[test]
fn so_they_are_with_two_workers() {
    explore(1, || regions_in_turn(3));
}

/// Two regions with claimed tasks, in memory that is freed when the second begins: a late worker that still accessed the
/// first would be detected.
fn claimed_regions_in_turn(threads: usize, tasks: usize) {
    let pool = pool(threads);
    for _ in 0..2 {
        let slots = Slots::new(tasks);
        pool.tasks(tasks, &|task| slots.add(task, 1));
        assert_eq!(slots.values(), vec![1; tasks]);
    }
}

#[test]
fn a_worker_is_in_or_shut_out() {
    explore(3, || claimed_regions_in_turn(2, 2));
}

#[test]
fn so_are_two() {
    explore(1, || claimed_regions_in_turn(3, 2));
}

#[test]
fn a_region_for_all_follows_one_that_shut_a_worker_out() {
    explore(2, || {
        let (pool, slots) = (pool(2), Slots::new(2));
        pool.tasks(2, &|task| slots.add(task, 1));
        pool.run(&|thread| slots.add(thread, 1));
        assert_eq!(slots.values(), [2, 2]);
    });
}

#[test]
fn a_barred_worker_is_in_no_region_until_it_is_let_in() {
    explore(2, || {
        let (pool, slots) = (pool(2), Slots::new(2));
        pool.set.bar(0, true);
        pool.bars.store(true, Relaxed);
        // Only the caller accesses slot 1: loom would detect the worker.
        let claim = pool.claim();
        claim.region(
            &|thread| {
                assert_eq!(thread, 0, "it is barred");
                slots.add(1, 1);
            },
            |worker, region, _| assert!(pool.set.is_out(worker, region)),
        );
        pool.run(&|thread| slots.add(thread, 1));
        assert_eq!(slots.values(), [1, 2]);
    });
}

#[test]
fn a_panic_of_any_thread_reaches_the_caller() {
    for culprit in 0..2 {
        explore(3, move || {
            let (pool, slots) = (pool(2), Slots::new(2));
            let region = || {
                pool.run(&|thread| {
                    slots.add(thread, 1);
                    if thread == culprit {
                        resume_unwind(Box::new("planned"));
                    }
                });
            };
            let panic = catch_unwind(AssertUnwindSafe(region)).expect_err("a panic that was lost");
            assert_eq!(panic.downcast_ref(), Some(&"planned"));
            pool.run(&|thread| slots.add(thread, 1));
            assert_eq!(slots.values(), [2, 2]);
        });
    }
}

/// Indices enough for a head and a tail in each share.
const COUNT: usize = 2 * TAIL_SHARE;

#[test]
fn a_region_within_a_region_is_refused_and_repeats_nothing() {
    explore(2, || {
        let (pool, slots, attempts) = (pool(2), Slots::new(COUNT), AtomicUsize::new(0));
        pool.shares(COUNT, &|range| {
            range.for_each(|index| slots.add(index, 1));
            if attempts.fetch_add(1, Relaxed) < 3 {
                assert!(refused(|| pool.shares(COUNT, &|_| unreachable!("there is a region already"))));
            }
        });
        assert_eq!(slots.values(), [1; COUNT]);
    });
}

#[test]
fn a_second_caller_is_refused_and_repeats_nothing() {
    explore(2, || {
        let pool = Arc::new(pool(2));
        let shares = |pool: &Pool| {
            let slots = Slots::new(COUNT);
            let refused = refused(|| pool.shares(COUNT, &|range| range.for_each(|index| slots.add(index, 1))));
            assert_eq!(slots.values(), [usize::from(!refused); COUNT]);
        };
        let second = {
            let pool = pool.clone();
            thread::spawn(move || shares(&pool))
        };
        shares(&pool);
        second.join().expect("the second caller does not panic");
    });
}
