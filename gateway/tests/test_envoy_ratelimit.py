"""The integration tests of envoyproxy/ratelimit, as requests through an unmodified Envoy."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from origin import Origin
from proxies import Proxy, envoy_kind
from running import Ratelimit

from support import poll
from support.clock import Clock
from support.server import Server

LIMITS = """
domain: rl
descriptors:
  - key: category
    value: account
    rate_limit: {unit: minute, requests_per_unit: 4, replaces: [{name: single}, {name: double}]}
  - key: from
    value: proxy
    descriptors:
      - key: to
        value: once
        rate_limit: {unit: minute, requests_per_unit: 2, replaces: [{name: single}]}
      - {key: to, value: other, rate_limit: {unit: minute, requests_per_unit: 1}}
      - key: to
        value: banned
        rate_limit: {unit: minute, requests_per_unit: 2, replaces: [{name: banned}]}
      - {key: to, value: twice, rate_limit: {unit: minute, requests_per_unit: 2, name: double}}
  - key: foo
    rate_limit: {unit: minute, requests_per_unit: 2}
    descriptors:
      - {key: bar, rate_limit: {unit: minute, requests_per_unit: 3}}
      - {key: bar, value: once, rate_limit: {unit: minute, requests_per_unit: 1, name: single}}
      - {key: bar, value: banned, rate_limit: {unit: minute, requests_per_unit: 0, name: banned}}
      - {key: baz, value: enforced, rate_limit: {unit: minute, requests_per_unit: 3}}
      - key: baz
        value: tried
        shadow_mode: true
        rate_limit: {unit: minute, requests_per_unit: 3}
  - key: any
    detailed_metric: true
    rate_limit: {unit: minute, requests_per_unit: 2}
  - key: service
    value: first
    quota_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1}
    metadata: {with_quota: {name: first}}
  - key: service
    value: second
    quota_mode: true
    rate_limit: {unit: minute, requests_per_unit: 2}
    metadata: {with_quota: {name: second}}
"""


OTHER_LIMITS = """
domain: other
descriptors:
  - {key: database, value: users, rate_limit: {unit: second, requests_per_unit: 500}}
"""


@pytest.fixture
def gateway(server: Server, tmp_path: Path) -> Iterator[Ratelimit]:
    files = {"example.yaml": LIMITS, "config.yaml": OTHER_LIMITS}
    # For busy machines: Envoy's timeout is longer in tests, too. Remembered denials end by the
    # real time.
    settings = {"REDIS_TIMEOUT": "5s", "RATELIMIT_GATEWAY_REMEMBER_DENIALS": "0"}
    with Ratelimit(server.port, tmp_path, files, **settings) as gateway:
        yield gateway


@pytest.fixture
def envoy(gateway: Ratelimit, origin: Origin, tmp_path: Path, clock: Clock) -> Iterator[Proxy]:
    # Begin of a minute.
    clock.set(1_700_000_040_000_000)
    kind = envoy_kind("envoy-ratelimit.yaml", folder=Path(__file__).parent)
    with Proxy("envoy", gateway, origin, tmp_path, kind=kind) as proxy:
        yield proxy


def test_request_within_its_limit_passes(envoy: Proxy) -> None:
    assert envoy.statuses(1, "/headers", foo="a", baz="tried") == [200]


def test_request_above_its_limit_is_denied(envoy: Proxy) -> None:
    assert envoy.statuses(5, "/headers", foo="a", baz="enforced") == [200] * 3 + [429] * 2


def test_limit_in_shadow_mode_is_counted_and_denies_nothing(
    envoy: Proxy, gateway: Ratelimit
) -> None:
    answers = [envoy.get("/headers", foo="a", baz="tried") for _ in range(6)]
    assert [answer.status for answer in answers] == [200] * 6
    remaining = [answer.headers["x-ratelimit-remaining"] for answer in answers]
    assert remaining == ["2", "1", "0", "0", "0", "0"]
    labels = {"domain": "rl", "key1": "foo", "key2": "baz_tried"}
    poll.until(lambda: gateway.hits("shadow_mode", **labels) == 3, "the hits are counted")


def test_denials_are_counted_by_value(envoy: Proxy, gateway: Ratelimit) -> None:
    assert envoy.statuses(3, "/any", any="some") == [200, 200, 429]
    labels = {"domain": "rl", "key1": "any_some"}
    poll.until(lambda: gateway.hits("over_limit", **labels) == 1, "the denial is counted")
    assert (gateway.hits("total_hits", **labels), gateway.hits("within_limit", **labels)) == (3, 2)


def test_replacing_limit_is_larger_and_leaves_the_replaced_one(envoy: Proxy) -> None:
    def statuses(count: int, **headers: str) -> list[int]:
        return envoy.statuses(count, "/headers", **headers)

    banned = {"foo": "a", "bar": "banned"}
    assert statuses(1, **banned) == [429]
    assert statuses(1, **banned, **{"from": "proxy", "to": "other"}) == [429]
    assert statuses(3, **banned, **{"from": "proxy", "to": "banned"}) == [200, 200, 429]
    once = {"foo": "a", "bar": "once"}
    assert statuses(3, **once, **{"from": "proxy", "to": "once"}) == [200, 200, 429]
    assert statuses(2, **once, **{"from": "proxy", "to": "unknown"}) == [200, 429]
    assert statuses(1, **once, **{"from": "proxy", "to": "once"}) == [429]
    account_and_twice = once | {"from": "proxy", "to": "twice", "category": "account"}
    assert statuses(5, **account_and_twice) == [200] * 4 + [429]
    assert statuses(2, foo="b", bar="once") == [200, 429]
    twice = {"foo": "c", "bar": "c", "from": "proxy", "to": "twice"}
    assert statuses(3, **twice) == [200, 200, 429]
    assert statuses(1, **account_and_twice) == [429]


def test_quotas_deny_once_all_are_used_up(envoy: Proxy, clock: Clock) -> None:
    assert envoy.statuses(3, "/quota") == [200, 200, 429]
    clock.advance("60s")
    assert envoy.statuses(1, "/quota") == [200]


def wait_for_charges(gateway: Ratelimit, count: int) -> None:
    """Waits for the charges at the end of streams."""
    poll.until(lambda: gateway.hits("total_hits") >= count, "the request is charged")


def test_quota_is_charged_after_the_response(
    envoy: Proxy, gateway: Ratelimit, clock: Clock
) -> None:
    statuses = []
    for number in range(1, 5):
        statuses += envoy.statuses(1, "/afterwards")
        wait_for_charges(gateway, number)
    assert statuses == [200, 200, 200, 429], "a request passes until more than the quota is used"
    clock.advance("60s")
    assert envoy.statuses(1, "/afterwards") == [200]


def test_requests_go_to_the_service_that_has_quota(
    envoy: Proxy, gateway: Ratelimit, clock: Clock
) -> None:
    services = []
    for number in range(1, 6):
        answer = envoy.get("/services")
        assert answer.status == 200
        services.append(answer.headers["x-service"] or "first")
        wait_for_charges(gateway, number)
    assert services == ["first"] * 2 + ["second"] * 3
    assert envoy.statuses(1, "/services") == [429]
    clock.advance("60s")
    answer = envoy.get("/services")
    assert (answer.status, answer.headers["x-service"]) == (200, None)
