"""GGUF files as the `gguf` package of Python writes them, for crates/model/tests/gguf.rs.

    python oracle/gguf_cases.py crates/model/tests/data            writes crates/model/tests/data/gguf
    python oracle/gguf_cases.py --check crates/model/tests/data    makes them again and compares; exit status 1 when they differ

    blocks.gguf     for every type of tensor that is read: random blocks, extreme scales among them, and beside each the
                    floats that the package makes of them
    llama3-v5.gguf  the checkpoint of that name in bfloat16: rows of q and k reordered, divisors of the frequencies
    mixed.gguf      the same with every matrix in another quantized type
    spm.gguf        a SentencePiece tokenizer (trained here on the text of models/lantern) without a model
    spm.json        what SentencePiece itself makes of some texts
    bpe.gguf        the tokenizer of models/lantern without a model

and crates/checkpoint/src/grids.bin, constants of the types that choose several numbers at once.
"""

import argparse
import io
import json
import sys
import tempfile
from pathlib import Path

import gguf
import numpy
import sentencepiece
from gguf import GGMLQuantizationType as Type

ROOT = Path(__file__).resolve().parent.parent
QUANTIZED = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4",
             "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M", "NVFP4"]
# The order of their grids in grids.bin.
GRIDS = QUANTIZED[15:21]
GRIDS_FILE = ROOT / "crates/checkpoint/src/grids.bin"
# Where the half-precision numbers of a block lie, in bytes.
SCALES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0],
    "TQ1_0": [52], "TQ2_0": [64], "MXFP4": [], "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0],
    "IQ1_S": [0], "IQ1_M": [], "NVFP4": [],
}
# Zeros, the smallest and largest subnormal, the smallest normal, the largest number.
EXTREME_HALVES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF]
TEXTS = [
    "", " ", "Hello, world!", "  two spaces", "The quick brown fox jumps over 12345 lazy dogs.", "a\nb\n\nc\t d",
    "naïve café, Ωmega, 日本語, 🙂", "don't, can't; it's", "aaaaaaaaaaaaaaaa", "Once upon a time, there was a little girl.",
    "   ", "x" * 40, "2 + 2 = 4",
]


def writer(path, architecture):
    made = gguf.GGUFWriter(path, architecture)
    made.add_custom_alignment(32)
    return made


def finish(made):
    made.write_header_to_file()
    made.write_kv_data_to_file()
    made.write_tensors_to_file()
    made.close()


def random_blocks(rng, name, rows, blocks):
    size = gguf.GGML_QUANT_SIZES[Type[name]][1]
    raw = rng.integers(0, 256, (rows * blocks, size), dtype=numpy.uint8)
    for offset in SCALES[name]:
        halves = rng.standard_normal(rows * blocks).astype(numpy.float16).view(numpy.uint16)
        extreme = rng.random(rows * blocks) < 0.4
        halves[extreme] = rng.choice(numpy.array(EXTREME_HALVES, numpy.uint16), int(extreme.sum()))
        raw[:, offset:offset + 2] = halves.view(numpy.uint8).reshape(-1, 2)
    if name == "MXFP4":  # from the least exponent that is a normal number to the largest that is one with every code
        raw[:, 0] = rng.integers(2, 253, rows * blocks)
    if name == "IQ1_M":  # four bits of the scale in each of four words: the highest are no exponent of infinity
        raw[:, 55] &= 0xBF
    return raw.reshape(rows, blocks * size)


def write_blocks(path):
    rng = numpy.random.default_rng(20)
    made = writer(path, "llama")
    for name in QUANTIZED:
        blocks = 1 if gguf.GGML_QUANT_SIZES[Type[name]][0] == 256 else 3
        raw = random_blocks(rng, name, 4, blocks)
        made.add_tensor(name, raw, raw_dtype=Type[name])
        made.add_tensor(f"{name}.expected", gguf.dequantize(raw, Type[name]).astype(numpy.float32))
    bits = rng.integers(0, 1 << 16, (2, 64), dtype=numpy.uint16)
    bits[(bits & 0x7C00) == 0x7C00] = 0x3C00  # no NaN: its bits are the hardware's choice
    halves = bits.view(numpy.float16)
    made.add_tensor("F16", halves)
    made.add_tensor("F16.expected", halves.astype(numpy.float32))
    bits = rng.integers(0, 1 << 16, (2, 64), dtype=numpy.uint16)
    made.add_tensor("BF16", bits.view(numpy.uint8), raw_dtype=Type.BF16)
    made.add_tensor("BF16.expected", gguf.dequantize(bits.view(numpy.uint8), Type.BF16))
    finish(made)


NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}


def ggml_name(name):
    module, kind = name.rsplit(".", 1)
    if module.startswith("model.layers."):
        index, module = module.removeprefix("model.layers.").split(".", 1)
        return f"blk.{index}.{NAMES[module]}.{kind}"
    return {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}[module] + "." + kind


def interleaved(rows, head_dim):
    """Rows i and head_dim / 2 + i of each head side by side, as ggml's llama rotates them."""
    heads = rows.reshape(-1, 2, head_dim // 2, rows.shape[-1])
    return numpy.ascontiguousarray(heads.swapaxes(1, 2)).reshape(rows.shape)


def llama3_divisors(rope, head_dim):
    """In float32, as ggml's converter computes them."""
    base = numpy.float32(rope["rope_theta"])
    frequencies = 1.0 / base ** (numpy.arange(0, head_dim, 2, dtype=numpy.float32) / numpy.float32(head_dim))
    low, high, original = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]
    divisors = []
    for frequency in frequencies:
        wavelength = numpy.float32(2 * numpy.pi) / frequency
        if wavelength < original / high:
            divisors.append(1.0)
        elif wavelength > original / low:
            divisors.append(rope["factor"])
        else:
            smooth = (numpy.float32(original) / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return numpy.array(divisors, numpy.float32)


def read_bfloat16(path):
    """Tensors of a safetensors file as uint16: numpy has no bfloat16."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + length])
    data = raw[8 + length:]
    tensors = {}
    for name, info in header.items():
        if name != "__metadata__":
            assert info["dtype"] == "BF16", name
            begin, end = info["data_offsets"]
            tensors[name] = numpy.frombuffer(data[begin:end], numpy.uint16).reshape(info["shape"])
    return tensors


def write_llama(path, source, types):
    """The checkpoint in `source`; `types` gives the type of a matrix by its place among the matrices."""
    config = json.loads((source / "config.json").read_text())
    rope = config["rope_parameters"]
    made = writer(path, "llama")
    made.add_name(source.name)
    made.add_context_length(config["max_position_embeddings"])
    made.add_embedding_length(config["hidden_size"])
    made.add_block_count(config["num_hidden_layers"])
    made.add_feed_forward_length(config["intermediate_size"])
    made.add_head_count(config["num_attention_heads"])
    made.add_head_count_kv(config["num_key_value_heads"])
    made.add_key_length(config["head_dim"])
    made.add_value_length(config["head_dim"])
    made.add_rope_dimension_count(config["head_dim"])
    made.add_rope_freq_base(rope["rope_theta"])
    made.add_layer_norm_rms_eps(config["rms_norm_eps"])
    made.add_vocab_size(config["vocab_size"])
    made.add_bos_token_id(config["bos_token_id"])
    made.add_eos_token_id(config["eos_token_id"])
    made.add_tensor("rope_freqs.weight", llama3_divisors(rope, config["head_dim"]))
    matrices = 0
    for name, bits in sorted(read_bfloat16(source / "model.safetensors").items()):
        values = (bits.astype(numpy.uint32) << 16).view(numpy.float32)
        if values.ndim == 1:
            made.add_tensor(ggml_name(name), values)
            continue
        if "q_proj" in name or "k_proj" in name:
            values = interleaved(values, config["head_dim"])
        kind = Type[types[matrices % len(types)]]
        matrices += 1
        raw = random_iq4(values) if kind == Type.IQ4_NL else gguf.quantize(values, kind)
        made.add_tensor(ggml_name(name), raw, raw_dtype=kind)
    finish(made)


def random_iq4(values):
    """The package has no quantizer for IQ4_NL: the nearest level with the scale that lets the largest number fit."""
    levels = numpy.array(gguf.quants.IQ4_NL.kvalues, numpy.float32)
    blocks = values.reshape(-1, 32)
    scales = (numpy.abs(blocks).max(1, keepdims=True) / 127).astype(numpy.float16)
    safe = numpy.where(scales == 0, 1, scales).astype(numpy.float32)
    nearest = numpy.abs(blocks[..., None] / safe[..., None] - levels).argmin(-1).astype(numpy.uint8)
    packed = nearest[:, :16] | nearest[:, 16:] << 4
    raw = numpy.concatenate([scales.view(numpy.uint8), packed], axis=1)
    return raw.reshape(values.shape[0], -1)


def lantern_text():
    lines = (ROOT / "models/lantern/heldout.jsonl").read_text().splitlines()
    return "\n".join(lines[:400])


def write_spm(path, golden):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lantern_text().splitlines()), model_writer=model, vocab_size=700, model_type="bpe",
        byte_fallback=True, character_coverage=0.999, normalization_rule_name="identity", num_threads=1,
        user_defined_symbols=["<|user|>"], remove_extra_whitespaces=False, minloglevel=2)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    tokens, scores, types = [], [], []
    for index in range(processor.vocab_size()):
        tokens.append(processor.id_to_piece(index))
        scores.append(processor.get_score(index))
        kind = gguf.TokenType.NORMAL
        if processor.is_unknown(index):
            kind = gguf.TokenType.UNKNOWN
        elif processor.is_control(index):
            kind = gguf.TokenType.CONTROL
        elif processor.is_byte(index):
            kind = gguf.TokenType.BYTE
        elif tokens[-1] == "<|user|>":
            kind = gguf.TokenType.USER_DEFINED
        types.append(kind)
    made = writer(path, "llama")
    made.add_tokenizer_model("llama")
    made.add_token_list(tokens)
    made.add_token_scores(scores)
    made.add_token_types(types)
    made.add_bos_token_id(processor.bos_id())
    made.add_eos_token_id(processor.eos_id())
    made.add_unk_token_id(processor.unk_id())
    made.add_chat_template("{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}")
    finish(made)
    cases = [{"text": text, "ids": processor.encode(text)} for text in TEXTS]
    golden.write_text(json.dumps(cases, ensure_ascii=False, indent=0) + "\n")


def write_bpe(path):
    source = json.loads((ROOT / "models/lantern/tokenizer.json").read_text())
    settings = json.loads((ROOT / "models/lantern/tokenizer_config.json").read_text())
    texts = {index: token for token, index in source["model"]["vocab"].items()}
    added = {token["id"]: token for token in source["added_tokens"]}
    tokens, types = [], []
    for index in range(max([*texts, *added]) + 1):
        if index in added:
            tokens.append(added[index]["content"])
            types.append(gguf.TokenType.CONTROL if added[index]["special"] else gguf.TokenType.USER_DEFINED)
        else:
            tokens.append(texts[index])
            types.append(gguf.TokenType.NORMAL)
    tokens.append(f"[PAD{len(tokens)}]")  # a hole of the vocabulary, as converters write it
    types.append(gguf.TokenType.UNUSED)
    ids = {token: index for index, token in enumerate(tokens)}
    made = writer(path, "llama")
    made.add_tokenizer_model("gpt2")
    made.add_tokenizer_pre("qwen2")
    made.add_token_list(tokens)
    made.add_token_types(types)
    made.add_token_merges([" ".join(merge) for merge in source["model"]["merges"]])
    made.add_eos_token_id(ids[settings["eos_token"]])
    made.add_pad_token_id(ids[settings["pad_token"]])
    made.add_add_bos_token(False)
    made.add_chat_template(settings["chat_template"])
    finish(made)


def make(data, out):
    out.mkdir(parents=True, exist_ok=True)
    write_blocks(out / "blocks.gguf")
    write_llama(out / "llama3-v5.gguf", data / "llama3-v5", ["BF16"])
    write_llama(out / "mixed.gguf", data / "llama3-v5", ["Q8_0", "Q4_0", "Q5_1", "Q4_1", "Q5_0", "IQ4_NL"])
    write_spm(out / "spm.gguf", out / "spm.json")
    write_bpe(out / "bpe.gguf")


def grids():
    """The grids as the package holds them, 16 bits for an entry."""
    types = [gguf.quants._type_traits[Type[name]] for name in GRIDS]
    return b"".join(bytes.fromhex(made.grid_hex.decode()) for made in types)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--check", action="store_true", help="compare with what is there instead of writing it")
    arguments = parser.parse_args()
    committed = arguments.directory / "gguf"
    if not arguments.check:
        make(arguments.directory, committed)
        GRIDS_FILE.write_bytes(grids())
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        make(arguments.directory, Path(scratch))
        differing = [path.name for path in sorted(Path(scratch).iterdir())
                     if not (committed / path.name).exists() or path.read_bytes() != (committed / path.name).read_bytes()]
    differing += ["../../../checkpoint/src/grids.bin"] * (GRIDS_FILE.read_bytes() != grids())
    print("\n".join(f"gguf/{name}: differs" for name in differing) or "oracle: the GGUF files agree with the gguf package")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
