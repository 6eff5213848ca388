"""A replica or an AOF that starts at any moment misses no effect, although a server without a
replica and an AOF propagates none.
"""

import random
from collections.abc import Callable
from statistics import fmean

import pytest
from redis import Redis, ResponseError

from support import poll
from support.clock import Clock
from support.load import Mixed
from support.saving import wait_until_saved
from support.scale import first_on_every_server, scaled
from support.server import Server
from support.waiting import GRANTED, Queue
from support.workload import digests, state

pytestmark = [pytest.mark.every_server, pytest.mark.timeout(scaled(180, 600))]

AOF = {"appendfsync": "always", "auto_aof_rewrite_percentage": 0}


def effects_propagated(client: Redis) -> int:
    return client.info("ratelimit_stats")["ratelimit_effects_propagated"]


class Listeners:
    """Server with listeners: a replica that is attached and detached, and an AOF that is enabled
    and disabled.
    """

    def __init__(self, server: Server, replica: Server) -> None:
        self.server, self.replica = server, replica
        self._client, self._follower = server.client(), replica.client()
        self.has_replica = self.has_aof = False
        # The number of compared keys, for each comparison.
        self.compared: list[int] = []

    def attach(self) -> None:
        self.replica.follow(self.server)
        self.has_replica = True

    def detach(self) -> None:
        self.replica.follow(None)
        self.has_replica = False

    def cut_link(self) -> None:
        self._client.client_kill_filter(_type="replica")

    def forget_history(self) -> None:
        self._client.execute_command("DEBUG", "CHANGE-REPL-ID")
        self.cut_link()

    def aof_on(self) -> None:
        self._client.config_set("appendonly", "yes")
        self.has_aof = True

    def aof_off(self) -> None:
        self._client.config_set("appendonly", "no")
        self.has_aof = False

    def start_child(self) -> None:
        try:
            self._client.bgsave()
        except ResponseError as error:
            # Another child process is running.
            if "in progress" not in str(error).lower():
                raise

    def random_event(self, rng: random.Random) -> None:
        events = [self.start_child]
        events += [self.detach, self.cut_link, self.forget_history] if self.has_replica else []
        events += [self.aof_off] if self.has_aof else [self.aof_on]
        events += [] if self.has_replica else [self.attach, self.attach]
        rng.choice(events)()

    def assert_nothing_was_missed(self) -> None:
        """Asserts that the replica and the AOF have the data of the server, after the load."""
        stored = state(self._client)
        assert stored
        self.compared.append(len(stored))
        expected = digests(self._client, stored)
        if self.has_replica:
            self.replica.wait_for_sync()
            assert state(self._follower) == stored
            assert digests(self._follower, stored) == expected
        if self.has_aof:
            wait_until_saved(self._client)
            self._client.execute_command("DEBUG", "LOADAOF")
            assert state(self._client) == stored
            assert digests(self._client, stored) == expected


@pytest.mark.parametrize("seed", first_on_every_server(range(scaled(4, 60))))
def test_a_listener_that_starts_at_any_moment_misses_nothing(
    seed: int, fresh_server: Callable[..., Server], clock: Clock
) -> None:
    # A primary has a listener until it frees its backlog, a second after its last replica left.
    server = fresh_server(**AOF, repl_backlog_ttl=1)
    listeners = Listeners(server, fresh_server())
    rng = random.Random(seed)
    with server.client() as client:
        with Mixed(server, clock, seed=seed) as load:
            load.wait_for(steps=100)
        assert effects_propagated(client) == 0
        for number in range(5):
            with Mixed(server, clock, seed=1000 * (seed + 1) + number) as load:
                for _ in range(rng.randint(1, 3)):
                    load.wait_for(steps=rng.randint(1, 120))
                    listeners.random_event(rng)
                load.wait_for(steps=rng.randint(1, 120))
            listeners.assert_nothing_was_missed()
        # Ends with both listeners, so that every seed compares something.
        with Mixed(server, clock, seed=seed + 1) as load:
            load.wait_for(steps=rng.randint(1, 120))
            listeners.attach()
            listeners.aof_on()
            load.wait_for(steps=50)
        listeners.assert_nothing_was_missed()
        assert effects_propagated(client) > 0
    # A mean, as nearly all keys may have recovered at a comparison.
    assert fmean(listeners.compared) > 5


# Effects without a listener are not counted as propagated, although the server may send them.


def make_child_slow(client: Redis) -> None:
    """Makes the server's next child process last as long as the test."""
    client.execute_command("RL.FIXED", "before", 9, "1h")
    client.config_set("rdb-key-save-delay", 100_000_000)


def test_effects_during_a_fork_are_counted_only_with_a_listener(
    fresh_server: Callable[..., Server],
) -> None:
    client = fresh_server().client()
    make_child_slow(client)
    client.bgsave()
    client.execute_command("RL.FIXED", "k", 9, "1h")
    client.execute_command("RL.MTAKE 2 a b FIXED 9 1h FIXED 9 1h")
    assert client.info("persistence")["rdb_bgsave_in_progress"] == 1
    assert effects_propagated(client) == 0


def test_effects_during_the_first_write_of_an_aof_are_counted(
    fresh_server: Callable[..., Server],
) -> None:
    client = fresh_server().client()
    make_child_slow(client)
    client.config_set("appendonly", "yes")
    for count in (1, 2):
        client.execute_command("RL.FIXED", "k", 9, "1h")
        assert client.info("persistence")["aof_rewrite_in_progress"] == 1
        assert effects_propagated(client) == count


def test_effects_for_a_replica_in_its_first_sync_are_counted(
    fresh_server: Callable[..., Server],
) -> None:
    server, replica = fresh_server(), fresh_server()
    client = server.client()
    make_child_slow(client)
    replica.client().replicaof("127.0.0.1", server.port)
    poll.until(lambda: client.info("replication")["connected_slaves"], "the replica is connected")
    poll.until(lambda: client.info("persistence")["rdb_bgsave_in_progress"], "the sync has begun")
    client.execute_command("RL.FIXED", "k", 9, "1h")
    assert effects_propagated(client) == 1


def test_an_unpropagated_grant_to_a_waiting_call_is_not_counted(
    fresh_server: Callable[..., Server],
) -> None:
    with Queue(fresh_server()) as queue:
        queue.acquire("a")
        b = queue.join("b")
        queue.release("a")
        assert b.reply() == GRANTED
        assert effects_propagated(queue.client) == 0


def test_effects_without_a_listener_in_a_cluster_are_not_counted(
    fresh_server: Callable[..., Server], clock: Clock
) -> None:
    server = fresh_server(cluster_enabled="yes")
    client = server.client()
    client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))

    def is_ok() -> bool:
        clock.advance("1s")
        return b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO")

    poll.until(is_ok, "the cluster is up")
    client.execute_command("RL.FIXED", "k", 9, "1h")
    assert effects_propagated(client) == 0
    client.config_set("appendonly", "yes")
    client.execute_command("RL.FIXED", "k", 9, "1h")
    assert effects_propagated(client) == 1
    # A killed child would leave a file in the server's directory.
    wait_until_saved(client)


def test_calls_on_a_writable_replica_are_not_counted_as_propagated(
    fresh_server: Callable[..., Server],
) -> None:
    primary = fresh_server()
    replica = primary.replica()
    with replica.client() as client:
        client.config_set("replica-read-only", "no")
        client.execute_command("RL.FIXED", "k", 9, "1h")
        assert effects_propagated(client) == 0
