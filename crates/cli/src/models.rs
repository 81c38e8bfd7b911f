//! Models for the verbs: what [`launch`] resolves, with progress bars for people and failures in the words of flags.

use std::path::{Path, PathBuf};

use checkpoint::{Checkpoint, LoadError};
use engine::{Engine, StartError, Starting};
use hub::{DownloadEvent, HubError, Incoming};
use kernels::CpuError;
use kernels::memory_limits::{Headroom, Limit, headroom};
use kernels::threads::ThreadError;
pub(crate) use launch::{Chosen, is_hub_id};
use launch::{ModelSettings, OpenError, SHIPPED_NAME, Settings};
use model::ModelConfig;
use plan::units;

use crate::console::{Progress, note};
use crate::failure::Failure;
use crate::flags::ModelFlags;
use crate::{environment, forecast, notify};

pub(crate) fn shipped() -> Result<Checkpoint, Failure> {
    launch::shipped().map_err(Failure::usage)
}

/// What `-m` names, or the built-in model.
pub(crate) fn open(name: Option<&str>) -> Result<Checkpoint, Failure> {
    name.map_or_else(shipped, |name| open_for("-m", name))
}

/// What clients may call the model by: `asked` if anything was, else as it was named here and by the hub. Empty for what
/// has a name of its own: a path, or the built-in model.
pub(crate) fn names_for_clients(asked: &[String], name: Option<&str>) -> Vec<String> {
    let named = name.filter(|name| asked.is_empty() && !Path::new(name).exists() && *name != SHIPPED_NAME);
    let Some((name, meant)) =
        named.and_then(|name| Some((name, hub::canonical(name, &environment::variables().hub).ok()?)))
    else {
        return asked.to_vec();
    };
    let mut names = vec![if hub::without_site(name) == name { name.to_owned() } else { meant.clone() }];
    names.extend(Some(meant).filter(|meant| *meant != names[0]));
    names
}

/// The same, where what does not fit is not downloaded, unless it is to be by `force`.
pub(crate) fn open_fitting(name: Option<&str>, force: bool) -> Result<Checkpoint, Failure> {
    name.map_or_else(shipped, |name| open_with(name, "-m", !force))
}

/// What `flag` names. A hub id that is not in the cache is downloaded, with a progress bar for people.
pub(crate) fn open_for(flag: &str, name: &str) -> Result<Checkpoint, Failure> {
    open_with(name, flag, false)
}

/// `must_fit`: what would not fit into the memory is not downloaded.
pub(crate) fn open_with(name: &str, flag: &str, must_fit: bool) -> Result<Checkpoint, Failure> {
    let mut download = Download::new(name, must_fit);
    let opened = launch::open(Some(name), &environment::variables().hub, &mut |event| download.hear(event));
    opened.map_err(|error| match error {
        OpenError::Hub(error) => download.failure(flag, name, &error),
        error => Failure::usage(format!("{flag}: {error}")),
    })
}

/// What `flag` names of this machine: where a Ctrl-C stops no download, none is begun.
pub(crate) fn open_here(flag: &str, name: &str) -> Result<Checkpoint, Failure> {
    let hub = hub::HubEnv { offline: true, ..environment::variables().hub };
    launch::open(Some(name), &hub, &mut |_| true).map_err(|error| match error {
        OpenError::Hub(HubError::Offline { .. }) => {
            let how = format!("twostroke run -m {name} downloads one of the hub");
            Failure::usage(format!("{flag}: {name} is neither a file nor a model in the cache here; {how}"))
        }
        error => Failure::usage(format!("{flag}: {error}")),
    })
}

/// The directory of the files that `flag` names, as above.
pub(crate) fn path_for(flag: &str, name: &str, must_fit: bool) -> Result<String, Failure> {
    let mut download = Download::new(name, must_fit);
    let found = launch::path_of(name, &environment::variables().hub, &mut |event| download.hear(event));
    found.map(|path| path.to_string_lossy().into_owned()).map_err(|error| download.failure(flag, name, &error))
}

/// A download as people follow it.
struct Download {
    bar: Progress,
    must_fit: bool,
    /// Why it was not begun.
    refusal: Option<String>,
}

impl Download {
    fn new(name: &str, must_fit: bool) -> Download {
        Download { bar: Progress::new(name), must_fit, refusal: None }
    }

    /// Tells of it. False: it is not to go on.
    fn hear(&mut self, event: DownloadEvent<'_>) -> bool {
        match event {
            DownloadEvent::Begins(incoming) => self.refusal = announce(incoming).filter(|_| self.must_fit),
            DownloadEvent::File(progress) => {
                let (done, total) = (progress.bytes_done, progress.bytes_total.unwrap_or(progress.bytes_done));
                self.bar.naming(progress.file.to_string());
                self.bar.at(done, total);
                notify::progress("downloading", done, total);
            }
        }
        self.refusal.is_none()
    }

    fn failure(self, flag: &str, name: &str, error: &HubError) -> Failure {
        self.refusal.map_or_else(|| no_files(flag, name, error), Failure::failed)
    }
}

/// What comes, before its first byte does: its size and licence, whether it fits, and how fast both phases would be. Returns
/// why it does not fit.
fn announce(incoming: &Incoming) -> Option<String> {
    let Incoming { id, files, bytes, licence, free, .. } = incoming;
    let what = match &files[..] {
        [file] => file.clone(),
        files => format!("{} files", files.len()),
    };
    let size = bytes.map_or_else(|| "of a size that the hub does not say".to_owned(), units::bytes);
    let licence = licence.as_ref().map_or_else(String::new, |licence| format!(", licence {licence}"));
    let free = free.map_or_else(String::new, |free| format!(" ({} free)", units::bytes(free)));
    note(&format!("downloading {what} of {id}: {size}{licence}{free}"));
    let forecast = forecast::of_download(incoming, forecast::limits().as_ref())?;
    note(&forecast.words());
    (forecast.needs > forecast.room).then(|| forecast.refusal(id))
}

/// What a person would be told.
pub(crate) fn said(failure: Failure) -> String {
    match failure {
        Failure::Usage(message) | Failure::Failed(message) => message,
        Failure::OutputClosed | Failure::Interrupted | Failure::Said(_) => "it was interrupted".to_owned(),
    }
}

/// Whose path is mistyped may read of a hub that was never meant: where the hub has no such model, both are named.
fn no_files(flag: &str, name: &str, error: &HubError) -> Failure {
    let both = || format!("{error}; {name} is no directory here either");
    match error {
        HubError::Network { .. } => Failure::failed(both()),
        HubError::NoModel { .. } | HubError::Offline { .. } => Failure::usage(format!("{flag}: {}", both())),
        HubError::DiskFull { .. } | HubError::Io { .. } => Failure::failed(error),
        _ => Failure::usage(format!("{flag}: {error}")),
    }
}

/// What `--weights` asks for; auto looks at the checkpoint and at the free memory, and says so where that is not bf16.
pub(crate) fn weights(flags: &ModelFlags, checkpoint: &Checkpoint) -> Result<Chosen, Failure> {
    let chosen = choose(flags, checkpoint)?;
    if let Some(notice) = chosen.notice() {
        note(&notice);
    }
    Ok(chosen)
}

/// The same without a word.
pub(crate) fn choose(flags: &ModelFlags, checkpoint: &Checkpoint) -> Result<Chosen, Failure> {
    held(flags).choose(checkpoint).map_err(|error| load_failure(checkpoint, &error))
}

/// How a model is held in memory, by its flags.
pub(crate) fn held(flags: &ModelFlags) -> ModelSettings {
    ModelSettings {
        weights: flags.weights.class(),
        kv_dtype: flags.kv_dtype.dtype(),
        expert_memory: flags.expert_memory,
        arithmetic: flags.arithmetic.arithmetic(),
        device: flags.device,
        standby: false,
        threads: flags.threads,
        nodes: flags.nodes(),
        cache: packed_cache(flags),
    }
}

/// An engine with a model held so; everything else is the engine's own.
pub(crate) fn settings(flags: &ModelFlags) -> Settings {
    settings_of(held(flags))
}

/// The same of a model that is held otherwise. Chat templates run in child processes.
pub(crate) fn settings_of(model: ModelSettings) -> Settings {
    Settings { model, template: environment::template_renderer().into(), ..Settings::default() }
}

/// Where packed weights are kept between starts, unless `--no-packed-cache` is set.
pub(crate) fn packed_cache(flags: &ModelFlags) -> Option<PathBuf> {
    if flags.no_packed_cache { None } else { environment::variables().packed_cache }
}

/// Refuses an encoder where text is to be written.
pub(crate) fn check_that_it_writes(checkpoint: &Checkpoint) -> Result<(), Failure> {
    match ModelConfig::load(checkpoint) {
        Ok(config) => writes(checkpoint.name(), &config).map_err(Failure::usage),
        // What cannot be read is said when the model is loaded.
        Err(_) => Ok(()),
    }
}

/// Why a model writes no text, if it does not.
pub(crate) fn writes(name: &str, config: &ModelConfig) -> Result<(), String> {
    match config.encoder {
        None => Ok(()),
        Some(_) => Err(format!(
            "{name} is an encoder ({}), which gives vectors of texts and writes none: serve it, and ask /v1/embeddings",
            config.family
        )),
    }
}

/// Starts an engine, with progress bars for people while weights are read and steps are measured.
pub(crate) fn start(checkpoint: &Checkpoint, settings: &Settings, chosen: Chosen) -> Result<Engine, Failure> {
    let loading = Progress::new("loading");
    let mut measuring = None;
    let started = settings.start(checkpoint, chosen, &mut |starting| match starting {
        Starting::Loading(progress) => {
            loading.at(progress.bytes_done, progress.bytes_total);
            notify::progress("loading", progress.bytes_done, progress.bytes_total);
        }
        Starting::Calibrating { done, total } => {
            measuring.get_or_insert_with(|| Progress::counting("calibrating", "steps")).at(done as u64, total as u64);
            notify::progress("calibrating", done as u64, total as u64);
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

/// The system gave no memory, or no thread for want of it: names the limit, if one is set.
pub(crate) fn without_memory(error: &dyn std::fmt::Display) -> Failure {
    match headroom() {
        Some(Headroom { limit: Limit::Machine, .. }) | None => Failure::failed(error),
        Some(Headroom { limit, .. }) => {
            Failure::failed(format!("{error}; what binds is the {limit} ({})", limit.source()))
        }
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
