"""Redis gone in mid-traffic, and back again."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from threading import Event

from ratelimit import Limit
from serving import Serve
from traffic import burst, get

from support import poll
from support.server import Server

# In Redis 100, and for one of four processes 25.
USER = Limit.bucket("user", "user:{user}", burst=100, rate=1, seconds=3600)
# The shared limit is not what is looked at here.
PLENTY = Limit.bucket("global", "global", burst=1_000_000, rate=1_000_000)

OUTAGE = {"limits": (USER,), "processes": 4, "global_limit": PLENTY}


def is_served_by_redis(url: str) -> bool:
    return get(url).headers.get("X-RateLimit-Limit") == "100"


def test_fail_open_goes_on_by_a_local_limit_and_finds_redis_again(
    serve: Serve, server: Server
) -> None:
    url = serve(**OUTAGE)
    assert burst([url], clients=5, requests=2) == {200: 10}
    assert get(url).headers["X-RateLimit-Remaining"] == "89"

    server.stop("kill")
    # This process's share, exactly, whatever Redis had counted.
    assert burst([url], clients=50, requests=2) == {200: 25, 429: 75}
    response = get(url)
    assert response.status_code == 429
    assert response.headers["X-RateLimit-Limit"] == "25"
    assert 0 < int(response.headers["Retry-After"]) <= 3600 * 4

    server.start()
    poll.until(lambda: is_served_by_redis(url), "Redis decides again", timeout=20)
    # It came back empty: its own 100, less the one that has just asked.
    assert burst([url], clients=50, requests=3) == {200: 99, 429: 51}


def test_fail_closed_lets_nothing_pass_meanwhile(serve: Serve, server: Server) -> None:
    url = serve(fail_open=False, **OUTAGE)
    assert burst([url], clients=5, requests=2) == {200: 10}

    server.stop("kill")
    assert burst([url], clients=50, requests=2) == {503: 100}
    response = get(url)
    assert response.headers["Retry-After"] == "1"
    assert response.json()["type"].endswith("temporary-reduced-capacity")
    assert get(url, path="/health").status_code == 200

    server.start()
    poll.until(lambda: is_served_by_redis(url), "Redis decides again", timeout=20)


def test_redis_may_go_and_come_in_mid_traffic(serve: Serve, server: Server) -> None:
    """No request fails and none hangs: each gets 200 or 429, and none passes that should not."""
    url = serve(**OUTAGE)
    enough = Event()
    passed_here = 0

    def is_used_up(limit: str) -> bool:
        nonlocal passed_here
        response = get(url)
        passed_here += response.status_code == 200
        return response.status_code == 429 and response.headers["X-RateLimit-Limit"] == limit

    with ThreadPoolExecutor(max_workers=1) as pool:
        traffic = pool.submit(burst, [url], clients=10, requests=5000, until=enough)
        try:
            poll.until(lambda: is_used_up("100"), "Redis denies", timeout=20)
            server.stop("kill")
            poll.until(lambda: is_used_up("25"), "the local limit denies", timeout=20)
            server.start()
            poll.until(lambda: is_used_up("100"), "Redis denies again", timeout=20)
            assert not traffic.done()
        finally:
            enough.set()
        statuses = traffic.result()
    assert set(statuses) == {200, 429}
    # Of the first Redis, of this process, and of the second Redis.
    assert statuses[200] + passed_here == 100 + 25 + 100


def test_a_redis_that_hangs_is_not_waited_for(serve: Serve, server: Server) -> None:
    """Frozen, it accepts connections and never answers. A few calls run into the timeout; then
    the circuit is open, and nobody asks.
    """
    url = serve(**OUTAGE | {"timeout": 0.3, "pause": 3600.0})
    poll.until(lambda: is_served_by_redis(url), "Redis decides")
    os.kill(server.pid, signal.SIGSTOP)
    try:
        assert burst([url], clients=10, requests=10) == {200: 25, 429: 75}
    finally:
        os.kill(server.pid, signal.SIGCONT)
    # It answers now, but the pause is an hour.
    with server.client() as redis:
        redis.ping()
        redis.config_resetstat()
        assert burst([url], clients=10, requests=10) == {429: 100}
        assert "cmdstat_rl.mtake" not in redis.info("commandstats")


def test_after_the_pause_the_circuit_closes_again(serve: Serve, server: Server) -> None:
    url = serve(**OUTAGE | {"timeout": 0.3, "pause": 0.2})
    poll.until(lambda: is_served_by_redis(url), "Redis decides")
    os.kill(server.pid, signal.SIGSTOP)
    try:
        assert burst([url], clients=10, requests=10) == {200: 25, 429: 75}
    finally:
        os.kill(server.pid, signal.SIGCONT)
    poll.until(lambda: is_served_by_redis(url), "Redis decides again", timeout=20)


def test_an_error_on_one_key_leaves_the_others_to_redis(serve: Serve, server: Server) -> None:
    url = serve(**OUTAGE)
    with server.client() as redis:
        redis.set("rl:{acme}:user:bob", "no limiter")
    bob = {"X-Api-Key": "bob-key"}
    assert burst([url], clients=10, requests=10, headers=bob) == {200: 25, 429: 75}
    assert is_served_by_redis(url)
