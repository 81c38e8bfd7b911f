//! One region of a pool at a time: who comes second is refused, and the first one's results are those of the first.

use kernels::threads::{Pool, max_threads};
use kernels::{Cpu, CpuOptions, Device, HostBackend, MatrixShape, Out, PackedMatrix, RowSource, WeightClass};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};

/// Threads that this machine allows, or `None` with a line that says so: alone, a pool shares nothing out.
fn threads() -> Option<usize> {
    let threads = max_threads().min(4);
    if threads < 2 {
        eprintln!("skipped: one core");
    }
    (threads > 1).then_some(threads)
}

/// What the pool says to who comes second.
fn is_refusal(panic: &(dyn Any + Send)) -> bool {
    panic.downcast_ref() == Some(&"a Pool runs one region at a time")
}

/// Whether the pool refused `f`, which is not shown: there are thousands. Any other panic goes on.
fn refused(f: impl FnOnce()) -> bool {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let show = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !is_refusal(panic.payload()) {
                show(panic);
            }
        }));
    });
    let Err(panic) = catch_unwind(AssertUnwindSafe(f)) else { return false };
    if !is_refusal(&*panic) {
        std::panic::resume_unwind(panic);
    }
    true
}

#[test]
fn shares_inside_shares_are_refused_and_repeat_nothing() {
    let Some(threads) = threads() else { return };
    let pool = Pool::new(threads).unwrap();
    for count in [16, 304, 1001] {
        let seen: Vec<_> = (0..count).map(|_| AtomicUsize::new(0)).collect();
        let attempts = AtomicUsize::new(0);
        pool.shares(count, &|range| {
            range.for_each(|index| _ = seen[index].fetch_add(1, Relaxed));
            if attempts.fetch_add(1, Relaxed) < 8 {
                assert!(refused(|| pool.shares(count, &|_| unreachable!("there is a region already"))));
            }
        });
        assert!(attempts.into_inner() >= 2);
        assert!(seen.iter().all(|n| n.load(Relaxed) == 1), "{count}: {seen:?}");
    }
}

/// A product that adds to its output, while somebody else tries again and again to run a region on the same pool.
#[test]
fn a_stranger_changes_no_sum() {
    let Some(threads) = threads() else { return };
    let cpu = Cpu::new(CpuOptions { threads: Some(threads), ..CpuOptions::default() }).unwrap();
    let shape = MatrixShape { out_features: 4096, in_features: 256 };
    let number = |i: usize| (i * 7919 % 1009) as f32 / 1009.0 - 0.5;
    let row = |row: usize, to: &mut [f32]| to.iter_mut().enumerate().for_each(|(i, to)| *to = number(row * 3 + i));
    let matrix: PackedMatrix = cpu.pack(shape, WeightClass::Int8, &RowSource(&row)).unwrap();
    let x: Vec<f32> = (0..shape.in_features).map(number).collect();
    let before: Vec<f32> = (0..shape.out_features).map(|i| number(i * 5)).collect();
    let mut want = before.clone();
    cpu.linear(&x, &matrix, None, Out::Add(&mut want));

    let (over, products) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Relaxed) {
                refused(|| cpu.pool().shares(1000, &|_| ()));
            }
        });
        // On a busy machine the stranger may hold the pool for as long as it likes: on, until some came through.
        for round in 0.. {
            if round >= 2000 && products.load(Relaxed) > 0 {
                break;
            }
            let mut out = before.clone();
            let untouched = refused(|| cpu.linear(&x, &matrix, None, Out::Add(&mut out)));
            let wrong =
                out.iter().zip(if untouched { &before } else { &want }).filter(|(got, want)| got != want).count();
            if wrong > 0 {
                over.store(true, Relaxed); // else the scope would wait for ever
            }
            assert_eq!(wrong, 0, "of {} numbers in round {round}", out.len());
            products.fetch_add(usize::from(!untouched), Relaxed);
        }
        over.store(true, Relaxed);
    });
}

/// Regions begin while the workers are still being started, and some are over before those come.
#[test]
fn who_comes_late_changes_nothing() {
    let Some(threads) = threads() else { return };
    for _ in 0..100 {
        let pool = Pool::new(threads).unwrap();
        for count in [2, 17, 64] {
            let seen: Vec<_> = (0..count).map(|_| AtomicUsize::new(0)).collect();
            pool.tasks(count, &|task| _ = seen[task].fetch_add(1, Relaxed));
            pool.shares(count, &|range| range.for_each(|index| _ = seen[index].fetch_add(1, Relaxed)));
            assert!(seen.iter().all(|n| n.load(Relaxed) == 2), "{count}: {seen:?}");
        }
        let came = AtomicUsize::new(0);
        pool.run(&|_| _ = came.fetch_add(1, Relaxed));
        assert_eq!(came.into_inner(), threads, "a region for all waits for all");
    }
}

#[test]
fn what_threads_lost_is_known_where_the_kernel_counts_it() {
    let Some(threads) = threads() else { return };
    let pool = Pool::new(threads).unwrap();
    assert_eq!(pool.lost(), None, "nobody has said who calls");
    pool.pin_caller();
    // Every worker has begun, and has said where it is counted.
    pool.run(&|_| ());
    assert_eq!(pool.lost().is_some(), kernels::disturbed::QueueWait::of_this_thread().is_some());
    let lost = pool.lost().unwrap_or_default();
    assert!(lost.most <= lost.all && lost.caller <= lost.most, "{lost:?}");
}
