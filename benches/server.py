"""RL.TOKENBUCKET beside SET EX, INCR and a Lua token bucket, on one server in one run.

Ratios count, not absolute times. Time a call is taken in rounds, each command once a round, and the
median is shown; instructions a call are callgrind's, the difference of two runs of different
length, and repeat to the percent.
"""

import argparse
import contextlib
import os
import re
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from redis import Connection

from support import binaries
from support.binaries import Binary
from support.server import Server

PIPELINE = 100

# The token bucket that is copied most: time from the server, state in a hash, expiry once full.
LUA_BUCKET = """
local capacity, refill = tonumber(ARGV[1]), tonumber(ARGV[2])
local period, cost = tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local state = redis.call('HMGET', KEYS[1], 'tokens', 'updated')
local tokens, updated = tonumber(state[1]) or capacity, tonumber(state[2]) or now
local rate = refill / period
tokens = math.min(capacity, tokens + math.max(0, now - updated) * rate)
local allowed, wait = 0, 0
if tokens >= cost then
  allowed, tokens = 1, tokens - cost
else
  wait = math.ceil((cost - tokens) / rate * 1000)
end
redis.call('HSET', KEYS[1], 'tokens', tokens, 'updated', now)
redis.call('PEXPIRE', KEYS[1], math.ceil((capacity - tokens) / rate * 1000) + 1000)
return {allowed, capacity, math.floor(tokens), wait, math.ceil((capacity - tokens) / rate * 1000)}
"""


@dataclass(frozen=True)
class Row:
    """A command under test. Its key is always the same: a hot one."""

    name: str
    words: tuple[str, ...]
    lines: int
    # The instructions that it may take, as a multiple of SET EX's.
    goal: str = ""


def rows(lua: str) -> list[Row]:
    bucket = ("1000000", "1000000", "1s")
    return [
        Row("SET key value EX 60", ("SET", "set", "value", "EX", "60"), 1, "1.00"),
        Row("INCR", ("INCR", "counter"), 1),
        Row("RL.TOKENBUCKET admitted", ("RL.TOKENBUCKET", "key", *bucket), 6, "<= 0.80"),
        Row("RL.TOKENBUCKET denied", ("RL.TOKENBUCKET", "full", "10", "10", "1d"), 6, "<= 0.70"),
        Row("RL.PEEK", ("RL.PEEK", "key", "TOKENBUCKET", *bucket), 6, "<= 0.70"),
        Row(
            "Lua bucket (EVALSHA)",
            ("EVALSHA", lua, "1", "lua", "1000000", "1000000", "1", "1"),
            6,
        ),
    ]


class Driver:
    """One connection that sends a command again and again, many at a time."""

    def __init__(self, server: Server) -> None:
        self._socket = socket.create_connection(("127.0.0.1", server.port))
        self._pack = Connection().pack_command

    def run(self, row: Row, calls: int) -> None:
        one = b"".join(self._pack(*row.words))
        for _ in range(calls // PIPELINE):
            self._socket.sendall(one * PIPELINE)
            missing = row.lines * PIPELINE
            while missing:
                received = self._socket.recv(2**20)
                if received.startswith(b"-"):
                    raise SystemExit(f"{row.name}: {received[:200]!r}")
                missing -= received.count(b"\n")


def load_script(server: Server) -> str:
    return server.client(decode_responses=True).script_load(LUA_BUCKET)


def cpu_seconds(server: Server) -> float:
    """What the server has used so far."""
    info = server.client().info("cpu")
    return info["used_cpu_user"] + info["used_cpu_sys"]


def times(binary: Binary, calls: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Nanoseconds a call by the clock, and of the server's processor."""
    with Server(binary) as server:
        driver, table = Driver(server), rows(load_script(server))
        found: dict[str, list[tuple[float, float]]] = {row.name: [] for row in table}
        for row in table:
            driver.run(row, calls // 10)
        for _ in range(rounds):
            for row in table:
                cpu, start = cpu_seconds(server), time.perf_counter()
                driver.run(row, calls)
                wall = time.perf_counter() - start
                found[row.name].append(
                    (wall / calls * 1e9, (cpu_seconds(server) - cpu) / calls * 1e9)
                )
        return {
            name: tuple(map(statistics.median, zip(*pairs, strict=True)))
            for name, pairs in found.items()
        }


@contextlib.contextmanager
def under_callgrind(binary: Binary) -> Iterator[tuple[Binary, Path]]:
    """The same server, which on its end leaves a count of its instructions in a file."""
    with tempfile.TemporaryDirectory(prefix="ratelimit-") as directory:
        count, wrapper = Path(directory) / "count", Path(directory) / "server"
        options = f"--tool=callgrind --callgrind-out-file=/dev/null --log-file={count}"
        wrapper.write_text(f'#!/bin/sh\nexec valgrind {options} {binary.path} "$@"\n')
        wrapper.chmod(0o755)
        yield replace(binary, path=wrapper), count


def instructions(binary: Binary, short: int, long: int) -> dict[str, float]:
    """Instructions a call."""
    found = {}
    with under_callgrind(binary) as (wrapped, count):

        def total(name: str, calls: int) -> int:
            with Server(wrapped) as server:
                row = next(row for row in rows(load_script(server)) if row.name == name)
                if "PEEK" in name:
                    Driver(server).run(
                        next(r for r in rows("") if r.name.endswith("admitted")), PIPELINE
                    )
                Driver(server).run(row, calls)
                server.stop()
            return int(re.search(r"Collected : (\d+)", count.read_text())[1])

        for row in rows(""):
            found[row.name] = (total(row.name, long) - total(row.name, short)) / (long - short)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=200_000, help="calls a command and round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-instructions", action="store_true", help="leave callgrind out")
    arguments = parser.parse_args()
    binary = binaries.chosen()
    print(f"{binary}: one connection, pipelines of {PIPELINE}, one hot key; {os.cpu_count()} CPUs")

    timed = times(binary, arguments.calls, arguments.rounds)
    counted: dict[str, float] = {}
    if arguments.no_instructions or not shutil.which("valgrind"):
        print(
            "instructions are not counted"
            + ("" if shutil.which("valgrind") else ": there is no valgrind on the PATH")
        )
    else:
        counted = instructions(binary, 2_000, 12_000)

    base = next(iter(timed))
    print(
        f"{'':26}{'calls/s':>10}{'server ns':>11}{'ratio':>7}{'instructions':>14}{'ratio':>7}  goal"
    )
    for row in rows(""):
        wall, cpu = timed[row.name]
        line = f"{row.name:26}{1e9 / wall:10,.0f}{cpu:11.0f}{cpu / timed[base][1]:7.2f}"
        if counted:
            line += (
                f"{counted[row.name]:14,.0f}{counted[row.name] / counted[base]:7.2f}  {row.goal}"
            )
        print(line)
    if counted:
        lua = counted["Lua bucket (EVALSHA)"] / counted["RL.TOKENBUCKET admitted"]
        print(
            f"the Lua bucket takes {lua:.1f} times the instructions of RL.TOKENBUCKET  goal >= 12"
        )


if __name__ == "__main__":
    main()
