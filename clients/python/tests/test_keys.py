"""Rate strings, names and canonical words of limits, by the tables that all packages share."""

import gc
from typing import Any

import pytest
import redis

from redis_ratelimit import Fixed, Limiter, Local, Policy, TokenBucket
from redis_ratelimit.named import canonical_words
from redis_ratelimit.rates import is_rate, rate
from tables import KEYS, RATES, limit_of, limits_of


@pytest.mark.parametrize("case", KEYS["specs"], ids=lambda case: case["spec"])
def test_words_of_limits_are_canonical(case: dict[str, Any]) -> None:
    assert canonical_words(limits_of(case)) == case["spec"]


@pytest.mark.parametrize("case", RATES["rates"], ids=lambda case: case["text"])
def test_rate_string_is_parsed_to_a_limit(case: dict[str, Any]) -> None:
    assert rate(case["text"]).canonical == limit_of(case["limit"]).canonical
    assert is_rate(case["text"])


@pytest.mark.parametrize("text", RATES["refused"])
def test_invalid_rate_string_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"'100/minute'|window must be"):
        rate(text)
    assert not is_rate(text)


def test_rate_string_is_accepted_as_a_limit_everywhere(limiter: Any, admin: redis.Redis) -> None:
    assert limiter.take("key", "3/hour").remaining == 2
    assert limiter.peek("key", "3/hour").remaining == 2
    assert limiter.take("key", Fixed(3, "1h"), "9/day", each=True).each[1].remaining == 8
    assert limiter.give_back("key", "3/hour").remaining == 2
    assert limiter.take_all({"key": "3/hour", "other": "5/hour"}).each[1].remaining == 4
    assert limiter.peek_all({"other": "5/hour"}).remaining == 4
    decision = limiter.take("key", "90/hour", cost=2)
    assert limiter.settle("key", "90/hour", id=decision.id, cost=0)
    assert limiter.units("hot", "9/hour", batch=2).take()
    limiter.policies.set("plan", "7/hour")
    assert limiter.take("user", Policy("plan")).limit == 7
    bound = limiter.limit("3/day", "9/week")
    assert bound.take("you").limit == 3
    assert bound.key_of("you") == "FIXED 3 86400000+FIXED 9 604800000:you"
    assert admin.exists(bound.key_of("you"))


def test_name_is_bound_to_one_algorithm_and_window(url: str) -> None:
    with Limiter.from_url(url) as limiter, Limiter.from_url(url) as other:
        hour = limiter.limit("api", Fixed(100, "1h"))
        # The same algorithm and window with another amount, as for another plan.
        more = limiter.limit("api", "200/60min")
        for limits in ([Fixed(100, "1d")], [TokenBucket(100, 100)], ["100/hour", "200/day"]):
            with pytest.raises(
                ValueError, match="'api' is already the name of 'FIXED 100 3600000'"
            ):
                limiter.limit("api", *limits)  # type: ignore[arg-type]
        assert other.limit("api", Fixed(100, "1d")).name == "api"
        assert hour.key_of("you") == more.key_of("you") == "api:you"
        del hour
        with pytest.raises(ValueError, match="'api' is already the name"):
            limiter.limit("api", Fixed(100, "1d"))
        del more
        gc.collect()
        assert limiter.limit("api", Fixed(100, "1d"))
        assert limiter.limit("buckets", TokenBucket(10, 10, "1m"))
        assert limiter.limit("buckets", TokenBucket(20, 5, "1h"))


def test_limit_without_a_name_has_canonical_keys(limiter: Any, admin: redis.Redis) -> None:
    hour, day = limiter.limit(Fixed(3, "1h")), limiter.limit("3/day")
    assert [hour.take("you").allowed for _ in range(4)] == [True] * 3 + [False]
    assert day.take("you").remaining == 2
    assert set(admin.keys()) == {hour.key_of("you"), day.key_of("you")}
    assert hour.reset("you")
    assert hour.take("you")
    assert hour.take().remaining == 2
    assert admin.exists("FIXED 3 3600000")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda one: one.take("key", [Fixed(1, 60)]),
            TypeError,
            r"take\(key, Fixed\(100, '1m'\), ",
        ),
        (lambda one: one.take("key", "10/fortnight"), ValueError, "'100/minute'"),
        (lambda one: one.take("key"), ValueError, r"such as Fixed\(100, '1m'\)"),
        (lambda one: one.take("key", 10), TypeError, "'100/minute'"),
        (lambda one: one.take("key", Fixed), TypeError, "a limit is needed, such as"),
        (lambda one: one.take(Fixed(1, 60)), ValueError, "the key comes first"),
        (lambda one: one.take(Fixed(1, 60), Fixed(1, 60)), TypeError, "the key comes first"),
        (lambda one: one.take(None, Fixed(1, 60)), TypeError, "must be text or bytes, not None"),
        (lambda one: one.take_all([Fixed(1, 60)]), TypeError, "{key: limit}"),
        (lambda one: one.take_all({"key": [Fixed(1, 60)]}), TypeError, "not \\["),
        (lambda one: one.limit("api"), ValueError, r"limit\('api', Fixed"),
        (lambda one: one.limit("api", None), TypeError, "a limit is needed, such as"),
        (lambda one: one.limit(None, "1/hour"), TypeError, "a limit is needed, such as"),
        (lambda one: one.units("hot"), ValueError, "such as Fixed"),
        (lambda one: one.limit("api", "1/hour").take(""), ValueError, "must not be empty"),
        (lambda one: one.limit("api", "1/hour").take(7), TypeError, "must be text or bytes"),
        (lambda one: one.lease("pool", Fixed(1, 60)), TypeError, "Concurrency"),
        (lambda one: one.lease("pool", "1/hour"), TypeError, "Concurrency"),
    ],
)
def test_error_for_a_wrong_argument_names_the_right_form(
    limiter: Any, call: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call(limiter)


def test_local_limit_accepts_a_rate() -> None:
    assert Local(otherwise="9/hour")
