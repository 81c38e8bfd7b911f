//! Models of which nothing but the shape is wanted: `plan -m` and `sim -m` know the same names.
//!
//! ```text
//! lantern, a directory, config.json, a GGUF file, a hub id in the cache --> Found --+
//! qwen3-8b, 7b --------------------------------------------> plan::NamedModel ------+--> ModelShape
//! ```

use std::path::{Path, PathBuf};

use checkpoint::weights::Weights;
use checkpoint::{Checkpoint, LoadError, Source};
use hub::{HubEnv, HubError};
use kernels::WeightClass;
use launch::SHIPPED_NAME;
use model::ModelConfig;
use plan::NamedModel;
use roofline::ModelShape;

use crate::failure::Failure;
use crate::{environment, models};

/// A model on this disk; weights need not lie beside its configuration.
pub(crate) struct Found {
    pub(crate) name: String,
    pub(crate) config: ModelConfig,
    /// As it is stored; `None` where no weights lie beside the configuration.
    pub(crate) stored: Option<WeightClass>,
}

/// What `flag` names on this disk; `None` where the name is one that planning knows, or nothing at all.
pub(crate) fn found(flag: &str, name: &str) -> Result<Option<Found>, Failure> {
    let path = Path::new(name);
    let is_here = path.exists();
    if !is_here && NamedModel::find(name).is_some() {
        return Ok(None);
    }
    let config_file = if path.is_dir() { path.join("config.json") } else { path.to_path_buf() };
    if is_here && config_file.extension().is_some_and(|extension| extension == "json") {
        let (directory, file) = split(&config_file);
        let wrong = |error: LoadError| Failure::usage(format!("{flag}: {}: {error}", directory.display()));
        let checkpoint = Checkpoint::open(Source::Directory(directory.clone())).map_err(wrong)?;
        if path.is_dir() && !checkpoint.is_gguf() || !path.is_dir() {
            let text = checkpoint.read_text_capped(&file, ModelConfig::MAX_BYTES).map_err(wrong)?;
            let absent = || wrong(LoadError::NoFile { file, checkpoint: checkpoint.location() });
            let config = ModelConfig::parse(&text.ok_or_else(absent)?).map_err(wrong)?;
            let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
            let (config, stored) = with_weights(config, &checkpoint).map_err(wrong)?;
            return Ok(Some(Found { name, config, stored: stored.filter(|_| path.is_dir()) }));
        }
    }
    let checkpoint = if is_here || name == SHIPPED_NAME {
        models::open_for(flag, name)?
    } else if hub::is_name(name, &environment::variables().hub) {
        in_cache(flag, name)?
    } else {
        return Ok(None);
    };
    let config = ModelConfig::load(&checkpoint).map_err(|error| models::load_failure(&checkpoint, &error))?;
    let (config, stored) =
        with_weights(config, &checkpoint).map_err(|error| models::load_failure(&checkpoint, &error))?;
    Ok(Some(Found { name: checkpoint.name().to_string(), config, stored }))
}

/// The folder of a file, and its name in it.
fn split(file: &Path) -> (PathBuf, String) {
    let directory = file.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."));
    (directory.to_path_buf(), file.file_name().unwrap_or_default().to_string_lossy().into_owned())
}

/// The configuration and the class of the weights beside it, where there are any: they need not be there, but what is
/// there is not broken.
fn with_weights(config: ModelConfig, checkpoint: &Checkpoint) -> Result<(ModelConfig, Option<WeightClass>), LoadError> {
    match Weights::open(checkpoint) {
        Ok(weights) => Ok((config.with_head_of(&weights)?, Some(weights.class()))),
        Err(error @ LoadError::Broken { .. }) => Err(error),
        Err(_) => Ok((config, None)),
    }
}

/// The shape of what `flag` names, on this disk or known by name.
pub(crate) fn shape(flag: &str, name: &str) -> Result<ModelShape, Failure> {
    if let Some(found) = found(flag, name)? {
        return match models::writes(&found.name, &found.config) {
            Ok(()) => Ok(found.config.shape()),
            Err(problem) => Err(Failure::usage(format!("{flag}: {problem}"))),
        };
    }
    NamedModel::find(name).map(|model| model.shape).ok_or_else(|| {
        let known: Vec<&str> = ModelShape::known().map(|(name, _)| name).collect();
        Failure::usage(format!(
            "{flag}: {name} is not known; known are {}, a number of parameters such as 7b, {SHIPPED_NAME}, a directory \
             with a config.json, a GGUF file, a hub id in the cache",
            known.join(", ")
        ))
    })
}

fn in_cache(flag: &str, name: &str) -> Result<Checkpoint, Failure> {
    let missing =
        format!("{flag}: {name} is not in the local cache, and this downloads nothing; twostroke pull {name} does");
    let hub = HubEnv { offline: true, ..environment::variables().hub };
    let path = hub::resolve(name, &hub, &mut |_| true).map_err(|error| match error {
        HubError::Broken { .. } => Failure::usage(format!("{flag}: {error}")),
        _ => Failure::Usage(missing),
    })?;
    Checkpoint::open(Source::at(path)).map_err(|error| Failure::usage(format!("{flag}: {error}")))
}

/// By the headers of the weights' files.
pub(crate) fn class(checkpoint: &Checkpoint) -> Option<WeightClass> {
    Some(Weights::open(checkpoint).ok()?.class())
}
