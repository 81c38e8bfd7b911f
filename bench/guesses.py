#!/usr/bin/env python3
"""What guesses bring to one stream: tokens per second with over without, in turns, and that the answers are equal.

    python3 bench/guesses.py BINARY [serve flags...]

One server; a request says by itself whether its tokens may be guessed. Medians of the rounds; ends with 1 if an answer
differs.
"""

import json
import statistics
import subprocess
import sys
import urllib.request

PROMPTS = {
    "lines": "The fox sat by the door. The owl sang of gold.\n" * 6,
    "story": "Once upon a time there was a fox who",
}
ROUNDS = 4


def ask(port: int, prompt: str, temperature: float, speculate: bool) -> dict:
    body = {"prompt": prompt, "max_tokens": 300, "temperature": temperature, "seed": 5, "ignore_eos": True}
    body["speculate"] = speculate
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    return json.load(urllib.request.urlopen(request))


def compare(port: int, name: str, temperature: float) -> bool:
    rates: dict[bool, list[float]] = {True: [], False: []}
    texts = set()
    timings: dict = {}
    for _ in range(ROUNDS):
        for speculate in (True, False):
            answer = ask(port, PROMPTS[name], temperature, speculate)
            rates[speculate].append(answer["timings"]["decode_tokens_per_second"])
            texts.add(answer["choices"][0]["text"])
            timings = answer["timings"] if speculate else timings
    with_, without = (statistics.median(rates[speculate]) for speculate in (True, False))
    print(
        f"{name} T {temperature}: {with_:.0f} over {without:.0f} tok/s, {with_ / without:.2f}x; guessed "
        f"{timings.get('drafted_tokens', 0)}, held {timings.get('accepted_tokens', 0)}; "
        f"{'equal' if len(texts) == 1 else 'DIFFERENT'}"
    )
    return len(texts) == 1


def main() -> int:
    command = [sys.argv[1], "serve", "--port", "0", "--json", "--speculate", "auto", *sys.argv[2:]]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert server.stdout is not None
        port = json.loads(server.stdout.readline())["port"]
        equal = [compare(port, name, temperature) for name in PROMPTS for temperature in (0, 0.7)]
    finally:
        server.terminate()
        server.wait()
    return 0 if all(equal) else 1


if __name__ == "__main__":
    sys.exit(main())
