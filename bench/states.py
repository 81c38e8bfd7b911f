"""What a prefix hit saves of a long prompt, of a model whose layers have states.

    python bench/shapes.py qwen3.5 DIRECTORY                       random weights in a small Qwen3.5 shape; needs transformers
    python bench/states.py http://127.0.0.1:8000 [TOKENS] [ROUNDS] against `twostroke serve -m DIRECTORY`

Random weights: the figures are of speed. Each round has a prompt of its own, asked cold, asked again, and gone on with by
its answer and 50 tokens, as the next turn of a chat.
"""

import json
import random
import sys
import urllib.request


def ask(base, prompt):
    body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    request = urllib.request.Request(f"{base}/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        answer = json.load(response)
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return answer["choices"][0]["token_ids"], answer["timings"]["ttft_ms"], cached


def main():
    base, tokens, rounds = sys.argv[1], *(int(sys.argv[at]) if len(sys.argv) > at else default
                                          for at, default in ((2, 15000), (3, 2)))
    chance = random.Random(5)
    draw = lambda count: [chance.randrange(3, 32000) for _ in range(count)]
    for _ in range(rounds):
        prompt = draw(tokens)
        (text, cold, _), (again, hit, found) = ask(base, prompt), ask(base, prompt)
        assert text == again, "a hit changes no token"
        _, turn, kept = ask(base, prompt + text + draw(50))
        print(f"cold {cold:.0f} ms; again {hit:.1f} ms, {found} tokens found (1/{cold / hit:.0f}); "
              f"next turn {turn:.1f} ms, {kept} found (1/{cold / turn:.0f})")


if __name__ == "__main__":
    main()
