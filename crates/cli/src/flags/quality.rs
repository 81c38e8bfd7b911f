//! Flags of `quality`: on which text, against which model.

use std::path::PathBuf;

use clap::Args;

use super::shared::ModelFlags;
use super::values::{count, count_or_zero};

/// Flags of `quality`.
#[derive(Args, Debug)]
pub(crate) struct QualityFlags {
    #[command(flatten)]
    pub(crate) model: ModelFlags,
    /// The text to measure on: a file in UTF-8. Special tokens written in it are parsed. Default: the calibration text,
    /// 11 kB of technical English in the binary.
    #[arg(long, value_name = "FILE")]
    pub(crate) text: Option<PathBuf>,
    /// Tokens of a window; the text is cut into such windows (suffix k = 1,000, K = 1,024). Default: 2,048 of a text of
    /// yours, 512 of the calibration text, or the model's own limit if that is less.
    #[arg(short = 'c', long, value_name = "N", value_parser = count)]
    pub(crate) max_model_len: Option<usize>,
    /// Tokens at the beginning of each window that are read and not judged; a last window that is not full is then left
    /// out. `-c 512 --skip 256` judges what llama-perplexity judges with its own -c 512. Default: 0 of a text of yours,
    /// half a window of the calibration text.
    #[arg(long, value_name = "N", value_parser = count_or_zero)]
    pub(crate) skip: Option<usize>,
    /// The model to compare with, in float32: for a quantized model the one it was made from. Both read the same
    /// tokens. Default: the weights that -m names, before they are made narrow.
    #[arg(long, value_name = "DIR|GGUF|HUB_ID")]
    pub(crate) reference: Option<String>,
    /// Print one JSON object, with the error of every matrix.
    #[arg(long)]
    pub(crate) json: bool,
}
