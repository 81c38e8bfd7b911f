//! Safetensors in the layout of compressed-tensors, "pack-quantized".
//!
//! ```text
//! int8             weight_packed i32 [out, in / 4]   weight_scale f32 [out, in / 64]   weight_shape i64 [2]
//! int4             weight_packed i32 [out, in / 8]   weight_scale f32 [out, in / 32]   weight_shape i64 [2]
//! config.json      as it was, and quantization_config: W8A16 in groups of 64, or W4A16 in groups of 32, or both, by name
//! everything else  as it was: other tensors byte by byte, the tokenizer's files, generation_config, templates
//! ```
//! Scales are f32 and hold exactly what is computed with: the product of a channel's scale and a group's ratio, which
//! needs no rounding ([`kernels::quant::quantize_int8_row`], [`kernels::quant::quantize_int4_row`]). An engine that
//! computes in 16 bits rounds them when it loads them. Those of int4 may be negative, as the format allows. Int8 has a
//! ratio for each 128 weights, so groups of 64 have the same scale in pairs: kernels of other engines take groups of
//! 32, 64 and 128, and widths such as 576 and 896 are no multiples of 128.
//!
//! A file's header comes first and is known last. Room is left for it, and what is not needed of that are spaces. The
//! format allows no gaps between tensors, and readers want each at a multiple of its element's size: tensors whose size
//! is no multiple of 8 bytes, which real models do not have, are kept until the end of their file.

use super::calibration::{Judge, targets};
use super::recipe::{INT8_FILE_GROUP, Kept, Module, Target, Unit, Verdict, units};
use super::{CONFIG, Export, ExportError, ExportReport, FIELD, Work};
use crate::config::Family;
use crate::tensors::Tensors;
use checkpoint::encoding::Encoding;
use checkpoint::weights::{StoredTensor, Weights};
use checkpoint::{Checkpoint, LoadError};
use kernels::WeightClass;
use kernels::quant::GROUP;
use serde_json::{Map, Value, json};
use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Files beside the weights that are copied where they are there: the tokenizer's, the proposed sampling, templates,
/// what a model that sees images needs, and the terms of use.
pub(super) const COPIED: [&str; 20] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    "LICENSE",
    "LICENSE.md",
    "LICENSE.txt",
    "NOTICE",
    "NOTICE.md",
    "NOTICE.txt",
    "Notice.txt",
    "USE_POLICY.md",
];
/// A file of weights is begun anew when it would pass this.
const SHARD_BYTES: u64 = 5_000_000_000;
/// Copied at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// Writes every file into `directory`, which is empty.
pub(super) fn write(
    export: &Export<'_>,
    directory: &Path,
    measured: &HashMap<String, f64>,
    work: &mut Work<'_>,
) -> Result<ExportReport, ExportError> {
    let Export { class, config, weights, .. } = export;
    let layers = Layers::of(export);
    let mut shards = Shards::new(directory, layers.header_bytes(export), SHARD_BYTES);
    let mut ignore = Vec::new();
    let by_name: HashMap<&str, StoredTensor<'_>> =
        weights.stored().into_iter().map(|stored| (stored.name, stored)).collect();
    for stored in layers.others(export) {
        if let Some(biases) = biases_apart(&stored)? {
            for (name, bytes) in biases {
                let (dtype, len) = (stored.encoding.name(), bytes.len() / stored.encoding.block().bytes);
                shards.add(&name, dtype, &[len], bytes.len() as u64, &mut |out| out.put(&bytes))?;
            }
            work.advance(stored.num_bytes)?;
            continue;
        }
        let name = renamed(stored.name, layers.stacked, config.family);
        ignore.extend(linear_module(&name, stored.shape));
        shards.add(&name, stored.encoding.name(), stored.shape, stored.num_bytes, &mut |out| {
            copy(&stored, 0..stored.num_bytes, out, &mut |bytes| work.advance(bytes))
        })?;
    }
    let mut report = ExportReport::default();
    let (narrow, eight) = (Target::of(*class), Target::Int8);
    let targets = targets(export, &layers.units, (narrow, eight), work)?;
    let mut judge = Judge::new(export, &layers.units, &targets, measured, work.threads)?;
    let mut groups = Groups::default();
    for (unit, target) in layers.units.iter().zip(&targets) {
        match judge.next(unit, work)? {
            Verdict::Narrow(made, error) => {
                report.add(unit, *target != narrow, &made, error);
                let of_group = if *target == narrow { &mut groups.own } else { &mut groups.raised };
                for (module, made) in unit.modules.iter().zip(&made) {
                    of_group.push(module.name.clone());
                    add_narrow(&mut shards, target.class(), module, &made.codes, &made.scales)?;
                }
            }
            Verdict::Wide(reason) => {
                for module in &unit.modules {
                    ignore.push(module.name.clone());
                    let stored = &by_name[module.source.name.as_str()];
                    match module.source.transposed {
                        false => add_wide(&mut shards, module, stored)?,
                        true => add_columns(&mut shards, module, weights, stored.encoding)?,
                    }
                }
                report.kept.push(Kept { name: unit.name(), reason });
            }
        }
    }
    report.bytes = shards.finish()?;
    ignore.sort();
    // The head is a module even where it shares the embedding's tensor.
    if !ignore.iter().any(|name| name == "lm_head") {
        ignore.insert(0, "lm_head".to_string());
    }
    let text = export.checkpoint.read_text(CONFIG)?.unwrap_or_default();
    report.bytes +=
        put(directory, CONFIG, with_field(&text, &quantization_config(*class, &ignore, &groups)).as_bytes())?;
    for name in COPIED {
        report.bytes += copy_file(export.checkpoint, name, directory)?;
    }
    Ok(report)
}

/// The bytes if every unit becomes narrow.
pub(super) fn expected_bytes(export: &Export<'_>) -> u64 {
    let layers = Layers::of(export);
    let narrow = layers.units.iter().flat_map(|unit| &unit.modules).map(|module| {
        let (out, width) = (module.out_features as u64, module.in_features as u64);
        let codes = width / codes_per_word(export.class) as u64 * 4;
        out * (codes + width / group(export.class) as u64 * 4) + 16
    });
    let others = layers.others(export);
    let texts = COPIED.iter().filter_map(|name| Some(export.checkpoint.open_file(name).ok()??.len()));
    let tensors = narrow.sum::<u64>() + others.map(|stored| stored.num_bytes).sum::<u64>();
    tensors + texts.sum::<u64>() + layers.header_bytes(export)
}

/// Weights that share a scale.
fn group(class: WeightClass) -> usize {
    if class == WeightClass::Int4 { GROUP } else { INT8_FILE_GROUP }
}

/// Codes in 32 bits.
fn codes_per_word(class: WeightClass) -> usize {
    if class == WeightClass::Int4 { 8 } else { 4 }
}

/// The layers' units, and what belongs to none.
struct Layers {
    units: Vec<Unit>,
    sources: HashSet<String>,
    /// Experts are stored as stacks.
    stacked: bool,
}

impl Layers {
    fn of(export: &Export<'_>) -> Layers {
        let (config, tensors) = (&export.config, Tensors::of(&export.config, &export.weights));
        let layers = (0..config.num_layers).map(|index| (index, tensors.layer(index)));
        let units: Vec<Unit> = layers.flat_map(|(index, layer)| units(index, &layer, config.family)).collect();
        let modules = || units.iter().flat_map(|unit| &unit.modules);
        let sources = modules().map(|module| module.source.name.clone()).collect();
        let stacked = modules().any(|module| module.source.shape.len() == 3);
        Layers { units, sources, stacked }
    }

    /// Tensors that are copied.
    fn others<'e>(&self, export: &'e Export<'_>) -> impl Iterator<Item = StoredTensor<'e>> {
        export.weights.stored().into_iter().filter(|stored| !self.sources.contains(stored.name))
    }

    /// Room for the header of one file, if it held everything.
    fn header_bytes(&self, export: &Export<'_>) -> u64 {
        // Quotes, brackets, the type, two offsets; and 20 digits for each dimension.
        let entry = |name: &str, rank: usize| (Value::from(name).to_string().len() + 120 + 21 * rank) as u64;
        let modules = self.units.iter().flat_map(|unit| &unit.modules);
        let narrow: u64 = modules.map(|module| 3 * (entry(&module.name, 2) + 20)).sum();
        let others: u64 = self.others(export).map(|stored| entry(stored.name, stored.shape.len()) + 20).sum();
        // Biases of experts that are taken apart.
        let biases = self.others(export).filter(|stored| stored.name.contains(".experts.") && stored.shape.len() == 2);
        let apart: u64 = biases.map(|stored| 2 * stored.shape[0] as u64 * (entry(stored.name, 1) + 20)).sum();
        (narrow + others + apart + 256).next_multiple_of(8)
    }
}

/// The name under which a tensor is copied: where stacks of Mixtral are taken apart, the router goes with its experts.
fn renamed(name: &str, stacked: bool, family: Family) -> String {
    match stacked && family == Family::Mixtral {
        true => name.replace(".mlp.gate.", ".block_sparse_moe.gate."),
        false => name.to_string(),
    }
}

/// The module of a tensor that is a `Linear` to others, as far as a name and a shape tell: it has to be named as not
/// quantized.
fn linear_module(name: &str, shape: &[usize]) -> Option<String> {
    let module = name.strip_suffix(".weight").filter(|_| shape.len() == 2)?;
    (!module.contains("embed")).then(|| module.to_string())
}

fn add_narrow(
    shards: &mut Shards<'_>,
    class: WeightClass,
    module: &Module,
    codes: &[u8],
    scales: &[f32],
) -> Result<(), ExportError> {
    let (out, width) = (module.out_features, module.in_features);
    let mut add = |part: &str, dtype, shape: [usize; 2], bytes: &[u8]| {
        let shape = if part == "weight_shape" { &shape[..1] } else { &shape[..] };
        let name = format!("{}.{part}", module.name);
        shards.add(&name, dtype, shape, bytes.len() as u64, &mut |to| to.put(bytes))
    };
    let scale_bytes: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
    add("weight_scale", "F32", [out, scales.len() / out], &scale_bytes)?;
    let shape: Vec<u8> = [out, width].iter().flat_map(|&size| (size as i64).to_le_bytes()).collect();
    add("weight_shape", "I64", [2, 0], &shape)?;
    add("weight_packed", "I32", [out, width / codes_per_word(class)], codes)
}

/// A module as it is stored.
fn add_wide(shards: &mut Shards<'_>, module: &Module, stored: &StoredTensor<'_>) -> Result<(), ExportError> {
    let all: usize = stored.shape.iter().rev().skip(1).product();
    let row_bytes = stored.num_bytes / all as u64;
    let range = module.source.rows.start as u64 * row_bytes..module.source.rows.end as u64 * row_bytes;
    let shape = [module.out_features, module.in_features];
    let name = format!("{}.weight", module.name);
    shards.add(&name, stored.encoding.name(), &shape, range.end - range.start, &mut |out| {
        copy(stored, range.clone(), out, &mut |_| Ok(()))
    })
}

/// A module whose rows are stored as columns, in the type that they have there.
fn add_columns(
    shards: &mut Shards<'_>,
    module: &Module,
    weights: &Weights,
    encoding: Encoding,
) -> Result<(), ExportError> {
    let (rows, width) = (module.reader(weights)?, module.in_features);
    let (mut row, mut bytes) = (vec![0.0; width], Vec::new());
    for at in 0..module.out_features {
        rows.read(at, &mut row)?;
        // What was read from fewer bits is written to them exactly.
        match encoding {
            Encoding::F16 => bytes.extend(row.iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes())),
            Encoding::F32 => bytes.extend(row.iter().flat_map(|x| x.to_le_bytes())),
            _ => bytes.extend(row.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes())),
        }
    }
    let shape = [module.out_features, width];
    let name = format!("{}.weight", module.name);
    shards.add(&name, encoding.name(), &shape, bytes.len() as u64, &mut |out| out.put(&bytes))
}

/// A name, and bytes.
type Bias = (String, Vec<u8>);

/// Biases of all experts in one tensor `[experts, rows]`, those of gate and up in turns, as tensors of each expert, as
/// their matrices are written.
fn biases_apart(stored: &StoredTensor<'_>) -> Result<Option<Vec<Bias>>, ExportError> {
    let parts: [Option<&str>; 2] = match stored.name.rsplit_once(".experts.") {
        Some((_, "gate_up_proj_bias")) => [Some("gate_proj"), Some("up_proj")],
        Some((_, "down_proj_bias")) => [Some("down_proj"), None],
        _ => return Ok(None),
    };
    let (Some((prefix, _)), &[experts, len]) = (stored.name.rsplit_once('.'), stored.shape) else { return Ok(None) };
    let (size, step) = (stored.encoding.block().bytes, parts.iter().flatten().count());
    let mut bytes = vec![0; stored.num_bytes as usize];
    stored.read(0, &mut bytes)?;
    let mut apart = Vec::with_capacity(step * experts);
    for (expert, all) in bytes.chunks_exact(len * size).enumerate() {
        for (first, part) in parts.iter().flatten().enumerate() {
            let own = all.chunks_exact(size).skip(first).step_by(step).flatten().copied().collect();
            apart.push((format!("{prefix}.{expert}.{part}.bias"), own));
        }
    }
    Ok(Some(apart))
}

/// Copies bytes of a tensor, and tells how many after each piece.
fn copy(
    stored: &StoredTensor<'_>,
    range: std::ops::Range<u64>,
    out: &mut Sink<'_>,
    copied: &mut dyn FnMut(u64) -> Result<(), ExportError>,
) -> Result<(), ExportError> {
    let mut bytes = vec![0; CHUNK_BYTES.min((range.end - range.start) as usize)];
    let mut at = range.start;
    while at < range.end {
        let piece = (range.end - at).min(CHUNK_BYTES as u64);
        let bytes = &mut bytes[..piece as usize];
        stored.read(at, bytes)?;
        out.put(bytes)?;
        at += piece;
        copied(piece)?;
    }
    Ok(())
}

/// Modules by what they became.
#[derive(Default)]
struct Groups {
    /// What was asked for.
    own: Vec<String>,
    /// Int8 among int4.
    raised: Vec<String>,
}

/// What `config.json` says about it. Where widths are mixed, every module is named.
fn quantization_config(class: WeightClass, ignore: &[String], groups: &Groups) -> Value {
    let config_groups = match groups.raised.is_empty() {
        true => json!({ "group_0": scheme(class, &["Linear".to_string()]) }),
        false => json!({ "group_0": scheme(class, &groups.own), "group_1": scheme(WeightClass::Int8, &groups.raised) }),
    };
    json!({
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "global_compression_ratio": null,
        "kv_cache_scheme": null,
        "ignore": ignore,
        "config_groups": config_groups,
    })
}

/// One way in which modules are quantized, and which.
fn scheme(class: WeightClass, targets: &[String]) -> Value {
    let (bits, observer) = if class == WeightClass::Int4 { (4, "mse") } else { (8, "minmax") };
    json!({
        "targets": targets,
        "weights": {
            "num_bits": bits, "type": "int", "symmetric": true, "strategy": "group", "group_size": group(class),
            "block_structure": null, "dynamic": false, "actorder": null, "observer": observer, "observer_kwargs": {},
        },
        "input_activations": null,
        "output_activations": null,
    })
}

/// `config.json` with one more field, its own text untouched: a float that is parsed and written again may not be the
/// same.
fn with_field(text: &str, quantization: &Value) -> String {
    let body = text.trim_end().strip_suffix('}').unwrap_or_default().trim_end();
    let quantization = serde_json::to_string_pretty(quantization).unwrap_or_default().replace('\n', "\n  ");
    format!("{body},\n  \"{FIELD}\": {quantization}\n}}\n")
}

/// Writes a small file.
fn put(directory: &Path, name: &str, bytes: &[u8]) -> Result<u64, ExportError> {
    let path = directory.join(name);
    let written = File::create_new(&path).and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()));
    written.map_err(|error| ExportError::io(&path, error))?;
    Ok(bytes.len() as u64)
}

/// Copies a file of the model, if it is there.
fn copy_file(checkpoint: &Checkpoint, name: &str, directory: &Path) -> Result<u64, ExportError> {
    let Some(file) = checkpoint.open_file(name)? else { return Ok(0) };
    if file.len() > Checkpoint::MAX_TEXT_BYTES {
        let limit = Checkpoint::MAX_TEXT_BYTES;
        return Err(LoadError::TooLarge { file: name.to_string(), bytes: file.len(), limit }.into());
    }
    put(directory, name, &file.read_vec(0, file.len() as usize)?)
}

/// Where a tensor's bytes go.
enum Sink<'s> {
    File(&'s mut BufWriter<File>, &'s Path),
    Memory(&'s mut Vec<u8>),
}

impl Sink<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), ExportError> {
        match self {
            Sink::File(file, path) => file.write_all(bytes).map_err(|error| ExportError::io(path, error)),
            Sink::Memory(memory) => {
                memory.extend_from_slice(bytes);
                Ok(())
            }
        }
    }
}

/// One `model.safetensors`, or numbered files and their index.
struct Shards<'d> {
    directory: &'d Path,
    header_bytes: u64,
    most_bytes: u64,
    /// Complete ones: tensors, and their bytes.
    finished: Vec<(Vec<String>, u64)>,
    open: Option<Shard>,
}

/// A file that tensors are added to.
struct Shard {
    path: PathBuf,
    file: BufWriter<File>,
    header: Map<String, Value>,
    /// Bytes of data so far.
    at: u64,
    /// Tensors of which a next one could not begin at a multiple of 8: name, type, shape, bytes.
    odd: Vec<(String, String, Vec<usize>, Vec<u8>)>,
}

impl<'d> Shards<'d> {
    fn new(directory: &'d Path, header_bytes: u64, most_bytes: u64) -> Shards<'d> {
        Shards { directory, header_bytes, most_bytes, finished: Vec::new(), open: None }
    }

    /// Adds a tensor; `write` gives its `len` bytes.
    fn add(
        &mut self,
        name: &str,
        dtype: &str,
        shape: &[usize],
        len: u64,
        write: &mut dyn FnMut(&mut Sink<'_>) -> Result<(), ExportError>,
    ) -> Result<(), ExportError> {
        let full =
            |shard: &Shard| shard.at + shard.odd_bytes() > 0 && shard.at + shard.odd_bytes() + len > self.most_bytes;
        if self.open.as_ref().is_some_and(full) {
            self.close()?;
        }
        let shard = match &mut self.open {
            Some(shard) => shard,
            None => {
                let path = part_path(self.directory, self.finished.len());
                self.open.insert(Shard::create(path, self.header_bytes)?)
            }
        };
        if len.is_multiple_of(8) {
            let path = shard.path.clone();
            write(&mut Sink::File(&mut shard.file, &path))?;
            shard.note(name, dtype, shape, len);
        } else {
            let mut bytes = Vec::new();
            write(&mut Sink::Memory(&mut bytes))?;
            shard.odd.push((name.to_string(), dtype.to_string(), shape.to_vec(), bytes));
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), ExportError> {
        if let Some(shard) = self.open.take() {
            self.finished.push(shard.finish(self.header_bytes)?);
        }
        Ok(())
    }

    /// Gives the files their names; returns the bytes of all.
    fn finish(mut self) -> Result<u64, ExportError> {
        self.close()?;
        let (count, mut map) = (self.finished.len(), Map::new());
        for (index, (tensors, _)) in self.finished.iter().enumerate() {
            let name = match count {
                1 => "model.safetensors".to_string(),
                _ => format!("model-{:05}-of-{count:05}.safetensors", index + 1),
            };
            let (from, to) = (part_path(self.directory, index), self.directory.join(&name));
            fs::rename(&from, &to).map_err(|error| ExportError::io(&to, error))?;
            map.extend(tensors.iter().map(|tensor| (tensor.clone(), Value::from(name.as_str()))));
        }
        let data: u64 = self.finished.iter().map(|(_, bytes)| bytes).sum();
        let mut bytes = data + count as u64 * (8 + self.header_bytes);
        if count > 1 {
            let index = json!({ "metadata": { "total_size": data }, "weight_map": map });
            let text = serde_json::to_string_pretty(&index).unwrap_or_default();
            bytes += put(self.directory, "model.safetensors.index.json", text.as_bytes())?;
        }
        Ok(bytes)
    }
}

/// A file's name until all are counted.
fn part_path(directory: &Path, index: usize) -> PathBuf {
    directory.join(format!("part-{index}"))
}

impl Shard {
    fn create(path: PathBuf, header_bytes: u64) -> Result<Shard, ExportError> {
        let created = File::create_new(&path).and_then(|file| {
            let mut file = BufWriter::with_capacity(CHUNK_BYTES, file);
            io::copy(&mut io::Read::take(io::repeat(b' '), 8 + header_bytes), &mut file)?;
            Ok(file)
        });
        let file = created.map_err(|error| ExportError::io(&path, error))?;
        Ok(Shard { path, file, header: Map::new(), at: 0, odd: Vec::new() })
    }

    fn odd_bytes(&self) -> u64 {
        self.odd.iter().map(|(.., bytes)| bytes.len() as u64).sum()
    }

    /// A tensor's entry in the header, after its bytes.
    fn note(&mut self, name: &str, dtype: &str, shape: &[usize], len: u64) {
        let entry = json!({ "dtype": dtype, "shape": shape, "data_offsets": [self.at, self.at + len] });
        self.header.insert(name.to_string(), entry);
        self.at += len;
    }

    /// Brings the file to the disk; returns its tensors and their bytes.
    fn finish(mut self, header_bytes: u64) -> Result<(Vec<String>, u64), ExportError> {
        let mut odd = std::mem::take(&mut self.odd);
        // By the sizes of their elements, so that each begins at a multiple of its size.
        odd.sort_by_key(|(name, _, shape, bytes)| {
            let elements = shape.iter().product::<usize>().max(1);
            (std::cmp::Reverse(bytes.len() / elements), name.clone())
        });
        let io = |error| ExportError::io(&self.path, error);
        for (name, dtype, shape, bytes) in odd {
            self.file.write_all(&bytes).map_err(io)?;
            let entry =
                json!({ "dtype": dtype, "shape": shape, "data_offsets": [self.at, self.at + bytes.len() as u64] });
            self.header.insert(name, entry);
            self.at += bytes.len() as u64;
        }
        let names = self.header.keys().cloned().collect();
        self.header.insert("__metadata__".to_string(), json!({ "format": "pt" }));
        let mut header = Value::Object(self.header).to_string().into_bytes();
        assert!(header.len() as u64 <= header_bytes, "room for the header was counted wrongly");
        header.resize(header_bytes as usize, b' ');
        let file = self.file.into_inner().map_err(|error| io(error.into_error()))?;
        let written = file.write_all_at(&header_bytes.to_le_bytes(), 0).and_then(|()| file.write_all_at(&header, 8));
        written.and_then(|()| file.sync_all()).map_err(io)?;
        Ok((names, self.at))
    }
}

#[cfg(test)]
mod tests {
    use testing::Scratch;

    use super::*;

    /// Files in a directory of this test's own: `(name, type, shape)` of tensors whose bytes are their index.
    fn sharded(name: &str, most_bytes: u64, tensors: &[(&str, &str, &[usize], u64)]) -> Scratch {
        let directory = Scratch::new(name);
        let mut shards = Shards::new(&directory, 1024, most_bytes);
        for (index, (name, dtype, shape, len)) in tensors.iter().enumerate() {
            shards.add(name, dtype, shape, *len, &mut |out| out.put(&vec![index as u8; *len as usize])).unwrap();
        }
        let bytes = shards.finish().unwrap();
        let files = directory.read_dir().unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
        assert_eq!(files.sum::<u64>(), bytes);
        directory
    }

    #[test]
    fn large_models_are_several_files_and_an_index() {
        let tensors: Vec<(String, &[usize])> = (0..5).map(|index| (format!("t{index}"), &[4usize, 4][..])).collect();
        let tensors: Vec<_> = tensors.iter().map(|(name, shape)| (name.as_str(), "F32", *shape, 64)).collect();
        let directory = sharded("several", 130, &tensors);
        let index: Value =
            serde_json::from_slice(&fs::read(directory.join("model.safetensors.index.json")).unwrap()).unwrap();
        assert_eq!(index["metadata"]["total_size"], 5 * 64);
        let files =
            ["t0", "t1", "t2", "t3", "t4"].map(|name| index["weight_map"][name].as_str().unwrap()[6..11].to_string());
        assert_eq!(files, ["00001", "00001", "00002", "00002", "00003"]);
        let checkpoint = Checkpoint::open(checkpoint::Source::Directory(directory.to_path_buf())).unwrap();
        fs::write(directory.join(CONFIG), "{}").unwrap();
        let weights = Weights::open(&checkpoint).unwrap();
        for (index, (name, ..)) in tensors.iter().enumerate() {
            let mut row = [0.0; 16];
            weights.tensor(name, &[4, 4]).unwrap().rows().unwrap().read(0, &mut row).unwrap();
            assert_eq!(row, [f32::from_le_bytes([index as u8; 4]); 16], "{name}");
        }
    }

    #[test]
    fn odd_sizes_move_to_the_end_where_each_fits() {
        let tensors: [(&str, &str, &[usize], u64); 6] = [
            ("bytes", "I8", &[3], 3),
            ("one", "F32", &[1], 4),
            ("whole", "F32", &[2], 8),
            ("empty", "F32", &[0, 4], 0),
            ("halves", "BF16", &[3], 6),
            ("scalar", "F32", &[], 4),
        ];
        let directory = sharded("odd", 1 << 20, &tensors);
        let bytes = fs::read(directory.join("model.safetensors")).unwrap();
        let header: Value = serde_json::from_slice(&bytes[8..8 + 1024]).unwrap();
        let offset = |name: &str| header[name]["data_offsets"][0].as_u64().unwrap();
        let offsets = ["whole", "one", "scalar", "halves", "bytes"].map(offset);
        assert_eq!(offsets, [0, 8, 12, 16, 22]);
        for (index, (name, ..)) in tensors.iter().enumerate().filter(|(_, tensor)| tensor.3 > 0) {
            assert_eq!(bytes[8 + 1024 + offset(name) as usize], index as u8, "{name}");
        }
        let checkpoint = Checkpoint::open(checkpoint::Source::Directory(directory.to_path_buf())).unwrap();
        assert!(Weights::open(&checkpoint).is_ok(), "our own strict reader takes it");
    }

    #[test]
    fn a_configuration_keeps_its_own_text() {
        let text = "{\n  \"rms_norm_eps\": 1e-05\n}\n";
        let with = with_field(text, &json!({ "bits": 8 }));
        assert_eq!(with, "{\n  \"rms_norm_eps\": 1e-05,\n  \"quantization_config\": {\n    \"bits\": 8\n  }\n}\n");
    }
}
