//! From `-m` to a checkpoint: the built-in model, a directory, a GGUF file, or a hub id through the Hugging Face cache.

use std::path::{Path, PathBuf};

use engine::{Engine, EngineOptions, StartError, Starting};
use kernels::room::{Limit, Room, room};
use kernels::threads::ThreadError;
use kernels::{CpuError, WeightClass};
use model::hub::HubError;
use model::weights::Weights;
use model::{Checkpoint, LoadError, ModelConfig, Source};

use crate::console::{Progress, note};
use crate::failure::Failure;
use crate::flags::ModelFlags;
use crate::{environment, machine};

/// The built-in model's name.
pub(crate) const SHIPPED_NAME: &str = "lantern";

macro_rules! shipped {
    ($($file:literal),* $(,)?) => {
        &[$(($file, include_bytes!(concat!("../../../models/lantern/", $file)) as &[u8])),*]
    };
}

/// The built-in model's files. Trained and described in `models/lantern`.
const SHIPPED_FILES: &[(&str, &[u8])] =
    shipped!["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];

/// The built-in model.
pub(crate) fn shipped() -> Result<Checkpoint, Failure> {
    Checkpoint::open(Source::Embedded { name: SHIPPED_NAME, files: SHIPPED_FILES }).map_err(Failure::usage)
}

/// What `-m` names, or the built-in model.
pub(crate) fn open(name: Option<&str>) -> Result<Checkpoint, Failure> {
    name.map_or_else(shipped, |name| open_for("-m", name))
}

/// What `flag` names. A hub id that is not in the cache is downloaded, with a progress bar for people.
pub(crate) fn open_for(flag: &str, name: &str) -> Result<Checkpoint, Failure> {
    let bar = Progress::new(name);
    let path = model::hub::resolve(name, &environment::hub(), &mut |progress| {
        bar.naming(progress.file.to_string());
        bar.at(progress.bytes_done, progress.bytes_total.unwrap_or(progress.bytes_done));
    });
    drop(bar);
    let wrong = |problem: &dyn std::fmt::Display| Failure::usage(format!("{flag}: {problem}"));
    let path = path.map_err(|error| match error {
        HubError::Network { .. } | HubError::DiskFull { .. } | HubError::Io { .. } => Failure::failed(error),
        _ => wrong(&error),
    })?;
    Checkpoint::open(Source::at(path)).map_err(|error| wrong(&error))
}

/// As [`open`], where the built-in model goes by its name.
pub(crate) fn named(name: &str) -> Result<Checkpoint, Failure> {
    open(Some(name).filter(|&name| name != SHIPPED_NAME || Path::new(name).exists()))
}

/// The weights that a model is loaded with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    pub(crate) class: WeightClass,
    /// Whether what the checkpoint stores wider stays wider.
    pub(crate) as_stored: bool,
}

/// What `--weights` asks for; auto looks at the checkpoint and at the free memory, and says so where that is not bf16.
pub(crate) fn weights(flags: &ModelFlags, checkpoint: &Checkpoint) -> Result<Chosen, Failure> {
    let failure = |error: LoadError| load_failure(checkpoint, &error);
    if let Some(class) = flags.weights.class() {
        if class == WeightClass::Int4 && Weights::open(checkpoint).map_err(failure)?.class() == WeightClass::Int8 {
            note(
                "weights: int4 has fewer bits than the checkpoint, whose weights are quantized once more; auto keeps them",
            );
        }
        return Ok(Chosen { class, as_stored: false });
    }
    let stored = Weights::open(checkpoint).map_err(failure)?.class();
    let config = ModelConfig::load(checkpoint).map_err(failure)?;
    let tables = if config.tie_word_embeddings { 1 } else { 2 } * config.head_parameters();
    let bf16_bytes = 2 * (config.layer_parameters() + tables);
    let available = machine::memory().map(|(_, available)| available);
    let class = choose(stored, bf16_bytes, available);
    if class != WeightClass::Bf16 {
        let why = match stored {
            WeightClass::Bf16 => "bf16 would not fit into the free memory",
            _ => "as the checkpoint is stored",
        };
        note(&format!("weights: {}, {why}", class.name()));
    }
    Ok(Chosen { class, as_stored: stored != WeightClass::Bf16 })
}

/// The class of `--weights auto`: the one that the checkpoint is stored in; int8 for bf16 that would leave less than a
/// fifth of the free memory to everything else.
fn choose(stored: WeightClass, bf16_bytes: u64, available: Option<u64>) -> WeightClass {
    match (stored, available) {
        (WeightClass::Bf16, Some(available)) if bf16_bytes > available / 5 * 4 => WeightClass::Int8,
        _ => stored,
    }
}

/// Where packed weights are kept between starts, unless nobody wants that.
pub(crate) fn packed_cache(flags: &ModelFlags) -> Option<PathBuf> {
    if flags.no_packed_cache { None } else { environment::packed_cache() }
}

/// Whether a text has the form of a hub id: `organisation/name`, in the characters that the hub allows.
pub(crate) fn is_hub_id(name: &str) -> bool {
    let good = |part: &str| {
        !part.is_empty()
            && !part.starts_with(['.', '-'])
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    name.split_once('/').is_some_and(|(organisation, rest)| good(organisation) && good(rest))
}

/// Starts an engine, with progress bars for people while weights are read and steps are measured. Whatever the options say,
/// its chat template runs in child processes.
pub(crate) fn start(checkpoint: &Checkpoint, options: &EngineOptions) -> Result<Engine, Failure> {
    let loading = Progress::new("loading");
    let mut measuring = None;
    let options = EngineOptions { template_renderer: environment::template_renderer(), ..options.clone() };
    let started = Engine::start(checkpoint, &options, &mut |starting| match starting {
        Starting::Loading(progress) => loading.at(progress.bytes_done, progress.bytes_total),
        Starting::Calibrating { done, total } => {
            measuring.get_or_insert_with(|| Progress::counting("calibrating", "steps")).at(done as u64, total as u64);
        }
    });
    drop((loading, measuring));
    started.map_err(|error| start_failure(checkpoint, error))
}

/// An engine that does not start is a wrong option or file, unless the machine is at fault.
pub(crate) fn start_failure(checkpoint: &Checkpoint, error: StartError) -> Failure {
    match &error {
        StartError::Load(load) => load_failure(checkpoint, load),
        StartError::Thread(_) | StartError::Cpu(CpuError::Threads(ThreadError::Spawn(_))) => without_memory(&error),
        StartError::Memory { .. } => Failure::failed(error),
        _ => Failure::usage(error),
    }
}

/// The system gave no memory, or no thread for want of it: names the limit, if somebody has set one.
pub(crate) fn without_memory(error: &dyn std::fmt::Display) -> Failure {
    match room() {
        Some(Room { limit: Limit::Machine, .. }) | None => Failure::failed(error),
        Some(Room { limit, .. }) => Failure::failed(format!("{error}; what binds is the {limit} ({})", limit.source())),
    }
}

/// A model that cannot be loaded is a wrong file; one that does not fit is not.
pub(crate) fn load_failure(checkpoint: &Checkpoint, error: &LoadError) -> Failure {
    match error {
        LoadError::OutOfMemory { .. } => without_memory(error),
        LoadError::Option { option: "kv_blocks", problem } => {
            Failure::usage(format!("--kv-cache-memory-bytes: {problem}"))
        }
        LoadError::Option { option, problem } => Failure::usage(format!("--{}: {problem}", option.replace('_', "-"))),
        _ => match checkpoint.path() {
            Some(path) if !error.to_string().contains(&*path.to_string_lossy()) => {
                Failure::usage(format!("{}: {error}", path.display()))
            }
            _ => Failure::usage(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_keeps_what_is_stored_and_halves_what_does_not_fit() {
        use WeightClass::{Bf16, Int4, Int8};
        const GIB: u64 = 1 << 30;
        let table = [
            (Bf16, 2 * GIB, Some(16 * GIB), Bf16),
            (Bf16, 12 * GIB, Some(16 * GIB), Bf16),
            (Bf16, 14 * GIB, Some(16 * GIB), Int8),
            (Bf16, 140 * GIB, None, Bf16),
            (Int8, 14 * GIB, Some(16 * GIB), Int8),
            (Int4, 140 * GIB, Some(GIB), Int4),
        ];
        for (stored, bytes, available, wanted) in table {
            assert_eq!(choose(stored, bytes, available), wanted, "{stored:?} {bytes} {available:?}");
        }
    }

    #[test]
    fn hub_ids_have_one_slash_and_no_path() {
        for good in ["Qwen/Qwen2.5-0.5B-Instruct", "a/b", "meta-llama/Llama-3.2-1B"] {
            assert!(is_hub_id(good), "{good}");
        }
        for bad in ["", "model", "./model", "../model", "/a/model", "a/b/c", "a/", "a/..", "a b/c", "~/model"] {
            assert!(!is_hub_id(bad), "{bad}");
        }
    }

    #[test]
    fn the_shipped_model_opens() {
        let checkpoint = shipped().expect("its files are in the binary");
        for (file, _) in SHIPPED_FILES {
            assert!(checkpoint.has(file), "{file}");
        }
    }
}
