//! An adapter as peft writes it, read and checked against the model that it is for.
//!
//! ```text
//! adapter_config.json         peft_type, r, lora_alpha, use_rslora, rank_pattern, alpha_pattern, target_modules
//! adapter_model.safetensors   base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight   [r, in_features]
//!                             base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight   [out_features, r]
//! ```
//! Half an adapter answers too, and so does one that is read as something else. So each module that the configuration
//! names has both its tensors, each tensor is one that the model has a place for, and a field that would change what is
//! computed is refused unless it says what is computed here.

use crate::config::ModelConfig;
use crate::config::fields::{Fields, parse_object, quoted};
use crate::tensors::{Feed, Layer, Linear, Mixer, Tensors, unread_error};
use checkpoint::encoding::is_finite_bf16;
use checkpoint::weights::{RowOrder, TensorSlice, Weights};
use checkpoint::{Checkpoint, LoadError, Source};
use serde_json::Value;
use std::collections::HashSet;
use std::path::Path;

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
const PICKLED: &str = "adapter_model.bin";
/// Real ones have 2 KB.
const MAX_CONFIG_BYTES: u64 = 1 << 20;
const NO_TABLES: &str = "adapters of embeddings and heads are not supported";
/// Weights whose bytes are shown together.
const PART: usize = 1024;
/// Prefix of the names of the model's own modules: as peft writes it, or none, as other programs do.
const PREFIXES: [&str; 2] = ["base_model.model.", ""];
/// Text models in something larger have gained and lost a part of this over transformers' versions; what was trained on
/// a class without a head has nothing.
const MODELS: [&str; 5] = ["model.", "model.language_model.", "language_model.model.", "language_model.", ""];

/// A low-rank adapter on the host, as it was read: ready to be packed.
#[derive(Debug)]
pub struct Adapter {
    /// By layer and [`Module`](super::packed::Module).
    pub(super) layers: Vec<[Vec<Pair>; 4]>,
    rank: usize,
}

/// `A` and `B` of one module.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) rank: usize,
    /// Which rows of the product are the module's.
    pub(super) first_row: usize,
    pub(super) num_rows: usize,
    /// `[rank, in_features]`.
    pub(super) a: Vec<f32>,
    /// `[num_rows, rank]`, times the adapter's scale.
    pub(super) b: Vec<f32>,
}

impl Adapter {
    /// Largest rank that is read, whatever the settings allow.
    pub const MAX_RANK: usize = 512;

    /// Reads a directory. Memory: four bytes a weight; shapes are checked before any of it is taken.
    pub fn load(directory: &Path, config: &ModelConfig, max_rank: usize) -> Result<Adapter, LoadError> {
        let (files, stated) = open(directory, max_rank)?;
        if !files.has(WEIGHTS) {
            if files.has(PICKLED) {
                let problem = format!(
                    "only pickled weights ({PICKLED}), which can run code when loaded and are never read; save the adapter \
                     again with save_pretrained(directory, safe_serialization=True)"
                );
                return Err(LoadError::NoWeights { checkpoint: files.location(), problem });
            }
            return Err(missing(&files, WEIGHTS));
        }
        let weights = Weights::open(&Checkpoint::open(Source::Safetensors(directory.join(WEIGHTS)))?)?;
        Reader { stated: &stated, weights: &weights, read: HashSet::new(), rank: 0 }.adapter(config)
    }

    /// The largest rank that its configuration names. Reads no tensor.
    pub fn stated_rank(directory: &Path) -> Result<usize, LoadError> {
        let (_, stated) = open(directory, Adapter::MAX_RANK)?;
        Ok(stated.ranks.iter().map(|(_, rank)| *rank).fold(stated.rank, usize::max))
    }

    /// One of random numbers, of all projections that can be adapted: for measuring.
    pub fn random(config: &ModelConfig, rank: usize, seed: u64) -> Adapter {
        let mut state = seed | 1;
        let mut numbers = |count: usize| -> Vec<f32> {
            let next = |_| {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                ((state >> 40) as f32 / (1u64 << 24) as f32 - 0.5) / 64.0
            };
            (0..count).map(next).collect()
        };
        let tensors = Tensors::usual(config);
        let mut product = |parts: &[TensorSlice], in_features: usize| {
            let mut first_row = 0;
            let pair = |part: &TensorSlice| {
                let (first, num_rows) = (first_row, part.rows.len());
                first_row += num_rows;
                let (a, b) = (numbers(rank * in_features), numbers(num_rows * rank));
                Pair { rank, first_row: first, num_rows, a, b }
            };
            parts.iter().map(pair).collect()
        };
        let layer = |index: usize| {
            let layer = tensors.layer(index);
            products(&layer)
                .map(|linear| linear.map_or_else(Vec::new, |linear| product(&linear.parts, linear.in_features)))
        };
        Adapter { layers: (0..config.num_layers).map(layer).collect(), rank }
    }

    /// The largest rank of its matrices.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// What it computes, as bytes: adapters that differ in any number differ here.
    pub fn each_byte(&self, mut take: impl FnMut(&[u8])) {
        for (place, pair) in self.pairs() {
            [place, pair.rank, pair.first_row, pair.num_rows].iter().for_each(|&n| take(&(n as u64).to_le_bytes()));
            for weights in [&pair.a, &pair.b].into_iter().flat_map(|weights| weights.chunks(PART)) {
                let mut bytes = [0; 4 * PART];
                let places = bytes.as_chunks_mut().0.iter_mut();
                places.zip(weights).for_each(|(bytes, weight)| *bytes = weight.to_le_bytes());
                take(&bytes[..4 * weights.len()]);
            }
        }
    }

    /// Every module that it adapts, with the number of its place.
    fn pairs(&self) -> impl Iterator<Item = (usize, &Pair)> {
        let places = self.layers.iter().flatten().enumerate();
        places.flat_map(|(place, pairs)| pairs.iter().map(move |pair| (place, pair)))
    }
}

/// A directory and its configuration.
fn open(directory: &Path, max_rank: usize) -> Result<(Checkpoint, Stated), LoadError> {
    let files = Checkpoint::open(Source::Directory(directory.to_path_buf()))?;
    let text = files.read_text_capped(CONFIG, MAX_CONFIG_BYTES)?.ok_or_else(|| missing(&files, CONFIG))?;
    Ok((files, Stated::parse(&text, max_rank.min(Adapter::MAX_RANK))?))
}

fn missing(files: &Checkpoint, file: &str) -> LoadError {
    LoadError::NoFile { file: file.to_string(), checkpoint: files.location() }
}

/// The products of a layer by [`Module`](super::Module); the MLP's where it is dense, and those of attention. Where its
/// queries have gates, or neighbours turn together, rows are in another order, and adapters of them are not read, nor
/// those of up without a gate.
fn products(layer: &Layer) -> [Option<&Linear>; 4] {
    let (gate_up, down) = match &layer.feed {
        Some(Feed::Dense(mlp)) => {
            (Some(&mlp.gate_up).filter(|_| mlp.gate_up_order != RowOrder::AsStored), Some(&mlp.down))
        }
        _ => (None, None),
    };
    let attention = layer.mixings.iter().find(|mixing| matches!(mixing.mixer, Mixer::Attention(_)));
    let qkv = attention.filter(|mixing| mixing.qkv_order == RowOrder::AsStored).map(|mixing| &mixing.qkv);
    [qkv, attention.map(|mixing| &mixing.o), gate_up, down]
}

/// What the configuration says.
#[derive(Debug)]
struct Stated {
    rank: usize,
    alpha: f64,
    rank_stabilized: bool,
    /// Modules that have another rank, another alpha.
    ranks: Vec<(String, usize)>,
    alphas: Vec<(String, f64)>,
    /// Names or ends of names; `None`: whatever has tensors.
    targets: Option<Vec<String>>,
}

impl Stated {
    fn parse(text: &str, max_rank: usize) -> Result<Stated, LoadError> {
        let map = parse_object(CONFIG, text)?;
        let fields = Fields { file: CONFIG, path: String::new(), map: &map };
        check_meaning(&fields)?;
        let rank = |value: u64, name: &str| match usize::try_from(value) {
            Ok(rank) if (1..=max_rank).contains(&rank) => Ok(rank),
            _ => {
                let is_more = (1..=Adapter::MAX_RANK as u64).contains(&value);
                let more = if is_more { "; --max-lora-rank allows more" } else { "" };
                Err(fields.error(name, format!("{value}; ranks from 1 to {max_rank} are served{more}")))
            }
        };
        let stated_rank = fields.optional_integer("r", 0..=u64::MAX)?.ok_or_else(|| fields.error("r", "missing"))?;
        let (mut ranks, mut alphas) = (Vec::new(), Vec::new());
        for (name, value) in pattern(&fields, "rank_pattern")? {
            let wrong = || fields.error("rank_pattern", format!("{}: not a whole number", quoted(name)));
            ranks.push((name.clone(), rank(value.as_u64().ok_or_else(wrong)?, "rank_pattern")?));
        }
        for (name, value) in pattern(&fields, "alpha_pattern")? {
            let wrong = || fields.error("alpha_pattern", format!("{}: not a number up to a million", quoted(name)));
            alphas.push((name.clone(), value.as_f64().filter(|alpha| alpha.abs() <= 1e6).ok_or_else(wrong)?));
        }
        Ok(Stated {
            rank: rank(stated_rank, "r")?,
            alpha: fields.float("lora_alpha", -1e6..=1e6)?,
            rank_stabilized: fields.flag("use_rslora", false)?,
            ranks,
            alphas,
            targets: targets(&fields)?,
        })
    }

    /// Rank and scale of a module. A pattern names a module by its name or by the end of it.
    fn of(&self, spellings: &Spellings) -> Result<(usize, f64), LoadError> {
        let rank = matching(&self.ranks, spellings, "rank_pattern")?.unwrap_or(self.rank);
        let alpha = matching(&self.alphas, spellings, "alpha_pattern")?.unwrap_or(self.alpha);
        let divisor = if self.rank_stabilized { (rank as f64).sqrt() } else { rank as f64 };
        Ok((rank, alpha / divisor))
    }

    /// Whether the configuration says that the module has tensors.
    fn names(&self, spellings: &Spellings) -> bool {
        self.targets.as_ref().is_some_and(|targets| targets.iter().any(|target| spellings.end_in(target)))
    }
}

/// A module's name in each of the ways that [`MODELS`] has: a configuration names it as its tensors are named.
struct Spellings([String; MODELS.len()]);

impl Spellings {
    fn of(usual: &str) -> Spellings {
        let rest = usual.strip_prefix(MODELS[0]).unwrap_or(usual);
        Spellings(MODELS.map(|model| format!("{model}{rest}")))
    }

    /// Whether `end` is the name, or the last parts of it.
    fn end_in(&self, end: &str) -> bool {
        self.0.iter().filter_map(|name| name.strip_suffix(end)).any(|rest| rest.is_empty() || rest.ends_with('.'))
    }
}

fn matching<T: Copy + PartialEq>(
    patterns: &[(String, T)],
    spellings: &Spellings,
    field: &str,
) -> Result<Option<T>, LoadError> {
    let mut found = patterns.iter().filter(|(name, _)| spellings.end_in(name));
    let Some((first, value)) = found.next() else { return Ok(None) };
    match found.find(|(_, other)| other != value) {
        None => Ok(Some(*value)),
        Some((second, _)) => {
            let problem = format!("{} and {} both name {}", quoted(first), quoted(second), quoted(&spellings.0[0]));
            Err(LoadError::field(CONFIG, field, problem))
        }
    }
}

/// A pattern's entries, of which each is a name: regular expressions are not read.
fn pattern<'a>(fields: &Fields<'a>, name: &str) -> Result<Vec<(&'a String, &'a Value)>, LoadError> {
    let Some(object) = fields.object(name)? else { return Ok(Vec::new()) };
    let is_plain = |key: &str| key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.');
    match object.map.keys().find(|key| key.is_empty() || !is_plain(key)) {
        Some(key) => Err(fields.error(name, format!("{}: patterns are names of modules here", quoted(key)))),
        None => Ok(object.map.iter().collect()),
    }
}

/// The modules that have tensors, if they can be known: a list of names, for every layer.
fn targets(fields: &Fields<'_>) -> Result<Option<Vec<String>>, LoadError> {
    let some = ["layers_to_transform", "layers_pattern", "exclude_modules"];
    match fields.get("target_modules") {
        Some(Value::Array(names)) if some.iter().all(|name| is_nothing(fields.get(name))) => {
            let wrong = || fields.error("target_modules", "expected names of modules");
            let name = |name: &Value| name.as_str().map(str::to_string).ok_or_else(wrong);
            let names = names.iter().map(name).collect::<Result<Vec<_>, _>>()?;
            // The only modules outside of the layers: no tensor of theirs is ever asked for.
            match names.iter().find(|name| name.ends_with("embed_tokens") || name.ends_with("lm_head")) {
                Some(table) => Err(fields.error("target_modules", format!("{}: {NO_TABLES}", quoted(table)))),
                None => Ok(Some(names)),
            }
        }
        // A pattern, or a choice of layers: the tensors tell.
        Some(Value::String(_) | Value::Array(_)) | None => Ok(None),
        Some(_) => Err(fields.error("target_modules", "expected names of modules, or a pattern")),
    }
}

/// Whether a field says nothing.
fn is_nothing(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null | Value::Bool(false)) => true,
        Some(Value::Array(list)) => list.is_empty(),
        Some(Value::Object(map)) => map.is_empty(),
        Some(_) => false,
    }
}

/// Fields that are read, and those that are of training and of names.
const KNOWN: &str = "peft_type r lora_alpha use_rslora rank_pattern alpha_pattern target_modules bias \
    init_lora_weights auto_mapping base_model_name_or_path corda_config eva_config exclude_modules inference_mode \
    layers_pattern layers_to_transform loftq_config lora_dropout megatron_config megatron_core peft_version \
    qalora_group_size revision runtime_config task_type";

/// Fields that make something else of the same tensors, and what they would make.
const REFUSED: [(&str, &str); 10] = [
    ("use_dora", "DoRA is not supported"),
    ("use_qalora", "QALoRA is not supported"),
    ("lora_bias", "biases are not supported"),
    ("fan_in_fan_out", "transposed weights are not supported"),
    ("layer_replication", "replicated layers are not supported"),
    ("modules_to_save", "modules beside the low-rank matrices are not supported"),
    ("trainable_token_indices", "embeddings of tokens are not supported"),
    ("target_parameters", "adapters of parameters, such as experts, are not supported"),
    ("alora_invocation_tokens", "adapters that begin within a prompt (aLoRA) are not supported"),
    ("arrow_config", "routing between adapters is not supported"),
];

/// Refuses what is no plain LoRA.
fn check_meaning(fields: &Fields<'_>) -> Result<(), LoadError> {
    match fields.text("peft_type")? {
        Some("LORA") => {}
        Some(other) => {
            return Err(fields.error("peft_type", format!("{} is not supported; LORA is", quoted(other))));
        }
        None => return Err(fields.error("peft_type", "missing; \"LORA\" is read")),
    }
    if let Some(bias) = fields.text("bias")?.filter(|bias| *bias != "none") {
        return Err(fields.error("bias", format!("{}; trained biases are not supported: \"none\" is", quoted(bias))));
    }
    // These begin by changing the weights of the model itself.
    if let Some(Value::String(init)) = fields.get("init_lora_weights")
        && !["gaussian", "eva", "orthogonal"].contains(&init.as_str())
    {
        let problem = format!(
            "{} changes the model's own weights; save the adapter as an ordinary one, with \
             path_initial_model_for_weight_conversion",
            quoted(init)
        );
        return Err(fields.error("init_lora_weights", problem));
    }
    for (name, value) in fields.map {
        if let Some((_, why)) = REFUSED.iter().find(|(refused, _)| refused == name)
            && !is_nothing(Some(value))
        {
            return Err(fields.error(name, why));
        }
        let is_known = KNOWN.split_whitespace().any(|known| known == name) || is_nothing(Some(value));
        if !is_known && !REFUSED.iter().any(|(refused, _)| refused == name) {
            let problem = "unknown here, and it may change what the adapter computes; remove it if it does not";
            return Err(LoadError::field(CONFIG, quoted(name), problem));
        }
    }
    Ok(())
}

/// Reads tensors, and knows at the end which were not read.
struct Reader<'a> {
    stated: &'a Stated,
    weights: &'a Weights,
    read: HashSet<String>,
    rank: usize,
}

impl Reader<'_> {
    fn adapter(mut self, config: &ModelConfig) -> Result<Adapter, LoadError> {
        let tensors = Tensors::usual(config);
        let mut layers = Vec::with_capacity(config.num_layers);
        for index in 0..config.num_layers {
            let layer = tensors.layer(index);
            let mut pairs = [const { Vec::new() }; 4];
            for (pairs, linear) in pairs.iter_mut().zip(products(&layer)) {
                if let Some(linear) = linear {
                    *pairs = self.product(&linear.parts, linear.in_features)?;
                }
            }
            layers.push(pairs);
        }
        self.finish()?;
        Ok(Adapter { layers, rank: self.rank })
    }

    /// Of a product's parts those that are adapted.
    fn product(&mut self, parts: &[TensorSlice], in_features: usize) -> Result<Vec<Pair>, LoadError> {
        let (mut pairs, mut first_row) = (Vec::new(), 0);
        for part in parts {
            let num_rows = part.rows.len();
            if let Some(pair) = self.pair(part, first_row, in_features)? {
                pairs.push(pair);
            }
            first_row += num_rows;
        }
        Ok(pairs)
    }

    fn pair(&mut self, part: &TensorSlice, first_row: usize, in_features: usize) -> Result<Option<Pair>, LoadError> {
        let usual = part.name.strip_suffix(".weight").unwrap_or(&part.name);
        let spellings = Spellings::of(usual);
        let name = |module: &str, which: &str| format!("{module}.lora_{which}.weight");
        let has = |module: &String| ["A", "B"].iter().any(|which| self.weights.has(&name(module, which)));
        let mut all = PREFIXES.iter().flat_map(|prefix| spellings.0.iter().map(move |name| format!("{prefix}{name}")));
        let module = match all.find(has) {
            Some(module) => module,
            None if self.stated.names(&spellings) => format!("{}{}", PREFIXES[0], spellings.0[0]),
            None => return Ok(None),
        };
        let (rank, scale) = self.stated.of(&spellings)?;
        self.rank = self.rank.max(rank);
        let num_rows = part.rows.len();
        let a = self.numbers(&name(&module, "A"), [rank, in_features], 1.0)?;
        let b = self.numbers(&name(&module, "B"), [num_rows, rank], scale as f32)?;
        Ok(Some(Pair { rank, first_row, num_rows, a, b }))
    }

    fn numbers(&mut self, name: &str, shape: [usize; 2], scale: f32) -> Result<Vec<f32>, LoadError> {
        let tensor = self.weights.tensor(name, &shape)?;
        let wrong =
            |problem: &str| LoadError::field(self.weights.listing(), format!("tensor {}", quoted(name)), problem);
        if tensor.encoding().is_none() {
            return Err(wrong("quantized; adapters are read from BF16, F16 and F32"));
        }
        let [rows, width] = shape;
        let mut numbers = vec![0.0; rows * width]; // no more than the file holds: the shape was checked
        let tensor = tensor.rows()?;
        for (row, out) in numbers.chunks_exact_mut(width).enumerate() {
            tensor.read(row, out)?;
        }
        numbers.iter_mut().for_each(|number| *number *= scale);
        if !numbers.iter().all(|&number| is_finite_bf16(number)) {
            return Err(wrong("NaN or infinite weights"));
        }
        self.read.insert(name.to_string());
        Ok(numbers)
    }

    /// Refuses an empty adapter and unread tensors.
    fn finish(&self) -> Result<(), LoadError> {
        let mut unread: Vec<&str> = self.weights.names().filter(|name| !self.read.contains(*name)).collect();
        unread.sort_unstable();
        if let Some(first) = unread.first() {
            return Err(unread_error(self.weights, "this model has no place for", &unread, why_unread(first)));
        }
        match self.read.is_empty() {
            true => Err(LoadError::field(self.weights.listing(), "tensors", "there are none")),
            false => Ok(()),
        }
    }
}

/// What a tensor is that no projection of a layer has.
fn why_unread(name: &str) -> &'static str {
    let is = |part: &str| name.contains(part);
    if is("lora_magnitude_vector") {
        "they are of DoRA, which is not supported"
    } else if is("lora_embedding") || is("embed_tokens") || is("lm_head") {
        NO_TABLES
    } else if is(".linear_attn.") {
        "adapters of linear attention are not supported"
    } else if is(".shared_expert") || is(".experts.") || is(".block_sparse_moe.") || is(".gate.lora") {
        "adapters of experts and routers are not supported"
    } else if !is("lora_A.weight") && !is("lora_B.weight") {
        "only lora_A.weight and lora_B.weight are read"
    } else {
        "adapted are q_proj, k_proj, v_proj (where queries have no gates), o_proj, gate_proj, up_proj and down_proj of \
         its layers (of some families their fused forms); the adapter is of another model"
    }
}
