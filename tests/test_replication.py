"""A replica has the value, expiry and `DEBUG DIGEST-VALUE` of its primary, whatever its own clock
shows.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis import ReadOnlyError, Redis

from conftest import Pair
from support import poll
from support.binaries import Binary
from support.clock import START_US, UNITS_US, Clock
from support.policies import policies
from support.saving import wait_until_saved
from support.scale import first_on_every_server
from support.server import Server
from support.workload import (
    LIMITERS,
    Limiter,
    digests,
    each_limiter,
    play,
    state,
    steps,
    written_commands,
)

pytestmark = pytest.mark.every_server

TOKEN_BUCKET = ("TOKENBUCKET", 10, 10, "1h")
LOG = ("SLIDINGLOG", 10, "1h")
LEASE = ("CONCURRENCY", 10, "1h", "holder")
# Later than what was set before, and not so much that it is not believed.
RECORD = f"rl-policy 1 4:gold {START_US + UNITS_US['h']} 1 1 1 1 1 10:FIXED 5 1h 0 0 1000000 0"

# With this there is every command that can be.
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


@pytest.mark.parametrize("seed", range(4))
def test_a_replica_has_the_same_bytes_after_any_workload(
    seed: int, pair: Pair, clock: Clock
) -> None:
    primary, replica = pair.primary.client(), pair.replica.client()
    play(steps(seed, 800), clock, primary)
    pair.replica.wait_for_sync()
    held = state(primary)
    assert len(held) > 5
    assert state(replica) == held
    assert digests(replica, held) == digests(primary, held)


def test_the_workload_reaches_all_that_it_is_for(redis: Redis, clock: Clock) -> None:
    workload = steps(seed=0, count=4000)
    (replies,) = play(workload, clock, redis)
    seen = set()
    for step, reply in zip(workload, replies, strict=True):
        command, *words = step.command
        if command in {"RL.RELEASE", "RL.BAN"}:
            seen.add((command, reply > 0))
            continue
        allowed = bool(reply[0]) != (command == "RL.THROTTLE")
        words = {word for word in words if isinstance(word, str)}
        seen.add((command, allowed))
        seen |= {(word, allowed) for word in words}
    commands = {words[0] for _, words in workload}
    assert len(commands) == 13
    options = {"STRICT", "ALIGNED", "OFFSET", "UPTO", "FORCE", "MAXWAIT", "KEEP", "NX"}
    options |= {"AS", "ONCE", "SETTLE", "EACH", "BAN"}
    every = commands | options
    assert seen >= {(what, allowed) for what in every for allowed in (True, False)}
    assert any(step.move < 0 for step in workload)
    assert {held.type for held in state(redis).values()} == {limiter.type for limiter in LIMITERS}


def test_a_replica_of_a_replica_has_the_same_bytes_too(
    fresh_server: Callable[..., Server], clock: Clock
) -> None:
    primary = fresh_server()
    replica = primary.replica()
    second = replica.replica()
    play(steps(seed=10, count=600), clock, primary.client())
    replica.wait_for_sync()
    second.wait_for_sync()
    held = state(primary.client())
    assert len(held) > 5
    assert state(replica.client()) == held
    assert state(second.client()) == held


@pytest.mark.parametrize("skew", first_on_every_server(["-1d", "-3s", "3s", "1d"]))
def test_a_replica_whose_clock_is_wrong_has_the_same_bytes(
    skew: str, fresh_server: Callable[..., Server], clock: Clock, tmp_path: Path
) -> None:
    primary = fresh_server()
    wrong = Clock(clock.library, tmp_path / "clock")
    wrong.advance(skew)
    replica = primary.replica(clock=wrong)
    second = replica.replica(clock=clock)
    play(steps(seed=11, count=500), clock, primary.client())
    replica.wait_for_sync()
    second.wait_for_sync()
    # A replica whose clock is ahead takes keys for expired, but keeps them until it is told.
    wrong.set(clock.now)
    held = state(primary.client())
    assert len(held) > 5
    assert state(replica.client()) == held
    assert state(second.client()) == held


@pytest.mark.parametrize("listeners", ["replica", "AOF", "replica and AOF"])
def test_who_begins_to_listen_in_the_midst_of_a_workload_misses_nothing(
    listeners: str, fresh_server: Callable[..., Server], clock: Clock
) -> None:
    primary = fresh_server(appendfsync="always")
    client = primary.client()
    play(steps(seed=12, count=400), clock, client)
    if "AOF" in listeners:
        client.config_set("appendonly", "yes")
    replica = None
    if "replica" in listeners:
        # Not until it is in sync: calls come while the snapshot is made and sent.
        replica = fresh_server()
        replica.follow(primary)
    workload = steps(seed=13, count=800)
    play(workload, clock, client)
    held = state(client)
    assert len(held) > 5
    if replica is not None:
        replica.wait_for_sync()
        assert state(replica.client()) == held
    if "AOF" in listeners:
        wait_until_saved(client)
        client.config_rewrite()
        primary.restart("kill")
        assert state(client) == held


def test_a_replica_that_comes_and_goes_under_load_is_right_each_time(
    fresh_server: Callable[..., Server], clock: Clock
) -> None:
    primary, replica = fresh_server(), fresh_server()
    client, follower = primary.client(), replica.client()
    for seed in range(20, 26):
        replica.follow(primary)
        play(steps(seed, 250), clock, client)
        replica.wait_for_sync()
        assert state(follower) == state(client)
        replica.follow(None)
        play(steps(seed + 100, 50), clock, client)


def break_link(pair: Pair) -> None:
    with pair.primary.client() as primary:
        primary.client_kill_filter(_type="replica")


def break_link_for_good(pair: Pair) -> None:
    with pair.primary.client() as primary:
        primary.execute_command("DEBUG", "CHANGE-REPL-ID")
    break_link(pair)


def restart_replica(pair: Pair) -> None:
    pair.replica.restart("nosave")


@pytest.mark.parametrize(
    ("interrupt", "counter"),
    [
        pytest.param(break_link, "sync_partial_ok", id="partial resync"),
        pytest.param(break_link_for_good, "sync_full", id="full resync"),
        pytest.param(restart_replica, None, id="restart"),
    ],
)
def test_a_replica_that_was_away_catches_up(
    interrupt: Callable[[Pair], None], counter: str | None, pair: Pair, clock: Clock
) -> None:
    primary, replica = pair.primary.client(), pair.replica.client()
    for seed in range(30, 33):
        play(steps(seed, 200), clock, primary)
        before = primary.info("stats")
        interrupt(pair)
        play(steps(seed + 100, 200), clock, primary)
        pair.replica.wait_for_sync()
        if counter:
            assert primary.info("stats")[counter] > before[counter]
        assert state(replica) == state(primary)


def test_a_primary_that_restarts_has_its_replicas_follow_again(
    fresh_server: Callable[..., Server], clock: Clock
) -> None:
    primary = fresh_server()
    replica = primary.replica()
    client, follower = primary.client(), replica.client()
    for seed in range(40, 43):
        play(steps(seed, 200), clock, client)
        # From its snapshot, by which the replica may go on where it was, without a full sync.
        primary.restart("save")
        play(steps(seed + 100, 200), clock, client)
        replica.wait_for_sync()
        assert state(follower) == state(client)


def test_an_aof_that_is_switched_off_and_on_misses_nothing(
    fresh_server: Callable[..., Server], clock: Clock
) -> None:
    server = fresh_server(appendfsync="always")
    client = server.client()
    for seed in range(50, 53):
        client.config_set("appendonly", "yes")
        play(steps(seed, 200), clock, client)
        wait_until_saved(client)
        held = state(client)
        client.execute_command("DEBUG", "LOADAOF")
        assert state(client) == held
        client.config_set("appendonly", "no")
        play(steps(seed + 100, 200), clock, client)


def test_a_promoted_replica_goes_on_with_the_same_usage(
    fresh_server: Callable[..., Server], clock: Clock
) -> None:
    primary = fresh_server()
    replica = primary.replica()
    old, new = primary.client(), replica.client()
    play(steps(seed=14, count=400), clock, old)
    replica.wait_for_sync()
    new.replicaof("NO", "ONE")
    heard, expected = play(steps(seed=15, count=400), clock, new, old)
    assert heard == expected
    assert state(new) == state(old)


def test_a_primary_that_is_demoted_follows_the_new_one(
    fresh_server: Callable[..., Server], clock: Clock
) -> None:
    first = fresh_server()
    second = first.replica()
    play(steps(seed=16, count=300), clock, first.client())
    second.wait_for_sync()
    second.follow(None)
    first.follow(second)
    play(steps(seed=17, count=600), clock, second.client())
    first.wait_for_sync()
    assert state(first.client()) == state(second.client())


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
    """All that the module registers, with their flags."""
    client = server.client()
    listed = client.execute_command("COMMAND")
    found = {}
    for row in listed.values() if isinstance(listed, dict) else listed:
        name, flags = (row["name"], row["flags"]) if isinstance(row, dict) else (row[0], row[2])
        name = name.decode() if isinstance(name, bytes) else name
        found[name] = {flag.decode() if isinstance(flag, bytes) else flag for flag in flags}
    if server.version < (7,):
        # It does not tell whose a command is.
        return {name: flags for name, flags in found.items() if name.startswith(("rl.", "cl."))}
    ours = client.execute_command("COMMAND LIST", "FILTERBY", "MODULE", "ratelimit")
    return {name.decode(): found[name.decode()] for name in ours}


def test_every_command_that_writes_has_a_case_here(compatible_pair: Pair) -> None:
    writing, reading = set(), set()
    for name, flags in own_commands(compatible_pair.primary).items():
        if name == "rl.top":
            # It is about this server alone.
            continue
        # Neither flag would hide from replicas, and from this test, that it writes.
        assert len(flags & {"write", "readonly"}) == 1, name
        (writing if "write" in flags else reading).add(name)
    assert writing == set(CHARGES)
    assert all(call[0].lower() == name for name, (call, _) in CHARGES.items())
    # Those that say that they only read are seen to do so.
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


def test_a_plain_key_that_becomes_one_with_parts_propagates_that_as_one_effect(
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
        told = written_commands(server)[before:]
        assert told[0][:2] == (b"RL.EFFECT", b"k"), call
        assert told[0][2].startswith(b"rl-window convert "), call
        assert len(told[0]) == 3
        # And the other key of RL.MTAKE.
        assert [words[1] for words in told[1:]] == ([b"new"] if "new" in call else [])


@pytest.mark.parametrize("fill", ["RL.ACQUIRE k 5000 1h", "RL.SLIDINGLOG k 5000 1h"])
def test_what_a_large_key_propagates_as_it_is_converted_is_no_more_than_of_a_small_one(
    fill: str, pair: Pair, clock: Clock
) -> None:
    primary, replica = pair.primary.client(), pair.replica.client()

    def told(entries: int) -> int:
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

    assert told(3000) == told(1)


@pytest.mark.parametrize("command", CHARGES)
def test_a_charge_reaches_the_replica(command: str, compatible_pair: Pair) -> None:
    primary, replica = compatible_pair.primary.client(), compatible_pair.replica.client()
    prepare(primary)
    before = state(primary), policies(primary)
    call, changed = CHARGES[command]
    primary.execute_command(*call)
    compatible_pair.replica.wait_for_sync()
    held, names = state(primary), {name.encode() for name in changed}
    differ = {name for name in before[0] | held if before[0].get(name) != held.get(name)}
    assert differ == names
    assert (policies(primary) != before[1]) == (not names)
    assert policies(replica) == policies(primary)
    assert state(replica) == held
    assert digests(replica, held) == digests(primary, held)


def test_an_effect_of_several_keys_names_only_those_that_changed(
    fresh_server: Callable[..., Server],
) -> None:
    server = fresh_server(appendonly="yes", appendfsync="always")
    client = server.client()
    specs = [*TOKEN_BUCKET, *LOG, "COST", 0, *TOKEN_BUCKET, "COST", "-1"]
    assert client.execute_command("RL.MTAKE", 3, "a", "b", "missing", *specs)[0] == 1
    ((_, *keys_and_effects),) = written_commands(server)
    assert keys_and_effects[::2] == [b"a"]


def idle_calls(limiter: Limiter) -> dict[str, tuple]:
    """Calls that change nothing on a key of which 7 units are used."""
    other = limiter.by("other")
    full, peeked = other.full(4), other.full(1)
    calls = {
        "denied": other.take("k", 4),
        "denied for good": other.take("k", 11),
        "denied in RL.TAKE": ("RL.TAKE", "k", *full),
        "denied among several": ("RL.MTAKE", 2, "k", "n", *full, *TOKEN_BUCKET),
        "denied by another": ("RL.MTAKE", 2, "k", "n", *peeked, "FIXED", 0, "1h"),
        "RL.PEEK": other.peek("k"),
        "RL.MPEEK": ("RL.MPEEK", 2, "k", "n", *peeked, *TOKEN_BUCKET),
        "RL.INFO": ("RL.INFO", "k"),
        "an error": other.take("k", "x"),
    }
    if limiter.leases:
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

    def offset() -> int:
        return client.info("replication")["master_repl_offset"]

    before = offset(), state(client)
    for what, call in idle_calls(limiter).items():
        client.pipeline(transaction=False).execute_command(*call).execute(raise_on_error=False)
        assert (offset(), state(client)) == before, what
    client.execute_command(*limiter.take("k", 1))
    assert offset() > before[0]


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
        for what, call in idle_calls(limiter).items():
            client.pipeline(transaction=False).execute_command(*call).execute(raise_on_error=False)
            assert sizes() == before, (limiter.name, what)
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
    # Servers write short strings of digits as numbers.
    primary, replica = pair.primary.client(), pair.replica.client()
    holders = [str(10**digits + number) for digits in range(12) for number in range(20)]
    for holder in holders:
        primary.execute_command("RL.ACQUIRE", holder, 1, "1h", holder)
    pair.replica.wait_for_sync()
    held = state(primary)
    assert state(replica) == held
    for name, was in held.items():
        primary.restore("restored", 0, was.dump, replace=True)
        assert primary.dump("restored") == was.dump
        primary.copy(name, "copied", replace=True)
        assert primary.dump("copied") == was.dump


def test_a_replica_drops_a_key_when_its_primary_does(pair: Pair, clock: Clock) -> None:
    primary, replica = pair.primary.client(), pair.replica.client()
    for limiter in LIMITERS:
        primary.execute_command(*limiter.take(limiter.name))
    pair.replica.wait_for_sync()
    assert replica.dbsize() == len(LIMITERS)
    clock.advance("1d")
    poll.until(lambda: primary.dbsize() == 0, "the primary has removed what has expired")
    pair.replica.wait_for_sync()
    assert replica.dbsize() == 0


@each_limiter
def test_a_replica_answers_peeks_and_refuses_takes(limiter: Limiter, pair: Pair) -> None:
    primary, replica = pair.primary.client(), pair.replica.client()
    primary.execute_command(*limiter.take("k", 7))
    pair.replica.wait_for_sync()
    peek = limiter.by("other").peek("k", 4)
    assert replica.execute_command(*peek) == primary.execute_command(*peek)
    assert replica.execute_command("RL.INFO", "k") == primary.execute_command("RL.INFO", "k")
    several = ("RL.MPEEK", 2, "k", "missing", *limiter.full(4), *TOKEN_BUCKET)
    assert replica.execute_command(*several) == primary.execute_command(*several)
    for call in [limiter.take("k"), limiter.give_back("k"), ("RL.TAKE", "k", *limiter.full())]:
        with pytest.raises(ReadOnlyError):
            replica.execute_command(*call)
    assert state(replica) == state(primary)


def test_on_a_writable_replica_what_its_own_clients_charge_stays_there(pair: Pair) -> None:
    primary, replica = pair.primary.client(), pair.replica.client()
    primary.execute_command("RL.FIXED", "k", 10, "1h", "COST", 2)
    pair.replica.wait_for_sync()
    replica.config_set("replica-read-only", "no")
    try:
        assert replica.execute_command("RL.FIXED", "k", 10, "1h", "COST", 3)[2] == 5
        primary.execute_command("RL.FIXED", "k", 10, "1h", "COST", 1)
        pair.replica.wait_for_sync()
        assert state(replica) == state(primary)
    finally:
        replica.config_set("replica-read-only", "yes")
