//! The gated delta rule: a layer whose memory of a sequence is one matrix per head (Gated DeltaNet: Yang et al., 2024).
//!
//! ```text
//! row      [ q: key heads x dk | k: key heads x dk | v: value heads x dv | z: value heads x dv ]   b, a: [value heads]
//! prepare  q, k = x / sqrt(sum x^2 + 1e-6) per head, q / sqrt(dk) besides
//!          beta = 1 / (1 + e^-b)     decay = e^-(rate softplus(a + dt_bias))
//! token    S = decay S     d = beta (v - S^T k)     S = S + k d^T     o = S^T q        S: [dk, dv], value head j of
//! output   o / sqrt(mean o^2 + eps) * norm * silu(z)                                  key head j / (value / key heads)
//! ```
//! How the recurrence is computed, and why its bits do not depend on where a sequence was cut: recurrence.rs.

use crate::isa::Isa;
use crate::pointwise::{Activation, Plain, RowOps, Shared, Vectors, share_rows};
use crate::recurrence::{Recurrence, recur, softplus};
use crate::simd::{Kernel, LANES, Simd, dispatch, exp};
use crate::states::{StateSpan, States};
use crate::threads::Pool;

use crate::recurrence::MAX_WIDTH;

/// Under the root of a head's norm.
const HEAD_EPS: f32 = 1e-6;

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
    /// `[value_heads]`, above 0: how fast a head forgets, see [`rates`](crate::recurrence::rates).
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
    recur(pool, isa, Tokens { shape, rows, gates }, spans, states, out);
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

/// Rows of a step, prepared.
#[derive(Clone, Copy)]
struct Tokens<'a> {
    shape: DeltaShape,
    rows: &'a [f32],
    gates: &'a [f32],
}

impl Recurrence for Tokens<'_> {
    const CORRECTS: bool = true;

    fn heads(&self) -> usize {
        self.shape.value_heads
    }

    fn dims(&self) -> (usize, usize) {
        (self.shape.key_dim, self.shape.value_dim)
    }

    #[inline(always)]
    fn query_key(&self, row: usize, head: usize) -> (&[f32], &[f32]) {
        let DeltaShape { key_heads, value_heads, key_dim, .. } = self.shape;
        let at = row * self.shape.row_width() + head / (value_heads / key_heads) * key_dim;
        (&self.rows[at..][..key_dim], &self.rows[at + self.shape.key_width()..][..key_dim])
    }

    #[inline(always)]
    fn values(&self, row: usize, head: usize) -> &[f32] {
        let at = row * self.shape.row_width() + 2 * self.shape.key_width();
        &self.rows[at + head * self.shape.value_dim..][..self.shape.value_dim]
    }

    #[inline(always)]
    fn gates(&self, row: usize, head: usize) -> (f32, f32) {
        let heads = self.shape.value_heads;
        (self.gates[row * 2 * heads + head], self.gates[(row * 2 + 1) * heads + head])
    }
}
