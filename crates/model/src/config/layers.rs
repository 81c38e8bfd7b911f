//! What differs from layer to layer: windows, rotations, experts.

use super::family::{ExpertFields, Traits, Windows};
use super::fields::{Fields, kind, quoted};
use super::{LayerConfig, MAX_WIDTH};
use checkpoint::LoadError;
use kernels::RoutingRule;
use serde_json::Value;

/// The experts of a mixture: MLPs of which every token passes through a few.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertConfig {
    /// In each layer that has experts.
    pub num_experts: usize,
    /// Width of one.
    pub intermediate_size: usize,
    /// How many a token goes to, and how their results are weighted.
    pub rule: RoutingRule,
}

impl ExpertConfig {
    pub(super) fn read(fields: &Fields<'_>, traits: &Traits) -> Result<Option<ExpertConfig>, LoadError> {
        if traits.experts == ExpertFields::None {
            return Ok(None);
        }
        // Transformers 5 writes the second name for what was the first.
        let stated = fields.optional_size("num_experts", MAX_EXPERTS)?;
        let num_experts = match stated {
            Some(num_experts) => num_experts,
            None => fields.size("num_local_experts", MAX_EXPERTS)?,
        };
        let top_k = fields.size("num_experts_per_tok", MAX_EXPERTS)?;
        if top_k > num_experts {
            return Err(fields.error("num_experts_per_tok", format!("{top_k} of {num_experts} experts")));
        }
        let (width, over_chosen) = match traits.experts {
            ExpertFields::Qwen => ("moe_intermediate_size", fields.flag("norm_topk_prob", false)?),
            ExpertFields::Olmoe => ("intermediate_size", fields.flag("norm_topk_prob", false)?),
            ExpertFields::Mixtral | ExpertFields::None => ("intermediate_size", true),
        };
        let rule = RoutingRule { top_k, over_chosen };
        Ok(Some(ExpertConfig { num_experts, intermediate_size: fields.size(width, MAX_WIDTH)?, rule }))
    }
}

/// Most experts of a layer; the largest models have 384.
const MAX_EXPERTS: usize = 1024;
/// What transformers assumes of `max_window_layers` and of `sliding_window` when they are absent.
const FIRST_WINDOWED: usize = 28;
const WINDOW: usize = 4096;

/// `[num_layers]`.
pub(super) fn layers(fields: &Fields<'_>, traits: &Traits, num_layers: usize) -> Result<Vec<LayerConfig>, LoadError> {
    let rotated = rotated(fields, traits, num_layers)?;
    let windowed = windowed(fields, traits, &rotated)?;
    let window = window(fields, traits)?;
    let experts = with_experts(fields, traits, num_layers)?;
    let layers = rotated.into_iter().zip(windowed).zip(experts);
    Ok(layers
        .map(|((rotated, windowed), has_experts)| {
            let rotated = rotated && (windowed || window.is_none() || !traits.unrotated_beside_windows);
            LayerConfig {
                window: window.filter(|_| windowed),
                rope: rotated.then_some(usize::from(windowed && traits.local_theta.is_some())),
                has_experts,
            }
        })
        .collect())
}

/// Layers whose queries and keys turn with their positions.
fn rotated(fields: &Fields<'_>, traits: &Traits, num_layers: usize) -> Result<Vec<bool>, LoadError> {
    const NAME: &str = "no_rope_layers";
    if !traits.unrotated_layers {
        return Ok(vec![true; num_layers]);
    }
    let Some(flags) = fields.list(NAME)? else {
        let interval = fields.optional_size("no_rope_layer_interval", 1 << 20)?.unwrap_or(4);
        return Ok((1..=num_layers).map(|layer| layer % interval != 0).collect());
    };
    if flags.len() < num_layers {
        return Err(fields.error(NAME, format!("{} entries for num_hidden_layers = {num_layers}", flags.len())));
    }
    let wrong =
        |value: &Value| fields.error(NAME, format!("expected 1 (rotated) or 0, found {}", quoted(&value.to_string())));
    flags[..num_layers]
        .iter()
        .map(|flag| match flag.as_u64() {
            Some(flag @ 0..=1) => Ok(flag == 1),
            _ => Err(wrong(flag)),
        })
        .collect()
}

/// Layers that `layer_types` lists as `sliding_attention`, or the architecture's own without a list.
fn windowed(fields: &Fields<'_>, traits: &Traits, rotated: &[bool]) -> Result<Vec<bool>, LoadError> {
    let num_layers = rotated.len();
    let none = vec![false; num_layers];
    if traits.windows == Windows::Never {
        return Ok(none);
    }
    let listed = layer_types(fields, num_layers)?;
    let asked_for = matches!(traits.windows, Windows::From | Windows::AllIfAsked | Windows::UnrotatedIfAsked);
    if asked_for && !fields.flag("use_sliding_window", false)? {
        return Ok(none);
    }
    if let Some(listed) = listed {
        return Ok(listed);
    }
    Ok(match traits.windows {
        Windows::Never => none,
        Windows::All { .. } | Windows::AllIfAsked => vec![true; num_layers],
        Windows::From => {
            let first = fields.optional_integer("max_window_layers", 0..=1 << 20)?;
            let first = first.map_or(FIRST_WINDOWED, |first| first as usize);
            (0..num_layers).map(|layer| layer >= first).collect()
        }
        Windows::UnrotatedIfAsked => rotated.iter().map(|rotated| !rotated).collect(),
        Windows::AllButEvery { pattern } => {
            let pattern = fields.optional_size("sliding_window_pattern", 1 << 20)?.unwrap_or(pattern);
            (1..=num_layers).map(|layer| layer % pattern != 0).collect()
        }
    })
}

/// How many tokens a layer with a window sees. `null` is no window; absent, it is what the architecture assumes.
fn window(fields: &Fields<'_>, traits: &Traits) -> Result<Option<usize>, LoadError> {
    if traits.windows == Windows::Never || fields.map.get("sliding_window").is_some_and(Value::is_null) {
        return Ok(None);
    }
    let absent = match traits.windows {
        Windows::All { absent } => absent,
        _ => Some(WINDOW),
    };
    Ok(fields.optional_size("sliding_window", 1 << 27)?.or(absent))
}

/// `[num_layers]`: whether `layer_types` lists a layer as one with a window; `None` where there is no list.
fn layer_types(fields: &Fields<'_>, num_layers: usize) -> Result<Option<Vec<bool>>, LoadError> {
    let Some(types) = fields.list("layer_types")? else { return Ok(None) };
    let windowed = types.iter().map(|layer_type| match layer_type.as_str() {
        Some("full_attention") => Ok(false),
        Some("sliding_attention") => Ok(true),
        Some(other) => Err(fields.error("layer_types", format!("{} is not supported", quoted(other)))),
        None => Err(fields.error("layer_types", format!("expected names, found {}", kind(layer_type)))),
    });
    let windowed: Vec<bool> = windowed.collect::<Result<_, _>>()?;
    if windowed.len() != num_layers {
        let problem = format!("{} entries for num_hidden_layers = {num_layers}", windowed.len());
        return Err(fields.error("layer_types", problem));
    }
    Ok(Some(windowed))
}

/// Layers whose MLP is a mixture of experts.
fn with_experts(fields: &Fields<'_>, traits: &Traits, num_layers: usize) -> Result<Vec<bool>, LoadError> {
    const DENSE: &str = "mlp_only_layers";
    if traits.experts != ExpertFields::Qwen {
        return Ok(vec![traits.experts != ExpertFields::None; num_layers]);
    }
    let step = fields.optional_size("decoder_sparse_step", 1 << 20)?.unwrap_or(1);
    let mut with_experts: Vec<bool> = (1..=num_layers).map(|layer| layer % step == 0).collect();
    for layer in fields.list(DENSE)?.unwrap_or_default() {
        let index = layer.as_u64().and_then(|index| usize::try_from(index).ok());
        match index.and_then(|index| with_experts.get_mut(index)) {
            Some(with_experts) => *with_experts = false,
            None => {
                let problem = format!("{} is not a layer of {num_layers}", quoted(&layer.to_string()));
                return Err(fields.error(DENSE, problem));
            }
        }
    }
    Ok(with_experts)
}
