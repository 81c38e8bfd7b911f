//! Step costs of a model on a machine from their figures: the cost model of the scheduler and the simulator.

use kernels::{KvDtype, WeightClass};
use roofline::{Demands, MEMORY_SHARE, Machine, ModelShape, Peaks};
use scheduler::cost::{Knot, Terms};
use scheduler::{CostModel, Hardware, ModelCost};

/// Log2 of the largest pass on the weight curve.
const LARGEST_PASS: u32 = 17;

/// Step costs of a model on a machine: for the weights the larger of reading and computing, plus attention. As
/// [`CostModel::roofline`], but passes of a mixture read only the experts of their rows.
pub(crate) fn cost(machine: &Machine, demands: &Demands) -> CostModel {
    let reached = machine.reached(demands);
    let row = demands.shape.flops_per_token() / reached.matrix;
    let at = |rows: usize| {
        let read = demands.bytes_of_pass(rows as f64) / reached.bandwidth;
        let exchange = rows as f64 * machine.exchange_seconds(&demands.shape);
        Knot { rows, seconds: machine.step_overhead + read.max(rows as f64 * row) + exchange }
    };
    // The bend of a dense model's curve; the points beside it make the interpolation exact.
    let bend = (demands.weight_bytes as f64 / reached.bandwidth / row) as usize;
    let mut rows: Vec<usize> = (0..=LARGEST_PASS).map(|power| 1 << power).collect();
    rows.extend([bend.max(1), bend.max(1) + 1]);
    rows.sort_unstable();
    rows.dedup();
    let terms = Terms {
        pair: demands.shape.pair_flops as f64 / reached.attention,
        // A latent cache is small but compute-intensive.
        key: (demands.kv_bytes_per_token as f64 / reached.bandwidth)
            .max(demands.shape.decode_pair_flops as f64 / reached.attention),
        logits: demands.shape.flops_per_logit_row() / reached.matrix,
        ..Terms::default()
    };
    CostModel::new(rows.into_iter().map(at).collect(), terms)
}

/// A model in the simulator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Simulated {
    /// Its step costs.
    pub cost: ModelCost,
    /// Bytes of all weights in memory.
    pub resident_bytes: f64,
    /// Maximum tokens of a sequence.
    pub max_model_len: usize,
}

impl Simulated {
    /// With these precisions, counted as everywhere. Passes of a mixture are taken to read every expert, as a batch
    /// soon does.
    pub fn of(shape: &ModelShape, weights: WeightClass, kv_dtype: KvDtype) -> Simulated {
        let Demands { weight_bytes, kv_bytes_per_token, .. } = shape.demands(weights, kv_dtype);
        Simulated {
            cost: ModelCost {
                weight_bytes: weight_bytes as f64,
                row_flops: shape.flops_per_token(),
                logit_flops: shape.flops_per_logit_row(),
                pair_flops: shape.pair_flops as f64,
                kv_bytes: kv_bytes_per_token as f64,
            },
            resident_bytes: (weight_bytes as u64 + shape.unread_bytes(weights)) as f64,
            max_model_len: shape.context_limit,
        }
    }

    /// Its step costs on a machine with weights and keys of these classes; attention at its own peak.
    pub fn on(&self, machine: &Machine, weights: WeightClass, kv_dtype: KvDtype) -> CostModel {
        let peaks = machine.peaks_of(weights, kv_dtype, self.resident_bytes as usize);
        let pair_flops = self.cost.pair_flops * peaks.matrix / peaks.attention;
        CostModel::roofline(&ModelCost { pair_flops, ..self.cost }, &hardware(machine, &peaks))
    }

    /// Blocks of `block_size` tokens that fit into `memory` bytes beside the weights; 0 if the weights do not fit.
    pub fn kv_blocks(&self, memory: f64, block_size: usize) -> usize {
        let left = memory * MEMORY_SHARE - self.resident_bytes;
        let blocks = (left / (self.cost.kv_bytes * block_size as f64)).max(0.0) as usize;
        // Slot numbers have 32 bits.
        blocks.min((u32::MAX as usize - 1) / block_size)
    }
}

/// A machine for the simulator: one peak for all precisions, that of matrix products.
fn hardware(machine: &Machine, peaks: &Peaks) -> Hardware {
    Hardware {
        name: "", // in the machine
        flops: peaks.matrix,
        bandwidth: peaks.bandwidth,
        flops_share: machine.flops_share,
        bandwidth_share: machine.bandwidth_share,
        step_overhead: machine.step_overhead,
    }
}
