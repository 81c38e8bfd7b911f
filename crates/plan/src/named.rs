//! Models known by name, and models of which only the number of parameters is known.
//!
//! ```text
//! config.json -> ModelConfig --+
//! llama-3.1-8b ---------------+--> NamedModel { name, ModelShape } --precision--> Demands --> FLOPs and bytes of any pass
//! 7b ------------> 7e9 --------+
//! ```

use roofline::ModelShape;

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

    /// A known model by name, or a number of parameters such as `7b`, `0.5b`, `135m`.
    pub fn find(name: &str) -> Option<NamedModel> {
        let known = ModelShape::known().find(|(known, _)| known.eq_ignore_ascii_case(name));
        known
            .map(|(name, shape)| NamedModel::new(name, shape))
            .or_else(|| Some(NamedModel::of_count(name, count(name)?)))
    }

    /// From the number of parameters alone: each is multiplied once per token. Heads and layers, for attention and cache,
    /// are those of the known model of nearest size among those without experts, windows and latents, which a number does
    /// not determine.
    fn of_count(name: &str, parameters: u64) -> NamedModel {
        let distance = |shape: &ModelShape| (shape.parameters() as f64 / parameters as f64).ln().abs();
        let is_plain = |shape: &ModelShape| {
            let sees_all = shape.windows.iter().all(|(window, _)| window.is_none());
            sees_all && shape.experts.is_none() && shape.pair_flops == shape.decode_pair_flops
        };
        let nearest = ModelShape::known()
            .filter(|(_, shape)| is_plain(shape))
            .min_by(|(_, a), (_, b)| distance(a).total_cmp(&distance(b)));
        let (known, nearest) = nearest.expect("models are known");
        let shape = ModelShape {
            layer_parameters: parameters,
            active_parameters: parameters,
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
