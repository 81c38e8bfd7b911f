//! What a fork-join region costs that does nothing: one barrier out and one back.
//!
//! Beside it, for two threads and more, the floor that the machine sets: a number sent to the other core and one sent
//! back. A layer of a transformer is five to seven regions, so a 0.5B model in batch 1 pays it some 150 times for each
//! token.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};

use kernels::threads::Pool;

use crate::rows::{Against, Rows};
use crate::setup::{BenchError, BenchSetup};
use crate::timing::Timing;

/// Of one call: many beside the one region in which numbers go there and back.
const REGIONS: u32 = 100;

pub(super) fn measure(setup: &BenchSetup<'_>, rows: &mut Rows<'_>) -> Result<(), BenchError> {
    let cpu = setup.cpu()?;
    let pool = cpu.pool();
    pool.pin_caller();
    let is_alone = pool.threads() == 1;
    let (there, back) = (Line(AtomicU32::new(0)), Line(AtomicU32::new(0)));
    let samples = Timing::of(setup.repetitions).in_turns(|way| match way {
        0 => (0..REGIONS).for_each(|_| pool.run(&|_| ())),
        _ if is_alone => {}
        _ => there_and_back(pool, &there, &back),
    });
    let [region, echo] = samples.map(|s: Vec<f64>| s.iter().map(|s| s / f64::from(REGIONS)).collect::<Vec<_>>());
    if is_alone {
        return Ok(rows.timed("a region".into(), &region, Against::Nothing)?);
    }
    rows.timed("a region".into(), &region, Against::Other("there and back", &echo))?;
    Ok(rows.timed("there and back".into(), &echo, Against::Nothing)?)
}

/// A number each way, [`REGIONS`] times.
fn there_and_back(pool: &Pool, there: &Line, back: &Line) {
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
}

/// A separate cache line, and the one that is fetched with it.
#[repr(align(128))]
struct Line(AtomicU32);

fn wait_for(value: &AtomicU32, wanted: u32) {
    while value.load(Acquire) != wanted {
        std::hint::spin_loop();
    }
}
