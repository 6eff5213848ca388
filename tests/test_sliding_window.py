"""RL.SLIDING on the wire and by the server's clock. core/ tests the arithmetic."""

import pytest


@pytest.fixture
def call(redis):
    """`call("RL.SLIDING k 100 10s")` splits the arguments and sends the call."""
    return redis.execute_command


def test_the_window_opens_with_the_first_admitted_call(call, clock):
    assert call("RL.SLIDING k 100 10s COST 101") == [0, 100, 100, -1, 0]
    assert call("RL.SLIDING k 100 10s COST 0") == [1, 100, 100, 0, 0]
    assert call("EXISTS k") == 0
    clock.advance("3s")
    assert call("RL.SLIDING k 100 10s COST 80") == [1, 100, 20, 0, 20_000]
    clock.advance("9999999us")
    assert call("RL.SLIDING k 100 10s COST 21") == [0, 100, 20, 126, 10_001]


def test_example_of_the_readme_works(call, clock):
    assert call("RL.SLIDING api:bob 100 10s COST 80") == [1, 100, 20, 0, 20_000]
    clock.advance("12s")
    assert call("RL.SLIDING api:bob 100 10s COST 50") == [0, 100, 36, 1750, 8000]
