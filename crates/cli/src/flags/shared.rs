//! Flags that several verbs have: which model, and how it is held in memory.

use std::convert::Infallible;

use bench::load::{Api, Target};
use clap::{Args, ValueEnum};
use clap_complete::ArgValueCompleter;
use engine::DeviceChoice;
use kernels::threads::NodeChoice;

use super::completions::models;
use super::values::{positive, size};
use crate::failure::Failure;

/// Which model, and how it is held in memory.
#[derive(Args, Clone, Debug)]
pub(crate) struct ModelFlags {
    /// A directory in Hugging Face layout, a GGUF file (of several parts, the first), or a hub id such as
    /// Qwen/Qwen2.5-0.5B-Instruct, taken from the local Hugging Face cache or downloaded into it. Default: the built-in
    /// model.
    #[arg(short = 'm', long, value_name = "DIR|GGUF|HUB_ID", add = ArgValueCompleter::new(models))]
    pub(crate) model: Option<String>,
    /// Precision of the weights in memory: bf16, int8 with a scale per 128 weights, or int4 with a scale per 32
    /// weights (what would lose the most stays int8). auto takes what the checkpoint is stored in, and int8 where
    /// bf16 would not fit into the free memory.
    #[arg(long, value_enum, default_value_t = Weights::Auto)]
    pub(crate) weights: Weights,
    /// Precision of keys and values in the KV cache: bf16, or int8 with one scale for each key and each value of a
    /// head.
    #[arg(long, visible_alias = "kv-cache-dtype", value_enum, default_value_t = KvPrecision::Bf16)]
    pub(crate) kv_dtype: KvPrecision,
    /// Memory for the experts of a mixture (8GiB, 500MB), where not all fit: of each layer those used most stay in
    /// memory, the others are read from disk when rows go through them. Default: all are in memory.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) expert_memory: Option<u64>,
    /// Order in which products of 16-bit numbers are summed: pairs is fast with AVX-512 BF16, tiles with AMX. auto
    /// takes tiles where there is AMX, else pairs. Answers differ in their last bits, so name one where machines are to
    /// agree.
    #[arg(long, value_enum, default_value_t = SumOrder::Auto)]
    pub(crate) arithmetic: SumOrder,
    /// What computes: cpu, gpu, gpu:N with the number that `doctor --device gpu` shows, or auto: the first GPU that is no
    /// software, where it computes this model, and else the CPU. Answers are the same. A GPU needs a Vulkan driver.
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceChoice::Cpu)]
    pub(crate) device: DeviceChoice,
    /// Threads that compute. Default: one per physical core that this process may use.
    #[arg(short = 't', long, value_name = "N", value_parser = positive)]
    pub(crate) threads: Option<usize>,
    /// Take the machine for one with a single memory node. Otherwise weights, keys and values are on the nodes whose
    /// cores compute with them: the fewest nodes that have a core for each thread. Answers are the same.
    #[arg(long)]
    pub(crate) no_numa: bool,
    /// Neither use nor keep packed weights on disk, nor the small results beside them. They make the next start faster
    /// and take the room of the weights in memory; `doctor` says where they are.
    #[arg(long)]
    pub(crate) no_packed_cache: bool,
}

impl ModelFlags {
    /// `--no-numa`.
    pub(crate) fn nodes(&self) -> NodeChoice {
        if self.no_numa { NodeChoice::One } else { NodeChoice::AsFound }
    }
}

/// `--weights`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Weights {
    /// As the checkpoint is stored, or int8 where that does not fit.
    Auto,
    /// 16-bit brain floats, as most checkpoints are stored.
    Bf16,
    /// 8-bit integers: half the memory, faster decode, a small loss of precision.
    Int8,
    /// 16 levels, 4.25 bits with their scales: a quarter of the memory, a larger loss of precision. What would lose the
    /// most of it is 8-bit.
    Int4,
}

impl Weights {
    /// As the kernels name it; `None` for auto.
    pub(crate) fn class(self) -> Option<kernels::WeightClass> {
        match self {
            Weights::Auto => None,
            Weights::Bf16 => Some(kernels::WeightClass::Bf16),
            Weights::Int8 => Some(kernels::WeightClass::Int8),
            Weights::Int4 => Some(kernels::WeightClass::Int4),
        }
    }
}

/// `--kv-dtype`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KvPrecision {
    /// 16-bit brain floats.
    Bf16,
    /// 8-bit integers: half the memory, faster attention over long contexts, a small loss of precision.
    Int8,
}

impl KvPrecision {
    /// As the kernels name it.
    pub(crate) fn dtype(self) -> kernels::KvDtype {
        match self {
            KvPrecision::Bf16 => kernels::KvDtype::Bf16,
            KvPrecision::Int8 => kernels::KvDtype::Int8,
        }
    }
}

/// `--arithmetic`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SumOrder {
    /// Tiles where there is AMX, else pairs.
    Auto,
    /// Pair after pair in one chain, as AVX-512 BF16 does.
    Pairs,
    /// An even and an odd chain in steps of 32, as AMX does.
    Tiles,
}

impl SumOrder {
    /// As the kernels name it; `None` for auto.
    pub(crate) fn arithmetic(self) -> Option<kernels::AccumulationOrder> {
        match self {
            SumOrder::Auto => None,
            SumOrder::Pairs => Some(kernels::AccumulationOrder::Vdpbf16),
            SumOrder::Tiles => Some(kernels::AccumulationOrder::Amx),
        }
    }
}

/// A server that is asked, and how to be let in.
#[derive(Args, Debug)]
pub(crate) struct ServerFlags {
    /// The server: a URL, or a host with or without a port.
    #[arg(long, value_name = "URL", value_parser = with_scheme, default_value = "http://127.0.0.1:8000", env = "TWOSTROKE_HOST")]
    pub(crate) url: String,
    /// Key sent as a bearer token. A key sees its own requests alone.
    #[arg(long, value_name = "KEY", env = "OPENAI_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Option<String>,
    /// Trust any certificate of an https server.
    #[arg(long)]
    pub(crate) insecure: bool,
}

/// An address without a scheme, which Ollama's variable has, is one of http; without a port, of `serve`'s own.
fn with_scheme(address: &str) -> Result<String, Infallible> {
    let has_port = address.rsplit(']').next().is_some_and(|behind| behind.contains(':'));
    Ok(match (address.contains("://"), has_port) {
        (true, _) => address.to_owned(),
        (false, true) => format!("http://{address}"),
        (false, false) => format!("http://{address}:8000"),
    })
}

impl ServerFlags {
    /// Where to ask.
    pub(crate) fn target(&self) -> Result<Target, Failure> {
        let mut target = Target::new(&self.url, None, Api::Completions, self.insecure).map_err(Failure::usage)?;
        if let Some(key) = &self.api_key {
            target.set_key(key).map_err(Failure::usage)?;
        }
        Ok(target)
    }
}
