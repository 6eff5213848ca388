"""Many clients at once: exactly as many pass as the limits allow."""

import logging

import pytest
from redis_ratelimit import Limiter, TokenBucket
from serving import IP, PATIENT, USER, Serve
from traffic import ALICE, BOB, CAROL, burst, field, get

from support import poll
from support.cluster import Cluster, slot_of
from support.server import Server

# Units that come back only after the test.
GLOBAL = TokenBucket(300, 1, "1h", name="global")


def test_fifty_clients_of_one_user_get_exactly_the_limit(serve: Serve) -> None:
    assert burst([serve()], clients=50, requests=4) == {200: 120, 429: 80}


def test_fifty_clients_on_two_processes_get_exactly_the_limit(serve: Serve) -> None:
    assert burst([serve(), serve()], clients=50, requests=4) == {200: 120, 429: 80}


@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_leased_units_are_spent_exactly_once(serve: Serve, batch: int) -> None:
    """Two processes each lease units. The units that one still has when the other finds none left
    are spent by requests to the first.
    """
    settings = {"limits": {}, "global_limit": GLOBAL, "batch": batch, "keep": 3600.0}
    urls = [serve(**settings), serve(**settings)]
    passed = burst(urls, clients=50, requests=8)
    assert passed[200] <= 300
    for url in urls:
        passed += burst([url], clients=10, requests=30)
    assert passed == {200: 300, 429: 700}


def test_a_lease_asks_once_for_many_requests(serve: Serve, server: Server) -> None:
    url = serve(limits={}, global_limit=GLOBAL, batch=100, keep=3600.0)
    with server.client(decode_responses=True) as redis:
        redis.config_resetstat()
        assert burst([url], clients=50, requests=8) == {200: 300, 429: 100}
        # Three times a hundred; the fourth finds nothing, and nobody asks before there is.
        assert redis.info("commandstats")["cmdstat_rl.take"]["calls"] == 4


def test_leased_units_are_not_saved_up(serve: Serve, server: Server) -> None:
    plenty = TokenBucket(1_000_000, 1, "1m", name="global")
    url = serve(limits={}, global_limit=plenty, batch=100_000, keep=0.05)
    requests = 0
    with server.client(decode_responses=True) as redis, Limiter(redis, timeout=PATIENT) as limiter:
        redis.config_resetstat()

        def calls() -> int:
            nonlocal requests
            assert get(url).status_code == 200
            requests += 1
            return redis.info("commandstats")["cmdstat_rl.take"]["calls"]

        # It asks again long before it has spent what it has, and gives that back first.
        poll.until(lambda: calls() >= 5, "what is old is given back", timeout=20)
        left = limiter.peek("rl:global", plenty, cost=0).remaining
    # But for the last batch.
    assert left >= 1_000_000 - 100_000 - requests


def test_a_request_that_its_tenant_denies_takes_no_leased_unit(serve: Serve) -> None:
    url = serve(limits=USER, global_limit=GLOBAL, batch=100, keep=3600.0)
    assert burst([url], clients=50, requests=4) == {200: 120, 429: 80}
    assert burst([url], clients=50, requests=4, headers=BOB) == {200: 120, 429: 80}
    # 240 are gone. Others, who have no limit of their own, get the rest.
    assert burst([url], clients=50, requests=2, headers={}) == {200: 60, 429: 40}


def test_a_429_of_the_shared_limit_says_so(serve: Serve) -> None:
    url = serve(limits={}, global_limit=TokenBucket(1, 1, "1h", name="global"))
    assert get(url).status_code == 200
    response = get(url)
    assert response.status_code == 429
    assert response.json()["violated-policies"] == ["global"]
    assert 0 < int(response.headers["Retry-After"]) <= 3600


def test_units_in_hand_are_given_back_at_the_end(serve: Serve, server: Server) -> None:
    # This process ends with the fixture, so it is ended by hand.
    url = serve(limits={}, global_limit=GLOBAL, batch=100, keep=3600.0)
    assert get(url).status_code == 200
    serve.stop()
    with server.client() as redis, Limiter(redis, timeout=PATIENT) as limiter:
        left = limiter.peek("rl:global", GLOBAL, cost=0).remaining
    assert left == 299


def test_in_the_shadow_all_pass_and_denials_are_logged(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    url = serve(shadow=True, limits=USER)
    with caplog.at_level(logging.WARNING, "tenants"):
        assert burst([url], clients=50, requests=4) == {200: 200}
    assert sum("would deny" in message for message in caplog.messages) == 80
    assert "RateLimit" not in get(url).headers


def test_in_a_cluster_too_exactly_the_limit_passes(serve: Serve, cluster: Cluster) -> None:
    """Two tenants and the shared limit on different nodes."""
    redis_url = f"redis://127.0.0.1:{cluster.servers[0].port}"
    owners = {cluster.owner(key) for key in ("{acme}", "{umbrella}", "rl:global")}
    assert len(owners) > 1
    assert slot_of("rl:{acme}:user:alice") == slot_of("{acme}")
    url = serve(redis_url=redis_url, cluster=True, limits=USER | IP)
    for headers in (ALICE, CAROL):
        assert burst([url], clients=50, requests=4, headers=headers) == {200: 120, 429: 80}
    assert field(get(url), "RateLimit")["user"]["r"] == 0
