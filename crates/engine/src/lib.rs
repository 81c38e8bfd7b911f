//! The hallway between the room of decisions ([`scheduler`]) and the room of numbers ([`model`]): it turns plans into
//! batches, logits into tokens, and writes down what every step cost.
//!
//! ```text
//! RawRequest --validate--> ValidatedRequest --submit--> Stream of Event
//!                                              |            ^
//!                          commands            v            |  tokens, text, timings
//!                      +---------------- thread --------+
//!                      |  schedule -> lower -> forward -> sample -> complete -> deliver
//!                      |                                             |
//!                      +---------------- step log <------------------+--> Stats, records
//! ```
//!
//! One thread owns the scheduler, the model and the cache. Handles ([`Engine`]) are cheap to clone and can be used from
//! any thread, with or without an async runtime.

mod adapters;
#[cfg(test)]
mod chaos;
mod clock;
mod command;
mod compile_rule;
mod core;
mod devices;
mod encoder_options;
mod encoders;
mod feature;
mod handoff;
mod journal;
mod lower;
mod memory;
mod options;
mod output;
mod prompt;
mod queue_permit;
pub mod recording;
pub mod replaying;
mod rerun;
mod serve;
mod start;
mod states;
mod stream;
mod thread;
mod tiers;
mod turns;
mod validate;
mod verify;
mod wall_clock;
mod watch;

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use model::{GenerationDefaults, ModelConfig, PackedAdapter};
use observe::{Views, cache_optimum};
use protocol::{Nanos, Targets, TokenId};
use rates::CurrentTargets;
use roofline::Demands;
use scheduler::kv::ChainHasher;
use scheduler::latency_bound::{Admission, AnswerLimits};
use scheduler::quota::QuotaExceeded;
use scheduler::{BoundKind, IncomingRequest, LatencyBound, Limits, StepRecord};
use text::chat_template::ChatTemplate;
use text::tokenizer::Tokenizer;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

pub use adapters::{AdapterError, AdapterInfo, Adapters};
pub use clock::expert_memory;
pub use compile_rule::LazyVocabulary;
pub use devices::DeviceChoice;
pub use grammar::{ConstraintError, Rule, RuleError, ThoughtBudget, check_rule, fit_schema};
#[doc(hidden)]
pub use handoff::check_frame;
pub use handoff::{ClusterKey, HandoffOptions, PrecisionPair, RemoteRole, Role, RoleError, SignedAddress};
use kernels::RopeScaling;
pub use kernels::memory_limits::Limit as MemoryLimit;
pub use kernels::{AccumulationOrder, Certainty, DeviceInfo, DeviceLimits, Isa, KvDtype, WeightClass};
pub use ledger;
pub use memory::available_bytes as available_memory;
pub use observe::run_history;
pub use observe::{
    End, Ended, Ending, Exemplar, HandoffOutcome, Handoffs, Histogram, KvMap, LogCursor, LoggedStep, Percentiles,
    PhaseWork, Predictions, RemotePrefillTrace, RemoteStep, RequestSnapshot, RequestState, RequestSummary, SecondStats,
    SloOutcome, SnapshotRow, SpotChecked, Stats, Timeline, Timings, Usage,
};
pub use options::{CacheListener, EngineOptions, StartError};
pub use output::{Event, EventSender, PromptProgress, RequestError, TokenLogprob};
pub use protocol::sampling::{self, SamplingParams};
pub use protocol::{FinishReason, RequestId, ServiceClass};
pub use rates::{Calibrated, Calibration, DefaultTarget};
pub use receipt;
pub use rerun::{IsWanted, Rerun, RerunAnswer, RerunError};
pub use scheduler::quota;
pub use serve::{Observe, PauseFuture, Serve, Subscription};
#[doc(hidden)]
pub use speculate::LookupBench;
pub use speculate::{DraftMethod, Drafters, LearnedDrafter, LookupOptions, Speculation};
pub use start::Starting;
pub use stream::Stream;
pub use text::chat_template::{ChatMessage, MAX_NAME_BYTES};
#[doc(hidden)]
pub use tiers::Store;
pub use tiers::SwapDisk;
pub use turns::Turns;
pub use validate::{
    Chat, MAX_ANSWERS, MAX_BAD_WORD_BYTES, MAX_BAD_WORDS, MAX_LOGIT_BIAS, MAX_LOGPROBS, MAX_SALT_BYTES, MAX_STOP_BYTES,
    MAX_STOP_STRINGS, MAX_STOP_TOKENS, Prompt, RawRequest, Rejection, ValidatedRequest,
};
pub use verify::{Origin, OriginError, Verifier, VerifyError};
pub use wall_clock::UnixNanos;

use crate::adapters::Use;
use crate::clock::Clock;
use crate::command::{ArrivalInfo, BlockSender, Command, NewRequest, PauseCommand, PutAdapterResult};
use crate::queue_permit::QueuePermit;
use crate::rerun::KeptRequests;
use crate::thread::EngineStatus;
use crate::validate::OfPrompt;
use crate::verify::SpotCounts;

/// What is being served.
#[derive(Debug)]
pub struct ModelInfo {
    /// The checkpoint's name.
    pub name: String,
    /// Its shape.
    pub config: ModelConfig,
    /// What `generation_config.json` asks for where a request is silent.
    pub generation_defaults: GenerationDefaults,
    /// Tokens that end an answer.
    pub eos_token_ids: Vec<TokenId>,
    /// Absent for a checkpoint without one: token ids still work.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// Absent for a model that does not chat.
    pub chat_template: Option<ChatTemplate>,
    /// Why the template that the model has is not there.
    pub template_fault: Option<String>,
    /// Its tokens as bytes, for requests that say what an answer must look like.
    pub vocabulary: LazyVocabulary,
    /// Tokens of prompt and answer together.
    pub max_model_len: usize,
    /// Sequences in one step.
    pub max_num_seqs: usize,
    /// Several tenants share it, and none of them may take it all.
    pub is_shared: bool,
    /// Rows of one step.
    pub max_num_batched_tokens: usize,
    /// Tokens per KV block.
    pub block_size: usize,
    /// Blocks of the KV cache.
    pub num_blocks: usize,
    /// Blocks beside those, for spot checks.
    pub spot_blocks: usize,
    /// Precision of keys and values.
    pub kv_dtype: KvDtype,
    /// Bytes of the KV cache.
    pub kv_bytes: usize,
    /// What made that less than all seats could use at full length; `None` if nothing did, or if the size was set.
    pub memory_limit: Option<MemoryLimit>,
    /// Bytes of weights read by one step, every expert counted.
    pub weight_bytes: usize,
    /// Of these, bytes of experts, of which a step reads those that its rows go to.
    pub expert_bytes: usize,
    /// Slots for blocks outside the KV cache.
    pub swap: scheduler::TierSizes,
    /// Slots for states, of a model that has layers with states.
    pub states: Option<scheduler::StateSizes>,
    /// Bytes of keys and values per token.
    pub kv_bytes_per_token: usize,
    /// What a person should know about this load: a clamped context, weights that are not numbers. Often empty.
    pub notices: Vec<String>,
    /// Precision of the weights in memory.
    pub weights: WeightClass,
    /// Where prompts are read with weights of one precision and answers written with another: both.
    pub precisions: Option<PrecisionPair>,
    /// Whether full blocks of prompts are computed by other workers and never by this one.
    pub remote_only_prefill: bool,
    /// What computes.
    pub device: DeviceInfo,
    /// Order of sums of 16-bit products.
    pub arithmetic: AccumulationOrder,
    /// Backend, instruction set, threads: for display.
    pub backend: String,
    /// What steps cost, if that was measured.
    pub calibrated: Option<Calibrated>,
    /// Targets of requests that bring none, unless they are of the batch class: as of the start. They follow what steps
    /// turn out to cost ([`Engine::targets`]).
    pub targets: Targets,
    /// Where the weights are from, for receipts.
    pub origin: Origin,
    /// The adapters that rows may use beside the model. They may come and go.
    pub adapters: Adapters,
}

impl ModelInfo {
    /// Validation: checks every field, resolves defaults, tokenizes. See [`RawRequest`]. `salt_key`: keeps the cache
    /// salts of this process unpredictable. An engine also refuses what its cache cannot hold ([`Engine::validate`]).
    ///
    /// Cost: linear in the prompt's bytes.
    pub fn validate(&self, raw: RawRequest, salt_key: &[u8; 32]) -> Result<ValidatedRequest, Rejection> {
        validate::validate(raw, self, self.targets, salt_key)
    }

    /// The prompt of a request as tokens, which validation would make of it.
    pub fn encode(&self, raw: &RawRequest) -> Result<Vec<TokenId>, Rejection> {
        prompt::tokenize(raw, self)
    }

    /// Where the texts of a conversation's messages are in these tokens of it: empty where one is not found.
    pub fn messages_in(&self, raw: &RawRequest, prompt: &[TokenId]) -> Vec<Range<usize>> {
        prompt::messages_in(raw, prompt, self)
    }

    /// Which rotations are in force where that depends on the longest sequence.
    fn rotations(&self) -> String {
        let list = |scaling: &RopeScaling| match scaling {
            RopeScaling::LongRope { original_max_position, .. } if self.max_model_len > *original_max_position => {
                "long"
            }
            RopeScaling::LongRope { .. } => "short",
            _ => "one",
        };
        let lists: Vec<&str> = self.config.ropes.iter().map(|rope| list(&rope.scaling)).collect();
        lists.join(" ")
    }

    /// What its passes ask of the machine.
    pub fn demands(&self) -> Demands {
        Demands {
            shape: self.config.shape(),
            weights: self.weights,
            weight_bytes: self.weight_bytes,
            expert_bytes: self.expert_bytes,
            kv_bytes_per_token: self.kv_bytes_per_token,
            kv_dtype: self.kv_dtype,
        }
    }
}

/// Why a request could not be submitted now. Trying again later may work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The queue holds its limit.
    #[error("the queue is full: {waiting_requests} requests wait")]
    QueueFull {
        /// Requests waiting.
        waiting_requests: usize,
        /// When a place is likely to be free, from the measured rate at which requests end.
        retry_after: Duration,
    },
    /// This tenant has as much in the queue as it leaves free for others ([`quota`]).
    #[error("{waiting_requests} requests of this key wait, which is its share of the queue")]
    TenantQueueFull {
        /// The tenant's requests that wait.
        waiting_requests: usize,
        /// As for a full queue.
        retry_after: Duration,
    },
    /// That its first token comes in time cannot be promised, and late requests are to be refused.
    #[error("the first token can be promised within {} ms; the target is {} ms", .promised.as_millis(), .target.as_millis())]
    Late {
        /// When its first token was likely to come.
        likely: Duration,
        /// What would have been promised ([`scheduler::latency_bound`]).
        promised: Duration,
        /// When it is wanted.
        target: Duration,
        /// When it may be in time, if no other request comes; between a second and a minute.
        retry_after: Duration,
    },
    /// Draining: nothing new is taken.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The device that computes is lost, and there is no other.
    #[error("the device that computes is lost: the log says why; start again once it is there")]
    DeviceLost,
    /// A prefill-only worker answers no clients.
    #[error("prefill-only worker: send the request to a decode worker")]
    PrefillOnly,
}

/// Why a request with this promise is refused.
fn late(promise: &LatencyBound, target: Nanos) -> SubmitError {
    let duration = |time: Nanos| Duration::from_nanos(time.0);
    let promised = promise.first_token.p95;
    SubmitError::Late {
        likely: duration(promise.first_token.p50),
        promised: duration(promised),
        target: duration(target),
        // The line becomes shorter by a second each second.
        retry_after: duration(promised.since(target)).clamp(Duration::from_secs(1), Duration::from_secs(60)),
    }
}

/// Whether the engine moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// The engine's loop has ended; nothing will be answered.
    pub dead: bool,
    /// No new request is taken.
    pub draining: bool,
    /// Time since the loop last moved while it had work; zero when idle.
    pub stuck_for: Duration,
    /// Requests submitted and not ended.
    pub open_requests: usize,
}

/// A handle to a running engine. The engine stops when the last handle and the last [`Stream`] are gone.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    model: Arc<ModelInfo>,
    commands: UnboundedSender<Command>,
    status: Arc<EngineStatus>,
    views: Arc<Mutex<Views>>,
    clock: Clock,
    next_id: AtomicU64,
    /// The thread that writes the recording, if there is one.
    recorder: Mutex<Option<JoinHandle<()>>>,
    spot_counts: Arc<SpotCounts>,
    /// The last requests, where they may be run again.
    kept: Option<KeptRequests>,
    limits: Limits,
    /// When it was computed.
    saved_of_optimum: Mutex<Option<(Nanos, Option<f64>)>>,
    /// Of requests that bring none.
    targets: Arc<CurrentTargets>,
    salt_key: [u8; 32],
    refuse_late: bool,
    /// What forecasts and other workers ask the cache.
    found: Option<Arc<handoff::FoundBlocks>>,
    handoffs: Arc<handoff::Counts>,
    /// Where prompts are read for others, if they are.
    handoff_address: OnceLock<(handoff::Listening, SignedAddress)>,
    handoff_key: Option<ClusterKey>,
    /// Others may be asked to read prompts.
    has_remote_prefill: bool,
}

impl Engine {
    /// What is being served.
    pub fn model(&self) -> &ModelInfo {
        &self.0.model
    }

    /// Validation ([`ModelInfo::validate`]), and whether the cache can hold the request at all.
    ///
    /// Cost: linear in the prompt's bytes. Takes no lock and no memory of the engine.
    pub fn validate(&self, raw: RawRequest) -> Result<ValidatedRequest, Rejection> {
        let request = validate::validate(raw, &self.0.model, self.targets(), &self.0.salt_key)?;
        self.fits(&request)?;
        Ok(request)
    }

    /// A request that alone needs more cache than there is would never be admitted.
    fn fits(&self, request: &ValidatedRequest) -> Result<(), Rejection> {
        let (limits, num_answers) = (&self.0.limits, request.num_answers);
        let needed = limits.blocks_needed(request.prompt.len(), request.stop.max_tokens, num_answers);
        if needed <= limits.num_blocks {
            return Ok(());
        }
        let message = format!(
            "this request may need {needed} KV blocks of {} tokens; the server has {}: ask for fewer tokens or answers",
            limits.block_size, limits.num_blocks
        );
        let param = if num_answers > 1 { "n" } else { "max_tokens" };
        Err(Rejection { param: Some(param), code: Some("kv_cache_too_small"), message })
    }

    /// Queues a request. Returns at once; the answer comes through the stream.
    pub fn submit(&self, request: ValidatedRequest) -> Result<Stream, SubmitError> {
        let mut streams = self.submit_together(vec![request])?;
        Ok(streams.pop().expect("one for each request"))
    }

    /// Queues all of the requests or none, so that the same step may begin with all of them.
    pub fn submit_together(&self, requests: Vec<ValidatedRequest>) -> Result<Vec<Stream>, SubmitError> {
        let is_read_for_others = |request: &ValidatedRequest| request.remote_role == RemoteRole::Decode;
        if !self.0.handoffs.answers() && !requests.iter().all(is_read_for_others) {
            return Err(SubmitError::PrefillOnly);
        }
        self.enqueue(requests.into_iter().map(|request| (request, None)).collect())
    }

    /// Queues a prefill for another worker.
    fn submit_for(&self, request: ValidatedRequest, peer: BlockSender) -> Result<Stream, SubmitError> {
        let mut streams = self.enqueue(vec![(request, Some(peer))])?;
        Ok(streams.pop().expect("one for each request"))
    }

    fn enqueue(&self, requests: Vec<(ValidatedRequest, Option<BlockSender>)>) -> Result<Vec<Stream>, SubmitError> {
        let Inner { status, commands, .. } = &*self.0;
        if status.lost.load(Ordering::Relaxed) {
            return Err(SubmitError::DeviceLost);
        }
        if status.draining.load(Ordering::Relaxed) || status.dead.load(Ordering::Relaxed) {
            return Err(SubmitError::ShuttingDown);
        }
        let (at, held) = self.0.clock.now_and_held();
        drop(self.0.clock.look());
        let mut permits = Vec::with_capacity(requests.len());
        for (request, _) in &requests {
            permits.push(self.queue_permit(request)?);
        }
        let (mut streams, mut submitted) = (Vec::with_capacity(requests.len()), Vec::with_capacity(requests.len()));
        for ((request, peer), permit) in requests.into_iter().zip(permits) {
            let (id, promise) = self.reserve_latency_bound(&request, at).inspect_err(|_| {
                streams.iter().for_each(|earlier: &Stream| self.views().promises.gone(earlier.id, at));
            })?;
            let (sender, mut stream) = Stream::open(id, request.prompt.clone());
            let arrived = ArrivalInfo { at, held, permit: Some(permit) };
            submitted.push(NewRequest { id, request: Box::new(request), arrived, events: sender, peer });
            (stream.commands, stream.latency_bound, stream.arrived) = (Some(commands.clone()), promise, at);
            streams.push(stream);
        }
        commands.send(Command::Submit(submitted)).map_err(|_| SubmitError::ShuttingDown)?;
        Ok(streams)
    }

    /// A place among those that wait, if there is one for its tenant.
    fn queue_permit(&self, request: &ValidatedRequest) -> Result<QueuePermit, SubmitError> {
        let requests = &self.0.status.requests;
        let permit = requests.enter(request.place()).map_err(|no_room| {
            let (waiting, retry_after) = (requests.waiting(), self.retry_after());
            match no_room {
                QuotaExceeded::Full => SubmitError::QueueFull { waiting_requests: waiting.requests(), retry_after },
                QuotaExceeded::TenantQueueFull => {
                    SubmitError::TenantQueueFull { waiting_requests: waiting.requests_of(request.tenant), retry_after }
                }
            }
        })?;
        Ok(permit.with(request.adapter.as_ref().map(Use::of)))
    }

    /// Gives the request its name and, where steps are predicted, its promise; refused if that is too late and late
    /// requests are not wanted. If not, the next requests see it in line: of two that come at once, one sees the
    /// other.
    fn reserve_latency_bound(
        &self,
        request: &ValidatedRequest,
        now: Nanos,
    ) -> Result<(RequestId, Option<LatencyBound>), SubmitError> {
        let next_id = || RequestId(self.0.next_id.fetch_add(1, Ordering::Relaxed));
        if self.0.model.calibrated.is_none() || !request.is_promised {
            return Ok((next_id(), None));
        }
        let (prompt_tokens, priority, ttft) = (request.prompt.len(), request.priority, request.targets.ttft);
        let new = IncomingRequest { prompt_tokens, cached_tokens: self.cached_tokens(request), priority, ttft };
        let mut views = self.views();
        let mut forecast = self.0.status.forecast();
        let outlook = forecast.queue_forecast(&new, now, views.finish_rate.interval());
        let limits = AnswerLimits { least: request.stop.min_tokens, most: request.stop.max_tokens };
        let promise = views.promises.bound_for(&outlook, limits);
        let mut probe = None;
        if let Some(target) = ttft.filter(|_| self.0.refuse_late) {
            match views.promises.judge(&promise, target) {
                Admission::InTime => {}
                Admission::Probe => probe = Some(target),
                Admission::TooLate => return Err(late(&promise, target)),
            }
        }
        forecast.add(&new, now);
        drop(forecast);
        let id = next_id();
        views.promises.open(id, promise, probe, now);
        Ok((id, Some(promise)))
    }

    /// Tokens of a prompt that the cache would find now.
    fn cached_tokens(&self, request: &ValidatedRequest) -> usize {
        let Some(found) = self.0.found.as_ref().filter(|_| request.of_prompt == OfPrompt::Nothing) else { return 0 };
        let Limits { hash_key, block_size, .. } = self.0.limits;
        let hasher = ChainHasher::new(hash_key);
        found.leading(hasher.chain(&request.prompt, request.salt, block_size).map(|hash| hash.short())) * block_size
    }

    /// When a request that came now would likely have its first token, from then on.
    fn likely_first_token(&self, new: &IncomingRequest) -> Option<Nanos> {
        self.0.model.calibrated.as_ref()?;
        let now = self.0.clock.now();
        let views = self.views();
        let outlook = self.0.status.forecast().queue_forecast(new, now, views.finish_rate.interval());
        Some(views.promises.bound_for(&outlook, AnswerLimits { least: 1, most: 1 }).first_token.p50)
    }

    /// Prompts that were read for others and by others.
    pub fn handoffs(&self) -> Handoffs {
        self.0.handoffs.read()
    }

    /// Workers that read no more prompts for this one, and why not: `HOST:PORT: why`.
    pub fn handoff_problems(&self) -> Vec<String> {
        self.0.handoffs.problems()
    }

    /// Where prompts are read for others.
    pub fn handoff_address(&self) -> Option<SocketAddr> {
        self.0.handoff_address.get().map(|(listening, _)| listening.address())
    }

    /// The same as a router may tell it to other workers.
    pub fn signed_address(&self) -> Option<SignedAddress> {
        self.0.handoff_address.get().map(|(_, sealed)| sealed.clone())
    }

    /// The worker that has read the prompt, according to a sealed address; `None` if the seal is not of the cluster
    /// key.
    pub fn prefill_worker(&self, at: &SignedAddress) -> Option<RemoteRole> {
        at.address(self.0.handoff_key.as_ref()?).map(RemoteRole::Prefill)
    }

    /// One place of the queue at the measured rate, between 1 and 60 seconds.
    fn retry_after(&self) -> Duration {
        let interval = Duration::from_nanos(self.views().finish_rate.interval().0);
        interval.clamp(Duration::from_secs(1), Duration::from_secs(60))
    }

    fn views(&self) -> MutexGuard<'_, Views> {
        self.0.views.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gauges, counters and histograms, all read off the step log.
    pub fn stats(&self) -> Stats {
        let (now, held) = self.0.clock.now_and_held();
        let views = self.views();
        let mut stats = views.counters.clone();
        stats.held_seconds = held.as_secs_f64();
        stats.owners = *views.accounts.totals();
        stats.promises = BoundKind::ALL.map(|kind| views.promises.coverage(kind));
        (stats.refused_late, stats.probes) = views.promises.rejected_and_probes();
        stats.work = views.phase_work.phases;
        let oldest = views.accounts.oldest_waiting();
        stats.oldest_waiting_seconds = oldest.map_or(0.0, |arrived| now.since(arrived).as_secs_f64());
        stats.kv_seconds_to_full = views.cache_fill.seconds_to_full(now, self.0.model.num_blocks);
        drop(views);
        let forecast = self.0.status.forecast();
        stats.prefill_backlog_seconds = forecast.backlog().as_secs_f64();
        stats.late_prompts = forecast.late().count;
        stats.oldest_late_seconds = forecast.late().oldest.map_or(0.0, |arrived| now.since(arrived).as_secs_f64());
        drop(forecast);
        stats.cache_saved_of_optimum = self.saved_of_optimum(now);
        let waiting = self.0.status.requests.waiting();
        (stats.waiting_requests, stats.waiting_tokens) = (waiting.requests(), waiting.tokens());
        drop(waiting);
        let open = self.0.status.requests.open();
        stats.running_requests = open.saturating_sub(stats.waiting_requests);
        stats.total_blocks = self.0.model.num_blocks;
        stats.spot_checks = self.0.spot_counts.read();
        stats.handoffs = self.0.handoffs.read();
        stats.block_bytes = (self.0.model.kv_bytes_per_token * self.0.model.block_size) as u64;
        stats
    }

    /// What the prefix cache saved beside one that knows what comes: a millisecond's work, so at most once a second.
    fn saved_of_optimum(&self, now: Nanos) -> Option<f64> {
        let mut known = self.0.saved_of_optimum.lock().unwrap_or_else(PoisonError::into_inner);
        if self.0.limits.enable_prefix_caching && known.is_none_or(|(at, _)| now.since(at) >= Nanos(1_000_000_000)) {
            let newest = self.views().history.newest(cache_optimum::PROMPTS);
            let cost = self.cost();
            let price = cache_optimum::price(cost.as_ref());
            let size = [self.0.model.num_blocks, self.0.model.block_size];
            *known = Some((now, cache_optimum::saved_of_optimum(&newest, size, &price)));
        }
        known.and_then(|(_, share)| share)
    }

    /// The newest step records, oldest first, at most `most`.
    pub fn records(&self, most: usize) -> Vec<Arc<StepRecord>> {
        let views = self.views();
        let from = views.recent.num_steps().saturating_sub(most as u64);
        views.recent.steps_from(from).map(|(_, record)| record.clone()).collect()
    }

    /// Writes what steps have taught about their costs for the next start. While the engine runs that happens by
    /// itself, some time after it is known; this is for the end of a process.
    pub fn keep_costs(&self) {
        let finish = self.views().calibration.as_ref().and_then(|calibration| calibration.finish());
        if let Some(finish) = finish {
            finish.write();
        }
    }

    /// Has the engine's thread fill or empty a slot, and waits for it.
    fn put_adapter(&self, slot: u32, adapter: Option<PackedAdapter>) -> Result<PutAdapterResult, AdapterError> {
        let (told, answer) = oneshot::channel();
        let command = Command::Adapter { slot, adapter, told };
        self.0.commands.send(command).map_err(|_| AdapterError::Stopped)?;
        answer.blocking_recv().map_err(|_| AdapterError::Stopped)
    }

    /// Whether the engine moves: tied to the loop itself, not to this handle.
    pub fn health(&self) -> Health {
        let status = &self.0.status;
        let beat = Nanos(status.last_beat.load(Ordering::Relaxed));
        let busy = status.busy.load(Ordering::Relaxed);
        let stuck = if busy { self.0.clock.now().since(beat).0 } else { 0 };
        Health {
            dead: status.dead.load(Ordering::Relaxed),
            draining: status.draining.load(Ordering::Relaxed),
            stuck_for: Duration::from_nanos(stuck.saturating_sub(status.patience.load(Ordering::Relaxed))),
            open_requests: status.requests.open(),
        }
    }

    /// Makes no further step until [`Engine::resume`]: requests wait and none fails. Resolves when the step in flight
    /// is done, to whether the engine is held now: it is not if it drains or has stopped.
    pub async fn pause(&self) -> bool {
        self.hold(PauseCommand::Pause).await
    }

    /// Makes one step and stays held; nothing if it is not held, or if there is nothing to compute.
    pub async fn single_step(&self) -> bool {
        self.hold(PauseCommand::SingleStep).await
    }

    /// Moves again.
    pub async fn resume(&self) -> bool {
        self.hold(PauseCommand::Resume).await
    }

    async fn hold(&self, hold: PauseCommand) -> bool {
        let (told, answer) = oneshot::channel();
        // An engine that is gone is not held.
        self.0.commands.send(Command::Pause(hold, Some(told))).is_ok() && answer.await.unwrap_or(false)
    }

    /// Takes no new requests from now on; running ones continue, also those of a held engine.
    pub fn drain(&self) {
        self.0.status.draining.store(true, Ordering::Relaxed);
        // An engine that is gone is not held.
        let _ = self.0.commands.send(Command::Pause(PauseCommand::Resume, None));
    }

    /// Ends every request with [`RequestError::ShuttingDown`] and stops the engine's thread after its current step.
    pub fn stop(&self) {
        self.drain();
        // An engine that is gone has stopped.
        let _ = self.0.commands.send(Command::Stop);
    }

    /// Waits until the recording is on disk, after [`Engine::stop`], and no longer than `limit`. Returns at once where
    /// there is none.
    pub fn finish_recording(&self, limit: Duration) {
        let Some(recorder) = self.0.recorder.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let begun = Instant::now();
        while !recorder.is_finished() && begun.elapsed() < limit {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
