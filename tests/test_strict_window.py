"""RL.SLIDING with STRICT: never more than the limit in any trailing window, in constant memory."""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from redis import Redis

from support.clock import UNITS_US, Clock
from support.server import Server
from support.strategies import sequences
from support.units import UNIT, decimal, millis

SLOTS_A_WINDOW = 60
MINUTE = UNITS_US["m"]
# The shortest window, one of single-microsecond slots, the first of longer slots, one that 60 does
# not divide, and a common one.
WINDOWS = [1, 59, 61, 1_000_003, MINUTE]


@dataclass
class Oracle:
    """Every charge by slot, and nothing clever. Amounts are millionths, times microseconds."""

    window: int = 0
    charges: list[list[int]] = field(default_factory=list)

    def width(self) -> int:
        return -(-self.window // SLOTS_A_WINDOW)

    def leaves(self, slot: int) -> int:
        last = (slot + 1) * self.width() - 1
        return last + self.window

    def present(self, now: int) -> int:
        return sum(cost for slot, cost in self.charges if now < self.leaves(slot))

    def wait(self, now: int, cost: int, limit: int) -> int:
        """Until `cost` fits, which it does at the latest when nothing is used any more."""
        moments = [now, *(self.leaves(slot) for slot, _ in self.charges)]
        return min(at for at in moments if at >= now and self.present(at) + cost <= limit) - now

    def call(self, now: int, limit: int, window: int, cost: int, option: str = "") -> list[int]:
        available = max(0, limit - self.present(now))
        granted = []
        if option == "UPTO":
            cost = min(available // UNIT * UNIT, cost)
            granted = [cost // UNIT]
            cost = cost or UNIT
        allowed = cost < 0 or self.present(now) + cost <= limit
        wait = 0
        if not allowed:
            wait = -1 if cost > limit else millis(self.wait(now, cost, limit))
        if cost > 0 and (allowed or option == "FORCE"):
            self.settle(now, window)
            self.charges.append([now // self.width(), cost])
        if cost < 0:
            self.give_back(now, window, -cost)
        if not allowed and option == "FORCE":
            wait = millis(self.wait(now, 0, limit))
        remaining = max(0, limit - self.present(now)) // UNIT
        reset = max([self.leaves(slot) - now for slot, _ in self.charges], default=0)
        return [int(allowed), limit // UNIT, remaining, wait, millis(max(0, reset)), *granted]

    def settle(self, now: int, window: int) -> None:
        if not self.charges or self.window != window:
            present = self.present(now)
            self.window = window
            self.charges = [[now // self.width(), present]] if present else []
        self.charges = [charge for charge in self.charges if now < self.leaves(charge[0])]

    def give_back(self, now: int, window: int, amount: int) -> None:
        if not self.charges:
            return
        self.settle(now, window)
        for charge in self.charges:
            taken = min(charge[1], amount)
            charge[1] -= taken
            amount -= taken
        self.charges = [charge for charge in self.charges if charge[1]]


@dataclass(frozen=True)
class When:
    """An instant as seen from the one before: some time, or some slots, later, give or take."""

    windows: int = 0
    slots: int = 0
    us: int = 0

    def after(self, now: int, window: int) -> int:
        width = -(-window // SLOTS_A_WINDOW)
        return ((now + self.windows * window) // width + self.slots) * width + self.us


# Mostly within a window and around the ends of slots and windows, where a burst is most dangerous.
moments = st.builds(
    When,
    windows=st.sampled_from([0, 0, 0, 0, 1, 2]),
    slots=st.sampled_from([0, 1, 1, 2, 59, 60, 61]) | st.integers(0, 62),
    us=st.sampled_from([-1, 0, 1]) | st.integers(0, MINUTE // 60),
)
amounts = st.sampled_from([1, 500_000, UNIT, 2 * UNIT, 3_333_333, 10 * UNIT]) | st.integers(
    1, 12 * UNIT
)


def ask(redis: Redis, limit: int, window: int, cost: int, option: str = "") -> list[int]:
    words = ["STRICT", "COST", str(cost // UNIT) if option == "UPTO" else decimal(cost), option]
    return redis.execute_command(
        "RL.SLIDING", "k", decimal(limit), f"{window}us", *(word for word in words if word)
    )


calls = st.one_of(
    st.tuples(amounts, st.sampled_from(["", "", "", "FORCE"])),
    st.tuples(st.integers(1, 12).map(lambda units: units * UNIT), st.just("UPTO")),
    st.tuples(amounts.map(lambda amount: -amount), st.just("")),
    st.just((0, "")),
)


@given(
    windows=st.lists(st.sampled_from(WINDOWS), min_size=1, max_size=2),
    steps=sequences(
        st.tuples(moments, calls, st.integers(0, 1), st.sampled_from([10 * UNIT, 4_500_000])), 40
    ),
)
@settings(max_examples=100)
def test_every_answer_is_that_of_slots_counted_one_by_one(
    redis: Redis, clock: Clock, windows: list[int], steps: list
) -> None:
    redis.delete("k")
    clock.reset()
    oracle = Oracle()
    for moment, (cost, option), which, limit in steps:
        window = windows[which % len(windows)]
        clock.set(max(clock.now, moment.after(clock.now, window)))
        expected = oracle.call(clock.now, limit, window, cost, option)
        assert ask(redis, limit, window, cost, option) == expected
    if oracle.present(clock.now):
        assert redis.exists("k")


@given(
    window=st.sampled_from(WINDOWS),
    steps=sequences(st.tuples(moments, calls), 30),
    pauses=st.lists(moments, min_size=2, max_size=6),
)
@settings(max_examples=80)
def test_a_clock_gone_back_frees_nothing_and_holds_nothing_longer(
    redis: Redis, clock: Clock, window: int, steps: list, pauses: list[When]
) -> None:
    redis.delete("k")
    clock.reset()
    for moment, (cost, option) in steps:
        clock.set(max(clock.now, moment.after(clock.now, window)))
        ask(redis, 10 * UNIT, window, cost, option)
    # What the clock is compared with is the last write.
    ask(redis, 10 * UNIT, window, UNIT, "FORCE")
    # Without an expiry, so that it can be looked at later first and then earlier.
    redis.persist("k")
    width, now = -(-window // SLOTS_A_WINDOW), clock.now

    def used_at(us: int) -> int:
        clock.set(us)
        peek = ("RL.PEEK", "k", "SLIDING", 10**9, f"{window}us", "STRICT")
        return 10**9 - redis.execute_command(*peek)[2]

    back, *later = (max(0, moment.after(now, window) - now) for moment in pauses)
    then, later = now - back, [0, width, *sorted(later)]
    # At once all of it counts; after that each slot leaves as it would have, give or take a slot.
    at_least = [used_at(now + pause + (width if pause else 0)) for pause in later]
    at_most = [used_at(now + pause - width) for pause in later]
    for written in (False, True):
        if written:
            clock.set(then)
            assert ask(redis, 0, window, UNIT)[4] <= millis(window + width)
        for pause, least, most in zip(later, at_least, at_most, strict=True):
            used = used_at(then + pause)
            assert least <= used
            # A peek cannot write that the clock has gone back: to each it goes back anew.
            if written and pause >= width:
                assert used <= most


@given(
    window=st.sampled_from(WINDOWS),
    steps=sequences(st.tuples(moments, calls.filter(lambda call: call[1] != "FORCE")), 60),
)
@example(window=MINUTE, steps=[(When(slots=n % 2, us=-1), (10 * UNIT, "UPTO")) for n in range(200)])
def test_no_trailing_window_ever_holds_more_than_the_limit(
    redis: Redis, clock: Clock, window: int, steps: list
) -> None:
    redis.delete("k")
    clock.reset()
    limit = 10 * UNIT
    width = -(-window // SLOTS_A_WINDOW)
    admitted: list[list[int]] = []
    for moment, (cost, option) in steps:
        now = max(clock.now, moment.after(clock.now, window))
        clock.set(now)
        reply = ask(redis, limit, window, cost, option)
        if cost < 0:
            # What is given back is the oldest that still counts.
            rest = -cost
            for charge in admitted:
                if now < (charge[0] // width + 1) * width - 1 + window:
                    given = min(charge[1], rest)
                    charge[1] -= given
                    rest -= given
        elif reply[0]:
            admitted.append([now, reply[5] * UNIT if option == "UPTO" else cost])
        # What a window that ends with another call holds was asked then.
        assert sum(cost for at, cost in admitted if now - window < at <= now) <= limit


def test_a_burst_at_every_offset_around_a_full_window_finds_it_full(
    redis: Redis, clock: Clock
) -> None:
    window, limit = 240, 5
    for offset in range(9):
        redis.delete("k")
        clock.reset()
        clock.advance(offset)
        first = clock.now
        assert ask(redis, limit * UNIT, window, limit * UNIT)[0] == 1
        admitted = []
        while not admitted:
            clock.advance(1)
            if ask(redis, limit * UNIT, window, UNIT)[0]:
                admitted.append(clock.now)
        assert window <= admitted[0] - first <= window + 3, offset


@pytest.mark.parametrize(
    ("window", "step"),
    [(61, 1), (119, 1), (MINUTE, 450_000), (60 * MINUTE, 27_000_000)],
)
def test_a_client_that_always_pushes_gets_96_percent_of_the_limit(
    redis: Redis, clock: Clock, window: int, step: int
) -> None:
    windows, limit = 30, 100
    begin, admitted = clock.now, 0
    while clock.now < begin + windows * window:
        reply = redis.execute_command(
            "RL.SLIDING", "k", limit, f"{window}us", "STRICT", "UPTO", "COST", limit
        )
        admitted += reply[5]
        # Whoever is denied comes back when told to; whoever is not pushes on.
        clock.advance(step if reply[0] or window < 1_000_000 else reply[3] * 1000)
    assert 0.96 * windows * limit <= admitted


@pytest.mark.parametrize("window", [1000, 59_000, 61_000, 1_000_003, MINUTE, 60 * MINUTE])
def test_a_wait_is_exact_to_the_millisecond(redis: Redis, clock: Clock, window: int) -> None:
    chance = random.Random(window)
    spec = ("SLIDING", 20, f"{window}us", "STRICT")
    denials = 0
    for _ in range(150):
        clock.advance(chance.randrange(window // 8))
        cost = chance.randint(1, 20)
        allowed, _, _, wait_ms, _ = redis.execute_command("RL.TAKE", "k", *spec, "COST", cost)
        if allowed:
            continue
        denials += 1
        now = clock.now
        for ms, passes in ((wait_ms - 1, 0), (wait_ms, 1)):
            clock.set(now + ms * 1000)
            assert redis.execute_command("RL.PEEK", "k", *spec, "COST", cost)[0] == passes
        clock.set(now)
    assert denials


@pytest.mark.parametrize(
    ("offset_us", "left_at_us"),
    # Slots of a minute are of a second, and START lies at the beginning of one.
    [(0, 60_999_999), (1, 60_999_999), (999_999, 60_999_999), (1_000_000, 61_999_999)],
)
def test_a_slot_leaves_once_its_last_microsecond_is_as_old_as_the_window(
    redis: Redis, clock: Clock, offset_us: int, left_at_us: int
) -> None:
    begin = clock.now
    clock.advance(offset_us)
    take = ("RL.SLIDING", "k", 1, "60s", "STRICT")
    assert redis.execute_command(*take) == [1, 1, 0, 0, millis(left_at_us - offset_us)]
    clock.set(begin + left_at_us - 1)
    assert redis.execute_command(*take) == [0, 1, 0, 1, 1]
    clock.set(begin + left_at_us)
    assert redis.execute_command(*take)[0] == 1


@pytest.mark.parametrize(
    ("window", "last_denied_us"),
    # Slots of one microsecond, and of two: START is even, so it is the first of its slot.
    [(1, 0), (2, 1), (59, 58), (60, 59), (61, 61), (120, 120)],
)
def test_tiny_windows_have_slots_of_whole_microseconds(
    redis: Redis, clock: Clock, window: int, last_denied_us: int
) -> None:
    begin = clock.now
    take = ("RL.SLIDING", "k", 1, f"{window}us", "STRICT")
    assert redis.execute_command(*take) == [1, 1, 0, 0, 1]
    for us in range(last_denied_us + 1):
        clock.set(begin + us)
        assert redis.execute_command(*take) == [0, 1, 0, 1, 1]
    clock.advance(1)
    assert redis.execute_command(*take)[0] == 1


def test_under_a_changed_window_usage_decays_by_the_stored_one_until_charged(
    redis: Redis, clock: Clock
) -> None:
    redis.execute_command("RL.SLIDING", "k", 10, "60s", "STRICT", "COST", 6)
    clock.advance("30s")
    before = redis.dump("k")
    denied = redis.execute_command("RL.SLIDING", "k", 10, "12s", "STRICT", "COST", 5)
    # The slot of 1 s leaves 60 s after its last microsecond, of which 30 s have passed.
    assert denied == [0, 10, 4, 31_000, 31_000]
    assert redis.dump("k") == before
    # From the charge on all 7 units count as of now, in slots of 200 ms.
    charged = redis.execute_command("RL.SLIDING", "k", 10, "12s", "STRICT")
    assert charged == [1, 10, 3, 0, 12_200]
    clock.advance(12_199_998)
    peek = ("RL.PEEK", "k", "SLIDING", 10, "12s", "STRICT", "COST", 4)
    assert redis.execute_command(*peek)[0] == 0
    clock.advance(1)
    assert redis.execute_command(*peek) == [1, 10, 10, 0, 0]


def test_a_give_back_opens_a_window_of_the_new_length_too(redis: Redis, clock: Clock) -> None:
    redis.execute_command("RL.SLIDING", "k", 10, "60s", "STRICT", "COST", 6)
    clock.advance("30s")
    give_back = ("RL.SLIDING", "k", 10, "12s", "STRICT", "COST", -2)
    assert redis.execute_command(*give_back) == [1, 10, 6, 0, 12_200]


def test_a_debt_leaves_slot_by_slot(redis: Redis, clock: Clock) -> None:
    force = ("RL.SLIDING", "k", 10, "60s", "STRICT", "FORCE", "COST")
    assert redis.execute_command(*force, 8) == [1, 10, 2, 0, 61_000]
    clock.advance("10s")
    assert redis.execute_command(*force, 9) == [0, 10, 0, 51_000, 61_000]
    clock.advance("10s")
    assert redis.execute_command(*force, 2) == [0, 10, 0, 51_000, 61_000]
    peek = ("RL.PEEK", "k", "SLIDING", 10, "60s", "STRICT", "COST")
    assert redis.execute_command(*peek, 0) == [0, 10, 0, 51_000, 61_000]
    assert redis.execute_command(*peek, 9) == [0, 10, 0, 61_000, 61_000]
    assert redis.execute_command(*peek, 11) == [0, 10, 0, -1, 61_000]


def test_upto_grants_what_the_window_has_left(redis: Redis, clock: Clock) -> None:
    upto = ("RL.SLIDING", "k", 10.5, "60s", "STRICT", "UPTO", "COST")
    assert redis.execute_command(*upto, 4) == [1, 10, 6, 0, 61_000, 4]
    clock.advance("10s")
    assert redis.execute_command(*upto, 100) == [1, 10, 0, 0, 61_000, 6]
    assert redis.execute_command(*upto, 100) == [0, 10, 0, 51_000, 61_000, 0]


def test_a_key_takes_at_most_600_bytes_however_much_it_counts(redis: Redis, clock: Clock) -> None:
    for _ in range(200):
        redis.execute_command("RL.SLIDING", "k", 10**9, "60s", "STRICT", "COST", "1000.000001")
        clock.advance("500ms")
    assert redis.memory_usage("k") <= 600


def test_a_replica_holds_the_same_bytes(pair: tuple[Server, Server], clock: Clock) -> None:
    chance = random.Random(1)
    primary_server, replica_server = pair
    with primary_server.client() as primary, replica_server.client() as replica:
        keys = [f"k{n}" for n in range(8)]
        for _ in range(600):
            clock.advance(chance.choice([0, 1, 99_999, 1_000_000, 30_000_000, -500_000]))
            window = chance.choice(["61us", "6s", "60s"])
            cost = chance.choice([1, 2.5, 7, -1.5, -4, 0])
            force = ["FORCE"] if cost > 0 and chance.random() < 0.2 else []
            words = ("STRICT", "COST", cost, *force)
            primary.execute_command("RL.SLIDING", chance.choice(keys), 10, window, *words)
        replica_server.wait_for_sync()
        dumps = [primary.dump(key) for key in keys]
        assert any(dumps)
        assert [replica.dump(key) for key in keys] == dumps
