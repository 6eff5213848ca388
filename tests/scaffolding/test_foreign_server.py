"""Servers are extracted from container images, with a fake docker."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.server import REPOSITORY

# No server is needed.
pytestmark = pytest.mark.once

# It prints its arguments.
LOADER = """\
#!/bin/sh
echo "$@"
"""
# One container at a time, which must be removed afterwards.
DOCKER = """\
#!/bin/sh
case "$1" in
  create) mkdir "$STATE/container" && echo "container of $2" ;;
  export) test -d "$STATE/container" && tar -C "$STATE/image" -cf - . ;;
  rm) rmdir "$STATE/container" ;;
esac
"""


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """Creates the image's files and returns their folder."""
    image = tmp_path / "image"
    for name, text in {
        "usr/lib64/ld-linux-any.so.2": LOADER,
        "usr/lib/any-linux-gnu/libc.so.6": "",
        "usr/local/bin/redis-server": "",
        "dev/console": "",
    }.items():
        (image / name).parent.mkdir(parents=True, exist_ok=True)
        (image / name).write_text(text)
        (image / name).chmod(0o755)
    (image / "lib64").symlink_to("usr/lib64")
    return image


@pytest.fixture
def get(tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Runs the script that extracts an image's server."""
    programs = tmp_path / "my bin"
    programs.mkdir()
    (programs / "docker").write_text(DOCKER)
    (programs / "docker").chmod(0o755)
    environment = os.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(tmp_path / "my cache"),
        "STATE": str(tmp_path),
    }

    def get(name: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, REPOSITORY / "scripts/foreign_server.py", name],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    return get


@pytest.mark.parametrize("program", ["redis-server", "valkey-server"])
def test_the_server_of_an_image_runs_with_its_own_libraries(image, get, tmp_path, program):
    (image / "usr/local/bin" / program).touch()
    run = get("name/any:9")
    assert run.returncode == 0, run.stderr
    told = subprocess.run(
        [run.stdout.strip(), "--port", "1"], check=True, capture_output=True, text=True
    ).stdout
    root = tmp_path / "my cache/redis-ratelimit/name-any-9"
    libraries = f"{root}/usr/lib/any-linux-gnu:{root}/usr/lib"
    assert told == f"--library-path {libraries} {root}/usr/local/bin/{program} --port 1\n"
    assert not (root / "dev/console").exists(), "devices are root's"
    assert not (tmp_path / "container").exists(), "the container is removed"


def test_an_image_is_unpacked_once(image, get):
    assert get("any:9").returncode == 0
    (image / "lib64/ld-linux-any.so.2").unlink()
    assert get("any:9").returncode == 0


def test_an_image_that_could_not_be_unpacked_is_unpacked_the_next_time(image, get, tmp_path):
    kept = image.rename(tmp_path / "elsewhere")
    assert get("any:9").returncode != 0
    assert not (tmp_path / "container").exists(), "the container is removed"
    kept.rename(image)
    assert get("any:9").returncode == 0


def test_an_image_without_a_server_is_reported(image, get):
    (image / "usr/local/bin/redis-server").unlink()
    run = get("any:9")
    assert run.returncode != 0
    assert run.stderr.endswith("any:9 has no valkey-server and no redis-server\n")
