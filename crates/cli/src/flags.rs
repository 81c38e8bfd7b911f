//! The verbs. Every flag is declared once with its docs, in the file of the verb that it belongs to (`flags/VERB.rs`),
//! and what several verbs share in [`shared`]; [`values`] reads what is written behind them. `--help` and
//! `docs/reference/flags.md` are generated from these, and a test compares the latter.
//!
//! Where a flag means the same as in vLLM it has vLLM's name; short names are those of llama.cpp. Nothing but flags
//! (through `env = ...`) and [`crate::environment`] reads the environment.

mod batch;
mod bench;
mod bench_serve;
mod doctor;
mod lab;
mod plan;
mod quality;
mod quantize;
mod replay;
mod run;
mod serve;
mod shared;
mod sim;
mod top;
mod values;
mod verify;
mod whatif;
mod why;

use clap::{Parser, Subcommand};

pub(crate) use self::batch::BatchFlags;
pub(crate) use self::bench::{BenchFlags, Output};
pub(crate) use self::bench_serve::{BenchServeFlags, LoadApi, LoadDataset, RampUp};
pub(crate) use self::doctor::DoctorFlags;
pub(crate) use self::lab::LabFlags;
pub(crate) use self::plan::PlanFlags;
pub(crate) use self::quality::QualityFlags;
pub(crate) use self::quantize::QuantizeFlags;
pub(crate) use self::replay::ReplayFlags;
pub(crate) use self::run::RunFlags;
pub(crate) use self::serve::{Beyond, KvEvents, ServeFlags, Speculate};
pub(crate) use self::shared::{KvPrecision, ModelFlags, SumOrder, Weights};
pub(crate) use self::sim::{Reject, SimFlags, Workload};
pub(crate) use self::top::TopFlags;
pub(crate) use self::verify::VerifyFlags;
pub(crate) use self::whatif::{Target, WhatifFlags};
pub(crate) use self::why::WhyFlags;

/// An LLM inference engine organised around the two phases of inference: prefill and decode.
#[derive(Debug, Parser)]
// The last of several counts: scripts append flags to those that they were given.
#[command(args_override_self = true)]
#[command(name = "twostroke", version, propagate_version = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Answer a prompt, or chat. Needs no download: a small model is built in.
    ///
    /// With a PROMPT, or with text on standard input, prints the answer and ends. Otherwise opens a chat: /help lists
    /// its commands, Ctrl-C stops an answer, Ctrl-D leaves. After each answer one line on standard error tells what
    /// both phases did and how far from the machine's limit that was.
    Run(RunFlags),
    /// Serve the OpenAI API over HTTP.
    Serve(Box<ServeFlags>),
    /// Answer a file of requests, a line each, into a file of answers: OpenAI's batches without a server.
    ///
    /// Lines are {"custom_id": "..", "url": "/v1/chat/completions", "body": {..}}. The whole file is checked before the
    /// first is asked. Stopped in the middle, by Ctrl-C or otherwise, the same command goes on where it was, and asks
    /// no line twice. Exit code 1: some lines were refused; their answers say why.
    Batch(BatchFlags),
    /// Measure prefill and decode, beside the machine's limits measured in the same run.
    ///
    /// Flags and rows are llama-bench's. `pp512` is a prompt of 512 tokens, `tg128` is 128 decode steps, `@ d1024`
    /// starts with 1,024 tokens already in the cache, and `x8` decodes 8 sequences together.
    Bench(BenchFlags),
    /// Measure both phases as curves: prefill against the prompt's length, decode against position and batch.
    ///
    /// Writes a table, CSV, JSON, pictures with the fitted laws and one HTML page that can be opened offline, and says
    /// in words what bound each phase and how sure that is. Ctrl-C keeps what was measured.
    Lab(LabFlags),
    /// Load any OpenAI-compatible server and measure TTFT, TPOT, ITL, rates and goodput from the outside.
    ///
    /// Options, result block and JSON fields are those of `vllm bench serve`. TPOT is (end-to-end latency - TTFT) /
    /// (output tokens - 1). A gap above twice the median of its answer and above 20 ms is a stall; a server that keeps
    /// timelines, as this one does, is asked whose prompts took that time. Ctrl-C ends the run and reports what was
    /// answered.
    BenchServe(Box<BenchServeFlags>),
    /// Measure what weights and KV cache cost in quality, against float32, on a text of yours or on one in the binary.
    ///
    /// Perplexity, KL divergence of the next-token distributions, how often the most likely token is the same, and the
    /// error of each matrix. Needs memory for the weights in float32 beside the chosen ones.
    Quality(QualityFlags),
    /// Write a model with narrow weights, for this and other engines.
    ///
    /// safetensors in the layout of compressed-tensors, a directory that vLLM loads too, or one GGUF file for
    /// llama.cpp. A matrix that would lose too much stays as it is stored, and is named.
    Quantize(QuantizeFlags),
    /// Tell what this machine offers: instruction sets, cores, memory, measured limits. Exit code 1 if something is
    /// missing.
    Doctor(DoctorFlags),
    /// Before a weight is read: will a model fit, how fast will it be, how many requests at once, which phase limits.
    ///
    /// Takes a model, a machine and the lengths of a request, and tells memory, TTFT, TPOT and what binds them; with
    /// --users how many machines they need. The floors are lower bounds (roofline), the predictions what engines reach.
    Plan(PlanFlags),
    /// Simulate a load on imagined hardware: the production scheduler under a virtual clock.
    ///
    /// Takes a model, a machine and a load, drawn from a seed or read from a trace, and tells latencies, goodput and
    /// what the machine did. Nothing is loaded or computed; the machine is a cost model.
    Sim(SimFlags),
    /// Do a recorded run (serve --record) again and compare every step. Exit code 0 only if all are equal.
    ///
    /// The recorded requests, cancels and tokens go to the scheduler at the recorded times. With -m the model computes
    /// the tokens again, and they are compared too. The first difference is named.
    Replay(ReplayFlags),
    /// Compute answers again from their receipts ("receipt": true in a request) and compare. Exit code 0 only if all are
    /// equal, 1 if one is not.
    ///
    /// Weights, definition of the arithmetic, prompt, sampling, every token and its logits: any instruction set, number
    /// of threads and rows at a time must give the same bits. The first token that is not the same is named, and what is
    /// likely to differ: the weights, the arithmetic, the quantization, the sampling.
    Verify(VerifyFlags),
    /// What a recorded run (serve --record) would have been with other settings.
    ///
    /// The recorded requests arrive again in the simulator, on a machine as fast as the recorded one was. The first
    /// columns set the same settings, simulated, beside what was recorded: where these two part, the last column is
    /// worth no more.
    Whatif(WhatifFlags),
    /// Watch a server of ours in the terminal: one lane per request, both phases, how far from the machine's limits.
    ///
    /// q quits. Prefill and decode have a colour and a sign each, so that a terminal without colours shows them too.
    Top(TopFlags),
    /// Tell in words where the time of a request went: phase by phase, who delayed it, what helps. Without an ID, list
    /// the slowest.
    ///
    /// Asks a server of ours, which remembers its last thousand requests and those that run.
    Why(WhyFlags),
    /// Print the reference of all flags as Markdown.
    #[command(hide = true)]
    FlagReference,
    /// Render chat templates for another process of this program.
    #[command(hide = true)]
    RenderTemplates,
}

/// What to use instead of a flag that people type from memory of vLLM or llama.cpp and that does not exist here.
pub(crate) fn hint(flag: &str) -> Option<&'static str> {
    let name = flag.split('=').next().unwrap_or(flag);
    Some(match name {
        "--gpu-memory-utilization" => "--kv-cache-memory-bytes sets the size of the KV cache",
        "--tensor-parallel-size" | "-tp" | "--pipeline-parallel-size" | "-pp" | "--data-parallel-size" => {
            "one process computes on all cores; -t sets the threads"
        }
        "--dtype" | "--quantization" | "-q" | "--load-format" => {
            "--weights bf16|int8|int4 sets the precision in memory"
        }
        "--cache-type-k" | "-ctk" | "--cache-type-v" | "-ctv" => {
            "--kv-dtype bf16|int8 sets the precision of the KV cache"
        }
        "--enable-chunked-prefill" | "--no-enable-chunked-prefill" => {
            "prefill is always chunked; --tpot-slo decides how large chunks are"
        }
        "--max-long-partial-prefills" => "--max-num-partial-prefills bounds the prompts in prefill per step",
        "--swap-space" => {
            "--kv-swap-memory SIZE keeps the blocks of preempted requests; without it they are recomputed"
        }
        "--cpu-offload-gb" => "this build computes on the CPU: weights are in its memory already",
        "--mlock" | "--no-mmap" => "weights are read into memory of the process's own",
        "--log-file" => "logs go to standard error: 2> FILE keeps them",
        "--log-disable" | "--log-level" | "--log-format" => {
            "the environment variable TWOSTROKE_LOG sets what is logged, e.g. TWOSTROKE_LOG=warn"
        }
        "--download-dir" => "the environment variable HF_HUB_CACHE sets where models are kept",
        "--hf-token" => "the environment variable HF_TOKEN holds the hub's token",
        "--trust-remote-code" => "no code of a model is ever run",
        "--enforce-eager" | "--compilation-config" | "-O" => "nothing is compiled at run time",
        "--tokenizer" | "--tokenizer-mode" | "--hf-config-path" => {
            "tokenizer and shape are read from the model's files"
        }
        "--revision" | "--tokenizer-revision" => "-m ORG/NAME@REVISION names the revision of model and tokenizer",
        "--enable-lora" => "--lora-modules NAME=DIR is enough (--allow-runtime-lora where none is loaded at the start)",
        "--allowed-origins" | "--cors-origins" | "--allowed-methods" | "--allowed-headers" | "--allow-credentials" => {
            "--allowed-origin ORIGIN, repeated, names those that may ask from a browser"
        }
        "--allowed-hosts" => "--allowed-host NAME, repeated, names what the server goes by",
        "--disable-log-requests" | "--disable-log-stats" | "--uvicorn-log-level" => {
            "the environment variable TWOSTROKE_LOG sets what is logged: warn, or info,access=off for no line per request"
        }
        "--return-tokens-as-token-ids" => "a request asks for it: \"return_tokens_as_token_ids\": true",
        "--enable-force-include-usage" => "a request asks for it: \"stream_options\": {\"include_usage\": true}",
        "--ctx-size" => "-c or --max-model-len sets the context",
        "--parallel" | "-np" => "--max-num-seqs sets the sequences that run together",
        "--ubatch-size" | "-ub" => "--tpot-slo decides the rows of a step, --max-num-batched-tokens bounds them",
        "--n-gpu-layers" | "-ngl" | "--gpu-layers" => "this build computes on the CPU",
        "--flash-attn" | "-fa" => "attention is always tiled",
        "--n-predict" => "-n or --max-tokens bounds the answer",
        "--prompt" => "the prompt is an argument: twostroke run \"...\"",
        "--verbose" => "the figures of both phases are always printed; --quiet turns them off",
        _ => return None,
    })
}

/// The flag of llama.cpp among these arguments that clap reads as a short one with a value behind it (`-ngl` as `-n gl`),
/// and what to use instead.
pub(crate) fn hint_for_short(arguments: impl Iterator<Item = String>) -> Option<(String, &'static str)> {
    let flags = arguments.take_while(|argument| argument != "--");
    let mut short = flags.filter(|flag| flag.len() > 2 && flag.starts_with('-') && !flag.starts_with("--"));
    short.find_map(|flag| Some((flag.clone(), hint(&flag)?)))
}

/// What to use instead of a verb that people type from memory of Ollama, vLLM or llama.cpp.
pub(crate) fn verb_hint(verb: &str) -> Option<&'static str> {
    Some(match verb {
        "chat" | "cli" => "twostroke run without a prompt is a chat",
        "complete" | "generate" => "twostroke run \"...\" answers a prompt",
        "completion" | "completions" => "there is no script for shells; --help lists verbs, VERB --help their flags",
        "pull" | "download" => "run, serve and plan download what -m names, once",
        "list" | "ls" | "rm" => {
            "models are files, or the Hugging Face hub's in its cache: `hf cache` lists and removes those"
        }
        "show" => "twostroke plan --model NAME tells what a model is and needs, before a weight is read",
        "ps" | "stop" => "a server is one process with one model: twostroke top watches it, Ctrl-C ends it",
        "perplexity" => "twostroke quality measures perplexity and KL divergence",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_declarations_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn no_hint_is_given_for_a_flag_that_exists() {
        for command in Cli::command().get_subcommands() {
            for argument in command.get_arguments() {
                let long = argument.get_long().map(|long| format!("--{long}"));
                // They exist in bench, in plan and in serve, and are others' words for something of the other commands.
                let elsewhere = ["--parallel", "--prompt", "--revision"];
                if let Some(long) = long.filter(|long| !elsewhere.contains(&long.as_str())) {
                    assert_eq!(hint(&long), None, "{long} of {}", command.get_name());
                }
            }
        }
    }
}
