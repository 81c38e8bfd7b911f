//! Where a model in memory comes from: the files, and the digest that names them.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use checkpoint::weights::Weights;
use checkpoint::{Checkpoint, LoadError};
use kernels::quant::LAYOUT_VERSION;
use rates::kept;
use receipt::{Definition, Digest, Provenance};

use crate::ModelInfo;

/// What a kept digest is named by.
const PURPOSE: &str = "digest of the weights";

/// Why there is no digest of the weights.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OriginError {
    /// The files cannot be read any more, or are not what was loaded.
    #[error("{0}")]
    Files(String),
    /// There is no file.
    #[error("this model comes from no file")]
    None,
}

/// The files of a model in memory. Their digest is taken on first use: it reads every weight.
#[derive(Debug, Default)]
pub struct Origin {
    files: Option<Loaded>,
    digests: Mutex<Option<[Digest; 2]>>,
}

#[derive(Debug)]
struct Loaded {
    checkpoint: Checkpoint,
    as_stored: bool,
    /// Where the digest is kept for the next start.
    directory: Option<PathBuf>,
    /// When the reading began, in seconds and nanoseconds since 1970.
    at: (i64, i64),
}

impl Origin {
    /// Of a checkpoint that is about to be loaded.
    pub(crate) fn of(checkpoint: &Checkpoint, as_stored: bool, directory: Option<PathBuf>) -> Origin {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at = (now.as_secs() as i64, i64::from(now.subsec_nanos()));
        let loaded = Loaded { checkpoint: checkpoint.clone(), as_stored, directory, at };
        Origin { files: Some(loaded), digests: Mutex::default() }
    }

    /// Digests of the tensors and of `config.json`. The first call reads every weight, unless an earlier start has kept
    /// the result; other callers wait for it meanwhile.
    fn digests(&self) -> Result<[Digest; 2], OriginError> {
        let mut digests = self.digests.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = *digests {
            return Ok(known);
        }
        let loaded = self.files.as_ref().ok_or(OriginError::None)?;
        let found = loaded.digests().map_err(|error| OriginError::Files(error.to_string()))?;
        Ok(*digests.insert(found))
    }
}

impl Loaded {
    fn digests(&self) -> Result<[Digest; 2], LoadError> {
        let checkpoint = &self.checkpoint;
        let config = Digest::of_text(&checkpoint.read_text("config.json")?.unwrap_or_default());
        // Of a built-in model there is nothing to keep: it is small, and always there.
        let directory = self.directory.as_ref().filter(|_| checkpoint.path().is_some());
        let kept =
            directory.map(|directory| directory.join(format!("{}.digest", Weights::file_stem(checkpoint, PURPOSE))));
        let key = kept.as_ref().and_then(|_| Weights::open(checkpoint).ok()?.cache_key(checkpoint, PURPOSE));
        if let (Some(path), Some(key)) = (&kept, &key)
            && let Some(weights) = kept::read(path, key)
        {
            return Ok([weights, config]);
        }
        let weights = Digest(Weights::digest(checkpoint, Some(self.at))?);
        if let (Some(path), Some(key)) = (&kept, &key)
            && let Err(error) = kept::write(path, key, weights)
        {
            tracing::warn!(%error, path = %path.display(), "the digest of the weights could not be kept");
        }
        Ok([weights, config])
    }
}

impl ModelInfo {
    /// What receipts of this model share. `name`: what the client knows it by. Blocks while every weight is read, the
    /// first time.
    pub fn basis(&self, name: &str) -> Result<Provenance, OriginError> {
        let [weights, config] = self.origin.digests()?;
        Ok(Provenance { model: name.to_owned(), weights, config, definition: self.definition() })
    }

    /// What is computed with the weights.
    pub fn definition(&self) -> Definition {
        Definition {
            engine: concat!("twostroke-", env!("CARGO_PKG_VERSION")).to_owned(),
            arithmetic: self.arithmetic.name().to_owned(),
            weights: self.precisions.map_or_else(|| self.weights.name().to_owned(), |pair| pair.to_string()),
            as_stored: self.origin.files.as_ref().is_some_and(|loaded| loaded.as_stored),
            kv: self.kv_dtype.name().to_owned(),
            layout: LAYOUT_VERSION,
        }
    }
}
