"""Addresses in a sketch: how many calls of honest users are denied, by the size of the sketch.

A million addresses of 5 calls a minute each, and a thousand honest users of 40, under 50 calls a
minute for each: in the first minute, which finds an empty sketch, and in the second. `unseen` is
what RL.INFO estimates at the end of each. The server's clock is set, so that a minute takes as long
as its calls.
"""

import random
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support import binaries
from support.clock import Clock, build_library
from support.server import Server

LIMIT = ("50", "50", "1m")
MINUTE_US = 60_000_000
SIZES = ["512kb", "768kb", "1mb", "2mb"]


def pack(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(
        b"$%d\r\n%s\r\n" % (len(word), word) for word in words
    )


def minute(
    client: object, clock: Clock, size: str, addresses: int, honest: int, seed: int
) -> tuple:
    """Denied calls of honest users, the most that one address was granted, and calls in all."""
    draw = random.Random(seed)
    calls = [number for number in range(addresses) for _ in range(5)]
    calls += [-number for number in range(1, honest + 1) for _ in range(40)]
    draw.shuffle(calls)
    begin, denied = clock.now, 0
    connection = client.connection_pool.get_connection()
    reader = connection._sock.makefile("rb")
    batch = 2000
    for first in range(0, len(calls), batch):
        clock.set(begin + MINUTE_US * first // len(calls))
        chosen = calls[first : first + batch]
        items = (
            b"honest:%d" % -number if number < 0 else b"10.%d.%d" % (number >> 16, number & 0xFFFF)
            for number in chosen
        )
        words = [word.encode() for word in LIMIT]
        connection._sock.sendall(
            b"".join(
                pack(b"RL.SKETCH", b"k", item, *words, b"SIZE", size.encode()) for item in items
            )
        )
        for number in chosen:
            lines = [reader.readline() for _ in range(6)]
            denied += number < 0 and lines[1] == b":0\r\n"
    reader.close()
    client.connection_pool.release(connection)
    clock.set(begin + MINUTE_US)
    return denied, len(calls)


def main() -> None:
    addresses, honest = (int(word) for word in (sys.argv[1:3] or ("1000000", "1000")))
    sizes = sys.argv[3:] or SIZES
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock(build_library(Path(folder)), Path(folder) / "clock")
        print("size, minute, honest calls denied, unseen_denied, filled, MEMORY USAGE")
        for size in sizes:
            clock.reset()
            with Server(binaries.chosen(), clock=clock) as server, server.client() as client:
                for number in (1, 2):
                    denied, _ = minute(client, clock, size, addresses, honest, number)
                    told = client.execute_command("RL.INFO", "k")
                    told = dict(zip(told[::2], told[1::2], strict=True))
                    shares = [told[name].decode() for name in (b"unseen_denied", b"filled")]
                    used = client.memory_usage("k")
                    print(size, number, f"{denied} of {honest * 40}", *shares, used, flush=True)


if __name__ == "__main__":
    main()
