//! The kernels: SPIR-V of `shaders/`, compiled beforehand, with what a device and an accumulation order decide.

use ash::vk;
use std::sync::Arc;

use kernels::AccumulationOrder;

use crate::driver::{Driver, PUSH_BYTES, VulkanError, failed};

/// A kernel of a device.
pub(crate) struct Pipeline {
    driver: Arc<Driver>,
    pub(crate) handle: vk::Pipeline,
    pub(crate) layout: vk::PipelineLayout,
    pub(crate) sets: vk::DescriptorSetLayout,
    /// Buffers that it has.
    pub(crate) buffers: usize,
}

/// Name, buffers and SPIR-V of each.
macro_rules! kernels {
    ($($(#[$doc:meta])* $name:ident: $buffers:expr,)*) => {
        /// All kernels, by the name of their source.
        pub(crate) struct Kernels {
            $($(#[$doc])* pub(crate) $name: Pipeline,)*
        }

        impl Kernels {
            /// `fuses`: whether the device's fma rounds once.
            pub(crate) fn new(driver: &Arc<Driver>, order: AccumulationOrder, fuses: bool) -> Result<Kernels, VulkanError> {
                let constants = [u32::from(fuses), u32::from(order == AccumulationOrder::Amx)];
                let kernel = |name, code, buffers| Pipeline::new(driver, name, code, buffers, &constants);
                Ok(Kernels {
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
    rms_norm: 3,
    layer_norm: 4,
    activate: 1,
    gated: 2,
    pointwise: 3,
    gather: 3,
    to_bf16: 2,
    digits: 5,
    linear_bf16: 4,
    linear_int8: 7,
    linear_int4: 8,
    linear_groups: 7,
    embed_groups: 4,
    rotate: 7,
    store_bf16: 3,
    store_int8: 3,
    attend_bf16: 6,
    attend_int8: 6,
    low_rank: 5,
}

const PROBE_BUFFERS: usize = 2;

impl Pipeline {
    /// The probe alone, with the device's fused multiply-add.
    pub(crate) fn probe(driver: &Arc<Driver>) -> Result<Pipeline, VulkanError> {
        Pipeline::new(driver, "probe", include_bytes!("../spirv/probe.spv"), PROBE_BUFFERS, &[1, 0])
    }

    fn new(
        driver: &Arc<Driver>,
        name: &str,
        code: &[u8],
        buffers: usize,
        constants: &[u32],
    ) -> Result<Pipeline, VulkanError> {
        let device = &driver.device;
        let words: Vec<u32> = code.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let binding = |index| {
            vk::DescriptorSetLayoutBinding::default()
                .binding(index as u32)
                .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                .descriptor_count(1)
                .stage_flags(vk::ShaderStageFlags::COMPUTE)
        };
        let bindings: Vec<_> = (0..buffers).map(binding).collect();
        let of_sets = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
        let push =
            [vk::PushConstantRange::default().stage_flags(vk::ShaderStageFlags::COMPUTE).size(PUSH_BYTES as u32)];
        let entry =
            |index: usize| vk::SpecializationMapEntry { constant_id: index as u32, offset: 4 * index as u32, size: 4 };
        let entries: Vec<_> = (0..constants.len()).map(entry).collect();
        let data: Vec<u8> = constants.iter().flat_map(|number| number.to_ne_bytes()).collect();
        let special = vk::SpecializationInfo::default().map_entries(&entries).data(&data);
        tracing::debug!(kernel = name, "compiled");
        // SAFETY: the device is alive and structures live until the calls return. The code is a module that glslang made of
        // a source for this version of Vulkan, as a test does again, with an entry `main`. It may go once its pipeline is
        // there.
        unsafe {
            let module = device
                .create_shader_module(&vk::ShaderModuleCreateInfo::default().code(&words), None)
                .map_err(failed("vkCreateShaderModule"))?;
            let sets =
                device.create_descriptor_set_layout(&of_sets, None).map_err(failed("vkCreateDescriptorSetLayout"))?;
            let layouts = [sets];
            let of_layout = vk::PipelineLayoutCreateInfo::default().set_layouts(&layouts).push_constant_ranges(&push);
            let layout = device.create_pipeline_layout(&of_layout, None).map_err(failed("vkCreatePipelineLayout"))?;
            let stage = vk::PipelineShaderStageCreateInfo::default()
                .stage(vk::ShaderStageFlags::COMPUTE)
                .module(module)
                .name(c"main")
                .specialization_info(&special);
            let info = [vk::ComputePipelineCreateInfo::default().stage(stage).layout(layout)];
            let made = device.create_compute_pipelines(vk::PipelineCache::null(), &info, None);
            device.destroy_shader_module(module, None);
            let handle = made.map_err(|(_, error)| failed("vkCreateComputePipelines")(error))?[0];
            Ok(Pipeline { driver: driver.clone(), handle, layout, sets, buffers })
        }
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        if self.driver.is_stuck() {
            return;
        }
        let device = &self.driver.device;
        // SAFETY: the recorder that used it has waited, or is gone.
        unsafe {
            device.destroy_pipeline(self.handle, None);
            device.destroy_pipeline_layout(self.layout, None);
            device.destroy_descriptor_set_layout(self.sets, None);
        }
    }
}
