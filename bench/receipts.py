#!/usr/bin/env python3
"""Receipts of a server under load, and what receipts and spot checks cost.

    bench/receipts.py collect BINARY [-m MODEL] > receipts.jsonl    100 requests, 32 at a time, in a small cache
    BINARY verify receipts.jsonl --isa avx2 -t 1                    the same alone, on another instruction set
    bench/receipts.py cost BINARY [-m MODEL] [-t N]                 instructions of servers' work, in turns; needs perf

`cost` compares user instructions of the server process: with nothing asked for, with receipts, and with every answer
checked (`--spot-check 1`), from which follows what one of a thousand costs.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.request


class Server:
    def __init__(self, args, *flags):
        model = ["-m", args.model] if args.model else []
        command = [args.binary, "serve", "--port", "0", "--json", "-t", str(args.threads), *model, *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.url = f"http://127.0.0.1:{json.loads(self.process.stdout.readline())['port']}"

    def ask(self, path, body):
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        return urllib.request.urlopen(request).read().decode()

    def metrics(self):
        lines = urllib.request.urlopen(self.url + "/metrics").read().decode().splitlines()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}

    def checks(self):
        name, metrics = "twostroke_spot_checks_total", self.metrics()
        return [metrics[f'{name}{{result="{result}"}}'] for result in ["equal", "different", "dropped"]]

    def cpu(self):
        fields = open(f"/proc/{self.process.pid}/stat").read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def requests(number):
    """Every field that sampling and stopping depend on, over prompts that share beginnings."""
    rng = random.Random(5)
    for i in range(number):
        text = "Once upon a time there was a fox who lived by the river. " * rng.choice([1, 4, 12, 30])
        body = {"receipt": True, "max_tokens": rng.randint(1, 200), "ignore_eos": rng.random() < 0.6}
        for share, field, values in [
            (0.5, "temperature", [0, 0.7, 1.0, 1.5]), (0.3, "top_k", [5, 40]), (0.3, "top_p", [0.9]),
            (0.2, "min_p", [0.05]),
            (0.2, "repetition_penalty", [1.2]), (0.2, "presence_penalty", [0.5]), (0.2, "stop", [["the", "\n\n"]]),
            (0.2, "logit_bias", [{"200": 3.5}]), (0.2, "n", [2]), (0.5, "seed", [rng.randint(-2**63, 2**63 - 1)]),
        ]:
            if rng.random() < share:
                body[field] = rng.choice(values)
        if i % 3 == 0:
            body["stream"] = True
        if i % 2:
            yield "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": text}]}
        else:
            yield "/v1/completions", {**body, "prompt": text}


def collect(args):
    small = ["--max-num-seqs", "16", "--kv-cache-memory-bytes", args.kv_cache, "--kv-swap-memory", "4MiB"]
    server = Server(args, *small, "--max-model-len", "2048", "--spot-check", "1")
    jobs, results, lock = list(requests(100)), {}, threading.Lock()

    def work():
        while True:
            with lock:
                if not jobs:
                    return
                number = len(jobs)
                path, body = jobs.pop()
            text = server.ask(path, body)
            if body.get("stream"):
                bodies = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
            else:
                bodies = [json.loads(text)]
            found = [choice["receipt"] for body in bodies for choice in body["choices"] if choice.get("receipt")]
            results[number] = found

    threads = [threading.Thread(target=work) for _ in range(32)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    receipts = [receipt for number in sorted(results) for receipt in results[number]]
    for receipt in receipts:
        print(json.dumps(receipt))
    while sum(server.checks()) < len(receipts):
        time.sleep(0.1)
    metrics, (equal, different, dropped) = server.metrics(), server.checks()
    hits, lost = metrics["twostroke_prefix_cache_hits_total"], metrics["twostroke_num_preemptions_total"]
    print(f"{len(receipts)} receipts of {len(results)} requests; {hits:.0f} tokens from the prefix cache, "
          f"{lost:.0f} preemptions; spot checks: {equal:.0f} equal, {different:.0f} different, {dropped:.0f} dropped",
          file=sys.stderr)
    server.process.kill()


class Counted:
    """User instructions of a server while this is open, as perf counts them: the same on a busy machine."""

    def __init__(self, server):
        command = ["perf", "stat", "-x,", "-e", "instructions:u", "-p", str(server.process.pid)]
        self.perf = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        time.sleep(0.5)

    def close(self):
        self.perf.send_signal(signal.SIGINT)
        lines = [line for line in self.perf.communicate()[1].splitlines() if "instructions" in line]
        return int(lines[0].split(",")[0])


def cost(args):
    flags = ["--kv-cache-memory-bytes", "512MiB", "--max-model-len", "2048"]
    plain, checking = Server(args, *flags), Server(args, *flags, "--spot-check", "1")
    kinds = {"nothing": (plain, False, False), "receipts": (plain, True, False), "checks": (checking, False, True)}
    counts = {name: [] for name in kinds}
    for number in range(args.rounds + 1):
        for name, (server, receipt, waits) in kinds.items():
            counted, before, checked = Counted(server), server.cpu(), sum(server.checks())
            for group in range(0, args.requests, 4):
                def one(i):
                    # No prompt comes twice to a server, so none is found in the prefix cache.
                    prompt = random.Random(f"{name} {number} {i}").choices(range(10, 900), k=args.prompt)
                    server.ask("/v1/completions", {"prompt": prompt, "max_tokens": args.tokens, "ignore_eos": True,
                                                   "temperature": 0, "receipt": receipt})
                threads = [threading.Thread(target=one, args=(i,)) for i in range(group, group + 4)]
                [thread.start() for thread in threads]
                [thread.join() for thread in threads]
                while waits and sum(server.checks()) - checked < group + 4:
                    time.sleep(0.01)
            instructions, seconds = counted.close(), server.cpu() - before
            spent = f"{instructions / 1e9:7.3f} G instructions, {seconds:6.2f} s of processor time"
            print(f"round {number} {name:9} {spent}", file=sys.stderr)
            if number:  # the first is for warmth: the digest of the weights is in it
                counts[name].append(instructions)
    nothing, receipts, checks = [statistics.median(counts[name]) for name in kinds]
    tokens = args.requests * args.tokens
    print(f"nothing asked for: {nothing / tokens / 1e6:.3f} M instructions a token")
    more = receipts / nothing - 1
    print(f"receipts: {more * nothing / tokens:+.0f} instructions a token, {more * 100:+.3f} %")
    more = checks / nothing - 1
    print(f"every answer checked: {more * 100:+.1f} %; one of a thousand: {more / 10:+.4f} %")
    plain.process.kill()
    checking.process.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["collect", "cost"])
    parser.add_argument("binary")
    parser.add_argument("-m", "--model")
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("--kv-cache", default="6MiB", help="collect: so small that sequences push each other out")
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--prompt", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    {"collect": collect, "cost": cost}[args.what](args)


if __name__ == "__main__":
    main()
