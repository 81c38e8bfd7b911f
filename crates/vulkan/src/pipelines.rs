//! The kernels: SPIR-V of `shaders/`, compiled beforehand, with what a device and an accumulation order decide.

use ash::vk;
use std::sync::{Arc, Mutex};

use kernels::{AccumulationOrder, KvDtype, KvShape};

use crate::driver::{Driver, LARGEST_GROUP, VulkanError, failed, locked};
use crate::matrices::Units;

/// A kernel of a device: its words, constants, number of buffers, and what the driver compiled of it.
pub(crate) struct Pipeline {
    driver: Arc<Driver>,
    name: &'static str,
    words: Vec<u32>,
    constants: Vec<u32>,
    /// Lanes of a subgroup, where its matrices are a subgroup's.
    subgroup: Option<u32>,
    pub(crate) buffers: usize,
    compiled: Mutex<Option<vk::Pipeline>>,
}

/// Name and buffers of each; those with a source are compiled when they are wanted: of products when weights come, of
/// attention when a cache does.
macro_rules! kernels {
    ($($(#[$doc:meta])* $name:ident: $buffers:expr,)*; $($other:ident of $source:ident: $number:expr,)*) => {
        /// An open device with all kernels.
        pub(crate) struct Kernels {
            pub(crate) driver: Arc<Driver>,
            /// Whether products of many rows go by the device's matrices: it has them, and they are exact.
            pub(crate) has_matrices: bool,
            $($(#[$doc])* pub(crate) $name: Pipeline,)*
            $(pub(crate) $other: Pipeline,)*
        }

        impl Kernels {
            /// `fuses`: whether the device's fma rounds once.
            pub(crate) fn new(
                driver: &Arc<Driver>,
                order: AccumulationOrder,
                fuses: bool,
                faults: Faults,
            ) -> Result<Kernels, VulkanError> {
                let common = [fuses, order == AccumulationOrder::Amx, faults.reversed].map(u32::from);
                let kernel = |name, code: &[u8], buffers| {
                    let constants = [&common[..], &constants_of(name, driver, faults.common_ground)].concat();
                    let mut kernel = Pipeline::new(driver, name, code, buffers, constants);
                    faults.kernel.into_iter().for_each(|change| change(name, &mut kernel.words));
                    kernel
                };
                let kernels = Kernels {
                    driver: driver.clone(),
                    has_matrices: false,
                    $($name: kernel(stringify!($name), include_bytes!(concat!("../spirv/", stringify!($name), ".spv")), $buffers),)*
                    $($other: kernel(stringify!($other), include_bytes!(concat!("../spirv/", stringify!($source), ".spv")), $number),)*
                };
                $(kernels.$name.handle()?;)*
                Ok(kernels)
            }
        }
    };
}

kernels! {
    /// Single operations, to see how the device computes.
    probe: PROBE_BUFFERS,
    embed: 5,
    activate: 1,
    gated: 2,
    pointwise: 3,
    gather: 3,
    convert: 8,
    select: 2,
    rank: 2,
    ;
    peak of peak: 1,
    embed_groups of embed_groups: 4,
    rotate_bf16 of rotate_bf16: 8,
    rotate_int8 of rotate_int8: 8,
    attend_bf16 of attend_bf16: 7,
    attend_int8 of attend_int8: 7,
    latent_rotate_bf16 of latent_rotate_bf16: 8,
    latent_rotate_int8 of latent_rotate_int8: 8,
    latent_attend_bf16 of latent_attend_bf16: 7,
    latent_attend_int8 of latent_attend_int8: 7,
    low_rank of low_rank: 5,
    few_bf16 of few_bf16: 4,
    few_pairs of few_pairs: 4,
    few_groups of few_groups: 8,
    many_bf16 of many_bf16: 4,
    many_groups of many_groups: 8,
    few_int8 of few_integers: 8,
    few_int4 of few_integers: 8,
    many_int8 of many_integers: 8,
    many_int4 of many_integers: 8,
    matrix_int8 of matrix_integers: 8,
    matrix_int4 of matrix_integers: 8,
    matrix_groups of matrix_groups: 8,
    probe_matrices of probe_matrices: 2,
    peak_matrices of peak_matrices: 1,
    routed_convert of routed_convert: 7,
    routed_bf16 of routed_few_bf16: 3,
    routed_pairs of routed_few_pairs: 3,
    routed_groups of routed_few_groups: 6,
    routed_int8 of routed_few_integers: 6,
    routed_int4 of routed_few_integers: 6,
    route of route: 3,
    expert of expert: 5,
    heads of heads: 3,
    combine of combine: 4,
    convolve of convolve: 7,
    before_states of before_states: 5,
    recur of recur: 7,
    after_states of after_states: 4,
}

impl Kernels {
    /// What stores into a cache, and attention over it.
    pub(crate) fn of_cache(&self, kv: &KvShape) -> [&Pipeline; 2] {
        match (kv.latent, kv.dtype) {
            (None, KvDtype::Bf16) => [&self.rotate_bf16, &self.attend_bf16],
            (None, KvDtype::Int8) => [&self.rotate_int8, &self.attend_int8],
            (Some(_), KvDtype::Bf16) => [&self.latent_rotate_bf16, &self.latent_attend_bf16],
            (Some(_), KvDtype::Int8) => [&self.latent_rotate_int8, &self.latent_attend_int8],
        }
    }
}

const PROBE_BUFFERS: usize = 2;

/// Of products: lanes, whether weights have four bits, and copies of the table of levels that they look up; then the
/// sizes of matrices.
fn constants_of(name: &str, driver: &Driver, common_ground: bool) -> Vec<u32> {
    let (lanes, limits) = (LARGEST_GROUP, &driver.limits);
    let most = limits.max_compute_work_group_invocations.min(limits.max_compute_work_group_size[0]);
    let [is_wide, is_deep] = [most >= 2 * lanes, limits.max_compute_shared_memory_size >= 38 << 10];
    let mut constants = match name {
        "few_int8" | "few_bf16" | "routed_int8" | "routed_bf16" if is_wide && !common_ground => [2 * lanes, 0, 1],
        "few_int8" | "many_int8" | "routed_int8" => [lanes, 0, 1],
        // 32 KiB of copies lie beside six that are shared anyway.
        "few_int4" | "routed_int4" => [lanes, 1, if is_deep && !common_ground { 32 } else { 16 }],
        "matrix_int8" | "peak_matrices" => [lanes, 0, 1],
        // Matrices of ratios lie beside.
        "matrix_int4" | "matrix_groups" => [lanes, 1, if is_deep { 4 } else { 2 }],
        "probe_matrices" => [driver.units.map_or(0, |units| units.subgroup), 0, 1],
        _ => [lanes, 1, 4],
    }
    .to_vec();
    if is_of_matrices(name) {
        constants.extend(driver.units.iter().flat_map(Units::constants));
    }
    constants
}

fn is_of_matrices(name: &str) -> bool {
    name.starts_with("matrix_") || name.ends_with("_matrices")
}

/// What a test does to a device: it has to be seen, or to be of no consequence.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Changes the words of a kernel, by its name, before it is compiled.
    pub kernel: Option<fn(&str, &mut [u32])>,
    /// Workgroups compute each other's parts, the last one that of the first.
    pub reversed: bool,
    /// Workgroups are no larger, and share no more, than on every device.
    pub common_ground: bool,
    /// Nothing waits for the operations before it.
    pub no_barriers: bool,
    /// A call of the driver that fails, after this number of calls that do not.
    pub failing: Option<(&'static str, u64)>,
}

impl Pipeline {
    /// The probe alone, with the device's fused multiply-add.
    pub(crate) fn probe(driver: &Arc<Driver>) -> Pipeline {
        Pipeline::new(driver, "probe", include_bytes!("../spirv/probe.spv"), PROBE_BUFFERS, vec![1, 0, 0])
    }

    fn new(driver: &Arc<Driver>, name: &'static str, code: &[u8], buffers: usize, constants: Vec<u32>) -> Pipeline {
        let words = code.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let subgroup = driver.units.filter(|_| is_of_matrices(name)).map(|units| units.subgroup);
        Pipeline { driver: driver.clone(), name, words, constants, subgroup, buffers, compiled: Mutex::default() }
    }

    /// What the driver compiled, now if it has not.
    pub(crate) fn handle(&self) -> Result<vk::Pipeline, VulkanError> {
        let Pipeline { driver, name, words, constants, subgroup, buffers, compiled } = self;
        let (device, mut compiled) = (&driver.device, locked(compiled));
        if let Some(handle) = *compiled {
            return Ok(handle);
        }
        let entry =
            |index: usize| vk::SpecializationMapEntry { constant_id: index as u32, offset: 4 * index as u32, size: 4 };
        let entries: Vec<_> = (0..constants.len()).map(entry).collect();
        let data: Vec<u8> = constants.iter().flat_map(|number| number.to_ne_bytes()).collect();
        let special = vk::SpecializationInfo::default().map_entries(&entries).data(&data);
        let mut size = vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo::default();
        driver.before("vkCreateShaderModule")?;
        // SAFETY: the device is alive and structures live until the calls return. The code is a module that glslang made of
        // a source for this version of Vulkan, as a test does again, with an entry `main`. It may go once its pipeline is
        // there.
        let made = unsafe {
            let module = device
                .create_shader_module(&vk::ShaderModuleCreateInfo::default().code(words), None)
                .map_err(failed("vkCreateShaderModule"))?;
            let mut stage = vk::PipelineShaderStageCreateInfo::default()
                .stage(vk::ShaderStageFlags::COMPUTE)
                .module(module)
                .name(c"main")
                .specialization_info(&special);
            if let Some(lanes) = *subgroup {
                size = size.required_subgroup_size(lanes);
                stage = stage.flags(vk::PipelineShaderStageCreateFlags::REQUIRE_FULL_SUBGROUPS).push_next(&mut size);
            }
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
        Ok(*compiled.insert(made?[0]))
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        if let Some(handle) = locked(&self.compiled).filter(|_| !self.driver.is_stuck()) {
            // SAFETY: the recorder that used it has waited, or is gone.
            unsafe { self.driver.device.destroy_pipeline(handle, None) };
        }
    }
}
