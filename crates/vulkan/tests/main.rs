//! A GPU gives the bits of the definition, on every device that there is. Where there is none, that is a failure:
//! software devices can be installed anywhere (Debian: mesa-vulkan-drivers).

#[path = "../../model/tests/common/batches.rs"]
mod batches;
mod common;
mod modules;
mod operations;
mod passes;
mod states;
mod validated;
