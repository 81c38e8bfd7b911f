//! A run that was recorded can be done again: the same steps, and with the model the same tokens.

use crate::common;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use checkpoint::{Checkpoint, Source};
use common::{gather, greedy, now, options, start};
use engine::{AccumulationOrder, EngineOptions, Observe, Rule, StartError};
use replay::{Changes, Recording, RecordingError, ReplayEvent, Replayed, past, replay, replay_with_model, what_if};
use testing::Scratch;

fn lantern() -> Checkpoint {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/lantern");
    Checkpoint::open(Source::Directory(directory)).expect("the shipped model opens")
}

/// Records a run with everything in it: streams that come and go, a cache that is too small, several answers, stop
/// strings, sampling without a seed, log probabilities of a prompt, tenants and classes, a pause; and in the arithmetic
/// that this machine would not take. Returns the file's lines.
fn recorded(path: &Path) -> Vec<String> {
    let options = EngineOptions {
        arithmetic: AccumulationOrder::ALL.into_iter().find(|arithmetic| *arithmetic != AccumulationOrder::best()),
        kv_cache_bytes: Some(3 << 19),
        max_num_seqs: 8,
        max_num_batched_tokens: 48,
        max_model_len: Some(512),
        record: Some(path.to_owned()),
        ..options()
    };
    let engine = start(&options);
    let mut kept = Vec::new();
    // It is held and makes the steps between two of them by hand: how many meet does not depend on the machine.
    assert!(now(engine.pause()));
    for index in 0..24_i64 {
        let story = "Once upon a time there was a fox who lived beside a quiet river. ".repeat(1 + index as usize % 5);
        let mut raw = greedy(&format!("{story} Part {index}:"), 62 + 2 * index);
        raw.tenant = Some([index as u8 % 3; 32]);
        raw.priority = Some(index % 2);
        match index % 7 {
            1 => raw.sampling.temperature = Some(0.7),
            2 => (raw.n, raw.sampling.temperature, raw.sampling.top_p) = (Some(3), Some(1.1), Some(0.93)),
            3 => raw.stop = vec!["the ".into(), "fox".into()],
            4 => (raw.prompt_logprobs, raw.sampling.repetition_penalty) = (Some(1), Some(1.3)),
            5 => raw.logit_bias = vec![(300, 2.5)],
            6 => raw.rule = Some(Rule::Regex("[a-z ]{0,40}[.]".into())),
            _ => {}
        }
        let request = engine.validate(raw).expect("valid");
        let answers = request.num_answers();
        let stream = engine.submit(request).expect("room");
        // Another comes a few steps later: some queue, some run, and the cache is too small for all.
        (0..2).for_each(|_| assert!(now(engine.single_step()) && engine.is_paused()));
        // Some leave: in the queue, or within their answer.
        if index % 8 != 7 {
            kept.push((stream, answers));
        }
    }
    assert!(!now(engine.resume()));
    kept.into_iter().for_each(|(stream, answers)| _ = gather(stream, answers));
    assert!(engine.stats().preemptions > 0, "the cache is too small for them all");
    engine.stop();
    engine.finish_recording(Duration::from_secs(300));
    let text = std::fs::read_to_string(path).expect("the recording is there");
    assert!(text.ends_with("\"end\"\n"));
    text.lines().map(String::from).collect()
}

fn again(path: &Path) -> Replayed {
    replay(Recording::open(path).expect("a recording"), &mut |_| {}).expect("it can be replayed")
}

#[test]
fn a_run_under_load_is_replayed_step_by_step_and_token_by_token() {
    let scratch = Scratch::new("recording-run");
    let path = scratch.join("run.jsonl");
    let lines = recorded(&path);
    let steps = lines.iter().filter(|line| line.starts_with("{\"step\"")).count() as u64;
    let has = |what: &str| lines.iter().any(|line| line.starts_with(what));
    assert!(steps > 50 && has("{\"cancel\"") && has("{\"stop\""), "there is much to compare: {steps} steps");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(&path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "no other user reads prompts");
    }

    let replayed = again(&path);
    assert_eq!(replayed.difference, None);
    assert_eq!((replayed.steps, replayed.requests, replayed.was_cut_off), (steps, 24, false));
    assert!(replayed.tokens > 1000 && replayed.seconds > 0.0);

    let recording = Recording::open(&path).expect("a recording");
    let options = EngineOptions { threads: Some(1), ..options() };
    let computed = replay_with_model(recording, &lantern(), &options, &mut |_| {}).expect("it can be computed");
    assert_eq!(computed, replayed, "another number of threads, the same bits");

    // A plan that was given up is given up again, and the rest of the run with it in mind.
    let mut given_up = lines.clone();
    let end = given_up.len() - 1;
    given_up.insert(end, format!("{{\"abandoned\":[{},[]]}}", 1_u64 << 50));
    std::fs::write(&path, given_up.join("\n") + "\n").expect("room for it");
    assert_eq!(again(&path), replayed);
    let recording = Recording::open(&path).expect("a recording");
    let computed = replay_with_model(recording, &lantern(), &options, &mut |_| {}).expect("it can be computed");
    assert_eq!(computed, replayed);
}

/// Its passes cost time, which decides how many drafts are checked: prices and times are in the file.
#[test]
fn a_run_with_a_draft_model_is_replayed_without_it() {
    let scratch = Scratch::new("recording-drafted");
    let path = scratch.join("run.jsonl");
    let drafter = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/lantern-draft").to_owned();
    let learned =
        engine::LearnedDrafter { method: engine::DraftMethod::DraftModel, model: Some(drafter), weights: None };
    let drafters = engine::Drafters { lookup: None, learned: Some(learned), ..engine::Drafters::default() };
    let calibration = engine::Calibration { directory: None, machine: "a test".to_owned(), afresh: true };
    let engine = start(&EngineOptions {
        speculation: engine::Speculation::By(drafters),
        calibration: Some(calibration),
        record: Some(path.clone()),
        ..options()
    });
    let ask = |index: i64| {
        let mut raw = greedy("Once upon a time there was a fox who", 80 + index);
        (raw.sampling.temperature, raw.seed, raw.ignore_eos) = (Some(0.7), Some(index), true);
        engine.submit(engine.validate(raw).expect("valid")).expect("room")
    };
    let streams: Vec<_> = (0..6).map(ask).collect();
    streams.into_iter().for_each(|stream| _ = gather(stream, 1));
    gather(ask(6), 1);
    let stats = engine.stats();
    engine.stop();
    engine.finish_recording(Duration::from_secs(300));
    let text = std::fs::read_to_string(&path).expect("the recording is there");
    assert!(text.lines().next().is_some_and(|header| header.contains("\"drafting\":[6,")), "what a draft costs");
    // On a machine where no draft is worth its pass, one is tried in 64 steps.
    assert!(stats.drafted_tokens > 0 && text.contains("\"drafting\":"), "{stats:?}");
    let replayed = again(&path);
    assert_eq!((replayed.difference.as_ref(), replayed.requests), (None, 7));
    let computed = replay_with_model(Recording::open(&path).expect("a recording"), &lantern(), &options(), &mut |_| {});
    assert_eq!(computed.expect("it can be computed"), replayed, "without the draft model");
}

#[test]
fn what_is_not_as_recorded_is_named() {
    let directory = Scratch::new("recording-doctored");
    let lines = recorded(&directory.join("run.jsonl"));
    let at = |what: &str, nth: usize| {
        let mut found = lines.iter().enumerate().filter(|(_, line)| line.starts_with(what));
        found.nth(nth).map(|(index, _)| index).expect("there are many")
    };
    let with = |index: usize, change: &dyn Fn(&str) -> String| {
        let mut doctored = lines.clone();
        doctored[index] = change(&lines[index]);
        assert_ne!(doctored[index], lines[index]);
        let path = directory.join("doctored.jsonl");
        std::fs::write(&path, doctored.join("\n") + "\n").expect("room for it");
        path
    };
    let number = |line: &str, key: &str| -> u64 {
        let rest = line.split(&format!("\"{key}\":")).nth(1).expect("it has the key");
        rest.split([',', '}']).next().and_then(|text| text.parse().ok()).expect("a number")
    };
    let computed = |path: &Path| {
        let recording = Recording::open(path).expect("a recording");
        replay_with_model(recording, &lantern(), &options(), &mut |_| {}).expect("it can be computed")
    };

    // What the log says of a step.
    let index = at("{\"step\"", 20);
    let step = number(&lines[index], "n");
    let used = number(&lines[index], "used_blocks");
    let path =
        with(index, &|line| line.replace(&format!("\"used_blocks\":{used}"), &format!("\"used_blocks\":{}", used + 1)));
    let difference = again(&path).difference.expect("one block too many");
    assert_eq!((difference.step, difference.line), (Some(step), index + 1));
    assert_eq!(difference.what, [("used_blocks".into(), (used + 1).to_string(), used.to_string())]);
    assert!(difference.to_string().contains(&format!("step {step} (line {})", index + 1)), "{difference}");

    // What is not spelled out is in the digest.
    let digest = lines[index].split("\"digest\":\"").nth(1).expect("it has one")[..4].to_owned();
    let path = with(index, &|line| line.replace(&digest, if digest == "0000" { "1111" } else { "0000" }));
    assert_eq!(again(&path).difference.expect("another digest").what[0].0, "digest");

    // A request that asked for something else: the steps are not the same from there on.
    let index = at("{\"admit\"", 2);
    let path = with(index, &|line| line.replace("\"prompt\":[", "\"prompt\":[300,300,300,300,300,300,300,"));
    assert!(again(&path).difference.is_some());

    // Other tokens: the scheduler does not know better, the model does.
    let gave = |line: &String| line.starts_with("{\"step\"") && line.contains("\"tokens\":[[");
    let late = at("{\"step\"", 30);
    // Which step that is depends on the machine, and one of prompts alone gave none.
    let index = late + lines[late..].iter().position(gave).expect("answers go on");
    let first = lines[index].split("\"tokens\":[[").nth(1).expect("it gave tokens");
    let first: u32 = first.split([',', ']']).next().and_then(|text| text.parse().ok()).expect("a token");
    let other = if first == 300 { 301 } else { 300 };
    let path = with(index, &|line| line.replacen(&format!("[[{first}"), &format!("[[{other}"), 1));
    let difference = computed(&path).difference.expect("the model says another token");
    assert_eq!((difference.step, difference.what[0].0.as_str()), (Some(number(&lines[index], "n")), "tokens"));

    // A stop string that the model's text does not have.
    let mut cut = lines.clone();
    cut.remove(at("{\"stop\"", 0));
    let path = directory.join("cut.jsonl");
    std::fs::write(&path, cut.join("\n")).expect("room for it");
    assert!(again(&path).difference.is_some(), "the answer goes on");
    assert!(computed(&path).difference.expect("the text has the stop string").to_string().contains("stop"));
}

#[test]
fn a_recording_that_was_cut_off_is_good_as_far_as_it_goes() {
    let directory = Scratch::new("recording-cut");
    let lines = recorded(&directory.join("run.jsonl"));
    let path = directory.join("cut.jsonl");
    // Which event a line tells depends on the machine: one that is long enough to be cut after 30 bytes.
    let long = (40..lines.len()).find(|&line| lines[line].len() > 30).expect("a long line");
    for (keep, bytes) in [(long, 0), (long, 1), (long, 30), (1, 0)] {
        let text = lines[..keep].join("\n") + "\n" + &lines[keep][..bytes];
        std::fs::write(&path, text).expect("room for it");
        let mut steps = 0;
        let recording = Recording::open(&path).expect("a recording");
        let replayed = replay(recording, &mut |told| steps += u64::from(matches!(told, ReplayEvent::Step(..))));
        let replayed = replayed.expect("it can be replayed");
        assert_eq!((replayed.difference, replayed.was_cut_off, replayed.steps), (None, true, steps));
    }
}

#[test]
fn what_is_no_recording_says_so_in_one_line() {
    let directory = Scratch::new("recording-bad");
    let run = directory.join("run.jsonl");
    let lines = recorded(&run);
    let header = &lines[0];
    let admit = lines.iter().find(|line| line.starts_with("{\"admit\"")).expect("there is one");
    let zero = header.replacen("\"num_blocks\":", "\"num_blocks\":0,\"x\":", 1);
    let of_format = |number: &str| header.replacen("recording\":5", &format!("recording\":{number}"), 1).into_bytes();
    // The number of a field replaced by another.
    let with = |line: &str, field: &str, number: &str| {
        let (before, after) = line.split_once(&format!("\"{field}\":")).expect("it has the field");
        let digits = after.find(|c: char| !c.is_ascii_digit()).expect("more follows");
        format!("{before}\"{field}\":{number}{}", &after[digits..])
    };
    let limit = |field: &str, number: &str| with(header, field, number).into_bytes();
    let admitted = |field: &str, number: &str| format!("{header}\n{}\n", with(admit, field, number)).into_bytes();
    let cases: &[(&str, Vec<u8>, &str)] = &[
        ("blocks", limit("num_blocks", "67108864"), "line 1: limits.num_blocks: 67108864 is not from 1 to 2097152"),
        ("rows", limit("max_num_batched_tokens", "9999999999"), "line 1: limits.max_num_batched_tokens: 9999999999"),
        ("seqs", limit("max_num_seqs", "18446744073709551615"), "line 1: limits.max_num_seqs: 1844674407370955"),
        ("arrived", admitted("arrived", "9223372036854775808"), "line 2: admit.arrived: 9223372036854775808"),
        ("now", admitted("now", "18446744073709551615"), "line 2: admit.now: 18446744073709551615 is not from 0"),
        ("answers", admitted("n", "1152921504606846976"), "line 2: admit.n: 1152921504606846976 is not from 1 to 8"),
        ("tokens", admitted("max_tokens", "9223372036854775807"), "line 2: admit.max_tokens: 9223372036854775807"),
        (
            "time goes back",
            format!("{header}\n{{\"idle\":1000}}\n{{\"idle\":999}}\n").into_bytes(),
            "line 3: idle: 999 is not from 1000",
        ),
        (
            "offer",
            format!("{header}\n{{\"abandoned\":[1000,[[1,0,9,3,0]]]}}\n").into_bytes(),
            "line 2: offers: source: 9 is not from 0 to 7",
        ),
        ("empty", vec![], "the file is empty"),
        ("garbage", (0..4096_u32).map(|i| ((i * 7919) >> 3) as u8).collect(), "not JSON"),
        ("text", b"Once upon a time\n".to_vec(), "not JSON"),
        ("json", b"{\"model\":\"x\"}\n".to_vec(), "twostroke_recording"),
        ("half", header.as_bytes()[..header.len() / 2].to_vec(), "not JSON"),
        ("version", of_format("99"), "format 99"),
        ("before", of_format("3"), "format 3; this program reads 4 to 5"),
        ("field", zero.into_bytes(), "unknown field `x`"),
        ("huge", of_format("1111111111"), "format 1111111111"),
        ("line", format!("{header}\nnonsense\n").into_bytes(), "line 2"),
        ("kind", format!("{header}\n{{\"dance\":1}}\n").into_bytes(), "line 2: unknown variant `dance`"),
        ("nobody", format!("{header}\n{{\"cancel\":[7,0]}}\n").into_bytes(), "line 2: there is no open request 7"),
        ("stop", format!("{header}\n{admit}\n{{\"stop\":[1,0]}}\n").into_bytes(), "line 3: answer 0 of request 1"),
        ("twice", format!("{header}\n{admit}\n{admit}\n").into_bytes(), "line 3: admit.id: request 1 is open already"),
        ("bytes", [header.as_bytes(), b"\n\xff\xfe\n"].concat(), "line 2"),
    ];
    for (name, bytes, wanted) in cases {
        let path = directory.join(name);
        std::fs::write(&path, bytes).expect("room for it");
        let error = Recording::open(&path).and_then(|recording| replay(recording, &mut |_| {}));
        let line = error.expect_err(name).to_string();
        assert!(line.contains(wanted) && line.contains(name) && !line.contains('\n'), "{name}: {line}");
    }
    assert!(Recording::open(&directory).err().unwrap().to_string().contains("a directory, not a regular file"));
    assert!(matches!(Recording::open(&directory.join("missing")), Err(RecordingError::Io { .. })));

    // No recording writes over a file, and a place that does not exist is no place.
    let refused = |record: PathBuf| {
        let options = EngineOptions { record: Some(record), ..options() };
        engine::Engine::start(&lantern(), &options, &mut |_| {}).err().expect("it does not start")
    };
    assert!(matches!(refused(run), StartError::Option { option: "--record", .. }));
    assert!(refused(directory.join("no/such/place")).to_string().starts_with("--record: "));
}

#[test]
fn a_recording_needs_its_model() {
    let scratch = Scratch::new("recording-other");
    let path = scratch.join("run.jsonl");
    let lines = recorded(&path);
    let cases = [
        (0, "\"kv_dtype\":\"bf16\"", "\"kv_dtype\":\"int2\"", "int2 cache"),
        (0, "\"arithmetic\":\"", "\"arithmetic\":\"no ", "no arithmetic"),
        (1, "\"prompt\":[", "\"prompt\":[4000000000,", "outside the vocabulary"),
    ];
    for (index, from, to, wanted) in cases {
        let mut doctored = lines.clone();
        doctored[index] = lines[index].replacen(from, to, 1);
        std::fs::write(&path, doctored.join("\n")).expect("room for it");
        let recording = Recording::open(&path).expect("a recording");
        let error = replay_with_model(recording, &lantern(), &options(), &mut |_| {}).expect_err("another model");
        assert!(error.to_string().contains(wanted), "{error}");
    }
}

#[test]
fn a_recording_that_names_no_arithmetic_is_of_tiles() {
    let scratch = Scratch::new("recording-old");
    let path = scratch.join("run.jsonl");
    let lines = recorded(&path);
    let arithmetic = Recording::open(&path).expect("a recording").header.arithmetic;
    assert_ne!(arithmetic, AccumulationOrder::best().name());
    let header = lines[0].replacen(&format!("\"arithmetic\":\"{arithmetic}\","), "", 1);
    assert_ne!(header, lines[0]);
    std::fs::write(&path, [&[header], &lines[1..]].concat().join("\n")).expect("room for it");
    assert_eq!(Recording::open(&path).expect("a recording").header.arithmetic, "tiles");
}

#[test]
fn a_running_engine_remembers_what_its_recording_says() {
    let scratch = Scratch::new("recording-memory");
    let path = scratch.join("run.jsonl");
    let engine = start(&EngineOptions { max_num_seqs: 4, record: Some(path.clone()), ..options() });
    let mut streams = Vec::new();
    let mut held = Duration::ZERO;
    let begin = Instant::now();
    for index in 0..12_i64 {
        let mut raw = greedy(&"The fox looked at the lantern. ".repeat(1 + index as usize % 5), 10 + index);
        raw.n = Some(1 + index % 2);
        let request = engine.validate(raw).expect("valid");
        let answers = request.num_answers();
        streams.push((engine.submit(request).expect("room"), answers));
        if index == 6 {
            assert!(now(engine.pause()));
            held = Duration::from_secs(1);
            std::thread::sleep(held);
            now(engine.resume());
        }
    }
    streams.into_iter().for_each(|(stream, answers)| _ = gather(stream, answers));
    let moved = (begin.elapsed() - held).as_secs_f64();
    let remembered = engine.past(Duration::from_secs(3600));
    engine.stop();
    engine.finish_recording(Duration::from_secs(300));
    let recorded = past(Recording::open(&path).expect("a recording")).expect("it can be replayed");
    let ask = |past| what_if(past, &Changes::default(), &mut |_, _| true).expect("there were requests");
    assert_eq!(ask(&remembered), ask(&recorded));
    assert_eq!(remembered.answers.len(), 18);
    assert!(ask(&remembered).recorded.longest_gap <= moved, "what it was held is in no gap");
}

#[test]
fn a_recorded_run_is_asked_what_would_have_been() {
    let directory = Scratch::new("recording-whatif");
    let lines = recorded(&directory.join("run.jsonl"));
    let ask = |changes: &Changes| {
        let recording = Recording::open(&directory.join("run.jsonl")).expect("a recording");
        what_if(&past(recording).expect("it can be replayed"), changes, &mut |_, _| true).expect("there were requests")
    };
    let same = ask(&Changes::default());
    assert_eq!(same.simulated, same.what_if, "nothing was asked");
    assert_eq!(same, ask(&Changes::default()), "and the answer is the same each time");
    assert_eq!((same.recorded.refused, same.simulated.refused), (0, 0));
    assert_eq!(same.recorded.completed, same.simulated.completed);
    let steps = lines.iter().filter(|line| line.starts_with("{\"step\"")).count();
    assert!(steps > 50 && same.recorded.ttft.p50 > 0.0 && same.recorded.tpot.p50 > 0.0);

    let roomy = ask(&Changes { kv_blocks: Some(4000), ..Changes::default() });
    assert_eq!((roomy.what_if.preemptions, roomy.recorded), (0, same.recorded), "blocks for all of them");
    let alone = ask(&Changes { max_num_seqs: Some(3), ..Changes::default() });
    // Whether fewer seats are better or worse for a request depends on what steps took; that they differ does not.
    assert!(alone.what_if != same.what_if && alone.recorded == same.recorded, "other seats, another run: {alone}");
    assert_eq!(alone.what_if.completed, same.recorded.completed);
    let small = ask(&Changes { kv_blocks: Some(1), ..Changes::default() });
    let served = (small.what_if.completed, small.what_if.refused);
    assert!(served.0 < 3 && served.0 + served.1 == same.recorded.completed, "next to none fits: {small}");
    let beyond = small.what_if.beyond.expect("some are longer than the pool");
    assert!(beyond.num_blocks == 1 && beyond.needed_blocks > 1 && same.what_if.beyond.is_none(), "{beyond:?}");
    assert!(small.to_string().contains("longer than the KV cache of 1 blocks (--kv-blocks)"), "{small}");
    // With as many as it says the longest fits, and all the others.
    let enough = ask(&Changes { kv_blocks: Some(beyond.needed_blocks), ..Changes::default() });
    assert_eq!((enough.what_if.refused, enough.what_if.beyond), (0, None), "{enough}");
    let zero = what_if(
        &past(Recording::open(&directory.join("run.jsonl")).expect("a recording")).expect("it can be replayed"),
        &Changes { max_num_batched_tokens: Some(1), ..Changes::default() },
        &mut |_, _| true,
    );
    assert!(zero.expect_err("a row for each seat").to_string().contains("max_num_batched_tokens (1)"));
}

#[test]
fn a_run_with_drafts_is_asked_what_it_would_have_been_without() {
    let scratch = Scratch::new("recording-drafts");
    let path = scratch.join("run.jsonl");
    let engine =
        start(&EngineOptions { speculation: engine::Speculation::auto(), record: Some(path.clone()), ..options() });
    let ask = |index: i64| {
        let mut raw = greedy(&"The fox sat by the door. The owl sang of gold.\n".repeat(3), 60 + index);
        (raw.n, raw.ignore_eos) = (Some(1 + index % 2), true);
        let request = engine.validate(raw).expect("valid");
        let answers = request.num_answers();
        (engine.submit(request).expect("room"), answers)
    };
    let streams: Vec<_> = (0..8).map(ask).collect();
    streams.into_iter().for_each(|(stream, answers)| _ = gather(stream, answers));
    let stats = engine.stats();
    let remembered = engine.past(Duration::from_secs(3600));
    engine.stop();
    engine.finish_recording(Duration::from_secs(300));
    let recorded = past(Recording::open(&path).expect("a recording")).expect("it can be replayed");
    let without = Changes { without_drafts: true, ..Changes::default() };
    let asked = |past, changes| what_if(past, changes, &mut |_, _| true).expect("there were requests");
    assert_eq!(asked(&remembered, &without), asked(&recorded, &without));
    let (same, off) = (asked(&recorded, &Changes::default()), asked(&recorded, &without));
    assert_eq!((same.simulated, same.recorded), (same.what_if, off.recorded), "nothing was asked");
    let told = |figures: &replay::Figures| (figures.drafted as u64, figures.held as u64);
    assert_eq!(told(&same.recorded), (stats.drafted_tokens, stats.accepted_tokens));
    assert!(same.recorded.held > 100 && same.recorded.tokens_per_step > 1.5, "lines come again: {same}");
    // The same lines in the same schedule, or nearly so: what was checked holds again.
    assert!(same.simulated.tokens_per_step > 1.0 + 0.5 * (same.recorded.tokens_per_step - 1.0), "{same}");
    assert_eq!((told(&off.what_if), off.what_if.tokens_per_step, off.what_if.assumed), ((0, 0), 1.0, 0), "{off}");
    assert_eq!(off.what_if.completed, off.recorded.completed);
}
