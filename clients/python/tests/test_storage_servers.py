"""The storage and its server: errors, outages, URIs, clusters and sentinels."""

from typing import Any

import limits
import limits.aio.strategies
import limits.strategies
import pytest
import redis
from limits.errors import ConfigurationError, StorageError
from support import sentinel
from support.binaries import Binary
from support.cluster import PRIMARIES, Cluster
from support.sentinel import Sentinels
from support.server import Server

import redis_ratelimit.storage
from redis_ratelimit.storage import AsyncRateLimitStorage, RateLimitStorage
from storages import STRATEGIES, TEN, Blocking, StorageFactory

# Server


def test_check_requires_the_module(
    factory: StorageFactory, storage: Any, server: Server, binary: Binary
) -> None:
    assert storage.check()
    server.stop()
    assert not storage.check()
    with Server(binary, module=None) as plain:
        assert not factory.storage(f"ratelimit://127.0.0.1:{plain.port}").check()


def test_check_never_raises(
    factory: StorageFactory, storage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("not of redis-py")

    library: Any = redis.asyncio if factory.is_async else redis
    monkeypatch.setattr(library.Redis, "execute_command", fails)
    assert not storage.check()


def test_client_is_the_storage_attribute(factory: StorageFactory, uri: str) -> None:
    library: Any = redis.asyncio if factory.is_async else redis
    # The command `flask limiter config` shows it.
    storage = factory.storage(uri)
    assert isinstance((storage._wrapped if factory.is_async else storage).storage, library.Redis)


def test_error_is_wrapped_if_chosen(factory: StorageFactory, uri: str, server: Server) -> None:
    bare, wrapping = factory.storage(uri), factory.storage(uri, wrap_exceptions=True)
    server.stop()
    for storage, expected in ((bare, redis.ConnectionError), (wrapping, StorageError)):
        for method, *words in (
            ("incr", TEN.key_for(), 60),
            ("acquire_entry", "a", 10, 60),
            ("acquire_sliding_window_entry", "a", 10, 60),
            ("get_moving_window", "a", 10, 60),
            ("clear", "a"),
            ("reset",),
        ):
            with pytest.raises(expected):
                getattr(storage, method)(*words)


def test_hanging_server_times_out(factory: StorageFactory, server: Server) -> None:
    storage = factory.storage(f"ratelimit://127.0.0.1:{server.port}", socket_timeout=0.05)
    with server.suspended():
        assert not storage.check()
        with pytest.raises(redis.TimeoutError):
            storage.acquire_entry("a", 10, 60)


def test_full_key_or_server_denies(
    factory: StorageFactory, binary: Binary, caplog: pytest.LogCaptureFixture
) -> None:
    # As an outage, all hits would pass, or be counted in this process permanently.
    with Server(binary, module_args="max-log-entries 3") as small, small.client() as admin:
        storage = factory.storage(f"ratelimit://127.0.0.1:{small.port}")
        moving = factory.strategy("moving-window", storage)
        assert [moving.hit(TEN, "full") for _ in range(5)] == [True] * 3 + [False] * 2
        assert moving.get_window_stats(TEN, "full").remaining in {0, 7}
        assert moving.hit(TEN, "other")
        admin.config_set("maxmemory", 1)
        for name in STRATEGIES:
            strategy = factory.strategy(name, storage)
            assert not strategy.hit(TEN, "new")
            strategy.get_window_stats(TEN, "new")
    lines = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert [line for line in lines if "max-log-entries" in line]
    assert [line for line in lines if "OOM" in line]


def test_setup_errors_are_logged(
    factory: StorageFactory, binary: Binary, caplog: pytest.LogCaptureFixture
) -> None:
    with Server(binary, module=None) as bare:
        storage = factory.storage(f"ratelimit://127.0.0.1:{bare.port}")
        for _ in range(3):
            with pytest.raises(redis.ResponseError):
                factory.strategy("fixed-window", storage).hit(TEN, "key")
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "--loadmodule" in line


def test_hit_is_not_resent_after_a_lost_reply(
    factory: StorageFactory, server: Server, admin: redis.Redis
) -> None:
    storage = factory.storage(f"ratelimit://127.0.0.1:{server.port}", socket_timeout=0.05)
    with server.suspended(), pytest.raises(redis.TimeoutError):
        storage.acquire_entry("a", 10, 60)
    assert admin.ping()
    used = factory.storage(f"ratelimit://127.0.0.1:{server.port}").get_moving_window("a", 10, 60)[1]
    assert used <= 1


def test_uri_has_password_user_and_database(
    factory: StorageFactory, server: Server, admin: redis.Redis
) -> None:
    admin.acl_setuser(
        "limits", enabled=True, passwords=["+p@ss:w"], commands=["+@all"], keys=["RATELIMIT:*"]
    )
    storage = factory.storage(f"ratelimit://limits:p%40ss%3Aw@127.0.0.1:{server.port}/3")
    assert storage.acquire_entry("a", 10, 60)
    admin.select(3)
    assert len(admin.keys()) == 1
    wrong = factory.storage(f"ratelimit://limits:p@127.0.0.1:{server.port}")
    assert not wrong.check()


def test_uri_names_a_unix_socket(factory: StorageFactory, binary: Binary) -> None:
    with Server(binary) as server:
        storage = factory.storage(f"ratelimit+unix://{server.socket}")
        assert storage.acquire_entry("a", 10, 60)
        factory.close()


def test_custom_connection_pool_is_used(factory: StorageFactory, server: Server) -> None:
    library: Any = redis.asyncio if factory.is_async else redis
    pool = library.ConnectionPool(host="127.0.0.1", port=server.port)
    storage = factory.storage("ratelimit://", connection_pool=pool)
    assert storage.acquire_entry("a", 10, 60)
    assert (storage._wrapped if factory.is_async else storage).storage.connection_pool is pool
    # The pool belongs to the caller, so close it here.
    (Blocking(pool, factory._runner).aclose if factory.is_async else pool.close)()


def test_cluster_hit_is_one_command(factory: StorageFactory, cluster: Cluster) -> None:
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in cluster.servers)
    storage = factory.storage(f"ratelimit+cluster://{hosts}")
    assert storage.check()
    clients = [server.client(decode_responses=True) for server in cluster.servers]
    for client in clients:
        client.config_resetstat()
    for name in STRATEGIES:
        strategy = factory.strategy(name, storage)
        for user in range(100):
            assert strategy.hit(TEN, user, cost=10)
            assert not strategy.hit(TEN, user)
    stats = [client.info("commandstats") for client in clients]
    take_calls = [stat["cmdstat_rl.take"]["calls"] for stat in stats if "cmdstat_rl.take" in stat]
    assert (len(take_calls), sum(take_calls)) == (PRIMARIES, 600)
    assert not any("getkeys" in name for stat in stats for name in stat)
    factory.strategy("moving-window", storage).clear(TEN, 0)
    assert storage.reset() == 297


def test_unreachable_cluster_does_not_fail_construction(
    factory: StorageFactory, server: Server
) -> None:
    storage = factory.storage(f"ratelimit+cluster://127.0.0.1:{server.port}")
    assert not storage.check()  # it is no cluster


def test_sentinel_primary_is_used(factory: StorageFactory, binary: Binary) -> None:
    with Server(binary) as primary, Sentinels(primary, replicas=0) as sentinels:
        hosts = ",".join(f"127.0.0.1:{port}" for port in sentinels._ports)
        storage = factory.storage(f"ratelimit+sentinel://{hosts}/{sentinel.NAME}")
        assert factory.strategy("moving-window", storage).hit(TEN)
        with primary.client() as client:
            assert client.dbsize() == 1
        factory.close()
        # redis-py leaves these open.
        wrapped = storage._wrapped if factory.is_async else storage
        for client in wrapped.storage.connection_pool.sentinel_manager.sentinels:
            (Blocking(client, factory._runner).aclose if factory.is_async else client.close)()


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("ratelimit+cluster://localhost", "'localhost' is not host:port"),
        ("ratelimit+cluster://localhost:port", "localhost:port: "),
        ("ratelimit+cluster://:secret@a:1,:2", "':2' is not host:port"),
        ("ratelimit+sentinel://localhost:26379", "no service: ratelimit[+]sentinel://"),
    ],
)
def test_incomplete_uri_is_rejected(factory: StorageFactory, uri: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        factory.storage(uri)


def test_schemes_are_documented() -> None:
    for scheme in redis_ratelimit.storage.SCHEMES:
        assert f"{scheme}://" in str(redis_ratelimit.storage.__doc__)
        for prefix in ("", "async+"):
            storage_class = limits.storage.SCHEMES[prefix + scheme]
            assert issubclass(storage_class, (RateLimitStorage, AsyncRateLimitStorage))
