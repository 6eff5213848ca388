"""A limit with FORCE in a policy charges calls past the limit, and denies them.

core/src/syntax/policy/tests/force.rs specifies which calls are forced, and that FORCE in a policy
decides like FORCE after the spec of RL.TAKE.
"""

from collections.abc import Callable

import pytest
from redis import Redis, ResponseError

from conftest import Pair
from support.clock import Clock
from support.policies import counts, policy
from support.policy_files import AOF
from support.saving import restart_from_aof, restart_from_rdb
from support.server import Server

pytestmark = pytest.mark.every_server
HOUR_MS = 3_600_000
# Limits of 10 units: alone, named, and with a second limit that denies nothing.
FORMS = [
    "FIXED 10 1h FORCE",
    "FIXED 10 1h AS tokens FORCE",
    "SLIDINGLOG 10 1h FORCE",
    "TOKENBUCKET 10 10 10h FORCE",
    "FIXED 10 1h FORCE FIXED 1000 1d COST 1",
    "FIXED 10 1h FORCE SLIDING 1 1h COST 0 AS trial SHADOW",
]


def define(redis: Redis, specs: str) -> int:
    return redis.execute_command("RL.POLICYSET", "tokens", *specs.split())


def limit(redis: Redis, words: str = "", key: str = "k") -> list:
    return redis.execute_command("RL.LIMIT", key, "tokens", *words.split())


def allowed(redis: Redis, costs: list[int], key: str) -> list[bool]:
    return [bool(limit(redis, f"COST {cost}", key)[0]) for cost in costs]


@pytest.mark.parametrize("specs", FORMS)
def test_charge_past_the_limit_is_made_and_denied(specs: str, redis: Redis, clock: Clock) -> None:
    define(redis, specs)
    assert allowed(redis, [0, 12, 0], "looks") == [True, False, False]
    assert allowed(redis, [8, 5, 1], "charges") == [True, False, False]
    assert allowed(redis, [8, 2, 0], "full") == [True, True, True]
    clock.advance("10h")
    assert allowed(redis, [0], "looks") == [True]


def test_budget_of_tokens_charged_after_the_answer_is_used_up(redis: Redis, clock: Clock) -> None:
    define(redis, "FIXED 1000 1h FORCE")
    admitted = 0
    for _ in range(400):
        if limit(redis, "COST 0")[0]:
            admitted += 1
            limit(redis, "COST 300")
    assert admitted == 4
    assert limit(redis, "COST 0") == [0, 1000, 0, HOUR_MS, HOUR_MS]
    clock.advance("1h")
    assert limit(redis, "COST 0") == [1, 1000, 1000, 0, 0]


def test_plain_key_of_a_policy_stays_plain_when_it_gets_force(redis: Redis) -> None:
    define(redis, "TOKENBUCKET 10 10 10h")
    assert [limit(redis)[2] for _ in range(9)] == [9, 8, 7, 6, 5, 4, 3, 2, 1]
    define(redis, "TOKENBUCKET 10 10 10h FORCE")
    assert [limit(redis)[0] for _ in range(3)] == [1, 0, 0]
    assert redis.type("k") == b"rl-bucket"
    # Two units of debt, and one unit that has to be free.
    assert limit(redis, "COST 0")[3] == 2 * HOUR_MS
    define(redis, "TOKENBUCKET 10 10 10h")
    assert limit(redis)[3] == 3 * HOUR_MS


def test_nothing_is_charged_if_another_limit_denies(redis: Redis) -> None:
    define(redis, "FIXED 10 1h FORCE FIXED 5 1d")
    assert limit(redis, "COST 4 EACH")[2] == [
        [1, 10, 6, 0, HOUR_MS],
        [1, 5, 1, 0, 24 * HOUR_MS],
    ]
    assert limit(redis, "COST 2 EACH")[2] == [
        [1, 10, 6, 0, HOUR_MS],
        [0, 5, 1, 24 * HOUR_MS, 24 * HOUR_MS],
    ]
    # The same holds among several keys.
    denied = ("RL.MTAKE", 2, "{k}1", "{k}2", "POLICY", "tokens", "FIXED", 0, "1m")
    assert redis.execute_command(*denied)[0] == 0
    assert not redis.exists("{k}1")


def test_forced_limit_of_several_keys_lets_the_call_pass(redis: Redis) -> None:
    define(redis, "FIXED 10 1h FORCE")
    call = ("RL.MTAKE", 2, "{k}1", "{k}2", "COST", 12, "POLICY", "tokens", "FIXED", 99, "1m")
    assert redis.execute_command(*call)[2] == [
        [0, 10, 0, HOUR_MS, HOUR_MS],
        [1, 99, 87, 0, 60_000],
    ]
    assert redis.execute_command("RL.MPEEK", *call[1:])[0] == 0, "a peek ignores FORCE"


def test_charge_past_the_limit_is_not_a_strike(redis: Redis) -> None:
    define(redis, "FIXED 1 1h FORCE FIXED 5 1d BAN 2 1m 1h")
    assert [limit(redis)[0] for _ in range(5)] == [1, 0, 0, 0, 0]
    # The five units a day are used up: the daily limit denies, and counts two strikes.
    assert [limit(redis)[3] for _ in range(3)] == [24 * HOUR_MS] * 3
    assert counts(redis, "tokens")[b"banned"] == 1


def test_upto_maxwait_and_keep_do_not_apply_to_a_forced_limit(redis: Redis) -> None:
    define(redis, "TOKENBUCKET 10 10 10h FORCE")
    assert limit(redis, "COST 8 UPTO") == [1, 10, 2, 0, 8 * HOUR_MS, 8]
    assert limit(redis, "COST 8 UPTO") == [0, 10, 0, 6 * HOUR_MS, 16 * HOUR_MS, 8]
    for key, words in (("waits", "MAXWAIT 30d"), ("keeps", "KEEP 9")):
        assert limit(redis, f"COST 7 {words}", key)[:4] == [1, 10, 3, 0]
        assert limit(redis, f"COST 7 {words}", key)[:4] == [0, 10, 0, 4 * HOUR_MS]
    # A peek keeps one unit.
    assert limit(redis, "COST 0 KEEP 1", "fresh")[0] == 1
    limit(redis, "COST 9", "low")
    assert [limit(redis, f"COST 0 KEEP {keep}", "low")[0] for keep in (1, 2)] == [1, 0]
    # The forced limit does not lower what the other limits grant.
    define(redis, "FIXED 10 1h FORCE FIXED 3 1d")
    assert limit(redis, "COST 8 UPTO EACH", "two")[2] == [
        [1, 10, 2, 0, HOUR_MS, 3],
        [1, 3, 0, 0, 24 * HOUR_MS, 3],
    ]
    assert limit(redis, "COST 8 UPTO", "two") == [0, 3, 0, 24 * HOUR_MS, 24 * HOUR_MS, 0]


def test_give_backs_settlements_and_peeks_act_as_without_force(redis: Redis) -> None:
    define(redis, "FIXED 10 1h FORCE")
    assert limit(redis, "COST 12 ONCE a 1m")[0] == 0
    assert limit(redis, "COST 12 ONCE a 1m")[:3] == [0, 10, 0], "it is charged once"
    assert limit(redis, "SETTLE a 7")[:3] == [1, 10, 3]
    assert limit(redis, "COST -2")[:3] == [1, 10, 5]
    peek = ("RL.PEEK", "k", "POLICY", "tokens", "COST")
    assert [redis.execute_command(*peek, cost)[0] for cost in (5, 6)] == [1, 0]
    assert redis.execute_command(*peek, 9, "UPTO") == [1, 10, 5, 0, HOUR_MS, 5]


def test_delay_takes_a_forced_limit(redis: Redis) -> None:
    define(redis, "FIXED 2 1h FORCE")
    call = ("RL.DELAY", "k", "tokens")
    assert [redis.execute_command(*call) for _ in range(3)] == [0, 0, HOUR_MS]
    assert redis.execute_command(*call, "COST", 0) == HOUR_MS


def test_policy_and_its_longer_reply_show_force(redis: Redis) -> None:
    version = define(redis, "fixed 10 1h force as tokens FIXED 9 1d")
    specs = b"FIXED 10 1h AS tokens FORCE FIXED 9 1d"
    shown = policy(redis, "tokens")
    assert shown is not None
    assert shown.specs == specs
    assert limit(redis, "EACH")[3:] == [b"tokens", version, b"FORCE"]
    peeked = redis.execute_command("RL.PEEK", "k", "EACH", "POLICY", "tokens")
    assert peeked[3:] == [b"tokens", version, b"FORCE"]
    redis.execute_command("RL.POLICYSCALE", "tokens", "2")
    assert limit(redis, "EACH")[5:] == [b"FORCE"]
    later_version = define(redis, "FIXED 10 1h AS tokens FIXED 9 1d")
    assert limit(redis, "EACH")[3:] == [b"tokens", later_version]


def test_counts_of_a_policy_have_forced_charges_as_denied(redis: Redis) -> None:
    define(redis, "FIXED 1 1h FORCE")
    before = counts(redis, "tokens")
    for _ in range(3):
        limit(redis)
    after = counts(redis, "tokens")
    changed = {name: after[name] - before[name] for name in (b"calls", b"admitted", b"denied")}
    assert changed == {b"calls": 3, b"admitted": 1, b"denied": 2}


@pytest.mark.parametrize(
    ("specs", "why"),
    [
        ("CONCURRENCY 5 1m FORCE", "unexpected 'FORCE', where an option of the spec before"),
        ("SKETCH 5 5 1m FORCE", "unexpected 'FORCE', where an option of the spec before"),
        ("FIXED 5 1m FORCE SHADOW", "unexpected 'SHADOW', which cannot be combined with FORCE"),
        ("FIXED 5 1m SHADOW FORCE", "unexpected 'FORCE', which cannot be combined with SHADOW"),
        ("FIXED 5 1m FORCE COST 1 FORCE", "unexpected 'FORCE', which is given twice"),
    ],
)
def test_force_is_refused_where_it_has_no_meaning(specs: str, why: str, redis: Redis) -> None:
    with pytest.raises(ResponseError, match=why):
        define(redis, specs)


def test_forced_policy_and_its_charges_reach_a_replica(pair: Pair) -> None:
    primary, replica = pair.primary.client(), pair.replica.client()
    define(primary, "FIXED 10 1h FORCE")
    limit(primary, "COST 12", "forced")
    pair.replica.wait_for_sync()
    assert policy(replica, "tokens") == policy(primary, "tokens")
    peek = ("RL.PEEK", "forced", "COST", 0, "EACH", "POLICY", "tokens")
    assert replica.execute_command(*peek) == primary.execute_command(*peek)
    assert replica.execute_command(*peek)[0] == 0
    assert replica.dump("forced") == primary.dump("forced")


@pytest.mark.parametrize("specs", ["FIXED 10 1h FORCE", "FIXED 10 1h AS tokens FORCE FIXED 99 1d"])
def test_debt_of_a_forced_limit_is_dumped_and_restored(specs: str, redis: Redis) -> None:
    define(redis, specs)
    limit(redis, "COST 12")
    redis.restore("copy", redis.pttl("k"), redis.dump("k"))
    assert limit(redis, "COST 0 EACH", "copy") == limit(redis, "COST 0 EACH")
    assert limit(redis, "COST 0", "copy")[0] == 0


@pytest.mark.parametrize("restart", [restart_from_aof, restart_from_rdb])
def test_forced_policy_outlasts_a_restart(
    restart: Callable[[Server], None], fresh_server: Callable[..., Server]
) -> None:
    server = fresh_server(**(AOF if restart is restart_from_aof else {}))
    with server.client() as redis:
        version = define(redis, "FIXED 10 1h FORCE")
        limit(redis, "COST 12")
    restart(server)
    with server.client() as redis:
        assert limit(redis, "COST 0 EACH") == [
            0,
            HOUR_MS,
            [[0, 10, 0, HOUR_MS, HOUR_MS]],
            b"tokens",
            version,
            b"FORCE",
        ]
        assert limit(redis, "COST 1")[0] == 0
