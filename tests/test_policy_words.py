"""Invalid policies are refused with the reason. Names, INFO and policy count have bounds."""

import pytest
from redis import Redis

from support.binaries import NO_MODULE_CONFIG
from support.clock import START_US, Clock
from support.policies import policies
from support.policy_calls import HOUR, MINUTE, Start, answer

pytestmark = pytest.mark.every_server


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
AFTER_SPEC = "where an option of the spec before, BAN or an algorithm is needed"
FIXED = "COST, FORCE, AS, ALIGNED, OFFSET, ANCHOR or SHADOW"
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
            f"ERR syntax error, unexpected 'KEEP', {AFTER_SPEC}: {FIXED}; {ALGORITHMS}",
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
def test_invalid_call_is_refused_with_the_reason_and_changes_nothing(
    call: str, error: str, fresh_client: Redis
) -> None:
    fresh_client.execute_command(f"RL.POLICYSET there {MINUTE}")
    before = policies(fresh_client)
    # Some servers show a command's name in lower case, others as it was sent.
    command, *words = call.split()
    command = command.lower()
    if error == "arity":
        error = f"ERR wrong number of arguments for '{command}' command"
    assert answer(fresh_client, command, *words) == error
    assert policies(fresh_client) == before


@pytest.mark.parametrize("name", [b"", b"x" * 257])
def test_a_name_has_1_to_256_bytes(name: bytes, fresh_client: Redis) -> None:
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
        assert answer(fresh_client, *call) == f"{MUST_BE_NAME} '{shown}'", call


def test_binary_name_is_shown_escaped(fresh_client: Redis) -> None:
    fresh_client.execute_command("RL.POLICYSET", b"a'\r\n\xff", *MINUTE.split())
    error = answer(fresh_client, "RL.POLICYSET", b"a'\r\n\xff", "VERSION", "2", *MINUTE.split())
    assert error == rf"ERR policy 'a\'\r\n\xff' has version {START_US}, not 2"
    assert answer(fresh_client, "RL.LIMIT", "k", b"\n") == r"NOPOLICY no policy '\n'"


# Bounds


def test_the_setting_limits_the_number_of_policies(fresh_server: Start) -> None:
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
        # Existing policies stay and can be changed.
        client.config_set("ratelimit.max-policies", 1)
        assert client.execute_command(f"RL.POLICYSET b {HOUR}") > START_US
        assert list(policies(client)) == [b"a", b"b", b"c"]


def test_4096_policies_are_allowed_by_default(fresh_client: Redis) -> None:
    with fresh_client.pipeline(transaction=False) as pipeline:
        for number in range(4096):
            pipeline.execute_command(f"RL.POLICYSET plan:{number} FIXED {number} 1h")
        # Distinct versions, although the clock stands still.
        assert pipeline.execute() == list(range(START_US, START_US + 4096))
    full = "ERR there are 4096 policies, as many as ratelimit.max-policies allows"
    assert answer(fresh_client, f"RL.POLICYSET one-more {MINUTE}") == full
    # Each policy decides separately.
    for number in (0, 1, 77, 4095):
        decision = fresh_client.execute_command(f"RL.LIMIT k{number} plan:{number}")
        assert decision[:2] == [int(number > 0), number]
    assert len(fresh_client.execute_command("RL.POLICYLIST")) == 4096


def test_info_shows_the_100_policies_with_the_most_calls_and_the_number_of_policies(
    fresh_client: Redis,
) -> None:
    def shown() -> tuple[int, int, list[str]]:
        info = fresh_client.info("ratelimit_policies")
        lines = [line for name, line in info.items() if name.startswith("ratelimit_policy_")]
        names = [str(line["name"]) for line in lines if isinstance(line, dict)]
        return info["ratelimit_policies"], info["ratelimit_policies_shown"], names

    for number in range(100):
        fresh_client.execute_command(f"RL.POLICYSET plan:{number:03} {MINUTE}")
    all_names = [f"plan:{number:03}" for number in range(100)]
    assert shown() == (100, 100, all_names)
    called = [f"plan:{number}" for number in range(200, 250)]
    for number in range(100, 300):
        fresh_client.execute_command(f"RL.POLICYSET plan:{number} {MINUTE}")
    for name in called:
        fresh_client.execute_command(f"RL.LIMIT k {name}")
    count, lines, names = shown()
    assert (count, lines, len(names)) == (300, 100, 100)
    assert set(called) <= set(names)
    assert names == sorted(names)
    assert len(fresh_client.execute_command("RL.POLICYLIST")) == 300


def test_a_policys_line_in_info_has_its_scale(fresh_client: Redis, clock: Clock) -> None:
    fresh_client.execute_command(f"RL.POLICYSET gold {MINUTE}")

    def line() -> dict[str, object]:
        return fresh_client.info("ratelimit_policies")["ratelimit_policy_0"]

    assert (line()["scale"], line()["scale_ms"]) == (1, -1)
    fresh_client.execute_command("RL.POLICYSCALE gold 0.5 FOR 10s")
    clock.advance("1s")
    assert (line()["scale"], line()["scale_ms"]) == (0.5, 9000)
    assert fresh_client.execute_command("RL.POLICYLIST")[0][3:] == [b"0.5", 9000]
    clock.advance("9s")
    assert (line()["scale"], line()["scale_ms"]) == (1, -1)
