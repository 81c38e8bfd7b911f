//! What is in the cache: listed, and removed on request.
//!
//! ```text
//! models--org--name/   refs/  snapshots/  blobs/  (.no_exist/)     anything else in it is foreign: it stays
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use crate::{HubEnv, HubError, is_plain};

/// What the folder of a model has in it, in the order in which it goes: what is half removed is never taken for whole.
const PARTS: [&str; 4] = ["refs", "snapshots", ".no_exist", "blobs"];
/// Entries of one folder of the cache that are looked at.
const MOST_ENTRIES: usize = 100_000;

/// A model in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cached {
    /// `org/name`.
    pub id: String,
    /// Its folder.
    pub path: PathBuf,
    /// Bytes of its files.
    pub bytes: u64,
    /// Those files.
    pub files: usize,
    /// When the last of them was written, in seconds since 1970.
    pub written: Option<u64>,
}

/// The models of the cache, by name. A cache that is not there is empty.
pub fn cached(env: &HubEnv) -> Result<Vec<Cached>, HubError> {
    let cache = env.cache()?;
    let entries = match fs::read_dir(&cache) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(HubError::Io { path: cache, error }),
    };
    let mut models: Vec<Cached> = entries
        .take(MOST_ENTRIES)
        .filter_map(|entry| {
            let entry = entry.ok().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))?;
            let id = id_of(entry.file_name().to_str()?)?;
            Some(measured(id, entry.path()))
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
        Ok(found) if is_one && found.is_dir() => Ok(measured(id.to_string(), path)),
        _ => Err(HubError::NotCached { spec: id.to_string(), cache }),
    }
}

/// Removes it. Refused where its folder has anything that is not of a cache, and while a download of it is under way.
pub fn remove_cached(model: &Cached) -> Result<(), HubError> {
    let io = |path: &Path, error| HubError::Io { path: path.to_path_buf(), error };
    let broken = |problem: String| HubError::Broken { spec: model.id.clone(), problem };
    let locks = model.path.parent().map(|cache| cache.join(".locks")).unwrap_or_default();
    let locks = locks.join(model.path.file_name().unwrap_or_default());
    // Held until the end: a download that begins now waits, and then finds nothing.
    let mut held = Vec::new();
    for entry in fs::read_dir(&locks).into_iter().flatten().take(MOST_ENTRIES).flatten() {
        let path = entry.path();
        let lock = files::append(&path).map_err(|error| io(&path, error))?;
        if lock.try_lock().is_err() {
            return Err(broken(format!("a download of it is under way ({})", path.display())));
        }
        held.push(lock);
    }
    for entry in fs::read_dir(&model.path).map_err(|error| io(&model.path, error))? {
        let entry = entry.map_err(|error| io(&model.path, error))?;
        let is_part = entry.file_name().to_str().is_some_and(|name| PARTS.contains(&name));
        if !is_part || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let problem = format!("{} is no part of a cache: remove it yourself first", entry.path().display());
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

/// Links of snapshots lead to blobs, which are counted; what is no link counts itself.
fn measured(id: String, path: PathBuf) -> Cached {
    let mut model = Cached { id, path: path.clone(), bytes: 0, files: 0, written: None };
    let mut folders = vec![path];
    let mut seen = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            seen += 1;
            if seen > MOST_ENTRIES {
                return model;
            }
            // Of a link itself.
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
