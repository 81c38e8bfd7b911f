//! The verbs. Every flag is declared once with its docs, in the file of the verb that it belongs to (`flags/VERB.rs`),
//! and what several verbs share in [`shared`]; [`values`] reads what is written behind them. `--help` and
//! `docs/reference/flags.md` are generated from these, and a test compares the latter.
//!
//! Where a flag means the same as in vLLM it has vLLM's name; short names are those of llama.cpp. Nothing but flags
//! (through `env = ...`) and [`crate::environment`] reads the environment.

mod batch;
mod bench;
mod bench_serve;
mod completions;
mod doctor;
mod entries;
mod kept;
mod lab;
mod others;
mod plan;
mod quality;
mod quantize;
mod replay;
mod run;
mod serve;
mod shared;
mod sim;
mod top;
mod unused;
mod values;
mod verify;
mod whatif;
mod why;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

pub(crate) use self::batch::BatchFlags;
pub(crate) use self::bench::{BenchFlags, Output};
pub(crate) use self::bench_serve::{BenchServeFlags, LoadApi, LoadDataset, RampUp};
pub(crate) use self::completions::{CompletionsFlags, Shell};
pub(crate) use self::doctor::DoctorFlags;
pub(crate) use self::entries::ModelEntry;
pub(crate) use self::kept::{ListFlags, PsFlags, PullFlags, RmFlags, ShowFlags, StopFlags};
pub(crate) use self::lab::LabFlags;
pub(crate) use self::others::{HINTED, REFUSED, hint, take_hinted};
pub(crate) use self::plan::PlanFlags;
pub(crate) use self::quality::QualityFlags;
pub(crate) use self::quantize::QuantizeFlags;
pub(crate) use self::replay::ReplayFlags;
pub(crate) use self::run::RunFlags;
pub(crate) use self::serve::{Beyond, KvEvents, ServeFlags, Speculate};
pub(crate) use self::shared::{ModelFlags, SumOrder};
pub(crate) use self::sim::{Reject, SimFlags, Workload};
pub(crate) use self::top::TopFlags;
pub(crate) use self::unused::unused;
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
    /// first is asked. Stopped in the middle, by Ctrl-C or otherwise, the same command resumes where it was, and asks
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
    /// likely to differ: the weights, the arithmetic, the quantization, the sampling. Text that comes with a receipt must
    /// be that of its tokens.
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
    /// Download models into the hub's cache, after saying what comes.
    ///
    /// The cache is that of Python's huggingface_hub: what one has downloaded the other finds. A download that was cut
    /// resumes. run and serve download what they are asked for too.
    Pull(PullFlags),
    /// List the models of the hub's cache: name, size, when they were last written.
    #[command(visible_alias = "ls")]
    List(ListFlags),
    /// Tell what a model is: parameters, context, layers, vocabulary, what a token of the KV cache takes.
    ///
    /// Reads its configuration and headers and no weight, and downloads nothing.
    Show(ShowFlags),
    /// Remove models from the hub's cache, after saying how much that frees.
    ///
    /// Files and directories of yours are left alone, and so is a folder of the cache with anything else in it.
    Rm(RmFlags),
    /// List the models that a server has in memory: size, state, requests, when each leaves.
    ///
    /// The server is --url, or else the environment variable TWOSTROKE_HOST. Ollama's own answers too.
    Ps(PsFlags),
    /// Have a server unload models. What they answer goes on; a request loads them again.
    Stop(StopFlags),
    /// Print a script that completes verbs, flags and names of models in a shell: source <(twostroke completions bash)
    ///
    /// The script asks this program for what fits, so that it knows the short names and the models of the cache. Fish:
    /// twostroke completions fish | source.
    #[command(alias = "completion")]
    Completions(CompletionsFlags),
    /// Write the manual's pages, one for each verb, into a directory.
    #[command(hide = true)]
    ManPages {
        /// The directory.
        directory: PathBuf,
    },
    /// Print the reference of all flags as Markdown.
    #[command(hide = true)]
    FlagReference,
    /// Print the reference of the HTTP API as Markdown.
    #[command(hide = true)]
    ApiReference,
    /// Render chat templates for another process of this program.
    #[command(hide = true)]
    RenderTemplates,
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
        "run-batch" => "twostroke batch answers a file of requests",
        "collect-env" => "twostroke doctor tells what this machine offers",
        "download" => "twostroke pull downloads a model",
        "create" | "cp" | "push" => "a model is a directory or a file: twostroke quantize writes one",
        "signin" | "signout" | "login" => "the environment variable HF_TOKEN holds the hub's token",
        "status" => "twostroke ps lists what a server has in memory, twostroke top watches it",
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
}
