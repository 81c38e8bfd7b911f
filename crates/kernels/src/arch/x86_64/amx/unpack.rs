//! Int4 weights as int8 tiles, a K block at a time: `ratio * level` where that fits int8, else two digits of it. These
//! take some 280 cycles a step of a pair, so they are made in [`Part`]s beside the products of the K block before.

use super::multiply::ask;
use crate::quant::{INT4_RATIOS, INT4_TILE, TILE, WeightClass};
use std::arch::x86_64::*;
use std::ops::Range;

/// Unpacks int4 steps of even levels and ratios up to 15 to int8 tiles of `ratio * q`, `[steps][2]`.
///
/// Two weights at a time: with `a = |ratio|` and nibbles `x`, `y`, `(x + 256 y) * a` leaves `x * a` and `y * a` in
/// their bytes, since neither exceeds 15 * 15. A nibble is `q + 8`, so `8 a` is subtracted; for a negative ratio the
/// nibble is inverted first, which makes it `7 - q`, and `7 a` is subtracted.
///
/// # Safety
/// `to` has room for the steps, aligned to 64; the CPU has AVX-512.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn whole(steps: &[u8], to: *mut u8) {
    let nibble = _mm512_set1_epi8(15);
    for (step, from) in steps.chunks_exact(WeightClass::Int4.step_bytes()).enumerate() {
        for part in 0..4 {
            // Strip `part / 2`, group `part % 2`: half a tile.
            // SAFETY: a step is 64 ratios and two tiles of 512 bytes, and becomes two of 1024.
            unsafe {
                let ratios = _mm512_cvtepi8_epi32(_mm_loadu_si128(from.as_ptr().add(part * 16).cast()));
                let inverted = _mm512_srai_epi32::<31>(ratios);
                let factor = _mm512_abs_epi32(ratios);
                let excess = _mm512_add_epi32(_mm512_slli_epi32::<3>(factor), _mm512_mullo_epi32(inverted, factor));
                let factor = _mm512_or_si512(factor, _mm512_slli_epi32::<16>(factor));
                let excess = _mm512_or_si512(excess, _mm512_slli_epi32::<8>(excess));
                let excess = _mm512_or_si512(excess, _mm512_slli_epi32::<16>(excess));
                let from = from.as_ptr().add(INT4_RATIOS + part * (INT4_TILE / 2));
                let to = to.add(step * 2 * TILE + part * (TILE / 2));
                for line in 0..4 {
                    let packed = _mm512_xor_si512(_mm512_loadu_si512(from.add(line * 64).cast()), inverted);
                    let quads = [packed, _mm512_srli_epi16::<4>(packed)];
                    for (quad, nibbles) in quads.map(|quad| _mm512_and_si512(quad, nibble)).into_iter().enumerate() {
                        let products = _mm512_sub_epi8(_mm512_mullo_epi16(nibbles, factor), excess);
                        _mm512_store_si512(to.add((line * 2 + quad) * 64).cast(), products);
                    }
                }
            }
        }
    }
}

/// Half a tile of each digit, to be unpacked.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Part {
    ratios: *const u8,
    codes: *const u8,
    to: *mut u8,
}

/// The parts that unpack int4 steps of any levels and ratios to two int8 tiles each, `[2 strips][steps][high, low]`:
/// `ratio * level = 256 * high + low`, with low digits in -128..=127. The product has 14 bits, so high ones are in
/// -32..=32. `to` has room for the steps and is aligned to 64.
pub(super) fn parts(steps: &[u8], to: *mut u8) -> impl Iterator<Item = Part> {
    let steps = steps.chunks_exact(WeightClass::Int4.step_bytes());
    let strip = steps.len() * 2 * TILE;
    steps.enumerate().flat_map(move |(step, from)| {
        // Strip `part / 2`, group `part % 2`. A step is 64 ratios and two tiles of 512 bytes.
        (0..4).map(move |part| Part {
            ratios: from[part * 16..].as_ptr(),
            codes: from[INT4_RATIOS + part * (INT4_TILE / 2)..].as_ptr(),
            to: to.wrapping_add(part / 2 * strip + step * 2 * TILE + part % 2 * (TILE / 2)),
        })
    })
}

/// Bytes from codes to those whose prefetch they make: a K block. The next visit's are unpacked in this one, so they
/// have to be there already.
const AHEAD: usize = 8 * WeightClass::Int4.step_bytes();

/// Unpacks a part.
///
/// # Safety
/// It is of [`parts`], whose memory is there; the CPU has AVX-512.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn digits(Part { ratios: from, codes, to }: Part, levels: &[i8; 16]) {
    // SAFETY: 16 bytes.
    let levels = _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(levels.as_ptr().cast()) });
    let nibble = _mm512_set1_epi8(15);
    // SAFETY: the caller's promise: 16 ratios, four lines, and eight of each digit.
    unsafe {
        let ratios = ratios(from);
        for line in 0..4 {
            ask(codes.wrapping_add(line * 64 + AHEAD));
            let packed = _mm512_loadu_si512(codes.add(line * 64).cast());
            for (quad, codes) in [packed, _mm512_srli_epi16::<4>(packed)].into_iter().enumerate() {
                let level = _mm512_shuffle_epi8(levels, _mm512_and_si512(codes, nibble));
                let (high, low) = two_digits(level, ratios);
                let to = to.add((line * 2 + quad) * 64);
                _mm512_store_si512(to.cast(), high);
                _mm512_store_si512(to.add(TILE).cast(), low);
            }
        }
    }
}

const ODD_WORDS: __mmask32 = 0xaaaa_aaaa;
const ODD_BYTES: __mmask64 = 0xaaaa_aaaa_aaaa_aaaa;

/// The ratios of 16 columns, each twice as 16 bits.
///
/// # Safety
/// There are 16.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn ratios(from: *const u8) -> __m512i {
    // SAFETY: the caller's promise.
    let ratios = _mm512_cvtepi8_epi32(unsafe { _mm_loadu_si128(from.cast()) });
    _mm512_mask_blend_epi16(ODD_WORDS, ratios, _mm512_slli_epi32::<16>(ratios))
}

/// High and low digits of the products of bytes with 16-bit ratios: the low one is the product's low byte as a signed
/// number, the high one what is left, which rounds it by 128.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn two_digits(bytes: __m512i, ratios: __m512i) -> (__m512i, __m512i) {
    let half = _mm512_set1_epi16(128);
    let even = _mm512_mullo_epi16(_mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(bytes)), ratios);
    let odd = _mm512_mullo_epi16(_mm512_srai_epi16::<8>(bytes), ratios);
    let low = _mm512_mask_blend_epi8(ODD_BYTES, even, _mm512_slli_epi16::<8>(odd));
    let high = _mm512_srli_epi16::<8>(_mm512_add_epi16(even, half));
    (_mm512_mask_blend_epi8(ODD_BYTES, high, _mm512_add_epi16(odd, half)), low)
}

/// `[rows][32]` sums of 256 times the high digits and the low ones, from `[2 strips][32][high, low]` of them.
///
/// # Safety
/// Both have room and are aligned to 64; the CPU has AVX-512.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn join(from: *const u32, rows: Range<usize>, to: *mut u32) {
    for strip in 0..2 {
        for (to_row, row) in rows.clone().enumerate() {
            // SAFETY: the caller's promise.
            unsafe {
                let from = from.add((strip * 32 + row) * 32);
                let high = _mm512_slli_epi32::<8>(_mm512_load_si512(from.cast()));
                let sum = _mm512_add_epi32(high, _mm512_load_si512(from.add(16).cast()));
                _mm512_store_si512(to.add(to_row * 32 + strip * 16).cast(), sum);
            }
        }
    }
}
