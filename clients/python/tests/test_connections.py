"""The connections of a limiter for threads."""

import os
import resource
from collections.abc import Iterator

import pytest
import redis

from redis_ratelimit import Fixed, Limiter

LIMIT = Fixed(1000, "1h")

# `select` takes no descriptor above 1023.
MANY = 1100


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """All below MANY are taken."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, MANY + 100)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"a process may have {hard} descriptors here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    taken = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while taken[-1] < MANY:
            taken.append(os.dup(taken[0]))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connected(admin: redis.Redis) -> int:
    return int(admin.info("stats")["total_connections_received"])


@pytest.mark.usefixtures("many_descriptors")
def test_a_process_with_many_descriptors_keeps_its_connection(url: str, admin: redis.Redis) -> None:
    with Limiter.from_url(url, timeout=10) as limiter:
        assert limiter.take("key", LIMIT).source == "server"
        before = connected(admin)
        for _ in range(20):
            # It is not sent again, so its connection is looked at first.
            assert limiter.give_back("key", LIMIT).source == "server"
        assert connected(admin) == before


def test_a_connection_that_was_closed_is_not_given_a_call_that_is_sent_once(
    url: str, admin: redis.Redis
) -> None:
    with Limiter.from_url(url, timeout=10, failures=1) as limiter:
        for _ in range(5):
            assert limiter.take("key", LIMIT).source == "server"
            admin.client_kill_filter(_type="normal", skipme=True)
            assert limiter.give_back("key", LIMIT).source == "server"
