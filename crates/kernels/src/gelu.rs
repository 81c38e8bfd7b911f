//! GELU by the error function (Hendrycks & Gimpel, 2016): `x Phi(x)`, where `Phi` is the normal distribution.
//!
//! ```text
//! h(a) = Phi(-a) = t (C[8] + t (C[7] + ..)) exp(-a^2 / 2)    t = 1 / (1 + P a), a = |x|
//! gelu = x - x h   for x >= 0
//!        x h       for x < 0
//! ```
//! The form is that of Abramowitz & Stegun (1964, 7.1.26) with more terms: the polynomial is minimax in relative error
//! (2e-8) for `a` up to 13.2, beyond which [`exp`] is 0. The result is within 6e-8 of GELU.

use crate::simd::{Simd, exp, exp_lanes};

const P: f32 = f32::from_bits(0x3e85_1eb8);
/// From the highest power of `t` to the first. They sum to 1/2, which is `h(0)`.
const C: [f32; 9] = [
    f32::from_bits(0x3cfd_9330),
    f32::from_bits(0xbe1e_be88),
    f32::from_bits(0x3e83_1a06),
    f32::from_bits(0xbe1f_f846),
    f32::from_bits(0x3e28_957f),
    f32::from_bits(0x3d4a_7b16),
    f32::from_bits(0x3dd3_db89),
    f32::from_bits(0x3dd2_db21),
    f32::from_bits(0x3dd4_8186),
];

/// GELU. NaN for NaN.
#[inline(always)]
pub(crate) fn gelu(x: f32) -> f32 {
    let minus = 0.0 - x;
    let a = if x > minus { x } else { minus };
    let t = 1.0 / a.mul_add(P, 1.0);
    let mut p = C[0];
    for c in &C[1..] {
        p = p.mul_add(t, *c);
    }
    let xh = x * ((t * p) * exp((a * a) * -0.5));
    if x >= 0.0 { x - xh } else { xh }
}

/// [`gelu`] of 16 numbers.
#[inline(always)]
pub(crate) fn gelu_lanes<S: Simd>(s: S, x: S::V) -> S::V {
    let a = s.max(x, s.sub(s.splat(0.0), x));
    let t = s.div(s.splat(1.0), s.fma(a, s.splat(P), s.splat(1.0)));
    let mut p = s.splat(C[0]);
    for c in &C[1..] {
        p = s.fma(p, t, s.splat(*c));
    }
    let xh = s.mul(x, s.mul(s.mul(t, p), exp_lanes(s, s.mul(s.mul(a, a), s.splat(-0.5)))));
    s.at_least(x, s.splat(0.0), s.sub(x, xh), xh)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::simd::{Kernel, LANES, dispatch};

    struct Lanes([f32; LANES]);

    impl Kernel for Lanes {
        type Output = [f32; LANES];

        fn define(self) -> [f32; LANES] {
            self.0.map(gelu)
        }

        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> [f32; LANES] {
            let mut out = [0.0; LANES];
            // SAFETY: both are 16 numbers.
            unsafe { s.store(gelu_lanes(s, s.load(self.0.as_ptr())), out.as_mut_ptr()) };
            out
        }
    }

    #[test]
    fn every_instruction_set_repeats_the_definition() {
        let special = [0.0, -0.0, 1e-45, -1e-45, 13.2, -13.2, 1e9, -1e9, f32::MAX, f32::MIN, 1e-20, -1e-20];
        let mut dice = testing::Dice::new(7);
        for case in 0..4000usize {
            let x: [f32; LANES] = std::array::from_fn(|i| match case % 4 {
                0 => special[(case / 4 + i) % special.len()],
                _ => ((dice.bits() >> 40) as f32 / (1 << 24) as f32 - 0.5) * 30.0,
            });
            for isa in Isa::available() {
                let got = dispatch(isa, Lanes(x));
                assert_eq!(got.map(f32::to_bits), x.map(|x| gelu(x).to_bits()), "{isa:?}, {x:?}");
                assert!(dispatch(isa, Lanes([f32::NAN; LANES])).iter().all(|x| x.is_nan()), "{isa:?}");
            }
        }
    }

    #[test]
    fn it_is_near_the_function() {
        let mut worst = 0.0f64;
        for i in -400_000..=400_000 {
            let x = i as f32 * 5e-5;
            let want = 0.5 * f64::from(x) * libm::erfc(f64::from(-x) / std::f64::consts::SQRT_2);
            let error = (f64::from(gelu(x)) - want).abs() / want.abs().max(1.0);
            worst = worst.max(error);
        }
        assert!(worst < 1.2e-7, "{worst}");
        assert_eq!([gelu(0.0), gelu(100.0), gelu(-100.0)], [0.0, 100.0, 0.0]);
    }
}
