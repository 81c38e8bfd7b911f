"""The same load by three clients, bench-serve, guidellm and aiperf: check.py TWOSTROKE MODEL TOKENIZER [ROUNDS].

What each of them counts has to be the same, and TTFT and the time from token to token within 5 %.
MODEL is slow enough that a client's own milliseconds do not matter, and the server has one thread, so that the clients
have a core of their own. The clients take turns.

A machine is not equally fast in two moments, and the clients leave it more or less of itself. So what is held against
5 % are means, each divided by what the server's own counters say a row of that phase took in the same moments: a
comparison of instruments, not of moments. The medians as they were measured are printed beside. Rounds in which others
used the machine do not count; if all are such, times are not compared, and the last lines say so.
Definitions: TTFT is request sent to first token. ITL here is (end - first token) / (tokens - 1) of each request, which
bench-serve calls TPOT, aiperf and guidellm ITL (guidellm's TPOT has the first token in it).

Standard library only. Ends with `N passed, M failed`.
"""

import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

TWOSTROKE, MODEL, TOKENIZER = (pathlib.Path(path).resolve() for path in sys.argv[1:4])
MOST_ROUNDS = int(sys.argv[4]) if len(sys.argv) > 4 else 4
HERE = pathlib.Path(__file__).resolve().parent
PROGRAMS = pathlib.Path(sys.executable).parent
REQUESTS, PROMPT, ANSWER = 12, 200, 32
AGREE = 0.05
# In a round that counts, the server was about as fast for each client: else others used the machine, clients had to wait
# for a core, and what is compared is who had to wait longest.
CALM = 1.25

# Nothing is fetched: the tokenizer is a directory here. aiperf takes directories only while it believes to be online.
OFFLINE = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def get(path):
    with urllib.request.urlopen(URL + path, timeout=20) as answer:
        return answer.read().decode()


def run(command, **environment):
    environment = {**os.environ, **OFFLINE, **environment}
    ran = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=300, env=environment, cwd=directory
    )
    assert ran.returncode == 0, f"{command[0]}: {ran.returncode}\n{ran.stdout[-2000:]}\n{ran.stderr[-2000:]}"
    return ran.stdout


def bench_serve(seed):
    command = [TWOSTROKE, "bench-serve", "--port", PORT, "--max-concurrency", 1, "--ignore-eos", "--json"]
    command += ["--num-prompts", REQUESTS, "--random-input-len", PROMPT, "--random-output-len", ANSWER, "--seed", seed]
    said = json.loads(run(command))
    counts = said["completed"], said["total_input_tokens"], said["total_output_tokens"]
    mean_and_median = lambda name: (said[f"mean_{name}_ms"], said[f"median_{name}_ms"])
    return counts, mean_and_median("ttft"), mean_and_median("tpot")


def guidellm(seed):
    result = pathlib.Path(directory) / "guidellm.json"
    command = [PROGRAMS / "guidellm", "run", "--disable-console", "--output", f"kind=json,path={result}"]
    command += ["--backend", f"kind=openai_http,target={URL},model={NAME},request_format=/v1/completions"]
    command += ["--tokenizer", f"kind=huggingface_auto,model={TOKENIZER}", "--profile", "kind=concurrent,streams=1"]
    command += ["--constraint", f"kind=max_requests,count={REQUESTS}", "--seed", f"kind=static,value={seed}"]
    command += ["--data", f"kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={ANSWER}"]
    run(command, HF_HUB_OFFLINE="1", USE_TORCH="0", PYTHONPATH=str(HERE))
    metrics = json.loads(result.read_text())["benchmarks"][0]["metrics"]
    of = lambda name, what: metrics[name]["successful"][what]
    counts = (
        metrics["request_totals"]["successful"],
        of("prompt_token_count", "total_sum"),
        of("output_token_count", "total_sum"),
    )
    mean_and_median = lambda name: (of(name, "mean"), of(name, "median"))
    return counts, mean_and_median("time_to_first_token_ms"), mean_and_median("inter_token_latency_ms")


def aiperf(seed):
    command = [PROGRAMS / "aiperf", "profile", "-m", NAME, "--url", URL, "--endpoint-type", "completions", "--streaming"]
    command += ["--tokenizer", TOKENIZER, "--concurrency", 1, "--request-count", REQUESTS, "--random-seed", seed]
    command += ["--isl", PROMPT, "--osl", ANSWER, "--extra-inputs", "ignore_eos:true", "--use-server-token-count"]
    command += ["--no-gpu-telemetry", "--no-server-metrics", "--ui", "none", "--artifact-dir", directory]
    run(command)
    said = json.loads((pathlib.Path(directory) / "profile_export_aiperf.json").read_text())
    counts = said["request_count"]["avg"], said["input_sequence_length"]["sum"], said["output_sequence_length"]["sum"]
    mean_and_median = lambda name: (said[name]["avg"], said[name]["p50"])
    return counts, mean_and_median("time_to_first_token"), mean_and_median("inter_token_latency")


CLIENTS = {"bench-serve": bench_serve, "guidellm": guidellm, "aiperf": aiperf}


def spent():
    """Milliseconds and rows of steps of the two phases so far, by the server's own counters."""
    page = [line.rsplit(" ", 1) for line in get("/metrics").splitlines() if not line.startswith("#")]
    values = {name: float(value) for name, value in page}
    of = lambda phase: values[f'twostroke_step_measured_seconds_total{{phase="{phase}"}}'] * 1e3
    return of("prefill"), values["twostroke_prefill_tokens_total"], of("decode"), values["twostroke_decode_tokens_total"]


def once(name, seed):
    before = spent()
    counts, ttft, itl = CLIENTS[name](seed)
    prefill_ms, prompt_rows, decode_ms, decode_rows = (after - b for after, b in zip(spent(), before))
    return {"counts": counts, "ttft": ttft, "itl": itl, "row": prefill_ms / prompt_rows, "step": decode_ms / decode_rows}


def apart(runs, figure, pace):
    """By how much each client differs from bench-serve: the median as it is, and the mean at the server's own pace."""
    raw = {name: statistics.median(run[figure][1] for run in all) for name, all in runs.items()}
    paced = {name: statistics.median(run[figure][0] / run[pace] for run in all) for name, all in runs.items()}
    ours = "bench-serve"
    return {name: (raw[name] / raw[ours] - 1, paced[name] / paced[ours] - 1) for name in runs if name != ours}


def calm(runs):
    """The rounds in which the machine was the same for all."""
    of = lambda name, pace: [run[pace] for run in runs[name]]
    rounds = range(min(len(all) for all in runs.values()))
    alike = lambda round, pace: max(of(n, pace)[round] for n in runs) <= CALM * min(of(n, pace)[round] for n in runs)
    keep = [round for round in rounds if alike(round, "row") and alike(round, "step")]
    return {name: [runs[name][round] for round in keep] for name in runs} if keep else None


def main():
    runs = {name: [] for name in CLIENTS}
    for round in range(MOST_ROUNDS):
        order = list(CLIENTS)[round % 3 :] + list(CLIENTS)[: round % 3]
        for name in order:
            runs[name].append(once(name, 100 + round))
            last = runs[name][-1]
            print(f"{name:<12} TTFT {last['ttft'][1]:8.2f} ms  ITL {last['itl'][1]:7.3f} ms  (server: "
                  f"{last['row']:.3f} ms a prompt row, {last['step']:.3f} ms a decode step)", flush=True)
        quiet = calm(runs)
        differences = {"TTFT": apart(quiet, "ttft", "row"), "ITL": apart(quiet, "itl", "step")} if quiet else {}
        worst = [abs(paced) for figure in differences.values() for _, paced in figure.values()]
        if worst and max(worst) <= AGREE:
            break
    if not differences:
        print("the machine was disturbed in every round: times are not compared")
    passed = failed = 0
    wanted = (REQUESTS, REQUESTS * PROMPT, REQUESTS * ANSWER)
    for name in runs:
        counted = {tuple(run["counts"]) for run in runs[name]}
        good = counted == {wanted}
        passed, failed = passed + good, failed + (not good)
        if not good:
            print(f"{name} counted {counted} requests, prompt and answer tokens, not {wanted}")
    for figure, clients in differences.items():
        for name, (raw, paced) in clients.items():
            good = abs(paced) <= AGREE
            passed, failed = passed + good, failed + (not good)
            print(f"{figure} of {name} beside bench-serve: {paced:+.1%} at equal pace (medians as measured: {raw:+.1%})"
                  + ("" if good else f"  MORE THAN {AGREE:.0%} APART"))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


with tempfile.TemporaryDirectory() as directory:
    PORT, NAME = free_port(), MODEL.name
    URL = f"http://127.0.0.1:{PORT}"
    serve = [TWOSTROKE, "serve", "-m", MODEL, "--port", str(PORT), "-t", "1", "--no-enable-prefix-caching"]
    server = subprocess.Popen(serve, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                get("/health")
                break
            except OSError:
                assert server.poll() is None and time.monotonic() < deadline, "the server did not start"
                time.sleep(0.2)
        code = main()
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=60)
sys.exit(code)
