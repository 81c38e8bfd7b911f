//! The production backend: every operation on the fastest instructions and all cores of this CPU, with the bits of
//! [`Reference`](crate::Reference).

use crate::accumulation_order::AccumulationOrder;
use crate::convolution::{self, Convolution, GatedConvolution};
use crate::delta_rule::{self, DeltaRows, DeltaRule};
use crate::device::{Device, DeviceInfo, DeviceLimits};
use crate::gemm::{self, Proofs, Scratch};
use crate::isa::{Isa, TilesProof};
use crate::kv_cache::{KvCache, KvShape};
use crate::limits;
use crate::limits::MeasureError;
use crate::low_rank::{self, Group, LowRank, LowRankShape, LowRankSource};
use crate::mamba::{self, Mamba};
use crate::mem::OutOfMemory;
use crate::quant::{
    BlockFormat, BlockSource, ByteSource, Image, Int4Source, Int8Source, MatrixShape, PackedMatrix, RowSource,
    WeightClass,
};
use crate::states::{StateShape, StateSpan, States};
use crate::threads::{LostCpuTime, NodeChoice, Pool, ThreadError, default_threads};
use crate::{
    Activation, Attention, HeadColumns, HeadLayout, HostBackend, LatentRows, Latents, Norm, Out, RotateAndStore,
    Routing, attention, latent, layer_norm, pointwise, routing,
};
use std::borrow::Borrow;
use std::sync::{Mutex, PoisonError};

/// Settings of a [`Cpu`]. No field but `accumulation_order` changes the bits.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuOptions {
    /// Thread count including the caller; `None`: one per physical core that this process may use.
    pub threads: Option<usize>,
    /// Instruction set; `None`: the best available.
    pub isa: Option<Isa>,
    /// Accumulation order of 16-bit products; `None`: the fastest here, [`AccumulationOrder::best`]. It changes the bits.
    pub arithmetic: Option<AccumulationOrder>,
    /// Memory nodes that weights, KV cache and threads are split over.
    pub nodes: NodeChoice,
}

/// Why a [`Cpu`] could not be created.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// See [`ThreadError`].
    #[error(transparent)]
    Threads(#[from] ThreadError),
    /// The requested instruction set is not available on this CPU or operating system.
    #[error("{} is not available; this machine allows only: {}", asked.name(), names(available))]
    NoSuchIsa {
        /// The requested instruction set.
        asked: Isa,
        /// The available ones.
        available: Vec<Isa>,
    },
}

fn names(isas: &[Isa]) -> String {
    isas.iter().map(|isa| isa.name()).collect::<Vec<_>>().join(", ")
}

/// Vector and tile kernels over a pool of pinned threads. One operation runs at a time.
pub struct Cpu {
    isa: Isa,
    arithmetic: AccumulationOrder,
    proofs: Proofs,
    pool: Pool,
    scratch: Mutex<Scratch>,
    low_rank: Mutex<low_rank::Scratch>,
}

impl Cpu {
    /// Detects the CPU, checks the options against it, and starts the threads.
    pub fn new(options: CpuOptions) -> Result<Cpu, CpuError> {
        let isa = options.isa.unwrap_or_else(Isa::best);
        if !isa.is_available() {
            return Err(CpuError::NoSuchIsa { asked: isa, available: Isa::available() });
        }
        let arithmetic = options.arithmetic.unwrap_or_else(AccumulationOrder::best);
        Cpu::assemble(options.threads, options.nodes, isa, Proofs::of(isa, arithmetic))
    }

    /// Uses the tile kernels for every product without detecting AMX: for tests with emulated tiles. The accumulation
    /// order is [`AccumulationOrder::Amx`].
    #[doc(hidden)]
    pub fn with_tiles(threads: Option<usize>, tiles: TilesProof) -> Result<Cpu, CpuError> {
        Cpu::assemble(threads, NodeChoice::AsFound, Isa::Amx, Proofs::with_tiles(tiles))
    }

    fn assemble(threads: Option<usize>, nodes: NodeChoice, isa: Isa, proofs: Proofs) -> Result<Cpu, CpuError> {
        let pool = Pool::on(threads.unwrap_or_else(default_threads), nodes)?;
        let (scratch, low_rank) = (Mutex::default(), Mutex::default());
        Ok(Cpu { isa, arithmetic: proofs.arithmetic(), proofs, pool, scratch, low_rank })
    }

    /// Instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Accumulation order of 16-bit products.
    pub fn arithmetic(&self) -> AccumulationOrder {
        self.arithmetic
    }

    /// Thread count including the caller.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// The thread pool. A thread that does nothing but call this backend should call [`Pool::pin_caller`] once.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }
}

impl Device for Cpu {
    type Matrix = PackedMatrix;
    type LowRank = LowRank;
    type KvCache = KvCache;
    type States = States;
    type HostBuffer = Vec<u8>;

    fn describe(&self) -> String {
        let detail = match self.isa {
            Isa::Scalar => "",
            Isa::Neon => " (sdot, fma)",
            Isa::NeonMm => " (smmla, bf16)",
            Isa::Avx2 => " (fma)",
            Isa::Avx512 => " (vnni, fma)",
            Isa::Avx512Bf16 if self.arithmetic == AccumulationOrder::Vdpbf16 => " (vnni, bf16)",
            Isa::Avx512Bf16 => " (vnni, fma)",
            Isa::Amx if self.arithmetic == AccumulationOrder::Vdpbf16 => " (int8 tiles, bf16 vectors)",
            Isa::Amx => " (int8 and bf16 tiles)",
        };
        let (threads, nodes) = (self.threads(), self.pool.nodes().len());
        let on = if nodes == 1 { String::new() } else { format!(" on {nodes} memory nodes") };
        format!("{}{detail}, {threads} thread{}{on}", self.isa.name(), if threads == 1 { "" } else { "s" })
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo { nodes: self.pool.nodes().len(), ..DeviceInfo::cpu(self.isa, self.threads()) }
    }

    fn limits(&self, seconds: f64) -> Result<DeviceLimits, MeasureError> {
        Ok(limits::measure(&self.pool, self.isa, self.arithmetic, seconds)?)
    }

    fn share_out(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        self.pool.tasks(count, work);
    }

    fn set_compute_thread(&self) {
        self.pool.pin_caller();
    }

    fn lost(&self) -> Option<LostCpuTime> {
        self.pool.lost()
    }

    fn pack(&self, shape: MatrixShape, class: WeightClass, rows: &RowSource<'_>) -> Result<PackedMatrix, OutOfMemory> {
        PackedMatrix::pack(Some(&self.pool), self.isa, shape, class, rows)
    }

    fn pack_int8(&self, shape: MatrixShape, rows: &Int8Source<'_>) -> Result<PackedMatrix, OutOfMemory> {
        PackedMatrix::pack_int8(Some(&self.pool), self.isa, shape, rows)
    }

    fn pack_int4(&self, shape: MatrixShape, rows: &Int4Source<'_>) -> Result<PackedMatrix, OutOfMemory> {
        PackedMatrix::pack_int4(Some(&self.pool), self.isa, shape, rows)
    }

    fn pack_blocks(
        &self,
        shape: MatrixShape,
        format: BlockFormat,
        rows: &BlockSource<'_>,
    ) -> Result<PackedMatrix, OutOfMemory> {
        PackedMatrix::pack_blocks(Some(&self.pool), self.isa, shape, format, rows)
    }

    fn pack_low_rank(&self, shape: LowRankShape, source: LowRankSource<'_>) -> Result<LowRank, OutOfMemory> {
        LowRank::pack(shape, source)
    }

    fn image(&self, matrix: &PackedMatrix) -> Option<Image> {
        matrix.image()
    }

    fn restore(&self, shape: MatrixShape, class: WeightClass, source: &ByteSource<'_>) -> Option<PackedMatrix> {
        PackedMatrix::restore(Some(&self.pool), shape, class, source).ok()
    }

    fn shape(&self, matrix: &PackedMatrix) -> MatrixShape {
        matrix.shape()
    }

    fn matrix_bytes(&self, matrix: &PackedMatrix) -> usize {
        matrix.bytes()
    }

    fn kv_cache(&self, shape: KvShape) -> Result<KvCache, OutOfMemory> {
        KvCache::on(self.pool.nodes(), shape)
    }

    fn copy_blocks(&self, kv: &mut KvCache, copies: &[(u32, u32)]) {
        kv.copy_blocks(copies);
    }

    fn block_bytes(&self, kv: &KvCache) -> usize {
        kv.shape().block_bytes()
    }

    fn host_buffer(&self, bytes: Vec<u8>) -> Vec<u8> {
        bytes
    }

    fn save_block(&self, kv: &KvCache, block: u32, to: &mut Vec<u8>, at: usize) {
        kv.read_block(block, &mut to[at..][..kv.shape().block_bytes()]);
    }

    fn load_block(&self, from: &Vec<u8>, at: usize, kv: &mut KvCache, block: u32) {
        kv.write_block(block, &from[at..][..kv.shape().block_bytes()]);
    }

    fn states(&self, shape: StateShape) -> Result<States, OutOfMemory> {
        States::new(shape)
    }

    fn save_state(&self, states: &States, slot: u32, to: &mut Vec<u8>) {
        states.read(slot, to);
    }

    fn load_state(&self, from: &Vec<u8>, states: &mut States, slot: u32) {
        states.write(slot, from);
    }
}

impl HostBackend for Cpu {
    fn embed(&self, table: &PackedMatrix, ids: &[u32], out: &mut [f32]) {
        embed(table, ids, out);
    }

    fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        pointwise::rms_norm(Some(&self.pool), self.isa, x, weight, eps, out);
    }

    fn layer_norm(&self, x: &[f32], norm: Norm<'_>, out: &mut [f32]) {
        layer_norm::layer_norm(Some(&self.pool), self.isa, x, norm, out);
    }

    fn activate(&self, activation: Activation, x: &mut [f32]) {
        layer_norm::activate(Some(&self.pool), self.isa, activation, x);
    }

    fn linear(&self, x: &[f32], w: &PackedMatrix, bias: Option<&[f32]>, out: Out<'_>) {
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        gemm::linear(&self.pool, self.proofs, &mut scratch, x, w, bias, out);
    }

    fn add_low_rank<'a>(
        &self,
        x: &[f32],
        groups: impl Iterator<Item = Group<'a, LowRank>> + Clone + Sync,
        out: &mut [f32],
    ) {
        let (isa, arithmetic, tiles) = (self.isa, self.arithmetic, self.proofs.tiles());
        let context = low_rank::ComputeContext { pool: &self.pool, isa, arithmetic, tiles };
        let mut scratch = self.low_rank.lock().unwrap_or_else(PoisonError::into_inner);
        low_rank::add(context, &mut scratch, x, groups, out);
    }

    fn rotate_and_store(&self, args: RotateAndStore<'_>, kv: &mut KvCache) {
        pointwise::rotate_and_store(Some(&self.pool), self.isa, args, kv);
    }

    fn store_latents(&self, how: Latents<'_>, rows: LatentRows<'_>, slots: &[u32], kv: &mut KvCache) {
        latent::store_latents(Some(&self.pool), self.isa, how, rows, (kv, slots));
    }

    fn linear_by_head(
        &self,
        x: (&[f32], HeadColumns),
        matrices: &[impl Borrow<PackedMatrix> + Sync],
        out: (&mut [f32], HeadColumns),
    ) {
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        gemm::linear_by_head(&self.pool, self.proofs, &mut scratch, x, matrices, out);
    }

    fn attend(&self, args: Attention<'_>, kv: &KvCache, out: &mut [f32]) {
        attention::attend(Some(&self.pool), self.isa, self.arithmetic, args, kv, out);
    }

    fn convolve(&self, how: Convolution<'_>, spans: &[StateSpan<'_>], rows: &mut [f32], states: &mut States) {
        convolution::convolve(Some(&self.pool), self.isa, how, spans, rows, states);
    }

    fn convolve_gated(
        &self,
        how: GatedConvolution<'_>,
        spans: &[StateSpan<'_>],
        rows: &[f32],
        states: &mut States,
        out: &mut [f32],
    ) {
        convolution::convolve_gated(Some(&self.pool), self.isa, how, spans, rows, states, out);
    }

    fn delta_rule(
        &self,
        how: DeltaRule<'_>,
        spans: &[StateSpan<'_>],
        rows: DeltaRows<'_>,
        states: &mut States,
        out: &mut [f32],
    ) {
        delta_rule::delta_rule(Some(&self.pool), self.isa, how, spans, rows, states, out);
    }

    fn mamba(
        &self,
        how: Mamba<'_>,
        spans: &[StateSpan<'_>],
        rows_and_steps: (&mut [f32], &mut [f32]),
        states: &mut States,
        out: &mut [f32],
    ) {
        mamba::mamba(Some(&self.pool), self.isa, how, spans, rows_and_steps, states, out);
    }

    fn gate_heads(&self, layout: HeadLayout, qkv: &[f32], x: &mut [f32]) {
        pointwise::gate_heads(Some(&self.pool), self.isa, layout, qkv, x);
    }

    fn add_gated(&self, gates: &[f32], y: &[f32], x: &mut [f32]) {
        pointwise::add_gated(Some(&self.pool), self.isa, gates, y, x);
    }

    fn add_scaled(&self, y: &[f32], scale: f32, x: &mut [f32]) {
        pointwise::add_scaled(Some(&self.pool), self.isa, y, scale, x);
    }

    fn softcap(&self, cap: f32, x: &mut [f32]) {
        pointwise::softcap(Some(&self.pool), self.isa, cap, x);
    }

    fn gate(&self, activation: Activation, gate_up: &[f32], width: usize, out: &mut [f32]) {
        pointwise::gated(Some(&self.pool), self.isa, activation, gate_up, width, out);
    }

    fn route(&self, logits: &[f32], how: Routing<'_>, chosen: &mut [u32], weights: &mut [f32]) {
        routing::route(Some(&self.pool), self.isa, logits, how, chosen, weights);
    }

    fn gather(&self, from: &[f32], width: usize, rows: &[u32], out: &mut [f32]) {
        routing::gather(Some(&self.pool), from, width, rows, out);
    }

    fn scatter_add(&self, y: &[f32], weights: &[f32], rows: &[u32], width: usize, x: &mut [f32]) {
        routing::scatter_add(Some(&self.pool), self.isa, y, weights, rows, width, x);
    }
}

/// Gathers rows of a packed table: `ids.len() * in_features` scattered reads, far below the cost of any product.
pub(crate) fn embed(table: &PackedMatrix, ids: &[u32], out: &mut [f32]) {
    let width = table.shape().in_features;
    assert_eq!(out.len(), ids.len() * width, "out is not [ids, in_features]");
    for (&id, out) in ids.iter().zip(out.chunks_exact_mut(width)) {
        table.unpack_row(id as usize, out);
    }
}
