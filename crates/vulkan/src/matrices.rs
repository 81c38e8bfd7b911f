//! Products of matrices of bytes that a device has units for (`VK_KHR_cooperative_matrix`): exact sums of integers, which
//! are the same in any order. Where there are none, or where they are not exact, products go without.

use std::ffi::CStr;
use std::fmt;

use ash::{khr, vk};

/// Rows and columns of the tile of a workgroup, and inputs of a step of it.
pub(crate) const TILE: [u32; 3] = [128, 64, 64];
/// Rows of matrices, and bytes that kernels share with them: scales are matrices of equal rows.
const ROWS: [(u32, u32); 2] = [(8, 32 << 10), (16, 42 << 10)];

/// A product of the units: `rows x depth` bytes with `depth x columns`, by the lanes of a subgroup; and the part of a
/// tile that a subgroup has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Units {
    pub(crate) rows: u32,
    pub(crate) columns: u32,
    depth: u32,
    pub(crate) subgroup: u32,
    own: [u32; 2],
}

impl fmt::Display for Units {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {} x {}", self.rows, self.columns, self.depth)
    }
}

impl Units {
    /// The largest that a device has and kernels can use. `lanes`: of a workgroup.
    pub(crate) fn of(
        entry: &ash::Entry,
        instance: &ash::Instance,
        device: vk::PhysicalDevice,
        lanes: u32,
    ) -> Option<Units> {
        let mut of_12 = vk::PhysicalDeviceVulkan12Features::default();
        let mut of_13 = vk::PhysicalDeviceVulkan13Features::default();
        let mut of_matrices = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default();
        let mut sizes = vk::PhysicalDeviceVulkan13Properties::default();
        let shared;
        let shapes = khr::cooperative_matrix::Instance::new(entry, instance);
        // SAFETY: the device is one of this instance, structures live until the calls return, and what the extension
        // brings is asked of a device that has it.
        let shapes = unsafe {
            let extensions = instance.enumerate_device_extension_properties(device).ok()?;
            let is_its = |name: &CStr| name == khr::cooperative_matrix::NAME;
            extensions.iter().find(|other| other.extension_name_as_c_str().is_ok_and(is_its))?;
            let mut features = vk::PhysicalDeviceFeatures2::default()
                .push_next(&mut of_12)
                .push_next(&mut of_13)
                .push_next(&mut of_matrices);
            instance.get_physical_device_features2(device, &mut features);
            let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut sizes);
            instance.get_physical_device_properties2(device, &mut properties);
            shared = properties.properties.limits.max_compute_shared_memory_size;
            shapes.get_physical_device_cooperative_matrix_properties(device).ok()?
        };
        let features = [
            of_12.shader_int8,
            of_12.vulkan_memory_model,
            of_12.vulkan_memory_model_device_scope,
            of_13.subgroup_size_control,
            of_13.compute_full_subgroups,
            of_matrices.cooperative_matrix,
        ];
        let can_choose = sizes.required_subgroup_size_stages.contains(vk::ShaderStageFlags::COMPUTE);
        if features.contains(&vk::FALSE) || !can_choose {
            return None;
        }
        let is_fit = |shape: &&vk::CooperativeMatrixPropertiesKHR<'_>| {
            let (byte, sum) = (vk::ComponentTypeKHR::SINT8, vk::ComponentTypeKHR::SINT32);
            [shape.a_type, shape.b_type, shape.c_type, shape.result_type] == [byte, byte, sum, sum]
                && shape.scope == vk::ScopeKHR::SUBGROUP
                && shape.saturating_accumulation == vk::FALSE
        };
        let of = |shape: &vk::CooperativeMatrixPropertiesKHR<'_>| {
            Units::new([shape.m_size, shape.n_size, shape.k_size], [lanes, sizes.min_subgroup_size], shared)
        };
        let all = shapes.iter().filter(is_fit).filter_map(of);
        all.max_by_key(|units| units.rows * units.columns * units.depth)
    }

    fn new([rows, columns, depth]: [u32; 3], [lanes, subgroup]: [u32; 2], shared: u32) -> Option<Units> {
        // A ratio is of a multiple of 32 inputs, and lines are read by eight.
        let has_room = ROWS.into_iter().any(|(those, bytes)| those == rows && bytes <= shared);
        if !has_room || ![8, 16, 32].contains(&depth) || !(1..=lanes).contains(&subgroup) {
            return None;
        }
        let subgroups = lanes / subgroup;
        let own = (0..=subgroups.ilog2()).map(|down| [TILE[0] >> down, TILE[1] * (1 << down) / subgroups]);
        let is_whole = |[down, across]: &[u32; 2]| {
            let parts = (TILE[0] / down) * TILE[1].checked_div(*across).unwrap_or(0);
            parts == subgroups && down.is_multiple_of(rows) && across.is_multiple_of(columns)
        };
        // Of squares the least is loaded.
        let own = own.filter(is_whole).min_by_key(|[down, across]| down + across)?;
        Some(Units { rows, columns, depth, subgroup, own })
    }

    /// Multiplications and additions of a product, for each lane.
    pub(crate) fn operations_per_lane(&self) -> f64 {
        f64::from(2 * self.rows * self.columns * self.depth) / f64::from(self.subgroup)
    }

    /// What kernels are compiled with.
    pub(crate) fn constants(&self) -> [u32; 5] {
        [self.rows, self.columns, self.depth, self.own[0], self.own[1]]
    }
}
