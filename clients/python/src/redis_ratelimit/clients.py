"""The clients that a limiter sends through: those of redis-py and valkey-py."""

from __future__ import annotations

import threading
from functools import partial
from importlib import import_module
from inspect import iscoroutinefunction
from types import ModuleType
from typing import Any, Protocol

from redis_ratelimit.limits import Key

# A burst of calls waits its turn on so many connections, rather than for more of them.
MOST_CONNECTIONS = 50


class Client(Protocol):
    """A `redis.Redis`, `redis.RedisCluster`, `valkey.Valkey` or `valkey.ValkeyCluster`, or their
    like for asyncio.
    """

    def execute_command(self, *words: Any, **options: Any) -> Any: ...


def library(client: Client, *, is_async: bool) -> ModuleType:
    """redis or valkey, or their part for asyncio: whatever the client is of, or inherits from."""
    if iscoroutinefunction(type(client).execute_command) != is_async:
        here, there = ("asyncio", "Limiter") if is_async else ("no asyncio", "aio.Limiter")
        raise TypeError(f"a client for {here} is needed; for this one there is {there}")
    known = client.kind if isinstance(client, LateCluster) else type(client)
    for kind in known.__mro__:
        root = kind.__module__.partition(".")[0]
        if root in {"redis", "valkey"}:
            return import_module(f"{root}.asyncio" if is_async else root)
    raise TypeError(f"a client of redis-py or valkey-py is needed, not {type(client)!r}")


def exceptions_of(library: ModuleType) -> ModuleType:
    return import_module(f"{library.__name__.partition('.')[0]}.exceptions")


def is_cluster(client: Client) -> bool:
    return hasattr(client, "get_node_from_key")


def settings(library: ModuleType, timeout: float | None) -> dict[str, Any]:
    """Of connections that wait no longer than this, and send nothing twice: which calls may be, the
    limiter knows.
    """
    root = library.__name__.partition(".")[0]
    retry = import_module(f"{library.__name__}.retry").Retry
    nothing = import_module(f"{root}.backoff").NoBackoff
    return {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": retry(nothing(), 0),
    }


def patient(client: Any, library: ModuleType, timeout: float | None) -> Any:
    """A client of the same server, with the same settings but for time limits and retries, and with
    connections of its own.
    """
    pool = client.connection_pool
    # But for what redis-py 8 keeps there of the pool itself: the patience to go back to.
    kept = {
        name: value
        for name, value in pool.connection_kwargs.items()
        if not name.startswith("orig_")
    }
    own = {**kept, **settings(library, timeout)}
    own.update(retry_on_timeout=False, retry_on_error=[])
    if "path" in own:  # a Unix socket
        del own["socket_connect_timeout"]
    pool = library.BlockingConnectionPool(
        connection_class=pool.connection_class,
        max_connections=min(pool.max_connections, MOST_CONNECTIONS),
        timeout=timeout,
        **own,
    )
    # Closing it closes the pool, too.
    return _kind(library, "").from_pool(pool)


class LateCluster:
    """A cluster's client, made by the first call: redis-py's connects when it is made, and the
    cluster may be away at the start.
    """

    def __init__(self, kind: Any, url: str, settings: dict[str, Any]) -> None:
        self.kind = kind
        self._make = partial(kind.from_url, url, **settings)
        self._lock = threading.Lock()
        self.client: Any = None

    def made(self) -> Any:
        if self.client is None:
            with self._lock:
                if self.client is None:
                    self.client = self._make()
        return self.client

    def execute_command(self, *words: Any, **options: Any) -> Any:
        return self.made().execute_command(*words, **options)

    def get_node_from_key(self, key: Key, replica: bool = False) -> Any:
        return self.made().get_node_from_key(key, replica=replica)

    def close(self) -> None:
        if self.client is not None:
            self.client.close()


def from_url(url: str, timeout: float, *, cluster: bool, is_async: bool) -> Any:
    """A client by a URL as redis-py and valkey-py take it: valkey:// is the latter's."""
    root = "valkey" if url.startswith("valkey") else "redis"
    library = import_module(f"{root}.asyncio" if is_async else root)
    if not cluster:
        return _kind(library, "").from_url(url)
    kind = _kind(library, "Cluster")
    if is_async:
        # How long a call takes in all, the limiter knows.
        return kind.from_url(url, **settings(library, None))
    return LateCluster(kind, url, settings(library, timeout))


def _kind(library: ModuleType, what: str) -> Any:
    name = "Valkey" if library.__name__.startswith("valkey") else "Redis"
    return getattr(library, name + what)


def node_for(client: Any, key: Key, *, replica: bool) -> Any:
    """The node of a cluster that has the key, or a replica of it if there is one."""
    found = client.get_node_from_key(key, replica=True) if replica else None
    return client.get_node_from_key(key) if found is None else found
