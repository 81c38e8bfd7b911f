//! Flags of `why`: which request, of which server.

use clap::Args;

use super::shared::ServerFlags;
use super::values::listed;

/// Flags of `why`.
#[derive(Args, Debug)]
pub(crate) struct WhyFlags {
    /// The `id` of an answer, or the X-Request-Id of its request. Without one, the slowest of the last requests are
    /// listed.
    #[arg(value_name = "ID")]
    pub(crate) id: Option<String>,
    #[command(flatten)]
    pub(crate) server: ServerFlags,
    /// Without an ID: only requests that were open at that moment or came later (15m ago, 2026-11-22T03:12:00Z,
    /// seconds or milliseconds since 1970).
    #[arg(long, value_name = "MOMENT", conflicts_with = "id")]
    pub(crate) since: Option<String>,
    /// Without an ID: requests in each of the two lists.
    #[arg(long, value_name = "N", value_parser = listed, default_value = "10", conflicts_with = "id")]
    pub(crate) limit: usize,
    /// Print what the server answers: the whole timeline, or the list of requests.
    #[arg(long)]
    pub(crate) json: bool,
}
