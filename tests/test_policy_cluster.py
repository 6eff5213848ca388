"""All nodes of a cluster have the same policies, whichever primary received them, also after a
partition or killed nodes.
"""

import time

import pytest
from redis.exceptions import ReadOnlyError, ResponseError

from support import poll
from support.cluster import SHORT_NODE_TIMEOUT_MS, Cluster
from support.policies import record
from support.policy_nodes import SPECS, as_map, wait_until_everywhere, wait_until_policies_agree
from support.scale import scaled
from support.taking import Taking
from support.workload import LIMITERS

pytestmark = [pytest.mark.every_server, pytest.mark.every_kind]


def test_a_policy_set_on_one_primary_holds_on_all_nodes(cluster: Cluster, name: str) -> None:
    primaries, last = cluster.primaries(), 0
    for primary in primaries:
        version = cluster.admin(primary).execute_command("RL.POLICYSET", name, *SPECS.split())
        assert version > last
        wait_until_everywhere(cluster, name, version)
        last = version
    admin = cluster.admin(primaries[1])
    admin.execute_command("RL.POLICYSCALE", name, "0.5")
    poll.until(
        lambda: all(
            as_map(cluster.admin(node).execute_command("RL.POLICYGET", name))["scale"] == "0.5"
            for node in cluster.servers
        ),
        "the policy is scaled on every node",
    )
    client = cluster.client()
    for tag, _ in cluster.tags().values():
        allowed, limit, remaining, _, _ = client.execute_command("RL.LIMIT", f"{{{tag}}}", name)
        assert (allowed, limit, remaining) == (1, 5, 4)
    assert cluster.admin(primaries[2]).execute_command("RL.POLICYDEL", name) == 1
    wait_until_everywhere(cluster, name, 0)
    wait_until_policies_agree(cluster)


def test_a_version_is_deleted_on_every_node_by_any_primary(cluster: Cluster, name: str) -> None:
    primaries = cluster.primaries()
    version = cluster.admin(primaries[0]).execute_command("RL.POLICYSET", name, *SPECS.split())
    wait_until_everywhere(cluster, name, version)
    admin = cluster.admin(primaries[1])
    with pytest.raises(ResponseError, match=f"has version {version}, not {version - 1}"):
        admin.execute_command("RL.POLICYDEL", name, "VERSION", version - 1)
    assert admin.execute_command("RL.POLICYDEL", name, "VERSION", version) == 1
    wait_until_everywhere(cluster, name, 0)
    with pytest.raises(ResponseError, match="no policy"):
        cluster.admin(primaries[2]).execute_command("RL.POLICYDEL", name, "VERSION", version)
    wait_until_policies_agree(cluster)


def test_changes_reach_idle_nodes_by_the_first_message(cluster: Cluster, name: str) -> None:
    """Stops the clock, so that no timer sends the digests by which nodes find missing policies."""
    cluster.wait_until_well()
    cluster.clock.set(time.time_ns() // 1000)
    try:
        admin = cluster.admin(cluster.primaries()[0])
        version = admin.execute_command("RL.POLICYSET", name, *SPECS.split())
        wait_until_everywhere(cluster, name, version)
    finally:
        cluster.clock.run()


def test_replica_refuses_changes_and_decides_by_its_policies(cluster: Cluster, name: str) -> None:
    primary = cluster.primaries()[0]
    replica = cluster.admin(cluster.replica_of(primary))
    with pytest.raises(ReadOnlyError):
        replica.execute_command("RL.POLICYSET", name, *SPECS.split())
    version = cluster.admin(primary).execute_command("RL.POLICYSET", name, *SPECS.split())
    wait_until_everywhere(cluster, name, version)
    tag = cluster.tags()[primary][0]
    replica.execute_command("READONLY")
    assert replica.execute_command("RL.PEEK", f"{{{tag}}}", "POLICY", name)[:3] == [1, 10, 10]


def test_primaries_that_get_different_policies_agree(cluster: Cluster, name: str) -> None:
    for _ in range(scaled(5, 50)):
        for factor, primary in enumerate(cluster.primaries()):
            spec = ("FIXED", 10 + factor, "1m")
            cluster.admin(primary).execute_command("RL.POLICYSET", name, *spec)
            cluster.admin(primary).execute_command("RL.POLICYSCALE", name, factor + 1)
        wait_until_policies_agree(cluster)
    found = {
        str(as_map(cluster.admin(node).execute_command("RL.POLICYGET", name))["specs"])
        for node in cluster.servers
    }
    assert len(found) == 1


def test_policy_changes_survive_load_and_a_failover(cluster: Cluster, name: str) -> None:
    limits = {f"{{{tag}}}:load": LIMITERS[0] for tag, _ in cluster.tags().values()}
    cluster.wait_for_elections()
    with Taking(cluster, limits, may_lose=True) as load:
        load.wait_for(50)
        first, second, _ = cluster.primaries()
        cluster.admin(first).execute_command("RL.POLICYSET", name, *SPECS.split())
        cluster.fail_over(first)
        last = cluster.admin(second).execute_command("RL.POLICYSET", name, "FIXED", 7, "1m")
        load.wait_for(50)
    cluster.wait_until_well()
    wait_until_everywhere(cluster, name, last)
    wait_until_policies_agree(cluster)


@pytest.mark.timeout(scaled(300, 1800))
def test_policies_survive_a_kill_of_every_primary_in_turn(cluster: Cluster, name: str) -> None:
    first = cluster.admin(cluster.primaries()[0])
    version = first.execute_command("RL.POLICYSET", name, *SPECS.split())
    wait_until_everywhere(cluster, name, version)
    with cluster.node_timeout(SHORT_NODE_TIMEOUT_MS):
        for victim in cluster.primaries():
            replica = cluster.replica_of(victim)
            victim.stop("kill")
            cluster.wait_for_takeover(victim, replica)
            victim.start()
            cluster.wait_until_up(victim)
            wait_until_everywhere(cluster, name, version)
    cluster.wait_until_well()
    wait_until_policies_agree(cluster)


# Forged records, and temporary scales


def test_a_forged_record_makes_no_policy_of_a_cluster_unchangeable(
    cluster: Cluster, name: str
) -> None:
    first, second, _ = (cluster.admin(primary) for primary in cluster.primaries())
    version = first.execute_command("RL.POLICYSET", name, *SPECS.split())
    wait_until_everywhere(cluster, name, version)
    latest_stamp = 31_536_000_000_000_000
    forged = record(name.encode(), latest_stamp, "FIXED 0 1h")
    with pytest.raises(ResponseError, match="more than a day ahead"):
        second.execute_command("RL.POLICYEFFECT", forged)
    assert as_map(second.info("ratelimit_policies"))["ratelimit_policy_stamps_refused"] >= 1
    for number, primary in enumerate(cluster.primaries(), 1):
        admin = cluster.admin(primary)
        version = admin.execute_command("RL.POLICYSET", name, "FIXED", number, "1h")
        wait_until_everywhere(cluster, name, version)
    wait_until_policies_agree(cluster)


def test_a_temporary_scale_ends_on_every_node(cluster: Cluster, name: str) -> None:
    first, second, _ = (cluster.admin(primary) for primary in cluster.primaries())
    version = first.execute_command("RL.POLICYSET", name, *SPECS.split())
    wait_until_everywhere(cluster, name, version)
    second.execute_command("RL.POLICYSCALE", name, "0.5", "FOR", "2s")

    def scales() -> set[tuple[object, bool]]:
        nodes = (cluster.admin(node) for node in cluster.servers)
        replies = (as_map(node.execute_command("RL.POLICYGET", name)) for node in nodes)
        return {(reply["scale"], reply["scale_ms"] == -1) for reply in replies}

    poll.until(lambda: scales() == {("0.5", False)}, "the policy is scaled on every node")
    poll.until(lambda: scales() == {("1", True)}, "the scale has ended on every node", timeout=30)
    wait_until_policies_agree(cluster)
