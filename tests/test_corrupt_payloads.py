"""A payload that is corrupt, truncated or from a later version is refused. A payload that is
accepted is a state that a command could have made.
"""

import random
from collections.abc import Sequence

import pytest
from redis import Redis, ResponseError

from conftest import Pair
from support.clock import START_US, Clock
from support.payloads import (
    BATCH,
    Field,
    batches,
    changed_bytes,
    changed_fields,
    fields,
    rewritten,
    sealed,
)
from support.restoring import (
    EXPIRY_MS,
    HOUR,
    check_all_usable,
    check_usable,
    is_accepted,
    restore,
)
from support.workload import LIMITERS, Limiter, each_limiter_on_one_server, state

pytestmark = pytest.mark.every_server


def test_dump_with_a_new_checksum_is_accepted(dumps: dict[str, bytes], redis: Redis) -> None:
    for dump in dumps.values():
        for payload in (sealed(dump[:-10], dump), rewritten(dump, fields(dump))):
            assert is_accepted(redis, payload)
            assert redis.dump("restored") == dump
        check_usable(redis)
        assert sealed(dump[:-10], dump) == dump


def test_a_wrong_checksum_or_a_later_version_of_the_format_is_refused(
    dumps: dict[str, bytes], redis: Redis
) -> None:
    for dump in dumps.values():
        version = int.from_bytes(dump[-10:-8], "little")
        endings = [
            later.to_bytes(2, "little") + bytes(8)
            for later in (version + 1, 2 * version, 2**16 - 1)
        ]
        broken = [
            dump[:-1] + bytes([dump[-1] ^ 1]),
            *(sealed(dump[:-10], ending) for ending in endings),
        ]
        for payload in broken:
            with pytest.raises(ResponseError, match="version or checksum"):
                redis.restore("restored", 1000, payload)


def test_every_truncation_is_refused(dumps: dict[str, bytes], redis: Redis) -> None:
    for name, dump in dumps.items():
        body = dump[:-10]
        for length in range(len(body)):
            # The server may read the ten bytes of the version and checksum as the missing fields.
            if is_accepted(redis, sealed(body[:length], dump)):
                assert length >= len(body) - 10, (name, length)
                check_usable(redis)
            with pytest.raises(ResponseError, match="checksum"):
                redis.restore("truncated", 1000, dump[:length])
    assert not redis.exists("truncated")


def test_trailing_data_after_a_payload_is_refused_or_ignored(
    dumps: dict[str, bytes], redis: Redis
) -> None:
    for dump in dumps.values():
        body = dump[:-10]
        for more in [b"\x00", b"\x02\x01\x00", body]:
            if is_accepted(redis, sealed(body + more, dump)):
                assert redis.dump("restored") == dump
        # One more field before the end of the value.
        assert not is_accepted(redis, sealed(body[:-1] + b"\x02\x01\x00", dump))


def test_every_other_version_of_an_encoding_is_refused(
    dumps: dict[str, bytes], redis: Redis
) -> None:
    for dump in dumps.values():
        version = int.from_bytes(dump[2:10], "big") & 1023
        heads = {str(number): rewritten(dump, [], number)[:10] for number in range(1024)}
        assert heads.pop(str(version)) == dump[:10]
        foreign = {name: sealed(head + dump[10:-10], dump) for name, head in heads.items()}
        assert restore(redis, foreign) == []


def mutated(
    rng: random.Random, dumps: Sequence[tuple[bytes, list[Field]]], others: Sequence[Field]
) -> bytes:
    """Changes some fields or bytes of one of the dumps."""
    dump, values = rng.choice(dumps)
    if rng.random() < 0.6:
        return rewritten(dump, changed_fields(rng, values, others))
    # The first byte stays, as others select a type of the server itself.
    return sealed(changed_bytes(rng, dump[:-10], first=1), dump)


@pytest.mark.timeout(1200)
@each_limiter_on_one_server
def test_a_mutated_payload_is_refused_or_makes_a_valid_limiter(
    limiter: Limiter, dumps: dict[str, bytes], pair: Pair, clock: Clock
) -> None:
    primary, replica = pair.primary.client(), pair.replica.client()
    parsed = {name: (dump, fields(dump)) for name, dump in dumps.items()}
    limiter_dumps = [parsed[f"{limiter.name}, {size}"] for size in ("small", "large")]
    others = [field for _, values in parsed.values() for field in values]
    tried = usable = 0
    for rng in batches(limiter.name, len(LIMITERS)):
        primary.flushall()
        payloads = [mutated(rng, limiter_dumps, others) for _ in range(BATCH)]
        expiry = rng.choice((EXPIRY_MS, clock.now // 1000 + 1, 2**60))
        names = {str(name): payload for name, payload in enumerate(payloads)}
        restored = restore(primary, names, expiry)
        tried, usable = tried + len(payloads), usable + len(restored)
        check_all_usable(primary, limiter, restored)
        if restored:
            check_usable(primary, rng.choice(restored))
        # `state` accesses all keys, which deletes expired keys on the replica too.
        stored = state(primary)
        pair.replica.wait_for_sync()
        assert state(replica) == stored
        assert all(key_state.expires_at > 0 for key_state in stored.values())
    print(f"{limiter.name}: {usable} of {tried} mutated payloads were accepted")
    assert 0 < usable < tried


def test_another_kinds_fields_are_refused_or_make_a_valid_limiter(
    dumps: dict[str, bytes], redis: Redis
) -> None:
    for dump in dumps.values():
        for other in dumps.values():
            if is_accepted(redis, sealed(dump[:10] + other[10:-10], dump)):
                check_usable(redis)


def test_a_payload_with_a_huge_count_is_refused_without_allocating(
    dumps: dict[str, bytes], redis: Redis
) -> None:
    before = redis.info("memory")["used_memory"]
    for name in ("SLIDINGLOG", "SLIDING STRICT", "CONCURRENCY", "TOKENBUCKET AS"):
        for count in (2**20, 2**32, 2**63, 2**64 - 1):
            for values in ([count], [START_US, count], [HOUR, START_US, count]):
                assert not is_accepted(redis, rewritten(dumps[f"{name}, small"], values))
    assert redis.info("memory")["used_memory"] < before + 1_000_000
