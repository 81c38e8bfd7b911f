"""Checks one after another, each with its time, skipped by name where a program is missing, and a closing line."""

import functools
import shutil
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHECKS = []


class Skipped(Exception):
    """What is missing for a check."""


def check(function):
    CHECKS.append(function)
    return function


def needs(*programs):
    for program in programs:
        if shutil.which(program) is None:
            raise Skipped(f"{program} is not here")


def run(*command, expect=0, **options):
    """The output of both streams; an assertion unless the exit code is the expected one, if one is."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    text = done.stdout.decode(errors="replace")
    assert expect is None or done.returncode == expect, f"{' '.join(map(str, command))}: {done.returncode}: {text}"
    return text


class Files:
    """A server on the loopback address: bodies by path. Of those in `cut` it sends half and hangs up."""

    def __init__(self, bodies):
        self.bodies, self.cut = dict(bodies), set()
        files = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                name = self.path.lstrip("/")
                body = files.bodies.get(name)
                self.send_response(200 if body is not None else 404)
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                body = body or b""
                self.wfile.write(body[: len(body) // 2] if name in files.cut else body)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def main():
    failed = skipped = 0
    for function in CHECKS:
        name, begin = function.__name__.replace("_", " "), time.monotonic()
        try:
            said = function()
            print(f"ok      {name} ({time.monotonic() - begin:.1f} s){': ' + said if said else ''}", flush=True)
        except Skipped as missing:
            skipped += 1
            print(f"skipped {name}: {missing}", flush=True)
        except Exception as error:
            failed += 1
            print(f"FAILED  {name}: {type(error).__name__}: {error}", flush=True)
    passed = len(CHECKS) - failed - skipped
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    sys.exit(1 if failed else 0)


def for_each(values):
    """The same check once for each value, which is part of its name."""

    def register(function):
        for value in values:
            each = functools.partial(function, value)
            each.__name__ = f"{function.__name__}_[{value}]"
            CHECKS.append(each)
        return function

    return register
