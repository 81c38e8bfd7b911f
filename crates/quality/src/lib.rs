//! Quality loss of quantized weights and KV cache: next-token distributions compared, and the error of each matrix.
//!
//! ```text
//! Comparison    two rows of logits and the next token  ──>  perplexity of both, KL divergence, same top token
//! MeasuringBackend<B>    a backend: the float32 pass of `kernels::Float32`, and every product also in the class of B
//!                 x ──> float32 product ──> result of the pass
//!                  └──> product in class B ──> relative L2 error per matrix
//! ```
//! `MeasuringBackend` measures each matrix alone: its input is exact, so the error is not inherited from earlier
//! layers. This finds a `down_proj` whose inputs spike on few tokens (GLU activation spikes: Yang et al., 2024), and
//! decides which matrices of a recipe get a wider class.

use kernels::recording::{MatrixSource, ProductRecorder, RecordedProduct, RecordingBackend};
use kernels::{Float32, HostBackend, MatrixShape, Out, OutOfMemory};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Comparison of a model's next-token distributions with a reference's, over many tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Comparison {
    /// Tokens scored.
    pub tokens: u64,
    /// Sum of `-ln p(token)` of the reference, in nats.
    pub reference_nll: f64,
    /// Sum of `-ln p(token)` of the judged model, in nats.
    pub nll: f64,
    /// Sum of the KL divergence of the judged from the reference distribution, in nats.
    pub kl: f64,
    /// The largest divergence of one token, in nats.
    pub worst_kl: f64,
    /// Positions with the same most likely token in both.
    pub same_best: u64,
    /// Positions with a logit that is not finite in one of the models; they are not scored.
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

    /// Relative increase of the judged model's perplexity: 0.005 is half a percent.
    pub fn perplexity_increase(&self) -> f64 {
        ((self.nll - self.reference_nll) / self.tokens as f64).exp_m1()
    }

    /// Mean KL divergence in nats.
    pub fn mean_kl(&self) -> f64 {
        self.kl / self.tokens as f64
    }

    /// Share of positions with the same most likely token.
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
    /// Largest relative L2 error of one row: far above that of all rows if few tokens have spikes.
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

/// A backend with the results of [`Float32`], which also computes every product with `B` and records its error. Takes
/// the memory of both.
pub type MeasuringBackend<B> = RecordingBackend<Judge<B>>;

/// Compares the products of `B` with those in float32. Errors are in the order of packing: `model::Runner::matrix_names`
/// has their names.
pub struct Judge<B> {
    judged: B,
    errors: Mutex<Vec<MatrixError>>,
}

impl<B: HostBackend> Judge<B> {
    /// Beside `exact`.
    pub fn beside(exact: Float32, judged: B) -> MeasuringBackend<B> {
        RecordingBackend { exact, recorder: Judge { judged, errors: Mutex::default() } }
    }

    /// The errors so far, one per matrix, in the order of packing: `model::Runner::matrix_names` has their names.
    pub fn errors(&self) -> Vec<MatrixError> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<MatrixError>> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B: HostBackend> ProductRecorder for Judge<B> {
    /// In the judged class, and its number.
    type Matrix = (B::Matrix, usize);

    fn pack(&self, shape: MatrixShape, source: MatrixSource<'_>) -> Result<Self::Matrix, OutOfMemory> {
        let judged = source.pack(&self.judged, shape)?;
        let mut errors = self.lock();
        errors.push(MatrixError::default());
        Ok((judged, errors.len() - 1))
    }

    fn record(&self, (matrix, index): &Self::Matrix, product: &RecordedProduct<'_>, _: &Float32) {
        let mut judged = vec![0.0; product.y.len()];
        self.judged.linear(product.x, matrix, product.bias, Out::Store(&mut judged));
        self.lock()[*index].add(product.y, &judged, product.shape.out_features);
    }

    fn matrix_bytes(&self, (matrix, _): &Self::Matrix) -> usize {
        self.judged.matrix_bytes(matrix)
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
