#!/usr/bin/env python3
"""What drafts bring to one stream: tokens per second with over without, in turns, and that the answers are equal.

    python3 bench/drafts.py BINARY [serve flags...]
    python3 bench/drafts.py BINARY --speculative-config '{"method": "draft_model", "model": "models/lantern-draft"}'

One server; a request says by itself whether its tokens may be drafted. Medians of the rounds; ends with 1 if an answer
differs. Turns do not know of each other's answers. The stories are those of the built-in model's held-out cases, asked as chats.
"""

import json
import statistics
import subprocess
import sys
import urllib.request
from pathlib import Path

CASES = Path(__file__).parent.parent / "models/lantern/heldout.jsonl"
STORIES = [case["messages"][0] for case in map(json.loads, CASES.open()) if case["kind"] == "story"][:8]
PROMPTS = {
    "lines": [{"prompt": "The fox sat by the door. The owl sang of gold.\n" * 6, "ignore_eos": True}],
    "story": [{"prompt": "Once upon a time there was a fox who", "ignore_eos": True}],
    "stories": [{"messages": [message]} for message in STORIES],
}
ROUNDS = 4


def ask(port: int, what: dict, temperature: float, speculate: bool, turn: int) -> dict:
    body = {**what, "max_tokens": 300, "temperature": temperature, "seed": 5, "speculate": speculate}
    # Or drafts would come from the answer of the turn before.
    body["cache_salt"] = f"turn {turn}"
    path = "completions" if "prompt" in what else "chat/completions"
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    return json.load(urllib.request.urlopen(request))


def compare(port: int, name: str, temperature: float) -> bool:
    rates: dict[bool, list[float]] = {True: [], False: []}
    texts: list[set[str]] = [set() for _ in PROMPTS[name]]
    sums = {"drafted_tokens": 0, "accepted_tokens": 0, "decode_tokens": 0}
    for turn in range(ROUNDS):
        for speculate in (True, False):
            tokens = seconds = 0.0
            for index, what in enumerate(PROMPTS[name]):
                answer = ask(port, what, temperature, speculate, turn)
                timings, choice = answer["timings"], answer["choices"][0]
                decoded = answer["usage"]["completion_tokens"] - 1
                tokens += decoded
                seconds += decoded / timings["decode_tokens_per_second"]
                texts[index].add(choice["text"] if "prompt" in what else choice["message"]["content"])
                if speculate:
                    sums["decode_tokens"] += decoded
                    sums["drafted_tokens"] += timings.get("drafted_tokens", 0)
                    sums["accepted_tokens"] += timings.get("accepted_tokens", 0)
            rates[speculate].append(tokens / seconds)
    with_, without = (statistics.median(rates[speculate]) for speculate in (True, False))
    spread = " ".join(f"{min(rates[side]):.0f}..{max(rates[side]):.0f}" for side in (True, False))
    a_step = sums["decode_tokens"] / max(sums["decode_tokens"] - sums["accepted_tokens"], 1)
    equal = all(len(text) == 1 for text in texts)
    print(
        f"{name} T {temperature}: {with_:.0f} over {without:.0f} tok/s ({spread}), {with_ / without:.2f}x; "
        f"{a_step:.2f} tokens a step, drafted {sums['drafted_tokens']}, accepted {sums['accepted_tokens']}; "
        f"{'equal' if equal else 'DIFFERENT'}",
        flush=True,
    )
    return equal


def main() -> int:
    command = [sys.argv[1], "serve", "--port", "0", "--json", *sys.argv[2:]]
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
