//! Attention over the paged KV cache; keys and values come from the cache only.
//!
//! ```text
//! row        one query head of one token; it sees its position and earlier ones, or those of its span's later rows
//!            too (encoders), and of all these only what is less than `window` away
//! split      256 positions, counted from 0: scores, softmax and weighted sum are complete within a split
//! fold       splits are joined in order
//!
//! tile       up to 16 rows, 32 of a matrix unit, that share a kv head (tokens x heads of its group): each key and value is
//!            read once for all
//! whole      one thread computes all splits of a tile and folds them as it goes
//! shared     several threads compute the splits of a tile; the results are folded in the same order afterwards
//! ```
//! The choice between `whole` and `shared` depends on cost only: whether one tile would keep all threads waiting. Decode
//! and prefill rows may take either.
//!
//! # The definition
//!
//! [`define`] has it in plain loops; [`tile`] repeats it with vectors. Within a split (blockwise softmax as in
//! FlashAttention: Dao et al., 2022; splits as in Flash-Decoding: Dao et al., 2023):
//! scores `s_j = dot(q, k_j) * scale` (then `cap tanh(s_j / cap)` if the rule has a softcap), their maximum `m`,
//! weights `p_j = bf16(exp(s_j - m))` (0 below e^-27.5), `l = sum p_j` in 16 lanes (`j mod 16`),
//! `o[d] = dot(p, v[.., d])`. `dot` follows the [`AccumulationOrder`]: `vdpbf16ps` or AMX's `TDPBF16PS`, bit for bit.
//!
//! With an int8 cache, both products are exact integer sums. Queries, keys and values are first rotated over their heads
//! (see `spread`) and the weighted sum of the values is rotated back last, after the fold and the division. The
//! query is int8 too, with one scale: `s_j = (sum q_d k_jd * (q scale * scale)) * k_j scale`. Weights
//! `p_j = exp(s_j - m)` (0 below e^-27.5) are not rounded, `l = sum p_j` as above. With `w_j = p_j * v_j scale` and `W`
//! their largest, `n_j = w_j * (16383 / W)` to nearest even, and `o[d] = (sum n_j v_jd) * (W / 16383)`.
//!
//! Nothing depends on the other rows, on a row's chunk, on the location of blocks, or on the thread: masked positions
//! have the weight +0, and adding `0 * v` changes no bit while `v` is finite (see [`crate::kv_cache`]). For the same
//! reason 32 positions that are all masked, before a window or after the row, may be omitted from a split. A split of
//! which a row sees nothing is omitted from its fold: the first visible split begins it.
//!
//! With latent attention the value of a token is the first numbers of its key, as the cache has them.
//!
//! A head's sink is folded after the last split, as one of its own: `m` is the sink, `l = 1`, `o = 0`.

mod define;
pub(crate) mod int8;
pub(crate) mod matrix;
mod shared;
pub(crate) mod tile;
mod whole;

use crate::accumulation_order::AccumulationOrder;
use crate::arch::native::{self, AttentionPairs, AttentionTiles};
use crate::isa::{Isa, TilesProof};
use crate::kv_cache::{KvCache, KvDtype, MAX_HEAD_DIM};
use crate::pointwise::Shared;
use crate::threads::{Pool, share};
use crate::{Attention, AttentionSpan, HeadLayout};
use std::cell::RefCell;
use std::ops::Range;
use tile::{ROWS, Tile, VECTOR_ROWS};

/// Positions per split.
const SPLIT: usize = 256;

/// Inputs of a call, shared by its tasks, and the output rows.
struct Call<'a> {
    isa: Isa,
    arithmetic: AccumulationOrder,
    tiles: Option<TilesProof>,
    /// Minimum rows of a tile for a matrix unit: smaller tiles leave the matrix unit idle, and vectors keep up with memory.
    tiles_from_rows: usize,
    args: Attention<'a>,
    kv: &'a KvCache,
    out: Shared<'a, f32>,
}

impl Call<'_> {
    /// Query heads per kv head.
    fn group(&self) -> usize {
        self.args.layout.num_heads / self.args.layout.num_kv_heads
    }

    /// Positions that row `token` of a span sees.
    #[inline(always)]
    fn seen(&self, span: &AttentionSpan<'_>, token: usize) -> Range<usize> {
        self.args.rule.seen(span.start + token, span.start + span.num_rows)
    }

    /// The unit for the products of a tile of `rows` rows.
    fn unit(&self, rows: usize) -> Unit {
        let dtype = self.kv.shape().dtype;
        if let Some(proof) = self.matrix_unit().filter(|_| rows >= self.tiles_from_rows) {
            return Unit::Tiles(match dtype {
                KvDtype::Bf16 => AttentionTiles::configure(proof, rows),
                KvDtype::Int8 => AttentionTiles::configure_int8(proof, rows, self.args.layout.head_dim),
            });
        }
        let pairs = dtype == KvDtype::Bf16 && self.arithmetic == AccumulationOrder::Vdpbf16;
        let narrow = native::narrow(self.isa).filter(|_| pairs);
        narrow.map_or(Unit::Vectors, |proof| Unit::Pairs(AttentionPairs::new(proof)))
    }

    /// The matrix unit, where it computes the definition: keys and values of bf16 must be whole steps of 32 wide.
    fn matrix_unit(&self) -> Option<TilesProof> {
        let HeadLayout { head_dim, .. } = self.args.layout;
        let whole = head_dim.is_multiple_of(32) && self.args.layout.value_dim().is_multiple_of(32);
        self.tiles.filter(|_| match self.kv.shape().dtype {
            KvDtype::Bf16 => self.arithmetic == AccumulationOrder::Amx && whole,
            KvDtype::Int8 => true,
        })
    }

    /// Maximum rows of a tile: as many as a matrix unit shares a load among, unless that leaves threads without a tile.
    fn tile_rows(&self, threads: usize) -> usize {
        let of_span = |span: &AttentionSpan<'_>| (span.num_rows * self.group()).div_ceil(ROWS);
        let tiles = self.args.spans.iter().map(of_span).sum::<usize>() * self.args.layout.num_kv_heads;
        let enough = threads == 1 || tiles >= TILES_PER_THREAD * threads;
        if enough && self.matrix_unit().is_some() { ROWS } else { VECTOR_ROWS }
    }

    /// The output of one head of one row.
    ///
    /// # Safety
    /// No other task writes it.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)] // as `Shared::part`
    unsafe fn out(&self, row: usize, head: usize) -> &mut [f32] {
        let HeadLayout { num_heads, .. } = self.args.layout;
        let (at, width) = (row * num_heads + head, self.args.layout.value_dim());
        // SAFETY: by the caller's word.
        unsafe { self.out.part(at * width..(at + 1) * width) }
    }
}

/// The unit that multiplies.
enum Unit {
    /// Fused multiply-adds, on operands widened to f32; sums of integers.
    Vectors,
    /// `vdpbf16ps`, for bf16.
    Pairs(AttentionPairs),
    /// `TDPBF16PS`, `TDPBSSD`.
    Tiles(AttentionTiles),
}

/// A tile, or some of its splits: the unit of work of a thread.
struct Task {
    tile: u32,
    /// Range of the tile's splits, counted from its first visible one.
    splits: Range<u32>,
    cost: u64,
    /// Memory node of its keys and values.
    node: u32,
}

/// A tile whose splits are computed by several tasks.
struct Shard {
    tile: u32,
    /// Start of its partial results.
    partials: usize,
}

/// Scratch of the calling thread, reused between calls.
#[derive(Default)]
struct Plan {
    tiles: Vec<Tile>,
    tasks: Vec<Task>,
    shards: Vec<Shard>,
    partials: Vec<f32>,
}

thread_local! {
    static PLAN: RefCell<Plan> = RefCell::default();
}

/// Calls with fewer scores (rows x positions) run on one thread: waking others costs more.
const SHARE_FROM: u64 = 1 << 12;

/// Attention of every row of the spans. Shapes: see [`crate::Backend::attend`].
///
/// Panics when shapes disagree, when spans are not in row order, or when a block table is too short or contains an
/// invalid block.
pub fn attend(
    pool: Option<&Pool>,
    isa: Isa,
    arithmetic: AccumulationOrder,
    args: Attention<'_>,
    kv: &KvCache,
    out: &mut [f32],
) {
    let tiles = native::tiles(isa);
    let isa = if native::has_lanes(isa) { isa } else { Isa::Scalar };
    run(pool, Call { isa, arithmetic, tiles, tiles_from_rows: TILES_FROM_ROWS, args, kv, out: Shared::new(out) });
}

/// As [`attend`], with AMX for every tile and without detecting it: for tests with emulated tiles.
#[doc(hidden)]
pub fn attend_with_tiles(pool: Option<&Pool>, tiles: TilesProof, args: Attention<'_>, kv: &KvCache, out: &mut [f32]) {
    let (isa, arithmetic, out) = (Isa::Amx, AccumulationOrder::Amx, Shared::new(out));
    run(pool, Call { isa, arithmetic, tiles: Some(tiles), tiles_from_rows: 1, args, kv, out });
}

/// Minimum rows of a tile for a matrix unit.
const TILES_FROM_ROWS: usize = 5;

/// Minimum tiles of [`ROWS`] rows for each thread; with fewer, tiles of half as many spread the work better.
const TILES_PER_THREAD: usize = 4;

fn run(pool: Option<&Pool>, call: Call<'_>) {
    check(&call);
    PLAN.with_borrow_mut(|plan| {
        plan.make(&call, pool);
        plan.run(&call, pool);
    });
}

impl Plan {
    /// Cuts the spans into tiles, and expensive tiles, which would keep the other threads waiting, into runs of splits.
    fn make(&mut self, call: &Call<'_>, pool: Option<&Pool>) {
        let threads = pool.map_or(1, Pool::threads);
        let tile_rows = call.tile_rows(threads);
        let node_of = |kv_head: usize| match pool.map(Pool::nodes) {
            Some(nodes) if nodes.len() > 1 => nodes.of(call.args.layout.num_kv_heads, kv_head) as u32,
            _ => 0,
        };
        self.tiles.clear();
        self.tasks.clear();
        self.shards.clear();
        let mut total = 0;
        for (index, span) in call.args.spans.iter().enumerate() {
            let rows = span.num_rows * call.group();
            for kv_head in 0..call.args.layout.num_kv_heads {
                for first in (0..rows).step_by(tile_rows) {
                    let tile = Tile::new(call, index, kv_head, first..rows.min(first + tile_rows));
                    total += tile.cost();
                    self.tiles.push(tile);
                }
            }
        }
        let fair = (total / (4 * threads as u64)).max(1);
        let mut partials = 0;
        for (index, tile) in self.tiles.iter_mut().enumerate() {
            let (cost, splits, node) = (tile.cost(), tile.splits(), node_of(tile.kv_head));
            let pieces = cost.div_ceil(fair).min(splits.len() as u64) as usize;
            if threads == 1 || total < SHARE_FROM || pieces == 1 || call.isa == Isa::Scalar {
                self.tasks.push(Task { tile: index as u32, splits: 0..splits.len() as u32, cost, node });
                continue;
            }
            for piece in 0..pieces {
                let splits = share(splits.len(), pieces, piece);
                let cost = cost / pieces as u64;
                let splits = splits.start as u32..splits.end as u32;
                self.tasks.push(Task { tile: index as u32, splits, cost, node });
            }
            self.shards.push(Shard { tile: index as u32, partials });
            tile.partials = Some(partials);
            partials += splits.len() * tile.partials_len(call);
        }
        if self.partials.len() < partials {
            self.partials.resize(partials.next_power_of_two(), 0.0);
        }
        // Longest first on each node, so that the last task to end is short.
        self.tasks.sort_unstable_by_key(|task| (task.node, std::cmp::Reverse(task.cost)));
    }

    fn run(&mut self, call: &Call<'_>, pool: Option<&Pool>) {
        let Plan { tiles, tasks, shards, partials } = self;
        let pool = pool.filter(|_| tasks.iter().map(|task| task.cost).sum::<u64>() >= SHARE_FROM);
        let shared = Shared::new(partials);
        let compute = |task: usize| {
            let task = &tasks[task];
            let tile = &tiles[task.tile as usize];
            if let Some(at) = tile.partials {
                let splits = task.splits.start as usize..task.splits.end as usize;
                let len = tile.partials_len(call);
                // SAFETY: each split of a tile is in one task, and tiles have partials of their own.
                let partials = unsafe { shared.part(at + splits.start * len..at + splits.end * len) };
                shared::partials(call, tile, splits, partials);
            } else {
                whole::tile(call, tile);
            }
        };
        let first = |node: usize| tasks.partition_point(|task| (task.node as usize) < node);
        match pool {
            Some(pool) => pool.tasks_by_node(tasks.len(), &first, &compute),
            None => (0..tasks.len()).for_each(compute),
        }
        if !shards.is_empty() {
            let fold = |shard: usize| {
                let Shard { tile, partials: at } = shards[shard];
                let tile = &tiles[tile as usize];
                let len = tile.splits().len() * tile.partials_len(call);
                shared::fold(call, tile, &partials[at..at + len]);
            };
            match pool {
                Some(pool) => pool.tasks(shards.len(), &fold),
                None => (0..shards.len()).for_each(fold),
            }
        }
    }
}

fn check(call: &Call<'_>) {
    let Call { args: Attention { qkv, layout, rule, sinks, spans, layer }, kv, out, .. } = call;
    let shape = kv.shape();
    let rows = qkv.len() / layout.qkv_width();
    let heads = (layout.num_kv_heads, layout.head_dim, layout.latent);
    assert_eq!(heads, (shape.num_kv_heads, shape.head_dim, shape.latent), "cache shape does not match the model");
    assert!(layout.num_heads.is_multiple_of(layout.num_kv_heads), "{layout:?}");
    assert!(layout.head_dim <= MAX_HEAD_DIM, "{layout:?}");
    assert_eq!((qkv.len(), out.len()), (rows * layout.qkv_width(), rows * layout.out_width()));
    assert!(rule.window != Some(0) && rule.scale > 0.0 && rule.softcap.is_none_or(|cap| cap > 0.0), "{rule:?}");
    assert!(sinks.is_none_or(|sinks| sinks.len() == layout.num_heads), "no sink for each of {layout:?}");
    assert!(*layer < shape.layers, "layer {layer} of {}", shape.layers);
    let mut next_row = 0;
    for span in *spans {
        assert!(span.first_row >= next_row, "spans are not in row order");
        // Checked: rows that wrap around would overlap another span's, and two tasks would write them.
        let end = |start: usize| start.checked_add(span.num_rows).expect("span end overflows");
        next_row = end(span.first_row);
        let blocks = end(span.start).div_ceil(shape.block_size);
        assert!(blocks <= span.blocks.len(), "a table of {} blocks for {blocks}", span.blocks.len());
        let known = span.blocks[..blocks].iter().all(|&block| (block as usize) < shape.blocks);
        assert!(known, "a block of {:?} is not among {}", span.blocks, shape.blocks);
    }
    assert!(next_row <= rows, "spans with {next_row} rows in a batch of {rows}");
}
