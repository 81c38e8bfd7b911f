"""What `twostroke quantize` writes, judged by the packages whose formats it writes.

    python oracle/exported.py TWOSTROKE MODEL...        each MODEL a directory in the layout of transformers

Of every model an int8 and an int4 checkpoint are written and each matrix is decompressed by `compressed_tensors`, with the
settings that it reads from `config.json`. The result must be, bit by bit, what the definition gives: of int8, computed here
from the original, scales too; of int4, scale times code, scales being integers up to 15 times one number of 20 bits, near the
original. Of models with a tokenizer, GGUF files are written too; `gguf` must read them, and its own quantizers must give the
same bytes. Everything else must be as it was.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy
import safetensors.torch
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig
from compressed_tensors.utils.match import is_match


def tensors(directory):
    found = {}
    for path in sorted(directory.glob("*.safetensors")):
        found.update(safetensors.torch.load_file(path))
    return found


def written(program, model, output, *arguments):
    command = [program, "quantize", "-m", model, "-o", output, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, f"{model.name} {arguments}: {ran.stderr}"
    return output


def same(found, wanted):
    """The same bits, in tensors of one type and shape."""
    return found.dtype == wanted.dtype and found.shape == wanted.shape and torch.equal(
        found.contiguous().view(torch.uint8), wanted.contiguous().view(torch.uint8))


def int8_row(row):
    """Scales of the groups of 128 and codes of a row. A scale is a number of 17 bits times an integer: as few as hold the
    group's largest weight in 127 codes, and at most 127, or fewer where sums over the row would not fit 32 bits."""
    groups = numpy.split(row, range(128, len(row), 128))
    largest = numpy.array([numpy.abs(group).max() for group in groups])
    if largest.max() < 2.0**-100:
        return numpy.zeros(len(groups), numpy.float32), numpy.zeros(len(row), numpy.int8)
    steps, seven_bits = 127, numpy.float32(127)
    while True:
        scale = largest.max() / seven_bits / numpy.float32(steps)
        scale = ((scale.view(numpy.uint32) + numpy.uint32(127)) & ~numpy.uint32(127)).view(numpy.float32)
        ratios = numpy.ceil(largest / (seven_bits * scale)).clip(1, steps)
        scales = ratios * scale
        codes = [numpy.rint(group * (numpy.float32(1) / of_group)).clip(-127, 127) for group, of_group in zip(groups, scales)]
        bound = int(sum(numpy.abs(of_group).sum(dtype=numpy.int64) * int(ratio) for of_group, ratio in zip(codes, ratios)))
        if 127 * bound < 2**31:
            return scales, numpy.concatenate(codes).astype(numpy.int8)
        steps = min(max(int(steps * (2**31 - 1) / (127 * bound)), 1), steps - 1)


def int8_definition(weight):
    """Weights, and scales by groups of 64."""
    rows = [int8_row(row) for row in weight.to(torch.float32).numpy()]
    of_weights = [numpy.repeat(scales, 128)[:len(codes)] * codes.astype(numpy.float32) for scales, codes in rows]
    width = weight.shape[1]
    of_groups = [numpy.repeat(scales, 2)[:width // 64] for scales, _ in rows]
    return torch.from_numpy(numpy.stack(of_weights)), torch.from_numpy(numpy.stack(of_groups))


def check_int4(name, weight, scales, found):
    error = (found - weight.to(torch.float32)).norm() / weight.to(torch.float32).norm()
    assert error < 0.15, f"{name}: off by {error}"
    for row in scales.numpy().astype(numpy.float64):
        if not row.any():
            continue
        steps = [largest for largest in range(1, 16)
                 if numpy.equal(numpy.mod(row / (numpy.abs(row).max() / largest), 1), 0).all()]
        assert steps, f"{name}: scales of a row are no multiples of one: {row}"


def check_compressed(program, model, scratch, weights):
    original = tensors(model)
    directory = written(program, model, scratch / f"{model.name}-{weights}", "--weights", weights)
    config = json.loads((directory / "config.json").read_text())
    fields = QuantizationConfig.model_validate(config.pop("quantization_config"))
    assert config == json.loads((model / "config.json").read_text()), "the rest of config.json is as it was"
    scheme = fields.config_groups["group_0"]
    compressor = BaseCompressor.get_value_from_registry(fields.format)
    parts = {}
    for name, tensor in tensors(directory).items():
        module, part = name.rsplit(".", 1)
        parts.setdefault(module, {})[part] = tensor
    count = 0
    for module, state in parts.items():
        if "weight_scale" not in state:
            for part, tensor in state.items():
                name = f"{module}.{part}"
                assert name not in original or same(tensor, original[name]), f"{name} is not as it was"
            continue
        assert module not in fields.ignore, module
        state = {part: tensor for part, tensor in state.items() if part != "bias"}
        found = compressor.decompress(state, scheme)["weight"].to(torch.float32)
        weight = original_of(module, original)
        if weights == "int8":
            weights_wanted, scales_wanted = int8_definition(weight)
            assert same(found, weights_wanted), f"{module}: other weights than the definition's"
            assert same(state["weight_scale"], scales_wanted), f"{module}: other scales than the definition's"
        else:
            check_int4(module, weight, state["weight_scale"], found)
        count += 1
    linear = [module for module, state in parts.items()
              if "weight" in state and state["weight"].ndim == 2 and "weight_scale" not in state and "embed" not in module]
    unnamed = [module for module in linear
               if not any(is_match(module, torch.nn.Linear(1, 1), entry) for entry in fields.ignore)]
    assert not unnamed, f"not quantized and not in the list: {unnamed}"
    return count


def original_of(module, original):
    """The weights of a module, which may have been a part of a stack of experts."""
    if f"{module}.weight" in original:
        return original[f"{module}.weight"]
    module = module.replace("block_sparse_moe.", "mlp.")
    prefix, index, part = module.rsplit(".", 2)
    stack = "down_proj" if part in ("down_proj", "w2") else "gate_up_proj"
    expert = original[f"{prefix}.{stack}"][int(index)]
    if stack == "down_proj":
        return expert
    gate, up = expert.chunk(2)
    return gate if part in ("gate_proj", "w1") else up


def interleaved(weight, heads):
    """Rows 0, half, 1, half + 1, ... of each head."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def check_gguf(program, model, scratch, weights):
    original, config = tensors(model), json.loads((model / "config.json").read_text())
    file = written(program, model, scratch / f"{model.name}-{weights}.gguf", "--weights", weights, "--format", "gguf")
    reader = gguf.GGUFReader(file)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    architecture = fields["general.architecture"]
    assert fields[f"{architecture}.block_count"] == config["num_hidden_layers"]
    assert len(fields["tokenizer.ggml.tokens"]) == config["vocab_size"]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA if architecture == "llama" else
                                     getattr(gguf.MODEL_ARCH, architecture.upper()), config["num_hidden_layers"])
    found = {tensor.name: tensor for tensor in reader.tensors}
    for name, weight in original.items():
        tensor = found.pop(names.get_name(name, try_suffixes=(".weight", ".bias")))
        weight = weight.to(torch.float32).numpy()
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
        if architecture == "llama" and heads:
            weight = interleaved(weight, config[heads])
        if tensor.tensor_type == gguf.GGMLQuantizationType.F32:
            wanted = weight
        else:
            wanted = gguf.quantize(weight, tensor.tensor_type)
        assert numpy.array_equal(tensor.data.view(numpy.uint8).reshape(-1), wanted.view(numpy.uint8).reshape(-1)), \
            f"{model.name}: {name} as {tensor.tensor_type.name} has other bytes"
    assert set(found) <= {"rope_freqs.weight"}, found.keys()
    return len(original)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__.split("\n\n")[1])
    program, models = sys.argv[1], [Path(model) for model in sys.argv[2:]]
    compressed = files = 0
    with tempfile.TemporaryDirectory() as scratch:
        for model in models:
            for weights in ["int8", "int4"]:
                compressed += check_compressed(program, model, Path(scratch), weights)
            if (model / "tokenizer.json").exists():
                for weights in ["bf16", "int8", "int4"]:
                    files += check_gguf(program, model, Path(scratch), weights)
    print(f"oracle: {compressed} matrices agree with compressed-tensors, {files} tensors with gguf")


if __name__ == "__main__":
    main()
