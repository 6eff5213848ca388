"""A call on a key of another type is an error that names that type and the type that it needs."""

import pytest
from redis import ResponseError

pytestmark = pytest.mark.every_server

# Types that a key may have, as TYPE shows them, and a command that creates each.
CREATING_CALLS = {
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
FITS_EVERY_CALL = "rl-limits"

# Each algorithm and the kind of key that it needs.
NEEDED_TYPES = {
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
    ("call", "key_type"),
    [
        (call, key_type)
        for call, needed_type in NEEDED_TYPES.items()
        for key_type in CREATING_CALLS
        if key_type not in {needed_type, FITS_EVERY_CALL}
    ],
)
def test_a_call_on_another_type_names_both_and_changes_nothing(pair, call, key_type):
    name, _, words = call.partition(" k ")
    error = rf"^WRONGTYPE .*\b{key_type}\b.*\b{NEEDED_TYPES[call]}\b"
    with pair.primary.client() as redis:
        redis.execute_command(CREATING_CALLS[key_type])
        assert redis.type("k") == key_type.encode()

        def state() -> tuple[object, ...]:
            value = redis.dump("k"), redis.pttl("k"), redis.dbsize()
            return *value, redis.info("replication")["master_repl_offset"]

        before = state()
        for line in (f"RL.{call}", f"RL.TAKE k {name} {words}", f"RL.PEEK k {name} {words}"):
            for options in OPTIONS:
                with pytest.raises(ResponseError, match=error):
                    redis.execute_command(f"{line} {options}")
        assert state() == before


@pytest.mark.parametrize(
    "key_type",
    [key_type for key_type in CREATING_CALLS if key_type not in {"rl-leases", FITS_EVERY_CALL}],
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
def test_lease_calls_on_another_type_name_both_types(redis, call, key_type):
    redis.execute_command(CREATING_CALLS[key_type])
    before = redis.dump("k"), redis.pttl("k")
    with pytest.raises(ResponseError, match=rf"^WRONGTYPE .*\b{key_type}\b.*\brl-leases\b"):
        redis.execute_command(call)
    assert (redis.dump("k"), redis.pttl("k")) == before


def test_an_argument_out_of_range_is_reported_before_the_type(redis):
    redis.set("k", "value")
    with pytest.raises(ResponseError, match="window must be a duration"):
        redis.execute_command("RL.FIXED k 10 60x")


@pytest.mark.parametrize("key_type", CREATING_CALLS)
def test_a_key_deleted_or_expired_may_be_of_any_type_again(redis, clock, key_type):
    redis.execute_command(CREATING_CALLS[key_type])
    redis.pexpire("k", 1000)
    clock.advance("1001ms")
    assert redis.execute_command("RL.FIXED k 10 60s") == [1, 10, 9, 0, 60_000]
    redis.delete("k")
    redis.execute_command(CREATING_CALLS[key_type])
    assert redis.type("k") == key_type.encode()


def test_a_limiter_may_be_overwritten_like_any_key(redis):
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


@pytest.mark.parametrize(
    "key_type", [key_type for key_type in CREATING_CALLS if not key_type.startswith("rl-")]
)
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
def test_a_call_that_needs_several_limits_names_the_type_of_the_key(redis, call, key_type):
    redis.execute_command(CREATING_CALLS[key_type])
    before = redis.dump("k"), redis.dbsize()
    with pytest.raises(ResponseError, match=rf"^WRONGTYPE .*\b{key_type}\b.*\brl-limits\b"):
        redis.execute_command(call)
    assert (redis.dump("k"), redis.dbsize()) == before
