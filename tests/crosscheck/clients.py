"""One load by each of three clients: bench-serve, guidellm and aiperf. Each returns what the client reports, as it is."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
PROGRAMS = pathlib.Path(sys.executable).parent
# Not a measure of anything: a client that hangs should not hang the tests.
LONGEST = 1800

# Nothing is fetched: the tokenizer is a directory here. aiperf takes directories only while it believes to be online.
OFFLINE = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"}


@dataclasses.dataclass
class Load:
    """What is sent, one request after the other."""

    twostroke: pathlib.Path
    tokenizer: pathlib.Path
    port: int
    model: str
    chat: bool
    requests: int
    prompt: int
    answer: int
    seed: int
    directory: pathlib.Path
    # Seconds from an answer's first token to its end, and more.
    patience: float

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"


def run(load, command, **environment):
    environment = {**os.environ, **OFFLINE, **environment}
    ran = subprocess.run(
        [str(word) for word in command],
        capture_output=True, text=True, timeout=LONGEST, env=environment, cwd=load.directory,
    )
    assert ran.returncode == 0, f"{command[0]}: {ran.returncode}\n{ran.stdout[-2000:]}\n{ran.stderr[-2000:]}"


def bench_serve(load):
    result = load.directory / "bench-serve.json"
    command = [load.twostroke, "bench-serve", "--port", load.port, "--max-concurrency", 1, "--ignore-eos"]
    command += ["--backend", "openai-chat" if load.chat else "openai", "--seed", load.seed, "--model", load.model]
    command += ["--num-prompts", load.requests, "--random-input-len", load.prompt, "--random-output-len", load.answer]
    command += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "25,99"]
    command += ["--save-result", "--save-detailed", "--result-filename", result]
    run(load, command)
    return json.loads(result.read_text())


def guidellm(load):
    """Its coordinator looks for the last answer every so often, and stops looking once that is announced, even if it has
    not been handed on yet: where the thread that does both is held up in between, as on a busy machine, the report lacks
    the last request and does not mention it. So it looks less often than an answer takes, not every tenth of a second."""
    result = load.directory / "guidellm.json"
    kind = "/v1/chat/completions" if load.chat else "/v1/completions"
    command = [PROGRAMS / "guidellm", "run", "--disable-console", "--output", f"kind=json,path={result}"]
    command += ["--backend", f"kind=openai_http,target={load.url},model={load.model},request_format={kind}"]
    command += ["--tokenizer", f"kind=huggingface_auto,model={load.tokenizer}", "--profile", "kind=concurrent,streams=1"]
    command += ["--constraint", f"kind=max_requests,count={load.requests}", "--seed", f"kind=static,value={load.seed}"]
    command += ["--data", f"kind=synthetic_text,prompt_tokens={load.prompt},output_tokens={load.answer}"]
    patience = {"GUIDELLM__MP_POLL_INTERVAL": f"{load.patience:.1f}"}
    run(load, command, HF_HUB_OFFLINE="1", USE_TORCH="0", PYTHONPATH=str(HERE), **patience)
    return json.loads(result.read_text())["benchmarks"][0]


def aiperf(load):
    kind = "chat" if load.chat else "completions"
    command = [PROGRAMS / "aiperf", "profile", "-m", load.model, "--url", load.url, "--endpoint-type", kind, "--streaming"]
    command += ["--tokenizer", load.tokenizer, "--concurrency", 1, "--request-count", load.requests]
    command += ["--random-seed", load.seed, "--isl", load.prompt, "--osl", load.answer]
    command += ["--extra-inputs", "ignore_eos:true", "--use-server-token-count", "--no-gpu-telemetry"]
    command += ["--no-server-metrics", "--ui", "none", "--artifact-dir", load.directory]
    run(load, command)
    summary = json.loads((load.directory / "profile_export_aiperf.json").read_text())
    records = (load.directory / "profile_export.jsonl").read_text().splitlines()
    return {"summary": summary, "records": [json.loads(record) for record in records]}


ALL = {"bench-serve": bench_serve, "guidellm": guidellm, "aiperf": aiperf}
