#!/usr/bin/env python3
"""Measures both phases of twostroke and of llama.cpp side by side, and the server from the outside; writes
`bench/results/first-light.json` and the tables of `docs/performance.md`. Standard library only.

    cargo build --release && cargo xtask random-model qwen2.5-0.5b DIR
    bench/first_light.py --model DIR [--llama BIN_DIR --gguf-bf16 FILE --gguf-q8 FILE] [--rounds 2] [CASE ...]
    bench/first_light.py --tables        # only writes the tables again

Cases: phases, serve, start (default: all). The engines take turns, and the machine's limits are measured before each
turn: a machine shared with others changes its speed by itself, and only what was measured side by side compares.
"""

import argparse
import json
import os
import pathlib
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results/first-light.json"
PAGE = ROOT / "docs/performance.md"
BINARY = ROOT / "target/release/twostroke"
PROMPTS = (128, 512, 2048, 8192)
BATCHES = (1, 8, 32)


def output_of(command):
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
    if run.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {run.returncode}: {run.stderr[-2000:]}")
    return run.stdout


def add(results, name, values, **more):
    """Adds measured values under a name; later rounds append."""
    entry = results.setdefault(name, {"values": []} | more)
    entry["values"] += values
    print(f"{name:50s} {statistics.median(entry['values']):12.2f}   {[round(value, 2) for value in values]}", flush=True)


def limits(results):
    report = json.loads(output_of([BINARY, "doctor", "--json"]))
    add(results, "limit read bandwidth GB/s", [report["limits"]["read_bandwidth_bytes_s"] / 1e9])
    add(results, "limit bf16 GFLOP/s", [report["limits"]["bf16_flop_s"] / 1e9], kind=report["limits"]["bf16_kind"])
    add(results, "limit int8 GOP/s", [report["limits"]["int8_op_s"] / 1e9], kind=report["limits"]["int8_kind"])


def ours(results, options, weights):
    command = [BINARY, "bench", "-m", options.model, "--weights", weights, "-o", "json"]
    prefill = [*command, "-p", ",".join(map(str, PROMPTS)), "-n", "0", "-r", "2"]
    decode = [*command, "-p", "0", "-n", "32", "-B", ",".join(map(str, BATCHES)), "-r", "2"]
    for row in json.loads(output_of(prefill)) + json.loads(output_of(decode)):
        name = f"prefill {row['n_prompt']}" if row["n_prompt"] else f"decode batch {row['n_parallel']}"
        add(results, f"twostroke {weights} {name} tok/s", row["samples_ts"])
        add(results, f"twostroke {weights} {name} % of limit", [row["limit_percent"]])


def llama(results, options, precision, file):
    threads = str(os.cpu_count())
    bench = [f"{options.llama}/llama-bench", "-m", file, "-t", threads, "-o", "json", "-n", "0"]
    rows = json.loads(output_of([*bench, "-p", ",".join(map(str, PROMPTS[:3])), "-r", "2"]))
    rows += json.loads(output_of([*bench, "-p", str(PROMPTS[3]), "-r", "1"]))
    for row in rows:
        add(results, f"llama.cpp {precision} prefill {row['n_prompt']} tok/s", row["samples_ts"])
    for batch in BATCHES:
        # Context for all sequences; a last cheap case because the tool's last line is sometimes lost.
        command = [f"{options.llama}/llama-batched-bench", "-m", file, "-t", threads, "-c", str(batch * 96 + 64)]
        command += ["-npp", "32,16", "-ntg", "32", "-npl", str(batch), "--output-format", "jsonl"]
        rows = [json.loads(line) for line in output_of(command).splitlines() if line.startswith("{")]
        add(results, f"llama.cpp {precision} decode batch {batch} tok/s", [row["speed_tg"] for row in rows if row["pp"] == 32])


def phases(results, options):
    for _ in range(options.rounds):
        for weights, precision, file in (("int8", "Q8_0", options.gguf_q8), ("bf16", "BF16", options.gguf_bf16)):
            limits(results)
            ours(results, options, weights)
            if options.llama and file:
                limits(results)
                llama(results, options, precision, file)


class Server:
    """A server on a free port, until the end of the `with` block."""

    def __init__(self, options, *more):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        command = [BINARY, "serve", "-m", options.model, "--port", str(self.port), *more]
        self.started = time.perf_counter()
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self):
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                self.seconds_to_listen = time.perf_counter() - self.started
                return self
            except OSError:
                if self.process.poll() is not None:
                    sys.exit(f"the server ended with {self.process.returncode}")
                time.sleep(0.01)

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def measure(self, *cases, repeats=3):
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            script = ROOT / "bench/serving.py"
            url = f"http://127.0.0.1:{self.port}"
            output_of([sys.executable, script, "--url", url, "--repeats", str(repeats), "--json", file.name, *cases])
            return json.load(open(file.name))


def serve(results, options):
    limits(results)
    cases = [
        ("chunked, 256 rows a step", ["--max-num-seqs", "64"], ("burst", "stall", "prefix")),
        ("not chunked, 8192 rows a step", ["--max-num-seqs", "64", "--max-num-batched-tokens", "8192"], ("stall",)),
    ]
    for name, flags, measured in cases:
        with Server(options, "--weights", "int8", "--max-model-len", "8192", *flags) as server:
            for figure, entry in server.measure(*measured).items():
                add(results, f"serve int8 {name}: {figure}", entry["values"])


def start(results, options):
    results.pop("binary MB", None)
    add(results, "binary MB", [BINARY.stat().st_size / 1e6])
    for weights in ("int8", "bf16"):
        for _ in range(3):
            with Server(options, "--weights", weights, "--max-model-len", "8192") as server:
                add(results, f"start to listening, 0.5B {weights} s", [server.seconds_to_listen])
    for _ in range(3):
        begin = time.perf_counter()
        output_of([BINARY, "run", "--max-tokens", "1", "Hello"])
        add(results, "run with the built-in model, start to end s", [time.perf_counter() - begin])


CASES = {"phases": phases, "serve": serve, "start": start}


def cell(results, name, digits=0):
    entry = results.get(name)
    if entry is None:
        return "-"
    values = entry["values"]
    spread = f" ({min(values):.{digits}f}–{max(values):.{digits}f})" if len(values) > 1 else ""
    return f"{statistics.median(values):.{digits}f}{spread}"


def ratio(results, ours, theirs):
    if ours not in results or theirs not in results:
        return "-"
    return f"{statistics.median(results[ours]['values']) / statistics.median(results[theirs]['values']):.2f}x"


def tables(report):
    results = report["figures"]
    lines = [f"Machine: {report['machine']}. {report['date']}, commit {report['commit']}.", ""]
    lines += ["| limit, measured before each turn | median (range) | |", "| --- | ---: | --- |"]
    for name in ("limit read bandwidth GB/s", "limit bf16 GFLOP/s", "limit int8 GOP/s"):
        lines.append(f"| {name.removeprefix('limit ')} | {cell(results, name, 1)} | {results.get(name, {}).get('kind', '')} |")
    for weights, precision in (("int8", "Q8_0"), ("bf16", "BF16")):
        lines += ["", f"Qwen2.5-0.5B shape, random weights, {weights} (llama.cpp: {precision}):", ""]
        lines += ["| test | % of limit | twostroke tok/s | llama.cpp tok/s | ratio |", "| --- | ---: | ---: | ---: | ---: |"]
        for name in [f"prefill {n}" for n in PROMPTS] + [f"decode batch {n}" for n in BATCHES]:
            mine, theirs = f"twostroke {weights} {name}", f"llama.cpp {precision} {name} tok/s"
            share = cell(results, f"{mine} % of limit", 0)
            lines.append(
                f"| {name} | {share} | {cell(results, f'{mine} tok/s', 1)} | {cell(results, theirs, 1)} "
                f"| {ratio(results, f'{mine} tok/s', theirs)} |"
            )
    others = [name for name in results if name.startswith(("serve", "start", "run", "binary"))]
    if others:
        lines += ["", "| from the outside | median (range) |", "| --- | ---: |"]
        lines += [f"| {name.replace('_', ' ')} | {cell(results, name, 2)} |" for name in others]
    return "\n".join(lines)


def write_page(report):
    begin, end = "<!-- first-light: begin -->", "<!-- first-light: end -->"
    page = PAGE.read_text()
    head, _, rest = page.partition(begin)
    _, _, tail = rest.partition(end)
    PAGE.write_text(f"{head}{begin}\n{tables(report)}\n{end}{tail}")


def machine():
    model = next(line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name"))
    return f"{model}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--llama")
    parser.add_argument("--gguf-bf16")
    parser.add_argument("--gguf-q8")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("cases", nargs="*", choices=[*CASES, []])
    options = parser.parse_args()
    report = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"figures": {}}
    if not options.tables:
        if not options.model:
            parser.error("--model is needed to measure")
        commit = output_of(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"]).strip()
        report |= {"machine": machine(), "date": time.strftime("%Y-%m-%d"), "commit": commit}
        RESULTS.parent.mkdir(exist_ok=True)
        try:
            for case in options.cases or CASES:
                CASES[case](report["figures"], options)
        except KeyboardInterrupt:
            print("stopped; what was measured is kept", file=sys.stderr)
        RESULTS.write_text(json.dumps(report, indent=1) + "\n")
    write_page(report)


if __name__ == "__main__":
    main()
