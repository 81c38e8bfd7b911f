#!/usr/bin/env python3
"""What a server says and does when the machine has other work. Standard library only; Linux with at least two cores.

    busy.py owner BINARY [-t THREADS] [--loops 1] [--core 0] [--tokens 8000]
    busy.py prefill BINARY [-t THREADS] [--times 40] [--tokens 1024]
    busy.py promises BINARY [--requests 500] [--rate 4] [--ttft-slo 2s]
    busy.py plan BINARY [--times 5] [--tokens 1024]
    busy.py start BINARY [--steps 100]
    busy.py late-step BINARY MODEL [--prompt-tokens 8192] [flags of serve ...]
    busy.py queue BINARY [--few 12] [--many 200]
    busy.py pool BINARY [--tokens 1000] [--rounds 2] [--repeats 3]

Each starts its own server with an empty cache, and ends it. Other work is busy loops, each pinned to a core; nothing
else should run meanwhile, or the figures are of that as well. What each must show:

owner      One stream quiet, then beside a busy loop: who owns what its tokens took longer? At least 90 % of the excess
           is `machine`, and the own time of a token, its drafts included, is within 10 % of quiet, or `uncertain` holds it.
prefill    The same prompt again and again, never from the cache: quiet, beside 1, 2 and 8 busy loops, and with a tenth of a
           core (where this process may make control groups). The median of its own time is within 10 % of quiet, or the
           interval that `uncertain` of its timeline gives holds quiet's median, or is within 10 % of it, in at least 90 %.
promises   Mixed requests: quiet, beside 1, 2 and 8 busy loops, with a tenth of a core, and with a file of costs whose every number is 8 times
           too large. Of both promises 93 to 97 % are kept, and the median width is at most twice the spread of the
           truth; with the file, from the 51st request on. Then the same file with --refuse-late and 60 prompts one by
           one: only 200 and 503 with Retry-After, no more than 31 refusals in a row, nearly all served.
plan       `plan --machine here` under each load, with what an earlier start has measured and with nothing: TTFT and TPOT are
           within 15 % of what a quiet server takes, or it says that it is not sure.
start      A first start under each load. Then all is quiet, and after that many steps the next
           ones take what is predicted, give or take 15 %; so do the first ones of the next start, and the limits of
           both are within 15 % of those of a quiet one, or not sure.
late-step  8 streams while one long prompt arrives: the worst gap at the client is at most 150 ms, or the excess of its
           step is booked: on the machine (`machine`), or seen in page faults or in processor time of other threads.
           Meant for a model of some size, say with --weights int8 --kv-dtype int8 --ttft-slo 2s --tpot-slo 100ms.
queue      12 and 200 prompts at once: at least 99.9 % of TTFT beyond own prefill, machine and overhead has a name (the
           part on the largest, by request, beside it), and delays less costs are 0.000000 ms. Then, of the first
           crowd, TTFT as recorded, as simulated, and without one of the others.
pool       `bench` with one thread and with two beside loads on one or both cores: under every load two threads take at
           most 1.1 times as long as the better of the two.
"""

import argparse
import collections
import contextlib
import http.client
import json
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from serving import percentile

STREAMS = 8
LOADS = [[], [0], [1], [0, 1], [1] * 4, [0] * 4 + [1] * 4]
# Ends by itself when its parent is gone.
LOOP = """
import os, sys
core, parent = map(int, sys.argv[1:])
os.sched_setaffinity(0, {core})
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""


@contextlib.contextmanager
def loops(cores: Iterable[int]) -> Iterator[None]:
    """Busy loops, one for each core that is named, until the end of the `with` block."""
    running = []
    try:
        for core in cores:
            running.append(subprocess.Popen([sys.executable, "-c", LOOP, str(core), str(os.getpid())]))
        time.sleep(0.5)
        yield
    finally:
        for loop in running:
            loop.kill()
            loop.wait()


class Server(NamedTuple):
    port: int
    pid: int
    start: dict
    """What it says of itself when it begins to serve."""

    def call(self, path: str, body: dict | None = None, headers: dict | None = None) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        method, content = ("GET", None) if body is None else ("POST", json.dumps(body))
        connection.request(method, path, content, {"Content-Type": "application/json", **(headers or {})})
        return connection.getresponse()

    def ask(self, path: str, body: dict | None = None, headers: dict | None = None) -> dict:
        response = self.call(path, body, headers)
        text = response.read()
        if response.status != 200:
            raise RuntimeError(f"{path} was answered {response.status}: {text[:2000].decode(errors='replace')}")
        return json.loads(text)


@contextlib.contextmanager
def serving(binary: str, cache: str, *flags: str) -> Iterator[Server]:
    """A server on a free port, until the end of the `with` block."""
    command = [binary, "serve", "--port", "0", "--json", *flags]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, env=env(cache), stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            line = process.stdout.readline()
            if not line:
                log.seek(0)
                sys.exit(f"{' '.join(command)} did not serve:\n{log.read()}")
            start = json.loads(line)
            yield Server(start["port"], process.pid, start)
        finally:
            process.terminate()
            process.wait()


def env(cache: str) -> dict[str, str]:
    return {**os.environ, "XDG_CACHE_HOME": cache}


def empty_cache() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="twostroke-busy-")


# ---- owner ----


def gaps_by_owner(server: Server, tokens: int) -> dict[str, float]:
    """Microseconds of a token. One prompt after another, so that a context stays short."""
    sums, count = collections.Counter(), 0
    body = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "timings_detail": True}
    while count < tokens:
        answer = server.ask("/v1/completions", body)
        detail = answer["timings"]["detail"][0]
        sums.update(detail["gaps"])
        sums["uncertain"] += detail["uncertain"]["gaps_ms"]
        count += answer["usage"]["completion_tokens"] - 1
    return {owner.removesuffix("_ms"): ms / count * 1e3 for owner, ms in sums.items()}


def owner(flags: argparse.Namespace) -> None:
    threads = ["-t", flags.threads] if flags.threads else []
    with empty_cache() as cache, serving(flags.binary, cache, *threads) as server:
        gaps_by_owner(server, flags.tokens // 4)  # the costs of steps settle
        quiet = gaps_by_owner(server, flags.tokens)
        with loops([flags.core] * flags.loops):
            busy = gaps_by_owner(server, flags.tokens)
    print(f"{'owner':>16} {'quiet':>9} {'busy':>9}   us a token")
    for name in sorted(busy):
        print(f"{name:>16} {quiet.get(name, 0):9.1f} {busy[name]:9.1f}")
    width = busy.pop("uncertain") - quiet.pop("uncertain")
    excess = sum(busy.values()) - sum(quiet.values())
    machine = (busy["machine"] - quiet["machine"]) / excess * 100
    # How many drafts are checked follows from what steps cost, and that from the load.
    own_quiet, own_busy = (gaps["own_decode"] + gaps["own_drafts"] for gaps in (quiet, busy))
    own = (own_busy / own_quiet - 1) * 100
    print(f"excess {excess:.1f} us a token, of which machine {machine:.1f} % (wanted: at least 90)")
    wide = width / own_quiet * 100
    print(f"own decode, drafts included, {own:+.1f} %, give or take {wide:.1f} % (wanted: within 10, or an interval that holds quiet's)")


# ---- prefill ----


def loads(pid: int) -> dict[str, contextlib.AbstractContextManager]:
    """What a process is to bear, each for one `with`."""
    busy = {"quiet": [], "1 loop": [0], "2 loops": [0, 1], "8 loops": [0, 1] * 4}
    return {name: loops(cores) for name, cores in busy.items()} | {"a tenth of a core": a_tenth_of_a_core(pid)}


@contextlib.contextmanager
def a_tenth_of_a_core(pid: int) -> Iterator[None]:
    """Lets the process have 10 ms of CPU time in 100 ms, until the end of the `with` block (cgroup v1 or v2)."""
    root = pathlib.Path("/sys/fs/cgroup")
    old = root / "cpu"
    group = (old if old.is_dir() else root) / f"twostroke-busy-{os.getpid()}"
    group.mkdir()
    try:
        if old.is_dir():
            (group / "cpu.cfs_period_us").write_text("100000")
            (group / "cpu.cfs_quota_us").write_text("10000")
        else:
            (group / "cpu.max").write_text("10000 100000")
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        # What it started meanwhile as well.
        for process in (group / "cgroup.procs").read_text().split():
            (group.parent / "cgroup.procs").write_text(process)
        group.rmdir()


def prefills(server: Server, times: int, prompt: list[int]) -> list[dict]:
    body = {"prompt": prompt, "max_tokens": 1, "timings_detail": True}
    # Another salt for each: the cache knows none of them.
    return [server.ask("/v1/completions", {**body, "cache_salt": f"{time.time()}"})["timings"] for _ in range(times)]


def prefill(flags: argparse.Namespace) -> None:
    threads = ["-t", flags.threads] if flags.threads else []
    rng = random.Random(1)
    prompt = [rng.randrange(1000, 2000) for _ in range(flags.tokens)]
    # Without the prefix cache every prompt has the same blocks: the first use of memory is work of the kernel.
    flags_of_serve = ["--no-enable-prefix-caching", *threads]
    with empty_cache() as cache, serving(flags.binary, cache, *flags_of_serve) as server:
        prefills(server, flags.times, prompt)  # the costs of steps settle
        print(f"{'load':>18} {'prefill':>8} {'own':>8} {'of quiet':>8} {'p5':>7} {'p95':>7} {'+-':>7} {'held':>5}   ms")
        for name in loads(server.pid):
            # Machines change their speed by themselves: quiet is what was quiet just before and just after.
            timings, quiets = [], []
            try:
                for _ in range(4):
                    quiets += prefills(server, flags.times // 4, prompt)
                    with loads(server.pid)[name]:
                        timings += prefills(server, flags.times // 4, prompt)
            except OSError as error:
                print(f"{name:>18}: {error}")
                continue
            own = [timing["detail"][0]["ttft"]["own_prefill_ms"] for timing in timings]
            width = [timing["detail"][0]["uncertain"]["ttft_ms"] for timing in timings]
            middle = percentile(own, 0.5)
            quiet = percentile([timing["detail"][0]["ttft"]["own_prefill_ms"] for timing in quiets], 0.5)
            held = sum(abs(value - quiet) <= max(wide, quiet * 0.1) for value, wide in zip(own, width)) / len(own)
            took = percentile([timing["ttft_ms"] for timing in timings], 0.5)
            print(
                f"{name:>18} {took:8.2f} {middle:8.2f} {middle / quiet * 100 - 100:+7.1f}% {percentile(own, 0.05):7.2f} "
                f"{percentile(own, 0.95):7.2f} {percentile(width, 0.5):7.2f} {held * 100:4.0f}%   "
                f"{len(own) - len(set(own))} equal to the digit"
            )


# ---- plan ----


def planned(flags: argparse.Namespace, cache: str, load: str) -> dict:
    """What `plan` says under a load."""
    command = [flags.binary, "plan", "--machine", "here", "-m", "lantern", "--prompt", str(flags.tokens), "--json"]
    with loads(os.getpid())[load]:
        done = subprocess.run(command, env=env(cache), capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def plan(flags: argparse.Namespace) -> None:
    rng = random.Random(1)
    prompt = [rng.randrange(1000, 2000) for _ in range(flags.tokens)]

    def truth() -> dict[str, float]:
        with serving(flags.binary, cache, "--speculate", "off") as server:
            prefills(server, 5, prompt)
            body = {"prompt": prompt, "max_tokens": 256, "ignore_eos": True}
            answers = [server.ask("/v1/completions", body)["timings"] for _ in range(5)]
            ttft = percentile([timing["ttft_ms"] for timing in prefills(server, 10, prompt)], 0.5)
        return {"ttft": ttft, "tpot": percentile([answer["decode_ms"] / 255 for answer in answers], 0.5)}

    with empty_cache() as cache:
        truth()  # the costs of steps are kept
        for load in loads(0):
            for known in ("steps known", "nothing known"):
                good, shown = collections.Counter(), []
                for _ in range(flags.times):
                    quiet = truth()
                    with empty_cache() as nothing:
                        told = planned(flags, cache if known == "steps known" else nothing, load)
                    off = {name: told[f"{name}_ms"] / quiet[name] - 1 for name in quiet}
                    is_sure = told["machine"]["not_sure"] is None
                    good.update(name for name in off if not is_sure or abs(off[name]) <= 0.15)
                    shown.append("/".join(f"{off[name] * 100:+.0f}" for name in off) + ("" if is_sure else " not sure"))
                print(f"{load:>18}, {known:>13}: TTFT {good['ttft']}, TPOT {good['tpot']} of {flags.times}: {', '.join(shown)} %")


# ---- start ----


def off(server: Server, steps: int) -> dict[str, float]:
    """By how much steps took longer than predicted, after so many in all: medians by phase, of those that nothing disturbed."""
    stop, seen = threading.Event(), []
    reader = threading.Thread(target=read_feed, args=(server, stop, seen), daemon=True)
    reader.start()
    rng = random.Random(steps)
    for at in range(max(20, steps)):
        prompt = [rng.randrange(1000, 2000) for _ in range(400)]
        server.ask("/v1/completions", {"prompt": prompt, "max_tokens": 6, "ignore_eos": True, "speculate": False})
    stop.set()
    server.ask("/v1/completions", {"prompt": [1], "max_tokens": 2})
    reader.join(10)
    ratios = {"decode": [], "prompts": []}
    for step in seen[steps:]:
        own = step["took"] - step.get("stolen", 0)
        if step["predicted"] > 0 and not step.get("uncertain"):
            ratios["prompts" if step["prefill"] else "decode"].append(own / step["predicted"])
    return {phase: percentile(found, 0.5) - 1 for phase, found in ratios.items()}


def limits_of(server: Server) -> dict:
    return {name: value for name, value in (server.ask("/live/info")["limits"] or {}).items() if isinstance(value, float)}


def start(flags: argparse.Namespace) -> None:
    with empty_cache() as cache, serving(flags.binary, cache) as server:
        quiet_limits = limits_of(server)
        print(f"{'quiet':>18}: {quiet_limits}")
    for load in loads(0):
        with empty_cache() as cache:
            first = serving(flags.binary, cache)
            with loads(os.getpid())[load]:
                server = first.__enter__()
            with contextlib.closing(contextlib.ExitStack()) as stack:
                stack.push(first)
                doubt = server.start["calibration"].get("not_sure")
                found = off(server, flags.steps)
            with serving(flags.binary, cache) as server:
                again, believed = off(server, 0), server.start["calibration"]["from_disk"]
                now = limits_of(server)
        show = lambda found: ", ".join(f"{phase} {share * 100:+.1f} %" for phase, share in found.items())
        far = {name: round(now[name] / value - 1, 3) for name, value in quiet_limits.items() if value and name in now}
        print(f"{load:>18}: not sure: {doubt}; after {flags.steps} steps {show(found)}; next start ({'kept' if believed else 'measured again'}) {show(again)}; limits {far}")


# ---- promises ----


class Outcome(NamedTuple):
    status: str
    retry_after: str | None
    timings: dict


def mixed_requests(number: int, rng: random.Random) -> list[dict]:
    words = "the fox looked at lantern and swamp while a clever owl sang of gold under old trees".split()
    bodies = []
    for index in range(number):
        mean = 1500 if rng.random() < 0.1 else 150
        length = int(min(4000, max(4, mean * rng.gammavariate(1.5, 1 / 1.5))))
        prompt = " ".join(rng.choice(words) for _ in range(length))
        tokens = 16 if rng.random() < 0.3 else 256
        bodies.append({"prompt": f"{index} {prompt}", "max_tokens": tokens, "temperature": 0.8, "seed": index})
    return bodies


def outcome(server: Server, body: dict) -> Outcome:
    try:
        response = server.call("/v1/completions", body)
        timings = json.loads(response.read()).get("timings", {})
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Outcome(repr(error), None, {})
    return Outcome(str(response.status), response.getheader("Retry-After"), timings)


def crowd_of_requests(server: Server, number: int, rate: float) -> None:
    """Sends requests that arrive by chance, the same ones every time, and prints what was promised and what came."""
    rng = random.Random(7)
    bodies, pending, at = mixed_requests(number, rng), [], time.monotonic()
    with ThreadPoolExecutor(number) as pool:
        for body in bodies:
            at += rng.expovariate(rate)
            time.sleep(max(0, at - time.monotonic()))
            pending.append(pool.submit(outcome, server, body))
    outcomes = [future.result() for future in pending]
    served = [each.timings for each in outcomes if each.status == "200"]
    others = sorted({f"{each.status}, Retry-After {each.retry_after}" for each in outcomes if each.status != "200"})
    print(f"{len(served)} of {number} served; others: {others[:5]}")
    if served:
        # The median truth is predicted for a first token only; for an answer the width is to what it took.
        kept_promises("ttft", served, "promised_ttft_ms", "ttft_ms", "predicted_ttft_ms")
        kept_promises("answer", served, "promised_total_ms", "total_ms", "total_ms")


def kept_promises(name: str, served: list[dict], promised: str, came: str, width_from: str) -> None:
    kept = [timings[came] <= timings[promised] for timings in served]
    share = lambda values: f"{100 * sum(values) / len(values):.1f} %" if values else "-"
    truth = [timings[came] for timings in served]
    spread = percentile(truth, 0.95) - percentile(truth, 0.5)
    width = percentile([timings[promised] - timings[width_from] for timings in served], 0.5)
    print(
        f"{name:7} kept {share(kept)}, from the 51st on {share(kept[50:])} (wanted: 93 to 97); "
        f"median width {width:.1f} ms, spread of the truth {spread:.1f} ms (wanted: width at most twice that)"
    )
    print("        by tens:", *(sum(kept[start : start + 10]) for start in range(0, min(100, len(kept)), 10)))


def prompts_one_by_one(server: Server, number: int) -> None:
    marks = []
    for index in range(number):
        body = {"prompt": [7 + index] * 1800, "max_tokens": 1, "ignore_eos": True}
        came = outcome(server, body)
        was_refused = came.status == "503" and came.retry_after
        marks.append("x" if was_refused else "." if came.status == "200" else f"[{came.status}]")
    longest = max(map(len, "".join("x" if mark == "x" else "." for mark in marks).split(".")))
    print(f"served . refused x: {''.join(marks)}")
    print(f"{marks.count('.')} of {number} served, longest run of refusals {longest} (wanted: nearly all, at most 31)")


def promises(flags: argparse.Namespace) -> None:
    with empty_cache() as cache:
        print("== quiet")
        with serving(flags.binary, cache) as server:
            crowd_of_requests(server, flags.requests, flags.rate)
            for line in server.call("/metrics").read().decode().splitlines():
                if line.startswith("twostroke_promises"):
                    print(line)
        costs = {path: path.read_text() for path in pathlib.Path(cache).rglob("*.cost")}
        for load in list(loads(0))[1:]:
            print(f"== {load}")
            # With a tenth of a core a tenth of the requests are served in that time.
            share = 0.1 if "tenth" in load else 1
            with serving(flags.binary, cache) as server, loads(server.pid)[load]:
                crowd_of_requests(server, int(flags.requests * max(share, 0.3)), flags.rate * share)
        # What a server learns of wrong costs it writes down, so each start is given them anew.
        print("== costs times 8")
        make_wrong(costs, 8)
        with serving(flags.binary, cache) as server:
            say_whether_believed(server)
            crowd_of_requests(server, flags.requests, flags.rate)
        print(f"== costs times 8, --refuse-late --ttft-slo {flags.ttft_slo}")
        make_wrong(costs, 8)
        with serving(flags.binary, cache, "--refuse-late", "--ttft-slo", flags.ttft_slo) as server:
            say_whether_believed(server)
            prompts_one_by_one(server, 60)


def make_wrong(costs: dict[pathlib.Path, str], factor: float) -> None:
    """Files of costs with every time multiplied, and of threads that had their cores: others are measured again."""
    if not costs:
        sys.exit("the server kept no file of costs")
    for path, text in costs.items():
        digest, body = text.split("\n", 1)
        if blake3(body.encode()) != digest:
            sys.exit(f"the format of {path.name} is not the one known here")
        cost = json.loads(body)
        walls = [(sample, int(sample["wall_ns"] * factor)) for sample in cost["found"]["samples"]]
        samples = [{**sample, "wall_ns": wall, "ran_ns": wall} for sample, wall in walls]
        body = json.dumps({**cost, "found": {**cost["found"], "samples": samples}}, separators=(",", ":"))
        path.write_text(f"{blake3(body.encode())}\n{body}")


def say_whether_believed(server: Server) -> None:
    believed = server.start["calibration"]["from_disk"]
    print("the file was believed" if believed else "THE FILE WAS NOT BELIEVED: the rest says nothing")


# BLAKE3, which the first line of a file of costs is in, as its specification has it.
INITIAL = [0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19]
ORDER = [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8]
COLUMNS = [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)]
DIAGONALS = [(0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]
CHUNK_START, CHUNK_END, PARENT, ROOT = 1, 2, 4, 8
BLOCK, CHUNK, MASK = 64, 1024, 0xFFFFFFFF


class Block(NamedTuple):
    """What is compressed: the result so far, 16 words, the chunk's number, how many bytes the words hold, and flags."""

    before: list[int]
    words: list[int]
    chunk: int
    length: int
    flags: int


def compress(block: Block) -> list[int]:
    state = block.before + INITIAL[:4] + [block.chunk & MASK, block.chunk >> 32, block.length, block.flags]
    words = block.words

    def mix(a: int, b: int, c: int, d: int, word: int, turns: tuple[int, int]) -> None:
        state[a] = (state[a] + state[b] + word) & MASK
        state[d] = turned(state[d] ^ state[a], turns[0])
        state[c] = (state[c] + state[d]) & MASK
        state[b] = turned(state[b] ^ state[c], turns[1])

    for _ in range(7):
        for index, places in enumerate(COLUMNS + DIAGONALS):
            mix(*places, words[2 * index], (16, 12))
            mix(*places, words[2 * index + 1], (8, 7))
        words = [words[place] for place in ORDER]
    return [low ^ high for low, high in zip(state[:8], state[8:])]


def turned(word: int, bits: int) -> int:
    return ((word >> bits) | (word << (32 - bits))) & MASK


def last_block(data: bytes, first_chunk: int) -> Block:
    """The block that is left when everything before it, of a chunk or of a tree of chunks, is compressed."""
    if len(data) > CHUNK:
        left = 1 << ((len(data) - 1) // CHUNK).bit_length() - 1
        halves = last_block(data[: left * CHUNK], first_chunk), last_block(data[left * CHUNK :], first_chunk + left)
        return Block(INITIAL, compress(halves[0]) + compress(halves[1]), 0, BLOCK, PARENT)
    parts = [data[start : start + BLOCK] for start in range(0, len(data), BLOCK)] or [b""]
    before = INITIAL
    for index, part in enumerate(parts):
        words = list(struct.unpack("<16I", part.ljust(BLOCK, b"\0")))
        flags = (CHUNK_START if index == 0 else 0) | (CHUNK_END if index == len(parts) - 1 else 0)
        block = Block(before, words, first_chunk, len(part), flags)
        if not flags & CHUNK_END:
            before = compress(block)
    return block


def blake3(data: bytes) -> str:
    last = last_block(data, 0)
    return struct.pack("<8I", *compress(last._replace(flags=last.flags | ROOT))).hex()


# ---- late-step ----


class Sample(NamedTuple):
    """Of the server's process: page faults so far, and nanoseconds that threads of each name ran."""

    at: float
    faults: int
    ran: dict[str, int]


def take_samples(pid: int, stop: threading.Event, samples: list[Sample]) -> None:
    process = pathlib.Path(f"/proc/{pid}")
    while not stop.wait(0.01):
        ran = collections.Counter()
        # A thread may end while it is looked at.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            faults = int((process / "stat").read_text().rsplit(") ", 1)[1].split()[7])
            for thread in (process / "task").iterdir():
                ran[(thread / "comm").read_text().strip()] += int((thread / "schedstat").read_text().split()[0])
            samples.append(Sample(time.monotonic(), faults, ran))


def between(samples: list[Sample], start: float, end: float) -> tuple[int, float]:
    """Page faults, and milliseconds of threads that do not compute."""
    first = next((sample for sample in reversed(samples) if sample.at <= start), samples[0])
    last = next((sample for sample in samples if sample.at >= end), samples[-1])
    others = [name for name in last.ran if not name.startswith(("kernels", "engine"))]
    return last.faults - first.faults, sum(last.ran[name] - first.ran.get(name, 0) for name in others) / 1e6


def read_stream(server: Server, stop: threading.Event, gaps: list[tuple[float, float]]) -> None:
    """Collects times between tokens, and when each was over."""
    body = {"prompt": "Once upon a time " * 8, "max_tokens": 3000, "ignore_eos": True, "stream": True}
    response, last = server.call("/v1/completions", body), None
    while not stop.is_set() and (line := response.readline()):
        if line.startswith(b"data: {"):
            now = time.monotonic()
            if last:
                gaps.append((now - last, now))
            last = now


def read_feed(server: Server, stop: threading.Event, steps: list[dict]) -> None:
    response, event = server.call("/live/feed"), ""
    while not stop.is_set() and (line := response.readline().decode()):
        if line.startswith("event: "):
            event = line[7:].strip()
        elif line.startswith("data: ") and event == "step":
            steps.append(json.loads(line[6:]))


def clock(server: Server) -> float:
    """What to add to seconds of the server's clock."""
    asked = time.monotonic()
    now = server.ask("/live/info")["now_ms"] / 1e3
    return (asked + time.monotonic()) / 2 - now


def late_step(flags: argparse.Namespace) -> None:
    stop, steps, samples, gaps = threading.Event(), [], [], []
    with empty_cache() as cache, serving(flags.binary, cache, "-m", flags.model, *flags.serve) as server:
        offset = clock(server)
        jobs = [(read_feed, server, stop, steps), (take_samples, server.pid, stop, samples)]
        jobs += [(read_stream, server, stop, gaps)] * STREAMS
        threads = [threading.Thread(target=job, args=args, daemon=True) for job, *args in jobs]
        [thread.start() for thread in threads]
        time.sleep(4)
        prompt = "The fox looked at the lantern beside the path. " * (flags.prompt_tokens // 10)
        begin = time.monotonic()
        server.ask("/v1/completions", {"prompt": prompt, "max_tokens": 4})
        end = time.monotonic()
        time.sleep(0.5)
        stop.set()
        [thread.join(5) for thread in threads]
    for step in steps:
        step["at"] = step["at"] / 1e3 + offset
    meanwhile = [step for step in steps if begin - 0.1 <= step["at"] <= end]
    worst = max((gap for gap, at in gaps if begin <= at <= end + 0.3), default=0)
    print(f"{len(meanwhile)} steps while {flags.prompt_tokens} tokens were read in {end - begin:.2f} s")
    print(f"worst gap at the client {worst * 1e3:.0f} ms (wanted: at most 150, or its excess booked)")
    print(f"threads: {', '.join(sorted(samples[-1].ran))}; the steps that took longest beyond what was predicted, ms:")
    print(f"{'id':>7} {'took':>8} {'predicted':>9} {'machine':>8} {'faults':>7} {'others ran':>10}  rows, and when")
    for step in sorted(meanwhile, key=lambda step: step["predicted"] - step["took"])[:12]:
        faults, others = between(samples, step["at"], step["at"] + step["took"] / 1e3)
        rows = f"{sum(prompt['len'] for prompt in step['prefill'])}+{len(step['decode'])}"
        print(
            f"{step['id']:>7} {step['took']:8.2f} {step['predicted']:9.2f} {step.get('stolen', 0):8.2f} "
            f"{faults:7d} {others:10.2f}  {rows} at {step['at'] - begin:.2f} s"
        )
    took, predicted = (sum(step[name] for step in meanwhile) for name in ("took", "predicted"))
    beyond = sum(max(0, step["took"] - step["predicted"]) for step in meanwhile)
    machine = sum(step.get("stolen", 0) for step in meanwhile)
    faults, _ = between(samples, begin, end)
    print(f"all: {took:.0f}, predicted {predicted:.0f}, beyond {beyond:.0f}, machine {machine:.0f}; {faults} faults")


# ---- queue ----


def crowd(server: Server, label: str, count: int, sentences: int) -> None:
    """Prompts at once, and who made them wait."""

    def ask(index: int) -> None:
        prompt = f"{index}: " + "The fox looked at the lantern. " * sentences
        body = {"prompt": prompt, "max_tokens": 30, "temperature": 0, "ignore_eos": True}
        server.ask("/v1/completions", body, {"X-Request-Id": f"{label}-{index}"})

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(ask, range(count)))
    owners, whole, named, by_name, cost = collections.Counter(), 0, 0, 0, 0
    parts = ["prefill_in_ttfts_ms", "decode_in_ttfts_ms", "drafts_in_ttfts_ms"]
    parts += ["queue_kv_ms", "queue_seats_ms", "queue_budget_ms"]
    for index in range(count):
        prompt = server.ask(f"/v1/requests/{label}-{index}/timeline")["prompts"][0]
        whole += prompt["ttft_ms"]
        owners.update(prompt["ttft"])
        named += sum(other["ms"] for other in prompt["ttft_delayed_by"])
        by_name += sum(other["ms"] for other in prompt["ttft_delayed_by"] if other["request"] is not None)
        cost += sum(prompt["cost_to_others"][part] for part in parts)
    own = ["own_prefill_ms", "machine_ms", "overhead_ms"]
    others = sum(ms for name, ms in owners.items() if name not in own)
    print(
        f"{count} prompts: TTFT {whole:.0f} ms in all, {others:.0f} of others; named {100 * named / others:.4f} % "
        f"(wanted: at least 99.9), by request {100 * by_name / others:.1f} %; "
        f"delays - costs {others - cost:.6f} ms (wanted: 0)"
    )
    print("  ", ", ".join(f"{name.removesuffix('_ms')} {100 * ms / whole:.1f} %" for name, ms in owners.most_common()))


def queue(flags: argparse.Namespace) -> None:
    with empty_cache() as cache, serving(flags.binary, cache, "--max-num-seqs", "64", "--no-ui") as server:
        crowd(server, "few", flags.few, 60)
        for index in range(1, min(11, flags.few)):
            prompt = server.ask(f"/v1/requests/few-{index}/without/few-0")["prompts"][0]
            recorded, simulated, without = (
                prompt["answers"][0][which]["ttft_ms"] for which in ("recorded", "simulated", "without")
            )
            print(
                f"   few-{index} TTFT recorded {recorded:.1f}, simulated {simulated:.1f}, without few-0 {without:.1f}, "
                f"booked on it {prompt['ttft_booked_on_other_ms']:.1f} ms"
            )
        crowd(server, "many", flags.many, 20)


# ---- pool ----


def seconds_of_bench(flags: argparse.Namespace, cache: str, threads: int) -> dict[str, float]:
    """Mean seconds of the prompt and of the answer."""
    tokens = str(flags.tokens)
    command = [flags.binary, "bench", "-t", str(threads), "-p", tokens, "-n", tokens, "-r", str(flags.repeats)]
    # An exception, the one at SIGTERM as well, ends it.
    done = subprocess.run([*command, "-o", "json"], env=env(cache), capture_output=True, check=True)
    rows = json.loads(done.stdout)
    mean = lambda samples: sum(samples) / len(samples) / 1e9
    return {"prompt" if row["n_prompt"] else "answer": mean(row["samples_ns"]) for row in rows}


def pool(flags: argparse.Namespace) -> None:
    with empty_cache() as cache:
        for cores in LOADS:
            load = f"loops on cores {cores}"
            sums = {1: collections.Counter(), 2: collections.Counter()}
            with loops(cores):
                for turn in range(flags.rounds):
                    for threads in sums:
                        took = seconds_of_bench(flags, cache, threads)
                        sums[threads].update(took)
                        speeds = ", ".join(f"{kind} {flags.tokens / took[kind]:.0f} tok/s" for kind in took)
                        print(f"{load}, round {turn + 1}, -t {threads}: {speeds}")
            ratios = {kind: sums[2][kind] / min(sums[1][kind], sums[2][kind]) for kind in sums[2]}
            shown = ", ".join(f"{kind} {ratio:.2f}" for kind, ratio in ratios.items())
            print(f"{load}: time of -t 2 over the better: {shown} (wanted: at most 1.1)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    cases = {"owner": owner, "prefill": prefill, "plan": plan, "start": start, "promises": promises}
    cases |= {"late-step": late_step, "queue": queue, "pool": pool}
    case = {name: commands.add_parser(name, allow_abbrev=False) for name in cases}
    for each in case.values():
        each.add_argument("binary")
    case["owner"].add_argument("-t", "--threads", help="of the server; default: its own")
    case["owner"].add_argument("--loops", type=int, default=1)
    case["owner"].add_argument("--core", type=int, default=0, help="that the loops are pinned to")
    case["owner"].add_argument("--tokens", type=int, default=8000)
    case["prefill"].add_argument("-t", "--threads", help="of the server; default: its own")
    case["prefill"].add_argument("--times", type=int, default=40)
    case["prefill"].add_argument("--tokens", type=int, default=1024)
    case["promises"].add_argument("--requests", type=int, default=500)
    case["promises"].add_argument("--rate", type=float, default=4, help="requests per second")
    case["promises"].add_argument("--ttft-slo", default="2s", help="of the last part")
    case["plan"].add_argument("--times", type=int, default=5)
    case["plan"].add_argument("--tokens", type=int, default=1024)
    case["start"].add_argument("--steps", type=int, default=100)
    case["late-step"].add_argument("model")
    case["late-step"].add_argument("--prompt-tokens", type=int, default=8192)
    case["queue"].add_argument("--few", type=int, default=12)
    case["queue"].add_argument("--many", type=int, default=200)
    case["pool"].add_argument("--tokens", type=int, default=1000, help="of the prompt, and of the answer")
    case["pool"].add_argument("--rounds", type=int, default=2)
    case["pool"].add_argument("--repeats", type=int, default=3)
    flags, flags.serve = parser.parse_known_args()
    if flags.serve and flags.command != "late-step":
        parser.error(f"unrecognized arguments: {' '.join(flags.serve)}")
    # A signal to this process ends its servers and loops as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.stdout.reconfigure(line_buffering=True)
    cases[flags.command](flags)


if __name__ == "__main__":
    main()
