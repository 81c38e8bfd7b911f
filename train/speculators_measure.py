"""How many drafts are accepted: Medusa heads, an EAGLE-3 drafter or a draft model against Lantern.

Lantern answers the held-out cases, stories at its default temperature and everything
greedily.  Then the drafter is asked at every place, and an answer is walked in verify
steps.  Where Lantern draws, the draft is drawn with the same noise (`race`), as twostroke
does; the answers are Lantern's own whatever is drafted, so nothing has to be tried again.
Exported weights, in float32.

    python speculators_measure.py --medusa ../models/lantern-medusa
    python speculators_measure.py --eagle ../models/lantern-eagle3
    python speculators_measure.py --draft ../models/lantern-draft
"""

import argparse
import json
import pathlib
import time
import zlib

import torch

import eagle
import medusa
import speculators
from tokenizer import render

LIMITS = {"facts": 40, "sums": 120, "story": 400}


# --- The drafters: ids and what Lantern thought of them in, logits [drafts, rows, vocab] out ---------


def medusa_drafter(folder, target, count):
    heads = medusa.load(folder)
    return lambda ids, seen, hidden: torch.stack([target.logits(state) for state in heads(hidden)[:count]])[:, 0]


def eagle_drafter(folder, target, count):
    drafter = eagle.load(folder)

    def draft(ids, seen, hidden):
        states = drafter(eagle.tapped(seen), eagle.ahead(target, ids), count)
        scores = torch.full((count, ids.shape[1], target.shape.vocab), float("-inf"))
        for at, state in enumerate(states):
            scores[at][:, drafter.target_ids()] = drafter.logits(state)[0]
        return scores
    return draft


def model_drafter(folder, target, count):
    model, _ = speculators.load_target(folder)

    def draft(ids, seen, hidden):
        scores = model.logits(model(ids))[0]
        # Draft j from row t is its word after token t + 1 + j.
        return torch.stack([scores.roll(-1 - ahead, 0) for ahead in range(count)])
    return draft


# --- What it is asked about ------------------------------------------------------------------------


def answer_all(target, tokenizer, cases, draws):
    """Answers to the cases, each `draws` times with noise of its own, or once and greedily where
    `draws` is 0, as (ids, start, noise)."""
    end = tokenizer.token_to_id("<|end|>")
    limit = max(LIMITS[case["kind"]] for case in cases)
    prompts, noises, answers = [], [], []
    for number, case in enumerate(cases):
        ids = tokenizer.encode(render(case["messages"], generate=True)).ids
        for draw in range(max(1, draws)):
            prompts.append(ids)
            seed = zlib.crc32(f"measure/{number}/{draw}".encode())
            noises.append(speculators.Noise(target.shape.vocab, limit, seed) if draws else None)

    def choose(logits, rows, step):
        if not draws:
            return logits.argmax(-1)
        chances = (logits / speculators.TEMPERATURE).softmax(-1)
        some = [noises[len(answers) + row] for row in rows]
        return speculators.race(chances, torch.stack([noise.blocks[step] for noise in some]),
                                torch.stack([noise.tokens[step] for noise in some]))
    while len(answers) < len(prompts):
        # As many as fit: reading long prompts takes rows * length * length numbers of attention.
        count = next(count for count in range(len(prompts) - len(answers), 0, -1)
                     if count == 1 or count * max(map(len, prompts[len(answers):][:count])) ** 2 < 2**24)
        answers += speculators.write(target, prompts[len(answers):][:count], choose, limit, end)
    return [(prompt + answer, len(prompt), noise) for prompt, answer, noise in zip(prompts, answers, noises)]


class Count:
    def __init__(self, count):
        self.asked, self.accepted, self.best, self.optimum = (torch.zeros(count) for _ in range(4))
        self.tokens = self.steps = 0

    def add(self, accepted, best, optimum):
        """One answer: tensors [rows, drafts], one row for each token after the answer's first."""
        rows, count = accepted.shape
        for ahead in range(count):
            # A draft counts only where the token belongs to the answer and those before it were accepted.
            left = max(0, rows - 1 - ahead)
            reached = accepted[:left, :ahead].all(-1)
            self.asked[ahead] += reached.sum()
            for total, values in ((self.accepted, accepted), (self.best, best), (self.optimum, optimum)):
                total[ahead] += values[:left, ahead][reached].sum()
        tokens, steps = speculators.tokens_per_step(accepted.tolist(), count)
        self.tokens += tokens
        self.steps += steps

    def shown(self, drawn):
        line = lambda values: " ".join(f"{value:.3f}" for value in (values / self.asked).tolist())
        text = f"accepted {line(self.accepted)} | tokens per step {self.tokens / self.steps:.2f} of {self.tokens}"
        return text + f" | best token {line(self.best)} | optimum {line(self.optimum)}" if drawn else text


@torch.no_grad()
def measure(target, draft, answers, count):
    total = Count(count)
    for ids, start, noise in answers:
        rows = len(ids) - 1 - start
        if rows < 1:
            continue
        ids = torch.tensor([ids])
        seen, hidden = speculators.streams(target, ids)
        scores = draft(ids, seen, hidden)[:, start - 1: start - 1 + rows]
        own = target.logits(hidden)[0]
        columns = []
        for ahead in range(count):
            # What the drafted row says, and where the answer is over anything: it is not counted.
            at = (torch.arange(start, start + rows) + ahead).clamp(max=ids.shape[1] - 2)
            came, best = ids[0, at + 1], scores[ahead].argmax(-1) == ids[0, at + 1]
            if noise is None:
                columns.append((best, best, best))
                continue
            q = (scores[ahead] / speculators.TEMPERATURE).softmax(-1)
            p = (own[at] / speculators.TEMPERATURE).softmax(-1)
            drawn = speculators.race(q, noise.blocks[at + 1 - start], noise.tokens[at + 1 - start])
            columns.append((drawn == came, best, torch.minimum(p, q).sum(-1)))
        total.add(*(torch.stack(column, dim=-1) for column in zip(*columns)))
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    who = parser.add_mutually_exclusive_group(required=True)
    who.add_argument("--medusa")
    who.add_argument("--eagle")
    who.add_argument("--draft")
    parser.add_argument("--target", default=speculators.TARGET)
    parser.add_argument("--count", type=int, default=4, help="drafts in a verify step")
    parser.add_argument("--draws", type=int, default=5, help="stories of each case at the default temperature")
    args = parser.parse_args()
    target, _ = speculators.load_target(args.target)
    tokenizer = speculators.load_tokenizer(args.target)
    makers = {"medusa": medusa_drafter, "eagle": eagle_drafter, "draft": model_drafter}
    name = next(name for name in makers if getattr(args, name))
    draft = makers[name](getattr(args, name), target, args.count)
    cases = [json.loads(line) for line in open(pathlib.Path(args.target) / "heldout.jsonl")]
    of = lambda kind: [case for case in cases if case["kind"] == kind]
    for label, some, draws in ((f"stories, temperature {speculators.TEMPERATURE}", of("story"), args.draws),
                               ("stories, greedy", of("story"), 0), ("sums, greedy", of("sums"), 0),
                               ("facts, greedy", of("facts"), 0)):
        total = measure(target, draft, answer_all(target, tokenizer, some, draws), args.count)
        print(f"{label}: {total.shown(draws)}", flush=True)
    print(f"{time.process_time():.0f} s of CPU")


if __name__ == "__main__":
    main()
