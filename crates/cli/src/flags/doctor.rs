//! Flags of `doctor`: how many threads to measure with.

use clap::Args;

use super::values::positive;

/// Flags of `doctor`.
#[derive(Args, Debug)]
pub(crate) struct DoctorFlags {
    /// Threads to measure with. Default: one per physical core that this process may use.
    #[arg(short = 't', long, value_name = "N", value_parser = positive)]
    pub(crate) threads: Option<usize>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}
