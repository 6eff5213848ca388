"""Redis gone in mid-traffic, and back again."""

import logging
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from redis import Redis
from redis_ratelimit import TokenBucket
from serving import Serve
from traffic import ask, burst, get
from without_module import without_module

from support import poll
from support.binaries import Binary
from support.server import Server

# In Redis 100, and for one of four processes 25.
USER = {"user:{user}": TokenBucket(100, 1, "1h", name="user")}
# The shared limit is not what is looked at here.
PLENTY = TokenBucket(1_000_000, 1_000_000, name="global")

TOKENS = TokenBucket(10_000, 1, "1h", name="llm-tokens")

OUTAGE = {"limits": USER, "processes": 4, "global_limit": PLENTY}


BOB = {"X-Api-Key": "bob-key"}

MODULE_MISSING = (
    "the redis-ratelimit module is not loaded: "
    "start the server with --loadmodule /path/to/libredis_ratelimit.so policies yes"
)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Returns the log's lines as an unconfigured logger shows them."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "redis_ratelimit" and record.levelno >= logging.WARNING
    ]


def fill(key: str, redis: Redis) -> None:
    """Fills the key with 16 limits, the maximum: one more is an error."""
    for number in range(16):
        redis.execute_command("RL.FIXED", key, 1, "1h", "AS", f"own{number}")


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
    # Not when there is a unit here, in hours, but when Redis is asked again.
    assert response.headers["Retry-After"] == "1"

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

    def is_used_up(limit: str | None) -> bool:
        nonlocal passed_here
        response = get(url)
        passed_here += response.status_code == 200
        told = response.headers.get("X-RateLimit-Limit")
        return response.status_code == 429 and told == limit

    with ThreadPoolExecutor(max_workers=1) as pool:
        traffic = pool.submit(burst, [url], clients=10, requests=5000, until=enough)
        try:
            poll.until(lambda: is_used_up("100"), "Redis denies", timeout=20)
            server.stop("kill")
            poll.until(lambda: is_used_up(None), "the local limit denies", timeout=20)
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
        fill("rl:{acme}:user:bob", redis)
    # There is no room for what he would add, which is no outage.
    assert burst([url], clients=10, requests=10, headers=BOB) == {503: 100}
    assert is_served_by_redis(url)


def test_a_key_of_another_type_is_an_error_of_its_own(serve: Serve, server: Server) -> None:
    url = serve(**OUTAGE)
    with server.client() as redis:
        redis.set("rl:{acme}:user:bob", "no limiter")
    response = get(url, headers=BOB)
    assert (response.status_code, "RateLimit" in response.headers) == (500, False)
    assert is_served_by_redis(url)
    # On trial, limits fail nobody.
    assert get(serve(shadow=True, **OUTAGE), headers=BOB).status_code == 200


@pytest.mark.parametrize("fail_open", [True, False])
def test_an_outage_is_one_line_when_it_begins_and_one_when_it_is_over(
    serve: Serve, server: Server, caplog: pytest.LogCaptureFixture, fail_open: bool
) -> None:
    url = serve(fail_open=fail_open, **OUTAGE | {"pause": 0.05})
    assert is_served_by_redis(url)
    server.stop("kill")
    # For longer than the pause, so that it is asked several times.
    failures = 0

    def has_failed() -> bool:
        nonlocal failures
        failures += burst([url], clients=10, requests=2).total()
        return failures >= 200

    poll.until(has_failed, "many requests have failed", timeout=30)
    assert len(told(caplog)) == 1
    server.start()
    poll.until(lambda: get(url) and len(told(caplog)) > 1, "it is over", timeout=20)
    assert burst([url], clients=10, requests=10).total() == 100
    begins, ends = told(caplog)
    assert begins.startswith("Redis is away: ")
    assert ends == "Redis is back"


def test_in_the_shadow_too_an_outage_is_one_line(
    serve: Serve, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    url = serve(shadow=True, fail_open=False, **OUTAGE)
    server.stop("kill")
    assert burst([url], clients=10, requests=10) == {200: 100}
    assert len(told(caplog)) == 1


def test_an_error_that_comes_and_goes_is_one_line(
    serve: Serve, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    url = serve(**OUTAGE | {"pause": 3600.0})
    with server.client() as redis:
        fill("rl:{acme}:user:bob", redis)
    for _ in range(20):
        get(url, headers=BOB)
        assert is_served_by_redis(url)
    (line,) = told(caplog)
    assert line.startswith("Redis refuses a call for 'rl:{acme}:user:bob': the key has 16 limits")


def test_a_server_without_the_module_is_told_of_at_the_start_in_one_line(
    serve: Serve, plain_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    url = serve(redis_url=f"redis://127.0.0.1:{plain_server.port}", **OUTAGE)
    (line,) = told(caplog)
    assert line == f"Redis refuses a call for 'redis-ratelimit:check': {MODULE_MISSING}"
    # That is no outage: nobody passes until somebody has seen to it.
    assert [get(url).status_code for _ in range(10)] == [500] * 10
    assert told(caplog) == [line]


def test_a_server_that_comes_back_without_the_module_is_told_of_in_one_line(
    serve: Serve, binary: Binary, caplog: pytest.LogCaptureFixture
) -> None:
    with Server(binary) as server:
        url = serve(redis_url=f"redis://127.0.0.1:{server.port}", **OUTAGE | {"pause": 0.05})
        assert is_served_by_redis(url)
        server.stop("kill")
        get(url)
        without_module(server).start()

        def tells() -> list[str]:
            return [line for line in told(caplog) if line.endswith(MODULE_MISSING)]

        poll.until(lambda: get(url) and tells(), "it is told", timeout=20)
        for _ in range(10):
            assert get(url).status_code == 500
        assert len(tells()) == 1


def test_redis_may_be_away_at_the_start(
    serve: Serve, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.stop("kill")
    url = serve(**OUTAGE)
    assert burst([url], clients=10, requests=10) == {200: 25, 429: 75}
    server.start()
    poll.until(lambda: is_served_by_redis(url), "Redis decides", timeout=20)
    begins, ends = told(caplog)
    assert begins.startswith("Redis is away: ")
    assert ends == "Redis is back"


def test_what_passes_without_redis_is_told_no_numbers(serve: Serve, server: Server) -> None:
    """Responses without Redis show the policy but not the process's local share."""
    url = serve(**OUTAGE)
    policy = get(url).headers["RateLimit-Policy"]
    server.stop("kill")
    responses = [get(url) for _ in range(26)]
    assert [response.status_code for response in responses] == [200] * 25 + [429]
    for response in responses:
        assert not [name for name in response.headers if name.startswith("x-ratelimit")]
        assert "RateLimit" not in response.headers
        assert response.headers["RateLimit-Policy"] == policy


def test_a_cost_that_fits_the_limit_but_not_the_share_may_be_retried(
    serve: Serve, server: Server
) -> None:
    url = serve(**OUTAGE | {"limits": {}, "llm_limits": (TOKENS,)})
    server.stop("kill")
    response = ask(url, prompt="hi", max_tokens=5000)
    assert response.status_code == 429
    assert response.headers["Retry-After"] == "1"
