"""RESP, the protocol of Redis and Valkey: encoder of commands, decoder of replies. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from redis_ratelimit.quantities import Word


class RefusedError(Exception):
    """Error reply of the server, as it was sent."""


class Push(list[Any]):
    """Push message, which the server sends without a command."""


class BrokenReplyError(ConnectionError):
    """Malformed reply, after which the connection is unusable."""


class _PartialError(Exception):
    """Incomplete reply."""


def packed(words: Sequence[Word]) -> bytes:
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        raw = word.encode() if isinstance(word, str) else word
        if not isinstance(raw, bytes):
            raise TypeError(f"a word of a call must be text or bytes, not {word!r}")
        parts.append(b"$%d\r\n%b\r\n" % (len(raw), raw))
    return b"".join(parts)


class Replies:
    """Incremental decoder of replies."""

    def __init__(self) -> None:
        self._rest = b""

    def of(self, data: bytes) -> Iterator[Any]:
        """Yields the replies that are complete with `data`. An error reply is yielded as a
        RefusedError, not raised.
        """
        if self._rest:
            data = self._rest + data
        at, size = 0, len(data)
        try:
            while at < size:
                value, at = _value(data, at)
                yield value
        except _PartialError:
            pass
        finally:
            self._rest = data[at:]


def _value(data: bytes, at: int) -> tuple[Any, int]:  # noqa: PLR0911  one return for each type
    end = data.find(b"\r\n", at)
    if end < 0:
        raise _PartialError
    sign, line = data[at : at + 1], data[at + 1 : end]
    at = end + 2
    if sign == b":":
        return int(line), at
    if sign in b"*~>":
        values: list[Any] = Push() if sign == b">" else []
        for _ in range(int(line)):
            value, at = _value(data, at)
            values.append(value)
        return (None if line == b"-1" else values), at
    if sign in b"$=!":
        size = int(line)
        if size < 0:
            return None, at
        if len(data) < at + size + 2:
            raise _PartialError
        raw = data[at : at + size]
        at += size + 2
        if sign == b"!":
            return RefusedError(raw.decode(errors="backslashreplace")), at
        return (raw[4:] if sign == b"=" else raw), at
    if sign == b"+":
        return line, at
    if sign == b"-":
        return RefusedError(line.decode(errors="backslashreplace")), at
    return _resp3_value(sign, line, data, at)


def _resp3_value(sign: bytes, line: bytes, data: bytes, at: int) -> tuple[Any, int]:
    if sign in b"%|":
        found = {}
        for _ in range(int(line)):
            name, at = _value(data, at)
            found[name], at = _value(data, at)
        # An attribute precedes the value that it describes.
        return (found, at) if sign == b"%" else _value(data, at)
    if sign == b"_":
        return None, at
    if sign == b"#":
        return line == b"t", at
    if sign == b",":
        return float(line), at
    if sign == b"(":
        return int(line), at
    raise BrokenReplyError(f"no reply begins with {sign!r}")
