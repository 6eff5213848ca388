"""Policies: named limits stored on the server."""

from typing import Any
from uuid import uuid4

import pytest
from support.clock import START_US, Clock

from redis_ratelimit import Ban, CallError, Concurrency, Fixed, NoPolicyError, Policy, TokenBucket
from redis_ratelimit.policies import PolicyLine, Scale


@pytest.fixture
def plan() -> str:
    """Unused name of a policy: the server keeps the version of a deleted policy for a day."""
    return f"plan:{uuid4().hex}"


def test_policy_applies_to_calls_by_its_name(limiter: Any, plan: str) -> None:
    assert limiter.policies.set(plan, TokenBucket(5, 5, "1m")) > 0
    assert limiter.take("user", Policy(plan)).remaining == 4
    assert limiter.policies.set(plan, TokenBucket(20, 20, "1m")) > 0
    assert limiter.take("user", Policy(plan)).remaining == 18
    assert limiter.peek("user", Policy(plan), cost=18)


def test_first_existing_policy_applies(limiter: Any) -> None:
    limiter.policies.set("plan:basic", Fixed(20, "1m", name="calls"))
    decision = limiter.take("user", Policy("user:52", "plan:basic"), each=True)
    assert decision.policy == "plan:basic"
    assert [one.name for one in decision.each] == ["calls"]


def test_missing_policy_raises_no_policy_error(limiter: Any) -> None:
    with pytest.raises(NoPolicyError, match="no policy 'plan:gold' or 'plan:silver'"):
        limiter.take("user", Policy("plan:gold", "plan:silver"))
    with pytest.raises(NoPolicyError):
        limiter.policies.scale("plan:gold", 0.5)


def test_one_policy_limits_requests_and_tokens(limiter: Any) -> None:
    limiter.policies.set(
        "llm",
        TokenBucket(60, 60, "1m", cost=1, name="requests"),
        TokenBucket(10_000, 10_000, "1m", name="tokens"),
        Concurrency(1, "30s"),
    )
    assert limiter.take("alice", Policy("llm"), cost=4000, once="req-17").remaining == 0
    assert limiter.take("alice", Policy("llm"), cost=4000, once="req-18").wait == 30.0
    limiter.settle("alice", Policy("llm"), id="req-17", cost=1200)
    decision = limiter.take("alice", Policy("llm"), cost=0, each=True)
    assert [one.remaining for one in decision.each] == [59, 8800, 1]


def test_policy_in_take_all(limiter: Any) -> None:
    limiter.policies.set("plan", Fixed(10, "1m"))
    limits = {"{a}:1": Policy("plan", cost=3), "{a}:2": Fixed(5, "1h")}
    assert [one.remaining for one in limiter.take_all(limits, cost=2).each] == [7, 3]


def test_shadow_limit_does_not_govern(limiter: Any) -> None:
    limiter.policies.set("login", Fixed(10, "1m"), Fixed(1, "1m", name="new", shadow=True))
    limiter.take("carol", Policy("login"))
    decision = limiter.take("carol", Policy("login"), each=True)
    assert (decision.allowed, decision.limit, decision.remaining) == (True, 10, 8)
    assert [one.allowed for one in decision.each] == [True, False]


def test_version_prevents_overwriting(limiter: Any, plan: str) -> None:
    policies = limiter.policies
    first = policies.set(plan, Fixed(50, "1m"), nx=True)
    assert policies.set(plan, Fixed(70, "1m"), nx=True) == first
    current = policies.set(plan, Fixed(60, "1m"), version=first)
    assert current > first
    with pytest.raises(CallError, match=f"has version {current}, not {first}"):
        policies.set(plan, Fixed(80, "1m"), version=first)
    with pytest.raises(NoPolicyError):
        policies.set("other", Fixed(80, "1m"), version=first)


def test_policy_state_and_list(limiter: Any, plan: str, clock: Clock) -> None:
    policies = limiter.policies
    version = policies.set(plan, Fixed(5, "1m", cost=1, name="calls"), ban=Ban(3, "1m", "1h"))
    second = policies.set(f"{plan}:b", Fixed(7, "1m", shadow=True))
    limiter.take("user", Policy(plan))
    assert policies.scale(plan, 0.5, "10m") == Scale(version, 0.5, 600_000)
    state = policies.get(plan)
    assert (state.version, state.set_at, state.scale) == (version, START_US // 1000, 0.5)
    assert state.specs == "FIXED 5 1m COST 1 AS calls BAN 3 1m 1h"
    assert state.counts["calls"] == state.counts["admitted"] == 1
    assert policies.get("missing") is None
    lines = policies.list(f"{plan}:*")
    assert lines == [PolicyLine(f"{plan}:b", second, "FIXED 7 1m SHADOW", 1.0, -1)]
    assert policies.list(plan)[0].scale == 0.5
    assert [line.name for line in policies.list()] == [plan, f"{plan}:b"]
    assert policies.multiply(plan, 0.5, every="1m", time="1h") == Scale(version, 0.25, 3_600_000)
    assert policies.multiply(plan, 0.5, every="1m", time="2h") == Scale(version, 0.25, 3_600_000)
    assert policies.multiply(plan, 0, least=0.1).factor == 0.1
    assert policies.add(plan, 0.5, every="1m").factor == 0.6
    assert policies.add(plan, 0.5, every="1m").factor == 0.6
    assert policies.add(plan, 5, most=3) == Scale(version, 3.0, 3_600_000)
    assert policies.delete(plan, "missing") == 1
    clock.advance("10m")
    assert policies.get(f"{plan}:b").scale_ms == -1


def test_delete_with_version_keeps_a_newer_policy(limiter: Any, plan: str) -> None:
    policies = limiter.policies
    first = policies.set(plan, Fixed(5, "1m"))
    second = policies.set(plan, Fixed(6, "1m"))
    with pytest.raises(CallError, match=f"has version {second}, not {first}"):
        policies.delete(plan, version=first)
    assert policies.get(plan).version == second
    assert policies.delete(plan, version=second) == 1
    assert policies.get(plan) is None
    for names in ((), (plan, "other")):
        with pytest.raises(ValueError, match="one by its name and version"):
            policies.delete(*names, version=second)
