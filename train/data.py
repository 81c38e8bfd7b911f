"""From conversations to rows of token ids with a weight for every target.

Rows are filled with whole conversations one after another, each closed by
<|endoftext|>, and the last one is cut off.  The model learns what the
assistant says; the rest of the text counts a little, because predicting the
repeated parts of a prompt helps attention to find its way.
"""

import random

import torch
from tokenizers import Tokenizer

import calls
import forms
import generate

PROMPT_WEIGHT = 0.05


class Encoder:
    """Conversations and texts to ids and weights, conversations in the exact layout of the chat template."""

    def __init__(self, tokenizer_file):
        self.tokenizer = Tokenizer.from_file(str(tokenizer_file))
        one = self.tokenizer.token_to_id
        self.newline = self.tokenizer.encode("\n").ids[0]
        self.end, self.stop = one("<|end|>"), one("<|endoftext|>")
        self.role = {r: one(f"<|{r}|>") for r in ("system", "user", "assistant")}

    def __call__(self, messages):
        ids, weights = [], []
        if isinstance(messages, str):
            # A text of its own, without turns: all of it is told.
            ids = self.tokenizer.encode(messages).ids
            return ids + [self.end, self.stop], [1.0] * (len(ids) + 1) + [PROMPT_WEIGHT]
        contents = self.tokenizer.encode_batch_fast([m["content"] for m in messages])
        for message, content in zip(messages, contents):
            ids += [self.role[message["role"]], self.newline]
            weights += [PROMPT_WEIGHT, PROMPT_WEIGHT]
            weight = PROMPT_WEIGHT
            if message["role"] == "assistant":
                weight = message.get("weight", 1.0)
            ids += content.ids + [self.end, self.newline]
            weights += [weight] * (len(content.ids) + 1) + [PROMPT_WEIGHT]
        return ids + [self.stop], weights + [PROMPT_WEIGHT]


def row(encoder, rng, length, write):
    """One row of length + 1 ids, so that inputs and targets are shifted views of it."""
    ids, weights = [], []
    while len(ids) < length + 1:
        more_ids, more_weights = encoder(write())
        ids += more_ids
        weights += more_weights
    return ids[: length + 1], weights[: length + 1]


def batch(encoder, seed, rows, length, kind, sizes=None):
    """Inputs, targets and target weights, all [rows, length]; the seed decides the text.

    `sizes` bounds the length of the documents of facts; by default they fill their row.
    """
    rng = random.Random(seed)
    sizes = sizes or (length, length)
    writers = {
        "first": lambda: generate.first(rng),
        "short": lambda: generate.short(rng, length),
        "late": lambda: generate.short(rng, length, generate.LATE),
        "last": lambda: generate.short(rng, length, generate.LAST),
        "tools": lambda: calls.written(rng) if rng.random() < 0.75 else forms.conversation(rng, rng.choice((1, 2, 3))),
        "long": lambda: generate.long(rng, rng.randint(*sizes)),
        "text": lambda: generate.text(rng),
    }
    filled = [row(encoder, rng, length, writers[kind]) for _ in range(rows)]
    ids = torch.tensor([ids for ids, _ in filled])
    weights = torch.tensor([weights for _, weights in filled])
    return ids[:, :-1], ids[:, 1:], weights[:, 1:]
