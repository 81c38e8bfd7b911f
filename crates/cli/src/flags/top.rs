//! Flags of `top`: which server is watched.

use clap::Args;

use super::shared::ServerFlags;

/// Flags of `top`.
#[derive(Args, Debug)]
pub(crate) struct TopFlags {
    #[command(flatten)]
    pub(crate) server: ServerFlags,
    /// Print one screen as plain text and end.
    #[arg(long)]
    pub(crate) once: bool,
}
