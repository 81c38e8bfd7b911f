"""The wheel in an environment that has nothing else: no other package, and no site packages."""

import importlib.util
import sys

from package import ONCE, SUM, llm, python, run_with, test
from twostroke import SamplingParams


@test
def nothing_else_is_installed():
    others = ["numpy", "pandas", "matplotlib", "mypy", "typing_extensions", "pip"]
    assert [name for name in others if importlib.util.find_spec(name) is not None] == []


@test
def it_answers():
    (output,) = llm().generate(ONCE, SamplingParams(temperature=0, max_tokens=8))
    assert len(output.outputs[0].token_ids) == 8
    (output,) = llm().chat([{"role": "user", "content": SUM}], SamplingParams(temperature=0))
    assert "42" in output.outputs[0].text, output


@test
def its_command_runs():
    assert python("-m", "twostroke", "--version").stdout.startswith("twostroke ")


if __name__ == "__main__":
    sys.exit(run_with())
