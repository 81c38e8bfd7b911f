//! Steps are measured before the first request, and no trace of that is left but the predictions.

use crate::common;

use std::path::Path;
use std::time::Duration;

use common::{ask, greedy, options, start, start_family};
use engine::{Calibration, DefaultTarget, EngineOptions, Prompt, RawRequest};
use scheduler::Work;
use serde_json::Value;
use testing::Scratch;

/// One thread and small steps: there is less to measure.
fn calibrating(directory: Option<&Path>) -> EngineOptions {
    let calibration =
        Calibration { directory: directory.map(Path::to_path_buf), machine: "a machine".to_owned(), afresh: false };
    EngineOptions {
        calibration: Some(calibration),
        threads: Some(1),
        max_num_seqs: 8,
        max_num_batched_tokens: 64,
        ..options()
    }
}

/// Changes the samples of the files of a directory, numbered in their order.
fn change(directory: &Path, sample: impl Fn(usize, &mut Value)) {
    for entry in std::fs::read_dir(directory).expect("it exists") {
        let path = entry.expect("an entry").path();
        if let Some(mut kept) = rates::kept::KeptResult::<Value>::read(&path) {
            let samples = kept.found["samples"].as_array_mut().into_iter().flatten();
            samples.enumerate().for_each(|(index, value)| sample(index, value));
            kept.write(&path).expect("it can be written");
        }
    }
}

/// As if nothing had disturbed the measurement: other load on the machine is no failure.
fn all_sure(directory: &Path) {
    change(directory, |_, sample| sample["ran_ns"] = sample["wall_ns"].clone());
}

#[test]
fn experts_that_it_reads_belong_to_no_step() {
    let options = EngineOptions { expert_memory: Some(0), max_model_len: Some(384), ..calibrating(None) };
    let engine = start_family("qwen3.5-moe", &options);
    assert!(engine.model().calibrated.is_some(), "the case must calibrate to mean anything");
    let prompt = Prompt::Tokens(vec![3, 4, 5]);
    ask(&engine, RawRequest { max_tokens: Some(1), ignore_eos: true, ..RawRequest::new(prompt) });
    let config = &engine.model().config;
    let most = config.num_layers * config.experts.expect("it has some").num_experts;
    let read = engine.stats().experts.count;
    assert!((1..=most as u64).contains(&read), "{read} experts in one step of at most {most}");
}

#[test]
fn nothing_of_it_is_left_in_the_cache() {
    let (plain, calibrated) = (start(&options()), start(&calibrating(None)));
    assert_eq!(calibrated.stats().used_blocks, 0);
    assert_eq!(calibrated.stats().cached_blocks, 0);
    let prompts = ["Once upon a time", &"A long prompt about lanterns. ".repeat(20)];
    for prompt in prompts {
        let (a, b) = (ask(&plain, greedy(prompt, 24)), ask(&calibrated, greedy(prompt, 24)));
        assert_eq!((a.answers, b.usage.cached_tokens), (b.answers, 0), "{prompt:?}");
    }
}

#[test]
fn steps_are_predicted() {
    let engine = start(&calibrating(None));
    ask(&engine, greedy(&"A long prompt about lanterns. ".repeat(20), 40));
    let records = engine.records(100);
    assert!(records.len() >= 40);
    assert!(records.iter().all(|record| record.predicted.0 > 0 && record.work.rows() > 0), "{records:?}");
    let plain = start(&options());
    ask(&plain, greedy("Once upon a time", 4));
    assert!(plain.records(100).iter().all(|record| record.predicted.0 == 0));
}

/// Of two equal prompts the second is found, and so it is not promised the time that the first takes.
#[test]
fn a_promise_counts_what_the_cache_has() {
    let engine = start(&calibrating(None));
    let prompt = "A long prompt about lanterns. ".repeat(60);
    let [first, second] = [0, 1].map(|_| {
        let stream = engine.submit(engine.validate(greedy(&prompt, 2)).expect("valid")).expect("there is room");
        let likely = stream.latency_bound().expect("steps are predicted").first_token.p50;
        (likely, common::gather(stream, 1).usage.cached_tokens)
    });
    assert!(first.1 == 0 && second.1 > 0 && second.0.0 * 2 < first.0.0, "{first:?} {second:?}");
}

#[test]
fn the_next_start_takes_what_was_measured() {
    let directory = Scratch::new("calibration-kept");
    let options = calibrating(Some(&directory));
    let of = |options: &EngineOptions| start(options).model().calibrated.clone().expect("it is calibrated");
    let first = of(&options);
    assert!(!first.from_disk);
    all_sure(&directory);
    let second = of(&options);
    assert!(second.from_disk);
    let mut work = Work::default();
    work.add_chunk(100, 30, true);
    work.add_decode(200);
    let [first, second] = [first, second].map(|calibrated| calibrated.cost.seconds(&work));
    assert!((first / second - 1.0).abs() < 1e-9, "{first} {second}");

    // Another shape of steps, or another machine, is another matter.
    assert!(!of(&EngineOptions { max_num_batched_tokens: 32, ..options.clone() }).from_disk);
    let elsewhere =
        Calibration { directory: Some(directory.to_path_buf()), machine: "another machine".to_owned(), afresh: false };
    assert!(!of(&EngineOptions { calibration: Some(elsewhere), ..options.clone() }).from_disk);

    // A file that is not whole, or says what cannot be, is measured anew and replaced.
    let files = || std::fs::read_dir(&directory).expect("it exists").map(|entry| entry.expect("an entry").path());
    assert_eq!(files().count(), 3);
    let whole = files().map(|path| (std::fs::read_to_string(&path).expect("a text"), path)).collect::<Vec<_>>();
    let broken: [fn(&str) -> String; 5] = [
        |text| text[..text.len() / 2].to_owned(),
        |_| String::new(),
        |text| text.replace("\"decode\":1,", "\"decode\":-1,"),
        |text| text.replace("\"wall_ns\":", "\"wall_ns\":-1e300,\"well_ns\":"),
        |text| text.replace("\"key\":\"", "\"key\":\"0"),
    ];
    for breaking in testing::part_of(broken, 3) {
        for (text, path) in &whole {
            std::fs::write(path, breaking(text)).expect("it can be written");
        }
        assert!(!of(&options).from_disk, "{}", breaking("..."));
        all_sure(&directory);
        assert!(of(&options).from_disk);
    }
}

#[test]
fn the_next_start_measures_what_does_not_count_alone() {
    let directory = Scratch::new("calibration-part");
    let options = calibrating(Some(&directory));
    let _ = start(&options);
    // Every second one lost its core, and the others took a time that is known again.
    let made = 1_234_567_u64;
    change(&directory, |index, sample| {
        sample["wall_ns"] = made.into();
        sample["ran_ns"] = if index.is_multiple_of(2) { 0.into() } else { made.into() };
    });
    let second = start(&options).model().calibrated.clone().expect("it is calibrated");
    assert!(!second.from_disk);
    change(&directory, |index, sample| {
        assert_eq!(sample["wall_ns"] == made, !index.is_multiple_of(2), "{index}: {sample}");
    });
}

#[test]
fn a_directory_that_cannot_be_written_is_no_reason_not_to_start() {
    let engine = start(&calibrating(Some(Path::new("/proc/no/such/directory"))));
    assert!(engine.model().calibrated.as_ref().is_some_and(|calibrated| !calibrated.from_disk));
    assert_eq!(ask(&engine, greedy("Once upon a time", 4)).answers[0].tokens.len(), 4);
}

#[test]
fn targets_are_the_requests_own_or_the_servers() {
    let fixed = |ms| DefaultTarget::Fixed(Duration::from_millis(ms));
    let engine = start(&EngineOptions { ttft: fixed(700), tpot: DefaultTarget::Auto, ..calibrating(None) });
    let targets = engine.model().targets;
    assert_eq!(targets.ttft.map(|target| target.0), Some(700_000_000));
    assert!(targets.tpot.is_some_and(|target| target.0 >= 50_000_000), "{targets:?}");
    let none = start(&calibrating(None)).model().targets;
    assert_eq!((none.ttft, none.tpot), (None, None));

    // Out of its range, or without a calibration: refused, not ignored.
    let plain = start(&options());
    type Asked = fn(RawRequest) -> RawRequest;
    let table: [(&str, Asked); 2] = [
        ("ttft_slo_ms", |raw| RawRequest { ttft_slo_ms: Some(300.0), ..raw }),
        ("tpot_slo_ms", |raw| RawRequest { tpot_slo_ms: Some(300.0), ..raw }),
    ];
    for (param, asked) in table {
        let raw = asked(RawRequest::new(Prompt::Tokens(vec![1, 2, 3])));
        assert!(engine.validate(raw.clone()).is_ok());
        assert_eq!(plain.validate(raw).expect_err("it has no predictions").param, Some(param));
    }
    for wrong in [0.0, -1.0, 0.09, 3.7e6, f64::NAN, f64::INFINITY] {
        let raw = RawRequest { ttft_slo_ms: Some(wrong), ..greedy("x", 1) };
        assert_eq!(engine.validate(raw).expect_err("out of range").param, Some("ttft_slo_ms"), "{wrong}");
    }
}

#[test]
fn answers_are_the_same_whatever_the_targets() {
    let solo = start(&EngineOptions { enable_prefix_caching: false, ..options() });
    let engine = start(&EngineOptions { enable_prefix_caching: false, ..calibrating(None) });
    let prompts: Vec<String> =
        (1..=8).map(|n| format!("Story {n}: {}", "a fox and a lantern. ".repeat(n * 5))).collect();
    let alone: Vec<_> = prompts.iter().map(|prompt| ask(&solo, greedy(prompt, 32)).answers).collect();
    let streams: Vec<_> = prompts
        .iter()
        .enumerate()
        .map(|(index, prompt)| {
            let tpot_slo_ms = [Some(0.2), Some(5.0), None][index % 3];
            let ttft_slo_ms = [None, Some(1.0), Some(500.0)][index % 3];
            let raw = RawRequest { tpot_slo_ms, ttft_slo_ms, ..greedy(prompt, 32) };
            engine.submit(engine.validate(raw).expect("valid")).expect("there is room")
        })
        .collect();
    for (stream, alone) in streams.into_iter().zip(alone) {
        assert_eq!(common::gather(stream, 1).answers, alone);
    }
}
