//! Models by name, through the Hugging Face cache and, for what is not in it, the hub's API.
//!
//! ```text
//! spec               a directory or .gguf file that exists, or org/name[@revision][:QUANT]
//! $HF_HUB_CACHE/models--org--name/
//!   refs/main                      the commit that a branch or tag meant
//!   snapshots/<commit>/config.json ──symlink──► ../../blobs/<etag>
//!   blobs/<etag>                   a file's bytes; <etag>.incomplete while they arrive
//! ```
//!
//! The layout and the locks are those of `huggingface_hub` in Python, so either uses what the other downloaded. Only
//! what this program reads is fetched: settings, tokenizer, and the weights that the index names; or the GGUF file of
//! one quantization, if one is named or the repository has nothing else.
//!
//! A branch is asked for on the hub once per start, as Python does it; with `offline`, a commit as the revision, or a
//! hub that cannot be reached, what is in the cache is taken without a request, if it is complete. An interrupted
//! download resumes where it stopped. Large files are named by the SHA-256 of their content, and that is checked.
//!
//! The token goes to the endpoint and to nobody else: redirects are followed by hand and carry it only to the same
//! scheme, host and port. Names that come from the network become paths only after a check that they are plain.

mod choice;
mod kept;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use sha2::{Digest, Sha256};
use ureq::http::{Response, Uri};
use ureq::{Agent, Body, Proxy};

use crate::choice::{NoChoice, choose};
pub use crate::kept::{Cached, cached, find_cached, remove_cached};

/// The variables that `huggingface_hub` obeys, as the command line read them. Empty values count as absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HubEnv {
    /// `HF_HOME`, or `~/.cache/huggingface` where it is not set. Holds the cache (`hub`) and the token of `hf auth
    /// login` (`token`).
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
    /// Where the cache is.
    fn cache(&self) -> Result<PathBuf, HubError> {
        let full = |path: &Option<PathBuf>| path.clone().filter(|path| !path.as_os_str().is_empty());
        full(&self.hub_cache).or_else(|| Some(full(&self.hf_home)?.join("hub"))).ok_or_else(|| {
            let error = io::Error::new(io::ErrorKind::NotFound, "no home directory for the cache: set HF_HUB_CACHE");
            HubError::Io { path: PathBuf::from("~"), error }
        })
    }
}

/// How far the download of one file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DownloadProgress<'a> {
    /// File name.
    pub file: &'a str,
    /// Which of `num_files`, from 0.
    pub index: usize,
    /// Files of this model, those already in the cache included.
    pub num_files: usize,
    /// Bytes on disk.
    pub bytes_done: u64,
    /// Size of the file; `None` when the hub does not say.
    pub bytes_total: Option<u64>,
}

/// Why a name did not become a directory with a model in it.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// Neither a directory nor the form of a hub id.
    #[error("{spec}: no such directory, and not a model id (org/name, org/name@revision or org/name:QUANT)")]
    NotFound {
        /// As given.
        spec: String,
    },
    /// What is named, or a file of the model in the cache, is there and cannot be what it says.
    #[error("{spec}: broken: {problem}")]
    Broken {
        /// As given.
        spec: String,
        /// The file, what is wrong with it, and what to do.
        problem: String,
    },
    /// A file was given that is not a model.
    #[error(
        "{spec}: is a file; a .gguf file, a directory in the layout of Hugging Face transformers, or a model id is needed"
    )]
    NotAModelFile {
        /// As given.
        spec: String,
    },
    /// No model of that name in the cache.
    #[error("{spec}: no such model in the cache at {}; `twostroke list` says which there are", .cache.display())]
    NotCached {
        /// As given.
        spec: String,
        /// Where it was looked for.
        cache: PathBuf,
    },
    /// Offline and not in the cache.
    #[error("{id}: {file} is not in the cache at {}, and HF_HUB_OFFLINE forbids downloading it", .cache.display())]
    Offline {
        /// Model id.
        id: String,
        /// The first file that is missing.
        file: String,
        /// Where it was looked for.
        cache: PathBuf,
    },
    /// The hub knows no such model, or does not show it.
    #[error("{id}: no such model on {endpoint}, or it is private: set HF_TOKEN to a token that may read it")]
    NoModel {
        /// Model id.
        id: String,
        /// The hub.
        endpoint: String,
    },
    /// The model exists, its revision does not.
    #[error("{id}: no revision {revision:?} on {endpoint}")]
    NoRevision {
        /// Model id.
        id: String,
        /// Branch, tag or commit asked for.
        revision: String,
        /// The hub.
        endpoint: String,
    },
    /// The token is wrong or not enough.
    #[error(
        "{id}: access refused ({status}); accept the model's terms on {endpoint}/{id}, and set HF_TOKEN to a valid token"
    )]
    Refused {
        /// Model id.
        id: String,
        /// The hub.
        endpoint: String,
        /// 401 or 403.
        status: u16,
    },
    /// The repository holds no such model as this program reads.
    #[error("{id}: {problem}")]
    NotAModel {
        /// Model id.
        id: String,
        /// What is missing.
        problem: &'static str,
    },
    /// Which of a repository's GGUF files is meant is not clear.
    #[error("{id}: {}; it has {}", match .asked { Some(quant) => format!("no GGUF file of {quant}"), None => format!("several GGUF files, name one as {id}:QUANT") }, .there.join(", "))]
    NoQuant {
        /// Model id.
        id: String,
        /// The quantization that was named.
        asked: Option<String>,
        /// Those that the repository has.
        there: Vec<String>,
    },
    /// The hub answered with what it should not.
    #[error("{endpoint}: bad answer for {id}: {problem}")]
    BadAnswer {
        /// Model id.
        id: String,
        /// The hub.
        endpoint: String,
        /// What was wrong.
        problem: String,
    },
    /// The hub could not be reached or stopped answering; what arrived is kept and the next attempt resumes.
    #[error("{endpoint}: {problem} (while fetching {what} of {id}; run again to resume)")]
    Network {
        /// Model id.
        id: String,
        /// The hub.
        endpoint: String,
        /// File, or the list of files.
        what: String,
        /// What the connection said.
        problem: String,
    },
    /// A file's content is not what its name promises. It is deleted.
    #[error("{id}: {file} arrived damaged ({problem}); it was deleted, run again")]
    Damaged {
        /// Model id.
        id: String,
        /// File name.
        file: String,
        /// Which check failed.
        problem: &'static str,
    },
    /// The disk is full.
    #[error("{}: no space left for {file} ({bytes} bytes)", .cache.display())]
    DiskFull {
        /// The cache.
        cache: PathBuf,
        /// File name.
        file: String,
        /// Its size.
        bytes: u64,
    },
    /// The cache could not be read or written.
    #[error("{}: {error}", .path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// What the operating system said.
        error: io::Error,
    },
}

/// Files that are fetched when the repository has them.
const SETTINGS: [&str; 6] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
];
const CONFIG: &str = "config.json";
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Largest list of files, and largest index, that is read.
const MAX_JSON_BYTES: u64 = 64 << 20;
/// Redirects of one request.
const MAX_REDIRECTS: usize = 5;
/// Of the files with a token or a commit in them.
const MAX_LINE_BYTES: u64 = 4096;
/// Attempts in a row that bring no byte, before a download is given up.
const MAX_IDLE_ATTEMPTS: u32 = 4;

/// The directory or GGUF file with the model that `spec` names, after downloading what is missing. `:Q4_K_M` behind the
/// id means the GGUF file whose name ends so; a repository without safetensors gives its Q4_K_M, or the only one it
/// has.
///
/// A directory or file that exists wins over a model id of the same name. `progress` is called at the beginning and end
/// of each file and about once per MiB.
pub fn resolve(spec: &str, env: &HubEnv, progress: &mut dyn FnMut(DownloadProgress<'_>)) -> Result<PathBuf, HubError> {
    let path = Path::new(spec);
    let is_gguf = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
    if let Some(problem) = files::lost_link(path) {
        return Err(HubError::Broken { spec: spec.to_string(), problem });
    }
    if path.is_dir() || (is_gguf && path.exists()) {
        return Ok(path.to_path_buf());
    }
    if path.exists() {
        return Err(HubError::NotAModelFile { spec: spec.to_string() });
    }
    let Some(wanted) = Wanted::parse(spec) else { return Err(HubError::NotFound { spec: spec.to_string() }) };
    Hub::new(wanted, env)?.resolve(progress)
}

/// What a hub id asks for.
struct Wanted<'a> {
    id: &'a str,
    revision: &'a str,
    quant: Option<&'a str>,
}

impl<'a> Wanted<'a> {
    /// `org/name[@revision][:QUANT]`, each part checked to be a plain name.
    fn parse(spec: &'a str) -> Option<Wanted<'a>> {
        let (spec, quant) = spec.split_once(':').map_or((spec, None), |(spec, quant)| (spec, Some(quant)));
        let (id, revision) = spec.split_once('@').unwrap_or((spec, "main"));
        let (org, name) = id.split_once('/')?;
        let revision_is_plain = !revision.is_empty() && revision.len() <= 200 && revision.split('/').all(is_plain);
        let plain =
            id.len() <= 96 && is_plain(org) && is_plain(name) && revision_is_plain && quant.is_none_or(is_plain);
        plain.then_some(Wanted { id, revision, quant })
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

/// The part of the API's answer that matters.
#[derive(Deserialize)]
struct Listing {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

impl Listing {
    fn has_gguf(&self) -> bool {
        self.siblings.iter().any(|sibling| sibling.rfilename.to_ascii_lowercase().ends_with(".gguf"))
    }
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

#[derive(Deserialize)]
struct ShardIndex {
    weight_map: std::collections::BTreeMap<String, String>,
}

/// What the hub says about a file before sending it.
struct Metadata {
    etag: String,
    size: Option<u64>,
}

impl<'a> Hub<'a> {
    fn new(Wanted { id, revision, quant }: Wanted<'a>, env: &HubEnv) -> Result<Hub<'a>, HubError> {
        let full = |path: &Option<PathBuf>| path.clone().filter(|path| !path.as_os_str().is_empty());
        let home = full(&env.hf_home);
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

    fn resolve(&self, progress: &mut dyn FnMut(DownloadProgress<'_>)) -> Result<PathBuf, HubError> {
        let nothing = || self.quant.map_or(CONFIG.to_string(), |quant| format!("a GGUF file of {quant}"));
        let cached = self.cached_commit().ok_or_else(nothing).and_then(|commit| self.cached(&self.snapshot(&commit)));
        match cached {
            Ok(model) if self.offline || is_commit(self.revision) => Ok(model),
            Err(file) if self.offline && self.is_lost(&file) => {
                let problem = format!(
                    "{file} is a link to a blob that is not in the cache at {}: this file was never downloaded, or is \
                     gone, and HF_HUB_OFFLINE forbids downloading it",
                    self.directory.display()
                );
                Err(HubError::Broken { spec: self.id.to_string(), problem })
            }
            Err(file) if self.offline => {
                Err(HubError::Offline { id: self.id.to_string(), file, cache: self.directory.clone() })
            }
            Ok(model) => match self.download(progress) {
                // The hub is away, the model is here.
                Err(HubError::Network { .. }) => Ok(model),
                result => result,
            },
            Err(_) => self.download(progress),
        }
    }

    /// Whether a file of the cached snapshot is a link to nothing.
    fn is_lost(&self, file: &str) -> bool {
        self.cached_commit().is_some_and(|commit| files::lost_link(&self.snapshot(&commit).join(file)).is_some())
    }

    /// The model in a snapshot, or the first file that it lacks.
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

    /// The commit that the revision meant when it was last asked for.
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

    fn download(&self, progress: &mut dyn FnMut(DownloadProgress<'_>)) -> Result<PathBuf, HubError> {
        let listing = self.listing()?;
        let snapshot = self.snapshot(&listing.sha);
        let has = |name: &str| listing.siblings.iter().any(|sibling| sibling.rfilename == name);
        if self.quant.is_some() || !has(SINGLE) && !has(INDEX) && listing.has_gguf() {
            let files = self.choose(listing.siblings.iter().map(|sibling| sibling.rfilename.clone()).collect())?;
            self.fetch_all(&listing.sha, &files, progress)?;
            return Ok(snapshot.join(&files[0]));
        }
        if !has(CONFIG) {
            return Err(self.not_a_model("no config.json in the repository: not a model for transformers"));
        }
        let mut files: Vec<String> = SETTINGS.iter().filter(|name| has(name)).map(|name| name.to_string()).collect();
        if has(SINGLE) {
            files.push(SINGLE.to_string());
        } else if has(INDEX) {
            self.fetch(&listing.sha, INDEX, 0, files.len() + 1, progress)?;
            let shards = shards(&snapshot.join(INDEX)).map_err(|problem| self.bad_answer(problem))?;
            files.push(INDEX.to_string());
            files.extend(shards);
        } else {
            let names: Vec<String> = listing.siblings.iter().map(|sibling| sibling.rfilename.clone()).collect();
            match checkpoint::parts_of(&names) {
                Ok(parts) if !parts.is_empty() && parts.iter().all(|part| is_plain(part)) => files.extend(parts),
                Ok(_) => {
                    return Err(self.not_a_model("no model.safetensors in the repository; other formats are not read"));
                }
                Err(problem) => return Err(self.bad_answer(problem)),
            }
        }
        self.fetch_all(&listing.sha, &files, progress)?;
        Ok(snapshot)
    }

    /// The GGUF files that are meant, of all files of the repository.
    fn choose(&self, files: Vec<String>) -> Result<Vec<String>, HubError> {
        let chosen = choose(&files, self.quant).map_err(|none| match none {
            NoChoice::Quants(there) if there.is_empty() => self.not_a_model("no GGUF model in the repository"),
            NoChoice::Quants(there) => {
                HubError::NoQuant { id: self.id.to_string(), asked: self.quant.map(str::to_string), there }
            }
            NoChoice::Part(_) => self.not_a_model("a part of that GGUF model is not in the repository"),
        })?;
        match chosen.iter().find(|file| !file.split('/').all(is_plain)) {
            Some(file) => Err(self.bad_answer(format!("{:.60?} is not a plain name of a file", file))),
            None => Ok(chosen),
        }
    }

    /// Puts files into the snapshot, and then notes that the revision means it: it never points to one that is not
    /// complete.
    fn fetch_all(
        &self,
        commit: &str,
        files: &[String],
        progress: &mut dyn FnMut(DownloadProgress<'_>),
    ) -> Result<(), HubError> {
        for (index, file) in files.iter().enumerate() {
            self.fetch(commit, file, index, files.len(), progress)?;
        }
        if is_commit(self.revision) {
            return Ok(());
        }
        let reference = self.directory.join("refs").join(self.revision);
        write_atomically(&reference, commit.as_bytes()).map_err(|error| self.io(&reference, error))
    }

    /// The commit and the files of the revision.
    fn listing(&self) -> Result<Listing, HubError> {
        let revision = self.revision.replace('/', "%2F");
        let url = format!("{}/api/models/{}/revision/{revision}", self.endpoint, self.id);
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

    /// Puts one file into the snapshot.
    fn fetch(
        &self,
        commit: &str,
        file: &str,
        index: usize,
        num_files: usize,
        progress: &mut dyn FnMut(DownloadProgress<'_>),
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
        // Python takes the same lock: of two that download a model at once, one waits and finds it done.
        let lock_path = self.locks.join(format!("{}.lock", metadata.etag));
        let lock = files::append(&lock_path).map_err(|error| self.io(&lock_path, error))?;
        lock.lock().map_err(|error| self.io(&lock_path, error))?;
        if !blob.exists() {
            let partial = blobs.join(format!("{}.incomplete", metadata.etag));
            let mut report = |bytes_done| {
                progress(DownloadProgress { file, index, num_files, bytes_done, bytes_total: metadata.size });
            };
            self.download_blob(&url, file, &metadata, &partial, &mut report)?;
            fs::rename(&partial, &blob).map_err(|error| self.io(&blob, error))?;
        }
        let above = file.matches('/').count();
        link(&metadata.etag, above, &pointer).map_err(|error| self.io(&pointer, error))
    }

    /// Asks for a file's content hash and size. The first answer that has a hash is the hub's; where it redirects to is
    /// the storage behind it.
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

    /// Fills `partial` with the file's bytes, from where an earlier attempt stopped, and checks them.
    fn download_blob(
        &self,
        url: &str,
        file: &str,
        metadata: &Metadata,
        partial: &Path,
        report: &mut dyn FnMut(u64),
    ) -> Result<(), HubError> {
        let mut output = files::append(partial).map_err(|error| self.io(partial, error))?;
        let mut done = output.metadata().map_err(|error| self.io(partial, error))?.len();
        let mut idle_attempts = 0;
        loop {
            if metadata.size.is_some_and(|size| done > size) {
                done = self.restart(&output, partial)?;
            }
            report(done);
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

    /// One request for the bytes from `done` on. Ends well only with the last byte.
    #[expect(clippy::too_many_arguments, reason = "the state of the one loop that calls it")]
    fn attempt(
        &self,
        url: &str,
        file: &str,
        metadata: &Metadata,
        output: &mut File,
        partial: &Path,
        done: &mut u64,
        report: &mut dyn FnMut(u64),
    ) -> Result<(), HubError> {
        let mut response = self.request("GET", url, *done, file)?;
        let content_range = response.headers().get("content-range").and_then(|value| value.to_str().ok());
        let resumes = content_range.is_some_and(|range| range.starts_with(&format!("bytes {done}-")));
        if *done > 0 && !(response.status().as_u16() == 206 && resumes) {
            // The server sends the file from its beginning, or says that there is nothing after what we have.
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
                return Ok(()); // `verify` sees that there is too much
            }
            report(*done);
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

    /// Size, and SHA-256 where the name is one.
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

    /// A request and its redirects; the answer is a success, or 416.
    fn request(&self, method: &str, url: &str, offset: u64, what: &str) -> Result<Response<Body>, HubError> {
        let mut url = url.to_string();
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send(method, &url, offset, what)?;
            if !response.status().is_redirection() {
                return Ok(response);
            }
            let location = response.headers().get("location").and_then(|value| value.to_str().ok());
            url = self.redirect(&url, location.ok_or_else(|| self.bad_answer("a redirect to nowhere".to_string()))?)?;
        }
        Err(self.bad_answer(format!("too many redirects for {what}")))
    }

    /// One request. The answer is a success, a redirect, or 416.
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
            // Without a token the hub says 401 for what does not exist, too.
            (401, code) if self.token.is_none() && code != Some("GatedRepo") => Err(HubError::NoModel { id, endpoint }),
            (status @ (401 | 403), _) => Err(HubError::Refused { id, endpoint, status }),
            (status, _) => Err(self.network(what, format!("HTTP status {status}"))),
        }
    }

    /// The URL that `location` means, seen from `url`.
    fn redirect(&self, url: &str, location: &str) -> Result<String, HubError> {
        let bad = || self.bad_answer("a redirect to a strange place".to_string());
        let target = if location.starts_with('/') && !location.starts_with("//") {
            let base: Uri = url.parse().map_err(|_| bad())?;
            format!("{}://{}{location}", base.scheme_str().ok_or_else(bad)?, base.authority().ok_or_else(bad)?)
        } else {
            location.to_string()
        };
        let allowed = target.starts_with("https://") || (target.starts_with("http://") && url.starts_with("http://"));
        allowed.then_some(target).ok_or_else(bad)
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

/// An agent that follows no redirect and judges no status: both are done here.
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

/// The weights files that an index names.
fn shards(index: &Path) -> Result<BTreeSet<String>, String> {
    let json = files::read(index, MAX_JSON_BYTES).map_err(|error| format!("{INDEX}: {error}"))?;
    let index: ShardIndex = serde_json::from_slice(&json).map_err(|error| format!("{INDEX}: {error}"))?;
    let shards: BTreeSet<String> = index.weight_map.into_values().collect();
    match shards.iter().find(|name| !is_plain(name) || !name.ends_with(".safetensors")) {
        Some(name) => Err(format!("{INDEX}: {:.60?} is not a plain name of a .safetensors file", name)),
        None => Ok(shards),
    }
}

/// The first file that a snapshot lacks to be loaded. Optional files cannot be known without the hub, but for those
/// that are links to blobs which are not there.
fn missing_file(snapshot: &Path) -> Option<String> {
    let lacks = |name: &str| !snapshot.join(name).exists();
    let is_lost = |name: &&str| files::lost_link(&snapshot.join(name)).is_some();
    if lacks(CONFIG) {
        return Some(CONFIG.to_string());
    }
    if let Some(lost) = SETTINGS.iter().chain(&[SINGLE, INDEX]).find(|name| is_lost(name)) {
        return Some(lost.to_string());
    }
    if !lacks(SINGLE) {
        return None;
    }
    if lacks(INDEX) {
        let entries = fs::read_dir(snapshot).into_iter().flatten().flatten();
        let names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        return match checkpoint::parts_of(&names) {
            Ok(parts) if !parts.is_empty() => parts.into_iter().find(|name| lacks(name)),
            _ => Some(SINGLE.to_string()),
        };
    }
    // What is wrong with an index that is there is said by who loads it.
    shards(&snapshot.join(INDEX)).ok()?.into_iter().find(|name| lacks(name))
}

/// The GGUF files of a snapshot, those of its folders with them.
fn gguf_files(snapshot: &Path) -> Vec<String> {
    let names = |directory: &Path| -> Vec<String> {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    };
    // A link whose blob is gone is no file.
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

/// The symbolic link `pointer`, which lies `depth` folders deep in a snapshot, to the blob; made under another name
/// first: it appears whole or not at all.
fn link(etag: &str, depth: usize, pointer: &Path) -> io::Result<()> {
    let temporary = pointer.with_added_extension(format!("{}.link", std::process::id()));
    let _ = fs::remove_file(&temporary);
    std::os::unix::fs::symlink(Path::new(&"../".repeat(depth)).join("../../blobs").join(etag), &temporary)?;
    fs::rename(&temporary, pointer)
}

fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    files::replace(path, bytes)
}
