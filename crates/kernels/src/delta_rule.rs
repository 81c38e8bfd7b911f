//! The gated delta rule: a layer whose memory of a sequence is one matrix per head (Gated DeltaNet: Yang et al., 2024).
//!
//! ```text
//! row      [ q: key heads x dk | k: key heads x dk | v: value heads x dv | z: value heads x dv ]   b, a: [value heads]
//! prepare  q, k = x / sqrt(sum x^2 + 1e-6) per head, q / sqrt(dk) besides
//!          beta = 1 / (1 + e^-b)     decay = e^-(rate softplus(a + dt_bias))
//! token    S = decay S     d = beta (v - S^T k)     S = S + k d^T     o = S^T q        S: [dk, dv], value head j of
//! output   o / sqrt(mean o^2 + eps) * norm * silu(z)                                  key head j / (value / key heads)
//! ```
//! The recurrence itself is the definition, for a whole prompt and for one token: sums over `dk` ascend, one fused
//! multiply-add each, and lanes lie along `dv`: no lane meets another, and nothing depends on where a sequence was cut.
//! (In chunks of many rows it would be sums in another order, which decode could not repeat.)
//!
//! A strip of up to 64 columns of a state stays in the first caches over all rows of a span. The update of a row and
//! the products `S^T k` of the next row are one walk over it: the same numbers, read once.

use crate::isa::Isa;
use crate::pointwise::{Activation, Plain, RowOps, Shared, Vectors, share_rows};
use crate::simd::{Kernel, LANES, Simd, dispatch, exp};
use crate::states::{OpenStates, StateSpan, States};
use crate::threads::Pool;
use std::mem::MaybeUninit;

/// Widest key head and value head.
pub const MAX_WIDTH: usize = 256;
/// Most columns of a task, in vectors.
const STRIP: usize = 4;
/// Under the root of a head's norm.
const HEAD_EPS: f32 = 1e-6;
/// Above this, softplus is its argument.
const SOFTPLUS_FROM: f32 = 20.0;

/// Heads of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaShape {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values, each with a state; a multiple of `key_heads`.
    pub value_heads: usize,
    /// Width of a query or key; a multiple of 16, at most [`MAX_WIDTH`].
    pub key_dim: usize,
    /// Width of a value; a multiple of 16, at most [`MAX_WIDTH`].
    pub value_dim: usize,
}

impl DeltaShape {
    /// Numbers of all queries, or all keys, of a row.
    pub fn key_width(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Numbers of all values of a row, and of its output.
    pub fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Numbers of a row's queries, keys and values, which are convolved.
    pub fn channels(&self) -> usize {
        2 * self.key_width() + self.value_width()
    }

    /// Numbers of a row: queries, keys, values, and the output's gates.
    pub fn row_width(&self) -> usize {
        self.channels() + self.value_width()
    }

    /// Numbers of a state.
    pub fn state_numbers(&self) -> usize {
        self.value_heads * self.key_dim * self.value_dim
    }
}

/// A layer between its convolution and its output projection. `V`: a vector of a backend, or a slice.
#[derive(Debug)]
pub struct DeltaRule<'a, V: ?Sized = [f32]> {
    /// Heads.
    pub shape: DeltaShape,
    /// `[value_heads]`, above 0: how fast a head forgets, see [`rates`].
    pub rates: &'a V,
    /// `[value_heads]`, added to `a`.
    pub dt_bias: &'a V,
    /// `[value_dim]`, the weight of the output's norm.
    pub norm: &'a V,
    /// Added under the root of the output's norm.
    pub eps: f32,
    /// Where its state begins in a slot: `[value_heads, key_dim, value_dim]`.
    pub state: usize,
}

impl<V: ?Sized> Clone for DeltaRule<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V: ?Sized> Copy for DeltaRule<'_, V> {}

impl<'a, V: ?Sized> DeltaRule<'a, V> {
    /// The same with each vector mapped.
    pub fn map<W: ?Sized>(self, vector: impl Fn(&'a V) -> &'a W) -> DeltaRule<'a, W> {
        let DeltaRule { shape, rates, dt_bias, norm, eps, state } = self;
        DeltaRule { shape, rates: vector(rates), dt_bias: vector(dt_bias), norm: vector(norm), eps, state }
    }
}

/// `e^x` of each of the logarithms that checkpoints store (`A_log`), within 2 ulp.
pub fn rates(logarithms: &mut [f32]) {
    logarithms.iter_mut().for_each(|x| *x = exp(*x));
}

/// `ln(1 + e^x)`, within some ulp; `x` above 20.
#[inline(always)]
fn softplus(x: f32) -> f32 {
    if x > SOFTPLUS_FROM {
        return x;
    }
    // ln(1 + y) = 2 artanh(y / (2 + y)), a series in s^2 <= 1/9.
    let y = exp(if x > 0.0 { 0.0 - x } else { x });
    let s = y / (2.0 + y);
    let square = s * s;
    let mut series = 1.0f32 / 17.0;
    for odd in [15.0f32, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0] {
        series = series.mul_add(square, 1.0 / odd);
    }
    let log = 2.0 * (s * square).mul_add(series, s);
    if x > 0.0 { x + log } else { log }
}

/// See [`DeltaRule`]. `rows`: f32 `[rows, shape.row_width()]`, convolved; its queries and keys are normed in place.
/// `gates`: `[rows, 2 * value_heads]`, b and a, which become beta and decay. `out`: `[rows, shape.value_width()]`.
/// Cost: 7 operations for each number of a state and row; a state is read once and written once for each save.
///
/// Panics when shapes disagree, and when `spans` break the promise of [`StateSpan::saves`].
pub fn delta_rule(
    pool: Option<&Pool>,
    isa: Isa,
    how: DeltaRule<'_>,
    spans: &[StateSpan<'_>],
    (rows, gates): (&mut [f32], &mut [f32]),
    states: &mut States,
    out: &mut [f32],
) {
    let DeltaRule { shape, rates, dt_bias, norm, state, .. } = how;
    let DeltaShape { key_heads, value_heads, key_dim, value_dim } = shape;
    for width in [key_dim, value_dim] {
        assert!(width > 0 && width.is_multiple_of(LANES) && width <= MAX_WIDTH, "{shape:?}");
    }
    assert!(key_heads > 0 && value_heads.is_multiple_of(key_heads), "{shape:?}");
    assert_eq!((rates.len(), dt_bias.len(), norm.len()), (value_heads, value_heads, value_dim), "vectors of {shape:?}");
    let num_rows = out.len() / shape.value_width();
    assert_eq!(out.len(), num_rows * shape.value_width(), "out is [rows, value_width]");
    assert_eq!(rows.len(), num_rows * shape.row_width(), "rows are [rows, row_width]");
    assert_eq!(gates.len(), num_rows * 2 * value_heads, "gates are [rows, 2 * value_heads]");
    assert!(spans.iter().all(|span| span.first_row + span.num_rows <= num_rows), "spans of {num_rows} rows");
    let states = states.open(spans, (state, shape.state_numbers()));

    prepare(pool, isa, how, rows, gates);
    let (rows, gates) = (&*rows, &*gates);
    {
        let out = &Shared::new(&mut *out);
        let strips = value_dim.div_ceil(STRIP * LANES);
        let work = |task: usize| {
            let (span, head) = (&spans[task / (value_heads * strips)], task / strips % value_heads);
            let column = task % strips * STRIP * LANES;
            let width = (value_dim - column).min(STRIP * LANES);
            if span.num_rows > 0 {
                dispatch(isa, Strip { shape, span, head, column, width, rows, gates, states, out });
            }
        };
        let tasks = spans.len() * value_heads * strips;
        match pool {
            Some(pool) => pool.tasks(tasks, &work),
            None => (0..tasks).for_each(work),
        }
    }
    finish(pool, isa, how, rows, out);
}

/// Norms of queries and keys, and what the gates stand for.
fn prepare(pool: Option<&Pool>, isa: Isa, how: DeltaRule<'_>, rows: &mut [f32], gates: &mut [f32]) {
    struct Rows<'a>(DeltaRule<'a>, &'a mut [f32], &'a mut [f32]);

    impl Rows<'_> {
        #[inline(always)]
        fn each(self, ops: impl RowOps) {
            let Rows(DeltaRule { shape, rates, dt_bias, .. }, rows, gates) = self;
            let DeltaShape { key_heads, value_heads, key_dim, .. } = shape;
            let scale = 1.0 / (key_dim as f32).sqrt();
            for row in rows.chunks_exact_mut(shape.row_width()) {
                let heads = row[..2 * shape.key_width()].chunks_exact_mut(key_dim);
                for (index, head) in heads.enumerate() {
                    let factor = 1.0 / (ops.sum_squares(head) + HEAD_EPS).sqrt();
                    let factor = if index < key_heads { factor * scale } else { factor };
                    for x in head {
                        *x *= factor;
                    }
                }
            }
            for row in gates.chunks_exact_mut(2 * value_heads) {
                let (betas, decays) = row.split_at_mut(value_heads);
                for head in 0..value_heads {
                    betas[head] = 1.0 / (1.0 + exp(0.0 - betas[head]));
                    decays[head] = exp(0.0 - rates[head] * softplus(decays[head] + dt_bias[head]));
                }
            }
        }
    }

    impl Kernel for Rows<'_> {
        type Output = ();

        fn define(self) {
            self.each(Plain);
        }

        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            self.each(Vectors(s));
        }
    }

    let (row_width, gates_width) = (how.shape.row_width(), 2 * how.shape.value_heads);
    let num_rows = rows.len() / row_width;
    let (rows, gates) = (Shared::new(rows), Shared::new(gates));
    share_rows(pool, num_rows, 2 * how.shape.key_width() + 16 * gates_width, &|range| {
        // SAFETY: each row is in one range.
        let (rows, gates) = unsafe {
            let rows = rows.part(range.start * row_width..range.end * row_width);
            (rows, gates.part(range.start * gates_width..range.end * gates_width))
        };
        dispatch(isa, Rows(how, rows, gates));
    });
}

/// The norm of the output, and its gate.
fn finish(pool: Option<&Pool>, isa: Isa, how: DeltaRule<'_>, rows: &[f32], out: &mut [f32]) {
    struct Rows<'a>(DeltaRule<'a>, &'a [f32], &'a mut [f32]);

    impl Rows<'_> {
        #[inline(always)]
        fn each(self, ops: impl RowOps) {
            let Rows(DeltaRule { shape, norm, eps, .. }, rows, out) = self;
            let dim = shape.value_dim;
            let mut normed = [0.0; MAX_WIDTH];
            let normed = &mut normed[..dim];
            for (row, out) in rows.chunks_exact(shape.row_width()).zip(out.chunks_exact_mut(shape.value_width())) {
                let gates = row[shape.channels()..].chunks_exact(dim);
                for (gate, out) in gates.zip(out.chunks_exact_mut(dim)) {
                    ops.scale(out, ops.inverse_rms(out, eps), norm, normed);
                    ops.gated(Activation::Silu, gate, normed, out);
                }
            }
        }
    }

    impl Kernel for Rows<'_> {
        type Output = ();

        fn define(self) {
            self.each(Plain);
        }

        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            self.each(Vectors(s));
        }
    }

    let (row_width, width) = (how.shape.row_width(), how.shape.value_width());
    let num_rows = out.len() / width;
    let out = Shared::new(out);
    share_rows(pool, num_rows, 4 * width, &|range| {
        // SAFETY: each row is in one range.
        let out = unsafe { out.part(range.start * width..range.end * width) };
        dispatch(isa, Rows(how, &rows[range.start * row_width..range.end * row_width], out));
    });
}

/// Up to [`STRIP`] vectors of columns of one head's state, over the rows of a span.
#[derive(Clone, Copy)]
struct Strip<'a> {
    shape: DeltaShape,
    span: &'a StateSpan<'a>,
    head: usize,
    /// The first column, and their number.
    column: usize,
    width: usize,
    rows: &'a [f32],
    gates: &'a [f32],
    states: OpenStates<'a>,
    out: &'a Shared<'a, f32>,
}

/// A state's columns while rows pass.
#[repr(align(64))]
struct Columns<const W: usize>([MaybeUninit<[[f32; LANES]; W]>; MAX_WIDTH]);

/// Where a state's columns are: the first number, and the distance from key to key.
#[derive(Clone, Copy)]
struct Place {
    first: *mut f32,
    stride: usize,
}

impl Strip<'_> {
    /// The query and the key of a row.
    #[inline(always)]
    fn query_key(&self, row: usize) -> (&[f32], &[f32]) {
        let DeltaShape { key_heads, value_heads, key_dim, .. } = self.shape;
        let at = row * self.shape.row_width() + self.head / (value_heads / key_heads) * key_dim;
        (&self.rows[at..][..key_dim], &self.rows[at + self.shape.key_width()..][..key_dim])
    }

    /// The strip's values of a row.
    #[inline(always)]
    fn values(&self, row: usize) -> &[f32] {
        let at = row * self.shape.row_width() + 2 * self.shape.key_width();
        &self.rows[at + self.head * self.shape.value_dim + self.column..][..self.width]
    }

    /// Beta and decay of a row.
    #[inline(always)]
    fn gates(&self, row: usize) -> (f32, f32) {
        let heads = self.shape.value_heads;
        (self.gates[row * 2 * heads + self.head], self.gates[(row * 2 + 1) * heads + self.head])
    }

    /// The strip of the state in a slot.
    #[inline(always)]
    fn place(&self, slot: u32) -> Place {
        let DeltaShape { key_dim, value_dim, .. } = self.shape;
        let first = self.states.part(slot, self.head * key_dim * value_dim, key_dim * value_dim);
        Place { first: first.wrapping_add(self.column), stride: value_dim }
    }

    /// The strip's place in a row of the output.
    #[inline(always)]
    fn out(&self, row: usize) -> *mut f32 {
        let at = row * self.shape.value_width() + self.head * self.shape.value_dim + self.column;
        self.out.pointer(at..at + self.width)
    }

    /// One column, by the definition.
    fn column(&self, column: usize) {
        let key_dim = self.shape.key_dim;
        let mut state = [0.0f32; MAX_WIDTH];
        let state = &mut state[..key_dim];
        let number = |slot: u32, index: usize| {
            let Place { first, stride } = self.place(slot);
            first.wrapping_add(index * stride + column)
        };
        if let Some(slot) = self.span.from {
            for (index, x) in state.iter_mut().enumerate() {
                // SAFETY: within the slot, which no other task writes.
                *x = unsafe { *number(slot, index) };
            }
        }
        let mut saves = self.span.saves.iter().peekable();
        for row in self.span.rows() {
            let ((q, k), (beta, decay)) = (self.query_key(row), self.gates(row));
            let mut known = 0.0;
            for (x, k) in state.iter().zip(k) {
                known = k.mul_add(*x, known);
            }
            let d = (0.0 - decay).mul_add(known, self.values(row)[column]) * beta;
            let mut o = 0.0;
            for ((x, k), q) in state.iter_mut().zip(k).zip(q) {
                *x = k.mul_add(d, decay * *x);
                o = q.mul_add(*x, o);
            }
            // SAFETY: each row and column is one task's.
            unsafe { *self.out(row).add(column) = o };
            while let Some(save) = saves.next_if(|save| save.row as usize == row) {
                for (index, x) in state.iter().enumerate() {
                    // SAFETY: within the slot, of which each head and column is one task's.
                    unsafe { *number(save.slot, index) = *x };
                }
            }
        }
    }

    /// `W` vectors of columns.
    #[inline(always)]
    fn vectors<const W: usize, S: Simd>(&self, s: S) {
        let mut scratch = Columns::<W>([const { MaybeUninit::uninit() }; MAX_WIDTH]);
        let scratch = Place { first: scratch.0.as_mut_ptr().cast(), stride: W * LANES };
        let (key_dim, saves) = (self.shape.key_dim, self.span.saves);
        let mut from = match self.span.from {
            Some(slot) => self.place(slot),
            None => {
                for index in 0..key_dim * W {
                    // SAFETY: the scratch has `MAX_WIDTH >= key_dim` groups of `W` vectors.
                    unsafe { s.store(s.splat(0.0), scratch.first.add(index * LANES)) };
                }
                scratch
            }
        };
        let rows = self.span.rows();
        let mut known = self.known::<W, S>(s, from, rows.start);
        let mut next_save = 0;
        for row in rows.clone() {
            let is_saved = |at: usize| at < saves.len() && saves[at].row as usize == row;
            let to = if is_saved(next_save) { self.place(saves[next_save].slot) } else { scratch };
            let next = row + 1 < rows.end;
            let d = self.change::<W, S>(s, row, known);
            known = match (next, is_saved(next_save)) {
                (true, _) => self.update::<W, true, true, S>(s, row, d, (from, to)),
                (false, true) => self.update::<W, false, true, S>(s, row, d, (from, to)),
                (false, false) => self.update::<W, false, false, S>(s, row, d, (from, to)),
            };
            from = to;
            if is_saved(next_save) {
                next_save += 1;
                while is_saved(next_save) {
                    self.copy::<W, S>(s, to, self.place(saves[next_save].slot));
                    next_save += 1;
                }
            }
        }
    }

    /// `S^T k` of a row.
    #[inline(always)]
    fn known<const W: usize, S: Simd>(&self, s: S, from: Place, row: usize) -> [S::V; W] {
        let (_, k) = self.query_key(row);
        let mut known = [s.splat(0.0); W];
        for (index, &k) in k.iter().enumerate() {
            let k = s.splat(k);
            for (w, known) in known.iter_mut().enumerate() {
                // SAFETY: a place has `key_dim` groups of `W` vectors.
                let x = unsafe { s.load(from.first.add(index * from.stride + w * LANES)) };
                *known = s.fma(k, x, *known);
            }
        }
        known
    }

    /// `beta (v - decay S^T k)` of a row.
    #[inline(always)]
    fn change<const W: usize, S: Simd>(&self, s: S, row: usize, known: [S::V; W]) -> [S::V; W] {
        let ((beta, decay), values) = (self.gates(row), self.values(row));
        assert!(values.len() == W * LANES);
        let (beta, forgotten) = (s.splat(beta), s.splat(0.0 - decay));
        let mut d = [s.splat(0.0); W];
        for w in 0..W {
            // SAFETY: `W` vectors of values.
            let value = unsafe { s.load(values.as_ptr().add(w * LANES)) };
            d[w] = s.mul(s.fma(forgotten, known[w], value), beta);
        }
        d
    }

    /// The state and the output of a row; with `NEXT`, returns `S^T k` of the next row. With `STORE` the state is kept.
    #[inline(always)]
    fn update<const W: usize, const NEXT: bool, const STORE: bool, S: Simd>(
        &self,
        s: S,
        row: usize,
        d: [S::V; W],
        (from, to): (Place, Place),
    ) -> [S::V; W] {
        let ((q, k), (_, decay)) = (self.query_key(row), self.gates(row));
        let next_k = if NEXT { self.query_key(row + 1).1 } else { k };
        let decay = s.splat(decay);
        let (mut o, mut known) = ([s.splat(0.0); W], [s.splat(0.0); W]);
        for (index, ((&q, &k), &next_k)) in q.iter().zip(k).zip(next_k).enumerate() {
            let (q, k, next_k) = (s.splat(q), s.splat(k), s.splat(next_k));
            for w in 0..W {
                // SAFETY: both places have `key_dim` groups of `W` vectors, and no other task touches these columns.
                let x = unsafe { s.load(from.first.add(index * from.stride + w * LANES)) };
                let x = s.fma(k, d[w], s.mul(decay, x));
                if STORE {
                    // SAFETY: as above.
                    unsafe { s.store(x, to.first.add(index * to.stride + w * LANES)) };
                }
                o[w] = s.fma(q, x, o[w]);
                if NEXT {
                    known[w] = s.fma(next_k, x, known[w]);
                }
            }
        }
        let out = self.out(row);
        for (w, &o) in o.iter().enumerate() {
            // SAFETY: the strip's `W` vectors of a row are one task's.
            unsafe { s.store(o, out.add(w * LANES)) };
        }
        known
    }

    /// The state once more.
    #[inline(always)]
    fn copy<const W: usize, S: Simd>(&self, s: S, from: Place, to: Place) {
        for index in 0..self.shape.key_dim {
            for w in 0..W {
                // SAFETY: as in `update`.
                unsafe {
                    let x = s.load(from.first.add(index * from.stride + w * LANES));
                    s.store(x, to.first.add(index * to.stride + w * LANES));
                }
            }
        }
    }
}

impl Kernel for Strip<'_> {
    type Output = ();

    fn define(self) {
        for column in 0..self.width {
            self.column(column);
        }
    }

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // As many vectors as the registers of an update hold: changes, outputs, and products of the next row.
        let most = if S::ROWS >= STRIP { STRIP } else { 2 };
        for column in (0..self.width).step_by(most * LANES) {
            let width = (self.width - column).min(most * LANES);
            let part = Strip { column: self.column + column, width, ..self };
            match width / LANES {
                1 => part.vectors::<1, S>(s),
                2 => part.vectors::<2, S>(s),
                3 => part.vectors::<3, S>(s),
                _ => part.vectors::<STRIP, S>(s),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softplus_is_within_a_few_ulp() {
        let mut worst = 0.0f64;
        for i in -860_000..250_000 {
            let x = i as f32 / 10_000.0;
            let want = if x > 20.0 { f64::from(x) } else { libm::log1p(libm::exp(f64::from(x))) };
            let ulp = f64::from(f32::from_bits((want as f32).to_bits() & 0x7f80_0000)) * f64::from(f32::EPSILON);
            worst = worst.max((f64::from(softplus(x)) - want).abs() / ulp);
        }
        assert!(worst < 5.0, "{worst} ulp");
        assert!(softplus(f32::NAN).is_nan());
        assert_eq!((softplus(-90.0), softplus(f32::INFINITY)), (0.0, f32::INFINITY));
    }
}
