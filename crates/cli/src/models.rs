//! From `-m` to a checkpoint: the built-in model, a directory, a GGUF file, or a hub id through the Hugging Face cache.

use std::path::PathBuf;

use engine::{Engine, EngineOptions, StartError};
use model::hub::HubError;
use model::{Checkpoint, LoadError, Source};

use crate::console::Progress;
use crate::environment;
use crate::failure::Failure;
use crate::flags::ModelFlags;

/// The built-in model's name.
const SHIPPED_NAME: &str = "lantern";

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

/// What `-m` names. A hub id that is not in the cache is downloaded, with a progress bar for people.
pub(crate) fn open(name: Option<&str>) -> Result<Checkpoint, Failure> {
    let Some(name) = name else { return shipped() };
    let bar = Progress::new(name);
    let path = model::hub::resolve(name, &environment::hub(), &mut |progress| {
        bar.naming(progress.file.to_string());
        bar.at(progress.bytes_done, progress.bytes_total.unwrap_or(progress.bytes_done));
    });
    drop(bar);
    let wrong = |problem: &dyn std::fmt::Display| Failure::usage(format!("-m: {problem}"));
    let path = path.map_err(|error| match error {
        HubError::Network { .. } | HubError::DiskFull { .. } | HubError::Io { .. } => Failure::failed(error),
        _ => wrong(&error),
    })?;
    Checkpoint::open(Source::at(path)).map_err(|error| wrong(&error))
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

/// Starts an engine, with a progress bar for people while the weights are read.
pub(crate) fn start(checkpoint: &Checkpoint, options: &EngineOptions) -> Result<Engine, Failure> {
    let bar = Progress::new("loading");
    let started = Engine::start(checkpoint, options, &mut |p| bar.at(p.bytes_done, p.bytes_total));
    drop(bar);
    started.map_err(|error| match &error {
        StartError::Load(load) => load_failure(checkpoint, load),
        StartError::Thread(_) => Failure::failed(error),
        _ => Failure::usage(error),
    })
}

/// A model that cannot be loaded is a wrong file; one that does not fit is not.
pub(crate) fn load_failure(checkpoint: &Checkpoint, error: &LoadError) -> Failure {
    match error {
        LoadError::OutOfMemory { .. } => Failure::failed(error),
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
