"""The clients that a limiter sends through: those of redis-py and valkey-py."""

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

# A burst of calls waits its turn on so many connections, rather than for more of them.
MOST_CONNECTIONS = 50

# As many as there are calls that wait: one that had to wait for a connection had no place in the
# server's queue.
ANY_NUMBER = 2**31
# Nothing is sent while a call waits, so the system has to find out that the other side is gone:
# probes after 30 seconds, then each 10, and after three of them the connection is lost.
PROBES = {
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
}
# How long a system waits at most for something to read, in seconds: some count it in 32 bits of
# milliseconds.
A_DAY = 86400.0

# Seconds, about, between one look for a key that is moving to another node and the next.
MOVING = 0.1


def kept_alive(connection: Any) -> None:
    """Nothing is sent for long, so the system has to find out that the other side is gone."""
    if connection.family in {socket.AF_INET, socket.AF_INET6}:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in PROBES.items():
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


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


def waiting(of: Any, library: ModuleType, timeout: float | None) -> Any:
    """A client of the same server, by its pool or the node of a cluster, for calls that wait: each
    has a connection to itself. With threads a call says its `patience`, in seconds.
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
    return (kind if is_async else _with_patience(kind, library)).from_pool(pool)


def connection_of(of: Any, library: ModuleType, timeout: float | None) -> Any:
    """One more connection to a server, by a client's pool or the node of a cluster, set as the
    client's are. A function makes it; `timeout` is over each step of connecting and greeting.
    """
    return partial(of.connection_class, **_own(of, library, timeout))


def still_connecting(make: Any) -> str:
    """Returns what is told of a connection that does not come about, by the function that makes it.
    A server without TLS says nothing to one that begins with it.
    """
    kind = getattr(getattr(make, "func", make), "__name__", "")
    if "SSL" in kind:
        return "still connecting by TLS: does the server speak TLS at this port?"
    return "still connecting"


def place_of(client: Any) -> str:
    """The address that the client was given."""
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
    """What the ways to a server, or to a cluster, of both kinds share."""

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
        heard: Callable[[bytes | None], None],
    ) -> None:
        self.library = library(client, is_async=self.is_async)
        # Kept, since connections behind sentinels ask the client's pool where the primary is.
        self.client = client
        self.is_cluster = is_cluster(client)
        self.replicas = replicas
        self.timeout = timeout
        self.connect_timeout = connect_timeout
        self.clock = clock
        self.may_be_elsewhere = may_be_elsewhere
        self.is_sent_away = is_sent_away
        # What is called with the key that the server says has changed; None: any may have.
        self.heard = heard
        self.place = place_of(client)
        if not self.is_cluster:
            self.made = self.made_at(client.connection_pool)
        # What is closed with the limiter.
        self.own: list[Any] = []
        # For calls that wait, by the node: see `waiting`.
        self._waiting: dict[str, Any] = {}

    def made_at(self, of: Any) -> Any:
        """Makes connections to a server, by a client's pool or the node of a cluster."""
        # With asyncio one time limit is over all steps.
        return connection_of(of, self.library, None if self.is_async else self.connect_timeout)

    def waiting_at(self, name: str, of: Any) -> Any:
        """The client for calls that wait at this node, by its pool or by itself."""
        found = self._waiting.get(name)
        if found is None:
            made = waiting(of, self.library, None if self.is_async else self.timeout)
            # Another thread may have been faster.
            found = self._waiting.setdefault(name, made)
            if found is made:
                self.own.append(made)
        return found

    def node_of(self, call: Any) -> str:
        """Where a call goes, as far as is known without asking; "" for the one server."""
        if not self.is_cluster:
            return ""
        client = self.client.client if isinstance(self.client, LateCluster) else self.client
        try:
            return str(node_for(client, call.key, replica=call.looks and self.replicas).name)
        except Exception:
            return ""


def _own(of: Any, library: ModuleType, timeout: float | None) -> dict[str, Any]:
    """How connections are set, but for time limits and retries."""
    # But for what redis-py 8 keeps there of the pool itself: the patience to go back to.
    kept = {
        name: value for name, value in of.connection_kwargs.items() if not name.startswith("orig_")
    }
    own = {**kept, **settings(library, timeout)}
    own.update(retry_on_timeout=False, retry_on_error=[])
    if "path" in own:  # a Unix socket
        del own["socket_connect_timeout"]
    return own


def _with_patience(kind: Any, library: ModuleType) -> Any:
    """A client that waits for each reply as long as the call says. The time limit of its
    connections is for the rest: to connect, to greet, and to read what has begun to come.
    """
    late = exceptions_of(library).TimeoutError

    class Patient(kind):  # type: ignore[misc]
        def parse_response(
            self, connection: Any, command_name: Any, *, patience: float, **options: Any
        ) -> Any:
            try:
                left = patience
                while not connection.can_read(min(left, A_DAY)):
                    left -= A_DAY
                    if left <= 0:
                        raise late("no reply, though the time to wait is over")
            except BaseException:
                # The reply may come yet, and is nobody else's.
                connection.disconnect()
                raise
            return super().parse_response(connection, command_name, **options)

    return Patient


class LateCluster:
    """A cluster's client, made by the first call: redis-py's connects when it is made, and the
    cluster may be away at the start.
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
    """A cluster's client for asyncio: each event loop has one of its own."""

    def __init__(self, *terms: Any) -> None:
        super().__init__(*terms)
        self._by_loop: dict[asyncio.AbstractEventLoop, Any] = {}

    def made(self) -> Any:
        loop = asyncio.get_running_loop()
        client = self._by_loop.get(loop)
        if client is None:
            with self._lock:
                # Those of loops that have ended are of no use.
                others = {one: of for one, of in self._by_loop.items() if not one.is_closed()}
                client = self._make()
                self._by_loop = {**others, loop: client}
            # By any of them the nodes have the same names.
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
    """A client by a URL as redis-py and valkey-py take it: valkey:// is the latter's."""
    root = "valkey" if url.startswith("valkey") else "redis"
    library = import_module(f"{root}.asyncio" if is_async else root)
    if not cluster:
        return _kind(library, "").from_url(url)
    kind = _kind(library, "Cluster")
    if is_async:
        # How long a call takes in all, the limiter knows.
        return ClusterOfLoop(kind, url, settings(library, None))
    return LateCluster(kind, url, settings(library, timeout))


def _kind(library: ModuleType, what: str) -> Any:
    name = "Valkey" if library.__name__.startswith("valkey") else "Redis"
    return getattr(library, name + what)


def node_for(client: Any, key: Key, *, replica: bool) -> Any:
    """The node of a cluster that has the key, or a replica of it if there is one."""
    found = client.get_node_from_key(key, replica=True) if replica else None
    return client.get_node_from_key(key) if found is None else found


def pool_of(client: Any, node: Any) -> Any:
    """The connections to a node of a cluster, of a client for threads."""
    if isinstance(client, LateCluster):
        client = client.made()
    return client.get_redis_connection(node).connection_pool
