#!/usr/bin/env python3
"""How fast KV blocks come from one worker to another: prompts that the worker which reads them has in its cache already.

    twostroke serve -m MODEL --role prefill --port 8002 --handoff-listen 127.0.0.1:9000 --cluster-key KEY &
    twostroke serve -m MODEL --role decode --port 8003 --prefill-workers 127.0.0.1:9000 --cluster-key KEY &
    twostroke serve -m MODEL --role decode --port 8004 --prefill-workers 127.0.0.1:9000 --cluster-key KEY &
    python bench/wire.py http://localhost:8003 http://localhost:8004

Each prompt is asked of the first, so that it is read, and then of the second, to which it is new. Its partner computes the end of
the prompt once more and then sends all blocks: `transfer` is asking and the blocks on their way. Targets for first tokens have
to be late (`--ttft-slo 300s`), or prompts stay where they are. Standard library only.
"""

import argparse
import random
import re
import statistics
import urllib.request

from splitting import ask

OWNERS = ("remote_queue_ms", "remote_prefill_ms", "remote_others_ms", "remote_machine_ms", "transfer_ms")


def taken(url):
    page = urllib.request.urlopen(url + "/metrics").read().decode()
    return int(re.search(r'^twostroke_kv_transfer_bytes_total\{way="taken"\} (\d+)$', page, re.M)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("first")
    parser.add_argument("second")
    parser.add_argument("--prompt-tokens", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--vocabulary", type=int, default=2000, help="token ids are drawn below this")
    args = parser.parse_args()
    rng = random.Random(2)
    rates, times, parts = [], [], {owner: [] for owner in OWNERS}
    for number in range(args.rounds + 1):
        prompt = [rng.randrange(10, args.vocabulary) for _ in range(args.prompt_tokens)]
        ask(args.first, prompt, 1)
        before = taken(args.second)
        _, timings = ask(args.second, prompt, 1)
        ttft = timings["detail"][0]["ttft"]
        came = taken(args.second) - before
        assert came > 0, "no block came: is the prompt long enough, and are these workers of one cluster?"
        if number > 0:
            spent = ttft["transfer_ms"]
            times.append(spent)
            rates.append(came / spent / 1e6)
            for owner in OWNERS:
                parts[owner].append(ttft[owner])
    print(f"{came / 1e6:.1f} MB in {statistics.median(times):.1f} ms ({min(times):.1f} to {max(times):.1f}): "
          f"{statistics.median(rates):.2f} GB/s ({min(rates):.2f} to {max(rates):.2f})")
    for owner, values in parts.items():
        print(f"  {owner.removesuffix('_ms')} {statistics.median(values):.1f} ms")


if __name__ == "__main__":
    main()
