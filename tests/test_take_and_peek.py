"""RL.TAKE is the generic form of every algorithm's command. RL.PEEK shows whether RL.TAKE would
admit a call.
"""

from collections.abc import Callable

import pytest
from redis import ReadOnlyError, ResponseError, WatchError

from support.clock import Clock
from support.server import Server

ALGORITHMS = [
    "TOKENBUCKET 10 1 1s",
    "TOKENBUCKET 9.5 0.3 7ms",
    "LEAKYBUCKET 10 1 1s",
    "FIXED 10 60s",
    "FIXED 10 60s ALIGNED",
    "SLIDING 10 60s",
    "SLIDING 10 60s STRICT",
    "SLIDINGLOG 10 60s",
]

# Options that each algorithm is tried with.
OPTIONS = [
    "",
    "COST 0",
    "COST 2.5",
    "COST 10",
    "COST 10.000001",
    "COST -1.5",
    "COST -100",
    "UPTO",
    "COST 100 UPTO",
    "COST 1 FORCE",
    "COST 25 FORCE",
    "COST 0 FORCE",
]

# Options of an earlier RL.TAKE on the key, and the time since.
HISTORIES = {
    "never seen": ("COST 0", "0s"),
    "partly used": ("COST 5.5", "0s"),
    "in debt": ("COST 13 FORCE", "0s"),
    "recovering": ("COST 9", "123457us"),
    "recovered": ("COST 9", "1000s"),
}


@pytest.fixture
def call(redis):
    """`call("RL.PEEK k FIXED 10 60s")` splits the arguments and sends the call."""
    return redis.execute_command


@pytest.mark.parametrize("spell", [str.upper, str.lower, str.swapcase, str.title])
@pytest.mark.parametrize("spec", [*ALGORITHMS, "CONCURRENCY 10 60s holder"])
def test_take_equals_the_algorithm_s_own_command_in_any_case(call, redis, spec, spell):
    name, _, words = spec.partition(" ")
    command = "RL.ACQUIRE" if name == "CONCURRENCY" else f"RL.{name}"
    expected = call(f"{command} own {words}")
    assert expected[0] == 1
    assert call(f"{spell('rl.Take')} generic {spell(name)} {words}") == expected
    assert redis.dump("own") == redis.dump("generic")
    assert redis.pttl("own") == redis.pttl("generic")


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("spec", ALGORITHMS)
def test_take_and_peek_have_every_option_of_the_algorithm_s_own_command(
    call, redis, clock, spec, history
):
    charge, later = HISTORIES[history]
    name, _, words = spec.partition(" ")
    for options in [*OPTIONS, "COST 9 MAXWAIT 2s"]:
        if "MAXWAIT" in options and name != "TOKENBUCKET":
            continue
        call("DEL own generic")
        clock.reset()
        for key in ("own", "generic"):
            call(f"RL.TAKE {key} {spec} {charge}")
        clock.advance(later)
        current = call(f"RL.PEEK own {spec} COST 0")
        peeked = call(f"RL.PEEK own {spec} {options}")
        expected = call(f"RL.{name} own {words} {options}")
        assert call(f"RL.TAKE generic {spec} {options}") == expected, options
        assert redis.dump("own") == redis.dump("generic")
        # A peek shows the remaining units and the reset time from before the call, and otherwise
        # what the call returns.
        allowed, limit, _, wait_ms, _, *granted = expected
        assert peeked == [allowed, limit, current[2], wait_ms, current[4], *granted], options


def test_peek_takes_leases_into_account(call):
    assert call("RL.PEEK k CONCURRENCY 3 60s a COST 3") == [1, 3, 3, 0, 0]
    assert call("RL.ACQUIRE k 3 60s a COST 2") == [1, 3, 1, 0, 60_000]
    assert call("RL.PEEK k CONCURRENCY 3 60s b COST 2") == [0, 3, 1, 60_000, 60_000]
    assert call("RL.PEEK k CONCURRENCY 3 60s a COST 3") == [1, 3, 1, 0, 60_000]
    assert call("RL.PEEK k CONCURRENCY 3 60s b COST 4") == [0, 3, 1, -1, 60_000]


def test_a_denied_peek_passes_after_its_wait(call, clock):
    call("RL.TAKE k TOKENBUCKET 10 3 7s COST 10")
    wait_ms = call("RL.PEEK k TOKENBUCKET 10 3 7s COST 5")[3]
    clock.advance((wait_ms - 1) * 1000)
    allowed, _, _, wait_ms, _ = call("RL.PEEK k TOKENBUCKET 10 3 7s COST 5")
    assert (allowed, wait_ms) == (0, 1)
    clock.advance("1ms")
    assert call("RL.PEEK k TOKENBUCKET 10 3 7s COST 5")[0] == 1


@pytest.mark.parametrize("history", ["partly used", "in debt", "recovering"])
@pytest.mark.parametrize("spec", [*ALGORITHMS, "CONCURRENCY 10 60s holder"])
def test_a_peek_changes_nothing(pair, clock, spec, history):
    has_leases = spec.startswith("CONCURRENCY")
    charge, later = ("COST 5", "30s") if has_leases else HISTORIES[history]
    with pair.primary.client() as redis:
        redis.execute_command(f"RL.TAKE k {spec} {charge}")
        clock.advance(later)

        def state() -> tuple[object, ...]:
            value = redis.dump("k"), redis.pttl("k"), redis.dbsize()
            return *value, redis.info("replication")["master_repl_offset"]

        before = state()
        for options in ["", "COST 2", "COST 11"] if has_leases else OPTIONS:
            redis.execute_command(f"RL.PEEK k {spec} {options}")
            redis.execute_command(f"RL.PEEK missing {spec} {options}")
        assert state() == before


def test_a_peek_aborts_no_transaction_that_watches_the_key(redis):
    redis.execute_command("RL.FIXED k 10 60s")
    with redis.pipeline() as transaction:
        transaction.watch("k")
        redis.execute_command("RL.PEEK k FIXED 10 60s")
        redis.execute_command("RL.PEEK k FIXED 10 60s COST 5 FORCE")
        transaction.multi()
        transaction.ping()
        assert transaction.execute() == [True]
        transaction.watch("k")
        redis.execute_command("RL.TAKE k FIXED 10 60s")
        transaction.multi()
        transaction.ping()
        with pytest.raises(WatchError):
            transaction.execute()


@pytest.mark.parametrize("spec", ALGORITHMS)
def test_a_read_only_replica_peeks_as_its_primary_and_takes_nothing(pair, clock, spec):
    with pair.primary.client() as primary, pair.replica.client() as replica:
        primary.execute_command(f"RL.TAKE k {spec} COST 7.3")
        pair.replica.wait_for_sync()
        clock.advance("123456us")
        for options in OPTIONS:
            peek = f"RL.PEEK k {spec} {options}"
            assert replica.execute_command(peek) == primary.execute_command(peek), options
        before = replica.dump("k")
        with pytest.raises(ReadOnlyError):
            replica.execute_command(f"RL.TAKE k {spec}")
        with pytest.raises(ReadOnlyError):
            replica.execute_command(f"RL.{spec.replace(' ', ' k ', 1)}")
        assert replica.dump("k") == before == primary.dump("k")


@pytest.mark.parametrize(
    ("spec", "setting"),
    [
        ("SLIDINGLOG 10 60s", "max-log-entries"),
        ("CONCURRENCY 10 60s holder-{}", "max-leases"),
    ],
)
def test_a_peek_at_a_full_key_gets_the_same_error_as_the_call(
    fresh_server: Callable[..., Server], clock: Clock, spec: str, setting: str
) -> None:
    redis = fresh_server(module_args="max-log-entries 2 max-leases 2").client()
    for number in range(2):
        redis.execute_command("RL.TAKE", "k", *spec.format(number).split())
        clock.advance("1s")
    third = spec.format("third").split()
    for call in (
        ("RL.TAKE", "k", *third),
        ("RL.PEEK", "k", *third),
        ("RL.MTAKE", 1, "k", *third),
        ("RL.MPEEK", 1, "k", *third),
    ):
        with pytest.raises(ResponseError, match=f"ratelimit.{setting}"):
            redis.execute_command(*call)
    clock.advance("60s")
    assert redis.execute_command("RL.PEEK", "k", *third)[0] == 1
    assert redis.execute_command("RL.TAKE", "k", *third)[0] == 1
