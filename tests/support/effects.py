"""Effects as arguments of RL.EFFECT: a valid effect of each kind, and conversions of plain keys."""

import random
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from redis import Redis, ResponseError

from support.clock import START_US, UNITS_US
from support.payloads import changed_bytes, changed_words
from support.workload import state

EXPIRY_MS = START_US // 1000 + 3_600_000
MAX_USED = 2**63 - 1
MAX_INSTANT = 365_000 * UNITS_US["d"]
MAX_DURATION = 3_650 * UNITS_US["d"]
LATEST_EXPIRY_MS = 1_000_000 * UNITS_US["d"] // 1000

# Effect of every kind on a new key.
VALID = {
    "bucket": f"rl-bucket 1 {EXPIRY_MS} 1000000 {START_US}",
    "window": f"rl-window 1 {EXPIRY_MS} 1000000 {START_US} 0",
    "aligned window": f"rl-window 1 {EXPIRY_MS} 1000000 {START_US} 1",
    "slider": f"rl-slider 1 {EXPIRY_MS} {START_US} 60000000 5 1000000",
    "strict": f"rl-strict 1 {EXPIRY_MS} 60000000 {START_US} 2 0 1000000 60 7",
    "log, changed": f"rl-reqlog 1 {EXPIRY_MS} 1 0 0 0 1 {START_US} 1000000",
    "log, whole": f"rl-reqlog 1 {EXPIRY_MS} 0 2 {START_US} 5 {START_US + 1} 7",
    "leases, changed": (
        f"rl-leases 1 {EXPIRY_MS} 1 0 {START_US} 0 1 2:h1 {START_US + 60_000_000} 1000000"
    ),
    "leases, whole": (
        f"rl-leases 1 {EXPIRY_MS} 0 {START_US} 2"
        f" 1:a {START_US + 60_000_000} 1000000 2:b  {START_US + 60_000_001} 5"
    ),
    "limits, changed": (
        f"rl-limits 1 {EXPIRY_MS} 2 {START_US} 0 1 1 2:id {START_US + 60_000_000} {START_US} 0"
        f" 1 0 2000000 1 5 2 4:part {START_US + 12_000_000} 2000000 {START_US} 0 0"
    ),
    "limits, whole": (
        f"rl-limits 1 {EXPIRY_MS} 0 {START_US} 2 0 2 4:part 0 1 1 2000000 {START_US}"
        f" {START_US + 12_000_000} 1 0 1 0 0 1 1 60000000 0 1 1 1 2000000 {START_US} 0"
        f" {START_US + 60_000_000} 0 1 1 2:id {START_US + 60_000_000} {START_US} 0 1 0 2000000"
        f" 0 0 0 0 1 {START_US} 60000000"
    ),
}
each_valid = pytest.mark.parametrize("effect", VALID.values(), ids=VALID.keys())

# Conversion of each plain kind to a composite key, by a ban for a minute.
PLAIN = {name: effect for name, effect in VALID.items() if not name.startswith("limits")}
BAN = f"2 {START_US} 0 1 0 0 1 {START_US + 60_000_000} 0"
CONVERSIONS = {
    name: f"{effect.split()[0]} convert 1 {EXPIRY_MS + 1} {EXPIRY_MS} {BAN}"
    for name, effect in PLAIN.items()
}
# Conversion by a charge with a name.
CHARGED = (
    f"rl-bucket convert 1 {EXPIRY_MS + 1} {EXPIRY_MS} 2 {START_US} 0 1 0 1"
    f" 1 2 4:part {START_US + 60_000_000} 2000000 {START_US} 0"
)
each_conversion = pytest.mark.parametrize(
    ("stored", "conversion"),
    [*((PLAIN[name], effect) for name, effect in CONVERSIONS.items()), (PLAIN["bucket"], CHARGED)],
    ids=[*CONVERSIONS, "charged"],
)


def apply(redis: Redis, *words: bytes | str) -> None:
    assert redis.execute_command("RL.EFFECT", *words) == b"OK"


def check_refused(redis: Redis, *words: bytes | str, match: str = "^invalid effect$") -> None:
    with pytest.raises(ResponseError, match=match):
        redis.execute_command("RL.EFFECT", *words)


def changed(effect: str, *changes: tuple[int, object]) -> str:
    """Replaces some words of an effect."""
    words = effect.split(" ")
    for index, word in changes:
        words[index] = str(word)
    return " ".join(words)


def mutated(rng: random.Random, effect: str, others: Sequence[str]) -> bytes:
    """Changes a few words or bytes of an effect."""
    if rng.random() < 0.6:
        return changed_words(rng, effect, others).encode()
    return changed_bytes(rng, effect.encode())


class SendResults(NamedTuple):
    """Keys whose effect was accepted, and the error of each key whose effect was rejected."""

    accepted: list[str]
    refused: dict[str, str]


def send(redis: Redis, effects: dict[str, bytes]) -> SendResults:
    """Sends one effect to each key."""
    pipeline = redis.pipeline(transaction=False)
    for name, effect in effects.items():
        pipeline.execute_command("RL.EFFECT", name, effect)
    answers = dict(zip(effects, pipeline.execute(raise_on_error=False), strict=True))
    refused = {
        name: str(answer) for name, answer in answers.items() if isinstance(answer, ResponseError)
    }
    accepted = [name for name, answer in answers.items() if answer == b"OK"]
    assert len(accepted) + len(refused) == len(effects)
    return SendResults(accepted, refused)


def check_all_valid(redis: Redis, names: list[str]) -> None:
    """Checks many keys like `check_valid`, in few round trips."""
    stored = state(redis)
    created = [name for name in names if name.encode() in stored]
    pipeline = redis.pipeline(transaction=False)
    for name in created:
        assert stored[name.encode()].expires_at > 0
        pipeline.restore(
            "restored", EXPIRY_MS, stored[name.encode()].dump, replace=True, absttl=True
        )
        pipeline.dump("restored").execute_command("RL.INFO", name)
    answers = iter(pipeline.execute())
    for name, _, dump, info in zip(created, answers, answers, answers, strict=True):
        assert dump == stored[name.encode()].dump
        assert info
    redis.delete("restored")


def check_valid(redis: Redis, key: str) -> None:
    """Checks that a key has a TTL and can be dumped and restored, unless it has expired."""
    dump = redis.dump(key)
    if dump is None:
        return
    assert redis.pttl(key) >= 0
    assert redis.execute_command("RL.INFO", key)
    redis.restore("restored", 0, dump, replace=True)
    assert redis.dump("restored") == dump
