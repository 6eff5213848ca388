"""Calls on a sketch: names of items, and the smallest size."""

import struct
from collections.abc import Callable

from support.server import Server

Start = Callable[..., Server]
AOF = {"appendonly": "yes", "appendfsync": "always"}
# With the smallest size, items soon share cells.
SMALL = ("SIZE", "64kb")


def item(number: int) -> bytes:
    return struct.pack(">I", number)
