//! One GGUF file: settings, tokenizer and tensors in ggml's words.
//!
//! ```text
//! "GGUF" | 3 | counts | settings (config.json, vocabulary.rs) | name, shape, type, offset ... | padding | data ...
//!                                                                             └── known last: a unit may stay wide
//! int8   matrices Q8_0                                   bf16   matrices as stored, BF16 or F16; of F32 ones BF16
//! int4   matrices Q4_0, embedding and head Q8_0          always F32: norms, biases
//! ```
//! Blocks are those of ggml's own reference quantizers, byte by byte. They are not the codes of this engine's classes:
//! Q8_0 and Q4_0 have a scale of 16 bits per 32 weights. The entry of a tensor in the table has the same size whatever
//! its type, so the data is written first and the table at the end.
//!
//! Written are the families in [`FAMILIES`], which were loaded by llama.cpp and compared with it. Of their settings,
//! whatever the format has no word for is refused by name.

use super::calibration::{Judge, targets};
use super::recipe::{Kept, Module, Narrow, Target, Unit, Verdict, interleaved, quantize, units};
use super::staging;
use super::vocabulary::vocabulary;
use super::{Export, ExportError, ExportReport, Work};
use crate::config::{Family, Head, ModelConfig};
use crate::tensors::{Attention, Feed, Mixer, Mixing, Norm, Tensors, Vector, usual_name};
use checkpoint::BlockType;
use checkpoint::LoadError;
use checkpoint::encoding::Encoding;
use checkpoint::gguf::ggml_name;
use kernels::{RopeScaling, WeightClass};
use std::collections::HashMap;
use std::f64::consts::TAU;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Families that are written, and ggml's names of their architectures.
const FAMILIES: [(Family, &str); 4] =
    [(Family::Llama, "llama"), (Family::Mistral, "llama"), (Family::Qwen2, "qwen2"), (Family::Qwen3, "qwen3")];
/// Architectures whose rows of queries and keys are stored in another order.
const INTERLEAVED: &str = "llama";
const ALIGNMENT: u64 = 32;

/// Settings as bytes.
#[derive(Default)]
pub(super) struct Settings {
    bytes: Vec<u8>,
    count: u64,
}

impl Settings {
    fn begin(&mut self, key: &str, kind: u32) {
        self.count += 1;
        self.put_text(key);
        self.bytes.extend(kind.to_le_bytes());
    }

    fn put_text(&mut self, text: &str) {
        self.bytes.extend((text.len() as u64).to_le_bytes());
        self.bytes.extend(text.as_bytes());
    }

    pub(super) fn number(&mut self, key: &str, value: usize) -> Result<(), ExportError> {
        let value = u32::try_from(value).map_err(|_| refused(format!("{key}: {value} is more than 32 bits")))?;
        self.begin(key, 4);
        self.bytes.extend(value.to_le_bytes());
        Ok(())
    }

    fn float(&mut self, key: &str, value: f64) {
        self.begin(key, 6);
        self.bytes.extend((value as f32).to_le_bytes());
    }

    pub(super) fn flag(&mut self, key: &str, value: bool) {
        self.begin(key, 7);
        self.bytes.push(value.into());
    }

    pub(super) fn text(&mut self, key: &str, value: &str) {
        self.begin(key, 8);
        self.put_text(value);
    }

    pub(super) fn texts<'t>(&mut self, key: &str, values: impl ExactSizeIterator<Item = &'t str>) {
        self.begin(key, 9);
        self.bytes.extend(8u32.to_le_bytes());
        self.bytes.extend((values.len() as u64).to_le_bytes());
        values.for_each(|value| self.put_text(value));
    }

    pub(super) fn numbers(&mut self, key: &str, values: &[i32]) {
        self.begin(key, 9);
        self.bytes.extend(5u32.to_le_bytes());
        self.bytes.extend((values.len() as u64).to_le_bytes());
        self.bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }
}

fn refused(problem: String) -> ExportError {
    ExportError::Refused(problem)
}

/// What the file will hold, but for the types of matrices.
pub(super) struct Plan {
    settings: Settings,
    architecture: &'static str,
    tables: Vec<Module>,
    vectors: Vec<(String, Values)>,
    units: Vec<Unit>,
}

/// Numbers that are written in F32.
enum Values {
    /// A norm or a bias.
    Stored(Vector),
    /// Rows of a bias in the order of the rows of its matrix.
    Interleaved(Vector),
    Computed(Vec<f32>),
}

impl Plan {
    /// Everything that can be refused is refused here.
    pub(super) fn of(export: &Export<'_>) -> Result<Plan, ExportError> {
        let config = &export.config;
        let Some((_, architecture)) = FAMILIES.iter().find(|(family, _)| *family == config.family) else {
            let names = FAMILIES.map(|(family, _)| family.name()).join(", ");
            return Err(refused(format!("{} models are not written as GGUF; {names} are", config.family)));
        };
        if config.head == Head::Absent {
            return Err(refused("the weights have no head, and a GGUF file cannot say so".to_string()));
        }
        let mut settings = settings(export, architecture)?;
        vocabulary(export.checkpoint, config, &mut settings)?;
        let tensors = Tensors::of(config, &export.weights);
        let mut plan = Plan { settings, architecture, tables: Vec::new(), vectors: Vec::new(), units: Vec::new() };
        let table = |linear: crate::tensors::Linear| {
            linear.parts.into_iter().map(move |source| {
                let name = source.name.strip_suffix(".weight").unwrap_or(&source.name).to_string();
                let (in_features, out_features) = (linear.in_features, source.out_features());
                Module { name, source, first: 0, step: 1, out_features, in_features, interleaved: None }
            })
        };
        plan.tables.extend(table(tensors.embedding()));
        plan.tables.extend(tensors.head().into_iter().flat_map(table));
        tensors.final_norm().vectors().for_each(|norm| plan.vector(norm.clone()));
        if let RopeScaling::Llama3 { factor, original_max_position, .. } = config.ropes[0].scaling {
            let rope = &config.ropes[0];
            let divisors = llama3_divisors(rope.theta, rope.rotary_dim, factor, original_max_position);
            plan.vectors.push(("rope_freqs.weight".to_string(), Values::Computed(divisors)));
        }
        for index in 0..config.num_layers {
            let layer = tensors.layer(index);
            let mut units = units(index, &layer, config.family);
            for module in units.iter_mut().flat_map(|unit| &mut unit.modules) {
                module.interleaved = plan.is_rotated(&format!("{}.weight", module.name)).then_some(config.head_dim);
            }
            plan.units.extend(units);
            layer.norms().flat_map(Norm::vectors).for_each(|norm| plan.vector(norm.clone()));
            let Some(Feed::Dense(mlp)) = layer.feed else {
                return Err(refused("experts are not written as GGUF".to_string()));
            };
            let (mut linears, mut norms) = (Vec::new(), Vec::new());
            for Mixing { qkv, mixer, o, .. } in layer.mixings {
                linears.extend([qkv, o]);
                if let Mixer::Attention(Attention { head_norms, .. }) = mixer {
                    norms.extend(head_norms.into_iter().flat_map(|(q, k)| [Some(q), k]).flatten());
                }
            }
            for linear in linears.into_iter().chain([mlp.gate_up, mlp.down]) {
                let biases = linear.biases.into_iter();
                biases.for_each(|bias| plan.vector(Vector { len: bias.shape[0], name: bias.name }));
            }
            norms.into_iter().for_each(|norm| plan.vector(norm));
        }
        Ok(plan)
    }

    fn vector(&mut self, vector: Vector) {
        let name = ggml_name(self.architecture, &usual_name(&vector.name));
        let values = match self.is_rotated(&vector.name) {
            true => Values::Interleaved(vector),
            false => Values::Stored(vector),
        };
        self.vectors.push((name, values));
    }

    /// Whether ggml has the rows of this tensor in another order.
    fn is_rotated(&self, name: &str) -> bool {
        let module = name.rsplit('.').nth(1).unwrap_or_default();
        self.architecture == INTERLEAVED && ["q_proj", "k_proj"].contains(&module)
    }

    /// Bytes if every unit becomes narrow.
    pub(super) fn expected_bytes(&self, export: &Export<'_>) -> u64 {
        let modules =
            self.units.iter().flat_map(|unit| &unit.modules).map(|module| (module, matrix_type(export.class)));
        let tables = self.tables.iter().map(|module| (module, table_type(export.class)));
        let matrices = modules.chain(tables).map(|(module, blocks)| {
            let rows = module.out_features as u64;
            match blocks.map(BlockType::size) {
                Some((elements, bytes)) => rows * (module.in_features / elements * bytes) as u64,
                None => rows * 2 * module.in_features as u64,
            }
        });
        matrices.sum::<u64>() + self.settings.bytes.len() as u64 + (1 << 20)
    }
}

/// Type of a matrix in a layer; `None`: as it is stored.
fn matrix_type(class: WeightClass) -> Option<BlockType> {
    match class {
        WeightClass::Bf16 => None,
        WeightClass::Int8 => Some(BlockType::Q8_0),
        WeightClass::Int4 => Some(BlockType::Q4_0),
    }
}

/// Type of embedding and head: an error in them goes straight into every logit.
fn table_type(class: WeightClass) -> Option<BlockType> {
    matrix_type(class).map(|_| BlockType::Q8_0)
}

/// Numbers of types in the format.
fn type_number(name: &str) -> u32 {
    match name {
        "F32" => 0,
        "F16" => 1,
        "Q4_0" => 2,
        "Q8_0" => 8,
        _ => 30, // BF16
    }
}

fn settings(export: &Export<'_>, architecture: &str) -> Result<Settings, ExportError> {
    let config = &export.config;
    let mut settings = Settings::default();
    let key = |name: &str| format!("{architecture}.{name}");
    settings.text("general.architecture", architecture);
    settings.text("general.type", "model");
    settings.text("general.name", export.checkpoint.name());
    let file_type = match export.class {
        WeightClass::Bf16 => 32,
        WeightClass::Int8 => 7,
        WeightClass::Int4 => 2,
    };
    settings.number("general.file_type", file_type)?;
    settings.number("general.quantization_version", 2)?;
    let numbers = [
        ("block_count", config.num_layers),
        ("context_length", config.max_position_embeddings),
        ("embedding_length", config.hidden_size),
        ("feed_forward_length", config.intermediate_size),
        ("attention.head_count", config.num_heads),
        ("attention.head_count_kv", config.num_kv_heads),
        ("attention.key_length", config.head_dim),
        ("attention.value_length", config.head_dim),
        ("vocab_size", config.vocab_size),
    ];
    for (name, number) in numbers {
        settings.number(&key(name), number)?;
    }
    settings.float(&key("attention.layer_norm_rms_epsilon"), config.rms_norm_eps.into());
    if config.layers.iter().any(|layer| layer.window.is_some_and(|window| window < config.max_position_embeddings)) {
        return Err(refused("config.json: sliding_window: GGUF has no word for windows in this family".to_string()));
    }
    rope_settings(config, &key, &mut settings)?;
    Ok(settings)
}

fn rope_settings(
    config: &ModelConfig,
    key: &dyn Fn(&str) -> String,
    settings: &mut Settings,
) -> Result<(), ExportError> {
    let rope = &config.ropes[0];
    settings.number(&key("rope.dimension_count"), rope.rotary_dim)?;
    settings.float(&key("rope.freq_base"), rope.theta);
    let no_word = |what: &str| Err(refused(format!("config.json: rope_scaling: GGUF has no word for {what}")));
    if rope.growth.is_some() {
        return no_word("queries that grow in this family");
    }
    match rope.scaling {
        RopeScaling::None => Ok(()),
        RopeScaling::Linear { factor } => {
            settings.text(&key("rope.scaling.type"), "linear");
            settings.float(&key("rope.scaling.factor"), factor);
            Ok(())
        }
        // Its divisors are a tensor.
        RopeScaling::Llama3 { low_freq_factor: 1.0, high_freq_factor: 4.0, .. } => Ok(()),
        RopeScaling::Llama3 { .. } => no_word("these borders of frequencies"),
        RopeScaling::Yarn {
            factor,
            original_max_position,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: None,
            truncate: true,
        } => {
            settings.text(&key("rope.scaling.type"), "yarn");
            settings.float(&key("rope.scaling.factor"), factor);
            settings.number(&key("rope.scaling.original_context_length"), original_max_position)
        }
        RopeScaling::Yarn { .. } => no_word("these settings of yarn"),
        RopeScaling::LongRope { .. } => no_word("longrope in this family"),
        RopeScaling::Proportional { .. } => no_word("proportional rotation"),
    }
}

/// What Llama 3's frequencies are divided by (Grattafiori et al., 2024).
fn llama3_divisors(theta: f64, rotary_dim: usize, factor: f64, original: usize) -> Vec<f32> {
    let divisor = |i: usize| {
        let wavelength = TAU * theta.powf((2 * i) as f64 / rotary_dim as f64);
        let smooth = ((original as f64 / wavelength - 1.0) / 3.0).clamp(0.0, 1.0);
        (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
    };
    (0..rotary_dim / 2).map(divisor).collect()
}

pub(super) fn write(
    export: &Export<'_>,
    plan: &Plan,
    path: &Path,
    measured: &HashMap<String, f64>,
    work: &mut Work<'_>,
) -> Result<ExportReport, ExportError> {
    let Export { class, config, weights, .. } = export;
    let mut out = Out::create(path, plan)?;
    let mut report = ExportReport::default();
    for module in &plan.tables {
        let narrow = table_type(*class).map(Target::Blocks).filter(|target| target.fits(module.in_features));
        let target = narrow.unwrap_or(as_stored(export, module)?);
        let mut made = quantize(target, weights, module, work.threads)?;
        if made.error.is_nan() {
            made = quantize(as_stored(export, module)?, weights, module, work.threads)?;
        }
        out.matrix(module, &made)?;
        work.advance(module.stored_bytes(weights)?)?;
    }
    for (name, values) in &plan.vectors {
        let values = match values {
            Values::Computed(values) => values.clone(),
            Values::Stored(vector) => weights.vector(&vector.name, vector.len)?,
            Values::Interleaved(vector) => {
                let stored = weights.vector(&vector.name, vector.len)?;
                (0..vector.len).map(|row| stored[interleaved(row, config.head_dim)]).collect()
            }
        };
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        out.add(name, &[values.len()], "F32", &bytes)?;
    }
    let target = matrix_type(*class).map(Target::Blocks);
    let (narrow, eight) = (target.unwrap_or(Target::Bf16), Target::Blocks(BlockType::Q8_0));
    let targets = targets(export, &plan.units, (narrow, eight), work)?;
    let mut judge = Judge::new(export, &plan.units, &targets, measured, work.threads)?;
    for (unit, chosen) in plan.units.iter().zip(&targets) {
        let verdict = target.map(|_| judge.next(unit, work)).transpose()?;
        if let Some(Verdict::Narrow(made, error)) = verdict {
            report.add(unit, *chosen != narrow, &made, error);
            unit.modules.iter().zip(&made).try_for_each(|(module, made)| out.matrix(module, made))?;
            continue;
        }
        for module in &unit.modules {
            out.matrix(module, &quantize(as_stored(export, module)?, weights, module, work.threads)?)?;
            // A unit that was judged is counted already.
            work.advance(if verdict.is_none() { module.stored_bytes(weights)? } else { 0 })?;
        }
        if let Some(Verdict::Wide(reason)) = verdict {
            report.kept.push(Kept { name: unit.name(), reason });
        }
    }
    report.bytes = out.finish(plan)?;
    Ok(report)
}

/// The type that keeps a matrix in 16 bits: F16 where it is that already.
fn as_stored(export: &Export<'_>, module: &Module) -> Result<Target, LoadError> {
    let tensor = export.weights.tensor(&module.source.name, &module.source.shape)?;
    Ok(if tensor.encoding() == Some(Encoding::F16) { Target::F16 } else { Target::Bf16 })
}

/// A row of the table of tensors.
struct Entry {
    name: String,
    /// Outermost dimension first.
    shape: Vec<usize>,
    kind: u32,
    offset: u64,
}

/// The file in the making.
struct Out<'p> {
    path: &'p Path,
    file: BufWriter<File>,
    architecture: &'static str,
    entries: Vec<Entry>,
    /// Bytes before the data.
    header_bytes: u64,
    /// Bytes of data so far, padding counted.
    at: u64,
}

impl<'p> Out<'p> {
    fn create(path: &'p Path, plan: &Plan) -> Result<Out<'p>, ExportError> {
        // A table with the same names and ranks is as long as the one that will be written.
        let blank = |name: String, rank: usize| Entry { name, shape: vec![0; rank], kind: 0, offset: 0 };
        let modules = plan.tables.iter().chain(plan.units.iter().flat_map(|unit| &unit.modules));
        let matrices = modules.map(|module| blank(in_file(plan.architecture, module), 2));
        let vectors = plan.vectors.iter().map(|(name, _)| blank(name.clone(), 1));
        let header_bytes = header(&plan.settings, &matrices.chain(vectors).collect::<Vec<_>>()).len() as u64;
        let created = staging::open(path).and_then(|file| {
            let mut file = BufWriter::with_capacity(1 << 20, file);
            std::io::copy(&mut std::io::Read::take(std::io::repeat(0), header_bytes), &mut file)?;
            Ok(file)
        });
        let file = created.map_err(|error| ExportError::io(path, error))?;
        Ok(Out { path, file, architecture: plan.architecture, entries: Vec::new(), header_bytes, at: 0 })
    }

    fn matrix(&mut self, module: &Module, made: &Narrow) -> Result<(), ExportError> {
        let name = in_file(self.architecture, module);
        self.add(&name, &[module.out_features, module.in_features], made.target.name(), &made.codes)
    }

    fn add(&mut self, name: &str, shape: &[usize], kind: &str, bytes: &[u8]) -> Result<(), ExportError> {
        let entry = Entry { name: name.to_string(), shape: shape.to_vec(), kind: type_number(kind), offset: self.at };
        self.entries.push(entry);
        let end = self.at + bytes.len() as u64;
        self.at = end.next_multiple_of(ALIGNMENT);
        let padding = [0; ALIGNMENT as usize];
        let written = self.file.write_all(bytes);
        let written = written.and_then(|()| self.file.write_all(&padding[..(self.at - end) as usize]));
        written.map_err(|error| ExportError::io(self.path, error))
    }

    /// Writes the header and brings the file to the disk; returns its bytes.
    fn finish(self, plan: &Plan) -> Result<u64, ExportError> {
        let io = |error| ExportError::io(self.path, error);
        let header = header(&plan.settings, &self.entries);
        assert_eq!(header.len() as u64, self.header_bytes, "the table holds what was planned");
        let file = self.file.into_inner().map_err(|error| io(error.into_error()))?;
        file.write_all_at(&header, 0).and_then(|()| file.sync_all()).map_err(io)?;
        Ok(self.header_bytes + self.at)
    }
}

/// A matrix's name in the file.
fn in_file(architecture: &str, module: &Module) -> String {
    ggml_name(architecture, &usual_name(&format!("{}.weight", module.name)))
}

/// Everything before the data.
fn header(settings: &Settings, entries: &[Entry]) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3u32.to_le_bytes());
    bytes.extend((entries.len() as u64).to_le_bytes());
    bytes.extend(settings.count.to_le_bytes());
    bytes.extend(&settings.bytes);
    for Entry { name, shape, kind, offset } in entries {
        bytes.extend((name.len() as u64).to_le_bytes());
        bytes.extend(name.as_bytes());
        bytes.extend((shape.len() as u32).to_le_bytes());
        bytes.extend(shape.iter().rev().flat_map(|&dim| (dim as u64).to_le_bytes()));
        bytes.extend(kind.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
    }
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT as usize), 0);
    bytes
}
