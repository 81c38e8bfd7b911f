//! Int4 weights as int8 tiles, a K block at a time: `ratio * level` where that fits int8, else two digits of it. These
//! take some 280 cycles a step of a pair, so they are made in [`Part`]s beside the products of the K block before.

use super::multiply::TileBlock;
use crate::quant::{INT4_RATIOS, INT4_TILE, TILE, WeightClass};
use std::arch::asm;
use std::arch::x86_64::*;

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

/// Bytes from codes to those whose prefetch they make: a K block.
const AHEAD: usize = 8 * WeightClass::Int4.step_bytes();

/// The instructions of [`digits`] for a line: `$codes` become levels, these two digits.
#[rustfmt::skip]
macro_rules! quad {
    ($codes:literal, $at:literal) => {
        concat!(
            "vpandq {", $codes, "}, {", $codes, "}, {nibble}\nvpshufb {", $codes, "}, {levels}, {", $codes, "}\n",
            "vpsllw {even}, {", $codes, "}, 8\nvpsraw {even}, {even}, 8\nvpmullw {even}, {even}, {ratios}\n",
            "vpsraw {", $codes, "}, {", $codes, "}, 8\nvpmullw {", $codes, "}, {", $codes, "}, {ratios}\n",
            "vpsllw {low}, {", $codes, "}, 8\nvpblendmb {low}{{{odd_bytes}}}, {even}, {low}\n",
            "vmovdqa64 zmmword ptr [{q} + 128*\\i + ", $at, " + 1024], {low}\n",
            "vpaddw {even}, {even}, {half}\nvpsrlw {even}, {even}, 8\nvpaddw {", $codes, "}, {", $codes, "}, {half}\n",
            "vpblendmb {even}{{{odd_bytes}}}, {even}, {", $codes, "}\n",
            "vmovdqa64 zmmword ptr [{q} + 128*\\i + ", $at, "], {even}\n",
        )
    };
}

/// [`int8_two`](super::multiply::int8_two) for two digits, with [`digits`] of a part beside the products of each step,
/// as long as there are parts; returns how many it unpacked.
///
/// # Safety
/// As for both; `block.to` is `[32][32]`.
#[rustfmt::skip]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn multiply_beside(block: TileBlock, parts: &[Part], levels: &[i8; 16]) -> usize {
    let parts = &parts[..parts.len().min(block.steps)];
    // SAFETY: the caller's promise; every register used is declared; prefetching past the end is harmless.
    unsafe {
        asm!(
            "test {c}, {c}", "jnz 3f",
            "tilezero tmm4", "tilezero tmm5", "tilezero tmm6", "tilezero tmm7", "jmp 2f",
            "3:",
            "tileloadd tmm4, [{c} + {line}*2]", "tileloadd tmm5, [{c} + {line}*2 + 64]",
            "tileloadd tmm6, [{c} + {line}*2 + 2048]", "tileloadd tmm7, [{c} + {line}*2 + 2112]",
            "2:",
            "tileloadd tmm0, [{x0} + {x_stride}*1]", "tileloadd tmm2, [{w} + {line}*1]", "tdpbssd tmm4, tmm0, tmm2",
            "tileloadd tmm3, [{w} + {line}*1 + 1024]", "tdpbssd tmm5, tmm0, tmm3",
            "tileloadd tmm1, [{x1} + {x_stride}*1]", "tdpbssd tmm6, tmm1, tmm2", "tdpbssd tmm7, tmm1, tmm3",
            "cmp {part}, {end}", "je 4f",
            "mov {c}, [{part}]", "vpmovsxbd {ratios}, xmmword ptr [{c}]", "vpslld {even}, {ratios}, 16",
            "vpblendmw {ratios}{{{odd_words}}}, {ratios}, {even}",
            "mov {c}, [{part} + 8]", "mov {q}, [{part} + 16]", "add {part}, {part_bytes}",
            ".irp i, 0, 1, 2, 3",
            "prefetcht1 [{c} + 64*\\i + {ahead}]",
            "vmovdqu64 {codes}, zmmword ptr [{c} + 64*\\i]", "vpsrlw {more}, {codes}, 4",
            quad!("codes", "0"), quad!("more", "64"),
            ".endr",
            "4:",
            "add {x0}, 64", "add {x1}, 64", "add {w}, 2048", "dec {steps}", "jnz 2b",
            "tilestored [{to} + {line}*2], tmm4", "tilestored [{to} + {line}*2 + 64], tmm5",
            "tilestored [{to} + {line}*2 + 2048], tmm6", "tilestored [{to} + {line}*2 + 2112], tmm7",
            x0 = inout(reg) block.x => _, x1 = inout(reg) block.x.add(16 * block.x_stride) => _,
            x_stride = in(reg) block.x_stride, w = inout(reg) block.tiles => _, line = in(reg) 64usize,
            c = inout(reg) block.before => _, to = in(reg) block.to, steps = inout(reg) block.steps => _,
            part = inout(reg) parts.as_ptr() => _, end = in(reg) parts.as_ptr_range().end, q = out(reg) _,
            part_bytes = const size_of::<Part>(), ahead = const AHEAD,
            levels = in(zmm_reg) _mm512_broadcast_i32x4(_mm_loadu_si128(levels.as_ptr().cast())),
            nibble = in(zmm_reg) _mm512_set1_epi8(15), half = in(zmm_reg) _mm512_set1_epi16(128),
            odd_words = in(kreg) ODD_WORDS, odd_bytes = in(kreg) ODD_BYTES,
            ratios = out(zmm_reg) _, codes = out(zmm_reg) _, more = out(zmm_reg) _, even = out(zmm_reg) _,
            low = out(zmm_reg) _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack)
        );
    }
    parts.len()
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

/// `[32][32]` sums of 256 times the high digits and the low ones, from `[2 strips][32][high, low]` of them.
///
/// # Safety
/// Both have room and are aligned to 64; the CPU has AVX-512.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn join(from: *const u32, to: *mut u32) {
    for strip in 0..2 {
        for row in 0..32 {
            // SAFETY: the caller's promise.
            unsafe {
                let from = from.add((strip * 32 + row) * 32);
                let high = _mm512_slli_epi32::<8>(_mm512_load_si512(from.cast()));
                let sum = _mm512_add_epi32(high, _mm512_load_si512(from.add(16).cast()));
                _mm512_store_si512(to.add(row * 32 + strip * 16).cast(), sum);
            }
        }
    }
}
