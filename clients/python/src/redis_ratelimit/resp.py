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


def encode_command(words: Sequence[Word]) -> bytes:
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
        self._incomplete = b""

    def feed(self, data: bytes) -> Iterator[Any]:
        """Adds input, and yields the replies that are complete. An error reply is yielded as a
        RefusedError, not raised.
        """
        if self._incomplete:
            data = self._incomplete + data
        offset, size = 0, len(data)
        try:
            while offset < size:
                value, offset = _value(data, offset)
                yield value
        except _PartialError:
            pass
        finally:
            self._incomplete = data[offset:]


def _value(data: bytes, offset: int) -> tuple[Any, int]:  # noqa: PLR0911  one return for each type
    """Decodes the value at an offset. Returns the value and the offset of its end."""
    end = data.find(b"\r\n", offset)
    if end < 0:
        raise _PartialError
    sign, line = data[offset : offset + 1], data[offset + 1 : end]
    offset = end + 2
    if sign == b":":
        return int(line), offset
    if sign in b"*~>":
        values: list[Any] = Push() if sign == b">" else []
        for _ in range(int(line)):
            value, offset = _value(data, offset)
            values.append(value)
        return (None if line == b"-1" else values), offset
    if sign in b"$=!":
        size = int(line)
        if size < 0:
            return None, offset
        if len(data) < offset + size + 2:
            raise _PartialError
        raw = data[offset : offset + size]
        offset += size + 2
        if sign == b"!":
            return RefusedError(raw.decode(errors="backslashreplace")), offset
        return (raw[4:] if sign == b"=" else raw), offset
    if sign == b"+":
        return line, offset
    if sign == b"-":
        return RefusedError(line.decode(errors="backslashreplace")), offset
    return _resp3_value(sign, line, data, offset)


def _resp3_value(sign: bytes, line: bytes, data: bytes, offset: int) -> tuple[Any, int]:
    if sign in b"%|":
        entries = {}
        for _ in range(int(line)):
            name, offset = _value(data, offset)
            entries[name], offset = _value(data, offset)
        # An attribute (`|`) precedes the value that it describes.
        return (entries, offset) if sign == b"%" else _value(data, offset)
    if sign == b"_":
        return None, offset
    if sign == b"#":
        return line == b"t", offset
    if sign == b",":
        return float(line), offset
    if sign == b"(":
        return int(line), offset
    raise BrokenReplyError(f"no reply begins with {sign!r}")
