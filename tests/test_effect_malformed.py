"""`RL.EFFECT` refuses an effect that no command could have written, and then changes nothing."""

from collections.abc import Callable

import pytest
from redis import Redis

from support.clock import START_US
from support.effects import (
    EXPIRY_MS,
    LATEST_EXPIRY_MS,
    MAX_DURATION,
    MAX_INSTANT,
    MAX_USED,
    VALID,
    apply,
    changed,
    check_refused,
    check_valid,
    each_valid,
)
from support.workload import state

pytestmark = pytest.mark.every_server


# A component's tag has flags in the lowest three bits, then the kind (up to 16), the serial number
# (up to 32) and the version minus one.
MALFORMED = {
    "nothing": "",
    "a space": " ",
    "a name": "rl-bucket",
    "an unknown name": f"rl-bukket 1 {EXPIRY_MS} 1000000 {START_US}",
    "a name in capitals": f"RL-BUCKET 1 {EXPIRY_MS} 1000000 {START_US}",
    "a longer name": f"rl-buckets 1 {EXPIRY_MS} 1000000 {START_US}",
    "a deletion and more": "rl-bucket del ",
    "a deletion in capitals": "rl-bucket DEL",
    "a deletion with a version": "rl-bucket 1 del",
    "version 0": changed(VALID["bucket"], (1, 0)),
    "version 2": changed(VALID["bucket"], (1, 2)),
    "a huge version": changed(VALID["bucket"], (1, 2**32 + 1)),
    "expiry 0": changed(VALID["bucket"], (2, 0)),
    "no expiry": changed(VALID["bucket"], (2, -1)),
    "the latest expiry in capitals": changed(VALID["bucket"], (2, "MAX")),
    "the latest expiry and more": changed(VALID["bucket"], (2, "max1")),
    "a version that is the latest": changed(VALID["bucket"], (1, "max")),
    "an instant that is the latest": changed(VALID["bucket"], (4, "max")),
    "an expiry past the latest": changed(VALID["bucket"], (2, LATEST_EXPIRY_MS + 1)),
    "a huge expiry": changed(VALID["bucket"], (2, 2**63)),
    "an expiry beyond 64 bits": changed(VALID["bucket"], (2, 2**64 + EXPIRY_MS)),
    "a leading zero": changed(VALID["bucket"], (3, "01000000")),
    "a distance with a leading zero": changed(VALID["bucket"], (4, "+01")),
    "a distance of zero in digits": changed(VALID["bucket"], (4, "+0")),
    "a distance that is less in digits": changed(VALID["bucket"], (4, "-100000000000")),
    "an instant before all": changed(VALID["bucket"], (2, 1), (4, "-1000")),
    "an amount by its distance": changed(VALID["bucket"], (3, f"-{EXPIRY_MS * 1000 - 1_000_000}")),
    "no millions": changed(VALID["bucket"], (3, "0M")),
    "millions of millions": changed(VALID["bucket"], (3, "1000000M")),
    "an expiry in millions": changed(VALID["bucket"], (2, "1600000M")),
    "a decimal": changed(VALID["bucket"], (3, "1000000.0")),
    "an empty field": changed(VALID["bucket"], (3, "")),
    "two spaces": VALID["bucket"].replace(" ", "  ", 1),
    "a tab": VALID["bucket"].replace(" ", "\t", 1),
    "a space before": " " + VALID["bucket"],
    "a space after": VALID["bucket"] + " ",
    "a line end after": VALID["bucket"] + "\n",
    "a field too many": VALID["bucket"] + " 1",
    "a field too few": VALID["bucket"].rsplit(" ", 1)[0],
    "another kind's fields": VALID["slider"].replace("slider", "window"),
    "nothing used": changed(VALID["bucket"], (3, 0)),
    "too much used": changed(VALID["bucket"], (3, MAX_USED + 1)),
    "an instant out of range": changed(VALID["bucket"], (4, MAX_INSTANT + 1)),
    "nothing used in a window": changed(VALID["window"], (3, 0)),
    "an unknown mode": changed(VALID["window"], (5, 2)),
    "a window of no length": changed(VALID["slider"], (4, 0)),
    "a window too long": changed(VALID["slider"], (4, MAX_DURATION + 1)),
    "nothing used in two windows": changed(VALID["slider"], (5, 0), (6, 0)),
    "slots of an instant out of range": changed(VALID["strict"], (4, MAX_INSTANT + 1)),
    "a slot before the epoch": changed(VALID["strict"], (4, 0)),
    "no slot": f"rl-strict 1 {EXPIRY_MS} 60000000 {START_US} 0",
    "too many slots": changed(VALID["strict"], (5, 62)),
    "an empty slot": changed(VALID["strict"], (7, 0)),
    "slots out of order": changed(VALID["strict"], (6, 60), (8, 0)),
    "a slot twice": changed(VALID["strict"], (8, 0)),
    "a slot too old": changed(VALID["strict"], (8, 61)),
    "an unknown form": changed(VALID["log, changed"], (3, 2)),
    "an empty log": f"rl-reqlog 1 {EXPIRY_MS} 0 0",
    "an empty entry": changed(VALID["log, whole"], (6, 0)),
    "entries out of order": changed(VALID["log, whole"], (5, START_US + 2)),
    "more in a log than can be counted": changed(VALID["log, whole"], (6, MAX_USED)),
    "fewer entries than their count": changed(VALID["log, whole"], (4, 3)),
    "a huge count of entries": changed(VALID["log, whole"], (4, 2**64 - 1)),
    "removing more entries than exist": changed(VALID["log, changed"], (5, 3)),
    "an unknown addition": changed(VALID["log, changed"], (7, 3)),
    "giving back more than is used": changed(VALID["log, changed"], (7, 2), (9, 1_000_001)),
    "an addition of nothing": changed(VALID["log, changed"], (9, 0)),
    "an addition out of range": changed(VALID["log, changed"], (8, MAX_INSTANT + 1)),
    "an empty table": f"rl-leases 1 {EXPIRY_MS} 0 {START_US} 0",
    "an empty name": changed(VALID["leases, changed"], (8, "0:")),
    "a name cut off": changed(VALID["leases, changed"], (8, "9:h1")),
    "a name too long": changed(VALID["leases, changed"], (8, "257:" + "h" * 257)),
    "a name without its length": changed(VALID["leases, changed"], (8, "h1")),
    "a length with a leading zero": changed(VALID["leases, changed"], (8, "02:h1")),
    "a huge length": changed(VALID["leases, changed"], (8, f"{2**64 - 1}:h1")),
    "a lease of nothing": changed(VALID["leases, changed"], (10, 0)),
    "a lease of too much": changed(VALID["leases, changed"], (10, MAX_USED + 1)),
    "a lease that has expired": changed(VALID["leases, changed"], (9, START_US)),
    "a lease too long": changed(VALID["leases, changed"], (9, START_US + MAX_DURATION + 1)),
    "a holder twice": VALID["leases, whole"].replace("2:b ", "1:a"),
    "a lease too long in a table": changed(
        VALID["leases, whole"], (7, START_US + MAX_DURATION + 1)
    ),
    "a release without a holder": f"rl-leases 1 {EXPIRY_MS} 1 0 {START_US} 1 0: 0",
    "a composite key without components": f"rl-limits 1 {EXPIRY_MS} 0 {START_US} 0 0",
    "a component that is not the next": changed(VALID["limits, changed"], (16, 16 * 8 + 5)),
    "an unknown kind of component": changed(VALID["limits, changed"], (16, 15 * 8 + 5)),
    "a sketch as a component": changed(VALID["limits, changed"], (16, 6 * 8 + 5)),
    "a composite key as a component": changed(VALID["limits, changed"], (16, 7 * 8 + 5)),
    "an invalid name": changed(VALID["limits, changed"], (18, "4:pa/t")),
    "a component of another version": changed(VALID["limits, changed"], (16, 32 * 16 * 8 + 5)),
    "a component of a huge version": changed(VALID["limits, changed"], (16, 2**64 - 1)),
    "an id of a component that is not charged": changed(VALID["limits, changed"], (13, 1)),
    "an id without a charge": changed(VALID["limits, changed"], (14, 0)),
    "an id too long": changed(VALID["limits, changed"], (8, "257:" + "i" * 257)),
    "an unknown flag": changed(VALID["limits, changed"], (23, 2)),
    "a huge count of components": changed(VALID["limits, changed"], (15, 2**64 - 1)),
    "a component that has recovered": changed(VALID["limits, whole"], (30, START_US)),
    "a component twice": changed(VALID["limits, whole"], (20, 0)),
    "a charge of a missing component": changed(VALID["limits, whole"], (39, 5)),
    "a charge that no track knows": changed(VALID["limits, whole"], (39, 1)),
    "strikes without a window": changed(VALID["limits, whole"], (47, 0)),
    "a huge count of releases": f"rl-leases 1 {EXPIRY_MS} 1 0 {START_US} {2**64 - 1} 1:a 0",
}


@pytest.mark.parametrize("effect", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_effect_is_an_error_and_changes_nothing(
    effect: str, primary: Redis, replication_offset: Callable[[], int]
) -> None:
    kind = effect.split(" ", maxsplit=1)[0]
    for stored in [None, *(valid for valid in VALID.values() if valid.split(" ")[0] == kind)]:
        primary.flushall()
        if stored is not None:
            apply(primary, "k", stored)
        before = state(primary), replication_offset()
        check_refused(primary, "k", effect)
        check_refused(primary, "good", VALID["bucket"], "k", effect)
        assert (state(primary), replication_offset()) == before


@each_valid
def test_every_truncation_of_an_effect_is_an_error(
    effect: str, primary: Redis, replication_offset: Callable[[], int]
) -> None:
    before = replication_offset()
    # Truncated down to the last field, whose prefix is a smaller number.
    for length in range(len(effect.rsplit(" ", 1)[0]) + 2):
        check_refused(primary, "k", effect[:length])
    assert primary.dbsize() == 0
    assert replication_offset() == before


EFFECT_PAIRS = {
    "a log moved back to the epoch": (
        VALID["log, whole"],
        f"rl-reqlog 1 {EXPIRY_MS} 1 {MAX_INSTANT} 0 0 0",
    ),
    "leases moved back to the epoch": (
        VALID["leases, whole"],
        f"rl-leases 1 {EXPIRY_MS} 1 {START_US} 0 0 0",
    ),
    "leases that last longer than their last write allows": (
        VALID["leases, whole"],
        f"rl-leases 1 {EXPIRY_MS} 1 0 0 0 0",
    ),
    "more leases than can be counted": (
        f"rl-leases 1 {EXPIRY_MS} 0 {START_US} 1 1:a {START_US + 9} {MAX_USED}",
        f"rl-leases 1 {EXPIRY_MS} 1 0 {START_US} 0 1 1:b {START_US + 9} 1",
    ),
    "more in a log than can be counted": (
        f"rl-reqlog 1 {EXPIRY_MS} 0 1 {START_US} {MAX_USED}",
        f"rl-reqlog 1 {EXPIRY_MS} 1 0 0 0 1 {START_US} {MAX_USED}",
    ),
}


@pytest.mark.parametrize("effects", EFFECT_PAIRS.values(), ids=EFFECT_PAIRS.keys())
def test_effects_one_after_another_are_errors_or_make_a_valid_key(
    effects: tuple[str, str], primary: Redis
) -> None:
    pipeline = primary.pipeline(transaction=False)
    for effect in effects:
        pipeline.execute_command("RL.EFFECT", "k", effect)
    for answer in pipeline.execute(raise_on_error=False):
        assert str(answer) in {"b'OK'", "invalid effect"}
    check_valid(primary, "k")


@each_valid
def test_a_key_of_another_type_is_an_error(
    effect: str, primary: Redis, replication_offset: Callable[[], int]
) -> None:
    kind = effect.split(" ", maxsplit=1)[0]
    others = [other for other in VALID.values() if other.split(" ")[0] != kind]
    primary.set("string", "x")
    for other in others:
        apply(primary, other.split(" ")[0], other)
    before = state(primary), replication_offset()
    for key in before[0]:
        for words in [(key, effect), ("good", effect, key, effect), (key, f"{kind} del")]:
            check_refused(primary, *words, match="^WRONGTYPE")
            assert (state(primary), replication_offset()) == before


def test_the_same_key_twice_is_an_error(
    primary: Redis, replication_offset: Callable[[], int]
) -> None:
    before = replication_offset()
    bucket, window = VALID["bucket"], VALID["window"]
    check_refused(primary, "k", bucket, "k", bucket)
    check_refused(primary, "k", bucket, "l", window, "k", "rl-bucket del")
    many = [word for number in range(50) for word in (f"k{number}", bucket)]
    check_refused(primary, *many, "k17", bucket)
    assert primary.dbsize() == 0
    assert replication_offset() == before
    apply(primary, *many)
    assert primary.dbsize() == 50


def test_a_wrong_number_of_arguments_is_an_error(
    primary: Redis, replication_offset: Callable[[], int]
) -> None:
    before = replication_offset()
    for words in [(), ("k",), ("k", VALID["bucket"], "l")]:
        check_refused(primary, *words, match="wrong number of arguments")
    assert primary.dbsize() == 0
    assert replication_offset() == before
