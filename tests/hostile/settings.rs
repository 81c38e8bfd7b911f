//! Settings and layouts: config.json, generation_config.json, the index of shards, the hub's cache.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;

use serde_json::{Value, json};
use tests::twostroke;

use crate::base::{ANSWER, Base, PROMPT, Verdict, load};
use crate::case::{Case, FILE, Named, Outcome, Scratch};
use crate::child;
use crate::weights::changes;
use testing::mutate;

const CONFIG: &str = "config.json";
const GENERATION: &str = "generation_config.json";
const INDEX: &str = "model.safetensors.index.json";
/// The one shard of an index that is right.
const SHARD: &str = "model-00001-of-00001.safetensors";
const SETTINGS: &str = "config";
const SHARDS: &str = "shards";
const HUB: &str = "hub";

/// Settings with one to three changes from a seed.
pub(crate) fn mutated(base: &Arc<Base>, seeds: std::ops::Range<u64>) -> Vec<Case> {
    let mut cases = Vec::new();
    for seed in seeds {
        for (family, name) in [(SETTINGS, CONFIG), (SETTINGS, GENERATION), (SHARDS, INDEX)] {
            if name != CONFIG && seed % 3 > 0 {
                continue;
            }
            let own = Arc::clone(base);
            let check = move |scratch: &Scratch| {
                let mut bytes = match name {
                    INDEX => index(&own).to_string().into_bytes(),
                    _ => own.model[name].clone(),
                };
                changes(seed, &mut bytes, mutate::json);
                // A setting that disagrees with the weights is told as the one or the other.
                let words = vec![name, "safetensors", CONFIG, "tokenizer.json", "--max-model-len", "context"];
                with_file(&own, scratch, name, &bytes, &Verdict::RefusedOr(words))
            };
            cases.push(Case::new(family, format!("{name} mutated-{seed}"), check).drawn(seed));
        }
    }
    cases
}

fn with_file(base: &Base, scratch: &Scratch, name: &str, bytes: &[u8], verdict: &Verdict) -> Outcome {
    let weights = &base.model["model.safetensors"];
    // An index counts only where there is no file of all weights.
    let directory = match name {
        INDEX => base.with(scratch, &[(name, Some(bytes)), ("model.safetensors", None), (SHARD, Some(weights))]),
        _ => base.with(scratch, &[(name, Some(bytes))]),
    };
    verdict.judge(&child::run(&load(&directory), scratch, &FILE, &[]), &FILE)
}

/// An index of one shard that is right.
fn index(base: &Base) -> Value {
    let file = &base.model["model.safetensors"];
    let length = u64::from_le_bytes(file[..8].try_into().expect("eight bytes")) as usize;
    let header: Value = serde_json::from_slice(&file[8..8 + length]).expect("a header");
    let names = header.as_object().expect("an object").keys().filter(|name| *name != "__metadata__");
    let map: serde_json::Map<String, Value> = names.map(|name| (name.clone(), json!(SHARD))).collect();
    json!({ "metadata": { "total_size": 1 }, "weight_map": map })
}

/// Settings that may be taken, and files that cannot be. Those that no model has are in `crates/model/tests/bad_files.rs`.
pub(crate) fn built(base: &Arc<Base>) -> Vec<Case> {
    let mut cases = Vec::new();
    // What is said twice, or of no matter.
    let either: &[(&str, &str, Value)] = &[
        ("groups of 0", "quantization_config", json!({ "quant_method": "awq", "bits": 4, "group_size": 0 })),
        ("end of text beyond the vocabulary", "eos_token_id", json!(1 << 30)),
        ("a context of 2^60", "max_position_embeddings", json!(1u64 << 60)),
        ("a context of 2^31", "max_position_embeddings", json!(1u64 << 31)),
        ("a window of 0", "sliding_window", json!(0)),
        ("a window of 1", "sliding_window", json!(1)),
        ("code to run", "auto_map", json!({ "AutoModel": "evil--code.Model" })),
        ("100,000 ends of text", "eos_token_id", json!((0..100_000).map(|id| id % 2048).collect::<Vec<_>>())),
        ("a rope of 1e-300", "rope_theta", json!(1e-300)),
        ("a rope of 1e300", "rope_theta", json!(1e300)),
        ("epsilon 1e300", "rms_norm_eps", json!(1e300)),
        (
            "YaRN by 1e30",
            "rope_scaling",
            json!({ "rope_type": "yarn", "factor": 1e30, "original_max_position_embeddings": 1 }),
        ),
        (
            "LongRoPE of no factors",
            "rope_scaling",
            json!({ "rope_type": "longrope", "long_factor": [], "short_factor": [], "original_max_position_embeddings": 64 }),
        ),
    ];
    for (name, field, value) in either {
        let (own, field, value) = (Arc::clone(base), *field, value.clone());
        let check = move |scratch: &Scratch| {
            let mut config = own.json(CONFIG);
            config[field] = value.clone();
            let verdict = Verdict::RefusedOr(vec![CONFIG, "--max-model-len", "KV cache", "kv-cache"]);
            with_file(&own, scratch, CONFIG, config.to_string().as_bytes(), &verdict)
        };
        cases.push(Case::new(SETTINGS, *name, check));
    }
    let bytes: &[Named<Vec<u8>>] = &[
        ("empty", Vec::new),
        ("a list", || b"[]".to_vec()),
        ("not UTF-8", || vec![0xFE; 100]),
        ("100,000 lists deep", || [b"[".repeat(100_000), b"]".repeat(100_000)].concat()),
        ("32 MB of spaces", || vec![b' '; 32 << 20]),
        ("32 MB of {}", || [b"[{}".to_vec(), b",{}".repeat(10 << 20), b"]".to_vec()].concat()),
    ];
    for &(name, build) in bytes {
        for file in [CONFIG, GENERATION] {
            let own = Arc::clone(base);
            let check =
                move |scratch: &Scratch| with_file(&own, scratch, file, &build(), &Verdict::Refused(vec![file]));
            cases.push(Case::new(SETTINGS, format!("{file}: {name}"), check));
        }
    }
    cases
}

/// An index that is right, and weights that lead nowhere.
pub(crate) fn built_shards(base: &Arc<Base>) -> Vec<Case> {
    let mut cases = Vec::new();
    let own = Arc::clone(base);
    cases.push(Case::new(SHARDS, "an index that is right", move |scratch| {
        let bytes = index(&own).to_string();
        with_file(&own, scratch, INDEX, bytes.as_bytes(), &Verdict::Answers(own.answer.clone()))
    }));
    let own = Arc::clone(base);
    cases.push(Case::new(SHARDS, "weights that are a link in a circle", move |scratch| {
        let directory = own.with(scratch, &[("model.safetensors", None)]);
        symlink("model.safetensors", directory.join("model.safetensors")).expect("a link");
        let ran = child::run(&load(&directory), scratch, &FILE, &[]);
        Verdict::Refused(vec!["model.safetensors"]).judge(&ran, &FILE)
    }));
    cases
}

/// Caches of the hub as no download leaves them.
pub(crate) fn built_hub(base: &Arc<Base>) -> Vec<Case> {
    /// What `refs/main` says; what the snapshot's config.json is.
    type Reference = fn() -> Vec<u8>;
    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
    let table: &[(&str, Reference, bool)] = &[
        ("as it should be", || COMMIT.into(), true),
        ("a reference with a line end", || format!("{COMMIT}\n").into(), true),
        ("a reference that climbs", || b"../../../../etc".to_vec(), false),
        ("a reference that is absolute", || b"/etc".to_vec(), false),
        ("an empty reference", Vec::new, false),
        ("a reference that is not text", || vec![0xFF; 40], false),
        ("a reference of 64 MB", || vec![b'a'; 64 << 20], false),
        ("a reference with NUL", || b"0123\x004567".to_vec(), false),
        ("a reference with control characters", || b"\x1b[2J\nfake: line".to_vec(), false),
        ("a reference to a commit that is not there", || b"f".repeat(40), false),
    ];
    let mut cases = Vec::new();
    for &(name, reference, good) in table {
        let own = Arc::clone(base);
        cases.push(Case::new(HUB, name, move |scratch| {
            let repo = scratch.path("hub/models--org--name");
            fs::create_dir_all(repo.join("snapshots")).expect("it can be written");
            fs::rename(own.with(scratch, &[]), repo.join("snapshots").join(COMMIT)).expect("one file system");
            scratch.file("hub/models--org--name/refs/main", reference());
            let verdict = if good { Verdict::Answers(own.answer.clone()) } else { Verdict::Refused(vec!["org/name"]) };
            from_hub(scratch, &verdict)
        }));
    }
    type Change = fn(&std::path::Path);
    let links: &[(&str, Change)] = &[
        ("a config.json that is a FIFO", |snapshot| {
            fs::remove_file(snapshot.join(CONFIG)).expect("it is there");
            nix::unistd::mkfifo(&snapshot.join(CONFIG), nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
        }),
        ("a config.json that is /dev/zero", |snapshot| {
            fs::remove_file(snapshot.join(CONFIG)).expect("it is there");
            symlink("/dev/zero", snapshot.join(CONFIG)).expect("a link");
        }),
        ("a config.json that leads nowhere", |snapshot| {
            fs::remove_file(snapshot.join(CONFIG)).expect("it is there");
            symlink("../../blobs/none", snapshot.join(CONFIG)).expect("a link");
        }),
        ("a config.json in a circle", |snapshot| {
            fs::remove_file(snapshot.join(CONFIG)).expect("it is there");
            symlink(CONFIG, snapshot.join(CONFIG)).expect("a link");
        }),
        ("a snapshot without weights", |snapshot| {
            fs::remove_file(snapshot.join("model.safetensors")).expect("it is there");
        }),
        ("a snapshot of nothing", |snapshot| {
            fs::remove_dir_all(snapshot).expect("it is there");
            fs::create_dir(snapshot).expect("it can be written");
        }),
        ("a snapshot that is a file", |snapshot| {
            fs::remove_dir_all(snapshot).expect("it is there");
            fs::write(snapshot, "x").expect("it can be written");
        }),
    ];
    for &(name, change) in links {
        let own = Arc::clone(base);
        cases.push(Case::new(HUB, name, move |scratch| {
            let snapshot = scratch.path("hub/models--org--name/snapshots").join(COMMIT);
            fs::create_dir_all(snapshot.parent().expect("it has one")).expect("it can be written");
            fs::rename(own.with(scratch, &[]), &snapshot).expect("one file system");
            scratch.file("hub/models--org--name/refs/main", COMMIT);
            change(&snapshot);
            from_hub(scratch, &Verdict::Refused(vec!["org/name", CONFIG, "safetensors"]))
        }));
    }
    let names =
        ["../..", "org/../..", "org/na\u{0}me", "org/name@../../x", "org/name:../x", "-m/x", "org/name@", "a/b/c/d"];
    for name in names.into_iter().filter(|name| !name.contains('\0')) {
        cases.push(Case::new(HUB, format!("the id {name}"), move |scratch| {
            let mut command = twostroke(&[&["run", "--no-packed-cache", "-m", name][..], &ANSWER, &[PROMPT]].concat());
            command.env("HF_HUB_CACHE", scratch.path("hub")).current_dir(scratch.directory());
            Verdict::Refused(vec![]).judge(&child::run(&command, scratch, &FILE, &[]), &FILE)
        }));
    }
    cases
}

fn from_hub(scratch: &Scratch, verdict: &Verdict) -> Outcome {
    let mut command = twostroke(&[&["run", "--no-packed-cache", "-m", "org/name"][..], &ANSWER, &[PROMPT]].concat());
    command.env("HF_HUB_CACHE", scratch.path("hub"));
    verdict.judge(&child::run(&command, scratch, &FILE, &[]), &FILE)
}
