"""How fast a server is by three clients, bench-serve, guidellm and aiperf: speed.py TWOSTROKE MODEL TOKENIZER ROUNDS.

A measurement, not a test: nothing fails but what does not run. MODEL is slow enough that a client's own milliseconds do
not matter, and the server has one thread, so that the clients have a core of their own. The clients take turns.

A machine is not equally fast in two moments, and the clients leave it more or less of itself. So beside what was measured
stands the difference from bench-serve at equal pace: of means, each divided by what the server's own counters say a row
of that phase took in the same moments.
Definitions: TTFT is request sent to first token. ITL here is (end - first token) / (tokens - 1) of each request, which
bench-serve calls TPOT, aiperf and guidellm ITL (guidellm's TPOT has the first token in it). check.py tests them.

Standard library only.
"""

import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

import clients

TWOSTROKE, MODEL, TOKENIZER = (pathlib.Path(path).resolve() for path in sys.argv[1:4])
ROUNDS = int(sys.argv[4])
REQUESTS, PROMPT, ANSWER = 12, 200, 32
OURS = "bench-serve"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def get(path):
    with urllib.request.urlopen(URL + path, timeout=60) as answer:
        return answer.read().decode()


def of_bench_serve(said):
    mean_and_median = lambda name: (said[f"mean_{name}_ms"], said[f"median_{name}_ms"])
    return said["completed"], mean_and_median("ttft"), mean_and_median("tpot")


def of_guidellm(said):
    metrics = said["metrics"]
    mean_and_median = lambda name: tuple(metrics[name]["successful"][what] for what in ("mean", "median"))
    ttft, itl = mean_and_median("time_to_first_token_ms"), mean_and_median("inter_token_latency_ms")
    return metrics["request_totals"]["successful"], ttft, itl


def of_aiperf(said):
    said = said["summary"]
    mean_and_median = lambda name: (said[name]["avg"], said[name]["p50"])
    return said["request_count"]["avg"], mean_and_median("time_to_first_token"), mean_and_median("inter_token_latency")


FIGURES = {"bench-serve": of_bench_serve, "guidellm": of_guidellm, "aiperf": of_aiperf}


def spent():
    """Milliseconds and rows of steps of the two phases so far, by the server's own counters."""
    page = [line.rsplit(" ", 1) for line in get("/metrics").splitlines() if not line.startswith("#")]
    values = {name: float(value) for name, value in page}
    of = lambda phase: values[f'twostroke_step_measured_seconds_total{{phase="{phase}"}}'] * 1e3
    return of("prefill"), values["twostroke_prefill_tokens_total"], of("decode"), values["twostroke_decode_tokens_total"]


def once(name, seed):
    before = spent()
    with tempfile.TemporaryDirectory() as directory:
        load = clients.Load(
            TWOSTROKE, TOKENIZER, PORT, MODEL.name, chat=False, requests=REQUESTS, prompt=PROMPT, answer=ANSWER, seed=seed,
            directory=pathlib.Path(directory), patience=2,
        )
        requests, ttft, itl = FIGURES[name](clients.ALL[name](load))
    prefill_ms, prompt_rows, decode_ms, decode_rows = (after - b for after, b in zip(spent(), before))
    row, step = prefill_ms / prompt_rows, decode_ms / decode_rows
    print(f"{name:<12} {requests:2.0f} requests  TTFT {ttft[1]:8.2f} ms  ITL {itl[1]:7.3f} ms  (server: {row:.3f} ms a "
          f"prompt row, {step:.3f} ms a decode step)", flush=True)
    return {"ttft": ttft[1], "itl": itl[1], "paced ttft": ttft[0] / row, "paced itl": itl[0] / step, "row": row, "step": step}


def spread(values, form="{:.2f}"):
    """The median, and between which values it lies."""
    return " ".join([form.format(statistics.median(values)), f"({form.format(min(values))} to {form.format(max(values))})"])


def main():
    runs = {name: [] for name in FIGURES}
    for round in range(ROUNDS):
        order = list(FIGURES)[round % 3 :] + list(FIGURES)[: round % 3]
        for name in order:
            runs[name].append(once(name, 100 + round))
    of = lambda name, what: [run[what] for run in runs[name]]
    apart = lambda name, what: [theirs / ours - 1 for theirs, ours in zip(of(name, what), of(OURS, what))]
    print(f"\nmedian of {ROUNDS} rounds (lowest to highest); differences from {OURS} at the server's own pace")
    for figure, pace in (("ttft", "row"), ("itl", "step")):
        print(f"\n{figure.upper():<12} {'ms':<28} {'difference':<28} server, ms a {pace}")
        for name in runs:
            difference = "" if name == OURS else spread(apart(name, f"paced {figure}"), "{:+.1%}")
            print(f"{name:<12} {spread(of(name, figure)):<28} {difference:<28} {spread(of(name, pace), '{:.3f}')}")


PORT = free_port()
URL = f"http://127.0.0.1:{PORT}"
serve = [TWOSTROKE, "serve", "-m", MODEL, "--port", str(PORT), "-t", "1", "--no-enable-prefix-caching"]
server = subprocess.Popen(serve, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
try:
    deadline = time.monotonic() + 600
    while True:
        try:
            get("/health")
            break
        except OSError:
            assert server.poll() is None and time.monotonic() < deadline, "the server did not start"
            time.sleep(0.2)
    main()
finally:
    server.send_signal(signal.SIGTERM)
    server.wait(timeout=60)
