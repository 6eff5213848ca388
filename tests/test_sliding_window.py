"""RL.SLIDING: the previous window's count, weighted by its overlap, plus the current one's."""

from fractions import Fraction
from math import ceil, floor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.clock import START_US
from support.units import decimal

MILLION = 1_000_000


@pytest.fixture
def call(redis):
    """`call("RL.SLIDING k 100 10s")`: the client splits the words."""
    return redis.execute_command


def test_the_window_opens_with_the_first_admitted_call(call, clock):
    assert call("RL.SLIDING k 100 10s COST 101") == [0, 100, 100, -1, 0]
    assert call("RL.SLIDING k 100 10s COST 0") == [1, 100, 100, 0, 0]
    assert call("EXISTS k") == 0
    clock.advance("3s")
    assert call("RL.SLIDING k 100 10s COST 80") == [1, 100, 20, 0, 20_000]
    clock.advance("9999999us")
    assert call("RL.SLIDING k 100 10s COST 21") == [0, 100, 20, 126, 10_001]


def test_the_previous_count_weighs_as_much_as_its_window_still_overlaps(call, clock):
    call("RL.SLIDING k 100 10s COST 80")
    remaining = {}
    for second in range(21):
        clock.set(START_US + second * MILLION)
        remaining[second] = call("RL.SLIDING k 100 10s COST 0")[2]
    assert remaining == {
        **dict.fromkeys(range(11), 20),
        **{10 + second: 20 + 8 * second for second in range(11)},
    }


def test_the_readme_s_example(call, clock):
    assert call("RL.SLIDING api:bob 100 10s COST 80") == [1, 100, 20, 0, 20_000]
    clock.advance("12s")
    assert call("RL.SLIDING api:bob 100 10s COST 50") == [0, 100, 36, 1750, 8000]


def test_windows_follow_one_another_from_the_first_admitted_call(call, clock):
    call("RL.SLIDING k 100 10s COST 80")
    clock.advance("15s")  # the second window, which opened 5 s ago
    assert call("RL.SLIDING k 100 10s COST 60") == [1, 100, 0, 0, 15_000]
    clock.advance("10s")  # the third: of the second's 60 half, of the first's nothing
    assert call("RL.SLIDING k 100 10s COST 0") == [1, 100, 70, 0, 5000]


def test_a_steady_caller_within_the_limit_is_never_denied(call, clock):
    # 100 in 10 s, and the one that comes as a window opens, when the last one still weighs 100.
    for _ in range(1000):
        assert call("RL.SLIDING k 101 10s")[0] == 1
        clock.advance("100ms")


def test_the_units_that_pass_add_up_to_the_estimate_and_no_more(call, clock):
    assert sum(call("RL.SLIDING k 10 10s")[0] for _ in range(12)) == 10
    clock.advance("10s")
    assert sum(call("RL.SLIDING k 10 10s")[0] for _ in range(12)) == 0
    clock.advance("2500ms")  # 7.5 still weigh
    assert sum(call("RL.SLIDING k 10 10s")[0] for _ in range(12)) == 2
    assert call("RL.SLIDING k 10 10s COST 0.5")[0] == 1
    assert call("RL.SLIDING k 10 10s COST 0.000001")[0] == 0


# Waits


@pytest.mark.parametrize(
    ("charged", "cost", "wait_ms"),
    [
        # In this window: what is left of the 80 fades to 60.
        ("20", "20", 500),
        ("20", "20.000001", 501),
        ("20", "80", 8000),
        # In the next window: the 20 are too many by themselves, and fade there.
        ("20", "80.000001", 8001),
        ("20", "81", 8500),
        ("20", "90", 13_000),
        ("20", "100", 18_000),
        ("20", "100.000001", -1),
        # Nothing in the current window.
        ("0", "37", 125),
        ("0", "100", 8000),
    ],
)
def test_a_wait_ends_in_this_window_or_in_the_next(call, clock, charged, cost, wait_ms):
    call("RL.SLIDING k 100 10s COST 80")
    clock.advance("12s")  # 64 of the 80 still weigh
    assert call(f"RL.SLIDING k 100 10s COST {charged}")[0] == 1
    reply = call(f"RL.SLIDING k 100 10s COST {cost}")
    assert (reply[0], reply[3]) == (0, wait_ms)


@pytest.mark.parametrize("window", ["1us", "7us", "1ms", "333333us", "1.0000005s", "10s", "3650d"])
@pytest.mark.parametrize(
    ("used", "cost"), [("10", "1"), ("9.000001", "1"), ("7.7", "10"), ("3", "9.3")]
)
def test_a_denied_call_is_admitted_after_wait_ms_and_not_a_millisecond_before(
    call, clock, window, used, cost
):
    call(f"RL.SLIDING k 10 {window} COST {used}")
    wait_ms = call(f"RL.SLIDING k 10 {window} COST {cost}")[3]
    assert wait_ms > 0
    clock.advance((wait_ms - 1) * 1000)
    assert call(f"RL.SLIDING k 10 {window} COST {cost}")[0:4:3] == [0, 1]
    clock.advance("1ms")
    assert call(f"RL.SLIDING k 10 {window} COST {cost}")[0] == 1


def test_two_windows_without_a_charge_and_it_has_recovered(call, clock):
    call("RL.SLIDING k 100 10s COST 80")
    clock.advance("19999999us")
    assert call("RL.SLIDING k 100 10s COST 100") == [0, 100, 99, 1, 1]
    clock.advance("1us")
    assert call("RL.SLIDING k 100 10s COST 0") == [1, 100, 100, 0, 0]
    clock.advance("7s")
    # The next window opens with the next charge, not at a multiple of ten seconds.
    assert call("RL.SLIDING k 100 10s COST 100") == [1, 100, 0, 0, 20_000]


def test_a_window_that_only_weighs_counts_down_to_its_end(call, clock):
    call("RL.SLIDING k 100 10s COST 80")
    clock.advance("13s")
    assert call("RL.SLIDING k 100 10s COST 0") == [1, 100, 44, 0, 7000]
    assert call("RL.SLIDING k 100 10s COST 1") == [1, 100, 43, 0, 17_000]


def test_when_both_counts_are_0_the_next_charge_opens_a_new_window(call, clock):
    call("RL.SLIDING k 100 10s COST 80")
    clock.advance("15s")
    call("RL.SLIDING k 100 10s COST 10")
    # What is stored is 80 of the last window and 0 of this one, which ends in 5 s.
    assert call("RL.SLIDING k 100 10s COST -10") == [1, 100, 60, 0, 5000]
    clock.advance("5500ms")
    assert call("RL.SLIDING k 100 10s") == [1, 100, 99, 0, 20_000]


# Another window than the stored one


def test_until_a_charge_usage_fades_under_the_window_it_was_counted_in(call, clock):
    call("RL.SLIDING k 100 10s COST 60")
    assert call("RL.SLIDING k 100 1h COST 0") == [1, 100, 40, 0, 20_000]
    assert call("RL.SLIDING k 100 1s COST 0") == [1, 100, 40, 0, 20_000]
    clock.advance("15s")
    assert call("RL.SLIDING k 100 20s COST 0") == [1, 100, 70, 0, 5000]
    # 60 fade to 20 after two thirds of the window of 10 s, half of which is over.
    assert call("RL.SLIDING k 100 20s COST 80") == [0, 100, 70, 1667, 5000]
    clock.advance("1666ms")
    assert call("RL.SLIDING k 100 20s COST 80")[0:4:3] == [0, 1]
    clock.advance("1ms")
    assert call("RL.SLIDING k 100 20s COST 80")[0] == 1


def test_a_charge_under_another_window_opens_one_with_all_that_still_counts(call, clock):
    call("RL.SLIDING k 100 10s COST 60")
    clock.advance("12s")
    call("RL.SLIDING k 100 10s COST 12")
    clock.advance("3s")  # half of the 60, and the 12
    assert call("RL.SLIDING k 100 20s COST 8") == [1, 100, 50, 0, 40_000]
    clock.advance("20s")
    assert call("RL.SLIDING k 100 20s COST 0") == [1, 100, 50, 0, 20_000]
    clock.advance("5s")
    assert call("RL.SLIDING k 100 20s COST 0") == [1, 100, 62, 0, 15_000]
    assert call("RL.SLIDING k 100 20s COST 62.5")[0] == 1


def test_a_give_back_under_another_window_opens_one_too(call, clock):
    call("RL.SLIDING k 100 10s COST 60")
    clock.advance("15s")
    assert call("RL.SLIDING k 100 20s COST -10") == [1, 100, 80, 0, 40_000]


def test_a_changed_limit_holds_at_once(call, clock):
    call("RL.SLIDING k 100 10s COST 60")
    clock.advance("15s")
    assert call("RL.SLIDING k 25 10s COST 0") == [0, 25, 0, 834, 5000]
    assert call("RL.SLIDING k 35 10s COST 5") == [1, 35, 0, 0, 15_000]


# Options


def test_giving_back_lowers_the_current_count_first_and_then_the_previous_one(call, clock):
    call("RL.SLIDING k 100 10s COST 80")
    clock.advance("15s")  # 40 still weigh
    assert call("RL.SLIDING k 100 10s COST 10") == [1, 100, 50, 0, 15_000]
    assert call("RL.SLIDING k 100 10s COST -4") == [1, 100, 54, 0, 15_000]
    # 6 from the current count; then 20 less weigh, which are 40 of the previous one.
    assert call("RL.SLIDING k 100 10s COST -26") == [1, 100, 80, 0, 5000]
    clock.advance("2500ms")  # a quarter of 40
    assert call("RL.SLIDING k 100 10s COST 0") == [1, 100, 90, 0, 2500]
    assert call("RL.SLIDING k 100 10s COST -10") == [1, 100, 100, 0, 0]
    assert call("EXISTS k") == 0


def test_giving_back_from_the_previous_count_rounds_against_the_caller(call, clock):
    call("RL.SLIDING k 10 4s COST 10")
    clock.advance("5s")  # three quarters weigh: 7.5
    # Four thirds of a millionth less, rounded down: one. 7.49999925 are left.
    call("RL.SLIDING k 10 4s COST -0.000001")
    assert call("RL.PEEK k SLIDING 10 4s COST 2.500001")[0] == 0
    assert call("RL.PEEK k SLIDING 10 4s COST 2.5")[0] == 1
    # And three more millionths are four of the previous count: 7.49999625 are left.
    call("RL.SLIDING k 10 4s COST -0.0000039")
    assert call("RL.PEEK k SLIDING 10 4s COST 2.500004")[0] == 0
    assert call("RL.PEEK k SLIDING 10 4s COST 2.500003")[0] == 1


def test_giving_back_to_a_missing_or_recovered_key_leaves_none(call, clock):
    assert call("RL.SLIDING k 10 4s COST -1") == [1, 10, 10, 0, 0]
    assert call("EXISTS k") == 0
    call("RL.SLIDING k 10 4s")
    clock.advance("8s")
    assert call("RL.SLIDING k 10 4s COST -1") == [1, 10, 10, 0, 0]
    assert call("EXISTS k") == 0


def test_after_force_the_wait_is_until_the_estimate_is_within_the_limit(call, clock):
    assert call("RL.SLIDING k 100 10s COST 80 FORCE") == [1, 100, 20, 0, 20_000]
    # 160 fade to 100 in three eighths of the next window.
    assert call("RL.SLIDING k 100 10s COST 80 FORCE") == [0, 100, 0, 13_750, 20_000]
    clock.advance("13749ms")
    assert call("RL.SLIDING k 100 10s COST 0") == [0, 100, 0, 1, 6251]
    clock.advance("1ms")
    assert call("RL.SLIDING k 100 10s COST 0") == [1, 100, 0, 0, 6250]


def test_force_at_a_limit_of_0_is_no_never(call):
    assert call("RL.SLIDING k 0 10s COST 3 FORCE") == [0, 0, 0, 20_000, 20_000]


def test_a_count_past_what_can_be_counted_is_held_at_that(call):
    for _ in range(12):
        reply = call("RL.SLIDING k 1e12 10s COST 1e12 FORCE")
    # 2^63-1 millionths fade to 10^18 of them.
    fading_ms = (1 - Fraction(10**18, 2**63 - 1)) * 10_000
    assert reply == [0, 10**12, 0, ceil(10_000 + fading_ms), 20_000]


def test_upto_grants_the_whole_units_that_are_there(call, clock):
    assert call("RL.SLIDING k 10 10s COST 4 UPTO") == [1, 10, 6, 0, 20_000, 4]
    clock.advance("11s")  # 3.6 weigh
    assert call("RL.SLIDING k 10 10s COST 100 UPTO") == [1, 10, 0, 0, 19_000, 6]
    # 0.4 are there; one is when the 4 weigh 3: after 2.5 s of this window.
    assert call("RL.SLIDING k 10 10s COST 100 UPTO") == [0, 10, 0, 1500, 19_000, 0]
    assert call("RL.SLIDING k 0.9 10s UPTO") == [0, 0, 0, -1, 19_000, 0]


# Against an oracle in exact rational arithmetic


class Oracle:
    """The two counts, as defined. When something first holds is found by bisection."""

    def __init__(self, limit: Fraction, window_us: int) -> None:
        self.limit, self.window_us = limit, window_us
        self.start, self.previous, self.current = 0, Fraction(0), Fraction(0)

    def counts(self, now: int) -> tuple[int, Fraction, Fraction]:
        windows = (now - self.start) // self.window_us
        previous, current = [
            (self.previous, self.current),
            (self.current, Fraction(0)),
            (Fraction(0), Fraction(0)),
        ][min(windows, 2)]
        return self.start + windows * self.window_us, previous, current

    def estimate(self, now: int) -> Fraction:
        start, previous, current = self.counts(now)
        return previous * Fraction(self.window_us - (now - start), self.window_us) + current

    def first_us(self, now: int, most: Fraction) -> int:
        """How long until the estimate, which never rises by itself, is at most so much."""
        low, high = -1, 2 * self.window_us
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.estimate(now + middle) <= most else (middle, high)
        return high

    def charge(self, now: int, cost: Fraction) -> None:
        self.start, self.previous, self.current = self.counts(now)
        if self.previous == self.current == 0:
            self.start = now
        self.current += cost

    def call(self, now: int, cost: Fraction, mode: str) -> list[int]:
        room = self.limit - self.estimate(now)
        asked, extra = cost, []
        if mode == "UPTO":
            granted = max(0, min(cost, floor(room)))
            asked, cost, extra = Fraction(1), Fraction(granted), [granted]
        allowed, wait_us = asked <= room, 0
        if not allowed and asked <= self.limit:
            wait_us = self.first_us(now, self.limit - asked)
        if cost and (allowed or mode == "FORCE"):
            self.charge(now, cost)
        if not allowed and mode == "FORCE":
            wait_us = self.first_us(now, self.limit)
        never = not allowed and mode != "FORCE" and asked > self.limit
        return [
            int(allowed),
            floor(self.limit),
            max(0, floor(self.limit - self.estimate(now))),
            -1 if never else ceil(Fraction(wait_us, 1000)),
            ceil(Fraction(self.first_us(now, Fraction(0)), 1000)),
            *extra,
        ]


CALLS = st.lists(
    st.tuples(
        st.one_of(
            st.tuples(st.just("hundredths of the window"), st.integers(0, 220)),
            st.tuples(st.just("microseconds"), st.integers(0, 1000)),
            st.tuples(st.just("wait"), st.sampled_from([-1000, -1, 0])),
            st.tuples(st.just("reset"), st.sampled_from([-1000, -1, 0, 1])),
        ),
        st.one_of(
            st.tuples(st.just("hundredths of the limit"), st.integers(0, 105)),
            st.tuples(st.just("millionths"), st.integers(0, 3 * MILLION)),
            st.tuples(st.just("millionths"), st.sampled_from([0, 1, MILLION])),
        ),
        st.sampled_from(["", "", "", "UPTO", "FORCE"]),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=200)
@given(
    limit=st.one_of(
        st.integers(0, 20).map(lambda units: units * MILLION),
        st.integers(0, 5 * MILLION),
        st.integers(0, 10**17),
    ),
    window_us=st.one_of(
        st.integers(1, 20),
        st.integers(1, 100 * MILLION),
        st.sampled_from([1000, MILLION, 86_400 * MILLION, 3650 * 86_400 * MILLION]),
    ),
    calls=CALLS,
)
def test_every_decision_is_that_of_exact_arithmetic(call, clock, limit, window_us, calls):
    call("DEL k")
    clock.reset()
    oracle = Oracle(Fraction(limit, MILLION), window_us)
    last = [0] * 5
    for (moment, much), (of, cost), mode in calls:
        clock.advance(
            {
                "hundredths of the window": window_us * much // 100,
                "microseconds": much,
                "wait": max(0, last[3] * 1000 + much),
                "reset": max(0, last[4] * 1000 + much),
            }[moment]
        )
        millionths = cost if of == "millionths" else limit * cost // 100
        if mode == "UPTO":
            millionths = max(MILLION, millionths // MILLION * MILLION)
        words = ["k", decimal(limit), f"{window_us}us", "COST", decimal(millionths), mode]
        last = call("RL.SLIDING", *filter(None, words))
        assert last == oracle.call(clock.now, Fraction(millionths, MILLION), mode)
