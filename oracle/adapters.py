"""Tiny adapters as peft writes them, and the logits that peft gives through them.

    python oracle/adapters.py crates/model/tests/data/adapters            writes them
    python oracle/adapters.py --check crates/model/tests/data/adapters    makes them again and compares; exit status 1
                                                                          when they differ

Each case is a directory that peft's save_pretrained wrote, its weights random from a fixed seed, and beside it:

    adapters.json   the model (a case of oracle/make.py), and prompts as token ids, of which all rows count
    logits.f32      their logits, float32, little-endian, [rows, vocab_size]

The models are among those that are kept in bfloat16, and everything is computed in float32, so that an engine can be
held to float32's own error. As in oracle/make.py, prompts are drawn until every row has a clear winner.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy
import peft
import torch
import transformers

from make import differences_in, draw_prompt

LENGTHS = [1, 24]
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

CASES = {
    # Everything that there is, in float32; alpha over rank.
    "all": {"target": "llama3", "r": 8, "lora_alpha": 16, "target_modules": ALL},
    # Ranks and scales of their own by names and ends of names, in bfloat16; alpha over the root of the rank; biases.
    "patterns": {"target": "qwen2", "stored": torch.bfloat16, "r": 5, "lora_alpha": 3, "use_rslora": True,
                 "target_modules": ["q_proj", "k_proj", "v_proj", "down_proj"],
                 "rank_pattern": {"k_proj": 12, "layers.1.mlp.down_proj": 1}, "alpha_pattern": {"v_proj": 9}},
    # Fused projections, in float16.
    "fused": {"target": "phi3", "stored": torch.float16, "r": 3, "lora_alpha": 6,
              "target_modules": ["qkv_proj", "gate_up_proj", "o_proj"]},
    # One layer alone, between norms on both sides; a rank of more than a step of a product.
    "layer": {"target": "gemma2", "stored": torch.bfloat16, "r": 40, "lora_alpha": 20,
              "target_modules": ["q_proj", "o_proj", "up_proj"], "layers_to_transform": [1]},
    # Modules by a regular expression.
    "expression": {"target": "olmo2", "r": 2, "lora_alpha": 2, "target_modules": r".*\.1\..*(v_proj|gate_proj)"},
    # Attention beside experts.
    "beside-experts": {"target": "mixtral", "stored": torch.bfloat16, "r": 4, "lora_alpha": 4,
                       "target_modules": ["q_proj", "v_proj"]},
}


def through(target, spec, rng):
    """The model through a random adapter."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        target, dtype=torch.float32, attn_implementation="eager").eval()
    fields = {name: value for name, value in spec.items() if name not in ("target", "stored")}
    with torch.no_grad():
        model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **fields)).eval()
        for name, weights in sorted(model.named_parameters()):
            if "lora_" in name:
                size = 1.0 if "lora_A" in name else 0.5
                values = rng.standard_normal(weights.shape, dtype=numpy.float32)
                values *= numpy.float32(size / weights.shape[1] ** 0.5)
                stored = torch.from_numpy(values).to(spec.get("stored", torch.float32))
                weights.copy_(stored.to(torch.float32))
    return model


def make_case(directory, name, spec, targets):
    rng = numpy.random.default_rng(int.from_bytes(name.encode(), "little") % 2**32)
    model = through(targets / spec["target"], spec, rng)
    prompts, recorded = [], []
    for length in LENGTHS:
        tokens, rows = draw_prompt(model, rng, length, length)
        prompts.append(tokens)
        recorded.append(rows)
    config = model.peft_config["default"]
    config.base_model_name_or_path = f"twostroke/{spec['target']}"
    if not isinstance(config.target_modules, str):
        config.target_modules = sorted(config.target_modules)  # a set, in an order of chance
    for parameter in model.parameters():
        parameter.data = parameter.data.to(spec.get("stored", torch.float32))
    model.save_pretrained(directory, save_embedding_layers=False)
    (directory / "README.md").unlink(missing_ok=True)
    about = {"target": spec["target"], "prompts": prompts}
    (directory / "adapters.json").write_text(json.dumps(about) + "\n")
    numpy.concatenate(recorded).astype("<f4").tofile(directory / "logits.f32")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--check", action="store_true", help="compare with what is there instead of writing it")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch)
        for name, spec in CASES.items():
            torch.manual_seed(0)
            make_case(fresh / name, name, spec, arguments.directory.parent)
        if arguments.check:
            names = {p.relative_to(tree) for tree in (arguments.directory, fresh) for p in tree.glob("*/*")}
            found = list(differences_in(sorted(names), arguments.directory, fresh))
            print("\n".join(found) or f"oracle: {len(CASES)} adapters agree with peft {peft.__version__}")
            return 1 if found else 0
        shutil.rmtree(arguments.directory, ignore_errors=True)
        shutil.copytree(fresh, arguments.directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
