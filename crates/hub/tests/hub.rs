//! Resolving model names, against a local fake hub.

use std::fs;
use std::path::{Path, PathBuf};

use hub::{DownloadEvent, HubEnv, HubError, canonical, is_name, resolve, short_names};
use sha2::{Digest, Sha256};
use testing::Scratch;
use testing::hub::{Answer, COMMIT, FakeHub, Seen, path};

const OTHER_COMMIT: &str = "fedcba9876543210fedcba9876543210fedcba98";

// ---------------------------------------------------------------------------------------------- helpers

fn env(hub: &FakeHub, home: &Path) -> HubEnv {
    HubEnv {
        hf_home: Some(home.to_path_buf()),
        hub_cache: None,
        token: Some("secret".to_string()),
        offline: false,
        endpoint: Some(hub.endpoint.clone()),
    }
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn weights() -> Vec<u8> {
    (0..300_000u32).map(|i| (i * 7 % 251) as u8).collect()
}

/// A hub with a small model; the weights are on a second host.
fn model() -> (FakeHub, FakeHub) {
    let (hub, storage) = (FakeHub::start(), FakeHub::start());
    hub.list(&["README.md", "config.json", "model.safetensors", "tokenizer.json", "pytorch_model.bin"]);
    hub.small("config.json", "{\"a\": 1}");
    hub.small("tokenizer.json", "{}");
    hub.large("model.safetensors", &sha256(&weights()), weights().len(), &format!("{}/blob?sig=1", storage.endpoint));
    storage.answer("GET /blob?sig=1", [Answer::new(200, weights())]);
    (hub, storage)
}

fn get(env: &HubEnv) -> Result<PathBuf, HubError> {
    resolve("org/tiny", env, &mut |_| true)
}

fn message(result: Result<PathBuf, HubError>) -> String {
    result.expect_err("must fail").to_string()
}

// ---------------------------------------------------------------------------------------------- downloads

#[test]
fn a_model_is_downloaded_into_the_layout_that_python_uses() {
    let (scratch, (hub, storage)) = (Scratch::new("fresh"), model());
    let mut reports = Vec::new();
    let snapshot = resolve("org/tiny", &env(&hub, &scratch), &mut |event| {
        let DownloadEvent::File(p) = event else { return true };
        reports.push((p.file.to_string(), p.index, p.num_files, p.bytes_done, p.bytes_total));
        true
    });
    let repo = scratch.join("hub/models--org--tiny");
    assert_eq!(snapshot.expect("downloads"), repo.join("snapshots").join(COMMIT));
    assert_eq!(fs::read_to_string(repo.join("refs/main")).expect("a ref"), COMMIT);
    let pointer = repo.join("snapshots").join(COMMIT).join("model.safetensors");
    assert_eq!(fs::read_link(&pointer).expect("a link"), Path::new("../../blobs").join(sha256(&weights())));
    assert_eq!(fs::read(&pointer).expect("readable"), weights());
    assert_eq!(
        fs::read_to_string(repo.join("snapshots").join(COMMIT).join("config.json")).expect("readable"),
        "{\"a\": 1}"
    );
    // Only what is read, and nothing half done.
    let names = |path: PathBuf| {
        let mut names: Vec<String> = fs::read_dir(path)
            .expect("a directory")
            .map(|e| e.expect("an entry").file_name().into_string().expect("text"))
            .collect();
        names.sort();
        names
    };
    assert_eq!(names(repo.join("snapshots").join(COMMIT)), ["config.json", "model.safetensors", "tokenizer.json"]);
    assert_eq!(names(repo.join("blobs")).len(), 3);
    let total = Some(weights().len() as u64);
    assert_eq!(
        reports.iter().find(|r| r.0 == "model.safetensors"),
        Some(&("model.safetensors".to_string(), 2, 3, 0, total))
    );
    assert_eq!(reports.last(), Some(&("model.safetensors".to_string(), 2, 3, weights().len() as u64, total)));
    // The token went to the hub with every request, and to no other host.
    assert!(hub.seen().iter().all(|seen| seen.token.as_deref() == Some("Bearer secret")), "{:?}", hub.seen());
    assert_eq!(storage.seen(), [Seen { line: "GET /blob?sig=1".to_string(), token: None, range: None }]);
}

#[test]
fn an_encoder_comes_with_its_modules() {
    let hub = FakeHub::start();
    let files = [
        "config.json",
        "model.safetensors",
        "modules.json",
        "sentence_bert_config.json",
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
        "2_Dense/pytorch_model.bin",
        "onnx/config.json",
        "x_Dense/config.json",
    ];
    hub.list(&files);
    for file in files {
        hub.small(file, "{}");
    }
    let home = Scratch::new("encoder");
    let directory = get(&env(&hub, &home)).expect("it is downloaded");
    for (at, file) in files.iter().enumerate() {
        assert_eq!(directory.join(file).exists(), at < 7, "{file}");
    }
}

#[test]
fn what_is_cached_is_not_downloaded_again() {
    let (scratch, (hub, storage)) = (Scratch::new("cached"), model());
    let env = env(&hub, &scratch);
    let first = get(&env).expect("downloads");
    let (requests, blobs) = (hub.seen().len(), storage.seen().len());
    // Online: one question, whether `main` has moved.
    assert_eq!(get(&env).expect("cached"), first);
    assert_eq!(hub.lines()[requests..], ["GET /api/models/org/tiny/revision/main"]);
    // Offline, or by commit: none.
    assert_eq!(get(&HubEnv { offline: true, ..env.clone() }).expect("cached"), first);
    assert_eq!(resolve(&format!("org/tiny@{COMMIT}"), &env, &mut |_| true).expect("cached"), first);
    assert_eq!((hub.seen().len(), storage.seen().len()), (requests + 1, blobs));
    // An unreachable hub does not matter if the model is cached.
    let away = HubEnv { endpoint: Some("http://127.0.0.1:1".to_string()), ..env };
    assert_eq!(get(&away).expect("cached"), first);
}

#[test]
fn a_branch_that_moved_is_downloaded_and_shares_what_did_not_change() {
    let (scratch, (hub, storage)) = (Scratch::new("moved"), model());
    let env = env(&hub, &scratch);
    get(&env).expect("downloads");
    let listing = serde_json::json!({"sha": OTHER_COMMIT, "siblings": [{"rfilename": "config.json"}, {"rfilename": "model.safetensors"}]});
    hub.answer("GET /api/models/org/tiny/revision/main", [Answer::new(200, listing.to_string())]);
    let config = Answer::new(200, "{\"a\": 2}").with("etag", "\"new\"").with("x-repo-commit", OTHER_COMMIT);
    let weights =
        Answer::new(302, "").with("x-linked-etag", sha256(&weights())).with("location", "http://127.0.0.1:1/");
    for method in ["GET", "HEAD"] {
        hub.answer(&format!("{method} /org/tiny/resolve/{OTHER_COMMIT}/config.json"), [config.clone()]);
        hub.answer(&format!("{method} /org/tiny/resolve/{OTHER_COMMIT}/model.safetensors"), [weights.clone()]);
    }
    let snapshot = get(&env).expect("downloads");
    assert!(snapshot.ends_with(OTHER_COMMIT));
    assert_eq!(fs::read_to_string(snapshot.join("config.json")).expect("readable"), "{\"a\": 2}");
    assert!(snapshot.join("model.safetensors").exists());
    assert_eq!(storage.seen().len(), 1, "the weights have the same name and were there");
}

#[test]
fn a_quantization_is_named_behind_a_colon() {
    let (scratch, hub) = (Scratch::new("quant"), FakeHub::start());
    let env = env(&hub, &scratch);
    let parts = ["F16/t-F16-00001-of-00002.gguf", "F16/t-F16-00002-of-00002.gguf"];
    hub.list(&["config.json", "t-Q8_0.gguf", "t-Q4_K_M.gguf", parts[0], parts[1]]);
    for (file, content) in [("t-Q8_0.gguf", "eight"), ("t-Q4_K_M.gguf", "four"), (parts[0], "first"), (parts[1], "2nd")]
    {
        hub.small(file, content);
    }
    let snapshot = scratch.join("hub/models--org--tiny/snapshots").join(COMMIT);
    let table = [
        ("org/tiny:Q8_0", Ok(("t-Q8_0.gguf", "eight"))),
        ("org/tiny:q8_0", Ok(("t-Q8_0.gguf", "eight"))),
        ("org/tiny@main:F16", Ok((parts[0], "first"))),
        ("org/tiny", Ok(("t-Q4_K_M.gguf", "four"))),
        ("org/tiny:Q2_K", Err("org/tiny: no GGUF file of Q2_K; it has F16, Q4_K_M, Q8_0")),
        ("org/tiny:", Err("no such file or directory")),
        ("org/tiny:../x", Err("no such file or directory")),
    ];
    for env in [env.clone(), HubEnv { offline: true, ..env }] {
        for (spec, expected) in &table {
            match (resolve(spec, &env, &mut |_| true), expected) {
                (Ok(path), Ok((file, content))) => {
                    assert_eq!(path, snapshot.join(file), "{spec}");
                    assert_eq!(&fs::read_to_string(path).expect("readable"), content, "{spec}");
                }
                (Err(HubError::Offline { .. }), Err(_)) if env.offline => {}
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{spec}: {error}"),
                (result, _) => panic!("{spec}: {result:?}"),
            }
        }
    }
    assert_eq!(fs::read_to_string(snapshot.join(parts[1])).expect("all parts are fetched"), "2nd");
}

#[test]
fn a_quantization_is_the_end_of_a_name() {
    const REPOSITORY: &[&str] = &[
        "README.md",
        "M-1B-Instruct-Q8_0.gguf",
        "M-1B-Instruct-q4_k_m.gguf",
        "M-1B-Instruct-UD-Q4_K_XL.gguf",
        "mmproj-M-1B-Q4_0.gguf",
        "F16/M-1B-Instruct-F16-00001-of-00002.gguf",
        "F16/M-1B-Instruct-F16-00002-of-00002.gguf",
    ];
    const PARTS: &[&str] = &["F16/M-1B-Instruct-F16-00001-of-00002.gguf", "F16/M-1B-Instruct-F16-00002-of-00002.gguf"];
    type Row<'a> = (&'a [&'a str], &'a str, Result<&'a [&'a str], &'a str>);
    let table: [Row<'_>; 11] = [
        (REPOSITORY, ":Q8_0", Ok(&["M-1B-Instruct-Q8_0.gguf"])),
        (REPOSITORY, ":q8_0", Ok(&["M-1B-Instruct-Q8_0.gguf"])),
        (REPOSITORY, ":Q4_K_XL", Ok(&["M-1B-Instruct-UD-Q4_K_XL.gguf"])),
        (REPOSITORY, ":UD-Q4_K_XL", Ok(&["M-1B-Instruct-UD-Q4_K_XL.gguf"])),
        (REPOSITORY, ":F16", Ok(PARTS)),
        (REPOSITORY, "", Ok(&["M-1B-Instruct-q4_k_m.gguf"])),
        (REPOSITORY, ":Q4_0", Err("it has F16, Q4_K_XL, Q8_0, q4_k_m")),
        (&["a.Q2_K.gguf"], "", Ok(&["a.Q2_K.gguf"])),
        (&["a-Q2_K.gguf", "a-Q3_K.gguf"], "", Err("it has Q2_K, Q3_K")),
        (&["a-F16-00002-of-00002.gguf"], "", Err("a part of that GGUF model is not in the repository")),
        (&["model.safetensors"], ":Q8_0", Err("no GGUF model in the repository")),
    ];
    for (files, quant, expected) in table {
        let (scratch, hub) = (Scratch::new("choice"), FakeHub::start());
        hub.list(files);
        files.iter().for_each(|file| hub.small(file, file));
        match (resolve(&format!("org/tiny{quant}"), &env(&hub, &scratch), &mut |_| true), expected) {
            (Ok(first), Ok(chosen)) => {
                let snapshot = scratch.join("hub/models--org--tiny/snapshots").join(COMMIT);
                assert_eq!(first, snapshot.join(chosen[0]), "{quant} of {files:?}");
                let there: Vec<&str> = files.iter().copied().filter(|file| snapshot.join(file).exists()).collect();
                assert_eq!(there, chosen, "{quant} of {files:?}");
            }
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{quant} of {files:?}: {error}"),
            (found, _) => panic!("{quant} of {files:?}: {found:?}"),
        }
    }
}

#[test]
fn of_several_gguf_files_none_is_chosen() {
    let (scratch, hub) = (Scratch::new("quant"), FakeHub::start());
    hub.list(&["t-Q8_0.gguf", "t-Q2_K.gguf", "mmproj-t.gguf"]);
    let expected = "org/tiny: several GGUF files, name one as org/tiny:QUANT; it has Q2_K, Q8_0";
    assert_eq!(message(get(&env(&hub, &scratch))), expected);
    hub.list(&["README.md"]);
    let named = resolve("org/tiny:Q8_0", &env(&hub, &scratch), &mut |_| true);
    assert_eq!(message(named), "org/tiny: no GGUF model in the repository");
    hub.list(&["a/../../t-Q8_0.gguf"]);
    let named = resolve("org/tiny:Q8_0", &env(&hub, &scratch), &mut |_| true);
    assert!(message(named).contains("is not a plain name"));
}

#[test]
fn a_cut_connection_resumes_where_it_stopped() {
    let (scratch, (hub, storage)) = (Scratch::new("cut"), model());
    let whole = Answer::new(200, weights());
    storage.answer("GET /blob?sig=1", [Answer { cut_after: Some(100_000), ..whole.clone() }, whole]);
    let snapshot = get(&env(&hub, &scratch)).expect("downloads");
    assert_eq!(fs::read(snapshot.join("model.safetensors")).expect("readable"), weights());
    let ranges: Vec<Option<String>> = storage.seen().into_iter().map(|seen| seen.range).collect();
    assert_eq!(ranges, [None, Some("bytes=100000-".to_string())]);
}

#[test]
fn another_start_resumes_what_an_earlier_one_left() {
    let (scratch, (hub, storage)) = (Scratch::new("resume"), model());
    let blobs = scratch.join("hub/models--org--tiny/blobs");
    fs::create_dir_all(&blobs).expect("a directory");
    let partial = blobs.join(format!("{}.incomplete", sha256(&weights())));
    fs::write(&partial, &weights()[..250_000]).expect("writes");
    let snapshot = get(&env(&hub, &scratch)).expect("downloads");
    assert_eq!(fs::read(snapshot.join("model.safetensors")).expect("readable"), weights());
    assert_eq!(storage.seen()[0].range.as_deref(), Some("bytes=250000-"));
    assert!(!partial.exists());
    // A remainder longer than the file cannot be its beginning.
    let _ = fs::remove_dir_all(scratch.join("hub"));
    fs::create_dir_all(&blobs).expect("a directory");
    fs::write(&partial, vec![0; weights().len() + 1]).expect("writes");
    get(&env(&hub, &scratch)).expect("downloads");
    assert_eq!(storage.seen()[1].range, None);
}

#[test]
fn a_server_without_ranges_sends_the_file_again() {
    let (scratch, (hub, storage)) = (Scratch::new("ranges"), model());
    let blobs = scratch.join("hub/models--org--tiny/blobs");
    fs::create_dir_all(&blobs).expect("a directory");
    fs::write(blobs.join(format!("{}.incomplete", sha256(&weights()))), &weights()[..10]).expect("writes");
    // One refuses the range, one ignores it.
    let whole = Answer { no_ranges: true, ..Answer::new(200, weights()) };
    storage.answer("GET /blob?sig=1", [Answer::new(416, ""), whole.clone()]);
    let snapshot = get(&env(&hub, &scratch)).expect("downloads");
    assert_eq!(fs::read(snapshot.join("model.safetensors")).expect("readable"), weights());
    assert_eq!(storage.seen().len(), 2);
    storage.answer("GET /blob?sig=1", [Answer { cut_after: Some(50_000), ..whole.clone() }, whole]);
    fs::remove_dir_all(scratch.join("hub")).expect("removes");
    let snapshot = get(&env(&hub, &scratch)).expect("downloads");
    assert_eq!(fs::read(snapshot.join("model.safetensors")).expect("readable"), weights());
    assert_eq!(storage.seen().last().expect("a request").range.as_deref(), Some("bytes=50000-"));
}

#[test]
fn damaged_content_is_refused_and_deleted() {
    let (scratch, (hub, storage)) = (Scratch::new("damaged"), model());
    let mut wrong = weights();
    wrong[1234] ^= 1;
    storage.answer("GET /blob?sig=1", [Answer::new(200, wrong)]);
    let env = env(&hub, &scratch);
    let error = message(get(&env));
    assert!(error.contains("model.safetensors") && error.contains("SHA-256"), "{error}");
    let blobs = scratch.join("hub/models--org--tiny/blobs");
    assert!(fs::read_dir(&blobs).expect("a directory").count() == 2, "config and tokenizer only");
    assert!(!scratch.join("hub/models--org--tiny/refs/main").exists(), "an incomplete snapshot has no name");
    // The next attempt starts over.
    storage.answer("GET /blob?sig=1", [Answer::new(200, weights())]);
    get(&env).expect("downloads");
    assert_eq!(storage.seen().last().expect("a request").range, None);
}

#[test]
fn sharded_weights_are_those_of_the_index() {
    let (scratch, hub) = (Scratch::new("shards"), FakeHub::start());
    let shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    hub.list(&["config.json", "model.safetensors.index.json", shards[0], shards[1], "consolidated.safetensors"]);
    hub.small("config.json", "{}");
    let index = serde_json::json!({"weight_map": {"a": shards[0], "b": shards[1], "c": shards[0]}});
    hub.small("model.safetensors.index.json", &index.to_string());
    hub.small(shards[0], "one");
    hub.small(shards[1], "second");
    let env = env(&hub, &scratch);
    let snapshot = get(&env).expect("downloads");
    assert_eq!(fs::read_to_string(snapshot.join(shards[1])).expect("readable"), "second");
    assert!(!snapshot.join("consolidated.safetensors").exists());
    // Offline, a missing shard is missed.
    fs::remove_file(snapshot.join(shards[1])).expect("removes");
    let error = message(get(&HubEnv { offline: true, ..env }));
    assert!(error.contains(shards[1]) && error.contains("HF_HUB_OFFLINE"), "{error}");
}

// ---------------------------------------------------------------------------------------------- refusals

#[test]
fn errors_say_what_to_do() {
    let listing = "GET /api/models/org/tiny/revision/main";
    let table: [(&str, Answer, Option<&str>, &[&str]); 8] = [
        ("no such model", Answer::new(404, ""), None, &["org/tiny", "no such model", "private", "HF_TOKEN"]),
        ("without a token", Answer::new(401, ""), None, &["no such model", "private", "HF_TOKEN"]),
        ("bad token", Answer::new(401, ""), Some("wrong"), &["access refused (401)", "HF_TOKEN"]),
        (
            "gated",
            Answer::new(403, "").with("x-error-code", "GatedRepo"),
            Some("t"),
            &["access refused (403)", "terms"],
        ),
        (
            "gated, no token",
            Answer::new(401, "").with("x-error-code", "GatedRepo"),
            None,
            &["access refused (401)", "terms"],
        ),
        (
            "no such revision",
            Answer::new(404, "").with("x-error-code", "RevisionNotFound"),
            None,
            &["no revision \"main\""],
        ),
        ("server error", Answer::new(500, ""), None, &["HTTP status 500"]),
        ("not JSON", Answer::new(200, "<html>"), None, &["bad response", "the list of files"]),
    ];
    for (name, answer, token, expected) in table {
        let (scratch, hub) = (Scratch::new(&format!("refusal-{}", name.replace(' ', "-"))), FakeHub::start());
        hub.answer(listing, [answer]);
        let error = message(get(&HubEnv { token: token.map(str::to_string), ..env(&hub, &scratch) }));
        for part in expected {
            assert!(error.contains(part), "{name}: {error}");
        }
        assert!(!error.contains("wrong"), "{name}: the token is in {error}");
    }
}

#[test]
fn offline_and_not_cached_is_one_clear_error() {
    let (scratch, (hub, _storage)) = (Scratch::new("offline"), model());
    let error = message(get(&HubEnv { offline: true, ..env(&hub, &scratch) }));
    assert!(error.contains("config.json is not in the cache") && error.contains("HF_HUB_OFFLINE"), "{error}");
    assert_eq!(hub.lines(), [""; 0]);
    let unreachable = HubEnv { endpoint: Some("http://127.0.0.1:1".to_string()), ..env(&hub, &scratch) };
    let error = message(get(&unreachable));
    assert!(error.contains("http://127.0.0.1:1") && error.contains("org/tiny"), "{error}");
}

#[test]
fn a_repository_without_a_readable_model_says_so() {
    for (files, expected) in [
        (&["README.md"][..], "no config.json"),
        (&["config.json", "pytorch_model.bin", "mmproj.gguf"][..], "no GGUF model"),
        (&["config.json", "pytorch_model.bin"][..], "no model.safetensors"),
    ] {
        let (scratch, hub) = (Scratch::new("unreadable"), FakeHub::start());
        hub.list(files);
        hub.small("config.json", "{}");
        let error = message(get(&env(&hub, &scratch)));
        assert!(error.contains(expected), "{error}");
    }
}

/// Nothing that the network says becomes a path, unless it is a plain name.
#[test]
fn names_from_the_network_cannot_leave_the_cache() {
    let config = |hub: &FakeHub, etag: &str| {
        let answer = Answer::new(200, "{}").with("etag", format!("\"{etag}\""));
        hub.answer(&format!("GET {}", path("config.json")), [answer.clone()]);
        hub.answer(&format!("HEAD {}", path("config.json")), [answer]);
    };
    // The commit.
    let (scratch, hub) = (Scratch::new("escape-commit"), FakeHub::start());
    let listing = serde_json::json!({"sha": "../../../../outside", "siblings": [{"rfilename": "config.json"}]});
    hub.answer("GET /api/models/org/tiny/revision/main", [Answer::new(200, listing.to_string())]);
    assert!(message(get(&env(&hub, &scratch))).contains("commit"));
    // The ETag.
    for etag in ["../../outside", "/etc/passwd", "..", "", ".hidden", "a\\b"] {
        let (scratch, hub) = (Scratch::new("escape-etag"), FakeHub::start());
        hub.list(&["config.json", "model.safetensors"]);
        config(&hub, etag);
        let error = message(get(&env(&hub, &scratch)));
        assert!(error.contains("ETag"), "{etag:?}: {error}");
    }
    // The shards of an index.
    for shard in ["../outside.safetensors", "/tmp/outside.safetensors", "..", "a/b.safetensors", "model.bin"] {
        let (scratch, hub) = (Scratch::new("escape-shard"), FakeHub::start());
        hub.list(&["config.json", "model.safetensors.index.json"]);
        hub.small("config.json", "{}");
        hub.small("model.safetensors.index.json", &serde_json::json!({"weight_map": {"a": shard}}).to_string());
        let error = message(get(&env(&hub, &scratch)));
        assert!(error.contains("plain name"), "{shard:?}: {error}");
    }
}

#[test]
fn a_file_of_another_commit_is_refused() {
    let (scratch, (hub, _storage)) = (Scratch::new("commit"), model());
    let answer = Answer::new(200, "{}").with("etag", "\"x\"").with("x-repo-commit", OTHER_COMMIT);
    hub.answer(&format!("HEAD {}", path("config.json")), [answer]);
    assert!(message(get(&env(&hub, &scratch))).contains("another commit"));
}

#[test]
fn redirects_end() {
    let (scratch, hub) = (Scratch::new("loop"), FakeHub::start());
    hub.answer(
        "GET /api/models/org/tiny/revision/main",
        [Answer::new(302, "").with("location", "/api/models/org/tiny/revision/main")],
    );
    assert!(message(get(&env(&hub, &scratch))).contains("too many redirects"));
    let hub = FakeHub::start();
    hub.answer("GET /api/models/org/tiny/revision/main", [Answer::new(302, "").with("location", "file:///etc/passwd")]);
    assert!(message(get(&env(&hub, &scratch))).contains("invalid location"));
}

/// A renamed repository answers with a redirect on the same host; the token goes along.
#[test]
fn a_redirect_on_the_same_host_keeps_the_token() {
    let (scratch, (hub, _storage)) = (Scratch::new("renamed"), model());
    let listing = hub.answers("GET /api/models/org/tiny/revision/main");
    hub.answer(
        "GET /api/models/org/tiny/revision/main",
        [Answer::new(307, "").with("location", "/api/models/org/new/revision/main")],
    );
    hub.answer("GET /api/models/org/new/revision/main", listing);
    get(&env(&hub, &scratch)).expect("downloads");
    assert!(hub.seen().iter().all(|seen| seen.token.is_some()));
}

// ---------------------------------------------------------------------------------------------- names

#[test]
fn names_are_what_people_write() {
    let scratch = Scratch::new("forms");
    let env = HubEnv { hf_home: Some(scratch.to_path_buf()), offline: true, ..HubEnv::default() };
    for folder in ["models--Qwen--Qwen3-0.6B", "models--a--twin", "models--b--twin"] {
        fs::create_dir_all(scratch.join("hub").join(folder)).expect("a directory");
    }
    let llama = "unsloth/Llama-3.2-1B-Instruct-GGUF";
    let table = [
        ("org/name", "org/name".to_owned()),
        ("org/name@main:Q8_0", "org/name@main:Q8_0".to_owned()),
        ("hf.co/org/name:Q4_K_M", "org/name:Q4_K_M".to_owned()),
        ("https://huggingface.co/org/name", "org/name".to_owned()),
        ("https://www.huggingface.co/org/name/", "org/name".to_owned()),
        ("https://huggingface.co/org/name/tree/main", "org/name".to_owned()),
        ("https://huggingface.co/org/name/blob/main/Name-Q8_0.gguf", "org/name:Name-Q8_0".to_owned()),
        (
            "https://huggingface.co/org/name/resolve/v2/Q8_0/Name-00001-of-00002.gguf?download=true",
            "org/name@v2:Name".to_owned(),
        ),
        ("llama3.2:1b", format!("{llama}:Q4_K_M")),
        ("Llama3.2:1B", format!("{llama}:Q4_K_M")),
        ("llama3.2:1b-instruct-q8_0", format!("{llama}:Q8_0")),
        ("llama3.2:1b-fp16", format!("{llama}:F16")),
        ("llama3.2", "unsloth/Llama-3.2-3B-Instruct-GGUF:Q4_K_M".to_owned()),
        ("llama3.2:latest", "unsloth/Llama-3.2-3B-Instruct-GGUF:Q4_K_M".to_owned()),
        ("qwen3:0.6b", "Qwen/Qwen3-0.6B-GGUF:Q8_0".to_owned()),
        ("gpt-oss", "ggml-org/gpt-oss-20b-GGUF:MXFP4".to_owned()),
        ("Qwen3-0.6B", "Qwen/Qwen3-0.6B".to_owned()),
        ("qwen3-0.6b:Q8_0", "Qwen/Qwen3-0.6B:Q8_0".to_owned()),
        ("./x", "./x".to_owned()),
        ("x.gguf", "x.gguf".to_owned()),
    ];
    for (name, meant) in table {
        assert_eq!(canonical(name, &env).expect(name), meant, "{name}");
        assert!(is_name(name, &env), "{name}");
    }
    for (name, near) in [
        ("llama3.3", "llama3.2"),
        ("llama3.2:70b", "llama3.2:3b"),
        ("qwen3-embedding", "qwen3"),
        ("twin", "/twin"),
        ("qwne3", "qwen3"),
        ("hi", "twostroke pull lists them"),
        ("llama3.2:1b-large", "llama3.2:1b"),
    ] {
        let error = canonical(name, &env).expect_err(name).to_string();
        assert!(error.starts_with(&format!("{name:?} is no model")) && error.contains(near), "{error}");
        assert!(!is_name(name, &env), "{name}");
    }
    assert!(!is_name("two words", &env) && !is_name("", &env));
}

#[test]
fn every_short_name_stands_for_its_repository() {
    let env = HubEnv { offline: true, ..HubEnv::default() };
    let mut seen = Vec::new();
    for row in short_names() {
        assert!(row.gigabytes > 0.0 && !row.licence.is_empty(), "{row:?}");
        for name in row.names.split(' ') {
            assert_eq!(canonical(name, &env).expect(name), format!("{}:{}", row.repository, row.quant), "{name}");
            assert!(!seen.contains(&name), "{name} stands twice");
            seen.push(name);
        }
    }
    assert!(seen.len() > 20);
}

#[test]
fn what_comes_is_said_before_its_first_byte() {
    let (scratch, hub) = (Scratch::new("announced"), FakeHub::start());
    let list = |size: u64| {
        let siblings = [("t-Q8_0.gguf", size), ("t-Q4_0.gguf", 7)]
            .map(|(file, size)| serde_json::json!({"rfilename": file, "size": size}));
        let body = serde_json::json!({"sha": COMMIT, "siblings": siblings, "tags": ["gguf", "license:apache-2.0"]});
        hub.answer("GET /api/models/org/tiny/revision/main", [Answer::new(200, body.to_string())]);
    };
    list(5);
    hub.small("t-Q8_0.gguf", "eight");
    let told = |hub: &FakeHub| {
        let mut told = Vec::new();
        let found = resolve("org/tiny:Q8_0", &env(hub, &scratch), &mut |event| {
            if let DownloadEvent::Begins(incoming) = event {
                told.push((incoming.files.clone(), incoming.bytes, incoming.licence.clone(), incoming.free.is_some()));
            }
            true
        });
        (told, found)
    };
    let (first, _) = told(&hub);
    assert_eq!(first, [(vec!["t-Q8_0.gguf".to_owned()], Some(5), Some("apache-2.0".to_owned()), true)]);
    assert_eq!(told(&hub).0, [], "it is here");
    // What no disk holds is refused, and nothing is asked for.
    fs::remove_dir_all(scratch.join("hub")).expect("it was there");
    list(u64::MAX);
    let before = hub.lines().len();
    let (nothing, refused) = told(&hub);
    let error = message(refused);
    assert!(nothing.is_empty() && error.contains("bytes to download") && error.contains("are free"), "{error}");
    assert_eq!(hub.lines().len(), before + 1, "the list alone");
}

#[test]
fn a_directory_wins_over_a_model_id() {
    let scratch = Scratch::new("directory");
    let directory = scratch.join("org/tiny");
    fs::create_dir_all(&directory).expect("a directory");
    let spec = directory.to_str().expect("text");
    let env = HubEnv { endpoint: Some("http://127.0.0.1:1".to_string()), ..HubEnv::default() };
    assert_eq!(resolve(spec, &env, &mut |_| true).expect("is there"), directory);
    let file = scratch.join("weights.gguf");
    fs::write(&file, "x").expect("writes");
    assert_eq!(resolve(file.to_str().expect("text"), &env, &mut |_| true).expect("a GGUF file is a model"), file);
    let file = scratch.join("model.safetensors");
    fs::write(&file, "x").expect("writes");
    let error = message(resolve(file.to_str().expect("text"), &env, &mut |_| true));
    assert!(error.contains("is a file"), "{error}");
}

#[test]
fn what_is_not_a_model_id_is_refused_before_any_request() {
    let (scratch, hub) = (Scratch::new("names"), FakeHub::start());
    for spec in [
        "",
        "tiny",
        "a/b/c",
        "/no/such/place",
        "./missing",
        "../x/y",
        "org/..",
        "../tiny",
        "org/tiny@",
        "org/tiny@../main",
        "org/tiny@a//b",
        "org/.tiny",
        "-org/tiny",
        "org/ti ny",
        "org/tiny?x",
        "org/tiny#x",
        "org/t\u{ef}ny",
        "http://a/b",
        "org/tiny@a@b",
        &"x/".repeat(3),
        &format!("org/{}", "x".repeat(100)),
    ] {
        let error = message(resolve(spec, &env(&hub, &scratch), &mut |_| true));
        let known = error.contains("no such file or directory") || error.contains("is no model");
        assert!(known, "{spec:?}: {error}");
    }
    assert_eq!(hub.lines(), [""; 0]);
}

#[test]
fn a_revision_may_be_a_branch_a_tag_or_a_commit() {
    let (scratch, (hub, _storage)) = (Scratch::new("revision"), model());
    let listing = hub.answers("GET /api/models/org/tiny/revision/main");
    hub.answer("GET /api/models/org/tiny/revision/refs%2Fpr%2F1", listing.clone());
    hub.answer(&format!("GET /api/models/org/tiny/revision/{COMMIT}"), listing);
    let by_commit = resolve(&format!("org/tiny@{COMMIT}"), &env(&hub, &scratch), &mut |_| true).expect("downloads");
    let by_branch = resolve("org/tiny@refs/pr/1", &env(&hub, &scratch), &mut |_| true).expect("downloads");
    assert_eq!(by_commit, by_branch);
    let refs = scratch.join("hub/models--org--tiny/refs");
    assert_eq!(fs::read_to_string(refs.join("refs/pr/1")).expect("a ref"), COMMIT);
    assert!(!refs.join(COMMIT).exists());
}

#[test]
fn the_environment_names_the_cache_and_the_token() {
    let (scratch, (hub, _storage)) = (Scratch::new("environment"), model());
    let cache = scratch.join("elsewhere");
    let env = HubEnv { hub_cache: Some(cache.clone()), token: None, ..env(&hub, &scratch) };
    fs::write(scratch.join("token"), "saved\n").expect("writes");
    let snapshot = get(&env).expect("downloads");
    assert!(snapshot.starts_with(cache.join("models--org--tiny")));
    assert!(hub.seen().iter().all(|seen| seen.token.as_deref() == Some("Bearer saved")));
}
