"""Unavailable shard of a cluster: the other shards decide each call."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from running import OK, Gateway, descriptor

from support import poll
from support.binaries import Binary
from support.clock import Clock
from support.cluster import SHORT_NODE_TIMEOUT_MS, Cluster
from support.cluster_fixtures import cluster, running_clock, set_policy
from support.server import Server

pytestmark = pytest.mark.long
__all__ = ["cluster", "running_clock"]
Start = Callable[..., Gateway]
LIMIT = 10**9


def users_by_shard(cluster: Cluster, count: int = 20) -> dict[Server, list[str]]:
    """Returns users by the primary that has their keys."""
    users: dict[Server, list[str]] = {primary: [] for primary in cluster.primaries()}
    for number in range(count * 3):
        users[cluster.owner(f"rl:api|user={number}")].append(str(number))
    assert all(users.values()), "each shard has some users"
    return users


def is_decided(gateway: Gateway, user: str) -> bool:
    answer = gateway.ask(descriptor(user=user))
    assert answer.overall_code == OK, "in an outage, requests pass"
    return answer.statuses[0].current_limit is not None


class Load:
    """Concurrent callers until the context ends, and counts of their decisions."""

    def __init__(self, gateway: Gateway, users: list[str]) -> None:
        self.calls, self.undecided = 0, 0
        self._gateway, self._users = gateway, users
        self._should_stop = threading.Event()
        self._lock = threading.Lock()
        self._failures: list[BaseException] = []

    @contextlib.contextmanager
    def running(self, callers: int = 2) -> Iterator["Load"]:
        threads = [threading.Thread(target=self._run) for _ in range(callers)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._should_stop.set()
            for thread in threads:
                thread.join()
        assert not self._failures

    def _run(self) -> None:
        try:
            while not self._should_stop.is_set():
                for user in self._users:
                    is_undecided = not is_decided(self._gateway, user)
                    with self._lock:
                        self.calls += 1
                        self.undecided += is_undecided
        except BaseException as error:
            self._failures.append(error)

    def wait_for_more(self, calls: int = 200) -> None:
        """Waits until `calls` further calls were made."""
        before = self.calls
        poll.until(lambda: self.calls >= before + calls or self._failures, "more calls are made")


@contextlib.contextmanager
def killed(server: Server) -> Iterator[None]:
    server.stop("kill")
    yield
    server.start()


@contextlib.contextmanager
def suspended(server: Server) -> Iterator[None]:
    with server.suspended():
        yield


@pytest.mark.parametrize("outage", [killed, suspended])
def test_unavailable_shard_does_not_affect_other_shards(
    cluster: Cluster, start: Start, outage: Callable[[Server], contextlib.AbstractContextManager]
) -> None:
    set_policy(cluster, "api|user", "FIXED", str(LIMIT), "1d")
    users = users_by_shard(cluster)
    # The gateway starts with the address of the shard that becomes unavailable.
    lost, *others = users
    gateway = start(lost.port)
    assert all(is_decided(gateway, user) for group in users.values() for user in group)
    healthy = [user for other in others for user in users[other]]
    with (
        Load(gateway, healthy).running() as load,
        Load(gateway, users[lost]).running(6) as lost_load,
    ):
        load.wait_for_more()
        with outage(lost):
            poll.until(
                lambda: gateway.metric("ratelimit_gateway_outage") == 1, "the shard is unavailable"
            )
            load.wait_for_more()
            lost_load.wait_for_more()
            assert not is_decided(gateway, users[lost][0])
            load.wait_for_more()
        poll.until(lambda: is_decided(gateway, users[lost][0]), "the shard decides again")
        poll.until(
            lambda: gateway.metric("ratelimit_gateway_outage") == 0, "all shards are available"
        )
        load.wait_for_more()
    assert load.undecided == 0, f"of {load.calls} calls on healthy shards"
    assert lost_load.undecided > 0
    assert is_decided(gateway, users[lost][0])


def test_failover_of_a_shard_does_not_affect_other_shards(
    binary: Binary, running_clock: Clock, start: Start
) -> None:
    with Cluster(binary, running_clock) as cluster:
        set_policy(cluster, "api|user", "FIXED", str(LIMIT), "1d")
        users = users_by_shard(cluster)
        lost, *others = users
        replica = cluster.replica_of(lost)
        gateway = start(lost.port)
        user = users[lost][0]
        assert [is_decided(gateway, user) for _ in range(5)] == [True] * 5
        cluster.wait_until_well()
        healthy = [user for other in others for user in users[other]]
        with ExitStack() as running:
            load = running.enter_context(Load(gateway, healthy).running())
            lost_load = running.enter_context(Load(gateway, users[lost]).running(callers=6))
            running.enter_context(cluster.node_timeout(SHORT_NODE_TIMEOUT_MS))
            lost.stop("kill")
            poll.until(lambda: not is_decided(gateway, user), "the shard is unavailable")
            cluster.wait_for_takeover(lost, replica)
            poll.until(lambda: is_decided(gateway, user), "the replica decides", timeout=60)
            load.wait_for_more()
            lost.start()
            load.wait_for_more()
            lost_load.wait_for_more()
        assert load.undecided == 0, f"of {load.calls} calls on healthy shards"
        status = gateway.ask(descriptor(user=user, hits=0)).statuses[0]
        assert status.limit_remaining <= LIMIT - 6, "what was used before still counts"
        poll.until(
            lambda: gateway.metric("ratelimit_gateway_outage") == 0, "all shards are available"
        )
