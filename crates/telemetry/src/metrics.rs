//! `/metrics` in Prometheus' text format, version 0.0.4, or in OpenMetrics 1.0 for who asks for that, with exemplars:
//! beside a bucket of a time to first token or of a gap stands a request that is in it, so that a board leads from a
//! spike to a timeline.
//!
//! Every number is read off the engine's step log at the moment of the scrape; nothing is counted twice. Each comes
//! under our own name, and under vLLM's where it means the same there, so that existing dashboards work. Labels have
//! fixed sets of values: nothing that a client sends becomes one, but for names of adapters, which the operator
//! loads or lets clients load.

mod deprecated;

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use engine::ledger::Owner;
use engine::{
    AdapterInfo, Adapters, DeviceLimits, Exemplar, HandoffOutcome, Handoffs, Histogram, Observe, PhaseWork,
    Predictions, Role, ServiceClass, SpotChecked, Stats,
};
use protocol::{Nanos, Targets};
use roofline::{Demands, LimitShares};
use scheduler::{BoundKind, MissReason, NoDraftReason, StateUse};
use serde_json::{Value, json};

/// What the threads that prepare requests have done since the start.
#[derive(Default)]
pub struct PrepareStats {
    /// Jobs that wait, rest or work.
    pub jobs: usize,
    pub working: Duration,
    /// From the last byte of a body to the first turn.
    pub waiting: Duration,
}

/// What the HTTP side counts itself.
#[derive(Default)]
pub struct HttpMetrics {
    answers: Mutex<BTreeMap<(&'static str, u16), u64>>,
    pub connections: Arc<AtomicUsize>,
    pub thoughts: Arc<ThoughtTimes>,
}

/// How long was thought, of requests that are over.
pub struct ThoughtTimes(Mutex<[Histogram; 2]>);

impl Default for ThoughtTimes {
    fn default() -> ThoughtTimes {
        ThoughtTimes(Mutex::new([Histogram::of_latencies(), Histogram::of_latencies()]))
    }
}

impl ThoughtTimes {
    /// Of a request: how long, and when there was something to see, if there was.
    pub fn observe(&self, time: Nanos, visible: Option<Nanos>) {
        let mut both = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        both[0].observe(time.as_secs_f64());
        if let Some(visible) = visible {
            both[1].observe(visible.as_secs_f64());
        }
    }

    fn write(&self, page: &mut Page<'_>) {
        let both = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let help = "First token to the first that is no thought, of requests that thought.";
        page.histogram("twostroke_thinking_seconds", "", help, &both[0]);
        let help = "Arrival to the first token that is no thought, of requests that thought.";
        page.histogram("twostroke_time_to_first_visible_token_seconds", "", help, &both[1]);
    }
}

impl HttpMetrics {
    /// Counts an answer by route and status, both from fixed lists.
    pub fn answered(&self, route: &'static str, status: u16) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        *answers.entry((route, status)).or_default() += 1;
    }
}

/// How a page is written.
#[derive(Clone, Copy)]
pub enum Exposition<'a> {
    /// Prometheus' text format.
    Text,
    /// OpenMetrics, with what a reader may know of a request: its name, and the second since 1970 of the observation.
    OpenMetrics(&'a dyn Fn(&Exemplar) -> (String, f64)),
}

impl Exposition<'_> {
    /// Whether a reader that sends these wants OpenMetrics: Prometheus does.
    pub fn is_open_metrics(accept: &str) -> bool {
        accept.split(',').any(|kind| {
            let mut parts = kind.split(';').map(str::trim);
            let is_it = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("application/openmetrics-text"));
            is_it && parts.all(|part| part.split_once('=').is_none_or(|(name, q)| name != "q" || q.parse() != Ok(0.0)))
        })
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Exposition::Text => "text/plain; version=0.0.4; charset=utf-8",
            Exposition::OpenMetrics(_) => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// How the KV cache is laid out.
#[derive(Clone, Copy, Default)]
pub struct CacheConfig {
    pub block_size: usize,
    pub blocks: usize,
    pub dtype: &'static str,
    pub swap_blocks: usize,
}

/// What the page is made of.
pub struct Sources<'a> {
    pub stats: &'a Stats,
    pub http: &'a HttpMetrics,
    pub text: &'a PrepareStats,
    pub model: &'a str,
    /// vLLM's labels of its cache.
    pub cache: CacheConfig,
    pub targets: Targets,
    /// What the machine can do at most, if that is known, with this model.
    pub limits: Option<&'a DeviceLimits>,
    pub demands: &'a Demands,
    pub now: Nanos,
    pub adapters: &'a Adapters,
    pub unix_seconds: u64,
}

pub fn render(sources: &Sources<'_>, exposition: Exposition<'_>) -> String {
    let &Sources { stats, http, text, model, targets, .. } = sources;
    let labels = format!("model_name=\"{}\"", escaped(model));
    let mut page = Page { text: String::with_capacity(32 << 10), labels, exposition };
    gauges(&mut page, stats);
    cache(&mut page, sources.cache);
    outlook(&mut page, stats);
    // What is late: a board's red lines. A server without targets has none.
    for (name, help, target) in [
        ("target_ttft_seconds", "Time to first token that this server aims for.", targets.ttft),
        ("target_tpot_seconds", "Time per output token that this server aims for.", targets.tpot),
    ] {
        if let Some(target) = target {
            page.own(name, "gauge", help, target.as_secs_f64());
        }
    }
    adapters(&mut page, sources);
    promises(&mut page, stats);
    counters(&mut page, stats);
    work(&mut page, sources);
    histograms(&mut page, stats);
    http.thoughts.write(&mut page);
    page.single("twostroke_http_connections", "gauge", "Open connections.", http.connections.load(Ordering::Relaxed));
    page.own("prepare_jobs", "gauge", "Bodies that are parsed, rendered and tokenized, or wait for it.", text.jobs);
    let help = "Time spent parsing, rendering and tokenizing bodies.";
    page.own("prepare_seconds_total", "counter", help, text.working.as_secs_f64());
    let help = "Time that bodies waited in the queue of that work.";
    page.own("prepare_queue_seconds_total", "counter", help, text.waiting.as_secs_f64());
    page.family("twostroke_http_requests_total", "counter", "Requests answered, by route and status.");
    for ((route, status), count) in http.answers.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        page.sample("twostroke_http_requests_total", &format!("route=\"{route}\",status=\"{status}\""), count);
    }
    deprecated::write(&mut page);
    if let Exposition::OpenMetrics(_) = exposition {
        page.text.push_str("# EOF\n");
    }
    page.text
}

fn gauges(page: &mut Page<'_>, stats: &Stats) {
    let used = if stats.total_blocks == 0 { 0.0 } else { stats.used_blocks as f64 / stats.total_blocks as f64 };
    page.both(
        "requests_running",
        "num_requests_running",
        "gauge",
        "Requests in the running batch.",
        stats.running_requests,
    );
    page.both(
        "requests_waiting",
        "num_requests_waiting",
        "gauge",
        "Requests waiting for their first step.",
        stats.waiting_requests,
    );
    let labels = page.vllm_labels();
    let name = "vllm:num_requests_waiting_by_reason";
    page.family(name, "gauge", "Requests waiting for their first step, by reason: here always for their turn.");
    for (reason, waiting) in [("capacity", stats.waiting_requests), ("deferred", 0)] {
        page.sample(name, &format!("{labels},reason=\"{reason}\""), waiting);
    }
    page.own("tokens_waiting", "gauge", "Prompt tokens waiting for their first step.", stats.waiting_tokens);
    page.own(
        "oldest_waiting_seconds",
        "gauge",
        "Age of the request that has waited longest for its first token; 0 if none waits.",
        stats.oldest_waiting_seconds,
    );
    page.own("kv_blocks_used", "gauge", "KV blocks held by requests.", stats.used_blocks);
    page.own("kv_blocks", "gauge", "KV blocks of the cache.", stats.total_blocks);
    if let Some((sizes, states)) = stats.states {
        let StateUse { slots, held, idle, kept, given_up } = states;
        let uses = [("held", held), ("checkpoint", idle), ("free", slots - held - idle)];
        let help = "Slots for the states of layers that have one: held by requests, kept for prompts to come, or free.";
        page.by("state_slots", "gauge", help, "use", uses);
        let help = "Tokens between the states that are kept of a long prompt.";
        page.own("state_checkpoint_interval_tokens", "gauge", help, sizes.interval);
        page.own("state_checkpoints_total", "counter", "States kept at the ends of KV blocks.", kept);
        page.own("state_checkpoints_given_up_total", "counter", "States given up for those of requests.", given_up);
    }
    page.both(
        "kv_cache_usage_ratio",
        "kv_cache_usage_perc",
        "gauge",
        "Share of the KV blocks held by requests, 0 to 1.",
        used,
    );
}

/// What autoscalers read of vLLM: its blocks are our blocks, on whatever device they are.
fn cache(page: &mut Page<'_>, cache: CacheConfig) {
    let name = "vllm:cache_config_info";
    page.family(name, "gauge", "How the KV cache is laid out.");
    let labels = format!(
        "{},block_size=\"{}\",cache_dtype=\"{}\",num_gpu_blocks=\"{}\",num_cpu_blocks=\"{}\"",
        page.vllm_labels(),
        cache.block_size,
        cache.dtype,
        cache.blocks,
        cache.swap_blocks
    );
    page.sample(name, &labels, 1);
}

/// What to scale on, and what the engine knows about its own speed.
fn outlook(page: &mut Page<'_>, stats: &Stats) {
    page.own(
        "prefill_backlog_seconds",
        "gauge",
        "Predicted time of all waiting and unfinished prompt tokens.",
        stats.prefill_backlog_seconds,
    );
    let help = "Requests past their TTFT target without a first token.";
    page.own("late_prompts", "gauge", help, stats.late_prompts);
    let help = "Age of the oldest late prompt; 0 without any.";
    page.own("late_prompt_age_seconds", "gauge", help, stats.oldest_late_seconds);
    let to_full = Prometheus(stats.kv_seconds_to_full);
    let help = "Seconds until every KV block is in use at the growth of the last seconds; +Inf if it does not grow.";
    page.own("kv_seconds_to_full", "gauge", help, to_full);
    if let Some(share) = stats.cache_saved_of_optimum {
        let help = "Of the time that a prefix cache that knows what comes would have saved of the last 256 prompts, the share saved.";
        page.own("cache_saved_of_optimum_ratio", "gauge", help, share);
    }
    let name = "twostroke_step_prediction_error_ratio";
    page.family(name, "histogram", "|predicted - measured| / measured time of a step, by what it carried.");
    for (phase, predictions) in PHASES.iter().zip(&stats.predictions) {
        page.buckets(name, &format!("phase=\"{phase}\""), &predictions.error);
    }
    type Of = fn(&Predictions) -> f64;
    let seconds: [(&str, &str, Of); 3] = [
        (
            "disturbed_steps_total",
            "Steps whose prediction is not judged, because the machine ran other programs meanwhile.",
            |p| p.disturbed as f64,
        ),
        ("step_predicted_seconds_total", "Predicted time of steps.", |p| p.predicted_seconds),
        ("step_measured_seconds_total", "Measured time of the same steps.", |p| p.measured_seconds),
    ];
    for (name, help, of) in seconds {
        page.by(name, "counter", help, "phase", PHASES.iter().zip(stats.predictions.iter().map(of)));
    }
    let name = "twostroke_slo_requests_total";
    page.family(name, "counter", "Requests that ended and had targets, by class, target and outcome; 'all': goodput.");
    for (class, counts) in ServiceClass::ALL.iter().zip(stats.targets_met.iter().zip(&stats.targets_missed)) {
        for (index, slo) in ["ttft", "tpot", "all"].iter().enumerate() {
            for (outcome, count) in [("met", counts.0[index]), ("missed", counts.1[index])] {
                let labels = format!("class=\"{}\",slo=\"{slo}\",outcome=\"{outcome}\"", class.name());
                page.sample(name, &labels, count);
            }
        }
    }
}

/// vLLM's one line about adapters: names in labels, and the time as the value. Only where there may be some.
fn adapters(page: &mut Page<'_>, sources: &Sources<'_>) {
    if sources.adapters.most() == 0 {
        return;
    }
    let list = sources.adapters.list();
    let names = |of: fn(&AdapterInfo) -> usize| {
        let used = list.iter().filter(|adapter| of(adapter) > 0).map(|adapter| escaped(&adapter.name).to_string());
        used.collect::<Vec<_>>().join(",")
    };
    let labels = format!(
        "max_lora=\"{}\",waiting_lora_adapters=\"{}\",running_lora_adapters=\"{}\"",
        sources.adapters.most(),
        names(|adapter| adapter.waiting),
        names(|adapter| adapter.running)
    );
    page.family("vllm:lora_requests_info", "gauge", "Adapters that requests run and wait with; the time as its value.");
    page.sample("vllm:lora_requests_info", &labels, sources.unix_seconds);
    page.own("lora_adapters", "gauge", "Adapters that are loaded.", list.len());
}

/// What was promised when requests came, and what became of it.
fn promises(page: &mut Page, stats: &Stats) {
    let name = "twostroke_latency_bounds_total";
    page.family(name, "counter", "Latency bounds (95 %), by kind (first token, whole answer) and outcome.");
    for (kind, promises) in BoundKind::ALL.iter().zip(&stats.promises) {
        for (outcome, count) in [("kept", promises.kept), ("broken", promises.broken)] {
            page.sample(name, &format!("kind=\"{}\",outcome=\"{outcome}\"", kind.name()), count);
        }
    }
    let kinds = BoundKind::ALL.iter().zip(&stats.promises);
    let shares = kinds.map(|(kind, promises)| (kind.name(), Prometheus(promises.rolling.unwrap_or(f64::NAN))));
    let help = "Share of the last 200 latency bounds that held; NaN before the first.";
    page.by("latency_bound_coverage", "gauge", help, "kind", shares);
    let help = "Requests rejected because their predicted TTFT (p95) misses the target.";
    page.own("rejected_late_total", "counter", help, stats.refused_late);
    let help = "Requests admitted past that bound to measure it.";
    page.own("admission_probes_total", "counter", help, stats.probes);
}

/// What a step may carry, in the order of [`Stats::predictions`].
const PHASES: [&str; 3] = ["decode", "prefill", "mixed"];

/// Pages of several models as one: each family once. Samples of the first are as they are alone, so that no series changes
/// its name when another model comes; those of the others have the names of theirs. Families of the HTTP side are those of
/// the first.
pub fn merged(pages: &[(String, String)]) -> String {
    let mut families: Vec<(String, Vec<String>)> = Vec::new();
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for (at, (model, page)) in pages.iter().enumerate() {
        let label = format!("model_name=\"{}\"", escaped(model));
        let mut place = None;
        for line in page.lines().filter(|line| *line != "# EOF") {
            if let Some(head) = line.strip_prefix("# HELP ") {
                let name = head.split(' ').next().unwrap_or_default().to_owned();
                let is_http = name.starts_with("twostroke_http_");
                place = (at == 0 || !is_http).then(|| {
                    *places.entry(name).or_insert_with(|| {
                        families.push((line.to_owned(), Vec::new()));
                        families.len() - 1
                    })
                });
            } else if let Some(place) = place {
                let (head, samples) = &mut families[place];
                match line.starts_with("# TYPE ") {
                    true if head.contains('\n') => {}
                    true => {
                        head.push('\n');
                        head.push_str(line);
                    }
                    false if at == 0 => samples.push(line.to_owned()),
                    false => samples.push(labelled(line, &label)),
                }
            }
        }
    }
    let mut merged = String::new();
    for (head, samples) in families {
        let _ = writeln!(merged, "{head}");
        samples.iter().for_each(|sample| _ = writeln!(merged, "{sample}"));
    }
    if pages.first().is_some_and(|(_, page)| page.ends_with("# EOF\n")) {
        merged.push_str("# EOF\n");
    }
    merged
}

/// A sample with one more label, unless it has that already.
fn labelled(sample: &str, label: &str) -> String {
    // A label's value may hold anything, but no metric's name has a brace or a space.
    let name = sample.find(['{', ' ']).unwrap_or(sample.len());
    match sample[name..].strip_prefix('{') {
        Some(rest) if rest.starts_with("model_name=") || rest.contains(",model_name=") => sample.to_owned(),
        Some(rest) => format!("{}{{{label},{rest}", &sample[..name]),
        None => format!("{}{{{label}}}{}", &sample[..name], &sample[name..]),
    }
}

/// A number as Prometheus writes it: its infinity has another name than Rust's.
#[derive(Clone, Copy)]
struct Prometheus(f64);

impl Display for Prometheus {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.0 == f64::INFINITY { write!(f, "+Inf") } else { write!(f, "{}", self.0) }
    }
}

fn counters(page: &mut Page<'_>, stats: &Stats) {
    let counters = [
        ("steps_total", "Forward passes.", stats.steps),
        ("prefill_tokens_total", "Prompt rows computed, recomputation included.", stats.prefill_tokens),
        ("decode_tokens_total", "Decode rows computed.", stats.decode_tokens),
        (
            "recomputed_tokens_total",
            "Rows of prefill for tokens that had been computed before: the price of preemption.",
            stats.recomputed_tokens,
        ),
        ("evicted_blocks_total", "Cached blocks that lost their content.", stats.evicted_blocks),
        ("copied_blocks_total", "Blocks copied on write.", stats.copied_blocks),
    ];
    for (name, help, value) in counters {
        page.own(name, "counter", help, value);
    }
    // The first is of those that were found.
    let misses = MissReason::NAMES.iter().zip(stats.cache_misses).skip(1);
    page.by("cache_misses_total", "counter", "Prompts that the prefix cache had no more of, by reason.", "why", misses);
    swap(page, stats);
    page.own("step_seconds_total", "counter", "Seconds that forward passes took.", stats.step_seconds);
    let [during, between] = stats.stolen_seconds;
    let help = "CPU steal time of compute threads, during forward passes and between them.";
    page.by("cpu_steal_seconds_total", "counter", help, "when", [("step", during), ("between", between)]);
    let help = "By how much the steal time during forward passes may be wrong.";
    page.own("cpu_steal_uncertain_seconds_total", "counter", help, stats.uncertain_seconds);
    let experts = &stats.experts;
    page.own("expert_reads_total", "counter", "Experts read that were not in memory.", experts.count);
    page.own("expert_read_bytes_total", "counter", "Bytes of them.", experts.bytes);
    let help = "Seconds of forward passes in which they were waited for.";
    page.own("expert_read_seconds_total", "counter", help, experts.took.as_secs_f64());
    page.own("paused_seconds_total", "counter", "Seconds the engine was paused.", stats.held_seconds);
    let owned = [
        ("ttft_seconds_total", "TTFT by owner.", &stats.owners.ttft, &Owner::OF_TTFT[..]),
        ("itl_seconds_total", "Time between tokens, by owner.", &stats.owners.gaps, &Owner::OF_GAP),
    ];
    for (name, help, shares, owners) in owned {
        let seconds = owners.iter().map(|&owner| (owner.name(), shares.of(owner).as_secs_f64()));
        page.by(name, "counter", help, "owner", seconds);
    }
    let SpotChecked { equal, different, dropped } = stats.spot_checks;
    let results = [("equal", equal), ("different", different), ("dropped", dropped)];
    let help = "Answers that were computed again while idle, by what came.";
    page.by("spot_checks_total", "counter", help, "result", results);
    if stats.handoffs.takes_part {
        handoffs(page, &stats.handoffs);
    }
    let shared = [
        ("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.", stats.prefix_queries),
        ("prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", stats.prefix_hits),
        ("spec_decode_num_drafts_total", "Draft verifications.", stats.verify_rows),
        ("spec_decode_num_draft_tokens_total", "Draft tokens that were checked.", stats.drafted_tokens),
        ("spec_decode_num_accepted_tokens_total", "Accepted draft tokens.", stats.accepted_tokens),
        ("num_preemptions_total", "Sequences that lost their blocks and were recomputed.", stats.preemptions),
        ("prompt_tokens_total", "Prompt tokens of finished requests.", stats.prompt_tokens),
        (
            "prompt_tokens_cached_total",
            "Prompt tokens of finished requests that came from the cache.",
            stats.cached_tokens,
        ),
        ("generation_tokens_total", "Tokens generated by finished requests.", stats.generated_tokens),
    ];
    for (name, help, value) in shared {
        page.both(name, name, "counter", help, value);
    }
    speculation(page, stats);
    let endings = [
        ("stop", stats.finished_stop),
        ("length", stats.finished_length),
        ("abort", stats.finished_cancelled),
        ("error", stats.finished_error),
    ];
    for (prefix, labels) in [("twostroke_", String::new()), ("vllm:", page.vllm_labels())] {
        let name = format!("{prefix}request_success_total");
        page.family(&name, "counter", "Answers ended, by reason; 'abort' and 'error' count requests.");
        for (reason, count) in endings {
            let separator = if labels.is_empty() { "" } else { "," };
            page.sample(&name, &format!("{labels}{separator}finished_reason=\"{reason}\""), count);
        }
    }
}

/// Prompts that one worker reads and another answers.
fn handoffs(page: &mut Page<'_>, handoffs: &Handoffs) {
    let roles = Role::ALL.map(|role| (role.name(), u8::from(role == handoffs.role)));
    page.by("role", "gauge", "Worker role: 1 for its own.", "role", roles);
    let help = "Remote prefills, by direction (taken from another worker, given to one) and outcome.";
    page.family("twostroke_remote_prefills_total", "counter", help);
    for (way, count) in HandoffOutcome::ALL.iter().zip(handoffs.taken) {
        page.sample("twostroke_remote_prefills_total", &format!("way=\"taken\",result=\"{}\"", way.name()), count);
    }
    for (result, count) in ["whole", "left"].into_iter().zip(handoffs.given) {
        page.sample("twostroke_remote_prefills_total", &format!("way=\"given\",result=\"{result}\""), count);
    }
    let bytes = [("taken", handoffs.bytes_taken), ("given", handoffs.bytes_given)];
    let help = "Bytes of KV blocks received (taken) and sent (given).";
    page.by("kv_transfer_bytes_total", "counter", help, "way", bytes);
    let help = "KV blocks received from other workers and kept.";
    page.own("kv_transfer_blocks_total", "counter", help, handoffs.blocks_taken);
    page.own("pinned_blocks", "gauge", "KV blocks pinned for other workers.", handoffs.kept_blocks);
    let help = "First tokens that two workers sampled differently; above 0, one of them computes wrong.";
    page.own("remote_prefill_mismatches_total", "counter", help, handoffs.mismatches);
}

/// Speculation: accepted drafts, their cost, and why steps had none.
fn speculation(page: &mut Page<'_>, stats: &Stats) {
    for (prefix, labels) in [("twostroke_", String::new()), ("vllm:", page.vllm_labels() + ",")] {
        let name = format!("{prefix}spec_decode_num_accepted_tokens_per_pos_total");
        page.family(&name, "counter", "Accepted draft tokens by position.");
        // The first place is there before anything was accepted: a rate needs a beginning.
        for place in 0..stats.accepted_by_place.len().max(1) {
            let accepted = stats.accepted_by_place.get(place).copied().unwrap_or(0);
            page.sample(&name, &format!("{labels}position=\"{place}\""), accepted);
        }
    }
    let help = "Part of own_drafts between tokens that rejected drafts took.";
    page.own("spec_decode_rejected_seconds_total", "counter", help, stats.owners.rejected.as_secs_f64());
    let steps = NoDraftReason::ALL.map(NoDraftReason::name).into_iter().zip(stats.no_drafts);
    let help = "Steps in which drafts were proposed and none was checked, by reason.";
    page.by("spec_decode_skipped_steps_total", "counter", help, "reason", steps);
    let help = "Tokens produced per decode step.";
    page.histogram("twostroke_tokens_per_decode_step", "", help, &stats.run_tokens);
}

/// What the phases asked of the machine, and how near the newest of their steps came to its limits.
fn work(page: &mut Page<'_>, seen: &Sources<'_>) {
    let phases = || ["prefill", "decode"].into_iter().zip(&seen.stats.work);
    type Of = fn(&PhaseWork) -> f64;
    let totals: [(&str, &str, Of); 2] = [
        ("flops_total", "Operations of forward passes, by the phase of the rows.", |work| work.total.flops()),
        (
            "bytes_read_total",
            "Bytes of weights, keys and values that passes read; weights are shared between the phases by rows.",
            |work| work.total.bytes,
        ),
    ];
    for (name, help, of) in totals {
        page.by(name, "counter", help, "phase", phases().map(|(phase, work)| (phase, of(work))));
    }
    let Some(limits) = seen.limits else { return };
    let name = "twostroke_roofline_utilization";
    let help = "Share of the machine's limits that the newest steps reached, 0 to 1: those that read prompts, and those of \
                answers alone. Absent for a phase without such a step in the last minute, and where it \
                is not known.";
    page.family(name, "gauge", help);
    for (phase, work) in phases() {
        let Some(shares) = newest_shares(work, limits, seen.demands, seen.now) else { continue };
        for (limit, share) in [("compute", shares.compute), ("memory", shares.memory)] {
            page.sample(name, &format!("phase=\"{phase}\",limit=\"{limit}\""), share);
        }
    }
}

/// What the newest steps of a phase had of the machine's limits; `None` where none ran in the last minute.
fn newest_shares(work: &PhaseWork, limits: &DeviceLimits, demands: &Demands, now: Nanos) -> Option<LimitShares> {
    let is_new = work.recent_seconds > 0.0 && now.since(work.last) < NEWEST;
    LimitShares::of(&work.recent, work.recent_seconds, limits, demands).known().filter(|_| is_new)
}

/// What each phase had of the machine's limits in its newest steps, in percent; null where none ran in the last minute.
pub fn limit_percent(engine: &dyn Observe, demands: &Demands) -> Value {
    let (work, now, limits) = (engine.stats().work, engine.now(), engine.device_limits());
    let [prefill, decode] = work
        .each_ref()
        .map(|work| Some((newest_shares(work, limits.as_ref()?, demands, now)?.of_limit() * 100.0).round()));
    json!({"prefill": prefill, "decode": decode})
}

/// Steps that are older say nothing of the machine now.
const NEWEST: Nanos = Nanos(60_000_000_000);

/// What the tiers behind the KV cache did.
fn swap(page: &mut Page<'_>, stats: &Stats) {
    let swap = &stats.swap;
    let ways = [
        ("to=\"host\"", swap.saved),
        ("to=\"disk\"", swap.spilled),
        ("from=\"host\"", swap.loaded_from_host),
        ("from=\"disk\"", swap.loaded_from_disk),
    ];
    page.family("twostroke_swapped_blocks_total", "counter", "KV blocks moved to a tier, and found there and loaded.");
    ways.iter().for_each(|(way, blocks)| page.sample("twostroke_swapped_blocks_total", way, blocks));
    page.family("twostroke_swapped_bytes_total", "counter", "The same in bytes.");
    ways.iter().for_each(|(way, blocks)| page.sample("twostroke_swapped_bytes_total", way, blocks * stats.block_bytes));
    let used = [("host", swap.host_used), ("disk", swap.disk_used)];
    page.by("swap_blocks_used", "gauge", "KV blocks that a tier holds.", "tier", used);
    let faults = [("read", swap.read_faults), ("write", swap.write_faults)];
    page.by("swap_faults_total", "counter", "Reads and writes of the swap file that failed.", "of", faults);
    page.own("swap_dropped_blocks_total", "counter", "KV blocks that the tiers lost to make room.", swap.dropped);
    page.own(
        "swap_disk_given_up",
        "gauge",
        "1 if the swap file is not used any more, after faults in a row.",
        u8::from(swap.disk_given_up),
    );
    page.own(
        "recompute_waste_ratio",
        "gauge",
        "Share of all prefill rows that had been computed before, 0 to 1.",
        if stats.prefill_tokens == 0 { 0.0 } else { stats.recomputed_tokens as f64 / stats.prefill_tokens as f64 },
    );
}

fn histograms(page: &mut Page<'_>, stats: &Stats) {
    let histograms = [
        ("time_to_first_token_seconds", "Arrival to first token.", &stats.time_to_first_token),
        ("inter_token_latency_seconds", "Between two tokens of an answer.", &stats.inter_token_latency),
        (
            "request_time_per_output_token_seconds",
            "Decode time of a request over its decode steps.",
            &stats.time_per_output_token,
        ),
        ("e2e_request_latency_seconds", "Arrival to the end.", &stats.e2e_latency),
        ("request_queue_time_seconds", "Arrival to the first step.", &stats.queue_time),
        ("request_prefill_time_seconds", "First step to first token.", &stats.prefill_time),
        ("request_decode_time_seconds", "First token to the last.", &stats.decode_time),
        ("request_inference_time_seconds", "First step to the end.", &stats.inference_time),
        ("request_params_n", "Answers that a request asked for.", &stats.request_answers),
        ("request_params_max_tokens", "Tokens that an answer might have had.", &stats.request_max_tokens),
        ("request_prompt_tokens", "Prompt tokens of a request.", &stats.request_prompt_tokens),
        ("request_generation_tokens", "Tokens generated by a request.", &stats.request_generation_tokens),
    ];
    let labels = page.vllm_labels();
    for (name, help, histogram) in histograms {
        page.histogram(&format!("twostroke_{name}"), "", help, histogram);
        page.histogram(&format!("vllm:{name}"), &labels, help, histogram);
    }
    // One word for two things: we count rows, vLLM what its clients are told in a step.
    page.histogram("twostroke_iteration_tokens", "", "Rows of a forward pass.", &stats.step_tokens);
    let help = "Tokens of answers that came in a step, and prompts whose first token did.";
    page.histogram("vllm:iteration_tokens_total", &labels, help, &stats.delivered_tokens);
}

/// A page being written. A metrics library keeps counts of its own; these are made in the engine's step log and only
/// need writing down.
struct Page<'a> {
    text: String,
    labels: String,
    exposition: Exposition<'a>,
}

impl Page<'_> {
    fn vllm_labels(&self) -> String {
        // One engine per server: vLLM numbers them from 0.
        format!("{},engine=\"0\"", self.labels)
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // In OpenMetrics a counter's samples end in `_total`, and its name does not.
        let name = match (self.exposition, kind) {
            (Exposition::OpenMetrics(_), "counter") => name.trim_end_matches("_total"),
            _ => name,
        };
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = match labels {
            "" => writeln!(self.text, "{name} {value}"),
            labels => writeln!(self.text, "{name}{{{labels}}} {value}"),
        };
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(name, "", value);
    }

    fn own(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.single(&format!("twostroke_{name}"), kind, help, value);
    }

    /// One sample for each value of a label.
    fn by<V: Display, S: Display>(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        label: &str,
        of: impl IntoIterator<Item = (V, S)>,
    ) {
        let name = format!("twostroke_{name}");
        self.family(&name, kind, help);
        of.into_iter().for_each(|(value, sample)| self.sample(&name, &format!("{label}=\"{value}\""), sample));
    }

    fn both(&mut self, own: &str, vllm: &str, kind: &str, help: &str, value: impl Display + Copy) {
        self.own(own, kind, help, value);
        let name = format!("vllm:{vllm}");
        self.family(&name, kind, help);
        let labels = self.vllm_labels();
        self.sample(&name, &labels, value);
    }

    fn histogram(&mut self, name: &str, labels: &str, help: &str, histogram: &Histogram) {
        self.family(name, "histogram", help);
        self.buckets(name, labels, histogram);
    }

    fn buckets(&mut self, name: &str, labels: &str, histogram: &Histogram) {
        let separator = if labels.is_empty() { "" } else { "," };
        let mut below = 0;
        let bounds = histogram.bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        let exemplars = histogram.exemplars.iter().copied().chain(std::iter::repeat(None));
        for ((bound, count), exemplar) in bounds.zip(&histogram.counts).zip(exemplars) {
            below += count;
            self.sample(&format!("{name}_bucket"), &format!("{labels}{separator}le=\"{bound}\""), below);
            if let (Exposition::OpenMetrics(known), Some(exemplar)) = (self.exposition, exemplar) {
                let (request, at) = known(&exemplar);
                self.text.pop();
                let _ = writeln!(self.text, " # {{request_id=\"{}\"}} {} {at:.3}", escaped(&request), exemplar.value);
            }
        }
        self.sample(&format!("{name}_sum"), labels, histogram.sum);
        self.sample(&format!("{name}_count"), labels, below);
    }
}

/// A label's value, as the text format quotes it.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use engine::RequestId;

    use super::*;

    #[test]
    fn histograms_are_cumulative_and_end_at_infinity() {
        let mut page = Page { text: String::new(), labels: String::new(), exposition: Exposition::Text };
        let exemplar = Exemplar { request: RequestId(7), value: 0.75, at: Nanos(5) };
        let exemplars = vec![None, Some(exemplar), None];
        let histogram = Histogram { bounds: &[0.5, 1.0], counts: vec![2, 3, 1], sum: 4.25, exemplars };
        page.histogram("x", "a=\"b\"", "Help.", &histogram);
        let expected = "# HELP x Help.\n# TYPE x histogram\nx_bucket{a=\"b\",le=\"0.5\"} 2\nx_bucket{a=\"b\",le=\"1\"} 5\n\
            x_bucket{a=\"b\",le=\"+Inf\"} 6\nx_sum{a=\"b\"} 4.25\nx_count{a=\"b\"} 6\n";
        assert_eq!(page.text, expected);
        let known = |exemplar: &Exemplar| (format!("cmpl-{}", exemplar.request.0), 1_795_316_720.25);
        let exposition = Exposition::OpenMetrics(&known);
        let mut page = Page { text: String::new(), labels: String::new(), exposition };
        page.histogram("x", "a=\"b\"", "Help.", &histogram);
        let with = "le=\"1\"} 5 # {request_id=\"cmpl-7\"} 0.75 1795316720.250\n";
        assert_eq!(page.text, expected.replace("le=\"1\"} 5\n", with));
    }

    #[test]
    fn open_metrics_is_for_who_asks() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.4,*/*;q=0.1";
        assert!(Exposition::is_open_metrics(prometheus) && Exposition::is_open_metrics("application/openmetrics-text"));
        for other in ["", "*/*", "text/plain", "application/openmetrics-text;q=0, text/plain", "text/openmetrics-text"]
        {
            assert!(!Exposition::is_open_metrics(other), "{other}");
        }
    }

    #[test]
    fn pages_of_several_models_have_each_family_once() {
        let page = |count| {
            format!(
                "# HELP a Help.\n# TYPE a counter\na {count}\n# HELP b Help.\n# TYPE b gauge\nb{{x=\"{{y}}\"}} {count}\n\
                 # HELP vllm:c Help.\n# TYPE vllm:c gauge\nvllm:c{{model_name=\"m{count}\",engine=\"0\"}} 5\n\
                 # HELP twostroke_http_x Help.\n# TYPE twostroke_http_x gauge\ntwostroke_http_x {count}\n# EOF\n"
            )
        };
        let merged = merged(&[("m1".to_owned(), page(1)), ("m\"2".to_owned(), page(2))]);
        let expected = "# HELP a Help.\n# TYPE a counter\na 1\na{model_name=\"m\\\"2\"} 2\n\
             # HELP b Help.\n# TYPE b gauge\nb{x=\"{y}\"} 1\nb{model_name=\"m\\\"2\",x=\"{y}\"} 2\n\
             # HELP vllm:c Help.\n# TYPE vllm:c gauge\nvllm:c{model_name=\"m1\",engine=\"0\"} 5\n\
             vllm:c{model_name=\"m2\",engine=\"0\"} 5\n\
             # HELP twostroke_http_x Help.\n# TYPE twostroke_http_x gauge\ntwostroke_http_x 1\n# EOF\n";
        assert_eq!(merged, expected);
    }

    #[test]
    fn a_models_name_cannot_break_out_of_its_label() {
        assert_eq!(escaped("a\"} evil 1\n\\"), "a\\\"} evil 1\\n\\\\");
    }

    /// What a server without limits and adapters shows of `stats`.
    pub(super) fn page(stats: &Stats, exposition: Exposition<'_>) -> String {
        let targets = Targets { ttft: Some(Nanos(1_500_000_000)), tpot: None };
        let (_, shape) = roofline::ModelShape::known().next().expect("there are known models");
        let sources = Sources {
            stats,
            http: &HttpMetrics::default(),
            text: &PrepareStats::default(),
            model: "m",
            cache: CacheConfig::default(),
            targets,
            limits: None,
            demands: &shape.demands(engine::WeightClass::Bf16, engine::KvDtype::Bf16),
            now: Nanos(0),
            adapters: &Adapters::default(),
            unix_seconds: 0,
        };
        render(&sources, exposition)
    }

    #[test]
    fn every_family_is_described_once_and_has_samples() {
        let stats = Stats::default();
        let text = page(&stats, Exposition::Text);
        let open = page(&stats, Exposition::OpenMetrics(&|_| unreachable!("nothing was observed")));
        let names = |page: &str| {
            let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
            types.map(|line| line.split(' ').next().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let distinct: std::collections::BTreeSet<String> = names(&open).into_iter().collect();
        assert_eq!((distinct.len(), names(&open).len()), (names(&text).len(), names(&text).len()), "names stay apart");
        assert!(open.ends_with("\n# EOF\n") && !text.contains("# EOF"));
        assert!(
            open.contains("# TYPE twostroke_steps counter\n") || open.contains("# TYPE vllm:prompt_tokens counter\n")
        );
        let mut families = std::collections::BTreeSet::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let name = rest.split(' ').next().unwrap();
                assert!(families.insert(name.to_owned()), "{name} twice");
            }
        }
        for name in [
            "vllm:num_requests_running",
            "vllm:kv_cache_usage_perc",
            "vllm:request_success_total",
            "twostroke_time_to_first_token_seconds",
            "vllm:iteration_tokens_total",
            "twostroke_ttft_seconds_total",
            "twostroke_itl_seconds_total",
            "twostroke_step_prediction_error_ratio",
            "twostroke_slo_requests_total",
            "twostroke_prefill_backlog_seconds",
            "twostroke_kv_seconds_to_full",
            "twostroke_iteration_tokens",
            "twostroke_flops_total",
            "twostroke_bytes_read_total",
            "twostroke_oldest_waiting_seconds",
            "vllm:spec_decode_num_accepted_tokens_per_pos_total",
            "twostroke_spec_decode_skipped_steps_total",
            "twostroke_tokens_per_decode_step",
        ] {
            assert!(families.contains(name), "{name}");
        }
        assert!(text.contains("\ntwostroke_target_ttft_seconds 1.5\n"), "a target in seconds");
        assert!(!text.contains("target_tpot"), "none that is not there");
    }
}
