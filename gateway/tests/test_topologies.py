"""Changes of clusters and Sentinels that the gateway follows."""

import contextlib
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from running import OK, OVER, Gateway, descriptor

from support import binaries, poll
from support.binaries import Binary
from support.clock import Clock
from support.cluster import Cluster
from support.cluster_fixtures import cluster, running_clock, set_policy
from support.sentinel import NAME, Sentinels
from support.server import Server
from support.slot_moves import SlotMove

__all__ = ["cluster", "running_clock"]
Start = Callable[..., Gateway]


def test_request_across_slots_is_all_or_none(cluster: Cluster, start: Start) -> None:
    set_policy(cluster, "api|user", "FIXED", "100", "1d")
    set_policy(cluster, "api|tenant", "FIXED", "2", "1d")
    gateway = start(cluster.servers[1].port)
    users = [descriptor(user=str(n)) for n in range(20)]
    passed = [gateway.passes(user, descriptor(tenant="a")) for user in users]
    assert passed == [True] * 2 + [False] * 18
    statuses = [gateway.ask(descriptor(user=str(n), hits=0)).statuses[0] for n in range(20)]
    assert [status.limit_remaining for status in statuses] == [99] * 2 + [100] * 18


def test_calls_follow_a_moving_slot(cluster: Cluster, start: Start) -> None:
    set_policy(cluster, "api|user", "FIXED", "100", "1d")
    gateway = start(cluster.servers[0].port)
    key = "rl:api|user=1"

    def remaining() -> int:
        answer = gateway.ask(descriptor(user="1"))
        assert answer.statuses[0].current_limit is not None, "the server decides"
        return answer.statuses[0].limit_remaining

    assert remaining() == 99
    owner = cluster.owner(key)
    target = next(server for server in cluster.primaries() if server is not owner)
    with SlotMove(cluster, key, target) as moving:
        assert remaining() == 98, "the key has not moved yet"
        moving.move_keys(key)
        assert remaining() == 97, "during the move: the old owner replies ASK"
    assert [remaining(), remaining()] == [96, 95], "the old owner replies MOVED"


def test_each_node_reports_changes_of_denied_keys(cluster: Cluster, start: Start) -> None:
    set_policy(cluster, "api|user", "FIXED", "1", "1d")
    gateway = start(cluster.servers[0].port)
    name = "ratelimit_gateway_decisions_total"
    assert len({cluster.owner(f"rl:api|user={number}").port for number in range(9)}) > 1

    def local_denials(user: str, *, until_passed: bool) -> float:
        """Send requests until one passes or is denied by the gateway. Return the local denials."""
        before = gateway.metric(name, outcome="denied_local")

        def count() -> float:
            return gateway.metric(name, outcome="denied_local") - before

        def is_done() -> bool:
            passed = gateway.passes(descriptor(user=user))
            return passed if until_passed else count() > 0

        poll.until(is_done, "the key is denied by the gateway, or free again")
        return count()

    for user in map(str, range(9)):
        assert gateway.passes(descriptor(user=user))
        assert local_denials(user, until_passed=False)
        cluster.owner(f"rl:api|user={user}").client().delete(f"rl:api|user={user}")
        assert local_denials(user, until_passed=True) < 50, "until the server's message arrives"


@pytest.mark.long
def test_calls_follow_a_failover_by_sentinels(
    binary: Binary, running_clock: Clock, start: Start
) -> None:
    with Server(binary, clock=running_clock) as primary:
        primary.client().execute_command("RL.POLICYSET", "api", "FIXED", 5, "1d")
        replica = primary.replica()
        with Sentinels(primary) as sentinels:
            hosts = ",".join(f"127.0.0.1:{port}" for port in sentinels._ports)
            gateway = start(f"redis-sentinel://{hosts}/{NAME}")
            assert [gateway.passes(descriptor(user="1")) for _ in range(2)] == [True, True]
            replica.wait_for_sync()
            primary.stop("kill")

            def is_decided() -> bool:
                peek = gateway.ask(descriptor(user="1", hits=0))
                return peek.statuses[0].current_limit is not None

            poll.until(is_decided, "the replica has taken over", timeout=60)
            answers = [gateway.ask(descriptor(user="1")).overall_code for _ in range(4)]
            assert answers == [OK, OK, OK, OVER], "what was used before still counts"


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["redis", "redis-sentinel"])
def test_hanging_host_is_skipped(
    binary: Binary, running_clock: Clock, start: Start, scheme: str
) -> None:
    with contextlib.ExitStack() as owned:
        server = owned.enter_context(Server(binary, clock=running_clock))
        server.client().execute_command("RL.POLICYSET", "api", "FIXED", 5, "1d")
        # The system accepts connections, and no process ever reads from them.
        hanging = owned.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
        port, name = server.port, ""
        if scheme == "redis-sentinel":
            server.replica()
            port, name = owned.enter_context(Sentinels(server))._ports[0], NAME
        gateway = start(f"{scheme}://127.0.0.1:{hanging},127.0.0.1:{port}/{name}")
        assert gateway.ask(descriptor(user="1")).statuses[0].current_limit is not None


@pytest.mark.parametrize("server", binaries.available(), ids=lambda path: path.parents[1].name)
def test_every_available_server_is_supported(
    server: Path, shared_clock: Clock, start: Start
) -> None:
    """Redis 6.2 is included: its INFO accepts only one section per call."""
    with Server(Binary.at(server), clock=shared_clock) as running_server:
        running_server.client().execute_command("RL.POLICYSET", "api|user", "FIXED", "1", "1d")
        gateway = start(running_server.port)
        assert [gateway.passes(descriptor(user="a")) for _ in range(3)] == [True, False, False]
