"""RL.MTAKE and RL.MPEEK on the wire: errors, propagation, ACLs and cluster slots."""

from collections.abc import Callable

import pytest
from redis import Redis, ResponseError

from support import poll
from support.clock import Clock
from support.multi_calls import SPECS, mpeek, mtake, multi, replication_offset, state_of, take
from support.server import Server
from support.workload import written_commands

ALGORITHMS = "TOKENBUCKET, LEAKYBUCKET, FIXED, SLIDING, SLIDINGLOG, CONCURRENCY or SKETCH"
NUMKEYS = "ERR numkeys must be the number of keys and of specs, such as 2 for two of each"


def unexpected(word: str, rest: str) -> str:
    return f"ERR syntax error, unexpected '{word}'{rest}"


def no_first_spec(word: str) -> str:
    options = "COST, FORCE, MAXWAIT, KEEP, ONCE or SETTLE"
    needed = f", where an option, POLICY or an algorithm is needed: {options}; {ALGORITHMS}"
    return unexpected(word, f"{needed}; numkeys must be the number of keys")


def no_next_spec(word: str) -> str:
    options = "COST, UPTO, FORCE, KEEP, AS, ALIGNED, OFFSET, ANCHOR, ONCE or SETTLE"
    needed = "where an option of the spec before, POLICY or an algorithm is needed"
    return unexpected(word, f", {needed}: {options}; {ALGORITHMS}")


def after_last_spec(word: str) -> str:
    hint = " after the last spec; numkeys must be the number of keys and of specs"
    return unexpected(word, hint)


@pytest.mark.parametrize("command", ["RL.MTAKE", "RL.MPEEK"])
@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("9 a b FIXED 5 60 FIXED 5 60", f"{NUMKEYS}, not '9'"),
        ("1 a b FIXED 5 60 FIXED 5 60", no_first_spec("b")),
        ("2 a b FIXED 5 60", f"{NUMKEYS} (there are specs for 1 of 2 keys)"),
        ("1 a FIXED 5 60 FIXED 5 60", after_last_spec("FIXED")),
        (
            "2 a b FIXED 5 60 TOKENBUKET 5 5 60",
            f"{no_next_spec('TOKENBUKET')}; did you mean TOKENBUCKET?",
        ),
        (
            "2 a b FIXED 5 60 UPTO FIXED 5 60",
            unexpected("UPTO", ", since RL.MTAKE and RL.MPEEK take all or nothing"),
        ),
    ],
)
def test_error_names_an_invalid_numkeys_or_algorithm(
    redis: Redis, command: str, words: str, error: str
) -> None:
    with pytest.raises(ResponseError) as raised:
        redis.execute_command(command, *words.split())
    # The client strips ERR.
    assert str(raised.value) == error.removeprefix("ERR ")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("2 a a FIXED 5 60 FIXED 5 60", "ERR keys must be different from each other"),
        ("2 a b FIXED 5 60 FIXED 5 60 UPTO", "ERR syntax error, unexpected 'UPTO'"),
        ("0 a FIXED 5 60 FIXED 5 60", "ERR numkeys must be"),
        ("2 a b FIXED 5 60 FIXED 5", "ERR window is missing: FIXED limit window"),
        ("2 a b FIXED 5 60 FIXED 5 60 extra", "ERR syntax error, unexpected 'extra'"),
        ("2 a b FIXED 5 60 FIXED 5 0", "ERR window must be"),
        ("2 a b FIXED 5 60 FIXED 5 60 COST -1 FORCE", "ERR cost must be"),
        ("2 a text FIXED 5 60 FIXED 5 60", "WRONGTYPE"),
        ("2 a bucket FIXED 5 60 FIXED 5 60", "WRONGTYPE"),
        ("2 a", "ERR wrong number of arguments"),
        ("", "ERR wrong number of arguments"),
    ],
)
@pytest.mark.parametrize("command", ["RL.MTAKE", "RL.MPEEK"])
def test_invalid_call_is_an_error_and_writes_nothing(
    pair: tuple[Server, Server], command: str, words: str, error: str
) -> None:
    with pair[0].client() as redis:
        redis.set("text", "x")
        take(redis, "bucket", "TOKENBUCKET 5 1 60s")
        take(redis, "b", "FIXED 5 60s")
        before = state_of(redis, "a", "b", "bucket"), replication_offset(redis)
        with pytest.raises(ResponseError) as raised:
            redis.execute_command(command, *words.split())
        # The client strips ERR.
        assert str(raised.value).startswith(error.removeprefix("ERR "))
        assert (state_of(redis, "a", "b", "bucket"), replication_offset(redis)) == before


def test_mpeek_writes_nothing(pair: tuple[Server, Server]) -> None:
    with pair[0].client() as redis, pair[1].client() as replica:
        take(redis, "a", "FIXED 5 60s")
        before = state_of(redis, "a", "b"), replication_offset(redis)
        reply = [1, 0, [[1, 5, 4, 0, 60_000], [1, 3, 3, 0, 0]]]
        specs = {"a": "FIXED 5 60s", "b": "SLIDING 3 1s"}
        assert mpeek(redis, **specs) == reply
        assert (state_of(redis, "a", "b"), replication_offset(redis)) == before
        # A read-only replica answers it too.
        pair[1].wait_for_sync()
        assert mpeek(replica, **specs) == reply
        with pytest.raises(ResponseError, match="read only replica"):
            mtake(replica, **specs)


def test_denied_call_after_the_clock_moved_back_writes_only_the_step(
    redis: Redis, clock: Clock
) -> None:
    take(redis, "a", "FIXED 10 60s COST 4")
    take(redis, "b", "FIXED 10 60s COST 8")
    before = redis.dump("a"), redis.dump("b")
    clock.advance("-1h")
    reply = mtake(redis, a="FIXED 10 60s", b="FIXED 10 60s COST 3")
    assert reply == [0, 60_000, [[1, 10, 6, 0, 60_000], [0, 10, 2, 60_000, 60_000]]]
    after = redis.dump("a"), redis.dump("b")
    assert before[0] != after[0]
    assert before[1] != after[1]
    take(redis, "c", "FIXED 10 60s COST 4")
    assert redis.dump("c") == after[0]


def test_effect_contains_all_keys_of_a_call(fresh_server: Callable[..., Server]) -> None:
    server = fresh_server(appendonly="yes", appendfsync="no")
    redis = server.client()
    take(redis, "given-back", "FIXED 5 60s")
    before = len(written_commands(server))
    specs = {name.replace(" ", "-"): spec for name, spec in SPECS.items()}
    keys = {**specs, "forced": "FIXED 1 60s COST 3 FORCE", "given-back": "FIXED 5 60s COST -1"}
    assert multi(redis, "RL.MTAKE", {**keys, "looked-at": "FIXED 5 60s COST 0"})[0] == 1
    (effect,) = written_commands(server)[before:]
    assert effect[0] == b"RL.EFFECT"
    assert effect[1::2] == tuple(key.encode() for key in keys)
    dumps = [redis.dump(key) for key in keys]
    server.restart("nosave")
    assert [redis.dump(key) for key in keys] == dumps


def test_a_replica_gets_all_keys_of_a_call_at_once(pair: tuple[Server, Server]) -> None:
    primary_server, replica_server = pair
    specs = {name.replace(" ", "-"): f"{spec} COST 2" for name, spec in SPECS.items()}
    with primary_server.client() as primary, replica_server.client() as replica:
        with replica_server.client().monitor() as commands:
            multi(primary, "RL.MTAKE", specs)
            while not (command := commands.next_command()["command"]).startswith("RL."):
                pass
        assert command.startswith("RL.EFFECT")
        assert all(f" {key} " in command for key in specs)
        replica_server.wait_for_sync()
        assert [replica.dump(key) for key in specs] == [primary.dump(key) for key in specs]


@pytest.mark.parametrize("command", ["RL.MTAKE", "RL.MPEEK"])
@pytest.mark.parametrize(
    ("words", "keys"),
    [
        ("1 a FIXED 5 60", ["a"]),
        ("2 a b FIXED 5 60 TOKENBUCKET 5 1 60 COST 2", ["a", "b"]),
        ("3 FIXED 5 60 FIXED 5 60 FIXED 5 60 FIXED 5 60", ["FIXED", "5", "60"]),
    ],
)
def test_command_getkeys_knows_the_keys(
    redis: Redis, command: str, words: str, keys: list[str]
) -> None:
    found = redis.execute_command("COMMAND GETKEYS", command, *words.split())
    assert [key if isinstance(key, str) else key.decode() for key in found] == keys


@pytest.mark.parametrize("command", ["RL.MTAKE", "RL.MPEEK"])
def test_access_is_checked_for_every_key(fresh_server: Callable[..., Server], command: str) -> None:
    server = fresh_server()
    server.client().execute_command("ACL", "SETUSER", "limited", "on", "nopass", "+@all", "~a:*")
    redis = server.client()
    redis.execute_command("AUTH", "limited", "any")
    specs = ["FIXED", "5", "60", "FIXED", "5", "60"]
    assert redis.execute_command(command, 2, "a:1", "a:2", *specs)[0] == 1
    for keys in (("a:1", "b:2"), ("b:1", "a:2"), ("b:1", "b:2")):
        with pytest.raises(ResponseError, match=r"(?i)permissions"):
            redis.execute_command(command, 2, *keys, *specs)
    assert server.client().keys("b:*") == []


def test_all_keys_of_a_call_in_a_cluster_must_be_in_one_slot(
    fresh_server: Callable[..., Server], clock: Clock
) -> None:
    redis = fresh_server(cluster_enabled="yes").client()
    redis.execute_command("CLUSTER", "ADDSLOTS", *range(16384))

    def is_ok() -> bool:
        # A primary waits two seconds of the wall clock before it serves.
        clock.advance("1s")
        return b"cluster_state:ok" in redis.execute_command("CLUSTER", "INFO")

    poll.until(is_ok, "the cluster is up")
    specs = ["FIXED", "1", "60s", "FIXED", "5", "60s"]
    for command in ("RL.MTAKE", "RL.MPEEK"):
        with pytest.raises(ResponseError, match="same slot"):
            redis.execute_command(command, 2, "user:1", "user:2", *specs)
    tagged = ("{user:1}:minute", "{user:1}:day")
    assert redis.execute_command("RL.MTAKE", 2, *tagged, *specs)[0] == 1
    assert redis.execute_command("RL.MPEEK", 2, *tagged, *specs)[0] == 0
    assert redis.dbsize() == 2
