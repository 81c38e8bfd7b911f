//! Lists and removes models in the cache.
//!
//! ```text
//! models--org--name/   refs/  snapshots/  blobs/  (.no_exist/)     anything else is foreign and not removed
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use crate::{HubEnv, HubError, is_plain};

/// Contents of a model's directory in the order of removal, so that a partly removed model never looks complete.
const PARTS: [&str; 4] = ["refs", "snapshots", ".no_exist", "blobs"];
/// Maximum entries read from one directory of the cache.
const MAX_ENTRIES: usize = 100_000;

/// A model in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cached {
    /// `org/name`.
    pub id: String,
    /// Its directory.
    pub path: PathBuf,
    /// Bytes of its files.
    pub bytes: u64,
    /// Number of its files.
    pub files: usize,
    /// Time of the last write to one of them, in seconds since 1970.
    pub written: Option<u64>,
}

/// The models of the cache, sorted by name. A missing cache is empty.
pub fn cached(env: &HubEnv) -> Result<Vec<Cached>, HubError> {
    let cache = env.cache()?;
    let entries = match fs::read_dir(&cache) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(HubError::Io { path: cache, error }),
    };
    let mut models: Vec<Cached> = entries
        .take(MAX_ENTRIES)
        .filter_map(|entry| {
            let entry = entry.ok().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))?;
            let id = id_of(entry.file_name().to_str()?)?;
            Some(measure(id, entry.path()))
        })
        .collect();
    models.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(models)
}

/// The model of that name in the cache.
pub fn find_cached(id: &str, env: &HubEnv) -> Result<Cached, HubError> {
    let cache = env.cache()?;
    let folder = format!("models--{}", id.replace('/', "--"));
    let (path, is_one) = (cache.join(&folder), id_of(&folder).as_deref() == Some(id));
    match fs::symlink_metadata(&path) {
        Ok(found) if is_one && found.is_dir() => Ok(measure(id.to_string(), path)),
        _ => Err(HubError::NotCached { spec: id.to_string(), cache }),
    }
}

/// Removes a model. An error if its directory has foreign contents, or while it is being downloaded.
pub fn remove_cached(model: &Cached) -> Result<(), HubError> {
    let io = |path: &Path, error| HubError::Io { path: path.to_path_buf(), error };
    let broken = |problem: String| HubError::Broken { spec: model.id.clone(), problem };
    let locks = model.path.parent().map(|cache| cache.join(".locks")).unwrap_or_default();
    let locks = locks.join(model.path.file_name().unwrap_or_default());
    // Held until the end, so that a download that starts meanwhile waits.
    let mut held = Vec::new();
    for entry in fs::read_dir(&locks).into_iter().flatten().take(MAX_ENTRIES).flatten() {
        let path = entry.path();
        let lock = files::append(&path).map_err(|error| io(&path, error))?;
        if lock.try_lock().is_err() {
            return Err(broken(format!("it is being downloaded ({} is locked)", path.display())));
        }
        held.push(lock);
    }
    for entry in fs::read_dir(&model.path).map_err(|error| io(&model.path, error))? {
        let entry = entry.map_err(|error| io(&model.path, error))?;
        let is_part = entry.file_name().to_str().is_some_and(|name| PARTS.contains(&name));
        if !is_part || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let problem = format!("{} does not belong to the cache: remove it first", entry.path().display());
            return Err(broken(problem));
        }
    }
    for part in PARTS {
        let path = model.path.join(part);
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io(&path, error)),
            _ => {}
        }
    }
    fs::remove_dir(&model.path).map_err(|error| io(&model.path, error))
}

/// `org/name` of `models--org--name`.
fn id_of(folder: &str) -> Option<String> {
    let (org, name) = folder.strip_prefix("models--")?.split_once("--")?;
    (is_plain(org) && is_plain(name)).then(|| format!("{org}/{name}"))
}

/// Counts regular files: blobs, and snapshot files that are not links.
fn measure(id: String, path: PathBuf) -> Cached {
    let mut model = Cached { id, path: path.clone(), bytes: 0, files: 0, written: None };
    let mut folders = vec![path];
    let mut seen = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            seen += 1;
            if seen > MAX_ENTRIES {
                return model;
            }
            // Does not follow links.
            let Ok(found) = entry.metadata() else { continue };
            if found.is_dir() {
                folders.push(entry.path());
            } else if found.is_file() {
                model.bytes += found.len();
                model.files += 1;
                let since = found.modified().ok().and_then(|moment| moment.duration_since(UNIX_EPOCH).ok());
                model.written = model.written.max(since.map(|since| since.as_secs()));
            }
        }
    }
    model
}
