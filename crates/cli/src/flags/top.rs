//! Flags of `top`: which server is watched.

use clap::Args;

/// Flags of `top`.
#[derive(Args, Debug)]
pub(crate) struct TopFlags {
    /// The server.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8000")]
    pub(crate) url: String,
    /// Key sent as a bearer token.
    #[arg(long, value_name = "KEY", env = "OPENAI_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Option<String>,
    /// Trust any certificate of an https server.
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Print one screen as plain text and end.
    #[arg(long)]
    pub(crate) once: bool,
}
