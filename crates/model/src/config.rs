//! `config.json` and `generation_config.json`: what a checkpoint says about itself.
//!
//! Two spellings are in use. transformers 4 writes `rope_theta` and `rope_scaling` (whose kind is `rope_type`, once
//! `type`) beside the other fields; transformers 5 puts all of it into `rope_parameters`. Both are read here and give
//! the same [`ModelConfig`], which holds only what the forward pass uses, checked: a value that is zero, absurd or
//! meant for another architecture is refused under its own name before anything is allocated.
//!
//! | family | q/k/v bias | o bias | MLP bias | q/k norm | window |
//! |---|---|---|---|---|---|
//! | Llama | `attention_bias` | `attention_bias` | `mlp_bias` | no | none |
//! | Mistral | no | no | no | no | `sliding_window` unless null |
//! | Qwen2, 2.5 | always | no | no | no | with `use_sliding_window` |
//! | Qwen3 | `attention_bias` | `attention_bias` | no | yes | with `use_sliding_window` |

use crate::checkpoint::{Checkpoint, LoadError};
use kernels::rope::yarn_attention_factor as attention_factor_of_scales;
use kernels::{HeadLayout, RopeScaling};
use serde_json::{Map, Value};
use std::fmt;

const CONFIG: &str = "config.json";
const GENERATION: &str = "generation_config.json";
/// A configuration is a few kilobytes; nobody's is this large.
const MAX_CONFIG_BYTES: u64 = 4 << 20;

/// Widest input of a matrix: above it an int8 sum could leave 32 bits (see [`kernels::MatrixShape`]).
const MAX_WIDTH: usize = 1 << 17;

/// Architectures that the forward pass knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Llama 2, 3, 3.1, 3.2, 3.3, and the many models of that shape (Touvron et al., 2023; Grattafiori et al., 2024).
    Llama,
    /// Mistral 7B and its successors of the same shape (Jiang et al., 2023).
    Mistral,
    /// Qwen2 and Qwen2.5 (Yang et al., 2024).
    Qwen2,
    /// Qwen3, dense (Yang et al., 2025).
    Qwen3,
}

impl Family {
    /// `architectures[0]`, `model_type`.
    const NAMES: [(Family, &'static str, &'static str); 4] = [
        (Family::Llama, "LlamaForCausalLM", "llama"),
        (Family::Mistral, "MistralForCausalLM", "mistral"),
        (Family::Qwen2, "Qwen2ForCausalLM", "qwen2"),
        (Family::Qwen3, "Qwen3ForCausalLM", "qwen3"),
    ];

    /// `model_type` of the family.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(family, ..)| *family == self).map_or("", |(_, _, model_type)| model_type)
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A decoder-only transformer, as far as the forward pass needs to know it. Every number is checked and nonzero.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    /// Which architecture.
    pub family: Family,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub num_layers: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key/value heads; divides `num_heads` (grouped-query attention: Ainslie et al., 2023).
    pub num_kv_heads: usize,
    /// Width of a head; a multiple of 16, at most 256.
    pub head_dim: usize,
    /// Rows of the embedding: token ids are below it.
    pub vocab_size: usize,
    /// Positions that the checkpoint's own field states.
    pub max_position_embeddings: usize,
    /// Positions that make sense with the rope scaling: what a request may use at most.
    pub context_limit: usize,
    /// `[num_layers]`: how many last tokens a layer's attention sees; `None`: all.
    pub layer_windows: Vec<Option<usize>>,
    /// Added under the root in every norm.
    pub rms_norm_eps: f32,
    /// Base wavelength of the rotary embedding (Su et al., 2021).
    pub rope_theta: f64,
    /// How the rotary frequencies are stretched for long contexts.
    pub rope_scaling: RopeScaling,
    /// The language-model head is the embedding matrix.
    pub tie_word_embeddings: bool,
    /// Biases on the q, k and v projections.
    pub qkv_bias: bool,
    /// A bias on the attention's output projection.
    pub o_bias: bool,
    /// Biases on gate, up and down.
    pub mlp_bias: bool,
    /// Per-head RMS norm of q and k before rotation.
    pub qk_norm: bool,
    /// Begin-of-text tokens; often one, may be none.
    pub bos_token_ids: Vec<u32>,
    /// End-of-text tokens; may be none here and given by [`GenerationDefaults`].
    pub eos_token_ids: Vec<u32>,
}

impl ModelConfig {
    /// Reads `config.json`.
    pub fn load(checkpoint: &Checkpoint) -> Result<ModelConfig, LoadError> {
        let text = checkpoint
            .read_text_capped(CONFIG, MAX_CONFIG_BYTES)?
            .ok_or_else(|| LoadError::NoFile { file: CONFIG.to_string(), checkpoint: checkpoint.location() })?;
        Self::parse(&text).map_err(|error| checkpoint.in_its_words(error))
    }

    /// Reads the text of a `config.json`.
    pub fn parse(text: &str) -> Result<ModelConfig, LoadError> {
        let root = parse_object(CONFIG, text)?;
        let fields = Fields { file: CONFIG, path: String::new(), map: &root };
        let family = family(&fields)?;
        refuse_what_is_not_computed(&fields)?;

        let hidden_size = fields.size("hidden_size", MAX_WIDTH)?;
        let num_layers = fields.size("num_hidden_layers", 1024)?;
        let num_heads = fields.size("num_attention_heads", 1024)?;
        let num_kv_heads = fields.optional_size("num_key_value_heads", 1024)?.unwrap_or(num_heads);
        if num_heads % num_kv_heads != 0 {
            let problem = format!("{num_kv_heads} does not divide num_attention_heads = {num_heads}");
            return Err(fields.error("num_key_value_heads", problem));
        }
        let max_position_embeddings = fields.size("max_position_embeddings", 1 << 27)?;
        let rope = Rope::read(&fields, max_position_embeddings)?;
        let attention_bias = matches!(family, Family::Llama | Family::Qwen3) && fields.flag("attention_bias", false)?;

        Ok(ModelConfig {
            family,
            hidden_size,
            intermediate_size: fields.size("intermediate_size", MAX_WIDTH)?,
            num_layers,
            num_heads,
            num_kv_heads,
            head_dim: head_dim(&fields, family, hidden_size, num_heads)?,
            vocab_size: fields.size("vocab_size", 1 << 24)?,
            max_position_embeddings,
            context_limit: rope.context_limit,
            layer_windows: layer_windows(&fields, family, num_layers)?,
            rms_norm_eps: fields.optional_float("rms_norm_eps", 1e-12..=1.0)?.unwrap_or(1e-6) as f32,
            rope_theta: rope.theta,
            rope_scaling: rope.scaling,
            tie_word_embeddings: fields.flag("tie_word_embeddings", false)?,
            qkv_bias: attention_bias || family == Family::Qwen2,
            o_bias: attention_bias,
            mlp_bias: family == Family::Llama && fields.flag("mlp_bias", false)?,
            qk_norm: family == Family::Qwen3,
            bos_token_ids: fields.token_ids("bos_token_id")?,
            eos_token_ids: fields.token_ids("eos_token_id")?,
        })
    }

    /// The heads of a fused q/k/v row.
    pub fn heads(&self) -> HeadLayout {
        HeadLayout { num_heads: self.num_heads, num_kv_heads: self.num_kv_heads, head_dim: self.head_dim }
    }

    /// Weights in the matrices of all layers: each is used once for every token. The embedding and the head are not in it.
    pub fn layer_parameters(&self) -> u64 {
        let heads = self.heads();
        let attention = self.hidden_size as u64 * (heads.qkv_width() + heads.q_width()) as u64;
        let mlp = 3 * self.hidden_size as u64 * self.intermediate_size as u64;
        self.num_layers as u64 * (attention + mlp)
    }

    /// Weights in the language-model head, which only rows with logits use.
    pub fn head_parameters(&self) -> u64 {
        self.vocab_size as u64 * self.hidden_size as u64
    }

    /// Multiplications and additions that the layers' matrices cost for one token. Attention over the context comes on
    /// top: see [`attention_flops`](Self::attention_flops).
    pub fn flops_per_token(&self) -> u64 {
        2 * self.layer_parameters()
    }

    /// Multiplications and additions of the language-model head for one row of logits.
    pub fn flops_per_logit_row(&self) -> u64 {
        2 * self.head_parameters()
    }

    /// Multiplications and additions of attention for one token that sees `context_len` tokens, all layers.
    pub fn attention_flops(&self, context_len: usize) -> u64 {
        4 * self.num_layers as u64 * self.heads().q_width() as u64 * context_len as u64
    }
}

fn family(fields: &Fields<'_>) -> Result<Family, LoadError> {
    let known = || Family::NAMES.map(|(_, architecture, _)| architecture).join(", ");
    match fields.get("architectures") {
        Some(Value::Array(names)) => {
            let name = names.first().and_then(Value::as_str).unwrap_or("");
            let found = Family::NAMES.iter().find(|(_, architecture, _)| *architecture == name);
            found.map(|(family, ..)| *family).ok_or_else(|| {
                fields.error("architectures", format!("{} is not known; known are {}", quoted(name), known()))
            })
        }
        Some(other) => Err(fields.error("architectures", format!("expected a list of names, found {}", kind(other)))),
        None => {
            let name = fields.text("model_type")?.ok_or_else(|| {
                fields.error("architectures", format!("missing, and model_type too; known are {}", known()))
            })?;
            let found = Family::NAMES.iter().find(|(.., model_type)| *model_type == name);
            found.map(|(family, ..)| *family).ok_or_else(|| {
                fields.error("model_type", format!("{} is not known; known are {}", quoted(name), known()))
            })
        }
    }
}

/// Fields that would change the arithmetic in ways that this forward pass does not have.
fn refuse_what_is_not_computed(fields: &Fields<'_>) -> Result<(), LoadError> {
    for name in ["hidden_act", "hidden_activation"] {
        if let Some(activation) = fields.text(name)?
            && !matches!(activation, "silu" | "swish")
        {
            return Err(fields.error(name, format!("{} is not supported; silu is", quoted(activation))));
        }
    }
    if let Some(quantization) = fields.get("quantization_config") {
        let method = quantization.get("quant_method").and_then(Value::as_str).unwrap_or("unknown");
        let problem = format!(
            "the weights are stored quantized ({}); use the original bf16 or f16 checkpoint, and --weights int8 to halve it in memory",
            quoted(method)
        );
        return Err(fields.error("quantization_config", problem));
    }
    Ok(())
}

fn head_dim(fields: &Fields<'_>, family: Family, hidden_size: usize, num_heads: usize) -> Result<usize, LoadError> {
    let explicit = fields.optional_size("head_dim", 1024)?;
    let head_dim = match explicit {
        Some(head_dim) => head_dim,
        // The class's own default in transformers.
        None if family == Family::Qwen3 => 128,
        None if !hidden_size.is_multiple_of(num_heads) => {
            let problem = format!("{num_heads} does not divide hidden_size = {hidden_size}, and head_dim is missing");
            return Err(fields.error("num_attention_heads", problem));
        }
        None => hidden_size / num_heads,
    };
    if num_heads * head_dim > MAX_WIDTH {
        let problem = format!("{num_heads} heads of width {head_dim} are more than {MAX_WIDTH} wide");
        return Err(fields.error("num_attention_heads", problem));
    }
    if head_dim % 16 != 0 || head_dim > 256 {
        let field = if explicit.is_some() { "head_dim" } else { "num_attention_heads" };
        return Err(fields.error(field, format!("heads of width {head_dim}; multiples of 16 up to 256 are supported")));
    }
    Ok(head_dim)
}

/// The window of every layer: all of one width, in the layers that `layer_types` lists as `sliding_attention`, or
/// without a list in all (Mistral) or in those from `max_window_layers` on (Qwen).
fn layer_windows(fields: &Fields<'_>, family: Family, num_layers: usize) -> Result<Vec<Option<usize>>, LoadError> {
    let none = vec![None; num_layers];
    if family == Family::Llama {
        return Ok(none);
    }
    let listed = layer_types(fields, num_layers)?;
    if listed.as_ref().is_some_and(|windowed| windowed.iter().all(|windowed| !windowed)) {
        return Ok(none);
    }
    let given = match fields.map.get("sliding_window") {
        Some(Value::Null) => return Ok(none),
        Some(_) => fields.optional_size("sliding_window", 1 << 27)?,
        None => None,
    };
    let first_windowed = match family {
        Family::Qwen2 | Family::Qwen3 => {
            let first = fields.optional_integer("max_window_layers", 0..=1 << 20)?.map_or(28, |layers| layers as usize);
            if !fields.flag("use_sliding_window", false)? {
                return Ok(none);
            }
            first
        }
        Family::Llama | Family::Mistral => 0,
    };
    let windowed = listed.unwrap_or_else(|| (0..num_layers).map(|layer| layer >= first_windowed).collect());
    // transformers assumes 4096 when the field is absent.
    Ok(windowed.into_iter().map(|windowed| windowed.then(|| given.unwrap_or(4096))).collect())
}

/// `[num_layers]`: whether `layer_types` lists a layer as one with a window; `None` where there is no list.
fn layer_types(fields: &Fields<'_>, num_layers: usize) -> Result<Option<Vec<bool>>, LoadError> {
    let types = match fields.get("layer_types") {
        None => return Ok(None),
        Some(Value::Array(types)) => types,
        Some(other) => return Err(fields.error("layer_types", format!("expected a list, found {}", kind(other)))),
    };
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

struct Rope {
    theta: f64,
    scaling: RopeScaling,
    context_limit: usize,
}

impl Rope {
    /// Definitions follow `modeling_rope_utils.py` of transformers 5.
    fn read(fields: &Fields<'_>, max_position_embeddings: usize) -> Result<Rope, LoadError> {
        const THETA: std::ops::RangeInclusive<f64> = 1.0 + f64::EPSILON..=1e15;
        const FACTOR: std::ops::RangeInclusive<f64> = 1.0..=1e6;
        // Of both, transformers takes the older name.
        let rope = match fields.object("rope_scaling")?.filter(|rope| !rope.map.is_empty()) {
            Some(rope) => Some(rope),
            None => fields.object("rope_parameters")?,
        };
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
            None => fields.optional_float("rope_theta", THETA)?.unwrap_or(10_000.0),
        };
        let plain = Rope { theta, scaling: RopeScaling::None, context_limit: max_position_embeddings };
        for part in [Some(fields), rope.as_ref()].into_iter().flatten() {
            if let Some(share) = part.optional_float("partial_rotary_factor", 0.0..=1.0)?
                && share != 1.0
            {
                let problem = format!("{share} is not supported; all of a head is rotated");
                return Err(part.error("partial_rotary_factor", problem));
            }
        }
        let Some(rope) = rope else { return Ok(plain) };

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
            "default" => Ok(plain),
            "linear" => {
                let factor = rope.float("factor", FACTOR)?;
                let context_limit = stretched(max_position_embeddings, factor);
                Ok(Rope { scaling: RopeScaling::Linear { factor }, context_limit, ..plain })
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
                Ok(Rope { scaling, ..plain })
            }
            "yarn" => {
                let original_max_position = original_max_position()?;
                let factor = match rope.optional_float("factor", FACTOR)? {
                    Some(factor) => factor,
                    None => max_position_embeddings as f64 / original_max_position as f64,
                };
                // An original length of its own means that max_position_embeddings is the stretched one, or not: the
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
                Ok(Rope { scaling, context_limit, ..plain })
            }
            other => {
                let problem = format!("{} is not supported; default, linear, llama3 and yarn are", quoted(other));
                Err(rope.error("rope_type", problem))
            }
        }
    }
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

/// What `generation_config.json` proposes for requests that do not say otherwise. All optional.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// Whether the authors sample at all; `Some(false)` means greedy.
    pub do_sample: Option<bool>,
    /// Softmax temperature.
    pub temperature: Option<f32>,
    /// Most likely tokens kept; 0 keeps all.
    pub top_k: Option<u32>,
    /// Probability mass kept.
    pub top_p: Option<f32>,
    /// Share of the best token's probability below which tokens go.
    pub min_p: Option<f32>,
    /// Divides (or multiplies) the logits of tokens already present.
    pub repetition_penalty: Option<f32>,
    /// Longest answer.
    pub max_new_tokens: Option<usize>,
    /// Begin-of-text tokens.
    pub bos_token_ids: Vec<u32>,
    /// End-of-text tokens, to be united with the configuration's.
    pub eos_token_ids: Vec<u32>,
}

impl GenerationDefaults {
    /// Reads `generation_config.json`; all empty when there is none.
    pub fn load(checkpoint: &Checkpoint) -> Result<GenerationDefaults, LoadError> {
        match checkpoint.read_text_capped(GENERATION, MAX_CONFIG_BYTES)? {
            Some(text) => Self::parse(&text),
            None => Ok(GenerationDefaults::default()),
        }
    }

    /// Reads the text of a `generation_config.json`.
    pub fn parse(text: &str) -> Result<GenerationDefaults, LoadError> {
        let root = parse_object(GENERATION, text)?;
        let fields = Fields { file: GENERATION, path: String::new(), map: &root };
        let float = |name, range| fields.optional_float(name, range).map(|value| value.map(|value| value as f32));
        Ok(GenerationDefaults {
            do_sample: fields.get("do_sample").map(|_| fields.flag("do_sample", false)).transpose()?,
            temperature: float("temperature", 0.0..=100.0)?,
            top_k: fields.optional_integer("top_k", 0..=1 << 24)?.map(|value| value as u32),
            top_p: float("top_p", 0.0..=1.0)?,
            min_p: float("min_p", 0.0..=1.0)?,
            repetition_penalty: float("repetition_penalty", 1e-3..=1e3)?,
            max_new_tokens: fields.optional_size("max_new_tokens", 1 << 27)?,
            bos_token_ids: fields.token_ids("bos_token_id")?,
            eos_token_ids: fields.token_ids("eos_token_id")?,
        })
    }
}

fn parse_object(file: &str, text: &str) -> Result<Map<String, Value>, LoadError> {
    match serde_json::from_str(text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => Err(LoadError::field(file, "top level", format!("expected an object, found {}", kind(&other)))),
        Err(error) => Err(LoadError::field(file, "JSON", error)),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// A name from a file, short enough for one line and without control characters.
fn quoted(text: &str) -> String {
    let short: String = text.chars().take(60).collect();
    format!("{short:?}")
}

/// The fields of one JSON object, read by name, range and type. `null` counts as absent, as in transformers.
struct Fields<'a> {
    file: &'static str,
    /// Name of the object and a dot; empty at the top.
    path: String,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    fn error(&self, name: &str, problem: impl fmt::Display) -> LoadError {
        LoadError::field(self.file, format!("{}{name}", self.path), problem)
    }

    fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    fn object(&self, name: &str) -> Result<Option<Fields<'a>>, LoadError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Object(map)) => {
                Ok(Some(Fields { file: self.file, path: format!("{}{name}.", self.path), map }))
            }
            Some(other) => Err(self.error(name, format!("expected an object, found {}", kind(other)))),
        }
    }

    fn text(&self, name: &str) -> Result<Option<&'a str>, LoadError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.error(name, format!("expected a string, found {}", kind(other)))),
        }
    }

    fn flag(&self, name: &str, default: bool) -> Result<bool, LoadError> {
        match self.get(name) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(self.error(name, format!("expected true or false, found {}", kind(other)))),
        }
    }

    fn optional_integer(&self, name: &str, range: std::ops::RangeInclusive<u64>) -> Result<Option<u64>, LoadError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let Value::Number(number) = value else {
            return Err(self.error(name, format!("expected a whole number, found {}", kind(value))));
        };
        match number.as_u64() {
            Some(value) if range.contains(&value) => Ok(Some(value)),
            _ => {
                let (low, high) = (range.start(), range.end());
                Err(self.error(name, format!("{number} is not a whole number from {low} to {high}")))
            }
        }
    }

    fn optional_size(&self, name: &str, max: usize) -> Result<Option<usize>, LoadError> {
        Ok(self.optional_integer(name, 1..=max as u64)?.map(|value| value as usize))
    }

    fn size(&self, name: &str, max: usize) -> Result<usize, LoadError> {
        self.optional_size(name, max)?.ok_or_else(|| self.error(name, "missing"))
    }

    fn optional_float(&self, name: &str, range: std::ops::RangeInclusive<f64>) -> Result<Option<f64>, LoadError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let Value::Number(number) = value else {
            return Err(self.error(name, format!("expected a number, found {}", kind(value))));
        };
        match number.as_f64() {
            Some(value) if range.contains(&value) => Ok(Some(value)),
            _ => Err(self.error(name, format!("{number} is not between {} and {}", range.start(), range.end()))),
        }
    }

    fn float(&self, name: &str, range: std::ops::RangeInclusive<f64>) -> Result<f64, LoadError> {
        self.optional_float(name, range)?.ok_or_else(|| self.error(name, "missing"))
    }

    /// One id, or a list of them; none when absent.
    fn token_ids(&self, name: &str) -> Result<Vec<u32>, LoadError> {
        let wrong = |value: &Value| {
            self.error(name, format!("expected a token id or a list of them, found {}", quoted(&value.to_string())))
        };
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| wrong(value));
        match self.get(name) {
            None => Ok(Vec::new()),
            Some(Value::Array(ids)) if ids.len() <= 1024 => ids.iter().map(id).collect(),
            Some(Value::Array(ids)) => Err(self.error(name, format!("{} ids; at most 1024 are read", ids.len()))),
            Some(value) => Ok(vec![id(value)?]),
        }
    }
}
