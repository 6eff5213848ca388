"""Callers of `RL.ACQUIRE ... BLOCK` that find the limit full are served in the order in which they
came.

* After `DEL`, expiry, eviction, `FLUSHALL`, `SWAPDB`, `RENAME`, `MOVE` or `RESTORE` they wait on
  for the same key name. If the key gets another type of value, all of them get `WRONGTYPE`.
"""

from collections.abc import Callable

import pytest
from redis import Redis, ResponseError, WatchError

from conftest import Pair
from support import modules, poll
from support.binaries import NO_MODULE_CONFIG
from support.clock import Clock
from support.server import Server
from support.units import UNIT
from support.waiting import DENIED, GRANTED, Caller, Queue, error_of, told_of
from support.workload import Word, state, written_commands

pytestmark = pytest.mark.every_server

Start = Callable[..., Server]


# To be let in at once


def test_who_finds_room_is_let_in_at_once(queue: Queue) -> None:
    assert queue.acquire("a", "BLOCK", "5s") == GRANTED
    assert queue.acquire("b", "BLOCK", 0, key="j") == GRANTED
    assert (queue.blocked, queue.is_empty) == (0, True)


def test_who_can_never_be_let_in_is_denied_at_once(queue: Queue) -> None:
    assert queue.acquire("a", "COST", 2, "BLOCK", 0) == [0, 1, 1, -1, 0]
    assert queue.acquire("a", "BLOCK", "1h", limit=0) == [0, 0, 0, -1, 0]
    queue.acquire("a")
    queue.joins("b")
    assert queue.acquire("c", "COST", 2, "BLOCK", 0) == [0, 1, 0, -1, 60_000]
    assert queue.waiting() == [b"b"]


@pytest.mark.parametrize("protocol", [2, 3])
def test_who_waits_is_answered_with_the_ordinary_decision(queue: Queue, protocol: int) -> None:
    queue.acquire("a")
    served = queue.joins("b", by=queue.caller(protocol))
    refused = queue.joins("c", by=queue.caller(protocol))
    queue.release("a")
    assert served.reply() == GRANTED
    queue.client.set("k", "text")
    assert "WRONGTYPE" in error_of(refused.reply)
    # It goes on with the same connection.
    assert served.call("PING") in (b"PONG", "PONG")
    assert refused.call("RL.ACQUIRE", "j", 1, "60s", "c", "BLOCK", 0) == GRANTED


def test_what_is_sent_behind_a_call_that_waits_is_answered_after_it(queue: Queue) -> None:
    queue.acquire("a")
    b = queue.joins("b").send("RL.RELEASE", "k", "b").send("PING")
    queue.settle()
    assert not b.is_answered
    queue.release("a")
    assert [b.reply() for _ in range(3)] == [GRANTED, 1, b"PONG"]


# What makes room


def lapses(_: Queue, clock: Clock) -> None:
    clock.advance("60s")


def key_expires(queue: Queue, clock: Clock) -> None:
    queue.client.pexpire("k", 1000)
    clock.advance("1001ms")


def goes_to_another_database(queue: Queue, _: Clock) -> None:
    assert queue.client.move("k", 1)


def databases_are_swapped(queue: Queue, _: Clock) -> None:
    queue.client.swapdb(0, 1)


def by(*words: Word) -> Callable[[Queue, Clock], None]:
    def call(queue: Queue, _: Clock) -> None:
        queue.client.execute_command(*words)

    return call


ENDS = {
    "a release": by("RL.RELEASE", "k", "a"),
    "a lapse": lapses,
    "DEL": by("DEL", "k"),
    "UNLINK": by("UNLINK", "k"),
    "an expiry": key_expires,
    "EXPIRE in the past": by("EXPIRE", "k", -1),
    "FLUSHALL": by("FLUSHALL"),
    "FLUSHALL ASYNC": by("FLUSHALL", "ASYNC"),
    "FLUSHDB": by("FLUSHDB"),
    "SWAPDB": databases_are_swapped,
    "RENAME": by("RENAME", "k", "j"),
    "MOVE": goes_to_another_database,
    "RL.EFFECT": by("RL.EFFECT", "k", "rl-leases del"),
    "a release by a script": by("EVAL", "return redis.call('RL.RELEASE', 'k', 'a')", 0),
    "DEL by a script": by("EVAL", "return redis.call('DEL', 'k')", 0),
}


@pytest.mark.parametrize("ending", ENDS.values(), ids=ENDS)
def test_who_waits_is_served_when_a_lease_ends(
    queue: Queue, clock: Clock, ending: Callable[[Queue, Clock], None]
) -> None:
    queue.acquire("a")
    b, c = queue.join("b", "c")
    ending(queue, clock)
    assert b.reply() == GRANTED
    queue.settle()
    assert not c.is_answered
    assert (queue.holders(), queue.waiting()) == ({b"b": b"1"}, [b"c"])
    assert queue.release("b") == 1
    assert c.reply() == GRANTED


def test_who_waits_is_served_when_the_key_is_evicted(own_queue: Queue) -> None:
    client = own_queue.client
    for holder in range(2000):
        own_queue.acquire(f"holder {holder}", limit=2000)
    b = own_queue.joins("b", limit=2000)
    client.config_set("maxmemory-policy", "volatile-lru")
    client.config_set("lazyfree-lazy-eviction", "no")
    # It is the only key that may be evicted, and large, so that there is memory enough after that.
    client.config_set("maxmemory", client.info("memory")["used_memory"] - 50_000)
    assert b.reply() == [1, 2000, 1999, 0, 60_000]
    assert client.info("stats")["evicted_keys"] == 1
    client.config_set("maxmemory", 0)


def swap_in(client: Redis) -> None:
    client.move("other", 1)
    client.eval("redis.call('SELECT', 1) redis.call('RENAME', 'other', 'k')", 0)
    client.swapdb(0, 1)


# Of two leases of "k" none is free, of those of "other" one.
PUTS = {
    "RENAME": lambda client: client.rename("other", "k"),
    "RESTORE": lambda client: client.restore("k", 0, client.dump("other"), replace=True),
    "COPY": lambda client: client.copy("other", "k", replace=True),
    "SWAPDB": swap_in,
}


@pytest.mark.parametrize("put", PUTS.values(), ids=PUTS)
def test_who_waits_is_served_by_what_takes_the_place_of_the_key(
    queue: Queue, put: Callable[[Redis], object]
) -> None:
    queue.acquire("x", key="other", limit=2)
    for holder in ("a1", "a2"):
        queue.acquire(holder, limit=2)
    b, c = queue.join("b", "c", limit=2)
    put(queue.client)
    assert b.reply() == [1, 2, 0, 0, 60_000]
    queue.settle()
    assert not c.is_answered
    assert set(queue.holders()) == {b"x", b"b"}


def test_a_ban_that_is_lifted_or_over_lets_who_waits_in(queue: Queue, clock: Clock) -> None:
    for end in (
        lambda: queue.client.execute_command("RL.BAN", "k", 0),
        lambda: clock.advance("30s"),
        lambda: queue.client.delete("k"),
    ):
        queue.client.flushall()
        queue.client.execute_command("RL.BAN", "k", "30s")
        b, c = queue.join("b", "c")
        assert queue.acquire("d")[:4] == [0, 1, 0, 30_000]
        end()
        assert b.reply() == GRANTED
        queue.release("b")
        assert c.reply() == GRANTED


def test_a_ban_keeps_who_waits_waiting(queue: Queue, clock: Clock) -> None:
    queue.acquire("a")
    b = queue.joins("b")
    queue.client.execute_command("RL.BAN", "k", "10m")
    queue.release("a")
    clock.advance("9m")
    queue.see_clock(clock)
    assert not b.is_answered
    clock.advance("1m")
    assert b.reply() == GRANTED


def test_another_value_in_the_keys_place_is_an_error_for_all_who_wait(queue: Queue) -> None:
    for put in (("SET", "k", "text"), ("RESTORE", "k"), ("RENAME", "other", "k")):
        queue.client.flushall()
        queue.acquire("a")
        waiters = queue.join("b", "c", block="1h")
        queue.client.execute_command("RL.FIXED", "other", 5, "1h")
        words = (*put, 0, queue.client.dump("other"), "REPLACE") if len(put) == 2 else put
        queue.client.execute_command(*words)
        for waiter in waiters:
            assert "WRONGTYPE" in error_of(waiter.reply), put
        assert queue.is_empty


def test_a_lease_that_makes_a_key_too_many_is_an_error_for_who_waits(
    fresh_server: Start,
) -> None:
    with Queue(fresh_server(module_args="max-leases 2")) as queue:
        queue.acquire("a", "COST", 2, limit=3)
        queue.acquire("x", limit=3)
        b, c = queue.join("b", "c", limit=3)
        # It renews for less. There is room for another unit, and for no other lease.
        queue.acquire("a", limit=3)
        for waiter in (b, c):
            assert "ratelimit.max-leases" in error_of(waiter.reply)


def test_keys_and_databases_have_queues_of_their_own(queue: Queue) -> None:
    other = queue.caller()
    other.call("SELECT", 1)
    other.call("RL.ACQUIRE", "k", 1, "60s", "a")
    for key in ("k", "j"):
        queue.acquire("a", key=key)
    k, j = queue.joins("b"), queue.joins("b", key="j")
    elsewhere = queue.joins("b", by=other)
    queue.release("a", key="j")
    assert j.reply() == GRANTED
    queue.settle()
    assert not k.is_answered
    assert not elsewhere.is_answered
    queue.client.execute_command("EVAL", "redis.call('SELECT', 1) redis.call('DEL', 'k')", 0)
    assert elsewhere.reply() == GRANTED
    queue.settle()
    assert not k.is_answered
    assert queue.waiting() == [b"b"]


# The order


def test_who_waits_is_served_in_the_order_in_which_they_came(queue: Queue) -> None:
    queue.acquire("a")
    names = [f"holder {number}" for number in range(20)]
    waiters = queue.join(*names)
    assert queue.waiting() == [name.encode() for name in names]
    queue.release("a")
    for number, waiter in enumerate(waiters):
        assert waiter.reply() == GRANTED
        queue.settle()
        assert not any(later.is_answered for later in waiters[number + 1 :])
        queue.release(names[number])


def test_who_waits_is_served_before_later_calls_are_read(queue: Queue) -> None:
    queue.acquire("a")
    waiters = queue.join(*(f"holder {number}" for number in range(20)))
    holder = "a"
    for number, waiter in enumerate(waiters):
        queue.release(holder)
        queue.settle()
        assert waiter.is_answered, number
        waiter.reply()
        holder = f"holder {number}"


def test_a_release_of_several_units_serves_as_many_as_fit(queue: Queue) -> None:
    queue.acquire("a", "COST", 8, limit=8)
    waiters = [
        queue.joins(f"b{number}", "COST", cost, limit=8)
        for number, cost in enumerate((3, 2, 2, 4, 1))
    ]
    queue.release("a")
    assert [waiter.reply()[2] for waiter in waiters[:3]] == [5, 3, 1]
    queue.settle()
    assert [waiter.is_answered for waiter in waiters[3:]] == [False, False]
    queue.release("b0")
    assert waiters[3].reply() == [1, 8, 0, 0, 60_000]
    queue.settle()
    assert not waiters[4].is_answered
    queue.release("b1", "b2", "b3")
    assert waiters[4].reply() == [1, 8, 7, 0, 60_000]


def big_one_waits(queue: Queue) -> None:
    """Of 8 units "a" holds 5; who waits is to have 6, and 3 are free."""
    queue.acquire("a", "COST", 5, limit=8)
    queue.joins("big", "COST", 6, limit=8)


def test_a_big_one_at_the_head_is_not_overtaken_by_small_ones(queue: Queue) -> None:
    queue.acquire("a", "COST", 5, limit=8)
    queue.acquire("x", "COST", 3, limit=8)
    big = queue.joins("big", "COST", 6, limit=8)
    small = queue.joins("small", limit=8)
    queue.release("x")
    queue.settle()
    assert not big.is_answered
    assert not small.is_answered
    # There is room for one who comes now, and waits as well.
    late = queue.joins("late", limit=8)
    queue.release("a")
    assert [one.reply()[:3] for one in (big, small, late)] == [[1, 8, 2], [1, 8, 1], [1, 8, 0]]


TAKES: dict[str, tuple[Word, ...]] = {
    "RL.ACQUIRE": ("RL.ACQUIRE", "k", 8, "60s", "late"),
    "RL.TAKE": ("RL.TAKE", "k", "CONCURRENCY", 8, "60s", "late"),
    "RL.PEEK": ("RL.PEEK", "k", "CONCURRENCY", 8, "60s", "late"),
    "RL.LIMIT": ("RL.LIMIT", "k", "pool", "ONCE", "late", "1m"),
    "RL.TAKE by a policy": ("RL.TAKE", "k", "ONCE", "late", "1m", "POLICY", "pool"),
    "RL.PEEK by a policy": ("RL.PEEK", "k", "ONCE", "late", "1m", "POLICY", "pool"),
}
SEVERAL: dict[str, tuple[Word, ...]] = {
    "RL.MTAKE": ("RL.MTAKE", 2, "k", "j", *("CONCURRENCY", 8, "60s", "late") * 2),
    "RL.MPEEK": ("RL.MPEEK", 2, "k", "j", *("CONCURRENCY", 8, "60s", "late") * 2),
    "RL.MTAKE by a policy": (
        *("RL.MTAKE", 2, "k", "j", "ONCE", "late", "1m"),
        *("POLICY", "pool", "POLICY", "pool"),
    ),
}
POOL = ("RL.POLICYSET", "pool", "CONCURRENCY", 8, "60s")


@pytest.mark.parametrize("call", TAKES.values(), ids=TAKES)
def test_nobody_overtakes_who_waits(queue: Queue, call: tuple[Word, ...]) -> None:
    queue.client.execute_command(*POOL)
    big_one_waits(queue)
    before = state(queue.client)
    # There is room, but it is not for who comes now.
    assert queue.client.execute_command(*call) == [0, 8, 3, 1, 60_000]
    assert state(queue.client) == before
    assert queue.waiting() == [b"big"]


@pytest.mark.parametrize("call", SEVERAL.values(), ids=SEVERAL)
def test_nobody_overtakes_who_waits_by_a_call_over_several_keys(
    queue: Queue, call: tuple[Word, ...]
) -> None:
    queue.client.execute_command(*POOL)
    big_one_waits(queue)
    before = state(queue.client)
    allowed, wait, (of_k, of_j) = queue.client.execute_command(*call)
    assert (allowed, wait) == (0, 1)
    assert of_k == [0, 8, 3, 1, 60_000]
    assert of_j[0] == 1
    assert state(queue.client) == before


def test_of_several_limits_of_a_key_that_of_the_leases_has_who_comes_wait(queue: Queue) -> None:
    queue.client.execute_command("RL.TAKE", "k", "FIXED", 5, "1h", "CONCURRENCY", 8, "60s", "x")
    queue.release("x")
    big_one_waits(queue)
    take = ("RL.TAKE", "k", "FIXED", 5, "1h", "CONCURRENCY", 8, "60s", "late")
    assert queue.client.execute_command(*take)[:4] == [0, 8, 3, 1]
    # What takes no lease has nothing to wait for.
    assert queue.client.execute_command("RL.TAKE", "k", "FIXED", 5, "1h")[:3] == [1, 5, 3]
    assert queue.waiting() == [b"big"]


def test_a_gateway_is_told_to_come_again(queue: Queue) -> None:
    queue.client.execute_command(*POOL)
    big_one_waits(queue)
    delay = ("RL.DELAY", "k", "pool", "ONCE", "late", "1m")
    assert queue.client.execute_command(*delay) == 1


def test_who_finds_no_room_is_told_what_the_leases_say(queue: Queue, clock: Clock) -> None:
    big_one_waits(queue)
    clock.advance("20s")
    assert queue.acquire("late", "COST", 4, limit=8) == [0, 8, 3, 40_000, 40_000]
    assert queue.acquire("late", "COST", 3, limit=8) == [0, 8, 3, 1, 40_000]
    assert queue.acquire("late", "COST", 9, limit=8) == [0, 8, 3, -1, 40_000]


def test_a_renewal_passes_those_who_wait(queue: Queue, clock: Clock) -> None:
    big_one_waits(queue)
    clock.advance("20s")
    assert queue.acquire("a", "COST", 5, limit=8) == [1, 8, 3, 0, 60_000]
    assert queue.acquire("a", "COST", 4, "BLOCK", 0, limit=8) == [1, 8, 4, 0, 60_000]
    # For more it comes behind them, as anybody.
    assert queue.acquire("a", "COST", 5, limit=8) == [0, 8, 4, 1, 60_000]
    more = queue.joins("a", "COST", 5, limit=8)
    assert queue.waiting() == [b"big", b"a"]
    # The renewal for less has made room for nobody yet.
    queue.release("a")
    queue.settle()
    assert queue.holders() == {b"big": b"6"}
    queue.release("big")
    assert more.reply() == [1, 8, 3, 0, 60_000]


AT_ONCE = [("RL.RELEASE", "k", "a"), ("RL.ACQUIRE", "k", 1, "60s", "late")]


@pytest.mark.parametrize("transaction", [False, True], ids=["a pipeline", "MULTI"])
def test_nobody_overtakes_before_who_waits_could_be_served(queue: Queue, transaction: bool) -> None:
    queue.acquire("a")
    b = queue.joins("b")
    with queue.client.pipeline(transaction=transaction) as pipeline:
        for words in AT_ONCE:
            pipeline.execute_command(*words)
        assert pipeline.execute() == [1, [0, 1, 1, 1, 0]]
    assert b.reply() == GRANTED


def test_a_script_that_releases_does_not_overtake_either(queue: Queue) -> None:
    queue.acquire("a")
    b = queue.joins("b")
    script = (
        "redis.call('RL.RELEASE', 'k', 'a') return redis.call('RL.ACQUIRE', 'k', 1, '60s', 'late')"
    )
    assert queue.client.eval(script, 0) == [0, 1, 1, 1, 0]
    assert b.reply() == GRANTED
    assert queue.holders() == {b"b": b"1"}


# The limit is that of the last call


@pytest.mark.parametrize("call", [*TAKES, "RL.MTAKE"])
def test_a_higher_limit_of_another_call_lets_who_waits_in(queue: Queue, call: str) -> None:
    queue.client.execute_command(*POOL)
    for holder in "ax":
        queue.acquire(holder, limit=2)
    b, c = queue.joins("b", limit=2), queue.joins("c", "COST", 6, limit=7)
    # "c" has brought a limit by which "b" is let in.
    assert b.reply() == [1, 7, 4, 0, 60_000]
    queue.settle()
    assert not c.is_answered
    queue.release("x")
    queue.client.execute_command(*(TAKES | SEVERAL)[call])
    queue.settle()
    # Of 8 units two are held, if who only looks brings no limit: of 7.
    assert c.is_answered == ("PEEK" not in call)
    if c.is_answered:
        assert c.reply() == [1, 8, 0, 0, 60_000]
    assert b"late" not in queue.holders()


def test_a_renewal_brings_a_limit_too(queue: Queue) -> None:
    queue.acquire("a")
    b, c = queue.join("b", "c")
    assert queue.acquire("a", limit=2) == [1, 2, 1, 0, 60_000]
    assert b.reply() == [1, 2, 0, 0, 60_000]
    queue.settle()
    assert not c.is_answered


def test_a_policy_that_is_changed_lets_who_waits_in_at_the_next_call(queue: Queue) -> None:
    def limit(holder: str) -> list[int]:
        return queue.client.execute_command("RL.LIMIT", "k", "pool", "ONCE", holder, "1h")

    queue.client.execute_command("RL.POLICYSET", "pool", "CONCURRENCY", 1, "60s")
    assert limit("a") == GRANTED
    b, c, d = queue.join("b", "c", "d")
    queue.client.execute_command("RL.POLICYSET", "pool", "CONCURRENCY", 3, "60s")
    assert limit("late") == [0, 3, 2, 1, 60_000]
    assert [one.reply() for one in (b, c)] == [[1, 3, 1, 0, 60_000], [1, 3, 0, 0, 60_000]]
    queue.settle()
    assert not d.is_answered
    queue.client.execute_command("RL.POLICYSCALE", "pool", 2)
    assert limit("late")[:2] == [0, 6]
    assert d.reply() == [1, 6, 2, 0, 60_000]


def test_under_a_lower_limit_those_wait_on_who_still_fit(queue: Queue) -> None:
    queue.acquire("a", limit=3)
    big = queue.joins("big", "COST", 3, limit=3)
    small = queue.joins("small", "COST", 2, limit=3)
    assert queue.acquire("late", limit=2) == [0, 2, 1, 1, 60_000]
    # It can never be, and does not keep the next from waiting.
    assert big.reply() == [0, 2, 1, -1, 60_000]
    queue.settle()
    assert not small.is_answered
    queue.release("a")
    assert small.reply() == [1, 2, 0, 0, 60_000]


def test_a_limit_of_0_answers_all_who_wait(queue: Queue) -> None:
    queue.acquire("a")
    waiters = queue.join("b", "c")
    assert queue.acquire("late", limit=0) == [0, 0, 0, -1, 60_000]
    assert [one.reply() for one in waiters] == [[0, 0, 0, -1, 60_000]] * 2


# The deadline


@pytest.mark.parametrize("block", ["5s", "5", "5000ms"])
def test_at_the_deadline_it_is_denied_as_it_then_is(queue: Queue, clock: Clock, block: str) -> None:
    queue.acquire("a")
    b = queue.joins("b", block=block)
    clock.advance("4997ms")
    queue.see_clock(clock)
    assert not b.is_answered
    clock.advance("1ms")
    assert b.reply() == [0, 1, 0, 55_000, 55_000]
    assert queue.is_empty
    assert queue.told()["timed_out"] > 0


def test_a_lease_that_lapses_at_the_deadline_is_granted(queue: Queue, clock: Clock) -> None:
    queue.acquire("a")
    b, c = queue.joins("b", block="60s"), queue.joins("c", block="60s")
    clock.advance("60s")
    assert (b.reply(), c.reply()) == (GRANTED, DENIED)


def test_once_a_head_is_denied_the_next_passes_and_has_not_waited_in_vain(
    own_queue: Queue, clock: Clock
) -> None:
    queue = own_queue
    queue.acquire("a", limit=2)
    big = queue.joins("big", "COST", 2, limit=2, block="30s")
    small = queue.joins("small", limit=2, block="30s")
    clock.advance("30s")
    assert big.reply() == [0, 2, 1, 30_000, 30_000]
    assert small.reply() == [1, 2, 0, 0, 60_000]
    told = queue.told()
    assert (told["served"], told["timed_out"]) == (1, 1)


def test_deadlines_end_in_their_order_wherever_in_the_queue(queue: Queue, clock: Clock) -> None:
    queue.acquire("a")
    blocks = {"b": "30s", "c": "10s", "d": "20s", "e": "0"}
    waiters = {name: queue.joins(name, block=block) for name, block in blocks.items()}
    for name, left in (("c", 50_000), ("d", 40_000), ("b", 30_000)):
        clock.advance("10s")
        assert waiters.pop(name).reply() == [0, 1, 0, left, left]
        queue.settle()
        assert not any(one.is_answered for one in waiters.values())
    queue.release("a")
    assert waiters["e"].reply() == GRANTED


def test_who_is_denied_at_the_head_makes_way_for_the_next(queue: Queue, clock: Clock) -> None:
    queue.acquire("a", "COST", 5, limit=8)
    big = queue.joins("big", "COST", 6, limit=8, block="10s")
    small = queue.joins("small", "COST", 2, limit=8)
    clock.advance("10s")
    assert big.reply() == [0, 8, 3, 50_000, 50_000]
    assert small.reply() == [1, 8, 1, 0, 60_000]


def test_behind_others_the_denial_says_to_come_again_if_there_is_room(
    queue: Queue, clock: Clock
) -> None:
    big_one_waits(queue)
    late = queue.joins("late", limit=8, block="10s")
    clock.advance("10s")
    assert late.reply() == [0, 8, 3, 1, 50_000]


def test_0_is_without_end(queue: Queue, clock: Clock) -> None:
    queue.acquire("a", ttl="3650d")
    b = queue.joins("b", block="0")
    clock.advance("1000d")
    queue.see_clock(clock)
    assert not b.is_answered
    queue.release("a")
    assert b.reply() == GRANTED


# A holder that calls again


def test_a_holder_that_asks_again_keeps_its_place_and_its_older_call_is_denied(
    queue: Queue, clock: Clock
) -> None:
    queue.acquire("a")
    older, c = queue.join("b", "c")
    clock.advance("10s")
    again = queue.caller().send("RL.ACQUIRE", "k", 1, "60s", "b", "BLOCK", 0)
    assert older.reply() == [0, 1, 0, 50_000, 50_000]
    queue.settle()
    assert queue.waiting() == [b"b", b"c"]
    assert queue.blocked == 2
    queue.release("a")
    assert again.reply() == GRANTED
    queue.settle()
    assert not c.is_answered


def test_a_holder_that_waits_does_not_overtake_itself(queue: Queue) -> None:
    queue.acquire("a")
    b = queue.joins("b")
    with queue.client.pipeline(transaction=True) as pipeline:
        pipeline.execute_command("RL.RELEASE", "k", "a")
        pipeline.execute_command("RL.ACQUIRE", "k", 1, "60s", "b")
        assert pipeline.execute() == [1, [0, 1, 1, 1, 0]]
    assert b.reply() == GRANTED


def test_a_holder_that_asks_without_block_is_denied_and_its_older_call_waits_on(
    queue: Queue,
) -> None:
    queue.acquire("a")
    b = queue.joins("b")
    assert queue.acquire("b") == DENIED
    queue.settle()
    assert not b.is_answered
    queue.release("a")
    assert b.reply() == GRANTED


def test_a_connection_may_wait_again_and_again(queue: Queue) -> None:
    queue.acquire("a")
    caller, holder = queue.caller(), "a"
    for number in range(10):
        queue.joins(f"b{number}", by=caller)
        queue.release(holder)
        assert caller.reply() == GRANTED
        holder = f"b{number}"


# To give up


def test_who_is_released_while_it_waits_is_denied_and_leaves_the_queue(
    queue: Queue, clock: Clock
) -> None:
    queue.acquire("a")
    b, c, d = queue.join("b", "c", "d")
    clock.advance("10s")
    # Nobody's lease is released: neither at the head nor behind it has one.
    assert queue.release("b", "c", "nobody") == 0
    assert [b.reply(), c.reply()] == [[0, 1, 0, 50_000, 50_000]] * 2
    queue.settle()
    assert (queue.waiting(), queue.blocked, d.is_answered) == ([b"d"], 1, False)
    queue.release("a")
    assert d.reply() == GRANTED
    assert b.call("RL.RELEASE", "k", "d") == 1


def test_who_has_given_up_is_in_nobodys_way(queue: Queue) -> None:
    """Before the next call is read, and within one transaction."""
    queue.acquire("a")
    b = queue.joins("b")
    with queue.client.pipeline(transaction=True) as pipeline:
        for holder in ("b", "a"):
            pipeline.execute_command("RL.RELEASE", "k", holder)
        pipeline.execute_command("RL.INFO", "k")
        pipeline.execute_command("RL.ACQUIRE", "k", 1, "60s", "c")
        assert pipeline.execute() == [0, 1, None, GRANTED]
    # It is told what held when it gave up.
    assert b.reply() == DENIED
    c = queue.joins("b")
    assert queue.release("b") == 0
    assert queue.acquire("b") == DENIED
    assert c.reply() == DENIED
    assert queue.holders() == {b"c": b"1"}


def test_what_waits_for_other_keys_costs_a_release_no_lookup(own_queue: Queue) -> None:
    own_queue.acquire("a")
    own_queue.acquire("b", key="j")
    c = own_queue.joins("c")

    def lookups() -> int:
        stats = own_queue.client.info("stats")
        return stats["keyspace_hits"] + stats["keyspace_misses"]

    before = lookups()
    assert own_queue.release("b", "c", "d", key="j") == 1
    assert lookups() - before <= 1
    own_queue.release("c")
    assert c.reply() == DENIED


def test_a_big_one_that_gives_up_makes_way_for_small_ones(queue: Queue) -> None:
    queue.acquire("a", "COST", 7, limit=8)
    big = queue.joins("big", "COST", 8, limit=8)
    small = queue.joins("small", limit=8)
    queue.release("big")
    assert (big.reply()[0], small.reply()[0]) == (0, 1)


def test_who_gives_its_lease_back_waits_on_for_more(queue: Queue) -> None:
    queue.acquire("a", limit=2)
    queue.acquire("b", limit=2)
    more = queue.joins("a", "COST", 2, limit=2)
    assert queue.release("a") == 1
    queue.settle()
    assert not more.is_answered
    assert queue.release("a") == 0
    assert more.reply()[0] == 0
    assert list(queue.holders()) == [b"b"]


@pytest.mark.parametrize("order", ["close first", "release first"])
def test_who_goes_away_and_releases_elsewhere_is_granted_nothing(queue: Queue, order: str) -> None:
    """In whatever order the server hears of it, and of the lease that becomes free."""
    queue.acquire("a")
    b = queue.joins("b")
    with queue.client.pipeline(transaction=False) as pipeline:
        pipeline.execute_command("RL.RELEASE", "k", "b")
        pipeline.execute_command("RL.RELEASE", "k", "a")
        if order == "close first":
            b.hang_up()
        assert pipeline.execute() == [0, 1]
    b.hang_up()
    queue.until(lambda: queue.is_empty, "nobody waits")
    queue.settle()
    assert queue.holders() == {}


def test_to_give_up_in_a_transaction_or_a_script_is_the_same(queue: Queue) -> None:
    queue.acquire("a")
    b, c = queue.join("b", "c")
    with queue.client.pipeline(transaction=True) as pipeline:
        assert pipeline.execute_command("RL.RELEASE", "k", "b").execute() == [0]
    assert b.reply() == DENIED
    queue.client.eval("return redis.call('RL.RELEASE', 'k', 'c')", 0)
    assert c.reply() == DENIED


def test_to_give_up_elsewhere_ends_no_wait(queue: Queue) -> None:
    queue.acquire("a")
    b = queue.joins("b")
    assert queue.release("b", key="j") == 0
    queue.client.select(1)
    assert queue.release("b") == 0
    queue.client.select(0)
    queue.settle()
    assert not b.is_answered
    queue.release("a")
    assert b.reply() == GRANTED


def test_to_give_up_ends_a_wait_for_leases_among_several_limits(queue: Queue) -> None:
    take = ("RL.TAKE", "k", "FIXED", 5, "1h", "CONCURRENCY", 1, "60s", "a")
    queue.client.execute_command(*take)
    b = queue.joins("b")
    assert queue.release("b") == 0
    assert b.reply() == DENIED


# Options


def test_a_waiting_call_has_the_options_of_any_other(queue: Queue, clock: Clock) -> None:
    """What it is answered is what it would be answered if it came now."""
    for options in (
        ("COST", "2.5"),
        ("KEEP", 2),
        ("KEEP", "50%", "COST", 2),
        ("AS", "pool"),
        ("NX",),
        ("NX", "KEEP", 1, "AS", "pool", "COST", "0.000001"),
    ):
        queue.client.flushall()
        named = ("AS", "pool") if "AS" in options else ()
        for key in ("k", "twin"):
            queue.acquire("a", "COST", 4, *named, key=key, limit=4)
        waiter = queue.joins("b", *options, limit=4)
        clock.advance("1s")
        for key in ("k", "twin"):
            queue.release("a", key=key)
        expected = queue.acquire("b", *options, key="twin", limit=4)
        assert expected[0] == 1, options
        assert waiter.reply() == expected, options
        assert queue.client.dump("k") == queue.client.dump("twin"), options


def test_what_is_kept_for_others_keeps_who_waits_waiting(queue: Queue) -> None:
    queue.acquire("a", "COST", 3, limit=4)
    b = queue.joins("b", "KEEP", 2, limit=4)
    # Two units are free, and two are to be kept.
    queue.acquire("a", "COST", 2, limit=4)
    queue.settle()
    assert not b.is_answered
    queue.acquire("a", limit=4)
    assert b.reply()[0] == 1


@pytest.mark.parametrize("place", range(4))
def test_block_may_stand_anywhere_among_the_options(queue: Queue, clock: Clock, place: int) -> None:
    options: list[tuple[Word, ...]] = [("COST", 1), ("KEEP", 0), ("NX",)]
    options.insert(place, ("block", "10s"))
    queue.acquire("a")
    words = [word for option in options for word in option]
    b = queue.send("RL.ACQUIRE", "k", 1, "60s", "b", *words)
    poll.until(lambda: queue.blocked == 1, "it waits")
    clock.advance("10s")
    assert b.reply() == [0, 1, 0, 50_000, 50_000]


def test_a_lock_waits_for_its_own_holder_too(queue: Queue, clock: Clock) -> None:
    queue.acquire("a", "NX")
    same = queue.joins("a", "NX")
    clock.advance("60s")
    assert same.reply() == GRANTED
    again = queue.joins("a", "NX")
    queue.release("a")
    assert again.reply() == GRANTED


def test_a_key_with_several_limits_has_a_queue_as_well(queue: Queue) -> None:
    take = ("RL.TAKE", "k", "FIXED", 5, "1h", "CONCURRENCY", 1, "60s")
    assert queue.client.execute_command(*take, "a")[0] == 1
    b, c = queue.join("b", "c")
    assert queue.client.type("k") == b"rl-limits"
    assert queue.client.execute_command(*take, "late")[:3] == [0, 1, 0]
    for holder, waiter in (("a", b), ("b", c)):
        assert queue.release(holder) == 1
        assert waiter.reply()[:4] == [1, 1, 0, 0]
    # The other limit has been charged once.
    assert queue.client.execute_command("RL.PEEK", "k", "FIXED", 5, "1h")[2] == 4


def test_a_settlement_that_releases_a_lease_serves_who_waits(queue: Queue) -> None:
    queue.client.execute_command("RL.POLICYSET", "pool", "CONCURRENCY", 1, "60s")
    queue.client.execute_command("RL.LIMIT", "k", "pool", "ONCE", "a", "1h")
    b = queue.joins("b")
    queue.client.execute_command("RL.LIMIT", "k", "pool", "SETTLE", "a", 0)
    assert b.reply()[:4] == [1, 1, 0, 0]


WRONG = {
    "-1": "block must be 0",
    "-0.5s": "block must be 0",
    "x": "block must be 0",
    "": "block must be 0",
    "3651d": "block must be 0",
    "5w": "block must be 0",
    "inf": "block must be 0",
    # Only the bare 0 has no end: what is left of somebody's time-out may be none.
    "0ms": "block must be 0",
    "0.0": "block must be 0",
    "-0": "block must be 0",
    "00": "block must be 0",
}


@pytest.mark.parametrize("block", WRONG)
def test_a_wrong_duration_is_an_error_that_says_which_are_right(queue: Queue, block: str) -> None:
    is_one = block not in ("x", "", "5w", "inf")
    which = " from 1us to 3650d, such as 5s, not" if is_one else " such as 5s, not"
    said = f"block must be 0 (no end) or a duration{which} '{block}'"
    for holder in ("a", "b"):
        assert said in error_of(lambda holder=holder: queue.acquire(holder, "BLOCK", block))
    assert not queue.client.exists("k")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("BLOCK",), "block is missing: BLOCK duration"),
        (("BLOCK", "1s", "BLOCK", "1s"), "syntax error, unexpected 'BLOCK'"),
    ],
)
def test_block_stands_once_with_a_duration(
    queue: Queue, options: tuple[Word, ...], error: str
) -> None:
    assert error in error_of(lambda: queue.acquire("a", *options))


@pytest.mark.parametrize(
    "call",
    [
        "RL.TAKE k CONCURRENCY 1 60s a BLOCK 1s",
        "RL.PEEK k CONCURRENCY 1 60s a BLOCK 1s",
        "RL.MTAKE 2 k j CONCURRENCY 1 60s a BLOCK 1s CONCURRENCY 1 60s a",
        "RL.POLICYSET p CONCURRENCY 1 60s BLOCK 1s",
        "RL.TAKE k BLOCK 1s CONCURRENCY 1 60s a",
        "RL.MTAKE 1 k CONCURRENCY 1 60s a BLOCK 1s",
        "RL.LIMIT k pool ONCE a 1m BLOCK 1s",
    ],
)
def test_block_elsewhere_is_an_error_that_says_where_it_may_stand(queue: Queue, call: str) -> None:
    queue.client.execute_command(*POOL)
    error = error_of(lambda: queue.client.execute_command(*call.split()))
    assert "syntax error, unexpected 'BLOCK'" in error
    assert "RL.ACQUIRE" in error


# Where nobody may wait

ASKS = ("RL.ACQUIRE", "k", 1, "60s", "b", "BLOCK", 0)


def test_in_a_transaction_it_is_answered_at_once(queue: Queue) -> None:
    queue.acquire("a")
    with queue.client.pipeline(transaction=True) as pipeline:
        pipeline.execute_command(*ASKS)
        pipeline.ping()
        assert pipeline.execute() == [DENIED, True]
    assert queue.is_empty


def test_in_a_script_it_is_answered_at_once(queue: Queue) -> None:
    queue.acquire("a")
    script = "return redis.call(unpack(ARGV))"
    assert queue.client.eval(script, 1, "k", *ASKS) == DENIED
    queue.release("a")
    assert queue.client.eval(script, 1, "k", *ASKS) == GRANTED


def test_in_a_function_it_is_answered_at_once(queue: Queue) -> None:
    if queue.server.version < (7,):
        pytest.skip("functions came with 7.0")
    library = (
        "#!lua name=waiting\nredis.register_function('ask', "
        "function(keys, args) return redis.call(unpack(args)) end)"
    )
    queue.client.function_load(library, replace=True)
    queue.acquire("a")
    assert queue.client.fcall("ask", 1, "k", *ASKS) == DENIED
    queue.client.function_delete("waiting")


def test_by_a_module_that_lets_nobody_block_it_is_answered_at_once(
    fresh_server: Start, tmp_path_factory: pytest.TempPathFactory
) -> None:
    asker = modules.build("asker", tmp_path_factory.mktemp("asker"))
    with Queue(fresh_server(others=[asker])) as queue:
        queue.acquire("a")
        assert queue.client.execute_command("ASKER.CALL", *ASKS) == DENIED
        assert queue.is_empty
        b = queue.joins("b")
        assert queue.client.execute_command("ASKER.CALL", "RL.RELEASE", "k", "a") == 1
        assert b.reply() == GRANTED


# How many may wait


def assert_two_may_wait(queue: Queue) -> None:
    queue.acquire("a")
    older, c = queue.join("b", "c")
    # A holder that waits already takes its own place.
    b = queue.joins("b")
    assert older.reply() == DENIED
    said = "the key has 2 entries, as many as ratelimit.max-blocked allows"
    assert said in error_of(lambda: queue.acquire("d", "BLOCK", 0))
    # A holder that waits already does not become one more.
    again = queue.joins("b")
    assert b.reply() == DENIED
    b = again
    # A call that would not wait is answered as ever, and so is one that waits for another key.
    assert queue.acquire("d") == DENIED
    queue.acquire("a", key="j")
    queue.joins("d", key="j")
    queue.release("a")
    assert b.reply() == GRANTED
    d = queue.joins("d")
    queue.release("b")
    assert c.reply() == GRANTED
    queue.release("c")
    assert d.reply() == GRANTED


def test_so_many_may_wait_for_a_key_as_the_module_is_told(fresh_server: Start) -> None:
    with Queue(fresh_server(module_args="max-blocked 2")) as queue:
        assert_two_may_wait(queue)


def test_so_many_may_wait_for_a_key_as_config_says(own_queue: Queue) -> None:
    if not own_queue.server.binary.has_module_config:
        pytest.skip(NO_MODULE_CONFIG)
    name = "ratelimit.max-blocked"
    assert own_queue.client.config_get(name) == {name: "10000"}
    for wrong in (0, -1, 10_000_001, "x"):
        with pytest.raises(ResponseError):
            own_queue.client.config_set(name, wrong)
    own_queue.client.config_set(name, 2)
    assert_two_may_wait(own_queue)


# What is told


def test_info_tells_who_waits_and_for_how_long(own_queue: Queue, clock: Clock) -> None:
    queue = own_queue
    none = {
        "blocked_clients": 0,
        "blocked_keys": 0,
        "longest_blocked_ms": 0,
        "served": 0,
        "timed_out": 0,
    }
    # How much the timer has done is not about anybody.
    turns = {"looks", "busiest_turn"}

    def told() -> dict[str, object]:
        return {name: value for name, value in queue.told().items() if name not in turns}

    assert told() == none
    for key in ("j", "k"):
        queue.acquire("a", key=key)
    waiters = queue.join("b", "c")
    clock.advance("1500ms")
    other = queue.joins("b", key="j", block="10s")
    clock.advance("500ms")
    assert told() == {
        **none,
        "blocked_clients": 3,
        "blocked_keys": 2,
        "longest_blocked_ms": 2000,
        "blocked_0": {"key": "k", "db": 0, "waiting": 2, "longest_ms": 2000},
        "blocked_1": {"key": "j", "db": 0, "waiting": 1, "longest_ms": 500},
    }
    queue.release("a")
    assert waiters[0].reply()[0] == 1
    clock.advance("10s")
    assert other.reply()[0] == 0
    assert (told()["served"], told()["timed_out"]) == (1, 1)
    assert (told()["blocked_clients"], told()["blocked_keys"]) == (1, 1)


def test_info_names_the_16_keys_whose_heads_wait_longest(own_queue: Queue, clock: Clock) -> None:
    for number in range(20):
        key = f"key {number}"
        own_queue.acquire("a", key=key)
        own_queue.joins("b", key=key)
        clock.advance("100ms")
    told = own_queue.told()
    assert (told["blocked_keys"], told["longest_blocked_ms"]) == (20, 2000)
    rows = {name for name in told if name.removeprefix("blocked_").isdigit()}
    assert rows == {f"blocked_{number}" for number in range(16)}
    assert [told[f"blocked_{number}"]["longest_ms"] for number in (0, 15)] == [2000, 500]


def test_a_key_of_any_bytes_is_one_line_of_info(queue: Queue) -> None:
    key = b"a,b=c:d\r\nratelimit_blocked_1:key=x \xff\0"
    queue.acquire("a", key=key)
    b = queue.joins("b", key=key)
    told = queue.told()
    assert (told["blocked_clients"], told["blocked_keys"]) == (1, 1)
    assert {name for name in told if name[-1].isdigit()} == {"blocked_0"}
    queue.release("a", key=key)
    assert b.reply() == GRANTED


@pytest.mark.parametrize("protocol", [2, 3])
def test_of_a_key_its_queue_is_told(queue: Queue, clock: Clock, protocol: int) -> None:
    queue.acquire("a", "COST", 5, limit=8)
    queue.joins("big", "COST", "6.5", limit=8)
    clock.advance("1500ms")
    queue.joins(b"\xff\0\r\n", limit=8, block="10s")
    clock.advance("500ms")
    caller = queue.caller(protocol)
    reply = caller.call("RL.INFO", "k")
    told = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
    assert told[b"kind"] == b"rl-leases"
    assert told[b"waiting"] == 2
    assert told[b"queue"] == [[b"big", b"6.5", 2000, -1], [b"\xff\0\r\n", b"1", 500, 9500]]


def test_of_a_long_queue_the_first_100_are_told(queue: Queue) -> None:
    queue.acquire("a")
    waiters = [
        queue.send("RL.ACQUIRE", "k", 1, "60s", f"holder {number}", "BLOCK", 0)
        for number in range(130)
    ]
    poll.until(lambda: queue.blocked == 130, "all wait")
    told = told_of(queue.client)
    assert (told[b"waiting"], len(told[b"queue"])) == (130, 100)
    assert not any(waiter.is_answered for waiter in waiters)


def test_of_a_key_for_which_nobody_waits_no_queue_is_told(queue: Queue) -> None:
    queue.acquire("a")
    assert not {b"waiting", b"queue"} & told_of(queue.client).keys()
    b = queue.joins("b")
    queue.release("a")
    b.reply()
    assert not {b"waiting", b"queue"} & told_of(queue.client).keys()


def test_the_server_says_that_the_command_may_block(redis: Redis, server: Server) -> None:
    flags = set(redis.command()["rl.acquire"]["flags"])
    if server.version < (7,):
        # It has no such flag for modules.
        assert "write" in flags
    else:
        assert {"write", "blocking"} <= flags
        docs = redis.execute_command("COMMAND DOCS", "rl.acquire")
        assert "BLOCK" in str(docs)
    assert "fast" not in flags


def counts(queue: Queue) -> dict[str, dict[str, int]]:
    """By command and kind, what INFO has counted, without the zeros."""
    info = queue.client.info("ratelimit")
    names = {"acquire": "ratelimit_rl.acquire", "leases": "ratelimit_rl-leases"}
    return {
        short: {what: count for what, count in info[name].items() if count}
        for short, name in names.items()
    }


def test_a_call_that_waits_counts_once_when_it_is_answered(own_queue: Queue, clock: Clock) -> None:
    queue = own_queue
    queue.acquire("a")
    served, denied, refused = (
        queue.joins("b"),
        queue.joins("c", block="10s"),
        queue.joins("d", block="1h"),
    )
    of_a = {"acquire": {"calls": 1, "admitted": 1}, "leases": {"admitted": 1, "keys_made": 1}}
    found = counts(queue)
    found["acquire"].pop("calls")
    assert found["acquire"] == {"admitted": 1}
    assert found["leases"] == of_a["leases"]
    queue.release("a")
    assert served.reply()[0] == 1
    clock.advance("10s")
    assert denied.reply()[0] == 0
    queue.client.set("k", "text")
    assert "WRONGTYPE" in error_of(refused.reply)
    found = counts(queue)
    assert found["acquire"] == {"calls": 4, "admitted": 2, "denied": 1, "errors": 1}
    assert (found["leases"]["admitted"], found["leases"]["denied"]) == (2, 1)


def test_what_is_granted_is_heard_as_rl_take(fresh_server: Start) -> None:
    with Queue(fresh_server(notify_keyspace_events="KA")) as queue:
        queue.acquire("a")
        b, c = queue.join("b", "c")
        with queue.server.client(decode_responses=True).pubsub() as subscriber:
            subscriber.psubscribe("__keyspace@0__:*")
            heard: list[str] = []

            def hear() -> bool:
                message = subscriber.get_message(timeout=0.1)
                if message and message["type"] == "pmessage":
                    heard.append(message["data"])
                return heard[-1:] == ["set"]

            subscriber.get_message(timeout=10)
            queue.release("a")
            b.reply()
            queue.release("b")
            c.reply()
            queue.client.set("end", "")
            poll.until(hear, "all is heard")
        assert heard == ["del", "rl.take", "del", "rl.take", "set"]


def test_what_is_granted_is_a_change_to_who_watches_the_key(queue: Queue, clock: Clock) -> None:
    queue.acquire("a")
    b = queue.joins("b")
    with queue.client.pipeline() as pipeline:
        pipeline.watch("k")
        clock.advance("60s")
        assert b.reply() == GRANTED
        pipeline.multi()
        pipeline.ping()
        with pytest.raises(WatchError):
            pipeline.execute()


# What others get of it


def test_a_replica_has_what_is_granted_to_the_byte(pair: Pair, clock: Clock) -> None:
    with Queue(pair.primary) as queue:
        queue.acquire("a", "COST", 2, limit=2)
        waiters = queue.join("b", "c", "d", limit=2)
        for end in (lambda: clock.advance("60s"), lambda: queue.release("b")):
            end()
            waiters.pop(0).reply()
            queue.settle()
            pair.replica.wait_for_sync()
            held = state(queue.client)
            with pair.replica.client() as replica:
                assert state(replica) == held
            assert held[b"k"].expires_at > clock.now // 1000
            if len(waiters) == 2:
                waiters.pop(0).reply()
        assert set(queue.holders()) == {b"c", b"d"}


def test_a_replica_has_what_is_granted_in_any_database(pair: Pair, clock: Clock) -> None:
    with Queue(pair.primary) as queue:
        callers = [queue.caller() for _ in range(3)]
        holder, *waiting = callers
        for caller in callers:
            caller.call("SELECT", 3)
        holder.call("RL.ACQUIRE", "k", 1, "60s", "a")
        for number, caller in enumerate(waiting):
            queue.joins(f"b{number}", by=caller)
        clock.advance("60s")
        assert waiting[0].reply() == GRANTED
        holder.call("RL.RELEASE", "k", "b0")
        assert waiting[1].reply() == GRANTED
        pair.replica.wait_for_sync()
        reader = Caller(pair.replica)
        assert not reader.call("EXISTS", "k")
        reader.call("SELECT", 3)
        assert b"b1" in reader.call("RL.INFO", "k")[-1][0]
        assert reader.call("DUMP", "k") == holder.call("DUMP", "k")
        assert reader.call("PTTL", "k") >= 60_000
        reader.hang_up()


def test_a_wait_alone_is_not_propagated(own_queue: Queue, clock: Clock) -> None:
    queue = own_queue
    queue.server.replica()
    queue.acquire("a")

    def offset() -> int:
        return queue.client.info("replication")["master_repl_offset"]

    before, dump = offset(), queue.client.dump("k")
    b = queue.joins("b", block="10s")
    queue.joins("c")
    clock.advance("10s")
    assert b.reply()[0] == 0
    assert (offset(), queue.client.dump("k")) == (before, dump)


def test_an_aof_has_what_is_granted(fresh_server: Start, clock: Clock) -> None:
    server = fresh_server(appendonly="yes", appendfsync="always")
    with Queue(server) as queue:
        queue.acquire("a")
        b, _ = queue.join("b", "c")
        clock.advance("60s")
        assert b.reply() == GRANTED
        assert {words[0].upper() for words in written_commands(server)} == {b"RL.EFFECT"}
        held = state(queue.client)
        server.restart("kill")
        assert state(queue.client) == held
        assert queue.holders() == {b"b": b"1"}
        assert queue.is_empty


def test_units_are_granted_to_the_millionth(queue: Queue) -> None:
    queue.acquire("a", limit="1.5")
    b = queue.joins("b", "COST", "0.500001", limit="1.5")
    queue.settle()
    assert not b.is_answered
    queue.acquire("a", "COST", 1 - 1 / UNIT, limit="1.5")
    assert b.reply() == [1, 1, 0, 0, 60_000]
