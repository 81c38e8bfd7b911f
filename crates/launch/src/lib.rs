//! From names, settings and variables to a running engine. A command line parses, this resolves; so does whatever else
//! wants an engine.
//!
//! ```text
//! a name, variables ──open──> Checkpoint ──────────────────────────────┐
//! ModelSettings ──choose─────────┴──> Chosen: the class of the weights ─┤
//! a JSON object ──speculation──> Speculation ─────────────────────────────────┤
//! Settings: what was asked for, the rest left open ──options────────────┴──> EngineOptions ──start──> Engine
//! ```
//! [`Settings`] has a field for each thing that can be asked for, most of them optional; [`Settings::options`] is the
//! one place that decides the defaults, and the one that makes [`EngineOptions`](engine::EngineOptions).
//! Nothing here reads the environment: variables come in as a function ([`Variables::read`]).

pub mod machine;
mod named;
mod settings;
mod speculation;
mod variables;

pub use named::{OpenError, SHIPPED_NAME, is_hub_id, open, path_of, shipped};
pub use settings::{Calibrate, Chosen, ModelSettings, Settings, WeightClassReason};
pub use speculation::speculation;
pub use variables::Variables;

#[cfg(test)]
mod tests;
