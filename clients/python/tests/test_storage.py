"""The storage under limits' own strategies, with threads and with asyncio."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import limits
import limits.aio.strategies
import limits.strategies
import pytest
import redis
from limits.errors import ConfigurationError, StorageError
from limits.storage import storage_from_string
from support import sentinel
from support.binaries import Binary
from support.clock import Clock
from support.cluster import PRIMARIES, Cluster
from support.sentinel import Sentinels
from support.server import Server

import redis_ratelimit.storage
from redis_ratelimit.storage import AsyncRateLimitStorage, RateLimitStorage

STRATEGIES = list(limits.strategies.STRATEGIES)
TEN = limits.parse("10/minute")
# Seconds that a busy machine may take.
PATIENT = {"socket_timeout": 30, "socket_connect_timeout": 30, "timeout": 30}
# What `time.time()` says here: the server's clock is another.
NOW = 5_000_000.0


class Blocking:
    """An object of limits.aio, whose methods are called as those of limits are."""

    def __init__(self, of: Any, runner: asyncio.Runner) -> None:
        self._of, self._runner = of, runner

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._of, name)

        async def called(*args: Any, **options: Any) -> Any:
            return await method(*args, **options)

        return lambda *args, **options: self._runner.run(called(*args, **options))


class Kit:
    """Storages and strategies of one kind."""

    def __init__(self, kind: str, runner: asyncio.Runner) -> None:
        self.is_async = kind == "asyncio"
        self._runner = runner
        self._opened: list[Any] = []

    def storage(self, uri: str, **options: Any) -> Any:
        if uri.startswith("ratelimit://") and "connection_pool" not in options:
            options = PATIENT | options
        storage = storage_from_string(f"async+{uri}" if self.is_async else uri, **options)
        self._opened.append(storage)
        return Blocking(storage, self._runner) if self.is_async else storage

    def strategy(self, name: str, storage: Any) -> Any:
        if not self.is_async:
            return limits.strategies.STRATEGIES[name](storage)
        return Blocking(limits.aio.strategies.STRATEGIES[name](storage._of), self._runner)

    def close(self) -> None:
        for storage in self._opened:
            if self.is_async:
                self._runner.run(storage.storage.aclose())
            elif "storage" in vars(storage):
                storage.storage.close()


@pytest.fixture(params=["threads", "asyncio"])
def kit(request: pytest.FixtureRequest) -> Iterator[Kit]:
    with asyncio.Runner() as runner:
        kit = Kit(request.param, runner)
        yield kit
        kit.close()


@pytest.fixture
def uri(server: Server) -> str:
    return f"ratelimit://127.0.0.1:{server.port}"


@pytest.fixture
def storage(kit: Kit, uri: str) -> Any:
    return kit.storage(uri)


@pytest.fixture(params=STRATEGIES)
def strategy(request: pytest.FixtureRequest, kit: Kit, storage: Any) -> Any:
    return kit.strategy(request.param, storage)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> float:
    """The caller's clock stands still, so that times are to the millisecond."""
    monkeypatch.setattr(time, "time", lambda: NOW)
    return NOW


# What a strategy decides


def test_ten_hits_pass_and_no_more(strategy: Any) -> None:
    assert [strategy.hit(TEN, "alice") for _ in range(12)] == [True] * 10 + [False] * 2
    assert strategy.hit(TEN, "bob")


def test_a_hit_costs_what_it_says(strategy: Any) -> None:
    assert strategy.hit(TEN, cost=6)
    assert not strategy.hit(TEN, cost=5)
    assert strategy.hit(TEN, cost=4)
    assert not strategy.hit(TEN, "other", cost=11)


def test_a_denied_hit_charges_nothing_and_writes_nothing(strategy: Any, admin: redis.Redis) -> None:
    strategy.hit(TEN, cost=6)
    written = admin.info("replication")["master_repl_offset"]
    changes = admin.info("persistence")["rdb_changes_since_last_save"]
    assert not strategy.hit(TEN, cost=5)
    assert strategy.get_window_stats(TEN).remaining == 4
    assert admin.info("persistence")["rdb_changes_since_last_save"] == changes
    assert admin.info("replication")["master_repl_offset"] == written


def test_a_test_says_what_a_hit_would_and_charges_nothing(strategy: Any) -> None:
    for cost in (7, 2, 2, 1, 1):
        expected = strategy.test(TEN, cost=cost)
        assert strategy.test(TEN, cost=cost) == expected
        assert strategy.hit(TEN, cost=cost) == expected


def test_a_hit_is_one_command(strategy: Any, admin: redis.Redis) -> None:
    strategy.hit(TEN)
    admin.config_resetstat()
    for _ in range(12):
        strategy.hit(TEN)
    calls = {name: stat["calls"] for name, stat in admin.info("commandstats").items()}
    assert calls.pop("cmdstat_rl.take") == 12
    assert set(calls) <= {"cmdstat_info", "cmdstat_config|resetstat", "cmdstat_config"}


@pytest.mark.parametrize("name", STRATEGIES)
def test_threads_get_exactly_the_limit(name: str, uri: str) -> None:
    storage = storage_from_string(uri, **PATIENT)
    assert isinstance(storage, RateLimitStorage)
    strategy = limits.strategies.STRATEGIES[name](storage)
    limit = limits.parse("100/hour")
    with ThreadPoolExecutor(8) as threads:
        passed = list(threads.map(lambda _: strategy.hit(limit, "all"), range(400)))
    storage.storage.close()
    assert sum(passed) == 100


def test_tasks_get_exactly_the_limit(uri: str) -> None:
    limit = limits.parse("100/hour")

    async def passed(name: str) -> int:
        storage = storage_from_string(f"async+{uri}", **PATIENT)
        assert isinstance(storage, AsyncRateLimitStorage)
        strategy = limits.aio.strategies.STRATEGIES[name](storage)
        found = await asyncio.gather(*(strategy.hit(limit, "all") for _ in range(400)))
        await storage.storage.aclose()
        return sum(found)

    assert [asyncio.run(passed(name)) for name in STRATEGIES] == [100, 100, 100]


# How time passes


def test_a_fixed_window_opens_with_the_first_hit_and_ends(
    kit: Kit, storage: Any, clock: Clock, now: float
) -> None:
    strategy = kit.strategy("fixed-window", storage)
    assert strategy.get_window_stats(TEN) == (now, 10)
    strategy.hit(TEN, cost=4)
    clock.advance("20s")
    strategy.hit(TEN, cost=6)
    assert strategy.get_window_stats(TEN) == (now + 40, 0)
    clock.advance("39.999999s")
    assert not strategy.hit(TEN)
    clock.advance("1us")
    assert strategy.get_window_stats(TEN) == (now, 10)
    assert strategy.hit(TEN, cost=10)


def test_a_moving_window_moves(kit: Kit, storage: Any, clock: Clock, now: float) -> None:
    strategy = kit.strategy("moving-window", storage)
    assert strategy.get_window_stats(TEN) == (now + 60, 10)
    strategy.hit(TEN, cost=4)
    clock.advance("20s")
    strategy.hit(TEN, cost=5)
    # The four are the first that come back, in 40 seconds.
    assert strategy.get_window_stats(TEN) == (now + 40, 1)
    strategy.hit(TEN)
    assert strategy.get_window_stats(TEN) == (now + 40, 0)
    clock.advance("39.999999s")
    assert not strategy.hit(TEN)
    clock.advance("1us")
    assert strategy.get_window_stats(TEN) == (now + 20, 4)
    assert strategy.hit(TEN, cost=4)
    assert not strategy.hit(TEN)


def test_a_sliding_window_fades(kit: Kit, storage: Any, clock: Clock, now: float) -> None:
    strategy = kit.strategy("sliding-window-counter", storage)
    assert strategy.get_window_stats(TEN) == (now, 10)
    strategy.hit(TEN, cost=10)
    assert strategy.get_window_stats(TEN) == (pytest.approx(now + 60), 0)
    # Half of the previous window overlaps: 5 of its 10 count.
    clock.advance("90s")
    assert strategy.get_window_stats(TEN) == (now + 0.001, 5)
    assert strategy.hit(TEN, cost=5)
    assert not strategy.hit(TEN)
    # The count is rounded down, as limits promises: to 9 as soon as it is below 10.
    clock.advance("1ms")
    assert strategy.get_window_stats(TEN) == (now + 6, 1)
    assert strategy.hit(TEN)
    assert not strategy.hit(TEN)


def test_the_end_of_a_sliding_window_is_not_taken_for_now(
    kit: Kit, storage: Any, now: float
) -> None:
    strategy = kit.strategy("sliding-window-counter", storage)
    strategy.hit(TEN)
    assert strategy.get_window_stats(TEN).reset_time == pytest.approx(now + 60)


# Keys


def test_a_cleared_key_is_as_good_as_new_and_others_stay(strategy: Any) -> None:
    strategy.hit(TEN, "alice", cost=10)
    strategy.hit(TEN, "bob", cost=10)
    strategy.clear(TEN, "alice")
    assert strategy.get_window_stats(TEN, "alice").remaining == 10
    assert not strategy.hit(TEN, "bob")
    strategy.clear(TEN, "nobody")


def test_reset_deletes_what_has_the_prefix_and_counts_it(
    kit: Kit, storage: Any, uri: str, admin: redis.Redis
) -> None:
    for number in range(1500):
        storage.acquire_entry(f"user/{number}", 10, 60)
    admin.set("LIMITS:else", 1)
    other = kit.storage(uri, key_prefix="OTHER")
    other.acquire_entry("user", 10, 60)
    assert storage.reset() == 1500
    assert storage.reset() == 0
    assert len(admin.keys()) == 2
    assert other.reset() == 1


def test_a_prefix_is_no_pattern(kit: Kit, uri: str) -> None:
    all_of_them, one = kit.storage(uri, key_prefix="*"), kit.storage(uri, key_prefix="[a]")
    for storage in (all_of_them, one, kit.storage(uri, key_prefix="a")):
        storage.acquire_entry("user", 10, 60)
    assert (all_of_them.reset(), one.reset()) == (1, 1)


def test_an_application_that_changes_its_strategy_starts_afresh(kit: Kit, storage: Any) -> None:
    for name in STRATEGIES:
        assert kit.strategy(name, storage).hit(TEN, cost=10)
    kit.strategy("fixed-window", storage).clear(TEN)
    assert [kit.strategy(name, storage).hit(TEN) for name in STRATEGIES] == [True, True, True]


@pytest.mark.parametrize("limit", ["0/minute", "7/2 second", "3 per 5 month", "2/year"])
def test_any_limit_of_limits_will_do(strategy: Any, limit: str) -> None:
    item = limits.parse(limit)
    assert [strategy.hit(item) for _ in range(item.amount + 1)] == [True] * item.amount + [False]
    assert strategy.get_window_stats(item).remaining == 0


def test_identifiers_may_be_anything(strategy: Any) -> None:
    for name in ("{a}", "}{", "10/1/minute", "a b\r\n*", "é", "x" * 10_000):
        assert strategy.hit(TEN, name, cost=10)
        assert not strategy.hit(TEN, name)


def test_an_item_of_an_own_granularity_has_a_window(kit: Kit, storage: Any, clock: Clock) -> None:
    class PerFortnight(limits.RateLimitItem):
        GRANULARITY = limits.limits.Granularity(14 * 86_400, "fortnight")

    try:
        strategy = kit.strategy("fixed-window", storage)
        assert strategy.hit(PerFortnight(1))
        clock.advance("13d")
        assert not strategy.hit(PerFortnight(1))
        clock.advance("1d")
        assert strategy.hit(PerFortnight(1))
    finally:
        del limits.limits.GRANULARITIES["fortnight"]


@pytest.mark.parametrize("key", ["", "user", "user/10/minute", "user/10/1/parsec"])
def test_a_fixed_window_needs_the_key_of_an_item(storage: Any, key: str) -> None:
    with pytest.raises(ConfigurationError, match=r"RateLimitItem\.key_for"):
        storage.incr(key, 60)
    with pytest.raises(ConfigurationError, match=r"RateLimitItem\.key_for"):
        storage.get(key)


# The server


def test_the_storage_is_well_if_the_server_has_the_module(
    kit: Kit, storage: Any, server: Server, binary: Binary
) -> None:
    assert storage.check()
    server.stop()
    assert not storage.check()
    with Server(binary, module=None) as plain:
        assert not kit.storage(f"ratelimit://127.0.0.1:{plain.port}").check()


def test_a_check_raises_no_error(kit: Kit, storage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("not of redis-py")

    library: Any = redis.asyncio if kit.is_async else redis
    monkeypatch.setattr(library.Redis, "execute_command", fails)
    assert not storage.check()


def test_the_client_is_where_limits_own_storages_have_theirs(kit: Kit, uri: str) -> None:
    library: Any = redis.asyncio if kit.is_async else redis
    # The command `flask limiter config` shows it.
    ours = kit.storage(uri)
    assert isinstance((ours._of if kit.is_async else ours).storage, library.Redis)


def test_an_error_is_raised_as_it_is_or_as_that_of_a_storage(
    kit: Kit, uri: str, server: Server
) -> None:
    bare, wrapping = kit.storage(uri), kit.storage(uri, wrap_exceptions=True)
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


def test_a_server_that_hangs_is_given_up(kit: Kit, server: Server) -> None:
    storage = kit.storage(f"ratelimit://127.0.0.1:{server.port}", socket_timeout=0.05)
    with server.stopped():
        assert not storage.check()
        with pytest.raises(redis.TimeoutError):
            storage.acquire_entry("a", 10, 60)


def test_a_key_or_a_server_without_room_denies(
    kit: Kit, binary: Binary, caplog: pytest.LogCaptureFixture
) -> None:
    # If it were taken for an outage, all hits would pass, or be counted in this process for good.
    with Server(binary, module_args="max-log-entries 3") as small, small.client() as admin:
        storage = kit.storage(f"ratelimit://127.0.0.1:{small.port}")
        moving = kit.strategy("moving-window", storage)
        assert [moving.hit(TEN, "full") for _ in range(5)] == [True] * 3 + [False] * 2
        assert moving.get_window_stats(TEN, "full").remaining in {0, 7}
        assert moving.hit(TEN, "other")
        admin.config_set("maxmemory", 1)
        for name in STRATEGIES:
            strategy = kit.strategy(name, storage)
            assert not strategy.hit(TEN, "new")
            strategy.get_window_stats(TEN, "new")
    lines = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert [line for line in lines if "max-log-entries" in line]
    assert [line for line in lines if "OOM" in line]


def test_what_somebody_has_to_mend_is_logged(
    kit: Kit, binary: Binary, caplog: pytest.LogCaptureFixture
) -> None:
    with Server(binary, module=None) as bare:
        storage = kit.storage(f"ratelimit://127.0.0.1:{bare.port}")
        for _ in range(3):
            with pytest.raises(redis.ResponseError):
                kit.strategy("fixed-window", storage).hit(TEN, "key")
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "--loadmodule" in line


def test_a_hit_whose_reply_was_lost_is_not_sent_again(
    kit: Kit, server: Server, admin: redis.Redis
) -> None:
    storage = kit.storage(f"ratelimit://127.0.0.1:{server.port}", socket_timeout=0.05)
    with server.stopped(), pytest.raises(redis.TimeoutError):
        storage.acquire_entry("a", 10, 60)
    assert admin.ping()
    used = kit.storage(f"ratelimit://127.0.0.1:{server.port}").get_moving_window("a", 10, 60)[1]
    assert used <= 1


def test_a_password_a_user_and_a_database_are_in_the_uri(
    kit: Kit, server: Server, admin: redis.Redis
) -> None:
    admin.acl_setuser(
        "limits", enabled=True, passwords=["+p@ss:w"], commands=["+@all"], keys=["RATELIMIT:*"]
    )
    storage = kit.storage(f"ratelimit://limits:p%40ss%3Aw@127.0.0.1:{server.port}/3")
    assert storage.acquire_entry("a", 10, 60)
    admin.select(3)
    assert len(admin.keys()) == 1
    wrong = kit.storage(f"ratelimit://limits:p@127.0.0.1:{server.port}")
    assert not wrong.check()


def test_a_socket_is_named_in_the_uri(kit: Kit, binary: Binary) -> None:
    with Server(binary, unixsocket="server.sock") as server:
        storage = kit.storage(f"ratelimit+unix://{server.directory}/server.sock")
        assert storage.acquire_entry("a", 10, 60)
        kit.close()


def test_a_pool_of_ones_own_is_used(kit: Kit, server: Server) -> None:
    library: Any = redis.asyncio if kit.is_async else redis
    pool = library.ConnectionPool(host="127.0.0.1", port=server.port)
    storage = kit.storage("ratelimit://", connection_pool=pool)
    assert storage.acquire_entry("a", 10, 60)
    assert (storage._of if kit.is_async else storage).storage.connection_pool is pool
    # Nobody else's to close.
    (Blocking(pool, kit._runner).aclose if kit.is_async else pool.close)()


def test_keys_are_all_over_a_cluster_and_a_hit_is_one_command(kit: Kit, cluster: Cluster) -> None:
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in cluster.servers)
    storage = kit.storage(f"ratelimit+cluster://{hosts}")
    assert storage.check()
    clients = [server.client(decode_responses=True) for server in cluster.servers]
    for client in clients:
        client.config_resetstat()
    for name in STRATEGIES:
        strategy = kit.strategy(name, storage)
        for user in range(100):
            assert strategy.hit(TEN, user, cost=10)
            assert not strategy.hit(TEN, user)
    stats = [client.info("commandstats") for client in clients]
    taken = [stat["cmdstat_rl.take"]["calls"] for stat in stats if "cmdstat_rl.take" in stat]
    assert (len(taken), sum(taken)) == (PRIMARIES, 600)
    assert not any("getkeys" in name for stat in stats for name in stat)
    kit.strategy("moving-window", storage).clear(TEN, 0)
    assert storage.reset() == 297


def test_a_cluster_that_is_away_stops_no_application(kit: Kit, server: Server) -> None:
    storage = kit.storage(f"ratelimit+cluster://127.0.0.1:{server.port}")
    assert not storage.check()  # it is no cluster


def test_the_primary_that_sentinels_name_is_used(kit: Kit, binary: Binary) -> None:
    with Server(binary) as primary, Sentinels(primary, replicas=0) as sentinels:
        hosts = ",".join(f"127.0.0.1:{port}" for port in sentinels._ports)
        storage = kit.storage(f"ratelimit+sentinel://{hosts}/{sentinel.NAME}")
        assert kit.strategy("moving-window", storage).hit(TEN)
        with primary.client() as client:
            assert client.dbsize() == 1
        kit.close()
        # redis-py leaves these open.
        of = storage._of if kit.is_async else storage
        for client in of.storage.connection_pool.sentinel_manager.sentinels:
            (Blocking(client, kit._runner).aclose if kit.is_async else client.close)()


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("ratelimit+cluster://localhost", "'localhost' is not host:port"),
        ("ratelimit+cluster://localhost:port", "localhost:port: "),
        ("ratelimit+cluster://:secret@a:1,:2", "':2' is not host:port"),
        ("ratelimit+sentinel://localhost:26379", "no service: ratelimit[+]sentinel://"),
    ],
)
def test_a_uri_that_lacks_something_is_refused(kit: Kit, uri: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        kit.storage(uri)


def test_the_schemes_are_those_of_the_document() -> None:
    for scheme in redis_ratelimit.storage.SCHEMES:
        assert f"{scheme}://" in str(redis_ratelimit.storage.__doc__)
        for prefix in ("", "async+"):
            found = limits.storage.SCHEMES[prefix + scheme]
            assert issubclass(found, (RateLimitStorage, AsyncRateLimitStorage))
