#!/usr/bin/env python3
"""Writes a Hugging Face directory of `cargo xtask random-model` as a GGUF file, the same tensors under ggml's names, so
that other engines measure the same model. Needs the packages gguf and numpy (`bench/peers.sh install llama.cpp`).

    to_gguf.py DIRECTORY FILE [BF16|Q8_0|Q4_0]

One tensor is in memory at a time. Only what the random models have: Llama and Qwen2 shapes, one safetensors file in bf16, a byte-level BPE tokenizer. Llama's
query and key rows are interleaved, as ggml's rotation of that architecture wants them.
"""

import json
import pathlib
import struct
import sys

import gguf
import numpy

ARCHITECTURES = {"LlamaForCausalLM": "llama", "MistralForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2"}
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
OUTER = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}


def tensors(path):
    """Name and bf16 bits of every tensor of a safetensors file."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    data = numpy.memmap(path, dtype=numpy.uint8, mode="r", offset=8 + length)
    for name, info in header.items():
        if name == "__metadata__":
            continue
        if info["dtype"] != "BF16":
            sys.exit(f"{path}: {name} is {info['dtype']}; bf16 is expected")
        begin, end = info["data_offsets"]
        yield name, data[begin:end].view(numpy.uint16).reshape(info["shape"])


def renamed(name):
    if name in OUTER:
        return OUTER[name]
    _, _, layer, rest = name.split(".", 3)
    module, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{NAMES[module]}.{kind}"


def interleaved(rows, heads):
    """Rows of a head in the order 0, half, 1, half + 1, ..."""
    shape = rows.shape
    return rows.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def write_tokenizer(writer, directory, vocab_size):
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    by_id = {id: token for token, id in tokenizer["model"]["vocab"].items()}
    special = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    names = [special.get(id) or by_id.get(id) or f"[unused {id}]" for id in range(vocab_size)]
    kinds = [gguf.TokenType.CONTROL if id in special else gguf.TokenType.NORMAL if id in by_id else gguf.TokenType.UNUSED for id in range(vocab_size)]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(names)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    end = min(special, default=0)
    writer.add_bos_token_id(end)
    writer.add_eos_token_id(end)


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit("usage: to_gguf.py DIRECTORY FILE [BF16|Q8_0|Q4_0]")
    directory, target = map(pathlib.Path, sys.argv[1:3])
    kind = gguf.GGMLQuantizationType[sys.argv[3] if len(sys.argv) == 4 else "BF16"]
    config = json.loads((directory / "config.json").read_text())
    architecture = ARCHITECTURES[config["architectures"][0]]
    heads, kv_heads = config["num_attention_heads"], config.get("num_key_value_heads", config["num_attention_heads"])
    writer = gguf.GGUFWriter(target, architecture)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(config.get("head_dim") or config["hidden_size"] // heads)
    writer.add_value_length(config.get("head_dim") or config["hidden_size"] // heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rope = config.get("rope_parameters") or config
    writer.add_rope_freq_base(rope.get("rope_theta", 10_000.0))
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType["MOSTLY_" + kind.name])
    write_tokenizer(writer, directory, config["vocab_size"])
    shapes = {renamed(name): bits.shape for name, bits in tensors(directory / "model.safetensors")}
    for name, shape in shapes.items():
        if len(shape) == 1:  # norms and biases stay f32 in GGUF
            writer.add_tensor_info(name, shape, numpy.dtype(numpy.float32), 4 * shape[0])
        else:
            packed = gguf.quant_shape_to_byte_shape(shape, kind)
            writer.add_tensor_info(name, packed, numpy.dtype(numpy.uint8), int(numpy.prod(packed)), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, bits in tensors(directory / "model.safetensors"):
        if architecture == "llama" and "q_proj" in name:
            bits = interleaved(bits, heads)
        if architecture == "llama" and "k_proj" in name:
            bits = interleaved(bits, kv_heads)
        values = (bits.astype(numpy.uint32) << 16).view(numpy.float32)
        if bits.ndim == 1:
            data = values
        elif kind == gguf.GGMLQuantizationType.BF16:
            data = bits.view(numpy.uint8)
        else:
            data = gguf.quants.quantize(values, kind)
        writer.write_tensor_data(numpy.ascontiguousarray(data))
    writer.close()


if __name__ == "__main__":
    main()
