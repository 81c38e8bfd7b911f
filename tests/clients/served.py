"""What the tests of clients share: how they are listed, what they ask, and how they are run against a server.

    twostroke serve --port 8000 --batch-dir batches &
    python test_openai.py http://127.0.0.1:8000 [API_KEY]

A program of tests prints a line for each and `N passed, N failed`; the exit code is the number of failures, at most 1.
The clients parse every answer into their own types, so a field of a wrong type or name fails there.
"""

import json
import sys
import time
import traceback
import urllib.request

TESTS = []

NO_KEY = "no-key"

STORY = "Tell me a story about a fox and a lantern"
# The built-in model thinks before it answers this.
SUM = "What is 17 + 25?"
# What a model says is checked without knowing the model: a schema leaves it two words.
ANIMAL = {"type": "object", "properties": {"animal": {"enum": ["fox", "owl"]}}, "required": ["animal"],
          "additionalProperties": False}
WEATHER = {"type": "object", "properties": {"place": {"enum": ["forest", "river"]}}, "required": ["place"],
           "additionalProperties": False}


def test(function):
    TESTS.append(function)
    return function


def raises(kind, call, *words, **expected):
    """Calls and returns the client's error, which must be of `kind`, say the words and carry the attributes."""
    try:
        call()
    except kind as error:
        for word in words:
            assert word in str(error), f"{word!r} is not in {error}"
        for name, value in expected.items():
            assert getattr(error, name) == value, f"{name}: {getattr(error, name)!r} instead of {value!r} in {error}"
        return error
    raise AssertionError(f"no {kind.__name__}")


class Server:
    """Where the server is, the key that it asks for, and the name of its model."""

    def __init__(self, address, key):
        self.address, self.key = address, key
        self.model = self.get("/v1/models")["data"][0]["id"]

    @property
    def v1(self):
        """The base of OpenAI's clients."""
        return f"{self.address}/v1"

    def get(self, path):
        return self.post(path, None)

    def post(self, path, body):
        """An answer to what no client asks."""
        request = urllib.request.Request(
            self.address + path, data=None if body is None else json.dumps(body).encode(),
            headers={"content-type": "application/json", "authorization": f"Bearer {self.key}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)


def run(connect):
    """Runs what is listed, each test with what `connect` makes of the server that the command line names."""
    if not 2 <= len(sys.argv) <= 3:
        print(__doc__)
        return 2
    server = Server(sys.argv[1].rstrip("/"), sys.argv[2] if len(sys.argv) == 3 else NO_KEY)
    return run_with(*connect(server))


def run_with(*arguments):
    """Runs what is listed with these arguments, and returns the exit code."""
    failed = 0
    for function in TESTS:
        name, start = function.__name__.replace("_", " "), time.monotonic()
        try:
            function(*arguments)
            print(f"ok      {name} ({time.monotonic() - start:.1f} s)", flush=True)
        except Exception:  # every failure is shown, whatever it is
            failed += 1
            print(f"FAILED  {name}")
            traceback.print_exc(file=sys.stdout)
    print(f"{len(TESTS) - failed} passed, {failed} failed")
    return 1 if failed else 0
