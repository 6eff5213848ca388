"""In a cluster every call goes directly to the right node, and an outage of one node is not an
outage of the others.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import redis
import redis.asyncio
import valkey
import valkey.asyncio
from redis.cluster import LoadBalancingStrategy
from support import poll
from support.cluster import Cluster
from support.server import Server
from support.slot_moves import SlotMove

from limiters import BlockingLimiter, Make, limiters_of
from redis_ratelimit import Concurrency, Fixed, Limiter, Policy, TokenBucket, aio

LIMIT = TokenBucket(1000, 1)
KEYS = [f"key:{number}" for number in range(60)]


@pytest.fixture
def url(cluster: Cluster) -> str:
    return f"redis://127.0.0.1:{cluster.servers[0].port}"


@pytest.fixture
def limiter(make: Make) -> Any:
    """Limiter that has loaded the layout of the cluster."""
    limiter = make(cluster=True)
    limiter.take("first", LIMIT)
    return limiter


def reset_stats(cluster: Cluster) -> None:
    for server in cluster.servers:
        with server.client() as admin:
            admin.config_resetstat()


def calls_and_redirects(cluster: Cluster) -> tuple[Counter[str], Counter[str]]:
    """Counts calls and errors by name, without the errors of handshakes, which older servers do not
    know.
    """
    calls: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    for server in cluster.servers:
        with server.client(decode_responses=True) as admin:
            for name, stats in admin.info("commandstats").items():
                calls[name.removeprefix("cmdstat_")] += stats["calls"]
            for name, stats in admin.info("errorstats").items():
                errors[name.removeprefix("errorstat_")] += stats["count"]
    del errors["ERR"]
    return calls, errors


def module_calls(calls: Counter[str]) -> Counter[str]:
    """Returns the calls of the module, without those of replication."""
    return Counter(
        {
            name: count
            for name, count in calls.items()
            if name.startswith("rl.") and name != "rl.effect"
        }
    )


def test_calls_go_to_the_right_node_without_getkeys(limiter: Any, cluster: Cluster) -> None:
    reset_stats(cluster)
    for key in KEYS:
        assert limiter.take(key, LIMIT)
        assert limiter.peek(key, LIMIT, Fixed(5, 60))
        assert limiter.take_all({f"{{{key}}}:1": LIMIT, f"{{{key}}}:2": LIMIT})
        assert limiter.settle(key, LIMIT, id="unknown", cost=1).wait is None
        with limiter.lease(f"pool:{key}", Concurrency(1, 30)):
            pass
        with limiter.units(f"units:{key}", LIMIT, batch=10) as units:
            assert units.take()
    calls, errors = calls_and_redirects(cluster)
    assert not [name for name in calls if "getkeys" in name]
    # Neither MOVED nor other errors.
    assert not errors
    count = len(KEYS)
    assert module_calls(calls) == {
        # A take, a settlement, and the request for a unit.
        "rl.take": 3 * count,
        "rl.peek": count,
        "rl.mtake": count,
        "rl.acquire": count,
        "rl.release": count,
    }


def test_policy_is_set_on_all_nodes(limiter: Any, cluster: Cluster) -> None:
    policies = limiter.policies
    policies.set("plan", Fixed(5, "1h"))
    poll.until(
        lambda: all(
            server.client(decode_responses=True).execute_command("RL.POLICYLIST", "MATCH", "plan")
            for server in cluster.primaries()
        ),
        "all primaries have the policy",
    )
    reset_stats(cluster)
    assert [limiter.take(key, Policy("plan")).limit for key in KEYS] == [5] * len(KEYS)
    calls, errors = calls_and_redirects(cluster)
    assert module_calls(calls) == {"rl.limit": len(KEYS)}
    assert not errors
    assert policies.delete("plan") == 1


@pytest.mark.parametrize("library", [redis, valkey])
def test_custom_cluster_client_is_routed(library: Any, kind: str, cluster: Cluster) -> None:
    name = "RedisCluster" if library is redis else "ValkeyCluster"
    address = {"host": "127.0.0.1", "port": cluster.servers[0].port}
    if kind == "sync":
        with getattr(library, name)(**address) as client:
            assert_routed(Limiter(client, timeout=10), cluster)
    else:
        import asyncio  # noqa: PLC0415

        loop = asyncio.new_event_loop()
        client = getattr(library.asyncio, name)(**address)
        assert_routed(BlockingLimiter(aio.Limiter(client, timeout=10), loop), cluster)
        loop.run_until_complete(client.aclose())
        loop.close()


def assert_routed(limiter: Any, cluster: Cluster) -> None:
    limiter.take("first", LIMIT)
    reset_stats(cluster)
    assert {limiter.take(key, LIMIT).source for key in KEYS} == {"server"}
    calls, errors = calls_and_redirects(cluster)
    assert not [name for name in calls if "getkeys" in name]
    assert not errors
    assert module_calls(calls) == {"rl.take": len(KEYS)}


def test_peeks_go_to_replicas_if_allowed(kind: str, cluster: Cluster) -> None:
    with cluster.client() as client:
        for key in KEYS:
            client.execute_command("RL.FIXED", f"written:{key}", 5, 3600)
    # A node announces a replica once the replica has data.
    for server in cluster.servers:
        with server.client() as admin:
            poll.until(
                lambda admin=admin: all(
                    len(slots) == 4 for slots in admin.execute_command("CLUSTER SLOTS")
                ),
                "every replica is announced",
            )
    port = cluster.servers[0].port
    strategy = LoadBalancingStrategy.ROUND_ROBIN_REPLICAS
    options = {"host": "127.0.0.1", "port": port, "load_balancing_strategy": strategy}
    replicas = [cluster.replica_of(primary) for primary in cluster.primaries()]
    if kind == "sync":
        with redis.RedisCluster(**options) as client:
            assert_peeks_at_replicas(Limiter(client, peeks=client, timeout=10), cluster, replicas)
    else:
        import asyncio  # noqa: PLC0415

        loop = asyncio.new_event_loop()
        client = redis.asyncio.RedisCluster(**options)
        limiter = BlockingLimiter(aio.Limiter(client, peeks=client, timeout=10), loop)
        assert_peeks_at_replicas(limiter, cluster, replicas)
        loop.run_until_complete(client.aclose())
        loop.close()


def assert_peeks_at_replicas(limiter: Any, cluster: Cluster, replicas: list[Any]) -> None:
    limiter.take("first", LIMIT)
    reset_stats(cluster)
    for key in KEYS:
        assert limiter.take(key, LIMIT).source == "server"
        assert limiter.peek(key, LIMIT).source == "server"
    replica_calls: Counter[str] = Counter()
    for replica in replicas:
        with replica.client(decode_responses=True) as admin:
            stats = admin.info("commandstats")
            replica_calls["rl.peek"] += stats.get("cmdstat_rl.peek", {"calls": 0})["calls"]
            replica_calls["rl.take"] += stats.get("cmdstat_rl.take", {"calls": 0})["calls"]
    assert replica_calls == {"rl.peek": len(KEYS), "rl.take": 0}
    assert not calls_and_redirects(cluster)[1]


def test_cluster_may_be_unreachable_at_the_start(kind: str, cluster: Cluster) -> None:
    with cluster.servers[0].client() as other:
        other.ping()
    for make in limiters_of(kind, "redis://127.0.0.1:1"):
        limiter = make(cluster=True, on_outage="closed", timeout=0.5)
        assert limiter.take("key", LIMIT).source == "none"


def test_outage_of_one_node_leaves_the_others_in_use(make: Make, cluster: Cluster) -> None:
    now = 1000.0
    limiter = make(cluster=True, on_outage="closed", timeout=2.0, clock=lambda: now)
    owners = {key: cluster.owner(key) for key in KEYS}
    assert {limiter.take(key, LIMIT).source for key in KEYS} == {"server"}
    dead = owners[KEYS[0]]
    dead_keys = [key for key in KEYS if owners[key] is dead]
    replica = cluster.replica_of(dead)
    dead.stop("kill")
    # Calls to the dead node fail until its breaker opens; calls to other nodes are decided.
    for _ in range(3):
        assert {limiter.take(dead_keys[0], LIMIT).source for _ in range(5)} == {"none"}
        assert {limiter.take(key, LIMIT).source for key in KEYS if key not in dead_keys} == {
            "server"
        }
    cluster.wait_for_takeover(dead, replica)

    def all_are_decided() -> bool:
        nonlocal now
        now += 1.0  # the pause
        return {limiter.take(key, LIMIT).source for key in dead_keys} == {"server"}

    poll.until(all_are_decided, "the replica decides", timeout=30)


# Waiting callers


def blocked_clients(server: Server) -> int:
    with server.client() as admin:
        return int(admin.info("clients")["blocked_clients"])


@pytest.fixture
def start_waiting(limiter: Any) -> Iterator[Callable[[Server], "Future[str]"]]:
    """Returns a function that starts a call, which waits at a node for another holder's lease."""

    def work() -> str:
        with limiter.lease("pool", Concurrency(1, 30), "me", wait=None):
            return "done"

    with ThreadPoolExecutor(1) as pool:

        def begin(node: Server) -> "Future[str]":
            future = pool.submit(work)
            poll.until(lambda: blocked_clients(node) == 1, "the call waits at this node")
            return future

        yield begin


def acquire_as_another_holder(cluster: Cluster) -> Server:
    owner = cluster.owner("pool")
    with owner.client() as admin:
        admin.execute_command("RL.ACQUIRE", "pool", 1, 300, "another")
    return owner


def test_blocking_call_waits_at_the_node_of_the_key(
    cluster: Cluster, start_waiting: Callable[[Server], "Future[str]"]
) -> None:
    owner = acquire_as_another_holder(cluster)
    reset_stats(cluster)
    future = start_waiting(owner)
    with owner.client() as admin:
        admin.execute_command("RL.RELEASE", "pool", "another")
    assert future.result(10) == "done"
    calls, errors = calls_and_redirects(cluster)
    assert module_calls(calls) == {"rl.acquire": 1, "rl.release": 2}
    assert not errors


def test_blocking_call_follows_a_moving_key(
    cluster: Cluster, start_waiting: Callable[[Server], "Future[str]"]
) -> None:
    owner = acquire_as_another_holder(cluster)
    target = next(server for server in cluster.primaries() if server is not owner)
    future = start_waiting(owner)
    with SlotMove(cluster, "pool", target) as move:
        move.move_keys("pool")
    poll.until(lambda: blocked_clients(target) == 1, "the call waits at this node", timeout=30)
    with target.client() as admin:
        admin.execute_command("RL.RELEASE", "pool", "another")
    assert future.result(10) == "done"


def test_blocking_call_follows_a_failover(
    cluster: Cluster, start_waiting: Callable[[Server], "Future[str]"]
) -> None:
    owner = acquire_as_another_holder(cluster)
    future = start_waiting(owner)
    successor = cluster.fail_over(owner)
    poll.until(lambda: blocked_clients(successor) == 1, "the call waits at this node", timeout=30)
    with successor.client() as admin:
        admin.execute_command("RL.RELEASE", "pool", "another")
    assert future.result(10) == "done"
