"""Folders with a Debian, in the user's cache.

debootstrap creates them from the mirror of this machine's apt, and needs root.
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "redis-ratelimit"


def debian(suite: str, packages: list[str], folder: Path) -> Path:
    """Installs Debian and packages in a folder, unless the folder is complete."""
    # debootstrap removes the folder of this name when it is done.
    if not (folder / "usr/bin/env").exists() or (folder / "debootstrap").exists():
        if not shutil.which("debootstrap"):
            raise FileNotFoundError("debootstrap is not installed")
        folder.mkdir(parents=True, exist_ok=True)
        targets = ["Created-By: Packages", "Component: main"]
        words = ["apt-get", "indextargets", "--format", "$(REPO_URI)", *targets]
        mirrors = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()
        if not mirrors:
            sys.exit("apt has no lists: run apt-get update")
        include = f"--include={','.join(packages)}"
        words = ["debootstrap", "--variant=minbase", include, suite, str(folder), mirrors[0]]
        # debootstrap runs in a namespace, so that its mounts end with it even if it is killed.
        words = ["unshare", "--mount", *words]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return folder


def command_inside(
    root: Path, mounts: dict[str, str], environment: dict[str, str], words: list[str]
) -> list[str]:
    """Returns the words of a command that runs `words` in the system in the folder `root`. Further
    arguments of the command are added to `words`.

    `mounts` maps folders and files of this machine to their paths there. Processes and mounts end
    with the command.
    """
    mounts = mounts | {name: name for name in ("/dev", "/etc/resolv.conf", "/etc/hosts")}
    environment = environment | {
        name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")
    }
    steps = ["mount --make-rprivate /", shlex.join(["mount", "-t", "proc", "proc", f"{root}/proc"])]
    for source, target in mounts.items():
        path = root / target.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(exist_ok=True) if Path(source).is_dir() else path.touch()
        steps.append(shlex.join(["mount", "--rbind", source, str(path)]))
    settings = [f"{name}={value}" for name, value in environment.items()]
    steps.append(f'exec {shlex.join(["chroot", str(root), "env", "-i", *settings, *words])} "$@"')
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    return [*namespaces, "sh", "-ec", "\n".join(steps), "sh"]


def server(suite: str, program: str, programs: list[str]) -> Path:
    """Returns a script that runs a server of a Debian release with that release's own libraries."""
    root = debian(suite, programs, CACHE / suite)
    loader = next(root.glob("lib*/ld-linux*.so.*"))
    libraries = [*root.glob("usr/lib/*-linux-gnu*"), root / "usr/lib"]
    words = [loader, "--library-path", ":".join(map(str, libraries)), root / "usr/bin" / program]
    path = CACHE / f"{suite}-{program}"
    path.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, words))} "$@"\n')
    path.chmod(0o755)
    return path
