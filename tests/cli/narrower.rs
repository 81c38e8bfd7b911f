//! The lines at the start that say which weights were taken, and what int8 would bring.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value, json};
use testing::{Scratch, lantern};
use tests::{Ran, run, signal, twostroke};

/// A cache of this test's own and a copy of the built-in model, removed when dropped.
struct Place {
    own: Scratch,
    copy: Scratch,
}

impl Place {
    fn new(name: &str) -> Place {
        Place { own: Scratch::new(name), copy: Scratch::copy_of(&lantern(), "a model") }
    }

    fn model(&self) -> String {
        self.copy.text().to_owned()
    }

    /// Files that are kept, by the end of their names.
    fn kept(&self, ending: &str) -> Vec<PathBuf> {
        let entries = self.own.join("cache/twostroke/packed").read_dir().into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| path.to_string_lossy().ends_with(ending)).collect()
    }

    fn call(&self, arguments: &[&str]) -> Ran {
        let ran = run(twostroke(arguments).env("XDG_CACHE_HOME", self.own.join("cache")));
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran
    }

    /// Standard error of a short answer but for the line about the phases.
    fn start(&self, flags: &[&str]) -> Vec<String> {
        let ran = self.call(&[&["run", "Hello there", "-n", "1", "--temperature", "0", "-t", "1"], flags].concat());
        ran.stderr.lines().filter(|line| !line.starts_with("prefill ")).map(String::from).collect()
    }

    fn brings(&self, flags: &[&str]) -> String {
        let lines = self.start(flags);
        assert_eq!((lines.len(), lines[0].as_str()), (2, "weights: bf16, as the checkpoint is stored"), "{lines:?}");
        lines[1].strip_prefix("int8 would bring: ").unwrap_or_else(|| panic!("{lines:?}")).to_string()
    }

    /// See [`keep_limits`].
    fn keep_limits(&self, int8_ops: f64, bf16_flops: f64) {
        keep_limits(&self.own.join("cache"), int8_ops, bf16_flops);
    }

    /// On a short text of that name.
    fn measure(&self, text: &str, flags: &[&str]) {
        let path = self.own.join(text);
        fs::write(&path, "A small model is built into the binary, so this needs no download.\n")
            .expect("it can be written to");
        self.call(&[&["quality", "-t", "1", "--text", &path.to_string_lossy()], flags].concat());
    }
}

/// Replaces the limits that `doctor` keeps in a cache, for one thread, by some that no measurement exceeds.
pub(crate) fn keep_limits(cache: &Path, int8_ops: f64, bf16_flops: f64) {
    let kept = || {
        let mut files = cache.join("twostroke/packed").read_dir().ok()?.flatten().map(|entry| entry.path());
        files.find(|path| path.extension().is_some_and(|extension| extension == "limits"))
    };
    if kept().is_none() {
        run(twostroke(&["doctor", "-t", "1"]).env("XDG_CACHE_HOME", cache));
    }
    let file = kept().expect("doctor has kept what it has measured");
    let mut kept = rates::kept::KeptResult::<Value>::read(&file).expect("it is there, and whole");
    let rates = [1e12, 1e12, int8_ops, bf16_flops, 1e18];
    let samples = rates.map(|rate| vec![json!({"rate": rate, "unix_s": 0}); 3]);
    kept.found["samples"] = json!(samples);
    kept.found["cache_bytes"] = json!(0);
    kept.write(&file).expect("it can be written to");
}

#[test]
fn what_is_not_known_is_left_out() {
    let scratch = Place::new("unknown");
    let rest = "0.51 of the memory; quality: twostroke quality --weights int8 tells";
    // Nothing is measured for the line, nor for the answer; what `doctor` has measured, the next start knows.
    assert_eq!(scratch.brings(&[]), rest);
    scratch.keep_limits(4e18, 2e18);
    let brings = scratch.brings(&[]);
    let factors: Vec<f64> = brings.split(", ").filter_map(|part| part.split('x').next()?.parse().ok()).collect();
    assert!(factors.len() == 2 && factors.iter().all(|factor| (1.0..=2.0).contains(factor)), "{brings}");
    assert_eq!(brings, format!("{:.1}x prefill, {:.1}x decode, {rest}", factors[0], factors[1]));
    // That measurement was disturbed.
    scratch.keep_limits(1e18, 2e18);
    assert_eq!(scratch.brings(&[]), rest);
    fs::remove_file(&scratch.kept(".limits")[0]).expect("it is there");
    assert!(scratch.brings(&["--no-packed-cache"]).starts_with("0.51 of the memory; "));
    assert_eq!(scratch.kept("").len(), 0, "nothing is kept unless asked for");
}

#[test]
fn the_command_measures_what_was_asked_for() {
    let scratch = Place::new("command");
    let model = scratch.model();
    let brings = scratch.brings(&["-m", &model, "--kv-dtype", "int8", "--arithmetic", "tiles"]);
    let command = format!("twostroke quality -m '{model}' --weights int8 --kv-dtype int8 --arithmetic tiles");
    assert!(brings.ends_with(&format!("; quality: {command} tells")), "{brings}");
}

#[test]
fn only_who_chose_nothing_and_listens_is_told() {
    let scratch = Place::new("chosen");
    for flags in [&["--weights", "bf16"][..], &["--weights", "int8"], &["-q"], &["--json"]] {
        assert_eq!(scratch.start(flags), [""; 0], "{flags:?}");
    }
    let narrow = scratch.own.join("int8").to_string_lossy().into_owned();
    scratch.call(&["quantize", "--weights", "int8", "-o", &narrow]);
    assert_eq!(scratch.start(&["-m", &narrow]), ["weights: int8, as the checkpoint is stored"]);
}

#[test]
fn the_figure_of_quality_is_named_as_long_as_it_holds() {
    let scratch = Place::new("figure");
    let model = scratch.model();
    let of_model = ["-m", model.as_str()];
    let has_figure = |flags: &[&str]| scratch.brings(&[&of_model, flags].concat()).contains("; KL 0.0");
    let others = [&["--weights", "int8", "--no-packed-cache"][..], &["--weights", "bf16"], &["--weights", "int4"]];
    for flags in tests::part_of(others, 3) {
        scratch.measure("notes.txt", &[&of_model, flags].concat());
        assert!(scratch.kept(".quality").is_empty() && !has_figure(&[]), "{flags:?}");
    }
    scratch.measure("notes.txt", &[&of_model[..], &["--weights", "int8"]].concat());
    let brings = scratch.brings(&of_model);
    assert!(brings.contains("; KL 0.0") && brings.ends_with(" tokens of notes.txt)"), "{brings}");
    // Of another precision, another model, and for those who want nothing of it.
    assert!(!has_figure(&["--kv-dtype", "int8"]) && !has_figure(&["--no-packed-cache"]));
    let both = ["pairs", "tiles"].map(|arithmetic| has_figure(&["--arithmetic", arithmetic]));
    assert!(both[0] != both[1], "one of them is what this machine took: {both:?}");
    assert!(!scratch.brings(&[]).contains("KL"));
    // Another text takes its place; its name goes to a terminal.
    scratch.measure("oth\u{1b}er.txt", &["-m", &model, "--weights", "int8"]);
    assert!(scratch.brings(&of_model).ends_with(" tokens of other.txt)"));
    assert_eq!(scratch.kept(".quality").len(), 1);
    // What is broken is as good as nothing.
    let file = scratch.kept(".quality").remove(0);
    let good = fs::read_to_string(&file).expect("it is there");
    let bad = ["", "[]", &good[..good.len() / 2], &good.replace("\"tokens\"", "\"t\""), &good.replace("0.0", "-0.0")];
    for bad in tests::part_of(bad, 2) {
        assert_ne!(bad, good);
        fs::write(&file, bad).expect("it can be written to");
        assert!(!has_figure(&[]), "{bad}");
    }
    fs::write(&file, &good).expect("it can be written to");
    assert!(has_figure(&[]));
    // Other weights.
    let weights = scratch.copy.join("model.safetensors");
    let bytes = fs::read(&weights).expect("it is there");
    fs::write(&weights, bytes).expect("it can be written to");
    assert!(!has_figure(&[]));
}

#[test]
fn the_built_in_model_has_a_figure_too() {
    let scratch = Place::new("built-in");
    scratch.measure("notes.txt", &["--weights", "int8"]);
    let brings = scratch.brings(&[]);
    assert!(brings.contains("; KL 0.0") && brings.ends_with(" tokens of notes.txt)"), "{brings}");
    // That of the text in the binary takes seconds.
    if tests::is_long() {
        scratch.call(&["quality", "--weights", "int8"]);
        let brings = scratch.brings(&[]);
        assert!(brings.contains("; KL 0.00") && brings.ends_with(" tokens of the calibration text)"), "{brings}");
    }
}

#[test]
fn a_server_says_it_beside_its_lines() {
    let scratch = Place::new("server");
    scratch.keep_limits(4e18, 2e18);
    for (flags, told) in [(&[][..], true), (&["--json"][..], false)] {
        let mut command = twostroke(&[&["serve", "--port", "0", "-t", "1"], flags].concat());
        command.env("XDG_CACHE_HOME", scratch.own.join("cache"));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let last = if told { "serving " } else { "{" };
        assert!(stdout.lines().map_while(Result::ok).any(|line| line.starts_with(last)), "{flags:?}");
        signal("TERM", child.id());
        let output = child.wait_with_output().expect("it ends");
        let stderr = String::from_utf8_lossy(&output.stderr);
        let brings = stderr.lines().find(|line| line.starts_with("int8 would bring: "));
        assert_eq!(brings.is_some(), told, "{flags:?}: {stderr}");
        assert!(brings.is_none_or(|line| line.contains("x prefill, ") && line.contains("x decode, ")), "{stderr}");
    }
}
