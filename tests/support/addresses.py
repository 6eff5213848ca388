"""Traffic by addresses in a sketch, to measure wrongly denied calls by the size of the sketch.

Each address calls 5 times a minute, and a thousandth as many honest users 40 times, under a limit
of 50 calls a minute: in the first minute, with an empty sketch, and in the second. Greedy users, a
tenth of the number of honest users, call 200 times. The server's clock is set, so a minute takes
only as long as its calls.
"""

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from socket import socket as Socket  # noqa: N812

from redis import Redis

from support.clock import Clock

CAPACITY = REFILL = 50
MINUTE_US = 60_000_000
BATCH = 2000
# Calls in a minute of an address, an honest user and a greedy user.
OF_ADDRESS, OF_HONEST, OF_GREEDY = 5, 40, 200
CALL = (
    b"*8\r\n$9\r\nRL.SKETCH\r\n$1\r\nk\r\n$%d\r\n%b\r\n"
    b"$2\r\n50\r\n$2\r\n50\r\n$2\r\n1m\r\n$4\r\nSIZE\r\n$%d\r\n%b\r\n"
)
# Lines of a reply.
LINES = 6


@dataclass(frozen=True)
class Minute:
    """Outcome of a minute's calls."""

    addresses: int
    size: str
    number: int
    honest_calls: int
    honest_denied: int
    # Values of RL.INFO at the end of the minute.
    unseen_denied: float
    filled: float
    memory: int


class Traffic:
    """Calls of each minute in a random order, and the times at which greedy users were granted
    units.
    """

    def __init__(self, addresses: int, size: str) -> None:
        self.addresses, self.size = addresses, size
        self.honest = max(addresses // 1000, 1)
        self._greedy = max(self.honest // 10, 1)
        self._granted: defaultdict[bytes, list[int]] = defaultdict(list)

    def calls(self, seed: int) -> Iterator[list[bytes]]:
        """Yields the items of a minute in batches."""
        items = [
            item
            for kind, count, times in (
                (b"address", self.addresses, OF_ADDRESS),
                (b"honest", self.honest, OF_HONEST),
                (b"greedy", self._greedy, OF_GREEDY),
            )
            for item in (b"%b:%d" % (kind, number) for number in range(count))
            for _ in range(times)
        ]
        random.Random(seed).shuffle(items)
        for first in range(0, len(items), BATCH):
            yield items[first : first + BATCH]

    def minute(self, client: Redis, clock: Clock, number: int) -> Minute:
        size, begin, denied = self.size.encode(), clock.now, 0
        connection = client.connection_pool.get_connection()
        batches = list(self.calls(number))
        for number_of_batch, items in enumerate(batches):
            clock.set(begin + MINUTE_US * number_of_batch // len(batches))
            calls = [CALL % (len(item), item, len(size), size) for item in items]
            for item, allowed in zip(items, _allowed(connection._sock, calls), strict=True):
                if not allowed:
                    denied += item[:1] == b"h"
                elif item[:1] == b"g":
                    self._granted[item].append(clock.now)
        client.connection_pool.release(connection)
        clock.set(begin + MINUTE_US)
        reply = client.execute_command("RL.INFO", "k")
        reply = dict(zip(reply[::2], reply[1::2], strict=True))
        unseen, filled = (float(reply[name]) for name in (b"unseen_denied", b"filled"))
        calls = self.honest * OF_HONEST
        memory = client.memory_usage("k")
        return Minute(self.addresses, self.size, number, calls, denied, unseen, filled, memory)

    def check_greedy(self) -> int:
        """Returns the number of greedy users that were granted units. Raises if one of them got
        more than its limit.
        """
        for item, granted in self._granted.items():
            level, before = 0.0, granted[0]
            for at in granted:
                level = max(level - (at - before) * REFILL / MINUTE_US, 0) + 1
                before = at
                if level > CAPACITY + 0.001:
                    raise AssertionError(f"{item!r} has been granted {level} at once")
        return len(self._granted)


def _allowed(socket: Socket, calls: list[bytes]) -> list[bool]:
    """Sends all calls at once. Returns for each call if it was allowed."""
    socket.sendall(b"".join(calls))
    read = bytearray()
    while read.count(b"\n") < LINES * len(calls):
        read += socket.recv(1 << 20)
    lines = bytes(read).split(b"\r\n")
    return [line == b":1" for line in lines[1 : LINES * len(calls) : LINES]]
