"""Denials that the gateway remembers, and changes that end them.

A denial ends by itself within a second. Tests of an earlier end therefore count the requests that
the gateway denied by itself: with tracking, only those before the server's message arrives.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from redis import Redis
from running import OVER, Gateway, descriptor

from support import poll
from support.binaries import Binary
from support.clock import Clock
from support.server import Server

Policy = Callable[..., int]
Start = Callable[..., Gateway]
KEY = "rl:api|user=1"
USER = partial(descriptor, user="1")
# Maximum number of requests that are denied before a message of the server arrives. Until a denial
# ends by itself, hundreds would be denied.
MAX_LATE_DENIALS = 50


@pytest.fixture(autouse=True)
def reset_calls(redis: Redis) -> None:
    redis.config_resetstat()


def calls(redis: Redis, name: str = "rl.limit") -> int:
    return redis.info("commandstats").get(f"cmdstat_{name}", {"calls": 0})["calls"]


def denied_locally(gateway: Gateway) -> int:
    return int(gateway.metric("ratelimit_gateway_decisions_total", outcome="denied_local"))


def deny_until_remembered(gateway: Gateway, *descriptors: object) -> None:
    """Send denied requests until the gateway answers one."""
    before = denied_locally(gateway)

    def is_remembered() -> bool:
        assert not gateway.passes(*(descriptors or (USER(),)))
        return denied_locally(gateway) > before

    poll.until(is_remembered, "the denial is remembered")


def denials_until_a_request_passes(gateway: Gateway) -> int:
    """Return the number of requests that the gateway denied before one passed."""
    before = denied_locally(gateway)
    poll.until(lambda: gateway.passes(USER()), "the request passes")
    return denied_locally(gateway) - before


def test_denied_flood_makes_a_few_calls_a_second(
    gateway: Gateway, policy: Policy, redis: Redis
) -> None:
    policy("api", "FIXED 1 1d")
    assert gateway.passes(USER())
    before, started, threads = calls(redis), time.monotonic(), 4
    with ThreadPoolExecutor(threads) as pool:
        passed = list(pool.map(lambda _: gateway.passes(USER()), range(5_000)))
    seconds = 1 + time.monotonic() - started
    assert not any(passed)
    sent = calls(redis) - before
    assert sent + denied_locally(gateway) == 5_000
    # Each second, one call of each thread may be in flight before the denial is remembered again.
    assert sent <= 10 * threads * seconds
    assert calls(redis, "rl.peek") <= 2 * seconds
    assert gateway.metric("ratelimit_gateway_units_total", outcome="denied_local") == 5_000 - sent


def test_remembered_denial_has_the_remaining_wait(gateway: Gateway, policy: Policy) -> None:
    policy("api", "FIXED 1 1h")
    assert gateway.passes(USER())
    decided = gateway.ask(USER())
    deny_until_remembered(gateway)
    remembered = gateway.ask(USER())
    assert remembered.overall_code == OVER
    assert remembered.statuses[0].current_limit == decided.statuses[0].current_limit
    assert remembered.statuses[0].limit_remaining == 0
    names = [[h.key for h in answer.response_headers_to_add] for answer in (decided, remembered)]
    assert names[0] == names[1]
    headers = {header.key: header.value for header in remembered.response_headers_to_add}
    assert 3500 < int(headers["Retry-After"]) <= 3600


def test_smaller_cost_is_sent(gateway: Gateway, policy: Policy) -> None:
    policy("api", "FIXED 10 1d")
    assert gateway.passes(USER(hits=6))
    deny_until_remembered(gateway, USER(hits=5))
    assert not gateway.passes(USER(hits=6))
    assert gateway.passes(USER(hits=4))


@pytest.mark.parametrize(
    "change",
    [
        ["RL.LIMIT", KEY, "api", "COST", "-1"],
        ["DEL", KEY],
        ["FLUSHALL"],
    ],
    ids=["give-back", "reset", "flush"],
)
def test_change_of_the_key_ends_the_denial_at_once(
    gateway: Gateway, policy: Policy, redis: Redis, change: list[str]
) -> None:
    policy("api", "FIXED 1 1d")
    assert gateway.passes(USER())
    deny_until_remembered(gateway)
    redis.execute_command(*change)
    assert denials_until_a_request_passes(gateway) <= MAX_LATE_DENIALS


def test_lifted_ban_ends_the_denial_at_once(gateway: Gateway, policy: Policy, redis: Redis) -> None:
    policy("api", "FIXED 10 1d")
    redis.execute_command("RL.BAN", KEY, "1h")
    deny_until_remembered(gateway)
    redis.execute_command("RL.BAN", KEY, "0s")
    assert denials_until_a_request_passes(gateway) <= MAX_LATE_DENIALS


def test_units_given_back_through_the_gateway_are_available_to_the_next_request(
    gateway: Gateway, policy: Policy
) -> None:
    policy("api", "FIXED 1 1d")
    assert gateway.passes(USER())
    for _ in range(5):
        deny_until_remembered(gateway)
        assert gateway.passes(USER(hits=1, negative=True))
        assert gateway.passes(USER())


def test_raised_policy_applies_once_the_denial_expires(gateway: Gateway, policy: Policy) -> None:
    policy("api", "FIXED 1 1d")
    assert gateway.passes(USER())
    deny_until_remembered(gateway)
    policy("api", "FIXED 5 1d")
    denials_until_a_request_passes(gateway)
    deny_until_remembered(gateway, USER(hits=5))
    policy("api|user", "FIXED 9 1d")
    poll.until(lambda: gateway.passes(USER(hits=5)), "a more specific policy applies")


def test_lost_tracking_connection_is_opened_again(
    gateway: Gateway, policy: Policy, redis: Redis
) -> None:
    policy("api", "FIXED 1 1d")
    assert gateway.passes(USER())

    def trackers() -> list[str]:
        return [client["id"] for client in redis.client_list() if "t" in client["flags"]]

    assert trackers() == []
    deny_until_remembered(gateway)
    (first,) = trackers()
    redis.client_kill_filter(_id=first)
    deny_until_remembered(gateway)
    poll.until(lambda: trackers() not in ([], [first]), "the connection is open again")
    redis.execute_command("DEL", KEY)
    assert denials_until_a_request_passes(gateway) <= MAX_LATE_DENIALS


def test_calls_with_an_id_are_sent(gateway: Gateway, policy: Policy, redis: Redis) -> None:
    policy("api", "FIXED 1 1d")
    assert gateway.passes(USER())
    deny_until_remembered(gateway)
    before = calls(redis)
    for number in range(5):
        assert not gateway.passes(USER(rl_id=str(number)))
    assert calls(redis) - before >= 5


def test_strikes_for_a_ban_are_sent(gateway: Gateway, policy: Policy, redis: Redis) -> None:
    policy("api", "FIXED 1 1d BAN 20 1d 1d")
    assert [gateway.passes(USER()) for _ in range(30)] == [True] + 29 * [False]
    assert calls(redis) >= 30
    assert denied_locally(gateway) == 0


@pytest.mark.parametrize("options", [["--shadow"], ["--remember-denials", "0"]])
def test_every_call_is_sent_in_shadow_mode_and_without_remembered_denials(
    server: Server, start: Start, policy: Policy, redis: Redis, options: list[str]
) -> None:
    gateway = start(server.port, *options)
    policy("api", "FIXED 1 1d")
    before = calls(redis)
    codes = [gateway.ask(USER()).statuses[0].code for _ in range(20)]
    assert codes[1:] == 19 * [OVER]
    assert calls(redis) - before >= 20
    assert (denied_locally(gateway), calls(redis, "rl.peek")) == (0, 0)


def test_rule_in_shadow_mode_is_sent(
    server: Server, start: Start, redis: Redis, file: Path
) -> None:
    rule = "{key: user, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}"
    file.write_text(f"domain: api\ndescriptors: [{rule}]\n")
    gateway = start(server.port, "--config", file)
    assert all(gateway.passes(USER()) for _ in range(20))
    assert calls(redis, "rl.take") == 20
    assert gateway.metric("ratelimit_gateway_decisions_total", outcome="shadow") == 19


def test_other_descriptors_are_decided_by_the_server(
    gateway: Gateway, policy: Policy, redis: Redis
) -> None:
    policy("api|user", "FIXED 1 1d")
    policy("api|tenant", "FIXED 100 1d")
    assert gateway.passes(USER())
    descriptors = USER(), descriptor(tenant="a")
    deny_until_remembered(gateway, *descriptors)
    before = [calls(redis), denied_locally(gateway)]
    answers = [gateway.ask(*descriptors) for _ in range(5)]
    assert denied_locally(gateway) > before[1]
    for answer in answers:
        assert answer.overall_code == OVER
        statuses = [(status.code.name, status.limit_remaining) for status in answer.statuses]
        assert statuses == [("OVER_LIMIT", 0), ("OK", 99)]

    def usage() -> int:
        peek = redis.execute_command("RL.PEEK", "rl:api|tenant=a", "POLICY", "api|tenant")
        return 100 - peek[2]

    poll.until(lambda: usage() == 0, "the charges of denied requests are rolled back")
    assert gateway.metric("ratelimit_gateway_unsettled_total") == 0


def test_rule_that_charges_always_is_over_until_its_window_ends(
    server: Server, start: Start, redis: Redis, file: Path
) -> None:
    file.write_text(
        "domain: api\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 10}}]\n"
    )
    gateway = start(server.port, "--config", file, "--metrics-format", "envoyproxy")
    assert [gateway.passes(USER(hits=hits)) for hits in (8, 5)] == [True, False]
    deny_until_remembered(gateway, USER(hits=5))
    assert not gateway.passes(USER(hits=1)), "the window is over for smaller costs, too"
    before, requests = calls(redis, "rl.take"), 500
    over = gateway.metric("ratelimit_service_rate_limit_over_limit")
    started = time.monotonic()
    assert not any(gateway.passes(USER(hits=1)) for _ in range(requests))
    sent = calls(redis, "rl.take") - before
    assert sent <= 10 * (1 + time.monotonic() - started)
    assert gateway.metric("ratelimit_service_rate_limit_over_limit") - over == requests
    assert calls(redis, "rl.peek") == 0
    assert gateway.passes(USER(hits=100, negative=True))
    assert gateway.passes(USER(hits=1))


def test_nothing_is_remembered_without_the_permission_for_tracking(
    server: Server, start: Start, policy: Policy, redis: Redis
) -> None:
    policy("api", "FIXED 1 1d")
    rights = ["+rl.limit", "+rl.policylist", "+rl.peek", "+info", "~rl:*"]
    redis.execute_command("ACL", "SETUSER", "gateway", "reset", "on", "nopass", *rights)
    gateway = start(
        server.port,
        "--server-user",
        "gateway",
        environment={"RATELIMIT_GATEWAY_SERVER_PASSWORD": "any"},
    )
    before = calls(redis)
    assert [gateway.passes(USER()) for _ in range(20)] == [True] + 19 * [False]
    assert calls(redis) - before >= 20
    assert denied_locally(gateway) == 0
    poll.until(lambda: "lacks a permission" in gateway.log_so_far(), "the log names the permission")
    gateway.end()
    assert gateway.log.count("lacks a permission") == 1
    assert "+client|tracking" in gateway.log


def test_denials_end_with_the_server(binary: Binary, clock: Clock, start: Start) -> None:
    with Server(binary, clock=clock) as server:
        gateway = start(server.port)
        with server.client() as redis:
            redis.execute_command("RL.POLICYSET", "api", "FIXED", 1, "1d")
        assert gateway.passes(USER())
        deny_until_remembered(gateway)
    poll.until(lambda: gateway.passes(USER()), "requests pass while the server is away")
    poll.until(lambda: gateway.metric("ratelimit_gateway_outage") == 1, "the server is away")
