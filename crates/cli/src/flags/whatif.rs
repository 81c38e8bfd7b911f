//! Flags of `whatif`: which recording, and what is set otherwise.

use std::path::PathBuf;

use clap::Args;

use super::values::{blocks, rows, seats, target};

/// Flags of `whatif`.
#[derive(Args, Debug)]
pub(crate) struct WhatifFlags {
    /// The recording.
    #[arg(value_name = "LOG")]
    pub(crate) log: PathBuf,
    /// Target for the time from arrival to first token of every request (500ms, 2s); off: no target.
    #[arg(long, value_name = "TIME|off", value_parser = fixed_target)]
    pub(crate) ttft_slo: Option<Target>,
    /// Target for the mean time from one token of an answer to the next (50ms); off: no target.
    #[arg(long, value_name = "TIME|off", value_parser = fixed_target)]
    pub(crate) tpot_slo: Option<Target>,
    /// KV blocks.
    #[arg(long, value_name = "N", value_parser = blocks)]
    pub(crate) kv_blocks: Option<usize>,
    /// Rows of one forward pass.
    #[arg(long, value_name = "N", value_parser = rows)]
    pub(crate) max_num_batched_tokens: Option<usize>,
    /// Rows of one prompt in one forward pass.
    #[arg(long, visible_alias = "long-prefill-token-threshold", value_name = "N", value_parser = rows)]
    pub(crate) max_prefill_chunk: Option<usize>,
    /// Prompts that may be in prefill in one forward pass.
    #[arg(long, value_name = "N", value_parser = seats)]
    pub(crate) max_num_partial_prefills: Option<usize>,
    /// Sequences that run together.
    #[arg(long, value_name = "N", value_parser = seats)]
    pub(crate) max_num_seqs: Option<usize>,
    /// Compute every prompt in full.
    #[arg(long)]
    pub(crate) no_enable_prefix_caching: bool,
    /// off: no speculative decoding, where the recorded server had it.
    #[arg(long, value_name = "off", value_parser = ["off"])]
    pub(crate) speculate: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A target, or none.
pub(crate) type Target = Option<std::time::Duration>;

/// `off`, or a time: what was automatic then has a value in the recording.
fn fixed_target(text: &str) -> Result<Target, String> {
    match target(text)? {
        engine::DefaultTarget::None => Ok(None),
        engine::DefaultTarget::Fixed(time) => Ok(Some(time)),
        engine::DefaultTarget::Auto => Err("not a time; examples: 500ms, 2s, off".into()),
    }
}
