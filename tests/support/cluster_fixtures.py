"""Fixtures of a cluster with the real time."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from support import poll
from support.binaries import Binary
from support.clock import Clock
from support.cluster import Cluster


@pytest.fixture
def running_clock(shared_clock: Clock, tmp_path: Path) -> Iterator[Clock]:
    """Clock with the real time, which nodes need for detecting failures."""
    with closing(Clock(shared_clock.library, tmp_path / "running")) as clock:
        clock.run()
        yield clock


@pytest.fixture
def cluster(binary: Binary, running_clock: Clock) -> Iterator[Cluster]:
    with Cluster(binary, running_clock, replicas=False) as cluster:
        yield cluster


def set_policy(cluster: Cluster, name: str, *words: str) -> None:
    """Sets a policy on one node and waits until all nodes have it, which takes about a second."""
    cluster.servers[0].client().execute_command("RL.POLICYSET", name, *words)
    for server in cluster.servers:
        client = server.client(decode_responses=True)
        poll.until(
            lambda client=client: client.execute_command("RL.POLICYGET", name),
            "the policy is known on each node",
        )
