//! Kernels in plain Rust, one row at a time, for any CPU. Compilers may vectorize over 16 columns; the order of
//! operations within a column is the definition's.

use super::{Block, Format, Functions, Groups, Kernel, Kind, OutlierBlock, Path, Table, activations, epilogue};
use crate::quant::{GROUP, INT4_RATIOS, INT4_TILE, INT8_GROUP, Levels, Outlier, PAIR, QUAD, Scales, TILE, WeightClass};
use half::f16;

/// The kernels of any matrix.
pub(super) fn path(kind: Kind) -> Path {
    let table = match kind {
        Kind::Pairs => &PAIRS,
        Kind::Own(WeightClass::Int8, _) => &INT8,
        Kind::Own(WeightClass::Int4, Levels::Even) => &INT4,
        Kind::Own(WeightClass::Int4, Levels::Uneven) => &UNEVEN,
        Kind::Own(WeightClass::Bf16, _) => &BF16,
        Kind::Blocks(codes, group) => &BLOCKS[codes][group],
    };
    table.by(())
}

static INT8: Table<()> = of(Format::Int8, &[int8], outliers_int8);
static INT4: Table<()> = of(Format::Int8Grouped, &[int4::<false>], outliers_int4::<false>);
/// Int4 with uneven levels.
static UNEVEN: Table<()> = of(Format::Int8By32, &[int4::<true>], outliers_int4::<true>);
static BF16: Table<()> = of(Format::Wide, &[bf16], super::no_outliers);
/// Bf16 by [`AccumulationOrder::Vdpbf16`](crate::AccumulationOrder::Vdpbf16).
static PAIRS: Table<()> = of(Format::Wide, &[pairs], super::no_outliers);

/// For weights in the quantization groups of a file: by codes of 8 or 4 bits, and groups of 32 or 16.
static BLOCKS: [[Table<()>; 2]; 2] = [
    [
        of(Format::Int8By32, &[blocks::<false, 32>], block_outliers::<false, 32>),
        of(Format::Int8By16, &[blocks::<false, 16>], block_outliers::<false, 16>),
    ],
    [
        of(Format::Int8By32, &[blocks::<true, 32>], block_outliers::<true, 32>),
        of(Format::Int8By16, &[blocks::<true, 16>], block_outliers::<true, 16>),
    ],
];

/// A table of functions of this file.
const fn of(format: Format, kernels: &'static [Kernel], outliers: super::Outliers) -> Table<()> {
    let finish = epilogue::finish;
    // SAFETY: no function of this file asks for any feature.
    unsafe { Table::new(Functions { format, kernels, block_rows: kernels.len(), prepare, finish, outliers }) }
}

/// The tiles of a step, strip 0 and 1.
type StepTiles = [[u8; TILE]; 2];
/// The same for int4, preceded by the ratios `[strip][group][column]`.
type Int4Step = ([[[i8; 16]; 2]; 2], [[u8; INT4_TILE]; 2]);

unsafe fn prepare(rows: activations::PrepareRows<'_>) {
    // SAFETY: passed on.
    unsafe { activations::prepare(rows, crate::quant::Plain) }
}

/// Inputs and outputs of a kernel: the weights of `[steps]`, the `[steps]` activations of one row, the sums of strip 0
/// and 1.
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

/// Sums of the outlier digits: 4 weights of each column, by the ratio of their group.
pub(crate) unsafe fn outliers_int8(block: OutlierBlock<'_>) {
    let product = |outliers: &[Outlier], sums: &mut [u32; PAIR]| {
        for outlier in outliers {
            let quad = outlier.quad as usize;
            for (column, sum) in sums.iter_mut().enumerate() {
                // SAFETY: a quad of the activations is one of the weights, in every column.
                let (w, ratio) = unsafe {
                    let line = block.tiles.add((quad / 16 * 2 + column / 16) * TILE + quad % 16 * 64 + column % 16 * 4);
                    let ratio = block.ratios.add(quad * QUAD / INT8_GROUP * PAIR + column).cast::<i8>();
                    (line.cast::<[i8; 4]>().read(), *ratio)
                };
                let dot: i32 = w.iter().zip(outlier.digits).map(|(&w, x)| i32::from(w) * i32::from(x)).sum();
                *sum = sum.wrapping_add_signed(dot * i32::from(ratio));
            }
        }
    };
    // SAFETY: the caller's promise.
    unsafe { block.each(product) };
}

/// The level of an int4 code.
#[inline(always)]
fn int4_level<const UNEVEN: bool>(code: u8) -> i32 {
    if UNEVEN { i32::from(Levels::Uneven.table()[usize::from(code)]) } else { i32::from(code) - 8 }
}

/// As [`outliers_int8`].
pub(crate) unsafe fn outliers_int4<const UNEVEN: bool>(block: OutlierBlock<'_>) {
    let product = |outliers: &[Outlier], sums: &mut [u32; PAIR]| {
        for outlier in outliers {
            let quad = outlier.quad as usize;
            for (column, sum) in sums.iter_mut().enumerate() {
                let strip = column / 16;
                // SAFETY: a quad of the activations is one of the weights, in every column.
                let (bytes, ratio) = unsafe {
                    let step = block.tiles.add(quad / 16 * WeightClass::Int4.step_bytes());
                    let line = step.add(INT4_RATIOS + strip * INT4_TILE + quad % 16 / 2 * 64 + column % 16 * 4);
                    let ratio = step.add(strip * 32 + quad % 16 * QUAD / GROUP * 16 + column % 16).cast::<i8>();
                    (line.cast::<[u8; 4]>().read(), *ratio)
                };
                let w = bytes.map(|byte| int4_level::<UNEVEN>(byte >> (quad % 2 * 4) & 15));
                let dot: i32 = w.iter().zip(outlier.digits).map(|(&w, x)| w * i32::from(x)).sum();
                *sum = sum.wrapping_add_signed(dot * i32::from(ratio));
            }
        }
    };
    // SAFETY: the caller's promise.
    unsafe { block.each(product) };
}

unsafe fn int4<const UNEVEN: bool>(block: Block) {
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
                            *sum += int4_level::<UNEVEN>(byte & 15) * i32::from(x[i]);
                            *sum += int4_level::<UNEVEN>(byte >> 4) * i32::from(x[i + 4]);
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

/// One weight of a tile of groups, plus 128.
///
/// # Safety
/// `tile` is one of the format's, `k < 64`, `column < 16`.
unsafe fn level<const FOUR: bool>(groups: &Groups, tile: *const u8, k: usize, column: usize) -> i32 {
    // SAFETY: the caller's promise.
    let level = unsafe {
        match FOUR {
            true => groups.levels[usize::from(*tile.add(k / 8 * 64 + column * 4 + k % 4) >> (k / 4 % 2 * 4) & 15)],
            false => (*tile.add(k / 4 * 64 + column * 4 + k % 4)).wrapping_add(128),
        }
    };
    i32::from(level)
}

/// Bytes of a tile.
const fn tile_bytes<const FOUR: bool>() -> usize {
    if FOUR { INT4_TILE } else { TILE }
}

/// The scales, or minima, at `from` of one group in all columns.
///
/// # Safety
/// `from` is where those of a step begin.
unsafe fn scales<const GROUP: usize>(groups: &Groups, from: *const u8, group: usize) -> [f32; PAIR] {
    // SAFETY: the caller's promise.
    let half = |at: usize| f16::from_bits(unsafe { from.add(at).cast::<u16>().read_unaligned() }).to_f32();
    std::array::from_fn(|column| {
        let at = group * PAIR + column;
        match groups.scales {
            Scales::Half => half(at * 2),
            // SAFETY: the caller's promise.
            Scales::Super => half(column * 2) * f32::from(unsafe { *from.add(PAIR * 2 + at).cast::<i8>() }),
            // SAFETY: the caller's promise.
            Scales::Power => f32::from_bits(u32::from(unsafe { *from.add(at) }) << 23),
            // SAFETY: the caller's promise.
            Scales::Full => unsafe { from.add(at * 4).cast::<f32>().read_unaligned() },
        }
    })
}

unsafe fn blocks<const FOUR: bool, const GROUP: usize>(block: Block) {
    // SAFETY: they live while the kernel runs.
    let groups = unsafe { block.groups.as_ref() }.expect("a path of groups");
    let mut totals = [0f32; PAIR];
    for step in 0..block.steps {
        // SAFETY: within the steps of the pair and the activations, behind which lies a correction for each group.
        unsafe {
            let at = block.tiles.add(step * groups.step_bytes);
            let x = block.x.add(step * 64).cast::<i8>();
            for group in 0..64 / GROUP {
                let correction = block.x.add(block.steps * 64 + (step * (64 / GROUP) + group) * 4).cast::<i32>();
                let start = correction.read_unaligned();
                let scale = scales::<GROUP>(groups, at, group);
                let min = groups.mins.then(|| scales::<GROUP>(groups, at.add(groups.scale_bytes), group));
                for (column, total) in totals.iter_mut().enumerate() {
                    let tile = at.add(groups.tiles() + column / 16 * tile_bytes::<FOUR>());
                    let mut sum = start;
                    for k in group * GROUP..(group + 1) * GROUP {
                        sum += level::<FOUR>(groups, tile, k, column % 16) * i32::from(*x.add(k));
                    }
                    *total = (sum as f32).mul_add(scale[column], *total);
                    if let Some(min) = &min {
                        *total = ((start / -128) as f32).mul_add(min[column], *total);
                    }
                }
            }
        }
    }
    // SAFETY: the sums are `[32]`.
    unsafe { block.sums.cast::<[f32; PAIR]>().write(totals) };
}

/// As [`outliers_int8`], for weights in the quantization groups of a file.
pub(crate) unsafe fn block_outliers<const FOUR: bool, const GROUP: usize>(block: OutlierBlock<'_>) {
    let groups = block.groups.expect("a path of groups");
    let product = |outliers: &[Outlier], sums: &mut [u32; PAIR]| {
        for outlier in outliers {
            let (step, first) = (outlier.quad as usize / 16, outlier.quad as usize % 16 * QUAD);
            // SAFETY: a quad of the activations is one of the weights, in every column.
            unsafe {
                let at = block.tiles.add(step * groups.step_bytes);
                let scale = scales::<GROUP>(groups, at, first / GROUP);
                let min = groups.mins.then(|| scales::<GROUP>(groups, at.add(groups.scale_bytes), first / GROUP));
                for (column, total) in sums.iter_mut().enumerate() {
                    let tile = at.add(groups.tiles() + column / 16 * tile_bytes::<FOUR>());
                    let mut dot = outlier.start;
                    for (i, &digit) in outlier.digits.iter().enumerate() {
                        dot += level::<FOUR>(groups, tile, first + i, column % 16) * i32::from(digit);
                    }
                    let mut joined = (dot as f32).mul_add(scale[column], f32::from_bits(*total));
                    if let Some(min) = &min {
                        joined = ((outlier.start / -128) as f32).mul_add(min[column], joined);
                    }
                    *total = joined.to_bits();
                }
            }
        }
    };
    // SAFETY: the caller's promise.
    unsafe { block.each(product) };
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

unsafe fn pairs(block: Block) {
    // SAFETY: passed on.
    let (tiles, x, sums) = unsafe { parts::<StepTiles, f32, f32, 32>(block) };
    *sums = [[0.0; 16]; 2];
    for (tiles, x) in tiles.iter().zip(x) {
        for (tile, sums) in tiles.iter().zip(&mut *sums) {
            for (line, x) in tile.as_chunks::<64>().0.iter().zip(x.as_chunks::<2>().0) {
                for (sum, w) in sums.iter_mut().zip(line.as_chunks::<4>().0) {
                    let pair = u32::from_le_bytes(*w);
                    let (even, odd) = (f32::from_bits(pair << 16), f32::from_bits(pair & 0xffff_0000));
                    *sum = x[0].mul_add(even, x[1].mul_add(odd, *sum));
                }
            }
        }
    }
}
