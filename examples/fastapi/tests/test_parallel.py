"""Concurrent clients: exactly the limits pass."""

import logging

import pytest
from redis_ratelimit import Limiter, TokenBucket
from serving import IP, TIMEOUT, USER, Serve
from traffic import ALICE, BOB, CAROL, burst, field, get

from support import poll
from support.cluster import Cluster, slot_of
from support.server import Server

# Units that do not recover during the test.
GLOBAL = TokenBucket(300, 1, "1h", name="global")


def test_fifty_clients_of_one_user_get_exactly_the_limit(serve: Serve) -> None:
    assert burst([serve()], clients=50, requests=4) == {200: 120, 429: 80}


def test_fifty_clients_on_two_processes_get_exactly_the_limit(serve: Serve) -> None:
    assert burst([serve(), serve()], clients=50, requests=4) == {200: 120, 429: 80}


@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_units_in_batches_are_spent_exactly_once(serve: Serve, batch: int) -> None:
    """Two processes take units in batches. Further requests to each process spend the units that it
    still has in hand.
    """
    settings = {"limits": {}, "global_limit": GLOBAL, "batch": batch, "keep": 3600.0}
    urls = [serve(**settings), serve(**settings)]
    passed = burst(urls, clients=50, requests=8)
    assert passed[200] <= 300
    for url in urls:
        passed += burst([url], clients=10, requests=30)
    assert passed == {200: 300, 429: 700}


def test_batches_serve_many_requests_with_few_calls(serve: Serve, server: Server) -> None:
    url = serve(limits={}, global_limit=GLOBAL, batch=100, keep=3600.0)
    with server.client(decode_responses=True) as redis:
        redis.config_resetstat()
        assert burst([url], clients=50, requests=8) == {200: 300, 429: 100}
        # A batch is a hundredth of the limit, less at first, and more for takes that wait. After a
        # grant of nothing, no call follows before a refill.
        assert redis.info("commandstats")["cmdstat_rl.take"]["calls"] <= 110


def test_expired_units_are_given_back(serve: Serve, server: Server) -> None:
    plenty = TokenBucket(1_000_000, 1, "1m", name="global")
    url = serve(limits={}, global_limit=plenty, batch=100_000, keep=0.05)
    requests = 0
    with server.client(decode_responses=True) as redis, Limiter(redis, timeout=TIMEOUT) as limiter:
        redis.config_resetstat()

        def calls() -> int:
            nonlocal requests
            assert get(url).status_code == 200
            requests += 1
            return redis.info("commandstats")["cmdstat_rl.take"]["calls"]

        # A batch expires long before it is spent. Then it is given back, and another is taken.
        poll.until(lambda: calls() >= 5, "expired units are given back", timeout=20)
        remaining = limiter.peek("rl:global", plenty, cost=0).remaining
    # All units but those of the last batch.
    assert remaining >= 1_000_000 - 100_000 - requests


def test_request_denied_by_its_tenant_costs_no_global_unit(serve: Serve) -> None:
    url = serve(limits=USER, global_limit=GLOBAL, batch=100, keep=3600.0)
    assert burst([url], clients=50, requests=4) == {200: 120, 429: 80}
    assert burst([url], clients=50, requests=4, headers=BOB) == {200: 120, 429: 80}
    # 240 units are spent. Callers without a user get the other 60.
    assert burst([url], clients=50, requests=2, headers={}) == {200: 60, 429: 40}


def test_denial_by_the_shared_limit_names_it(serve: Serve) -> None:
    url = serve(limits={}, global_limit=TokenBucket(1, 1, "1h", name="global"))
    assert get(url).status_code == 200
    response = get(url)
    assert response.status_code == 429
    assert response.json()["violated-policies"] == ["global"]
    assert 0 < int(response.headers["Retry-After"]) <= 3600


def test_unspent_units_are_returned_at_shutdown(serve: Serve, server: Server) -> None:
    url = serve(limits={}, global_limit=GLOBAL, batch=100, keep=3600.0)
    assert get(url).status_code == 200
    # The fixture would stop the application only after the test.
    serve.stop()
    with server.client() as redis, Limiter(redis, timeout=TIMEOUT) as limiter:
        remaining = limiter.peek("rl:global", GLOBAL, cost=0).remaining
    assert remaining == 299


def test_shadow_mode_passes_all_requests_and_logs_denials(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    url = serve(shadow=True, limits=USER)
    with caplog.at_level(logging.WARNING, "tenants"):
        assert burst([url], clients=50, requests=4) == {200: 200}
    assert sum("would deny" in message for message in caplog.messages) == 80
    assert "RateLimit" not in get(url).headers


def test_exactly_the_limit_passes_in_a_cluster(serve: Serve, cluster: Cluster) -> None:
    """Two tenants and the shared limit on different nodes."""
    redis_url = f"redis://127.0.0.1:{cluster.servers[0].port}"
    owners = {cluster.owner(key) for key in ("{acme}", "{umbrella}", "rl:global")}
    assert len(owners) > 1
    assert slot_of("rl:{acme}:user:alice") == slot_of("{acme}")
    url = serve(redis_url=redis_url, cluster=True, limits=USER | IP)
    for headers in (ALICE, CAROL):
        assert burst([url], clients=50, requests=4, headers=headers) == {200: 120, 429: 80}
    assert field(get(url), "RateLimit")["user"]["r"] == 0
