"""NVIDIA Dynamo on this machine: etcd, its frontend, workers of ours, everything on loopback and on free ports.

    client --> frontend (KV router, migration) --> prefill workers, decode workers
                          etcd: who is there
"""

import contextlib
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).parents[2]
MODEL = ROOT / "models/lantern"
NAME = "lantern"
# One thread each: all of them share a machine. Cost models are the same with and without it.
SMALL = {"threads": 1, "max_model_len": 2048, "speculate": "off", "no_packed_cache": True}
CACHE = "64MiB"
# For whatever has to happen and takes seconds.
PATIENCE = 180


def free_port():
    with socket.socket() as any_one:
        any_one.bind(("127.0.0.1", 0))
        return any_one.getsockname()[1]


def until(what, holds):
    """Waits for what has to come true, and gives it back."""
    end = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(OSError):
            if value := holds():
                return value
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.1)


def free_system_port():
    """Dynamo reads this one as a number of 16 bits with a sign."""
    while True:
        with socket.socket() as one, contextlib.suppress(OSError):
            port = random.randrange(20_000, 32_768)
            one.bind(("127.0.0.1", port))
            return port


class Program:
    """A process with its log."""

    def __init__(self, cluster, name, command, **environment):
        self.name = name
        self.log = cluster.directory / f"{name}-{len(cluster.programs)}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                            cwd=cluster.directory, env={**cluster.environment, **environment})
        cluster.programs.append(self)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def drain(self):
        """SIGTERM, and the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=PATIENCE)

    def said(self):
        return self.log.read_text(errors="replace")[-4000:]


class Worker(Program):
    """One of ours. `mode`: prefill, decode or agg."""

    def __init__(self, cluster, mode, **options):
        self.mode, self.system = mode, free_system_port()
        flags = {**SMALL, "kv_cache_memory_bytes": CACHE, **options}
        if mode != "agg":
            flags["cluster_key"] = cluster.key
        if mode == "prefill":
            flags["handoff_listen"] = "127.0.0.1:0"
        command = [sys.executable, "-m", "twostroke.dynamo", "--model", str(MODEL), "--served-model-name", NAME,
                   "--disaggregation-mode", mode]
        for flag, value in flags.items():
            command += ["--" + flag.replace("_", "-"), *([] if value is True else [str(value)])]
        super().__init__(cluster, mode, command, DYN_SYSTEM_PORT=str(self.system))

    def wait(self):
        """Until it serves."""
        def is_there():
            assert self.process.poll() is None, self.said()
            return self.metric("twostroke_kv_blocks_used") is not None
        until(f"a {self.mode} worker", is_there)
        return self

    def metric(self, name, **labels):
        return sample(f"http://127.0.0.1:{self.system}/metrics", name, **labels)


def sample(url, name, **labels):
    """The sum of a metric's samples with these labels; `None`: there is none."""
    page = urllib.request.urlopen(url, timeout=PATIENCE).read().decode()
    lines = re.findall(rf"^{name}(?:\{{(.*)\}})? (\S+)$", page, re.MULTILINE)
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    values = [float(value) for had, value in lines if all(one in had for one in wanted)]
    return sum(values) if values else None


def post(url, path, body):
    body = json.dumps({"model": NAME, **body}).encode()
    request = urllib.request.Request(url + path, body, {"Content-Type": "application/json"})
    try:
        return urllib.request.urlopen(request, timeout=PATIENCE)
    except urllib.error.HTTPError as error:
        raise OSError(error.code, error.read().decode()) from None


def answer(url, path, body):
    """The text, why it ended, and the usage (of whole answers). An OSError: there is none."""
    def text(choice):
        return choice.get("text") or (choice.get("message") or choice.get("delta") or {}).get("content") or ""

    with post(url, path, body) as come:
        if not body.get("stream"):
            whole = json.load(come)
            (choice,) = whole["choices"]
            return text(choice), choice["finish_reason"], whole["usage"]
        pieces, reason, ended = [], None, False
        for line in come:
            line = line.decode().strip()
            ended = ended or line == "data: [DONE]"
            if line.startswith(("event: error", ": ")):
                raise OSError(line)
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                if "choices" not in event:
                    raise OSError(str(event))
                for choice in event["choices"]:
                    pieces.append(text(choice))
                    reason = choice.get("finish_reason") or reason
        if not ended:
            raise OSError("the stream has no end")
        return "".join(pieces), reason, None


class Cluster:
    """etcd and a frontend; workers come and go."""

    def __init__(self, etcd, **environment):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="twostroke-dynamo-"))
        self.etcd, self.programs = etcd, []
        client, peer, self.port = (free_port() for _ in range(3))
        own = f"http://127.0.0.1:{client}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("DYN_", "ETCD_"))}
        self.environment = {
            **kept, "DYN_DISCOVERY_BACKEND": "etcd", "ETCD_ENDPOINTS": own, "ETCD_LEASE_TTL": "5",
            "DYN_REQUEST_PLANE": "tcp", "DYN_EVENT_PLANE": "zmq", "DYN_EVENT_PLANE_HOST": "127.0.0.1",
            "DYN_TCP_RPC_HOST": "127.0.0.1", "DYN_RUNTIME_NUM_WORKER_THREADS": "2", "HF_HUB_OFFLINE": "1",
            **environment}
        key = self.directory / "cluster.key"
        key.write_text("c2l4dGVlbiBieXRlcyBvciBtb3Jl\n")
        self.key, self.url = str(key), f"http://127.0.0.1:{self.port}"
        peers = f"http://127.0.0.1:{peer}"
        Program(self, "etcd", [etcd, "--data-dir", "etcd", "--listen-client-urls", own, "--advertise-client-urls", own,
                               "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers,
                               "--initial-cluster", f"default={peers}"])
        until("etcd", lambda: urllib.request.urlopen(f"{own}/health").status == 200)
        self.frontend = Program(self, "frontend", [
            sys.executable, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(self.port),
            "--router-mode", "kv", "--migration-limit", "3"])

    def workers(self, *modes):
        """One of each mode, when they serve and the frontend answers."""
        started = [Worker(self, mode) for mode in modes]
        for worker in started:
            worker.wait()
        self.await_model()
        return started

    def await_model(self):
        def answers():
            try:
                return bool(self.answer("/v1/completions", {"prompt": "Once", "max_tokens": 1})[0])
            except OSError:
                return False
        until("the frontend answers", answers)

    def metric(self, name, **labels):
        return sample(f"{self.url}/metrics", name, **labels)

    def post(self, path, body):
        return post(self.url, path, body)

    def answer(self, path, body):
        return answer(self.url, path, body)

    def close(self):
        for program in reversed(self.programs):
            program.kill()
