"""A decision on one existing key allocates no memory. A debug build counts the allocations."""

from collections.abc import Callable, Iterator

import pytest
from redis import Redis

from support.clock import Clock
from support.server import DEBUG_MODULE, Server
from support.workload import LIMITERS, Limiter, Word

# Types whose calls allocate: a lease for its name and two tree nodes, a log for its entries, and a
# composite key for lists.
GROWING = {b"rl-leases", b"rl-reqlog", b"rl-limits"}
FIXED_SIZE = [limiter for limiter in LIMITERS if limiter.type not in GROWING]
LOG = next(limiter for limiter in LIMITERS if limiter.type == b"rl-reqlog")

each_fixed_size = pytest.mark.parametrize("limiter", FIXED_SIZE, ids=lambda limiter: limiter.name)


@pytest.fixture(params=["without a replica", "with a replica"])
def counting(
    request: pytest.FixtureRequest, fresh_server: Callable[..., Server]
) -> Iterator[Redis]:
    """Client of a server whose debug module counts allocations."""
    server = fresh_server(module=DEBUG_MODULE)
    if request.param == "with a replica":
        server.replica()
    with server.client() as client:
        yield client


def allocations(redis: Redis, *call: Word) -> int:
    """Returns the number of allocations of a call."""
    before = redis.execute_command("RL.ALLOCATIONS", "k")
    redis.execute_command(*call)
    return redis.execute_command("RL.ALLOCATIONS", "k") - before


@each_fixed_size
def test_a_decision_allocates_no_memory(limiter: Limiter, counting: Redis, clock: Clock) -> None:
    assert allocations(counting, *limiter.take("k", 1)) > 0
    # The first denial of a key adds an entry to RL.TOP.
    assert allocations(counting, *limiter.take("k", 100)) > 0
    clock.advance("1s")
    calls = [limiter.take("k", cost) for cost in (1, 0, "0.5", "-0.5", 100)]
    calls += [("RL.TAKE", "k", *limiter.words(2)), limiter.peek("k", 1), limiter.peek("k", 100)]
    calls += [limiter.take("k", 3, "FORCE"), limiter.take("k", 1, "UPTO")]
    for call in calls:
        assert allocations(counting, *call) == 0, call


def test_a_log_allocates_only_to_grow(counting: Redis, clock: Clock) -> None:
    counts = []
    for _ in range(10):
        clock.advance("1s")
        counts.append(allocations(counting, *LOG.take("k", 1)))
    assert counts[0] > 0
    assert 0 in counts[1:]
    assert allocations(counting, *LOG.take("k", 1)) > 0, "the first denial adds a row to RL.TOP"
    assert allocations(counting, *LOG.take("k", 1)) == 0
    assert allocations(counting, *LOG.peek("k", 1)) == 0


def test_a_call_on_a_key_with_several_limits_allocates_the_same_each_time(
    counting: Redis, clock: Clock
) -> None:
    call = "RL.TAKE k TOKENBUCKET 100 100 1h FIXED 100 1h SLIDING 100 1h SLIDING 100 1h STRICT"
    counts = []
    for _ in range(20):
        clock.advance("1s")
        counts.append(allocations(counting, *call.split()))
    assert len(set(counts[1:])) == 1
    # A few lists, for any number of limits.
    assert counts[1] <= 12, counts


@pytest.mark.parametrize(
    "call",
    [
        "RL.BAN k 1m",
        "RL.TAKE k CONCURRENCY 5000 1h me FIXED 10 1h",
        "RL.MTAKE 2 k other CONCURRENCY 5000 1h me AS name FIXED 10 1h",
    ],
    ids=lambda call: call.split()[0],
)
def test_a_key_that_is_converted_is_moved_and_not_copied(
    call: str, fresh_server: Callable[..., Server]
) -> None:
    with fresh_server(module=DEBUG_MODULE).client() as client:
        holders = [f"holder {number}" for number in range(2000)]
        pipeline = client.pipeline(transaction=False)
        for holder in holders:
            pipeline.execute_command("RL.ACQUIRE", "k", 5000, "1h", holder)
        pipeline.execute()
        # A tree of 2,000 leases has about 200 nodes.
        assert allocations(client, *call.split()) < 50
        assert client.type("k") == b"rl-limits"
        assert client.execute_command("RL.RELEASE", "k", *holders) == 2000, "all leases remain"
