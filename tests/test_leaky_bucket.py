"""The reply of RL.LEAKYBUCKET has the hold of an admitted call."""

import pytest


@pytest.fixture
def call(redis):
    """`call("RL.LEAKYBUCKET k 5 10 1s")` splits the arguments and sends the call."""
    return redis.execute_command


def test_holds_increase_until_the_bucket_is_full(call):
    assert [call("RL.LEAKYBUCKET k 3 1 2s") for _ in range(4)] == [
        [1, 3, 2, 0, 2000],
        [1, 3, 1, 2000, 4000],
        [1, 3, 0, 4000, 6000],
        [0, 3, 0, 2000, 6000],
    ]


def test_a_leaky_bucket_shares_its_state_with_tokenbucket_and_throttle(call, clock):
    assert call("RL.LEAKYBUCKET k 10 1 1s COST 4") == [1, 10, 6, 0, 4000]
    assert call("RL.TOKENBUCKET k 10 1 1s COST 3") == [1, 10, 3, 0, 7000]
    assert call("RL.THROTTLE k 9 1 1 1") == [0, 10, 2, -1, 8]
    clock.advance("2s")
    assert call("RL.LEAKYBUCKET k 10 1 1s") == [1, 10, 3, 6000, 7000]
    assert call("TYPE k") == b"rl-bucket"
