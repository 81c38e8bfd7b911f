"""Vectors per second: by words of a text and texts of a request.

    python bench/embeddings.py http://127.0.0.1:8000 [WORDS] [TEXTS] [ROUNDS]

against `twostroke serve`. Each text is another one, so that the prefix cache finds nothing. Printed: the medians over
the rounds with their spread, of vectors and of tokens per second.
"""

import json
import random
import statistics
import sys
import time
import urllib.request

WORDS = "the fox carried a lantern over river and hill while owls counted stars in silence below old trees".split()


def main():
    base, words, texts, rounds = sys.argv[1], *(int(sys.argv[at]) if len(sys.argv) > at else default
                                                for at, default in ((2, 64), (3, 64), (4, 5)))
    chance = random.Random(7)
    vectors, tokens = [], []
    for _ in range(rounds):
        inputs = [" ".join(chance.choice(WORDS) for _ in range(words)) for _ in range(texts)]
        request = urllib.request.Request(f"{base}/v1/embeddings", json.dumps({"input": inputs}).encode(),
                                         {"Content-Type": "application/json"})
        start = time.monotonic()
        with urllib.request.urlopen(request) as response:
            answer = json.load(response)
        seconds = time.monotonic() - start
        assert len(answer["data"]) == texts
        vectors.append(texts / seconds)
        tokens.append(answer["usage"]["prompt_tokens"] / seconds)
    for name, rates in (("vectors", vectors), ("tokens", tokens)):
        print(f"{name:8} {statistics.median(rates):9.1f} a second ({min(rates):.1f} to {max(rates):.1f})")


if __name__ == "__main__":
    main()
