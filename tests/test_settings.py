"""The ratelimit.* settings: as module arguments and, if the server supports it, by CONFIG."""

from collections.abc import Callable

import pytest
from redis import Redis, ResponseError

from support.binaries import NO_MODULE_CONFIG, Binary
from support.clock import Clock
from support.server import MODULE, Server, ServerError

pytestmark = pytest.mark.every_server

Start = Callable[..., Server]


CALLS = (
    "RL.SLIDINGLOG k 1000 1h",
    "RL.ACQUIRE k 1000 1h holder{n}",
    "RL.FIXED k 1000 1h ONCE id{n} 1h",
)


def maximum_counts(redis: Redis, clock: Clock) -> tuple[int, ...]:
    """Fills keys to find out how many entries, leases and ids one may have, up to 20."""
    counts = []
    for command in CALLS:
        redis.delete("k")
        for n in range(20):
            clock.advance(1)
            try:
                redis.execute_command(*command.format(n=n).split())
            except ResponseError:
                counts.append(n)
                break
        else:
            counts.append(20)
    return tuple(counts)


@pytest.mark.parametrize(
    ("module_args", "expected"),
    [
        ("max-log-entries 5 max-leases 3", (5, 3, 20)),
        ("ratelimit.max-log-entries 5 ratelimit.max-leases 3", (5, 3, 20)),
        ("max-leases 3 ratelimit.max-log-entries 5", (5, 3, 20)),
        ("MAX-LEASES 3 RateLimit.Max-Log-Entries 5", (5, 3, 20)),
        ("MAX-LOG-ENTRIES 1", (1, 20, 20)),
        ("max-leases 1", (20, 1, 20)),
        ("max-ids 4", (20, 20, 4)),
        ("max-leases 10000000", (20, 20, 20)),
        ("", (20, 20, 20)),
    ],
)
def test_module_arguments_are_pairs_with_or_without_the_prefix(
    fresh_server: Start, clock: Clock, module_args: str, expected: tuple[int, ...]
) -> None:
    redis = fresh_server(module_args=module_args).client()
    assert maximum_counts(redis, clock) == expected


@pytest.mark.parametrize(
    ("module_args", "reason"),
    [
        ("max-log-entries 0", "max-log-entries must be a whole number from 1 to 10000000"),
        ("max-log-entries 10000001", "max-log-entries must be"),
        ("ratelimit.max-leases -1", "max-leases must be"),
        ("max-leases 1.5", "max-leases must be"),
        ("max-ids 0", "max-ids must be"),
        ("max-blocked 0", "max-blocked must be a whole number from 1 to 10000000, such as 10000"),
        ("max-leases many", "max-leases must be a whole number such as 100000, not 'many'"),
        ("max-leases", "max-leases is missing: name value [name value ...]"),
        ("max-leases 99999999999999999999", "max-leases must be"),
        ("max-leases 3 max-log-entries", "max-log-entries is missing"),
        ("max-policies 0", "max-policies must be a whole number from 1 to 65536"),
        ("max-policies 65537", "max-policies must be"),
        ("policies maybe", "policies must be yes or no"),
        ("policy-gossip 1", "policy-gossip must be yes or no"),
        ("top-keys -1", "top-keys must be a whole number from 0 to 65536"),
        ("top-keys 65537", "top-keys must be"),
        (
            "sketch-size 1gb",
            "sketch-size must be a size from 64kb to 256mb, such as 1mb, not '1gb'",
        ),
        ("cell-compat maybe", "cell-compat must be yes or no"),
        ("cell-compat 1", "cell-compat must be yes or no"),
        (
            "no-such-setting 1",
            (
                "needed: max-log-entries, max-leases, max-ids, max-blocked, cell-compat, "
                "max-policies, policies, policy-gossip, denial-events, top-keys or sketch-size"
            ),
        ),
        ("no-such-setting 1", "unexpected 'no-such-setting'"),
        ("max-lease 1", "did you mean max-leases?"),
        ("ratelimit.no-such-setting 1", "unexpected 'ratelimit.no-such-setting'"),
        ("other.max-leases 1", "unexpected 'other.max-leases'"),
    ],
)
def test_invalid_module_argument_is_refused_with_the_reason_in_the_log(
    fresh_server: Start, module_args: str, reason: str
) -> None:
    with pytest.raises(ServerError) as raised:
        fresh_server(module_args=module_args)
    lines = [line for line in str(raised.value).splitlines() if reason in line]
    assert len(lines) == 1
    assert "module ratelimit not loaded" in lines[0]


def test_a_second_load_is_refused_with_the_reason_in_the_log(fresh_server: Start) -> None:
    server = fresh_server()
    redis = server.client()
    with pytest.raises(ResponseError):
        redis.execute_command("MODULE", "LOAD", str(MODULE))
    reason = "module ratelimit not loaded: a module of that name is loaded already"
    assert sum(reason in line for line in server.log().splitlines()) == 1
    assert redis.execute_command("RL.FIXED", "k", 5, "60s") == [1, 5, 4, 0, 60_000]
    names = [dict(zip(row[::2], row[1::2], strict=True))[b"name"] for row in modules(redis)]
    # Servers have modules of their own, such as lua and vectorset.
    assert names.count(b"ratelimit") == 1


def modules(redis: Redis) -> list:
    return redis.execute_command("MODULE", "LIST")


@pytest.fixture
def configurable(fresh_server: Start) -> Server:
    """Starts a server with max-leases 3, if it supports the settings of modules by CONFIG."""
    server = fresh_server(module_args="max-leases 3", policies=False)
    if not server.binary.has_module_config:
        pytest.skip(NO_MODULE_CONFIG)
    return server


def test_config_get_shows_all_settings(configurable: Server) -> None:
    with configurable.client(decode_responses=True) as redis:
        assert redis.config_get("ratelimit.*") == {
            "ratelimit.max-log-entries": "100000",
            "ratelimit.max-leases": "3",
            "ratelimit.max-ids": "100000",
            "ratelimit.max-blocked": "10000",
            "ratelimit.cell-compat": "no",
            "ratelimit.max-policies": "4096",
            "ratelimit.policies": "no",
            "ratelimit.policy-gossip": "yes",
            "ratelimit.denial-events": "no",
            "ratelimit.top-keys": "1024",
            "ratelimit.sketch-size": "1048576",
        }


def test_config_set_applies_at_once(configurable: Server, clock: Clock) -> None:
    with configurable.client() as redis:
        assert maximum_counts(redis, clock) == (20, 3, 20)
        redis.config_set("ratelimit.max-leases", 7)
        redis.config_set("ratelimit.max-log-entries", 1)
        redis.config_set("ratelimit.max-ids", 5)
        assert maximum_counts(redis, clock) == (1, 7, 5)
        # A key keeps its leases when the setting is lowered.
        redis.delete("k")
        for n in range(7):
            redis.execute_command("RL.ACQUIRE", "k", 1000, "1h", f"holder{n}")
        redis.config_set("ratelimit.max-leases", 2)
        assert redis.execute_command("RL.ACQUIRE", "k", 1000, "1h", "holder0")[0] == 1
        with pytest.raises(ResponseError, match="max-leases"):
            redis.execute_command("RL.ACQUIRE", "k", 1000, "1h", "one-more")


@pytest.mark.parametrize(
    ("setting", "minimum", "maximum"),
    [
        ("max-log-entries", 1, 10_000_000),
        ("max-leases", 1, 10_000_000),
        ("max-ids", 1, 10_000_000),
        ("max-blocked", 1, 10_000_000),
        ("max-policies", 1, 65_536),
        ("top-keys", 0, 65_536),
        ("sketch-size", 65_536, 268_435_456),
    ],
)
def test_config_set_refuses_values_out_of_range(
    configurable: Server, setting: str, minimum: int, maximum: int
) -> None:
    name = f"ratelimit.{setting}"
    with configurable.client(decode_responses=True) as redis:
        before = redis.config_get("ratelimit.*")
        for value in (str(minimum - 1), "-1", str(maximum + 1), "x", "1.5", ""):
            with pytest.raises(ResponseError):
                redis.config_set(name, value)
        assert redis.config_get("ratelimit.*") == before
        for value in (str(minimum), str(maximum)):
            redis.config_set(name, value)
            assert redis.config_get(name) == {name: value}


def test_cell_compat_cannot_change_after_the_load(configurable: Server) -> None:
    with configurable.client(decode_responses=True) as redis:
        with pytest.raises(ResponseError, match="immutable"):
            redis.config_set("ratelimit.cell-compat", "yes")
        assert redis.config_get("ratelimit.cell-compat") == {"ratelimit.cell-compat": "no"}


def test_config_rewrite_keeps_changed_settings(configurable: Server, clock: Clock) -> None:
    with configurable.client() as redis:
        redis.config_set("ratelimit.max-leases", 7)
        redis.config_set("ratelimit.max-log-entries", 4)
        redis.config_set("ratelimit.max-ids", 9)
        redis.config_rewrite()
        configurable.restart("nosave")
        assert maximum_counts(redis, clock) == (4, 7, 9)


@pytest.mark.parametrize(
    ("module_args", "expected"),
    [
        ("", (20, 6, 20)),
        ("max-log-entries 5", (5, 6, 20)),
        ("max-leases 3", (20, 6, 20)),
    ],
)
def test_the_configuration_file_overrides_module_arguments(
    binary: Binary,
    fresh_server: Start,
    clock: Clock,
    module_args: str,
    expected: tuple[int, ...],
) -> None:
    if not binary.has_module_config:
        pytest.skip(NO_MODULE_CONFIG)
    server = fresh_server(module_args=module_args, **{"ratelimit.max-leases": 6})
    assert maximum_counts(server.client(), clock) == expected


def test_cell_compat_can_be_set_in_the_configuration_file(
    binary: Binary, fresh_server: Start
) -> None:
    if not binary.has_module_config:
        pytest.skip(NO_MODULE_CONFIG)
    redis = fresh_server(**{"ratelimit.cell-compat": "yes"}).client()
    assert redis.execute_command("CL.THROTTLE", "k", 4, 1, 1) == [0, 5, 4, -1, 1]


def test_invalid_line_of_the_configuration_file_is_refused_at_load(
    binary: Binary, fresh_server: Start
) -> None:
    if not binary.has_module_config:
        pytest.skip(NO_MODULE_CONFIG)
    with pytest.raises(ServerError, match="module ratelimit not loaded"):
        fresh_server(**{"ratelimit.max-leases": 0})


def test_config_shows_settings_only_if_modules_can_add_them(server: Server, redis: Redis) -> None:
    assert bool(redis.config_get("ratelimit.*")) == server.binary.has_module_config
