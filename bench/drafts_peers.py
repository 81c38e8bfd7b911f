#!/usr/bin/env python3
"""What drafts bring beside llama.cpp: the prompts of `drafts.py`, greedy, in turns, and whose answers stay the same.

    bench/peers.sh install llama.cpp; bench/peers.sh models smollm2-135m
    for m in lantern lantern-draft; do mkdir -p PEERS/models/$m
        twostroke quantize -m models/$m --weights bf16 --format gguf -o PEERS/models/$m/BF16.gguf; done
    drafts_peers.py alone|together texts|draft [--peers PEERS] [--binary FILE]    # one more round
    drafts_peers.py table

A turn is an engine with its drafts, or without, in a separate server: no turn knows an answer of another.
`alone` asks one prompt after the other, `together` eight stories at once. All engines get the same tokens. Rates are by
each engine's own clock, from the first token to the last; `together`, all tokens over the time of the whole, prompts
included. Every round is added to `bench/results/drafts.jsonl`, of which `table` makes the tables of
`docs/performance.md`; it ends with 1 if an answer of ours differs. Standard library only.
"""

import argparse
import concurrent.futures
import hashlib
import json
import pathlib
import statistics
import subprocess
import sys
import time
import urllib.request

from engines import BINARY, ROOT, THREADS, Broken, LlamaCpp
from drafts import PROMPTS
from peers import Server

RESULTS = ROOT / "bench/results/drafts.jsonl"
TOKENS = 200
CASES = {"texts": ("smollm2-135m", "Q8_0"), "draft": ("lantern", "BF16")}
# The drafters of each engine. Theirs as they come, and with the shortest match and the most drafts of ours.
DRAFTERS = {
    ("twostroke", "texts"): ["--speculate auto"],
    ("llama.cpp", "texts"): [
        "--spec-default",
        "--spec-type ngram-cache",
        "--spec-type ngram-simple",
        "--spec-type ngram-simple --spec-ngram-simple-size-n 3 --spec-ngram-simple-size-m 16",
    ],
    ("twostroke", "draft"): ["--speculative-config"],
    ("llama.cpp", "draft"): ["--spec-type draft-simple -md", "--spec-type draft-simple --spec-draft-n-max 8 -md"],
}


class Ours:
    name = "twostroke"

    def __init__(self, binary, files, kind):
        self.command = [binary, "serve", "-m", files / f"{kind}.gguf", "--max-num-seqs", "8", "--max-model-len", "2048"]
        self.draft = json.dumps({"method": "draft_model", "model": f"{files}-draft/{kind}.gguf"})

    def version(self):
        return subprocess.run([self.command[0], "--version"], capture_output=True, text=True).stdout.strip()

    def server(self, drafter):
        flags = with_value(drafter, "--speculative-config", self.draft) or ["--speculate", "off"]
        return [*self.command, *flags, "--port"]

    def ask(self, port, ids, to_the_end):
        body = {"prompt": ids, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": not to_the_end}
        answer = post(port, "v1/completions", body)
        timings = answer["timings"]
        drafts = timings.get("drafted_tokens", 0), timings.get("accepted_tokens", 0)
        return answer["choices"][0]["text"], answer["usage"]["completion_tokens"], timings["decode_ms"] / 1e3, drafts


class Theirs:
    """llama.cpp's server."""

    def __init__(self, engine):
        self.engine, self.name = engine, engine.name

    def version(self):
        command = [self.engine.bin / "llama-server", "--version"]
        log = subprocess.run(command, env=self.engine.env, capture_output=True, text=True)
        return next(line for line in (log.stdout + log.stderr).splitlines() if line.startswith("version"))

    def server(self, drafter):
        draft = f"{self.engine.at}-draft/{self.engine.format}.gguf"
        room = ["-t", THREADS, "-np", "8", "-c", 8 * 2048, *self.engine.server_options, "--cache-ram", "0"]
        command = [self.engine.bin / "llama-server", "-m", self.engine.file, *room, *with_value(drafter, "-md", draft)]
        return ["env", f"LD_LIBRARY_PATH={self.engine.env['LD_LIBRARY_PATH']}", *command, "--host", "127.0.0.1", "--port"]

    def ask(self, port, ids, to_the_end):
        body = {"prompt": ids, "n_predict": TOKENS, "temperature": 0, "top_k": 1, "ignore_eos": not to_the_end}
        answer = post(port, "completion", {**body, "cache_prompt": False})
        timings = answer["timings"]
        drafts = timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)
        return answer["content"], timings["predicted_n"], timings["predicted_ms"] / 1e3, drafts


class Turn:
    """What `Server` starts."""

    def __init__(self, engine, drafter):
        self.engine, self.drafter = engine, drafter

    def server(self):
        return self.engine.server(self.drafter.split())


def with_value(flags, flag, value):
    return [part for word in flags for part in ([word, value] if word == flag else [word])]


def post(port, path, body):
    url, kind = f"http://127.0.0.1:{port}/{path}", {"Content-Type": "application/json"}
    return json.load(urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), kind)))


def tokens(ours):
    """The prompts as our tokenizer and chat template have them."""
    with Server(Turn(ours, "")) as server:
        ids = lambda what: post(server.port, "tokenize", part(what))["tokens"]
        return {name: [ids(what) for what in prompts] for name, prompts in PROMPTS.items()}


def part(what):
    return {key: what[key] for key in ("prompt", "messages") if key in what}


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def alone(turn, port, prompts):
    rates, answers, drafted, accepted = {}, {}, 0, 0
    for name, asked in prompts.items():
        decoded = seconds = 0.0
        for index, ids in enumerate(asked):
            text, count, took, (more_drafted, more_accepted) = turn.engine.ask(port, ids, name == "stories")
            decoded, seconds = decoded + count - 1, seconds + took
            drafted, accepted = drafted + more_drafted, accepted + more_accepted
            answers[f"{name} {index}"] = digest(text)
        rates[name] = round(decoded / seconds, 1)
    return {"rates": rates, "answers": answers, "guessed": drafted, "held": accepted}


def together(turn, port, prompts):
    began = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(len(prompts["stories"])) as pool:
        found = list(pool.map(lambda ids: turn.engine.ask(port, ids, True), prompts["stories"]))
    seconds = time.perf_counter() - began
    drafted, accepted = (sum(drafts[side] for *_, drafts in found) for side in (0, 1))
    answers = {f"stories {index}": digest(text) for index, (text, *_) in enumerate(found)}
    rates = {"together": round(sum(count for _, count, *_ in found) / seconds, 1)}
    return {"rates": rates, "answers": answers, "guessed": drafted, "held": accepted}


def measure(how, case, peers, binary):
    model, kind = CASES[case]
    at = peers / "models" / model
    engines = [Ours(binary, at, kind), Theirs(LlamaCpp(at, kind, peers))]
    prompts = tokens(engines[0])
    for engine in engines:
        for drafter in ["", *DRAFTERS[engine.name, case]]:
            turn = Turn(engine, drafter)
            whose = {"engine": engine.name, "version": engine.version(), "guesses": drafter}
            row = {"case": case, "how": how, **whose}
            with Server(turn) as server:
                # The first request of a server pays for what the others find.
                engine.ask(server.port, prompts["story"][0][:4], True)
                row |= (alone if how == "alone" else together)(turn, server.port, prompts)
            print(engine.name, drafter, row["rates"], f"drafted {row['guessed']}, accepted {row['held']}", flush=True)
            with RESULTS.open("a") as file:
                file.write(json.dumps(row) + "\n")


def cell(rates, plain):
    if not rates:
        return "-"
    middle = statistics.median(rates)
    spread = f"{middle:.0f} ({min(rates):.0f}..{max(rates):.0f})" if len(rates) > 1 else f"{middle:.0f}"
    return spread if rates == plain or not plain else f"**{middle / statistics.median(plain):.2f}x** {spread}"


def same(rows, reference):
    """How many of the answers are those that the engine gave alone and without drafts."""
    pairs = [(answer, reference.get(prompt)) for row in rows for prompt, answer in row["answers"].items()]
    return sum(answer == expected for answer, expected in pairs), len(pairs)


def table():
    rows = [json.loads(line) for line in RESULTS.open()]
    ours_equal = True
    for case, (model, kind) in CASES.items():
        names = [*PROMPTS, "eight stories at once", "accepted of drafted, alone", "equal, alone", "equal, at once"]
        print(f"\n| {model}, {kind} | {' | '.join(names)} |")
        print("| --- |" + " ---: |" * len(names))
        for engine in dict.fromkeys(row["engine"] for row in rows):
            mine = [row for row in rows if row["case"] == case and row["engine"] == engine]
            of = {
                (how, drafter): [row for row in mine if row["how"] == how and row["guesses"] == drafter]
                for how in ("alone", "together")
                for drafter in dict.fromkeys(row["guesses"] for row in mine)
            }
            reference = of["alone", ""][0]["answers"] if mine else {}
            for drafter in dict.fromkeys(row["guesses"] for row in mine):
                cells = []
                for how, name in [*[("alone", name) for name in PROMPTS], ("together", "together")]:
                    rates, plain = ([row["rates"][name] for row in of[how, side]] for side in (drafter, ""))
                    cells.append(cell(rates, [] if drafter == "" else plain))
                accepted, drafted = (sum(row[key] for row in of["alone", drafter]) for key in ("held", "guessed"))
                cells.append(f"{accepted} of {drafted}" if drafter else "")
                counts = [same(of[how, drafter], reference) for how in ("alone", "together")]
                ours_equal &= engine != "twostroke" or all(equal == asked for equal, asked in counts)
                cells += [f"{equal} of {asked}" for equal, asked in counts]
                print(f"| {engine}{f' `{drafter}`' if drafter else ''} | {' | '.join(cells)} |")
    print("\n" + "; ".join(dict.fromkeys(f"{row['engine']}: {row['version']}" for row in rows)))
    return ours_equal


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["alone", "together", "table"])
    parser.add_argument("case", nargs="?", choices=list(CASES), default="texts")
    parser.add_argument("--peers", type=pathlib.Path, default=pathlib.Path.home() / ".cache/twostroke-peers")
    parser.add_argument("--binary", type=pathlib.Path, default=BINARY)
    args = parser.parse_args()
    if args.what == "table":
        return 0 if table() else 1
    try:
        measure(args.what, args.case, args.peers, args.binary)
    except Broken as reason:
        sys.exit(f"drafts_peers.py: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
