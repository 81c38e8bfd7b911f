//! The bytes of the KV cache, in the order in which the tile products read them.
//!
//! ```text
//! layer | block | kv head | K: [block_size/16][head_dim/2][16 tokens][2]   tokens in lanes, pairs of d
//!                         | V: [block_size/32][head_dim/16][16 token pairs][16 d][2]   d in lanes, pairs of tokens
//! ```
//! Everything is bf16. One block of one head is contiguous, so a paged read is a few large pieces (PagedAttention:
//! Kwon et al., SOSP 2023), and a row of sixteen pairs is one 64-byte line and one row of an AMX tile.
//!
//! **Stale bytes are harmless.** A block keeps what its last owner wrote. Attention gives hidden tokens the weight 0,
//! and 0 times a finite number is 0; so a value that is not finite is never stored. It becomes 0, and the token's key
//! becomes NaN instead: every row that sees the token becomes NaN (and is reported), no other row is touched.

use crate::lanes::{bf16_bits, bf16_value};
use crate::mem::{Buffer, OutOfMemory};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering::Relaxed};

/// Tokens whose keys share a line: the lanes of a score.
pub(crate) const KEY_GROUP: usize = 16;
/// Tokens in one step of the weighted sum of values; a block is a multiple of it.
pub(crate) const VALUE_PAGE: usize = 32;
/// bf16 in a line of sixteen pairs.
pub(crate) const LINE: usize = 32;

/// Size of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Attention layers.
    pub layers: usize,
    /// Blocks per layer.
    pub blocks: usize,
    /// Tokens per block; a multiple of 32.
    pub block_size: usize,
    /// Key/value heads.
    pub num_kv_heads: usize,
    /// Width of a head; a multiple of 16.
    pub head_dim: usize,
}

impl KvShape {
    /// bf16 numbers of one head of one block: its keys, then its values.
    pub(crate) fn head_len(&self) -> usize {
        2 * self.block_size * self.head_dim
    }

    /// bf16 numbers of one block of one layer.
    fn block_len(&self) -> usize {
        self.num_kv_heads * self.head_len()
    }

    /// Bytes of one block in all layers: what the scheduler accounts for.
    pub fn block_bytes(&self) -> usize {
        self.layers * self.block_len() * size_of::<u16>()
    }

    /// Bytes of the whole cache.
    pub fn bytes(&self) -> usize {
        self.blocks * self.block_bytes()
    }

    /// Where the keys of a head of a block begin.
    pub(crate) fn keys_at(&self, layer: usize, block: usize, kv_head: usize) -> usize {
        (layer * self.blocks + block) * self.block_len() + kv_head * self.head_len()
    }

    /// Where the values of a head of a block begin.
    pub(crate) fn values_at(&self, layer: usize, block: usize, kv_head: usize) -> usize {
        self.keys_at(layer, block, kv_head) + self.block_size * self.head_dim
    }

    /// Where the number `d` of a key is.
    fn key_at(&self, place: Place, d: usize) -> usize {
        let (block, token) = (place.slot / self.block_size, place.slot % self.block_size);
        let group = self.keys_at(place.layer, block, place.kv_head) + token / KEY_GROUP * KEY_GROUP * self.head_dim;
        group + d / 2 * LINE + token % KEY_GROUP * 2 + d % 2
    }

    /// Where the number `d` of a value is.
    fn value_at(&self, place: Place, d: usize) -> usize {
        let (block, token) = (place.slot / self.block_size, place.slot % self.block_size);
        let page = self.values_at(place.layer, block, place.kv_head) + token / VALUE_PAGE * VALUE_PAGE * self.head_dim;
        let line = d / 16 * 16 + token % VALUE_PAGE / 2;
        page + line * LINE + d % 16 * 2 + token % 2
    }

    fn check(&self, place: Place) {
        let Place { layer, slot, kv_head } = place;
        assert!(layer < self.layers, "layer {layer} of {}", self.layers);
        assert!(slot < self.blocks * self.block_size, "slot {slot} of {} x {}", self.blocks, self.block_size);
        assert!(kv_head < self.num_kv_heads, "kv head {kv_head} of {}", self.num_kv_heads);
    }
}

/// One head of one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which layer.
    pub layer: usize,
    /// `block * block_size + offset`.
    pub slot: usize,
    /// Which key/value head.
    pub kv_head: usize,
}

/// Keys and values of all layers, bf16, by block. See the module for the layout.
pub struct KvCache {
    shape: KvShape,
    data: Buffer<u16>,
}

impl KvCache {
    /// A zeroed cache of `shape.bytes()` bytes.
    ///
    /// Panics if the block size is not a multiple of 32 or the head width not a multiple of 16.
    pub fn new(shape: KvShape) -> Result<KvCache, OutOfMemory> {
        assert!(shape.block_size > 0 && shape.block_size.is_multiple_of(VALUE_PAGE), "{shape:?}");
        assert!(shape.head_dim > 0 && shape.head_dim.is_multiple_of(16), "{shape:?}");
        let numbers = [shape.layers, shape.blocks, shape.num_kv_heads, 2, shape.block_size, shape.head_dim];
        let len = numbers.iter().try_fold(1usize, |len, &n| len.checked_mul(n));
        let data = Buffer::zeroed(len.ok_or(OutOfMemory { bytes: usize::MAX })?)?;
        Ok(KvCache { shape, data })
    }

    /// Its shape.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// All numbers, as bf16 bits.
    pub(crate) fn data(&self) -> &[u16] {
        &self.data
    }

    /// The number `d` of a key.
    pub fn key(&self, place: Place, d: usize) -> f32 {
        self.shape.check(place);
        assert!(d < self.shape.head_dim);
        bf16_value(self.data[self.shape.key_at(place, d)])
    }

    /// The number `d` of a value.
    pub fn value(&self, place: Place, d: usize) -> f32 {
        self.shape.check(place);
        assert!(d < self.shape.head_dim);
        bf16_value(self.data[self.shape.value_at(place, d)])
    }

    /// Stores one head of one token, rounded to bf16. `key`, `value`: `[head_dim]`.
    pub fn store(&mut self, place: Place, key: &[f32], value: &[f32]) {
        let (mut key_bits, mut value_bits) = ([0; MAX_HEAD_DIM], [0; MAX_HEAD_DIM]);
        let (key_bits, value_bits) = (&mut key_bits[..key.len()], &mut value_bits[..value.len()]);
        key_bits.iter_mut().zip(key).for_each(|(bits, &x)| *bits = bf16_bits(x));
        value_bits.iter_mut().zip(value).for_each(|(bits, &x)| *bits = bf16_bits(x));
        self.writer().store(place, key_bits, value_bits);
    }

    /// Copies whole blocks `(src, dst)` in every layer, pair after pair.
    ///
    /// Panics if a block is out of range.
    pub fn copy_blocks(&mut self, copies: &[(u32, u32)]) {
        let (blocks, len) = (self.shape.blocks, self.shape.block_len());
        for &(src, dst) in copies {
            let (src, dst) = (src as usize, dst as usize);
            assert!(src < blocks && dst < blocks, "copy {src} -> {dst} of {blocks} blocks");
            for layer in 0..self.shape.layers {
                let first = layer * blocks;
                self.data.copy_within((first + src) * len..(first + src + 1) * len, (first + dst) * len);
            }
        }
    }

    /// A handle with which several threads may store tokens.
    pub(crate) fn writer(&mut self) -> Writer<'_> {
        Writer { shape: self.shape, data: self.data.as_mut_ptr(), cache: std::marker::PhantomData }
    }
}

/// Widest head, for buffers of fixed size.
pub(crate) const MAX_HEAD_DIM: usize = 256;

/// Stores tokens from several threads. Stores are relaxed atomics (plain moves on every CPU), so that two rows which
/// name the same slot, against the caller's promise, are a wrong answer but not undefined behaviour.
#[derive(Clone, Copy)]
pub(crate) struct Writer<'a> {
    shape: KvShape,
    data: *mut u16,
    cache: std::marker::PhantomData<&'a mut KvCache>,
}

// SAFETY: for the lifetime of a Writer the cache is borrowed mutably, and all access through it is atomic.
unsafe impl Send for Writer<'_> {}
// SAFETY: as above.
unsafe impl Sync for Writer<'_> {}

impl Writer<'_> {
    /// Stores one head of one token, given as bf16 bits. `key`, `value`: `[head_dim]`.
    pub(crate) fn store(&self, place: Place, key: &[u16], value: &[u16]) {
        let shape = &self.shape;
        shape.check(place);
        assert_eq!((key.len(), value.len()), (shape.head_dim, shape.head_dim));
        let finite = value.iter().all(|bits| bits & 0x7f80 != 0x7f80);
        let (keys, values) = (shape.key_at(place, 0), shape.value_at(place, 0));
        for (i, pair) in key.as_chunks::<2>().0.iter().enumerate() {
            let pair = if finite { pair[0] as u32 | (pair[1] as u32) << 16 } else { 0x7fc0_7fc0 };
            // SAFETY: `check` and the lengths keep the index inside the cache; it is even, hence 4-byte aligned.
            unsafe { AtomicU32::from_ptr(self.data.add(keys + i * LINE).cast()) }.store(pair, Relaxed);
        }
        for (group, lanes) in value.as_chunks::<16>().0.iter().enumerate() {
            for (i, &bits) in lanes.iter().enumerate() {
                let bits = if bits & 0x7f80 != 0x7f80 { bits } else { 0 };
                // SAFETY: as above.
                unsafe { AtomicU16::from_ptr(self.data.add(values + group * 16 * LINE + i * 2)) }.store(bits, Relaxed);
            }
        }
    }
}
