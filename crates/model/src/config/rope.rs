//! Rotary positions: both spellings of their fields. Definitions follow `modeling_rope_utils.py` of transformers 5.

use super::HeadNorm;
use super::family::{LayerThetas, MixerFields, Traits};
use super::fields::{Fields, quoted};
use checkpoint::LoadError;
use kernels::rope::yarn_attention_factor as attention_factor_of_scales;
use kernels::{OutOfMemory, QueryGrowth, RopeScaling, RopeTable};
use std::ops::RangeInclusive;

const THETA: RangeInclusive<f64> = 1.0 + f64::EPSILON..=1e15;
const FACTOR: RangeInclusive<f64> = 1.0..=1e6;

/// A rotation of queries and keys by position (Su et al., 2021).
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base wavelength.
    pub theta: f64,
    /// How frequencies are stretched for long contexts.
    pub scaling: RopeScaling,
    /// How many numbers of a head turn, from the first; even.
    pub rotary_dim: usize,
    /// Rotated queries grow with their positions.
    pub growth: Option<QueryGrowth>,
}

impl RopeConfig {
    /// Its table for positions below `max_positions`.
    pub(crate) fn table(&self, max_positions: usize) -> Result<RopeTable, OutOfMemory> {
        let table = RopeTable::new(self.rotary_dim, self.theta, &self.scaling, max_positions)?;
        match self.growth {
            Some(growth) => table.with_growth(growth),
            None => Ok(table),
        }
    }
}

/// The fields of a rotation. Of both, transformers takes the older name.
fn stated<'f>(fields: &'f Fields<'_>) -> Result<Option<Fields<'f>>, LoadError> {
    match fields.object("rope_scaling")?.filter(|rope| !rope.map.is_empty()) {
        Some(rope) => Ok(Some(rope)),
        None => fields.object("rope_parameters"),
    }
}

/// What multiplies scores of latent attention where a rotation is stretched: the square of `0.1 mscale_all_dim ln(factor) +
/// 1` (DeepSeek-AI, 2024).
pub(super) fn score_factor(fields: &Fields<'_>) -> Result<f32, LoadError> {
    let Some(rope) = stated(fields)? else { return Ok(1.0) };
    let kind = rope.text("rope_type")?.or(rope.text("type")?);
    let scale = rope.optional_float("mscale_all_dim", 0.0..=1e3)?.unwrap_or(0.0);
    let factor = rope.optional_float("factor", FACTOR)?.unwrap_or(1.0);
    let root = if kind.is_none_or(|kind| kind == "default") { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 };
    Ok((root * root) as f32)
}

/// The rotations that layers refer to, and the positions that make sense with them.
pub(super) fn ropes(
    fields: &Fields<'_>,
    traits: &Traits,
    // Of layers without a window, and of those with one.
    (head_dim, local_head_dim): (usize, usize),
    (max_position_embeddings, num_layers): (usize, usize),
) -> Result<(Vec<RopeConfig>, usize), LoadError> {
    let rope = stated(fields)?;
    if rope.is_none() && traits.rope_stated {
        let problem = "missing; state the rotation, {\"rope_type\": \"default\"} for one that is not stretched";
        return Err(fields.error("rope_parameters", problem));
    }
    let Some(local_theta) = traits.local_theta else {
        let (rope, context_limit) = read(fields, traits, rope, head_dim, max_position_embeddings)?;
        let bases = layer_thetas(fields, traits, num_layers)?.filter(|_| traits.layer_thetas == LayerThetas::Bases);
        let bases = bases.map(|thetas| bases_of(&thetas)).unwrap_or_default();
        if let Some(growth) = growth_of_unrotated(fields, traits)? {
            let still = RopeConfig { rotary_dim: 0, scaling: RopeScaling::None, growth: Some(growth), ..rope };
            return Ok((vec![rope, still], context_limit));
        }
        let of_layers = bases.iter().map(|&theta| RopeConfig { theta, ..rope.clone() });
        return Ok((if bases.is_empty() { vec![rope] } else { of_layers.collect() }, context_limit));
    };
    let nested = rope.as_ref().filter(|rope| rope.map.values().any(serde_json::Value::is_object));
    let (full, sliding) = match nested {
        Some(nested) => (nested.object("full_attention")?, nested.object("sliding_attention")?),
        None => (rope, None),
    };
    let (full, _) = read(fields, traits, full, head_dim, max_position_embeddings)?;
    let theta = match &sliding {
        Some(sliding) => sliding.optional_float("rope_theta", THETA)?,
        None => fields.optional_float("rope_local_base_freq", THETA)?,
    };
    if let Some(sliding) = &sliding
        && let Some(scaling) = sliding.text("rope_type")?.filter(|scaling| *scaling != "default")
    {
        let problem = format!("{} is not supported; layers with a window are not stretched", quoted(scaling));
        return Err(sliding.error("rope_type", problem));
    }
    let theta = theta.unwrap_or(local_theta);
    let local = RopeConfig { theta, scaling: RopeScaling::None, rotary_dim: local_head_dim, growth: None };
    // Here the length that is stated counts the stretching.
    Ok((vec![full, local], max_position_embeddings))
}

/// How queries of layers without rotation grow; `None`: they do not.
pub(super) fn growth_of_unrotated(fields: &Fields<'_>, traits: &Traits) -> Result<Option<QueryGrowth>, LoadError> {
    if !traits.growing_unrotated || !fields.flag("attn_temperature_tuning", true)? {
        return Ok(None);
    }
    let beta = fields.optional_float("attn_scale", 0.0..=1e3)?.unwrap_or(0.1) as f32;
    let original_max_position = fields.optional_size("floor_scale", 1 << 27)?.unwrap_or(8192);
    Ok(Some(QueryGrowth { beta, original_max_position, first: 1 }))
}

/// `[num_layers]`: the base of each layer's rotation, 0 for none, 1 for that of all; `None`: no list says so.
pub(super) fn layer_thetas(
    fields: &Fields<'_>,
    traits: &Traits,
    num_layers: usize,
) -> Result<Option<Vec<f64>>, LoadError> {
    const NAME: &str = "layer_rope_theta";
    let listed = || match fields.get(NAME) {
        Some(_) => fields.floats(NAME, num_layers, 0.0..=*THETA.end()).map(Some),
        None => Ok(None),
    };
    match traits.layer_thetas {
        LayerThetas::Unread => Ok(None),
        LayerThetas::Bases => listed(),
        LayerThetas::ZeroOrNot { pattern } => {
            let is_turned = |layer: usize| f64::from(!(num_layers - 1 - layer).is_multiple_of(pattern));
            let listed = listed()?.map(|thetas| thetas.into_iter().map(|theta| f64::from(theta != 0.0)).collect());
            Ok(Some(listed.unwrap_or_else(|| (0..num_layers).map(is_turned).collect())))
        }
    }
}

/// The bases in such a list, each once.
fn bases_of(thetas: &[f64]) -> Vec<f64> {
    let mut bases = Vec::new();
    thetas.iter().filter(|&&theta| theta != 0.0).for_each(|theta| {
        if !bases.contains(theta) {
            bases.push(*theta);
        }
    });
    bases
}

/// The rotation of a layer whose base is `theta`.
pub(super) fn index_of(thetas: &[f64], theta: f64) -> Option<usize> {
    bases_of(thetas).iter().position(|base| *base == theta)
}

/// A rotation, `rope` holding its own fields, and the positions that make sense with it.
fn read(
    fields: &Fields<'_>,
    traits: &Traits,
    rope: Option<Fields<'_>>,
    head_dim: usize,
    max_position_embeddings: usize,
) -> Result<(RopeConfig, usize), LoadError> {
    if let Some(rope) = &rope
        && let Some((name, _)) = rope.map.iter().find(|(_, value)| value.is_object())
    {
        return Err(rope.error(&quoted(name), "rotations that differ between layers are not supported"));
    }
    let theta = match &rope {
        Some(rope) => rope.optional_float("rope_theta", THETA)?,
        None => None,
    };
    let theta = match theta {
        Some(theta) => theta,
        None => fields.optional_float("rope_theta", THETA)?.unwrap_or(traits.theta),
    };
    if let Some(scaling) = proportional(traits, rope.as_ref(), head_dim)? {
        return Ok((RopeConfig { theta, scaling, rotary_dim: head_dim, growth: None }, max_position_embeddings));
    }
    let rotary_dim = match traits.mixers {
        // A width of its own, whatever share of a head it is said to be.
        MixerFields::Latent | MixerFields::Kimi => head_dim,
        _ => rotary_dim(fields, traits, rope.as_ref(), head_dim)?,
    };
    let growth = rope.as_ref().filter(|_| traits.growing_queries).map(|rope| growth(fields, rope)).transpose()?;
    let plain = RopeConfig { theta, scaling: RopeScaling::None, rotary_dim, growth: growth.flatten() };
    let Some(rope) = rope else { return Ok((plain, max_position_embeddings)) };

    let original_max_position = || -> Result<usize, LoadError> {
        const NAME: &str = "original_max_position_embeddings";
        Ok(match fields.optional_size(NAME, 1 << 27)? {
            Some(positions) => positions,
            None => rope.optional_size(NAME, 1 << 27)?.unwrap_or(max_position_embeddings),
        })
    };
    let rope_type = match rope.text("rope_type")? {
        Some(rope_type) => rope_type,
        None => rope.text("type")?.unwrap_or("default"),
    };
    match rope_type {
        // Of a text alone, the three positions of a token are one.
        "default" | "mrope" => Ok((plain, max_position_embeddings)),
        // Hunyuan's: a larger base for all lengths.
        "dynamic" if traits.head_norm == HeadNorm::AfterRotation => {
            let (alpha, width) = (rope.float("alpha", FACTOR)?, head_dim as f64);
            let theta = theta * alpha.powf(width / (width - 2.0));
            Ok((RopeConfig { theta, ..plain }, max_position_embeddings))
        }
        "linear" => {
            let factor = rope.float("factor", FACTOR)?;
            let context_limit = stretched(max_position_embeddings, factor);
            Ok((RopeConfig { scaling: RopeScaling::Linear { factor }, ..plain }, context_limit))
        }
        "llama3" => {
            let low_freq_factor = rope.float("low_freq_factor", 1e-6..=1e6)?;
            let high_freq_factor = rope.float("high_freq_factor", 1e-6..=1e6)?;
            if high_freq_factor <= low_freq_factor {
                let problem = format!("{high_freq_factor} must be more than low_freq_factor = {low_freq_factor}");
                return Err(rope.error("high_freq_factor", problem));
            }
            let scaling = RopeScaling::Llama3 {
                factor: rope.float("factor", FACTOR)?,
                low_freq_factor,
                high_freq_factor,
                original_max_position: original_max_position()?,
            };
            Ok((RopeConfig { scaling, ..plain }, max_position_embeddings))
        }
        "yarn" => {
            let original_max_position = original_max_position()?;
            let factor = match rope.optional_float("factor", FACTOR)? {
                Some(factor) => factor,
                None => max_position_embeddings as f64 / original_max_position as f64,
            };
            // A separate original length means that max_position_embeddings is the stretched one, or not: the
            // hub has both. The larger reading is what the factor was trained for.
            let context_limit = max_position_embeddings.max(stretched(original_max_position, factor));
            let scaling = RopeScaling::Yarn {
                factor,
                original_max_position,
                beta_fast: rope.optional_float("beta_fast", 1e-6..=1e6)?.unwrap_or(32.0),
                beta_slow: rope.optional_float("beta_slow", 1e-6..=1e6)?.unwrap_or(1.0),
                attention_factor: yarn_attention_factor(&rope, factor)?,
                truncate: rope.flag("truncate", true)?,
            };
            Ok((RopeConfig { scaling, ..plain }, context_limit))
        }
        "longrope" | "su" => {
            let original_max_position = original_max_position()?;
            let factor = match rope.optional_float("factor", FACTOR)? {
                Some(factor) => factor,
                None => max_position_embeddings as f64 / original_max_position as f64,
            };
            let attention_factor = longrope_attention_factor(&rope)?;
            if factor > 1.0 && attention_factor.is_none() && original_max_position < 2 {
                let problem = "1; the scale of a stretched context is divided by its logarithm";
                return Err(fields.error("original_max_position_embeddings", problem));
            }
            let scaling = RopeScaling::LongRope {
                short_factor: rope.floats("short_factor", rotary_dim / 2, 1e-6..=1e6)?,
                long_factor: rope.floats("long_factor", rotary_dim / 2, 1e-6..=1e6)?,
                factor,
                original_max_position,
                attention_factor,
            };
            Ok((RopeConfig { scaling, ..plain }, max_position_embeddings))
        }
        other => {
            let problem = format!(
                "{} is not supported; default, linear, llama3, yarn, longrope and proportional are",
                quoted(other)
            );
            Err(rope.error("rope_type", problem))
        }
    }
}

/// A share of a head's pairs turns, with the frequencies of the whole head, where the rotation says so, or says nothing
/// in a family of which that is assumed.
fn proportional(traits: &Traits, rope: Option<&Fields<'_>>, head_dim: usize) -> Result<Option<RopeScaling>, LoadError> {
    let kind = rope.map(|rope| rope.text("rope_type")).transpose()?.flatten();
    let is_so = match (kind, rope) {
        (Some(kind), _) => kind == "proportional",
        (None, rope) => rope.is_none() && !traits.partial_rotation && traits.rotary_share < 1.0,
    };
    if !is_so {
        return Ok(None);
    }
    let (share, factor) = match rope {
        Some(rope) => {
            (rope.optional_float("partial_rotary_factor", 0.0..=1.0)?, rope.optional_float("factor", FACTOR)?)
        }
        None => (Some(traits.rotary_share), None),
    };
    let turning = (share.unwrap_or(1.0) * head_dim as f64 / 2.0) as usize;
    Ok(Some(RopeScaling::Proportional { turning, factor: factor.unwrap_or(1.0) }))
}

/// How many numbers of a head turn: all, or the share that `partial_rotary_factor` states, here or there.
fn rotary_dim(
    fields: &Fields<'_>,
    traits: &Traits,
    rope: Option<&Fields<'_>>,
    head_dim: usize,
) -> Result<usize, LoadError> {
    const NAME: &str = "partial_rotary_factor";
    // MiniMax-M2 states a width.
    let width = fields.optional_size("rotary_dim", head_dim)?.filter(|_| traits.partial_rotation);
    let share = width.map_or(traits.rotary_share, |width| width as f64 / head_dim as f64);
    let (mut share, mut place) = (share, fields);
    for part in [Some(fields), rope].into_iter().flatten() {
        let Some(stated) = part.optional_float(NAME, 0.0..=1.0)? else { continue };
        if !traits.partial_rotation && stated != 1.0 {
            return Err(part.error(NAME, format!("{stated} is not supported; all of a head is rotated")));
        }
        (share, place) = (stated, part);
    }
    let rotary_dim = (head_dim as f64 * share) as usize;
    if rotary_dim == 0 || !rotary_dim.is_multiple_of(2) {
        let problem = format!("{share} of heads of width {head_dim} is {rotary_dim}, which is no number of pairs");
        return Err(place.error(NAME, problem));
    }
    Ok(rotary_dim)
}

/// How queries grow, if they do.
fn growth(fields: &Fields<'_>, rope: &Fields<'_>) -> Result<Option<QueryGrowth>, LoadError> {
    const ORIGINAL: &str = "original_max_position_embeddings";
    let beta = rope.optional_float("llama_4_scaling_beta", 0.0..=1e3)?.filter(|beta| *beta != 0.0);
    let Some(beta) = beta else { return Ok(None) };
    let original_max_position = match rope.optional_size(ORIGINAL, 1 << 27)? {
        Some(positions) => Some(positions),
        None => fields.optional_size(ORIGINAL, 1 << 27)?,
    };
    let missing =
        || rope.error(ORIGINAL, "missing; queries grow each time that their position passes a multiple of it");
    Ok(Some(QueryGrowth {
        beta: beta as f32,
        original_max_position: original_max_position.ok_or_else(missing)?,
        first: 0,
    }))
}

/// As stated, or Phi-3.5-MoE's pair of scales, which must be one.
fn longrope_attention_factor(rope: &Fields<'_>) -> Result<Option<f64>, LoadError> {
    let [short, long] = ["short_mscale", "long_mscale"].map(|name| rope.optional_float(name, 1e-3..=1e3));
    let (short, long) = (short?, long?);
    if short != long {
        return Err(rope.error("long_mscale", "differs from short_mscale, which is not supported"));
    }
    Ok(rope.optional_float("attention_factor", 1e-3..=1e3)?.or(short))
}

fn stretched(positions: usize, factor: f64) -> usize {
    (positions as f64 * factor).min((1u64 << 27) as f64) as usize
}

/// `attention_factor` as stated, or DeepSeek's pair of `mscale`s; `None` leaves the paper's `0.1 ln(factor) + 1`
/// (Peng et al., 2023).
fn yarn_attention_factor(rope: &Fields<'_>, factor: f64) -> Result<Option<f64>, LoadError> {
    if let Some(stated) = rope.optional_float("attention_factor", 1e-3..=1e3)? {
        return Ok(Some(stated));
    }
    let one = rope.optional_float("mscale", 0.0..=1e3)?.filter(|scale| *scale != 0.0);
    let all = rope.optional_float("mscale_all_dim", 0.0..=1e3)?.filter(|scale| *scale != 0.0);
    Ok(one.zip(all).map(|(one, all)| attention_factor_of_scales(factor, one, all)))
}
