"""Four ways to decide by a token bucket: the same arithmetic, done in different places."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.calls import Script
from bench.load import Ask, Decision, lines
from bench.wire import pack


@dataclass(frozen=True)
class Bucket:
    """A burst, refilled at so many a second."""

    capacity: int
    refill: int

    def at_most(self, seconds: float) -> int:
        """What it may let in within so many seconds."""
        return math.floor(self.capacity + self.refill * seconds)


def native(bucket: Bucket, key: str) -> Callable[[], Decision]:
    words = ("RL.TOKENBUCKET", key, str(bucket.capacity), str(bucket.refill), "1s")
    return _single(pack(words))


def script(bucket: Bucket, key: str) -> Callable[[], Decision]:
    arguments = f"{bucket.capacity} {bucket.refill} 1 1"
    return _single(pack(Script.named("token_bucket").eval(key, arguments)))


def _single(request: bytes) -> Callable[[], Decision]:
    ask = Ask(request, 1, lines(6))

    def decide() -> Decision:
        return (yield ask).startswith(b"*5\r\n:1\r\n")

    return decide


class _TwoKeys:
    """A bucket whose tokens and whose time are a key each, computed by the client."""

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket = bucket
        self._names = f"{key}:tokens", f"{key}:time"
        self.read = Ask(pack(("MGET", *self._names)), 1, _two_values)
        self.watch = Ask(pack(("WATCH", *self._names)), 1, lines(1))

    def take(self, reply: bytes) -> list[bytes]:
        """The commands that write the bucket back with one less, or none if it is empty."""
        tokens, updated = _values(reply)
        now, capacity = time.time(), self._bucket.capacity
        if tokens is None or updated is None:
            left = float(capacity)
        else:
            left = min(capacity, tokens + max(0.0, now - updated) * self._bucket.refill)
        if left < 1:
            return []
        lives = str(round((capacity - left + 1) / self._bucket.refill * 1000) + 1000)
        values = (repr(left - 1), repr(now))
        return [
            pack(("SET", name, value, "PX", lives))
            for name, value in zip(self._names, values, strict=True)
        ]


def plain(bucket: Bucket, key: str) -> Callable[[], Decision]:
    """Reads, computes, writes back, whatever others have written since."""
    keys = _TwoKeys(bucket, key)

    def decide() -> Decision:
        writes = keys.take((yield keys.read))
        for write in writes:
            yield Ask(write, 1, lines(1))
        return bool(writes)

    return decide


def watched(bucket: Bucket, key: str) -> Callable[[], Decision]:
    """The same in a transaction, which fails if others have written since, and is tried again."""
    keys = _TwoKeys(bucket, key)
    unwatch = Ask(pack(("UNWATCH",)), 1, lines(1))
    multi, execute = pack(("MULTI",)), pack(("EXEC",))

    def decide() -> Decision:
        while True:
            yield keys.watch
            writes = keys.take((yield keys.read))
            if not writes:
                yield unwatch
                return False
            result = yield Ask(multi + b"".join(writes) + execute, 4, _executed)
            if not result.endswith(b"*-1\r\n"):
                return True

    return decide


# In the order they are shown in.
APPROACHES = {
    "RL.TOKENBUCKET": native,
    "Lua (EVALSHA)": script,
    "three plain commands": plain,
    "WATCH/MULTI/EXEC": watched,
}


def _values(reply: bytes) -> list[float | None]:
    """Of an MGET of two numbers."""
    rest = iter(reply.split(b"\r\n")[1:-1])
    return [None if length == b"$-1" else float(next(rest)) for length in rest]


def _two_values(reply: bytes) -> bool:
    return reply.count(b"\n") >= 5 - reply.count(b"$-1")


def _executed(reply: bytes) -> bool:
    """After the replies to MULTI and to both commands: nil, or both results."""
    return reply.endswith(b"*-1\r\n") or reply.count(b"\n") >= 6
