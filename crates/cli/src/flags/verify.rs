//! Flags of `verify`: which receipts, with which model, on what.

use std::path::PathBuf;

use clap::Args;

use super::values::{instruction_set, positive, reasoning_parser, rows, tool_call_parser};

/// Flags of `verify`.
#[derive(Args, Debug)]
pub(crate) struct VerifyFlags {
    /// Receipts as JSON, any number in a file: a receipt, one on each line, or whole answers of the server (streamed
    /// ones too). Default, or -: standard input.
    #[arg(value_name = "RECEIPT")]
    pub(crate) receipts: Vec<PathBuf>,
    /// The model that is said to have answered, as for serve. Default: the built-in model. Weights and cache have the
    /// classes, and sums the order, that the receipts name.
    #[arg(short = 'm', long, value_name = "DIR|GGUF|HUB_ID")]
    pub(crate) model: Option<String>,
    /// Instruction set to compute with. Default: the best of this machine. Any gives the same bits.
    #[arg(long, value_name = "NAME", value_parser = instruction_set)]
    pub(crate) isa: Option<kernels::Isa>,
    /// Threads that compute. Any number gives the same bits. Default: one per physical core that this process may use.
    #[arg(short = 't', long, value_name = "N", value_parser = positive)]
    pub(crate) threads: Option<usize>,
    /// Rows of one forward pass. Any number gives the same bits.
    #[arg(long, value_name = "N", value_parser = rows, default_value = "512")]
    pub(crate) max_num_batched_tokens: usize,
    /// How the server told thoughts from answers, as its flag of this name said. Default: as its chat template
    /// shows.
    #[arg(long, value_name = "NAME", value_parser = reasoning_parser)]
    pub(crate) reasoning_parser: Option<String>,
    /// How it told calls of tools, likewise.
    #[arg(long, value_name = "NAME", value_parser = tool_call_parser)]
    pub(crate) tool_call_parser: Option<String>,
    /// Print one JSON object for each receipt.
    #[arg(long)]
    pub(crate) json: bool,
}
