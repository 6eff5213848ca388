"""Connection pool of a limiter for threads."""

import os
import resource
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from limiters import Make
from redis_ratelimit import Fixed, Limiter, UnavailableError
from redis_ratelimit.connections import Connections

LIMIT = Fixed(1000, "1h")

# `select` accepts no descriptor above 1023.
MIN_DESCRIPTOR = 1100


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Opens all descriptors below MIN_DESCRIPTOR."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed_limit = max(soft, MIN_DESCRIPTOR + 100)
    if hard != resource.RLIM_INFINITY and hard < needed_limit:
        pytest.skip(f"a process may have {hard} descriptors here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed_limit, hard))
    descriptors = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while descriptors[-1] < MIN_DESCRIPTOR:
            descriptors.append(os.dup(descriptors[0]))
        yield
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("options", [{"timeout": 0.1}, {"connect_timeout": 0.1}], ids=str)
def test_tls_to_a_port_without_tls_is_explained(
    make: Make, url: str, options: dict[str, float]
) -> None:
    limiter = make(url.replace("redis:", "rediss:"), on_outage="raise", resends=0, **options)
    with pytest.raises(UnavailableError, match="does the server speak TLS at this port"):
        limiter.take("key", LIMIT)


def connection_count(admin: redis.Redis) -> int:
    return int(admin.info("stats")["total_connections_received"])


@pytest.mark.usefixtures("many_descriptors")
def test_connection_is_reused_with_descriptors_above_1023(url: str, admin: redis.Redis) -> None:
    with Limiter.from_url(url, timeout=10) as limiter:
        assert limiter.take("key", LIMIT).source == "server"
        before = connection_count(admin)
        for _ in range(20):
            # give_back is not resent, so its connection is checked first.
            assert limiter.give_back("key", LIMIT).source == "server"
        assert connection_count(admin) == before


def test_closed_connection_is_not_used_for_a_call_without_resends(
    url: str, admin: redis.Redis
) -> None:
    with Limiter.from_url(url, timeout=10, failures=1) as limiter:
        for _ in range(5):
            assert limiter.take("key", LIMIT).source == "server"
            admin.client_kill_filter(_type="normal", skipme=True)
            assert limiter.give_back("key", LIMIT).source == "server"


class TlsSocket:
    """Socket like a TLS socket in a process that was not scheduled: its first read times out, even
    if input has arrived.
    """

    def __init__(self, wrapped: socket.socket) -> None:
        self._wrapped = wrapped
        self.is_late = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)

    def recv(self, size: int) -> bytes:
        if self.is_late:
            self.is_late = False
            raise TimeoutError("The read operation timed out")
        return self._wrapped.recv(size)


@pytest.mark.parametrize("has_arrived", [True, False])
def test_received_reply_is_read_before_the_timeout(has_arrived: bool) -> None:
    own, peer = socket.socketpair()
    with own, peer:

        class FakeConnection:
            _sock = TlsSocket(own)

            def connect(self) -> None:
                if has_arrived:
                    peer.sendall(b":7\r\n")

            def disconnect(self) -> None: ...

        connections = Connections(FakeConnection, 10, 1)
        if has_arrived:
            assert connections.send(["RL.PEEK"]) == 7
        else:
            with pytest.raises(TimeoutError):
                connections.send(["RL.PEEK"])
