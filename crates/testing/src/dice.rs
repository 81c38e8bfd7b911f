//! Chance from a seed, in the shapes that tests want.

use std::ops::RangeInclusive;

use figures::random::Random;

/// Numbers that their seed determines.
#[derive(Clone, Debug)]
pub struct Dice(Random);

impl Dice {
    /// The numbers of `seed`.
    pub fn new(seed: u64) -> Dice {
        Dice(Random::new(seed))
    }

    /// 64 even bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0.bits()
    }

    /// In `0..end`; 0 where that is empty.
    #[inline]
    pub fn below(&mut self, end: u64) -> u64 {
        self.bits() % end.max(1)
    }

    /// The same of counts.
    #[inline]
    pub fn roll(&mut self, sides: usize) -> usize {
        self.below(sides as u64) as usize
    }

    /// In `range`.
    #[inline]
    pub fn within(&mut self, range: RangeInclusive<usize>) -> usize {
        range.start() + self.roll(range.end() - range.start() + 1)
    }

    /// Whether it happens, so often in a hundred times.
    #[inline]
    pub fn percent(&mut self, share: u64) -> bool {
        self.bits() % 100 < share
    }

    /// From 0 to 1.
    #[inline]
    pub fn share(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// From -1 to 1.
    #[inline]
    pub fn signed(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// Sums of six even numbers around zero: nearly normal, of a deviation of 0.7.
    pub fn normals(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| (0..6).map(|_| self.signed() / 2.0).sum()).collect()
    }

    /// One of them.
    #[inline]
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.roll(items.len())]
    }

    /// Another order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.within(0..=last));
        }
    }
}
