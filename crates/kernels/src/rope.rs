//! Rotary position embedding (Su et al., 2021): tables of cos and sin by position.
//!
//! ```text
//! inv_freq[i]   = theta^(-2i / rotary_dim), then scaled for long contexts
//! cos[p][i]     = cos(p * inv_freq[i]) * attention_factor       f64, rounded to f32 at the end
//! ```
//! Where queries grow with positions, a factor of each position is beside the angles:
//!
//! ```text
//! factor[p]     = 1 + beta ln(1 + floor(p / original))
//! ```
//! `rotary_dim` is the head's width, or less where only the first elements of a head rotate (Phi-4-mini).
//! Everything runs in f64 with the `libm` crate, not the platform's, so that the bits are the same on every machine.
//! Frequencies are rounded to f32 once, because models were trained with f32 frequencies.

use crate::mem::{Buffer, OutOfMemory};
use std::f64::consts::PI;

/// Scaling of frequencies for contexts longer than the original one. Fields as in the `rope_scaling` of a Hugging Face
/// configuration.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// No scaling.
    None,
    /// All frequencies divided by `factor` (position interpolation: Chen et al., 2023).
    Linear {
        /// Context extension factor.
        factor: f64,
    },
    /// Low frequencies divided by `factor`, high ones kept, a ramp between (Llama 3.1: Dubey et al., 2024).
    Llama3 {
        /// Divisor of low frequencies.
        factor: f64,
        /// Fewer turns than this over the original context make a frequency low.
        low_freq_factor: f64,
        /// More turns than this over the original context make a frequency high.
        high_freq_factor: f64,
        /// The original context.
        original_max_position: usize,
    },
    /// Ramp over dimensions between kept and divided frequencies, and a temperature (YaRN: Peng et al., 2023).
    Yarn {
        /// Divisor of low frequencies.
        factor: f64,
        /// The original context.
        original_max_position: usize,
        /// Dimensions with more turns than this over the original context are kept; 32 by default.
        beta_fast: f64,
        /// Dimensions with fewer turns than this are divided; 1 by default.
        beta_slow: f64,
        /// Multiplies cos and sin; `None`: `0.1 ln(factor) + 1`. [`yarn_attention_factor`] has the form with `mscale`.
        attention_factor: Option<f64>,
        /// Whether the ends of the ramp are whole dimensions; true by default.
        truncate: bool,
    },
    /// Frequencies of the first `turning` pairs divided by `factor`; the other pairs do not turn. Exponents are those of
    /// the whole width (Gemma 4).
    Proportional {
        /// Pairs that turn, from the first.
        turning: usize,
        /// Divisor of their frequencies.
        factor: f64,
    },
    /// A searched divisor per frequency (LongRoPE: Ding et al., 2024; Phi-3), in two lists: for contexts up to the
    /// original and for longer ones. The longest sequence of the table selects the list once; the length of a running
    /// sequence does not, or its first tokens would be rotated by one list and the rest by the other, and an answer would
    /// depend on when a sequence grew. (vLLM does the same; transformers switches during generation.)
    LongRope {
        /// `[rotary_dim / 2]`, for tables of at most `original_max_position` positions.
        short_factor: Vec<f64>,
        /// `[rotary_dim / 2]`, for longer tables.
        long_factor: Vec<f64>,
        /// Context extension factor.
        factor: f64,
        /// The original context.
        original_max_position: usize,
        /// Multiplies cos and sin, with either list; `None`: `sqrt(1 + ln(factor) / ln(original_max_position))`.
        attention_factor: Option<f64>,
    },
}

/// YaRN's attention factor where a configuration gives `mscale` and `mscale_all_dim`:
/// the quotient of `0.1 m ln(factor) + 1` for both.
pub fn yarn_attention_factor(factor: f64, mscale: f64, mscale_all_dim: f64) -> f64 {
    let of = |m: f64| if factor <= 1.0 { 1.0 } else { 0.1 * m * libm::log(factor) + 1.0 };
    of(mscale) / of(mscale_all_dim)
}

impl RopeScaling {
    /// The `rotary_dim / 2` angles per position, in radians, for a table of `max_positions`.
    ///
    /// Panics if a factor list has another length.
    pub fn inv_freq(&self, rotary_dim: usize, theta: f64, max_positions: usize) -> Vec<f32> {
        let half = rotary_dim / 2;
        let plain = (0..half).map(|i| libm::pow(theta, -((2 * i) as f64) / rotary_dim as f64));
        let scaled: Vec<f64> = match *self {
            RopeScaling::LongRope { ref short_factor, ref long_factor, original_max_position, .. } => {
                let factors = if max_positions > original_max_position { long_factor } else { short_factor };
                assert_eq!(factors.len(), half, "a factor for each frequency");
                plain.zip(factors).map(|(freq, factor)| freq / factor).collect()
            }
            RopeScaling::None => plain.collect(),
            RopeScaling::Linear { factor } => plain.map(|freq| freq / factor).collect(),
            RopeScaling::Proportional { turning, factor } => {
                plain.enumerate().map(|(pair, freq)| if pair < turning { freq / factor } else { 0.0 }).collect()
            }
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position } => plain
                .map(|freq| {
                    let turns = original_max_position as f64 * freq / (2.0 * PI);
                    if turns > high_freq_factor {
                        freq
                    } else if turns < low_freq_factor {
                        freq / factor
                    } else {
                        let kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                        (1.0 - kept) * freq / factor + kept * freq
                    }
                })
                .collect(),
            RopeScaling::Yarn { factor, original_max_position, beta_fast, beta_slow, truncate, .. } => {
                // The dimension whose frequency makes `turns` over the original context.
                let dimension = |turns: f64| {
                    rotary_dim as f64 * libm::log(original_max_position as f64 / (turns * 2.0 * PI))
                        / (2.0 * libm::log(theta))
                };
                let (mut low, mut high) = (dimension(beta_fast), dimension(beta_slow));
                if truncate {
                    (low, high) = (libm::floor(low), libm::ceil(high));
                }
                (low, high) = (low.max(0.0), high.min(rotary_dim as f64 - 1.0));
                if low == high {
                    high += 0.001; // a ramp of no width would divide by zero
                }
                plain
                    .enumerate()
                    .map(|(i, freq)| {
                        let divided = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                        freq / factor * divided + freq * (1.0 - divided)
                    })
                    .collect()
            }
        };
        scaled.into_iter().map(|freq| freq as f32).collect()
    }

    /// Factor of cos and sin.
    pub fn attention_factor(&self) -> f64 {
        match *self {
            RopeScaling::Yarn { attention_factor: Some(attention_factor), .. } => attention_factor,
            RopeScaling::Yarn { factor, .. } if factor > 1.0 => 0.1 * libm::log(factor) + 1.0,
            RopeScaling::LongRope { attention_factor: Some(attention_factor), .. } => attention_factor,
            RopeScaling::LongRope { factor, original_max_position, .. } if factor > 1.0 => {
                libm::sqrt(1.0 + libm::log(factor) / libm::log(original_max_position as f64))
            }
            _ => 1.0,
        }
    }
}

/// Rotated queries are multiplied by a number that grows with the logarithm of their position, so that attention over long
/// contexts stays as sharp (Nakanishi, 2025; in steps: Mistral AI, 2026).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryGrowth {
    /// How fast.
    pub beta: f32,
    /// The original context: the number of positions with one factor.
    pub original_max_position: usize,
    /// Positions are counted from this number: 0, or 1 in Llama 4.
    pub first: usize,
}

impl QueryGrowth {
    /// The factor of a position, from 1 up.
    ///
    /// Panics if the original context is 0.
    pub fn factor(&self, position: usize) -> f32 {
        let steps = (position + self.first) / self.original_max_position;
        (1.0 + f64::from(self.beta) * libm::log(1.0 + steps as f64)) as f32
    }
}

/// cos and sin of every position: f32 `[max_positions, 2, rotary_dim / 2]`, and factors of queries f32 `[max_positions]`
/// where they grow. `V`: a buffer, or a vector of a backend.
pub struct RopeTable<V = Buffer<f32>> {
    rotary_dim: usize,
    max_positions: usize,
    table: V,
    query_factors: Option<V>,
}

impl RopeTable {
    /// A table for positions `0..max_positions`; `4 * max_positions * rotary_dim` bytes and about 50 ns per pair.
    ///
    /// Panics if `rotary_dim` is odd.
    pub fn new(
        rotary_dim: usize,
        theta: f64,
        scaling: &RopeScaling,
        max_positions: usize,
    ) -> Result<RopeTable, OutOfMemory> {
        assert!(rotary_dim.is_multiple_of(2), "rotary_dim {rotary_dim} is odd");
        let len = rotary_dim.checked_mul(max_positions).ok_or(OutOfMemory { bytes: usize::MAX })?;
        let mut table = Buffer::zeroed(len)?;
        let inv_freq = scaling.inv_freq(rotary_dim, theta, max_positions);
        let factor = scaling.attention_factor();
        for (position, row) in table.chunks_exact_mut(rotary_dim.max(1)).enumerate() {
            let (cos_row, sin_row) = row.split_at_mut(rotary_dim / 2);
            for ((cos, sin), &freq) in cos_row.iter_mut().zip(sin_row).zip(&inv_freq) {
                let (s, c) = libm::sincos(position as f64 * freq as f64);
                (*cos, *sin) = ((c * factor) as f32, (s * factor) as f32);
            }
        }
        Ok(RopeTable { rotary_dim, max_positions, table, query_factors: None })
    }

    /// The same with a factor of queries at each position: 4 bytes and about 20 ns each.
    pub fn with_growth(mut self, growth: QueryGrowth) -> Result<RopeTable, OutOfMemory> {
        let mut factors = Buffer::zeroed(self.max_positions)?;
        factors.iter_mut().enumerate().for_each(|(position, factor)| *factor = growth.factor(position));
        self.query_factors = Some(factors);
        Ok(self)
    }

    /// What a rotated query at one position is multiplied by; `None` where queries do not grow.
    ///
    /// Panics if the position is not in the table.
    pub fn query_factor(&self, position: usize) -> Option<f32> {
        self.query_factors.as_ref().map(|factors| factors[position])
    }

    /// cos and sin for one position, each `[rotary_dim / 2]`.
    ///
    /// Panics if the position is not in the table.
    pub fn at(&self, position: usize) -> (&[f32], &[f32]) {
        assert!(position < self.max_positions, "position {position} of a table of {}", self.max_positions);
        self.table[position * self.rotary_dim..][..self.rotary_dim].split_at(self.rotary_dim / 2)
    }
}

impl<V> RopeTable<V> {
    /// Rotated elements of a head: the first `rotary_dim`, element `i` paired with `i + rotary_dim / 2`.
    pub fn rotary_dim(&self) -> usize {
        self.rotary_dim
    }

    /// Number of positions in the table.
    pub fn max_positions(&self) -> usize {
        self.max_positions
    }

    /// cos and sin by position, as they lie in memory.
    pub fn table(&self) -> &V {
        &self.table
    }

    /// Factors of queries by position, where they grow.
    pub fn query_factors(&self) -> Option<&V> {
        self.query_factors.as_ref()
    }

    /// The same table with its data mapped, e.g. uploaded to a device.
    pub fn try_map<W, E>(&self, elsewhere: impl Fn(&V) -> Result<W, E>) -> Result<RopeTable<W>, E> {
        let table = elsewhere(&self.table)?;
        let query_factors = self.query_factors.as_ref().map(elsewhere).transpose()?;
        Ok(RopeTable { rotary_dim: self.rotary_dim, max_positions: self.max_positions, table, query_factors })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values that Transformers 5.19 computes in f32 (`LlamaRotaryEmbedding`).
    struct Golden {
        head_dim: usize,
        theta: f64,
        scaling: RopeScaling,
        attention_factor: f64,
        inv_freq: &'static [f64],
        /// Position 17, frequency 1.
        cos_sin_17: (f64, f64),
        /// Position 1000, last frequency.
        cos_1000: f64,
    }

    fn yarn(factor: f64, original_max_position: usize, attention_factor: Option<f64>, truncate: bool) -> RopeScaling {
        RopeScaling::Yarn { factor, original_max_position, beta_fast: 32.0, beta_slow: 1.0, attention_factor, truncate }
    }

    #[rustfmt::skip] // rows of numbers
    fn golden() -> Vec<Golden> {
        vec![
            Golden {
                head_dim: 32,
                theta: 1e4,
                scaling: RopeScaling::None,
                attention_factor: 1.0,
                inv_freq: &[1.00000000e+00, 5.62341332e-01, 3.16227764e-01, 1.77827939e-01, 1.00000001e-01, 5.62341288e-02, 3.16227786e-02, 1.77827943e-02, 9.99999978e-03, 5.62341325e-03, 3.16227786e-03, 1.77827943e-03, 1.00000005e-03, 5.62341302e-04, 3.16227786e-04, 1.77827940e-04],
                cos_sin_17: (-0.9908979535102844, -0.13461513817310333),
                cos_1000: 0.9842302203178406,
            },
            Golden {
                head_dim: 32,
                theta: 1e4,
                scaling: RopeScaling::Linear { factor: 4.0 },
                attention_factor: 1.0,
                inv_freq: &[2.50000000e-01, 1.40585333e-01, 7.90569410e-02, 4.44569848e-02, 2.50000004e-02, 1.40585322e-02, 7.90569466e-03, 4.44569858e-03, 2.49999994e-03, 1.40585331e-03, 7.90569466e-04, 4.44569858e-04, 2.50000012e-04, 1.40585325e-04, 7.90569466e-05, 4.44569851e-05],
                cos_sin_17: (-0.7305687069892883, 0.6828392148017883),
                cos_1000: 0.9990119338035583,
            },
            Golden {
                head_dim: 64,
                theta: 5e5,
                scaling: RopeScaling::Llama3 {
 factor: 32.0,
 low_freq_factor: 1.0,
 high_freq_factor: 4.0,
 original_max_position: 8192,
 },
                attention_factor: 1.0,
                inv_freq: &[1.00000000e+00, 6.63601279e-01, 4.40366626e-01, 2.92227834e-01, 1.93922758e-01, 1.28687382e-01, 8.53971019e-02, 5.66696189e-02, 3.76060307e-02, 2.49554086e-02, 1.65604409e-02, 1.09895291e-02, 7.29266508e-03, 4.83942125e-03, 3.21144611e-03, 1.29054801e-03, 4.29556705e-04, 9.70828623e-05, 1.94616387e-05, 1.29147675e-05, 8.57025589e-06, 5.68723226e-06, 3.77405445e-06, 2.50446715e-06, 1.66196742e-06, 1.10288363e-06, 7.31874934e-07, 4.85673127e-07, 3.22293289e-07, 2.13874230e-07, 1.41927202e-07, 9.41830649e-08],
                cos_sin_17: (0.28177839517593384, -0.9594795107841492),
                cos_1000: 1.0,
            },
            Golden {
                head_dim: 64,
                theta: 1e6,
                scaling: yarn(4.0, 32768, None, true),
                attention_factor: 1.138629436111989,
                inv_freq: &[1.00000000e+00, 6.49381638e-01, 4.21696514e-01, 2.73841977e-01, 1.77827939e-01, 1.15478203e-01, 7.49894157e-02, 4.86967526e-02, 3.16227786e-02, 2.05352511e-02, 1.33352149e-02, 8.65964312e-03, 5.15479548e-03, 3.04311770e-03, 1.77853031e-03, 1.02661771e-03, 5.83333371e-04, 3.24690831e-04, 1.75706868e-04, 9.12806499e-05, 4.44569851e-05, 2.88695483e-05, 1.87473561e-05, 1.21741887e-05, 7.90569356e-06, 5.13381246e-06, 3.33380353e-06, 2.16491094e-06, 1.40585337e-06, 9.12935320e-07, 5.92843435e-07, 3.84981632e-07],
                cos_sin_17: (0.049985192716121674, -1.1375317573547363),
                cos_1000: 1.1386293172836304,
            },
            Golden {
                head_dim: 64,
                theta: 1e4,
                scaling: yarn(40.0, 4096, Some(yarn_attention_factor(40.0, 1.0, 0.707)), true),
                attention_factor: 1.0857263992561355,
                inv_freq: &[1.00000000e+00, 7.49894202e-01, 5.62341332e-01, 4.21696514e-01, 3.16227764e-01, 2.37137362e-01, 1.77827939e-01, 1.33352146e-01, 1.00000001e-01, 7.49894157e-02, 5.62341288e-02, 3.90069261e-02, 2.68793609e-02, 1.83781441e-02, 1.24479560e-02, 8.33450910e-03, 5.50000044e-03, 3.56199732e-03, 2.24936521e-03, 1.37051346e-03, 7.90569407e-04, 4.14990413e-04, 1.77827940e-04, 3.33380340e-05, 2.49999994e-05, 1.87473543e-05, 1.40585325e-05, 1.05424124e-05, 7.90569447e-06, 5.92843435e-06, 4.44569832e-06, 3.33380353e-06],
                cos_sin_17: (1.0678274631500244, 0.1963323950767517),
                cos_1000: 1.085720419883728,
            },
            Golden {
                head_dim: 64,
                theta: 1.5e5,
                scaling: yarn(32.0, 4096, None, false),
                attention_factor: 1.3465735902799727,
                inv_freq: &[1.00000000e+00, 6.89044297e-01, 4.74782050e-01, 3.27145875e-01, 2.25418001e-01, 1.55322984e-01, 1.07024424e-01, 7.37445652e-02, 5.08132726e-02, 3.17056961e-02, 1.93349998e-02, 1.15920492e-02, 6.79495931e-03, 3.86035908e-03, 2.09379266e-03, 1.05260219e-03, 4.56483918e-04, 1.29318694e-04, 3.83088118e-05, 2.63964685e-05, 1.81883370e-05, 1.25325696e-05, 8.63549576e-06, 5.95023948e-06, 4.09997847e-06, 2.82506676e-06, 1.94659629e-06, 1.34129095e-06, 9.24208962e-07, 6.36820914e-07, 4.38797855e-07, 3.02351140e-07],
                cos_sin_17: (0.8860644102096558, -1.0139774084091187),
                cos_1000: 1.3465734720230103,
            },
            Golden {
                head_dim: 32,
                theta: 1e4,
                scaling: yarn(16.0, 256, Some(1.25), true),
                attention_factor: 1.25,
                inv_freq: &[1.00000000e+00, 4.87027764e-01, 2.31523916e-01, 1.06379203e-01, 4.64285687e-02, 1.85773447e-02, 6.21161703e-03, 1.11142464e-03, 6.24999986e-04, 3.51463328e-04, 1.97642366e-04, 1.11142464e-04, 6.25000030e-05, 3.51463314e-05, 1.97642366e-05, 1.11142463e-05],
                cos_sin_17: (-0.5159597396850586, 1.1385453939437866),
                cos_1000: 1.249922752380371,
            },
        ]
    }

    #[test]
    fn every_scaling_is_that_of_transformers() {
        for golden in golden() {
            let Golden { head_dim, theta, scaling, .. } = &golden;
            let inv_freq = scaling.inv_freq(*head_dim, *theta, 1001);
            assert_eq!(inv_freq.len(), golden.inv_freq.len());
            for (i, (&got, &want)) in inv_freq.iter().zip(golden.inv_freq).enumerate() {
                // Transformers rounds after every step, this crate once.
                assert!((got as f64 - want).abs() <= 4e-7 * want, "{scaling:?}: frequency {i} is {got}, not {want}");
            }
            let factor = scaling.attention_factor();
            assert!((factor - golden.attention_factor).abs() < 1e-12, "{scaling:?}: {factor}");
            let table = RopeTable::new(*head_dim, *theta, scaling, 1001).unwrap();
            let ((cos, sin), (cos_1000, _)) = (table.at(17), table.at(1000));
            let pairs = [(cos[1], golden.cos_sin_17.0), (sin[1], golden.cos_sin_17.1)];
            for (got, want) in pairs.into_iter().chain([(cos_1000[head_dim / 2 - 1], golden.cos_1000)]) {
                assert!((got as f64 - want).abs() < 3e-6, "{scaling:?}: {got}, not {want}");
            }
        }
    }

    #[test]
    fn the_longest_sequence_chooses_the_factors_of_longrope() {
        let scaling = |attention_factor| RopeScaling::LongRope {
            short_factor: vec![1.0, 1.5, 2.0, 4.0],
            long_factor: vec![2.0, 3.0, 8.0, 64.0],
            factor: 32.0,
            original_max_position: 4096,
            attention_factor,
        };
        let plain = RopeScaling::None.inv_freq(8, 1e4, 1);
        for (max_positions, divisors) in [(4096, [1.0, 1.5, 2.0, 4.0]), (4097, [2.0, 3.0, 8.0, 64.0])] {
            let freqs = scaling(None).inv_freq(8, 1e4, max_positions);
            for ((freq, plain), divisor) in freqs.iter().zip(&plain).zip(divisors) {
                assert!((freq * divisor / plain - 1.0).abs() < 1e-6, "{max_positions}: {freqs:?}");
            }
        }
        // sqrt(1 + ln 32 / ln 4096) = sqrt(1 + 5 / 12) for either list.
        assert!((scaling(None).attention_factor() - (17.0f64 / 12.0).sqrt()).abs() < 1e-12);
        assert_eq!(scaling(Some(1.19)).attention_factor(), 1.19);
        let table = RopeTable::new(8, 1e4, &scaling(Some(1.25)), 10).unwrap();
        assert!(table.at(0).0.iter().all(|&cos| cos == 1.25));
    }

    #[test]
    fn queries_grow_by_steps() {
        let growth = QueryGrowth { beta: 0.125, original_max_position: 8, first: 0 };
        let table = || RopeTable::new(16, 1e4, &RopeScaling::None, 41).unwrap();
        assert_eq!(table().query_factor(40), None);
        let table = table().with_growth(growth).unwrap();
        for (position, factor) in [
            (0, 1.0),
            (7, 1.0),
            (8, 1.0 + 0.125 * std::f64::consts::LN_2),
            (15, 1.0 + 0.125 * std::f64::consts::LN_2),
            (24, 1.0 + 0.25 * std::f64::consts::LN_2),
            (40, 1.0 + 0.125 * libm::log(6.0)),
        ] {
            assert_eq!(table.query_factor(position), Some(factor as f32), "position {position}");
        }
        let Ok(mapped) = table.try_map(|numbers| Ok::<_, std::convert::Infallible>(numbers.len()));
        assert_eq!((mapped.table, mapped.query_factors), (41 * 16, Some(41)));
    }

    #[test]
    fn position_zero_does_not_turn() {
        let table = RopeTable::new(64, 1e4, &RopeScaling::None, 4).unwrap();
        let (cos, sin) = table.at(0);
        assert!(cos.iter().all(|&c| c == 1.0) && sin.iter().all(|&s| s == 0.0));
    }

    #[test]
    #[should_panic(expected = "position 4 of a table of 4")]
    fn a_position_outside_the_table_is_a_bug() {
        RopeTable::new(64, 1e4, &RopeScaling::None, 4).unwrap().at(4);
    }
}
