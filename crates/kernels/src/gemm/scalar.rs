//! Kernels in plain Rust, one row at a time: any CPU. The compiler's vectors of 16 columns are welcome; the order of
//! operations within a column is the definition's.

use super::{Block, Format, Path, activations, epilogue};
use crate::quant::TILE;

pub(super) static INT8: Path = Path {
    format: Format::Int8,
    kernels: &[int8],
    block_rows: 1,
    prepare: activations::prepare,
    finish: epilogue::finish,
    unsigned_weights: false,
};

pub(super) static BF16: Path = Path {
    format: Format::Wide,
    kernels: &[bf16],
    block_rows: 1,
    prepare: activations::prepare,
    finish: epilogue::finish,
    unsigned_weights: false,
};

/// The tiles of a step, strip 0 and 1.
type StepTiles = [[u8; TILE]; 2];

/// What a kernel reads and writes: `[steps]` tiles, the `[steps]` activations of one row, the sums of strip 0 and 1.
///
/// # Safety
/// As for every kernel; `X` is the activation type of the format, `DEPTH` of them in a step, and `S` that of the sums.
unsafe fn parts<'a, X, S, const DEPTH: usize>(
    block: Block,
) -> (&'a [StepTiles], &'a [[X; DEPTH]], &'a mut [[S; 16]; 2]) {
    // SAFETY: the caller's promise; a [[S; 16]; 2] is the 32 sums of one row.
    unsafe {
        let tiles = std::slice::from_raw_parts(block.tiles.cast(), block.steps);
        let x = std::slice::from_raw_parts(block.x.cast(), block.steps);
        (tiles, x, &mut *block.sums.cast())
    }
}

unsafe fn int8(block: Block) {
    // SAFETY: passed on.
    let (tiles, x, sums) = unsafe { parts::<i8, i32, 64>(block) };
    *sums = [[0; 16]; 2];
    for (tiles, x) in tiles.iter().zip(x) {
        for (tile, sums) in tiles.iter().zip(&mut *sums) {
            for (line, x) in tile.as_chunks::<64>().0.iter().zip(x.as_chunks::<4>().0) {
                for (sum, w) in sums.iter_mut().zip(line.as_chunks::<4>().0) {
                    *sum += w.iter().zip(x).map(|(&w, &x)| i32::from(w as i8) * i32::from(x)).sum::<i32>();
                }
            }
        }
    }
}

unsafe fn bf16(block: Block) {
    // SAFETY: passed on.
    let (tiles, x, sums) = unsafe { parts::<f32, f32, 32>(block) };
    *sums = [[0.0; 16]; 2];
    for (tiles, x) in tiles.iter().zip(x) {
        for (tile, sums) in tiles.iter().zip(&mut *sums) {
            let (mut even, mut odd) = ([0f32; 16], [0f32; 16]);
            for (line, x) in tile.as_chunks::<64>().0.iter().zip(x.as_chunks::<2>().0) {
                for (column, w) in line.as_chunks::<4>().0.iter().enumerate() {
                    let pair = u32::from_le_bytes(*w);
                    even[column] = x[0].mul_add(f32::from_bits(pair << 16), even[column]);
                    odd[column] = x[1].mul_add(f32::from_bits(pair & 0xffff_0000), odd[column]);
                }
            }
            for (sum, (even, odd)) in sums.iter_mut().zip(even.iter().zip(odd)) {
                *sum += even + odd;
            }
        }
    }
}
