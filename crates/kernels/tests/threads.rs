//! One region of a pool at a time: a second caller is refused, and the first one's results are unaffected.

use kernels::float_state::{in_an_odd_host, is_odd};
use kernels::threads::{Pool, max_threads};
use kernels::{
    Cpu, CpuOptions, DefaultFloats, Device, HostBackend, MatrixShape, Out, PackedMatrix, RowSource, WeightClass,
};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};

/// Threads that this machine allows, or `None` with a message: a pool of one thread shares no work.
fn threads() -> Option<usize> {
    let threads = max_threads().min(4);
    if threads < 2 {
        eprintln!("skipped: one core");
    }
    (threads > 1).then_some(threads)
}

/// Whether a panic is the refusal of a second caller.
fn is_refusal(panic: &(dyn Any + Send)) -> bool {
    panic.downcast_ref() == Some(&"a Pool runs one region at a time")
}

/// Whether the pool refused `f`, without printing the panic: there are thousands. Any other panic is resumed.
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

/// A product that adds to its output, while another thread repeatedly tries to run a region on the same pool.
#[test]
fn a_second_caller_changes_no_sum() {
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
        // On a busy machine the other thread may hold the pool for long: continue until some products ran.
        for round in 0.. {
            if round >= 2000 && products.load(Relaxed) > 0 {
                break;
            }
            let mut out = before.clone();
            let untouched = refused(|| cpu.linear(&x, &matrix, None, Out::Add(&mut out)));
            let wrong =
                out.iter().zip(if untouched { &before } else { &want }).filter(|(got, want)| got != want).count();
            if wrong > 0 {
                over.store(true, Relaxed); // otherwise the scope would wait forever
            }
            assert_eq!(wrong, 0, "of {} numbers in round {round}", out.len());
            products.fetch_add(usize::from(!untouched), Relaxed);
        }
        over.store(true, Relaxed);
    });
}

/// Regions begin while the workers are still starting, and some end before the workers arrive.
#[test]
fn late_workers_change_nothing() {
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
    assert_eq!(pool.lost(), None, "the calling thread is not registered yet");
    pool.pin_caller();
    // Every worker has started, and has registered its counter.
    pool.run(&|_| ());
    assert_eq!(pool.lost().is_some(), kernels::cpu_time::QueueWait::of_this_thread().is_some());
    let lost = pool.lost().unwrap_or_default();
    assert!(lost.delay[0] <= lost.delay[1] && lost.caller <= lost.most, "{lost:?}");
}

#[test]
fn a_host_that_rounds_up_and_flushes_denormals_keeps_that_to_itself() {
    in_an_odd_host(|| {
        assert!(is_odd());
        let pool = Pool::new(max_threads().min(2)).unwrap();
        pool.run(&|thread| assert_eq!(is_odd(), thread == 0, "thread {thread}"));
        {
            let _floats = DefaultFloats::enter();
            pool.run(&|thread| assert!(!is_odd(), "thread {thread}"));
        }
        assert!(is_odd(), "what the host had is restored");
    });
    assert!(!is_odd());
}
