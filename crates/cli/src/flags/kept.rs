//! Flags of the verbs about models that are on this disk, and of `completion`.

use clap::Args;

/// Flags of `list`.
#[derive(Args, Debug)]
pub(crate) struct ListFlags {
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Flags of `show`.
#[derive(Args, Debug)]
pub(crate) struct ShowFlags {
    /// What -m takes, and the names that `plan` knows. Default: the built-in model.
    #[arg(value_name = "DIR|GGUF|HUB_ID")]
    pub(crate) model: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Flags of `rm`.
#[derive(Args, Debug)]
pub(crate) struct RmFlags {
    /// Models by the hub's names, as `list` has them.
    #[arg(value_name = "HUB_ID", required = true)]
    pub(crate) models: Vec<String>,
}

/// Flags of `completion`.
#[derive(Args, Debug)]
pub(crate) struct CompletionFlags {
    /// The shell.
    #[arg(value_name = "SHELL", value_enum)]
    pub(crate) shell: clap_complete::Shell,
}
