"""A replica has its primary's policies after resyncs and failovers. One that loads beside its old
data uses its old policies until the load is complete.

`test_resync.py` and `test_failover.py` ask the same of keys.
"""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from redis import ConnectionError as RedisConnectionError
from redis import ReadOnlyError, Redis, ResponseError

from conftest import Pair
from support import poll
from support.clock import Clock
from support.cluster import Cluster
from support.policies import (
    NAMES,
    SPECS,
    Governing,
    change,
    known,
    knows_deletion,
    policies,
    policy,
    set_policy,
)
from support.saving import rewrite_aof, wait_until_saved
from support.scale import first_on_every_server, scaled
from support.sentinel import PATIENCE, Sentinels
from support.server import Server

Start = Callable[..., Server]

pytestmark = [pytest.mark.every_server, pytest.mark.timeout(scaled(240, 3600))]

BALLAST = bytes(2**20)


def offset(client: Redis) -> int:
    return client.info("replication")["master_repl_offset"]


def syncs(primary: Redis) -> tuple[int, int]:
    """How many resyncs were full, and how many partial."""
    stats = primary.info("stats")
    return stats["sync_full"], stats["sync_partial_ok"]


def is_up(replica: Redis) -> bool:
    return replica.info("replication")["master_link_status"] == "up"


def assert_the_same(primary: Server, *replicas: Server) -> None:
    for replica in replicas:
        replica.wait_for_sync()
    with primary.client() as client:
        expected = known(client)
    for replica in replicas:
        with replica.client() as client:
            assert known(client) == expected


@pytest.fixture
def both(pair: Pair) -> tuple[Redis, Redis]:
    """A primary and its replica, without policies."""
    primary, replica = pair.primary.client(), pair.replica.client()
    names = policies(primary)
    if names:
        primary.execute_command("RL.POLICYDEL", *names)
    pair.replica.wait_for_sync()
    return primary, replica


def test_every_change_of_a_policy_reaches_the_replica(
    pair: Pair, both: tuple[Redis, Redis]
) -> None:
    primary, replica = both
    first = set_policy(primary, "a")
    for call in (
        ("RL.POLICYSET", "b", "NX", *SPECS[1]),
        ("RL.POLICYSCALE", "a", "0.5", "FOR", "1h"),
        ("RL.POLICYSET", "a", "VERSION", first, *SPECS[2]),
        ("RL.POLICYSCALE", "b", "2"),
        ("RL.POLICYDEL", "a"),
        ("RL.POLICYSET", "a", *SPECS[3]),
        ("RL.POLICYDEL", "a", "b"),
    ):
        before = policies(primary)
        primary.execute_command(*call)
        pair.replica.wait_for_sync()
        assert policies(primary) != before
        assert policies(replica) == policies(primary), call


def test_the_deletion_of_a_version_reaches_the_replica(
    pair: Pair, both: tuple[Redis, Redis]
) -> None:
    primary, replica = both
    version = set_policy(primary, "a")
    primary.execute_command("RL.POLICYDEL", "a", "VERSION", version)
    pair.replica.wait_for_sync()
    assert policies(replica) == policies(primary) == {}


def test_what_changes_no_policy_is_not_propagated(pair: Pair, both: tuple[Redis, Redis]) -> None:
    primary, _ = both
    set_policy(primary, "a", "FIXED", 1, "1h")
    primary.execute_command("RL.LIMIT", "k", "a")
    pair.replica.wait_for_sync()
    before = offset(primary)
    primary.execute_command("RL.POLICYSET", "a", "NX", *SPECS[1])
    primary.execute_command("RL.POLICYDEL", "nobody")
    primary.execute_command("RL.POLICYGET", "a")
    primary.execute_command("RL.POLICYLIST")
    # Denied: counted for the policy, by this server.
    assert primary.execute_command("RL.LIMIT", "k", "a")[0] == 0
    for refused in (
        ("RL.POLICYSET", "a", "VERSION", 1000, *SPECS[1]),
        ("RL.POLICYSET", "a", "FIXED", 1),
        ("RL.POLICYDEL", "a", "VERSION", 1000),
        ("RL.POLICYDEL", "nobody", "VERSION", 1000),
        ("RL.POLICYSCALE", "nobody", 1),
        ("RL.POLICYEFFECT", "rl-policy 1 no record"),
    ):
        with pytest.raises(ResponseError):
            primary.execute_command(*refused)
    assert offset(primary) == before


def test_changes_in_transactions_and_scripts_reach_the_replica(
    pair: Pair, both: tuple[Redis, Redis]
) -> None:
    primary, replica = both
    together = primary.pipeline()
    together.execute_command("RL.POLICYSET", "a", *SPECS[0])
    together.execute_command("RL.POLICYSCALE", "a", 3)
    together.execute_command("RL.LIMIT", "k", "a")
    together.execute()
    primary.eval(
        "redis.call('RL.POLICYSET', 'b', 'FIXED', 1, '1h'); redis.call('RL.POLICYDEL', 'a')", 0
    )
    pair.replica.wait_for_sync()
    assert policies(replica) == policies(primary)
    assert policies(primary).keys() == {b"b"}


def test_a_replica_refuses_changes_and_decides_by_the_policies_it_has(
    pair: Pair, both: tuple[Redis, Redis]
) -> None:
    primary, replica = both
    set_policy(primary, "a", "FIXED", 10, "1h")
    primary.execute_command("RL.LIMIT", "k", "a")
    primary.execute_command("RL.POLICYSCALE", "a", "0.5")
    pair.replica.wait_for_sync()
    before = policies(replica)
    for call in (
        ("RL.POLICYSET", "a", *SPECS[0]),
        ("RL.POLICYSCALE", "a", 2),
        ("RL.POLICYDEL", "a"),
        ("RL.LIMIT", "k", "a"),
        ("RL.DELAY", "k", "a"),
    ):
        with pytest.raises(ReadOnlyError):
            replica.execute_command(*call)
    assert policies(replica) == before
    peek = ("RL.PEEK", "k", "POLICY", "a")
    assert replica.execute_command(*peek) == primary.execute_command(*peek)
    assert replica.execute_command(*peek)[:3] == [1, 5, 4]


def test_a_replica_whose_clock_is_wrong_has_the_same_policies(
    fresh_server: Start, clock: Clock, tmp_path: Path
) -> None:
    primary = fresh_server()
    for number, skew in enumerate(("-1d", "1d")):
        wrong = Clock(clock.library, tmp_path / f"clock {number}")
        wrong.advance(skew)
        replica = primary.replica(clock=wrong)
        change(clock, number, 60, primary.client())
        replica.wait_for_sync()
        assert_the_same(primary, replica)


# Full and partial resyncs


def forget_history(primary: Server) -> None:
    with primary.client() as client:
        client.execute_command("DEBUG", "CHANGE-REPL-ID")
        client.client_kill_filter(_type="replica")


def outgrow_backlog(primary: Server) -> None:
    with primary.client() as client, client.pipeline() as at_once:
        at_once.client_kill_filter(_type="replica")
        at_once.set("ballast", BALLAST).delete("ballast")
        at_once.execute()


def sends_beside(client: Redis) -> None:
    """A snapshot then comes by a connection of its own, while the first brings what goes on."""
    for name in ("dual-channel-replication-enabled", "repl-rdb-channel"):
        if client.config_get(name):
            client.config_set(name, "yes")
            return
    pytest.skip("this server sends a snapshot by the replica's one connection only")


@pytest.mark.parametrize("transfer", ["disk", "diskless", "a second connection"])
@pytest.mark.parametrize("loading", ["disabled", "swapdb"])
def test_a_full_resync_while_policies_change_leaves_the_same(
    transfer: str, loading: str, fresh_server: Start, clock: Clock
) -> None:
    settings = {
        "repl_backlog_size": "16kb",
        "repl_diskless_sync": "no" if transfer == "disk" else "yes",
        "repl_diskless_load": loading,
    }
    primary = fresh_server(**settings)
    replica = primary.replica(**settings)
    client, follower = primary.client(), replica.client()
    if transfer == "a second connection":
        sends_beside(client)
        sends_beside(follower)
    for number, cut_off in enumerate([forget_history, outgrow_backlog] * scaled(1, 10)):
        with Governing(primary, clock, tag=number) as load:
            load.wait_for(turns=100)
            before, _ = syncs(client)
            cut_off(primary)
            poll.until(
                lambda before=before: syncs(client)[0] > before and is_up(follower),
                "the replica has got a snapshot",
                timeout=30,
            )
            load.wait_for(turns=100)
        assert_the_same(primary, replica)
        load.assert_kept(follower)


def test_a_partial_resync_while_policies_change_leaves_the_same(
    fresh_server: Start, clock: Clock
) -> None:
    primary = fresh_server(repl_backlog_size="64mb")
    replica = primary.replica()
    client, follower = primary.client(), replica.client()
    full, partial = syncs(client)
    with Governing(primary, clock) as load:
        for cut in range(1, 6):
            load.wait_for(turns=50)
            client.client_kill_filter(_type="replica")
            poll.until(
                lambda cut=cut: syncs(client)[1] == partial + cut and is_up(follower),
                "the replica is on again",
                timeout=30,
            )
    assert syncs(client) == (full, partial + 5)
    assert_the_same(primary, replica)


@pytest.mark.parametrize("diskless", ["yes", "no"])
def test_a_replica_of_a_replica_has_the_same_policies(
    diskless: str, fresh_server: Start, clock: Clock
) -> None:
    settings = {"repl_diskless_sync": diskless, "repl_backlog_size": "16kb"}
    primary = fresh_server(**settings)
    change(clock, 1, 40, primary.client())
    middle = primary.replica(**settings)
    last = middle.replica(**settings)
    assert_the_same(primary, middle, last)
    change(clock, 2, 40, primary.client())
    assert_the_same(primary, middle, last)
    forget_history(primary)
    change(clock, 3, 40, primary.client())
    assert_the_same(primary, middle, last)


def test_who_becomes_a_replica_has_its_primarys_policies_and_no_other(
    fresh_server: Start, clock: Clock
) -> None:
    primary, other = fresh_server(), fresh_server()
    client, follower = primary.client(), other.client()
    change(clock, 1, 40, follower)
    assert policies(follower)
    other.follow(primary)
    other.wait_for_sync()
    assert policies(client) == policies(follower) == {}
    set_policy(client, "gold")
    assert_the_same(primary, other)
    # Nor is anything known of what it had deleted.
    other.follow(None)
    assert not any(knows_deletion(follower, name) for name in NAMES)


def test_a_restarted_replica_goes_on_with_what_its_snapshot_has(
    fresh_server: Start, clock: Clock
) -> None:
    primary = fresh_server(repl_backlog_size="64mb")
    replica = primary.replica()
    change(clock, 1, 40, primary.client())
    replica.wait_for_sync()
    before = syncs(primary.client())
    replica.stop("save")
    change(clock, 2, 10, primary.client())
    replica.start()
    assert_the_same(primary, replica)
    full, partial = syncs(primary.client())
    assert (full, partial) == (before[0], before[1] + 1)


# A load beside what there was


def begin_to_load(primary: Server, replica: Server, meanwhile: Callable[[Redis], None]) -> None:
    """The replica loads a snapshot, slowly, beside what it has. It has not heard of what happens to
    the primary meanwhile. Redis 6.2 has what it had when such a load fails, but answers nothing
    while it lasts.
    """
    client, follower = primary.client(), replica.client()
    client.config_set("repl-diskless-sync", "yes")
    follower.config_set("repl-diskless-load", "swapdb")
    # More than sockets hold, so that it is not all there when the primary ends.
    for number in range(256):
        client.set(f"large {number}", random.randbytes(2**17))
    replica.wait_for_sync()
    follower.config_set("key-load-delay", 30_000)
    with replica.stopped():
        client.client_kill_filter(_type="replica")
        meanwhile(client)
        client.set("ballast", BALLAST)
        client.delete("ballast")
    poll.until(lambda: is_loading(follower), "the replica loads", timeout=30)


def is_loading(follower: Redis) -> bool:
    info = follower.info("persistence")
    return bool(info.get("async_loading", info["loading"]))


@pytest.fixture
def loading_pair(fresh_server: Start, clock: Clock) -> Pair:
    """The replica has policies."""
    primary = fresh_server(repl_backlog_size="16kb")
    replica = primary.replica(repl_backlog_size="16kb")
    change(clock, 1, 40, primary.client())
    set_policy(primary.client(), "old", "FIXED", 10, "1h")
    replica.wait_for_sync()
    return Pair(primary, replica)


def becomes_other(client: Redis) -> None:
    client.execute_command("RL.POLICYDEL", "old")
    set_policy(client, "new")


@pytest.mark.parametrize("becomes", first_on_every_server(["other policies", "none"]))
def test_a_replica_that_loads_beside_its_old_data_has_its_old_policies_until_it_is_done(
    becomes: str, loading_pair: Pair, clock: Clock
) -> None:
    primary, replica = loading_pair
    if primary.version < (7,):
        pytest.skip("Redis 6.2 answers nothing while it loads")
    client, follower = primary.client(), replica.client()
    before = policies(follower)

    def becomes_none(client: Redis) -> None:
        client.execute_command("RL.POLICYDEL", *before)
        # After a day it is forgotten that they ever were.
        clock.advance("25h")
        client.save()
        named = b"rl-policy" in (primary.directory / "dump.rdb").read_bytes()
        assert not named
        clock.advance("-25h")

    begin_to_load(primary, replica, becomes_none if becomes == "none" else becomes_other)
    assert policies(client) != before
    assert policies(follower) == before
    assert follower.execute_command("RL.PEEK", "k", "POLICY", "old")[:3] == [1, 10, 10]
    with pytest.raises(ResponseError, match="NOPOLICY"):
        follower.execute_command("RL.PEEK", "k", "POLICY", "new")
    assert is_loading(follower)
    follower.config_set("key-load-delay", 0)
    poll.until(lambda: is_up(follower), "the replica has got a snapshot", timeout=30)
    assert_the_same(primary, replica)
    assert policies(follower).keys() == (set() if becomes == "none" else policies(client).keys())
    assert b"old" not in policies(follower)


def test_a_replica_whose_load_is_aborted_has_its_old_policies(loading_pair: Pair) -> None:
    primary, replica = loading_pair
    follower = replica.client()
    before = policies(follower)
    begin_to_load(primary, replica, becomes_other)
    primary.stop("kill")
    poll.until(lambda: not is_loading(follower), "the load is aborted", timeout=30)
    assert policies(follower) == before
    # And nothing of what it had read appears with what it loads next.
    primary.start()
    set_policy(primary.client(), "third")
    follower.config_set("key-load-delay", 0)
    poll.until(lambda: is_up(follower), "the replica has got a snapshot", timeout=30)
    assert_the_same(primary, replica)
    assert policies(follower).keys() == {b"third"}


# Replicas and AOFs


def test_an_aof_that_is_rewritten_or_switched_on_is_the_servers_own_affair(
    fresh_server: Start, clock: Clock
) -> None:
    settings = {"appendfsync": "always", "aof_use_rdb_preamble": "no"}
    primary = fresh_server(**settings)
    replica = primary.replica(**settings)
    last = replica.replica()
    change(clock, 1, 40, primary.client())
    for server in (primary, replica):
        client = server.client()
        before = syncs(client)
        client.config_set("appendonly", "yes")
        wait_until_saved(client)
        rewrite_aof(client)
        change(clock, 2, 40, primary.client())
        assert_the_same(primary, replica)
        assert_the_same(replica, last)
        assert syncs(client) == before
    for server, rewritten in ((replica, 1), (last, 0)):
        stats = server.client().info("commandstats")
        assert stats.get("cmdstat_bgrewriteaof", {"calls": 0})["calls"] == rewritten
    assert last.client().config_get("appendonly") == {"appendonly": "no"}


@pytest.mark.parametrize("preamble", ["yes", "no"])
def test_a_replica_has_in_its_own_aof_what_a_snapshot_has_brought(
    preamble: str, fresh_server: Start, clock: Clock
) -> None:
    primary = fresh_server()
    change(clock, 1, 40, primary.client())
    replica = primary.replica(appendonly="yes", appendfsync="always", aof_use_rdb_preamble=preamble)
    follower = replica.client()
    wait_until_saved(follower)
    change(clock, 2, 10, primary.client())
    replica.wait_for_sync()
    poll.until(
        lambda: b"RL.POLICYEFFECT" in replica.aof_files()[-1].read_bytes(),
        "its AOF has what it is owed",
    )
    before = known(follower)
    primary.stop("kill")
    replica.restart("kill")
    assert known(follower) == before


# Another primary


@pytest.mark.parametrize("skew", first_on_every_server(["-10d", "-23h", "23h", "10d"]))
def test_a_replica_that_is_promoted_goes_on_from_the_policies_it_has(
    skew: str, fresh_server: Start, clock: Clock, tmp_path: Path
) -> None:
    primary = fresh_server()
    wrong = Clock(clock.library, tmp_path / "clock")
    wrong.advance(skew)
    replica = primary.replica(clock=wrong)
    last = replica.replica(clock=wrong)
    old, new = primary.client(), replica.client()
    change(clock, 1, 40, old)
    set_policy(old, "gold", "FIXED", 10, "1h")
    before = policies(old)
    replica.wait_for_sync()
    replica.follow(None)
    # What it sets is later than all that it has, whatever its clock says; if that is more than a
    # day behind, what it has counts as the oldest there is.
    version = set_policy(new, "gold", "FIXED", 20, "1h")
    assert (version > before[b"gold"].version) == (skew != "-10d")
    assert policy(new, "gold").version == version
    assert new.execute_command("RL.LIMIT", "k", "gold")[:3] == [1, 20, 19]
    new.execute_command("RL.POLICYSCALE", "gold", 2)
    change(wrong, 3, 40, new)
    assert_the_same(replica, last)
    # The old one had set something meanwhile, which is lost, as of keys.
    set_policy(old, "gold", "FIXED", 30, "1h")
    set_policy(old, "lost")
    primary.follow(replica)
    primary.wait_for_sync()
    wrong.set(clock.now)
    assert_the_same(replica, primary, last)
    assert b"lost" not in policies(old)
    assert policy(old, "gold").specs == b"FIXED 20 1h"


@pytest.mark.one_server
@pytest.mark.timeout(5 * PATIENCE)
def test_sentinels_promote_a_replica_that_has_the_policies(fresh_server: Start) -> None:
    settings = {"clock": None, "repl_timeout": 60, "repl_ping_replica_period": 1}
    primary = fresh_server(**settings)
    replica = primary.replica(**settings)
    set_policy(primary.client(), "gold", "FIXED", 10, "365d")
    assert primary.client().execute_command("RL.LIMIT", "k", "gold")[:3] == [1, 10, 9]
    primary.client().execute_command("WAIT", 1, 20_000)
    with Sentinels(primary) as sentinels:
        client = sentinels.client()
        primary.stop("kill")

        def answers() -> bool:
            try:
                return client.execute_command("RL.LIMIT", "k", "gold")[:2] == [1, 10]
            except (RedisConnectionError, ReadOnlyError):
                return False

        poll.until(answers, "the new primary takes by the policy", PATIENCE)
        assert sentinels.primary_port() == replica.port
        version = set_policy(client, "gold", "FIXED", 20, "365d")
        primary.start()
        old, new = primary.client(), replica.client()

        def has_the_policy() -> bool:
            try:
                return policies(old) == policies(new) != {}
            except (RedisConnectionError, ResponseError):
                return False

        poll.until(has_the_policy, "the old primary has what the new one has", PATIENCE)
        assert policy(old, "gold").version == version


# Slots that move


def test_a_slot_that_moves_takes_its_keys_along_and_no_policies(cluster: Cluster) -> None:
    if not cluster.moves_atomically:
        pytest.skip("this server moves slots by single keys, as DUMP has them")
    source = cluster.owner("k")
    target = next(server for server in cluster.primaries() if server is not source)
    client, other = source.client(), target.client()
    # They tell each other no policies: what one has now, it has by itself.
    with cluster.setting("ratelimit.policy-gossip", "no", source, target):
        set_policy(client, "gold", "FIXED", 10, "1h")
        client.execute_command("RL.LIMIT", "k", "gold")
        cluster.move_atomically(
            "k", target, lambda: client.execute_command("RL.LIMIT", "k", "gold")
        )
        assert policies(other) == {}
    assert other.execute_command("RL.PEEK", "k", "FIXED", 10, "1h")[:3] == [1, 10, 8]
