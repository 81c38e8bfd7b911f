//! What narrow weights and a narrow KV cache cost: next-token distributions compared, and each matrix's own error.
//!
//! ```text
//! Comparison    two rows of logits and the token that came  ──>  perplexity of both, KL divergence, same best token
//! Watched<B>    a backend: the float32 pass of `kernels::Float32`, and beside every product the same one in class B
//!                 x ──> float32 product ──> the pass goes on with it
//!                  └──> product in class B ──> relative L2 error, kept per matrix
//! ```
//! The second looks at each matrix alone: its input is exact, so an error belongs to that matrix and is not inherited
//! from the layers below. That is how a `down_proj` whose inputs spike on few tokens (GLU activation spikes: Yang et
//! al., 2024) shows up, and what a recipe of wider classes is decided by.

use kernels::float32::{Float32Cache, Float32Matrix};
use kernels::limits::MeasureError;
use kernels::low_rank::Group;
use kernels::pointwise::gated;
use kernels::{
    Activation, Attention, BlockFormat, BlockSource, Device, DeviceInfo, DeviceLimits, Float32, HostBackend,
    Int4Source, Int8Source, Isa, KvShape, LowRankShape, LowRankSource, MatrixShape, Out, OutOfMemory, RotateAndStore,
    RoutingRule, RowSource, WeightClass,
};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How far one model's next-token distributions are from a reference's, over many tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Comparison {
    /// Tokens scored.
    pub tokens: u64,
    /// Sums of `-ln p(token)`, in nats.
    pub reference_nll: f64,
    /// As `reference_nll`, of the model that is judged.
    pub nll: f64,
    /// Sum of the KL divergence of the judged from the reference distribution, in nats.
    pub kl: f64,
    /// The largest divergence of one token, in nats.
    pub worst_kl: f64,
    /// Tokens whose likeliest token is the same in both.
    pub same_best: u64,
    /// Tokens at which one of the models gave a logit that is no number; they are not scored.
    pub not_finite: u64,
}

impl Comparison {
    /// Scores one position: logits `[vocab_size]` of both, and the token that follows it in the text.
    pub fn add(&mut self, reference: &[f32], judged: &[f32], next: u32) {
        assert_eq!(reference.len(), judged.len(), "two vocabularies");
        if !reference.iter().chain(judged).all(|logit| logit.is_finite()) {
            self.not_finite += 1;
            return;
        }
        let (p_norm, q_norm) = (log_sum_exp(reference), log_sum_exp(judged));
        let mut kl = 0.0;
        for (&p, &q) in reference.iter().zip(judged) {
            let log_p = f64::from(p) - p_norm;
            kl += log_p.exp() * (log_p - (f64::from(q) - q_norm));
        }
        let kl = kl.max(0.0); // equal distributions may give -1e-17
        let next = next as usize;
        self.tokens += 1;
        self.reference_nll += p_norm - f64::from(reference[next]);
        self.nll += q_norm - f64::from(judged[next]);
        self.kl += kl;
        self.worst_kl = self.worst_kl.max(kl);
        self.same_best += u64::from(best(reference) == best(judged));
    }

    /// Perplexity of the reference.
    pub fn reference_perplexity(&self) -> f64 {
        (self.reference_nll / self.tokens as f64).exp()
    }

    /// Perplexity of the judged model.
    pub fn perplexity(&self) -> f64 {
        (self.nll / self.tokens as f64).exp()
    }

    /// How much larger the judged model's perplexity is: 0.005 is half a percent.
    pub fn perplexity_increase(&self) -> f64 {
        ((self.nll - self.reference_nll) / self.tokens as f64).exp_m1()
    }

    /// Mean KL divergence in nats.
    pub fn mean_kl(&self) -> f64 {
        self.kl / self.tokens as f64
    }

    /// Share of tokens whose likeliest token is the same.
    pub fn agreement(&self) -> f64 {
        self.same_best as f64 / self.tokens as f64
    }
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = logits.iter().fold(f32::NEG_INFINITY, |max, &logit| max.max(logit));
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - max).exp()).sum();
    f64::from(max) + sum.ln()
}

fn best(logits: &[f32]) -> usize {
    (0..logits.len()).fold(0, |best, id| if logits[id] > logits[best] { id } else { best })
}

/// The error of one matrix's outputs in a weight class, against float32 on the same inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MatrixError {
    /// Rows of inputs seen.
    pub rows: u64,
    /// Sum of squared differences.
    pub squared_error: f64,
    /// Sum of squared float32 outputs.
    pub squared_norm: f64,
    /// Largest relative L2 error of one row: far above the whole when few tokens carry spikes.
    pub worst_row: f64,
}

impl MatrixError {
    /// Relative L2 error of all rows together; 0 before the first.
    pub fn relative(&self) -> f64 {
        relative(self.squared_error, self.squared_norm)
    }

    /// Adds rows of `width` outputs.
    fn add(&mut self, exact: &[f32], judged: &[f32], width: usize) {
        for (exact, judged) in exact.chunks_exact(width).zip(judged.chunks_exact(width)) {
            let pairs = exact.iter().zip(judged);
            let error: f64 = pairs.map(|(&exact, &judged)| (f64::from(judged) - f64::from(exact)).powi(2)).sum();
            let norm: f64 = exact.iter().map(|&exact| f64::from(exact).powi(2)).sum();
            self.rows += 1;
            self.squared_error += error;
            self.squared_norm += norm;
            self.worst_row = self.worst_row.max(relative(error, norm));
        }
    }
}

fn relative(squared_error: f64, squared_norm: f64) -> f64 {
    if squared_error == 0.0 { 0.0 } else { (squared_error / squared_norm).sqrt() }
}

/// A [`HostBackend`] whose results are those of [`Float32`], and which computes every product in a class of `B` as
/// well. Takes the memory of both. Its errors are in the order of packing: `model::Runner::matrix_names` has their
/// names.
pub struct Watched<B: Device> {
    exact: Float32,
    judged: B,
    errors: Mutex<Vec<MatrixError>>,
}

/// A matrix in float32 and in the judged class.
pub struct WatchedMatrix<M> {
    exact: Float32Matrix,
    judged: M,
    shape: MatrixShape,
    index: usize,
}

impl<B: Device> Watched<B> {
    /// Judges the products of `judged`.
    pub fn new(exact: Float32, judged: B) -> Watched<B> {
        Watched { exact, judged, errors: Mutex::default() }
    }

    /// The errors so far, one per matrix, in the order of packing.
    pub fn errors(&self) -> Vec<MatrixError> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<MatrixError>> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn join(&self, exact: Float32Matrix, judged: B::Matrix, shape: MatrixShape) -> WatchedMatrix<B::Matrix> {
        let mut errors = self.lock();
        errors.push(MatrixError::default());
        WatchedMatrix { exact, judged, shape, index: errors.len() - 1 }
    }
}

impl<B: HostBackend> Device for Watched<B> {
    type Matrix = WatchedMatrix<B::Matrix>;
    type LowRank = [Float32Matrix; 2];
    type KvCache = Float32Cache;

    fn describe(&self) -> String {
        format!("{} beside {}", self.exact.describe(), self.judged.describe())
    }

    fn info(&self) -> DeviceInfo {
        self.exact.info()
    }

    fn limits(&self, seconds: f64) -> Result<DeviceLimits, MeasureError> {
        self.exact.limits(seconds)
    }

    fn adopt_thread(&self) {
        self.exact.adopt_thread();
    }

    fn pack(&self, shape: MatrixShape, class: WeightClass, rows: &RowSource<'_>) -> Result<Self::Matrix, OutOfMemory> {
        let judged = self.judged.pack(shape, class, rows)?;
        Ok(self.join(self.exact.pack(shape, class, rows)?, judged, shape))
    }

    fn pack_int8(&self, shape: MatrixShape, rows: &Int8Source<'_>) -> Result<Self::Matrix, OutOfMemory> {
        Ok(self.join(self.exact.pack_int8(shape, rows)?, self.judged.pack_int8(shape, rows)?, shape))
    }

    fn pack_blocks(
        &self,
        shape: MatrixShape,
        format: BlockFormat,
        rows: &BlockSource<'_>,
    ) -> Result<Self::Matrix, OutOfMemory> {
        let (exact, judged) = (&self.exact, &self.judged);
        Ok(self.join(exact.pack_blocks(shape, format, rows)?, judged.pack_blocks(shape, format, rows)?, shape))
    }

    fn pack_int4(&self, shape: MatrixShape, rows: &Int4Source<'_>) -> Result<Self::Matrix, OutOfMemory> {
        Ok(self.join(self.exact.pack_int4(shape, rows)?, self.judged.pack_int4(shape, rows)?, shape))
    }

    fn pack_low_rank(&self, shape: LowRankShape, source: LowRankSource<'_>) -> Result<Self::LowRank, OutOfMemory> {
        self.exact.pack_low_rank(shape, source)
    }

    fn shape(&self, matrix: &Self::Matrix) -> MatrixShape {
        matrix.shape
    }

    fn matrix_bytes(&self, matrix: &Self::Matrix) -> usize {
        self.exact.matrix_bytes(&matrix.exact) + self.judged.matrix_bytes(&matrix.judged)
    }

    fn kv_cache(&self, shape: KvShape) -> Result<Float32Cache, OutOfMemory> {
        self.exact.kv_cache(shape)
    }

    fn copy_blocks(&self, kv: &mut Float32Cache, copies: &[(u32, u32)]) {
        self.exact.copy_blocks(kv, copies);
    }

    fn block_bytes(&self, kv: &Float32Cache) -> usize {
        self.exact.block_bytes(kv)
    }

    fn read_block(&self, kv: &Float32Cache, block: u32, out: &mut [u8]) {
        self.exact.read_block(kv, block, out);
    }

    fn write_block(&self, kv: &mut Float32Cache, block: u32, bytes: &[u8]) {
        self.exact.write_block(kv, block, bytes);
    }
}

impl<B: HostBackend> HostBackend for Watched<B> {
    fn embed(&self, table: &Self::Matrix, ids: &[u32], out: &mut [f32]) {
        self.exact.embed(&table.exact, ids, out);
    }

    fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        self.exact.rms_norm(x, weight, eps, out);
    }

    fn linear(&self, x: &[f32], w: &Self::Matrix, bias: Option<&[f32]>, out: Out<'_>) {
        let MatrixShape { out_features, in_features } = w.shape;
        let len = x.len() / in_features * out_features;
        let (mut exact, mut judged) = (vec![0.0; len], vec![0.0; len]);
        self.exact.linear(x, &w.exact, bias, Out::Store(&mut exact));
        self.judged.linear(x, &w.judged, bias, Out::Store(&mut judged));
        self.lock()[w.index].add(&exact, &judged, out_features);
        match out {
            Out::Store(out) => out.copy_from_slice(&exact),
            Out::Add(out) => out.iter_mut().zip(&exact).for_each(|(out, y)| *out += y),
            Out::Gated(activation, out) => gated(None, Isa::best(), activation, &exact, out_features / 2, out),
        }
    }

    fn add_low_rank<'a>(
        &self,
        x: &[f32],
        groups: impl Iterator<Item = Group<'a, Self::LowRank>> + Clone + Sync,
        out: &mut [f32],
    ) {
        self.exact.add_low_rank(x, groups, out);
    }

    fn rotate_and_store(&self, args: RotateAndStore<'_>, kv: &mut Float32Cache) {
        self.exact.rotate_and_store(args, kv);
    }

    fn attend(&self, args: Attention<'_>, kv: &Float32Cache, out: &mut [f32]) {
        self.exact.attend(args, kv, out);
    }

    fn add_scaled(&self, y: &[f32], scale: f32, x: &mut [f32]) {
        self.exact.add_scaled(y, scale, x);
    }

    fn softcap(&self, cap: f32, x: &mut [f32]) {
        self.exact.softcap(cap, x);
    }

    fn gate(&self, activation: Activation, gate_up: &[f32], width: usize, out: &mut [f32]) {
        self.exact.gate(activation, gate_up, width, out);
    }

    fn route(&self, logits: &[f32], num_experts: usize, rule: RoutingRule, chosen: &mut [u32], weights: &mut [f32]) {
        self.exact.route(logits, num_experts, rule, chosen, weights);
    }

    fn gather(&self, from: &[f32], width: usize, rows: &[u32], out: &mut [f32]) {
        self.exact.gather(from, width, rows, out);
    }

    fn scatter_add(&self, y: &[f32], weights: &[f32], rows: &[u32], width: usize, x: &mut [f32]) {
        self.exact.scatter_add(y, weights, rows, width, x);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_is_no_nats_from_itself() {
        let logits = [0.5, -1.0, 3.0, 2.9];
        let mut same = Comparison::default();
        same.add(&logits, &logits, 2);
        // softmax, by hand
        let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
        assert!((same.nll - (sum.ln() - 3.0)).abs() < 1e-12, "{same:?}");
        assert_eq!((same.kl, same.tokens, same.same_best), (0.0, 1, 1));
        assert_eq!((same.perplexity(), same.perplexity_increase()), (same.reference_perplexity(), 0.0));
    }

    #[test]
    fn figures_follow_their_definitions() {
        // Uniform over two against (1/4, 3/4): KL = ln 2 - (ln 3)/2 ... = 0.5 ln(4/3).
        let mut found = Comparison::default();
        found.add(&[0.0, 0.0], &[0.0, 3f32.ln()], 0);
        assert!((found.mean_kl() - 0.5 * (4f64 / 3.0).ln()).abs() < 1e-7, "{found:?}");
        assert!((found.perplexity() - 4.0).abs() < 1e-6 && (found.reference_perplexity() - 2.0).abs() < 1e-12);
        assert!((found.perplexity_increase() - 1.0).abs() < 1e-6);
        assert_eq!(found.agreement(), 0.0);
        // Logits may be as large as they like.
        found.add(&[1000.0, 0.0], &[1000.0, 0.0], 0);
        assert_eq!((found.tokens, found.same_best), (2, 1));
        assert!(found.nll.is_finite() && found.worst_kl > 0.1);
        found.add(&[f32::NAN, 0.0], &[0.0, 0.0], 0);
        assert_eq!((found.tokens, found.not_finite), (2, 1));
    }

    #[test]
    fn a_spike_in_one_row_is_seen_beside_the_whole() {
        let mut error = MatrixError::default();
        error.add(&[3.0, 4.0, 300.0, 400.0], &[3.0, 9.0, 300.0, 400.0], 2);
        assert_eq!(error.worst_row, 1.0);
        assert!((error.relative() - 5.0 / (250_025f64).sqrt()).abs() < 1e-12, "{error:?}");
        assert_eq!((error.rows, MatrixError::default().relative()), (2, 0.0));
    }
}
