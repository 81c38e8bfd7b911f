//! `twostroke serve`: an engine behind the OpenAI API, and perhaps several, until a signal says drain.

mod catalog;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

use checkpoint::Checkpoint;
use engine::{Engine, HandoffOptions, ModelInfo, Role, Serve, Speculation, Turns};
use kernels::WeightClass;
use kernels::limits::Limits;
use kv_events::Publisher;
use launch::{Calibrate, Chosen, Settings};
use model::GenerationSettings;
use protocol::{Nanos, Targets};
use scheduler::StateSizes;
use serde_json::{Value, json};
use server::{Address, ApiKey, ParserOptions, ServeError, Server, ServerOptions, SlowOptions, TlsFiles};
use text::chat_template::TemplateSettings;

use crate::console::{note, put_line};
use crate::failure::Failure;
use crate::figures::{self, bytes, operations, peak};
use crate::flags::{Beyond, KvEvents, ModelEntry, ServeFlags, Speculate};
use crate::log::Lines;
use crate::signals;
use crate::{environment, keys, models, narrower, notify};

/// Threads that move bytes between sockets and the engine. The cores belong to the kernels; these mostly sleep.
const IO_THREADS: usize = 2;
/// Time for the end of a recording to reach the disk, and for that of the log to be read.
const LAST_LINES: Duration = Duration::from_secs(5);

pub(crate) fn serve(flags: &ServeFlags) -> Result<(), Failure> {
    notify::start();
    let api_keys = keys::of(flags)?;
    let token = if flags.allow_pause { Some(hold_token()?) } else { None };
    let asks_for_keys = !api_keys.is_empty();
    let free = engine::available_memory().unwrap_or(u64::MAX / 2);
    let Started { engine, settings, limits, lines, kv_events } = start(flags, api_keys.len() > 1)?;
    // A cache that is not written to yet looks free.
    let room = free.saturating_sub((engine.model().weight_bytes + engine.model().kv_bytes) as u64);
    let options = server_options(flags, api_keys, &token);
    let own = [engine.model().name.clone()];
    let first = if options.served_model_names.is_empty() { &own[..] } else { &options.served_model_names };
    let others = catalog::others(flags, &settings, first, room)?;
    let runtime = signals::runtime(IO_THREADS)?;
    runtime.block_on(async {
        let stop = signals::stop()?;
        let server = Server::bind_with(engine.clone(), others, options).await.map_err(refused)?;
        let address = Found { address: server.address().clone(), token, asks_for_keys, kv_events };
        announce(flags, &settings, (&engine, &limits), &address);
        lines.iter().for_each(|line| note(line));
        notify::ready(&engine.model().name, &address.address.to_string());
        tokio::spawn(notify::watch(engine.clone(), stop.clone(), Duration::from_secs(flags.drain_timeout)));
        server.run(stop).await;
        finish(&engine);
        Lines::finish(LAST_LINES);
        Ok(())
    })
}

/// An engine, and what was settled on the way to it.
pub(crate) struct Started {
    pub(crate) engine: Engine,
    settings: Settings,
    limits: Limits,
    /// What a person should know about its weights.
    lines: Vec<String>,
    /// Where KV events are published.
    pub(crate) kv_events: Vec<String>,
}

/// Starts what is to serve. `is_shared`: several tenants will come.
pub(crate) fn start(flags: &ServeFlags, is_shared: bool) -> Result<Started, Failure> {
    let name = named(flags)?;
    let name = name.as_deref();
    let checkpoint = models::open_fitting(name, flags.force)?;
    // Before the engine: nothing else runs yet, and the memory it reads is free again afterwards.
    if flags.recalibrate {
        figures::forget_limits(&flags.model);
    }
    let limits = figures::limits_of(&flags.model)?;
    let chosen = weights(flags, &checkpoint)?;
    let lines = match flags.json {
        true => Vec::new(),
        false => narrower::start_lines(&flags.model, name, &checkpoint, chosen, Some(limits)),
    };
    // Before the engine too: a port that is taken is reported at once.
    let publisher = kv_events(flags)?;
    let (listener, events) = channel();
    let cache_listener = publisher.is_some().then_some(listener);
    let kv_events = publisher.as_ref().map_or_else(Vec::new, |publisher| publisher.bound().to_vec());
    let turns = if catalog::wants_several(flags)? { Turns::shared() } else { Turns::default() };
    let settings = Settings { limits: Some(limits), cache_listener, turns, ..settings(flags, is_shared)? };
    let engine = models::start(&checkpoint, &settings, chosen)?;
    if let Some(publisher) = publisher {
        publisher.spawn(events).map_err(|error| Failure::failed(format!("--kv-events-config: {error}")))?;
    }
    Ok(Started { engine, settings, limits, lines, kv_events })
}

/// What `--weights` asks for, or else the role of a worker of a pair of precisions.
fn weights(flags: &ServeFlags, checkpoint: &Checkpoint) -> Result<Chosen, Failure> {
    let of_role = flags.handoff_precision.and_then(|pair| pair.of(flags.role));
    match of_role.filter(|_| flags.model.weights.class().is_none()) {
        Some(class) => Ok(Chosen { class, as_stored: false, why: None }),
        None => models::weights(&flags.model, checkpoint),
    }
}

/// The sockets of KV events, where they are wanted.
fn kv_events(flags: &ServeFlags) -> Result<Option<Publisher>, Failure> {
    let Some(KvEvents(Some(settings))) = &flags.kv_events_config else { return Ok(None) };
    if flags.no_enable_prefix_caching {
        return Err(Failure::usage("--kv-events-config: events are of the prefix cache, which is off"));
    }
    let bound = Publisher::bind(settings.clone());
    bound.map(Some).map_err(|error| Failure::failed(format!("--kv-events-config: {error}")))
}

/// The last words of an engine that has stopped.
pub(crate) fn finish(engine: &Engine) {
    engine.finish_recording(LAST_LINES);
    engine.keep_costs();
}

/// A name, a key or an address that is wrong is the user's; a port that is taken is the machine's.
fn refused(error: ServeError) -> Failure {
    match error {
        ServeError::Bind { .. } | ServeError::Unix { .. } | ServeError::Store { .. } | ServeError::Batches { .. } => {
            Failure::failed(error)
        }
        _ => Failure::usage(error),
    }
}

/// The token that pauses the engine, until this process ends: 128 unpredictable bits.
fn hold_token() -> Result<String, Failure> {
    Ok(environment::random_bytes()?[..16].iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Where the server is found, and by which clients.
struct Found {
    address: Address,
    token: Option<String>,
    /// Whether requests need a key.
    asks_for_keys: bool,
    /// Where KV events are published, and earlier ones replayed.
    kv_events: Vec<String>,
}

impl Found {
    /// The page with the token that holds the engine, for those who may. The token is in the fragment, which a browser
    /// never sends.
    fn page(&self) -> Option<String> {
        self.token.as_ref().map(|token| format!("{}/#/step?hold={token}", self.address))
    }
}

/// Steps are measured, and their size is left to targets unless the flags name one.
fn settings(flags: &ServeFlags, is_shared: bool) -> Result<Settings, Failure> {
    let mut common = models::settings(&flags.model);
    common.model.standby = flags.standby.is_some();
    let handoff = handoff(flags)?;
    let chance = u64::from_le_bytes(environment::random_bytes()?[..8].try_into().expect("8 of 32 bytes"));
    Ok(Settings {
        max_model_len: flags.max_model_len.or(first_entry(flags).and_then(|entry| entry.max_model_len)),
        max_num_seqs: flags.max_num_seqs,
        max_num_batched_tokens: flags.max_num_batched_tokens,
        max_prefill_chunk: Some(flags.max_prefill_chunk).filter(|&rows| rows > 0),
        max_prefill_seqs: flags.max_num_partial_prefills,
        kv_cache_bytes: flags.kv_cache_memory_bytes,
        block_size: flags.block_size,
        enable_prefix_caching: !flags.no_enable_prefix_caching,
        kv_swap_bytes: flags.kv_swap_memory,
        kv_swap_disk: flags.kv_swap_disk.clone(),
        max_queued_requests: flags.max_queued_requests,
        max_queued_tokens: flags.max_queued_tokens,
        is_shared,
        calibrate: if flags.recalibrate { Calibrate::Again } else { Calibrate::Kept },
        ttft: flags.ttft_slo.or(first_entry(flags).and_then(|entry| entry.ttft_slo).map(|target| target.0)),
        tpot: flags.tpot_slo.or(first_entry(flags).and_then(|entry| entry.tpot_slo).map(|target| target.0)),
        refuse_late: flags.refuse_late,
        speculation: speculation(flags)?,
        adapters: flags.lora_modules.iter().map(|module| (module.name.clone(), module.path.clone())).collect(),
        max_adapters: flags.max_loras,
        max_adapter_rank: flags.max_lora_rank,
        runtime_adapters: flags.allow_runtime_lora,
        spot_check: flags.spot_check,
        record: flags.record.clone(),
        seed: flags.seed.unwrap_or(chance),
        // Workers of a cluster call the same prefix by the same name.
        hash_key: match &handoff {
            Some(handoff) => handoff.key.derive("names of prefixes"),
            None => environment::random_bytes()?,
        },
        handoff,
        template: TemplateSettings {
            source: flags.chat_template.clone(),
            kwargs: flags.default_chat_template_kwargs.clone().unwrap_or_default(),
            ..common.template
        },
        generation: GenerationSettings {
            base: flags.generation_config.clone(),
            overrides: flags.override_generation_config.clone().unwrap_or_default(),
        },
        ..common
    })
}

/// Whether and how it takes part where one worker reads prompts and another answers.
fn handoff(flags: &ServeFlags) -> Result<Option<HandoffOptions>, Failure> {
    let Some(path) = &flags.cluster_key else {
        return match flags.role {
            Role::Prefill => Err(Failure::usage("--role: prefill needs --handoff-listen and --cluster-key")),
            Role::Decode => {
                let why = "--role: decode has prompts read by others: --cluster-key, and --prefill-workers with their \
                           addresses unless a router tells them with each request";
                Err(Failure::usage(why))
            }
            Role::Both => Ok(None),
        };
    };
    if flags.role != Role::Decode && flags.handoff_listen.is_none() && flags.prefill_workers.is_empty() {
        return Err(Failure::usage(
            "--cluster-key: it is for --handoff-listen or --prefill-workers, and there is neither",
        ));
    }
    Ok(Some(HandoffOptions {
        role: flags.role,
        role_may_change: flags.allow_role_change,
        listen: flags.handoff_listen,
        prefill_workers: flags.prefill_workers.clone(),
        key: keys::of_cluster(path)?,
        precisions: flags.handoff_precision,
    }))
}

/// The model that is asked for, as it is; of several the first.
fn name(flags: &ServeFlags) -> Option<&str> {
    let named = flags.models.first().or(flags.model.model.as_ref());
    named.or_else(|| Some(&flags.entries.first()?.model)).map(String::as_str)
}

/// What is the first model's own, where it stands in a list.
fn first_entry(flags: &ServeFlags) -> Option<&ModelEntry> {
    flags.entries.first()
}

/// The same at the revision that is asked for.
fn named(flags: &ServeFlags) -> Result<Option<String>, Failure> {
    match (name(flags), &flags.revision) {
        (name, None) => Ok(name.map(str::to_owned)),
        (Some(name), Some(revision)) if models::is_hub_id(name) && !name.contains('@') => {
            Ok(Some(format!("{name}@{revision}")))
        }
        _ => Err(Failure::usage("--revision: it is of a hub id without one, -m ORG/NAME")),
    }
}

/// What drafts for a model beside the first: what needs no files.
fn plain_speculation(flags: &ServeFlags) -> Speculation {
    match flags.speculate {
        Speculate::Auto => Speculation::auto(),
        Speculate::Off => Speculation::Off,
    }
}

/// What drafts: the one flag, or the other. The files of a drafter are here afterwards.
fn speculation(flags: &ServeFlags) -> Result<Speculation, Failure> {
    let mut asked = match (&flags.speculative_config, flags.speculate) {
        (Some(asked), _) => asked.clone(),
        (None, Speculate::Auto) => Speculation::auto(),
        (None, Speculate::Off) => Speculation::Off,
    };
    if let Speculation::By(drafters) = &mut asked
        && let Some(name) = drafters.learned.as_mut().and_then(|learned| learned.model.as_mut())
        && !Path::new(name.as_str()).exists()
    {
        *name = models::path_for("--speculative-config: model", name, false)?;
    }
    Ok(asked)
}

/// What the first model is to be called.
fn names_asked(flags: &ServeFlags) -> &[String] {
    match first_entry(flags) {
        Some(entry) if flags.served_model_name.is_empty() => &entry.name,
        _ => &flags.served_model_name,
    }
}

fn server_options(flags: &ServeFlags, api_keys: Vec<ApiKey>, hold_token: &Option<String>) -> ServerOptions {
    ServerOptions {
        host: flags.host.clone(),
        port: flags.port,
        unix_socket: flags.uds.clone(),
        tls: flags
            .ssl_certfile
            .clone()
            .zip(flags.ssl_keyfile.clone())
            .map(|(certificates, key)| TlsFiles { certificates, key }),
        root_path: flags.root_path.clone(),
        api_keys,
        allowed_hosts: flags.allowed_host.clone(),
        allowed_origins: flags.allowed_origin.clone(),
        served_model_names: models::names_for_clients(names_asked(flags), name(flags)),
        cut_max_tokens: flags.max_tokens_beyond == Beyond::Cut,
        max_logprobs: flags.max_logprobs,
        trust_request_chat_template: flags.trust_request_chat_template,
        store_directory: flags.store.clone(),
        runtime_adapters: flags.allow_runtime_lora,
        batch_directory: flags.batch_dir.clone(),
        drain_limit: Duration::from_secs(flags.drain_timeout),
        ui: !flags.no_ui,
        hold_token: hold_token.clone(),
        otel: environment::otel(),
        slow: SlowOptions { ttft: flags.slow_ttft, gap: flags.slow_gap },
        parsers: ParserOptions {
            tool_call_parser: flags.tool_call_parser.clone(),
            reasoning_parser: flags.reasoning_parser.clone(),
        },
        ..ServerOptions::default()
    }
}

/// Seven lines (eight with the link that may hold the engine), or one JSON object, and the notes. A
/// server whose output is closed still serves.
fn announce(flags: &ServeFlags, settings: &Settings, (engine, limits): (&Engine, &Limits), found: &Found) {
    let model = engine.model();
    let text = match flags.json {
        true => start_json(settings, model, limits, found, engine.handoff_address()).to_string(),
        false => start_lines(settings, model, limits, found),
    };
    let _ = put_line(&text);
    let adapters: Vec<String> = model.adapters.list().into_iter().map(|adapter| adapter.name).collect();
    if model.adapters.most() > 0 {
        let names = match (adapters.is_empty(), flags.allow_runtime_lora) {
            (true, true) => "none yet".to_owned(),
            (true, false) => "none, and none can come (--lora-modules, --allow-runtime-lora)".to_owned(),
            _ => adapters.join(", "),
        };
        note(&format!("adapters: {names}; room for {} of rank {}", model.adapters.most(), settings.max_adapter_rank));
    }
    if let Some(address) = engine.handoff_address() {
        note(&format!("handoffs: prompts are read for other workers at {address}"));
    }
    if !flags.prefill_workers.is_empty() {
        note(&format!("handoffs: long prompts are read by {}", flags.prefill_workers.join(", ")));
    } else if engine.has_remote_prefill() {
        note("handoffs: prompts are read by the workers that requests name (kv_transfer_params)");
    }
    if let [events, replays @ ..] = &found.kv_events[..] {
        let again = replays.first().map_or_else(String::new, |at| format!(", earlier ones again at {at}"));
        note(&format!("kv events: told at {events}{again}"));
    }
    for notice in &model.notices {
        note(&format!("note: {notice}"));
    }
    if let Some(socket) = found.address.socket()
        && !socket.ip().is_loopback()
        && !found.asks_for_keys
    {
        note(&format!("warning: {socket} is open to the network and asks for no key; set --api-key"));
    }
}

fn start_lines(settings: &Settings, model: &ModelInfo, limits: &Limits, found: &Found) -> String {
    let tokens = model.num_blocks * model.block_size;
    let weights = model.weights.name();
    let peak = match model.weights {
        WeightClass::Bf16 => operations(peak(limits, model.weights), "FLOP") + " bf16",
        WeightClass::Int8 | WeightClass::Int4 => operations(peak(limits, model.weights), "OP") + " int8",
    };
    let (family, layers) = (model.config.family, model.config.num_layers);
    // A configured limit is worth a word; that a machine's memory ends is not.
    let bound = model.memory_limit.as_ref().filter(|limit| limit.bytes().is_some());
    let bound = bound.map_or_else(String::new, |limit| format!(" ({limit})"));
    let mut lines = vec![
        ("model", format!("{} ({family}, {layers} layers), context {} tokens", model.name, model.max_model_len)),
        (
            "precision",
            format!(
                "{weights} weights, {} KV cache, {} arithmetic; {} kernels, {} threads",
                model.kv_dtype.name(),
                model.arithmetic.name(),
                model.device.kernels,
                model.device.threads
            ),
        ),
        (
            "memory",
            format!("{} weights + {} KV cache{bound}", bytes(model.weight_bytes as u64), bytes(model.kv_bytes as u64)),
        ),
        (
            "kv blocks",
            format!(
                "{} of {} tokens, {} each: {tokens} tokens of {}",
                model.num_blocks,
                model.block_size,
                exact_bytes((model.kv_bytes_per_token * model.block_size) as u64),
                exact_bytes(model.kv_bytes_per_token as u64)
            ),
        ),
        (
            "limits",
            format!(
                "{} (decode), {peak} (prefill){}",
                figures::read_limit(limits, model.weight_bytes),
                figures::not_sure(limits.doubt())
            ),
        ),
        ("targets", targets_line(settings, model)),
        ("serving", format!("{}/v1", found.address)),
    ];
    if let Some(states) = model.states {
        let place = lines.iter().position(|(name, _)| *name == "limits").unwrap_or(lines.len());
        lines.insert(place, ("states", states_line(model, states)));
    }
    lines.extend(found.page().map(|page| ("page", page)));
    lines.iter().map(|(name, value)| format!("{name:<10} {value}")).collect::<Vec<_>>().join("\n")
}

/// What the layers that keep no keys and values remember instead.
fn states_line(model: &ModelInfo, states: StateSizes) -> String {
    let each = 4 * model.config.state_numbers() as u64;
    format!(
        "{} of {} each: two for each of {} sequences, and for prefixes one each {} tokens",
        bytes(each * states.slots as u64),
        exact_bytes(each),
        model.max_num_seqs,
        states.interval
    )
}

/// As [`bytes`], to the tenth below 100: `2.5 KiB` is no 2 KiB where there are hundreds of thousands of them.
pub(crate) fn exact_bytes(count: u64) -> String {
    let (value, unit) = match count {
        0..1024 => return format!("{count} B"),
        1024..1_048_576 => (count as f64 / 1024.0, "KiB"),
        _ => (count as f64 / 1_048_576.0, "MiB"),
    };
    let text = if value < 100.0 { format!("{value:.1}") } else { format!("{value:.0}") };
    format!("{} {unit}", text.strip_suffix(".0").unwrap_or(&text))
}

/// `first token within 1 s, then one each 50 ms; steps measured in 0.4 s`.
fn targets_line(settings: &Settings, model: &ModelInfo) -> String {
    let Targets { ttft, tpot } = model.targets;
    let wanted = match (ttft.map(time), tpot.map(time)) {
        (Some(ttft), Some(tpot)) => format!("first token within {ttft}, then one each {tpot}"),
        (Some(ttft), None) => format!("first token within {ttft}"),
        (None, Some(tpot)) => format!("a token each {tpot}"),
        (None, None) if settings.has_fixed_steps() => "none: steps of a fixed size".to_string(),
        (None, None) => "none".to_string(),
    };
    let calibrated = match &model.calibrated {
        None if model.config.encoder.is_some() => {
            "steps not measured: texts are read whole, first come, first served".to_string()
        }
        None => "steps not measured: too little cache".to_string(),
        Some(calibrated) if calibrated.from_disk => "steps measured at an earlier start".to_string(),
        Some(calibrated) => format!("steps measured in {:.1} s", calibrated.took.as_secs_f64()),
    };
    let doubt = model.calibrated.as_ref().and_then(|calibrated| calibrated.doubt);
    format!("{wanted}; {calibrated}{}", figures::not_sure(doubt))
}

/// A target as people say it: `50 ms`, `1.5 s`.
fn time(target: Nanos) -> String {
    match target.as_secs_f64() {
        seconds if seconds < 1.0 => format!("{} ms", seconds * 1e3),
        seconds => format!("{seconds} s"),
    }
}

fn start_json(
    settings: &Settings,
    model: &ModelInfo,
    limits: &Limits,
    found: &Found,
    handoff: Option<SocketAddr>,
) -> Value {
    json!({
        "model": model.name,
        "max_model_len": model.max_model_len,
        "backend": model.backend,
        "threads": model.device.threads,
        "weight_bytes": model.weight_bytes,
        "kv_dtype": model.kv_dtype.name(),
        "arithmetic": model.arithmetic.name(),
        "kv_bytes": model.kv_bytes,
        "memory_limit": figures::memory_limit_json(model.memory_limit.as_ref()),
        "kv_blocks": model.num_blocks,
        "block_size": model.block_size,
        "limits": figures::limits_json(limits),
        "ttft_slo_ms": model.targets.ttft.map(|target| target.as_secs_f64() * 1e3),
        "tpot_slo_ms": model.targets.tpot.map(|target| target.as_secs_f64() * 1e3),
        "static_steps": settings.has_fixed_steps(),
        "calibration": model.calibrated.as_ref().map(|calibrated| json!({
            "seconds": calibrated.took.as_secs_f64(),
            "from_disk": calibrated.from_disk,
            "not_sure": calibrated.doubt.map(|doubt| doubt.to_string()),
        })),
        "url": format!("{}/v1", found.address),
        "port": found.address.socket().map(|socket| socket.port()),
        "page": found.page(),
        "hold_token": found.token,
        "handoff": handoff.map(|address| address.to_string()),
        "kv_events": found.kv_events,
    })
}
