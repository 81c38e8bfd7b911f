"""The text generator: seeded conversations of all kinds.

Everything the model ever reads comes from here.  `short` writes a
conversation of any kind that fits a small window; `long` writes a document
full of facts, with questions, that fills a window of a given length.  The same
seed always gives the same text, so no data set has to be stored.

    python generate.py --seed 1 --count 5            # look at some conversations
    python generate.py --seed 1 --length 2048 --count 1
    python generate.py --heldout heldout.jsonl       # the evaluation cases
"""

import argparse
import json
import random

import calls
import echo
import facts
import forms
import stories
import sums
import talk

# Rough token costs, used only to size a document of facts.
FACT_TOKENS, FILLER_TOKENS, TURN_TOKENS = 11, 7, 25


# Up to which value of a random number each kind is chosen; the rest are facts.
# Sums take the longest to become reliable, so late in training they get more room.
EARLY = {"story": 0.38, "sums": 0.68, "talk": 0.80, "mixed": 0.84, "echo": 0.87}
LATE = {"story": 0.24, "sums": 0.72, "talk": 0.82, "mixed": 0.86, "echo": 0.89}
LAST = {"story": 0.18, "sums": 0.82, "talk": 0.91, "mixed": 0.94, "echo": 0.95}


def short(rng, length, shares=EARLY):
    """A conversation of any kind in about `length` tokens at most."""
    chance = rng.random()
    kind = next((kind for kind, limit in shares.items() if chance < limit), "facts")
    if kind == "story":
        messages = stories.conversation(rng, more=rng.choice((0, 0, 0, 1, 1, 2)))
    elif kind == "sums":
        last = shares is LAST
        turns = rng.choice((1, 2, 3, 4, 5, 6) if last else (1, 1, 2, 3, 4))
        messages = sums.conversation(rng, turns, weight=2.0 if last else 1.0)
    elif kind == "talk":
        messages = talk.conversation(rng, turns=rng.choice((1, 1, 2, 3)))
    elif kind == "mixed":
        messages = mixed(rng)
    elif kind == "echo":
        messages = echo.conversation(rng, turns=rng.choice((1, 2)))
    else:
        messages = long(rng, rng.randint(80, length))
    if messages[0]["role"] != "system" and rng.random() < 0.25:
        messages = [{"role": "system", "content": rng.choice(talk.SYSTEMS)}] + messages
    return messages


def first(rng):
    """The first things to learn: copying lines and looking up a few facts."""
    if rng.random() < 0.5:
        return echo.conversation(rng, turns=rng.choice((1, 2, 3)))
    return long(rng, rng.randint(50, 200))


def mixed(rng):
    """Several kinds in one conversation, as a person trying things out would have it."""
    parts = [
        lambda: stories.conversation(rng),
        lambda: sums.conversation(rng, turns=1),
        lambda: talk.conversation(rng, turns=1),
        lambda: long(rng, 80),
    ]
    rng.shuffle(parts)
    messages = [m for part in parts[: rng.choice((2, 3))] for m in part()]
    return [m for m in messages if m["role"] != "system"]


def long(rng, length):
    """Facts and questions in about `length` tokens, densely or thinly asked."""
    asked_share = rng.choice((0.15, 0.3, 0.5, 0.6))
    questions = max(1, int(length * asked_share / TURN_TOKENS))
    room = max(40, length - 20 - questions * TURN_TOKENS)
    filler_share = rng.choice((0.0, 0.2, 0.5, 0.8))
    fact_count = max(1, int(room * (1 - filler_share) / FACT_TOKENS))
    filler_count = int(room * filler_share / FILLER_TOKENS)
    stated = facts.some_facts(rng, fact_count)
    return facts.conversation(rng, stated, filler_count, questions)


def text(rng):
    """A text outside conversations: a story, seldom notes."""
    if rng.random() < 0.8:
        return stories.request(rng)[1].text
    return facts.context(rng, facts.some_facts(rng, rng.randint(2, 8)), rng.randint(0, 4))


def heldout(tokenizer_file=None, seed="held-out"):
    """The evaluation cases: facts at graded lengths, sums, and unseen story pairs."""
    from tokenizers import Tokenizer
    from tokenizer import render

    tokenizer = Tokenizer.from_file(tokenizer_file)
    rng = random.Random(seed)
    cases = []
    for length in FACT_LENGTHS:
        cases.append(fact_case(rng, length, tokenizer, render))
    for _ in range(100):
        question, _, answer = sums.one_sum(rng)
        cases.append({"kind": "sums", "messages": [user(question)], "answer": answer})
    pairs = [(h, t) for h in stories.CHARACTERS for t in stories.CLASS if stories.held_out(h, t)]
    for hero, item in rng.sample(pairs, 20):
        wish = f"Tell me a story about {stories.words.a(hero)} and {stories.words.a(item)}."
        cases.append({"kind": "story", "messages": [user(wish)], "answer": f"{hero} {item}"})
    return cases + tool_cases(random.Random(seed + "/tools"))


def tool_cases(rng):
    """Turns of conversations with tools whose names do not occur in training, and forms."""
    cases = []
    for kind, (count, is_meant) in TOOL_CASES.items():
        while count:
            tools, messages = calls.conversation(rng, turns=1, unseen=True)
            meant = [turn for turn, message in enumerate(messages) if is_meant(message, messages[turn - 1])]
            if not meant:
                continue
            turn = meant[0]
            # As most clients send it: without what was thought.  What is thought is not asked for either.
            sent = [{name: value for name, value in message.items() if name not in ("reasoning_content", "weight")}
                    for message in messages[: turn + 1]]
            [told] = calls.rendered([], sent[turn:])
            cases.append({"kind": kind, "tools": tools, "messages": sent[:turn], "answer": told["content"]})
            count -= 1
    for _ in range(50):
        question, told = forms.conversation(rng)
        cases.append({"kind": "form", "messages": [question], "answer": told["content"]})
    return cases


# How many cases of each kind, and whether a message is the answer of one, from it and the one before.
TOOL_CASES = {
    "call": (60, lambda message, _: len(message.get("tool_calls", [])) == 1),
    "two calls": (20, lambda message, _: len(message.get("tool_calls", [])) == 2),
    "result": (40, lambda message, before: message["role"] == "assistant" and before["role"] == "tool"),
    "no tool": (20, lambda message, _: message["content"] == calls.NO_TOOL),
}

FACT_LENGTHS = [200, 300, 400, 500] * 3 + [700, 850, 1000] * 3 + [1300, 1600, 1950] * 3 + [
    2300, 2600, 3000, 3300, 3500, 3550, 3600, 3650, 3700, 3750, 3800, 3850, 3900, 3950]


def user(content):
    return {"role": "user", "content": content}


def fact_case(rng, length, tokenizer, render):
    """One context of nearly `length` prompt tokens with one question."""
    filler_share = rng.choice((0.3, 0.6))
    scale = 1.0
    while True:
        stated = facts.some_facts(rng, max(3, int(scale * length * (1 - filler_share) / FACT_TOKENS)))
        text = facts.context(rng, stated, int(scale * length * filler_share / FILLER_TOKENS))
        fact = rng.choice(stated)
        messages = [user("Read these notes.\n" + text + "\n" + fact["asks"])]
        size = len(tokenizer.encode(render(messages, generate=True)).ids)
        if 0.97 * length <= size <= length:
            return {"kind": "facts", "messages": messages, "answer": fact["says"],
                    "value": fact["value"], "prompt_tokens": size}
        scale *= min(1.5, max(0.6, 0.985 * length / size))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", default="0")
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--length", type=int, help="write documents of facts of this many tokens")
    parser.add_argument("--heldout", help="write the evaluation cases to this file")
    parser.add_argument("--tokenizer", default="../models/lantern/tokenizer.json")
    args = parser.parse_args()
    if args.heldout:
        with open(args.heldout, "w") as out:
            for case in heldout(args.tokenizer):
                out.write(json.dumps(case, ensure_ascii=False) + "\n")
        return
    rng = random.Random(args.seed)
    for _ in range(args.count):
        messages = long(rng, args.length) if args.length else short(rng, 400)
        print(json.dumps(messages, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
