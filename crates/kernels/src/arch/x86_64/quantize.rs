//! The loops that turn a row of activations into digits, in AVX-512: two passes over the row, 64 numbers at a time.

use crate::quant::{PEAK_LANES, Plain, QUAD, QuantLoops};
use std::arch::x86_64::*;

/// Numbers of one turn of a loop.
const TURN: usize = 64;

/// The loops; holding them proves that the CPU has the instructions.
#[derive(Clone, Copy)]
pub(super) struct Loops(());

impl Loops {
    /// # Safety
    /// A proof of AVX-512 exists.
    #[inline(always)]
    pub(super) unsafe fn new() -> Loops {
        Loops(())
    }
}

impl QuantLoops for Loops {
    #[inline(always)]
    fn peaks(self, x: &[f32], peaks: &mut [u16]) -> u32 {
        let (turns, rest) = x.as_chunks::<TURN>();
        let (peaks, last_peaks) = peaks.split_at_mut(turns.len() * (TURN / QUAD));
        // SAFETY: holding the loops proves that the CPU has the instructions; a turn is 64 numbers and has 16 peaks.
        unsafe {
            let mut most = _mm512_setzero_si512();
            for (x, to) in turns.iter().zip(peaks.as_chunks_mut::<{ TURN / QUAD }>().0) {
                let at = x.as_ptr();
                let first = max_of_magnitudes(_mm512_loadu_ps(at), _mm512_loadu_ps(at.add(16)));
                let second = max_of_magnitudes(_mm512_loadu_ps(at.add(32)), _mm512_loadu_ps(at.add(48)));
                let quads = max_of_magnitudes(_mm512_castsi512_ps(first), _mm512_castsi512_ps(second));
                most = _mm512_max_epu32(most, quads);
                let up = _mm512_srli_epi32::<16>(_mm512_add_epi32(quads, _mm512_set1_epi32(0xffff)));
                let up = _mm512_min_epu32(up, _mm512_set1_epi32(0x7f7f));
                // Lane `4 * i + j` has quad `4 * j + i`.
                let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
                let up = _mm512_permutexvar_epi32(order, up);
                _mm256_storeu_si256(to.as_mut_ptr().cast(), _mm512_cvtepi32_epi16(up));
            }
            Plain.peaks(rest, last_peaks).max(_mm512_reduce_max_epu32(most))
        }
    }

    #[inline(always)]
    fn at_least(self, peaks: &[u16; PEAK_LANES], bound: u16) -> u32 {
        // SAFETY: holding the loops proves that the CPU has the instructions; 64 bytes are loaded.
        unsafe { _mm512_cmpge_epu16_mask(_mm512_loadu_si512(peaks.as_ptr().cast()), _mm512_set1_epi16(bound as i16)) }
    }

    #[inline(always)]
    fn low_digits(self, x: &[f32], inverse: f32, low: &mut [i8]) {
        let (turns, rest) = x.as_chunks::<TURN>();
        let (low, last) = low.split_at_mut(turns.len() * TURN);
        for (x, low) in turns.iter().zip(low.as_chunks_mut::<TURN>().0) {
            // SAFETY: holding the loops proves that the CPU has the instructions; a turn is 64 numbers, and as many
            // digits.
            unsafe {
                let (mut integers, inverse) = ([_mm512_setzero_si512(); 4], _mm512_set1_ps(inverse));
                for (i, integers) in integers.iter_mut().enumerate() {
                    *integers = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x.as_ptr().add(16 * i)), inverse));
                }
                let [a, b, c, d] = integers;
                let bytes = _mm512_packs_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
                // Packing stays within 128 bits: lane `4 * i + j` has the four numbers from `16 * j + 4 * i`.
                let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
                _mm512_storeu_si512(low.as_mut_ptr().cast(), _mm512_permutexvar_epi32(order, bytes));
            }
        }
        Plain.low_digits(rest, inverse, last);
    }
}

/// The larger magnitudes of neighbours, as bits: in each 128 bits two of `a`, then two of `b`.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn max_of_magnitudes(a: __m512, b: __m512) -> __m512i {
    let magnitude = _mm512_set1_epi32(0x7fff_ffff);
    let even = _mm512_castps_si512(_mm512_shuffle_ps::<0b10_00_10_00>(a, b));
    let odd = _mm512_castps_si512(_mm512_shuffle_ps::<0b11_01_11_01>(a, b));
    _mm512_max_epu32(_mm512_and_si512(even, magnitude), _mm512_and_si512(odd, magnitude))
}

#[cfg(test)]
mod tests {
    use super::super::proofs::Avx512;
    use super::*;
    use crate::quant::{Digits, Outlier, PLANES, max_outliers, quantize_by};

    #[test]
    fn rows_of_every_length_have_the_digits_of_the_definition() {
        if Avx512::detect().is_none() {
            return;
        }
        // SAFETY: there is a proof.
        let loops = unsafe { Loops::new() };
        let mut dice = testing::Dice::new(7);
        let special = [0.0, -0.0, 1e-45, 1e30, -3.4e38, 300.0, f32::INFINITY, f32::NAN];
        for (case, len) in (1..=400).chain((1..=400).rev()).enumerate() {
            let mut x: Vec<f32> = (0..len).map(|_| (dice.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0).collect();
            if case % 3 > 0 {
                let at = dice.bits() as usize % len;
                x[at] = special[case % special.len()];
            }
            let digits = |is_plain: bool| {
                let mut low = vec![9; len.next_multiple_of(64)];
                let mut lists = [(); PLANES].map(|()| vec![Outlier::NONE; max_outliers(len)]);
                let mut peaks = vec![9; len.div_ceil(QUAD).next_multiple_of(PEAK_LANES)];
                let [middle, high] = &mut lists;
                let to = Digits { low: &mut low, outliers: [middle, high], peaks: &mut peaks };
                let (scale, counts) = if is_plain { quantize_by(Plain, &x, to) } else { quantize_by(loops, &x, to) };
                (scale.to_bits(), counts, low, lists)
            };
            assert_eq!(digits(false), digits(true), "case {case}: {x:?}");
        }
    }
}
