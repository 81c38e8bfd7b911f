#!/usr/bin/env python3
"""How far the simulated world without a request is from the same world, run. Standard library only; Linux.

    without.py BINARY [--pairs 50] [--seed 1] [--json] [-- flags of serve ...]

Each pair is a request and another one that comes shortly before or after it, with up to two more beside them: prompts of
32 to 1,500 tokens, 8 to 96 tokens of answer, half of them begin with one of three texts that the cache may have. Once the
server is idle, `/v1/requests/{id}/without/{other}?run=true` is asked of each pair. Wanted: the median of
|measured - simulated| / measured at most 10 %, p95 at most 25 %, of TTFT and of the whole answer, and the same text in all.
Each is run twice: what two runs of one world differ by is the machine, and no simulation can be closer.
"""

import argparse
import json
import os
import random
import sys
import threading
import time
import urllib.parse

from busy import Server, empty_cache, serving
from serving import percentile

TIMES = ("ttft_ms", "total_ms", "longest_gap_ms")


def pair(server: Server, index: int, rng: random.Random, shared: list[list[int]]) -> tuple[str, str]:
    """Sends one, and returns the names of its first two requests when all are over."""

    def send(name: str, delay: float, body: dict) -> None:
        time.sleep(delay)
        server.ask("/v1/completions", body, {"X-Request-Id": name})

    threads = []
    for place in range(2 + rng.randrange(3)):
        prompt = [rng.randrange(1000, 2000) for _ in range(rng.randrange(32, 1500))]
        if rng.random() < 0.5:
            prompt = (rng.choice(shared) + prompt)[:1500]
        body = {"prompt": prompt, "max_tokens": rng.randrange(8, 96), "ignore_eos": True, "seed": index, "temperature": 0.8}
        arguments = (f"pair-{index}-{place}", rng.random() * 0.03, body)
        threads.append(threading.Thread(target=send, args=arguments))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return f"pair-{index}-0", f"pair-{index}-1"


def compared(server: Server, name: str, other: str) -> dict:
    path = f"/v1/requests/{urllib.parse.quote(name)}/without/{urllib.parse.quote(other)}?run=true"
    answer, again = server.ask(path), server.ask(path)
    first, second = (each["prompts"][0]["answers"][0] for each in (answer, again))
    same = first["same_text"] and second["same_text"]
    return {**first, "again": second["measured"], "same_text": same, "run": answer["run"]}


def line(name: str, errors: list[float]) -> str:
    middle, high = percentile(errors, 0.5) * 100, percentile(errors, 0.95) * 100
    return f"{name:46} median {middle:6.1f} %   p95 {high:6.1f} %   worst {max(errors) * 100:6.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--pairs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="each pair as a line, in place of the figures")
    parser.add_argument("flags", nargs="*", help="of serve")
    flags = parser.parse_args()
    rng = random.Random(flags.seed)
    shared = [[rng.randrange(1000, 2000) for _ in range(400)] for _ in range(3)]
    pairs = []
    with empty_cache() as cache, serving(flags.binary, cache, *flags.flags) as server:
        for index in range(10):  # the costs of steps settle
            pair(server, -1 - index, rng, shared)
        for index in range(flags.pairs):
            pairs.append(compared(server, *pair(server, index, rng, shared)))
            if flags.json:
                print(json.dumps(pairs[-1]))
    if flags.json:
        return
    error = lambda world, truth, key: [abs(each[truth][key] - each[world][key]) / max(each[truth][key], 1e-3) for each in pairs]
    print(f"{len(pairs)} pairs, load of the machine {os.getloadavg()[0]:.1f}")
    for key in TIMES:
        print(line(f"{key}: simulated without, of measured", error("without", "measured", key)))
    for key in TIMES:
        print(line(f"{key}: measured again, of measured", error("again", "measured", key)))
    for key in TIMES:
        print(line(f"{key}: simulated, of recorded", error("simulated", "recorded", key)))
    count = lambda holds: f"{sum(map(holds, pairs))} of {len(pairs)}"
    print(f"same text: {count(lambda each: each['same_text'])}")
    as_then = lambda each: each["cached_tokens"]["measured"] == each["cached_tokens"]["recorded"]
    print(f"as many cached tokens as then: {count(as_then)}; requests left out: {sum(each['run']['left_out'] for each in pairs)}")


if __name__ == "__main__":
    sys.exit(main())
