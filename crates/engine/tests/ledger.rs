//! Every millisecond has an owner, with the real model under load: the ledger's parts are what the requests took.

use crate::common;

use common::{Outcome, ask, gather, greedy, now, options, start};
use engine::ledger::{Gap, Owner, Shares};
use engine::{Ending, Engine, EngineOptions, Event, Observe, RawRequest};

fn ms(shares: &Shares, owners: &[Owner]) -> f64 {
    owners.iter().map(|&owner| shares.of(owner).as_secs_f64() * 1e3).sum()
}

/// Within 1 %: of a ratio of sums, whatever the machine's speed.
fn assert_close(what: &str, parts: f64, whole: f64) {
    assert!((parts / whole - 1.0).abs() < 0.01, "{what}: parts {parts} ms, whole {whole} ms");
}

/// Streams, a long prompt beside them and a crowd, all there before the first step, however slow the machine is.
fn load(engine: &Engine, sentences: usize, tokens: i64) -> Vec<(engine::RequestId, Outcome)> {
    assert!(now(engine.pause()));
    let mut streams = Vec::new();
    let mut submit = |raw: RawRequest| {
        let request = engine.validate(raw).expect("valid");
        streams.push((request.num_answers(), engine.submit(request).expect("room")));
    };
    for index in 0..4 {
        submit(greedy(&format!("Story {index}: once upon a time"), 60 + tokens));
    }
    submit(greedy(&"The fox looked at the lantern in the window. ".repeat(sentences), 8));
    for index in 0..16i64 {
        let prompt = format!("Number {index}: ") + &"a quiet river. ".repeat(index as usize);
        submit(RawRequest { n: Some(1 + index % 3), seed: Some(index), ..greedy(&prompt, 12 + index + tokens) });
    }
    now(engine.resume());
    let gather = |(answers, stream): (usize, engine::Stream)| (stream.id(), gather(stream, answers));
    streams.into_iter().map(gather).collect()
}

fn check(engine: &Engine, sentences: usize, tokens: i64) -> (Shares, Shares) {
    let outcomes = load(engine, sentences, tokens);
    let (mut ttft, mut gaps) = (Shares::default(), Shares::default());
    let (mut ttft_ms, mut decode_ms, mut decode_parts) = (0.0, 0.0, 0.0);
    for (id, Outcome { answers, timings, .. }) in &outcomes {
        let bill = &timings.bill;
        assert_close("one TTFT", ms(&bill.ttft, &Owner::OF_TTFT), timings.ttft_ms);
        ttft_ms += timings.ttft_ms;
        ttft.merge(&bill.ttft);
        gaps.merge(&bill.gaps);
        if answers.len() == 1 && timings.decode_ms > 0.0 {
            assert_close("the gaps of one", ms(&bill.gaps, &Owner::OF_GAP), timings.decode_ms);
            decode_ms += timings.decode_ms;
            decode_parts += ms(&bill.gaps, &Owner::OF_GAP);
        }
        let timeline = engine.timeline(*id).expect("it is remembered");
        assert_eq!((timeline.ending, timeline.account.bill), (Some(Ending::Finished), **bill));
        let tokens: usize = timeline.account.visits.iter().map(|visit| usize::from(visit.tokens)).sum();
        assert_eq!(tokens, answers.iter().map(|answer| answer.tokens.len()).sum::<usize>(), "each token has its step");
    }
    assert_close("all TTFTs", ms(&ttft, &Owner::OF_TTFT), ttft_ms);
    assert_close("all gaps", decode_parts, decode_ms);
    let owners = engine.stats().owners;
    assert_eq!((owners.ttft, owners.gaps), (ttft, gaps), "the metrics are the same sums");
    (ttft, gaps)
}

#[test]
fn under_load_the_parts_are_what_the_requests_took() {
    let options = EngineOptions { max_num_seqs: 8, max_num_batched_tokens: 160, ..options() };
    let (ttft, gaps) = check(&start(&options), 70, 0);
    for owner in [Owner::QueueSeats, Owner::QueueBudget, Owner::OwnPrefill, Owner::OtherPrefill, Owner::Decode] {
        assert!(ttft.of(owner).0 > 0, "TTFT: {} must occur for the case to mean anything", owner.name());
    }
    for owner in [Owner::OwnDecode, Owner::Decode, Owner::OtherPrefill] {
        assert!(gaps.of(owner).0 > 0, "gaps: {} must occur for the case to mean anything", owner.name());
    }
}

#[test]
fn under_memory_pressure_too() {
    let bytes = 14 * 32 * start(&options()).model().kv_bytes_per_token as u64;
    let options = EngineOptions {
        kv_cache_bytes: Some(bytes),
        max_model_len: Some(384),
        enable_prefix_caching: false,
        ..options()
    };
    let engine = start(&options);
    let (ttft, gaps) = check(&engine, 10, 60);
    assert!(engine.stats().preemptions > 0, "the case must press the cache to mean anything");
    assert!(ttft.of(Owner::QueueKv).0 > 0);
    assert!(gaps.of(Owner::Waiting).0 > 0 && gaps.of(Owner::Recompute).0 > 0, "{gaps:?}");
}

#[test]
fn a_stream_names_the_long_prompt_that_delayed_it() {
    let engine = start(&options());
    let request = engine.validate(greedy("Once upon a time", 200)).expect("valid");
    let mut stream = engine.submit(request).expect("room");
    let id = stream.id();
    for _ in 0..10 {
        assert!(matches!(stream.blocking_recv(), Some(Event::Token { .. })));
    }
    // It is asked about while it runs; a token may be read before its step is booked.
    let timeline = loop {
        let timeline = engine.timeline(id).expect("it runs");
        if timeline.account.visits.len() >= 10 {
            break timeline;
        }
        std::thread::yield_now();
    };
    assert_eq!(timeline.ending, None);
    assert!(timeline.until > timeline.account.arrived);
    let long = engine.validate(greedy(&"The fox looked at the lantern. ".repeat(90), 1)).expect("valid");
    let long = engine.submit(long).expect("room");
    let long_id = long.id();
    gather(long, 1);
    let outcome = gather(stream, 1);
    let named: Vec<_> = outcome.timings.bill.gaps_others.entries().map(|(id, _)| id).collect();
    assert_eq!(named, [long_id]);
    let cost = engine.timeline(long_id).expect("it is remembered").account.bill.cost;
    assert_eq!(cost.prefill_in_gaps, outcome.timings.bill.gaps.of(Owner::OtherPrefill), "seen from both sides");
    // Late or not: that is a question of how fast this machine is.
    let gaps = engine.timeline(id).expect("it is remembered").account.longest_gaps;
    let blamed = |gap: &Gap| gap.others.entries().any(|(id, _)| id == long_id);
    assert!(gaps.iter().any(blamed), "a gap names it: {gaps:?}");
}

#[test]
fn tokens_that_come_together_are_one_gap() {
    let engine = start(&EngineOptions { speculation: engine::Speculation::auto(), ..options() });
    let repeats = "The fox sat by the door. The owl sang of gold.\n".repeat(4);
    let stream = engine.submit(engine.validate(greedy(&repeats, 120)).expect("valid")).expect("room");
    let id = stream.id();
    let timings = gather(stream, 1).timings;
    let account = engine.timeline(id).expect("it is remembered").account;
    let runs: Vec<usize> = account.visits.iter().map(|visit| usize::from(visit.tokens)).collect();
    assert!(runs.iter().any(|&tokens| tokens > 1) && runs.iter().sum::<usize>() == 120, "{runs:?}");
    assert_eq!(
        timings.decode_tokens - timings.accepted_tokens,
        timings.decode_steps,
        "each step has a token of its own"
    );
    // Fewer gaps than tokens: none of them is nothing, and so the median is none of nothing.
    let gaps: Vec<_> = account.longest_gaps.iter().map(|gap| gap.shares.total()).collect();
    assert!(gaps.iter().all(|gap| gap.0 > 0) && account.median_gap().0 > 0, "{gaps:?}");
    assert!(account.late_gaps().len() < account.longest_gaps.len(), "not every step is late");
    let [own, others] = [Owner::OwnDrafts, Owner::OtherDrafts].map(|owner| account.bill.gaps.of(owner));
    assert!(account.bill.rejected <= own && others.0 == 0, "{:?}", account.bill);
}

#[test]
fn who_leaves_is_remembered_and_who_never_was_is_not() {
    let engine = start(&options());
    let request = engine.validate(greedy("Once upon a time", 200)).expect("valid");
    let mut stream = engine.submit(request).expect("room");
    let id = stream.id();
    assert!(matches!(stream.blocking_recv(), Some(Event::Token { .. })));
    drop(stream);
    common::wait_until_quiet(&engine);
    assert_eq!(engine.timeline(id).expect("it is remembered").ending, Some(Ending::Cancelled));
    assert!(engine.timeline(engine::RequestId(id.0 + 1)).is_none());
}

#[test]
fn a_request_for_no_tokens_waits_until_its_end() {
    let engine = start(&options());
    let raw = RawRequest { prompt_logprobs: Some(0), max_tokens: Some(0), ..greedy("Once upon a time", 0) };
    let timings = ask(&engine, raw).timings;
    assert_close("it", ms(&timings.bill.ttft, &Owner::OF_TTFT), timings.total_ms);
}
