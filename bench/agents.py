#!/usr/bin/env python3
"""What a prefix cache that is too small keeps of agents that pause. Standard library only; Linux.

    agents.py BINARY [BINARY ...] [--agents 24] [--seconds 40] [--share 0.3] [--spread 0.1] [--rounds 2] [--seed 1]

Each agent has one of three system prompts, sends 4 to 20 turns, each with all before it, and pauses 0.3, 1 or 3 seconds
between them (its pace, off by a factor of about 1 + spread), as tools take them; then another one takes its place. The pool
holds `share` of what all agents together have. Binaries run in turns on the same requests. Said of each: the share of prompt
tokens that the cache had, TTFT by the server's own clock, and the share of the milliseconds that a cache which knows the
future would have saved (the metric), where the binary tells it.
"""

import argparse
import json
import math
import random
import sys
import threading
import time

from busy import Server, empty_cache, serving
from serving import percentile

SYSTEM, MOST = 256, 1900


class Agent(threading.Thread):
    def __init__(self, server: Server, rng: random.Random, systems: list[list[int]], until: float, spread: float):
        super().__init__()
        self.server, self.rng, self.systems, self.until, self.spread = server, rng, systems, until, spread
        self.asked: list[tuple[int, int, float]] = []

    def text(self, least: int, most: int) -> list[int]:
        return [self.rng.randrange(1000, 2000) for _ in range(self.rng.randrange(least, most))]

    def run(self) -> None:
        time.sleep(self.rng.random() * 3)
        while time.monotonic() < self.until:
            prompt, pace = list(self.rng.choice(self.systems)), self.rng.choice([0.3, 1.0, 3.0])
            for _ in range(self.rng.randrange(4, 21)):
                prompt += self.text(32, 160)
                if len(prompt) > MOST or time.monotonic() > self.until:
                    break
                body = {"prompt": prompt, "max_tokens": 16, "ignore_eos": True, "return_token_ids": True}
                answer = self.server.ask("/v1/completions", body)
                cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
                self.asked.append((len(prompt), cached, answer["timings"]["ttft_ms"]))
                prompt += answer["choices"][0]["token_ids"]
                time.sleep(pace * math.exp(self.spread * self.rng.gauss(0, 1)))


def run(binary: str, flags: argparse.Namespace, kv_bytes: int) -> tuple[float, float, float, float | None]:
    rng = random.Random(flags.seed)
    systems = [[rng.randrange(1000, 2000) for _ in range(SYSTEM)] for _ in range(3)]
    with empty_cache() as cache, serving(binary, cache, "--kv-cache-memory-bytes", str(kv_bytes)) as server:
        until = time.monotonic() + flags.seconds
        agents = [
            Agent(server, random.Random(flags.seed * 1000 + index), systems, until, flags.spread)
            for index in range(flags.agents)
        ]
        for agent in agents:
            agent.start()
        for agent in agents:
            agent.join()
        lines = server.call("/metrics").read().decode().splitlines()
    asked = [each for agent in agents for each in agent.asked]
    tokens, cached = sum(each[0] for each in asked), sum(each[1] for each in asked)
    ttft = [each[2] for each in asked]
    optimum = next((float(line.split()[-1]) for line in lines if line.startswith("twostroke_cache_saved_of_optimum")), None)
    return cached / tokens, percentile(ttft, 0.5), percentile(ttft, 0.95), optimum


def bytes_per_token(binary: str) -> int:
    with empty_cache() as cache, serving(binary, cache) as server:
        return server.start["kv_bytes"] // (server.start["kv_blocks"] * server.start["block_size"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", nargs="+")
    parser.add_argument("--agents", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--share", type=float, default=0.3)
    parser.add_argument("--spread", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    flags = parser.parse_args()
    # An agent has its system prompt and half of its turns, on average.
    working_set = flags.agents * (SYSTEM + 6 * 112)
    kv_bytes = int(working_set * flags.share) * bytes_per_token(flags.binaries[0])
    for round_of in range(flags.rounds):
        for binary in flags.binaries:
            cached, median, high, optimum = run(binary, flags, kv_bytes)
            told = "" if optimum is None else f", {optimum * 100:.0f} % of the optimum"
            print(f"{binary}: {cached * 100:.1f} % cached, TTFT p50 {median:.2f} p95 {high:.2f} ms{told}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
