"""Several limits on one key are all charged or none is, on replicas too. A plain key that gets a
second limit keeps its usage.
"""

from collections.abc import Callable

import pytest
from redis import Redis, ResponseError

from conftest import Pair
from support.clock import Clock
from support.server import Server

REQUESTS = "TOKENBUCKET 60 60 1m COST 1 AS requests"
TOKENS = "TOKENBUCKET 10000 10000 1m AS tokens"

# By type: a spec with a limit of 10.
SPECS = {
    "rl-bucket": "TOKENBUCKET 10 10 10s",
    "rl-window": "FIXED 10 10s",
    "rl-slider": "SLIDING 10 10s",
    "rl-strict": "SLIDING 10 10s STRICT",
    "rl-reqlog": "SLIDINGLOG 10 10s",
    "rl-leases": "CONCURRENCY 10 10s me",
}


def take(redis: Redis, key: str, words: str) -> list:
    return redis.execute_command("RL.TAKE", key, *words.split())


def peek(redis: Redis, key: str, words: str) -> list:
    return redis.execute_command("RL.PEEK", key, *words.split())


def info(redis: Redis, key: str) -> dict:
    flat = redis.execute_command("RL.INFO", key)
    return dict(zip(flat[::2], flat[1::2], strict=True))


def parts(redis: Redis, key: str) -> list[dict]:
    return [dict(zip(part[::2], part[1::2], strict=True)) for part in info(redis, key)[b"parts"]]


def test_reserved_tokens_are_settled_beside_a_request_limit(redis: Redis) -> None:
    reserve = f"COST 4000 ONCE r1 5m {REQUESTS} {TOKENS}"
    settle = f"SETTLE r1 1200 {REQUESTS} {TOKENS}"
    for call in (reserve, reserve, settle, settle):
        assert take(redis, "alice", call)[0] == 1
    each = peek(redis, "alice", f"EACH COST 0 {REQUESTS} {TOKENS}")[2]
    assert [decision[2] for decision in each] == [59, 8800]


def test_all_limits_are_charged_or_none(redis: Redis) -> None:
    specs = "TOKENBUCKET 10 10 10s FIXED 3 1h"
    for remaining in (2, 1, 0):
        assert take(redis, "k", specs) == [1, 3, remaining, 0, 3_600_000]
    before = redis.dump("k")
    assert take(redis, "k", specs) == [0, 3, 0, 3_600_000, 3_600_000]
    assert redis.dump("k") == before
    assert redis.type("k") == b"rl-limits"
    assert [part[b"used"] for part in parts(redis, "k")] == [b"3", b"3"]


def test_limit_that_is_exhausted_first_denies(redis: Redis, clock: Clock) -> None:
    specs = "TOKENBUCKET 10 1 1s AS a TOKENBUCKET 100 1 1s AS b"
    # The first limit would admit 9 such calls more, the second 4.
    assert take(redis, "k", "TOKENBUCKET 10 1 1s AS a COST 1 TOKENBUCKET 100 1 1s AS b COST 20")[
        1:3
    ] == [100, 80]
    assert take(redis, "k", specs)[1:3] == [10, 8]
    assert take(redis, "k", f"COST 9 {specs}") == [0, 10, 8, 1_000, 2_000]
    # If two limits deny, the longer wait counts.
    assert take(redis, "k", f"COST 80 {specs}") == [0, 10, 8, -1, 2_000]
    clock.advance("1s")
    assert take(redis, "k", f"COST 9 {specs}") == [1, 10, 0, 0, 10_000]


def test_each_returns_a_decision_for_every_limit(redis: Redis) -> None:
    assert take(redis, "k", "EACH COST 2 FIXED 5 1m SLIDING 3 1m") == [
        1,
        0,
        [[1, 5, 3, 0, 60_000], [1, 3, 1, 0, 120_000]],
    ]
    assert take(redis, "k", "EACH COST 2 FIXED 5 1m SLIDING 3 1m") == [
        0,
        90_000,
        [[1, 5, 3, 0, 60_000], [0, 3, 1, 90_000, 120_000]],
    ]


def test_a_named_limit_shows_its_name_after_its_decision(redis: Redis) -> None:
    named = take(redis, "k", "EACH COST 2 UPTO FIXED 5 1m AS burst SLIDING 9 1m")
    assert named == [1, 0, [[1, 5, 3, 0, 60_000, 2, b"burst"], [1, 9, 7, 0, 120_000, 2]]]


def test_a_part_is_found_by_kind_and_window_or_by_its_name(redis: Redis) -> None:
    take(redis, "k", "FIXED 10 1m FIXED 100 1h")
    assert take(redis, "k", "FIXED 5 1h") == [1, 5, 3, 0, 3_600_000]
    assert take(redis, "k", "FIXED 10 1d")[2] == 9, "another window is another limit"
    take(redis, "k", "FIXED 10 1m AS burst")
    assert take(redis, "k", "FIXED 10 2m AS burst")[2] == 8, "a name keeps its usage"
    assert take(redis, "k", "FIXED 10 1m")[2] == 8
    assert [part.get(b"name") for part in parts(redis, "k")] == [None, None, None, b"burst"]


def test_an_unused_limit_stays_until_it_has_recovered(redis: Redis, clock: Clock) -> None:
    take(redis, "k", "FIXED 10 1m FIXED 10 1h COST 7")
    for _ in range(3):
        take(redis, "k", "FIXED 10 1m")
    assert peek(redis, "k", "FIXED 10 1h")[2] == 3
    clock.advance("30m")
    take(redis, "k", "FIXED 10 1m")
    assert peek(redis, "k", "FIXED 10 1h")[2] == 3
    assert len(parts(redis, "k")) == 2
    clock.advance("30m")
    take(redis, "k", "FIXED 10 1m")
    assert len(parts(redis, "k")) == 1


@pytest.mark.parametrize(("kind", "spec"), SPECS.items(), ids=SPECS)
def test_a_plain_key_keeps_its_usage_when_it_gets_a_second_limit(
    redis: Redis, clock: Clock, kind: str, spec: str
) -> None:
    other = "SLIDING 10 1m" if kind == "rl-window" else "FIXED 10 1m"
    take(redis, "k", spec)
    assert redis.type("k") == kind.encode()
    before = peek(redis, "k", spec)
    assert peek(redis, "k", f"{other} {spec}")[0] == 1
    assert redis.type("k") == kind.encode(), "a peek does not convert the key"
    take(redis, "k", f"COST 11 {other} {spec}")
    assert redis.type("k") == kind.encode(), "a denied call does not convert the key"
    assert take(redis, "k", f"{other} COST 3 {spec} COST 1")[0] == 1
    assert redis.type("k") == b"rl-limits"
    assert peek(redis, "k", spec)[2] == before[2] - (kind != "rl-leases")
    assert len(parts(redis, "k")) == 2
    assert 60_000 <= redis.pttl("k") <= 150_000
    clock.advance("3m")
    take(redis, "k", spec)
    assert redis.type("k") == kind.encode(), "an expired key is plain again"


@pytest.mark.parametrize(("kind", "spec"), SPECS.items(), ids=SPECS)
def test_every_command_uses_its_part_of_the_key(redis: Redis, kind: str, spec: str) -> None:
    take(redis, "k", f"{spec} FIXED 10 1m AS other")
    algorithm, *words = spec.split()
    command = {"CONCURRENCY": "RL.ACQUIRE"}.get(algorithm, f"RL.{algorithm}")
    remaining = 9 if kind == "rl-leases" else 8
    assert redis.execute_command(command, "k", *words)[:3] == [1, 10, remaining]
    assert (
        redis.execute_command("RL.MTAKE", 2, "k", "other", *spec.split(), *["FIXED", "1", "1m"])[0]
        == 1
    )
    assert redis.execute_command("RL.MPEEK", 1, "k", *spec.split())[2][0][2] == min(
        remaining, 9 if kind == "rl-leases" else 7
    )
    if kind == "rl-leases":
        assert redis.execute_command("RL.RELEASE", "k", "me", "you") == 1
        assert peek(redis, "k", spec)[2] == 10
    if kind == "rl-bucket":
        assert redis.execute_command("RL.THROTTLE", "k", 9, 10, 10)[:3] == [0, 10, 6]


def test_single_limit_on_a_plain_key_of_another_algorithm_is_an_error(redis: Redis) -> None:
    take(redis, "k", "FIXED 10 1m")
    for words in ("SLIDING 10 1m", "SLIDING 10 1m AS x", "ONCE id 5m SLIDING 10 1m"):
        with pytest.raises(ResponseError, match=r"^WRONGTYPE .*rl-window, where rl-slider"):
            take(redis, "k", words)
    redis.set("string", "x")
    with pytest.raises(ResponseError, match=r"^WRONGTYPE .*string"):
        take(redis, "string", "FIXED 1 1m SLIDING 1 1m")
    with pytest.raises(ResponseError, match=r"^WRONGTYPE .*string"):
        redis.execute_command("RL.BAN", "string", "1m")


def test_a_key_has_sixteen_parts_at_most(redis: Redis, clock: Clock) -> None:
    for n in range(16):
        assert take(redis, "k", f"FIXED 10 1h AS n{n}")[0] == 1
    with pytest.raises(ResponseError, match="16 limits"):
        take(redis, "k", "FIXED 10 1h AS more")
    assert take(redis, "k", "FIXED 10 1h AS n3")[2] == 8
    clock.advance("1h")
    assert take(redis, "k", "FIXED 10 1h AS more")[0] == 1


def test_upto_grants_the_minimum_of_all_limits(redis: Redis) -> None:
    assert take(redis, "k", "COST 9 UPTO FIXED 5 1m TOKENBUCKET 7 7 1m") == [1, 5, 0, 0, 60_000, 5]
    assert peek(redis, "k", "TOKENBUCKET 7 7 1m")[2] == 2
    assert take(redis, "k", "COST 9 UPTO FIXED 5 1m TOKENBUCKET 7 7 1m")[0] == 0


def test_force_charges_all_limits_and_reports_whether_the_call_fitted(redis: Redis) -> None:
    assert take(redis, "k", "COST 8 FORCE FIXED 5 1m TOKENBUCKET 10 10 1m") == [
        0,
        5,
        0,
        60_000,
        60_000,
    ]
    assert [part[b"used"] for part in parts(redis, "k")] == [b"8", b"8"]


def test_wait_of_several_limits_is_exact(redis: Redis, clock: Clock) -> None:
    call = "TOKENBUCKET 2 1 3s SLIDINGLOG 3 10s"
    admitted = 0
    for _ in range(40):
        allowed, _, _, wait_ms, _ = take(redis, "k", call)
        admitted += allowed
        if not allowed:
            clock.advance(f"{wait_ms - 1}ms")
            assert take(redis, "k", call)[0] == 0
            clock.advance("1ms")
            assert take(redis, "k", call)[0] == 1
            admitted += 1
    assert admitted >= 40


def test_a_replica_has_the_same_bytes_for_several_limits(pair: Pair, clock: Clock) -> None:
    primary, replica = pair.primary.client(), pair.replica.client()
    specs = (
        "TOKENBUCKET 10 10 10s FIXED 10 1m SLIDING 10 1m SLIDING 10 1m STRICT SLIDINGLOG 10 1m "
        "CONCURRENCY 9 1m h{n}"
    )
    for n in range(9):
        call = f"COST 2 ONCE id{n} 1h {specs.format(n=n)}"
        take(primary, "k", call)
        if n % 2:
            take(primary, "k", f"SETTLE id{n - 1} {n % 3} {specs.format(n=n)}")
        if n == 5:
            clock.advance("-5s")
        clock.advance("3s")
        pair.replica.wait_for_sync()
        assert primary.dump("k") == replica.dump("k"), n
    primary.execute_command("RL.RELEASE", "k", "h0")
    primary.execute_command("RL.BAN", "k", "1h")
    pair.replica.wait_for_sync()
    assert primary.dump("k") == replica.dump("k")
    assert abs(primary.pttl("k") - replica.pttl("k")) <= 1


def test_a_plain_key_is_converted_on_the_replica_too(pair: Pair) -> None:
    primary, replica = pair.primary.client(), pair.replica.client()
    for spec in SPECS.values():
        take(primary, "k", spec)
        take(primary, "k", f"{spec} FIXED 10 1m AS company")
        take(primary, "k", f"{spec} FIXED 10 1m AS company")
        pair.replica.wait_for_sync()
        assert replica.type("k") == b"rl-limits"
        assert primary.dump("k") == replica.dump("k")
        primary.delete("k")


def test_a_key_is_the_same_after_a_restart_a_copy_and_a_dump(redis: Redis) -> None:
    specs = "TOKENBUCKET 10 10 10s FIXED 10 1m AS minute SLIDINGLOG 10 1m CONCURRENCY 9 1m me"
    take(redis, "k", f"COST 2 ONCE id 1h {specs}")
    redis.execute_command("RL.BAN", "k", "5m")
    dump = redis.dump("k")
    redis.execute_command("COPY", "k", "copy")
    redis.restore("restored", 0, dump)
    assert redis.dump("copy") == redis.dump("restored") == dump
    digest = redis.execute_command("DEBUG", "DIGEST-VALUE", "k")
    redis.execute_command("DEBUG", "RELOAD")
    assert redis.dump("k") == dump
    assert redis.execute_command("DEBUG", "DIGEST-VALUE", "k") == digest
    assert redis.memory_usage("k") > 500


def test_a_plain_key_is_converted_on_a_server_without_del(
    fresh_server: Callable[..., Server],
) -> None:
    primary = fresh_server(rename_command='DEL ""')
    replica = primary.replica()
    client = primary.client()
    calls = [
        "RL.TAKE k FIXED 10 1h FIXED 10 1m",
        "RL.MTAKE 2 k other FIXED 10 1h AS name FIXED 10 1h",
        "RL.BAN k 1m",
    ]
    for call in calls:
        client.execute_command("UNLINK", "k")
        take(client, "k", "FIXED 10 1h")
        client.execute_command(*call.split())
        assert client.type("k") == b"rl-limits", call
        replica.wait_for_sync()
        assert replica.client().dump("k") == client.dump("k"), call
