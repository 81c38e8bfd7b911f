//! Row-wise operations between the matrix products: norms, gated activations, sums, rotation.
//!
//! Each function takes `pool: Option<&Pool>` (many rows are split over its threads) and `isa`, and returns the same bits
//! for every choice of both. [`Plain`] holds the definitions, [`Vectors`] the same operations 16 at a time.

use crate::gelu::{gelu, gelu_lanes};
use crate::isa::Isa;
use crate::kv_cache::{KvCache, KvDtype, KvPlace, MAX_HEAD_DIM, Writer};
use crate::simd::{self, Kernel, LANES, Simd, bf16_bits, dispatch, exp, exp_lanes};
use crate::spread;
use crate::threads::Pool;
use crate::{HeadLayout, HeadNorms, RopeTable, RotateAndStore, layer_norm};
use std::marker::PhantomData;
use std::ops::Range;

/// Elements per task: a few microseconds of work, several times the dispatch cost.
const TASK: usize = 16 << 10;

/// Calls `f` for ranges that cover `0..rows`, on several threads when that pays.
pub(crate) fn share_rows(pool: Option<&Pool>, rows: usize, width: usize, f: &(dyn Fn(Range<usize>) + Sync)) {
    let per_task = (TASK / width.max(1)).max(1);
    match pool {
        Some(pool) if rows > per_task => {
            pool.tasks(rows.div_ceil(per_task), &|task| f(task * per_task..((task + 1) * per_task).min(rows)));
        }
        _ => f(0..rows),
    }
}

/// A slice that several tasks write, each a separate part.
pub(crate) struct Shared<'a, T> {
    ptr: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: `part` hands out disjoint parts only, by its caller's word.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Shared { ptr: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// Length of the whole slice.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Pointer to a part of the slice, for callers that write some of it. Panics if it is out of range.
    #[inline(always)]
    pub(crate) fn pointer(&self, range: Range<usize>) -> *mut T {
        assert!(range.start <= range.end && range.end <= self.len);
        self.ptr.wrapping_add(range.start)
    }

    /// A part of the slice. Panics if it is out of range.
    ///
    /// # Safety
    /// No other task holds a part that overlaps it.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)] // the caller promises that parts are disjoint
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: in range, and alone by the caller's word.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(range.start), range.len()) }
    }
}

/// The operations on one row (or one head of a row).
pub(crate) trait RowOps: Copy {
    /// The sum of squares in 16 lanes, element `i` in lane `i % 16`, then by halves.
    fn sum_squares(self, x: &[f32]) -> f32;
    /// `1 / sqrt(mean(x^2) + eps)`.
    #[inline(always)]
    fn inverse_rms(self, x: &[f32], eps: f32) -> f32 {
        1.0 / (self.sum_squares(x) / x.len() as f32 + eps).sqrt()
    }
    /// `out = (x * factor) * weight`.
    fn scale(self, x: &[f32], factor: f32, weight: &[f32], out: &mut [f32]);
    /// `x = x / (1 + exp(-gate))`.
    fn sigmoid(self, gate: &[f32], x: &mut [f32]);
    /// `out = activation(gate) * up`, or what [`Activation`] says.
    fn gated(self, activation: Activation, gate: &[f32], up: &[f32], out: &mut [f32]);
    /// `to = from` of 16 numbers, by [`Simd::stream`].
    /// # Safety
    /// As there.
    unsafe fn stream(self, from: &[f32; LANES], to: *mut f32);
    /// `x = scale * y + x`, rounded once.
    fn add_scaled(self, y: &[f32], scale: f32, x: &mut [f32]);
    /// [`simd::softcap`] of each element.
    fn softcap(self, cap: f32, x: &mut [f32]);
    /// Rotates element `i` of the first half and of the second by the same angle: `a' = a c - b s`, `b' = b c + a s`.
    fn rotate(self, x: &mut [f32], cos: &[f32], sin: &[f32]);
    /// `x = x * factor`.
    fn multiply(self, factor: f32, x: &mut [f32]);
    /// [`layer_norm::layer_norm`] of one row.
    fn layer_norm(self, x: &[f32], norm: layer_norm::Norm<'_>, out: &mut [f32]);
    /// Rounds to bf16.
    fn to_bf16(self, x: &[f32], out: &mut [u16]);
    /// [`spread::spread`].
    fn spread(self, head: &mut [f32], run: usize);
}

#[derive(Clone, Copy)]
pub(crate) struct Plain;

impl RowOps for Plain {
    fn sum_squares(self, x: &[f32]) -> f32 {
        let mut lanes = [0.0f32; LANES];
        for (i, &x) in x.iter().enumerate() {
            lanes[i % LANES] = x.mul_add(x, lanes[i % LANES]);
        }
        simd::sum(lanes)
    }

    fn scale(self, x: &[f32], factor: f32, weight: &[f32], out: &mut [f32]) {
        for ((out, &x), &weight) in out.iter_mut().zip(x).zip(weight) {
            *out = (x * factor) * weight;
        }
    }

    fn sigmoid(self, gate: &[f32], x: &mut [f32]) {
        for (x, &gate) in x.iter_mut().zip(gate) {
            *x /= 1.0 + exp(0.0 - gate);
        }
    }

    fn gated(self, activation: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
        for ((out, &gate), &up) in out.iter_mut().zip(gate).zip(up) {
            *out = activation.of(gate) * activation.factor(up);
        }
    }

    unsafe fn stream(self, from: &[f32; LANES], to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[f32; LANES]>().write(*from) }
    }

    fn add_scaled(self, y: &[f32], scale: f32, x: &mut [f32]) {
        for (x, &y) in x.iter_mut().zip(y) {
            *x = y.mul_add(scale, *x);
        }
    }

    fn softcap(self, cap: f32, x: &mut [f32]) {
        for x in x {
            *x = simd::softcap(*x, cap);
        }
    }

    fn rotate(self, x: &mut [f32], cos: &[f32], sin: &[f32]) {
        let half = cos.len();
        for i in 0..half {
            let (a, b) = (x[i], x[half + i]);
            x[i] = a.mul_add(cos[i], 0.0 - b * sin[i]);
            x[half + i] = b.mul_add(cos[i], a * sin[i]);
        }
    }

    fn multiply(self, factor: f32, x: &mut [f32]) {
        x.iter_mut().for_each(|x| *x *= factor);
    }

    fn layer_norm(self, x: &[f32], norm: layer_norm::Norm<'_>, out: &mut [f32]) {
        layer_norm::Rows { x, norm, out }.define();
    }

    fn to_bf16(self, x: &[f32], out: &mut [u16]) {
        for (out, &x) in out.iter_mut().zip(x) {
            *out = bf16_bits(x);
        }
    }

    fn spread(self, head: &mut [f32], run: usize) {
        spread::spread(head, run);
    }
}

/// The same with vectors.
#[derive(Clone, Copy)]
pub(crate) struct Vectors<S>(pub(crate) S);

impl<S: Simd> Vectors<S> {
    /// Up to 16 elements from `at`, then zeros.
    #[inline(always)]
    pub(crate) fn load(self, x: &[f32], at: usize) -> S::V {
        let (n, from) = (x.len() - at, x[at..].as_ptr());
        // SAFETY: at least `min(n, 16)` numbers follow `at`.
        unsafe { if n >= LANES { self.0.load(from) } else { self.0.load_first(n, from) } }
    }

    /// Up to 16 elements to `at`.
    #[inline(always)]
    pub(crate) fn store(self, v: S::V, out: &mut [f32], at: usize) {
        let n = out.len() - at;
        let to = out[at..].as_mut_ptr();
        // SAFETY: at least `min(n, 16)` numbers follow `at`.
        unsafe { if n >= LANES { self.0.store(v, to) } else { self.0.store_first(n, v, to) } }
    }
}

impl<S: Simd> RowOps for Vectors<S> {
    #[inline(always)]
    fn sum_squares(self, x: &[f32]) -> f32 {
        let s = self.0;
        let mut squares = s.splat(0.0);
        for at in (0..x.len()).step_by(LANES) {
            let x = self.load(x, at);
            squares = s.fma(x, x, squares);
        }
        s.sum(squares)
    }

    #[inline(always)]
    fn scale(self, x: &[f32], factor: f32, weight: &[f32], out: &mut [f32]) {
        assert!(weight.len() == x.len() && out.len() == x.len());
        let s = self.0;
        let factor = s.splat(factor);
        for at in (0..x.len()).step_by(LANES) {
            self.store(s.mul(s.mul(self.load(x, at), factor), self.load(weight, at)), out, at);
        }
    }

    #[inline(always)]
    fn sigmoid(self, gate: &[f32], x: &mut [f32]) {
        assert!(gate.len() == x.len());
        let s = self.0;
        for at in (0..x.len()).step_by(LANES) {
            let bottom = s.add(s.splat(1.0), exp_lanes(s, s.sub(s.splat(0.0), self.load(gate, at))));
            self.store(s.div(self.load(x, at), bottom), x, at);
        }
    }

    #[inline(always)]
    fn gated(self, activation: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
        assert!(gate.len() == up.len() && out.len() == up.len());
        let s = self.0;
        for at in (0..gate.len()).step_by(LANES) {
            let activated = activation.of_lanes(s, self.load(gate, at));
            self.store(s.mul(activated, activation.factor_lanes(s, self.load(up, at))), out, at);
        }
    }

    #[inline(always)]
    unsafe fn stream(self, from: &[f32; LANES], to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { self.0.stream(self.0.load(from.as_ptr()), to) }
    }

    #[inline(always)]
    fn add_scaled(self, y: &[f32], scale: f32, x: &mut [f32]) {
        assert!(y.len() == x.len());
        let s = self.0;
        for at in (0..x.len()).step_by(LANES) {
            let sum = s.fma(self.load(y, at), s.splat(scale), self.load(x, at));
            self.store(sum, x, at);
        }
    }

    #[inline(always)]
    fn multiply(self, factor: f32, x: &mut [f32]) {
        let s = self.0;
        let factor = s.splat(factor);
        for at in (0..x.len()).step_by(LANES) {
            self.store(s.mul(self.load(x, at), factor), x, at);
        }
    }

    #[inline(always)]
    fn layer_norm(self, x: &[f32], norm: layer_norm::Norm<'_>, out: &mut [f32]) {
        layer_norm::Rows { x, norm, out }.run(self.0);
    }

    #[inline(always)]
    fn softcap(self, cap: f32, x: &mut [f32]) {
        let s = self.0;
        for at in (0..x.len()).step_by(LANES) {
            self.store(simd::softcap_lanes(s, self.load(x, at), cap), x, at);
        }
    }

    #[inline(always)]
    fn rotate(self, x: &mut [f32], cos: &[f32], sin: &[f32]) {
        let half = cos.len();
        assert!(sin.len() == half && x.len() == 2 * half);
        let s = self.0;
        let (first, second) = x.split_at_mut(half);
        for at in (0..half).step_by(LANES) {
            let (a, b) = (self.load(first, at), self.load(second, at));
            let (cos, sin) = (self.load(cos, at), self.load(sin, at));
            self.store(s.fma(a, cos, s.sub(s.splat(0.0), s.mul(b, sin))), first, at);
            self.store(s.fma(b, cos, s.mul(a, sin)), second, at);
        }
    }

    #[inline(always)]
    fn to_bf16(self, x: &[f32], out: &mut [u16]) {
        assert!(x.len() == out.len());
        let (groups, tail) = out.as_chunks_mut::<LANES>();
        let tail_at = x.len() - tail.len();
        for (i, group) in groups.iter_mut().enumerate() {
            // SAFETY: a group is 16 numbers.
            unsafe { self.0.store_bf16(self.0.round_bf16(self.load(x, i * LANES)), group.as_mut_ptr()) };
        }
        Plain.to_bf16(&x[tail_at..], tail);
    }

    #[inline(always)]
    fn spread(self, head: &mut [f32], run: usize) {
        spread::spread_lanes(self.0, head, run);
    }
}

/// RMS norm of each row (Zhang & Sennrich, 2019): `x / sqrt(mean(x^2) + eps) * weight`.
/// `x`, `out`: f32 `[rows, weight.len()]`.
pub fn rms_norm(pool: Option<&Pool>, isa: Isa, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    struct Rows<'a>(&'a [f32], &'a [f32], f32, &'a mut [f32]);

    impl Rows<'_> {
        #[inline(always)]
        fn each(self, ops: impl RowOps) {
            let Rows(x, weight, eps, out) = self;
            let width = weight.len();
            for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
                ops.scale(x, ops.inverse_rms(x, eps), weight, out);
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

    let width = weight.len();
    assert!(width > 0 && x.len().is_multiple_of(width), "{} numbers are no rows of {width}", x.len());
    assert_eq!(x.len(), out.len());
    let out = Shared::new(out);
    share_rows(pool, x.len() / width, width, &|rows| {
        let part = rows.start * width..rows.end * width;
        // SAFETY: each row is in one range.
        let out = unsafe { out.part(part.clone()) };
        dispatch(isa, Rows(&x[part], weight, eps, out));
    });
}

/// Activation of an MLP: of its middle, or of the gate in a gated one (Shazeer, 2020), which multiplies `up` by it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `x / (1 + exp(-x))`, also called swish (Llama and most others).
    Silu,
    /// `outer z / (1 + exp(-z))` with `z = inner x` (Falcon-H1: Zuo et al., 2025).
    ScaledSilu {
        /// Of the argument.
        inner: f32,
        /// Of the result.
        outer: f32,
    },
    /// `x / (1 + exp(-z))` with `z = 2 sqrt(2/pi) (x + 0.044715 x^3)`: the approximation of GELU by tanh (Hendrycks &
    /// Gimpel, 2016), since `(1 + tanh(z/2)) / 2 = sigmoid(z)` (Gemma).
    GeluTanh,
    /// `x Phi(x)`, GELU itself (Hendrycks & Gimpel, 2016; BERT): see [`gelu`](crate::gelu).
    Gelu,
    /// `max(x, 0)^2` (Primer: So et al., 2021; Arcee).
    ReluSquared,
    /// xIELU (Huang & Schlag, 2024; Apertus): `positive x^2 + beta x` from 0 up, and below
    /// `(exp(min(x, eps)) - 1 - x) negative + beta x`, off by 1e-7 of `negative` at most.
    Xielu {
        /// Above 0.
        positive: f32,
        /// Likewise.
        negative: f32,
        /// The slope at 0.
        beta: f32,
        /// Just below 0.
        eps: f32,
    },
    /// `g / (1 + exp(-1.702 g))` with `g = min(x, limit)`, times `up + 1` with `up` clamped to `-limit..limit` (gpt-oss:
    /// OpenAI, 2025).
    Clamped {
        /// Above 0.
        limit: f32,
    },
}

/// The factor with which a sigmoid is close to GELU's (Hendrycks & Gimpel, 2016).
const GELU_SIGMOID: f32 = 1.702;
/// `2 sqrt(2 / pi)`.
const GELU_LINEAR: f32 = 1.595_769;
const GELU_CUBIC: f32 = 0.044_715;

impl Activation {
    /// xIELU of the numbers that are stored: two logarithms behind a softplus, the slope, and what is just below 0.
    pub fn xielu([alpha_p, alpha_n, beta, eps]: [f32; 4]) -> Activation {
        let softplus = |x: f32| libm::log1p(libm::exp(f64::from(x))) as f32;
        Activation::Xielu { positive: softplus(alpha_p), negative: beta + softplus(alpha_n), beta, eps }
    }

    /// Of one number.
    #[inline(always)]
    pub(crate) fn of(self, x: f32) -> f32 {
        let (x, argument) = match self {
            Activation::Silu => (x, x),
            Activation::ScaledSilu { inner, outer } => (x * inner * outer, x * inner),
            Activation::GeluTanh => (x, (x * GELU_LINEAR) * (x * x).mul_add(GELU_CUBIC, 1.0)),
            Activation::Gelu => return gelu(x),
            Activation::ReluSquared => {
                let x = if 0.0 > x { 0.0 } else { x };
                return x * x;
            }
            Activation::Xielu { positive, negative, beta, eps } => {
                let low = if x > eps { eps } else { x };
                let below = ((exp(low) - 1.0) - x).mul_add(negative, beta * x);
                return if x >= 0.0 { (positive * x).mul_add(x, beta * x) } else { below };
            }
            Activation::Clamped { limit } => {
                let x = if x > limit { limit } else { x };
                (x, x * GELU_SIGMOID)
            }
        };
        x / (1.0 + exp(0.0 - argument))
    }

    /// [`of`](Self::of) of 16 numbers.
    #[inline(always)]
    pub(crate) fn of_lanes<S: Simd>(self, s: S, x: S::V) -> S::V {
        let (x, argument) = match self {
            Activation::Silu => (x, x),
            Activation::ScaledSilu { inner, outer } => {
                let z = s.mul(x, s.splat(inner));
                (s.mul(z, s.splat(outer)), z)
            }
            Activation::GeluTanh => {
                let cubic = s.fma(s.mul(x, x), s.splat(GELU_CUBIC), s.splat(1.0));
                (x, s.mul(s.mul(x, s.splat(GELU_LINEAR)), cubic))
            }
            Activation::Gelu => return gelu_lanes(s, x),
            Activation::ReluSquared => {
                let x = s.max(s.splat(0.0), x);
                return s.mul(x, x);
            }
            Activation::Xielu { positive, negative, beta, eps } => {
                let (low, line) = (s.min(s.splat(eps), x), s.mul(s.splat(beta), x));
                let below = s.sub(s.sub(exp_lanes(s, low), s.splat(1.0)), x);
                let below = s.fma(below, s.splat(negative), line);
                let above = s.fma(s.mul(s.splat(positive), x), x, line);
                return s.at_least(x, s.splat(0.0), above, below);
            }
            Activation::Clamped { limit } => {
                let x = s.min(s.splat(limit), x);
                (x, s.mul(x, s.splat(GELU_SIGMOID)))
            }
        };
        let bottom = s.add(s.splat(1.0), exp_lanes(s, s.sub(s.splat(0.0), argument)));
        s.div(x, bottom)
    }

    /// What the activated gate is multiplied by.
    #[inline(always)]
    fn factor(self, up: f32) -> f32 {
        match self {
            Activation::Clamped { limit } => {
                let up = if up > limit { limit } else { up };
                (if -limit > up { -limit } else { up }) + 1.0
            }
            _ => up,
        }
    }

    /// [`factor`](Self::factor) of 16 numbers.
    #[inline(always)]
    fn factor_lanes<S: Simd>(self, s: S, up: S::V) -> S::V {
        match self {
            Activation::Clamped { limit } => s.add(s.max(s.splat(-limit), s.min(s.splat(limit), up)), s.splat(1.0)),
            _ => up,
        }
    }
}

/// Row order of the matrix for [`Out::Gated`](crate::Out::Gated) in an MLP of `width`: row `index` of it is the returned
/// row of the stacked `[gate | up]`. Gate rows and their up rows alternate in groups of 16, the last group may be
/// smaller.
pub fn gate_up_row(index: usize, width: usize) -> usize {
    let first = index / (2 * LANES) * LANES;
    let (within, count) = (index % (2 * LANES), LANES.min(width - first));
    if within < count { first + within } else { width + first + within - count }
}

/// `activation(gate) * up`. `gate_up`: f32 `[rows, 2 * width]` in the order of [`gate_up_row`]; `out`: `[rows, width]`.
pub fn gated(pool: Option<&Pool>, isa: Isa, activation: Activation, gate_up: &[f32], width: usize, out: &mut [f32]) {
    struct Rows<'a>(Activation, &'a [f32], usize, &'a mut [f32]);

    impl Rows<'_> {
        #[inline(always)]
        fn each(self, ops: impl RowOps) {
            let Rows(activation, gate_up, width, out) = self;
            for (row, out) in gate_up.chunks_exact(2 * width).zip(out.chunks_exact_mut(width)) {
                for (part, out) in row.chunks(2 * LANES).zip(out.chunks_mut(LANES)) {
                    let (gate, up) = part.split_at(out.len());
                    ops.gated(activation, gate, up, out);
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

    assert!(width > 0 && out.len().is_multiple_of(width), "{} numbers are no rows of {width}", out.len());
    assert_eq!(gate_up.len(), 2 * out.len());
    let rows = out.len() / width;
    let out = Shared::new(out);
    share_rows(pool, rows, 4 * width, &|rows| {
        // SAFETY: each row is in one range.
        let out = unsafe { out.part(rows.start * width..rows.end * width) };
        dispatch(isa, Rows(activation, &gate_up[rows.start * 2 * width..rows.end * 2 * width], width, out));
    });
}

/// [`gated`] for a block: `rows` (the first, and their number) of 32 columns, of which the first `columns`, an even
/// number, are valid; to `out`, whose rows are `width` apart. `streams`: whole ones are written past the caches, each
/// at a multiple of 64 bytes; a fence has to follow.
///
/// # Safety
/// The first `columns` of each row are readable; `out` covers `columns / 2` elements of each row, and no other thread
/// accesses them.
pub(crate) unsafe fn gated_block(
    isa: Isa,
    activation: Activation,
    rows: (*const [f32; 2 * LANES], usize),
    columns: usize,
    (out, width): (*mut f32, usize),
    streams: bool,
) {
    struct Block(Activation, (*const [f32; 2 * LANES], usize), usize, *mut f32, usize, bool);

    impl Block {
        #[inline(always)]
        fn each(self, ops: impl RowOps) {
            // Full vectors are a separate case so that the compiler sees a constant count.
            let count = self.2;
            if count == LANES { self.rows(ops, LANES) } else { self.rows(ops, count) }
        }

        #[inline(always)]
        fn rows(self, ops: impl RowOps, count: usize) {
            let Block(activation, (first, rows), _, out, width, streams) = self;
            for row in 0..rows {
                if streams && count == LANES {
                    let mut results = [0.0; LANES];
                    // SAFETY: the caller's promise.
                    unsafe {
                        let (gate, up) = (*first.add(row)).split_at(LANES);
                        ops.gated(activation, gate, up, &mut results);
                        ops.stream(&results, out.add(row * width));
                    }
                    continue;
                }
                // SAFETY: the caller's promise.
                let (gate_up, out) = unsafe {
                    let gate_up = std::slice::from_raw_parts(first.add(row).cast::<f32>(), 2 * count);
                    (gate_up, std::slice::from_raw_parts_mut(out.add(row * width), count))
                };
                let (gate, up) = gate_up.split_at(count);
                ops.gated(activation, gate, up, out);
            }
        }
    }

    impl Kernel for Block {
        type Output = ();

        fn define(self) {
            self.each(Plain);
        }

        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            self.each(Vectors(s));
        }
    }

    assert!(columns <= 2 * LANES && columns.is_multiple_of(2), "{columns} columns are not pairs of gate and up");
    dispatch(isa, Block(activation, rows, columns / 2, out, width, streams));
}

/// `x = scale * y + x`, rounded once. f32 of one length.
pub fn add_scaled(pool: Option<&Pool>, isa: Isa, y: &[f32], scale: f32, x: &mut [f32]) {
    assert_eq!(y.len(), x.len());
    let x = Shared::new(x);
    share_rows(pool, y.len().div_ceil(LANES), LANES, &|groups| {
        let part = groups.start * LANES..(groups.end * LANES).min(y.len());
        // SAFETY: each group of numbers is in one range.
        let x = unsafe { x.part(part.clone()) };
        dispatch(isa, AddScaled { y: &y[part], scale, x });
    });
}

/// See [`add_scaled`].
pub(crate) struct AddScaled<'a> {
    pub(crate) y: &'a [f32],
    pub(crate) scale: f32,
    pub(crate) x: &'a mut [f32],
}

impl Kernel for AddScaled<'_> {
    type Output = ();

    fn define(self) {
        Plain.add_scaled(self.y, self.scale, self.x);
    }

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        Vectors(s).add_scaled(self.y, self.scale, self.x);
    }
}

/// The gate of attention's output: `x = x / (1 + exp(-gate))`; of a gate for a whole head the quotient
/// `1 / (1 + exp(-gate))` is rounded, then the product. `qkv`: f32 `[rows, layout.qkv_width()]`, of which the gates
/// follow the queries; `x`: `[rows, layout.q_width()]`.
pub fn gate_heads(pool: Option<&Pool>, isa: Isa, layout: HeadLayout, qkv: &[f32], x: &mut [f32]) {
    struct Rows<'a>(&'a [f32], HeadLayout, &'a mut [f32]);

    impl Rows<'_> {
        #[inline(always)]
        fn each(self, ops: impl RowOps) {
            let Rows(qkv, layout, x) = self;
            let width = layout.q_width();
            for (qkv, x) in qkv.chunks_exact(layout.qkv_width()).zip(x.chunks_exact_mut(width)) {
                let gates = &qkv[width..layout.keys_at()];
                if layout.gates != 1 {
                    ops.sigmoid(gates, x);
                    continue;
                }
                for (head, &gate) in x.chunks_exact_mut(layout.head_dim).zip(gates) {
                    ops.multiply(1.0 / (1.0 + exp(0.0 - gate)), head);
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

    let (qkv_width, width) = (layout.qkv_width(), layout.q_width());
    let is_gated = [1, layout.head_dim].contains(&layout.gates);
    assert!(is_gated && x.len().is_multiple_of(width), "{} numbers are no rows of {layout:?}", x.len());
    let rows = x.len() / width;
    assert_eq!(qkv.len(), rows * qkv_width, "qkv is [rows, qkv_width]");
    let x = Shared::new(x);
    share_rows(pool, rows, 4 * width, &|rows| {
        // SAFETY: each row is in one range.
        let x = unsafe { x.part(rows.start * width..rows.end * width) };
        dispatch(isa, Rows(&qkv[rows.start * qkv_width..rows.end * qkv_width], layout, x));
    });
}

/// `x = y / (1 + exp(-gate)) + x`: one gate a row; the quotient `1 / (1 + exp(-gate))` is rounded, then the sum.
/// `gates`: f32 `[rows]`; `y`, `x`: `[rows, width]`.
pub fn add_gated(pool: Option<&Pool>, isa: Isa, gates: &[f32], y: &[f32], x: &mut [f32]) {
    assert!(!gates.is_empty() && x.len() == y.len() && x.len().is_multiple_of(gates.len()), "no rows of one width");
    let width = x.len() / gates.len();
    let x = Shared::new(x);
    share_rows(pool, gates.len(), width, &|rows| {
        for row in rows {
            let part = row * width..(row + 1) * width;
            // SAFETY: each row is in one range.
            let x = unsafe { x.part(part.clone()) };
            let scale = 1.0 / (1.0 + exp(0.0 - gates[row]));
            dispatch(isa, AddScaled { y: &y[part], scale, x });
        }
    });
}

/// `x = x * by`, with the numbers of each row of `by` from `at` on. `x`: `[rows, width]`, `by`: `[rows, by_width]`.
pub fn multiply(x: &mut [f32], width: usize, (by, by_width, at): (&[f32], usize, usize)) {
    assert!(at + width <= by_width && x.len() / width == by.len() / by_width, "no rows of one number");
    for (x, by) in x.chunks_exact_mut(width).zip(by.chunks_exact(by_width)) {
        x.iter_mut().zip(&by[at..]).for_each(|(x, &by)| *x *= by);
    }
}

/// `x = cap * tanh(x / cap)` (Bello et al., 2016): bounds logits smoothly by `cap`.
pub fn softcap(pool: Option<&Pool>, isa: Isa, cap: f32, x: &mut [f32]) {
    struct Numbers<'a>(f32, &'a mut [f32]);

    impl Kernel for Numbers<'_> {
        type Output = ();

        fn define(self) {
            Plain.softcap(self.0, self.1);
        }

        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            Vectors(s).softcap(self.0, self.1);
        }
    }

    let x = Shared::new(x);
    share_rows(pool, x.len().div_ceil(LANES), 4 * LANES, &|groups| {
        let part = groups.start * LANES..(groups.end * LANES).min(x.len());
        // SAFETY: each group of numbers is in one range.
        dispatch(isa, Numbers(cap, unsafe { x.part(part) }));
    });
}

/// See [`RotateAndStore`]. Several threads may store rows of one call.
///
/// Panics when shapes disagree, and when a slot or a position is out of range.
pub fn rotate_and_store(pool: Option<&Pool>, isa: Isa, args: RotateAndStore<'_>, kv: &mut KvCache) {
    let RotateAndStore { qkv, layout, head_norms, rope, positions, slots, layer } = args;
    let (shape, width, rows) = (kv.shape(), layout.qkv_width(), positions.len());
    assert_eq!(
        (layout.num_kv_heads, layout.head_dim),
        (shape.num_kv_heads, shape.head_dim),
        "cache shape does not match the model"
    );
    let rotary_dim = rope.map_or(0, RopeTable::rotary_dim);
    assert!(rotary_dim <= layout.head_dim, "rotation width does not match the model");
    assert!(layout.head_dim <= MAX_HEAD_DIM, "heads of {}", layout.head_dim);
    assert_eq!(qkv.len(), rows * width);
    assert_eq!(slots.len(), rows);
    let (heads, kv_heads) = (layout.num_heads, layout.num_kv_heads);
    match head_norms {
        HeadNorms::None => {}
        HeadNorms::PerHead { q, k, v, .. } => {
            let lengths = [q.len(), k.len(), v.map_or(k.len(), <[f32]>::len)];
            assert_eq!(lengths, [layout.head_dim; 3]);
        }
        HeadNorms::AfterRotation { q, k, .. } => assert_eq!([q.len(), k.len()], [layout.head_dim; 2]),
        HeadNorms::WholeWidth { q, k, .. } | HeadNorms::Centered { q, k, .. } => {
            assert_eq!((q.len(), k.len()), (heads * layout.head_dim, kv_heads * layout.head_dim));
        }
    }
    let (qkv, cache) = (Shared::new(qkv), kv.writer());
    share_rows(pool, rows, 2 * width, &|rows| {
        for row in rows {
            let angles = rope.map_or((&[][..], &[][..]), |rope| rope.at(positions[row] as usize));
            let query_factor = rope.and_then(|rope| rope.query_factor(positions[row] as usize));
            // SAFETY: each row is in one range.
            let qkv = unsafe { qkv.part(row * width..(row + 1) * width) };
            let slot = slots[row] as usize;
            dispatch(isa, RotateRow { qkv, layout, head_norms, angles, query_factor, cache, layer, slot });
        }
    });
}

struct RotateRow<'a> {
    qkv: &'a mut [f32],
    layout: HeadLayout,
    head_norms: HeadNorms<'a>,
    /// cos and sin, one each per rotated pair.
    angles: (&'a [f32], &'a [f32]),
    query_factor: Option<f32>,
    cache: Writer<'a>,
    layer: usize,
    slot: usize,
}

impl RotateRow<'_> {
    #[inline(always)]
    fn each(self, ops: impl RowOps) {
        let head_dim = self.layout.head_dim;
        let (queries, keys_values) = self.qkv.split_at_mut(self.layout.keys_at());
        let queries = &mut queries[..self.layout.q_width()];
        let (keys, values) = keys_values.split_at(keys_values.len() / 2);
        let [q_norm, k_norm, v_norm] = match self.head_norms {
            HeadNorms::None => [Norm::None, Norm::None, Norm::None],
            HeadNorms::PerHead { q, k, v, eps } => {
                [Norm::Head(q, eps), Norm::Head(k, eps), v.map_or(Norm::None, |v| Norm::Head(v, eps))]
            }
            HeadNorms::AfterRotation { q, k, eps } => [Norm::Turned(q, eps), Norm::Turned(k, eps), Norm::None],
            HeadNorms::Centered { q, k, eps } => [Norm::Centered(q, eps), Norm::Centered(k, eps), Norm::None],
            HeadNorms::WholeWidth { q, k, eps } => {
                [Norm::Row(q, ops.inverse_rms(queries, eps)), Norm::Row(k, ops.inverse_rms(keys, eps)), Norm::None]
            }
        };
        let mut turned = [0.0; MAX_HEAD_DIM];
        let turned = &mut turned[..head_dim];
        for (head, query) in queries.chunks_exact_mut(head_dim).enumerate() {
            q_norm.turn(ops, head, query, self.angles, turned);
            if let Some(factor) = self.query_factor {
                ops.multiply(factor, turned);
            }
            query.copy_from_slice(turned);
        }
        let mut normed = [0.0; MAX_HEAD_DIM];
        let value_normed = &mut normed[..head_dim];
        for (kv_head, (key, value)) in keys.chunks_exact(head_dim).zip(values.chunks_exact(head_dim)).enumerate() {
            k_norm.turn(ops, kv_head, key, self.angles, turned);
            v_norm.apply(ops, kv_head, value, value_normed);
            let place = KvPlace { layer: self.layer, slot: self.slot, kv_head };
            match self.cache.shape().dtype {
                KvDtype::Bf16 => {
                    let (mut key_bits, mut value_bits) = ([0; MAX_HEAD_DIM], [0; MAX_HEAD_DIM]);
                    ops.to_bf16(turned, &mut key_bits[..head_dim]);
                    ops.to_bf16(value_normed, &mut value_bits[..head_dim]);
                    self.cache.store_bf16(place, &key_bits[..head_dim], &value_bits[..head_dim]);
                }
                KvDtype::Int8 => {
                    ops.spread(turned, self.cache.shape().run());
                    ops.spread(value_normed, self.cache.shape().run());
                    self.cache.store_int8(place, turned, value_normed);
                }
            }
        }
    }
}

/// The norm of the queries or the keys of one row.
enum Norm<'a> {
    None,
    /// Per head: weight, eps.
    Head(&'a [f32], f32),
    /// The same behind the rotation.
    Turned(&'a [f32], f32),
    /// Over all heads: weight, the row's factor.
    Row(&'a [f32], f32),
    /// Per head, of the distance from its mean: weights of all heads, eps.
    Centered(&'a [f32], f32),
}

impl Norm<'_> {
    /// Norm and rotation.
    #[inline(always)]
    fn turn(&self, ops: impl RowOps, index: usize, head: &[f32], (cos, sin): (&[f32], &[f32]), out: &mut [f32]) {
        self.apply(ops, index, head, out);
        ops.rotate(&mut out[..2 * cos.len()], cos, sin);
        if let Norm::Turned(weight, eps) = *self {
            let mut turned = [0.0; MAX_HEAD_DIM];
            let turned = &mut turned[..out.len()];
            turned.copy_from_slice(out);
            ops.scale(turned, ops.inverse_rms(turned, eps), weight, out);
        }
    }

    #[inline(always)]
    fn apply(&self, ops: impl RowOps, index: usize, head: &[f32], out: &mut [f32]) {
        match *self {
            Norm::None | Norm::Turned(..) => out.copy_from_slice(head),
            Norm::Head(weight, eps) => ops.scale(head, ops.inverse_rms(head, eps), weight, out),
            Norm::Row(weight, factor) => ops.scale(head, factor, &weight[index * head.len()..][..head.len()], out),
            Norm::Centered(weight, eps) => {
                let weight = &weight[index * head.len()..][..head.len()];
                ops.layer_norm(head, layer_norm::Norm { weight, bias: None, eps }, out);
            }
        }
    }
}

impl Kernel for RotateRow<'_> {
    type Output = ();

    fn define(self) {
        self.each(Plain);
    }

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.each(Vectors(s));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// A load past the end.
    struct Beyond<'a>(&'a [f32]);

    impl Kernel for Beyond<'_> {
        type Output = bool;

        fn define(self) -> bool {
            true
        }

        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> bool {
            catch_unwind(AssertUnwindSafe(|| s.sum(Vectors(s).load(self.0, self.0.len() + 1)))).is_err()
        }
    }

    #[test]
    fn nothing_is_loaded_from_beyond_the_end() {
        let numbers = [1.0; 64];
        assert!(Isa::available().into_iter().all(|isa| dispatch(isa, Beyond(&numbers[..20]))));
    }
}
