"""Folders with Debian in them, which debootstrap fills from the mirror that this machine's apt has,
and commands that are carried out in one: by chroot, in namespaces of their own. It needs root.
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "redis-ratelimit/image"

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# How this machine gets to the registries.
MACHINE = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
DEVICES = ("null", "urandom")


class Root:
    """A folder with a system in it, and how commands run there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"PATH": SYSTEM_PATH}
        self.directory = "/"
        self.user = "0:0"
        # Folders of this machine that it sees, and where.
        self.mounts: dict[Path, str] = {}

    def run(self, script: str) -> None:
        """A script of the shell, as RUN has it."""
        subprocess.run(self.command(["/bin/sh", "-c", script]), check=True)

    def command(self, words: list[str], *, alone: bool = False) -> list[str]:
        """The words that run these in it. Mounts and processes go with them. Alone: with a network
        of its own, and nothing to write to but /data, where that is.
        """
        user, _, group = self.user.partition(":")
        environment = {name: os.environ[name] for name in MACHINE if name in os.environ}
        environment |= {"SSL_CERT_FILE": CERTIFICATES} | self.environment
        inside = [
            *("env", "-i", *(f"{name}={value}" for name, value in environment.items())),
            *("setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups"),
            *("/bin/sh", "-c", 'cd "$0" && exec "$@"', self.directory, *words),
        ]
        steps = [
            ["mount", "-t", "proc", "proc", self.path("/proc")],
            *(["mount", "--bind", f"/dev/{name}", self.path(f"/dev/{name}")] for name in DEVICES),
            *(["mount", "--bind", source, self.path(at)] for source, at in self.mounts.items()),
            *(self._alone() if alone else []),
            ["exec", "chroot", self.folder, *inside],
        ]
        script = "\n".join(shlex.join(map(str, step)) for step in steps)
        kinds = ["--mount", "--pid", *(["--net"] if alone else [])]
        return ["unshare", *kinds, "--fork", "--kill-child", "/bin/sh", "-e", "-c", script]

    def _alone(self) -> list[list[str | Path]]:
        return [
            ["ip", "link", "set", "lo", "up"],
            *([["mount", "--bind", data, data]] if (data := self.path("/data")).exists() else []),
            ["mount", "--rbind", self.folder, self.folder],
            # Of these mounts, the first stays as it is.
            ["mount", "-o", "remount,bind,ro", self.folder],
        ]

    def path(self, inside: str | Path) -> Path:
        """Where a path of its own is on this machine."""
        return self.folder / str(inside).lstrip("/")

    def mount(self, source: Path, target: str) -> None:
        if source.is_dir():
            self.path(target).mkdir(parents=True, exist_ok=True)
        else:
            self.path(target).parent.mkdir(parents=True, exist_ok=True)
            self.path(target).touch()
        self.mounts[source] = target


def debian(suite: str, packages: list[str]) -> Path:
    """A folder with Debian and some packages, kept for the next time."""
    folder = CACHE / "-".join([suite, *packages])
    # debootstrap takes its own folder away when all is done.
    if not (folder / "usr/bin/env").exists() or (folder / "debootstrap").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        targets = ["Created-By: Packages", "Component: main"]
        found = subprocess.run(
            ["apt-get", "indextargets", "--format", "$(REPO_URI)", *targets],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
        if not found:
            sys.exit("apt has no lists: run apt-get update")
        include = [f"--include={','.join(packages)}"] if packages else []
        words = ["debootstrap", "--variant=minbase", *include, suite, str(folder), found[0]]
        # What it mounts goes with it, even if it is killed: nobody removes what is mounted there.
        words = ["unshare", "--mount", *words]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return folder
