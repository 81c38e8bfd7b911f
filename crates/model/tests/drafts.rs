//! Drafters against torch: tiny ones in every layout, with the float32 logits that `oracle/drafts.py` recorded for
//! them. Demanded: in float32 a relative L2 error of at most 1e-5; in bf16 the best token of 99 rows in 100, and at most
//! 2e-2; tokens out of reach where the oracle has them. `Reference`, `Cpu` and a device elsewhere give the same bits.

use crate::common;
use crate::common::device;

use checkpoint::{Checkpoint, Source};
use common::*;
use device::Remote;
use kernels::{Backend, Float32, Reference, WeightClass};
use model::draft::{self, Feature, Features, Medusa};
use model::{Batch, Forward, LoadOptions, ModelConfig, Runner};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What torch said about one drafter.
struct Recorded {
    name: String,
    directory: PathBuf,
    kind: String,
    target: Checkpoint,
    tokens: Vec<u32>,
    /// Of the passes behind the first, what they read.
    chosen: Vec<u32>,
    /// Which rows are recorded; `[vocab_size]` each.
    rows: Vec<(usize, Vec<f32>)>,
}

fn data() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

fn recorded(name: &str) -> Recorded {
    let directory = data().join("drafts").join(name);
    let json: Value = serde_json::from_slice(&std::fs::read(directory.join("drafts.json")).unwrap()).unwrap();
    let numbers = |key: &str| -> Vec<u32> {
        json[key].as_array().unwrap().iter().map(|number| number.as_u64().unwrap() as u32).collect()
    };
    let bytes = std::fs::read(directory.join("drafts.f32")).unwrap();
    let logits: Vec<f32> = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let indices = numbers("rows");
    let rows = logits.chunks_exact(logits.len() / indices.len()).map(<[f32]>::to_vec);
    let target = match json["target"].as_str() {
        Some(target) => committed(target),
        None => Checkpoint::open(Source::Directory(directory.clone())).unwrap(),
    };
    Recorded {
        name: name.to_string(),
        kind: json["kind"].as_str().unwrap().to_string(),
        target,
        tokens: numbers("tokens"),
        chosen: numbers("chosen"),
        rows: indices.into_iter().map(|index| index as usize).zip(rows).collect(),
        directory,
    }
}

fn every_case() -> Vec<Recorded> {
    let entries = data().join("drafts").read_dir().expect("drafts are committed");
    let paths = entries.map(|entry| entry.unwrap().path()).filter(|path| path.join("drafts.json").is_file());
    let mut names: Vec<String> = paths.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    names.iter().map(|name| recorded(name)).collect()
}

fn table(len: usize) -> Vec<u32> {
    (0..len.div_ceil(BLOCK as usize) as u32).collect()
}

/// All rows of Medusa heads, head by head.
fn medusa_rows<B: Backend>(target: &mut Runner<B>, case: &Recorded) -> Vec<Vec<f32>> {
    let mut medusa = Medusa::load(&draft::open(&case.directory).unwrap(), target, None).unwrap();
    let (hidden, vocab) = (target.config().hidden_size, target.config().vocab_size);
    let mut batch = Batch::default();
    push(&mut batch, &case.tokens, 0..case.tokens.len(), &table(case.tokens.len()), Wanted::All);
    let ticket = target.launch(&batch).unwrap();
    let done = target.wait(ticket).unwrap();
    let mut rows = vec![0.0; case.tokens.len() * hidden];
    target.read_hidden(&done, 0..case.tokens.len(), &mut rows).unwrap();
    let heads = medusa.num_heads();
    medusa.propose(&rows, heads).unwrap();
    let mut all = Vec::new();
    for head in 0..heads {
        for row in 0..case.tokens.len() {
            let mut logits = vec![f32::NAN; vocab];
            medusa.read_logits(head, row, &mut logits).unwrap();
            all.push(logits);
        }
    }
    all
}

/// The rows of `tokens` as the target leaves them to a drafter.
fn tapped<B: Backend>(target: &mut Runner<B>, taps: &[usize], tokens: &[u32]) -> Vec<f32> {
    target.tap(taps).unwrap();
    let mut batch = Batch::default();
    push(&mut batch, tokens, 0..tokens.len(), &table(tokens.len()), Wanted::Last);
    let ticket = target.launch(&batch).unwrap();
    let done = target.wait(ticket).unwrap();
    let mut rows = vec![f32::NAN; tokens.len() * taps.len() * target.config().hidden_size];
    target.read_tapped(&done, 0..tokens.len(), &mut rows).unwrap();
    rows
}

/// All rows that a drafter gives: one for each token but the first, then those of a chain.
fn feature_rows<B: Backend>(target: &mut Runner<B>, case: &Recorded) -> Vec<Vec<f32>> {
    let mut drafter = Feature::load(&draft::open(&case.directory).unwrap(), target, None).unwrap();
    let (tokens, vocab) = (&case.tokens, target.config().vocab_size);
    let features = tapped(target, drafter.taps(), &tokens[..tokens.len() - 1]);
    let table = table(tokens.len() + case.chosen.len());
    let mut shifted = tokens[1..].to_vec();
    let mut batch = Batch::default();
    push(&mut batch, &shifted, 0..shifted.len(), &table, Wanted::All);
    drafter.forward(&batch, Features::Tapped(&features)).unwrap();
    let read = |drafter: &mut Feature, row| {
        let mut logits = vec![f32::NAN; vocab];
        drafter.read_logits(row, &mut logits).unwrap();
        logits
    };
    let mut all: Vec<Vec<f32>> = (0..shifted.len()).map(|row| read(&mut drafter, row)).collect();
    let mut own = vec![f32::NAN; drafter.hidden_size()];
    for (index, &token) in case.chosen.iter().enumerate() {
        let last = batch.logit_rows.len() - 1;
        drafter.read_hidden(last..last + 1, &mut own).unwrap();
        shifted.push(token);
        batch.clear();
        let position = tokens.len() - 1 + index;
        push(&mut batch, &shifted, position..position + 1, &table, Wanted::All);
        drafter.forward(&batch, Features::Own(&own)).unwrap();
        all.push(read(&mut drafter, 0));
    }
    all
}

fn all_rows<B: Backend>(backend: B, case: &Recorded) -> Vec<Vec<f32>> {
    let mut target = load(backend, &case.target, WeightClass::Bf16);
    match case.kind.as_str() {
        "medusa" => medusa_rows(&mut target, case),
        _ => feature_rows(&mut target, case),
    }
}

fn argmax(row: &[f32]) -> usize {
    (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap()
}

fn bits(rows: &[Vec<f32>]) -> Vec<u32> {
    rows.iter().flatten().map(|logit| logit.to_bits()).collect()
}

/// Relative L2 error of the rows that are recorded, and how many best tokens differ.
fn compared(case: &Recorded, rows: &[Vec<f32>]) -> (f64, usize) {
    let (mut flips, mut error, mut scale) = (0, 0.0, 0.0);
    for (index, want) in &case.rows {
        let row = &rows[*index];
        flips += usize::from(argmax(row) != argmax(want));
        for (&got, &want) in row.iter().zip(want) {
            assert_eq!(got.is_finite(), want.is_finite(), "{}: row {index}: other tokens are drafted", case.name);
            if want.is_finite() {
                error += f64::from(got - want).powi(2);
                scale += f64::from(want).powi(2);
            }
        }
    }
    ((error / scale).sqrt(), flips)
}

#[test]
fn every_layout_agrees_with_torch() {
    let cases = every_case();
    assert!(cases.len() >= 9, "{} drafters are committed", cases.len());
    for case in cases {
        let rows = all_rows(Reference::new(), &case);
        let (exact, flips) = compared(&case, &all_rows(Float32::new(Some(1)).unwrap(), &case));
        println!("{:20} in float32: relative L2 error {exact:.2e}", case.name);
        // Their target, in float16, holds more digits than the logits were computed from.
        let rounded = ["eagle3-bias", "medusa-own"].contains(&case.name.as_str());
        let most = if rounded { 1e-2 } else { 1e-5 };
        assert!(exact <= most && flips == 0, "{} in float32: {exact:.3e}, {flips} flips", case.name);
        let (error, flips) = compared(&case, &rows);
        let count = case.rows.len();
        println!("{:20} relative L2 error {error:.2e}, {flips} of {count} best tokens differ", case.name);
        // Of these prompts some tokens nearly go to another expert, and some states keep little.
        let target = ModelConfig::load(&case.target).unwrap();
        let is_delicate = target.experts.is_some() || target.state_numbers() > 0;
        let (most, most_flips) = if is_delicate { (8e-2, 5) } else { (2e-2, 1) };
        assert!(error <= most, "{}: relative L2 error {error:.3e}", case.name);
        assert!(flips * 100 <= most_flips * count, "{}: {flips} of {count} best tokens differ from torch's", case.name);
        let on_cpu = all_rows(cpu(None, 2), &case);
        assert_eq!(bits(&on_cpu), bits(&rows), "{}: Cpu and Reference differ", case.name);
        let elsewhere = all_rows(Remote::new(Reference::new()), &case);
        assert_eq!(bits(&elsewhere), bits(&rows), "{}: a device and Reference differ", case.name);
    }
}

/// What is looked at does not change, whatever is looked at.
#[test]
fn tapping_changes_no_bit() {
    for name in ["llama3", "gemma2", "mixtral", "granite"] {
        let mut model = load(cpu(None, 1), &committed(name), WeightClass::Int8);
        let tokens = random_tokens(5, 70, model.config().vocab_size);
        let plain = run_alone(&mut model, &tokens);
        let layers = model.config().num_layers;
        let mut all: Vec<usize> = (0..=layers).collect();
        all.push(1); // one twice
        for taps in [vec![0], vec![layers], all, Vec::new()] {
            model.tap(&taps).unwrap();
            assert_eq!(bits(&run_alone(&mut model, &tokens)), bits(&plain), "{name} with rows after {taps:?}");
        }
    }
}

/// A tapped row is the row's own: the same in a chunk, beside others, with or without logits; after the last layer it
/// is what the final norm reads.
#[test]
fn tapped_rows_are_the_rows() {
    for name in ["llama3", "gemma2", "qwen3-moe"] {
        let mut model = load(cpu(None, 2), &committed(name), WeightClass::Bf16);
        let (layers, hidden) = (model.config().num_layers, model.config().hidden_size);
        let tokens = random_tokens(9, 40, model.config().vocab_size);
        let taps = [layers, 1];
        let whole = tapped(&mut model, &taps, &tokens);
        let mut batch = Batch::default();
        push(&mut batch, &random_tokens(10, 20, model.config().vocab_size), 0..20, &[8], Wanted::All);
        push(&mut batch, &tokens, 0..30, &[4, 5], Wanted::None);
        drop(model.launch(&batch).unwrap());
        batch.clear();
        push(&mut batch, &tokens, 30..40, &[4, 5], Wanted::None);
        let ticket = model.launch(&batch).unwrap();
        let done = model.wait(ticket).unwrap();
        let mut part = vec![f32::NAN; 3 * taps.len() * hidden];
        model.read_tapped(&done, 5..8, &mut part).unwrap();
        let row = taps.len() * hidden;
        assert_eq!(part, whole[35 * row..38 * row], "{name}");
        let once: Vec<f32> = whole.chunks_exact(row).flat_map(|row| &row[..hidden]).copied().collect();
        assert_eq!(tapped(&mut model, &[layers], &tokens), once, "{name}: one tap, the same rows");
    }
}

/// A drafter's row depends on its own history alone, as a model's does: chunks and company change no bit. Its cache is
/// moved as the target's is.
#[test]
fn a_drafters_rows_are_its_own() {
    for name in ["eagle3-midlayer", "eagle3-speculators", "mimo", "deepseek-v3", "qwen3.5"] {
        let case = recorded(name);
        let mut target = load(cpu(None, 2), &case.target, WeightClass::Bf16);
        let files = draft::open(&case.directory).unwrap();
        let mut drafter = Feature::load(&files, &target, None).unwrap();
        let (tokens, vocab) = (&case.tokens, target.config().vocab_size);
        let features = tapped(&mut target, drafter.taps(), &tokens[..40]);
        let width = features.len() / 40;
        let last = |drafter: &mut Feature| {
            let mut logits = vec![f32::NAN; vocab];
            drafter.read_logits(0, &mut logits).unwrap();
            bits(&[logits])
        };
        let mut batch = Batch::default();
        push(&mut batch, &tokens[1..], 0..40, &[0, 1], Wanted::Last);
        drafter.forward(&batch, Features::Tapped(&features)).unwrap();
        let alone = last(&mut drafter);

        batch.clear();
        push(&mut batch, &tokens[1..], 0..33, &[4, 5], Wanted::None);
        drafter.forward(&batch, Features::Tapped(&features[..33 * width])).unwrap();
        drafter.copy_blocks(&[(4, 6)]);
        let mut buffer = target.host_buffer(vec![0; drafter.block_bytes()]);
        let block = Arc::get_mut(&mut buffer).unwrap();
        drafter.save_block(5, block);
        drafter.load_block(block, 9);
        batch.clear();
        push(&mut batch, &tokens[1..], 33..40, &[6, 9], Wanted::Last);
        push(&mut batch, &tokens[1..], 0..5, &[12], Wanted::Last);
        let together = [&features[33 * width..], &features[..5 * width]].concat();
        drafter.forward(&batch, Features::Tapped(&together)).unwrap();
        assert_eq!(last(&mut drafter), alone, "{name}");
    }
}

/// A pass is asked for, and the host goes on: it blocks for what it reads.
#[test]
fn a_drafters_pass_waits_for_nothing() {
    let case = recorded("eagle3-speculators");
    let mut target = load(Remote::new(Reference::new()), &case.target, WeightClass::Bf16);
    let mut drafter = Feature::load(&draft::open(&case.directory).unwrap(), &target, None).unwrap();
    let features = tapped(&mut target, drafter.taps(), &case.tokens[..8]);
    let waits = target.backend().waits();
    let mut batch = Batch::default();
    push(&mut batch, &case.tokens[1..], 0..8, &[0], Wanted::Last);
    let before = waits.load(Ordering::Relaxed);
    drafter.forward(&batch, Features::Tapped(&features)).unwrap();
    assert_eq!(waits.load(Ordering::Relaxed), before, "for a pass");
    let (mut own, mut logits) = (vec![0.0; drafter.hidden_size()], vec![0.0; target.config().vocab_size]);
    drafter.read_hidden(0..1, &mut own).unwrap();
    drafter.read_logits(0, &mut logits).unwrap();
    assert_eq!(waits.load(Ordering::Relaxed), before + 2, "for a row and its logits");
}

/// More logits of Medusa heads than are held at a time, in any order.
#[test]
fn medusa_heads_are_read_in_any_order() {
    for name in ["medusa", "medusa-own", "medusa-map", "medusa-one"] {
        let case = recorded(name);
        let all = all_rows(cpu(None, 1), &case);
        let few = LoadOptions { max_logit_rows: 5, ..options(WeightClass::Bf16) };
        let mut target = model::load(cpu(None, 1), &case.target, &few, &mut |_| {}).unwrap();
        let (hidden, vocab) = (target.config().hidden_size, target.config().vocab_size);
        let mut medusa = Medusa::load(&draft::open(&case.directory).unwrap(), &target, None).unwrap();
        let mut batch = Batch::default();
        push(&mut batch, &case.tokens, 0..48, &[0, 1], Wanted::All);
        batch.logit_rows = vec![40, 3, 7];
        let ticket = target.launch(&batch).unwrap();
        let done = target.wait(ticket).unwrap();
        let mut rows = vec![0.0; 3 * hidden];
        target.read_hidden(&done, 0..3, &mut rows).unwrap();
        let mut logits = vec![0.0; vocab];
        for heads in (1..=medusa.num_heads()).rev() {
            medusa.propose(&rows, heads).unwrap();
            for (head, row) in [(heads - 1, 2), (0, 0), (heads - 1, 1), (0, 2)] {
                medusa.read_logits(head, row, &mut logits).unwrap();
                let position = batch.logit_rows[row] as usize;
                assert_eq!(bits(&[logits.clone()]), bits(&[all[head * 48 + position].clone()]), "{name}: head {head}");
            }
        }
        medusa.propose(&[], 1).unwrap(); // no row decodes
        medusa.propose(&rows, 0).unwrap(); // no row drafts
    }
}

#[test]
#[should_panic(expected = "row 0 of head 1 was not proposed")]
fn a_head_that_was_not_asked_has_no_logits() {
    let target = load(Reference::new(), &committed("llama2"), WeightClass::Bf16);
    let files = draft::open(&recorded("medusa-own").directory).unwrap();
    let mut medusa = Medusa::load(&files, &target, None).unwrap();
    let mut logits = vec![0.0; target.config().vocab_size];
    medusa.propose(&vec![0.5; target.config().hidden_size], 2).unwrap();
    medusa.propose(&vec![0.5; target.config().hidden_size], 1).unwrap();
    medusa.read_logits(1, 0, &mut logits).unwrap();
}

/// Without the directory's name: one file, named, and one that has to be found.
#[test]
fn a_single_file_is_opened_by_its_name_or_found() {
    let directory = recorded("medusa").directory;
    for path in [directory.clone(), directory.join("medusa_lm_head.safetensors")] {
        let files = draft::open(&path).unwrap();
        assert!(Medusa::load(&files, &load(Reference::new(), &committed("gemma2"), WeightClass::Bf16), None).is_ok());
    }
    assert!(draft::open(Path::new("/nowhere")).is_err());
}
