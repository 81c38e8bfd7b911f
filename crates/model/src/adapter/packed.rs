//! Adapters where the backend computes, and the rows of a step through them.

use super::files::{Adapter, Pair};
use super::rows::RowGroup;
use crate::config::{AttentionGate, FeedForward, FusedProjections, LayerConfig, ModelConfig};
use crate::transformer::{Pass, out_of_memory};
use checkpoint::LoadError;
use checkpoint::weights::RowOrder;
use kernels::{Backend, DefaultFloats, LowRank, LowRankShape, LowRankSource};
use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// How many adapters a runner has room for, and of which rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdapterRoom {
    /// Slots; 0: none, and no memory is taken.
    pub slots: usize,
    /// Largest rank of a projection's matrices.
    pub max_rank: usize,
}

/// The products of a layer that adapters have a part in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Module {
    Qkv,
    O,
    GateUp,
    Down,
}

impl Module {
    pub(crate) const ALL: [Module; 4] = [Module::Qkv, Module::O, Module::GateUp, Module::Down];

    /// Numbers of a row that it reads, and of one that it makes.
    pub(crate) fn widths(self, config: &ModelConfig, layer: usize) -> (usize, usize) {
        let LayerConfig { heads, mlp_width, .. } = config.layers[layer];
        let hidden = config.hidden_size;
        match self {
            Module::Qkv => (hidden, heads.qkv_width()),
            Module::O => (heads.q_width(), hidden),
            Module::GateUp => (hidden, 2 * mlp_width),
            Module::Down => (mlp_width, hidden),
        }
    }

    /// The rows of the parts in which a checkpoint keeps it.
    fn parts(self, config: &ModelConfig, layer: usize) -> ([usize; 3], usize) {
        let (_, width) = self.widths(config, layer);
        let kv = config.layers[layer].heads.kv_width();
        match self {
            Module::Qkv if config.fused_projections != FusedProjections::All => ([width - 2 * kv, kv, kv], 3),
            Module::GateUp if config.fused_projections == FusedProjections::None => ([width / 2, width / 2, 0], 2),
            _ => ([width, 0, 0], 1),
        }
    }

    fn order(self) -> RowOrder {
        if self == Module::GateUp { RowOrder::GateUp } else { RowOrder::AsStored }
    }
}

/// An adapter in the backend's layout.
pub(crate) struct Packed<B: Backend> {
    /// By layer and [`Module`].
    layers: Vec<[Option<B::LowRank>; 4]>,
}

impl<B: Backend> Packed<B> {
    pub(crate) fn of(backend: &B, config: &ModelConfig, adapter: &Adapter) -> Result<Packed<B>, LoadError> {
        let layer = |(index, pairs): (usize, &[Vec<Pair>; 4])| {
            let product = |module: Module| match &pairs[module as usize][..] {
                [] => Ok(None),
                pairs => low_rank(backend, pairs, module, module.widths(config, index)).map(Some),
            };
            Ok([product(Module::Qkv)?, product(Module::O)?, product(Module::GateUp)?, product(Module::Down)?])
        };
        Ok(Packed { layers: adapter.layers.iter().enumerate().map(layer).collect::<Result<_, LoadError>>()? })
    }

    fn product(&self, layer: usize, module: Module) -> Option<&B::LowRank> {
        self.layers[layer][module as usize].as_ref()
    }
}

/// An adapter in the layout of the backend of a model, which its [`AdapterPacker`] made.
pub struct PackedAdapter {
    packed: Box<dyn Any + Send + Sync>,
    /// Address of the backend that holds it, which its packer keeps.
    backend: usize,
}

impl PackedAdapter {
    pub(crate) fn new<B: Backend>(packed: Packed<B>, backend: &Arc<B>) -> PackedAdapter {
        PackedAdapter { packed: Box::new(packed), backend: Arc::as_ptr(backend).addr() }
    }

    /// Fails where it lies on another device, which was lost since.
    pub(crate) fn into_packed<B: Backend>(self, backend: &Arc<B>) -> Result<Packed<B>, LoadError> {
        let is_here = self.backend == Arc::as_ptr(backend).addr();
        let packed = self.packed.downcast().ok().filter(|_| is_here);
        packed.map(|packed| *packed).ok_or_else(|| LoadError::Option {
            option: "adapters",
            problem: "this one was packed for a device that is lost now: load it again".to_owned(),
        })
    }
}

impl fmt::Debug for PackedAdapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PackedAdapter")
    }
}

/// Packs adapters for a model, on whichever thread asks.
#[derive(Clone)]
pub struct AdapterPacker(Arc<Pack>);

type Pack = dyn Fn(&Adapter) -> Result<PackedAdapter, LoadError> + Send + Sync;

impl AdapterPacker {
    pub(crate) fn new<B: Backend>(backend: Arc<B>, config: ModelConfig) -> AdapterPacker {
        AdapterPacker(Arc::new(move |adapter| {
            Ok(PackedAdapter::new(Packed::of(&*backend, &config, adapter)?, &backend))
        }))
    }

    /// Fails where memory ends. Cost: some nanoseconds a weight.
    pub fn pack(&self, adapter: &Adapter) -> Result<PackedAdapter, LoadError> {
        let _floats = DefaultFloats::enter();
        (self.0)(adapter)
    }
}

impl fmt::Debug for AdapterPacker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdapterPacker")
    }
}

fn low_rank<B: Backend>(
    backend: &B,
    pairs: &[Pair],
    module: Module,
    (in_features, out_features): (usize, usize),
) -> Result<B::LowRank, LoadError> {
    let order = module.order();
    let rank = pairs.iter().map(|pair| pair.rank).sum();
    let a = |mut row: usize, to: &mut [f32]| {
        for pair in pairs {
            if row < pair.rank {
                return to.copy_from_slice(&pair.a[row * in_features..][..in_features]);
            }
            row -= pair.rank;
        }
    };
    // An output's pair, with the row in it, and where its part of `A x` begins.
    let pair_of = |output: usize| {
        let (row, mut first) = (order.source(output, out_features), 0);
        pairs.iter().find_map(|pair| {
            let begin = first;
            first += pair.rank;
            let own = row.checked_sub(pair.first_row).filter(|&own| own < pair.num_rows)?;
            Some((pair, own, begin))
        })
    };
    let reads = |output: usize| pair_of(output).map_or(0..0, |(pair, _, begin)| begin..begin + pair.rank);
    let b = |output: usize, to: &mut [f32]| {
        if let Some((pair, own, _)) = pair_of(output) {
            to.copy_from_slice(&pair.b[own * pair.rank..][..pair.rank]);
        }
    };
    let shape = LowRankShape { in_features, rank, out_features };
    let packed = backend.pack_low_rank(shape, LowRankSource { a: &a, reads: &reads, b: &b });
    packed.map_err(|oom| out_of_memory(oom, "an adapter".to_string()))
}

/// Bytes in memory of an adapter of all projections with this rank at most; `None` where that is absurd.
pub fn adapter_bytes(config: &ModelConfig, rank: usize) -> Option<u64> {
    let of_module = |module: Module, layer: usize| {
        let ((in_features, out_features), (parts, count)) = (module.widths(config, layer), module.parts(config, layer));
        let shape = LowRankShape { in_features, rank: rank.checked_mul(count)?, out_features };
        // A part that is not the first may begin within a pair of numbers, if the rank of one before it is odd.
        let more = if count > 1 { 2 } else { 0 };
        let most = rank.checked_add(more)?.checked_mul(count)?;
        let reads = |output: usize| {
            let (mut row, mut part) = (module.order().source(output, out_features), 0);
            while row >= parts[part] {
                (row, part) = (row - parts[part], part + 1);
            }
            let begin = part * rank;
            begin..(begin + rank + more).min(most)
        };
        LowRank::bytes_of(shape, &reads).map(|bytes| bytes as u64)
    };
    // Most layers are like the one before.
    let (mut alike, mut bytes_of) = (None, [None; 4]);
    let mut all = 0u64;
    for (index, layer) in config.layers.iter().enumerate() {
        if alike != Some((layer.heads, layer.mlp_width)) {
            bytes_of = Module::ALL.map(|module| of_module(module, index));
            alike = Some((layer.heads, layer.mlp_width));
        }
        for module in Module::ALL {
            let is_adapted = match module {
                Module::Qkv => layer.mixer.has_keys() && config.attention_gate == AttentionGate::None,
                Module::O => layer.mixer.has_keys(),
                Module::GateUp | Module::Down => layer.feed == FeedForward::Dense,
            };
            if is_adapted {
                all = all.checked_add(bytes_of[module as usize]?)?;
            }
        }
    }
    Some(all)
}

impl AdapterRoom {
    /// Bytes beside those of a model without adapters, in a pass of `max_rows` rows; `None` where the number overflows.
    pub fn bytes(self, config: &ModelConfig, max_rows: usize) -> Option<u64> {
        if self.slots == 0 {
            return Some(0);
        }
        let widest = config.layers.iter().map(|layer| layer.mlp_width as u64).max().unwrap_or(0);
        let gate_up = (max_rows as u64).checked_mul(8 * widest)?;
        adapter_bytes(config, self.max_rank)?.checked_mul(self.slots as u64)?.checked_add(gate_up)
    }
}

/// Where in a pass a layer is, as far as adapters have to know it.
pub(crate) struct At<'a, 's, B: Backend> {
    pub(crate) step: &'a B::Step<'s>,
    pub(crate) groups: &'a [RowGroup],
    pub(crate) layer: usize,
    /// The current rows are those that have logits.
    pub(crate) narrow: bool,
}

impl<B: Backend> At<'_, '_, B> {
    /// Whether any current row has an adapter for this product.
    pub(crate) fn adapts(&self, pass: &Pass<'_, B>, module: Module) -> bool {
        self.groups(pass, module).next().is_some()
    }

    /// The adapters that have a part in this product, each with the list of its rows.
    fn groups<'p>(
        &self,
        pass: &Pass<'p, B>,
        module: Module,
    ) -> impl Iterator<Item = (&'p B::LowRank, Range<usize>)> + Clone + Sync {
        let (adapters, layer, narrow) = (pass.adapters, self.layer, self.narrow);
        self.groups.iter().filter_map(move |group| {
            let rows = if narrow { &group.wanted } else { &group.all };
            let adapter = adapters[group.slot].as_ref().expect("an adapter that a batch names is there");
            let product = adapter.product(layer, module).filter(|_| !rows.is_empty())?;
            Some((product, rows.clone()))
        })
    }

    /// Adds what adapters have to add to a product's result.
    pub(crate) fn add(&self, pass: &Pass<'_, B>, module: Module, input: &B::Rows, out: &mut B::Rows) {
        if self.adapts(pass, module) {
            pass.backend.add_low_rank(self.step, input, self.groups(pass, module), out);
        }
    }
}
