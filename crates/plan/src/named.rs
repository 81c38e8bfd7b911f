//! Models known by name, and models of which only the number of parameters is known.
//!
//! ```text
//! config.json -> ModelConfig --+
//! llama-3.1-8b ---------------+--> NamedModel { name, ModelShape } --precision--> Demands --> FLOPs and bytes of any pass
//! 7b, 30b-a3b ---> 7e9 --------+
//! ```

use roofline::{Mixture, ModelShape};

/// Experts of a layer of a mixture of which only two numbers are known: many, so that any share of them can be used.
const EXPERTS: usize = 1024;

/// A named model shape.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedModel {
    /// Display name.
    pub name: String,
    /// The shape.
    pub shape: ModelShape,
    /// If only the number of parameters is known: the model whose heads and layers are assumed.
    pub assumed: Option<&'static str>,
}

impl NamedModel {
    /// With a fully known shape.
    pub fn new(name: &str, shape: ModelShape) -> NamedModel {
        NamedModel { name: name.to_string(), shape, assumed: None }
    }

    /// A known model by name, or a number of parameters such as `7b`, `0.5b`, `135m`, and of a mixture `30b-a3b`, of which
    /// a token uses 3 of 30 billion.
    pub fn find(name: &str) -> Option<NamedModel> {
        let known = ModelShape::known().find(|(known, _)| known.eq_ignore_ascii_case(name));
        known.map(|(name, shape)| NamedModel::new(name, shape)).or_else(|| {
            let (all, active) = name.split_once("-a").or(name.split_once("-A")).unwrap_or((name, name));
            let (all, active) = (count(all)?, count(active)?);
            (active <= all).then(|| NamedModel::of_count(name, all, active))
        })
    }

    /// From the number of parameters alone: each active one is multiplied once per token. Heads and layers, for attention
    /// and cache, are those of the known model of nearest size among those without experts, windows and latents, which a
    /// number does not determine; a mixture counts as large as the mean of both numbers, by factors. Half of what is
    /// active is experts, as in known mixtures.
    fn of_count(name: &str, parameters: u64, active: u64) -> NamedModel {
        let size = (parameters as f64 * active as f64).sqrt();
        let distance = |shape: &ModelShape| (shape.parameters() as f64 / size).ln().abs();
        let is_plain = |shape: &ModelShape| {
            let sees_all = shape.windows.iter().all(|(window, _)| window.is_none());
            sees_all && shape.experts.is_none() && shape.pair_flops == shape.decode_pair_flops
        };
        let nearest = ModelShape::known()
            .filter(|(_, shape)| is_plain(shape))
            .min_by(|(_, a), (_, b)| distance(a).total_cmp(&distance(b)));
        let (known, nearest) = nearest.expect("models are known");
        let used = active as f64 / parameters as f64 / 2.0;
        let experts = (active < parameters).then(|| Mixture {
            num_experts: EXPERTS,
            top_k: ((used * EXPERTS as f64).round() as usize).clamp(1, EXPERTS - 1),
        });
        // A token reads its share of the experts, and all else: the active weights.
        let read = |mixture: Mixture| mixture.top_k as f64 / mixture.num_experts as f64;
        let rest = |mixture| (active as f64 - read(mixture) * parameters as f64).max(0.0) / (1.0 - read(mixture));
        let shape = ModelShape {
            layer_parameters: parameters,
            active_parameters: active,
            // The share of the model whose shape it takes.
            wide_parameters: (parameters as f64 * nearest.wide_parameters as f64 / nearest.layer_parameters as f64)
                as u64,
            expert_parameters: experts.map_or(0, |mixture| parameters - rest(mixture) as u64),
            experts,
            head_parameters: 0,
            tables: 0,
            row_table_parameters: 0,
            ..nearest
        };
        NamedModel { name: name.to_string(), shape, assumed: Some(known) }
    }
}

/// Parses `7b` to 7e9, `0.5B` to 5e8, `135m` to 1.35e8.
fn count(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let factor = match unit {
        "m" | "M" => 1e6,
        "b" | "B" => 1e9,
        "t" | "T" => 1e12,
        _ => return None,
    };
    let plain = number.chars().all(|c| c.is_ascii_digit() || c == '.');
    let parameters = number.parse::<f64>().ok().filter(|_| plain)? * factor;
    (1e6..=1e14).contains(&parameters).then_some(parameters as u64)
}
