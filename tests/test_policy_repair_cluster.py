"""Nodes of a cluster that missed changes of policies get them afterwards."""

from pathlib import Path

import pytest
from redis import Redis

from support import poll
from support.binaries import Binary
from support.clock import Clock
from support.cluster import Cluster
from support.policy_nodes import (
    SPECS,
    as_map,
    version_on,
    wait_until_everywhere,
    wait_until_policies_agree,
    without_gossip,
)
from support.scale import scaled
from support.server import Server

pytestmark = [pytest.mark.every_server, pytest.mark.every_kind]


def test_without_gossip_each_primary_is_set_separately(cluster: Cluster, name: str) -> None:
    first, second, third = cluster.primaries()
    with without_gossip(cluster, *cluster.servers):
        earlier = cluster.admin(first).execute_command("RL.POLICYSET", name, *SPECS.split())
        poll.until(
            lambda: version_on(cluster.admin(cluster.replica_of(first)), name) == earlier,
            "the replica of the first primary has the policy",
        )
        assert version_on(cluster.admin(second), name) == 0
        later = cluster.admin(third).execute_command("RL.POLICYSET", name, "FIXED", 3, "1m")
    wait_until_policies_agree(cluster)
    # The versions differ, so the client of the first primary can detect the later policy.
    assert later > earlier
    wait_until_everywhere(cluster, name, later)


def test_partitioned_nodes_agree_afterwards(cluster: Cluster, name: str) -> None:
    first, second, third = cluster.primaries()
    names = [f"{name}:{number}" for number in range(30)]
    versions = {
        policy: cluster.admin(first).execute_command("RL.POLICYSET", policy, *SPECS.split())
        for policy in names
    }
    wait_until_policies_agree(cluster)
    with without_gossip(cluster, third):
        for policy in names[:10]:
            cluster.admin(first).execute_command("RL.POLICYDEL", policy)
            cluster.admin(third).execute_command("RL.POLICYSCALE", policy, 2)
        for policy in names[10:20]:
            versions[policy] = cluster.admin(third).execute_command(
                "RL.POLICYSET", policy, "FIXED", 3, "1m"
            )
        for policy in names[20:]:
            cluster.admin(second).execute_command("RL.POLICYSCALE", policy, 3)
    wait_until_policies_agree(cluster)
    for node in cluster.servers:
        admin = cluster.admin(node)
        assert [version_on(admin, policy) for policy in names[:10]] == [0] * 10
        assert {policy: version_on(admin, policy) for policy in names[10:]} == {
            policy: versions[policy] for policy in names[10:]
        }
        scales = [
            as_map(admin.execute_command("RL.POLICYGET", policy))["scale"] for policy in names[20:]
        ]
        assert scales == ["3"] * 10


def test_more_policies_than_fit_in_a_message_reach_a_partitioned_node(
    cluster: Cluster, name: str
) -> None:
    first, _, third = cluster.primaries()
    count = scaled(500, 4000)
    long_specs = " ".join(
        f"FIXED {number} {number}s AS a-name-of-a-limit-that-is-long{number}"
        for number in range(1, 9)
    )
    with (
        without_gossip(cluster, third),
        cluster.admin(first).pipeline(transaction=False) as pipe,
    ):
        for number in range(count):
            pipe.execute_command("RL.POLICYSET", f"{name}:{number}", *long_specs.split())
        versions = pipe.execute()
    assert len(set(versions)) == count
    wait_until_policies_agree(cluster)
    wait_until_everywhere(cluster, f"{name}:{count - 1}", versions[-1])
    cluster.admin(third).execute_command(
        "RL.POLICYDEL", *(f"{name}:{number}" for number in range(count))
    )
    wait_until_policies_agree(cluster)


def test_a_slot_that_moves_to_a_new_node_finds_its_policies(
    binary: Binary, clock: Clock, tmp_path: Path, name: str
) -> None:
    real_clock = Clock(clock.library, tmp_path / "clock")
    real_clock.run()
    with Cluster(binary, real_clock, replicas=False) as cluster:
        first = cluster.primaries()[0]
        version = cluster.admin(first).execute_command("RL.POLICYSET", name, *SPECS.split())
        client = cluster.client()
        key = next(f"{{{tags[0]}}}" for server, tags in cluster.tags().items() if server is first)
        assert client.execute_command("RL.LIMIT", key, name, "COST", 4)[2] == 6
        with (
            Server(
                binary, clock=real_clock, cluster_enabled="yes", cluster_require_full_coverage="no"
            ) as added,
            added.client(decode_responses=True) as admin,
        ):
            admin.execute_command("CLUSTER MEET", "127.0.0.1", first.port)
            poll.until(
                lambda: version_on(admin, name) == version,
                "the new node has the policy",
                timeout=30,
            )
            poll.until(
                lambda: admin.execute_command("CLUSTER INFO")["cluster_state"] == "ok",
                "the new node is up",
                timeout=30,
            )
            # Moves the slot with its key.
            source = cluster.admin(first)
            slot = source.execute_command("CLUSTER KEYSLOT", key)
            added_id = admin.execute_command("CLUSTER MYID")
            poll.until(
                lambda: added_id in str(source.execute_command("CLUSTER NODES")),
                "the source knows the new node",
            )
            admin.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", cluster.id_of(first))
            source.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", added_id)
            source.execute_command("MIGRATE", "127.0.0.1", added.port, key, 0, 20_000)
            for node in (admin, source):
                node.execute_command("CLUSTER SETSLOT", slot, "NODE", added_id)
            assert admin.execute_command("RL.LIMIT", key, name)[:3] == [1, 10, 5]


# Bounded messages


def messages(node: Redis) -> dict[str, int]:
    """Returns the numbers of module messages that the node has sent and received."""
    info = node.execute_command("CLUSTER INFO")
    return {
        direction: int(info.get(f"cluster_stats_messages_module_{direction}", 0))
        for direction in ("sent", "received")
    }


def test_digests_are_sent_only_to_primaries(cluster: Cluster, name: str) -> None:
    """Checks this because a message takes more than two kilobytes on the cluster bus."""
    first, *_ = cluster.primaries()
    replica = cluster.admin(cluster.replica_of(first))
    version = cluster.admin(first).execute_command("RL.POLICYSET", name, *SPECS.split())
    wait_until_everywhere(cluster, name, version)
    before = [messages(cluster.admin(primary)) for primary in cluster.primaries()]
    received = messages(replica)["received"]
    digests = 3 * (len(before) - 1)
    poll.until(
        lambda: all(
            messages(cluster.admin(primary))["received"] >= counts["received"] + digests
            for primary, counts in zip(cluster.primaries(), before, strict=True)
        ),
        "each primary has received some digests of each other",
        timeout=30,
    )
    assert messages(replica)["received"] == received


def test_requested_records_come_in_several_messages(cluster: Cluster, name: str) -> None:
    first, second, third = cluster.primaries()
    count, max_records = scaled(3000, 60_000), 200
    with cluster.setting("ratelimit.max-policies", 65_536, first, second, third):
        with without_gossip(cluster, third):
            with cluster.admin(first).pipeline(transaction=False) as pipe:
                for number in range(count):
                    pipe.execute_command("RL.POLICYSET", f"{name}:{number}", *SPECS.split())
                last = pipe.execute()[-1]
            wait_until_others_agree(cluster, third)
            before = messages(cluster.admin(third))["received"]
        wait_until_everywhere(cluster, f"{name}:{count - 1}", last)
        wait_until_policies_agree(cluster)
        # No message has more than `max_records` records.
        assert messages(cluster.admin(third))["received"] - before >= count // max_records
        for start in range(0, count, 500):
            names = (f"{name}:{number}" for number in range(start, min(start + 500, count)))
            cluster.admin(third).execute_command("RL.POLICYDEL", *names)
        wait_until_policies_agree(cluster)


def wait_until_others_agree(cluster: Cluster, excluded: Server) -> None:
    def agree() -> bool:
        digests = {
            cluster.admin(node).info("ratelimit_policies")["ratelimit_policies_digest"]
            for node in cluster.primaries()
            if node is not excluded
        }
        return len(digests) == 1

    poll.until(agree, "the other primaries have the same policies", timeout=30)


def test_a_node_with_paused_writes_requests_nothing_and_keeps_one_record_per_name(
    cluster: Cluster, name: str
) -> None:
    first, _, third = cluster.primaries()
    admin, paused = cluster.admin(first), cluster.admin(third)
    names = [f"{name}:{number}" for number in range(500)]
    paused.execute_command("CLIENT", "PAUSE", 3_600_000, "WRITE")
    try:
        versions = {}
        for _ in range(3):
            with admin.pipeline(transaction=False) as pipe:
                for policy in names:
                    pipe.execute_command("RL.POLICYSET", policy, *SPECS.split())
                versions = dict(zip(names, pipe.execute(), strict=True))
        wait_until_others_agree(cluster, third)
        digests = 5

        def received_meanwhile() -> int:
            """Returns the number of messages that the node receives while it sends some digests."""
            before = messages(paused)
            sent = before["sent"] + digests * (len(cluster.primaries()) - 1)
            description = "several digests are sent"
            poll.until(lambda: messages(paused)["sent"] >= sent, description, timeout=30)
            return messages(paused)["received"] - before["received"]

        # The node receives digests, and nothing else once messages in flight have arrived, which
        # takes a while on a slow machine.
        max_messages = (digests + 3) * (len(cluster.primaries()) - 1)
        assert min(received_meanwhile() for _ in range(3)) <= max_messages
        assert version_on(paused, names[0]) == 0
    finally:
        paused.execute_command("CLIENT", "UNPAUSE")
    for policy in (names[0], names[-1]):
        wait_until_everywhere(cluster, policy, versions[policy])
    wait_until_policies_agree(cluster)
    admin.execute_command("RL.POLICYDEL", *names)
    wait_until_policies_agree(cluster)
