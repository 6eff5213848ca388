"""A change of a policy forgives no usage: neither other numbers, nor another algorithm and back,
nor a scale that ends.

core/src/composite/tests compares the decisions of a composite key with a model. These tests check
replies, the keys, and changes of policies.
"""

from collections.abc import Callable

import pytest
from redis import Redis, ResponseError

from support.clock import Clock
from support.scale import scaled
from support.server import Server


def define(redis: Redis, specs: str, name: str = "gold") -> None:
    redis.execute_command("RL.POLICYSET", name, *specs.split())


def limit(redis: Redis, words: str, key: str = "k") -> list:
    return redis.execute_command("RL.LIMIT", key, *words.split())


def take(redis: Redis, words: str, key: str = "k") -> list:
    return redis.execute_command("RL.TAKE", key, *words.split())


def counts(redis: Redis, name: str = "gold") -> dict[bytes, int]:
    flat = redis.execute_command("RL.POLICYGET", name)
    policy = dict(zip(flat[::2], flat[1::2], strict=True))
    return dict(zip(policy[b"counts"][::2], policy[b"counts"][1::2], strict=True))


# Calls


@pytest.mark.parametrize(
    "specs",
    [
        "TOKENBUCKET 10 5 1s",
        "LEAKYBUCKET 10 5 1s",
        "FIXED 10 1m",
        "FIXED 10 1mo ALIGNED OFFSET +09:00 ANCHOR 31",
        "SLIDING 10 1m",
        "SLIDING 10 1m STRICT",
        "SLIDINGLOG 10 1m",
        "TOKENBUCKET 10 5 1s FIXED 100 1h COST 2 AS slow BAN 3 1m 5m",
    ],
)
def test_a_policy_decides_as_its_specs_do(specs: str, redis: Redis, clock: Clock) -> None:
    define(redis, specs)
    for words in ("", "COST 3", "COST 0", "COST 9", "COST -1", "KEEP 50%", "COST 2 FORCE"):
        # Options of the call stand before the specs.
        inline = take(redis, f"{words} {specs}", "inline")
        assert limit(redis, f"gold {words}", "by-name") == inline, words
        assert take(redis, f"{words} POLICY gold", "as-spec") == inline, words
        assert redis.execute_command("RL.PEEK", "by-name", "POLICY", "gold") == (
            redis.execute_command("RL.PEEK", "inline", *specs.split())
        )
        clock.advance("700ms")
    dumps = {redis.dump(key) for key in ("inline", "by-name", "as-spec")}
    assert len(dumps) == 1, "the keys have the same value"


def test_first_existing_policy_of_the_names_applies(redis: Redis) -> None:
    define(redis, "FIXED 1 1m", "default")
    assert limit(redis, "user:42 OR plan:pro OR default")[1] == 1
    define(redis, "FIXED 2 1m", "plan:pro")
    assert limit(redis, "user:42 or plan:pro OR default EACH")[3] == b"plan:pro"
    define(redis, "FIXED 3 1m", "user:42")
    assert limit(redis, "user:42 OR plan:pro OR default")[1] == 3
    with pytest.raises(ResponseError) as refused:
        limit(redis, "nobody OR nothing")
    assert f"{refused.value.status_code or ''} {refused.value}".strip() == (
        "NOPOLICY no policy 'nobody' or 'nothing'"
    )


def test_the_reply_has_each_limit_and_the_deciding_policys_name(redis: Redis) -> None:
    define(redis, "FIXED 5 1m AS calls FIXED 3 1h")
    first = redis.execute_command("RL.POLICYGET", "gold")[1]
    assert limit(redis, "gold EACH") == [
        1,
        0,
        [[1, 5, 4, 0, 60_000, b"calls"], [1, 3, 2, 0, 3_600_000]],
        b"gold",
        first,
    ]
    redis.execute_command("RL.POLICYSCALE", "gold", "2")
    assert limit(redis, "gold EACH")[3:] == [b"gold", first], "a scale keeps the version"
    define(redis, "FIXED 5 1h")
    second = redis.execute_command("RL.POLICYGET", "gold")[1]
    assert limit(redis, "gold COST 0 EACH")[3:] == [b"gold", second]
    assert second > first


def test_a_delay_is_one_integer(redis: Redis) -> None:
    define(redis, "TOKENBUCKET 2 1 1s")
    delays = [redis.execute_command("RL.DELAY", "k", "gold") for _ in range(3)]
    assert delays == [0, 0, 1000]
    assert redis.execute_command("RL.DELAY", "k", "gold", "COST", 3) == -1
    define(redis, "FIXED 1 1m FIXED 5 1h", "two")
    assert [redis.execute_command("RL.DELAY", "d", "two") for _ in range(2)] == [0, 60_000]


def test_a_delay_has_no_hold_for_a_repeated_call(redis: Redis) -> None:
    define(redis, "TOKENBUCKET 1 1 10s")
    once = ("k", "gold", "ONCE", "req-17", "1m")
    redis.execute_command("RL.LIMIT", "k", "gold")
    admitted = redis.execute_command("RL.LIMIT", *once, "MAXWAIT", "30s")
    assert admitted[:4] == [1, 1, 0, 10_000]
    assert redis.execute_command("RL.LIMIT", *once) == admitted
    # A reply above 0 is a denial.
    assert redis.execute_command("RL.DELAY", *once) == 0


@pytest.mark.parametrize(
    ("specs", "words", "why"),
    [
        ("LEAKYBUCKET 1 1 1s", "gold", "a LEAKYBUCKET"),
        ("FIXED 1 1m LEAKYBUCKET 1 1 1s SHADOW", "gold COST 2", "a LEAKYBUCKET"),
        ("TOKENBUCKET 1 1 1s", "gold MAXWAIT 1s", "MAXWAIT"),
        ("TOKENBUCKET 1 1 1s", "gold COST 1 UPTO", "UPTO"),
        ("TOKENBUCKET 1 1 1s", "gold EACH", "EACH"),
    ],
)
def test_a_delay_that_needs_a_longer_reply_is_refused(
    specs: str, words: str, why: str, redis: Redis
) -> None:
    define(redis, specs)
    with pytest.raises(ResponseError, match=rf"not enough for {why}: use RL\.LIMIT$"):
        redis.execute_command("RL.DELAY", "k", *words.split())
    assert not redis.exists("k")


def test_a_policy_is_one_decision_among_several_keys(redis: Redis) -> None:
    define(redis, "FIXED 5 1m FIXED 3 1h AS slow")
    call = ("RL.MTAKE", 2, "{t}1", "{t}2", "POLICY", "gold", "COST", 2, "FIXED", 9, "1m")
    assert redis.execute_command(*call) == [1, 0, [[1, 3, 1, 0, 3_600_000], [1, 9, 8, 0, 60_000]]]
    peek = redis.execute_command("RL.MPEEK", *call[1:])
    assert peek == [0, 3_600_000, [[0, 3, 1, 3_600_000, 3_600_000], [1, 9, 8, 0, 60_000]]]
    assert redis.execute_command(*call)[:2] == [0, 3_600_000]
    assert counts(redis)[b"admitted"] == counts(redis)[b"denied"] == 1


def test_a_ban_counts_denials_of_a_policy_among_several_keys(redis: Redis) -> None:
    define(redis, "FIXED 1 1m BAN 2 10m 1h")
    call = ("RL.MTAKE", 2, "{t}1", "{t}2", "POLICY", "gold", "FIXED", 9, "1m")
    answers = [redis.execute_command(*call)[:2] for _ in range(4)]
    assert answers == [[1, 0], [0, 60_000], [0, 3_600_000], [0, 3_600_000]]
    # The first key was banned, so the other key was not charged.
    assert redis.execute_command("RL.PEEK", "{t}1", "FIXED", 1, "1m")[3] == 3_600_000
    assert redis.execute_command("RL.PEEK", "{t}2", "FIXED", 9, "1m")[2] == 8
    assert (counts(redis)[b"denied"], counts(redis)[b"banned"]) == (3, 1)


# Shadow mode


def test_a_limit_in_shadow_mode_never_denies_and_is_counted(redis: Redis, clock: Clock) -> None:
    define(redis, "FIXED 5 1m FIXED 2 1h SHADOW")
    replies = [limit(redis, "gold EACH") for _ in range(6)]
    assert [allowed for allowed, *_ in replies] == [1, 1, 1, 1, 1, 0]
    assert [decisions[1][0] for _, _, decisions, *_ in replies] == [1, 1, 0, 0, 0, 0]
    assert limit(redis, "gold")[:3] == [0, 5, 0]
    assert counts(redis)[b"shadow_denied"] == 5
    clock.advance("1m")
    # The shadow limit was charged for allowed calls only.
    assert limit(redis, "gold EACH")[2] == [[1, 5, 4, 0, 60_000], [0, 2, 0, 3_540_000, 3_540_000]]


def test_a_policy_in_shadow_mode_limits_nothing(redis: Redis) -> None:
    define(redis, "FIXED 1 1m SHADOW")
    largest = 1_000_000_000_000
    assert [limit(redis, "gold") for _ in range(3)] == [[1, largest, largest, 0, 0]] * 3
    assert counts(redis)[b"admitted"] == 3
    assert counts(redis)[b"shadow_denied"] == 2
    # Without SHADOW the limit denies, by its earlier usage.
    define(redis, "FIXED 1 1m")
    assert limit(redis, "gold")[:3] == [0, 1, 0]


def test_a_limit_in_shadow_mode_without_room_in_the_key_is_left_out(
    fresh_server: Callable[..., Server], clock: Clock
) -> None:
    redis = fresh_server(module_args="max-log-entries 2").client()
    define(redis, "FIXED 5 1m SLIDINGLOG 100 1m SHADOW")
    for remaining in (4, 3, 2, 1):
        clock.advance("1s")
        assert limit(redis, "gold")[:3] == [1, 5, remaining]
    assert redis.execute_command("RL.PEEK", "k", "COST", 0, "SLIDINGLOG", 100, "1m")[2] == 98
    assert redis.execute_command("RL.MTAKE", 1, "k", "POLICY", "gold")[0] == 1
    # Fills the key up to its 16 limits.
    for number in range(14):
        take(redis, f"FIXED 1 {number + 2}m")
    define(redis, "FIXED 9 1m FIXED 1 17m SHADOW")
    assert limit(redis, "gold")[0] == 1
    redis.config_set("maxmemory", 1)
    define(redis, "FIXED 9 1m FIXED 1 17m SHADOW")
    assert limit(redis, "gold EACH")[0] == 1


# CONCURRENCY by the call's id

LLM = "TOKENBUCKET 60 60 1m COST 1 AS requests TOKENBUCKET 9000 9000 1m AS tokens CONCURRENCY 2 30s"


def test_charge_and_settlement_of_a_request_may_be_resent(redis: Redis, clock: Clock) -> None:
    define(redis, LLM)
    for _ in range(2):
        assert limit(redis, "gold COST 4000 ONCE r1 5m")[0] == 1
    assert limit(redis, "gold COST 4000 ONCE r2 5m")[0] == 1
    assert limit(redis, "gold COST 10 ONCE r3 5m")[:4] == [0, 2, 0, 30_000]
    for _ in range(2):
        assert limit(redis, "gold SETTLE r1 1200")[0] == 1
    remaining = [row[2] for row in limit(redis, "gold COST 0 EACH")[2]]
    assert remaining == [58, 3800, 1], "a settlement gives the lease back"
    # A delayed first call takes no lease.
    assert limit(redis, "gold COST 4000 ONCE r1 5m")[0] == 1
    assert limit(redis, "gold COST 10 ONCE r3 5m")[0] == 1
    assert counts(redis)[b"repeated"] == 2
    clock.advance("20s")
    assert limit(redis, "gold COST 4000 ONCE r2 5m")[0] == 1, "a repetition renews the lease"
    clock.advance("20s")
    assert limit(redis, "gold COST 0 EACH")[2][2][2] == 1
    clock.advance("20s")
    for name in ("r4", "r5"):
        assert limit(redis, f"gold COST 1 ONCE {name} 5m")[0] == 1
    denied = limit(redis, "gold COST 4000 ONCE r2 5m")
    assert denied[:4] == [0, 2, 0, 30_000], "others have both leases"


def test_a_lease_needs_an_id_and_a_peek_does_not(redis: Redis) -> None:
    define(redis, "CONCURRENCY 2 30s")
    with pytest.raises(
        ResponseError, match=r"the call needs ONCE id ttl, and the id is the holder$"
    ):
        limit(redis, "gold")
    assert redis.execute_command("RL.PEEK", "k", "POLICY", "gold")[:3] == [1, 2, 2]
    assert limit(redis, "gold COST 0")[:3] == [1, 2, 2]
    assert not redis.exists("k")


def test_settlement_of_an_expired_id_releases_the_lease(redis: Redis, clock: Clock) -> None:
    define(redis, "CONCURRENCY 1 10m")
    assert limit(redis, "gold ONCE r1 1s")[0] == 1
    clock.advance("2s")
    assert limit(redis, "gold ONCE r2 1s")[0] == 0
    assert limit(redis, "gold SETTLE r1 0")[:1] == [0], "the id has expired"
    assert limit(redis, "gold ONCE r2 1s")[0] == 1


# Changes of policies

KEY_COUNT = scaled(300, 1_000_000)
long_timeout = pytest.mark.timeout(scaled(180, 3600))


def replies_of_all(redis: Redis, *words: str) -> set[tuple]:
    """Returns the different replies to a call on every key."""
    found: set[tuple] = set()
    for start in range(0, KEY_COUNT, 10_000):
        with redis.pipeline(transaction=False) as pipe:
            for number in range(start, min(start + 10_000, KEY_COUNT)):
                pipe.execute_command(words[0], f"user:{number}", *words[1:])
            found |= {tuple(answer) for answer in pipe.execute()}
    return found


@long_timeout
def test_new_limit_on_many_keys_keeps_usage(redis: Redis, clock: Clock) -> None:
    define(redis, "FIXED 10 1h")
    assert replies_of_all(redis, "RL.LIMIT", "gold", "COST", "7") == {(1, 10, 3, 0, 3_600_000)}
    define(redis, "FIXED 8 1h")
    assert replies_of_all(redis, "RL.LIMIT", "gold", "COST", "2") == {
        (0, 8, 1, 3_600_000, 3_600_000)
    }
    define(redis, "FIXED 6 1h")
    assert replies_of_all(redis, "RL.LIMIT", "gold") == {(0, 6, 0, 3_600_000, 3_600_000)}
    # A plain key keeps its usage under another window, as it does without a policy.
    define(redis, "FIXED 8 2h")
    assert replies_of_all(redis, "RL.LIMIT", "gold") == {(1, 8, 0, 0, 7_200_000)}
    clock.advance("30m")
    define(redis, "FIXED 9 2h")
    assert replies_of_all(redis, "RL.LIMIT", "gold") == {(1, 9, 0, 0, 5_400_000)}


@long_timeout
def test_another_algorithm_and_back_forgives_no_usage(redis: Redis, clock: Clock) -> None:
    define(redis, "FIXED 10 1h")
    assert replies_of_all(redis, "RL.LIMIT", "gold", "COST", "7") == {(1, 10, 3, 0, 3_600_000)}
    define(redis, "TOKENBUCKET 5 5 1h")
    # The new algorithm starts empty, beside the old component.
    assert replies_of_all(redis, "RL.LIMIT", "gold", "COST", "4") == {(1, 5, 1, 0, 2_880_000)}
    assert redis.execute_command("RL.INFO", "user:0")[1] == b"rl-limits"
    clock.advance("36m")
    define(redis, "FIXED 10 1h")
    assert replies_of_all(redis, "RL.LIMIT", "gold", "COST", "2") == {(1, 10, 1, 0, 1_440_000)}
    define(redis, "TOKENBUCKET 5 5 1h")
    assert replies_of_all(redis, "RL.LIMIT", "gold", "COST", "5") == {(0, 5, 4, 720_000, 720_000)}
    # Components that have recovered are gone.
    clock.advance("24m")
    assert replies_of_all(redis, "RL.LIMIT", "gold", "COST", "5") == {(1, 5, 0, 0, 3_600_000)}
    assert len(redis.execute_command("RL.INFO", "user:0")[5]) == 1


def test_key_of_another_type_is_refused(redis: Redis) -> None:
    redis.set("k", "a string")
    define(redis, "FIXED 10 1h")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        limit(redis, "gold")
    assert redis.get("k") == b"a string"


def test_end_of_a_scale_keeps_every_used_unit(redis: Redis, clock: Clock) -> None:
    define(redis, "TOKENBUCKET 10 10 1h")
    redis.execute_command("RL.POLICYSCALE", "gold", 10, "FOR", "6m")
    assert limit(redis, "gold COST 20")[:3] == [1, 100, 80]
    # Under the scale alone, everything would have recovered by now.
    assert redis.pttl("k") >= 2 * 3_600_000
    clock.advance("6m")
    # The wait is computed at the current rate: 19 units are used, and 10 have to drain.
    assert limit(redis, "gold")[:4] == [0, 10, 0, 3_600_000]
    redis.execute_command("RL.POLICYSCALE", "gold", 0)
    before = redis.dump("k")
    assert limit(redis, "gold")[3] == -1
    assert redis.dump("k") == before


def test_near_is_admitted_with_80_percent_used(redis: Redis) -> None:
    define(redis, "FIXED 10 1m")
    for _ in range(7):
        limit(redis, "gold")
    assert counts(redis)[b"near"] == 0
    for _ in range(5):
        limit(redis, "gold")
    assert counts(redis)[b"near"] == 3
    assert (counts(redis)[b"admitted"], counts(redis)[b"denied"]) == (10, 2)
