"""Other modules see the same keys whether a call takes the fast path or the slow path."""

from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis, ResponseError

from support.clock import Clock
from support.server import Server

BUCKET = ("TOKENBUCKET", 10, 10, "1h")

pytestmark = pytest.mark.every_server

Start = Callable[..., Server]


@pytest.fixture
def fast_path(fresh_server: Start, neighbour: Path) -> Redis:
    """Starts a server without replicas or an AOF, which decides RL.MTAKE on the fast path."""
    redis = fresh_server(others=[neighbour]).client()
    redis.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", 0)
    return redis


def fast_path_mtake(redis: Redis) -> list[int]:
    """Calls RL.MTAKE on three keys. Returns the remaining units of each."""
    specs = [word for _ in "abc" for word in BUCKET]
    allowed, _, decisions = redis.execute_command("RL.MTAKE", 3, *"abc", *specs)
    assert allowed == 1
    return [decision[2] for decision in decisions]


@pytest.mark.parametrize("action", ["DEL b", "DEL a b c", "SET b mine", "FLUSHALL"])
def test_a_module_may_change_keys_of_a_fast_path_mtake_on_its_event(
    action: str, fast_path: Redis
) -> None:
    for _ in range(3):
        fast_path.flushall()
        assert fast_path_mtake(fast_path) == [9, 9, 9]
        fast_path.execute_command("NEIGHBOUR.ON", "rl.take", "a", *action.split())
        assert fast_path_mtake(fast_path) == [8, 8, 8]


@pytest.mark.parametrize(
    ("action", "remaining"),
    [
        ("DEL a", [9, 9, 8]),
        ("FLUSHALL", [9, 9, 9]),
        ("SET b mine", None),
        # "b" has the former value of "a".
        ("RENAME a b", [9, 8, 8]),
    ],
)
def test_a_module_may_change_keys_when_a_later_key_of_a_fast_path_mtake_has_expired(
    action: str, remaining: list[int] | None, fast_path: Redis, clock: Clock
) -> None:
    for _ in range(3):
        fast_path.flushall()
        fast_path_mtake(fast_path)
        fast_path.pexpire("b", 1000)
        fast_path.execute_command("NEIGHBOUR.ON", "expired", "b", *action.split())
        clock.advance("2s")
        if remaining is None:
            with pytest.raises(ResponseError, match="WRONGTYPE"):
                fast_path_mtake(fast_path)
        else:
            assert fast_path_mtake(fast_path) == remaining


@pytest.mark.parametrize("event", ["expired", "new", "rl.take"])
@pytest.mark.parametrize(
    "action", ["SET k mine", "RL.TOKENBUCKET k 10 10 1h COST 3", "RL.FIXED k 5 1m", "FLUSHALL"]
)
def test_a_first_call_is_the_same_on_the_fast_and_the_slow_path(
    action: str, event: str, fresh_server: Start, neighbour: Path, clock: Clock
) -> None:
    if (event, action) == ("new", "FLUSHALL"):
        pytest.skip("a server crashes if the key of its `new` event is deleted in the event")
    outcomes = []
    for settings in ({}, {"appendonly": "yes"}):
        redis = fresh_server(others=[neighbour], **settings).client()
        redis.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", 0)
        redis.set("k", "before", px=1000)
        clock.advance("2s")
        redis.execute_command("NEIGHBOUR.ON", event, "k", *action.split())
        try:
            reply = redis.execute_command("RL.TOKENBUCKET", "k", *BUCKET[1:])
        except ResponseError as error:
            reply = str(error)
        stored = (redis.type("k"), redis.dump("k"), redis.pttl("k"))
        outcomes.append((reply, stored, redis.info("ratelimit_kinds")))
        clock.reset()
    assert outcomes[0] == outcomes[1]
