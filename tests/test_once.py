"""ONCE and SETTLE: a call counts once, however often it is sent."""

import pytest
from redis import Redis, ResponseError

from support.binaries import NO_MODULE_CONFIG
from support.clock import Clock
from support.multi_calls import SPECS as ALL_SPECS
from support.server import Server

# Leases are left out, as their holder identifies a repeated call.
SPECS = {name: spec for name, spec in ALL_SPECS.items() if name != "concurrency"}
every_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


def take(redis: Redis, words: str) -> list:
    return redis.execute_command("RL.TAKE", "k", *words.split())


@every_spec
def test_an_id_is_charged_once(redis: Redis, spec: str) -> None:
    first = take(redis, f"{spec} COST 4 ONCE a 5m")
    assert first[:3] == [1, 10, 6]
    before = redis.dump("k")
    assert take(redis, f"{spec} COST 4 ONCE a 5m")[:3] == [1, 10, 6]
    assert take(redis, f"{spec} COST 1000 ONCE a 5m")[:3] == [1, 10, 6], "the cost is ignored"
    assert redis.dump("k") == before
    assert take(redis, f"{spec} COST 4 ONCE b 5m")[:3] == [1, 10, 2]


@every_spec
@pytest.mark.parametrize(("amount", "remaining"), [(0, 10), (1, 9), (4, 6), (7, 3), (12, 0)])
def test_a_settlement_corrects_the_usage_to_the_actual_cost(
    redis: Redis, spec: str, amount: int, remaining: int
) -> None:
    expected = [1, 10, remaining]
    take(redis, f"{spec} COST 4 ONCE a 5m")
    assert take(redis, f"{spec} SETTLE a {amount}")[:3] == expected
    before = redis.dump("k")
    assert take(redis, f"{spec} SETTLE a {amount + 1}")[:3] == expected, "a second settlement"
    assert take(redis, f"{spec} COST 4 ONCE a 5m")[:3] == expected, "a delayed first call"
    assert redis.dump("k") == before


@every_spec
def test_an_unknown_id_settles_nothing(redis: Redis, spec: str) -> None:
    assert take(redis, f"{spec} SETTLE a 1") == [0, 10, 10, -1, 0]
    assert redis.exists("k") == 0
    take(redis, spec)
    before = redis.dump("k")
    assert take(redis, f"{spec} SETTLE a 1")[:4] == [0, 10, 9, -1]
    assert redis.dump("k") == before


def test_an_id_expires_after_its_ttl_even_if_it_is_settled(redis: Redis, clock: Clock) -> None:
    spec = "FIXED 10 1h"
    take(redis, f"{spec} ONCE a 5s")
    take(redis, f"{spec} ONCE b 5s")
    take(redis, f"{spec} SETTLE b 0")
    clock.advance("4999ms")
    assert take(redis, f"{spec} ONCE a 1d")[2] == take(redis, f"{spec} ONCE b 1d")[2] == 9
    clock.advance("1ms")
    assert take(redis, f"{spec} ONCE a 5s")[2] == 8
    assert take(redis, f"{spec} SETTLE b 0")[:2] == [0, 10]


def test_ids_of_denied_calls_and_of_calls_without_a_charge_are_not_stored(
    redis: Redis, clock: Clock
) -> None:
    spec = "FIXED 10 1s"
    take(redis, f"{spec} COST 8")
    assert take(redis, f"{spec} COST 4 ONCE a 5m")[0] == 0
    assert take(redis, f"{spec} COST 0 ONCE b 5m")[0] == 1
    clock.advance("1s")
    assert take(redis, f"{spec} COST 4 ONCE a 5m")[2] == 6
    assert take(redis, f"{spec} COST 4 ONCE b 5m")[2] == 2


def test_a_repeated_call_shows_the_remaining_hold(redis: Redis, clock: Clock) -> None:
    spec = "LEAKYBUCKET 10 1 1s"
    take(redis, f"{spec} COST 3")
    assert take(redis, f"{spec} ONCE a 5m") == [1, 10, 6, 3_000, 4_000]
    clock.advance("1s")
    assert take(redis, f"{spec} ONCE a 5m") == [1, 10, 7, 2_000, 3_000]
    clock.advance("3s")
    assert take(redis, f"{spec} ONCE a 5m") == [1, 10, 10, 0, 0]


def test_repeated_call_with_maxwait_upto_or_force_gets_the_first_reply(
    redis: Redis, clock: Clock
) -> None:
    bucket = "TOKENBUCKET 4 1 1s"
    take(redis, f"{bucket} COST 4")
    assert take(redis, f"{bucket} MAXWAIT 5s ONCE wait 5m")[:4] == [1, 4, 0, 1_000]
    assert take(redis, f"{bucket} MAXWAIT 5s ONCE wait 5m")[:4] == [1, 4, 0, 1_000]
    clock.advance("4s")
    assert take(redis, f"{bucket} COST 9 UPTO ONCE some 5m") == [1, 4, 0, 0, 4_000, 3]
    assert take(redis, f"{bucket} COST 9 UPTO ONCE some 5m") == [1, 4, 0, 0, 4_000, 3]
    forced = take(redis, f"{bucket} COST 2 FORCE ONCE past 5m")
    assert forced == take(redis, f"{bucket} COST 2 FORCE ONCE past 5m") == [0, 4, 0, 2_000, 6_000]
    clock.advance("2s")
    repeated = take(redis, f"{bucket} COST 2 FORCE ONCE past 5m")
    assert repeated[:4] == [1, 4, 0, 0], "the debt has recovered"


def test_a_peek_ignores_the_id_and_settles_nothing(redis: Redis) -> None:
    take(redis, "FIXED 10 1h COST 10 ONCE a 5m")
    peeked = redis.execute_command("RL.PEEK", "k", *["FIXED", "10", "1h", "ONCE", "a", "5m"])
    assert peeked[0] == 0
    with pytest.raises(ResponseError, match="SETTLE"):
        redis.execute_command("RL.PEEK", "k", *["FIXED", "10", "1h", "SETTLE", "a", "1"])


def test_each_key_of_an_mtake_stores_the_id(redis: Redis) -> None:
    def mtake(words: str) -> list:
        return redis.execute_command("RL.MTAKE", 2, "a", "b", *words.split())

    specs = "FIXED 10 1h FIXED 5 1h"
    assert mtake(f"COST 3 ONCE r 5m {specs}")[0] == 1
    assert mtake(f"COST 3 ONCE r 5m {specs}") == [
        1,
        0,
        [[1, 10, 7, 0, 3_600_000], [1, 5, 2, 0, 3_600_000]],
    ]
    redis.delete("a")
    # The key that still has the id is not charged again, and does not deny.
    assert mtake(f"COST 3 ONCE r 5m {specs}") == [
        1,
        0,
        [[1, 10, 7, 0, 3_600_000], [1, 5, 2, 0, 3_600_000]],
    ]
    redis.delete("a")
    settled = mtake(f"SETTLE r 1 {specs}")
    assert settled[0] == 1
    assert [decision[:3] for decision in settled[2]] == [[0, 10, 10], [1, 5, 4]]
    assert mtake(f"SETTLE other 1 {specs}")[:2] == [0, -1]


def test_a_late_settlement_charges_more_to_a_recovered_limit(redis: Redis, clock: Clock) -> None:
    spec = "TOKENBUCKET 10 10 1s"
    take(redis, f"{spec} COST 4 ONCE a 1h")
    clock.advance("10m")
    take(redis, f"{spec} COST 1 ONCE b 1h")
    assert take(redis, f"{spec} SETTLE a 0")[2] == 9, "what has drained is not given back"
    assert take(redis, f"{spec} SETTLE b 6")[2] == 4


def test_a_key_with_an_id_stays_when_nothing_is_used(redis: Redis, clock: Clock) -> None:
    take(redis, "FIXED 10 1m COST 4 ONCE a 5m")
    take(redis, "FIXED 10 1m COST -4")
    assert redis.exists("k") == 1
    assert take(redis, "FIXED 10 1m COST 4 ONCE a 5m")[2] == 10
    clock.advance("6m")
    assert redis.exists("k") == 0


def test_clock_moved_back_moves_ids_with_their_usage(redis: Redis, clock: Clock) -> None:
    for spec in SPECS.values():
        redis.flushall()
        take(redis, f"{spec} COST 4 ONCE a 5m")
        clock.advance("-1h")
        assert take(redis, f"{spec} COST 1")[2] == 5
        assert take(redis, f"{spec} COST 4 ONCE a 5m")[2] == 5
        assert take(redis, f"{spec} SETTLE a 0")[2] == 9, spec
        clock.advance("5m")
        assert take(redis, f"{spec} COST 4 ONCE a 5m")[2] == 6
        clock.reset()


def test_the_number_of_ids_is_limited(server: Server, redis: Redis, clock: Clock) -> None:
    if not server.binary.has_module_config:
        pytest.skip(NO_MODULE_CONFIG)
    for n in range(300):
        take(redis, f"FIXED 1000 1h ONCE id{n} 1m")
    before = redis.dump("k")
    redis.config_set("ratelimit.max-ids", 300)
    try:
        with pytest.raises(ResponseError, match="max-ids"):
            take(redis, "FIXED 1000 1h ONCE more 1m")
        assert redis.dump("k") == before
        assert take(redis, "FIXED 1000 1h ONCE id7 1m")[2] == 700
        clock.advance("1m")
        assert take(redis, "FIXED 1000 1h ONCE more 1m")[2] == 699
    finally:
        redis.config_set("ratelimit.max-ids", 100_000)


def test_a_repeated_call_with_maxwait_beside_a_force_gets_its_hold_again(
    redis: Redis, clock: Clock
) -> None:
    take(redis, "TOKENBUCKET 1 1 1s FIXED 5 1h")
    words = "ONCE a 1m TOKENBUCKET 1 1 1s MAXWAIT 1s COST 0.5 FIXED 5 1h FORCE"
    assert take(redis, words) == [1, 1, 0, 500, 1500]
    clock.advance("200ms")
    assert take(redis, words) == [1, 1, 0, 300, 1300]
    # The repeated reply shows again that the limit was exceeded.
    words = "ONCE b 1m TOKENBUCKET 1 1 1s MAXWAIT 1s COST 0.5 FIXED 1 1h FORCE"
    first = take(redis, words)
    assert (first[0], take(redis, words)) == (0, first)
