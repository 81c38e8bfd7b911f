//! Int4 rows with uneven levels: the quantizer of `--weights int4`.
//!
//! ```text
//! w[k] = scale * ratio[k / 32] * LEVELS[code[k]]      scale f32 per row, ratio -127..=127 per group of 32, 16 levels
//! ```
//! Most weights are near zero, so levels are closer there. They are the 16 small integers of least expected squared
//! error for mostly normal groups, some with heavier tails, each with its best ratio; the error is a quarter less than
//! with even steps. (Uneven tables: NF4, Dettmers et al., 2023; IQ4_NL of llama.cpp.) Ratios are signed, so the longer
//! arm of the table may serve either side.
//!
//! The product of a row is `scale` times the exact integer `T = sum of ratio * level * x`. It must fit i32 for any
//! activation digits (`|x| <= 127`): a row's ratios are reduced until `127 * sum of |ratio * level|` fits.

use super::int4::{GROUP, InLanes, Measure, Plain, groups, inverse};
use super::{SMALLEST_ABSMAX, absmax_bits};
use crate::simd::{LANES, Simd, sum};

/// Level table of an int4 matrix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Levels {
    /// `-8..=7`: prequantized weights.
    Even,
    /// [`UNEVEN`]: weights quantized here.
    Uneven,
}

impl Levels {
    /// Levels by code.
    pub(crate) const fn table(self) -> &'static [i8; 16] {
        match self {
            Levels::Even => &[-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7],
            Levels::Uneven => &UNEVEN,
        }
    }

    /// The table as bytes of an image.
    pub(crate) const fn bytes(self) -> &'static [u8; 16] {
        const fn unsigned(levels: &[i8; 16]) -> [u8; 16] {
            let mut bytes = [0; 16];
            let mut code = 0;
            while code < 16 {
                bytes[code] = levels[code] as u8;
                code += 1;
            }
            bytes
        }
        const EVEN: [u8; 16] = unsigned(Levels::Even.table());
        const UNEVEN: [u8; 16] = unsigned(Levels::Uneven.table());
        match self {
            Levels::Even => &EVEN,
            Levels::Uneven => &UNEVEN,
        }
    }
}

/// The uneven levels; the AVX2 kernel relies on magnitudes of at most 64.
const UNEVEN: [i8; 16] = [-58, -45, -35, -27, -21, -15, -9, -4, 1, 6, 11, 16, 22, 29, 37, 47];

/// Boundaries between adjacent codes: their midpoints.
const BOUNDS: [f32; 15] = {
    let mut bounds = [0.0; 15];
    let mut code = 0;
    while code < 15 {
        bounds[code] = (UNEVEN[code] as f32 + UNEVEN[code + 1] as f32) / 2.0;
        code += 1;
    }
    bounds
};

/// Cells as wide as four levels. Each contains at most one bound, so one comparison finds the nearest level.
struct Cells {
    bound: [f32; 32],
    below: [f32; 32],
    above: [f32; 32],
}

/// A cell's index is `x / 4` plus this, rounded: bounds, multiples of a half, are never on a cell boundary.
const CELL_OFFSET: f32 = 16.0625;

static CELLS: Cells = {
    let mut cells = Cells { bound: [f32::INFINITY; 32], below: [0.0; 32], above: [0.0; 32] };
    let mut cell = 0;
    while cell < 32 {
        let first = (cell as f32 - 0.5 - CELL_OFFSET) * 4.0;
        let mut code = 0;
        while code < 15 && BOUNDS[code] <= first {
            code += 1;
        }
        cells.below[cell] = UNEVEN[code] as f32;
        cells.above[cell] = UNEVEN[code] as f32;
        if code < 15 && BOUNDS[code] <= first + 4.0 {
            cells.bound[cell] = BOUNDS[code];
            cells.above[cell] = UNEVEN[code + 1] as f32;
            assert!(code == 14 || BOUNDS[code + 1] > first + 4.0, "two bounds in a cell");
        }
        cell += 1;
    }
    cells
};

/// The code of each level, plus 64.
static CODES: [u8; 128] = {
    let mut codes = [0; 128];
    let mut code = 0;
    while code < 16 {
        codes[(UNEVEN[code] as i16 + 64) as usize] = code as u8;
        code += 1;
    }
    codes
};

/// Candidate steps of a group for each sign, relative to the one that clips nothing.
const PARTS: [f32; 8] = [0.9, 0.94, 0.98, 1.02, 1.06, 1.1, 1.14, 1.18];
/// A group whose largest magnitude is a smaller part of the row's has ratio 0.
const SMALLEST_GROUP: f32 = 1.0 / 65_536.0;

/// The inner loops of the search, which take nearly all of its time.
pub(super) trait Fit: Measure {
    /// With the levels nearest to `x / step`: the sums of `level * x` and of `level * level`, in 16 lanes each, then
    /// [`sum`].
    fn fit(self, group: &[f32; GROUP], step: f32) -> (f32, f32);
    /// The squared error of a group in steps of this size.
    fn uneven_error(self, group: &[f32; GROUP], step: f32) -> f32;
    /// The levels nearest to `x / step`.
    fn levels(self, group: &[f32; GROUP], step: f32) -> [f32; GROUP];
}

/// The level nearest to `x * inverse`; ties go to the larger.
#[inline(always)]
fn nearest_level(x: f32, inverse: f32) -> f32 {
    let x = x * inverse;
    f32::from(UNEVEN[BOUNDS.iter().filter(|bound| x >= **bound).count()])
}

impl Fit for Plain {
    fn fit(self, group: &[f32; GROUP], step: f32) -> (f32, f32) {
        let inverse = inverse(step);
        let (mut products, mut squares) = ([0f32; LANES], [0f32; LANES]);
        for half in group.as_chunks::<LANES>().0 {
            for ((product, square), &x) in products.iter_mut().zip(&mut squares).zip(half) {
                let level = nearest_level(x, inverse);
                *product += level * x;
                *square += level * level;
            }
        }
        (sum(products), sum(squares))
    }

    fn uneven_error(self, group: &[f32; GROUP], step: f32) -> f32 {
        let inverse = inverse(step);
        let mut lanes = [0f32; LANES];
        for half in group.as_chunks::<LANES>().0 {
            for (lane, &x) in lanes.iter_mut().zip(half) {
                let error = x - nearest_level(x, inverse) * step;
                *lane += error * error;
            }
        }
        sum(lanes)
    }

    fn levels(self, group: &[f32; GROUP], step: f32) -> [f32; GROUP] {
        let inverse = inverse(step);
        group.map(|x| nearest_level(x, inverse))
    }
}

impl<S: Simd> InLanes<S> {
    /// [`nearest_level`].
    #[inline(always)]
    fn nearest_levels(self, x: S::V, inverse: S::V) -> S::V {
        let s = self.0;
        let x = s.mul(x, inverse);
        let cell = s.add(s.mul(x, s.splat(0.25)), s.splat(CELL_OFFSET));
        let cell = s.min(s.max(cell, s.splat(0.0)), s.splat(31.0));
        let (bound, below) = (s.look_up(&CELLS.bound, cell), s.look_up(&CELLS.below, cell));
        s.at_least(x, bound, s.look_up(&CELLS.above, cell), below)
    }
}

impl<S: Simd> Fit for InLanes<S> {
    #[inline(always)]
    fn fit(self, group: &[f32; GROUP], step: f32) -> (f32, f32) {
        let (s, inverse) = (self.0, self.0.splat(inverse(step)));
        let (a, b) = self.halves(group);
        let (level_a, level_b) = (self.nearest_levels(a, inverse), self.nearest_levels(b, inverse));
        let products = s.sum(s.add(s.mul(level_a, a), s.mul(level_b, b)));
        (products, s.sum(s.add(s.mul(level_a, level_a), s.mul(level_b, level_b))))
    }

    #[inline(always)]
    fn uneven_error(self, group: &[f32; GROUP], step: f32) -> f32 {
        let (s, inverse, step) = (self.0, self.0.splat(inverse(step)), self.0.splat(step));
        let (a, b) = self.halves(group);
        let error_a = s.sub(a, s.mul(self.nearest_levels(a, inverse), step));
        let error_b = s.sub(b, s.mul(self.nearest_levels(b, inverse), step));
        s.sum(s.add(s.mul(error_a, error_a), s.mul(error_b, error_b)))
    }

    #[inline(always)]
    fn levels(self, group: &[f32; GROUP], step: f32) -> [f32; GROUP] {
        let (s, inverse) = (self.0, self.0.splat(inverse(step)));
        let (a, b) = self.halves(group);
        let mut levels = [0.0; GROUP];
        // SAFETY: a group is two times 16 numbers.
        unsafe {
            s.store(self.nearest_levels(a, inverse), levels.as_mut_ptr());
            s.store(self.nearest_levels(b, inverse), levels.as_mut_ptr().add(LANES));
        }
        levels
    }
}

/// Quantizes a row: `x[k]` becomes `scale * ratios[k / 32] * UNEVEN[codes[k]]`, and the scale is returned. `codes` is
/// as long as `x`, `ratios` has one entry per 32 elements. `steps`: scratch.
///
/// Least squared error over a small search: for each group the best step of either sign, then the ratios next to it,
/// finally the best scale for the chosen integers. A row with NaN or infinity gets scale NaN, so that its products are
/// NaN.
#[inline(always)]
pub(super) fn quantize(by: impl Fit, x: &[f32], codes: &mut [i8], ratios: &mut [i8], steps: &mut Vec<f32>) -> f32 {
    let absmax = f32::from_bits(absmax_bits(x));
    if !absmax.is_finite() || absmax < SMALLEST_ABSMAX {
        codes.fill(0);
        ratios.fill(0);
        return if absmax.is_finite() { 0.0 } else { f32::NAN };
    }
    steps.clear();
    // Loops instead of adapters: the closure of a `fold` is a separate function, compiled without the instruction set.
    let (mut widest, mut all) = (0f32, 0f64);
    for group in groups(x) {
        let step = best_step(by, &group, absmax * SMALLEST_GROUP);
        steps.push(step);
        widest = widest.max(step.abs());
        for x in group {
            all += f64::from(x.abs());
        }
    }
    // The largest ratio that the sum allows: first a slightly reduced estimate from the weights, then from their integers.
    let most = LARGEST_SUM as f64 * f64::from(widest) / all;
    let mut most = (most * 0.99).clamp(1.0, 127.0) as i8;
    loop {
        let scale = widest / f32::from(most);
        let (mut product, mut square, mut bound) = (0f64, 0f64, 0u64);
        for (((group, codes), ratio), &step) in groups(x).zip(codes.chunks_mut(GROUP)).zip(&mut *ratios).zip(&*steps) {
            *ratio = best_ratio(by, &group, scale, step, most);
            let levels = by.levels(&group, f32::from(*ratio) * scale);
            let (mut products, mut squares, mut sum) = (0f32, 0f32, 0f32);
            for ((code, x), level) in codes.iter_mut().zip(group).zip(levels) {
                *code = CODES[(level + 64.0) as usize] as i8;
                products += level * x;
                squares += level * level;
                sum += level.abs();
            }
            let ratio = f64::from(*ratio);
            product += ratio * f64::from(products);
            square += ratio * ratio * f64::from(squares);
            bound += (ratio.abs() * f64::from(sum)) as u64;
        }
        if bound <= LARGEST_SUM {
            return if square > 0.0 { (product / square) as f32 } else { scale };
        }
        assert!(most > 1, "int4 row is too long: its sum does not fit i32");
        most -= 1;
    }
}

/// The largest sum of magnitudes that times 127 fits i32.
const LARGEST_SUM: u64 = i32::MAX as u64 / 127;

/// The best step for a group, of either sign; 0 for a group of small numbers.
#[inline(always)]
fn best_step(by: impl Fit, group: &[f32; GROUP], smallest: f32) -> f32 {
    let (low, high) = by.ends(group);
    if high.max(-low) < smallest {
        return 0.0;
    }
    let (longest, shortest) = (f32::from(UNEVEN[0]), f32::from(UNEVEN[15]));
    let ends = [(high / shortest).max(low / longest), (high / longest).min(low / shortest)];
    let mut best = (0f64, 0.0);
    for unclipped in ends {
        for part in PARTS {
            let (product, square) = by.fit(group, unclipped * part);
            let (product, square) = (f64::from(product), f64::from(square));
            // Reduction of the squared error by a step of `product / square`.
            let gain = product * product / square;
            if gain > best.0 {
                best = (gain, (product / square) as f32);
            }
        }
    }
    best.1
}

/// The better of the two ratios next to a step. Beyond 127 comes -128, the other end of eight bits: for a negative step
/// that is a valid ratio, for a positive one it inverts every sign, and its error rejects it.
#[inline(always)]
fn best_ratio(by: impl Fit, group: &[f32; GROUP], scale: f32, step: f32, most: i8) -> i8 {
    let sign = if step < 0.0 { -1 } else { 1 };
    let below = ((step.abs() / scale) as i8).min(most);
    let above = below.wrapping_add(1).min(most);
    let (below, above) = (below.wrapping_mul(sign), above.wrapping_mul(sign));
    let errors_below = by.uneven_error(group, f32::from(below) * scale);
    if by.uneven_error(group, f32::from(above) * scale) < errors_below { above } else { below }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::quant::quantize_int4_row;
    use crate::simd::{Kernel, dispatch};

    /// [`quantize`] as a kernel: scale, codes, ratios.
    struct Quantize<'a>(&'a [f32]);

    impl Quantize<'_> {
        #[inline(always)]
        fn by(self, by: impl Fit) -> (f32, Vec<i8>, Vec<i8>) {
            let (mut codes, mut ratios) = (vec![9; self.0.len()], vec![9; self.0.len().div_ceil(GROUP)]);
            let scale = quantize(by, self.0, &mut codes, &mut ratios, &mut Vec::new());
            (scale, codes, ratios)
        }
    }

    impl Kernel for Quantize<'_> {
        type Output = (f32, Vec<i8>, Vec<i8>);

        fn define(self) -> Self::Output {
            self.by(Plain)
        }

        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Self::Output {
            self.by(InLanes(s))
        }
    }

    /// Gaussian-like numbers: sums of uniform ones.
    fn row(seed: u32, len: usize) -> Vec<f32> {
        testing::Dice::new(seed.into()).normals(len)
    }

    /// The relative squared error of codes by a table.
    fn error(x: &[f32], (scale, codes, ratios): &(f32, Vec<i8>, Vec<i8>), table: &[i8; 16]) -> f64 {
        let integer = |k: usize, code: i8| i32::from(table[code as usize]) * i32::from(ratios[k / GROUP]);
        let restored = codes.iter().enumerate().map(|(k, &code)| integer(k, code) as f32 * scale);
        let squares = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum::<f64>();
        squares(&mut x.iter().zip(restored).map(|(x, restored)| x - restored)) / squares(&mut x.iter().copied())
    }

    #[test]
    fn uneven_levels_err_less_than_even_ones() {
        let mut sums = [0.0; 2];
        for seed in 0..20 {
            let x = row(seed, 1024);
            let uneven = error(&x, &dispatch(Isa::best(), Quantize(&x)), Levels::Uneven.table());
            let (mut q, mut ratios) = (vec![0; x.len()], vec![0; x.len() / GROUP]);
            let scale = quantize_int4_row(&x, &mut q, &mut ratios);
            q.iter_mut().for_each(|q| *q += 8);
            let even = error(&x, &(scale, q, ratios), Levels::Even.table());
            println!("seed={seed}: {uneven:.3e}, even levels {even:.3e}");
            assert!(uneven < even, "seed={seed}: {uneven:.2e}, even levels {even:.2e}");
            sums = [sums[0] + uneven, sums[1] + even];
        }
        assert!(sums[0] < 0.85 * sums[1], "{sums:?}");
    }

    #[test]
    fn every_instruction_set_finds_the_same() {
        for seed in 0..60 {
            let len = [1, 31, 32, 33, 64, 96, 777][seed as usize % 7];
            let mut x: Vec<f32> = row(seed, len).iter().map(|x| x * 10f32.powi(seed as i32 % 7 - 5)).collect();
            match seed % 5 {
                0 => x[..len.min(32)].fill(0.0),
                1 => x[..len.min(32)].iter_mut().for_each(|x| *x *= 1e-6),
                2 => x.iter_mut().for_each(|x| *x = x.abs()),
                _ => {}
            }
            let defined = Quantize(&x).define();
            for isa in Isa::available() {
                assert_eq!(dispatch(isa, Quantize(&x)), defined, "seed={seed} len={len} {isa:?}");
            }
        }
    }

    /// Each level, the midpoint to the next, and adjacent values: in steps of one, so that nothing is rounded.
    struct Nearest([f32; GROUP]);

    impl Kernel for Nearest {
        type Output = [f32; GROUP];

        fn define(self) -> [f32; GROUP] {
            Plain.levels(&self.0, 1.0)
        }

        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> [f32; GROUP] {
            InLanes(s).levels(&self.0, 1.0)
        }
    }

    #[test]
    fn the_nearest_level_is_found() {
        let mut all: Vec<f32> = (-3000..3000).map(|x| x as f32 / 16.0).collect();
        all.extend(BOUNDS.iter().flat_map(|bound| [bound.next_down(), *bound, bound.next_up()]));
        all.extend([1e30, -1e30, 0.0, -0.0]);
        for group in groups(&all) {
            let defined = Nearest(group).define();
            for (&x, level) in group.iter().zip(defined) {
                let best = UNEVEN.iter().map(|&level| (f32::from(level) - x).abs()).fold(f32::INFINITY, f32::min);
                assert_eq!((level - x).abs(), best, "{x} became {level}");
            }
            for isa in Isa::available() {
                assert_eq!(dispatch(isa, Nearest(group)), defined, "{isa:?}");
            }
        }
    }

    #[test]
    fn what_has_uneven_levels_already_is_found_again() {
        let ratios = [127, -3, 90, 11];
        let level = |k: usize| i32::from(UNEVEN[k * 5 % 16]);
        let x: Vec<f32> = (0..128).map(|k| (level(k) * ratios[k / GROUP]) as f32 * 0.25).collect();
        let error = error(&x, &dispatch(Isa::best(), Quantize(&x)), Levels::Uneven.table());
        assert!(error < 1e-10, "{error:e}");
    }

    #[test]
    fn sums_fit_whatever_the_weights_are() {
        for len in [640, 4096, 14_336, 60_000, 133_000] {
            for x in [vec![1.0; len], vec![-1.0; len], row(1, len)] {
                let quantized = dispatch(Isa::best(), Quantize(&x));
                let (_, codes, ratios) = &quantized;
                let integer = |(k, code): (usize, &i8)| {
                    u64::from(UNEVEN[*code as usize].unsigned_abs()) * u64::from(ratios[k / GROUP].unsigned_abs())
                };
                let sum: u64 = codes.iter().enumerate().map(integer).sum();
                assert!(127 * sum <= i32::MAX as u64, "{len}: {sum}");
                let error = error(&x, &quantized, Levels::Uneven.table());
                assert!(error < 0.007, "{len}: {error}");
            }
        }
    }

    #[test]
    fn rows_without_a_scale() {
        assert_eq!(Quantize(&[0.0; 40]).define(), (0.0, vec![0; 40], vec![0; 2]));
        for bad in [f32::NAN, f32::INFINITY] {
            let mut x = [1.0; 40];
            x[33] = bad;
            let (scale, codes, ratios) = Quantize(&x).define();
            assert!(scale.is_nan() && codes == [0; 40] && ratios == [0; 2]);
        }
    }
}
