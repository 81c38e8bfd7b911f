//! Multi-head latent attention (DeepSeek-AI, 2024): what is between its products and attention over the cache.
//!
//! ```text
//! query of a head   [ plain | turning ]                        key of a token, for all heads   [ latent | turning ]
//! absorbed          [ Kh^T plain | turning, rotated ]          stored                          [ norm(latent) | rotated ]
//! attention         sum of p * latent   of each head           value of the head               Vh of that
//! ```
//! Keys and values of a head would be `Kh latent` and `Vh latent`: absorbed into the query and taken out of the sum, these
//! products are made once a row and not once a token that it sees. Prefill and decode compute the same, so that both
//! have the same bits.

use crate::kv_cache::{KvCache, KvDtype, KvPlace, MAX_HEAD_DIM, Writer};
use crate::mem::Buffer;
use crate::pointwise::{Plain, RowOps, Shared, Vectors, share_rows};
use crate::simd::{Kernel, Simd, dispatch};
use crate::threads::Pool;
use crate::{HeadLayout, Isa, RopeTable};

/// Widths of a layer of latent attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentShape {
    /// Query heads.
    pub num_heads: usize,
    /// Width of a latent; a multiple of 16.
    pub rank: usize,
    /// Numbers of a query head that meet keys without a position.
    pub plain: usize,
    /// Numbers of a query head, and of a key, that turn; a multiple of 16.
    pub turning: usize,
    /// Width of a head's value.
    pub value: usize,
}

impl LatentShape {
    /// Heads as attention over the cache has them.
    pub fn layout(&self) -> HeadLayout {
        HeadLayout {
            num_heads: self.num_heads,
            num_kv_heads: 1,
            head_dim: self.rank + self.turning,
            latent: Some(self.rank),
            ..HeadLayout::default()
        }
    }

    /// Width of a row of queries as the projection makes them.
    pub fn query_width(&self) -> usize {
        self.num_heads * (self.plain + self.turning)
    }

    /// Where the numbers of the heads are that are absorbed, and where they go.
    pub fn absorbed(&self) -> [HeadColumns; 2] {
        let (head, key) = (self.plain + self.turning, self.rank + self.turning);
        [
            HeadColumns { width: self.num_heads * head, stride: head },
            HeadColumns { width: self.num_heads * key, stride: key },
        ]
    }

    /// Where the heads' sums are, and where their values go.
    pub fn expanded(&self) -> [HeadColumns; 2] {
        [self.rank, self.value].map(|stride| HeadColumns { width: self.num_heads * stride, stride })
    }
}

/// Where the numbers of a head are in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadColumns {
    /// Numbers of a row.
    pub width: usize,
    /// From the first number of a head to that of the next; the first head's is the row's.
    pub stride: usize,
}

/// What is between the products of a row and attention. `V`: a backend's vectors.
pub struct Latents<'a, V = Buffer<f32>> {
    /// Widths of the layer.
    pub shape: LatentShape,
    /// Weight of the latents' norm, `[rank]`.
    pub norm: &'a V,
    /// Added under its root.
    pub eps: f32,
    /// Rotation by position, of all turning numbers. Queries are multiplied by [`RopeTable::query_factor`] behind it.
    /// `None`: nothing turns.
    pub rope: Option<&'a RopeTable<V>>,
    /// Layer index in the cache.
    pub layer: usize,
}

impl<V> Clone for Latents<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for Latents<'_, V> {}

/// Rows of a step.
pub struct LatentRows<'a> {
    /// f32 `[rows, shape.query_width()]`.
    pub queries: &'a [f32],
    /// f32 `[rows, rank + turning]`; becomes the keys.
    pub keys: &'a mut [f32],
    /// f32 `[rows, num_heads * (rank + turning)]`, of which the absorbed numbers are there.
    pub absorbed: &'a mut [f32],
    /// `[rows]`, as [`RotateAndStore::positions`](crate::RotateAndStore::positions).
    pub positions: &'a [u32],
}

/// Norms latents, rotates, and completes the queries; `store` takes the index and the key of each row, from several
/// threads. Cost: a pass over the rows.
///
/// Panics when shapes disagree, and when a position is out of range.
pub(crate) fn latents(
    pool: Option<&Pool>,
    isa: Isa,
    how: Latents<'_>,
    rows: LatentRows<'_>,
    store: &(dyn Fn(usize, &mut [f32]) + Sync),
) {
    let Latents { shape, norm, eps, rope, .. } = how;
    let LatentRows { queries, keys, absorbed, positions } = rows;
    let (count, layout, query_width) = (positions.len(), shape.layout(), shape.query_width());
    let turning = rope.map_or(shape.turning, RopeTable::rotary_dim);
    assert_eq!((norm.len(), turning), (shape.rank, shape.turning), "{shape:?}");
    assert_eq!(queries.len(), count * query_width, "queries of {shape:?}");
    assert_eq!((keys.len(), absorbed.len()), (count * layout.head_dim, count * layout.q_width()), "{shape:?}");
    let (keys, absorbed) = (Shared::new(keys), Shared::new(absorbed));
    share_rows(pool, count, layout.q_width(), &|rows| {
        for row in rows {
            let position = positions[row] as usize;
            // SAFETY: each row is in one range.
            let (key, absorbed) = unsafe {
                let key = keys.part(row * layout.head_dim..(row + 1) * layout.head_dim);
                (key, absorbed.part(row * layout.q_width()..(row + 1) * layout.q_width()))
            };
            let queries = &queries[row * query_width..(row + 1) * query_width];
            let angles = rope.map(|rope| rope.at(position));
            let factor = rope.and_then(|rope| rope.query_factor(position));
            dispatch(isa, Row { shape, norm, eps, angles, factor, queries, key: &mut *key, absorbed });
            store(row, key);
        }
    });
}

struct Row<'a> {
    shape: LatentShape,
    norm: &'a [f32],
    eps: f32,
    angles: Option<(&'a [f32], &'a [f32])>,
    factor: Option<f32>,
    queries: &'a [f32],
    key: &'a mut [f32],
    absorbed: &'a mut [f32],
}

impl Row<'_> {
    #[inline(always)]
    fn each(self, ops: impl RowOps) {
        let Row { shape: LatentShape { rank, plain, turning, .. }, norm, eps, angles, .. } = self;
        let (latent, turned) = self.key.split_at_mut(rank);
        let mut normed = [0.0; MAX_HEAD_DIM];
        ops.scale(latent, ops.inverse_rms(latent, eps), norm, &mut normed[..rank]);
        latent.copy_from_slice(&normed[..rank]);
        if let Some((cos, sin)) = angles {
            ops.rotate(turned, cos, sin);
        }
        let heads = self.queries.chunks_exact(plain + turning).zip(self.absorbed.chunks_exact_mut(rank + turning));
        for (query, absorbed) in heads {
            let turned = &mut absorbed[rank..];
            turned.copy_from_slice(&query[plain..]);
            if let Some((cos, sin)) = angles {
                ops.rotate(turned, cos, sin);
            }
            if let Some(factor) = self.factor {
                ops.multiply(factor, absorbed);
            }
        }
    }
}

impl Kernel for Row<'_> {
    type Output = ();

    fn define(self) {
        self.each(Plain);
    }

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.each(Vectors(s));
    }
}

/// [`latents`] with a KV cache. `slots`: as [`RotateAndStore::slots`](crate::RotateAndStore::slots).
pub(crate) fn store_latents(
    pool: Option<&Pool>,
    isa: Isa,
    how: Latents<'_>,
    rows: LatentRows<'_>,
    (kv, slots): (&mut KvCache, &[u32]),
) {
    let (Latents { shape, layer, .. }, of_cache) = (how, kv.shape());
    let layout = shape.layout();
    assert_eq!(
        (1, layout.head_dim, layout.latent),
        (of_cache.num_kv_heads, of_cache.head_dim, of_cache.latent),
        "cache shape does not match the model"
    );
    assert!(layout.head_dim <= MAX_HEAD_DIM && slots.len() == rows.positions.len(), "{shape:?}");
    let cache = kv.writer();
    latents(pool, isa, how, rows, &|row, key| {
        let place = KvPlace { layer, slot: slots[row] as usize, kv_head: 0 };
        dispatch(isa, Store { cache, place, key });
    });
}

struct Store<'a> {
    cache: Writer<'a>,
    place: KvPlace,
    key: &'a mut [f32],
}

impl Store<'_> {
    #[inline(always)]
    fn each(self, ops: impl RowOps) {
        let Store { cache, place, key } = self;
        match cache.shape().dtype {
            KvDtype::Bf16 => {
                let mut bits = [0; MAX_HEAD_DIM];
                ops.to_bf16(key, &mut bits[..key.len()]);
                cache.store_bf16(place, &bits[..key.len()], &[]);
            }
            KvDtype::Int8 => {
                ops.spread(key, cache.shape().run());
                cache.store_int8(place, key, &[]);
            }
        }
    }
}

impl Kernel for Store<'_> {
    type Output = ();

    fn define(self) {
        self.each(Plain);
    }

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.each(Vectors(s));
    }
}

/// The numbers of each head of rows of `columns.width` numbers, `len` of them: head by head, `[heads, rows, len]`. There
/// may be others behind the heads.
pub(crate) fn by_head(pool: Option<&Pool>, x: &[f32], columns: HeadColumns, len: usize, out: &mut [f32]) {
    let rows = x.len() / columns.width;
    let heads = out.len().checked_div(rows * len).unwrap_or(0);
    let out = Shared::new(out);
    share_rows(pool, rows, columns.width, &|part| {
        for row in part {
            let of_row = x[row * columns.width..][..columns.width].chunks_exact(columns.stride);
            for (head, x) in of_row.take(heads).enumerate() {
                let at = (head * rows + row) * len;
                // SAFETY: each row is in one range.
                unsafe { out.part(at..at + len) }.copy_from_slice(&x[..len]);
            }
        }
    });
}
