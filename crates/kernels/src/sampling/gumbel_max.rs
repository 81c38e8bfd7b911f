//! Sampling by an exponential race between weighted tokens, instead of a walk along a cumulative sum.
//!
//! ```text
//! masses   | 16 ids | 16 ids | 16 ids | ..      block b arrives at E_b / (its mass), the first one wins;
//!              |        |        |              inside it, id i arrives at E_i / (its mass)
//! ```
//! `E = -ln(u)` of an independent uniform `u`, so a competitor of mass `m` is first with probability `m / sum` (the
//! exponential race; "Gumbel-max" in logarithms). The noise belongs to the id, not to a position in a sum: two similar
//! distributions, a model's and its drafter's, mostly have the same winner, nearly as often as is possible without
//! communication (Daliri, Musco & Suresh, "Coupling without communication and drafter-invariant speculative decoding",
//! 2024). A draw by the inverse of the distribution function shifts everything behind a difference. There are two
//! stages because noise for every one of 150,000 ids costs more than weighing them.
//!
//! `E` is between 2^-33 and 23 for every word: `u` is never 1, because with `-ln(1) = 0` any competitor would win, even
//! one without mass; with a `u` rounded to 24 bits that happens once in 220 races of 152,000. So a mass below 2^-38 of
//! the best never wins, and no other is favoured. All in doubles without fused operations: the same winner on every
//! machine.

use super::philox::{philox, philox_many};
use crate::isa::Isa;
use crate::simd::{Kernel, Simd, dispatch};

/// Ids per competitor of the first stage.
pub(super) const BLOCK: usize = 16;
/// Competitors compared together, and generator calls for them.
const TOGETHER: usize = 64;
const CALLS: usize = TOGETHER / 4;

/// The random numbers of one draw: a function of seed, answer and position only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noise {
    key: [u32; 2],
    position: [u32; 2],
    stream: u32,
}

impl Noise {
    /// Noise for the token at `position` of answer `stream`.
    pub fn new(seed: u64, stream: u32, position: u64) -> Noise {
        let halves = |x: u64| [x as u32, (x >> 32) as u32];
        Noise { key: halves(seed), position: halves(position), stream }
    }

    /// Four words for `index`.
    fn words(&self, index: u32) -> [u32; 4] {
        philox([self.position[0], self.position[1], self.stream, index], self.key)
    }

    /// Draws an id from `masses`, indexed by id; `sums` is scratch. `None` if the total mass is 0. Every sum of [`BLOCK`]
    /// masses must be below 2^52. Cost: two reads of the masses, a random word and a logarithm per block.
    pub fn draw(&self, masses: &[u64], sums: &mut Vec<u64>) -> Option<u32> {
        let (blocks, rest) = masses.as_chunks::<BLOCK>();
        sums.clear();
        sums.extend(blocks.iter().map(|block| block.iter().sum::<u64>()));
        if !rest.is_empty() {
            sums.push(rest.iter().sum());
        }
        let block = dispatch(Isa::best(), GumbelMax { noise: self, sums })?;
        let inside = masses[block * BLOCK..].iter().take(BLOCK).enumerate().map(|(i, &mass)| (i as u32, mass));
        let first = self.first_inside(block as u32, inside)?;
        Some(block as u32 * BLOCK as u32 + first)
    }

    /// The same from a few ids and their masses, sorted by id: equal to [`Noise::draw`] with mass 0 for all other ids.
    pub fn draw_of(&self, few: &[(u32, u64)]) -> Option<u32> {
        let block_of = |id: u32| id / BLOCK as u32;
        let runs = few.chunk_by(|a, b| block_of(a.0) == block_of(b.0));
        let mut first: Option<(f64, &[(u32, u64)])> = None;
        for run in runs {
            let block = block_of(run[0].0);
            let word = self.words(word_of_block(block))[block as usize % 4];
            let arrival = arrival(word, run.iter().map(|(_, mass)| mass).sum());
            if arrival < first.map_or(f64::INFINITY, |(best, _)| best) {
                first = Some((arrival, run));
            }
        }
        let (_, run) = first?;
        let block = block_of(run[0].0);
        let inside = self.first_inside(block, run.iter().map(|&(id, mass)| (id % BLOCK as u32, mass)))?;
        Some(block * BLOCK as u32 + inside)
    }

    /// The winner among the ids of a block, given by their index in it.
    fn first_inside(&self, block: u32, inside: impl Iterator<Item = (u32, u64)>) -> Option<u32> {
        let mut words = [0; BLOCK];
        for (quarter, words) in words.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *words = self.words(word_inside(block) + quarter as u32);
        }
        first_of(inside.map(|(i, mass)| (i, arrival(words[i as usize], mass)))).map(|(i, _)| i)
    }
}

// Word indices. Blocks go up to 2^28, so the two stages share none.
#[inline(always)]
fn word_of_block(block: u32) -> u32 {
    1 + block / 4
}

fn word_inside(block: u32) -> u32 {
    (1 << 31) + 4 * block
}

/// The earliest arrival; of equal ones the first in order. A competitor that never arrives does not win.
fn first_of<T>(all: impl Iterator<Item = (T, f64)>) -> Option<(T, f64)> {
    let best_of = |found: &Option<(T, f64)>| found.as_ref().map_or(f64::INFINITY, |(_, best)| *best);
    all.fold(
        None,
        |found, (competitor, arrival)| if arrival < best_of(&found) { Some((competitor, arrival)) } else { found },
    )
}

/// Arrival time of a competitor of `mass` with this random word; infinite without mass.
#[inline(always)]
fn arrival(word: u32, mass: u64) -> f64 {
    exponential(word) / whole(mass)
}

/// An integer below 2^52 as f64, exactly.
#[inline(always)]
fn whole(x: u64) -> f64 {
    const TWO_52: f64 = (1u64 << 52) as f64; // its lowest bit is worth 1
    f64::from_bits(x | TWO_52.to_bits()) - TWO_52
}

/// `-ln(1 - v)` with `v = (word + 1/2) 2^-32`, relative error below 1e-11, from 2^-33 to 22.9.
///
/// `1 - v = m 2^e` with `m` in `[sqrt(1/2), sqrt(2))`, both exact, and `ln m = 2 artanh((m - 1) / (m + 1))` as a series:
/// near 1, where `e` is 0, no digit is lost.
#[inline(always)]
fn exponential(word: u32) -> f64 {
    const ROOT_HALF: u64 = std::f64::consts::FRAC_1_SQRT_2.to_bits();
    const BIAS: u64 = 64; // keeps the exponent positive while it is an integer
    let rest = (whole(u64::from(!word)) + 0.5) * (1.0 / (1u64 << 32) as f64);
    let exponent = (rest.to_bits() + (BIAS << 52) - ROOT_HALF) >> 52;
    let m = f64::from_bits(rest.to_bits() + (BIAS << 52) - (exponent << 52));
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let series = 1.0 / 13.0;
    let series = series * z + 1.0 / 11.0;
    let series = series * z + 1.0 / 9.0;
    let series = series * z + 1.0 / 7.0;
    let series = series * z + 1.0 / 5.0;
    let series = series * z + 1.0 / 3.0;
    let series = series * z + 1.0;
    (BIAS as f64 - whole(exponent)) * std::f64::consts::LN_2 - 2.0 * s * series
}

/// The first block to arrive: the first stage of [`Noise::draw`].
struct GumbelMax<'a> {
    noise: &'a Noise,
    sums: &'a [u64],
}

impl Kernel for GumbelMax<'_> {
    type Output = Option<usize>;

    fn define(self) -> Option<usize> {
        let GumbelMax { noise, sums } = self;
        let word = |block: usize| noise.words(word_of_block(block as u32))[block % 4];
        first_of(sums.iter().enumerate().map(|(block, &sum)| (block, arrival(word(block), sum))))
            .map(|(block, _)| block)
    }

    /// Each lane keeps its first, branch-free; the overall first is found at the end.
    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> Option<usize> {
        let GumbelMax { noise, sums } = self;
        let (mut best, mut at) = ([f64::INFINITY; TOGETHER], [0u64; TOGETHER]);
        for (turn, together) in sums.chunks(TOGETHER).enumerate() {
            let mut own = [0; TOGETHER];
            own[..together.len()].copy_from_slice(together);
            let start = turn * TOGETHER;
            let words: [u32; TOGETHER] =
                philox_many::<CALLS, TOGETHER>(noise.position, noise.stream, word_of_block(start as u32), noise.key);
            for lane in 0..TOGETHER {
                let arrival = arrival(words[lane], own[lane]);
                let earlier = arrival < best[lane];
                best[lane] = if earlier { arrival } else { best[lane] };
                at[lane] = if earlier { start as u64 } else { at[lane] };
            }
        }
        let block = |lane: usize| at[lane] as usize + lane;
        let lanes = (0..TOGETHER).filter(|&lane| best[lane] < f64::INFINITY);
        lanes.min_by(|&a, &b| best[a].total_cmp(&best[b]).then(block(a).cmp(&block(b)))).map(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_set_has_the_same_winner() {
        for len in [1, 3, 16, 63, 64, 65, 200, 1000] {
            for round in 0..200u64 {
                let noise = Noise::new(round, 3, round << 30);
                let mass = |i: u64| ((i * 7919 + round * 104_729) % 1009).pow(4).saturating_sub(1 << 37);
                let mut sums: Vec<u64> = (0..len).map(mass).collect();
                sums[(round % len) as usize] = 1;
                let defined = GumbelMax { noise: &noise, sums: &sums }.define();
                for isa in Isa::available() {
                    let found = dispatch(isa, GumbelMax { noise: &noise, sums: &sums });
                    assert_eq!(found, defined, "{isa:?} {len} blocks, round {round}");
                }
            }
        }
    }

    #[test]
    fn a_few_ids_run_as_they_do_among_all() {
        for round in 0..2000u64 {
            let noise = Noise::new(5, 0, round);
            let few: Vec<(u32, u64)> = (0..40).map(|i| (i * i % 7 + 11 * i, 1 + (u64::from(i) * round) % 90)).collect();
            let mut masses = vec![0; 450];
            few.iter().for_each(|&(id, mass)| masses[id as usize] = mass);
            assert_eq!(noise.draw_of(&few), noise.draw(&masses, &mut Vec::new()), "round {round}");
        }
    }

    #[test]
    fn nothing_is_drawn_from_nothing() {
        let noise = Noise::new(1, 2, 3);
        assert_eq!(noise.draw(&[0; 100], &mut Vec::new()), None);
        assert_eq!(noise.draw(&[], &mut Vec::new()), None);
        assert_eq!((noise.draw_of(&[(7, 0)]), noise.draw_of(&[])), (None, None));
        assert_eq!(noise.draw_of(&[(7, 0), (9, 1)]), Some(9));
    }

    /// The standard library's logarithm is as accurate, but differs between machines.
    #[test]
    fn the_exponential_is_minus_the_logarithm_and_neither_zero_nor_endless() {
        let near_ends = (0..5000).flat_map(|i| [i, u32::MAX - i]);
        let between = (0..200_000u32).map(|i| i.wrapping_mul(2_654_435_761));
        for word in near_ends.chain(between) {
            let v = (f64::from(word) + 0.5) / 2f64.powi(32);
            let want = -(-v).ln_1p();
            let got = exponential(word);
            assert!((got / want - 1.0).abs() < 1e-11, "{word}: {got}, not {want}");
        }
        assert!(exponential(0) >= 2f64.powi(-33) && exponential(u32::MAX) < 22.9);
    }

    /// PyTorch's race over 24 bits did this once in 220 draws (its issue 192577): the last of the words gives no zero.
    #[test]
    fn what_weighs_nothing_beside_the_best_never_wins() {
        // The earliest possible arrival of the small one is after the latest possible of the best.
        let best = 1u64 << 40;
        assert!(arrival(0, 1 << 2) > arrival(u32::MAX, best));
        // A mass that may win does so in proportion: 2^-20 of the best in a million races.
        let masses = [1u64 << 40, 1 << 20];
        let mut sums = Vec::new();
        let wins = (0..1 << 20).filter(|&i| Noise::new(9, 0, i).draw(&masses, &mut sums) == Some(1)).count();
        assert!((0..8).contains(&wins), "{wins}");
    }
}
