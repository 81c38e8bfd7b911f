//! Flags of `lab`: points of the curves, and where the report goes.

use std::path::PathBuf;

use clap::Args;

use super::shared::ModelFlags;
use super::values::{count, count_or_zero, seats};

/// Flags of `lab`.
#[derive(Args, Debug)]
pub(crate) struct LabFlags {
    #[command(flatten)]
    pub(crate) model: ModelFlags,
    /// Lengths of prompts, separated by commas. Default: 32 to 4,096, as far as the model's context goes.
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = count)]
    pub(crate) prompts: Option<Vec<usize>>,
    /// Tokens in the cache before a decode step. Default: 0 to 4,096, as far as the model's context goes.
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = count_or_zero)]
    pub(crate) positions: Option<Vec<usize>>,
    /// Batch size (concurrent requests). Default: 1 to 64.
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = seats)]
    pub(crate) batches: Option<Vec<usize>>,
    /// Times that each point is measured, after one that warms up.
    #[arg(short = 'r', long, value_name = "N", value_parser = seats, default_value = "5")]
    pub(crate) repetitions: usize,
    /// Directory of the report; made if it is not there.
    #[arg(short = 'o', long, value_name = "DIR", default_value = "lab")]
    pub(crate) output: PathBuf,
    /// Print one JSON object instead of the table.
    #[arg(long)]
    pub(crate) json: bool,
}
