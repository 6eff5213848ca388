"""Client libraries, each with its defaults, for tests of what they do when a reply is lost.

A caller sends one call after another. What its client gives up, it sends again itself.
"""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import redis

from support.server import REPOSITORY

CLIENTS = REPOSITORY / "tests" / "clients"
BUILT = REPOSITORY / "target" / "clients"
# The example has the client that is called here, and its lock file.
EXPRESS = REPOSITORY / "examples" / "express"

MOST_ATTEMPTS = 5


class Answer(NamedTuple):
    """What a caller has heard."""

    allowed: bool
    # How often it has sent the call, as far as it knows.
    attempts: int


Calls = Sequence[Sequence[str]]
Caller = Callable[[int, Calls], list[Answer]]


def by_redis_py(port: int, calls: Calls) -> list[Answer]:
    def send(call: Sequence[str]) -> Answer:
        for attempts in range(1, MOST_ATTEMPTS):
            try:
                return Answer(client.execute_command(*call)[0] == 1, attempts)
            except redis.ConnectionError:
                pass
        return Answer(client.execute_command(*call)[0] == 1, MOST_ATTEMPTS)

    with redis.Redis(port=port) as client:
        return [send(call) for call in calls]


def by_ioredis(port: int, calls: Calls) -> list[Answer]:
    if not has_node() and os.environ.get("CI") != "true":
        pytest.skip("not tested: ioredis, which needs npm and Node.js 20 or later")
    directory = BUILT / "ioredis"
    with one_at_a_time():
        directory.mkdir(exist_ok=True)
        lock_file = (EXPRESS / "package-lock.json").read_bytes()
        installed = directory / "installed.json"
        if not installed.exists() or installed.read_bytes() != lock_file:
            for name in ("package.json", "package-lock.json"):
                shutil.copy(EXPRESS / name, directory)
            run("npm", "ci", "--omit=dev", "--no-audit", "--no-fund", cwd=directory)
            installed.write_bytes(lock_file)
        # A module is looked for beside the file that asks for it.
        shutil.copy(CLIENTS / "ioredis.js", directory)
    return answers("node", str(directory / "ioredis.js"), str(port), calls=calls)


def has_node() -> bool:
    if not (shutil.which("node") and shutil.which("npm")):
        return False
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True)
    return int(version.stdout.removeprefix("v").split(".")[0]) >= 20


def by_redis_rs(port: int, calls: Calls) -> list[Answer]:
    with one_at_a_time():
        # Not with the flags of whoever builds the module.
        run(
            *("cargo", "build", "--locked", "--target-dir", str(BUILT / "redis-rs")),
            cwd=CLIENTS / "redis-rs",
        )
    program = BUILT / "redis-rs" / "debug" / "call-by-redis-rs"
    return answers(str(program), str(port), calls=calls)


CALLERS: dict[str, Caller] = {
    "redis-py": by_redis_py,
    "ioredis": by_ioredis,
    "redis-rs": by_redis_rs,
}


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Tests run in several processes, which share what was built."""
    BUILT.mkdir(parents=True, exist_ok=True)
    with (BUILT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run(*words: str, cwd: Path) -> None:
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.fail(f"{' '.join(words)} failed:\n{done.stdout}{done.stderr}")


def answers(*program: str, calls: Calls) -> list[Answer]:
    """A program reads a call a line, and writes for each if it was allowed, and its attempts."""
    lines = "".join(f"{' '.join(call)}\n" for call in calls)
    done = subprocess.run(
        program, input=lines, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    heard = [line.split() for line in done.stdout.splitlines()]
    return [Answer(allowed == "1", int(attempts)) for allowed, attempts in heard]
