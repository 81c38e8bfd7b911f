"""deploy/install.sh under the smallest shells, from a server on the loopback address; and the unit of the service.

Nothing here needs a build or a network: what is installed is a script that says its version.
"""

import hashlib
import io
import os
import shutil
import tarfile
import tempfile
from contextlib import contextmanager
from pathlib import Path

from harness import ROOT, Files, Skipped, check, for_each, main, needs, run

SCRIPT = ROOT / "deploy/install.sh"
SHELLS = ["dash", "busybox"]
PROGRAM = "#!/bin/sh\necho twostroke {version}\n"


def tarball(version, files, machine="x86_64-linux"):
    """A release's tarball with these files, and its name."""
    name, packed = f"twostroke-{version}-{machine}", io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for path, text in files.items():
            entry = tarfile.TarInfo(f"{name}/{path}")
            entry.size, entry.mode = len(text), 0o755 if path.startswith("bin/") else 0o644
            tar.addfile(entry, io.BytesIO(text))
    return f"{name}.tar.gz", packed.getvalue()


def release(version="0.1.0", extra=(), program=PROGRAM):
    """All files of a release, by name."""
    files = {"bin/twostroke": program.format(version=version).encode(), "share/man/man1/twostroke.1": b"page"}
    files.update(dict(extra))
    bodies = dict([tarball(version, files), tarball(version, files, "aarch64-linux")])
    bodies["twostroke-0.1.0-py3-none-any.whl"] = b"no tarball"
    sums = "".join(f"{hashlib.sha256(body).hexdigest()}  {name}\n" for name, body in bodies.items())
    return {**bodies, "SHA256SUMS": sums.encode()}


class Place:
    """A home directory, and a machine that says what it is. Busybox's shell has its own programs before all others, so
    those that are replaced are functions of the shell."""

    def __init__(self, shell, directory):
        self.shell, self.home, self.functions = shell, directory / "home", {}
        self.home.mkdir()
        self.path = os.environ["PATH"]
        if shell == "busybox":
            needs("busybox")
            tools = directory / "busybox"
            tools.mkdir()
            run("busybox", "--install", "-s", tools)
            self.path = str(tools)
        elif not (shutil.which("curl") or shutil.which("wget")):
            raise Skipped("curl or wget is not here")
        self.says("uname", 'case "$1" in -s) echo Linux ;; *) echo x86_64 ;; esac')
        self.says("id", "echo 1000")

    def says(self, program, script):
        self.functions[program] = f"{program}() {{ {script}; }}\n"

    def install(self, url, *arguments, expect=0, script=None):
        # Not every build of busybox installs itself among its programs.
        shell = [shutil.which("busybox"), "sh"] if self.shell == "busybox" else [self.shell]
        environment = {"PATH": self.path, "HOME": str(self.home)}
        if url:
            environment["TWOSTROKE_BASE_URL"] = url
        text = SCRIPT.read_bytes() if script is None else script
        text = "".join(self.functions.values()).encode() + text
        # As in a pipe: the script comes on standard input.
        return run(*shell, "-s", "--", *arguments, expect=expect, env=environment, input=text, cwd=self.home)

    def files(self, below="."):
        return sorted(str(p.relative_to(self.home / below)) for p in (self.home / below).rglob("*") if p.is_file())


@contextmanager
def place(shell):
    needs(shell)
    with tempfile.TemporaryDirectory(prefix="twostroke-install-") as directory:
        yield Place(shell, Path(directory))


@for_each(SHELLS)
def installs_upgrades_and_leaves_nothing(shell):
    with place(shell) as here, Files(release(extra=[("share/doc/twostroke/OLD", b"old")])) as files:
        (here.home / ".local/bin").mkdir(parents=True)
        (here.home / ".local/bin/other").write_text("of another program")
        said = here.install(files.url)
        assert f"twostroke 0.1.0 is in {here.home}/.local/bin" in said and "not on your PATH" in said, said
        own = ["bin/twostroke", "share/doc/twostroke/OLD", "share/man/man1/twostroke.1", "share/twostroke/installed"]
        assert here.files(".local") == ["bin/other", *own], here.files(".local")
        assert run(here.home / ".local/bin/twostroke") == "twostroke 0.1.0\n"
        files.bodies = release("0.2.0-rc.1")
        here.install(files.url)
        assert run(here.home / ".local/bin/twostroke") == "twostroke 0.2.0-rc.1\n"
        assert "share/doc/twostroke/OLD" not in here.files(".local")
        said = here.install(None, "--uninstall")
        assert "removed from" in said and here.files(".local") == ["bin/other"], (said, here.files(".local"))
        assert not (here.home / ".local/share").exists()
        assert "nothing was installed" in here.install(None, "--uninstall", expect=1)
        here.says("uname", 'case "$1" in -s) echo Linux ;; *) echo aarch64 ;; esac')
        here.install(files.url, "--prefix", here.home / "a place")
        assert "a place/bin/twostroke" in here.files()


@for_each(SHELLS)
def whatever_is_wrong_nothing_is_installed_and_one_line_says_why(shell):
    def cases(here, files):
        tarball = "twostroke-0.1.0-x86_64-linux.tar.gz"
        good = dict(files.bodies)

        def damaged():
            files.bodies[tarball] = good[tarball][:-1] + b"x"

        def half():
            files.cut.add(tarball)

        def other_sum():
            right = hashlib.sha256(good[tarball]).hexdigest().encode()
            files.bodies["SHA256SUMS"] = good["SHA256SUMS"].replace(right, b"0" * 64)

        def no_tar():
            broken = b"this is no archive"
            files.bodies[tarball] = broken
            files.bodies["SHA256SUMS"] = f"{hashlib.sha256(broken).hexdigest()}  {tarball}\n".encode()

        def does_not_start():
            files.bodies = release(program="#!/bin/sh\necho GLIBC_2.34 not found >&2\nexit 1\n")

        def machine(system, name):
            return lambda: here.says("uname", f'case "$1" in -s) echo {system} ;; *) echo {name} ;; esac')

        yield "is damaged: its SHA-256 is", damaged
        yield "", half
        yield "SHA256SUMS says 0000", other_sum
        yield "cannot be unpacked", no_tar
        yield "the program does not start here (it needs glibc 2.34", does_not_start
        yield "no binary for Linux on riscv64", machine("Linux", "riscv64")
        yield "no binary for Darwin on arm64", machine("Darwin", "arm64")
        yield "no tarball for x86_64-linux", lambda: files.bodies.update({"SHA256SUMS": b"1  other.tar.gz\n"})
        yield "SHA256SUMS cannot be downloaded", lambda: files.bodies.pop("SHA256SUMS")
        yield f"{tarball} cannot be downloaded", lambda: files.bodies.pop(tarball)
        yield "cannot be written", lambda: (here.home / ".local").write_text("a file")

    for number in range(11):
        with place(shell) as here, Files(release()) as files:
            wanted, spoil = list(cases(here, files))[number]
            spoil()
            before = here.files()
            said = here.install(files.url, expect=1)
            assert wanted in said and said.endswith("nothing was installed\n"), said
            lines = [line for line in said.splitlines() if line.startswith("twostroke: ")]
            assert len(lines) == 1 and here.files() == before, (said, here.files())
            assert not (here.home / ".local").is_dir(), "not even a directory"
    with place(shell) as here:
        assert "TWOSTROKE_BASE_URL is not set" in here.install(None, expect=1)
        assert "usage" in here.install(None, "--force", expect=2)
        assert "usage" in here.install(None, "--prefix", expect=2)


@for_each(SHELLS)
def a_full_disk_is_said(shell):
    with place(shell) as here, Files(release(extra=[("share/large", os.urandom(3 << 20))])) as files:
        small = here.home / "small"
        small.mkdir()
        for size in ["2m", "5m"]:  # the tarball does not fit; it does, and what it holds does not
            try:
                run("mount", "-t", "tmpfs", "-o", f"size={size}", "none", small)
            except (AssertionError, OSError):
                raise Skipped("a small disk cannot be mounted here") from None
            try:
                said = here.install(files.url, "--prefix", small, expect=1)
                assert str(small) in said and said.endswith("nothing was installed\n"), said
                assert here.files() == [], here.files()
            finally:
                run("umount", small)


@for_each(SHELLS)
def half_a_script_does_nothing(shell):
    whole = SCRIPT.read_bytes()
    with place(shell) as here, Files(release()) as files:
        for tenth in range(10):
            here.install(files.url, expect=None, script=whole[: len(whole) * tenth // 10])
        here.install(files.url, expect=None, script=whole.rstrip()[: -len('main "$@"')])
        assert here.files() == [], here.files()


@check
def shellcheck_has_no_complaint():
    needs("shellcheck")
    scripts = [SCRIPT, *(ROOT / "deploy/debian" / name for name in ("postinst", "prerm", "postrm"))]
    run("shellcheck", *scripts)


@check
def the_unit_is_hardened():
    needs("systemd-analyze")
    unit = ROOT / "deploy/systemd/twostroke.service"
    said = run("systemd-analyze", "security", "--offline=true", "--threshold=20", unit)
    return said.strip().splitlines()[-1]


if __name__ == "__main__":
    main()
