"""A replica has its primary's policies after resyncs and failovers. While it loads beside its old
data, it uses its old policies.

`test_resync.py` and `test_failover.py` check the same for keys.
"""

from pathlib import Path

import pytest
from redis import ConnectionError as RedisConnectionError
from redis import ReadOnlyError, Redis, ResponseError

from conftest import Pair
from support import poll
from support.clock import Clock
from support.cluster import Cluster
from support.policies import (
    SPECS,
    change_policies,
    policies,
    policy,
    set_policy,
    shared_state,
)
from support.policy_pairs import Start, assert_same_policies
from support.resyncs import syncs
from support.saving import rewrite_aof, wait_until_saved
from support.scale import first_on_every_server, scaled
from support.sentinel import TIMEOUT, Sentinels
from support.slot_moves import move_atomically

pytestmark = [pytest.mark.every_server, pytest.mark.timeout(scaled(240, 3600))]


def replication_offset(client: Redis) -> int:
    return client.info("replication")["master_repl_offset"]


@pytest.fixture
def clients(pair: Pair) -> tuple[Redis, Redis]:
    """Clients of a primary and its replica, which have no policies."""
    primary, replica = pair.primary.client(), pair.replica.client()
    names = policies(primary)
    if names:
        primary.execute_command("RL.POLICYDEL", *names)
    pair.replica.wait_for_sync()
    return primary, replica


def test_every_change_of_a_policy_reaches_the_replica(
    pair: Pair, clients: tuple[Redis, Redis]
) -> None:
    primary, replica = clients
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
    pair: Pair, clients: tuple[Redis, Redis]
) -> None:
    primary, replica = clients
    version = set_policy(primary, "a")
    primary.execute_command("RL.POLICYDEL", "a", "VERSION", version)
    pair.replica.wait_for_sync()
    assert policies(replica) == policies(primary) == {}


def test_calls_that_change_no_policy_are_not_propagated(
    pair: Pair, clients: tuple[Redis, Redis]
) -> None:
    primary, _ = clients
    set_policy(primary, "a", "FIXED", 1, "1h")
    primary.execute_command("RL.LIMIT", "k", "a")
    pair.replica.wait_for_sync()
    before = replication_offset(primary)
    primary.execute_command("RL.POLICYSET", "a", "NX", *SPECS[1])
    primary.execute_command("RL.POLICYDEL", "nobody")
    primary.execute_command("RL.POLICYGET", "a")
    primary.execute_command("RL.POLICYLIST")
    # A denied call changes only the counts of this server.
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
    assert replication_offset(primary) == before


def test_changes_in_transactions_and_scripts_reach_the_replica(
    pair: Pair, clients: tuple[Redis, Redis]
) -> None:
    primary, replica = clients
    transaction = primary.pipeline()
    transaction.execute_command("RL.POLICYSET", "a", *SPECS[0])
    transaction.execute_command("RL.POLICYSCALE", "a", 3)
    transaction.execute_command("RL.LIMIT", "k", "a")
    transaction.execute()
    primary.eval(
        "redis.call('RL.POLICYSET', 'b', 'FIXED', 1, '1h'); redis.call('RL.POLICYDEL', 'a')", 0
    )
    pair.replica.wait_for_sync()
    assert policies(replica) == policies(primary)
    assert policies(primary).keys() == {b"b"}


def test_replica_is_read_only_and_decides_by_its_policies(
    pair: Pair, clients: tuple[Redis, Redis]
) -> None:
    primary, replica = clients
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
        wrong_clock = Clock(clock.library, tmp_path / f"clock {number}")
        wrong_clock.advance(skew)
        replica = primary.replica(clock=wrong_clock)
        change_policies(clock, number, 60, primary.client())
        replica.wait_for_sync()
        assert_same_policies(primary, replica)


# Replicas and AOFs


def test_aof_rewrite_or_start_does_not_cause_a_resync(fresh_server: Start, clock: Clock) -> None:
    settings = {"appendfsync": "always", "aof_use_rdb_preamble": "no"}
    primary = fresh_server(**settings)
    replica = primary.replica(**settings)
    last = replica.replica()
    change_policies(clock, 1, 40, primary.client())
    for server in (primary, replica):
        client = server.client()
        before = syncs(client)
        client.config_set("appendonly", "yes")
        wait_until_saved(client)
        rewrite_aof(client)
        change_policies(clock, 2, 40, primary.client())
        assert_same_policies(primary, replica)
        assert_same_policies(replica, last)
        assert syncs(client) == before
    for server, rewrites in ((replica, 1), (last, 0)):
        stats = server.client().info("commandstats")
        assert stats.get("cmdstat_bgrewriteaof", {"calls": 0})["calls"] == rewrites
    assert last.client().config_get("appendonly") == {"appendonly": "no"}


@pytest.mark.parametrize("preamble", ["yes", "no"])
def test_a_replica_writes_policies_from_a_snapshot_to_its_aof(
    preamble: str, fresh_server: Start, clock: Clock
) -> None:
    primary = fresh_server()
    change_policies(clock, 1, 40, primary.client())
    replica = primary.replica(appendonly="yes", appendfsync="always", aof_use_rdb_preamble=preamble)
    follower = replica.client()
    wait_until_saved(follower)
    change_policies(clock, 2, 10, primary.client())
    replica.wait_for_sync()
    poll.until(
        lambda: b"RL.POLICYEFFECT" in replica.aof_files()[-1].read_bytes(),
        "the AOF of the replica has the policies",
    )
    before = shared_state(follower)
    primary.stop("kill")
    replica.restart("kill")
    assert shared_state(follower) == before


# Promotion


@pytest.mark.parametrize("skew", first_on_every_server(["-10d", "-23h", "23h", "10d"]))
def test_a_promoted_replica_continues_with_its_policies(
    skew: str, fresh_server: Start, clock: Clock, tmp_path: Path
) -> None:
    primary = fresh_server()
    wrong_clock = Clock(clock.library, tmp_path / "clock")
    wrong_clock.advance(skew)
    replica = primary.replica(clock=wrong_clock)
    last = replica.replica(clock=wrong_clock)
    old, new = primary.client(), replica.client()
    change_policies(clock, 1, 40, old)
    set_policy(old, "gold", "FIXED", 10, "1h")
    before = policies(old)
    replica.wait_for_sync()
    replica.follow(None)
    # New policies are later than all existing ones, even by a wrong clock. But if the clock
    # is more than a day behind, existing policies count as the oldest.
    version = set_policy(new, "gold", "FIXED", 20, "1h")
    assert (version > before[b"gold"].version) == (skew != "-10d")
    assert policy(new, "gold").version == version
    assert new.execute_command("RL.LIMIT", "k", "gold")[:3] == [1, 20, 19]
    new.execute_command("RL.POLICYSCALE", "gold", 2)
    change_policies(wrong_clock, 3, 40, new)
    assert_same_policies(replica, last)
    # Policies that the old primary sets after the promotion are lost, as keys are.
    set_policy(old, "gold", "FIXED", 30, "1h")
    set_policy(old, "lost")
    primary.follow(replica)
    primary.wait_for_sync()
    wrong_clock.set(clock.now)
    assert_same_policies(replica, primary, last)
    assert b"lost" not in policies(old)
    assert policy(old, "gold").specs == b"FIXED 20 1h"


@pytest.mark.one_server
@pytest.mark.timeout(5 * TIMEOUT)
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

        poll.until(answers, "the new primary decides by the policy", TIMEOUT)
        assert sentinels.primary_port() == replica.port
        version = set_policy(client, "gold", "FIXED", 20, "365d")
        primary.start()
        old, new = primary.client(), replica.client()

        def has_the_policy() -> bool:
            try:
                return policies(old) == policies(new) != {}
            except (RedisConnectionError, ResponseError):
                return False

        poll.until(has_the_policy, "the old primary has the policies of the new one", TIMEOUT)
        assert policy(old, "gold").version == version


# Moving slots


def test_a_slot_moves_with_its_keys_and_without_policies(cluster: Cluster) -> None:
    if not cluster.moves_atomically:
        pytest.skip("this server cannot move slots atomically")
    source = cluster.owner("k")
    target = next(server for server in cluster.primaries() if server is not source)
    client, other = source.client(), target.client()
    # These nodes exchange no policies, so the target needs its own.
    with cluster.setting("ratelimit.policy-gossip", "no", source, target):
        set_policy(client, "gold", "FIXED", 10, "1h")
        client.execute_command("RL.LIMIT", "k", "gold")
        move_atomically(
            cluster, "k", target, lambda: client.execute_command("RL.LIMIT", "k", "gold")
        )
        assert policies(other) == {}
    assert other.execute_command("RL.PEEK", "k", "FIXED", 10, "1h")[:3] == [1, 10, 8]
