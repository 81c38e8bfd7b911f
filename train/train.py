"""Train Lantern (or its draft) from scratch on generated conversations.

Every step reads two halves: short rows with all kinds of conversation, and
long rows full of facts and questions.  The long rows start at 512 tokens and
grow to 4096, since attention first has to learn to look things up at all, and
short rows teach that faster.  Weight matrices are updated with Muon, the
embedding and the norms with Adam.  The learning rate is held constant after a
short warm-up and then falls to zero over the last steps, so a run can be ended
at any time by resuming it with a smaller `--steps`.

`--further MODEL` begins with the weights of an exported model instead, and each step
reads two parts besides: conversations with tools and forms to fill in, and texts without
turns in rows of their own, since what a model does at its first token is learned there only.

The text of step N depends on the seed and N alone: an interrupted run goes on
exactly where it stopped.

    python train.py --run runs/lantern --steps 2000 --decay 600
    python train.py --run runs/tools --further ../models/lantern --steps 400 --decay 360 --muon-lr 0.005
"""

import argparse
import contextlib
import pathlib
import time

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import data
from model import SHAPES, Llama

FIRST = 300  # steps with nothing but copying and small documents of facts
STAGES = (500, 650, 850, 1000)  # first steps of the later parts of the curriculum
SEEDED = ("long", "tools", "text")  # kinds whose text has a seed of its own; all others are "short"
LAST = 1100  # from this step on, sums fill most of the short rows


# What is measured now and then: kind, length of rows, size of documents.
PROBES = (("first", 512, 512), ("short", 512, 512), ("long", 512, 150), ("long", 512, 512), ("long", 2048, 2048))
FURTHER_PROBES = (("last", 512, 512), ("tools", 1024, 1024), ("text", 256, 256))


def curriculum(step, stretch):
    """Length of the long rows, and of the documents in them.  `stretch` scales it to the run.

    Among five facts a random pick is still right now and then, among fifty it
    is not: looking up is learned in small documents, and only then at length.
    """
    at = step / stretch
    if at < STAGES[0]:
        return 512, (60, 250)
    if at < STAGES[1]:
        return 512, (250, 512)
    if at < STAGES[2]:
        return 1024, (500, 1024)
    if at < STAGES[3]:
        return 2048, (1024, 2048)
    length = (2048, 4096, 4096)[step % 3]
    return length, (length // 2, length)


def short_kind(step, stretch):
    """Which mixture of conversations the short rows hold."""
    at = step / stretch
    if at < FIRST:
        return "first"
    return "short" if at < STAGES[3] else "late" if at < LAST else "last"


def half_step(step, stretch):
    """Tokens in each half of a step: early on many small steps, later steadier ones."""
    return 2048 if step < STAGES[3] * stretch else 4096


def parts(step, stretch):
    """What a step from scratch reads: kind, rows, their length, and the size of documents in them."""
    length, sizes = curriculum(step, stretch)
    half = half_step(step, stretch)
    return [(short_kind(step, stretch), half // 512, 512, None), ("long", half // length, length, sizes)]


def further_parts(step):
    """What a step of a model reads that can do all the rest already."""
    length = (1024, 2048, 4096)[step // 2 % 3]
    others = ("last", 8, 512, None), ("long", 4096 // length, length, (length // 2, length))
    return [others[step % 2], ("tools", 12, 1024, None), ("text", 8, 256, None)]


def learning_rate(step, steps, decay, warmup=40):
    """Warm up, stay, then fall linearly to zero; as a fraction of the peak."""
    return min(1.0, (step + 1) / warmup, max(0.0, (steps - step) / decay))


def orthogonalise(matrices, rounds=5):
    """Newton-Schulz iteration towards the nearest orthogonal matrices, batched."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = (matrices / (matrices.norm(dim=(-2, -1), keepdim=True) + 1e-7)).bfloat16()
    tall = x.size(-2) > x.size(-1)
    if tall:
        x = x.mT
    for _ in range(rounds):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return (x.mT if tall else x).float()


class Muon:
    """Muon (Keller Jordan et al., 2024): momentum whose update is made orthogonal,
    so that every direction of a weight matrix learns at the same speed."""

    def __init__(self, matrices, lr, momentum=0.95, weight_decay=0.1):
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self.groups = {}
        for matrix in matrices:
            self.groups.setdefault(tuple(matrix.shape), []).append(matrix)
        self.velocity = {s: torch.zeros(len(g), *s) for s, g in self.groups.items()}

    @torch.no_grad()
    def step(self, scale):
        for shape, group in self.groups.items():
            gradient = torch.stack([p.grad for p in group])
            velocity = self.velocity[shape].mul_(self.momentum).add_(gradient)
            update = orthogonalise(gradient + self.momentum * velocity)
            size = self.lr * scale * max(1.0, shape[0] / shape[1]) ** 0.5
            for p, u in zip(group, update):
                p.mul_(1 - self.lr * scale * self.weight_decay).sub_(u, alpha=size)


class Trainer:
    def __init__(self, args):
        self.args = args
        self.run = pathlib.Path(args.run)
        self.run.mkdir(parents=True, exist_ok=True)
        self.encoder = data.Encoder(args.tokenizer)
        torch.manual_seed(args.seed)
        self.model = Llama(SHAPES[args.model])
        if args.further:
            exported = load_file(pathlib.Path(args.further) / "model.safetensors")
            self.model.load_state_dict({n.removeprefix("model."): value.float() for n, value in exported.items()})
        matrices = [p for n, p in self.model.named_parameters() if p.ndim == 2 and "embed" not in n]
        others = [p for n, p in self.model.named_parameters() if p.ndim < 2 or "embed" in n]
        if args.compile:
            for block in self.model.layers:
                block.compile(dynamic=False)  # once for each length of rows
        self.muon = Muon(matrices, lr=args.muon_lr)
        self.adam = torch.optim.Adam(others, lr=args.adam_lr, betas=(0.9, 0.98))
        self.step = 0
        self.precision = lambda: torch.autocast("cpu", torch.bfloat16) if args.bf16 else contextlib.nullcontext()

    @property
    def checkpoint(self):
        return self.run / "checkpoint.pt"

    def save(self):
        state = {"step": self.step, "model": self.model.state_dict(),
                 "muon": self.muon.velocity, "adam": self.adam.state_dict()}
        torch.save(state, self.checkpoint.with_suffix(".new"))
        self.checkpoint.with_suffix(".new").replace(self.checkpoint)

    def resume(self):
        if self.checkpoint.exists():
            state = torch.load(self.checkpoint)
            self.model.load_state_dict(state["model"])
            self.muon.velocity = state["muon"]
            self.adam.load_state_dict(state["adam"])
            self.step = state["step"]

    def weighted_losses(self, inputs, targets):
        with self.precision():
            logits = self.model.logits(self.model(inputs))
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none")

    def train_step(self):
        name = f"{self.args.seed}/{self.step}"
        read = further_parts(self.step) if self.args.further else parts(self.step, self.args.stretch)
        halves = [data.batch(self.encoder, f"{name}/{kind if kind in SEEDED else 'short'}", rows, length, kind, sizes)
                  for kind, rows, length, sizes in read]
        total = sum(weights.sum() for _, _, weights in halves)
        loss_sum = 0.0
        for inputs, targets, weights in halves:
            loss = (self.weighted_losses(inputs, targets) * weights.flatten()).sum() / total
            loss.backward()
            loss_sum += loss.item()
        torch.nn.utils.clip_grad_norm_(self.adam.param_groups[0]["params"], 1.0)
        scale = learning_rate(self.step, self.args.steps, self.args.decay)
        self.adam.param_groups[0]["lr"] = self.args.adam_lr * scale
        self.muon.step(scale)
        self.adam.step()
        self.model.zero_grad(set_to_none=True)
        self.step += 1
        return loss_sum, sum(inputs.numel() for inputs, _, _ in halves), max(length for _, _, length, _ in read)

    @torch.no_grad()
    def probe(self):
        """Loss and share of right answers, teacher-forced, on text not trained on."""
        shown = []
        for kind, length, size in PROBES + (FURTHER_PROBES if self.args.further else ()):
            inputs, targets, weights = data.batch(
                self.encoder, f"probe/{kind}/{size}", 4096 // length, length, kind, (size, size))
            with self.precision():
                logits = self.model.logits(self.model(inputs)).float()
            right = logits.argmax(-1) == targets
            losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(weights)
            plain, answers = weights == 1.0, weights > 1.0
            # An answer is right if every token of it is.
            number = (answers & (F.pad(weights, (1, 0))[:, :-1] <= 1.0)).flatten().cumsum(0)[answers.flatten()]
            wrong = torch.bincount(number, weights=(~right[answers]).float())[1:]
            shown.append(f"{kind}{size}: told {losses[plain].mean():.3f} answers {losses[answers].mean():.3f}"
                         f" right {(wrong == 0).float().mean():.3f}")
        return " | ".join(shown)

    def train(self):
        started, tokens = time.time(), 0
        mean = None
        while self.step < self.args.steps:
            loss, read, length = self.train_step()
            mean = loss if mean is None else 0.95 * mean + 0.05 * loss
            tokens += read
            if self.step % 10 == 0:
                speed = tokens / (time.time() - started)
                print(f"step {self.step} loss {mean:.4f} long {length} {speed:.0f} tokens/s", flush=True)
            if self.step % self.args.every == 0 or self.step == self.args.steps:
                print(f"  probe {self.probe()}", flush=True)
                self.save()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=SHAPES, default="lantern")
    parser.add_argument("--run", required=True, help="folder for the checkpoint")
    parser.add_argument("--further", metavar="MODEL", help="begin with this exported model, and teach it tools, forms and texts")
    parser.add_argument("--tokenizer", default="../models/lantern/tokenizer.json")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--decay", type=int, default=600, help="steps over which the rate falls to zero")
    parser.add_argument("--stretch", type=float, default=1.0, help="scales the curriculum of lengths")
    parser.add_argument("--every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--muon-lr", type=float, default=0.008)
    parser.add_argument("--adam-lr", type=float, default=0.002)
    parser.add_argument("--compile", action="store_true", help="compile the layers: 1.6 times as fast; needs a C++ compiler")
    parser.add_argument("--bf16", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    trainer = Trainer(args)
    trainer.resume()
    trainer.train()


if __name__ == "__main__":
    main()
