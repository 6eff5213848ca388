"""Files of a server that keeps policies."""

from collections.abc import Callable

from support.server import Server

Start = Callable[..., Server]
AOF = {"appendonly": "yes", "appendfsync": "always"}
WITHOUT_PREAMBLE = AOF | {"aof_use_rdb_preamble": "no"}
