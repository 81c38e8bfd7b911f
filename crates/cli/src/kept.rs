//! Small results that are kept beside the packed weights, for the lines at a later start.
//!
//! ```text
//! quality, int8, complete    ──> PLACE.quality   read where the key is right: same weights, classes, arithmetic, layout
//! limits that were measured
//! well, the last of them     ──> NAME.limits     one for each processor, instruction set, arithmetic, thread count;
//!                                                within an hour nothing is measured again
//! ```
//! Only ever a saving of time: whatever is wrong with such a file, it is as if there were none. Each is whole or
//! absent.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use checkpoint::Checkpoint;
use checkpoint::weights::Weights;
use kernels::limits::{Certainty, Limits};
use kernels::{AccumulationOrder, Isa, KvDtype, WeightClass};
use launch::machine;
use rates::kept;
use serde_json::{Map, Value, json};

use crate::flags::ModelFlags;

/// What the text in the binary is called.
pub(crate) const CALIBRATION: &str = "the calibration text";
/// Characters of a text's name.
const NAME_LENGTH: usize = 60;

/// What was measured of a class: how far it is from float32, and on what.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Loss {
    /// Mean divergence from float32, in nats.
    pub(crate) mean_kl: f64,
    /// Tokens that were judged.
    pub(crate) tokens: u64,
    /// Tokens of a window, and how many of them were read and not judged.
    pub(crate) window: u64,
    pub(crate) skip: u64,
    /// Name of the text.
    pub(crate) text: String,
}

/// What a loss depends on beside the checkpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Precision {
    pub(crate) weights: WeightClass,
    pub(crate) kv_dtype: KvDtype,
    pub(crate) arithmetic: AccumulationOrder,
}

impl Precision {
    fn purpose(self) -> String {
        let Precision { weights, kv_dtype, arithmetic } = self;
        format!("quality {} {} {}", weights.name(), kv_dtype.name(), arithmetic.name())
    }

    fn path(self, directory: &Path, checkpoint: &Checkpoint) -> PathBuf {
        directory.join(format!("{}.quality", Weights::file_stem(checkpoint, &self.purpose())))
    }

    fn key(self, checkpoint: &Checkpoint) -> Option<String> {
        Weights::open(checkpoint).ok()?.cache_key(checkpoint, &self.purpose())
    }

    /// Keeps what was measured of a checkpoint.
    pub(crate) fn keep(self, directory: &Path, checkpoint: &Checkpoint, loss: &Loss) -> io::Result<()> {
        let Some(key) = self.key(checkpoint) else { return Ok(()) };
        let Loss { mean_kl, tokens, window, skip, text } = loss;
        let found =
            json!({ "mean_kl": mean_kl, "tokens": tokens, "window": window, "skip": skip, "text": printable(text) });
        write(&self.path(directory, checkpoint), &key, found)
    }

    /// What was kept, if it still holds.
    pub(crate) fn kept(self, directory: &Path, checkpoint: &Checkpoint) -> Option<Loss> {
        let path = self.path(directory, checkpoint);
        // The key of a built-in model takes some milliseconds.
        let found = path.exists().then(|| read(&path, &self.key(checkpoint)?)).flatten()?;
        let count = |name: &str| found[name].as_u64();
        Some(Loss {
            mean_kl: found["mean_kl"].as_f64().filter(|kl| kl.is_finite() && *kl >= 0.0)?,
            tokens: count("tokens")?,
            window: count("window")?,
            skip: count("skip")?,
            text: printable(found["text"].as_str()?),
        })
    }
}

/// A name that a terminal can be given.
fn printable(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(NAME_LENGTH).collect()
}

/// What the limits of a machine depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct On {
    pub(crate) threads: usize,
    pub(crate) arithmetic: AccumulationOrder,
}

impl On {
    pub(crate) fn of(flags: &ModelFlags) -> On {
        On {
            threads: flags.threads.unwrap_or_else(kernels::threads::default_threads),
            arithmetic: flags.arithmetic.arithmetic().unwrap_or_else(AccumulationOrder::best),
        }
    }

    fn key(self) -> String {
        let (cpu, isa) = (machine::cpu_name().unwrap_or_default(), Isa::best().name());
        format!("{} {cpu} {isa} {} {}", env!("CARGO_PKG_VERSION"), self.arithmetic.name(), self.threads)
    }

    fn path(self, directory: &Path) -> PathBuf {
        kept::place(directory, &kept::key(&self.key()), "limits")
    }
}

/// Rates of limits, in the order of their certainties.
const RATES: [&str; 5] = ["read_bandwidth", "cache_bandwidth", "int8_ops", "bf16_flops", "f32_flops"];
/// Good measurements of each that are kept: after this number, a machine that became slower is known to be.
const MOST_KEPT: usize = 8;
/// Rates that a machine may have, of bytes and operations per second.
const SANE_RATES: std::ops::Range<f64> = 1e3..1e20;
/// So long is what was measured well taken without measuring again: a virtual machine's limits change while it runs.
const RECENT: Duration = Duration::from_secs(3600);

/// What earlier starts have measured of this machine, each well.
#[derive(Clone, Debug, Default, PartialEq)]
struct Measured {
    /// By [`RATES`], the newest last.
    rates: [Vec<f64>; 5],
    /// The latest of what has no certainty.
    last: Last,
    /// When all rates were measured well at once, in seconds of Unix time.
    complete_unix_s: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Last {
    cache_bytes: usize,
    /// int8, bf16.
    fastest: [f64; 2],
    /// The instructions of int8, bf16, and of the fastest of both.
    kinds: [&'static str; 4],
}

impl Measured {
    /// Takes in what was measured now, and says what the limits are: of each rate the highest that was measured well,
    /// since whatever disturbs a measurement lowers it; what was measured now where there is none.
    fn take(&mut self, now: &Limits, unix_s: u64) -> Limits {
        let mut limits = *now;
        self.last = Last {
            cache_bytes: now.cache_bytes,
            fastest: [now.fastest_int8_ops, now.fastest_bf16_flops],
            kinds: [now.int8_kind, now.bf16_kind, now.fastest_int8_kind, now.fastest_bf16_kind],
        };
        if now.certainty.iter().all(|certainty| certainty.doubt().is_none()) {
            self.complete_unix_s = unix_s;
        }
        let mut certainty = now.certainty;
        for ((rate, kept), certainty) in rates(&mut limits).into_iter().zip(&mut self.rates).zip(&mut certainty) {
            let is_sure = certainty.doubt().is_none();
            if is_sure {
                kept.push(*rate);
                kept.drain(..kept.len().saturating_sub(MOST_KEPT));
            }
            if let Some(highest) = kept.iter().copied().reduce(f64::max) {
                *rate = highest;
                *certainty = if is_sure { *certainty } else { Certainty::kept() };
            }
        }
        limits.certainty = certainty;
        limits.cache_bandwidth = limits.cache_bandwidth.max(limits.read_bandwidth);
        limits.fastest_int8_ops = limits.fastest_int8_ops.max(limits.int8_ops);
        limits.fastest_bf16_flops = limits.fastest_bf16_flops.max(limits.bf16_flops);
        limits
    }

    /// The limits, if each was measured well once.
    fn limits(&self) -> Option<Limits> {
        let highest = |index: usize| self.rates[index].iter().copied().reduce(f64::max);
        let (int8_ops, bf16_flops) = (highest(2)?, highest(3)?);
        let Last { cache_bytes, fastest, kinds } = self.last;
        Some(Limits {
            read_bandwidth: highest(0)?,
            cache_bandwidth: highest(1)?,
            cache_bytes,
            int8_ops,
            bf16_flops,
            f32_flops: highest(4)?,
            int8_kind: kinds[0],
            bf16_kind: kinds[1],
            fastest_int8_ops: fastest[0].max(int8_ops),
            fastest_int8_kind: kinds[2],
            fastest_bf16_flops: fastest[1].max(bf16_flops),
            fastest_bf16_kind: kinds[3],
            certainty: [Certainty::kept(); 5],
        })
    }

    /// Whether they stand for what would be measured now. A time to come is that of a clock that was set.
    fn is_recent(&self, unix_s: u64) -> bool {
        unix_s.checked_sub(self.complete_unix_s).is_some_and(|age| age < RECENT.as_secs())
    }

    fn read(directory: &Path, on: On) -> Measured {
        Measured::from_json(&read(&on.path(directory), &on.key()).unwrap_or_default()).unwrap_or_default()
    }

    fn json(&self) -> Value {
        let mut found: Map<String, Value> =
            RATES.iter().zip(&self.rates).map(|(name, rates)| (name.to_string(), json!(rates))).collect();
        let Last { cache_bytes, fastest, kinds } = &self.last;
        found.insert("cache_bytes".to_string(), json!(cache_bytes));
        found.insert("fastest".to_string(), json!(fastest));
        found.insert("kinds".to_string(), json!(kinds));
        found.insert("complete_unix_s".to_string(), json!(self.complete_unix_s));
        found.into()
    }

    fn from_json(found: &Value) -> Option<Measured> {
        let number = |value: &Value| value.as_f64().filter(|rate| SANE_RATES.contains(rate));
        let mut last = Last { cache_bytes: found["cache_bytes"].as_u64()?.try_into().ok()?, ..Last::default() };
        for (index, fastest) in last.fastest.iter_mut().enumerate() {
            *fastest = number(&found["fastest"][index])?;
        }
        for (index, kind) in last.kinds.iter_mut().enumerate() {
            *kind = kernels::limits::kind(found["kinds"][index].as_str()?)?;
        }
        let complete_unix_s = found["complete_unix_s"].as_u64()?;
        let mut measured = Measured { last, complete_unix_s, ..Measured::default() };
        for (rates, name) in measured.rates.iter_mut().zip(RATES) {
            let listed = found[name].as_array().filter(|listed| listed.len() <= MOST_KEPT)?;
            *rates = listed.iter().map(number).collect::<Option<_>>()?;
        }
        Some(measured)
    }
}

/// In the order of [`RATES`].
fn rates(limits: &mut Limits) -> [&mut f64; 5] {
    let Limits { read_bandwidth, cache_bandwidth, int8_ops, bf16_flops, f32_flops, .. } = limits;
    [read_bandwidth, cache_bandwidth, int8_ops, bf16_flops, f32_flops]
}

/// Keeps what was measured well, for later starts, and says what the limits of this machine are by all of them.
pub(crate) fn keep_limits(directory: &Path, on: On, now: &Limits, unix_s: u64) -> Limits {
    let before = Measured::read(directory, on);
    let mut measured = before.clone();
    let limits = measured.take(now, unix_s);
    if measured != before {
        // Nothing waits for it, and a start that finds none does without.
        let _ = write(&on.path(directory), &on.key(), measured.json());
    }
    limits
}

/// Measured anew from now on.
pub(crate) fn forget_limits(directory: &Path, on: On) {
    // What cannot be removed is not worth an error: it was measured well.
    let _ = std::fs::remove_file(on.path(directory));
}

/// Those of [`limits`] that need not be measured again at this time.
pub(crate) fn recent_limits(directory: &Path, on: On, unix_s: u64) -> Option<Limits> {
    let measured = Measured::read(directory, on);
    measured.limits().filter(|_| measured.is_recent(unix_s))
}

/// The limits of this machine as earlier starts have measured them.
pub(crate) fn limits(directory: &Path, on: On) -> Option<Limits> {
    Measured::read(directory, on).limits()
}

fn write(path: &Path, key: &str, found: Value) -> io::Result<()> {
    kept::write(path, &json!({ "key": key, "found": found }))
}

/// What is kept at `path` for `key`; `None` for anything else.
fn read(path: &Path, key: &str) -> Option<Value> {
    let mut value = kept::read(path)?;
    (value["key"] == key).then(|| value["found"].take())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Limits that are all `rate`, measured well or not.
    fn of(rate: f64, is_sure: bool) -> Limits {
        let certainty = if is_sure { Certainty::kept() } else { Certainty::of_repetitions(&[]) };
        Limits {
            read_bandwidth: rate,
            cache_bandwidth: rate,
            cache_bytes: 1 << 20,
            int8_ops: rate,
            bf16_flops: rate,
            f32_flops: rate,
            int8_kind: "scalar int8",
            bf16_kind: "scalar f32",
            fastest_int8_ops: rate,
            fastest_int8_kind: "scalar int8",
            fastest_bf16_flops: rate,
            fastest_bf16_kind: "scalar f32",
            certainty: [certainty; 5],
        }
    }

    #[test]
    fn the_highest_that_was_measured_well_counts() {
        let mut measured = Measured::default();
        // (measured, well), and the limit and whether it is sure.
        let table = [
            ((3e9, false), (3e9, false)),   // nothing else is known
            ((20e9, true), (20e9, true)),   // takes the place of what was bad
            ((2e9, false), (20e9, true)),   // a busy start changes nothing
            ((500e9, false), (20e9, true)), // not even upwards
            ((22e9, true), (22e9, true)),
            ((21e9, true), (22e9, true)),
        ];
        for ((rate, is_sure), (limit, sure)) in table {
            let limits = measured.take(&of(rate, is_sure), 0);
            assert_eq!((limits.bf16_flops, limits.doubt().is_none()), (limit, sure), "{rate} {is_sure}");
        }
        assert_eq!(measured.limits().map(|limits| limits.read_bandwidth), Some(22e9));
        // A machine that became slower is found to be, after some starts.
        let limits: Vec<f64> = (0..MOST_KEPT).map(|_| measured.take(&of(10e9, true), 0).bf16_flops).collect();
        assert_eq!((limits[0], limits[MOST_KEPT - 1]), (22e9, 10e9));
        // One rate may be sure where another is not.
        let mut half = of(30e9, true);
        half.certainty[0] = Certainty::of_repetitions(&[]);
        let limits = measured.take(&half, 0);
        assert_eq!((limits.read_bandwidth, limits.bf16_flops), (10e9, 30e9));
    }

    #[test]
    fn what_was_measured_well_within_an_hour_is_not_measured_again() {
        let directory = testing::Scratch::new("recent");
        let on = On { threads: 1, arithmetic: AccumulationOrder::Vdpbf16 };
        let recent = |unix_s| recent_limits(&directory, on, unix_s);
        assert!(recent(0).is_none());
        keep_limits(&directory, on, &of(3e9, false), 10_000);
        assert!(recent(10_000).is_none(), "it was not measured well");
        let measured = of(4e10, true);
        keep_limits(&directory, on, &measured, 10_000);
        // When it is asked for, and whether it is recent: a clock may have been set back.
        for (unix_s, is_recent) in [(9_999, false), (10_000, true), (13_599, true), (13_600, false)] {
            assert_eq!(recent(unix_s).is_some(), is_recent, "{unix_s}");
        }
        let kept = recent(10_000).expect("it is recent");
        assert_eq!(format!("{kept:?}"), format!("{measured:?}"));
        // A start that measures badly meanwhile makes it neither younger nor less sure.
        keep_limits(&directory, on, &of(3e9, false), 13_000);
        assert!(recent(13_599).is_some_and(|limits| limits.doubt().is_none()) && recent(13_600).is_none());
        forget_limits(&directory, on);
        assert!(recent(10_000).is_none());
    }

    #[test]
    fn limits_come_back_for_the_same_question_alone() {
        let directory = testing::Scratch::new("kept");
        let one = On { threads: 1, arithmetic: AccumulationOrder::Vdpbf16 };
        let others = [On { threads: 2, ..one }, On { arithmetic: AccumulationOrder::Amx, ..one }];
        assert!(limits(&directory, one).is_none());
        assert!(keep_limits(&directory, one, &of(3e9, false), 0).doubt().is_some());
        assert!(limits(&directory, one).is_none(), "what is not sure is not kept");
        keep_limits(&directory, one, &of(4e10, true), 0);
        let kept = limits(&directory, one).expect("they were kept");
        assert_eq!((kept.read_bandwidth, kept.int8_ops, kept.cache_bytes), (4e10, 4e10, 1 << 20));
        assert!(others.into_iter().all(|other| limits(&directory, other).is_none()));
        keep_limits(&directory, others[0], &of(8e10, true), 0);
        assert_eq!(limits(&directory, one).map(|limits| limits.int8_ops), Some(4e10), "each has a file");
        let path = one.path(&directory);
        for bad in [json!([-1.0]), json!([1e300]), json!([null]), json!(4e10), json!(vec![1e9; 9])] {
            let mut value = kept::read(&path).expect("it is whole");
            value["found"]["int8_ops"] = bad;
            kept::write(&path, &value).expect("it can be written to");
            assert!(limits(&directory, one).is_none(), "{value}");
            keep_limits(&directory, one, &of(4e10, true), 0);
        }
        fs::write(&path, "{").expect("it can be written to");
        assert!(limits(&directory, one).is_none());
    }
}
