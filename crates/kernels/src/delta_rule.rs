//! The gated delta rule: a layer whose memory of a sequence is one matrix per head (Gated DeltaNet: Yang et al., 2024).
//!
//! ```text
//! row      [ q: key heads x dk | k: key heads x dk | v: value heads x dv | z: value heads x dv ]   b, a: [value heads]
//! prepare  q, k = x / sqrt(sum x^2 + 1e-6) per head, q / sqrt(dk) besides
//!          beta = 1 / (1 + e^-b)     decay = e^-(rate softplus(a + dt_bias))
//! token    S = decay S     d = beta (v - S^T k)     S = S + k d^T     o = S^T q        S: [dk, dv], value head j of
//! output   o / sqrt(mean o^2 + eps) * norm * silu(z)                                  key head j / (value / key heads)
//!
//! by key   [ q | k | v ]   [ .. | b ]   [ a: heads x dk | z ]         Kimi's delta attention (Kimi Team, 2025):
//!          S = diag(decay) S, a decay for each key; the output is multiplied by 1 / (1 + e^-z)
//! ```
//! How the recurrence is computed, and why its bits do not depend on where a sequence was cut: recurrence.rs.

use crate::HeadColumns;
use crate::isa::Isa;
use crate::pointwise::{Activation, Plain, RowOps, Shared, Vectors, share_rows};
use crate::recurrence::{Recurrence, recur, softplus, softplus_lanes};
use crate::simd::{Kernel, LANES, Simd, dispatch, exp, exp_lanes};
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
    /// Each key of a head has a decay, and not the head. Then all heads and widths are alike.
    pub by_key: bool,
}

/// Rows of a step. `R`: rows of a backend, or a slice.
#[derive(Debug)]
pub struct DeltaRows<'a, R: ?Sized = [f32]> {
    /// `[rows, shape.row_width()]`.
    pub rows: &'a mut R,
    /// `[rows, shape.gates_width()]`.
    pub gates: &'a mut R,
    /// `[rows, shape.decays_width()]` of shapes with a decay for each key.
    pub decays: Option<&'a mut R>,
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

    /// Numbers of a row: queries, keys, values, and the output's gates if they are not with the decays of keys.
    pub fn row_width(&self) -> usize {
        self.channels() + if self.by_key { 0 } else { self.value_width() }
    }

    /// Numbers of a row of gates: b and a of each head; or what makes decays and gates, a key's width each, and b.
    pub fn gates_width(&self) -> usize {
        self.value_heads + if self.by_key { 2 * self.key_dim } else { self.value_heads }
    }

    /// Where b is in it.
    pub fn beta_at(&self) -> usize {
        if self.by_key { 2 * self.key_dim } else { 0 }
    }

    /// Numbers of a row of decays of keys and of the output's gates behind them.
    pub fn decays_width(&self) -> usize {
        if self.by_key { self.key_width() + self.value_width() } else { 0 }
    }

    /// Where what decays and gates are made of is in a row of gates, and where they go in a row of decays: as if of two
    /// heads.
    pub fn of_decays(&self) -> [HeadColumns; 2] {
        [
            HeadColumns { width: self.gates_width(), stride: self.key_dim },
            HeadColumns { width: self.decays_width(), stride: self.key_width() },
        ]
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
    /// `[value_heads]`, or `[key_width]` with a decay for each key; added to `a`.
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
/// `gates`: b and a, which become beta and decay; of shapes with a decay for each key, `decays` do. `out`: `[rows,
/// shape.value_width()]`. Cost: 7 operations for each number of a state and row; a state is read once and written once
/// for each save.
///
/// Panics when shapes disagree, and when `spans` break the promise of [`StateSpan::saves`].
pub fn delta_rule(
    pool: Option<&Pool>,
    isa: Isa,
    how: DeltaRule<'_>,
    spans: &[StateSpan<'_>],
    DeltaRows { rows, gates, decays }: DeltaRows<'_>,
    states: &mut States,
    out: &mut [f32],
) {
    let DeltaRule { shape, rates, dt_bias, norm, state, .. } = how;
    let DeltaShape { key_heads, value_heads, key_dim, value_dim, by_key } = shape;
    let decays = decays.unwrap_or_default();
    for width in [key_dim, value_dim] {
        assert!(width > 0 && width.is_multiple_of(LANES) && width <= MAX_WIDTH, "{shape:?}");
    }
    assert!(key_heads > 0 && value_heads.is_multiple_of(key_heads), "{shape:?}");
    assert!(!by_key || (key_heads, key_dim) == (value_heads, value_dim), "{shape:?}");
    let biases = if by_key { shape.key_width() } else { value_heads };
    assert_eq!((rates.len(), dt_bias.len(), norm.len()), (value_heads, biases, value_dim), "vectors of {shape:?}");
    let num_rows = out.len() / shape.value_width();
    assert_eq!(out.len(), num_rows * shape.value_width(), "out is [rows, value_width]");
    assert_eq!(rows.len(), num_rows * shape.row_width(), "rows are [rows, row_width]");
    assert_eq!(gates.len(), num_rows * shape.gates_width(), "gates are [rows, gates_width]");
    assert_eq!(decays.len(), num_rows * shape.decays_width(), "decays are [rows, decays_width]");
    assert!(spans.iter().all(|span| span.first_row + span.num_rows <= num_rows), "spans of {num_rows} rows");
    let states = states.open(spans, (state, shape.state_numbers()));

    prepare(pool, isa, how, rows, gates);
    if by_key {
        prepare_decays(pool, isa, how, decays);
    }
    let (rows, gates, decays) = (&*rows, &*gates, &*decays);
    match by_key {
        true => recur(pool, isa, Tokens::<true> { shape, rows, gates, decays }, spans, states, out),
        false => recur(pool, isa, Tokens::<false> { shape, rows, gates, decays }, spans, states, out),
    }
    let (of_gates, at) = if by_key { (decays, shape.key_width()) } else { (rows, shape.channels()) };
    finish(pool, isa, how, (of_gates, at), out);
}

/// Norms of queries and keys, and what the gates stand for.
fn prepare(pool: Option<&Pool>, isa: Isa, how: DeltaRule<'_>, rows: &mut [f32], gates: &mut [f32]) {
    struct Rows<'a>(DeltaRule<'a>, &'a mut [f32], &'a mut [f32]);

    impl Rows<'_> {
        #[inline(always)]
        fn each(self, ops: impl RowOps) {
            let Rows(DeltaRule { shape, rates, dt_bias, .. }, rows, gates) = self;
            let DeltaShape { key_heads, value_heads, key_dim, by_key, .. } = shape;
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
            for row in gates.chunks_exact_mut(shape.gates_width()) {
                let (betas, decays) = row[shape.beta_at()..].split_at_mut(value_heads);
                for head in 0..value_heads {
                    betas[head] = 1.0 / (1.0 + exp(0.0 - betas[head]));
                    if !by_key {
                        decays[head] = exp(0.0 - rates[head] * softplus(decays[head] + dt_bias[head]));
                    }
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

    let (row_width, gates_width) = (how.shape.row_width(), how.shape.gates_width());
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

/// The decays of keys.
fn prepare_decays(pool: Option<&Pool>, isa: Isa, how: DeltaRule<'_>, decays: &mut [f32]) {
    struct Rows<'a>(DeltaRule<'a>, &'a mut [f32]);

    impl Rows<'_> {
        /// The heads of all rows, with their rates and biases.
        #[inline(always)]
        fn each(self, mut head: impl FnMut(&mut [f32], f32, &[f32])) {
            let Rows(DeltaRule { shape, rates, dt_bias, .. }, decays) = self;
            for row in decays.chunks_exact_mut(shape.decays_width()) {
                let heads = row[..shape.key_width()].chunks_exact_mut(shape.key_dim);
                let heads = heads.zip(rates).zip(dt_bias.chunks_exact(shape.key_dim));
                heads.for_each(|((numbers, &rate), bias)| head(numbers, rate, bias));
            }
        }
    }

    impl Kernel for Rows<'_> {
        type Output = ();

        fn define(self) {
            self.each(|head, rate, bias| {
                let numbers = head.iter_mut().zip(bias);
                numbers.for_each(|(x, bias)| *x = exp(0.0 - rate * softplus(*x + bias)));
            });
        }

        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            self.each(|head, rate, bias| {
                for (x, bias) in head.as_chunks_mut::<LANES>().0.iter_mut().zip(bias.as_chunks::<LANES>().0) {
                    // SAFETY: both are a vector of numbers.
                    unsafe {
                        let softplus = softplus_lanes(s, s.add(s.load(x.as_ptr()), s.load(bias.as_ptr())));
                        let exponent = s.sub(s.splat(0.0), s.mul(s.splat(rate), softplus));
                        s.store(exp_lanes(s, exponent), x.as_mut_ptr());
                    }
                }
            });
        }
    }

    let width = how.shape.decays_width();
    let num_rows = decays.len() / width;
    let decays = Shared::new(decays);
    share_rows(pool, num_rows, 4 * width, &|range| {
        // SAFETY: each row is in one range.
        let decays = unsafe { decays.part(range.start * width..range.end * width) };
        dispatch(isa, Rows(how, decays));
    });
}

/// The norm of the output, and its gate. `rows`: those with the gates, and where in them they begin.
fn finish(pool: Option<&Pool>, isa: Isa, how: DeltaRule<'_>, (rows, at): (&[f32], usize), out: &mut [f32]) {
    struct Rows<'a>(DeltaRule<'a>, (&'a [f32], usize, usize), &'a mut [f32]);

    impl Rows<'_> {
        #[inline(always)]
        fn each(self, ops: impl RowOps) {
            let Rows(DeltaRule { shape, norm, eps, .. }, (rows, width, at), out) = self;
            let dim = shape.value_dim;
            let mut normed = [0.0; MAX_WIDTH];
            let normed = &mut normed[..dim];
            for (row, out) in rows.chunks_exact(width).zip(out.chunks_exact_mut(shape.value_width())) {
                let gates = row[at..].chunks_exact(dim);
                for (gate, out) in gates.zip(out.chunks_exact_mut(dim)) {
                    ops.scale(out, ops.inverse_rms(out, eps), norm, normed);
                    if shape.by_key {
                        out.copy_from_slice(normed);
                        ops.sigmoid(gate, out);
                    } else {
                        ops.gated(Activation::Silu, gate, normed, out);
                    }
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

    let width = how.shape.value_width();
    let num_rows = out.len() / width;
    let row_width = rows.len().checked_div(num_rows).unwrap_or(0);
    let out = Shared::new(out);
    share_rows(pool, num_rows, 4 * width, &|range| {
        // SAFETY: each row is in one range.
        let out = unsafe { out.part(range.start * width..range.end * width) };
        let rows = &rows[range.start * row_width..range.end * row_width];
        dispatch(isa, Rows(how, (rows, row_width, at), out));
    });
}

/// Rows of a step, prepared.
#[derive(Clone, Copy)]
struct Tokens<'a, const BY_KEY: bool> {
    shape: DeltaShape,
    rows: &'a [f32],
    gates: &'a [f32],
    decays: &'a [f32],
}

impl<const BY_KEY: bool> Recurrence for Tokens<'_, BY_KEY> {
    const CORRECTS: bool = true;
    const BY_KEY: bool = BY_KEY;

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
        let at = row * self.shape.gates_width() + self.shape.beta_at() + head;
        (self.gates[at], if BY_KEY { 1.0 } else { self.gates[at + self.shape.value_heads] })
    }

    #[inline(always)]
    fn decays(&self, row: usize, head: usize) -> &[f32] {
        let at = row * self.shape.decays_width() + head * self.shape.key_dim;
        &self.decays[at..][..self.shape.key_dim]
    }
}
