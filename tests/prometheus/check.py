"""Prometheus itself reads what a server exposes and what deploy/ holds: check.py TWOSTROKE PROMETHEUS PROMTOOL.

Standard library only. Ends with `N passed, M failed`.
"""

import json
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
TWOSTROKE, PROMETHEUS, PROMTOOL = sys.argv[1:4]
# Queries that may have nothing to show: this one has a line only while the cache grows.
MAY_BE_EMPTY = ["< Inf"]
# Of what promtool complains about: names that are vLLM's, and the old name of the backlog, which goes with the next release.
NOT_OURS_TO_CHOOSE = re.compile(r"^vllm:\S+ |^twostroke_prefill_backlog_milliseconds use base unit")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def get(url):
    with urllib.request.urlopen(url, timeout=120) as answer:
        return answer.read().decode()


def run(*command, **more):
    ran = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600, **more)
    return ran.returncode, ran.stdout + ran.stderr


def until(what, ready, seconds=300):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if ready():
                return
        except OSError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"{what} within {seconds} s")


def test_config_and_rules_are_valid():
    code, said = run(PROMTOOL, "check", "config", DEPLOY / "prometheus/prometheus.yml")
    assert code == 0, said


def test_rules_fire_when_they_should():
    code, said = run(PROMTOOL, "test", "rules", DEPLOY / "prometheus/rules_test.yml")
    assert code == 0, said
    rules = (DEPLOY / "prometheus/rules.yml").read_text()
    tested = (DEPLOY / "prometheus/rules_test.yml").read_text()
    for alert in re.findall(r"alert: (\w+)", rules):
        assert f"alertname: {alert}" in tested, f"{alert} has no test"


def test_exposition_is_clean():
    code, said = run(PROMTOOL, "check", "metrics", input=get(f"{URL}/metrics"))
    assert code in (0, 3), said  # 3: it was read, and there are complaints
    ours = [line for line in said.splitlines() if line.strip() and not NOT_OURS_TO_CHOOSE.match(line)]
    assert not ours, "\n".join(ours)


def test_every_query_of_the_board_has_an_answer():
    board = json.loads((DEPLOY / "grafana/dashboards/twostroke.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    assert queries
    for query in queries:
        plain = query.replace("$__rate_interval", "20s").replace("$instance", ".*")
        assert "$" not in plain, query
        if any(word in query for word in MAY_BE_EMPTY):
            result(plain)
        else:
            # On a busy machine some scrapes take longer than the second that they have.
            until(f"an answer to {query}", lambda: result(plain))


def test_buckets_lead_to_requests():
    """Prometheus asks for OpenMetrics: what it reads there has exemplars, and each names a request of the server."""
    now = time.time()
    span = {"start": now - 600, "end": now + 60}
    for histogram in ["twostroke_time_to_first_token_seconds", "twostroke_inter_token_latency_seconds"]:
        query = urllib.parse.urlencode({"query": f"{histogram}_bucket", **span})

        def exemplars():
            answer = json.loads(get(f"{PROMETHEUS_URL}/api/v1/query_exemplars?{query}"))
            return [exemplar for series in answer["data"] for exemplar in series["exemplars"]]

        until(f"exemplars of {histogram}", exemplars)
        for exemplar in exemplars():
            name = exemplar["labels"]["request_id"]
            timeline = json.loads(get(f"{URL}/v1/requests/{name}/timeline"))
            assert timeline["id"] == name, timeline


def test_rules_are_evaluated_on_a_real_server():
    def rules():
        groups = json.loads(get(f"{PROMETHEUS_URL}/api/v1/rules"))["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    until("every rule to have its turn", lambda: all(rule["health"] != "unknown" for rule in rules()))
    assert rules() and all(rule["health"] == "ok" for rule in rules()), rules()
    for name in ["instance:twostroke_prefill_backlog:targets", "instance:twostroke_kv_in_a_minute:ratio"]:
        until(f"one {name}", lambda: len(result(name)) == 1)


def result(query):
    url = f"{PROMETHEUS_URL}/api/v1/query?" + urllib.parse.urlencode({"query": query})
    answer = json.loads(get(url))
    assert answer["status"] == "success", answer
    return answer["data"]["result"]


def scraped():
    found = result("sum_over_time(up[5m])")  # of scrapes that came back
    return bool(found) and float(found[0]["value"][1]) >= 3


directory = tempfile.TemporaryDirectory()
port, prometheus_port = free_port(), free_port()
URL, PROMETHEUS_URL = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{prometheus_port}"
config = (DEPLOY / "prometheus/prometheus.yml").read_text()
config = config.replace("host.docker.internal:8000", f"127.0.0.1:{port}").replace("interval: 5s", "interval: 1s")
(pathlib.Path(directory.name) / "prometheus.yml").write_text(config)
(pathlib.Path(directory.name) / "rules.yml").write_text((DEPLOY / "prometheus/rules.yml").read_text())
quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
children = [
    subprocess.Popen([TWOSTROKE, "serve", "--port", str(port)], **quiet),
    subprocess.Popen(
        [
            PROMETHEUS,
            f"--config.file={directory.name}/prometheus.yml",
            f"--storage.tsdb.path={directory.name}/data",
            f"--web.listen-address=127.0.0.1:{prometheus_port}",
            "--enable-feature=exemplar-storage",
        ],
        **quiet,
    ),
]
passed = failed = 0
try:
    until("the server listens", lambda: get(f"{URL}/health"))
    # Something to see in every panel: a load beside the scrapes, and between two of them.
    load = [TWOSTROKE, "bench-serve", "--port", str(port), "--num-prompts", "120", "--random-input-len", "300"]
    code, said = run(*load, "--random-output-len", "40", "--request-rate", "20", "--ignore-eos")
    assert code == 0, said
    until("Prometheus has scraped three times", scraped)
    for name, test in [(name, test) for name, test in list(globals().items()) if name.startswith("test_")]:
        try:
            test()
            passed += 1
        except Exception:
            failed += 1
            print(f"{name} FAILED\n{traceback.format_exc()}")
finally:
    for child in children:
        child.send_signal(signal.SIGTERM)
    for child in children:
        child.wait(timeout=300)
    directory.cleanup()
print(f"{passed} passed, {failed} failed")
sys.exit(1 if failed else 0)
