//! What a checkpoint calls its tensors, and which of their rows make one packed matrix.
//!
//! ```text
//! self_attn.q_proj [q, hidden] ┐                       self_attn.qkv_proj [q + 2 kv, hidden]   (Phi-3)
//! self_attn.k_proj [kv, hidden]├─ one Linear      or   the same rows, already together
//! self_attn.v_proj [kv, hidden]┘
//! mlp.experts.7.gate_proj, .up_proj [width, hidden]    or   rows of expert 7 in mlp.experts.gate_up_proj, or columns
//! linear_attn.in_proj_qkv, in_proj_z                   or   in_proj_qkvz, key head by key head (Qwen3-Next)
//! ```
//! Names are those of transformers. The lists here are what is checked before anything is packed, and what is packed.

use checkpoint::LoadError;
use kernels::{Activation, DeltaShape, LatentShape, MatrixShape, OutputNorm, PackedMatrix, WeightClass};
use roofline::{WideParts, embedding_class};
use std::collections::HashSet;
use std::ops::Range;

use crate::config::{
    self, AttentionGate, DeltaConfig, ExpertConfig, Family, FusedProjections, Head, HeadNorm, LatentConfig,
    LayerConfig, LayerInputConfig, MambaConfig, ModelConfig, NormKind, NormPlacement, SharedExpertConfig,
    ShortConvolutionConfig,
};
use checkpoint::weights::{RowOrder, TensorSlice, Weights};

/// A tensor `[len]`.
#[derive(Clone, Debug)]
pub(crate) struct Vector {
    pub(crate) name: String,
    pub(crate) len: usize,
}

/// A matrix: parts stacked by rows, and their biases in the same order.
#[derive(Clone, Debug)]
pub(crate) struct Linear {
    pub(crate) parts: Vec<TensorSlice>,
    pub(crate) in_features: usize,
    /// Empty, or one for each part: a tensor `[rows]`, or a row of a stack of them.
    pub(crate) biases: Vec<TensorSlice>,
}

impl Linear {
    /// Whole tensors `[rows, in_features]`: module names and rows.
    pub(crate) fn whole(modules: &[(String, usize)], in_features: usize, has_bias: bool) -> Linear {
        let part = |(module, rows): &(String, usize)| TensorSlice {
            name: format!("{module}.weight"),
            shape: vec![*rows, in_features],
            rows: 0..*rows,
            transposed: false,
        };
        let bias = |(module, rows): &(String, usize)| TensorSlice {
            name: format!("{module}.bias"),
            shape: vec![*rows],
            rows: 0..1,
            transposed: false,
        };
        Linear {
            parts: modules.iter().map(part).collect(),
            in_features,
            biases: modules.iter().filter(|_| has_bias).map(bias).collect(),
        }
    }

    /// Matrix `index` of `count` that are stacked in one tensor `[count, rows, in_features]`.
    fn stacked(name: String, (index, count): (usize, usize), rows: usize, in_features: usize) -> Linear {
        let shape = vec![count, rows, in_features];
        let part = TensorSlice { name, shape, rows: index * rows..(index + 1) * rows, transposed: false };
        Linear { parts: vec![part], in_features, biases: Vec::new() }
    }

    /// The same of `[count, in_features, rows]`.
    fn stacked_columns(name: String, (index, count): (usize, usize), rows: usize, in_features: usize) -> Linear {
        let shape = vec![count, in_features, rows];
        let part = TensorSlice { name, shape, rows: index * in_features..(index + 1) * in_features, transposed: true };
        Linear { parts: vec![part], in_features, biases: Vec::new() }
    }

    /// With row `index` of a tensor `[count, rows]` as its bias.
    fn with_bias(mut self, name: String, (index, count): (usize, usize)) -> Linear {
        let shape = vec![count, self.out_features()];
        self.biases = vec![TensorSlice { name, shape, rows: index..index + 1, transposed: false }];
        self
    }

    /// Rows of the matrix.
    pub(crate) fn out_features(&self) -> usize {
        self.parts.iter().map(TensorSlice::out_features).sum()
    }

    /// The first `rows` rows, and those behind them. Neither has biases.
    pub(crate) fn split(&self, rows: usize) -> [Linear; 2] {
        let (mut halves, mut left) = ([Vec::new(), Vec::new()], rows);
        for part in &self.parts {
            let cut = part.rows.start + left.min(part.rows.len());
            left -= cut - part.rows.start;
            for (half, rows) in halves.iter_mut().zip([part.rows.start..cut, cut..part.rows.end]) {
                half.extend((!rows.is_empty()).then(|| TensorSlice { rows, ..part.clone() }));
            }
        }
        halves.map(|parts| Linear { parts, in_features: self.in_features, biases: Vec::new() })
    }
}

/// A norm of the stream, `[hidden_size]` each.
#[derive(Debug)]
pub(crate) struct Norm {
    /// `None`: all 1.
    pub(crate) weight: Option<Vector>,
    pub(crate) bias: Option<Vector>,
}

impl Norm {
    pub(crate) fn vectors(&self) -> impl Iterator<Item = &Vector> {
        self.weight.iter().chain(&self.bias)
    }
}

/// Norms of a block's input and output.
#[derive(Debug)]
pub(crate) struct Norms<T> {
    pub(crate) before: Option<T>,
    pub(crate) after: Option<T>,
}

/// The MLP, or one expert.
#[derive(Clone, Debug)]
pub(crate) struct Mlp {
    /// Without a gate, up alone.
    pub(crate) gate_up: Linear,
    /// To that of [`kernels::gate_up_row`], if there is a gate.
    pub(crate) gate_up_order: RowOrder,
    pub(crate) down: Linear,
}

/// The second block of a layer.
#[derive(Debug)]
pub(crate) enum Feed {
    Dense(Mlp),
    Experts {
        router: Linear,
        /// Added to scores for the choice alone.
        choice_bias: Option<Vector>,
        experts: Vec<Mlp>,
        shared: Option<SharedExpert>,
        /// Products before and behind the experts.
        latent: Option<Box<[Linear; 2]>>,
        beside: Option<Box<BesideMlp>>,
    },
}

/// What a layer has whose experts are beside its MLP.
#[derive(Debug)]
pub(crate) struct BesideMlp {
    pub(crate) mlp: Mlp,
    /// Of what the MLP gives, `[hidden_size]` as all norms here.
    pub(crate) mlp_norm: Vector,
    /// Of what experts read and give.
    pub(crate) norms: [Vector; 2],
    /// Of what the router reads.
    pub(crate) router_norm: Vector,
    /// `[num_experts]`.
    pub(crate) factors: Vector,
}

/// The expert that every row passes through.
#[derive(Debug)]
pub(crate) struct SharedExpert {
    pub(crate) mlp: Mlp,
    /// `[1, hidden_size]`.
    pub(crate) gate: Option<Linear>,
}

/// What a layer has between its first and its last product.
#[derive(Debug)]
pub(crate) enum Mixer {
    Attention(Attention),
    Delta(Box<Delta>),
    Mamba(Box<Mamba>),
    ShortConvolution(ShortConvolutionConfig, Filter),
    Latent(Box<Latent>),
}

impl Mixer {
    /// A second matrix of the layer's input, of few rows.
    fn gates(&self) -> Option<&Linear> {
        match self {
            Mixer::Delta(delta) => Some(&delta.gates),
            Mixer::Mamba(mamba) => Some(&mamba.steps),
            Mixer::Latent(latent) => Some(&latent.keys),
            Mixer::Attention(_) | Mixer::ShortConvolution(..) => None,
        }
    }

    /// Tensors of numbers that have other shapes than `[len]`.
    fn shaped(&self) -> Vec<(&Vector, Vec<usize>)> {
        let rates = match self {
            Mixer::Delta(delta) => Some(&delta.rates),
            Mixer::Mamba(mamba) => Some(&mamba.rates),
            _ => None,
        };
        let filter = self.filter().into_iter();
        let weights = filter.flat_map(|filter| filter.weights.iter().map(|of| (of, filter.shape(of).to_vec())));
        // Norms of queries and keys may be a row for each head.
        let norms: &[&Vector] = match self {
            Mixer::Attention(Attention { head_norms: Some((q, Some(k))), norms_by_head: Some(_), .. }) => &[q, k],
            _ => &[],
        };
        let width = if let Mixer::Attention(attention) = self { attention.norms_by_head.unwrap_or(1) } else { 1 };
        let norms = norms.iter().map(|norm| (*norm, vec![norm.len / width, width]));
        weights.chain(norms).chain(rates.map(|rates| (&rates.vector, rates.shape.clone()))).collect()
    }

    fn filter(&self) -> Option<&Filter> {
        match self {
            Mixer::Delta(delta) => Some(&delta.conv),
            Mixer::Mamba(mamba) => Some(&mamba.conv),
            Mixer::ShortConvolution(_, filter) => Some(filter),
            Mixer::Attention(_) | Mixer::Latent(_) => None,
        }
    }

    /// Matrices between the layer's products of its input and its last.
    fn inner(&self) -> Vec<&Linear> {
        match self {
            Mixer::Latent(latent) => {
                let queries = latent.queries.iter().map(|(_, queries, _)| queries);
                queries.chain(&latent.absorb).chain(&latent.expand).collect()
            }
            Mixer::Delta(delta) => delta.by_key.iter().collect(),
            _ => Vec::new(),
        }
    }

    /// Without those of [`shaped`](Self::shaped).
    fn vectors(&self) -> Vec<&Vector> {
        match self {
            Mixer::Attention(Attention { head_norms, norms_by_head, sinks, .. }) => {
                let norms = head_norms.iter().filter(|_| norms_by_head.is_none());
                let norms = norms.flat_map(|(q, k)| [Some(q), k.as_ref()]);
                norms.chain([sinks.as_ref()]).flatten().collect()
            }
            Mixer::Delta(delta) => vec![&delta.dt_bias, &delta.norm],
            Mixer::Mamba(mamba) => [&mamba.dt_bias, &mamba.skip].into_iter().chain(&mamba.norm).collect(),
            Mixer::ShortConvolution(..) => Vec::new(),
            Mixer::Latent(latent) => latent.queries.iter().map(|(norm, ..)| norm).chain([&latent.key_norm]).collect(),
        }
    }
}

/// What a layer of latent attention has besides its first and its last product.
#[derive(Debug)]
pub(crate) struct Latent {
    pub(crate) config: LatentConfig,
    /// The norm of what queries are made of, and their product; `None`: the first product makes them.
    pub(crate) queries: Option<(Vector, Linear, RowOrder)>,
    /// `[rank + turning, hidden_size]`.
    pub(crate) keys: Linear,
    pub(crate) keys_order: RowOrder,
    /// `[rank]`.
    pub(crate) key_norm: Vector,
    /// `[rank, plain]` of each head.
    pub(crate) absorb: Vec<Linear>,
    /// `[value, rank]` of each head.
    pub(crate) expand: Vec<Linear>,
}

#[derive(Debug)]
pub(crate) struct Attention {
    /// Of queries, and of keys where the layer has any.
    pub(crate) head_norms: Option<(Vector, Option<Vector>)>,
    /// They are stored as rows of this width, one for each head.
    pub(crate) norms_by_head: Option<usize>,
    /// `[num_heads]`.
    pub(crate) sinks: Option<Vector>,
    /// The row of the first product where keys begin.
    pub(crate) keys_at: usize,
}

/// A depthwise convolution.
#[derive(Debug)]
pub(crate) struct Filter {
    /// Tensors `[channels, 1, taps]`, those of the first channels first.
    pub(crate) weights: Vec<Vector>,
    pub(crate) taps: usize,
    pub(crate) bias: Option<Vector>,
}

impl Filter {
    fn new(module: &str, channels: usize, taps: usize, has_bias: bool) -> Filter {
        let weight = Vector { name: format!("{module}.weight"), len: channels * taps };
        let bias = has_bias.then(|| Vector { name: format!("{module}.bias"), len: channels });
        Filter { weights: vec![weight], taps, bias }
    }

    pub(crate) fn shape(&self, weight: &Vector) -> [usize; 3] {
        [weight.len / self.taps, 1, self.taps]
    }

    pub(crate) fn channels(&self) -> usize {
        self.weights.iter().map(|weight| weight.len / self.taps).sum()
    }
}

/// What a layer of linear attention has besides its first and its last product.
#[derive(Debug)]
pub(crate) struct Delta {
    pub(crate) config: DeltaConfig,
    /// `[gates_width, hidden_size]`: b, then a; or of what decays of keys and gates of the output are made, then b.
    pub(crate) gates: Linear,
    pub(crate) gates_order: RowOrder,
    /// What makes decays of keys, and gates: `[key_width, key_dim]` each. None in other layers.
    pub(crate) by_key: Vec<Linear>,
    pub(crate) conv: Filter,
    pub(crate) dt_bias: Vector,
    pub(crate) rates: Rates,
    pub(crate) norm: Vector,
}

/// What a Mamba-2 layer has besides its first and its last product.
#[derive(Debug)]
pub(crate) struct Mamba {
    pub(crate) config: MambaConfig,
    /// `[heads, hidden_size]`: dt.
    pub(crate) steps: Linear,
    pub(crate) conv: Filter,
    pub(crate) rates: Rates,
    pub(crate) dt_bias: Vector,
    pub(crate) skip: Vector,
    pub(crate) norm: Option<Vector>,
}

/// How fast heads forget, `[heads]`.
#[derive(Debug)]
pub(crate) struct Rates {
    pub(crate) vector: Vector,
    /// As it is stored.
    pub(crate) shape: Vec<usize>,
    /// Their logarithms are stored, not they themselves.
    pub(crate) are_logarithms: bool,
}

/// A layer's part between its first norm and what is added to the residual stream.
#[derive(Debug)]
pub(crate) struct Mixing {
    /// The first product: queries, their gates if there are any, keys and values; of linear attention queries, keys,
    /// values, and the output's gates; of a short convolution its gates and its input.
    pub(crate) qkv: Linear,
    pub(crate) qkv_order: RowOrder,
    pub(crate) mixer: Mixer,
    /// The last product.
    pub(crate) o: Linear,
}

#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) attention_norms: Norms<Norm>,
    /// None, one, or several beside each other.
    pub(crate) mixings: Vec<Mixing>,
    pub(crate) mlp_norms: Norms<Norm>,
    pub(crate) feed: Option<Feed>,
    /// Of the MLP.
    pub(crate) activation: Activation,
    /// Numbers of it, `[1]` each, where tensors have them.
    pub(crate) activation_numbers: Option<[Vector; 4]>,
    /// Of the token's own input to this layer.
    pub(crate) input: Option<LayerInput>,
    /// A number `[1]` that the stream is multiplied by behind the layer.
    pub(crate) scalar: Option<Vector>,
    /// What an int4 model holds in int8.
    pub(crate) wide: WideParts,
}

/// How a token's own input to a layer joins the stream.
#[derive(Debug)]
pub(crate) struct LayerInput {
    /// `[width, hidden_size]`.
    pub(crate) gate: Linear,
    /// `[hidden_size, width]`.
    pub(crate) out: Linear,
    /// `[hidden_size]`.
    pub(crate) norm: Vector,
}

/// What makes the inputs of a token to all layers.
#[derive(Debug)]
pub(crate) struct InputTable {
    /// `[vocab_size, layers * width]`.
    pub(crate) table: Linear,
    /// `[layers * width, hidden_size]`, of the embedding.
    pub(crate) projection: Linear,
    /// `[width]`, of each layer's part of that.
    pub(crate) norm: Vector,
}

impl Layer {
    /// Has every tensor checked.
    pub(crate) fn each(&self, check: &mut Check<'_>) -> Result<(), LoadError> {
        for (vector, shape) in self.mixers().flat_map(Mixer::shaped) {
            check(&vector.name, &shape, false)?;
        }
        visit(&self.matrices(), &self.plain_vectors(), check)
    }

    fn matrices(&self) -> Vec<&Linear> {
        let mut matrices = Vec::new();
        for Mixing { qkv, mixer, o, .. } in &self.mixings {
            matrices.push(qkv);
            matrices.extend(mixer.gates());
            matrices.extend(mixer.inner());
            matrices.push(o);
        }
        match &self.feed {
            None => {}
            Some(Feed::Dense(mlp)) => matrices.extend([&mlp.gate_up, &mlp.down]),
            Some(Feed::Experts { router, experts, shared, latent, beside, .. }) => {
                matrices.extend(beside.iter().flat_map(|beside| [&beside.mlp.gate_up, &beside.mlp.down]));
                matrices.push(router);
                let mlps = experts.iter().chain(shared.iter().map(|shared| &shared.mlp));
                matrices.extend(mlps.flat_map(|mlp| [&mlp.gate_up, &mlp.down]));
                matrices.extend(shared.iter().filter_map(|shared| shared.gate.as_ref()));
                matrices.extend(latent.iter().flat_map(|latent| latent.iter()));
            }
        }
        matrices.extend(self.input.iter().flat_map(|input| [&input.gate, &input.out]));
        matrices
    }

    fn mixers(&self) -> impl Iterator<Item = &Mixer> {
        self.mixings.iter().map(|mixing| &mixing.mixer)
    }

    /// The class of a matrix in a model of `class`.
    fn class_of(&self, linear: &Linear, class: WeightClass) -> WeightClass {
        let is = |of: &Linear| std::ptr::eq(of, linear);
        let by_head = self.mixers().any(|mixer| match mixer {
            Mixer::Latent(latent) => latent.absorb.iter().chain(&latent.expand).any(is),
            _ => false,
        });
        let of_decays = self.mixers().any(|mixer| matches!(mixer, Mixer::Delta(delta) if delta.by_key.iter().any(is)));
        match self.is_kept_wide(linear) || of_decays {
            true => WeightClass::Bf16,
            false if by_head || self.is_wide(linear) => wider_than_int4(class),
            false => class,
        }
    }

    /// Whether a matrix as a whole is int8 in an int4 model.
    pub(crate) fn is_wide(&self, linear: &Linear) -> bool {
        let dense = if let Some(Feed::Dense(mlp)) = &self.feed { Some(mlp) } else { None };
        let of_mlp = [(self.wide.gate_up, dense.map(|mlp| &mlp.gate_up)), (self.wide.down, dense.map(|mlp| &mlp.down))];
        let all = self.mixings.iter().map(|mixing| (self.wide.o, Some(&mixing.o))).chain(of_mlp);
        all.into_iter().any(|(is_wide, of)| is_wide && of.is_some_and(|of| std::ptr::eq(of, linear)))
    }

    /// Where keys begin in the first product of a mixer of a model of `class`, if they and the values are a matrix of
    /// their own.
    pub(crate) fn keys_apart(&self, mixing: &Mixing, class: WeightClass) -> Option<usize> {
        let Mixer::Attention(Attention { keys_at, .. }) = mixing.mixer else { return None };
        let is_apart = class == WeightClass::Int4 && self.wide.keys_and_values;
        (is_apart && keys_at < mixing.qkv.out_features()).then_some(keys_at)
    }

    /// Matrices of a few rows that decide much: they are bf16 in every class. A wrong choice of experts costs more than
    /// a wrong digit, and the decay of a state is an exponential, of which an error lasts as long as the state.
    fn is_kept_wide(&self, linear: &Linear) -> bool {
        let wide = match &self.feed {
            Some(Feed::Experts { router, shared, .. }) => {
                [Some(router), shared.as_ref().and_then(|shared| shared.gate.as_ref())]
            }
            _ => [None, None],
        };
        wide.into_iter().flatten().chain(self.mixers().filter_map(Mixer::gates)).any(|wide| std::ptr::eq(wide, linear))
    }

    /// Numbers of experts that their results are multiplied by.
    fn factors(&self) -> Option<&Vector> {
        match &self.feed {
            Some(Feed::Experts { beside: Some(beside), .. }) => Some(&beside.factors),
            _ => None,
        }
    }

    /// Of both blocks.
    pub(crate) fn norms(&self) -> impl Iterator<Item = &Norm> {
        let norms = [&self.attention_norms, &self.mlp_norms];
        norms.into_iter().flat_map(|norms| [norms.before.as_ref(), norms.after.as_ref()]).flatten()
    }

    /// Of all that [`plain_vectors`](Self::plain_vectors) lists and those of other shapes.
    fn vectors(&self) -> Vec<&Vector> {
        let shaped = self.mixers().flat_map(Mixer::shaped).map(|(vector, _)| vector);
        self.plain_vectors().into_iter().chain(shaped).collect()
    }

    /// Tensors of one dimension.
    fn plain_vectors(&self) -> Vec<&Vector> {
        let norms = self.norms().flat_map(Norm::vectors);
        let filter_biases = self.mixers().filter_map(Mixer::filter).filter_map(|filter| filter.bias.as_ref());
        let (choice_bias, beside) = match &self.feed {
            Some(Feed::Experts { choice_bias, beside, .. }) => (choice_bias.as_ref(), beside.as_ref()),
            _ => (None, None),
        };
        let beside = beside.into_iter().flat_map(|beside| {
            let BesideMlp { mlp_norm, norms: [before, after], router_norm, factors, .. } = &**beside;
            [mlp_norm, before, after, router_norm, factors]
        });
        let input = self
            .input
            .iter()
            .map(|input| &input.norm)
            .chain(&self.scalar)
            .chain(self.activation_numbers.iter().flatten());
        let mixers = self.mixers().flat_map(Mixer::vectors);
        norms.chain(mixers).chain(filter_biases).chain(choice_bias).chain(beside).chain(input).collect()
    }
}

/// Takes a tensor's name and shape, and whether it is part of a matrix.
pub(crate) type Check<'a> = dyn FnMut(&str, &[usize], bool) -> Result<(), LoadError> + 'a;

pub(crate) fn visit(matrices: &[&Linear], vectors: &[&Vector], check: &mut Check<'_>) -> Result<(), LoadError> {
    for linear in matrices {
        // A stacked tensor counts with its first matrix.
        let mut first = linear.parts.iter().filter(|part| part.rows.start == 0);
        first.try_for_each(|part| check(&part.name, &part.shape, true))?;
        let mut first = linear.biases.iter().filter(|bias| bias.rows.start == 0);
        first.try_for_each(|bias| check(&bias.name, &bias.shape, false))?;
    }
    vectors.iter().try_for_each(|vector| check(&vector.name, &[vector.len], false))
}

/// What a family calls its modules. Linear attention and mixtures of experts that all name alike are not in it.
struct Names {
    embedding: &'static str,
    final_norm: &'static str,
    /// Norms of the two blocks' inputs, where only inputs are normed.
    norms: [&'static str; 2],
    /// Norms of both blocks' inputs and outputs, where outputs are normed.
    norms_around: [[&'static str; 2]; 2],
    head_norms: [&'static str; 2],
    attention: &'static str,
    /// Its last product.
    o: &'static str,
    mamba: &'static str,
    mlp: &'static str,
    /// Gate, up and down in it, and in an expert.
    parts: [&'static str; 3],
    router: &'static str,
    /// The bias for the choice of experts.
    choice_bias: &'static str,
    experts: &'static str,
    shared_expert: &'static str,
}

const USUAL: Names = Names {
    embedding: "embed_tokens",
    final_norm: "norm",
    norms: ["input_layernorm", "post_attention_layernorm"],
    norms_around: [
        ["input_layernorm", "post_attention_layernorm"],
        ["pre_feedforward_layernorm", "post_feedforward_layernorm"],
    ],
    head_norms: ["self_attn.q_norm", "self_attn.k_norm"],
    attention: "self_attn",
    o: "self_attn.o_proj",
    mamba: "mamba",
    mlp: "mlp",
    parts: ["gate_proj", "up_proj", "down_proj"],
    router: "mlp.gate",
    choice_bias: "mlp.gate.e_score_correction_bias",
    experts: "mlp.experts",
    shared_expert: "mlp.shared_expert",
};

const OF_GEMMA4: Names = Names { router: "router.proj", experts: "experts", ..USUAL };
const OF_GPT_OSS: Names = Names { router: "mlp.router", ..USUAL };

const OF_GLM4: Names = Names {
    norms_around: [["input_layernorm", "post_self_attn_layernorm"], ["post_attention_layernorm", "post_mlp_layernorm"]],
    shared_expert: "mlp.shared_experts",
    ..USUAL
};

const OF_ERNIE: Names = Names { choice_bias: "mlp.moe_statics.e_score_correction_bias", ..OF_GLM4 };

const OF_APERTUS: Names = Names { norms: ["attention_layernorm", "feedforward_layernorm"], ..USUAL };

const OF_MINIMAX: Names = Names { choice_bias: "block_sparse_moe.e_score_correction_bias", ..USUAL };

const OF_STARCODER2: Names = Names { parts: ["", "c_fc", "c_proj"], ..USUAL };

const OF_HUNYUAN: Names = Names {
    head_norms: ["self_attn.query_layernorm", "self_attn.key_layernorm"],
    router: "mlp.gate.wg",
    shared_expert: "mlp.shared_mlp",
    ..USUAL
};

/// As GGUF files have it; others have gate and up in one tensor: see [`Tensors::input_linear`].
const OF_GRANITE: Names = Names {
    mlp: "shared_mlp",
    router: "block_sparse_moe.router.layer",
    experts: "block_sparse_moe.experts",
    shared_expert: "shared_mlp",
    ..USUAL
};

const OF_NEMOTRON_H: Names = Names {
    embedding: "embeddings",
    final_norm: "norm_f",
    norms: ["norm", "norm"],
    attention: "mixer",
    o: "mixer.o_proj",
    mamba: "mixer",
    mlp: "mixer",
    router: "mixer.gate",
    choice_bias: "mixer.gate.e_score_correction_bias",
    experts: "mixer.experts",
    shared_expert: "mixer.shared_experts",
    ..USUAL
};

const OF_GRANITE_SWA: Names = Names { router: "block_sparse_moe.router", ..OF_GRANITE };

const OF_LLAMA4: Names = Names {
    mlp: "feed_forward",
    router: "feed_forward.router",
    experts: "feed_forward.experts",
    shared_expert: "feed_forward.shared_expert",
    ..USUAL
};

const OF_KIMI: Names = Names {
    router: "block_sparse_moe.gate",
    choice_bias: "block_sparse_moe.gate.e_score_correction_bias",
    experts: "block_sparse_moe.experts",
    shared_expert: "block_sparse_moe.shared_experts",
    ..USUAL
};

const OF_FALCON_H1: Names = Names {
    final_norm: "final_layernorm",
    norms: ["input_layernorm", "pre_ff_layernorm"],
    mlp: "feed_forward",
    ..USUAL
};

const OF_LFM2: Names = Names {
    final_norm: "embedding_norm",
    norms: ["operator_norm", "ffn_norm"],
    head_norms: ["self_attn.q_layernorm", "self_attn.k_layernorm"],
    o: "self_attn.out_proj",
    mlp: "feed_forward",
    parts: ["w1", "w3", "w2"],
    router: "feed_forward.gate",
    choice_bias: "feed_forward.expert_bias",
    experts: "feed_forward.experts",
    ..USUAL
};

const OF_LFM3: Names = Names {
    norms_around: [["operator_norm", "post_operator_norm"], ["ffn_norm", "post_ffn_norm"]],
    head_norms: USUAL.head_norms,
    o: USUAL.o,
    ..OF_LFM2
};

impl Names {
    fn of(family: Family) -> &'static Names {
        match family {
            Family::Lfm3 => &OF_LFM3,
            Family::Lfm2 | Family::Lfm2Moe => &OF_LFM2,
            Family::Llama4 => &OF_LLAMA4,
            Family::GptOss => &OF_GPT_OSS,
            Family::NemotronH => &OF_NEMOTRON_H,
            Family::FalconH1 => &OF_FALCON_H1,
            Family::KimiLinear => &OF_KIMI,
            Family::Glm4 | Family::Glm4Moe | Family::Dots1 | Family::Cohere2Moe => &OF_GLM4,
            Family::Glm4MoeLite | Family::DeepSeekV2 | Family::DeepSeekV3 | Family::Mistral4 => &OF_GLM4,
            Family::Ernie45Moe => &OF_ERNIE,
            Family::Apertus => &OF_APERTUS,
            Family::MiniMaxM2 => &OF_MINIMAX,
            Family::Starcoder2 => &OF_STARCODER2,
            Family::HunYuanDense | Family::HunYuanMoe => &OF_HUNYUAN,
            Family::Gemma4 => &OF_GEMMA4,
            Family::GraniteMoe | Family::GraniteHybrid => &OF_GRANITE,
            Family::GraniteMoeSwa => &OF_GRANITE_SWA,
            _ => &USUAL,
        }
    }
}

/// Names of gate, up and down in an MLP, and in one expert.
pub(crate) fn mlp_parts(family: Family) -> [&'static str; 3] {
    Names::of(family).parts
}

/// How a checkpoint keeps its experts. Of each family two or three are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExpertNames {
    /// `block_sparse_moe.experts.0.w1`, `w3` (up) and `w2` (down): as Mixtral was published.
    Numbered,
    /// `mlp.experts.0.gate_proj`, `up_proj`, `down_proj`: as Qwen3 was. By the names of the family.
    Named,
    /// `mlp.experts.gate_up_proj` and `down_proj` of all experts: as transformers 5 holds them.
    Stacked,
    /// The same with columns for rows; gate and up in turns: gpt-oss in 16 bits; or apart: Llama 4.
    StackedColumns,
    /// `mlp.experts.gate_up_proj_blocks` and `down_proj_blocks`, gate and up in turns: gpt-oss as it was published.
    StackedBlocks,
    /// `block_sparse_moe.input_linear` and `output_linear` of all experts: as Granite was.
    InputLinear,
}

impl ExpertNames {
    /// Those in the layer behind a prefix.
    fn of(config: &ModelConfig, names: &Names, weights: &Weights, layer: &str) -> ExpertNames {
        let has = |rest: &str| weights.has(&format!("{layer}{rest}"));
        let biases = config.experts.is_some_and(|experts| experts.biases);
        if has("mlp.experts.gate_up_proj_blocks") {
            ExpertNames::StackedBlocks
        } else if has(&format!("{}.gate_up_proj", names.experts)) && (biases || config.family == Family::Llama4) {
            ExpertNames::StackedColumns
        } else if ["gate_up_proj", "up_proj"].iter().any(|part| has(&format!("{}.{part}", names.experts))) {
            ExpertNames::Stacked
        } else if has("block_sparse_moe.input_linear.weight") {
            ExpertNames::InputLinear
        } else if has("block_sparse_moe.gate.weight") {
            ExpertNames::Numbered
        } else {
            ExpertNames::Named
        }
    }
}

/// What GGUF has in place of `A_log`.
const STORED_RATES: &str = "rates";

/// Prefixes of the names of the text model; the second and third where it is a part of something larger, the
/// last two in files that were saved from a class without a head.
const PREFIXES: [&str; 6] =
    ["model.", "language_model.model.", "model.language_model.", "", "language_model.", "backbone."];
/// Those of classes without a head.
const BASE_PREFIXES: [&str; 2] = ["", "language_model."];
/// What the head is called.
const HEADS: [&str; 4] = ["lm_head", "language_model.lm_head", "model.lm_head", "model.language_model.lm_head"];

/// Prefix of the names in `weights`.
pub(crate) fn prefix_of(weights: &Weights) -> &'static str {
    let has = |prefix: &str, module: &str| weights.has(&format!("{prefix}{module}.weight"));
    let embeddings = [USUAL.embedding, OF_NEMOTRON_H.embedding];
    let prefix = PREFIXES.into_iter().find(|prefix| embeddings.iter().any(|embedding| has(prefix, embedding)));
    prefix.unwrap_or(PREFIXES[0])
}

/// The head's module where one is stored.
fn stored_head(weights: &Weights) -> Option<&'static str> {
    HEADS.into_iter().find(|head| weights.has(&format!("{head}.weight")))
}

/// A tensor's name in the spelling that transformers writes now.
pub(crate) fn usual_name(name: &str) -> String {
    let head = || HEADS.iter().find_map(|head| name.strip_prefix(head).filter(|rest| rest.starts_with('.')));
    let is_of_model = |rest: &&str| ["layers.", "embed_tokens.", "norm."].iter().any(|part| rest.starts_with(part));
    let rest = || PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix).filter(is_of_model));
    match head() {
        Some(kind) => format!("{}{kind}", HEADS[0]),
        None => rest().map_or_else(|| name.to_string(), |rest| format!("{}{rest}", PREFIXES[0])),
    }
}

/// The head of these weights: see [`ModelConfig::with_head_of`].
pub(crate) fn head_of(config: &ModelConfig, weights: &Weights) -> Result<Head, LoadError> {
    let prefix = prefix_of(weights);
    Ok(match (config.head, stored_head(weights)) {
        (Head::Own, None) if BASE_PREFIXES.contains(&prefix) => Head::Absent,
        (head, None) => head,
        (Head::Own | Head::Absent, Some(_)) => Head::Own,
        (Head::Embedding, Some(head)) => {
            let module = Names::of(config.family).embedding;
            let [embedding, head] = [format!("{prefix}{module}.weight"), format!("{head}.weight")];
            let same = weights.are_equal(&embedding, &head, &[config.vocab_size, config.hidden_size])?;
            if same { Head::Embedding } else { Head::Own }
        }
    })
}

/// The tensors of a checkpoint.
pub(crate) struct Tensors<'c> {
    config: &'c ModelConfig,
    prefix: &'static str,
    head: &'static str,
    names: &'static Names,
    experts: ExpertNames,
    /// The MLP.
    mlp: &'static str,
    /// q, k and v are one tensor, also where transformers has them apart: GGUF of GLM-4.
    fused_qkv: bool,
    /// Gate and up of an MLP are `input_linear`, down is `output_linear`: as Granite was published.
    input_linear: bool,
    /// What is stored of Mamba-2 and linear attention are rates and not their logarithms: GGUF.
    stored_rates: bool,
    /// Of linear attention, queries, keys and values are one tensor, z another, also where transformers has them key head
    /// by key head; of latent attention, what makes keys is one, transposed, and what makes values another: GGUF.
    apart: bool,
    /// Norms of queries and keys have weights, also where transformers has none: GGUF.
    stored_head_norms: bool,
}

impl<'c> Tensors<'c> {
    /// The names that transformers writes now.
    pub(crate) fn usual(config: &'c ModelConfig) -> Tensors<'c> {
        Tensors {
            config,
            prefix: PREFIXES[0],
            head: HEADS[0],
            names: Names::of(config.family),
            experts: ExpertNames::Named,
            mlp: Names::of(config.family).mlp,
            fused_qkv: config.fused_projections == FusedProjections::All,
            input_linear: false,
            stored_rates: false,
            apart: false,
            stored_head_norms: false,
        }
    }

    /// The names that `weights` uses.
    pub(crate) fn of(config: &'c ModelConfig, weights: &Weights) -> Tensors<'c> {
        let prefix = prefix_of(weights);
        let head = stored_head(weights).unwrap_or(HEADS[0]);
        let names = Names::of(config.family);
        let first = config.layers.iter().position(LayerConfig::has_experts).unwrap_or(0);
        let experts = ExpertNames::of(config, names, weights, &format!("{prefix}layers.{first}."));
        let input_linear = weights.has(&format!("{prefix}layers.0.{}.input_linear.weight", names.mlp));
        let is_mamba = |mixer| matches!(mixer, config::Mixer::Mamba(_));
        let mamba = config.layers.iter().position(|layer| layer.mixer.parts().any(is_mamba));
        let delta = config.layers.iter().position(|layer| matches!(layer.mixer, config::Mixer::Delta(_)));
        let of = |layer: Option<usize>, tensor: &str| {
            layer.is_some_and(|layer| weights.has(&format!("{prefix}layers.{layer}.{tensor}")))
        };
        let has_rates = |layer, module: &str| of(layer, &format!("{module}.{STORED_RATES}"));
        let stored_rates =
            has_rates(mamba, names.mamba) || has_rates(delta, "linear_attn") || has_rates(delta, "self_attn");
        let latent = (0..config.num_layers).find(|&layer| config.latent(layer).is_some());
        let apart = of(delta, "linear_attn.in_proj_qkv.weight") || of(latent, "self_attn.k_b_proj.weight");
        // As transformers 5.24 writes Kimi Linear.
        let dense = config.layers.iter().position(|layer| layer.feed == config::FeedForward::Dense);
        let mlp = if of(dense, "block_sparse_moe.up_proj.weight") { "block_sparse_moe" } else { names.mlp };
        let fused_qkv = config.fused_projections == FusedProjections::All || of(Some(0), "self_attn.qkv_proj.weight");
        let stored_head_norms = of(Some(0), "self_attn.q_norm.weight");
        Tensors {
            config,
            prefix,
            head,
            names,
            experts,
            mlp,
            fused_qkv,
            input_linear,
            stored_rates,
            apart,
            stored_head_norms,
        }
    }

    /// Those of a drafter's layers in the same files, whose first has names that begin with `layer`.
    pub(crate) fn of_drafter<'d>(&self, config: &'d ModelConfig, weights: &Weights, layer: &str) -> Tensors<'d> {
        let names = Names::of(config.family);
        let experts = ExpertNames::of(config, names, weights, layer);
        Tensors { experts, apart: self.apart, ..Tensors::usual(config) }
    }

    /// Single rows of the head, or of the embedding where that is the head.
    pub(crate) fn head_rows(&self, weights: &Weights, rows: &[u32]) -> Linear {
        let embedding = || format!("{}{}", self.prefix, self.names.embedding);
        let head = stored_head(weights).map_or_else(embedding, str::to_string);
        let mut linear =
            Linear::whole(&vec![(head, self.config.vocab_size); rows.len()], self.config.hidden_size, false);
        for (part, &row) in linear.parts.iter_mut().zip(rows) {
            part.rows = row as usize..row as usize + 1;
        }
        linear
    }

    /// `[vocab_size, hidden_size]`.
    pub(crate) fn embedding(&self) -> Linear {
        let config = self.config;
        let module = format!("{}{}", self.prefix, self.names.embedding);
        Linear::whole(&[(module, config.vocab_size)], config.hidden_size, false)
    }

    /// `[hidden_size]`.
    pub(crate) fn final_norm(&self) -> Norm {
        self.norm(&format!("{}{}", self.prefix, self.names.final_norm))
    }

    fn norm(&self, module: &str) -> Norm {
        let vector = |kind: &str| Vector { name: format!("{module}.{kind}"), len: self.config.hidden_size };
        let (weight, bias) = match self.config.norm {
            NormKind::Rms => (true, false),
            NormKind::Layer { weight, bias } => (weight, bias),
        };
        Norm { weight: weight.then(|| vector("weight")), bias: bias.then(|| vector("bias")) }
    }

    /// What makes the layers' inputs, in models that have them.
    pub(crate) fn inputs(&self) -> Option<InputTable> {
        let config = self.config;
        let LayerInputConfig { width, vocab_size } = config.layer_input?;
        let (all, name) = (config.num_layers * width, |part: &str| format!("{}{part}", self.prefix));
        Some(InputTable {
            table: Linear::whole(&[(name("embed_tokens_per_layer"), vocab_size)], all, false),
            projection: Linear::whole(&[(name("per_layer_model_projection"), all)], config.hidden_size, false),
            norm: Vector { name: name("per_layer_projection_norm.weight"), len: width },
        })
    }

    /// `[vocab_size, hidden_size]`; `None` when the embedding serves.
    pub(crate) fn head(&self) -> Option<Linear> {
        let config = self.config;
        let head =
            || Linear::whole(&[(self.head.to_string(), config.vocab_size)], config.hidden_size, config.head_bias);
        (config.head == Head::Own).then(head)
    }

    pub(crate) fn layer(&self, index: usize) -> Layer {
        self.layer_named(index, &format!("{}layers.{index}.", self.prefix))
    }

    /// The same under names that begin in another way.
    pub(crate) fn layer_named(&self, index: usize, prefix: &str) -> Layer {
        let config = self.config;
        let hidden = config.hidden_size;
        let name = |part: &str| format!("{prefix}{part}");
        let norm = |part: &str| Some(self.norm(&name(part)));
        let ([first, second], [attention, mlp]) = (self.names.norms, self.names.norms_around);
        let LayerConfig { mixer, feed, mlp_width, .. } = config.layers[index];
        let (attention_norms, mlp_norms) = match config.norms {
            NormPlacement::Before => {
                let norm_of = |has_block, part| Norms { before: norm(part).filter(|_| has_block), after: None };
                (norm_of(mixer != config::Mixer::None, first), norm_of(feed != config::FeedForward::None, second))
            }
            NormPlacement::Parallel => {
                (Norms { before: norm(first), after: None }, Norms { before: norm(first), after: None })
            }
            NormPlacement::After => {
                (Norms { before: None, after: norm(attention[1]) }, Norms { before: None, after: norm(mlp[1]) })
            }
            NormPlacement::Around => (
                Norms { before: norm(attention[0]), after: norm(attention[1]) },
                Norms { before: norm(mlp[0]), after: norm(mlp[1]) },
            ),
        };
        let feed = match (feed, &config.experts) {
            (config::FeedForward::None, _) => None,
            (config::FeedForward::Experts, Some(experts)) => Some(self.experts(experts, mlp_width, &name)),
            _ => Some(Feed::Dense(self.dense(&name, mlp_width))),
        };
        let mixing = |mixer| match mixer {
            config::Mixer::None | config::Mixer::Both(_) => None, // no part of one
            config::Mixer::Attention => Some(self.attention(index, &name)),
            config::Mixer::Delta(delta) if delta.shape.by_key => Some(self.delta_by_key(delta, &name)),
            config::Mixer::Delta(delta) => Some(self.linear_attention(delta, &name)),
            config::Mixer::Mamba(mamba) => Some(self.mamba(mamba, &name)),
            config::Mixer::ShortConvolution(convolution) => Some(short_convolution(convolution, hidden, &name)),
            config::Mixer::Latent(latent) => Some(self.latent(latent, &name)),
        };
        let mixings = mixer.parts().filter_map(mixing).collect();
        let input = config.layer_input.map(|LayerInputConfig { width, .. }| LayerInput {
            gate: Linear::whole(&[(name("per_layer_input_gate"), width)], hidden, false),
            out: Linear::whole(&[(name("per_layer_projection"), hidden)], width, false),
            norm: Vector { name: name("post_per_layer_input_norm.weight"), len: hidden },
        });
        let scalar = config.layer_scalars.then(|| Vector { name: name("layer_scalar"), len: 1 });
        let is_learnt = matches!(config.activation, Activation::Xielu { .. }) && config.layer_activations.is_empty();
        let number = |of| Vector { name: name(&format!("{}.act_fn.{of}", self.names.mlp)), len: 1 };
        let activation_numbers = is_learnt.then(|| config::XIELU.map(number));
        let activation = config.layer_activations.get(index).copied().unwrap_or(config.activation);
        let wide = config.wide_parts(index);
        Layer { attention_norms, mixings, mlp_norms, feed, activation, activation_numbers, input, scalar, wide }
    }

    fn attention(&self, index: usize, name: &dyn Fn(&str) -> String) -> Mixing {
        let config = self.config;
        let LayerConfig { heads, values_are_keys, .. } = config.layers[index];
        let (hidden, kv_width) = (config.hidden_size, heads.kv_width());
        let part = |part: &str| name(&format!("{}.{part}", self.names.attention));
        let qkv = match self.fused_qkv {
            true => vec![(part("qkv_proj"), heads.qkv_width())],
            false => {
                let values = if values_are_keys { "k_proj" } else { "v_proj" };
                let gates = heads.keys_at() - heads.q_width();
                let queries = match config.attention_gate {
                    AttentionGate::None => vec![("q_proj", heads.q_width())],
                    AttentionGate::WithQueries => vec![("q_proj", heads.keys_at())],
                    AttentionGate::PerNumber => vec![("q_proj", heads.q_width()), ("gate_proj", gates)],
                    AttentionGate::PerHead => vec![("q_proj", heads.q_width()), ("g_proj", gates)],
                };
                let keys_and_values = [("k_proj", kv_width), (values, kv_width)];
                let own = keys_and_values.into_iter().filter(|_| !heads.queries_only);
                queries.into_iter().chain(own).map(|(of, rows)| (part(of), rows)).collect()
            }
        };
        // Stored are a head's queries and their gates, then those of the next.
        let grouped = RowOrder::Grouped { groups: heads.num_heads, parts: [heads.head_dim, heads.head_dim, 0, 0] };
        let [q_norm, k_norm] = self.names.head_norms;
        let head_norm = |part: &str, len| Vector { name: name(&format!("{part}.weight")), len };
        let head_norms = match config.head_norm {
            HeadNorm::None => None,
            _ if config.head_norm_factor.is_some() && !self.stored_head_norms => None,
            HeadNorm::PerHead | HeadNorm::WithValues | HeadNorm::AfterRotation => {
                let keys = (!heads.queries_only).then(|| head_norm(k_norm, heads.head_dim));
                Some((head_norm(q_norm, heads.head_dim), keys))
            }
            HeadNorm::WholeWidth | HeadNorm::Centered => {
                Some((head_norm(q_norm, heads.q_width()), Some(head_norm(k_norm, kv_width))))
            }
        };
        let sinks = config.sinks.then(|| Vector { name: part("sinks"), len: heads.num_heads });
        Mixing {
            qkv: Linear::whole(&qkv, hidden, config.qkv_bias),
            qkv_order: match config.layers[index].rope.filter(|_| config.neighbours) {
                Some(rope) => {
                    let at = (0, config.ropes[rope].rotary_dim);
                    RowOrder::Pairs { rows: heads.q_width() + kv_width, width: heads.head_dim, at }
                }
                None if config.attention_gate == AttentionGate::WithQueries => grouped,
                None => RowOrder::AsStored,
            },
            mixer: Mixer::Attention(Attention {
                head_norms,
                norms_by_head: (config.head_norm == HeadNorm::Centered).then_some(heads.head_dim),
                sinks,
                keys_at: heads.keys_at(),
            }),
            o: Linear::whole(&[(name(self.names.o), hidden)], heads.q_width(), config.o_bias),
        }
    }

    fn latent(&self, config: LatentConfig, name: &dyn Fn(&str) -> String) -> Mixing {
        let (LatentConfig { shape, query_rank, neighbours }, hidden) = (config, self.config.hidden_size);
        let LatentShape { num_heads, rank, plain, turning, value } = shape;
        let name = |part: &str| name(&format!("self_attn.{part}"));
        let whole = |part: &str, rows, in_features| Linear::whole(&[(name(part), rows)], in_features, false);
        let norm = |part: &str, len| Vector { name: name(&format!("{part}.weight")), len };
        let pairs = |rows, width| match neighbours {
            true => RowOrder::Pairs { rows, width, at: (width - turning, turning) },
            false => RowOrder::AsStored,
        };
        let query_width = shape.query_width();
        let query_order = pairs(query_width, plain + turning);
        let (qkv, qkv_order, queries) = match query_rank {
            None => (whole("q_proj", query_width, hidden), query_order, None),
            Some(rank) => {
                let queries = (norm("q_a_layernorm", rank), whole("q_b_proj", query_width, rank), query_order);
                (whole("q_a_proj", rank, hidden), RowOrder::AsStored, Some(queries))
            }
        };
        // Of each head the rows that make its keys, then those that make its values.
        let part = |rows: Range<usize>, transposed| Linear {
            in_features: if transposed { rows.len() } else { rank },
            parts: vec![TensorSlice {
                name: name("kv_b_proj.weight"),
                shape: vec![num_heads * (plain + value), rank],
                rows,
                transposed,
            }],
            biases: Vec::new(),
        };
        let heads = || (0..num_heads).map(|head| (head, head * (plain + value)));
        let (absorb, expand) = match self.apart {
            true => heads()
                .map(|(head, _)| {
                    let stacked = |part: &str, rows, in_features| {
                        Linear::stacked(name(part), (head, num_heads), rows, in_features)
                    };
                    (stacked("k_b_proj.weight", rank, plain), stacked("v_b_proj.weight", value, rank))
                })
                .unzip(),
            false => {
                heads().map(|(_, at)| (part(at..at + plain, true), part(at + plain..at + plain + value, false))).unzip()
            }
        };
        Mixing {
            qkv,
            qkv_order,
            mixer: Mixer::Latent(Box::new(Latent {
                config,
                queries,
                keys: whole("kv_a_proj_with_mqa", rank + turning, hidden),
                keys_order: pairs(rank + turning, rank + turning),
                key_norm: norm("kv_a_layernorm", rank),
                absorb,
                expand,
            })),
            o: Linear::whole(&[(name("o_proj"), hidden)], num_heads * value, false),
        }
    }

    fn mamba(&self, config: MambaConfig, name: &dyn Fn(&str) -> String) -> Mixing {
        let (shape, hidden) = (config.shape, self.config.hidden_size);
        let name = |part: &str| name(&format!("{}.{part}", self.names.mamba));
        // Stored are z, then x, B and C, then dt.
        let (inner, steps) = (shape.inner(), shape.row_width());
        let rows = |rows: Range<usize>| TensorSlice {
            name: name("in_proj.weight"),
            shape: vec![steps + shape.heads, hidden],
            rows,
            transposed: false,
        };
        let linear = |parts| Linear { parts, in_features: hidden, biases: Vec::new() };
        let vector = |part: &str, len| Vector { name: name(part), len };
        Mixing {
            qkv: linear(vec![rows(inner..steps), rows(0..inner)]),
            qkv_order: RowOrder::AsStored,
            mixer: Mixer::Mamba(Box::new(Mamba {
                config,
                steps: linear(vec![rows(steps..steps + shape.heads)]),
                conv: Filter::new(&name("conv1d"), shape.channels(), config.taps, config.has_conv_bias),
                rates: self.rates(&name, &[shape.heads]),
                dt_bias: vector("dt_bias", shape.heads),
                skip: vector("D", shape.heads),
                norm: (config.output != OutputNorm::None).then(|| vector("norm.weight", inner)),
            })),
            o: Linear::whole(&[(name("out_proj"), hidden)], inner, false),
        }
    }

    fn linear_attention(&self, config: DeltaConfig, name: &dyn Fn(&str) -> String) -> Mixing {
        let (DeltaConfig { shape, taps, by_key_head }, hidden) = (config, self.config.hidden_size);
        let DeltaShape { key_heads, value_heads, key_dim, value_dim, .. } = shape;
        let name = |part: &str| name(&format!("linear_attn.{part}"));
        let per_key = value_heads / key_heads;
        let values = per_key * value_dim;
        let grouped = |parts| RowOrder::Grouped { groups: key_heads, parts };
        let (qkv, qkv_order) = match by_key_head && !self.apart {
            true => (vec![(name("in_proj_qkvz"), shape.row_width())], grouped([key_dim, key_dim, values, values])),
            false => {
                let parts = vec![(name("in_proj_qkv"), shape.channels()), (name("in_proj_z"), shape.value_width())];
                (parts, RowOrder::AsStored)
            }
        };
        let (gates, gates_order) = match by_key_head {
            true => (vec![(name("in_proj_ba"), 2 * value_heads)], grouped([per_key, per_key, 0, 0])),
            false => {
                let parts = vec![(name("in_proj_b"), value_heads), (name("in_proj_a"), value_heads)];
                (parts, RowOrder::AsStored)
            }
        };
        let vector = |part: &str, len| Vector { name: name(part), len };
        Mixing {
            qkv: Linear::whole(&qkv, hidden, false),
            qkv_order,
            mixer: Mixer::Delta(Box::new(Delta {
                config,
                gates: Linear::whole(&gates, hidden, false),
                gates_order,
                by_key: Vec::new(),
                conv: Filter::new(&name("conv1d"), shape.channels(), taps, false),
                dt_bias: vector("dt_bias", value_heads),
                rates: self.rates(&name, &[value_heads]),
                norm: vector("norm.weight", value_dim),
            })),
            o: Linear::whole(&[(name("out_proj"), hidden)], shape.value_width(), false),
        }
    }

    /// Kimi's delta attention.
    fn delta_by_key(&self, config: DeltaConfig, name: &dyn Fn(&str) -> String) -> Mixing {
        let (DeltaConfig { shape, taps, .. }, hidden) = (config, self.config.hidden_size);
        let (heads, dim, width) = (shape.value_heads, shape.key_dim, shape.key_width());
        let name = |part: &str| name(&format!("self_attn.{part}"));
        let whole = |parts: &[(&str, usize)], in_features| {
            let parts: Vec<_> = parts.iter().map(|&(part, rows)| (name(part), rows)).collect();
            Linear::whole(&parts, in_features, false)
        };
        let vector = |part: &str, len| Vector { name: name(part), len };
        let weights = ["q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"].map(|part| vector(part, width * taps));
        Mixing {
            qkv: whole(&[("q_proj", width), ("k_proj", width), ("v_proj", width)], hidden),
            qkv_order: RowOrder::AsStored,
            mixer: Mixer::Delta(Box::new(Delta {
                config,
                gates: whole(&[("f_a_proj", dim), ("g_a_proj", dim), ("b_proj", heads)], hidden),
                gates_order: RowOrder::AsStored,
                by_key: vec![whole(&[("f_b_proj", width)], dim), whole(&[("g_b_proj", width)], dim)],
                conv: Filter { weights: weights.to_vec(), taps, bias: None },
                dt_bias: vector("dt_bias", width),
                rates: self.rates(&name, &[1, 1, heads, 1]),
                norm: vector("o_norm.weight", dim),
            })),
            o: whole(&[("o_proj", hidden)], width),
        }
    }

    /// `name`: of what a mixer has; `shape`: of the logarithms.
    fn rates(&self, name: &dyn Fn(&str) -> String, shape: &[usize]) -> Rates {
        let len = shape.iter().product();
        let (part, shape) = if self.stored_rates { (STORED_RATES, vec![len]) } else { ("A_log", shape.to_vec()) };
        Rates { vector: Vector { name: name(part), len }, shape, are_logarithms: !self.stored_rates }
    }

    fn dense(&self, name: &dyn Fn(&str) -> String, width: usize) -> Mlp {
        let config = self.config;
        let (hidden, has_bias) = (config.hidden_size, config.mlp_bias);
        if config.fused_projections == FusedProjections::None {
            return self.unfused((self.mlp, width), has_bias, name);
        }
        Mlp {
            gate_up: Linear::whole(&[(name("mlp.gate_up_proj"), 2 * width)], hidden, has_bias),
            gate_up_order: RowOrder::GateUp,
            down: Linear::whole(&[(name("mlp.down_proj"), hidden)], width, has_bias),
        }
    }

    /// An MLP of some width whose projections are apart.
    fn unfused(&self, (module, width): (&str, usize), has_bias: bool, name: &dyn Fn(&str) -> String) -> Mlp {
        let hidden = self.config.hidden_size;
        let of = |part: &str, rows| (name(&format!("{module}.{part}")), rows);
        let [gate, up, down] = self.names.parts;
        let is_gated = self.config.gated_mlp;
        let (gate_up, down) = match self.input_linear {
            true => (vec![of("input_linear", 2 * width)], of("output_linear", hidden)),
            false if is_gated => (vec![of(gate, width), of(up, width)], of(down, hidden)),
            false => (vec![of(up, width)], of(down, hidden)),
        };
        Mlp {
            gate_up: Linear::whole(&gate_up, hidden, has_bias),
            gate_up_order: if is_gated { RowOrder::GateUp } else { RowOrder::AsStored },
            down: Linear::whole(&[down], width, has_bias),
        }
    }

    /// `mlp_width`: of what is beside them.
    fn experts(&self, experts: &ExpertConfig, mlp_width: usize, name: &dyn Fn(&str) -> String) -> Feed {
        let &ExpertConfig { num_experts, intermediate_size: width, biases, has_choice_bias, shared, .. } = experts;
        let experts_beside = experts.beside_mlp;
        let (hidden, names, is_gated) = (self.config.hidden_size, self.names, self.config.gated_mlp);
        let within = experts.latent.unwrap_or(hidden);
        let (gate_up_order, gate_up_rows) =
            if is_gated { (RowOrder::GateUp, 2 * width) } else { (RowOrder::AsStored, width) };
        let apart = |module: &str, [gate, up, down]: [&str; 3]| -> Vec<Mlp> {
            let of = |expert: usize, part: &str| name(&format!("{module}.{expert}.{part}"));
            let parts: &[&str] = if is_gated { &[gate, up] } else { &[up] };
            let gate_up = |expert| parts.iter().map(|part| (of(expert, part), width)).collect::<Vec<_>>();
            (0..num_experts)
                .map(|expert| Mlp {
                    gate_up: Linear::whole(&gate_up(expert), within, biases),
                    gate_up_order,
                    down: Linear::whole(&[(of(expert, down), within)], width, biases),
                })
                .collect()
        };
        let stacked = |[gate_up, down]: [String; 2]| -> Vec<Mlp> {
            let of = |stack: &String, index, rows, in_features| {
                Linear::stacked(name(stack), (index, num_experts), rows, in_features)
            };
            let mlp = |index| Mlp {
                gate_up: of(&gate_up, index, gate_up_rows, within),
                gate_up_order,
                down: of(&down, index, within, width),
            };
            (0..num_experts).map(mlp).collect()
        };
        let (router, apart_or_stacked) = match self.experts {
            ExpertNames::Numbered => ("block_sparse_moe.gate", apart("block_sparse_moe.experts", ["w1", "w3", "w2"])),
            ExpertNames::Named => (names.router, apart(names.experts, names.parts)),
            ExpertNames::Stacked => {
                let of = |part| format!("{}.{part}", names.experts);
                let first = if is_gated { "gate_up_proj" } else { "up_proj" };
                (names.router, stacked([first, "down_proj"].map(of)))
            }
            ExpertNames::InputLinear => {
                let of = |part| format!("block_sparse_moe.{part}.weight");
                (names.router, stacked(["input_linear", "output_linear"].map(of)))
            }
            ExpertNames::StackedColumns | ExpertNames::StackedBlocks => {
                let of = |index: usize, part: &str, rows, in_features| {
                    let (name, place) = (name(&format!("{}.{part}", names.experts)), (index, num_experts));
                    let linear = match self.experts {
                        ExpertNames::StackedBlocks => {
                            Linear::stacked(format!("{name}_blocks"), place, rows, in_features)
                        }
                        _ => Linear::stacked_columns(name.clone(), place, rows, in_features),
                    };
                    if biases { linear.with_bias(format!("{name}_bias"), place) } else { linear }
                };
                let mlp = |index| Mlp {
                    gate_up: of(index, "gate_up_proj", 2 * width, hidden),
                    gate_up_order: if biases { RowOrder::GateUpPairs } else { RowOrder::GateUp },
                    down: of(index, "down_proj", hidden, width),
                };
                (names.router, (0..num_experts).map(mlp).collect())
            }
        };
        let shared_expert = |SharedExpertConfig { width, gated }| {
            let gate = || Linear::whole(&[(name(&format!("{}_gate", names.shared_expert)), 1)], hidden, false);
            SharedExpert { mlp: self.unfused((names.shared_expert, width), false, name), gate: gated.then(gate) }
        };
        let choice_bias = || Vector { name: name(names.choice_bias), len: num_experts };
        Feed::Experts {
            router: Linear::whole(&[(name(router), num_experts)], hidden, biases),
            choice_bias: has_choice_bias.then(choice_bias),
            experts: apart_or_stacked,
            shared: shared.map(shared_expert),
            latent: experts.latent.map(|within| {
                let of = |part: &str, rows, width| Linear::whole(&[(name(part), rows)], width, false);
                Box::new([of("mixer.fc1_latent_proj", within, hidden), of("mixer.fc2_latent_proj", hidden, within)])
            }),
            beside: experts_beside.then(|| Box::new(self.beside(num_experts, mlp_width, name))),
        }
    }

    fn beside(&self, num_experts: usize, width: usize, name: &dyn Fn(&str) -> String) -> BesideMlp {
        let norm = |part: &str| Vector { name: name(part), len: self.config.hidden_size };
        BesideMlp {
            mlp: self.dense(name, width),
            mlp_norm: norm("post_feedforward_layernorm_1.weight"),
            norms: ["pre", "post"].map(|place| norm(&format!("{place}_feedforward_layernorm_2.weight"))),
            router_norm: norm("router.scale"),
            factors: Vector { name: name("router.per_expert_scale"), len: num_experts },
        }
    }

    /// Compares the checkpoint with what its configuration asks for: each tensor exists in its shape, and none is left
    /// unread, since half a model answers too. Returns the bytes in the files of all matrices.
    pub(crate) fn check(&self, weights: &Weights) -> Result<u64, LoadError> {
        let (mut bytes, mut read) = (0, HashSet::new());
        self.each(|name, shape, in_matrix| {
            let tensor = weights.tensor(name, shape)?;
            bytes += if in_matrix { tensor.num_bytes() } else { 0 };
            read.insert(name.to_string());
            Ok(())
        })?;
        let mut unread: Vec<&str> = Vec::new();
        for name in weights.names().filter(|name| !read.contains(*name)) {
            if !self.is_known_extra(name, &read) && !weights.is_zero_bias(name, &read)? {
                unread.push(name);
            }
        }
        match unread.is_empty() {
            true => Ok(bytes),
            false => Err(self.unread(weights, unread)),
        }
    }

    /// Tensors that files of these families have and that no forward pass needs.
    fn is_known_extra(&self, name: &str, read: &HashSet<String>) -> bool {
        // Of a text model within something larger, the other parts: vision, and what joins it.
        let whole = self.prefix.strip_suffix("model.").unwrap_or(self.prefix);
        let of_images = name.starts_with("visual."); // beside a text model with the usual names
        let other_part =
            of_images || self.prefix != PREFIXES[0] && !name.starts_with(whole) && name != "lm_head.weight";
        // Layers that only draft: under a name of their own, or numbered on.
        let (layers, drafting) = (self.config.num_layers, self.config.num_next_token_layers);
        let number =
            |prefix: &str| name.strip_prefix(self.prefix)?.strip_prefix(prefix)?.split('.').next()?.parse().ok();
        let next_token = number("mtp_layers.").is_some_and(|layer: usize| layer < drafting)
            || number("layers.").is_some_and(|layer: usize| (layers..layers + drafting).contains(&layer));
        let has_delta = self.config.layers.iter().any(|layer| matches!(layer.mixer, config::Mixer::Delta(_)));
        let drafting = name.starts_with("mtp.") && (has_delta || drafting > 0);
        // A copy of the embedding, which is the head.
        let tied_head = self.config.head == Head::Embedding && name.strip_suffix(".weight") == Some(self.head);
        // Frequencies of rotations, which follow from the configuration: as buffers of old checkpoints, and in GGUF
        // files, where the reader of its settings takes what it needs of them.
        let rotation = name.ends_with("rotary_emb.inv_freq")
            || name.ends_with(".attn_rot_embd.weight")
            || ["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"].contains(&name);
        // What quantizers note of activations and of the cache, beside a module whose weights are read.
        let beside = ["input_scale", "input_zero_point", "output_scale", "output_zero_point", "weight_g_idx"];
        let noted = name
            .rsplit_once('.')
            .is_some_and(|(module, note)| beside.contains(&note) && read.contains(&format!("{module}.weight")));
        // Projections and norms of keys and values of layers that read those of others, as they are in old uploads.
        let unused_keys = name.strip_prefix(self.prefix).and_then(|name| {
            let (index, rest) = name.strip_prefix("layers.")?.split_once('.')?;
            let layer = self.config.layers.get(index.parse::<usize>().ok()?)?;
            let of_keys = ["k_proj.", "v_proj.", "k_norm."]
                .iter()
                .any(|part| rest.strip_prefix("self_attn.").is_some_and(|rest| rest.starts_with(part)));
            Some(layer.heads.queries_only && of_keys)
        });
        // Products behind the pooling of an encoder.
        let is_of = |module: &str| name.strip_prefix(module).is_some_and(|rest| rest.starts_with('.'));
        let encoder = self.config.encoder.as_ref();
        let behind = encoder.is_some_and(|encoder| encoder.dense.iter().any(|dense| is_of(&dense.directory)));
        let judges = encoder.is_some_and(|encoder| encoder.classifier.is_some());
        let judge = judges && ["score.weight", "cls.output.weight", "lm_head.weight"].contains(&name);
        other_part
            || behind
            || judge
            || unused_keys == Some(true)
            || next_token
            || drafting
            || tied_head
            || rotation
            || noted
    }

    fn unread(&self, weights: &Weights, mut unread: Vec<&str>) -> LoadError {
        let layers = format!("{}layers.", self.prefix);
        let layer = |name: &str| name.strip_prefix(&layers)?.split('.').next()?.parse::<usize>().ok();
        unread.sort_by_key(|name| (layer(name), name.to_string()));
        let more = unread.iter().filter_map(|name| layer(name)).max().filter(|&last| last >= self.config.num_layers);
        let why = match more {
            Some(last) => {
                format!("{} says {}, and there is a layer {last}", weights.layers_key(), self.config.num_layers)
            }
            None => "the configuration has no place for them".to_string(),
        };
        unread_error(weights, "this model does not read", &unread, &why)
    }

    /// Calls `check` with the name and shape of every tensor that the configuration asks for, and whether it is part of
    /// a matrix. Layer by layer, so that a configuration that claims too much fails at the first tensor that is not
    /// there.
    pub(crate) fn each(
        &self,
        mut check: impl FnMut(&str, &[usize], bool) -> Result<(), LoadError>,
    ) -> Result<(), LoadError> {
        visit(&[&self.embedding()], &self.final_norm().vectors().collect::<Vec<_>>(), &mut check)?;
        if let Some(head) = self.head() {
            visit(&[&head], &[], &mut check)?;
        }
        if let Some(InputTable { table, projection, norm }) = self.inputs() {
            visit(&[&table, &projection], &[&norm], &mut check)?;
        }
        (0..self.config.num_layers).try_for_each(|index| self.layer(index).each(&mut check))
    }
}

/// Int8 instead of int4. The class of [`WideParts`], and of matrices of single heads: with 4 bits their few inputs
/// would be a group or two.
pub(crate) fn wider_than_int4(class: WeightClass) -> WeightClass {
    if class == WeightClass::Int4 { WeightClass::Int8 } else { class }
}

fn short_convolution(config: ShortConvolutionConfig, hidden: usize, name: &dyn Fn(&str) -> String) -> Mixing {
    let ShortConvolutionConfig { channels, taps, has_bias } = config;
    let whole = |part: &str, rows, in_features| Linear::whole(&[(name(part), rows)], in_features, has_bias);
    Mixing {
        qkv: whole("conv.in_proj", 3 * channels, hidden),
        qkv_order: RowOrder::AsStored,
        mixer: Mixer::ShortConvolution(config, Filter::new(&name("conv.conv"), channels, taps, has_bias)),
        o: whole("conv.out_proj", hidden, channels),
    }
}

/// The error for unread tensors of a file: their number and the first names.
pub(crate) fn unread_error(weights: &Weights, who: &str, unread: &[&str], why: &str) -> LoadError {
    const SHOWN: usize = 3;
    let mut names: Vec<String> = unread.iter().map(|name| shortened(&weights.name_in_file(name))).collect();
    names.dedup();
    let (count, of) = (names.len(), if names.len() == 1 { "tensor" } else { "tensors" });
    names.truncate(SHOWN);
    let such_as = if count > SHOWN { "such as " } else { "" };
    let problem = format!("the checkpoint holds {count} {of} that {who}, {such_as}{}: {why}", names.join(", "));
    LoadError::field(weights.listing(), "tensors", problem)
}

/// A name from an untrusted file in quotes, truncated to 100 characters.
fn shortened(name: &str) -> String {
    const LONGEST: usize = 100;
    match name.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{:?}...", &name[..end]),
        None => format!("{name:?}"),
    }
}

/// Bytes in memory of all weights of a model in `class`, by the shapes alone: what a loaded one reports, to the byte,
/// where the checkpoint's weights are numbers. Matrices that a GGUF file has quantized keep the file's groups, and
/// other sizes. `None` where the shapes are absurd.
pub fn bytes_in_memory(config: &ModelConfig, class: WeightClass) -> Option<u64> {
    let packed = |out_features, linear: &Linear, class| {
        PackedMatrix::bytes_of(MatrixShape { out_features, in_features: linear.in_features }, class)
            .map(|bytes| bytes as u64)
    };
    let matrix = |linear: &Linear, class| {
        Some(
            packed(linear.out_features(), linear, class)?
                + linear.biases.iter().map(|bias| 4 * bias.shape.last().copied().unwrap_or(0) as u64).sum::<u64>(),
        )
    };
    let tensors = Tensors::usual(config);
    let tables = [Some(tensors.embedding()), tensors.head()];
    // Norms without weights have ones.
    let norm = |norm: &Norm| {
        let ones = u64::from(norm.weight.is_none()) * (config.hidden_size * size_of::<f32>()) as u64;
        norm.vectors().map(vector).sum::<u64>() + ones
    };
    let mut bytes = norm(&tensors.final_norm());
    bytes += if config.normed_embedding { (config.hidden_size * size_of::<f32>()) as u64 } else { 0 };
    if let Some(InputTable { table, projection, norm }) = tensors.inputs() {
        bytes += matrix(&table, embedding_class(class))? + matrix(&projection, class)? + vector(&norm);
    }
    for table in tables.iter().flatten() {
        bytes += matrix(table, embedding_class(class))?;
    }
    for index in 0..config.num_layers {
        let layer = tensors.layer(index);
        for linear in layer.matrices() {
            bytes += matrix(linear, layer.class_of(linear, class))?;
        }
        for mixing in &layer.mixings {
            if let Some(at) = layer.keys_apart(mixing, class) {
                let (all, qkv) = (mixing.qkv.out_features(), &mixing.qkv);
                bytes += packed(at, qkv, class)? + packed(all - at, qkv, wider_than_int4(class))?;
                bytes -= packed(all, qkv, class)?;
            }
        }
        bytes += layer.vectors().into_iter().map(vector).sum::<u64>();
        bytes += layer.norms().map(|of| norm(of) - of.vectors().map(vector).sum::<u64>()).sum::<u64>();
        // Numbers beside the layer are none of the backend's vectors; norms of values have ones for weights.
        bytes -= layer
            .scalar
            .iter()
            .chain(layer.factors())
            .chain(layer.activation_numbers.iter().flatten())
            .map(vector)
            .sum::<u64>();
        let heads = config.layers[index].heads;
        let unstored = match (config.has_value_norms(heads), config.head_norm_factor) {
            (true, _) => 1,
            (_, Some(_)) if config.has_plain_head_norms(index) => 2, // of queries and keys
            _ => 0,
        };
        bytes += (unstored * heads.head_dim * size_of::<f32>()) as u64;
    }
    Some(bytes)
}

/// Bytes of a tensor `[len]` in memory.
fn vector(vector: &Vector) -> u64 {
    (vector.len * size_of::<f32>()) as u64
}
