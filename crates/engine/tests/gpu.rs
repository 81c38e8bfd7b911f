//! An engine on a GPU gives the CPU's answers, whatever becomes of its blocks, and goes on with the CPU where it is
//! lost. Software devices are GPUs too: `xtask test` installs one.

use crate::adapters::files::write_in;
use crate::adapters::{some, with_room};
use crate::common;
use crate::losses::{Losses, OnDevice, lantern};
use crate::lost::scarce;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::{Outcome, assert_same, gather, greedy, now, options, submit_all, wait_until_quiet};
use engine::{DeviceChoice, Engine, EngineOptions, KvDtype, Prompt, RawRequest, Speculation, WeightClass};
use testing::Scratch;

#[test]
fn a_crowd_has_the_cpus_answers_and_keeps_them_where_the_gpu_is_lost() {
    let place = Scratch::new("gpu-crowd");
    let named = [("a", 1), ("b", 2)].map(|(name, seed)| (name.to_string(), write_in(&place, name, &some(seed))));
    // Everything is scarce: blocks go to host memory and come back.
    let block_bytes = 32 * common::start(&options()).model().kv_bytes_per_token as u64;
    let on = |device| EngineOptions {
        device,
        standby: true,
        kv_cache_bytes: Some(10 * block_bytes),
        kv_swap_bytes: 40 * block_bytes,
        max_model_len: Some(256),
        max_num_batched_tokens: 48,
        speculation: Speculation::auto(),
        weights: WeightClass::Int8,
        kv_dtype: if testing::is_long() { KvDtype::Int8 } else { KvDtype::Bf16 },
        ..with_room(2, named.to_vec())
    };
    // Four that share nothing, of which two have room, and some of every kind.
    let apart = |number: i64| RawRequest {
        prompt: Prompt::Tokens((0..90).map(|at| 300 + at + 97 * number).collect()),
        ..greedy("", 60)
    };
    let requests: Vec<_> = (0..4).map(apart).chain(testing::part_of(scarce(), 4)).collect();
    // A device of the system: another that a test may have added compiles and computes for long.
    let slow = |listed: &vulkan::Listed| listed.name.contains("SwiftShader");
    let index = vulkan::list().unwrap().iter().position(|listed| !slow(listed)).expect("a GPU: mesa-vulkan-drivers");
    let cpu = Engine::start(&lantern(), &on(DeviceChoice::Cpu), &mut |_| {}).unwrap();
    let expected: Vec<Outcome> = requests.iter().map(|raw| common::ask(&cpu, raw.clone())).collect();
    drop(cpu);

    let losses = Arc::new(Losses::default());
    let around = |model| (OnDevice::around(model, &losses), None);
    let gpu = Engine::start_around(&lantern(), &on(DeviceChoice::Gpu(index)), &mut |_| {}, around).unwrap();
    assert_eq!(gpu.model().device.kind, "GPU");
    for round in 0..2 {
        if round == 1 {
            *losses.next.lock().unwrap() = Some(("launch", 30));
        }
        assert!(now(gpu.pause()), "all are there");
        let streams = submit_all(&gpu, requests.clone());
        now(gpu.resume());
        for (index, (answers, stream)) in streams.into_iter().enumerate() {
            let outcome = gather(stream, answers);
            assert_eq!(outcome.embedding, expected[index].embedding, "round {round}, request {index}");
            assert_same(&format!("round {round}"), &[outcome], &expected[index..=index]);
        }
        wait_until_quiet(&gpu);
    }
    let stats = gpu.stats();
    assert!(stats.swap.loaded_from_host > 0 && stats.prefix_hits > 0, "{stats:?}");
    assert_eq!(losses.count.load(Ordering::Relaxed), 1);
}
