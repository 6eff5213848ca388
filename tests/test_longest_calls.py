"""A call on a full key takes about as long as the server's own command on as many elements.

The processor time of the server is compared, the least of several calls each: never with a clock.
The limit of the promise is four times the server's own.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest
from redis import Redis, ResponseError

from support.clock import Clock
from support.server import Server

COUNT = 30_000
TIMES = 3
LONG = 16_000_000
NAMES = [f"{number:036}" for number in range(COUNT)]


class Compared(NamedTuple):
    """A call, and a native command on as many elements. Both get the number of earlier runs."""

    prepare: Callable[[Redis, Clock], object]
    call: Callable[[Redis, int], object]
    own: Callable[[Redis, int], object]


def _pipelined(redis: Redis, calls: list[tuple[object, ...]]) -> None:
    for first in range(0, len(calls), 1000):
        pipe = redis.pipeline(transaction=False)
        for words in calls[first : first + 1000]:
            pipe.execute_command(*words)
        pipe.execute()


def _ids(redis: Redis, _: Clock) -> None:
    bucket = ("TOKENBUCKET", 1_000_000, 1_000_000, "100d")
    _pipelined(redis, [("RL.TAKE", "ids", "ONCE", name, "1d", *bucket) for name in NAMES])
    redis.hset("hash", mapping=dict.fromkeys(NAMES, "1000000"))


def _holders(redis: Redis, _: Clock) -> None:
    for time in range(TIMES):
        calls = [("RL.ACQUIRE", f"pool:{time}", COUNT, "1d", name) for name in NAMES]
        _pipelined(redis, calls)
        redis.sadd(f"set:{time}", *NAMES)


def _expired(redis: Redis, clock: Clock) -> None:
    for time in range(TIMES):
        calls = [("RL.ACQUIRE", f"pool:{time}", COUNT, "1m", name) for name in NAMES]
        _pipelined(redis, [*calls, ("RL.ACQUIRE", f"pool:{time}", COUNT + 1, "1d", "last")])
        redis.zadd(f"zset:{time}", dict.fromkeys(NAMES, 60))
    clock.advance("2m")


def _denied(redis: Redis, _: Clock) -> None:
    _pipelined(redis, [("RL.FIXED", name, 0, "1h") for name in NAMES])
    _rows_of_five(redis)


def _policies(redis: Redis, _: Clock) -> None:
    limit = ("TOKENBUCKET", 10, 10, "1s")
    _pipelined(redis, [("RL.POLICYSET", name, *limit) for name in NAMES])
    _rows_of_five(redis)


def _rows_of_five(redis: Redis) -> None:
    # A listed policy has a name, a definition and three numbers, and a denied key has five fields:
    # as many elements as two and a half fields of a hash.
    ends = {name: "abc"[: 2 + number % 2] for number, name in enumerate(NAMES)}
    fields = (name + end for name in NAMES for end in ends[name])
    redis.hset("hash", mapping=dict.fromkeys(fields, "1700000000000000"))


COMPARED = {
    "COPY": Compared(
        _ids,
        lambda redis, time: redis.copy("ids", f"ids:{time}"),
        lambda redis, time: redis.copy("hash", f"hash:{time}"),
    ),
    "RL.RELEASE": Compared(
        _holders,
        lambda redis, time: redis.execute_command("RL.RELEASE", f"pool:{time}", *NAMES),
        lambda redis, time: redis.srem(f"set:{time}", *NAMES),
    ),
    "RL.PEEK of expired leases": Compared(
        _expired,
        lambda redis, time: redis.execute_command(
            "RL.PEEK", f"pool:{time}", "CONCURRENCY", COUNT, "1d", "holder"
        ),
        lambda redis, time: redis.zremrangebyscore(f"zset:{time}", 0, 60),
    ),
    "RL.TOP": Compared(
        _denied,
        lambda redis, _: redis.execute_command("RL.TOP", "COUNT", COUNT),
        lambda redis, _: redis.hgetall("hash"),
    ),
    "RL.POLICYLIST": Compared(
        _policies,
        lambda redis, _: redis.execute_command("RL.POLICYLIST"),
        lambda redis, _: redis.hgetall("hash"),
    ),
}


# An argument of 16 MB in the place of a number or of a unit.
LONG_WORDS = [
    f"{call} {word}"
    for call in (
        "RL.TOKENBUCKET k",
        "RL.TOKENBUCKET k 10 1",
        "RL.TOKENBUCKET k 10 1 1s COST",
        "RL.TOKENBUCKET k 10 1 1s KEEP",
        "RL.FIXED k 10",
        "RL.SKETCH k item 10 1 1s SIZE",
        "RL.TAKE k FIXED 10 1m BAN",
        "RL.POLICYSCALE gold",
        "RL.BAN k",
        "RL.TOP COUNT",
    )
    for word in ("1", "-1", "A")
]


def _cpu_seconds(redis: Redis) -> float:
    cpu = redis.info("cpu")
    return cpu["used_cpu_user"] + cpu["used_cpu_sys"]


def _least(redis: Redis, run: Callable[[Redis, int], object]) -> float:
    def once(time: int) -> float:
        before = _cpu_seconds(redis)
        run(redis, time)
        return _cpu_seconds(redis) - before

    return min(map(once, range(TIMES)))


@pytest.fixture(scope="module")
def echo_seconds(shared_server: Server) -> float:
    """Measures the CPU seconds in which the server reads and returns an argument of 16 MB."""
    with shared_server.client() as redis:
        return _least(redis, lambda redis, _: redis.echo("1" * LONG))


@pytest.mark.parametrize("call", LONG_WORDS)
def test_a_long_argument_is_refused_as_fast_as_it_is_echoed(
    call: str, redis: Redis, echo_seconds: float
) -> None:
    *words, last = call.split()
    long_word = last[:-1] + last[-1] * LONG

    def refused(redis: Redis, _: int) -> None:
        with pytest.raises(ResponseError):
            redis.execute_command(*words, long_word, "1s", "1s")

    assert _least(redis, refused) < 2 * echo_seconds


@pytest.mark.parametrize("name", COMPARED)
def test_a_call_on_a_full_key_takes_no_longer_than_four_times_the_servers_own(
    name: str, fresh_server: Callable[..., Server], clock: Clock
) -> None:
    prepare, call, own = COMPARED[name]
    settings = f"max-policies {COUNT} top-keys {COUNT}"
    with fresh_server(module_args=settings).client() as redis:
        prepare(redis, clock)
        assert _least(redis, call) < 4 * _least(redis, own)
