//! The operations of a transformer on a GPU, through Vulkan, with the bits of [`kernels::Reference`].
//!
//! ```text
//! driver      the loader, a device, its memory            (list, open)
//! recorder    operations in order: one queue, one timeline
//! pipelines   the kernels: spirv/*.spv, compiled from shaders/*.comp by compile.sh
//! probe       whether the device computes as it has to; it is refused where not
//! matrices    its units for products of matrices of bytes, which have to be exact to be used
//! device      weights, adapters, cache                     impl kernels::Device
//! slots       states of layers that have one
//! backend     the operations                               impl kernels::Backend
//! products, routes, latents, states                        those that are several kernels
//! latents     those of latent attention alone
//! ```
//!
//! # Whose bits
//!
//! Kernels trust only what every device has to round correctly: `+ - *` of f32, kept apart by `NoContraction`,
//! comparisons, and 32-bit integers. A fused multiply-add is the device's where the probe saw it round once, and else is made of
//! correctly rounded operations (Boldo & Melquiond, 2008). Quotients and roots begin with the driver's estimate and are
//! made exact in integers; `exp` is the polynomial of the CPU. No order of workgroups and no size of a subgroup matters.
//! Denormals may be flushed: none occurs (see [`kernels::accumulation_order`]).

mod backend;
mod device;
mod driver;
mod latents;
mod matrices;
mod memory;
mod pipelines;
mod probe;
mod products;
mod recorder;
mod routes;
mod rows;
mod slots;
mod states;

pub use backend::{Best, GpuStep};
pub use device::{GpuKvCache, GpuLowRank, HostMemory, Matrix, Vulkan, VulkanOptions};
pub use driver::{Listed, VulkanError, list};
#[doc(hidden)]
pub use pipelines::Faults;
pub use recorder::OperationCounts;
pub use routes::GpuRoutes;
pub use rows::{GpuRows, Vector};
pub use slots::GpuStates;
