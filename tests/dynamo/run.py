"""Workers of ours under NVIDIA Dynamo: two that read prompts, two that answer, its router and its frontend.

    cargo xtask dynamo
    python tests/dynamo/run.py ETCD [--requests 200]

Every answer must be that of `LLM` by itself, also while workers of both kinds are killed, restarted and drained; none
may be lost.
"""

import argparse
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from cluster import CACHE, MODEL, ROOT, SMALL, Cluster, answer, free_port, until

from twostroke import LLM, SamplingParams

WORDS = "the fox and the owl went over the old bridge to the market where a lamp stood by the red door".split()
AT_A_TIME = 8
TOKENS = 24
# Of answers that are long enough to be interrupted.
LONG = 160
# A prompt of fewer tokens is read where it is answered.
LEAST_TOKENS = 256


class Question:
    """A request by its number: chat or completion, stream or whole, greedy or by a seed; some prompts are short."""

    def __init__(self, number, tokens):
        rng = random.Random(number)
        self.number = number
        self.is_short = number % 4 == 3
        self.text = f"{number} " + " ".join(rng.choice(WORDS) for _ in range(20 if self.is_short else 420))
        self.is_chat, self.stream = number % 2 == 1, number % 3 == 1
        self.tokens = tokens
        self.drawn = {"temperature": 0.8, "seed": number} if number % 5 < 2 else {"temperature": 0}

    @property
    def path(self):
        return "/v1/chat/completions" if self.is_chat else "/v1/completions"

    @property
    def body(self):
        said = {"messages": [{"role": "user", "content": self.text}]} if self.is_chat else {"prompt": self.text}
        end = {"max_tokens": self.tokens, "ignore_eos": self.tokens == LONG}
        return {"stream": self.stream, **end, **self.drawn, **said}

    def alone(self, llm):
        """What it is to be answered, and tokens of its prompt."""
        params = SamplingParams(max_tokens=self.tokens, ignore_eos=self.tokens == LONG, **self.drawn)
        said = [{"role": "user", "content": self.text}]
        (output,) = llm.chat(said, params) if self.is_chat else llm.generate(self.text, params)
        answer = output.outputs[0]
        return answer.text, answer.finish_reason, len(output.prompt_token_ids)


class Suite:
    def __init__(self, cluster, llm, count):
        self.cluster, self.llm, self.count = cluster, llm, count
        self.passed = self.failed = self.asked = 0
        self.next_number = 0
        self.prefill, self.decode = [], []

    def ok(self, what):
        self.passed += 1
        print(f"ok      {what}", flush=True)

    def test(self, function):
        try:
            self.ok(function(self))
        except Exception as error:  # the rest is worth seeing too
            self.failed += 1
            print(f"FAILED  {function.__name__}: {error!r}\n{self.cluster.frontend.said()}", flush=True)

    def ask(self, count, tokens=TOKENS, meanwhile=lambda: None):
        """New questions, eight at a time; lost answers and wrong ones are errors. Some are done before `meanwhile`."""
        questions = [Question(self.next_number + at, tokens) for at in range(count)]
        self.next_number += count
        with ThreadPoolExecutor(2) as pool:
            alone = list(pool.map(lambda question: question.alone(self.llm), questions))
        lost, wrong, done = [], [], threading.Semaphore(0)

        def one(at):
            question, (text, reason, _) = questions[at], alone[at]
            try:
                got = self.cluster.answer(question.path, question.body)
            except OSError as error:
                lost.append((question.number, str(error)))
            else:
                if got[:2] != (text, reason):
                    wrong.append((question.number, question.drawn, got[:2], (text, reason)))
            done.release()

        with ThreadPoolExecutor(AT_A_TIME) as pool:
            asked = [pool.submit(one, at) for at in range(count)]
            for _ in range(min(count, 2 * AT_A_TIME)):
                done.acquire()
            meanwhile()
            for each in asked:
                each.result()
        self.asked += count
        assert not lost, f"{len(lost)} of {count} lost: {lost[:3]}"
        assert not wrong, f"{len(wrong)} of {count} wrong: {wrong[:3]}"
        # An answer that its first token ends is over where the prompt was read.
        goes_on = [text != "" or reason != "stop" for text, reason, _ in alone]
        return sum(tokens - 1 >= LEAST_TOKENS and more for (_, _, tokens), more in zip(alone, goes_on))

    def handed_over(self, result="whole"):
        return sum(worker.metric("twostroke_remote_prefills_total", way="taken", result=result) for worker in self.decode)

    def mismatches(self):
        return sum(worker.metric("twostroke_remote_prefill_mismatches_total") for worker in self.decode)


def answers_are_those_of_the_engine_alone(suite):
    before = suite.handed_over()
    long = suite.ask(suite.count)
    handed = suite.handed_over() - before
    assert handed == long, f"{handed:.0f} of {long} long prompts were handed over"
    assert suite.mismatches() == 0
    for worker in [*suite.prefill, *suite.decode]:
        assert worker.metric("twostroke_prompt_tokens_total") > 0, f"{worker.mode} had nothing to do"
    return f"{suite.count} answers are those of the engine alone; {handed:.0f} prompts were handed over"


def prompts_go_where_their_beginning_is(suite):
    """Of turns that repeat a conversation only what is new is computed, whichever of two had it."""
    def computed():
        tokens, cached = (sum(worker.metric(f"twostroke_prompt_tokens_{name}") for worker in suite.prefill)
                          for name in ("total", "cached_total"))
        return tokens - cached

    turns, read = 4, 0
    for turn in range(turns):
        for conversation in range(8):
            rng = random.Random(-1 - conversation)
            text = " ".join(rng.choice(WORDS) for _ in range(300 + 100 * turn))
            _, _, usage = suite.cluster.answer("/v1/completions", {"prompt": text, "max_tokens": 4, "temperature": 0})
            read += usage["prompt_tokens"] if turn else 0
        if turn == 0:
            before = computed()
            # The router hears of blocks a moment after they are there.
            time.sleep(1)
    share = 1 - (computed() - before) / read
    # A turn repeats between three quarters and five sixths of its prompt; by turns between two workers half of that
    # would be found, and a little more from the third turn on.
    assert share > 0.7, f"{share:.2f} of the tokens were in the cache"
    return f"by KV events {share:.0%} of later turns' tokens were where they were sent"


def killed(suite, of, mode):
    """SIGKILL of one under load, and another in its place."""
    before = suite.cluster.metric("dynamo_frontend_model_migration_total") or 0

    def kill():
        of[0].kill()
        del of[0]

    suite.ask(suite.count, LONG, kill)
    of += suite.cluster.workers(mode)
    assert suite.mismatches() == 0
    return (suite.cluster.metric("dynamo_frontend_model_migration_total") or 0) - before


def a_prefill_worker_is_killed(suite):
    killed(suite, suite.prefill, "prefill")
    return f"one that reads was killed under load: {suite.count} answers, none lost, none differs"


def a_decode_worker_is_killed(suite):
    moved = killed(suite, suite.decode, "decode")
    assert moved > 0, "it had nothing to do when it was killed"
    return f"one that answers was killed under load: {suite.count} answers, {moved:.0f} moved, none lost, none differs"


def workers_are_drained(suite):
    codes = []

    def drain():
        for of in (suite.prefill, suite.decode):
            codes.append(of.pop(0).drain())

    suite.ask(suite.count, LONG, drain)
    assert codes == [0, 0], codes
    assert suite.mismatches() == 0
    return f"one of each was drained under load: {suite.count} answers, none lost, none differs"


def who_leaves_is_forgotten(suite):
    """A client that closes its connection leaves nothing behind."""
    body = {"prompt": "Once upon a time", "max_tokens": 1900, "temperature": 0, "stream": True,
            "ignore_eos": True}
    with suite.cluster.post("/v1/completions", body) as come:
        come.readline()
        until("it runs", lambda: sum(worker.metric("twostroke_kv_blocks_used") for worker in suite.decode) > 0)
    until("it has ended", lambda: all(worker.metric("twostroke_kv_blocks_used") == 0 for worker in suite.decode))
    return "a client that leaves leaves nothing behind"


def what_is_not_done_is_refused_by_its_name(suite):
    for field, name in (({"n": 2, "temperature": 1.0}, "n:"), ({"best_of": 3}, "best_of"),
                        ({"cache_salt": "x"}, "cache_salt"), ({"guided_regex": "("}, "regex")):
        try:
            suite.cluster.answer("/v1/completions", {"prompt": "Once", "max_tokens": 2, **field})
        except OSError as error:
            assert error.errno == 400 and name in str(error), error
        else:
            raise AssertionError(f"{field} was accepted")
    return "what is not done is refused with 400 and its name"


def without_one_that_reads_nobody_is_asked(suite):
    """Dynamo's rule, and not ours; workers that come back are found."""
    suite.prefill.pop(0).kill()
    # Its lease ends.
    until("it is missed", lambda: refusal(suite, {"prompt": "Once", "max_tokens": 2}) == 503)
    suite.prefill += suite.cluster.workers("prefill")
    suite.ask(AT_A_TIME * 2)
    return "without a worker that reads Dynamo answers 503, and goes on when there is one"


def refusal(suite, body):
    """The status of a request that is refused; `None`: it was answered."""
    try:
        suite.cluster.answer("/v1/completions", body)
    except OSError as error:
        return error.errno
    return None


def workers_of_both_phases(suite):
    """Two of them in a cluster of their own, which Dynamo probes when they are idle; one is killed."""
    cluster = Cluster(suite.cluster.etcd, DYN_HEALTH_CHECK_ENABLED="true", DYN_CANARY_WAIT_TIME="1")
    both = Suite(cluster, suite.llm, suite.count)
    both.next_number = suite.next_number
    try:
        both.decode = both.cluster.workers("agg", "agg")
        probed = [worker.metric("twostroke_prompt_tokens_total") for worker in both.decode]
        until("both are probed", lambda: all(
            worker.metric("twostroke_prompt_tokens_total") > before for worker, before in zip(both.decode, probed)))
        both.ask(both.count, LONG, both.decode[0].kill)
    finally:
        both.cluster.close()
    suite.asked += both.asked
    shutil.rmtree(both.cluster.directory)
    return f"two of both phases, one of them killed: {both.count} answers, none lost, none differs"


def the_guides_commands_start_a_cluster(suite):
    page = (ROOT / "docs/guide/dynamo.md").read_text()
    (commands,) = re.findall(r"^```sh dynamo\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    port, peers = free_port(), f"http://127.0.0.1:{free_port()}"
    commands = commands.replace("2379", str(free_port())).replace("8000", str(port))
    directory = suite.cluster.directory / "guide"
    directory.mkdir()
    (directory / "models").symlink_to(ROOT / "models")
    programs = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{pathlib.Path(suite.cluster.etcd).resolve().parent}"
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "ETCD_LISTEN_PEER_URLS": peers,
                   "ETCD_INITIAL_ADVERTISE_PEER_URLS": peers, "ETCD_INITIAL_CLUSTER": f"default={peers}"}
    with (directory / "log").open("w") as log:
        started = subprocess.Popen(["bash", "-euo", "pipefail", "-c", commands], cwd=directory, env=environment,
                                   stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
    question = Question(0, TOKENS)
    try:
        def answered():
            try:
                return answer(f"http://127.0.0.1:{port}", question.path, question.body)
            except OSError:
                return None
        text, _, _ = until("the guide's cluster answers", answered)
        with LLM(MODEL) as plain:
            assert text == question.alone(plain)[0], text
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()
    return "the guide's commands start a cluster, and it answers"


TESTS = (
    answers_are_those_of_the_engine_alone,
    prompts_go_where_their_beginning_is,
    what_is_not_done_is_refused_by_its_name,
    who_leaves_is_forgotten,
    a_prefill_worker_is_killed,
    a_decode_worker_is_killed,
    workers_are_drained,
    without_one_that_reads_nobody_is_asked,
    workers_of_both_phases,
    the_guides_commands_start_a_cluster,
)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("etcd")
    parser.add_argument("--requests", type=int, default=200, help="of each load; there are four")
    args = parser.parse_args()
    # Without a pause between SIGTERM and the end of the engine, answers are there that it has to wait for.
    cluster = Cluster(args.etcd, DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS="0")
    with LLM(MODEL, kv_cache_memory_bytes=CACHE, **SMALL) as llm:
        suite = Suite(cluster, llm, args.requests)
        try:
            workers = cluster.workers("prefill", "prefill", "decode", "decode")
            suite.prefill, suite.decode = workers[:2], workers[2:]
            for test in TESTS:
                suite.test(test)
        finally:
            cluster.close()
    if suite.failed:
        print(f"logs: {cluster.directory}")
    else:
        shutil.rmtree(cluster.directory)
    print(f"{suite.asked} requests\n{suite.passed} passed, {suite.failed} failed")
    return min(suite.failed, 1)


if __name__ == "__main__":
    sys.exit(main())
