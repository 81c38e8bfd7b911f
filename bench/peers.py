#!/usr/bin/env python3
"""Measures twostroke and its peers in turns, both phases and the server, and writes `bench/results/peers.json` and the
tables of `docs/performance.md`. `bench/peers.sh` installs what this needs and calls it. Standard library only.

    peers.py --peers DIR [--shapes qwen2.5-0.5b,...] [--kinds int8,int4,bf16] [--cases phases,serve,load] [--rounds 2] [--fresh]
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

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results/peers.json"
PAGE = ROOT / "docs/performance.md"
BINARY = ROOT / "target/release/twostroke"
BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
THREADS = str(os.cpu_count())
# What is measured of each shape: prompt lengths, and (sequences, tokens in the cache) of decode steps. The larger the
# shape the fewer, so that a round stays within the hour.
FULL = {"prefill": (128, 512, 2048, 8192), "decode": ((1, 128), (1, 8192), (8, 128), (32, 128))}
PLANS = {"qwen2.5-0.5b": FULL, "llama-3.2-1b": {"prefill": (512, 2048), "decode": ((1, 128), (8, 128))}}
SHORT = {"prefill": (512,), "decode": ((1, 128),)}
NAMES = {"int8": "8 bit", "int4": "4 bit", "bf16": "16 bit"}


class Broken(Exception):
    """A measurement that did not work out; said, recorded as absent, and the others go on."""


def run(command, env=None):
    """Standard output and peak memory in bytes of a command."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL, text=True, env=env)
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            errors.seek(0)
            raise Broken(f"{' '.join(map(str, command))} ended with {process.returncode}: {errors.read()[-600:]}")
    return output, usage.ru_maxrss * 1024


class Twostroke:
    name = "twostroke"

    def __init__(self, at, kind):
        # With fewer than 16 bits, 8-bit keys and values too, as OpenVINO has them by default.
        kv = ["--kv-dtype", "bf16" if kind == "bf16" else "int8"]
        self.options = ["-m", at / "hf", "--weights", kind, *kv]

    def bench(self, *more):
        return json.loads(run([BINARY, "bench", *self.options, "-o", "json", "-r", "2", *more])[0])

    def prefill(self, tokens):
        (row,) = self.bench("-p", tokens, "-n", "0")
        return row["samples_ts"], row["limit_percent"]

    def decode(self, sequences, depth):
        (row,) = self.bench("-p", "0", "-n", "32", "-B", sequences, "-d", depth)
        return row["samples_ts"], row["limit_percent"]

    def server(self):
        return [BINARY, "serve", *self.options, "--max-model-len", "8192", "--max-num-seqs", "64", "--port"]


class LlamaCpp:
    name = "llama.cpp"

    def __init__(self, at, kind, peers):
        self.file, self.bin = at / f"{kind}.gguf", peers / "llama.cpp/bin"
        if not self.file.exists() or not (self.bin / "llama-bench").exists():
            raise Broken(f"{self.file} or {self.bin} is missing")

    def bench(self, *more):
        output, _ = run([self.bin / "llama-bench", "-m", self.file, "-t", THREADS, "-fa", "1", "-o", "json", *more])
        return json.loads(output)[0]["samples_ts"]

    def prefill(self, tokens):
        return self.bench("-p", tokens, "-n", "0", "-r", "1" if tokens > 4096 else "2"), None

    def decode(self, sequences, depth):
        if sequences == 1:
            return self.bench("-p", "0", "-n", "32", "-d", depth, "-r", "1" if depth > 4096 else "2"), None
        # A last cheap case, because the tool's last line is sometimes lost.
        options = ["-c", sequences * (depth + 48) + 64, "-npp", f"{depth},16", "-ntg", "32", "-npl", sequences]
        output, _ = run([self.bin / "llama-batched-bench", "-m", self.file, "-t", THREADS, *options, "--output-format", "jsonl"])
        rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        return [row["speed_tg"] for row in rows if row["pp"] == depth], None

    def server(self):
        context = ["-np", "33", "-c", 33 * 4352, "--no-kv-unified", "--no-webui", "--cache-ram", "0"]
        return [self.bin / "llama-server", "-m", self.file, "-t", THREADS, *context, "--host", "127.0.0.1", "--port"]


class OpenVino:
    """OpenVINO GenAI's own pipeline; it has no server of its own."""

    name = "OpenVINO"
    PROGRAM = """
import sys, time, json, numpy, openvino, openvino_genai
model, tokens, new, sequences = sys.argv[1], *map(int, sys.argv[2:5])
pipe = openvino_genai.LLMPipeline(model, "CPU", ATTENTION_BACKEND="PA")
def seconds(count, repeat):
    config = openvino_genai.GenerationConfig(max_new_tokens=count, min_new_tokens=count, ignore_eos=True, do_sample=False)
    draw = numpy.random.default_rng(1000 * repeat + count)
    ids = openvino.Tensor(draw.integers(300, 1500, (sequences, tokens), dtype=numpy.int64))
    mask = openvino.Tensor(numpy.ones((sequences, tokens), dtype=numpy.int64))
    begin = time.perf_counter()
    pipe.generate(openvino_genai.TokenizedInputs(ids, mask), config)
    return time.perf_counter() - begin
rates = []
for repeat in range(3):
    first = seconds(1, repeat)
    steps = seconds(new, repeat) - first if new > 1 else 0
    rates.append([sequences * tokens / first, sequences * (new - 1) / steps if steps > 0 else 0])
print(json.dumps(rates[1:]))
"""

    def __init__(self, at, kind, peers):
        self.python, self.model = peers / "venv-openvino/bin/python", at / f"openvino-{kind}"
        if not self.model.exists() or not self.python.exists():
            raise Broken(f"{self.model} or {self.python} is missing")

    def rates(self, tokens, new, sequences):
        return json.loads(run([self.python, "-c", self.PROGRAM, self.model, tokens, new, sequences])[0].splitlines()[-1])

    def prefill(self, tokens):
        return [prefill for prefill, _ in self.rates(tokens, 1, 1)], None

    def decode(self, sequences, depth):
        return [decode for _, decode in self.rates(depth, 33, sequences)], None


class Vllm:
    """vLLM's CPU build; measured through its server, at 16 bit only."""

    name = "vLLM"

    def __init__(self, at, kind, peers):
        self.python, self.model = peers / "venv-vllm/bin/python", at / "hf"
        if kind != "bf16" or not self.python.exists():
            raise Broken(f"{self.python} is missing, or {kind} is not measured with it")

    def prefill(self, tokens):
        raise Broken("measured through its server only")

    def decode(self, sequences, depth):
        raise Broken("measured through its server only")

    def server(self):
        cores = ["VLLM_CPU_OMP_THREADS_BIND=0-" + str(os.cpu_count() - 1), "VLLM_CPU_NUM_OF_RESERVED_CPU=0", f"OMP_NUM_THREADS={THREADS}"]
        quiet = ["VLLM_CPU_KVCACHE_SPACE=3", "VLLM_NO_USAGE_STATS=1", "HF_HUB_OFFLINE=1", "VLLM_LOGGING_LEVEL=ERROR"]
        options = ["--skip-tokenizer-init", "--dtype", "bfloat16", "--max-model-len", "8192", "--max-num-seqs", "64"]
        return ["env", *cores, *quiet, self.python, "-m", "vllm.entrypoints.openai.api_server", "--model", self.model, *options, "--port"]


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

    def add(self, shape, kind, engine, case, values, unit, share=None):
        found = self.find(shape, kind, engine, case)
        if found is None:
            found = {"shape": shape, "kind": kind, "engine": engine, "case": case, "unit": unit, "values": [], "shares": []}
            self.data["figures"].append(found)
        found["values"] += [round(value, 4) for value in values]
        found["shares"] += [] if share is None else [round(share, 1)]
        print(f"{shape:14s} {kind:5s} {engine:10s} {case:34s} {statistics.median(found['values']):10.2f} {unit:5s} {values}", flush=True)
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(self.data, indent=1) + "\n")

    def find(self, shape, kind, engine, case):
        key = (shape, kind, engine, case)
        return next((f for f in self.data["figures"] if (f["shape"], f["kind"], f["engine"], f["case"]) == key), None)

    def limits(self):
        limits = json.loads(run([BINARY, "doctor", "--json"])[0])["limits"]
        self.add("-", "-", "limits", "read bandwidth", [limits["read_bandwidth_bytes_s"] / 1e9], "GB/s")
        self.add("-", "-", "limits", f"int8, {limits['int8_kind']}", [limits["int8_op_s"] / 1e9], "GOP/s")
        self.add("-", "-", "limits", f"bf16, {limits['bf16_kind']}", [limits["bf16_flop_s"] / 1e9], "GFLOP/s")


def engines(at, kind, peers):
    for make in (lambda: Twostroke(at, kind), lambda: LlamaCpp(at, kind, peers), lambda: OpenVino(at, kind, peers), lambda: Vllm(at, kind, peers)):
        try:
            yield make()
        except Broken as reason:
            print(f"left out: {reason}", file=sys.stderr)


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
                report.add(shape, kind, engine.name, case, values, "tok/s", share)
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
                    report.add(shape, kind, engine.name, f"serve {name.replace('_', ' ')}", entry["values"], unit)
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
                    report.add(shape, kind, engine.name, "load, start to healthy", [server.seconds_to_serve], "s")
                    report.add(shape, kind, engine.name, "load, peak memory", [server.peak_memory() / 1e9], "GB")
        except Broken as reason:
            print(f"left out: {reason}", file=sys.stderr)


CASES = {"phases": phases, "serve": serve, "load": load}


def spread(values, digits=1):
    middle = f"{statistics.median(values):.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def more_is_better(unit):
    return unit == "tok/s"


def rows(report):
    """One row for each figure of ours that a peer has too: how many times better we are than the best of them."""
    figures = [f for f in report.data["figures"] if f["engine"] not in ("limits",)]
    for ours in (f for f in figures if f["engine"] == "twostroke"):
        peers = [f for f in figures if f["engine"] != "twostroke" and all(f[k] == ours[k] for k in ("shape", "kind", "case"))]
        if not peers:
            continue
        sign = 1 if more_is_better(ours["unit"]) else -1
        best = max(peers, key=lambda f: sign * statistics.median(f["values"]))
        ratio = (statistics.median(ours["values"]) / statistics.median(best["values"])) ** sign
        yield ratio, ours, best, peers


def tables(report):
    data = report.data
    lines = [f"Machine: {data.get('machine', '?')}. {data.get('date', '?')}, commit {data.get('commit', '?')}. Medians (smallest–largest).", ""]
    lines += ["| limit, measured before each turn | |", "| --- | ---: |"]
    lines += [f"| {f['case']}, {f['unit']} | {spread(f['values'])} |" for f in data["figures"] if f["engine"] == "limits"]
    found = sorted(rows(report), key=lambda row: row[0])
    for title, wanted in (("Where it loses", lambda ratio: ratio < 1), ("Where it wins", lambda ratio: ratio >= 1)):
        part = [row for row in found if wanted(row[0])]
        lines += ["", f"**{title}**: {len(part)} of {len(found)} figures.", ""]
        if not part:
            continue
        lines += ["| shape, weights | figure | % of limit | twostroke | best peer | times better |", "| --- | --- | ---: | ---: | ---: | ---: |"]
        for ratio, ours, best, _ in part:
            share = spread(ours["shares"], 0) if ours["shares"] else ""
            digits = 1 if more_is_better(ours["unit"]) or ours["unit"] == "ms" else 2
            lines.append(
                f"| {ours['shape']}, {NAMES[ours['kind']]} | {ours['case']}, {ours['unit']} | {share} | {spread(ours['values'], digits)} "
                f"| {best['engine']} {spread(best['values'], digits)} | {ratio:.2f}x |"
            )
    alone = [f for f in data["figures"] if f["engine"] == "twostroke" and not any(f is ours for _, ours, _, _ in found)]
    if alone:
        lines += ["", "Without a peer's figure beside it:", "", "| shape, weights | figure | % of limit | twostroke |", "| --- | --- | ---: | ---: |"]
        for f in alone:
            share = spread(f["shares"], 0) if f["shares"] else ""
            lines.append(f"| {f['shape']}, {NAMES[f['kind']]} | {f['case']}, {f['unit']} | {share} | {spread(f['values'], 2)} |")
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
    parser.add_argument("--shapes", type=choice(None), default=["qwen2.5-0.5b"])
    parser.add_argument("--kinds", type=choice(NAMES), default=["int8", "int4", "bf16"])
    parser.add_argument("--cases", type=choice(CASES), default=[*CASES])
    parser.add_argument("--only", type=choice(None), help="of phases only these, such as 'prefill 512,decode x1 @ 128'")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--fresh", action="store_true", help="forget what was measured before")
    parser.add_argument("--tables", action="store_true", help="only write the tables again")
    options = parser.parse_args()
    report = Report(options.fresh)
    if not options.tables:
        if options.peers is None:
            parser.error("--peers is needed to measure")
        commit = run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"])[0].strip()
        report.data |= {"machine": machine(), "date": time.strftime("%Y-%m-%d"), "commit": commit}
        try:
            for _ in range(options.rounds):
                for shape in options.shapes:
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
