"""What holding answers to a form costs: the same streams with and without, in turns.

    python bench/masks.py http://127.0.0.1:8000 [STREAMS] [ROUNDS]

against `twostroke serve`. Each round asks for STREAMS answers of 128 tokens at once, free, then with a text of JSON, one
of 4,000 characters at least, and a list of objects, and takes the median time per token of the answers. Printed: the
medians over the rounds with their spread, and the ratio of each form to free within its round.
"""

import concurrent.futures
import json
import statistics
import sys
import urllib.request

TOKENS = 128
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
LONG = {"type": "object", "properties": {"text": {"type": "string", "minLength": 4000}}, "required": ["text"]}
ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "kind": {"enum": ["cat", "fox", "owl", "bear"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "likes": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "kind", "age", "likes"],
    "additionalProperties": False,
}
LIST = {"type": "array", "items": ITEM, "minItems": 400}
FORMS = {"free": {}, "a text of JSON": {"guided_json": TEXT},
         "a long text": {"guided_json": LONG}, "a list of objects": {"guided_json": LIST}}


def answer(base, form, seed):
    body = {"prompt": f"Once upon a time {seed}", "max_tokens": TOKENS, "ignore_eos": True, "seed": seed,
            "temperature": 0.7, "speculate": False, **form}
    request = urllib.request.Request(f"{base}/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        timings = json.load(response)["timings"]
    return timings["decode_ms"] / timings["decode_tokens"], timings["decode_tokens"]


def together(base, form, streams):
    with concurrent.futures.ThreadPoolExecutor(streams) as pool:
        answers = list(pool.map(lambda seed: answer(base, form, seed), range(streams)))
    assert all(tokens == TOKENS - 1 for _, tokens in answers), "an answer was complete too early"
    return statistics.median(ms for ms, _ in answers)


def main():
    base = sys.argv[1].rstrip("/")
    streams = int(sys.argv[2]) if len(sys.argv) > 2 else 16
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    told = {name: [] for name in FORMS}
    for form in FORMS.values():
        together(base, form, streams)
    for _ in range(rounds):
        for name, form in FORMS.items():
            told[name].append(together(base, form, streams))
    for name, ms in told.items():
        ratios = [one / free for one, free in zip(ms, told["free"])]
        print(f"{name:18} {statistics.median(ms):8.3f} ms a token ({min(ms):.3f} to {max(ms):.3f}), "
              f"{statistics.median(ratios):.3f} of free ({min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()
