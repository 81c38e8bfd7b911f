#!/usr/bin/env python3
"""Measures a running OpenAI-compatible server from the outside, phase by phase. Standard library only.

    serving.py burst    32 requests of 64 to 1,024 prompt tokens at once, 64 tokens out each
    serving.py stall    8 running streams while one long prompt arrives: their worst gap between two tokens
    serving.py prefix   one prompt of 4,096 tokens, cold and again: time to first token of both
    serving.py goodput  chat (and every tenth a long document) at --rate for --seconds: requests per second in time

usage: serving.py [--url URL] [--model NAME] [--repeats N] [--json FILE] [--long N] [--rate X] [--seconds N]
                  [--ttft-slo MS] [--tpot-slo MS] CASE [CASE ...]

Prompts are random token ids, different in every repeat, so that nothing is found in a prefix cache unless the case is
about that. TTFT = request sent to first token; gap = time between two tokens of one stream; TPOT = (last - first token)
/ (tokens - 1). Each figure is the median over the repeats, with the smallest and largest beside it.
"""

import argparse
import http.client
import json
import math
import random
import statistics
import sys
import threading
import time
import urllib.parse


class Server:
    """Where requests go."""

    def __init__(self, options):
        parts = urllib.parse.urlsplit(options.url)
        self.host, self.port, self.model = parts.hostname, parts.port or 80, options.model
        self.options = options

    def stream(self, prompt, max_tokens, started=None):
        """Sends one greedy request; returns the arrival time of every token, counted from the sending."""
        body = dict(prompt=prompt, max_tokens=max_tokens, temperature=0, ignore_eos=True, stream=True)
        if self.model:
            body["model"] = self.model
        connection = http.client.HTTPConnection(self.host, self.port, timeout=3600)
        begin = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            sys.exit(f"the server answered {response.status}: {response.read(2000).decode(errors='replace')}")
        times = []
        for line in response:
            if not line.startswith(b"data:") or b"[DONE]" in line:
                continue
            event = json.loads(line[5:])
            if "error" in event:
                sys.exit(f"the server reported: {event['error']}")
            # The last event of some servers carries only a finish reason or usage.
            if len(times) < max_tokens and event.get("choices"):
                times.append(time.perf_counter())
                if started and len(times) == 1:
                    started.release()
        connection.close()
        return begin, times


def tokens(count, seed):
    """A prompt of random ids that every vocabulary has and no tokenizer treats as special."""
    draw = random.Random(seed)
    return [draw.randrange(300, 1500) for _ in range(count)]


def parallel(jobs):
    """Runs every job on a thread of its own; returns their results in order."""
    results = [None] * len(jobs)

    def run(index):
        results[index] = jobs[index]()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def percentile(values, share):
    """By linear interpolation, as everywhere here (crates/figures)."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below, above = ordered[math.floor(place)], ordered[math.ceil(place)]
    return below + (above - below) * (place % 1)


def burst(server, repeat):
    draw = random.Random(7)
    lengths = [round(math.exp(draw.uniform(math.log(64), math.log(1024)))) for _ in range(32)]
    prompts = [tokens(length, 1000 * repeat + index) for index, length in enumerate(lengths)]
    runs = parallel([lambda prompt=prompt: server.stream(prompt, 64) for prompt in prompts])
    first = min(begin for begin, _ in runs)
    total = max(times[-1] for _, times in runs) - first
    ttft = [times[0] - begin for begin, times in runs]
    # A server may hold back tokens that end within a character until one ends it, if need be all of an answer.
    tpot = [(times[-1] - times[0]) / (len(times) - 1) for _, times in runs if len(times) > 1]
    return {
        "total_s": total,
        "prompt_tok_s": sum(lengths) / total,
        "output_tok_s": 32 * 64 / total,
        "ttft_p50_s": percentile(ttft, 0.5),
        "ttft_p99_s": percentile(ttft, 0.99),
        "tpot_p50_ms": 1e3 * percentile(tpot, 0.5),
        "tpot_p99_ms": 1e3 * percentile(tpot, 0.99),
    }


def stall(server, repeat):
    started = threading.Semaphore(0)
    runs = []
    streams = [
        threading.Thread(target=lambda index=index: runs.append(server.stream(tokens(64, 2000 * repeat + index), 256, started)))
        for index in range(8)
    ]
    for thread in streams:
        thread.start()
    for _ in streams:
        started.acquire()
    time.sleep(0.5)
    begin, times = server.stream(tokens(server.options.long, 3000 + repeat), 8)
    for thread in streams:
        thread.join()
    gaps = [
        (later - earlier, earlier < times[0] and later > begin)
        for _, stream in runs
        for earlier, later in zip(stream, stream[1:])
    ]
    during = [gap for gap, overlaps in gaps if overlaps]
    quiet = [gap for gap, overlaps in gaps if not overlaps]
    return {
        "worst_gap_ms": 1e3 * max(during),
        "median_gap_during_ms": 1e3 * statistics.median(during),
        "median_gap_before_and_after_ms": 1e3 * statistics.median(quiet) if quiet else float("nan"),
        "long_prompt_ttft_s": times[0] - begin,
    }


def prefix(server, repeat):
    prompt = tokens(4096, 4000 + repeat)
    figures = {}
    for name in ("cold", "hit"):
        begin, times = server.stream(prompt, 4)
        figures[f"ttft_{name}_ms"] = 1e3 * (times[0] - begin)
    return figures


def goodput(server, repeat):
    """Requests arrive by chance, the same ones for every server; a request is good that meets both targets."""
    options = server.options
    draw = random.Random(5000 + repeat)
    jobs, at = [], 0.0
    while at < options.seconds:
        at += draw.expovariate(options.rate)
        is_document = draw.random() < 0.1
        median, most = (2000, 6000) if is_document else (180, 3000)
        length = min(most, max(8, round(draw.lognormvariate(math.log(median), 0.7))))
        output = min(300, max(4, round(draw.lognormvariate(math.log(90), 0.6))))
        jobs.append((at, tokens(length, 10_000 * repeat + len(jobs)), output))
    start = time.perf_counter()

    def ask(at, prompt, output):
        time.sleep(max(0.0, start + at - time.perf_counter()))
        return server.stream(prompt, output)

    runs = parallel([lambda job=job: ask(*job) for job in jobs])
    ttft = [1e3 * (times[0] - begin) for begin, times in runs]
    tpot = [1e3 * (times[-1] - times[0]) / max(1, len(times) - 1) for _, times in runs]
    good = sum(first <= options.ttft_slo and each <= options.tpot_slo for first, each in zip(ttft, tpot))
    return {
        "good_requests": good,
        "requests": len(jobs),
        "good_per_s": good / (time.perf_counter() - start),
        "ttft_p50_ms": percentile(ttft, 0.5),
        "ttft_p90_ms": percentile(ttft, 0.9),
        "ttft_p99_ms": percentile(ttft, 0.99),
        "tpot_p50_ms": percentile(tpot, 0.5),
        "tpot_p90_ms": percentile(tpot, 0.9),
        "tpot_p99_ms": percentile(tpot, 0.99),
    }


CASES = {"burst": burst, "stall": stall, "prefix": prefix, "goodput": goodput}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", default="")
    parser.add_argument("--long", type=int, default=4096, help="tokens of the long prompt of stall")
    parser.add_argument("--rate", type=float, default=1.0, help="requests per second of goodput")
    parser.add_argument("--seconds", type=float, default=60, help="how long goodput sends")
    parser.add_argument("--ttft-slo", type=float, default=2000, help="milliseconds")
    parser.add_argument("--tpot-slo", type=float, default=100, help="milliseconds")
    parser.add_argument("cases", nargs="+", choices=CASES)
    options = parser.parse_args()
    server = Server(options)
    server.stream(tokens(64, 1), 4)  # warm-up
    report = {}
    for case in options.cases:
        runs = [CASES[case](server, repeat) for repeat in range(1, options.repeats + 1)]
        for name in runs[0]:
            values = [run[name] for run in runs]
            report[f"{case}_{name}"] = {"median": statistics.median(values), "values": values}
            print(f"{case:7s} {name:32s} {statistics.median(values):10.2f}   [{min(values):.2f} .. {max(values):.2f}]", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(report, file, indent=1)


if __name__ == "__main__":
    main()
