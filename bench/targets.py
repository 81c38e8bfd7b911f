#!/usr/bin/env python3
"""Whether targets are met as often with drafts as without: the same requests at the same moments, in turns.

    python3 bench/targets.py BINARY mixed [--rate X] [--seconds N] [--rounds N] [serve flags...]
    python3 bench/targets.py BINARY repeats ...

One server with both targets; a request says by itself whether its tokens may be drafted. Requests come by chance (Poisson),
the same ones in every turn, and no turn knows of another's prompts or answers.

    mixed      half are questions and stories at temperature 0.7, a quarter ask for a page to be summed up, and a
               quarter say a text again with a change
    repeats    all say a text again with a change, greedy

A request is good whose first token and whose mean time per token are within the targets, as the server's own timings
have them; goodput is good requests per second. Ends with 1 if a greedy answer differs.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parent.parent
QUESTIONS = [case["messages"][0]["content"] for case in map(json.loads, (ROOT / "models/lantern/heldout.jsonl").open())]
PAGES = [path.read_text() for path in sorted((ROOT / "docs/guide").glob("*.md"))]
TEXTS = [part for page in PAGES for part in page.split("\n\n") if 300 < len(part) < 900 and not part.startswith(("|", "    "))]


def request(kind: str, draw: random.Random) -> dict:
    seed = draw.randrange(1 << 30)
    chosen = draw.random() if kind == "mixed" else 1.0
    if chosen < 0.5:
        asked = {"max_tokens": draw.randrange(40, 200), "temperature": 0.7}
        return {"messages": [{"role": "user", "content": draw.choice(QUESTIONS)}], "seed": seed, **asked}
    if chosen < 0.75:
        page = draw.choice(PAGES)
        start = draw.randrange(max(1, len(page) - 3000))
        content = f"Sum up:\n\n{page[start : start + 3000]}"
        return {"messages": [{"role": "user", "content": content}], "seed": seed, "max_tokens": 80, "temperature": 0.7}
    text = draw.choice(TEXTS)
    content = f"Repeat this text exactly, and change nothing but the first word:\n\n{text}"
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 200, "temperature": 0, "ignore_eos": True}


def turn(port: int, jobs: list[tuple[float, dict]], speculate: bool, salt: str) -> list[dict]:
    """Answers in the order of the requests."""
    answers: list[dict] = [{} for _ in jobs]
    start = time.perf_counter()

    def ask(index: int) -> None:
        at, body = jobs[index]
        body = {**body, "speculate": speculate, "cache_salt": salt}
        time.sleep(max(0.0, start + at - time.perf_counter()))
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        asked = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        answers[index] = json.load(urllib.request.urlopen(asked))

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def milliseconds(target: str) -> float:
    return float(target.removesuffix("ms")) if target.endswith("ms") else 1e3 * float(target.removesuffix("s"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("kind", choices=["mixed", "repeats"])
    parser.add_argument("--rate", type=float, default=2.0, help="requests per second")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--ttft-slo", default="500ms")
    parser.add_argument("--tpot-slo", default="30ms")
    options, flags = parser.parse_known_args()
    targets = ["--ttft-slo", options.ttft_slo, "--tpot-slo", options.tpot_slo]
    command = [options.binary, "serve", "--port", "0", "--json", *targets, *flags]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    figures: dict[bool, list[list[float]]] = {True: [], False: []}
    differ = 0
    try:
        assert server.stdout is not None
        port = json.loads(server.stdout.readline())["port"]
        most_ttft, most_tpot = milliseconds(options.ttft_slo), milliseconds(options.tpot_slo)
        for number in range(options.rounds):
            draw = random.Random(number)
            jobs, at = [], 0.0
            while at < options.seconds:
                at += draw.expovariate(options.rate)
                jobs.append((at, request(options.kind, draw)))
            texts = {}
            for speculate in (True, False) if number % 2 == 0 else (False, True):
                begun = time.perf_counter()
                answers = turn(port, jobs, speculate, f"turn {number} {speculate}")
                took = time.perf_counter() - begun
                timings = [answer["timings"] for answer in answers]
                ttft = [each["ttft_ms"] for each in timings]
                tpot = [each["decode_ms"] / max(each["decode_tokens"], 1) for each in timings]
                in_time = [first <= most_ttft for first in ttft], [each <= most_tpot for each in tpot]
                good = sum(first and each for first, each in zip(*in_time))
                drafted, accepted = (sum(each.get(name, 0) for each in timings) for name in ("drafted_tokens", "accepted_tokens"))
                tokens = sum(each["decode_tokens"] for each in timings)
                shares = [sum(met) / len(jobs) for met in in_time]
                figures[speculate].append([*shares, good / took, statistics.median(ttft), statistics.median(tpot), took])
                texts[speculate] = [answer["choices"][0]["message"]["content"] for answer in answers]
                print(
                    f"{'with' if speculate else 'without'}: {len(jobs)} requests, TTFT met {shares[0]:.1%}, TPOT met "
                    f"{shares[1]:.1%}, {good / took:.2f} good requests/s; TTFT {statistics.median(ttft):.0f} ms, TPOT "
                    f"{statistics.median(tpot):.2f} ms; {tokens} decode tokens, {drafted} drafted, {accepted} accepted",
                    flush=True,
                )
            differ += sum(one != other for one, other in zip(texts[True], texts[False]))
    finally:
        server.terminate()
        server.wait()
    names = ["TTFT met", "TPOT met", "goodput", "TTFT", "TPOT", "seconds"]
    for index, name in enumerate(names):
        with_, without = ([each[index] for each in figures[side]] for side in (True, False))
        ratio = statistics.median(one / max(other, 1e-9) for one, other in zip(with_, without))
        print(f"{name}: with {statistics.median(with_):.3f}, without {statistics.median(without):.3f}, {ratio:.3f}x")
    print(f"{differ} answers differ")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
