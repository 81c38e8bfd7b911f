#!/usr/bin/env python3
"""What narrow weights and a narrow KV cache cost on real checkpoints, each gate held, peers beside: a table.

    table.py TWOSTROKE [--peer DIR] NAME=FILE.gguf ...        `cargo xtask real` calls it

NAME is a name in gates.json. DIR is a folder in which ik_llama.cpp was built. Everything is measured on the calibration text, in the
second half of windows of 512 tokens, against float32. The exit status is 1 if a gate is missed. Standard library only.
"""

import json
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "bench"))
from perplexity import Peer, ours  # noqa: E402

TEXT = ROOT / "crates/cli/calibration.txt"
PEERS = ["Q8_0", "Q4_K_M", "Q4_0", "IQ4_KS"]
ROW = "{:<12} {:<31} {:>6} {:>10} {:>11} {:>10}  {}"


def row(model, what, found, verdict=""):
    print(ROW.format(model, what, f"{found['bits_per_weight']:.2f}", f"{found['mean_kl']:.6f}", f"{found['perplexity']:.4f}",
                     f"{100 * found['same_best_token']:.2f} %", verdict), flush=True)


def gates(program, model, file):
    """Rows of ours; how many gates are missed."""
    missed = 0
    for gate in json.loads((HERE / "gates.json").read_text())[model]:
        found = ours(program, gate["weights"], gate["kv_dtype"], "-m", file, "--text", TEXT)
        kl, most = found["mean_kl"], gate["most_kl"]
        what = gate["weights"] + (f" ({found['weights']})" if found["weights"] != gate["weights"] else "")
        what += ", int8 KV cache" if gate["kv_dtype"] == "int8" else ""
        verdict = f"gate {most}"
        if not kl <= most:  # also of what is no number
            missed += 1
            known = kl <= 1.02 * gate.get("known_kl", 0)
            verdict += " MISSED" + (", as is known" if known else "") + f": {gate['why']}"
        row(model, what, found, verdict)
    return missed


def compare(peer, model, file):
    """Rows of theirs."""
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for found in peer.rows(file, peer.float32(file, folder), folder, PEERS):
            cache = f", {found['kv_dtype']} KV cache" if found["kv_dtype"] != "f16" else ""
            row(model, f"ik_llama.cpp {found['weights']}{cache}", found)


def main():
    program, *arguments = sys.argv[1:]
    peer = None
    if arguments[:1] == ["--peer"]:
        peer, arguments = Peer(arguments[1], TEXT), arguments[2:]
    print(ROW.format("model", "what", "bits", "mean KL", "perplexity", "same best", "").rstrip())
    missed = 0
    for argument in arguments:
        model, file = argument.split("=", 1)
        missed += gates(program, model, file)
        if peer:
            compare(peer, model, file)
    print("every gate holds" if missed == 0 else f"{missed} gate{'s' if missed > 1 else ''} missed")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
