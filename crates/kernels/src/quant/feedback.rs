//! Int4 quantization calibrated on a matrix's inputs: weights that are rounded later compensate the rounding error of
//! earlier ones (GPTQ: Frantar et al., 2022; in the form of LDLQ: Chee et al., 2023, which gives the same numbers without
//! an inverse).
//!
//! ```text
//! H = sum of x x^T over the inputs          Gram: the upper triangle, in panels of 32 columns
//! H + damping = M^T D M                     Factor: M has ones on its diagonal and zeros below, D > 0
//! error = sum over k of D[k] (v[k] - w'[k])^2     where  v[k] = w[k] + sum over j > k of M[k][j] (w[j] - w'[j])
//! ```
//! The last line is the squared error of the products, regrouped: from the last column to the first, each `w'[k]` is the
//! level nearest to a `v[k]` that depends only on later columns. The scale of a group of 32 is chosen when the group is
//! reached: of several candidates the one with the least error in that sum, after rounding the whole group with each.
//!
//! A panel is `[row][32]`: the rows of the panels before, then its own. The same tile, `to += a^T b`, accumulates inputs
//! and factorizes. Every sum has one order, so bits depend neither on threads nor on the instruction set.

use super::{GROUP, SMALLEST_ABSMAX};
use crate::isa::Isa;
use crate::pointwise::Shared;
use crate::simd::{Kernel, LANES, Simd, dispatch};
use crate::threads::Pool;
use half::f16;

/// Terms summed separately before they join the total.
const CHUNK: usize = 256;
/// Elements of a block of a panel.
const BLOCK: usize = GROUP * GROUP;
/// Rows of weights that are rounded together.
pub const ROUNDED_ROWS: usize = LANES;
/// Candidate scales of a group, relative to the one that clips nothing: the first, their number, and the distance.
const CANDIDATES: (f32, usize, f32) = (1.05, 18, 0.025);
/// Limit of the largest scale of a row, relative to the one of its original weights.
const HEADROOM: f32 = 1.2;
/// 1.5 * 2^23: adding it rounds a small number to an integer.
const MAGIC: f32 = 12_582_912.0;

/// The Gram matrix of inputs: sums of the products of each two of them.
pub struct Gram {
    width: usize,
    panels: Vec<f32>,
}

/// Offset of panel `panel`.
fn panel_at(panel: usize) -> usize {
    panel * (panel + 1) / 2 * BLOCK
}

/// Offset of block `row` of panel `panel`.
fn block_at(row: usize, panel: usize) -> usize {
    panel_at(panel) + row * BLOCK
}

impl Gram {
    /// Bytes for inputs of this width.
    pub fn bytes(width: usize) -> usize {
        panel_at(width / GROUP) * size_of::<f32>()
    }

    /// Zeros, for inputs of width `width`, a multiple of 32.
    pub fn new(width: usize) -> Gram {
        assert!(width.is_multiple_of(GROUP), "{width} inputs are not a multiple of the group size");
        Gram { width, panels: vec![0.0; panel_at(width / GROUP)] }
    }

    /// Adds rows of inputs, each multiplied by its factor: `x` is `[rows, width]`.
    pub fn add(&mut self, pool: &Pool, isa: Isa, x: &[f32], factors: &[f32]) {
        let (count, rows) = (self.width / GROUP, x.len() / self.width);
        let mut packed = vec![0.0; x.len()];
        for (at, group) in x.as_chunks::<GROUP>().0.iter().enumerate() {
            let (row, panel) = (at / count, at % count);
            let to = &mut packed[(panel * rows + row) * GROUP..][..GROUP];
            to.iter_mut().zip(group).for_each(|(to, x)| *to = factors[row] * x);
        }
        let panel = |panel: usize| &packed[panel * rows * GROUP..][..rows * GROUP];
        let sums = Shared::new(&mut self.panels);
        pool.tasks(count, &|task| {
            let right = count - 1 - task; // the largest first
            for left in 0..=right {
                let at = block_at(left, right);
                // SAFETY: each panel is one task's.
                let to = unsafe { sums.part(at..at + BLOCK) };
                dispatch(isa, AddProducts { a: panel(left), b: panel(right), to, sign: 1.0 });
            }
        });
    }

    /// The sum of squares of each input.
    pub fn diagonal(&self) -> Vec<f32> {
        (0..self.width).map(|k| self.panels[block_at(k / GROUP, k / GROUP) + k % GROUP * (GROUP + 1)]).collect()
    }

    /// Factorizes, with `damping` times the mean of the diagonal added to it; `None` if that is not positive definite. The
    /// groups of 32 with the largest inputs are rounded first.
    pub fn factor(&self, pool: &Pool, isa: Isa, damping: f32) -> Option<Factor> {
        let (count, diagonal) = (self.width / GROUP, self.diagonal());
        let sum: f64 = diagonal.iter().map(|&square| f64::from(square)).sum();
        let added = (sum / self.width as f64 * f64::from(damping)) as f32;
        if !(added.is_finite() && added > f32::MIN_POSITIVE) {
            return None;
        }
        let order = order(&diagonal);
        let mut panels = vec![0.0; self.panels.len()];
        for right in 0..count {
            for left in 0..=right {
                let to = &mut panels[block_at(left, right)..][..BLOCK];
                let (from_left, from_right) = (order[left], order[right]);
                if from_left <= from_right {
                    to.copy_from_slice(&self.panels[block_at(from_left, from_right)..][..BLOCK]);
                } else {
                    let from = &self.panels[block_at(from_right, from_left)..][..BLOCK];
                    to.iter_mut().enumerate().for_each(|(at, to)| *to = from[at % GROUP * GROUP + at / GROUP]);
                }
            }
            let own = &mut panels[block_at(right, right)..][..BLOCK];
            (0..GROUP).for_each(|k| own[k * (GROUP + 1)] += added);
        }
        for step in 0..count {
            eliminate(pool, isa, &mut panels, step, count)?;
        }
        let mut pivots = vec![0.0; self.width];
        for (k, pivot) in pivots.iter_mut().enumerate() {
            let (row, in_row) = (k / GROUP, k % GROUP);
            let root = panels[block_at(row, row) + in_row * (GROUP + 1)];
            *pivot = root * root;
            for panel in row..count {
                let values = &mut panels[block_at(row, panel) + in_row * GROUP..][..GROUP];
                values.iter_mut().for_each(|value| *value /= root);
            }
        }
        Some(Factor { order, panels, pivots })
    }
}

/// The groups by ascending sum of squares of their inputs; ties keep their order.
fn order(diagonal: &[f32]) -> Vec<usize> {
    let weigh = |group: usize| diagonal[group * GROUP..][..GROUP].iter().map(|&square| f64::from(square)).sum::<f64>();
    let mut order: Vec<usize> = (0..diagonal.len() / GROUP).collect();
    order.sort_by(|&a, &b| weigh(a).total_cmp(&weigh(b)));
    order
}

/// The rows of block row `step` of the upper factor: `U^T U` is what `panels` held.
fn eliminate(pool: &Pool, isa: Isa, panels: &mut [f32], step: usize, count: usize) -> Option<()> {
    let (done, own) = panels[panel_at(step)..panel_at(step + 1)].split_at_mut(step * BLOCK);
    dispatch(isa, AddProducts { a: done, b: done, to: own, sign: -1.0 });
    // The block on the diagonal, in f64.
    let mut root = [[0f64; GROUP]; GROUP];
    for k in 0..GROUP {
        for column in k..GROUP {
            let products: f64 = (0..k).map(|row| root[row][k] * root[row][column]).sum();
            root[k][column] = f64::from(own[k * GROUP + column]) - products;
        }
        let pivot = root[k][k];
        if !(pivot.is_finite() && pivot > f64::from(SMALLEST_ABSMAX)) {
            return None;
        }
        let inverse = 1.0 / pivot.sqrt();
        root[k][k..].iter_mut().for_each(|value| *value *= inverse);
    }
    let root = root.map(|row| row.map(|value| value as f32));
    own.iter_mut().enumerate().for_each(|(at, to)| *to = root[at / GROUP][at % GROUP]);
    let (before, after) = panels.split_at_mut(panel_at(step + 1));
    let own = &before[panel_at(step)..];
    let after_at = panel_at(step + 1);
    let after = Shared::new(after);
    pool.tasks(count - step - 1, &|task| {
        let panel = count - 1 - task;
        let at = panel_at(panel) - after_at;
        // SAFETY: each panel is one task's.
        let values = unsafe { after.part(at..at + (step + 1) * BLOCK) };
        let (done, to) = values.split_at_mut(step * BLOCK);
        dispatch(isa, AddProducts { a: &own[..step * BLOCK], b: done, to, sign: -1.0 });
        dispatch(isa, Solve { root: &own[step * BLOCK..], to });
    });
    Some(())
}

/// `to += sign a^T b`: `a`, `b` are `[terms, 32]`, `to` is `[32, 32]`. Terms are summed by 256.
struct AddProducts<'a> {
    a: &'a [f32],
    b: &'a [f32],
    to: &'a mut [f32],
    sign: f32,
}

/// Rows of `to` whose sums are held in registers together.
const TILE_ROWS: usize = 4;

impl Kernel for AddProducts<'_> {
    type Output = ();

    fn define(self) {
        for (a, b) in self.a.chunks(CHUNK * GROUP).zip(self.b.chunks(CHUNK * GROUP)) {
            for (row, to) in self.to.chunks_exact_mut(GROUP).enumerate() {
                for (column, to) in to.iter_mut().enumerate() {
                    let mut sum = 0f32;
                    for (a, b) in a.chunks_exact(GROUP).zip(b.chunks_exact(GROUP)) {
                        sum = a[row].mul_add(b[column], sum);
                    }
                    *to = sum.mul_add(self.sign, *to);
                }
            }
        }
    }

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        assert!(self.a.len() == self.b.len() && self.to.len() == BLOCK, "panels of one height");
        let sign = s.splat(self.sign);
        for (a, b) in self.a.chunks(CHUNK * GROUP).zip(self.b.chunks(CHUNK * GROUP)) {
            for (tile, to) in self.to.chunks_exact_mut(TILE_ROWS * GROUP).enumerate() {
                let mut sums = [[s.splat(0.0); 2]; TILE_ROWS];
                for (a, b) in a.as_chunks::<GROUP>().0.iter().zip(b.as_chunks::<GROUP>().0) {
                    // SAFETY: 32 numbers.
                    let b = unsafe { [s.load(b.as_ptr()), s.load(b.as_ptr().add(LANES))] };
                    for row in 0..TILE_ROWS {
                        let a = s.splat(a[tile * TILE_ROWS + row]);
                        sums[row][0] = s.fma(a, b[0], sums[row][0]);
                        sums[row][1] = s.fma(a, b[1], sums[row][1]);
                    }
                }
                for (sums, to) in sums.iter().zip(to.as_chunks_mut::<GROUP>().0) {
                    // SAFETY: 32 numbers.
                    unsafe {
                        let (first, second) = (to.as_mut_ptr(), to.as_mut_ptr().add(LANES));
                        s.store(s.fma(sums[0], sign, s.load(first)), first);
                        s.store(s.fma(sums[1], sign, s.load(second)), second);
                    }
                }
            }
        }
    }
}

/// `to = (root^T)^-1 to`, both `[32, 32]`, `root` upper triangular.
struct Solve<'a> {
    root: &'a [f32],
    to: &'a mut [f32],
}

impl Solve<'_> {
    #[inline(always)]
    fn solve(self) {
        for row in 0..GROUP {
            let (solved, rest) = self.to.split_at_mut(row * GROUP);
            let own = &mut rest[..GROUP];
            for (above, solved) in solved.chunks_exact(GROUP).enumerate() {
                let factor = -self.root[above * GROUP + row];
                for at in 0..GROUP {
                    own[at] = factor.mul_add(solved[at], own[at]);
                }
            }
            let inverse = 1.0 / self.root[row * (GROUP + 1)];
            own.iter_mut().for_each(|value| *value *= inverse);
        }
    }
}

impl Kernel for Solve<'_> {
    type Output = ();

    fn define(self) {
        self.solve();
    }

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        self.solve();
    }
}

/// Propagation of rounding errors (M), and their weights (D).
pub struct Factor {
    /// The group at each place.
    order: Vec<usize>,
    /// M.
    panels: Vec<f32>,
    /// D.
    pivots: Vec<f32>,
}

/// Allowed scales of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleGrid {
    /// A scale for the row times an integer of at most this magnitude: this engine's format; f32 without rounding.
    Ratios(i8),
    /// An f16 (Q4_0 of GGUF).
    Half,
}

impl Factor {
    /// Without propagation: errors are weighted by the inputs' squares, zero for inputs that are always zero.
    pub fn of_diagonal(diagonal: &[f32]) -> Factor {
        let usable = diagonal.iter().all(|square| square.is_finite()) && diagonal.iter().any(|&square| square > 0.0);
        let mean = diagonal.iter().map(|&square| f64::from(square)).sum::<f64>() / diagonal.len() as f64;
        let pivots = match usable {
            true => diagonal.iter().map(|&square| square + (mean * 0.01) as f32).collect(),
            false => vec![1.0; diagonal.len()],
        };
        Factor { order: (0..diagonal.len() / GROUP).collect(), panels: Vec::new(), pivots }
    }

    /// Rounds at most [`ROUNDED_ROWS`] rows. `rows`: `[n, width]`, finite. `q`: the same shape, in -8..=7. `scales`:
    /// `[n, width / 32]`, of any sign. Returns the error sum of the module's documentation, over all rows.
    pub fn round(&self, isa: Isa, grid: ScaleGrid, rows: &[f32], q: &mut [i8], scales: &mut [f32]) -> f64 {
        let (width, count) = (self.pivots.len(), self.order.len());
        let num_rows = rows.len() / width;
        assert!(num_rows <= ROUNDED_ROWS && rows.len() == num_rows * width && q.len() == rows.len());
        assert_eq!(scales.len(), num_rows * count, "a scale for each group");
        let mut tile = Tile {
            factor: self,
            weights: vec![[0.0; LANES]; width],
            errors: vec![[0.0; LANES]; width],
            q: vec![[0.0; LANES]; width],
            steps: vec![[0.0; LANES]; count],
            bases: None,
            loss: [0.0; LANES],
        };
        for (lane, row) in rows.chunks_exact(width).enumerate() {
            for (at, &group) in self.order.iter().enumerate() {
                let from = &row[group * GROUP..][..GROUP];
                tile.weights[at * GROUP..][..GROUP].iter_mut().zip(from).for_each(|(to, x)| to[lane] = *x);
            }
        }
        if let ScaleGrid::Ratios(most) = grid {
            let mut bases = [0.0; LANES];
            for (base, row) in bases.iter_mut().zip(rows.chunks_exact(width)) {
                let widest = row.as_chunks::<GROUP>().0.iter().map(unclipped).fold(0.0, f32::max);
                // Propagated errors enlarge some weights. 17 bits: the product with 7 bits is exact.
                *base = f32::from_bits(((widest * HEADROOM / f32::from(most)).to_bits() + 64) & !127);
            }
            tile.bases = Some((bases, f32::from(most)));
        }
        dispatch(isa, RoundTile(&mut tile));
        for (lane, (q, scales)) in q.chunks_exact_mut(width).zip(scales.chunks_exact_mut(count)).enumerate() {
            for (at, &group) in self.order.iter().enumerate() {
                let from = &tile.q[at * GROUP..][..GROUP];
                q[group * GROUP..][..GROUP].iter_mut().zip(from).for_each(|(to, q)| *to = q[lane] as i8);
                scales[group] = tile.steps[at][lane];
            }
        }
        tile.loss[..num_rows].iter().sum()
    }
}

/// The smallest scale that clips none of a group.
fn unclipped(group: &[f32; GROUP]) -> f32 {
    let (low, high) = group.iter().fold((0f32, 0f32), |(low, high), &x| (low.min(x), high.max(x)));
    (high / 7.0).max(low / -8.0).min((high / 8.0).max(low / -7.0))
}

/// Sixteen rows, one per lane; columns in the order of their places.
struct Tile<'f> {
    factor: &'f Factor,
    /// `[width]`.
    weights: Vec<[f32; LANES]>,
    /// `w - w'`.
    errors: Vec<[f32; LANES]>,
    q: Vec<[f32; LANES]>,
    /// Scales, by group.
    steps: Vec<[f32; LANES]>,
    /// If scales are multiples: of which base, and the largest multiple.
    bases: Option<([f32; LANES], f32)>,
    loss: [f64; LANES],
}

/// Sixteen lanes, or their definition.
trait Ops: Copy {
    type V: Copy;
    fn splat(self, x: f32) -> Self::V;
    fn load(self, from: &[f32; LANES]) -> Self::V;
    fn store(self, a: Self::V, to: &mut [f32; LANES]);
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    fn clamp(self, a: Self::V, low: f32, high: f32) -> Self::V;
}

#[derive(Clone, Copy)]
struct Plain;

/// Applies `f` per lane.
fn each(f: impl FnMut(usize) -> f32) -> [f32; LANES] {
    std::array::from_fn(f)
}

impl Ops for Plain {
    type V = [f32; LANES];

    fn splat(self, x: f32) -> Self::V {
        [x; LANES]
    }

    fn load(self, from: &[f32; LANES]) -> Self::V {
        *from
    }

    fn store(self, a: Self::V, to: &mut [f32; LANES]) {
        *to = a;
    }

    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i] - b[i])
    }

    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i] + b[i])
    }

    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i] * b[i])
    }

    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        each(|i| a[i].mul_add(b[i], c[i]))
    }

    fn clamp(self, a: Self::V, low: f32, high: f32) -> Self::V {
        each(|i| {
            let a = if a[i] > low { a[i] } else { low };
            if a < high { a } else { high }
        })
    }
}

#[derive(Clone, Copy)]
struct Vectors<S>(S);

impl<S: Simd> Ops for Vectors<S> {
    type V = S::V;

    #[inline(always)]
    fn splat(self, x: f32) -> S::V {
        self.0.splat(x)
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> S::V {
        // SAFETY: 16 numbers.
        unsafe { self.0.load(from.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, a: S::V, to: &mut [f32; LANES]) {
        // SAFETY: 16 numbers.
        unsafe { self.0.store(a, to.as_mut_ptr()) }
    }

    #[inline(always)]
    fn sub(self, a: S::V, b: S::V) -> S::V {
        self.0.sub(a, b)
    }

    #[inline(always)]
    fn add(self, a: S::V, b: S::V) -> S::V {
        self.0.add(a, b)
    }

    #[inline(always)]
    fn mul(self, a: S::V, b: S::V) -> S::V {
        self.0.mul(a, b)
    }

    #[inline(always)]
    fn fma(self, a: S::V, b: S::V, c: S::V) -> S::V {
        self.0.fma(a, b, c)
    }

    #[inline(always)]
    fn clamp(self, a: S::V, low: f32, high: f32) -> S::V {
        self.0.min(self.0.max(a, self.0.splat(low)), self.0.splat(high))
    }
}

struct RoundTile<'t, 'f>(&'t mut Tile<'f>);

impl Kernel for RoundTile<'_, '_> {
    type Output = ();

    fn define(self) {
        self.0.round(Plain);
    }

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.0.round(Vectors(s));
    }
}

/// Columns whose sums are held in registers together.
const COLUMNS: usize = 8;

impl Tile<'_> {
    #[inline(always)]
    fn round(&mut self, by: impl Ops) {
        for place in (0..self.steps.len()).rev() {
            let wanted = self.wanted(by, place);
            let best = self.best_step(by, place, &wanted);
            let range = place * GROUP..(place + 1) * GROUP;
            let (mut q, mut errors) = ([[0.0; LANES]; GROUP], [[0.0; LANES]; GROUP]);
            let loss = self.try_step(by, place, &wanted, &best, &mut q, &mut errors);
            self.q[range.clone()].copy_from_slice(&q);
            self.errors[range].copy_from_slice(&errors);
            self.steps[place] = best;
            self.loss.iter_mut().zip(loss).for_each(|(sum, loss)| *sum += f64::from(loss));
        }
    }

    /// The weights of a group plus the propagated errors of all groups after it.
    #[inline(always)]
    fn wanted(&self, by: impl Ops, place: usize) -> [[f32; LANES]; GROUP] {
        let mut wanted = [[0.0; LANES]; GROUP];
        wanted.copy_from_slice(&self.weights[place * GROUP..(place + 1) * GROUP]);
        if self.factor.panels.is_empty() {
            return wanted;
        }
        for first in (0..GROUP).step_by(COLUMNS) {
            let mut sums = [by.splat(0.0); COLUMNS];
            for panel in place + 1..self.steps.len() {
                let rows = &self.factor.panels[block_at(place, panel) + first * GROUP..][..COLUMNS * GROUP];
                let errors = &self.errors[panel * GROUP..(panel + 1) * GROUP];
                for (at, error) in errors.iter().enumerate() {
                    let error = by.load(error);
                    for column in 0..COLUMNS {
                        sums[column] = by.fma(error, by.splat(rows[column * GROUP + at]), sums[column]);
                    }
                }
            }
            for column in 0..COLUMNS {
                let to = &mut wanted[first + column];
                by.store(by.add(by.load(to), sums[column]), to);
            }
        }
        wanted
    }

    /// The step of each lane's group with the least error.
    #[inline(always)]
    fn best_step(&self, by: impl Ops, place: usize, wanted: &[[f32; LANES]; GROUP]) -> [f32; LANES] {
        let (mut positive, mut negative) = ([0f32; LANES], [0f32; LANES]);
        for lane in 0..LANES {
            let (mut low, mut high) = (0f32, 0f32);
            for wanted in wanted {
                low = low.min(wanted[lane]);
                high = high.max(wanted[lane]);
            }
            positive[lane] = (high / 7.0).max(low / -8.0);
            negative[lane] = (high / 8.0).max(low / -7.0);
        }
        let (mut best, mut least) = ([0f32; LANES], [f32::INFINITY; LANES]);
        let (mut q, mut errors) = ([[0.0; LANES]; GROUP], [[0.0; LANES]; GROUP]);
        for candidate in 0..CANDIDATES.1 {
            let part = CANDIDATES.0 - candidate as f32 * CANDIDATES.2;
            for (sign, unclipped) in [(1.0, &positive), (-1.0, &negative)] {
                let mut step = [0.0; LANES];
                for lane in 0..LANES {
                    step[lane] = sign * self.on_grid(unclipped[lane] * part, lane);
                }
                let loss = self.try_step(by, place, wanted, &step, &mut q, &mut errors);
                for lane in 0..LANES {
                    if loss[lane] < least[lane] {
                        (best[lane], least[lane]) = (step[lane], loss[lane]);
                    }
                }
            }
        }
        best
    }

    /// The nearest scale on the grid.
    #[inline(always)]
    fn on_grid(&self, step: f32, lane: usize) -> f32 {
        match &self.bases {
            None => f16::from_f32(step).to_f32(),
            Some((bases, _)) if bases[lane] == 0.0 => 0.0,
            Some((bases, most)) => {
                let ratio = (step / bases[lane] + MAGIC) - MAGIC;
                bases[lane] * ratio.clamp(1.0, *most)
            }
        }
    }

    /// Rounds a group from its last column to its first with these steps; returns its error.
    #[inline(always)]
    fn try_step(
        &self,
        by: impl Ops,
        place: usize,
        wanted: &[[f32; LANES]; GROUP],
        step: &[f32; LANES],
        q: &mut [[f32; LANES]; GROUP],
        errors: &mut [[f32; LANES]; GROUP],
    ) -> [f32; LANES] {
        let weights = &self.weights[place * GROUP..(place + 1) * GROUP];
        let pivots = &self.factor.pivots[place * GROUP..(place + 1) * GROUP];
        let spread: Option<&[f32]> = match self.factor.panels.is_empty() {
            true => None,
            false => Some(&self.factor.panels[block_at(place, place)..][..BLOCK]),
        };
        let mut inverse = [0.0; LANES];
        for lane in 0..LANES {
            inverse[lane] = if step[lane] == 0.0 { 0.0 } else { 1.0 / step[lane] };
        }
        let (step, inverse, magic) = (by.load(step), by.load(&inverse), by.splat(MAGIC));
        let mut wanted = *wanted;
        let mut loss = by.splat(0.0);
        for k in (0..GROUP).rev() {
            let own = by.load(&wanted[k]);
            let rounded = by.sub(by.add(by.mul(own, inverse), magic), magic);
            let rounded = by.clamp(rounded, -8.0, 7.0);
            let restored = by.mul(rounded, step);
            let missed = by.sub(own, restored);
            loss = by.fma(by.mul(by.splat(pivots[k]), missed), missed, loss);
            let error = by.sub(by.load(&weights[k]), restored);
            by.store(rounded, &mut q[k]);
            by.store(error, &mut errors[k]);
            if let Some(spread) = spread {
                for before in 0..k {
                    let sum = by.load(&wanted[before]);
                    by.store(by.fma(error, by.splat(spread[before * GROUP + k]), sum), &mut wanted[before]);
                }
            }
        }
        let mut lanes = [0.0; LANES];
        by.store(loss, &mut lanes);
        lanes
    }
}
