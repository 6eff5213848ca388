"""RL.FIXED by the server's clock: a window begins with the first admitted call, or as aligned."""

import pytest


@pytest.fixture
def call(redis):
    """`call("RL.FIXED k 10 60s")` splits the arguments and sends the call."""
    return redis.execute_command


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


def test_a_call_late_in_an_aligned_window_does_not_prolong_it(call, clock):
    call("RL.FIXED k 10 1m ALIGNED COST 9")
    clock.advance("39s")
    assert call("RL.FIXED k 10 1m ALIGNED") == [1, 10, 0, 0, 1000]
    clock.advance("1s")
    assert call("RL.FIXED k 10 1m ALIGNED") == [1, 10, 9, 0, 60_000]


def test_amounts_are_whole_units_rounded_down(call):
    assert call("RL.FIXED k 2.9 1s COST 0.3") == [1, 2, 2, 0, 1000]
    assert call("RL.FIXED k 2.9 1s COST 1.8") == [1, 2, 0, 0, 1000]
    assert call("RL.FIXED k 2.9 1s COST 0.800001") == [0, 2, 0, 1000, 1000]
    assert call("RL.FIXED k 2.9 1s COST 0.8") == [1, 2, 0, 0, 1000]
