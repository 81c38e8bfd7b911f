//! `twostroke lab`: both phases as curves, their laws, and a page to look at.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;
use testing::Scratch;
use tests::{run, signal, twostroke};

fn read(directory: &Path, file: &str) -> String {
    fs::read_to_string(directory.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

#[test]
fn a_lab_measures_and_explains() {
    let directory = Scratch::new("all");
    let points = ["lab", "--prompts", "16,32,64,128", "--positions", "0,64,256", "--batches", "1,2,4"];
    let ran = run(&mut twostroke(&[&points[..], &["-r", "3", "-t", "1", "-o", directory.text()]].concat()));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for words in ["Prefill time against the length of the prompt", "R^2", "was bound by"] {
        assert!(ran.stdout.contains(words), "{words:?}: {}", ran.stdout);
    }
    // A run that was disturbed follows none.
    let has_law = ran.stdout.contains("a prompt of n tokens takes") || ran.stdout.contains("no law: ");
    assert!(has_law, "{}", ran.stdout);
    let json: Value = serde_json::from_str(&read(&directory, "lab.json")).expect("JSON");
    assert_eq!((&json["model"], &json["interrupted"]), (&"lantern".into(), &false.into()));
    let points = |index: usize| json["sweeps"][index]["points"].as_array().expect("points").clone();
    for (index, xs) in [vec![16, 32, 64, 128], vec![0, 64, 256], vec![1, 2, 4]].into_iter().enumerate() {
        let measured = points(index);
        assert_eq!(measured.iter().map(|point| point["x"].as_u64().expect("x")).collect::<Vec<_>>(), xs);
        for point in measured {
            assert_eq!(point["samples_ms"].as_array().map(Vec::len), Some(3), "{point}");
            let mut samples: Vec<f64> = serde_json::from_value(point["samples_ms"].clone()).expect("numbers");
            let median = figures::median(&mut samples).expect("three");
            assert!((point["median_ms"].as_f64().expect("a number") / median - 1.0).abs() < 1e-9, "{point}");
            assert!(point["intensity"].as_f64() > Some(0.0), "{point}");
        }
        let law = &json["sweeps"][index]["law"];
        assert!(law.is_null() || law["words"].as_str().is_some_and(|words| words.contains("takes")), "{law}");
        for point in points(index) {
            for share in ["compute_percent", "memory_percent"] {
                assert!(point[share].as_f64() <= Some(100.1), "what was reached is possible: {point}");
            }
        }
    }
    // Counted, not measured: a batch makes more of each byte.
    let intensity = |index: usize| points(2)[index]["intensity"].as_f64().expect("a number");
    assert!(intensity(0) < intensity(1) && intensity(1) < intensity(2));
    assert_eq!(read(&directory, "lab.csv").lines().count(), 1 + 4 + 3 + 3);
    let square = "width=\"6.4\"";
    for (name, mark) in [("prefill", square), ("position", "<circle"), ("batch", "<circle"), ("roofline", square)] {
        let svg = read(&directory, &format!("{name}.svg"));
        assert!(svg.starts_with("<svg ") && svg.contains(mark), "{name}");
    }
    let html = read(&directory, "lab.html");
    assert_eq!(html.matches("<svg ").count(), 4);
    for absent in ["<script", "http://", "https://", "src=", "href="] {
        let own = if absent == "http://" { html.matches("http://www.w3.org/2000/svg").count() } else { 0 };
        assert_eq!(html.matches(absent).count(), own, "{absent}: it opens without network and script");
    }
}

/// What a process has used of all processors so far.
fn processor_seconds(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    // The name before them is in brackets; the kernel counts user and system time in hundredths of a second.
    let (_, fields) = status.rsplit_once(')').expect("a name in brackets");
    let fields: Vec<f64> =
        fields.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse().expect("ticks")).collect();
    fields.iter().sum::<f64>() / 100.0
}

#[test]
fn ctrl_c_keeps_what_was_measured() {
    let directory = Scratch::new("ctrl-c");
    let path = directory.text();
    let points = ["lab", "--prompts", "16,32", "--positions", "0", "--batches", "1"];
    let arguments = [&points[..], &["-r", "65536", "-t", "1", "-o", path]].concat();
    let mut child = twostroke(&arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut line = String::new();
    let mut stderr = BufReader::new(child.stderr.take().expect("standard error is piped"));
    stderr.read_line(&mut line).expect("it says when it begins");
    assert!(line.contains("Ctrl-C keeps"), "{line}");
    // A repetition takes a millisecond of a processor, however long it has to wait for one.
    let begun = processor_seconds(child.id());
    tests::wait("some repetitions", || processor_seconds(child.id()) > begun + 3.0);
    signal("INT", child.id());
    line.clear();
    stderr.read_line(&mut line).expect("it says that it ends");
    assert!(line.contains("ending: what was measured is written"), "{line}");
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    // The first point would never end with that many repetitions; those that were done are there, the others are not.
    let json: Value = serde_json::from_str(&read(&directory, "lab.json")).expect("JSON");
    assert_eq!(json["interrupted"], true);
    let points = |index: usize| json["sweeps"][index]["points"].as_array().expect("points").len();
    assert_eq!([points(0), points(1), points(2)], [1, 0, 0]);
    assert!(read(&directory, "lab.html").contains("interrupted"));
}

#[test]
fn what_is_wrong_is_one_line() {
    let table: &[(&[&str], &str)] = &[
        (&["--prompts", "100000"], "--prompts: 100000 needs 100000 tokens; this model reads at most"),
        (&["--positions", "1,many"], "many"),
        (&["--batches", "0"], "must be at least 1"),
        (&["-r", "0"], "must be at least 1"),
        (&["-o", "/dev/null/lab"], "--output"),
    ];
    for (arguments, words) in table {
        let ran = run(&mut twostroke(&[&["lab"], *arguments].concat()));
        assert_eq!((ran.code, ran.stderr.lines().count()), (Some(2), 1), "{arguments:?}: {ran:?}");
        assert!(ran.stderr.contains(words), "{arguments:?}: {}", ran.stderr);
    }
}
