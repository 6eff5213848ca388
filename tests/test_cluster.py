"""Keys with a common `{tag}` are charged together; others in one call get CROSSSLOT and charge
nothing.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis import ResponseError
from redis.exceptions import ClusterCrossSlotError, MovedError

from conftest import running_cluster
from support.binaries import Binary
from support.clock import Clock
from support.cluster import Cluster
from support.cluster_calls import Call, limiters, usage
from support.scale import scaled
from support.taking import Taking
from support.workload import LIMITERS, digests, play, state, steps

pytestmark = [pytest.mark.every_server, pytest.mark.every_kind]
# Policy that is set on every primary.
POLICY = "a-policy"
# Calls without a key, which any node may receive.
KEYLESS = {
    *("rl.policyset", "rl.policyscale", "rl.policydel", "rl.policyget", "rl.policylist"),
    *("rl.policyeffect", "rl.top"),
}


@pytest.fixture(autouse=True)
def _policy(cluster: Cluster) -> None:
    for primary in cluster.primaries():
        cluster.admin(primary).execute_command("RL.POLICYSET", POLICY, "FIXED", 10, "1h")


def calls(tag: str) -> dict[str, Call]:
    """Returns a call of every command, on new keys that share a tag."""
    key, other = f"{{{tag}}}:key", f"{{{tag}}}:other"
    effect = f"rl-bucket 1 {int(time.time() * 1000) + 60_000} 1 1"
    return {
        "rl.tokenbucket": ("RL.TOKENBUCKET", key, 10, 10, "1h"),
        "rl.leakybucket": ("RL.LEAKYBUCKET", key, 10, 10, "1h"),
        "rl.fixed": ("RL.FIXED", f"{key}:fixed", 10, "1h"),
        "rl.sliding": ("RL.SLIDING", f"{key}:sliding", 10, "1h"),
        "rl.slidinglog": ("RL.SLIDINGLOG", f"{key}:log", 10, "1h"),
        "rl.sketch": ("RL.SKETCH", f"{key}:sketch", "item", 10, 10, "1h", "SIZE", "64KB"),
        "rl.take": ("RL.TAKE", key, "TOKENBUCKET", 10, 10, "1h"),
        "rl.peek": ("RL.PEEK", key, "TOKENBUCKET", 10, 10, "1h"),
        "rl.mtake": ("RL.MTAKE", 2, key, other, "TOKENBUCKET", 10, 10, "1h", "FIXED", 10, "1h"),
        "rl.mpeek": ("RL.MPEEK", 2, key, other, "TOKENBUCKET", 10, 10, "1h", "FIXED", 10, "1h"),
        "rl.acquire": ("RL.ACQUIRE", f"{key}:leases", 10, "1h", "holder"),
        "rl.release": ("RL.RELEASE", f"{key}:leases", "holder", "other"),
        "rl.ban": ("RL.BAN", f"{key}:banned", "1m"),
        "rl.throttle": ("RL.THROTTLE", key, 9, 10, 3600),
        "rl.limit": ("RL.LIMIT", f"{key}:fixed", POLICY),
        "rl.delay": ("RL.DELAY", f"{key}:fixed", POLICY),
        "rl.info": ("RL.INFO", key),
        "rl.effect": ("RL.EFFECT", f"{key}:a", effect, f"{key}:b", effect),
    }


# Routing


def test_a_cluster_client_sends_every_command_where_its_keys_are(cluster: Cluster) -> None:
    clients = [cluster.client(entry) for entry in cluster.servers]
    for owner, (tag, _) in cluster.tags().items():
        for server in cluster.servers:
            cluster.admin(server).config_resetstat()
        for number, call in enumerate(calls(tag).values()):
            clients[number % len(clients)].execute_command(*call)
        for server in cluster.servers:
            stats = cluster.admin(server).info("commandstats")
            for command in calls(tag):
                counts = stats.get(f"cmdstat_{command}", {"calls": 0})
                # The client sent it to the right node at once: no other node counted the call or
                # answered MOVED. The replica receives an effect instead.
                if command == "rl.effect" and server not in cluster.tags():
                    continue
                assert counts["calls"] == (server is owner), (command, server.port)
                assert counts.get("rejected_calls", 0) == 0, (command, server.port)


def test_the_first_key_of_command_info_leads_to_the_node(cluster: Cluster) -> None:
    replies = cluster.client().command()
    for owner, (tag, _) in cluster.tags().items():
        for name, call in calls(tag).items():
            # Some clients know only the position of the first key.
            key = call[replies[name]["first_key_pos"]]
            assert cluster.owner(key) is owner, name
            cluster.admin(owner).execute_command(*call)


def test_every_command_has_a_case_here(cluster: Cluster) -> None:
    listed = cluster.client().command()
    assert {name for name in listed if name.startswith("rl.")} == set(calls("t")) | KEYLESS


def test_a_node_without_the_slot_redirects_to_its_owner(cluster: Cluster) -> None:
    for owner, (tag, _) in cluster.tags().items():
        for server in cluster.servers:
            if server is owner:
                continue
            with server.client() as client:
                for call in calls(tag).values():
                    with pytest.raises(MovedError) as refused:
                        client.execute_command(*call)
                    assert refused.value.port == owner.port
    assert is_empty(cluster)


def is_empty(cluster: Cluster) -> bool:
    return all(cluster.admin(server).dbsize() == 0 for server in cluster.primaries())


def test_keys_of_two_slots_are_refused_and_nothing_is_charged(cluster: Cluster) -> None:
    tags = cluster.tags()
    limits = ("TOKENBUCKET", 10, 10, "1h", "SLIDINGLOG", 10, "1h")
    effect = calls("t")["rl.effect"][2]
    for owner, (tag, other) in tags.items():
        elsewhere = next(pair[0] for server, pair in tags.items() if server is not owner)
        # The node may have both slots or one of them.
        for second in (other, elsewhere):
            keys = (f"{{{tag}}}:k", f"{{{second}}}:k")
            refused: list[Call] = [
                ("RL.MTAKE", 2, *keys, *limits),
                ("RL.MTAKE", 2, *reversed(keys), *limits),
                ("RL.MPEEK", 2, *keys, *limits),
                ("RL.EFFECT", keys[0], effect, keys[1], effect),
            ]
            for server in tags:
                with server.client() as client:
                    for call in refused:
                        with pytest.raises(ClusterCrossSlotError):
                            client.execute_command(*call)
    assert is_empty(cluster)


def test_a_script_may_only_use_keys_of_its_slot(cluster: Cluster) -> None:
    script = "return redis.call('RL.MTAKE', 2, KEYS[1], ARGV[1], unpack(ARGV, 2))"
    limits = ("FIXED", 10, "1h", "FIXED", 20, "1h")
    tags = cluster.tags()
    clients = [cluster.client(entry) for entry in cluster.servers]
    for client in clients:
        for tag, _ in tags.values():
            decisions = client.eval(script, 1, f"{{{tag}}}:a", f"{{{tag}}}:b", *limits)
            assert decisions[0] == 1
    assert sum(cluster.admin(server).dbsize() for server in tags) == 6


def test_a_script_that_crosses_slots_changes_nothing(own_cluster: Cluster) -> None:
    script = "return redis.call('RL.MTAKE', 2, KEYS[1], ARGV[1], unpack(ARGV, 2))"
    limits = ("FIXED", 10, "1h", "FIXED", 20, "1h")
    tags = own_cluster.tags()
    client = own_cluster.client()
    for owner, (tag, _) in tags.items():
        elsewhere = next(pair[0] for server, pair in tags.items() if server is not owner)
        with pytest.raises(ResponseError, match=r"non.local key|same slot"):
            client.eval(script, 1, f"{{{tag}}}:a", f"{{{elsewhere}}}:c", *limits)
        several = ("RL.MPEEK", 2, f"{{{tag}}}:a", f"{{{tag}}}:b", *limits)
        peeked = client.execute_command(*several)
        assert [decision[2] for decision in peeked[2]] == [10, 20]
    assert sum(own_cluster.admin(server).dbsize() for server in tags) == 0


def test_a_limit_holds_for_clients_of_all_nodes(cluster: Cluster) -> None:
    client = cluster.client()
    limits = limiters(50)
    assert {cluster.owner(key) for key in limits} == set(cluster.primaries())
    with Taking(cluster, limits, clients=6, steps=200) as load:
        load.join()
    assert load.admitted == dict.fromkeys(limits, 50)
    assert usage(client, limits, 50) == load.admitted


def test_several_limits_hold_together_for_clients_of_all_nodes(cluster: Cluster) -> None:
    client = cluster.client()
    for tag, _ in cluster.tags().values():
        limits = limiters(50, f"{{{tag}}}:")
        with Taking(cluster, limits, clients=6, steps=200) as load:
            load.join()
        assert load.admitted == dict.fromkeys(limits, 50)
        assert usage(client, limits, 50) == load.admitted


def test_replicas_answer_peeks(cluster: Cluster) -> None:
    for primary, (tag, _) in cluster.tags().items():
        limits = limiters(10, f"{{{tag}}}:")
        several = list(limits)[:2]
        specs = [word for key in several for word in limits[key].for_holder("other").words()]
        with (
            primary.client() as primary_client,
            cluster.replica_of(primary).client() as replica_client,
        ):
            for key, limiter in limits.items():
                primary_client.execute_command(*limiter.take(key, 7))
            cluster.wait_until_well()
            peeks = [limiter.for_holder("other").peek(key, 4) for key, limiter in limits.items()]
            for peek in [*peeks, ("RL.MPEEK", 2, *several, *specs), ("RL.INFO", several[0])]:
                with pytest.raises(MovedError):
                    replica_client.execute_command(*peek)
            replica_client.readonly()
            for peek in peeks:
                # Compares the remaining units and not the times, as the clock runs.
                replies = replica_client.execute_command(*peek)[:3]
                assert replies == primary_client.execute_command(*peek)[:3] == [0, 10, 3]
            assert replica_client.execute_command("RL.MPEEK", 2, *several, *specs)[0] == 1
            assert replica_client.execute_command("RL.INFO", several[0])
            for call in calls(tag).values():
                if "PEEK" not in call[0] and call[0] != "RL.INFO":
                    with pytest.raises(MovedError) as refused:
                        replica_client.execute_command(*call)
                    assert refused.value.port == primary.port


# Replicas


def test_replica_in_a_cluster_has_the_same_bytes_after_any_workload(
    own_cluster_with_replicas: Cluster,
) -> None:
    cluster = own_cluster_with_replicas
    client = cluster.client()
    compared = set()
    with clock_stopped(cluster):
        for seed in range(600, 600 + 10 * scaled(1, 10), 10):
            for number, (server, (tag, _)) in enumerate(cluster.tags().items()):
                play(steps(seed + number, 400, tag), cluster.clock, client, tag=tag)
                cluster.wait_until_well()
                replica = cluster.replica_of(server)
                with server.client() as primary_client, replica.client() as replica_client:
                    replica_client.readonly()
                    expected = state(primary_client)
                    assert state(replica_client) == expected
                    assert digests(replica_client, expected) == digests(primary_client, expected)
                compared |= {stored.type for stored in expected.values()}
    assert compared == {limiter.type for limiter in LIMITERS}


@pytest.fixture
def own_cluster_with_replicas(
    binary: Binary, shared_clock: Clock, tmp_path: Path
) -> Iterator[Cluster]:
    """Cluster for one test, which may set the clock back. The last heartbeats of the nodes are then
    in the future, so that later tests could not detect a failed node.
    """
    with running_cluster(binary, shared_clock, tmp_path) as cluster:
        yield cluster


@contextmanager
def clock_stopped(cluster: Cluster) -> Iterator[None]:
    """Stops the clock, so that a workload can move it. Nodes do not mark each other as failed."""
    with cluster.node_timeout(1_000_000_000_000):
        cluster.clock.set(time.time_ns() // 1000)
        try:
            yield
        finally:
            cluster.clock.run()
