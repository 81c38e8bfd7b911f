#!/usr/bin/env python3
"""What streams feel while another client's long prompt is read: by the server that writes them, or by another one.

    head -c 32 /dev/urandom | base64 > KEY
    taskset -c 0,1 twostroke serve -m MODEL -t 2 --port 8001 &
    taskset -c 0 twostroke serve -m MODEL -t 1 --role prefill --port 8002 --handoff-listen 127.0.0.1:9000 --cluster-key KEY &
    taskset -c 1 twostroke serve -m MODEL -t 1 --role decode --port 8003 --prefill-workers 127.0.0.1:9000 --cluster-key KEY &
    python bench/stalls.py http://localhost:8001 http://localhost:8003

In turns, each: streams of short prompts, and when all of them write, long prompts that no cache has, one after
another. Said of each turn: the gap between tokens before the first prompt came, the worst and the 99th of a hundred while
prompts were read, the time to the prompts' first tokens, and tokens of all streams a second. Standard library only.
"""

import argparse
import json
import random
import statistics
import threading
import time
import urllib.request

from serving import percentile


def post(url, body):
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    return urllib.request.urlopen(request)


class Stream(threading.Thread):
    """Tokens of one answer, and when each came here."""

    def __init__(self, url, prompt, tokens):
        super().__init__()
        self.url, self.times = url, []
        self.body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True,
                     "return_token_ids": True, "speculate": False}
        self.is_stopped = False

    def run(self):
        with post(self.url, self.body) as answer:
            for line in answer:
                if line.startswith(b"data: {") and json.loads(line[6:])["choices"]:
                    self.times.append(time.perf_counter())
                if self.is_stopped:
                    return


def gaps(streams, begin, end):
    return [(b - a) * 1e3 for stream in streams for a, b in zip(stream.times, stream.times[1:]) if begin <= b and a <= end]


def turn(url, rng, args):
    def prompt(tokens):
        return [rng.randrange(10, args.vocabulary) for _ in range(tokens)]

    streams = [Stream(url, prompt(32), args.max_tokens) for _ in range(args.streams)]
    for stream in streams:
        stream.start()
    while any(len(stream.times) < 8 for stream in streams):
        time.sleep(0.01)
    quiet_from = time.perf_counter()
    time.sleep(args.quiet)
    begin = time.perf_counter()
    quiet = gaps(streams, quiet_from, begin)
    firsts = []
    for _ in range(args.prompts):
        body = {"prompt": prompt(args.prompt_tokens), "max_tokens": 1, "temperature": 0, "ignore_eos": True}
        with post(url, body) as answer:
            firsts.append(json.load(answer)["timings"]["ttft_ms"])
    end = time.perf_counter()
    busy = gaps(streams, begin, end)
    tokens = sum(begin <= at <= end for stream in streams for at in stream.times)
    for stream in streams:
        stream.is_stopped = True
    for stream in streams:
        stream.join()
    return {
        "gap": statistics.median(quiet),
        "gap while reading": statistics.median(busy),
        "99th": percentile(busy, 0.99),
        "worst": max(busy),
        "first token": statistics.median(firsts),
        "tokens/s": tokens / (end - begin),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("joint")
    parser.add_argument("split")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--prompt-tokens", type=int, default=2048)
    parser.add_argument("--max-tokens", type=int, default=1500)
    parser.add_argument("--quiet", type=float, default=2.0, help="seconds before the first prompt")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--vocabulary", type=int, default=2000, help="token ids are drawn below this")
    args = parser.parse_args()
    rng = random.Random(1)
    turns = {"joint": [], "split": []}
    for number in range(args.rounds + 1):
        for name, url in (("joint", args.joint), ("split", args.split)):
            figures = turn(url, rng, args)
            # The first round warms both.
            if number > 0:
                turns[name].append(figures)
                print(f"{name}: " + ", ".join(f"{what} {value:.1f}" for what, value in figures.items()), flush=True)
    print(f"medians of {args.rounds} turns (range), milliseconds")
    for name, figures in turns.items():
        for what in figures[0]:
            values = [each[what] for each in figures]
            print(f"  {name}: {what} {statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})")
        worst = statistics.median(each["worst"] / each["gap while reading"] for each in figures)
        print(f"  {name}: worst gap is {worst:.2f} of the gap while prompts are read")


if __name__ == "__main__":
    main()
