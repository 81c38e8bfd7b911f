//! Sums of what each matrix sees, and of what its products are, beside a pass in float32.

use kernels::float32::Float32;
use kernels::quant::Gram;
use kernels::recording::{MatrixSource, ProductRecorder, RecordedMatrix, RecordedProduct, RecordingBackend};
use kernels::{MatrixShape, OutOfMemory};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// [`Float32`], and beside it the inputs of some matrices.
pub(super) type Observed = RecordingBackend<Observer>;
/// A matrix and its number.
pub(super) type ObservedMatrix = RecordedMatrix<usize>;

/// What was seen of the matrices that were packed last, by their numbers.
#[derive(Default)]
pub(super) struct Observer {
    seen: Mutex<Vec<Inputs>>,
}

/// What a matrix saw.
#[derive(Default)]
pub(super) struct Inputs {
    /// Of those that are watched.
    pub(super) gram: Option<Gram>,
    /// Sum of the squares of its products, while it was watched.
    pub(super) squared_norm: f64,
}

impl Observer {
    /// Numbers matrices from 0 again.
    pub(super) fn begin(&self) {
        self.lock().clear();
    }

    pub(super) fn watch(&self, index: usize, width: usize) {
        self.lock()[index] = Inputs { gram: Some(Gram::new(width)), squared_norm: 0.0 };
    }

    /// What a matrix saw since then; it is not watched any more.
    pub(super) fn take(&self, index: usize) -> Inputs {
        std::mem::take(&mut self.lock()[index])
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Inputs>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a row counts: errors are divided by the size of what they end in, since a norm comes after it. Without that,
/// the few tokens whose rows are thousands of times as large as all others (massive activations: Sun et al., 2024)
/// would be all that counts.
fn factor(mean_square: f64) -> f32 {
    if mean_square > 0.0 { (1.0 / mean_square.sqrt()) as f32 } else { 0.0 }
}

impl ProductRecorder for Observer {
    type Matrix = usize;

    fn pack(&self, _: MatrixShape, _: MatrixSource<'_>) -> Result<usize, OutOfMemory> {
        let mut seen = self.lock();
        seen.push(Inputs::default());
        Ok(seen.len() - 1)
    }

    fn wants(&self, &index: &usize) -> bool {
        self.lock()[index].gram.is_some()
    }

    fn record(&self, &index: &usize, product: &RecordedProduct<'_>, exact: &Float32) {
        let width = product.shape.out_features;
        let square = |row: &[f32]| row.iter().map(|&y| f64::from(y).powi(2)).sum::<f64>();
        let ends = product.ends_in.chunks_exact(width);
        let factors: Vec<f32> = ends.map(|row| factor(square(row) / width as f64)).collect();
        let (pool, isa) = exact.pool_and_isa();
        let inputs = &mut self.lock()[index];
        let rows = product.y.chunks_exact(width).zip(&factors);
        inputs.squared_norm += rows.map(|(y, factor)| square(y) * f64::from(*factor).powi(2)).sum::<f64>();
        if let Some(gram) = &mut inputs.gram {
            gram.add(pool, isa, product.x, &factors);
        }
    }
}
