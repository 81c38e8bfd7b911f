//! Quantized safetensors: a module's integer codes, scales and zero points as one tensor `[out, in]`.
//!
//! ```text
//!                        codes                        scales         zero points        w[n, k] =
//! GPTQ                   qweight i32 [in/8, out]      scales [g, out] qzeros i32 [g, out/8]   scale * (code - (zero + 1))
//!   gptq_v2                                                                                    scale * (code - zero)
//!     of 8 bits                 [in/4, out]                            [g, out/4]
//! AWQ gemm               qweight i32 [in, out/8]      scales [g, out] qzeros i32 [g, out/8]   scale * (code - zero)
//! compressed-tensors
//!   pack-quantized       weight_packed i32 [out, in/8]   weight_scale [out, g]   weight_zero_point i32 [out/8, g]
//!     of 8 bits                            [out, in/4]                                                 [out/4, g]
//!   int-quantized        weight i8 [out, in]             weight_scale [out, 1] or [1]    weight_zero_point i8, the same
//!   float-quantized      weight e4m3 [out, in]        weight_scale [out, 1], [1] or blocks    scale * weight
//!   nvfp4-pack-quantized weight_packed u8 [out, in/2] weight_scale e4m3 [out, in/16]          (scale / global) * code
//!                                                     weight_global_scale [1]
//!   mxfp4-pack-quantized weight_packed u8 [out, in/2] weight_scale u8 [out, in/32]            2^(scale - 127) * code
//!   mxfp8-quantized      weight e4m3 [out, in]        weight_scale u8 [out, in/32]            2^(scale - 127) * weight
//! FP8                    weight e4m3 [out, in]        weight_scale_inv [out/128, in/128], []  scale * weight
//! ModelOpt: FP8          weight e4m3 [out, in]        weight_scale [] or [out]                scale * weight
//!   NVFP4                weight u8 [out, in/2]        weight_scale e4m3 [out, in/16]          (scale * scale_2) * code
//!                                                     weight_scale_2 []
//! MXFP4                  blocks u8 [.., out, in/32, 16] scales u8 [.., out, in/32]            2^(scale - 127) * code
//! ```
//! A word holds eight 4-bit codes or four 8-bit codes. GPTQ packs eight neighbours along the input with the first in
//! the low bits; with desc_act (inputs sorted by activation), `g_idx` has the group of each input. AWQ packs eight
//! outputs in the order 0 2 4 6 1 3 5 7; compressed-tensors packs along the input, codes and zero points offset by 8,
//! or by 128 for 8 bits. Zero points of GPTQ's first format are stored minus one. Layouts are those of AutoGPTQ,
//! GPTQModel, AutoAWQ and compressed-tensors (GPTQ: Frantar et al., 2022; AWQ: Lin et al., 2023). FP8's numbers of 8 bits
//! (e4m3 of Micikevicius et al., 2022) share a scale in blocks of 128 x 128, as DeepSeek-V3 was published; the name of
//! the scales says that the quantizer divided by them. MXFP4's codes, as gpt-oss was published, are those of
//! [`BlockType::MXFP4`](crate::BlockType), neighbours in a byte, and are packed unchanged; so are NVFP4's, the same
//! ones with a float as scale of each 16. AutoRound writes the layouts of GPTQ and AWQ.
//!
//! Scales of activations and of a KV cache are left aside: activations are not rounded to these formats here, and keys
//! and values as the server's options say.
//!
//! Scales are widened to f32 first, and a weight is one f32 product. Codes that the engine can compute with (symmetric
//! 4 bit in regular groups of a multiple of 32; symmetric 8 bit with one scale per 128 neighbours, whatever the groups)
//! are packed unchanged. A scale that is not finite is an error, and in compressed-tensors and FP8 a scale of 0 for
//! nonzero codes; the groups of 16 of NVFP4 may have one, whose weights were below its least scale; a negative scale flips
//! the signs of its group, as written by quantizers with one more level below zero than above. The tensors determine
//! which modules are quantized, and their shapes the width of codes; `config.json` names the method, the inputs of a
//! group (the last may have fewer) and parts that every module has, such as zero points; a field with an unsupported
//! value is refused by name. Packing a matrix takes memory for its bytes in the file, once.

use super::table::{Entry, Table, Values};
use crate::blocks::{DOUBLED, e4m3};
use crate::checkpoint::Checkpoint;
use crate::encoding::Encoding;
use crate::files::{LoadError, ModelFile};
use kernels::WeightClass;
use kernels::quant::{BlockFormat, GroupScale, INT8_GROUP, Scales};
use serde_json::{Map, Value};

const CONFIG: &str = "config.json";
const FIELD: &str = "quantization_config";
/// Beside a `config.json` without [`FIELD`].
const MODELOPT: &str = "hf_quant_config.json";
/// Ends of the names of scales that are left aside.
const NOT_OF_WEIGHTS: [&str; 8] = [
    ".input_scale",
    ".input_zero_point",
    ".input_global_scale",
    ".activation_scale",
    ".output_scale",
    ".q_scale",
    ".k_scale",
    ".v_scale",
];

/// How a checkpoint's quantized modules are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    /// `zero_offset` is added to every stored zero point: 1 in the first format, 0 in `gptq_v2`.
    /// `widths`: the possible ones.
    Gptq {
        zero_offset: u8,
        widths: PackedWidths,
    },
    Awq,
    /// `packed`: the possible widths of packed codes; `block`: outputs and inputs that share a scale, where they do.
    CompressedTensors {
        packed: PackedWidths,
        block: Option<[usize; 2]>,
    },
    /// `block`: outputs and inputs that share a scale; without, all of a matrix.
    Fp8 {
        block: Option<[usize; 2]>,
    },
    Mxfp4,
    ModelOpt,
}

/// What `config.json` says of all quantized modules beside the scheme.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Rules {
    /// Inputs that share a scale, of any module; empty: it does not say.
    group_sizes: Vec<usize>,
    /// Every module has zero points.
    has_zeros: bool,
    /// Inputs of every module are sorted into groups.
    sorts_inputs: bool,
}

impl Rules {
    /// Inputs that share a scale in a module of `groups`; the last may be fewer.
    fn group_size(
        &self,
        table: &Table,
        scales: &StoredPart,
        groups: usize,
        in_features: usize,
    ) -> Result<usize, LoadError> {
        if groups == 1 && in_features > 0 {
            return Ok(in_features);
        }
        if let Some(size) = self.group_sizes.iter().find(|&&size| in_features.div_ceil(size) == groups) {
            return Ok(*size);
        }
        if self.group_sizes.is_empty() && groups > 0 && in_features > 0 && in_features.is_multiple_of(groups) {
            return Ok(in_features / groups);
        }
        let sizes: Vec<String> = self.group_sizes.iter().map(usize::to_string).collect();
        let says = if sizes.is_empty() { String::new() } else { format!(" of {}", sizes.join(" or ")) };
        Err(scales.wrong(table, format!("{groups} groups{says} do not divide {in_features} inputs")))
    }

    /// Refuses a module without a part that all have.
    fn check_parts(
        &self,
        table: &Table,
        module: &str,
        (zeros, zeros_name): (bool, &str),
        (order, order_name): (bool, &str),
    ) -> Result<(), LoadError> {
        let missing = match () {
            () if self.has_zeros && !zeros => zeros_name,
            () if self.sorts_inputs && !order => order_name,
            () => return Ok(()),
        };
        Err(missing_part(table, &format!("{module}.{missing}")))
    }
}

/// Widths of packed codes in the groups of `config.json`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PackedWidths {
    four: bool,
    eight: bool,
}

/// The layout of a module's codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// `eight`: bits of a code, instead of four.
    Gptq {
        zero_offset: u8,
        eight: bool,
    },
    Awq,
    Packed4,
    Packed8,
    Int8,
    /// `block`: outputs and inputs that share a scale.
    Fp8 {
        block: [usize; 2],
    },
    /// `divides`: whether the module's one scale divides those of groups, or multiplies them.
    Nvfp4 {
        divides: bool,
    },
}

/// A quantized module on disk.
#[derive(Debug)]
pub(super) struct Quantized {
    layout: Layout,
    codes: StoredPart,
    scales: StoredPart,
    zeros: Option<StoredPart>,
    /// The group of each input, if groups are not neighbours.
    group_of: Option<StoredPart>,
    /// NVFP4's scale of the scales.
    global: Option<StoredPart>,
    /// `[out, in]`.
    shape: [usize; 2],
    groups: usize,
    /// Inputs of a group; the last may have fewer.
    group_size: usize,
    /// Whether one scale is for all outputs.
    per_tensor: bool,
}

/// One stored tensor of a module.
#[derive(Debug)]
pub(super) struct StoredPart {
    name: String,
    file: usize,
    offset: u64,
    len: u64,
    encoding: Encoding,
}

/// A quantized module in memory.
#[derive(Debug)]
pub(super) struct Codes {
    layout: Layout,
    codes: Vec<u8>,
    /// `[out, groups]`; of FP8 `[out / block, groups]`; of NVFP4 half of each, for codes that are doubled.
    scales: Vec<f32>,
    /// Zero points, `[out, groups]`; packed codes count from 0 here.
    zeros: Vec<i16>,
    group_of: Option<Vec<u32>>,
    shape: [usize; 2],
    groups: usize,
    /// Inputs of a group; the last may have fewer.
    group_size: usize,
}

/// Upper bound of `|code - zero point|`, and of a number in e4m3.
const MAX_STEPS: f32 = 448.0;
/// Maximum bytes of a `config.json`.
const MAX_CONFIG_BYTES: u64 = 8 << 20;

/// Joins the parts of every quantized module of `table` into one tensor `<module>.weight`.
pub(super) fn assemble(table: &mut Table, checkpoint: &Checkpoint) -> Result<(), LoadError> {
    let scheme = match checkpoint.container().quantization(checkpoint.files(), MAX_CONFIG_BYTES)? {
        Some(text) => read_scheme(&text)?,
        None => None,
    };
    let Some((scheme, plain, rules)) = scheme else { return Ok(()) };
    let suffix = match scheme {
        Scheme::CompressedTensors { .. } | Scheme::ModelOpt => "weight_scale",
        Scheme::Fp8 { .. } if table.tensors.keys().any(|name| name.ends_with(".weight_scale_inv")) => {
            "weight_scale_inv"
        }
        Scheme::Fp8 { .. } => "weight_scale",
        Scheme::Gptq { .. } | Scheme::Awq => "qweight",
        Scheme::Mxfp4 => return all_mxfp4(table),
    };
    table.tensors.retain(|name, _| !NOT_OF_WEIGHTS.iter().any(|end| name.ends_with(end)));
    // Of codes without scales the scales are missed, and not the codes taken for another kind of number.
    let of_codes = |name: &str| {
        let (module, part) = name.rsplit_once('.')?;
        let narrow = matches!(table.dtype(name), Some("F8_E4M3" | "I8"));
        (part == suffix || part == "weight_packed" || part == "weight" && narrow).then(|| module.to_string())
    };
    let mut modules: Vec<String> = table.tensors.keys().filter_map(|name| of_codes(name)).collect();
    modules.sort_unstable();
    modules.dedup();
    for module in &modules {
        // AutoAWQ matches parts of names, compressed-tensors whole names (and expressions, which are ignored: the
        // tensors show the same).
        let listed = |entry: &&String| if scheme == Scheme::Awq { module.contains(*entry) } else { *entry == module };
        if let Some(entry) = plain.iter().find(listed) {
            let is_ignored = matches!(scheme, Scheme::CompressedTensors { .. });
            let name = if is_ignored { "ignore" } else { "modules_to_not_convert" };
            let problem = format!("lists {entry:?} as not quantized, but {module:?} is quantized by its tensors");
            return Err(LoadError::field(CONFIG, format!("{FIELD}.{name}"), problem));
        }
        let is_fp4 = |table: &Table, part: &str| table.dtype(&format!("{module}.{part}")) == Some("U8");
        let quantized = match scheme {
            Scheme::Gptq { zero_offset, widths } => gptq(table, module, Some((zero_offset, widths)), &rules)?,
            Scheme::Awq => gptq(table, module, None, &rules)?,
            Scheme::CompressedTensors { .. } if is_fp4(table, "weight_packed") => {
                match table.dtype(&format!("{module}.weight_scale")) {
                    Some("U8" | "F8_E8M0") => {
                        let parts = ["weight_packed", "weight_scale", "weight"].map(|part| format!("{module}.{part}"));
                        mxfp4(table, [&parts[0], &parts[1]], &parts[2])?;
                        continue;
                    }
                    _ => nvfp4(table, module, ["weight_packed", "weight_global_scale"], true)?,
                }
            }
            Scheme::CompressedTensors { packed, block } => compressed(table, module, (packed, block), &rules)?,
            Scheme::Fp8 { block } => fp8(table, module, suffix, block)?,
            Scheme::ModelOpt if is_fp4(table, "weight") => nvfp4(table, module, ["weight", "weight_scale_2"], false)?,
            Scheme::ModelOpt => fp8(table, module, suffix, None)?,
            Scheme::Mxfp4 => unreachable!("its parts are joined above"),
        };
        let parts =
            [Some(&quantized.codes), Some(&quantized.scales), quantized.zeros.as_ref(), quantized.global.as_ref()];
        let num_bytes = parts.iter().flatten().map(|part| part.len).sum();
        let (shape, file) = (quantized.shape.to_vec(), quantized.codes.file);
        let values = Values::Quantized(Box::new(quantized));
        let name = format!("{module}.weight");
        table.tensors.insert(name, Entry { shape, num_bytes, file, values });
    }
    Ok(())
}

/// Parses `quantization_config`: the scheme, the list of modules that are not quantized, and what all others have.
fn read_scheme(config: &str) -> Result<Option<(Scheme, Vec<String>, Rules)>, LoadError> {
    // `ModelConfig` reports a config.json that is not a JSON object.
    let Ok(Value::Object(config)) = serde_json::from_str(config) else { return Ok(None) };
    match config.get(FIELD) {
        None | Some(Value::Null) => match (config.get("producer"), config.get("quantization")) {
            (Some(_), Some(Value::Object(map))) => {
                let fields = Fields { file: MODELOPT, path: "quantization".to_string(), map };
                check_modelopt(&fields).map(|()| Some((Scheme::ModelOpt, Vec::new(), Rules::default())))
            }
            _ => Ok(None),
        },
        Some(Value::Object(map)) => {
            let fields = Fields { file: CONFIG, path: FIELD.to_string(), map };
            let (scheme, plain) = scheme_of(&fields)?;
            Ok(Some((scheme, plain, rules_of(&fields, scheme)?)))
        }
        Some(_) => Err(LoadError::field(CONFIG, FIELD, "not an object")),
    }
}

/// An object of the configuration.
struct Fields<'a> {
    file: &'static str,
    path: String,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    fn refuse(&self, name: &str, problem: impl std::fmt::Display) -> LoadError {
        LoadError::field(self.file, format!("{}.{name}", self.path), problem)
    }

    /// A field that exists and is not null.
    fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    fn text(&self, name: &str) -> Result<Option<&'a str>, LoadError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.refuse(name, "not a text")),
        }
    }

    fn object(&self, name: &str) -> Result<Option<Fields<'a>>, LoadError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Object(map)) => {
                Ok(Some(Fields { file: self.file, path: format!("{}.{name}", self.path), map }))
            }
            Some(_) => Err(self.refuse(name, "not an object")),
        }
    }

    /// An error unless a field has one of the `allowed` values; an absent field counts as the first of them.
    fn only(&self, name: &str, allowed: &[Value]) -> Result<(), LoadError> {
        match self.get(name) {
            Some(value) if !allowed.contains(value) => {
                let allowed: Vec<String> = allowed.iter().map(Value::to_string).collect();
                let mut found = value.to_string();
                found.truncate(found.floor_char_boundary(60));
                Err(self.refuse(name, format!("{found} is unsupported; expected {}", allowed.join(" or "))))
            }
            _ => Ok(()),
        }
    }

    /// A list of texts; absent is empty.
    fn texts(&self, name: &str) -> Result<Vec<String>, LoadError> {
        let wrong = || self.refuse(name, "not a list of texts");
        match self.get(name) {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) => {
                list.iter().map(|text| text.as_str().map(str::to_string).ok_or_else(wrong)).collect()
            }
            Some(_) => Err(wrong()),
        }
    }
}

/// Checks every field that would change the arithmetic.
fn scheme_of(fields: &Fields<'_>) -> Result<(Scheme, Vec<String>), LoadError> {
    match fields.text("quant_method")? {
        Some("gptq") => {
            fields.only("pack_dtype", &["int32".into()])?;
            fields.only("is_marlin_format", &[false.into()])?;
            // "-:pattern" excludes a module, which its tensors show.
            let widths = widths_of(fields, "dynamic", |pattern| !pattern.starts_with("-:"))?;
            let zero_offset = match fields.text("checkpoint_format")?.unwrap_or("gptq") {
                "gptq" => 1,
                "gptq_v2" => 0,
                other => {
                    let problem = format!("{other:?} is unsupported; expected \"gptq\" or \"gptq_v2\"");
                    return Err(fields.refuse("checkpoint_format", problem));
                }
            };
            Ok((Scheme::Gptq { zero_offset, widths }, Vec::new()))
        }
        Some("auto-round" | "intel/auto-round") => {
            let packings = ["auto_round:auto_gptq", "auto_gptq", "auto_round:auto_awq", "auto_awq"];
            fields.only("packing_format", &packings.map(Value::from))?;
            fields.only("data_type", &["int".into()])?;
            let widths = widths_of(fields, "extra_config", |_| true)?;
            Ok(match fields.text("packing_format")? {
                Some(packing) if packing.ends_with("awq") => (Scheme::Awq, Vec::new()),
                _ => (Scheme::Gptq { zero_offset: 1, widths }, Vec::new()),
            })
        }
        Some("awq") => {
            fields.only("bits", &[4.into()])?;
            fields.only("w_bit", &[4.into()])?;
            fields.only("version", &["gemm".into(), "GEMM".into()])?;
            Ok((Scheme::Awq, fields.texts("modules_to_not_convert")?))
        }
        Some("compressed-tensors") => {
            let (packed, block) = check_compressed(fields)?;
            Ok((Scheme::CompressedTensors { packed, block }, fields.texts("ignore")?))
        }
        Some("fp8") => {
            fields.only("fmt", &["e4m3".into()])?;
            let block = block_of(fields, "weight_block_size")?;
            Ok((Scheme::Fp8 { block }, fields.texts("modules_to_not_convert")?))
        }
        // Which modules are converted, its tensors show.
        Some("mxfp4") => Ok((Scheme::Mxfp4, Vec::new())),
        Some("modelopt") => check_modelopt(fields).map(|()| (Scheme::ModelOpt, Vec::new())),
        found => {
            let found = found.map_or("it is missing".to_string(), |method| {
                format!("{:?} is unsupported", method.chars().take(40).collect::<String>())
            });
            let problem = format!(
                "{found}; supported are \"gptq\", \"awq\", \"auto-round\", \"fp8\", \"mxfp4\", \"modelopt\" and \
                 \"compressed-tensors\": use such a checkpoint, or the original one in bf16 or f16 with --weights int8 or \
                 int4"
            );
            Err(fields.refuse("quant_method", problem))
        }
    }
}

/// What all modules of a scheme have in common.
fn rules_of(fields: &Fields<'_>, scheme: Scheme) -> Result<Rules, LoadError> {
    let is = |fields: &Fields<'_>, name: &str| fields.get(name) == Some(&Value::Bool(true));
    let mut rules = Rules::default();
    match scheme {
        Scheme::Gptq { .. } | Scheme::Awq => {
            let mut add = |fields: &Fields<'_>| {
                let sizes = ["group_size", "q_group_size"].into_iter().filter_map(|name| fields.get(name)?.as_u64());
                rules.group_sizes.extend(sizes.filter(|&size| size > 0).map(|size| size as usize));
            };
            add(fields);
            for list in ["dynamic", "extra_config"] {
                let Some(modules) = fields.object(list)? else { continue };
                for name in modules.map.keys() {
                    modules.object(name)?.iter().for_each(&mut add);
                }
            }
            rules.sorts_inputs = matches!(scheme, Scheme::Gptq { .. }) && is(fields, "desc_act");
            rules.has_zeros = scheme == Scheme::Awq && is(fields, "zero_point");
        }
        Scheme::CompressedTensors { .. } => {
            let groups = fields.object("config_groups")?;
            let groups = groups.iter().flat_map(|groups| groups.map.keys().map(|name| groups.object(name)));
            let weights = groups.map(|group| group?.map_or(Ok(None), |group| group.object("weights")));
            let all: Vec<Fields<'_>> = weights.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
            let of_integers = || all.iter().filter(|weights| weights.get("type").is_none_or(|kind| *kind == "int"));
            let sizes = of_integers().filter_map(|weights| weights.get("group_size")?.as_i64());
            rules.group_sizes = sizes.filter_map(|size| usize::try_from(size).ok()).filter(|&size| size > 0).collect();
            let has_some = of_integers().next().is_some();
            rules.has_zeros = has_some && of_integers().all(|of| of.get("symmetric") == Some(&Value::Bool(false)));
            rules.sorts_inputs =
                has_some && of_integers().all(|of| of.get("actorder").is_some_and(|by| *by == "group"));
        }
        Scheme::Fp8 { .. } | Scheme::Mxfp4 | Scheme::ModelOpt => {}
    }
    Ok(rules)
}

/// The widths of GPTQ's codes: `bits`, and what `list` says of single modules whose names are `counted`.
fn widths_of(fields: &Fields<'_>, list: &str, counted: impl Fn(&str) -> bool) -> Result<PackedWidths, LoadError> {
    fields.only("bits", &[4.into(), 8.into()])?;
    let mut all = vec![fields.get("bits").cloned()];
    if let Some(modules) = fields.object(list)? {
        for name in modules.map.keys().filter(|name| counted(name)) {
            let Some(module) = modules.object(name)? else { continue };
            // 16: not quantized, which its tensors show.
            module.only("bits", &[4.into(), 8.into(), 16.into()])?;
            all.extend(module.get("bits").cloned().map(Some));
        }
    }
    Ok(PackedWidths {
        four: all.iter().any(|bits| bits.as_ref().is_none_or(|bits| *bits == 4)),
        eight: all.iter().flatten().any(|bits| *bits == 8),
    })
}

/// Checks the fields of ModelOpt; which modules are quantized, and how, their tensors show.
fn check_modelopt(fields: &Fields<'_>) -> Result<(), LoadError> {
    let known = ["NVFP4", "W4A16_NVFP4", "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "MIXED_PRECISION"];
    fields.only("quant_algo", &known.map(Value::from))
}

/// Outputs and inputs that share a scale, if the field is there.
fn block_of(fields: &Fields<'_>, name: &str) -> Result<Option<[usize; 2]>, LoadError> {
    let Some(sizes) = fields.get(name) else { return Ok(None) };
    let size = |value: &Value| value.as_u64().and_then(|size| usize::try_from(size).ok()).filter(|&size| size > 0);
    match sizes.as_array().map(|sizes| sizes.iter().map(size).collect::<Vec<_>>()).as_deref() {
        Some(&[Some(outputs), Some(inputs)]) => Ok(Some([outputs, inputs])),
        _ => Err(fields.refuse(name, "expected two sizes, such as [128, 128]")),
    }
}

/// Checks the fields of compressed-tensors. Returns the widths of packed codes in its groups, and the blocks that share
/// a scale.
fn check_compressed(fields: &Fields<'_>) -> Result<(PackedWidths, Option<[usize; 2]>), LoadError> {
    // The formats of single groups count; "mixed-precision" only means that they differ.
    let formats: [Value; 7] = [
        "int-quantized",
        "pack-quantized",
        "float-quantized",
        "nvfp4-pack-quantized",
        "mxfp4-pack-quantized",
        "mxfp8-quantized",
        "mixed-precision",
    ]
    .map(Value::from);
    fields.only("format", &formats)?;
    fields.only("quantization_status", &["compressed".into()])?;
    if let Some(sparsity) = fields.object("sparsity_config")? {
        sparsity.only("format", &["dense".into()])?;
    }
    if let Some(transform) = fields.object("transform_config")?
        && !transform.map.is_empty()
    {
        return Err(fields.refuse("transform_config", "transforms are unsupported"));
    }
    let Some(groups) = fields.object("config_groups")? else {
        return Err(fields.refuse("config_groups", "missing"));
    };
    let (mut packed, mut block) = (PackedWidths::default(), None);
    for name in groups.map.keys() {
        let Some(group) = groups.object(name)? else { continue };
        group.only("format", &formats)?;
        group.only("output_activations", &[Value::Null])?;
        let Some(weights) = group.object("weights")? else {
            return Err(group.refuse("weights", "missing: a group without quantized weights"));
        };
        weights.only("dynamic", &[false.into()])?;
        weights.only("type", &["int".into(), "float".into()])?;
        weights.only("num_bits", &[8.into(), 4.into()])?;
        if weights.text("type")? == Some("float") {
            weights.only("strategy", &["channel", "tensor", "block", "group", "tensor_group"].map(Value::from))?;
            block = block.or(block_of(&weights, "block_structure")?);
            continue;
        }
        weights.only("strategy", &["channel".into(), "tensor".into(), "group".into()])?;
        if group.text("format")?.or(fields.text("format")?) != Some("int-quantized") {
            let four = weights.get("num_bits") == Some(&4.into());
            packed = PackedWidths { four: packed.four || four, eight: packed.eight || !four };
        }
    }
    Ok((packed, block))
}

/// Removes a stored tensor from the table.
fn take(table: &mut Table, name: &str) -> Option<(StoredPart, Vec<usize>)> {
    let Some(Entry { values: Values::Rows { .. }, .. }) = table.tensors.get(name) else { return None };
    let Entry { shape, num_bytes, file, values } = table.tensors.remove(name)?;
    let Values::Rows { offset, encoding, .. } = values else { unreachable!("seen above") };
    Some((StoredPart { name: name.to_string(), file, offset, len: num_bytes, encoding }, shape))
}

/// [`take`] for a required tensor.
fn require(table: &mut Table, name: &str) -> Result<(StoredPart, Vec<usize>), LoadError> {
    match take(table, name) {
        Some(found) => Ok(found),
        None => Err(missing_part(table, name)),
    }
}

fn missing_part(table: &Table, name: &str) -> LoadError {
    let problem = format!("missing, but required by {FIELD} of {CONFIG} and the module's other tensors");
    LoadError::field(&table.listing, format!("tensor {name:?}"), problem)
}

impl StoredPart {
    fn wrong(&self, table: &Table, problem: impl std::fmt::Display) -> LoadError {
        self.wrong_in(&table.files, problem)
    }

    fn wrong_in(&self, files: &[ModelFile], problem: impl std::fmt::Display) -> LoadError {
        LoadError::field(files[self.file].name(), format!("tensor {:?}", self.name), problem)
    }

    fn expect(&self, table: &Table, dtypes: &[&str]) -> Result<(), LoadError> {
        match dtypes.contains(&self.encoding.name()) {
            true => Ok(()),
            false => {
                Err(self.wrong(table, format!("dtype {}; expected {}", self.encoding.name(), dtypes.join(" or "))))
            }
        }
    }

    fn expect_shape(&self, table: &Table, found: &[usize], wanted: &[usize]) -> Result<(), LoadError> {
        match found == wanted {
            true => Ok(()),
            false => Err(self.wrong(table, format!("shape {found:?}; the module's other tensors require {wanted:?}"))),
        }
    }

    /// Reads its bytes from `at` on.
    pub(super) fn read_at(&self, files: &[ModelFile], at: u64, out: &mut [u8]) -> Result<(), LoadError> {
        assert!(at + out.len() as u64 <= self.len, "a read outside {}", self.name);
        files[self.file].read_at(self.offset + at, out)
    }

    fn bytes(&self, files: &[ModelFile]) -> Result<Vec<u8>, LoadError> {
        files[self.file].read_vec(self.offset, self.len as usize)
    }

    fn floats(&self, files: &[ModelFile]) -> Result<Vec<f32>, LoadError> {
        let bytes = self.bytes(files)?;
        match self.encoding.name() {
            "F8_E4M3" => return Ok(bytes.into_iter().map(e4m3).collect()),
            "F8_E8M0" | "U8" => return Ok(bytes.into_iter().map(e8m0).collect()),
            _ => {}
        }
        let size = self.encoding.block().bytes;
        let mut values = vec![0.0; bytes.len() / size];
        let chunk = crate::encoding::CHUNK_BYTES / size;
        for (bytes, values) in bytes.chunks(chunk * size).zip(values.chunks_mut(chunk)) {
            self.encoding.decode(bytes, values);
        }
        Ok(values)
    }
}

const FLOATS: [&str; 3] = ["F16", "BF16", "F32"];

/// A module of GPTQ, of some `zero_offset` and one of the widths, or of AWQ.
fn gptq(
    table: &mut Table,
    module: &str,
    of_gptq: Option<(u8, PackedWidths)>,
    rules: &Rules,
) -> Result<Quantized, LoadError> {
    let (codes, code_shape) = require(table, &format!("{module}.qweight"))?;
    let (scales, scale_shape) = require(table, &format!("{module}.scales"))?;
    let zeros = take(table, &format!("{module}.qzeros"));
    let group_of = take(table, &format!("{module}.g_idx")).filter(|_| of_gptq.is_some());
    codes.expect(table, &["I32"])?;
    scales.expect(table, &FLOATS)?;
    let (&[rows, columns], &[groups, outputs]) = (code_shape.as_slice(), scale_shape.as_slice()) else {
        return Err(
            codes.wrong(table, format!("shape {code_shape:?}, scales {scale_shape:?}; both have two dimensions"))
        );
    };
    // Zero points of all outputs of a group fill whole words: of four bits half as many.
    let is_eight = |widths: PackedWidths| {
        let wide = zeros.as_ref().is_some_and(|(_, shape)| *shape == [groups, outputs.div_ceil(4)]);
        widths.eight && (wide || !widths.four)
    };
    let layout = match of_gptq {
        Some((zero_offset, widths)) => Layout::Gptq { zero_offset, eight: is_eight(widths) },
        None => Layout::Awq,
    };
    let per_word = layout.codes_per_word().expect("words hold them");
    let sizes = match layout {
        Layout::Awq => columns.checked_mul(8).map(|out_features| [out_features, rows]),
        _ => rows.checked_mul(per_word).map(|in_features| [columns, in_features]),
    };
    let Some(shape @ [out_features, in_features]) = sizes else {
        return Err(codes.wrong(table, format!("shape {code_shape:?} is out of range")));
    };
    scales.expect_shape(table, &scale_shape, &[groups, out_features])?;
    if let Some((zeros, zero_shape)) = &zeros {
        zeros.expect(table, &["I32"])?;
        zeros.expect_shape(table, zero_shape, &[groups, out_features.div_ceil(per_word)])?;
    } else if layout != Layout::Awq {
        return Err(codes.wrong(table, "no qzeros beside it"));
    }
    if let Some((group_of, group_shape)) = &group_of {
        group_of.expect(table, &["I32"])?;
        group_of.expect_shape(table, group_shape, &[in_features])?;
    }
    let group_size = rules.group_size(table, &scales, groups, in_features)?;
    let is_sorted = group_of.is_some() || groups == 1;
    rules.check_parts(table, module, (zeros.is_some(), "qzeros"), (is_sorted, "g_idx"))?;
    let (zeros, group_of) = (zeros.map(|(part, _)| part), group_of.map(|(part, _)| part));
    let per_tensor = false;
    Ok(Quantized { layout, codes, scales, zeros, group_of, global: None, shape, groups, group_size, per_tensor })
}

/// A module in FP8, with a scale for each `block`; without, one for each output or one in all. Scales that are powers of
/// two are those of 32 inputs (MXFP8).
fn fp8(table: &mut Table, module: &str, scale: &str, block: Option<[usize; 2]>) -> Result<Quantized, LoadError> {
    let (codes, code_shape) = require(table, &format!("{module}.weight"))?;
    let (scales, scale_shape) = require(table, &format!("{module}.{scale}"))?;
    codes.expect(table, &["F8_E4M3"])?;
    scales.expect(table, &["F16", "BF16", "F32", "U8", "F8_E8M0"])?;
    let &[out_features, in_features] = code_shape.as_slice() else {
        return Err(codes.wrong(table, format!("shape {code_shape:?}; a matrix has two dimensions")));
    };
    let block = if FLOATS.contains(&scales.encoding.name()) { block } else { Some([1, 32]) };
    let is_in_blocks = block.is_some();
    let block = block.unwrap_or_else(|| match scale_shape.iter().product::<usize>() {
        1 => [out_features.max(1), in_features.max(1)],
        _ => [1, in_features.max(1)],
    });
    let groups = in_features.div_ceil(block[1]);
    let wanted = [out_features.div_ceil(block[0]), groups];
    let is_one_each = !is_in_blocks && scale_shape.iter().product::<usize>() == wanted[0];
    if scale_shape != wanted && !is_one_each {
        let problem = format!("shape {scale_shape:?}; expected {wanted:?} for {out_features} x {in_features}");
        return Err(scales.wrong(table, problem));
    }
    let (shape, layout) = ([out_features, in_features], Layout::Fp8 { block });
    Ok(Quantized {
        layout,
        codes,
        scales,
        zeros: None,
        group_of: None,
        global: None,
        shape,
        groups,
        group_size: block[1],
        per_tensor: false,
    })
}

/// A module in NVFP4, of `codes` and, for all of it, one scale that divides or multiplies those of 16 inputs each.
fn nvfp4(table: &mut Table, module: &str, [codes, global]: [&str; 2], divides: bool) -> Result<Quantized, LoadError> {
    let (codes, code_shape) = require(table, &format!("{module}.{codes}"))?;
    let (scales, scale_shape) = require(table, &format!("{module}.weight_scale"))?;
    let (global, global_shape) = require(table, &format!("{module}.{global}"))?;
    codes.expect(table, &["U8"])?;
    scales.expect(table, &["F8_E4M3"])?;
    global.expect(table, &["F32"])?;
    let &[out_features, half] = code_shape.as_slice() else {
        return Err(codes.wrong(table, format!("shape {code_shape:?}; a matrix has two dimensions")));
    };
    if half == 0 || !half.is_multiple_of(8) {
        return Err(codes.wrong(table, format!("shape {code_shape:?}; 8 bytes are a group of 16 codes")));
    }
    let groups = half / 8;
    scales.expect_shape(table, &scale_shape, &[out_features, groups])?;
    if global_shape.iter().product::<usize>() != 1 {
        return Err(global.wrong(table, format!("shape {global_shape:?}; expected one number")));
    }
    let (shape, layout) = ([out_features, 16 * groups], Layout::Nvfp4 { divides });
    Ok(Quantized {
        layout,
        codes,
        scales,
        zeros: None,
        group_of: None,
        global: Some(global),
        shape,
        groups,
        group_size: 16,
        per_tensor: false,
    })
}

/// Joins codes and scales of MXFP4 as tensors `[.., out, in]`, under the names of the codes.
fn all_mxfp4(table: &mut Table) -> Result<(), LoadError> {
    let mut modules: Vec<String> =
        table.tensors.keys().filter_map(|name| name.strip_suffix("_blocks").map(str::to_string)).collect();
    modules.sort_unstable();
    for module in &modules {
        let codes = format!("{module}_blocks");
        mxfp4(table, [&codes, &format!("{module}_scales")], &codes)?;
    }
    Ok(())
}

/// Joins codes `[.., out, in / 32, 16]`, or `[out, in / 2]`, and scales `[.., out, in / 32]` as the tensor `name`.
fn mxfp4(table: &mut Table, [codes, scales]: [&str; 2], name: &str) -> Result<(), LoadError> {
    let (codes, mut code_shape) = require(table, codes)?;
    let (scales, scale_shape) = require(table, scales)?;
    codes.expect(table, &["U8"])?;
    scales.expect(table, &["U8", "F8_E8M0"])?;
    if let &[outputs, half] = code_shape.as_slice()
        && half.is_multiple_of(16)
        && codes.name != name
    {
        code_shape = vec![outputs, half / 16, 16];
    }
    let &[.., _, groups, 16] = code_shape.as_slice() else {
        return Err(codes.wrong(table, format!("shape {code_shape:?}; expected [.., outputs, inputs / 32, 16]")));
    };
    let Some(in_features) = groups.checked_mul(32) else {
        return Err(codes.wrong(table, format!("shape {code_shape:?} is out of range")));
    };
    scales.expect_shape(table, &scale_shape, &code_shape[..code_shape.len() - 1])?;
    let (shape, num_bytes) = ([&code_shape[..code_shape.len() - 2], &[in_features]].concat(), codes.len + scales.len);
    let file = codes.file;
    table.tensors.insert(name.to_string(), Entry { shape, num_bytes, file, values: Values::Mxfp4 { codes, scales } });
    Ok(())
}

/// A module of compressed-tensors.
fn compressed(
    table: &mut Table,
    module: &str,
    (widths, block): (PackedWidths, Option<[usize; 2]>),
    rules: &Rules,
) -> Result<Quantized, LoadError> {
    if table.dtype(&format!("{module}.weight")) == Some("F8_E4M3") {
        // Beside groups in blocks others may have a scale for each output.
        let shape = |part: &str| table.tensors.get(&format!("{module}.{part}")).map(|entry| entry.shape.as_slice());
        let block = block.filter(|[outputs, inputs]| match (shape("weight"), shape("weight_scale")) {
            (Some(&[rows, columns]), Some(found)) => found == [rows.div_ceil(*outputs), columns.div_ceil(*inputs)],
            _ => false,
        });
        return fp8(table, module, "weight_scale", block);
    }
    let (scales, scale_shape) = require(table, &format!("{module}.weight_scale"))?;
    scales.expect(table, &FLOATS)?;
    let zeros = take(table, &format!("{module}.weight_zero_point"));
    let group_of = take(table, &format!("{module}.weight_g_idx"));
    let packed = take(table, &format!("{module}.weight_packed"));
    let (layout, shape, codes) = match packed {
        Some((codes, code_shape)) => {
            codes.expect(table, &["I32"])?;
            let (layout, shape) = packed_shape(table, module, (&codes, &code_shape), widths)?;
            (layout, shape, codes)
        }
        None => {
            let (codes, code_shape) = require(table, &format!("{module}.weight"))?;
            let &[out_features, in_features] = code_shape.as_slice() else {
                return Err(codes.wrong(table, format!("shape {code_shape:?}; a matrix has two dimensions")));
            };
            codes.expect(table, &["I8"])?;
            (Layout::Int8, [out_features, in_features], codes)
        }
    };
    let [out_features, in_features] = shape;
    let per_tensor = scale_shape.iter().product::<usize>() == 1 && out_features != 1;
    let groups = match scale_shape.as_slice() {
        _ if per_tensor => 1,
        [rows] if *rows == out_features => 1,
        [rows, groups] if *rows == out_features => *groups,
        _ => {
            let problem =
                format!("shape {scale_shape:?}; expected [1], [{out_features}, 1] or [{out_features}, groups]");
            return Err(scales.wrong(table, problem));
        }
    };
    let group_size = rules.group_size(table, &scales, groups, in_features)?;
    let is_sorted = group_of.is_some() || groups == 1;
    rules.check_parts(table, module, (zeros.is_some(), "weight_zero_point"), (is_sorted, "weight_g_idx"))?;
    if let Some((zeros, zero_shape)) = &zeros {
        match layout.codes_per_word() {
            Some(codes) => {
                zeros.expect(table, &["I32"])?;
                zeros.expect_shape(table, zero_shape, &[out_features.div_ceil(codes), groups])?;
            }
            None => {
                zeros.expect(table, &["I8"])?;
                zeros.expect_shape(table, zero_shape, &scale_shape)?;
            }
        }
    }
    if let Some((group_of, group_shape)) = &group_of {
        group_of.expect(table, &["I32", "I64"])?;
        group_of.expect_shape(table, group_shape, &[in_features])?;
    }
    let (zeros, group_of) = (zeros.map(|(part, _)| part), group_of.map(|(part, _)| part));
    Ok(Quantized { layout, codes, scales, zeros, group_of, global: None, shape, groups, group_size, per_tensor })
}

/// The shape in `weight_shape`, without padding, and the width of codes that follows from it.
fn packed_shape(
    table: &mut Table,
    module: &str,
    (codes, code_shape): (&StoredPart, &[usize]),
    widths: PackedWidths,
) -> Result<(Layout, [usize; 2]), LoadError> {
    let (part, _) = require(table, &format!("{module}.weight_shape"))?;
    part.expect(table, &["I64", "I32"])?;
    let bytes = part.bytes(&table.files)?;
    let numbers = integers(&part, &bytes);
    let shape: Option<Vec<usize>> = numbers.iter().map(|&number| usize::try_from(number).ok()).collect();
    let Some(&[out_features, in_features]) = shape.as_deref() else {
        return Err(part.wrong(table, format!("{:?}; expected two sizes", &numbers[..numbers.len().min(4)])));
    };
    let holds = |per_word: usize| code_shape == [out_features, in_features.div_ceil(per_word)];
    let layout = match widths {
        PackedWidths { four: true, .. } if holds(8) => Layout::Packed4,
        PackedWidths { eight: true, .. } if holds(4) => Layout::Packed8,
        PackedWidths { four: false, eight: false } => {
            let problem = format!("packed codes, but no group of {FIELD} in {CONFIG} is \"pack-quantized\"");
            return Err(codes.wrong(table, problem));
        }
        PackedWidths { four, eight } => {
            let bits = if four && eight { "4-bit or 8-bit" } else { ["8-bit", "4-bit"][usize::from(four)] };
            let problem = format!("shape {code_shape:?} does not hold {bits} codes for {out_features} x {in_features}");
            return Err(codes.wrong(table, problem));
        }
    };
    Ok((layout, [out_features, in_features]))
}

/// The numbers of an I32 or I64 tensor.
fn integers(part: &StoredPart, bytes: &[u8]) -> Vec<i64> {
    match part.encoding.block().bytes {
        4 => bytes.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes).into()).collect(),
        _ => bytes.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect(),
    }
}

/// Position of output `j` of eight within an AWQ word.
const AWQ_NIBBLE: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// Code `index` of a run of words with eight codes each, the first in the low bits.
fn nibble(words: &[u8], index: usize) -> u8 {
    words[index / 2] >> (index % 2 * 4) & 15
}

/// A power of two as the exponent of an f32; the largest is NaN.
fn e8m0(exponent: u8) -> f32 {
    match exponent {
        0 => f32::MIN_POSITIVE / 2.0,
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(exponent) << 23),
    }
}

impl Layout {
    /// The class for the width of the codes.
    fn class(self) -> WeightClass {
        match self {
            Layout::Nvfp4 { .. } => WeightClass::Int4,
            _ if self.codes_per_word() == Some(8) => WeightClass::Int4,
            _ => WeightClass::Int8,
        }
    }

    /// Codes in a word; `None` if words hold none.
    fn codes_per_word(self) -> Option<usize> {
        match self {
            Layout::Gptq { eight: false, .. } | Layout::Awq | Layout::Packed4 => Some(8),
            Layout::Gptq { eight: true, .. } | Layout::Packed8 => Some(4),
            Layout::Int8 | Layout::Fp8 { .. } | Layout::Nvfp4 { .. } => None,
        }
    }

    /// The zero point of symmetric codes.
    fn middle(self) -> i16 {
        self.codes_per_word().map_or(0, |codes| 1 << (32 / codes - 1))
    }
}

impl Quantized {
    /// The class for the width of the codes.
    pub(super) fn class(&self) -> WeightClass {
        self.layout.class()
    }

    /// Reads the module into memory. An error if a scale, or a weight from it, is not finite.
    pub(super) fn read(&self, files: &[ModelFile]) -> Result<Codes, LoadError> {
        let [out_features, in_features] = self.shape;
        let (groups, group_size) = (self.groups, self.group_size);
        let stored = self.scales.floats(files)?;
        if let Some(at) = stored.iter().position(|scale| !(scale * MAX_STEPS).is_finite()) {
            let problem = match stored[at].is_finite() {
                true => "and its product with a code is not a finite number",
                false => "not a finite number",
            };
            return Err(self.scales.wrong_in(files, format!("scale {at} is {:e}, {problem}", stored[at])));
        }
        if let Layout::Fp8 { .. } | Layout::Nvfp4 { .. } = self.layout {
            let (codes, layout, shape) = (self.codes.bytes(files)?, self.layout, self.shape);
            let is_nan = |code: &u8| matches!(layout, Layout::Fp8 { .. }) && code & 0x7f == 0x7f;
            if let Some(at) = codes.iter().position(is_nan) {
                let problem = format!("weight {} of output {} is not a number", at % in_features, at / in_features);
                return Err(self.codes.wrong_in(files, problem));
            }
            if let Layout::Fp8 { block: [outputs, inputs] } = layout
                && stored.contains(&0.0)
                && let Some(at) = (0..codes.len()).find(|at| {
                    let (output, input) = (at / in_features, at % in_features);
                    codes[*at] & 0x7f != 0 && stored[output / outputs * groups + input / inputs] == 0.0
                })
            {
                let (output, group) = (at / in_features, at % in_features / inputs);
                let problem = format!("the scale of group {group} of output {output} is 0, but its codes are not");
                return Err(self.scales.wrong_in(files, problem));
            }
            let has_codes = codes.iter().any(|code| code & 0x77 != 0);
            let scales = self.times_global(stored, has_codes, files)?;
            return Ok(Codes { layout, codes, scales, zeros: Vec::new(), group_of: None, shape, groups, group_size });
        }
        let transposed = matches!(self.layout, Layout::Gptq { .. } | Layout::Awq);
        let each = |f: &dyn Fn(usize, usize) -> i16| -> Vec<i16> {
            (0..out_features * groups).map(|at| f(at / groups, at % groups)).collect()
        };
        let scale = |row: usize, group: usize| match transposed {
            _ if self.per_tensor => stored[0],
            true => stored[group * out_features + row],
            false => stored[row * groups + group],
        };
        let scales = (0..out_features * groups).map(|at| scale(at / groups, at % groups)).collect();
        let bytes = self.zeros.as_ref().map(|zeros| zeros.bytes(files)).transpose()?;
        let row_bytes = out_features.div_ceil(8) * 4;
        let zeros = match (self.layout, bytes) {
            (Layout::Gptq { zero_offset, eight: false }, Some(bytes)) => {
                each(&|row, group| i16::from(nibble(&bytes[group * row_bytes..], row) + zero_offset))
            }
            (Layout::Gptq { zero_offset, eight: true }, Some(bytes)) => each(&|row, group| {
                i16::from(bytes[group * out_features.div_ceil(4) * 4 + row]) + i16::from(zero_offset)
            }),
            (Layout::Awq, Some(bytes)) => {
                each(&|row, group| nibble(&bytes[group * row_bytes..], row / 8 * 8 + AWQ_NIBBLE[row % 8]).into())
            }
            // Words are along the outputs here: [out / 8, groups], or [out / 4, groups].
            (Layout::Packed4, Some(bytes)) => {
                each(&|row, group| nibble(&bytes[(row / 8 * groups + group) * 4..], row % 8).into())
            }
            (Layout::Packed8, Some(bytes)) => {
                each(&|row, group| bytes[(row / 4 * groups + group) * 4 + row % 4].into())
            }
            (Layout::Int8, Some(bytes)) => each(&|row, group| {
                let at = if self.per_tensor { 0 } else { row * groups + group };
                i16::from(bytes[at] as i8)
            }),
            (Layout::Fp8 { .. } | Layout::Nvfp4 { .. }, Some(_)) => unreachable!("it has no zero points"),
            (layout, None) => each(&|_, _| layout.middle()),
        };
        let codes = self.codes.bytes(files)?;
        let group_of = self.group_of.as_ref().map(|part| self.read_groups(part, files)).transpose()?.flatten();
        let shape = [out_features, in_features];
        let codes = Codes { layout: self.layout, codes, scales, zeros, group_of, shape, groups, group_size };
        if !transposed && let Some((row, group)) = codes.lost_group() {
            let problem = format!("the scale of group {group} of output {row} is 0, but its codes are not");
            return Err(self.scales.wrong_in(files, problem));
        }
        Ok(codes)
    }

    /// Scales of groups and the scale of all of them as one, of NVFP4 halved.
    fn times_global(&self, mut scales: Vec<f32>, has_codes: bool, files: &[ModelFile]) -> Result<Vec<f32>, LoadError> {
        let (Some(part), Layout::Nvfp4 { divides }) = (&self.global, self.layout) else { return Ok(scales) };
        let global = part.floats(files)?[0];
        if !global.is_finite() || !divides && global == 0.0 && has_codes {
            return Err(part.wrong_in(files, format!("{global:e}, and with it every weight is lost")));
        }
        for scale in &mut scales {
            *scale = if divides { *scale / global } else { *scale * global } * 0.5;
            if !(*scale * 12.0).is_finite() {
                return Err(part.wrong_in(files, format!("{global:e}, and with it a weight is not a finite number")));
            }
        }
        Ok(scales)
    }

    /// The group of each input; `None` if all groups are neighbours.
    fn read_groups(&self, part: &StoredPart, files: &[ModelFile]) -> Result<Option<Vec<u32>>, LoadError> {
        let bytes = part.bytes(files)?;
        let mut group_of = Vec::with_capacity(self.shape[1]);
        for (input, group) in integers(part, &bytes).into_iter().enumerate() {
            match u32::try_from(group) {
                Ok(group) if (group as usize) < self.groups => group_of.push(group),
                // compressed-tensors writes -1 if inputs are not sorted
                _ if group == -1 && matches!(self.layout, Layout::Packed4 | Layout::Packed8) => return Ok(None),
                _ => {
                    let problem = format!("group {group} of input {input}; there are {}", self.groups);
                    return Err(part.wrong_in(files, problem));
                }
            }
        }
        let regular = group_of.iter().enumerate().all(|(input, &group)| group as usize == input / self.group_size);
        Ok((!regular).then_some(group_of))
    }
}

impl Codes {
    /// The output and group of a scale of 0 with some code other than the zero point, which loses its weights. All-zero
    /// groups have a scale of 0 too, in valid files.
    fn lost_group(&self) -> Option<(usize, usize)> {
        let is_lost = |&at: &usize| {
            let (row, group) = (at / self.groups, at % self.groups);
            (0..self.shape[1])
                .filter(|&input| self.group_at(input) == group)
                .any(|input| self.code(row, input) != self.zeros[at])
        };
        (0..self.scales.len())
            .filter(|&at| self.scales[at] == 0.0)
            .find(is_lost)
            .map(|at| (at / self.groups, at % self.groups))
    }

    /// The group of an input.
    fn group_at(&self, input: usize) -> usize {
        match &self.group_of {
            Some(group_of) => group_of[input] as usize,
            None => input / self.group_size,
        }
    }

    /// The stored code at an output and an input.
    fn code(&self, row: usize, input: usize) -> i16 {
        let [out_features, in_features] = self.shape;
        match self.layout {
            Layout::Gptq { eight: false, .. } => {
                nibble(&self.codes[(input / 8 * out_features + row) * 4..], input % 8).into()
            }
            Layout::Gptq { eight: true, .. } => self.codes[(input / 4 * out_features + row) * 4 + input % 4].into(),
            Layout::Awq => {
                nibble(&self.codes[(input * (out_features / 8) + row / 8) * 4..], AWQ_NIBBLE[row % 8]).into()
            }
            Layout::Packed4 => nibble(&self.codes[row * in_features.div_ceil(8) * 4..], input).into(),
            Layout::Packed8 => self.codes[row * in_features.div_ceil(4) * 4 + input].into(),
            Layout::Int8 => i16::from(self.codes[row * in_features + input] as i8),
            Layout::Nvfp4 { .. } => DOUBLED[usize::from(nibble(&self.codes[row * in_features / 2..], input))].into(),
            Layout::Fp8 { .. } => unreachable!("its codes are no integers"),
        }
    }

    /// The weights of an output: `scale * (code - zero)`, one product in f32 each.
    pub(super) fn row(&self, row: usize, out: &mut [f32]) {
        if let Layout::Fp8 { block: [outputs, inputs] } = self.layout {
            let (codes, scales) = (&self.codes[row * self.shape[1]..], &self.scales[row / outputs * self.groups..]);
            let groups = out.chunks_mut(inputs).zip(codes.chunks(inputs)).zip(scales);
            return groups.for_each(|((out, codes), scale)| {
                out.iter_mut().zip(codes).for_each(|(out, &code)| *out = e4m3(code) * scale);
            });
        }
        let scales = &self.scales[row * self.groups..];
        if let Layout::Nvfp4 { .. } = self.layout {
            let out = out.iter_mut().enumerate();
            return out.for_each(|(input, out)| *out = f32::from(self.code(row, input)) * scales[input / 16]);
        }
        let zeros = &self.zeros[row * self.groups..];
        for (input, out) in out.iter_mut().enumerate() {
            let group = self.group_at(input);
            *out = f32::from(self.code(row, input) - zeros[group]) * scales[group];
        }
    }

    /// Whether the codes are those of the int8 class: symmetric, with one scale per 128 neighbours, whatever the
    /// groups.
    pub(super) fn is_int8(&self) -> bool {
        let in_features = self.shape[1];
        let group_size = self.group_size;
        let one_scale = |scales: &[f32]| {
            (0..in_features).step_by(INT8_GROUP).all(|first| {
                let last = (first + INT8_GROUP).min(in_features) - 1;
                scales[first / group_size..=last / group_size].windows(2).all(|pair| pair[0] == pair[1])
            })
        };
        self.layout.class() == WeightClass::Int8
            && !matches!(self.layout, Layout::Fp8 { .. })
            && self.group_of.is_none()
            && in_features <= 132_000
            && self.is_symmetric()
            && self.scales.chunks_exact(self.groups).all(one_scale)
    }

    fn is_symmetric(&self) -> bool {
        self.zeros.iter().all(|&zero| zero == self.layout.middle())
    }

    /// A row of the int8 class: codes, and a scale per 128 of them.
    pub(super) fn int8_row(&self, row: usize, codes: &mut [i8], scales: &mut [f32]) {
        let middle = self.layout.middle();
        codes.iter_mut().enumerate().for_each(|(input, code)| *code = (self.code(row, input) - middle) as i8);
        let group_size = self.group_size;
        for (index, scale) in scales.iter_mut().enumerate() {
            *scale = self.scales[row * self.groups + index * INT8_GROUP / group_size];
        }
    }

    /// Whether the codes are those of the int4 class: symmetric, in groups that are multiples of 32 neighbours.
    pub(super) fn is_int4(&self) -> bool {
        let group_size = self.group_size;
        let regular = self.group_of.is_none() && (group_size.is_multiple_of(32) || self.groups == 1);
        self.layout.codes_per_word() == Some(8) && regular && self.is_symmetric()
    }

    /// The format of [`groups`](Self::groups), if the codes are kept in groups.
    pub(super) fn block_format(&self) -> Option<BlockFormat> {
        let codes = kernels::quant::Codes::Four { levels: DOUBLED };
        let format = BlockFormat { codes, group: 16, mins: false, scales: Scales::Full };
        matches!(self.layout, Layout::Nvfp4 { .. }).then_some(format)
    }

    /// A row in groups of 16.
    pub(super) fn groups(&self, row: usize, levels: &mut [i8], scales: &mut [GroupScale]) {
        levels.iter_mut().enumerate().for_each(|(input, level)| *level = self.code(row, input) as i8);
        for (scale, &d) in scales.iter_mut().zip(&self.scales[row * self.groups..]) {
            *scale = GroupScale { d, ratio: 1, ..GroupScale::ZERO };
        }
    }

    /// A row of the int4 class: codes in -8..=7, and a scale per 32 of them.
    pub(super) fn int4_row(&self, row: usize, codes: &mut [i8], scales: &mut [f32]) {
        let group_size = self.group_size;
        for (input, code) in codes.iter_mut().enumerate() {
            *code = (self.code(row, input) - 8) as i8;
        }
        for (index, scale) in scales.iter_mut().enumerate() {
            *scale = self.scales[row * self.groups + index * 32 / group_size];
        }
    }
}
