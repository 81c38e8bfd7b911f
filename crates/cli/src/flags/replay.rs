//! Flags of `replay`: which recording, with which model.

use std::path::PathBuf;

use clap::Args;

use super::values::positive;

/// Flags of `replay`.
#[derive(Args, Debug)]
pub(crate) struct ReplayFlags {
    /// The recording.
    #[arg(value_name = "LOG")]
    pub(crate) log: PathBuf,
    /// The model that was recorded, as for serve, to compute and compare the tokens too; `lantern` is the built-in one.
    /// Weights and cache have the classes of the recording.
    #[arg(short = 'm', long, value_name = "DIR|GGUF|HUB_ID")]
    pub(crate) model: Option<String>,
    /// Threads that compute. Any number gives the same bits. Default: one per physical core that this process may use.
    #[arg(short = 't', long, value_name = "N", value_parser = positive)]
    pub(crate) threads: Option<usize>,
    /// Also write the steps and requests as a trace (JSON of the Trace Event Format) that ui.perfetto.dev and
    /// chrome://tracing open: a lane per request with its phases, whose time it was, and arrows from prompts to the
    /// tokens that they delayed.
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    pub(crate) trace: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}
