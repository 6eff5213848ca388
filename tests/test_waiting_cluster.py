"""A waiting call whose slot moves gets `MOVED`, or `TRYAGAIN` while it moves (before Valkey 9.1
always `TRYAGAIN`); in a cluster that is down it gets `CLUSTERDOWN`.

- Valkey 9.1.2 in a cluster refuses all calls with several keys in scripts (`MGET` too) once it has
  refused one because of another slot.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from redis import ConnectionError as RedisConnectionError
from redis import ResponseError
from redis import TimeoutError as RedisTimeoutError
from redis.exceptions import (
    ClusterDownError,
    ClusterError,
    MovedError,
    SlotNotCoveredError,
    TryAgainError,
)

from support import poll
from support.binaries import Binary
from support.clock import Clock
from support.cluster import SHORT_NODE_TIMEOUT_MS, Cluster, slot_of
from support.load import Load
from support.scale import scaled
from support.server import Server
from support.slot_moves import SlotMove, move_atomically
from support.waiting import Caller, Queue

pytestmark = [
    pytest.mark.every_server,
    pytest.mark.every_kind,
    pytest.mark.timeout(scaled(180, 900)),
]

# Longer than any test.
HOUR = "1h"
# The reply to a granted call, without the reset time.
SERVED = [1, 1, 0, 0]


@pytest.fixture
def queue(cluster: Cluster) -> Iterator[Queue]:
    """Connects to the primary of key "k", on which "a" holds the only lease."""
    with Queue(cluster.owner("k")) as queue:
        queue.acquire("a", ttl=HOUR)
        yield queue


@pytest.fixture
def target(cluster: Cluster, queue: Queue) -> Server:
    """Returns another primary."""
    return next(server for server in cluster.primaries() if server is not queue.server)


def assert_served_at(server: Server) -> None:
    """Checks that the server has the lease of "a", and grants it to waiting calls in turn."""
    with Queue(server) as queue:
        assert list(queue.holders()) == [b"a"]
        b, c = queue.join_all("b", "c", ttl=HOUR)
        assert queue.release("a") == 1
        assert b.reply()[:4] == SERVED
        assert queue.release("b") == 1
        assert c.reply()[:4] == SERVED


def test_a_key_that_migrates_redirects_waiting_calls(
    cluster: Cluster, queue: Queue, target: Server
) -> None:
    (_, tag) = cluster.tags()[queue.server]
    other_key = f"{{{tag}}}"
    queue.acquire("a", key=other_key, ttl=HOUR)
    other_waiter = queue.join("b", key=other_key, ttl=HOUR)
    b, c = queue.join_all("b", "c", ttl=HOUR)
    with SlotMove(cluster, "k", target) as move:
        queue.settle()
        assert not b.is_answered
        move.move_keys("k")
        for waiter in (b, c):
            with pytest.raises(TryAgainError):
                waiter.reply()
    assert_served_at(target)
    # The node's other slots are not affected.
    assert not other_waiter.is_answered
    queue.release("a", key=other_key)
    assert other_waiter.reply()[:4] == SERVED


def test_a_moved_slot_redirects_waiting_calls(
    cluster: Cluster, queue: Queue, target: Server
) -> None:
    if queue.server.is_valkey:
        pytest.skip("Valkey informs its replicas first, and waiting calls end meanwhile")
    b, c = queue.join_all("b", "c", ttl=HOUR)
    with SlotMove(cluster, "k", target):
        # Sent together, so that no queue is checked between the two calls.
        with queue.client.pipeline(transaction=False) as pipeline:
            destination = ("127.0.0.1", target.port, "", 0, 20_000)
            pipeline.execute_command("MIGRATE", *destination, "KEYS", "k")
            set_owner = ("CLUSTER", "SETSLOT", slot_of("k"), "NODE", cluster.id_of(target))
            pipeline.execute_command(*set_owner)
            pipeline.execute()
        cluster.admin(target).execute_command(*set_owner)
        for waiter in (b, c):
            with pytest.raises(MovedError) as raised:
                waiter.reply()
            error = raised.value
            assert (error.slot_id, error.host, error.port) == (
                slot_of("k"),
                "127.0.0.1",
                target.port,
            )
    assert_served_at(target)


def test_a_missing_key_in_a_migrating_slot_ends_its_waits(
    cluster: Cluster, queue: Queue, target: Server
) -> None:
    b = queue.join("b", ttl=HOUR)
    with SlotMove(cluster, "k", target):
        # The queue exists as long as the key does.
        assert queue.acquire("late", ttl=HOUR)[0] == 0
        queue.release("a")
        with pytest.raises(TryAgainError):
            b.reply()
        # A repeated call is redirected to the slot's target, and creates the key there.
        client = cluster.client()
        acquire = ("RL.ACQUIRE", "k", 1, HOUR, "b", "BLOCK", 0)
        assert client.execute_command(*acquire)[:4] == SERVED
        assert not queue.client.execute_command("CLUSTER", "COUNTKEYSINSLOT", slot_of("k"))
    with target.client() as target_client:
        assert target_client.execute_command("RL.RELEASE", "k", "b") == 1


def test_a_slot_that_moves_atomically_redirects_waiting_calls(
    cluster: Cluster, queue: Queue, target: Server
) -> None:
    if not cluster.moves_atomically:
        pytest.skip("this server moves slots key by key")
    waiters = [queue.join("b", ttl=HOUR)]
    move_atomically(cluster, "k", target, lambda: waiters.append(queue.join("c", ttl=HOUR)))
    for waiter in waiters:
        with pytest.raises(MovedError) as raised:
            waiter.reply()
        assert raised.value.port == target.port
    assert_served_at(target)


def test_an_unserved_slot_ends_all_waits(cluster: Cluster, queue: Queue) -> None:
    b = queue.join("b", ttl=HOUR)
    admin, slot = cluster.admin(queue.server), slot_of("k")
    admin.execute_command("CLUSTER DELSLOTS", slot)
    try:
        with pytest.raises((TryAgainError, ClusterDownError)):
            b.reply()
    finally:
        admin.execute_command("CLUSTER ADDSLOTS", slot)
        cluster.wait_until_well()
    queue.acquire("a", ttl=HOUR)
    c = queue.join("c", ttl=HOUR)
    queue.release("a")
    assert c.reply()[:4] == SERVED


def test_a_cluster_that_is_down_ends_all_waits(
    binary: Binary, shared_clock: Clock, tmp_path_factory: pytest.TempPathFactory
) -> None:
    running_clock = Clock(shared_clock.library, tmp_path_factory.mktemp("clock") / "clock")
    running_clock.run()
    with Cluster(binary, running_clock, replicas=False) as cluster:
        owner = cluster.owner("k")
        with Queue(owner) as queue:
            queue.acquire("a", ttl=HOUR)
            b = queue.join("b", ttl=HOUR)
            with cluster.node_timeout(SHORT_NODE_TIMEOUT_MS):
                for server in cluster.servers:
                    if server is not owner:
                        server.stop("kill")
                poll.until(lambda: b.is_answered, "the waiting call is answered", timeout=60)
            with pytest.raises((ClusterDownError, TryAgainError)):
                b.reply()


def can_scripts_call_commands(queue: Queue) -> bool:
    pong = queue.client.eval("return redis.pcall('PING')['ok'] or 'refused'", 0)
    assert pong in (b"PONG", b"refused")
    return pong == b"PONG"


def test_a_server_that_refuses_every_call_of_a_module_ends_all_waits(
    own_cluster: Cluster,
) -> None:
    with Queue(own_cluster.owner("k")) as queue:
        errors = []

        def take_lease_and_release(holder: str, waiter: Caller) -> None:
            try:
                assert waiter.reply()[:4] == SERVED
            except TryAgainError as error:
                errors.append(str(error))
                # A caller that tries again gets the free lease.
                assert queue.acquire(holder, ttl=HOUR)[0] == 1
            assert queue.release(holder) == 1

        waiters = {}
        queue.acquire("a", ttl=HOUR)
        # Each waiting call occupies an internal client of the server, so that the next script uses
        # another one.
        for number in range(4):
            with pytest.raises(ResponseError):
                queue.client.eval("return redis.call('MGET', 'k', 'other')", 0)
            if not number and can_scripts_call_commands(queue):
                pytest.skip("a script that crosses slots does not harm this server")
            acquire = ("RL.ACQUIRE", "k", 1, HOUR, f"w{number}", "BLOCK", 0)
            waiters[f"w{number}"] = queue.send(*acquire)
        queue.release("a")
        for holder, waiter in waiters.items():
            take_lease_and_release(holder, waiter)
        for _ in range(4):
            queue.acquire("a", ttl=HOUR)
            waiter = queue.send("RL.ACQUIRE", "k", 1, HOUR, "b", "BLOCK", 0)
            queue.release("a")
            take_lease_and_release("b", waiter)
        assert errors
        assert all("refuses the calls of modules" in text for text in errors)


def assert_redirected_to(server: Server, waiter: Caller) -> None:
    """Checks that the call ended as on a primary that becomes a replica (Redis), or as on a node
    whose slot has moved (Valkey).
    """
    with pytest.raises(ResponseError) as raised:
        waiter.reply()
    if isinstance(raised.value, MovedError):
        assert raised.value.port == server.port
    else:
        assert str(raised.value).startswith("UNBLOCKED")
        with pytest.raises(RedisConnectionError):
            waiter.reply()


def test_a_failover_redirects_waiting_calls_to_the_new_primary(
    cluster: Cluster, queue: Queue
) -> None:
    cluster.wait_for_elections()
    waiters = [*queue.join_all("b", "c", ttl=HOUR), queue.join("d", ttl=HOUR, block=HOUR)]
    new = cluster.fail_over(queue.server)
    for waiter in waiters:
        assert_redirected_to(new, waiter)
    assert queue.is_empty
    assert_served_at(new)
    cluster.wait_until_well()


def test_a_replica_of_a_cluster_receives_grants(cluster: Cluster, queue: Queue) -> None:
    b, c = queue.join_all("b", "c", ttl=HOUR)
    queue.release("a")
    assert b.reply()[:4] == SERVED
    queue.acquire("b", limit=2, ttl=HOUR)
    assert c.reply()[0] == 1
    cluster.wait_until_well()
    with Queue(cluster.replica_of(queue.server)) as replica_queue:
        reader = replica_queue.caller()
        reader.call("READONLY")
        assert reader.call("DUMP", "k") == queue.client.dump("k")


def test_no_call_waits_on_a_replica_of_a_cluster(cluster: Cluster, queue: Queue) -> None:
    replica = cluster.replica_of(queue.server)
    with Queue(replica) as replica_queue:
        caller = replica_queue.caller()
        for _ in range(2):
            with pytest.raises(MovedError):
                caller.call("RL.ACQUIRE", "k", 1, HOUR, "b", "BLOCK", 0)
            caller.call("READONLY")


# Errors of a call that a failover cuts off.
CUT_OFF = (
    *(RedisConnectionError, RedisTimeoutError, ResponseError),
    *(ClusterError, SlotNotCoveredError),
)


class Workers(Load):
    """Cluster clients that wait for one of a few leases, hold it briefly and release it. Counts
    only leases whose holder has received the reply.
    """

    LEASES = 3

    def __init__(self, cluster: Cluster, key: str, clients: int = 8) -> None:
        super().__init__(clients)
        self._cluster, self._key = cluster, key
        self._lock = threading.Lock()
        self._held = self.most_held = self.served = 0

    def step(self, number: int) -> Callable[[], bool]:
        servers = self._cluster.servers
        client = self._cluster.client(servers[number % len(servers)])
        holder = f"worker {number}"
        acquire = ("RL.ACQUIRE", self._key, self.LEASES, HOUR, holder, "BLOCK", "5s")

        def try_to_release() -> bool:
            try:
                client.execute_command("RL.RELEASE", self._key, holder)
            except CUT_OFF:
                return False
            return True

        def take_step() -> bool:
            try:
                allowed = client.execute_command(*acquire)[0] == 1
            except CUT_OFF:
                return True
            if allowed:
                self._count_held(1)
                # The holder works for a moment.
                with suppress(*CUT_OFF):
                    client.execute_command("RL.INFO", self._key)
                self._count_held(-1)
                poll.until(try_to_release, "the lease is given back", timeout=60)
            return True

        return take_step

    def _count_held(self, leases: int) -> None:
        with self._lock:
            self._held += leases
            self.served += leases > 0
            self.most_held = max(self.most_held, self._held)
            assert self._held <= self.LEASES


def test_held_units_never_exceed_the_limit_through_failovers_under_load(cluster: Cluster) -> None:
    cluster.wait_for_elections()
    with Workers(cluster, "pool") as load:
        for number in range(scaled(1, 5)):
            if number:
                cluster.wait_for_elections()
            load.wait_for(200)
            cluster.fail_over(cluster.owner("pool"))
            load.wait_for(200, timeout=60)
            cluster.wait_until_well()
    assert load.served > 0
    assert load.most_held > 1
    for server in cluster.servers:
        with Queue(server) as queue:
            poll.until(lambda queue=queue: queue.is_empty, "nobody waits")
    # A caller that was disconnected as it got a lease keeps it until it expires; other callers hold
    # none.
    client = cluster.client()
    names = [f"worker {number}" for number in range(8)]
    client.execute_command("RL.RELEASE", "pool", *names)
    assert not client.exists("pool")
