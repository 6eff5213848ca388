"""RL.TOKENBUCKET: a burst of capacity, refilled continuously; exact to unit and microsecond."""

from fractions import Fraction
from math import ceil, floor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import ResponseError

from support.clock import START_US
from support.units import decimal

MILLION = 1_000_000


@pytest.fixture
def call(redis):
    """`call("RL.TOKENBUCKET k 10 1 1s")`: the client splits the words."""
    return redis.execute_command


def test_the_first_call_of_the_readme(call):
    assert call("RL.TOKENBUCKET user:12345 200 100 60s") == [1, 200, 199, 0, 600]


def test_the_worked_trace_to_the_unit(call, clock):
    trace = []
    for second, calls in [(0, 150), (30, 80), (70, 50), (75, 50)]:
        clock.set(START_US + second * MILLION)
        replies = [call("RL.TOKENBUCKET k 200 100 60s") for _ in range(calls)]
        trace.append((second, sum(reply[0] for reply in replies), replies[-1][2]))
    assert trace == [(0, 150, 50), (30, 80, 20), (70, 50, 36), (75, 45, 0)]


def test_under_overload_the_burst_passes_and_then_exactly_the_rate(call, clock):
    admitted = []
    for request in range(300):
        clock.set(START_US + request * MILLION // 60)
        admitted.append(call("RL.TOKENBUCKET k 50 10 1s")[0])
    # The burst of 50 lasts while 60 requests a second come and 10 units: almost a second.
    assert [sum(admitted[i : i + 60]) for i in range(0, 300, 60)] == [59, 10, 10, 10, 10]
    assert all(admitted[:59])


@pytest.mark.parametrize(
    ("cost", "reply"),
    [
        ("0.5", [1, 10, 9, 0, 500]),
        ("1", [1, 10, 9, 0, 1000]),
        ("2", [1, 10, 8, 0, 2000]),
        ("1.6667", [1, 10, 8, 0, 1667]),
        ("1e-06", [1, 10, 9, 0, 1]),
        ("1e1", [1, 10, 0, 0, 10_000]),
        # Past the sixth decimal a cost rounds up: 0.300001.
        ("0.30000000000000004", [1, 10, 9, 0, 301]),
        ("0.0000001", [1, 10, 9, 0, 1]),
    ],
)
def test_costs_are_decimals(call, cost, reply):
    assert call(f"RL.TOKENBUCKET k 10 1 1s COST {cost}") == reply


@pytest.mark.parametrize(
    ("capacity", "cost", "times"),
    [
        ("1", "0.5", 2),
        ("1", "0.1", 10),
        ("1", "0.3", 3),
        ("0.9", "0.3", 3),
        # 3 x 0.300001 is more than 0.9.
        ("0.9", "0.30000000000000004", 2),
        ("3e-06", "1e-06", 3),
        # A capacity rounds down, a cost up.
        ("0.0000029", "0.0000011", 1),
        ("1000000000000", "250000000000", 4),
        ("1e12", "1e12", 1),
    ],
)
def test_a_cost_is_admitted_exactly_as_often_as_it_fits(call, capacity, cost, times):
    line = f"RL.TOKENBUCKET k {capacity} {capacity} 60s COST {cost}"
    assert [call(line)[0] for _ in range(times + 1)] == [1] * times + [0]


def test_python_s_own_numbers_are_understood(call):
    for number in [1, 0.5, 1e-06, 0.1 + 0.2, 12345.678, 1e6, 1e12, float(2**33), 1 / 3]:
        assert call("RL.TOKENBUCKET", "k", 1e12, 1e12, 0.5, "COST", number)[0] == 1
        call("DEL", "k")
    for number in [float("inf"), float("nan"), 1e13, 1e300]:
        with pytest.raises(ResponseError, match="cost must be a number"):
            call("RL.TOKENBUCKET", "k", 10, 1, 1, "COST", number)


def test_a_denied_call_leaves_what_is_there_to_smaller_ones(call):
    call("RL.TOKENBUCKET k 10 1 1s COST 8")
    assert call("RL.TOKENBUCKET k 10 1 1s COST 5") == [0, 10, 2, 3000, 8000]
    assert call("RL.TOKENBUCKET k 10 1 1s COST 2") == [1, 10, 0, 0, 10_000]


@pytest.mark.parametrize(
    ("bucket", "used", "cost"),
    [
        ("10 1 1s", "10", "1"),
        ("10 1 1s", "10", "10"),
        ("10 1 1s", "9.5", "1"),
        ("10 3 1s", "10", "1"),
        ("10 3 7s", "10", "0.000001"),
        ("7 7 60s", "6.999999", "6.999999"),
        ("1 0.000001 1us", "1", "1"),
        ("1 0.000001 1ms", "1", "0.5"),
        ("200 100 60s", "199.333333", "33.3"),
        ("5 1e-06 13us", "5", "0.7"),
        ("1000 999.999999 1h", "1000", "0.1"),
        ("1 1 1.0000015s", "1", "1"),
        ("1e12 1e12 3650d", "1e12", "1"),
        ("1e12 1e12 3650d", "1e12", "1e12"),
        ("10 1 3650d", "10", "10"),
    ],
)
def test_a_denied_call_is_admitted_after_wait_ms_and_not_a_millisecond_before(
    call, clock, bucket, used, cost
):
    line = f"RL.TOKENBUCKET k {bucket} COST"
    for passed_us in (0, 1):
        assert call(f"{line} {used}")[0] == 1
        clock.advance(passed_us)
        allowed, _, _, wait_ms, _ = call(f"{line} {cost}")
        assert allowed == 0
        assert wait_ms > 0
        clock.advance((wait_ms - 1) * 1000)
        assert call(f"{line} {cost}")[0:4:3] == [0, 1]
        clock.advance("1ms")
        assert call(f"{line} {cost}")[0] == 1
        call("DEL k")


@pytest.mark.parametrize(
    ("capacity", "admitted"),
    [
        # A unit every 3 s: none of the 210 s is lost.
        (2, 70),
        # But a full bucket spills: a call every 3.5 s takes the one unit there is room for.
        (1, 60),
    ],
)
def test_time_that_gave_no_whole_unit_stays_to_be_counted(call, clock, capacity, admitted):
    line = f"RL.TOKENBUCKET k {capacity} 1 3s"
    call(f"{line} COST {capacity}")
    total = 0
    for _ in range(300):
        clock.advance("700ms")
        total += call(line)[0]
    assert total == admitted


def test_thousands_of_tiny_charges_add_up_to_what_they_are(call, clock):
    call("RL.TOKENBUCKET k 1000 7 3s COST 1000")
    for _ in range(1000):
        clock.advance(7)
        call("RL.TOKENBUCKET k 1000 7 3s COST 0.000016")
    used = 1000 + Fraction(16 * 1000, MILLION) - Fraction(7 * 1000 * 7, 3 * MILLION)
    assert call("RL.TOKENBUCKET k 1000 7 3s COST 1000") == [
        0,
        1000,
        floor(1000 - used),
        ceil(used * 3000 / 7),
        ceil(used * 3000 / 7),
    ]


# Options


def test_a_cost_above_the_capacity_never_passes(call):
    assert call("RL.TOKENBUCKET k 10 1 1s COST 10.000001") == [0, 10, 10, -1, 0]
    assert call("RL.TOKENBUCKET k 10 1 1s COST 11 MAXWAIT 3650d") == [0, 10, 10, -1, 0]
    assert call("EXISTS k") == 0


def test_a_capacity_of_0_denies_every_cost_above_0(call):
    assert call("RL.TOKENBUCKET k 0 1 1s") == [0, 0, 0, -1, 0]
    assert call("RL.TOKENBUCKET k 0 1 1s COST 0.000001") == [0, 0, 0, -1, 0]
    assert call("RL.TOKENBUCKET k 0 1 1s COST 0") == [1, 0, 0, 0, 0]
    assert call("RL.TOKENBUCKET k 0 1 1s COST 5 FORCE") == [0, 0, 0, 5000, 5000]
    assert call("RL.TOKENBUCKET k 0 1 1s COST 0") == [0, 0, 0, 5000, 5000]


def test_a_cost_of_0_only_looks(call, redis):
    assert call("RL.TOKENBUCKET k 10 1 1s COST 0") == [1, 10, 10, 0, 0]
    assert call("EXISTS k") == 0
    call("RL.TOKENBUCKET k 10 1 1s COST 10")
    before = redis.dump("k")
    assert call("RL.TOKENBUCKET k 10 1 1s COST 0") == [1, 10, 0, 0, 10_000]
    assert call("RL.TOKENBUCKET k 10 1 1s COST 0.0") == [1, 10, 0, 0, 10_000]
    assert call("RL.TOKENBUCKET k 10 1 1s COST -0") == [1, 10, 0, 0, 10_000]
    assert redis.dump("k") == before


def test_a_cost_of_0_is_denied_while_in_debt(call, clock):
    call("RL.TOKENBUCKET k 10 1 1s COST 12 FORCE")
    assert call("RL.TOKENBUCKET k 10 1 1s COST 0") == [0, 10, 0, 2000, 12_000]
    clock.advance("1999ms")
    assert call("RL.TOKENBUCKET k 10 1 1s COST 0")[0] == 0
    clock.advance("1ms")
    assert call("RL.TOKENBUCKET k 10 1 1s COST 0") == [1, 10, 0, 0, 10_000]


def test_maxwait_admits_what_would_fit_within_it_and_tells_how_long_to_hold(call):
    assert [call("RL.TOKENBUCKET k 1 1 1s MAXWAIT 2500ms") for _ in range(4)] == [
        [1, 1, 0, 0, 1000],
        [1, 1, 0, 1000, 2000],
        [1, 1, 0, 2000, 3000],
        [0, 1, 0, 500, 3000],
    ]


def test_a_maxwait_of_exactly_the_wait_is_enough(call):
    call("RL.TOKENBUCKET k 1 1 1s")
    assert call("RL.TOKENBUCKET k 1 1 1s MAXWAIT 999999us") == [0, 1, 0, 1, 1000]
    assert call("RL.TOKENBUCKET k 1 1 1s MAXWAIT 1s") == [1, 1, 0, 1000, 2000]


@pytest.mark.parametrize("zero", ["0", "0s", "0us", "0.0", "0e5d"])
def test_a_maxwait_of_0_waits_for_nothing(call, zero):
    assert call(f"RL.TOKENBUCKET k 1 1 1s MAXWAIT {zero}") == [1, 1, 0, 0, 1000]
    assert call(f"RL.TOKENBUCKET k 1 1 1s MAXWAIT {zero}") == [0, 1, 0, 1000, 1000]


def test_a_call_denied_by_its_maxwait_passes_after_wait_ms(call, clock):
    call("RL.TOKENBUCKET k 10 3 7s COST 10")
    wait_ms = call("RL.TOKENBUCKET k 10 3 7s COST 5 MAXWAIT 4321us")[3]
    assert wait_ms == ceil(Fraction(5 * 7000, 3) - Fraction(4321, 1000))
    clock.advance((wait_ms - 1) * 1000)
    assert call("RL.TOKENBUCKET k 10 3 7s COST 5 MAXWAIT 4321us")[0:4:3] == [0, 1]
    clock.advance("1ms")
    left_ms = Fraction(5 * 7000, 3) - wait_ms
    assert call("RL.TOKENBUCKET k 10 3 7s COST 5 MAXWAIT 4321us")[0:4:3] == [1, ceil(left_ms)]


def test_a_cost_of_0_with_maxwait_waits_out_a_debt(call, redis):
    call("RL.TOKENBUCKET k 10 1 1s COST 12 FORCE")
    before = redis.dump("k")
    assert call("RL.TOKENBUCKET k 10 1 1s COST 0 MAXWAIT 2s") == [1, 10, 0, 2000, 12_000]
    assert call("RL.TOKENBUCKET k 10 1 1s COST 0 MAXWAIT 1s") == [0, 10, 0, 1000, 12_000]
    assert redis.dump("k") == before


def test_force_charges_in_full_and_says_whether_it_fitted(call):
    assert call("RL.TOKENBUCKET k 10 1 1s COST 8 FORCE") == [1, 10, 2, 0, 8000]
    assert call("RL.TOKENBUCKET k 10 1 1s COST 5 FORCE") == [0, 10, 0, 3000, 13_000]
    # More than the capacity: a wait nonetheless.
    assert call("RL.TOKENBUCKET k 10 1 1s COST 100 FORCE") == [0, 10, 0, 103_000, 113_000]


def test_after_force_the_wait_is_until_usage_is_within_the_limit(call, clock):
    wait_ms = call("RL.TOKENBUCKET k 10 3 7s COST 11.3 FORCE")[3]
    assert wait_ms == ceil(Fraction(13, 10) * 7000 / 3)
    clock.advance((wait_ms - 1) * 1000)
    assert call("RL.TOKENBUCKET k 10 3 7s COST 0")[0] == 0
    clock.advance("1ms")
    assert call("RL.TOKENBUCKET k 10 3 7s COST 0")[0] == 1


def test_a_debt_is_worked_off_before_anything_passes(call, clock):
    call("RL.TOKENBUCKET k 10 1 1s COST 25 FORCE")
    assert call("RL.TOKENBUCKET k 10 1 1s") == [0, 10, 0, 16_000, 25_000]
    clock.advance("16s")
    assert call("RL.TOKENBUCKET k 10 1 1s") == [1, 10, 0, 0, 10_000]


def test_a_forced_cost_of_0_changes_nothing(call):
    assert call("RL.TOKENBUCKET k 10 1 1s COST 0 FORCE") == [1, 10, 10, 0, 0]
    assert call("EXISTS k") == 0


def test_upto_grants_the_whole_units_that_are_there(call, clock):
    assert call("RL.TOKENBUCKET k 10 1 1s COST 4 UPTO") == [1, 10, 6, 0, 4000, 4]
    assert call("RL.TOKENBUCKET k 10 1 1s COST 0.5") == [1, 10, 5, 0, 4500]
    assert call("RL.TOKENBUCKET k 10 1 1s COST 1e12 UPTO") == [1, 10, 0, 0, 9500, 5]
    # Half a unit is there: not one.
    assert call("RL.TOKENBUCKET k 10 1 1s COST 7 UPTO") == [0, 10, 0, 500, 9500, 0]
    clock.advance("499999us")
    assert call("RL.TOKENBUCKET k 10 1 1s COST 7 UPTO") == [0, 10, 0, 1, 9001, 0]
    clock.advance("1us")
    assert call("RL.TOKENBUCKET k 10 1 1s COST 7 UPTO") == [1, 10, 0, 0, 10_000, 1]


def test_upto_asks_for_one_unit_if_no_cost_is_given(call):
    assert call("RL.TOKENBUCKET k 10 1 1s UPTO") == [1, 10, 9, 0, 1000, 1]


def test_upto_answers_never_only_if_the_limit_is_below_1(call):
    assert call("RL.TOKENBUCKET k 0.999999 1 1s COST 5 UPTO") == [0, 0, 0, -1, 0, 0]
    assert call("RL.TOKENBUCKET k 0 1 1s UPTO") == [0, 0, 0, -1, 0, 0]
    assert call("RL.TOKENBUCKET k 1 1 1s COST 5 UPTO") == [1, 1, 0, 0, 1000, 1]
    assert call("RL.TOKENBUCKET k 1 1 1s COST 5 UPTO") == [0, 1, 0, 1000, 1000, 0]


def test_a_negative_cost_gives_back(call):
    call("RL.TOKENBUCKET k 10 1 1s COST 8")
    assert call("RL.TOKENBUCKET k 10 1 1s COST -3") == [1, 10, 5, 0, 5000]
    # A give-back rounds down.
    assert call("RL.TOKENBUCKET k 10 1 1s COST -0.0000019") == [1, 10, 5, 0, 5000]
    assert call("RL.TOKENBUCKET k 10 1 1s COST 5.000001")[0] == 1
    assert call("RL.TOKENBUCKET k 10 1 1s COST 0.000001")[0] == 0


@pytest.mark.parametrize("amount", ["8", "8.000001", "1e12"])
def test_a_key_with_nothing_used_is_deleted(call, amount):
    call("RL.TOKENBUCKET k 10 1 1s COST 8")
    assert call(f"RL.TOKENBUCKET k 10 1 1s COST -{amount}") == [1, 10, 10, 0, 0]
    assert call("EXISTS k") == 0


def test_what_has_been_refilled_is_not_given_back_twice(call, clock):
    call("RL.TOKENBUCKET k 10 1 1s COST 8")
    clock.advance("3s")
    assert call("RL.TOKENBUCKET k 10 1 1s COST -4") == [1, 10, 9, 0, 1000]
    assert call("RL.TOKENBUCKET k 10 1 1s COST -1") == [1, 10, 10, 0, 0]
    assert call("EXISTS k") == 0


def test_a_key_is_deleted_by_what_is_used_now_and_not_by_what_is_stored(call, clock):
    # 7 millionths a minute: in half of one 3.5 of 10 have drained, and 6.5 are left to give back.
    call("RL.TOKENBUCKET k 1 0.000007 60s COST 0.00001")
    clock.advance("30s")
    assert call("RL.TOKENBUCKET k 1 0.000007 60s COST -0.000006")[4] == ceil(Fraction(30_000, 7))
    assert call("RL.TOKENBUCKET k 1 0.000007 60s COST -0.000001") == [1, 1, 1, 0, 0]
    assert call("EXISTS k") == 0


def test_giving_back_to_a_missing_key_does_nothing(call):
    assert call("RL.TOKENBUCKET k 10 1 1s COST -3") == [1, 10, 10, 0, 0]
    assert call("EXISTS k") == 0


def test_giving_back_too_little_to_count_does_nothing(call, redis):
    call("RL.TOKENBUCKET k 10 1 1s COST 8")
    before = redis.dump("k")
    assert call("RL.TOKENBUCKET k 10 1 1s COST -0.0000009") == [1, 10, 2, 0, 8000]
    assert redis.dump("k") == before


def test_giving_back_is_allowed_in_debt(call):
    call("RL.TOKENBUCKET k 10 1 1s COST 15 FORCE")
    assert call("RL.TOKENBUCKET k 10 1 1s COST -2") == [1, 10, 0, 0, 13_000]
    assert call("RL.TOKENBUCKET k 10 1 1s COST -4") == [1, 10, 1, 0, 9000]


def test_giving_back_keeps_the_time_that_a_division_left_over(call, clock):
    call("RL.TOKENBUCKET k 10 3 7s COST 10")
    clock.advance("1us")
    call("RL.TOKENBUCKET k 10 3 7s COST -1")
    assert call("RL.TOKENBUCKET k 10 3 7s COST 0")[4] == 21_000
    clock.advance("20999999us")
    assert call("EXISTS k") == 1
    assert call("RL.TOKENBUCKET k 10 3 7s COST 10")[0] == 1


@pytest.mark.parametrize("refill_s", [1, 1000])
def test_a_debt_past_what_can_be_counted_is_held_at_that(call, refill_s):
    # 2^63-1 millionths, at 10^12 a second or in 1000 s
    most_ms = ceil(Fraction(2**63 - 1, 10**18) * 1000 * refill_s)
    for _ in range(12):
        reply = call(f"RL.TOKENBUCKET k 1e12 1e12 {refill_s}s COST 1e12 FORCE")
    assert reply == [0, 10**12, 0, most_ms - 1000 * refill_s, most_ms]


def test_a_debt_that_takes_longer_than_can_be_told_is_told_as_365000_days(call):
    days_ms = 365_000 * 86_400_000
    reply = call("RL.TOKENBUCKET k 1 1 3650d COST 1e12 FORCE")
    assert reply == [0, 1, 0, days_ms, days_ms]
    assert call("PTTL k") >= days_ms


# A limit changed at any call


def test_a_raised_capacity_holds_at_once(call):
    call("RL.TOKENBUCKET k 10 1 1s COST 8")
    assert call("RL.TOKENBUCKET k 10 1 1s COST 5") == [0, 10, 2, 3000, 8000]
    assert call("RL.TOKENBUCKET k 20 1 1s COST 5") == [1, 20, 7, 0, 13_000]


def test_a_lowered_capacity_holds_at_once_and_what_was_used_stays_used(call, clock):
    call("RL.TOKENBUCKET k 20 1 1s COST 15")
    assert call("RL.TOKENBUCKET k 10 1 1s") == [0, 10, 0, 6000, 15_000]
    assert call("RL.TOKENBUCKET k 10 1 1s COST 0") == [0, 10, 0, 5000, 15_000]
    clock.advance("6s")
    assert call("RL.TOKENBUCKET k 10 1 1s") == [1, 10, 0, 0, 10_000]


def test_a_changed_rate_prices_the_time_since_the_last_charge(call, clock):
    call("RL.TOKENBUCKET k 10 1 1s COST 10")
    clock.advance("3s")
    assert call("RL.TOKENBUCKET k 10 2 1s COST 0") == [1, 10, 6, 0, 2000]
    assert call("RL.TOKENBUCKET k 10 1 1s COST 0") == [1, 10, 3, 0, 7000]
    # A charge settles what its own rate has drained.
    assert call("RL.TOKENBUCKET k 10 1 1s COST 1") == [1, 10, 2, 0, 8000]
    assert call("RL.TOKENBUCKET k 10 2 1s COST 0") == [1, 10, 2, 0, 4000]
    assert call("RL.TOKENBUCKET k 10 10 1m COST 0") == [1, 10, 2, 0, 48_000]


def test_a_key_lives_as_long_as_the_limit_that_it_was_last_charged_under_remembers(call, clock):
    call("RL.TOKENBUCKET k 10 1 1s COST 4")
    call("RL.TOKENBUCKET k 10 1 1m COST 1")
    assert call("PTTL k") >= 5 * 60_000
    clock.advance("1m")
    assert call("RL.TOKENBUCKET k 10 1 1m COST 0") == [1, 10, 6, 0, 240_000]


# Against an oracle in exact rational arithmetic


class Oracle:
    """A continuous bucket of Fractions: its definition, and no more."""

    def __init__(self, capacity: Fraction, refill: Fraction, period_us: int) -> None:
        self.capacity = capacity
        self.per_us = refill / period_us
        self.used = Fraction(0)
        self.at = START_US

    def drain(self, now: int) -> None:
        self.used = max(Fraction(0), self.used - (now - self.at) * self.per_us)
        self.at = now

    def wait_us(self, cost: Fraction) -> Fraction:
        return max(Fraction(0), (self.used + cost - self.capacity) / self.per_us)

    def call(self, cost: Fraction, mode: str, maxwait_us: int) -> list[int]:
        wait_us, extra = self.wait_us(cost), []
        allowed = wait_us == 0
        if mode == "UPTO":
            granted = min(cost, max(0, floor(self.capacity - self.used)))
            allowed, wait_us, extra = granted >= 1, self.wait_us(Fraction(1)), [granted]
            cost = Fraction(granted)
        elif mode == "MAXWAIT":
            allowed = wait_us <= maxwait_us and cost <= self.capacity
            wait_us = wait_us if allowed else wait_us - maxwait_us
        elif mode == "GIVEBACK":
            allowed, wait_us, cost = True, Fraction(0), -min(cost, self.used)
        if mode == "FORCE" or allowed:
            self.used += cost
        if mode == "FORCE" and not allowed:
            wait_us = self.wait_us(Fraction(0))
        never = not allowed and mode != "FORCE" and max(cost, mode == "UPTO") > self.capacity
        return [
            int(allowed),
            floor(self.capacity),
            max(0, floor(self.capacity - self.used)),
            -1 if never else ceil(wait_us / 1000),
            ceil(self.used / self.per_us / 1000),
            *extra,
        ]


@st.composite
def buckets(draw) -> tuple[int, int, int]:
    """Capacity and refill in millionths, and a period in microseconds."""
    amounts = st.one_of(
        st.integers(0, 3),
        st.integers(0, 3 * MILLION),
        st.integers(0, 200).map(lambda units: units * MILLION),
        st.integers(0, 10**17),
    )
    periods = st.one_of(
        st.integers(1, 10),
        st.integers(1, 10 * MILLION),
        st.sampled_from([1000, MILLION, 60 * MILLION, 3600 * MILLION]),
    )
    capacity, period_us = draw(amounts), draw(periods)
    # Such that a full recovery takes a year at most: debts stay within the range of the clock.
    least = ceil(Fraction(capacity * period_us, 365 * 86_400 * MILLION))
    return capacity, max(draw(amounts), least, 1), period_us


MODES = ["", "", "", "UPTO", "FORCE", "MAXWAIT", "GIVEBACK"]
MOMENTS = st.one_of(
    st.tuples(st.just("later"), st.just(0)),
    st.tuples(st.just("later"), st.integers(0, 10)),
    st.tuples(st.just("later"), st.integers(0, 100 * MILLION)),
    st.tuples(st.just("wait"), st.sampled_from([-1000, -1, 0])),
    st.tuples(st.just("reset"), st.sampled_from([-1000, -1, 0, 1])),
    st.tuples(st.just("part of reset"), st.integers(1, 99)),
)
COSTS = st.one_of(
    st.tuples(st.just("millionths"), st.sampled_from([0, 1, MILLION])),
    st.tuples(st.just("millionths"), st.integers(0, 5 * MILLION)),
    st.tuples(st.just("hundredths of the capacity"), st.integers(0, 110)),
)
CALLS = st.lists(
    st.tuples(MOMENTS, COSTS, st.sampled_from(MODES), st.integers(0, 100 * MILLION)),
    min_size=1,
    max_size=12,
)


@settings(max_examples=200)
@given(bucket=buckets(), calls=CALLS)
def test_every_decision_is_that_of_exact_arithmetic(call, clock, bucket, calls):
    call("DEL k")
    clock.reset()
    capacity, refill, period_us = bucket
    words = ["RL.TOKENBUCKET", "k", decimal(capacity), decimal(refill), f"{period_us}us"]
    oracle = Oracle(Fraction(capacity, MILLION), Fraction(refill, MILLION), period_us)
    last = [0] * 5
    for (moment, much), (of, cost), mode, maxwait_us in calls:
        clock.advance(
            {
                "later": much,
                "wait": max(0, last[3] * 1000 + much),
                "reset": max(0, last[4] * 1000 + much),
                "part of reset": last[4] * 10 * much,
            }[moment]
        )
        millionths = cost if of == "millionths" else capacity * cost // 100
        if mode == "UPTO":
            millionths = max(MILLION, millionths // MILLION * MILLION)
        if mode == "GIVEBACK":
            millionths = max(1, millionths)  # -0 is 0, which only looks
        options = {"UPTO": ["UPTO"], "FORCE": ["FORCE"], "MAXWAIT": ["MAXWAIT", f"{maxwait_us}us"]}
        sign = "-" if mode == "GIVEBACK" else ""
        oracle.drain(clock.now)
        last = call(*words, "COST", sign + decimal(millionths), *options.get(mode, []))
        assert last == oracle.call(Fraction(millionths, MILLION), mode, maxwait_us)
