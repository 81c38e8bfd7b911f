//! What people type first who know Ollama, llama.cpp or vLLM: each is done, or one line says what to type here. None of
//! it is a prompt for the built-in model.

use std::fs;

use testing::Scratch;
use tests::{run, twostroke};

#[test]
fn first_words_of_other_programs() {
    let table: &[(&[&str], i32, &str)] = &[
        // Done.
        (&["version"], 0, "twostroke "),
        (&["-v"], 0, "twostroke "),
        (&["--version"], 0, "twostroke "),
        (&["help"], 0, "Usage: twostroke"),
        (&["help", "run"], 0, "Answer a prompt"),
        (&["list"], 0, "MODEL"),
        (&["ls"], 0, "lantern"),
        (&["list", "--json"], 0, "\"models\":[]"),
        (&["show"], 0, "parameters"),
        (&["show", "lantern"], 0, "2.5 KiB a token"),
        (&["show", "qwen3-8b"], 0, "no files"),
        (&["completions", "bash"], 0, "-F _twostroke"),
        (&["completion", "zsh"], 0, "#compdef twostroke"),
        (&["completions", "fish"], 0, "--command twostroke"),
        // Ollama's.
        (
            &["run", "llama3.2", "hi"],
            2,
            "unsloth/Llama-3.2-3B-Instruct-GGUF: a GGUF file of Q4_K_M is not in the cache",
        ),
        (&["run", "llama3.2:1b", "hi"], 2, "Llama-3.2-1B-Instruct-GGUF"),
        (&["run", "qwen3", "why", "is", "the", "sky", "blue?"], 2, "Qwen/Qwen3-8B-GGUF"),
        (
            &["run", "llama3.3"],
            2,
            "\"llama3.3\" is no model: it may be a path, org/name of the hub, or a short name (near it: ",
        ),
        (&["run", "llama9", "hi"], 2, "To say it to the built-in model: twostroke run lantern llama9 hi"),
        (&["run", "hi"], 2, "twostroke run lantern hi"),
        (&["run", "a/b/c"], 2, "\"a/b/c\" is no model: ORG/NAME would be one of the hub"),
        (&["run", "hf.co/org", "hi"], 2, "\"hf.co/org\" is no model"),
        (&["run", "hi there", "you"], 2, "needs quotation marks"),
        (&["serve", "llama9"], 2, "\"llama9\" is no model"),
        (&["serve", "llama3.2:1b"], 2, "not in the cache"),
        (&["run", "hf.co/bartowski/Llama-3.2-1B-Instruct-GGUF", "hi"], 2, "not in the cache"),
        (&["pull", "llama3.2"], 2, "not in the cache"),
        (&["pull", "lantern"], 0, "is built in"),
        (&["pull"], 0, "llama3.2:3b, llama3.2"),
        (&["ps", "--url", "http://127.0.0.1:1"], 1, "127.0.0.1:1"),
        (&["stop", "llama3.2", "--url", "http://127.0.0.1:1"], 1, "127.0.0.1:1"),
        (&["stop"], 2, "MODEL"),
        (&["serve", "lantern", "--allow-pull"], 2, "add --on-demand"),
        (&["status"], 2, "twostroke ps"),
        (&["show", "llama3.2"], 2, "twostroke pull llama3.2"),
        (&["show", "llama9"], 2, "llama9 is not known"),
        (&["show", "org/name"], 2, "not in the local cache"),
        (&["rm", "llama3.2"], 2, "no such model in the cache"),
        (&["rm", "org/name"], 2, "no such model in the cache"),
        (&["rm", "lantern"], 2, "built in"),
        (&["rm", "/etc/hosts"], 2, "of yours"),
        (&["rm", "../.."], 2, "of yours"),
        (&["rm"], 2, "MODEL"),
        (&["cp", "llama3.2", "mine"], 2, "twostroke quantize"),
        (&["create", "mine", "-f", "Modelfile"], 2, "twostroke quantize"),
        (&["push", "mine"], 2, "twostroke quantize"),
        (&["signin"], 2, "HF_TOKEN"),
        // llama.cpp's.
        (&["-m", "model.gguf", "-p", "hi"], 2, "a verb comes first"),
        (&["-hf", "ggml-org/gemma-3-1b-it-GGUF"], 0, "Usage: twostroke"),
        (&["serve", "-hf", "ggml-org/gemma-3-1b-it-GGUF"], 2, "ORG/NAME"),
        (&["server", "-m", "model.gguf"], 2, "'serve'"),
        (&["cli", "-m", "model.gguf"], 2, "twostroke run"),
        (&["run", "-m", "/no.gguf", "-p", "hi"], 2, "the prompt is an argument"),
        (&["run", "-m", "/no.gguf", "--temp", "0", "-n", "8", "hi"], 2, "/no.gguf"),
        (&["run", "-f", "/no/prompt.txt"], 2, "/no/prompt.txt"),
        (&["run", "-f", "-"], 2, "no prompt: give one as an argument or on standard input"),
        (&["run", "-ngl", "99", "hi"], 2, "this build computes on the CPU"),
        (&["serve", "-m", "/no.gguf", "-ngl", "99", "-fa", "on", "--jinja", "-c", "8192"], 2, "/no.gguf"),
        (&["perplexity", "-m", "model.gguf"], 2, "twostroke quality"),
        // vLLM's.
        (&["serve", "Qwen/Qwen3-0.6B"], 2, "not in the cache"),
        (&["serve", "Qwen/Qwen3-0.6B", "--trust-remote-code", "--enforce-eager"], 2, "not in the cache"),
        (&["serve", "Qwen/Qwen3-0.6B", "--tensor-parallel-size", "2"], 2, "-t sets the threads"),
        (&["chat"], 2, "twostroke run"),
        (&["complete"], 2, "twostroke run"),
        (&["run-batch", "-i", "in.jsonl", "-o", "out.jsonl"], 2, "twostroke batch"),
        (&["collect-env"], 2, "twostroke doctor"),
    ];
    for (arguments, code, wanted) in table {
        let ran = run(&mut twostroke(arguments));
        assert_eq!(ran.code, Some(*code), "{arguments:?}: {ran:?}");
        let (said, silent) = if *code == 0 { (&ran.stdout, &ran.stderr) } else { (&ran.stderr, &ran.stdout) };
        assert!(said.contains(wanted) && silent.is_empty(), "{arguments:?}: {wanted:?} in {ran:?}");
        let notes = said.lines().filter(|line| !line.starts_with("note: ")).count();
        assert!(*code == 0 || notes == 1, "{arguments:?}: {ran:?}");
    }
}

/// A cache as the hub's clients leave it: blobs, and links to them.
fn cache(name: &str) -> Scratch {
    let cache = Scratch::new(name);
    for model in ["models--org--one", "models--org--two"] {
        let folder = cache.join(model);
        let commit = "0123456789abcdef0123456789abcdef01234567";
        fs::create_dir_all(folder.join("blobs")).expect("made");
        fs::create_dir_all(folder.join("refs")).expect("made");
        fs::create_dir_all(folder.join("snapshots").join(commit)).expect("made");
        fs::write(folder.join("refs/main"), commit).expect("written");
        fs::write(folder.join("blobs/abc"), vec![b' '; 3 << 20]).expect("written");
        let link = folder.join("snapshots").join(commit).join("config.json");
        std::os::unix::fs::symlink("../../blobs/abc", link).expect("linked");
    }
    fs::create_dir_all(cache.join("datasets--org--text")).expect("made");
    cache
}

#[test]
fn models_of_the_cache_are_listed_and_removed() {
    let cache = cache("cache");
    let ask = |arguments: &[&str]| run(twostroke(arguments).env("HF_HUB_CACHE", cache.as_os_str()));
    let listed = ask(&["list"]);
    assert!(listed.code == Some(0) && listed.stdout.lines().count() == 4, "{listed:?}");
    assert!(listed.stdout.contains("org/one") && listed.stdout.contains("3.0 MiB"), "{listed:?}");
    let told = ask(&["list", "--json"]).json();
    assert_eq!((&told["models"][1]["id"], &told["models"][1]["bytes"]), (&"org/two".into(), &(3 << 20 | 40).into()));
    // A foreign file in the folder: all of it stays.
    fs::write(cache.join("models--org--two/notes.txt"), "mine").expect("written");
    let refused = ask(&["rm", "org/two"]);
    assert!(refused.code == Some(1) && refused.stderr.contains("notes.txt"), "{refused:?}");
    assert!(cache.join("models--org--two/blobs/abc").exists());
    // A name that is not there: none goes.
    let refused = ask(&["rm", "org/one", "org/three"]);
    assert!(refused.code == Some(2) && refused.stderr.contains("org/three"), "{refused:?}");
    assert!(cache.join("models--org--one/blobs/abc").exists());
    // A download that holds its lock.
    let locks = cache.join(".locks/models--org--one");
    fs::create_dir_all(&locks).expect("made");
    let lock = fs::File::create(locks.join("abc.lock")).expect("made");
    lock.lock().expect("free");
    let refused = ask(&["rm", "org/one"]);
    assert!(refused.code == Some(1) && refused.stderr.contains("being downloaded"), "{refused:?}");
    drop(lock);
    let removed = ask(&["rm", "hf.co/org/one", "org/one"]);
    assert!(removed.code == Some(0) && removed.stdout.starts_with("org/one: 3.0 MiB in 2 files"), "{removed:?}");
    assert!(!cache.join("models--org--one").exists() && cache.join("models--org--two/blobs/abc").exists());
}

/// A model of the cache is called by its last part too, here and by clients.
#[test]
fn a_cached_model_answers_to_its_names() {
    let cache = Scratch::new("names");
    let folder = cache.join("models--org--Tiny");
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let snapshot = folder.join("snapshots").join(commit);
    fs::create_dir_all(folder.join("refs")).expect("made");
    fs::create_dir_all(&snapshot).expect("made");
    fs::write(folder.join("refs/main"), commit).expect("written");
    for file in fs::read_dir(tests::root().join("models/lantern")).expect("it is in the repository").flatten() {
        fs::copy(file.path(), snapshot.join(file.file_name())).expect("copied");
    }
    let ask = |arguments: &[&str]| run(twostroke(arguments).env("HF_HUB_CACHE", cache.as_os_str()));
    let answer = ["-n", "4", "--temperature", "0", "--quiet", "-t", "1"];
    let said = |words: &[&str]| {
        let ran = ask(&[&["run"], words, &answer].concat());
        assert_eq!(ran.code, Some(0), "{words:?}: {ran:?}");
        ran.stdout
    };
    let plain = said(&["What is 17 + 25?"]);
    for words in [
        &["org/Tiny", "What is 17 + 25?"][..],
        &["tiny", "What", "is", "17", "+", "25?"],
        &["-m", "Tiny", "What", "is", "17 + 25?"],
        &["hf.co/org/Tiny", "What is 17 + 25?"],
        &["lantern", "What is 17 + 25?"],
    ] {
        assert_eq!(said(words), plain, "{words:?}");
    }
    let batch = cache.join("in.jsonl");
    let line = |model: &str| {
        let body = serde_json::json!({"model": model, "prompt": "a", "max_tokens": 1});
        serde_json::json!({"custom_id": model, "url": "/v1/completions", "body": body}).to_string()
    };
    fs::write(&batch, [line("tiny"), line("org/Tiny"), line("other")].join("\n")).expect("written");
    let output = cache.join("out.jsonl");
    let ran = ask(&["batch", "-m", "tiny", "-i", batch.to_str().expect("text"), "-o", output.to_str().expect("text")]);
    let told = fs::read_to_string(&output).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    let status = |model: &str| {
        let line = told.lines().find(|line| line.contains(&format!("\"custom_id\":\"{model}\""))).expect(model);
        serde_json::from_str::<serde_json::Value>(line).expect("JSON")["response"]["status_code"].clone()
    };
    assert_eq!([status("tiny"), status("org/Tiny"), status("other")], [200, 200, 404], "{told}");
}
