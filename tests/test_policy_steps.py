"""A hundred workers that see the same refusal lower a factor once (RL.POLICYSCALE with EVERY), in a
cluster and after a failover too, whatever the servers' clocks show.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from conftest import running_cluster
from support import fleet, poll
from support.binaries import Binary
from support.clock import START_US, Clock
from support.cluster import Cluster
from support.fleet import Tally
from support.saving import rewrite_aof
from support.server import Server

pytestmark = pytest.mark.every_server

MINUTE = "TOKENBUCKET 60 60 1m"


@pytest.fixture
def redis(fresh_server: Callable[..., Server]) -> Redis:
    """Client of a server with the policy "gold"."""
    client = fresh_server(module_args="policies yes").client()
    client.execute_command("RL.POLICYSET", "gold", *MINUTE.split())
    return client


def scale(client: Redis, words: str, name: str = "gold") -> list:
    """Scales a policy. Returns its scale, and the milliseconds until the scale ends."""
    _, factor, ms = client.execute_command("RL.POLICYSCALE", name, *words.split())
    return [float(factor), ms]


def changes(client: Redis) -> int:
    """Returns the server's count of writes since the last snapshot."""
    return client.info("persistence")["rdb_changes_since_last_save"]


def test_mul_and_add_change_the_current_factor(redis: Redis) -> None:
    assert scale(redis, "MUL 0.5") == [0.5, -1]
    assert scale(redis, "MUL 0.5 FOR 10s") == [0.25, 10_000]
    assert scale(redis, "ADD 0.1") == [0.35, 10_000], "without FOR, the end is kept"
    assert redis.execute_command("RL.LIMIT", "k", "gold")[:3] == [1, 21, 20]
    assert scale(redis, "MUL 0") == [0.01, 10_000]
    assert scale(redis, "MUL 0 MIN 0") == [0, 10_000]
    assert scale(redis, "ADD 9") == [1, 10_000]
    assert scale(redis, "ADD 9 MAX 3") == [3, 10_000]


def test_the_end_of_for_resets_the_scale_and_the_time_of_its_change(
    redis: Redis, clock: Clock
) -> None:
    assert scale(redis, "MUL 0.5 EVERY 1h FOR 10s") == [0.5, 10_000]
    clock.advance("10s")
    assert scale(redis, "MUL 0.5 EVERY 1h FOR 10s") == [0.5, 10_000]


def test_a_change_within_every_does_nothing(redis: Redis, clock: Clock) -> None:
    brake = "MUL 0.5 EVERY 10s FOR 1m"
    assert scale(redis, brake) == [0.5, 60_000]
    clock.advance("9999999us")
    before = changes(redis)
    assert scale(redis, brake)[0] == 0.5
    assert changes(redis) == before, "a change within EVERY writes nothing"
    assert scale(redis, "ADD 0.1 EVERY 10s")[0] == 0.6, "ADD is independent of MUL"
    clock.advance("1us")
    assert scale(redis, brake) == [0.3, 60_000]
    assert scale(redis, "1") == [1, -1]
    assert scale(redis, brake) == [0.5, 60_000], "a plain factor resets the time of the change"


def test_a_clock_that_is_set_back_prevents_a_change_no_longer_than_every(
    redis: Redis, clock: Clock
) -> None:
    assert scale(redis, "MUL 0.5 EVERY 10s")[0] == 0.5
    clock.advance("-9s")
    assert scale(redis, "MUL 0.5 EVERY 10s")[0] == 0.5
    clock.advance("-1s")
    assert scale(redis, "MUL 0.5 EVERY 10s")[0] == 0.5
    # EVERY begins again at the time of the clock that was set back.
    clock.advance("9999999us")
    assert scale(redis, "MUL 0.5 EVERY 10s")[0] == 0.5
    clock.advance("1us")
    assert scale(redis, "MUL 0.5 EVERY 10s")[0] == 0.25


def test_a_loaded_change_that_is_ahead_of_the_clock_prevents_changes_no_longer_than_every(
    fresh_server: Callable[..., Server], clock: Clock
) -> None:
    server = fresh_server(module_args="policies yes", appendonly="yes")
    with server.client() as client:
        client.execute_command("RL.POLICYSET", "gold", *MINUTE.split())
        assert scale(client, "MUL 0.5 EVERY 1h")[0] == 0.5
    clock.advance("-50m")
    server.restart("nosave")
    with server.client() as client:
        clock.advance("3599999999us")
        assert scale(client, "MUL 0.5 EVERY 1h")[0] == 0.5
        clock.advance("1us")
        assert scale(client, "MUL 0.5 EVERY 1h")[0] == 0.25
        # A later definition keeps the learned factor.
        clock.advance("1799999999us")
        client.execute_command("RL.POLICYSET", "gold", "FIXED", 7, "1m")
        clock.advance("1800000000us")
        assert scale(client, "MUL 0.5 EVERY 1h")[0] == 0.25
        clock.advance("1us")
        assert scale(client, "MUL 0.5 EVERY 1h")[0] == 0.125


@pytest.mark.parametrize("way", ["by an effect", "by a full sync"])
def test_replica_promoted_after_its_clock_was_corrected_does_not_scale_twice(
    way: str, fresh_server: Callable[..., Server], clock: Clock, tmp_path: Path
) -> None:
    primary = fresh_server(module_args="policies yes")
    client = primary.client()
    client.execute_command("RL.POLICYSET", "gold", *MINUTE.split())
    wrong_clock = Clock(clock.library, tmp_path / "clock")
    wrong_clock.advance("5h")
    if way == "by a full sync":
        assert scale(client, "MUL 0.5 EVERY 1h")[0] == 0.5
    replica = primary.replica(clock=wrong_clock, module_args="policies yes")
    if way == "by an effect":
        assert scale(client, "MUL 0.5 EVERY 1h")[0] == 0.5
        replica.wait_for_sync()
    # The replica's clock is corrected, and the replica is promoted.
    clock.advance("1m")
    wrong_clock.set(clock.now)
    replica.follow(None)
    promoted = replica.client()
    assert scale(promoted, "MUL 0.5 EVERY 1h")[0] == 0.5
    wrong_clock.advance("1h")
    assert scale(promoted, "MUL 0.5 EVERY 1h")[0] == 0.25


@pytest.mark.parametrize("way", ["snapshot", "AOF", "rewritten AOF"])
def test_a_restart_keeps_the_factor_and_its_time_of_change(
    way: str, fresh_server: Callable[..., Server]
) -> None:
    server = fresh_server(
        module_args="policies yes", appendonly="no" if way == "snapshot" else "yes"
    )
    with server.client() as client:
        client.execute_command("RL.POLICYSET", "gold", *MINUTE.split())
        assert scale(client, "MUL 0.5 EVERY 1h FOR 10m") == [0.5, 600_000]
        assert scale(client, "ADD 0.1 EVERY 1h") == [0.6, 600_000]
        if way == "rewritten AOF":
            rewrite_aof(client)
    server.restart("save" if way == "snapshot" else "nosave")
    with server.client() as client:
        assert scale(client, "MUL 0.5 EVERY 1h FOR 1h") == [0.6, 600_000]
        assert scale(client, "ADD 0.1 EVERY 1h FOR 1h") == [0.6, 600_000]
        assert scale(client, "MUL 0.5")[0] == 0.3


def test_replica_has_the_factor_and_continues_with_it(
    fresh_server: Callable[..., Server],
) -> None:
    primary = fresh_server(module_args="policies yes")
    replica = primary.replica()
    with primary.client() as client:
        client.execute_command("RL.POLICYSET", "gold", *MINUTE.split())
        assert scale(client, "MUL 0.5 EVERY 1h")[0] == 0.5
    replica.wait_for_sync()
    replica.follow(None)
    with replica.client() as client:
        assert scale(client, "MUL 0.5 EVERY 1h")[0] == 0.5
        assert scale(client, "MUL 0.5")[0] == 0.25


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("MUL 2", "factor must be a number from 0 to 1, such as 0.7, not '2'"),
        ("MUL 0.5 MAX 1", "unexpected 'MAX', where an option is needed: MIN, EVERY or FOR"),
        ("ADD 0", "step must be a number from 0.000001 to 1000, such as 0.05, not '0'"),
        ("ADD", r"step is missing: ADD step \[MAX most\] \[EVERY duration\] \[FOR duration\]"),
    ],
)
def test_wrong_arguments_are_errors_and_change_nothing(
    redis: Redis, words: str, error: str
) -> None:
    with pytest.raises(ResponseError, match=error):
        scale(redis, words)
    assert scale(redis, "MUL 1") == [1, -1]


def test_hundred_workers_on_three_primaries_scale_once(cluster: Cluster) -> None:
    name = "fleet"
    primaries = [cluster.admin(primary) for primary in cluster.primaries()]
    version = primaries[0].execute_command("RL.POLICYSET", name, *MINUTE.split())

    def factors() -> set[tuple[int, str] | None]:
        """Returns each node's factor; None for a node that has not received the policy."""
        nodes = (cluster.admin(node).execute_command("RL.POLICYLIST") for node in cluster.servers)
        return {next(((row[1], row[3]) for row in node if row[0] == name), None) for node in nodes}

    poll.until(lambda: factors() == {(version, "1")}, "all nodes have the policy")

    def brake(primary: Redis) -> None:
        for _ in range(33):
            scale(primary, "MUL 0.5 EVERY 1h", name)

    with ThreadPoolExecutor(len(primaries)) as pool:
        # All three scale at once, and may not have received the step of another node.
        list(pool.map(brake, primaries))
    poll.until(lambda: factors() == {(version, "0.5")}, "all nodes have been scaled once")
    assert scale(primaries[0], "ADD 0.1 EVERY 1h", name)[0] == 0.6
    poll.until(lambda: factors() == {(version, "0.6")}, "all nodes have the next step")
    assert {scale(primary, "ADD 0.1 EVERY 1h", name)[0] for primary in primaries} == {0.6}
    primaries[0].execute_command("RL.POLICYDEL", name)


# Fleet of a hundred workers. The capacity of their upstream is halved for a while.


def rates(tallies: list[Tally], begin: int, end: int) -> tuple[float, float]:
    """Returns the requests per second that the upstream answered, and those that it refused."""
    part = tallies[begin:end]
    return tuple(
        sum(counts) / len(part)
        for counts in ([tally.answered for tally in part], [tally.refused for tally in part])
    )


def check_one_brake(tallies: list[Tally]) -> None:
    half = fleet.CAPACITY / 2
    answered, refused = rates(tallies, 1, fleet.HALF_FROM)
    assert answered > 0.95 * fleet.CAPACITY
    assert refused == 0
    # From the time at which the fleet has found the new capacity.
    answered, refused = rates(tallies, fleet.HALF_FROM + 5, fleet.HALF_UNTIL)
    assert answered > 0.85 * half
    assert refused < 0.05 * half
    answered, refused = rates(tallies, fleet.END - 5, fleet.END)
    assert answered > 0.95 * fleet.CAPACITY
    assert refused == 0
    assert tallies[-1].scale == 1


# The module decides this alone, so one server is enough.
@pytest.mark.one_server
def test_shared_scale_finds_the_upstreams_capacity(
    fresh_server: Callable[..., Server], clock: Clock
) -> None:
    def run(title: str) -> list[Tally]:
        client = fresh_server(module_args="policies yes").client()
        clock.reset()
        return fleet.simulate(client, [client], lambda us: clock.set(START_US + us), title=title)

    without_brakes, with_all_brakes, with_one_brake = (run(title) for title in fleet.RUNS)
    check_one_brake(with_one_brake)
    _, refused = rates(without_brakes, fleet.HALF_FROM + 5, fleet.HALF_UNTIL)
    assert refused > 0.9 * fleet.CAPACITY / 2, "without brakes, half of the requests are refused"
    half_time = (fleet.HALF_FROM, fleet.HALF_UNTIL)
    answered, _ = rates(with_all_brakes, *half_time)
    assert answered < rates(with_one_brake, *half_time)[0], "a brake for each refusal is too much"


@pytest.mark.one_server
def test_shared_scale_works_in_a_cluster(
    binary: Binary, shared_clock: Clock, tmp_path: Path
) -> None:
    with running_cluster(binary, shared_clock, tmp_path, replicas=False) as cluster:
        nodes = [cluster.admin(primary) for primary in cluster.primaries()]
        version = nodes[0].execute_command("RL.POLICYSET", fleet.POLICY, *fleet.SPECS.split())
        poll.until(
            lambda: all(
                [row[1] for row in node.execute_command("RL.POLICYLIST")] == [version]
                for node in nodes
            ),
            "all nodes have the policy",
        )
        begin = time.time_ns() // 1000
        try:
            tallies = fleet.simulate(
                cluster.client(),
                nodes,
                lambda us: cluster.clock.set(begin + us),
                title="one brake a second (EVERY 1s)",
            )
        finally:
            cluster.clock.run()
    check_one_brake(tallies)
