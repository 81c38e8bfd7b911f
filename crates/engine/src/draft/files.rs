//! The files of a draft model: whether they are of this target's vocabulary, and what it takes beside the target.

use std::path::Path;

use checkpoint::{Checkpoint, Source};
use kernels::{Backend, KvShape, WeightClass};
use model::{Forward, KvBudget, LoadOptions, ModelConfig, Runner};
use text::tokenizer::Tokenizer;

use super::{DraftMethod, LearnedDrafter};
use crate::start::{EngineOptions, StartError};

/// A draft model that fits its target.
pub(crate) struct DraftFiles {
    checkpoint: Checkpoint,
    pub(crate) config: ModelConfig,
    pub(crate) weights: WeightClass,
}

fn refuse(problem: String) -> StartError {
    StartError::Option { option: "--speculative-config", problem }
}

impl DraftFiles {
    /// Those that `options` ask for, if they do. Reads no weight.
    pub(crate) fn find(
        options: &EngineOptions,
        target: &ModelConfig,
        tokenizer: Option<&Tokenizer>,
    ) -> Result<Option<DraftFiles>, StartError> {
        let learned = options.speculation.drafters().and_then(|drafters| drafters.learned.as_ref());
        let Some(LearnedDrafter { method: DraftMethod::DraftModel, model: Some(path), weights }) = learned else {
            return Ok(None);
        };
        let wrong = |error: checkpoint::LoadError| refuse(format!("model: {error}"));
        let checkpoint = Checkpoint::open(Source::at(Path::new(path).into())).map_err(wrong)?;
        let config = ModelConfig::load(&checkpoint).map_err(wrong)?;
        if config.vocab_size != target.vocab_size {
            let (own, targets) = (config.vocab_size, target.vocab_size);
            return Err(refuse(format!(
                "model: {path} knows {own} tokens, and the model {targets}: not one vocabulary"
            )));
        }
        if let Some(tokenizer) = tokenizer.filter(|_| checkpoint.has("tokenizer.json")) {
            let own =
                Tokenizer::load(&checkpoint, config.vocab_size).map_err(|error| refuse(format!("model: {error}")))?;
            let differs = (0..target.vocab_size as u32).find(|&id| own.token_text(id) != tokenizer.token_text(id));
            if let Some(id) = differs {
                let [own, targets] = [&own, tokenizer].map(|tokenizer| tokenizer.token_text(id));
                return Err(refuse(format!("model: token {id} is {own:?} in {path}, and {targets:?} in the model")));
            }
        }
        Ok(Some(DraftFiles { checkpoint, config, weights: weights.unwrap_or(options.weights) }))
    }

    /// Bytes of a cache block.
    pub(crate) fn block_bytes(&self, options: &EngineOptions) -> u64 {
        let ModelConfig { num_layers: layers, num_kv_heads, head_dim, .. } = self.config;
        let (dtype, block_size) = (options.kv_dtype, options.block_size);
        KvShape { dtype, layers, blocks: 1, block_size, num_kv_heads, head_dim }.bytes() as u64
    }

    /// The model in memory, on the target's threads. `target`: what that was loaded with.
    pub(crate) fn load<B: Backend>(
        &self,
        beside: &Runner<B>,
        target: &LoadOptions,
        blocks: usize,
    ) -> Result<Box<dyn Forward>, StartError> {
        let options = LoadOptions {
            weights: self.weights,
            max_model_len: Some(self.max_model_len(beside.max_model_len())),
            kv_blocks: KvBudget::Blocks(blocks),
            // Small, and packed before the target has its first request.
            image_directory: None,
            ..target.clone()
        };
        let wrong = |error: checkpoint::LoadError| refuse(format!("model: {error}"));
        Ok(Box::new(model::load_beside(beside, &self.checkpoint, &options, &mut |_| {}).map_err(wrong)?))
    }

    /// Tokens of a sequence that it reads; beyond them it guesses nothing.
    pub(crate) fn max_model_len(&self, targets: usize) -> usize {
        targets.min(self.config.context_limit)
    }
}
