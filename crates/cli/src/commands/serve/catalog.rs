//! The models that a server may load beside its first: those named on the command line or in the file of `--config`, and
//! those of the cache where they are served on demand. Nothing is downloaded for a request.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use checkpoint::Checkpoint;
use engine::{Observe, Starting};
use hub::{DownloadEvent, HubError};
use launch::{Chosen, Settings};
use model::ModelConfig;
use plan::units::bytes;
use protocol::Nanos;
use residency::{Facts, LoadingReport, Rules};
use server::{ApiError, Catalog, KnownModel, OtherModels};

use crate::environment;
use crate::failure::Failure;
use crate::flags::{ModelEntry, ServeFlags};
use crate::models;

/// Of the memory that the first model leaves, cache and all, the others get this much unless `--memory` says more.
const SHARE: f64 = 0.8;
/// Of the memory for all, the KV cache of one takes no more than this, unless two sequences at full length need more.
const KV_SHARE: u64 = 8;
/// Bytes that a disk is thought to bring in a second, before a model has been loaded.
const BYTES_PER_SECOND: u64 = 500 << 20;
/// Requests that wait for models in all.
const MOST_WAITING: usize = 256;

/// Where the others come from.
struct CatalogOfServe {
    entries: Vec<ModelEntry>,
    /// Cached ones too.
    is_on_demand: bool,
    /// How each is started, unless its entry says otherwise.
    settings: Settings,
    keep_alive: Option<Duration>,
    memory: u64,
    /// What was read of each, by its entry, and when its files had been written.
    known: Mutex<BTreeMap<String, (Option<u64>, Known)>>,
    /// The first model's names, which no other has.
    first: Vec<String>,
    /// What the first model was started with.
    first_model: Option<String>,
    may_pull: bool,
}

#[derive(Clone)]
struct Known {
    model: KnownModel,
    settings: Settings,
    chosen: Chosen,
}

/// The models beside the first, whose settings are these; `None`: there can be none. `first`: its names;
/// `room`: bytes that it leaves.
pub(super) fn others(
    flags: &ServeFlags,
    settings: &Settings,
    first: &[String],
    room: u64,
) -> Result<Option<OtherModels>, Failure> {
    let has_several = wants_several(flags)?;
    if flags.allow_pull && !(has_several && is_on_demand(flags)) {
        return Err(Failure::usage("--allow-pull: what is downloaded has to be served on demand: add --on-demand"));
    }
    if !has_several {
        return Ok(None);
    }
    if super::first_entry(flags).is_some_and(|first| first.keep_alive.is_some()) {
        return Err(Failure::usage("--models: keep-alive: the first model stays as long as the server runs"));
    }
    let memory = flags.memory.unwrap_or((room as f64 * SHARE) as u64);
    let settings = Settings {
        // These are the first one's: its adapters, its shares of other memories, its own text.
        adapters: Vec::new(),
        max_adapters: None,
        runtime_adapters: false,
        kv_swap_bytes: 0,
        kv_swap_disk: None,
        cache_listener: None,
        max_model_len: None,
        ttft: flags.ttft_slo,
        tpot: flags.tpot_slo,
        speculation: super::plain_speculation(flags),
        template: models::settings(&flags.model).template,
        ..settings.clone()
    };
    let named = flags.models.iter().skip(1).map(|name| ModelEntry { pin: true, ..ModelEntry::of(name) });
    let skipped = usize::from(flags.models.is_empty());
    let catalog = CatalogOfServe {
        entries: named.chain(flags.entries.iter().skip(skipped).cloned()).collect(),
        is_on_demand: is_on_demand(flags),
        settings,
        keep_alive: flags.keep_alive.0,
        memory,
        known: Mutex::default(),
        first: first.to_vec(),
        first_model: super::name(flags).map(str::to_owned),
        may_pull: flags.allow_pull,
    };
    let mut taken = first.to_vec();
    let mut pinned = 0;
    for entry in &catalog.entries {
        // A name that is none is said before anything is served; what is not here is downloaded now.
        models::open_with(&entry.model, "serve", !flags.force)?;
        let known = catalog.read(entry).map_err(|problem| Failure::usage(format!("{}: {problem}", entry.model)))?;
        if let Some(name) = known.model.names.iter().find(|name| name.is_empty() || taken.contains(name)) {
            let why = "of several models each has names of its own: \"name\" in --models gives it some";
            return Err(Failure::usage(format!("{}: \"{name}\" is another's name or none; {why}", entry.model)));
        }
        taken.extend(known.model.names.iter().cloned());
        pinned += if entry.pin { known.model.facts.bytes } else { 0 };
        catalog.known.lock().unwrap_or_else(PoisonError::into_inner).insert(entry.key(), (None, known));
    }
    if pinned > memory {
        let [needed, memory] = [pinned, memory].map(bytes);
        let why = "serve fewer, narrower (--weights) or with smaller caches (--kv-cache-memory-bytes)";
        return Err(Failure::failed(format!(
            "the models need {needed} and there is room for {memory} (--memory): {why}"
        )));
    }
    let nanos = |time: Duration| Nanos(time.as_nanos() as u64);
    let rules = Rules {
        memory,
        load_wait: nanos(flags.load_wait),
        load_timeout: nanos(flags.load_timeout),
        most_waiting: MOST_WAITING,
    };
    Ok(Some(OtherModels { catalog: Arc::new(catalog), rules }))
}

/// Whether there is more than one model, or could be.
pub(super) fn wants_several(flags: &ServeFlags) -> Result<bool, Failure> {
    let is_asked_for = flags.models.len() + flags.entries.len() > 1 || flags.on_demand;
    let alone = [("--record", flags.record.is_some()), ("--cluster-key", flags.cluster_key.is_some())];
    let alone = alone.into_iter().find(|(_, is_set)| *is_set).map(|(flag, _)| flag);
    match (is_asked_for, alone) {
        (true, Some(flag)) => Err(Failure::usage(format!("{flag}: it is for a server of one model"))),
        (true, None) => Ok(true),
        (false, alone) => Ok(is_on_demand(flags) && alone.is_none()),
    }
}

/// Cached models are loaded when they are asked for: where that is said, and where only this machine can ask and no model
/// was named.
fn is_on_demand(flags: &ServeFlags) -> bool {
    let is_local = flags.uds.is_some() || ["127.0.0.1", "localhost", "::1"].contains(&flags.host.as_str());
    flags.on_demand || is_local && super::name(flags).is_none()
}

impl CatalogOfServe {
    /// What was read of it, or is now. What cannot be read is no model that could be served, yet.
    fn known(&self, (entry, written): &(ModelEntry, Option<u64>)) -> Option<Known> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, found)) = known.get(&entry.key()).filter(|(then, _)| then == written) {
            return Some(found.clone());
        }
        let found = self.read(entry).ok()?;
        known.insert(entry.key(), (*written, found.clone()));
        Some(found)
    }

    /// What its headers say. No weight is read.
    fn read(&self, entry: &ModelEntry) -> Result<Known, String> {
        let checkpoint = models::open_here("serve", &entry.model).map_err(models::said)?;
        let config = ModelConfig::load(&checkpoint).map_err(|error| error.to_string())?;
        let chosen = self.settings.model.choose(&checkpoint).map_err(|error| error.to_string())?;
        let context = config.max_position_embeddings.min(entry.max_model_len.unwrap_or(usize::MAX));
        let mut settings = Settings { max_model_len: entry.max_model_len, ..self.settings.clone() };
        settings.ttft = entry.ttft_slo.map(|target| target.0).or(settings.ttft);
        settings.tpot = entry.tpot_slo.map(|target| target.0).or(settings.tpot);
        let weights = config.weight_bytes_in_memory(chosen.class, settings.model.expert_memory);
        let is_encoder = config.encoder.is_some();
        let per_sequence = config.shape().kv_values * 2 * context as u64;
        let all = per_sequence.saturating_mul(settings.max_num_seqs as u64);
        let kv = settings.kv_cache_bytes.unwrap_or(all.min((2 * per_sequence).max(self.memory / KV_SHARE)));
        let kv = if is_encoder { 0 } else { kv };
        if !is_encoder && settings.kv_cache_bytes.is_none() {
            settings.kv_cache_bytes = Some(kv);
        }
        let takes = (weights + kv) / 10 * 11;
        let mut names = models::names_for_clients(&entry.name, Some(&entry.model));
        if names.is_empty() {
            names.push(checkpoint.name().to_owned());
        }
        let (file_bytes, changed) = on_disk(&checkpoint);
        let model = KnownModel {
            names,
            facts: Facts {
                bytes: takes,
                loads_in: Nanos((1 + weights / BYTES_PER_SECOND) * 1_000_000_000),
                pinned: entry.pin,
                keep_alive: entry
                    .keep_alive
                    .map_or(self.keep_alive, |stays| stays.0)
                    .map(|time| Nanos(time.as_nanos() as u64)),
            },
            file_bytes,
            changed,
            family: config.family.name().to_owned(),
            parameters: config.shape().parameters(),
            weights: chosen.class.name(),
            context,
            is_encoder,
        };
        Ok(Known { model, settings, chosen })
    }

    /// Those that are named, then those of the cache with when they were written.
    fn all(&self) -> Vec<(ModelEntry, Option<u64>)> {
        let cached = match self.is_on_demand {
            true => hub::cached(&environment::variables().hub).unwrap_or_default(),
            false => Vec::new(),
        };
        let cached = cached.iter().map(|model| (ModelEntry::of(&model.id), model.written));
        self.entries.iter().map(|entry| (entry.clone(), None)).chain(cached).collect()
    }
}

impl Catalog for CatalogOfServe {
    fn models(&self) -> Vec<KnownModel> {
        let mut taken = self.first.clone();
        let known = self.all().into_iter().filter_map(|entry| Some(self.known(&entry)?.model)).filter(|model| {
            // A cached one that is named is that entry's.
            let is_new = !model.names.iter().any(|name| taken.contains(name));
            taken.extend(model.names.iter().filter(|_| is_new).cloned());
            is_new
        });
        known.collect()
    }

    fn may_pull(&self) -> bool {
        self.may_pull
    }

    fn pull(&self, name: &str, progress: &mut dyn FnMut(DownloadEvent<'_>) -> bool) -> Result<(), ApiError> {
        let name = of_the_hub(name)?;
        hub::resolve(&name, &environment::variables().hub, progress).map(|_| ()).map_err(|error| not_stored(&error))
    }

    fn delete(&self, name: &str, in_memory: &dyn Fn(&str) -> bool) -> Result<(), ApiError> {
        let (name, hub) = (of_the_hub(name)?, environment::variables().hub);
        let id = repository(&name);
        let is_it = |model: &str| hub::canonical(model, &hub).is_ok_and(|meant| repository(&meant) == id);
        let is_loaded = |known: Known| in_memory(&known.model.names[0]);
        let found = hub::find_cached(id, &hub).map_err(|error| not_stored(&error))?;
        let is_first = self.first_model.as_deref().is_some_and(is_it);
        if is_first || self.all().iter().any(|entry| is_it(&entry.0.model) && self.known(entry).is_some_and(is_loaded))
        {
            let how = if is_first { "it is the first of this server, which stays" } else { "keep_alive 0 unloads it" };
            return Err(ApiError::model_in_use(format!("{id} is in memory: {how}.")));
        }
        hub::remove_cached(&found).map_err(|error| not_stored(&error))
    }

    fn start(&self, name: &str, report: &LoadingReport) -> Result<Arc<dyn Observe>, String> {
        let is_it = |known: &Known| known.model.names[0] == name;
        let entries = self.all();
        let found = entries.iter().find_map(|entry| Some((&entry.0, self.known(entry).filter(is_it)?)));
        let (entry, Known { settings, chosen, .. }) = found.ok_or("it is gone")?;
        let checkpoint = models::open_here("serve", &entry.model).map_err(models::said)?;
        let started = settings.start(&checkpoint, chosen, &mut |starting| {
            if let Starting::Loading(progress) = starting {
                report.at(progress.bytes_done, progress.bytes_total);
            }
        });
        let engine = started.map_err(|error| error.to_string())?;
        Ok(Arc::new(engine))
    }
}

/// The hub's name of what a client asks for: no path of this machine, and not the built-in model.
fn of_the_hub(name: &str) -> Result<String, ApiError> {
    let plain = "a model is named by a short name, or by ORG/NAME of the hub, with :QUANT for one GGUF file.";
    let meant = hub::canonical(name, &environment::variables().hub).map_err(|error| not_stored(&error))?;
    match models::is_hub_id(repository(&meant)) && !Path::new(&meant).exists() {
        true => Ok(meant),
        false => Err(ApiError::bad_request(plain).with_param("model")),
    }
}

/// `org/name` of `org/name[@revision][:QUANT]`.
fn repository(name: &str) -> &str {
    name.split(['@', ':']).next().unwrap_or_default()
}

/// Why a model was not downloaded or removed, without paths of this machine.
fn not_stored(error: &HubError) -> ApiError {
    let gone = "there is no such model on the hub, or it is private.";
    match error {
        HubError::NoModel { .. } | HubError::NoRevision { .. } => ApiError::no_such_model(gone.to_owned()),
        HubError::NotCached { .. } => ApiError::no_such_model("it is not on the disk of this server.".to_owned()),
        HubError::UnknownName { .. } => ApiError::no_such_model(format!("{error}.")),
        HubError::NoQuant { .. } | HubError::NotAModel { .. } | HubError::Refused { .. } => {
            ApiError::bad_request(format!("{error}.")).with_param("model")
        }
        HubError::NoRoom { bytes: needs, free, .. } => {
            let [needs, free] = [needs, free].map(|count| bytes(*count));
            ApiError::no_room_on_disk(format!("the disk of this server has {free} free, and the model needs {needs}."))
        }
        HubError::DiskFull { .. } => ApiError::no_room_on_disk("the disk of this server is full.".to_owned()),
        HubError::Offline { .. } => ApiError::machine_busy("this server is offline (HF_HUB_OFFLINE)."),
        error => {
            tracing::warn!(%error, "a model was not downloaded or removed");
            ApiError::machine_busy("the download failed, or the removal: ask again.")
        }
    }
}

/// Bytes of a model's files, and when the newest was written: seconds since 1970.
fn on_disk(checkpoint: &Checkpoint) -> (u64, u64) {
    let Some(path) = checkpoint.path() else { return (0, 0) };
    let files = std::fs::read_dir(path).map_or_else(
        |_| vec![path.to_path_buf()],
        |entries| entries.take(1000).flatten().map(|entry| entry.path()).collect(),
    );
    let details = files.iter().filter_map(|file| std::fs::metadata(file).ok()).filter(std::fs::Metadata::is_file);
    details.fold((0, 0), |(bytes, newest), file| {
        let changed =
            file.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok()).map_or(0, |at| at.as_secs());
        (bytes + file.len(), newest.max(changed))
    })
}
