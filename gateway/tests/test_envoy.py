"""Unmodified Envoy in front of an origin, with the configurations that docs/gateway.md shows."""

import http.client
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from origin import Origin
from proxies import Proxy, envoy_kind
from running import Gateway

from support import poll


@pytest.fixture
def envoy(origin: Origin, tmp_path: Path) -> Iterator[Callable[..., Proxy]]:
    with ExitStack() as proxies:
        yield lambda file, gateway: proxies.enter_context(
            Proxy("envoy", gateway, origin, tmp_path, kind=envoy_kind(file))
        )


Run = Callable[[str, Gateway], Proxy]
Policy = Callable[..., int]


def test_limit_is_exact_and_a_changed_policy_applies_at_once(
    gateway: Gateway, envoy: Run, policy: Policy
) -> None:
    policy("web|user", "FIXED 5 1h")
    proxy = envoy("envoy.yaml", gateway)
    assert proxy.statuses(7, x_user="1") == [200] * 5 + [429] * 2
    denied = proxy.get(x_user="1")
    assert denied.headers["Retry-After"] == "3600"
    assert denied.headers["RateLimit"] == '"default";r=0;t=3600'
    assert proxy.statuses(1, x_user="2") == [200]
    policy("web|user", "FIXED 7 1h")
    assert proxy.statuses(3, x_user="1") == [200, 200, 429], (
        "the new policy applies to the next request"
    )


def test_parallel_requests_are_counted_exactly(
    gateway: Gateway, envoy: Run, policy: Policy
) -> None:
    policy("web|user", "FIXED 100 1h")
    proxy = envoy("envoy.yaml", gateway)
    with ThreadPoolExecutor(8) as threads:
        statuses = threads.map(lambda _: proxy.get(x_user="1").status, range(150))
    assert Counter(statuses) == {200: 100, 429: 50}


def test_closed_connection_frees_its_lease(
    gateway: Gateway, envoy: Run, policy: Policy, origin: Origin
) -> None:
    policy("concurrent|user", "CONCURRENCY 2 1m")
    proxy = envoy("envoy-concurrency.yaml", gateway)
    slow = [http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=30) for _ in range(2)]
    for connection in slow:
        connection.request("GET", "/slow", headers={"x-user": "1"})
    assert all(origin.waiting.acquire(timeout=20) for _ in slow)
    assert proxy.statuses(2, x_user="1") == [429, 429]
    slow[0].close()
    poll.until(lambda: proxy.get(x_user="1").status == 200, "the lease is free")
    origin.release.set()
    assert slow[1].getresponse().status == 200
    slow[1].close()
    poll.until(lambda: proxy.statuses(4, x_user="1") == [200] * 4, "all are free again")


def test_two_of_four_concurrent_requests_pass(
    gateway: Gateway, envoy: Run, policy: Policy, origin: Origin
) -> None:
    policy("concurrent|user", "CONCURRENCY 2 1m")
    proxy = envoy("envoy-concurrency.yaml", gateway)
    with ThreadPoolExecutor(4) as threads:
        responses = [threads.submit(proxy.get, "/slow", x_user="1") for _ in range(4)]
        poll.until(
            lambda: sum(response.done() for response in responses) == 2,
            "two requests are denied",
            timeout=30,
        )
        origin.release.set()
        assert sorted(each.result().status for each in responses) == [200, 200, 429, 429]
    poll.until(lambda: proxy.statuses(4, x_user="1") == [200] * 4, "all are free again")


def test_leases_of_a_killed_envoy_expire(
    gateway: Gateway, envoy: Run, policy: Policy, origin: Origin, clock: object
) -> None:
    policy("concurrent|user", "CONCURRENCY 1 1m")
    proxy = envoy("envoy-concurrency.yaml", gateway)
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=30)
    connection.request("GET", "/slow", headers={"x-user": "1"})
    assert origin.waiting.acquire(timeout=20)
    proxy.kill()
    connection.close()
    with proxy:
        assert proxy.statuses(1, x_user="1") == [429]
        clock.advance("1m")
        assert proxy.statuses(1, x_user="1") == [200]


def test_envoy_continues_without_a_gateway_and_enforces_limits_after_its_return(
    gateway: Gateway, envoy: Run, policy: Policy
) -> None:
    policy("web|user", "FIXED 2 1h")
    proxy = envoy("envoy.yaml", gateway)
    assert proxy.statuses(1, x_user="1") == [200]
    gateway.end(signal.SIGKILL)
    assert proxy.statuses(3, x_user="1") == [200] * 3
    gateway.start()
    poll.until(lambda: 429 in proxy.statuses(4, x_user="1"), "the limit holds again", timeout=30)


@pytest.mark.parametrize("file", ["envoy-concurrency.yaml", "envoy-tokens.yaml"])
def test_requests_pass_without_a_gateway(file: str, gateway: Gateway, envoy: Run) -> None:
    proxy = envoy(file, gateway)
    gateway.end(signal.SIGKILL)
    assert proxy.statuses(3, x_user="1") == [200] * 3
