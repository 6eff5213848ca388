"""While nobody decides: the server is away, hangs, or refuses calls."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from gateway import ALICE, BOB, ONE_WORKER, Gateways, fields, policy
from holding import Holding
from redis import Redis
from without_module import without_module

from support import poll
from support.binaries import Binary
from support.server import Server

# The configuration's own time limit. A server that answers gets a longer one.
HURRIED = {"timeout_ms = 100": "timeout_ms = 100"}
# Nothing asks again within a test, or at once.
LONG_PAUSE = {'on_outage = "open",': "pause_ms = 3600000,"}
SHORT_PAUSE = {'on_outage = "open",': "pause_ms = 1,"}


@pytest.fixture
def plain_server(binary: Binary) -> Iterator[Server]:
    with without_module(Server(binary)) as server:
        yield server


def test_all_pass_but_logins(gateways: Gateways, server: Server, redis: Redis) -> None:
    policy(redis, "plan:pro", "FIXED 1 1m")
    policy(redis, "login", "FIXED 1 1m")
    gateway = gateways(server)
    server.stop()
    for _ in range(3):
        passed = gateway.get()
        assert (passed.status_code, fields(passed)) == (200, {})
    refused = gateway.get("/login")
    assert (refused.status_code, fields(refused)) == (503, {"retry-after": "1"})
    assert gateway.outcomes(4) == {"open": 3, "closed": 1}


def test_the_limits_are_back_with_the_server(
    gateways: Gateways, server: Server, redis: Redis
) -> None:
    gateway = gateways(server, ONE_WORKER, SHORT_PAUSE)
    server.stop()
    for _ in range(5):
        assert fields(gateway.get()) == {}
    server.start()
    policy(redis, "plan:pro", "FIXED 1000 1m")
    poll.until(lambda: fields(gateway.get()), "limits are back", timeout=20)
    assert gateway.told("Redis is away: connection refused") >= 5
    assert gateway.told("Redis is back") == 1


def test_a_server_that_was_restarted_is_asked_at_once(
    gateways: Gateways, server: Server, redis: Redis
) -> None:
    """Though the connections in hand are dead."""
    policy(redis, "login", "FIXED 1000 1m")
    gateway = gateways(server)
    assert gateway.get("/login").status_code == 200
    server.restart("nosave")
    policy(redis, "login", "FIXED 1000 1m")
    assert gateway.get("/login").status_code == 200


def test_a_server_that_hangs_holds_up_five_requests_of_a_worker(
    gateways: Gateways, server: Server, redis: Redis
) -> None:
    policy(redis, "plan:pro", "FIXED 1000 1m")
    gateway = gateways(server, ONE_WORKER, HURRIED, LONG_PAUSE)
    with server.stopped():
        for _ in range(20):
            assert gateway.get().status_code == 200
        assert gateway.told("Redis is away: timeout") == 5
        assert gateway.outcomes(20) == {"open": 20}


def test_a_late_reply_is_nobody_elses(gateways: Gateways, server: Server, redis: Redis) -> None:
    """The late reply for Alice arrives while Bob waits for his."""
    policy(redis, "plan:pro", "FIXED 1000 1m")
    policy(redis, "plan:free", "FIXED 7 1m")
    told: dict[str, str] = {}
    with Holding(server.port).running() as network, ThreadPoolExecutor() as clients:
        gateway = gateways(network, ONE_WORKER, HURRIED, SHORT_PAUSE)

        def bob_is_told() -> bool:
            network.passes.clear()
            assert fields(gateway.get("/", ALICE)) == {}
            calls = network.calls
            bob = clients.submit(gateway.get, "/", BOB)
            poll.until(lambda: network.calls > calls, "Bob's call is there", timeout=20)
            network.passes.set()
            told.update(fields(bob.result()))
            return bool(told)

        # On a machine that is busy Bob, too, may be too late.
        poll.until(bob_is_told, "Bob is told of his limit", timeout=20)
    assert told["x-ratelimit-limit"] == "7"


def test_failures_that_are_not_in_a_row_do_not_add_up(
    gateways: Gateways, server: Server, redis: Redis
) -> None:
    gateway = gateways(server, ONE_WORKER, LONG_PAUSE)
    for left in range(6):
        server.stop()
        assert fields(gateway.get()) == {}
        server.start()
        policy(redis, "plan:pro", f"FIXED {left + 1} 1m")
        assert gateway.get().headers["x-ratelimit-remaining"] == str(left)


def test_a_policy_that_is_missing_is_told_of_and_stops_no_other_limit(
    gateways: Gateways, server: Server, redis: Redis
) -> None:
    policy(redis, "plan:free", "FIXED 1 1m")
    gateway = gateways(server, ONE_WORKER)
    for _ in range(10):
        passed = gateway.get("/", ALICE)
        assert (passed.status_code, fields(passed)) == (200, {})
    assert gateway.get("/login").status_code == 503
    text = "Redis refuses RL.LIMIT: NOPOLICY no policy 'customer:alice' or 'plan:pro'"
    assert gateway.told(text) >= 1
    assert [gateway.get("/", BOB).status_code for _ in range(2)] == [200, 429]


def test_a_server_without_the_module_decides_nothing(
    gateways: Gateways, plain_server: Server
) -> None:
    gateway = gateways(plain_server)
    assert [gateway.get(path).status_code for path in ("/", "/login")] == [200, 503]
    assert gateway.told("unknown command") >= 1


def test_a_wrong_password_is_told_of_and_can_be_put_right(
    gateways: Gateways, server: Server, redis: Redis
) -> None:
    policy(redis, "login", "FIXED 1000 1m")
    redis.execute_command("ACL", "SETUSER", "nginx", "reset", "on", ">new", "~*", "+rl.delay")
    gateway = gateways(server, ONE_WORKER, login="nginx:old@")
    for _ in range(10):
        assert gateway.get("/login").status_code == 503
    assert gateway.told("Redis refuses RL.DELAY: WRONGPASS") >= 1
    redis.execute_command("ACL", "SETUSER", "nginx", ">old")
    assert gateway.get("/login").status_code == 200


@pytest.mark.parametrize("url", ["http://127.0.0.1", "redis://", "redis://127.0.0.1:x"])
def test_nginx_does_not_start_with_an_address_that_is_none(gateways: Gateways, url: str) -> None:
    gateway = gateways.start(url)
    assert gateway.process.wait(timeout=20) != 0
    assert f"not redis://[[user]:password@]host[:port]: {url}" in gateway.log()


def test_nginx_does_not_start_if_it_is_not_told_what_an_outage_is(gateways: Gateways) -> None:
    gateway = gateways.start("redis://127.0.0.1", {'on_outage = "open"': 'on_outage = "opne"'})
    assert gateway.process.wait(timeout=20) != 0
    assert "on_outage is neither open nor closed: opne" in gateway.log()


def test_without_its_variable_nothing_passes_without_a_limit(
    gateways: Gateways, server: Server, redis: Redis
) -> None:
    policy(redis, "plan:pro", "FIXED 1 1m")
    gateway = gateways(
        server, {'    map "" $ratelimit { default ""; }\n': "", "$status $ratelimit": "$status"}
    )
    assert gateway.get().status_code == 500
    assert gateway.told("nginx.conf has no $ratelimit") == 1
