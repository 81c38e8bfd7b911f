//! Depthwise causal convolutions over the rows of a sequence (in hybrids: Yang et al., 2024).
//!
//! ```text
//! state    [k - 1][channels]    the newest inputs before the first row, oldest first
//! row      y = bias + w[0] x[-k+1] + .. + w[k-1] x[0]      a fused multiply-add each, oldest first; silu(y) if asked
//! ```
//! Between gates, a layer of its own (LFM2: Liquid AI, 2025):
//!
//! ```text
//! row      [ b | c | u ]       x = b u      y as above      c y
//! ```
//! A row depends on itself and the `k - 1` rows before it, wherever a sequence was cut. Lanes lie along channels, so no
//! lane meets another.

use crate::isa::Isa;
use crate::pointwise::Shared;
use crate::simd::{Kernel, LANES, Simd, dispatch, exp, exp_lanes, with_rows};
use crate::states::{OpenStates, StateSpan, States};
use crate::threads::Pool;
use std::ops::Range;

/// Most taps.
pub const MAX_TAPS: usize = 8;
/// Elements per task.
const TASK: usize = 16 << 10;

/// A depthwise causal convolution of the first numbers of each row, in place. `V`: a vector of a backend, or a slice.
#[derive(Debug)]
pub struct Convolution<'a, V: ?Sized = [f32]> {
    /// Numbers from row to row.
    pub row_width: usize,
    /// Numbers of a row that are convolved, from the first; a multiple of 16.
    pub channels: usize,
    /// Taps; from 2 to [`MAX_TAPS`].
    pub taps: usize,
    /// `[taps, channels]`; the last meets the newest row.
    pub weight: &'a V,
    /// `[channels]`.
    pub bias: Option<&'a V>,
    /// The result is `y / (1 + exp(-y))`.
    pub silu: bool,
    /// Where its state begins in a slot: `[taps - 1, channels]`.
    pub state: usize,
}

impl<V: ?Sized> Clone for Convolution<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V: ?Sized> Copy for Convolution<'_, V> {}

impl<'a, V: ?Sized> Convolution<'a, V> {
    /// The same with each vector mapped.
    pub fn map<W: ?Sized>(self, vector: impl Fn(&'a V) -> &'a W) -> Convolution<'a, W> {
        let Convolution { row_width, channels, taps, weight, bias, silu, state } = self;
        Convolution { row_width, channels, taps, weight: vector(weight), bias: bias.map(&vector), silu, state }
    }
}

/// A convolution between gates, of rows `[b | c | u]`: `c` times the convolution of `b u`, without activation. `V`: a
/// vector of a backend, or a slice.
#[derive(Debug)]
pub struct GatedConvolution<'a, V: ?Sized = [f32]> {
    /// Numbers of each of the three, and of a result; a multiple of 16.
    pub channels: usize,
    /// Taps; from 2 to [`MAX_TAPS`].
    pub taps: usize,
    /// `[taps, channels]`; the last meets the newest row.
    pub weight: &'a V,
    /// `[channels]`.
    pub bias: Option<&'a V>,
    /// Where its state begins in a slot: `[taps - 1, channels]`.
    pub state: usize,
}

impl<V: ?Sized> Clone for GatedConvolution<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V: ?Sized> Copy for GatedConvolution<'_, V> {}

impl<'a, V: ?Sized> GatedConvolution<'a, V> {
    /// The same with each vector mapped.
    pub fn map<W: ?Sized>(self, vector: impl Fn(&'a V) -> &'a W) -> GatedConvolution<'a, W> {
        let GatedConvolution { channels, taps, weight, bias, state } = self;
        GatedConvolution { channels, taps, weight: vector(weight), bias: bias.map(&vector), state }
    }
}

/// See [`Convolution`]. `rows`: f32 `[rows, row_width]`. Cost: reads and writes `channels` numbers a row.
///
/// Panics when shapes disagree, and when `spans` break the promise of [`StateSpan::saves`].
pub fn convolve(
    pool: Option<&Pool>,
    isa: Isa,
    how: Convolution<'_>,
    spans: &[StateSpan<'_>],
    rows: &mut [f32],
    states: &mut States,
) {
    let Convolution { row_width, channels, taps, weight, bias, silu, state } = how;
    assert!(channels <= row_width, "{channels} channels of rows of {row_width}");
    assert!(num_rows(spans) * row_width <= rows.len(), "rows are [rows, row_width]");
    let form = InPlace { rows: &Shared::new(rows), row_width, silu };
    share_strips(pool, isa, form, Filter { channels, taps, weight, bias }, spans, (states, state));
}

/// See [`GatedConvolution`]. `rows`: f32 `[rows, 3 * channels]`; `out`: `[rows, channels]`. Cost: reads `3 * channels`
/// numbers a row, writes `channels`.
///
/// Panics when shapes disagree, and when `spans` break the promise of [`StateSpan::saves`].
pub fn convolve_gated(
    pool: Option<&Pool>,
    isa: Isa,
    how: GatedConvolution<'_>,
    spans: &[StateSpan<'_>],
    rows: &[f32],
    states: &mut States,
    out: &mut [f32],
) {
    let GatedConvolution { channels, taps, weight, bias, state } = how;
    assert_eq!(rows.len(), 3 * out.len(), "rows are [rows, 3 * channels], and out is [rows, channels]");
    assert!(num_rows(spans) * channels <= out.len(), "out is [rows, channels]");
    let form = Gated { rows, out: &Shared::new(out), channels };
    share_strips(pool, isa, form, Filter { channels, taps, weight, bias }, spans, (states, state));
}

/// Rows up to the end of the last span.
fn num_rows(spans: &[StateSpan<'_>]) -> usize {
    spans.iter().map(|span| span.first_row + span.num_rows).max().unwrap_or(0)
}

/// What both forms have in common.
#[derive(Clone, Copy)]
struct Filter<'a> {
    channels: usize,
    taps: usize,
    weight: &'a [f32],
    bias: Option<&'a [f32]>,
}

/// Where inputs come from, and what becomes of results. Each channel of each row is one task's.
trait Form: Copy + Sync {
    fn input(&self, row: usize, channel: usize) -> f32;
    fn store(&self, row: usize, channel: usize, y: f32);
    /// The same of 16 channels, all of them in the row.
    fn inputs<S: Simd>(&self, s: S, row: usize, channel: usize) -> S::V;
    fn store_all<S: Simd>(&self, s: S, row: usize, channel: usize, y: S::V);
}

#[derive(Clone, Copy)]
struct InPlace<'a> {
    rows: &'a Shared<'a, f32>,
    row_width: usize,
    silu: bool,
}

impl Form for InPlace<'_> {
    fn input(&self, row: usize, channel: usize) -> f32 {
        let number = row * self.row_width + channel;
        // SAFETY: each channel is one task's.
        unsafe { self.rows.part(number..number + 1)[0] }
    }

    fn store(&self, row: usize, channel: usize, y: f32) {
        let number = row * self.row_width + channel;
        // SAFETY: as above.
        let x = unsafe { &mut self.rows.part(number..number + 1)[0] };
        *x = if self.silu { y / (1.0 + exp(0.0 - y)) } else { y };
    }

    #[inline(always)]
    fn inputs<S: Simd>(&self, s: S, row: usize, channel: usize) -> S::V {
        let number = row * self.row_width + channel;
        // SAFETY: the range of 16 numbers is checked, and each channel is one task's.
        unsafe { s.load(self.rows.pointer(number..number + LANES)) }
    }

    #[inline(always)]
    fn store_all<S: Simd>(&self, s: S, row: usize, channel: usize, y: S::V) {
        let number = row * self.row_width + channel;
        let y = match self.silu {
            true => s.div(y, s.add(s.splat(1.0), exp_lanes(s, s.sub(s.splat(0.0), y)))),
            false => y,
        };
        // SAFETY: as above.
        unsafe { s.store(y, self.rows.pointer(number..number + LANES)) };
    }
}

#[derive(Clone, Copy)]
struct Gated<'a> {
    rows: &'a [f32],
    out: &'a Shared<'a, f32>,
    channels: usize,
}

impl Gated<'_> {
    /// Some numbers of a row's part: 0 is b, 1 is c, 2 is u.
    #[inline(always)]
    fn part(&self, row: usize, part: usize, channel: usize, len: usize) -> &[f32] {
        &self.rows[(3 * row + part) * self.channels + channel..][..len]
    }
}

impl Form for Gated<'_> {
    fn input(&self, row: usize, channel: usize) -> f32 {
        self.part(row, 0, channel, 1)[0] * self.part(row, 2, channel, 1)[0]
    }

    fn store(&self, row: usize, channel: usize, y: f32) {
        let number = row * self.channels + channel;
        // SAFETY: each channel is one task's.
        unsafe { self.out.part(number..number + 1)[0] = self.part(row, 1, channel, 1)[0] * y };
    }

    #[inline(always)]
    fn inputs<S: Simd>(&self, s: S, row: usize, channel: usize) -> S::V {
        let of = |part| self.part(row, part, channel, LANES).as_ptr();
        // SAFETY: each part is 16 numbers.
        unsafe { s.mul(s.load(of(0)), s.load(of(2))) }
    }

    #[inline(always)]
    fn store_all<S: Simd>(&self, s: S, row: usize, channel: usize, y: S::V) {
        let (c, number) = (self.part(row, 1, channel, LANES).as_ptr(), row * self.channels + channel);
        // SAFETY: 16 numbers each; each channel is one task's.
        unsafe { s.store(s.mul(s.load(c), y), self.out.pointer(number..number + LANES)) };
    }
}

fn share_strips(
    pool: Option<&Pool>,
    isa: Isa,
    form: impl Form,
    filter: Filter<'_>,
    spans: &[StateSpan<'_>],
    (states, state): (&mut States, usize),
) {
    let Filter { channels, taps, weight, bias } = filter;
    assert!((2..=MAX_TAPS).contains(&taps), "{taps} taps");
    assert!(channels.is_multiple_of(LANES), "{channels} channels");
    assert_eq!(weight.len(), taps * channels, "weights are [taps, channels]");
    assert!(bias.is_none_or(|bias| bias.len() == channels), "the bias is [channels]");
    let states = states.open(spans, (state, (taps - 1) * channels));
    let strips = channels / LANES;
    let per_task = (TASK / (LANES * num_rows(spans).max(1))).clamp(2, strips.max(2));
    let work = |task: usize| {
        let strips = task * per_task..((task + 1) * per_task).min(strips);
        dispatch(isa, Strips { filter, form, spans, states, strips });
    };
    let tasks = strips.div_ceil(per_task);
    match pool {
        Some(pool) => pool.tasks(tasks, &work),
        None => (0..tasks).for_each(work),
    }
}

/// Some channels, in groups of 16, of all rows.
struct Strips<'a, F> {
    filter: Filter<'a>,
    form: F,
    spans: &'a [StateSpan<'a>],
    states: OpenStates<'a>,
    strips: Range<usize>,
}

impl<F: Form> Strips<'_, F> {
    /// One channel of a span.
    fn channel(&self, span: &StateSpan<'_>, channel: usize) {
        let Filter { channels, taps, weight, bias } = self.filter;
        let at = |slot: u32, tap: usize| self.states.part(slot, tap * channels + channel, 1);
        let mut inputs = [0.0; MAX_TAPS];
        for (tap, input) in inputs[..taps - 1].iter_mut().enumerate() {
            // SAFETY: a slot that is read is not written in this operation.
            *input = span.from.map_or(0.0, |slot| unsafe { *at(slot, tap) });
        }
        let mut saves = span.saves.iter().peekable();
        for row in span.rows() {
            inputs[taps - 1] = self.form.input(row, channel);
            let mut y = bias.map_or(0.0, |bias| bias[channel]);
            for (tap, input) in inputs[..taps].iter().enumerate() {
                y = weight[tap * channels + channel].mul_add(*input, y);
            }
            self.form.store(row, channel, y);
            inputs.copy_within(1..taps, 0);
            while let Some(save) = saves.next_if(|save| save.row as usize == row) {
                for (tap, input) in inputs[..taps - 1].iter().enumerate() {
                    // SAFETY: no other span has this slot, and each channel is one task's.
                    unsafe { *at(save.slot, tap) = *input };
                }
            }
        }
    }

    /// Sixteen channels of a span.
    #[inline(always)]
    fn strip<const TAPS: usize, S: Simd>(&self, s: S, span: &StateSpan<'_>, channel: usize) {
        let Filter { channels, weight, bias, .. } = self.filter;
        let (mut weights, mut inputs) = ([s.splat(0.0); TAPS], [s.splat(0.0); TAPS]);
        // SAFETY: all ranges of 16 numbers are checked; slots as in `channel`.
        unsafe {
            for tap in 0..TAPS {
                weights[tap] = s.load(weight[tap * channels + channel..][..LANES].as_ptr());
                if let (Some(slot), true) = (span.from, tap + 1 < TAPS) {
                    inputs[tap] = s.load(self.states.part(slot, tap * channels + channel, LANES));
                }
            }
            let start = match bias {
                Some(bias) => s.load(bias[channel..][..LANES].as_ptr()),
                None => s.splat(0.0),
            };
            let mut next_save = 0;
            for row in span.rows() {
                inputs[TAPS - 1] = self.form.inputs(s, row, channel);
                let mut y = start;
                for tap in 0..TAPS {
                    y = s.fma(weights[tap], inputs[tap], y);
                }
                self.form.store_all(s, row, channel, y);
                for tap in 1..TAPS {
                    inputs[tap - 1] = inputs[tap];
                }
                while next_save < span.saves.len() && span.saves[next_save].row as usize == row {
                    let slot = span.saves[next_save].slot;
                    for (tap, &input) in inputs[..TAPS - 1].iter().enumerate() {
                        s.store(input, self.states.part(slot, tap * channels + channel, LANES));
                    }
                    next_save += 1;
                }
            }
        }
    }
}

impl<F: Form> Kernel for Strips<'_, F> {
    type Output = ();

    fn define(self) {
        for span in self.spans {
            for channel in self.strips.start * LANES..self.strips.end * LANES {
                self.channel(span, channel);
            }
        }
    }

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for span in self.spans {
            for strip in self.strips.clone() {
                with_rows!(TAPS = self.filter.taps => self.strip::<TAPS, S>(s, span, strip * LANES));
            }
        }
    }
}
