"""Write a trained checkpoint as a Hugging Face folder and check it.

The parameter names of `model.py` are those of transformers below `model.`, so
exporting is renaming and rounding to bfloat16.  The check loads the folder
with `LlamaForCausalLM` and compares its logits with ours on the same rounded
weights.

    python export.py --run runs/lantern --model lantern --out ../models/lantern
"""

import argparse
import json
import pathlib
import shutil

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from model import SHAPES, Llama


def config(shape, tokenizer):
    one = tokenizer.token_to_id
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.positions,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "rms_norm_eps": shape.norm_eps,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": one("<|end|>"),
        "pad_token_id": one("<|pad|>"),
        "pretraining_tp": 1,
        "use_cache": True,
        "torch_dtype": "bfloat16",
    }


def generation_config(tokenizer):
    one = tokenizer.token_to_id
    return {
        "do_sample": True,
        "temperature": 0.7,
        "top_p": 0.95,
        "eos_token_id": [one("<|end|>"), one("<|endoftext|>")],
        "pad_token_id": one("<|pad|>"),
        "max_new_tokens": 512,
    }


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def check(model, folder):
    """Largest difference between our logits and those of transformers."""
    from transformers import LlamaForCausalLM

    theirs = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.randint(0, model.shape.vocab, (2, 700), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours = model.logits(model(ids))
        return (ours - theirs(ids).logits).abs().max().item(), ours.abs().max().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", required=True)
    parser.add_argument("--model", choices=SHAPES, default="lantern")
    parser.add_argument("--out", required=True)
    parser.add_argument("--tokenizer-from", default="../models/lantern")
    args = parser.parse_args()

    out, source = pathlib.Path(args.out), pathlib.Path(args.tokenizer_from)
    out.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if out.resolve() != source.resolve():
            shutil.copy(source / name, out / name)
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))

    state = torch.load(pathlib.Path(args.run) / "checkpoint.pt")
    rounded = {name: value.to(torch.bfloat16).contiguous() for name, value in state["model"].items()}
    tensors = {"model." + name: value for name, value in rounded.items()}
    save_file(tensors, str(out / "model.safetensors"), metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    shape = SHAPES[args.model]
    write_json(out / "config.json", config(shape, tokenizer))
    write_json(out / "generation_config.json", generation_config(tokenizer))

    model = Llama(shape)
    model.load_state_dict({name: value.float() for name, value in rounded.items()})
    difference, largest = check(model, out)
    count = sum(p.numel() for p in model.parameters())
    print(f"step {state['step']}, {count} parameters, logits differ by at most "
          f"{difference:.2e} (largest logit {largest:.1f})")
    assert difference < 1e-3 * largest, "the export does not compute what was trained"


if __name__ == "__main__":
    main()
