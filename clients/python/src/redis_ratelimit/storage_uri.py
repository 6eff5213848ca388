"""URIs of the storage: the server, cluster or sentinels that they name, and a client for them."""

from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit

from limits.errors import ConfigurationError

from redis_ratelimit import clients

SCHEMES = ("ratelimit", "ratelimits", "ratelimit+unix", "ratelimit+cluster", "ratelimit+sentinel")

# Schemes of redis-py by our schemes.
_REDIS_SCHEMES = {"ratelimit": "redis", "ratelimits": "rediss", "ratelimit+unix": "unix"}

# Default timeout in seconds for connecting and for a reply. Without it a server that hangs would
# hang the application, and Flask-Limiter's `in_memory_fallback` would never begin.
_TIMEOUT = 1.0


def client_factory(library: Any, uri: str, options: dict[str, Any]) -> Callable[[], Any]:
    """Returns a function that creates the client for a URI. `library` is `redis` or
    `redis.asyncio`.
    """
    # No retries: a hit that is resent because its reply was lost may be charged twice.
    options = clients.settings(library, _TIMEOUT) | options
    scheme, _, location = uri.partition("://")
    if "connection_pool" in options:
        return partial(library.Redis, connection_pool=options["connection_pool"])
    if scheme in _REDIS_SCHEMES:
        # A burst of hits waits for a free connection. A plain pool would raise an error.
        pool_options = {"max_connections": clients.MAX_CONNECTIONS, "timeout": _TIMEOUT} | options
        url = f"{_REDIS_SCHEMES[scheme]}://{location}"
        return lambda: library.Redis.from_pool(
            library.BlockingConnectionPool.from_url(url, **pool_options)
        )
    hosts, credentials, path = _locations(uri)
    if is_cluster(uri):
        nodes = [library.cluster.ClusterNode(*host) for host in hosts]
        return partial(library.RedisCluster, **{"startup_nodes": nodes, **credentials, **options})
    service = options.pop("service_name", path)
    if not service:
        raise ConfigurationError("no service: ratelimit+sentinel://host:port/service")
    sentinel_options = credentials | options.pop("sentinel_kwargs", {})
    sentinel = library.sentinel.Sentinel(
        hosts, sentinel_kwargs=sentinel_options, **credentials | options
    )
    return partial(sentinel.master_for, service)


def is_cluster(uri: str) -> bool:
    return uri.partition("://")[0].endswith("+cluster")


def _locations(uri: str) -> tuple[list[tuple[str, int]], dict[str, str], str]:
    """Parses the hosts with their ports, the credentials, and the path of a URI."""
    parts = urlsplit(uri)
    hosts = []
    # `urlsplit` rejects the port of several hosts, so each host is parsed by itself.
    for host in filter(None, parts.netloc.rpartition("@")[2].split(",")):
        try:
            host_parts = urlsplit(f"//{host.strip()}")
            port = host_parts.port
        except ValueError as error:
            raise ConfigurationError(f"{host}: {error}") from error
        if not host_parts.hostname or not port:
            raise ConfigurationError(f"{host!r} is not host:port")
        hosts.append((host_parts.hostname, port))
    parsed = {"username": parts.username, "password": parts.password}
    credentials = {name: unquote(value) for name, value in parsed.items() if value}
    return hosts, credentials, parts.path.strip("/")
