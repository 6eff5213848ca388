"""While the server does not decide."""

import logging
import os
import signal
from typing import Any

import pytest
import redis
from support.binaries import Binary
from support.server import Server

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


class Time:
    """The limiter's, in seconds: it stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


def test_open_lets_all_pass(make: Any, server: Server) -> None:
    limiter = make()
    assert limiter.take("key", LIMIT).source == "server"
    server.stop("kill")
    decision = limiter.take("key", LIMIT, cost=1000)
    assert (decision.allowed, decision.source, decision.wait) == (True, "none", 0.0)
    assert limiter.take("key", LIMIT, cost=7, upto=True).granted == 7
    assert limiter.peek("key", LIMIT).source == "none"
    assert limiter.take_all({"{a}1": LIMIT, "{a}2": LIMIT}).source == "none"


def test_closed_lets_nothing_pass(make: Any, server: Server) -> None:
    limiter = make(on_outage="closed", pause=2.5)
    server.stop("kill")
    decision = limiter.take("key", LIMIT)
    # When the server is asked again.
    assert (decision.allowed, decision.source, decision.wait) == (False, "none", 2.5)
    assert limiter.take("key", LIMIT, upto=True).granted == 0


def test_the_share_of_this_process_passes(make: Any, server: Server, time: Time) -> None:
    limiter = make(on_outage=Local(share=0.25, clock=time), pause=2.5)
    server.stop("kill")
    decisions = [limiter.take("key", LIMIT) for _ in range(30)]
    assert [one.allowed for one in decisions] == [True] * 25 + [False] * 5
    assert {one.source for one in decisions} == {"local"}
    assert (decisions[0].limit, decisions[0].remaining) == (25, 24)
    assert decisions[-1].wait == 2.5
    # It comes back as the limit does: all of it within the hour.
    time.now += 3600 / 25
    assert limiter.take("key", LIMIT)
    assert not limiter.take("key", LIMIT)
    assert limiter.take("other", LIMIT)


def test_a_local_limit_knows_the_options(make: Any, server: Server, time: Time) -> None:
    limiter = make(on_outage=Local(clock=time))
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
    # Settled where it was charged, and once.
    assert limiter.settle("llm", *two, id="req-1", cost=100).source == "none"
    assert [one.remaining for one in limiter.peek("llm", *two, each=True).each] == [9, 900]
    assert limiter.peek("units", Fixed(10, 60), cost=70, upto=True).granted == 10
    assert limiter.take("units", Fixed(10, 60), cost=7, upto=True).granted == 7
    assert limiter.take("units", Fixed(10, 60), cost=7, upto=True).granted == 3
    none_left = limiter.take("units", Fixed(10, 60), cost=7, upto=True)
    assert (none_left.allowed, none_left.granted) == (False, 0)
    assert limiter.give_back("units", Fixed(10, 60), cost=4).remaining == 4
    assert not limiter.take("debt", Fixed(10, 60), cost=30, force=True)
    time.now += 60
    assert not limiter.take("debt", Fixed(10, 60))
    assert not limiter.take("nothing", Fixed(0, 60))


@pytest.mark.parametrize("now", [0.1, 1000.7, 123456.789, 1e9 / 7])
def test_of_whole_units_whole_units_are_left(now: float) -> None:
    local = Local(clock=lambda: now)
    for limit in (3, 7, 10, 1000):
        for cost in range(1, 4):
            charges = [Charge(f"{limit}:{cost}", Fixed(limit, 0.7), cost)]
            assert [one.remaining for one in local.take(charges)] == [limit - cost]


def test_of_a_policy_only_the_server_knows_the_numbers(make: Any, server: Server) -> None:
    passes = make(on_outage=Local())
    limits = make(on_outage=Local(otherwise=Fixed(2, "1h")))
    server.stop("kill")
    assert passes.take("key", Policy("api")).source == "none"
    assert [limits.take("key", Policy("api")).allowed for _ in range(3)] == [True, True, False]
    assert limits.take("pool", Concurrency(1, 30), holder="me").source == "none"


def test_what_nobody_can_decide_is_an_error(make: Any, server: Server) -> None:
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


def test_a_server_that_comes_back_decides(make: Any, server: Server, time: Time) -> None:
    limiter = make(on_outage="closed", clock=time)
    limiter.take("key", LIMIT)
    server.stop("kill")
    assert [limiter.take("key", LIMIT).source for _ in range(5)] == ["none"] * 5
    server.start()
    # Nobody asks until the pause is over.
    assert limiter.take("key", LIMIT).source == "none"
    time.now += 1.0
    assert limiter.take("key", LIMIT).source == "server"


def test_who_hangs_is_not_asked_for_long(
    make: Any, server: Server, admin: redis.Redis, time: Time
) -> None:
    limiter = make(timeout=0.05, resends=0, failures=3, clock=time)
    poll = make(timeout=10.0)
    poll.take("key", LIMIT)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        # Three run into the time limit; the others would take minutes if they did, too.
        assert {limiter.take("key", LIMIT).source for _ in range(2000)} == {"none"}
    finally:
        os.kill(server.pid, signal.SIGCONT)
    admin.config_resetstat()
    assert limiter.take("key", LIMIT).source == "none"
    assert "cmdstat_rl.take" not in admin.info("commandstats")


def test_after_the_pause_one_asks(make: Any, server: Server, time: Time) -> None:
    limiter = make(clock=time, resends=0)
    server.stop("kill")
    for _ in range(3):
        limiter.take("key", LIMIT)
    time.now += 1.0
    server.start()
    assert limiter.take("key", LIMIT).source == "server"


@pytest.mark.parametrize("on_outage", ["open", "closed"])
def test_an_outage_is_a_line_when_it_begins_and_one_when_it_is_over(
    make: Any, server: Server, time: Time, caplog: pytest.LogCaptureFixture, on_outage: str
) -> None:
    limiter = make(on_outage=on_outage, clock=time)
    server.stop("kill")
    for _ in range(50):
        limiter.take("key", LIMIT)
        time.now += 0.3
    server.start()
    time.now += 1.0
    for _ in range(50):
        limiter.take("key", LIMIT)
        time.now += 0.3
    begins, ends = [record.message for record in caplog.records]
    assert begins.startswith("Redis is away: ")
    assert ends == "Redis is back"


def test_a_state_of_the_server_is_an_outage(
    make: Any, admin: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = make(on_outage="closed")
    admin.config_set("min-replicas-to-write", 1)
    try:
        for _ in range(5):
            assert limiter.take("key", LIMIT).source == "none"
        # It answers, so it is asked on.
        assert limiter.peek("key", LIMIT).source == "server"
    finally:
        admin.config_set("min-replicas-to-write", 0)
    assert limiter.take("key", LIMIT).source == "server"
    (line,) = [record.message for record in caplog.records]
    assert line.startswith("Redis refuses calls: ")


def test_a_server_without_the_module_is_told_of(
    make: Any, binary: Binary, caplog: pytest.LogCaptureFixture
) -> None:
    with Server(binary, module=None) as bare:
        limiter = make(f"redis://127.0.0.1:{bare.port}")
        for call in (limiter.check, lambda: limiter.take("key", LIMIT)):
            with pytest.raises(SetupError, match="module is not loaded: start the server with"):
                call()
    (line,) = [record.message for record in caplog.records]
    assert line.endswith("--loadmodule /path/to/libredis_ratelimit.so policies yes")


def test_the_server_may_be_away_at_the_start(make: Any, server: Server, time: Time) -> None:
    server.stop("kill")
    limiter = make(clock=time)
    assert limiter.take("key", LIMIT).source == "none"
    server.start()
    time.now += 1.0
    assert limiter.take("key", LIMIT).source == "server"


@pytest.fixture(autouse=True)
def _told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="redis_ratelimit")
