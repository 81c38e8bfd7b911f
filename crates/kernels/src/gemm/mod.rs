//! Matrix products: any number of rows times a packed matrix.
//!
//! ```text
//! linear      activations -> scratch (digits and scale, or bf16)         once per call
//!             rows x pairs cut into panels, panels spread over threads   pairs of strips are 32 output columns
//!             for the matrix unit into a cell for each thread            tiles.rs, crate::arch::native::tile_panel
//! panel       for each group of pairs that fits L2, for each block of 1..=12 rows, for each pair:
//!               kernel   all of K, sums in registers    scalar.rs, or those of crate::arch::native
//!               finish   outliers, scales, bias, residual         epilogue.rs
//!               gate     32 columns of gate and up become 16
//! ```
//! Definition of a result, per row and column (the cutting above cannot change it):
//!
//! * int8, int4: inputs are multiplied by the powers of two of the matrix, if it has any, and become digits; weights are
//!   `ratio * q` (int4 with uneven levels: `ratio * level`), activations digits
//!   `low + 255 * middle + 65,025 * high` ([`quantize_activations`](crate::quant::quantize_activations)). For each
//!   digit `T` = the exact sum over K; packing ensures that it fits i32. `s = T_low as f32`, then
//!   `s = fma(255, T_middle as f32, s)` and `s = fma(65025, T_high as f32, s)`; `y = (s * row_scale) * column_scale`.
//! * int8, int4 in the quantization groups of a file: for the low digits `C = 0`, and for each group in order
//!   `C = fma(T_group as f32, scale, C)` with the exact sum over the group, then `C = fma(X_group as f32, min, C)` with
//!   the sum of its digits, if there are minima; for the middle and high digits the same, quad by quad of their lists.
//!   The digits are joined as above; `y = s * row_scale`.
//! * bf16: the sum in one of the two [accumulation orders](crate::accumulation_order), `vdpbf16ps` or the tile instruction
//!   `TDPBF16PS` (Intel SDM volume 2). The other instruction sets reproduce the selected one.
//! * then `y + bias`, then `out + y` for [`Out::Add`], or [`gated`](crate::pointwise::gated) for [`Out::Gated`].

pub(crate) mod activations;
pub(crate) mod epilogue;
pub(crate) mod scalar;
pub(crate) mod tiles;

pub(crate) use activations::{Activations, Lists, Scratch};

use crate::accumulation_order::AccumulationOrder;
use crate::arch::native::{self, prefetch};
use crate::isa::{Isa, TilesProof};
use crate::latent::by_head;
use crate::pointwise::Activation;
use crate::quant::{BlockFormat, Codes, Levels, Outlier, PAIR, PLANES, PackedMatrix, Scales, WeightClass};
use crate::threads::{Pool, share};
use crate::{HeadColumns, Out};
use std::borrow::Borrow;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Up to this number of rows, threads take contiguous shares of the columns, fixed except at their ends: a thread reads
/// the same weights in every step. More rows are cut into panels of this size, claimed by free threads.
pub(crate) const PANEL_ROWS: usize = 96;
/// Bytes of the pairs of strips that all blocks of a panel read before the next ones: two such groups, the current one
/// and the prefetched one, fit an L2 cache of 1 MiB.
const GROUP_BYTES: usize = 320 << 10;
/// Prefetch distance of a single block of rows. One or two rows are so fast that the hardware prefetcher does most of
/// the work and a long distance only disturbs it (Zen 4: int8 38 GB/s at 2 KiB, 31 at 8; with six rows 30 and 33, with
/// eight 17 and 28).
const fn prefetch_bytes(rows: usize) -> usize {
    if rows <= 2 { 2 << 10 } else { 8 << 10 }
}

/// Arguments of a kernel: a block of rows and one pair of strips over all of K.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    /// First activation row.
    pub(crate) x: *const u8,
    /// Row stride of the activations in bytes.
    pub(crate) x_stride: usize,
    /// Int8: `[groups][32]`.
    pub(crate) ratios: *const u8,
    /// `[steps]` of the weight class.
    pub(crate) tiles: *const u8,
    pub(crate) steps: usize,
    /// Prefetch address: a step's bytes from here, then from `ahead_stride` further on.
    pub(crate) ahead: *const u8,
    pub(crate) ahead_stride: usize,
    /// Layout of a file's quantization groups, if the weights have them; alive while the kernel runs.
    pub(crate) groups: *const Groups,
    /// Result, `[rows][32]` f32 or i32.
    pub(crate) sums: *mut u32,
}

/// Computes `block.sums` for the kernel's number of rows.
///
/// # Safety
/// The pointers of the block cover the kernel's rows, the strides and steps are correct, the activations are in the
/// kernel's [`Format`], and the CPU has the kernel's instructions, which a [`Path`] proves.
pub(crate) type Kernel = unsafe fn(Block);

/// Layout of a file's quantization groups in a step: [`BlockFormat`] in a form for kernels.
#[derive(Clone, Copy)]
pub(crate) struct Groups {
    /// For 4-bit codes: the level of each, plus 128.
    pub(crate) levels: [u8; 16],
    pub(crate) scales: Scales,
    pub(crate) mins: bool,
    pub(crate) scale_bytes: usize,
    pub(crate) step_bytes: usize,
}

impl Groups {
    fn of(format: &BlockFormat) -> Groups {
        let levels = match format.codes {
            Codes::Four { levels } => levels.map(|level| (level as u8).wrapping_add(128)),
            Codes::Eight => [0; 16],
        };
        let (scale_bytes, _) = format.scale_bytes();
        Groups { levels, scales: format.scales, mins: format.mins, scale_bytes, step_bytes: format.step_bytes() }
    }

    /// Offset of the tiles in a step.
    pub(crate) fn tiles(&self) -> usize {
        if self.mins { 2 * self.scale_bytes } else { self.scale_bytes }
    }
}

/// The outlier digits of a block's rows, against one pair of strips.
pub(crate) struct OutlierBlock<'a> {
    /// Int8: `[groups][32]`.
    pub(crate) ratios: *const u8,
    /// `[steps]` of the weight class.
    pub(crate) tiles: *const u8,
    /// As in [`Block`].
    pub(crate) groups: Option<&'a Groups>,
    /// The block's rows.
    pub(crate) lists: Lists<'a>,
    /// Result, `[rows][PLANES][32]`, f32 for the groups of a file, else i32. Not written where a list is empty.
    pub(crate) sums: *mut [[u32; PAIR]; PLANES],
}

impl OutlierBlock<'_> {
    /// Calls `product(list, sums)` for each non-empty list.
    ///
    /// # Safety
    /// The caller's `sums` have room for the rows.
    #[inline(always)]
    pub(crate) unsafe fn each(&self, mut product: impl FnMut(&[Outlier], &mut [u32; PAIR])) {
        for row in 0..self.lists.rows() {
            for plane in 0..PLANES {
                let list = self.lists.of(row, plane);
                if list.is_empty() {
                    break; // without middle digits there are no high ones
                }
                // SAFETY: the caller's promise; zeros are numbers.
                let sums = unsafe {
                    let sums = self.sums.add(row).cast::<[u32; PAIR]>().add(plane);
                    sums.write([0; PAIR]);
                    &mut *sums
                };
                product(list, sums);
            }
        }
    }
}

/// Writes the outliers' products to `block.sums`.
///
/// # Safety
/// The pointers cover the pair of strips, the quads lie within it, and the CPU has the kernel's instructions.
pub(crate) type Outliers = unsafe fn(OutlierBlock<'_>);

/// Bf16 has no outlier digits.
pub(crate) unsafe fn no_outliers(_: OutlierBlock<'_>) {}

/// A kernel's activation format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    /// i8, K padded to 64, followed by -128 times the sum of each group of 128, i32: the initial value of a group's sum in
    /// kernels that take weights as unsigned, `w + 128`. Scales and outliers are stored separately.
    Int8,
    /// As `Int8`, but followed by the initial value of each group of 32 in int4 kernels, u32: the low 16 bits of -8 times
    /// the group's sum. With it, nibbles `q + 8` give the sum of `q * x`: at most 32 * 8 * 127 = 32 512 in magnitude, so
    /// 16 bits hold it.
    Int8Grouped,
    /// As `Int8`, but followed by -128 times the sum of each group of 32, i32.
    Int8By32,
    /// As `Int8`, but followed by -128 times the sum of each group of 16, i32.
    Int8By16,
    /// bf16 pairs, K padded to 32.
    Bf16,
    /// bf16 values as f32, K padded to 32: the operands of fused multiply-add.
    Wide,
    /// For tiles: as `Int8`, without what follows, rows an odd number of cache lines apart.
    TileInt8,
    /// For tiles: as `Bf16`, rows an odd number of cache lines apart.
    TileBf16,
}

impl Format {
    /// Whether rows have a scale and outliers.
    fn is_int8(self) -> bool {
        !matches!(self, Format::Bf16 | Format::Wide | Format::TileBf16)
    }

    /// Rows behind the last: tiles read whole blocks of 32, from any first row, and ignore what is in them.
    fn padding(self) -> usize {
        if matches!(self, Format::TileInt8 | Format::TileBf16) { tiles::BLOCK_ROWS - 1 } else { 0 }
    }
}

/// Converts rows of f32 to a kernel's format.
pub(crate) type Prepare = unsafe fn(activations::PrepareRows<'_>);
/// Turns sums into results: see [`epilogue`].
pub(crate) type Finish = unsafe fn(epilogue::Results<'_>);

/// The functions of one instruction set for one kind of matrix.
pub(crate) struct Functions {
    pub(crate) format: Format,
    /// By number of rows, from 1. Up to this many rows read the weights once.
    pub(crate) kernels: &'static [Kernel],
    /// Rows per block of a larger number: the most efficient kernel.
    pub(crate) block_rows: usize,
    pub(crate) prepare: Prepare,
    pub(crate) finish: Finish,
    /// Products of the outlier digits.
    pub(crate) outliers: Outliers,
}

/// Functions that may be called with a `Proof`.
pub(crate) struct Table<Proof> {
    functions: Functions,
    proof: PhantomData<Proof>,
}

impl<Proof> Table<Proof> {
    /// # Safety
    /// A CPU for which a `Proof` exists has the instructions of every function.
    pub(crate) const unsafe fn new(functions: Functions) -> Table<Proof> {
        Table { functions, proof: PhantomData }
    }

    /// The path, by proof of its instructions.
    pub(crate) fn by(&'static self, _proof: Proof) -> Path {
        Path(&self.functions)
    }
}

/// The functions for a product, obtained only from a table with its proof. So the callers' safety conditions concern
/// memory alone.
#[derive(Clone, Copy)]
pub(crate) struct Path(&'static Functions);

impl Path {
    /// Activation format of its kernels.
    fn format(self) -> Format {
        self.0.format
    }

    /// Maximum rows that read the weights once.
    fn most_rows(self) -> usize {
        self.0.kernels.len()
    }

    /// Rows per block of a larger number.
    fn block_rows(self) -> usize {
        self.0.block_rows
    }

    /// Converts activations.
    ///
    /// # Safety
    /// The pointers cover the rows, and no other thread accesses them.
    unsafe fn prepare(self, rows: activations::PrepareRows<'_>) {
        // SAFETY: a path is made by proof of its instructions; the rest is the caller's promise.
        unsafe { (self.0.prepare)(rows) }
    }

    /// Computes the sums of a block of `rows` rows, 1 to [`Path::most_rows`].
    ///
    /// # Safety
    /// The block's pointers cover the rows, the strides and steps are correct, and the activations are in the path's
    /// format.
    unsafe fn multiply(self, rows: usize, block: Block) {
        // SAFETY: as above.
        unsafe { self.0.kernels[rows - 1](block) }
    }

    /// Computes the sums of outliers.
    ///
    /// # Safety
    /// The pointers cover the pair of strips and the sums of the lists' rows, and the quads lie within the pair.
    unsafe fn outliers(self, block: OutlierBlock<'_>) {
        // SAFETY: as above.
        unsafe { (self.0.outliers)(block) }
    }
}

/// What kernels for a matrix differ by.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// Bf16 with [`AccumulationOrder::Vdpbf16`].
    Pairs,
    /// The native format of a class; bf16 with [`AccumulationOrder::Amx`].
    Own(WeightClass, Levels),
    /// The quantization groups of a file: indices of its codes, 8 or 4 bits, and of its groups, 32 or 16.
    Blocks(usize, usize),
}

impl Kind {
    fn of(w: &PackedMatrix, arithmetic: AccumulationOrder) -> Kind {
        match (w.blocks(), w.class(), arithmetic) {
            (Some(format), ..) => {
                let four = matches!(format.codes, Codes::Four { .. });
                Kind::Blocks(usize::from(four), usize::from(format.group == 16))
            }
            (None, WeightClass::Bf16, AccumulationOrder::Vdpbf16) => Kind::Pairs,
            (None, class, _) => Kind::Own(class, w.levels()),
        }
    }
}

/// The instruction sets that products may use, and the accumulation order of bf16.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Proofs {
    arithmetic: AccumulationOrder,
    isa: Isa,
    tiles: Option<TilesProof>,
    /// Use tiles for any number of rows, even where vectors would be faster.
    only_tiles: bool,
}

impl Proofs {
    /// Everything that the ceiling and the CPU allow.
    pub(crate) fn of(isa: Isa, arithmetic: AccumulationOrder) -> Proofs {
        Proofs { arithmetic, isa, tiles: native::tiles(isa), only_tiles: false }
    }

    /// The accumulation order of bf16.
    pub(crate) fn arithmetic(&self) -> AccumulationOrder {
        self.arithmetic
    }

    /// The matrix unit, if bf16 is summed in its order.
    pub(crate) fn tiles(&self) -> Option<TilesProof> {
        self.tiles.filter(|_| self.arithmetic == AccumulationOrder::Amx)
    }

    /// As [`Proofs::of`] [`Isa::Amx`] with a proof from a test, for every product.
    pub(crate) fn with_tiles(tiles: TilesProof) -> Proofs {
        Proofs { tiles: Some(tiles), only_tiles: true, ..Proofs::of(Isa::Avx512, AccumulationOrder::Amx) }
    }

    /// The best vector path.
    fn path(&self, kind: Kind) -> Path {
        native::path(self.isa, kind).unwrap_or_else(|| scalar::path(kind))
    }
}

/// Bytes of a thread's results, about half of an L2, from which tiles write them past the caches: they would not be
/// found there, and a line that is written in the cache is fetched first.
const STREAM_FROM: usize = 1 << 20;

/// `y = x w^T`, see the module. `x`: rows, K wide. At most two fork-joins; allocates only when `scratch` must grow.
pub(crate) fn linear(
    pool: &Pool,
    proofs: Proofs,
    scratch: &mut Scratch,
    x: &[f32],
    w: &PackedMatrix,
    bias: Option<&[f32]>,
    out: Out<'_>,
) {
    let shape = w.shape();
    let rows = x.len() / shape.in_features;
    let (out, then, at, width) = match out {
        Out::Store(out) => (out, Then::Store, 0, shape.out_features),
        Out::StoreAt { out, at, width } => (out, Then::Store, at, width),
        Out::Add(out) => (out, Then::Add, 0, shape.out_features),
        Out::Gated(activation, out) => (out, Then::Gate(proofs.isa, activation), 0, shape.out_features / 2),
    };
    assert_eq!(x.len(), rows * shape.in_features, "x is not [rows, in_features]");
    assert_eq!(out.len(), rows * width, "out is not [rows, {width}]");
    let columns = if let Then::Gate(..) = then { width } else { at + shape.out_features };
    assert!(columns <= width, "{shape:?} does not fit {width} columns from {at} on");
    assert!(bias.is_none_or(|bias| bias.len() == shape.out_features), "bias is not [out_features]");
    if rows == 0 {
        return;
    }
    let kind = Kind::of(w, proofs.arithmetic);
    let (path, tiles) = (proofs.path(kind), tiles_for(proofs, kind, rows));
    let format = format_of(path, tiles, w.class());
    let activations = scratch.prepare(pool, path, format, (x, &|_| w.exponents()), shape.in_features);
    let streams = tiles.is_some()
        && !matches!(then, Then::Add)
        && size_of_val(out) >= STREAM_FROM * pool.threads()
        && out[at..].as_ptr().addr().is_multiple_of(64)
        && (width * size_of::<f32>()).is_multiple_of(64);
    let product = Product {
        w,
        groups: w.blocks().map(Groups::of),
        path,
        activations,
        bias,
        out: OutPointer(out[at..].as_mut_ptr()),
        width,
        then,
        streams,
    };
    if let Some(proof) = tiles {
        let panel = |rows: Range<usize>, pairs: Range<usize>| native::tile_panel(proof, &product, rows, pairs);
        return tiles::spread(pool, rows, w.pairs(), &panel);
    }

    let (pairs, threads) = (w.pairs(), pool.threads());
    let row_panels = rows.div_ceil(PANEL_ROWS).max((2 * threads).div_ceil(pairs).min(rows.div_ceil(16)));
    if row_panels == 1 {
        pool.shares(pairs, &|pairs| product.panel(0..rows, pairs));
        return;
    }
    // Panels consist of whole blocks: a partial block reads the weights for fewer rows.
    let blocks = rows.div_ceil(path.block_rows()).max(row_panels);
    let rows_of = |panel: usize| {
        let blocks_of = share(blocks, row_panels, panel);
        share(rows, blocks, blocks_of.start).start..share(rows, blocks, blocks_of.end - 1).end
    };
    // Enough tasks to balance the load, but no more: a task passes over its pairs with the rows in the nearest cache.
    let pair_groups = (16 * threads).div_ceil(row_panels).max(pairs.div_ceil(product.pairs_in_group())).min(pairs);
    // A group of pairs runs on the node of its first pair.
    let first = |node: usize| match pool.nodes() {
        nodes if node == nodes.len() => row_panels * pair_groups,
        nodes => row_panels * (nodes.part(pairs, node).start * pair_groups).div_ceil(pairs),
    };
    pool.tasks_by_node(row_panels * pair_groups, &first, &|task| {
        product.panel(rows_of(task % row_panels), share(pairs, pair_groups, task / row_panels));
    });
}

/// A product for each head: see [`Backend::linear_by_head`](crate::Backend::linear_by_head). Three fork-joins for all heads
/// together; heads, and panels of their rows, are claimed by free threads.
///
/// Panics when shapes disagree, and when matrices differ in shape or class.
pub(crate) fn linear_by_head(
    pool: &Pool,
    proofs: Proofs,
    scratch: &mut Scratch,
    (x, from): (&[f32], HeadColumns),
    matrices: &[impl Borrow<PackedMatrix> + Sync],
    (out, to): (&mut [f32], HeadColumns),
) {
    let (shape, class) = (matrices[0].borrow().shape(), matrices[0].borrow().class());
    let (rows, heads) = (x.len() / from.width, matrices.len());
    assert!(shape.in_features <= from.stride && shape.out_features <= to.stride, "{shape:?} of {from:?}, {to:?}");
    assert!(heads * from.stride <= from.width && heads * to.stride <= to.width, "{heads} heads of {from:?}, {to:?}");
    assert_eq!((x.len(), out.len()), (rows * from.width, rows * to.width), "x and out are rows");
    if rows == 0 {
        return;
    }
    let path_of = |w: &PackedMatrix| {
        let kind = Kind::of(w, proofs.arithmetic);
        let (path, tiles) = (proofs.path(kind), tiles_for(proofs, kind, rows));
        (path, tiles, format_of(path, tiles, class))
    };
    let (path, tiles, format) = path_of(matrices[0].borrow());
    let is_like = |w: &PackedMatrix| w.shape() == shape && w.class() == class && path_of(w).2 == format;
    assert!(matrices.iter().map(Borrow::borrow).all(is_like), "matrices unlike {shape:?}");
    let mut gathered = std::mem::take(&mut scratch.heads);
    gathered.reserve(heads * rows * shape.in_features).expect("memory for the activations of all heads");
    let x_by_head = &mut gathered[..heads * rows * shape.in_features];
    by_head(Some(pool), x, from, shape.in_features, x_by_head);
    let exponents = |row: usize| matrices[row / rows].borrow().exponents();
    let activations = scratch.prepare(pool, path, format, (x_by_head, &exponents), shape.in_features);
    // Panels for tiles are whole blocks of rows.
    let unit = if tiles.is_some() { tiles::BLOCK_ROWS } else { 1 };
    let (panels, out) = (rows.div_ceil(PANEL_ROWS), OutPointer(out.as_mut_ptr()));
    pool.tasks(heads * panels, &|task| {
        let (head, panel) = (task / panels, task % panels);
        let w = matrices[head].borrow();
        let (path, tiles, _) = path_of(w);
        let product = Product {
            w,
            groups: w.blocks().map(Groups::of),
            path,
            activations: activations.part(head * rows..(head + 1) * rows),
            bias: None,
            // SAFETY: the head's columns are within a row.
            out: unsafe { out.from(head * to.stride) },
            width: to.width,
            then: Then::Store,
            streams: false,
        };
        let (part, pairs) = (share(rows.div_ceil(unit), panels, panel), 0..w.pairs());
        let rows = part.start * unit..(part.end * unit).min(rows);
        match tiles {
            Some(proof) => native::tile_panel(proof, &product, rows, pairs),
            None => product.panel(rows, pairs),
        }
    });
    scratch.heads = gathered;
}

/// Activation format of a product.
fn format_of(path: Path, tiles: Option<TilesProof>, class: WeightClass) -> Format {
    match (tiles, class) {
        (None, _) => path.format(),
        (Some(_), WeightClass::Bf16) => Format::TileBf16,
        (Some(_), WeightClass::Int8 | WeightClass::Int4) => Format::TileInt8,
    }
}

/// The matrix unit, if this product should use it. With fewer rows the vector units keep up with memory. (The thresholds for int8
/// and bf16 were measured on Sapphire Rapids, those for int4 are computed.)
fn tiles_for(proofs: Proofs, kind: Kind, rows: usize) -> Option<TilesProof> {
    let from = match kind {
        // Tiles have another order, or sum over 64 inputs at once, which is more than a group.
        Kind::Pairs | Kind::Blocks(..) => return None,
        Kind::Own(WeightClass::Int8, _) => 5,
        Kind::Own(WeightClass::Int4, Levels::Even) => 9, // unpacking costs as much as multiplying this many rows
        Kind::Own(WeightClass::Int4, Levels::Uneven) => 64, // two digits for each weight
        Kind::Own(WeightClass::Bf16, _) => 3,
    };
    proofs.tiles.filter(|_| rows >= from || proofs.only_tiles)
}

/// Output pointer. Panels write disjoint parts.
#[derive(Clone, Copy)]
struct OutPointer(*mut f32);
// SAFETY: a product borrows the output alone and each element belongs to exactly one panel.
unsafe impl Sync for OutPointer {}

impl OutPointer {
    /// # Safety
    /// There are as many elements.
    unsafe fn from(self, at: usize) -> OutPointer {
        // SAFETY: the caller's promise.
        OutPointer(unsafe { self.0.add(at) })
    }
}

/// One call of [`linear`] with its activations converted.
pub(crate) struct Product<'a> {
    pub(crate) w: &'a PackedMatrix,
    /// Layout of its groups, if they are those of a file.
    groups: Option<Groups>,
    path: Path,
    pub(crate) activations: Activations<'a>,
    bias: Option<&'a [f32]>,
    out: OutPointer,
    /// Output row width.
    width: usize,
    then: Then,
    /// Whether results, whole cache lines, are written past the caches.
    pub(crate) streams: bool,
}

/// Epilogue of results: [`Out`].
#[derive(Clone, Copy)]
enum Then {
    Store,
    Add,
    Gate(Isa, Activation),
}

impl Product<'_> {
    /// Whether columns have scales besides those of their groups.
    fn has_column_scales(&self) -> bool {
        self.w.class() != WeightClass::Bf16 && self.groups.is_none()
    }

    /// Pairs of strips that fill [`GROUP_BYTES`].
    fn pairs_in_group(&self) -> usize {
        (GROUP_BYTES / self.w.pair_bytes()).clamp(1, 8)
    }

    /// Computes rows x pairs with the vector kernels.
    fn panel(&self, rows: Range<usize>, pairs: Range<usize>) {
        let groups = self.groups.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let mut sums = Sums([[0; 32]; MAX_ROWS]);
        let blocks = if rows.len() <= self.path.most_rows() { 1 } else { rows.len().div_ceil(self.path.block_rows()) };
        let (pair_bytes, in_group) = (self.w.pair_bytes(), self.pairs_in_group());
        for group in pairs.clone().step_by(in_group) {
            let group = group..(group + in_group).min(pairs.end);
            for block in 0..blocks {
                let part = share(rows.len(), blocks, block);
                let (first, count) = (rows.start + part.start, part.len());
                for pair in group.clone() {
                    let (ratios, tiles) = self.w.pair(pair);
                    let (ratios, tiles) = (ratios.as_ptr(), tiles.as_ptr());
                    // A single block prefetches what it needs next; with several, each prefetches its part of the next group.
                    let ahead = match blocks {
                        1 => prefetch_bytes(count),
                        _ => {
                            (group.end - pair) * pair_bytes
                                + ((block * group.len() + pair - group.start) * pair_bytes / blocks)
                                    .next_multiple_of(64)
                        }
                    };
                    let block = Block {
                        x: self.activations.row(first),
                        x_stride: self.activations.stride(),
                        ratios,
                        tiles,
                        steps: self.w.steps(),
                        ahead: tiles.wrapping_add(ahead),
                        ahead_stride: (self.w.step_bytes() / blocks).next_multiple_of(64),
                        groups,
                        sums: sums.0.as_mut_ptr().cast(),
                    };
                    self.ask_for_results(first, count, pair);
                    // SAFETY: `prepare` filled `count` rows from `first` in the path's format, and `sums` has room for
                    // every kernel's rows.
                    unsafe { self.path.multiply(count, block) };
                    self.finish(&sums.0[..count], first, pair);
                }
            }
        }
    }

    /// Prefetches the cache lines of a block of results before its sums are computed. A store that misses stalls all stores
    /// behind it, of which kernels make many.
    fn ask_for_results(&self, first: usize, count: usize, pair: usize) {
        self.each_result_line(first, count, pair, prefetch);
    }

    /// Calls `ask` for the cache lines of a block of results.
    #[inline(always)]
    pub(crate) fn each_result_line(&self, first: usize, count: usize, pair: usize, ask: impl Fn(*const u8)) {
        let lines = if let Then::Gate(..) = self.then { 1 } else { 2 };
        for row in first..first + count {
            for line in 0..lines {
                let column = (pair * lines + line) * PAIR / 2;
                ask(self.out.0.wrapping_add(row * self.width + column).cast());
            }
        }
    }

    /// Outliers, scales, bias and residual for rows `first..`, at most [`MAX_ROWS`], and one pair of strips.
    fn finish(&self, sums: &[[u32; PAIR]], first: usize, pair: usize) {
        let lists = self.activations.lists(first, sums.len());
        // SAFETY: a path is made by proof of its instructions; this panel alone writes these rows and columns.
        unsafe { self.finish_with::<MAX_ROWS>(self.path.0.finish, (lists, std::ptr::null()), sums, first, pair) };
    }

    /// As [`Product::finish`] by a function of another kind, for at most `ROWS` rows. `lists`: those of the rows, or of no
    /// row, if they are empty; `heavy`: as in [`epilogue::Results`].
    ///
    /// # Safety
    /// The CPU has the function's instructions, and no other thread accesses these rows and columns of the output.
    #[inline(always)]
    pub(crate) unsafe fn finish_with<const ROWS: usize>(
        &self,
        finish: Finish,
        (lists, heavy): (Lists<'_>, *const [u32; PAIR]),
        sums: &[[u32; PAIR]],
        first: usize,
        pair: usize,
    ) {
        let mut ungated = MaybeUninit::<[[f32; PAIR]; ROWS]>::uninit();
        let ungated = ungated.as_mut_ptr().cast();
        let to = self.destination(first, pair, ungated);
        let mut high = MaybeUninit::<[[[u32; PAIR]; PLANES]; ROWS]>::uninit();
        if lists.rows() > 0 {
            let (ratios, tiles) = self.w.pair(pair);
            let (ratios, tiles) = (ratios.as_ptr(), tiles.as_ptr());
            let sums = high.as_mut_ptr().cast();
            // SAFETY: the quads are those of rows as wide as the matrix is deep; there is room for the sums of
            // `ROWS` rows.
            unsafe { self.path.outliers(OutlierBlock { ratios, tiles, groups: self.groups.as_ref(), lists, sums }) };
        }
        let results = epilogue::Results {
            sums,
            class: self.w.class(),
            in_groups: self.groups.is_some(),
            row_scales: self.activations.scales(first, sums.len()),
            lists,
            high: high.as_ptr().cast(),
            heavy,
            column_scales: to.column_scales,
            bias: to.bias,
            add: to.add,
            out: to.out,
            width: to.width,
            columns: to.columns,
            streams: to.streams,
        };
        // SAFETY: the caller's promise.
        unsafe { finish(results) };
        // SAFETY: as above, and `finish` wrote `columns` of each row.
        unsafe { self.gate(ungated, to.columns, first, sums.len(), pair) };
    }
}

/// Maximum rows of a vector kernel.
pub(crate) const MAX_ROWS: usize = 16;

/// Sums of a block, aligned for vectors and tiles.
#[repr(C, align(64))]
pub(crate) struct Sums<const ROWS: usize>(pub(crate) [[u32; 32]; ROWS]);
