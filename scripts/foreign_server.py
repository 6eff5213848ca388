"""Servers of other systems, each started by a script with that system's loader and libraries, so
that the tests run it like any other program.

`foreign_server.py redis:7.2` gets a server out of a container image and prints the path of its
script. It needs docker, and starts no container.
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "redis-ratelimit"

# Valkey's images have a redis-server, too, which is a link.
PROGRAMS = ("valkey-server", "redis-server")


def script(root: Path, program: Path, path: Path) -> Path:
    """Writes the script: it runs a program that lies in the folder with another system."""
    loader = next(root.glob("lib*/ld-linux*.so.*"))
    libraries = [*root.glob("usr/lib/*-linux-gnu*"), root / "usr/lib"]
    words = [loader, "--library-path", ":".join(map(str, libraries)), program]
    path.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, words))} "$@"\n')
    path.chmod(0o755)
    return path


def of_image(image: str) -> Path:
    """The script for the server of an image. What is in the image is kept for the next time."""
    name = image.replace("/", "-").replace(":", "-")
    root = CACHE / name
    if not root.exists():
        # Complete under its name or not there at all.
        filling = root.with_name(f"{name}.part")
        shutil.rmtree(filling, ignore_errors=True)
        filling.mkdir(parents=True)
        unpack(image, filling)
        filling.rename(root)
    for program in PROGRAMS:
        for folder in ("usr/local/bin", "usr/bin"):
            if (root / folder / program).exists():
                return script(root, root / folder / program, CACHE / f"{name}-server")
    raise FileNotFoundError(f"{image} has no {' and no '.join(PROGRAMS)}")


def unpack(image: str, folder: Path) -> None:
    """The file system of an image, but for the devices, which are root's."""
    container = docker("create", image).strip()
    try:
        with subprocess.Popen(["docker", "export", container], stdout=subprocess.PIPE) as export:
            words = ["tar", "-C", folder, "-xf", "-", "--exclude=dev/*"]
            subprocess.run(words, stdin=export.stdout, check=True)
        if export.returncode:
            raise subprocess.CalledProcessError(export.returncode, export.args)
    finally:
        docker("rm", container)


def docker(*words: str) -> str:
    return subprocess.run(["docker", *words], check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    print(of_image(sys.argv[1]))
