"""Limiters with any existing client, for threads and asyncio alike."""

import asyncio
import inspect
import threading
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
import valkey
import valkey.asyncio
from redis.backoff import ConstantBackoff
from redis.retry import Retry
from support import poll
from support.binaries import Binary
from support.sentinel import NAME, TIMEOUT, Sentinels
from support.server import Server

from limiters import BlockingLimiter
from redis_ratelimit import (
    CallError,
    Concurrency,
    Fixed,
    Limiter,
    NoPolicyError,
    Policy,
    aio,
    limiter,
)

LIMIT = Fixed(5, "1h")


def test_limiters_for_threads_and_asyncio_have_the_same_calls() -> None:
    for one, other in ((Limiter, aio.Limiter), (limiter.Policies, aio.Policies)):
        names = {name for name in vars(one) if not name.startswith("_")}
        assert names == {name for name in vars(other) if not name.startswith("_")}
        for name in names - {"policies"}:
            first, second = (inspect.signature(getattr(kind, name)) for kind in (one, other))
            assert list(first.parameters.values()) == list(second.parameters.values()), name


@pytest.mark.parametrize("decodes", [True, False])
@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("library", [redis, valkey])
def test_existing_client_is_accepted(
    library: Any, protocol: int, decodes: bool, kind: str, server: Server
) -> None:
    name = "Redis" if library is redis else "Valkey"
    options = {"port": server.port, "protocol": protocol, "decode_responses": decodes}
    if kind == "sync":
        with getattr(library, name)(**options) as client, Limiter(client, timeout=10) as limiter:
            assert_decides(limiter)
            # The client keeps working.
            assert client.ping()
        return
    loop = asyncio.new_event_loop()
    client = getattr(library.asyncio, name)(**options)
    with BlockingLimiter(aio.Limiter(client, timeout=10), loop) as limiter:
        assert_decides(limiter)
    loop.run_until_complete(client.aclose())
    loop.close()


def assert_decides(limiter: Any) -> None:
    limiter.check()
    assert limiter.take("key", LIMIT).remaining == 4
    assert (
        limiter.take("several", LIMIT, Fixed(7, "1d", name="day"), each=True).each[1].name == "day"
    )
    with pytest.raises(NoPolicyError):
        limiter.take("key", Policy("none"))
    with pytest.raises(CallError):
        limiter.take("key", LIMIT, Fixed(6, "1h"))
    limiter.policies.set("plan", LIMIT)
    assert limiter.policies.get("plan").specs == "FIXED 5 1h"
    assert limiter.take("other", Policy("plan"), each=True).policy == "plan"
    assert limiter.policies.delete("plan") == 1


def test_settings_of_the_client_apply_except_timeouts(server: Server, admin: redis.Redis) -> None:
    options = {"port": server.port, "db": 3, "client_name": "shop"}
    retry = Retry(ConstantBackoff(3600), 10)
    with (
        redis.Redis(**options, retry=retry, socket_timeout=3600) as client,
        Limiter(client, resends=0) as limiter,
    ):
        limiter.take("key", LIMIT)
        assert [one["name"] for one in admin.client_list() if one["db"] == "3"] == ["shop"]
        server.stop("kill")
        # The client itself would retry for hours.
        assert limiter.take("key", LIMIT).source == "none"


def test_unix_socket(binary: Binary, kind: str) -> None:
    with Server(binary) as server:
        path = server.socket
        if kind == "sync":
            with Limiter.from_url(f"unix://{path}", timeout=10) as limiter:
                assert limiter.take("key", LIMIT).source == "server"
            return
        loop = asyncio.new_event_loop()
        with BlockingLimiter(aio.Limiter.from_url(f"unix://{path}", timeout=10), loop) as limiter:
            assert limiter.take("key", LIMIT).source == "server"
        loop.close()


def test_peek_reads_from_a_replica(binary: Binary) -> None:
    with Server(binary) as primary:
        replica = primary.replica()
        with (
            redis.Redis(port=replica.port) as replica_client,
            Limiter.from_url(
                f"redis://127.0.0.1:{primary.port}", timeout=10, peeks=replica_client
            ) as limiter,
            replica.client() as admin,
        ):
            limiter.take("key", LIMIT, cost=2)
            replica.wait_for_sync()
            assert limiter.peek("key", LIMIT).remaining == 3
            assert admin.info("commandstats")["cmdstat_rl.peek"]["calls"] == 1


def test_client_of_the_other_api_is_rejected() -> None:
    with pytest.raises(TypeError, match=r"there is aio.Limiter"):
        Limiter(redis.asyncio.Redis())
    with pytest.raises(TypeError, match="there is Limiter"):
        aio.Limiter(redis.Redis())

    class Other:
        def execute_command(self) -> None: ...

    with pytest.raises(TypeError, match="redis-py or valkey-py"):
        Limiter(Other())


def test_invalid_on_outage_is_rejected(url: str) -> None:
    with pytest.raises(ValueError, match="on_outage must be"):
        Limiter.from_url(url, on_outage="maybe")


@pytest.mark.timeout(300)
def test_sentinel_failover_is_followed(kind: str, binary: Binary) -> None:
    with Server(binary) as primary:
        replica = primary.replica()
        with Sentinels(primary) as sentinels:
            ports = [("127.0.0.1", port) for port in sentinels._ports]
            if kind == "sync":
                sentinel = redis.sentinel.Sentinel(ports)
                with Limiter(sentinel.master_for(NAME), on_outage="closed", pause=0.1) as limiter:
                    assert_failover_is_followed(limiter, primary, replica)
                    _close(sentinel.sentinels)
                return
            loop = asyncio.new_event_loop()
            async_sentinel = redis.asyncio.sentinel.Sentinel(ports)
            limiter = aio.Limiter(async_sentinel.master_for(NAME), on_outage="closed", pause=0.1)
            with BlockingLimiter(limiter, loop) as blocking_limiter:
                assert_failover_is_followed(blocking_limiter, primary, replica)
            for one in async_sentinel.sentinels:
                loop.run_until_complete(one.aclose())
            loop.close()


def assert_failover_is_followed(limiter: Any, primary: Server, replica: Server) -> None:
    poll.until(
        lambda: limiter.take("key", LIMIT, cost=0).source == "server",
        "the primary decides",
        TIMEOUT,
    )
    assert limiter.take("key", LIMIT, cost=2).remaining == 3
    replica.wait_for_sync()
    primary.stop("kill")
    poll.until(
        lambda: limiter.take("key", LIMIT, cost=0).source == "server",
        "the new primary decides",
        TIMEOUT,
    )
    assert limiter.take("key", LIMIT).remaining == 2
    with replica.client() as admin:
        assert admin.info("replication")["role"] == "master"


def _close(clients: list[redis.Redis]) -> None:
    for client in clients:
        client.close()


def connection_count(server: Server) -> int:
    with server.client() as client:
        return int(client.info("clients")["connected_clients"])


def test_close_leaves_no_connection_or_thread(make: Any, kind: str, server: Server) -> None:
    before, threads = connection_count(server), threading.active_count()
    limiters = [make() for _ in range(12)]
    for one in limiters:
        one.take("key", LIMIT)
        with one.lease("pool", Concurrency(20, 30), wait=0):
            pass
        with one.lease("pool", Concurrency(20, 30), wait=10):
            pass
    assert connection_count(server) > before
    for one in limiters:
        one.close()
        one.close()
    poll.until(lambda: connection_count(server) == before, "all connections are closed")
    assert threading.active_count() == threads
    # A limiter is usable again after `close`.
    if kind == "sync":
        assert limiters[0].take("key", LIMIT).source == "server"
