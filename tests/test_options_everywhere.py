"""COST 0, COST -amount, UPTO and FORCE: they mean the same whatever the algorithm."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis, ResponseError

from support.clock import UNITS_US, Clock
from support.strategies import sequences
from support.workload import LIMITERS, Limiter

# Each limits to 10 and recovers within an hour or two. Leases have no options but their cost.
OPTIONED = [limiter for limiter in LIMITERS if not limiter.leases]
each_limiter = pytest.mark.parametrize(
    "limiter", OPTIONED, ids=[limiter.name for limiter in OPTIONED]
)


def take(redis: Redis, limiter: Limiter, cost: object, *options: str, key: str = "k") -> list[int]:
    return redis.execute_command(*limiter.take(key, cost, *options))


def peek(redis: Redis, limiter: Limiter, cost: object, *options: str) -> list[int]:
    return redis.execute_command(*limiter.peek("k", cost, *options))


def state(redis: Redis) -> tuple:
    return redis.dump("k"), redis.pttl("k")


def passes_exactly_after(
    redis: Redis, clock: Clock, limiter: Limiter, wait_ms: int, ask: tuple
) -> None:
    now = clock.now
    for ms, passes in ((wait_ms - 1, 0), (wait_ms, 1)):
        clock.set(now + ms * 1000)
        assert peek(redis, limiter, *ask)[0] == passes, f"{ask} after {ms} of {wait_ms} ms"
    clock.set(now)


@each_limiter
def test_a_cost_of_0_looks_and_writes_nothing(redis: Redis, limiter: Limiter) -> None:
    assert take(redis, limiter, 0) == [1, 10, 10, 0, 0]
    assert redis.exists("k") == 0
    for cost, remaining in ((4, 6), (6, 0)):
        taken = take(redis, limiter, cost)
        before = state(redis)
        for zero in (0, "-0", "0.0", "0e5"):
            looked = take(redis, limiter, zero)
            assert looked == peek(redis, limiter, 0)
            # A full limiter is within its limit.
            assert (looked[0], looked[2], looked[4]) == (1, remaining, taken[4])
        assert state(redis) == before


@each_limiter
def test_what_is_forced_and_fits_is_taken_like_anything(redis: Redis, limiter: Limiter) -> None:
    for cost in (1, "3.5", "5.5"):
        assert take(redis, limiter, cost, "FORCE") == take(redis, limiter, cost, key="twin")
        assert redis.dump("k") == redis.dump("twin")


# From 25 down to 10: by the rate; at the window's end, which aligned is that of the hour; when the
# previous count weighs two fifths; once a slot of a minute that ends in 40 s is an hour old.
DEBT_MS = {
    "TOKENBUCKET": 5_400_000,
    "LEAKYBUCKET": 5_400_000,
    "FIXED": 3_600_000,
    "FIXED ALIGNED": 2_800_000,
    "SLIDING": 5_760_000,
    "SLIDING STRICT": 3_640_000,
    "SLIDINGLOG": 3_600_000,
}


@each_limiter
def test_what_is_forced_past_the_limit_is_charged_in_full(
    redis: Redis, clock: Clock, limiter: Limiter
) -> None:
    peeked = peek(redis, limiter, 25, "FORCE")
    assert (peeked[0], peeked[2], peeked[4]) == (0, 10, 0)
    forced = take(redis, limiter, 25, "FORCE")
    assert forced[:4] == [0, 10, 0, DEBT_MS[limiter.name]]
    assert peeked[3] == forced[3]
    # It waits until the debt is paid off: a look passes then.
    assert take(redis, limiter, 0)[:4] == forced[:4]
    passes_exactly_after(redis, clock, limiter, forced[3], (0,))


@each_limiter
def test_a_debt_is_paid_off_before_anything_passes(
    redis: Redis, clock: Clock, limiter: Limiter
) -> None:
    wait_ms = take(redis, limiter, 25, "FORCE")[3]
    begin, before = clock.now, redis.dump("k")
    for tenth in range(10):
        clock.set(begin + wait_ms * tenth // 10 * 1000)
        for ask in ((0,), (1,), ("0.000001",), (1, "UPTO"), (10, "UPTO")):
            reply = take(redis, limiter, *ask)
            assert (reply[0], reply[2]) == (0, 0)
            assert reply[5:] == ([0] if "UPTO" in ask else [])
        assert redis.dump("k") == before
    # Each of them then passes at the moment that it is told.
    for ask in ((1,), (4,), ("2.5",), (10,), (3, "UPTO")):
        passes_exactly_after(redis, clock, limiter, take(redis, limiter, *ask)[3], ask)


@each_limiter
def test_debts_add_up(redis: Redis, limiter: Limiter) -> None:
    assert take(redis, limiter, 8)[0] == 1
    for _ in range(3):
        assert take(redis, limiter, 9, "FORCE")[0] == 0
    take(redis, limiter, 35, "FORCE", key="twin")
    assert redis.dump("k") == redis.dump("twin")


@each_limiter
def test_forcing_nothing_is_a_look(redis: Redis, limiter: Limiter) -> None:
    assert take(redis, limiter, 0, "FORCE") == [1, 10, 10, 0, 0]
    assert redis.exists("k") == 0
    forced = take(redis, limiter, 25, "FORCE")
    before = state(redis)
    assert take(redis, limiter, 0, "FORCE") == forced
    assert state(redis) == before


@each_limiter
def test_usage_saturates_and_can_be_given_back(redis: Redis, limiter: Limiter) -> None:
    most = 10**12
    for _ in range(12):
        reply = take(redis, limiter, most, "FORCE")
        assert (reply[0], reply[2]) == (0, 0)
        assert 0 < reply[3] <= reply[4] <= 365_000 * 86_400_000
    # That is 2^63 - 1 millionths, which is more than nine times as much, and not ten.
    for _ in range(9):
        assert take(redis, limiter, -most)[0] == 1
    assert redis.exists("k") == 1
    assert take(redis, limiter, -most) == [1, 10, 10, 0, 0]
    assert redis.exists("k") == 0


@each_limiter
def test_upto_grants_exactly_what_remains(redis: Redis, limiter: Limiter) -> None:
    for cost, remaining, granted in ((3, 7, 3), (5, 2, 5), (100, 0, 2), (100, 0, 0), (1, 0, 0)):
        reply = take(redis, limiter, cost, "UPTO")
        assert (reply[0], reply[2], reply[5]) == (int(granted > 0), remaining, granted)
    take(redis, limiter, 10, key="twin")
    assert redis.dump("k") == redis.dump("twin")


@each_limiter
def test_upto_grants_whole_units_only(redis: Redis, clock: Clock, limiter: Limiter) -> None:
    take(redis, limiter, "3.500001")
    assert take(redis, limiter, 10**12, "UPTO")[5] == 6
    denied = take(redis, limiter, 10**12, "UPTO")
    assert (denied[0], denied[2], denied[5]) == (0, 0, 0)
    # Denied, it waits for one unit, and not for the half that is there.
    assert take(redis, limiter, "0.499999")[0] == 1
    denied = take(redis, limiter, 10**12, "UPTO")
    assert denied[3] == peek(redis, limiter, 1)[3]
    passes_exactly_after(redis, clock, limiter, denied[3], (10**12, "UPTO"))


@each_limiter
def test_upto_never_passes_only_if_the_limit_is_below_1(redis: Redis, limiter: Limiter) -> None:
    algorithm, _, *rest = limiter.spec
    for limit, reply in ((0, [0, 0, 0, -1, 0, 0]), ("0.999999", [0, 0, 0, -1, 0, 0])):
        upto = ("RL.TAKE", "k", algorithm, limit, *rest, "UPTO", "COST", 5)
        assert redis.execute_command(*upto) == reply
    assert redis.exists("k") == 0
    upto = ("RL.TAKE", "k", algorithm, "1.5", *rest, "UPTO", "COST", 5)
    assert redis.execute_command(*upto)[5] == 1
    assert redis.execute_command(*upto)[3] > 0


@each_limiter
def test_a_peek_at_upto_tells_what_would_be_granted(redis: Redis, limiter: Limiter) -> None:
    take(redis, limiter, 4)
    before = state(redis)
    reply = peek(redis, limiter, 100, "UPTO")
    assert (reply[0], reply[2], reply[5]) == (1, 6, 6)
    assert state(redis) == before


@each_limiter
def test_what_is_given_back_was_never_taken(redis: Redis, limiter: Limiter) -> None:
    take(redis, limiter, 8)
    back = take(redis, limiter, "-2.5")
    assert (back[0], back[2], back[3]) == (1, 4, 0)
    take(redis, limiter, "5.5", key="twin")
    assert redis.dump("k") == redis.dump("twin")
    assert take(redis, limiter, -5)[2] == 9
    assert take(redis, limiter, "-0.5") == [1, 10, 10, 0, 0]
    assert redis.exists("k") == 0


@each_limiter
@pytest.mark.parametrize("used", [1, 10, 25])
@pytest.mark.parametrize("minutes", [0, 7, 50])
def test_giving_back_never_makes_more_than_the_limit_available(
    redis: Redis, clock: Clock, limiter: Limiter, used: int, minutes: int
) -> None:
    take(redis, limiter, used, "FORCE")
    clock.advance(f"{minutes}m")
    assert take(redis, limiter, -(10**12)) == [1, 10, 10, 0, 0]
    assert redis.exists("k") == 0
    assert take(redis, limiter, 100, "UPTO")[5] == 10
    assert take(redis, limiter, 1)[0] == 0


@each_limiter
def test_giving_back_to_a_missing_key_does_nothing(redis: Redis, limiter: Limiter) -> None:
    assert take(redis, limiter, -5) == [1, 10, 10, 0, 0]
    assert redis.exists("k") == 0


@each_limiter
def test_less_than_a_millionth_gives_nothing_back(redis: Redis, limiter: Limiter) -> None:
    take(redis, limiter, 8)
    before = state(redis)
    assert take(redis, limiter, "-0.0000009")[2] == 2
    assert state(redis) == before


@each_limiter
def test_giving_back_pays_off_a_debt(redis: Redis, limiter: Limiter) -> None:
    take(redis, limiter, 25, "FORCE")
    back = take(redis, limiter, -10)
    # Always allowed, though the rest is still more than the limit.
    assert (back[0], back[2], back[3]) == (1, 0, 0)
    assert take(redis, limiter, 0)[0] == 0
    assert take(redis, limiter, -5)[2] == 0
    assert take(redis, limiter, 0)[0] == 1
    assert take(redis, limiter, -5)[2] == 5
    take(redis, limiter, 5, key="twin")
    assert redis.dump("k") == redis.dump("twin")


@each_limiter
@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("COST 0 UPTO", "cost must be a whole number"),
        ("COST -1 UPTO", "cost must be"),
        ("COST 1.5 UPTO", "cost must be a whole number"),
        ("COST 0.999999 UPTO", "cost must be a whole number"),
        ("COST -1 FORCE", "cost must be"),
        ("FORCE COST -0.5", "cost must be"),
        ("UPTO FORCE", "unexpected 'FORCE'"),
        ("FORCE UPTO", "unexpected 'UPTO'"),
        ("FORCE FORCE", "unexpected 'FORCE'"),
        ("COST 1 UPTO COST 1", "unexpected 'COST'"),
    ],
)
def test_options_that_do_not_go_together_are_an_error(
    redis: Redis, limiter: Limiter, words: str, error: str
) -> None:
    redis.execute_command("RL.TAKE", "k", *limiter.spec, "COST", 4)
    before = state(redis)
    for key in ("k", "missing"):
        with pytest.raises(ResponseError, match=error):
            redis.execute_command("RL.TAKE", key, *limiter.spec, *words.split())
    assert state(redis) == before
    assert redis.exists("missing") == 0


@each_limiter
@pytest.mark.parametrize("cost", [0, 100], ids=["looked", "denied"])
def test_a_call_that_charges_nothing_shortens_no_memory(
    redis: Redis, clock: Clock, limiter: Limiter, cost: int
) -> None:
    """Not even where it writes: after the clock has gone back."""
    take(redis, limiter, 10)
    # By a limit under which all would be forgotten in a second.
    quick = limiter._replace(spec=tuple("1s" if word == "1h" else word for word in limiter.spec))
    clock.advance("-10s")
    take(redis, quick, cost)
    clock.advance("30s")
    assert take(redis, limiter, 1)[0] == 0


costs = st.sampled_from(["1", "2", "0.3", "3.333333", "10", "0.000001"])
asks = st.one_of(
    st.tuples(costs),
    st.tuples(costs),
    st.tuples(costs.map(lambda cost: f"-{cost}")),
    st.tuples(st.sampled_from(["1", "4", "25"]), st.sampled_from(["UPTO", "FORCE"])),
)
pauses = st.sampled_from(["0s", "1us", "7m", "59m", "1h", "61m", "3599999999us"])


@given(steps=sequences(st.tuples(pauses, asks, costs), 12))
@settings(max_examples=25)
@each_limiter
def test_wherever_calls_lead_remaining_is_what_passes_and_waits_are_exact(
    redis: Redis, clock: Clock, limiter: Limiter, steps: list
) -> None:
    redis.delete("k")
    clock.reset()
    for pause, ask, cost in steps:
        clock.advance(pause)
        remaining = take(redis, limiter, *ask)[2]
        assert 0 <= remaining <= 10
        assert peek(redis, limiter, remaining)[0] == 1 or remaining == 0
        assert peek(redis, limiter, remaining + 1)[0] == 0
        assert peek(redis, limiter, 100, "UPTO")[5] == remaining
        denied = peek(redis, limiter, cost)
        if not denied[0]:
            passes_exactly_after(redis, clock, limiter, denied[3], (cost,))
        # What has recovered is as good as new.
        reset, now = denied[4], clock.now
        if reset:
            clock.advance((reset - 1) * 1000)
            assert peek(redis, limiter, 10)[0] == 0
            clock.advance("1ms")
            assert peek(redis, limiter, 0) == [1, 10, 10, 0, 0]
            clock.set(now)


def test_in_sliding_what_the_current_count_cannot_cover_lowers_the_previous(
    redis: Redis, clock: Clock
) -> None:
    sliding = LIMITERS[4]
    take(redis, sliding, 9)
    clock.advance("80m")
    # Two thirds of 9 are 6, and 1 more in this window.
    assert take(redis, sliding, 1)[2] == 3
    assert take(redis, sliding, -3)[2] == 6
    # The estimate is 4, which are 6 of the previous window.
    flat = redis.execute_command("RL.INFO", "k")
    told = dict(zip(flat[::2], flat[1::2], strict=True))
    assert (told[b"previous"], told[b"current"]) == (b"6", b"0")
    # Rounded against the caller: two thirds of a millionth of the previous one are less than one.
    assert take(redis, sliding, "-0.000001")[2] == 6
    assert peek(redis, sliding, "6.000001")[0] == 0
    assert take(redis, sliding, "-0.000002")[2] == 6
    assert peek(redis, sliding, "6.000002")[0] == 1
    assert peek(redis, sliding, "6.000003")[0] == 0


def test_in_an_aligned_window_giving_back_is_of_the_open_window(redis: Redis, clock: Clock) -> None:
    aligned = LIMITERS[3]
    take(redis, aligned, 8)
    clock.advance(UNITS_US["h"])
    assert take(redis, aligned, -3) == [1, 10, 10, 0, 0]
    assert take(redis, aligned, 4)[2] == 6
    assert take(redis, aligned, -3)[2] == 9


def test_turns_that_a_leaky_bucket_has_told_stand(redis: Redis) -> None:
    queue = ("RL.LEAKYBUCKET", "k", 10, 1, "1s", "COST")
    assert [redis.execute_command(*queue, 3)[3] for _ in range(3)] == [0, 3000, 6000]
    redis.execute_command(*queue, -6)
    assert redis.execute_command(*queue, 1) == [1, 10, 6, 3000, 4000]
    # A look tells the turn that it would have, and so does the first of several units.
    assert redis.execute_command(*queue, 0)[3] == 4000
    assert redis.execute_command(*queue, 100, "UPTO") == [1, 10, 0, 4000, 10_000, 6]
