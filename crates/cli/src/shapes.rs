//! Models of which nothing but the shape is wanted: `plan -m` and `sim -m` know the same names.
//!
//! ```text
//! lantern, a directory, config.json, a GGUF file, a hub id in the cache --> Found --+
//! qwen3-8b, 7b --------------------------------------------> plan::NamedModel ------+--> ModelShape
//! ```

use std::path::Path;

use checkpoint::weights::Weights;
use checkpoint::{Checkpoint, Source};
use hub::HubEnv;
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
        let wrong =
            |error: &dyn std::fmt::Display| Failure::usage(format!("{flag}: {}: {error}", config_file.display()));
        let text = files::read_text(&config_file, ModelConfig::MAX_BYTES).map_err(|error| wrong(&error))?;
        let config = ModelConfig::parse(&text).map_err(|error| wrong(&error))?;
        let stored = Checkpoint::open(Source::at(path.to_path_buf())).ok().and_then(|checkpoint| class(&checkpoint));
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        return Ok(Some(Found { name, config, stored }));
    }
    let checkpoint = if is_here || name == SHIPPED_NAME {
        models::open_for(flag, name)?
    } else if models::is_hub_id(name.split(['@', ':']).next().unwrap_or(name)) {
        in_cache(flag, name)?
    } else {
        return Ok(None);
    };
    let config = ModelConfig::load(&checkpoint).map_err(|error| models::load_failure(&checkpoint, &error))?;
    Ok(Some(Found { name: checkpoint.name().to_string(), config, stored: class(&checkpoint) }))
}

/// The shape of what `flag` names, on this disk or known by name.
pub(crate) fn shape(flag: &str, name: &str) -> Result<ModelShape, Failure> {
    if let Some(found) = found(flag, name)? {
        return Ok(found.config.shape());
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

/// Planning downloads nothing.
fn in_cache(flag: &str, name: &str) -> Result<Checkpoint, Failure> {
    let missing =
        format!("{flag}: {name} is not in the local cache, and planning downloads nothing; run -m {name} does");
    let hub = HubEnv { offline: true, ..environment::variables().hub };
    let path = hub::resolve(name, &hub, &mut |_| {}).map_err(|_| Failure::Usage(missing))?;
    Checkpoint::open(Source::at(path)).map_err(|error| Failure::usage(format!("{flag}: {error}")))
}

/// By the headers of the weights' files.
pub(crate) fn class(checkpoint: &Checkpoint) -> Option<WeightClass> {
    Some(Weights::open(checkpoint).ok()?.class())
}
