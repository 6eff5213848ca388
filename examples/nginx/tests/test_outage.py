"""Requests without a decision: the server is unavailable, hangs, or refuses calls."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from delaying_proxy import DelayingProxy
from gateway import ALICE, BOB, ONE_WORKER, Gateways, fields, set_policy
from redis import Redis
from without_module import without_module

from support import poll
from support.binaries import Binary
from support.server import Server

# Timeout of the configuration. Other tests have a longer one.
SHORT_TIMEOUT = {"timeout_ms = 100": "timeout_ms = 100"}
# No retry within a test, or an immediate one.
LONG_PAUSE = {'on_outage = "open",': "pause_ms = 3600000,"}
SHORT_PAUSE = {'on_outage = "open",': "pause_ms = 1,"}


@pytest.fixture
def plain_server(binary: Binary) -> Iterator[Server]:
    with without_module(Server(binary)) as server:
        yield server


def test_requests_pass_and_logins_are_denied_in_an_outage(
    gateways: Gateways, server: Server, redis: Redis
) -> None:
    set_policy(redis, "plan:pro", "FIXED 1 1m")
    set_policy(redis, "login", "FIXED 1 1m")
    gateway = gateways(server)
    server.stop()
    for _ in range(3):
        allowed = gateway.get()
        assert (allowed.status_code, fields(allowed)) == (200, {})
    denied = gateway.get("/login")
    assert (denied.status_code, fields(denied)) == (503, {"retry-after": "1"})
    assert gateway.outcomes(4) == {"open": 3, "closed": 1}


def test_limits_apply_again_after_an_outage(
    gateways: Gateways, server: Server, redis: Redis
) -> None:
    gateway = gateways(server, ONE_WORKER, SHORT_PAUSE)
    server.stop()
    for _ in range(5):
        assert fields(gateway.get()) == {}
    server.start()
    set_policy(redis, "plan:pro", "FIXED 1000 1m")
    poll.until(lambda: fields(gateway.get()), "limits are back", timeout=20)
    assert gateway.count_logged("Redis is away: connection refused") >= 5
    assert gateway.count_logged("Redis is back") == 1


def test_restarted_server_is_used_at_once(gateways: Gateways, server: Server, redis: Redis) -> None:
    """The pooled connections are closed by the restart."""
    set_policy(redis, "login", "FIXED 1000 1m")
    gateway = gateways(server)
    assert gateway.get("/login").status_code == 200
    server.restart("nosave")
    set_policy(redis, "login", "FIXED 1000 1m")
    assert gateway.get("/login").status_code == 200


def test_hanging_server_delays_five_requests_of_a_worker(
    gateways: Gateways, server: Server, redis: Redis
) -> None:
    set_policy(redis, "plan:pro", "FIXED 1000 1m")
    gateway = gateways(server, ONE_WORKER, SHORT_TIMEOUT, LONG_PAUSE)
    with server.suspended():
        for _ in range(20):
            assert gateway.get().status_code == 200
        assert gateway.count_logged("Redis is away: timeout") == 5
        assert gateway.outcomes(20) == {"open": 20}


def test_late_reply_reaches_no_other_request(
    gateways: Gateways, server: Server, redis: Redis
) -> None:
    """The late reply for Alice arrives while Bob waits for his."""
    set_policy(redis, "plan:pro", "FIXED 1000 1m")
    set_policy(redis, "plan:free", "FIXED 7 1m")
    response_fields: dict[str, str] = {}
    with DelayingProxy(server.port).running() as proxy, ThreadPoolExecutor() as clients:
        gateway = gateways(proxy, ONE_WORKER, SHORT_TIMEOUT, SHORT_PAUSE)

        def is_limit_of_bob_shown() -> bool:
            proxy.forwards_replies.clear()
            assert fields(gateway.get("/", ALICE)) == {}
            calls = proxy.calls
            bob = clients.submit(gateway.get, "/", BOB)
            poll.until(lambda: proxy.calls > calls, "Bob's call is sent", timeout=20)
            proxy.forwards_replies.set()
            response_fields.update(fields(bob.result()))
            return bool(response_fields)

        # On a busy machine, Bob's call may time out as well.
        poll.until(is_limit_of_bob_shown, "Bob's response shows his limit", timeout=20)
    assert response_fields["x-ratelimit-limit"] == "7"


def test_only_consecutive_failures_begin_an_outage(
    gateways: Gateways, server: Server, redis: Redis
) -> None:
    gateway = gateways(server, ONE_WORKER, LONG_PAUSE)
    for remaining in range(6):
        server.stop()
        assert fields(gateway.get()) == {}
        server.start()
        set_policy(redis, "plan:pro", f"FIXED {remaining + 1} 1m")
        assert gateway.get().headers["x-ratelimit-remaining"] == str(remaining)


def test_missing_policy_is_logged_and_affects_no_other_limit(
    gateways: Gateways, server: Server, redis: Redis
) -> None:
    set_policy(redis, "plan:free", "FIXED 1 1m")
    gateway = gateways(server, ONE_WORKER)
    for _ in range(10):
        allowed = gateway.get("/", ALICE)
        assert (allowed.status_code, fields(allowed)) == (200, {})
    assert gateway.get("/login").status_code == 503
    text = "Redis refuses RL.LIMIT: NOPOLICY no policy 'customer:alice' or 'plan:pro'"
    assert gateway.count_logged(text) >= 1
    assert [gateway.get("/", BOB).status_code for _ in range(2)] == [200, 429]


def test_a_server_without_the_module_decides_nothing(
    gateways: Gateways, plain_server: Server
) -> None:
    gateway = gateways(plain_server)
    assert [gateway.get(path).status_code for path in ("/", "/login")] == [200, 503]
    assert gateway.count_logged("unknown command") >= 1


def test_wrong_password_is_logged_and_can_be_corrected(
    gateways: Gateways, server: Server, redis: Redis
) -> None:
    set_policy(redis, "login", "FIXED 1000 1m")
    redis.execute_command("ACL", "SETUSER", "nginx", "reset", "on", ">new", "~*", "+rl.delay")
    gateway = gateways(server, ONE_WORKER, login="nginx:old@")
    for _ in range(10):
        assert gateway.get("/login").status_code == 503
    assert gateway.count_logged("Redis refuses RL.DELAY: WRONGPASS") >= 1
    redis.execute_command("ACL", "SETUSER", "nginx", ">old")
    assert gateway.get("/login").status_code == 200


@pytest.mark.parametrize("url", ["http://127.0.0.1", "redis://", "redis://127.0.0.1:x"])
def test_invalid_address_is_refused_at_start(gateways: Gateways, url: str) -> None:
    gateway = gateways.start(url)
    assert gateway.process.wait(timeout=20) != 0
    assert f"not redis://[[user]:password@]host[:port]: {url}" in gateway.log()


def test_invalid_on_outage_is_refused_at_start(gateways: Gateways) -> None:
    gateway = gateways.start("redis://127.0.0.1", {'on_outage = "open"': 'on_outage = "opne"'})
    assert gateway.process.wait(timeout=20) != 0
    assert "on_outage is neither open nor closed: opne" in gateway.log()


def test_missing_variable_is_an_error(gateways: Gateways, server: Server, redis: Redis) -> None:
    set_policy(redis, "plan:pro", "FIXED 1 1m")
    gateway = gateways(
        server, {'    map "" $ratelimit { default ""; }\n': "", "$status $ratelimit": "$status"}
    )
    assert gateway.get().status_code == 500
    assert gateway.count_logged("nginx.conf has no $ratelimit") == 1
