"""Restarts and failovers keep how often a ban has been doubled."""

from collections.abc import Callable

import pytest
from redis import Redis

from conftest import Pair
from support.clock import Clock
from support.saving import rewrite_aof
from support.server import Server
from support.workload import digests

pytestmark = pytest.mark.every_server

HOUR_MS = 3_600_000
# One strike bans for an hour, then for 2, 4 and at most 7 hours.
LOGIN = "FIXED 1 1m BAN 1 1m 1h MAX 7h"


def strike(redis: Redis, key: str = "k", words: str = LOGIN) -> float:
    """Makes the key's next ban start, and returns the ban's length in hours."""
    assert redis.execute_command("RL.TAKE", key, *words.split())[0] == 1
    denied, *_, wait_ms, _ = redis.execute_command("RL.TAKE", key, *words.split())
    assert denied == 0
    return wait_ms / HOUR_MS


def info(redis: Redis, key: str = "k") -> dict[bytes, object]:
    flat = redis.execute_command("RL.INFO", key)
    return dict(zip(flat[::2], flat[1::2], strict=True))


def test_each_ban_that_follows_soon_is_twice_as_long(redis: Redis, clock: Clock) -> None:
    for hours, level in ((1, 1), (2, 2), (4, 3), (7, 4), (7, 4)):
        assert (strike(redis), info(redis)[b"ban_level"]) == (hours, level)
        clock.advance(f"{hours + 6}h")


def test_ban_level_falls_by_one_after_each_maximum(redis: Redis, clock: Clock) -> None:
    for hours in (1, 2, 4):
        assert strike(redis) == hours
        clock.advance(f"{hours}h")
    assert info(redis)[b"ban_level"] == 3
    assert b"banned_until" not in info(redis), "the ban is over"
    clock.advance("7h")
    assert info(redis)[b"ban_level"] == 2
    clock.advance("7h")
    assert info(redis)[b"ban_level"] == 1
    assert strike(redis) == 2


def test_key_lives_until_the_ban_level_is_zero(redis: Redis, clock: Clock) -> None:
    strike(redis)
    # At least the hour of the ban and the 7 hours of its level; at most an eighth and a second
    # more.
    assert 8 * HOUR_MS <= redis.pttl("k") <= 9 * HOUR_MS + 1000
    clock.advance("10h")
    assert redis.exists("k") == 0
    assert strike(redis) == 1


def test_rl_ban_keeps_the_level_and_0_resets_it(redis: Redis, clock: Clock) -> None:
    strike(redis)
    assert redis.execute_command("RL.BAN", "k", "1d") == 24 * HOUR_MS
    clock.advance("30h")
    assert info(redis)[b"ban_level"] == 1, "the level falls 7 hours after the end of RL.BAN"
    assert strike(redis) == 2
    assert redis.execute_command("RL.BAN", "k", 0) == 0
    assert b"ban_level" not in info(redis)
    clock.advance("1m")
    assert strike(redis) == 1


def test_a_ban_without_max_leaves_the_level(redis: Redis, clock: Clock) -> None:
    strike(redis)
    clock.advance("1h")
    assert strike(redis, words="FIXED 1 1m BAN 1 1m 1h") == 1
    clock.advance("1h")
    assert strike(redis) == 2


def test_level_falls_by_the_stored_maximum_and_a_ban_is_bounded_by_the_maximum_of_the_call(
    redis: Redis, clock: Clock
) -> None:
    for longest, hours in (("30h", 2), ("90m", 1.5)):
        for ban_hours in (1, 2):
            assert strike(redis) == ban_hours
            clock.advance(f"{ban_hours}h")
        clock.advance("8h")
        # The level fell after the stored maximum of 7 hours.
        assert info(redis)[b"ban_level"] == 1
        assert strike(redis, words=f"FIXED 1 1m BAN 1 1m 1h MAX {longest}") == hours
        redis.execute_command("RL.BAN", "k", 0)
        clock.advance("1m")


def test_shorter_rl_ban_changes_neither_end_nor_level(redis: Redis, clock: Clock) -> None:
    assert strike(redis) == 1
    before = redis.dump("k")
    assert redis.execute_command("RL.BAN", "k", "1m") == HOUR_MS
    assert redis.dump("k") == before
    clock.advance("8h")
    assert b"ban_level" not in info(redis)


def test_clock_moved_back_moves_the_ban_level(redis: Redis, clock: Clock) -> None:
    strike(redis)
    clock.advance("-10h")
    # The denied call stores the earlier time.
    assert redis.execute_command("RL.TAKE", "k", *LOGIN.split())[3] == HOUR_MS
    clock.advance("8h")
    clock.advance("-1us")
    assert info(redis)[b"ban_level"] == 1
    clock.advance("1us")
    assert b"ban_level" not in info(redis)


def test_a_peek_shows_the_growing_ban_and_writes_nothing(redis: Redis) -> None:
    strike(redis)
    before = redis.dump("k")
    assert redis.execute_command("RL.PEEK", "k", *LOGIN.split())[3] == HOUR_MS
    assert redis.dump("k") == before


def test_policies_ban_user_and_address_at_once(redis: Redis, clock: Clock) -> None:
    for policy, limit in (("user", 1), ("address", 3)):
        words = f"FIXED {limit} 1m BAN 1 1m 1h MAX 7h"
        redis.execute_command("RL.POLICYSET", policy, *words.split())

    def login(user: str) -> tuple[int, list[int]]:
        call = f"RL.MTAKE 2 {{in}}:{user} {{in}}:address POLICY user POLICY address"
        allowed, _, decisions = redis.execute_command(*call.split())
        return allowed, [wait_ms // HOUR_MS for _, _, _, wait_ms, _ in decisions]

    for hours in (1, 2):
        assert login("eve") == (1, [0, 0])
        assert login("eve") == (0, [hours, 0])
        assert [login(user)[0] for user in "ab"] == [1, 1]
        assert login("c") == (0, [0, hours]), "the banned address denies every user"
        assert redis.exists("{in}:c") == 0
        clock.advance(f"{hours}h")
    assert [info(redis, f"{{in}}:{key}")[b"ban_level"] for key in ("eve", "address")] == [2, 2]


def test_denials_in_shadow_mode_are_no_strikes(redis: Redis) -> None:
    redis.execute_command(*f"RL.POLICYSET p {LOGIN.replace('BAN', 'SHADOW BAN')}".split())
    assert [redis.execute_command("RL.LIMIT", "k", "p")[0] for _ in range(3)] == [1, 1, 1]


@pytest.mark.parametrize("way", ["snapshot", "AOF", "rewritten AOF", "rewritten without preamble"])
def test_a_restart_keeps_the_level(
    way: str, fresh_server: Callable[..., Server], clock: Clock
) -> None:
    preamble = "no" if way == "rewritten without preamble" else "yes"
    aof = "no" if way == "snapshot" else "yes"
    server = fresh_server(appendonly=aof, aof_use_rdb_preamble=preamble)
    with server.client() as client:
        strike(client)
        clock.advance("1h")
        strike(client)
        before = digests(client, [b"k"])
        if "rewritten" in way:
            rewrite_aof(client)
    server.restart("save" if way == "snapshot" else "nosave")
    with server.client() as client:
        assert digests(client, [b"k"]) == before
        assert info(client)[b"ban_level"] == 2
        clock.advance("2h")
        assert strike(client) == 4


def test_dump_restore_and_copy_keep_the_level(redis: Redis, clock: Clock) -> None:
    strike(redis)
    redis.restore("restored", redis.pttl("k"), redis.dump("k"))
    redis.copy("k", "copy")
    clock.advance("1h")
    assert [strike(redis, key) for key in ("k", "restored", "copy")] == [2, 2, 2]


def test_a_replica_has_the_level(pair: Pair, clock: Clock) -> None:
    with pair.primary.client() as primary, pair.replica.client() as replica:
        for hours in (1, 2):
            assert strike(primary) == hours
            pair.replica.wait_for_sync()
            assert digests(replica, [b"k"]) == digests(primary, [b"k"])
            clock.advance(f"{hours}h")
        assert info(replica)[b"ban_level"] == 2
