"""A banned key denies without writing anything, until the ban is over or lifted."""

import pytest
from redis import Redis

from support.clock import Clock

LOGIN = "FIXED 2 1m BAN 3 10m 1h"


def take(redis: Redis, words: str = LOGIN) -> list:
    return redis.execute_command("RL.TAKE", "k", *words.split())


def peek(redis: Redis, words: str = LOGIN) -> list:
    return redis.execute_command("RL.PEEK", "k", *words.split())


def test_the_last_strike_bans(redis: Redis, clock: Clock) -> None:
    assert [take(redis)[0] for _ in range(2)] == [1, 1]
    assert take(redis) == [0, 2, 0, 60_000, 60_000]
    assert take(redis) == [0, 2, 0, 60_000, 60_000]
    assert peek(redis)[3] == 60_000, "two strikes are no ban yet"
    assert take(redis)[:4] == [0, 2, 0, 3_600_000]
    before = redis.dump("k")
    clock.advance("30m")
    for answer in (
        take(redis),
        peek(redis),
        take(redis, f"COST 0 {LOGIN}"),
        take(redis, "FIXED 2 1m"),
    ):
        assert answer[:4] == [0, 2, 0, 1_800_000]
    assert redis.dump("k") == before, "a denial during a ban writes nothing"
    clock.advance("30m")
    assert take(redis)[:3] == [1, 2, 1]


def test_strikes_are_counted_within_the_window_of_the_first(redis: Redis, clock: Clock) -> None:
    for _ in range(4):
        take(redis)
    clock.advance("10m")
    for _ in range(4):
        take(redis)
    assert take(redis, "COST 0 FIXED 2 1m")[0] == 1, "the first two of four strikes have expired"
    assert take(redis)[3] == 3_600_000


@pytest.mark.parametrize(
    "words",
    [
        "COST 3 FIXED 2 1m BAN 1 1m 1h",
        "COST 0 FIXED 2 1m BAN 1 1m 1h",
        "KEEP 1 FIXED 3 1m BAN 1 1m 1h",
    ],
    ids=["cost above the limit", "peek", "kept units"],
)
def test_peeks_oversized_costs_and_kept_units_are_no_strikes(redis: Redis, words: str) -> None:
    take(redis, "COST 2 FORCE FIXED 3 1m")
    for _ in range(3):
        take(redis, words)
    assert take(redis, "FIXED 4 1m")[0] == 1


def test_repetitions_renewals_and_releases_pass_a_ban(redis: Redis) -> None:
    limits = "FIXED 10 1m CONCURRENCY 5 1m me"
    take(redis, f"COST 4 ONCE a 5m {limits}")
    assert redis.execute_command("RL.BAN", "k", "1h") == 3_600_000
    assert take(redis, f"COST 4 ONCE a 5m {limits}")[0] == 1, "repetition of an admitted call"
    assert redis.execute_command("RL.ACQUIRE", "k", 5, "1m", "me")[0] == 1, "renewal"
    assert redis.execute_command("RL.ACQUIRE", "k", 5, "1m", "you")[0] == 0
    assert take(redis, f"SETTLE a 1 {limits}")[0] == 1
    assert take(redis, "FIXED 10 1m COST -1")[0] == 1, "units given back"
    assert redis.execute_command("RL.RELEASE", "k", "me") == 1
    forced = take(redis, "FIXED 10 1m COST 3 FORCE")
    assert forced[:4] == [0, 10, 0, 3_600_000], "FORCE charges, although its reply is a denial"
    redis.execute_command("RL.BAN", "k", 0)
    assert peek(redis, "FIXED 10 1m")[:3] == [1, 10, 7]


def test_rl_ban_never_shortens_a_ban_and_0_lifts_it(redis: Redis, clock: Clock) -> None:
    ban = ("RL.BAN", "k")
    assert redis.execute_command(*ban, 0) == 0
    assert redis.exists("k") == 0
    assert redis.execute_command(*ban, "10m") == 600_000
    clock.advance("1m")
    assert redis.execute_command(*ban, "1m") == 540_000
    assert take(redis, "TOKENBUCKET 5 5 1s")[:4] == [0, 5, 0, 540_000]
    assert redis.type("k") == b"rl-limits"
    assert redis.execute_command(*ban, 0) == 0
    assert redis.exists("k") == 0
    assert take(redis, "TOKENBUCKET 5 5 1s")[:3] == [1, 5, 4]


def test_a_plain_key_can_be_banned_and_keeps_its_usage(redis: Redis, clock: Clock) -> None:
    take(redis, "TOKENBUCKET 5 1 1m")
    assert redis.execute_command("RL.BAN", "k", "1s") == 1_000
    assert take(redis, "TOKENBUCKET 5 1 1m")[0] == 0
    clock.advance("1s")
    assert take(redis, "TOKENBUCKET 5 1 1m")[:3] == [1, 5, 3]


def test_a_ban_moves_back_with_the_clock(redis: Redis, clock: Clock) -> None:
    redis.execute_command("RL.BAN", "k", "10m")
    clock.advance("-1h")
    assert take(redis, "FIXED 1 1m")[3] == 600_000
    clock.advance("5m")
    assert take(redis, "FIXED 1 1m")[3] == 300_000


def test_a_banned_key_expires_after_its_ban(redis: Redis, clock: Clock) -> None:
    redis.execute_command("RL.BAN", "k", "8h")
    assert 8 * 3_600_000 <= redis.pttl("k") <= 9 * 3_600_000 + 1_000
    clock.advance("10h")
    assert redis.exists("k") == 0
