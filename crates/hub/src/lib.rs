//! Resolves model names through the Hugging Face cache, and downloads missing files through the hub's API.
//!
//! ```text
//! spec               a directory or .gguf file that exists, or org/name[@revision][:QUANT]
//! $HF_HUB_CACHE/models--org--name/
//!   refs/main                      the commit of a branch or tag
//!   snapshots/<commit>/config.json ──symlink──► ../../blobs/<etag>
//!   blobs/<etag>                   a file's bytes; <etag>.incomplete while they arrive
//! ```
//!
//! Layout and locks are those of Python's `huggingface_hub`, so each uses the other's downloads. Downloaded are only
//! the configuration, the tokenizer and the weight files of the index; or the GGUF file of one quantization, if one is
//! named or the repository has no other weights.
//!
//! A branch is resolved on the hub once per start, as in Python. With `offline`, a commit as the revision, or an
//! unreachable hub, a complete model in the cache is used without a request. An interrupted download resumes. Large
//! files are named by the SHA-256 of their content, which is verified.
//!
//! The token is sent only to the endpoint: redirects are followed here and carry it only to the same scheme, host and
//! port. Names from the network are checked to be plain before they become paths.

mod cached;
mod choice;
mod names;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use sha2::{Digest, Sha256};
use ureq::http::{Response, Uri};
use ureq::{Agent, Body, Proxy};

pub use crate::cached::{Cached, cached, find_cached, remove_cached};
use crate::choice::{NoChoice, choose};
pub use crate::names::{ShortName, canonical, is_name, nearest, short_names, without_site};

/// The environment variables of `huggingface_hub`, as read by the command line. Empty values count as absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HubEnv {
    /// `HF_HOME`; default `~/.cache/huggingface`. Holds the cache (`hub`) and the token of `hf auth login` (`token`).
    pub hf_home: Option<PathBuf>,
    /// `HF_HUB_CACHE`; default `hub` in `HF_HOME`.
    pub hub_cache: Option<PathBuf>,
    /// `HF_TOKEN`; default the content of `token` in `HF_HOME`.
    pub token: Option<String>,
    /// `HF_HUB_OFFLINE`: make no request.
    pub offline: bool,
    /// `HF_ENDPOINT`; default `https://huggingface.co`.
    pub endpoint: Option<String>,
}

impl HubEnv {
    /// The directory of the cache.
    fn cache(&self) -> Result<PathBuf, HubError> {
        let full = |path: &Option<PathBuf>| path.clone().filter(|path| !path.as_os_str().is_empty());
        full(&self.hub_cache).or_else(|| Some(full(&self.hf_home)?.join("hub"))).ok_or_else(|| {
            let error = io::Error::new(io::ErrorKind::NotFound, "no home directory for the cache: set HF_HUB_CACHE");
            HubError::Io { path: PathBuf::from("~"), error }
        })
    }
}

/// What a download has to say. Who hears it says whether it goes on; [`HubError::Stopped`] otherwise, and what came is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DownloadEvent<'a> {
    /// Before the first byte.
    Begins(&'a Incoming),
    /// How far a file is.
    File(DownloadProgress<'a>),
}

/// What is to be downloaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// `org/name`.
    pub id: String,
    /// Files that are not in the cache.
    pub files: Vec<String>,
    /// Their bytes, if the hub says them.
    pub bytes: Option<u64>,
    /// The same of all files of the model, with those that are here.
    pub whole: Option<u64>,
    /// The model's licence, if the hub knows one.
    pub licence: Option<String>,
    /// Bytes that are free where they go to.
    pub free: Option<u64>,
}

/// Progress of the download of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DownloadProgress<'a> {
    /// File name.
    pub file: &'a str,
    /// By what the hub knows its content: the SHA-256 of a large file.
    pub etag: &'a str,
    /// Index of the file, below `num_files`.
    pub index: usize,
    /// Files of this model, including those already in the cache.
    pub num_files: usize,
    /// Bytes on disk.
    pub bytes_done: u64,
    /// Size of the file; `None` if the hub does not report it.
    pub bytes_total: Option<u64>,
}

/// Errors of resolving a model name.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// Neither an existing file or directory nor a hub id by its syntax.
    #[error("{spec}: no such file or directory, and not a model id (org/name, org/name@revision or org/name:QUANT)")]
    NotFound {
        /// The model name as given.
        spec: String,
    },
    /// One word that is no short name, and of which the cache has none or several.
    #[error("{spec:?} is no model: it may be a path, org/name of the hub, or a short name ({})", match &.near[..] {
        [] => "twostroke pull lists them".to_owned(),
        near => format!("near it: {}", near.join(", ")),
    })]
    UnknownName {
        /// The model name as given.
        spec: String,
        /// Names that are known.
        near: Vec<String>,
    },
    /// The named path, or a file of the model in the cache, exists but is damaged.
    #[error("{spec}: broken: {problem}")]
    Broken {
        /// The model name as given.
        spec: String,
        /// The file, the problem and the remedy.
        problem: String,
    },
    /// The path is a file, but not of a model.
    #[error(
        "{spec}: is a file, not a model; expected a .gguf file, a directory in the layout of Hugging Face transformers, or a model id"
    )]
    NotAModelFile {
        /// The model name as given.
        spec: String,
    },
    /// The model is not in the cache.
    #[error("{spec}: no such model in the cache at {}; `twostroke list` lists the models", .cache.display())]
    NotCached {
        /// The model name as given.
        spec: String,
        /// The directory of the cache.
        cache: PathBuf,
    },
    /// Offline and not in the cache.
    #[error("{id}: {file} is not in the cache at {}, and HF_HUB_OFFLINE forbids downloading it", .cache.display())]
    Offline {
        /// Model id.
        id: String,
        /// The first file that is missing.
        file: String,
        /// The directory of the cache.
        cache: PathBuf,
    },
    /// The model does not exist on the hub, or is private.
    #[error("{id}: no such model on {endpoint}, or it is private: set HF_TOKEN to a token that may read it")]
    NoModel {
        /// Model id.
        id: String,
        /// URL of the hub.
        endpoint: String,
    },
    /// The model exists, its revision does not.
    #[error("{id}: no revision {revision:?} on {endpoint}")]
    NoRevision {
        /// Model id.
        id: String,
        /// The requested branch, tag or commit.
        revision: String,
        /// URL of the hub.
        endpoint: String,
    },
    /// The token is invalid or lacks permission.
    #[error(
        "{id}: access refused ({status}); accept the model's terms on {endpoint}/{id}, and set HF_TOKEN to a valid token"
    )]
    Refused {
        /// Model id.
        id: String,
        /// URL of the hub.
        endpoint: String,
        /// 401 or 403.
        status: u16,
    },
    /// The repository has no supported model.
    #[error("{id}: {problem}")]
    NotAModel {
        /// Model id.
        id: String,
        /// The missing or unsupported files.
        problem: &'static str,
    },
    /// The quantization matches no GGUF file, or none was named and there are several.
    #[error("{id}: {}; it has {}", match .requested { Some(quant) => format!("no GGUF file of {quant}"), None => format!("several GGUF files, name one as {id}:QUANT") }, .available.join(", "))]
    NoQuant {
        /// Model id.
        id: String,
        /// The requested quantization.
        requested: Option<String>,
        /// The quantizations in the repository.
        available: Vec<String>,
    },
    /// The hub's response is invalid.
    #[error("{endpoint}: bad response for {id}: {problem}")]
    BadAnswer {
        /// Model id.
        id: String,
        /// URL of the hub.
        endpoint: String,
        /// The problem.
        problem: String,
    },
    /// The hub is unreachable or the connection failed; the bytes received are kept and the next attempt resumes.
    #[error("{endpoint}: {problem} (while downloading {what} of {id}; run again to resume)")]
    Network {
        /// Model id.
        id: String,
        /// URL of the hub.
        endpoint: String,
        /// File, or the list of files.
        what: String,
        /// The connection's error.
        problem: String,
    },
    /// A file's size or content does not match the hub's. It is deleted.
    #[error("{id}: {file} was damaged in the download ({problem}) and deleted; run again")]
    Damaged {
        /// Model id.
        id: String,
        /// File name.
        file: String,
        /// The check that failed.
        problem: &'static str,
    },
    /// What is to come does not fit on the disk. Nothing was downloaded.
    #[error("{id}: {bytes} bytes to download, and {free} are free at {}", .cache.display())]
    NoRoom {
        /// Model id.
        id: String,
        /// The directory of the cache.
        cache: PathBuf,
        /// Bytes that are missing.
        bytes: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// Who was told of the download did not want it to go on.
    #[error("{id}: the download was stopped; run again to resume")]
    Stopped {
        /// Model id.
        id: String,
    },
    /// The disk is full.
    #[error("{}: no space left for {file} ({bytes} bytes)", .cache.display())]
    DiskFull {
        /// The directory of the cache.
        cache: PathBuf,
        /// File name.
        file: String,
        /// Its size.
        bytes: u64,
    },
    /// The cache could not be read or written.
    #[error("{}: {error}", .path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The operating system's error.
        error: io::Error,
    },
}

/// Optional files, downloaded if the repository has them.
const SETTINGS: [&str; 8] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "modules.json",
    "sentence_bert_config.json",
];
/// Directories and files of modules of sentence-transformers, behind a number: `1_Pooling/config.json`.
const MODULES: [&str; 3] = ["_Pooling/config.json", "_Dense/config.json", "_Dense/model.safetensors"];
const CONFIG: &str = "config.json";
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Whether a file is of a module of sentence-transformers.
fn is_module(name: &str) -> bool {
    name.split_once('_').is_some_and(|(number, rest)| {
        (1..3).contains(&number.len())
            && number.bytes().all(|byte| byte.is_ascii_digit())
            && MODULES.iter().any(|module| module[1..] == *rest)
    })
}

/// Maximum bytes of the list of files, and of the index.
const MAX_JSON_BYTES: u64 = 64 << 20;
/// Maximum redirects of one request.
const MAX_REDIRECTS: usize = 5;
/// Maximum bytes of a file with a token or a commit.
const MAX_LINE_BYTES: u64 = 4096;
/// Maximum consecutive download attempts that receive no byte.
const MAX_IDLE_ATTEMPTS: u32 = 4;

/// Resolves a name to a model directory or GGUF file, after downloading missing files. `:Q4_K_M` after the id selects
/// the GGUF file whose name ends with it; the default in a repository without safetensors is Q4_K_M, or the only GGUF
/// file.
///
/// `name` may have any form of [`canonical`]; an existing directory or file wins over a model id of the same name.
/// `progress` is called before the first byte, at the beginning and end of each file and about once per MiB, and says
/// whether the download goes on.
pub fn resolve(
    name: &str,
    env: &HubEnv,
    progress: &mut dyn FnMut(DownloadEvent<'_>) -> bool,
) -> Result<PathBuf, HubError> {
    let spec = &*canonical(name, env)?;
    let path = Path::new(spec);
    let is_gguf = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
    if let Some(problem) = files::broken_link(path) {
        return Err(HubError::Broken { spec: spec.to_string(), problem });
    }
    if path.is_dir() || (is_gguf && path.exists()) {
        return Ok(path.to_path_buf());
    }
    if path.exists() {
        return Err(HubError::NotAModelFile { spec: spec.to_string() });
    }
    let Some(hub_id) = HubId::parse(spec) else { return Err(HubError::NotFound { spec: spec.to_string() }) };
    Hub::new(hub_id, env)?.resolve(progress)
}

/// A parsed hub id.
struct HubId<'a> {
    id: &'a str,
    revision: &'a str,
    quant: Option<&'a str>,
}

impl<'a> HubId<'a> {
    /// `org/name[@revision][:QUANT]`, each part checked to be a plain name.
    fn parse(spec: &'a str) -> Option<HubId<'a>> {
        let (spec, quant) = spec.split_once(':').map_or((spec, None), |(spec, quant)| (spec, Some(quant)));
        let (id, revision) = spec.split_once('@').unwrap_or((spec, "main"));
        let (org, name) = id.split_once('/')?;
        let revision_is_plain = !revision.is_empty() && revision.len() <= 200 && revision.split('/').all(is_plain);
        let plain =
            id.len() <= 96 && is_plain(org) && is_plain(name) && revision_is_plain && quant.is_none_or(is_plain);
        plain.then_some(HubId { id, revision, quant })
    }
}

/// A name that is safe as one component of a path and of a URL.
fn is_plain(name: &str) -> bool {
    let character = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && name.len() <= 200 && !name.starts_with(['.', '-']) && name.chars().all(character)
}

fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// One model on one hub.
struct Hub<'a> {
    id: &'a str,
    revision: &'a str,
    quant: Option<&'a str>,
    offline: bool,
    endpoint: String,
    token: Option<String>,
    /// `.../models--org--name`.
    directory: PathBuf,
    /// `.../.locks/models--org--name`.
    locks: PathBuf,
    agent: Agent,
}

/// The used fields of the API's response.
#[derive(Deserialize)]
struct Listing {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
    /// `license:apache-2.0` and others.
    #[serde(default)]
    tags: Vec<String>,
}

impl Listing {
    fn has_gguf(&self) -> bool {
        self.siblings.iter().any(|sibling| sibling.rfilename.to_ascii_lowercase().ends_with(".gguf"))
    }
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    #[serde(default)]
    size: Option<u64>,
}

#[derive(Deserialize)]
struct ShardIndex {
    weight_map: std::collections::BTreeMap<String, String>,
}

/// A file's headers on the hub.
struct Metadata {
    etag: String,
    size: Option<u64>,
}

impl<'a> Hub<'a> {
    fn new(HubId { id, revision, quant }: HubId<'a>, env: &HubEnv) -> Result<Hub<'a>, HubError> {
        let home = env.hf_home.clone().filter(|path| !path.as_os_str().is_empty());
        let cache = env.cache()?;
        let given = env.token.as_deref().map(str::trim).filter(|token| !token.is_empty()).map(str::to_string);
        let saved =
            || files::read_text(&home?.join("token"), MAX_LINE_BYTES).ok().map(|token| token.trim().to_string());
        let token = given.or_else(saved).filter(|token| !token.is_empty());
        let endpoint = env.endpoint.as_deref().filter(|endpoint| !endpoint.is_empty());
        let endpoint = endpoint.unwrap_or("https://huggingface.co").trim_end_matches('/').to_string();
        let folder = format!("models--{}", id.replace('/', "--"));
        let locks = cache.join(".locks").join(&folder);
        let agent = agent(&endpoint);
        let (offline, directory) = (env.offline, cache.join(folder));
        Ok(Hub { id, revision, quant, offline, endpoint, token, directory, locks, agent })
    }

    fn resolve(&self, progress: &mut dyn FnMut(DownloadEvent<'_>) -> bool) -> Result<PathBuf, HubError> {
        let nothing = || self.quant.map_or(CONFIG.to_string(), |quant| format!("a GGUF file of {quant}"));
        let cached = self.cached_commit().ok_or_else(nothing).and_then(|commit| self.cached(&self.snapshot(&commit)));
        match cached {
            Ok(model) if self.offline || is_commit(self.revision) => Ok(model),
            Err(file) if self.offline && self.is_broken_link(&file) => {
                let problem = format!(
                    "{file} is a link to a blob that is missing in the cache at {}, and HF_HUB_OFFLINE forbids \
                     downloading it",
                    self.directory.display()
                );
                Err(HubError::Broken { spec: self.id.to_string(), problem })
            }
            Err(file) if self.offline => {
                Err(HubError::Offline { id: self.id.to_string(), file, cache: self.directory.clone() })
            }
            Ok(model) => match self.download(progress) {
                // The hub is unreachable, but the model is complete in the cache.
                Err(HubError::Network { .. }) => Ok(model),
                result => result,
            },
            Err(_) => self.download(progress),
        }
    }

    /// Whether a file of the cached snapshot is a broken link.
    fn is_broken_link(&self, file: &str) -> bool {
        self.cached_commit().is_some_and(|commit| files::broken_link(&self.snapshot(&commit).join(file)).is_some())
    }

    /// The model in a snapshot, or the first missing file.
    fn cached(&self, snapshot: &Path) -> Result<PathBuf, String> {
        let missing = missing_file(snapshot).filter(|_| self.quant.is_none());
        match (missing, self.quant) {
            (None, None) => Ok(snapshot.to_path_buf()),
            (missing, quant) => match choose(&gguf_files(snapshot), quant) {
                Ok(files) => Ok(snapshot.join(&files[0])),
                Err(NoChoice::Part(file)) => Err(file),
                Err(NoChoice::Quants(_)) => {
                    Err(missing.unwrap_or_else(|| format!("a GGUF file of {}", quant.unwrap_or("any kind"))))
                }
            },
        }
    }

    /// The revision's commit at the last download.
    fn cached_commit(&self) -> Option<String> {
        if is_commit(self.revision) {
            return Some(self.revision.to_string());
        }
        let path = self.directory.join("refs").join(self.revision);
        let commit = files::read_text(&path, MAX_LINE_BYTES).ok()?;
        Some(commit.trim().to_string()).filter(|commit| is_commit(commit))
    }

    fn snapshot(&self, commit: &str) -> PathBuf {
        self.directory.join("snapshots").join(commit)
    }

    fn download(&self, progress: &mut dyn FnMut(DownloadEvent<'_>) -> bool) -> Result<PathBuf, HubError> {
        let listing = self.listing()?;
        let snapshot = self.snapshot(&listing.sha);
        let has = |name: &str| listing.siblings.iter().any(|sibling| sibling.rfilename == name);
        if self.quant.is_some() || !has(SINGLE) && !has(INDEX) && listing.has_gguf() {
            let files = self.choose(listing.siblings.iter().map(|sibling| sibling.rfilename.clone()).collect())?;
            self.download_all(&listing, &files, progress)?;
            return Ok(snapshot.join(&files[0]));
        }
        if !has(CONFIG) {
            return Err(self.not_a_model("no config.json in the repository: not a model for transformers"));
        }
        let mut files: Vec<String> = SETTINGS.iter().filter(|name| has(name)).map(|name| name.to_string()).collect();
        let names = listing.siblings.iter().map(|sibling| sibling.rfilename.as_str());
        files.extend(names.filter(|name| is_module(name)).map(str::to_string));
        if has(SINGLE) {
            files.push(SINGLE.to_string());
        } else if has(INDEX) {
            self.download_file(&listing.sha, INDEX, 0, files.len() + 1, progress)?;
            let shards = shards(&snapshot.join(INDEX)).map_err(|problem| self.bad_answer(problem))?;
            files.push(INDEX.to_string());
            files.extend(shards);
        } else {
            let names: Vec<String> = listing.siblings.iter().map(|sibling| sibling.rfilename.clone()).collect();
            match checkpoint::part_files(&names) {
                Ok(parts) if !parts.is_empty() && parts.iter().all(|part| is_plain(part)) => files.extend(parts),
                Ok(_) => {
                    return Err(
                        self.not_a_model("no model.safetensors in the repository; other formats are unsupported")
                    );
                }
                Err(problem) => return Err(self.bad_answer(problem)),
            }
        }
        self.download_all(&listing, &files, progress)?;
        Ok(snapshot)
    }

    /// The selected GGUF files among all files of the repository.
    fn choose(&self, files: Vec<String>) -> Result<Vec<String>, HubError> {
        let chosen = choose(&files, self.quant).map_err(|none| match none {
            NoChoice::Quants(available) if available.is_empty() => self.not_a_model("no GGUF model in the repository"),
            NoChoice::Quants(available) => {
                HubError::NoQuant { id: self.id.to_string(), requested: self.quant.map(str::to_string), available }
            }
            NoChoice::Part(_) => self.not_a_model("a part of that GGUF model is not in the repository"),
        })?;
        match chosen.iter().find(|file| !file.split('/').all(is_plain)) {
            Some(file) => Err(self.bad_answer(format!("{:.60?} is not a plain name of a file", file))),
            None => Ok(chosen),
        }
    }

    /// Downloads files into the snapshot, then points the revision to it, so that a revision never points to an
    /// incomplete snapshot.
    fn download_all(
        &self,
        listing: &Listing,
        files: &[String],
        progress: &mut dyn FnMut(DownloadEvent<'_>) -> bool,
    ) -> Result<(), HubError> {
        let commit = &listing.sha;
        let incoming = self.incoming(listing, files);
        if let (Some(bytes), Some(free)) = (incoming.bytes, incoming.free)
            && bytes > free
        {
            let (id, cache) = (incoming.id, self.directory.clone());
            return Err(HubError::NoRoom { id, cache, bytes, free });
        }
        if !incoming.files.is_empty() && !progress(DownloadEvent::Begins(&incoming)) {
            return Err(self.stopped());
        }
        for (index, file) in files.iter().enumerate() {
            self.download_file(commit, file, index, files.len(), progress)?;
        }
        if is_commit(self.revision) {
            return Ok(());
        }
        let reference = self.directory.join("refs").join(self.revision);
        write_atomically(&reference, commit.as_bytes()).map_err(|error| self.io(&reference, error))
    }

    /// What of these files is not in the cache.
    fn incoming(&self, listing: &Listing, files: &[String]) -> Incoming {
        let snapshot = self.snapshot(&listing.sha);
        let size = |file: &String| listing.siblings.iter().find(|sibling| sibling.rfilename == *file)?.size;
        let whole = files.iter().map(size).sum();
        let files: Vec<String> = files.iter().filter(|file| !snapshot.join(file).exists()).cloned().collect();
        let licence = listing.tags.iter().find_map(|tag| tag.strip_prefix("license:"));
        let licence = licence.map(|licence| licence.chars().filter(|c| !c.is_control()).take(60).collect());
        // What earlier attempts have left is not to come again.
        let parts = fs::read_dir(self.directory.join("blobs")).into_iter().flatten().flatten();
        let parts = parts.filter(|entry| entry.path().extension().is_some_and(|extension| extension == "incomplete"));
        let here: u64 = parts.filter_map(|entry| Some(entry.metadata().ok()?.len())).sum();
        let free = self.directory.ancestors().find_map(|place| nix::sys::statvfs::statvfs(place).ok());
        Incoming {
            id: self.id.to_owned(),
            bytes: files.iter().map(size).sum::<Option<u64>>().map(|bytes| bytes.saturating_sub(here)),
            whole,
            licence,
            free: free.map(|found| found.blocks_available() * found.fragment_size()),
            files,
        }
    }

    /// The commit and the files of the revision.
    fn listing(&self) -> Result<Listing, HubError> {
        let revision = self.revision.replace('/', "%2F");
        let url = format!("{}/api/models/{}/revision/{revision}?blobs=true", self.endpoint, self.id);
        let mut response = self.request("GET", &url, 0, "the list of files")?;
        let body = response.body_mut().with_config().limit(MAX_JSON_BYTES).read_to_vec();
        let body = body.map_err(|error| self.network("the list of files", error))?;
        let listing: Listing =
            serde_json::from_slice(&body).map_err(|error| self.bad_answer(format!("the list of files: {error}")))?;
        match is_commit(&listing.sha) {
            true => Ok(listing),
            false => Err(self.bad_answer("the commit is not 40 hexadecimal digits".to_string())),
        }
    }

    /// Downloads one file into the snapshot.
    fn download_file(
        &self,
        commit: &str,
        file: &str,
        index: usize,
        num_files: usize,
        progress: &mut dyn FnMut(DownloadEvent<'_>) -> bool,
    ) -> Result<(), HubError> {
        let pointer = self.snapshot(commit).join(file);
        if pointer.exists() {
            return Ok(());
        }
        let url = format!("{}/{}/resolve/{commit}/{file}", self.endpoint, self.id);
        let metadata = self.metadata(&url, commit, file)?;
        let blobs = self.directory.join("blobs");
        let blob = blobs.join(&metadata.etag);
        for directory in [&*blobs, pointer.parent().expect("a file in a snapshot"), &*self.locks] {
            fs::create_dir_all(directory).map_err(|error| self.io(directory, error))?;
        }
        // Python takes the same lock: of two concurrent downloads, the second waits and finds the file complete.
        let lock_path = self.locks.join(format!("{}.lock", metadata.etag));
        let lock = files::append(&lock_path).map_err(|error| self.io(&lock_path, error))?;
        lock.lock().map_err(|error| self.io(&lock_path, error))?;
        if !blob.exists() {
            let partial = blobs.join(format!("{}.incomplete", metadata.etag));
            let mut report = |bytes_done| {
                let bytes_total = metadata.size;
                let etag = &metadata.etag;
                progress(DownloadEvent::File(DownloadProgress {
                    file,
                    etag,
                    index,
                    num_files,
                    bytes_done,
                    bytes_total,
                }))
            };
            self.download_blob(&url, file, &metadata, &partial, &mut report)?;
            fs::rename(&partial, &blob).map_err(|error| self.io(&blob, error))?;
        }
        let above = file.matches('/').count();
        link(&metadata.etag, above, &pointer).map_err(|error| self.io(&pointer, error))
    }

    /// Requests a file's content hash and size. The first response with a hash is the hub's; it redirects to the
    /// storage server.
    fn metadata(&self, url: &str, commit: &str, file: &str) -> Result<Metadata, HubError> {
        let mut url = url.to_string();
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send("HEAD", &url, 0, file)?;
            let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
            let redirects = response.status().is_redirection();
            let etag = header("x-linked-etag").or_else(|| header("etag").filter(|_| !redirects));
            if let Some(etag) = etag {
                if header("x-repo-commit").is_some_and(|answered| answered != commit) {
                    return Err(self.bad_answer(format!("{file} is of another commit")));
                }
                let etag = etag.trim().trim_start_matches("W/").trim_matches('"');
                if !is_plain(etag) {
                    return Err(self.bad_answer(format!("the ETag of {file} is not a plain name")));
                }
                let size = header("x-linked-size").or_else(|| header("content-length").filter(|_| !redirects));
                let size = size.and_then(|size| size.trim().parse().ok());
                return Ok(Metadata { etag: etag.to_string(), size });
            }
            match header("location").filter(|_| redirects) {
                Some(location) => url = self.redirect(&url, location)?,
                None => return Err(self.bad_answer(format!("no ETag for {file}"))),
            }
        }
        Err(self.bad_answer(format!("too many redirects for {file}")))
    }

    /// Fills `partial` with the file's bytes, resuming an earlier attempt, and verifies them.
    fn download_blob(
        &self,
        url: &str,
        file: &str,
        metadata: &Metadata,
        partial: &Path,
        report: &mut dyn FnMut(u64) -> bool,
    ) -> Result<(), HubError> {
        let mut output = files::append(partial).map_err(|error| self.io(partial, error))?;
        let mut done = output.metadata().map_err(|error| self.io(partial, error))?.len();
        let mut idle_attempts = 0;
        loop {
            if metadata.size.is_some_and(|size| done > size) {
                done = self.restart(&output, partial)?;
            }
            if !report(done) {
                return Err(self.stopped());
            }
            if metadata.size == Some(done) {
                break;
            }
            let before = done;
            match self.attempt(url, file, metadata, &mut output, partial, &mut done, report) {
                Ok(()) => break,
                Err(HubError::Network { .. }) if idle_attempts + 1 < MAX_IDLE_ATTEMPTS => {
                    idle_attempts = if done > before { 0 } else { idle_attempts + 1 };
                    std::thread::sleep(Duration::from_secs(u64::from(idle_attempts)));
                }
                Err(error) => return Err(error),
            }
        }
        output.sync_all().map_err(|error| self.io(partial, error))?;
        self.verify(file, metadata, partial, done)
    }

    /// One request for the bytes from `done` on. `Ok` only if the last byte was received.
    #[expect(clippy::too_many_arguments, reason = "the state of the one loop that calls it")]
    fn attempt(
        &self,
        url: &str,
        file: &str,
        metadata: &Metadata,
        output: &mut File,
        partial: &Path,
        done: &mut u64,
        report: &mut dyn FnMut(u64) -> bool,
    ) -> Result<(), HubError> {
        let mut response = self.request("GET", url, *done, file)?;
        let content_range = response.headers().get("content-range").and_then(|value| value.to_str().ok());
        let resumes = content_range.is_some_and(|range| range.starts_with(&format!("bytes {done}-")));
        if *done > 0 && !(response.status().as_u16() == 206 && resumes) {
            // The server ignored the range and sends the whole file, or refused the range.
            *done = self.restart(output, partial)?;
            if response.status().as_u16() != 200 {
                return Err(self.network(file, "the range was refused"));
            }
        }
        let full = |error: io::Error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => HubError::DiskFull {
                cache: self.directory.clone(),
                file: file.to_string(),
                bytes: metadata.size.unwrap_or(0),
            },
            _ => self.io(partial, error),
        };
        let (mut body, mut buffer) = (response.body_mut().as_reader(), vec![0; 1 << 20]);
        loop {
            let len = body.read(&mut buffer).map_err(|error| self.network(file, error))?;
            if len == 0 {
                break;
            }
            output.write_all(&buffer[..len]).map_err(full)?;
            *done += len as u64;
            if metadata.size.is_some_and(|size| *done > size) {
                return Ok(()); // `verify` reports the size
            }
            if !report(*done) {
                return Err(self.stopped());
            }
        }
        match metadata.size {
            Some(size) if *done < size => Err(self.network(file, "the connection ended early")),
            _ => Ok(()),
        }
    }

    fn restart(&self, output: &File, partial: &Path) -> Result<u64, HubError> {
        output.set_len(0).map_err(|error| self.io(partial, error))?;
        Ok(0)
    }

    /// Checks the size, and the SHA-256 if the ETag is one.
    fn verify(&self, file: &str, metadata: &Metadata, partial: &Path, done: u64) -> Result<(), HubError> {
        let mut problem = metadata.size.is_some_and(|size| size != done).then_some("wrong size");
        if problem.is_none() && metadata.etag.len() == 64 && metadata.etag.bytes().all(|b| b.is_ascii_hexdigit()) {
            let digest = sha256(partial).map_err(|error| self.io(partial, error))?;
            problem = (!digest.eq_ignore_ascii_case(&metadata.etag)).then_some("wrong SHA-256");
        }
        let Some(problem) = problem else { return Ok(()) };
        fs::remove_file(partial).map_err(|error| self.io(partial, error))?;
        Err(HubError::Damaged { id: self.id.to_string(), file: file.to_string(), problem })
    }

    /// A request and its redirects; `Ok` for status 2xx and 416.
    fn request(&self, method: &str, url: &str, offset: u64, what: &str) -> Result<Response<Body>, HubError> {
        let mut url = url.to_string();
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send(method, &url, offset, what)?;
            if !response.status().is_redirection() {
                return Ok(response);
            }
            let location = response.headers().get("location").and_then(|value| value.to_str().ok());
            url = self.redirect(
                &url,
                location.ok_or_else(|| self.bad_answer("a redirect without a location".to_string()))?,
            )?;
        }
        Err(self.bad_answer(format!("too many redirects for {what}")))
    }

    /// One request; `Ok` for status 2xx, 3xx and 416.
    fn send(&self, method: &str, url: &str, offset: u64, what: &str) -> Result<Response<Body>, HubError> {
        let mut request = ureq::http::Request::builder().method(method).uri(url);
        if let Some(token) = self.token.as_deref().filter(|_| same_origin(url, &self.endpoint)) {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if offset > 0 {
            request = request.header("range", format!("bytes={offset}-"));
        }
        let request = request.body(()).map_err(|error| self.network(what, error))?;
        let response = self.agent.run(request).map_err(|error| self.network(what, error))?;
        let error_code = response.headers().get("x-error-code").and_then(|value| value.to_str().ok());
        let (id, endpoint) = (self.id.to_string(), self.endpoint.clone());
        match (response.status().as_u16(), error_code) {
            (200..=399 | 416, _) => Ok(response),
            (404, Some("RevisionNotFound")) => {
                Err(HubError::NoRevision { id, revision: self.revision.to_string(), endpoint })
            }
            (404, _) | (401, Some("RepoNotFound")) => Err(HubError::NoModel { id, endpoint }),
            // Without a token, the hub answers 401 for a missing repository too.
            (401, code) if self.token.is_none() && code != Some("GatedRepo") => Err(HubError::NoModel { id, endpoint }),
            (status @ (401 | 403), _) => Err(HubError::Refused { id, endpoint, status }),
            (status, _) => Err(self.network(what, format!("HTTP status {status}"))),
        }
    }

    /// Resolves `location` against `url`.
    fn redirect(&self, url: &str, location: &str) -> Result<String, HubError> {
        let bad = || self.bad_answer("a redirect to an invalid location".to_string());
        let target = if location.starts_with('/') && !location.starts_with("//") {
            let base: Uri = url.parse().map_err(|_| bad())?;
            format!("{}://{}{location}", base.scheme_str().ok_or_else(bad)?, base.authority().ok_or_else(bad)?)
        } else {
            location.to_string()
        };
        let allowed = target.starts_with("https://") || (target.starts_with("http://") && url.starts_with("http://"));
        allowed.then_some(target).ok_or_else(bad)
    }

    fn stopped(&self) -> HubError {
        HubError::Stopped { id: self.id.to_string() }
    }

    fn not_a_model(&self, problem: &'static str) -> HubError {
        HubError::NotAModel { id: self.id.to_string(), problem }
    }

    fn bad_answer(&self, problem: String) -> HubError {
        HubError::BadAnswer { id: self.id.to_string(), endpoint: self.endpoint.clone(), problem }
    }

    fn network(&self, what: &str, problem: impl ToString) -> HubError {
        let (id, endpoint) = (self.id.to_string(), self.endpoint.clone());
        HubError::Network { id, endpoint, what: what.to_string(), problem: problem.to_string() }
    }

    fn io(&self, path: &Path, error: io::Error) -> HubError {
        HubError::Io { path: path.to_path_buf(), error }
    }
}

/// An agent that neither follows redirects nor checks the status: both are done here.
fn agent(endpoint: &str) -> Agent {
    let host = endpoint.parse::<Uri>().ok().and_then(|uri| uri.host().map(str::to_string)).unwrap_or_default();
    let loopback = host == "localhost" || host == "[::1]" || host.starts_with("127.");
    let config = Agent::config_builder()
        .max_redirects(0)
        .max_redirects_will_error(false)
        .http_status_as_error(false)
        .proxy(if loopback { None } else { Proxy::try_from_env() })
        .user_agent(concat!("twostroke/", env!("CARGO_PKG_VERSION")))
        .accept_encoding("identity")
        .timeout_connect(Some(Duration::from_secs(10)))
        .timeout_recv_response(Some(Duration::from_secs(60)))
        .timeout_per_read(Some(Duration::from_secs(60)))
        .build();
    config.new_agent()
}

/// Same scheme, host and port.
fn same_origin(url: &str, endpoint: &str) -> bool {
    let origin = |url: &str| {
        let uri: Uri = url.parse().ok()?;
        let default = if uri.scheme_str() == Some("https") { 443 } else { 80 };
        let (scheme, host) = (uri.scheme_str()?.to_string(), uri.host()?.to_ascii_lowercase());
        Some((scheme, host, uri.port_u16().unwrap_or(default)))
    };
    origin(url).is_some_and(|own| Some(own) == origin(endpoint))
}

/// The weight files of an index.
fn shards(index: &Path) -> Result<BTreeSet<String>, String> {
    let json = files::read(index, MAX_JSON_BYTES).map_err(|error| format!("{INDEX}: {error}"))?;
    let index: ShardIndex = serde_json::from_slice(&json).map_err(|error| format!("{INDEX}: {error}"))?;
    let shards: BTreeSet<String> = index.weight_map.into_values().collect();
    match shards.iter().find(|name| !is_plain(name) || !name.ends_with(".safetensors")) {
        Some(name) => Err(format!("{INDEX}: {:.60?} is not a plain name of a .safetensors file", name)),
        None => Ok(shards),
    }
}

/// The first missing file of a snapshot. A missing optional file cannot be detected without the hub, unless it is a
/// link without its blob.
fn missing_file(snapshot: &Path) -> Option<String> {
    let lacks = |name: &str| !snapshot.join(name).exists();
    let is_broken_link = |name: &&str| files::broken_link(&snapshot.join(name)).is_some();
    if lacks(CONFIG) {
        return Some(CONFIG.to_string());
    }
    if let Some(name) = SETTINGS.iter().chain(&[SINGLE, INDEX]).find(|name| is_broken_link(name)) {
        return Some(name.to_string());
    }
    if !lacks(SINGLE) {
        return None;
    }
    if lacks(INDEX) {
        let entries = fs::read_dir(snapshot).into_iter().flatten().flatten();
        let names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        return match checkpoint::part_files(&names) {
            Ok(parts) if !parts.is_empty() => parts.into_iter().find(|name| lacks(name)),
            _ => Some(SINGLE.to_string()),
        };
    }
    // Loading the model reports an invalid index.
    shards(&snapshot.join(INDEX)).ok()?.into_iter().find(|name| lacks(name))
}

/// The GGUF files of a snapshot and of its direct subdirectories.
fn gguf_files(snapshot: &Path) -> Vec<String> {
    let names = |directory: &Path| -> Vec<String> {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    };
    // `is_file` is false for a link without its blob.
    let is_file = |name: &String| name.to_ascii_lowercase().ends_with(".gguf") && snapshot.join(name).is_file();
    let top = names(snapshot);
    let below = top.iter().filter(|name| snapshot.join(name).is_dir());
    let below =
        below.flat_map(|folder| names(&snapshot.join(folder)).into_iter().map(move |name| format!("{folder}/{name}")));
    top.iter().cloned().chain(below).filter(is_file).collect()
}

fn sha256(path: &Path) -> io::Result<String> {
    let (mut file, mut hash, mut buffer) = (files::open(path)?, Sha256::new(), vec![0; 1 << 20]);
    loop {
        let len = file.read(&mut buffer)?;
        if len == 0 {
            return Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect());
        }
        hash.update(&buffer[..len]);
    }
}

/// Creates the symbolic link `pointer`, `depth` directories deep in a snapshot, to the blob; atomically, by renaming.
fn link(etag: &str, depth: usize, pointer: &Path) -> io::Result<()> {
    let temporary = pointer.with_added_extension(format!("{}.link", std::process::id()));
    let _ = fs::remove_file(&temporary);
    std::os::unix::fs::symlink(Path::new(&"../".repeat(depth)).join("../../blobs").join(etag), &temporary)?;
    fs::rename(&temporary, pointer)
}

fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    files::replace(path, bytes)
}
