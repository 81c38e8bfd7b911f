"""vllm-router over workers of ours: two that read prompts, two that answer.

    python tests/routers/vllm_router.py TWOSTROKE VLLM_ROUTER [--requests 120]

Every answer must be that of one server by itself, token for token, through streams and chats too. Where a worker is
killed, this router (0.1.17) answers with an error of its own until it has noticed: it asks no other worker. A client that asks
again has the answer. By KV events it sends a prompt where its prefix is.
"""

import argparse
import contextlib
import json
import pathlib
import random
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

SMALL = ["-t", "1", "--max-model-len", "2048", "--kv-cache-memory-bytes", "64MiB", "--speculate", "off", "--no-packed-cache"]
WORDS = "the fox and the owl went over the old bridge to the market where a lamp stood by the red door of the mill".split()


def free_port():
    with socket.socket() as any_one:
        any_one.bind(("127.0.0.1", 0))
        return any_one.getsockname()[1]


class Worker:
    """A server of ours, which is there when it is made."""

    def __init__(self, binary, *flags, port=0):
        self.process = subprocess.Popen([binary, "serve", "--json", "--port", str(port), *SMALL, *flags],
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        assert line, f"it did not start: {flags}"
        self.start = json.loads(line)
        self.url = self.start["url"].removesuffix("/v1")
        self.port = int(self.url.rsplit(":", 1)[1])

    def kill(self):
        self.process.kill()
        self.process.wait()

    def metric(self, name):
        page = urllib.request.urlopen(f"{self.url}/metrics").read().decode()
        return next(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith(name + " "))


class Router:
    """vllm-router, which is there when it has found all workers."""

    def __init__(self, program, *flags):
        self.port = free_port()
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([program, "--host", "127.0.0.1", "--port", str(self.port), "--prometheus-port",
                                         str(free_port()), *flags], stdout=self.log, stderr=subprocess.STDOUT)
        self.url = f"http://127.0.0.1:{self.port}"
        end = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{self.url}/health")
                return
            assert self.process.poll() is None and time.monotonic() < end, self.said()
            time.sleep(0.1)

    def said(self):
        self.log.seek(0)
        return self.log.read()[-4000:]

    def end(self):
        self.process.terminate()
        self.process.wait()


def question(number):
    """The path and body of a request; every fourth is short, and is read where it is answered."""
    rng = random.Random(number)
    text = " ".join(rng.choice(WORDS) for _ in range(20 if number % 4 == 3 else 420))
    body = {"max_tokens": 24, "seed": number, "temperature": 0.8, "ignore_eos": True, "stream": number % 3 == 1}
    if number % 2:
        return "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": f"{number} {text}"}]}
    return "/v1/completions", {**body, "prompt": f"{number} {text}"}


def post(url, path, body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return urllib.request.urlopen(request, timeout=120)


def answer(url, number):
    """The text that comes; an OSError says that none did."""
    path, body = question(number)

    def text(choice):
        return choice.get("text") or (choice.get("message") or choice.get("delta") or {}).get("content") or ""

    with post(url, path, body) as come:
        if not body["stream"]:
            return text(json.load(come)["choices"][0])
        pieces, ended = [], False
        for line in come:
            line = line.decode().strip()
            ended = ended or line == "data: [DONE]"
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                if "error" in event:
                    raise OSError(event)
                pieces += [text(choice) for choice in event["choices"]]
        if not ended:
            raise OSError("the stream has no end")
        return "".join(pieces)


def ask_all(router, joint, numbers, meanwhile=lambda: None):
    """Questions that had no answer."""
    wanted = {number: answer(joint.url, number) for number in numbers}
    lost = []

    def ask(number):
        try:
            got = answer(router.url, number)
        except urllib.error.HTTPError as error:
            lost.append((number, f"{error}: {error.read().decode()[:300]}"))
            return
        except OSError as error:
            lost.append((number, str(error)))
            return
        assert got == wanted[number], f"question {number} has another answer: {got!r}, alone {wanted[number]!r}"

    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(ask, number) for number in numbers]
        meanwhile()
        for one in asked:
            one.result()
    return lost


def asked_again(router, joint, lost):
    """Asks until all have their answers, and how often that took."""
    rounds = 0
    end = time.monotonic() + 60
    while lost:
        assert time.monotonic() < end, lost
        time.sleep(0.5)
        lost = ask_all(router, joint, [number for number, _ in lost])
        rounds += 1
    return rounds


def disaggregated(args, key, joint):
    def prefill(port=0, handoff="127.0.0.1:0"):
        return Worker(args.twostroke, "--role", "prefill", "--handoff-listen", handoff, "--cluster-key", key, port=port)

    readers = [prefill(), prefill()]
    tellers = [Worker(args.twostroke, "--role", "decode", "--cluster-key", key) for _ in range(2)]
    flags = ["--vllm-pd-disaggregation", "--policy", "round_robin", "--health-check-interval-secs", "1"]
    for reader in readers:
        flags += ["--prefill", reader.url, "none"]
    for teller in tellers:
        flags += ["--decode", teller.url]
    router = Router(args.router, *flags)
    whole = 'twostroke_remote_prefills_total{way="taken",result="whole"}'

    numbers = range(args.requests)
    lost = ask_all(router, joint, numbers)
    handed = sum(teller.metric(whole) for teller in tellers)
    long = sum(number % 4 != 3 for number in numbers)
    assert not lost, lost
    assert handed == long, f"{handed} of {long} long prompts were read elsewhere"
    print(f"ok      vllm-router, two and two: {args.requests} answers, {handed:.0f} prompts handed over, none differs")

    def killing(worker):
        def kill():
            time.sleep(0.4)
            worker.kill()
        return kill

    numbers = range(10_000, 10_000 + args.requests)
    lost = ask_all(router, joint, numbers, killing(readers[0]))
    again = asked_again(router, joint, lost)
    print(f"ok      one that reads is killed: {args.requests} answers, none differs; {len(lost)} were asked again, {again} times")
    at = readers[0].start["handoff"]
    readers[0] = prefill(readers[0].port, at)
    before = sum(teller.metric(whole) for teller in tellers)
    numbers = range(20_000, 20_000 + args.requests)
    lost = ask_all(router, joint, numbers, killing(tellers[0]))
    again = asked_again(router, joint, lost)
    assert tellers[1].metric(whole) > before / 2
    print(f"ok      one that answers is killed: {args.requests} answers, none differs; {len(lost)} were asked again,"
          f" {again} times")
    router.end()
    for worker in [*readers, tellers[1]]:
        worker.kill()


def by_prefix(args):
    """Conversations that begin alike go where their beginning is."""
    workers, sources = [], []
    for _ in range(2):
        events, replays = free_port(), free_port()
        settings = {"enable_kv_cache_events": True, "endpoint": f"tcp://127.0.0.1:{events}",
                    "replay_endpoint": f"tcp://127.0.0.1:{replays}"}
        worker = Worker(args.twostroke, "--kv-events-config", json.dumps(settings))
        workers.append(worker)
        sources += ["--kv-event-source", f"{worker.url}=tcp://127.0.0.1:{events}",
                    "--kv-event-replay-source", f"{worker.url}=tcp://127.0.0.1:{replays}"]
    model = workers[0].start["model"]
    router = Router(args.router, "--policy", "kv_aware", "--worker-urls", *(worker.url for worker in workers), *sources,
                    "--kv-event-block-size", "32", "--kv-event-model", model)
    cached = prompts = 0
    for turn in range(4):
        for conversation in range(8):
            rng = random.Random(conversation)
            text = " ".join(rng.choice(WORDS) for _ in range(200 + 100 * turn))
            with post(router.url, "/v1/completions", {"prompt": text, "max_tokens": 4, "temperature": 0}) as come:
                usage = json.load(come)["usage"]
            if turn > 0:
                prompts += usage["prompt_tokens"]
                cached += usage["prompt_tokens_details"]["cached_tokens"]
            time.sleep(0.02)
    share = cached / prompts
    # Each turn repeats between two thirds and four fifths of its prompt; by turns half of that would be found.
    assert share > 0.6, f"{share:.2f} of the tokens were in the cache: {router.said()}"
    print(f"ok      vllm-router by KV events: {share:.0%} of the later turns' tokens were in the cache")
    router.end()
    for worker in workers:
        worker.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("twostroke")
    parser.add_argument("router")
    parser.add_argument("--requests", type=int, default=120)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        key = pathlib.Path(directory) / "cluster.key"
        key.write_text("c2l4dGVlbiBieXRlcyBvciBtb3Jl\n")
        joint = Worker(args.twostroke)
        disaggregated(args, str(key), joint)
        joint.kill()
        by_prefix(args)
    print("4 passed, 0 failed")


if __name__ == "__main__":
    main()
