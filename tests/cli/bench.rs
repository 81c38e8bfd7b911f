//! `twostroke bench`: llama-bench's flags and row shape.

use serde_json::Value;
use tests::{run, twostroke};

/// One thread: each row measures the limits of the machine twice, and that takes time of every thread.
const SMALL: [&str; 9] = ["bench", "-p", "8", "-n", "4", "-r", "2", "-t", "1"];

fn bench(arguments: &[&str]) -> tests::Ran {
    done(&[&SMALL[..], arguments].concat())
}

fn done(arguments: &[&str]) -> tests::Ran {
    let ran = run(&mut twostroke(arguments));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    ran
}

#[test]
fn markdown_has_llama_benchs_columns_and_two_more() {
    let (depths, first) = if tests::is_long() { ("0,16", 0) } else { ("16", 3) };
    let ran = bench(&["-d", depths, "-B", "1,2"]);
    let lines: Vec<Vec<&str>> =
        ran.stdout.lines().map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect();
    let header = ["model", "size", "params", "backend", "threads", "test", "t/s", "limit", "% of limit"];
    assert_eq!(lines[0], header, "{ran:?}");
    let tests: Vec<&str> = lines[2..].iter().map(|line| line[5]).collect();
    let all = ["pp8", "tg4", "tg4 x2", "pp8 @ d16", "tg4 @ d16", "tg4 x2 @ d16"];
    assert_eq!(tests, all[first..], "{ran:?}");
    for line in &lines[2..] {
        let (average, spread) = line[6].split_once(" ± ").expect("an average and its spread");
        assert!(average.parse::<f64>().is_ok_and(|rate| rate > 0.0) && spread.parse::<f64>().is_ok(), "{line:?}");
        // Where others use the machine its limit is said not to be sure.
        assert!(line[8].trim_end_matches(" (not sure)").ends_with(" %"), "{line:?}");
    }
}

fn assert_complete(row: &Value) {
    for name in ["model_filename", "model_type", "test_time", "backends", "bound_by", "limit_unit"] {
        assert!(row[name].is_string(), "{name} in {row}");
    }
    for name in [
        "model_size",
        "model_n_params",
        "n_batch",
        "n_threads",
        "n_prompt",
        "n_gen",
        "n_depth",
        "avg_ns",
        "stddev_ns",
        "avg_ts",
        "stddev_ts",
        "limit",
        "limit_percent",
    ] {
        assert!(row[name].is_number(), "{name} in {row}");
    }
    assert_eq!(row["samples_ts"].as_array().map(Vec::len), Some(2), "one sample per repetition: {row}");
    assert_eq!(row["samples_ns"].as_array().map(Vec::len), Some(2), "one sample per repetition: {row}");
}

#[test]
fn json_and_jsonl_have_llama_benchs_fields() {
    // `--json` is `-o json`.
    let list = bench(&["--json"]).json();
    let rows = list.as_array().expect("a list");
    assert_eq!(rows.len(), 2);
    rows.iter().for_each(assert_complete);
    assert_eq!((&rows[0]["n_prompt"], &rows[0]["n_gen"]), (&8.into(), &0.into()));
    assert_eq!((&rows[1]["n_prompt"], &rows[1]["n_gen"]), (&0.into(), &4.into()));
    // A length of zero skips a phase.
    let row = done(&["bench", "-p", "0", "-n", "4", "-r", "2", "-t", "1", "-o", "jsonl", "--weights", "int4"]).json();
    assert_complete(&row);
    assert_eq!((&row["n_prompt"], &row["n_gen"]), (&0.into(), &4.into()));
}

#[test]
fn csv_has_a_header_and_as_many_fields_in_each_row() {
    let text = done(&["bench", "-p", "8", "-n", "0", "-r", "1", "-t", "1", "-o", "csv"]).stdout;
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    let names: Vec<&str> = lines[0].split(',').collect();
    assert!(["n_prompt", "avg_ts", "limit_percent"].iter().all(|name| names.contains(name)), "{text}");
    // No text of ours holds a comma inside its quotes.
    assert!(lines.iter().all(|line| line.split(',').count() == names.len()), "{text}");
}

#[test]
fn a_lower_instruction_set_can_be_taken_and_an_unknown_one_is_named() {
    let rows = done(&["bench", "-p", "0", "-n", "2", "-r", "1", "-t", "1", "--isa", "scalar", "-o", "json"]).json();
    assert_eq!((rows.as_array().map(Vec::len), &rows[0]["isa"]), (Some(1), &"scalar".into()), "{rows}");
    let ran = run(&mut twostroke(&["bench", "--isa", "sse"]));
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("scalar, neon, neon-mm, avx2, avx512, avx512bf16, amx"), "{ran:?}");
    let foreign = if cfg!(target_arch = "aarch64") { "avx2" } else { "neon" };
    let ran = run(&mut twostroke(&["bench", "--isa", foreign]));
    assert_ne!(ran.code, Some(0));
    let said = format!("{foreign} is not available; this machine allows only: scalar");
    assert!(ran.stderr.contains(&said), "{ran:?}");
}

#[test]
fn a_part_is_measured_by_its_name() {
    // Numbers that two threads send each other wait for whole slices of a busy machine.
    let (threads, regions) = if tests::is_long() { ("2", 2) } else { ("1", 1) };
    let table: [(&[&str], usize); 5] = [
        (&["regions", "-t", threads], regions),
        (&["draws"], 2),
        (&["masks", "-n", "8"], 10),
        (&["mixed", "-d", "16", "-p", "8", "-B", "1,2"], 6),
        (&["nodes", "-p", "8", "-n", "2"], 4),
    ];
    for (arguments, rows) in table {
        let ran = run(&mut twostroke(&[&["bench"], arguments, &["-r", "2", "--json"]].concat()));
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let list = ran.json();
        let list = list.as_array().expect("a list");
        assert_eq!(list.len(), rows, "{arguments:?}: {list:?}");
        for row in list {
            assert_eq!(row["subject"], arguments[0], "{row}");
            assert!(row["median_ns"].as_f64() > Some(0.0), "{row}");
            assert_eq!(row["samples_ns"].as_array().map(Vec::len), Some(2), "{row}");
        }
    }
    let ran = run(&mut twostroke(&["bench", "masks", "-n", "4", "-r", "1", "-o", "csv"]));
    assert!(ran.stdout.starts_with("subject,build_version,") && ran.stdout.lines().count() == 11, "{ran:?}");
    let ran = run(&mut twostroke(&["bench", "regions", "-r", "1", "-t", "1"]));
    assert!(ran.stdout.lines().nth(2).is_some_and(|line| line.starts_with("| a region | ")), "{ran:?}");
    let ran = run(&mut twostroke(&["bench", "product"]));
    assert!(ran.code == Some(2) && ran.stderr.contains("products"), "{ran:?}");
}

#[test]
fn drafts_of_a_quality_are_measured_with_and_without_in_turns() {
    let arguments = ["bench", "--synthetic-acceptance", "1", "-B", "1,2", "-n", "24", "-r", "2", "-t", "1", "--json"];
    let ran = run(&mut twostroke(&arguments));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    let value: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    for (streams, row) in [1, 2].into_iter().zip(value["streams"].as_array().expect("a row for each")) {
        let (with, without) = (&row["with"], &row["without"]);
        assert_eq!((row["streams"].as_u64(), without["drafted"].as_u64()), (Some(streams), Some(0)), "{row}");
        assert_eq!(without["tokens_per_step"].as_f64(), Some(1.0), "{row}");
        assert_eq!(with["drafted"], with["accepted"], "{row}");
        assert_eq!(with["tokens_per_second"].as_array().map(Vec::len), Some(2), "{row}");
    }
    let phases: Vec<_> =
        value["phases"].as_array().expect("kinds of steps").iter().map(|kind| &kind["phase"]).collect();
    assert_eq!(phases, ["decode", "verify", "prompts"], "{value}");
    let ran = run(&mut twostroke(&["bench", "--synthetic-acceptance", "0.5", "-n", "8", "-r", "1", "-t", "1"]));
    assert!(ran.code == Some(0) && ran.stdout.contains("| 1 | ") && ran.stdout.contains("| verify | "), "{ran:?}");
    let ran = run(&mut twostroke(&["bench", "--synthetic-acceptance", "1.5"]));
    assert!(ran.code == Some(2) && ran.stderr.contains("--synthetic-acceptance"), "{ran:?}");
}
