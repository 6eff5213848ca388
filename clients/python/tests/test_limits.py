"""Limits produce the words that the server expects, and reject invalid arguments."""

from datetime import timedelta
from decimal import Decimal

import pytest
import redis

from redis_ratelimit import (
    Concurrency,
    Fixed,
    LeakyBucket,
    Limit,
    Policy,
    Sliding,
    SlidingLog,
    TokenBucket,
)

WORDS = [
    (TokenBucket(200, 100, "60s"), "TOKENBUCKET 200 100 60s"),
    (TokenBucket(10, 5), "TOKENBUCKET 10 5 1s"),
    (TokenBucket(0.1 + 0.2, Decimal("1e-6"), 0.25), None),
    (TokenBucket(1e-6, 1e-6, timedelta(milliseconds=1)), "TOKENBUCKET 0.000001 0.000001 0.001s"),
    (TokenBucket(10**12, 1e12, 1), "TOKENBUCKET 1000000000000 1000000000000 1s"),
    (LeakyBucket(3, 1, "2s"), "LEAKYBUCKET 3 1 2s"),
    (Fixed(5, "1m"), "FIXED 5 1m"),
    (Fixed(5, 60, cost=2, name="burst"), "FIXED 5 60s COST 2 AS burst"),
    (
        Fixed(1000, "1mo", aligned=True, offset="+09:00", anchor=15),
        "FIXED 1000 1mo ALIGNED OFFSET +09:00 ANCHOR 15",
    ),
    (Fixed(10, "1d", aligned=True, keep="20%"), "FIXED 10 1d ALIGNED KEEP 20%"),
    (Sliding(100, "10s"), "SLIDING 100 10s"),
    (Sliding(100, 10, strict=True), "SLIDING 100 10s STRICT"),
    (SlidingLog(3, timedelta(days=1)), "SLIDINGLOG 3 86400s"),
]


@pytest.mark.parametrize(("limit", "words"), WORDS)
def test_words_are_accepted_by_the_server(
    limit: Limit, words: str | None, admin: redis.Redis
) -> None:
    if words is not None:
        assert " ".join(map(str, limit.spec())) == words
    allowed, reported_limit, *_ = admin.execute_command("RL.PEEK", "key", "COST", 0, *limit.spec())
    assert allowed == 1
    assert reported_limit == int(limit.quota)


def test_concurrency_spec_needs_a_holder() -> None:
    limit = Concurrency(2, 30, name="slots", cost=3)
    assert limit.spec("me") == ["CONCURRENCY", "2", "30s", "me", "COST", "3", "AS", "slots"]
    with pytest.raises(ValueError, match="needs a holder"):
        limit.spec()
    # In a policy the holder is the id of the call.
    assert limit.definition() == ["CONCURRENCY", "2", "30s", "COST", "3", "AS", "slots"]


def test_policy_with_several_names() -> None:
    policy = Policy("user:42", "plan:pro", b"\xff")
    assert policy.spec() == ["POLICY", "user:42", "OR", "plan:pro", "OR", b"\xff"]
    assert policy == Policy("user:42", "plan:pro", b"\xff") != Policy("user:42")


def test_shadow_is_only_for_policies() -> None:
    limit = Fixed(2, "1m", name="new", shadow=True)
    assert limit.definition() == ["FIXED", "2", "1m", "AS", "new", "SHADOW"]
    assert "SHADOW" not in limit.spec()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TokenBucket(float("nan"), 1), "capacity must be a number"),
        (lambda: TokenBucket(1, 1, float("inf")), "period must be seconds"),
        (lambda: TokenBucket(10**13, 1), "capacity must be a number up to"),
        (lambda: TokenBucket("ten", 1), "capacity must be a number"),  # type: ignore[arg-type]
        (lambda: Fixed(5, "soon"), "window must be seconds, or text such as '60s'"),
        (lambda: Fixed(5, "1mo"), "window must be"),
        (lambda: Fixed(5, "1m", offset="+09:00"), "for aligned windows"),
        (lambda: Fixed(5, -1), "window must be"),
        (lambda: Fixed(5, 0), "window must be above 0"),
        (lambda: Fixed(-5, 1), "limit must be a number"),
        (lambda: TokenBucket(5, 0), "refill must be a number"),
        (lambda: Fixed(5, "3651d"), "window must be"),
        (lambda: Fixed(5, 60, name="a b"), "name must be"),
        (lambda: Fixed(5, 60, keep="20"), "keep must be"),
        (Policy, "a policy has a name"),
        (lambda: Fixed(5, 60, keep=1).definition(), "keep comes with a call"),
    ],
)
def test_invalid_limit_is_rejected_at_construction(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


def test_durations_are_rounded_up_to_microseconds() -> None:
    assert Fixed(1, 1e-7).spec()[2] == "0.000001s"
    # Not 0.30000000000000004, the sum as a float.
    assert Fixed(1, 0.1 + 0.2).spec()[2] == "0.300001s"
    assert Fixed(1, 0.3).spec()[2] == "0.3s"
