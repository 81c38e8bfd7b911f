"""What it costs that another worker reads a prompt: the same prompts to a server by itself and to one whose prompts are
read elsewhere, in turns, each prompt new to both.

    twostroke serve -m MODEL --port 8001 &
    twostroke serve -m MODEL --role prefill --port 8002 --handoff-listen 127.0.0.1:9000 --cluster-key KEY &
    twostroke serve -m MODEL --role decode --port 8003 --prefill-workers 127.0.0.1:9000 --cluster-key KEY &
    python bench/splitting.py http://localhost:8001 http://localhost:8003
"""

import argparse
import json
import random
import statistics
import urllib.request


def ask(url, prompt, tokens):
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "timings_detail": True,
            "return_token_ids": True, "speculate": False}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        answer = json.load(answer)
    return answer["choices"][0]["token_ids"], answer["timings"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("joint")
    parser.add_argument("split")
    parser.add_argument("--prompt-tokens", type=int, default=2048)
    parser.add_argument("--max-tokens", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--vocabulary", type=int, default=2000, help="token ids are drawn below this")
    args = parser.parse_args()
    rng = random.Random(1)
    times = {"joint": [], "split": []}
    owners = {}
    for number in range(args.rounds + 1):
        prompt = [rng.randrange(10, args.vocabulary) for _ in range(args.prompt_tokens)]
        answers = []
        for name, url in (("joint", args.joint), ("split", args.split)):
            tokens, timings = ask(url, prompt, args.max_tokens)
            answers.append(tokens)
            # The first round warms both.
            if number > 0:
                times[name].append(timings["ttft_ms"])
                if name == "split":
                    for owner, ms in timings["detail"][0]["ttft"].items():
                        owners.setdefault(owner, []).append(ms)
        assert answers[0] == answers[1], "the same prompt has two answers"
    for name, ttfts in times.items():
        print(f"{name}: first token after {statistics.median(ttfts):.1f} ms ({min(ttfts):.1f} to {max(ttfts):.1f})")
    joint, split = (statistics.median(times[name]) for name in ("joint", "split"))
    print(f"split - joint: {split - joint:.1f} ms, {(split / joint - 1) * 100:.1f} %")
    for owner, all_ms in owners.items():
        if statistics.median(all_ms) >= 0.05:
            print(f"  {owner}: {statistics.median(all_ms):.1f} ms")


if __name__ == "__main__":
    main()
