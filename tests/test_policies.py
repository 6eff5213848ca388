"""Policies on a server: set, read, scaled and deleted by name, and what a call on them then finds.

Which words make a policy is specified in core/src/syntax/policy/tests.rs, and what servers agree on
in core/src/policy/tests.rs. How they last is in test_policy_persistence.py.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import ReadOnlyError, Redis, ResponseError

from conftest import Pair
from support.binaries import NO_MODULE_CONFIG
from support.clock import START_US, Clock
from support.policies import counts, policies, policy
from support.server import Server
from support.workload import state, written_commands

pytestmark = pytest.mark.every_server

MINUTE = "TOKENBUCKET 60 60 1m"
HOUR = "FIXED 1000 1h"
START_MS = START_US // 1000

NAMES = (b"gold", b"a b\r\n\x00\xff", b"1", b"x" * 256)
COUNTED = b"calls admitted denied near shadow_denied banned repeated"
NO_COUNTS = dict.fromkeys(COUNTED.split(), 0)

Start = Callable[..., Server]


@pytest.fixture
def fresh(fresh_server: Start) -> Redis:
    """A server that has never heard of a policy."""
    return fresh_server().client()


def answer(redis: Redis, *words: str | bytes) -> object:
    """The reply, or an error as it stands on the wire."""
    try:
        return redis.execute_command(*words)
    except ResponseError as error:
        # A code that the client does not know is a part of the text.
        return f"{error.status_code or ''} {error}".lstrip()


# RL.POLICYSET, RL.POLICYGET, RL.POLICYLIST, RL.POLICYDEL


@pytest.mark.parametrize("name", NAMES)
def test_what_is_set_is_read_back_and_is_gone_when_it_is_deleted(
    name: bytes, fresh: Redis, clock: Clock
) -> None:
    assert fresh.execute_command("RL.POLICYGET", name) is None
    assert fresh.execute_command("RL.POLICYSET", name, *MINUTE.split()) == START_US
    clock.advance("1500ms")
    second = START_US + 1_500_000
    assert fresh.execute_command("RL.POLICYSET", name, *HOUR.lower().split()) == second
    assert policy(fresh, name) == (second, START_MS + 1500, b"1", -1, HOUR.encode())
    assert counts(fresh, name) == NO_COUNTS
    assert fresh.execute_command("RL.POLICYLIST") == [[name, second, HOUR.encode(), b"1", -1]]
    assert fresh.execute_command("RL.POLICYDEL", name) == 1
    assert fresh.execute_command("RL.POLICYDEL", name) == 0
    assert fresh.execute_command("RL.POLICYGET", name) is None
    assert fresh.execute_command("RL.POLICYLIST") == []
    # A server that knew the second must not take another for it: the deletion has had a stamp too.
    assert fresh.execute_command("RL.POLICYSET", name, *MINUTE.split()) == second + 2


def test_a_policy_is_told_as_a_map_in_resp3(fresh_server: Start) -> None:
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


def test_the_text_of_a_policy_sets_it_again(fresh: Redis) -> None:
    words = "tokenbucket 60.50 60 60s COST 1 AS a FIXED 9 1mo ALIGNED OFFSET +09:00 BAN 3 1m 3600"
    text = b"TOKENBUCKET 60.5 60 1m COST 1 AS a FIXED 9 1mo ALIGNED OFFSET +09:00 BAN 3 1m 1h"
    version = fresh.execute_command(f"RL.POLICYSET gold {words}")
    for _ in range(2):
        told = policy(fresh, "gold")
        assert (told.version, told.specs) == (version, text)
        version += 1
        assert fresh.execute_command("RL.POLICYSET", "gold", *told.specs.split()) == version


def test_nx_leaves_what_there_is(fresh: Redis) -> None:
    version = fresh.execute_command(f"RL.POLICYSET gold NX {MINUTE}")
    assert fresh.execute_command(f"RL.POLICYSET gold nx {HOUR}") == version
    assert policy(fresh, "gold").specs == MINUTE.encode()


def test_a_set_over_a_version_is_refused_over_another(fresh: Redis) -> None:
    missing = "NOPOLICY no policy 'gold'"
    assert answer(fresh, f"RL.POLICYSET gold VERSION 1 {HOUR}") == missing
    first = fresh.execute_command(f"RL.POLICYSET gold {MINUTE}")
    other = f"ERR policy 'gold' has version {first}, not 2"
    assert answer(fresh, f"RL.POLICYSET gold VERSION 2 {HOUR}") == other
    assert policy(fresh, "gold").specs == MINUTE.encode()
    second = fresh.execute_command(f"RL.POLICYSET gold VERSION {first} {HOUR}")
    assert second > first
    other = f"ERR policy 'gold' has version {second}, not {first}"
    assert answer(fresh, f"RL.POLICYSET gold VERSION {first} {MINUTE}") == other
    fresh.execute_command("RL.POLICYDEL gold")
    assert answer(fresh, f"RL.POLICYSET gold VERSION {second} {HOUR}") == missing


def test_policies_are_listed_by_name_and_by_patterns_as_keys_are(fresh: Redis) -> None:
    names = ["plan:pro", "plan:free", "a*b", "default", "plan:x-1"]
    for name in names:
        fresh.execute_command(f"RL.POLICYSET {name} {MINUTE}")
        fresh.set(name, "")
    patterns = ["*", "plan:*", "plan:[^p]*", r"a\*b", "?*?", "d[a-e]fault", "x", "PLAN:*", "[", ""]
    for pattern in patterns:
        listed = [row[0] for row in fresh.execute_command("RL.POLICYLIST", "MATCH", pattern)]
        assert listed == sorted(fresh.keys(pattern)), pattern
    assert list(policies(fresh)) == sorted(name.encode() for name in names)


def test_several_are_deleted_at_once(fresh: Redis) -> None:
    for name in "abc":
        fresh.execute_command(f"RL.POLICYSET {name} {MINUTE}")
    assert fresh.execute_command("RL.POLICYDEL a none b a") == 2
    assert list(policies(fresh)) == [b"c"]


def test_a_policy_of_another_version_is_not_deleted(fresh: Redis) -> None:
    missing = "NOPOLICY no policy 'gold'"
    assert answer(fresh, "RL.POLICYDEL gold VERSION 1") == missing
    first = fresh.execute_command(f"RL.POLICYSET gold {MINUTE}")
    second = fresh.execute_command(f"RL.POLICYSET gold {HOUR}")
    other = f"ERR policy 'gold' has version {second}, not {first}"
    assert answer(fresh, f"RL.POLICYDEL gold VERSION {first}") == other
    assert policy(fresh, "gold").specs == HOUR.encode()
    # A scale leaves the version.
    fresh.execute_command("RL.POLICYSCALE gold 0.5")
    assert fresh.execute_command(f"RL.POLICYDEL gold version {second}") == 1
    assert policies(fresh) == {}
    assert answer(fresh, f"RL.POLICYDEL gold VERSION {second}") == missing


def test_version_is_no_name_of_a_policy_behind_another(fresh: Redis) -> None:
    for name in ("gold", "VERSION", "3"):
        fresh.execute_command(f"RL.POLICYSET {name} {MINUTE}")
    version = policy(fresh, "VERSION").version
    assert answer(fresh, "RL.POLICYDEL gold VERSION 3").endswith(", not 3")
    told = answer(fresh, "RL.POLICYDEL gold 3 VERSION 3")
    assert told.endswith("unexpected 'VERSION', which must come right after a single name")
    assert len(policies(fresh)) == 3
    assert fresh.execute_command(f"RL.POLICYDEL VERSION VERSION {version}") == 1
    assert fresh.execute_command("RL.POLICYDEL gold 3") == 2


def test_of_a_change_and_a_deletion_of_one_version_one_succeeds(fresh_server: Start) -> None:
    server = fresh_server()
    with server.client() as one, server.client() as other, ThreadPoolExecutor(2) as threads:
        for _ in range(200):
            version = one.execute_command(f"RL.POLICYSET gold {MINUTE}")
            change = f"RL.POLICYSET gold VERSION {version} {HOUR}"
            deletion = f"RL.POLICYDEL gold VERSION {version}"
            told = list(threads.map(answer, (one, other), (change, deletion)))
            changed, deleted = (isinstance(reply, int) for reply in told)
            assert changed != deleted, told
            assert (b"gold" in policies(one)) == changed


# What calls then find


def test_a_policy_that_is_missing_is_an_error_with_a_code_of_its_own(fresh: Redis) -> None:
    assert answer(fresh, "RL.LIMIT k gold") == "NOPOLICY no policy 'gold'"
    assert answer(fresh, "RL.LIMIT k gold OR pro") == "NOPOLICY no policy 'gold' or 'pro'"
    assert fresh.dbsize() == 0
    # So that a client can set it, and call again.
    fresh.execute_command(f"RL.POLICYSET gold NX {MINUTE}")
    assert fresh.execute_command("RL.LIMIT k gold") == [1, 60, 59, 0, 1000]


def test_new_numbers_hold_at_the_next_call_and_forgive_nobody(fresh: Redis) -> None:
    fresh.execute_command("RL.POLICYSET gold FIXED 10 1h")
    assert fresh.execute_command("RL.LIMIT k gold COST 8") == [1, 10, 2, 0, 3_600_000]
    fresh.execute_command("RL.POLICYSET gold FIXED 9 1h")
    assert fresh.execute_command("RL.LIMIT k gold COST 2") == [0, 9, 1, 3_600_000, 3_600_000]
    fresh.execute_command("RL.POLICYSET gold FIXED 20 1h")
    assert fresh.execute_command("RL.LIMIT k gold COST 2") == [1, 20, 10, 0, 3_600_000]


def test_a_policy_rules_whichever_key_in_whichever_database(fresh: Redis) -> None:
    fresh.execute_command("RL.POLICYSET gold FIXED 10 1h")
    fresh.execute_command("SELECT 5")
    assert fresh.execute_command("RL.LIMIT k gold")[2] == 9
    fresh.execute_command("RL.POLICYSET gold FIXED 5 1h")
    fresh.execute_command("SELECT 0")
    assert fresh.execute_command("RL.LIMIT k gold")[:3] == [1, 5, 4]
    fresh.flushall()
    assert fresh.execute_command("RL.LIMIT k gold")[:3] == [1, 5, 4], "they are no keys"


def test_calls_are_counted_for_the_policy_that_ruled_and_outlast_its_changes(fresh: Redis) -> None:
    fresh.execute_command("RL.POLICYSET pro FIXED 5 1h")
    for _ in range(7):
        fresh.execute_command("RL.LIMIT k gold OR pro")
    fresh.execute_command("RL.LIMIT k pro COST 0")
    # The fourth and the fifth left a fifth or less.
    told = NO_COUNTS | {b"calls": 8, b"admitted": 5, b"denied": 2, b"near": 2}
    assert counts(fresh, "pro") == told
    fresh.execute_command("RL.POLICYSET pro FIXED 6 1h")
    fresh.execute_command("RL.POLICYSCALE pro 2")
    fresh.execute_command("RL.LIMIT k pro")
    assert counts(fresh, "pro") == told | {b"calls": 9, b"admitted": 6}
    fresh.execute_command("RL.POLICYDEL pro")
    fresh.execute_command("RL.POLICYSET pro FIXED 6 1h")
    assert counts(fresh, "pro") == NO_COUNTS


# RL.POLICYSCALE


def test_a_scale_holds_at_once_and_ends_by_itself(fresh: Redis, clock: Clock) -> None:
    fresh.execute_command(f"RL.POLICYSET gold {MINUTE}")
    assert fresh.execute_command("RL.POLICYSCALE gold 0.50 FOR 10s") == [START_US, b"0.5", 10_000]
    assert policy(fresh, "gold").specs == MINUTE.encode(), "told as it was set"
    assert fresh.execute_command("RL.LIMIT k gold COST 29") == [1, 30, 1, 0, 58_000]
    # At the rate as it stands, half a unit a second.
    assert fresh.execute_command("RL.LIMIT k gold COST 2") == [0, 30, 1, 2000, 58_000]
    clock.advance("1999999us")
    assert fresh.execute_command("RL.LIMIT k gold COST 2")[0] == 0
    clock.advance("1us")
    assert fresh.execute_command("RL.LIMIT k gold COST 2") == [1, 30, 0, 0, 60_000]
    clock.advance("7999500us")
    assert policy(fresh, "gold")[2:4] == (b"0.5", 1)
    clock.advance("500us")
    assert policy(fresh, "gold")[2:4] == (b"1", -1)
    # 8 seconds at half the rate were part of the way; what is used is used.
    assert fresh.execute_command("RL.LIMIT k gold COST 0")[:2] == [1, 60]


def test_a_scale_for_good_stays_when_its_policy_is_set_and_goes_when_it_is_deleted(
    fresh: Redis, clock: Clock
) -> None:
    fresh.execute_command("RL.POLICYSET gold FIXED 10 1h")
    assert fresh.execute_command("RL.POLICYSCALE gold 1.5") == [START_US, b"1.5", -1]
    clock.advance("3650d")
    second = fresh.execute_command("RL.POLICYSET gold FIXED 20 1h")
    assert fresh.execute_command("RL.POLICYSCALE gold 2.5") == [second, b"2.5", -1]
    assert fresh.execute_command("RL.LIMIT k gold")[1] == 50
    scaled = fresh.execute_command("RL.POLICYSCALE gold 1 FOR 3650d")
    assert scaled == [second, b"1", 315_360_000_000]
    assert fresh.execute_command("RL.LIMIT k gold")[1] == 20
    fresh.execute_command("RL.POLICYSCALE gold 0")
    assert fresh.execute_command("RL.LIMIT k gold") == [0, 0, 0, -1, 3_600_000]
    fresh.execute_command("RL.POLICYDEL gold")
    assert answer(fresh, "RL.POLICYSCALE gold 2") == "NOPOLICY no policy 'gold'"
    fresh.execute_command("RL.POLICYSET gold FIXED 20 1h")
    assert fresh.execute_command("RL.LIMIT k gold")[:3] == [1, 20, 17]


# Errors


MUST_BE_NAME = "ERR name must be a name of 1 to 256 bytes, such as plan:pro, not"
FACTOR = "ERR factor must be a number from 0 to 1000, such as 0.5, not"
VERSION = "ERR version must be a whole number"
DURATION = "ERR duration must be a duration from 1us to 3650d, such as 10m, not '0'"
PATTERN = "ERR pattern must be a pattern of at most 1024 bytes, such as plan:*, not"
NO_SPEC = "ERR a spec is missing: RL.POLICYSET name [NX | VERSION version] spec [spec ...]"
ALGORITHMS = "TOKENBUCKET, LEAKYBUCKET, FIXED, SLIDING, SLIDINGLOG, CONCURRENCY or SKETCH"
FIRST = f"where an algorithm is needed: {ALGORITHMS}"
NO_KEY = "FIXED limit window, with no key between"
BEHIND = "where an option of the spec before, BAN or an algorithm is needed"
FIXED = "COST, AS, ALIGNED, OFFSET, ANCHOR or SHADOW"
ALONE = "which must be the only spec of its key and cannot be in a policy"
NINE = " ".join(f"FIXED 5 {seconds}s" for seconds in range(1, 10))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("RL.POLICYSET gold", "arity"),
        ("RL.POLICYSET gold NX", NO_SPEC),
        ("RL.POLICYSET gold VERSION 1", NO_SPEC),
        ("RL.POLICYSET gold FIXED 5", "ERR window is missing: FIXED limit window"),
        (
            "RL.POLICYSET gold VERSION 0 FIXED 5 1m",
            f"{VERSION} above 0, such as 1700000000000000, not '0'",
        ),
        ("RL.POLICYSET gold VERSION x FIXED 5 1m", f"{VERSION} such as 1700000000000000, not 'x'"),
        (
            "RL.POLICYSET gold NX VERSION 1 FIXED 5 1m",
            f"ERR syntax error, unexpected 'VERSION', where an algorithm is needed: {ALGORITHMS}",
        ),
        (
            "RL.POLICYSET gold FIXD 5 1m",
            f"ERR syntax error, unexpected 'FIXD', {FIRST}; did you mean FIXED?",
        ),
        (
            "RL.POLICYSET gold FIXED 5 1m KEEP 3",
            f"ERR syntax error, unexpected 'KEEP', {BEHIND}: {FIXED}; {ALGORITHMS}",
        ),
        (
            "RL.POLICYSET gold POLICY pro",
            f"ERR syntax error, unexpected 'POLICY', {ALONE}",
        ),
        (
            f"RL.POLICYSET gold {NINE}",
            "ERR syntax error, unexpected 'FIXED', since a policy has 8 specs at most",
        ),
        (
            "RL.POLICYSET gold FIXED x 1m",
            f"ERR limit must be a number such as 100, not 'x' ({NO_KEY})",
        ),
        ("RL.POLICYSCALE there", "arity"),
        ("RL.POLICYSCALE there 1 FOR", "ERR duration is missing: FOR duration"),
        ("RL.POLICYSCALE there 1001", f"{FACTOR} '1001'"),
        ("RL.POLICYSCALE there -1", f"{FACTOR} '-1'"),
        ("RL.POLICYSCALE there 1 FOR 0", DURATION),
        (
            "RL.POLICYSCALE there 1 UNTIL 5",
            "ERR syntax error, unexpected 'UNTIL', where only FOR duration can follow",
        ),
        ("RL.POLICYSCALE gold 1", "NOPOLICY no policy 'gold'"),
        ("RL.POLICYGET", "arity"),
        ("RL.POLICYGET there gold", "arity"),
        ("RL.POLICYLIST MATCH", "ERR pattern is missing: MATCH pattern"),
        (
            "RL.POLICYLIST plan:*",
            "ERR syntax error, unexpected 'plan:*', where MATCH is needed",
        ),
        (
            "RL.POLICYLIST MATCH a b",
            "ERR syntax error, unexpected 'b', where no more words can follow",
        ),
        (f"RL.POLICYLIST MATCH {'*' * 1025}", f"{PATTERN} '{'*' * 32}...'"),
        (f"RL.POLICYLIST MATCH {'a' * 2**20}", f"{PATTERN} '{'a' * 32}...'"),
        ("RL.POLICYDEL", "arity"),
        ("RL.POLICYEFFECT", "arity"),
        ("RL.POLICYEFFECT there", "ERR invalid effect"),
    ],
)
def test_a_wrong_call_is_refused_with_the_reason_and_changes_nothing(
    call: str, error: str, fresh: Redis
) -> None:
    fresh.execute_command(f"RL.POLICYSET there {MINUTE}")
    before = policies(fresh)
    # Servers differ in whether they tell a command's name in lower case or as it was sent.
    command, *words = call.split()
    command = command.lower()
    if error == "arity":
        error = f"ERR wrong number of arguments for '{command}' command"
    assert answer(fresh, command, *words) == error
    assert policies(fresh) == before


@pytest.mark.parametrize("name", [b"", b"x" * 257])
def test_a_name_has_1_to_256_bytes(name: bytes, fresh: Redis) -> None:
    for call in (
        ("RL.POLICYSET", name, *MINUTE.split()),
        ("RL.POLICYSCALE", name, "1"),
        ("RL.POLICYGET", name),
        ("RL.POLICYDEL", name),
        ("RL.POLICYDEL", "gold", name),
        ("RL.LIMIT", "k", name),
        ("RL.LIMIT", "k", "gold", "OR", name),
        ("RL.DELAY", "k", name),
        ("RL.TAKE", "k", "POLICY", name),
    ):
        shown = f"{'x' * 32}..." if name else ""
        assert answer(fresh, *call) == f"{MUST_BE_NAME} '{shown}'", call


def test_a_name_that_is_no_text_is_shown_escaped(fresh: Redis) -> None:
    fresh.execute_command("RL.POLICYSET", b"a'\r\n\xff", *MINUTE.split())
    told = answer(fresh, "RL.POLICYSET", b"a'\r\n\xff", "VERSION", "2", *MINUTE.split())
    assert told == rf"ERR policy 'a\'\r\n\xff' has version {START_US}, not 2"
    assert answer(fresh, "RL.LIMIT", "k", b"\n") == r"NOPOLICY no policy '\n'"


# Bounds


def test_there_may_be_as_many_policies_as_the_setting_says(fresh_server: Start) -> None:
    server = fresh_server(module_args="max-policies 2")
    with server.client() as client:
        for name in "ab":
            client.execute_command(f"RL.POLICYSET {name} {MINUTE}")
        full = "ERR there are 2 policies, as many as ratelimit.max-policies allows"
        assert answer(client, f"RL.POLICYSET c {MINUTE}") == full
        assert answer(client, f"RL.POLICYSET c NX {MINUTE}") == full
        assert client.execute_command(f"RL.POLICYSET a {HOUR}") > START_US
        assert client.execute_command("RL.POLICYDEL b") == 1
        assert client.execute_command(f"RL.POLICYSET c {MINUTE}") > START_US
        if not server.binary.has_module_config:
            pytest.skip(NO_MODULE_CONFIG)
        client.config_set("ratelimit.max-policies", 3)
        assert client.execute_command(f"RL.POLICYSET b {MINUTE}") > START_US
        # What there is stays, and can be changed.
        client.config_set("ratelimit.max-policies", 1)
        assert client.execute_command(f"RL.POLICYSET b {HOUR}") > START_US
        assert list(policies(client)) == [b"a", b"b", b"c"]


def test_there_may_be_4096_unless_it_says_more(fresh: Redis) -> None:
    with fresh.pipeline(transaction=False) as pipeline:
        for number in range(4096):
            pipeline.execute_command(f"RL.POLICYSET plan:{number} FIXED {number} 1h")
        # On a clock that stands still, none twice.
        assert pipeline.execute() == list(range(START_US, START_US + 4096))
    full = "ERR there are 4096 policies, as many as ratelimit.max-policies allows"
    assert answer(fresh, f"RL.POLICYSET one-more {MINUTE}") == full
    # Each rules by itself.
    for number in (0, 1, 77, 4095):
        decision = fresh.execute_command(f"RL.LIMIT k{number} plan:{number}")
        assert decision[:2] == [int(number > 0), number]
    assert len(fresh.execute_command("RL.POLICYLIST")) == 4096


def test_info_shows_the_100_with_the_most_calls_and_how_many_there_are(fresh: Redis) -> None:
    def shown() -> tuple[int, int, list[str]]:
        told = fresh.info("ratelimit_policies")
        lines = [line for name, line in told.items() if name.startswith("ratelimit_policy_")]
        names = [str(line["name"]) for line in lines if isinstance(line, dict)]
        return told["ratelimit_policies"], told["ratelimit_policies_shown"], names

    for number in range(100):
        fresh.execute_command(f"RL.POLICYSET plan:{number:03} {MINUTE}")
    everyone = [f"plan:{number:03}" for number in range(100)]
    assert shown() == (100, 100, everyone)
    called = [f"plan:{number}" for number in range(200, 250)]
    for number in range(100, 300):
        fresh.execute_command(f"RL.POLICYSET plan:{number} {MINUTE}")
    for name in called:
        fresh.execute_command(f"RL.LIMIT k {name}")
    count, lines, names = shown()
    assert (count, lines, len(names)) == (300, 100, 100)
    assert set(called) <= set(names)
    assert names == sorted(names)
    assert len(fresh.execute_command("RL.POLICYLIST")) == 300


def test_a_policys_line_in_info_says_how_it_is_scaled(fresh: Redis, clock: Clock) -> None:
    fresh.execute_command(f"RL.POLICYSET gold {MINUTE}")

    def line() -> dict[str, object]:
        return fresh.info("ratelimit_policies")["ratelimit_policy_0"]

    assert (line()["scale"], line()["scale_ms"]) == (1, -1)
    fresh.execute_command("RL.POLICYSCALE gold 0.5 FOR 10s")
    clock.advance("1s")
    assert (line()["scale"], line()["scale_ms"]) == (0.5, 9000)
    assert fresh.execute_command("RL.POLICYLIST")[0][3:] == [b"0.5", 9000]
    clock.advance("9s")
    assert (line()["scale"], line()["scale_ms"]) == (1, -1)


# Transactions and scripts


def test_policies_change_in_transactions_and_scripts_as_they_come(pair: Pair) -> None:
    primary = pair.primary.client()
    primary.execute_command("RL.POLICYDEL gold")
    with primary.pipeline(transaction=True) as transaction:
        transaction.execute_command("RL.POLICYSET gold FIXED 10 1h")
        transaction.execute_command("RL.LIMIT k gold")
        transaction.execute_command("RL.POLICYSCALE gold 0.5")
        transaction.execute_command("RL.LIMIT k gold")
        replies = transaction.execute()
    assert [replies[1][1], replies[3][1]] == [10, 5]
    script = """
        redis.call('RL.POLICYSET', 'gold', 'FIXED', '3', '1h')
        local before = redis.call('RL.LIMIT', KEYS[1], 'gold')
        redis.call('RL.POLICYDEL', 'gold')
        return {before[2], redis.pcall('RL.LIMIT', KEYS[1], 'gold')['err']}
    """
    # One and a half are none.
    limit, error = primary.eval(script, 1, "k")
    assert (limit, error) == (1, b"NOPOLICY no policy 'gold'")
    pair.replica.wait_for_sync()
    assert policies(pair.replica.client()) == policies(primary) == {}
    assert state(pair.replica.client()) == state(primary)


# Replicas


def test_replicas_have_the_policies_of_their_primary(fresh_server: Start, clock: Clock) -> None:
    primary = fresh_server()
    client = primary.client()
    client.execute_command(f"RL.POLICYSET before {MINUTE}")
    replica = primary.replica()
    behind = replica.replica()
    clock.advance("1s")
    client.execute_command(f"RL.POLICYSET gold {MINUTE}")
    client.execute_command(f"RL.POLICYSET gold {HOUR}")
    client.execute_command("RL.POLICYSCALE gold 0.5 FOR 1h")
    client.execute_command(f"RL.POLICYSET gone {MINUTE}")
    client.execute_command("RL.POLICYDEL gone")
    # Each counts on from when it hears of the scale.
    replica.wait_for_sync()
    behind.wait_for_sync()
    clock.advance("1s")
    held = policies(client)
    assert held.keys() == {b"before", b"gold"}
    version = START_US + 1_000_001
    assert held[b"gold"] == (version, START_MS + 1000, b"0.5", 3_599_000, HOUR.encode())
    for other in (replica, behind):
        with other.client() as follower:
            assert policies(follower) == held
            assert follower.execute_command("RL.PEEK k POLICY gold")[:2] == [1, 500]
            for call in (
                f"RL.POLICYSET gold {MINUTE}",
                "RL.POLICYSCALE gold 1",
                "RL.POLICYDEL gold",
                "RL.POLICYEFFECT there",
            ):
                with pytest.raises(ReadOnlyError):
                    follower.execute_command(call)
            assert policies(follower) == held
    # One that becomes a primary goes on where the other was.
    replica.client().replicaof("NO", "ONE")
    second = START_US + 2_000_000
    assert replica.client().execute_command(f"RL.POLICYSET gold {MINUTE}") == second
    assert replica.client().execute_command(f"RL.POLICYSET gone {MINUTE}") == second + 1


def test_a_change_propagates_one_record_and_what_changes_nothing_none(fresh_server: Start) -> None:
    server = fresh_server(appendonly="yes", appendfsync="always")
    with server.client() as client:
        for call in (
            f"RL.POLICYSET gold {MINUTE}",
            f"RL.POLICYSET gold NX {HOUR}",
            f"RL.POLICYSET gold VERSION 7 {HOUR}",
            "RL.POLICYSET gold FIXED 5",
            "RL.POLICYSCALE gold 0.5 FOR 1h",
            "RL.POLICYSCALE gold 1001",
            "RL.POLICYSCALE none 1",
            "RL.POLICYGET gold",
            "RL.POLICYLIST",
            "RL.POLICYDEL none gold none",
            "RL.POLICYDEL gold",
        ):
            answer(client, call)
        written = [words for words in written_commands(server) if words[0] != b"SELECT"]
    set_at, node = START_US, written[0][1].split()[4].decode()
    stamp = [f"{set_at + later} {node}" for later in range(3)]
    until = START_US + 3_600_000_000
    text, hour = f"{len(MINUTE)}:{MINUTE}", 3_600_000_000
    set_ms, scale = set_at // 1000, f"{stamp[1]} 500000 {until} {hour} {hour}"
    records = [
        f"rl-policy 1 4:gold {stamp[0]} {stamp[0]} {set_at} {set_ms} {text} 0 0 1000000 0",
        f"rl-policy 2 4:gold {stamp[0]} {stamp[0]} {set_at} {set_ms} {text} {scale}",
        f"rl-policy 2 4:gold {stamp[2]} {stamp[0]} {set_at + 2} {set_ms} 0: {scale}",
    ]
    assert written == [(b"RL.POLICYEFFECT", record.encode()) for record in records]


def test_several_that_are_deleted_at_once_are_all_propagated(pair: Pair) -> None:
    primary = pair.primary.client()
    for name in "abc":
        primary.execute_command(f"RL.POLICYSET {name} {MINUTE}")
    primary.execute_command("RL.POLICYDEL a b")
    pair.replica.wait_for_sync()
    assert list(policies(pair.replica.client())) == [b"c"]


# RL.POLICYEFFECT


def records_of(server: Server) -> list[bytes]:
    """What was propagated of policies."""
    return [words[1] for words in written_commands(server) if words[0] == b"RL.POLICYEFFECT"]


def test_records_make_the_same_policies_in_any_order_and_any_number_of_times(
    fresh_server: Start, clock: Clock
) -> None:
    server = fresh_server(appendonly="yes", appendfsync="always")
    with server.client() as client, fresh_server().client() as other:
        for number in range(40):
            name = f"plan:{number % 5}"
            clock.advance("1ms")
            answer(client, f"RL.POLICYSET {name} FIXED {number} 1h")
            if number % 3 == 0:
                answer(client, f"RL.POLICYSCALE {name} {number}")
            if number % 7 == 0:
                answer(client, f"RL.POLICYDEL {name}")
        records = records_of(server)
        assert len(records) > 50
        for record in (*records[::-2], *records, *records[::3]):
            assert other.execute_command("RL.POLICYEFFECT", record) == b"OK"
        assert policies(other) == policies(client) != {}
        # All in one call.
        with fresh_server().client() as third:
            assert third.execute_command("RL.POLICYEFFECT", *reversed(records)) == b"OK"
            assert policies(third) == policies(client)


RECORD = f"rl-policy 1 4:gold {START_US} 7 {START_US} 7 2 {START_MS} 10:FIXED 5 1h 0 0 1000000 0"


def test_a_record_makes_a_policy_that_rules(fresh_server: Start) -> None:
    server = fresh_server()
    replica, primary = server.replica(), server.client()
    assert primary.execute_command("RL.POLICYEFFECT", RECORD) == b"OK"
    assert policy(primary, "gold") == (START_US, START_MS, b"1", -1, b"FIXED 5 1h")
    assert primary.execute_command("RL.LIMIT k gold") == [1, 5, 4, 0, 3_600_000]
    replica.wait_for_sync()
    assert policies(replica.client()) == policies(primary)


@pytest.mark.parametrize(
    "record",
    [
        "",
        "gold",
        RECORD + " ",
        RECORD.replace("rl-policy 1", "rl-policy 2"),
        RECORD.replace("4:gold", "5:gold"),
        RECORD.replace("4:gold", "0:"),
        RECORD.replace(" 2 ", " 0 "),
        RECORD.replace("1000000 0", "1000000001 0"),
        RECORD.replace(f" {START_US} 7 {START_US} 7", f" {START_US} 7 {START_US} 8"),
        RECORD.replace(str(START_US), "31536000000000001"),
    ],
)
def test_what_is_no_record_is_refused_with_all_that_come_with_it(record: str, fresh: Redis) -> None:
    assert answer(fresh, "RL.POLICYEFFECT", record) == "ERR invalid effect"
    assert answer(fresh, "RL.POLICYEFFECT", RECORD, record) == "ERR invalid effect"
    assert policies(fresh) == {}
    assert fresh.execute_command("RL.POLICYEFFECT", RECORD) == b"OK"


def test_a_policy_of_a_later_version_is_kept_passed_on_and_an_error_to_call(
    fresh_server: Start,
) -> None:
    server = fresh_server()
    replica = server.replica()
    later = RECORD.replace("10:FIXED 5 1h", "19:QUOTA 60 PER user:*")
    unreadable = "ERR the policy was set by a later version of module ratelimit"
    with server.client() as client:
        client.execute_command("RL.POLICYEFFECT", later)
        replica.wait_for_sync()
        with replica.client() as follower:
            told = (START_US, START_MS, b"1", -1, b"QUOTA 60 PER user:*")
            assert policy(client, "gold") == policy(follower, "gold") == told
        for call in ("RL.LIMIT k gold", "RL.DELAY k gold", "RL.TAKE k POLICY gold"):
            assert answer(client, call) == unreadable
        assert answer(client, "RL.LIMIT k none OR gold OR pro") == unreadable
        assert client.dbsize() == 0
        # A server that can read none of it can still replace it.
        assert client.execute_command(f"RL.POLICYSET gold NX {MINUTE}") == START_US
        over = f"RL.POLICYSET gold VERSION {START_US} {MINUTE}"
        assert client.execute_command(over) == START_US + 1
        assert client.execute_command("RL.LIMIT k gold")[:2] == [1, 60]


def test_a_clock_gone_back_leaves_later_sets_later(fresh: Redis, clock: Clock) -> None:
    fresh.execute_command(f"RL.POLICYSET gold {MINUTE}")
    clock.advance("-1h")
    version = START_US + 1
    assert fresh.execute_command(f"RL.POLICYSET gold {HOUR}") == version
    assert policy(fresh, "gold") == (version, START_MS - 3_600_000, b"1", -1, HOUR.encode())
    assert fresh.execute_command("RL.POLICYDEL gold") == 1
    assert policies(fresh) == {}
