//! Adapters as people train them, from the command line to the answer.

use std::path::{Path, PathBuf};

use checkpoint::{Checkpoint, Source};
use kernels::threads::max_threads;
use model::ModelConfig;
use serde_json::{Value, json};
use testing::Scratch;
use tests::{Server, root, run, twostroke};

#[path = "../../crates/model/tests/common/adapters.rs"]
mod files;

/// Of peft's `LoraConfig()` for Llama, and of others that name a part of the projections.
const TARGETS: [&[&str]; 5] =
    [&["q_proj", "v_proj"], &["q_proj"], &["k_proj"], &["up_proj"], &["q_proj", "k_proj", "down_proj"]];

/// A directory for each of [`TARGETS`], rank 8.
fn adapters(name: &str) -> (Scratch, Vec<PathBuf>) {
    let place = Scratch::new(name);
    let lantern = Checkpoint::open(Source::Directory(root().join("models/lantern"))).expect("it is committed");
    let config = ModelConfig::load(&lantern).expect("it is a model");
    let written = TARGETS.iter().enumerate().map(|(seed, targets)| {
        let adapter = files::adapter(&config, seed as u64 + 1, 8, 16.0, targets);
        files::write_in(&place, &targets.join("-"), &adapter)
    });
    let written = written.collect();
    (place, written)
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn run_answers_through_an_adapter_of_some_projections_on_any_threads() {
    let (_scratch, adapters) = adapters("run");
    let answer = |adapter: Option<&Path>, threads: usize| {
        let threads = threads.to_string();
        let mut asked = vec!["run", "-q", "-n", "24", "--temperature", "0", "-t", &threads];
        let adapter = adapter.map(text);
        asked.extend(adapter.iter().flat_map(|adapter| ["--lora", adapter]));
        asked.push("Name a bird.");
        let ran = run(&mut twostroke(&asked));
        assert_eq!(ran.code, Some(0), "{adapter:?}, {threads} threads: {ran:?}");
        ran.stdout
    };
    let plain = answer(None, 1);
    for adapter in &adapters {
        let one = answer(Some(adapter), 1);
        assert_ne!(one, plain, "{}: it changes the answer", adapter.display());
        for threads in 2..=max_threads().min(4) {
            assert_eq!(answer(Some(adapter), threads), one, "{}, {threads} threads", adapter.display());
        }
    }
}

#[test]
fn serve_answers_through_adapters_of_some_projections_beside_each_other() {
    let (_scratch, adapters) = adapters("serve");
    let named = |at: usize| format!("adapter-{at}={}", text(&adapters[at]));
    let named: Vec<String> = (0..adapters.len()).map(named).collect();
    let answers = |threads: usize, together: bool| -> Vec<Vec<Value>> {
        let threads = threads.to_string();
        let mut arguments = vec!["-t", &threads, "--lora-modules"];
        arguments.extend(named.iter().map(String::as_str));
        let server = Server::start(&arguments);
        let ask = |model: String| {
            let body = json!({
                "model": model, "prompt": "Once upon a time there was a fox", "max_tokens": 24, "temperature": 0,
                "logprobs": 1,
            });
            let (status, answer) = server.request("POST", "/v1/completions", &[], &body.to_string());
            assert_eq!(status, 200, "{model}: {answer}");
            let answer: Value = serde_json::from_str(&answer).expect("JSON");
            let choice = &answer["choices"][0];
            vec![choice["text"].clone(), choice["logprobs"]["token_logprobs"].clone()]
        };
        let models = (0..adapters.len()).map(|at| format!("adapter-{at}")).chain(["lantern".to_owned()]);
        match together {
            false => models.map(ask).collect(),
            true => std::thread::scope(|scope| {
                let asked: Vec<_> = models.map(|model| scope.spawn(|| ask(model))).collect();
                asked.into_iter().map(|asked| asked.join().expect("an answer")).collect()
            }),
        }
    };
    let one = answers(1, false);
    assert!((0..adapters.len()).all(|at| one[at] != one[adapters.len()]), "each changes the answer");
    for threads in 1..=max_threads().min(3) {
        assert_eq!(answers(threads, true), one, "{threads} threads");
    }
}
