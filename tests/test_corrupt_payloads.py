"""A payload that no command made is refused, or is a valid limiter; the server lives on."""

import random
from collections.abc import Iterator

import pytest
from redis import Redis, ResponseError

from conftest import Pair
from support.clock import START_US, UNITS_US, Clock
from support.workload import HOLDERS, LIMITERS, Limiter, each_limiter, state

HOUR = UNITS_US["h"]
UNIT = 1_000_000
# Of restored keys. As an instant, since Redis 6.2 passes a length of time on as it is.
EXPIRY_MS = (START_US + 24 * HOUR) // 1000
MAX_USED = 2**63 - 1
MAX_INSTANT = 365_000 * UNITS_US["d"]
MAX_DURATION = 3_650 * UNITS_US["d"]


def crc64(payload: bytes) -> int:
    """CRC-64 as in Jones, the checksum of a DUMP."""
    crc = 0
    for byte in payload:
        crc = CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc


def crc64_table() -> Iterator[int]:
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x95AC9329AC4BC9B5 if crc & 1 else 0)
        yield crc


CRC_TABLE = tuple(crc64_table())


def sealed(body: bytes, dump: bytes) -> bytes:
    """With the RDB version of a real dump, and the right checksum."""
    payload = body + dump[-10:-8]
    return payload + crc64(payload).to_bytes(8, "little")


def rewritten(dump: bytes, fields: list[int | bytes], version: int | None = None) -> bytes:
    """A dump of the same type with other fields."""
    head = bytearray(dump[:10])
    if version is not None:
        # The type's name takes the upper 54 bits, the version of its encoding the lower ten.
        number = int.from_bytes(head[2:], "big")
        head[2:] = (number >> 10 << 10 | version).to_bytes(8, "big")
    body = bytes(head)
    for field in fields:
        if isinstance(field, bytes):
            body += b"\x05\x81" + len(field).to_bytes(8, "big") + field
        else:
            body += b"\x02\x81" + field.to_bytes(8, "big")
    return sealed(body + b"\x00", dump)


def is_accepted(redis: Redis, payload: bytes, key: str = "restored") -> bool:
    try:
        redis.restore(key, EXPIRY_MS, payload, replace=True, absttl=True)
    except ResponseError as error:
        if str(error) != "Bad data format":
            raise
        return False
    return True


def check_usable(redis: Redis, key: str = "restored") -> None:
    """Every command answers on a key that was restored, and leaves what can be restored again."""
    restored = redis.dump(key)
    assert is_accepted(redis, restored, "again")
    assert redis.dump("again") == restored
    assert redis.execute_command("RL.INFO", key)
    kind = redis.type(key)
    for limiter in LIMITERS:
        if kind != limiter.type:
            with pytest.raises(ResponseError, match="WRONGTYPE"):
                redis.execute_command(*limiter.take(key))
            continue
        calls = [
            limiter.peek(key),
            limiter.take(key, 1),
            limiter.by("another").take(key, 3),
            limiter.give_back(key),
            limiter.by("a third").take(key, 1),
        ]
        if not limiter.leases:
            calls[3:3] = [limiter.take(key, 2, "FORCE"), limiter.take(key, "-1")]
        for call in calls:
            redis.execute_command(*call)
            held = redis.dump(key)
            assert held is None or is_accepted(redis, held, "again")
        assert redis.pttl(key) > 0


@pytest.fixture
def dumps(redis: Redis, clock: Clock) -> dict[str, bytes]:
    """Of every limiter, one barely used and one that has seen much."""
    for limiter in LIMITERS:
        redis.execute_command(*limiter.take(f"{limiter.name}, small"))
    for holder in [*HOLDERS, "b", "c"]:
        for limiter in LIMITERS:
            redis.execute_command(*limiter.by(holder).take(f"{limiter.name}, large", "1.000001"))
        clock.advance("30s")
    found = {name.decode(): held.dump for name, held in state(redis).items()}
    assert len(found) == 2 * len(LIMITERS)
    return found


def test_a_dump_that_is_sealed_anew_is_accepted(dumps: dict[str, bytes], redis: Redis) -> None:
    for dump in dumps.values():
        assert sealed(dump[:-10], dump) == dump
        assert is_accepted(redis, dump)
        assert redis.dump("restored") == dump
        check_usable(redis)


def test_a_wrong_checksum_is_refused(dumps: dict[str, bytes], redis: Redis) -> None:
    for dump in dumps.values():
        broken = dump[:-1] + bytes([dump[-1] ^ 1])
        with pytest.raises(ResponseError, match="checksum"):
            redis.restore("restored", 1000, broken)


def test_every_truncation_is_refused(dumps: dict[str, bytes], redis: Redis) -> None:
    for name, dump in dumps.items():
        body = dump[:-10]
        for length in range(len(body)):
            # The server reads on into the version and the checksum, ten bytes, and can take them
            # for what is missing.
            if is_accepted(redis, sealed(body[:length], dump)):
                assert length >= len(body) - 10, (name, length)
                check_usable(redis)
            with pytest.raises(ResponseError, match="checksum"):
                redis.restore("truncated", 1000, dump[:length])
    assert not redis.exists("truncated")


def test_what_follows_a_payload_is_refused_or_ignored(
    dumps: dict[str, bytes], redis: Redis
) -> None:
    for dump in dumps.values():
        body = dump[:-10]
        for more in [b"\x00", b"\x02\x01\x00", body]:
            if is_accepted(redis, sealed(body + more, dump)):
                assert redis.dump("restored") == dump
        # One field more, before the end of the value.
        assert not is_accepted(redis, sealed(body[:-1] + b"\x02\x01\x00", dump))


def test_every_other_version_of_an_encoding_is_refused(
    dumps: dict[str, bytes], redis: Redis
) -> None:
    for limiter in LIMITERS:
        dump = dumps[f"{limiter.name}, large"]
        ours = int.from_bytes(dump[2:10], "big") & 1023
        for version in {*range(1024)} - {ours}:
            head = rewritten(dump, [], version)[:10]
            assert not is_accepted(redis, sealed(head + dump[10:-10], dump)), version


@each_limiter
def test_a_random_mutation_is_refused_or_makes_a_valid_limiter(
    limiter: Limiter, dumps: dict[str, bytes], redis: Redis
) -> None:
    chosen = random.Random(limiter.name)
    payloads = [
        sealed(mutation(chosen, dump[:-10]), dump)
        for dump in (dumps[f"{limiter.name}, small"], dumps[f"{limiter.name}, large"])
        for _ in range(300)
    ]
    pipeline = redis.pipeline(transaction=False)
    for number, payload in enumerate(payloads):
        pipeline.restore(f"mutated {number}", EXPIRY_MS, payload, absttl=True)
    answers = pipeline.execute(raise_on_error=False)
    refused = {str(answer) for answer in answers if isinstance(answer, ResponseError)}
    assert refused <= {"Bad data format"}
    accepted = redis.keys("mutated *")
    assert 0 < len(accepted) < len(payloads)
    for key in sorted(accepted)[:60]:
        check_usable(redis, key)


def mutation(chosen: random.Random, body: bytes) -> bytes:
    """One to three bytes after the first changed, at times some left out or put in.

    The first byte says which of the server's own types follows, which is no concern of ours.
    """
    mutated = bytearray(body)
    for _ in range(chosen.choice([1, 1, 2, 3])):
        place = chosen.randrange(1, len(mutated))
        match chosen.randrange(8):
            case 0:
                del mutated[place : place + chosen.randint(1, 12)]
            case 1:
                mutated[place:place] = chosen.randbytes(chosen.randint(1, 12))
            case 2:
                mutated[place] = chosen.choice([0, 1, 2, 5, 0x7F, 0x80, 0x81, 0xFF])
            case _:
                mutated[place] ^= 1 << chosen.randrange(8)
        if len(mutated) < 2:
            return body
    return bytes(mutated)


# By limiter: fields that some command could have stored, and fields that none could have.
STATES: dict[str, tuple[list[list], list[list]]] = {
    "TOKENBUCKET": (
        # used, drained to
        [[1, 0], [UNIT, START_US], [MAX_USED, MAX_INSTANT]],
        [[0, START_US], [MAX_USED + 1, START_US], [UNIT, MAX_INSTANT + 1], [UNIT, 2**64 - 1], []],
    ),
    "FIXED": (
        # used, instant, aligned
        [[1, 0, 0], [MAX_USED, MAX_INSTANT, 1]],
        [
            [0, START_US, 0],
            [MAX_USED + 1, START_US, 0],
            [UNIT, MAX_INSTANT + 1, 0],
            [UNIT, START_US, 2],
            [UNIT, START_US, 2**64 - 1],
        ],
    ),
    "SLIDING": (
        # start, window, previous, current
        [[0, 1, 1, 0], [START_US, HOUR, 0, 1], [MAX_INSTANT, MAX_DURATION, MAX_USED, MAX_USED]],
        [
            [START_US, HOUR, 0, 0],
            [START_US, 0, UNIT, 0],
            [START_US, MAX_DURATION + 1, UNIT, 0],
            [MAX_INSTANT + 1, HOUR, UNIT, 0],
            [START_US, HOUR, MAX_USED + 1, 0],
            [START_US, HOUR, 0, MAX_USED + 1],
        ],
    ),
    "SLIDING STRICT": (
        # window, instant of the last charge, how many slots are in use, of each its age and count
        [
            [HOUR, START_US, 1, 0, UNIT],
            [HOUR, START_US, 3, 0, UNIT, 7, 1, 60, MAX_USED],
            [1, MAX_INSTANT, 1, 0, MAX_USED],
            [MAX_DURATION, 0, 1, 0, 1],
        ],
        [
            [HOUR, START_US, 0],
            [HOUR, START_US, 1, 0, 0],
            [HOUR, START_US, 1, 61, UNIT],
            [HOUR, START_US, 1, 2**64 - 1, UNIT],
            [HOUR, START_US, 2, 5, UNIT, 5, UNIT],
            [HOUR, START_US, 2, 5, UNIT, 4, UNIT],
            [HOUR, START_US, 2, 5, UNIT],
            [HOUR, START_US, 62, *(part for age in range(62) for part in (age, 1))],
            [HOUR, START_US, 2**64 - 1, 0, UNIT],
            [HOUR, START_US, 1, 0, MAX_USED + 1],
            [0, START_US, 1, 0, UNIT],
            [MAX_DURATION + 1, START_US, 1, 0, UNIT],
            [HOUR, MAX_INSTANT + 1, 1, 0, UNIT],
            [HOUR, 2**64 - 1, 1, 0, UNIT],
            # Before the epoch.
            [HOUR, 0, 1, 1, UNIT],
        ],
    ),
    "SLIDINGLOG": (
        # how many entries, then of each its instant and cost
        [[1, 0, 1], [2, START_US, UNIT, START_US + 1, 2], [1, MAX_INSTANT, MAX_USED]],
        [
            [0],
            [1, START_US, 0],
            [2, START_US, UNIT, START_US - 1, UNIT],
            [1, MAX_INSTANT + 1, UNIT],
            [1, START_US, MAX_USED + 1],
            [2, START_US, MAX_USED, START_US + 1, 1],
            [2, START_US, UNIT],
            [1, START_US, UNIT, START_US + 1, UNIT],
            [2**64 - 1, START_US, UNIT],
        ],
    ),
    "CONCURRENCY": (
        # when it was written, how many leases, then of each its holder, its lapse and its units
        [
            [START_US, 1, b"h", START_US + HOUR, UNIT],
            [START_US, 2, bytes(256), START_US + 1, 1, b"h", START_US + MAX_DURATION, UNIT],
        ],
        [
            [START_US, 0],
            [START_US, 1, b"h", START_US + HOUR, 0],
            [START_US, 1, b"h", START_US + HOUR, MAX_USED + 1],
            [START_US, 1, b"", START_US + HOUR, UNIT],
            [START_US, 1, bytes(257), START_US + HOUR, UNIT],
            [START_US, 2, b"h", START_US + HOUR, UNIT, b"h", START_US + HOUR + 1, UNIT],
            [START_US, 2, b"h", START_US + HOUR, UNIT, b"h", START_US + HOUR, UNIT],
            [START_US, 1, b"h", MAX_INSTANT + 1, UNIT],
            [MAX_INSTANT + 1, 1, b"h", START_US + HOUR, UNIT],
            [START_US, 2, b"a", START_US + 1, MAX_USED, b"b", START_US + 1, MAX_USED],
            [START_US, 2**64 - 1, b"h", START_US + HOUR, UNIT],
            [START_US, 1, b"h", START_US + HOUR, UNIT, b"i", START_US + HOUR, UNIT],
            [START_US, 1, 7, START_US + HOUR, UNIT],
            # No lease lasts longer than 3650 days.
            [START_US, 1, b"h", START_US + MAX_DURATION + 1, UNIT],
        ],
    ),
}
ALL_STATES = [
    pytest.param(name, state, accepted, id=f"{name}-{'good' if accepted else 'bad'}{number}")
    for name, (good, bad) in STATES.items()
    for states, accepted in [(good, True), (bad, False)]
    for number, state in enumerate(states)
]


@pytest.mark.parametrize(("name", "fields", "accepted"), ALL_STATES)
def test_only_a_state_that_a_command_could_have_made_is_accepted(
    name: str, fields: list[int | bytes], accepted: bool, dumps: dict[str, bytes], redis: Redis
) -> None:
    payload = rewritten(dumps[f"{name}, small"], fields)
    assert is_accepted(redis, payload) == accepted
    if accepted:
        check_usable(redis)


EXTREMES = {
    "TOKENBUCKET": [MAX_USED, START_US],
    "FIXED": [MAX_USED, START_US, 0],
    "FIXED ALIGNED": [MAX_USED, START_US, 1],
    "SLIDING": [START_US, HOUR, MAX_USED, MAX_USED],
    "SLIDING STRICT": [HOUR, START_US, 2, 0, MAX_USED, 60, MAX_USED],
    "SLIDINGLOG": [2, START_US - 1, MAX_USED - UNIT, START_US, UNIT],
    "CONCURRENCY": [START_US, 2, b"h", START_US + 5, MAX_USED - 9, b"i", START_US + HOUR, 9],
}


@pytest.mark.parametrize(("name", "fields"), EXTREMES.items(), ids=EXTREMES.keys())
def test_an_extreme_state_is_refused_or_replicated_like_any_other(
    name: str, fields: list[int | bytes], pair: Pair, clock: Clock
) -> None:
    primary, replica = pair.primary.client(), pair.replica.client()
    (limiter,) = (limiter for limiter in LIMITERS if limiter.name == name)
    primary.execute_command(*limiter.take("k"))
    payload = rewritten(primary.dump("k"), fields)
    calls = [limiter.take("k", 9), limiter.by("i").take("k"), limiter.by("other").take("k", 9)]
    if not limiter.leases:
        calls += [limiter.take("k", 1, "FORCE"), limiter.take("k", "-1"), limiter.take("k", 8)]
    for number, call in enumerate(calls):
        for seconds in (0, 1):
            clock.reset()
            key = f"{number}, {seconds}"
            if is_accepted(primary, payload, key):
                clock.advance(seconds * UNIT)
                command, _, *words = call
                primary.execute_command(command, key, *words)
    pair.replica.wait_for_sync()
    assert state(replica) == state(primary)


def test_another_kinds_fields_are_refused_or_make_a_valid_limiter(
    dumps: dict[str, bytes], redis: Redis
) -> None:
    for dump in dumps.values():
        for other in dumps.values():
            if is_accepted(redis, sealed(dump[:10] + other[10:-10], dump)):
                check_usable(redis)


def test_a_payload_of_huge_size_on_paper_is_refused_at_once(
    dumps: dict[str, bytes], redis: Redis
) -> None:
    before = redis.info("memory")["used_memory"]
    for name in ("SLIDINGLOG", "SLIDING STRICT", "CONCURRENCY"):
        for count in (2**20, 2**32, 2**63, 2**64 - 1):
            for fields in ([count], [START_US, count], [HOUR, START_US, count]):
                assert not is_accepted(redis, rewritten(dumps[f"{name}, small"], fields))
    assert redis.info("memory")["used_memory"] < before + 1_000_000


def test_a_state_restored_from_the_far_future_locks_nobody_out(
    dumps: dict[str, bytes], redis: Redis
) -> None:
    futures = {
        "TOKENBUCKET": [10 * UNIT, MAX_INSTANT],
        "LEAKYBUCKET": [10 * UNIT, MAX_INSTANT],
        "FIXED": [10 * UNIT, MAX_INSTANT, 0],
        "FIXED ALIGNED": [10 * UNIT, MAX_INSTANT, 1],
        "SLIDING": [MAX_INSTANT, HOUR, 10 * UNIT, 10 * UNIT],
        "SLIDING STRICT": [HOUR, MAX_INSTANT, 1, 0, 10 * UNIT],
        "SLIDINGLOG": [1, MAX_INSTANT, 10 * UNIT],
        "CONCURRENCY": [MAX_INSTANT - HOUR, 1, b"h", MAX_INSTANT, 10 * UNIT],
    }
    for limiter in LIMITERS:
        assert is_accepted(redis, rewritten(dumps[f"{limiter.name}, small"], futures[limiter.name]))
        allowed, _, remaining, _, reset_ms = redis.execute_command(*limiter.peek("restored"))
        assert (allowed, remaining) == (0, 0)
        assert 0 < reset_ms <= limiter.recovery // 1000
