//! What drawing a token costs the core that samples: the weight of each logit, and the race between them.

use std::hint::black_box;

use kernels::sampling::{Noise, masses, philox};

use crate::rows::{Against, Rows};
use crate::setup::{BenchError, BenchSetup};
use crate::timing::Timing;

/// Of a large vocabulary.
const VOCAB: u32 = 151_936;

pub(super) fn measure(setup: &BenchSetup<'_>, rows: &mut Rows<'_>) -> Result<(), BenchError> {
    // A few large, many small.
    let uniform = |id: u32| philox([id, 0, 0, 0], [7, 7])[0] as f32 / u32::MAX as f32;
    let logits: Vec<f32> = (0..VOCAB).map(|id| -12.0 * (1.0 - uniform(id).powi(3))).collect();
    let (mut weights, mut sums, mut position) = (vec![0; VOCAB as usize], Vec::new(), 0);
    let [weighing, race] = Timing::of(setup.repetitions).in_turns(|way| match way {
        0 => masses(&logits, 0.0, 1.0 / 0.7, 0.0, &mut weights),
        _ => {
            position += 1;
            black_box(Noise::new(1, 0, position).draw(&weights, &mut sums));
        }
    });
    rows.timed(format!("weighing {VOCAB} tokens"), &weighing, Against::Nothing)?;
    Ok(rows.timed(format!("a race between {VOCAB} tokens"), &race, Against::Nothing)?)
}
