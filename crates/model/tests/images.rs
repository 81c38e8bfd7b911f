//! The packed image on disk: the second load copies what the first one packed, and an image that does not fit is as
//! good as none.

use crate::common;

use checkpoint::{Checkpoint, Source};
use common::*;
use kernels::WeightClass;
use model::{LoadOptions, Runner};
use std::fs;
use std::path::{Path, PathBuf};
use testing::Scratch;

/// A copy of a committed checkpoint, whose files can be changed.
fn copy_of(name: &str) -> (Scratch, Checkpoint) {
    let copy = Scratch::copy_of(committed(name).path().unwrap(), "images");
    let checkpoint = Checkpoint::open(Source::Directory(copy.to_path_buf())).unwrap();
    (copy, checkpoint)
}

/// Loads, writes the image if one is wanted, and says whether.
fn load_with(images: &Path, checkpoint: &Checkpoint, class: WeightClass) -> (Runner<kernels::Cpu>, bool) {
    let options = LoadOptions { image_directory: Some(images.to_path_buf()), ..options(class) };
    let mut runner = model::load(cpu(None, 1), checkpoint, &options, &mut |_| {}).unwrap();
    let writer = runner.image_writer();
    let packed = writer.is_some();
    if let Some(writer) = writer {
        writer.write().unwrap();
    }
    (runner, packed)
}

fn bits(runner: &mut Runner<kernels::Cpu>) -> Vec<Vec<u32>> {
    let logits = run_alone(runner, &[1, 5, 9, 2, 40, 7, 7, 3]);
    logits.iter().map(|row| row.iter().map(|logit| logit.to_bits()).collect()).collect()
}

/// The one file in a directory.
fn only_file(directory: &Path) -> PathBuf {
    let files: Vec<PathBuf> = directory.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].clone()
}

#[test]
fn the_second_load_copies_and_gives_the_same_bits() {
    for class in [WeightClass::Bf16, WeightClass::Int8, WeightClass::Int4] {
        let place = Scratch::new(class.name());
        let (_copy, checkpoint) = copy_of("llama3");
        let (mut first, packed) = load_with(&place.join("images"), &checkpoint, class);
        assert!(packed, "there was no image yet");
        let (mut second, packed) = load_with(&place.join("images"), &checkpoint, class);
        assert!(!packed, "the image was not used");
        assert_eq!(bits(&mut first), bits(&mut second), "{class:?}");
    }
}

#[test]
fn an_image_that_does_not_fit_is_replaced() {
    let place = Scratch::new("fit");
    let (_copy, checkpoint) = copy_of("llama3");
    let class = WeightClass::Int8;
    let (mut first, _) = load_with(&place.join("images"), &checkpoint, class);
    let want = bits(&mut first);
    let image = only_file(&place.join("images"));
    let whole = fs::read(&image).unwrap();

    let mut flipped = whole.clone();
    let at = whole.len() - 60; // within the index
    flipped[at] ^= 1;
    let damages: [(&str, Vec<u8>); 5] = [
        ("empty", Vec::new()),
        ("a few bytes", whole[..20].to_vec()),
        ("cut in the middle", whole[..whole.len() / 2].to_vec()),
        ("cut by a byte", whole[..whole.len() - 1].to_vec()),
        ("a bit of the index", flipped),
    ];
    for (damage, bytes) in damages {
        fs::write(&image, bytes).unwrap();
        let (mut runner, packed) = load_with(&place.join("images"), &checkpoint, class);
        assert!(packed, "{damage}: a broken image was used");
        assert_eq!(bits(&mut runner), want, "{damage}");
        assert_eq!(fs::read(only_file(&place.join("images"))).unwrap(), whole, "{damage}: it was not replaced");
    }
}

/// The line about a damaged image.
fn complaint(runner: &Runner<kernels::Cpu>) -> Option<String> {
    runner.notices().iter().find(|notice| notice.contains("are damaged")).cloned()
}

/// Whether a byte of an image lies between matrices, where nothing is read.
fn is_padding(image: &[u8], at: usize) -> bool {
    let trailer = image.len() - 48;
    let index_len = u64::from_le_bytes(image[trailer..trailer + 8].try_into().unwrap()) as usize;
    let index: serde_json::Value = serde_json::from_slice(&image[trailer - index_len..trailer]).unwrap();
    let number = |record: &serde_json::Value, name: &str| record[name].as_u64().unwrap() as usize;
    let inside = |record: &serde_json::Value| {
        (number(record, "offset")..number(record, "offset") + number(record, "bytes")).contains(&at)
    };
    at < trailer - index_len && !index["matrices"].as_array().unwrap().iter().any(inside)
}

#[test]
fn no_flipped_bit_is_silent() {
    let flips = if testing::is_long() { 350 } else { 120 };
    let mut noticed = 0;
    for (class, checkpoint) in
        [(WeightClass::Bf16, "llama3"), (WeightClass::Int8, "qwen2"), (WeightClass::Int4, "mixtral")]
    {
        let place = Scratch::new(&format!("flips-{}", class.name()));
        let (_copy, checkpoint) = copy_of(checkpoint);
        let (mut first, _) = load_with(&place.join("images"), &checkpoint, class);
        let (want, image) = (bits(&mut first), only_file(&place.join("images")));
        let whole = fs::read(&image).unwrap();
        let options = LoadOptions { image_directory: Some(place.join("images")), ..options(class) };
        for flip in 0..flips {
            // Evenly over the file, the last ones in its trailer byte by byte.
            let at = match flips - flip {
                from_end @ ..=50 => whole.len() - from_end,
                _ => flip * whole.len() / flips,
            };
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (flip % 8);
            fs::write(&image, bytes).unwrap();
            let mut runner = model::load(cpu(None, 1 + flip % 2), &checkpoint, &options, &mut |_| {}).unwrap();
            let told = complaint(&runner);
            assert_eq!(bits(&mut runner), want, "{class:?}: byte {at}, bit {}: other answers", flip % 8);
            // Behind the magic's seventh byte stands the form: with another one it is another version's image.
            let harmless = is_padding(&whole, at) || at == whole.len() - 1;
            assert_eq!(told.is_none(), harmless, "{class:?}: byte {at} of {}: {told:?}", whole.len());
            let writer = runner.image_writer();
            assert_eq!(writer.is_some(), told.is_some() || at == whole.len() - 1);
            if let Some(told) = told {
                noticed += 1;
                assert!(told.contains(image.to_str().unwrap()));
            }
            if let Some(writer) = writer.filter(|_| flip % 16 == 0) {
                writer.write().unwrap();
                assert_eq!(fs::read(&image).unwrap(), whole, "{class:?}: byte {at}: what replaced it");
            }
        }
    }
    assert!(noticed > 2 * flips, "{noticed} flips met something that is read");
}

#[test]
fn what_is_no_file_is_no_image() {
    let place = Scratch::new("kinds");
    let (_copy, checkpoint) = copy_of("llama3");
    let (mut first, _) = load_with(&place.join("images"), &checkpoint, WeightClass::Int8);
    let image = only_file(&place.join("images"));
    let pipe = |path: &Path| assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    let zeros = |path: &Path| std::os::unix::fs::symlink("/dev/zero", path).unwrap();
    for put in [&pipe as &dyn Fn(&Path), &zeros, &|path: &Path| fs::create_dir(path).unwrap()] {
        fs::remove_file(&image).unwrap();
        put(&image);
        let options = LoadOptions { image_directory: Some(place.join("images")), ..options(WeightClass::Int8) };
        let mut runner = model::load(cpu(None, 1), &checkpoint, &options, &mut |_| {}).unwrap();
        assert_eq!(bits(&mut runner), bits(&mut first));
        let told = complaint(&runner).expect("there is a complaint");
        assert!(told.contains("not a regular file"), "{told}");
        if image.is_dir() {
            break; // nothing replaces a directory
        }
        runner.image_writer().unwrap().write().unwrap();
        assert!(!load_with(&place.join("images"), &checkpoint, WeightClass::Int8).1, "the image was not used");
    }
}

#[test]
fn a_replaced_file_is_noticed_whatever_its_size_and_time() {
    let place = Scratch::new("replaced");
    let (_copy, checkpoint) = copy_of("llama3");
    let (mut before, _) = load_with(&place.join("images"), &checkpoint, WeightClass::Bf16);
    let weights = checkpoint.path().unwrap().join("model.safetensors");
    let (mut bytes, was) = (fs::read(&weights).unwrap(), weights.metadata().unwrap());
    // One bit, written as a program that wants to hide it would.
    let len = bytes.len();
    bytes[len - 3000] ^= 0x40;
    fs::write(&weights, bytes).unwrap();
    let times = fs::FileTimes::new().set_modified(was.modified().unwrap()).set_accessed(was.accessed().unwrap());
    fs::File::options().write(true).open(&weights).unwrap().set_times(times).unwrap();
    let now = weights.metadata().unwrap();
    assert_eq!((now.len(), now.modified().unwrap()), (was.len(), was.modified().unwrap()));
    let (mut after, packed) = load_with(&place.join("images"), &checkpoint, WeightClass::Bf16);
    assert!(packed, "the old image was used for new weights");
    assert_ne!(bits(&mut before), bits(&mut after));
    assert!(complaint(&after).is_none(), "the image was not damaged");
}

#[test]
fn a_changed_checkpoint_is_packed_anew() {
    let place = Scratch::new("changed");
    let (_copy, checkpoint) = copy_of("llama3");
    let (mut before, _) = load_with(&place.join("images"), &checkpoint, WeightClass::Bf16);
    // The same size and other numbers: only the time of change tells.
    let weights = checkpoint.path().unwrap().join("model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    let len = bytes.len();
    bytes[len - 2000..].iter_mut().step_by(2).for_each(|low| *low ^= 0x55);
    fs::write(&weights, bytes).unwrap();
    let (mut after, packed) = load_with(&place.join("images"), &checkpoint, WeightClass::Bf16);
    assert!(packed, "the old image was used for new weights");
    assert_ne!(bits(&mut before), bits(&mut after));
    only_file(&place.join("images")); // the new image took the old one's place
}

#[test]
fn another_configuration_is_packed_anew() {
    let place = Scratch::new("configuration");
    let (_copy, checkpoint) = copy_of("llama3");
    load_with(&place.join("images"), &checkpoint, WeightClass::Bf16);
    let config = checkpoint.path().unwrap().join("config.json");
    let text = fs::read_to_string(&config).unwrap().replacen('{', "{\"says_how_codes_are_read\": 2,", 1);
    fs::write(&config, text).unwrap();
    assert!(
        load_with(&place.join("images"), &checkpoint, WeightClass::Bf16).1,
        "the image is of another configuration"
    );
}

#[test]
fn where_no_image_can_be_written_the_model_still_loads() {
    let place = Scratch::new("nowhere");
    let (_copy, checkpoint) = copy_of("llama3");
    fs::write(place.join("images"), "a file where a directory should be").unwrap();
    let options = LoadOptions { image_directory: Some(place.join("images")), ..options(WeightClass::Int8) };
    let mut runner = model::load(cpu(None, 1), &checkpoint, &options, &mut |_| {}).unwrap();
    let written = runner.image_writer().expect("there was no image").write();
    assert!(written.is_err());
    assert_eq!(bits(&mut runner), bits(&mut load(cpu(None, 1), &checkpoint, WeightClass::Int8)));
}
