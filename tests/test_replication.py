"""A replica has the value, expiry and `DEBUG DIGEST-VALUE` of its primary, whatever its own clock
shows.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from redis import ReadOnlyError, Redis

from conftest import Pair
from support import poll
from support.clock import Clock
from support.saving import wait_until_saved
from support.scale import first_on_every_server
from support.server import Server
from support.workload import LIMITERS, Limiter, digests, each_limiter, play, state, steps

pytestmark = pytest.mark.every_server

TOKEN_BUCKET = ("TOKENBUCKET", 10, 10, "1h")


@pytest.mark.parametrize("seed", range(4))
def test_a_replica_has_the_same_bytes_after_any_workload(
    seed: int, pair: Pair, clock: Clock
) -> None:
    primary, replica = pair.primary.client(), pair.replica.client()
    play(steps(seed, 800), clock, primary)
    pair.replica.wait_for_sync()
    stored = state(primary)
    assert len(stored) > 5
    assert state(replica) == stored
    assert digests(replica, stored) == digests(primary, stored)


def test_the_workload_covers_its_cases(redis: Redis, clock: Clock) -> None:
    workload = steps(seed=0, count=4000)
    (replies,) = play(workload, clock, redis)
    covered = set()
    for step, reply in zip(workload, replies, strict=True):
        command, *words = step.command
        if command in {"RL.RELEASE", "RL.BAN"}:
            covered.add((command, reply > 0))
            continue
        allowed = bool(reply[0]) != (command == "RL.THROTTLE")
        words = {word for word in words if isinstance(word, str)}
        covered.add((command, allowed))
        covered |= {(word, allowed) for word in words}
    commands = {words[0] for _, words in workload}
    assert len(commands) == 13
    options = {"STRICT", "ALIGNED", "OFFSET", "UPTO", "FORCE", "MAXWAIT", "KEEP", "NX"}
    options |= {"AS", "ONCE", "SETTLE", "EACH", "BAN"}
    words = commands | options
    assert covered >= {(word, allowed) for word in words for allowed in (True, False)}
    assert any(step.move < 0 for step in workload)
    assert {stored.type for stored in state(redis).values()} == {
        limiter.type for limiter in LIMITERS
    }


def test_a_replica_of_a_replica_has_the_same_bytes(
    fresh_server: Callable[..., Server], clock: Clock
) -> None:
    primary = fresh_server()
    replica = primary.replica()
    second = replica.replica()
    play(steps(seed=10, count=600), clock, primary.client())
    replica.wait_for_sync()
    second.wait_for_sync()
    stored = state(primary.client())
    assert len(stored) > 5
    assert state(replica.client()) == stored
    assert state(second.client()) == stored


@pytest.mark.parametrize("skew", first_on_every_server(["-1d", "-3s", "3s", "1d"]))
def test_a_replica_whose_clock_is_wrong_has_the_same_bytes(
    skew: str, fresh_server: Callable[..., Server], clock: Clock, tmp_path: Path
) -> None:
    primary = fresh_server()
    wrong_clock = Clock(clock.library, tmp_path / "clock")
    wrong_clock.advance(skew)
    replica = primary.replica(clock=wrong_clock)
    second = replica.replica(clock=clock)
    play(steps(seed=11, count=500), clock, primary.client())
    replica.wait_for_sync()
    second.wait_for_sync()
    # A replica whose clock is ahead hides expired keys, but keeps them until the primary deletes
    # them.
    wrong_clock.set(clock.now)
    stored = state(primary.client())
    assert len(stored) > 5
    assert state(replica.client()) == stored
    assert state(second.client()) == stored


@pytest.mark.parametrize("listeners", ["replica", "AOF", "replica and AOF"])
def test_a_listener_that_starts_during_a_workload_misses_nothing(
    listeners: str, fresh_server: Callable[..., Server], clock: Clock
) -> None:
    primary = fresh_server(appendfsync="always")
    client = primary.client()
    play(steps(seed=12, count=400), clock, client)
    if "AOF" in listeners:
        client.config_set("appendonly", "yes")
    replica = None
    if "replica" in listeners:
        # The next calls are made while the primary creates and sends the snapshot.
        replica = fresh_server()
        replica.follow(primary)
    workload = steps(seed=13, count=800)
    play(workload, clock, client)
    stored = state(client)
    assert len(stored) > 5
    if replica is not None:
        replica.wait_for_sync()
        assert state(replica.client()) == stored
    if "AOF" in listeners:
        wait_until_saved(client)
        client.config_rewrite()
        primary.restart("kill")
        assert state(client) == stored


def test_a_replica_that_is_attached_and_detached_under_load_has_the_same_bytes(
    fresh_server: Callable[..., Server], clock: Clock
) -> None:
    primary, replica = fresh_server(), fresh_server()
    client, follower = primary.client(), replica.client()
    for seed in range(20, 26):
        replica.follow(primary)
        play(steps(seed, 250), clock, client)
        replica.wait_for_sync()
        assert state(follower) == state(client)
        replica.follow(None)
        play(steps(seed + 100, 50), clock, client)


def break_link(pair: Pair) -> None:
    with pair.primary.client() as primary:
        primary.client_kill_filter(_type="replica")


def break_link_and_forget_history(pair: Pair) -> None:
    with pair.primary.client() as primary:
        primary.execute_command("DEBUG", "CHANGE-REPL-ID")
    break_link(pair)


def restart_replica(pair: Pair) -> None:
    pair.replica.restart("nosave")


@pytest.mark.parametrize(
    ("interrupt", "counter"),
    [
        pytest.param(break_link, "sync_partial_ok", id="partial resync"),
        pytest.param(break_link_and_forget_history, "sync_full", id="full resync"),
        pytest.param(restart_replica, None, id="restart"),
    ],
)
def test_a_replica_that_was_away_catches_up(
    interrupt: Callable[[Pair], None], counter: str | None, pair: Pair, clock: Clock
) -> None:
    primary, replica = pair.primary.client(), pair.replica.client()
    for seed in range(30, 33):
        play(steps(seed, 200), clock, primary)
        before = primary.info("stats")
        interrupt(pair)
        play(steps(seed + 100, 200), clock, primary)
        pair.replica.wait_for_sync()
        if counter:
            assert primary.info("stats")[counter] > before[counter]
        assert state(replica) == state(primary)


def test_replicas_follow_a_primary_that_restarted(
    fresh_server: Callable[..., Server], clock: Clock
) -> None:
    primary = fresh_server()
    replica = primary.replica()
    client, follower = primary.client(), replica.client()
    for seed in range(40, 43):
        play(steps(seed, 200), clock, client)
        # The primary restarts from its snapshot, and the replica may continue without a full sync.
        primary.restart("save")
        play(steps(seed + 100, 200), clock, client)
        replica.wait_for_sync()
        assert state(follower) == state(client)


def test_aof_that_is_disabled_and_enabled_is_complete(
    fresh_server: Callable[..., Server], clock: Clock
) -> None:
    server = fresh_server(appendfsync="always")
    client = server.client()
    for seed in range(50, 53):
        client.config_set("appendonly", "yes")
        play(steps(seed, 200), clock, client)
        wait_until_saved(client)
        stored = state(client)
        client.execute_command("DEBUG", "LOADAOF")
        assert state(client) == stored
        client.config_set("appendonly", "no")
        play(steps(seed + 100, 200), clock, client)


def test_promoted_replica_continues_with_the_same_usage(
    fresh_server: Callable[..., Server], clock: Clock
) -> None:
    primary = fresh_server()
    replica = primary.replica()
    old, new = primary.client(), replica.client()
    play(steps(seed=14, count=400), clock, old)
    replica.wait_for_sync()
    new.replicaof("NO", "ONE")
    replies, expected = play(steps(seed=15, count=400), clock, new, old)
    assert replies == expected
    assert state(new) == state(old)


def test_a_primary_that_is_demoted_follows_the_new_one(
    fresh_server: Callable[..., Server], clock: Clock
) -> None:
    first = fresh_server()
    second = first.replica()
    play(steps(seed=16, count=300), clock, first.client())
    second.wait_for_sync()
    second.follow(None)
    first.follow(second)
    play(steps(seed=17, count=600), clock, second.client())
    first.wait_for_sync()
    assert state(first.client()) == state(second.client())


def test_a_replica_drops_a_key_when_its_primary_does(pair: Pair, clock: Clock) -> None:
    primary, replica = pair.primary.client(), pair.replica.client()
    for limiter in LIMITERS:
        primary.execute_command(*limiter.take(limiter.name))
    pair.replica.wait_for_sync()
    assert replica.dbsize() == len(LIMITERS)
    clock.advance("1d")
    poll.until(lambda: primary.dbsize() == 0, "the primary has removed all expired keys")
    pair.replica.wait_for_sync()
    assert replica.dbsize() == 0


@each_limiter
def test_a_replica_answers_peeks_and_refuses_takes(limiter: Limiter, pair: Pair) -> None:
    primary, replica = pair.primary.client(), pair.replica.client()
    primary.execute_command(*limiter.take("k", 7))
    pair.replica.wait_for_sync()
    peek = limiter.for_holder("other").peek("k", 4)
    assert replica.execute_command(*peek) == primary.execute_command(*peek)
    assert replica.execute_command("RL.INFO", "k") == primary.execute_command("RL.INFO", "k")
    several = ("RL.MPEEK", 2, "k", "missing", *limiter.words(4), *TOKEN_BUCKET)
    assert replica.execute_command(*several) == primary.execute_command(*several)
    for call in [limiter.take("k"), limiter.give_back("k"), ("RL.TAKE", "k", *limiter.words())]:
        with pytest.raises(ReadOnlyError):
            replica.execute_command(*call)
    assert state(replica) == state(primary)


def test_charges_on_a_writable_replica_do_not_reach_its_primary(pair: Pair) -> None:
    primary, replica = pair.primary.client(), pair.replica.client()
    primary.execute_command("RL.FIXED", "k", 10, "1h", "COST", 2)
    pair.replica.wait_for_sync()
    replica.config_set("replica-read-only", "no")
    try:
        assert replica.execute_command("RL.FIXED", "k", 10, "1h", "COST", 3)[2] == 5
        primary.execute_command("RL.FIXED", "k", 10, "1h", "COST", 1)
        pair.replica.wait_for_sync()
        assert state(replica) == state(primary)
    finally:
        replica.config_set("replica-read-only", "yes")
