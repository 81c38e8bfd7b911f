//! Small results that are kept beside the packed weights, for the lines at a later start.
//!
//! ```text
//! quality, int8, complete    ──> PLACE.quality   read where the key is right: same weights, classes, arithmetic, layout
//! limits, measured by run,
//! by serve at its start      ──> limits.json     read where processor, instruction set, arithmetic and threads are the same
//! ```
//! Only ever a saving of time: whatever is wrong with such a file, it is as if there were none. Each is whole or
//! absent.

use std::io;
use std::path::{Path, PathBuf};

use checkpoint::Checkpoint;
use checkpoint::weights::Weights;
use engine::kept;
use kernels::limits::Limits;
use kernels::{Arithmetic, Isa, KvDtype, WeightClass};
use launch::machine;
use serde_json::{Value, json};

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
    pub(crate) arithmetic: Arithmetic,
}

impl Precision {
    fn purpose(self) -> String {
        let Precision { weights, kv_dtype, arithmetic } = self;
        format!("quality {} {} {}", weights.name(), kv_dtype.name(), arithmetic.name())
    }

    fn path(self, directory: &Path, checkpoint: &Checkpoint) -> PathBuf {
        directory.join(format!("{}.quality", Weights::place(checkpoint, &self.purpose())))
    }

    fn key(self, checkpoint: &Checkpoint) -> Option<String> {
        Weights::open(checkpoint).ok()?.key(checkpoint, &self.purpose())
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
    pub(crate) arithmetic: Arithmetic,
}

impl On {
    pub(crate) fn of(flags: &ModelFlags) -> On {
        On {
            threads: flags.threads.unwrap_or_else(kernels::threads::default_threads),
            arithmetic: flags.arithmetic.arithmetic().unwrap_or_else(Arithmetic::best),
        }
    }

    fn key(self) -> String {
        let (cpu, isa) = (machine::cpu_name().unwrap_or_default(), Isa::best().name());
        format!("{} {cpu} {isa} {} {}", env!("CARGO_PKG_VERSION"), self.arithmetic.name(), self.threads)
    }
}

const LIMITS: &str = "limits.json";
/// Instructions of limits that were kept: nobody asks for them.
const EARLIER: &str = "measured at an earlier start";

/// Keeps the limits of this machine.
pub(crate) fn keep_limits(directory: &Path, on: On, limits: &Limits) -> io::Result<()> {
    let found = json!({
        "read_bandwidth": limits.read_bandwidth,
        "int8_ops": limits.int8_ops,
        "bf16_flops": limits.bf16_flops,
        "f32_flops": limits.f32_flops,
    });
    write(&directory.join(LIMITS), &on.key(), found)
}

/// The limits of this machine as earlier starts have measured them: of each the highest, since whatever disturbs a
/// measurement lowers it.
pub(crate) fn limits(directory: &Path, on: On) -> Option<Limits> {
    let found = read(&directory.join(LIMITS), &on.key())?;
    let rate = |name: &str| found[name].as_f64().filter(|rate| rate.is_finite() && *rate > 0.0);
    Some(Limits {
        read_bandwidth: rate("read_bandwidth")?,
        int8_ops: rate("int8_ops")?,
        bf16_flops: rate("bf16_flops")?,
        f32_flops: rate("f32_flops")?,
        int8_kind: EARLIER,
        bf16_kind: EARLIER,
        fastest_int8_ops: rate("int8_ops")?,
        fastest_int8_kind: EARLIER,
        fastest_bf16_flops: rate("bf16_flops")?,
        fastest_bf16_kind: EARLIER,
    })
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

    #[test]
    fn limits_come_back_for_the_same_question_alone() {
        let directory = std::env::temp_dir().join(format!("twostroke-kept-{}", std::process::id()));
        let one = On { threads: 1, arithmetic: Arithmetic::Pairs };
        let others = [On { threads: 2, ..one }, On { arithmetic: Arithmetic::Tiles, ..one }];
        assert!(limits(&directory, one).is_none());
        let measured = Limits {
            read_bandwidth: 4e10,
            int8_ops: 2e12,
            bf16_flops: 1e12,
            f32_flops: 5e11,
            int8_kind: "a",
            bf16_kind: "b",
            fastest_int8_ops: 2e12,
            fastest_int8_kind: "a",
            fastest_bf16_flops: 1e12,
            fastest_bf16_kind: "b",
        };
        keep_limits(&directory, one, &measured).expect("it can be written to");
        let kept = limits(&directory, one).expect("they were kept");
        assert_eq!((kept.read_bandwidth, kept.int8_ops, kept.bf16_flops), (4e10, 2e12, 1e12));
        assert!(others.into_iter().all(|other| limits(&directory, other).is_none()));
        let path = directory.join(LIMITS);
        let good = fs::read_to_string(&path).expect("it is there");
        for bad in ["", "{", "[]", &good.replace("40000000000.0", "-1"), &good.replace("40000000000.0", "null")] {
            assert_ne!(bad, good);
            fs::write(&path, bad).expect("it can be written to");
            assert!(limits(&directory, one).is_none(), "{bad}");
        }
        fs::remove_dir_all(&directory).expect("it was there");
    }
}
