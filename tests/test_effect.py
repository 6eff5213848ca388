"""`RL.EFFECT` makes no key without a TTL and no state that no command could have made."""

from collections.abc import Callable

import pytest
from redis import OutOfMemoryError, ReadOnlyError, Redis, ResponseError, WatchError

from conftest import Pair
from support.clock import START_US, Clock
from support.effects import (
    EXPIRY_MS,
    LATEST_EXPIRY_MS,
    VALID,
    apply,
    changed,
    check_refused,
    each_valid,
)
from support.server import Server
from support.workload import LIMITERS, play, state, steps, written_commands

pytestmark = pytest.mark.every_server


def test_effects_of_a_workload_create_the_same_keys_on_another_server(
    fresh_server: Callable[..., Server], clock: Clock
) -> None:
    source = fresh_server(appendonly="yes", appendfsync="always")
    target = fresh_server()
    play(steps(seed=50, count=800), clock, source.client())
    now = clock.now
    # Effects are absolute, so the time does not matter as long as nothing has expired.
    clock.set(START_US // 2)
    client = target.client()
    commands = written_commands(source)
    assert len(commands) > 300
    kinds = {words[2].split()[0] for words in commands if words[0].upper() == b"RL.EFFECT"}
    assert kinds == {limiter.type for limiter in LIMITERS}
    for words in commands:
        client.execute_command(*words)
    clock.set(now)
    assert state(client) == state(source.client())


@each_valid
def test_valid_effect_creates_a_usable_key(
    effect: str, primary: Redis, pair: Pair, clock: Clock
) -> None:
    apply(primary, "k", effect)
    stored = state(primary)[b"k"]
    assert stored.type == effect.split(maxsplit=1)[0].encode()
    assert stored.expires_at == EXPIRY_MS
    pair.replica.wait_for_sync()
    assert state(pair.replica.client()) == state(primary)
    (limiter, *_) = [limiter for limiter in LIMITERS if limiter.type == stored.type]
    clock.advance(1)
    assert primary.execute_command(*limiter.peek("k"))[0] == 1
    assert primary.execute_command(*limiter.take("k"))[0] == 1
    primary.restore("copy", 0, stored.dump)


@pytest.mark.parametrize("kind", sorted({effect.split()[0] for effect in VALID.values()}))
def test_a_deletion_deletes_the_key(kind: str, primary: Redis, pair: Pair) -> None:
    (effect, *_) = [effect for effect in VALID.values() if effect.startswith(kind)]
    apply(primary, "k", effect)
    apply(primary, "k", f"{kind} del")
    # A missing key is no error, as a replica may have lost it.
    apply(primary, "k", f"{kind} del")
    assert not primary.exists("k")
    pair.replica.wait_for_sync()
    assert state(pair.replica.client()) == {}


def test_a_change_is_applied_to_the_existing_state(primary: Redis) -> None:
    apply(primary, "k", VALID["log, whole"])
    # 1 microsecond back; the oldest entry is removed; 3 of 7 millionths are given back; 9 are
    # added.
    apply(primary, "k", f"rl-reqlog 1 {EXPIRY_MS} 1 1 1 3 1 {START_US + 5} 9")
    apply(primary, "expected", f"rl-reqlog 1 {EXPIRY_MS} 0 2 {START_US} 4 {START_US + 5} 9")
    assert primary.dump("k") == primary.dump("expected")
    apply(primary, "l", VALID["leases, whole"])
    # One unit is given back, then another charge comes.
    apply(primary, "l", f"rl-leases 1 {EXPIRY_MS} 1 0 {START_US + 1} 1 1:a 0")
    apply(primary, "l", f"rl-leases 1 {EXPIRY_MS} 1 0 {START_US + 2} 0 1 1:c {START_US + 9} 3")
    apply(
        primary,
        "also expected",
        f"rl-leases 1 {EXPIRY_MS} 0 {START_US + 2} 2"
        f" 1:c {START_US + 9} 3 2:b  {START_US + 60_000_001} 5",
    )
    assert primary.dump("l") == primary.dump("also expected")


def test_change_of_another_form_is_refused(primary: Redis) -> None:
    apply(primary, "k", VALID["limits, changed"])
    for form in (1, 3):
        check_refused(primary, "l", changed(VALID["limits, changed"], (3, form)))


def test_a_change_that_leaves_no_usage_deletes_the_key(primary: Redis) -> None:
    apply(primary, "k", VALID["log, whole"])
    apply(primary, "k", f"rl-reqlog 1 {EXPIRY_MS} 1 0 2 0 0")
    apply(primary, "l", VALID["leases, changed"])
    apply(primary, "l", f"rl-leases 1 {EXPIRY_MS} 1 0 {START_US} 1 2:h1 0")
    # An effect that adds nothing to a missing key creates no key either.
    apply(primary, "m", f"rl-reqlog 1 {EXPIRY_MS} 1 0 0 0 0")
    assert primary.dbsize() == 0


@each_valid
def test_a_key_that_expired_long_ago_is_gone_at_once(effect: str, primary: Redis) -> None:
    apply(primary, "k", changed(effect, (2, 1)))
    assert not primary.exists("k")


@each_valid
@pytest.mark.parametrize("expiry", [LATEST_EXPIRY_MS, "max"])
def test_the_latest_expiry_is_accepted(expiry: int | str, effect: str, primary: Redis) -> None:
    apply(primary, "k", changed(effect, (2, expiry)))
    assert state(primary)[b"k"].expires_at == LATEST_EXPIRY_MS


def test_several_effects_are_applied_and_propagated_together(
    fresh_server: Callable[..., Server],
) -> None:
    server = fresh_server(appendonly="yes", appendfsync="always")
    client = server.client()
    words = [word for name, effect in VALID.items() for word in (name, effect)]
    apply(client, *words)
    assert written_commands(server) == [(b"RL.EFFECT", *(word.encode() for word in words))]
    stored = state(client)
    assert len(stored) == len(VALID)
    server.restart("kill")
    assert state(client) == stored


def test_effects_apply_when_memory_is_full(fresh_server: Callable[..., Server]) -> None:
    client = fresh_server().client()
    client.config_set("maxmemory", 1)
    with pytest.raises(OutOfMemoryError):
        client.set("string", "x")
    for name, effect in VALID.items():
        apply(client, name, effect)
    client.config_set("maxmemory", 0)
    assert client.dbsize() == len(VALID)


def test_effects_apply_in_transactions_and_scripts(pair: Pair, primary: Redis) -> None:
    with primary.pipeline(transaction=True) as pipeline:
        for name, effect in VALID.items():
            pipeline.execute_command("RL.EFFECT", name, effect)
        assert pipeline.execute() == [b"OK"] * len(VALID)
    script = "return redis.call('RL.EFFECT', KEYS[1], ARGV[1])"
    for name, effect in VALID.items():
        assert primary.eval(script, 1, f"{name}, by script", effect) == b"OK"
        with pytest.raises(ResponseError, match="invalid effect"):
            primary.eval(script, 1, "k", effect + " ")
    stored = state(primary)
    for name in VALID:
        assert stored[name.encode()] == stored[f"{name}, by script".encode()]
    assert len(stored) == 2 * len(VALID)
    pair.replica.wait_for_sync()
    assert state(pair.replica.client()) == stored


@each_valid
def test_a_replica_applies_only_its_primarys_effects(effect: str, pair: Pair) -> None:
    replica = pair.replica.client()
    with pytest.raises(ReadOnlyError):
        replica.execute_command("RL.EFFECT", "k", effect)
    assert replica.dbsize() == 0


@each_valid
def test_an_effect_aborts_transactions_that_watch_the_key(effect: str, server: Server) -> None:
    watcher, caller = server.client(), server.client()
    with watcher.pipeline() as pipeline:
        pipeline.watch("k")
        apply(caller, "k", effect)
        pipeline.multi()
        pipeline.ping()
        with pytest.raises(WatchError):
            pipeline.execute()
