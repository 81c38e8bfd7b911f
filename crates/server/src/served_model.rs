//! The model as clients see it: its names, how it thinks and calls tools, and what its passes cost.

use engine::ModelInfo;
use engine::receipt::Provenance;
use roofline::Demands;
use telemetry::time_format::unix_seconds;
use tokio::sync::OnceCell;

use crate::ServerOptions;
use crate::conversation::ToolFormat;

pub(crate) struct ServedModel {
    /// Names that it answers to, the first being its own.
    pub(crate) names: Vec<String>,
    /// Names of the adapters that were there at the start: the operator's.
    pub(crate) first_adapters: Vec<String>,
    /// How it thinks and calls tools.
    pub(crate) tool_format: ToolFormat,
    /// What its passes ask of the machine.
    pub(crate) demands: Demands,
    /// Seconds since 1970 at the start.
    pub(crate) created: u64,
    /// What all receipts share.
    pub(crate) basis: OnceCell<Provenance>,
}

impl ServedModel {
    pub(crate) fn new(model: &ModelInfo, options: &ServerOptions) -> ServedModel {
        let names = &options.served_model_names;
        ServedModel {
            names: if names.is_empty() { vec![model.name.clone()] } else { names.clone() },
            first_adapters: model.adapters.list().into_iter().map(|adapter| adapter.name).collect(),
            tool_format: ToolFormat::of(model, &options.parsers),
            demands: model.demands(),
            created: unix_seconds(),
            basis: OnceCell::new(),
        }
    }
}
