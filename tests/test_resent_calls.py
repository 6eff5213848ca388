"""A call with an idempotency key counts once, also with several limits or keys, and as a
settlement.

The table in docs/clients.md says which client libraries resend calls by themselves.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest
from redis import Redis

from support.libraries import MAX_TIMEOUT, Library, LibraryError, Program, each_library
from support.proxy import LossyProxy
from support.scale import scaled
from support.server import Server

# Once, as the library decides when to resend. test_once.py checks on every server that an id counts
# once. Building the program of a library takes a minute or two.
pytestmark = [pytest.mark.once, pytest.mark.timeout(MAX_TIMEOUT)]

CALLS = scaled(32, 200)
LIMIT = scaled(24, 150)

MAX_ATTEMPTS = 5


class Answer(NamedTuple):
    """Result of a call for its caller."""

    allowed: bool
    # Number of times that the caller sent the call, without resends by the library.
    attempts: int


def answers(library: Library, proxy: LossyProxy, calls: Sequence[Sequence[str]]) -> list[Answer]:
    """Sends the calls one by one. The caller resends a call that the library gives up."""

    def send(program: Program, call: Sequence[str]) -> Answer:
        for attempts in range(1, MAX_ATTEMPTS):
            try:
                return Answer(program.ask("call", *call)[0] == 1, attempts)
            except LibraryError:
                pass
        return Answer(program.ask("call", *call)[0] == 1, MAX_ATTEMPTS)

    proxy.sent = 0
    with library.program("server", proxy.port) as program:
        # The program makes its first call by itself.
        program.ask("first")
        proxy.sent = 0
        return [send(program, call) for call in calls]


@pytest.fixture
def proxy(server: Server) -> Iterator[LossyProxy]:
    """Proxy that loses every third reply, but not the reply to a call that is resent."""
    with LossyProxy(server.port, every=3).running() as proxy:
        yield proxy


def used(redis: Redis, key: str, limit: int, *spec: str) -> int:
    return limit - redis.execute_command("RL.PEEK", key, *spec)[2]


def admitted(answered: list[Answer]) -> int:
    assert len(answered) == CALLS
    return sum(answer.allowed for answer in answered)


@each_library
def test_with_once_exactly_the_limit_is_charged_and_admitted(
    library: Library, proxy: LossyProxy, redis: Redis
) -> None:
    spec = ("FIXED", str(LIMIT), "1h")
    answered = answers(
        library, proxy, [("RL.TAKE", "k", *spec, "ONCE", f"call-{n}", "10m") for n in range(CALLS)]
    )
    assert proxy.lost >= CALLS // 3
    assert admitted(answered) == used(redis, "k", LIMIT, *spec) == LIMIT


@each_library
def test_with_once_the_limit_holds_over_several_limits_and_keys(
    library: Library, proxy: LossyProxy, redis: Redis
) -> None:
    window, log = ("FIXED", str(LIMIT), "1h"), ("SLIDINGLOG", "1000", "1h")
    several = [
        ("RL.TAKE", "k", "ONCE", f"call-{n}", "10m", *window, *log, "AS", "log")
        for n in range(CALLS)
    ]
    assert admitted(answers(library, proxy, several)) == used(redis, "k", LIMIT, *window) == LIMIT
    assert used(redis, "k", 1000, *log, "AS", "log") == LIMIT
    keys = [
        ("RL.MTAKE", "2", "a", "b", "ONCE", f"call-{n}", "10m", *window, *log) for n in range(CALLS)
    ]
    assert admitted(answers(library, proxy, keys)) == used(redis, "a", LIMIT, *window) == LIMIT
    assert used(redis, "b", 1000, *log) == LIMIT
    assert proxy.lost >= 2 * CALLS // 3


@each_library
def test_a_settlement_that_is_sent_again_settles_once(
    library: Library, proxy: LossyProxy, redis: Redis
) -> None:
    spec = ("TOKENBUCKET", "10000", "10000", "3650d")
    calls = []
    for n in range(CALLS // 2):
        calls.append(("RL.TAKE", "k", *spec, "COST", "4", "ONCE", f"call-{n}", "10m"))
        calls.append(("RL.TAKE", "k", *spec, "SETTLE", f"call-{n}", str(n % 7)))
    assert admitted(answers(library, proxy, calls)) == CALLS
    assert proxy.lost >= CALLS // 3
    assert used(redis, "k", 10_000, *spec) == sum(n % 7 for n in range(CALLS // 2))


@each_library
def test_without_once_every_lost_reply_is_charged_additionally(
    library: Library, proxy: LossyProxy, redis: Redis
) -> None:
    spec = ("FIXED", "1000", "1h")
    answered = answers(library, proxy, [("RL.TAKE", "k", *spec)] * CALLS)
    charged = used(redis, "k", 1000, *spec)
    caller_resends = sum(answer.attempts - 1 for answer in answered)
    library_resends = proxy.sent - CALLS - caller_resends
    print(
        f"{library.name}: {CALLS} calls, {proxy.lost} replies lost; resent {library_resends} times"
        f" by the library, {caller_resends} by its caller;"
        f" admitted {admitted(answered)}, charged {charged}"
    )
    assert proxy.lost >= CALLS // 3
    assert charged == proxy.sent == admitted(answered) + proxy.lost
    assert admitted(answered) == CALLS


@each_library
def test_without_once_fewer_are_admitted_than_the_limit_allows(
    library: Library, proxy: LossyProxy, redis: Redis
) -> None:
    spec = ("FIXED", str(LIMIT), "1h")
    answered = answers(library, proxy, [("RL.TAKE", "k", *spec)] * CALLS)
    assert used(redis, "k", LIMIT, *spec) == LIMIT
    print(f"{library.name}: of a limit of {LIMIT}, admitted {admitted(answered)}")
    # A third of the units went to calls whose replies were lost.
    assert admitted(answered) == LIMIT - LIMIT // 3
