"""A full log or lease table is an error, and everything else continues."""

from collections.abc import Callable

import pytest
from redis import Redis, ResponseError

from support import poll
from support.clock import START_US, UNITS_US, Clock
from support.pressure_calls import (
    MAX_ENTRIES,
    Start,
    fill_and_deny,
    flood,
    full_key_error,
    holder,
    quiet_memory,
    remaining,
)
from support.scale import first_on_every_server, scaled
from support.server import Server
from support.workload import digests, play, state, steps

pytestmark = [pytest.mark.every_server, pytest.mark.timeout(scaled(180, 3600))]
HOUR = UNITS_US["h"]


def fill_log(client: Redis, key: str, count: int, now: int = START_US) -> None:
    """Adds an entry of 0.0001 for each of the last `count` microseconds."""
    entries = " ".join(f"{now - count + n} 100" for n in range(count))
    expiry_ms = (now + HOUR) // 1000
    effect = f"rl-reqlog 1 {expiry_ms} 0 {count} {entries}"
    assert client.execute_command("RL.EFFECT", key, effect) == b"OK"


def fill_leases(client: Redis, key: str, count: int, now: int = START_US) -> None:
    """Adds `count` leases of 0.0001 for an hour from `now`, each of another holder."""
    expires_at = now + HOUR
    leases = " ".join(f"14:{holder(number)} {expires_at} 100" for number in range(count))
    effect = f"rl-leases 1 {expires_at // 1000} 0 {now} {count} {leases}"
    assert client.execute_command("RL.EFFECT", key, effect) == b"OK"


def fill_ids(client: Redis, key: str, count: int, now: int = START_US) -> None:
    """Adds `count` idempotency ids for an hour from `now`."""
    expires_at = now + HOUR
    ids = " ".join(f"10:id {number:07} {expires_at} {now} 0 0" for number in range(count))
    effect = f"rl-limits 1 {expires_at // 1000} 0 {now} 0 1 {count} {ids} 0 0"
    assert client.execute_command("RL.EFFECT", key, effect) == b"OK"


@pytest.fixture
def bounded_server(fresh_server: Start) -> Server:
    settings = ("max-log-entries", "max-leases", "max-ids")
    return fresh_server(module_args=" ".join(f"{setting} {MAX_ENTRIES}" for setting in settings))


@pytest.mark.one_server
def test_a_full_log_is_an_error_and_other_calls_continue(
    bounded_server: Server, clock: Clock
) -> None:
    client = bounded_server.client()
    fill_log(client, "k", MAX_ENTRIES)
    stored = client.dump("k")
    spec = ("SLIDINGLOG", 10**6, "1h")
    for call in [
        ("RL.SLIDINGLOG", "k", *spec[1:]),
        ("RL.SLIDINGLOG", "k", *spec[1:], "COST", 10**7, "FORCE"),
        ("RL.SLIDINGLOG", "k", *spec[1:], "COST", 5, "UPTO"),
        ("RL.TAKE", "k", *spec),
        ("RL.PEEK", "k", *spec),
        ("RL.MTAKE", 2, "other", "k", "FIXED", 10, "1h", *spec),
    ]:
        with pytest.raises(ResponseError, match=full_key_error("max-log-entries")):
            client.execute_command(*call)
    assert client.dump("k") == stored
    assert not client.exists("other")
    # Calls that add no entry are answered: a peek, a denied call, and units given back.
    used = MAX_ENTRIES // 10_000
    assert client.execute_command("RL.PEEK", "k", *spec, "COST", 0)[:3] == [1, 10**6, 10**6 - used]
    assert client.execute_command("RL.SLIDINGLOG", "k", *spec[1:], "COST", 10**6)[0] == 0
    assert client.execute_command("RL.SLIDINGLOG", "other", *spec[1:])[:3] == [1, 10**6, 10**6 - 1]
    assert client.execute_command("RL.SLIDINGLOG", "k", *spec[1:], "COST", "-0.0001")[0] == 1
    assert client.execute_command("RL.SLIDINGLOG", "k", *spec[1:])[0] == 1
    # The same holds after entries have left the window.
    clock.advance(1)
    with pytest.raises(ResponseError, match=full_key_error("max-log-entries")):
        client.execute_command("RL.SLIDINGLOG", "k", *spec[1:])
    clock.set(START_US - MAX_ENTRIES + HOUR + 1)
    for _ in range(2):
        assert client.execute_command("RL.SLIDINGLOG", "k", *spec[1:])[0] == 1
        clock.advance(1)
    clock.advance("1h")
    assert client.execute_command("RL.PEEK", "k", *spec)[:3] == [1, 10**6, 10**6]


@pytest.mark.one_server
def test_a_full_lease_table_is_an_error_and_other_calls_continue(
    bounded_server: Server, clock: Clock
) -> None:
    client = bounded_server.client()
    fill_leases(client, "k", MAX_ENTRIES)
    stored = client.dump("k")
    spec = (10**6, "1h", "new")
    for call in [
        ("RL.ACQUIRE", "k", *spec),
        ("RL.TAKE", "k", "CONCURRENCY", *spec),
        ("RL.PEEK", "k", "CONCURRENCY", *spec),
        ("RL.MTAKE", 2, "other", "k", "FIXED", 10, "1h", "CONCURRENCY", *spec),
    ]:
        with pytest.raises(ResponseError, match=full_key_error("max-leases")):
            client.execute_command(*call)
    assert client.dump("k") == stored
    assert not client.exists("other")
    assert client.execute_command("RL.ACQUIRE", "k", *spec, "COST", 10**6)[0] == 0
    assert client.execute_command("RL.ACQUIRE", "other", *spec)[0] == 1
    assert client.execute_command("RL.ACQUIRE", "k", 10**6, "2h", holder(7), "COST", 2)[0] == 1
    assert client.execute_command("RL.RELEASE", "k", holder(0), "nobody") == 1
    assert client.execute_command("RL.ACQUIRE", "k", *spec)[0] == 1
    with pytest.raises(ResponseError, match=full_key_error("max-leases")):
        client.execute_command("RL.ACQUIRE", "k", 10**6, "1h", "one more")
    # All leases expire except the renewed one.
    clock.advance("1h")
    assert client.execute_command("RL.ACQUIRE", "k", 10**6, "1h", "one more")[2] == 10**6 - 3
    assert client.execute_command("RL.INFO", "k")[7] == 2


@pytest.mark.one_server
def test_a_full_set_of_ids_is_an_error_and_other_calls_continue(
    bounded_server: Server, clock: Clock
) -> None:
    client = bounded_server.client()
    fill_ids(client, "k", MAX_ENTRIES)
    stored = client.dump("k")
    spec = ("FIXED", 100, "1d")
    for call in [
        ("RL.TAKE", "k", *spec, "ONCE", "new", "1h"),
        ("RL.MTAKE", 2, "other", "k", "ONCE", "new", "1h", *spec, *spec),
    ]:
        with pytest.raises(ResponseError, match=full_key_error("max-ids")):
            client.execute_command(*call)
    assert client.dump("k") == stored
    assert not client.exists("other")
    for call in [
        ("RL.TAKE", "k", *spec),
        ("RL.TAKE", "k", *spec, "ONCE", "id 0000007", "1h", "COST", 1000),
        ("RL.TAKE", "k", *spec, "SETTLE", "id 0000008", 0),
        ("RL.PEEK", "k", *spec),
    ]:
        assert client.execute_command(*call)[:3] == [1, 100, 99], call
    assert client.execute_command("RL.BAN", "k", "1m") == 60_000
    # Expired ids make room.
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
        client.execute_command("RL.RELEASE", "leases", *map(holder, range(MAX_ENTRIES))),
        # Ids are removed only by expiry.
        client.delete("ids"),
    ),
}


@pytest.mark.parametrize(
    "case",
    first_on_every_server(
        [(removal, "no") for removal in REMOVALS]
        + [(removal, "yes") for removal in ("DEL", "expired", "overwritten")]
    ),
    ids="-".join,
)
def test_the_largest_log_lease_table_and_set_of_ids_give_their_memory_back(
    case: tuple[str, str], fresh_server: Start, clock: Clock
) -> None:
    removal, lazy = case
    server = fresh_server(
        module_args=f"max-log-entries {MAX_ENTRIES} max-leases {MAX_ENTRIES} max-ids {MAX_ENTRIES}",
        lazyfree_lazy_user_del=lazy,
        lazyfree_lazy_expire=lazy,
        lazyfree_lazy_server_del=lazy,
    )
    client = server.client()

    def fill(count: int) -> None:
        fill_log(client, "log", count)
        fill_leases(client, "leases", count)
        fill_ids(client, "ids", count)

    # Makes the server allocate what it keeps, such as the latency histogram of each command.
    fill(1000)
    REMOVALS[removal](client, clock)
    client.execute_command("FLUSHALL", "SYNC")
    clock.reset()
    empty = quiet_memory(client)
    fill(MAX_ENTRIES)
    assert quiet_memory(client) > empty + 100 * MAX_ENTRIES
    REMOVALS[removal](client, clock)
    poll.until(
        lambda: quiet_memory(client) < empty + MAX_ENTRIES, "the memory is free again", timeout=60
    )


# Active defragmentation


def test_limiters_are_unchanged_by_defragmentation(fresh_server: Start, clock: Clock) -> None:
    server = fresh_server()
    client = server.client()
    try:
        client.config_set("activedefrag", "yes")
    except ResponseError as error:
        pytest.skip(f"the server's allocator does not support defragmentation: {error}")
    client.config_set("activedefrag", "no")

    play(steps(seed=100, count=1000), clock, client)
    fill_log(client, "large log", 20_000, clock.now)
    fill_leases(client, "large leases", 20_000, clock.now)
    # Deleted keys left holes between the blocks of the remaining ones.
    numbers = range(scaled(20_000, 1_000_000))
    flood(client, numbers)
    client.delete(*(f"flood:{number}" for number in numbers if number % 5))
    names = sorted(client.keys())
    stored, digests_before = state(client), digests(client, names)
    expected = remaining(client, numbers)

    client.config_set("active-defrag-ignore-bytes", 1)
    client.config_set("active-defrag-threshold-lower", 1)
    client.config_set("active-defrag-cycle-min", 40)
    client.config_set("active-defrag-cycle-max", 80)
    before = client.info("stats")["active_defrag_key_hits"]
    client.config_set("activedefrag", "yes")
    poll.until(
        # Every remaining key is at least one block.
        lambda: client.info("stats")["active_defrag_key_hits"] - before > len(numbers) // 20,
        "keys are moved",
        timeout=60,
    )
    assert state(client) == stored
    assert digests(client, names) == digests_before
    assert remaining(client, numbers) == expected
    # During defragmentation calls are charged as usual, and new keys are moved too.
    fill_and_deny(client, numbers[::5])
    assert client.execute_command("RL.SLIDINGLOG", "large log", 100, "1h", "COST", 98)[0] == 1
    assert client.execute_command("RL.RELEASE", "large leases", holder(0), holder(19_999)) == 2
    client.config_set("activedefrag", "no")
    stored = state(client)
    client.execute_command("DEBUG", "RELOAD")
    assert state(client) == stored
