//! The files of a trained drafter: whether they fit this target, and what it takes beside it.

use std::path::{Component, Path};

use checkpoint::{Checkpoint, LoadError, Source};
use kernels::{Backend, KvDtype, WeightClass};
use model::draft::{self, Feature, Medusa};
use model::{AdapterRoom, Forward, KvBudget, LoadOptions, ModelConfig, Runner};
use text::tokenizer::Tokenizer;

use crate::options::{DraftMethod, LearnedDrafter};
use crate::trained::LoadedDrafter;

/// The files of a drafter that fits its target.
pub struct DraftFiles {
    checkpoint: Checkpoint,
    kind: Kind,
    /// Its layers, if they have a cache.
    config: Option<ModelConfig>,
    weight_bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Model(WeightClass),
    Heads,
    Layer,
}

/// Why a drafter cannot be had: what is wrong with `model` of `--speculative-config`.
fn wrong(error: LoadError) -> String {
    format!("model: {error}")
}

impl DraftFiles {
    /// Those of this drafter. `class`: of the weights where it names none. Reads no weight. An error is a sentence that
    /// begins with the field at fault.
    pub fn find(
        learned: &LearnedDrafter,
        class: WeightClass,
        target: &Checkpoint,
        target_config: &ModelConfig,
        tokenizer: Option<&Tokenizer>,
    ) -> Result<DraftFiles, String> {
        let LearnedDrafter { method, model, weights } = learned;
        let path = model.as_deref().map(Path::new);
        Ok(match (method, path) {
            (DraftMethod::DraftModel, Some(path)) => {
                let checkpoint = Checkpoint::open(Source::at(path.into())).map_err(wrong)?;
                let config = ModelConfig::load(&checkpoint).map_err(wrong)?;
                if config.state_numbers() > 0 {
                    return Err(format!("model: {} has layers with states, and cannot draft", config.family));
                }
                same_vocabulary(&checkpoint, &config, target_config, tokenizer)?;
                let weights = weights.unwrap_or(class);
                let weight_bytes = config.weight_bytes(weights);
                DraftFiles { checkpoint, kind: Kind::Model(weights), config: Some(config), weight_bytes }
            }
            (DraftMethod::Medusa, Some(path)) => {
                let checkpoint = draft::open(path).map_err(wrong)?;
                let needs = Medusa::needs(&checkpoint).map_err(wrong)?;
                DraftFiles { checkpoint, kind: Kind::Heads, config: None, weight_bytes: needs.weight_bytes }
            }
            (DraftMethod::Eagle3 | DraftMethod::Mtp, path) => {
                // A next-token layer is in the target's own files.
                let checkpoint = path.map_or_else(|| reopened(target), draft::open).map_err(wrong)?;
                let needs = Feature::needs(&checkpoint, target_config, name_of(target).as_deref()).map_err(wrong)?;
                let kind = Kind::Layer;
                DraftFiles { checkpoint, kind, config: needs.layers, weight_bytes: needs.weight_bytes }
            }
            (_, None) => {
                return Err(format!("model: missing; {} needs the files of the drafter", method.name()));
            }
        })
    }

    /// Its layers, if they have a cache.
    pub fn config(&self) -> Option<&ModelConfig> {
        self.config.as_ref()
    }

    /// About what its weights will take.
    pub fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }

    /// Bytes of a cache block.
    pub fn block_bytes(&self, dtype: KvDtype, block_size: usize) -> u64 {
        let shape = self.config.as_ref().map(|config| config.cache_shape(dtype, 1, block_size));
        shape.map_or(0, |shape| shape.bytes() as u64)
    }

    /// The drafter in memory, on the target's threads. `files`: the target's; `options`: what it was loaded with.
    pub fn load<B: Backend>(
        &self,
        target: &mut Runner<B>,
        files: &Checkpoint,
        options: &LoadOptions,
        blocks: usize,
    ) -> Result<LoadedDrafter, String> {
        let name = name_of(files);
        match self.kind {
            Kind::Model(weights) => {
                let options = LoadOptions {
                    weights,
                    max_model_len: Some(self.max_model_len(target.max_model_len())),
                    kv_blocks: KvBudget::Blocks(blocks),
                    // Small, and packed before the target has its first request.
                    image_directory: None,
                    // Adapters are the target's: without them drafts are accepted a little less often.
                    adapters: AdapterRoom::default(),
                    state_slots: 0,
                    expert_memory: None,
                    ..options.clone()
                };
                let model = model::load_beside(target, &self.checkpoint, &options, &mut |_| {}).map_err(wrong)?;
                Ok(LoadedDrafter::Model(Box::new(model)))
            }
            Kind::Heads => {
                Medusa::load(&self.checkpoint, target, name.as_deref()).map(LoadedDrafter::Heads).map_err(wrong)
            }
            Kind::Layer => {
                let layer = Feature::load(&self.checkpoint, target, name.as_deref()).map_err(wrong)?;
                target.tap(layer.taps()).map_err(wrong)?;
                Ok(LoadedDrafter::Layer(layer))
            }
        }
    }

    /// Tokens of a sequence that it reads; beyond them it drafts nothing.
    pub fn max_model_len(&self, targets: usize) -> usize {
        match (self.kind, &self.config) {
            (Kind::Model(_), Some(config)) => targets.min(config.context_limit),
            _ => targets,
        }
    }
}

/// The published name of a target whose files are in the cache of the Hugging Face hub:
/// `models--org--name/snapshots/..`. A drafter names the target that it was trained for.
fn name_of(target: &Checkpoint) -> Option<String> {
    let folder = |part: Component<'_>| part.as_os_str().to_str()?.strip_prefix("models--").map(str::to_owned);
    let folder = target.path()?.components().rev().find_map(folder)?;
    folder.split_once("--").map(|(organisation, name)| format!("{organisation}/{name}"))
}

/// The target's own files once more.
fn reopened(target: &Checkpoint) -> Result<Checkpoint, LoadError> {
    match target.path() {
        Some(path) => Checkpoint::open(Source::at(path.into())),
        None => Err(LoadError::NoWeights {
            checkpoint: target.location(),
            problem: "no layer for the token after the next".to_owned(),
        }),
    }
}

fn same_vocabulary(
    checkpoint: &Checkpoint,
    config: &ModelConfig,
    target: &ModelConfig,
    tokenizer: Option<&Tokenizer>,
) -> Result<(), String> {
    let path = checkpoint.location();
    if config.vocab_size != target.vocab_size {
        let (own, targets) = (config.vocab_size, target.vocab_size);
        return Err(format!("model: {path} knows {own} tokens, and the model {targets}: not one vocabulary"));
    }
    let Some(tokenizer) = tokenizer.filter(|_| checkpoint.has("tokenizer.json")) else { return Ok(()) };
    let own = Tokenizer::load(checkpoint, config.vocab_size).map_err(|error| format!("model: {error}"))?;
    let differs = (0..target.vocab_size as u32).find(|&id| own.token_text(id) != tokenizer.token_text(id));
    match differs {
        None => Ok(()),
        Some(id) => {
            let [own, targets] = [&own, tokenizer].map(|tokenizer| tokenizer.token_text(id));
            Err(format!("model: token {id} is {own:?} in {path}, and {targets:?} in the model"))
        }
    }
}
