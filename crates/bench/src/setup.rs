//! What is measured and how, and why nothing could be measured.

use std::io;

use checkpoint::{Checkpoint, LoadError};
use kernels::limits::MeasureError;
use kernels::{Cpu, CpuError, CpuOptions, Isa, OutOfMemory};
use launch::{Chosen, ModelSettings};
use serde_json::Value;

/// How far it is, for a person who waits: what is done, and of how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BenchProgress<'a> {
    /// Bytes of weights.
    Loading(u64, u64),
    /// Rounds, tests or seconds of what is named.
    Measuring(&'a str, u64, u64),
    /// Rows come, or it ends.
    Over,
}

/// Called with it.
pub type OnProgress<'a> = &'a (dyn Fn(BenchProgress<'_>) + Sync);

/// What is measured, how often, and who waits for it.
#[derive(Clone, Copy)]
pub struct BenchSetup<'a> {
    /// The model.
    pub checkpoint: &'a Checkpoint,
    /// How it is held.
    pub model: &'a ModelSettings,
    /// The weights that it is loaded with.
    pub chosen: Chosen,
    /// An instruction set below the best one; `None`: the best.
    pub isa: Option<Isa>,
    /// Samples of each figure.
    pub repetitions: usize,
    /// Tokens of prompts; of these and the next four every combination is measured.
    pub n_prompt: &'a [usize],
    /// Decode steps.
    pub n_gen: &'a [usize],
    /// Tokens in the cache before.
    pub n_depth: &'a [usize],
    /// Rows of a pass over a prompt.
    pub batch_size: &'a [usize],
    /// Sequences that decode together.
    pub parallel: &'a [usize],
    /// The rank of adapters.
    pub lora_rank: usize,
    /// Who waits.
    pub progress: OnProgress<'a>,
    /// The moment, as results have it.
    pub now: fn() -> String,
    /// A line for a person.
    pub note: &'a (dyn Fn(&str) + Sync),
}

impl BenchSetup<'_> {
    /// The backend, without a model. The thread that computes adopts it.
    pub(crate) fn cpu(&self) -> Result<Cpu, BenchError> {
        let model = self.model;
        let options =
            CpuOptions { threads: model.threads, isa: self.isa, arithmetic: model.arithmetic, nodes: model.nodes };
        Ok(Cpu::new(options)?)
    }
}

/// A result that is no table of rows.
pub struct BenchReport {
    /// For programs.
    pub json: Value,
    /// For people.
    pub text: String,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The model cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// There is no such backend here.
    #[error(transparent)]
    Cpu(#[from] CpuError),
    /// The machine's limits cannot be measured.
    #[error(transparent)]
    Limits(#[from] MeasureError),
    /// What was asked for cannot be measured.
    #[error("{0}")]
    Usage(String),
    /// A request failed, or an answer is not what it has to be.
    #[error("{0}")]
    Failed(String),
    /// The result cannot be written.
    #[error("output: {0}")]
    Output(#[from] io::Error),
}

impl From<OutOfMemory> for BenchError {
    fn from(error: OutOfMemory) -> BenchError {
        BenchError::Limits(error.into())
    }
}
