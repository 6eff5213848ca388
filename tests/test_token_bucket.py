"""RL.TOKENBUCKET on the wire and by the server's clock. core/ tests the arithmetic."""

import pytest
from redis import ResponseError

from support.clock import START_US, UNITS_US


@pytest.fixture
def call(redis):
    """`call("RL.TOKENBUCKET k 10 1 1s")` splits the arguments and sends the call."""
    return redis.execute_command


def test_the_first_call_of_the_readme(call):
    assert call("RL.TOKENBUCKET user:12345 200 100 60s") == [1, 200, 199, 0, 600]


def test_documented_trace_is_exact_to_the_unit(call, clock):
    trace = []
    for second, calls in [(0, 150), (30, 80), (70, 50), (75, 50)]:
        clock.set(START_US + second * UNITS_US["s"])
        replies = [call("RL.TOKENBUCKET k 200 100 60s") for _ in range(calls)]
        trace.append((second, sum(reply[0] for reply in replies), replies[-1][2]))
    assert trace == [(0, 150, 50), (30, 80, 20), (70, 50, 36), (75, 45, 0)]


@pytest.mark.parametrize(
    ("requests_at_once", "first_second"),
    [(60, 50), (1, 59)],
    ids=["60 at once each second", "one every sixtieth of a second"],
)
def test_after_the_burst_a_client_at_six_times_the_rate_gets_a_sixth(
    call, clock, requests_at_once, first_second
):
    allowed = []
    for second in range(10):
        replies = []
        for number in range(60):
            sixtieths = number // requests_at_once * requests_at_once
            clock.set(START_US + second * UNITS_US["s"] + sixtieths * UNITS_US["s"] // 60)
            replies.append(call("RL.TOKENBUCKET k 50 10 1s"))
        allowed.append(sum(reply[0] for reply in replies))
    assert allowed == [first_second] + [10] * 9
    assert round(allowed[-1] / 60 * 100, 1) == 16.7


def test_python_s_own_numbers_are_understood(call):
    for number in [1, 0.5, 1e-06, 0.1 + 0.2, 12345.678, 1e6, 1e12, float(2**33), 1 / 3]:
        assert call("RL.TOKENBUCKET", "k", 1e12, 1e12, 0.5, "COST", number)[0] == 1
        call("DEL", "k")
    for number in [float("inf"), float("nan"), 1e13, 1e300]:
        with pytest.raises(ResponseError, match="cost must be a number"):
            call("RL.TOKENBUCKET", "k", 10, 1, 1, "COST", number)


def test_a_cost_above_the_capacity_never_passes(call):
    assert call("RL.TOKENBUCKET k 10 1 1s COST 10.000001") == [0, 10, 10, -1, 0]
    assert call("RL.TOKENBUCKET k 10 1 1s COST 11 MAXWAIT 3650d") == [0, 10, 10, -1, 0]
    assert call("EXISTS k") == 0


def test_maxwait_admits_a_call_that_fits_in_time_and_returns_its_wait(call):
    assert [call("RL.TOKENBUCKET k 1 1 1s MAXWAIT 2500ms") for _ in range(4)] == [
        [1, 1, 0, 0, 1000],
        [1, 1, 0, 1000, 2000],
        [1, 1, 0, 2000, 3000],
        [0, 1, 0, 500, 3000],
    ]


def test_upto_appends_the_granted_units_to_the_reply(call):
    assert call("RL.TOKENBUCKET k 10 1 1s COST 4 UPTO") == [1, 10, 6, 0, 4000, 4]
    assert call("RL.TOKENBUCKET k 10 1 1s COST 6.5 FORCE") == [0, 10, 0, 500, 10_500]
    assert call("RL.TOKENBUCKET k 10 1 1s COST 7 UPTO") == [0, 10, 0, 1500, 10_500, 0]


def test_a_debt_beyond_the_maximum_time_is_shown_as_365000_days(call):
    days_ms = 365_000 * 86_400_000
    reply = call("RL.TOKENBUCKET k 1 1 3650d COST 1e12 FORCE")
    assert reply == [0, 1, 0, days_ms, days_ms]
    assert call("PTTL k") >= days_ms


def test_a_key_expires_when_its_last_charged_limit_has_recovered(call, clock):
    call("RL.TOKENBUCKET k 10 1 1s COST 4")
    call("RL.TOKENBUCKET k 10 1 1m COST 1")
    assert call("PTTL k") >= 5 * 60_000
    clock.advance("1m")
    assert call("RL.TOKENBUCKET k 10 1 1m COST 0") == [1, 10, 6, 0, 240_000]
