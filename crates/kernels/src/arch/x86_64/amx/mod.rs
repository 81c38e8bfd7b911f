//! The AMX tile registers: eight of up to 16 rows of 64 bytes, which a thread configures before it multiplies.

pub(crate) mod attention;
mod finish;
pub(crate) mod gemm;
mod groups;
mod heavy;
pub(crate) mod low_rank;
pub(crate) mod multiply;
mod plan;
mod unpack;

use super::proofs::Amx;
use std::arch::asm;

/// Registers, `tmm0` to `tmm7`.
const COUNT: usize = 8;

/// The operand of `LDTILECFG`, palette 1 (Intel SDM volume 1, 18.2).
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Active tile state of the calling thread. Released on drop, so that the operating system need not save it at every
/// context switch.
struct Tiles {
    _proof: Amx,
    /// Rows of each register, and bytes of a row; zeros before the first configuration.
    shapes: [(u8, u8); COUNT],
}

impl Tiles {
    /// Tiles without a configuration.
    fn new(proof: Amx) -> Tiles {
        Tiles { _proof: proof, shapes: [(0, 0); COUNT] }
    }

    /// Sets the rows of each register, 1 to 16 of 64 bytes; discards their contents if the configuration changes.
    #[inline]
    fn configure(&mut self, rows: [u8; COUNT]) {
        self.shape(rows.map(|rows| (rows, 64)));
    }

    /// The same with rows of any number of lanes.
    #[inline]
    fn shape(&mut self, shapes: [(u8, u8); COUNT]) {
        if self.shapes == shapes {
            return;
        }
        let valid = |&(rows, bytes): &(u8, u8)| (1..=16).contains(&rows) && (4..=64).contains(&bytes);
        assert!(shapes.iter().all(valid), "{shapes:?}");
        let mut config = TileConfig { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        for (register, (rows, bytes)) in shapes.into_iter().enumerate() {
            (config.rows[register], config.row_bytes[register]) = (rows, bytes.into());
        }
        // SAFETY: the proof says that tile instructions work; the operand is 64 bytes of a valid configuration.
        unsafe { asm!("ldtilecfg [{config}]", config = in(reg) &config, options(nostack, readonly)) };
        self.shapes = shapes;
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        if self.shapes != [(0, 0); COUNT] {
            // SAFETY: as in `configure`.
            unsafe { asm!("tilerelease", options(nostack, nomem)) };
        }
    }
}
