"""What `cargo xtask dist` has made, installed as people would where nothing else is, and asked a question.

    check.py DIRECTORY ROOTS      files of a release; where Debian's small roots are kept from one run to the next

`said` behind a check is how long it took from nothing to the first answer, without the download.
"""

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

from harness import ROOT, Files, Skipped, check, main, needs, run

MADE, ROOTS = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
VERSION = next(MADE.glob("twostroke.rb")).read_text().split("/twostroke-")[1].split(".tar.gz")[0]
QUESTION = ["run", "What is 17 + 25?", "--temperature", "0", "--quiet"]
SUITE = "bookworm"
# What a package manager and the tools for users keep of their own.
USERS = ("etc/passwd", "etc/group", "etc/shadow", "etc/gshadow", "etc/sub", "etc/.pwd")
KEPT = ("var/lib/dpkg/", "var/log/", "var/cache/ldconfig", *USERS)


def made(pattern):
    files = sorted(MADE.glob(pattern))
    if not files:
        raise Skipped(f"there is no {pattern}")
    return files[0]


def answers(output, begin):
    assert output.strip().splitlines()[-1] == "42", output
    return f"the first answer after {time.monotonic() - begin:.1f} s"


@contextmanager
def scratch():
    with tempfile.TemporaryDirectory(prefix="twostroke-dist-") as directory:
        yield Path(directory)


@contextmanager
def debian(variant, *packages, architecture="amd64"):
    """A root with little in it, unpacked afresh."""
    needs("mmdebstrap", "unshare", "chroot")
    packed = ROOTS / f"{SUITE}-{variant}-{architecture}.tar"
    if not packed.exists():
        ROOTS.mkdir(parents=True, exist_ok=True)
        part = packed.with_suffix(".part.tar")
        include = [f"--include={','.join(packages)}"] if packages else []
        make = ["mmdebstrap", "--quiet", f"--variant={variant}", f"--architectures={architecture}"]
        run(*make, *include, SUITE, part)
        part.rename(packed)
    with scratch() as directory:
        run("tar", "-C", directory, "--exclude=./dev/*", "-xf", packed)
        for name in ["proc", "tmp", "dev"]:
            (directory / name).mkdir(exist_ok=True)
        yield directory


def inside(root, *command, expect=0):
    """Runs in a root with processes of its own."""
    script = 'mount -t proc proc "$0/proc"; mount --rbind /dev "$0/dev"; exec chroot "$0" "$@"'
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/", "LC_ALL": "C"}
    environment["DEBIAN_FRONTEND"] = "noninteractive"
    isolated = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-euc", script, root]
    return run(*isolated, *command, expect=expect, env=environment)


def everything(root):
    found = set()
    for directory, folders, files in os.walk(root):
        below = os.path.relpath(directory, root)
        found |= {os.path.normpath(os.path.join(below, name)) for name in [*folders, *files]}
    return {name for name in found if not name.startswith(KEPT) and not name.startswith(("proc/", "dev/"))}


@check
def the_sums_are_those_of_the_files():
    run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=MADE)
    listed = {line.split("  ")[1] for line in (MADE / "SHA256SUMS").read_text().splitlines()}
    assert listed == {file.name for file in MADE.iterdir()} - {"SHA256SUMS"}, listed


@check
def the_tarball_answers_beside_a_c_library_alone():
    with debian("extract", "libc6", "libgcc-s1") as root:
        begin = time.monotonic()
        run("tar", "-C", root, "-xzf", made("twostroke-*-x86_64-linux.tar.gz"))
        program = f"/twostroke-{VERSION}-x86_64-linux/bin/twostroke"
        wanted = re.findall(rb"GLIBC_2\.(\d+)", (root / program[1:]).read_bytes())
        assert max(map(int, wanted)) <= 34, "it wants a later glibc than the guide says"
        return answers(inside(root, program, *QUESTION), begin)


@check
def the_tarball_for_aarch64_answers_under_qemu():
    packed = made("twostroke-*-aarch64-linux.tar.gz")
    needs("qemu-aarch64-static")
    with debian("extract", "libc6", "libgcc-s1", architecture="arm64") as root:
        begin = time.monotonic()
        run("tar", "-C", root, "-xzf", packed)
        program = root / f"twostroke-{VERSION}-aarch64-linux/bin/twostroke"
        emulated = ["qemu-aarch64-static", "-L", root, program]
        environment = {**os.environ, "XDG_CACHE_HOME": str(root / "cache")}
        assert VERSION in run(*emulated, "--version", env=environment)
        # A template would be rendered by another process, which would need the system to know the machine.
        story = ["run", "--raw", "Once upon a time", "-n", "4", "--temperature", "0", "--quiet"]
        said = run(*emulated, *story, env=environment)
        assert said.strip().startswith("there"), said
        return f"the first answer after {time.monotonic() - begin:.1f} s"


@check
def install_sh_brings_it_from_nothing():
    with scratch() as home, Files({file.name: file.read_bytes() for file in MADE.iterdir()}) as files:
        begin = time.monotonic()
        environment = {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
        script = {"input": files.bodies["install.sh"], "env": {**environment, "TWOSTROKE_BASE_URL": files.url}}
        run("sh", "-s", "--", "--prefix", home / "local", **script)
        program = home / "local/bin/twostroke"
        said = answers(run(program, *QUESTION, env=environment), begin)
        assert (home / "local/share/man/man1/twostroke-serve.1").exists()
        run("sh", "-s", "--", "--prefix", home / "local", "--uninstall", **script)
        assert not (home / "local").exists() or not any((home / "local").iterdir())
        return said


@check
def the_package_installs_upgrades_and_is_purged_without_a_trace():
    package = made("twostroke_*_amd64.deb")
    needs("dpkg-deb")
    with debian("minbase") as root, scratch() as other:
        before = everything(root)
        begin = time.monotonic()
        shutil.copy(package, root / "first.deb")
        inside(root, "dpkg", "--install", "/first.deb")
        said = answers(inside(root, "twostroke", *QUESTION), begin)
        assert "twostroke" in inside(root, "getent", "passwd", "twostroke")
        wanted = root / "etc/systemd/system/multi-user.target.wants"
        assert not wanted.exists() or "twostroke.service" not in os.listdir(wanted), "nothing is enabled"
        # The configuration as it is shipped starts a server, as the user that the service has.
        serve = "setpriv --reuid twostroke --regid twostroke --clear-groups timeout -s TERM 15 " \
                "twostroke serve --config /etc/twostroke/serve.yaml --port 0 --json"
        environment = "XDG_CACHE_HOME=/tmp/cache"
        script = f"mkdir -m 1777 -p /tmp/cache; {environment} {serve} 2> /dev/null"
        started = inside(root, "sh", "-c", script, expect=None)
        assert json.loads(started.splitlines()[0])["model"] == "lantern", started
        # A later version, over a configuration that was edited.
        run("dpkg-deb", "--raw-extract", package, other / "tree")
        control = other / "tree/DEBIAN/control"
        control.write_text(control.read_text().replace(f"Version: {VERSION}", "Version: 99.0"))
        run("dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", other / "tree", root / "second.deb")
        with open(root / "etc/twostroke/serve.yaml", "a") as configuration:
            configuration.write("max-num-seqs: 3\n")
        inside(root, "dpkg", "--install", "/second.deb")
        assert "99.0" in inside(root, "dpkg-query", "--show", "twostroke")
        assert "max-num-seqs: 3" in (root / "etc/twostroke/serve.yaml").read_text()
        (root / "var/lib/twostroke/huggingface").mkdir(parents=True)
        inside(root, "dpkg", "--remove", "twostroke")
        assert (root / "etc/twostroke/serve.yaml").exists() and (root / "var/lib/twostroke").exists()
        inside(root, "dpkg", "--purge", "twostroke")
        shutil.rmtree(root / "tmp/cache")
        for name in ["first.deb", "second.deb"]:
            (root / name).unlink()
        left = everything(root) ^ before
        assert not left, left
        return said


@check
def lintian_finds_no_error():
    needs("lintian")
    for package in [made("twostroke_*_amd64.deb"), *MADE.glob("twostroke_*_arm64.deb")]:
        run("lintian", "--allow-root", "--fail-on", "error", package)


@check
def the_image_answers_and_serves():
    image = made("twostroke-*-image.tar")
    needs("buildah")
    with scratch() as store:
        buildah = ["buildah", "--root", store / "root", "--runroot", store / "run", "--storage-driver", "vfs"]
        begin = time.monotonic()
        container = run(*buildah, "from", "--quiet", f"oci-archive:{image}").split()[-1]
        alone = [*buildah, "run", "--isolation", "chroot", container, "--"]
        try:
            said = answers(run(*alone, "/usr/bin/twostroke", *QUESTION), begin)
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            serve = [*alone, "/usr/bin/twostroke", "serve", "--port", str(port), "--json"]
            server = subprocess.Popen([str(word) for word in serve], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            try:
                assert json.loads(server.stdout.readline())["port"] == port
                asked = {"messages": [{"role": "user", "content": "What is 17 + 25?"}], "temperature": 0}
                request = urllib.request.Request(
                    f"http://127.0.0.1:{port}/v1/chat/completions",
                    json.dumps(asked).encode(),
                    {"Content-Type": "application/json"},
                )
                answer = json.load(urllib.request.urlopen(request, timeout=120))
                assert answer["choices"][0]["message"]["content"].strip() == "42", answer
            finally:
                server.terminate()
                server.wait(120)
            described = json.loads(run(*buildah, "inspect", container))["OCIv1"]["config"]
            assert described["User"] == "65532:65532" and "/data" in described["Volumes"], described
        finally:
            run(*buildah, "rm", container)
        return said


@check
def the_wheel_answers_in_an_environment_of_its_own():
    wheel = made("twostroke-*.whl")
    with scratch() as directory:
        begin = time.monotonic()
        run(sys.executable, "-m", "venv", directory / "venv")
        python = directory / "venv/bin/python"
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", wheel)
        environment = {**os.environ, "XDG_CACHE_HOME": str(directory / "cache")}
        said = answers(run(directory / "venv/bin/twostroke", *QUESTION, env=environment), begin)
        program = "from twostroke import LLM; print(len(LLM().generate('Once upon a time')[0].outputs[0].text) > 0)"
        assert run(python, "-c", program, env=environment).strip().endswith("True")
        return said


@check
def the_formula_names_the_source():
    formula, source = (MADE / "twostroke.rb").read_text(), made(f"twostroke-{VERSION}.tar.gz")
    assert hashlib.sha256(source.read_bytes()).hexdigest() in formula and "@" not in formula, formula
    with tarfile.open(source) as packed:
        names = packed.getnames()
    assert f"twostroke-{VERSION}/crates/cli/Cargo.toml" in names and f"twostroke-{VERSION}/Cargo.lock" in names
    needs("ruby")
    run("ruby", "-c", MADE / "twostroke.rb")


@check
def the_manual_is_well_formed():
    needs("mandoc")
    with scratch() as directory:
        run("tar", "-C", directory, "-xzf", made("twostroke-*-x86_64-linux.tar.gz"))
        pages = sorted(directory.glob("*/share/man/man1/*.1"))
        assert len(pages) > 15, pages
        # Below that are matters of style, which the library decides that writes them.
        run("mandoc", "-Tlint", "-W", "error", *pages)
        licences = next(directory.glob("*/share/doc/twostroke/THIRD-PARTY")).read_text()
        assert "rustls" in licences and "Permission is hereby granted" in licences
        return f"{len(pages)} pages"


if __name__ == "__main__":
    main()
