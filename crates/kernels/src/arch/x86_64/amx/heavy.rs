//! Middle digits of the quads that many rows of a panel list: in models outliers are in the same few channels of nearly all
//! rows. Lists cost a row and pair 50 to 70 cycles for 7 quads, the tiles of its low digits 28 (K = 896).
//!
//! ```text
//! x'      [rows][64]: the middle digits of up to 16 heavy quads, zeros where a row does not list one
//! w'      [2 strips][high, low] tiles: two digits of `ratio * level` of the heavy quads, once for a pair and panel
//! sum     one step more, 256 * high + low; what is not heavy, and high digits, stay in lists
//! ```
//! All are exact integers modulo 2^32, and the total fits.

use super::multiply::{Held, SUMS_STRIDE, TileBlock, int8_two};
use super::plan::{BLOCK_ROWS, BLOCK_SUMS};
use super::unpack;
use crate::gemm::activations::ActivationsId;
use crate::gemm::{Lists, Product, Sums};
use crate::quant::{GROUP, INT4_RATIOS, INT4_TILE, INT8_GROUP, Outlier, PAIR, PLANES, QUAD, TILE, WeightClass};
use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::null;

/// A quad is heavy if this part of the rows lists it.
const PART: usize = 8;
/// Heavy quads: those of one step.
const MOST: usize = 16;

/// A step of a row.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Step([[i8; QUAD]; MOST]);

/// Memory of a panel's heavy quads, which only grows.
#[derive(Default)]
pub(super) struct Heavy {
    quads: Vec<u32>,
    /// By quad: rows that list it, then 1 + its index in `quads` or 0.
    users: Vec<u32>,
    /// Rows, padded.
    x: Vec<Step>,
    /// `[rows][PLANES][capacity]` and `[rows][PLANES]`: lists of what is not heavy.
    rest: Vec<Outlier>,
    counts: Vec<u32>,
    capacity: usize,
    /// The rows, mostly those of the next piece of a thread's cell too.
    of: (ActivationsId, Range<usize>),
    /// Of the pairs that are in progress.
    tiles: [Option<(usize, Tiles)>; 2],
}

/// `[2 strips][high, low]`.
#[repr(C, align(64))]
struct Tiles([u8; 4 * TILE]);

impl Heavy {
    /// Finds the heavy quads of some rows, of at most `most`; there may be none. Memory is that of `most` rows whatever
    /// rows there are, so that only a wider matrix allocates.
    pub(super) fn find(&mut self, product: &Product<'_>, rows: Range<usize>, most: usize) {
        let of = (product.activations.id(), rows.clone());
        if self.of == of {
            return;
        }
        self.of = of;
        self.quads.clear();
        self.tiles = [None, None];
        if product.w.class() == WeightClass::Bf16 {
            return;
        }
        let lists = product.activations.lists(rows.start, rows.len());
        let quads = product.w.shape().in_features.div_ceil(QUAD);
        self.users.clear();
        self.x.clear();
        self.counts.clear();
        self.rest.clear();
        self.quads.reserve(quads);
        self.users.reserve(quads);
        self.x.reserve(most);
        self.counts.reserve(most * PLANES);
        self.rest.reserve(most * PLANES * lists.capacity());
        if rows.len() < BLOCK_ROWS || lists.is_empty() {
            return;
        }
        self.users.resize(quads, 0);
        let middle = (0..rows.len()).flat_map(|row| lists.of(row, 0));
        middle.for_each(|outlier| self.users[outlier.quad as usize] += 1);
        let enough = |&quad: &u32| self.users[quad as usize] as usize * PART >= rows.len();
        self.quads.extend((0..self.users.len() as u32).filter(enough));
        self.quads.sort_unstable_by_key(|&quad| (std::cmp::Reverse(self.users[quad as usize]), quad));
        self.quads.truncate(MOST);
        self.users.fill(0);
        (1..).zip(&self.quads).for_each(|(index, &quad)| self.users[quad as usize] = index);
        if !self.quads.is_empty() {
            self.divide(lists);
        }
    }

    /// Heavy digits to `x'`, others to lists of their own.
    fn divide(&mut self, lists: Lists<'_>) {
        let light = |outlier: &&Outlier| self.users[outlier.quad as usize] == 0;
        let left = |row: usize| lists.of(row, 0).iter().filter(light).count().max(lists.of(row, 1).len());
        self.capacity = (0..lists.rows()).map(left).max().unwrap_or(0);
        self.x.resize(lists.rows().next_multiple_of(BLOCK_ROWS), Step([[0; QUAD]; MOST]));
        for row in 0..lists.rows() {
            for plane in 0..PLANES {
                let begin = self.rest.len();
                for outlier in lists.of(row, plane) {
                    match self.users[outlier.quad as usize] {
                        index @ 1.. if plane == 0 => self.x[row].0[index as usize - 1] = outlier.digits,
                        _ => self.rest.push(*outlier),
                    }
                }
                if plane == 0 && self.rest.len() == begin && !lists.of(row, 1).is_empty() {
                    self.rest.push(Outlier::NONE); // without middle digits there are no high ones
                }
                self.counts.push((self.rest.len() - begin) as u32);
                self.rest.resize(begin + self.capacity, Outlier::NONE);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.quads.is_empty()
    }

    /// The lists of what is not heavy.
    pub(super) fn rest(&self, first: usize, count: usize) -> Lists<'_> {
        let lists = (first - self.of.1.start) * PLANES;
        Lists::new(&self.rest[lists * self.capacity..], &self.counts[lists..lists + count * PLANES], self.capacity)
    }

    /// Sums of the heavy middle digits of 32 rows and a pair to `to`, `[32][32]`.
    ///
    /// # Safety
    /// Tiles are configured for 16 rows and hold nothing; there are heavy quads; the block is of the panel; `to` has
    /// room and is aligned to 64.
    pub(super) unsafe fn multiply(&mut self, product: &Product<'_>, first: usize, pair: usize, to: *mut u32) {
        let x = self.x[first - self.of.1.start..].as_ptr();
        let tiles = &mut self.tiles[pair % 2];
        let tiles = match tiles {
            Some((of, tiles)) if *of == pair => tiles,
            // SAFETY: where there are tiles there are vectors.
            _ => &mut tiles.insert((pair, unsafe { gather(product, pair, &self.quads) })).1,
        };
        let mut sums = MaybeUninit::<[Sums<BLOCK_ROWS>; 2]>::uninit();
        for strip in 0..2 {
            // SAFETY: 32 rows of one step, two tiles, and sums of each strip.
            unsafe {
                let block = TileBlock {
                    x: x.cast(),
                    x_stride: size_of::<Step>(),
                    tiles: tiles.0.as_ptr().add(strip * 2 * TILE),
                    steps: 1,
                    before: null(),
                    ahead: null(),
                    lines: 0,
                };
                int8_two(&block, None, &mut ());
                Held { to: sums.as_mut_ptr().cast::<u32>().add(strip * BLOCK_SUMS), stride: SUMS_STRIDE }.store();
            }
        }
        // SAFETY: the sums of both strips were written.
        unsafe { unpack::join(sums.as_ptr().cast(), 0..BLOCK_ROWS, to) };
    }
}

/// The digits of the heavy quads of a pair.
#[target_feature(enable = "avx512f,avx512bw")]
fn gather(product: &Product<'_>, pair: usize, quads: &[u32]) -> Tiles {
    let mut to = Tiles([0; 4 * TILE]);
    let (ratios, steps) = product.w.pair(pair);
    // SAFETY: 16 bytes.
    let levels = _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(product.w.levels().table().as_ptr().cast()) });
    for (line, &quad) in quads.iter().enumerate() {
        let (quad, in_step) = (quad as usize, quad as usize % 16);
        let step = &steps[quad / 16 * product.w.step_bytes()..][..product.w.step_bytes()];
        for strip in 0..2 {
            let (bytes, ratios) = match product.w.class() {
                WeightClass::Int4 => (
                    &step[INT4_RATIOS + strip * INT4_TILE + in_step / 2 * 64..],
                    &step[strip * 32 + in_step / (GROUP / QUAD) * 16..],
                ),
                _ => (&step[strip * TILE + in_step * 64..], &ratios[quad / (INT8_GROUP / QUAD) * PAIR + strip * 16..]),
            };
            assert!(bytes.len() >= 64 && ratios.len() >= 16);
            // SAFETY: as just said; two lines of the strip's tiles.
            unsafe {
                let mut bytes = _mm512_loadu_si512(bytes.as_ptr().cast());
                if product.w.class() == WeightClass::Int4 {
                    let shift = _mm_cvtsi32_si128((in_step % 2 * 4) as i32);
                    let codes = _mm512_and_si512(_mm512_srl_epi16(bytes, shift), _mm512_set1_epi8(15));
                    bytes = _mm512_shuffle_epi8(levels, codes);
                }
                let ratios = unpack::ratios(ratios.as_ptr());
                let (high, low) = unpack::two_digits(bytes, ratios);
                let to = to.0.as_mut_ptr().add(strip * 2 * TILE + line * 64);
                _mm512_store_si512(to.cast(), high);
                _mm512_store_si512(to.add(TILE).cast(), low);
            }
        }
    }
    to
}
