//! Instructions for which the standard library has no stable function, each one line of assembly, and what is made of a
//! few.
//!
//! Only those that round once, or not at all, are here: products of pairs of bf16 by one instruction (and of matrices
//! of them) round to odd, flush denormals, or add the products first, as the CPU's mode says, and estimates of a
//! quotient or a root are no quotient and no root. A tidy test refuses their names in assembly.

use std::arch::aarch64::*;
use std::arch::asm;

/// One instruction that accumulates, `c = op(c, a, b)`: of whole registers, or of `a` and one lane of `b`.
macro_rules! accumulate {
    ($(#[$doc:meta])* $name:ident $features:literal $text:literal ($c:ty, $a:ty, $b:ty)) => {
        $(#[$doc])*
        #[inline]
        #[target_feature(enable = $features)]
        pub(super) fn $name(mut c: $c, a: $a, b: $b) -> $c {
            // SAFETY: the features are there; only registers are touched.
            unsafe {
                asm!($text, c = inout(vreg) c, a = in(vreg) a, b = in(vreg) b,
                    options(pure, nomem, nostack, preserves_flags));
            }
            c
        }
    };
    ($(#[$doc:meta])* $name:ident $features:literal $text:literal ($c:ty, $a:ty, $b:ty) lane of $class:ident) => {
        $(#[$doc])*
        #[inline]
        #[target_feature(enable = $features)]
        pub(super) fn $name<const LANE: i32>(mut c: $c, a: $a, b: $b) -> $c {
            // SAFETY: as above.
            unsafe {
                asm!($text, c = inout(vreg) c, a = in(vreg) a, b = in($class) b, lane = const LANE,
                    options(pure, nomem, nostack, preserves_flags));
            }
            c
        }
    };
}

accumulate! {
    /// Per lane: four products of signed bytes.
    sdot "neon,dotprod" "sdot {c:v}.4s, {a:v}.16b, {b:v}.16b" (int32x4_t, int8x16_t, int8x16_t)
}
accumulate! {
    /// Per lane: its four bytes of `a` times the four of one lane of `b`.
    sdot_lane "neon,dotprod" "sdot {c:v}.4s, {a:v}.16b, {b:v}.4b[{lane}]" (int32x4_t, int8x16_t, int8x16_t) lane of vreg
}
accumulate! {
    /// Two rows of 8 signed bytes each times two others: row 0 by both, row 1 by both.
    smmla "neon,i8mm" "smmla {c:v}.4s, {a:v}.16b, {b:v}.16b" (int32x4_t, int8x16_t, int8x16_t)
}
accumulate! {
    /// Per lane: the even bf16 of `a` times one bf16 of `b`, added to `c`; rounded once.
    bfmlalb "neon,bf16" "bfmlalb {c:v}.4s, {a:v}.8h, {b:v}.h[{lane}]" (float32x4_t, uint16x8_t, uint16x8_t)
    lane of vreg_low16
}
accumulate! {
    /// The same of the odd ones.
    bfmlalt "neon,bf16" "bfmlalt {c:v}.4s, {a:v}.8h, {b:v}.h[{lane}]" (float32x4_t, uint16x8_t, uint16x8_t)
    lane of vreg_low16
}

/// Prefetches a line into L2; any address is allowed.
#[inline(always)]
pub(super) fn prefetch_l2(address: *const u8) {
    // SAFETY: a prefetch is a hint, never a fault.
    unsafe { asm!("prfm pldl2keep, [{}]", in(reg) address, options(nostack, readonly, preserves_flags)) };
}

/// Prefetches a line into the nearest cache; any address is allowed.
#[inline(always)]
pub(crate) fn prefetch(address: *const u8) {
    // SAFETY: as above.
    unsafe { asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, readonly, preserves_flags)) };
}
