"""The engines that `peers.py` measures: each knows its own files, programs and options.

Each has `name` and `format` (which of its files), and of `prefill(tokens)`, `decode(sequences, depth)` and `kl(text)` those that it can;
`server()` is the command that serves, a port to be appended. What is missing or goes wrong is `Broken`, with a reason.
"""

import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from perplexity import figures, ours

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = ROOT / "target/release/twostroke"
THREADS = str(os.cpu_count())
# Types in blocks of 256, where rows are made of them.
MORE_FORMATS = {
    ("llama-3.2-1b", "int8", "ik_llama.cpp"): ["Q8_K_R8"],
    ("llama-3.2-1b", "int4", "ik_llama.cpp"): ["Q4_K_S"],
    ("llama-3.2-1b", "int4", "llama.cpp"): ["Q4_K_S"],
}


class Broken(Exception):
    """A measurement that did not work out; said, recorded as absent, and the others go on."""


def run(command, env=None, both=False, cwd=None):
    """Standard output (with `both`, the errors too) of a command."""
    with tempfile.TemporaryFile("w+") as errors:
        where = subprocess.STDOUT if both else errors
        done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=where, stdin=subprocess.DEVNULL, env=env, cwd=cwd)
        output = done.stdout.decode(errors="replace")
        if done.returncode != 0:
            errors.seek(0)
            raise Broken(f"{' '.join(map(str, command))} ended with {done.returncode}: {(errors.read() or output)[-600:]}")
    return output


class Twostroke:
    name = "twostroke"

    def __init__(self, at, kind):
        self.kind = self.format = kind
        self.at = at
        # With fewer than 16 bits, 8-bit keys and values too, as OpenVINO has them by default.
        kv = ["--kv-dtype", "bf16" if kind == "bf16" else "int8"]
        self.options = ["-m", at / "hf", "--weights", kind, *kv]

    def bench(self, *more):
        return json.loads(run([BINARY, "bench", *self.options, "-o", "json", "-r", "2", *more]))

    def prefill(self, tokens):
        (row,) = self.bench("-p", tokens, "-n", "0")
        return row["samples_ts"], row["limit_percent"]

    def decode(self, sequences, depth):
        (row,) = self.bench("-p", "0", "-n", "32", "-B", sequences, "-d", depth)
        return row["samples_ts"], row["limit_percent"]

    def kl(self, text):
        return ours(BINARY, self.kind, self.options[-1], "-m", self.at / "hf", "--text", text)["mean_kl"]

    def server(self):
        return [BINARY, "serve", *self.options, "--max-model-len", "8192", "--max-num-seqs", "64", "--port"]


class LlamaCpp:
    """llama.cpp, and what ik_llama.cpp has in common with it."""

    name, folder = "llama.cpp", "llama.cpp"
    bench_options, options, server_options = [], [], ["--no-kv-unified", "--no-webui"]
    formats = {"int8": ["Q8_0"], "int4": ["Q4_0"], "bf16": ["BF16"]}

    def __init__(self, at, format, peers):
        at, peers = at.resolve(), peers.resolve()
        self.format, self.at, self.file, self.bin = format, at, at / f"{format}.gguf", peers / self.folder / "bin"
        if not self.file.exists() or not (self.bin / "llama-bench").exists():
            raise Broken(f"{self.file} or {self.bin} is missing")
        libraries = sorted({str(path.parent) for path in (peers / self.folder).resolve().rglob("*.so")})
        self.env = {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)}

    def run(self, program, *more, **how):
        return run([self.bin / program, "-m", self.file, "-t", THREADS, *more], env=self.env, **how)

    def bench(self, *more):
        return json.loads(self.run("llama-bench", "-fa", "1", "-o", "json", *self.bench_options, *more))[0]["samples_ts"]

    def prefill(self, tokens):
        return self.bench("-p", tokens, "-n", "0", "-r", "1" if tokens > 4096 else "2"), None

    def decode(self, sequences, depth):
        if sequences == 1:
            return self.decode_one(depth), None
        # A last cheap case, because the tool's last line is sometimes lost.
        options = ["-c", sequences * (depth + 48) + 64, "-npp", f"{depth},16", "-ntg", "32", "-npl", sequences]
        return self.batched(options, depth), None

    def decode_one(self, depth):
        return self.bench("-p", "0", "-n", "32", "-d", depth, "-r", "1" if depth > 4096 else "2")

    def batched(self, options, depth):
        output = self.run("llama-batched-bench", *options, "--output-format", "jsonl")
        rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        return [row["speed_tg"] for row in rows if row["pp"] == depth]

    def kl(self, text):
        """Against its own float32, of the tokens that `twostroke quality -c 512 --skip 256` scores."""
        with tempfile.TemporaryDirectory() as folder:
            measure = ["-t", THREADS, "-f", text, "-c", "512", "--kl-divergence-base", "base.kl"]
            judge = [self.bin / "llama-perplexity", *measure]
            # It writes a log where it is started.
            run([*judge, "-m", self.at / "F32.gguf"], env=self.env, cwd=folder)
            log = run([*judge, "-m", self.file, "--kl-divergence"], env=self.env, both=True, cwd=folder)
        found = figures(log, self.format, "f16")["mean_kl"]
        if math.isnan(found):
            raise Broken(f"no divergence in the words of llama-perplexity: {log[-600:]}")
        return found

    def server(self):
        context = ["-np", "33", "-c", 33 * 4352, *self.server_options, "--cache-ram", "0"]
        return ["env", f"LD_LIBRARY_PATH={self.env['LD_LIBRARY_PATH']}", self.bin / "llama-server", "-m", self.file, "-t", THREADS,
                *context, "--host", "127.0.0.1", "--port"]


class IkLlamaCpp(LlamaCpp):
    """Weights in the order of its fastest kernels (`-rtr`), its own 4-bit types too. Its flash attention ends in an assertion when
    several sequences decode together, so there it is off."""

    name, folder = "ik_llama.cpp", "ik_llama.cpp"
    bench_options, options, server_options = ["-rtr", "1"], ["-rtr"], ["--webui", "none", "-rtr", "-no-fa"]
    formats = {"int8": ["Q8_0"], "int4": ["Q4_0", "IQ4_KS"], "bf16": ["BF16"]}

    def decode_one(self, depth):
        # Its llama-bench knows no depth; generation behind a prompt is a case of its own, named after both.
        return self.bench("-p", "0", "-n", "0", "-gp", f"{depth},32", "-r", "1" if depth > 4096 else "2")

    def batched(self, options, depth):
        """The table for people: | PP | TG | B | N_KV | T_PP s | S_PP t/s | T_TG s | S_TG t/s | ..."""
        output = self.run("llama-batched-bench", "-no-fa", *self.options, *options, both=True)
        rows = [line.strip("| ").split("|") for line in output.splitlines() if re.match(r"\|\s*\d", line)]
        return [float(row[7]) for row in rows if int(row[0]) == depth]


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

    formats = {"int8": ["int8"], "int4": ["int4"], "bf16": []}

    def __init__(self, at, format, peers):
        self.format, self.at, self.peers = format, at, peers
        self.python, self.model = peers / "venv-openvino/bin/python", at / f"openvino-{format}"
        if not self.model.exists() or not self.python.exists():
            raise Broken(f"{self.model} or {self.python} is missing")

    def rates(self, tokens, new, sequences):
        return json.loads(run([self.python, "-c", self.PROGRAM, self.model, tokens, new, sequences]).splitlines()[-1])

    def prefill(self, tokens):
        return [prefill for prefill, _ in self.rates(tokens, 1, 1)], None

    def decode(self, sequences, depth):
        return [decode for _, decode in self.rates(depth, 33, sequences)], None

    def kl(self, text):
        python = self.peers / "venv-openvino-export/bin/python"
        return float(run([python, ROOT / "bench/kl.py", self.model, self.at / "hf", text]).splitlines()[-1])


class Vllm:
    """vLLM's CPU build; measured through its server, at 16 bit only, and taken to lose what rounding to 16 bits loses."""

    name = "vLLM"

    formats = {"int8": [], "int4": [], "bf16": ["bf16"]}

    def __init__(self, at, format, peers):
        self.format, self.python, self.model = format, peers / "venv-vllm/bin/python", at / "hf"
        if not self.python.exists():
            raise Broken(f"{self.python} is missing")

    def prefill(self, tokens):
        raise Broken("measured through its server only")

    def decode(self, sequences, depth):
        raise Broken("measured through its server only")

    def server(self):
        options = ["--skip-tokenizer-init", "--dtype", "bfloat16", "--max-model-len", "8192", "--max-num-seqs", "64"]
        return [*self.environment(), self.python, "-m", "vllm.entrypoints.openai.api_server", "--model", self.model, *options, "--port"]

    @staticmethod
    def environment():
        cores = ["VLLM_CPU_OMP_THREADS_BIND=0-" + str(os.cpu_count() - 1), "VLLM_CPU_NUM_OF_RESERVED_CPU=0", f"OMP_NUM_THREADS={THREADS}"]
        quiet = ["VLLM_CPU_KVCACHE_SPACE=3", "VLLM_NO_USAGE_STATS=1", "HF_HUB_OFFLINE=1", "VLLM_LOGGING_LEVEL=ERROR"]
        return ["env", *cores, *quiet]


def engines(at, kind, peers):
    """Ours, and of the others what is installed and has files of this kind."""
    yield Twostroke(at, kind)
    for engine in (LlamaCpp, IkLlamaCpp, OpenVino, Vllm):
        for format in engine.formats[kind] + MORE_FORMATS.get((at.name, kind, engine.name), []):
            try:
                yield engine(at, format, peers)
            except Broken as reason:
                print(f"left out: {reason}", file=sys.stderr)
