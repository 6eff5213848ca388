"""Traffic of many addresses on one sketch, to measure how the number of wrongly denied calls
depends on the size of the sketch.

The limit is 50 calls a minute. Each address calls 5 times a minute. For 1,000 addresses there is an
honest user, who calls 40 times; for ten honest users there is a greedy user, who calls 200 times.
The server's clock is set, so a minute takes only as long as its calls.
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
ADDRESS_CALLS, HONEST_CALLS, GREEDY_CALLS = 5, 40, 200
CALL = (
    b"*8\r\n$9\r\nRL.SKETCH\r\n$1\r\nk\r\n$%d\r\n%b\r\n"
    b"$2\r\n50\r\n$2\r\n50\r\n$2\r\n1m\r\n$4\r\nSIZE\r\n$%d\r\n%b\r\n"
)
# Lines of the reply to a call.
REPLY_LINES = 6


@dataclass(frozen=True)
class Minute:
    """Outcome of a minute's calls."""

    addresses: int
    size: str
    # The first minute, with an empty sketch, is number 1.
    number: int
    honest_calls: int
    honest_denied: int
    # State of the sketch at the end of the minute, from RL.INFO and MEMORY USAGE.
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

    def item_batches(self, seed: int) -> Iterator[list[bytes]]:
        """Yields the items of a minute's calls in batches, in a random order for the seed."""
        items = [
            item
            for kind, item_count, calls_per_item in (
                (b"address", self.addresses, ADDRESS_CALLS),
                (b"honest", self.honest, HONEST_CALLS),
                (b"greedy", self._greedy, GREEDY_CALLS),
            )
            for item in (b"%b:%d" % (kind, number) for number in range(item_count))
            for _ in range(calls_per_item)
        ]
        random.Random(seed).shuffle(items)
        for first in range(0, len(items), BATCH):
            yield items[first : first + BATCH]

    def minute(self, client: Redis, clock: Clock, number: int) -> Minute:
        size, begin, honest_denied = self.size.encode(), clock.now, 0
        connection = client.connection_pool.get_connection()
        batches = list(self.item_batches(number))
        for batch_index, items in enumerate(batches):
            clock.set(begin + MINUTE_US * batch_index // len(batches))
            calls = [CALL % (len(item), item, len(size), size) for item in items]
            for item, allowed in zip(items, _allowed(connection._sock, calls), strict=True):
                if not allowed:
                    honest_denied += item.startswith(b"honest")
                elif item.startswith(b"greedy"):
                    self._granted[item].append(clock.now)
        client.connection_pool.release(connection)
        clock.set(begin + MINUTE_US)
        reply = client.execute_command("RL.INFO", "k")
        reply = dict(zip(reply[::2], reply[1::2], strict=True))
        return Minute(
            self.addresses,
            self.size,
            number,
            honest_calls=self.honest * HONEST_CALLS,
            honest_denied=honest_denied,
            unseen_denied=float(reply[b"unseen_denied"]),
            filled=float(reply[b"filled"]),
            memory=client.memory_usage("k"),
        )

    def check_greedy(self) -> int:
        """Returns the number of greedy users that were granted units. Raises if one of them got
        more than its limit.
        """
        for item, grant_times in self._granted.items():
            level, last_grant = 0.0, grant_times[0]
            for grant_time in grant_times:
                level = max(level - (grant_time - last_grant) * REFILL / MINUTE_US, 0) + 1
                last_grant = grant_time
                if level > CAPACITY + 0.001:
                    raise AssertionError(f"{item!r} has been granted {level} at once")
        return len(self._granted)


def _allowed(socket: Socket, calls: list[bytes]) -> list[bool]:
    """Sends all calls at once. Returns for each call if it was allowed."""
    socket.sendall(b"".join(calls))
    received = bytearray()
    while received.count(b"\n") < REPLY_LINES * len(calls):
        received += socket.recv(1 << 20)
    lines = bytes(received).split(b"\r\n")
    # The line after the length of the reply is 1 for an allowed call.
    return [line == b":1" for line in lines[1 : REPLY_LINES * len(calls) : REPLY_LINES]]
