"""`twostroke quality`, and beside it the programs of ik_llama.cpp that measure the same on the same tokens. Standard library only.

`-c 512 --skip 256` is what `llama-perplexity -c 512` judges: the second half of each whole window. Each engine is judged by its own
float32. The foreign programs are run by scripts alone: `twostroke` starts no program that it did not bring.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

WINDOW = ["-c", "512", "--skip", "256"]


def ours(program, weights, kv_dtype, *arguments):
    """The report of `twostroke quality`."""
    command = [program, "quality", *arguments, *WINDOW, "--json", "--weights", weights, "--kv-dtype", kv_dtype]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)


class Peer:
    """Programs of ik_llama.cpp or llama.cpp, built in a directory."""

    def __init__(self, directory, text, threads=os.cpu_count()):
        self.text, self.threads = text, threads
        directory = Path(directory).resolve()
        self.name = "ik_llama.cpp" if "ik_llama" in str(directory) else "llama.cpp"
        self.programs = {path.name: path for path in directory.rglob("llama-*") if os.access(path, os.X_OK) and path.is_file()}
        for name in ["llama-quantize", "llama-perplexity"]:
            if name not in self.programs:
                sys.exit(f"no {name} in {directory}")
        libraries = {str(path.parent) for path in directory.rglob("*.so")}
        self.environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(sorted(libraries))}

    def run(self, folder, name, *arguments):
        """The programs write logs where they are started, so that is `folder`."""
        command = [self.programs[name], *map(str, arguments)]
        ran = subprocess.run(command, cwd=folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        text = ran.stdout.decode(errors="replace")
        if ran.returncode:
            sys.exit(f"{name} {' '.join(map(str, arguments))} ended with {ran.returncode}:\n{text[-2000:]}")
        return text

    def float32(self, file, folder):
        """Writes a model's weights as float32 into a folder."""
        exact = folder / "f32.gguf"
        self.run(folder, "llama-quantize", "--allow-requantize", Path(file).resolve(), exact, "F32")
        return exact

    def rows(self, file, exact, folder, kinds):
        """`file` as it is stored, if it is given, what an 8-bit cache costs, then its float32 quantized to `kinds`: dicts, one by one."""
        base = folder / "base.kl"

        def measure(model, *more):
            return self.run(folder, "llama-perplexity", "-m", model, "-f", self.text, "-c", 512, "-t", self.threads,
                            "--kl-divergence-base", base, *more)

        def row(model, weights, kv_dtype="f16", more=(), written=""):
            cache = [] if kv_dtype == "f16" else ["-ctk", kv_dtype, "-ctv", kv_dtype]
            return figures(written + measure(model, "--kl-divergence", *cache, *more), weights, kv_dtype)

        measure(exact)
        if file:
            yield row(Path(file).resolve(), "as stored")
            yield row(Path(file).resolve(), "as stored, -ub 16", more=["-ub", 16])
            yield row(exact, "F32", "q8_0")
        for kind in kinds:
            narrow = folder / f"{kind}.gguf"
            written = self.run(folder, "llama-quantize", exact, narrow, kind)
            yield row(narrow, kind, written=written)
            if kind == "Q8_0":
                yield row(narrow, kind, "q8_0")
            narrow.unlink()
        base.unlink()


def figures(log, weights, kv_dtype):
    """What llama-perplexity printed, under the names of `twostroke quality --json`."""

    def number(pattern):
        found = re.search(pattern + r"\s*([-\d.einf]+)", log)
        return float(found.group(1)) if found else float("nan")

    # llama-quantize says what was and what is, ik_llama.cpp's llama-perplexity what it reads: the last is right.
    bits = re.findall(r"([\d.]+) BPW\)", log)
    return {
        "weights": weights,
        "kv_dtype": kv_dtype,
        "bits_per_weight": float(bits[-1]) if bits else float("nan"),
        "perplexity": number(r"Mean PPL\(Q\)\s*:"),
        "reference_perplexity": number(r"Mean PPL\(base\)\s*:"),
        "perplexity_increase": number(r"Mean PPL\(Q\)/PPL\(base\)\s*:") - 1,
        "mean_kl": number(r"Mean\s+KLD:"),
        "worst_kl": number(r"Maximum KLD:"),
        "same_best_token": number(r"Same top p:") / 100,
    }
