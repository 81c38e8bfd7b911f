//! The bytes of the KV cache, in the order in which the tile products read them.
//!
//! ```text
//! layer | block | kv head | K: [block_size/16][head_dim/p][16 tokens][p]             tokens in lanes, p elements of d
//!                         | V: [block_size/32][head_dim/16][32/p][16 d][p tokens]    d in lanes, p tokens
//!                         | int8 only: f32 [2][block_size], the scales of keys and of values
//! ```
//! A line is 64 bytes: 16 lanes of 4 bytes, each `p` elements, 2 of bf16 or 4 of int8; it is one row of an AMX tile. One
//! block of one head is contiguous, so a paged read is a few large pieces (PagedAttention: Kwon et al., SOSP 2023).
//!
//! | | bytes per token and head | element |
//! |---|---|---|
//! | bf16 | `4 * head_dim` | rounded to bf16, magnitudes below 2^-40 to 0 |
//! | int8 | `2 * head_dim + 8` | rotated over its head, then `q * scale`: `scale = absmax / 127`, `q` to nearest even |
//!
//! **Stale bytes are harmless.** A block keeps the data of its previous owner. Attention gives masked tokens the weight
//! 0, and 0 times a finite number is 0; so a non-finite value is never stored. It becomes 0, and the token's key
//! (for int8 the key's scale) becomes NaN instead: every row that sees the token becomes NaN (and is reported), and no
//! other row is affected.

use crate::mem::{Buffer, OutOfMemory};
use crate::quant::quantize_row;
use crate::simd::{bf16_bits, bf16_value};
use crate::spread::{gathered_int, run_of, spread};
use crate::threads::Nodes;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, Ordering::Relaxed};

/// Tokens whose keys share a line: the lanes of a score.
pub(crate) const KEY_GROUP: usize = 16;
/// Tokens in one step of the weighted sum of values; the block size is a multiple of it.
pub(crate) const VALUE_PAGE: usize = 32;
/// Bytes of a line.
pub(crate) const LINE: usize = 64;

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvDtype {
    /// 16 bits per element.
    #[default]
    Bf16,
    /// 8 bits per element and one scale for each key and each value, which are rotated over their head first.
    Int8,
}

impl KvDtype {
    /// Both types, the more precise first.
    pub const ALL: [KvDtype; 2] = [KvDtype::Bf16, KvDtype::Int8];

    /// Display name: `bf16`, `int8`.
    pub fn name(self) -> &'static str {
        match self {
            KvDtype::Bf16 => "bf16",
            KvDtype::Int8 => "int8",
        }
    }

    /// Bytes of an element.
    fn size(self) -> usize {
        match self {
            KvDtype::Bf16 => 2,
            KvDtype::Int8 => 1,
        }
    }

    /// Elements per lane, which is 4 bytes wide.
    fn per_lane(self) -> usize {
        4 / self.size()
    }

    /// Bytes of the scales of a key and its value.
    fn scale_bytes(self) -> usize {
        match self {
            KvDtype::Bf16 => 0,
            KvDtype::Int8 => 2 * size_of::<f32>(),
        }
    }
}

/// Dimensions of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Element type.
    pub dtype: KvDtype,
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
    /// See [`HeadLayout::latent`](crate::HeadLayout::latent).
    pub latent: Option<usize>,
}

impl KvShape {
    /// Width of a value.
    pub fn value_dim(&self) -> usize {
        self.latent.unwrap_or(self.head_dim)
    }

    /// Numbers of one head of one token that are stored: those of its key, and of its value where that is another.
    pub fn stored(&self) -> usize {
        self.head_dim + if self.latent.is_some() { 0 } else { self.head_dim }
    }

    /// Numbers that are rotated together in an int8 cache: as many of keys as of values.
    pub(crate) fn run(&self) -> usize {
        run_of(self.head_dim).min(run_of(self.value_dim()))
    }

    /// Bytes of one head of one token, key and value.
    fn token_bytes(&self) -> usize {
        self.stored() * self.dtype.size() + self.dtype.scale_bytes()
    }

    /// Bytes of one block of one layer.
    fn layer_block_bytes(&self) -> usize {
        self.num_kv_heads * self.block_size * self.token_bytes()
    }

    /// Bytes of one block in all layers: what the scheduler accounts for.
    pub fn block_bytes(&self) -> usize {
        self.layers * self.layer_block_bytes()
    }

    /// Bytes of the whole cache.
    pub fn bytes(&self) -> usize {
        self.blocks * self.block_bytes()
    }

    /// Bytes of 32 keys, and of 32 values.
    pub(crate) fn page_bytes(&self) -> usize {
        VALUE_PAGE * self.head_dim * self.dtype.size()
    }

    /// Byte offset of the keys of a head of a block.
    pub(crate) fn keys_at(&self, layer: usize, block: usize, kv_head: usize) -> usize {
        (layer * self.blocks + block) * self.layer_block_bytes() + kv_head * self.block_size * self.token_bytes()
    }

    /// Byte offset of the values of a head of a block: those of latent attention are in the keys.
    pub(crate) fn values_at(&self, layer: usize, block: usize, kv_head: usize) -> usize {
        let keys = self.keys_at(layer, block, kv_head);
        if self.latent.is_some() { keys } else { keys + self.block_size * self.head_dim * self.dtype.size() }
    }

    /// Byte offset of the key scales of a head of a block; the value scales follow. Only int8 has them.
    pub(crate) fn scales_at(&self, layer: usize, block: usize, kv_head: usize) -> usize {
        self.keys_at(layer, block, kv_head) + self.block_size * self.stored() * self.dtype.size()
    }

    /// Byte offset of element `d` of a key.
    fn key_at(&self, place: KvPlace, d: usize) -> usize {
        let (block, token) = (place.slot / self.block_size, place.slot % self.block_size);
        let (size, p) = (self.dtype.size(), self.dtype.per_lane());
        let group = token / KEY_GROUP * KEY_GROUP * self.head_dim * size;
        self.keys_at(place.layer, block, place.kv_head) + group + d / p * LINE + token % KEY_GROUP * 4 + d % p * size
    }

    /// Byte offset of element `d` of a value.
    fn value_at(&self, place: KvPlace, d: usize) -> usize {
        if self.latent.is_some() {
            return self.key_at(place, d);
        }
        let (block, token) = (place.slot / self.block_size, place.slot % self.block_size);
        let (size, p) = (self.dtype.size(), self.dtype.per_lane());
        let page = self.values_at(place.layer, block, place.kv_head) + token / VALUE_PAGE * self.page_bytes();
        let line = d / 16 * (VALUE_PAGE / p) + token % VALUE_PAGE / p;
        page + line * LINE + d % 16 * 4 + token % p * size
    }

    /// Byte offset of a key's scale; the value's is `block_size` f32 further.
    fn scale_at(&self, place: KvPlace) -> usize {
        let (block, token) = (place.slot / self.block_size, place.slot % self.block_size);
        self.scales_at(place.layer, block, place.kv_head) + token * size_of::<f32>()
    }

    fn check(&self, place: KvPlace) {
        let KvPlace { layer, slot, kv_head } = place;
        assert!(layer < self.layers, "layer {layer} of {}", self.layers);
        assert!(slot < self.blocks * self.block_size, "slot {slot} of {} x {}", self.blocks, self.block_size);
        assert!(kv_head < self.num_kv_heads, "kv head {kv_head} of {}", self.num_kv_heads);
    }
}

/// Address of one head of one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvPlace {
    /// Layer index.
    pub layer: usize,
    /// `block * block_size + offset`.
    pub slot: usize,
    /// Key/value head index.
    pub kv_head: usize,
}

/// Keys and values of all layers by block. See the module for the layout.
pub struct KvCache {
    shape: KvShape,
    /// One per memory node that has heads.
    parts: Vec<KvPart>,
}

/// The heads of a memory node, in that node's memory.
pub(crate) struct KvPart {
    /// First head of this part.
    first_head: usize,
    /// The cache shape restricted to these heads.
    shape: KvShape,
    data: Buffer<u8>,
}

impl KvPart {
    /// The cache shape restricted to these heads, indexed by [`KvPart::head`].
    pub(crate) fn shape(&self) -> &KvShape {
        &self.shape
    }

    /// All bytes of this part.
    pub(crate) fn data(&self) -> &[u8] {
        &self.data
    }

    /// Index of a head within this part.
    pub(crate) fn head(&self, kv_head: usize) -> usize {
        kv_head - self.first_head
    }

    /// The same place, indexed within this part.
    fn within(&self, place: KvPlace) -> KvPlace {
        KvPlace { kv_head: self.head(place.kv_head), ..place }
    }

    fn layer_block(&self, layer: usize, block: usize) -> std::ops::Range<usize> {
        let len = self.shape.layer_block_bytes();
        let first = (layer * self.shape.blocks + block) * len;
        first..first + len
    }
}

impl KvCache {
    /// A zeroed cache of `shape.bytes()` bytes.
    ///
    /// Panics if the block size is not a multiple of 32 or the head width not a multiple of 16.
    pub fn new(shape: KvShape) -> Result<KvCache, OutOfMemory> {
        KvCache::on(&Nodes::one(1), shape)
    }

    /// The same, with each node's heads ([`Nodes::part`]) in memory of that node. Panics for the same shapes.
    pub fn on(nodes: &Nodes, shape: KvShape) -> Result<KvCache, OutOfMemory> {
        assert!(shape.block_size > 0 && shape.block_size.is_multiple_of(VALUE_PAGE), "{shape:?}");
        assert!(shape.head_dim > 0 && shape.head_dim.is_multiple_of(16), "{shape:?}");
        assert!((1..=shape.head_dim).contains(&shape.value_dim()) && shape.value_dim().is_multiple_of(16), "{shape:?}");
        let part = |node: usize| {
            let heads = nodes.part(shape.num_kv_heads, node);
            let own = KvShape { num_kv_heads: heads.len(), ..shape };
            let sizes = [own.layers, own.blocks, own.num_kv_heads, own.block_size, own.token_bytes()];
            let bytes = sizes.iter().try_fold(1usize, |bytes, &n| bytes.checked_mul(n));
            let data = Buffer::zeroed_on(nodes.id(node), bytes.ok_or(OutOfMemory { bytes: usize::MAX })?)?;
            Ok(KvPart { first_head: heads.start, shape: own, data })
        };
        let with_heads = (0..nodes.len()).filter(|&node| !nodes.part(shape.num_kv_heads, node).is_empty());
        Ok(KvCache { shape, parts: with_heads.map(part).collect::<Result<_, OutOfMemory>>()? })
    }

    /// The shape of the whole cache.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// The part with a head.
    #[inline(always)]
    pub(crate) fn part(&self, kv_head: usize) -> &KvPart {
        part_of(&self.parts, kv_head)
    }

    /// Element `d` of a key.
    pub fn key(&self, place: KvPlace, d: usize) -> f32 {
        match self.shape.dtype {
            KvDtype::Bf16 => self.bf16(place, d, KvShape::key_at),
            KvDtype::Int8 => self.gathered(d, |d| self.key_int(place, d)) as f32 * self.key_scale(place),
        }
    }

    /// Element `d` of a value.
    pub fn value(&self, place: KvPlace, d: usize) -> f32 {
        match self.shape.dtype {
            KvDtype::Bf16 => self.bf16(place, d, KvShape::value_at),
            KvDtype::Int8 => self.gathered(d, |d| self.value_int(place, d)) as f32 * self.value_scale(place),
        }
    }

    /// Element `d` of a head, rotated back, from its stored integers.
    fn gathered(&self, d: usize, int: impl Fn(usize) -> i8) -> i32 {
        let run = self.shape.run();
        let first = d / run * run;
        gathered_int((first..first + run).map(int), d)
    }

    fn bf16(&self, place: KvPlace, d: usize, at: fn(&KvShape, KvPlace, usize) -> usize) -> f32 {
        assert!(d < self.shape.head_dim);
        bf16_value(u16::from_ne_bytes(self.bytes(place, |shape, place| at(shape, place, d))))
    }

    /// Bytes at the offset that `at` computes from a part's shape.
    fn bytes<const N: usize>(&self, place: KvPlace, at: impl Fn(&KvShape, KvPlace) -> usize) -> [u8; N] {
        self.shape.check(place);
        let part = self.part(place.kv_head);
        let at = at(&part.shape, part.within(place));
        std::array::from_fn(|i| part.data[at + i])
    }

    /// Element `d` of an int8 key, still rotated and without its scale.
    pub(crate) fn key_int(&self, place: KvPlace, d: usize) -> i8 {
        assert!(d < self.shape.head_dim && self.shape.dtype == KvDtype::Int8);
        i8::from_ne_bytes(self.bytes(place, |shape, place| shape.key_at(place, d)))
    }

    /// Element `d` of an int8 value, still rotated and without its scale.
    pub(crate) fn value_int(&self, place: KvPlace, d: usize) -> i8 {
        assert!(d < self.shape.head_dim && self.shape.dtype == KvDtype::Int8);
        i8::from_ne_bytes(self.bytes(place, |shape, place| shape.value_at(place, d)))
    }

    /// The scale of an int8 key.
    pub(crate) fn key_scale(&self, place: KvPlace) -> f32 {
        self.scale(place, 0)
    }

    /// The scale of an int8 value.
    pub(crate) fn value_scale(&self, place: KvPlace) -> f32 {
        self.scale(place, self.shape.block_size)
    }

    fn scale(&self, place: KvPlace, further: usize) -> f32 {
        assert!(self.shape.dtype == KvDtype::Int8);
        f32::from_ne_bytes(self.bytes(place, |shape, place| shape.scale_at(place) + further * size_of::<f32>()))
    }

    /// Stores one head of one token. `key`, `value`: `[head_dim]`; of latent attention the value is empty.
    pub fn store(&mut self, place: KvPlace, key: &[f32], value: &[f32]) {
        let run = self.shape.run();
        match self.shape.dtype {
            KvDtype::Bf16 => {
                let (mut key_bits, mut value_bits) = ([0; MAX_HEAD_DIM], [0; MAX_HEAD_DIM]);
                let (key_bits, value_bits) = (&mut key_bits[..key.len()], &mut value_bits[..value.len()]);
                key_bits.iter_mut().zip(key).for_each(|(bits, &x)| *bits = bf16_bits(x));
                value_bits.iter_mut().zip(value).for_each(|(bits, &x)| *bits = bf16_bits(x));
                self.writer().store_bf16(place, key_bits, value_bits);
            }
            KvDtype::Int8 => {
                let spread = |head: &[f32]| {
                    let mut numbers = [0.0; MAX_HEAD_DIM];
                    numbers[..head.len()].copy_from_slice(head);
                    spread(&mut numbers[..head.len()], run);
                    numbers
                };
                let (spread_key, spread_value) = (spread(key), spread(value));
                self.writer().store_int8(place, &spread_key[..key.len()], &spread_value[..value.len()]);
            }
        }
    }

    /// Copies whole blocks `(src, dst)` in every layer, one pair after the other.
    ///
    /// Panics if a block is out of range.
    pub fn copy_blocks(&mut self, copies: &[(u32, u32)]) {
        let blocks = self.shape.blocks;
        for &(src, dst) in copies {
            let (src, dst) = (src as usize, dst as usize);
            assert!(src < blocks && dst < blocks, "copy {src} -> {dst} of {blocks} blocks");
            for part in &mut self.parts {
                for layer in 0..part.shape.layers {
                    let (from, to) = (part.layer_block(layer, src), part.layer_block(layer, dst).start);
                    part.data.copy_within(from, to);
                }
            }
        }
    }

    /// Copies one block's bytes ordered by layer, then head. Cost: reading and writing `out.len()` bytes of memory.
    ///
    /// Panics if the block is out of range, or `out` is not `shape.block_bytes()` long.
    pub fn read_block(&self, block: u32, out: &mut [u8]) {
        self.check_block(block, out.len());
        let mut rest = out;
        for (layer, part) in (0..self.shape.layers).flat_map(|layer| self.parts.iter().map(move |part| (layer, part))) {
            let from = &part.data[part.layer_block(layer, block as usize)];
            let (to, behind) = rest.split_at_mut(from.len());
            to.copy_from_slice(from);
            rest = behind;
        }
    }

    /// The reverse: `bytes` are the output of [`KvCache::read_block`] for some block, so they hold only stored values.
    ///
    /// Panics for the same arguments.
    pub fn write_block(&mut self, block: u32, bytes: &[u8]) {
        self.check_block(block, bytes.len());
        let mut rest = bytes;
        for layer in 0..self.shape.layers {
            for part in &mut self.parts {
                let at = part.layer_block(layer, block as usize);
                let (from, behind) = rest.split_at(at.len());
                part.data[at].copy_from_slice(from);
                rest = behind;
            }
        }
    }

    fn check_block(&self, block: u32, bytes: usize) {
        assert_eq!(bytes, self.shape.block_bytes(), "a block of every layer");
        assert!((block as usize) < self.shape.blocks, "block {block} of {}", self.shape.blocks);
    }

    /// A handle through which several threads may store tokens.
    pub(crate) fn writer(&mut self) -> Writer<'_> {
        Writer { shape: self.shape, parts: &self.parts }
    }
}

#[inline(always)]
fn part_of(parts: &[KvPart], kv_head: usize) -> &KvPart {
    match parts {
        [one] => one,
        parts => parts.iter().rev().find(|part| part.first_head <= kv_head).expect("the first begins with head 0"),
    }
}

/// Maximum head width, for buffers of fixed size.
pub(crate) const MAX_HEAD_DIM: usize = 576;

/// Stores tokens from several threads. Stores are relaxed atomics (plain moves on every CPU), so two rows with the same
/// slot, which the caller must not pass, give a wrong answer but not undefined behaviour. For the lifetime of a writer
/// the cache is borrowed mutably, and all access to its bytes is through it.
#[derive(Clone, Copy)]
pub(crate) struct Writer<'a> {
    shape: KvShape,
    parts: &'a [KvPart],
}

impl Writer<'_> {
    pub(crate) fn shape(&self) -> KvShape {
        self.shape
    }

    /// Stores one head of one token, given as bf16 bits. `key`, `value`: `[head_dim]`; of latent attention the value is
    /// empty, and one that is not finite becomes zeros with NaN in the rest of the key.
    pub(crate) fn store_bf16(&self, place: KvPlace, key: &[u16], value: &[u16]) {
        const NAN_PAIR: u32 = 0x7fc0_7fc0;
        self.shape.check(place);
        let part = part_of(self.parts, place.kv_head);
        let (shape, place, data) = (&part.shape, part.within(place), part.data.start());
        assert_eq!((key.len(), key.len() + value.len()), (shape.head_dim, shape.stored()));
        assert_eq!(shape.dtype, KvDtype::Bf16);
        let latent = shape.latent.unwrap_or(0);
        let finite = value.iter().chain(&key[..latent]).all(|bits| bits & 0x7f80 != 0x7f80);
        let (keys, values) = (shape.key_at(place, 0), shape.value_at(place, 0));
        for (i, pair) in key.as_chunks::<2>().0.iter().enumerate() {
            let pair = match finite {
                true => pair[0] as u32 | (pair[1] as u32) << 16,
                false if 2 * i < latent => 0,
                false => NAN_PAIR,
            };
            // SAFETY: `check` and the lengths keep the place inside the part; it is a multiple of 4.
            unsafe { AtomicU32::from_ptr(data.add(keys + i * LINE).cast()) }.store(pair, Relaxed);
        }
        for (group, lanes) in value.as_chunks::<16>().0.iter().enumerate() {
            for (i, &bits) in lanes.iter().enumerate() {
                let bits = if bits & 0x7f80 != 0x7f80 { bits } else { 0 };
                // SAFETY: as above, a multiple of 2.
                unsafe { AtomicU16::from_ptr(data.add(values + group * 16 * LINE + i * 4).cast()) }
                    .store(bits, Relaxed);
            }
        }
    }

    /// Stores one head of one token as int8. `key`, `value`: `[head_dim]`, rotated; of latent attention the value is empty,
    /// and has the scale of the key.
    #[inline(always)]
    pub(crate) fn store_int8(&self, place: KvPlace, key: &[f32], value: &[f32]) {
        self.shape.check(place);
        let part = part_of(self.parts, place.kv_head);
        let (shape, place, data) = (&part.shape, part.within(place), part.data.start());
        assert_eq!((key.len(), key.len() + value.len()), (shape.head_dim, shape.stored()));
        assert_eq!(shape.dtype, KvDtype::Int8);
        let (mut key_ints, mut value_ints) = ([0; MAX_HEAD_DIM], [0; MAX_HEAD_DIM]);
        let (key_scale, _) = quantize_row(key, &mut key_ints[..key.len()]);
        let value_scale = match shape.latent {
            Some(_) => key_scale,
            None => quantize_row(value, &mut value_ints[..value.len()]).0,
        };
        // A non-finite value was quantized to zeros with scale NaN: the NaN moves to the key's scale.
        let (key_scale, value_scale) = if value_scale.is_nan() { (f32::NAN, 0.0) } else { (key_scale, value_scale) };
        // A power of two: rotating back with the same steps multiplies by it.
        let run = shape.run() as f32;
        let (keys, values) = (shape.key_at(place, 0), shape.value_at(place, 0));
        for (i, quad) in key_ints[..key.len()].as_chunks::<4>().0.iter().enumerate() {
            let quad = u32::from_ne_bytes(quad.map(|x| x as u8));
            // SAFETY: `check` and the lengths keep the place inside the part; it is a multiple of 4.
            unsafe { AtomicU32::from_ptr(data.add(keys + i * LINE).cast()) }.store(quad, Relaxed);
        }
        for (group, lanes) in value_ints[..value.len()].as_chunks::<16>().0.iter().enumerate() {
            for (i, &x) in lanes.iter().enumerate() {
                // SAFETY: as above.
                unsafe { AtomicU8::from_ptr(data.add(values + group * 8 * LINE + i * 4)) }.store(x as u8, Relaxed);
            }
        }
        for (further, scale) in [(0, key_scale), (shape.block_size, value_scale)] {
            let at = shape.scale_at(place) + further * size_of::<f32>();
            // SAFETY: as above; blocks, heads and scales begin at multiples of 64.
            unsafe { AtomicU32::from_ptr(data.add(at).cast()) }.store((scale / run).to_bits(), Relaxed);
        }
    }
}
