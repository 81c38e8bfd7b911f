//! The crate's integration tests, in one binary: each further one would link the whole tree once more.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx_emulated;
mod attention;
mod common;
mod feedback;
mod float32;
mod latent;
mod low_rank;
mod paths;
mod plain;
mod pointwise;
mod routing;
mod states;
mod threads;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod tiles;
mod twins;
