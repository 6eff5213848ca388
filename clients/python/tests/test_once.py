"""Calls are resent after replies were lost, and exactly the limit is charged."""

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from support.proxy import LossyProxy
from support.server import Server

from limiters import Make
from redis_ratelimit import Decision, Fixed, Limiter, aio

LIMIT = Fixed(99, "1d")
# Practically endless resends: without a reply, the outcome of a call would be unknown.
ENDLESS_RESENDS = {
    "timeout": 10.0,
    "resends": 1000,
    "failures": 10**6,
    "on_outage": "closed",
    "remember_denials": False,
}


def outcomes(decisions: list[Decision]) -> Counter[str]:
    return Counter(
        f"{decision.source} {'admits' if decision else 'denies'}" for decision in decisions
    )


def used(admin: redis.Redis, key: str = "key") -> str:
    info = admin.execute_command("RL.INFO", key)
    fields = dict(zip(info[::2], info[1::2], strict=True))
    if "parts" in fields:
        (part,) = fields["parts"]
        fields = dict(zip(part[::2], part[1::2], strict=True))
    return str(fields["used"])


@pytest.mark.parametrize("every", [2, 3, 7])
def test_threads_charge_exactly_the_limit(server: Server, admin: redis.Redis, every: int) -> None:
    with (
        LossyProxy(server.port, every).running() as proxy,
        Limiter.from_url(f"redis://127.0.0.1:{proxy.port}", **ENDLESS_RESENDS) as limiter,
        ThreadPoolExecutor(8) as pool,
    ):
        decisions = list(pool.map(lambda _: limiter.take("key", LIMIT), range(150)))
        assert proxy.lost >= 150 // every
    assert outcomes(decisions) == {"server admits": 99, "server denies": 51}
    assert used(admin) == "99"


@pytest.mark.parametrize("every", [2, 3, 7])
def test_tasks_charge_exactly_the_limit(server: Server, admin: redis.Redis, every: int) -> None:
    async def decide(port: int) -> list[Decision]:
        async with aio.Limiter.from_url(f"redis://127.0.0.1:{port}", **ENDLESS_RESENDS) as limiter:
            return await asyncio.gather(*(limiter.take("key", LIMIT) for _ in range(150)))

    with LossyProxy(server.port, every).running() as proxy:
        decisions = asyncio.run(decide(proxy.port))
        assert proxy.lost >= 150 // every
    assert outcomes(decisions) == {"server admits": 99, "server denies": 51}
    assert used(admin) == "99"


def test_several_keys_and_units_are_charged_once(
    make: Make, server: Server, admin: redis.Redis
) -> None:
    with LossyProxy(server.port, 2).running() as proxy:
        limiter = make(f"redis://127.0.0.1:{proxy.port}", **ENDLESS_RESENDS)
        for _ in range(10):
            assert limiter.take_all({"{a}:1": LIMIT, "{a}:2": LIMIT}, cost=3)
        assert limiter.take("units", LIMIT, cost=70, upto=True).granted == 70
        assert limiter.take("units", LIMIT, cost=70, upto=True).granted == 29
        assert limiter.settle("units", LIMIT, id="unknown", cost=1).wait is None
        assert proxy.lost >= 12
    assert [used(admin, key) for key in ("{a}:1", "{a}:2", "units")] == ["30", "30", "99"]


def test_call_without_an_id_is_not_resent(make: Make, server: Server) -> None:
    """The client library does not resend it either, as redis-py does by default."""
    with LossyProxy(server.port, 1).running() as proxy:
        limiter = make(f"redis://127.0.0.1:{proxy.port}", timeout=10.0, resends=5, failures=100)
        assert limiter.take("key", LIMIT, once=False).source == "none"
        assert proxy.sent == 1
        assert limiter.give_back("key", LIMIT, cost=1).source == "none"
        assert proxy.sent == 2
        assert limiter.take("key", LIMIT).source == "none"
        assert proxy.sent == 8


def test_call_is_not_resent_after_its_id_may_have_expired(make: Make, server: Server) -> None:
    """Otherwise a process that is suspended between two attempts would charge twice."""
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 2.0
        return now

    with LossyProxy(server.port, 1).running() as proxy:
        limiter = make(
            f"redis://127.0.0.1:{proxy.port}", resends=50, failures=100, clock=clock, pause=0.0
        )
        assert limiter.take("key", LIMIT, ttl=20).source == "none"
        assert 2 <= proxy.sent <= 10


def test_double_charge_never_allows_too_much(
    make: Make, server: Server, admin: redis.Redis
) -> None:
    """A call for a hundredth of its limit has no idempotency key, and is resent nevertheless."""
    with LossyProxy(server.port, 3).running() as proxy:
        limiter = make(f"redis://127.0.0.1:{proxy.port}", **ENDLESS_RESENDS)
        decisions = [limiter.take("key", Fixed(100, "1d")) for _ in range(100)]
        assert proxy.lost >= 33
    counts = outcomes(decisions)
    assert counts["server admits"] + proxy.lost >= 100 > counts["server admits"] > 50
    assert used(admin) == "100"
    assert admin.type("key") == "rl-window"
