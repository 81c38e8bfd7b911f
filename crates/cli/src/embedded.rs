//! An engine for a program that has the command inside: what `serve` starts, without a server.
//!
//! ```text
//! {"max_num_seqs": 8, "ttft_slo": "500ms"} --> serve --max-num-seqs=8 --ttft-slo=500ms --> flags --> Engine
//! ```
//! Options become flags, so that they mean what they mean there, are checked where those are, and have their defaults.

use std::sync::Arc;

use clap::Parser;
use dialect::Dialect;
use engine::{Engine, ModelInfo};
use serde_json::{Map, Value};

use crate::commands::run::told;
use crate::commands::serve;
use crate::failure::{self, Failure};
use crate::flags::{self, Cli, Command};
use crate::{config, environment};

/// Flags of `serve` that say what computes, and not who may ask or where: the options of [`start`].
pub const ENGINE_OPTIONS: [&str; 47] = [
    "model",
    "revision",
    "weights",
    "kv_dtype",
    "kv_cache_dtype",
    "expert_memory",
    "arithmetic",
    "device",
    "standby",
    "threads",
    "no_numa",
    "no_packed_cache",
    "chat_template",
    "default_chat_template_kwargs",
    "generation_config",
    "override_generation_config",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_num_partial_prefills",
    "max_prefill_chunk",
    "ttft_slo",
    "tpot_slo",
    "refuse_late",
    "recalibrate",
    "enable_prefix_caching",
    "block_size",
    "kv_cache_memory_bytes",
    "kv_swap_memory",
    "kv_swap_disk",
    "max_queued_requests",
    "max_queued_tokens",
    "speculate",
    "speculative_config",
    "lora_modules",
    "max_loras",
    "max_lora_rank",
    "role",
    "allow_role_change",
    "prefill_workers",
    "handoff_listen",
    "handoff_precision",
    "cluster_key",
    "kv_events_config",
    "spot_check",
    "record",
    "seed",
];

/// An engine that was started.
pub struct Embedded {
    /// It runs.
    pub engine: Engine,
    /// Where KV events are published, and replays of them; empty where they are not wanted.
    pub kv_events: Vec<String>,
}

/// Starts an engine. Steps are measured, or what an earlier start has measured is taken, as by `serve`; where standard
/// error is a terminal, it shows progress.
///
/// Panics if a name is not one of [`ENGINE_OPTIONS`]: the caller reports that in its own words ([`hint`]).
pub fn start(options: Map<String, Value>) -> Result<Embedded, Failure> {
    crate::settle_in()?;
    environment::start_logging("warn", true);
    let mut arguments = vec!["twostroke".to_owned(), "serve".to_owned()];
    for (name, value) in options {
        assert!(ENGINE_OPTIONS.contains(&name.as_str()), "{name} is an option of an engine");
        arguments.extend(config::written(&flag(&name), value));
    }
    let parsed = Cli::try_parse_from(&arguments);
    let Command::Serve(mut flags) = parsed.map_err(|error| failure::of_clap(&error, &arguments))?.command else {
        unreachable!("the verb is serve")
    };
    // No lines about what other weights would bring.
    flags.json = true;
    let serve::Started { engine, kv_events, .. } = serve::start(&flags, false)?;
    Ok(Embedded { engine, kv_events })
}

/// Stops an engine and waits for the end of its recording, if there is one.
pub fn stop(engine: &Engine) {
    engine.stop();
    serve::finish(engine);
}

/// Special tokens whose text belongs to an answer in a chat: marks of thoughts and of calls.
pub fn shown_tokens(model: &ModelInfo) -> Arc<[u32]> {
    let (Some(template), Some(tokenizer)) = (&model.chat_template, &model.tokenizer) else { return Arc::default() };
    told::marks(&Dialect::of_template(&template.source(), &tokenizer.added_tokens()), tokenizer)
}

/// What to use instead of an unknown option, if it is one of another engine.
pub fn hint(name: &str) -> Option<&'static str> {
    flags::hint(&flag(name))
}

fn flag(name: &str) -> String {
    format!("--{}", name.replace('_', "-"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_option_is_a_flag_of_serve() {
        let command = Cli::command();
        let serve = command.find_subcommand("serve").expect("there is such a verb");
        let named = |argument: &clap::Arg| -> Vec<String> {
            let aliases = argument.get_visible_aliases().into_iter().flatten().map(str::to_owned);
            argument.get_long().map(str::to_owned).into_iter().chain(aliases).collect()
        };
        let flags: Vec<String> = serve.get_arguments().flat_map(named).collect();
        for option in ENGINE_OPTIONS {
            assert!(flags.contains(&option.replace('_', "-")), "{option}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_before_anything_is_loaded() {
        for (options, words) in [
            (serde_json::json!({"max_num_seqs": 0}), "--max-num-seqs"),
            (serde_json::json!({"weights": "int7"}), "int7"),
            (serde_json::json!({"speculative_config": {"method": "magic"}}), "magic"),
            (serde_json::json!({"ttft_slo": "soon"}), "soon"),
        ] {
            let Value::Object(options) = options else { unreachable!("they are objects") };
            match start(options) {
                Err(Failure::Usage(message)) => assert!(message.contains(words), "{message}"),
                other => panic!("{words}: {:?}", other.err()),
            }
        }
    }
}
