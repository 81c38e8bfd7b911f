//! The packed image on disk: the second load copies what the first one packed, and an image that does not fit is as good
//! as none.

mod common;

use common::*;
use kernels::WeightClass;
use model::{Checkpoint, LoadOptions, Runner, Source};
use std::fs;
use std::path::{Path, PathBuf};

/// A directory of this test's own, empty, removed at the end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path = std::env::temp_dir().join(format!("twostroke-images-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path); // what an earlier run of the same process id left
        fs::create_dir_all(&path).unwrap();
        Place(path)
    }

    /// A copy of a committed checkpoint, whose files can be changed.
    fn checkpoint(&self, name: &str) -> Checkpoint {
        let copy = self.0.join("model");
        fs::create_dir_all(&copy).unwrap();
        for entry in committed(name).path().unwrap().read_dir().unwrap().flatten() {
            fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
        }
        Checkpoint::open(Source::Directory(copy)).unwrap()
    }

    fn images(&self) -> PathBuf {
        self.0.join("images")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // the temporary directory is cleaned by others too
    }
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
        let place = Place::new(class.name());
        let checkpoint = place.checkpoint("llama3");
        let (mut first, packed) = load_with(&place.images(), &checkpoint, class);
        assert!(packed, "there was no image yet");
        let (mut second, packed) = load_with(&place.images(), &checkpoint, class);
        assert!(!packed, "the image was not used");
        assert_eq!(bits(&mut first), bits(&mut second), "{class:?}");
    }
}

#[test]
fn an_image_that_does_not_fit_is_replaced() {
    let place = Place::new("fit");
    let checkpoint = place.checkpoint("llama3");
    let class = WeightClass::Int8;
    let (mut first, _) = load_with(&place.images(), &checkpoint, class);
    let want = bits(&mut first);
    let image = only_file(&place.images());
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
        let (mut runner, packed) = load_with(&place.images(), &checkpoint, class);
        assert!(packed, "{damage}: a broken image was used");
        assert_eq!(bits(&mut runner), want, "{damage}");
        assert_eq!(fs::read(only_file(&place.images())).unwrap(), whole, "{damage}: it was not replaced");
    }
}

#[test]
fn a_changed_checkpoint_is_packed_anew() {
    let place = Place::new("changed");
    let checkpoint = place.checkpoint("llama3");
    let (mut before, _) = load_with(&place.images(), &checkpoint, WeightClass::Bf16);
    // The same size and other numbers: only the time of change tells.
    let weights = checkpoint.path().unwrap().join("model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    let len = bytes.len();
    bytes[len - 2000..].iter_mut().step_by(2).for_each(|low| *low ^= 0x55);
    fs::write(&weights, bytes).unwrap();
    let (mut after, packed) = load_with(&place.images(), &checkpoint, WeightClass::Bf16);
    assert!(packed, "the old image was used for new weights");
    assert_ne!(bits(&mut before), bits(&mut after));
    only_file(&place.images()); // the new image took the old one's place
}

#[test]
fn another_configuration_is_packed_anew() {
    let place = Place::new("configuration");
    let checkpoint = place.checkpoint("llama3");
    load_with(&place.images(), &checkpoint, WeightClass::Bf16);
    let config = checkpoint.path().unwrap().join("config.json");
    let text = fs::read_to_string(&config).unwrap().replacen('{', "{\"says_how_codes_are_read\": 2,", 1);
    fs::write(&config, text).unwrap();
    assert!(load_with(&place.images(), &checkpoint, WeightClass::Bf16).1, "the image is of another configuration");
}

#[test]
fn where_no_image_can_be_written_the_model_still_loads() {
    let place = Place::new("nowhere");
    let checkpoint = place.checkpoint("llama3");
    fs::write(place.images(), "a file where a directory should be").unwrap();
    let options = LoadOptions { image_directory: Some(place.images()), ..options(WeightClass::Int8) };
    let mut runner = model::load(cpu(None, 1), &checkpoint, &options, &mut |_| {}).unwrap();
    let written = runner.image_writer().expect("there was no image").write();
    assert!(written.is_err());
    assert_eq!(bits(&mut runner), bits(&mut load(cpu(None, 1), &checkpoint, WeightClass::Int8)));
}
