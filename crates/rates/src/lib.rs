//! What steps cost on this machine and what it can do, which decisions are based on: measured at the start
//! ([`calibrate`]), kept for the next one ([`kept`]), and corrected while the engine runs.

pub mod calibrate;
mod correction;
mod default_slo;
pub mod kept;
mod limits;
mod peaks;
mod samples;
mod steal;
mod store;

pub use calibrate::{Calibrated, Calibration};
pub use default_slo::{Capacity, DefaultTarget};
pub use limits::MeasuredLimits;
pub use peaks::RooflinePeaks;
pub use samples::StepSamples;
pub use steal::StealMeter;
pub use store::{CalibrationUpdater, CurrentTargets, TargetDefaults};
