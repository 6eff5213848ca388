"""A call whose reply was lost is sent again, by its client or by its caller: with an id, it counts
once.

What each client does is in docs/reliability.md, "Calls that are sent again"; `pytest -rP` shows it.
"""

from collections.abc import Iterator

import pytest
from redis import Redis

from support.callers import CALLERS, Answer, Caller
from support.proxy import LossyProxy
from support.scale import scaled
from support.server import Server

# When a client sends a call again is its own doing; that an id counts once, test_once.py asks of
# every server. Building a client in another language takes a minute or two.
pytestmark = [pytest.mark.once, pytest.mark.timeout(600)]

CALLS = scaled(32, 200)
LIMIT = scaled(24, 150)

each_caller = pytest.mark.parametrize("call", CALLERS.values(), ids=CALLERS)


@pytest.fixture
def proxy(server: Server) -> Iterator[LossyProxy]:
    """Every third reply is lost, so that a call that is sent again is answered then."""
    with LossyProxy(server.port, every=3).running() as proxy:
        yield proxy


def used(redis: Redis, key: str, limit: int, *spec: str) -> int:
    return limit - redis.execute_command("RL.PEEK", key, *spec)[2]


def admitted(answers: list[Answer]) -> int:
    assert len(answers) == CALLS
    return sum(answer.allowed for answer in answers)


@each_caller
def test_with_once_exactly_the_limit_is_charged_and_told(
    call: Caller, proxy: LossyProxy, redis: Redis
) -> None:
    spec = ("FIXED", str(LIMIT), "1h")
    answers = call(
        proxy.port, [("RL.TAKE", "k", *spec, "ONCE", f"call-{n}", "10m") for n in range(CALLS)]
    )
    assert proxy.lost >= CALLS // 3
    assert admitted(answers) == used(redis, "k", LIMIT, *spec) == LIMIT


@each_caller
def test_so_it_is_over_several_limits_and_several_keys(
    call: Caller, proxy: LossyProxy, redis: Redis
) -> None:
    window, log = ("FIXED", str(LIMIT), "1h"), ("SLIDINGLOG", "1000", "1h")
    several = [
        ("RL.TAKE", "k", "ONCE", f"call-{n}", "10m", *window, *log, "AS", "log")
        for n in range(CALLS)
    ]
    assert admitted(call(proxy.port, several)) == used(redis, "k", LIMIT, *window) == LIMIT
    assert used(redis, "k", 1000, *log, "AS", "log") == LIMIT
    keys = [
        ("RL.MTAKE", "2", "a", "b", "ONCE", f"call-{n}", "10m", *window, *log) for n in range(CALLS)
    ]
    assert admitted(call(proxy.port, keys)) == used(redis, "a", LIMIT, *window) == LIMIT
    assert used(redis, "b", 1000, *log) == LIMIT
    assert proxy.lost >= 2 * CALLS // 3


@each_caller
def test_a_settlement_that_is_sent_again_settles_once(
    call: Caller, proxy: LossyProxy, redis: Redis
) -> None:
    spec = ("TOKENBUCKET", "10000", "10000", "3650d")
    calls = []
    for n in range(CALLS // 2):
        calls.append(("RL.TAKE", "k", *spec, "COST", "4", "ONCE", f"call-{n}", "10m"))
        calls.append(("RL.TAKE", "k", *spec, "SETTLE", f"call-{n}", str(n % 7)))
    assert admitted(call(proxy.port, calls)) == CALLS
    assert proxy.lost >= CALLS // 3
    assert used(redis, "k", 10_000, *spec) == sum(n % 7 for n in range(CALLS // 2))


@each_caller
def test_without_once_every_lost_reply_is_charged_beside_what_was_admitted(
    call: Caller, proxy: LossyProxy, redis: Redis, request: pytest.FixtureRequest
) -> None:
    spec = ("FIXED", "1000", "1h")
    answers = call(proxy.port, [("RL.TAKE", "k", *spec)] * CALLS)
    charged = used(redis, "k", 1000, *spec)
    by_caller = sum(answer.attempts - 1 for answer in answers)
    print(
        f"{request.node.callspec.id}: {CALLS} calls, {proxy.lost} replies lost; sent again"
        f" {proxy.sent - CALLS - by_caller} times by the client, {by_caller} by its caller;"
        f" admitted {admitted(answers)}, charged {charged}"
    )
    assert proxy.lost >= CALLS // 3
    assert charged == proxy.sent == admitted(answers) + proxy.lost
    assert admitted(answers) == CALLS


@each_caller
def test_without_once_fewer_are_admitted_than_the_limit_allows(
    call: Caller, proxy: LossyProxy, redis: Redis, request: pytest.FixtureRequest
) -> None:
    spec = ("FIXED", str(LIMIT), "1h")
    answers = call(proxy.port, [("RL.TAKE", "k", *spec)] * CALLS)
    assert used(redis, "k", LIMIT, *spec) == LIMIT
    print(f"{request.node.callspec.id}: of a limit of {LIMIT}, admitted {admitted(answers)}")
    # A third of the units went to calls whose replies were lost.
    assert admitted(answers) == LIMIT - LIMIT // 3
