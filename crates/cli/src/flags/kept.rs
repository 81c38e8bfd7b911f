//! Flags of the verbs about models that are on this disk.

use clap::Args;
use clap_complete::ArgValueCompleter;

use super::completions::{cached_models, models};
use super::shared::ServerFlags;

/// Flags of `list`.
#[derive(Args, Debug)]
pub(crate) struct ListFlags {
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Flags of `pull`.
#[derive(Args, Debug)]
pub(crate) struct PullFlags {
    /// Models: ORG/NAME of the hub, with :QUANT for one GGUF file, or short names such as llama3.2:1b. Without one, the
    /// short names are listed.
    #[arg(value_name = "MODEL", add = ArgValueCompleter::new(models))]
    pub(crate) models: Vec<String>,
    /// Download a model that does not fit into the free memory all the same.
    #[arg(long)]
    pub(crate) force: bool,
}

/// Flags of `show`.
#[derive(Args, Debug)]
pub(crate) struct ShowFlags {
    /// What -m takes, and the names that `plan` knows. Default: the built-in model.
    #[arg(value_name = "DIR|GGUF|HUB_ID", add = ArgValueCompleter::new(models))]
    pub(crate) model: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Flags of `rm`.
#[derive(Args, Debug)]
pub(crate) struct RmFlags {
    /// Models as `list` has them, or by their short names.
    #[arg(value_name = "MODEL", required = true, add = ArgValueCompleter::new(cached_models))]
    pub(crate) models: Vec<String>,
    /// Do not ask.
    #[arg(short, long)]
    pub(crate) yes: bool,
}

/// Flags of `ps`.
#[derive(Args, Debug)]
pub(crate) struct PsFlags {
    #[command(flatten)]
    pub(crate) server: ServerFlags,
    /// Print what the server answers, one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Flags of `stop`.
#[derive(Args, Debug)]
pub(crate) struct StopFlags {
    /// Models as `ps` has them.
    #[arg(value_name = "MODEL", required = true, add = ArgValueCompleter::new(cached_models))]
    pub(crate) models: Vec<String>,
    #[command(flatten)]
    pub(crate) server: ServerFlags,
}
