"""Policies on the nodes of a cluster, and their agreement."""

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
    """Name of a policy that no other test uses, as nodes remember deletions."""
    return f"policy:{random.randrange(10**9)}"


def version_on(node: Redis, name: str) -> int:
    """Returns the version of a policy on a node, or 0 if it has none."""
    policy = node.execute_command("RL.POLICYGET", name)
    return 0 if policy is None else as_map(policy)["version"]


def as_map(reply: object) -> dict[str, object]:
    if isinstance(reply, dict):
        return reply
    assert isinstance(reply, list)
    return dict(zip(reply[::2], reply[1::2], strict=True))


def wait_until_everywhere(cluster: Cluster, name: str, version: int, *except_on: Server) -> None:
    """Waits until all running nodes except `except_on` have a version of a policy, or do not have
    the policy if the version is 0.
    """
    nodes = [
        cluster.admin(node) for node in cluster.servers if node.is_running and node not in except_on
    ]
    poll.until(
        lambda: all(version_on(node, name) == version for node in nodes),
        f"{name} is at version {version} on every node",
        timeout=30,
    )


def wait_until_policies_agree(cluster: Cluster) -> None:
    """Waits until all nodes have the same policies, and no primary knows of one that differs."""

    def agree() -> bool:
        sections = [cluster.admin(node).info("ratelimit_policies") for node in cluster.servers]
        digests = {section["ratelimit_policies_digest"] for section in sections}
        differ = sum(section["ratelimit_policy_peers_differ"] for section in sections)
        return len(digests) == 1 and differ == 0

    poll.until(agree, "all nodes have the same policies, and the primaries know it", timeout=30)


@contextmanager
def without_gossip(cluster: Cluster, *servers: Server) -> Iterator[None]:
    """Disables the exchange of policies with these nodes for the duration of the block."""
    with cluster.setting("ratelimit.policy-gossip", "no", *servers):
        yield
