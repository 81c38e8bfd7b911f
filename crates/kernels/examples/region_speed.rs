//! What a fork-join region costs that does nothing: one barrier out and one back.
//!
//! ```text
//! cargo run --release -p kernels --example region_speed [threads]
//! ```
//! Beside it, for two threads and more, the floor that the machine sets: a number sent to the other core and one sent
//! back. A layer of a transformer is five to seven regions, so a 0.5B model in batch 1 pays it some 150 times for each
//! token.

use kernels::threads::{Pool, default_threads};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Instant;

/// Regions of one sample: long enough for the clock, short enough that a neighbour on the machine spoils few samples.
const REGIONS: u32 = 1000;
const SAMPLES: usize = 500;

fn main() {
    let threads = std::env::args().nth(1).map_or_else(default_threads, |count| count.parse().expect("a number"));
    let pool = Pool::new(threads).expect("a pool");
    pool.pin_caller();
    report(&format!("{threads} threads, a region"), || (0..REGIONS).for_each(|_| pool.run(&|_| ())));
    if threads > 1 {
        let (there, back) = (Line(AtomicU32::new(0)), Line(AtomicU32::new(0)));
        report("there and back", || {
            pool.run(&|thread| match thread {
                0 => (1..=REGIONS).for_each(|round| {
                    there.0.store(round, Release);
                    wait_for(&back.0, round);
                }),
                1 => (1..=REGIONS).for_each(|round| {
                    wait_for(&there.0, round);
                    back.0.store(round, Release);
                }),
                _ => {}
            });
            there.0.store(0, Release);
            back.0.store(0, Release);
        });
    }
}

/// A cache line of its own, and the one that is fetched with it.
#[repr(align(128))]
struct Line(AtomicU32);

fn wait_for(value: &AtomicU32, wanted: u32) {
    while value.load(Acquire) != wanted {
        std::hint::spin_loop();
    }
}

/// Times `thousand` of something.
fn report(what: &str, thousand: impl Fn()) {
    let mut nanos: Vec<f64> = (0..SAMPLES)
        .map(|_| {
            let begin = Instant::now();
            thousand();
            begin.elapsed().as_nanos() as f64 / f64::from(REGIONS)
        })
        .collect();
    nanos.sort_by(f64::total_cmp);
    let at = |share: f64| nanos[((SAMPLES - 1) as f64 * share) as usize];
    println!("{what}: {:.0} ns (median of {SAMPLES}; fastest {:.0}, 90 % below {:.0})", at(0.5), at(0.0), at(0.9));
}
