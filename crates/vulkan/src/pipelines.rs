//! The kernels: SPIR-V of `shaders/`, compiled beforehand, with what a device and an accumulation order decide.

use ash::vk;
use std::sync::Arc;

use kernels::AccumulationOrder;

use crate::driver::{Driver, VulkanError, failed};

/// A kernel of a device.
pub(crate) struct Pipeline {
    driver: Arc<Driver>,
    pub(crate) handle: vk::Pipeline,
    /// Buffers that it has.
    pub(crate) buffers: usize,
}

/// Name, buffers and SPIR-V of each.
macro_rules! kernels {
    ($($(#[$doc:meta])* $name:ident: $buffers:expr,)*) => {
        /// An open device with all kernels, by the name of their source.
        pub(crate) struct Kernels {
            pub(crate) driver: Arc<Driver>,
            $($(#[$doc])* pub(crate) $name: Pipeline,)*
        }

        impl Kernels {
            /// `fuses`: whether the device's fma rounds once.
            pub(crate) fn new(
                driver: &Arc<Driver>,
                order: AccumulationOrder,
                fuses: bool,
                faults: Faults,
            ) -> Result<Kernels, VulkanError> {
                let constants = [fuses, order == AccumulationOrder::Amx, faults.reversed].map(u32::from);
                let kernel = |name: &str, code: &[u8], buffers| {
                    let mut words = words_of(code);
                    faults.kernel.into_iter().for_each(|change| change(name, &mut words));
                    Pipeline::new(driver, name, &words, buffers, &constants)
                };
                Ok(Kernels {
                    driver: driver.clone(),
                    $($name: kernel(stringify!($name), include_bytes!(concat!("../spirv/", stringify!($name), ".spv")), $buffers)?,)*
                })
            }
        }
    };
}

kernels! {
    /// Single operations, to see how the device computes.
    probe: PROBE_BUFFERS,
    /// As many operations as it can.
    peak: 1,
    embed: 5,
    activate: 1,
    gated: 2,
    pointwise: 3,
    gather: 3,
    convert: 8,
    linear_bf16: 4,
    linear_int8: 7,
    linear_int4: 8,
    linear_groups: 7,
    embed_groups: 4,
    rotate_bf16: 8,
    rotate_int8: 8,
    attend_bf16: 7,
    attend_int8: 7,
    low_rank: 5,
    select: 2,
    rank: 2,
}

const PROBE_BUFFERS: usize = 2;

/// What a test does to a device: it has to be seen, or to be of no consequence.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Changes the words of a kernel, by its name, before it is compiled.
    pub kernel: Option<fn(&str, &mut [u32])>,
    /// Workgroups compute each other's parts, the last one that of the first.
    pub reversed: bool,
    /// Nothing waits for the operations before it.
    pub no_barriers: bool,
    /// A call of the driver that fails, after this number of calls that do not.
    pub failing: Option<(&'static str, u64)>,
}

fn words_of(code: &[u8]) -> Vec<u32> {
    code.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

impl Pipeline {
    /// The probe alone, with the device's fused multiply-add.
    pub(crate) fn probe(driver: &Arc<Driver>) -> Result<Pipeline, VulkanError> {
        let words = words_of(include_bytes!("../spirv/probe.spv"));
        Pipeline::new(driver, "probe", &words, PROBE_BUFFERS, &[1, 0, 0])
    }

    fn new(
        driver: &Arc<Driver>,
        name: &str,
        words: &[u32],
        buffers: usize,
        constants: &[u32],
    ) -> Result<Pipeline, VulkanError> {
        let device = &driver.device;
        let entry =
            |index: usize| vk::SpecializationMapEntry { constant_id: index as u32, offset: 4 * index as u32, size: 4 };
        let entries: Vec<_> = (0..constants.len()).map(entry).collect();
        let data: Vec<u8> = constants.iter().flat_map(|number| number.to_ne_bytes()).collect();
        let special = vk::SpecializationInfo::default().map_entries(&entries).data(&data);
        driver.before("vkCreateShaderModule")?;
        // SAFETY: the device is alive and structures live until the calls return. The code is a module that glslang made of
        // a source for this version of Vulkan, as a test does again, with an entry `main`. It may go once its pipeline is
        // there.
        let made = unsafe {
            let module = device
                .create_shader_module(&vk::ShaderModuleCreateInfo::default().code(words), None)
                .map_err(failed("vkCreateShaderModule"))?;
            let stage = vk::PipelineShaderStageCreateInfo::default()
                .stage(vk::ShaderStageFlags::COMPUTE)
                .module(module)
                .name(c"main")
                .specialization_info(&special);
            let layout = driver.layouts[buffers - 1].pipeline;
            let info = [vk::ComputePipelineCreateInfo::default().stage(stage).layout(layout)];
            let made = driver.before("vkCreateComputePipelines").and_then(|()| {
                let made = device.create_compute_pipelines(vk::PipelineCache::null(), &info, None);
                made.map_err(|(_, error)| failed("vkCreateComputePipelines")(error))
            });
            device.destroy_shader_module(module, None);
            made
        };
        tracing::debug!(kernel = name, "compiled");
        Ok(Pipeline { driver: driver.clone(), handle: made?[0], buffers })
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        if !self.driver.is_stuck() {
            // SAFETY: the recorder that used it has waited, or is gone.
            unsafe { self.driver.device.destroy_pipeline(self.handle, None) };
        }
    }
}
