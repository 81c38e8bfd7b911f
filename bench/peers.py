#!/usr/bin/env python3
"""Measures twostroke and its peers in turns, both phases and the server, and writes `bench/results/peers.json` and the
tables of `docs/performance.md`. `bench/peers.sh` installs what this needs and calls it. Standard library only.

    peers.py --peers DIR [--shapes qwen2.5-0.5b,...] [--kinds int8,int4,bf16] [--cases phases,serve,load] [--rounds 2] [--fresh]
    peers.py --peers DIR --cases quality          the KL divergence of each engine's formats, on SmolLM2-135M
    peers.py --tables

Every engine gets the same random tensors, the same token counts and all cores. Within a round the engines take turns,
and the machine's limits are measured before each turn: a shared machine changes its speed by itself, and only what was
measured side by side compares. Results are written after every turn; Ctrl-C keeps them.
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

from engines import BINARY, ROOT, Broken, engines, run

RESULTS = ROOT / "bench/results/peers.json"
PAGE = ROOT / "docs/performance.md"
BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
# What is measured of each shape: prompt lengths, and (sequences, tokens in the cache) of decode steps. The larger the
# shape the fewer, so that a round stays within the hour.
FULL = {"prefill": (128, 512, 2048, 8192), "decode": ((1, 128), (1, 8192), (8, 128), (32, 128))}
PLANS = {"qwen2.5-0.5b": FULL, "llama-3.2-1b": {"prefill": (512, 2048), "decode": ((1, 128), (8, 128))}}
SHORT = {"prefill": (512,), "decode": ((1, 128),)}
# The shape that speed is measured in has random weights; what a format costs in quality is measured on trained ones.
TRAINED = "smollm2-135m"
NAMES = {"int8": "8 bit", "int4": "4 bit", "bf16": "16 bit"}


class Server:
    """A server on a free port, until the end of the `with` block."""

    def __init__(self, engine):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.command = [*map(str, engine.server()), str(self.port)]

    def __enter__(self):
        started = time.perf_counter()
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not self.is_healthy():
            if self.process.poll() is not None:
                raise Broken(f"{' '.join(self.command)} ended with {self.process.returncode}")
            time.sleep(0.02)
        self.seconds_to_serve = time.perf_counter() - started
        return self

    def is_healthy(self):
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n")
                return b" 200 " in connection.recv(64)
        except OSError:
            return False

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def wait_until_it_writes_no_more(self):
        written = None
        while written != (written := pathlib.Path(f"/proc/{self.process.pid}/io").read_text()):
            time.sleep(5)

    def peak_memory(self):
        lines = open(f"/proc/{self.process.pid}/status").read().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

    def measure(self, *cases):
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            url = f"http://127.0.0.1:{self.port}"
            run([sys.executable, ROOT / "bench/serving.py", "--url", url, "--repeats", "2", "--json", file.name, *cases])
            return json.load(open(file.name))


class Report:
    """All figures, in the file after every turn."""

    def __init__(self, fresh):
        self.data = {"figures": []}
        if RESULTS.exists() and not fresh:
            self.data = json.loads(RESULTS.read_text())

    def add(self, shape, kind, engine, format, case, values, unit, share=None):
        found = self.find(shape, kind, engine, format, case)
        if found is None:
            found = {"shape": shape, "kind": kind, "engine": engine, "format": format, "case": case, "unit": unit, "values": [], "shares": []}
            self.data["figures"].append(found)
        found["values"] += [round(value, 6) for value in values]
        found["shares"] += [] if share is None else [round(share, 1)]
        print(f"{shape:12s} {engine:12s} {format:6s} {case:32s} {statistics.median(found['values']):10.4g} {unit:5s} {values}", flush=True)
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(self.data, indent=1) + "\n")

    def find(self, *key):
        names = ("shape", "kind", "engine", "format", "case")
        return next((f for f in self.data["figures"] if tuple(f[name] for name in names) == key), None)

    def limits(self):
        limits = json.loads(run([BINARY, "doctor", "--json"]))["limits"]
        self.add("-", "-", "limits", "-", "read bandwidth", [limits["read_bandwidth_bytes_s"] / 1e9], "GB/s")
        self.add("-", "-", "limits", "-", f"int8, {limits['int8_kind']}", [limits["int8_op_s"] / 1e9], "GOP/s")
        self.add("-", "-", "limits", "-", f"bf16, {limits['bf16_kind']}", [limits["bf16_flop_s"] / 1e9], "GFLOP/s")


def phases(report, shape, kind, engines, only):
    plan = PLANS.get(shape, SHORT)
    tests = [(f"prefill {n}", "prefill", (n,)) for n in plan["prefill"]]
    tests += [(f"decode x{b} @ {depth}", "decode", (b, depth)) for b, depth in plan["decode"]]
    for case, method, arguments in tests:
        if only and case not in only:
            continue
        report.limits()
        for engine in engines:
            try:
                values, share = getattr(engine, method)(*arguments)
                report.add(shape, kind, engine.name, engine.format, case, values, "tok/s", share)
            except Broken as reason:
                print(f"left out: {reason}", file=sys.stderr)


def serve(report, shape, kind, engines, _):
    for engine in engines:
        if not hasattr(engine, "server"):
            continue
        report.limits()
        try:
            with Server(engine) as server:
                for case, entry in server.measure("burst", "stall").items():
                    rate = case.endswith("_tok_s")
                    name, unit = (case.removesuffix("_tok_s"), "tok/s") if rate else case.rsplit("_", 1)
                    report.add(shape, kind, engine.name, engine.format, f"serve {name.replace('_', ' ')}", entry["values"], unit)
        except Broken as reason:
            print(f"left out: {reason}", file=sys.stderr)


def load(report, shape, kind, engines, _):
    for engine in engines:
        if not hasattr(engine, "server"):
            continue
        try:
            # A first start fills the file cache, and keeps what the engine keeps for the next one.
            with Server(engine) as server:
                server.wait_until_it_writes_no_more()
            for _ in range(3):
                with Server(engine) as server:
                    report.add(shape, kind, engine.name, engine.format, "load, start to healthy", [server.seconds_to_serve], "s")
                    report.add(shape, kind, engine.name, engine.format, "load, peak memory", [server.peak_memory() / 1e9], "GB")
        except Broken as reason:
            print(f"left out: {reason}", file=sys.stderr)


def quality(report, shape, kind, engines, _):
    for engine in (engine for engine in engines if hasattr(engine, "kl")):
        try:
            report.add(shape, kind, engine.name, engine.format, "KL", [engine.kl(ROOT / "crates/cli/calibration.txt")], "nats")
        except Broken as reason:
            print(f"left out: {reason}", file=sys.stderr)


CASES = {"phases": phases, "serve": serve, "load": load, "quality": quality}


def spread(values, digits=1):
    middle = f"{statistics.median(values):.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def more_is_better(unit):
    return unit == "tok/s"


def rows(report):
    """A row for each figure of ours and each peer's beside it: how many times better ours is."""
    figures = [f for f in report.data["figures"] if f["engine"] != "limits" and f["case"] != "KL"]
    for ours in (f for f in figures if f["engine"] == "twostroke"):
        for peer in figures:
            if peer["engine"] != "twostroke" and all(peer[k] == ours[k] for k in ("shape", "kind", "case")):
                ratio = statistics.median(ours["values"]) / statistics.median(peer["values"])
                yield ratio if more_is_better(ours["unit"]) else 1 / ratio, ours, peer


def kl(report, figure):
    """What the format of a figure costs in quality; none if that could not be measured."""
    found = report.find(TRAINED, figure["kind"], figure["engine"], figure["format"], "KL")
    return found and statistics.median(found["values"])


def is_as_good(report, ours, peer):
    """Whether ours costs no more quality than the peer's; two that round to 16 bits are taken to be equal."""
    if ours["kind"] == "bf16":
        return True
    a, b = kl(report, ours), kl(report, peer)
    return a is not None and b is not None and a <= b


def tables(report):
    data = report.data
    lines = [f"Machine: {data.get('machine', '?')}. {data.get('date', '?')}, commit {data.get('commit', '?')}. Medians (smallest–largest).", ""]
    lines += ["| limit, measured before each turn | |", "| --- | ---: |"]
    lines += [f"| {f['case']}, {f['unit']} | {spread(f['values'])} |" for f in data["figures"] if f["engine"] == "limits"]
    found = list(rows(report))
    wins = sum(ratio >= 1 and is_as_good(report, ours, peer) for ratio, ours, peer in found)
    losses = sum(ratio < 1 for ratio, *_ in found)
    lines += [
        "",
        f"Of {len(found)} comparisons {wins} are faster at equal quality, {losses} slower, {len(found) - wins - losses} faster at a higher KL. "
        "Each figure beside the peer that comes closest:",
        "",
        "| weights | figure | % of limit | twostroke | KL | closest peer | | KL | times better |",
        "| --- | --- | ---: | ---: | ---: | --- | ---: | ---: | ---: |",
    ]
    words = lambda value: "?" if value is None else f"{value:.4f}"
    closest = {}
    for ratio, ours, peer in found:
        name = (ours["shape"], ours["kind"], ours["case"])
        if name not in closest or ratio < closest[name][0]:
            closest[name] = ratio, ours, peer
    for ratio, ours, peer in closest.values():
        share = spread(ours["shares"], 0) if ours["shares"] else ""
        digits = 1 if more_is_better(ours["unit"]) or ours["unit"] == "ms" else 2
        better = f"**{ratio:.2f}x**" if ratio < 1 else f"{ratio:.2f}x"
        lines.append(
            f"| {NAMES[ours['kind']]} | {ours['case']}, {ours['unit']} | {share} | {spread(ours['values'], digits)} | {words(kl(report, ours))} "
            f"| {peer['engine']} {peer['format']} | {spread(peer['values'], digits)} | {words(kl(report, peer))} | {better} |"
        )
    return "\n".join(lines)


def write_page(report):
    page = PAGE.read_text()
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(f"{head}{BEGIN}\n{tables(report)}\n{END}{tail}")


def machine():
    model = next(line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name"))
    return f"{model}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}"


def choice(known):
    def parse(text):
        wanted = text.split(",")
        unknown = [name for name in wanted if known and name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"no {unknown[0]}; known are {', '.join(known)}")
        return wanted

    return parse


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=pathlib.Path)
    parser.add_argument("--shapes", type=choice(None), help="qwen2.5-0.5b if not said; quality is measured on SmolLM2 always")
    parser.add_argument("--kinds", type=choice(NAMES), default=["int8", "int4", "bf16"])
    parser.add_argument("--cases", type=choice(CASES), default=["phases", "serve", "load"])
    parser.add_argument("--only", type=choice(None), help="of phases only these, such as 'prefill 512,decode x1 @ 128'")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--fresh", action="store_true", help="forget what was measured before")
    parser.add_argument("--tables", action="store_true", help="only write the tables again")
    options = parser.parse_args()
    report = Report(options.fresh)
    if not options.tables:
        if options.peers is None:
            parser.error("--peers is needed to measure")
        commit = run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"]).strip()
        report.data |= {"machine": machine(), "date": time.strftime("%Y-%m-%d"), "commit": commit}
        try:
            for _ in range(options.rounds):
                for shape in [TRAINED] if options.cases == ["quality"] else options.shapes or ["qwen2.5-0.5b"]:
                    for kind in options.kinds:
                        at = options.peers / "models" / shape
                        if not (at / "hf/config.json").exists():
                            sys.exit(f"{at}/hf is missing: bench/peers.sh models {shape}")
                        there = list(engines(at, kind, options.peers))
                        for case in options.cases:
                            CASES[case](report, shape, kind, there, options.only)
        except KeyboardInterrupt:
            print("stopped; what was measured is kept", file=sys.stderr)
    write_page(report)


if __name__ == "__main__":
    main()
