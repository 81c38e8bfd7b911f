//! A pair of precisions: prompts are read with weights of one, answers written with those of another. What comes out is
//! the pair's own, and the same whatever happens to blocks, steps and workers.

use crate::common;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{Outcome, ask, gather, options, start, start_family, submit_crowd, wait_until_quiet};
use engine::{
    ClusterKey, Engine, EngineOptions, Event, HandoffOptions, HandoffOutcome, PrecisionPair, Prompt, RawRequest,
    RequestError, Role, SamplingParams, WeightClass,
};

const PAIR: PrecisionPair = PrecisionPair { prompts: WeightClass::Int8, answers: WeightClass::Int4 };
/// Tokens of a block.
const BLOCK: usize = 32;

fn handoff(role: Role, workers: &[String], precisions: Option<PrecisionPair>) -> Option<HandoffOptions> {
    let listen = (role == Role::Prefill).then_some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let key = ClusterKey::of(b"a key of these tests");
    Some(HandoffOptions { role, role_may_change: false, listen, prefill_workers: workers.to_vec(), key, precisions })
}

fn reader(options: EngineOptions) -> Engine {
    let weights = PAIR.prompts;
    start(&EngineOptions { handoff: handoff(Role::Prefill, &[], Some(PAIR)), weights, block_size: BLOCK, ..options })
}

fn answerer(readers: &[&Engine], options: EngineOptions) -> Engine {
    let workers: Vec<String> = readers.iter().map(|reader| address(reader)).collect();
    let weights = PAIR.answers;
    start(&EngineOptions {
        handoff: handoff(Role::Decode, &workers, Some(PAIR)),
        weights,
        block_size: BLOCK,
        ..options
    })
}

fn address(engine: &Engine) -> String {
    engine.handoff_address().expect("it listens").to_string()
}

fn alone(weights: WeightClass) -> Engine {
    start(&EngineOptions { weights, block_size: BLOCK, ..options() })
}

/// Prompts of lengths around the ends of blocks, some of which begin alike.
fn requests() -> Vec<RawRequest> {
    let one = |number: usize| {
        let len = [5, 32, 33, 64, 65, 97, 200, 301][number % 8] + number / 8 % 3;
        let begin = if number.is_multiple_of(3) { 0 } else { number };
        let tokens = (0..len).map(|at| 40 + ((at * 31 + begin * 57 + at / 90 * number) % 900) as i64).collect();
        RawRequest {
            max_tokens: Some(if len < 100 { 100 + number as i64 % 40 } else { 30 }),
            sampling: SamplingParams::at([0.0, 0.9][number % 2]),
            ignore_eos: true,
            seed: Some(number as i64),
            logprobs: Some(1),
            ..RawRequest::new(Prompt::Tokens(tokens))
        }
    };
    (0..if testing::is_long() { 48 } else { 32 }).map(one).collect()
}

fn num_prompt_tokens(raw: &RawRequest) -> usize {
    let Prompt::Tokens(tokens) = &raw.prompt else { panic!("prompts are tokens here") };
    tokens.len()
}

type Bits = Vec<(Vec<u32>, Vec<u32>)>;

fn bits(outcome: &Outcome) -> Bits {
    let of = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect();
    outcome.answers.iter().map(|answer| (answer.tokens.clone(), of(&answer.logprobs))).collect()
}

/// Many at a time, so that they share steps.
fn ask_all(engine: &Engine, requests: &[RawRequest]) -> Vec<Bits> {
    let submit = |raw: &RawRequest| engine.submit(engine.validate(raw.clone()).expect("valid")).expect("there is room");
    let streams: Vec<_> = requests.iter().map(submit).collect();
    streams.into_iter().map(|stream| bits(&gather(stream, 1))).collect()
}

/// Why a request ended without a prefill worker.
fn failure(engine: &Engine, raw: RawRequest) -> Option<RequestError> {
    let mut stream = engine.submit(engine.validate(raw).expect("valid")).expect("there is room");
    loop {
        match stream.blocking_recv().expect("a stream ends with Done or Failed") {
            Event::Failed(error) => return Some(error),
            Event::Done { .. } => return None,
            _ => {}
        }
    }
}

#[test]
fn an_answer_is_the_pairs_whatever_happens_to_its_blocks() {
    let (mut requests, prefill) = (requests(), reader(options()));
    if !testing::is_long() {
        requests.truncate(16); // every length, twice
    }
    let calm = answerer(&[&prefill], options());
    let expected: Vec<Bits> = requests.iter().map(|raw| bits(&ask(&calm, raw.clone()))).collect();
    // It is neither's answer, but for prompts that have no full block before their last token.
    let [int8, int4] = [PAIR.prompts, PAIR.answers].map(|weights| ask_all(&alone(weights), &requests));
    let mut own = 0;
    for (at, raw) in requests.iter().enumerate() {
        assert_ne!(expected[at], int8[at], "request {at}: as int8 alone");
        match num_prompt_tokens(raw) > BLOCK {
            true => own += usize::from(expected[at] != int4[at]),
            false => assert_eq!(expected[at], int4[at], "request {at}: a short prompt is read where it is answered"),
        }
    }
    assert!(
        own * 8 > requests.len() * 5,
        "of {} prompts {own} have answers that int4 alone does not give",
        requests.len()
    );

    // All at once, and again, with what the cache has by now.
    for round in ["at once", "from the cache"] {
        assert_eq!(ask_all(&calm, &requests), expected, "{round}");
    }
    // Little memory: answers are preempted and prompts pushed out; other readers, in other pieces, with a cache of
    // theirs.
    let other = reader(EngineOptions {
        max_prefill_chunk: Some(48),
        max_num_batched_tokens: 64,
        threads: Some(1),
        ..options()
    });
    let block_bytes = calm.model().kv_bytes / calm.model().num_blocks;
    let tight = EngineOptions {
        kv_cache_bytes: Some((block_bytes * 24) as u64),
        max_model_len: Some(400),
        kv_swap_bytes: (block_bytes * 300) as u64,
        max_num_batched_tokens: 80,
        ..options()
    };
    let busy = answerer(&[&prefill, &other], tight);
    let crowd = submit_crowd(&busy);
    for round in ["little memory", "little memory, again"] {
        assert_eq!(ask_all(&busy, &requests), expected, "{round}");
    }
    crowd.into_iter().for_each(|stream| _ = gather(stream, 1));
    assert!(busy.stats().preemptions > 0, "the crowd outgrows the cache: {:?}", busy.stats());
    for engine in [&calm, &busy, &prefill, &other] {
        wait_until_quiet(engine);
    }
}

/// What is lost of them is fetched again: with the weights of answers it is never computed.
#[test]
fn states_of_a_pair_are_the_readers() {
    let model = |family, role, workers: &[String], weights, options: &EngineOptions| {
        let handoff = handoff(role, workers, Some(PAIR));
        start_family(family, &EngineOptions { handoff, weights, block_size: BLOCK, ..options.clone() })
    };
    let mut requests = requests();
    requests.truncate(16);
    for raw in &mut requests {
        let Prompt::Tokens(tokens) = &mut raw.prompt else { panic!("prompts are tokens here") };
        tokens.iter_mut().for_each(|token| *token = 3 + *token % 120);
        raw.max_tokens = Some(40);
    }
    for family in ["qwen3.5", "kimi-linear"] {
        let base = EngineOptions { max_model_len: Some(384), ..options() };
        let prefill = model(family, Role::Prefill, &[], PAIR.prompts, &base);
        let workers = [address(&prefill)];
        let decode = |options| model(family, Role::Decode, &workers, PAIR.answers, options);
        let calm = decode(&base);
        let expected: Vec<Bits> = requests.iter().map(|raw| bits(&ask(&calm, raw.clone()))).collect();
        let block_bytes = calm.model().kv_bytes / calm.model().num_blocks;
        let bytes = |blocks| (block_bytes * blocks) as u64;
        let busy =
            decode(&EngineOptions { kv_cache_bytes: Some(bytes(26)), kv_swap_bytes: bytes(300), ..base.clone() });
        assert_eq!(ask_all(&calm, &requests), expected, "{family}, at once");
        let crowd = submit_crowd(&busy);
        for round in ["little memory", "little memory, again"] {
            assert_eq!(ask_all(&busy, &requests), expected, "{family}, {round}");
        }
        crowd.into_iter().for_each(|stream| _ = gather(stream, 1));
        assert!(busy.stats().preemptions > 0, "{family}: the crowd outgrows the cache: {:?}", busy.stats());
        for engine in [&calm, &busy, &prefill] {
            wait_until_quiet(engine);
        }
    }
}

/// What one worker has said is read by the other when it comes again as a part of a prompt.
#[test]
fn what_was_said_is_a_prompt_when_it_comes_back() {
    let prefill = reader(options());
    let [used, fresh] = [(); 2].map(|()| answerer(&[&prefill], options()));
    for number in 0..4 {
        let mut first = requests()[6 + number * 8].clone();
        first.max_tokens = Some(100);
        let said = ask(&used, first.clone());
        let Prompt::Tokens(mut tokens) = first.prompt.clone() else { panic!("prompts are tokens here") };
        tokens.extend(said.answers[0].tokens.iter().map(|&token| i64::from(token)));
        tokens.extend([41, 42, 43]);
        let second = RawRequest { prompt: Prompt::Tokens(tokens), ..first };
        assert_eq!(bits(&ask(&used, second.clone())), bits(&ask(&fresh, second)), "conversation {number}");
    }
}

#[test]
fn without_a_prefill_worker_only_that_request_ends() {
    let prefill = reader(options());
    let decode = answerer(&[&prefill], options());
    let (long, short) = (requests()[7].clone(), requests()[0].clone());
    let expected = bits(&ask(&decode, long.clone()));
    prefill.stop();
    drop(prefill);
    assert_eq!(failure(&decode, requests()[6].clone()), Some(RequestError::NoPrefill));
    assert_eq!(failure(&decode, short), None, "a short one is read here");
    assert_eq!(bits(&ask(&decode, long)), expected, "what is here already needs no worker");
    wait_until_quiet(&decode);
}

/// A reader that is not of the pair is one with other weights.
#[test]
fn both_sides_name_the_pair() {
    let plain = start(&EngineOptions {
        handoff: handoff(Role::Prefill, &[], None),
        weights: PAIR.prompts,
        block_size: BLOCK,
        ..options()
    });
    let decode = answerer(&[&plain], options());
    assert_eq!(failure(&decode, requests()[6].clone()), Some(RequestError::NoPrefill));
    let problems = decode.handoff_problems();
    let says = "precision of weights: int8/int4 here, int8 there";
    assert!(problems.len() == 1 && problems[0].ends_with(says), "{problems:?}");
    let refused = HandoffOutcome::ALL.iter().position(|way| *way == HandoffOutcome::Refused).expect("it is there");
    assert_eq!(decode.handoffs().taken[refused], 1);
    assert_eq!(decode.model().definition().weights, "int8/int4");
}

#[test]
fn what_a_pair_cannot_do_is_refused_by_name() {
    let prefill = reader(options());
    let decode = answerer(&[&prefill], options());
    let raw = requests()[6].clone();
    let table = [
        (RawRequest { n: Some(2), ..raw.clone() }, "n"),
        (RawRequest { prompt_logprobs: Some(0), ..raw.clone() }, "prompt_logprobs"),
        (RawRequest { embed: true, max_tokens: Some(0), logprobs: None, ..raw }, "input"),
    ];
    for (raw, param) in table {
        let rejection = decode.validate(raw).expect_err(param);
        assert!(
            rejection.param == Some(param) && rejection.to_string().contains("int8/int4"),
            "{param}: {rejection:?}"
        );
    }
    let of = |role, weights| EngineOptions {
        handoff: handoff(role, &["127.0.0.1:1".to_owned()], Some(PAIR)),
        weights,
        block_size: BLOCK,
        ..options()
    };
    let table = [
        (of(Role::Both, PAIR.answers), "--handoff-precision: one worker reads"),
        (of(Role::Decode, PAIR.prompts), "--handoff-precision: of int8/int4 this role has int4"),
        (EngineOptions { as_stored: true, ..of(Role::Decode, PAIR.answers) }, "--handoff-precision: of int8/int4"),
        (EngineOptions { spot_check: 0.5, ..of(Role::Decode, PAIR.answers) }, "--spot-check: no worker"),
    ];
    for (options, says) in table {
        let said = common::refused(&options);
        assert!(said.starts_with(says), "{said}");
    }
}

#[test]
fn readers_may_come_and_go() {
    let asked = AtomicU64::new(0);
    let first = reader(options());
    let second = reader(EngineOptions { threads: Some(1), ..options() });
    let decode = answerer(&[&first, &second], options());
    let requests = requests();
    let expected: Vec<Bits> = requests[..16].iter().map(|raw| bits(&ask(&decode, raw.clone()))).collect();
    let again = answerer(&[&first, &second], options());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while asked.load(Ordering::Relaxed) < 4 {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            first.stop();
        });
        for (raw, expected) in requests[..16].iter().zip(&expected) {
            let mut stream = again.submit(again.validate(raw.clone()).expect("valid")).expect("there is room");
            let mut tokens = Vec::new();
            let failed = loop {
                match stream.blocking_recv().expect("a stream ends") {
                    Event::Token { token, .. } => tokens.push(token),
                    Event::Failed(error) => break Some(error),
                    Event::Done { .. } => break None,
                    _ => {}
                }
            };
            asked.fetch_add(1, Ordering::Relaxed);
            match failed {
                // The worker that was reading it has gone, and the other was resting.
                Some(error) => assert_eq!(error, RequestError::NoPrefill),
                None => assert_eq!(tokens, expected[0].0),
            }
        }
    });
    wait_until_quiet(&again);
}
