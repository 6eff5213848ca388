"""Decisions and responses of nginx with limits."""

import time
from collections import Counter

import pytest
from gateway import ALICE, BOB, ONE_WORKER, Gateways, burst, fields, set_policy
from redis import Redis

from support import poll
from support.clock import Clock
from support.server import Server

ANONYMOUS: dict[str, str] = {}

# Trusts proxies on this machine.
PROXIED = {
    "#set_real_ip_from 10.0.0.0/8;": "set_real_ip_from 127.0.0.1;",
    "#real_ip_header": "real_ip_header",
    "#real_ip_recursive": "real_ip_recursive",
}


@pytest.mark.parametrize("count", [1, 2])
def test_fifty_clients_get_exactly_the_limit(
    gateways: Gateways, server: Server, redis: Redis, count: int
) -> None:
    set_policy(redis, "plan:pro", "TOKENBUCKET 120 1 1h")
    started = [gateways(server) for _ in range(count)]
    assert burst(started, clients=50, requests=4) == {200: 120, 429: 80}
    outcomes = sum((gateway.outcomes(200 // count) for gateway in started), Counter())
    assert outcomes == {"admitted": 120, "denied": 80}


def test_response_shows_the_limit_that_governs(
    gateways: Gateways, server: Server, redis: Redis
) -> None:
    set_policy(redis, "plan:pro", "FIXED 2 1m FIXED 1000 1d")
    gateway = gateways(server)
    allowed = gateway.get()
    assert (allowed.status_code, allowed.text) == (200, "hello alice\n")
    assert fields(allowed) == {
        "x-ratelimit-limit": "2",
        "x-ratelimit-remaining": "1",
        "x-ratelimit-reset": "60",
        "ratelimit-policy": '"customer";q=2',
        "ratelimit": '"customer";r=1;t=60',
    }
    gateway.get()
    denied = gateway.get()
    assert denied.status_code == 429
    assert denied.headers["content-type"] == "application/problem+json"
    assert denied.json()["status"] == 429
    assert fields(denied) == {
        "x-ratelimit-limit": "2",
        "x-ratelimit-remaining": "0",
        "x-ratelimit-reset": "60",
        "ratelimit-policy": '"customer";q=2',
        "ratelimit": '"customer";r=0;t=60',
        "retry-after": "60",
    }


def test_request_after_retry_after_passes(
    gateways: Gateways, server: Server, redis: Redis, clock: Clock
) -> None:
    set_policy(redis, "plan:pro", "TOKENBUCKET 1 1 2500ms")
    gateway = gateways(server)
    assert gateway.get().status_code == 200
    wait = gateway.get().headers["retry-after"]
    assert wait == "3"
    clock.advance(f"{wait}s")
    assert gateway.get().status_code == 200


def test_cost_above_the_limit_has_no_retry_after(
    gateways: Gateways, server: Server, redis: Redis
) -> None:
    set_policy(redis, "plan:pro", "FIXED 9 1m")
    denied = gateways(server).get("/report")
    assert denied.status_code == 429
    assert "retry-after" not in denied.headers
    assert denied.headers["ratelimit"] == '"customer";r=9'


def test_report_costs_ten_units(gateways: Gateways, server: Server, redis: Redis) -> None:
    set_policy(redis, "plan:pro", "FIXED 25 1m")
    gateway = gateways(server)
    assert gateway.get("/report").headers["x-ratelimit-remaining"] == "15"
    assert gateway.get("/").headers["x-ratelimit-remaining"] == "14"


def test_customers_and_networks_have_separate_limits(
    gateways: Gateways, server: Server, redis: Redis
) -> None:
    set_policy(redis, "plan:pro", "FIXED 10 1m")
    set_policy(redis, "plan:free", "FIXED 5 1m")
    set_policy(redis, "anonymous", "FIXED 3 1m")
    gateway = gateways(server)
    remaining = [
        gateway.get("/", headers).headers["x-ratelimit-remaining"]
        for headers in (ALICE, BOB, ANONYMOUS)
    ]
    assert remaining == ["9", "4", "2"]
    # Unknown keys, including one in upper case, count for the network.
    for key in ("carol-secret", "dave-secret", "ALICE-SECRET"):
        response = gateway.get("/", {"X-Api-Key": key})
    assert response.status_code == 429
    assert response.headers["ratelimit-policy"] == '"network";q=3'
    assert sorted(redis.keys()) == ["rl:customer:alice", "rl:customer:bob", "rl:network:127.0.0.1"]


def test_policy_of_a_customer_takes_precedence(
    gateways: Gateways, server: Server, redis: Redis
) -> None:
    set_policy(redis, "plan:pro", "FIXED 10 1m")
    set_policy(redis, "customer:alice", "FIXED 99 1m")
    assert gateways(server).get().headers["x-ratelimit-limit"] == "99"


def test_changed_policy_applies_at_once(gateways: Gateways, server: Server, redis: Redis) -> None:
    set_policy(redis, "plan:pro", "FIXED 1 1m")
    gateway = gateways(server)
    assert [gateway.get().status_code for _ in range(2)] == [200, 429]
    set_policy(redis, "plan:pro", "FIXED 3 1m")
    responses = [gateway.get() for _ in range(3)]
    assert [response.status_code for response in responses] == [200, 200, 429]
    assert responses[-1].headers["x-ratelimit-limit"] == "3"
    redis.execute_command("RL.POLICYSCALE", "plan:pro", 2)
    assert gateway.get().headers["x-ratelimit-remaining"] == "2"


def test_login_shows_only_denials(gateways: Gateways, server: Server, redis: Redis) -> None:
    set_policy(redis, "login", "FIXED 2 1m")
    gateway = gateways(server)
    redis.config_resetstat()
    responses = [gateway.get("/login", ANONYMOUS) for _ in range(3)]
    assert [response.status_code for response in responses] == [200, 200, 429]
    assert [fields(response) for response in responses] == [{}, {}, {"retry-after": "60"}]
    assert redis.info("commandstats")["cmdstat_rl.delay"]["calls"] == 3


def test_shadow_policy_shows_no_limit(gateways: Gateways, server: Server, redis: Redis) -> None:
    set_policy(redis, "plan:pro", "FIXED 1 1m SHADOW")
    gateway = gateways(server)
    for _ in range(3):
        response = gateway.get()
        assert (response.status_code, fields(response)) == (200, {})


def test_leaky_bucket_delays_requests(gateways: Gateways, server: Server, redis: Redis) -> None:
    set_policy(redis, "plan:pro", "LEAKYBUCKET 2 1 300ms")
    gateway = gateways(server)
    assert gateway.get().status_code == 200
    begin = time.monotonic()
    assert gateway.get().status_code == 200
    assert time.monotonic() - begin >= 0.3
    assert gateway.get().status_code == 429


def test_internally_redirected_request_is_charged_once(
    gateways: Gateways, server: Server, redis: Redis
) -> None:
    """nginx redirects /files/ to /files/index.html internally."""
    set_policy(redis, "plan:pro", "FIXED 10 1m")
    gateway = gateways(server)
    for remaining in ("9", "8"):
        response = gateway.get("/files/")
        assert response.headers["content-type"] == "text/html"
        assert response.headers["x-ratelimit-remaining"] == remaining


def test_clients_cannot_choose_their_address(
    gateways: Gateways, server: Server, redis: Redis
) -> None:
    set_policy(redis, "anonymous", "FIXED 2 1m")
    gateway = gateways(server)
    statuses = [gateway.get("/", {"X-Forwarded-For": f"192.0.2.{n}"}).status_code for n in range(3)]
    assert statuses == [200, 200, 429]


@pytest.mark.parametrize(
    ("addresses", "key"),
    [
        (["192.0.2.1", "198.51.100.7, 192.0.2.1", "::ffff:192.0.2.1"], "192.0.2.1"),
        (["2001:db8::1", "2001:db8::ffff:1"], "2001:0db8:0000:0000::/64"),
        (["2001:db8:0:1::1", "127.0.0.2, 2001:db8:0:1::2"], "2001:0db8:0000:0001::/64"),
    ],
)
def test_network_behind_a_proxy_is_that_of_the_client(
    gateways: Gateways, server: Server, redis: Redis, addresses: list[str], key: str
) -> None:
    set_policy(redis, "anonymous", "FIXED 10 1m")
    gateway = gateways(server, PROXIED)
    for address in addresses:
        assert gateway.get("/", {"X-Forwarded-For": address}).status_code == 200
    assert redis.keys() == [f"rl:network:{key}"]
    remaining = redis.execute_command("RL.PEEK", f"rl:network:{key}", "POLICY", "anonymous")[2]
    assert remaining == 10 - len(addresses)


def test_connections_are_reused(gateways: Gateways, server: Server, redis: Redis) -> None:
    set_policy(redis, "plan:pro", "FIXED 1000 1m")
    gateway = gateways(server, ONE_WORKER)
    before = redis.info("stats")["total_connections_received"]
    for _ in range(50):
        assert gateway.get().status_code == 200
    assert redis.info("stats")["total_connections_received"] - before == 1
    assert burst([gateway], clients=10, requests=20) == {200: 200}
    assert redis.info("stats")["total_connections_received"] - before <= 10


def test_user_needs_only_two_commands(gateways: Gateways, server: Server, redis: Redis) -> None:
    set_policy(redis, "plan:pro", "FIXED 1 1m")
    set_policy(redis, "login", "FIXED 1 1m")
    redis.execute_command(
        *("ACL", "SETUSER", "nginx", "reset", "on", ">p@ss:/word", "~rl:*"),
        *("+rl.limit", "+rl.delay"),
    )
    gateway = gateways(server, ONE_WORKER, login="nginx:p%40ss%3A%2Fword@")
    redis.config_resetstat()
    assert [gateway.get().status_code for _ in range(2)] == [200, 429]
    assert [gateway.get("/login").status_code for _ in range(2)] == [200, 429]
    # One AUTH for each connection.
    assert redis.info("commandstats")["cmdstat_auth"]["calls"] == 1


def test_reload_keeps_the_server_address(gateways: Gateways, server: Server, redis: Redis) -> None:
    set_policy(redis, "plan:pro", "FIXED 1000 1m")
    gateway = gateways(server)
    assert gateway.get().headers["x-ratelimit-remaining"] == "999"
    old = gateway.workers()
    gateway.reload()
    poll.until(lambda: not old & gateway.workers(), "the workers are new", timeout=20)
    assert gateway.get().headers["x-ratelimit-remaining"] == "998"
