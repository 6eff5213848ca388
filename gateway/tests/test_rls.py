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


def test_the_first_name_that_is_a_policy_rules(gateway: Gateway, policy: Policy) -> None:
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


def test_first_answers_after_a_policy_is_set_describe_it(
    gateway: Gateway, policy: Policy, clock: Clock
) -> None:
    def described(domain: str = "api") -> tuple[str, str]:
        answer = gateway.ask(descriptor(user="1"), domain=domain)
        (told,) = (
            header.value
            for header in answer.response_headers_to_add
            if header.key == "RateLimit-Policy"
        )
        return answer.statuses[0].current_limit.unit.name, told

    # Only the windows differ, which the decision does not show.
    windows = [("1s", "SECOND", 1), ("1m", "MINUTE", 60), ("1h", "HOUR", 3600)]
    for words, unit, seconds in windows * 3:
        clock.advance("1ms")
        policy("api|user", f"FIXED 100 {words}")
        assert described() == (unit, f'"default";q=100;w={seconds}')
    policy("n%2Aw[1]?|user", "FIXED 100 1m")
    assert described("n*w[1]?") == ("MINUTE", '"default";q=100;w=60')


def test_what_no_policy_is_for_passes_and_makes_no_key(gateway: Gateway, redis: Redis) -> None:
    answer = gateway.ask(descriptor(user="42"), domain="nobody")
    assert (answer.overall_code, answer.statuses[0].current_limit) == (OK, None)
    assert redis.keys("*") == []
    name = "ratelimit_gateway_decisions_total"
    assert gateway.metric(name, outcome="unmatched", domain="other") == 1


def test_a_limit_is_exact_and_the_answer_tells_of_it(
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
    headers = {one.key: one.value for one in answers[3].response_headers_to_add}
    assert headers["Retry-After"] == "60"
    assert headers["RateLimit"] == '"default";r=0;t=60'
    assert headers["RateLimit-Policy"].startswith('"default";q=3')
    clock.advance("60s")
    assert gateway.passes(descriptor(user="42"))


def test_a_changed_policy_holds_for_the_next_request(gateway: Gateway, policy: Policy) -> None:
    policy("api", "FIXED 1 1m")
    assert [gateway.passes(descriptor(user="1")) for _ in range(2)] == [True, False]
    policy("api", "FIXED 3 1m")
    assert [gateway.passes(descriptor(user="1")) for _ in range(3)] == [True, True, False]


def test_an_application_shares_the_key(gateway: Gateway, policy: Policy, redis: Redis) -> None:
    policy("api", "FIXED 3 1m")
    assert gateway.passes(descriptor(plan="gold", user="42"))
    assert redis.execute_command("RL.LIMIT", "rl:api|plan=gold|user=42", "api")[2] == 1


def test_a_denied_request_has_used_nothing(gateway: Gateway, policy: Policy, redis: Redis) -> None:
    policy("api|user", "FIXED 100 1d")
    policy("api|tenant", "FIXED 2 1d")
    both = descriptor(user="1"), descriptor(tenant="a")
    assert [gateway.passes(*both) for _ in range(5)] == [True, True, False, False, False]
    left = redis.execute_command("RL.PEEK", "rl:api|user=1", "POLICY", "api|user")
    assert left[2] == 98, "the denied requests gave back what they took"
    assert gateway.metric("ratelimit_gateway_unsettled_total") == 0


def test_charged_independently_where_that_is_wanted(
    server: object, start: Callable[..., Gateway], policy: Policy, redis: Redis
) -> None:
    gateway = start(server.port, "--charge", "independent")
    policy("api|user", "FIXED 100 1d")
    policy("api|tenant", "FIXED 2 1d")
    both = descriptor(user="1"), descriptor(tenant="a")
    assert [gateway.passes(*both) for _ in range(5)] == [True, True, False, False, False]
    assert redis.execute_command("RL.PEEK", "rl:api|user=1", "POLICY", "api|user")[2] == 95


def test_always_charges_past_the_limit(
    server: object, start: Callable[..., Gateway], policy: Policy
) -> None:
    gateway = start(server.port, "--charge", "always")
    policy("api|user", "FIXED 10 1d")
    policy("api|tenant", "FIXED 1 1d")

    def codes(user: str, *hits: int) -> list[object]:
        return [gateway.ask(descriptor(user=user, hits=one)).overall_code for one in hits]

    assert codes("1", 0, 12, 0) == [OK, OVER, OVER]
    assert codes("2", 8, 5, 1) == [OK, OVER, OVER]
    both = descriptor(user="3"), descriptor(tenant="a")
    assert [gateway.passes(*both) for _ in range(10)] == [True] + [False] * 9
    assert codes("3", 0, 1) == [OK, OVER], "each denied request has used one"


def test_settlement_without_an_id_is_charged_past_the_limit(
    gateway: Gateway, policy: Policy
) -> None:
    policy("llm", "FIXED 1000 1h")

    def settle(**how: object) -> int:
        answer = gateway.ask(descriptor(user="1", rl_settle="done", **how), domain="llm")
        assert answer.overall_code == OK, "it stops nobody"
        return answer.statuses[0].limit_remaining

    assert [settle(), settle(hits=900), settle(), settle(hits=900)] == [1000, 100, 100, 0]
    assert not gateway.passes(descriptor(user="1", hits=0), domain="llm"), "800 too much"


def test_parallel_requests_use_no_more_than_the_limit(gateway: Gateway, policy: Policy) -> None:
    policy("api|user", "FIXED 1000 1d")
    policy("api|tenant", "FIXED 40 1d")
    both = descriptor(user="1"), descriptor(tenant="a")
    with ThreadPoolExecutor(8) as threads:
        passed = list(threads.map(lambda _: gateway.passes(*both), range(200)))
    assert passed.count(True) == 40


@pytest.mark.parametrize("limit", [1, 100])
def test_id_that_clients_send_twice_at_once_counts_once(
    gateway: Gateway, policy: Policy, limit: int
) -> None:
    policy("api|user", f"FIXED {limit} 1d")
    policy("api|tenant", f"FIXED {limit} 1d")
    parts = descriptor(user="1", rl_id="a"), descriptor(tenant="b", rl_id="a")
    with ThreadPoolExecutor(8) as callers:
        passed = list(callers.map(lambda _: gateway.passes(*parts), range(40)))
    assert passed == [True] * 40
    looked = gateway.ask(descriptor(user="1", hits=0), descriptor(tenant="b", hits=0))
    assert [status.limit_remaining for status in looked.statuses] == [limit - 1] * 2


def test_id_seen_again_beside_a_limit_that_denies_forgives_its_first_charge(
    gateway: Gateway, policy: Policy
) -> None:
    # docs/gateway.md says so: no reply tells a repeated call from a first one.
    policy("api|user", "FIXED 10 1d")
    policy("api|path", "FIXED 1 1d")
    assert gateway.passes(descriptor(path="/"))
    user = descriptor(user="1", rl_id="x")
    assert gateway.passes(user)
    assert not gateway.passes(user, descriptor(path="/", rl_id="x"))
    assert gateway.ask(descriptor(user="1", hits=0)).statuses[0].limit_remaining == 10


def test_what_envoy_sends_again_counts_once(gateway: Gateway, policy: Policy, clock: Clock) -> None:
    policy("api", "FIXED 2 1d")
    asked = [descriptor(user="1", rl_id=request) for request in ("a", "a", "a", "b", "b", "c")]
    assert [gateway.passes(one) for one in asked] == [True] * 5 + [False]
    clock.advance("6m")
    assert not gateway.passes(asked[0]), "the id is forgotten after five minutes"


def test_the_same_key_twice_in_a_request_counts_twice(gateway: Gateway, policy: Policy) -> None:
    policy("api", "FIXED 4 1d")
    twice = [descriptor(user="1", rl_id="a"), descriptor(user="1", rl_id="a")]
    assert gateway.ask(*twice).statuses[1].limit_remaining == 2


def test_hits_look_charge_and_give_back(gateway: Gateway, policy: Policy) -> None:
    policy("api", "FIXED 10 1d")

    def left(**how: object) -> int:
        return gateway.ask(descriptor(user="1", **how)).statuses[0].limit_remaining

    assert [left(hits=4), left(hits=0), left(hits=3, negative=True), left()] == [6, 6, 9, 8]
    assert gateway.ask(descriptor(user="1"), hits=5).statuses[0].limit_remaining == 3
    assert not gateway.passes(descriptor(user="1", hits=10**12 + 1))


def test_two_at_once_and_the_place_is_free_again(gateway: Gateway, policy: Policy) -> None:
    policy("api", "CONCURRENCY 2 1m")
    asked = [descriptor(user="1", rl_id=request) for request in "abcd"]
    assert [gateway.passes(one) for one in asked] == [True, True, False, False]
    denied = descriptor(user="1", rl_id="c", negative=True, hits=1)
    assert gateway.passes(denied)
    assert not gateway.passes(asked[3]), "what was denied frees nothing"
    assert gateway.passes(descriptor(user="1", rl_id="a", negative=True, hits=1))
    assert [gateway.passes(asked[3]), gateway.passes(asked[2])] == [True, False]


def test_a_place_lapses_when_nobody_frees_it(
    gateway: Gateway, policy: Policy, clock: Clock
) -> None:
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
    assert gateway.passes(settled, domain="llm"), "sent again it changes nothing"
    looked = gateway.ask(descriptor(user="1", hits=0), domain="llm")
    assert looked.statuses[0].limit_remaining == 10_000 - 1200 - 4000
    unknown = descriptor(user="1", rl_id="z", rl_settle="1", hits=9000)
    assert gateway.passes(unknown, domain="llm")
    assert reserve("c")


def test_a_settlement_of_what_was_denied_changes_nothing(gateway: Gateway, policy: Policy) -> None:
    """Envoy sends it at the end of each stream, also of one that was denied."""
    policy("llm|user", "TOKENBUCKET 10000 10000 1h")
    policy("llm|tenant", "FIXED 1 1d")

    def reserve(request: str) -> bool:
        user = descriptor(user="1", rl_id=request, hits=4000)
        return gateway.passes(user, descriptor(tenant="a", rl_id=request), domain="llm")

    assert [reserve("a"), reserve("b")] == [True, False]
    settled = descriptor(user="1", rl_id="b", rl_settle="1", hits=9000)
    assert gateway.passes(settled, domain="llm")
    looked = gateway.ask(descriptor(user="1", hits=0), domain="llm")
    assert looked.statuses[0].limit_remaining == 6000


def test_what_is_too_much_or_only_looks_denies_and_nothing_is_used(
    gateway: Gateway, policy: Policy
) -> None:
    policy("api|user", "FIXED 10 1d")
    policy("api|banned", "FIXED 1 1d BAN 1 1h 1h")
    assert [gateway.passes(descriptor(banned="1")) for _ in range(2)] == [True, False]
    for denying in (descriptor(user="2", hits=10**12 + 1), descriptor(banned="1", hits=0)):
        assert not gateway.passes(descriptor(user="1"), denying)
    assert gateway.ask(descriptor(user="1", hits=0)).statuses[0].limit_remaining == 10


@pytest.mark.parametrize("most", [100, pytest.param(100_000, marks=pytest.mark.long)])
def test_a_key_full_of_ids_is_charged_without(
    binary: Binary, clock: Clock, start: Callable[..., Gateway], most: int
) -> None:
    with Server(binary, clock=clock, module_args=f"max-ids {most}") as server:
        client = server.client()
        client.execute_command("RL.POLICYSET", "api", "FIXED", 10**6, "1d")
        client.execute_command("RL.POLICYSET", "api|tenant", "FIXED", 1, "1d")
        filling = client.pipeline(transaction=False)
        for number in range(most):
            words = ["RL.LIMIT", "rl:api|user=1", "api", "ONCE", number, "1h"]
            filling.execute_command(*words)
        filling.execute()
        gateway = start(server.port)

        def used(**more: object) -> int:
            answer = gateway.ask(descriptor(user="1", **more)).statuses[0]
            return 10**6 - answer.limit_remaining - most

        assert [used(rl_id="new"), used(rl_id="new")] == [1, 2], "it is not remembered"
        assert used(rl_id="0") == 2, "one that is remembered still counts once"
        requests = [
            (descriptor(user="1", rl_id=request), descriptor(tenant="a", rl_id=request))
            for request in ("a", "b")
        ]
        assert [gateway.passes(*parts) for parts in requests] == [True, False]
        assert used(hits=0) == 3, "what was denied is given back"
        assert gateway.metric("ratelimit_gateway_decisions_total", outcome="error") == 0
        assert gateway.metric("ratelimit_gateway_unsettled_total") == 0


def test_an_override_of_the_descriptor_wins(gateway: Gateway, policy: Policy) -> None:
    policy("api", "FIXED 100 1d")
    asked = descriptor(user="1", limit=MINUTE)
    assert [gateway.passes(asked) for _ in range(2)] == [True, False]


def test_a_hold_passes_since_envoy_cannot_be_told(gateway: Gateway, policy: Policy) -> None:
    policy("api", "LEAKYBUCKET 3 1 1s")
    answers = [gateway.ask(descriptor(user="1")) for _ in range(6)]
    codes = [answer.overall_code for answer in answers]
    assert codes == [OK] * codes.count(OK) + [OVER] * codes.count(OVER)
    assert codes.count(OK) >= 3, "what would be held passes at once"
    assert codes.count(OVER) >= 1


def test_numbers_are_at_most_what_the_answer_holds(gateway: Gateway, policy: Policy) -> None:
    policy("api", f"FIXED {10**12} 1d")
    status = gateway.ask(descriptor(user="1")).statuses[0]
    assert status.limit_remaining == status.current_limit.requests_per_unit == 2**32 - 1


def test_a_domain_has_a_label_once_a_policy_has_ruled_in_it(
    gateway: Gateway, policy: Policy
) -> None:
    policy("api|user", "FIXED 100 1d")

    def counted(**labels: str) -> float:
        return gateway.metric("ratelimit_gateway_decisions_total", **labels)

    for domain in ("made-up", "api"):
        gateway.ask(descriptor(user="1", limit=MINUTE), domain=domain)
        gateway.ask(descriptor(other="1"), domain=domain)
    assert (counted(domain="other"), counted()) == (4, 4), "a limit of the caller makes no label"
    gateway.ask(descriptor(user="1"))
    gateway.ask(descriptor(other="1"))
    assert counted(domain="api", policy="api|user", outcome="allowed") == 1
    assert counted(domain="api", outcome="unmatched") == 1
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

    counted = [units(outcome) for outcome in ("allowed", "denied", "settled", "returned")]
    assert counted == [8, 5, 7, 2]


def test_metrics_have_help_and_times_an_outcome(gateway: Gateway, policy: Policy) -> None:
    policy("api", "FIXED 1 1d")
    assert [gateway.passes(descriptor(user="1")) for _ in range(2)] == [True, False]
    count = "ratelimit_gateway_request_seconds_count"
    assert [gateway.metric(count, outcome=one) for one in ("allowed", "denied")] == [1, 1]
    lines = gateway.get("/metrics").body.splitlines()
    named = {
        kind: {line.split()[2] for line in lines if line.startswith(f"# {kind} ")}
        for kind in ("HELP", "TYPE")
    }
    assert named["HELP"] == named["TYPE"] != set()


def test_a_shadowed_gateway_denies_nobody(
    server: object, start: Callable[..., Gateway], policy: Policy
) -> None:
    gateway = start(server.port, "--shadow")
    policy("api", "FIXED 1 1m")
    answers = [gateway.ask(descriptor(user="1")) for _ in range(2)]
    assert [answer.overall_code for answer in answers] == [OK, OK]
    assert [answer.statuses[0].code for answer in answers] == [OK, OVER]
    assert gateway.metric("ratelimit_gateway_decisions_total", outcome="shadow") == 1


@pytest.mark.parametrize(
    ("domain", "descriptors", "code"),
    [
        ("", 1, grpc.StatusCode.UNKNOWN),
        ("api", 0, grpc.StatusCode.UNKNOWN),
        ("api", 33, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_wrong_requests_are_refused(
    gateway: Gateway, domain: str, descriptors: int, code: grpc.StatusCode
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        gateway.ask(*[descriptor(user="1")] * descriptors, domain=domain)
    assert refused.value.code() == code


@pytest.mark.parametrize(
    "hostile", ["{tag}", "a|b=c", "*", "%", "\x00\x7f\n", "é" * 500, "x" * 60000]
)
def test_hostile_values_are_counted_each_for_itself(
    gateway: Gateway, policy: Policy, hostile: str
) -> None:
    policy("api", "FIXED 1 1m")
    assert [gateway.passes(descriptor(user=hostile)) for _ in range(2)] == [True, False]
    assert gateway.passes(descriptor(user=hostile + "."))


def test_a_request_that_is_too_large_is_refused(gateway: Gateway) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        gateway.ask(descriptor(user="x" * 300_000))
    assert refused.value.code() == grpc.StatusCode.OUT_OF_RANGE
    assert gateway.passes(descriptor(user="1"))
