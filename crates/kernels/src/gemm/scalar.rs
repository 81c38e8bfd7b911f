//! Kernels in plain Rust, one row at a time: any CPU. The compiler's vectors of 16 columns are welcome; the order of
//! operations within a column is the definition's.

use super::{Block, Format, OutlierBlock, Path, activations, epilogue};
use crate::quant::{GROUP, INT4_RATIOS, INT4_TILE, INT8_GROUP, PAIR, QUAD, TILE, WeightClass};

pub(super) static INT8: Path = Path {
    format: Format::Int8,
    kernels: &[int8],
    block_rows: 1,
    prepare: activations::prepare,
    finish: epilogue::finish,
    outliers: outliers_int8,
};

pub(super) static BF16: Path = Path {
    format: Format::Wide,
    kernels: &[bf16],
    block_rows: 1,
    prepare: activations::prepare,
    finish: epilogue::finish,
    outliers: super::no_outliers,
};

pub(super) static INT4: Path = Path {
    format: Format::Int8Grouped,
    kernels: &[int4],
    block_rows: 1,
    prepare: activations::prepare,
    finish: epilogue::finish,
    outliers: outliers_int4,
};

/// The tiles of a step, strip 0 and 1.
type StepTiles = [[u8; TILE]; 2];
/// The same for int4, the ratios `[strip][group][column]` before them.
type Int4Step = ([[[i8; 16]; 2]; 2], [[u8; INT4_TILE]; 2]);

/// What a kernel reads and writes: the weights of `[steps]`, the `[steps]` activations of one row, the sums of strip 0 and 1.
///
/// # Safety
/// As for every kernel; `W` is a step of the class, `X` the activation type of the format, `DEPTH` of them in a step,
/// and `S` that of the sums.
unsafe fn parts<'a, W, X, S, const DEPTH: usize>(block: Block) -> (&'a [W], &'a [[X; DEPTH]], &'a mut [[S; 16]; 2]) {
    // SAFETY: the caller's promise; a [[S; 16]; 2] is the 32 sums of one row.
    unsafe {
        let tiles = std::slice::from_raw_parts(block.tiles.cast(), block.steps);
        let x = std::slice::from_raw_parts(block.x.cast(), block.steps);
        (tiles, x, &mut *block.sums.cast())
    }
}

unsafe fn int8(block: Block) {
    // SAFETY: passed on.
    let (tiles, x, sums) = unsafe { parts::<StepTiles, i8, i32, 64>(block) };
    // SAFETY: before the tiles of a pair lie the ratios of each of its groups.
    let ratios: &[[[i8; 16]; 2]] =
        unsafe { std::slice::from_raw_parts(block.ratios.cast(), block.steps.div_ceil(INT8_GROUP / 64)) };
    *sums = [[0; 16]; 2];
    for ((tiles, x), ratios) in tiles.chunks(INT8_GROUP / 64).zip(x.chunks(INT8_GROUP / 64)).zip(ratios) {
        let mut group = [[0i32; 16]; 2];
        for (tiles, x) in tiles.iter().zip(x) {
            for (tile, sums) in tiles.iter().zip(&mut group) {
                for (line, x) in tile.as_chunks::<64>().0.iter().zip(x.as_chunks::<4>().0) {
                    for (sum, w) in sums.iter_mut().zip(line.as_chunks::<4>().0) {
                        *sum += w.iter().zip(x).map(|(&w, &x)| i32::from(w as i8) * i32::from(x)).sum::<i32>();
                    }
                }
            }
        }
        for ((sum, group), &ratio) in
            sums.as_flattened_mut().iter_mut().zip(group.as_flattened()).zip(ratios.as_flattened())
        {
            *sum += group * i32::from(ratio);
        }
    }
}

/// The sums of digits that few quads have: 4 weights of each column, by the ratio of their group.
unsafe fn outliers_int8(block: OutlierBlock<'_>) {
    for outlier in block.outliers {
        let quad = outlier.quad as usize;
        for (column, sum) in block.sums.iter_mut().enumerate() {
            // SAFETY: a quad of the activations is one of the weights, in every column.
            let (w, ratio) = unsafe {
                let line = block.tiles.add((quad / 16 * 2 + column / 16) * TILE + quad % 16 * 64 + column % 16 * 4);
                let ratio = block.ratios.add(quad * QUAD / INT8_GROUP * PAIR + column).cast::<i8>();
                (line.cast::<[i8; 4]>().read(), *ratio)
            };
            let dot: i32 = w.iter().zip(outlier.digits).map(|(&w, x)| i32::from(w) * i32::from(x)).sum();
            *sum += dot * i32::from(ratio);
        }
    }
}

/// As [`outliers_int8`].
unsafe fn outliers_int4(block: OutlierBlock<'_>) {
    for outlier in block.outliers {
        let quad = outlier.quad as usize;
        for (column, sum) in block.sums.iter_mut().enumerate() {
            let strip = column / 16;
            // SAFETY: a quad of the activations is one of the weights, in every column.
            let (bytes, ratio) = unsafe {
                let step = block.tiles.add(quad / 16 * WeightClass::Int4.step_bytes());
                let line = step.add(INT4_RATIOS + strip * INT4_TILE + quad % 16 / 2 * 64 + column % 16 * 4);
                let ratio = step.add(strip * 32 + quad % 16 * QUAD / GROUP * 16 + column % 16).cast::<i8>();
                (line.cast::<[u8; 4]>().read(), *ratio)
            };
            let w = bytes.map(|byte| i32::from(byte >> (quad % 2 * 4) & 15) - 8);
            let dot: i32 = w.iter().zip(outlier.digits).map(|(&w, x)| w * i32::from(x)).sum();
            *sum += dot * i32::from(ratio);
        }
    }
}

unsafe fn int4(block: Block) {
    // SAFETY: passed on.
    let (steps, x, sums) = unsafe { parts::<Int4Step, i8, i32, 64>(block) };
    *sums = [[0; 16]; 2];
    for ((ratios, tiles), x) in steps.iter().zip(x) {
        for ((tile, ratios), sums) in tiles.iter().zip(ratios).zip(&mut *sums) {
            for ((lines, ratios), x) in tile.as_chunks::<256>().0.iter().zip(ratios).zip(x.as_chunks::<32>().0) {
                let mut group = [0i32; 16];
                for (line, x) in lines.as_chunks::<64>().0.iter().zip(x.as_chunks::<8>().0) {
                    for (sum, bytes) in group.iter_mut().zip(line.as_chunks::<4>().0) {
                        for (i, &byte) in bytes.iter().enumerate() {
                            *sum += (i32::from(byte & 15) - 8) * i32::from(x[i]);
                            *sum += (i32::from(byte >> 4) - 8) * i32::from(x[i + 4]);
                        }
                    }
                }
                for ((sum, group), &ratio) in sums.iter_mut().zip(group).zip(ratios) {
                    *sum += group * i32::from(ratio);
                }
            }
        }
    }
}

unsafe fn bf16(block: Block) {
    // SAFETY: passed on.
    let (tiles, x, sums) = unsafe { parts::<StepTiles, f32, f32, 32>(block) };
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
