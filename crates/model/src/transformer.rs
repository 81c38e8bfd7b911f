//! The forward pass of a Llama-shaped decoder, in the words of [`Backend`].
//!
//! ```text
//! x = embed(tokens)
//! per layer:  qkv = norm(x) Wqkv         k, v -> cache       a = attend(q, cache)       x = x + a Wo
//!             gu  = norm(x) Wgate|up     m = silu(g) * u                                x = x + m Wdown
//! logits = norm(x) Whead                 only for the rows whose next token is wanted
//! ```
//!
//! Prefill and decode are the same pass over different rows: a row's arithmetic never looks at the other rows.
//! In the last layer everything after attention is computed for the wanted rows only, since nothing reads the others.

use crate::batch::Batch;
use crate::checkpoint::LoadError;
use crate::config::ModelConfig;
use crate::forward::embedding_class;
use crate::weights::Weights;
use kernels::{
    Activation, Attention, AttentionRule, AttentionSpan, Backend, HeadNorms, Out, RopeTable, RotateAndStore,
    WeightClass,
};
use std::ops::Range;

/// Weights of a model in a backend's layout.
pub(crate) struct Transformer<B: Backend> {
    /// `[vocab_size, hidden_size]`.
    embed: B::Matrix,
    layers: Vec<Layer<B>>,
    /// `[hidden_size]`.
    final_norm: Vec<f32>,
    /// `[vocab_size, hidden_size]`; `None` when the embedding serves as the head.
    head: Option<B::Matrix>,
    rope: RopeTable,
}

struct Layer<B: Backend> {
    /// `[hidden_size]`.
    attention_norm: Vec<f32>,
    /// `[q heads | k heads | v heads] x hidden_size`.
    qkv: Linear<B>,
    /// q and k norm weights, `[head_dim]` each.
    head_norms: Option<(Vec<f32>, Vec<f32>)>,
    /// `[hidden_size, num_heads * head_dim]`.
    o: Linear<B>,
    /// `[hidden_size]`.
    mlp_norm: Vec<f32>,
    /// `[gate | up] x hidden_size`.
    gate_up: Linear<B>,
    /// `[hidden_size, intermediate_size]`.
    down: Linear<B>,
}

struct Linear<B: Backend> {
    matrix: B::Matrix,
    /// `[out_features]`.
    bias: Option<Vec<f32>>,
}

impl<B: Backend> Linear<B> {
    fn apply(&self, backend: &B, x: &[f32], out: Out<'_>) {
        backend.linear(x, &self.matrix, self.bias.as_deref(), out);
    }
}

/// Activations of one pass, sized once for the largest step.
pub(crate) struct Scratch {
    /// The residual stream `[max_rows, hidden_size]`.
    x: Vec<f32>,
    /// `[max_rows, hidden_size]`.
    normed: Vec<f32>,
    /// `[max_rows, qkv_width]`.
    qkv: Vec<f32>,
    /// `[max_rows, q_width]`.
    attended: Vec<f32>,
    /// `[max_rows, 2 * intermediate_size]`.
    gate_up: Vec<f32>,
    /// `[max_rows, intermediate_size]`.
    activated: Vec<f32>,
    /// The wanted rows of `x` in the last layer, `[max_rows, hidden_size]`; the final hidden states until the next pass.
    wanted_x: Vec<f32>,
    /// The wanted rows of `attended` in the last layer, `[max_rows, q_width]`.
    wanted_attended: Vec<f32>,
    /// Rows of `wanted_x` that the last pass left.
    num_wanted: usize,
    /// Kept for its memory; always empty between passes.
    spans: Vec<AttentionSpan<'static>>,
}

impl Scratch {
    /// Memory for steps of at most `max_rows` rows.
    pub(crate) fn new(config: &ModelConfig, max_rows: usize) -> Result<Scratch, LoadError> {
        let heads = config.heads();
        Ok(Scratch {
            x: zeros(max_rows, config.hidden_size)?,
            normed: zeros(max_rows, config.hidden_size)?,
            qkv: zeros(max_rows, heads.qkv_width())?,
            attended: zeros(max_rows, heads.q_width())?,
            gate_up: zeros(max_rows, 2 * config.intermediate_size)?,
            activated: zeros(max_rows, config.intermediate_size)?,
            wanted_x: zeros(max_rows, config.hidden_size)?,
            wanted_attended: zeros(max_rows, heads.q_width())?,
            num_wanted: 0,
            spans: Vec::with_capacity(max_rows),
        })
    }

    /// How many rows of the last pass have logits.
    pub(crate) fn num_wanted(&self) -> usize {
        self.num_wanted
    }
}

fn zeros(rows: usize, width: usize) -> Result<Vec<f32>, LoadError> {
    let len = rows.saturating_mul(width);
    let mut values = Vec::new();
    values.try_reserve_exact(len).map_err(|_| LoadError::OutOfMemory {
        bytes: len.saturating_mul(size_of::<f32>()),
        purpose: format!("activations of {rows} rows"),
    })?;
    values.resize(len, 0.0);
    Ok(values)
}

impl<B: Backend> Transformer<B> {
    /// Keys and values of every row go to `kv`, the hidden states of the wanted rows stay in `scratch`. Allocates nothing.
    pub(crate) fn compute(
        &self,
        backend: &B,
        config: &ModelConfig,
        batch: &Batch,
        kv: &mut B::KvCache,
        scratch: &mut Scratch,
    ) {
        let (rows, wanted) = (batch.num_rows(), batch.logit_rows.len());
        let (hidden, heads) = (config.hidden_size, config.heads());
        scratch.num_wanted = wanted;
        let Scratch { x, normed, qkv, attended, gate_up, activated, wanted_x, wanted_attended, spans, .. } = scratch;
        let x = &mut x[..rows * hidden];
        let attended = &mut attended[..rows * heads.q_width()];
        let qkv = &mut qkv[..rows * heads.qkv_width()];
        let mut attention_spans = recycle(std::mem::take(spans));
        attention_spans.extend(batch.spans.iter().map(|span| AttentionSpan {
            first_row: span.first_row as usize,
            num_rows: span.num_rows as usize,
            start: span.start as usize,
            blocks: &batch.block_tables[span.table.start as usize..span.table.end as usize],
        }));
        let pass = Pass { backend, config, batch, rope: &self.rope };
        let mut mlp = Mlp { normed: &mut *normed, gate_up, activated };

        backend.embed(&self.embed, &batch.token_ids, x);
        for (index, layer) in self.layers.iter().enumerate() {
            layer.project_and_store(&pass, index, x, mlp.normed, qkv, kv);
            let last = index + 1 == self.layers.len();
            if last && wanted == 0 {
                break; // the cache has all that these rows leave behind
            }
            let rule =
                AttentionRule { window: config.layer_windows[index], ..AttentionRule::of_width(config.head_dim) };
            let spans = &attention_spans;
            backend.attend(Attention { qkv, layout: heads, rule, spans, layer: index }, kv, attended);
            if last {
                gather(x, hidden, &batch.logit_rows, &mut wanted_x[..wanted * hidden]);
                gather(attended, heads.q_width(), &batch.logit_rows, &mut wanted_attended[..wanted * heads.q_width()]);
                layer.finish(&pass, &wanted_attended[..wanted * heads.q_width()], &mut mlp, wanted_x, wanted);
            } else {
                layer.finish(&pass, attended, &mut mlp, x, rows);
            }
        }
        *spans = recycle(attention_spans);
    }

    /// Logits of wanted rows of the last pass, by their index among them: `out` is `[rows.len(), vocab_size]`.
    pub(crate) fn logits(
        &self,
        backend: &B,
        config: &ModelConfig,
        rows: Range<usize>,
        scratch: &mut Scratch,
        out: &mut [f32],
    ) {
        let hidden = config.hidden_size;
        let normed = &mut scratch.normed[..rows.len() * hidden];
        let x = &scratch.wanted_x[rows.start * hidden..rows.end * hidden];
        backend.rms_norm(x, &self.final_norm, config.rms_norm_eps, normed);
        backend.linear(normed, self.head.as_ref().unwrap_or(&self.embed), None, Out::Store(out));
    }

    /// Bytes of weights that one decode step reads: everything but the embedding's unused rows.
    pub(crate) fn bytes_read(&self, backend: &B) -> usize {
        let vectors = |layer: &Layer<B>| {
            let biases = [&layer.qkv, &layer.o, &layer.gate_up, &layer.down];
            let biases = biases.map(|linear| linear.bias.as_ref().map_or(0, Vec::len)).iter().sum::<usize>();
            let head_norms = layer.head_norms.as_ref().map_or(0, |(q, k)| q.len() + k.len());
            (layer.attention_norm.len() + layer.mlp_norm.len() + biases + head_norms) * size_of::<f32>()
        };
        let matrices = |layer: &Layer<B>| -> usize {
            let linears = [&layer.qkv, &layer.o, &layer.gate_up, &layer.down];
            linears.map(|linear| backend.matrix_bytes(&linear.matrix)).iter().sum()
        };
        let layers: usize = self.layers.iter().map(|layer| matrices(layer) + vectors(layer)).sum();
        let head = backend.matrix_bytes(self.head.as_ref().unwrap_or(&self.embed));
        layers + head + self.final_norm.len() * size_of::<f32>()
    }

    /// Bytes of all weights in memory.
    pub(crate) fn bytes(&self, backend: &B) -> usize {
        self.bytes_read(backend) + self.head.as_ref().map_or(0, |_| backend.matrix_bytes(&self.embed))
    }
}

/// What stays the same throughout a pass.
struct Pass<'a, B> {
    backend: &'a B,
    config: &'a ModelConfig,
    batch: &'a Batch,
    rope: &'a RopeTable,
}

/// Scratch of the second half of a layer.
struct Mlp<'a> {
    normed: &'a mut [f32],
    gate_up: &'a mut [f32],
    activated: &'a mut [f32],
}

impl<B: Backend> Layer<B> {
    /// Queries to `qkv`, rotated; keys and values to the cache. From here on attention reads only the cache.
    fn project_and_store(
        &self,
        pass: &Pass<'_, B>,
        layer: usize,
        x: &[f32],
        normed: &mut [f32],
        qkv: &mut [f32],
        kv: &mut B::KvCache,
    ) {
        let &Pass { backend, config, batch, rope } = pass;
        let normed = &mut normed[..x.len()];
        backend.rms_norm(x, &self.attention_norm, config.rms_norm_eps, normed);
        self.qkv.apply(backend, normed, Out::Store(qkv));
        let head_norms = match &self.head_norms {
            Some((q, k)) => HeadNorms::PerHead { q, k, eps: config.rms_norm_eps },
            None => HeadNorms::None,
        };
        let (positions, slots) = (&batch.positions, &batch.slots);
        let (layout, rope) = (config.heads(), Some(rope));
        backend.rotate_and_store(RotateAndStore { qkv, layout, head_norms, rope, positions, slots, layer }, kv);
    }

    /// The output projection and the MLP, each added to the first `rows` rows of the residual stream `x`.
    fn finish(&self, pass: &Pass<'_, B>, attended: &[f32], mlp: &mut Mlp<'_>, x: &mut [f32], rows: usize) {
        let &Pass { backend, config, .. } = pass;
        let (hidden, intermediate) = (config.hidden_size, config.intermediate_size);
        let x = &mut x[..rows * hidden];
        let normed = &mut mlp.normed[..rows * hidden];
        let gate_up = &mut mlp.gate_up[..rows * 2 * intermediate];
        let activated = &mut mlp.activated[..rows * intermediate];
        self.o.apply(backend, attended, Out::Add(x));
        backend.rms_norm(x, &self.mlp_norm, config.rms_norm_eps, normed);
        self.gate_up.apply(backend, normed, Out::Store(gate_up));
        backend.gated(Activation::Silu, gate_up, intermediate, activated);
        self.down.apply(backend, activated, Out::Add(x));
    }
}

/// `out[i] = from[rows[i]]`, rows of `width`.
fn gather(from: &[f32], width: usize, rows: &[u32], out: &mut [f32]) {
    for (out, &row) in out.chunks_exact_mut(width).zip(rows) {
        out.copy_from_slice(&from[row as usize * width..][..width]);
    }
}

/// An empty vector of another lifetime in the same memory: the collect of a drained `Vec` into one of the same layout
/// happens in place. (Were that ever to change, the cost would be one small allocation per pass; a test would say so.)
fn recycle<'a>(mut spans: Vec<AttentionSpan<'_>>) -> Vec<AttentionSpan<'a>> {
    spans.clear();
    spans.into_iter().map(|_| unreachable!("the vector is empty")).collect()
}

/// What loading needs besides the weights.
pub(crate) struct Loader<'a, B: Backend> {
    pub(crate) backend: &'a B,
    pub(crate) config: &'a ModelConfig,
    pub(crate) weights: &'a Weights,
    pub(crate) class: WeightClass,
    /// Called with the file bytes packed since the last call.
    pub(crate) progress: &'a mut dyn FnMut(u64),
}

impl<B: Backend> Loader<'_, B> {
    /// Packs every weight.
    pub(crate) fn load(&mut self, rope: RopeTable) -> Result<Transformer<B>, LoadError> {
        let config = self.config;
        Ok(Transformer {
            embed: self.matrix(&["model.embed_tokens"], config.hidden_size, embedding_class(self.class))?,
            layers: (0..config.num_layers).map(|index| self.layer(index)).collect::<Result<_, _>>()?,
            final_norm: self.vector("model.norm.weight")?,
            head: match config.tie_word_embeddings {
                true => None,
                false => Some(self.matrix(&["lm_head"], config.hidden_size, embedding_class(self.class))?),
            },
            rope,
        })
    }

    fn layer(&mut self, index: usize) -> Result<Layer<B>, LoadError> {
        let config = self.config;
        let (hidden, heads) = (config.hidden_size, config.heads());
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let qkv = ["q_proj", "k_proj", "v_proj"].map(|part| name(&format!("self_attn.{part}")));
        let gate_up = ["gate_proj", "up_proj"].map(|part| name(&format!("mlp.{part}")));
        let head_norms = match config.qk_norm {
            true => {
                Some((self.vector(&name("self_attn.q_norm.weight"))?, self.vector(&name("self_attn.k_norm.weight"))?))
            }
            false => None,
        };
        Ok(Layer {
            attention_norm: self.vector(&name("input_layernorm.weight"))?,
            qkv: self.linear(&qkv.each_ref().map(String::as_str), hidden, config.qkv_bias)?,
            head_norms,
            o: self.linear(&[&name("self_attn.o_proj")], heads.q_width(), config.o_bias)?,
            mlp_norm: self.vector(&name("post_attention_layernorm.weight"))?,
            gate_up: self.linear(&gate_up.each_ref().map(String::as_str), hidden, config.mlp_bias)?,
            down: self.linear(&[&name("mlp.down_proj")], config.intermediate_size, config.mlp_bias)?,
        })
    }

    /// Fused projections: rows, and bias entries, one part after the other.
    fn linear(&mut self, parts: &[&str], in_features: usize, has_bias: bool) -> Result<Linear<B>, LoadError> {
        let matrix = self.matrix(parts, in_features, self.class)?;
        let bias = match has_bias {
            true => {
                let parts = parts.iter().map(|part| self.vector(&format!("{part}.bias")));
                Some(parts.collect::<Result<Vec<_>, _>>()?.concat())
            }
            false => None,
        };
        Ok(Linear { matrix, bias })
    }

    fn matrix(&mut self, parts: &[&str], in_features: usize, class: WeightClass) -> Result<B::Matrix, LoadError> {
        let mut bytes = 0;
        let mut rows = Vec::with_capacity(parts.len());
        for part in parts {
            let name = format!("{part}.weight");
            let shape = expected_shape(self.config, &name);
            bytes += self.weights.tensor(&name, &shape)?.num_bytes();
            rows.push((name, shape[0]));
        }
        let matrix = self.weights.pack(self.backend, class, in_features, &rows)?;
        (self.progress)(bytes);
        Ok(matrix)
    }

    fn vector(&self, name: &str) -> Result<Vec<f32>, LoadError> {
        self.weights.vector(name, expected_shape(self.config, name)[0])
    }
}

/// Every tensor that the configuration asks for, with its shape. The loader's own order is not this one.
pub(crate) fn expected_tensors(config: &ModelConfig) -> Vec<(String, Vec<usize>)> {
    let mut names = vec!["model.embed_tokens.weight".to_string(), "model.norm.weight".to_string()];
    if !config.tie_word_embeddings {
        names.push("lm_head.weight".to_string());
    }
    for index in 0..config.num_layers {
        let mut layer = |part: &str| names.push(format!("model.layers.{index}.{part}"));
        layer("input_layernorm.weight");
        layer("post_attention_layernorm.weight");
        for (projections, bias) in [
            (["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"].as_slice(), config.qkv_bias),
            (&["self_attn.o_proj"], config.o_bias),
            (&["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"], config.mlp_bias),
        ] {
            for projection in projections {
                layer(&format!("{projection}.weight"));
                if bias {
                    layer(&format!("{projection}.bias"));
                }
            }
        }
        if config.qk_norm {
            layer("self_attn.q_norm.weight");
            layer("self_attn.k_norm.weight");
        }
    }
    names
        .into_iter()
        .map(|name| {
            let shape = expected_shape(config, &name);
            (name, shape)
        })
        .collect()
}

/// Shape of a tensor by its name, as transformers stores it: `[out_features, in_features]`, or a vector.
fn expected_shape(config: &ModelConfig, name: &str) -> Vec<usize> {
    let (module, kind) = name.rsplit_once('.').expect("tensor names have a kind");
    let module = module.rsplit('.').next().unwrap_or(module);
    let (q_width, kv_width) = (config.heads().q_width(), config.num_kv_heads * config.head_dim);
    let (out, input) = match module {
        "embed_tokens" | "lm_head" => (config.vocab_size, config.hidden_size),
        "q_proj" => (q_width, config.hidden_size),
        "k_proj" | "v_proj" => (kv_width, config.hidden_size),
        "o_proj" => (config.hidden_size, q_width),
        "gate_proj" | "up_proj" => (config.intermediate_size, config.hidden_size),
        "down_proj" => (config.hidden_size, config.intermediate_size),
        "q_norm" | "k_norm" => return vec![config.head_dim],
        "norm" | "input_layernorm" | "post_attention_layernorm" => return vec![config.hidden_size],
        other => unreachable!("no module is called {other}"),
    };
    if kind == "bias" { vec![out] } else { vec![out, input] }
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
        let recycled: Vec<AttentionSpan<'static>> = recycle(spans);
        assert_eq!((recycled.len(), recycled.capacity()), (0, 8));
        assert!(std::ptr::addr_eq(recycled.as_ptr(), memory));
    }
}
