"""Common mistakes of users get the exact error messages of core/src/syntax/slips.txt from a server.

Errors that only a server can give are tested below: the wrong kind of key, an unknown policy, and
missing arguments where the server checks the arity.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis, ResponseError

from support.server import Server

Start = Callable[..., Server]

TABLE = Path(__file__).parents[1] / "core/src/syntax/slips.txt"


def slips() -> list[tuple[str, str]]:
    """Returns each call with its expected error."""
    lines = [line for line in TABLE.read_text().splitlines() if line and not line.startswith("#")]
    calls = [call.removeprefix("> ") for call in lines[::2]]
    return list(zip(calls, lines[1::2], strict=True))


def answer(redis: Redis, call: str) -> str:
    """Returns the error as the server sends it, or the reply."""
    try:
        return str(redis.execute_command(*call.split(" ")))
    except ResponseError as error:
        # redis-py strips only the code ERR, and no other one.
        return f"{error.status_code} {error}" if error.status_code else str(error)


def test_common_mistakes_get_helpful_errors(fresh_server: Start) -> None:
    table = slips()
    assert len(dict(table)) == len(table) > 100
    with fresh_server().client() as redis:
        redis.execute_command("RL.POLICYSET there FIXED 5 1m")
        replies = {call: answer(redis, call) for call, _ in table}
        # Redis 6.2 leaves the check of some arities to the module.
        assert replies == dict(table)
        assert redis.dbsize() == 0
        assert redis.execute_command("RL.POLICYLIST")[0][2] == b"FIXED 5 1m"


@pytest.mark.parametrize(
    ("earlier_call", "call", "error"),
    [
        (
            "SET k text",
            "RL.FIXED k 5 1m",
            "WRONGTYPE Operation against a key holding string, where rl-window is needed",
        ),
        (
            "RL.FIXED k 5 1m",
            "RL.TOKENBUCKET k 5 5 1m",
            "WRONGTYPE Operation against a key holding rl-window, where rl-bucket is needed",
        ),
        (
            "RL.SLIDING k 5 1m",
            "RL.SLIDING k 5 1m STRICT",
            "WRONGTYPE Operation against a key holding rl-slider, where rl-strict is needed",
        ),
        (
            "RL.FIXED k 5 1m",
            "RL.RELEASE k worker-7",
            "WRONGTYPE Operation against a key holding rl-window, where rl-leases is needed",
        ),
        (
            "HSET k a b",
            "RL.INFO k",
            "WRONGTYPE Operation against a key holding hash, where a limiter is needed",
        ),
        ("SET other x", "RL.LIMIT k gold OR plan:pro", "NOPOLICY no policy 'gold' or 'plan:pro'"),
        ("SET other x", "RL.PEEK k POLICY gold", "NOPOLICY no policy 'gold'"),
        ("SET other x", "RL.POLICYSCALE gold 0.5", "NOPOLICY no policy 'gold'"),
    ],
)
def test_errors_name_the_keys_type_or_the_missing_policies(
    redis: Redis, earlier_call: str, call: str, error: str
) -> None:
    redis.execute_command(*earlier_call.split())
    before = redis.keys()
    assert answer(redis, call) == error
    assert redis.keys() == before


@pytest.mark.parametrize(
    "call",
    [
        *("RL.FIXED k 5", "RL.TOKENBUCKET k 5 5", "RL.ACQUIRE k 5 30s", "RL.RELEASE k"),
        *("RL.TAKE k", "RL.PEEK k", "RL.MTAKE 1 k", "RL.LIMIT k", "RL.DELAY k", "RL.INFO"),
        *("RL.BAN k", "RL.BAN k 1m 1m", "RL.THROTTLE k 15 30", "RL.POLICYSCALE there"),
    ],
)
def test_the_server_checks_the_minimum_arity(redis: Redis, call: str) -> None:
    name = call.partition(" ")[0].lower()
    expected = f"ERR wrong number of arguments for '{name}' command"
    assert answer(redis, name + call[len(name) :]) == expected


@pytest.mark.parametrize("call", ["RL.FIXED k {} 1m", "RL.FIXED k 5 {}", "RL.TAKE k {} 5 1m"])
def test_arguments_in_errors_are_truncated_and_escaped(redis: Redis, call: str) -> None:
    for word, shown in [
        (b"\x00\r\n\xff", r"\x00\r\n\xff"),
        (b"'", r"\'"),
        (b"x" * 1_000_000, "x" * 32 + "..."),
        (b"9" * 1_000_000 + b"x", "9" * 32 + "..."),
        (b"\xff" * 9, r"\xff" * 8 + "..."),
    ]:
        words = [word if part == "{}" else part.encode() for part in call.split()]
        with pytest.raises(ResponseError) as raised:
            redis.execute_command(*words)
        assert f" '{shown}'" in str(raised.value)
        assert len(str(raised.value)) < 300
