"""With any eviction policy, a flood of keys is answered within `maxmemory`, and limiters that are
not evicted have the exact usage.

* A full log or lease table is an error, and everything else continues.
- An evicted limiter is forgotten.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest
from redis import Connection, OutOfMemoryError, Redis, ResponseError

from conftest import Pair
from support import poll
from support.clock import START_US, UNITS_US, Clock
from support.scale import first_on_every_server, scaled
from support.server import Server
from support.workload import (
    LIMITERS,
    Limiter,
    Word,
    digests,
    each_limiter_on_one_server,
    play,
    state,
    steps,
)

pytestmark = [pytest.mark.every_server, pytest.mark.timeout(scaled(180, 3600))]

Start = Callable[..., Server]
HOUR = UNITS_US["h"]

POLICIES = [
    "allkeys-lru",
    "allkeys-lfu",
    "allkeys-random",
    "volatile-lru",
    "volatile-lfu",
    "volatile-random",
    "volatile-ttl",
]
# As much is evicted at once as has to be; and what is kept for replicas, which counts, is little.
EVICTING = {"maxmemory_eviction_tenacity": 100, "repl_backlog_size": 16_384}
# Of a flood, sent at a time.
BATCH = 500


def limiter_of(number: int) -> Limiter:
    return LIMITERS[number % len(LIMITERS)]


def cost_of(number: int) -> int:
    """Each key of a flood is charged so much, by which it is known again."""
    return 1 + number // len(LIMITERS) % 9


def flood(client: Redis, numbers: range, watch: Callable[[], None] = lambda: None) -> list[object]:
    """Charges a key of its own for each number, the kinds in turn; the replies, errors included."""
    replies: list[object] = []
    for start in range(numbers.start, numbers.stop, BATCH):
        pipeline = client.pipeline(transaction=False)
        for number in range(start, min(start + BATCH, numbers.stop)):
            call = limiter_of(number).take(f"flood:{number}", cost_of(number))
            pipeline.execute_command(*call)
        replies += pipeline.execute(raise_on_error=False)
        watch()
    return replies


def remaining(client: Redis, numbers: range) -> list[int]:
    """What each key of a flood has left of its 10 units, as somebody else sees it."""
    pipeline = client.pipeline(transaction=False)
    for number in numbers:
        pipeline.execute_command(*limiter_of(number).by("other").peek(f"flood:{number}"))
    return [units for _, _, units, _, _ in pipeline.execute()]


def counted_memory(client: Redis) -> int:
    """What the server compares with maxmemory."""
    memory = client.info("memory")
    return memory["used_memory"] - memory["mem_not_counted_for_evict"]


# maxmemory


@pytest.mark.parametrize("policy", first_on_every_server(POLICIES))
def test_with_an_eviction_policy_a_flood_of_keys_is_answered_within_the_memory_that_there_is(
    policy: str, fresh_server: Start
) -> None:
    server = fresh_server(maxmemory_policy=policy, **EVICTING)
    replica = server.replica()
    client = server.client()
    client.set("no limiter", "has no TTL")
    most = counted_memory(client) + scaled(1_000_000, 10_000_000)
    client.config_set("maxmemory", most)

    def watch() -> None:
        # The server has evicted before it tells, but telling takes memory, too.
        assert counted_memory(client) < most + 20_000

    numbers = range(scaled(8_000, 80_000))
    replies = flood(client, numbers, watch)
    for number, reply in zip(numbers, replies, strict=True):
        # Every key is new.
        assert reply[:3] == [1, 10, 10 - cost_of(number)]
    client.config_set("maxmemory", 0)

    evicted = client.info("stats")["evicted_keys"]
    living = set(client.keys("flood:*"))
    assert evicted > len(numbers) // 10
    assert len(living) > len(numbers) // 100
    if policy.startswith("volatile-"):
        assert client.exists("no limiter")
        assert evicted + len(living) == len(numbers)
    found = remaining(client, numbers)
    for number, units in zip(numbers, found, strict=True):
        # What was evicted is as if it had never been seen.
        lives = b"flood:%d" % number in living
        assert units == (10 - cost_of(number) if lives else 10)

    replica.wait_for_sync()
    assert state(replica.client()) == state(client)
    gone = next(number for number in numbers if b"flood:%d" % number not in living)
    assert client.execute_command(*limiter_of(gone).take(f"flood:{gone}", 10))[:3] == [1, 10, 0]


def test_of_volatile_ttl_the_limiters_that_expire_first_go_first(
    fresh_server: Start, clock: Clock
) -> None:
    server = fresh_server(maxmemory_policy="volatile-ttl", **EVICTING)
    client = server.client()
    client.config_set("maxmemory", counted_memory(client) + 1_000_000)

    def charge(name: str, window: str, count: int) -> None:
        pipeline = client.pipeline(transaction=False)
        for number in range(count):
            pipeline.execute_command("RL.FIXED", f"{name}:{number}", 10, window)
        pipeline.execute()

    # More of the short ones than there is room for, then some that outlast them.
    charge("short", "10m", 16_000)
    before = client.info("stats")["evicted_keys"]
    charge("long", "1h", 1000)
    assert client.info("stats")["evicted_keys"] > before + 100
    assert len(client.keys("long:*")) == 1000
    clock.advance("10m")
    assert client.execute_command("RL.PEEK", "long:0", "FIXED", 10, "1h")[:3] == [1, 10, 9]


def test_with_noeviction_a_flood_fills_the_memory_and_what_is_there_goes_on(
    fresh_server: Start,
) -> None:
    client = fresh_server().client()
    most = counted_memory(client) + scaled(1_000_000, 10_000_000)
    client.config_set("maxmemory", most)
    numbers = range(scaled(8_000, 80_000))
    replies = flood(client, numbers)
    assert counted_memory(client) < most + 100_000
    assert client.info("stats")["evicted_keys"] == 0
    made = [number for number, reply in zip(numbers, replies, strict=True) if type(reply) is list]
    refused = [reply for reply in replies if type(reply) is not list]
    assert len(refused) > len(numbers) // 10
    assert {type(error) for error in refused} == {OutOfMemoryError}
    assert sorted(client.keys()) == sorted(b"flood:%d" % number for number in made)
    # A holder renews, a log adds to the entry of that instant, all others charge; none is let in.
    pipeline = client.pipeline(transaction=False)
    for number in made:
        limiter, key = limiter_of(number), f"flood:{number}"
        units = 10 if limiter.leases else 10 - cost_of(number)
        pipeline.execute_command(*limiter.take(key, units))
        pipeline.execute_command(*limiter.by("other").take(key))
    answers = iter(pipeline.execute())
    for taken, denied in zip(answers, answers, strict=True):
        assert taken[:3] == [1, 10, 0]
        assert denied[:3] == [0, 10, 0]


# Keys without end


def quiet_memory(client: Redis) -> int:
    """Without the buffers that the server keeps for a while of a connection used for much."""
    client.connection_pool.disconnect()
    return client.info("memory")["used_memory"]


def test_after_many_keys_of_all_kinds_have_expired_memory_is_where_it_began(
    fresh_server: Start, clock: Clock
) -> None:
    """The server shrinks its tables of keys step by step once they are empty. Then there is left
    less than what would be if each key had left a byte or two behind.
    """
    client = fresh_server().client()
    numbers = range(scaled(40_000, 1_000_000))
    # What the server makes itself once, for a few keys.
    flood(client, range(len(LIMITERS)))
    clock.advance("1d")
    poll.until(lambda: client.dbsize() == 0, "the first few have expired", timeout=30)
    empty = quiet_memory(client)

    assert {reply[0] for reply in flood(client, numbers)} == {1}
    assert client.dbsize() == len(numbers)
    full = quiet_memory(client)
    assert full > empty + 100 * len(numbers)
    clock.advance("1d")
    # Some go when they are looked at, the others in the background.
    client.exists(*(f"flood:{number}" for number in range(0, len(numbers), 10)))
    poll.until(lambda: client.dbsize() == 0, "all keys have expired", timeout=600)
    bound = empty + 2 * len(numbers)
    poll.until(lambda: quiet_memory(client) < bound, "the memory is free again", timeout=60)


# 1000 clients


CLIENTS = 1000


@pytest.fixture
def connections(pair: Pair) -> Iterator[list[Connection]]:
    """Of as many clients, all of them connected at once."""
    client = pair.primary.client()
    pool = client.connection_pool
    pool.max_connections = CLIENTS + 1
    with ExitStack() as opened:
        connections = []
        for _ in range(CLIENTS):
            connection = pool.get_connection()
            opened.callback(pool.release, connection)
            connections.append(connection)
        assert client.info("clients")["connected_clients"] >= CLIENTS
        yield connections
    pool.disconnect()


def at_once(
    connections: Sequence[Connection], call: Callable[[int], tuple[Word, ...]]
) -> list[list[int]]:
    """Every client has sent its call before the first one reads its reply."""
    for number, connection in enumerate(connections):
        connection.send_command(*call(number))
    return [connection.read_response() for connection in connections]


@each_limiter_on_one_server
def test_of_a_thousand_clients_exactly_the_limit_is_admitted(
    limiter: Limiter, connections: list[Connection], pair: Pair, clock: Clock
) -> None:
    # A fiftieth of a unit each, so that 500 fit.
    replies = at_once(connections, lambda n: limiter.by(f"{n}").take("k", "0.02"))
    assert [allowed for allowed, *_ in replies].count(1) == 500
    replies = at_once(connections, lambda n: limiter.by(f"new {n}").take("k", "0.02"))
    assert {(allowed, left) for allowed, _, left, _, _ in replies} == {(0, 0)}
    # So it is, of several keys in one call, by whichever has the least.
    several = at_once(
        connections,
        lambda n: (
            *("RL.MTAKE", 3, "a", "b", "c"),
            *limiter.by(f"{n}").full("0.05"),
            *("FIXED", 123, "1h", "SLIDINGLOG", 456, "1h"),
        ),
    )
    assert [allowed for allowed, *_ in several].count(1) == 123
    client = pair.primary.client()
    assert client.execute_command("RL.PEEK", "c", "SLIDINGLOG", 456, "1h")[2] == 456 - 123
    pair.replica.wait_for_sync()
    assert state(pair.replica.client()) == state(client)
    # All may come again once what was admitted has recovered.
    clock.advance(limiter.recovery)
    replies = at_once(connections, lambda n: limiter.by(f"later {n}").take("k", "0.02"))
    assert [allowed for allowed, *_ in replies].count(1) == 500


@pytest.mark.one_server
def test_a_thousand_clients_do_not_disturb_each_others_keys(
    connections: list[Connection], pair: Pair
) -> None:
    def take_three(holder: str) -> set[tuple[int, ...]]:
        replies = at_once(connections, lambda n: limiter_of(n).by(holder).take(f"of client {n}", 3))
        return {tuple(reply[:3]) for reply in replies}

    assert take_three("a") == {(1, 10, 7)}
    assert take_three("b") == {(1, 10, 4)}
    assert take_three("c") == {(1, 10, 1)}
    assert take_three("d") == {(0, 10, 1)}
    assert pair.primary.client().dbsize() == CLIENTS


# Logs and leases at their most

# As many as the setting allows by default; the long form goes past that.
MOST = scaled(100_000, 1_000_000)


def fill_log(client: Redis, key: str, count: int, now: int = START_US) -> None:
    """With an entry of 0.0001 for each of the last microseconds."""
    entries = " ".join(f"{now - count + n} 100" for n in range(count))
    expiry_ms = (now + HOUR) // 1000
    effect = f"rl-reqlog 1 {expiry_ms} 0 {count} {entries}"
    assert client.execute_command("RL.EFFECT", key, effect) == b"OK"


def holder(number: int) -> str:
    return f"holder {number:07}"


def fill_leases(client: Redis, key: str, count: int, now: int = START_US) -> None:
    """With as many holders of 0.0001 each, for an hour from now."""
    expires_at = now + HOUR
    leases = " ".join(f"14:{holder(number)} {expires_at} 100" for number in range(count))
    effect = f"rl-leases 1 {expires_at // 1000} 0 {now} {count} {leases}"
    assert client.execute_command("RL.EFFECT", key, effect) == b"OK"


def fill_ids(client: Redis, key: str, count: int, now: int = START_US) -> None:
    """With as many ids, for an hour from now."""
    expires_at = now + HOUR
    ids = " ".join(f"10:id {number:07} {expires_at} {now} 0 0" for number in range(count))
    effect = f"rl-limits 1 {expires_at // 1000} 0 {now} 0 1 {count} {ids} 0 0"
    assert client.execute_command("RL.EFFECT", key, effect) == b"OK"


@pytest.fixture
def limits(fresh_server: Start) -> Server:
    settings = ("max-log-entries", "max-leases", "max-ids")
    return fresh_server(module_args=" ".join(f"{setting} {MOST}" for setting in settings))


def full(setting: str) -> str:
    return f"^the key has {MOST} entries, as many as ratelimit.{setting} allows$"


@pytest.mark.one_server
def test_a_log_at_its_most_is_an_error_and_all_else_goes_on(limits: Server, clock: Clock) -> None:
    client = limits.client()
    fill_log(client, "k", MOST)
    held = client.dump("k")
    spec = ("SLIDINGLOG", 10**6, "1h")
    for call in [
        ("RL.SLIDINGLOG", "k", *spec[1:]),
        ("RL.SLIDINGLOG", "k", *spec[1:], "COST", 10**7, "FORCE"),
        ("RL.SLIDINGLOG", "k", *spec[1:], "COST", 5, "UPTO"),
        ("RL.TAKE", "k", *spec),
        ("RL.PEEK", "k", *spec),
        ("RL.MTAKE", 2, "other", "k", "FIXED", 10, "1h", *spec),
    ]:
        with pytest.raises(ResponseError, match=full("max-log-entries")):
            client.execute_command(*call)
    assert client.dump("k") == held
    assert not client.exists("other")
    # What adds no entry is answered: the look, the denied, and the given back.
    used = MOST // 10_000
    left = 10**6 - used
    assert client.execute_command("RL.PEEK", "k", *spec, "COST", 0)[:3] == [1, 10**6, left]
    assert client.execute_command("RL.SLIDINGLOG", "k", *spec[1:], "COST", 10**6)[0] == 0
    assert client.execute_command("RL.SLIDINGLOG", "other", *spec[1:])[:3] == [1, 10**6, 10**6 - 1]
    assert client.execute_command("RL.SLIDINGLOG", "k", *spec[1:], "COST", "-0.0001")[0] == 1
    assert client.execute_command("RL.SLIDINGLOG", "k", *spec[1:])[0] == 1
    # So it is with what has left the window.
    clock.advance(1)
    with pytest.raises(ResponseError, match=full("max-log-entries")):
        client.execute_command("RL.SLIDINGLOG", "k", *spec[1:])
    clock.set(START_US - MOST + HOUR + 1)
    for _ in range(2):
        assert client.execute_command("RL.SLIDINGLOG", "k", *spec[1:])[0] == 1
        clock.advance(1)
    clock.advance("1h")
    assert client.execute_command("RL.PEEK", "k", *spec)[:3] == [1, 10**6, 10**6]


@pytest.mark.one_server
def test_a_lease_table_at_its_most_is_an_error_and_all_else_goes_on(
    limits: Server, clock: Clock
) -> None:
    client = limits.client()
    fill_leases(client, "k", MOST)
    held = client.dump("k")
    spec = (10**6, "1h", "new")
    for call in [
        ("RL.ACQUIRE", "k", *spec),
        ("RL.TAKE", "k", "CONCURRENCY", *spec),
        ("RL.PEEK", "k", "CONCURRENCY", *spec),
        ("RL.MTAKE", 2, "other", "k", "FIXED", 10, "1h", "CONCURRENCY", *spec),
    ]:
        with pytest.raises(ResponseError, match=full("max-leases")):
            client.execute_command(*call)
    assert client.dump("k") == held
    assert not client.exists("other")
    assert client.execute_command("RL.ACQUIRE", "k", *spec, "COST", 10**6)[0] == 0
    assert client.execute_command("RL.ACQUIRE", "other", *spec)[0] == 1
    assert client.execute_command("RL.ACQUIRE", "k", 10**6, "2h", holder(7), "COST", 2)[0] == 1
    assert client.execute_command("RL.RELEASE", "k", holder(0), "nobody") == 1
    assert client.execute_command("RL.ACQUIRE", "k", *spec)[0] == 1
    with pytest.raises(ResponseError, match=full("max-leases")):
        client.execute_command("RL.ACQUIRE", "k", 10**6, "1h", "one more")
    # All but the one that was renewed for longer expire.
    clock.advance("1h")
    assert client.execute_command("RL.ACQUIRE", "k", 10**6, "1h", "one more")[2] == 10**6 - 3
    assert client.execute_command("RL.INFO", "k")[7] == 2


@pytest.mark.one_server
def test_a_key_with_as_many_ids_as_it_may_have_is_an_error_and_all_else_goes_on(
    limits: Server, clock: Clock
) -> None:
    client = limits.client()
    fill_ids(client, "k", MOST)
    held = client.dump("k")
    spec = ("FIXED", 100, "1d")
    for call in [
        ("RL.TAKE", "k", *spec, "ONCE", "new", "1h"),
        ("RL.MTAKE", 2, "other", "k", "ONCE", "new", "1h", *spec, *spec),
    ]:
        with pytest.raises(ResponseError, match=full("max-ids")):
            client.execute_command(*call)
    assert client.dump("k") == held
    assert not client.exists("other")
    for call in [
        ("RL.TAKE", "k", *spec),
        ("RL.TAKE", "k", *spec, "ONCE", "id 0000007", "1h", "COST", 1000),
        ("RL.TAKE", "k", *spec, "SETTLE", "id 0000008", 0),
        ("RL.PEEK", "k", *spec),
    ]:
        assert client.execute_command(*call)[:3] == [1, 100, 99], call
    assert client.execute_command("RL.BAN", "k", "1m") == 60_000
    # As they expire, they make room.
    clock.advance("1h")
    assert client.execute_command("RL.TAKE", "k", *spec, "ONCE", "new", "1h")[:3] == [1, 100, 98]


LARGEST = ("log", "leases", "ids")
REMOVALS: dict[str, Callable[[Redis, Clock], object]] = {
    "UNLINK": lambda client, _: client.unlink(*LARGEST),
    "DEL": lambda client, _: client.delete(*LARGEST),
    "FLUSHALL ASYNC": lambda client, _: client.execute_command("FLUSHALL", "ASYNC"),
    "expired": lambda _, clock: clock.advance("1d"),
    "overwritten": lambda client, _: client.mset(dict.fromkeys(LARGEST, "x")),
    "emptied": lambda client, _: (
        client.execute_command("RL.SLIDINGLOG", "log", 1, "1h", "COST", -(10**6)),
        client.execute_command("RL.RELEASE", "leases", *map(holder, range(MOST))),
        # Ids only expire.
        client.delete("ids"),
    ),
}


@pytest.mark.parametrize(
    "case",
    first_on_every_server(
        [(how, "no") for how in REMOVALS]
        + [(how, "yes") for how in ("DEL", "expired", "overwritten")]
    ),
    ids="-".join,
)
def test_the_largest_log_lease_table_and_set_of_ids_give_their_memory_back(
    case: tuple[str, str], fresh_server: Start, clock: Clock
) -> None:
    how, lazy = case
    server = fresh_server(
        module_args=f"max-log-entries {MOST} max-leases {MOST} max-ids {MOST}",
        lazyfree_lazy_user_del=lazy,
        lazyfree_lazy_expire=lazy,
        lazyfree_lazy_server_del=lazy,
    )
    client = server.client()

    def fill(count: int) -> None:
        fill_log(client, "log", count)
        fill_leases(client, "leases", count)
        fill_ids(client, "ids", count)

    # What the server makes itself once: a histogram of each command's times, say.
    fill(1000)
    REMOVALS[how](client, clock)
    client.execute_command("FLUSHALL", "SYNC")
    clock.reset()
    empty = quiet_memory(client)
    fill(MOST)
    assert quiet_memory(client) > empty + 100 * MOST
    REMOVALS[how](client, clock)
    poll.until(lambda: quiet_memory(client) < empty + MOST, "the memory is free again", timeout=60)


# Active defragmentation


def test_limiters_that_the_server_moves_to_better_places_stay_what_they_are(
    fresh_server: Start, clock: Clock
) -> None:
    server = fresh_server()
    client = server.client()
    try:
        client.config_set("activedefrag", "yes")
    except ResponseError as error:
        pytest.skip(f"the server's allocator gives no hints: {error}")
    client.config_set("activedefrag", "no")

    play(steps(seed=100, count=1000), clock, client)
    fill_log(client, "large log", 20_000, clock.now)
    fill_leases(client, "large leases", 20_000, clock.now)
    # Between the blocks of those that stay are holes, where others have been.
    numbers = range(scaled(20_000, 1_000_000))
    flood(client, numbers)
    client.delete(*(f"flood:{number}" for number in numbers if number % 5))
    names = sorted(client.keys())
    held, digested = state(client), digests(client, names)
    left = remaining(client, numbers)

    client.config_set("active-defrag-ignore-bytes", 1)
    client.config_set("active-defrag-threshold-lower", 1)
    client.config_set("active-defrag-cycle-min", 40)
    client.config_set("active-defrag-cycle-max", 80)
    before = client.info("stats")["active_defrag_key_hits"]
    client.config_set("activedefrag", "yes")
    poll.until(
        # Every key that stays is a value of a block, at the least.
        lambda: client.info("stats")["active_defrag_key_hits"] - before > len(numbers) // 20,
        "keys are moved",
        timeout=60,
    )
    assert state(client) == held
    assert digests(client, names) == digested
    assert remaining(client, numbers) == left
    # While it goes on, all is charged as ever; and what comes is moved, too.
    pipeline = client.pipeline(transaction=False)
    for number in numbers[::5]:
        limiter, key = limiter_of(number), f"flood:{number}"
        units = 10 if limiter.leases else 10 - cost_of(number)
        pipeline.execute_command(*limiter.take(key, units))
        pipeline.execute_command(*limiter.by("other").take(key))
    answers = iter(pipeline.execute())
    for taken, denied in zip(answers, answers, strict=True):
        assert (taken[:3], denied[:3]) == ([1, 10, 0], [0, 10, 0])
    assert client.execute_command("RL.SLIDINGLOG", "large log", 100, "1h", "COST", 98)[0] == 1
    assert client.execute_command("RL.RELEASE", "large leases", holder(0), holder(19_999)) == 2
    client.config_set("activedefrag", "no")
    held = state(client)
    client.execute_command("DEBUG", "RELOAD")
    assert state(client) == held
