//! The two accumulation orders for products of 16-bit numbers.
//!
//! ```text
//! pairs   C = 0; for each pair p in the order of K:
//!             C = fma(a[2p], b[2p], fma(a[2p+1], b[2p+1], C))              vdpbf16ps of AVX-512
//! tiles   C = 0; for each 32-deep step: e = o = 0; for each of its pairs
//!             e = fma(a[2p], b[2p], e); o = fma(a[2p+1], b[2p+1], o)
//!         then C = C + (e + o)                                             TDPBF16PS of AMX
//! ```
//! K is padded with zeros to 32. Every path computes both orders bit for bit; which one is fast depends on the machine.
//! The same inputs give results that differ in their last bits between the orders, so machines whose results must
//! agree must be configured with the same one.
//!
//! **Padding changes nothing.** `C` begins as +0, and a sum rounded to nearest is -0 only if both terms are, so `C`
//! never becomes -0; then `fma(0, 0, C)` is `C`. For the same reason a masked token with weight +0 changes nothing.
//!
//! **Neither order produces a denormal.** Both instructions flush denormal inputs and outputs to zero; a fused
//! multiply-add does not. An activation is 0 or at least 2^-40, a weight 0 or at least 2^-60, with 8 significant bits:
//! multiples of 2^-47 and of 2^-67. So each product is a multiple of 2^-114. If `C` is one, then so is the exact sum
//! that a fused multiply-add rounds; rounding keeps it, or moves it to a multiple of a larger power of two. By
//! induction every intermediate, in either order, is a multiple of 2^-114, and the smallest nonzero one is far above
//! 2^-126, below which numbers are denormal.

use crate::arch::native;
use crate::isa::Isa;

/// Accumulation order of products of 16-bit numbers: see the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum AccumulationOrder {
    /// The order of `vdpbf16ps`: pair after pair in one chain.
    Vdpbf16,
    /// The order of `TDPBF16PS`: 32-deep steps of an even and an odd chain.
    Amx,
}

impl AccumulationOrder {
    /// Both orders.
    pub const ALL: [AccumulationOrder; 2] = [AccumulationOrder::Vdpbf16, AccumulationOrder::Amx];

    /// Depth of one tile step.
    pub(crate) const STEP: usize = 32;

    /// The fastest order on this machine: tiles if AMX exists and the OS permits it, else pairs. A lower
    /// [`Isa`] does not change it.
    pub fn best() -> AccumulationOrder {
        if native::tiles(Isa::best()).is_some() { AccumulationOrder::Amx } else { AccumulationOrder::Vdpbf16 }
    }

    /// Display name: `pairs` or `tiles`.
    pub fn name(self) -> &'static str {
        match self {
            AccumulationOrder::Vdpbf16 => "pairs",
            AccumulationOrder::Amx => "tiles",
        }
    }

    /// Parses a name that [`AccumulationOrder::name`] returned.
    pub fn from_name(name: &str) -> Option<AccumulationOrder> {
        AccumulationOrder::ALL.into_iter().find(|arithmetic| arithmetic.name() == name)
    }

    /// The definition: the product of bf16 numbers `a(k)` and `b(k)`, `k` in `0..len`.
    pub(crate) fn dot(self, len: usize, a: impl Fn(usize) -> f32, b: impl Fn(usize) -> f32) -> f32 {
        // An odd last element is paired with a zero.
        let at = |k: usize| if k < len { (a(k), b(k)) } else { (0.0, 0.0) };
        let add = |k: usize, sum: f32| {
            let (a, b) = at(k);
            a.mul_add(b, sum)
        };
        let mut total = 0f32;
        match self {
            AccumulationOrder::Vdpbf16 => {
                for even in (0..len).step_by(2) {
                    total = add(even, add(even + 1, total));
                }
            }
            AccumulationOrder::Amx => {
                for step in (0..len).step_by(Self::STEP) {
                    let (mut even, mut odd) = (0f32, 0f32);
                    for k in (step..len.min(step + Self::STEP)).step_by(2) {
                        even = add(k, even);
                        odd = add(k + 1, odd);
                    }
                    total += even + odd;
                }
            }
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::{SMALLEST_ACTIVATION, SMALLEST_WEIGHT};
    use testing::Dice;

    struct Random(Dice);

    impl Random {
        /// A bf16 number of at least `smallest`, a power of two, and less than `2^binades` times that.
        fn bf16(&mut self, smallest: f32, binades: u64) -> f32 {
            let bits = self.0.bits();
            let magnitude = smallest.to_bits() + (((bits >> 32) % binades) << 23) as u32 + ((bits as u32 & 0x7f) << 16);
            f32::from_bits(magnitude | (bits as u32 & 0x8000_0000))
        }

        /// Two pairs and an initial sum.
        fn case(&mut self, kind: usize) -> (f32, [f32; 2], [f32; 2]) {
            let largest = f32::from_bits(0x7f7f_0000);
            let special = [0.0, -0.0, 1.0, -1.0, 3.0, f32::INFINITY, -f32::INFINITY, f32::NAN, largest, -largest];
            let (a, b) = match kind {
                // The smallest magnitudes.
                0 => (
                    [(); 2].map(|()| self.bf16(SMALLEST_ACTIVATION, 2)),
                    [(); 2].map(|()| self.bf16(SMALLEST_WEIGHT, 2)),
                ),
                1 => ([(); 2].map(|()| self.bf16(0.125, 6)), [(); 2].map(|()| self.bf16(0.125, 6))),
                2 => (
                    [(); 2].map(|()| self.bf16(SMALLEST_ACTIVATION, 80)),
                    [(); 2].map(|()| self.bf16(SMALLEST_WEIGHT, 90)),
                ),
                // Products that cancel each other, or all but their last bit.
                3 => {
                    let (a, b) = (self.bf16(0.125, 20), self.bf16(0.125, 20));
                    let off = (self.0.bits() >> 60 & 1) as u32;
                    ([a, f32::from_bits(a.to_bits() ^ 0x8000_0000 ^ (off << 16))], [b, b])
                }
                _ => ([(); 2].map(|()| self.0.pick(&special)), [(); 2].map(|()| self.0.pick(&special))),
            };
            let products = [a[0] * b[0], a[1] * b[1]];
            let c = match self.0.bits() >> 61 {
                0 => 0.0,
                1 => -products[0],
                2 => -products[1],
                3 => -(products[0] + products[1]),
                4 => products[0] * 4_097.0,
                _ if kind > 3 => self.0.pick(&special),
                _ => -products[1] * (1.0 + f32::EPSILON),
            };
            (c, a, b)
        }
    }

    fn pair(c: f32, a: [f32; 2], b: [f32; 2]) -> f32 {
        a[0].mul_add(b[0], a[1].mul_add(b[1], c))
    }

    #[test]
    fn names_are_read_back() {
        for arithmetic in AccumulationOrder::ALL {
            assert_eq!(AccumulationOrder::from_name(arithmetic.name()), Some(arithmetic));
        }
        assert_eq!(AccumulationOrder::from_name("threes"), None);
    }

    #[test]
    fn the_orders_are_those_of_the_definition() {
        let (a, b) = ([1e8, 1.0, -1e8, 3.0, 5.0], [1.0, 1.0, 1.0, 1.0, 1.0]);
        let dot = |arithmetic: AccumulationOrder, len| arithmetic.dot(len, |k| a[k], |k| b[k]);
        assert_eq!(
            dot(AccumulationOrder::Vdpbf16, 5),
            pair(pair(pair(0.0, [1e8, 1.0], [1.0; 2]), [-1e8, 3.0], [1.0; 2]), [5.0, 0.0], [1.0, 0.0])
        );
        // 1e8 absorbs the 1 and the 3 that are added to it; the odd chain keeps them.
        assert_eq!((dot(AccumulationOrder::Vdpbf16, 4), dot(AccumulationOrder::Amx, 4)), (0.0, 4.0));
        assert_eq!((dot(AccumulationOrder::Vdpbf16, 5), dot(AccumulationOrder::Amx, 5)), (5.0, 9.0));
    }

    #[test]
    fn no_sum_is_denormal_or_minus_zero() {
        let mut random = Random(Dice::new(1));
        for _ in 0..200_000 {
            // A few of the smallest magnitudes, so that many sums cancel.
            let tiny = |random: &mut Random, smallest: f32| {
                let sign = if random.0.bits() >> 63 == 0 { 1.0 } else { -1.0 };
                [0.0, sign * smallest, sign * smallest * (1.0 + 1.0 / 128.0)][(random.0.bits() >> 33) as usize % 3]
            };
            let mut sum = 0f32;
            for _ in 0..8 {
                let (a, b) = (tiny(&mut random, SMALLEST_ACTIVATION), tiny(&mut random, SMALLEST_WEIGHT));
                sum = a.mul_add(b, sum);
                assert!(sum.to_bits() == 0 || sum.is_normal(), "{sum:e}");
                assert!(sum == 0.0 || sum.abs() >= 2f32.powi(-114), "{sum:e}");
            }
        }
    }

    /// The pseudo-code of both vendors' manuals: fused multiply-adds of the odd and then the even product.
    #[test]
    fn the_instruction_computes_pairs() {
        let mut random = Random(Dice::new(7));
        for round in 0..400_000 {
            let cases: [_; 16] = std::array::from_fn(|i| random.case((round + i) % 5));
            let packed = |x: [f32; 2]| x[0].to_bits() >> 16 | (x[1].to_bits() & 0xffff_0000);
            let (c, a, b) =
                (cases.map(|case| case.0), cases.map(|case| packed(case.1)), cases.map(|case| packed(case.2)));
            let Some(got) = native::multiply_pairs(&c, &a, &b) else {
                return eprintln!("skipped: no instruction with bf16 operands");
            };
            for (&(c, a, b), got) in cases.iter().zip(got) {
                let want = pair(c, a, b);
                let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
                assert!(same, "{c:e} + {a:?} x {b:?} is {got:e}, by definition {want:e}");
            }
        }
    }
}
