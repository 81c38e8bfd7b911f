//! CPU time of a thread over an interval: elapsed time, time that it ran, and time that it waited for a core behind
//! other processes. For measurements on shared machines.
//!
//! ```text
//! wall    |----------------------------------------|     elapsed time
//! cpu     |--------------|              |----------|     the thread ran
//! lost                   |--------------|                another process had the core
//! ```
//! [`Mark`] and [`Interval`] concern the calling thread and cost two system calls, about 0.3 us each. [`QueueWait`] can
//! be read by another thread, so that the compute thread pays nothing.

use std::fs::File;
use std::time::{Duration, Instant};

/// An interval is disturbed if it lost more than this share of its time. Interrupts take about 0.1 %.
const MOST_LOST: f64 = 0.02;

/// Start of an interval: the clocks of the calling thread.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    at: Instant,
    cpu: Duration,
    switches: u64,
}

impl Mark {
    /// Reads the clocks.
    pub fn now() -> Mark {
        let (cpu, switches) = (thread_cpu(), involuntary_switches());
        Mark { at: Instant::now(), cpu, switches }
    }

    /// The interval from the mark until now. Must be called on the thread that made the mark.
    pub fn interval(&self) -> Interval {
        let wall = self.at.elapsed();
        Interval {
            wall,
            // Where the system reports no CPU time, count nothing as lost.
            cpu: thread_cpu().checked_sub(self.cpu).filter(|_| KNOWN).unwrap_or(wall),
            switches: involuntary_switches() - self.switches,
        }
    }
}

/// CPU time of a thread since a mark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// Elapsed time.
    pub wall: Duration,
    /// Time that the thread ran. May include time that a hypervisor took from the core.
    pub cpu: Duration,
    /// Involuntary context switches.
    pub switches: u64,
}

impl Interval {
    /// Time that the thread did not run; for work that neither sleeps nor waits, time lost to other processes.
    pub fn lost(&self) -> Duration {
        self.wall.saturating_sub(self.cpu)
    }

    /// Whether so much was lost that `wall` does not measure the work. For work that neither sleeps nor waits.
    pub fn is_disturbed(&self) -> bool {
        self.lost() > self.wall.mul_f64(MOST_LOST)
    }
}

/// Total time that a thread has been runnable but waiting for a core, from the kernel's scheduler statistics.
#[derive(Debug)]
pub struct QueueWait(File);

impl QueueWait {
    /// For the calling thread; `None` where the system does not report it. Any thread may read it while the process lives.
    pub fn of_this_thread() -> Option<QueueWait> {
        let thread = std::fs::read_link("/proc/thread-self").ok()?;
        let wait = QueueWait(File::open(std::path::Path::new("/proc").join(thread).join("schedstat")).ok()?);
        wait.read().is_some().then_some(wait)
    }

    /// Total so far, and how often the thread was given a core; a wait in progress does not count. One system call, about
    /// 0.3 us. `None` once the thread has ended.
    pub fn read(&self) -> Option<(Duration, u64)> {
        let mut text = [0; 96];
        let len = read_at_start(&self.0, &mut text)?;
        parse_schedstat(std::str::from_utf8(&text[..len]).ok()?)
    }
}

/// Parses `ran waited timeslices`, in nanoseconds, but for the first. Zero timeslices: the kernel does not count. (A thread
/// that has just begun has one timeslice, and has not run yet.)
fn parse_schedstat(text: &str) -> Option<(Duration, u64)> {
    let mut numbers = text.split_ascii_whitespace().map(|number| number.parse::<u64>().ok());
    let (_ran, waited, slices) = (numbers.next()??, numbers.next()??, numbers.next()??);
    (slices > 0).then_some((Duration::from_nanos(waited), slices))
}

/// The clock of the time that a thread ran.
#[derive(Clone, Copy, Debug)]
pub struct ThreadClock(ClockId);

#[cfg(target_os = "linux")]
type ClockId = libc::clockid_t;
#[cfg(not(target_os = "linux"))]
type ClockId = ();

impl ThreadClock {
    /// Of the calling thread; any thread may read it. `None` where the system has none.
    #[cfg(target_os = "linux")]
    pub fn of_this_thread() -> Option<ThreadClock> {
        let mut clock = 0;
        // SAFETY: the calling thread lives, and one number is written.
        (unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &mut clock) } == 0).then_some(ThreadClock(clock))
    }

    /// Of the calling thread: no such clock is known.
    #[cfg(not(target_os = "linux"))]
    pub fn of_this_thread() -> Option<ThreadClock> {
        None
    }

    /// Time that the thread has run. One system call, about 0.3 us. `None` once the thread has ended.
    pub fn read(&self) -> Option<Duration> {
        clock_time(self.0)
    }
}

/// Reads as much of a kernel file as fits.
#[cfg(unix)]
pub(crate) fn read_at_start(file: &File, into: &mut [u8]) -> Option<usize> {
    std::os::unix::fs::FileExt::read_at(file, into, 0).ok()
}

#[cfg(not(unix))]
pub(crate) fn read_at_start(_: &File, _: &mut [u8]) -> Option<usize> {
    None
}

#[cfg(target_os = "linux")]
const KNOWN: bool = true;
#[cfg(not(target_os = "linux"))]
const KNOWN: bool = false;

#[cfg(target_os = "linux")]
pub(crate) fn thread_cpu() -> Duration {
    clock_time(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or_default()
}

#[cfg(target_os = "linux")]
fn clock_time(clock: ClockId) -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec.
    let is_read = unsafe { libc::clock_gettime(clock, &mut time) } == 0;
    is_read.then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

#[cfg(not(target_os = "linux"))]
fn clock_time(_: ClockId) -> Option<Duration> {
    None
}

#[cfg(target_os = "linux")]
fn involuntary_switches() -> u64 {
    // SAFETY: numbers of zero are a rusage.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one rusage.
    match unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) } {
        0 => usage.ru_nivcsw as u64,
        _ => 0,
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn thread_cpu() -> Duration {
    Duration::ZERO
}

#[cfg(not(target_os = "linux"))]
fn involuntary_switches() -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_that_lost_its_core_is_disturbed() {
        let us = Duration::from_micros;
        let table = [(1000, 1000, false), (1000, 985, false), (1000, 950, true), (1000, 1001, false), (0, 0, false)];
        for (wall, cpu, wanted) in table {
            let interval = Interval { wall: us(wall), cpu: us(cpu), switches: 0 };
            assert_eq!(interval.is_disturbed(), wanted, "{interval:?}");
        }
    }

    #[test]
    fn a_thread_that_sleeps_does_not_run() {
        let mark = Mark::now();
        std::thread::sleep(Duration::from_millis(20));
        let interval = mark.interval();
        assert!(interval.wall >= Duration::from_millis(20), "{interval:?}");
        assert!(!KNOWN || interval.cpu < interval.wall, "{interval:?}");
    }

    #[test]
    fn what_the_kernel_counts_is_understood() {
        assert_eq!(parse_schedstat("70000 3832043 2\n"), Some((Duration::from_nanos(3_832_043), 2)));
        assert_eq!(parse_schedstat("0 23720 1\n"), Some((Duration::from_nanos(23_720), 1)));
        assert!(["", "1", "1 2", "0 0 0", "x 1 2", "1 -2 3"].iter().all(|text| parse_schedstat(text).is_none()));
    }

    #[test]
    fn another_thread_reads_how_long_one_stood_in_line() {
        let (send, receive) = std::sync::mpsc::channel();
        let (finish, finished) = std::sync::mpsc::channel::<()>();
        let worker = std::thread::spawn(move || {
            send.send(QueueWait::of_this_thread()).unwrap();
            finished.recv().unwrap();
        });
        if let Some(wait) = receive.recv().unwrap() {
            let first = wait.read().expect("the thread lives");
            assert!(wait.read().expect("the thread lives") >= first);
        }
        finish.send(()).unwrap();
        worker.join().unwrap();
    }
}
