"""RL.LEAKYBUCKET: a queue; an admitted call is told when its turn comes."""

from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import ResponseError


@pytest.fixture
def call(redis):
    """`call("RL.LEAKYBUCKET k 5 10 1s")`: the client splits the words."""
    return redis.execute_command


def test_turns_come_one_after_another_until_the_queue_is_full(call):
    assert [call("RL.LEAKYBUCKET k 3 1 2s") for _ in range(4)] == [
        [1, 3, 2, 0, 2000],
        [1, 3, 1, 2000, 4000],
        [1, 3, 0, 4000, 6000],
        [0, 3, 0, 2000, 6000],
    ]


def test_under_overload_turns_are_evenly_spaced(call, clock):
    begin, turns = clock.now, []
    for _ in range(300):
        allowed, _, _, wait_ms, _ = call("RL.LEAKYBUCKET k 5 10 1s")
        if allowed:
            turns.append((clock.now - begin) // 1000 + wait_ms)
        clock.advance("10ms")
    # 5 at once, and one more for each that has left in 2.99 s.
    assert turns == [100 * turn for turn in range(5 + 29)]


def test_a_capacity_of_1_spaces_calls_out_and_lets_none_wait(call, clock):
    assert call("RL.LEAKYBUCKET k 1 10 1s") == [1, 1, 0, 0, 100]
    clock.advance("99ms")
    assert call("RL.LEAKYBUCKET k 1 10 1s") == [0, 1, 0, 1, 1]
    clock.advance("1ms")
    assert call("RL.LEAKYBUCKET k 1 10 1s") == [1, 1, 0, 0, 100]


def test_a_turn_waits_for_the_whole_usage_before_it_however_large_its_own_cost(call):
    assert call("RL.LEAKYBUCKET k 10 1 1s COST 2.5") == [1, 10, 7, 0, 2500]
    assert call("RL.LEAKYBUCKET k 10 1 1s COST 7") == [1, 10, 0, 2500, 9500]
    assert call("RL.LEAKYBUCKET k 10 1 1s COST 0.5") == [1, 10, 0, 9500, 10_000]


def test_what_has_left_the_queue_is_waited_for_no_longer(call, clock):
    call("RL.LEAKYBUCKET k 10 1 1s COST 4")
    clock.advance("2750ms")
    assert call("RL.LEAKYBUCKET k 10 1 1s") == [1, 10, 7, 1250, 2250]
    clock.advance("1h")
    assert call("RL.LEAKYBUCKET k 10 1 1s") == [1, 10, 9, 0, 1000]


def test_a_turn_is_told_rounded_up_to_the_millisecond(call):
    call("RL.LEAKYBUCKET k 10 3 1s COST 2")
    assert call("RL.LEAKYBUCKET k 10 3 1s")[3] == ceil(2000 / 3)


def test_a_denied_call_is_admitted_after_wait_ms_and_not_a_millisecond_before(call, clock):
    call("RL.LEAKYBUCKET k 10 3 7s COST 10")
    wait_ms = call("RL.LEAKYBUCKET k 10 3 7s COST 1.7")[3]
    clock.advance((wait_ms - 1) * 1000)
    assert call("RL.LEAKYBUCKET k 10 3 7s COST 1.7")[0:4:3] == [0, 1]
    clock.advance("1ms")
    assert call("RL.LEAKYBUCKET k 10 3 7s COST 1.7")[0] == 1


def test_a_cost_of_0_tells_the_turn_it_would_have(call, redis):
    assert call("RL.LEAKYBUCKET k 3 1 2s COST 0") == [1, 3, 3, 0, 0]
    assert call("EXISTS k") == 0
    call("RL.LEAKYBUCKET k 3 1 2s COST 2")
    before = redis.dump("k")
    assert call("RL.LEAKYBUCKET k 3 1 2s COST 0") == [1, 3, 1, 4000, 4000]
    assert redis.dump("k") == before
    assert call("RL.LEAKYBUCKET k 3 1 2s") == [1, 3, 0, 4000, 6000]
    # A full queue is within its limit; one in debt is not.
    assert call("RL.LEAKYBUCKET k 3 1 2s COST 0") == [1, 3, 0, 6000, 6000]
    assert call("RL.LEAKYBUCKET k 3 1 2s COST 1 FORCE") == [0, 3, 0, 2000, 8000]
    assert call("RL.LEAKYBUCKET k 3 1 2s COST 0") == [0, 3, 0, 2000, 8000]


def test_upto_tells_the_turn_of_the_first_unit(call):
    call("RL.LEAKYBUCKET k 5 10 1s COST 2")
    assert call("RL.LEAKYBUCKET k 5 10 1s COST 9 UPTO") == [1, 5, 0, 200, 500, 3]
    assert call("RL.LEAKYBUCKET k 5 10 1s COST 9 UPTO") == [0, 5, 0, 100, 500, 0]
    assert call("RL.LEAKYBUCKET k 0.5 10 1s COST 9 UPTO") == [0, 0, 0, -1, 500, 0]


def test_a_forced_call_that_fits_has_its_turn(call):
    call("RL.LEAKYBUCKET k 5 10 1s COST 2")
    assert call("RL.LEAKYBUCKET k 5 10 1s COST 3 FORCE") == [1, 5, 0, 200, 500]
    assert call("RL.LEAKYBUCKET k 5 10 1s COST 30 FORCE") == [0, 5, 0, 3000, 3500]


def test_giving_back_leaves_turns_already_told_and_moves_up_later_ones(call):
    call("RL.LEAKYBUCKET k 5 10 1s COST 4")
    assert call("RL.LEAKYBUCKET k 5 10 1s COST -1") == [1, 5, 2, 0, 300]
    assert call("RL.LEAKYBUCKET k 5 10 1s") == [1, 5, 1, 300, 400]
    assert call("RL.LEAKYBUCKET k 5 10 1s COST -4") == [1, 5, 5, 0, 0]
    assert call("EXISTS k") == 0
    assert call("RL.LEAKYBUCKET k 5 10 1s COST -4") == [1, 5, 5, 0, 0]


def test_a_cost_above_the_capacity_never_has_a_turn(call):
    assert call("RL.LEAKYBUCKET k 5 10 1s COST 6") == [0, 5, 5, -1, 0]
    assert call("RL.LEAKYBUCKET k 0 10 1s") == [0, 0, 0, -1, 0]
    assert call("EXISTS k") == 0


def test_there_is_no_maxwait(call):
    with pytest.raises(ResponseError, match="syntax error, unexpected 'MAXWAIT'"):
        call("RL.LEAKYBUCKET k 5 10 1s MAXWAIT 1s")


def test_a_changed_leak_holds_at_once(call):
    call("RL.LEAKYBUCKET k 5 10 1s COST 4")
    assert call("RL.LEAKYBUCKET k 5 1 1s COST 0") == [1, 5, 1, 4000, 4000]


def test_it_shares_its_state_with_tokenbucket_and_throttle(call, clock):
    assert call("RL.LEAKYBUCKET k 10 1 1s COST 4") == [1, 10, 6, 0, 4000]
    assert call("RL.TOKENBUCKET k 10 1 1s COST 3") == [1, 10, 3, 0, 7000]
    assert call("RL.THROTTLE k 9 1 1 1") == [0, 10, 2, -1, 8]
    clock.advance("2s")
    assert call("RL.LEAKYBUCKET k 10 1 1s") == [1, 10, 3, 6000, 7000]
    assert call("TYPE k") == b"rl-bucket"


@pytest.mark.parametrize(
    "other",
    [
        "RL.FIXED k 10 60s",
        "RL.SLIDING k 10 60s",
        "RL.SLIDING k 10 60s STRICT",
        "RL.SLIDINGLOG k 10 60s",
        "RL.ACQUIRE k 10 60s holder",
    ],
)
def test_it_shares_its_state_with_no_other(call, redis, other):
    call("RL.LEAKYBUCKET k 10 1 1s")
    before = redis.dump("k")
    with pytest.raises(ResponseError, match=r"^WRONGTYPE .*rl-bucket"):
        call(other)
    assert redis.dump("k") == before
    call("DEL k")
    call(other)
    with pytest.raises(ResponseError, match=r"^WRONGTYPE .*rl-bucket"):
        call("RL.LEAKYBUCKET k 10 1 1s")


@settings(max_examples=100)
@given(
    limit=st.sampled_from(["10 1 1s", "5 3 7s", "0.5 0.1 13us", "1e6 999 1h", "3 1 999ms"]),
    calls=st.lists(
        st.tuples(
            st.integers(0, 3_000_000),
            st.sampled_from(["0", "1", "0.3", "2.000001", "7"]),
            st.sampled_from(["", "UPTO", "FORCE"]),
        ),
        max_size=12,
    ),
)
def test_it_decides_as_tokenbucket_but_that_an_admitted_call_waits_until_what_was_before_has_left(
    call, clock, limit, calls
):
    call("DEL leaky token")
    for later_us, cost, mode in calls:
        clock.advance(later_us)
        cost_and_mode = "" if mode == "UPTO" else f"COST {cost}"
        before_ms = call(f"RL.PEEK leaky LEAKYBUCKET {limit} COST 0")[4]
        leaky = call(f"RL.LEAKYBUCKET leaky {limit} {cost_and_mode} {mode}")
        token = call(f"RL.TOKENBUCKET token {limit} {cost_and_mode} {mode}")
        assert token[3] == 0 or not token[0]
        if leaky[0]:
            token[3] = before_ms
        assert leaky == token
