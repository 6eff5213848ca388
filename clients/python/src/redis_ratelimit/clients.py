"""Clients of redis-py and valkey-py, through which a limiter sends its calls."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from importlib import import_module
from inspect import iscoroutinefunction
from types import ModuleType
from typing import Any, Protocol
from urllib.parse import urlsplit

from redis_ratelimit import forks
from redis_ratelimit.quantities import Key

# Upper bound of pooled connections. A larger burst of calls waits for a free connection.
MAX_CONNECTIONS = 50

# Upper bound of connections for blocking calls, which is never reached: a call that waited for a
# connection would lose its place in the server's queue.
UNLIMITED_CONNECTIONS = 2**31
# TCP keepalive, which detects a lost peer while a blocking call sends nothing: first probe after 30
# seconds, then every 10, and the connection is lost after three.
KEEPALIVE_OPTIONS = {
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
}
# Longest single wait for input, in seconds: some systems store it as 32 bits of milliseconds.
LONGEST_POLL = 86400.0

# Longest pause, in seconds, between attempts to find a key that moves to another node.
MOVING_RETRY = 0.1


def enable_keepalive(connection: Any) -> None:
    """Enables TCP keepalive on a connection that is idle for long."""
    if connection.family in {socket.AF_INET, socket.AF_INET6}:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE_OPTIONS.items():
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


class Client(Protocol):
    """Client of redis-py or valkey-py: `redis.Redis`, `redis.RedisCluster`, `valkey.Valkey`,
    `valkey.ValkeyCluster`, or one of their counterparts for asyncio.
    """

    def execute_command(self, *words: Any, **options: Any) -> Any: ...


def library(client: Client, *, is_async: bool) -> ModuleType:
    """Returns the library that the class of a client comes from: redis, valkey, or their asyncio
    part.
    """
    if iscoroutinefunction(type(client).execute_command) != is_async:
        needed, suitable = ("asyncio", "Limiter") if is_async else ("no asyncio", "aio.Limiter")
        raise TypeError(f"a client for {needed} is needed; for this one there is {suitable}")
    client_type = client.kind if isinstance(client, LazyCluster) else type(client)
    for kind in client_type.__mro__:
        root = kind.__module__.partition(".")[0]
        if root in {"redis", "valkey"}:
            return import_module(f"{root}.asyncio" if is_async else root)
    raise TypeError(f"a client of redis-py or valkey-py is needed, not {type(client)!r}")


def exceptions_of(library: ModuleType) -> ModuleType:
    return import_module(f"{library.__name__.partition('.')[0]}.exceptions")


def is_cluster(client: Client) -> bool:
    return hasattr(client, "get_node_from_key")


def settings(library: ModuleType, timeout: float | None) -> dict[str, Any]:
    """Returns options of a connection with this timeout and without retries: only the limiter knows
    which calls may be resent.
    """
    root = library.__name__.partition(".")[0]
    retry = import_module(f"{library.__name__}.retry").Retry
    no_backoff = import_module(f"{root}.backoff").NoBackoff
    return {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": retry(no_backoff(), 0),
    }


def blocking_client(source: Any, library: ModuleType, timeout: float | None) -> Any:
    """Returns a client for blocking calls to the server of `source`, a pool or a node of a cluster.
    Each call has a connection of its own. With threads, it passes its `reply_timeout` in seconds.
    """
    kwargs = _connection_kwargs(source, library, timeout)
    if "path" not in kwargs:
        kwargs["socket_keepalive"] = True
        if not isinstance(kwargs.get("socket_keepalive_options"), dict):
            kwargs["socket_keepalive_options"] = KEEPALIVE_OPTIONS
    pool = library.ConnectionPool(
        connection_class=source.connection_class, max_connections=UNLIMITED_CONNECTIONS, **kwargs
    )
    kind = _client_class(library, "")
    is_async = iscoroutinefunction(kind.execute_command)
    return (kind if is_async else _with_reply_timeout(kind, library)).from_pool(pool)


def connection_factory(source: Any, library: ModuleType, timeout: float | None) -> Any:
    """Returns a function that creates a connection with the settings of `source`, a pool or a node
    of a cluster. `timeout` bounds each step of connecting and the handshake.
    """
    return partial(source.connection_class, **_connection_kwargs(source, library, timeout))


def still_connecting_message(make: Any) -> str:
    """Returns the error text for a connection of `make` that is not established in time. A server
    without TLS does not answer a TLS handshake.
    """
    kind = getattr(getattr(make, "func", make), "__name__", "")
    if "SSL" in kind:
        return "still connecting by TLS: does the server speak TLS at this port?"
    return "still connecting"


def configured_address(client: Any) -> str:
    """Returns the address that the client was configured with."""
    if isinstance(client, LazyCluster):
        return client.address
    if is_cluster(client):
        nodes = client.get_nodes() or getattr(client, "startup_nodes", None) or [None]
        return str(getattr(nodes[0], "name", "the cluster"))
    settings = client.connection_pool.connection_kwargs
    if "path" in settings:
        return str(settings["path"])
    pool = settings.get("connection_pool")
    if pool is not None and hasattr(pool, "service_name"):
        return str(pool.service_name)
    return f"{settings.get('host', 'localhost')}:{settings.get('port', 6379)}"


class BaseTransport:
    """Common base of the transports for threads and for asyncio."""

    is_async: bool

    def __init__(
        self,
        client: Any,
        *,
        replicas: bool,
        timeout: float,
        connect_timeout: float,
        clock: Callable[[], float],
        may_have_moved: Callable[[Exception], bool],
        is_from_former_primary: Callable[[BaseException], bool],
        on_invalidation: Callable[[bytes | None], None],
    ) -> None:
        self.library = library(client, is_async=self.is_async)
        # Keeps the client's pool alive: connections behind Sentinel ask the pool for the primary.
        self.client = client
        self.is_cluster = is_cluster(client)
        self.replicas = replicas
        self.timeout = timeout
        self.connect_timeout = connect_timeout
        self.clock = clock
        self.may_have_moved = may_have_moved
        self.is_from_former_primary = is_from_former_primary
        # Called with a key that the server reports as changed, or None if any key may have changed.
        self.on_invalidation = on_invalidation
        self.address = configured_address(client)
        if not self.is_cluster:
            self.connect = self.connect_to(client.connection_pool)
        # Clients that are closed with the limiter.
        self.own_clients: list[Any] = []
        # Clients for blocking calls by node.
        self._blocking_clients: dict[str, Any] = {}

    def connect_to(self, source: Any) -> Any:
        """Returns a function that creates a connection to the server of `source`, a pool or a node
        of a cluster.
        """
        # With asyncio, one timeout spans all steps.
        return connection_factory(
            source, self.library, None if self.is_async else self.connect_timeout
        )

    def blocking_client_at(self, name: str, source: Any) -> Any:
        """Returns the client for blocking calls to a node; `source` is the node or its pool."""
        client = self._blocking_clients.get(name)
        if client is None:
            created = blocking_client(source, self.library, None if self.is_async else self.timeout)
            # Another thread may have created one meanwhile.
            client = self._blocking_clients.setdefault(name, created)
            if client is created:
                self.own_clients.append(created)
        return client

    def node_of(self, call: Any) -> str:
        """Returns the node that a call goes to, as far as known without I/O; "" for a single
        server.
        """
        if not self.is_cluster:
            return ""
        client = self.client.client if isinstance(self.client, LazyCluster) else self.client
        try:
            return str(node_for(client, call.key, replica=call.is_peek and self.replicas).name)
        except Exception:
            return ""


def _connection_kwargs(source: Any, library: ModuleType, timeout: float | None) -> dict[str, Any]:
    """Returns the settings of connections to the server of `source`, with this timeout and without
    retries.
    """
    # redis-py 8 also keeps the pool's original timeouts there, as orig_*.
    original = {
        name: value
        for name, value in source.connection_kwargs.items()
        if not name.startswith("orig_")
    }
    kwargs = {**original, **settings(library, timeout)}
    kwargs.update(retry_on_timeout=False, retry_on_error=[])
    if "path" in kwargs:  # a Unix socket
        del kwargs["socket_connect_timeout"]
    return kwargs


def _with_reply_timeout(kind: Any, library: ModuleType) -> Any:
    """Returns a class of clients with a timeout for each reply. The timeout of the connection
    bounds connecting, the handshake, and reading a reply that has begun to arrive.
    """
    timeout_error = exceptions_of(library).TimeoutError

    class BlockingClient(kind):  # type: ignore[misc]
        def parse_response(
            self, connection: Any, command_name: Any, *, reply_timeout: float, **options: Any
        ) -> Any:
            try:
                remaining = reply_timeout
                while not connection.can_read(min(remaining, LONGEST_POLL)):
                    remaining -= LONGEST_POLL
                    if remaining <= 0:
                        raise timeout_error("no reply, though the time to wait is over")
            except BaseException:
                # A late reply must not be read as the reply to another call.
                connection.disconnect()
                raise
            return super().parse_response(connection, command_name, **options)

    return BlockingClient


class LazyCluster:
    """Client of a cluster, created by the first call: redis-py's client connects on creation, and
    the cluster may be unreachable at the start.
    """

    _lock = forks.lock()

    def __init__(self, kind: Any, url: str, settings: dict[str, Any]) -> None:
        self.kind = kind
        self.address = urlsplit(url).netloc.rpartition("@")[2]
        self._make = partial(kind.from_url, url, **settings)
        self.client: Any = None
        self.reset_after_fork()
        forks.register(self)

    def reset_after_fork(self) -> None:
        forks.forget(self, "_lock")

    def ensure_client(self) -> Any:
        if self.client is None:
            with self._lock:
                if self.client is None:
                    self.client = self._make()
        return self.client

    def execute_command(self, *words: Any, **options: Any) -> Any:
        return self.ensure_client().execute_command(*words, **options)

    def get_node_from_key(self, key: Key, replica: bool = False) -> Any:
        return self.ensure_client().get_node_from_key(key, replica=replica)

    def close(self) -> None:
        if self.client is not None:
            self.client.close()


class AsyncLazyCluster(LazyCluster):
    """Client of a cluster for asyncio, one for each event loop."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._by_loop: dict[asyncio.AbstractEventLoop, Any] = {}

    def ensure_client(self) -> Any:
        loop = asyncio.get_running_loop()
        client = self._by_loop.get(loop)
        if client is None:
            with self._lock:
                # Drop clients of closed loops.
                live = {
                    other: client_of_other
                    for other, client_of_other in self._by_loop.items()
                    if not other.is_closed()
                }
                client = self._make()
                self._by_loop = {**live, loop: client}
            # `self.client` serves to look up names of nodes, which all clients know.
            self.client = client
        return client

    async def initialize(self) -> None:
        await self.ensure_client().initialize()

    async def execute_command(self, *words: Any, **options: Any) -> Any:
        return await self.ensure_client().execute_command(*words, **options)

    async def aclose(self) -> None:
        client = self._by_loop.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()


def from_url(url: str, timeout: float, *, cluster: bool, is_async: bool) -> Any:
    """Returns a client for a URL of redis-py or valkey-py. valkey:// selects valkey-py."""
    root = "valkey" if url.startswith("valkey") else "redis"
    library = import_module(f"{root}.asyncio" if is_async else root)
    if not cluster:
        return _client_class(library, "").from_url(url)
    kind = _client_class(library, "Cluster")
    if is_async:
        # The limiter bounds the entire call.
        return AsyncLazyCluster(kind, url, settings(library, None))
    return LazyCluster(kind, url, settings(library, timeout))


def _client_class(library: ModuleType, suffix: str) -> Any:
    name = "Valkey" if library.__name__.startswith("valkey") else "Redis"
    return getattr(library, name + suffix)


def node_for(client: Any, key: Key, *, replica: bool) -> Any:
    """Returns the primary of a key in a cluster, or with `replica` one of its replicas, if any."""
    node = client.get_node_from_key(key, replica=True) if replica else None
    return client.get_node_from_key(key) if node is None else node


def pool_of(client: Any, node: Any) -> Any:
    """Returns the connection pool of a cluster's node, for a client of threads."""
    if isinstance(client, LazyCluster):
        client = client.ensure_client()
    return client.get_redis_connection(node).connection_pool
