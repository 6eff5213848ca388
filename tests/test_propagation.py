"""A call that changes something propagates one effect, of the size of its change. Other calls
propagate nothing.
"""

from collections.abc import Callable, Iterator

import pytest
from redis import Redis

from conftest import Pair
from support.binaries import Binary
from support.clock import START_US, UNITS_US, Clock
from support.policies import policies
from support.server import Server
from support.workload import LIMITERS, Limiter, digests, each_limiter, state, written_commands

pytestmark = pytest.mark.every_server

TOKEN_BUCKET = ("TOKENBUCKET", 10, 10, "1h")
LOG = ("SLIDINGLOG", 10, "1h")
LEASE = ("CONCURRENCY", 10, "1h", "holder")
# Record with a stamp that is later than earlier ones, and not so far ahead that it is refused.
RECORD = f"rl-policy 1 4:gold {START_US + UNITS_US['h']} 1 1 1 1 1 10:FIXED 5 1h 0 0 1000000 0"
# Enables every optional command.
CELL_COMPAT = {"module_args": "cell-compat yes"}
# For every command that writes: a call that changes something on a server where the key "lease"
# has a lease of "holder" and "gold" is a policy, and the keys that it changes.
CHARGES = {
    "rl.tokenbucket": (("RL.TOKENBUCKET", "k", *TOKEN_BUCKET[1:]), ["k"]),
    "rl.leakybucket": (("RL.LEAKYBUCKET", "k", 10, 10, "1h"), ["k"]),
    "rl.fixed": (("RL.FIXED", "k", 10, "1h"), ["k"]),
    "rl.sliding": (("RL.SLIDING", "k", 10, "1h", "STRICT"), ["k"]),
    "rl.slidinglog": (("RL.SLIDINGLOG", "k", *LOG[1:]), ["k"]),
    "rl.sketch": (("RL.SKETCH", "k", "item", 10, 10, "1h", "SIZE", "64KB"), ["k"]),
    "rl.throttle": (("RL.THROTTLE", "k", 9, 10, 3600), ["k"]),
    "cl.throttle": (("CL.THROTTLE", "k", 9, 10, 3600), ["k"]),
    "rl.take": (("RL.TAKE", "k", *TOKEN_BUCKET), ["k"]),
    "rl.mtake": (
        ("RL.MTAKE", 3, "k", "l", "lease", *TOKEN_BUCKET, *LOG, *LEASE, "COST", 2),
        ["k", "l", "lease"],
    ),
    "rl.limit": (("RL.LIMIT", "k", "gold"), ["k"]),
    "rl.delay": (("RL.DELAY", "k", "none", "OR", "gold"), ["k"]),
    "rl.policyset": (("RL.POLICYSET", "gold", *LOG), []),
    "rl.policyscale": (("RL.POLICYSCALE", "gold", "0.5"), []),
    "rl.policydel": (("RL.POLICYDEL", "gold"), []),
    "rl.policyeffect": (("RL.POLICYEFFECT", RECORD), []),
    "rl.acquire": (("RL.ACQUIRE", "k", *LEASE[1:]), ["k"]),
    "rl.release": (("RL.RELEASE", "lease", "holder", "nobody"), ["lease"]),
    "rl.ban": (("RL.BAN", "k", "1h"), ["k"]),
    "rl.effect": (("RL.EFFECT", "k", "rl-bucket 1 1800000000000 1 1"), ["k"]),
}


@pytest.fixture(scope="module")
def shared_compatible_pair(binary: Binary, shared_clock: Clock) -> Iterator[Pair]:
    with Server(binary, clock=shared_clock, **CELL_COMPAT) as primary:
        yield Pair(primary, primary.replica(**CELL_COMPAT))


@pytest.fixture
def compatible_pair(shared_compatible_pair: Pair) -> Iterator[Pair]:
    primary, replica = shared_compatible_pair
    with primary.closing_clients(), replica.closing_clients():
        primary.client().flushall()
        yield shared_compatible_pair


def own_commands(server: Server) -> dict[str, set[str]]:
    """Returns all commands that the module registers, with their flags."""
    client = server.client()
    listed = client.execute_command("COMMAND")
    found = {}
    for row in listed.values() if isinstance(listed, dict) else listed:
        name, flags = (row["name"], row["flags"]) if isinstance(row, dict) else (row[0], row[2])
        name = name.decode() if isinstance(name, bytes) else name
        found[name] = {flag.decode() if isinstance(flag, bytes) else flag for flag in flags}
    if server.version < (7,):
        # The server does not say which module a command belongs to.
        return {name: flags for name, flags in found.items() if name.startswith(("rl.", "cl."))}
    our_commands = client.execute_command("COMMAND LIST", "FILTERBY", "MODULE", "ratelimit")
    return {name.decode(): found[name.decode()] for name in our_commands}


def test_every_command_that_writes_has_a_case_here(compatible_pair: Pair) -> None:
    writing, reading = set(), set()
    for name, flags in own_commands(compatible_pair.primary).items():
        if name == "rl.top":
            # RL.TOP RESET changes only this server.
            continue
        # Without either flag, replicas and this test would miss a command that writes.
        assert len(flags & {"write", "readonly"}) == 1, name
        (writing if "write" in flags else reading).add(name)
    assert writing == set(CHARGES)
    assert all(call[0].lower() == name for name, (call, _) in CHARGES.items())
    # Commands that are flagged as readonly propagate nothing.
    idle = {call[0].lower() for limiter in LIMITERS for call in idle_calls(limiter).values()}
    assert reading
    assert reading <= idle | {"rl.policyget", "rl.policylist"}


def prepare(client: Redis) -> None:
    client.execute_command("RL.ACQUIRE", "lease", *LEASE[1:])
    client.execute_command("RL.POLICYSET", "gold", *TOKEN_BUCKET)


def test_a_charge_propagates_exactly_one_effect(fresh_server: Callable[..., Server]) -> None:
    server = fresh_server(appendonly="yes", appendfsync="always", **CELL_COMPAT)
    client = server.client()
    for command, (call, keys) in CHARGES.items():
        client.flushall()
        prepare(client)
        before = written_commands(server)
        client.execute_command(*call)
        after = written_commands(server)
        assert len(after) == len(before) + 1, command
        name, *keys_and_effects = after[-1]
        if command.startswith("rl.policy"):
            assert name.upper() == b"RL.POLICYEFFECT", command
            assert len(keys_and_effects) == 1
            continue
        assert name.upper() == b"RL.EFFECT", command
        assert [key.decode() for key in keys_and_effects[::2]] == keys


def test_a_conversion_of_a_plain_key_propagates_one_effect(
    fresh_server: Callable[..., Server],
) -> None:
    server = fresh_server(appendonly="yes", appendfsync="always")
    client = server.client()
    for call in (
        "RL.BAN k 1h",
        "RL.TAKE k FIXED 10 1h SLIDING 10 1h",
        "RL.MTAKE 2 k new FIXED 10 1h AS name FIXED 10 1h",
    ):
        client.flushall()
        client.execute_command("RL.FIXED", "k", 10, "1h")
        before = len(written_commands(server))
        client.execute_command(*call.split())
        written = written_commands(server)[before:]
        assert written[0][:2] == (b"RL.EFFECT", b"k"), call
        assert written[0][2].startswith(b"rl-window convert "), call
        assert len(written[0]) == 3
        # RL.MTAKE propagates an effect of its other key.
        assert [words[1] for words in written[1:]] == ([b"new"] if "new" in call else [])


@pytest.mark.parametrize("fill", ["RL.ACQUIRE k 5000 1h", "RL.SLIDINGLOG k 5000 1h"])
def test_the_effect_of_a_conversion_does_not_grow_with_the_key(
    fill: str, pair: Pair, clock: Clock
) -> None:
    primary, replica = pair.primary.client(), pair.replica.client()

    def effect_size(entries: int) -> int:
        primary.flushall()
        clock.reset()
        pipeline = primary.pipeline(transaction=False)
        for number in range(entries):
            holder = [f"holder {number}"] if "ACQUIRE" in fill else []
            pipeline.execute_command(*fill.split(), *holder)
            clock.advance(1)
        pipeline.execute()
        clock.set(START_US + 10_000_000)
        before = primary.info("replication")["master_repl_offset"]
        primary.execute_command("RL.BAN", "k", "1m")
        after = primary.info("replication")["master_repl_offset"]
        assert primary.type("k") == b"rl-limits"
        pair.replica.wait_for_sync()
        assert state(replica) == state(primary)
        assert digests(replica, state(primary)) == digests(primary, state(primary))
        return after - before

    assert effect_size(3000) == effect_size(1)


@pytest.mark.parametrize("command", CHARGES)
def test_a_charge_reaches_the_replica(command: str, compatible_pair: Pair) -> None:
    primary, replica = compatible_pair.primary.client(), compatible_pair.replica.client()
    prepare(primary)
    before = state(primary), policies(primary)
    call, changed_keys = CHARGES[command]
    primary.execute_command(*call)
    compatible_pair.replica.wait_for_sync()
    stored, names = state(primary), {name.encode() for name in changed_keys}
    changed = {name for name in before[0] | stored if before[0].get(name) != stored.get(name)}
    assert changed == names
    assert (policies(primary) != before[1]) == (not names)
    assert policies(replica) == policies(primary)
    assert state(replica) == stored
    assert digests(replica, stored) == digests(primary, stored)


def test_an_effect_of_several_keys_names_only_the_changed_ones(
    fresh_server: Callable[..., Server],
) -> None:
    server = fresh_server(appendonly="yes", appendfsync="always")
    client = server.client()
    specs = [*TOKEN_BUCKET, *LOG, "COST", 0, *TOKEN_BUCKET, "COST", "-1"]
    assert client.execute_command("RL.MTAKE", 3, "a", "b", "missing", *specs)[0] == 1
    ((_, *keys_and_effects),) = written_commands(server)
    assert keys_and_effects[::2] == [b"a"]


def idle_calls(limiter: Limiter) -> dict[str, tuple]:
    """Returns calls that change nothing on a key of which 7 units are used."""
    other = limiter.for_holder("other")
    too_much, fitting = other.words(4), other.words(1)
    calls = {
        "denied": other.take("k", 4),
        "a cost above the limit": other.take("k", 11),
        "denied in RL.TAKE": ("RL.TAKE", "k", *too_much),
        "denied in RL.MTAKE": ("RL.MTAKE", 2, "k", "n", *too_much, *TOKEN_BUCKET),
        "denied by another key": ("RL.MTAKE", 2, "k", "n", *fitting, "FIXED", 0, "1h"),
        "RL.PEEK": other.peek("k"),
        "RL.MPEEK": ("RL.MPEEK", 2, "k", "n", *fitting, *TOKEN_BUCKET),
        "RL.INFO": ("RL.INFO", "k"),
        "an error": other.take("k", "x"),
    }
    if limiter.has_leases:
        return calls | {"nothing to release": ("RL.RELEASE", "k", "nobody")}
    return calls | {
        "COST 0": other.take("k", 0),
        "COST 0 FORCE": other.take("k", 0, "FORCE"),
        "COST -0": other.take("k", "-0"),
        "nothing to give back": other.take("missing", "-1"),
        "denied UPTO": ("RL.TAKE", "k", *limiter.spec[:1], 7, *limiter.spec[2:], "UPTO"),
    }


@each_limiter
def test_a_call_that_changes_nothing_propagates_nothing(limiter: Limiter, pair: Pair) -> None:
    client = pair.primary.client()
    client.execute_command(*limiter.take("k", 7))

    def replication_offset() -> int:
        return client.info("replication")["master_repl_offset"]

    before = replication_offset(), state(client)
    for name, call in idle_calls(limiter).items():
        client.pipeline(transaction=False).execute_command(*call).execute(raise_on_error=False)
        assert (replication_offset(), state(client)) == before, name
    client.execute_command(*limiter.take("k", 1))
    assert replication_offset() > before[0]


def test_a_call_that_changes_nothing_adds_no_byte_to_the_aof(
    fresh_server: Callable[..., Server],
) -> None:
    server = fresh_server(appendonly="yes", appendfsync="always")
    client = server.client()

    def sizes() -> list[int]:
        return [file.stat().st_size for file in server.aof_files()]

    for limiter in LIMITERS:
        client.flushall()
        client.execute_command(*limiter.take("k", 7))
        before = sizes()
        for name, call in idle_calls(limiter).items():
            client.pipeline(transaction=False).execute_command(*call).execute(raise_on_error=False)
            assert sizes() == before, (limiter.name, name)
        client.execute_command(*limiter.take("k", 1))
        assert sizes() > before


def test_an_effect_does_not_grow_with_the_log_or_the_lease_table(
    fresh_server: Callable[..., Server], clock: Clock
) -> None:
    server = fresh_server(appendonly="yes", appendfsync="always")
    client = server.client()
    for number in range(300):
        clock.advance(1)
        client.execute_command("RL.SLIDINGLOG", "log", 1000, "1h")
        client.execute_command("RL.ACQUIRE", "leases", 1000, "1h", f"holder {number:03}")
    commands = written_commands(server)
    for key in (b"log", b"leases"):
        lengths = [len(effect) for _, name, effect in commands if name == key]
        assert len(lengths) == 300
        assert max(lengths) < 128
        assert max(lengths) - min(lengths) < 8


def test_holders_that_are_numbers_have_the_same_bytes_everywhere(pair: Pair) -> None:
    # Servers store short strings of digits as numbers.
    primary, replica = pair.primary.client(), pair.replica.client()
    holders = [str(10**digits + number) for digits in range(12) for number in range(20)]
    for holder in holders:
        primary.execute_command("RL.ACQUIRE", holder, 1, "1h", holder)
    pair.replica.wait_for_sync()
    stored = state(primary)
    assert state(replica) == stored
    for name, key_state in stored.items():
        primary.restore("restored", 0, key_state.dump, replace=True)
        assert primary.dump("restored") == key_state.dump
        primary.copy(name, "copied", replace=True)
        assert primary.dump("copied") == key_state.dump
