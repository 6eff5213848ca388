"""RL.FIXED: a limit per window, which the first admitted call opens, or which the clock does."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.clock import START_US

SECOND = 1_000_000
DAY = 86_400 * SECOND


@pytest.fixture
def call(redis):
    """`call("RL.FIXED k 10 60s")`: the client splits the words."""
    return redis.execute_command


def admitted(call, line: str, times: int) -> int:
    return sum(call(line)[0] for _ in range(times))


def test_the_window_opens_with_the_first_admitted_call(call, clock):
    assert call("RL.FIXED k 10 60s COST 11") == [0, 10, 10, -1, 0]
    assert call("RL.FIXED k 10 60s COST 0") == [1, 10, 10, 0, 0]
    assert call("RL.FIXED k 10 60s COST -5") == [1, 10, 10, 0, 0]
    assert call("EXISTS k") == 0
    clock.advance("7s")
    assert call("RL.FIXED k 10 60s") == [1, 10, 9, 0, 60_000]
    clock.advance("20s")
    assert call("RL.FIXED k 10 60s COST 4") == [1, 10, 5, 0, 40_000]
    assert call("RL.FIXED k 10 60s COST 6") == [0, 10, 5, 40_000, 40_000]


def test_the_window_ends_exactly(call, clock):
    assert admitted(call, "RL.FIXED k 10 60s", 11) == 10
    clock.advance("59999999us")
    assert call("RL.FIXED k 10 60s") == [0, 10, 0, 1, 1]
    clock.advance("1us")
    assert call("RL.FIXED k 10 60s") == [1, 10, 9, 0, 60_000]


def test_the_next_window_opens_with_the_next_call_and_not_where_the_last_one_ended(call, clock):
    call("RL.FIXED k 10 60s COST 10")
    clock.advance("95s")
    assert call("RL.FIXED k 10 60s COST 0") == [1, 10, 10, 0, 0]
    assert call("RL.FIXED k 10 60s COST 10") == [1, 10, 0, 0, 60_000]
    clock.advance("59s")
    assert call("RL.FIXED k 10 60s") == [0, 10, 0, 1000, 1000]


@pytest.mark.parametrize("window", ["1us", "7us", "1ms", "333333us", "1.0000005s", "1.5h", "3650d"])
def test_a_denied_call_is_admitted_after_wait_ms_and_not_a_millisecond_before(call, clock, window):
    call(f"RL.FIXED k 10 {window} COST 9.5")
    allowed, _, remaining, wait_ms, reset_ms = call(f"RL.FIXED k 10 {window}")
    assert (allowed, remaining) == (0, 0)
    assert wait_ms == reset_ms > 0
    clock.advance((wait_ms - 1) * 1000)
    assert call(f"RL.FIXED k 10 {window}")[0:4:3] == [0, 1]
    clock.advance("1ms")
    assert call(f"RL.FIXED k 10 {window}")[0] == 1


@pytest.mark.parametrize(
    ("cost", "times"),
    [("0.5", 4), ("0.3", 6), ("0.30000000000000004", 6), ("0.4", 5), ("0.4000001", 4), ("2", 1)],
)
def test_costs_are_decimals(call, cost, times):
    assert admitted(call, f"RL.FIXED k 2 1s COST {cost}", 10) == times


def test_a_limit_is_told_in_whole_units(call):
    assert call("RL.FIXED k 2.5 1s COST 1.6") == [1, 2, 0, 0, 1000]
    assert call("RL.FIXED k 2.5 1s COST 0.9")[0] == 1


def test_a_limit_of_0_denies_every_cost_above_0(call):
    assert call("RL.FIXED k 0 1s") == [0, 0, 0, -1, 0]
    assert call("RL.FIXED k 0 1s COST 0") == [1, 0, 0, 0, 0]


# ALIGNED


def test_aligned_windows_begin_at_multiples_of_their_length_since_the_epoch(call, clock):
    clock.set(START_US // (60 * SECOND) * 60 * SECOND + 59 * SECOND)
    line = "RL.FIXED k 10 1m ALIGNED"
    assert admitted(call, line, 11) == 10
    assert call(line) == [0, 10, 0, 1000, 1000]
    clock.advance("999999us")
    assert call(line) == [0, 10, 0, 1, 1]
    clock.advance("1us")
    assert admitted(call, line, 11) == 10
    assert call(line) == [0, 10, 0, 60_000, 60_000]


def test_without_aligned_the_same_calls_do_not_pass_twice(call, clock):
    clock.set(START_US // (60 * SECOND) * 60 * SECOND + 59 * SECOND)
    assert admitted(call, "RL.FIXED k 10 1m", 11) == 10
    clock.advance("1s")
    assert admitted(call, "RL.FIXED k 10 1m", 11) == 0


@pytest.mark.parametrize(
    ("window", "left_ms"),
    [
        # It is Tuesday, 2023-11-14 22:13:20 UTC.
        ("1m", 40_000),
        ("1h", (46 * 60 + 40) * 1000),
        ("1d", (3600 + 46 * 60 + 40) * 1000),
        # The epoch was a Thursday.
        ("7d", (86_400 + 3600 + 46 * 60 + 40) * 1000),
        ("3s", 1000),
        ("7ms", -(START_US // 1000) % 7),
    ],
)
def test_an_aligned_window_ends_where_the_clock_says(call, window, left_ms):
    assert call(f"RL.FIXED k 10 {window} ALIGNED") == [1, 10, 9, 0, left_ms]


def test_a_call_late_in_an_aligned_window_does_not_prolong_it(call, clock):
    call("RL.FIXED k 10 1m ALIGNED COST 9")
    clock.advance("39s")
    assert call("RL.FIXED k 10 1m ALIGNED") == [1, 10, 0, 0, 1000]
    clock.advance("1s")
    assert call("RL.FIXED k 10 1m ALIGNED") == [1, 10, 9, 0, 60_000]


# The mode switched: what was charged in the other one counts until its instant plus the window


def test_what_a_plain_window_counted_counts_on_under_aligned(call, clock):
    call("RL.FIXED k 10 1m COST 10")  # at :20
    clock.advance("45s")  # :05 of the next minute
    assert call("RL.FIXED k 10 1m ALIGNED") == [0, 10, 0, 15_000, 15_000]
    clock.advance("15s")
    assert call("RL.FIXED k 10 1m ALIGNED") == [1, 10, 9, 0, 40_000]


def test_a_charge_under_aligned_stamps_what_counts_with_now(call, clock):
    call("RL.FIXED k 10 1m COST 7")  # at :20
    clock.advance("45s")  # :05
    assert call("RL.FIXED k 10 1m ALIGNED") == [1, 10, 2, 0, 55_000]
    clock.advance("54999999us")
    assert call("RL.FIXED k 10 1m ALIGNED COST 3")[0] == 0
    clock.advance("1us")
    assert call("RL.FIXED k 10 1m ALIGNED COST 10")[0] == 1


def test_what_an_aligned_window_counted_counts_on_under_plain(call, clock):
    call("RL.FIXED k 10 1m ALIGNED COST 10")  # at :20
    clock.advance("40s")  # :00
    assert call("RL.PEEK k FIXED 10 1m ALIGNED") == [1, 10, 10, 0, 0]
    assert call("RL.FIXED k 10 1m") == [0, 10, 0, 20_000, 20_000]
    clock.advance("20s")
    assert call("RL.FIXED k 10 1m") == [1, 10, 9, 0, 60_000]


def test_a_denied_call_in_the_other_mode_does_not_switch_it(call, clock):
    call("RL.FIXED k 10 1m ALIGNED COST 10")  # at :20
    assert call("RL.FIXED k 10 1m")[0] == 0
    clock.advance("40s")
    assert call("RL.FIXED k 10 1m ALIGNED") == [1, 10, 9, 0, 60_000]


# The window's length changed: it is that of the call


def test_a_plain_window_ends_its_start_plus_the_window_of_the_call(call, clock):
    call("RL.FIXED k 10 60s COST 8")
    clock.advance("10s")
    assert call("RL.FIXED k 10 30s COST 3") == [0, 10, 2, 20_000, 20_000]
    assert call("RL.FIXED k 10 100s COST 3") == [0, 10, 2, 90_000, 90_000]
    # A charge keeps the start.
    assert call("RL.FIXED k 10 30s COST 1") == [1, 10, 1, 0, 20_000]
    assert call("RL.FIXED k 10 60s COST 1") == [1, 10, 0, 0, 50_000]
    assert call("RL.PEEK k FIXED 10 10s") == [1, 10, 10, 0, 0]


def test_an_aligned_count_holds_while_its_last_charge_lies_in_the_window_of_the_call(call, clock):
    call("RL.FIXED k 10 1m ALIGNED COST 8")  # at 22:13:20
    clock.advance("10s")  # 22:13:30
    assert call("RL.FIXED k 10 30s ALIGNED COST 0") == [1, 10, 10, 0, 0]
    assert call("RL.FIXED k 10 1h ALIGNED COST 3") == [0, 10, 2, 2_790_000, 2_790_000]
    clock.advance("30s")  # 22:14:00, a new minute
    assert call("RL.FIXED k 10 1m ALIGNED COST 0") == [1, 10, 10, 0, 0]


def test_a_changed_limit_holds_at_once(call):
    call("RL.FIXED k 10 60s COST 8")
    assert call("RL.FIXED k 5 60s") == [0, 5, 0, 60_000, 60_000]
    assert call("RL.FIXED k 20 60s COST 12") == [1, 20, 0, 0, 60_000]


# Options


@pytest.mark.parametrize("flag", ["", "ALIGNED"])
def test_giving_back_lowers_the_open_window(call, clock, flag):
    call(f"RL.FIXED k 10 1m {flag} COST 8")
    clock.advance("10s")
    left_ms = 30_000 if flag else 50_000
    assert call(f"RL.FIXED k 10 1m {flag} COST -3") == [1, 10, 5, 0, left_ms]
    assert call(f"RL.FIXED k 10 1m {flag} COST -0.0000019") == [1, 10, 5, 0, left_ms]
    assert call(f"RL.FIXED k 10 1m {flag} COST 5.000001")[0] == 1
    assert call(f"RL.FIXED k 10 1m {flag} COST -1000") == [1, 10, 10, 0, 0]
    assert call("EXISTS k") == 0


@pytest.mark.parametrize("flag", ["", "ALIGNED"])
def test_giving_back_after_the_window_leaves_nothing(call, clock, flag):
    call(f"RL.FIXED k 10 1m {flag} COST 8")
    clock.advance("1m")
    assert call(f"RL.FIXED k 10 1m {flag} COST -3") == [1, 10, 10, 0, 0]
    assert call("EXISTS k") == 0


def test_giving_back_moves_the_instant_that_aligned_keeps(call, clock):
    call("RL.FIXED k 10 1m ALIGNED COST 8")  # at :20
    clock.advance("30s")
    call("RL.FIXED k 10 1m ALIGNED COST -1")  # at :50
    clock.advance("5s")
    assert call("RL.PEEK k FIXED 10 1m COST 4") == [0, 10, 3, 55_000, 55_000]


@pytest.mark.parametrize("flag", ["", "ALIGNED"])
def test_force_charges_in_full_and_waits_for_the_end_of_the_window(call, clock, flag):
    left_ms = 40_000 if flag else 60_000
    assert call(f"RL.FIXED k 10 1m {flag} COST 8 FORCE") == [1, 10, 2, 0, left_ms]
    assert call(f"RL.FIXED k 10 1m {flag} COST 50 FORCE") == [0, 10, 0, left_ms, left_ms]
    assert call(f"RL.FIXED k 10 1m {flag} COST 0") == [0, 10, 0, left_ms, left_ms]
    assert call(f"RL.FIXED k 100 1m {flag} COST 0") == [1, 100, 42, 0, left_ms]
    clock.advance((left_ms - 1) * 1000)
    assert call(f"RL.FIXED k 10 1m {flag} COST 0")[0] == 0
    clock.advance("1ms")
    assert call(f"RL.FIXED k 10 1m {flag} COST 0") == [1, 10, 10, 0, 0]


def test_force_at_a_limit_of_0_is_no_never(call):
    assert call("RL.FIXED k 0 1m COST 3 FORCE") == [0, 0, 0, 60_000, 60_000]


def test_upto_grants_the_whole_units_that_are_there(call):
    assert call("RL.FIXED k 10 1m COST 4 UPTO") == [1, 10, 6, 0, 60_000, 4]
    assert call("RL.FIXED k 10 1m COST 0.5") == [1, 10, 5, 0, 60_000]
    assert call("RL.FIXED k 10 1m COST 100 UPTO") == [1, 10, 0, 0, 60_000, 5]
    assert call("RL.FIXED k 10 1m UPTO") == [0, 10, 0, 60_000, 60_000, 0]
    assert call("RL.FIXED k 0.9 1m UPTO") == [0, 0, 0, -1, 60_000, 0]


# Against its definition


@settings(max_examples=150)
@given(
    window=st.tuples(
        st.integers(0, 20),
        st.one_of(st.integers(1, 10 * SECOND), st.sampled_from([1000, SECOND, DAY])),
        st.booleans(),
    ),
    calls=st.lists(
        st.tuples(
            st.one_of(st.integers(0, 120).map(lambda part: ("part", part)), st.just(("wait", 0))),
            st.integers(-3, 12),
            st.booleans(),
        ),
        max_size=12,
    ),
)
def test_every_decision_is_that_of_the_definition(call, clock, window, calls):
    call("DEL k")
    clock.reset()
    limit, window_us, aligned = window
    used, end, wait_ms = 0, 0, 0
    for (moment, part), cost, force in calls:
        clock.advance(wait_ms * 1000 if moment == "wait" else window_us * part // 100)
        left_us = max(0, end - clock.now)
        used = used if left_us else 0
        allowed = used + cost <= limit
        if cost < 0:
            allowed, used = True, max(0, used + cost)
        elif cost > 0 and (allowed or force):
            if not used:
                left_us = window_us - (clock.now % window_us if aligned else 0)
            used += cost
        end = clock.now + left_us
        left_ms = -(-left_us // 1000) if used else 0
        wait_ms = 0 if allowed else -1 if cost > limit and not force else left_ms
        options = (["ALIGNED"] if aligned else []) + (["FORCE"] if force and cost >= 0 else [])
        assert call("RL.FIXED", "k", limit, f"{window_us}us", "COST", cost, *options) == [
            int(allowed),
            limit,
            max(0, limit - used),
            wait_ms,
            left_ms,
        ]
        wait_ms = max(0, wait_ms)
