"""Tiny quantized checkpoints in every safetensors layout that the engine reads, and the weights they stand for.

    python oracle/quantized.py crates/model/tests/data/quantized            writes them
    python oracle/quantized.py --check crates/model/tests/data/quantized    makes them again and compares

Codes, zero points and scales are drawn from a seed; numpy packs them as AutoGPTQ, GPTQModel, AutoAWQ and
compressed-tensors lay them out, and computes what they mean in float32. compressed-tensors' own code is the judge where it
can be: it must unpack its two formats, and convert the AWQ checkpoint, to the same numbers. Beside each checkpoint:

    expected.json   SHA-256 of every quantized matrix as float32, little-endian, row-major
"""

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
from pathlib import Path

import compressed_tensors
import numpy
import safetensors.torch
import torch
from compressed_tensors.compressors.mx_utils import decompress_mx_scale
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter

HIDDEN, INTERMEDIATE, VOCAB = 64, 96, 32
MODULES = {
    "self_attn.q_proj": (64, HIDDEN),
    "self_attn.k_proj": (32, HIDDEN),
    "self_attn.v_proj": (32, HIDDEN),
    "self_attn.o_proj": (HIDDEN, 64),
    "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
    "mlp.up_proj": (INTERMEDIATE, HIDDEN),
    "mlp.down_proj": (HIDDEN, INTERMEDIATE),
}
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE, "max_position_embeddings": 128, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True,
    "vocab_size": VOCAB, "torch_dtype": "float16",
}
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def words(codes, order=range(8), bits=4):
    """Codes of the last axis to an int32, as many as `order` has, code `order[i]` in the bits from `bits * i` on."""
    codes = codes.reshape(*codes.shape[:-1], -1, len(order)).astype(numpy.uint32)
    packed = numpy.zeros(codes.shape[:-1], numpy.uint32)
    for place, index in enumerate(order):
        packed |= codes[..., index] << numpy.uint32(bits * place)
    return packed.view(numpy.int32)


def transposed(packed):
    return numpy.ascontiguousarray(packed.T)


class Draw:
    """Codes `[out, in]`, scales and zero points `[out, groups]` of one module."""

    def __init__(self, rng, shape, bits, groups, symmetric):
        self.shape, self.bits, self.groups = shape, bits, groups
        middle = 2 ** (bits - 1)
        self.codes = rng.integers(0, 2 * middle, shape)
        spread = 0.6 / shape[1] ** 0.5 / middle
        self.scales = (spread * (1 + 3 * rng.random((shape[0], groups)))).astype(numpy.float16)
        zeros = rng.integers(1, 2 * middle, (shape[0], groups))
        self.zeros = numpy.full_like(zeros, middle) if symmetric else zeros
        self.middle = middle
        self.group_of = numpy.arange(shape[1]) // (shape[1] // groups)

    def meaning(self):
        steps = (self.codes - self.zeros[:, self.group_of]).astype(numpy.float32)
        return steps * self.scales.astype(numpy.float32)[:, self.group_of]


def gptq(rng, shape, symmetric, offset, ordered=False, bits=4):
    draw = Draw(rng, shape, bits, shape[1] // 32, symmetric)
    order = range(32 // bits)
    if ordered:
        draw.group_of = rng.permutation(draw.group_of)
    return draw, {
        "qweight": transposed(words(draw.codes, order, bits)),
        "qzeros": words(transposed(draw.zeros - offset), order, bits),
        "scales": transposed(draw.scales),
        "g_idx": draw.group_of.astype(numpy.int32),
    }


def awq(rng, shape):
    draw = Draw(rng, shape, 4, shape[1] // 32, False)
    return draw, {
        "qweight": words(transposed(draw.codes), AWQ_ORDER),
        "qzeros": words(transposed(draw.zeros), AWQ_ORDER),
        "scales": transposed(draw.scales),
    }


def packed(rng, shape, groups, symmetric, bits=4):
    draw = Draw(rng, shape, bits, groups, symmetric)
    order = range(32 // bits)
    tensors = {
        "weight_packed": words(draw.codes, order, bits),
        "weight_scale": draw.scales,
        "weight_shape": numpy.array(shape, numpy.int64),
    }
    if not symmetric:
        tensors["weight_zero_point"] = transposed(words(transposed(draw.zeros), order, bits))
    return draw, tensors


def int8(rng, shape, per_tensor, symmetric):
    draw = Draw(rng, shape, 8, 1, symmetric)
    if per_tensor:
        draw.scales[:], draw.zeros[:] = draw.scales[0], draw.zeros[0]
    rows = slice(0, 1) if per_tensor else slice(None)
    scales = draw.scales[rows].astype(numpy.float32)
    tensors = {
        "weight": (draw.codes - 128).astype(numpy.int8),
        "weight_scale": scales[0] if per_tensor else scales,
    }
    if not symmetric:
        zeros = (draw.zeros[rows] - 128).astype(numpy.int8)
        tensors["weight_zero_point"] = zeros[0] if per_tensor else zeros
    return draw, tensors


class Fp8Draw:
    """Numbers in e4m3 `[out, in]` and a scale for each block of them."""

    def __init__(self, rng, shape, block, dtype):
        outputs, inputs = -(-shape[0] // block[0]), -(-shape[1] // block[1])
        codes = rng.integers(0, 256, shape).astype(numpy.uint8)
        codes[(codes & 0x7F) == 0x7F] = 1  # no NaN; the smallest number instead
        self.codes = torch.from_numpy(codes).view(torch.float8_e4m3fn)
        scales = 0.002 * (1 + 3 * rng.random((outputs, inputs)))
        self.scales = torch.from_numpy(scales).to(dtype)
        wide = self.scales.float().repeat_interleave(block[0], 0)[: shape[0]]
        self.wide = wide.repeat_interleave(block[1], 1)[:, : shape[1]]

    def meaning(self):
        return (self.codes.float() * self.wide).numpy()


def fp8(rng, shape, block, name, dtype):
    draw = Fp8Draw(rng, shape, block or (1, shape[1]), dtype)
    return draw, {"weight": draw.codes, name: draw.scales}


class MxFp8Draw(Fp8Draw):
    """The same with a power of two for 32 inputs."""

    def __init__(self, rng, shape):
        super().__init__(rng, shape, (1, 32), torch.float32)
        self.scales = torch.from_numpy(rng.integers(110, 120, (shape[0], shape[1] // 32)).astype(numpy.uint8))
        self.wide = decompress_mx_scale(self.scales).float().repeat_interleave(32, 1)


class Fp4Draw:
    """Codes of E2M1 `[out, in]`, two to a byte, and a scale for each group: e4m3 with one for all, or a power of two."""

    def __init__(self, rng, shape, group, divides=None):
        codes = rng.integers(0, 256, (shape[0], shape[1] // 2)).astype(numpy.uint8)
        self.packed, size = torch.from_numpy(codes), (shape[0], shape[1] // group)
        if group == 32:
            self.scales = torch.from_numpy(rng.integers(118, 125, size).astype(numpy.uint8))
            wide = decompress_mx_scale(self.scales).float()
        else:
            self.scales = torch.from_numpy((448 * rng.random(size)).astype(numpy.float32)).to(torch.float8_e4m3fn)
            self.scales[0, 0] = 0
            self.scale = torch.tensor(3137.7 if divides else 0.00031871)
            wide = self.scales.float() / self.scale if divides else self.scales.float() * self.scale
        self.wide = wide.repeat_interleave(group, 1)

    def meaning(self):
        codes = unpack_fp4_from_uint8(self.packed, self.packed.shape[0], 2 * self.packed.shape[1], torch.float32)
        return ((codes + 0.0) * self.wide).numpy()  # no code is a negative zero here


def nvfp4(rng, shape):
    draw = Fp4Draw(rng, shape, 16, divides=True)
    return draw, {"weight_packed": draw.packed, "weight_scale": draw.scales,
                  "weight_global_scale": draw.scale.reshape(1), "input_global_scale": torch.tensor([2.5])}


def modelopt(rng, shape):
    """FP8 in queries, NVFP4 elsewhere, and the scale of a KV cache."""
    if shape == (64, 64):
        draw = Fp8Draw(rng, shape, shape, torch.float32)
        return draw, {"weight": draw.codes, "weight_scale": draw.scales.reshape(()), "k_scale": torch.tensor(0.5)}
    draw = Fp4Draw(rng, shape, 16)
    return draw, {"weight": draw.packed, "weight_scale": draw.scales, "weight_scale_2": draw.scale,
                  "input_scale": torch.tensor(0.01)}


def mxfp4(rng, shape):
    draw = Fp4Draw(rng, shape, 32)
    return draw, {"weight_packed": draw.packed, "weight_scale": draw.scales}


def mxfp8(rng, shape):
    draw = MxFp8Draw(rng, shape)
    return draw, {"weight": draw.codes, "weight_scale": draw.scales}


def fp8_static(rng, shape):
    draw = Fp8Draw(rng, shape, shape, torch.bfloat16)
    return draw, {"weight": draw.codes, "weight_scale_inv": draw.scales.reshape(()), "activation_scale": torch.tensor(2.0)}


def gptq_config(**fields):
    return {"quant_method": "gptq", "bits": 4, "group_size": 32, "damp_percent": 0.1, **fields}


def compressed_config(form, weights, activations=None):
    return {
        "quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed",
        "global_compression_ratio": None, "kv_cache_scheme": None, "ignore": ["lm_head", "re:.*router.*"],
        "config_groups": {"group_0": {
            "targets": ["Linear"], "output_activations": None, "input_activations": activations,
            "weights": {"num_bits": 4, "type": "int", "dynamic": False, "observer": "minmax", "group_size": None,
                        "block_structure": None, "actorder": None, **weights},
        }},
    }


DYNAMIC = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True, "observer": None}

CASES = {
    "gptq-sym": (gptq_config(sym=True, desc_act=False), lambda rng, shape: gptq(rng, shape, True, 1)),
    "gptq-asym-desc-act": (
        gptq_config(sym=False, desc_act=True, checkpoint_format="gptq"),
        lambda rng, shape: gptq(rng, shape, False, 1, ordered=True)),
    "gptq-v2": (
        gptq_config(sym=False, desc_act=False, checkpoint_format="gptq_v2", pack_dtype="int32"),
        lambda rng, shape: gptq(rng, shape, False, 0)),
    "gptq-8-bits-desc-act": (
        gptq_config(bits=8, sym=False, desc_act=True),
        lambda rng, shape: gptq(rng, shape, False, 1, ordered=True, bits=8)),
    # Four bits in two of the matrices.
    "auto-round-8-bits": (
        {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "bits": 8, "group_size": 32, "sym": True,
         "data_type": "int", "extra_config": {"model.layers.0.self_attn.k_proj": {"bits": 4}, "lm_head": {"bits": 16}}},
        lambda rng, shape: gptq(rng, shape, True, 1, bits=4 if shape[0] == 32 else 8)),
    "auto-round-awq": (
        {"quant_method": "auto-round", "packing_format": "auto_round:auto_awq", "bits": 4, "group_size": 32, "sym": False},
        awq),
    "awq": (
        {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True,
         "modules_to_not_convert": None},
        awq),
    "w4a16-group": (
        compressed_config("pack-quantized", {"symmetric": True, "strategy": "group", "group_size": 32}),
        lambda rng, shape: packed(rng, shape, shape[1] // 32, True)),
    "w4a16-channel-asym": (
        compressed_config("pack-quantized", {"symmetric": False, "strategy": "channel"}),
        lambda rng, shape: packed(rng, shape, 1, False)),
    "w8a16-group": (
        compressed_config("pack-quantized", {"num_bits": 8, "symmetric": True, "strategy": "group", "group_size": 32}),
        lambda rng, shape: packed(rng, shape, shape[1] // 32, True, 8)),
    "w8a16-channel-asym": (
        compressed_config("pack-quantized", {"num_bits": 8, "symmetric": False, "strategy": "channel"}),
        lambda rng, shape: packed(rng, shape, 1, False, 8)),
    "w8a8-channel": (
        compressed_config("int-quantized", {"num_bits": 8, "symmetric": True, "strategy": "channel"}, DYNAMIC),
        lambda rng, shape: int8(rng, shape, False, True)),
    "w8a8-tensor-asym": (
        compressed_config("int-quantized", {"num_bits": 8, "symmetric": False, "strategy": "tensor"}, DYNAMIC),
        lambda rng, shape: int8(rng, shape, True, False)),
    "nvfp4": (
        compressed_config("nvfp4-pack-quantized", {"type": "float", "strategy": "tensor_group", "group_size": 16},
                          {"num_bits": 4, "type": "float", "strategy": "tensor_group", "dynamic": "local"}),
        nvfp4),
    "nvfp4-modelopt": (
        {"producer": {"name": "modelopt"},
         "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16,
                          "exclude_modules": ["lm_head"]}},
        modelopt),
    "mxfp4": (
        compressed_config("mxfp4-pack-quantized", {"type": "float", "strategy": "group", "group_size": 32}), mxfp4),
    "mxfp8": (
        compressed_config("mxfp8-quantized", {"type": "float", "num_bits": 8, "strategy": "group", "group_size": 32}),
        mxfp8),
    "fp8-tensor": (
        {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}, fp8_static),
    # Blocks that do not divide the matrices.
    "fp8-blocks": (
        {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [40, 48],
         "modules_to_not_convert": ["lm_head"]},
        lambda rng, shape: fp8(rng, shape, (40, 48), "weight_scale_inv", torch.float32)),
    "fp8-channel": (
        compressed_config("float-quantized", {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"},
                          {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token", "dynamic": True}),
        lambda rng, shape: fp8(rng, shape, None, "weight_scale", torch.bfloat16)),
    "fp8-compressed-blocks": (
        compressed_config("float-quantized", {"num_bits": 8, "type": "float", "strategy": "block",
                                              "block_structure": [32, 64]}),
        lambda rng, shape: fp8(rng, shape, (32, 64), "weight_scale", torch.bfloat16)),
}


def judge(name, tensors, draw):
    """What compressed-tensors makes of a module's tensors, where it can read them."""
    if isinstance(draw, (Fp8Draw, Fp4Draw)):
        return  # torch and compressed-tensors have said what its numbers are
    tensor = {key: torch.from_numpy(numpy.ascontiguousarray(value)) for key, value in tensors.items()}
    zero = None
    if name == "auto-round-awq":
        return  # AWQ
    if name == "awq":
        converter = AutoAWQConverter(group_size=32)
        tensor = converter.process({f"m.{key}": value for key, value in tensor.items()})
        tensor = {key.removeprefix("m."): value for key, value in tensor.items()}
    if "weight_packed" in tensor:
        codes = unpack_from_int32(tensor["weight_packed"], draw.bits, torch.Size(tensor["weight_shape"].tolist()))
        if "weight_zero_point" in tensor:
            zero_shape = torch.Size([draw.shape[0], draw.groups])
            zero = unpack_from_int32(tensor["weight_zero_point"], draw.bits, zero_shape, packed_dim=0)
    elif "weight" in tensor:
        codes, zero = tensor["weight"], tensor.get("weight_zero_point")
    else:
        return  # GPTQ
    codes = codes.to(torch.float32).reshape(codes.shape[0], draw.groups, -1)
    scales = tensor["weight_scale"].to(torch.float32).reshape(-1, draw.groups, 1)
    if zero is not None:
        codes = codes - zero.to(torch.float32).reshape(-1, draw.groups, 1)
    found = (codes * scales).reshape(draw.shape).numpy()
    assert (found.view(numpy.int32) == draw.meaning().view(numpy.int32)).all(), f"{name}: the judge disagrees"


def make_case(directory, name):
    config, make_module = CASES[name]
    rng = numpy.random.default_rng(int.from_bytes(name.encode(), "little") % 2**32)
    tensors = {
        "model.embed_tokens.weight": rng.standard_normal((VOCAB, HIDDEN)).astype(numpy.float16),
        "model.norm.weight": (1 + 0.2 * rng.standard_normal(HIDDEN)).astype(numpy.float16),
    }
    expected = {}
    prefix = "model.layers.0"
    for norm in ["input_layernorm", "post_attention_layernorm"]:
        tensors[f"{prefix}.{norm}.weight"] = (1 + 0.2 * rng.standard_normal(HIDDEN)).astype(numpy.float16)
    for module, shape in MODULES.items():
        draw, parts = make_module(rng, shape)
        judge(name, parts, draw)
        tensors.update({f"{prefix}.{module}.{part}": value for part, value in parts.items()})
        digest = hashlib.sha256(draw.meaning().astype("<f4").tobytes()).hexdigest()
        expected[f"{prefix}.{module}.weight"] = {"shape": list(shape), "sha256": digest}
    directory.mkdir(parents=True)
    as_torch = lambda value: value if torch.is_tensor(value) else torch.from_numpy(numpy.ascontiguousarray(value))
    tensors = {name: as_torch(value).contiguous() for name, value in tensors.items()}
    safetensors.torch.save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    fields = CONFIG if "producer" in config else {**CONFIG, "quantization_config": config}
    if "producer" in config:
        (directory / "hf_quant_config.json").write_text(json.dumps(config, indent=1) + "\n")
    (directory / "config.json").write_text(json.dumps(fields, indent=1) + "\n")
    (directory / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--check", action="store_true", help="compare with what is there instead of writing it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch)
        for name in CASES:
            make_case(fresh / name, name)
        if not arguments.check:
            shutil.rmtree(arguments.directory, ignore_errors=True)
            shutil.copytree(fresh, arguments.directory)
            return 0
        files = {path.relative_to(tree) for tree in (fresh, arguments.directory) for path in tree.glob("*/*")}
        found = sorted(str(file) for file in files
                       if not (fresh / file).exists() or not (arguments.directory / file).exists()
                       or (fresh / file).read_bytes() != (arguments.directory / file).read_bytes())
    print("\n".join(f"{file}: differs" for file in found)
          or f"oracle: {len(CASES)} quantized checkpoints agree with compressed-tensors {compressed_tensors.__version__}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
