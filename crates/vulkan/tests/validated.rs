//! What the validation layer of Khronos says of whole passes, and that it says what it should where something is wrong.
//! It writes to the output of a process that was started with it: this binary, once more.

use std::path::Path;
use std::process::Command;

use crate::batches::{Wanted, push, random_tokens, run};
use crate::passes::{llama, sizes};
use kernels::{AccumulationOrder, KvDtype, WeightClass};
use model::{Batch, Forward};
use vulkan::{Faults, VulkanError, VulkanOptions};

/// What the layer writes while an ignored test of this file runs. `None`: it is not installed.
fn said_of(test: &str) -> Option<String> {
    let places = ["/usr/share", "/usr/local/share", "/etc"].map(|place| format!("{place}/vulkan/explicit_layer.d"));
    if !places.iter().any(|place| Path::new(place).join("VkLayer_khronos_validation.json").exists()) {
        println!("skipped: the validation layer is not here (Debian: vulkan-validationlayers)");
        return None;
    }
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", &format!("validated::{test}"), "--ignored", "--nocapture"]);
    again.env("VK_INSTANCE_LAYERS", "VK_LAYER_KHRONOS_validation");
    again.env("VK_LAYER_ENABLES", "VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT");
    // The slow device that a test may have added is not asked.
    let ran = again.env_remove("VK_ADD_DRIVER_FILES").output().unwrap();
    let said = [ran.stdout, ran.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(ran.status.success() && said.contains("1 passed"), "{said}");
    Some(said)
}

#[test]
fn it_is_silent_over_whole_passes() {
    for test in ["passes_with_what_the_device_has", "passes_with_less", "a_kernel_that_does_not_compile"] {
        let Some(said) = said_of(test) else { return };
        assert!(!said.contains("VUID") && !said.contains("Validation"), "{test}: {said}");
    }
}

#[test]
fn it_reports_a_barrier_that_is_missing() {
    let Some(said) = said_of("passes_without_barriers") else { return };
    assert!(said.contains("SYNC-HAZARD-READ-AFTER-WRITE") || said.contains("SYNC-HAZARD-READ_AFTER_WRITE"), "{said}");
}

/// A prompt in two chunks, blocks that are copied and saved, and a token.
fn passes(way: VulkanOptions) {
    for (weights, kv) in [(WeightClass::Int8, KvDtype::Int8), (WeightClass::Bf16, KvDtype::Bf16)] {
        let (_, mut model) = llama(way, &sizes(weights, kv));
        let tokens = random_tokens(1, 80, model.config().vocab_size);
        let mut batch = Batch::default();
        for (rows, table) in [(0..40, [1, 2, 3]), (40..70, [1, 2, 3]), (70..71, [1, 7, 8])] {
            push(&mut batch, &tokens, rows, &table, Wanted::All);
            run(&mut model, &batch);
            batch.clear();
            model.copy_blocks(&[(2, 7)]);
            let mut buffer = model.host_buffer(vec![0; model.block_bytes()]);
            let block = std::sync::Arc::get_mut(&mut buffer).unwrap();
            model.save_block(3, block);
            model.load_block(block, 8);
            model.submit().unwrap();
            buffer.bytes().unwrap();
        }
    }
}

#[test]
#[ignore = "beneath the validation layer: another test runs it"]
fn passes_with_what_the_device_has() {
    passes(VulkanOptions::default());
}

#[test]
#[ignore = "beneath the validation layer: another test runs it"]
fn passes_with_less() {
    passes(VulkanOptions { stage: true, emulate_fma: true, binding_bytes: Some(32 << 10), ..VulkanOptions::default() });
}

#[test]
#[ignore = "beneath the validation layer: another test runs it"]
fn passes_without_barriers() {
    let faults = Some(Faults { no_barriers: true, ..Faults::default() });
    passes(VulkanOptions { faults, ..VulkanOptions::default() });
}

/// Nor one for which there is no layout, memory, or anything else: what was made before is gone with the device.
#[test]
#[ignore = "beneath the validation layer: another test runs it"]
fn a_kernel_that_does_not_compile() {
    let calls =
        ["vkCreateComputePipelines", "vkCreateShaderModule", "vkCreatePipelineLayout", "vkCreateDescriptorPool"];
    for (call, after) in calls.into_iter().zip([3, 2, 4, 0]) {
        let faults = Some(Faults { failing: Some((call, after)), ..Faults::default() });
        let host = crate::common::host(AccumulationOrder::Amx);
        let error = vulkan::Vulkan::open(host, VulkanOptions { faults, ..VulkanOptions::default() }).err();
        let is_told = |error: &VulkanError| error.to_string().contains(&format!("{call} failed"));
        assert!(error.as_ref().is_some_and(is_told), "{call}: {error:?}");
    }
}
