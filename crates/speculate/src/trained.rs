//! A trained drafter from its weights to its place beside the target: what its passes cost is measured, as that of
//! steps is.

use model::Forward;
use model::draft::{Feature, Medusa};
use protocol::sampling::Sampling;
use scheduler::CostModel;

use crate::draft_model::DraftModel;
use crate::layer::{Alone, Layer};
use crate::medusa::MedusaDrafter;
use crate::network::{DraftNetwork, DraftSizes};

/// A drafter in memory.
pub enum LoadedDrafter {
    /// A smaller model.
    Model(Box<dyn Forward>),
    /// Heads on the target.
    Heads(Medusa),
    /// A layer behind the target.
    Layer(Feature),
}

/// A learned drafter, and what its passes cost, if steps are measured.
pub struct TrainedDrafter {
    /// It.
    pub network: Box<dyn DraftNetwork>,
    /// What its passes cost.
    pub cost: Option<CostModel>,
}

impl LoadedDrafter {
    /// `sampling`: parameters for measuring the cost of drafts; `None`: it is not measured. `measure`: measures a
    /// model, or what implements its trait.
    pub fn begin(
        self,
        target: &mut dyn Forward,
        sizes: DraftSizes,
        sampling: Option<&Sampling>,
        measure: &mut dyn FnMut(&mut dyn Forward, &Sampling) -> Option<CostModel>,
    ) -> TrainedDrafter {
        match self {
            LoadedDrafter::Model(mut model) => {
                let cost = sampling.and_then(|sampling| measure(&mut *model, sampling));
                TrainedDrafter { network: Box::new(DraftModel::new(model, sizes)), cost }
            }
            LoadedDrafter::Heads(medusa) => {
                let mut heads = MedusaDrafter::new(medusa, target, sizes.max_drafts, sizes.max_logit_rows);
                let cost = sampling.and_then(|sampling| {
                    // A separate thread, because the one that computes may be pinned to a core.
                    let (target, heads) = (&mut *target, &mut heads);
                    let measure = move || {
                        target.set_compute_thread();
                        heads.measure(sampling)
                    };
                    let measured = std::thread::scope(|scope| scope.spawn(measure).join());
                    // A lost device is found where the target first computes.
                    measured.unwrap_or_else(|panic| std::panic::resume_unwind(panic)).ok()
                });
                TrainedDrafter { network: Box::new(heads), cost }
            }
            LoadedDrafter::Layer(mut layer) => {
                let cost = sampling
                    .and_then(|sampling| measure(&mut Alone::new(&mut layer, target, sizes.block_size), sampling));
                TrainedDrafter { network: Box::new(Layer::new(layer, target, sizes)), cost }
            }
        }
    }
}
