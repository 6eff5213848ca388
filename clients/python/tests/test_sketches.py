"""Sketches: one key for any number of items, and the key of a call is the item."""

from typing import Any

import pytest
import redis

from limiters import Make
from redis_ratelimit import Ban, Concurrency, Fixed, Limiter, Local, Policy, Sketch, TokenBucket
from redis_ratelimit.wsgi import RateLimitMiddleware

ADDRESSES = Sketch(3, 3, "1h", key="addresses")
MERGED = "a sketch cannot tell apart"


def test_each_item_has_its_own_limit(make: Make, admin: redis.Redis) -> None:
    limiter = make(prefix="app:")
    for address in ("203.0.113.7", b"\xff\x00\r\n", "203.0.113.9"):
        assert [limiter.take(address, ADDRESSES).remaining for _ in range(3)] == [2, 1, 0]
        assert not limiter.take(address, ADDRESSES)
    assert admin.keys() == ["app:addresses"]
    assert limiter.peek("203.0.113.8", ADDRESSES).remaining == 3
    assert limiter.take("203.0.113.8", ADDRESSES, cost=9, upto=True).granted == 3
    assert limiter.take("new", ADDRESSES, cost=2, keep=1, each=True).each[0].remaining == 0
    assert limiter.reset("addresses")
    assert limiter.peek("203.0.113.7", ADDRESSES).remaining == 3


def test_size_applies_when_the_key_is_created(make: Make, admin: redis.Redis) -> None:
    limiter = make()
    for key, size in {"small": "64kb", "large": 2**21}.items():
        limiter.take("item", Sketch(3, 3, "1h", key=key, size=size, cost=2, keep="10%"))
        info = admin.execute_command("RL.INFO", key)
        assert str(2**21 if key == "large" else 2**16) in str(info)


def test_sketch_in_take_all(make: Make, admin: redis.Redis) -> None:
    limiter = make()
    limits = {"203.0.113.7": ADDRESSES, "user:42": Fixed(5, "1h")}
    decision = limiter.take_all(limits, cost=2)
    assert [one.remaining for one in decision.each] == [1, 3]
    assert decision.id is None
    assert not limiter.peek_all(limits, cost=2)
    assert limiter.peek_all({**limits, "203.0.113.8": Fixed(9, "1h")}).allowed
    assert sorted(admin.keys()) == ["addresses", "user:42"]
    with pytest.raises(ValueError, match="each key once"):
        limiter.take_all({"one": ADDRESSES, "two": ADDRESSES})


def test_policy_that_is_a_sketch(make: Make, admin: redis.Redis) -> None:
    limiter = make()
    limiter.policies.set("per-address", Sketch(2, 2, "1h", size="64kb"))
    policy = Policy("per-address", key="addresses", cost=1)
    for address in ("203.0.113.7", "203.0.113.8"):
        assert [limiter.take(address, policy).allowed for _ in range(3)] == [True, True, False]
        assert limiter.take(address, policy).remembered
        assert limiter.peek(address, policy).remaining == 0
    assert limiter.take_all({"203.0.113.9": policy}, cost=2)
    assert admin.keys() == ["addresses"]
    # The key is ignored by other policies.
    limiter.policies.set("plain", Fixed(2, "1h"))
    assert limiter.take("user", Policy("plain", key="plain")).remaining == 1


def test_denial_is_remembered_for_the_item(make: Make, admin: redis.Redis) -> None:
    now = [1000.0]
    others = {client["id"] for client in admin.client_list()}
    limiter = make(clock=lambda: now[0])
    other = Sketch(3, 3, "1h", key="others")
    for _ in range(3):
        limiter.take("item", ADDRESSES)
    assert not limiter.take("item", ADDRESSES).remembered
    assert limiter.take("item", ADDRESSES).remembered
    assert limiter.take("another", ADDRESSES)
    assert limiter.take("item", other)
    # The key changes with each call for any item, so it is not tracked: a second at most.
    now[0] += 1
    assert not limiter.take("item", ADDRESSES).remembered
    own_clients = [client for client in admin.client_list() if client["id"] not in others]
    assert own_clients
    assert not [client for client in own_clients if "t" in client["flags"]]
    # A denial is never remembered longer than its wait.
    short = Sketch(1, 1, "900ms", key="short")
    limiter.take("item", short)
    assert not limiter.take("item", short)
    now[0] += 0.9
    assert not limiter.take("item", short).remembered


def test_unsupported_options_of_a_sketch_are_rejected(make: Make, admin: redis.Redis) -> None:
    limiter = make()
    limits = (ADDRESSES, Policy("per-address", key="addresses"))
    before = admin.info("stats")["total_commands_processed"]
    calls: list[Any] = [
        lambda limit: limiter.take("item", limit, once="id"),
        lambda limit: limiter.take("item", limit, once=True),
        lambda limit: limiter.take("item", limit, ttl="1m"),
        lambda limit: limiter.take("item", limit, ban=Ban(3, "1m", "1h")),
        lambda limit: limiter.take_all({"item": limit, "user": Fixed(5, "1h")}, once=True),
        lambda limit: limiter.take_all({"item": limit}, ttl="1m"),
        lambda limit: limiter.settle("item", limit, id="id", cost=1),
        lambda limit: limiter.give_back("item", limit),
        lambda limit: limiter.units("item", limit),
        lambda limit: limiter.limit(limit.algorithm, limit).reset("item"),
    ]
    for limit in limits:
        for call in calls:
            with pytest.raises(ValueError, match=MERGED):
                call(limit)
        with pytest.raises(ValueError, match="alone in its key"):
            limiter.take("item", limit, Fixed(5, "1h"))
        with pytest.raises(TypeError, match="a key must be"):
            limiter.take(None, limit)
    with pytest.raises(ValueError, match="needs its key"):
        limiter.take("item", Sketch(3, 3, "1h"))
    with pytest.raises(ValueError, match="has no name"):
        Sketch(3, 3, "1h", key="addresses", name="api")
    with pytest.raises(ValueError, match="comes with a call"):
        limiter.policies.set("per-address", ADDRESSES)
    with pytest.raises(TypeError, match="a key must be"):
        Policy("per-address", key=7)  # type: ignore[arg-type]
    assert admin.info("stats")["total_commands_processed"] == before + 1


def test_sketch_charge_of_several_units_has_no_id(make: Make) -> None:
    limiter = make()
    for decision in (
        limiter.take("item", ADDRESSES, cost=2),
        limiter.take_all({"other": ADDRESSES, "user": TokenBucket(9, 9)}, cost=2),
    ):
        assert decision
        with pytest.raises(ValueError, match="cannot be settled"):
            decision.settle(1)
    # A lease needs the name of its holder.
    with pytest.raises(ValueError, match="needs a holder"):
        limiter.take_all({"item": ADDRESSES, "pool": Concurrency(1, "1m")})


def test_bound_sketch_and_middleware(url: str, admin: redis.Redis) -> None:
    with Limiter.from_url(url, timeout=10) as limiter:
        api = limiter.limit("api", ADDRESSES)
        assert api.take("you").remaining == 2
        assert limiter.peek("api:you", ADDRESSES).remaining == 2

        @api(key=lambda caller: caller)
        def served(caller: str) -> str:
            return caller

        assert served("you") == "you"
        assert api.peek("you").remaining == 1
        responses: list[Any] = []
        for limit, gate in {"api": api, "default": ADDRESSES}.items():
            app = RateLimitMiddleware(lambda *_: [b"served"], limiter=limiter, limit=gate)
            for _ in range(4):
                environ = {"REMOTE_ADDR": f"203.0.113.{len(limit)}"}
                body = app(environ, lambda status, fields: responses.append((status, dict(fields))))
                is_served = body == [b"served"]
            assert not is_served
            status, fields = responses[-1]
            assert status.startswith("429")
            assert fields["RateLimit-Policy"] == f'"{limit}";q=3;w=3600'
        assert admin.keys() == ["addresses"]


def test_local_limit_counts_each_item_separately(make: Make) -> None:
    local = Local(otherwise=Fixed(1, "1h"))
    limiter = make("redis://127.0.0.1:1", on_outage=local)
    for limit in (ADDRESSES, Sketch(3, 3, "1h", key="others")):
        for item in ("a", b"b"):
            assert [limiter.take(item, limit).allowed for _ in range(4)] == [True] * 3 + [False]
    policy = Policy("per-address", key="addresses")
    for item in ("c", "d"):
        assert [limiter.take(item, policy).allowed for _ in range(2)] == [True, False]
    assert limiter.take_all({"e": ADDRESSES}).source == "local"
