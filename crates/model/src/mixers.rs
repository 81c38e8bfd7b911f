//! How the rows of a layer learn of earlier ones, between the layer's first and its last product.
//!
//! ```text
//! attention      [q | k | v] or [q | gates | k | v]   rotation, keys and values to the cache     attend, gates
//! delta rule     [q | k | v | z], [b | a]             convolution                                S = decay S + k d^T
//!   by key       [q | k | v], what makes [a | z], b   products of that, convolution        S = diag(decay) S + k d^T
//! Mamba-2        [x | B | C | z], [dt]                convolution                            S = decay S + B (dt x)^T
//! both           Mamba-2, then attention: each of the layer's input, each added to the stream
//! convolution    [b | c | u]                          a short convolution of b u, times c
//! latent         [q] or what makes q, [latent | k]    queries, rotation, keys to the cache       attend, values
//! ```
//! Each kind has its own part of a layer's weights and its own memory of a sequence.

use crate::config::{CacheLayer, DeltaConfig, HeadNorm, LatentConfig, MambaConfig, ShortConvolutionConfig};
use kernels::{
    AttentionLayer, AttentionRule, Backend, Convolution, DeltaRows, DeltaRule, Extent, GatedConvolution, HeadLayout,
    HeadNorms, Latents, Mamba as MambaRule, Out, OutOfMemory, RopeTable, Rotation,
};

/// What a layer has between its two products.
pub(crate) enum Mixer<B: Backend> {
    Attention(Attention<B>),
    Delta(Delta<B>),
    Mamba(Mamba<B>),
    ShortConvolution(ShortConvolution<B>),
    Latent(Latent<B>),
}

/// Where in a step, in the cache and in a slot of states a layer's mixer is.
pub(crate) struct MixerPlace<'a, 's, B: Backend> {
    pub(crate) step: &'a B::Step<'s>,
    pub(crate) rows: usize,
    /// Of attention.
    pub(crate) layout: HeadLayout,
    pub(crate) rule: AttentionRule,
    pub(crate) rope: Option<&'a RopeTable<B::Vector>>,
    /// Where its keys and values are.
    pub(crate) cache: CacheLayer,
    /// Where the layer's own states begin in a slot.
    pub(crate) state: usize,
    /// Added under the root of norms.
    pub(crate) eps: f32,
    /// False: only what the rows leave in memory is needed.
    pub(crate) needs_out: bool,
}

/// What sequences leave between passes.
pub(crate) struct Memory<'a, B: Backend> {
    /// By group.
    pub(crate) kv: &'a mut [B::KvCache],
    /// Of a model without states there are none.
    pub(crate) states: &'a mut B::States,
}

/// Rows of the largest step between products within a mixer, see [`ModelConfig::between`](crate::ModelConfig::between).
pub(crate) struct InnerScratch<B: Backend> {
    /// Also decays of keys.
    queries: B::Rows,
    absorbed: B::Rows,
    /// Also what queries are made of, behind its norm.
    sums: B::Rows,
}

impl<B: Backend> InnerScratch<B> {
    /// For the widest of some layers; `None` where there are none.
    pub(crate) fn new(
        backend: &B,
        widths: impl Iterator<Item = [usize; 3]>,
        max_rows: usize,
    ) -> Result<Option<InnerScratch<B>>, OutOfMemory> {
        let Some(widths) = widths.reduce(|a, b| std::array::from_fn(|i| a[i].max(b[i]))) else { return Ok(None) };
        let [queries, absorbed, sums] = widths.map(|width| backend.rows(max_rows, width));
        Ok(Some(InnerScratch { queries: queries?, absorbed: absorbed?, sums: sums? }))
    }
}

impl<B: Backend> Mixer<B> {
    /// From the rows of the first product, and of [`gates`](Self::gates), which become undefined, to the input of the
    /// last product. A model with products within a mixer has scratch for it.
    pub(crate) fn apply(
        &self,
        backend: &B,
        place: &MixerPlace<'_, '_, B>,
        (rows, gates, inner): (&mut B::Rows, &mut B::Rows, &mut Option<InnerScratch<B>>),
        memory: &mut Memory<'_, B>,
        out: &mut B::Rows,
    ) {
        match self {
            Mixer::Attention(attention) => {
                attention.apply(backend, place, rows, &mut memory.kv[place.cache.group], out)
            }
            Mixer::Delta(delta) => delta.apply(backend, place, (rows, gates, inner), memory.states, out),
            Mixer::Mamba(mamba) => mamba.apply(backend, place, (rows, gates), memory.states, out),
            Mixer::ShortConvolution(convolution) => convolution.apply(backend, place, rows, memory.states, out),
            Mixer::Latent(latent) => {
                latent.apply(backend, place, (rows, gates, inner), &mut memory.kv[place.cache.group], out)
            }
        }
    }

    /// Adapters may have a part in its products.
    pub(crate) fn is_attention(&self) -> bool {
        matches!(self, Mixer::Attention(_))
    }

    /// A second matrix of the layer's input.
    pub(crate) fn gates(&self) -> Option<&B::Matrix> {
        match self {
            Mixer::Delta(delta) => Some(&delta.gates),
            Mixer::Mamba(mamba) => Some(&mamba.steps),
            Mixer::Latent(latent) => Some(&latent.keys),
            Mixer::Attention(_) | Mixer::ShortConvolution(_) => None,
        }
    }

    pub(crate) fn gates_mut(&mut self) -> Option<&mut B::Matrix> {
        match self {
            Mixer::Delta(delta) => Some(&mut delta.gates),
            Mixer::Mamba(mamba) => Some(&mut mamba.steps),
            Mixer::Latent(latent) => Some(&mut latent.keys),
            Mixer::Attention(_) | Mixer::ShortConvolution(_) => None,
        }
    }

    /// Bytes of weights.
    pub(crate) fn bytes(&self, backend: &B) -> usize {
        let vectors = match self {
            Mixer::Attention(attention) => attention.vectors(),
            Mixer::Delta(Delta { conv, rates, dt_bias, norm, .. }) => vec![conv, rates, dt_bias, norm],
            Mixer::Mamba(mamba) => mamba.vectors(),
            Mixer::ShortConvolution(convolution) => convolution.vectors(),
            Mixer::Latent(latent) => latent.vectors(),
        };
        let inner = match self {
            Mixer::Latent(latent) => latent.matrices().map(|matrix| backend.matrix_bytes(matrix)).sum(),
            Mixer::Delta(delta) => delta.by_key.iter().map(|matrix| backend.matrix_bytes(matrix)).sum(),
            _ => 0,
        };
        let gates = self.gates().map_or(0, |gates| backend.matrix_bytes(gates));
        gates + inner + vectors.into_iter().map(|vector| backend.vector_bytes(vector)).sum::<usize>()
    }
}

/// Multiplies every number. By 1 in most models, and then not at all.
pub(crate) fn scale<B: Backend>(backend: &B, by: f32, x: &mut B::Rows, extent: Extent) {
    if by != 1.0 {
        backend.scale(by, x, extent);
    }
}

/// Attention over the keys and values of the rows so far.
pub(crate) struct Attention<B: Backend> {
    pub(crate) head_norms: Option<HeadWeights<B::Vector>>,
    pub(crate) head_norm: HeadNorm,
    /// `[num_heads]`, see [`kernels::Attention::sinks`].
    pub(crate) sinks: Option<B::Vector>,
    /// Of its output.
    pub(crate) factor: f32,
}

/// Weights of the norms of q, of k and of v, `[head_dim]` each or `[heads * head_dim]`.
pub(crate) struct HeadWeights<V> {
    pub(crate) q: V,
    /// `None` where the layer has no keys.
    pub(crate) k: Option<V>,
    pub(crate) v: Option<V>,
}

impl<B: Backend> Attention<B> {
    fn apply(
        &self,
        backend: &B,
        place: &MixerPlace<'_, '_, B>,
        qkv: &mut B::Rows,
        kv: &mut B::KvCache,
        out: &mut B::Rows,
    ) {
        let &MixerPlace { step, rows, layout, rule, rope, cache: CacheLayer { layer, .. }, .. } = place;
        let head_norms = self.head_norms(place.eps);
        backend.rotate_and_store(step, Rotation { layout, head_norms, rope, layer }, qkv, kv);
        if place.needs_out {
            backend.attend(step, AttentionLayer { layout, rule, sinks: self.sinks.as_ref(), layer }, qkv, kv, out);
            if layout.gates > 0 {
                backend.gate_heads(layout, qkv, rows, out);
            }
            scale(backend, self.factor, out, Extent { rows, width: layout.out_width() });
        }
    }

    fn head_norms(&self, eps: f32) -> HeadNorms<'_, B::Vector> {
        match (&self.head_norms, self.head_norm) {
            (None, _) | (_, HeadNorm::None) => HeadNorms::None,
            (Some(HeadWeights { q, k, v }), HeadNorm::PerHead | HeadNorm::WithValues) => {
                HeadNorms::PerHead { q, k: k.as_ref().unwrap_or(q), v: v.as_ref(), eps }
            }
            (Some(HeadWeights { q, k, .. }), HeadNorm::AfterRotation) => {
                HeadNorms::AfterRotation { q, k: k.as_ref().unwrap_or(q), eps }
            }
            (Some(HeadWeights { q, k, .. }), HeadNorm::Centered) => {
                HeadNorms::Centered { q, k: k.as_ref().unwrap_or(q), eps }
            }
            (Some(HeadWeights { q, k, .. }), HeadNorm::WholeWidth) => {
                HeadNorms::WholeWidth { q, k: k.as_ref().unwrap_or(q), eps }
            }
        }
    }

    fn vectors(&self) -> Vec<&B::Vector> {
        let norms = self.head_norms.iter().flat_map(|HeadWeights { q, k, v }| [Some(q), k.as_ref(), v.as_ref()]);
        norms.chain([self.sinks.as_ref()]).flatten().collect()
    }
}

/// Linear attention.
pub(crate) struct Delta<B: Backend> {
    pub(crate) config: DeltaConfig,
    /// `[gates_width, hidden_size]`.
    pub(crate) gates: B::Matrix,
    /// What makes decays of keys, and gates of the output: `[key_width, key_dim]` each. None in other layers.
    pub(crate) by_key: Vec<B::Matrix>,
    /// `[taps, channels]`.
    pub(crate) conv: B::Vector,
    /// `[value_heads]`.
    pub(crate) rates: B::Vector,
    /// The same, or `[key_width]`.
    pub(crate) dt_bias: B::Vector,
    /// `[value_dim]`.
    pub(crate) norm: B::Vector,
}

impl<B: Backend> Delta<B> {
    fn apply(
        &self,
        backend: &B,
        &MixerPlace { step, state, eps, rows: count, .. }: &MixerPlace<'_, '_, B>,
        (qkv, gates, inner): (&mut B::Rows, &mut B::Rows, &mut Option<InnerScratch<B>>),
        states: &mut B::States,
        out: &mut B::Rows,
    ) {
        let Delta { config: DeltaConfig { shape, taps, .. }, conv, rates, dt_bias, norm, .. } = self;
        let (channels, row_width) = (shape.channels(), shape.row_width());
        let convolution = Convolution { row_width, channels, taps: *taps, weight: conv, bias: None, silu: true, state };
        backend.convolve(step, convolution, qkv, states);
        let (shape, state) = (*shape, state + self.config.conv_numbers());
        let mut decays = inner.as_mut().filter(|_| shape.by_key).map(|inner| &mut inner.queries);
        if let Some(decays) = &mut decays {
            let [from, to] = shape.of_decays();
            backend.linear_by_head((gates, from), count, &self.by_key, (decays, to));
        }
        let rule = DeltaRule { shape, rates, dt_bias, norm, eps, state };
        backend.delta_rule(step, rule, DeltaRows { rows: qkv, gates, decays }, states, out);
    }
}

/// Mamba-2.
pub(crate) struct Mamba<B: Backend> {
    pub(crate) config: MambaConfig,
    /// `[heads, hidden_size]`.
    pub(crate) steps: B::Matrix,
    /// `[taps, channels]`, and `[channels]`.
    pub(crate) conv: B::Vector,
    pub(crate) conv_bias: Option<B::Vector>,
    /// `[heads]` each.
    pub(crate) rates: B::Vector,
    pub(crate) dt_bias: B::Vector,
    pub(crate) skip: B::Vector,
    /// `[heads * head_dim]`.
    pub(crate) norm: Option<B::Vector>,
}

impl<B: Backend> Mamba<B> {
    fn apply(
        &self,
        backend: &B,
        &MixerPlace { step, state, eps, rows: count, .. }: &MixerPlace<'_, '_, B>,
        (rows, steps): (&mut B::Rows, &mut B::Rows),
        states: &mut B::States,
        out: &mut B::Rows,
    ) {
        let Mamba { config, conv, conv_bias, rates, dt_bias, skip, norm, .. } = self;
        let &MambaConfig { shape, taps, output, norm_groups, factors: [gate_factor, _, _, _, step_factor], .. } =
            config;
        let (channels, row_width, bias) = (shape.channels(), shape.row_width(), conv_bias.as_ref());
        let convolution = Convolution { row_width, channels, taps, weight: conv, bias, silu: true, state };
        backend.convolve(step, convolution, rows, states);
        let (state, norm) = (state + config.conv_numbers(), norm.as_ref());
        let rule =
            MambaRule { shape, rates, step_factor, dt_bias, skip, gate_factor, output, norm, norm_groups, eps, state };
        backend.mamba(step, rule, (rows, steps), states, out);
        scale(backend, config.output_factor, out, Extent { rows: count, width: shape.inner() });
    }

    fn vectors(&self) -> Vec<&B::Vector> {
        let Mamba { conv, conv_bias, rates, dt_bias, skip, norm, .. } = self;
        [conv, rates, dt_bias, skip].into_iter().chain(conv_bias).chain(norm).collect()
    }
}

/// A short convolution between gates.
pub(crate) struct ShortConvolution<B: Backend> {
    pub(crate) config: ShortConvolutionConfig,
    /// `[taps, channels]`.
    pub(crate) weight: B::Vector,
    /// `[channels]`.
    pub(crate) bias: Option<B::Vector>,
}

impl<B: Backend> ShortConvolution<B> {
    fn apply(
        &self,
        backend: &B,
        &MixerPlace { step, state, .. }: &MixerPlace<'_, '_, B>,
        rows: &B::Rows,
        states: &mut B::States,
        out: &mut B::Rows,
    ) {
        let ShortConvolution { config: ShortConvolutionConfig { channels, taps, .. }, weight, bias } = self;
        let how = GatedConvolution { channels: *channels, taps: *taps, weight, bias: bias.as_ref(), state };
        backend.convolve_gated(step, how, rows, states, out);
    }

    fn vectors(&self) -> Vec<&B::Vector> {
        [&self.weight].into_iter().chain(&self.bias).collect()
    }
}

/// Latent attention: see [`kernels::latent`].
pub(crate) struct Latent<B: Backend> {
    pub(crate) config: LatentConfig,
    /// The norm of what queries are made of, `[query_rank]`, and their product, `[query_width, query_rank]`.
    pub(crate) queries: Option<(B::Vector, B::Matrix)>,
    /// `[rank + turning, hidden_size]`.
    pub(crate) keys: B::Matrix,
    /// `[rank]`.
    pub(crate) key_norm: B::Vector,
    /// `[rank, plain]` of each head.
    pub(crate) absorb: Vec<B::Matrix>,
    /// `[value, rank]` of each head.
    pub(crate) expand: Vec<B::Matrix>,
}

/// Under the root of the norms of latents, whatever the configuration says of other norms: as transformers has it.
const LATENT_EPS: f32 = 1e-6;

impl<B: Backend> Latent<B> {
    fn apply(
        &self,
        backend: &B,
        place: &MixerPlace<'_, '_, B>,
        (rows, keys, scratch): (&mut B::Rows, &mut B::Rows, &mut Option<InnerScratch<B>>),
        kv: &mut B::KvCache,
        out: &mut B::Rows,
    ) {
        let &MixerPlace { step, rows: count, layout, rule, rope, cache, .. } = place;
        let (LatentConfig { shape, .. }, layer) = (self.config, cache.layer);
        let Some(InnerScratch { queries, absorbed, sums }) = scratch else {
            unreachable!("a model with latent attention has scratch for it")
        };
        let queries = match &self.queries {
            None => rows,
            Some((norm, product)) => {
                backend.rms_norm(rows, 0..count, norm, LATENT_EPS, sums);
                backend.linear(sums, count, product, None, Out::Store(queries));
                queries
            }
        };
        let [from, to] = shape.absorbed();
        backend.linear_by_head((queries, from), count, &self.absorb, (absorbed, to));
        let how = Latents { shape, norm: &self.key_norm, eps: LATENT_EPS, rope, layer };
        backend.store_latents(step, how, queries, (keys, absorbed), kv);
        if place.needs_out {
            backend.attend(step, AttentionLayer { layout, rule, sinks: None, layer }, absorbed, kv, sums);
            let [from, to] = shape.expanded();
            backend.linear_by_head((sums, from), count, &self.expand, (out, to));
        }
    }

    fn vectors(&self) -> Vec<&B::Vector> {
        self.queries.iter().map(|(norm, _)| norm).chain([&self.key_norm]).collect()
    }

    fn matrices(&self) -> impl Iterator<Item = &B::Matrix> {
        let queries = self.queries.iter().map(|(_, product)| product);
        queries.chain(&self.absorb).chain(&self.expand)
    }
}
