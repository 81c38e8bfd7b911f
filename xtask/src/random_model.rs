//! `cargo xtask random-model`: a checkpoint with random weights in the shape of a real model. Speed does not depend on
//! the values, so figures can be made without a download. The same bytes every time.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use crate::shell::root;

/// The numbers of a `config.json` that decide the shape.
struct Shape {
    name: &'static str,
    family: Family,
    hidden: usize,
    intermediate: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    vocab: usize,
    tied: bool,
    rope_theta: f64,
    context: usize,
    eps: f64,
    /// In place of the MLP.
    experts: Option<Experts>,
}

#[derive(Clone, Copy, PartialEq)]
enum Family {
    Llama,
    Mistral,
    Qwen2,
    Qwen3Moe,
}

#[derive(Clone, Copy)]
struct Experts {
    count: usize,
    per_token: usize,
    intermediate: usize,
}

const TINY: Shape = Shape {
    name: "tiny",
    family: Family::Llama,
    hidden: 128,
    intermediate: 256,
    layers: 2,
    heads: 4,
    kv_heads: 2,
    head_dim: 32,
    vocab: 2048,
    tied: true,
    rope_theta: 1e4,
    context: 4096,
    eps: 1e-5,
    experts: None,
};

const SHAPES: [Shape; 7] = [
    Shape {
        name: "qwen2.5-0.5b",
        family: Family::Qwen2,
        hidden: 896,
        intermediate: 4864,
        layers: 24,
        heads: 14,
        kv_heads: 2,
        head_dim: 64,
        vocab: 151_936,
        tied: true,
        rope_theta: 1e6,
        context: 32_768,
        eps: 1e-6,
        experts: None,
    },
    Shape {
        name: "llama-3.2-1b",
        family: Family::Llama,
        hidden: 2048,
        intermediate: 8192,
        layers: 16,
        heads: 32,
        kv_heads: 8,
        head_dim: 64,
        vocab: 128_256,
        tied: true,
        rope_theta: 5e5,
        context: 131_072,
        eps: 1e-5,
        experts: None,
    },
    Shape {
        name: "mistral-7b",
        family: Family::Mistral,
        hidden: 4096,
        intermediate: 14_336,
        layers: 32,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        vocab: 32_768,
        tied: false,
        rope_theta: 1e6,
        context: 32_768,
        eps: 1e-5,
        experts: None,
    },
    // Qwen3-30B-A3B with a quarter of everything: 0.8 billion weights, of which a token uses 0.2 billion and the head.
    Shape {
        name: "moe-0.8b",
        family: Family::Qwen3Moe,
        hidden: 1024,
        intermediate: 3072,
        layers: 12,
        heads: 16,
        kv_heads: 4,
        head_dim: 64,
        vocab: 151_936,
        tied: true,
        rope_theta: 1e6,
        context: 32_768,
        eps: 1e-6,
        experts: Some(Experts { count: 32, per_token: 4, intermediate: 512 }),
    },
    // Slow enough that a client's own milliseconds do not show, small enough to be made in a moment; and it says no
    // token that its tokenizer does not have.
    Shape {
        name: "100m",
        family: Family::Llama,
        hidden: 768,
        intermediate: 3072,
        layers: 12,
        heads: 12,
        kv_heads: 4,
        head_dim: 64,
        vocab: 2048,
        tied: true,
        rope_theta: 1e4,
        context: 4096,
        eps: 1e-5,
        experts: None,
    },
    TINY,
    // The same with room for what coding agents send.
    Shape { name: "long", context: 131_072, ..TINY },
];

/// Writes `config.json`, `model.safetensors` (bf16) and the built-in model's tokenizer, whose ids every shape has.
pub(crate) fn write(name: &str, directory: &Path) -> Result<(), String> {
    let shape = SHAPES
        .iter()
        .find(|shape| shape.name == name)
        .ok_or_else(|| format!("{name}: no such shape; there are {}", SHAPES.map(|shape| shape.name).join(", ")))?;
    write_files(shape, directory).map_err(|error| format!("{}: {error}", directory.display()))
}

fn write_files(shape: &Shape, directory: &Path) -> std::io::Result<()> {
    fs::create_dir_all(directory)?;
    fs::write(directory.join("config.json"), config(shape))?;
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(root().join("models/lantern").join(file), directory.join(file))?;
    }
    let tensors = tensors(shape);
    let mut out = BufWriter::with_capacity(1 << 20, File::create(directory.join("model.safetensors"))?);
    let header = header(&tensors);
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for tensor in &tensors {
        for _ in 0..tensor.len() {
            let value = match tensor.kind {
                Kind::Norm => 1.0,
                Kind::Random => random.normal() * 0.02,
            };
            // Cutting a float's lower half is a rounding towards zero: as good as any for random weights.
            out.write_all(&((value.to_bits() >> 16) as u16).to_le_bytes())?;
        }
    }
    out.flush()
}

enum Kind {
    Norm,
    Random,
}

struct Tensor {
    name: String,
    dims: Vec<usize>,
    kind: Kind,
}

impl Tensor {
    fn len(&self) -> usize {
        self.dims.iter().product()
    }
}

fn tensors(shape: &Shape) -> Vec<Tensor> {
    let mut tensors = Vec::new();
    let mut add = |name: String, dims: &[usize], kind| tensors.push(Tensor { name, dims: dims.to_vec(), kind });
    let (q, kv) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
    add("model.embed_tokens.weight".into(), &[shape.vocab, shape.hidden], Kind::Random);
    for layer in 0..shape.layers {
        let name = |rest: &str| format!("model.layers.{layer}.{rest}");
        add(name("input_layernorm.weight"), &[shape.hidden], Kind::Norm);
        for (projection, width) in [("q", q), ("k", kv), ("v", kv)] {
            add(name(&format!("self_attn.{projection}_proj.weight")), &[width, shape.hidden], Kind::Random);
            if shape.family == Family::Qwen2 {
                add(name(&format!("self_attn.{projection}_proj.bias")), &[width], Kind::Random);
            }
        }
        add(name("self_attn.o_proj.weight"), &[shape.hidden, q], Kind::Random);
        if shape.family == Family::Qwen3Moe {
            add(name("self_attn.q_norm.weight"), &[shape.head_dim], Kind::Norm);
            add(name("self_attn.k_norm.weight"), &[shape.head_dim], Kind::Norm);
        }
        add(name("post_attention_layernorm.weight"), &[shape.hidden], Kind::Norm);
        let mut mlp = |prefix: &str, width: usize| {
            add(name(&format!("{prefix}.gate_proj.weight")), &[width, shape.hidden], Kind::Random);
            add(name(&format!("{prefix}.up_proj.weight")), &[width, shape.hidden], Kind::Random);
            add(name(&format!("{prefix}.down_proj.weight")), &[shape.hidden, width], Kind::Random);
        };
        match shape.experts {
            None => mlp("mlp", shape.intermediate),
            Some(experts) => {
                (0..experts.count).for_each(|expert| mlp(&format!("mlp.experts.{expert}"), experts.intermediate));
                add(name("mlp.gate.weight"), &[experts.count, shape.hidden], Kind::Random);
            }
        }
    }
    add("model.norm.weight".into(), &[shape.hidden], Kind::Norm);
    if !shape.tied {
        add("lm_head.weight".into(), &[shape.vocab, shape.hidden], Kind::Random);
    }
    tensors
}

/// The JSON header of a safetensors file, padded to 8 bytes with spaces as the format asks.
fn header(tensors: &[Tensor]) -> String {
    let mut end = 0;
    let entries = tensors.iter().map(|tensor| {
        let start = end;
        end += 2 * tensor.len();
        format!(r#""{}":{{"dtype":"BF16","shape":{:?},"data_offsets":[{start},{end}]}}"#, tensor.name, tensor.dims)
    });
    let mut header = format!("{{{}}}", entries.collect::<Vec<_>>().join(","));
    while header.len() % 8 != 0 {
        header.push(' ');
    }
    header
}

fn config(shape: &Shape) -> String {
    let (architecture, model_type) = match shape.family {
        Family::Llama => ("LlamaForCausalLM", "llama"),
        Family::Mistral => ("MistralForCausalLM", "mistral"),
        Family::Qwen2 => ("Qwen2ForCausalLM", "qwen2"),
        Family::Qwen3Moe => ("Qwen3MoeForCausalLM", "qwen3_moe"),
    };
    let experts = shape.experts.map_or(String::new(), |Experts { count, per_token, intermediate }| {
        format!(
            r#"
  "num_experts": {count},
  "num_experts_per_tok": {per_token},
  "moe_intermediate_size": {intermediate},
  "norm_topk_prob": true,"#
        )
    });
    let Shape {
        hidden, intermediate, layers, heads, kv_heads, head_dim, vocab, tied, rope_theta, context, eps, ..
    } = shape;
    format!(
        r#"{{
  "architectures": ["{architecture}"],
  "model_type": "{model_type}",
  "hidden_size": {hidden},
  "intermediate_size": {intermediate},
  "num_hidden_layers": {layers},
  "num_attention_heads": {heads},
  "num_key_value_heads": {kv_heads},
  "head_dim": {head_dim},
  "vocab_size": {vocab},
  "tie_word_embeddings": {tied},
  "rope_theta": {rope_theta:.1},
  "max_position_embeddings": {context},
  "rms_norm_eps": {eps},
  "hidden_act": "silu",
  "sliding_window": null,{experts}
  "torch_dtype": "bfloat16"
}}
"#
    )
}

/// xorshift64* (Marsaglia, 2003; Vigna, 2016).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Nearly normal with variance 1: the sum of four uniform numbers.
    fn normal(&mut self) -> f32 {
        let bits = self.next();
        let sum: u32 = (0..4).map(|part| (bits >> (16 * part)) as u32 & 0xffff).sum();
        (sum as f32 / 65_536.0 - 2.0) * 3f32.sqrt()
    }
}
