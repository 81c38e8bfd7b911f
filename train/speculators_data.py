"""Text that Lantern itself wrote, for the networks that draft its next tokens.

The prompts are the generator's: a conversation up to one of its answers, which
Lantern then writes, mostly at its default temperature and sometimes greedily.  A
server of twostroke does the writing, many answers side by side:

    twostroke serve
    python speculators_data.py --out runs/speculators --files 16

Each file holds the same number of conversations and depends on the seed and its
number alone, since an answer depends on its request alone; files that are there
already are kept, so a stopped run goes on.
"""

import argparse
import json
import pathlib
import random
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import generate
import speculators
from data import Encoder

# Stories take most: they are where a drafter has to think and lookups find nothing.
SHARES = {"story": 0.62, "sums": 0.74, "talk": 0.83, "mixed": 0.89, "echo": 0.94}
GREEDY = 0.15
LIMIT = 400  # ids of an answer at most


def prompt(encoder, rng):
    """The ids of a conversation up to an answer, drawn from all that it has."""
    messages = generate.short(rng, rng.choice((400, 400, 400, 1200)), SHARES)
    answers = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
    ids, _ = encoder(messages[: rng.choice(answers)])
    return ids[:-1] + [encoder.role["assistant"], encoder.newline]


def requests(encoder, name, conversations):
    """What is asked for one file; the name decides."""
    rng = random.Random(name)
    return [{
        "prompt": prompt(encoder, rng),
        "temperature": 0.0 if rng.random() < GREEDY else speculators.TEMPERATURE,
        "top_p": 1.0,
        "seed": rng.getrandbits(32),
        "max_tokens": LIMIT,
        "return_token_ids": True,
    } for _ in range(conversations)]


def ask(server, request):
    """The conversation with its answer, ids that end the text included."""
    wanted = urllib.request.Request(server + "/v1/completions", json.dumps(request).encode(),
                                    {"Content-Type": "application/json"})
    with urllib.request.urlopen(wanted) as reply:
        choice = json.load(reply)["choices"][0]
    return {"ids": request["prompt"] + choice["token_ids"], "start": len(request["prompt"])}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=speculators.TEXT)
    parser.add_argument("--server", default="http://127.0.0.1:8000")
    parser.add_argument("--target", default=speculators.TARGET, help="whose tokenizer it is")
    parser.add_argument("--seed", default="speculators")
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument("--conversations", type=int, default=1024, help="in each file")
    parser.add_argument("--streams", type=int, default=64, help="answers that are written side by side")
    args = parser.parse_args()
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    encoder = Encoder(pathlib.Path(args.target) / "tokenizer.json")
    for number in range(args.files):
        file = out / f"text-{number:03}.jsonl"
        if file.exists():
            continue
        began = time.time()
        wanted = requests(encoder, f"{args.seed}/{number}", args.conversations)
        with ThreadPoolExecutor(args.streams) as pool:
            rows = list(pool.map(lambda request: ask(args.server, request), wanted))
        part = file.with_suffix(".part")
        part.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))
        part.rename(file)
        written = sum(len(row["ids"]) - row["start"] for row in rows)
        print(f"{file.name}: {written} ids written in {time.time() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
