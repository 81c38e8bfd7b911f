//! Mamba-2: a layer whose memory of a sequence is one matrix per head that fades as fast as each token says (Dao & Gu,
//! 2024).
//!
//! ```text
//! row      [ x: heads x p | B: groups x s | C: groups x s | z: heads x p ]   dt: [heads]
//! prepare  dt = softplus(f dt + dt_bias)     decay = e^-(rate dt)
//! token    S = decay S + B (dt x)^T     o = S^T C + skip x        S: [s, p], head j of group j / (heads / groups)
//! output   y = o silu(g z), then y / sqrt(mean y^2 + eps) * norm over each part; or without that; or before
//! ```
//! How the recurrence is computed, and why its bits do not depend on where a sequence was cut: recurrence.rs.

use crate::isa::Isa;
use crate::pointwise::{Activation, Plain, RowOps, Shared, Vectors, share_rows};
use crate::recurrence::{MAX_WIDTH, Recurrence, recur, softplus};
use crate::simd::{Kernel, LANES, Simd, dispatch, exp};
use crate::states::{StateSpan, States};
use crate::threads::Pool;

/// Heads of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MambaShape {
    /// Heads, each with a state.
    pub heads: usize,
    /// Width p of a head; a multiple of 16, at most [`MAX_WIDTH`].
    pub head_dim: usize,
    /// Groups of heads that share B and C; divides `heads`.
    pub groups: usize,
    /// Width s of B and C; a multiple of 16, at most [`MAX_WIDTH`].
    pub state_dim: usize,
}

impl MambaShape {
    /// Numbers of all x of a row, of all z, and of its output.
    pub fn inner(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Numbers of a row's x, B and C, which are convolved.
    pub fn channels(&self) -> usize {
        self.inner() + 2 * self.groups * self.state_dim
    }

    /// Numbers of a row: x, B, C and z.
    pub fn row_width(&self) -> usize {
        self.channels() + self.inner()
    }

    /// Numbers of a state.
    pub fn state_numbers(&self) -> usize {
        self.inner() * self.state_dim
    }
}

/// What is done with the output besides its gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputNorm {
    /// Nothing.
    None,
    /// Its numbers, once they have their gates, are normed.
    AfterGate,
    /// They are normed first.
    BeforeGate,
}

/// A layer between its convolution and its output projection. `V`: a vector of a backend, or a slice.
#[derive(Debug)]
pub struct Mamba<'a, V: ?Sized = [f32]> {
    /// Heads.
    pub shape: MambaShape,
    /// `[heads]`, above 0: how fast a head forgets, see [`rates`](crate::recurrence::rates).
    pub rates: &'a V,
    /// f: multiplies dt as it comes.
    pub step_factor: f32,
    /// `[heads]`, added to `dt`.
    pub dt_bias: &'a V,
    /// `[heads]`: times x, a part of the output.
    pub skip: &'a V,
    /// g: multiplies z as it comes.
    pub gate_factor: f32,
    /// Where the norm is.
    pub output: OutputNorm,
    /// `[heads * head_dim]`, its weight, if there is one.
    pub norm: Option<&'a V>,
    /// How many equal parts of the output are normed by themselves.
    pub norm_groups: usize,
    /// Added under its root.
    pub eps: f32,
    /// Where its state begins in a slot: `[heads, state_dim, head_dim]`.
    pub state: usize,
}

impl<V: ?Sized> Clone for Mamba<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V: ?Sized> Copy for Mamba<'_, V> {}

impl<'a, V: ?Sized> Mamba<'a, V> {
    /// The same with each vector mapped.
    pub fn map<W: ?Sized>(self, vector: impl Fn(&'a V) -> &'a W) -> Mamba<'a, W> {
        let Mamba { shape, step_factor, gate_factor, output, norm_groups, eps, state, .. } = self;
        let [rates, dt_bias, skip] = [self.rates, self.dt_bias, self.skip].map(&vector);
        let norm = self.norm.map(&vector);
        Mamba { shape, rates, step_factor, dt_bias, skip, gate_factor, output, norm, norm_groups, eps, state }
    }
}

/// See [`Mamba`]. `rows`: f32 `[rows, shape.row_width()]`, convolved, of which x becomes undefined. `steps`: `[rows,
/// heads]`, dt, which gets its bias and softplus. `out`: `[rows, shape.inner()]`. Cost: 5 operations for each number of
/// a state and row; a state is read once and written once for each save.
///
/// Panics when shapes disagree, and when `spans` break the promise of [`StateSpan::saves`].
pub fn mamba(
    pool: Option<&Pool>,
    isa: Isa,
    how: Mamba<'_>,
    spans: &[StateSpan<'_>],
    (rows, steps): (&mut [f32], &mut [f32]),
    states: &mut States,
    out: &mut [f32],
) {
    let Mamba { shape, rates, dt_bias, skip, output, norm, norm_groups, state, .. } = how;
    let MambaShape { heads, head_dim, groups, state_dim } = shape;
    for width in [head_dim, state_dim] {
        assert!(width > 0 && width.is_multiple_of(LANES) && width <= MAX_WIDTH, "{shape:?}");
    }
    assert!(groups > 0 && heads > 0 && heads.is_multiple_of(groups), "{shape:?}");
    assert_eq!([rates.len(), dt_bias.len(), skip.len()], [heads; 3], "vectors of {shape:?}");
    assert_eq!(norm.is_some(), output != OutputNorm::None, "a norm has a weight");
    assert!(norm.is_none_or(|norm| norm.len() == shape.inner()), "the norm of {shape:?}");
    assert!(
        norm_groups > 0 && shape.inner().is_multiple_of(norm_groups),
        "{norm_groups} groups in the norm of {shape:?}"
    );
    let num_rows = out.len() / shape.inner();
    assert_eq!(out.len(), num_rows * shape.inner(), "out is [rows, heads * head_dim]");
    assert_eq!(rows.len(), num_rows * shape.row_width(), "rows are [rows, row_width]");
    assert_eq!(steps.len(), num_rows * heads, "steps are [rows, heads]");
    assert!(spans.iter().all(|span| span.first_row + span.num_rows <= num_rows), "spans of {num_rows} rows");
    let states = states.open(spans, (state, shape.state_numbers()));

    prepare(pool, isa, (how.step_factor, dt_bias), steps);
    recur(pool, isa, Tokens { shape, rows: &*rows, steps: &*steps, rates }, spans, states, out);
    finish(pool, isa, how, rows, out);
}

/// The step widths.
fn prepare(pool: Option<&Pool>, isa: Isa, (factor, dt_bias): (f32, &[f32]), steps: &mut [f32]) {
    struct Rows<'a>(f32, &'a [f32], &'a mut [f32]);

    impl Rows<'_> {
        #[inline(always)]
        fn each(self) {
            let Rows(factor, dt_bias, steps) = self;
            for row in steps.chunks_exact_mut(dt_bias.len()) {
                for (dt, bias) in row.iter_mut().zip(dt_bias) {
                    *dt = softplus(*dt * factor + bias);
                }
            }
        }
    }

    impl Kernel for Rows<'_> {
        type Output = ();

        fn define(self) {
            self.each();
        }

        /// The same loops: compiled for an instruction set with FMA they are fast enough.
        #[inline(always)]
        fn run<S: Simd>(self, _: S) {
            self.each();
        }
    }

    let heads = dt_bias.len();
    let num_rows = steps.len() / heads;
    let steps = Shared::new(steps);
    share_rows(pool, num_rows, 32 * heads, &|range| {
        // SAFETY: each row is in one range.
        let steps = unsafe { steps.part(range.start * heads..range.end * heads) };
        dispatch(isa, Rows(factor, dt_bias, steps));
    });
}

/// Rows of a step, prepared.
#[derive(Clone, Copy)]
struct Tokens<'a> {
    shape: MambaShape,
    rows: &'a [f32],
    steps: &'a [f32],
    rates: &'a [f32],
}

impl Recurrence for Tokens<'_> {
    const CORRECTS: bool = false;

    fn heads(&self) -> usize {
        self.shape.heads
    }

    fn dims(&self) -> (usize, usize) {
        (self.shape.state_dim, self.shape.head_dim)
    }

    /// C and B.
    #[inline(always)]
    fn query_key(&self, row: usize, head: usize) -> (&[f32], &[f32]) {
        let MambaShape { heads, groups, state_dim, .. } = self.shape;
        let at = row * self.shape.row_width() + self.shape.inner() + head / (heads / groups) * state_dim;
        (&self.rows[at + groups * state_dim..][..state_dim], &self.rows[at..][..state_dim])
    }

    #[inline(always)]
    fn values(&self, row: usize, head: usize) -> &[f32] {
        &self.rows[row * self.shape.row_width() + head * self.shape.head_dim..][..self.shape.head_dim]
    }

    #[inline(always)]
    fn gates(&self, row: usize, head: usize) -> (f32, f32) {
        let dt = self.steps[row * self.shape.heads + head];
        (dt, exp(0.0 - self.rates[head] * dt))
    }
}

/// What x adds to the output, its gate, and its norm. The place of x takes what is between.
fn finish(pool: Option<&Pool>, isa: Isa, how: Mamba<'_>, rows: &mut [f32], out: &mut [f32]) {
    struct Rows<'a>(Mamba<'a>, &'a mut [f32], &'a mut [f32]);

    impl Rows<'_> {
        #[inline(always)]
        fn each(self, ops: impl RowOps) {
            let Rows(Mamba { shape, skip, gate_factor, output, norm, norm_groups, eps, .. }, rows, out) = self;
            let (inner, norm) = (shape.inner(), norm.unwrap_or_default());
            let size = inner / norm_groups;
            for (row, out) in rows.chunks_exact_mut(shape.row_width()).zip(out.chunks_exact_mut(inner)) {
                let (x, rest) = row.split_at_mut(inner);
                let gates = &mut rest[shape.channels() - inner..];
                if gate_factor != 1.0 {
                    ops.multiply(gate_factor, gates);
                }
                let heads = out.chunks_exact_mut(shape.head_dim).zip(x.chunks_exact(shape.head_dim));
                for ((out, x), &skip) in heads.zip(skip) {
                    ops.add_scaled(x, skip, out);
                }
                match output {
                    OutputNorm::None => {
                        ops.gated(Activation::Silu, gates, out, x);
                        out.copy_from_slice(x);
                    }
                    OutputNorm::AfterGate => {
                        ops.gated(Activation::Silu, gates, out, x);
                        for (norm, (x, out)) in groups(norm, size).zip(groups(x, size).zip(out.chunks_exact_mut(size)))
                        {
                            ops.scale(x, ops.inverse_rms(x, eps), norm, out);
                        }
                    }
                    OutputNorm::BeforeGate => {
                        for (norm, (out, x)) in groups(norm, size).zip(groups(out, size).zip(x.chunks_exact_mut(size)))
                        {
                            ops.scale(out, ops.inverse_rms(out, eps), norm, x);
                        }
                        ops.gated(Activation::Silu, gates, x, out);
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

    let (row_width, inner) = (how.shape.row_width(), how.shape.inner());
    let num_rows = out.len() / inner;
    let (rows, out) = (Shared::new(rows), Shared::new(out));
    share_rows(pool, num_rows, 6 * inner, &|range| {
        // SAFETY: each row is in one range.
        let (rows, out) = unsafe {
            let rows = rows.part(range.start * row_width..range.end * row_width);
            (rows, out.part(range.start * inner..range.end * inner))
        };
        dispatch(isa, Rows(how, rows, out));
    });
}

fn groups(numbers: &[f32], size: usize) -> std::slice::ChunksExact<'_, f32> {
    numbers.chunks_exact(size)
}
