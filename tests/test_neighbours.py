"""If other modules change or delete any key when they hear of a call or a key, the server survives,
and on Redis 7.0 and later replicas have what it has.

* A load of the module that is refused leaves nothing behind.
- A server crashes if a module deletes a key as it hears that the key is `new`, whichever command
  made the key.
- Redis 6.2 tells replicas of another module's changes inside a call before the changes of the call,
  so a replica may differ.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis import Redis, ResponseError

from conftest import Pair, emptied
from support import poll
from support.binaries import Binary
from support.clock import START_US, Clock
from support.effects import EXPIRY_MS, VALID
from support.server import MODULE, Server
from support.workload import LIMITERS, Limiter, each_limiter, state

pytestmark = pytest.mark.every_server

Start = Callable[..., Server]
BUCKET = ("TOKENBUCKET", 10, 10, "1h")


@pytest.fixture(scope="module")
def shared_pair(neighbour: Path, binary: Binary, shared_clock: Clock) -> Iterator[Pair]:
    """Primary with the neighbour module, and a replica without it."""
    with Server(binary, clock=shared_clock, others=[neighbour]) as primary:
        yield Pair(primary, primary.replica())


@pytest.fixture
def primary(shared_pair: Pair) -> Iterator[Server]:
    with emptied(shared_pair):
        with shared_pair.primary.client() as redis:
            # Replaces the command that an earlier test may have registered by one that never runs.
            redis.execute_command("NEIGHBOUR.ON", "none", "none", "PING")
        yield shared_pair.primary


@pytest.fixture
def redis(primary: Server) -> Redis:
    return primary.client()


@pytest.fixture
def replica(shared_pair: Pair, primary: Server) -> Server:  # noqa: ARG001  empties both
    return shared_pair.replica


@pytest.fixture
def announces_new_keys(primary: Server) -> None:
    if primary.version < (7,):
        pytest.skip("Redis 6.2 has no events for new keys")


def check_replica(primary: Server, replica: Server) -> None:
    """Checks that the replica has its primary's data. Redis 6.2 propagates a neighbour's changes
    before the call's own, so nothing is compared there.
    """
    replica.wait_for_sync()
    replica.check()
    if primary.version >= (7,):
        with primary.client() as writer, replica.client() as reader:
            assert state(reader) == state(writer)


def mtake(redis: Redis, *keys: str, cost: int | str = 1) -> list:
    specs = [word for _ in keys for word in (*BUCKET, "COST", cost)]
    return redis.execute_command("RL.MTAKE", len(keys), *keys, *specs)


@each_limiter
def test_a_module_may_delete_the_key_of_a_call_on_its_event(
    limiter: Limiter, primary: Server, replica: Server, redis: Redis
) -> None:
    for number in range(3):
        redis.execute_command("NEIGHBOUR.ON", "rl.take", "k", "DEL", "k")
        assert redis.execute_command(*limiter.take("k", 4))[:3] == [1, 10, 6], number
        assert not redis.exists("k")
    redis.execute_command(*limiter.take("k", 4))
    redis.execute_command("NEIGHBOUR.ON", "rl.take", "k", "DEL", "k")
    # A charge of an existing key, and a give-back.
    redis.execute_command(*limiter.for_holder("other").take("k", 1))
    redis.execute_command(*limiter.take("k", 4))
    redis.execute_command("NEIGHBOUR.ON", "del", "k", "RL.TAKE", "k", *limiter.words(3))
    redis.execute_command(*limiter.give_back("k"))
    peek = limiter.for_holder("other").peek("k", 1 if limiter.has_leases else 0)
    assert redis.execute_command(*peek)[2] == 7
    check_replica(primary, replica)


@each_limiter
def test_a_module_may_replace_the_key_of_a_call(
    limiter: Limiter, primary: Server, replica: Server, redis: Redis
) -> None:
    redis.execute_command("NEIGHBOUR.ON", "rl.take", "k", "SET", "k", "mine")
    assert redis.execute_command(*limiter.take("k", 4))[:3] == [1, 10, 6]
    assert redis.get("k") == b"mine"
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        redis.execute_command(*limiter.take("k", 4))
    check_replica(primary, replica)


@pytest.mark.parametrize("existing", [(), ("a",), ("b",), ("a", "b", "c")], ids=str)
@pytest.mark.parametrize(
    "action", ["DEL b", "DEL a b c", "SET b mine", "FLUSHALL", "RL.TAKE b FIXED 5 1m"]
)
def test_a_module_may_change_another_key_of_an_mtake(
    action: str, existing: tuple[str, ...], primary: Server, replica: Server, redis: Redis
) -> None:
    # A server crashes if the key that it announces as new is deleted then, also by SET.
    events = ("rl.take",) if {"a", "FLUSHALL"} & set(action.split()) else ("rl.take", "new")
    for event in events:
        redis.flushall()
        for key in existing:
            mtake(redis, key, cost=5)
        redis.execute_command("NEIGHBOUR.ON", event, "a", *action.split())
        allowed, _, decisions = mtake(redis, "a", "b", "c")
        assert allowed == 1
        assert [decision[2] for decision in decisions] == [
            4 if key in existing else 9 for key in "abc"
        ]
        check_replica(primary, replica)


@pytest.mark.parametrize("action", ["DEL a", "DEL a c", "SET a mine", "FLUSHALL"])
@pytest.mark.parametrize("command", ["RL.MTAKE", "RL.MPEEK"])
def test_a_module_may_change_keys_when_a_later_key_has_expired(
    command: str, action: str, primary: Server, replica: Server, redis: Redis, clock: Clock
) -> None:
    # The server's background expiry would find the keys first.
    redis.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", 0)
    keys = ("a", "b", "c")
    mtake(redis, *keys, cost=4)
    redis.pexpire("b", 1000)
    redis.execute_command("NEIGHBOUR.ON", "expired", "b", *action.split())
    clock.advance("2s")
    specs = [word for _ in keys for word in BUCKET]
    if (command, action) == ("RL.MTAKE", "SET a mine"):
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            redis.execute_command(command, 3, *keys, *specs)
    else:
        allowed, _, decisions = redis.execute_command(command, 3, *keys, *specs)
        assert allowed == 1
        # A peek has read "a" before it was deleted.
        expected = [9, 9] if command == "RL.MTAKE" else [6, 10]
        assert [decision[2] for decision in decisions][:2] == expected
    check_replica(primary, replica)


def test_a_key_renamed_to_another_key_of_an_mtake_as_that_expires_is_charged_once(
    primary: Server, replica: Server, redis: Redis, clock: Clock
) -> None:
    redis.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", 0)
    for _ in range(3):
        redis.flushall()
        mtake(redis, "a", "b", cost=4)
        redis.pexpire("b", 1000)
        redis.execute_command("NEIGHBOUR.ON", "expired", "b", "RENAME", "a", "b")
        clock.advance("2s")
        allowed, _, decisions = mtake(redis, "a", "b")
        assert [allowed, *(decision[2] for decision in decisions)] == [1, 9, 5]
        remaining = [redis.execute_command("RL.PEEK", key, *BUCKET)[2] for key in "ab"]
        assert remaining == [9, 5]
        check_replica(primary, replica)


def test_a_key_deleted_as_another_key_of_an_mtake_expires_is_charged_as_new(
    primary: Server,
    replica: Server,
    redis: Redis,
    clock: Clock,
    neighbour: Path,
    fresh_server: Start,
) -> None:
    without_replica = fresh_server(others=[neighbour]).client()
    delete_and_create = ("RL.EFFECT", "a", "rl-bucket del", "b", VALID["bucket"])
    for client in (redis, without_replica):
        client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", 0)
        for _ in range(3):
            client.flushall()
            mtake(client, "a", "b", cost=4)
            client.pexpire("b", 1000)
            client.execute_command("NEIGHBOUR.ON", "expired", "b", *delete_and_create)
            clock.advance("2s")
            specs = [word for _ in "ab" for word in BUCKET]
            allowed, _, decisions = client.execute_command("RL.MTAKE", 2, "a", "b", *specs)
            assert [allowed, *(decision[2] for decision in decisions)] == [1, 9, 8]
            assert [client.execute_command("RL.PEEK", key, *BUCKET)[2] for key in "ab"] == [9, 8]
    check_replica(primary, replica)


@each_limiter
@pytest.mark.usefixtures("announces_new_keys")
@pytest.mark.parametrize("action", ["SET b mine", "RL.TAKE b FIXED 5 1m", "RL.ACQUIRE b 9 1m x"])
def test_a_module_may_create_a_key_that_an_mtake_is_about_to_create(
    action: str, limiter: Limiter, primary: Server, replica: Server, redis: Redis
) -> None:
    redis.execute_command("NEIGHBOUR.ON", "new", "a", *action.split())
    reply = redis.execute_command("RL.MTAKE", 2, "a", "b", *BUCKET, *limiter.words(4))
    assert [reply[0], reply[2][1][2]] == [1, 6]
    # The value of a neighbour is kept, and the call charges it.
    assert redis.execute_command(*limiter.for_holder("other").take("b", 3))[:3] == [1, 10, 3]
    check_replica(primary, replica)


# Calls that turn the plain key "k" into a composite key.
CONVERSIONS = [
    "RL.TAKE k FIXED 10 1h SLIDING 10 1h",
    "RL.BAN k 1m",
    "RL.MTAKE 3 other k third FIXED 10 1h FIXED 10 1h AS name FIXED 10 1h AS name",
]


@pytest.mark.parametrize("event", ["del", "rl.take", "new"])
@pytest.mark.parametrize(
    "action", ["DEL other", "SET k mine", "SET third mine", "RL.TAKE k SLIDING 5 1m", "FLUSHALL"]
)
@pytest.mark.parametrize("call", CONVERSIONS, ids=lambda call: call.split(" ")[0])
def test_a_module_may_change_a_plain_key_as_it_is_converted(
    call: str, action: str, event: str, primary: Server, replica: Server, redis: Redis
) -> None:
    if event == "new" and action in {"SET k mine", "FLUSHALL"}:
        pytest.skip("a server crashes if the key of its `new` event is deleted in the event")
    redis.execute_command("RL.FIXED", "k", 10, "1h")
    redis.execute_command("RL.FIXED", "third", 10, "1h")
    redis.execute_command("NEIGHBOUR.ON", event, "k", *action.split())
    redis.execute_command(*call.split())
    redis.execute_command("RL.PEEK", "other", "FIXED", 10, "1h")
    check_replica(primary, replica)


# Without leases, as RL.MTAKE gives no lease back.
@pytest.mark.usefixtures("announces_new_keys")
@pytest.mark.parametrize(
    "limiter",
    [limiter for limiter in LIMITERS if not limiter.has_leases],
    ids=lambda each: each.name,
)
def test_charges_by_other_modules_during_an_mtake_are_kept(
    limiter: Limiter, primary: Server, replica: Server, redis: Redis
) -> None:
    redis.execute_command(*limiter.take("b", 4))
    redis.execute_command("NEIGHBOUR.ON", "new", "a", "RL.TAKE", "b", *limiter.words(3))
    words = (*BUCKET, *limiter.words("-4"))
    assert redis.execute_command("RL.MTAKE", 2, "a", "b", *words)[0] == 1
    assert redis.execute_command(*limiter.peek("b", 0))[2] == 7
    # The later expiry of a longer window is kept too.
    redis.delete("a")
    longer = [word if word != "1h" else "30d" for word in limiter.words(1)]
    redis.execute_command("NEIGHBOUR.ON", "new", "a", "RL.TAKE", "b", *longer)
    assert redis.execute_command("RL.MTAKE", 2, "a", "b", *BUCKET, *limiter.words(4))[0] == 1
    check_replica(primary, replica)


def test_a_module_may_delete_keys_as_an_effect_is_applied(
    neighbour: Path, fresh_server: Start
) -> None:
    primary = fresh_server()
    replica = primary.replica(others=[neighbour])
    with primary.client() as writer, replica.client() as reader:
        for _ in range(3):
            reader.execute_command("NEIGHBOUR.ON", "rl.take", "a", "DEL", "b")
            mtake(writer, "a", "b", "c")
            replica.wait_for_sync()
    replica.check()


@pytest.mark.parametrize("event", ["del", "new"])
@pytest.mark.parametrize(
    "action",
    [
        "RL.TAKE k COST 2 ONCE id 1m FIXED 10 1h",
        "RL.TAKE k SETTLE first 0 SLIDING 10 1h",
        "RL.RELEASE k me",
        "DEL k",
    ],
)
@pytest.mark.parametrize("words", ["COST 1 ONCE id 1m", "COST -1", "SETTLE first 0"])
def test_an_mtake_corrupts_no_key_changed_during_a_conversion(
    words: str, action: str, event: str, primary: Server, replica: Server, redis: Redis
) -> None:
    if event == "new" and primary.version < (7,):
        pytest.skip("Redis 6.2 has no events for new keys")
    redis.execute_command("RL.FIXED", "plain", 10, "1h")
    redis.execute_command("RL.TAKE k CONCURRENCY 5 1h me FIXED 10 1h SLIDING 10 1h")
    redis.execute_command("RL.TAKE k ONCE first 1h SLIDING 10 1h")
    redis.execute_command("NEIGHBOUR.ON", event, "plain", *action.split())
    limits = "FIXED 10 1h AS name FIXED 10 1h"
    redis.execute_command(*f"RL.MTAKE 2 plain k {words} {limits}".split())
    if redis.exists("k"):
        redis.restore("copy", 0, redis.dump("k"))
        assert redis.dump("copy") == redis.dump("k")
        redis.delete("copy")
    check_replica(primary, replica)


@pytest.mark.usefixtures("announces_new_keys")
@pytest.mark.parametrize("spec", ["FIXED 10 1h AS name", "FIXED 10 1h"], ids=["composite", "plain"])
def test_key_deleted_while_an_mtake_converts_another_is_charged_as_new(
    spec: str, primary: Server, replica: Server, redis: Redis
) -> None:
    redis.execute_command("RL.FIXED", "plain", 10, "1h")
    redis.execute_command("RL.TAKE", "k", *spec.split(), "COST", 5)
    redis.execute_command("NEIGHBOUR.ON", "new", "plain", "DEL", "k")
    limits = "FIXED 10 1h AS name FIXED 10 1h AS name"
    allowed, _, decisions = redis.execute_command("RL.MTAKE", 2, "plain", "k", *limits.split())
    assert [allowed, decisions[1][2]] == [1, 9]
    assert redis.execute_command("RL.PEEK k FIXED 10 1h AS name")[2] == 9
    check_replica(primary, replica)


# Effects on keys that do not exist.
EFFECTS = {
    "bucket": VALID["bucket"],
    **{kind: VALID[f"{kind}, changed"] for kind in ("log", "leases", "limits")},
}


def apply(redis: Redis, *effects: str) -> bool:
    """Returns `True` if the server applied all effects, `False` if it refused them."""
    try:
        return redis.execute_command("RL.EFFECT", *effects) == b"OK"
    except ResponseError as refused:
        if not re.match("invalid effect|WRONGTYPE", str(refused)):
            raise
        return False


@pytest.mark.usefixtures("announces_new_keys")
@pytest.mark.parametrize(
    ("action", "applied_kind"),
    [
        ("SET k mine", None),
        ("RL.TAKE k ONCE id 1m FIXED 5 1m AS part", None),
        ("RL.ACQUIRE k 1000000000000 1m other COST 1000000000000", None),
        ("RL.SLIDINGLOG k 5 1m", "log"),
        ("RL.TOKENBUCKET k 5 5 1m", "bucket"),
    ],
)
@pytest.mark.parametrize("kind", EFFECTS)
def test_an_effect_does_not_corrupt_a_key_replaced_after_its_check(
    kind: str, action: str, applied_kind: str | None, redis: Redis, primary: Server
) -> None:
    redis.execute_command("NEIGHBOUR.ON", "new", "a", *action.split())
    is_applied = apply(redis, "a", EFFECTS["bucket"], "k", EFFECTS[kind])
    assert is_applied == (kind == applied_kind)
    # Effects on unchanged keys are applied.
    assert redis.type("a") == b"rl-bucket"
    # The module can decode the value of the neighbour.
    redis.restore("copy", 0, redis.dump("k"))
    assert redis.dump("copy") == redis.dump("k")
    primary.check()


@pytest.mark.usefixtures("announces_new_keys")
def test_an_effect_is_not_applied_to_a_key_deleted_after_its_check(
    redis: Redis,
) -> None:
    for change in ("1 0 2 0 0", f"1 0 0 0 2 {START_US} 1000000"):
        assert apply(redis, "k", EFFECTS["log"])
        assert apply(redis, "k", f"rl-reqlog 1 {EXPIRY_MS} 1 0 0 0 1 {START_US + 1} 5")
        redis.execute_command("NEIGHBOUR.ON", "new", "a", "DEL", "k")
        assert not apply(redis, "a", EFFECTS["bucket"], "k", f"rl-reqlog 1 {EXPIRY_MS} {change}")
        assert redis.keys() == [b"a"]
        redis.delete("a")


def test_a_load_is_refused_without_side_effects_if_another_module_has_a_command_of_the_name(
    neighbour: Path, fresh_server: Start
) -> None:
    server = fresh_server(module=neighbour, module_args="owner")
    redis = server.client()
    for _ in range(2):
        with pytest.raises(ResponseError):
            redis.execute_command("MODULE", "LOAD", str(MODULE), "cell-compat", "yes")
        assert "the server refuses the command cl.throttle" in server.log()
        # Each of these calls causes a server event to which a loaded module subscribes.
        redis.bgsave()
        poll.until(
            lambda: not redis.info("persistence")["rdb_bgsave_in_progress"],
            "the snapshot is written",
        )
        redis.execute_command("REPLICAOF", "127.0.0.1", "1")
        redis.execute_command("REPLICAOF", "NO", "ONE")
        redis.execute_command("DEBUG", "RELOAD")
        redis.info("everything")
        assert redis.execute_command("CL.THROTTLE") == b"mine"
        with pytest.raises(ResponseError, match="unknown command"):
            redis.execute_command(*LIMITERS[0].take("k"))
    # The arguments of a refused load do not apply to the next one.
    assert redis.execute_command("MODULE", "LOAD", str(MODULE)) == b"OK"
    assert redis.execute_command(*LIMITERS[0].take("k"))[:3] == [1, 10, 9]
    assert redis.execute_command("CL.THROTTLE") == b"mine"
    server.check()
