//! What the tests share.

use kernels::{AccumulationOrder, Cpu, CpuOptions};
use vulkan::{Vulkan, VulkanOptions};

/// The devices that there are, software ones among them.
pub(crate) fn devices() -> usize {
    let found = vulkan::list().expect("a Vulkan loader");
    assert!(!found.is_empty(), "no Vulkan device: install mesa-vulkan-drivers");
    found.len()
}

/// What packs weights.
pub(crate) fn host(order: AccumulationOrder) -> Cpu {
    Cpu::new(CpuOptions { threads: Some(1), arithmetic: Some(order), ..CpuOptions::default() }).unwrap()
}

pub(crate) fn open(order: AccumulationOrder, options: VulkanOptions) -> Vulkan {
    Vulkan::open(host(order), options).unwrap()
}

/// Whether a quick run has to be sparing with a device, which compiles and computes slowly.
pub(crate) fn is_slow(index: usize) -> bool {
    vulkan::list().expect("a Vulkan loader")[index].name.contains("SwiftShader") && !testing::is_long()
}

/// A part of a long table: of devices that compile and compute slowly a smaller one.
pub(crate) fn part_for<T>(is_slow: bool, table: impl IntoIterator<Item = T>, n: usize) -> impl Iterator<Item = T> {
    testing::part_of(table, if is_slow { 4 * n } else { n })
}
