"""A clock that is set back frees nothing and locks nobody out for longer than one full recovery.
MULTI and scripts see one instant (Redis 7.2 and later, Valkey).

- A clock that is set forward lets limiters recover, and a factor with `FOR` end, that much earlier.
- A clock that is set back to before the beginning of an aligned window allows twice the limit of
  that window in all, if the key is called in between.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis import Redis

from conftest import Pair
from support import poll
from support.clock import START_US, UNITS_US, Clock
from support.scale import first_on_every_server
from support.server import Server
from support.workload import LIMITERS, Limiter, each_limiter, play, state, steps

pytestmark = pytest.mark.every_server

HOUR = UNITS_US["h"]
JUMPS = ["1us", "1ms", "1s", "1h", "365d"]
each_jump = pytest.mark.parametrize("jump", JUMPS)
STEPS = ["-1h", "1s", "1h", "365d", "-1s", "-365d"]
each_step = pytest.mark.parametrize("step", STEPS)


@each_limiter
@each_jump
def test_clock_moved_back_forgives_nothing(
    jump: str, limiter: Limiter, redis: Redis, clock: Clock
) -> None:
    redis.execute_command(*limiter.take("k", 7))
    clock.advance(f"-{jump}")
    other = limiter.for_holder("other")
    allowed, _, remaining, _, _ = redis.execute_command(*other.take("k", 4))
    assert (allowed, remaining) == (0, 3)
    assert redis.execute_command(*other.take("k", 3))[:3] == [1, 10, 0]


@each_limiter
@each_jump
def test_clock_moved_back_denies_for_at_most_one_full_recovery(
    jump: str, limiter: Limiter, redis: Redis, clock: Clock
) -> None:
    redis.execute_command(*limiter.take("k", 10))
    clock.advance(f"-{jump}")
    other = limiter.for_holder("other")
    allowed, _, _, wait_ms, reset_ms = redis.execute_command(*other.take("k", 10))
    assert allowed == 0
    assert 0 < wait_ms <= reset_ms <= -(-limiter.recovery // 1000)
    clock.advance((wait_ms - 1) * 1000)
    assert redis.execute_command(*other.peek("k", 10))[0] == 0
    clock.advance(1000)
    assert redis.execute_command(*other.take("k", 10))[0] == 1


@each_limiter
@each_jump
def test_a_peek_answers_as_if_the_step_back_were_written_and_does_not_write_it(
    jump: str, limiter: Limiter, redis: Redis, clock: Clock
) -> None:
    redis.execute_command(*limiter.take("k", 7))
    clock.advance(f"-{jump}")
    before = state(redis)
    other = limiter.for_holder("other")
    peeked = redis.execute_command(*other.peek("k", 4))
    several = redis.execute_command("RL.MPEEK", 1, "k", *other.words(4))
    redis.execute_command("RL.INFO", "k")
    assert state(redis) == before
    assert several[2] == [peeked]
    # A denied call writes the step. Its reply is the same, and so is the reply of a peek after it.
    assert redis.execute_command(*other.take("k", 4)) == peeked
    assert redis.execute_command(*other.peek("k", 4)) == peeked


@each_limiter
@each_jump
def test_a_denied_call_writes_and_propagates_the_step_back(
    jump: str, limiter: Limiter, pair: Pair, clock: Clock
) -> None:
    primary, replica = pair.primary.client(), pair.replica.client()
    # A bucket and a window store the instant of the first charge.
    primary.execute_command(*limiter.take("k", 7))
    primary.execute_command(*limiter.for_holder("other").take("k", 3))
    before = state(primary)
    clock.advance(f"-{jump}")
    assert primary.execute_command(*limiter.for_holder("third").take("k", 1))[0] == 0
    written = state(primary)
    assert written[b"k"].dump != before[b"k"].dump
    pair.replica.wait_for_sync()
    assert state(replica) == written
    # A second denied call writes nothing.
    offset = primary.info("replication")["master_repl_offset"]
    assert primary.execute_command(*limiter.for_holder("third").take("k", 1))[0] == 0
    assert primary.info("replication")["master_repl_offset"] == offset
    assert state(primary) == written


@each_limiter
def test_a_denied_mtake_writes_the_step_back_of_every_key_and_nothing_else(
    limiter: Limiter, pair: Pair, clock: Clock
) -> None:
    primary, replica = pair.primary.client(), pair.replica.client()
    for key in ("a", "b"):
        primary.execute_command(*limiter.take(key, 5))
    clock.advance("-2h")
    other = limiter.for_holder("other")
    call = ("RL.MTAKE", 3, "a", "b", "c", *other.words(1), *other.words(6), "FIXED", 5, "1h")
    allowed, _, decisions = primary.execute_command(*call)
    assert allowed == 0
    assert [decision[2] for decision in decisions] == [5, 5, 5]
    pair.replica.wait_for_sync()
    assert state(replica) == state(primary)
    assert set(state(primary)) == {b"a", b"b"}
    for key in ("a", "b"):
        # After the step is written, the usage recovers fully in one recovery time.
        *_, reset_ms = primary.execute_command(*limiter.peek(key))
        assert 0 < reset_ms <= limiter.recovery // 1000
    clock.advance(limiter.recovery)
    for key in ("a", "b"):
        assert primary.execute_command(*other.peek(key, 10))[:3] == [1, 10, 10]


def test_a_release_of_nothing_writes_the_step_back(pair: Pair, clock: Clock) -> None:
    primary, replica = pair.primary.client(), pair.replica.client()
    primary.execute_command("RL.ACQUIRE", "k", 10, "1h", "holder")
    clock.advance("-2h")
    before = state(primary)
    assert primary.execute_command("RL.RELEASE", "k", "nobody") == 0
    assert state(primary) != before
    pair.replica.wait_for_sync()
    assert state(replica) == state(primary)


def check_after_a_step(client: Redis, clock: Clock, step: str) -> None:
    """Checks a key of every limiter after a step of the clock, before which 7 of 10 units were
    used: usage has recovered only by elapsed time.
    """
    start = clock.now
    for limiter in LIMITERS:
        key, other = limiter.name, limiter.for_holder("other")
        allowed, _, remaining, wait_ms, reset_ms = client.execute_command(*other.take(key, 4))
        if step.startswith("-") or step == "1s":
            assert (allowed, remaining) == (0, 3), key
            assert 0 < wait_ms <= reset_ms <= -(-limiter.recovery // 1000), key
            assert client.execute_command(*other.take(key, 3))[:3] == [1, 10, 0]
        elif step == "365d" or limiter.recovery == HOUR:
            assert (allowed, remaining) == (1, 6), key
        else:
            # A sliding window still weighs the count of the last window, and a strict window counts
            # each of its parts in full.
            assert (allowed, remaining) == (0, 3), key
    for limiter in sorted(LIMITERS, key=lambda limiter: limiter.recovery):
        clock.set(start + limiter.recovery)
        last = limiter.for_holder("third").take(limiter.name, 10)
        assert client.execute_command(*last)[:3] == [1, 10, 0], limiter.name


@each_step
@pytest.mark.parametrize("appendonly", ["no", "yes"], ids=["RDB", "AOF"])
def test_a_clock_step_while_the_server_is_down_acts_as_one_while_it_runs(
    appendonly: str, step: str, fresh_server: Callable[..., Server], clock: Clock
) -> None:
    server = fresh_server(appendonly=appendonly)
    client = server.client()
    # Starts at an instant such that no aligned window ends within the step.
    clock.set(START_US // (2 * HOUR) * 2 * HOUR)
    for limiter in LIMITERS:
        client.execute_command(*limiter.take(limiter.name, 7))
    server.stop("save")
    clock.advance(step)
    server.start()
    check_after_a_step(client, clock, step)


@pytest.mark.parametrize("step", first_on_every_server(STEPS))
def test_a_promoted_replica_with_a_wrong_clock_forgives_nothing(
    step: str, fresh_server: Callable[..., Server], clock: Clock, tmp_path: Path
) -> None:
    clock.set(START_US // (2 * HOUR) * 2 * HOUR)
    wrong_clock = Clock(clock.library, tmp_path / "clock")
    wrong_clock.set(clock.now)
    wrong_clock.advance(step)
    primary = fresh_server()
    replica = primary.replica(clock=wrong_clock)
    client = primary.client()
    for limiter in LIMITERS:
        client.execute_command(*limiter.take(limiter.name, 7))
    replica.wait_for_sync()
    promoted = replica.client()
    promoted.execute_command("REPLICAOF", "NO", "ONE")
    check_after_a_step(promoted, wrong_clock, step)


def test_calls_work_at_the_epoch_and_at_the_last_timestamp(redis: Redis, clock: Clock) -> None:
    end_of_time = 365_000 * 24 * HOUR
    for instant in (1, 10**6, end_of_time - 10**6, end_of_time, 10**6, 1, START_US):
        clock.set(instant)
        for limiter in LIMITERS:
            reply = redis.execute_command(*limiter.for_holder(f"{instant}").take(limiter.name, 1))
            assert reply[1] == 10
            assert 0 <= reply[4] <= limiter.recovery // 1000
            stored = redis.dump(limiter.name)
            if instant == end_of_time and limiter.type == b"rl-limits":
                # Every component has recovered, as no state may be later than this instant.
                assert stored is None
                continue
            redis.restore(limiter.name, 0, stored, replace=True)
            assert redis.dump(limiter.name) == stored


@contextmanager
def clock_that_runs(clock: Clock) -> Iterator[None]:
    """Sets the clock forward by a second, over and over, while the block runs."""
    stopped = threading.Event()

    def run() -> None:
        while not stopped.is_set():
            clock.advance("1s")

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


@pytest.fixture
def freezes_time(server: Server) -> None:
    if not server.is_valkey and server.version < (7, 2):
        pytest.skip("before 7.2, modules cannot read the instant at which a script began")


SCRIPT = """
local seen, count = {}, 0
for i = 1, 20000 do
    local reset = redis.call('RL.PEEK', KEYS[1], 'FIXED', 1000, '3650d')[5]
    if not seen[reset] then
        seen[reset] = true
        count = count + 1
    end
end
return count
"""


def instants_seen(redis: Redis, transaction: bool) -> int:
    """Returns the number of different instants that 2,000 calls see, by their resets."""
    pipeline = redis.pipeline(transaction=transaction)
    for _ in range(2000):
        pipeline.execute_command("RL.PEEK", "k", "FIXED", 1000, "3650d")
    return len({reset_ms for *_, reset_ms in pipeline.execute()})


@pytest.mark.usefixtures("freezes_time")
def test_scripts_and_transactions_see_one_instant(redis: Redis, clock: Clock) -> None:
    redis.execute_command("RL.FIXED", "k", 1000, "3650d")
    with clock_that_runs(clock):

        def clock_is_seen_to_run() -> bool:
            assert redis.eval(SCRIPT, 1, "k") == 1
            assert instants_seen(redis, transaction=True) == 1
            return instants_seen(redis, transaction=False) > 1

        poll.until(clock_is_seen_to_run, "calls outside of a transaction see several instants")


def test_a_transaction_is_charged_like_calls_one_by_one(redis: Redis, clock: Clock) -> None:
    workload = [step for step in steps(seed=40, count=400) if step.move == 0]
    (expected,) = play(workload, clock, redis)
    stored = state(redis)
    redis.flushall()
    pipeline = redis.pipeline(transaction=True)
    for step in workload:
        pipeline.execute_command(*step.command)
    assert pipeline.execute() == expected
    assert state(redis) == stored


@each_limiter
def test_keys_after_a_step_back_to_the_epoch_can_be_saved_and_replicated(
    limiter: Limiter, pair: Pair, clock: Clock
) -> None:
    primary, replica = pair.primary.client(), pair.replica.client()
    for number in range(5):
        primary.execute_command(*limiter.for_holder(f"{number}").take("k", 2))
        clock.advance("10s")
    clock.set(15 * UNITS_US["s"])
    assert primary.execute_command(*limiter.for_holder("other").take("k", 1))[:3] == [0, 10, 0]
    stored = state(primary)[b"k"]
    primary.restore("restored", 0, stored.dump)
    assert primary.dump("restored") == stored.dump
    pair.replica.restart("nosave")
    clock.advance(limiter.recovery - UNITS_US["s"])
    for seconds in ("0s", "1s", "10s"):
        clock.advance(seconds)
        primary.execute_command(*limiter.for_holder("other").take("k", 1))
        pair.replica.wait_for_sync()
        assert state(replica) == state(primary)


@pytest.mark.parametrize("between", ["RL.PEEK", "RL.TAKE"])
def test_aligned_window_restarts_after_a_call_in_an_earlier_one(
    between: str, redis: Redis, clock: Clock
) -> None:
    # A documented limit: a charge counts in the window that the clock shows.
    begin = START_US // HOUR * HOUR
    spec = ("FIXED", 10, "1h", "ALIGNED")
    clock.set(begin + 5 * UNITS_US["m"])
    assert redis.execute_command("RL.TAKE", "k", *spec, "COST", 10)[0] == 1
    clock.set(begin - UNITS_US["m"])
    denied = redis.execute_command(between, "k", *spec)
    assert (denied[0], denied[3]) == (0, 60_000)
    clock.set(begin)
    allowed = redis.execute_command("RL.TAKE", "k", *spec, "COST", 10)[0]
    assert allowed == (1 if between == "RL.TAKE" else 0)
