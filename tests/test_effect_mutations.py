"""`RL.EFFECT` refuses a mutated effect, or makes a valid key of it: `make fuzz` tries a million."""

from collections.abc import Callable

import pytest
from redis import Redis

from conftest import Pair
from support.effects import (
    VALID,
    apply,
    check_all_valid,
    each_conversion,
    each_valid,
    mutated,
    send,
)
from support.payloads import BATCH, batches
from support.workload import state

pytestmark = pytest.mark.every_server


@pytest.mark.one_server
@pytest.mark.timeout(1200)
@each_valid
def test_a_mutated_effect_is_an_error_or_makes_a_valid_key(
    effect: str, pair: Pair, primary: Redis, replication_offset: Callable[[], int]
) -> None:
    replica = pair.replica.client()
    others = [word for valid in VALID.values() for word in valid.split(" ")]
    tried = accepted = 0
    for rng in batches(effect, len(VALID)):
        primary.flushall()
        # Every second key already has the state that the unchanged effect creates.
        effects = {str(name): mutated(rng, effect, others) for name in range(BATCH)}
        stored = send(primary, dict.fromkeys(list(effects)[::2], effect.encode()))
        assert not stored.refused
        outcome = send(primary, effects)
        # Expired keys are removed first, so that their deletion is not propagated among the
        # effects.
        primary.exists(*effects)
        assert all(
            text == "invalid effect" or (text.startswith("WRONGTYPE") and name in stored.accepted)
            for name, text in outcome.refused.items()
        )
        check_all_valid(primary, outcome.accepted)
        # Refused effects are refused again, and propagate nothing.
        before = state(primary), replication_offset()
        assert send(primary, {name: effects[name] for name in outcome.refused}) == (
            [],
            outcome.refused,
        )
        assert (state(primary), replication_offset()) == before
        apply(primary, "expected", effect)
        expected = state(primary)[b"expected"]
        for name in outcome.refused:
            assert before[0].get(name.encode()) == (expected if name in stored.accepted else None)
        pair.replica.wait_for_sync()
        assert state(replica) == state(primary)
        tried, accepted = tried + len(effects), accepted + len(outcome.accepted)
    print(f"{effect}: {accepted} of {tried} mutated effects were accepted")
    assert 0 < accepted < tried


@pytest.mark.one_server
@pytest.mark.timeout(1200)
@each_conversion
def test_a_mutated_conversion_is_an_error_or_makes_a_valid_key(
    stored: str, conversion: str, pair: Pair, primary: Redis, replication_offset: Callable[[], int]
) -> None:
    others = [word for valid in (*VALID.values(), conversion) for word in valid.split(" ")]
    tried = accepted = 0
    for rng in batches(conversion, len(VALID)):
        primary.flushall()
        effects = {str(name): mutated(rng, conversion, others) for name in range(BATCH)}
        assert not send(primary, dict.fromkeys(effects, stored.encode())).refused
        apply(primary, "expected", stored)
        expected = state(primary)[b"expected"]
        outcome = send(primary, effects)
        primary.exists(*effects)
        check_all_valid(primary, outcome.accepted)
        before = state(primary), replication_offset()
        assert all(before[0][name.encode()] == expected for name in outcome.refused)
        assert send(primary, {name: effects[name] for name in outcome.refused}).accepted == []
        assert (state(primary), replication_offset()) == before
        pair.replica.wait_for_sync()
        assert state(pair.replica.client()) == state(primary)
        tried, accepted = tried + len(effects), accepted + len(outcome.accepted)
    print(f"{conversion}: {accepted} of {tried} mutated effects were accepted")
    assert 0 < accepted < tried
