"""What a beam search costs beside as many plain answers: the same number of tokens, in turns.

    python bench/beams.py http://127.0.0.1:8000 [TOKENS] [ROUNDS]

against `twostroke serve`. Each round asks for N answers of TOKENS tokens to one prompt, drawn, and for N beams as long, for
several N, and takes the time of the whole answer. Printed: medians over the rounds with their spread, the ratio within a
round, and the rows that the search computed for each token of a beam.
"""

import json
import statistics
import sys
import urllib.request

BEAMS = [1, 2, 4, 8]


def ask(base, n, tokens, more):
    body = {"prompt": "Once upon a time there was a little fox who lived in the forest.", "n": n,
            "max_tokens": tokens, "ignore_eos": True, "speculate": False, **more}
    request = urllib.request.Request(f"{base}/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        answer = json.load(response)
    assert answer["usage"]["completion_tokens"] == n * tokens, "an answer was complete too early"
    return answer["timings"]


def spread(values):
    return f"{statistics.median(values):8.2f} ({min(values):.2f} to {max(values):.2f})"


def main():
    base = sys.argv[1].rstrip("/")
    tokens = int(sys.argv[2]) if len(sys.argv) > 2 else 64
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    told = {n: [] for n in BEAMS}
    for round_ in range(rounds + 1):
        for n in BEAMS:
            plain = ask(base, n, tokens, {"temperature": 1, "seed": round_})
            beams = ask(base, n, tokens, {"use_beam_search": True})
            if round_ > 0:
                told[n].append((plain["total_ms"], beams["total_ms"], beams["beam_rows"] / max(beams["decode_tokens"], 1)))
    for n, times in told.items():
        plain, beams, rows = zip(*times)
        ratios = [searched / drawn for drawn, searched, _ in times]
        print(f"{n:2} beams: plain {spread(plain)} ms, searched {spread(beams)} ms, "
              f"{spread(ratios)} of plain, {rows[0]:.1f} rows a token")


if __name__ == "__main__":
    main()
