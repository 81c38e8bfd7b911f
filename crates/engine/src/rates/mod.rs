//! What the machine can do and what steps cost, as far as the running engine knows better than its start did.

mod correction;
mod peaks;
mod store;

pub(crate) use peaks::RooflinePeaks;
pub(crate) use store::{CalibrationUpdater, CurrentTargets, TargetDefaults};
