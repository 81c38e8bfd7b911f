//! What encoders and a few decoders compute between products: norms with a mean, and activations without a gate.

use crate::Activation;
use crate::isa::Isa;
use crate::pointwise::{Shared, Vectors, share_rows};
use crate::simd::{Kernel, LANES, Simd, dispatch, sum};
use crate::threads::Pool;

/// Layer norm of each row (Ba et al., 2016): `(x - mean) / sqrt(mean((x - mean)^2) + eps) * weight + bias`.
/// `x`, `out`: f32 `[rows, weight.len()]`; `bias`: as long as `weight`, or none.
///
/// Both sums have 16 lanes, element `i` in lane `i % 16`, joined by halves; with a bias the last product and sum are
/// rounded once. The same bits for every `pool` and `isa`.
pub fn layer_norm(pool: Option<&Pool>, isa: Isa, x: &[f32], norm: Norm<'_>, out: &mut [f32]) {
    let width = norm.weight.len();
    assert!(width > 0 && x.len().is_multiple_of(width), "{} numbers are no rows of {width}", x.len());
    assert!(norm.bias.is_none_or(|bias| bias.len() == width), "the bias of a norm is as wide as its weight");
    assert_eq!(x.len(), out.len());
    let out = Shared::new(out);
    share_rows(pool, x.len() / width, 2 * width, &|rows| {
        let part = rows.start * width..rows.end * width;
        // SAFETY: each row is in one range.
        let out = unsafe { out.part(part.clone()) };
        dispatch(isa, Rows { x: &x[part], norm, out });
    });
}

/// Weights of a [`layer_norm`]. `V`: a vector of a backend, or a slice.
#[derive(Debug)]
pub struct Norm<'a, V: ?Sized = [f32]> {
    /// Multiplies; `[width]`.
    pub weight: &'a V,
    /// Is added; `[width]`.
    pub bias: Option<&'a V>,
    /// Added under the root.
    pub eps: f32,
}

impl<V: ?Sized> Clone for Norm<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V: ?Sized> Copy for Norm<'_, V> {}

/// See [`layer_norm`].
pub(crate) struct Rows<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) norm: Norm<'a>,
    pub(crate) out: &'a mut [f32],
}

impl Kernel for Rows<'_> {
    type Output = ();

    fn define(self) {
        let Rows { x, norm: Norm { weight, bias, eps }, out } = self;
        let width = weight.len();
        for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            let mut lanes = [0.0f32; LANES];
            x.iter().enumerate().for_each(|(i, &x)| lanes[i % LANES] += x);
            let mean = sum(lanes) / width as f32;
            let mut lanes = [0.0f32; LANES];
            for (i, &x) in x.iter().enumerate() {
                let far = x - mean;
                lanes[i % LANES] = far.mul_add(far, lanes[i % LANES]);
            }
            let factor = factor(sum(lanes), width, eps);
            for (i, (out, &x)) in out.iter_mut().zip(x).enumerate() {
                let normed = (x - mean) * factor;
                *out = match bias {
                    Some(bias) => normed.mul_add(weight[i], bias[i]),
                    None => normed * weight[i],
                };
            }
        }
    }

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Rows { x, norm: Norm { weight, bias, eps }, out } = self;
        let (v, width) = (Vectors(s), weight.len());
        for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            let mut total = s.splat(0.0);
            for at in (0..width).step_by(LANES) {
                total = s.add(total, v.load(x, at));
            }
            let mean = s.splat(s.sum(total) / width as f32);
            let mut squares = s.splat(0.0);
            for at in (0..width).step_by(LANES) {
                let far = s.first((width - at).min(LANES), s.sub(v.load(x, at), mean), s.splat(0.0));
                squares = s.fma(far, far, squares);
            }
            let factor = s.splat(factor(s.sum(squares), width, eps));
            for at in (0..width).step_by(LANES) {
                let normed = s.mul(s.sub(v.load(x, at), mean), factor);
                let scaled = match bias {
                    Some(bias) => s.fma(normed, v.load(weight, at), v.load(bias, at)),
                    None => s.mul(normed, v.load(weight, at)),
                };
                v.store(scaled, out, at);
            }
        }
    }
}

/// The factor of a row whose squared distances from its mean sum to `squares`.
#[inline(always)]
fn factor(squares: f32, width: usize, eps: f32) -> f32 {
    1.0 / (squares / width as f32 + eps).sqrt()
}

/// `x = activation(x)`. The same bits for every `pool` and `isa`.
pub fn activate(pool: Option<&Pool>, isa: Isa, activation: Activation, x: &mut [f32]) {
    struct Numbers<'a>(Activation, &'a mut [f32]);

    impl Kernel for Numbers<'_> {
        type Output = ();

        fn define(self) {
            let Numbers(activation, x) = self;
            x.iter_mut().for_each(|x| *x = activation.of(*x));
        }

        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            let Numbers(activation, x) = self;
            let v = Vectors(s);
            for at in (0..x.len()).step_by(LANES) {
                v.store(activation.of_lanes(s, v.load(x, at)), x, at);
            }
        }
    }

    let x = Shared::new(x);
    share_rows(pool, x.len().div_ceil(LANES), 4 * LANES, &|groups| {
        let part = groups.start * LANES..(groups.end * LANES).min(x.len());
        // SAFETY: each group of numbers is in one range.
        dispatch(isa, Numbers(activation, unsafe { x.part(part) }));
    });
}
