//! What the tests share.

use kernels::{AccumulationOrder, Cpu, CpuOptions};
use vulkan::{Vulkan, VulkanOptions};

/// The devices that there are, software ones among them.
pub(crate) fn devices() -> usize {
    let found = vulkan::list().expect("a Vulkan loader");
    assert!(!found.is_empty(), "no Vulkan device: install mesa-vulkan-drivers");
    found.len()
}

pub(crate) fn open(order: AccumulationOrder, options: VulkanOptions) -> Vulkan {
    let host = CpuOptions { threads: Some(1), arithmetic: Some(order), ..CpuOptions::default() };
    Vulkan::open(Cpu::new(host).unwrap(), options).unwrap()
}
