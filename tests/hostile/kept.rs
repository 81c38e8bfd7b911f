//! What earlier starts have kept: packed weights, costs, limits. Whatever is wrong with it, the answer is that without.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::base::{Base, PATIENCE, Served, image};
use crate::case::{Case, FILE, Outcome, Scratch, Spent};
use testing::{Dice, mutate};

const IMAGE: &str = "packed image";
const COST: &str = "cost file";

/// A cache of the case's own, with the image in it and without costs.
fn cache(base: &Base, scratch: &Scratch) -> (PathBuf, PathBuf) {
    let good = image(&base.cache).expect("it was kept");
    let cache = scratch.path("cache");
    let own = cache.join("twostroke/packed").join(good.file_name().expect("it has a name"));
    fs::create_dir_all(own.parent().expect("it has one")).expect("it can be written");
    fs::copy(good, &own).expect("room for it");
    (cache, own)
}

/// The model served with this cache answers as it did without.
fn same(base: &Base, model: &Path, scratch: &Scratch, cache: &Path) -> Outcome {
    let begin = Instant::now();
    let (mut mib, bound) = (0, FILE.mib(600));
    let result = Served::start(model, scratch, cache, PATIENCE).and_then(|served| {
        let answer = served.certain();
        mib = served.peak_mib();
        match answer? == base.certain {
            true => Ok(()),
            false => Err("another answer, and not a word".into()),
        }
    });
    let spent = Spent { cpu: Duration::ZERO, wall: begin.elapsed(), mib };
    let _ = fs::remove_dir_all(cache); // large, and its recipe is the case
    Outcome::of(result.and_then(|()| spent.within(&bound)), spent)
}

/// One bit of an image, or a few of its bytes, from a seed.
pub(crate) fn mutated(base: &Arc<Base>, seeds: std::ops::Range<u64>) -> Vec<Case> {
    let mut cases = Vec::new();
    for seed in seeds {
        let own = Arc::clone(base);
        let check = move |scratch: &Scratch| {
            let (cache, path) = cache(&own, scratch);
            let mut bytes = fs::read(&path).expect("it is there");
            let mut dice = Dice::new(seed);
            let at = dice.roll(bytes.len());
            match seed % 8 {
                0 => mutate::any_bytes(&mut bytes, &mut dice),
                1..4 => bytes[at] ^= 1 << dice.roll(8),
                // Of a weight's exponent, where an answer shows it.
                _ => bytes[at | 1] ^= 0x40,
            }
            fs::write(&path, bytes).expect("it can be written");
            same(&own, &own.large, scratch, &cache)
        };
        if seed % 3 == 0 {
            cases.push(Case::new(IMAGE, format!("flipped-{seed} (row 4)"), check).drawn(seed));
        }
        if seed % 2 > 0 {
            continue;
        }
        let own = Arc::clone(base);
        let check = move |scratch: &Scratch| {
            let cost = own.kept.iter().find(|(name, _)| name.ends_with(".cost"));
            let Some((name, good)) = cost else { return Outcome::Skipped("no costs were kept".into()) };
            let mut bytes = good.clone();
            crate::weights::changes(seed, &mut bytes, mutate::json);
            costs(&own, scratch, name, &|path| fs::write(path, &bytes).expect("it can be written"))
        };
        cases.push(Case::new(COST, format!("mutated-{seed}"), check).drawn(seed));
    }
    cases
}

/// A start of the server with a cache in which one file was put by `put`; it must listen, answer, and stay small.
fn costs(base: &Base, scratch: &Scratch, name: &str, put: &dyn Fn(&Path)) -> Outcome {
    let directory = base.with(scratch, &[]);
    let path = scratch.path("cache/twostroke/packed").join(name);
    fs::create_dir_all(path.parent().expect("it has one")).expect("it can be written");
    put(&path);
    let begin = Instant::now();
    let mut mib = 0;
    let result = Served::start(&directory, scratch, &scratch.path("cache"), PATIENCE).and_then(|served| {
        served.certain()?;
        mib = served.peak_mib();
        Ok(())
    });
    let spent = Spent { cpu: Duration::ZERO, wall: begin.elapsed(), mib };
    let _ = fs::remove_file(path); // it may be nothing that can be kept
    Outcome::of(result.and_then(|()| spent.within(&FILE)), spent)
}

/// Caches as no start leaves them.
pub(crate) fn built(base: &Arc<Base>) -> Vec<Case> {
    type Change = fn(&Path);
    let images: &[(&str, Change)] = &[
        ("as it was", |_| {}),
        ("empty", |image| fs::write(image, "").expect("room")),
        ("half of it", |image| {
            let bytes = fs::read(image).expect("it is there");
            fs::write(image, &bytes[..bytes.len() / 2]).expect("room");
        }),
        ("its index alone", |image| {
            let bytes = fs::read(image).expect("it is there");
            let at = bytes.len() - 48;
            let length = u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes")) as usize;
            fs::write(image, &bytes[at - length..]).expect("room");
        }),
        ("zeros where the weights were (row 4)", |image| {
            let mut bytes = fs::read(image).expect("it is there");
            let end = bytes.len() / 2;
            bytes[..end].fill(0);
            fs::write(image, bytes).expect("room");
        }),
        ("two pages swapped (row 4)", |image| {
            let mut bytes = fs::read(image).expect("it is there");
            let (a, b) = bytes.split_at_mut(8192);
            a[..4096].swap_with_slice(&mut b[..4096]);
            fs::write(image, bytes).expect("room");
        }),
        ("an index of 2^63", |image| {
            let mut bytes = fs::read(image).expect("it is there");
            let at = bytes.len() - 48;
            bytes[at..at + 8].copy_from_slice(&(1u64 << 63).to_le_bytes());
            fs::write(image, bytes).expect("room");
        }),
        ("a FIFO (row 11)", |image| {
            fs::remove_file(image).expect("it is there");
            mkfifo(image, Mode::S_IRWXU).expect("a FIFO");
        }),
        ("/dev/zero (row 11)", |image| {
            fs::remove_file(image).expect("it is there");
            symlink("/dev/zero", image).expect("a link");
        }),
        ("a directory", |image| {
            fs::remove_file(image).expect("it is there");
            fs::create_dir(image).expect("a directory");
        }),
        ("a link in a circle", |image| {
            fs::remove_file(image).expect("it is there");
            symlink(image, image).expect("a link");
        }),
        ("1 TB of hole", |image| {
            fs::OpenOptions::new().write(true).open(image).and_then(|file| file.set_len(1 << 40)).expect("a hole");
        }),
        ("the packed directory is a file", |image| {
            let directory = image.parent().expect("it has one");
            fs::remove_dir_all(directory).expect("it is there");
            fs::write(directory, "x").expect("room");
        }),
    ];
    let mut cases = Vec::new();
    for &(name, change) in images {
        let own = Arc::clone(base);
        cases.push(Case::new(IMAGE, name, move |scratch| {
            let (cache, path) = cache(&own, scratch);
            change(&path);
            same(&own, &own.large, scratch, &cache)
        }));
    }
    // Other weights with the size and the time of those that were packed: the answer must be the other one's.
    for (name, weights) in [("weights replaced", 100_000), ("one weight replaced", 1)] {
        let own = Arc::clone(base);
        cases.push(Case::new(IMAGE, format!("{name}, size and time kept (row 4)"), move |scratch| {
            let model = scratch.path("model");
            fs::create_dir_all(&model).expect("it can be written");
            for entry in fs::read_dir(&own.large).expect("it is there").flatten() {
                fs::copy(entry.path(), model.join(entry.file_name())).expect("room for it");
            }
            let (cache, path) = (scratch.path("cache"), model.join("model.safetensors"));
            let times = path.metadata().and_then(|metadata| metadata.modified()).expect("a time");
            let first = Served::start(&model, scratch, &cache, PATIENCE).and_then(|served| served.certain());
            let end = Instant::now() + PATIENCE;
            while image(&cache).is_none() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(20));
            }
            let mut bytes = fs::read(&path).expect("it is there");
            let middle = (bytes.len() / 2) | 1;
            (0..weights).for_each(|index| bytes[middle + 2 * index] ^= 0x03);
            fs::write(&path, bytes).expect("room for it");
            File::options().write(true).open(&path).and_then(|file| file.set_modified(times)).expect("it can be set");
            let begin = Instant::now();
            let other = Served::start(&model, scratch, &scratch.path("none"), PATIENCE).and_then(|s| s.certain());
            let again = Served::start(&model, scratch, &cache, PATIENCE).and_then(|served| served.certain());
            for large in [&cache, &scratch.path("none"), &model] {
                let _ = fs::remove_dir_all(large); // their recipe is the case
            }
            let result = match (first, other, again) {
                (Ok(first), Ok(other), Ok(_)) if first == other => Err("the change changes nothing".into()),
                (Ok(_), Ok(other), Ok(again)) if other == again => Ok(()),
                (Ok(_), Ok(_), Ok(_)) => Err("the answer of the weights that were replaced, and not a word".into()),
                (first, other, again) => Err(format!("{:?}", [first.err(), other.err(), again.err()])),
            };
            Outcome::of(result, Spent { wall: begin.elapsed(), ..Spent::default() })
        }));
    }
    type Put = fn(&Path);
    let small: &[(&str, Put)] = &[
        ("a FIFO (row 11)", |path| mkfifo(path, Mode::S_IRWXU).expect("a FIFO")),
        ("/dev/zero (row 11)", |path| symlink("/dev/zero", path).expect("a link")),
        ("/dev/urandom", |path| symlink("/dev/urandom", path).expect("a link")),
        ("a directory", |path| fs::create_dir(path).expect("a directory")),
        ("a link in a circle", |path| symlink(path, path).expect("a link")),
        ("empty", |path| fs::write(path, "").expect("room")),
        ("garbage", |path| fs::write(path, [0xFF; 5000]).expect("room")),
        ("100,000 lists deep", |path| fs::write(path, "[".repeat(100_000)).expect("room")),
        ("1 TB of hole", |path| {
            File::create(path).and_then(|file| file.set_len(1 << 40)).expect("a hole");
        }),
    ];
    for &(name, put) in small {
        for suffix in [".cost", ".limits"] {
            let own = Arc::clone(base);
            cases.push(Case::new(COST, format!("{suffix}: {name}"), move |scratch| {
                let Some(file) = own.kept.keys().find(|name| name.ends_with(suffix)) else {
                    return Outcome::Skipped(format!("no {suffix} was kept"));
                };
                costs(&own, scratch, &file.clone(), &put)
            }));
        }
    }
    type Numbers = fn(&str) -> String;
    let numbers: &[(&str, Numbers)] = &[
        ("every number 0", |good| digits(good, "0")),
        ("every number 1e308", |good| digits(good, "1e308")),
        ("every number -1", |good| digits(good, "-1")),
        ("every number 1e-300", |good| digits(good, "1e-300")),
    ];
    for &(name, change) in numbers {
        for suffix in [".cost", ".limits"] {
            let own = Arc::clone(base);
            cases.push(Case::new(COST, format!("{suffix}: {name}"), move |scratch| {
                let Some((file, good)) = own.kept.iter().find(|(name, _)| name.ends_with(suffix)) else {
                    return Outcome::Skipped(format!("no {suffix} was kept"));
                };
                let text = change(&String::from_utf8_lossy(good));
                costs(&own, scratch, file, &|path| fs::write(path, &text).expect("room"))
            }));
        }
    }
    cases
}

/// Every number behind the key replaced.
fn digits(good: &str, by: &str) -> String {
    fn replace(value: &mut serde_json::Value, by: &serde_json::Value) {
        match value {
            serde_json::Value::Number(_) => *value = by.clone(),
            serde_json::Value::Array(items) => items.iter_mut().for_each(|item| replace(item, by)),
            serde_json::Value::Object(map) => map.values_mut().for_each(|item| replace(item, by)),
            _ => {}
        }
    }
    let mut value: serde_json::Value = serde_json::from_str(good).unwrap_or_default();
    replace(&mut value, &serde_json::from_str(by).expect("a number"));
    value.to_string()
}
