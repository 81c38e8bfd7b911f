#!/usr/bin/env python3
"""What watching costs: mean time of a decode step with no reader and with two readers of /live/feed, in turns.

    python3 bench/watching.py URL [--streams 8] [--rounds 6] [--seconds 4]

One reader takes the feed, the other the feed with the map of the cache. The readers' own processor time is in it: they
run on the same machine.
"""

import argparse
import json
import re
import statistics
import subprocess
import threading
import time
import urllib.request


def ask(url: str, stop: threading.Event, tokens: int) -> None:
    body = {"prompt": "Once upon a time there was a fox.", "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    while not stop.is_set():
        urllib.request.urlopen(request).read()


def counters(url: str) -> tuple[float, float]:
    page = urllib.request.urlopen(f"{url}/metrics").read().decode()
    read = lambda name: float(re.search(rf"^{name} (\S+)$", page, re.M)[1])
    return read("twostroke_steps_total"), read("twostroke_step_seconds_total")


def measure(url: str, seconds: float) -> tuple[float, float]:
    """Milliseconds of a step, and of a step with what is between it and the next."""
    begun, (steps, took) = time.monotonic(), counters(url)
    time.sleep(seconds)
    ended, (more_steps, more_took) = time.monotonic(), counters(url)
    made = more_steps - steps
    return (more_took - took) / made * 1e3, (ended - begun) / made * 1e3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--tokens", type=int, default=1500)
    flags = parser.parse_args()
    stop = threading.Event()
    load = [threading.Thread(target=ask, args=(flags.url, stop, flags.tokens), daemon=True) for _ in range(flags.streams)]
    [thread.start() for thread in load]
    time.sleep(2)
    found = {0: [], 2: []}
    for turn in range(flags.rounds):
        # Both orders equally often, so that a trend counts for neither.
        for readers in [0, 2] if turn % 2 == 0 else [2, 0]:
            feeds = ["/live/feed", "/live/feed?kv=1"][:readers]
            curls = [subprocess.Popen(["curl", "-sN", flags.url + feed], stdout=subprocess.DEVNULL) for feed in feeds]
            time.sleep(0.7)
            found[readers].append(measure(flags.url, flags.seconds))
            for curl in curls:
                curl.terminate()
                curl.wait()
    stop.set()
    steps = {readers: [step for step, _ in pairs] for readers, pairs in found.items()}
    whole = {readers: [both for _, both in pairs] for readers, pairs in found.items()}
    for name, times in [("step", steps), ("step and what follows", whole)]:
        alone, watched = statistics.median(times[0]), statistics.median(times[2])
        shown = {readers: [round(ms, 3) for ms in all_ms] for readers, all_ms in times.items()}
        print(f"{name}: {alone:.3f} ms alone, {watched:.3f} ms watched, {(watched / alone - 1) * 100:+.2f} %  {shown}")


main()
