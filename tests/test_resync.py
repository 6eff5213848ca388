"""Full and partial resyncs under load keep replicas equal to their primary: with and without a
disk, in chains, and after a pause.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis

from support import poll
from support.clock import Clock
from support.load import Charging, Load, Mixed
from support.resyncs import (
    cut_link,
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
from support.workload import digests, state

pytestmark = [pytest.mark.every_server, pytest.mark.timeout(scaled(240, 3600))]

ROUNDS = scaled(2, 26)
MIB = 2**20
MAX_BALLAST = 64 * MIB


def assert_the_same_bytes(primary: Server, *replicas: Server) -> None:
    for replica in replicas:
        replica.wait_for_sync()
    with primary.client() as client:
        stored = state(client)
        # Some keys may be missing, as they have recovered or were given back.
        assert len(stored) > 2
        expected = digests(client, stored)
    for replica in replicas:
        with replica.client() as client:
            assert state(client) == stored
            assert digests(client, stored) == expected


@each_transfer
def test_a_full_resync_under_load_leaves_the_same_bytes(
    transfer: str,
    loading: str,
    fresh_server: Callable[..., Server],
    clock: Clock,
) -> None:
    primary, replica = start_pair(fresh_server, transfer, loading)
    follower = replica.client()
    for number, cut_off in enumerate([forget_history, outgrow_backlog] * (ROUNDS // 2)):
        with Mixed(primary, clock, seed=number) as load:
            load.wait_for(steps=300)
            full_resync(primary, follower, cut_off)
            load.wait_for(steps=100)
        assert_the_same_bytes(primary, replica)


def test_a_partial_resync_under_load_leaves_the_same_bytes(
    fresh_server: Callable[..., Server], clock: Clock
) -> None:
    primary = fresh_server(repl_backlog_size="64mb")
    replica = primary.replica()
    client, follower = primary.client(), replica.client()
    for number in range(scaled(3, 50)):
        full, partial = syncs(client)
        with Mixed(primary, clock, seed=number) as load:
            for cut in range(1, 6):
                load.wait_for(steps=50)
                client.client_kill_filter(_type="replica")
                poll.until(
                    lambda partial=partial, cut=cut: (
                        syncs(client)[1] == partial + cut and is_up(follower)
                    ),
                    "the replica is connected again",
                    timeout=30,
                )
            load.wait_for(steps=50)
        assert syncs(client) == (full, partial + 5)
        assert_the_same_bytes(primary, replica)


@pytest.mark.parametrize("diskless", first_on_every_server(["yes", "no"]))
def test_a_chain_of_replicas_that_is_cut_under_load_has_the_same_bytes(
    diskless: str, fresh_server: Callable[..., Server], clock: Clock
) -> None:
    settings = {"repl_diskless_sync": diskless, "repl_backlog_size": "16kb"}
    primary = fresh_server(**settings)
    middle = primary.replica(**settings)
    last = middle.replica(**settings)
    links = [(primary, middle), (middle, last)]
    for number in range(ROUNDS):
        with Mixed(primary, clock, seed=number) as load:
            for upper, lower in [*links, links[0]]:
                load.wait_for(steps=150)
                with upper.client() as client, lower.client() as follower:
                    before = sum(syncs(client))
                    if upper is primary:
                        forget_history(upper)
                    else:
                        client.client_kill_filter(_type="replica")
                    poll.until(
                        lambda client=client, follower=follower, before=before: (
                            sum(syncs(client)) > before and is_up(follower)
                        ),
                        "the replica below the cut is connected again",
                        timeout=30,
                    )
        assert_the_same_bytes(primary, middle, last)


def unsent(primary: Redis) -> int:
    """Returns the bytes that the primary buffers for its replicas because their sockets are full. A
    block of up to 1 MiB that is partly sent may count completely.
    """
    return sum(
        int(client["omem"]) + int(client["obl"]) for client in primary.client_list(_type="replica")
    )


def fill_buffer(primary: Server, load: Load) -> None:
    """Writes until the primary buffers 8 MiB for a suspended replica, or has disconnected it.

    The sockets fill first: the kernel lets them take 5 MiB, or 30 MiB on a connection that was busy
    before. They may still drain the buffer, so it counts only if it is as large after many calls.
    """

    def is_full() -> bool:
        return not client.client_list(_type="replica") or unsent(client) > 8 * MIB

    with primary.client() as client:
        for _ in range(MAX_BALLAST // MIB):
            client.set("ballast", bytes(MIB))
            if is_full():
                load.wait_for(steps=500)
                if is_full():
                    break
        else:
            pytest.fail(f"of {MAX_BALLAST} bytes, the primary buffers only {unsent(client)}")
        client.delete("ballast")


@pytest.mark.parametrize(
    ("limit", "cut", "resyncs"),
    [
        pytest.param("256mb", False, (0, 0), id="it catches up from the buffer"),
        pytest.param("256mb", True, (0, 1), id="it is cut off and catches up from the backlog"),
        pytest.param("2mb", False, (1, 0), id="it is disconnected and gets a snapshot"),
    ],
)
def test_a_replica_that_lags_under_load_gets_the_same_bytes(
    limit: str,
    cut: bool,
    resyncs: tuple[int, int],
    fresh_server: Callable[..., Server],
    clock: Clock,
) -> None:
    primary = fresh_server(
        # The primary disconnects a replica for which it buffers more.
        client_output_buffer_limit=f"replica {limit} 0 0",
        repl_backlog_size=2 * MAX_BALLAST if cut else "16kb",
    )
    replica = primary.replica()
    client, follower = primary.client(), replica.client()
    for number in range(scaled(1, 10)):
        full, partial = syncs(client)
        with Mixed(primary, clock, seed=number) as load:
            load.wait_for(steps=200)
            with replica.suspended():
                fill_buffer(primary, load)
                connected = client.info("replication")["connected_slaves"]
                assert connected == (0 if limit == "2mb" else 1)
                assert connected == 0 or unsent(client) > 2 * MIB
                if cut:
                    client.client_kill_filter(_type="replica")
            expected = full + resyncs[0], partial + resyncs[1]
            poll.until(
                lambda expected=expected: syncs(client) == expected and is_up(follower),
                "the replica is connected again",
                timeout=30,
            )
            load.wait_for(steps=100)
        assert_the_same_bytes(primary, replica)
        assert syncs(client) == expected


@pytest.mark.parametrize("skew", first_on_every_server(["-1d", "-3s", "3s", "1d"]))
def test_a_replica_whose_clock_is_wrong_has_the_same_bytes_after_resyncs_under_load(
    skew: str, fresh_server: Callable[..., Server], clock: Clock, tmp_path: Path
) -> None:
    primary = fresh_server()
    wrong_clock = Clock(clock.library, tmp_path / "clock")
    wrong_clock.advance(skew)
    replica = primary.replica(clock=wrong_clock)
    client, follower = primary.client(), replica.client()
    for number, cut in enumerate([forget_history, cut_link] * scaled(1, 10)):
        with Mixed(primary, clock, seed=number) as load:
            load.wait_for(steps=200)
            before = sum(syncs(client))
            cut(primary)
            wrong_clock.advance("1s")
            poll.until(
                lambda before=before: sum(syncs(client)) > before and is_up(follower),
                "the replica is connected again",
                timeout=30,
            )
            load.wait_for(steps=200)
        # A replica whose clock is ahead hides expired keys, but keeps them until the primary
        # deletes them.
        wrong_time = wrong_clock.now
        wrong_clock.set(clock.now)
        assert_the_same_bytes(primary, replica)
        wrong_clock.set(wrong_time)


def test_charges_while_a_replica_joined_are_complete(
    fresh_server: Callable[..., Server], clock: Clock
) -> None:
    primary = fresh_server(repl_diskless_sync="yes")
    followers = [fresh_server() for _ in range(2)]
    with Charging(primary, clock) as load:
        load.wait_for(steps=200)
        for follower in followers:
            with follower.client() as client:
                client.replicaof("127.0.0.1", primary.port)
                load.wait_for(steps=200)
                poll.until(lambda client=client: is_up(client), "the replica is up", timeout=30)
        load.wait_for(steps=200)
    with primary.client() as client:
        assert Charging.used(client) == load.answered
        offset = client.info("replication")["master_repl_offset"]
    for follower in followers:
        with follower.client() as client:
            poll.until(
                lambda client=client: client.info("replication")["slave_repl_offset"] == offset,
                "the replica is in sync",
            )
            assert Charging.used(client) == load.answered
