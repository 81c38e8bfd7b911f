//! Adapters where the backend computes, and the rows of a step through them.

use super::files::{Adapter, Pair};
use super::rows::RowGroup;
use crate::config::ModelConfig;
use crate::transformer::{Pass, out_of_memory};
use checkpoint::LoadError;
use checkpoint::weights::RowOrder;
use kernels::{Backend, Extent, MatrixShape, Out, PackedMatrix, RowSource, WeightClass};

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
    pub(crate) fn widths(self, config: &ModelConfig) -> (usize, usize) {
        let (hidden, heads) = (config.hidden_size, config.heads());
        match self {
            Module::Qkv => (hidden, heads.qkv_width()),
            Module::O => (heads.q_width(), hidden),
            Module::GateUp => (hidden, 2 * config.intermediate_size),
            Module::Down => (config.intermediate_size, hidden),
        }
    }

    /// In how many parts a checkpoint keeps it.
    fn parts(self, config: &ModelConfig) -> usize {
        match self {
            Module::Qkv if !config.fused_projections => 3,
            Module::GateUp if !config.fused_projections => 2,
            _ => 1,
        }
    }

    fn order(self) -> RowOrder {
        if self == Module::GateUp { RowOrder::GateUp } else { RowOrder::AsStored }
    }
}

/// `A` and `B` of one product.
struct LowRank<B: Backend> {
    /// `[rank, in_features]`.
    a: B::Matrix,
    /// `[out_features, rank]`.
    b: B::Matrix,
}

/// An adapter in the backend's layout.
pub(crate) struct Packed<B: Backend> {
    /// By layer and [`Module`].
    layers: Vec<[Option<LowRank<B>>; 4]>,
}

impl<B: Backend> Packed<B> {
    pub(crate) fn of(backend: &B, config: &ModelConfig, adapter: &Adapter) -> Result<Packed<B>, LoadError> {
        let product = |pairs: &[Pair], module: Module| {
            if pairs.is_empty() {
                return Ok(None);
            }
            low_rank(backend, config, pairs, module).map(Some)
        };
        let layer = |pairs: &[Vec<Pair>; 4]| {
            let [qkv, o, gate_up, down] = pairs;
            Ok([
                product(qkv, Module::Qkv)?,
                product(o, Module::O)?,
                product(gate_up, Module::GateUp)?,
                product(down, Module::Down)?,
            ])
        };
        Ok(Packed { layers: adapter.layers.iter().map(layer).collect::<Result<_, LoadError>>()? })
    }

    fn product(&self, layer: usize, module: Module) -> Option<&LowRank<B>> {
        self.layers[layer][module as usize].as_ref()
    }
}

fn low_rank<B: Backend>(
    backend: &B,
    config: &ModelConfig,
    pairs: &[Pair],
    module: Module,
) -> Result<LowRank<B>, LoadError> {
    let (in_features, out_features) = module.widths(config);
    let rank = pairs.iter().map(|pair| pair.rank).sum();
    let pack = |shape: MatrixShape, fill: &(dyn Fn(usize, &mut [f32]) + Sync)| {
        let packed = backend.pack(shape, WeightClass::Bf16, &RowSource(fill));
        packed.map_err(|oom| out_of_memory(oom, "an adapter".to_string()))
    };
    let a = |mut row: usize, out: &mut [f32]| {
        for pair in pairs {
            if row < pair.rank {
                return out.copy_from_slice(&pair.a[row * in_features..][..in_features]);
            }
            row -= pair.rank;
        }
    };
    let order = module.order();
    let b = |row: usize, out: &mut [f32]| {
        let row = order.source(row, out_features);
        out.fill(0.0);
        let mut column = 0;
        for pair in pairs {
            if let Some(own) = row.checked_sub(pair.first_row).filter(|&own| own < pair.num_rows) {
                out[column..column + pair.rank].copy_from_slice(&pair.b[own * pair.rank..][..pair.rank]);
            }
            column += pair.rank;
        }
    };
    Ok(LowRank {
        a: pack(MatrixShape { out_features: rank, in_features }, &a)?,
        b: pack(MatrixShape { out_features, in_features: rank }, &b)?,
    })
}

/// Bytes in memory of an adapter of all projections with this rank; `None` where that is absurd.
pub fn adapter_bytes(config: &ModelConfig, rank: usize) -> Option<u64> {
    let bytes = |out_features, in_features| {
        PackedMatrix::bytes_of(MatrixShape { out_features, in_features }, WeightClass::Bf16).map(|bytes| bytes as u64)
    };
    let mut all = 0u64;
    for layer in &config.layers {
        for module in Module::ALL {
            if layer.has_experts && matches!(module, Module::GateUp | Module::Down) {
                continue;
            }
            let ((in_features, out_features), rank) = (module.widths(config), rank * module.parts(config));
            all = all.checked_add(bytes(rank, in_features)?)?.checked_add(bytes(out_features, rank)?)?;
        }
    }
    Some(all)
}

/// Memory for the rows of a pass that go through adapters.
pub(crate) struct AdapterScratch<B: Backend> {
    /// An adapter's rows of a product's input, `[max_rows, widest input]`.
    gathered: B::Rows,
    /// `[max_rows, rank]`.
    inner: B::Rows,
    /// What is added, `[max_rows, widest output]`.
    delta: B::Rows,
    /// Gate and up before they meet, `[max_rows, 2 * intermediate_size]`.
    pub(crate) gate_up: B::Rows,
}

impl<B: Backend> AdapterScratch<B> {
    pub(crate) fn new(
        backend: &B,
        config: &ModelConfig,
        max_rows: usize,
        room: AdapterRoom,
    ) -> Result<AdapterScratch<B>, LoadError> {
        let rows = |width| {
            let rows = backend.rows(max_rows, width);
            rows.map_err(|oom| out_of_memory(oom, format!("adapters' activations of {max_rows} rows")))
        };
        let [gathered, inner, delta, gate_up] = scratch_widths(config, room);
        Ok(AdapterScratch {
            gathered: rows(gathered)?,
            inner: rows(inner)?,
            delta: rows(delta)?,
            gate_up: rows(gate_up)?,
        })
    }
}

fn scratch_widths(config: &ModelConfig, room: AdapterRoom) -> [usize; 4] {
    let widest = |width: fn((usize, usize)) -> usize| Module::ALL.map(|module| width(module.widths(config)));
    let most = |widths: [usize; 4]| widths.into_iter().max().unwrap_or(0);
    let (inputs, outputs) = (most(widest(|(input, _)| input)), most(widest(|(_, output)| output)));
    [inputs, 3 * room.max_rank, outputs, 2 * config.intermediate_size]
}

impl AdapterRoom {
    /// Bytes beside those of a model without adapters, in a pass of so many rows; `None` where that is absurd.
    pub fn bytes(self, config: &ModelConfig, max_rows: usize) -> Option<u64> {
        if self.slots == 0 {
            return Some(0);
        }
        let row: usize = scratch_widths(config, self).iter().sum();
        let scratch = (max_rows as u64).checked_mul(4 * row as u64)?;
        adapter_bytes(config, self.max_rank)?.checked_mul(self.slots as u64)?.checked_add(scratch)
    }
}

/// Where in a pass a layer is, as far as adapters have to know it.
pub(crate) struct At<'a, 's, B: Backend> {
    pub(crate) step: &'a B::Step<'s>,
    pub(crate) groups: &'a [RowGroup],
    pub(crate) layer: usize,
    /// The rows at hand are those that have logits.
    pub(crate) narrow: bool,
}

impl<B: Backend> At<'_, '_, B> {
    /// Whether any row at hand has an adapter for this product.
    pub(crate) fn adapts(&self, pass: &Pass<'_, B>, module: Module) -> bool {
        self.each(pass, module).next().is_some()
    }

    /// The adapters that have a part in this product, each with the list of its rows.
    fn each<'p>(
        &'p self,
        pass: &'p Pass<'_, B>,
        module: Module,
    ) -> impl Iterator<Item = (&'p LowRank<B>, std::ops::Range<usize>)> {
        self.groups.iter().filter_map(move |group| {
            let rows = if self.narrow { &group.wanted } else { &group.all };
            let adapter = pass.adapters[group.slot].as_ref().expect("an adapter that a batch names is there");
            let product = adapter.product(self.layer, module).filter(|_| !rows.is_empty())?;
            Some((product, rows.clone()))
        })
    }

    /// Adds what adapters have to add to a product's result: `input`, `out`: the first `rows` of the pass.
    pub(crate) fn add(
        &self,
        pass: &Pass<'_, B>,
        module: Module,
        (input, rows): (&B::Rows, usize),
        scratch: Option<&mut AdapterScratch<B>>,
        out: &mut B::Rows,
    ) {
        let Some(AdapterScratch { gathered, inner, delta, .. }) = scratch else { return };
        self.add_to(pass, module, (input, rows), [gathered, inner, delta], out);
    }

    fn add_to(
        &self,
        pass: &Pass<'_, B>,
        module: Module,
        (input, rows): (&B::Rows, usize),
        [gathered, inner, delta]: [&mut B::Rows; 3],
        out: &mut B::Rows,
    ) {
        let (backend, step) = (pass.backend, self.step);
        let (in_width, out_width) = module.widths(pass.config);
        for (LowRank { a, b }, list) in self.each(pass, module) {
            let count = list.len();
            if count == rows {
                // All rows in their order: nothing has to be picked.
                backend.linear(input, rows, a, None, Out::Store(inner));
                backend.linear(inner, rows, b, None, Out::Add(out));
                continue;
            }
            backend.gather_listed(step, list.clone(), input, in_width, gathered);
            backend.linear(gathered, count, a, None, Out::Store(inner));
            backend.linear(inner, count, b, None, Out::Store(delta));
            backend.add_listed(step, list, delta, out_width, out);
        }
    }

    /// The same for gate and up, whose results are in the scratch.
    pub(crate) fn add_gate_up(
        &self,
        pass: &Pass<'_, B>,
        (input, rows): (&B::Rows, usize),
        scratch: &mut AdapterScratch<B>,
    ) {
        let AdapterScratch { gathered, inner, delta, gate_up } = scratch;
        self.add_to(pass, Module::GateUp, (input, rows), [gathered, inner, delta], gate_up);
    }

    /// The middle of a gated MLP, from what both products have left in the scratch.
    pub(crate) fn gate(pass: &Pass<'_, B>, rows: usize, scratch: &AdapterScratch<B>, activated: &mut B::Rows) {
        let extent = Extent { rows, width: pass.config.intermediate_size };
        pass.backend.gate(pass.config.activation, &scratch.gate_up, extent, activated);
    }
}
