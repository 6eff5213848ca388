"""Decisions of limiters for threads and for asyncio."""

from typing import Any

import pytest
import redis
from support.clock import Clock

from redis_ratelimit import (
    Ban,
    CallError,
    Concurrency,
    Fixed,
    LeakyBucket,
    Policy,
    Sliding,
    SlidingLog,
    TokenBucket,
)


def test_limit_allows_exactly_its_units(make: Any, clock: Clock) -> None:
    # The server's clock advances, but the limiter's does not.
    limiter = make(remember_denials=False)
    limit = TokenBucket(3, 1, "2s")
    assert [limiter.take("key", limit).remaining for _ in range(3)] == [2, 1, 0]
    denied = limiter.take("key", limit)
    assert not denied
    assert (denied.wait, denied.reset, denied.limit) == (2.0, 6.0, 3)
    clock.advance("2s")
    assert limiter.take("key", limit)


def test_cost_above_the_limit_has_no_wait(limiter: Any) -> None:
    decision = limiter.take("key", Fixed(5, 60), cost=6)
    assert (decision.allowed, decision.wait, decision.wait_ms) == (False, None, -1)


def test_leaky_bucket_reports_the_wait(limiter: Any) -> None:
    limit = LeakyBucket(3, 1, "2s")
    assert [limiter.take("mail", limit).wait for _ in range(3)] == [0.0, 2.0, 4.0]


def test_options_of_a_call_reach_the_server(limiter: Any) -> None:
    limit = TokenBucket(100, 100, "1m")
    assert limiter.take("a", limit, cost=70)
    assert limiter.take("a", limit, cost=50, upto=True).granted == 30
    assert limiter.take("b", limit, cost=80, keep="20%").remaining == 0
    assert not limiter.take("b", limit, keep="20%")
    assert limiter.take("b", limit)
    forced = limiter.take("c", limit, cost=160, force=True)
    assert (forced.allowed, forced.wait_ms) == (False, 36_000)
    assert limiter.give_back("c", limit, cost=160).remaining == 100
    assert limiter.take("d", limit, cost=100)
    assert limiter.take("d", limit, cost=10, max_wait="1m").wait == 6.0


def test_several_limits_are_charged_together_or_not_at_all(limiter: Any) -> None:
    limits = (TokenBucket(10, 10, 1, cost=1, name="requests"), Fixed(1000, "1d", name="tokens"))
    decision = limiter.take("user", *limits, cost=900, each=True)
    assert [(one.name, one.remaining) for one in decision.each] == [
        ("requests", 9),
        ("tokens", 100),
    ]
    assert (decision.limit, decision.remaining) == (1000, 100)
    denied = limiter.take("user", *limits, cost=200, each=True)
    assert [one.allowed for one in denied.each] == [True, False]
    assert denied.wait_ms == denied.each[1].wait_ms == 86_400_000
    assert limiter.peek("user", *limits, cost=0).remaining == 9


@pytest.mark.parametrize("cost", [1, 3, 5, 30, 80, 101])
def test_combined_decision_shows_the_same_limit_as_the_server(limiter: Any, cost: int) -> None:
    limits = (
        TokenBucket(100, 1, 1),
        Fixed(50, "1h", cost=2),
        Sliding(20, "1m", cost=1),
        SlidingLog(200, "1m"),
    )
    for _ in range(6):
        peeked = limiter.peek("key", *limits, cost=cost)
        taken = limiter.take("key", *limits, cost=cost, each=True)
        assert taken.allowed == peeked.allowed
        combined_here = limiter.peek("key", *limits, cost=cost, each=True)
        combined_by_server = limiter.peek("key", *limits, cost=cost)
        fields = ("allowed", "limit", "remaining", "wait_ms", "reset_ms")
        assert [getattr(combined_here, name) for name in fields] == [
            getattr(combined_by_server, name) for name in fields
        ]


def test_several_keys_are_charged_together_or_not_at_all(limiter: Any) -> None:
    limits = {"{acme}:user": TokenBucket(10, 10, 60), "{acme}:all": Fixed(15, "1d", cost=8)}
    first = limiter.take_all(limits)
    assert [one.remaining for one in first.each] == [9, 7]
    assert (first.limit, first.remaining) == (15, 7)
    denied = limiter.take_all(limits)
    assert [one.allowed for one in denied.each] == [True, False]
    assert (denied.limit, denied.wait_ms) == (15, 86_400_000)
    assert [one.remaining for one in limiter.peek_all(limits, cost=0).each] == [9, 7]


def test_charge_is_settled_to_the_actual_cost(limiter: Any) -> None:
    limit = TokenBucket(10_000, 10_000, "1m")
    assert limiter.take("gpt", limit, cost=4000, once="req-19").id == "req-19"
    for _ in range(2):
        settled = limiter.settle("gpt", limit, id="req-19", cost=1200)
        assert (settled.allowed, settled.remaining) == (True, 8800)
    unknown = limiter.settle("gpt", limit, id="req-20", cost=1)
    assert (unknown.allowed, unknown.wait) == (False, None)


def test_generated_id_can_be_settled_until_its_ttl(limiter: Any, clock: Clock) -> None:
    limit = Fixed(100, "1d")
    decision = limiter.take("gpt", limit, cost=40, ttl="5m")
    clock.advance("4m")
    assert limiter.settle("gpt", limit, id=decision.id, cost=10).remaining == 90


def test_holder_of_a_concurrency_limit_is_the_id(limiter: Any) -> None:
    limits = (Concurrency(1, 30), Fixed(100, "1m"))
    first = limiter.take("jobs", *limits)
    assert first
    denied = limiter.take("jobs", *limits)
    assert (denied.allowed, denied.wait) == (False, 30.0)
    assert limiter.peek("jobs", Concurrency(1, 30)).wait == 30.0
    assert limiter.peek("jobs", Concurrency(1, 30), holder=first.id)
    assert limiter.release("jobs", first.id) == 1
    assert limiter.peek_all({"jobs": Concurrency(1, 30)})
    assert limiter.take("jobs", *limits, holder="me")
    assert limiter.release("jobs", "me", "nobody") == 1


def test_key_is_banned_after_repeated_denials(limiter: Any) -> None:
    limit, ban = Fixed(1, "1m"), Ban(2, "10m", "1h")
    decisions = [limiter.take("login:eve", limit, ban=ban) for _ in range(4)]
    assert [one.allowed for one in decisions] == [True, False, False, False]
    assert decisions[-1].wait == 3600.0
    assert limiter.ban("login:eve", 0) == 0
    assert limiter.peek("login:eve", limit).wait == 60.0
    assert limiter.ban("login:eve", "2h") == 7_200_000


def test_repeated_bans_last_longer(limiter: Any, clock: Clock) -> None:
    ban = Ban(1, "10m", "1m", longest="1h")
    assert ban.words()[-2:] == ["MAX", "1h"]
    for seconds in (60.0, 120.0, 240.0):
        decisions = [limiter.take("login:eve", Fixed(1, "1s"), ban=ban) for _ in range(3)]
        assert [one.allowed for one in decisions] == [True, False, False]
        assert decisions[-1].wait == seconds
        clock.advance(f"{seconds:.0f}s")


def test_malformed_call_is_an_error_not_an_outage(make: Any) -> None:
    limiter = make(on_outage="open")
    with pytest.raises(CallError, match="refill must be enough"):
        limiter.take("key", TokenBucket(1_000_000, 1, "1d"))
    with pytest.raises(CallError, match="specs of one kind must have different windows"):
        limiter.take("key", Fixed(1, 60), Fixed(2, 60))
    with pytest.raises(ValueError, match="needs a limit"):
        limiter.take("key")
    with pytest.raises(ValueError, match="cost must be"):
        limiter.take("key", Fixed(1, 60), cost=-1)
    with pytest.raises(CallError, match="POLICY"):
        limiter.take("key", Policy("a"), Policy("b"))


def test_keys_and_ids_are_any_bytes(limiter: Any) -> None:
    limit = Fixed(5, 60)
    assert limiter.take(b"\xff\x00", limit, cost=3, once=b"\xfe").remaining == 2
    assert limiter.settle(b"\xff\x00", limit, id=b"\xfe", cost=1).remaining == 4
    assert limiter.take("schlüssel", limit).remaining == 4


def test_key_stays_plain_without_ids(make: Any, admin: redis.Redis) -> None:
    limit = TokenBucket(10, 1)
    make().take("with", limit)
    make().take("without", limit, once=False)
    make(once=False).take("never", limit)
    kinds = [admin.type(key) for key in ("with", "without", "never")]
    assert kinds == ["rl-limits", "rl-bucket", "rl-bucket"]


def test_generated_id_expires_soon(limiter: Any, admin: redis.Redis, clock: Clock) -> None:
    limiter.take("key", Fixed(5, "1d"))
    assert admin.execute_command("RL.INFO", "key")
    info = dict(zip(*[iter(admin.execute_command("RL.INFO", "key"))] * 2, strict=True))
    assert info["ids"] == 1
    # `make` has long timeouts: the ttl is that of two attempts, of twice ten seconds each.
    clock.advance("42s")
    limiter.take("key", Fixed(5, "1d"))
    info = dict(zip(*[iter(admin.execute_command("RL.INFO", "key"))] * 2, strict=True))
    assert info["ids"] == 1
