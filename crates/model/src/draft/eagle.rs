//! What the files of a [`Feature`](super::Feature) say it is.
//!
//! ```text
//! midlayer.*                       EAGLE-3 by its authors and by SpecForge; config.json is that of the layer
//! layers.0.*, speculators' config  EAGLE-3; the layer's configuration is in transformer_layer_config
//! model.mtp_layers.0.*             the next-token layer of a checkpoint, as MiMo names it
//! mtp.*                            as Qwen3-Next and Qwen3.5 do
//! model.layers.N.eh_proj, ...      as DeepSeek-V3, GLM-4.5 and GGUF files do: behind the last of N layers
//! ```
//! Heads of the first two versions of EAGLE have `fc` and `layers.0.*` too, and are recognised by what they lack.

use super::Target;
use crate::config::fields::{Fields, quoted};
use crate::config::{CONFIG, CacheLayer, Family, FusedProjections, LayerConfig, ModelConfig, NormKind, NormPlacement};
use crate::tensors::Linear;
use checkpoint::LoadError;
use checkpoint::weights::Weights;
use serde_json::{Map, Value, json};

/// Largest number of a target's taps; trained drafters have fewer.
const MOST_TAPS: usize = 16;
/// What a drafter may be, said of one that is something else.
const SUPPORTED: &str = "is not supported; drafters of EAGLE-3 (eagle3), Medusa heads (medusa), next-token layers (mtp) \
                         and smaller models (draft_model) are";
/// Largest number of layers; trained drafters have fewer.
const MOST_LAYERS: usize = 16;

/// What a next-token layer calls its own parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct MtpNames {
    /// The matrix over embedding and feature.
    pub(super) join: &'static str,
    /// The feature's columns are the first.
    pub(super) feature_first: bool,
    /// Norms of the embedding, of the feature and of the output.
    pub(super) norms: [&'static str; 3],
    /// What the layer itself is behind.
    layer: &'static str,
}

const OF_MIMO: MtpNames = MtpNames {
    join: "input_proj.weight",
    feature_first: true,
    norms: ["token_layernorm.weight", "hidden_layernorm.weight", "final_layernorm.weight"],
    layer: "",
};
const OF_QWEN: MtpNames = MtpNames {
    join: "fc.weight",
    feature_first: false,
    norms: ["pre_fc_norm_embedding.weight", "pre_fc_norm_hidden.weight", "norm.weight"],
    layer: "layers.0.",
};
const OF_DEEPSEEK: MtpNames = MtpNames {
    join: "eh_proj.weight",
    feature_first: false,
    norms: ["enorm.weight", "hnorm.weight", "shared_head.norm.weight"],
    layer: "",
};

/// How embedding and feature meet, and what that makes of everything else.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// Queries, keys and values are made of both, normed; `fc` makes a feature of tapped rows.
    Eagle3,
    /// One matrix makes the residual stream of both, normed.
    Mtp(MtpNames),
}

/// A drafter by its configuration.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) kind: Kind,
    /// Of its layers.
    pub(super) config: ModelConfig,
    /// After how many of the target's layers it looks.
    pub(super) taps: Vec<usize>,
    /// One norm over all tapped rows together.
    pub(super) norm_before_fc: bool,
    /// A norm for each of them.
    pub(super) fc_norm: bool,
    /// The residual stream begins with the normed feature.
    pub(super) norm_before_residual: bool,
    /// Tapped rows are read behind the target's final norm.
    pub(super) behind_final_norm: bool,
    /// Its own rows go on normed.
    pub(super) norm_output: bool,
    /// Prefix of the names of what is not in a layer.
    pub(super) prefix: String,
    /// Prefix of the layers' names.
    pub(super) layers: Vec<String>,
}

impl Plan {
    /// `stated`: `config.json` of the drafter.
    pub(super) fn of(stated: &Map<String, Value>, weights: &Weights, target: &Target<'_>) -> Result<Plan, LoadError> {
        let root = Fields { file: CONFIG, path: String::new(), map: stated };
        let behind = ["model.", ""].map(|prefix| format!("{prefix}layers.{}.", target.config.num_layers));
        let [mimo, bare] = ["model.mtp_layers.0.", "mtp_layers.0."].map(str::to_string);
        let forms = [(OF_MIMO, mimo), (OF_MIMO, bare), (OF_QWEN, "mtp.".to_string())];
        let mut forms = forms.into_iter().chain(behind.map(|prefix| (OF_DEEPSEEK, prefix)));
        if let Some((names, prefix)) = forms.find(|(names, prefix)| weights.has(&format!("{prefix}{}", names.join))) {
            return mtp(&root, target, names, prefix);
        }
        let speculators = root.text("speculators_model_type")?;
        if let Some(other) = speculators.filter(|kind| *kind != "eagle3") {
            return Err(root.error("speculators_model_type", format!("{} {SUPPORTED}", quoted(other))));
        }
        if let Some(speculators) = root.object("speculators_config")?
            && let Some(verifier) = speculators.object("verifier")?
        {
            target.check_name(&verifier, "name_or_path")?;
            target.check_architecture(&verifier, "architectures")?;
        }
        target.check_size(&root, "target_hidden_size", target.config.hidden_size)?;

        let prefix = if weights.has("model.fc.weight") { "model." } else { "" };
        let midlayer = format!("{prefix}midlayer.");
        let has_midlayer = weights.has(&format!("{midlayer}self_attn.q_proj.weight"));
        let fc = format!("{prefix}fc.weight");
        let Some(fc_shape) = weights.shape(&fc) else {
            let problem = "no EAGLE-3 drafter: fc.weight is missing, and so is a next-token layer".to_string();
            return Err(LoadError::field(weights.listing(), "tensors", problem));
        };
        let is_eagle3 = speculators.is_some()
            || has_midlayer
            || weights.has(&format!("{prefix}layers.0.hidden_norm.weight"))
            || weights.has("d2t");
        if !is_eagle3 {
            let problem = format!("a head of EAGLE-1 or EAGLE-2 (fc and no hidden_norm), which {SUPPORTED}");
            return Err(LoadError::field(weights.listing(), "tensors", problem));
        }
        let layer = root.object("transformer_layer_config")?;
        let config = layer_config(layer.as_ref().unwrap_or(&root), target, has_midlayer)?;
        let hidden = config.hidden_size;
        let layers = match has_midlayer {
            true => vec![midlayer],
            false => (0..config.num_layers).map(|index| format!("{prefix}layers.{index}.")).collect(),
        };
        let flag = |name| root.flag(name, false);
        let plan = Plan {
            kind: Kind::Eagle3,
            taps: taps(&root, target.config)?,
            norm_before_fc: flag("norm_before_fc")?,
            fc_norm: flag("fc_norm")?,
            norm_before_residual: flag("norm_before_residual")?,
            behind_final_norm: false,
            norm_output: flag("norm_output")?,
            config,
            prefix: prefix.to_string(),
            layers,
        };
        if plan.norm_before_fc && plan.fc_norm {
            return Err(root.error("fc_norm", "true, and norm_before_fc too; one of them is possible"));
        }
        let (taps, own) = (plan.taps.len(), target.config.hidden_size);
        let expected = [hidden, taps * own];
        if fc_shape != expected {
            let what = format!("{taps} of the target's rows of {own}");
            let problem = format!("shape {fc_shape:?}; to make {hidden} numbers of {what} it is {expected:?}");
            return Err(LoadError::field(weights.listing(), format!("tensor {}", quoted(&fc)), problem));
        }
        Ok(plan)
    }

    /// The name of what is not in a layer.
    pub(super) fn name(&self, rest: &str) -> String {
        format!("{}{rest}", self.prefix)
    }

    /// What the first product of an EAGLE-3 layer reads: rows, wherever they are, and their width.
    pub(super) fn wide_projection(&self, qkv: &Linear) -> (Vec<(String, usize)>, usize) {
        let parts = qkv.parts.iter().map(|part| (part.name.clone(), part.rows.len())).collect();
        (parts, 2 * self.config.hidden_size)
    }
}

/// The configuration of the layers, an object of its own or part of all.
fn layer_config(fields: &Fields<'_>, target: &Target<'_>, one_layer: bool) -> Result<ModelConfig, LoadError> {
    target.check_size(fields, "vocab_size", target.config.vocab_size)?;
    let mut map = fields.map.clone();
    // The whole drafter's class, which no family of layers knows.
    map.remove("architectures");
    if one_layer {
        map.insert("num_hidden_layers".to_string(), json!(1));
    }
    for (name, absent) in [
        ("model_type", json!("llama")),
        ("num_hidden_layers", json!(1)),
        ("vocab_size", json!(target.config.vocab_size)),
        ("max_position_embeddings", json!(target.config.max_position_embeddings)),
    ] {
        map.entry(name).or_insert(absent);
    }
    let config = ModelConfig::of_fields(Fields { file: fields.file, path: fields.path.clone(), map: &map })?;
    supported(&config).map_err(|problem| fields.error("model_type", problem))?;
    match config.num_layers > MOST_LAYERS {
        true => {
            Err(fields.error("num_hidden_layers", format!("{}; at most {MOST_LAYERS} are read", config.num_layers)))
        }
        false => Ok(config),
    }
}

/// Layers as drafters have them: normed before each block, and dense.
fn supported(config: &ModelConfig) -> Result<(), String> {
    let plain = config.norms == NormPlacement::Before
        && config.experts.is_none()
        && config.fused_projections == FusedProjections::None
        && config.norm == NormKind::Rms
        && config.gated_mlp;
    match plain && config.residual_multiplier == 1.0 {
        true => Ok(()),
        false => Err(format!("layers of {} are not supported in a drafter", config.family)),
    }
}

/// After how many of the target's layers it looks. At the top of a configuration the numbers count layers, as vLLM and
/// speculators have it; in `eagle_config` they are the indices of layers, as SGLang and SpecForge do.
fn taps(root: &Fields<'_>, target: &ModelConfig) -> Result<Vec<usize>, LoadError> {
    const IDS: &str = "eagle_aux_hidden_state_layer_ids";
    let eagle_config = root.object("eagle_config")?;
    if let Some(eagle_config) = &eagle_config
        && !eagle_config.flag("use_aux_hidden_state", true)?
    {
        return Err(eagle_config.error("use_aux_hidden_state", "false is not supported"));
    }
    let nested = match &eagle_config {
        Some(fields) => fields.list(IDS)?.map(|ids| (fields, ids, 1)),
        None => None,
    };
    let num_layers = target.num_layers;
    let Some((fields, ids, more)) = root.list(IDS)?.map(|ids| (root, ids, 0)).or(nested) else {
        return match num_layers {
            0..=4 => Err(root.error(IDS, format!("missing, and a target of {num_layers} layers has no usual ones"))),
            _ => Ok(vec![2, num_layers / 2, num_layers - 3]),
        };
    };
    if ids.is_empty() || ids.len() > MOST_TAPS {
        return Err(fields.error(IDS, format!("{} layers; 1 to {MOST_TAPS} are possible", ids.len())));
    }
    let tap = |id: &Value| {
        let after = id.as_u64().and_then(|id| usize::try_from(id).ok()?.checked_add(more));
        let wrong = || format!("{}, and the target has {num_layers} layers", quoted(&id.to_string()));
        after.filter(|&after| after <= num_layers).ok_or_else(|| fields.error(IDS, wrong()))
    };
    ids.iter().map(tap).collect()
}

/// A checkpoint's own next-token layer, of which the first is used: a layer like the target's last that is attention.
fn mtp(root: &Fields<'_>, target: &Target<'_>, names: MtpNames, prefix: String) -> Result<Plan, LoadError> {
    let mut config = target.config.clone();
    let is_plain =
        config.norms == NormPlacement::Before && config.norm == NormKind::Rms && config.residual_multiplier == 1.0;
    let last = config.layers.iter().rev().find(|layer| layer.mixer.has_keys()).copied();
    let Some(last) = last.filter(|_| is_plain && config.layer_input.is_none()) else {
        let problem = format!("a next-token layer of {} is not supported", config.family);
        return Err(root.error("model_type", problem));
    };
    let own = root.object("text_config")?;
    let fields = own.as_ref().unwrap_or(root);
    target.check_size(fields, "hidden_size", config.hidden_size)?;
    target.check_size(fields, "vocab_size", config.vocab_size)?;
    config.layers = vec![LayerConfig { cache: CacheLayer::default(), ..last }];
    let taps = vec![config.num_layers];
    config.num_layers = 1;
    Ok(Plan {
        kind: Kind::Mtp(names),
        behind_final_norm: config.family != Family::Qwen2,
        config,
        taps,
        norm_before_fc: false,
        fc_norm: false,
        norm_before_residual: false,
        norm_output: true,
        layers: vec![format!("{prefix}{}", names.layer)],
        prefix,
    })
}
