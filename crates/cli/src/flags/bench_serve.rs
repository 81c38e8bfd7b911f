//! Flags of `bench-serve`: the load and its report, in vLLM's words.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::values::{
    count, count_or_zero, goal, load_or_zero, metric, number, pause, percentile, positive, rate, seats, sent, spread,
    turns,
};

/// Flags of `bench-serve`.
#[derive(Args, Debug)]
pub(crate) struct BenchServeFlags {
    /// The server, http or https; its routes begin with /v1.
    #[arg(long, value_name = "URL", conflicts_with_all = ["host", "port"])]
    pub(crate) base_url: Option<String>,
    /// Host of the server.
    #[arg(long, value_name = "NAME", default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Port of the server.
    #[arg(long, value_name = "PORT", default_value_t = 8000)]
    pub(crate) port: u16,
    /// Which API to ask: openai sends token ids to /v1/completions, openai-chat text to /v1/chat/completions.
    #[arg(long, value_enum, default_value_t = LoadApi::Openai)]
    pub(crate) backend: LoadApi,
    /// Another route than the API's own.
    #[arg(long, value_name = "PATH")]
    pub(crate) endpoint: Option<String>,
    /// The model's name at the server. Default: the first one that it lists.
    #[arg(short = 'm', long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// Key sent as a bearer token.
    #[arg(long, value_name = "KEY", env = "OPENAI_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Option<String>,
    /// https: take any certificate.
    #[arg(long)]
    pub(crate) insecure: bool,
    /// A header for every request; may be repeated.
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) header: Vec<String>,
    /// Further fields of every request, as a JSON object.
    #[arg(long, value_name = "JSON")]
    pub(crate) extra_body: Option<String>,
    /// Where prompts come from: random tokens, a few prefixes before many suffixes, conversations, or a trace.
    #[arg(long, value_enum, default_value_t = LoadDataset::Random)]
    pub(crate) dataset_name: LoadDataset,
    /// trace: a file in Mooncake's or Azure's format, plain or gzip. Its moments are kept; the rate is not used.
    #[arg(long, value_name = "FILE", required_if_eq("dataset_name", "trace"))]
    pub(crate) dataset_path: Option<PathBuf>,
    /// Requests to send.
    #[arg(long, value_name = "N", value_parser = sent, default_value = "1000")]
    pub(crate) num_prompts: usize,
    /// random: tokens of a prompt after the shared prefix.
    #[arg(long, visible_alias = "input-len", value_name = "N", value_parser = count, default_value = "1024")]
    pub(crate) random_input_len: usize,
    /// random: tokens of an answer.
    #[arg(long, visible_alias = "output-len", value_name = "N", value_parser = count, default_value = "128")]
    pub(crate) random_output_len: usize,
    /// random: lengths vary by this part of the mean, 0 to below 1.
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) random_range_ratio: f64,
    /// random: tokens that all prompts begin with.
    #[arg(long, value_name = "N", value_parser = count_or_zero, default_value = "0")]
    pub(crate) random_prefix_len: usize,
    /// prefix_repetition: tokens of a prefix.
    #[arg(long, value_name = "N", value_parser = count, default_value = "256")]
    pub(crate) prefix_repetition_prefix_len: usize,
    /// prefix_repetition: tokens of a suffix.
    #[arg(long, value_name = "N", value_parser = count, default_value = "256")]
    pub(crate) prefix_repetition_suffix_len: usize,
    /// prefix_repetition: different prefixes.
    #[arg(long, value_name = "N", value_parser = seats, default_value = "10")]
    pub(crate) prefix_repetition_num_prefixes: usize,
    /// prefix_repetition: tokens of an answer.
    #[arg(long, value_name = "N", value_parser = count, default_value = "128")]
    pub(crate) prefix_repetition_output_len: usize,
    /// sessions: turns of a conversation; each quotes all before it. The defaults are an agent's.
    #[arg(long, value_name = "N", value_parser = turns, default_value = "43")]
    pub(crate) sessions_num_turns: usize,
    /// sessions: mean tokens that a turn appends.
    #[arg(long, value_name = "N", value_parser = count, default_value = "700")]
    pub(crate) sessions_input_len: usize,
    /// sessions: mean tokens of an answer.
    #[arg(long, value_name = "N", value_parser = count, default_value = "444")]
    pub(crate) sessions_output_len: usize,
    /// sessions: tokens that all conversations begin with.
    #[arg(long, value_name = "N", value_parser = count_or_zero, default_value = "0")]
    pub(crate) sessions_prefix_len: usize,
    /// sessions: mean pause between an answer and the next turn.
    #[arg(long, value_name = "TIME", value_parser = pause, default_value = "2s")]
    pub(crate) sessions_pause: f64,
    /// sessions: coefficient of variation of both lengths; 0: all alike.
    #[arg(long, value_name = "X", value_parser = spread, default_value = "0.5")]
    pub(crate) sessions_length_cv: f64,
    /// Requests per second; inf sends all at once. Of sessions every turn is a request.
    #[arg(long, value_name = "X", default_value_t = f64::INFINITY, allow_negative_numbers = true)]
    pub(crate) request_rate: f64,
    /// 1 is a Poisson process, less is burstier, more is steadier.
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_negative_numbers = true)]
    pub(crate) burstiness: f64,
    /// Most requests open at once; the others wait at the client.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) max_concurrency: Option<usize>,
    /// Let the rate grow over the run.
    #[arg(long, value_enum, requires_all = ["ramp_up_start_rps", "ramp_up_end_rps"])]
    pub(crate) ramp_up_strategy: Option<RampUp>,
    /// Requests per second at the beginning.
    #[arg(long, value_name = "X", requires = "ramp_up_strategy", allow_negative_numbers = true)]
    pub(crate) ramp_up_start_rps: Option<f64>,
    /// Requests per second at the end.
    #[arg(long, value_name = "X", requires = "ramp_up_strategy", allow_negative_numbers = true)]
    pub(crate) ramp_up_end_rps: Option<f64>,
    /// Measure at each of these rates in turn; ends with a table of throughput against latency.
    #[arg(long, value_name = "X,..", value_delimiter = ',', allow_negative_numbers = true,
        conflicts_with_all = ["request_rate", "ramp_up_strategy", "sweep_max_concurrency"])]
    pub(crate) sweep_request_rate: Vec<f64>,
    /// Measure with each of these numbers of requests open at once in turn; ends with the same table.
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = positive, conflicts_with = "max_concurrency")]
    pub(crate) sweep_max_concurrency: Vec<usize>,
    /// Send this many requests for each one open at once, instead of --num-prompts at every point.
    #[arg(long, value_name = "N", value_parser = positive, requires = "sweep_max_concurrency", conflicts_with = "num_prompts")]
    pub(crate) sweep_num_prompts_factor: Option<usize>,
    /// Draw the sweep, TTFT against throughput, as SVG.
    #[arg(long, value_name = "FILE")]
    pub(crate) sweep_svg: Option<PathBuf>,
    /// Send requests of one token beside the load, X per second, and report their times apart from it.
    #[arg(long, value_name = "X", value_parser = rate)]
    pub(crate) probe_request_rate: Option<f64>,
    /// What a good request keeps, in milliseconds: ttft:500 tpot:50 e2el:10000.
    #[arg(long, value_name = "METRIC:MS", num_args = 1.., value_parser = goal)]
    pub(crate) goodput: Vec<bench::load::Goal>,
    /// Metrics to report, of ttft, tpot, itl, e2el.
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', default_value = "ttft,tpot,itl", value_parser = metric)]
    pub(crate) percentile_metrics: Vec<bench::load::Metric>,
    /// Their percentiles.
    #[arg(long, value_name = "P,..", value_delimiter = ',', default_value = "99", value_parser = percentile)]
    pub(crate) metric_percentiles: Vec<f64>,
    /// Requests before the measurement that do not count.
    #[arg(long, value_name = "N", value_parser = load_or_zero, default_value = "0")]
    pub(crate) num_warmups: usize,
    /// Do not end answers at the model's end-of-text token, so that all have the length asked for.
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// Randomness of answers. Default: the server's.
    #[arg(long, value_name = "X", value_parser = number)]
    pub(crate) temperature: Option<f64>,
    /// The same seed sends the same prompts at the same moments.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Write the result as JSON to a file.
    #[arg(long)]
    pub(crate) save_result: bool,
    /// With every request's times in it.
    #[arg(long)]
    pub(crate) save_detailed: bool,
    /// Directory of the file. Default: the current one.
    #[arg(long, value_name = "DIR")]
    pub(crate) result_dir: Option<PathBuf>,
    /// Name of the file. Default: from the API, rate, model and time.
    #[arg(long, value_name = "NAME")]
    pub(crate) result_filename: Option<String>,
    /// Print the JSON instead of the block of text.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `bench-serve --backend`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LoadApi {
    /// /v1/completions.
    Openai,
    /// /v1/chat/completions.
    OpenaiChat,
}

/// `bench-serve --dataset-name`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LoadDataset {
    /// Random tokens.
    Random,
    /// A few prefixes before many suffixes.
    #[value(name = "prefix_repetition")]
    PrefixRepetition,
    /// Conversations in turns, as `sim --workload sessions`.
    Sessions,
    /// What a service recorded.
    Trace,
}

/// `bench-serve --ramp-up-strategy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RampUp {
    /// In equal steps.
    Linear,
    /// In equal ratios.
    Exponential,
}
