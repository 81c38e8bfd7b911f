//! Layers whose memory of a sequence is one matrix per head that each token lets fade and adds to.
//!
//! ```text
//! delta rule     d = factor (v - decay S^T k)        S = decay S + k d^T        o = S^T q        S: [keys, values]
//! by key         d = factor (v - S^T (decay k))      the same, with a decay for each key
//! state space    d = factor v                        the same
//! ```
//! The recurrence itself is the definition, for a whole prompt and for one token: sums over the keys ascend, one fused
//! multiply-add each, and lanes lie along the values: no lane meets another, and nothing depends on where a sequence was
//! cut. (In chunks of many rows it would be sums in another order, which decode could not repeat.)
//!
//! A strip of up to 64 columns of a state stays in the first caches over all rows of a span. The update of a row and
//! the products `S^T k` of the next row are one walk over it: the same numbers, read once.

use crate::isa::Isa;
use crate::pointwise::Shared;
use crate::simd::{Kernel, LANES, Simd, dispatch, exp, exp_lanes};
use crate::states::{OpenStates, StateSpan};
use crate::threads::Pool;
use std::mem::MaybeUninit;

/// Most keys and most values of a head.
pub const MAX_WIDTH: usize = 256;
/// Most columns of a task, in vectors.
const STRIP: usize = 4;
/// Above this, softplus is its argument.
const SOFTPLUS_FROM: f32 = 20.0;

/// `e^x` of each of the logarithms that checkpoints store (`A_log`), within 2 ulp.
pub fn rates(logarithms: &mut [f32]) {
    logarithms.iter_mut().for_each(|x| *x = exp(*x));
}

/// `ln(1 + e^x)`, within some ulp; `x` above 20.
#[inline(always)]
pub(crate) fn softplus(x: f32) -> f32 {
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

/// [`softplus`] of 16 numbers.
#[inline(always)]
pub(crate) fn softplus_lanes<S: Simd>(s: S, x: S::V) -> S::V {
    let zero = s.splat(0.0);
    let y = exp_lanes(s, s.at_least(x, zero, s.sub(zero, x), x));
    let ratio = s.div(y, s.add(s.splat(2.0), y));
    let square = s.mul(ratio, ratio);
    let mut series = s.splat(1.0 / 17.0);
    for odd in [15.0f32, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0] {
        series = s.fma(series, square, s.splat(1.0 / odd));
    }
    let log = s.mul(s.splat(2.0), s.fma(s.mul(ratio, square), series, ratio));
    let result = s.at_least(x, zero, s.add(x, log), log);
    s.at_least(x, s.splat(SOFTPLUS_FROM.next_up()), x, result)
}

/// What the tokens of a step do to the states of all heads.
pub(crate) trait Recurrence: Copy + Sync {
    /// What is added is corrected by what the state knows of the key.
    const CORRECTS: bool;

    /// Each key has a decay.
    const BY_KEY: bool = false;

    /// Heads, each with a state.
    fn heads(&self) -> usize;
    /// Keys and values of a head; multiples of 16, at most [`MAX_WIDTH`].
    fn dims(&self) -> (usize, usize);
    /// q and k of a row.
    fn query_key(&self, row: usize, head: usize) -> (&[f32], &[f32]);
    /// v of a row.
    fn values(&self, row: usize, head: usize) -> &[f32];
    /// Factor and decay of a row.
    fn gates(&self, row: usize, head: usize) -> (f32, f32);
    /// Of keys that have their own.
    fn decays(&self, _row: usize, _head: usize) -> &[f32] {
        &[]
    }
}

/// Leads the states of all spans past their rows. `out`: `[rows, heads * values]`.
pub(crate) fn recur<R: Recurrence>(
    pool: Option<&Pool>,
    isa: Isa,
    tokens: R,
    spans: &[StateSpan<'_>],
    states: OpenStates<'_>,
    out: &mut [f32],
) {
    let (heads, (_, value_dim)) = (tokens.heads(), tokens.dims());
    let out = &Shared::new(out);
    let strips = value_dim.div_ceil(STRIP * LANES);
    let work = |task: usize| {
        let (span, head) = (&spans[task / (heads * strips)], task / strips % heads);
        let column = task % strips * STRIP * LANES;
        let width = (value_dim - column).min(STRIP * LANES);
        if span.num_rows > 0 {
            dispatch(isa, Strip { tokens, span, head, column, width, states, out });
        }
    };
    let tasks = spans.len() * heads * strips;
    match pool {
        Some(pool) => pool.tasks(tasks, &work),
        None => (0..tasks).for_each(work),
    }
}

/// Up to [`STRIP`] vectors of columns of one head's state, over the rows of a span.
#[derive(Clone, Copy)]
struct Strip<'a, R> {
    tokens: R,
    span: &'a StateSpan<'a>,
    head: usize,
    /// The first column, and their number.
    column: usize,
    width: usize,
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

impl<R: Recurrence> Strip<'_, R> {
    #[inline(always)]
    fn query_key(&self, row: usize) -> (&[f32], &[f32]) {
        self.tokens.query_key(row, self.head)
    }

    /// The strip's values of a row.
    #[inline(always)]
    fn values(&self, row: usize) -> &[f32] {
        &self.tokens.values(row, self.head)[self.column..][..self.width]
    }

    /// Factor and decay of a row.
    #[inline(always)]
    fn gates(&self, row: usize) -> (f32, f32) {
        self.tokens.gates(row, self.head)
    }

    /// Decays of the keys of a row; any numbers where keys have none.
    #[inline(always)]
    fn decays(&self, row: usize) -> &[f32] {
        if R::BY_KEY { self.tokens.decays(row, self.head) } else { self.query_key(row).1 }
    }

    /// The strip of the state in a slot.
    #[inline(always)]
    fn place(&self, slot: u32) -> Place {
        let (key_dim, value_dim) = self.tokens.dims();
        let first = self.states.part(slot, self.head * key_dim * value_dim, key_dim * value_dim);
        Place { first: first.wrapping_add(self.column), stride: value_dim }
    }

    /// The strip's place in a row of the output.
    #[inline(always)]
    fn out(&self, row: usize) -> *mut f32 {
        let (heads, (_, value_dim)) = (self.tokens.heads(), self.tokens.dims());
        let at = (row * heads + self.head) * value_dim + self.column;
        self.out.pointer(at..at + self.width)
    }

    /// One column, by the definition.
    fn column(&self, column: usize) {
        let (key_dim, _) = self.tokens.dims();
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
            let ((q, k), (factor, decay), decays) = (self.query_key(row), self.gates(row), self.decays(row));
            let mut d = self.values(row)[column];
            if R::BY_KEY {
                let keys = k.iter().zip(decays);
                d -= state.iter().zip(keys).fold(0.0, |known, (x, (k, decay))| (k * decay).mul_add(*x, known));
            } else if R::CORRECTS {
                let known = state.iter().zip(k).fold(0.0, |known, (x, k)| k.mul_add(*x, known));
                d = (0.0 - decay).mul_add(known, d);
            }
            d *= factor;
            let mut o = 0.0;
            for (((x, k), q), of_key) in state.iter_mut().zip(k).zip(q).zip(decays) {
                let decay = if R::BY_KEY { *of_key } else { decay };
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
        let ((key_dim, _), saves) = (self.tokens.dims(), self.span.saves);
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
        let mut known = if R::CORRECTS { self.known::<W, S>(s, from, rows.start) } else { [s.splat(0.0); W] };
        let mut next_save = 0;
        for row in rows.clone() {
            let is_saved = |at: usize| at < saves.len() && saves[at].row as usize == row;
            let to = if is_saved(next_save) { self.place(saves[next_save].slot) } else { scratch };
            let next = row + 1 < rows.end;
            let d = self.change::<W, S>(s, row, known);
            known = match (next, is_saved(next_save)) {
                (true, _) if R::CORRECTS => self.update::<W, true, true, S>(s, row, d, (from, to)),
                (true, _) | (false, true) => self.update::<W, false, true, S>(s, row, d, (from, to)),
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
        for (index, (&k, &decay)) in k.iter().zip(self.decays(row)).enumerate() {
            let k = s.splat(if R::BY_KEY { k * decay } else { k });
            for (w, known) in known.iter_mut().enumerate() {
                // SAFETY: a place has `key_dim` groups of `W` vectors.
                let x = unsafe { s.load(from.first.add(index * from.stride + w * LANES)) };
                *known = s.fma(k, x, *known);
            }
        }
        known
    }

    /// What a row adds: `factor (v - decay S^T k)`, or `factor v`.
    #[inline(always)]
    fn change<const W: usize, S: Simd>(&self, s: S, row: usize, known: [S::V; W]) -> [S::V; W] {
        let ((factor, decay), values) = (self.gates(row), self.values(row));
        assert!(values.len() == W * LANES);
        let (factor, forgotten) = (s.splat(factor), s.splat(0.0 - decay));
        let mut d = [s.splat(0.0); W];
        for w in 0..W {
            // SAFETY: `W` vectors of values.
            let value = unsafe { s.load(values.as_ptr().add(w * LANES)) };
            let value = match (R::BY_KEY, R::CORRECTS) {
                (true, _) => s.sub(value, known[w]),
                (false, true) => s.fma(forgotten, known[w], value),
                (false, false) => value,
            };
            d[w] = s.mul(value, factor);
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
        let decays = self.decays(row).iter().zip(self.decays(if NEXT { row + 1 } else { row }));
        let of_head = s.splat(decay);
        let (mut o, mut known) = ([s.splat(0.0); W], [s.splat(0.0); W]);
        for (index, (((&q, &k), &next_k), (&decay, &next_decay))) in q.iter().zip(k).zip(next_k).zip(decays).enumerate()
        {
            let next_k = if R::BY_KEY { next_k * next_decay } else { next_k };
            let (q, k, next_k) = (s.splat(q), s.splat(k), s.splat(next_k));
            let decay = if R::BY_KEY { s.splat(decay) } else { of_head };
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
        for index in 0..self.tokens.dims().0 {
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

impl<R: Recurrence> Kernel for Strip<'_, R> {
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
