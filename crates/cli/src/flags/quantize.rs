//! Flags of `quantize`: from which model, into what.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::values::positive;

/// Flags of `quantize`.
#[derive(Args, Debug)]
pub(crate) struct QuantizeFlags {
    /// A directory in Hugging Face layout with bf16, f16 or f32 weights, or a hub id. Default: the built-in model.
    #[arg(short = 'm', long, value_name = "DIR|HUB_ID")]
    pub(crate) model: Option<String>,
    /// Precision of the layers' matrices in the result.
    #[arg(long, value_enum)]
    pub(crate) weights: Narrow,
    /// The result, which must not exist yet: a directory, or the file of --format gguf.
    #[arg(short = 'o', long, value_name = "PATH")]
    pub(crate) output: PathBuf,
    /// Layout of the result. gguf takes models of the families llama, mistral, qwen2 and qwen3.
    #[arg(long, value_enum, default_value_t = Layout::Safetensors)]
    pub(crate) format: Layout,
    /// With int4: round by what the matrices see on this text, so that what one weight loses is made good by others
    /// (GPTQ), layer by layer; about a fifth of the loss. The first 16,384 tokens are used. With int8: measure what
    /// each matrix loses on the text as well, which finds those whose inputs spike; needs memory for the weights in
    /// float32 beside the narrow ones.
    #[arg(long, value_name = "FILE")]
    pub(crate) text: Option<PathBuf>,
    /// With --weights int4 and --text: raise the matrices that gain the most on the text to int8, until the codes of
    /// the layers' weights have this many bits on average, 4 to 8 (scales come on top).
    #[arg(long, value_name = "B", value_parser = bits, requires = "text")]
    pub(crate) bits: Option<f64>,
    /// Threads that compute; the result does not depend on them. Default: one per physical core that this process may
    /// use.
    #[arg(short = 't', long, value_name = "N", value_parser = positive)]
    pub(crate) threads: Option<usize>,
}

/// Bits of a weight's code, on average.
fn bits(text: &str) -> Result<f64, String> {
    let bits: f64 = text.parse().map_err(|_| "not a number".to_string())?;
    if (4.0..=8.0).contains(&bits) { Ok(bits) } else { Err("from 4 to 8".to_string()) }
}

/// `quantize --format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Layout {
    /// A directory in the layout of compressed-tensors.
    Safetensors,
    /// One GGUF file.
    Gguf,
}

impl Layout {
    /// As the writer names it.
    pub(crate) fn format(self) -> model::export::Format {
        match self {
            Layout::Safetensors => model::export::Format::Safetensors,
            Layout::Gguf => model::export::Format::Gguf,
        }
    }
}

/// `quantize --weights`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Narrow {
    /// 16 bits as they are stored; GGUF only.
    Bf16,
    /// 8-bit integers: W8A16 with a scale per 64 weights, or Q8_0.
    Int8,
    /// 4-bit integers: W4A16 with a scale per 32 weights, or Q4_0.
    Int4,
}

impl Narrow {
    /// As the kernels name it.
    pub(crate) fn class(self) -> kernels::WeightClass {
        match self {
            Narrow::Bf16 => kernels::WeightClass::Bf16,
            Narrow::Int8 => kernels::WeightClass::Int8,
            Narrow::Int4 => kernels::WeightClass::Int4,
        }
    }
}
