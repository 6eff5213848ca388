"""A resync leaves a replica with the policies of its primary, also while they change."""

import random
from collections.abc import Callable

import pytest
from redis import Redis, ResponseError

from conftest import Pair
from support import poll
from support.clock import Clock
from support.policies import (
    NAMES,
    ChangingPolicies,
    change_policies,
    knows_deletion,
    policies,
    set_policy,
)
from support.policy_pairs import Start, assert_same_policies
from support.resyncs import (
    each_transfer,
    forget_history,
    full_resync,
    is_up,
    outgrow_backlog,
    start_pair,
    syncs,
)
from support.scale import first_on_every_server, scaled
from support.server import Server

pytestmark = [pytest.mark.every_server, pytest.mark.timeout(scaled(240, 3600))]
BALLAST = bytes(2**20)


# Full and partial resyncs


@each_transfer
def test_a_full_resync_while_policies_change_leaves_the_same(
    transfer: str, loading: str, fresh_server: Start, clock: Clock
) -> None:
    primary, replica = start_pair(fresh_server, transfer, loading)
    follower = replica.client()
    for number, cut_off in enumerate([forget_history, outgrow_backlog] * scaled(1, 10)):
        with ChangingPolicies(primary, clock, tag=number) as load:
            load.wait_for(steps=100)
            full_resync(primary, follower, cut_off)
            load.wait_for(steps=100)
        assert_same_policies(primary, replica)
        load.assert_kept(follower)


def test_a_partial_resync_while_policies_change_leaves_the_same(
    fresh_server: Start, clock: Clock
) -> None:
    primary = fresh_server(repl_backlog_size="64mb")
    replica = primary.replica()
    client, follower = primary.client(), replica.client()
    full, partial = syncs(client)
    with ChangingPolicies(primary, clock) as load:
        for cut in range(1, 6):
            load.wait_for(steps=50)
            client.client_kill_filter(_type="replica")
            poll.until(
                lambda cut=cut: syncs(client)[1] == partial + cut and is_up(follower),
                "the replica is connected again",
                timeout=30,
            )
    assert syncs(client) == (full, partial + 5)
    assert_same_policies(primary, replica)


@pytest.mark.parametrize("diskless", ["yes", "no"])
def test_a_replica_of_a_replica_has_the_same_policies(
    diskless: str, fresh_server: Start, clock: Clock
) -> None:
    settings = {"repl_diskless_sync": diskless, "repl_backlog_size": "16kb"}
    primary = fresh_server(**settings)
    change_policies(clock, 1, 40, primary.client())
    middle = primary.replica(**settings)
    last = middle.replica(**settings)
    assert_same_policies(primary, middle, last)
    change_policies(clock, 2, 40, primary.client())
    assert_same_policies(primary, middle, last)
    forget_history(primary)
    change_policies(clock, 3, 40, primary.client())
    assert_same_policies(primary, middle, last)


def test_a_new_replica_has_only_its_primarys_policies(fresh_server: Start, clock: Clock) -> None:
    primary, other = fresh_server(), fresh_server()
    client, follower = primary.client(), other.client()
    change_policies(clock, 1, 40, follower)
    assert policies(follower)
    other.follow(primary)
    other.wait_for_sync()
    assert policies(client) == policies(follower) == {}
    set_policy(client, "gold")
    assert_same_policies(primary, other)
    # The replica has also forgotten its own deletions.
    other.follow(None)
    assert not any(knows_deletion(follower, name) for name in NAMES)


def test_a_restarted_replica_continues_with_the_policies_of_its_snapshot(
    fresh_server: Start, clock: Clock
) -> None:
    primary = fresh_server(repl_backlog_size="64mb")
    replica = primary.replica()
    change_policies(clock, 1, 40, primary.client())
    replica.wait_for_sync()
    before = syncs(primary.client())
    replica.stop("save")
    change_policies(clock, 2, 10, primary.client())
    replica.start()
    assert_same_policies(primary, replica)
    full, partial = syncs(primary.client())
    assert (full, partial) == (before[0], before[1] + 1)


# Loading beside old data


def begin_to_load(primary: Server, replica: Server, meanwhile: Callable[[Redis], None]) -> None:
    """Makes the replica load a snapshot slowly, while it keeps its old data. The changes that
    `meanwhile` makes are in the snapshot only. Redis 6.2 restores the old data if such a load
    fails, but does not answer while loading.
    """
    client, follower = primary.client(), replica.client()
    client.config_set("repl-diskless-sync", "yes")
    follower.config_set("repl-diskless-load", "swapdb")
    # Makes the snapshot larger than the socket buffers, so that the primary ends before it has sent
    # all of it.
    for number in range(256):
        client.set(f"large {number}", random.randbytes(2**17))
    replica.wait_for_sync()
    follower.config_set("key-load-delay", 30_000)
    with replica.suspended():
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
    """Pair whose replica has policies, for `begin_to_load`."""
    primary = fresh_server(repl_backlog_size="16kb")
    replica = primary.replica(repl_backlog_size="16kb")
    change_policies(clock, 1, 40, primary.client())
    set_policy(primary.client(), "old", "FIXED", 10, "1h")
    replica.wait_for_sync()
    return Pair(primary, replica)


def replace_policies(client: Redis) -> None:
    client.execute_command("RL.POLICYDEL", "old")
    set_policy(client, "new")


@pytest.mark.parametrize("becomes", first_on_every_server(["other policies", "none"]))
def test_a_loading_replica_uses_its_old_policies_until_the_end(
    becomes: str, loading_pair: Pair, clock: Clock
) -> None:
    primary, replica = loading_pair
    if primary.version < (7,):
        pytest.skip("Redis 6.2 answers nothing while it loads")
    client, follower = primary.client(), replica.client()
    before = policies(follower)

    def delete_policies(client: Redis) -> None:
        client.execute_command("RL.POLICYDEL", *before)
        # Deletions are forgotten after a day.
        clock.advance("25h")
        client.save()
        assert b"rl-policy" not in (primary.directory / "dump.rdb").read_bytes()
        clock.advance("-25h")

    begin_to_load(primary, replica, delete_policies if becomes == "none" else replace_policies)
    assert policies(client) != before
    assert policies(follower) == before
    assert follower.execute_command("RL.PEEK", "k", "POLICY", "old")[:3] == [1, 10, 10]
    with pytest.raises(ResponseError, match="NOPOLICY"):
        follower.execute_command("RL.PEEK", "k", "POLICY", "new")
    assert is_loading(follower)
    follower.config_set("key-load-delay", 0)
    poll.until(lambda: is_up(follower), "the replica has got a snapshot", timeout=30)
    assert_same_policies(primary, replica)
    assert policies(follower).keys() == (set() if becomes == "none" else policies(client).keys())
    assert b"old" not in policies(follower)


def test_a_replica_whose_load_is_aborted_has_its_old_policies(loading_pair: Pair) -> None:
    primary, replica = loading_pair
    follower = replica.client()
    before = policies(follower)
    begin_to_load(primary, replica, replace_policies)
    primary.stop("kill")
    poll.until(lambda: not is_loading(follower), "the load is aborted", timeout=30)
    assert policies(follower) == before
    # The next load adds nothing that the aborted load had read.
    primary.start()
    set_policy(primary.client(), "third")
    follower.config_set("key-load-delay", 0)
    poll.until(lambda: is_up(follower), "the replica has got a snapshot", timeout=30)
    assert_same_policies(primary, replica)
    assert policies(follower).keys() == {b"third"}
