//! Prompts that one engine reads and another answers: over a real connection, with everything that can go wrong on it.

use crate::common;
use crate::speculation::kinds_of_requests;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use common::{Outcome, ask, gather, options, start, submit_crowd, wait, wait_until_quiet};
use engine::ledger::Owner;
use engine::{
    ClusterKey, Engine, EngineOptions, HandoffOptions, HandoffOutcome, Handoffs, Isa, Prompt, RawRequest, Role,
    SamplingParams, Speculation, WeightClass,
};

fn key() -> ClusterKey {
    ClusterKey::of(b"a key of these tests")
}

pub(crate) fn handoff(listen: Option<SocketAddr>, workers: &[String]) -> HandoffOptions {
    let role = Role::Both;
    HandoffOptions {
        role,
        role_may_change: false,
        listen,
        prefill_workers: workers.to_vec(),
        key: key(),
        precisions: None,
    }
}

fn reader(options: EngineOptions) -> Engine {
    let listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    start(&EngineOptions { handoff: Some(handoff(listen, &[])), ..options })
}

pub(crate) fn address(engine: &Engine) -> String {
    engine.handoff_address().expect("it listens").to_string()
}

fn answerer(workers: &[String], options: EngineOptions) -> Engine {
    let handoff = Some(handoff(None, workers));
    start(&EngineOptions { handoff, ..options })
}

/// Some hundred tokens, different for each number.
fn text(number: usize, sentences: usize) -> String {
    let places = ["mill", "river", "garden", "market", "tower", "bridge", "forest"];
    let sentence =
        |at: usize| format!("The key {} is in the {}. ", (at * 7 + number * 13) % 97, places[(at + number) % 7]);
    (0..sentences).map(sentence).collect()
}

fn raw(prompt: &str, seed: i64) -> RawRequest {
    RawRequest {
        max_tokens: Some(40),
        sampling: SamplingParams::at(0.9),
        ignore_eos: true,
        seed: Some(seed),
        logprobs: Some(1),
        ..RawRequest::new(Prompt::Text(prompt.to_owned()))
    }
}

/// Requests of every kind. Some prompts begin with what others have asked, one is too short to leave.
pub(crate) fn workload(round: usize) -> Vec<RawRequest> {
    let mut requests = Vec::new();
    // A quick run has a third of the kinds, in the next rounds the others.
    for (at, kind) in testing::part_of(kinds_of_requests(4).into_iter().step_by(4).skip(round % 3), 3).enumerate() {
        let number = round * 100 + at;
        // Lengths that end a block, and that do not.
        let of_text = RawRequest {
            prompt: Prompt::Text(text(number, 28 + at)),
            max_tokens: Some(40),
            min_tokens: kind.min_tokens.map(|_| 9),
            seed: Some(number as i64),
            receipt: at == 0,
            ..kind
        };
        requests.push(of_text.clone());
        let tokens: Vec<i64> =
            (0..[289, 320, 321, 352][at % 4]).map(|i| 40 + (i * 31 + number as i64 * 7) % 900).collect();
        requests.push(RawRequest { prompt: Prompt::Tokens(tokens), ..of_text.clone() });
        requests.push(RawRequest { prompt: Prompt::Text(text(number, 28 + at) + "Again."), ..of_text });
        requests.push(RawRequest { cache_salt: Some("apart".to_owned()), ..raw(&text(number, 3), 5) });
    }
    requests
}

/// Asks several at a time, so that they share steps.
fn ask_all(engine: &Engine, requests: &[RawRequest]) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for some in requests.chunks(8) {
        let streams: Vec<_> = some
            .iter()
            .map(|raw| {
                let request = engine.validate(raw.clone()).expect("it is valid");
                (request.num_answers(), engine.submit(request).expect("there is room"))
            })
            .collect();
        outcomes.extend(streams.into_iter().map(|(answers, stream)| gather(stream, answers)));
    }
    outcomes
}

fn assert_same(split: &Outcome, joint: &Outcome, what: &str) {
    let bits = |outcome: &Outcome| -> Vec<Vec<u32>> {
        outcome.answers.iter().map(|answer| answer.logprobs.iter().map(|value| value.to_bits()).collect()).collect()
    };
    assert_eq!(split.answers, joint.answers, "{what}");
    assert_eq!(bits(split), bits(joint), "{what}");
    let usage = |outcome: &Outcome| (outcome.usage.prompt_tokens, outcome.usage.completion_tokens);
    assert_eq!(usage(split), usage(joint), "{what}");
}

fn taken(handoffs: &Handoffs, way: HandoffOutcome) -> u64 {
    handoffs.taken[HandoffOutcome::ALL.iter().position(|other| *other == way).expect("it is there")]
}

/// Waits until nothing is open on either side, and looks that nothing stays.
pub(crate) fn assert_quiet(engines: &[&Engine]) {
    for engine in engines {
        wait_until_quiet(engine);
        wait("nothing to be kept", || engine.handoffs().kept_blocks == 0);
        assert_eq!(engine.handoffs().mismatches, 0);
    }
}

/// 10,000 with `TWOSTROKE_HANDED_OVER=10000`.
#[test]
fn a_split_run_is_the_joint_run() {
    let unless_told = if testing::is_long() { 40 } else { 20 };
    let wanted = std::env::var("TWOSTROKE_HANDED_OVER").map_or(unless_told, |text| text.parse().expect("a number"));
    let joint = start(&options());
    // Everything that no bit may depend on is different.
    let isa = if Isa::best() > Isa::Avx2 { Isa::Avx2 } else { Isa::best() };
    let prefill = reader(EngineOptions { isa: Some(isa), threads: Some(1), max_prefill_chunk: Some(50), ..options() });
    let decode = answerer(
        &[address(&prefill)],
        EngineOptions {
            max_model_len: Some(512),
            kv_cache_bytes: Some(19 * 32 * joint.model().kv_bytes_per_token as u64),
            kv_swap_bytes: 80 * 32 * joint.model().kv_bytes_per_token as u64,
            speculation: Speculation::auto(),
            max_num_seqs: 8,
            ..options()
        },
    );
    let (crowd, crowd_alone) = (submit_crowd(&decode), submit_crowd(&joint));
    let mut done = 0;
    for round in 0.. {
        let requests = workload(round);
        for ((split, joint), raw) in ask_all(&decode, &requests).iter().zip(ask_all(&joint, &requests)).zip(&requests) {
            assert_same(split, &joint, &format!("{raw:?}"));
        }
        done += requests.len();
        // A machine that stalls for seconds times handoffs out: then it takes more of them to mean anything.
        if done >= wanted && taken(&decode.handoffs(), HandoffOutcome::Whole) * 3 > wanted as u64 {
            break;
        }
        assert!(done < 10 * wanted, "some must be whole: {:?}", decode.handoffs());
    }
    for (pressed, alone) in crowd.into_iter().zip(crowd_alone) {
        assert_same(&gather(pressed, 1), &gather(alone, 1), "in the crowd");
    }
    let handoffs = decode.handoffs();
    println!("{done} requests, {handoffs:?}, {} preemptions", decode.stats().preemptions);
    // A worker that timed out has not seen the end that was sent to it.
    assert!(
        prefill.handoffs().given[0] >= taken(&handoffs, HandoffOutcome::Whole),
        "{:?} {handoffs:?}",
        prefill.handoffs()
    );
    assert!(decode.stats().preemptions > 0, "it must happen to mean anything");
    assert_quiet(&[&prefill, &decode]);
}

/// Prompts that leave, some of which begin alike, for models of 128 tokens.
fn prompts_of_tokens() -> Vec<RawRequest> {
    let one = |number: usize| {
        let begin = if number.is_multiple_of(3) { 0 } else { number };
        let len = [289, 320, 321, 300][number % 4];
        let token = |at: usize| 3 + ((at * 31 + begin * 57 + at / 200 * number) % 120) as i64;
        RawRequest { prompt: Prompt::Tokens((0..len).map(token).collect()), ..raw("", number as i64) }
    };
    (0..12).map(one).collect()
}

#[test]
fn states_travel_behind_the_last_block() {
    // Linear attention, a layer with keys and a state, states beside latents, short convolutions, Mamba-2.
    for family in ["qwen3.5", "falcon-h1", "kimi-linear", "lfm2", "granite-hybrid"] {
        let base = EngineOptions { max_model_len: Some(384), ..options() };
        let joint = common::start_family(family, &base);
        let listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        let prefill = EngineOptions { threads: Some(1), max_prefill_chunk: Some(50), ..base.clone() };
        let prefill = common::start_family(family, &EngineOptions { handoff: Some(handoff(listen, &[])), ..prefill });
        let few = Some(26 * 32 * joint.model().kv_bytes_per_token as u64);
        let prompts = prompts_of_tokens();
        let alone = ask_all(&joint, &prompts);
        for (what, options) in [
            ("room", base.clone()),
            ("few blocks", EngineOptions { kv_cache_bytes: few, speculation: Speculation::auto(), ..base.clone() }),
        ] {
            let handoff = Some(handoff(None, &[address(&prefill)]));
            let decode = common::start_family(family, &EngineOptions { handoff, ..options });
            let what = format!("{family}, {what}");
            for _ in 0..2 {
                for (split, joint) in ask_all(&decode, &prompts).iter().zip(&alone) {
                    assert_same(split, joint, &what);
                }
            }
            let handoffs = decode.handoffs();
            let whole = taken(&handoffs, HandoffOutcome::Whole);
            println!("{what}: {handoffs:?}, {} preemptions", decode.stats().preemptions);
            assert!(whole >= 3, "{what}: some must be whole to mean anything: {handoffs:?}");
            assert!(handoffs.bytes_taken >= whole * states_bytes(&joint), "{what}: {handoffs:?}");
            assert_quiet(&[&prefill, &decode]);
        }
    }
}

fn states_bytes(engine: &Engine) -> u64 {
    4 * engine.model().config.state_numbers() as u64
}

#[test]
fn behind_states_that_came_the_tail_alone_is_computed() {
    let base = EngineOptions { max_model_len: Some(384), ..options() };
    let listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let prefill =
        common::start_family("qwen3.5", &EngineOptions { handoff: Some(handoff(listen, &[])), ..base.clone() });
    let handoff = Some(handoff(None, &[address(&prefill)]));
    let decode = common::start_family("qwen3.5", &EngineOptions { handoff, ..base });
    for (raw, tail) in prompts_of_tokens().into_iter().skip(1).zip([32, 1, 12]) {
        let outcome = ask(&decode, raw);
        assert_eq!(outcome.timings.prefill_tokens, tail, "{:?}", decode.handoffs());
    }
    assert_eq!(taken(&decode.handoffs(), HandoffOutcome::Whole), 3);
    assert_quiet(&[&prefill, &decode]);
}

#[test]
fn every_nanosecond_of_a_prompt_that_was_elsewhere_has_an_owner() {
    let prefill = reader(options());
    let decode = answerer(&[address(&prefill)], options());
    let outcome = ask(&decode, raw(&text(1, 60), 1));
    let bill = &outcome.timings.bill.ttft;
    let ms = |owner: Owner| bill.of(owner).as_secs_f64() * 1e3;
    let sum: f64 = Owner::OF_TTFT.into_iter().map(ms).sum();
    assert!((sum - outcome.timings.ttft_ms).abs() < 1e-6, "{sum} of {}", outcome.timings.ttft_ms);
    assert!(ms(Owner::RemotePrefill) > ms(Owner::OwnPrefill), "{bill:?}");
    assert!(ms(Owner::Transfer) > 0.0, "{bill:?}");
    assert_eq!(outcome.timings.prefill_tokens + outcome.timings.cached_tokens, outcome.usage.prompt_tokens);
    assert!(outcome.timings.prefill_tokens <= 32, "the tail alone is computed: {:?}", outcome.timings);
    assert_quiet(&[&prefill, &decode]);
}

#[test]
fn prompts_that_begin_alike_are_read_by_one_worker() {
    let joint = start(&options());
    let workers = [reader(options()), reader(options())];
    let addresses = [address(&workers[0]), address(&workers[1])];
    let prefix = text(3, 40);
    let given = || [0, 1].map(|at: usize| workers[at].handoffs().given[0]);
    let mut before = given();
    let mut readers = Vec::new();
    for number in 0..8 {
        // Who answers is another one each time: none of them has anything of the prompt itself.
        let decode = answerer(&addresses, options());
        let request = raw(&format!("{prefix}Question {number}."), number);
        assert_same(&ask(&decode, request.clone()), &ask(&joint, request), "with two to choose from");
        let after = given();
        readers.push((0..2).find(|&at| after[at] > before[at]).expect("a worker has read it"));
        before = after;
    }
    assert!(readers.iter().all(|reader| reader == &readers[0]), "by {readers:?}");
    assert_quiet(&[&workers[0], &workers[1]]);
}

/// What a connection between the two does to what the reading side sends.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Ends after this number of bytes.
    Cut(usize),
    /// One byte is another.
    Flip(usize),
    /// Sends nothing more after this number of bytes.
    Hang(usize),
}

/// Passes everything on, with a fault in what comes back. Ends with the last of its connections.
struct Wire {
    address: String,
    passed: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
}

impl Wire {
    fn to(target: String, fault: Option<Fault>) -> Wire {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it is bound").to_string();
        listener.set_nonblocking(true).expect("it can");
        let (passed, is_over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, over) = (passed.clone(), is_over.clone());
        thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let Ok((near, _)) = listener.accept() else {
                    thread::sleep(Duration::from_millis(1));
                    continue;
                };
                near.set_nonblocking(false).expect("it can");
                let far = TcpStream::connect(&target).expect("it listens");
                let (near_too, far_too) = (near.try_clone().expect("a clone"), far.try_clone().expect("a clone"));
                thread::spawn(move || pass(near, far, None, &AtomicUsize::new(0)));
                let count = count.clone();
                thread::spawn(move || pass(far_too, near_too, fault, &count));
            }
        });
        Wire { address, passed, is_over }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, fault: Option<Fault>, passed: &AtomicUsize) {
    let mut bytes = vec![0; 4096];
    let mut so_far = 0;
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let mut some = &mut bytes[..count];
        match fault {
            Some(Fault::Cut(at)) if so_far + count > at => {
                let _ = to.write_all(&some[..at - so_far]);
                break;
            }
            Some(Fault::Hang(at)) if so_far + count > at => {
                let _ = to.write_all(&some[..at - so_far]);
                // Open, and silent, until the other side has had enough.
                while !matches!(from.read(&mut bytes), Ok(0) | Err(_)) {}
                break;
            }
            Some(Fault::Flip(at)) if (so_far..so_far + count).contains(&at) => some[at - so_far] ^= 0x10,
            _ => {}
        }
        so_far += count;
        passed.fetch_add(count, Ordering::Relaxed);
        some = &mut some[..];
        if to.write_all(some).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(std::net::Shutdown::Both), to.shutdown(std::net::Shutdown::Both));
}

/// Faults of each kind, set by `TWOSTROKE_FAULTS`.
#[test]
fn whatever_a_connection_does_the_answer_is_the_same() {
    let wanted: usize = std::env::var("TWOSTROKE_FAULTS")
        .map_or(if testing::is_long() { 12 } else { 5 }, |text| text.parse().expect("a number"));
    let joint = start(&options());
    let prefill = reader(EngineOptions { max_prefill_chunk: Some(64), ..options() });
    let request = |number| RawRequest { max_tokens: Some(12), ..raw(&text(number, 40), number as i64) };
    let clean = Wire::to(address(&prefill), None);
    let decode = answerer(std::slice::from_ref(&clean.address), options());
    assert_same(&ask(&decode, request(0)), &ask(&joint, request(0)), "without a fault");
    let all = clean.passed.load(Ordering::Relaxed);
    assert_eq!(taken(&decode.handoffs(), HandoffOutcome::Whole), 1);
    let mut ways = [0; 6];
    for number in 0..wanted {
        // Every part of the conversation has its turn: greeting, offer, the blocks, the end.
        let at = (number * 97 + all * number / wanted) % all;
        let expected = ask(&joint, request(number + 1));
        for fault in [Fault::Cut(at), Fault::Flip(at)] {
            let wire = Wire::to(address(&prefill), Some(fault));
            let decode = answerer(std::slice::from_ref(&wire.address), options());
            assert_same(&ask(&decode, request(number + 1)), &expected, &format!("{fault:?}"));
            let handoffs = decode.handoffs();
            assert_eq!(handoffs.taken.iter().sum::<u64>(), 1, "{fault:?}: {handoffs:?}");
            assert_eq!(taken(&handoffs, HandoffOutcome::Whole), 0, "{fault:?} of {all}: {handoffs:?}");
            ways.iter_mut().zip(handoffs.taken).for_each(|(sum, more)| *sum += more);
            assert_quiet(&[&decode]);
        }
    }
    println!("{} faults in {all} bytes: {ways:?} of {:?}", 2 * wanted, HandoffOutcome::ALL);
    assert!(ways[1] > 0 && ways[2] > 0, "some came in part, some were never begun: {ways:?}");
    assert_quiet(&[&prefill]);
}

#[test]
fn who_falls_silent_is_not_waited_for() {
    let joint = start(&options());
    let prefill = reader(EngineOptions { max_prefill_chunk: Some(64), ..options() });
    let wire = Wire::to(address(&prefill), Some(Fault::Hang(200_000)));
    let decode = answerer(std::slice::from_ref(&wire.address), options());
    assert_same(&ask(&decode, raw(&text(3, 40), 3)), &ask(&joint, raw(&text(3, 40), 3)), "a silent worker");
    assert_eq!(taken(&decode.handoffs(), HandoffOutcome::InPart), 1, "{:?}", decode.handoffs());
    assert_quiet(&[&prefill, &decode]);
}

#[test]
fn a_reader_that_ends_in_the_middle_costs_a_pause() {
    let joint = start(&options());
    for number in testing::part_of(0..4, 2) {
        let prefill = reader(EngineOptions { max_prefill_chunk: Some(32), ..options() });
        let decode = answerer(&[address(&prefill)], options());
        let request = decode.validate(raw(&text(number, 60), 9)).expect("it is valid");
        let stream = decode.submit(request).expect("there is room");
        wait("steps of its prompt", || prefill.stats().steps >= 3 * number as u64);
        prefill.stop();
        assert_same(&gather(stream, 1), &ask(&joint, raw(&text(number, 60), 9)), "its reader ended");
        // A worker that is gone is not asked again at once, and no request waits for it.
        assert_same(
            &ask(&decode, raw(&text(number + 10, 60), 9)),
            &ask(&joint, raw(&text(number + 10, 60), 9)),
            "later",
        );
        assert_quiet(&[&decode]);
    }
}

#[test]
fn the_address_is_free_when_the_engine_has_ended() {
    let prefill = reader(options());
    let address = prefill.handoff_address().expect("it listens");
    assert!(TcpListener::bind(address).is_err(), "it is taken");
    drop(prefill);
    wait("its thread to let go of the address", || TcpListener::bind(address).is_ok());
}

#[test]
fn who_leaves_leaves_nothing_behind() {
    let prefill = reader(EngineOptions { max_prefill_chunk: Some(32), ..options() });
    let decode = answerer(&[address(&prefill)], options());
    for number in 0..8_u64 {
        let request = decode.validate(raw(&text(number as usize, 60), 9)).expect("it is valid");
        // Before it is submitted: all of its steps may be over when this thread runs again.
        let before = prefill.stats().steps;
        let stream = decode.submit(request).expect("there is room");
        // On a busy machine the reader may answer too late to be asked: the answer comes all the same.
        let is_over = || decode.health().open_requests == 0;
        wait("steps of its prompt", || prefill.stats().steps >= before + number || is_over());
        drop(stream);
    }
    assert_quiet(&[&decode, &prefill]);
    assert_eq!(prefill.health().open_requests, 0, "the reader has stopped too");
}

#[test]
fn workers_that_differ_are_told_apart_by_name() {
    let joint = start(&options());
    let of = |change: fn(&mut EngineOptions)| {
        let mut options = options();
        change(&mut options);
        options
    };
    let cases = [
        ("precision of weights: bf16 here, int8 there", of(|options| options.weights = WeightClass::Int8)),
        ("precision of keys and values", of(|options| options.kv_dtype = engine::KvDtype::Int8)),
        ("tokens per block: 32 here, 64 there", of(|options| options.block_size = 64)),
    ];
    for (says, options_there) in cases {
        let prefill = reader(options_there);
        let decode = answerer(&[address(&prefill)], options());
        assert_same(&ask(&decode, raw(&text(1, 60), 1)), &ask(&joint, raw(&text(1, 60), 1)), says);
        assert_eq!(taken(&decode.handoffs(), HandoffOutcome::Refused), 1, "{says}");
        assert_eq!(decode.handoff_problems().first().map(|problem| problem.contains(says)), Some(true), "{says}");
        // Once is enough.
        ask(&decode, raw(&text(2, 60), 1));
        assert_eq!(decode.handoffs().taken.iter().sum::<u64>(), 1, "{says}");
        assert_eq!(prefill.handoffs().given, [0, 0], "nothing was read");
    }
}

#[test]
fn connections_without_the_key_get_no_answer() {
    let prefill = reader(options());
    let handoff = HandoffOptions { key: ClusterKey::of(b"another key"), ..handoff(None, &[address(&prefill)]) };
    let decode = start(&EngineOptions { handoff: Some(handoff), ..options() });
    let joint = start(&options());
    assert_same(&ask(&decode, raw(&text(1, 60), 1)), &ask(&joint, raw(&text(1, 60), 1)), "without the key");
    assert_eq!(taken(&decode.handoffs(), HandoffOutcome::Refused), 1);
    for hello in [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".as_slice(), &[0; 100], &[0xff; 5000]] {
        let mut stream = TcpStream::connect(address(&prefill)).expect("it listens");
        let _ = stream.write_all(hello);
        let mut heard = Vec::new();
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("it can");
        // A reset is an end too.
        let _ = stream.read_to_end(&mut heard);
        assert!(heard.is_empty(), "{} bytes came back", heard.len());
    }
    assert_quiet(&[&prefill, &decode]);
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    let handoff = |listen: Option<SocketAddr>, workers: &[&str]| {
        let workers: Vec<String> = workers.iter().map(|&worker| worker.to_owned()).collect();
        Some(handoff(listen, &workers))
    };
    let here = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let off = EngineOptions { enable_prefix_caching: false, ..options() };
    let says = common::refused(&EngineOptions { handoff: handoff(here, &[]), ..off.clone() });
    assert_eq!(says, "--handoff-listen: blocks that travel are found by the prefix cache, which is off");
    let says = common::refused(&EngineOptions { handoff: handoff(None, &["127.0.0.1:1"]), ..off });
    assert!(says.starts_with("--prefill-workers: "), "{says}");
    let taken = reader(options());
    let says = common::refused(&EngineOptions { handoff: handoff(taken.handoff_address(), &[]), ..options() });
    assert!(says.starts_with("--handoff-listen: 127.0.0.1:"), "{says}");
    // No prefill worker has to be there.
    let alone = start(&EngineOptions { handoff: handoff(None, &["127.0.0.1:1", "nowhere.invalid:7"]), ..options() });
    let joint = start(&options());
    assert_same(&ask(&alone, raw(&text(1, 60), 1)), &ask(&joint, raw(&text(1, 60), 1)), "no worker is there");
    assert_eq!(taken_of(&alone), 1);
}

fn taken_of(engine: &Engine) -> u64 {
    taken(&engine.handoffs(), HandoffOutcome::Refused)
}
