"""What `cargo xtask dist` has made, installed as people would where nothing else is, and asked a question.

    check.py DIRECTORY ROOTS      files of a release; where Debian's small roots are kept from one run to the next

`said` behind a check is how long it took from nothing to the first answer, without the download.
"""

import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
import zipfile
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
    packed = ROOTS / f"{'-'.join([SUITE, variant, *packages[:1], architecture])}.tar"
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


def until(true):
    """What `true` gives, as soon as it is something."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if found := true():
            return found
        time.sleep(0.01)
    raise AssertionError("it took longer than a minute")


def children(process):
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def threads(process):
    """The names of its threads."""
    return {name.read_text().strip() for name in Path(f"/proc/{process}/task").glob("*/comm")}


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def ask(port):
    """What a server answers to the question."""
    asked = {"messages": [{"role": "user", "content": QUESTION[1]}], "temperature": 0}
    body, kind = json.dumps(asked).encode(), {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", body, kind)
    return json.load(urllib.request.urlopen(request, timeout=120))["choices"][0]["message"]["content"].strip()


@contextmanager
def booted(root):
    """Boots systemd in a root. Yields what runs a command there."""
    needs("unshare", "nsenter")
    group = f"twostroke-check-{os.getpid()}"
    unshare = subprocess.Popen(
        ["sh", ROOT / "tests/dist/boot.sh", root, group], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        enter = []

        def there(*command, expect=0):
            return run(*enter, *command, expect=expect)

        for _ in range(300):
            time.sleep(0.1)
            if unshare.poll() is not None:
                raise Skipped(f"systemd does not boot here: {unshare.stdout.read().decode().strip()}")
            if not (first := children(unshare.pid)):
                continue
            clean = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C", "TERM=dumb"]
            enter = ["nsenter", "--target", first[0], "--all", "--root", "--wd", *clean]
            if there("systemctl", "is-system-running", expect=None).strip() in ("running", "degraded"):
                break
        else:
            raise Skipped("systemd does not come up here")
        yield there
    finally:
        for first in children(unshare.pid):
            os.kill(first, signal.SIGKILL)  # and all others end with it, before unshare hears of it
        unshare.wait(30)
        for hierarchy in ["", "systemd", "unified"]:
            groups = Path("/sys/fs/cgroup", hierarchy, group)
            for directory, _, _ in os.walk(groups, topdown=False):
                os.rmdir(directory)


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


# In a namespace of its own, whose kernel hands programs for aarch64 to qemu: then the program can start itself once more,
# which renders the template.
EMULATED = r"""
mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
printf '%s' ":qemu-aarch64:M::$magic:$mask:$(command -v qemu-aarch64-static):F" > /proc/sys/fs/binfmt_misc/register
mount --rbind /proc "$0/proc"
mount --rbind /dev "$0/dev"
exec chroot "$0" "$@"
"""


@check
def the_tarball_for_aarch64_answers_under_qemu():
    packed = made("twostroke-*-aarch64-linux.tar.gz")
    needs("qemu-aarch64-static")
    with debian("extract", "libc6", "libgcc-s1", architecture="arm64") as root:
        begin = time.monotonic()
        run("tar", "-C", root, "-xzf", packed)
        alone = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-euc", EMULATED, root]
        program = f"/twostroke-{VERSION}-aarch64-linux/bin/twostroke"
        environment = {**os.environ, "HOME": "/", "XDG_CACHE_HOME": "/cache"}
        said = run(*alone, program, "--version", env=environment, expect=None)
        if "binfmt_misc" in said:
            raise Skipped(f"the kernel gives no binfmt_misc to a namespace (Linux 6.7 does): {said.strip()}")
        assert VERSION in said, said
        return answers(run(*alone, program, *QUESTION, env=environment), begin)


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


def later(package, scratch, to):
    """The same package with a later version."""
    run("dpkg-deb", "--raw-extract", package, scratch / "tree")
    control = scratch / "tree/DEBIAN/control"
    control.write_text(control.read_text().replace(f"Version: {VERSION}", "Version: 99.0"))
    run("dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", scratch / "tree", to)


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
        assert not inside(root, "dpkg", "--verify", "twostroke"), "sums of its files"
        # A later version, over a configuration that was edited.
        later(package, other, root / "second.deb")
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
def the_service_starts_answers_upgrades_and_stops_under_systemd():
    package = made("twostroke_*_amd64.deb")
    with debian("minbase", "systemd", "systemd-sysv", "dbus") as root, scratch() as other, booted(root) as there:
        port, configuration = free_port(), root / "etc/twostroke/serve.yaml"
        shutil.copy(package, root / "first.deb")
        later(package, other, root / "second.deb")

        def shows(name):
            return there("systemctl", "show", "--property", name, "--value", "twostroke").strip()

        there("dpkg", "--install", "/first.deb")
        assert (shows("UnitFileState"), shows("ActiveState")) == ("disabled", "inactive"), "it starts nothing"
        configuration.write_text(configuration.read_text().replace("port: 8000", f"port: {port}"))
        begin = time.monotonic()
        there("systemctl", "enable", "--now", "twostroke")
        # Whatever starts after it finds it ready.
        assert ask(port) == "42"
        said = f"the first answer {time.monotonic() - begin:.1f} s after the start"
        assert shows("StatusText") == f"serving lantern at http://127.0.0.1:{port}", shows("StatusText")
        assert there("stat", "--format", "%U", f"/proc/{shows('MainPID')}").strip() == "twostroke", "a user of its own"
        exposed = there("systemd-analyze", "security", "--threshold=20", "twostroke")
        assert "OK" in exposed.strip().splitlines()[-1], exposed

        before = shows("MainPID")
        there("systemctl", "kill", "--signal", "KILL", "twostroke")
        until(lambda: shows("NRestarts") == "1" and shows("ActiveState") == "active")
        assert ask(port) == "42" and shows("MainPID") != before, "one that has died is started again"

        before = shows("MainPID")
        there("dpkg", "--install", "/second.deb")
        assert ask(port) == "42" and shows("MainPID") != before, "an upgrade starts it again"

        there("systemctl", "stop", "twostroke")
        assert (shows("Result"), shows("ExecMainStatus"), shows("ActiveState")) == ("success", "0", "inactive")
        right = configuration.read_text()
        configuration.write_text(f"{right}max-num-seq: 3\n")
        there("systemctl", "start", "twostroke", expect=1)
        told = there("systemctl", "status", "twostroke", expect=3)
        assert "--max-num-seqs" in told and shows("ActiveState") == "failed", "once, for it would fail again"
        configuration.write_text(right)
        there("systemctl", "start", "twostroke")
        there("dpkg", "--purge", "twostroke")
        assert there("systemctl", "is-active", "twostroke", expect=None).strip() == "inactive"
        left = [root / "var/lib/twostroke", root / "var/cache/twostroke", root / "var/cache/private/twostroke"]
        assert not [path for path in left if path.exists()]
        assert not list((root / "etc/systemd/system/multi-user.target.wants").glob("twostroke*"))
        return said


@check
def the_package_for_aarch64_is_the_same_with_another_binary():
    package, other = made("twostroke_*_arm64.deb"), made("twostroke_*_amd64.deb")
    tarball = made("twostroke-*-aarch64-linux.tar.gz")
    needs("dpkg-deb")

    def names(package):
        lines = run("dpkg-deb", "--contents", package).splitlines()
        return [(line.split()[0], line.split()[5]) for line in lines]

    def fields(package):
        return run("dpkg-deb", "--field", package).replace(run("dpkg-deb", "--field", package, "Installed-Size"), "")

    assert names(package) == names(other)
    assert fields(package) == fields(other).replace("amd64", "arm64"), fields(package)
    with scratch() as directory:
        run("dpkg-deb", "--raw-extract", package, directory / "deb")
        run("md5sum", "--check", "--strict", "--quiet", "DEBIAN/md5sums", cwd=directory / "deb")
        run("tar", "-C", directory, "-xzf", tarball)
        binary = (directory / "deb/usr/bin/twostroke").read_bytes()
        assert binary == next(directory.glob("*-aarch64-linux/bin/twostroke")).read_bytes()
    assert int.from_bytes(binary[18:20], "little") == 183, "a program for aarch64"
    wanted = re.findall(rb"GLIBC_2\.(\d+)", binary)
    assert max(map(int, wanted)) <= 34, "it wants a later glibc than the guide says"
    # Its flags are those of every release: no path of the machine that has built it is in it.
    homes = [str(ROOT), os.environ.get("CARGO_HOME", str(Path.home() / ".cargo"))]
    assert not [home for home in homes if f"{home}/".encode() in binary], homes


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
            port = free_port()
            serve = [*alone, "/usr/bin/twostroke", "serve", "--port", str(port), "--json"]
            server = subprocess.Popen([str(word) for word in serve], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            try:
                assert json.loads(server.stdout.readline())["port"] == port
                assert ask(port) == "42"
            finally:
                server.terminate()
                server.wait(120)
            described = json.loads(run(*buildah, "inspect", container))["OCIv1"]["config"]
            assert described["User"] == "65532:65532" and "/data" in described["Volumes"], described
            # As Docker reads the archive where it keeps images in its older store.
            older = run(*buildah, "from", "--quiet", f"docker-archive:{image}").split()[-1]
            ids = [json.loads(run(*buildah, "inspect", name))["FromImageID"] for name in (container, older)]
            assert ids[0] == ids[1], "one image, in both layouts"
        finally:
            run(*buildah, "rm", "--all")
        return said


@check
def the_image_is_loaded_by_the_name_that_the_guide_runs():
    image = made("twostroke-*-image.tar")
    with tarfile.open(image) as packed:
        entries = {entry.name: packed.extractfile(entry).read() for entry in packed if entry.isfile()}
    (described,) = json.loads(entries["manifest.json"])
    assert described["RepoTags"] == [f"twostroke:{VERSION}"]
    assert set(described["Layers"]) | {described["Config"]} < set(entries), "what Docker's older store looks for"
    (listed,) = json.loads(entries["index.json"])["manifests"]
    assert listed["annotations"]["io.containerd.image.name"] == f"docker.io/library/twostroke:{VERSION}"
    for name, body in entries.items():
        if name.startswith("blobs/"):
            assert name.endswith(f"/{hashlib.sha256(body).hexdigest()}")
    needs("podman")
    with scratch() as store:
        podman = ["podman", "--root", store / "root", "--runroot", store / "run", "--storage-driver", "vfs"]
        run(*podman, "load", "--input", image)
        user = run(*podman, "image", "inspect", "--format", "{{.User}}", f"twostroke:{VERSION}")
        assert user.strip() == "65532:65532", user


@check
def a_first_process_ends_when_it_is_told_while_it_starts():
    with debian("extract", "libc6", "libgcc-s1") as root:
        run("tar", "-C", root, "-xzf", made("twostroke-*-x86_64-linux.tar.gz"))
        program = f"/twostroke-{VERSION}-x86_64-linux/bin/twostroke"
        for number, code in [(signal.SIGTERM, 143), (signal.SIGINT, 130)]:
            shutil.rmtree(root / "cache", ignore_errors=True)
            # What takes longest of a start, for there is no cache, is to measure the machine.
            alone = ["unshare", "--pid", "--fork", "--kill-child", "chroot", root, program, "serve", "--port", "0"]
            environment = {"PATH": os.environ["PATH"], "HOME": "/", "XDG_CACHE_HOME": "/cache"}
            server = subprocess.Popen(
                [str(word) for word in alone], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            try:
                first = until(lambda: children(server.pid))[0]
                until(lambda: "signals" in threads(first))
                os.kill(first, number)
                assert server.wait(30) == code, server.stdout.read()
            finally:
                server.kill()


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
        with zipfile.ZipFile(wheel) as files:
            names = files.namelist()
            record = files.read(next(name for name in names if name.endswith("/RECORD"))).decode()
        assert {line.split(",")[0] for line in record.splitlines()} == set(names), "all its files are in its record"
        licences = {name.rsplit("/", 1)[1] for name in names if "/licenses/" in name}
        assert licences == {"LICENSE-APACHE", "LICENSE-MIT", "THIRD-PARTY"}, names
        # The guide's programs, but for those with packages that are not here.
        page = (ROOT / "docs/guide/python.md").read_text()
        blocks = re.findall(r"^```(python|sh) package\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
        blocks = [(language, text) for language, text in blocks if "pandas" not in text]
        assert len(blocks) >= 4, "the guide has programs"
        environment["PATH"] = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
        for language, text in blocks:
            command = [python, "-c"] if language == "python" else ["bash", "-euo", "pipefail", "-c"]
            assert run(*command, text, env=environment, cwd=directory).strip(), text
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
