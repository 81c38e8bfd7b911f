//! Experts that are read when rows go through them: what is in memory does not show in a bit.

use crate::common;

use checkpoint::{Checkpoint, Source};
use common::*;
use kernels::{Cpu, Reference, WeightClass};
use model::{ExpertMemory, ExpertReadTotals, Forward, LoadOptions, ModelConfig, Runner};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;
use testing::Scratch;

const TOKENS: [u32; 8] = [1, 5, 9, 2, 40, 7, 7, 3];

fn with_memory(bytes: u64, options: LoadOptions) -> LoadOptions {
    // Each look at this clock is a millisecond later than the one before.
    fn now() -> Duration {
        static LOOKS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        Duration::from_millis(LOOKS.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
    }
    LoadOptions { expert_memory: Some(ExpertMemory { bytes, now }), ..options }
}

fn load(checkpoint: &Checkpoint, options: &LoadOptions) -> Runner<Cpu> {
    model::load(cpu(None, 2), checkpoint, options, &mut |_| {}).unwrap()
}

fn bits(runner: &mut impl Forward) -> Vec<Vec<u32>> {
    let logits = run_alone(runner, &TOKENS);
    logits.iter().map(|row| row.iter().map(|logit| logit.to_bits()).collect()).collect()
}

#[test]
fn any_memory_for_experts_gives_the_same_bits() {
    let mut tried = 0;
    for (name, path) in committed_checkpoints() {
        let checkpoint = Checkpoint::open(Source::Directory(path)).unwrap();
        if ModelConfig::load(&checkpoint).unwrap().experts.is_none() {
            continue;
        }
        tried += 1;
        for (class, as_stored) in [(WeightClass::Int8, false), (WeightClass::Bf16, true)] {
            let options = || LoadOptions { as_stored, ..options(class) };
            let mut whole = load(&checkpoint, &options());
            let want = bits(&mut whole);
            assert_eq!(whole.expert_reads(), ExpertReadTotals::default(), "{name}");
            let all = whole.expert_bytes() as u64;
            for memory in [0, all / 3, all / 2, all] {
                let mut part = load(&checkpoint, &with_memory(memory, options()));
                let case = format!("{name} {}: {memory} of {all}", class.name());
                assert_eq!(part.weight_bytes(), whole.weight_bytes(), "{case}");
                assert_eq!(part.expert_bytes() as u64, all, "{case}");
                for _ in 0..3 {
                    assert_eq!(bits(&mut part), want, "{case}");
                }
                let held = all - (whole.resident_weight_bytes() - part.resident_weight_bytes()) as u64;
                assert!(held <= memory, "{case}: {held} bytes of experts are in memory");
                let reads = part.expert_reads();
                assert_eq!(reads.count == 0, memory == all, "{case}: {reads:?}");
                // One look before an expert is read, and one behind.
                assert!(reads.took >= Duration::from_millis(reads.count), "{case}: {reads:?}");
                assert_eq!(part.expert_reads(), ExpertReadTotals::default(), "{case}: they are told once");
            }
        }
    }
    assert!(tried >= 20, "{tried} checkpoints with experts");
}

#[test]
fn the_definition_reads_experts_too() {
    let checkpoint = committed("qwen3-moe");
    let mut whole = model::load(Reference::default(), &checkpoint, &options(WeightClass::Int8), &mut |_| {}).unwrap();
    let options = with_memory(0, options(WeightClass::Int8));
    let mut part = model::load(Reference::default(), &checkpoint, &options, &mut |_| {}).unwrap();
    assert_eq!(bits(&mut part), bits(&mut whole));
    assert!(part.expert_reads().count > 0);
}

#[test]
fn a_model_without_experts_needs_no_memory_for_them() {
    let options = with_memory(1 << 20, options(WeightClass::Bf16));
    let error = model::load(cpu(None, 1), &committed("llama3"), &options, &mut |_| {}).err().expect("it has none");
    assert!(error.to_string().contains("expert_memory"), "{error}");
}

/// The packed image of a directory.
fn image_in(directory: &Path) -> Vec<u8> {
    let files: Vec<_> = directory.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    fs::read(&files[0]).unwrap()
}

#[test]
fn the_first_load_writes_an_image_and_keeps_nothing_for_it() {
    for class in [WeightClass::Bf16, WeightClass::Int8, WeightClass::Int4] {
        let place = Scratch::new(&format!("experts-{}", class.name()));
        let [usual, open] = ["usual", "open"].map(|name| place.join(name));
        let copy = Scratch::copy_of(committed("mixtral").path().unwrap(), "experts");
        let checkpoint = Checkpoint::open(Source::Directory(copy.to_path_buf())).unwrap();
        let options_in = |images: &Path| LoadOptions { image_directory: Some(images.to_path_buf()), ..options(class) };
        let mut whole = load(&checkpoint, &options_in(&usual));
        whole.image_writer().expect("there was none").write().unwrap();
        let want = bits(&mut whole);

        let options = with_memory(0, options_in(&open));
        let mut first = load(&checkpoint, &options);
        assert!(first.image_writer().is_none(), "it is written already");
        assert!(image_in(&open) == image_in(&usual), "{class:?}: another image");
        assert_eq!(bits(&mut first), want, "{class:?}");
        let mut second = load(&checkpoint, &options);
        assert_eq!(bits(&mut second), want, "{class:?}");
        assert_eq!(second.notices(), [""; 0]);

        // An expert of the image is damaged, and then gone: it is packed again.
        let name = open.read_dir().unwrap().next().unwrap().unwrap().path();
        let mut image = fs::read(&name).unwrap();
        let middle = image.len() / 2;
        image[middle..middle + 8192].iter_mut().for_each(|byte| *byte ^= 1);
        fs::write(&name, &image).unwrap();
        assert_eq!(bits(&mut second), want, "{class:?}: damaged");
        fs::write(&name, b"").unwrap();
        assert_eq!(bits(&mut second), want, "{class:?}: gone");
        let mut third = load(&checkpoint, &options);
        assert!(third.notices().iter().any(|notice| notice.contains("damaged")), "{:?}", third.notices());
        assert_eq!(bits(&mut third), want, "{class:?}");
        assert!(image_in(&open) == image_in(&usual), "{class:?}: the next start has a whole one");
    }
}

#[test]
fn an_expert_that_cannot_be_read_fails_its_pass_and_no_other() {
    let copy = Scratch::copy_of(committed("qwen3-moe").path().unwrap(), "gone");
    let checkpoint = Checkpoint::open(Source::Directory(copy.to_path_buf())).unwrap();
    let mut runner = load(&checkpoint, &with_memory(0, options(WeightClass::Int8)));
    let want = bits(&mut runner);
    let file = copy.join("model.safetensors");
    let whole = fs::read(&file).unwrap();
    let written = fs::metadata(&file).unwrap().modified().unwrap();
    fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(whole.len() as u64 / 2).unwrap();
    let failed = catch_unwind(AssertUnwindSafe(|| bits(&mut runner))).expect_err("half of its file is gone");
    let message = failed.downcast::<String>().expect("a message");
    assert!(message.starts_with("an expert cannot be read: ") && message.contains("model.safetensors"), "{message}");
    fs::write(&file, &whole).unwrap();
    fs::OpenOptions::new().write(true).open(&file).unwrap().set_modified(written).unwrap();
    assert_eq!(bits(&mut runner), want);
    // Other weights at the same places would be other answers.
    fs::write(&file, &whole).unwrap();
    let failed = catch_unwind(AssertUnwindSafe(|| bits(&mut runner))).expect_err("it was written to");
    let message = failed.downcast::<String>().expect("a message");
    assert!(message.contains("was written to since it was opened"), "{message}");
}
