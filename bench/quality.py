#!/usr/bin/env python3
"""What weight classes and KV cache types cost in quality: tables of real models, with ik_llama.cpp beside.

    cargo build --release
    bench/quality.py                                                     the built-in model, some minutes
    bench/quality.py --peers DIR smollm2-135m=A.gguf gemma3-270m=B.gguf  GGUF files; DIR: where ik_llama.cpp was built
    bench/quality.py --peers DIR --off-grid PYTHON smollm2-135m=A.gguf   int4 and Q4_K_M of weights that no type has rounded before
    bench/quality.py --page                                              docs/quality.md alone

Each call measures what it names, replaces that in bench/results/quality.json and writes docs/quality.md from the file. One thread for
every engine. The built-in model is judged on the beginning of models/lantern/heldout.jsonl, written out as it reads it; the others on
the calibration text. Files in the making lie in a temporary directory that is removed, also after Ctrl-C. Standard library only.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from perplexity import Peer, ours

BYTES = 24_000
ROOT = Path(__file__).resolve().parent.parent
TEXT = ROOT / "crates/cli/calibration.txt"
RESULTS = ROOT / "bench/results/quality.json"
CASES = [("bf16", "bf16"), ("bf16", "int8"), ("int8", "bf16"), ("int8", "int8"), ("int4", "bf16"), ("int4", "int8")]
AS_STORED = [("auto", "bf16"), ("auto", "int8")]
PEERS = ["Q8_0", "Q4_K_M", "IQ4_KS", "Q4_0"]
OFF_GRID = "-off-grid"
KEPT = ["weights", "kv_dtype", "bits_per_weight", "perplexity", "reference_perplexity", "perplexity_increase", "mean_kl", "worst_kl",
        "same_best_token"]


def held_out_text():
    turns = []
    for line in (ROOT / "models/lantern/heldout.jsonl").read_text().splitlines():
        case = json.loads(line)
        # A story's `answer` is no story.
        if case["kind"] != "story" and sum(map(len, turns)) < BYTES:
            turns += [f"<|{message['role']}|>\n{message['content']}<|end|>\n" for message in case["messages"]]
            turns.append(f"<|assistant|>\n{case['answer']}<|end|>\n")
    return "".join(turns)


class Table:
    """The rows of one model."""

    def __init__(self, name, file):
        self.found = {"model": name, "file": file, "commit": commit(), "rows": []}

    def add(self, engine, of, found):
        """`of`: which weights were quantized."""
        self.found["rows"].append({"engine": engine, "of": of, **{name: found[name] for name in KEPT}})
        for name in {"tokens", "arithmetic", "window", "skip"} & found.keys():
            self.found[name] = found[name]
        print(f"{self.found['model']}: {engine}, {of}, {found['weights']} weights, {found['kv_dtype']} KV cache: "
              f"{found['mean_kl']:.6f} nats", file=sys.stderr)


def commit():
    git = ["git", "-C", ROOT, "rev-parse", "--short", "HEAD"]
    return subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()


def built_in(program):
    table = Table("lantern", "built in")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as text:
        text.write(held_out_text())
        text.flush()
        for case in CASES:
            table.add("twostroke", "stored", ours(program, *case, "-t", "1", "--text", text.name))
    return table.found


def gguf(program, peer, name, file):
    table = Table(name, Path(file).name)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        exact = peer.float32(file, folder)
        for weights, kv_dtype in CASES:
            table.add("twostroke", "float32", ours(program, weights, kv_dtype, "-t", "1", "-m", exact, "--text", TEXT))
        for weights, kv_dtype in AS_STORED:
            table.add("twostroke", "stored", ours(program, weights, kv_dtype, "-t", "1", "-m", file, "--text", TEXT))
        for found in peer.rows(file, exact, folder, PEERS):
            as_stored = found["weights"].startswith("as stored")
            table.add(peer.name, "stored" if as_stored else "float32", found)
    return table.found


def off_grid(program, peer, python, name, file):
    table = Table(name + OFF_GRID, Path(file).name)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        moved = folder / "moved.gguf"
        subprocess.run([python, ROOT / "bench/off_grid.py", file, peer.float32(file, folder), moved], check=True)
        table.add("twostroke", "float32", ours(program, "int4", "bf16", "-t", "1", "-m", moved, "--text", TEXT))
        for found in peer.rows(None, moved, folder, ["Q4_K_M"]):
            table.add(peer.name, "float32", found)
    return table.found


def measure(arguments):
    program = str(arguments.program.resolve())
    if not arguments.models:
        yield built_in(program)
        return
    if arguments.peers is None:
        sys.exit("GGUF files need --peers DIR: its llama-quantize writes their weights as float32")
    peer = Peer(arguments.peers, TEXT, threads=1)
    for argument in arguments.models:
        name, _, file = argument.partition("=")
        if not Path(file).is_file():
            sys.exit(f"{argument}: not NAME=FILE.gguf")
        yield off_grid(program, peer, arguments.off_grid, name, file) if arguments.off_grid else gguf(program, peer, name, file)


TITLES = {
    "lantern": "Lantern, the built-in model",
    "smollm2-135m": "SmolLM2-135M-Instruct",
    "smollm2-135m" + OFF_GRID: "SmolLM2-135M-Instruct, off the grid",
    "gemma3-270m": "Gemma 3 270M",
    "gemma3-270m" + OFF_GRID: "Gemma 3 270M, off the grid",
}

NOTES = {
    "lantern": ["Its text has special tokens in it; llama-perplexity was not tried on it, so there is no comparison."],
    "smollm2-135m": [
        "The file is Q4_1. In large passes ik_llama.cpp loses much of it, in this build on this machine; `-ub 16` keeps passes small.",
        "IQ4_KS has fewer bits than `int4` since that holds more matrices in int8. Without these (this page at commit 16c73ca8) `int4` had",
        "0.101314 at 5.12 bits.",
    ],
    "gemma3-270m" + OFF_GRID: [
        "Perplexity flatters Q4_K_M in this table: rounded to the type of the file, weights go back to those of the file in part, and so does",
        "perplexity, which was 49.7110 there. The divergence from the moved weights does not.",
    ],
    "gemma3-270m": [
        "The file is Q4_K_M: what quantizes its weights to Q4_K_M once more finds them on the grid already, so that row says little about the",
        "type; the next table does. `auto` holds the file's groups of 16 and 32 in layouts that have room for all types of one matrix, which",
        "takes more bits. Without the matrices that are int8 `int4` had 0.168659 at 6.70 bits (this page at commit 16c73ca8).",
    ],
}


def page(tables):
    lines = [
        "# Quality", "",
        "<!-- Generated by bench/quality.py from bench/results/quality.json. Do not edit. -->", "",
        "What narrow weights and a narrow KV cache cost, each engine against its own float32 of the same weights. These tables are made by", "",
        "    bench/quality.py                                                          # Lantern",
        "    bench/quality.py --peers DIR smollm2-135m=SMOLLM2.gguf gemma3-270m=GEMMA.gguf",
        "    bench/quality.py --peers DIR --off-grid PYTHON smollm2-135m=SMOLLM2.gguf gemma3-270m=GEMMA.gguf", "",
        "and `twostroke quality -m MODEL --weights int8` says the same of any model, on the calibration text that is in the binary, in the",
        "second half of each window of 512 tokens: what `llama-perplexity -c 512` judges. DIR is where ik_llama.cpp or llama.cpp was built. Its",
        "programs are run by this script and not by `twostroke`, which starts no program that it did not bring.", "",
        "*KL* is the mean divergence of the next token's distribution from float32's, in nats: 0 is no loss. *Bits* are those of a weight of",
        "layers and head in memory, scales and all. A file as it is stored has lost its bits before, so its row says what computing with it",
        "costs; all other rows have float32 weights to begin with.", "",
        "*Off the grid*: a weight that was rounded to a type before loses nothing in it again, and files of these models with all their bits",
        "were not at hand. So each weight is moved by chance within the step that it was rounded to (`bench/off_grid.py`), and float32 weights",
        "are the moved ones: a model somewhat worse than its original, and as hard to round. There `int4` has less KL than Q4_K_M in both",
        "models, at fewer bits.", "",
    ]
    for table in tables:
        lines += section(table)
    return "\n".join(lines)


def section(table):
    float32 = table["rows"][0]["reference_perplexity"]
    lantern = table["model"] == "lantern"
    text = "the beginning of its held-out text" if lantern else "the calibration text"
    lines = [
        f"## {TITLES.get(table['model'], table['model'])}", "",
        f"{table['tokens']:,} tokens of {text}. Perplexity in float32: {float32:.4f}. Commit {table['commit']}, "
        f"`{table['arithmetic']}` arithmetic, one thread.",
    ]
    if not lantern:
        moved = ", moved off its grid" if table["model"].endswith(OFF_GRID) else ""
        lines.append(f"The file is `{table['file']}`; float32 weights are those of this file{moved}.")
    lines += [
        "", "| engine | weights | KV cache | bits | perplexity | KL | same best token |", "| --- | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for row in table["rows"]:
        weights = row["weights"].replace("as stored", "the file as it is")
        if (row["engine"], row["of"]) == ("twostroke", "stored") and not lantern:
            weights = f"the file as it is (`auto`: {weights})"
        lines.append(
            f"| {row['engine']} | {weights} | {row['kv_dtype']} | {row['bits_per_weight']:.2f} "
            f"| {100 * row['perplexity_increase']:+.3f} % | {row['mean_kl']:.6f} | {100 * row['same_best_token']:.2f} % |")
    note = NOTES.get(table["model"])
    return lines + ["", *note, ""] if note else lines + [""]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="NAME=FILE.gguf")
    parser.add_argument("--peers", metavar="DIR")
    parser.add_argument("--off-grid", metavar="PYTHON", help="with gguf and numpy: bench/peers.sh makes such a one")
    parser.add_argument("--program", type=Path, default=ROOT / "target/release/twostroke")
    parser.add_argument("--page", action="store_true")
    arguments = parser.parse_args()
    tables = {}
    if RESULTS.exists():
        tables = {table["model"]: table for table in json.loads(RESULTS.read_text())}
    if not arguments.page:
        for table in measure(arguments):
            tables[table["model"]] = table
            order = [*TITLES, *tables]
            kept = sorted(tables.values(), key=lambda table: order.index(table["model"]))
            RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
    (ROOT / "docs/quality.md").write_text(page(list(json.loads(RESULTS.read_text()))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
