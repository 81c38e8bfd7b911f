"""Manifests of deploy/ against Kubernetes' own schemas and this program's flags: check.py TWOSTROKE.

Kinds that other projects define (KEDA, llm-d's pool, Dynamo) have no schema here: of them, what they run is checked. Ends
with `N passed, M failed`.
"""

import pathlib
import re
import subprocess
import sys

import kubernetes_validate
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
TWOSTROKE = sys.argv[1]
VERSION = kubernetes_validate.latest_version()
OWN_KINDS = {"Deployment", "Service", "HorizontalPodAutoscaler"}
OTHERS = {"ScaledObject", "InferencePool", "DynamoGraphDeployment"}


def documents():
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            yield path.name, document


def containers(value):
    """All containers in a document, wherever they are."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("containers", "initContainers"):
                yield from inner
            else:
                yield from containers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from containers(inner)


def commands():
    """What is run of this program, and where that is written."""
    for name, document in documents():
        for container in containers(document):
            words = container.get("args", [])
            if words[:1] == ["serve"]:
                yield name, words
    compose = yaml.safe_load((DEPLOY / "two-workers.yaml").read_text())
    for service in compose["services"].values():
        yield "two-workers.yaml", service["command"]


def flags_of_serve():
    said = subprocess.run([TWOSTROKE, "serve", "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"--[a-z][a-z-]*", said))


def schemas():
    """Every document of Kubernetes' own is one, to the letter."""
    kinds = set()
    for name, document in documents():
        kind = document["kind"]
        kinds.add(kind)
        if kind in OWN_KINDS:
            kubernetes_validate.validate(document, VERSION, strict=True)
        else:
            assert kind in OTHERS, f"{name}: nothing is known of a {kind}"
    assert OWN_KINDS <= kinds, kinds


def refused():
    """The check can fail."""
    name, document = next((name, document) for name, document in documents() if document["kind"] == "Deployment")
    document["spec"]["template"]["spec"]["containers"][0]["imagePulPolicy"] = "Always"
    try:
        kubernetes_validate.validate(document, VERSION, strict=True)
    except kubernetes_validate.ValidationError:
        return
    raise AssertionError(f"a misspelt field of {name} is taken")


def flags():
    """Workers are started with flags that there are, and roles that fit their labels."""
    known = flags_of_serve()
    seen = 0
    for name, words in commands():
        for word in words[1:]:
            if word.startswith("--"):
                assert word.split("=")[0] in known, f"{name}: there is no flag {word}"
                seen += 1
    assert seen > 30, seen


def together():
    """A draining worker has the time for it, and names lead to ports that are listened at."""
    services, selectors = {}, []
    for name, document in documents():
        if document["kind"] == "Service":
            services[document["metadata"]["name"]] = document["spec"]
        if document["kind"] != "Deployment":
            continue
        template = document["spec"]["template"]
        assert document["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items(), name
        selectors.append(template)
        for container in template["spec"]["containers"]:
            given = dict(word.removeprefix("--").split("=", 1) for word in container["args"] if "=" in word)
            grace = template["spec"]["terminationGracePeriodSeconds"]
            assert int(given["drain-timeout"]) < grace, f"{name}: killed before it has drained"
            mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
            assert str(pathlib.Path(given["cluster-key"]).parent) in mounts, name
            for worker in filter(None, given.get("prefill-workers", "").split(",")):
                host, port = worker.split(":")
                assert any(entry["port"] == int(port) for entry in services_named(host)["ports"]), worker
    for name, service in services.items():
        ports = {
            port["name"]
            for template in selectors
            if service["selector"].items() <= template["metadata"]["labels"].items()
            for container in template["spec"]["containers"]
            for port in container["ports"]
        }
        assert {port["targetPort"] for port in service["ports"]} <= ports, f"no port is listened at behind {name}"


def services_named(name):
    return next(d["spec"] for _, d in documents() if d["kind"] == "Service" and d["metadata"]["name"] == name)


def main():
    failed = 0
    checks = [schemas, refused, flags, together]
    for check in checks:
        try:
            check()
            print(f"ok      {check.__doc__.strip()}")
        except Exception as error:
            failed += 1
            print(f"FAILED  {check.__name__}: {type(error).__name__}: {error}")
    print(f"{len(checks) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
