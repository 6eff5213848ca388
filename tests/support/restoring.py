"""Keys that are dumped, changed and restored, and checks that accepted keys are usable."""

import pytest
from redis import Redis, ResponseError

from support.clock import START_US, UNITS_US, Clock
from support.workload import HOLDERS, LIMITERS, Limiter, state

HOUR = UNITS_US["h"]
UNIT = 1_000_000
# Expiry of restored keys. It is absolute, because Redis 6.2 propagates a relative expiry unchanged.
EXPIRY_MS = (START_US + 24 * HOUR) // 1000
MAX_USED = 2**63 - 1
MAX_INSTANT = 365_000 * UNITS_US["d"]
MAX_DURATION = 3_650 * UNITS_US["d"]


def is_accepted(redis: Redis, payload: bytes, key: str = "restored") -> bool:
    """Restores a payload. Returns `False` if the server rejects it as malformed."""
    try:
        redis.restore(key, EXPIRY_MS, payload, replace=True, absttl=True)
    except ResponseError as error:
        if str(error) != "Bad data format":
            raise
        return False
    return True


def check_usable(redis: Redis, key: str = "restored") -> None:
    """Checks that every command works on a restored key, and that the result can be restored
    again.
    """
    restored = redis.dump(key)
    assert is_accepted(redis, restored, "again")
    assert redis.dump("again") == restored
    assert redis.execute_command("RL.INFO", key)
    kind = redis.type(key)
    # The limiter with a name is last, because it converts a bucket to a composite key.
    for limiter in sorted(LIMITERS, key=lambda limiter: limiter.type == b"rl-limits"):
        if not serves(kind, limiter):
            with pytest.raises(ResponseError, match="WRONGTYPE"):
                redis.execute_command(*limiter.take(key))
            continue
        calls = [
            limiter.peek(key),
            limiter.take(key, 1),
            limiter.for_holder("another").take(key, 3),
            limiter.give_back(key),
            limiter.for_holder("a third").take(key, 1),
        ]
        if not limiter.has_leases:
            calls[3:3] = [limiter.take(key, 2, "FORCE"), limiter.take(key, "-1")]
        for call in calls:
            redis.execute_command(*call)
            dumped = redis.dump(key)
            assert dumped is None or is_accepted(redis, dumped, "again")
        assert redis.pttl(key) > 0


def serves(kind: bytes, limiter: Limiter) -> bool:
    """Returns `True` if a key of a type serves a limiter. A composite key serves all limiters. A
    bucket serves a limiter with a name, and is converted.
    """
    if limiter.type == b"rl-limits":
        return kind in {b"rl-bucket", b"rl-limits"}
    return kind in {limiter.type, b"rl-limits"}


# Arguments of an RL.TAKE after which a key has a component of every kind and an idempotency key.
ALL_COMPONENTS = [
    *("COST", 2, "ONCE", "first", "1h", "FIXED", 10, "1h", "TOKENBUCKET", 10, 10, "1h"),
    *("SLIDING", 10, "1h", "SLIDING", 10, "1h", "STRICT", "SLIDINGLOG", 10, "1h"),
    *("CONCURRENCY", 10, "1h", "holder"),
]


@pytest.fixture
def dumps(redis: Redis, clock: Clock) -> dict[str, bytes]:
    """Returns two dumps of every limiter: with little usage and with much."""
    for limiter in LIMITERS:
        redis.execute_command(*limiter.take(f"{limiter.name}, small"))
    for holder in [*HOLDERS, "b", "c"]:
        for limiter in LIMITERS:
            redis.execute_command(
                *limiter.for_holder(holder).take(f"{limiter.name}, large", "1.000001")
            )
        clock.advance("30s")
    composite_key = "TOKENBUCKET AS, large"
    assert redis.execute_command("RL.TAKE", composite_key, *ALL_COMPONENTS)[0] == 1
    # A strike, and a ban.
    redis.execute_command("RL.TAKE", composite_key, "FIXED", 1, "1h", "BAN", 3, "1h", "1h")
    assert redis.execute_command("RL.BAN", composite_key, "1s") == 1000
    found = {name.decode(): dumped.dump for name, dumped in state(redis).items()}
    assert len(found) == 2 * len(LIMITERS)
    return found


def restore(redis: Redis, payloads: dict[str, bytes], expiry: int = EXPIRY_MS) -> list[str]:
    """Restores payloads. Returns the names of accepted payloads; others must be malformed."""
    pipeline = redis.pipeline(transaction=False)
    for name, payload in payloads.items():
        pipeline.restore(name, expiry, payload, absttl=True)
    answers = pipeline.execute(raise_on_error=False)
    refused = {str(answer) for answer in answers if isinstance(answer, ResponseError)}
    assert refused <= {"Bad data format"}
    return [name for name, answer in zip(payloads, answers, strict=True) if answer == b"OK"]


def check_all_usable(redis: Redis, limiter: Limiter, names: list[str]) -> None:
    """Checks many keys in few round trips: they can be restored, and a call works."""
    pipeline = redis.pipeline(transaction=False)
    for name in names:
        pipeline.dump(name)
    dumped = {f"{name}, again": dump for name, dump in zip(names, pipeline.execute(), strict=True)}
    assert restore(redis, dumped) == list(dumped)
    for name in dumped:
        pipeline.dump(name)
    assert pipeline.execute() == list(dumped.values())
    for name in names:
        pipeline.execute_command(*limiter.for_holder("another").take(name, "1.5"))
    assert all(len(answer) == 5 for answer in pipeline.execute())
