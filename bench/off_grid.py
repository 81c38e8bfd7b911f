#!/usr/bin/env python3
"""Moves the weights of a quantized GGUF file off its grid: each by chance, evenly within the step that it was rounded to.

    off_grid.py FILE.gguf FLOAT32.gguf RESULT.gguf      by a Python with gguf and numpy: `bench/quality.py --off-grid` does

FLOAT32 has the weights of FILE as float32 (`llama-quantize --allow-requantize FILE FLOAT32 F32`). What is quantized to the type that it
had before is on the grid already and loses nothing, so a file says little about its own types. RESULT rounds as the weights did that the
file was made from, whatever they were. The same file gives the same result.
"""

import shutil
import sys

import gguf
import numpy

SEED = 1
# Bytes of a block of 32 that begins with its step.
BLOCKS = {"Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q8_0": 34}


def half(data):
    return data.copy().view(numpy.float16).astype(numpy.float32)


def steps(tensor):
    """The step of each weight; `None` where the file has numbers."""
    kind, data = tensor.tensor_type.name, tensor.data.reshape(-1)
    if kind in ("F32", "F16", "BF16"):
        return None
    if kind in BLOCKS:
        each, width = half(data.reshape(-1, BLOCKS[kind])[:, :2]), 32
    elif kind == "Q4_K":
        blocks = data.reshape(-1, 144)
        packed = blocks[:, 4:16]  # eight scales of six bits, then minima
        scales = numpy.concatenate([packed[:, :4] & 63, packed[:, 8:] & 15 | packed[:, :4] >> 6 << 4], axis=1)
        each, width = half(blocks[:, :2]) * scales, 32
    elif kind == "Q6_K":
        blocks = data.reshape(-1, 210)
        each, width = half(blocks[:, 208:].reshape(-1, 2)) * blocks[:, 192:208].view(numpy.int8), 16
    else:
        sys.exit(f"{tensor.name} is {kind}; {', '.join(BLOCKS)}, Q4_K and Q6_K are known")
    return numpy.repeat(numpy.abs(each).reshape(-1), width)


def main():
    stored, exact, result = sys.argv[1:]
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(stored).tensors}
    shutil.copyfile(exact, result)
    random = numpy.random.default_rng(SEED)
    for tensor in gguf.GGUFReader(result, "r+").tensors:
        step = steps(stored[tensor.name])
        if step is not None:
            weights = tensor.data.reshape(-1)
            weights += (random.random(weights.size, dtype=numpy.float32) - numpy.float32(0.5)) * step


if __name__ == "__main__":
    main()
