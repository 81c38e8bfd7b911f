//! A lost device costs no answer: all that was open goes on with the standby, with the same bits. Without one it ends
//! with one clear error.

use crate::adapters::files::write_in;
use crate::adapters::{some, through, with_room};
use crate::common;
use crate::handoff::{address, assert_quiet, handoff, workload as workload_of_prompts};
use crate::losses::{Losses, OnDevice, lantern, standby};
use crate::speculation::kinds_of_requests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use checkpoint::LoadError;
use common::{Outcome, assert_same, gather, greedy, now, options, submit_all, wait, wait_until_quiet};
use engine::{Engine, EngineOptions, Event, Observe, Prompt, RawRequest, RequestError, Speculation, SubmitError};
use model::Standby;
use testing::{Dice, Scratch};

fn start(options: &EngineOptions, standby: Option<Standby>, losses: &Arc<Losses>) -> Engine {
    let around = |model| (OnDevice::around(model, losses), standby);
    Engine::start_around(&lantern(), options, &mut |_| {}, around).expect("the shipped model loads")
}

/// Six requests are open where two may run and one may wait: the first preempts the others in their turn, each of which
/// goes before the one that came before it.
#[test]
fn what_was_preempted_goes_on_too_however_small_the_queue_is() {
    let (losses, images) = (Arc::new(Losses::default()), Scratch::new("standby-queue"));
    let block_bytes = 32 * common::start(&options()).model().kv_bytes_per_token as u64;
    let options = EngineOptions {
        kv_cache_bytes: Some(32 * block_bytes),
        max_num_seqs: 2,
        max_queued_requests: 1,
        enable_prefix_caching: false,
        ..options()
    };
    let engine = start(&options, Some(standby(&options, images.to_path_buf(), losses.clone())), &losses);
    let raw = |number: i64| RawRequest {
        prompt: Prompt::Tokens(vec![40 + number, 50, 60]),
        priority: Some(if number == 0 { 0 } else { 10 - number }),
        logprobs: Some(0),
        ..greedy("", 1000 - number)
    };
    let alone: Vec<Outcome> = (0..6).map(|number| common::ask(&engine, raw(number))).collect();
    assert!(now(engine.pause()));
    let (mut streams, before) = (Vec::new(), engine.stats());
    for number in 0..6 {
        streams.extend(submit_all(&engine, vec![raw(number)]));
        // The first runs, each other one is preempted, and the last waits.
        let is_there = |stats: engine::Stats| {
            stats.decode_tokens > before.decode_tokens && stats.preemptions == before.preemptions + number as u64
        };
        while number < 5 && !is_there(engine.stats()) {
            let steps = engine.stats().steps;
            assert!(now(engine.single_step()));
            wait("the step", || engine.stats().steps > steps);
        }
    }
    assert_eq!(engine.health().open_requests, 6, "none has ended");
    *losses.next.lock().unwrap() = Some(("", 1));
    now(engine.resume());
    let moved: Vec<Outcome> = streams.into_iter().map(|(answers, stream)| gather(stream, answers)).collect();
    assert_same("behind the loss", &moved, &alone);
    assert_eq!(losses.count.load(Ordering::Relaxed), 1);
    wait_until_quiet(&engine);
}

/// A standby takes its time, and that is no sign of a loop that is stuck: who watches `/health` would end the process.
#[test]
fn a_move_that_takes_long_is_seen_to_live() {
    let (losses, images) = (Arc::new(Losses::default()), Scratch::new("standby-slow"));
    let quick = standby(&small(), images.to_path_buf(), losses.clone());
    let (go_on, may_go_on) = std::sync::mpsc::channel();
    let is_asked = Arc::new(AtomicBool::new(false));
    let asked = is_asked.clone();
    let slow = Standby::new(move || {
        asked.store(true, Ordering::Relaxed);
        let _ = may_go_on.recv();
        quick.load()
    });
    let engine = start(&small(), slow.ok(), &losses);
    let expected = common::ask(&engine, greedy("The fox", 20));
    *losses.next.lock().unwrap() = Some(("launch", 3));
    let stream = submit_all(&engine, vec![greedy("The fox", 20)]);
    wait("the standby to be loaded", || is_asked.load(Ordering::Relaxed));
    assert_eq!(engine.health().stuck_for, Duration::ZERO);
    go_on.send(()).expect("it waits");
    let moved = stream.into_iter().map(|(answers, stream)| gather(stream, answers)).collect::<Vec<_>>();
    assert_same("behind the loss", &moved, &[expected]);
}

/// 32 requests of every kind, with rules and texts to draft from.
fn workload() -> Vec<RawRequest> {
    let all = kinds_of_requests(1).into_iter().step_by(2).take(32).enumerate();
    all.map(|(index, raw)| RawRequest { max_tokens: Some(12 + index as i64 % 9), min_tokens: None, ..raw }).collect()
}

fn small() -> EngineOptions {
    let speculation = Speculation::auto();
    EngineOptions { kv_cache_bytes: Some(16 << 20), speculation, max_num_batched_tokens: 64, ..options() }
}

/// Of the random steps.
const SEED: u64 = 0x1057;

#[test]
fn a_lost_device_changes_no_bit_of_any_answer() {
    let (losses, images) = (Arc::new(Losses::default()), Scratch::new("standby"));
    let engine = start(&small(), Some(standby(&small(), images.to_path_buf(), losses.clone())), &losses);
    let expected = common::at_once(&engine, workload());
    let doors = ["launch", "wait", "read_logits"].into_iter();
    let at_each = doors.flat_map(|door| [1, 2, 9].map(|after| (door, after)));
    let mut dice = Dice::new(SEED);
    let at_random = (0..200).map(|_| ("", dice.within(1..=400) as u64)).collect::<Vec<_>>();
    for (round, next) in at_each.chain(testing::part_of(at_random, 20)).enumerate() {
        *losses.next.lock().unwrap() = Some(next);
        assert_same(&format!("seed {SEED}, round {round}, {next:?}"), &common::at_once(&engine, workload()), &expected);
        assert_eq!(losses.count.load(Ordering::Relaxed), round as u64 + 1, "{next:?}: the device was lost");
    }
    let drafted = engine.stats().drafted_tokens;
    assert!(drafted > 0, "texts are looked up before and after");
    wait_until_quiet(&engine);
}

/// Answers of many kinds where everything is scarce: blocks, which go to host memory and come back, and rows. Some
/// clients leave while it happens.
#[test]
fn a_lost_device_changes_no_bit_beside_adapters_vectors_swaps_and_clients_that_leave() {
    let place = Scratch::new("lost-crowd");
    let named = [("a", 1), ("b", 2)].map(|(name, seed)| (name.to_string(), write_in(&place, name, &some(seed))));
    let block_bytes = 32 * common::start(&options()).model().kv_bytes_per_token as u64;
    let options = EngineOptions {
        kv_cache_bytes: Some(14 * block_bytes),
        kv_swap_bytes: 40 * block_bytes,
        max_model_len: Some(384),
        max_num_batched_tokens: 48,
        ..with_room(2, named.to_vec())
    };
    let options = EngineOptions { speculation: Speculation::auto(), ..options };
    let losses = Arc::new(Losses::default());
    let engine = start(&options, Some(standby(&options, place.join("images"), losses.clone())), &losses);
    let requests = scarce();
    let expected: Vec<Outcome> = requests.iter().map(|raw| common::ask(&engine, raw.clone())).collect();
    let mut dice = Dice::new(SEED);
    let doors = ["", "", "submit", "read_hidden", "read_logits", "wait"];
    let mut counted = [0; 3];
    let rounds = if testing::is_long() { 300 } else { 12 };
    for round in 0..rounds {
        let next = (doors[dice.within(0..=5)], dice.within(1..=200) as u64);
        let what = format!("seed {SEED}, round {round}, {next:?}");
        *losses.next.lock().unwrap() = Some(next);
        assert!(now(engine.pause()));
        let mut streams: Vec<_> = submit_all(&engine, requests.clone()).into_iter().map(Some).collect();
        now(engine.resume());
        for _ in 0..dice.within(0..=4) {
            let at = dice.within(0..=requests.len() - 1);
            if let Some((_, mut leaves)) = streams[at].take() {
                (0..dice.within(0..=9)).for_each(|_| _ = leaves.blocking_recv());
            }
        }
        for ((stream, expected), raw) in streams.into_iter().zip(&expected).zip(&requests) {
            let Some((answers, stream)) = stream else { continue };
            let outcome = gather(stream, answers);
            assert_eq!(outcome.embedding, expected.embedding, "{what}: {raw:?}");
            assert_same(&format!("{what}: {raw:?}"), &[outcome], std::slice::from_ref(expected));
        }
        wait_until_quiet(&engine);
        let stats = engine.stats();
        let now = [stats.swap.saved, stats.swap.loaded_from_host, stats.prefix_hits];
        assert!(
            now.iter().zip(counted).all(|(now, before)| *now >= before),
            "counters only rise: {now:?}, {counted:?}"
        );
        counted = now;
    }
    let stats = engine.stats();
    assert!(stats.preemptions > 0 && !counted.contains(&0), "it was no crowd: {counted:?}, {stats:?}");
    assert!(losses.count.load(Ordering::Relaxed) > rounds / 4, "devices were lost");
}

/// Plain answers and some of every kind through adapters, vectors and log probabilities of prompts.
fn scarce() -> Vec<RawRequest> {
    let kinds = kinds_of_requests(2).into_iter().step_by(4).enumerate();
    let mut all: Vec<RawRequest> = kinds
        .map(|(index, raw)| RawRequest {
            max_tokens: Some(30 + 7 * (index as i64 % 6)),
            min_tokens: None,
            prompt_logprobs: (index % 5 == 1).then_some(1),
            ..through([None, Some("a"), Some("b")][index % 3], raw)
        })
        .collect();
    let text = |sentences| Prompt::Text("The owl sang of the lantern by the door. ".repeat(sentences));
    let vector = |sentences| RawRequest { max_tokens: Some(0), embed: true, ..RawRequest::new(text(sentences)) };
    all.extend([1, 9].map(vector));
    all.push(RawRequest { max_tokens: Some(0), prompt_logprobs: Some(2), ..RawRequest::new(text(12)) });
    all
}

/// Those that were loaded with the model and since are in their slots again, one can be loaded and unloaded, and one
/// whose files are others by now is lost to its requests alone.
#[test]
fn adapters_are_where_they_were_behind_a_loss() {
    let place = Scratch::new("lost-adapters");
    let path = |name: &str, seed| write_in(&place, name, &some(seed));
    let options = with_room(3, vec![("a".to_string(), path("a", 1))]);
    let losses = Arc::new(Losses::default());
    let engine = start(&options, Some(standby(&options, place.join("images"), losses.clone())), &losses);
    engine.load_adapter("b", &path("b", 2)).expect("there is room");
    let raw = |who| through(who, greedy("The keeper of the lighthouse told", 24));
    let who = [None, Some("a"), Some("b")];
    let expected = who.map(|who| common::ask(&engine, raw(who)));
    let lose = || *losses.next.lock().unwrap() = Some(("launch", 5));
    for round in 0..2 {
        lose();
        assert_same("behind a loss", &common::at_once(&engine, who.map(raw).to_vec()), &expected);
        engine.load_adapter("c", &place.join("a")).expect("it is packed for the device that computes");
        assert_same("loaded since", &[common::ask(&engine, raw(Some("c")))], &expected[1..2]);
        wait_until_quiet(&engine);
        engine.unload_adapter("c").expect("nobody has it");
        assert_eq!(losses.count.load(Ordering::Relaxed), round + 1);
    }
    path("b", 3);
    // One asks before the loss and comes after it.
    let late = engine.validate(raw(Some("b"))).expect("it has a name");
    assert!(now(engine.pause()), "all are there when the device is lost");
    let streams = submit_all(&engine, who.map(raw).to_vec());
    lose();
    now(engine.resume());
    let is_lost = |mut stream: engine::Stream| {
        let end = std::iter::from_fn(|| stream.blocking_recv()).last();
        assert_eq!(end, Some(Event::Failed(RequestError::AdapterLost)));
    };
    for (index, (answers, stream)) in streams.into_iter().enumerate() {
        match index {
            2 => is_lost(stream),
            _ => _ = assert_same("beside it", &[gather(stream, answers)], &expected[index..=index]),
        }
    }
    assert!(engine.validate(raw(Some("b"))).is_err(), "it has no name any more");
    is_lost(engine.submit(late).expect("its adapter is looked at where it is admitted"));
    path("b", 2);
    engine.load_adapter("b", &place.join("b")).expect("it has a place");
    assert_same("loaded again", &[common::ask(&engine, raw(Some("b")))], &expected[2..]);
}

/// Prompts that another worker reads: either side loses its device while blocks are on their way.
#[test]
fn a_prompt_that_is_read_elsewhere_goes_on_on_both_sides() {
    let place = Scratch::new("lost-handoff");
    let side = |name: &str, handoff| {
        let losses = Arc::new(Losses::default());
        let own = EngineOptions { handoff: Some(handoff), kv_swap_bytes: 32 << 20, ..small() };
        let standby = standby(&own, place.join(name), losses.clone());
        (start(&own, Some(standby), &losses), losses)
    };
    let listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let (reads, of_reader) = side("reader", handoff(listen, &[]));
    let (answers, of_answerer) = side("answerer", handoff(None, &[address(&reads)]));
    let requests = workload_of_prompts(0);
    let expected = common::at_once(&common::start(&options()), requests.clone());
    let mut dice = Dice::new(SEED);
    for round in 0..if testing::is_long() { 100 } else { 12 } {
        // Blocks are saved for the other side by the reader alone, a few in a round.
        let sides = [(&of_reader, ["", "submit", "wait"]), (&of_answerer, ["", "launch", "wait"])];
        let next = sides.map(|(losses, doors)| {
            let door = doors[dice.within(0..=2)];
            let next = (door, dice.within(1..=if door == "submit" { 4 } else { 50 }) as u64);
            *losses.next.lock().unwrap() = Some(next);
            next
        });
        let what = format!("seed {SEED}, round {round}, {next:?}");
        assert_same(&what, &common::at_once(&answers, requests.clone()), &expected);
    }
    let mut lost = 0;
    for (engine, losses) in [(&reads, &of_reader), (&answers, &of_answerer)] {
        *losses.next.lock().unwrap() = None;
        lost += losses.count.load(Ordering::Relaxed);
        assert_quiet(&[engine]);
    }
    assert!(lost > 2, "{lost} devices were lost");
    assert!(answers.handoffs().blocks_taken > 0, "blocks came: {:?}", answers.handoffs());
}

/// There is none, or it cannot be loaded.
#[test]
fn without_a_standby_everything_ends_with_one_clear_error() {
    let broken = Standby::new(|| {
        Err(LoadError::Option { option: "standby", problem: "the image is on a disk that is gone".to_owned() })
    });
    for standby in [None, broken.ok()] {
        let losses = Arc::new(Losses::default());
        let engine = start(&small(), standby, &losses);
        assert!(now(engine.pause()));
        let streams = submit_all(&engine, workload());
        *losses.next.lock().unwrap() = Some(("", 50));
        now(engine.resume());
        for (_, mut stream) in streams {
            let end = std::iter::from_fn(|| stream.blocking_recv()).last().expect("an end");
            let ended = matches!(end, Event::Done { .. } | Event::Failed(RequestError::DeviceLost));
            assert!(ended, "{end:?}");
        }
        wait("the loop to end", || engine.health().dead);
        let refused = engine.submit(engine.validate(greedy("The fox", 3)).unwrap()).err();
        assert_eq!(refused, Some(SubmitError::DeviceLost));
        assert_eq!(losses.count.load(Ordering::Relaxed), 1);
    }
}
