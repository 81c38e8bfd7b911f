//! `twostroke quantize`: what a person sees, what is on the disk afterwards, and wrong inputs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use testing::Scratch;
use tests::{Ran, binary, root, run, signal, twostroke};

fn quantize(arguments: &[&str]) -> Ran {
    run(&mut twostroke(&[&["quantize", "-t", "1"], arguments].concat()))
}

fn answer(arguments: &[&str]) -> String {
    let story = ["run", "Tell me a story about a fox", "-n", "30", "--temperature", "0", "-q", "-t", "1"];
    let ran = run(&mut twostroke(&[&story[..], arguments].concat()));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "-q says nothing of the weights: {ran:?}");
    ran.stdout
}

#[test]
fn a_written_model_answers() {
    let scratch = Scratch::new("answers");
    for class in ["int8", "int4"] {
        let output = scratch.file(class);
        let ran = quantize(&["--weights", class, "-o", &output]);
        assert_eq!((ran.code, ran.stderr.as_str(), ran.stdout.lines().count()), (Some(0), "", 1), "{ran:?}");
        assert!(ran.stdout.contains(&format!("35 matrices in {class}")), "{ran:?}");
        // The default takes what is stored; int4 in files has even levels, in memory uneven ones.
        let (stored, made) = (answer(&["-m", &output]), answer(&["--weights", class]));
        assert!(if class == "int8" { stored == made } else { stored.len() > 20 }, "{class}: {stored}, not {made}");
        let bits = fs::metadata(Path::new(&output).join("model.safetensors")).expect("it is there").len();
        let original = fs::metadata(root().join("models/lantern/model.safetensors")).expect("it is there").len();
        assert!(bits < original * 6 / 10, "{class}: {bits} bytes of {original}");
    }
    assert_eq!(scratch.names(), ["int4", "int8"]);
}

/// Int8: the text decides with, and none of our matrices stands out. Int4: it is rounded by the text.
#[test]
fn a_text_is_measured_on_or_rounded_by() {
    let scratch = Scratch::new("text");
    let text = scratch.file("text");
    let story = "<|user|>\nTell me a story.<|end|>\n<|assistant|>\nOnce there was a fox.<|end|>\n";
    fs::write(&text, story).expect("it can");
    let weights = |directory: &str| fs::read(Path::new(directory).join("model.safetensors")).expect("it is there");
    for class in ["int8", "int4"] {
        let (output, plain) = (scratch.file(class), scratch.file(&format!("{class}-plain")));
        let ran = quantize(&["--weights", class, "-o", &output, "--text", &text]);
        assert_eq!((ran.code, ran.stderr.as_str(), ran.stdout.lines().count()), (Some(0), "", 1), "{ran:?}");
        assert!(ran.stdout.contains(&format!("35 matrices in {class}")), "{ran:?}");
        assert_eq!(quantize(&["--weights", class, "-o", &plain]).code, Some(0));
        assert_eq!(weights(&output) == weights(&plain), class == "int8", "{class}");
        assert!(answer(&["-m", &output]).len() > 20);
    }
    // The recipe is told, and a long text is cut.
    let long = scratch.file("long");
    fs::write(&long, story.repeat(3000)).expect("it can");
    let cut = "--text: the first 16384 tokens are used\n";
    let rows = [("safetensors", "directory", &text, ""), ("gguf", "file.gguf", &long, cut)];
    for (format, name, text, notice) in tests::part_of(rows, 2) {
        let output = scratch.file(name);
        let arguments = ["--weights", "int4", "--format", format, "-o", &output, "--text", text, "--bits", "5"];
        let ran = quantize(&arguments);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), notice), "{ran:?}");
        let lines: Vec<&str> = ran.stdout.lines().collect();
        assert!(lines[0].contains("bits for each code") && lines.len() > 2, "{ran:?}");
        assert!(lines[1..].iter().all(|line| line.starts_with("int8: model.layers.")), "{ran:?}");
        assert!(answer(&["-m", &output]).len() > 20);
    }
}

#[test]
fn what_is_kept_is_named_with_its_reason() {
    let scratch = Scratch::new("kept");
    let data = root().join("crates/model/tests/data");
    for (model, class, wanted) in [
        ("qwen3", "int8", "model.layers.0.mlp.down_proj: rows of 96 weights are no whole groups of 64"),
        ("llama3", "int4", "model.layers.0.mlp.down_proj: rows of 100 weights are no whole groups of 32"),
    ] {
        let ran =
            quantize(&["-m", &data.join(model).to_string_lossy(), "--weights", class, "-o", &scratch.file(model)]);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
        assert!(ran.stdout.contains(&format!("kept as stored: {wanted}\n")), "{ran:?}");
    }
}

#[test]
fn wrong_inputs_are_one_line_and_leave_nothing() {
    let scratch = Scratch::new("wrong");
    let (out, taken) = (scratch.file("out"), scratch.file("taken"));
    fs::create_dir(&taken).expect("it can");
    let nowhere = scratch.file("no/such/out");
    let data = root().join("crates/model/tests/data");
    let path = |name: &str| data.join(name).to_string_lossy().into_owned();
    let (quantized, gguf, tiny) = (path("quantized/w8a8-channel"), path("gguf/llama3-v5.gguf"), path("qwen3"));
    let table: &[(&[&str], &str)] = &[
        (&["--weights", "int8"], "--output"),
        (&["-o", &out], "--weights"),
        (&["-o", &out, "--weights", "int2"], "int2"),
        (&["-o", &out, "--weights", "int8", "-t", "100000"], "100000"),
        (&["-o", &taken, "--weights", "int8"], "taken: exists already"),
        (&["-o", &nowhere, "--weights", "int8"], "no such directory"),
        (&["-o", &out, "--weights", "int8", "-m", "no-such-directory"], "no-such-directory"),
        (&["-o", &out, "--weights", "int8", "-m", &quantized], "quantized already, by \"compressed-tensors\""),
        (&["-o", &out, "--weights", "int8", "-m", &gguf], "a GGUF file"),
        (&["-o", &out, "--weights", "int8", "--text", "/no/such/file"], "--text: /no/such/file"),
        (&["-o", &out, "--weights", "int4", "--text", "/no/such/file"], "--text: /no/such/file"),
        (&["-o", &out, "--weights", "int4", "--bits", "5"], "--text"),
        (&["-o", &out, "--weights", "int8", "--text", "README.md", "--bits", "5"], "--bits: goes with --weights int4"),
        (&["-o", &out, "--weights", "int4", "--text", "README.md", "--bits", "3"], "from 4 to 8"),
        (&["-o", &out, "--weights", "int4", "--text", "README.md", "--bits", "9"], "from 4 to 8"),
        (&["-o", &out, "--weights", "int4", "--text", "README.md", "--bits", "NaN"], "from 4 to 8"),
        (&["-o", &out, "--weights", "int4", "--text", "README.md", "--bits", "many"], "not a number"),
        // It has no tokenizer, which only a text needs.
        (&["-o", &out, "--weights", "int8", "-m", &tiny, "--text", "README.md"], "tokenizer.json"),
    ];
    for (arguments, wanted) in table {
        let ran = run(twostroke(&[&["quantize"], *arguments].concat()).current_dir(root()));
        assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.lines().count()), (Some(2), "", 1), "{ran:?}");
        assert!(ran.stderr.contains(wanted), "{wanted}: {ran:?}");
        assert_eq!(scratch.names(), ["taken"], "{arguments:?}");
    }
}

/// A limit on the size of files stands for a disk that is full.
#[test]
fn a_write_that_fails_leaves_nothing() {
    let scratch = Scratch::new("limit");
    let output = scratch.file("out");
    let script = "ulimit -f 100; exec \"$0\" quantize --weights int8 -o \"$1\"";
    let ran = run(Command::new("bash").args(["-c", script]).arg(binary()).arg(&output));
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.lines().count()), (Some(1), "", 1), "{ran:?}");
    assert!(ran.stderr.contains("nothing was written") && ran.stderr.contains(&output), "{ran:?}");
    assert!(scratch.names().is_empty(), "{:?}", scratch.names());
}

#[test]
fn a_directory_that_cannot_be_written_to_is_told() {
    let scratch = Scratch::new("locked");
    fs::set_permissions(&scratch, fs::Permissions::from_mode(0o555)).expect("it is ours");
    // A user who may write everywhere cannot be kept out.
    if fs::write(scratch.join("probe"), b"").is_err() {
        let ran = quantize(&["--weights", "int8", "-o", &scratch.file("out")]);
        assert_eq!((ran.code, ran.stderr.lines().count()), (Some(1), 1), "{ran:?}");
        assert!(ran.stderr.contains("ermission denied"), "{ran:?}");
    }
    fs::set_permissions(&scratch, fs::Permissions::from_mode(0o755)).expect("it is ours");
}

/// Ctrl-C while a long text is measured: the same as at any other place, but long enough to be met.
#[test]
fn ctrl_c_ends_it_and_leaves_nothing() {
    let scratch = Scratch::new("interrupt");
    let text = scratch.file("text");
    fs::write(&text, "Once there was a fox who found a lantern. ".repeat(40_000)).expect("it can");
    let output = scratch.file("out");
    let arguments = ["quantize", "--weights", "int4", "-o", &output, "--text", &text];
    let mut child = twostroke(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    // As soon as it listens: SIGINT is the second bit of the signals that are caught.
    let listens = || {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it runs");
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("Linux says so");
        u64::from_str_radix(caught.trim(), 16).expect("a mask") & 2 != 0
    };
    while !listens() {
        std::thread::sleep(Duration::from_millis(5));
    }
    signal("INT", child.id());
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    assert_eq!(scratch.names(), ["text"]);
}
