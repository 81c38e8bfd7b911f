"""Commands of `twostroke` whose results are numbers, each in a process of its own: what is measured has the machine to
itself as far as this process leaves it, and what is wrong with a flag is an exception here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from twostroke import _twostroke

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COMMAND = [sys.executable, "-I", "-S", str(Path(__file__).with_name("_child.py"))]
"""What runs `twostroke` in a process of its own, whatever the working directory has."""

USAGE = 2
"""The exit code of a command whose flags are wrong."""

PREFILL, DECODE = "#d9730d", "#1f6fd0"


def plan(model: str | os.PathLike[str] | None = None, **flags: Any) -> dict[str, Any]:
    """Before a weight is read: memory, TTFT, TPOT, and what binds them. Flags of `twostroke plan` by their names."""
    return cast("dict[str, Any]", json.loads(_run("plan", "--json", *_written(model, flags))))


def bench(model: str | os.PathLike[str] | None = None, **flags: Any) -> list[dict[str, Any]]:
    """Prefill and decode beside the machine's limits: a row for each test, as `pandas.DataFrame` takes it.

    Flags of `twostroke bench` by their names: `bench(n_prompt=[128, 512], n_gen=32, weights="int8")`.
    """
    return cast("list[dict[str, Any]]", json.loads(_run("bench", "--json", *_written(model, flags))))


@dataclass(repr=False)
class Lab:
    """Both phases as curves. In a notebook it is its picture and its words."""

    report: dict[str, Any]
    """Every point with every repetition, and the laws: `lab.json`."""
    text: str
    """What was found, in tables and words."""
    figure: Figure | None = field(default=None)
    """`None` without matplotlib."""

    def __repr__(self) -> str:
        return self.text


def lab(
    model: str | os.PathLike[str] | None = None, *, output: str | os.PathLike[str] | None = None, **flags: Any
) -> Lab:
    """Measures both phases: prefill against the prompt's length, decode against position and batch.

    `output`: a directory for the report and its pictures (`lab.html`); without one they are not kept. Other flags are
    those of `twostroke lab`: `lab(prompts=[32, 64, 128], batches=[1, 4], repetitions=3)`.
    """
    with tempfile.TemporaryDirectory() as passing:
        directory = Path(output if output is not None else passing)
        text = _run("lab", f"--output={directory}", *_written(model, flags))
        report = json.loads((directory / "lab.json").read_text())
    return Lab(report, text, _draw(report))


def _draw(report: dict[str, Any]) -> Figure | None:
    """A picture with a curve for each sweep."""
    try:
        from matplotlib import pyplot
    except ImportError:
        return None
    sweeps = [sweep for sweep in report["sweeps"] if sweep["points"]]
    figure, axes = pyplot.subplots(1, len(sweeps), figsize=(4.5 * len(sweeps), 3.5), squeeze=False)
    for axis, sweep in zip(axes[0], sweeps, strict=True):
        _draw_sweep(axis, sweep)
    figure.suptitle(f"{report['model']}, {report['model_type']}")
    figure.tight_layout()
    return figure


def _draw_sweep(axis: Axes, sweep: dict[str, Any]) -> None:
    """Medians, with the least and the most of the repetitions, and the law as a line. Prefill has squares."""
    colour, mark = (PREFILL, "s") if sweep["name"] == "prefill" else (DECODE, "o")
    points = sweep["points"]
    x, median = [point["x"] for point in points], [point["median_ms"] for point in points]
    below = [point["median_ms"] - min(point["samples_ms"]) for point in points]
    above = [max(point["samples_ms"]) - point["median_ms"] for point in points]
    axis.errorbar(x, median, yerr=[below, above], fmt=mark, color=colour, capsize=3)
    if sweep["law"] is not None:
        powers = sweep["law"]["seconds_by_power"]
        grid = [x[0] + (x[-1] - x[0]) * at / 100 for at in range(101)]
        axis.plot(grid, [1e3 * sum(c * at**power for power, c in enumerate(powers)) for at in grid], color=colour)
    axis.set_xlabel(sweep["x"])
    axis.set_ylabel(sweep["y"])
    axis.set_ylim(bottom=0)


def _written(model: str | os.PathLike[str] | None, flags: dict[str, Any]) -> list[str]:
    """Flags as a command line has them: a list gives its flag for each."""
    written = [] if model is None else [f"--model={os.fspath(model)}"]
    for name, value in flags.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            written.append(flag)
        elif value is not None and value is not False:
            values = value if isinstance(value, (list, tuple, range)) else [value]
            written.extend(f"{flag}={one}" for one in values)
    return written


def _run(*arguments: str) -> str:
    """What a command prints. What it complains of is an exception."""
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True)
    if done.returncode == 0:
        return done.stdout
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    message = _twostroke.in_python(lines[-1].removeprefix("twostroke: "))
    if done.returncode != USAGE:
        raise RuntimeError(message)
    raise (TypeError if message.startswith("unexpected argument") else ValueError)(message)
