"""Console of a cluster."""

import pytest
from api_client import TOKENS, Console
from console_fixtures import Start

from support import poll
from support.cluster import Cluster
from support.cluster_fixtures import cluster, running_clock, set_policy

__all__ = ["cluster", "running_clock"]


@pytest.mark.long
def test_console_sums_counts_of_all_nodes(cluster: Cluster, start: Start) -> None:
    set_policy(cluster, "web", "FIXED", "1", "1d")
    process = start(cluster.servers[0].port, environment=TOKENS)
    console = Console(process)
    keys = [f"user:{n}" for n in range(30)]
    owners = [cluster.owner(key) for key in keys]
    assert len(set(owners)) == 3, "each node has some of the keys"
    for key, owner in zip(keys, owners, strict=True):
        for _ in range(2):
            owner.client().execute_command("RL.LIMIT", key, "web")
    counts = console("/api/policies").json[0]["counts"]
    assert (counts["calls"], counts["admitted"], counts["denied"]) == (60, 30, 30)
    top = console("/api/top?count=100").json
    assert sorted(row["key"] for row in top) == sorted(keys)
    assert len({row["node"] for row in top}) == 3
    by_minute = console("/api/top?count=100&minutes=2").json
    assert all(sum(row["minutes"]) == row["denied"] == 1 for row in by_minute)
    found = console("/api/keys?prefix=user:").json
    assert sorted(row["key"] for row in found["keys"]) == sorted(keys)
    assert found["cursor"] is None
    assert console("/api/key/ban", "POST", {"key": keys[0], "for": "1h"}).status == 200
    assert console(f"/api/key?key={keys[0]}").json["ruled"]["allowed"] is False
    (ban,) = console("/api/bans").json["bans"]
    assert (ban["key"], ban["in_console"]) == (keys[0], True)
    assert console("/api/keys?banned=true").json["keys"][0]["key"] == keys[0]
    (banned,) = console("/api/changes").json["changes"]
    assert console(f"/api/changes/{banned['id']}/undo", "POST", {}).status == 200
    assert console("/api/bans").json["bans"] == []
    used = console("/api/usage", "POST", {"policy": "web"}).json
    assert (len(used["keys"]), used["complete"]) == (30, True)
    assert console.put("new", "FIXED 1 1m").status == 201
    for server in cluster.servers:
        client = server.client(decode_responses=True)
        poll.until(
            lambda client=client: client.execute_command("RL.POLICYGET", "new"),
            "each node has the policy",
        )

    def agree() -> bool:
        nodes = console("/api/now").json["nodes"]
        return [node.get("agrees") for node in nodes] == [True] * 3

    poll.until(agree, "all nodes agree", timeout=30)


@pytest.mark.long
def test_hanging_node_does_not_block_the_others(cluster: Cluster, start: Start) -> None:
    set_policy(cluster, "web", "FIXED", "1", "1d")
    # The console calls nodes in the order of their names. The first that replies lists policies.
    hanging, *others = sorted(cluster.servers, key=lambda server: f"127.0.0.1:{server.port}")
    process = start(others[0].port, environment=TOKENS)
    console = Console(process)
    assert len(console("/api/now").json["nodes"]) == 3
    key = next(f"user:{n}" for n in range(99) if cluster.owner(f"user:{n}") is not hanging)

    def policylist_calls() -> int:
        stats = hanging.client().info("commandstats")
        return stats.get("cmdstat_rl.policylist", {"calls": 0})["calls"]

    before = policylist_calls()
    with hanging.suspended():
        for _ in range(30):
            assert [row["name"] for row in console("/api/policies").json] == ["web"]
        assert console.put("new", "FIXED 5 1m").status == 201
        assert console(f"/api/key?key={key}&policy=web").json["ruled"]["allowed"] is True

        def away() -> bool:
            nodes = console("/api/now").json["nodes"]
            return [node["name"].split(":")[1] for node in nodes if "away" in node] == [
                str(hanging.port)
            ]

        poll.until(away, "the hanging node is shown as unavailable", timeout=30)
    assert policylist_calls() - before < 10, "few requests waited for the hanging node"

    def back() -> bool:
        nodes = console("/api/now").json["nodes"]
        return len(nodes) == 3 and all(node.get("agrees") for node in nodes)

    poll.until(back, "the node is back and has the new policy", timeout=60)
