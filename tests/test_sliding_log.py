"""RL.SLIDINGLOG: exact, by the time of every admitted call."""

import random
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis, ResponseError

from support import poll
from support.clock import UNITS_US, Clock
from support.server import Server
from support.strategies import sequences
from support.units import UNIT, decimal, millis

MINUTE = UNITS_US["m"]


@dataclass
class Oracle:
    """Every charge with its time, and nothing clever. In millionths and microseconds."""

    charges: list[tuple[int, int]] = field(default_factory=list)
    # That of the last charge: once it has passed, the key may be gone.
    window: int = 0

    def present(self, now: int, window: int) -> int:
        return sum(cost for at, cost in self.charges if now - window < at)

    def wait(self, now: int, limit: int, window: int, cost: int) -> int:
        moments = [now, *(at + window for at, _ in self.charges)]
        fits = (at for at in moments if at >= now and self.present(at, window) + cost <= limit)
        return min(fits) - now

    def may_be_gone(self, now: int) -> bool:
        return self.present(now, self.window) == 0

    def call(self, now: int, limit: int, window: int, cost: int, option: str = "") -> list[int]:
        self.see(now)
        available = max(0, limit - self.present(now, window))
        granted = []
        if option == "UPTO":
            cost = min(available // UNIT * UNIT, cost)
            granted = [cost // UNIT]
            cost = cost or UNIT
        allowed = cost < 0 or self.present(now, window) + cost <= limit
        wait = 0
        if not allowed:
            wait = -1 if cost > limit else millis(self.wait(now, limit, window, cost))
        if cost < 0 and self.charges:
            self.forget(now, window)
            self.give_back(-cost)
        if cost > 0 and (allowed or option == "FORCE"):
            self.forget(now, window)
            self.charges.append((now, cost))
        if not allowed and option == "FORCE":
            wait = millis(self.wait(now, limit, window, 0))
        remaining = max(0, limit - self.present(now, window)) // UNIT
        reset = max([at + window - now for at, _ in self.charges], default=0)
        return [int(allowed), limit // UNIT, remaining, wait, millis(max(0, reset)), *granted]

    def see(self, now: int) -> None:
        """A clock gone back takes all entries along."""
        back = max([at - now for at, _ in self.charges], default=0)
        if back > 0:
            self.charges = [(at - back, cost) for at, cost in self.charges]

    def forget(self, now: int, window: int) -> None:
        self.window = window
        self.charges = [(at, cost) for at, cost in self.charges if now - window < at]

    def give_back(self, amount: int) -> None:
        rest = []
        for at, cost in self.charges:
            taken = min(cost, amount)
            amount -= taken
            rest.append((at, cost - taken))
        self.charges = [(at, cost) for at, cost in rest if cost]


def ask(redis: Redis, limit: int, window: int, cost: int, option: str = "") -> list[int]:
    words = ["COST", str(cost // UNIT) if option == "UPTO" else decimal(cost), option]
    return redis.execute_command(
        "RL.SLIDINGLOG", "k", decimal(limit), f"{window}us", *(word for word in words if word)
    )


amounts = st.sampled_from([1, 500_000, UNIT, 2 * UNIT, 10 * UNIT]) | st.integers(1, 12 * UNIT)
calls = st.one_of(
    st.tuples(amounts, st.sampled_from(["", "", "", "FORCE"])),
    st.tuples(st.integers(1, 12).map(lambda units: units * UNIT), st.just("UPTO")),
    st.tuples(amounts.map(lambda amount: -amount), st.just("")),
    st.just((0, "")),
)
limits = st.sampled_from([10 * UNIT, 10 * UNIT, 4_500_000, 0])
# In parts of the window, so that calls land exactly where others leave it.
moments = st.tuples(st.sampled_from([0, 0, 1, 2, 3, 5, 10, 11, 25]), st.sampled_from([-1, 0, 1, 7]))


@given(
    window=st.sampled_from([1, 10, 1_000_000, MINUTE]),
    steps=sequences(st.tuples(moments, calls, limits), 40),
)
@settings(max_examples=100)
def test_every_answer_is_that_of_a_list_of_charges(
    redis: Redis, clock: Clock, window: int, steps: list
) -> None:
    redis.delete("k")
    clock.reset()
    oracle = Oracle()
    for (tenths, us), (cost, option), limit in steps:
        clock.advance(max(0, tenths * window // 10 + us))
        expected = oracle.call(clock.now, limit, window, cost, option)
        assert ask(redis, limit, window, cost, option) == expected


@given(
    windows=st.lists(st.sampled_from([1_000_000, MINUTE, 7 * MINUTE]), min_size=2, max_size=3),
    steps=sequences(st.tuples(moments, calls, st.integers(0, 2)), 40),
)
@settings(max_examples=100)
def test_a_changed_window_reaches_as_far_back_as_it_is_long(
    redis: Redis, clock: Clock, windows: list[int], steps: list
) -> None:
    redis.delete("k")
    clock.reset()
    oracle, limit = Oracle(), 10 * UNIT
    for (tenths, us), (cost, option), which in steps:
        window = windows[which % len(windows)]
        clock.advance(max(0, tenths * window // 10 + us))
        if not redis.exists("k"):
            # A key is remembered for as long as the limit that it was last charged under remembers.
            assert oracle.may_be_gone(clock.now)
            oracle.charges.clear()
        expected = oracle.call(clock.now, limit, window, cost, option)
        assert ask(redis, limit, window, cost, option) == expected


@given(steps=sequences(st.tuples(st.integers(-150, 100), calls, limits), 30))
@settings(max_examples=100)
def test_a_clock_that_steps_back_takes_all_entries_along(
    redis: Redis, clock: Clock, steps: list
) -> None:
    redis.delete("k")
    clock.reset()
    oracle, had_recovered = Oracle(), False
    for seconds, (cost, option), limit in steps:
        if not redis.exists("k"):
            assert had_recovered or not oracle.charges
            oracle.charges.clear()
        clock.advance(seconds * UNITS_US["s"])
        had_recovered = oracle.may_be_gone(clock.now)
        expected = oracle.call(clock.now, limit, MINUTE, cost, option)
        assert ask(redis, limit, MINUTE, cost, option) == expected


def test_a_peek_answers_as_if_a_step_back_were_written_and_writes_nothing(
    redis: Redis, clock: Clock
) -> None:
    redis.execute_command("RL.SLIDINGLOG", "k", 10, "60s", "COST", 4)
    clock.advance("30s")
    redis.execute_command("RL.SLIDINGLOG", "k", 10, "60s", "COST", 4)
    before = redis.dump("k")
    clock.advance("-45s")
    peek = ("RL.PEEK", "k", "SLIDINGLOG", 10, "60s", "COST", 3)
    assert redis.execute_command(*peek) == [0, 10, 2, 30_000, 60_000]
    assert redis.dump("k") == before
    clock.advance("45s")
    assert redis.execute_command(*peek) == [0, 10, 2, 30_000, 60_000]
    clock.advance("-45s")
    # Even a denied call writes it.
    assert redis.execute_command("RL.SLIDINGLOG", "k", 10, "60s", "COST", 3)[0] == 0
    assert redis.dump("k") != before
    clock.advance("30s")
    assert redis.execute_command(*peek)[0] == 1


def test_no_trailing_window_ever_holds_more_than_the_limit(redis: Redis, clock: Clock) -> None:
    chance = random.Random(7)
    window, limit = 1_000_000, 7
    admitted: list[tuple[int, int]] = []
    for _ in range(2000):
        burst = chance.random() < 0.5
        clock.advance(0 if burst else chance.choice([1, window // 7, window - 1, window]))
        cost = chance.randint(1, 3)
        if ask(redis, limit * UNIT, window, cost * UNIT)[0]:
            admitted.append((clock.now, cost))
    for end, _ in admitted:
        assert sum(cost for at, cost in admitted if end - window < at <= end) <= limit


def test_a_cost_passes_the_very_microsecond_in_which_enough_has_left(
    redis: Redis, clock: Clock
) -> None:
    begin = clock.now
    for cost in (3, 3, 4):
        assert ask(redis, 10 * UNIT, MINUTE, cost * UNIT)[0] == 1
        clock.advance("1.000001s")
    for cost, after in ((1, 0), (3, 0), (4, 1_000_001), (6, 1_000_001), (7, 2_000_002)):
        clock.set(begin + MINUTE + after - 1)
        peek = ("RL.PEEK", "k", "SLIDINGLOG", 10, "60s", "COST", cost)
        denied, _, _, wait_ms, _ = redis.execute_command(*peek)
        assert (denied, wait_ms) == (0, 1)
        clock.advance(1)
        assert redis.execute_command(*peek)[0] == 1


def test_calls_of_the_same_microsecond_share_an_entry(redis: Redis, clock: Clock) -> None:
    entries = []
    for us in (0, 0, 0, 1, 0, 1):
        clock.advance(us)
        ask(redis, 100 * UNIT, MINUTE, 1_500_000)
        entries.append(info(redis)[b"entries"])
    assert entries == [1, 1, 1, 2, 2, 3]
    assert info(redis)[b"used"] == b"9"


def info(redis: Redis) -> dict[bytes, object]:
    flat = redis.execute_command("RL.INFO", "k")
    return dict(zip(flat[::2], flat[1::2], strict=True))


def test_a_give_back_takes_the_oldest_first(redis: Redis, clock: Clock) -> None:
    for _ in range(3):
        ask(redis, 10 * UNIT, MINUTE, 2 * UNIT)
        clock.advance("10s")
    # Of 2, 2 and 2 stay 1 and 2: they leave 30 and 20 seconds from now.
    assert ask(redis, 10 * UNIT, MINUTE, -3 * UNIT) == [1, 10, 7, 0, 50_000]
    assert info(redis)[b"entries"] == 2
    peek = ("RL.PEEK", "k", "SLIDINGLOG", 10, "60s", "COST")
    assert redis.execute_command(*peek, 8)[3] == 40_000
    assert redis.execute_command(*peek, 9)[3] == 50_000
    assert ask(redis, 10 * UNIT, MINUTE, -3 * UNIT) == [1, 10, 10, 0, 0]
    assert redis.exists("k") == 0
    assert ask(redis, 10 * UNIT, MINUTE, -3 * UNIT) == [1, 10, 10, 0, 0]
    assert redis.exists("k") == 0


@pytest.fixture
def short(fresh_server: Callable[..., Server]) -> Redis:
    """A client of a server whose logs hold 5 entries at most."""
    return fresh_server(module_args="max-log-entries 5").client()


def test_past_max_log_entries_a_call_is_an_error_that_writes_nothing(
    short: Redis, clock: Clock
) -> None:
    for _ in range(5):
        assert ask(short, 100 * UNIT, MINUTE, UNIT)[0] == 1
        clock.advance("1s")
    before = (short.dump("k"), short.pttl("k"))
    for option in ("", "FORCE", "UPTO"):
        with pytest.raises(ResponseError, match=r"5.*ratelimit\.max-log-entries"):
            ask(short, 100 * UNIT, MINUTE, UNIT, option)
    with pytest.raises(ResponseError, match="max-log-entries"):
        short.execute_command("RL.MTAKE", 2, "j", "k", *("SLIDINGLOG", 100, 60) * 2)
    assert (short.dump("k"), short.pttl("k")) == before
    assert short.exists("j") == 0


def test_a_full_log_still_answers_what_adds_no_entry(short: Redis, clock: Clock) -> None:
    for seconds in range(5):
        clock.advance(seconds * UNIT)
        ask(short, 6 * UNIT, MINUTE, UNIT)
    # Of the same microsecond: into the entry that is there.
    assert ask(short, 6 * UNIT, MINUTE, UNIT) == [1, 6, 0, 0, 60_000]
    clock.advance("1s")
    assert ask(short, 6 * UNIT, MINUTE, UNIT) == [0, 6, 0, 49_000, 59_000]
    assert ask(short, 6 * UNIT, MINUTE, 0)[0] == 1
    assert ask(short, 6 * UNIT, MINUTE, -UNIT) == [1, 6, 1, 0, 59_000]
    # Which has made room.
    assert ask(short, 6 * UNIT, MINUTE, UNIT) == [1, 6, 0, 0, 60_000]


def test_a_full_log_takes_on_once_its_oldest_entry_has_left(short: Redis, clock: Clock) -> None:
    for _ in range(5):
        ask(short, 100 * UNIT, MINUTE, UNIT)
        clock.advance("1s")
    clock.advance(MINUTE - 5 * UNIT - 1)
    with pytest.raises(ResponseError, match="max-log-entries"):
        ask(short, 100 * UNIT, MINUTE, UNIT)
    clock.advance(1)
    assert ask(short, 100 * UNIT, MINUTE, UNIT)[2] == 95
    clock.advance(1)
    with pytest.raises(ResponseError, match="max-log-entries"):
        ask(short, 100 * UNIT, MINUTE, UNIT)
    # By a shorter window fewer count.
    assert ask(short, 100 * UNIT, 30 * UNIT, UNIT)[2] == 98


def test_what_a_call_propagates_does_not_grow_with_the_log(
    fresh_server: Callable[..., Server], clock: Clock
) -> None:
    server = fresh_server(appendonly="yes", appendfsync="no", auto_aof_rewrite_percentage=0)
    redis = server.client()
    bytes_a_call = []
    for entries in (10, 5000):
        for _ in range(entries - (info(redis)[b"entries"] if redis.exists("k") else 0)):
            clock.advance(1)
            ask(redis, 10**6 * UNIT, MINUTE, UNIT)
        before = size_of_aof(server)
        for cost in (UNIT, UNIT, -UNIT, UNIT, -UNIT):
            clock.advance(1)
            ask(redis, 10**6 * UNIT, MINUTE, cost)
        bytes_a_call.append((size_of_aof(server) - before) / 5)
    few, many = bytes_a_call
    assert many <= few + 20


def test_forgetting_a_whole_log_propagates_no_more(
    fresh_server: Callable[..., Server], clock: Clock
) -> None:
    server = fresh_server(appendonly="yes", appendfsync="no", auto_aof_rewrite_percentage=0)
    redis = server.client()
    for _ in range(1000):
        clock.advance(1)
        ask(redis, 10**6 * UNIT, MINUTE, UNIT)
    clock.advance(MINUTE)
    before = size_of_aof(server)
    assert ask(redis, 10**6 * UNIT, MINUTE, UNIT)[2] == 10**6 - 1
    assert size_of_aof(server) - before < 400


def size_of_aof(server: Server) -> int:
    return sum(file.stat().st_size for file in server.aof_files())


def test_an_entry_takes_16_bytes_and_a_log_an_eighth_of_room_to_grow(
    redis: Redis, clock: Clock
) -> None:
    ask(redis, 10**6 * UNIT, MINUTE, UNIT)
    overhead = redis.memory_usage("k") - 16
    for entries in range(2, 3000):
        clock.advance(1)
        ask(redis, 10**6 * UNIT, MINUTE, UNIT)
        if entries % 10 == 0:
            assert redis.memory_usage("k") <= 16 * (entries + entries // 8 + 4) + overhead
    # An hour later only one counts, and the memory is given back.
    clock.advance("1m")
    ask(redis, 10**6 * UNIT, MINUTE, UNIT)
    assert redis.memory_usage("k") <= 16 * 8 + overhead


LARGE = 100_000


@pytest.fixture
def large(fresh_server: Callable[..., Server]) -> Server:
    """With a log of 100000 entries in `k`: by the real clock, or all would be of one instant."""
    server = fresh_server(clock=None)
    redis = server.client()
    missing = LARGE
    while missing:
        flood(server, b"RL.SLIDINGLOG k 1000000 1d", missing)
        missing = LARGE - info(redis)[b"entries"]
    return server


def flood(server: Server, command: bytes, times: int) -> None:
    """Calls a command that replies five integers so many times in one go."""
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall((command + b"\r\n") * times)
        lines = 0
        while lines < 6 * times:
            lines += connection.recv(1 << 20).count(b"\n")


def test_a_log_of_100000_entries_still_answers(large: Server) -> None:
    redis = large.client()
    used = (
        1_000_000
        - redis.execute_command("RL.PEEK", "k", "SLIDINGLOG", 1_000_000, "1d", "COST", 0)[2]
    )
    assert used >= LARGE
    spec = ("SLIDINGLOG", used, "1d")
    denied = redis.execute_command("RL.TAKE", "k", *spec)
    assert denied[:3] == [0, used, 0]
    assert 0 < denied[3] < denied[4] <= 86_400_000
    with pytest.raises(ResponseError, match="max-log-entries"):
        redis.execute_command("RL.SLIDINGLOG", "k", 1_000_000, "1d")
    given_back = redis.execute_command("RL.TAKE", "k", *spec, "COST", -used + 5)
    assert given_back[:4] == [1, used, used - 5, 0]
    assert redis.execute_command("RL.TAKE", "k", *spec)[2] == used - 6


def test_a_log_of_100000_entries_outlives_snapshots_aof_rewrites_and_syncs(large: Server) -> None:
    redis = large.client()
    dump, digest = redis.dump("k"), debug_digest(redis)
    replica = large.replica().client()
    assert replica.dump("k") == dump
    # On the way it gets what happens, too.
    redis.execute_command("RL.SLIDINGLOG", "k", 1_000_000, "1d", "COST", -3)
    redis.execute_command("RL.SLIDINGLOG", "k", 1_000_000, "1d", "COST", 3)
    dump, digest = redis.dump("k"), debug_digest(redis)
    poll.until(lambda: replica.dump("k") == dump, "the replica has the same log")
    large.restart("save")
    assert (redis.dump("k"), debug_digest(redis)) == (dump, digest)
    for preamble in ("yes", "no"):
        redis.config_set("aof-use-rdb-preamble", preamble)
        if preamble == "yes":
            redis.config_set("appendonly", "yes")
        else:
            redis.bgrewriteaof()
        poll.until(lambda: is_rewritten(redis), "the AOF is rewritten")
        redis.execute_command("DEBUG", "LOADAOF")
        assert (redis.dump("k"), debug_digest(redis)) == (dump, digest)


def is_rewritten(redis: Redis) -> bool:
    persistence = redis.info("persistence")
    return (
        not persistence["aof_rewrite_in_progress"] and not persistence["aof_rewrite_scheduled"]
    ) and persistence["aof_last_bgrewrite_status"] == "ok"


def debug_digest(redis: Redis) -> bytes:
    return redis.execute_command("DEBUG", "DIGEST-VALUE", "k")[0]


def test_a_replica_holds_the_same_bytes(pair: tuple[Server, Server], clock: Clock) -> None:
    chance = random.Random(3)
    primary_server, replica_server = pair
    with primary_server.client() as primary, replica_server.client() as replica:
        keys = [f"k{n}" for n in range(6)]
        for _ in range(600):
            clock.advance(chance.choice([0, 1, 999_999, 10_000_000, 61_000_000, -700_000]))
            window = chance.choice(["1s", "60s", "60s"])
            cost = chance.choice([1, 2.5, 7, -1.5, -4, 0])
            words = ("COST", cost, *(["FORCE"] if cost > 0 and chance.random() < 0.2 else []))
            primary.execute_command("RL.SLIDINGLOG", chance.choice(keys), 10, window, *words)
        replica_server.wait_for_sync()
        dumps = [primary.dump(key) for key in keys]
        assert any(dumps)
        assert [replica.dump(key) for key in keys] == dumps
