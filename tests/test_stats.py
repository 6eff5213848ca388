"""INFO ratelimit counts the outcomes of calls since the load, by command, by kind and in total."""

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis, ResponseError

from support.server import Server
from support.workload import LIMITERS, Limiter, each_limiter

KINDS = {limiter.type.decode() for limiter in LIMITERS} | {"rl-sketch"}


@pytest.fixture
def redis(fresh_server: Callable[..., Server]) -> Redis:
    """Returns a client of a server whose counts are all zero."""
    return fresh_server().client(decode_responses=True)


def stats(redis: Redis, section: str = "ratelimit_stats") -> dict[str, object]:
    """Returns the fields of a section, without the module's prefix."""
    return {name.removeprefix("ratelimit_"): value for name, value in redis.info(section).items()}


def counts(redis: Redis, name: str) -> dict[str, int]:
    """Returns the counts of a command or of a kind, without the zeros."""
    found = stats(redis, "ratelimit_kinds" if name.startswith("rl-") else "ratelimit_commands")
    return {field: count for field, count in found[name].items() if count}


def test_info_ratelimit_shows_all_sections(redis: Redis) -> None:
    found = stats(redis, "ratelimit")
    totals = {"calls", "admitted", "denied", "errors", "keys_made"}
    totals |= {"effects_propagated", "effects_applied"}
    version = found.pop("version")
    manifest = Path(__file__).parents[1] / "Cargo.toml"
    assert version == tomllib.loads(manifest.read_text())["workspace"]["package"]["version"]
    major, minor, patch = map(int, version.split("."))
    (listed,) = [row for row in redis.module_list() if row["name"] == "ratelimit"]
    assert listed["ver"] == major * 10_000 + minor * 100 + patch
    commands = {name for name in found if name.startswith("rl.")}
    kinds = {name for name in found if name.startswith("rl-")}
    policies = {"policies", "policies_digest", "policies_shown"}
    policies |= {"policy_peers_differ", "policy_stamps_refused"}
    waiting = {"blocked_clients", "blocked_keys", "longest_blocked_ms", "served", "timed_out"}
    waiting |= {"looks", "busiest_turn"}
    assert set(found) == totals | commands | kinds | waiting | policies
    assert {found[name] for name in totals | waiting} == {0}
    assert len(commands) == 25
    assert kinds == KINDS


def test_info_shows_the_modules_sections_only_if_asked(redis: Redis) -> None:
    assert not [name for name in redis.info() if name.startswith("ratelimit_")]
    assert [name for name in redis.info("everything") if name.startswith("ratelimit_")]


@each_limiter
def test_a_call_counts_by_its_outcome(limiter: Limiter, redis: Redis) -> None:
    kind, command = limiter.type.decode(), limiter.command.lower()
    other = limiter.for_holder("other")
    redis.execute_command(*limiter.take("k", 7))
    redis.execute_command(*other.take("k", 4))
    redis.execute_command(*other.take("missing", 11))
    redis.execute_command(*other.peek("k", 1))
    redis.execute_command(*other.peek("k", 4))
    with pytest.raises(ResponseError):
        redis.execute_command(*other.take("k", "x"))
    assert counts(redis, command) == {"calls": 4, "admitted": 1, "denied": 2, "errors": 1}
    assert counts(redis, "rl.peek") == {"calls": 2}
    assert counts(redis, kind) == {"admitted": 1, "denied": 2, "keys_made": 1}
    totals = {"calls": 6, "admitted": 1, "denied": 2, "errors": 1, "keys_made": 1}
    assert stats(redis) == {**totals, "effects_propagated": 0, "effects_applied": 0}


def test_a_call_over_several_keys_counts_once_and_for_the_kind_of_each_key(redis: Redis) -> None:
    call = ["RL.MTAKE", 2, "a", "b", "FIXED", 2, "1h", "SLIDINGLOG", 1, "1h"]
    for _ in range(2):
        redis.execute_command(*call)
    redis.execute_command("RL.MPEEK", *call[1:])
    assert counts(redis, "rl.mtake") == {"calls": 2, "admitted": 1, "denied": 1}
    assert counts(redis, "rl.mpeek") == {"calls": 1}
    # The limits that would have allowed the denied call were neither charged nor counted as denied.
    assert counts(redis, "rl-window") == {"admitted": 1, "keys_made": 1}
    assert counts(redis, "rl-reqlog") == {"admitted": 1, "denied": 1, "keys_made": 1}


def test_a_call_over_several_limits_of_one_key_counts_for_each_kind_and_for_the_key(
    redis: Redis,
) -> None:
    call = ["RL.TAKE", "k", "FIXED", 2, "1h", "SLIDINGLOG", 5, "1h"]
    for _ in range(3):
        redis.execute_command(*call)
    redis.execute_command("RL.PEEK", *call[1:])
    assert counts(redis, "rl.take") == {"calls": 3, "admitted": 2, "denied": 1}
    assert counts(redis, "rl-limits") == {"admitted": 2, "denied": 1, "keys_made": 1}
    assert counts(redis, "rl-window") == {"admitted": 2, "denied": 1}
    assert counts(redis, "rl-reqlog") == {"admitted": 2}
    once = [*call[:2], "ONCE", "id", "1h", *call[5:]]
    for _ in range(2):
        redis.execute_command(*once)
    # A repeated id counts as admitted, as the first call did.
    assert counts(redis, "rl-limits") == {"admitted": 4, "denied": 1, "keys_made": 1}
    redis.execute_command("RL.BAN", "k", "1m")
    redis.execute_command(*call[:2], *call[5:])
    assert counts(redis, "rl.ban") == {"calls": 1}
    assert counts(redis, "rl-limits") == {"admitted": 4, "denied": 2, "keys_made": 1}


def test_command_getkeys_is_not_counted(redis: Redis) -> None:
    call = ("RL.MTAKE", 2, "a", "b", "FIXED", 2, "1h", "FIXED", 2, "1h")
    assert redis.execute_command("COMMAND GETKEYS", *call) == ["a", "b"]
    assert counts(redis, "rl.mtake") == {}


def test_a_forced_call_counts_as_admitted_and_a_grant_of_nothing_as_denied(
    redis: Redis,
) -> None:
    redis.execute_command("RL.FIXED", "k", 1, "1h", "COST", 5, "FORCE")
    redis.execute_command("RL.FIXED", "k", 1, "1h", "COST", 5, "UPTO")
    assert counts(redis, "rl.fixed") == {"calls": 2, "admitted": 1, "denied": 1}


# Calls of cost 0 that do not pass.
DENIED_PEEKS = {
    "above the limit": "RL.FIXED k 4 1h COST 0",
    "KEEP": "RL.FIXED k 10 1h COST 0 KEEP 8",
    "KEEP above the limit": "RL.FIXED k 10 1h COST 0 KEEP 11",
    "a named limit": "RL.TAKE k COST 0 KEEP 8 FIXED 10 1h AS a",
    "several limits": "RL.TAKE k COST 0 FIXED 4 1h FIXED 10 1d",
    "several keys": "RL.MTAKE 2 k other COST 0 FIXED 4 1h FIXED 10 1h",
    "a cost for each key": "RL.MTAKE 2 k other FIXED 4 1h COST 0 FIXED 10 1h COST 0 KEEP 11",
    "RL.THROTTLE": "RL.THROTTLE bucket 2 1 3600 0",
    "a policy": "RL.LIMIT k plain COST 0",
    "a policy, and KEEP above its limit": "RL.LIMIT k plain COST 0 KEEP 5",
    "a policy of several limits": "RL.LIMIT k several COST 0",
    "several keys and a policy": "RL.MTAKE 2 k other COST 0 POLICY several FIXED 1 1h",
}


@pytest.mark.parametrize("call", DENIED_PEEKS.values(), ids=DENIED_PEEKS)
def test_a_peek_is_never_counted_as_denied(call: str, redis: Redis) -> None:
    for policy in ("plain FIXED 4 1h", "several FIXED 4 1h FIXED 9 1d BAN 1 1h 1h"):
        redis.execute_command("RL.POLICYSET", *policy.split())
    redis.execute_command("RL.FIXED", "k", 10, "1h", "COST", 5)
    redis.execute_command("RL.TAKE k FORCE COST 5 FIXED 10 1h")
    redis.execute_command("RL.TOKENBUCKET", "bucket", 10, 1, "1h", "COST", 10)
    if "AS a" in call:
        redis.execute_command("RL.TAKE k COST 10 FORCE FIXED 4 1h AS a")
    before = stats(redis)
    reply = redis.execute_command(*call.split())
    assert reply[0] == (1 if "THROTTLE" in call else 0), "the peek passes"
    after = stats(redis)
    assert after == before | {"calls": before["calls"] + 1}
    assert not any(counts(redis, kind).get("denied") for kind in KINDS)
    assert redis.execute_command("RL.TOP") == []
    for policy in ("plain", "several"):
        reply = redis.execute_command("RL.POLICYGET", policy)
        fields = dict(zip(reply[::2], reply[1::2], strict=True))["counts"]
        policy_counts = dict(zip(fields[::2], fields[1::2], strict=True))
        expected = {"calls": 1} if policy in call.split() else {}
        assert {name: count for name, count in policy_counts.items() if count} == expected


def test_a_release_counts_as_a_call(redis: Redis) -> None:
    redis.execute_command("RL.RELEASE", "k", "holder")
    assert counts(redis, "rl.release") == {"calls": 1}


def test_wrong_arguments_count_as_errors(redis: Redis) -> None:
    for call in [("RL.TAKE", "k", "NOTHING", 1, "1h"), ("RL.MTAKE", 3, "a", "FIXED", 1, "1h")]:
        with pytest.raises(ResponseError):
            redis.execute_command(*call)
    assert counts(redis, "rl.take") == {"calls": 1, "errors": 1}
    assert counts(redis, "rl.mtake") == {"calls": 1, "errors": 1}


def test_effects_count_where_they_leave_and_where_they_arrive(
    fresh_server: Callable[..., Server],
) -> None:
    primary = fresh_server()
    replica = primary.replica()
    client, follower = (server.client(decode_responses=True) for server in (primary, replica))
    client.execute_command("RL.FIXED", "k", 1, "1h")
    client.execute_command("RL.FIXED", "k", 1, "1h")
    client.execute_command("RL.MTAKE", 2, "a", "b", "FIXED", 2, "1h", "FIXED", 2, "1h")
    replica.wait_for_sync()
    assert stats(client)["effects_propagated"] == 2
    assert stats(client)["effects_applied"] == 0
    assert stats(follower)["effects_applied"] == 2
    # An applied effect counts as no decision.
    assert stats(follower)["keys_made"] == 0
    assert counts(follower, "rl.effect") == {"calls": 2}


def test_cl_throttle_counts_if_enabled(fresh_server: Callable[..., Server]) -> None:
    redis = fresh_server(module_args="cell-compat yes").client(decode_responses=True)
    redis.execute_command("CL.THROTTLE", "k", 0, 1, 60)
    redis.execute_command("CL.THROTTLE", "k", 0, 1, 60)
    assert counts(redis, "cl.throttle") == {"calls": 2, "admitted": 1, "denied": 1}
    assert stats(redis)["calls"] == 2
