"""The clients that a limiter sends through: those of redis-py and valkey-py."""

from __future__ import annotations

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
    for kind in type(client).__mro__:
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
    own = {**pool.connection_kwargs, **settings(library, timeout)}
    own.update(retry_on_timeout=False, retry_on_error=[])
    if "path" in own:  # a Unix socket
        del own["socket_connect_timeout"]
    kind = getattr(library, "Redis", None) or library.Valkey
    return kind(
        connection_pool=library.BlockingConnectionPool(
            connection_class=pool.connection_class,
            max_connections=min(pool.max_connections, MOST_CONNECTIONS),
            timeout=timeout,
            **own,
        )
    )


def from_url(url: str, library: ModuleType, timeout: float | None, *, cluster: bool) -> Any:
    if cluster:
        kind = getattr(library, "RedisCluster", None) or library.ValkeyCluster
        return kind.from_url(url, **settings(library, timeout))
    return (getattr(library, "Redis", None) or library.Valkey).from_url(url)


def library_for(url: str, *, is_async: bool) -> ModuleType:
    """That of the URL: valkey:// is valkey-py's, all others are redis-py's."""
    root = "valkey" if url.startswith("valkey") else "redis"
    return import_module(f"{root}.asyncio" if is_async else root)


def node_for(client: Any, key: Key, *, replica: bool) -> Any:
    """The node of a cluster that has the key, or a replica of it if there is one."""
    if replica and getattr(client, "read_from_replicas", False):
        found = client.get_node_from_key(key, replica=True)
        if found is not None:
            return found
    return client.get_node_from_key(key)
