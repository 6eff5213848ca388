"""Decisions during an outage of the server."""

import logging
import os
import signal
from typing import Any

import pytest
import redis
from support.binaries import Binary
from support.server import Server

from limiters import FrozenClock
from redis_ratelimit import (
    Concurrency,
    Fixed,
    Local,
    Policy,
    SetupError,
    TokenBucket,
    UnavailableError,
)
from redis_ratelimit.local import Charge

LIMIT = TokenBucket(100, 100, "1h")


@pytest.fixture
def limiter_clock() -> FrozenClock:
    return FrozenClock()


def test_open_allows_every_call(make: Any, server: Server) -> None:
    limiter = make()
    assert limiter.take("key", LIMIT).source == "server"
    server.stop("kill")
    decision = limiter.take("key", LIMIT, cost=1000)
    assert (decision.allowed, decision.source, decision.wait) == (True, "none", 0.0)
    assert limiter.take("key", LIMIT, cost=7, upto=True).granted == 7
    assert limiter.peek("key", LIMIT).source == "none"
    assert limiter.take_all({"{a}1": LIMIT, "{a}2": LIMIT}).source == "none"


def test_closed_denies_every_call(make: Any, server: Server) -> None:
    limiter = make(on_outage="closed", pause=2.5)
    server.stop("kill")
    decision = limiter.take("key", LIMIT)
    # The time when the server is tried again.
    assert (decision.allowed, decision.source, decision.wait) == (False, "none", 2.5)
    assert limiter.take("key", LIMIT, upto=True).granted == 0


def test_local_allows_the_share_of_this_process(
    make: Any, server: Server, limiter_clock: FrozenClock
) -> None:
    limiter = make(on_outage=Local(share=0.25, clock=limiter_clock), pause=2.5)
    server.stop("kill")
    decisions = [limiter.take("key", LIMIT) for _ in range(30)]
    assert [one.allowed for one in decisions] == [True] * 25 + [False] * 5
    assert {one.source for one in decisions} == {"local"}
    assert (decisions[0].limit, decisions[0].remaining) == (25, 24)
    assert decisions[-1].wait == 2.5
    # The usage recovers at the rate of the limit: the whole share within an hour.
    limiter_clock.seconds += 3600 / 25
    assert limiter.take("key", LIMIT)
    assert not limiter.take("key", LIMIT)
    assert limiter.take("other", LIMIT)


def test_local_limit_supports_options(
    make: Any, server: Server, limiter_clock: FrozenClock
) -> None:
    limiter = make(on_outage=Local(clock=limiter_clock))
    server.stop("kill")
    two = (Fixed(10, 60, cost=1, name="requests"), Fixed(1000, 60, name="tokens"))
    decision = limiter.take("llm", *two, cost=900, once="req-1", each=True)
    assert [(one.name, one.remaining) for one in decision.each] == [
        ("requests", 9),
        ("tokens", 100),
    ]
    denied = limiter.take("llm", *two, cost=200, each=True)
    assert [one.allowed for one in denied.each] == [True, False]
    assert limiter.settle("llm", *two, id="req-1", cost=100).source == "local"
    # The charge is settled by the process that charged it, and only once.
    assert limiter.settle("llm", *two, id="req-1", cost=100).source == "none"
    assert [one.remaining for one in limiter.peek("llm", *two, each=True).each] == [9, 900]
    assert limiter.peek("units", Fixed(10, 60), cost=70, upto=True).granted == 10
    assert limiter.take("units", Fixed(10, 60), cost=7, upto=True).granted == 7
    assert limiter.take("units", Fixed(10, 60), cost=7, upto=True).granted == 3
    exhausted = limiter.take("units", Fixed(10, 60), cost=7, upto=True)
    assert (exhausted.allowed, exhausted.granted) == (False, 0)
    assert limiter.give_back("units", Fixed(10, 60), cost=4).remaining == 4
    assert not limiter.take("debt", Fixed(10, 60), cost=30, force=True)
    limiter_clock.seconds += 60
    assert not limiter.take("debt", Fixed(10, 60))
    assert not limiter.take("nothing", Fixed(0, 60))


@pytest.mark.parametrize("now", [0.1, 1000.7, 123456.789, 1e9 / 7])
def test_remaining_units_stay_whole(now: float) -> None:
    local = Local(clock=lambda: now)
    for limit in (3, 7, 10, 1000):
        for cost in range(1, 4):
            charges = [Charge(f"{limit}:{cost}", Fixed(limit, 0.7), cost)]
            assert [one.remaining for one in local.take(charges)] == [limit - cost]


def test_local_policy_uses_otherwise(make: Any, server: Server) -> None:
    without_otherwise = make(on_outage=Local())
    with_otherwise = make(on_outage=Local(otherwise=Fixed(2, "1h")))
    server.stop("kill")
    assert without_otherwise.take("key", Policy("api")).source == "none"
    assert [with_otherwise.take("key", Policy("api")).allowed for _ in range(3)] == [
        True,
        True,
        False,
    ]
    assert with_otherwise.take("pool", Concurrency(1, 30), holder="me").source == "none"


def test_calls_without_a_decision_raise_unavailable_error(make: Any, server: Server) -> None:
    limiter = make(on_outage="open")
    server.stop("kill")
    for call in (
        limiter.check,
        lambda: limiter.policies.set("plan", LIMIT),
        lambda: limiter.policies.get("plan"),
        lambda: limiter.ban("key", 60),
        lambda: limiter.release("pool", "me"),
        limiter.lease("pool", Concurrency(1, 30), wait=0).__enter__,
    ):
        with pytest.raises(UnavailableError):
            call()


def test_server_decides_again_after_the_pause(
    make: Any, server: Server, limiter_clock: FrozenClock
) -> None:
    limiter = make(on_outage="closed", clock=limiter_clock)
    limiter.take("key", LIMIT)
    server.stop("kill")
    assert [limiter.take("key", LIMIT).source for _ in range(5)] == ["none"] * 5
    server.start()
    # No call is sent until the pause is over.
    assert limiter.take("key", LIMIT).source == "none"
    limiter_clock.seconds += 1.0
    assert limiter.take("key", LIMIT).source == "server"


def test_breaker_opens_for_a_hanging_server(
    make: Any, server: Server, admin: redis.Redis, limiter_clock: FrozenClock
) -> None:
    limiter = make(timeout=0.05, resends=0, failures=3, clock=limiter_clock)
    patient_limiter = make(timeout=10.0)
    patient_limiter.take("key", LIMIT)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        # Three calls time out. If all did, the test would take minutes.
        assert {limiter.take("key", LIMIT).source for _ in range(2000)} == {"none"}
    finally:
        os.kill(server.pid, signal.SIGCONT)
    admin.config_resetstat()
    assert limiter.take("key", LIMIT).source == "none"
    assert "cmdstat_rl.take" not in admin.info("commandstats")


def test_one_call_probes_after_the_pause(
    make: Any, server: Server, limiter_clock: FrozenClock
) -> None:
    limiter = make(clock=limiter_clock, resends=0)
    server.stop("kill")
    for _ in range(3):
        limiter.take("key", LIMIT)
    limiter_clock.seconds += 1.0
    server.start()
    assert limiter.take("key", LIMIT).source == "server"


@pytest.mark.parametrize("on_outage", ["open", "closed"])
def test_outage_logs_its_begin_and_end_once(
    make: Any,
    server: Server,
    limiter_clock: FrozenClock,
    caplog: pytest.LogCaptureFixture,
    on_outage: str,
) -> None:
    limiter = make(on_outage=on_outage, clock=limiter_clock)
    server.stop("kill")
    for _ in range(50):
        limiter.take("key", LIMIT)
        limiter_clock.seconds += 0.3
    server.start()
    limiter_clock.seconds += 1.0
    for _ in range(50):
        limiter.take("key", LIMIT)
        limiter_clock.seconds += 0.3
    begin_message, end_message = [record.message for record in caplog.records]
    assert begin_message.startswith("Redis is away: ")
    assert end_message == "Redis is back"


def test_server_state_is_an_outage(
    make: Any, admin: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = make(on_outage="closed")
    admin.config_set("min-replicas-to-write", 1)
    try:
        for _ in range(5):
            assert limiter.take("key", LIMIT).source == "none"
        # The server replies, so the breaker stays closed.
        assert limiter.peek("key", LIMIT).source == "server"
    finally:
        admin.config_set("min-replicas-to-write", 0)
    assert limiter.take("key", LIMIT).source == "server"
    (line,) = [record.message for record in caplog.records]
    assert line.startswith("Redis refuses calls: ")


def test_missing_module_is_a_setup_error(
    make: Any, binary: Binary, caplog: pytest.LogCaptureFixture
) -> None:
    with Server(binary, module=None) as bare:
        limiter = make(f"redis://127.0.0.1:{bare.port}")
        for call in (limiter.check, lambda: limiter.take("key", LIMIT)):
            with pytest.raises(SetupError, match="module is not loaded: start the server with"):
                call()
    (line,) = [record.message for record in caplog.records]
    assert line.endswith("--loadmodule /path/to/libredis_ratelimit.so policies yes")


def test_server_may_be_unreachable_at_the_start(
    make: Any, server: Server, limiter_clock: FrozenClock
) -> None:
    server.stop("kill")
    limiter = make(clock=limiter_clock)
    assert limiter.take("key", LIMIT).source == "none"
    server.start()
    limiter_clock.seconds += 1.0
    assert limiter.take("key", LIMIT).source == "server"


@pytest.fixture(autouse=True)
def _record_warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="redis_ratelimit")
