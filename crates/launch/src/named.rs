//! From a name to a checkpoint: the built-in model, a directory, a GGUF file, or a hub id through the Hugging Face
//! cache.

use std::path::Path;

use checkpoint::{Checkpoint, LoadError, Source};
use hub::{DownloadEvent, HubEnv, HubError};

/// The built-in model's name.
pub const SHIPPED_NAME: &str = "lantern";

macro_rules! shipped {
    ($($file:literal),* $(,)?) => {
        &[$(($file, include_bytes!(concat!("../../../models/lantern/", $file)) as &[u8])),*]
    };
}

/// The built-in model's files. Trained and described in `models/lantern`.
const SHIPPED_FILES: &[(&str, &[u8])] =
    shipped!["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];

/// Why a name leads to no checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It is no file here, and the hub has it not, or not now.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// What it names is no model.
    #[error(transparent)]
    Load(#[from] LoadError),
}

/// The built-in model.
pub fn shipped() -> Result<Checkpoint, LoadError> {
    Checkpoint::open(Source::Embedded { name: SHIPPED_NAME, files: SHIPPED_FILES })
}

/// What `name` names, in any form of [`hub::canonical`]; `None` is the built-in model, and so is its name where no file is
/// called so. What is not in the cache is downloaded, unless `hub` says offline. `progress` is told of it.
pub fn open(
    name: Option<&str>,
    hub: &HubEnv,
    progress: &mut dyn FnMut(DownloadEvent<'_>) -> bool,
) -> Result<Checkpoint, OpenError> {
    let is_shipped = |name: &str| name == SHIPPED_NAME && !Path::new(name).exists();
    let Some(name) = name.filter(|name| !is_shipped(name)) else { return Ok(shipped()?) };
    let path = hub::resolve(name, hub, progress)?;
    Ok(Checkpoint::open(Source::at(path))?)
}

/// Where the files of a name are: a path as it is, a hub id in the cache, to which it is downloaded if it is not there.
pub fn path_of(
    name: &str,
    hub: &HubEnv,
    progress: &mut dyn FnMut(DownloadEvent<'_>) -> bool,
) -> Result<std::path::PathBuf, HubError> {
    hub::resolve(name, hub, progress)
}

/// Whether a text has the form of a hub id: `organisation/name`, in the characters that the hub allows.
pub fn is_hub_id(name: &str) -> bool {
    let good = |part: &str| {
        !part.is_empty()
            && !part.starts_with(['.', '-'])
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    name.split_once('/').is_some_and(|(organisation, rest)| good(organisation) && good(rest))
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
        let named = open(Some(SHIPPED_NAME), &HubEnv::default(), &mut |_| panic!("nothing is downloaded"));
        assert_eq!(named.expect("its name is enough").name(), SHIPPED_NAME);
    }
}
