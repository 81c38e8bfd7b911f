//! What the validation layer of Khronos says of whole passes, and that it says what it should where something is wrong.
//! It writes to the output of a process that was started with it: this binary, once more.

use std::path::Path;
use std::process::Command;

use crate::batches::passes;
use crate::common::host;
use crate::passes::{llama, sizes};
use kernels::{AccumulationOrder, KvDtype, WeightClass};
use vulkan::{Faults, Vulkan, VulkanOptions};

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
fn it_is_silent_over_whole_passes_and_reports_barriers_that_are_missing() {
    let (Some(right), Some(wrong)) = (said_of("what_is_right"), said_of("what_is_wrong")) else { return };
    assert!(!right.contains("VUID") && !right.contains("Validation") && !right.contains("SYNC-"), "{right}");
    assert!(wrong.contains("SYNC-HAZARD-READ"), "{wrong}");
}

fn all_passes(way: VulkanOptions) {
    for (weights, kv) in [(WeightClass::Int8, KvDtype::Int8), (WeightClass::Bf16, KvDtype::Bf16)] {
        passes(&mut llama(way, &sizes(weights, kv)).1, 40);
    }
}

/// Passes, and kernels that do not compile: what was made before is gone with the device.
#[test]
#[ignore = "beneath the validation layer: another test runs it"]
fn what_is_right() {
    all_passes(VulkanOptions::default());
    all_passes(VulkanOptions {
        stage: true,
        emulate_fma: true,
        binding_bytes: Some(32 << 10),
        ..VulkanOptions::default()
    });
    let calls =
        ["vkCreateComputePipelines", "vkCreateShaderModule", "vkCreatePipelineLayout", "vkCreateDescriptorPool"];
    for (call, after) in calls.into_iter().zip([3, 2, 4, 0]) {
        let faults = Some(Faults { failing: Some((call, after)), ..Faults::default() });
        let opened = Vulkan::open(host(AccumulationOrder::Amx), VulkanOptions { faults, ..VulkanOptions::default() });
        let said = opened.err().expect("it fails").to_string();
        assert!(said.contains(&format!("{call} failed")), "{said}");
    }
}

#[test]
#[ignore = "beneath the validation layer: another test runs it"]
fn what_is_wrong() {
    let faults = Some(Faults { no_barriers: true, ..Faults::default() });
    all_passes(VulkanOptions { faults, ..VulkanOptions::default() });
}
