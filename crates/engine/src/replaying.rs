//! The engine of a replay: no thread and no clock. It gets the lines of a recording and says what it would have
//! recorded.
//!
//! ```text
//! header, checkpoint --load--> [`RecordedEngine`]
//! entry of a file    --take--> the production core: admit, cancel, step, at the recorded time
//!                    <-writes- its own entries, in the order in which a recording would have them
//! ```
//!
//! Whether they are those of the file is for the caller to see. This is the only way to the core but an
//! [`Engine`], and nothing but a recording fits through it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use checkpoint::Checkpoint;
use kernels::DeviceError;
use model::{ModelConfig, Progress};
use observe::Views;
use protocol::{Nanos, RequestId};
use scheduler::Scheduler;

use crate::command::ArrivalInfo;
use crate::core::EngineCore;
use crate::output::event_channel;
use crate::recording::{CostEntry, Entry, Header, RecordedDrafts};
use crate::start::Built;
use crate::verify::classes;
use crate::{Engine, EngineOptions, ModelInfo, StartError, Starting, ValidatedRequest};

/// Why a recording cannot be computed again.
#[derive(Debug, thiserror::Error)]
pub enum ReplayingError {
    /// The model did not load.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The model cannot be what was recorded.
    #[error("this model does not fit the recording: {0}")]
    OtherModel(String),
    /// An entry that no engine writes at this place.
    #[error("{0}")]
    Entry(String),
    /// What computes it again is lost.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A model, its scheduler and what is between them, moved by the entries of a recording. Belongs to the thread that
/// loads it.
pub struct RecordedEngine {
    core: EngineCore,
    model: Arc<ModelInfo>,
    told: Arc<Mutex<VecDeque<Entry>>>,
}

impl RecordedEngine {
    /// Loads `checkpoint` as it was recorded: sizes, classes and arithmetic are the header's, which its reader has
    /// checked ([`Header::check`]). `options` says on how many threads and so on.
    pub fn load(
        header: &Header,
        checkpoint: &Checkpoint,
        options: &EngineOptions,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<RecordedEngine, ReplayingError> {
        let options = options_of(header, checkpoint, options)?;
        let Built { forward, model, .. } = Engine::build(checkpoint, &options, &mut |starting| {
            if let Starting::Loading(loaded) = starting {
                progress(loaded);
            }
        })?;
        let mut scheduler = Scheduler::new(header.limits()).map_err(StartError::Limits)?;
        scheduler.set_cost_model(header.cost());
        scheduler.set_drafting_cost(header.drafting());
        let views = Arc::new(Mutex::new(Views::new(options.block_size)));
        let mut core = EngineCore::new(scheduler, forward, model.tokenizer.clone(), options.seed, views);
        let told = Arc::new(Mutex::new(VecDeque::new()));
        let sink = told.clone();
        core.record_to(Some(Box::new(move |line| {
            sink.lock().unwrap_or_else(PoisonError::into_inner).push_back(Entry::from(line));
        })));
        core.set_compute_thread();
        Ok(RecordedEngine { core, model, told })
    }

    /// The oldest entry that it has written and that was not taken yet.
    pub fn told(&mut self) -> Option<Entry> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// Does what the engine's thread did at this entry. An entry that came of another one (a stop string, the end) does
    /// nothing.
    pub fn take(&mut self, entry: &Entry) -> Result<(), ReplayingError> {
        let core = &mut self.core;
        match entry {
            Entry::Admit(entry) => {
                let request = ValidatedRequest::recorded(entry, &self.model)
                    .map_err(|rejection| ReplayingError::OtherModel(rejection.message))?;
                // There is no listener; the core does not mind.
                let (outputs, ..) = event_channel();
                let arrived = ArrivalInfo { at: Nanos(entry.arrived), held: Nanos(0), permit: None };
                let admitted = core.admit(RequestId(entry.id), request, arrived, outputs, Nanos(entry.now));
                admitted.map_err(|error| ReplayingError::Entry(format!("request {}: {error}", entry.id)))?;
            }
            Entry::Cancel(id, now) => {
                if !core.cancel(RequestId(*id), Nanos(*now)) {
                    return Err(ReplayingError::Entry(format!("there is no open request {id}")));
                }
            }
            Entry::Step(step) => {
                core.use_recorded_drafts(step.drafted());
                core.step(
                    &mut [step.from, step.to].map(Nanos).into_iter().cycle(),
                    Some((step.stolen(), step.experts())),
                )?;
            }
            Entry::Idle(now) => {
                core.step(&mut std::iter::repeat(Nanos(*now)), None)?;
            }
            Entry::Restart { cost } => {
                let cost = cost.as_ref().map(CostEntry::model).transpose().map_err(ReplayingError::Entry)?;
                core.start_over(cost, Nanos(0));
            }
            // What failed then need not fail now; that it was abandoned decided what came next.
            Entry::Abandoned(now, offers) => {
                core.use_recorded_drafts(RecordedDrafts { offers: offers.clone(), ..RecordedDrafts::default() });
                core.plan_and_abandon(Nanos(*now));
            }
            Entry::Stop(..) | Entry::End => {}
        }
        Ok(())
    }
}

/// `options` with the sizes, the classes and the arithmetic of the recording.
fn options_of(
    header: &Header,
    checkpoint: &Checkpoint,
    options: &EngineOptions,
) -> Result<EngineOptions, ReplayingError> {
    let other = ReplayingError::OtherModel;
    let (weights, kv_dtype, arithmetic) =
        classes(&header.weights, &header.kv_dtype, &header.arithmetic).map_err(other)?;
    let config = ModelConfig::load(checkpoint).map_err(|error| other(error.to_string()))?;
    let limits = header.limits();
    let cache = config.cache_shape(kv_dtype, limits.num_blocks, limits.block_size);
    Ok(EngineOptions {
        weights,
        as_stored: header.as_stored,
        kv_dtype,
        arithmetic: Some(arithmetic),
        max_model_len: Some(limits.max_model_len),
        max_num_seqs: limits.max_num_seqs,
        max_num_batched_tokens: limits.max_num_batched_tokens,
        block_size: limits.block_size,
        kv_cache_bytes: Some(cache.bytes() as u64),
        ..options.clone()
    })
}
