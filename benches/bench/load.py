"""Load generators: redis-benchmark and benches/load.

The server and its load generator are pinned to different processors, if there are two. Otherwise
the scheduler may place them on one, which would influence the result more than the call.
"""

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from bench.calls import NUMBER
from bench.servers import MeasuredServer
from bench.wire import ReplyError
from support.server import MODULE, REPOSITORY

CONNECTIONS = 50
# Maximum of redis-benchmark, so that no number is repeated within moments.
NUMBERS = 2**31 - 1
# The program is built beside the module, so that `make clean` removes it, too.
TARGET = MODULE.parents[1] / "load"

_CPUS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def pin(server: MeasuredServer) -> None:
    """Pins the server to the first processor; the load generator gets the others."""
    if len(_CPUS) > 1:
        for thread in Path(f"/proc/{server.pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), _CPUS[:1])


def _start(command: Sequence[object]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    if len(_CPUS) > 1:
        os.sched_setaffinity(process.pid, _CPUS[1:])
    return process


@cache
def benchmark_program() -> str:
    path = shutil.which("redis-benchmark") or shutil.which("valkey-benchmark")
    if path is None:
        sys.exit("needed: redis-benchmark (Debian, Ubuntu: apt install redis-tools)")
    return path


@cache
def program() -> Path:
    """Builds benches/load."""
    manifest = REPOSITORY / "benches/load/Cargo.toml"
    build = ["cargo", "build", "--release", "--locked", "--quiet", "--manifest-path", manifest]
    subprocess.run([*build, "--target-dir", TARGET], check=True)
    return TARGET / "release/load"


class Benchmark:
    """Run of one command by redis-benchmark: its rate, and the server's processor time."""

    def __init__(
        self, server: MeasuredServer, words: Sequence[str], count: int, pipeline: int
    ) -> None:
        errors, cpu = _errors(server), server.cpu_seconds()
        # Each connection sends a whole number of pipelines.
        count = max(1, count // (pipeline * CONNECTIONS)) * pipeline * CONNECTIONS
        options = {"-p": server.port, "-c": CONNECTIONS, "-P": pipeline, "-n": count}
        if any(NUMBER in word for word in words):
            options["-r"] = NUMBERS
        option_words = [word for option in options.items() for word in option]
        with _start([benchmark_program(), *option_words, "--csv", *words]) as process:
            output, _ = process.communicate()
        if process.returncode:
            raise ReplyError(f"redis-benchmark {' '.join(words)} failed")
        self.server_ns = (server.cpu_seconds() - cpu) / count * 1e9
        if _errors(server) > errors:
            raise ReplyError(f"{' '.join(words)}: the server has answered with errors")
        (row,) = csv.DictReader(output.decode().splitlines())
        self.calls_per_second = float(row["rps"])


def _errors(server: MeasuredServer) -> int:
    return server.admin.info("stats")["total_error_replies"]


def run(server: MeasuredServer, *words: object) -> dict[str, float]:
    """Runs benches/load. Returns its results, and `server_seconds`: the server's processor time."""
    with _start([program(), *words]) as process:
        ready = process.stdout.readline()
        cpu = server.cpu_seconds()
        process.stdin.write(b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
        used = server.cpu_seconds() - cpu
    if ready != b"ready\n" or process.returncode:
        raise ReplyError(f"benches/load {' '.join(map(str, words))} failed")
    return {**json.loads(line), "server_seconds": used}
