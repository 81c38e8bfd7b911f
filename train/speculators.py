"""What the two kinds of trained drafters share.

`medusa.py` and `eagle.py` train small networks that read Lantern's hidden states
and draft its next tokens.  Both need Lantern with its inside visible, text that
it wrote itself, a loss, a loop that can be stopped and goes on, and the count of
how many drafts are accepted.

A draft is made where a row of Lantern has just been computed.  Row t has read
tokens 0..t, and token t + 1 has been drawn from it, so the first draft is of
token t + 2 and draft j (from 0) of token t + 2 + j; Lantern's own word on that
one is row t + 1 + j.
"""

import json
import pathlib
import random
import time

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from model import Llama, Shape, rope_tables, rotate

TEMPERATURE = 0.7  # what Lantern is asked with by default: its text, and the loss, are at this one
TARGET = "../models/lantern"
TEXT = "runs/speculators"


def load_target(folder=TARGET):
    """An exported model and its configuration, in float32, not to be trained."""
    folder = pathlib.Path(folder)
    config = json.loads((folder / "config.json").read_text())
    shape = Shape(
        vocab=config["vocab_size"], hidden=config["hidden_size"], layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"], kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"], intermediate=config["intermediate_size"],
        rope_theta=config["rope_theta"], norm_eps=config["rms_norm_eps"],
        positions=config["max_position_embeddings"])
    model = Llama(shape)
    tensors = load_file(str(folder / "model.safetensors"))
    model.load_state_dict({name.removeprefix("model."): value.float() for name, value in tensors.items()})
    return model.requires_grad_(False).eval(), config


@torch.no_grad()
def streams(model, ids):
    """The residual stream before the first block and after each one, and the last one after
    the final norm: what transformers gives as `hidden_states[0..=layers]`, but for the last
    of those, which has the norm applied there."""
    cos, sin = rope_tables(ids.shape[1], model.shape.head_dim, model.shape.rope_theta)
    x = model.embed_tokens(ids)
    seen = [x]
    for block in model.layers:
        x = block(x, cos, sin)
        seen.append(x)
    return seen, model.norm(x)


# --- Text -------------------------------------------------------------------


def load_tokenizer(folder=TARGET):
    return Tokenizer.from_file(str(pathlib.Path(folder) / "tokenizer.json"))


def load_text(folder=TEXT):
    """What `speculators_data.py` wrote: dictionaries with `ids` and `start`, the first id of the answer."""
    files = sorted(pathlib.Path(folder).glob("text-*.jsonl"))
    if not files:
        raise SystemExit(f"{folder} holds no text-*.jsonl; run speculators_data.py first")
    return [json.loads(line) for file in files for line in open(file)]


def in_batches(rows, tokens):
    """Rows of similar length together, at most `tokens` in a batch with its padding."""
    batches, widest = [[]], 0
    for row in sorted(rows, key=lambda row: len(row["ids"])):
        widest = max(widest, len(row["ids"]))
        if batches[-1] and widest * (len(batches[-1]) + 1) > tokens:
            batches.append([])
            widest = len(row["ids"])
        batches[-1].append(row)
    return batches


def padded(batch):
    """Ids [rows, length], padded at the end, and the first and last index of each answer."""
    length = max(len(row["ids"]) for row in batch)
    ids = torch.zeros(len(batch), length, dtype=torch.long)
    for at, row in enumerate(batch):
        ids[at, : len(row["ids"])] = torch.tensor(row["ids"])
    start = torch.tensor([row["start"] for row in batch])
    last = torch.tensor([len(row["ids"]) - 1 for row in batch])
    return ids, start, last


def drafted_rows(ids, start, last, ahead):
    """Which rows t a draft `ahead` is made from, as a mask [rows, length]: from the last row of
    the prompt on, as long as the drafted token belongs to the answer."""
    at = torch.arange(ids.shape[1])
    return (at >= start[:, None] - 1) & (at + 2 + ahead <= last[:, None])


class Batches:
    """The batches of one epoch after another, shuffled by the seed; batch N is the same in every run."""

    def __init__(self, rows, tokens, seed):
        self.batches, self.seed, self.epoch = in_batches(rows, tokens), seed, None

    def __getitem__(self, step):
        epoch, at = divmod(step, len(self.batches))
        if epoch != self.epoch:
            self.epoch, self.order = epoch, list(range(len(self.batches)))
            random.Random(f"{self.seed}/{epoch}").shuffle(self.order)
        return padded(self.batches[self.order[at]])


# --- Writing ----------------------------------------------------------------


class Cache:
    """Keys and values of every layer for a batch of rows that are padded at the front."""

    def __init__(self, model, rows, length, pads):
        shape = model.shape
        kind = torch.bfloat16 if torch.is_autocast_enabled("cpu") else torch.float32
        one = lambda: torch.zeros(rows, shape.kv_heads, length, shape.head_dim, dtype=kind)
        self.layers = [[one(), one()] for _ in range(shape.layers)]
        self.pads, self.used, self.model = pads, 0, model
        self.cos, self.sin = rope_tables(length, shape.head_dim, shape.rope_theta)

    def keep(self, rows):
        self.layers = [[k[rows], v[rows]] for k, v in self.layers]
        self.pads = self.pads[rows]

    @torch.no_grad()
    def read(self, ids):
        """Hidden states after the final norm of the next ids of every row."""
        model, shape = self.model, self.model.shape
        rows, count = ids.shape
        begin, self.used = self.used, self.used + count
        at = torch.arange(begin, self.used)
        positions = (at - self.pads[:, None]).clamp(min=0)
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        past = torch.arange(self.used)
        hidden = (past > at[:, None]) | (past < self.pads[:, None, None])
        # A padded row would have nothing to look at: it looks at itself, and is not read.
        hidden &= past != at[:, None]
        bias = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))[:, None, None]
        split = lambda y, heads: y.view(rows, count, heads, shape.head_dim).transpose(1, 2)
        group = shape.heads // shape.kv_heads
        x = model.embed_tokens(ids)
        for block, (keys, values) in zip(model.layers, self.layers):
            attention, y = block.self_attn, block.input_layernorm(x)
            q = rotate(split(attention.q_proj(y), shape.heads), cos, sin) * shape.head_dim**-0.5
            keys[:, :, begin:self.used] = rotate(split(attention.k_proj(y), shape.kv_heads), cos, sin)
            values[:, :, begin:self.used] = split(attention.v_proj(y), shape.kv_heads)
            q = q.reshape(rows, shape.kv_heads, group * count, shape.head_dim).to(keys.dtype)
            scores = (q @ keys[:, :, : self.used].mT).view(rows, shape.kv_heads, group, count, self.used)
            weights = (scores.float() + bias).softmax(-1).to(values.dtype)
            y = weights.view(rows, shape.kv_heads, group * count, self.used) @ values[:, :, : self.used]
            y = y.view(rows, shape.heads, count, shape.head_dim)
            x = x + attention.o_proj(y.transpose(1, 2).reshape(rows, count, -1))
            x = x + block.mlp(block.post_attention_layernorm(x))
        return model.norm(x)


@torch.no_grad()
def write(model, prompts, choose, limit, end):
    """Answers to a batch of prompts, all lists of ids.  `choose(logits, rows, step)` gives the
    next id for each of `rows`.  An answer ends with the id `end`, or after `limit` ids without."""
    longest = max(map(len, prompts))
    pads = torch.tensor([longest - len(prompt) for prompt in prompts])
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    cache = Cache(model, len(prompts), longest + limit, pads)
    answers = [[] for _ in prompts]
    rows = torch.arange(len(prompts))
    alive = torch.ones(len(prompts), dtype=torch.bool)
    for step in range(limit):
        logits = model.logits(cache.read(ids)[:, -1]).float()
        chosen = choose(logits, rows, step)
        for row, token, live in zip(rows.tolist(), chosen.tolist(), alive.tolist()):
            if live:
                answers[row].append(token)
        alive &= chosen != end
        left = int(alive.sum())
        if not left:
            break
        if left < 0.7 * len(rows):  # copying a cache costs about as much as a few steps
            cache.keep(alive)
            rows, chosen = rows[alive], chosen[alive]
            alive = alive[alive]
        ids = chosen[:, None]
    return answers


# --- Drawing ----------------------------------------------------------------

BLOCK = 16


class Noise:
    """The noise of one sequence, the same for all who draw at a position: an exponential number
    for each block of 16 ids and one for each id."""

    def __init__(self, vocab, length, seed):
        generator = torch.Generator().manual_seed(seed)
        self.blocks = torch.empty(length, vocab // BLOCK).exponential_(generator=generator)
        self.tokens = torch.empty(length, vocab // BLOCK, BLOCK).exponential_(generator=generator)


def race(chances, blocks, tokens):
    """Draws from chances [..., vocab]: first a block of ids, then one of it.  Each draws the
    smallest noise / chance, so two who share the noise and nearly agree on the chances mostly
    draw the same."""
    chances = chances.unflatten(-1, (-1, BLOCK))
    block = (blocks / chances.sum(-1)).argmin(-1)
    pick = lambda x: x.take_along_dim(block[..., None, None], -2).squeeze(-2)
    return block * BLOCK + (pick(tokens) / pick(chances)).argmin(-1)


# --- Learning ---------------------------------------------------------------


class Lesson(torch.autograd.Function):
    """How far a student's chances are from a teacher's: `Lesson.apply(states, head, teacher,
    weights, sharp)` gives the mean loss and the overlap of each row.

    The overlap sum(min(p, q)) is how often a draft can be accepted at best.  Cross entropy learns
    fast; the overlap itself (`sharp` > 0) is what counts, and it makes a network that cannot
    know better bet on the most likely token instead of spreading its chances.  Gradients are
    made right away, a few rows at a time, because chances of all rows do not fit a cache.
    """

    @staticmethod
    def forward(ctx, states, head, teacher, weights, sharp):
        loss, overlaps = 0.0, []
        by_states = torch.empty_like(states)
        by_head = torch.zeros_like(head)
        scale = weights / len(states)
        for at in range(0, len(states), 256):
            some = slice(at, at + 256)
            z = states[some] @ head.mT / TEMPERATURE
            p, q, mass = teacher[some], z.softmax(-1), teacher[some].sum(-1, keepdim=True)
            entropy = z.logsumexp(-1) * mass[:, 0] - (p * z).sum(-1)
            short = q * (q < p)  # where more would count
            overlap = torch.minimum(p, q).sum(-1)
            loss = loss + (((1 - sharp) * entropy + sharp * (1 - overlap)) * scale[some]).sum()
            g = q * ((1 - sharp) * mass + sharp * short.sum(-1, keepdim=True))
            g.sub_(short, alpha=sharp).sub_(p, alpha=1 - sharp).mul_(scale[some, None] / TEMPERATURE)
            by_states[some] = g @ head
            if ctx.needs_input_grad[1]:
                by_head += g.mT @ states[some]
            overlaps.append(overlap)
        ctx.save_for_backward(by_states, by_head)
        overlaps = torch.cat(overlaps)
        ctx.mark_non_differentiable(overlaps)
        return loss, overlaps

    @staticmethod
    def backward(ctx, by_loss, _):
        by_states, by_head = ctx.saved_tensors
        return by_loss * by_states, by_loss * by_head if ctx.needs_input_grad[1] else None, None, None, None


@torch.no_grad()
def chances(target, hidden, ids=slice(None)):
    """What the target says at its default temperature, of all tokens or of some."""
    head = target.embed_tokens.weight
    some = [(rows @ head.mT / TEMPERATURE).softmax(-1)[:, ids] for rows in hidden.split(256)]
    return torch.cat(some)


class Run:
    """A training run that goes on where it was stopped.  `learn(batch, sharp)` gives the loss
    and a line's worth of figures; `optimisers` have `param_groups`, whose rates are scaled."""

    def __init__(self, folder, module, optimisers, steps):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.module, self.optimisers, self.steps, self.step = module, optimisers, steps, 0
        self.file = self.folder / "checkpoint.pt"
        self.spent = 0.0
        if self.file.exists():
            state = torch.load(self.file)
            self.step, self.spent = state["step"], state["spent"]
            module.load_state_dict(state["module"])
            for optimiser, saved in zip(optimisers, state["optimisers"]):
                optimiser.load_state_dict(saved)
            print(f"goes on from step {self.step}", flush=True)

    def save(self, spent):
        state = {"step": self.step, "spent": spent, "module": self.module.state_dict(),
                 "optimisers": [optimiser.state_dict() for optimiser in self.optimisers]}
        torch.save(state, self.file.with_suffix(".new"))
        self.file.with_suffix(".new").replace(self.file)

    def train(self, batches, learn, every=50):
        began, mean = time.process_time(), None
        rates = [[group["lr"] for group in o.param_groups] for o in self.optimisers]
        while self.step < self.steps:
            done = self.step / self.steps
            scale = min(1.0, (self.step + 1) / 30, 2.5 * (1 - done))
            sharp = min(0.9, max(0.0, 4 * (done - 0.3)))
            loss, figures = learn(batches[self.step], sharp)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
            for optimiser, peaks in zip(self.optimisers, rates):
                for group, peak in zip(optimiser.param_groups, peaks):
                    group["lr"] = peak * scale
                optimiser.step()
            self.module.zero_grad(set_to_none=True)
            self.step += 1
            mean = figures if mean is None else 0.9 * mean + 0.1 * figures
            spent = self.spent + time.process_time() - began
            if self.step % 10 == 0:
                shown = " ".join(f"{value:.3f}" for value in mean.tolist())
                print(f"step {self.step} overlap {shown} | {spent:.0f} s of CPU", flush=True)
            if self.step % every == 0 or self.step == self.steps:
                self.save(spent)


# --- Counting ---------------------------------------------------------------


def tokens_per_step(held, count):
    """Walks one answer in verify steps.  `held[t][j]` says whether draft j from row t is what
    came; the last row is where nothing is left to write.  Gives tokens and steps."""
    rows, at, steps = len(held), 0, 0
    while at < rows:
        taken = 1
        while taken <= count and at + taken < rows and held[at][taken - 1]:
            taken += 1
        at, steps = at + taken, steps + 1
    return at, steps
