"""Responses of Envoy's rate limit service under the policies of the server."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from envoy_data_plane.envoy.extensions.common.ratelimit import v3 as common
from envoy_data_plane.envoy.type import v3 as types
from redis import Redis
from running import OK, OVER, Gateway, descriptor

from support.binaries import Binary
from support.clock import Clock
from support.server import Server

Policy = Callable[..., int]
MINUTE = common.RateLimitDescriptorRateLimitOverride(
    requests_per_unit=1, unit=types.RateLimitUnit.MINUTE
)


def test_most_specific_policy_applies(gateway: Gateway, policy: Policy) -> None:
    policy("api", "FIXED 100 1m")
    policy("api|plan|user", "FIXED 50 1m")
    policy("api|plan=gold|user", "FIXED 10 1m")
    policy("api|plan=gold|user=42", "FIXED 3 1m")

    def limit(**entries: str) -> int:
        return gateway.ask(descriptor(**entries)).statuses[0].current_limit.requests_per_unit

    assert limit(plan="gold", user="42") == 3
    assert limit(plan="gold", user="7") == 10
    assert limit(plan="free", user="42") == 50
    assert limit(other="x") == 100


def test_first_answers_after_a_change_describe_the_new_policy(
    gateway: Gateway, policy: Policy, clock: Clock
) -> None:
    def unit_and_header(domain: str = "api") -> tuple[str, str]:
        answer = gateway.ask(descriptor(user="1"), domain=domain)
        (header_value,) = (
            header.value
            for header in answer.response_headers_to_add
            if header.key == "RateLimit-Policy"
        )
        return answer.statuses[0].current_limit.unit.name, header_value

    # Only the windows differ, which the decision does not show.
    windows = [("1s", "SECOND", 1), ("1m", "MINUTE", 60), ("1h", "HOUR", 3600)]
    for words, unit, seconds in windows * 3:
        clock.advance("1ms")
        policy("api|user", f"FIXED 100 {words}")
        assert unit_and_header() == (unit, f'"default";q=100;w={seconds}')
    policy("n%2Aw[1]?|user", "FIXED 100 1m")
    assert unit_and_header("n*w[1]?") == ("MINUTE", '"default";q=100;w=60')


def test_request_without_a_policy_passes_and_creates_no_key(gateway: Gateway, redis: Redis) -> None:
    answer = gateway.ask(descriptor(user="42"), domain="unknown")
    assert (answer.overall_code, answer.statuses[0].current_limit) == (OK, None)
    assert redis.keys("*") == []
    name = "ratelimit_gateway_decisions_total"
    assert gateway.metric(name, outcome="unmatched", domain="other") == 1


def test_limit_is_exact_and_described_in_the_response(
    gateway: Gateway, policy: Policy, clock: Clock
) -> None:
    policy("api", "FIXED 3 1m ALIGNED")
    clock.set(1_700_000_040_000_000)
    answers = [gateway.ask(descriptor(user="42")) for _ in range(4)]
    assert [answer.overall_code for answer in answers] == [OK, OK, OK, OVER]
    status = answers[3].statuses[0]
    assert (status.code, status.limit_remaining) == (OVER, 0)
    assert status.current_limit.requests_per_unit == 3
    assert status.current_limit.name == ""
    assert status.duration_until_reset.total_seconds() == 60
    headers = {header.key: header.value for header in answers[3].response_headers_to_add}
    assert headers["Retry-After"] == "60"
    assert headers["RateLimit"] == '"default";r=0;t=60'
    assert headers["RateLimit-Policy"].startswith('"default";q=3')
    clock.advance("60s")
    assert gateway.passes(descriptor(user="42"))


def test_changed_policy_applies_to_the_next_request(gateway: Gateway, policy: Policy) -> None:
    policy("api", "FIXED 1 1m")
    assert [gateway.passes(descriptor(user="1")) for _ in range(2)] == [True, False]
    policy("api", "FIXED 3 1m")
    assert [gateway.passes(descriptor(user="1")) for _ in range(3)] == [True, True, False]


def test_gateway_and_application_share_a_key(
    gateway: Gateway, policy: Policy, redis: Redis
) -> None:
    policy("api", "FIXED 3 1m")
    assert gateway.passes(descriptor(plan="gold", user="42"))
    assert redis.execute_command("RL.LIMIT", "rl:api|plan=gold|user=42", "api")[2] == 1


def test_denied_request_leaves_usage_unchanged(
    gateway: Gateway, policy: Policy, redis: Redis
) -> None:
    policy("api|user", "FIXED 100 1d")
    policy("api|tenant", "FIXED 2 1d")
    descriptors = descriptor(user="1"), descriptor(tenant="a")
    assert [gateway.passes(*descriptors) for _ in range(5)] == [True, True, False, False, False]
    peek = redis.execute_command("RL.PEEK", "rl:api|user=1", "POLICY", "api|user")
    assert peek[2] == 98, "denied requests are refunded"
    assert gateway.metric("ratelimit_gateway_unsettled_total") == 0


def test_independent_charge_keeps_charges_of_denied_requests(
    server: object, start: Callable[..., Gateway], policy: Policy, redis: Redis
) -> None:
    gateway = start(server.port, "--charge", "independent")
    policy("api|user", "FIXED 100 1d")
    policy("api|tenant", "FIXED 2 1d")
    descriptors = descriptor(user="1"), descriptor(tenant="a")
    assert [gateway.passes(*descriptors) for _ in range(5)] == [True, True, False, False, False]
    assert redis.execute_command("RL.PEEK", "rl:api|user=1", "POLICY", "api|user")[2] == 95


def test_charge_always_charges_denied_requests(
    server: object, start: Callable[..., Gateway], policy: Policy
) -> None:
    gateway = start(server.port, "--charge", "always")
    policy("api|user", "FIXED 10 1d")
    policy("api|tenant", "FIXED 1 1d")

    def codes(user: str, *hits: int) -> list[object]:
        return [gateway.ask(descriptor(user=user, hits=count)).overall_code for count in hits]

    assert codes("1", 0, 12, 0) == [OK, OVER, OVER]
    assert codes("2", 8, 5, 1) == [OK, OVER, OVER]
    descriptors = descriptor(user="3"), descriptor(tenant="a")
    assert [gateway.passes(*descriptors) for _ in range(10)] == [True] + [False] * 9
    assert codes("3", 0, 1) == [OK, OVER], "each denied request is charged"


def test_settlement_without_an_id_is_charged_past_the_limit(
    gateway: Gateway, policy: Policy
) -> None:
    policy("llm", "FIXED 1000 1h")

    def settle(**fields: object) -> int:
        answer = gateway.ask(descriptor(user="1", rl_settle="done", **fields), domain="llm")
        assert answer.overall_code == OK, "a settlement is never denied"
        return answer.statuses[0].limit_remaining

    assert [settle(), settle(hits=900), settle(), settle(hits=900)] == [1000, 100, 100, 0]
    assert not gateway.passes(descriptor(user="1", hits=0), domain="llm"), "800 above the limit"


def test_parallel_requests_use_no_more_than_the_limit(gateway: Gateway, policy: Policy) -> None:
    policy("api|user", "FIXED 1000 1d")
    policy("api|tenant", "FIXED 40 1d")
    descriptors = descriptor(user="1"), descriptor(tenant="a")
    with ThreadPoolExecutor(8) as threads:
        passed = list(threads.map(lambda _: gateway.passes(*descriptors), range(200)))
    assert passed.count(True) == 40


@pytest.mark.parametrize("limit", [1, 100])
def test_concurrent_calls_with_one_id_count_once(
    gateway: Gateway, policy: Policy, limit: int
) -> None:
    policy("api|user", f"FIXED {limit} 1d")
    policy("api|tenant", f"FIXED {limit} 1d")
    parts = descriptor(user="1", rl_id="a"), descriptor(tenant="b", rl_id="a")
    with ThreadPoolExecutor(8) as callers:
        passed = list(callers.map(lambda _: gateway.passes(*parts), range(40)))
    assert passed == [True] * 40
    peek = gateway.ask(descriptor(user="1", hits=0), descriptor(tenant="b", hits=0))
    assert [status.limit_remaining for status in peek.statuses] == [limit - 1] * 2


def test_denied_repetition_of_an_id_refunds_its_first_charge(
    gateway: Gateway, policy: Policy
) -> None:
    # As docs/gateway.md documents: a reply does not show whether its call was a repetition.
    policy("api|user", "FIXED 10 1d")
    policy("api|path", "FIXED 1 1d")
    assert gateway.passes(descriptor(path="/"))
    user = descriptor(user="1", rl_id="x")
    assert gateway.passes(user)
    assert not gateway.passes(user, descriptor(path="/", rl_id="x"))
    assert gateway.ask(descriptor(user="1", hits=0)).statuses[0].limit_remaining == 10


def test_retried_request_counts_once(gateway: Gateway, policy: Policy, clock: Clock) -> None:
    policy("api", "FIXED 2 1d")
    requests = [descriptor(user="1", rl_id=request) for request in ("a", "a", "a", "b", "b", "c")]
    assert [gateway.passes(request) for request in requests] == [True] * 5 + [False]
    clock.advance("6m")
    assert not gateway.passes(requests[0]), "the id is forgotten after five minutes"


def test_repeated_key_in_a_request_counts_twice(gateway: Gateway, policy: Policy) -> None:
    policy("api", "FIXED 4 1d")
    twice = [descriptor(user="1", rl_id="a"), descriptor(user="1", rl_id="a")]
    assert gateway.ask(*twice).statuses[1].limit_remaining == 2


def test_hits_peek_charge_and_refund(gateway: Gateway, policy: Policy) -> None:
    policy("api", "FIXED 10 1d")

    def remaining(**fields: object) -> int:
        return gateway.ask(descriptor(user="1", **fields)).statuses[0].limit_remaining

    assert [remaining(hits=4), remaining(hits=0)] == [6, 6]
    assert [remaining(hits=3, negative=True), remaining()] == [9, 8]
    assert gateway.ask(descriptor(user="1"), hits=5).statuses[0].limit_remaining == 3
    assert not gateway.passes(descriptor(user="1", hits=10**12 + 1))


def test_released_lease_can_be_taken_again(gateway: Gateway, policy: Policy) -> None:
    policy("api", "CONCURRENCY 2 1m")
    requests = [descriptor(user="1", rl_id=request) for request in "abcd"]
    assert [gateway.passes(request) for request in requests] == [True, True, False, False]
    denied = descriptor(user="1", rl_id="c", negative=True, hits=1)
    assert gateway.passes(denied)
    assert not gateway.passes(requests[3]), "releasing a denied request frees nothing"
    assert gateway.passes(descriptor(user="1", rl_id="a", negative=True, hits=1))
    assert [gateway.passes(requests[3]), gateway.passes(requests[2])] == [True, False]


def test_lease_expires_without_release(gateway: Gateway, policy: Policy, clock: Clock) -> None:
    policy("api", "CONCURRENCY 1 1m")
    assert gateway.passes(descriptor(user="1", rl_id="a"))
    clock.advance("59s")
    assert not gateway.passes(descriptor(user="1", rl_id="b"))
    clock.advance("1s")
    assert gateway.passes(descriptor(user="1", rl_id="b"))


def test_tokens_are_reserved_and_settled(gateway: Gateway, policy: Policy) -> None:
    policy("llm", "TOKENBUCKET 10000 10000 1h")

    def reserve(request: str) -> bool:
        return gateway.passes(descriptor(user="1", rl_id=request, hits=4000), domain="llm")

    assert [reserve("a"), reserve("b"), reserve("c")] == [True, True, False]
    settled = descriptor(user="1", rl_id="a", rl_settle="1", hits=1200)
    assert gateway.passes(settled, domain="llm")
    assert gateway.passes(settled, domain="llm"), "a repetition changes nothing"
    peek = gateway.ask(descriptor(user="1", hits=0), domain="llm")
    assert peek.statuses[0].limit_remaining == 10_000 - 1200 - 4000
    unknown = descriptor(user="1", rl_id="z", rl_settle="1", hits=9000)
    assert gateway.passes(unknown, domain="llm")
    assert reserve("c")


def test_settlement_of_a_denied_request_changes_nothing(gateway: Gateway, policy: Policy) -> None:
    """Envoy settles at the end of every stream, including denied ones."""
    policy("llm|user", "TOKENBUCKET 10000 10000 1h")
    policy("llm|tenant", "FIXED 1 1d")

    def reserve(request: str) -> bool:
        user = descriptor(user="1", rl_id=request, hits=4000)
        return gateway.passes(user, descriptor(tenant="a", rl_id=request), domain="llm")

    assert [reserve("a"), reserve("b")] == [True, False]
    settled = descriptor(user="1", rl_id="b", rl_settle="1", hits=9000)
    assert gateway.passes(settled, domain="llm")
    peek = gateway.ask(descriptor(user="1", hits=0), domain="llm")
    assert peek.statuses[0].limit_remaining == 6000


def test_denied_peek_or_excessive_cost_charges_nothing(gateway: Gateway, policy: Policy) -> None:
    policy("api|user", "FIXED 10 1d")
    policy("api|banned", "FIXED 1 1d BAN 1 1h 1h")
    assert [gateway.passes(descriptor(banned="1")) for _ in range(2)] == [True, False]
    for denied in (descriptor(user="2", hits=10**12 + 1), descriptor(banned="1", hits=0)):
        assert not gateway.passes(descriptor(user="1"), denied)
    assert gateway.ask(descriptor(user="1", hits=0)).statuses[0].limit_remaining == 10


@pytest.mark.parametrize("max_ids", [100, pytest.param(100_000, marks=pytest.mark.long)])
def test_key_full_of_ids_is_charged_without_an_id(
    binary: Binary, clock: Clock, start: Callable[..., Gateway], max_ids: int
) -> None:
    with Server(binary, clock=clock, module_args=f"max-ids {max_ids}") as server:
        client = server.client()
        client.execute_command("RL.POLICYSET", "api", "FIXED", 10**6, "1d")
        client.execute_command("RL.POLICYSET", "api|tenant", "FIXED", 1, "1d")
        pipeline = client.pipeline(transaction=False)
        for number in range(max_ids):
            words = ["RL.LIMIT", "rl:api|user=1", "api", "ONCE", number, "1h"]
            pipeline.execute_command(*words)
        pipeline.execute()
        gateway = start(server.port)

        def usage(**fields: object) -> int:
            answer = gateway.ask(descriptor(user="1", **fields)).statuses[0]
            return 10**6 - answer.limit_remaining - max_ids

        assert [usage(rl_id="new"), usage(rl_id="new")] == [1, 2], "the new id is not remembered"
        assert usage(rl_id="0") == 2, "a remembered id still counts once"
        requests = [
            (descriptor(user="1", rl_id=request), descriptor(tenant="a", rl_id=request))
            for request in ("a", "b")
        ]
        assert [gateway.passes(*parts) for parts in requests] == [True, False]
        assert usage(hits=0) == 3, "the denied request is refunded"
        assert gateway.metric("ratelimit_gateway_decisions_total", outcome="error") == 0
        assert gateway.metric("ratelimit_gateway_unsettled_total") == 0


def test_limit_of_the_descriptor_overrides_the_policy(gateway: Gateway, policy: Policy) -> None:
    policy("api", "FIXED 100 1d")
    request = descriptor(user="1", limit=MINUTE)
    assert [gateway.passes(request) for _ in range(2)] == [True, False]


def test_held_request_passes_at_once(gateway: Gateway, policy: Policy) -> None:
    policy("api", "LEAKYBUCKET 3 1 1s")
    answers = [gateway.ask(descriptor(user="1")) for _ in range(6)]
    codes = [answer.overall_code for answer in answers]
    assert codes == [OK] * codes.count(OK) + [OVER] * codes.count(OVER)
    assert codes.count(OK) >= 3, "requests that would be held pass at once"
    assert codes.count(OVER) >= 1


def test_numbers_saturate_at_the_maximum_of_the_response(gateway: Gateway, policy: Policy) -> None:
    policy("api", f"FIXED {10**12} 1d")
    status = gateway.ask(descriptor(user="1")).statuses[0]
    assert status.limit_remaining == status.current_limit.requests_per_unit == 2**32 - 1


def test_domain_becomes_a_label_once_its_policy_decides(gateway: Gateway, policy: Policy) -> None:
    policy("api|user", "FIXED 100 1d")

    def decisions(**labels: str) -> float:
        return gateway.metric("ratelimit_gateway_decisions_total", **labels)

    for domain in ("made-up", "api"):
        gateway.ask(descriptor(user="1", limit=MINUTE), domain=domain)
        gateway.ask(descriptor(other="1"), domain=domain)
    assert (decisions(domain="other"), decisions()) == (4, 4), "an override creates no label"
    gateway.ask(descriptor(user="1"))
    gateway.ask(descriptor(other="1"))
    assert decisions(domain="api", policy="api|user", outcome="allowed") == 1
    assert decisions(domain="api", outcome="unmatched") == 1
    assert "made-up" not in gateway.get("/metrics").body


def test_units_are_counted_by_outcome(gateway: Gateway, policy: Policy) -> None:
    policy("api", "FIXED 10 1d")
    requests = [
        {"hits": 8, "rl_id": "a"},
        {"hits": 5},
        {"hits": 0},
        {"hits": 3, "rl_id": "a", "rl_settle": "1"},
        {"hits": 4, "rl_settle": "1"},
        {"hits": 2, "negative": True},
    ]
    for request in requests:
        gateway.ask(descriptor(user="1", **request))

    def units(outcome: str) -> float:
        name = "ratelimit_gateway_units_total"
        return gateway.metric(name, domain="api", policy="api", outcome=outcome)

    outcomes = ("allowed", "denied", "settled", "returned")
    assert [units(outcome) for outcome in outcomes] == [8, 5, 7, 2]


def test_metrics_have_help_and_durations_by_outcome(gateway: Gateway, policy: Policy) -> None:
    policy("api", "FIXED 1 1d")
    assert [gateway.passes(descriptor(user="1")) for _ in range(2)] == [True, False]
    count = "ratelimit_gateway_request_seconds_count"
    assert [gateway.metric(count, outcome=outcome) for outcome in ("allowed", "denied")] == [1, 1]
    lines = gateway.get("/metrics").body.splitlines()
    names = {
        kind: {line.split()[2] for line in lines if line.startswith(f"# {kind} ")}
        for kind in ("HELP", "TYPE")
    }
    assert names["HELP"] == names["TYPE"] != set()


def test_shadow_mode_denies_nothing(
    server: object, start: Callable[..., Gateway], policy: Policy
) -> None:
    gateway = start(server.port, "--shadow")
    policy("api", "FIXED 1 1m")
    answers = [gateway.ask(descriptor(user="1")) for _ in range(2)]
    assert [answer.overall_code for answer in answers] == [OK, OK]
    assert [answer.statuses[0].code for answer in answers] == [OK, OVER]
    assert gateway.metric("ratelimit_gateway_decisions_total", outcome="shadow") == 1
    assert gateway.metric("ratelimit_gateway_shadow") == 1


@pytest.mark.parametrize(
    ("domain", "descriptors", "code"),
    [
        ("", 1, grpc.StatusCode.UNKNOWN),
        ("api", 0, grpc.StatusCode.UNKNOWN),
        ("api", 257, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_invalid_request_is_refused(
    gateway: Gateway, domain: str, descriptors: int, code: grpc.StatusCode
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        gateway.ask(*[descriptor(user="1")] * descriptors, domain=domain)
    assert refused.value.code() == code


@pytest.mark.parametrize(
    "hostile", ["{tag}", "a|b=c", "*", "%", "\x00\x7f\n", "é" * 500, "x" * 60000]
)
def test_unusual_values_are_counted_separately(
    gateway: Gateway, policy: Policy, hostile: str
) -> None:
    policy("api", "FIXED 1 1m")
    assert [gateway.passes(descriptor(user=hostile)) for _ in range(2)] == [True, False]
    assert gateway.passes(descriptor(user=hostile + "."))


def test_oversized_request_is_refused(gateway: Gateway) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        gateway.ask(descriptor(user="x" * 300_000))
    assert refused.value.code() == grpc.StatusCode.OUT_OF_RANGE
    assert gateway.passes(descriptor(user="1"))
