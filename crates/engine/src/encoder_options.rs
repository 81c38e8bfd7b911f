//! The options that hold for a model that generates nothing.

use checkpoint::Checkpoint;
use model::ModelConfig;
use rates::DefaultTarget;
use speculate::Speculation;

use crate::options::{EngineOptions, StartError};

/// Rows of a step at least: enough for the matrix products of short texts to read weights once for many.
const ROWS: usize = 1024;

/// Texts in the queue for each request that may wait: a request brings a list of them, and each is short.
const TEXTS_A_REQUEST: usize = 32;

/// The options that hold for an encoder: steps hold the longest text, prefixes are not cached, and no step is
/// predicted. Refuses what concerns answers.
pub(crate) fn options_for(
    checkpoint: &Checkpoint,
    options: &EngineOptions,
    config: &ModelConfig,
) -> Result<EngineOptions, StartError> {
    let refuse = |option| {
        let problem = format!("{} is an encoder, which gives vectors of texts: leave it out", checkpoint.name());
        Err(StartError::Option { option, problem })
    };
    let is_fixed = |target| !matches!(target, DefaultTarget::None | DefaultTarget::Auto);
    let asked = [
        ("--speculative-config", options.speculation.drafters().is_some_and(|drafters| drafters.learned.is_some())),
        ("--lora-modules", !options.adapters.is_empty()),
        ("--max-loras", options.adapter_room.slots > 0),
        ("--role", options.handoff.is_some()),
        ("--expert-memory", options.expert_memory.is_some()),
        ("--kv-swap-memory", options.kv_swap_bytes > 0),
        ("--kv-swap-disk", options.kv_swap_disk.is_some()),
        ("--spot-check", options.spot_check > 0.0),
        ("--record", options.record.is_some()),
        ("--refuse-late", options.refuse_late),
        ("--ttft-slo", is_fixed(options.ttft)),
        ("--tpot-slo", is_fixed(options.tpot)),
    ];
    if let Some((option, _)) = asked.into_iter().find(|(_, is_asked)| *is_asked) {
        return refuse(option);
    }
    let longest = options.max_model_len.unwrap_or(config.context_limit).min(config.context_limit);
    let mut held = options.clone();
    held.max_num_batched_tokens = options.max_num_batched_tokens.max(longest).max(ROWS).max(options.max_num_seqs);
    (held.max_prefill_chunk, held.max_prefill_seqs) = (None, options.max_num_seqs);
    (held.enable_prefix_caching, held.calibration) = (false, None);
    held.max_queued_requests = options.max_queued_requests.saturating_mul(TEXTS_A_REQUEST);
    (held.ttft, held.tpot, held.speculation) = (DefaultTarget::None, DefaultTarget::None, Speculation::Off);
    Ok(held)
}
