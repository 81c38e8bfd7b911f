//! Flags of `bench`: lengths and batches, in llama-bench's letters.

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Args, ValueEnum};

use super::shared::ModelFlags;
use super::values::{adapters, count_or_zero, instruction_set, rank, rows, seats, share};

/// Flags of `bench`.
#[derive(Args, Debug)]
pub(crate) struct BenchFlags {
    /// What to measure; without one the forward pass, by the flags below.
    #[arg(value_name = "SUBJECT", value_parser = subject(), default_value = bench::SUBJECTS[0].name,
        conflicts_with_all = ["cost_model", "synthetic_acceptance", "synthetic_loras"])]
    pub(crate) subject: String,
    #[command(flatten)]
    pub(crate) model: ModelFlags,
    /// Prompt lengths to measure, separated by commas; 0 skips prefill.
    #[arg(short = 'p', long, value_name = "N,..", value_delimiter = ',', default_value = "512", value_parser = count_or_zero)]
    pub(crate) n_prompt: Vec<usize>,
    /// Decode steps to measure; 0 skips decode.
    #[arg(short = 'n', long, value_name = "N,..", value_delimiter = ',', default_value = "128", value_parser = count_or_zero)]
    pub(crate) n_gen: Vec<usize>,
    /// Tokens in the cache before the measurement begins.
    #[arg(short = 'd', long, value_name = "N,..", value_delimiter = ',', default_value = "0", value_parser = count_or_zero)]
    pub(crate) n_depth: Vec<usize>,
    /// Rows of one forward pass in prefill.
    #[arg(short = 'b', long, value_name = "N,..", value_delimiter = ',', default_value = "512", value_parser = rows)]
    pub(crate) batch_size: Vec<usize>,
    /// Batch size (concurrent sequences).
    #[arg(short = 'B', long, value_name = "N,..", value_delimiter = ',', default_value = "1", value_parser = seats)]
    pub(crate) parallel: Vec<usize>,
    /// Take a lower instruction set than the best one of this CPU: the same bits, slower.
    #[arg(long, value_name = "NAME", value_parser = instruction_set)]
    pub(crate) isa: Option<kernels::Isa>,
    /// Instead of all that: how well the engine predicts the time of its steps, on half a minute of mixed requests.
    #[arg(long, conflicts_with_all = ["n_prompt", "n_gen", "n_depth", "batch_size", "parallel", "repetitions", "output"])]
    pub(crate) cost_model: bool,
    /// Instead of all that: what drafts that hold with this chance bring to -B streams with answers of -n tokens, the
    /// engine with and without them in turns.
    #[arg(long, value_name = "A", value_parser = share, conflicts_with_all = ["n_prompt", "n_depth", "batch_size", "output", "cost_model"])]
    pub(crate) synthetic_acceptance: Option<f64>,
    /// Instead of all that: what N adapters (LoRA) of random numbers cost -B streams that decode -n steps, each through
    /// one of them, in turns with none.
    #[arg(long, value_name = "N", value_parser = adapters, conflicts_with_all = ["n_prompt", "batch_size", "output", "cost_model", "synthetic_acceptance"])]
    pub(crate) synthetic_loras: Option<usize>,
    /// The rank of those, and of low-rank.
    #[arg(long, value_name = "N", value_parser = rank, default_value = "16")]
    pub(crate) lora_rank: usize,
    /// Repetitions of each test.
    #[arg(short = 'r', long, value_name = "N", value_parser = seats, default_value = "5")]
    pub(crate) repetitions: usize,
    /// Form of the result.
    #[arg(short = 'o', long, value_enum, default_value_t = Output::Md)]
    pub(crate) output: Output,
    /// The same as -o json.
    #[arg(long, conflicts_with = "output")]
    pub(crate) json: bool,
}

/// The subjects by name, each with a line about it.
fn subject() -> PossibleValuesParser {
    PossibleValuesParser::new(bench::SUBJECTS.map(|subject| PossibleValue::new(subject.name).help(subject.about)))
}

/// `bench -o`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// A Markdown table.
    Md,
    /// One JSON array.
    Json,
    /// One JSON object per line, as each test ends.
    Jsonl,
    /// Comma-separated values with a header.
    Csv,
}
