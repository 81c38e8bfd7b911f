//! Norms of queries and keys, made such that both have channels of one size.
//!
//! ```text
//! q weight * f   k weight / f      f a power of two, the same for both numbers of a pair that rotates
//! ```
//! A score is a sum of products, so it does not change, and neither does a bit of what is computed with it in float32
//! or bf16. What an int8 cache rounds are steps of the largest number of a head: where the norms give keys the large
//! channels that queries lack, both are rounded more coarsely than need be (SmoothQuant: Xiao et al., 2023).

/// `f` stays between this and its inverse.
const MOST: f32 = 16.0;

/// Balances the weights of the norms of queries, `[kv heads][queries' heads of each][head_dim]`, and of keys,
/// `[kv heads][head_dim]`. Norms of single heads, which are the same for all, are those of one head each. The first
/// `rotary_dim` numbers of a head rotate, `i` with `i + rotary_dim / 2`.
pub(crate) fn balance(q: &mut [f32], k: &mut [f32], head_dim: usize, rotary_dim: usize) {
    let queries_per_head = q.len() / (k.len() / head_dim);
    for (q, k) in q.chunks_exact_mut(queries_per_head).zip(k.chunks_exact_mut(head_dim)) {
        for channel in (0..rotary_dim / 2).chain(rotary_dim..head_dim) {
            let pair = [channel, if channel < rotary_dim { channel + rotary_dim / 2 } else { channel }];
            let factor = factor(size(q, head_dim, pair), size(k, head_dim, pair));
            for channel in &pair[..if pair[0] == pair[1] { 1 } else { 2 }] {
                q.iter_mut().skip(*channel).step_by(head_dim).for_each(|weight| *weight *= factor);
                k[*channel] /= factor;
            }
        }
    }
}

/// The mean square of a pair of channels over some heads.
fn size(weights: &[f32], head_dim: usize, pair: [usize; 2]) -> f32 {
    let heads = weights.chunks_exact(head_dim);
    let count = heads.len() as f32;
    heads.map(|head| pair.map(|channel| head[channel] * head[channel]).iter().sum::<f32>()).sum::<f32>() / (2.0 * count)
}

/// The power of two that is nearest to `sqrt(rms k / rms q)`.
fn factor(q_square: f32, k_square: f32) -> f32 {
    let ratio = k_square / q_square;
    if !(ratio > 0.0 && ratio.is_finite()) {
        return 1.0;
    }
    let mut factor = 1.0;
    // In fourth powers; between two powers of two, the middle is the root of 2, whose fourth power is 4.
    let fourth = |x: f32| x * x * x * x;
    while factor < MOST && ratio > 4.0 * fourth(factor) {
        factor *= 2.0;
    }
    while factor > 1.0 / MOST && 4.0 * ratio < fourth(factor) {
        factor /= 2.0;
    }
    factor
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_share_a_power_of_two_and_products_stay() {
        // Two kv heads with two heads of queries each, 8 wide, of which 6 rotate: 0 with 3, 1 with 4, 2 with 5.
        let mut q: Vec<f32> = (0..32).map(|i| 1.0 + (i % 3) as f32 / 8.0).collect();
        let mut k: Vec<f32> = (0..16).map(|i| 0.9 + (i % 5) as f32 / 16.0).collect();
        (k[1], k[8 + 6], k[8 + 7], q[2], q[8 + 2]) = (-70.0, 1e6, 0.0, 40.0, -40.0);
        let (plain_q, plain_k) = (q.clone(), k.clone());
        balance(&mut q, &mut k, 8, 6);
        let factors = |head: usize| -> Vec<f32> { (0..8).map(|d| plain_k[8 * head + d] / k[8 * head + d]).collect() };
        assert_eq!(factors(0), [1.0, 8.0, 0.25, 1.0, 8.0, 0.25, 1.0, 1.0]);
        assert_eq!(factors(1)[..7], [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, MOST]);
        for (i, (got, plain)) in q.iter().zip(&plain_q).enumerate() {
            let (head, d) = (i / 16, i % 8);
            assert_eq!(got * k[8 * head + d], plain * plain_k[8 * head + d], "{i}");
        }
        assert_eq!(k[8 + 7], 0.0);
    }

    #[test]
    fn factors_are_the_nearest_powers_of_two() {
        for (ratio, want) in [(1.0, 1.0), (1.9, 1.0), (2.1, 2.0), (7.9, 2.0), (8.1, 4.0), (0.51, 1.0), (0.49, 0.5)] {
            // Of magnitudes, not of squares.
            assert_eq!(factor(1.0, ratio * ratio), want, "{ratio}");
        }
        for (q, k) in [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0), (f32::NAN, 1.0), (f32::INFINITY, 1.0), (1.0, f32::INFINITY)]
        {
            assert_eq!(factor(q, k), 1.0, "{q} {k}");
        }
    }
}
