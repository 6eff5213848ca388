"""Policies are set, read, scaled and deleted by name, and later calls use them.

The grammar of policies is specified in core/src/syntax/policy/tests.rs, and how servers agree on
them in core/src/policy/tests.rs. Persistence is in test_policy_persistence.py.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import Redis

from support.clock import START_US, Clock
from support.policies import counts, policies, policy
from support.policy_calls import HOUR, MINUTE, START_MS, Start, answer

pytestmark = pytest.mark.every_server
NAMES = (b"gold", b"a b\r\n\x00\xff", b"1", b"x" * 256)
COUNTED = b"calls admitted denied near shadow_denied banned repeated"
NO_COUNTS = dict.fromkeys(COUNTED.split(), 0)


# RL.POLICYSET, RL.POLICYGET, RL.POLICYLIST, RL.POLICYDEL


@pytest.mark.parametrize("name", NAMES)
def test_a_policy_is_read_back_and_is_gone_after_its_deletion(
    name: bytes, fresh_client: Redis, clock: Clock
) -> None:
    assert fresh_client.execute_command("RL.POLICYGET", name) is None
    assert fresh_client.execute_command("RL.POLICYSET", name, *MINUTE.split()) == START_US
    clock.advance("1500ms")
    second = START_US + 1_500_000
    assert fresh_client.execute_command("RL.POLICYSET", name, *HOUR.lower().split()) == second
    assert policy(fresh_client, name) == (second, START_MS + 1500, b"1", -1, HOUR.encode())
    assert counts(fresh_client, name) == NO_COUNTS
    assert fresh_client.execute_command("RL.POLICYLIST") == [
        [name, second, HOUR.encode(), b"1", -1]
    ]
    assert fresh_client.execute_command("RL.POLICYDEL", name) == 1
    assert fresh_client.execute_command("RL.POLICYDEL", name) == 0
    assert fresh_client.execute_command("RL.POLICYGET", name) is None
    assert fresh_client.execute_command("RL.POLICYLIST") == []
    # The deletion has a stamp too, so that the next version differs from the deleted one.
    assert fresh_client.execute_command("RL.POLICYSET", name, *MINUTE.split()) == second + 2


def test_a_policy_is_a_map_in_resp3(fresh_server: Start) -> None:
    server = fresh_server()
    if server.version < (7,):
        pytest.skip("the server has no maps for modules")
    with server.client(protocol=3) as client:
        client.execute_command(f"RL.POLICYSET gold {MINUTE}")
        client.execute_command("RL.POLICYSCALE gold 0.5 FOR 10s")
        assert client.execute_command("RL.POLICYGET gold") == {
            b"version": START_US,
            b"set_at": START_MS,
            b"scale": b"0.5",
            b"scale_ms": 10_000,
            b"specs": MINUTE.encode(),
            b"counts": NO_COUNTS,
        }
        assert client.execute_command("RL.POLICYGET none") is None


def test_the_text_of_a_policy_sets_it_again(fresh_client: Redis) -> None:
    words = "tokenbucket 60.50 60 60s COST 1 AS a FIXED 9 1mo ALIGNED OFFSET +09:00 BAN 3 1m 3600"
    text = b"TOKENBUCKET 60.5 60 1m COST 1 AS a FIXED 9 1mo ALIGNED OFFSET +09:00 BAN 3 1m 1h"
    version = fresh_client.execute_command(f"RL.POLICYSET gold {words}")
    for _ in range(2):
        stored = policy(fresh_client, "gold")
        assert (stored.version, stored.specs) == (version, text)
        version += 1
        assert (
            fresh_client.execute_command("RL.POLICYSET", "gold", *stored.specs.split()) == version
        )


def test_nx_keeps_an_existing_policy(fresh_client: Redis) -> None:
    version = fresh_client.execute_command(f"RL.POLICYSET gold NX {MINUTE}")
    assert fresh_client.execute_command(f"RL.POLICYSET gold nx {HOUR}") == version
    assert policy(fresh_client, "gold").specs == MINUTE.encode()


def test_a_set_with_another_version_is_refused(fresh_client: Redis) -> None:
    missing = "NOPOLICY no policy 'gold'"
    assert answer(fresh_client, f"RL.POLICYSET gold VERSION 1 {HOUR}") == missing
    first = fresh_client.execute_command(f"RL.POLICYSET gold {MINUTE}")
    other = f"ERR policy 'gold' has version {first}, not 2"
    assert answer(fresh_client, f"RL.POLICYSET gold VERSION 2 {HOUR}") == other
    assert policy(fresh_client, "gold").specs == MINUTE.encode()
    second = fresh_client.execute_command(f"RL.POLICYSET gold VERSION {first} {HOUR}")
    assert second > first
    other = f"ERR policy 'gold' has version {second}, not {first}"
    assert answer(fresh_client, f"RL.POLICYSET gold VERSION {first} {MINUTE}") == other
    fresh_client.execute_command("RL.POLICYDEL gold")
    assert answer(fresh_client, f"RL.POLICYSET gold VERSION {second} {HOUR}") == missing


def test_policies_are_listed_in_order_by_patterns_like_those_of_keys(fresh_client: Redis) -> None:
    names = ["plan:pro", "plan:free", "a*b", "default", "plan:x-1"]
    for name in names:
        fresh_client.execute_command(f"RL.POLICYSET {name} {MINUTE}")
        fresh_client.set(name, "")
    patterns = ["*", "plan:*", "plan:[^p]*", r"a\*b", "?*?", "d[a-e]fault", "x", "PLAN:*", "[", ""]
    for pattern in patterns:
        listed = [row[0] for row in fresh_client.execute_command("RL.POLICYLIST", "MATCH", pattern)]
        assert listed == sorted(fresh_client.keys(pattern)), pattern
    assert list(policies(fresh_client)) == sorted(name.encode() for name in names)


def test_several_policies_are_deleted_by_one_call(fresh_client: Redis) -> None:
    for name in "abc":
        fresh_client.execute_command(f"RL.POLICYSET {name} {MINUTE}")
    assert fresh_client.execute_command("RL.POLICYDEL a none b a") == 2
    assert list(policies(fresh_client)) == [b"c"]


def test_a_policy_of_another_version_is_not_deleted(fresh_client: Redis) -> None:
    missing = "NOPOLICY no policy 'gold'"
    assert answer(fresh_client, "RL.POLICYDEL gold VERSION 1") == missing
    first = fresh_client.execute_command(f"RL.POLICYSET gold {MINUTE}")
    second = fresh_client.execute_command(f"RL.POLICYSET gold {HOUR}")
    other = f"ERR policy 'gold' has version {second}, not {first}"
    assert answer(fresh_client, f"RL.POLICYDEL gold VERSION {first}") == other
    assert policy(fresh_client, "gold").specs == HOUR.encode()
    # A scale does not change the version.
    fresh_client.execute_command("RL.POLICYSCALE gold 0.5")
    assert fresh_client.execute_command(f"RL.POLICYDEL gold version {second}") == 1
    assert policies(fresh_client) == {}
    assert answer(fresh_client, f"RL.POLICYDEL gold VERSION {second}") == missing


def test_version_after_a_single_name_is_an_option(fresh_client: Redis) -> None:
    for name in ("gold", "VERSION", "3"):
        fresh_client.execute_command(f"RL.POLICYSET {name} {MINUTE}")
    version = policy(fresh_client, "VERSION").version
    assert answer(fresh_client, "RL.POLICYDEL gold VERSION 3").endswith(", not 3")
    error = answer(fresh_client, "RL.POLICYDEL gold 3 VERSION 3")
    assert error.endswith("unexpected 'VERSION', which must come right after a single name")
    assert len(policies(fresh_client)) == 3
    assert fresh_client.execute_command(f"RL.POLICYDEL VERSION VERSION {version}") == 1
    assert fresh_client.execute_command("RL.POLICYDEL gold 3") == 2


def test_only_one_of_concurrent_change_and_deletion_succeeds(fresh_server: Start) -> None:
    server = fresh_server()
    with server.client() as one, server.client() as other, ThreadPoolExecutor(2) as threads:
        for _ in range(200):
            version = one.execute_command(f"RL.POLICYSET gold {MINUTE}")
            change = f"RL.POLICYSET gold VERSION {version} {HOUR}"
            deletion = f"RL.POLICYDEL gold VERSION {version}"
            replies = list(threads.map(answer, (one, other), (change, deletion)))
            changed, deleted = (isinstance(reply, int) for reply in replies)
            assert changed != deleted, replies
            assert (b"gold" in policies(one)) == changed


# Calls by a policy


def test_missing_policy_has_its_own_error_code(fresh_client: Redis) -> None:
    assert answer(fresh_client, "RL.LIMIT k gold") == "NOPOLICY no policy 'gold'"
    assert answer(fresh_client, "RL.LIMIT k gold OR pro") == "NOPOLICY no policy 'gold' or 'pro'"
    assert fresh_client.dbsize() == 0
    # The code lets a client set the policy and call again.
    fresh_client.execute_command(f"RL.POLICYSET gold NX {MINUTE}")
    assert fresh_client.execute_command("RL.LIMIT k gold") == [1, 60, 59, 0, 1000]


def test_new_limit_applies_to_the_next_call_and_keeps_usage(fresh_client: Redis) -> None:
    fresh_client.execute_command("RL.POLICYSET gold FIXED 10 1h")
    assert fresh_client.execute_command("RL.LIMIT k gold COST 8") == [1, 10, 2, 0, 3_600_000]
    fresh_client.execute_command("RL.POLICYSET gold FIXED 9 1h")
    assert fresh_client.execute_command("RL.LIMIT k gold COST 2") == [0, 9, 1, 3_600_000, 3_600_000]
    fresh_client.execute_command("RL.POLICYSET gold FIXED 20 1h")
    assert fresh_client.execute_command("RL.LIMIT k gold COST 2") == [1, 20, 10, 0, 3_600_000]


def test_policy_applies_to_any_key_in_any_database(fresh_client: Redis) -> None:
    fresh_client.execute_command("RL.POLICYSET gold FIXED 10 1h")
    fresh_client.execute_command("SELECT 5")
    assert fresh_client.execute_command("RL.LIMIT k gold")[2] == 9
    fresh_client.execute_command("RL.POLICYSET gold FIXED 5 1h")
    fresh_client.execute_command("SELECT 0")
    assert fresh_client.execute_command("RL.LIMIT k gold")[:3] == [1, 5, 4]
    fresh_client.flushall()
    assert fresh_client.execute_command("RL.LIMIT k gold")[:3] == [1, 5, 4], (
        "FLUSHALL keeps policies"
    )


def test_calls_are_counted_for_their_policy_across_its_changes(fresh_client: Redis) -> None:
    fresh_client.execute_command("RL.POLICYSET pro FIXED 5 1h")
    for _ in range(7):
        fresh_client.execute_command("RL.LIMIT k gold OR pro")
    fresh_client.execute_command("RL.LIMIT k pro COST 0")
    # After the fourth and fifth call, at most a fifth of the limit remained.
    expected = NO_COUNTS | {b"calls": 8, b"admitted": 5, b"denied": 2, b"near": 2}
    assert counts(fresh_client, "pro") == expected
    fresh_client.execute_command("RL.POLICYSET pro FIXED 6 1h")
    fresh_client.execute_command("RL.POLICYSCALE pro 2")
    fresh_client.execute_command("RL.LIMIT k pro")
    assert counts(fresh_client, "pro") == expected | {b"calls": 9, b"admitted": 6}
    fresh_client.execute_command("RL.POLICYDEL pro")
    fresh_client.execute_command("RL.POLICYSET pro FIXED 6 1h")
    assert counts(fresh_client, "pro") == NO_COUNTS


# RL.POLICYSCALE


def test_scale_applies_at_once_and_expires(fresh_client: Redis, clock: Clock) -> None:
    fresh_client.execute_command(f"RL.POLICYSET gold {MINUTE}")
    assert fresh_client.execute_command("RL.POLICYSCALE gold 0.50 FOR 10s") == [
        START_US,
        b"0.5",
        10_000,
    ]
    assert policy(fresh_client, "gold").specs == MINUTE.encode(), (
        "a scale does not change the specs"
    )
    assert fresh_client.execute_command("RL.LIMIT k gold COST 29") == [1, 30, 1, 0, 58_000]
    # The bucket regains half a unit a second.
    assert fresh_client.execute_command("RL.LIMIT k gold COST 2") == [0, 30, 1, 2000, 58_000]
    clock.advance("1999999us")
    assert fresh_client.execute_command("RL.LIMIT k gold COST 2")[0] == 0
    clock.advance("1us")
    assert fresh_client.execute_command("RL.LIMIT k gold COST 2") == [1, 30, 0, 0, 60_000]
    clock.advance("7999500us")
    assert policy(fresh_client, "gold")[2:4] == (b"0.5", 1)
    clock.advance("500us")
    assert policy(fresh_client, "gold")[2:4] == (b"1", -1)
    assert fresh_client.execute_command("RL.LIMIT k gold COST 0")[:2] == [1, 60]


def test_a_permanent_scale_is_kept_by_a_set_and_removed_by_a_deletion(
    fresh_client: Redis, clock: Clock
) -> None:
    fresh_client.execute_command("RL.POLICYSET gold FIXED 10 1h")
    assert fresh_client.execute_command("RL.POLICYSCALE gold 1.5") == [START_US, b"1.5", -1]
    clock.advance("3650d")
    second = fresh_client.execute_command("RL.POLICYSET gold FIXED 20 1h")
    assert fresh_client.execute_command("RL.POLICYSCALE gold 2.5") == [second, b"2.5", -1]
    assert fresh_client.execute_command("RL.LIMIT k gold")[1] == 50
    scaled = fresh_client.execute_command("RL.POLICYSCALE gold 1 FOR 3650d")
    assert scaled == [second, b"1", 315_360_000_000]
    assert fresh_client.execute_command("RL.LIMIT k gold")[1] == 20
    fresh_client.execute_command("RL.POLICYSCALE gold 0")
    assert fresh_client.execute_command("RL.LIMIT k gold") == [0, 0, 0, -1, 3_600_000]
    fresh_client.execute_command("RL.POLICYDEL gold")
    assert answer(fresh_client, "RL.POLICYSCALE gold 2") == "NOPOLICY no policy 'gold'"
    fresh_client.execute_command("RL.POLICYSET gold FIXED 20 1h")
    assert fresh_client.execute_command("RL.LIMIT k gold")[:3] == [1, 20, 17]
