//! A recorded run as a trace: everything in it, and nothing that a reader would choke on.

use crate::common;
use crate::perfetto;

use std::time::Duration;

use common::{gather, greedy, options, start};
use engine::EngineOptions;
use replay::{Recording, past, trace};
use serde_json::Value;

#[test]
fn a_recording_is_a_trace_with_lanes_phases_and_arrows() {
    let path = std::env::temp_dir().join(format!("twostroke-trace-{}.jsonl", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let options = EngineOptions {
        kv_cache_bytes: Some(2 << 20),
        max_num_seqs: 8,
        max_num_batched_tokens: 256,
        max_model_len: Some(512),
        record: Some(path.clone()),
        ..options()
    };
    let engine = start(&options);
    let submit = |prompt: &str, tokens: i64, n: i64| {
        let mut raw = greedy(prompt, tokens);
        raw.n = Some(n);
        raw.sampling.temperature = Some(0.5);
        raw.ignore_eos = true;
        engine.submit(engine.validate(raw).expect("valid")).expect("room")
    };
    // Streams, and prompts that come between their tokens; one client leaves, one request has two answers.
    let mut streams = vec![(submit("Once upon a time", 200, 1), 1), (submit("The fox", 120, 2), 2)];
    for (stream, _) in &mut streams {
        stream.blocking_recv().expect("it has begun");
    }
    let story = "Once there was a fox who lived beside a quiet river and had a lantern. ".repeat(16);
    for part in 0..6 {
        streams.push((submit(&format!("Part {part}. {story}"), 3 + part, 1), 1));
    }
    drop(streams.pop());
    streams.into_iter().for_each(|(stream, answers)| _ = gather(stream, answers));
    engine.stop();
    engine.finish_recording(Duration::from_secs(300));

    let mut out = Vec::new();
    let replayed = trace(Recording::open(&path).expect("a recording"), &mut out).expect("it is written");
    assert_eq!(replayed.difference, None);
    let json: Value = serde_json::from_slice(&out).expect("JSON");
    let began: u64 = json["otherData"]["began_at_unix_ns"].as_str().expect("a time").parse().expect("a number");
    assert!(began > 1_700_000_000_000_000_000, "the start's time is in the recording");
    let shown = perfetto::check(&json);
    assert_eq!((shown.steps as u64, shown.tokens), (replayed.steps, replayed.tokens));
    assert_eq!(shown.lanes.len() as u64, replayed.requests);
    for name in ["queue", "prefill", "decode", "token", "late token"] {
        assert!(shown.slices.contains(name), "no {name} in {:?}", shown.slices);
    }
    // The prompts that came between tokens are the ones that arrows come from.
    let past = past(Recording::open(&path).expect("a recording")).expect("a past");
    assert!(past.answers.len() > 6);
    let delayed = |effect: &str| shown.arrows.iter().filter(|(_, to, _)| to == effect).count();
    assert!(delayed("request 1") + delayed("request 2") > 0, "{:?}", shown.arrows);
    assert!(shown.arrows.iter().all(|(_, _, ms)| *ms > 0.0));
    let _ = std::fs::remove_file(&path);
}
