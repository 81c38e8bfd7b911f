//! What the validation layer of Khronos says of whole passes, and that it says what it should where something is wrong.
//! It writes to the output of a process that was started with it: this binary, once more.

use std::path::Path;
use std::process::Command;

use crate::batches::passes;
use crate::common::host;
use crate::passes::{sizes, small};
use kernels::{AccumulationOrder, KvDtype, WeightClass};
use vulkan::{Faults, Vulkan, VulkanOptions};

/// What the layer writes during the work of a test. `None`: it is not installed, or this is the process beneath it.
fn said_of(test: &str, work: impl FnOnce()) -> Option<String> {
    if std::env::var_os("VK_INSTANCE_LAYERS").is_some() {
        work();
        return None;
    }
    let places = ["/usr/share", "/usr/local/share", "/etc"].map(|place| format!("{place}/vulkan/explicit_layer.d"));
    if !places.iter().any(|place| Path::new(place).join("VkLayer_khronos_validation.json").exists()) {
        println!("skipped: the validation layer is not here (Debian: vulkan-validationlayers)");
        return None;
    }
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", &format!("validated::{test}"), "--nocapture"]);
    again.env("VK_INSTANCE_LAYERS", "VK_LAYER_KHRONOS_validation");
    again.env("VK_LAYER_ENABLES", "VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT");
    again.env("VK_LAYER_SYNCVAL_SHADER_ACCESSES_HEURISTIC", "1"); // newer layers see no missing barrier without it
    // The slow device that a test may have added is not asked.
    let ran = again.env_remove("VK_ADD_DRIVER_FILES").output().unwrap();
    let said = [ran.stdout, ran.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    // Newer layers have another way to be set, which older ones do not know.
    let said = said.replace("Validation Warning: [ VALIDATION-SETTINGS ]", "of settings:");
    assert!(ran.status.success() && said.contains("1 passed"), "{said}");
    Some(said)
}

/// Dense, with experts and states, and with latents.
const MODELS: [(&str, WeightClass, KvDtype); 3] = [
    ("llama3", WeightClass::Int8, KvDtype::Int8),
    ("qwen3-next", WeightClass::Bf16, KvDtype::Bf16),
    ("deepseek-v2", WeightClass::Bf16, KvDtype::Int8),
];

fn passes_of(models: &[(&str, WeightClass, KvDtype)], way: VulkanOptions) {
    for &(name, weights, kv) in models {
        // Enough rows for the kernels of many.
        passes(&mut small(name, way, &sizes(weights, kv)).1, 70);
    }
}

/// Nor where kernels do not compile: what was made before is gone with the device.
#[test]
fn it_is_silent_over_whole_passes() {
    let binding_bytes = Some(32 << 10);
    let poor = VulkanOptions { stage: true, emulate_fma: true, binding_bytes, ..VulkanOptions::default() };
    let calls =
        ["vkCreateComputePipelines", "vkCreateShaderModule", "vkCreatePipelineLayout", "vkCreateDescriptorPool"];
    let said = said_of("it_is_silent_over_whole_passes", || {
        [VulkanOptions::default(), poor].into_iter().for_each(|way| passes_of(&MODELS, way));
        for failing in calls.into_iter().zip([3, 2, 4, 0]) {
            let faults = Some(Faults { failing: Some(failing), ..Faults::default() });
            let way = VulkanOptions { faults, ..VulkanOptions::default() };
            let said = Vulkan::open(host(AccumulationOrder::Amx), way).err().expect("it fails").to_string();
            assert!(said.contains(&format!("{} failed", failing.0)), "{said}");
        }
    });
    let is_silent = |said: &String| !["VUID", "Validation", "SYNC-"].iter().any(|word| said.contains(word));
    assert!(said.as_ref().is_none_or(is_silent), "{said:?}");
}

#[test]
fn it_reports_barriers_that_are_missing() {
    let faults = Some(Faults { no_barriers: true, ..Faults::default() });
    let work = || passes_of(&MODELS[..1], VulkanOptions { faults, ..VulkanOptions::default() });
    let said = said_of("it_reports_barriers_that_are_missing", work);
    assert!(said.as_ref().is_none_or(|said| said.contains("SYNC-HAZARD-READ")), "{said:?}");
}
