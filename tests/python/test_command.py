"""The command inside the package, its figures as values, the log as a table, types, and the page of the guide."""

import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.error
from pathlib import Path
from signal import SIGINT

import matplotlib

matplotlib.use("Agg")

import mypy.api
import numpy
import pandas
import twostroke
from package import ONCE, PATIENCE, ROOT, STORY, binary, llm, python, raises, run_with, server, test
from twostroke import EngineOptions, SamplingParams, StepRecord, _twostroke

PACKAGE = Path(twostroke.__file__).parent


@test
def the_command_is_the_program():
    for arguments in (["--version"], ["--help"], ["plan", "-m", "7b", "--json"], ["serve", "--no-such-flag"], []):
        ours = python("-m", "twostroke", *arguments)
        theirs = subprocess.run([binary(), *arguments], capture_output=True, text=True)
        assert (ours.returncode, ours.stdout, ours.stderr) == (theirs.returncode, theirs.stdout, theirs.stderr)
    script = Path(sys.executable).with_name("twostroke")
    assert subprocess.run([script, "--version"], capture_output=True, text=True).stdout.split()[1] == (
        twostroke.__version__
    )


@test
def the_command_serves_and_ends_on_a_signal():
    with server() as (process, post):
        chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
        assert post("/v1/chat/completions", chat)["usage"]["completion_tokens"] >= 1
        raises(urllib.error.HTTPError, lambda: post("/v1/chat/completions", {**chat, "messages": []}), "400")
        process.send_signal(SIGINT)
        assert process.wait(PATIENCE) == 0


@test
def the_step_log_is_a_table():
    with twostroke.LLM() as own:
        outputs = own.generate([STORY, ONCE], SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))
        log, rows = own.step_log(), own.step_rows()
    frame = pandas.DataFrame(log)
    assert list(frame.columns) == list(StepRecord._fields) and len(frame) == len(log)
    assert frame.step.is_monotonic_increasing and (frame.took_ms > 0).all()
    computed = sum(output.metrics.prefill_tokens for output in outputs)
    assert frame.prefill_rows.sum() == computed and frame.tokens.sum() == 24
    table = numpy.rec.fromrecords(log, names=StepRecord._fields)
    assert table.took_ms.dtype == float and table.prefill_rows.sum() == computed
    by_phase = pandas.DataFrame(rows).groupby("phase")["rows"].sum()
    assert by_phase["prefill"] == computed and by_phase["decode"] == frame.decode_rows.sum()
    of_one = [row for row in rows if row.request_id == outputs[0].request_id]
    assert sum(row.tokens for row in of_one) == 12


@test
def what_plan_says_is_what_the_command_says():
    ours = twostroke.plan("llama-3.1-8b", machine="a100", prompt=2000, weights="int8")
    command = [binary(), "plan", "-m", "llama-3.1-8b", "--machine", "a100", "--prompt", "2000", "--weights", "int8"]
    assert ours == json.loads(subprocess.run([*command, "--json"], capture_output=True, text=True).stdout)


@test
def bench_gives_rows():
    frame = pandas.DataFrame(twostroke.bench(n_prompt=[16, 32], n_gen=4, repetitions=1, threads=1))
    assert list(frame.n_prompt) == [16, 32, 0] and list(frame.n_gen) == [0, 0, 4]
    assert (frame.avg_ts > 0).all() and (frame.limit_percent <= 100.01).all()


@test
def lab_draws_both_phases():
    points = dict(prompts=[16, 32, 64, 128], positions=[0, 64], batches=[1, 2], repetitions=1)
    with tempfile.TemporaryDirectory() as directory:
        lab = twostroke.lab(output=directory, **points)
        assert (Path(directory) / "lab.html").exists()
        axes = lab.figure.axes
        assert [axis.get_xlabel() for axis in axes] == [sweep["x"] for sweep in lab.report["sweeps"]]
        drawn = [container.lines[0].get_xdata().tolist() for axis in axes for container in axis.containers]
        assert drawn == [points["prompts"], points["positions"], points["batches"]]
        lab.figure.savefig(Path(directory) / "lab.png")
    assert "prefill" in repr(lab).lower()


@test
def lab_needs_no_matplotlib():
    text = """
import sys
sys.modules["matplotlib"] = None
import twostroke
lab = twostroke.lab(prompts=[16], positions=[0], batches=[1], repetitions=1)
print(lab.figure, len(lab.report["sweeps"]))
"""
    ran = python("-c", text, cwd=tempfile.gettempdir())
    assert ran.stdout.split() == ["None", "3"], ran


@test
def options_are_typed_as_the_engine_has_them():
    assert ["model", *EngineOptions.__annotations__] == _twostroke.engine_options()


@test
def colours_are_those_of_the_other_pictures():
    colours = (ROOT / "crates/figures/src/colour.rs").read_text()
    named = dict(re.findall(r'Colour::(\w+) => "(#\w+)"', colours))
    assert (twostroke.commands.PREFILL, twostroke.commands.DECODE) == (named["Prefill"], named["Decode"])


TYPED = """
import asyncio
from twostroke import LLM, RequestOutput, SamplingParams, bench, lab, plan

llm = LLM("lantern", max_num_seqs=8, weights="int8")
outputs: list[RequestOutput] = llm.generate(["a", "b"], SamplingParams(n=2, stop="x"))
of_tokens: list[RequestOutput] = llm.generate([[1, 2], [3]], [SamplingParams(), SamplingParams(seed=1)])
of_one: list[RequestOutput] = llm.generate({"prompt_token_ids": [1, 2]})
chat: list[RequestOutput] = llm.chat([{"role": "user", "content": "a"}])
ids: list[int] = outputs[0].outputs[0].token_ids
took: float = llm.step_log()[0].took_ms

async def read() -> None:
    async for output in llm.stream("a"):
        reveal_type(output)

LLM(max_num_sequences=3)  # wrong
LLM(weights="int7")  # wrong
SamplingParams(temperature="hot")  # wrong
llm.generate(3)  # wrong
"""


@test
def the_package_is_typed():
    with tempfile.TemporaryDirectory() as directory:
        user = Path(directory) / "user.py"
        user.write_text(TYPED)
        cache = ["--cache-dir", directory, "--config-file", str(ROOT / "crates/python/pyproject.toml")]
        said, errors, code = mypy.api.run([*cache, "-p", "twostroke"])
        assert code == 0, said + errors
        said, errors, code = mypy.api.run([*cache, str(user)])
        wrong = {number for number, line in enumerate(TYPED.splitlines(), 1) if line.endswith("# wrong")}
        found = {int(match) for match in re.findall(r"user.py:(\d+): error", said)}
        assert found == wrong and "RequestOutput" in said, said + errors


@test
def stubs_are_what_the_extension_has():
    ran = python("-m", "mypy.stubtest", "twostroke._twostroke", cwd=tempfile.gettempdir())
    assert ran.returncode == 0, ran.stdout + ran.stderr


@test
def programs_of_the_guide_work():
    page = (ROOT / "docs/guide/python.md").read_text()
    blocks = re.findall(r"^```(python|sh) package\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 5, "the guide has programs"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for language, text in blocks:
        command = [sys.executable, "-c"] if language == "python" else ["bash", "-euo", "pipefail", "-c"]
        with tempfile.TemporaryDirectory() as directory:
            environment = {**os.environ, "PATH": path, "MPLBACKEND": "Agg"}
            ran = subprocess.run([*command, text], capture_output=True, text=True, cwd=directory, env=environment)
        assert ran.returncode == 0 and ran.stdout.strip(), f"{text}\n{ran}"


@test
def every_name_has_words():
    for name in twostroke.__all__:
        assert getattr(twostroke, name).__doc__, name
    assert llm().model == "lantern"
    assert (PACKAGE / "py.typed").exists()


if __name__ == "__main__":
    sys.exit(run_with())
