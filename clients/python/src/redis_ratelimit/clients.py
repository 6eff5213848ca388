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
MOST_CONNECTIONS = 50

# Upper bound of connections for blocking calls. A call that waited for a connection would lose its
# place in the server's queue.
ANY_NUMBER = 2**31
# TCP keepalive, which detects a lost peer while a blocking call sends nothing: first probe after 30
# seconds, then every 10, and the connection is lost after three.
PROBES = {
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
}
# Longest single wait for input, in seconds: some systems count it in 32 bits of milliseconds.
A_DAY = 86400.0

# Approximate seconds between attempts to find a key that is moving to another node.
MOVING = 0.1


def enable_keepalive(connection: Any) -> None:
    """Enables TCP keepalive on a connection that is idle for long."""
    if connection.family in {socket.AF_INET, socket.AF_INET6}:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in PROBES.items():
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
    client_type = client.kind if isinstance(client, LateCluster) else type(client)
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
    nothing = import_module(f"{root}.backoff").NoBackoff
    return {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": retry(nothing(), 0),
    }


def waiting(of: Any, library: ModuleType, timeout: float | None) -> Any:
    """Returns a client of the same server for blocking calls, each on a connection of its own. `of`
    is a pool or a node of a cluster. With threads, a call passes its `reply_timeout` in seconds.
    """
    own = _own(of, library, timeout)
    if "path" not in own:
        own["socket_keepalive"] = True
        if not isinstance(own.get("socket_keepalive_options"), dict):
            own["socket_keepalive_options"] = PROBES
    pool = library.ConnectionPool(
        connection_class=of.connection_class, max_connections=ANY_NUMBER, **own
    )
    kind = _kind(library, "")
    is_async = iscoroutinefunction(kind.execute_command)
    return (kind if is_async else _with_reply_timeout(kind, library)).from_pool(pool)


def connection_of(of: Any, library: ModuleType, timeout: float | None) -> Any:
    """Returns a function that creates a connection with the settings of `of`, the pool of a client
    or a node of a cluster. `timeout` bounds each step of connecting and the handshake.
    """
    return partial(of.connection_class, **_own(of, library, timeout))


def still_connecting(make: Any) -> str:
    """Returns the error text for a connection that is not established in time. `make` is the
    function that creates it. A server without TLS does not answer a TLS handshake.
    """
    kind = getattr(getattr(make, "func", make), "__name__", "")
    if "SSL" in kind:
        return "still connecting by TLS: does the server speak TLS at this port?"
    return "still connecting"


def place_of(client: Any) -> str:
    """Returns the address that the client was configured with."""
    if isinstance(client, LateCluster):
        return client.place
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


class Route:
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
        may_be_elsewhere: Callable[[Exception], bool],
        is_sent_away: Callable[[BaseException], bool],
        on_invalidation: Callable[[bytes | None], None],
    ) -> None:
        self.library = library(client, is_async=self.is_async)
        # Keeps the client's pool alive, which connections behind Sentinel ask for the primary.
        self.client = client
        self.is_cluster = is_cluster(client)
        self.replicas = replicas
        self.timeout = timeout
        self.connect_timeout = connect_timeout
        self.clock = clock
        self.may_be_elsewhere = may_be_elsewhere
        self.is_sent_away = is_sent_away
        # Called with a key that the server reports as changed, or None if any key may have changed.
        self.on_invalidation = on_invalidation
        self.place = place_of(client)
        if not self.is_cluster:
            self.connect = self.connect_to(client.connection_pool)
        # Clients that are closed with the limiter.
        self.own: list[Any] = []
        # Clients for blocking calls, by node: see `waiting`.
        self._waiting: dict[str, Any] = {}

    def connect_to(self, of: Any) -> Any:
        """Returns a function that connects to the server of a client's pool or a cluster's node."""
        # With asyncio, one timeout spans all steps.
        return connection_of(of, self.library, None if self.is_async else self.connect_timeout)

    def waiting_at(self, name: str, of: Any) -> Any:
        """Returns the client for blocking calls at a node. `of` is its pool or the node itself."""
        found = self._waiting.get(name)
        if found is None:
            made = waiting(of, self.library, None if self.is_async else self.timeout)
            # Another thread may have created it meanwhile.
            found = self._waiting.setdefault(name, made)
            if found is made:
                self.own.append(made)
        return found

    def node_of(self, call: Any) -> str:
        """Returns the node that a call goes to, as far as known without I/O; "" for a single
        server.
        """
        if not self.is_cluster:
            return ""
        client = self.client.client if isinstance(self.client, LateCluster) else self.client
        try:
            return str(node_for(client, call.key, replica=call.is_peek and self.replicas).name)
        except Exception:
            return ""


def _own(of: Any, library: ModuleType, timeout: float | None) -> dict[str, Any]:
    """Returns the settings of connections with our timeout and without retries."""
    # redis-py 8 also keeps the pool's original timeouts there, as orig_*.
    kept = {
        name: value for name, value in of.connection_kwargs.items() if not name.startswith("orig_")
    }
    own = {**kept, **settings(library, timeout)}
    own.update(retry_on_timeout=False, retry_on_error=[])
    if "path" in own:  # a Unix socket
        del own["socket_connect_timeout"]
    return own


def _with_reply_timeout(kind: Any, library: ModuleType) -> Any:
    """Returns a class of clients with a timeout for each reply. The timeout of the connection
    bounds the rest: connecting, the handshake, and reading a reply that has begun to arrive.
    """
    timeout_error = exceptions_of(library).TimeoutError

    class BlockingClient(kind):  # type: ignore[misc]
        def parse_response(
            self, connection: Any, command_name: Any, *, reply_timeout: float, **options: Any
        ) -> Any:
            try:
                remaining = reply_timeout
                while not connection.can_read(min(remaining, A_DAY)):
                    remaining -= A_DAY
                    if remaining <= 0:
                        raise timeout_error("no reply, though the time to wait is over")
            except BaseException:
                # A late reply must not be read as the reply to another call.
                connection.disconnect()
                raise
            return super().parse_response(connection, command_name, **options)

    return BlockingClient


class LateCluster:
    """Client of a cluster, created by the first call: redis-py's client connects on creation, and
    the cluster may be unreachable at the start.
    """

    _lock = forks.lock()

    def __init__(self, kind: Any, url: str, settings: dict[str, Any]) -> None:
        self.kind = kind
        self.place = urlsplit(url).netloc.rpartition("@")[2]
        self._make = partial(kind.from_url, url, **settings)
        self.client: Any = None
        self.forked()
        forks.knows(self)

    def forked(self) -> None:
        forks.forget(self, "_lock")

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


class ClusterOfLoop(LateCluster):
    """Client of a cluster for asyncio, one for each event loop."""

    def __init__(self, *terms: Any) -> None:
        super().__init__(*terms)
        self._by_loop: dict[asyncio.AbstractEventLoop, Any] = {}

    def made(self) -> Any:
        loop = asyncio.get_running_loop()
        client = self._by_loop.get(loop)
        if client is None:
            with self._lock:
                # Drop clients of closed loops.
                others = {one: of for one, of in self._by_loop.items() if not one.is_closed()}
                client = self._make()
                self._by_loop = {**others, loop: client}
            # Any of the clients knows the same names of nodes.
            self.client = client
        return client

    async def initialize(self) -> None:
        await self.made().initialize()

    async def execute_command(self, *words: Any, **options: Any) -> Any:
        return await self.made().execute_command(*words, **options)

    async def aclose(self) -> None:
        client = self._by_loop.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()


def from_url(url: str, timeout: float, *, cluster: bool, is_async: bool) -> Any:
    """Returns a client for a URL of redis-py or valkey-py. valkey:// selects valkey-py."""
    root = "valkey" if url.startswith("valkey") else "redis"
    library = import_module(f"{root}.asyncio" if is_async else root)
    if not cluster:
        return _kind(library, "").from_url(url)
    kind = _kind(library, "Cluster")
    if is_async:
        # The limiter bounds the entire call.
        return ClusterOfLoop(kind, url, settings(library, None))
    return LateCluster(kind, url, settings(library, timeout))


def _kind(library: ModuleType, suffix: str) -> Any:
    name = "Valkey" if library.__name__.startswith("valkey") else "Redis"
    return getattr(library, name + suffix)


def node_for(client: Any, key: Key, *, replica: bool) -> Any:
    """Returns the node of a cluster that has the key, or with `replica` one of its replicas."""
    found = client.get_node_from_key(key, replica=True) if replica else None
    return client.get_node_from_key(key) if found is None else found


def pool_of(client: Any, node: Any) -> Any:
    """Returns the connection pool of a cluster's node, for a client of threads."""
    if isinstance(client, LateCluster):
        client = client.made()
    return client.get_redis_connection(node).connection_pool
