"""Policies on the nodes of a cluster: which each has, and whether all have the same."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from redis import Redis

from support import poll
from support.cluster import Cluster
from support.server import Server

SPECS = "TOKENBUCKET 10 10 1m"


@pytest.fixture
def name() -> str:
    """Of a policy: another in each test, as deletions are remembered."""
    return f"policy:{random.randrange(10**9)}"


def version_on(node: Redis, name: str) -> int:
    """0 if it has no such policy."""
    policy = node.execute_command("RL.POLICYGET", name)
    return 0 if policy is None else as_map(policy)["version"]


def as_map(flat: object) -> dict[str, object]:
    if isinstance(flat, dict):
        return flat
    assert isinstance(flat, list)
    return dict(zip(flat[::2], flat[1::2], strict=True))


def everywhere(cluster: Cluster, name: str, version: int, *but: Server) -> None:
    """Returns once all nodes that are up have that version, 0 being none."""
    nodes = [cluster.admin(node) for node in cluster.servers if node.is_running and node not in but]
    poll.until(
        lambda: all(version_on(node, name) == version for node in nodes),
        f"{name} is at version {version} on every node",
        timeout=30,
    )


def of_one_mind(cluster: Cluster) -> None:
    """Returns once no primary has heard of another that has other policies."""

    def agree() -> bool:
        told = [cluster.admin(node).info("ratelimit_policies") for node in cluster.servers]
        digests = {policies["ratelimit_policies_digest"] for policies in told}
        differ = sum(policies["ratelimit_policy_peers_differ"] for policies in told)
        return len(digests) == 1 and differ == 0

    poll.until(agree, "all have the same policies, and know it", timeout=30)


@contextmanager
def without_gossip(cluster: Cluster, *servers: Server) -> Iterator[None]:
    """As if these nodes could not be reached by the others' policies."""
    with cluster.setting("ratelimit.policy-gossip", "no", *servers):
        yield
