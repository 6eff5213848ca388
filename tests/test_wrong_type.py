"""A key of another type is an error that names its type and the one that the call needs."""

import pytest
from redis import ResponseError

pytestmark = pytest.mark.every_server

# Types that a key may have, as TYPE shows them, and a command that creates each.
HOLDS = {
    "string": "SET k value",
    "list": "RPUSH k value",
    "hash": "HSET k field value",
    "set": "SADD k value",
    "zset": "ZADD k 1 value",
    "stream": "XADD k 1-1 field value",
    "rl-bucket": "RL.TOKENBUCKET k 10 1 1s",
    "rl-window": "RL.FIXED k 10 60s",
    "rl-slider": "RL.SLIDING k 10 60s",
    "rl-strict": "RL.SLIDING k 10 60s STRICT",
    "rl-reqlog": "RL.SLIDINGLOG k 10 60s",
    "rl-leases": "RL.ACQUIRE k 10 60s holder",
    "rl-limits": "RL.FIXED k 10 60s AS name",
}
# Every call works on a key with several limits.
SERVES_ALL = "rl-limits"

# Each algorithm and the kind of key that it needs.
NEEDS = {
    "TOKENBUCKET k 10 1 1s": "rl-bucket",
    "LEAKYBUCKET k 10 1 1s": "rl-bucket",
    "FIXED k 10 60s": "rl-window",
    "FIXED k 10 60s ALIGNED": "rl-window",
    "SLIDING k 10 60s": "rl-slider",
    "SLIDING k 10 60s STRICT": "rl-strict",
    "SLIDINGLOG k 10 60s": "rl-reqlog",
}
OPTIONS = ["", "COST 0", "COST 11", "COST -1", "UPTO", "FORCE"]


@pytest.mark.parametrize(
    ("call", "holds"),
    [
        (call, holds)
        for call, needs in NEEDS.items()
        for holds in HOLDS
        if holds not in {needs, SERVES_ALL}
    ],
)
def test_a_call_on_another_type_names_both_and_changes_nothing(pair, call, holds):
    name, _, words = call.partition(" k ")
    refused = rf"^WRONGTYPE .*\b{holds}\b.*\b{NEEDS[call]}\b"
    with pair.primary.client() as redis:
        redis.execute_command(HOLDS[holds])
        assert redis.type("k") == holds.encode()

        def state() -> tuple[object, ...]:
            value = redis.dump("k"), redis.pttl("k"), redis.dbsize()
            return *value, redis.info("replication")["master_repl_offset"]

        before = state()
        for line in (f"RL.{call}", f"RL.TAKE k {name} {words}", f"RL.PEEK k {name} {words}"):
            for options in OPTIONS:
                with pytest.raises(ResponseError, match=refused):
                    redis.execute_command(f"{line} {options}")
        assert state() == before


@pytest.mark.parametrize(
    "holds", [holds for holds in HOLDS if holds not in {"rl-leases", SERVES_ALL}]
)
@pytest.mark.parametrize(
    "call",
    [
        "RL.ACQUIRE k 10 60s holder",
        "RL.TAKE k CONCURRENCY 10 60s holder",
        "RL.PEEK k CONCURRENCY 10 60s holder",
        "RL.RELEASE k holder",
    ],
)
def test_lease_calls_on_another_type_name_both_types(redis, call, holds):
    redis.execute_command(HOLDS[holds])
    before = redis.dump("k"), redis.pttl("k")
    with pytest.raises(ResponseError, match=rf"^WRONGTYPE .*\b{holds}\b.*\brl-leases\b"):
        redis.execute_command(call)
    assert (redis.dump("k"), redis.pttl("k")) == before


def test_an_argument_out_of_range_is_reported_before_the_type(redis):
    redis.set("k", "value")
    with pytest.raises(ResponseError, match="window must be a duration"):
        redis.execute_command("RL.FIXED k 10 60x")


@pytest.mark.parametrize("holds", HOLDS)
def test_a_key_deleted_or_expired_may_be_of_any_type_again(redis, clock, holds):
    redis.execute_command(HOLDS[holds])
    redis.pexpire("k", 1000)
    clock.advance("1001ms")
    assert redis.execute_command("RL.FIXED k 10 60s") == [1, 10, 9, 0, 60_000]
    redis.delete("k")
    redis.execute_command(HOLDS[holds])
    assert redis.type("k") == holds.encode()


def test_a_limiter_may_be_overwritten_as_any_key(redis):
    redis.execute_command("RL.FIXED k 10 60s")
    redis.set("k", "value")
    assert redis.get("k") == b"value"
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        redis.execute_command("RL.FIXED k 10 60s")


def test_other_commands_refuse_a_limiter_s_key(redis):
    redis.execute_command("RL.FIXED k 10 60s")
    before = redis.dump("k")
    for line in ("GET k", "INCR k", "LPUSH k value", "HGET k field", "SADD k value"):
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            redis.execute_command(line)
    assert redis.dump("k") == before


@pytest.mark.parametrize("holds", [holds for holds in HOLDS if not holds.startswith("rl-")])
@pytest.mark.parametrize(
    "call",
    [
        "RL.BAN k 1m",
        "RL.FIXED k 10 60s AS name",
        "RL.TAKE k ONCE id 1m FIXED 10 60s SLIDING 10 60s",
        "RL.TAKE k SETTLE id 1 FIXED 10 60s",
        "RL.MTAKE 2 other k FIXED 10 60s FIXED 10 60s AS name",
    ],
)
def test_a_call_that_needs_several_limits_names_the_type_of_the_key(redis, call, holds):
    redis.execute_command(HOLDS[holds])
    before = redis.dump("k"), redis.dbsize()
    with pytest.raises(ResponseError, match=rf"^WRONGTYPE .*\b{holds}\b.*\brl-limits\b"):
        redis.execute_command(call)
    assert (redis.dump("k"), redis.dbsize()) == before
