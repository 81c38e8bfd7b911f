//! The forward pass of a decoder, in the words of [`Backend`].
//!
//! ```text
//! x = embed(tokens) * m
//! per layer:  qkv = before(x) Wqkv       k, v -> cache       a = attend(q, cache)       x = x + r after(a Wo)
//!             gu  = before(x) Wgate|up   m = act(g) * u                                 x = x + r after(m Wdown)
//!             or the same by the experts that a row is sent to: experts.rs
//! logits = norm(x) Whead                 only for the rows whose next token is wanted
//! ```
//! Some layers have a state instead of keys and values, and another way from the first product to `a`: mixers.rs.
//! `before` and `after` are norms, or nothing; in some models both blocks read one norm of the same `x`; `m` and `r` are 1
//! in most models. What a model has of this is in its [`ModelConfig`] and its weights: no step here asks for its name.
//!
//! Prefill and decode are the same pass over different rows: a row's arithmetic never looks at the other rows. Rows lie
//! where the backend computes, and nothing here reads them: the pass is a list of operations, asked for in this order.
//! In the last layer everything after attention is computed for the wanted rows only, since nothing reads the others;
//! a state is led past all of them.

use crate::adapter::{AdapterRoom, At, Module, Packed, RowLists};
use crate::balance::balance;
use crate::batch::Batch;
use crate::config::{CacheLayer, HeadNorm, LayerConfig, MixerWidths, ModelConfig, NormKind, NormPlacement};
use crate::experts::{BesideMlp, ExpertReader, ExpertScratch, ExpertSet, Experts, SharedExpert};
use crate::mixers::{
    Attention, Delta, HeadWeights, InnerScratch, Latent, Mamba, Memory, Mixer, MixerPlace, ShortConvolution, scale,
};
use crate::tensors::{self, Feed, Norms, Tensors};
use checkpoint::LoadError;
use checkpoint::weights::{RowOrder, TensorSlice, Weights};
use kernels::{
    Activation, AttentionRule, AttentionSpan, Backend, Extent, HeadLayout, Out, OutOfMemory, RopeTable, StateSpan,
    StepArrays, WeightClass, recurrence,
};
use roofline::embedding_class;
use std::ops::Range;
use std::sync::Arc;

/// Weights of a model in a backend's layout. What drafters share is counted.
pub(crate) struct Transformer<B: Backend> {
    /// `[vocab_size, hidden_size]`.
    pub(crate) embed: Arc<B::Matrix>,
    /// Ones `[hidden_size]`, where the embedding is normed.
    embed_norm: Option<B::Vector>,
    inputs: Option<InputTable<B>>,
    stack: Stack<B>,
    /// `[hidden_size]`.
    pub(crate) final_norm: Norm<B>,
    /// `[vocab_size, hidden_size]`; `None` when the embedding serves as the head.
    head: Option<Arc<B::Matrix>>,
    /// `[vocab_size]`.
    head_bias: Option<B::Vector>,
}

/// Decoder layers, one after the other.
pub(crate) struct Stack<B: Backend> {
    pub(crate) layers: Vec<Layer<B>>,
    /// By the layers' index.
    pub(crate) ropes: Vec<RopeTable<B::Vector>>,
}

/// The residual stream after a number of layers, of every row of the last pass: `[max_rows, hidden_size]`.
pub(crate) struct Tap<B: Backend> {
    pub(crate) after: usize,
    pub(crate) rows: B::Rows,
}

/// Copies the residual stream to who asked for it.
fn tap<B: Backend>(pass: &Pass<'_, B>, taps: &mut [Tap<B>], after: usize, (x, rows): (&B::Rows, usize)) {
    let extent = Extent { rows, width: pass.config.hidden_size };
    taps.iter_mut().filter(|tap| tap.after == after).for_each(|tap| copy(pass.backend, x, &mut tap.rows, extent));
}

/// `to = from`.
pub(crate) fn copy<B: Backend>(backend: &B, from: &B::Rows, to: &mut B::Rows, extent: Extent) {
    backend.clear(to, extent);
    backend.add_scaled(from, 1.0, to, extent);
}

pub(crate) struct Layer<B: Backend> {
    attention_norms: Norms<Norm<B>>,
    /// None, one, or several beside each other.
    pub(crate) mixings: Vec<Mixing<B>>,
    mlp_norms: Norms<Norm<B>>,
    mlp: Option<MlpBlock<B>>,
    input: Option<LayerInput<B>>,
    /// Multiplies the stream behind the layer.
    scalar: f32,
}

/// A mixer between its products.
pub(crate) struct Mixing<B: Backend> {
    /// `[q heads | gates, if any | k heads | v heads] x hidden_size`, or the first product of another mixer.
    pub(crate) qkv: Linear<B>,
    /// Keys and values, if they are none of its rows: they have another class.
    kv: Option<Linear<B>>,
    mixer: Mixer<B>,
    /// `[hidden_size, num_heads * head_dim]`, or the last product of another mixer.
    o: Linear<B>,
}

impl<B: Backend> Mixing<B> {
    /// The first product.
    fn apply(&self, backend: &B, x: &B::Rows, rows: usize, out: &mut B::Rows) {
        let Some(kv) = &self.kv else { return self.qkv.apply(backend, x, rows, Out::Store(out)) };
        let [keys_at, own] = [&self.qkv, kv].map(|linear| backend.shape(&linear.matrix).out_features);
        let width = keys_at + own;
        self.qkv.apply(backend, x, rows, Out::StoreAt { out, at: 0, width });
        kv.apply(backend, x, rows, Out::StoreAt { out, at: keys_at, width });
    }
}

/// A norm of the stream.
pub(crate) struct Norm<B: Backend> {
    /// `[hidden_size]`.
    weight: B::Vector,
    /// Likewise.
    bias: Option<B::Vector>,
    kind: NormKind,
    eps: f32,
}

impl<B: Backend> Norm<B> {
    /// `rows` of `x`, to the first rows of `out`.
    pub(crate) fn apply(&self, backend: &B, x: &B::Rows, rows: Range<usize>, out: &mut B::Rows) {
        let &Norm { ref weight, ref bias, kind, eps } = self;
        match kind {
            NormKind::Rms => backend.rms_norm(x, rows, weight, eps, out),
            NormKind::Layer { .. } => {
                backend.layer_norm(x, rows, kernels::Norm { weight, bias: bias.as_ref(), eps }, out);
            }
        }
    }

    fn bytes(&self, backend: &B) -> usize {
        [Some(&self.weight), self.bias.as_ref()].into_iter().flatten().map(|vector| backend.vector_bytes(vector)).sum()
    }
}

enum MlpBlock<B: Backend> {
    Dense(Mlp<B>),
    Experts(Experts<B>),
}

/// The MLP, or one expert of many.
pub(crate) struct Mlp<B: Backend> {
    /// `2 * width x hidden_size`, in the order of [`kernels::gate_up_row`]; `width x hidden_size` without a gate.
    pub(crate) gate_up: Linear<B>,
    /// `[hidden_size, width]`.
    pub(crate) down: Linear<B>,
    pub(crate) activation: Activation,
}

pub(crate) struct Linear<B: Backend> {
    pub(crate) matrix: B::Matrix,
    /// `[out_features]`.
    pub(crate) bias: Option<B::Vector>,
}

impl<B: Backend> Linear<B> {
    pub(crate) fn apply(&self, backend: &B, x: &B::Rows, rows: usize, out: Out<'_, B::Rows>) {
        backend.linear(x, rows, &self.matrix, self.bias.as_ref(), out);
    }

    pub(crate) fn bytes(&self, backend: &B) -> usize {
        backend.matrix_bytes(&self.matrix) + self.bias.as_ref().map_or(0, |bias| backend.vector_bytes(bias))
    }
}

impl<B: Backend> Mlp<B> {
    /// The middle of the MLP.
    fn activated(&self, pass: &Pass<'_, B>, (input, rows): (&B::Rows, usize), out: &mut B::Rows) {
        let (backend, activation) = (pass.backend, self.activation);
        if pass.config.gated_mlp {
            return self.gate_up.apply(backend, input, rows, Out::Gated(activation, out));
        }
        self.gate_up.apply(backend, input, rows, Out::Store(out));
        let width = backend.shape(&self.gate_up.matrix).out_features;
        backend.activate(activation, out, Extent { rows, width });
    }

    /// The first `rows` of `input`. `activated` is scratch.
    /// One expert's.
    pub(crate) fn apply(
        &self,
        pass: &Pass<'_, B>,
        (input, rows): (&B::Rows, usize),
        activated: &mut B::Rows,
        out: Out<'_, B::Rows>,
    ) {
        self.activated(pass, (input, rows), activated);
        self.down.apply(pass.backend, activated, rows, out);
    }

    /// The same with what some rows have beside it.
    fn apply_adapted(
        &self,
        pass: &Pass<'_, B>,
        at: &At<'_, '_, B>,
        (input, rows): (&B::Rows, usize),
        gate_up: &mut Option<B::Rows>,
        activated: &mut B::Rows,
        out: Out<'_, B::Rows>,
    ) {
        match gate_up.as_mut().filter(|_| at.adapts(pass, Module::GateUp)) {
            None => self.activated(pass, (input, rows), activated),
            Some(gate_up) => {
                self.gate_up.apply(pass.backend, input, rows, Out::Store(gate_up));
                at.add(pass, Module::GateUp, input, gate_up);
                let extent = Extent { rows, width: pass.config.layers[at.layer].mlp_width };
                pass.backend.gate(self.activation, gate_up, extent, activated);
            }
        }
        let out = apply(&self.down, pass.backend, (activated, rows), out);
        at.add(pass, Module::Down, activated, out);
    }

    pub(crate) fn matrices_mut(&mut self) -> [&mut B::Matrix; 2] {
        [&mut self.gate_up.matrix, &mut self.down.matrix]
    }

    pub(crate) fn bytes(&self, backend: &B) -> usize {
        self.gate_up.bytes(backend) + self.down.bytes(backend)
    }
}

/// A product that stays where it was put, for what is still to be added.
fn apply<'o, B: Backend>(
    linear: &Linear<B>,
    backend: &B,
    (x, rows): (&B::Rows, usize),
    out: Out<'o, B::Rows>,
) -> &'o mut B::Rows {
    match out {
        Out::Store(out) => {
            linear.apply(backend, x, rows, Out::Store(out));
            out
        }
        Out::Add(out) => {
            linear.apply(backend, x, rows, Out::Add(out));
            out
        }
        Out::StoreAt { .. } | Out::Gated(..) => unreachable!("a gate or a part is not added to"),
    }
}

/// Activations of one pass, sized once for the largest step.
pub(crate) struct Scratch<B: Backend> {
    /// The residual stream `[max_rows, hidden_size]`.
    pub(crate) x: B::Rows,
    /// `[max_rows, width]` of the widest first product of a layer.
    pub(crate) qkv: B::Rows,
    /// `[max_rows, width]` of the widest second product of a layer's input.
    gates: B::Rows,
    /// `[max_rows, width]` of the widest input of a layer's output projection.
    attended: B::Rows,
    blocks: BlockScratch<B>,
    /// Of models with products within a mixer.
    inner: Option<InnerScratch<B>>,
    /// The wanted rows of `x` in the last layer, `[max_rows, hidden_size]`; the final hidden states until the next
    /// pass.
    pub(crate) wanted_x: B::Rows,
    /// The wanted rows of `attended` in the last layer.
    wanted_attended: B::Rows,
    /// Kept for its memory; always empty between passes.
    spans: Vec<AttentionSpan<'static>>,
    /// Likewise. `None`: no layer has a state.
    state_spans: Option<Vec<StateSpan<'static>>>,
    /// Rows that have logits as a step of their own; `None`: no layer is for them alone.
    wanted_arrays: Option<WantedArrays>,
    inputs: Option<InputScratch<B>>,
    /// Which rows have which adapter.
    lists: RowLists,
}

/// What lives within a block.
struct BlockScratch<B: Backend> {
    /// A block's input, `[max_rows, hidden_size]`.
    normed: B::Rows,
    /// A block's output where it is not added to the residual stream at once, `[max_rows, hidden_size]`; or empty.
    result: B::Rows,
    /// `[max_rows, width]` of the widest MLP.
    activated: B::Rows,
    experts: Option<ExpertScratch<B>>,
    /// Gate and up before they meet, where adapters have a part in them: `[max_rows, 2 * intermediate_size]`.
    adapted: Option<B::Rows>,
}

impl<B: Backend> Scratch<B> {
    /// Memory for rows with adapters too.
    pub(crate) fn make_room(
        &mut self,
        backend: &B,
        config: &ModelConfig,
        max_rows: usize,
        room: AdapterRoom,
    ) -> Result<(), LoadError> {
        if room.slots > 0 {
            let widest = config.layers.iter().map(|layer| layer.mlp_width).max().unwrap_or(0);
            let gate_up = backend.rows(max_rows, 2 * widest);
            let of_rows = |oom| no_rows(backend, oom, format!("adapters' activations of {max_rows} rows"));
            self.blocks.adapted = Some(gate_up.map_err(of_rows)?);
            self.lists = RowLists::with_room(max_rows, room.slots);
        }
        Ok(())
    }

    /// Memory for steps of at most `max_rows` rows.
    pub(crate) fn new(backend: &B, config: &ModelConfig, max_rows: usize) -> Result<Scratch<B>, LoadError> {
        let of_rows = |oom: OutOfMemory| no_rows(backend, oom, format!("activations of {max_rows} rows"));
        let rows = |width: usize| backend.rows(max_rows, width).map_err(of_rows);
        let hidden = config.hidden_size;
        let experts = config.experts.map(|experts| ExpertScratch::new(backend, &experts, hidden, max_rows));
        let blocks = BlockScratch {
            normed: rows(hidden)?,
            result: rows(if adds_at_once(config) { 0 } else { hidden })?,
            activated: rows(config.widest_mlp())?,
            experts: experts.transpose().map_err(of_rows)?,
            adapted: None,
        };
        let widest = |of: fn(&MixerWidths) -> usize| {
            let widths = (0..config.num_layers).flat_map(|layer| config.mixer_widths(layer));
            widths.map(|widths| of(&widths)).max().unwrap_or(0)
        };
        let (row, attended) = (widest(|widths| widths.row), widest(|widths| widths.out));
        Ok(Scratch {
            x: rows(hidden)?,
            qkv: rows(row)?,
            gates: rows(widest(|widths| widths.gates))?,
            attended: rows(attended)?,
            blocks,
            inner: InnerScratch::new(
                backend,
                (0..config.num_layers).filter_map(|layer| config.between(layer)),
                max_rows,
            )
            .map_err(of_rows)?,
            wanted_x: rows(hidden)?,
            wanted_attended: rows(attended)?,
            spans: Vec::with_capacity(max_rows),
            state_spans: (config.state_numbers() > 0).then(|| Vec::with_capacity(max_rows)),
            wanted_arrays: (config.first_reading_layer() < config.num_layers)
                .then(|| WantedArrays::with_room(max_rows)),
            inputs: match config.layer_input {
                Some(input) => Some(InputScratch {
                    rows: rows(config.num_layers * input.width)?,
                    others: rows(config.num_layers * input.width)?,
                    gates: rows(input.width)?,
                }),
                None => None,
            },
            lists: RowLists::default(),
        })
    }
}

pub(crate) fn out_of_memory(oom: OutOfMemory, purpose: String) -> LoadError {
    LoadError::OutOfMemory { bytes: oom.bytes, purpose }
}

/// For rows there is no memory, or they are more than the device sees at once.
pub(crate) fn no_rows<B: Backend>(backend: &B, oom: OutOfMemory, purpose: String) -> LoadError {
    let (bytes, most) = (oom.bytes, backend.most_row_bytes());
    if bytes <= most {
        return out_of_memory(oom, purpose);
    }
    let problem = format!(
        "{purpose} are {bytes} bytes, and a kernel of {} sees {most} at most: give a smaller --max-num-batched-tokens, \
         and of logits --max-num-seqs",
        backend.describe()
    );
    LoadError::Option { option: "device", problem }
}

/// A pass's inputs as the backend has them.
pub(crate) struct Steps<'a, B: Backend> {
    pub(crate) all: B::Step<'a>,
    /// The rows that have logits, where some layers are for them alone.
    wanted: Option<B::Step<'a>>,
}

/// See [`Scratch::wanted_arrays`]; empty between passes.
struct WantedArrays {
    positions: Vec<u32>,
    slots: Vec<u32>,
    spans: Vec<AttentionSpan<'static>>,
}

impl WantedArrays {
    fn with_room(max_rows: usize) -> WantedArrays {
        let (positions, slots) = (Vec::with_capacity(max_rows), Vec::with_capacity(max_rows));
        WantedArrays { positions, slots, spans: Vec::with_capacity(max_rows) }
    }

    /// Rows that follow each other in a sequence make one span.
    fn fill<'b>(&mut self, batch: &'b Batch, spans: &mut Vec<AttentionSpan<'b>>) {
        let WantedArrays { positions, slots, .. } = self;
        positions.clear();
        slots.clear();
        let mut last = None;
        for (index, &row) in batch.logit_rows.iter().enumerate() {
            let of = batch.spans.partition_point(|span| span.first_row <= row) - 1;
            let start = batch.positions[row as usize];
            positions.push(start);
            slots.push(batch.slots[row as usize]);
            match spans.last_mut().filter(|_| last == row.checked_sub(1).map(|before| (of, before))) {
                Some(span) => span.num_rows += 1,
                None => {
                    let table = &batch.spans[of].table;
                    let blocks = &batch.block_tables[table.start as usize..table.end as usize];
                    spans.push(AttentionSpan { first_row: index, num_rows: 1, start: start as usize, blocks });
                }
            }
            last = Some((of, row));
        }
    }
}

/// Runs `work` on a step of the batch's arrays. Allocates nothing.
pub(crate) fn in_step<B: Backend>(
    backend: &B,
    batch: &Batch,
    scratch: &mut Scratch<B>,
    work: impl FnOnce(&Steps<'_, B>, &mut Scratch<B>),
) {
    let mut spans = recycle(std::mem::take(&mut scratch.spans));
    spans.extend(batch.spans.iter().map(|span| AttentionSpan {
        first_row: span.first_row as usize,
        num_rows: span.num_rows as usize,
        start: span.start as usize,
        blocks: &batch.block_tables[span.table.start as usize..span.table.end as usize],
    }));
    let mut state_spans = scratch.state_spans.take().map(recycle);
    if let Some(state_spans) = &mut state_spans {
        state_spans.extend(batch.spans.iter().map(|span| StateSpan {
            first_row: span.first_row as usize,
            num_rows: span.num_rows as usize,
            from: span.state,
            saves: &batch.saves[span.saves.start as usize..span.saves.end as usize],
        }));
    }
    scratch.lists.fill(batch);
    let listed = std::mem::take(&mut scratch.lists.listed);
    let mut arrays = scratch.wanted_arrays.take();
    let mut wanted_spans = arrays.as_mut().map(|arrays| recycle(std::mem::take(&mut arrays.spans)));
    if let Some((arrays, spans)) = arrays.as_mut().zip(wanted_spans.as_mut()) {
        arrays.fill(batch, spans);
    }
    let wanted = arrays.as_ref().zip(wanted_spans.as_deref()).map(|(arrays, spans)| StepArrays {
        positions: &arrays.positions,
        slots: &arrays.slots,
        spans,
        listed: &listed,
        ..StepArrays::default()
    });
    let all = backend.begin(StepArrays {
        token_ids: &batch.token_ids,
        positions: &batch.positions,
        slots: &batch.slots,
        spans: &spans,
        states: state_spans.as_deref().unwrap_or_default(),
        wanted: &batch.logit_rows,
        listed: &listed,
    });
    let steps = Steps { all, wanted: wanted.map(|arrays| backend.begin(arrays)) };
    work(&steps, scratch);
    drop(steps);
    scratch.wanted_arrays = arrays.map(|arrays| {
        let spans = wanted_spans.map(recycle).unwrap_or_default();
        WantedArrays { spans, ..arrays }
    });
    scratch.spans = recycle(spans);
    scratch.state_spans = state_spans.map(recycle);
    scratch.lists.listed = listed;
}

impl<B: Backend> Transformer<B> {
    /// Keys, values and states go to `memory`, the hidden states of the wanted rows stay in `scratch`. Allocates
    /// nothing.
    pub(crate) fn compute(
        &self,
        pass: &Pass<'_, B>,
        batch: &Batch,
        memory: Memory<'_, B>,
        scratch: &mut Scratch<B>,
        taps: &mut [Tap<B>],
    ) {
        let &Pass { backend, config, .. } = pass;
        in_step(backend, batch, scratch, |steps, scratch| {
            let rows = batch.num_rows();
            match &self.embed_norm {
                None => backend.embed(&steps.all, &self.embed, &mut scratch.x),
                Some(ones) => {
                    backend.embed(&steps.all, &self.embed, &mut scratch.blocks.normed);
                    backend.rms_norm(&scratch.blocks.normed, 0..rows, ones, config.rms_norm_eps, &mut scratch.x);
                }
            }
            scale(backend, config.embedding_multiplier, &mut scratch.x, Extent { rows, width: config.hidden_size });
            if let Some((table, inputs)) = self.inputs.as_ref().zip(scratch.inputs.as_mut()) {
                table.apply(pass, &steps.all, (&scratch.x, rows), inputs);
            }
            self.stack.run(pass, (steps, batch), FirstLayerInput::Stream, scratch, memory, taps);
        });
    }

    /// The matrix that makes logits.
    pub(crate) fn head(&self) -> &Arc<B::Matrix> {
        self.head.as_ref().unwrap_or(&self.embed)
    }

    /// What the head reads of wanted rows of the last pass, by their index among them: to the first of the rows that
    /// are returned.
    pub(crate) fn hidden<'s>(&self, backend: &B, rows: Range<usize>, scratch: &'s mut Scratch<B>) -> &'s B::Rows {
        let normed = &mut scratch.blocks.normed;
        self.final_norm.apply(backend, &scratch.wanted_x, rows, normed);
        normed
    }

    /// Logits of wanted rows of the last pass, by their index among them: the first of `out`, `[rows.len(),
    /// vocab_size]`.
    pub(crate) fn logits(
        &self,
        backend: &B,
        config: &ModelConfig,
        rows: Range<usize>,
        scratch: &mut Scratch<B>,
        out: &mut B::Rows,
    ) {
        let count = rows.len();
        let hidden = self.hidden(backend, rows, scratch);
        head_logits(backend, config, (self.head(), self.head_bias.as_ref()), (hidden, count), out);
    }

    /// Bytes of weights that a step reads whose rows go to every expert: everything but the embedding's unused rows.
    pub(crate) fn bytes_read(&self, backend: &B) -> usize {
        let vectors = [&self.embed_norm, &self.head_bias].into_iter().flatten();
        let head =
            backend.matrix_bytes(self.head()) + vectors.map(|vector| backend.vector_bytes(vector)).sum::<usize>();
        let inputs = self.inputs.as_ref().map_or(0, |inputs| inputs.bytes_read(backend));
        self.stack.bytes(backend) + head + self.final_norm.bytes(backend) + inputs
    }

    /// Bytes of all experts that a router chooses, and of those in memory.
    pub(crate) fn expert_bytes(&self, backend: &B) -> [usize; 2] {
        self.stack.layers.iter().fold([0; 2], |[all, held], layer| match &layer.mlp {
            None | Some(MlpBlock::Dense(_)) => [all, held],
            Some(MlpBlock::Experts(mlp)) => {
                let [more, more_held] = mlp.experts.bytes(backend);
                [all + more, held + more_held]
            }
        })
    }

    /// Bytes of all weights in memory.
    pub(crate) fn bytes(&self, backend: &B) -> usize {
        let table = self.inputs.as_ref().map_or(0, |inputs| backend.matrix_bytes(&inputs.table));
        let [experts, held] = self.expert_bytes(backend);
        self.bytes_read(backend) - (experts - held)
            + table
            + self.head.as_ref().map_or(0, |_| backend.matrix_bytes(&self.embed))
    }
}

/// Logits of the first `rows` of `hidden`, as a model of this configuration makes them.
pub(crate) fn head_logits<B: Backend>(
    backend: &B,
    config: &ModelConfig,
    (head, bias): (&B::Matrix, Option<&B::Vector>),
    (hidden, rows): (&B::Rows, usize),
    out: &mut B::Rows,
) {
    let extent = Extent { rows, width: config.vocab_size };
    backend.linear(hidden, rows, head, bias, Out::Store(out));
    scale(backend, config.logits_multiplier, out, extent);
    if let Some(cap) = config.logits_softcap {
        backend.softcap(cap, out, extent);
    }
}

/// What the first layer finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FirstLayerInput {
    /// The residual stream.
    Stream,
    /// Its queries, keys and values too: a drafter makes them of more than the stream.
    Projected,
}

impl<B: Backend> Stack<B> {
    /// From the residual stream in `scratch` to keys, values and states in `memory` and the wanted rows of the stream.
    ///
    /// Once nothing further is kept of the rows, only the wanted ones go on: in the last layer behind its attention,
    /// in models whose last layers read the keys of earlier ones through all of these.
    pub(crate) fn run(
        &self,
        pass: &Pass<'_, B>,
        (steps, batch): (&Steps<'_, B>, &Batch),
        entry: FirstLayerInput,
        scratch: &mut Scratch<B>,
        mut memory: Memory<'_, B>,
        taps: &mut [Tap<B>],
    ) {
        let &Pass { backend, config, .. } = pass;
        let (rows, wanted) = (batch.num_rows(), batch.logit_rows.len());
        let hidden = config.hidden_size;
        let Scratch { x, qkv, gates, attended, blocks, inner, wanted_x, wanted_attended, lists, inputs, .. } = scratch;
        let all_rows_until = taps.iter().map(|tap| tap.after).max().unwrap_or(0);
        // Where the next state begins in a slot, and whether the wanted rows go on alone, in `wanted_x`.
        let (mut state, mut alone) = (0, None);
        tap(pass, taps, 0, (x, rows));
        for (index, layer) in self.layers.iter().enumerate() {
            let after = index + 1;
            if alone.is_none() && index >= config.first_reading_layer().max(all_rows_until) {
                if wanted == 0 {
                    break; // the cache has all that these rows leave behind
                }
                backend.gather_wanted(&steps.all, x, hidden, wanted_x);
                gather_inputs(pass, &steps.all, inputs);
                alone = steps.wanted.as_ref();
            }
            let (step, rows) = alone.map_or((&steps.all, rows), |step| (step, wanted));
            // The last layer's other rows are not needed, unless they were asked for.
            let narrow = alone.is_none() && after == self.layers.len() && all_rows_until < after;
            // Then memory has all that these rows leave behind.
            let needs_out = !(narrow && wanted == 0);
            let at = At { step, groups: &lists.groups, layer: index, narrow: narrow || alone.is_some() };
            let LayerConfig { mixer, heads: layout, rope, cache, .. } = config.layers[index];
            let place = MixerPlace {
                step,
                rows,
                layout,
                rule: config.attention_rule(index),
                rope: rope.map(|rope| &self.ropes[rope]),
                cache,
                state,
                eps: config.rms_norm_eps,
                needs_out,
            };
            if narrow {
                backend.gather_wanted(step, x, hidden, wanted_x);
                gather_inputs(pass, step, inputs);
            }
            for (nth, (mixing, widths)) in layer.mixings.iter().zip(config.mixer_widths(index)).enumerate() {
                if index > 0 || entry == FirstLayerInput::Stream {
                    let stream = if alone.is_some() { &mut *wanted_x } else { &mut *x };
                    layer.project(
                        pass,
                        (&At { narrow: alone.is_some(), ..at }, nth),
                        (stream, rows),
                        blocks,
                        (qkv, gates),
                    );
                }
                mixing.mixer.apply(backend, &place, (qkv, gates, inner), &mut memory, attended);
                if narrow && needs_out {
                    backend.gather_wanted(step, attended, widths.out, wanted_attended);
                    layer.add_mixed(pass, (&at, nth), (wanted_attended, wanted), blocks, wanted_x);
                } else if needs_out {
                    let stream = if alone.is_some() { &mut *wanted_x } else { &mut *x };
                    layer.add_mixed(pass, (&at, nth), (attended, rows), blocks, stream);
                }
            }
            if !needs_out {
                break;
            }
            state += mixer.state_numbers();
            let (stream, rows) = if at.narrow { (&mut *wanted_x, wanted) } else { (&mut *x, rows) };
            layer.finish(pass, &at, (blocks, inputs), (stream, rows));
            if narrow {
                break;
            }
            if alone.is_none() {
                tap(pass, taps, after, (x, rows));
                if after == self.layers.len() {
                    backend.gather_wanted(step, x, hidden, wanted_x);
                }
            }
        }
    }

    /// Bytes of weights.
    pub(crate) fn bytes(&self, backend: &B) -> usize {
        let layer = |layer: &Layer<B>| {
            let norms = [&layer.attention_norms, &layer.mlp_norms];
            let norms = norms.into_iter().flat_map(|norms| [norms.before.as_ref(), norms.after.as_ref()]).flatten();
            let norms = norms.map(|norm| norm.bytes(backend));
            let norms = norms.chain(layer.input.iter().map(|input| backend.vector_bytes(&input.norm)));
            let inputs = layer.input.iter().flat_map(|input| [&input.gate, &input.out]);
            let mlp = match &layer.mlp {
                None => 0,
                Some(MlpBlock::Dense(mlp)) => mlp.bytes(backend),
                Some(MlpBlock::Experts(mlp)) => mlp.bytes_of_all(backend) + mlp.experts.bytes(backend)[0],
            };
            let mixing = |of: &Mixing<B>| {
                let linears = [Some(&of.qkv), of.kv.as_ref(), Some(&of.o)].into_iter().flatten();
                linears.map(|linear| linear.bytes(backend)).sum::<usize>() + of.mixer.bytes(backend)
            };
            layer.mixings.iter().map(mixing).sum::<usize>()
                + inputs.map(|linear| linear.bytes(backend)).sum::<usize>()
                + mlp
                + norms.sum::<usize>()
        };
        self.layers.iter().map(layer).sum()
    }
}

/// What stays the same throughout a pass.
pub(crate) struct Pass<'a, B: Backend> {
    pub(crate) backend: &'a B,
    pub(crate) config: &'a ModelConfig,
    /// By slot; none where no row can have one.
    pub(crate) adapters: &'a [Option<Packed<B>>],
}

/// Whether blocks add to the residual stream as they are, so that their last product can do it.
fn adds_at_once(config: &ModelConfig) -> bool {
    [NormPlacement::Before, NormPlacement::Parallel].contains(&config.norms) && config.residual_multiplier == 1.0
}

/// Where a block's last product goes.
fn block_output<'a, B: Backend>(pass: &Pass<'_, B>, x: &'a mut B::Rows, result: &'a mut B::Rows) -> Out<'a, B::Rows> {
    if adds_at_once(pass.config) { Out::Add(x) } else { Out::Store(result) }
}

/// A block's input, which is the normed residual stream in `normed` or the stream itself, and where its result goes.
fn block_input<'a, B: Backend>(
    pass: &Pass<'_, B>,
    norms: &Norms<Norm<B>>,
    (x, rows): (&'a mut B::Rows, usize),
    normed: &'a mut B::Rows,
    result: &'a mut B::Rows,
) -> (&'a B::Rows, Out<'a, B::Rows>) {
    let Some(norm) = &norms.before else { return (x, Out::Store(result)) };
    norm.apply(pass.backend, x, 0..rows, normed);
    (normed, block_output(pass, x, result))
}

/// Adds what the product left in `result`, if it has not been added.
fn add_result<B: Backend>(
    pass: &Pass<'_, B>,
    norms: &Norms<Norm<B>>,
    result: &B::Rows,
    normed: &mut B::Rows,
    (x, rows): (&mut B::Rows, usize),
) {
    let &Pass { backend, config, .. } = pass;
    if adds_at_once(config) {
        return;
    }
    let result = match &norms.after {
        Some(norm) => {
            norm.apply(backend, result, 0..rows, normed);
            normed
        }
        None => result,
    };
    backend.add_scaled(result, config.residual_multiplier, x, Extent { rows, width: config.hidden_size });
}

impl<B: Backend> Layer<B> {
    /// The first product of one of the mixers for the rows of `x`, and its gates if it has them. The first mixer norms
    /// the input, which those beside it find.
    fn project(
        &self,
        pass: &Pass<'_, B>,
        (at, nth): (&At<'_, '_, B>, usize),
        (x, rows): (&mut B::Rows, usize),
        scratch: &mut BlockScratch<B>,
        (qkv, gates): (&mut B::Rows, &mut B::Rows),
    ) {
        let BlockScratch { normed, result, .. } = scratch;
        let input = match nth {
            0 => block_input(pass, &self.attention_norms, (x, rows), normed, result).0,
            _ => normed,
        };
        let mixing = &self.mixings[nth];
        let mixer = &mixing.mixer;
        mixing.apply(pass.backend, input, rows, qkv);
        if mixer.is_attention() {
            at.add(pass, Module::Qkv, input, qkv);
        }
        if let Some(limit) = pass.config.clip_qkv {
            let width = pass.config.layers[at.layer].heads.qkv_width();
            pass.backend.clamp(limit, qkv, Extent { rows, width });
        }
        if let Some(matrix) = mixer.gates() {
            pass.backend.linear(input, rows, matrix, None, Out::Store(gates));
        }
    }

    /// The last product of one of the mixers, added to the residual stream `x`.
    fn add_mixed(
        &self,
        pass: &Pass<'_, B>,
        (at, nth): (&At<'_, '_, B>, usize),
        (attended, rows): (&B::Rows, usize),
        scratch: &mut BlockScratch<B>,
        x: &mut B::Rows,
    ) {
        if pass.config.norms == NormPlacement::Parallel {
            self.add_mlp(pass, at, scratch, (x, rows)); // both blocks read the stream as it came
        }
        let BlockScratch { normed, result, .. } = scratch;
        let Mixing { mixer, o, .. } = &self.mixings[nth];
        let out = apply(o, pass.backend, (attended, rows), block_output(pass, x, result));
        if mixer.is_attention() {
            at.add(pass, Module::O, attended, out);
        }
        add_result(pass, &self.attention_norms, result, normed, (x, rows));
    }

    /// The MLP and the layer's own input, each added to the residual stream `x`.
    fn finish(
        &self,
        pass: &Pass<'_, B>,
        at: &At<'_, '_, B>,
        (scratch, inputs): (&mut BlockScratch<B>, &mut Option<InputScratch<B>>),
        (x, rows): (&mut B::Rows, usize),
    ) {
        if pass.config.norms != NormPlacement::Parallel {
            self.add_mlp(pass, at, scratch, (x, rows));
        }
        if let Some((input, inputs)) = self.input.as_ref().zip(inputs.as_mut()) {
            let BlockScratch { normed, result, .. } = scratch;
            input.apply(pass, (at.layer, at.narrow), inputs, (result, normed), (x, rows));
        }
        scale(pass.backend, self.scalar, x, Extent { rows, width: pass.config.hidden_size });
    }

    /// The MLP, added to the residual stream `x`.
    fn add_mlp(
        &self,
        pass: &Pass<'_, B>,
        at: &At<'_, '_, B>,
        scratch: &mut BlockScratch<B>,
        (x, rows): (&mut B::Rows, usize),
    ) {
        let Some(mlp) = &self.mlp else { return };
        let BlockScratch { normed, result, activated, experts, adapted } = scratch;
        let (input, out) = block_input(pass, &self.mlp_norms, (&mut *x, rows), normed, result);
        match (mlp, experts) {
            (MlpBlock::Dense(mlp), _) => mlp.apply_adapted(pass, at, (input, rows), adapted, activated, out),
            (MlpBlock::Experts(mlp), Some(scratch)) if mlp.beside.is_some() => {
                mlp.apply_beside(pass, (normed, x, rows), scratch, activated, result);
            }
            (MlpBlock::Experts(mlp), Some(scratch)) => mlp.apply(pass, (input, rows), scratch, activated, out),
            (MlpBlock::Experts(_), None) => unreachable!("a model with experts has scratch for them"),
        }
        add_result(pass, &self.mlp_norms, result, normed, (x, rows));
    }
}

/// A token's own input to a layer (Gemma 3n and 4: Gemma Team, 2025), which joins the stream behind the MLP:
/// `x = x + norm(W (act(G x) * input))`.
struct LayerInput<B: Backend> {
    /// `[width, hidden_size]`.
    gate: Linear<B>,
    /// `[hidden_size, width]`.
    out: Linear<B>,
    norm: B::Vector,
}

/// What makes these inputs, for all layers at once: `(table[token] sqrt(width) + norm(P x / sqrt(hidden_size))) / sqrt(2)`
/// of the embedding `x`.
struct InputTable<B: Backend> {
    /// `[vocab_size, layers * width]`.
    table: B::Matrix,
    /// `[layers * width, hidden_size]`.
    projection: Linear<B>,
    /// `[width]`.
    norm: B::Vector,
}

/// Inputs of a pass's rows.
struct InputScratch<B: Backend> {
    /// `[max_rows, layers * width]`.
    rows: B::Rows,
    /// The same of the wanted rows, when they go on alone.
    others: B::Rows,
    /// `[max_rows, width]`.
    gates: B::Rows,
}

/// The inputs of the wanted rows, for what follows.
fn gather_inputs<B: Backend>(pass: &Pass<'_, B>, step: &B::Step<'_>, inputs: &mut Option<InputScratch<B>>) {
    if let Some((input, InputScratch { rows, others, .. })) = pass.config.layer_input.zip(inputs.as_mut()) {
        pass.backend.gather_wanted(step, rows, pass.config.num_layers * input.width, others);
    }
}

impl<B: Backend> InputTable<B> {
    /// Of the embedding's rows `x`.
    fn apply(
        &self,
        pass: &Pass<'_, B>,
        step: &B::Step<'_>,
        (x, count): (&B::Rows, usize),
        InputScratch { rows, others, .. }: &mut InputScratch<B>,
    ) {
        let &Pass { backend, config, .. } = pass;
        let width = config.layer_input.map_or(0, |input| input.width);
        let extent = Extent { rows: count, width: config.num_layers * width };
        self.projection.apply(backend, x, count, Out::Store(rows));
        backend.scale(1.0 / (config.hidden_size as f32).sqrt(), rows, extent);
        backend.rms_norm(rows, 0..count * config.num_layers, &self.norm, config.rms_norm_eps, others);
        backend.embed(step, &self.table, rows);
        backend.scale((width as f32 / 2.0).sqrt(), rows, extent);
        backend.add_scaled(others, std::f32::consts::FRAC_1_SQRT_2, rows, extent);
    }

    /// Of a token's row of the table nothing is counted.
    fn bytes_read(&self, backend: &B) -> usize {
        self.projection.bytes(backend) + backend.vector_bytes(&self.norm)
    }
}

impl<B: Backend> LayerInput<B> {
    fn apply(
        &self,
        pass: &Pass<'_, B>,
        (layer, narrow): (usize, bool),
        inputs: &mut InputScratch<B>,
        (result, normed): (&mut B::Rows, &mut B::Rows),
        (x, rows): (&mut B::Rows, usize),
    ) {
        let &Pass { backend, config, .. } = pass;
        let width = config.layer_input.map_or(0, |input| input.width);
        let InputScratch { rows: all, others, gates } = inputs;
        let (extent, input) = (Extent { rows, width }, if narrow { others } else { all });
        self.gate.apply(backend, x, rows, Out::Store(gates));
        backend.activate(config.activation, gates, extent);
        backend.multiply(gates, extent, (input, config.num_layers * width, layer * width));
        self.out.apply(backend, gates, rows, Out::Store(result));
        backend.rms_norm(result, 0..rows, &self.norm, config.rms_norm_eps, normed);
        backend.add_scaled(normed, 1.0, x, Extent { rows, width: config.hidden_size });
    }
}

/// What a layer gets to know about its place.
pub(crate) struct Place<'a, V> {
    pub(crate) layout: HeadLayout,
    pub(crate) rope: Option<&'a RopeTable<V>>,
    pub(crate) rule: AttentionRule,
    pub(crate) positions: &'a [u32],
    /// `0..` their number, which is that of the blocks of a one-layer cache.
    pub(crate) blocks: &'a [u32],
}

impl<B: Backend> Layer<B> {
    /// The whole layer by itself, over one sequence from its beginning: `x` is `[positions, hidden_size]`.
    pub(crate) fn apply(
        &self,
        pass: &Pass<'_, B>,
        place: &Place<'_, B::Vector>,
        x: &mut B::Rows,
        mut memory: Memory<'_, B>,
        scratch: &mut Scratch<B>,
    ) {
        let &Pass { backend, config, .. } = pass;
        let Scratch { qkv, gates, attended, blocks, inner, .. } = scratch;
        let &Place { layout, rope, rule, positions, blocks: table } = place;
        let rows = positions.len();
        let spans = &[AttentionSpan { first_row: 0, num_rows: rows, start: 0, blocks: table }];
        let from_zeros = &[StateSpan { first_row: 0, num_rows: rows, from: None, saves: &[] }];
        let step = backend.begin(StepArrays {
            positions,
            slots: positions,
            spans,
            states: from_zeros,
            ..StepArrays::default()
        });
        let at = At { step: &step, groups: &[], layer: 0, narrow: false };
        let place = MixerPlace {
            step: &step,
            rows,
            layout,
            rule,
            rope,
            cache: CacheLayer::default(),
            state: 0,
            eps: config.rms_norm_eps,
            needs_out: true,
        };
        for (nth, mixing) in self.mixings.iter().enumerate() {
            self.project(pass, (&at, nth), (x, rows), blocks, (qkv, gates));
            mixing.mixer.apply(backend, &place, (qkv, gates, inner), &mut memory, attended);
            self.add_mixed(pass, (&at, nth), (attended, rows), blocks, x);
        }
        self.finish(pass, &at, (blocks, &mut None), (x, rows));
    }

    /// Its matrices, in the order of packing.
    pub(crate) fn matrices_mut(&mut self) -> Vec<&mut B::Matrix> {
        let mut matrices = Vec::new();
        for Mixing { qkv, kv, mixer, o } in &mut self.mixings {
            matrices.push(&mut qkv.matrix);
            matrices.extend(kv.iter_mut().map(|kv| &mut kv.matrix));
            matrices.extend(mixer.gates_mut());
            matrices.push(&mut o.matrix);
        }
        match &mut self.mlp {
            None => {}
            Some(MlpBlock::Dense(mlp)) => matrices.extend(mlp.matrices_mut()),
            Some(MlpBlock::Experts(Experts { router, experts, shared, latent, beside, .. })) => {
                matrices.extend(beside.iter_mut().flat_map(|beside| beside.mlp.matrices_mut()));
                matrices.push(&mut router.matrix);
                matrices.extend(experts.held_mut().into_iter().flat_map(Mlp::matrices_mut));
                if let Some(SharedExpert { gate, mlp }) = shared {
                    matrices.extend(mlp.matrices_mut());
                    matrices.extend(gate);
                }
                matrices.extend(latent.iter_mut().flatten().map(|linear| &mut linear.matrix));
            }
        }
        matrices.extend(self.input.iter_mut().flat_map(|input| [&mut input.gate.matrix, &mut input.out.matrix]));
        matrices
    }
}

/// An empty vector of another lifetime in the same memory: the collect of a drained `Vec` into one of the same layout
/// happens in place. (Were that ever to change, the cost would be one small allocation per pass; a test would say so.)
fn recycle<From, To>(mut spans: Vec<From>) -> Vec<To> {
    spans.clear();
    spans.into_iter().map(|_| unreachable!("the vector is empty")).collect()
}

/// What loading needs besides the weights.
pub(crate) struct Loader<'a, B: Backend> {
    pub(crate) backend: &'a B,
    pub(crate) config: &'a ModelConfig,
    pub(crate) weights: &'a Weights,
    pub(crate) class: WeightClass,
    /// Matrices of the layers that are stored in a wider class keep it.
    pub(crate) as_stored: bool,
    /// What was packed, in order: the names of the parts of each matrix.
    pub(crate) names: Vec<String>,
    /// Called with the file bytes packed since the last call.
    pub(crate) progress: &'a mut dyn FnMut(u64),
    /// Where not all experts are in memory.
    pub(crate) expert_reader: Option<&'a Arc<ExpertReader>>,
}

impl<B: Backend> Loader<'_, B> {
    pub(crate) fn load(
        &mut self,
        tensors: &Tensors<'_>,
        ropes: Vec<RopeTable<B::Vector>>,
    ) -> Result<Transformer<B>, LoadError> {
        let embed = Arc::new(self.matrix(&tensors.embedding(), embedding_class(self.class))?);
        let inputs = tensors.inputs().map(|inputs| self.inputs(&inputs)).transpose()?;
        let layers = (0..self.config.num_layers)
            .map(|index| {
                let rotary_dim = self.config.layers[index].rope.map_or(0, |rope| ropes[rope].rotary_dim());
                self.layer(tensors.layer(index), (self.config.layers[index].heads, rotary_dim))
            })
            .collect::<Result<_, _>>()?;
        let final_norm = self.final_norm(&tensors.final_norm())?;
        let ones = self.config.normed_embedding.then(|| vec![1.0; self.config.hidden_size]);
        let embed_norm = ones.map(|ones| self.placed(&ones, "of ones")).transpose()?;
        let stored = tensors.head();
        let head = stored.as_ref().map(|head| self.matrix(head, embedding_class(self.class))).transpose()?;
        let head_bias = match &stored {
            Some(head) => self.bias(head, RowOrder::AsStored)?,
            None => None,
        };
        Ok(Transformer {
            embed,
            embed_norm,
            inputs,
            stack: Stack { layers, ropes },
            final_norm,
            head: head.map(Arc::new),
            head_bias,
        })
    }

    fn inputs(&mut self, inputs: &tensors::InputTable) -> Result<InputTable<B>, LoadError> {
        Ok(InputTable {
            table: self.matrix(&inputs.table, embedding_class(self.class))?,
            projection: self.linear(&inputs.projection)?,
            norm: self.norm(&inputs.norm)?,
        })
    }

    fn layer_input(&mut self, input: &tensors::LayerInput) -> Result<LayerInput<B>, LoadError> {
        let (gate, out) = (self.linear(&input.gate)?, self.linear(&input.out)?);
        Ok(LayerInput { gate, out, norm: self.norm(&input.norm)? })
    }

    /// `rotary_dim`: how many numbers of a head rotate.
    pub(crate) fn layer(
        &mut self,
        layer: tensors::Layer,
        (heads, rotary_dim): (HeadLayout, usize),
    ) -> Result<Layer<B>, LoadError> {
        self.layer_around(Vec::new(), layer, (heads, rotary_dim))
    }

    /// The same of a layer of which the first products of some mixers are there.
    pub(crate) fn layer_around(
        &mut self,
        products: Vec<Linear<B>>,
        layer: tensors::Layer,
        (heads, rotary_dim): (HeadLayout, usize),
    ) -> Result<Layer<B>, LoadError> {
        let (mut mixings, mut products) = (Vec::new(), products.into_iter());
        for mixing in &layer.mixings {
            let (qkv, kv) = match products.next() {
                Some(product) => (product, None),
                None => self.first_products(&layer, mixing)?,
            };
            let mixer = match &mixing.mixer {
                tensors::Mixer::Attention(attention) => Mixer::Attention(self.attention(attention, heads, rotary_dim)?),
                tensors::Mixer::Delta(delta) => Mixer::Delta(self.delta(delta)?),
                tensors::Mixer::Mamba(mamba) => Mixer::Mamba(self.mamba(mamba)?),
                tensors::Mixer::Latent(latent) => Mixer::Latent(self.latent(latent)?),
                tensors::Mixer::ShortConvolution(config, filter) => Mixer::ShortConvolution(ShortConvolution {
                    config: *config,
                    weight: self.taps(filter)?,
                    bias: filter.bias.as_ref().map(|bias| self.as_stored(bias)).transpose()?,
                }),
            };
            let o = self.linear_of(&mixing.o, RowOrder::AsStored, layer.is_wide(&mixing.o))?;
            mixings.push(Mixing { qkv, kv, mixer, o });
        }
        Ok(Layer {
            attention_norms: self.norms(&layer.attention_norms)?,
            mixings,
            mlp_norms: self.norms(&layer.mlp_norms)?,
            mlp: match &layer.feed {
                None => None,
                Some(Feed::Dense(mlp)) => {
                    let activation = self.activation(&layer)?;
                    let gate_up = self.linear_of(&mlp.gate_up, mlp.gate_up_order, layer.is_wide(&mlp.gate_up))?;
                    let down = self.linear_of(&mlp.down, RowOrder::AsStored, layer.is_wide(&mlp.down))?;
                    Some(MlpBlock::Dense(Mlp { gate_up, down, activation }))
                }
                Some(Feed::Experts { router, choice_bias, experts, shared, latent, beside }) => {
                    Some(MlpBlock::Experts(Experts {
                        // Before the router, as its matrices are listed.
                        beside: beside.as_ref().map(|beside| self.beside(beside)).transpose()?,
                        factors: match beside {
                            Some(beside) => self.weights.vector(&beside.factors.name, beside.factors.len)?,
                            None => Vec::new(),
                        },
                        // A wrong choice costs more than a wrong digit: the router keeps its bits in every class.
                        router: Linear {
                            matrix: self.matrix(router, WeightClass::Bf16)?,
                            bias: self.bias(router, RowOrder::AsStored)?,
                        },
                        choice_bias: choice_bias.as_ref().map(|bias| self.finite(bias)).transpose()?,
                        experts: self.experts(experts)?,
                        shared: shared.as_ref().map(|shared| self.shared(shared)).transpose()?,
                        latent: match latent.as_deref() {
                            Some([before, after]) => Some([self.linear(before)?, self.linear(after)?]),
                            None => None,
                        },
                    }))
                }
            },
            input: layer.input.as_ref().map(|input| self.layer_input(input)).transpose()?,
            scalar: match &layer.scalar {
                Some(scalar) => self.weights.vector(&scalar.name, scalar.len)?[0],
                None => 1.0,
            },
        })
    }

    /// Of a layer's MLP.
    fn activation(&self, layer: &tensors::Layer) -> Result<Activation, LoadError> {
        let Some(numbers) = &layer.activation_numbers else { return Ok(layer.activation) };
        let mut found = [0.0; 4];
        for (found, number) in found.iter_mut().zip(numbers) {
            *found = self.weights.vector(&number.name, 1)?[0];
        }
        Ok(Activation::xielu(found))
    }

    /// Of queries, keys and values.
    fn head_norms(
        &self,
        (q_norm, k_norm): &(tensors::Vector, Option<tensors::Vector>),
        by_head: Option<usize>,
        (heads, rotary_dim): (HeadLayout, usize),
    ) -> Result<HeadWeights<B::Vector>, LoadError> {
        let is_plain = self.config.head_norm_factor.is_some();
        let read = |norm: &tensors::Vector| match by_head {
            None => self.factors(norm, is_plain),
            Some(width) => {
                let rows = self.weights.tensor(&norm.name, &[norm.len / width, width])?.rows()?;
                let mut weights = vec![0.0; norm.len];
                weights.chunks_exact_mut(width).enumerate().try_for_each(|(head, row)| rows.read(head, row))?;
                // In the order of the numbers that they are for.
                let order = match self.config.neighbours {
                    true => RowOrder::Pairs { rows: norm.len, width, at: (0, rotary_dim) },
                    false => RowOrder::AsStored,
                };
                Ok((0..norm.len).map(|number| weights[order.source(number, norm.len)]).collect())
            }
        };
        let mut q = read(q_norm)?;
        let mut k = k_norm.as_ref().map(read).transpose()?;
        // Keys that other layers read are for their queries too.
        let shares = self.config.layers.iter().any(|layer| layer.heads.queries_only);
        if let Some(k) = k.as_mut().filter(|_| !shares) {
            balance(&mut q, k, heads.head_dim, rotary_dim);
        }
        let ones = self.config.has_value_norms(heads).then(|| vec![1.0; heads.head_dim]);
        let placed = |numbers: &Vec<f32>| self.placed(numbers, &q_norm.name);
        Ok(HeadWeights {
            q: placed(&q)?,
            k: k.as_ref().map(placed).transpose()?,
            v: ones.as_ref().map(placed).transpose()?,
        })
    }

    fn beside(&mut self, beside: &tensors::BesideMlp) -> Result<BesideMlp<B>, LoadError> {
        let tensors::BesideMlp { mlp, mlp_norm, norms: [before, after], router_norm, .. } = beside;
        // The router reads its input over the root of its width.
        let mut scales = self.weights.vector(&router_norm.name, router_norm.len)?;
        let root = (self.config.hidden_size as f32).sqrt();
        scales.iter_mut().for_each(|scale| *scale /= root);
        Ok(BesideMlp {
            mlp: self.mlp(mlp)?,
            mlp_norm: self.norm(mlp_norm)?,
            norms: [self.norm(before)?, self.norm(after)?],
            router_norm: self.placed(&scales, &router_norm.name)?,
        })
    }

    fn shared(&mut self, shared: &tensors::SharedExpert) -> Result<SharedExpert<B>, LoadError> {
        let mlp = self.mlp(&shared.mlp)?;
        let gate = shared.gate.as_ref().map(|gate| self.matrix(gate, WeightClass::Bf16)).transpose()?;
        Ok(SharedExpert { mlp, gate })
    }

    fn attention(
        &self,
        attention: &tensors::Attention,
        heads: HeadLayout,
        rotary_dim: usize,
    ) -> Result<Attention<B>, LoadError> {
        let tensors::Attention { head_norms, norms_by_head, sinks, .. } = attention;
        let head_norms = match (head_norms, self.config.head_norm_factor) {
            (Some(norms), _) => Some(self.head_norms(norms, *norms_by_head, (heads, rotary_dim))?),
            (None, Some(_)) if self.config.head_norm == HeadNorm::AfterRotation && rotary_dim == 0 => None,
            (None, Some(_)) if self.config.head_norm == HeadNorm::None => None,
            (None, Some(factor)) => {
                let [q, k] = [factor, 1.0].map(|number| self.placed(&vec![number; heads.head_dim], "of one number"));
                Some(HeadWeights { q: q?, k: Some(k?), v: None })
            }
            (None, None) => None,
        };
        let sinks = sinks.as_ref().map(|sinks| self.as_stored(sinks)).transpose()?;
        let factor = self.config.attention_output_multiplier;
        Ok(Attention { head_norms, head_norm: self.config.head_norm, sinks, factor })
    }

    fn delta(&mut self, delta: &tensors::Delta) -> Result<Delta<B>, LoadError> {
        // Decay is an exponential of these products, and an error in it lasts as long as the state: they keep their
        // bits in every class.
        let gates = self.matrix_in_order(&delta.gates, WeightClass::Bf16, delta.gates_order)?;
        let by_key =
            delta.by_key.iter().map(|linear| self.matrix(linear, WeightClass::Bf16)).collect::<Result<_, _>>()?;
        Ok(Delta {
            config: delta.config,
            gates,
            by_key,
            conv: self.taps(&delta.conv)?,
            rates: self.rates(&delta.rates)?,
            dt_bias: self.as_stored(&delta.dt_bias)?,
            // This norm is around one, whatever the others are.
            norm: self.as_stored(&delta.norm)?,
        })
    }

    fn latent(&mut self, latent: &tensors::Latent) -> Result<Latent<B>, LoadError> {
        // All heads see tokens through these few numbers: they keep their bits in every class.
        let keys = self.matrix_in_order(&latent.keys, WeightClass::Bf16, latent.keys_order)?;
        let queries = match &latent.queries {
            Some((norm, queries, order)) => {
                Some((self.as_stored(norm)?, self.linear_in_order(queries, *order)?.matrix))
            }
            None => None,
        };
        let class = tensors::wider_than_int4(self.class);
        let mut by_head = |heads: &[tensors::Linear]| -> Result<Vec<B::Matrix>, LoadError> {
            heads.iter().map(|head| self.matrix(head, class)).collect()
        };
        let (absorb, expand) = (by_head(&latent.absorb)?, by_head(&latent.expand)?);
        Ok(Latent { config: latent.config, queries, keys, key_norm: self.as_stored(&latent.key_norm)?, absorb, expand })
    }

    fn mamba(&mut self, mamba: &tensors::Mamba) -> Result<Mamba<B>, LoadError> {
        let vector =
            |vector: &Option<tensors::Vector>| vector.as_ref().map(|vector| self.as_stored(vector)).transpose();
        let (conv_bias, norm) = (vector(&mamba.conv.bias)?, vector(&mamba.norm)?);
        // As of linear attention: an error in a decay lasts as long as the state.
        let steps = self.matrix(&mamba.steps, WeightClass::Bf16)?;
        let shape = mamba.config.shape;
        Ok(Mamba {
            config: mamba.config,
            steps,
            // What is convolved is multiplied by the way.
            conv: self.taps_times(&mamba.conv, |channel| {
                let part = channel.checked_sub(shape.inner()).map_or(0, |at| 1 + at / (shape.groups * shape.state_dim));
                mamba.config.factors[1 + part]
            })?,
            conv_bias,
            rates: self.rates(&mamba.rates)?,
            dt_bias: self.as_stored(&mamba.dt_bias)?,
            skip: self.as_stored(&mamba.skip)?,
            norm,
        })
    }

    /// How fast states forget.
    fn rates(&self, rates: &tensors::Rates) -> Result<B::Vector, LoadError> {
        let tensors::Rates { vector: tensors::Vector { name, len }, shape, are_logarithms } = rates;
        let (mut rates, width) = (vec![0.0; *len], shape.last().copied().unwrap_or(1));
        let rows = self.weights.tensor(name, shape)?.rows()?;
        rates.chunks_mut(width).enumerate().try_for_each(|(row, rates)| rows.read(row, rates))?;
        if *are_logarithms {
            recurrence::rates(&mut rates);
        }
        self.placed(&rates, name)
    }

    /// Weights of a convolution, stored channel by channel.
    fn taps(&self, filter: &tensors::Filter) -> Result<B::Vector, LoadError> {
        self.taps_times(filter, |_| 1.0)
    }

    /// The same times a factor for each channel.
    fn taps_times(&self, filter: &tensors::Filter, factor: impl Fn(usize) -> f32) -> Result<B::Vector, LoadError> {
        let (taps, mut first) = (filter.taps, 0);
        let channels = filter.channels();
        let (mut by_tap, mut of_channel) = (vec![0.0; taps * channels], vec![0.0; taps]);
        for weight in &filter.weights {
            let [own, ..] = filter.shape(weight);
            let rows = self.weights.tensor(&weight.name, &filter.shape(weight))?.rows()?;
            for channel in first..first + own {
                rows.read(channel - first, &mut of_channel)?;
                let taps = of_channel.iter().enumerate();
                taps.for_each(|(tap, &weight)| by_tap[tap * channels + channel] = weight * factor(channel));
            }
            first += own;
        }
        self.placed(&by_tap, &filter.weights[0].name)
    }

    /// A vector without any change.
    fn as_stored(&self, vector: &tensors::Vector) -> Result<B::Vector, LoadError> {
        self.placed(&self.weights.vector(&vector.name, vector.len)?, &vector.name)
    }

    /// A bias that experts are chosen by: with one that is not finite some would never be, without a sign of it.
    fn finite(&self, vector: &tensors::Vector) -> Result<B::Vector, LoadError> {
        let values = self.weights.vector(&vector.name, vector.len)?;
        match values.iter().position(|value| !value.is_finite()) {
            Some(at) => {
                let problem = format!("number {at} is {}, and experts are chosen by it", values[at]);
                Err(LoadError::field("weights", format!("tensor {:?}", vector.name), problem))
            }
            None => self.placed(&values, &vector.name),
        }
    }

    fn experts(&mut self, experts: &[tensors::Mlp]) -> Result<ExpertSet<B>, LoadError> {
        match self.expert_reader {
            Some(reader) => ExpertSet::cached(self, reader.clone(), experts),
            None => Ok(ExpertSet::All(experts.iter().map(|mlp| self.mlp(mlp)).collect::<Result<_, _>>()?)),
        }
    }

    pub(crate) fn mlp(&mut self, mlp: &tensors::Mlp) -> Result<Mlp<B>, LoadError> {
        let gate_up = self.linear_in_order(&mlp.gate_up, mlp.gate_up_order)?;
        Ok(Mlp { gate_up, down: self.linear(&mlp.down)?, activation: self.config.activation })
    }

    /// Fused projections: rows, and bias entries, one part after the other.
    pub(crate) fn linear(&mut self, linear: &tensors::Linear) -> Result<Linear<B>, LoadError> {
        self.linear_in_order(linear, RowOrder::AsStored)
    }

    pub(crate) fn linear_in_order(
        &mut self,
        linear: &tensors::Linear,
        order: RowOrder,
    ) -> Result<Linear<B>, LoadError> {
        self.linear_of(linear, order, false)
    }

    /// `is_wide`: int8 in an int4 model.
    fn linear_of(&mut self, linear: &tensors::Linear, order: RowOrder, is_wide: bool) -> Result<Linear<B>, LoadError> {
        let class = match self.class_of(linear) {
            class if is_wide && self.weights.are_wider_than_int4(&linear.parts) => tensors::wider_than_int4(class),
            class => class,
        };
        let matrix = self.matrix_in_order(linear, class, order)?;
        Ok(Linear { matrix, bias: self.bias(linear, order)? })
    }

    /// Of a matrix of a layer, as it was asked for.
    fn class_of(&self, linear: &tensors::Linear) -> WeightClass {
        match self.as_stored {
            true => self.weights.at_least_as_stored(self.class, &linear.parts),
            false => self.class,
        }
    }

    /// The first product of a mixer; that of keys and values, if it is apart.
    fn first_products(
        &mut self,
        layer: &tensors::Layer,
        mixing: &tensors::Mixing,
    ) -> Result<(Linear<B>, Option<Linear<B>>), LoadError> {
        let &tensors::Mixing { ref qkv, qkv_order, .. } = mixing;
        let class = self.class_of(qkv);
        let apart = layer.keys_apart(mixing, class).filter(|_| self.weights.are_wider_than_int4(&qkv.parts));
        let Some(at) = apart else { return Ok((self.linear_in_order(qkv, qkv_order)?, None)) };
        let ([q, kv], orders, bias) = (qkv.split(at), qkv_order.split(at), self.bias_numbers(qkv, qkv_order)?);
        let bias = |own: Range<usize>| bias.get(own).map(|bias| self.placed(bias, &qkv.biases[0].name));
        let (q_bias, kv_bias) = (bias(0..at).transpose()?, bias(at..qkv.out_features()).transpose()?);
        let q = self.matrix_in_order(&q, class, orders[0])?;
        let kv = self.matrix_in_order(&kv, tensors::wider_than_int4(class), orders[1])?;
        Ok((Linear { matrix: q, bias: q_bias }, Some(Linear { matrix: kv, bias: kv_bias })))
    }

    /// The biases of fused projections, if there are any.
    pub(crate) fn bias(&self, linear: &tensors::Linear, order: RowOrder) -> Result<Option<B::Vector>, LoadError> {
        let bias = self.bias_numbers(linear, order)?;
        match bias.is_empty() {
            true => Ok(None),
            false => Ok(Some(self.placed(&bias, &linear.biases[0].name)?)),
        }
    }

    /// The same; empty if there are none.
    fn bias_numbers(&self, linear: &tensors::Linear, order: RowOrder) -> Result<Vec<f32>, LoadError> {
        let biases = linear.biases.iter().map(|bias| self.weights.row(bias));
        let stored = biases.collect::<Result<Vec<_>, _>>()?.concat();
        Ok((0..stored.len()).map(|row| stored[order.source(row, stored.len())]).collect())
    }

    pub(crate) fn matrix(&mut self, linear: &tensors::Linear, class: WeightClass) -> Result<B::Matrix, LoadError> {
        self.matrix_in_order(linear, class, RowOrder::AsStored)
    }

    fn matrix_in_order(
        &mut self,
        linear: &tensors::Linear,
        class: WeightClass,
        order: RowOrder,
    ) -> Result<B::Matrix, LoadError> {
        let mut bytes = 0;
        for part in &linear.parts {
            let rows = part.shape[..part.shape.len() - 1].iter().product::<usize>() as u64;
            bytes += self.weights.tensor(&part.name, &part.shape)?.num_bytes() / rows * part.rows.len() as u64;
        }
        let matrix = self.weights.pack_in_order(self.backend, class, linear.in_features, &linear.parts, order)?;
        self.names.push(linear.parts.iter().map(TensorSlice::to_string).collect::<Vec<_>>().join(" + "));
        (self.progress)(bytes);
        Ok(matrix)
    }

    /// `is_plain`: its weights multiply as they are, whatever those of others do.
    fn stream_norm(&self, norm: &tensors::Norm, eps: f32, is_plain: bool) -> Result<Norm<B>, LoadError> {
        let weight = match &norm.weight {
            Some(weight) => self.placed(&self.factors(weight, is_plain)?, &weight.name)?,
            None => self.placed(&vec![1.0; self.config.hidden_size], "of ones")?,
        };
        let bias = norm.bias.as_ref().map(|bias| self.as_stored(bias)).transpose()?;
        Ok(Norm { weight, bias, kind: self.config.norm, eps })
    }

    /// The last norm.
    fn final_norm(&self, norm: &tensors::Norm) -> Result<Norm<B>, LoadError> {
        self.stream_norm(norm, self.config.rms_norm_eps, self.config.plain_final_norm)
    }

    fn norms(&self, norms: &Norms<tensors::Norm>) -> Result<Norms<Norm<B>>, LoadError> {
        let norm = |norm: &Option<tensors::Norm>, eps| {
            norm.as_ref().map(|norm| self.stream_norm(norm, eps, false)).transpose()
        };
        let ModelConfig { rms_norm_eps, after_norm_eps, .. } = *self.config;
        Ok(Norms { before: norm(&norms.before, rms_norm_eps)?, after: norm(&norms.after, after_norm_eps)? })
    }

    pub(crate) fn norm(&self, norm: &tensors::Vector) -> Result<B::Vector, LoadError> {
        self.placed(&self.factors(norm, false)?, &norm.name)
    }

    /// The factors of a norm. `is_plain`: see [`stream_norm`](Self::stream_norm).
    fn factors(&self, norm: &tensors::Vector, is_plain: bool) -> Result<Vec<f32>, LoadError> {
        let mut weight = self.weights.vector(&norm.name, norm.len)?;
        if self.config.norms_around_zero && !is_plain {
            weight.iter_mut().for_each(|weight| *weight += 1.0);
        }
        Ok(weight)
    }

    /// A vector where the backend computes.
    fn placed(&self, numbers: &[f32], name: &str) -> Result<B::Vector, LoadError> {
        self.backend.vector(numbers).map_err(|oom| out_of_memory(oom, format!("weights {name}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_keep_their_memory_from_pass_to_pass() {
        let blocks = [1, 2, 3];
        let mut spans: Vec<AttentionSpan<'_>> = Vec::with_capacity(8);
        let memory = spans.as_ptr();
        spans.push(AttentionSpan { first_row: 0, num_rows: 1, start: 0, blocks: &blocks });
        let recycled: Vec<AttentionSpan<'static>> = recycle::<AttentionSpan<'_>, _>(spans);
        assert_eq!((recycled.len(), recycled.capacity()), (0, 8));
        assert!(std::ptr::addr_eq(recycled.as_ptr(), memory));
    }
}
