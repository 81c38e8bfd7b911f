//! Seeded randomness: SplitMix (Steele, Lea & Flood, 2014), and the distributions of loads.

/// A random stream, determined by its seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// 64 uniform bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Uniform in `(0, 1]`.
    pub fn uniform(&mut self) -> f64 {
        ((self.bits() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// Uniform in `0..below`.
    pub fn below(&mut self, below: u64) -> u64 {
        ((self.bits() as u128 * below as u128) >> 64) as u64
    }

    /// Exponential with mean 1.
    pub fn exponential(&mut self) -> f64 {
        -self.uniform().ln()
    }

    /// Normal with mean 0 and deviation 1 (Box & Muller, 1958).
    fn normal(&mut self) -> f64 {
        let (radius, angle) = ((2.0 * self.exponential()).sqrt(), std::f64::consts::TAU * self.uniform());
        radius * angle.cos()
    }

    /// Gamma with mean 1 and coefficient of variation `cv` (Marsaglia & Tsang, 2000); 1 for `cv` 0.
    pub fn gamma(&mut self, cv: f64) -> f64 {
        if cv == 0.0 {
            return 1.0;
        }
        let shape = 1.0 / (cv * cv);
        // Below shape 1: draw at shape + 1 and scale down.
        let (at, shrink) = if shape < 1.0 { (shape + 1.0, self.uniform().powf(1.0 / shape)) } else { (shape, 1.0) };
        let d = at - 1.0 / 3.0;
        loop {
            let x = self.normal();
            let v = (1.0 + x / (9.0 * d).sqrt()).powi(3);
            if v > 0.0 && self.uniform().ln() < 0.5 * x * x + d - d * v + d * v.ln() {
                return d * v * shrink / shape;
            }
        }
    }
}

/// A hash of a number.
pub fn mix(number: u64) -> u64 {
    let a = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let b = (a ^ (a >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    b ^ (b >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_have_the_mean_and_the_spread_that_were_asked_for() {
        for cv in [0.0, 0.5, 1.0, 2.0] {
            let mut random = Random::new(7);
            let draws: Vec<f64> = (0..200_000).map(|_| random.gamma(cv)).collect();
            let mean = draws.iter().sum::<f64>() / draws.len() as f64;
            let variance = draws.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / draws.len() as f64;
            assert!((mean - 1.0).abs() < 0.02, "cv {cv}: mean {mean}");
            assert!((variance.sqrt() - cv).abs() < 0.05, "cv {cv}: {}", variance.sqrt());
        }
        let mut random = Random::new(7);
        let mean = (0..200_000).map(|_| random.exponential()).sum::<f64>() / 200_000.0;
        assert!((mean - 1.0).abs() < 0.02, "{mean}");
    }
}
