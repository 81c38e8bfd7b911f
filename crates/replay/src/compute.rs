//! The same with everything else: the model computes each step, and tokens, stop strings and failures are compared too.

use checkpoint::Checkpoint;
use engine::recording::Entry;
use engine::replaying::{RecordedEngine, ReplayingError};
use engine::{EngineOptions, StartError};
use model::Progress;

use crate::read::{Recording, RecordingError};
use crate::replay::{Difference, Replayed};

/// Why a replay with a model could not begin or go on.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The recording.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// The model.
    #[error(transparent)]
    Start(#[from] StartError),
    /// What computes is lost.
    #[error(transparent)]
    Device(ReplayingError),
}

/// As [`replay`](crate::replay()), and the model of `checkpoint` computes each step. `options` says on how many threads
/// and so on; sizes and classes are the recording's.
pub fn replay_with_model(
    mut recording: Recording,
    checkpoint: &Checkpoint,
    options: &EngineOptions,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Replayed, ReplayError> {
    let engine = RecordedEngine::load(&recording.header, checkpoint, options, progress);
    let mut engine = engine.map_err(|error| refused(error, &recording))?;
    let mut replayed = Replayed::default();
    let mut first = None;
    while let Some(entry) = recording.next()? {
        // Of what the engine says, everything must be in the recording, and in this order.
        let mut came = engine.told();
        if came.is_none() && !matches!(entry, Entry::Stop(..)) {
            engine.take(&entry).map_err(|error| refused(error, &recording))?;
            came = engine.told();
        }
        if came.as_ref() != Some(&entry) {
            let difference = Difference::between(&entry, came.as_ref());
            replayed.difference = Some(Difference { line: recording.line(), ..difference });
            return Ok(replayed);
        }
        replayed.count(&entry, &mut first);
    }
    replayed.was_cut_off = !recording.has_end;
    Ok(replayed)
}

fn refused(error: ReplayingError, recording: &Recording) -> ReplayError {
    match error {
        ReplayingError::Start(error) => ReplayError::Start(error),
        ReplayingError::OtherModel(problem) => RecordingError::OtherModel { problem }.into(),
        ReplayingError::Entry(problem) => recording.wrong(problem).into(),
        ReplayingError::Device(_) => ReplayError::Device(error),
    }
}
