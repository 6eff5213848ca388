"""Instructions a call, as callgrind counts them.

They are the difference between two runs of different length, so that what a server does to start
and to end falls out. They repeat to the percent, on a busy machine too, but for chance: where two
keys are in one place of a server's table, each look for the one passes by the other. So they are
the median of several servers.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import median

from bench.calls import Call, prepare
from bench.servers import serving
from bench.wire import Pipe
from support.binaries import Binary
from support.server import ServerError

PIPELINE = 100
SERVERS = 3
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
        counts = {
            name: [pool.submit(_count, binary, call) for _ in range(servers)]
            for name, call in by_name.items()
        }
        return {name: median(each.result() for each in found) for name, found in counts.items()}


def _count(binary: Binary, call: Call) -> float:
    # A script takes ten times as long.
    short, long = (200, 1_800) if call.is_lua else (1_000, 17_000)
    return (_total(binary, call, long) - _total(binary, call, short)) / (long - short)


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
        options = f"--tool=callgrind --callgrind-out-file=/dev/null --log-file={count}"
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
        return max(map(int, re.findall(r"Collected : (\d+)", count.read_text())))
