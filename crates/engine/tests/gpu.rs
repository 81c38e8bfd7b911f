//! An engine on a GPU gives the CPU's answers, whatever becomes of its blocks, and goes on with another device where it
//! is lost. Software devices are GPUs too: `xtask test` installs one.

use crate::adapters::files::write_in;
use crate::adapters::{some, through, with_room};
use crate::common;
use crate::losses::{lantern, sizes};
use crate::speculation::{kinds_of_requests, learned};

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use common::{Outcome, assert_same, gather, greedy, now, options, submit_all, wait_until_quiet};
use engine::{
    DeviceChoice, DraftMethod, Drafters, Engine, EngineOptions, KvDtype, Prompt, RawRequest, SamplingParams,
    Speculation, WeightClass,
};
use kernels::{Cpu, CpuOptions};
use model::{Forward, Standby};
use testing::{Dice, Scratch};

/// A device of the system: another that a test may have added compiles and computes for long.
fn gpu() -> DeviceChoice {
    let slow = |listed: &vulkan::Listed| listed.name.contains("SwiftShader");
    let index = vulkan::list().unwrap().iter().position(|listed| !slow(listed));
    DeviceChoice::Gpu(index.expect("a GPU: mesa-vulkan-drivers"))
}

/// What the engine has of the host.
fn of_host() -> CpuOptions {
    CpuOptions { threads: options().threads, ..CpuOptions::default() }
}

/// Four that share nothing and grow until not all have room, and some of every kind.
fn crowd() -> Vec<RawRequest> {
    let apart = |number: i64| RawRequest {
        prompt: Prompt::Tokens((0..20).map(|at| 300 + at + 97 * number).collect()),
        ..greedy("", 46)
    };
    // Log probabilities, three answers, a text that is foreseen, a schema, and a rule that drafts break.
    let kinds = [(9, 1), (10, 2), (12, 1), (14, 2), (16, 1)].into_iter().enumerate();
    let kinds = kinds.map(|(index, (kind, prompt))| RawRequest {
        max_tokens: Some(24),
        min_tokens: None,
        ..through([None, Some("a"), Some("b")][index % 3], kinds_of_requests(2)[4 * kind + prompt].clone())
    });
    let text = Prompt::Text("The owl sang of the lantern by the door. ".repeat(3));
    let vector = RawRequest { max_tokens: Some(0), embed: true, ..RawRequest::new(text.clone()) };
    let scored = RawRequest { max_tokens: Some(0), prompt_logprobs: Some(2), ..RawRequest::new(text) };
    (0..4).map(apart).chain(kinds).chain([vector, scored]).collect()
}

/// Of the steps at which it is lost.
const SEED: u64 = 0x10_57;

#[test]
fn a_crowd_has_the_cpus_answers_wherever_the_gpu_is_lost() {
    let place = Scratch::new("gpu-crowd");
    let named = [("a", 1), ("b", 2)].map(|(name, seed)| (name.to_string(), write_in(&place, name, &some(seed))));
    // Everything is scarce: blocks go to host memory and come back.
    let kv_dtype = if testing::is_long() { KvDtype::Int8 } else { KvDtype::Bf16 };
    let narrow = common::start(&EngineOptions { kv_dtype, ..options() });
    let block_bytes = 32 * narrow.model().kv_bytes_per_token as u64;
    drop(narrow);
    let on = |device| EngineOptions {
        device,
        kv_cache_bytes: Some(6 * block_bytes),
        kv_swap_bytes: 40 * block_bytes,
        max_model_len: Some(192),
        max_num_batched_tokens: 48,
        speculation: Speculation::auto(),
        weights: if testing::is_long() { WeightClass::Int8 } else { WeightClass::Bf16 },
        kv_dtype,
        ..with_room(2, named.to_vec())
    };
    let requests = crowd();
    let cpu = Engine::start(&lantern(), &on(DeviceChoice::Cpu), &mut |_| {}).unwrap();
    let expected: Vec<Outcome> = requests.iter().map(|raw| common::ask(&cpu, raw.clone())).collect();
    drop(cpu);

    // It goes on on a GPU that was opened anew, and behind the last loss on the CPU.
    let losses = if testing::is_long() { 50 } else { 2 };
    // The same device as the engine's.
    let open = || gpu().open(of_host()).expect("it was listed").expect("it is a GPU");
    let (device, lost) = (Arc::new(Mutex::new(open())), Arc::new(AtomicUsize::new(0)));
    let (opened, counted, load) = (device.clone(), lost.clone(), sizes(&on(gpu()), None));
    let standby = Standby::new(move || {
        if counted.fetch_add(1, Ordering::Relaxed) + 1 == losses {
            let cpu = Cpu::new(of_host()).expect("threads");
            return Ok(Box::new(model::load(cpu, &lantern(), &load, &mut |_| {})?) as Box<dyn Forward>);
        }
        *opened.lock().unwrap() = open();
        Ok(Box::new(model::load(opened.lock().unwrap().clone(), &lantern(), &load, &mut |_| {})?))
    });
    let around = |model| (model, standby.ok());
    let engine = Engine::start_around(&lantern(), &on(gpu()), &mut |_| {}, around).unwrap();
    assert_eq!(engine.model().device.kind, "GPU");
    let (mut dice, mut round) = (Dice::new(SEED), 0);
    while lost.load(Ordering::Relaxed) < losses {
        let (call, most) = dice.pick(&[("", 60), ("vkQueueSubmit", 10), ("vkWaitSemaphores", 20)]);
        let (at, mut asked) = (dice.below(most), (0..requests.len()).collect::<Vec<_>>());
        let what = format!("seed {SEED:#x}, round {round}, {call} after {at}");
        // All once, without a loss; some, then.
        if round > 0 {
            device.lock().unwrap().fail(call, at);
            dice.shuffle(&mut asked);
            asked.truncate(3);
        }
        assert!(now(engine.pause()), "all are there");
        let streams = submit_all(&engine, asked.iter().map(|&index| requests[index].clone()).collect());
        now(engine.resume());
        for (index, (answers, stream)) in asked.into_iter().zip(streams) {
            let outcome = gather(stream, answers);
            assert_eq!(outcome.embedding, expected[index].embedding, "{what}, request {index}");
            assert_same(&what, &[outcome], &expected[index..=index]);
        }
        wait_until_quiet(&engine);
        round += 1;
    }
    let stats = engine.stats();
    let counted = [stats.swap.loaded_from_host, stats.prefix_hits, stats.preemptions, stats.drafted_tokens];
    assert!(!counted.contains(&0), "it was no crowd: {counted:?}");
}

/// Both models are on the GPU.
#[test]
fn a_draft_model_on_a_gpu_changes_no_answer_and_guesses_as_on_the_cpu() {
    let learned = learned(DraftMethod::DraftModel);
    let speculation = Speculation::By(Drafters { max_drafts: 2, lookup: None, learned, ..Drafters::default() });
    let raw = |temperature| RawRequest {
        sampling: SamplingParams::at(temperature),
        logprobs: Some(0),
        ..greedy("Once upon a time there was a fox who", 24)
    };
    let [cpu, gpu] = [DeviceChoice::Cpu, gpu()].map(|device| {
        let (speculation, kv_cache_bytes) = (speculation.clone(), Some(4 << 20));
        let options = EngineOptions { device, kv_cache_bytes, speculation, ..options() };
        let engine = Engine::start(&lantern(), &options, &mut |_| {}).unwrap();
        let outcomes = [0.0, 0.9].map(|temperature| common::ask(&engine, raw(temperature)));
        (outcomes, [engine.stats().drafted_tokens, engine.stats().accepted_tokens])
    });
    assert_same("with a draft model", &gpu.0, &cpu.0);
    assert!(cpu.1[1] > 0 && gpu.1 == cpu.1, "{:?}, {:?}", gpu.1, cpu.1);
}
