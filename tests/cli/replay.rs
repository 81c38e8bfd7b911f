//! `twostroke serve --record` and `twostroke replay`: the same steps and tokens, or the step that differs.

use std::fs;
use std::path::{Path, PathBuf};

use tests::{Ran, Server, run, signal, twostroke};

/// A path of this process's own that does not exist.
pub(crate) fn place(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("twostroke-replay-{}-{name}", std::process::id()));
    let _ = fs::remove_file(&path);
    path
}

/// A server that was recorded while it answered a few questions at a time.
pub(crate) fn recorded(name: &str) -> PathBuf {
    let path = place(name);
    let mut server = Server::start(&["--record", &path.to_string_lossy(), "--max-num-batched-tokens", "64"]);
    std::thread::scope(|scope| {
        for number in 0..12 {
            let server = &server;
            scope.spawn(move || {
                let prompt = "Once upon a time there was a fox. ".repeat(number + 1);
                // Every second answer may end early; how early depends on the arithmetic, and so on the machine.
                let stop = if number % 2 == 0 { r#"["the"]"# } else { "null" };
                let body = format!(r#"{{"prompt":"{prompt}","max_tokens":{},"stop":{stop}}}"#, 10 + 5 * number);
                assert_eq!(server.request("POST", "/v1/completions", &[], &body).0, 200);
            });
        }
    });
    signal("TERM", server.pid());
    assert_eq!(server.wait(), Some(0));
    path
}

fn replay(path: &Path, more: &[&str]) -> Ran {
    let path = path.to_string_lossy();
    run(&mut twostroke(&[&["replay", &path], more].concat()))
}

#[test]
fn a_recorded_server_is_replayed() {
    let path = recorded("run");
    let text = fs::read_to_string(&path).expect("it is there");
    let timed = text.lines().filter(|line| line.starts_with("{\"step\"") && !line.contains("\"predicted\":0,")).count();
    for more in [&["--json"][..], &["--json", "-m", "lantern", "-t", "1"]] {
        let ran = replay(&path, more);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
        let told = ran.json();
        assert_eq!((&told["requests"], &told["equal"]), (&12.into(), &true.into()), "{told}");
        assert_eq!((&told["was_cut_off"], &told["computed"]), (&false.into(), &(more.len() > 1).into()), "{told}");
        assert!(told["steps"].as_u64() > Some(10) && told["tokens"].as_u64() > Some(20), "{told}");
        let predictions = told["predictions"].as_array().expect("of each kind of steps");
        let predicted: u64 = predictions.iter().map(|kind| kind["predicted"].as_u64().expect("a number")).sum();
        assert_eq!(predicted, timed as u64, "each step is of one kind: {told}");
        assert!(told["steps"].as_u64() >= Some(predicted), "{told}");
        for kind in predictions {
            let judged = kind["number"].as_u64();
            assert!(
                judged <= kind["predicted"].as_u64() && kind["median_error"].is_null() == (judged < Some(30)),
                "{told}"
            );
        }
    }
    let ran = replay(&path, &[]);
    assert!(ran.stdout.contains("all equal") && ran.stdout.contains("\npredicted  decode "), "{ran:?}");

    // A doctored log fails, and the step is named.
    let line = text.lines().filter(|line| line.starts_with("{\"step\"")).nth(5).expect("there are more steps");
    let step = line.split("\"n\":").nth(1).and_then(|rest| rest.split(',').next()).expect("its number");
    fs::write(&path, text.replace(line, &line.replace("\"waiting\":", "\"waiting\":9"))).expect("it can be written");
    let ran = replay(&path, &[]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
    assert!(ran.stderr.contains(&format!("step {step} ")) && ran.stderr.lines().count() == 1, "{ran:?}");
    fs::remove_file(&path).expect("it was ours");
}

#[test]
fn what_is_no_recording_is_one_line_and_exit_code_2() {
    let cases: &[(&str, &[u8], &str)] = &[
        ("empty", b"", "empty"),
        ("garbage", &[0xff; 5000], "not JSON"),
        ("older", b"{\"twostroke_recording\":3}\n", "format 3"),
        ("newer", b"{\"twostroke_recording\":6}\n", "format 6"),
    ];
    for (name, bytes, wanted) in cases {
        let path = place(name);
        fs::write(&path, bytes).expect("room for it");
        let ran = replay(&path, &[]);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{ran:?}");
        assert!(ran.stderr.contains(wanted) && ran.stderr.lines().count() == 1, "{ran:?}");
        fs::remove_file(&path).expect("it was ours");
    }
    for path in [std::env::temp_dir(), place("missing")] {
        assert_eq!(replay(&path, &[]).code, Some(2), "{}", path.display());
    }
    let ran = run(&mut twostroke(&["serve", "--port", "0", "--record", "/no/such/place/run"]));
    assert!(ran.code == Some(2) && ran.stderr.contains("--record"), "{ran:?}");
}

/// What drafts brought: the same run without them.
#[test]
fn a_recorded_server_is_asked_what_its_drafts_brought() {
    let path = place("drafts");
    let mut server = Server::start(&["--record", &path.to_string_lossy(), "--speculate", "auto"]);
    let prompt = "The fox sat by the door. The owl sang of gold. ".repeat(3);
    let body = format!(r#"{{"prompt":"{prompt}","max_tokens":100,"temperature":0,"ignore_eos":true}}"#);
    // How many drafts pay is the machine's to say, and a busy one says few. Each answer has some that are tried whether or
    // not they pay, and what was answered before is drafted right.
    for _ in 0..4 {
        assert_eq!(server.request("POST", "/v1/completions", &[], &body).0, 200);
    }
    signal("TERM", server.pid());
    assert_eq!(server.wait(), Some(0));
    let whatif = |more: &[&str]| run(&mut twostroke(&[&["whatif", &path.to_string_lossy()], more].concat()));
    let ran = whatif(&[]);
    assert!(ran.code == Some(0) && ran.stdout.contains("drafts accepted"), "{ran:?}");
    let told = whatif(&["--speculate", "off", "--json"]).json();
    // Of each answer the first token came with the prompt; an accepted draft saved a step.
    let (accepted, tokens) = (told["recorded"]["held"].as_f64().expect("a number"), 4.0 * 99.0);
    let per_step = told["recorded"]["tokens_per_step"].as_f64().expect("a number");
    assert!(accepted > 0.0 && (per_step - tokens / (tokens - accepted)).abs() < 1e-9, "{told}");
    assert_eq!((&told["what_if"]["drafted"], &told["what_if"]["tokens_per_step"]), (&0.into(), &1.0.into()), "{told}");
    fs::remove_file(&path).expect("it was ours");
}
