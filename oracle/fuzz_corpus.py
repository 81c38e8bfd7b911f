"""The small files that fuzzing starts from: fuzz/corpus.

    python oracle/fuzz_corpus.py fuzz/corpus
"""

import json
import sys
from pathlib import Path

import gguf
import numpy
from gguf import GGMLQuantizationType as Type

ROOT = Path(__file__).resolve().parent.parent
LAYER = {"attn_norm": [16], "ffn_norm": [16], "attn_q": [16, 16], "attn_k": [16, 16], "attn_v": [16, 16],
         "attn_output": [16, 16], "ffn_gate": [16, 16], "ffn_up": [16, 16], "ffn_down": [16, 16]}
NAMES = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
         "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
TOKENS = ["a", "b", "ab", "<|end|>", "\u0120", "c", "d", "e"]


def llama(path, tokenizer):
    made = gguf.GGUFWriter(path, "llama")
    made.add_context_length(64)
    made.add_embedding_length(16)
    made.add_block_count(1)
    made.add_feed_forward_length(16)
    made.add_head_count(1)
    made.add_head_count_kv(1)
    made.add_rope_freq_base(10000.0)
    made.add_layer_norm_rms_eps(1e-5)
    tokenizer(made)
    made.add_chat_template("{% for m in messages %}{{ m.content }}{% endfor %}")
    made.add_tensor("token_embd.weight", numpy.zeros((8, 16), numpy.float16))
    made.add_tensor("output_norm.weight", numpy.ones(16, numpy.float32))
    for name, shape in LAYER.items():
        made.add_tensor(f"blk.0.{name}.weight", numpy.zeros(shape, numpy.float16 if len(shape) > 1 else numpy.float32))
    made.write_header_to_file()
    made.write_kv_data_to_file()
    made.write_tensors_to_file()
    made.close()


def bpe(made):
    made.add_tokenizer_model("gpt2")
    made.add_tokenizer_pre("qwen2")
    made.add_token_list(TOKENS)
    made.add_token_types([3 if token.startswith("<|") else 1 for token in TOKENS])
    made.add_token_merges(["a b"])
    made.add_eos_token_id(3)


def spm(made):
    made.add_tokenizer_model("llama")
    tokens = ["<unk>", "<s>", "</s>", "<0x0A>", "\u2581", "a", "\u2581a", "b"]
    made.add_token_list(tokens)
    made.add_token_scores([0.0, 0.0, 0.0, 0.0, -4.0, -2.0, -1.0, -3.0])
    made.add_token_types([2, 3, 3, 6, 1, 1, 1, 1])
    made.add_bos_token_id(1)
    made.add_eos_token_id(2)
    made.add_add_space_prefix(True)


def blocks(path):
    """A tensor of every quantized type, and settings of every kind."""
    made = gguf.GGUFWriter(path, "qwen3")
    made.add_uint8("k.u8", 1)
    made.add_int16("k.i16", -1)
    made.add_uint64("k.u64", 1)
    made.add_float64("k.f64", 0.5)
    made.add_bool("k.bool", True)
    made.add_array("k.list", [1, 2, 3])
    for name in ["Q4_0", "Q5_1", "Q8_0", "Q3_K", "Q6_K", "IQ4_NL"]:
        size = gguf.GGML_QUANT_SIZES[Type[name]][1]
        made.add_tensor(name, numpy.zeros((1, size), numpy.uint8), raw_dtype=Type[name])
    made.write_header_to_file()
    made.write_kv_data_to_file()
    made.write_tensors_to_file()
    made.close()


def safetensors(path):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    shapes = {"model.embed_tokens": [8, 16], "model.norm": [16]}
    shapes |= {f"model.layers.0.{NAMES[name]}": shape for name, shape in LAYER.items()}
    for name, shape in shapes.items():
        size = 2 * int(numpy.prod(shape))
        header[f"{name}.weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(offset))


def tokenizers(directory):
    added = [{"id": 3, "content": "<|end|>", "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True}]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
             "vocab": {token: index for index, token in enumerate(TOKENS)}, "merges": [["a", "b"]]}
    common = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
              "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level, "model": model}
    (directory / "byte-level.json").write_text(json.dumps(common))
    split = {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "\\p{L}+|\\s+(?!\\S)|\\s+"}, "behavior": "Isolated", "invert": False},
        byte_level | {"use_regex": False}]}
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|end|>", "type_id": 0}},
                                                         {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
                "special_tokens": {"<|end|>": {"id": "<|end|>", "ids": [3], "tokens": ["<|end|>"]}}}
    (directory / "split.json").write_text(json.dumps(
        common | {"normalizer": {"type": "NFC"}, "pre_tokenizer": split, "post_processor": template}))
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    decoder = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    vocab = {"<unk>": 0, "<0x0A>": 1, "\u2581": 2, "<|end|>": 3, "a": 4, "\u2581a": 5}
    (directory / "spaces.json").write_text(json.dumps(
        common | {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, spaces]},
                  "pre_tokenizer": None, "decoder": decoder,
                  "model": model | {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "vocab": vocab,
                                    "merges": [["\u2581", "a"]]}}))
    (directory / "settings.json").write_text(json.dumps(
        {"bos_token": None, "eos_token": {"content": "<|end|>"}, "add_bos_token": True, "model_max_length": 1e30,
         "added_tokens_decoder": {"3": added[0] | {"id": 3}},
         "chat_template": [{"name": "default", "template": "{{ messages[0].content }}"}]}))


def main():
    corpus = Path(sys.argv[1])
    for name in ["gguf", "safetensors", "config", "tokenizer"]:
        (corpus / name).mkdir(parents=True, exist_ok=True)
    llama(corpus / "gguf/bpe.gguf", bpe)
    llama(corpus / "gguf/spm.gguf", spm)
    blocks(corpus / "gguf/blocks.gguf")
    safetensors(corpus / "safetensors/llama.safetensors")
    tokenizers(corpus / "tokenizer")
    for case in ["llama3", "llama-bias-linear", "mistral", "qwen2", "qwen2.5-yarn", "qwen3-bias-yarn"]:
        text = (ROOT / f"crates/model/tests/data/{case}/config.json").read_text()
        (corpus / f"config/{case}.json").write_text(json.dumps(json.loads(text)))
    generation = json.loads((ROOT / "models/lantern/generation_config.json").read_text())
    (corpus / "config/generation.json").write_text(json.dumps(generation))


if __name__ == "__main__":
    main()
