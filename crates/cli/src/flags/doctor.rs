//! Flags of `doctor`: how many threads to measure with.

use clap::Args;
use engine::DeviceChoice;

use super::values::positive;

/// Flags of `doctor`.
#[derive(Args, Debug)]
pub(crate) struct DoctorFlags {
    /// Threads to measure with. Default: one per physical core that this process may use.
    #[arg(short = 't', long, value_name = "N", value_parser = positive)]
    pub(crate) threads: Option<usize>,
    /// What computes: cpu, gpu, gpu:N or auto. Of a GPU: all that there are with their numbers, whether it gives the bits
    /// of the definition, and its limits.
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceChoice::Cpu)]
    pub(crate) device: DeviceChoice,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}
