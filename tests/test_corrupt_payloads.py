"""A payload that is corrupt, truncated or from a later version is refused. A payload that is
accepted is a state that a command could have made.
"""

import random
from collections.abc import Sequence

import pytest
from redis import Redis, ResponseError

from conftest import Pair
from support.clock import START_US, UNITS_US, Clock
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
from support.workload import (
    HOLDERS,
    LIMITERS,
    Limiter,
    each_limiter,
    each_limiter_on_one_server,
    state,
)

pytestmark = pytest.mark.every_server

HOUR = UNITS_US["h"]
UNIT = 1_000_000
# Of restored keys. As an instant, since Redis 6.2 passes a length of time on as it is.
EXPIRY_MS = (START_US + 24 * HOUR) // 1000
MAX_USED = 2**63 - 1
MAX_INSTANT = 365_000 * UNITS_US["d"]
MAX_DURATION = 3_650 * UNITS_US["d"]


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
    # The one with a name last: it makes a key with parts of a bucket.
    for limiter in sorted(LIMITERS, key=lambda limiter: limiter.type == b"rl-limits"):
        if not serves(kind, limiter):
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


def serves(kind: bytes, limiter: Limiter) -> bool:
    """A key with parts serves all; a bucket serves one with a name, and becomes such a key."""
    if limiter.type == b"rl-limits":
        return kind in {b"rl-bucket", b"rl-limits"}
    return kind in {limiter.type, b"rl-limits"}


# Of everything that a key with parts remembers.
OF_ALL_KINDS = [
    *("COST", 2, "ONCE", "first", "1h", "FIXED", 10, "1h", "TOKENBUCKET", 10, 10, "1h"),
    *("SLIDING", 10, "1h", "SLIDING", 10, "1h", "STRICT", "SLIDINGLOG", 10, "1h"),
    *("CONCURRENCY", 10, "1h", "holder"),
]


@pytest.fixture
def dumps(redis: Redis, clock: Clock) -> dict[str, bytes]:
    """Of every limiter, one barely used and one that has seen much."""
    for limiter in LIMITERS:
        redis.execute_command(*limiter.take(f"{limiter.name}, small"))
    for holder in [*HOLDERS, "b", "c"]:
        for limiter in LIMITERS:
            redis.execute_command(*limiter.by(holder).take(f"{limiter.name}, large", "1.000001"))
        clock.advance("30s")
    parts = "TOKENBUCKET AS, large"
    assert redis.execute_command("RL.TAKE", parts, *OF_ALL_KINDS)[0] == 1
    # A strike, and a ban.
    redis.execute_command("RL.TAKE", parts, "FIXED", 1, "1h", "BAN", 3, "1h", "1h")
    assert redis.execute_command("RL.BAN", parts, "1s") == 1000
    found = {name.decode(): held.dump for name, held in state(redis).items()}
    assert len(found) == 2 * len(LIMITERS)
    return found


def test_a_dump_that_is_sealed_anew_is_accepted(dumps: dict[str, bytes], redis: Redis) -> None:
    for dump in dumps.values():
        for same in (sealed(dump[:-10], dump), rewritten(dump, fields(dump))):
            assert is_accepted(redis, same)
            assert redis.dump("restored") == dump
        check_usable(redis)
        assert sealed(dump[:-10], dump) == dump


def test_a_wrong_checksum_or_a_later_version_of_the_format_is_refused(
    dumps: dict[str, bytes], redis: Redis
) -> None:
    for dump in dumps.values():
        ours = int.from_bytes(dump[-10:-8], "little")
        seals = [
            later.to_bytes(2, "little") + bytes(8) for later in (ours + 1, 2 * ours, 2**16 - 1)
        ]
        broken = [dump[:-1] + bytes([dump[-1] ^ 1]), *(sealed(dump[:-10], seal) for seal in seals)]
        for payload in broken:
            with pytest.raises(ResponseError, match="version or checksum"):
                redis.restore("restored", 1000, payload)


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
    for dump in dumps.values():
        ours = int.from_bytes(dump[2:10], "big") & 1023
        heads = {str(number): rewritten(dump, [], number)[:10] for number in range(1024)}
        assert heads.pop(str(ours)) == dump[:10]
        foreign = {name: sealed(head + dump[10:-10], dump) for name, head in heads.items()}
        assert restore(redis, foreign) == []


def mutated(
    chosen: random.Random, own: Sequence[tuple[bytes, list[Field]]], others: Sequence[Field]
) -> bytes:
    """One of its own dumps with a few of its fields, or of its bytes, changed."""
    dump, held = chosen.choice(own)
    if chosen.random() < 0.6:
        return rewritten(dump, changed_fields(chosen, held, others))
    # The first byte says which of the server's own types follows, which is no concern of ours.
    return sealed(changed_bytes(chosen, dump[:-10], first=1), dump)


@pytest.mark.timeout(1200)
@each_limiter_on_one_server
def test_a_mutated_payload_is_refused_or_makes_a_valid_limiter(
    limiter: Limiter, dumps: dict[str, bytes], pair: Pair, clock: Clock
) -> None:
    primary, replica = pair.primary.client(), pair.replica.client()
    taken_apart = {name: (dump, fields(dump)) for name, dump in dumps.items()}
    own = [taken_apart[f"{limiter.name}, {size}"] for size in ("small", "large")]
    others = [field for _, held in taken_apart.values() for field in held]
    tried = usable = 0
    for chosen in batches(limiter.name, len(LIMITERS)):
        primary.flushall()
        payloads = [mutated(chosen, own, others) for _ in range(BATCH)]
        expiry = chosen.choice((EXPIRY_MS, clock.now // 1000 + 1, 2**60))
        names = {str(name): payload for name, payload in enumerate(payloads)}
        restored = restore(primary, names, expiry)
        tried, usable = tried + len(payloads), usable + len(restored)
        check_all_usable(primary, limiter, restored)
        if restored:
            check_usable(primary, chosen.choice(restored))
        # Looking at a key that has expired deletes it, which the replica is told.
        held = state(primary)
        pair.replica.wait_for_sync()
        assert state(replica) == held
        assert all(each.expires_at > 0 for each in held.values())
    print(f"{limiter.name}: {usable} of {tried} mutated payloads were accepted")
    assert 0 < usable < tried


def restore(redis: Redis, payloads: dict[str, bytes], expiry: int = EXPIRY_MS) -> list[str]:
    """The names of those that are accepted; all others are refused for what they are."""
    pipeline = redis.pipeline(transaction=False)
    for name, payload in payloads.items():
        pipeline.restore(name, expiry, payload, absttl=True)
    answers = pipeline.execute(raise_on_error=False)
    refused = {str(answer) for answer in answers if isinstance(answer, ResponseError)}
    assert refused <= {"Bad data format"}
    return [name for name, answer in zip(payloads, answers, strict=True) if answer == b"OK"]


def check_all_usable(redis: Redis, limiter: Limiter, names: list[str]) -> None:
    """As `check_usable`, of many at once: what they hold can be restored, and a call answered."""
    pipeline = redis.pipeline(transaction=False)
    for name in names:
        pipeline.dump(name)
    held = {f"{name}, again": dump for name, dump in zip(names, pipeline.execute(), strict=True)}
    assert restore(redis, held) == list(held)
    for name in held:
        pipeline.dump(name)
    assert pipeline.execute() == list(held.values())
    for name in names:
        pipeline.execute_command(*limiter.by("another").take(name, "1.5"))
    assert all(len(answer) == 5 for answer in pipeline.execute())


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
        # when it was written, how many leases, then of each its holder, its expiry and its units
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


def part(
    serial: int = 0,
    known_by: tuple[Field, ...] = (2, b"part"),
    kind: int = 0,
    recovers_at: int = START_US + HOUR,
    track: tuple[Field, ...] = (0,),
) -> list[Field]:
    """A bucket with a name, or a window by its length."""
    usage = (UNIT, START_US) if kind == 0 else (UNIT, START_US, 0)
    return [serial, *known_by, kind, 1, 1, *usage, recovers_at, *track]


def limits(*parts: list[Field], beside: tuple[Field, ...] = (0,)) -> list[Field]:
    return [START_US, len(parts), *(field for held in parts for field in held), *beside]


WINDOW = (1, 60_000_000, 0)
# A track of one charge, and an id that made it.
TRACK = (1, 0, 1, 0, 0)
CHARGE = (0, UNIT, 0, 0, 0)
ID = (b"id", START_US + HOUR, START_US, 0)
NO_BAN = (0, 0)
STATES["TOKENBUCKET AS"] = (
    [
        limits(part()),
        limits(part(0), part(1, known_by=WINDOW, kind=1), part(7, known_by=(0,), kind=1)),
        limits(part(track=TRACK), beside=(1, 1, *ID, 1, *CHARGE, *NO_BAN)),
        # A ban and strikes alone, or an id of a call that charged no part.
        limits(beside=(1, 0, START_US + HOUR, 2, START_US, HOUR)),
        limits(beside=(1, 1, *ID, 0, *NO_BAN)),
    ],
    [
        limits(),
        limits(beside=(1, 0, *NO_BAN)),
        limits(part(), beside=(2,)),
        limits(part(0), part(0, known_by=WINDOW, kind=1)),
        limits(part(0), part(1)),
        limits(*(part(n, known_by=(2, b"%d" % n)) for n in range(17))),
        limits(part(known_by=(3,))),
        limits(part(known_by=(2, b""))),
        limits(part(known_by=(2, b"n" * 33))),
        limits(part(known_by=(2, b"a name"))),
        limits(part(kind=6)),
        limits(part(kind=7)),
        limits(part(recovers_at=START_US)),
        limits(part(recovers_at=MAX_INSTANT + 1)),
        # A track of no charge, a charge of no track, of no part, of nothing, and two of one id.
        limits(part(track=TRACK)),
        limits(part(), beside=(1, 1, *ID, 1, *CHARGE, *NO_BAN)),
        limits(part(track=TRACK), beside=(1, 1, *ID, 1, 5, *CHARGE[1:], *NO_BAN)),
        limits(part(track=TRACK), beside=(1, 1, *ID, 1, 0, 0, *CHARGE[2:], *NO_BAN)),
        limits(part(track=TRACK), beside=(1, 1, *ID, 2, *CHARGE, *CHARGE, *NO_BAN)),
        # An id that comes twice, an empty one, one that is too long, one that lasts too long.
        limits(beside=(1, 2, *ID, 0, *ID, 0, *NO_BAN)),
        limits(beside=(1, 1, b"", *ID[1:], 0, *NO_BAN)),
        limits(beside=(1, 1, bytes(257), *ID[1:], 0, *NO_BAN)),
        limits(beside=(1, 1, b"id", START_US + MAX_DURATION + 1, START_US, 0, 0, *NO_BAN)),
        # One that is settled has no charges left.
        limits(part(track=TRACK), beside=(1, 1, *ID[:3], 1, 1, *CHARGE, *NO_BAN)),
        limits(beside=(1, 0, MAX_INSTANT + 1, 0)),
        limits(beside=(1, 0, 0, 2**32, START_US, HOUR)),
        limits(beside=(1, 0, 0, 1, START_US, 0)),
        [START_US, 2**64 - 1],
        [START_US, 0, 1, 2**64 - 1],
    ],
)
ALL_STATES = [
    pytest.param(name, state, accepted, id=f"{name}-{'good' if accepted else 'bad'}{number}")
    for name, (good, bad) in STATES.items()
    for states, accepted in [(good, True), (bad, False)]
    for number, state in enumerate(states)
]


@pytest.mark.parametrize(("name", "held", "accepted"), ALL_STATES)
def test_only_a_state_that_a_command_could_have_made_is_accepted(
    name: str, held: list[Field], accepted: bool, dumps: dict[str, bytes], redis: Redis
) -> None:
    payload = rewritten(dumps[f"{name}, small"], held)
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
    "TOKENBUCKET AS": [
        *(START_US, 1, 0, 2, b"part", 0, 1, 1, MAX_USED, START_US),
        *(MAX_INSTANT, 0, 1, 0, MAX_INSTANT, 2**32 - 1, START_US, MAX_DURATION),
    ],
    "CONCURRENCY": [START_US, 2, b"h", START_US + 5, MAX_USED - 9, b"i", START_US + HOUR, 9],
}


@pytest.mark.parametrize(("name", "held"), EXTREMES.items(), ids=EXTREMES.keys())
def test_an_extreme_state_is_refused_or_replicated_like_any_other(
    name: str, held: list[Field], pair: Pair, clock: Clock
) -> None:
    primary, replica = pair.primary.client(), pair.replica.client()
    (limiter,) = (limiter for limiter in LIMITERS if limiter.name == name)
    primary.execute_command(*limiter.take("k"))
    payload = rewritten(primary.dump("k"), held)
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
    for name in ("SLIDINGLOG", "SLIDING STRICT", "CONCURRENCY", "TOKENBUCKET AS"):
        for count in (2**20, 2**32, 2**63, 2**64 - 1):
            for held in ([count], [START_US, count], [HOUR, START_US, count]):
                assert not is_accepted(redis, rewritten(dumps[f"{name}, small"], held))
    assert redis.info("memory")["used_memory"] < before + 1_000_000


# Of each, 10 units used as late as can be said.
FUTURES: dict[str, list[Field]] = {
    "TOKENBUCKET": [10 * UNIT, MAX_INSTANT],
    "LEAKYBUCKET": [10 * UNIT, MAX_INSTANT],
    "FIXED": [10 * UNIT, MAX_INSTANT, 0],
    "FIXED ALIGNED": [10 * UNIT, MAX_INSTANT, 1],
    "SLIDING": [MAX_INSTANT, HOUR, 10 * UNIT, 10 * UNIT],
    "SLIDING STRICT": [HOUR, MAX_INSTANT, 1, 0, 10 * UNIT],
    "SLIDINGLOG": [1, MAX_INSTANT, 10 * UNIT],
    "TOKENBUCKET AS": [
        *(MAX_INSTANT - HOUR, 1, 0, 2, b"part"),
        *(0, 1, 1, 10 * UNIT, MAX_INSTANT - HOUR, MAX_INSTANT, 0, 0),
    ],
    "CONCURRENCY": [MAX_INSTANT - HOUR, 1, b"h", MAX_INSTANT, 10 * UNIT],
}


@each_limiter
def test_a_state_from_further_ahead_than_its_expiry_is_kept_until_it_has_recovered(
    limiter: Limiter, dumps: dict[str, bytes], pair: Pair, clock: Clock
) -> None:
    primary, replica = pair.primary.client(), pair.replica.client()
    for expiry in (clock.now // 1000 + 1, EXPIRY_MS, 2**60):
        payload = rewritten(dumps[f"{limiter.name}, small"], FUTURES[limiter.name])
        primary.restore("k", expiry, payload, replace=True, absttl=True)
        call = limiter.by("another").take("k")
        # It stands as if charged now. The call that sees to that, denied as it is, writes.
        reply = primary.execute_command(*call)
        assert reply[:3] == [0, 10, 0]
        assert primary.execute_command(*call) == reply
        assert primary.pttl("k") >= reply[4]
        pair.replica.wait_for_sync()
        assert state(replica) == state(primary)


def test_a_state_restored_from_the_far_future_locks_nobody_out(
    dumps: dict[str, bytes], redis: Redis
) -> None:
    for limiter in LIMITERS:
        assert is_accepted(redis, rewritten(dumps[f"{limiter.name}, small"], FUTURES[limiter.name]))
        allowed, _, remaining, _, reset_ms = redis.execute_command(*limiter.peek("restored"))
        assert (allowed, remaining) == (0, 0)
        assert 0 < reset_ms <= limiter.recovery // 1000
