"""A call on a full key takes about as long as a native command on as many elements.

The tests compare processor times of the server, each the least of several runs. A call may take up
to four times as long as the native command.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest
from redis import Redis, ResponseError

from support.clock import Clock
from support.server import Server

COUNT = 30_000
RUNS = 3
LONG = 16_000_000
NAMES = [f"{number:036}" for number in range(COUNT)]


class Compared(NamedTuple):
    """Call, and native command on as many elements. Both get the index of the run."""

    prepare: Callable[[Redis, Clock], object]
    call: Callable[[Redis, int], object]
    native: Callable[[Redis, int], object]


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
    for run in range(RUNS):
        calls = [("RL.ACQUIRE", f"pool:{run}", COUNT, "1d", name) for name in NAMES]
        _pipelined(redis, calls)
        redis.sadd(f"set:{run}", *NAMES)


def _expired(redis: Redis, clock: Clock) -> None:
    for run in range(RUNS):
        calls = [("RL.ACQUIRE", f"pool:{run}", COUNT, "1m", name) for name in NAMES]
        _pipelined(redis, [*calls, ("RL.ACQUIRE", f"pool:{run}", COUNT + 1, "1d", "last")])
        redis.zadd(f"zset:{run}", dict.fromkeys(NAMES, 60))
    clock.advance("2m")


def _denied(redis: Redis, _: Clock) -> None:
    _pipelined(redis, [("RL.FIXED", name, 0, "1h") for name in NAMES])
    _rows_of_five(redis)


def _policies(redis: Redis, _: Clock) -> None:
    limit = ("TOKENBUCKET", 10, 10, "1s")
    _pipelined(redis, [("RL.POLICYSET", name, *limit) for name in NAMES])
    _rows_of_five(redis)


def _rows_of_five(redis: Redis) -> None:
    # A row of either reply has five elements. The hash has as many: two or three fields for a row.
    ends = {name: "abc"[: 2 + number % 2] for number, name in enumerate(NAMES)}
    fields = (name + end for name in NAMES for end in ends[name])
    redis.hset("hash", mapping=dict.fromkeys(fields, "1700000000000000"))


COMPARED = {
    "COPY": Compared(
        _ids,
        lambda redis, run: redis.copy("ids", f"ids:{run}"),
        lambda redis, run: redis.copy("hash", f"hash:{run}"),
    ),
    "RL.RELEASE": Compared(
        _holders,
        lambda redis, run: redis.execute_command("RL.RELEASE", f"pool:{run}", *NAMES),
        lambda redis, run: redis.srem(f"set:{run}", *NAMES),
    ),
    "RL.PEEK of expired leases": Compared(
        _expired,
        lambda redis, run: redis.execute_command(
            "RL.PEEK", f"pool:{run}", "CONCURRENCY", COUNT, "1d", "holder"
        ),
        lambda redis, run: redis.zremrangebyscore(f"zset:{run}", 0, 60),
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


# Calls whose last word is a number or unit. Repeating its last character makes a word of 16 MB.
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


def _least_cpu_seconds(redis: Redis, call: Callable[[Redis, int], object]) -> float:
    def measure(run: int) -> float:
        before = _cpu_seconds(redis)
        call(redis, run)
        return _cpu_seconds(redis) - before

    return min(map(measure, range(RUNS)))


@pytest.fixture(scope="module")
def echo_seconds(shared_server: Server) -> float:
    """Measures the CPU seconds in which the server reads and returns an argument of 16 MB."""
    with shared_server.client() as redis:
        return _least_cpu_seconds(redis, lambda redis, _: redis.echo("1" * LONG))


@pytest.mark.parametrize("call", LONG_WORDS)
def test_a_long_argument_is_refused_as_fast_as_it_is_echoed(
    call: str, redis: Redis, echo_seconds: float
) -> None:
    *words, last = call.split()
    long_word = last[:-1] + last[-1] * LONG

    def send_refused_call(redis: Redis, _: int) -> None:
        with pytest.raises(ResponseError):
            redis.execute_command(*words, long_word, "1s", "1s")

    assert _least_cpu_seconds(redis, send_refused_call) < 2 * echo_seconds


@pytest.mark.parametrize("name", COMPARED)
def test_a_call_on_a_full_key_takes_at_most_four_times_as_long_as_the_native_command(
    name: str, fresh_server: Callable[..., Server], clock: Clock
) -> None:
    prepare, call, native = COMPARED[name]
    settings = f"max-policies {COUNT} top-keys {COUNT}"
    with fresh_server(module_args=settings).client() as redis:
        prepare(redis, clock)
        assert _least_cpu_seconds(redis, call) < 4 * _least_cpu_seconds(redis, native)
