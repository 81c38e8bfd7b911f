//! Depthwise causal convolutions over the rows of a sequence (in hybrids: Yang et al., 2024).
//!
//! ```text
//! state    [k - 1][channels]    the newest inputs before the first row, oldest first
//! row      y = bias + w[0] x[-k+1] + .. + w[k-1] x[0]      a fused multiply-add each, oldest first; silu(y) if asked
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
    let Convolution { row_width, channels, taps, weight, bias, state, .. } = how;
    assert!((2..=MAX_TAPS).contains(&taps), "{taps} taps");
    assert!(channels.is_multiple_of(LANES) && channels <= row_width, "{channels} channels of rows of {row_width}");
    assert_eq!(weight.len(), taps * channels, "weights are [taps, channels]");
    assert!(bias.is_none_or(|bias| bias.len() == channels), "the bias is [channels]");
    let num_rows = spans.iter().map(|span| span.first_row + span.num_rows).max().unwrap_or(0);
    assert!(num_rows * row_width <= rows.len(), "rows are [rows, row_width]");
    let states = states.open(spans, (state, (taps - 1) * channels));
    let rows = Shared::new(rows);
    let strips = channels / LANES;
    let per_task = (TASK / (LANES * num_rows.max(1))).clamp(2, strips.max(2));
    let work = |task: usize| {
        let strips = task * per_task..((task + 1) * per_task).min(strips);
        dispatch(isa, Strips { how, spans, rows: &rows, states, strips });
    };
    let tasks = strips.div_ceil(per_task);
    match pool {
        Some(pool) => pool.tasks(tasks, &work),
        None => (0..tasks).for_each(work),
    }
}

/// Some channels, in groups of 16, of all rows.
struct Strips<'a> {
    how: Convolution<'a>,
    spans: &'a [StateSpan<'a>],
    rows: &'a Shared<'a, f32>,
    states: OpenStates<'a>,
    strips: Range<usize>,
}

impl Strips<'_> {
    /// One channel of a span.
    fn channel(&self, span: &StateSpan<'_>, channel: usize) {
        let Convolution { row_width, channels, taps, weight, bias, silu, .. } = self.how;
        let at = |slot: u32, tap: usize| self.states.part(slot, tap * channels + channel, 1);
        let mut inputs = [0.0; MAX_TAPS];
        for (tap, input) in inputs[..taps - 1].iter_mut().enumerate() {
            // SAFETY: a slot that is read is not written in this operation.
            *input = span.from.map_or(0.0, |slot| unsafe { *at(slot, tap) });
        }
        let mut saves = span.saves.iter().peekable();
        for row in span.rows() {
            let number = row * row_width + channel;
            // SAFETY: each channel is one task's.
            let x = unsafe { &mut self.rows.part(number..number + 1)[0] };
            inputs[taps - 1] = *x;
            let mut y = bias.map_or(0.0, |bias| bias[channel]);
            for (tap, input) in inputs[..taps].iter().enumerate() {
                y = weight[tap * channels + channel].mul_add(*input, y);
            }
            *x = if silu { y / (1.0 + exp(0.0 - y)) } else { y };
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
        let Convolution { row_width, channels, weight, bias, silu, .. } = self.how;
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
                let number = row * row_width + channel;
                let at = self.rows.pointer(number..number + LANES);
                inputs[TAPS - 1] = s.load(at);
                let mut y = start;
                for tap in 0..TAPS {
                    y = s.fma(weights[tap], inputs[tap], y);
                }
                if silu {
                    let bottom = s.add(s.splat(1.0), exp_lanes(s, s.sub(s.splat(0.0), y)));
                    y = s.div(y, bottom);
                }
                s.store(y, at);
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

impl Kernel for Strips<'_> {
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
                with_rows!(TAPS = self.how.taps => self.strip::<TAPS, S>(s, span, strip * LANES));
            }
        }
    }
}
