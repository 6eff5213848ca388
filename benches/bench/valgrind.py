"""Instructions per call, counted by valgrind.

Two influences change the counts, and both only add to them:

* the seed that each server draws for its hash tables: a lookup compares the wrong key first if two
  share a bucket. On one server in three, SET EX takes 8,520 instructions instead of 8,370 for that
  reason. A call that is propagated looks up two commands, and RL.MTAKE four keys.
* what the server does each second, some 100,000 instructions: on a busy machine, the same calls
  take more seconds.

The calls on a server are therefore counted in stretches, and the result is the lowest count of all
stretches on several servers. The lowest count misses what a call does less than once a stretch.
The lowest of the servers' means over all stretches includes it.
"""

import os
import shutil
import statistics
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from bench.calls import Call, prepare
from bench.servers import MeasuredServer, Setup, serving
from bench.wire import Pipe
from support.binaries import Binary

PIPELINE = 100
SERVERS = 5
# Valgrind and vgdb name the pipes between them after the user and the host, by these variables. A
# server overwrites its environment, and then valgrind would look for pipes of another name.
PIPE_NAME_VARIABLES = ("LOGNAME", "USER", "HOST", "HOSTNAME")
# Number of stretches. Each is shorter than a second, so that one of them excludes what the server
# does each second.
STRETCHES = 3
# File, and number of a cache line in the file.
Line = tuple[str, int]
CACHE_LINE = 64
# Lines of callgrind's output that name a source file: of a function, inlined code, or a callee.
SOURCE_LINES = {"fl", "fi", "fe", "cfi", "cfl"}
# Settings that make the server's periodic work as rare as possible.
RARE_PERIODIC_WORK = (("hz", "1"), ("dynamic-hz", "no"))


@dataclass(frozen=True)
class Count:
    """Instructions per call."""

    # Count in the stretch with the fewest instructions.
    least: float
    # Mean of all stretches of a server, which includes rare work, on the server with the lowest
    # mean.
    mean: float
    # Size of the code in bytes: cache lines from which every call executes an instruction.
    code: int = 0

    def lower(self, other: "Count") -> "Count":
        """Returns a count with the lower of each pair of figures."""
        ours, theirs = (vars(count).values() for count in (self, other))
        return Count(*map(min, ours, theirs))


def is_installed() -> bool:
    return shutil.which("valgrind") is not None and shutil.which("vgdb") is not None


def counts(binary: Binary, calls: Iterable[Call], servers: int = SERVERS) -> dict[str, Count]:
    """Returns the instructions per call, by the call's name."""
    by_setup: dict[Setup, dict[str, Call]] = {}
    for call in calls:
        by_setup.setdefault(call.setup, {})[call.name] = call
    lowest_counts: dict[str, Count] = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        all_counts = [
            # Each server runs all kinds of calls, because its start under valgrind takes as long as
            # thousands of calls.
            pool.submit(_counts, binary, setup, list(calls_by_name.values()))
            for setup, calls_by_name in by_setup.items()
            for _ in range(servers)
        ]
        for server_counts in all_counts:
            for name, count in server_counts.result().items():
                lowest_counts[name] = count.lower(lowest_counts.get(name, count))
    return lowest_counts


def _counts(binary: Binary, setup: Setup, calls: list[Call]) -> dict[str, Count]:
    """Counts instructions on one server, flushed and warmed up before each kind of call."""
    with counting_server(binary, setup) as counting:
        return {call.name: _count(counting, call) for call in calls}


@dataclass(frozen=True)
class Counting:
    """Server whose instructions are counted."""

    server: MeasuredServer
    folder: Path

    def since_last_dump(self) -> Counter[Line]:
        """Returns the instructions since the last dump, by cache line."""
        return _lines(self.dump())

    def dump(self) -> str:
        """Returns callgrind's output for the instructions since the last dump."""
        words = ["vgdb", f"--pid={self.server.pid}", "dump"]
        environment = {
            name: value for name, value in os.environ.items() if name not in PIPE_NAME_VARIABLES
        }
        subprocess.run(words, check=True, capture_output=True, timeout=120, env=environment)
        (dump,) = self.folder.glob(f"count.{self.server.pid}.*")
        text = dump.read_text()
        dump.unlink()
        return text


class ExecutedInstruction(NamedTuple):
    """Instruction, and the number of its executions."""

    # Program or library.
    file: str
    # Source file and number of the line in it, if the program has line tables.
    source: str
    line: int
    address: int
    count: int


def executed_instructions(dump: str) -> Iterator[ExecutedInstruction]:
    """Parses callgrind's output. Instructions of a callee are not counted for its callers."""
    names: dict[str, str] = {}
    file, source, is_of_callee = "", "", False
    for line in dump.splitlines():
        kind, _, value = line.partition("=")
        if kind == "ob":
            file, _, _ = line.partition(" ")
        elif kind in SOURCE_LINES:
            # The first mention of a number is followed by its name.
            number, _, name = value.partition(" ")
            name = names.setdefault(number, name)
            if not kind.startswith("c"):
                source = name
        elif kind == "calls":
            is_of_callee = True
        elif line.startswith("0x"):
            address, number, count = line.split()
            if not is_of_callee:
                yield ExecutedInstruction(file, source, int(number), int(address, 16), int(count))
            is_of_callee = False


def _lines(dump: str) -> Counter[Line]:
    """Returns the number of executed instructions, by cache line."""
    executions: Counter[Line] = Counter()
    for instruction in executed_instructions(dump):
        line = instruction.file, instruction.address // CACHE_LINE
        executions[line] += instruction.count
    return executions


@contextmanager
def counting_server(binary: Binary, setup: Setup) -> Iterator[Counting]:
    """Starts a server under callgrind."""
    with tempfile.TemporaryDirectory(prefix="ratelimit-") as directory:
        folder = Path(directory)
        wrapper = folder / "server"
        # A child that the server forks for a replica writes a file of its own when it ends.
        options = (
            "--tool=callgrind --dump-instr=yes --compress-pos=no"
            f" --callgrind-out-file={folder}/count.%p --log-file={folder}/log"
        )
        wrapper.write_text(
            f"#!/bin/sh\nunset {' '.join(PIPE_NAME_VARIABLES)}\n"
            f'exec valgrind {options} {binary.path} "$@"\n'
        )
        wrapper.chmod(0o755)
        quiet_setup = replace(setup, settings=setup.settings + RARE_PERIODIC_WORK)
        with serving(binary, quiet_setup, replace(binary, path=wrapper)) as server:
            yield Counting(server, folder)
            server.stop()


def _count(counting: Counting, call: Call) -> Count:
    """Counts the instructions per call on one server."""
    # A script takes ten times as long.
    warm_up, counted_calls = (100, 200) if call.is_lua else (500, 1_000)
    server = counting.server
    server.admin.flushall()
    prepare(server, call)
    with Pipe(server.port) as pipe:

        def run(start: int, count: int) -> Counter[Line]:
            for first in range(start, start + count, PIPELINE):
                batch = call.batch(first, PIPELINE)
                pipe.run(batch, call.lines * PIPELINE, call.reply_prefix)
            return counting.since_last_dump()

        run(0, warm_up)
        starts = range(warm_up, warm_up + STRETCHES * counted_calls, counted_calls)
        stretches = [run(start, counted_calls) for start in starts]
        calls = [sum(lines.values()) / counted_calls for lines in stretches]
        code_lines = [
            sum(count >= counted_calls for count in lines.values()) for lines in stretches
        ]
        return Count(min(calls), statistics.mean(calls), min(code_lines) * CACHE_LINE)
