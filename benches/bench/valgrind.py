"""Instructions a call, as valgrind counts them.

They are the difference between two runs of different length, so that what a server does to start
and to end falls out. A busy machine does not change them. What does is the seed that each server
draws for its hash tables: a lookup compares the wrong key first if two share a bucket. On one
server in three, SET EX takes 8,520 instructions instead of 8,370 for that reason. Collisions only
ever add, so the result is the lowest count of several servers.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from bench.calls import Call, prepare
from bench.servers import serving
from bench.wire import Pipe
from support.binaries import Binary
from support.server import ServerError

# It counts the same as callgrind, and asks less of the processor: it does not follow calls.
COUNTING = "--tool=cachegrind --cache-sim=no --cachegrind-out-file=/dev/null"
PIPELINE = 100
SERVERS = 5
# Other programs start servers too, and a port that was free may be taken before this one is up.
TRIES = 3
# What the server does by the clock, whatever it is sent: as seldom as can be.
SELDOM = (("hz", "1"), ("dynamic-hz", "no"))


def is_there() -> bool:
    return shutil.which("valgrind") is not None


def instructions(binary: Binary, calls: Iterable[Call], servers: int = SERVERS) -> dict[str, float]:
    """Instructions a call, by the call's name."""
    by_name = {call.name: call for call in calls}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        # What differs from server to server is by the call, and so in the long run; but for what a
        # replica's sync takes.
        short = {
            name: [
                pool.submit(_total, binary, call, _short(call))
                for _ in range(servers if call.setup.replica else 1)
            ]
            for name, call in by_name.items()
        }
        long = {
            name: [pool.submit(_total, binary, call, _long(call)) for _ in range(servers)]
            for name, call in by_name.items()
        }
        return {
            name: (_least(long[name]) - _least(short[name])) / (_long(call) - _short(call))
            for name, call in by_name.items()
        }


def _least(counts: list[Future[int]]) -> int:
    return min(count.result() for count in counts)


# A script takes ten times as long.
def _short(call: Call) -> int:
    return 200 if call.is_lua else 1_000


def _long(call: Call) -> int:
    return 1_000 if call.is_lua else 9_000


def _total(binary: Binary, call: Call, calls: int) -> int:
    for _ in range(TRIES - 1):
        try:
            return _total_once(binary, call, calls)
        except ServerError as error:
            if "Address already in use" not in str(error):
                raise
    return _total_once(binary, call, calls)


def _total_once(binary: Binary, call: Call, calls: int) -> int:
    """All instructions of a server that got so many calls."""
    with tempfile.TemporaryDirectory(prefix="ratelimit-") as directory:
        count, wrapper = Path(directory) / "count", Path(directory) / "server"
        options = f"{COUNTING} --log-file={count}"
        wrapper.write_text(f'#!/bin/sh\nexec valgrind {options} {binary.path} "$@"\n')
        wrapper.chmod(0o755)
        setup = replace(call.setup, settings=call.setup.settings + SELDOM)
        with serving(binary, setup, replace(binary, path=wrapper)) as server:
            prepare(server, call)
            with Pipe(server.port) as pipe:
                for first in range(0, calls, PIPELINE):
                    batch = call.batch(first, PIPELINE)
                    pipe.run(batch, call.lines * PIPELINE, call.begins)
            server.stop()
        # Of every process: one that the server forks for its replica has a count too, a lower one.
        counts = re.findall(r"I +refs: +([\d,]+)", count.read_text())
        return max(int(number.replace(",", "")) for number in counts)
