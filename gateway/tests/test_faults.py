"""Faults under load: killed servers, many connections, and hostile requests."""

import contextlib
import http.client
import json
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from running import BINARY, OK, Gateway, descriptor

from support import poll
from support.binaries import Binary
from support.clock import Clock
from support.server import Server

pytestmark = pytest.mark.proxies
Start = Callable[..., Gateway]
LOAD = BINARY.parent / "gateway-bench"


@pytest.fixture
def suspendable_server(binary: Binary, clock: Clock) -> Iterator[Server]:
    """Server that this test may stop. It keeps every write."""
    with Server(binary, clock=clock, appendonly="yes", appendfsync="always") as server:
        server.client().execute_command("RL.POLICYSET", "bench|user", "FIXED", 10**9, "1d")
        yield server


@contextlib.contextmanager
def load(gateway: Gateway, **options: object) -> Iterator[Callable[[], dict]]:
    """Sends requests in the background. Yields a function that waits and returns the figures."""
    words = [
        word for name, value in options.items() for word in (f"--{name}".replace("_", "-"), value)
    ]
    target = f"http://127.0.0.1:{gateway.grpc}"
    with subprocess.Popen(
        [LOAD, "load", target, *map(str, words)], stdout=subprocess.PIPE, text=True
    ) as process:
        yield lambda: json.loads(process.communicate(timeout=100)[0])


def test_server_killed_under_load_loses_no_charges(
    suspendable_server: Server, start: Start
) -> None:
    gateway = start(suspendable_server.port, "--timeout", "100ms")
    with load(gateway, rate=2000, seconds=10, users=1) as wait_for_result:
        poll.until(lambda: gateway.metric("ratelimit_gateway_server_seconds_count") > 2000, "load")
        suspendable_server.stop("kill")
        poll.until(
            lambda: gateway.metric("ratelimit_gateway_outage") == 1, "the outage is reported"
        )
        # Calls continue during the outage.
        time.sleep(1)
        suspendable_server.start()
        result = wait_for_result()
    assert result["failed"] == 0, "each call is answered"
    assert result["allowed"] == result["calls"] >= 19_000
    assert result["decided"] > 4000
    assert result["calls"] - result["decided"] > 1000, "calls during the outage"
    remaining = (
        gateway.ask(descriptor(user="0", hits=0), domain="bench").statuses[0].limit_remaining
    )
    late_replies = gateway.metric("ratelimit_gateway_late_total")
    usage = 10**9 - remaining
    # Calls in flight at the kill may be charged and written to the file without a reply in time.
    assert result["decided"] <= usage <= result["decided"] + late_replies + 64


def test_file_is_reloaded_under_load(suspendable_server: Server, start: Start, file: Path) -> None:
    text = (
        "domain: bench\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: N}}]"
    )
    file.write_text(text.replace("N", "1000000000"))
    gateway = start(suspendable_server.port, "--config", file)
    with load(gateway, rate=500, seconds=6, users=100) as wait_for_result:
        for number in range(4):
            file.write_text(
                text.replace("N", str(10**9 + number)) if number != 2 else "nonsense: 1"
            )
            poll.until(
                lambda: gateway.metric("ratelimit_gateway_reloads_total") >= number + 1,  # noqa: B023
                "the file is read",
            )
        result = wait_for_result()
    assert (result["failed"], result["denied"]) == (0, 0)
    assert result["decided"] == result["calls"] > 2000


def test_gateway_killed_under_load_loses_no_charges(
    suspendable_server: Server, start: Start
) -> None:
    gateway = start(suspendable_server.port)
    with load(gateway, rate=500, seconds=4, users=1) as wait_for_result:
        poll.until(lambda: gateway.metric("ratelimit_gateway_server_seconds_count") > 500, "load")
        gateway.end(signal.SIGKILL)
        gateway.start()
        result = wait_for_result()
    remaining = (
        gateway.ask(descriptor(user="0", hits=0), domain="bench").statuses[0].limit_remaining
    )
    assert result["decided"] <= 10**9 - remaining <= result["decided"] + result["failed"]


def test_gateway_answers_despite_thousands_of_slow_connections(
    server: Server, start: Start
) -> None:
    redis = server.client()
    redis.execute_command("RL.POLICYSET", "http|client", "FIXED", 10**6, "1d")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(10_000, hard // 2)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gateway = start(server.port)
    with ExitStack() as connections:
        slow = []
        for number in range(count):
            port = gateway.http if number % 2 else gateway.grpc
            slow.append(
                connections.enter_context(socket.create_connection(("127.0.0.1", port), 30))
            )
            slow[-1].sendall(b"GET /check HT" if number % 2 else b"PRI * HTTP/2.0\r\n\r\nSM")
        assert gateway.get("/check").status == 200
        assert gateway.passes(descriptor(user="1"))
        resident = int(Path(f"/proc/{gateway.pid}/statm").read_text().split()[1])
        assert resident * os.sysconf("SC_PAGE_SIZE") < 400 << 20
        # A client that does not finish its request headers is disconnected.
        slow[1].settimeout(60)
        assert slow[1].recv(1000)[:12] in (b"", b"HTTP/1.1 408")
    assert gateway.get("/check").status == 200
    assert redis.ping()


def test_open_connections_work_without_free_file_descriptors(server: Server, start: Start) -> None:
    gateway = start(server.port)
    resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE, (64, 64))
    connection = http.client.HTTPConnection("127.0.0.1", gateway.http, timeout=30)

    def status() -> int:
        connection.request("GET", "/check")
        response = connection.getresponse()
        response.read()
        return response.status

    assert status() == 200
    with contextlib.closing(connection), ExitStack() as connections:
        # Twice as many as the gateway may open. Further connections wait in the listener's backlog.
        for _ in range(120):
            connections.enter_context(socket.create_connection(("127.0.0.1", gateway.http), 30))
        assert status() == 200
    poll.until(
        lambda: gateway.get("/check").status == 200,
        "new connections are accepted again",
        timeout=30,
    )


def test_oversized_requests_are_refused(gateway: Gateway) -> None:
    def error_code(*descriptors: object) -> grpc.StatusCode:
        with pytest.raises(grpc.RpcError) as error:
            gateway.ask(*descriptors)
        return error.value.code()

    assert (
        error_code(descriptor(**{f"k{n}": "v" for n in range(17)}))
        is grpc.StatusCode.INVALID_ARGUMENT
    )
    assert error_code(descriptor(user="x" * 66_000)) is grpc.StatusCode.OUT_OF_RANGE
    assert gateway.ask(*[descriptor(user="x" * 1900)] * 32).overall_code == OK
    many_descriptors = {
        "domain": "api",
        "descriptors": [{"entries": [{"key": "a", "value": "b"}]}] * 40_000,
    }
    assert gateway.get("/json", method="POST", data=many_descriptors).status in (400, 413)
    long_domain = {"domain": "x" * 3_000_000, "descriptors": []}
    assert gateway.get("/json", method="POST", data=long_domain).status == 413
    with socket.create_connection(("127.0.0.1", gateway.http), 30) as raw:
        raw.sendall(b"GET /check HTTP/1.1\r\nx: " + b"y" * 600_000 + b"\r\n\r\n")
        assert raw.recv(100).split(b" ")[1] in (b"431", b"400")
    assert gateway.get("/check", x_forwarded_for=", ".join(["9.9.9.9"] * 1000)).status == 200
