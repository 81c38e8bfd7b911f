//! Fuzzing without a fuzzer, on stable: a corpus through its door, and a number of changes to each of its files.

use std::path::PathBuf;

use crate::Dice;
use crate::long::is_long;
use crate::scratch::root;

/// Changed files per file of a corpus, in a long run and in a quick one.
const CHANGED: [u64; 2] = [1000, 200];
/// Changes, one on top of the other, to a file at most.
const CHANGES: u64 = 4;

/// Whether the bytes were taken; a panic is a finding.
pub type Door = fn(&[u8]) -> bool;
/// One change from the dice.
pub type Change = fn(&mut Vec<u8>, &mut Dice);

/// `good`: how many files of the corpus the reader takes as they are.
pub fn replay(corpus: &str, good: usize, door: Door, change: Change) {
    // The readers catch panics of the tokenizers crate and tell them as errors: not a text for this test's output.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let seen = run(corpus, door, change);
    std::panic::set_hook(hook);
    assert!(seen.failures.is_empty(), "{:?}", seen.failures);
    assert_eq!(seen.good, good, "files of the corpus that are taken; refused: {:?}", seen.refused);
    // Changes that all are refused, or none, would test little.
    let share = seen.taken as f64 / seen.changed as f64;
    assert!((0.005..0.99).contains(&share), "{} of {} changed files are taken", seen.taken, seen.changed);
}

#[derive(Default)]
struct Seen {
    /// Files taken as they are, and the others.
    good: usize,
    refused: Vec<String>,
    /// Changed files, and how many of them were taken.
    changed: usize,
    taken: usize,
    /// Files and seeds for which the reader panicked.
    failures: Vec<String>,
}

fn run(corpus: &str, door: Door, change: Change) -> Seen {
    let directory = root().join("fuzz/corpus").join(corpus);
    let mut paths: Vec<PathBuf> = directory.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    let mut seen = Seen::default();
    for path in paths {
        let good = std::fs::read(&path).unwrap();
        for seed in 0..=CHANGED[usize::from(!is_long())] {
            let mut bytes = good.clone();
            let mut dice = Dice::new(seed);
            for _ in 0..seed.min(1 + seed % CHANGES) {
                change(&mut bytes, &mut dice); // seed 0 is the file as it is
            }
            match std::panic::catch_unwind(|| door(&bytes)) {
                Ok(true) if seed == 0 => seen.good += 1,
                Ok(false) if seed == 0 => seen.refused.push(path.display().to_string()),
                Ok(taken) => {
                    seen.changed += 1;
                    seen.taken += usize::from(taken);
                }
                Err(panic) => {
                    let text = panic.downcast_ref::<String>().map_or("a panic", String::as_str);
                    seen.failures.push(format!("{} with seed {seed}: {text}", path.display()));
                }
            }
        }
    }
    seen
}
