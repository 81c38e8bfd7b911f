#!/usr/bin/env python3
"""What narrow weights and a narrow KV cache cost on real checkpoints, each gate held, peers beside: a table.

    table.py TWOSTROKE [--peer DIR] NAME=FILE.gguf ...        `cargo xtask real` calls it

NAME is a name in gates.json. DIR is a folder in which ik_llama.cpp was built. Everything is measured on the calibration text, in the second
half of windows of 512 tokens, against float32. The exit status is 1 if a gate is missed. Standard library only.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
TEXT = HERE.parent.parent / "crates/cli/calibration.txt"
PEERS = ["Q8_0", "Q4_K_M", "Q4_0", "IQ4_KS"]
ROW = "{:<12} {:<31} {:>6} {:>10} {:>11} {:>10}  {}"


def ours(program, file, weights, kv_dtype):
    command = [program, "quality", "-m", file, "--text", TEXT, "-c", "512", "--skip", "256", "--json",
               "--weights", weights, "--kv-dtype", kv_dtype]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)


def row(model, what, bits, kl, perplexity, same, verdict=""):
    print(ROW.format(model, what, f"{bits:.2f}", f"{kl:.6f}", f"{perplexity:.4f}", f"{100 * same:.2f} %", verdict), flush=True)


def gates(program, model, file):
    """Rows of ours; how many gates are missed."""
    missed = 0
    for gate in json.loads((HERE / "gates.json").read_text())[model]:
        found = ours(program, file, gate["weights"], gate["kv_dtype"])
        kl, most = found["mean_kl"], gate["most_kl"]
        what = gate["weights"] + (f" ({found['weights']})" if found["weights"] != gate["weights"] else "")
        what += ", int8 KV cache" if gate["kv_dtype"] == "int8" else ""
        verdict = f"gate {most}"
        if not kl <= most:  # also of what is no number
            missed += 1
            known = kl <= 1.02 * gate.get("known_kl", 0)
            verdict += " MISSED" + (", as is known" if known else "") + f": {gate['why']}"
        row(model, what, found["bits_per_weight"], kl, found["perplexity"], found["same_best_token"], verdict)
    return missed


class Peer:
    """Programs of ik_llama.cpp."""

    def __init__(self, directory):
        self.programs = {path.name: path for path in directory.rglob("llama-*") if os.access(path, os.X_OK) and path.is_file()}
        for name in ["llama-quantize", "llama-perplexity"]:
            if name not in self.programs:
                sys.exit(f"--peer: no {name} in {directory}")
        libraries = {str(path.parent) for path in directory.rglob("*.so")}
        self.environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(sorted(libraries))}

    def run(self, folder, name, *arguments):
        command = [self.programs[name], *map(str, arguments)]
        ran = subprocess.run(command, cwd=folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        text = ran.stdout.decode(errors="replace")
        if ran.returncode:
            sys.exit(f"{name} {' '.join(map(str, arguments))} ended with {ran.returncode}:\n{text[-2000:]}")
        return text

    def compare(self, model, file):
        """Rows of theirs."""
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            exact, base = folder / "f32.gguf", folder / "base.kl"
            self.run(folder, "llama-quantize", "--allow-requantize", file, exact, "F32")
            measure = ["-f", TEXT, "-c", "512", "-t", str(os.cpu_count()), "--kl-divergence-base", base]
            self.run(folder, "llama-perplexity", "-m", exact, *measure)
            self.row(model, "as stored", self.run(folder, "llama-perplexity", "-m", file, *measure, "--kl-divergence"))
            for kind in PEERS:
                narrow = folder / f"{kind}.gguf"
                self.run(folder, "llama-quantize", exact, narrow, kind)
                self.row(model, kind, self.run(folder, "llama-perplexity", "-m", narrow, *measure, "--kl-divergence"))
                if kind == "Q8_0":
                    cache = ["-ctk", "q8_0", "-ctv", "q8_0"]
                    log = self.run(folder, "llama-perplexity", "-m", narrow, *measure, "--kl-divergence", *cache)
                    self.row(model, f"{kind}, q8_0 KV cache", log)
                narrow.unlink()

    @staticmethod
    def row(model, what, log):
        def number(pattern):
            found = re.search(pattern + r"\s*([-\d.einf]+)", log)
            return float(found.group(1)) if found else float("nan")

        bits = re.search(r"([\d.]+) BPW\)", log)
        row(model, f"ik_llama.cpp {what}", float(bits.group(1)) if bits else float("nan"), number(r"Mean\s+KLD:"),
            number(r"Mean PPL\(Q\)\s*:"), number(r"Same top p:") / 100)


def main():
    program, *arguments = sys.argv[1:]
    peer = None
    if arguments[:1] == ["--peer"]:
        peer, arguments = Peer(Path(arguments[1]).resolve()), arguments[2:]
    print(ROW.format("model", "what", "bits", "mean KL", "perplexity", "same best", "").rstrip())
    missed = 0
    for argument in arguments:
        model, file = argument.split("=", 1)
        missed += gates(program, model, file)
        if peer:
            peer.compare(model, file)
    print("every gate holds" if missed == 0 else f"{missed} gate{'s' if missed > 1 else ''} missed")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
