//! A trained drafter from its weights to its place beside the target: what its passes cost is measured, as that of
//! steps is.

use ::model::Forward;
use ::model::draft::{Feature, Medusa};
use protocol::sampling::Sampling;
use scheduler::CostModel;

use super::layer::{Alone, Layer};
use super::medusa::MedusaDrafter;
use super::model::DraftModel;
use super::network::{DraftNetwork, DraftSizes};

/// A drafter in memory.
pub(crate) enum Loaded {
    Model(Box<dyn Forward>),
    Heads(Medusa),
    Layer(Feature),
}

/// A learned drafter, and what its passes cost, if steps are measured.
pub(crate) struct TrainedDrafter {
    pub(crate) network: Box<dyn DraftNetwork>,
    pub(crate) cost: Option<CostModel>,
}

impl Loaded {
    /// `sampling`: parameters for measuring the cost of drafts; `None`: it is not measured. `measure`: measures a
    /// model, or what implements its trait.
    pub(crate) fn begin(
        self,
        target: &mut dyn Forward,
        sizes: DraftSizes,
        sampling: Option<&Sampling>,
        measure: &mut dyn FnMut(&mut dyn Forward, &Sampling) -> Option<CostModel>,
    ) -> TrainedDrafter {
        match self {
            Loaded::Model(mut model) => {
                let cost = sampling.and_then(|sampling| measure(&mut *model, sampling));
                TrainedDrafter { network: Box::new(DraftModel::new(model, sizes)), cost }
            }
            Loaded::Heads(medusa) => {
                let mut heads = MedusaDrafter::new(medusa, target, sizes.max_drafts, sizes.max_logit_rows);
                let cost = sampling.map(|sampling| {
                    // A separate thread, because the one that computes may be pinned to a core.
                    let (target, heads) = (&mut *target, &mut heads);
                    let measure = move || {
                        target.set_compute_thread();
                        heads.measure(sampling)
                    };
                    let measured = std::thread::scope(|scope| scope.spawn(measure).join());
                    measured.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                });
                TrainedDrafter { network: Box::new(heads), cost }
            }
            Loaded::Layer(mut layer) => {
                let cost = sampling
                    .and_then(|sampling| measure(&mut Alone::new(&mut layer, target, sizes.block_size), sampling));
                TrainedDrafter { network: Box::new(Layer::new(layer, target, sizes)), cost }
            }
        }
    }
}
