"""What three clients count and what their figures mean: check.py TWOSTROKE TOKENIZER.

bench-serve, guidellm and aiperf load the same stand-in for a server (standin.py), which plays scripted answers and logs
when it wrote each chunk. No figure is held against a time that this machine should keep:

counts     are equal, whatever the machine does.
sums       a client's mean, median and percentiles follow from its own figures of each request.
moments    a figure means "from the question to that chunk". It cannot be less than what the log says, so a definition
           that stops too early is seen in any answer. A definition that stops too late, or starts too early, is at least
           a pause of the script longer; so half of the answers have to be nearer to the log than that. A client that was
           held up for so long in more of them gets another run, with longer pauses.

Where the three differ, each is held to its own definition. Events without text (a token whose characters are not yet
complete) end an ITL of bench-serve and of no other tool. bench-serve's E2EL, and so its TPOT, and guidellm's latency end
with [DONE], aiperf's latency and both others' ITL with the last text. guidellm's mean ITL is of tokens, that of the others
of requests. guidellm's percentiles are values that occurred, the others' are interpolated; the median of an odd number of
requests is the same.

Standard library only. Ends with `N passed, M failed`.
"""

import collections
import math
import pathlib
import statistics
import sys
import tempfile

import clients
from standin import NAME, StandIn

TWOSTROKE, TOKENIZER = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
REQUESTS, BROKEN = 8, 2
# Seconds. A longer one is for a machine on which the one before was too short.
PAUSES = (0.05, 0.2, 0.8)
# Seconds beyond an answer's that guidellm is told to look for news at most, see clients.py. It waits so long at its end.
PATIENCES = (1, 4, 15, 60)
# Clocks are read as floating-point numbers of milliseconds.
ROUNDING = 0.002
MONOTONIC, WALL = 0, 1


class Report:
    """What a client says, in words that all three share. Times in milliseconds."""

    def __init__(self, clock):
        self.clock = clock
        self.counts = {}
        self.tokens = {}  # of each answer: of the prompt, of the answer
        # By what they mean: an answer, a moment of its script, milliseconds from the question to it as the client says.
        self.figures = collections.defaultdict(list)
        self.equal = []  # (what, reported, what it should be)

    def figure(self, name, moment, answer, ms):
        kind = "last" if moment == answer.texts[-1] else "more" if moment.startswith("more") else moment
        self.figures[f"{name}: from the question to {kind!r}"].append((answer, moment, ms))

    def sums(self, name, samples, **reported):
        """Reported figures of a whole run, of its samples."""
        for what, value in reported.items():
            p = 50 if what == "median" else int(what[1:]) if what != "mean" else None
            expected = statistics.fmean(samples) if p is None else percentile(samples, p)
            self.equal.append((f"{what} {name}", value, expected))


def percentile(samples, p):
    """By linear interpolation."""
    samples = sorted(samples)
    place = (len(samples) - 1) * p / 100
    below = samples[int(place)]
    return below + (samples[min(int(place) + 1, len(samples) - 1)] - below) * (place - int(place))


def of_bench_serve(said, answers):
    report = Report(MONOTONIC)
    report.counts = {"answered": said["completed"], "failed": said["failed"]}
    report.counts |= {"prompt tokens": said["total_input_tokens"], "answer tokens": said["total_output_tokens"]}
    by_id = {answer.id: answer for answer in answers}
    samples = collections.defaultdict(list)
    fields = ("request_ids", "errors", "input_lens", "output_lens", "ttfts", "itls", "latencies")
    for id, error, prompt, output, ttft, itls, latency in zip(*(said[field] for field in fields)):
        if error:
            continue
        answer = by_id[id]
        report.tokens[id] = prompt, output
        ttft, itls, latency = ttft * 1e3, [gap * 1e3 for gap in itls], latency * 1e3
        report.figure("TTFT", "first", answer, ttft)
        report.figure("E2EL", "done", answer, latency)
        # An event without text is one with a token whose characters are not complete.
        report.equal.append((f"number of ITLs of {id}", len(itls), len(answer.events) - 1))
        for number, event in enumerate(answer.events[1:], 1):
            report.figure("TTFT + ITLs", event, answer, ttft + sum(itls[:number]))
        samples["ttft"].append(ttft)
        samples["tpot"].append((latency - ttft) / (output - 1))
        samples["itl"] += itls
        samples["e2el"].append(latency)
    for name, values in samples.items():
        reported = {what: said[f"{what}_{name}_ms"] for what in ("mean", "median", "p25", "p99")}
        report.sums(name.upper(), values, **reported)
    return report


def of_guidellm(said, answers):
    report = Report(WALL)
    totals, metrics, requests = said["metrics"]["request_totals"], said["metrics"], said["requests"]
    of = lambda name, what: metrics[name]["successful"][what]
    report.counts = {"answered": totals["successful"], "failed": totals["errored"] + totals["incomplete"]}
    report.counts |= {"prompt tokens": of("prompt_token_count", "total_sum")}
    report.counts |= {"answer tokens": of("output_token_count", "total_sum")}
    by_id = {answer.id: answer for answer in answers}
    ttfts, itls, gaps = [], [], 0
    for request in requests["successful"]:
        answer, after = by_id[request["response_id"]], request["output_tokens"] - 1
        report.tokens[answer.id] = request["prompt_tokens"], request["output_tokens"]
        ttft, itl = request["time_to_first_token_ms"], request["inter_token_latency_ms"]
        report.figure("TTFT", "first", answer, ttft)
        report.figure("TTFT + (tokens - 1) ITL", answer.texts[-1], answer, ttft + after * itl)
        report.figure("tokens TPOT", answer.texts[-1], answer, request["time_per_output_token_ms"] * (after + 1))
        report.figure("latency", "done", answer, request["request_latency"] * 1e3)
        events = request["info"]["timings"]["token_iterations"]
        report.equal.append((f"number of events of {answer.id}", events, len(answer.texts)))
        ttfts.append(ttft)
        itls.append(after * itl)
        gaps += after
    report.sums("TTFT", ttfts, mean=of("time_to_first_token_ms", "mean"), median=of("time_to_first_token_ms", "median"))
    said, ttfts = metrics["time_to_first_token_ms"]["successful"]["percentiles"], sorted(ttfts)
    for p in (25, 99):
        report.equal.append((f"p{p} TTFT", said[f"p{p}"], ttfts[math.ceil(len(ttfts) * p / 100) - 1]))
    report.equal.append(("mean ITL", of("inter_token_latency_ms", "mean"), sum(itls) / gaps))
    return report


def of_aiperf(said, answers):
    report = Report(MONOTONIC)
    summary, records = said["summary"], said["records"]
    report.counts = {"answered": summary["request_count"]["avg"], "failed": summary["error_request_count"]["avg"]}
    report.counts |= {"prompt tokens": summary["input_sequence_length"]["sum"]}
    report.counts |= {"answer tokens": summary["output_sequence_length"]["sum"]}
    by_request = {answer.request_id: answer for answer in answers}
    samples = collections.defaultdict(list)
    for record in records:
        if record.get("error"):
            continue
        answer = by_request[record["metadata"]["x_request_id"]]
        of = {name: metric["value"] for name, metric in record["metrics"].items()}
        report.tokens[answer.id] = of["input_sequence_length"], of["output_sequence_length"]
        ttft, itl = of["time_to_first_token"], of["inter_token_latency"]
        report.figure("TTFT", "first", answer, ttft)
        report.figure("latency", answer.texts[-1], answer, of["request_latency"])
        report.figure("TTFT + (tokens - 1) ITL", answer.texts[-1], answer, ttft + (of["output_sequence_length"] - 1) * itl)
        gaps = of["inter_chunk_latency"]
        report.equal.append((f"number of chunk gaps of {answer.id}", len(gaps), len(answer.texts) - 1))
        for number, text in enumerate(answer.texts[1:], 1):
            report.figure("TTFT + chunk gaps", text, answer, ttft + sum(gaps[:number]))
        for name in ("time_to_first_token", "inter_token_latency", "request_latency"):
            samples[name].append(of[name])
    for name, values in samples.items():
        said = {"mean": summary[name]["avg"], "median": summary[name]["p50"]}
        report.sums(name, values, **said, p25=summary[name]["p25"], p99=summary[name]["p99"])
    return report


REPORTS = {"bench-serve": of_bench_serve, "guidellm": of_guidellm, "aiperf": of_aiperf}


def lost_the_last(name, said, answers):
    """Whether guidellm left the last answer out of its report without a word, as clients.py explains."""
    if name != "guidellm":
        return False
    told = said["requests"]
    ids = {request["response_id"] for requests in (told["successful"], told["errored"]) for request in requests}
    return said["metrics"]["request_totals"]["total"] == REQUESTS - 1 and answers[-1].id not in ids


def judge(report, answers, pause):
    """Checks as (what, problem or None); and which problems are only a machine's, perhaps: figures that are too long."""
    checks, long = {}, []
    whole = [answer for answer in answers if "done" in answer.moments and answer.id in report.tokens]
    wanted = {"answered": REQUESTS - 1, "failed": 1}
    wanted |= {"prompt tokens": sum(answer.prompt_tokens for answer in whole)}
    wanted |= {"answer tokens": sum(answer.output_tokens for answer in whole)}
    for what, count in wanted.items():
        # guidellm adds up in floating point.
        checks[what] = None if abs(report.counts[what] - count) < 1e-6 else f"{report.counts[what]}, not {count}"
    tokens = {answer.id: (answer.prompt_tokens, answer.output_tokens) for answer in whole}
    same = report.tokens == tokens and len(tokens) == REQUESTS - 1
    checks["tokens of each answer"] = None if same else f"{report.tokens}, not {tokens}"
    for what, reported, expected in report.equal:
        close = abs(reported - expected) <= 1e-6 * abs(expected)
        checks[what] = None if close else f"{reported}, not {expected}"
    # Of the clock on the wall, only the time between its steps is time.
    apart = [wall - monotonic for answer in answers for monotonic, wall in (answer.asked, *answer.moments.values())]
    rounding = ROUNDING + ((max(apart) - min(apart)) * 1e3 if report.clock == WALL else 0)
    for what, found in report.figures.items():
        beyond = [(ms - answer.after(moment, report.clock), ms, answer) for answer, moment, ms in found]
        beyond.sort(key=lambda found: found[0])
        (least, ms, answer), (middle, *_) = beyond[0], beyond[(len(beyond) - 1) // 2]
        checks[what] = None
        if least < -rounding:
            checks[what] = f"{ms:.3f} ms in {answer.id}, but it was written {-least:.3f} ms after that"
        elif middle >= 0.9e3 * pause:  # a clock that is being set may make a pause a little shorter
            checks[what] = f"{middle:.3f} ms more in half of the answers, and more than a pause of the script"
            long.append(what)
    return checks, long


def once(name, pause, patience):
    standin = StandIn(pause, BROKEN)
    try:
        with tempfile.TemporaryDirectory() as directory:
            load = clients.Load(
                TWOSTROKE, TOKENIZER, standin.port, NAME, chat=True, requests=REQUESTS, prompt=50, answer=16, seed=1,
                directory=pathlib.Path(directory), patience=patience,
            )
            said = clients.ALL[name](load)
    finally:
        standin.close()
    return said, standin.answers


def whole(name, pause):
    """One load whose report has every request. That is what guidellm means to say, and mostly does; our own client and
    aiperf have one try."""
    for patience in PATIENCES:
        said, answers = once(name, pause, patience + 10 * pause)
        if not lost_the_last(name, said, answers):
            break
        print(f"{name} lost sight of its last request; once more", flush=True)
    return said, answers


def main():
    passed = failed = 0
    for name in clients.ALL:
        for pause in PAUSES:
            said, answers = whole(name, pause)
            checks, long = judge(REPORTS[name](said, answers), answers, pause)
            problems = {what: problem for what, problem in checks.items() if problem}
            if set(problems) - set(long) or not long or pause == PAUSES[-1]:
                break
            print(f"{name} was held up for {pause} s in half of the answers; once more, with longer pauses", flush=True)
        for what, problem in problems.items():
            print(f"{name}: {what}: {problem}", flush=True)
        print(f"{name}: {len(checks) - len(problems)} of {len(checks)} figures and counts are as defined", flush=True)
        passed, failed = passed + len(checks) - len(problems), failed + len(problems)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


sys.exit(main())
