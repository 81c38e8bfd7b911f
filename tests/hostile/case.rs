//! What a case is: something bad, a bound of time and memory, and a verdict.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Most that a case may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    /// Processor time, all threads together: what a case costs, whatever else the machine does meanwhile.
    pub(crate) cpu: Duration,
    /// Time on the clock, after which it counts as hanging. It is no promise: machines have other work.
    pub(crate) wall: Duration,
    /// Resident memory at its peak.
    pub(crate) mib: u64,
}

/// Of a file: less than a second, less than 300 MiB.
pub(crate) const FILE: Bound = Bound { cpu: Duration::from_secs(1), wall: Duration::from_secs(60), mib: 300 };

impl Bound {
    /// The same with other processor time.
    pub(crate) const fn seconds(self, seconds: u64) -> Bound {
        Bound { cpu: Duration::from_secs(seconds), wall: Duration::from_secs(60 + 10 * seconds), ..self }
    }

    /// The same with other memory.
    pub(crate) const fn mib(self, mib: u64) -> Bound {
        Bound { mib, ..self }
    }
}

/// What a case took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    pub(crate) cpu: Duration,
    pub(crate) wall: Duration,
    pub(crate) mib: u64,
}

impl Spent {
    pub(crate) fn within(&self, bound: &Bound) -> Result<(), String> {
        if self.cpu > bound.cpu {
            return Err(format!(
                "{:.1} s of processor time, {:.0} at most",
                self.cpu.as_secs_f64(),
                bound.cpu.as_secs_f64()
            ));
        }
        let most = bound.mib + beyond_caches();
        if self.mib > most {
            return Err(format!("{} MiB, {most} at most", self.mib));
        }
        Ok(())
    }
}

/// How a case went.
#[derive(Debug)]
pub(crate) enum Outcome {
    Passed(Spent),
    Failed(String, Spent),
    Skipped(String),
}

impl Outcome {
    pub(crate) fn of(result: Result<(), String>, spent: Spent) -> Outcome {
        match result {
            Ok(()) => Outcome::Passed(spent),
            Err(why) => Outcome::Failed(why, spent),
        }
    }
}

/// A row of a table: a name, and what makes the bad thing.
pub(crate) type Named<T> = (&'static str, fn() -> T);

type Check = Box<dyn Fn(&Scratch) -> Outcome + Send + Sync>;

/// One bad thing.
pub(crate) struct Case {
    /// Rows of the table are families.
    pub(crate) family: &'static str,
    pub(crate) name: String,
    /// Drawn from a seed, rather than built by hand.
    pub(crate) seed: Option<u64>,
    pub(crate) check: Check,
}

impl Case {
    pub(crate) fn new(
        family: &'static str,
        name: impl Into<String>,
        check: impl Fn(&Scratch) -> Outcome + Send + Sync + 'static,
    ) -> Case {
        Case { family, name: name.into(), seed: None, check: Box::new(check) }
    }

    pub(crate) fn drawn(self, seed: u64) -> Case {
        Case { seed: Some(seed), ..self }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.family, self.name)
    }
}

/// A directory of a case's own.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(path: PathBuf) -> Scratch {
        let _ = fs::remove_dir_all(&path); // of an earlier run
        fs::create_dir_all(&path).expect("the build directory can be written");
        Scratch(path)
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.0
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Puts a file there and gives its path.
    pub(crate) fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("it is in the directory")).expect("it can be written");
        fs::write(&path, bytes).expect("it can be written");
        path
    }
}

/// MiB that measuring the memory's bandwidth takes beside what the bounds have room for: it reads four times the largest
/// cache, 256 MiB at least and 1 GiB at most, of which the bounds count the least.
fn beyond_caches() -> u64 {
    let size = fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index3/size").unwrap_or_default();
    let kib: u64 = size.trim().trim_end_matches('K').parse().unwrap_or(0);
    (4 * kib / 1024).clamp(256, 1024) - 256
}
