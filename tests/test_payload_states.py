"""A payload is accepted only if it is a state that a command could have made."""

import pytest
from redis import Redis

from conftest import Pair
from support.clock import START_US, Clock
from support.payloads import Field, rewritten
from support.restoring import (
    EXPIRY_MS,
    HOUR,
    MAX_DURATION,
    MAX_INSTANT,
    MAX_USED,
    UNIT,
    check_usable,
    is_accepted,
)
from support.workload import LIMITERS, Limiter, each_limiter, state

pytestmark = pytest.mark.every_server


# By limiter: fields that a command can store, and fields that no command can store.
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
        # window, instant of the last charge, number of slots in use, each slot's age and count
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
            [HOUR, START_US, 62, *(field for age in range(62) for field in (age, 1))],
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
        # number of entries, then each entry's instant and cost
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
        # instant of writing, number of leases, then each lease's holder, expiry and units
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
            # Leases last at most 3650 days.
            [START_US, 1, b"h", START_US + MAX_DURATION + 1, UNIT],
        ],
    ),
}


def component(
    serial: int = 0,
    identity: tuple[Field, ...] = (2, b"part"),
    kind: int = 0,
    recovers_at: int = START_US + HOUR,
    track: tuple[Field, ...] = (0,),
) -> list[Field]:
    """Returns the fields of a component: by default a named bucket, or a window for kind 1."""
    usage = (UNIT, START_US) if kind == 0 else (UNIT, START_US, 0)
    return [serial, *identity, kind, 1, 1, *usage, recovers_at, *track]


def composite(*components: list[Field], rest: tuple[Field, ...] = (0,)) -> list[Field]:
    """Returns the fields of a composite key. `rest` are ids, a ban and strikes."""
    fields = (field for fields in components for field in fields)
    return [START_US, len(components), *fields, *rest]


WINDOW = (1, 60_000_000, 0)
# Fields of a component with one charge, the charge, and its id.
TRACK = (1, 0, 1, 0, 0)
CHARGE = (0, UNIT, 0, 0, 0)
ID = (b"id", START_US + HOUR, START_US, 0)
NO_BAN = (0, 0)
STATES["TOKENBUCKET AS"] = (
    [
        composite(component()),
        composite(
            component(0), component(1, identity=WINDOW, kind=1), component(7, identity=(0,), kind=1)
        ),
        composite(component(track=TRACK), rest=(1, 1, *ID, 1, *CHARGE, *NO_BAN)),
        # Only a ban and strikes, or an id of a call that charged no component.
        composite(rest=(1, 0, START_US + HOUR, 2, START_US, HOUR)),
        composite(rest=(1, 1, *ID, 0, *NO_BAN)),
    ],
    [
        composite(),
        composite(rest=(1, 0, *NO_BAN)),
        composite(component(), rest=(2,)),
        composite(component(0), component(0, identity=WINDOW, kind=1)),
        composite(component(0), component(1)),
        composite(*(component(n, identity=(2, b"%d" % n)) for n in range(17))),
        composite(component(identity=(3,))),
        composite(component(identity=(2, b""))),
        composite(component(identity=(2, b"n" * 33))),
        composite(component(identity=(2, b"a name"))),
        composite(component(kind=6)),
        composite(component(kind=7)),
        composite(component(recovers_at=START_US)),
        composite(component(recovers_at=MAX_INSTANT + 1)),
        # A component without its charge, a charge without a component, an empty charge, and two
        # charges of one id.
        composite(component(track=TRACK)),
        composite(component(), rest=(1, 1, *ID, 1, *CHARGE, *NO_BAN)),
        composite(component(track=TRACK), rest=(1, 1, *ID, 1, 5, *CHARGE[1:], *NO_BAN)),
        composite(component(track=TRACK), rest=(1, 1, *ID, 1, 0, 0, *CHARGE[2:], *NO_BAN)),
        composite(component(track=TRACK), rest=(1, 1, *ID, 2, *CHARGE, *CHARGE, *NO_BAN)),
        # An id twice, an empty id, an id that is too long, and an id that lasts too long.
        composite(rest=(1, 2, *ID, 0, *ID, 0, *NO_BAN)),
        composite(rest=(1, 1, b"", *ID[1:], 0, *NO_BAN)),
        composite(rest=(1, 1, bytes(257), *ID[1:], 0, *NO_BAN)),
        composite(rest=(1, 1, b"id", START_US + MAX_DURATION + 1, START_US, 0, 0, *NO_BAN)),
        # A settled id with charges left.
        composite(component(track=TRACK), rest=(1, 1, *ID[:3], 1, 1, *CHARGE, *NO_BAN)),
        composite(rest=(1, 0, MAX_INSTANT + 1, 0)),
        composite(rest=(1, 0, 0, 2**32, START_US, HOUR)),
        composite(rest=(1, 0, 0, 1, START_US, 0)),
        [START_US, 2**64 - 1],
        [START_US, 0, 1, 2**64 - 1],
    ],
)
ALL_STATES = [
    pytest.param(name, state, accepted, id=f"{name}-{'valid' if accepted else 'invalid'}{number}")
    for name, (valid, invalid) in STATES.items()
    for states, accepted in [(valid, True), (invalid, False)]
    for number, state in enumerate(states)
]


@pytest.mark.parametrize(("name", "fields", "accepted"), ALL_STATES)
def test_only_a_state_that_a_command_could_have_made_is_accepted(
    name: str, fields: list[Field], accepted: bool, dumps: dict[str, bytes], redis: Redis
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
    "TOKENBUCKET AS": [
        *(START_US, 1, 0, 2, b"part", 0, 1, 1, MAX_USED, START_US),
        *(MAX_INSTANT, 0, 1, 0, MAX_INSTANT, 2**32 - 1, START_US, MAX_DURATION),
    ],
    "CONCURRENCY": [START_US, 2, b"h", START_US + 5, MAX_USED - 9, b"i", START_US + HOUR, 9],
}


@pytest.mark.parametrize(("name", "fields"), EXTREMES.items(), ids=EXTREMES.keys())
def test_an_extreme_state_is_refused_or_replicated_like_any_other(
    name: str, fields: list[Field], pair: Pair, clock: Clock
) -> None:
    primary, replica = pair.primary.client(), pair.replica.client()
    (limiter,) = (limiter for limiter in LIMITERS if limiter.name == name)
    primary.execute_command(*limiter.take("k"))
    payload = rewritten(primary.dump("k"), fields)
    calls = [
        limiter.take("k", 9),
        limiter.for_holder("i").take("k"),
        limiter.for_holder("other").take("k", 9),
    ]
    if not limiter.has_leases:
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


# Fields of each kind with 10 units used at the latest possible instant.
LATEST_STATES: dict[str, list[Field]] = {
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
def test_a_state_from_the_future_is_kept_until_it_has_recovered(
    limiter: Limiter, dumps: dict[str, bytes], pair: Pair, clock: Clock
) -> None:
    primary, replica = pair.primary.client(), pair.replica.client()
    for expiry in (clock.now // 1000 + 1, EXPIRY_MS, 2**60):
        payload = rewritten(dumps[f"{limiter.name}, small"], LATEST_STATES[limiter.name])
        primary.restore("k", expiry, payload, replace=True, absttl=True)
        call = limiter.for_holder("another").take("k")
        # The usage counts as charged now. The first call writes that, although it is denied.
        reply = primary.execute_command(*call)
        assert reply[:3] == [0, 10, 0]
        assert primary.execute_command(*call) == reply
        assert primary.pttl("k") >= reply[4]
        pair.replica.wait_for_sync()
        assert state(replica) == state(primary)


def test_a_state_restored_from_the_far_future_denies_for_at_most_one_recovery(
    dumps: dict[str, bytes], redis: Redis
) -> None:
    for limiter in LIMITERS:
        payload = rewritten(dumps[f"{limiter.name}, small"], LATEST_STATES[limiter.name])
        assert is_accepted(redis, payload)
        allowed, _, remaining, _, reset_ms = redis.execute_command(*limiter.peek("restored"))
        assert (allowed, remaining) == (0, 0)
        assert 0 < reset_ms <= limiter.recovery // 1000
