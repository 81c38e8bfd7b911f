"""Medusa heads for Lantern: four drafts from one hidden state.

Head i is `x + silu(W x + b)` on the state that the target's own output head reads,
and the target's head after it (Cai et al., 2024).  It drafts the token i + 2 places
on, knowing nothing of those between.  The heads are trained on text that Lantern
wrote, towards the chances that Lantern itself gave there.

The exported folder has the layout that vLLM reads: `blocks.{head}.layers.0.weight` and
`.bias`, and `original_lm_head`, which says that the target's output head serves all.

    python speculators_data.py
    python medusa.py --run runs/medusa --out ../models/lantern-medusa
"""

import argparse
import json
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

import speculators

HEADS = 4


class Block(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(hidden, hidden)])
        # Starts as the target's own hidden state.
        nn.init.zeros_(self.layers[0].weight)
        nn.init.zeros_(self.layers[0].bias)

    def forward(self, x):
        for layer in self.layers:
            x = x + F.silu(layer(x))
        return x


class Medusa(nn.Module):
    def __init__(self, hidden, heads=HEADS):
        super().__init__()
        self.blocks = nn.ModuleList(Block(hidden) for _ in range(heads))

    def forward(self, hidden):
        return [block(hidden) for block in self.blocks]


def learning(medusa, target):
    """The loss of one batch.  What a later head says counts where the earlier ones hold."""
    def learn(batch, sharp):
        ids, start, last = batch
        with torch.autocast("cpu", torch.bfloat16):
            _, hidden = speculators.streams(target, ids)
        row, at = speculators.drafted_rows(ids, start, last, 0).nonzero(as_tuple=True)
        # Row t + 1 of the target is what head 0 should say at row t, row t + 2 what head 1 should, and so on.
        wanted = speculators.drafted_rows(ids, start, last, -1)
        offset = torch.zeros(ids.shape, dtype=torch.long)
        offset[wanted] = torch.arange(int(wanted.sum()))
        teacher = speculators.chances(target, hidden[wanted])
        loss, weight, overlaps = 0.0, torch.ones(len(row)), []
        for head, block in enumerate(medusa.blocks):
            known = at + 2 + head <= last[row]
            row, at, weight = row[known], at[known], weight[known]
            one, overlap = speculators.Lesson.apply(
                block(hidden[row, at]), target.embed_tokens.weight, teacher[offset[row, at] + 1 + head], weight, sharp)
            loss = loss + one
            weight = weight * overlap
            overlaps.append(overlap.mean())
        return loss, torch.stack(overlaps)
    return learn


def config(target):
    return {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": target["hidden_size"],
        "vocab_size": target["vocab_size"],
        "truncated_vocab_size": target["vocab_size"],
        "num_heads": HEADS,
        "num_hidden_layers": 1,
        "medusa_fc_bias": True,
        "original_lm_head": True,
        "torch_dtype": "bfloat16",
    }


def load(folder):
    """Exported heads, in float32."""
    folder = pathlib.Path(folder)
    told = json.loads((folder / "config.json").read_text())
    medusa = Medusa(told["hidden_size"], told["num_heads"])
    tensors = load_file(str(folder / "model.safetensors"))
    medusa.load_state_dict({name: value.float() for name, value in tensors.items()})
    return medusa.requires_grad_(False).eval()


def export(medusa, target_config, out):
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.to(torch.bfloat16).contiguous() for name, value in medusa.state_dict().items()}
    save_file(tensors, str(out / "model.safetensors"), metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    (out / "config.json").write_text(json.dumps(config(target_config), indent=2) + "\n")
    return tensors


def check(tensors, target, out):
    """Largest difference between the drafts of the exported files and those of the formula,
    written down once more on the tensors that were to be exported."""
    ids = torch.randint(0, target.shape.vocab, (2, 300), generator=torch.Generator().manual_seed(0))
    _, hidden = speculators.streams(target, ids)
    medusa, worst, largest = load(out), 0.0, 0.0
    for head, state in enumerate(medusa(hidden)):
        weight, bias = (tensors[f"blocks.{head}.layers.0.{name}"].float() for name in ("weight", "bias"))
        inner = hidden @ weight.mT + bias
        expected = target.logits(hidden + inner * torch.sigmoid(inner))
        worst = max(worst, (target.logits(state) - expected).abs().max().item())
        largest = max(largest, expected.abs().max().item())
    return worst, largest


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", default="runs/medusa", help="folder for the checkpoint")
    parser.add_argument("--out", required=True)
    parser.add_argument("--target", default=speculators.TARGET)
    parser.add_argument("--text", default=speculators.TEXT)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=4096, help="ids in a step at most, padding included")
    parser.add_argument("--lr", type=float, default=0.003)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    target, target_config = speculators.load_target(args.target)
    medusa = Medusa(target.shape.hidden)
    adam = torch.optim.Adam(medusa.parameters(), lr=args.lr, betas=(0.9, 0.98))
    run = speculators.Run(args.run, medusa, [adam], args.steps)
    batches = speculators.Batches(speculators.load_text(args.text), args.tokens, args.seed)
    run.train(batches, learning(medusa, target))
    tensors = export(medusa, target_config, args.out)
    worst, largest = check(tensors, target, args.out)
    print(f"{sum(value.numel() for value in tensors.values())} parameters, exported logits differ by at most "
          f"{worst:.2e} (largest logit {largest:.1f})")
    assert worst < 1e-3 * largest, "the export does not compute what was trained"


if __name__ == "__main__":
    main()
