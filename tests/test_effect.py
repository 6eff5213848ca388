"""`RL.EFFECT` makes no key without a TTL and no state that no command could have made."""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
from redis import OutOfMemoryError, ReadOnlyError, Redis, ResponseError, WatchError

from conftest import Pair
from support.clock import START_US, UNITS_US, Clock
from support.payloads import BATCH, batches, changed_bytes, changed_words
from support.server import Server
from support.workload import LIMITERS, play, state, steps, written_commands

pytestmark = pytest.mark.every_server

EXPIRY_MS = START_US // 1000 + 3_600_000
MAX_USED = 2**63 - 1
MAX_INSTANT = 365_000 * UNITS_US["d"]
MAX_DURATION = 3_650 * UNITS_US["d"]
LATEST_EXPIRY_MS = 1_000_000 * UNITS_US["d"] // 1000

# Of every kind: what a key that was never seen takes.
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
# "limits, changed" with a word for each fact, as the first version wrote it.
SPELLED = (
    f"rl-limits 1 {EXPIRY_MS} 1 {START_US} 0 1 1 2:id {START_US + 60_000_000} {START_US} 0"
    f" 1 0 2000000 1 0 0 1 2 4:part {START_US + 12_000_000} 1 1 2000000 {START_US} 1 0 0"
)
each_valid = pytest.mark.parametrize("effect", VALID.values(), ids=VALID.keys())

# Of each plain kind, how it becomes one with parts: it is banned for a minute.
PLAIN = {name: effect for name, effect in VALID.items() if not name.startswith("limits")}
BAN = f"2 {START_US} 0 1 0 0 1 {START_US + 60_000_000} 0"
CONVERSIONS = {
    name: f"{effect.split()[0]} convert 1 {EXPIRY_MS + 1} {EXPIRY_MS} {BAN}"
    for name, effect in PLAIN.items()
}
# Or it is charged, by a name.
CHARGED = (
    f"rl-bucket convert 1 {EXPIRY_MS + 1} {EXPIRY_MS} 2 {START_US} 0 1 0 1"
    f" 1 2 4:part {START_US + 60_000_000} 2000000 {START_US} 0"
)
each_conversion = pytest.mark.parametrize(
    ("held", "conversion"),
    [*((PLAIN[name], effect) for name, effect in CONVERSIONS.items()), (PLAIN["bucket"], CHARGED)],
    ids=[*CONVERSIONS, "charged"],
)


@pytest.fixture
def offset(pair: Pair) -> Callable[[], int]:
    """What the primary has propagated so far, in bytes."""
    client = pair.primary.client()
    return lambda: client.info("replication")["master_repl_offset"]


@pytest.fixture
def primary(pair: Pair) -> Redis:
    return pair.primary.client()


def apply(redis: Redis, *words: bytes | str) -> None:
    assert redis.execute_command("RL.EFFECT", *words) == b"OK"


def check_refused(redis: Redis, *words: bytes | str, match: str = "^invalid effect$") -> None:
    with pytest.raises(ResponseError, match=match):
        redis.execute_command("RL.EFFECT", *words)


def test_the_effects_of_a_workload_applied_one_by_one_make_the_same_keys(
    fresh_server: Callable[..., Server], clock: Clock
) -> None:
    source = fresh_server(appendonly="yes", appendfsync="always")
    target = fresh_server()
    play(steps(seed=50, count=800), clock, source.client())
    now = clock.now
    # Effects are absolute: it does not matter what time it is, so long as nothing has expired.
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
def test_a_valid_effect_makes_a_key_that_works(
    effect: str, primary: Redis, pair: Pair, clock: Clock
) -> None:
    apply(primary, "k", effect)
    held = state(primary)[b"k"]
    assert held.type == effect.split(maxsplit=1)[0].encode()
    assert held.expires_at == EXPIRY_MS
    pair.replica.wait_for_sync()
    assert state(pair.replica.client()) == state(primary)
    (limiter, *_) = [limiter for limiter in LIMITERS if limiter.type == held.type]
    clock.advance(1)
    assert primary.execute_command(*limiter.peek("k"))[0] == 1
    assert primary.execute_command(*limiter.take("k"))[0] == 1
    primary.restore("copy", 0, held.dump)


@each_conversion
def test_a_conversion_makes_one_with_parts_of_what_is_there(
    held: str, conversion: str, primary: Redis, pair: Pair
) -> None:
    apply(primary, "k", held)
    apply(primary, "k", conversion)
    made = state(primary)[b"k"]
    assert (made.type, made.expires_at) == (b"rl-limits", EXPIRY_MS + 1)
    info = primary.execute_command("RL.INFO", "k")
    (part,) = info[info.index(b"parts") + 1]
    assert part[:2] == [b"kind", held.split(maxsplit=1)[0].encode()]
    check_valid(primary, "k")
    pair.replica.wait_for_sync()
    assert state(pair.replica.client()) == state(primary)
    # It is converted once.
    check_refused(primary, "k", conversion, match="^WRONGTYPE")


@each_conversion
def test_a_conversion_of_anything_else_is_an_error(
    held: str, conversion: str, primary: Redis, offset: Callable[[], int]
) -> None:
    kind = held.split(maxsplit=1)[0]
    for other in VALID.values():
        apply(primary, other.split(" ", maxsplit=1)[0], other)
    primary.set("string", "x")
    before = state(primary), offset()
    for key in {"missing", *(key.decode() for key in before[0])} - {kind}:
        told = "^invalid effect$" if key == "missing" else "^WRONGTYPE"
        check_refused(primary, key, conversion, match=told)
        check_refused(primary, "good", VALID["bucket"], key, conversion, match=told)
        assert (state(primary), offset()) == before


@each_conversion
def test_a_malformed_conversion_is_an_error_and_leaves_everything_be(
    held: str, conversion: str, primary: Redis, offset: Callable[[], int]
) -> None:
    apply(primary, "k", held)
    before = state(primary), offset()
    malformed = {
        "another version": changed(conversion, (2, 2)),
        "no expiry": changed(conversion, (3, 0)),
        "an expiry too late": changed(conversion, (3, LATEST_EXPIRY_MS + 1)),
        "an expiry that no key had": changed(conversion, (4, LATEST_EXPIRY_MS + 1)),
        "the whole": changed(conversion, (5, 0)),
        "moved back once more": changed(conversion, (7, 1)),
        "nothing that changes": " ".join([*conversion.split(" ")[:8], "0"]),
        "an id that is not there": changed(conversion, (9, "2 2:id")),
        "a field too many": f"{conversion} 0",
    }
    for why, effect in malformed.items():
        check_refused(primary, "k", effect)
        assert (state(primary), offset()) == before, why
    # Down to the last field, whose front is a smaller number.
    for length in range(len(conversion.rsplit(" ", 1)[0]) + 2):
        check_refused(primary, "k", conversion[:length], match="^(invalid effect|WRONGTYPE.*)$")
    assert (state(primary), offset()) == before


@pytest.mark.parametrize("kind", sorted({effect.split()[0] for effect in VALID.values()}))
def test_a_deletion_deletes(kind: str, primary: Redis, pair: Pair) -> None:
    (effect, *_) = [effect for effect in VALID.values() if effect.startswith(kind)]
    apply(primary, "k", effect)
    apply(primary, "k", f"{kind} del")
    # What is missing already is no error: replicas may have lost it.
    apply(primary, "k", f"{kind} del")
    assert not primary.exists("k")
    pair.replica.wait_for_sync()
    assert state(pair.replica.client()) == {}


def test_a_change_is_applied_to_what_is_there(primary: Redis) -> None:
    apply(primary, "k", VALID["log, whole"])
    # 1 microsecond back; the oldest entry goes; 3 of 7 millionths are given back; 9 are added.
    apply(primary, "k", f"rl-reqlog 1 {EXPIRY_MS} 1 1 1 3 1 {START_US + 5} 9")
    apply(primary, "expected", f"rl-reqlog 1 {EXPIRY_MS} 0 2 {START_US} 4 {START_US + 5} 9")
    assert primary.dump("k") == primary.dump("expected")
    apply(primary, "l", VALID["leases, whole"])
    # One is given back, then another comes.
    apply(primary, "l", f"rl-leases 1 {EXPIRY_MS} 1 0 {START_US + 1} 1 1:a 0")
    apply(primary, "l", f"rl-leases 1 {EXPIRY_MS} 1 0 {START_US + 2} 0 1 1:c {START_US + 9} 3")
    apply(
        primary,
        "also expected",
        f"rl-leases 1 {EXPIRY_MS} 0 {START_US + 2} 2"
        f" 1:c {START_US + 9} 3 2:b  {START_US + 60_000_001} 5",
    )
    assert primary.dump("l") == primary.dump("also expected")


def test_a_change_of_the_first_version_is_read(primary: Redis) -> None:
    apply(primary, "k", SPELLED)
    apply(primary, "expected", VALID["limits, changed"])
    assert primary.dump("k") == primary.dump("expected")
    for place, word in [(16, 24), (17, 9), (18, 2), (22, 2), (23, 2), (26, 2)]:
        check_refused(primary, "l", changed(SPELLED, (place, word)))
    check_refused(primary, "l", changed(SPELLED, (3, 3)))


def test_a_change_that_leaves_nothing_leaves_no_key(primary: Redis) -> None:
    apply(primary, "k", VALID["log, whole"])
    apply(primary, "k", f"rl-reqlog 1 {EXPIRY_MS} 1 0 2 0 0")
    apply(primary, "l", VALID["leases, changed"])
    apply(primary, "l", f"rl-leases 1 {EXPIRY_MS} 1 0 {START_US} 1 2:h1 0")
    # Nor does one that adds nothing to a key that was never seen.
    apply(primary, "m", f"rl-reqlog 1 {EXPIRY_MS} 1 0 0 0 0")
    assert primary.dbsize() == 0


def changed(effect: str, *changes: tuple[int, object]) -> str:
    """With some of its words replaced."""
    words = effect.split(" ")
    for place, word in changes:
        words[place] = str(word)
    return " ".join(words)


# The tag of a component has its flags in the lowest three bits, above them its kind, of 16, its
# serial number, of 32, and its version less one.
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
    "more in a log than counts": changed(VALID["log, whole"], (6, MAX_USED)),
    "entries that are not there": changed(VALID["log, whole"], (4, 3)),
    "a huge log on paper": changed(VALID["log, whole"], (4, 2**64 - 1)),
    "forgetting what is not there": changed(VALID["log, changed"], (5, 3)),
    "an unknown addition": changed(VALID["log, changed"], (7, 3)),
    "taking back more than is there": changed(VALID["log, changed"], (7, 2), (9, 1_000_001)),
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
    "a release of nobody's": f"rl-leases 1 {EXPIRY_MS} 1 0 {START_US} 1 0: 0",
    "nothing of several limits": f"rl-limits 1 {EXPIRY_MS} 0 {START_US} 0 0",
    "a part that is not the next": changed(VALID["limits, changed"], (16, 16 * 8 + 5)),
    "an unknown kind of part": changed(VALID["limits, changed"], (16, 15 * 8 + 5)),
    "a part that is a sketch": changed(VALID["limits, changed"], (16, 6 * 8 + 5)),
    "a part that is made of parts": changed(VALID["limits, changed"], (16, 7 * 8 + 5)),
    "a name that is none": changed(VALID["limits, changed"], (18, "4:pa/t")),
    "a part of another version": changed(VALID["limits, changed"], (16, 32 * 16 * 8 + 5)),
    "a part of a huge version": changed(VALID["limits, changed"], (16, 2**64 - 1)),
    "an id of a part that is not charged": changed(VALID["limits, changed"], (13, 1)),
    "an id of nothing": changed(VALID["limits, changed"], (14, 0)),
    "an id too long": changed(VALID["limits, changed"], (8, "257:" + "i" * 257)),
    "an unknown flag": changed(VALID["limits, changed"], (23, 2)),
    "many parts on paper": changed(VALID["limits, changed"], (15, 2**64 - 1)),
    "a part that has recovered": changed(VALID["limits, whole"], (30, START_US)),
    "a part twice": changed(VALID["limits, whole"], (20, 0)),
    "a charge of a part that is not there": changed(VALID["limits, whole"], (39, 5)),
    "a charge that no track knows": changed(VALID["limits, whole"], (39, 1)),
    "strikes without a window": changed(VALID["limits, whole"], (47, 0)),
    "many releases on paper": f"rl-leases 1 {EXPIRY_MS} 1 0 {START_US} {2**64 - 1} 1:a 0",
}


@pytest.mark.parametrize("effect", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_effect_is_an_error_and_leaves_everything_be(
    effect: str, primary: Redis, offset: Callable[[], int]
) -> None:
    kind = effect.split(" ", maxsplit=1)[0]
    for held in [None, *(valid for valid in VALID.values() if valid.split(" ")[0] == kind)]:
        primary.flushall()
        if held is not None:
            apply(primary, "k", held)
        before = state(primary), offset()
        check_refused(primary, "k", effect)
        check_refused(primary, "good", VALID["bucket"], "k", effect)
        assert (state(primary), offset()) == before


@each_valid
def test_every_truncation_of_an_effect_is_an_error(
    effect: str, primary: Redis, offset: Callable[[], int]
) -> None:
    before = offset()
    # Down to the last field, whose front is a smaller number.
    for length in range(len(effect.rsplit(" ", 1)[0]) + 2):
        check_refused(primary, "k", effect[:length])
    assert primary.dbsize() == 0
    assert offset() == before


@pytest.mark.one_server
@pytest.mark.timeout(1200)
@each_valid
def test_a_mutated_effect_is_an_error_or_makes_a_valid_key(
    effect: str, pair: Pair, primary: Redis, offset: Callable[[], int]
) -> None:
    replica = pair.replica.client()
    others = [word for valid in VALID.values() for word in valid.split(" ")]
    tried = accepted = 0
    for chosen in batches(effect, len(VALID)):
        primary.flushall()
        # Every other one is sent to a key that holds what the effect makes as it stands.
        effects = {str(name): mutated(chosen, effect, others) for name in range(BATCH)}
        held = send(primary, dict.fromkeys(list(effects)[::2], effect.encode()))
        assert not held.refused
        outcome = send(primary, effects)
        # What has expired by now goes now, and replicas are told, not in the midst of what follows.
        primary.exists(*effects)
        assert all(
            text == "invalid effect" or (text.startswith("WRONGTYPE") and name in held.accepted)
            for name, text in outcome.refused.items()
        )
        check_all_valid(primary, outcome.accepted)
        # Sent again, those that were refused are refused again, and tell nobody.
        before = state(primary), offset()
        assert send(primary, {name: effects[name] for name in outcome.refused}) == (
            [],
            outcome.refused,
        )
        assert (state(primary), offset()) == before
        apply(primary, "expected", effect)
        expected = state(primary)[b"expected"]
        for name in outcome.refused:
            assert before[0].get(name.encode()) == (expected if name in held.accepted else None)
        pair.replica.wait_for_sync()
        assert state(replica) == state(primary)
        tried, accepted = tried + len(effects), accepted + len(outcome.accepted)
    print(f"{effect}: {accepted} of {tried} mutated effects were accepted")
    assert 0 < accepted < tried


@pytest.mark.one_server
@pytest.mark.timeout(1200)
@each_conversion
def test_a_mutated_conversion_is_an_error_or_makes_a_valid_key(
    held: str, conversion: str, pair: Pair, primary: Redis, offset: Callable[[], int]
) -> None:
    others = [word for valid in (*VALID.values(), conversion) for word in valid.split(" ")]
    tried = accepted = 0
    for chosen in batches(conversion, len(VALID)):
        primary.flushall()
        effects = {str(name): mutated(chosen, conversion, others) for name in range(BATCH)}
        assert not send(primary, dict.fromkeys(effects, held.encode())).refused
        apply(primary, "expected", held)
        expected = state(primary)[b"expected"]
        outcome = send(primary, effects)
        primary.exists(*effects)
        check_all_valid(primary, outcome.accepted)
        before = state(primary), offset()
        assert all(before[0][name.encode()] == expected for name in outcome.refused)
        assert send(primary, {name: effects[name] for name in outcome.refused}).accepted == []
        assert (state(primary), offset()) == before
        pair.replica.wait_for_sync()
        assert state(pair.replica.client()) == state(primary)
        tried, accepted = tried + len(effects), accepted + len(outcome.accepted)
    print(f"{conversion}: {accepted} of {tried} mutated effects were accepted")
    assert 0 < accepted < tried


def mutated(chosen: random.Random, effect: str, others: Sequence[str]) -> bytes:
    """With a few of its words, or of its bytes, changed."""
    if chosen.random() < 0.6:
        return changed_words(chosen, effect, others).encode()
    return changed_bytes(chosen, effect.encode())


class Sent(NamedTuple):
    """What became of effects: the names of the keys, and why those that were refused were."""

    accepted: list[str]
    refused: dict[str, str]


def send(redis: Redis, effects: dict[str, bytes]) -> Sent:
    """One effect to each key."""
    pipeline = redis.pipeline(transaction=False)
    for name, effect in effects.items():
        pipeline.execute_command("RL.EFFECT", name, effect)
    answers = dict(zip(effects, pipeline.execute(raise_on_error=False), strict=True))
    refused = {name: str(said) for name, said in answers.items() if isinstance(said, ResponseError)}
    accepted = [name for name, said in answers.items() if said == b"OK"]
    assert len(accepted) + len(refused) == len(effects)
    return Sent(accepted, refused)


def check_all_valid(redis: Redis, names: list[str]) -> None:
    """As `check_valid`, of many at once; but for what may be gone already."""
    held = state(redis)
    left = [name for name in names if name.encode() in held]
    pipeline = redis.pipeline(transaction=False)
    for name in left:
        assert held[name.encode()].expires_at > 0
        pipeline.restore("restored", EXPIRY_MS, held[name.encode()].dump, replace=True, absttl=True)
        pipeline.dump("restored").execute_command("RL.INFO", name)
    answers = iter(pipeline.execute())
    for name, _, dump, info in zip(left, answers, answers, answers, strict=True):
        assert dump == held[name.encode()].dump
        assert info
    redis.delete("restored")


def check_valid(redis: Redis, key: str) -> None:
    """A key with a TTL, which can be saved; or none, if it has expired already."""
    dump = redis.dump(key)
    if dump is None:
        return
    assert redis.pttl(key) >= 0
    assert redis.execute_command("RL.INFO", key)
    redis.restore("restored", 0, dump, replace=True)
    assert redis.dump("restored") == dump


AFTER_EFFECTS = {
    "a log moved back to the epoch": (
        VALID["log, whole"],
        f"rl-reqlog 1 {EXPIRY_MS} 1 {MAX_INSTANT} 0 0 0",
    ),
    "leases moved back to the epoch": (
        VALID["leases, whole"],
        f"rl-leases 1 {EXPIRY_MS} 1 {START_US} 0 0 0",
    ),
    "leases last written before they could have been": (
        VALID["leases, whole"],
        f"rl-leases 1 {EXPIRY_MS} 1 0 0 0 0",
    ),
    "leases of more than counts": (
        f"rl-leases 1 {EXPIRY_MS} 0 {START_US} 1 1:a {START_US + 9} {MAX_USED}",
        f"rl-leases 1 {EXPIRY_MS} 1 0 {START_US} 0 1 1:b {START_US + 9} 1",
    ),
    "a log of more than counts": (
        f"rl-reqlog 1 {EXPIRY_MS} 0 1 {START_US} {MAX_USED}",
        f"rl-reqlog 1 {EXPIRY_MS} 1 0 0 0 1 {START_US} {MAX_USED}",
    ),
}


@pytest.mark.parametrize("effects", AFTER_EFFECTS.values(), ids=AFTER_EFFECTS.keys())
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
def test_a_key_that_expired_long_ago_is_gone_at_once(effect: str, primary: Redis) -> None:
    apply(primary, "k", changed(effect, (2, 1)))
    assert not primary.exists("k")


@each_valid
def test_the_latest_expiry_is_accepted(effect: str, primary: Redis) -> None:
    apply(primary, "k", changed(effect, (2, LATEST_EXPIRY_MS)))
    assert state(primary)[b"k"].expires_at == LATEST_EXPIRY_MS


@each_valid
def test_a_key_of_another_type_is_an_error(
    effect: str, primary: Redis, offset: Callable[[], int]
) -> None:
    kind = effect.split(" ", maxsplit=1)[0]
    others = [other for other in VALID.values() if other.split(" ")[0] != kind]
    primary.set("string", "x")
    for other in others:
        apply(primary, other.split(" ")[0], other)
    before = state(primary), offset()
    for key in before[0]:
        for words in [(key, effect), ("good", effect, key, effect), (key, f"{kind} del")]:
            check_refused(primary, *words, match="^WRONGTYPE")
            assert (state(primary), offset()) == before


def test_the_same_key_twice_is_an_error(primary: Redis, offset: Callable[[], int]) -> None:
    before = offset()
    bucket, window = VALID["bucket"], VALID["window"]
    check_refused(primary, "k", bucket, "k", bucket)
    check_refused(primary, "k", bucket, "l", window, "k", "rl-bucket del")
    many = [word for number in range(50) for word in (f"k{number}", bucket)]
    check_refused(primary, *many, "k17", bucket)
    assert primary.dbsize() == 0
    assert offset() == before
    apply(primary, *many)
    assert primary.dbsize() == 50


def test_a_wrong_number_of_arguments_is_an_error(primary: Redis, offset: Callable[[], int]) -> None:
    before = offset()
    for words in [(), ("k",), ("k", VALID["bucket"], "l")]:
        check_refused(primary, *words, match="wrong number of arguments")
    assert primary.dbsize() == 0
    assert offset() == before


def test_several_effects_are_applied_and_passed_on_together(
    fresh_server: Callable[..., Server],
) -> None:
    server = fresh_server(appendonly="yes", appendfsync="always")
    client = server.client()
    words = [word for name, effect in VALID.items() for word in (name, effect)]
    apply(client, *words)
    assert written_commands(server) == [(b"RL.EFFECT", *(word.encode() for word in words))]
    held = state(client)
    assert len(held) == len(VALID)
    server.restart("kill")
    assert state(client) == held


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
    held = state(primary)
    for name in VALID:
        assert held[name.encode()] == held[f"{name}, by script".encode()]
    assert len(held) == 2 * len(VALID)
    pair.replica.wait_for_sync()
    assert state(pair.replica.client()) == held


@each_valid
def test_a_replica_takes_effects_from_nobody_but_its_primary(effect: str, pair: Pair) -> None:
    replica = pair.replica.client()
    with pytest.raises(ReadOnlyError):
        replica.execute_command("RL.EFFECT", "k", effect)
    assert replica.dbsize() == 0


@each_valid
def test_who_watches_a_key_is_told_of_an_effect(effect: str, server: Server) -> None:
    watcher, caller = server.client(), server.client()
    with watcher.pipeline() as pipeline:
        pipeline.watch("k")
        apply(caller, "k", effect)
        pipeline.multi()
        pipeline.ping()
        with pytest.raises(WatchError):
            pipeline.execute()
