//! Small results that are kept beside the packed weights, for the lines at a later start.
//!
//! ```text
//! quality, int8, complete    ──> PLACE.quality   read where the key is right: same weights, classes, arithmetic, layout
//! samples of the limits      ──> NAME.limits     one for each processor, instruction set, arithmetic, thread count;
//!                                                within an hour nothing is measured again
//! ```
//! Only ever a saving of time: whatever is wrong with such a file, it is as if there were none. Each is whole or
//! absent.

use std::io;
use std::path::{Path, PathBuf};

use checkpoint::Checkpoint;
use checkpoint::weights::Weights;
use engine::DeviceChoice;
use kernels::limits::Limits;
use kernels::{AccumulationOrder, Isa, KvDtype, WeightClass};
use launch::machine;
use rates::{MeasuredLimits, kept};
use serde::{Deserialize, Serialize};

use crate::flags::ModelFlags;

/// What the text in the binary is called.
pub(crate) const CALIBRATION: &str = "the calibration text";
/// Characters of a text's name.
const NAME_LENGTH: usize = 60;

/// What was measured of a class: how far it is from float32, and on what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
        kept::write(&self.path(directory, checkpoint), &key, Loss { text: printable(&loss.text), ..loss.clone() })
    }

    /// What was kept, if it still holds.
    pub(crate) fn kept(self, directory: &Path, checkpoint: &Checkpoint) -> Option<Loss> {
        let path = self.path(directory, checkpoint);
        // The key of a built-in model takes some milliseconds.
        let loss: Loss = path.exists().then(|| kept::read(&path, &self.key(checkpoint)?)).flatten()?;
        let is_sane = loss.mean_kl.is_finite() && loss.mean_kl >= 0.0;
        is_sane.then(|| Loss { text: printable(&loss.text), ..loss })
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
    pub(crate) device: DeviceChoice,
}

impl On {
    /// Of the CPU with its defaults.
    pub(crate) fn cpu(threads: Option<usize>, arithmetic: Option<AccumulationOrder>) -> On {
        On {
            threads: threads.unwrap_or_else(kernels::threads::default_threads),
            arithmetic: arithmetic.unwrap_or_else(AccumulationOrder::best),
            device: DeviceChoice::Cpu,
        }
    }

    pub(crate) fn of(flags: &ModelFlags) -> On {
        On { device: flags.device, ..On::cpu(flags.threads, flags.arithmetic.arithmetic()) }
    }

    fn key(self) -> String {
        let (cpu, isa) = (machine::cpu_name().unwrap_or_default(), Isa::best().name());
        format!("{} {cpu} {isa} {} {}", env!("CARGO_PKG_VERSION"), self.arithmetic.name(), self.threads)
    }

    fn path(self, directory: &Path) -> PathBuf {
        kept::place(directory, &kept::key(&self.key()), "limits")
    }
}

/// Keeps what counts of what was measured, for later starts, and says what the limits of this machine are by all of them.
pub(crate) fn keep_limits(directory: &Path, on: On, now: &Limits, unix_s: u64) -> Limits {
    let (path, key) = (on.path(directory), on.key());
    let mut measured = MeasuredLimits::read(&path, &key);
    let limits = measured.add(now, unix_s);
    // Nothing waits for it, and a start that finds none does without.
    let _ = measured.write(&path, &key);
    limits
}

/// Measured anew from now on.
pub(crate) fn forget_limits(directory: &Path, on: On) {
    // What cannot be removed is not worth an error: it was measured well.
    let _ = std::fs::remove_file(on.path(directory));
}

/// Those of [`limits`] that need not be measured again at this time.
pub(crate) fn recent_limits(directory: &Path, on: On, unix_s: u64) -> Option<Limits> {
    let measured = MeasuredLimits::read(&on.path(directory), &on.key());
    measured.limits().filter(|_| measured.is_recent(unix_s))
}

/// The limits of this machine as earlier starts have measured them.
pub(crate) fn limits(directory: &Path, on: On) -> Option<Limits> {
    MeasuredLimits::read(&on.path(directory), &on.key()).limits()
}
