//! A rotation that spreads the outliers of a head over many elements before int8 quantization with one scale (QuaRot:
//! Ashkboos et al., 2024). The dot product of two rotated heads is that of the original heads.
//!
//! ```text
//! run          elements rotated together: the largest power of two that divides the head's width, 16 to 512 (of latent
//!              attention the value's width too)
//! spread       each element times +1 or -1, then butterflies at distances 1, 2, 4 .. of a run   (a, b) -> (a + b, a - b)
//! gathered     the same steps, then the signs: returns the head times the run length, so stored scales are divided by it
//! ```
//! The signs are the Rudin-Shapiro sequence: element `i` of a run has minus if `i` has an odd number of adjacent pairs
//! of one bits. Without signs the butterflies would concentrate the mean of a run in one element; with them a constant
//! run is spread as evenly as a single outlier.

use crate::kv_cache::MAX_HEAD_DIM;
use crate::simd::{LANES, Simd};

/// The signs of a run.
static SIGNS: [f32; MAX_HEAD_DIM] = signs();

const fn signs() -> [f32; MAX_HEAD_DIM] {
    let mut signs = [1.0; MAX_HEAD_DIM];
    let mut i = 0;
    while i < MAX_HEAD_DIM {
        if (i & i >> 1).count_ones() % 2 == 1 {
            signs[i] = -1.0;
        }
        i += 1;
    }
    signs
}

/// The run length in a head of this width.
#[inline(always)]
pub(crate) fn run_of(head_dim: usize) -> usize {
    1 << head_dim.trailing_zeros()
}

/// Element `d` of a head, rotated back from its run `run`: exact integers, `run.len()` times the original.
pub(crate) fn gathered_int(run: impl ExactSizeIterator<Item = i8>, d: usize) -> i32 {
    let d = d % run.len();
    let turned = |(j, x): (usize, i8)| if (j & d).count_ones() % 2 == 1 { -i32::from(x) } else { i32::from(x) };
    let sum: i32 = run.enumerate().map(turned).sum();
    if SIGNS[d] < 0.0 { -sum } else { sum }
}

pub(crate) fn spread(head: &mut [f32], run: usize) {
    turn_signs(head, run);
    butterflies(head, run);
}

/// Rotates back: the original head times the run length.
pub(crate) fn gather(head: &mut [f32], run: usize) {
    butterflies(head, run);
    turn_signs(head, run);
}

fn turn_signs(head: &mut [f32], run: usize) {
    head.iter_mut().enumerate().for_each(|(i, x)| *x *= SIGNS[i % run]);
}

fn butterflies(head: &mut [f32], len: usize) {
    for run in head.chunks_exact_mut(len) {
        let mut distance = 1;
        while distance < len {
            for i in (0..len).filter(|i| i & distance == 0) {
                let (a, b) = (run[i], run[i + distance]);
                (run[i], run[i + distance]) = (a + b, a - b);
            }
            distance *= 2;
        }
    }
}

/// [`spread`] with vectors. `head`: a multiple of 16 numbers.
#[inline(always)]
pub(crate) fn spread_lanes<S: Simd>(s: S, head: &mut [f32], run: usize) {
    turn_sign_lanes(s, head, run);
    butterfly_lanes(s, head, run);
}

/// [`gather`] with vectors. `head`: a multiple of 16 numbers.
#[inline(always)]
pub(crate) fn gather_lanes<S: Simd>(s: S, head: &mut [f32], run: usize) {
    butterfly_lanes(s, head, run);
    turn_sign_lanes(s, head, run);
}

#[inline(always)]
fn turn_sign_lanes<S: Simd>(s: S, head: &mut [f32], run: usize) {
    let per_run = run / LANES;
    let (chunks, signs) = (head.as_chunks_mut::<LANES>().0, SIGNS.as_chunks::<LANES>().0);
    for (i, chunk) in chunks.iter_mut().enumerate() {
        // SAFETY: both are 16 numbers.
        unsafe { s.store(s.mul(s.load(chunk.as_ptr()), s.load(signs[i % per_run].as_ptr())), chunk.as_mut_ptr()) };
    }
}

#[inline(always)]
fn butterfly_lanes<S: Simd>(s: S, head: &mut [f32], run: usize) {
    let per_run = run / LANES;
    let chunks = head.as_chunks_mut::<LANES>().0;
    for chunk in chunks.iter_mut() {
        // SAFETY: a chunk is 16 numbers.
        unsafe {
            let x = s.butterfly::<1>(s.load(chunk.as_ptr()));
            let x = s.butterfly::<4>(s.butterfly::<2>(x));
            s.store(s.butterfly::<8>(x), chunk.as_mut_ptr());
        }
    }
    for run in chunks.chunks_exact_mut(per_run) {
        let mut distance = 1;
        while distance < per_run {
            for pairs in run.chunks_exact_mut(2 * distance) {
                let (first, second) = pairs.split_at_mut(distance);
                for (a, b) in first.iter_mut().zip(second) {
                    // SAFETY: both are 16 numbers.
                    unsafe {
                        let (x, y) = (s.load(a.as_ptr()), s.load(b.as_ptr()));
                        s.store(s.add(x, y), a.as_mut_ptr());
                        s.store(s.sub(x, y), b.as_mut_ptr());
                    }
                }
            }
            distance *= 2;
        }
    }
}
