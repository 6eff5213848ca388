"""A replica that takes over slots under load goes on with the limits and idempotency keys that it
had received.
"""

import random
from collections import Counter
from collections.abc import Mapping

import pytest
from redis import RedisCluster

from support.cluster import SHORT_NODE_TIMEOUT_MS, Cluster
from support.load import used, wide
from support.scale import scaled
from support.taking import Taking
from support.workload import LIMITERS, Limiter

pytestmark = [pytest.mark.every_server, pytest.mark.every_kind]

# A limit that no test reaches.
ENDLESS = 100_000


def limiters(cluster: Cluster, prefix: str) -> dict[str, Limiter]:
    """Returns limiters by key: one of every kind on every primary. Usage does not recover during a
    test.
    """
    return {
        f"{{{tag}}}:{prefix}:{limiter.name}": wide(limiter, ENDLESS)
        for tag, _ in cluster.tags().values()
        for limiter in LIMITERS
    }


def usage(client: RedisCluster, limits: Mapping[str, Limiter]) -> Counter[str]:
    return Counter({key: used(client, limiter, key, ENDLESS) for key, limiter in limits.items()})


def assert_limited(cluster: Cluster, limits: Mapping[str, Limiter], found: Counter[str]) -> None:
    """Checks that all clients together get exactly ten units under limits with ten units left."""
    narrow = {key: narrowed(limiter, found[key] + 10) for key, limiter in limits.items()}
    with Taking(cluster, narrow, steps=400) as load:
        load.join()
    assert load.admitted == dict.fromkeys(limits, 10)


def narrowed(limiter: Limiter, limit: int) -> Limiter:
    spec = tuple(limit if word == ENDLESS else word for word in limiter.spec)
    return limiter._replace(spec=spec)


@pytest.mark.timeout(scaled(300, 1800))
def test_a_manual_failover_loses_no_charge(cluster: Cluster) -> None:
    for number in range(scaled(1, 10)):
        limits = limiters(cluster, f"{number}")
        cluster.wait_for_elections()
        with Taking(cluster, limits, may_lose=True) as load:
            for primary in random.sample(cluster.primaries(), 3):
                load.wait_for(100)
                cluster.fail_over(primary)
                load.wait_for(100)
        admitted, found = load.admitted, usage(cluster.client(), limits)
        # Every charge is of an admitted call, or of a call without a reply.
        for key in limits:
            assert admitted[key] <= found[key] <= admitted[key] + load.unanswered[key], key
        assert_limited(cluster, limits, found)
        cluster.wait_until_well()


@pytest.mark.timeout(scaled(300, 1800))
def test_a_killed_primary_loses_only_unreplicated_charges(
    cluster: Cluster,
) -> None:
    for number in range(scaled(1, 10)):
        limits = limiters(cluster, f"{number}")
        victim = random.choice(cluster.primaries())
        replica = cluster.replica_of(victim)
        with (
            cluster.node_timeout(SHORT_NODE_TIMEOUT_MS),
            Taking(cluster, limits, may_lose=True, asks_replicas=True) as load,
        ):
            load.wait_for(300)
            victim.stop("kill")
            cluster.wait_for_takeover(victim, replica)
            load.wait_for(100)
            victim.start()
            cluster.wait_until_up(victim)
            load.wait_for(100)
        kept, admitted, found = load.kept, load.admitted, usage(cluster.client(), limits)
        assert kept.total() > 0
        # Only admitted charges that no replica acknowledged may be lost.
        for key in limits:
            assert kept[key] <= found[key] <= admitted[key] + load.unanswered[key], key
        assert_limited(cluster, limits, found)
        cluster.wait_until_well()


@pytest.mark.timeout(scaled(180, 600))
def test_an_id_charges_once_over_a_failover(cluster: Cluster) -> None:
    client, spec = cluster.client(), ("FIXED", ENDLESS, "1h")
    cluster.wait_for_elections()
    tags = [tag for tag, _ in cluster.tags().values()]

    def send() -> None:
        for tag in tags:
            for number in range(20):
                once = ("COST", 5, "ONCE", f"call {number}", "1h")
                assert client.execute_command("RL.TAKE", f"{{{tag}}}", *once, *spec)[0] == 1
            settled = ("SETTLE", "call 7", 1)
            assert client.execute_command("RL.TAKE", f"{{{tag}}}", *settled, *spec)[0] == 1

    send()
    for primary in cluster.primaries():
        cluster.fail_over(primary)
    send()
    for tag in tags:
        assert client.execute_command("RL.PEEK", f"{{{tag}}}", *spec)[2] == ENDLESS - 96
    cluster.wait_until_well()
