"""`RL.EFFECT` converts a plain key to a composite key, once, and converts no other key."""

from collections.abc import Callable

import pytest
from redis import Redis

from conftest import Pair
from support.effects import (
    EXPIRY_MS,
    LATEST_EXPIRY_MS,
    VALID,
    apply,
    changed,
    check_refused,
    check_valid,
    each_conversion,
)
from support.workload import state

pytestmark = pytest.mark.every_server


@each_conversion
def test_a_conversion_turns_a_plain_key_into_a_composite_key(
    stored: str, conversion: str, primary: Redis, pair: Pair
) -> None:
    apply(primary, "k", stored)
    apply(primary, "k", conversion)
    converted = state(primary)[b"k"]
    assert (converted.type, converted.expires_at) == (b"rl-limits", EXPIRY_MS + 1)
    info = primary.execute_command("RL.INFO", "k")
    (part,) = info[info.index(b"parts") + 1]
    assert part[:2] == [b"kind", stored.split(maxsplit=1)[0].encode()]
    check_valid(primary, "k")
    pair.replica.wait_for_sync()
    assert state(pair.replica.client()) == state(primary)
    # A second conversion changes nothing.
    check_refused(primary, "k", conversion, match="^WRONGTYPE")


@each_conversion
def test_conversion_of_another_type_is_an_error(
    stored: str, conversion: str, primary: Redis, replication_offset: Callable[[], int]
) -> None:
    kind = stored.split(maxsplit=1)[0]
    for other in VALID.values():
        apply(primary, other.split(" ", maxsplit=1)[0], other)
    primary.set("string", "x")
    before = state(primary), replication_offset()
    for key in {"missing", *(key.decode() for key in before[0])} - {kind}:
        error = "^invalid effect$" if key == "missing" else "^WRONGTYPE"
        check_refused(primary, key, conversion, match=error)
        check_refused(primary, "good", VALID["bucket"], key, conversion, match=error)
        assert (state(primary), replication_offset()) == before


@each_conversion
def test_malformed_conversion_is_an_error_and_changes_nothing(
    stored: str, conversion: str, primary: Redis, replication_offset: Callable[[], int]
) -> None:
    apply(primary, "k", stored)
    before = state(primary), replication_offset()
    malformed = {
        "another version": changed(conversion, (2, 2)),
        "no expiry": changed(conversion, (3, 0)),
        "an expiry too late": changed(conversion, (3, LATEST_EXPIRY_MS + 1)),
        "an expiry that no key had": changed(conversion, (4, LATEST_EXPIRY_MS + 1)),
        "a whole state in place of a change": changed(conversion, (5, 0)),
        "a clock that moved back": changed(conversion, (7, 1)),
        "no change": " ".join([*conversion.split(" ")[:8], "0"]),
        "an unknown id": changed(conversion, (9, "2 2:id")),
        "a field too many": f"{conversion} 0",
    }
    for why, effect in malformed.items():
        check_refused(primary, "k", effect)
        assert (state(primary), replication_offset()) == before, why
    # Truncated down to the last field, whose prefix is a smaller number.
    for length in range(len(conversion.rsplit(" ", 1)[0]) + 2):
        check_refused(primary, "k", conversion[:length], match="^(invalid effect|WRONGTYPE.*)$")
    assert (state(primary), replication_offset()) == before
