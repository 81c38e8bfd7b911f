//! The tile kernels against the definition, on any x86-64: where the CPU has no AMX, a handler of SIGILL executes the
//! tile instructions in software as the Intel SDM (volume 2, and volume 1 chapter 18) defines them.
//!
//! ```text
//! kernel  -> tdpbssd tmm4, tmm0, tmm2    the CPU raises SIGILL
//! handler -> decodes the VEX bytes at RIP, computes on this thread's eight tiles, moves RIP behind the instruction
//! kernel  -> next instruction
//! ```
//! On a machine with AMX the same test runs on the real thing.

#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod common;
#[path = "common/emulator.rs"]
mod emulator;

use common::{Case, KINDS, SHAPES, cases};
use kernels::Cpu;
use kernels::isa::Amx;
use kernels::threads::max_threads;
use std::sync::atomic::Ordering::Relaxed;

/// A proof of AMX: real, or by grace of the emulator.
fn tiles() -> Amx {
    Amx::detect().unwrap_or_else(|| {
        emulator::install();
        // SAFETY: from here on SIGILL executes tile instructions.
        unsafe { Amx::assume() }
    })
}

fn implementations() -> Vec<Cpu> {
    (1..=max_threads().min(2)).map(|threads| Cpu::with_tiles(Some(threads), tiles()).unwrap()).collect()
}

#[test]
fn tiles_return_the_bits_of_the_definition() {
    let implementations = implementations();
    for case in cases() {
        for cpu in &implementations {
            case.check(cpu);
        }
    }
    if Amx::detect().is_none() {
        for (name, count) in emulator::executed() {
            assert!(count.load(Relaxed) > 0, "no {name} was executed: these were not the tile kernels");
        }
    }
}

#[test]
fn every_row_count_of_both_tile_shapes() {
    let cpu = Cpu::with_tiles(Some(1), tiles()).unwrap();
    for shape in SHAPES.into_iter().take(5) {
        for kind in KINDS {
            for rows in 1..=33 {
                Case::new(2_000 + rows as u64, kind, shape, rows).check(&cpu);
            }
        }
    }
}
