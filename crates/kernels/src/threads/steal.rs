//! StealCounter time: time in which a core wanted to run and the hypervisor ran something else. The guest's threads wait in no
//! run queue then, so no thread's counter shows it; `/proc/stat` does, in hundredths of a second.

use super::sync::now;
use crate::cpu_time::read_at_start;
use std::fs::File;
use std::time::Duration;

/// The unit of `/proc/stat` in user space, independent of the kernel's tick.
const TICK: Duration = Duration::from_millis(10);
/// The file lists every core and interrupt, so reading it is slow on large machines: at most `1 / SHARE` of the time is
/// spent on it.
const SHARE: u64 = 500;
/// Bytes read from its start, which lists the cores.
const MOST_BYTES: usize = 64 << 10;

/// StealCounter time of some cores.
#[derive(Debug)]
pub(super) struct StealCounter {
    file: File,
    cpus: Vec<usize>,
    text: Vec<u8>,
    seen: u64,
    /// Time and duration of the last reading.
    read_at: u64,
    takes: u64,
}

impl StealCounter {
    /// A counter for these cores; `None` where the system does not report it.
    pub(super) fn of(cpus: &[usize]) -> Option<StealCounter> {
        let file = File::open("/proc/stat").ok()?;
        let text = vec![0; MOST_BYTES];
        let mut steal = StealCounter { file, cpus: cpus.to_vec(), text, seen: 0, read_at: 0, takes: 0 };
        steal.read()?;
        Some(steal)
    }

    /// StealCounter time since the last reading; zero if that was too recent.
    pub(super) fn since_last(&mut self) -> Duration {
        let long_enough = (TICK.as_nanos() as u64).max(self.takes * SHARE);
        if now() - self.read_at < long_enough {
            return Duration::ZERO;
        }
        TICK * u32::try_from(self.read().unwrap_or(0)).unwrap_or(u32::MAX)
    }

    /// Ticks since the last call.
    fn read(&mut self) -> Option<u64> {
        let began = now();
        let len = read_at_start(&self.file, &mut self.text)?;
        let ticks = stolen_ticks(&self.text[..len], &self.cpus)?;
        self.read_at = now();
        self.takes = self.read_at - began;
        Some(ticks.saturating_sub(std::mem::replace(&mut self.seen, ticks)))
    }
}

/// `cpu3 user nice system idle iowait irq softirq steal ..`: the eighth number of each of `cpus`.
fn stolen_ticks(stat: &[u8], cpus: &[usize]) -> Option<u64> {
    let text = str::from_utf8(stat).ok()?;
    let of = |line: &str| {
        let (cpu, numbers) = line.strip_prefix("cpu")?.split_once(' ')?;
        let ticks = || numbers.split_ascii_whitespace().nth(7)?.parse::<u64>().ok();
        cpus.contains(&cpu.parse().ok()?).then(ticks)?
    };
    let found: Vec<u64> = text.lines().filter_map(of).collect();
    (!found.is_empty()).then(|| found.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steal_of_the_cores_in_question_is_summed() {
        let stat = b"cpu  1 2 3 4 5 6 7 30 0 0\ncpu0 1 2 3 4 5 6 7 10 0 0\ncpu1 1 2 3 4 5 6 7 20 0 0\nintr 9 9\n";
        let cases: [(&[usize], Option<u64>); 4] =
            [(&[0], Some(10)), (&[1], Some(20)), (&[0, 1], Some(30)), (&[7], None)];
        for (cpus, want) in cases {
            assert_eq!(stolen_ticks(stat, cpus), want, "{cpus:?}");
        }
        assert_eq!(stolen_ticks(b"cpu0 1 2 3", &[0]), None);
        assert_eq!(stolen_ticks(b"", &[0]), None);
    }
}
