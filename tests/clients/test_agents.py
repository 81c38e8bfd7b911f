"""Coding agents against a running twostroke server: each is asked something, and has to end well.

Run in a directory into whose `node_modules` agents/package.json was installed, against a model whose context has room
for 50,000 tokens of prompt: see served.py. What the model says does not matter, and of random weights it is nothing.
What matters is that everything that an agent sends is understood, and everything that it gets is what it expects.
"""

import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

from served import run, test

QUESTION = "Say hello."


def counters(server):
    """Tokens of prompts and of answers so far, and answers that ended well."""
    with urllib.request.urlopen(f"{server.address}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total")
    lines = [[float(number) for number in re.findall(rf"^{name}\S* (\S+)$", text, re.M)] for name in names]
    assert all(lines), "a counter is missing"
    return [int(sum(numbers)) for numbers in lines]


def ask(server, name, arguments, files=(), **environment):
    """Runs an agent in an empty directory, with a home of its own that has these files."""
    home = Path.cwd() / "homes" / name
    work = home / "work"
    work.mkdir(parents=True, exist_ok=True)
    for path, text in files:
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text)
    path = os.pathsep.join([str(Path("node_modules/.bin").resolve()), os.environ["PATH"]])
    before = counters(server)
    ended = subprocess.run(
        [name, *arguments, QUESTION], cwd=work, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
        env={"PATH": path, "HOME": str(home), **environment})
    prompts, answers, ends = (after - before for after, before in zip(counters(server), before))
    shown = f"{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}"
    assert ended.returncode == 0, f"{name} ended with {ended.returncode}:\n{shown}"
    assert ended.stdout.strip() and ends >= 1 and answers > 0, f"{name} was not answered:\n{shown}"
    print(f"        {name}: {ends} answered, {prompts} tokens of prompt, {answers} of answer")


@test
def codex_is_answered_by_responses(server):
    config = f"""
model = "{server.model}"
model_provider = "twostroke"

[model_providers.twostroke]
name = "twostroke"
base_url = "{server.v1}"
wire_api = "responses"
"""
    ask(server, "codex", ["exec", "--skip-git-repo-check"], [(".codex/config.toml", config)])


@test
def claude_code_is_answered_by_messages(server):
    ask(server, "claude", ["-p"], ANTHROPIC_BASE_URL=server.address, ANTHROPIC_AUTH_TOKEN=server.key,
        ANTHROPIC_MODEL=server.model, ANTHROPIC_DEFAULT_HAIKU_MODEL=server.model, CLAUDE_CODE_ATTRIBUTION_HEADER="0",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1", DISABLE_AUTOUPDATER="1")


@test
def opencode_is_answered_by_chat(server):
    config = {
        "autoupdate": False, "share": "disabled", "model": f"twostroke/{server.model}",
        "small_model": f"twostroke/{server.model}",
        "provider": {"twostroke": {
            "npm": "@ai-sdk/openai-compatible", "name": "twostroke", "models": {server.model: {"name": server.model}},
            "options": {"baseURL": server.v1, "apiKey": server.key}}},
    }
    ask(server, "opencode", ["run"], [("work/opencode.json", json.dumps(config))])


def connect(server):
    return (server,)


if __name__ == "__main__":
    sys.exit(run(connect))
