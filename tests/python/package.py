"""What the tests of the package share: where the repository is, one engine for those who need no other, programs of
their own, and a server inside `python -m twostroke`.

    cargo xtask test --only python
"""

import json
import os
import select
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests/clients"))

from served import STORY, SUM, raises, run_with, test  # noqa: E402, F401

from twostroke import LLM  # noqa: E402

ONCE = "Once upon a time"
# Patience: minutes for what takes milliseconds.
PATIENCE = 300


@cache
def llm():
    """The built-in model, as `LLM` has it when nothing is said."""
    return LLM()


def python(*arguments, **options):
    """A process of this interpreter, and what it said."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=PATIENCE, **options)


def line_of(process):
    """The next line of a process, or an error after a while."""
    ready, _, _ = select.select([process.stdout], [], [], PATIENCE)
    assert ready, "it said nothing"
    return process.stdout.readline().strip()


@contextmanager
def program(text):
    """A program of its own under way."""
    command = [sys.executable, "-u", "-c", text]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def server(*flags):
    """`python -m twostroke serve` on a free port: the process, and a function that posts to it."""
    command = [sys.executable, "-m", "twostroke", "serve", "--port", "0", "--json", *flags]
    quiet = {**os.environ, "TWOSTROKE_LOG": "error"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=quiet)
    try:
        address = f"http://127.0.0.1:{json.loads(line_of(process))['port']}"

        def post(path, body):
            headers = {"content-type": "application/json"}
            request = urllib.request.Request(address + path, data=json.dumps(body).encode(), headers=headers)
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return json.load(answer)

        yield process, post
    finally:
        process.kill()
        process.wait()


def binary():
    """The program `twostroke`, which `cargo xtask test` has built."""
    return os.environ["TWOSTROKE_BINARY"]
